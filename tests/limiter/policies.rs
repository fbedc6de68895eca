//! Waiting with window policies: which waiters are served when a window turns, and what dropped
//! waits leave behind. And a leaky bucket whose capacity changes.

use std::error::Error;
use std::task::Poll;
use std::time::Duration;

use crate::support::{MS, spawn_pending, waiting};
use tidegate::policy::Keep;
use tidegate::{
    AnyPolicy, Change, DenyAll, FixedWindow, Grant, LeakyBucket, ManualClock, Nanos, Policy, PolicyError,
    Rate, RateLimiter, Refusal, Request, SlidingEstimate, SlidingLog, SlidingWindow, SmoothBursty,
    SmoothWarmingUp, TokenBucket, Unlimited,
};
use tokio_test::task::spawn;
use tokio_test::{assert_pending, assert_ready, assert_ready_eq, assert_ready_ok};

const SECOND: Duration = Duration::from_secs(1);

/// Ten in ten seconds.
const LIMIT: u32 = 10;
const WINDOW: Duration = Duration::from_secs(10);

fn rate() -> Rate {
    Rate::new(LIMIT.into(), WINDOW).expect("a whole rate")
}

/// A limiter with all permits taken at zero.
fn drained<P: Policy>(policy: P) -> (RateLimiter<P, ManualClock>, ManualClock) {
    let clock = ManualClock::new();
    let limiter = RateLimiter::with_clock(policy, clock.clone());
    assert_eq!(limiter.try_acquire_many(LIMIT).map(drop), Ok(()));
    (limiter, clock)
}

// The window turns

/// Twenty-five requests wait for one permit each. At each turn as many waiters are woken as there
/// are permits, first come first served, and no others.
fn served_together<P: Policy>(policy: P) {
    let (limiter, clock) = drained(policy);
    let mut line: Vec<_> = (0..25).map(|_| waiting(&limiter)).collect();
    let mut waits = WINDOW;
    while !line.is_empty() {
        clock.advance(WINDOW - Duration::from_nanos(1));
        assert!(line.iter().all(|waiter| !waiter.is_woken()));
        clock.advance(Duration::from_nanos(1));
        let rest = line.split_off(line.len().min(LIMIT as usize));
        assert!(rest.iter().all(|waiter| !waiter.is_woken()));
        for mut waiter in line {
            assert!(waiter.is_woken());
            assert_ready_eq!(waiter.poll().map_ok(Grant::waited), Ok(waits));
        }
        line = rest;
        waits += WINDOW;
    }
}

#[test]
fn all_waiters_due_when_a_window_turns_are_served_at_once() -> Result<(), Box<dyn Error>> {
    served_together(FixedWindow::new(rate()));
    served_together(FixedWindow::new(rate()).from_first_grant());
    served_together(SlidingWindow::new(rate(), 5));
    served_together(SlidingLog::new(rate()));
    served_together(TokenBucket::new(rate(), LIMIT).interval_refill()?);
    Ok(())
}

/// Requests behind a request that no longer fits wait with it, even if they would fit.
fn served_in_order<P: Policy>(policy: P) {
    let (limiter, clock) = drained(policy);
    let sizes = [4, 5, 3, 1, 6];
    let mut line: Vec<_> = sizes.iter().map(|n| spawn(limiter.acquire_many(*n))).collect();
    line.iter_mut().for_each(|waiter| assert_pending!(waiter.poll()));
    for turn in [vec![0, 1], vec![2, 3, 4]] {
        clock.advance(WINDOW);
        let woken: Vec<_> = (0..line.len()).filter(|name| line[*name].is_woken()).collect();
        assert_eq!(woken, turn);
        for name in turn {
            assert!(line[name].poll().is_ready());
        }
    }
    assert_eq!(limiter.status().waiting, 0);
}

