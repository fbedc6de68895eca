//! Reservations that no task awaits, when a change makes them due sooner.
//!
//! Nothing wakes such a reservation, so the next call serves it as of the time at which it was due.
//! If a change made it due, that time is not before the change: its owner could not know of the
//! permits before. Reservations that were counted as of an earlier time let twice the limit pass.

use std::iter::repeat;
use std::task::Poll;
use std::time::Duration;

use crate::support::late::LateTimer;
use crate::support::spawn_pending;
use proptest::prelude::*;
use tidegate::policy::AnyPolicy;
use tidegate::{AllOf, Clock, ManualClock, Nanos, RateLimiter, Request, Reservation};
use tokio_test::task::spawn;

const MS: Duration = Duration::from_millis(1);
const S: Duration = Duration::from_secs(1);

fn policy(line: &str) -> AnyPolicy {
    line.parse().expect("a policy")
}

fn limiter(line: &str) -> (ManualClock, RateLimiter<AnyPolicy, ManualClock>) {
    let clock = ManualClock::new();
    (clock.clone(), RateLimiter::with_clock(policy(line), clock))
}

/// Takes permits one by one until the limiter refuses.
fn taken(limiter: &RateLimiter<AnyPolicy, ManualClock>) -> u64 {
    (0..10_000).take_while(|_| limiter.try_acquire().is_ok()).count() as u64
}

const LOGS: [&str; 2] = ["sliding_log 100/min", "sliding_window 100/min cells 60"];

#[test]
fn what_a_settled_reservation_gives_back_counts_from_then_on() {
    for line in LOGS {
        let (clock, limiter) = limiter(line);
        let mut first = limiter.reserve(60).expect("a reservation");
        assert!(first.claim());
        let mut second = limiter.reserve(100).expect("a reservation");
        clock.advance(58 * S);
        assert!(limiter.try_acquire().is_err());
        first.settle(0);
        assert!(second.claim());
        clock.advance(2 * S);
        assert_eq!(taken(&limiter), 0, "{line}");
        clock.advance(57 * S + 999 * MS);
        assert_eq!(taken(&limiter), 0, "{line}");
        clock.advance(2 * S);
        assert_eq!(taken(&limiter), 100, "{line}");
    }
}

#[test]
fn a_request_that_leaves_the_queue_lets_the_next_one_pass_from_then_on() {
    for line in LOGS {
        for is_reservation in [true, false] {
            let (clock, limiter) = limiter(line);
            limiter.try_acquire_many(40).expect("permits");
            let reserved = is_reservation.then(|| limiter.reserve(90).expect("a reservation"));
            let mut wait = spawn(limiter.acquire_many(90));
            if !is_reservation {
                assert!(wait.poll().is_pending());
            }
            let mut next = limiter.reserve(60).expect("a reservation");
            clock.advance(58 * S);
            drop((reserved, wait));
            assert!(next.claim());
            clock.advance(2 * S);
            // Those of the first 40 come back.
            assert_eq!(taken(&limiter), 40, "{line}");
        }
    }
}

/// The request that leaves was due before, but no call came that would have served it.
#[test]
fn a_due_request_that_leaves_lets_the_next_one_pass_from_then_on() {
    for line in LOGS {
        let (clock, limiter) = limiter(line);
        limiter.try_acquire_many(100).expect("permits");
        clock.advance(70 * S);
        limiter.try_acquire_many(100).expect("permits");
        // At 130 s the first reservation is due, and the second one a minute later.
        let first = limiter.reserve(60).expect("a reservation");
        let mut second = limiter.reserve(60).expect("a reservation");
        clock.advance(118 * S);
        drop(first);
        assert!(second.claim());
        clock.advance(3 * S);
        assert_eq!(taken(&limiter), 40, "{line}");
    }
}

