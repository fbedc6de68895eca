//! Arguments at the limits of their types, and other extremes. Each was once a panic, a hang or a
//! free permit.

use std::task::Poll;
use std::time::Duration;

use tidegate::policy::Policy;
use tidegate::{
    AnyPolicy, Change, FixedWindow, Keep, LeakyBucket, ManualClock, Nanos, Rate, RateLimiter,
    SlidingEstimate, SlidingLog, SlidingWindow, TokenBucket,
};

use tokio_test::assert_pending;
use tokio_test::task::spawn;

const T: Nanos = Nanos::new(1_000_000_000);

fn at(seconds: u64) -> Nanos {
    Nanos::from_duration(Duration::from_secs(seconds))
}

/// Bug: with u32::MAX used and one more requested, `saturating_add` in `fits` hid the overflow.
/// That panicked in debug builds; in release builds `used` wrapped to 0.
#[test]
fn estimate_used_does_not_overflow() {
    let policy = SlidingEstimate::new(Rate::per_second(u64::from(u32::MAX)));
    let state = policy.start(T);
    policy.try_acquire(&state, T, u32::MAX).expect("all");
    assert!(policy.try_acquire(&state, T, 1).is_err());
}

/// Bug: `Keep::Count` to a small limit and `Keep::Ratio` to a large one, repeatedly, raised the
/// counter to `u64::MAX`, and `used + n` wrapped.
fn stays_used_up(policy: impl Policy) {
    let (most, one) = (policy.rate(), Rate::per_second(1));
    let state = policy.start(T);
    policy.try_acquire(&state, T, u32::MAX).expect("all");
    for _ in 0..3 {
        policy.change(&state, T, Change::rate(one).keep(Keep::Count)).expect("fits");
        policy.change(&state, T, Change::rate(most).keep(Keep::Ratio)).expect("fits");
        assert!(policy.try_acquire(&state, T, 1).is_err());
    }
}

#[test]
fn what_was_used_does_not_overflow() {
    let most = Rate::per_second(u64::from(u32::MAX));
    stays_used_up(FixedWindow::new(most));
    stays_used_up(SlidingWindow::new(most, 2));
}

/// Bug: `ceil() as u64 + 1` in `whole_or_less` overflowed below about 5.4e-11/s. In release builds
/// the length was 0, and the division panicked.
#[test]
fn a_very_slow_rate_is_no_panic() {
    let slow = Rate::from_per_second(1e-12).expect("a rate");
    for policy in [
        AnyPolicy::from(FixedWindow::new(Rate::per_second(5))),
        SlidingWindow::new(Rate::per_second(5), 3).into(),
        SlidingEstimate::new(Rate::per_second(5)).into(),
        SlidingLog::new(Rate::per_second(5)).into(),
    ] {
        let state = policy.start(T);
        policy.set_rate(&state, T, slow);
        policy.try_acquire(&state, T, 1).expect("one");
        assert!(policy.try_acquire(&state, T, 1).is_err());
    }
}

/// A grant made without a limit is undone with one.
#[test]
fn sliding_window_undo_of_an_unlimited_grant() {
    let policy = SlidingWindow::new(Rate::UNLIMITED, 3);
    let state = policy.start(T);
    let charge = policy.try_acquire(&state, T, 1).expect("no limit");
    policy.set_rate(&state, T, "5/7ns".parse().expect("a rate"));
    policy.undo(&state, T, charge, u64::MAX);
}

/// Bug: changes use up the numbers of cells, and a slot still showed the number of the next cell
/// from before the numbers had wrapped. That cell was not entered, and granted any number of
/// permits.
#[test]
fn numbers_of_cells_wrap_while_a_rate_is_set() {
    let rate = Rate::new(10, Duration::from_secs(4)).expect("a rate");
    let policy = SlidingWindow::new(rate, 2048);
    let state = policy.start(Nanos::ZERO);
    for _ in 0..4096 {
        policy.set_rate(&state, Nanos::ZERO, rate);
    }
    let granted = (0..20).filter(|_| policy.try_acquire(&state, at(10), 1).is_ok()).count();
    assert_eq!(granted, 10);
}