#[test]
fn a_large_request_is_not_overtaken_when_a_window_turns() -> Result<(), Box<dyn Error>> {
    served_in_order(FixedWindow::new(rate()));
    served_in_order(FixedWindow::new(rate()).from_first_grant());
    served_in_order(SlidingWindow::new(rate(), 5));
    served_in_order(SlidingLog::new(rate()));
    served_in_order(TokenBucket::new(rate(), LIMIT).interval_refill()?);
    Ok(())
}

// Dropped waits

#[derive(Clone, Copy, Debug)]
enum Order {
    Fifo,
    Lifo,
    /// Drops every seventh of the remaining futures.
    Mixed,
}

/// Returns when each of the next permits is available, one after the other.
fn next_grants<P: Policy>(limiter: &RateLimiter<P, ManualClock>, clock: &ManualClock) -> Vec<Duration> {
    let mut passed = Duration::ZERO;
    let mut next = || {
        while let Err(refusal) = limiter.try_acquire() {
            let wait = refusal.retry_after().expect("some day");
            clock.advance(wait);
            passed += wait;
        }
        passed
    };
    (0..3 * LIMIT).map(|_| next()).collect()
}

/// Returns the next grants after a storm of waits, all of which were granted, not seen, and dropped
/// a while later.
fn after_storm<P: Policy>(policy: P, storm: u32, order: Order) -> Vec<Duration> {
    let (limiter, clock) = drained(policy);
    clock.advance(SECOND / 2);
    let mut line: Vec<_> = (0..storm).map(|_| waiting(&limiter)).collect();
    clock.advance(WINDOW + 300 * MS);
    assert!(line.iter().all(|waiter| waiter.is_woken()));
    while !line.is_empty() {
        let index = match order {
            Order::Fifo => 0,
            Order::Lifo => line.len() - 1,
            Order::Mixed => 7 % line.len(),
        };
        drop(line.remove(index));
    }
    next_grants(&limiter, &clock)
}

fn storm_leaves_no_trace<P: Policy>(policy: impl Fn() -> P) {
    let without = after_storm(policy(), 0, Order::Fifo);
    for order in [Order::Fifo, Order::Lifo, Order::Mixed] {
        for storm in [1, 7, LIMIT] {
            assert_eq!(after_storm(policy(), storm, order), without, "{:?} {order:?} {storm}", policy());
        }
    }
}

#[test]
fn a_storm_of_unseen_grants_leaves_no_trace() {
    storm_leaves_no_trace(|| FixedWindow::new(rate()));
    storm_leaves_no_trace(|| FixedWindow::new(rate()).from_first_grant());
    storm_leaves_no_trace(|| SlidingWindow::new(rate(), 5));
    storm_leaves_no_trace(|| SlidingLog::new(rate()));
    storm_leaves_no_trace(|| TokenBucket::new(rate(), LIMIT));
    storm_leaves_no_trace(|| TokenBucket::new(rate(), LIMIT).interval_refill().expect("short steps"));
}

/// One future saw its grant and the others did not. Only that grant is counted, from its time.
#[test]
fn only_requests_that_saw_their_grants_are_counted() {
    fn next_after<P: Policy>(policy: P, dropped: u32) -> Vec<Duration> {
        let (limiter, clock) = drained(policy);
        let before: Vec<_> = (0..dropped).map(|_| waiting(&limiter)).collect();
        let mut witness = waiting(&limiter);
        let behind: Vec<_> = (0..dropped).map(|_| waiting(&limiter)).collect();
        clock.advance(WINDOW);
        assert_ready_eq!(witness.poll().map_ok(Grant::waited), Ok(WINDOW));
        drop((before, behind));
        next_grants(&limiter, &clock)
    }
    assert_eq!(next_after(FixedWindow::new(rate()), 4), next_after(FixedWindow::new(rate()), 0));
    assert_eq!(next_after(SlidingWindow::new(rate(), 5), 4), next_after(SlidingWindow::new(rate(), 5), 0));
    assert_eq!(next_after(SlidingLog::new(rate()), 4), next_after(SlidingLog::new(rate()), 0));
}

