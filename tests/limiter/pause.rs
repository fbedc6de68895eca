//! Pauses: no request passes and no permit accrues. Afterwards the limiter continues as if it were
//! empty.

use std::time::Duration;

use crate::support::{MS, one_per_second, waiting, without_burst};
use tidegate::{
    AnyPolicy, Change, Clock, Grant, Keep, ManualClock, Nanos, Pause, PolicyConfig, Rate, RateLimiter,
    Refusal, Request, TokenBucket,
};
use tokio_test::task::spawn;
use tokio_test::{assert_pending, assert_ready};

const SECOND: Duration = Duration::from_secs(1);
const NANO: Duration = Duration::from_nanos(1);

fn retry_after(limiter: &crate::support::Limiter) -> Option<Duration> {
    limiter.try_acquire().expect_err("refused").retry_after()
}

#[test]
fn no_request_passes_in_a_pause() {
    let (limiter, clock) = without_burst(Rate::per_second(1000));
    limiter.pause_for(10 * SECOND);
    assert_eq!(limiter.status().paused_for, 10 * SECOND);
    assert_eq!(limiter.status().available, 0);
    assert_eq!(retry_after(&limiter), Some(10 * SECOND + MS));
    let mut waiter = waiting(&limiter);
    let mut reservation = limiter.reserve(1).expect("a reservation");
    clock.advance(10 * SECOND + MS - NANO);
    assert!(!waiter.is_woken() && !reservation.claim());
    clock.advance(NANO);
    assert_eq!(assert_ready!(waiter.poll()).map(Grant::waited), Ok(10 * SECOND + MS));
    clock.advance(MS);
    assert!(reservation.claim());
    assert_eq!(limiter.status().paused_for, Duration::ZERO);
}

#[test]
fn the_retry_after_of_a_try_in_a_pause_is_exact() {
    let (limiter, clock) = one_per_second();
    limiter.pause_for(SECOND / 2);
    // The debt of a second remains owed for a second after the pause.
    assert_eq!(retry_after(&limiter), Some(SECOND / 2 + SECOND));
    limiter.pause_for(5 * SECOND);
    let _waiter = waiting(&limiter);
    let after = retry_after(&limiter).expect("some day");
    assert_eq!(after, 7 * SECOND);
    clock.advance(after - NANO);
    assert!(limiter.try_acquire().is_err());
    clock.advance(NANO);
    assert!(limiter.try_acquire().is_ok());
}

#[test]
fn a_debt_is_not_paid_in_a_pause() {
    let clock = ManualClock::new();
    let limiter = RateLimiter::with_clock(TokenBucket::new(Rate::per_second(1), 2), clock.clone());
    limiter.debit(4);
    limiter.pause_for(60 * SECOND);
    let held = [limiter.reserve(2).expect("a reservation"), limiter.reserve(1).expect("a reservation")];
    assert_eq!(held.each_ref().map(|held| held.due_in()), [64 * SECOND, 65 * SECOND]);
    clock.advance(30 * SECOND);
    assert_eq!(held.each_ref().map(|held| held.due_in()), [34 * SECOND, 35 * SECOND]);
    assert!(limiter.resume());
    assert_eq!(held.each_ref().map(|held| held.due_in()), [4 * SECOND, 5 * SECOND]);
}

#[test]
fn a_pause_moves_waiters_and_refuses_those_it_makes_too_late() {
    let (limiter, clock) = one_per_second();
    let mut first = waiting(&limiter);
    let mut in_time = spawn(limiter.acquire_within(20 * SECOND));
    let mut too_late = spawn(limiter.acquire_within(5 * SECOND));
    assert_pending!(in_time.poll());
    assert_pending!(too_late.poll());
    limiter.pause_for(10 * SECOND);
    let refusal = assert_ready!(too_late.poll()).expect_err("too late");
    // Due at 13 s, so accepted from 8 s on.
    assert_eq!(refusal.retry_after(), Some(8 * SECOND));
    clock.advance(11 * SECOND);
    assert_ready!(first.poll()).expect("granted");
    assert!(!in_time.is_woken());
    clock.advance(SECOND);
    assert_eq!(assert_ready!(in_time.poll()).expect("granted").waited(), 12 * SECOND);
}

#[test]
fn a_shorter_pause_does_not_end_a_longer_one() {
    let (limiter, clock) = without_burst(Rate::per_second(1000));
    limiter.pause_until(Nanos::new(10_000_000_000));
    limiter.pause_until(Nanos::new(1_000_000_000));
    limiter.pause_for(Duration::ZERO);
    assert_eq!(limiter.status().paused_for, 10 * SECOND);
    clock.advance(4 * SECOND);
    limiter.pause_for(SECOND);
    assert_eq!(limiter.status().paused_for, 6 * SECOND);
}

#[test]
fn a_resumed_limiter_serves_at_once() {
    let (limiter, _clock) = without_burst(Rate::per_second(1));
    assert!(!limiter.resume());
    limiter.pause_for(Duration::MAX);
    assert_eq!(retry_after(&limiter), None);
    assert_eq!(limiter.status().paused_for, Duration::MAX);
    let mut waiter = waiting(&limiter);
    assert!(limiter.resume());
    assert_eq!(assert_ready!(waiter.poll()).map(Grant::waited), Ok(Duration::ZERO));
    assert_eq!(retry_after(&limiter), Some(SECOND));
}

