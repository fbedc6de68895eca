//! Queues of some thousands of requests: predicted times, bounds, changes, and many grants at once.

use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use tidegate::{AcquireOwned, Reservation};
use tidegate::{
    AnyPolicy, Clock, Grant, ManualClock, Nanos, QueueBounds, Rate, RateLimiter, Refusal, Request,
};

/// More requests than are predicted one by one.
const MANY: usize = 6000;

type Limiter = RateLimiter<AnyPolicy, ManualClock>;
type Future = Pin<Box<AcquireOwned<AnyPolicy, ManualClock>>>;

const NANO: Duration = Duration::from_nanos(1);

fn limiter(policy: &str) -> (Limiter, ManualClock) {
    let clock = ManualClock::new();
    let limiter = RateLimiter::with_clock(policy.parse().expect("a policy"), clock.clone());
    while limiter.try_acquire().is_ok() {}
    (limiter, clock)
}

fn poll(future: &mut Future) -> Poll<Result<Grant, Refusal>> {
    future.as_mut().poll(&mut Context::from_waker(Waker::noop()))
}

fn join(limiter: &Limiter, request: Request) -> Future {
    let mut future = Box::pin(limiter.clone().acquire_owned(request));
    assert!(poll(&mut future).is_pending(), "it waits");
    future
}

fn told(refusal: Result<Grant, Refusal>) -> Duration {
    refusal.err().and_then(Refusal::retry_after).expect("later")
}

#[test]
fn behind_thousands_a_time_is_exact_to_the_nanosecond_where_sums_give_it() {
    // The sizes, and whether a permit costs a whole number.
    let policies = [
        ("smooth_bursty 7/s", 5),
        ("token_bucket 3/s burst 12", 5),
        ("token_bucket 1000/s burst 5", 5),
        ("smooth_warming_up 11/s warm_up 2s", 5),
        ("fixed_window 5/s", 1),
        ("sliding_window 5/s cells 4", 1),
        ("sliding_log 5/s", 1),
        ("leaky_bucket 7/s", 1),
    ];
    for (policy, sizes) in policies {
        let (limiter, clock) = limiter(policy);
        let mut random = SmallRng::seed_from_u64(1);
        let (mut line, mut reservations) = (Vec::new(), Vec::new());
        for number in 0..MANY {
            let n = random.random_range(1..=sizes);
            match number % 400 {
                399 => reservations.push(limiter.reserve(n).expect("a reservation")),
                _ => line.push(join(&limiter, Request::permits(n))),
            }
        }
        line.retain(|_| random.random_range(0..10) < 7);
        // More requests join at a rate other than that of the waiting requests.
        limiter.set_rate(Rate::per_second(13));
        let now = clock.now();
        let due =
            |reservation: &Reservation<_, _>| now.saturating_add(Nanos::from_duration(reservation.due_in()));
        let times: Vec<_> = reservations.iter().map(due).collect();
        for (mut reservation, due) in reservations.into_iter().zip(times) {
            clock.advance(due.saturating_since(clock.now()).as_duration() - NANO);
            assert!(!reservation.claim(), "{policy}: earlier than predicted");
            clock.advance(NANO);
            assert!(reservation.claim(), "{policy}: later than predicted");
        }
    }
}

#[test]
fn behind_thousands_of_mixed_sizes_a_request_that_is_accepted_is_served() {
    let policies = [
        "fixed_window 7/s",
        "fixed_window 5/s from_first_grant",
        "sliding_window 7/s cells 3",
        "sliding_estimate 7/s",
        "sliding_estimate 5/5ns",
        "sliding_log 7/s",
        "token_bucket 4/s burst 6 interval_refill",
        "leaky_bucket 7/s",
    ];
    for policy in policies {
        let (limiter, clock) = limiter(policy);
        let mut random = SmallRng::seed_from_u64(2);
        let mut size = || Request::permits(random.random_range(1..=5));
        let line: Vec<_> = (0..MANY).map(|_| join(&limiter, size())).collect();
        let request = size();
        let after = told(limiter.try_acquire_many(request));
        let mut future = join(&limiter, request.within(after));
        clock.advance(after);
        assert!(matches!(poll(&mut future), Poll::Ready(Ok(_))), "{policy}");
        drop(line);
    }
}