/// Bug: a request larger than the new burst kept every request waiting forever.
#[test]
fn a_waiter_larger_than_the_new_burst_is_refused_and_the_others_go_on() {
    let two_in_five = Rate::new(2, 5 * SECOND).expect("a whole rate");
    let policies = [
        ("token_bucket 1/s burst 5", Change::only_burst(2)),
        ("fixed_window 5/5s", Change::rate(two_in_five)),
        ("sliding_window 5/5s cells 5", Change::rate(two_in_five)),
        ("sliding_estimate 5/5s", Change::rate(two_in_five)),
        ("sliding_log 5/5s", Change::rate(two_in_five)),
    ];
    for (text, change) in policies {
        let clock = ManualClock::new();
        let policy: AnyPolicy = text.parse().expect("a policy");
        let limiter = RateLimiter::with_clock(policy, clock.clone());
        limiter.try_acquire_many(5).expect("all");
        let mut large = spawn(limiter.acquire_many(4));
        let mut small = spawn(limiter.acquire());
        assert_pending!(large.poll());
        assert_pending!(small.poll());
        limiter.change(change).expect("a change");
        assert!(large.is_woken(), "{text}");
        assert_eq!(
            assert_ready!(large.poll()),
            Err(Refusal::ExceedsLimit { requested: 4, limit: 2 }),
            "{text}"
        );
        clock.advance(Duration::from_secs(20));
        assert_ready_ok!(small.poll());
    }
}

// The capacity of a leaky bucket

/// Waiting requests stay, however the bucket changes. New requests are judged by the new bucket.
#[test]
fn a_leaky_bucket_can_become_higher_and_lower() -> Result<(), Box<dyn Error>> {
    let clock = ManualClock::new();
    let policy = LeakyBucket::new(Rate::per_second(1)).capacity(1);
    let limiter = RateLimiter::with_clock(policy, clock.clone());
    let joins = || {
        let mut task = spawn(limiter.acquire());
        let poll = task.poll().map_ok(Grant::waited);
        (task, poll)
    };
    let full = |wait: Duration| Poll::Ready(Err(Refusal::Limited { retry_after: wait.into() }));
    assert_eq!(joins().1, Poll::Ready(Ok(Duration::ZERO)));
    let (mut first, waits) = joins();
    assert_eq!(waits, Poll::Pending);
    assert_eq!(joins().1, full(SECOND));

    limiter.change(Change::default().capacity(3))?;
    let (mut second, waits) = joins();
    assert_eq!(waits, Poll::Pending);
    limiter.change(Change::rate(Rate::per_second(2)).max_wait(3 * SECOND / 2))?;
    let (mut third, waits) = joins();
    assert_eq!(waits, Poll::Pending);
    assert_eq!(joins().1, full(SECOND / 2));
    limiter.change(Change::default().max_wait(Duration::MAX))?;
    assert_eq!(limiter.policy().max_wait(), Duration::MAX);
    limiter.change(Change::default().capacity(0))?;
    assert_eq!(joins().1, full(2 * SECOND));
    for waiter in [&mut first, &mut second, &mut third] {
        clock.advance(SECOND / 2);
        assert!(waiter.is_woken());
        assert!(assert_ready!(waiter.poll()).is_ok());
    }
    Ok(())
}

/// Nodelay permits that a smaller capacity cuts do not return on their own.
#[test]
fn nodelay_permits_fit_into_a_lower_bucket() -> Result<(), Box<dyn Error>> {
    let policy = LeakyBucket::new(Rate::per_second(1)).nodelay(9);
    let limiter = RateLimiter::with_clock(policy, ManualClock::new());
    let at_once = || (0..20).take_while(|_| limiter.try_acquire().is_ok()).count();
    limiter.change(Change::default().capacity(4))?;
    assert_eq!(limiter.status().limit, 5);
    assert_eq!(limiter.policy().max_wait(), Duration::ZERO);
    assert_eq!(at_once(), 5);
    limiter.change(Change::reset().capacity(20))?;
    assert_eq!(limiter.policy().max_wait(), 16 * SECOND);
    assert_eq!(at_once(), 5);
    limiter.change(Change::only_burst(10).capacity(3).keep(Keep::Nothing))?;
    assert_eq!(at_once(), 4);
    Ok(())
}