#[cfg(feature = "keyed")]
#[test]
fn a_limiter_of_a_key_counts_from_then_on() {
    for line in LOGS {
        let clock = ManualClock::new();
        let limiter = tidegate::KeyedRateLimiter::with_clock(policy(line), 10, clock.clone());
        let mut first = limiter.reserve(&1, 60).expect("a reservation");
        assert!(first.claim());
        let mut second = limiter.reserve(&1, 60).expect("a reservation");
        clock.advance(58 * S);
        first.settle(0);
        assert!(second.claim());
        clock.advance(2 * S);
        assert_eq!((0..200).filter(|_| limiter.try_acquire(&1).is_ok()).count(), 40, "{line}");
    }
}

#[test]
fn a_composite_counts_from_then_on() {
    for line in LOGS {
        let (clock, limiter) = limiter(line);
        let all = AllOf::new("calls", &limiter);
        let mut first = all.reserve([("calls", 60)]).expect("a reservation");
        assert!(first.claim());
        // One is in the queue of the composite, and one in that of its member.
        let mut second = all.reserve([("calls", 50)]).expect("a reservation");
        let mut third = limiter.reserve(50).expect("a reservation");
        clock.advance(58 * S);
        first.settle([("calls", 0)]).expect("a member");
        assert!(second.claim() && third.claim());
        clock.advance(2 * S);
        assert_eq!(taken(&limiter), 0, "{line}");
    }
}

#[test]
fn a_composite_that_leaves_its_seat_lets_the_next_one_pass_from_then_on() {
    for line in LOGS {
        let (clock, limiter) = limiter(line);
        let other = RateLimiter::with_clock(policy("token_bucket 100/s burst 100"), clock.clone());
        let all = AllOf::new("calls", &limiter).with("other", &other);
        limiter.try_acquire_many(50).expect("permits");
        let seat = all.reserve([("calls", 60), ("other", 1)]).expect("a reservation");
        let mut next = limiter.reserve(50).expect("a reservation");
        clock.advance(58 * S);
        drop(seat);
        assert!(next.claim());
        clock.advance(2 * S);
        // Those of the first 50 come back.
        assert_eq!(taken(&limiter), 50, "{line}");
    }
}

/// A waiter is found after its deadline, because its timer was late.
#[test]
fn a_waiter_that_is_refused_late_lets_the_next_one_pass_from_then_on() {
    for line in LOGS {
        let manual = ManualClock::new();
        let clock = LateTimer::new(manual.clone(), repeat(1_000_000_000_000));
        let limiter = RateLimiter::with_clock(policy(line), clock);
        limiter.try_acquire_many(100).expect("permits");
        let _wait = spawn_pending(limiter.acquire_many(Request::permits(100).within(61 * S)));
        let mut next = limiter.reserve(100).expect("a reservation");
        manual.advance(119 * S);
        assert!(next.claim());
        manual.advance(S);
        assert!(limiter.try_acquire().is_err(), "{line}");
    }
}

#[test]
fn a_bucket_does_not_grant_permits_that_did_not_fit() {
    for line in ["token_bucket 1000/s burst 1000", "leaky_bucket 1000/s capacity 5000 nodelay 999"] {
        let (clock, limiter) = limiter(line);
        let mut first = limiter.reserve(500).expect("a reservation");
        assert!(first.claim());
        let mut second = limiter.reserve(1000).expect("a reservation");
        clock.advance(490 * MS);
        first.settle(0);
        assert!(second.claim());
        assert_eq!(taken(&limiter), 0, "{line}");
    }
}

/// A reservation that nothing made due sooner counts from the time at which it was due.
#[test]
fn a_reservation_that_was_due_long_ago_counts_from_its_time() {
    for line in ["token_bucket 1/s burst 10", "sliding_log 10/10s"] {
        let (clock, limiter) = limiter(line);
        limiter.try_acquire_many(10).expect("permits");
        let mut reserved = limiter.reserve(5).expect("a reservation");
        clock.advance(1000 * S);
        let refunded = limiter.reserve(3).expect("a reservation");
        drop(refunded);
        assert!(reserved.claim());
        assert_eq!(taken(&limiter), 10, "{line}");
    }
}