/// Returns the grants to a crowd of callers that take all they can, as milliseconds after the first
/// time.
fn grants(limiter: &AnyLimiter, clock: &ManualClock, span: Duration) -> Vec<u64> {
    let begin = clock.now();
    let mut grants = Vec::new();
    loop {
        let at = clock.now().saturating_since(begin).as_duration();
        if at > span {
            return grants;
        }
        while limiter.try_acquire().is_ok() {
            grants.push(u64::try_from(at.as_millis()).expect("short"));
        }
        clock.advance(MS);
    }
}

type AnyLimiter = RateLimiter<AnyPolicy, ManualClock>;

/// Policies of 20 permits per second.
const POLICIES: [&str; 9] = [
    "smooth_bursty 20/s start_full",
    "token_bucket 20/s burst 20",
    "token_bucket 20/s burst 10 tolerance 500ms",
    "leaky_bucket 20/s nodelay 20",
    "fixed_window 20/s",
    "fixed_window 20/s from_first_grant",
    "sliding_window 20/s cells 5",
    "sliding_estimate 20/s",
    "sliding_log 20/s",
];

fn any(policy: &str) -> (AnyLimiter, ManualClock) {
    let clock = ManualClock::new();
    let policy: AnyPolicy = policy.parse().expect("a policy");
    (RateLimiter::with_clock(policy, clock.clone()), clock)
}

#[test]
fn no_burst_follows_a_pause() {
    // Bug: a limiter that was drained and paused for a second granted 20 permits when the pause
    // ended.
    let even: Vec<u64> = (1..20).map(|k| k * 50).collect();
    for policy in POLICIES {
        // Paused when the limiter is full, when it is empty, and half a second after it was empty.
        for (drained, later) in [(false, 0), (true, 0), (true, 500)] {
            let (limiter, clock) = any(policy);
            clock.advance(10 * SECOND);
            if drained {
                limiter.drain();
            }
            clock.advance(later * MS);
            limiter.pause_for(SECOND);
            assert_eq!(grants(&limiter, &clock, SECOND - MS), [0; 0], "{policy}");
            assert_eq!(grants(&limiter, &clock, SECOND - MS), even, "{policy} {drained} {later}");
        }
    }
}

#[test]
fn no_more_than_one_an_interval_follows_for_a_whole_window() {
    for policy in POLICIES {
        let (limiter, clock) = any(policy);
        clock.advance(10 * SECOND);
        limiter.pause_for(SECOND);
        // No request arrives before half a window has passed. Ten permits have accrued by then.
        clock.advance(SECOND + 500 * MS);
        let grants = grants(&limiter, &clock, 450 * MS);
        let at_once = grants.iter().filter(|at| **at == 0).count();
        assert_eq!((at_once, grants.len()), (10, 19), "{policy}");
    }
}

#[test]
fn a_pause_set_by_five_calls_is_one_pause() {
    for policy in POLICIES {
        let told = [1, 5].map(|times| {
            let (limiter, clock) = any(policy);
            clock.advance(10 * SECOND);
            for _ in 0..times {
                limiter.pause_for(SECOND);
            }
            limiter.pause_for(SECOND / 2);
            clock.advance(SECOND);
            grants(&limiter, &clock, 3 * SECOND)
        });
        assert_eq!(told[0], told[1], "{policy}");
    }
}

#[test]
fn a_resumed_limiter_has_the_stock_that_there_was() {
    for policy in POLICIES {
        for taken in [0, 7, 20] {
            let (limiter, clock) = any(policy);
            clock.advance(10 * SECOND);
            let _taken = (0..taken).filter(|_| limiter.try_acquire().is_ok()).count();
            let stock = limiter.status().available;
            limiter.pause_for(10 * SECOND);
            clock.advance(3 * SECOND);
            assert!(limiter.resume());
            assert_eq!(limiter.status().available, stock, "{policy} {taken}");
        }
    }
}

#[test]
fn permits_given_back_in_a_pause_are_there_after_a_resume_and_not_at_the_end() {
    for policy in POLICIES {
        for (resumes, expected) in [(true, 5), (false, 0)] {
            let (limiter, clock) = any(policy);
            clock.advance(10 * SECOND);
            let mut estimate = limiter.reserve(5).expect("a reservation");
            assert!(estimate.claim());
            limiter.drain();
            limiter.pause_for(10 * SECOND);
            estimate.settle(0);
            clock.advance(MS);
            if resumes {
                limiter.resume();
            }
            let has = grants(&limiter, &clock, Duration::ZERO).len();
            assert_eq!(has, if resumes { expected } else { 0 }, "{policy}");
            clock.advance(10 * SECOND - 2 * MS);
            let at_the_end = grants(&limiter, &clock, Duration::ZERO).len();
            assert!(resumes || at_the_end == 0, "{policy}");
        }
    }
}

#[test]
fn a_stock_that_is_kept_is_there_at_the_end() {
    for policy in ["smooth_bursty 20/s", "token_bucket 20/s burst 20", "leaky_bucket 20/s nodelay 20"] {
        let (limiter, clock) = any(policy);
        clock.advance(10 * SECOND);
        limiter.drain();
        clock.advance(200 * MS);
        let stock = limiter.status().available;
        limiter.pause(Pause::lasting(10 * SECOND).keep_permits());
        clock.advance(10 * SECOND);
        assert_eq!(limiter.status().available, stock, "{policy}");
        // Of two pauses, one that does not keep the permits decides for both.
        limiter.pause(Pause::lasting(10 * SECOND).keep_permits());
        limiter.pause_for(SECOND);
        clock.advance(10 * SECOND);
        assert_eq!(limiter.status().available, 0, "{policy}");
    }
}