/// Bug: a slot still showed the number of a cell that a change had not written. Its permits were
/// counted again, and then no cell dropped out: a status never returned.
#[test]
fn permits_from_before_many_changes_count_once() {
    let policy = SlidingWindow::new(Rate::per_day(10), 40_000);
    let state = policy.start(Nanos::ZERO);
    policy.try_acquire(&state, Nanos::ZERO, 1).expect("the first");
    for _ in 0..256 {
        policy.set_rate(&state, Nanos::ZERO, Rate::per_day(10));
    }
    assert_eq!(policy.status(&state, Nanos::ZERO).available, 9);
    assert!(policy.try_acquire(&state, Nanos::ZERO, 9).is_ok());
}

/// Bug: a refund took 2^32 steps, under the lock of the queue.
#[test]
fn log_refund_without_a_limit_ends() {
    let limiter = RateLimiter::with_clock(SlidingLog::new(Rate::UNLIMITED), ManualClock::new());
    limiter.refund(1);
}

/// Bug: a log undid no grant while it had no limit, and still counted the grant when it had a limit
/// again.
#[test]
fn log_undo_without_a_limit() {
    let (rate, later) = (Rate::per_second(2), Nanos::new(1_500_000_000));
    let policy = SlidingLog::new(rate);
    let state = policy.start(T);
    let charge = policy.try_acquire(&state, T, 2).expect("all");
    policy.set_rate(&state, T, Rate::UNLIMITED);
    policy.undo(&state, later, charge, u64::MAX);
    policy.set_rate(&state, later, rate);
    assert_eq!(policy.status(&state, later).available, 2);
}

/// Bug: the index 2^24 does not fit its 24 bits.
#[test]
fn log_with_the_largest_limit() {
    let policy = SlidingLog::new(Rate::per_minute(u64::from(SlidingLog::MAX_LIMIT)));
    let state = policy.start(T);
    policy.try_acquire(&state, T, SlidingLog::MAX_LIMIT - 1).expect("all but one");
    policy.try_acquire(&state, T, 1).expect("the last");
    assert!(policy.try_acquire(&state, T, 1).is_err());
    assert!(policy.try_acquire(&state, T, SlidingLog::MAX_LIMIT - 1).is_err(), "twice the limit");
}

/// Bug: `free` visited only `limit` entries. It made a hole between times that count, and a request
/// for several permits read the hole.
#[test]
fn log_refund_with_a_lower_limit_leaves_no_hole() {
    let policy = SlidingLog::new(Rate::per_minute(5));
    let state = policy.start(T);
    for second in 0..5 {
        policy.try_acquire(&state, at(1 + second), 1).expect("five");
    }
    policy.set_rate(&state, at(6), Rate::per_minute(2));
    policy.refund(&state, at(6), 1);
    assert!(policy.try_acquire(&state, at(6), 1).is_err(), "four are out, and the limit is two");
    policy.set_rate(&state, at(6), Rate::per_minute(5));
    assert!(policy.try_acquire(&state, at(6), 4).is_err(), "eight in a minute, and the limit is five");
}

/// No step ever adds a permit, so `ready_at` must not return a time, and the limiter must not spin
/// after that time.
#[test]
fn a_stepped_bucket_without_burst_does_not_spin() {
    let policy = TokenBucket::new("5/7ns".parse().expect("a rate"), 0);
    let policy =
        policy.tolerance(Duration::from_nanos(7)).and_then(TokenBucket::interval_refill).expect("fits");
    let clock = ManualClock::new();
    let limiter = RateLimiter::with_clock(policy, clock.clone());
    while limiter.try_acquire().is_ok() {}
    let mut wait = tokio_test::task::spawn(limiter.acquire());
    assert!(wait.poll().is_pending());
    // The tolerance admits five permits.
    clock.advance(Duration::from_secs(1 << 30));
    assert!(wait.poll().is_ready());
}

/// Bug: a charge of an expired window was subtracted from a window that had never contained it.
#[test]
fn fixed_window_undo_after_a_turn_and_a_change() {
    let policy = FixedWindow::new(Rate::per_minute(10));
    let state = policy.start(at(0));
    let charge = policy.try_acquire(&state, at(59), 5).expect("five");
    policy.try_acquire(&state, at(60), 10).expect("the next minute");
    policy.set_rate(&state, at(61), Rate::per_hour(10));
    policy.undo(&state, at(61), charge, u64::MAX);
    assert!(policy.try_acquire(&state, at(61), 1).is_err(), "ten are used");
}