/// What a program does with a limiter. Numbers choose a reservation, or the part that is used.
#[derive(Clone, Debug)]
enum Act {
    Advance(u64),
    Try(u32),
    Reserve(u32),
    Settle(usize, u32),
    Drop(usize),
    Join(u32),
    Leave(usize),
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        3 => (1..6u64).prop_map(Act::Advance),
        1 => (15..40u64).prop_map(Act::Advance),
        2 => (1..5u32).prop_map(Act::Try),
        4 => (1..9u32).prop_map(Act::Reserve),
        3 => (any::<usize>(), 0..9u32).prop_map(|(which, used)| Act::Settle(which, used)),
        2 => any::<usize>().prop_map(Act::Drop),
        1 => (1..9u32).prop_map(Act::Join),
        1 => any::<usize>().prop_map(Act::Leave),
    ]
}

type Held = (Nanos, Reservation<AnyPolicy, ManualClock>);

/// Counts the reservations that are due, each at the time at which its owner learns of it.
fn claim(now: Nanos, waiting: &mut Vec<Held>, claimed: &mut Vec<Held>) {
    for (since, mut reserved) in std::mem::take(waiting) {
        match reserved.claim() {
            true => claimed.push((now, reserved)),
            false => waiting.push((since, reserved)),
        }
    }
}

proptest! {
    /// The owners look at their reservations each millisecond, at which all permits come. So each
    /// permit is used no earlier than it counts.
    #[test]
    fn no_span_has_more_permits_than_the_bound(
        acts in proptest::collection::vec(act(), 1..60),
        (line, burst, per_ms, window) in prop_oneof![
            Just(("sliding_log 10/20ms", 10, 0, 20)),
            Just(("token_bucket 1000/s burst 10", 10, 1, 0)),
            Just(("token_bucket 2000/s burst 20", 20, 2, 0)),
        ],
    ) {
        let (clock, limiter) = limiter(line);
        limiter.set_catch_up(Duration::ZERO);
        let (mut waiting, mut claimed) = (Vec::<Held>::new(), Vec::<Held>::new());
        let mut joined = Vec::new();
        let mut used = Vec::<(Nanos, u64)>::new();
        for act in acts {
            match act {
                Act::Advance(millis) => for _ in 0..millis {
                    clock.advance(MS);
                    claim(clock.now(), &mut waiting, &mut claimed);
                },
                Act::Try(n) => if limiter.try_acquire_many(n).is_ok() {
                    used.push((clock.now(), n.into()));
                },
                Act::Reserve(n) => waiting.push((clock.now(), limiter.reserve(n).expect("a reservation"))),
                Act::Settle(which, spent) if !claimed.is_empty() => {
                    let (at, reserved) = claimed.swap_remove(which % claimed.len());
                    let spent = spent.min(reserved.permits());
                    used.push((at, spent.into()));
                    reserved.settle(spent);
                }
                Act::Drop(which) if !waiting.is_empty() => {
                    drop(waiting.swap_remove(which % waiting.len()));
                }
                Act::Join(n) => {
                    let mut wait = Box::pin(limiter.acquire_many(n));
                    match spawn(wait.as_mut()).poll() {
                        Poll::Ready(_) => used.push((clock.now(), n.into())),
                        Poll::Pending => joined.push(wait),
                    }
                }
                Act::Leave(which) if !joined.is_empty() => {
                    drop(joined.swap_remove(which % joined.len()));
                }
                Act::Settle(..) | Act::Drop(_) | Act::Leave(_) => {}
            }
            claim(clock.now(), &mut waiting, &mut claimed);
        }
        used.extend(claimed.iter().map(|(at, reserved)| (*at, u64::from(reserved.permits()))));
        used.sort_unstable();
        for (i, (first, _)) in used.iter().enumerate() {
            let mut sum = 0;
            for (at, n) in &used[i..] {
                sum += n;
                let millis = at.saturating_since(*first).as_u64() / 1_000_000;
                let most = match window {
                    0 => burst + per_ms * millis,
                    length if millis < length => burst,
                    _ => break,
                };
                prop_assert!(sum <= most, "{sum} of {most} in {millis} ms from {first}: {used:?}");
            }
        }
    }
}