#[test]
fn a_pause_whose_end_no_call_saw_spends_the_stock_as_of_its_end() {
    for policy in POLICIES {
        let (limiter, clock) = any(policy);
        clock.advance(10 * SECOND);
        limiter.pause_for(SECOND);
        clock.advance(SECOND + 200 * MS);
        assert_eq!(grants(&limiter, &clock, Duration::ZERO).len(), 4, "{policy}");
    }
}

#[test]
fn a_dropped_grant_after_a_pause_leaves_no_trace() {
    for policy in POLICIES {
        let [dropped, never] = [true, false].map(|asked| {
            let (limiter, clock) = any(policy);
            clock.advance(10 * SECOND);
            limiter.pause_for(SECOND);
            clock.advance(SECOND);
            if asked {
                let mut reservation = limiter.reserve(3).expect("a reservation");
                clock.advance(150 * MS);
                assert!(reservation.claim());
                reservation.settle(0);
            } else {
                clock.advance(150 * MS);
            }
            grants(&limiter, &clock, 500 * MS)
        });
        assert_eq!(dropped, never, "{policy}");
    }
}

#[test]
fn the_first_permit_after_a_pause_comes_an_interval_later_whatever_was_owed() {
    let warming = ["", "start_warm", "cool_at_once", "start_warm cool_at_once"];
    let warming = warming.map(|options| format!("smooth_warming_up 20/s warm_up 2s {options}"));
    for policy in POLICIES.map(String::from).into_iter().chain(warming) {
        // From a debt of several cold permits to no debt.
        for before in (0..500).step_by(21) {
            for permits in [1, 3] {
                let (limiter, clock) = any(&policy);
                limiter.try_acquire_many(permits).expect("at rest");
                clock.advance(before * MS);
                let _ = limiter.try_acquire();
                limiter.pause_for(820 * MS);
                let told = limiter.try_acquire().expect_err("paused").retry_after();
                clock.advance(820 * MS);
                let after = grants(&limiter, &clock, SECOND / 2);
                assert!(after[0] >= 50, "{policy}: {permits} and {before} ms before: {after:?}");
                let told = told.expect("some day").as_micros().div_ceil(1000) - 820;
                assert_eq!(told, u128::from(after[0]), "{policy}: {permits} and {before} ms before");
            }
        }
    }
}

#[test]
fn a_rate_that_rises_in_a_pause_lets_no_burst_through() {
    for policy in POLICIES {
        let (limiter, clock) = any(policy);
        clock.advance(10 * SECOND);
        limiter.pause_for(SECOND);
        clock.advance(SECOND / 2);
        limiter.set_rate(Rate::per_second(40));
        clock.advance(SECOND / 2 - MS);
        assert_eq!(grants(&limiter, &clock, 51 * MS), [26, 51], "{policy}");
    }
}

#[test]
fn a_jitter_prolongs_a_pause_by_no_more_than_was_asked_for() {
    let mut ends = std::collections::BTreeSet::new();
    for _ in 0..100 {
        let (limiter, _clock) = any("token_bucket 20/s burst 20");
        limiter.pause(Pause::lasting(SECOND).jitter(SECOND));
        let lasts = limiter.status().paused_for;
        assert!((SECOND..=2 * SECOND).contains(&lasts), "{lasts:?}");
        ends.insert(lasts);
    }
    assert!(ends.len() > 90, "random: {}", ends.len());
}

#[test]
fn a_pause_without_end_lasts_until_it_is_ended() {
    for policy in POLICIES {
        let (limiter, clock) = any(policy);
        clock.advance(10 * SECOND);
        limiter.pause_until(Nanos::MAX);
        clock.advance(1000 * SECOND);
        assert_eq!(retry_after_any(&limiter), None, "{policy}");
        let stock = limiter.status().limit;
        assert!(limiter.resume());
        assert!(limiter.status().available >= stock.min(20), "{policy}");
    }
}

fn retry_after_any(limiter: &AnyLimiter) -> Option<Duration> {
    limiter.try_acquire().expect_err("refused").retry_after()
}

#[test]
fn a_late_grant_is_not_charged_as_of_a_time_in_the_pause() {
    let (limiter, clock) = without_burst(Rate::per_second(1));
    limiter.set_catch_up(2 * SECOND);
    limiter.pause_for(10 * SECOND);
    let mut waiter = waiting(&limiter);
    clock.jump(11_200 * MS);
    assert_ready!(waiter.poll()).expect("granted");
    // Charged as of an interval after the end of the pause.
    assert_eq!(retry_after(&limiter), Some(800 * MS));
}

#[test]
fn a_blocked_thread_waits_for_the_end_of_a_pause() {
    let (limiter, clock) = without_burst(Rate::per_second(1));
    limiter.pause_for(10 * SECOND);
    std::thread::scope(|scope| {
        let blocked = scope.spawn(|| limiter.blocking_acquire());
        while limiter.status().waiting == 0 {
            std::thread::yield_now();
        }
        clock.advance(11 * SECOND);
        assert_eq!(blocked.join().expect("no panic").map(Grant::waited), Ok(11 * SECOND));
    });
}