#[test]
fn an_estimate_predicts_no_single_permit_too_early_after_many_windows() {
    // Bug: after 64 windows, each window was assumed to have room for the whole limit.
    let (limiter, clock) = limiter("sliding_estimate 5/s");
    let line: Vec<_> = (0..MANY).map(|_| join(&limiter, Request::permits(1))).collect();
    let after = told(limiter.try_acquire());
    let mut future = join(&limiter, Request::permits(1).within(after));
    clock.advance(after);
    assert!(matches!(poll(&mut future), Poll::Ready(Ok(_))));
    drop(line);
}

#[test]
fn of_thousands_that_a_change_makes_too_late_each_is_refused_by_its_deadline() {
    for policy in ["token_bucket 1000/s burst 5", "fixed_window 1000/s", "sliding_log 1000/s"] {
        let (limiter, clock) = limiter(policy);
        let within = Duration::from_secs(7);
        let mut line: Vec<_> =
            (0..MANY).map(|_| join(&limiter, Request::permits(1).within(within))).collect();
        limiter.set_rate(Rate::per_second(100));
        let answers = |line: &mut Vec<Future>| -> Vec<_> { line.iter_mut().map(poll).collect() };
        let (mut granted, mut refused) = (0, 0);
        let mut count = |answers: Vec<Poll<Result<Grant, Refusal>>>| {
            for answer in answers {
                match answer {
                    Poll::Ready(Ok(grant)) => {
                        assert!(grant.waited() <= within, "{policy}");
                        granted += 1;
                    }
                    Poll::Ready(Err(_)) => refused += 1,
                    Poll::Pending => {}
                }
            }
            (granted, refused)
        };
        // Refused at once: the requests among the first 4,096 whose time is more than 7 s away.
        line.retain_mut(|future| match poll(future) {
            Poll::Pending => true,
            answer => {
                count(vec![answer]);
                false
            }
        });
        let (at_once, refused) = count(Vec::new());
        assert_eq!(at_once, 0, "{policy}");
        assert!((3300..=3400).contains(&refused), "{policy}: {refused} refused at once");
        clock.advance(within);
        let (granted, refused) = count(answers(&mut line));
        assert_eq!(granted + refused, MANY, "{policy}: each has its result");
        assert!((690..=800).contains(&granted), "{policy}: {granted} granted");
    }
}

#[test]
fn thousands_that_are_due_at_once_are_all_served_in_order() {
    let (limiter, _clock) = limiter("token_bucket 1/s burst 5");
    let mut line: Vec<_> = (0..MANY).map(|_| join(&limiter, Request::permits(1))).collect();
    limiter.refund(4);
    limiter.set_rate(Rate::UNLIMITED);
    assert!(line.iter_mut().all(|future| matches!(poll(future), Poll::Ready(Ok(_)))));
    assert_eq!(limiter.status().waiting, 0);
    assert_eq!(limiter.try_acquire().map(drop), Ok(()));
}

#[test]
fn in_shadow_thousands_pass_at_once() {
    let (limiter, _clock) = limiter("token_bucket 1/s burst 5");
    let mut line: Vec<_> = (0..MANY).map(|_| join(&limiter, Request::permits(1))).collect();
    limiter.set_shadow(true);
    assert!(line.iter_mut().all(|future| matches!(poll(future), Poll::Ready(Ok(_)))));
    assert_eq!(limiter.status().waiting, 0);
}

#[test]
fn behind_thousands_the_time_at_which_there_is_room_is_exact() {
    for policy in ["smooth_bursty 7/s", "fixed_window 5/s", "sliding_log 5/s"] {
        for bounds in [
            QueueBounds::UNBOUNDED.max_waiters(1000),
            QueueBounds::UNBOUNDED.max_permits(1500),
            QueueBounds::UNBOUNDED.max_waiters(5000),
        ] {
            let (limiter, clock) = limiter(policy);
            let mut random = SmallRng::seed_from_u64(3);
            let mut line: Vec<_> = (0..MANY).map(|_| join(&limiter, Request::permits(1))).collect();
            line.retain(|_| random.random_range(0..10) < 9);
            limiter.set_queue_bounds(bounds);
            let full = |limiter: &Limiter| match limiter.reserve(2) {
                Err(Refusal::QueueFull { retry_after }) => Some(retry_after.as_duration()),
                Err(refusal) => panic!("{refusal}"),
                Ok(_) => None,
            };
            let after = full(&limiter).expect("no room");
            clock.advance(after - NANO);
            assert_eq!(full(&limiter), Some(NANO), "{policy} {bounds:?}");
            clock.advance(NANO);
            assert_eq!(full(&limiter), None, "{policy} {bounds:?}");
        }
    }
}