/// The content of the bucket does not change, nor does that of a copy.
#[test]
fn a_change_of_the_height_alone_changes_nothing_else() -> Result<(), Box<dyn Error>> {
    for rate in [Rate::per_second(3), Rate::new(1000, Duration::from_millis(7))?, Rate::ZERO] {
        let policy = LeakyBucket::new(rate).nodelay(3);
        let state = policy.start(Nanos::ZERO);
        let now = Nanos::from_duration(SECOND / 7);
        policy.debit(&state, now, 2);
        let before = (policy.status(&state, now), policy.ready_at(&state, now, 0, 5));
        policy.change(&state, now, Change::default().max_wait(SECOND))?;
        assert_eq!((policy.status(&state, now), policy.ready_at(&state, now, 0, 5)), before);
        assert_eq!(policy.rate(), rate);
        assert_eq!(Policy::max_wait(&policy.clone()), SECOND);
    }
    Ok(())
}

#[test]
fn only_a_leaky_bucket_has_a_height() -> Result<(), Box<dyn Error>> {
    let policies: [AnyPolicy; 9] = [
        FixedWindow::new(rate()).into(),
        SlidingWindow::new(rate(), 5).into(),
        SlidingEstimate::new(rate()).into(),
        SlidingLog::new(rate()).into(),
        TokenBucket::new(rate(), LIMIT).into(),
        SmoothBursty::new(rate()).into(),
        SmoothWarmingUp::new(rate(), SECOND).into(),
        Unlimited.into(),
        DenyAll.into(),
    ];
    for policy in policies {
        let limiter = RateLimiter::with_clock(policy, ManualClock::new());
        let before = limiter.rate();
        let other = Change::rate(Rate::per_second(7));
        let error = PolicyError::NoCapacity { capacity: 5 };
        assert_eq!(limiter.change(other.capacity(5)), Err(error));
        assert_eq!(error.to_string(), "a capacity of 5 was given to a policy whose bucket cannot overflow");
        let error = PolicyError::NoMaxWait { max_wait: SECOND };
        assert_eq!(limiter.change(other.max_wait(SECOND)), Err(error));
        assert_eq!(error.to_string(), "a longest wait of 1s was given to a policy that has none");
        assert_eq!(limiter.rate(), before);
    }
    Ok(())
}

/// A request that a leaky bucket has accepted stays in the queue. Bug: it was refused when a debit,
/// a lower rate, a pause or a request of higher priority made it wait longer than the maximum wait.
#[test]
fn a_request_that_a_leaky_bucket_let_in_stays_in_line() -> Result<(), Box<dyn Error>> {
    type Leaky = RateLimiter<AnyPolicy, ManualClock>;
    let changes: [fn(&Leaky); 4] = [
        |limiter| limiter.debit(3),
        |limiter| limiter.set_rate(Rate::per_second(5)),
        |limiter| limiter.pause_for(SECOND),
        |limiter| std::mem::forget(limiter.reserve(Request::permits(5).priority(1))),
    ];
    for bucket in ["leaky_bucket 10/s capacity 5", "leaky_bucket 10/s max_wait 500ms"] {
        for change in changes {
            let clock = ManualClock::new();
            let limiter = RateLimiter::with_clock(bucket.parse::<AnyPolicy>()?, clock.clone());
            limiter.try_acquire()?;
            let mut waits: Vec<_> = (0..4).map(|_| waiting(&limiter)).collect();
            // A maximum wait of the request itself still holds.
            let mut own = spawn_pending(limiter.acquire_within(500 * MS));
            assert!(limiter.reserve(1).is_err(), "the bucket is full");
            change(&limiter);
            assert!(matches!(own.poll(), Poll::Ready(Err(_))), "{bucket}");
            clock.advance(10 * SECOND);
            for wait in &mut waits {
                assert!(assert_ready!(wait.poll()).is_ok(), "{bucket}");
            }
        }
    }
    Ok(())
}