#[cfg(feature = "tokio")]
#[tokio::test(start_paused = true)]
async fn a_pause_moves_a_task_that_sleeps() {
    let policy = tidegate::SmoothBursty::new(Rate::per_second(1));
    let limiter = RateLimiter::with_clock(policy, tidegate::TokioClock::new());
    limiter.acquire().await.expect("a permit");
    let waiter = tokio::spawn(limiter.acquire_owned(1));
    tokio::task::yield_now().await;
    limiter.pause_for(30 * SECOND);
    assert_eq!(waiter.await.expect("no panic").map(Grant::waited), Ok(31 * SECOND));
}

#[test]
fn a_status_after_a_pause_is_that_of_an_empty_limiter() {
    for policy in POLICIES {
        let (limiter, clock) = any(policy);
        clock.advance(10 * SECOND);
        limiter.pause_for(SECOND);
        clock.advance(SECOND);
        let status = limiter.status();
        assert_eq!((status.available, status.next_in), (0, 50 * MS), "{policy}");
        clock.advance(120 * MS);
        let status = limiter.status();
        assert_eq!((status.available, status.next_in), (2, Duration::ZERO), "{policy}");
        assert!(limiter.try_acquire_many(2).is_ok(), "{policy}");
        assert_eq!(limiter.status().available, 0, "{policy}");
    }
}

/// The spacing after the pause of a window ends with the pause of the policy that replaces the
/// window.
#[test]
fn a_predicted_time_holds_after_pauses_of_two_kinds_of_policy() {
    let clock = ManualClock::new();
    let window: AnyPolicy = "fixed_window 10/s".parse().expect("a policy");
    let limiter = RateLimiter::with_clock(window, clock.clone());
    limiter.pause_for(SECOND / 2);
    clock.advance(SECOND / 2);
    let bursty = "smooth_bursty 5/s".parse().expect("a configuration");
    limiter.apply(&bursty, Keep::Count).expect("another kind");
    limiter.pause_for(SECOND / 2);
    let told = limiter.try_acquire_many(2).expect_err("paused").retry_after().expect("some time");
    clock.advance(told - Duration::from_nanos(1));
    assert!(limiter.try_acquire_many(2).is_err());
    clock.advance(Duration::from_nanos(1));
    assert!(limiter.try_acquire_many(2).is_ok());
}

#[test]
fn a_grant_that_is_spaced_after_a_pause_reports_the_status() {
    for policy in POLICIES {
        let (limiter, clock) = any(policy);
        limiter.pause_for(SECOND);
        clock.advance(SECOND);
        for _ in 0..200 {
            clock.advance(17 * MS);
            if let Ok(grant) = limiter.try_acquire_many(Request::permits(1).with_left()) {
                let (left, status) = (grant.left().expect("it was requested"), limiter.status());
                assert_eq!((left.available, left.next_in), (status.available, status.next_in), "{policy}");
            }
        }
    }
}

/// The permits that are granted in the ten seconds after a pause of a second, if the rate changes
/// every so often to the next of these.
fn granted_after_a_pause(policy: &str, every: u64, rates: &[u64]) -> Vec<u64> {
    let (limiter, clock) = any(policy);
    limiter.pause_for(SECOND);
    clock.advance(SECOND);
    let mut rates = rates.iter().cycle();
    let waiter = limiter.reserve(1).expect("a reservation");
    let mut granted = Vec::new();
    for millis in 1..=10_000 {
        clock.advance(MS);
        if millis % every == 0 {
            rates.next().into_iter().for_each(|rate| limiter.set_rate(Rate::per_second(*rate)));
        }
        while waiter.due_in().is_zero() && limiter.try_acquire().is_ok() {
            granted.push(millis);
        }
    }
    granted
}

/// Each change began the spacing after a pause anew: changes that came more often than permits let
/// no request pass.
#[test]
fn changes_of_the_rate_hold_up_no_request_after_a_pause() {
    for policy in [
        "fixed_window 10/s",
        "sliding_window 10/s cells 10",
        "sliding_estimate 10/s",
        "sliding_log 10/s with_capacity 20",
    ] {
        let unchanged = granted_after_a_pause(policy, 10_000, &[]);
        assert!(unchanged.len() >= 90, "{policy}: {unchanged:?}");
        for every in [30, 50, 95, 130] {
            assert_eq!(granted_after_a_pause(policy, every, &[10]), unchanged, "{policy} every {every} ms");
        }
        // In 950 ms, 9 permits accrue at 20/s and 5 at 10/s. After a window nothing is
        // spaced. The first permit is that of the waiter.
        let mixed = granted_after_a_pause(policy, 50, &[20, 10]);
        assert_eq!(mixed.iter().filter(|millis| **millis < 1000).count(), 13, "{policy}: {mixed:?}");
    }
}

/// A bucket has no spacing after a pause: the change filled it.
#[test]
fn a_change_from_a_window_to_a_bucket_after_a_pause_makes_no_permit_available() {
    for from in ["fixed_window 4/s", "sliding_window 4/s cells 4", "sliding_estimate 4/s", "sliding_log 4/s"]
    {
        for to in ["token_bucket 4/s burst 4", "leaky_bucket 4/s nodelay 3", "smooth_bursty 4/s"] {
            for (late, keep) in [(0, Keep::Count), (0, Keep::Ratio), (500, Keep::Count), (500, Keep::Ratio)] {
                let (limiter, clock) = any(from);
                clock.advance(10 * SECOND);
                limiter.pause_for(SECOND);
                clock.advance(SECOND + Duration::from_millis(late));
                let before = limiter.status().available;
                limiter.apply(&to.parse().expect("a configuration"), keep).expect("another kind");
                let passed = (0..100).take_while(|_| limiter.try_acquire().is_ok()).count() as u64;
                assert!(passed <= before, "{from} to {to}: {passed} of {before}");
                assert!(keep == Keep::Ratio || passed == before, "{from} to {to}: {passed} of {before}");
            }
        }
    }
}