/// Bug: above 16 permits a nanosecond, a tick is more than one permit, and a burst of 50 granted
/// 75.
#[test]
fn a_burst_is_a_burst_at_any_rate() {
    for rate in
        [16_000_000_000, 16_000_000_001, 24_000_000_000, 32_000_000_000, 48_000_000_000, 1 << 40, u64::MAX]
    {
        for burst in [1, 2, 3, 50, 1000] {
            for each in [1, 3, burst.min(7)] {
                let policy = TokenBucket::new(Rate::per_second(rate), burst);
                let state = policy.start(T);
                let mut taken = 0;
                while policy.try_acquire(&state, T, each).is_ok() {
                    taken += each;
                }
                let leaky = LeakyBucket::new(Rate::per_second(rate)).nodelay(burst - 1);
                let state = leaky.start(T);
                let mut passed = 0;
                while passed <= 2 * burst && leaky.try_acquire(&state, T, 1).is_ok() {
                    passed += 1;
                }
                assert!(
                    taken <= burst && passed <= burst,
                    "{taken} and {passed} of {burst} at {rate}/s by {each}"
                );
                // At most the burst fits into a bucket that was made with another rate.
                let other = TokenBucket::new(Rate::per_second(1), burst);
                let state = other.start(T);
                other.set_rate(&state, T, Rate::per_second(rate));
                let mut taken = 0;
                while other.try_acquire(&state, T, each).is_ok() {
                    taken += each;
                }
                assert!(taken <= burst, "{taken} of {burst} after a change to {rate}/s by {each}");
            }
        }
    }
}

/// Bug: a bucket that was made at a rate of zero had a tolerance of some 60 permits a second.
#[test]
fn a_tolerance_holds_no_permits_at_a_rate_of_zero() {
    let day = Duration::from_secs(86_400);
    let new = |rate| TokenBucket::new(rate, 4).tolerance(day).expect("fits");
    let takes = |policy: &TokenBucket, state: &_| {
        (0..10).take_while(|_| policy.try_acquire(state, T, 1).is_ok()).count()
    };
    let made = new(Rate::ZERO);
    assert_eq!(takes(&made, &made.start(T)), 4);
    let changed = new(Rate::per_second(3));
    let state = changed.start(T);
    changed.set_rate(&state, T, Rate::ZERO);
    assert_eq!(takes(&changed, &state), 4);
    changed.set_rate(&state, T, Rate::per_second(3));
    assert_eq!(takes(&changed, &state), 0);
}

/// Bug: at a rate of zero a request was told the time at which earlier permits would be paid for.
#[test]
fn nothing_is_due_at_a_rate_of_zero() {
    for text in ["smooth_bursty 10/s", "smooth_warming_up 10/s warm_up 1s"] {
        let policy: AnyPolicy = text.parse().expect("a policy");
        let state = policy.start(T);
        policy.try_acquire(&state, T, 6).expect("the first one");
        policy.set_rate(&state, T, Rate::ZERO);
        let refusal = policy.try_acquire(&state, T, 1).expect_err("a debt");
        assert_eq!(refusal.retry_after(), None, "{text}");
        policy.set_rate(&state, T, Rate::per_second(10));
        assert!(policy.try_acquire(&state, T, 1).expect_err("a debt").retry_after().is_some(), "{text}");
    }
}

/// Bug: when the clock showed the last time, requests that are never due kept their thread busy.
#[test]
fn a_clock_at_its_last_time_lets_requests_wait() {
    for text in
        ["token_bucket 1/s burst 1", "smooth_bursty 1/s max_burst 0s", "fixed_window 1/s", "sliding_log 1/s"]
    {
        let clock = ManualClock::new();
        let limiter = RateLimiter::with_clock(text.parse::<AnyPolicy>().expect("a policy"), clock.clone());
        limiter.try_acquire().expect("the first one");
        let mut waits: Vec<_> = (0..2).map(|_| spawn(limiter.acquire())).collect();
        for wait in &mut waits {
            assert_pending!(wait.poll());
        }
        clock.jump(Duration::MAX);
        let granted = waits.iter_mut().filter_map(|wait| match wait.poll() {
            Poll::Ready(granted) => Some(granted.expect("a grant")),
            Poll::Pending => None,
        });
        assert!(granted.count() <= 1, "{text}");
        assert_eq!(limiter.reserve(1).expect("a seat").due_in(), Duration::MAX, "{text}");
        assert_pending!(spawn(limiter.acquire()).poll());
    }
}