/// A change of the rate keeps the permits that have accrued after a pause, and a part of one.
#[test]
fn a_change_of_the_rate_after_a_pause_keeps_what_has_accrued() {
    for (rate, next_in) in [(10, 50), (100, 5), (20, 25), (5, 100)] {
        let (limiter, clock) = any("sliding_log 10/s with_capacity 1000");
        limiter.pause_for(SECOND);
        clock.advance(SECOND + 550 * MS);
        assert_eq!(limiter.status().available, 5);
        limiter.set_rate(Rate::per_second(rate));
        assert_eq!(limiter.status().available, 5, "{rate}");
        limiter.try_acquire_many(5).expect("permits");
        if rate > 5 {
            let told = limiter.try_acquire().expect_err("none is left").retry_after();
            assert_eq!(told, Some(Duration::from_millis(next_in)), "{rate}");
        }
    }
}

/// Bug: a slower rate cut what had accrued if that takes longer at this rate than the clock's age.
#[test]
fn a_much_slower_rate_after_a_pause_keeps_what_has_accrued() {
    for policy in ["fixed_window 100/s", "sliding_log 100/s with_capacity 1000", "sliding_estimate 100/s"] {
        let (limiter, clock) = any(policy);
        limiter.pause_for(500 * MS);
        clock.advance(SECOND + 3 * MS);
        limiter.try_acquire_many(7).expect("permits");
        assert_eq!(limiter.status().available, 43, "{policy}");
        limiter.set_rate(Rate::per_minute(100));
        assert_eq!(limiter.status().available, 43, "{policy}");
        limiter.set_rate(Rate::per_second(100));
        assert_eq!(limiter.status().available, 43, "{policy}");
    }
}

/// Compares the predicted time with the state at that time if no call is made until then.
#[test]
fn a_status_in_a_pause_predicts_when_the_limiter_will_be_full() {
    let play = |text: &str, stock: bool, (taken, owed, passed, second): (u32, u32, u64, u64)| {
        let clock = ManualClock::new();
        let limiter = RateLimiter::with_clock(text.parse::<AnyPolicy>().expect("a policy"), clock.clone());
        let pause = |millis| {
            let pause = Pause::lasting(Duration::from_millis(millis));
            limiter.pause(if stock { pause.keep_permits() } else { pause });
        };
        for _ in 0..taken {
            let _ = limiter.try_acquire();
        }
        limiter.debit(owed);
        clock.advance(Duration::from_millis(passed));
        pause(1_370);
        clock.advance(Duration::from_millis(second));
        if second > 0 {
            // Extends the pause, or pauses again while grants may be spaced.
            pause(700);
        }
        (limiter, clock)
    };
    for text in crate::left::POLICIES {
        for stock in [false, true] {
            for passed in [0, 90, 333] {
                for (taken, owed, second) in
                    [(0, 0, 0), (1, 0, 0), (2, 0, 1_000), (4, 0, 0), (4, 9, 450), (4, 0, 1_500), (0, 3, 0)]
                {
                    let acts = (taken, owed, passed, second);
                    let full_in = play(text, stock, acts).0.status().full_in;
                    let left = |after: Duration| {
                        let (limiter, clock) = play(text, stock, acts);
                        clock.advance(after);
                        limiter.status()
                    };
                    let context = format!("{text} {stock} {acts:?} {full_in:?}");
                    let full = left(full_in);
                    assert!(full.full_in.is_zero() && full.paused_for.is_zero(), "{context} {full:?}");
                    if !full_in.is_zero() {
                        let before = left(full_in - NANO);
                        assert!(!before.full_in.is_zero(), "{context} {before:?}");
                    }
                }
            }
        }
    }
}

/// Bug: an estimate of five that was settled after the pause gave back five permits at once.
#[test]
fn a_grant_from_before_a_pause_gives_back_nothing_that_the_pause_has_spent() {
    for policy in POLICIES {
        let (limiter, clock) = any(policy);
        clock.advance(10 * SECOND);
        let estimate = crate::support::estimate(&limiter, 5).expect("at rest");
        limiter.pause_for(SECOND);
        clock.advance(SECOND + 100 * MS);
        estimate.settle(0);
        assert_eq!(limiter.status().available, 2, "{policy}");
    }
    // A negative balance is given back.
    let (limiter, clock) = any("smooth_bursty 20/s start_full");
    let estimate = crate::support::estimate(&limiter, 25).expect("on credit");
    limiter.pause_for(SECOND);
    clock.advance(SECOND);
    assert_eq!(limiter.status().next_in, 250 * MS);
    estimate.settle(0);
    assert_eq!(limiter.status().next_in, 50 * MS);
}

/// Bug: the spacing after a pause had ended, but the first status still counted it, because a
/// request was waiting when the status was requested.
#[test]
fn the_first_status_after_a_pause_is_equal_to_the_second_one() {
    for policy in POLICIES {
        for passed in (0..3_000).step_by(50) {
            let (limiter, clock) = any(policy);
            clock.advance(10 * SECOND);
            limiter.pause_for(SECOND);
            let _due = limiter.reserve(5).expect("a reservation");
            clock.advance(SECOND + passed * MS);
            let told = [limiter.status(), limiter.status()];
            assert_eq!(told[0], told[1], "{policy} {passed}");
            let granted = (0..100).filter(|_| limiter.try_acquire().is_ok()).count();
            assert_eq!(u64::try_from(granted), Ok(told[0].available), "{policy} {passed}");
        }
    }
}

#[test]
fn a_reservation_that_is_not_checked_is_charged_as_of_the_end_of_a_pause() {
    for policy in ["sliding_window 20/s cells 5", "sliding_log 20/s"] {
        let (limiter, clock) = any(policy);
        clock.advance(10 * SECOND);
        limiter.pause(Pause::lasting(SECOND).keep_permits());
        let _due = limiter.reserve(5).expect("a reservation");
        clock.advance(SECOND + 500 * MS);
        assert_eq!(limiter.status().available, 15, "{policy}");
    }
}

/// Bug: after a pause of a window policy, permits that were charged or given back without a request
/// were not counted, and `keep_at_most` took permits that were not available.
#[test]
fn after_a_pause_charges_and_refunds_without_a_request_count() -> Result<(), Refusal> {
    for text in [
        "token_bucket 10/s burst 10",
        "fixed_window 10/s",
        "sliding_window 10/s cells 4",
        "sliding_estimate 10/s",
        "sliding_log 10/s",
    ] {
        let policy: AnyPolicy = text.parse().expect("a policy");
        let paused = || {
            let clock = ManualClock::new();
            let limiter = RateLimiter::with_clock(policy.clone(), clock.clone());
            clock.advance(100 * MS);
            limiter.pause_for(100 * MS);
            clock.advance(300 * MS);
            assert_eq!(limiter.status().available, 2, "{text}");
            (limiter, clock)
        };
        let available = |limiter: &RateLimiter<_, _>| limiter.status().available;

        let (limiter, clock) = paused();
        limiter.debit(2);
        let mut granted = 0;
        for _ in 0..7 {
            granted += (0..10).take_while(|_| limiter.try_acquire().is_ok()).count();
            clock.advance(100 * MS);
        }
        assert_eq!(granted, 6, "{text}: two of eight are debited");

        let (limiter, _) = paused();
        let mut reservation = limiter.reserve(1)?;
        assert!(reservation.claim(), "{text}");
        reservation.settle(2);
        assert_eq!(available(&limiter), 0, "{text}");

        let (limiter, _) = paused();
        limiter.try_acquire_many(2)?;
        assert_eq!(limiter.keep_at_most(0), 0, "{text}");
        limiter.refund(2);
        assert_eq!(available(&limiter), 2, "{text}");
        assert_eq!(limiter.keep_at_most(1), 1, "{text}");
        assert_eq!((limiter.drain(), available(&limiter)), (1, 0), "{text}");
        assert_eq!(limiter.status().next_in, 100 * MS, "{text}");
    }
    Ok(())
}

/// Bug: in a pause of a window policy a debit counted in the window, and not for the permits with
/// which the limiter continues.
#[test]
fn a_debit_in_a_pause_lowers_the_permits_after_it() {
    for text in ["token_bucket 10/s burst 10", "fixed_window 10/s", "sliding_log 10/s"] {
        let clock = ManualClock::new();
        let policy: AnyPolicy = text.parse().expect("a policy");
        let limiter = RateLimiter::with_clock(policy, clock.clone());
        limiter.pause_for(5 * SECOND);
        limiter.debit(4);
        clock.advance(2 * SECOND);
        limiter.resume();
        assert_eq!(limiter.status().available, 6, "{text}");
    }
}

/// Regression: charges and refunds without a request were not counted beyond zero, and
/// `keep_at_most` in a second pause took permits that the pace of the first one withheld.
#[test]
fn charges_and_refunds_without_a_request_add_up_around_pauses() {
    for text in
        ["token_bucket 10/s burst 10", "fixed_window 10/s", "sliding_estimate 10/s", "sliding_log 10/s"]
    {
        let policy: AnyPolicy = text.parse().expect("a policy");
        let new = || {
            let clock = ManualClock::new();
            (RateLimiter::with_clock(policy.clone(), clock.clone()), clock)
        };
        let (limiter, _) = new();
        limiter.try_acquire_many(7).expect("a burst");
        limiter.pause_for(10 * SECOND);
        limiter.debit(9);
        limiter.refund(9);
        limiter.resume();
        assert_eq!(limiter.status().available, 3, "{text}");

        let (limiter, clock) = new();
        limiter.try_acquire_many(5).expect("a burst");
        limiter.pause_for(100 * MS);
        clock.advance(100 * MS);
        limiter.refund(3);
        assert_eq!(limiter.status().available, 3, "{text}");
        limiter.debit(3);
        clock.advance(300 * MS);
        assert_eq!(limiter.status().available, 3, "{text}");

        let (limiter, clock) = new();
        clock.advance(100 * MS);
        limiter.pause_for(100 * MS);
        clock.advance(300 * MS);
        limiter.pause(Pause::lasting(500 * MS).keep_permits());
        limiter.keep_at_most(1);
        clock.advance(100 * MS);
        limiter.resume();
        for _ in 0..5 {
            assert_eq!((0..10).take_while(|_| limiter.try_acquire().is_ok()).count(), 1, "{text}");
            clock.advance(100 * MS);
        }
    }
}

/// Bug: a change in a pause did not change what the pause had noted of the permits of windows. A
/// window that a bucket became was whole at the end, and a bucket that a window became had only the
/// permits of that window, also if it was to begin anew.
#[test]
fn a_change_in_a_pause_changes_the_permits_after_it() {
    let to = |line: &str, keep| (line.parse::<PolicyConfig>().expect("a policy"), keep);
    for (from, taken, (to, keep), available) in [
        ("token_bucket 1/h burst 10", 10, to("sliding_log 10/10s", Keep::Count), 0),
        ("token_bucket 1/h burst 10", 7, to("fixed_window 10/10s", Keep::Count), 3),
        ("token_bucket 1/h burst 10", 7, to("sliding_window 10/10s cells 5", Keep::Ratio), 3),
        ("token_bucket 1/h burst 10", 10, to("sliding_log 10/10s", Keep::Nothing), 10),
        ("fixed_window 10/s", 10, to("token_bucket 1/h burst 100", Keep::Nothing), 100),
        ("fixed_window 10/s", 10, to("token_bucket 1/h burst 10", Keep::Count), 0),
        ("fixed_window 10/d", 10, to("fixed_window 1000/d", Keep::Nothing), 1000),
        ("fixed_window 10/d", 10, to("fixed_window 1000/d", Keep::Count), 990),
        ("fixed_window 10/s", 10, to("fixed_window 20/s", Keep::Nothing), 20),
        (
            "sliding_log 10/s with_capacity 100",
            10,
            to("sliding_log 20/s with_capacity 100", Keep::Nothing),
            20,
        ),
    ] {
        let (limiter, clock) = any(from);
        limiter.try_acquire_many(taken).expect("permits");
        limiter.pause_for(100 * SECOND);
        clock.advance(SECOND);
        limiter.apply(&to, keep).expect("a policy");
        clock.advance(20 * SECOND);
        limiter.resume();
        assert_eq!(limiter.status().available, available, "{from} to {to}, {keep:?}");
    }
    let (limiter, _clock) = any("fixed_window 10/d");
    limiter.try_acquire_many(10).expect("permits");
    limiter.pause_for(SECOND);
    limiter.change(Change::reset()).expect("a reset");
    limiter.resume();
    assert_eq!(limiter.status().available, 10);
}

/// Bug: grants were spaced after a pause although the policy was to begin anew.
#[test]
fn a_change_after_a_pause_that_begins_anew_spaces_no_grants() {
    for to in ["token_bucket 10/s burst 4", "sliding_log 4/s", "fixed_window 4/h"] {
        let (limiter, clock) = any("sliding_log 4/s");
        clock.advance(10 * SECOND);
        limiter.pause_for(SECOND);
        clock.advance(SECOND);
        assert_eq!(limiter.status().available, 0);
        limiter.apply(&to.parse().expect("a policy"), Keep::Nothing).expect("a change");
        assert_eq!(limiter.status().available, 4, "{to}");
    }
}

/// Bug: after a rate of zero, grants were spaced once more, a window after the pause.
#[test]
fn grants_are_spaced_for_a_window_and_not_again_after_a_rate_of_zero() {
    let (limiter, clock) = any("sliding_log 10/s");
    limiter.pause_for(SECOND);
    clock.advance(SECOND);
    let mut waits: Vec<_> = (0..20).map(|_| spawn(limiter.acquire())).collect();
    waits.iter_mut().for_each(|wait| assert_pending!(wait.poll()));
    clock.advance(SECOND + 50 * MS);
    limiter.set_rate(Rate::ZERO);
    clock.advance(8 * SECOND);
    limiter.set_rate(Rate::per_second(10));
    assert!(waits.iter_mut().all(|wait| wait.poll().is_ready()));
}

/// Bug: in a pause a window lost permits that it would not have had at the end.
#[test]
fn permits_that_a_pause_withholds_are_not_taken() {
    let (limiter, clock) = any("sliding_log 10/10s");
    limiter.try_acquire_many(10).expect("permits");
    limiter.pause_for(55 * SECOND);
    clock.advance(50 * SECOND);
    assert_eq!((limiter.status().available, limiter.drain()), (0, 0));
    clock.advance(6 * SECOND);
    assert!(limiter.try_acquire().is_ok());
}

/// Bug: a change in a pause made permits available, or lost some.
#[test]
fn a_change_in_a_pause_makes_no_permit_available() {
    let policy = |line: &str| line.parse().expect("a policy");
    for (from, taken, to, available) in [
        ("fixed_window 10/s", 10, "token_bucket 1/h burst 100", 0),
        ("fixed_window 10/s", 5, "token_bucket 1/h burst 100", 50),
        ("fixed_window 10/s", 10, "sliding_log 100/s", 0),
        ("fixed_window 100/s", 50, "sliding_log 10/s", 5),
    ] {
        let (limiter, clock) = any(from);
        limiter.try_acquire_many(taken).expect("permits");
        limiter.pause_for(100 * SECOND);
        clock.advance(2 * SECOND);
        limiter.apply(&policy(to), Keep::Ratio).expect("a change");
        limiter.resume();
        assert_eq!(limiter.status().available, available, "{from} to {to}");
    }
    // Lowered and raised, and with a debit.
    let (limiter, clock) = any("sliding_log 20/s");
    limiter.try_acquire_many(13).expect("permits");
    limiter.pause_for(100 * SECOND);
    limiter.set_rate(Rate::per_second(5));
    clock.advance(2 * SECOND);
    limiter.set_rate(Rate::per_second(20));
    limiter.resume();
    assert_eq!(limiter.status().available, 7);
    // A pause that keeps the permits.
    let (limiter, clock) = any("fixed_window 10/s");
    limiter.try_acquire_many(10).expect("permits");
    limiter.pause(Pause::lasting(100 * SECOND).keep_permits());
    clock.advance(20 * SECOND);
    limiter.apply(&policy("token_bucket 1/h burst 10"), Keep::Count).expect("a change");
    limiter.resume();
    assert_eq!(limiter.status().available, 10);
}

/// Bug: a change in a pause, even one that failed or changed nothing, spent the permits that a
/// window had got back, and nothing was granted for a window.
#[test]
fn a_change_in_a_pause_takes_no_permits_of_a_window() {
    for change in 0..3 {
        let (limiter, clock) = any("sliding_log 10/10s");
        limiter.try_acquire_many(10).expect("permits");
        limiter.pause_for(55 * SECOND);
        clock.advance(50 * SECOND);
        let before = limiter.status();
        match change {
            0 => drop(limiter.change(Change::only_burst(5)).expect_err("a log has no burst")),
            1 => limiter.set_rate("10/10s".parse().expect("a rate")),
            _ => limiter
                .apply(&"sliding_log 10/10s".parse().expect("a policy"), Keep::Count)
                .expect("a change"),
        }
        assert_eq!(limiter.status(), before);
        clock.advance(6 * SECOND);
        assert!(limiter.try_acquire().is_ok());
    }
}

/// Bug: a resume some time after a change of the kind gave a window permits that it never had.
#[test]
fn a_resume_long_after_a_change_of_the_kind_gives_no_permits() {
    for (from, taken, to, keep, available) in [
        ("fixed_window 10/s", 10, "sliding_log 100/s", Keep::Count, 0),
        ("fixed_window 10/s", 4, "sliding_log 100/s", Keep::Count, 6),
        ("fixed_window 100/s", 95, "sliding_log 8/s", Keep::Count, 0),
        ("fixed_window 100/s", 95, "sliding_log 98/s", Keep::Count, 3),
        ("fixed_window 10/s", 5, "sliding_log 100/s", Keep::Ratio, 50),
        ("fixed_window 10/s", 5, "token_bucket 1/h burst 100", Keep::Ratio, 50),
        ("fixed_window 10/s", 5, "token_bucket 1/h burst 100", Keep::Count, 5),
        ("sliding_log 10/s", 9, "sliding_log 10/s", Keep::Count, 1),
        ("fixed_window 10/s", 10, "fixed_window 10/s", Keep::Nothing, 10),
    ] {
        let (limiter, clock) = any(from);
        limiter.try_acquire_many(taken).expect("permits");
        limiter.pause_for(100 * SECOND);
        clock.advance(2 * SECOND);
        limiter.apply(&to.parse().expect("a policy"), keep).expect("a change");
        clock.advance(2 * SECOND);
        limiter.resume();
        assert_eq!(limiter.status().available, available, "{from}, {taken} taken, to {to} with {keep:?}");
    }
}

/// Bug: permits that were drained or charged in a pause without a limit were missing from the next
/// limit.
#[test]
fn an_unlimited_window_in_a_pause_has_no_permits_to_take() {
    let (limiter, _clock) = any("fixed_window 10/s");
    limiter.set_rate(Rate::UNLIMITED);
    limiter.pause_for(SECOND);
    assert_eq!(limiter.drain(), 0);
    limiter.debit(5);
    limiter.set_rate(Rate::per_second(10));
    limiter.resume();
    assert_eq!(limiter.status().available, 10);
}

/// Bug: a much slower rate forgave what was owed after a pause, if the clock was young.
#[test]
fn a_debt_after_a_pause_outlasts_a_change_of_the_rate() {
    let next_in = [0, 100].map(|age| {
        let (limiter, clock) = any("fixed_window 100/s");
        clock.advance(age * SECOND);
        limiter.pause_for(500 * MS);
        clock.advance(SECOND + 3 * MS);
        limiter.debit(80);
        limiter.set_rate(Rate::per_minute(100));
        limiter.status().next_in
    });
    assert!(next_in.iter().all(|next_in| *next_in > 18 * SECOND), "{next_in:?}");
}

/// Bug: a rate of zero after a pause took the permits that had accrued since the pause.
#[test]
fn permits_that_accrued_after_a_pause_outlast_a_rate_of_zero() {
    let (limiter, clock) = any("sliding_log 10/s");
    limiter.pause_for(SECOND);
    clock.advance(SECOND + 500 * MS);
    assert_eq!(limiter.status().available, 5);
    limiter.set_rate(Rate::ZERO);
    clock.advance(10 * SECOND);
    limiter.set_rate(Rate::per_second(10));
    assert_eq!(limiter.status().available, 5);
    // The grants are spaced for the rest of the window.
    clock.advance(200 * MS);
    assert_eq!(limiter.status().available, 7);
    clock.advance(300 * MS);
    assert_eq!(limiter.status().available, 10);
}
