//! Models requests that take the available permits, against other requests and a waiter.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use loom::thread;

use super::support::{LoomClock, ONE, Woken, model_up_to};
use crate::limiter::pending::{Pending, Poller, Progress};
use crate::limiter::shared::Shared;
use crate::line::grants::GrantKind;
use crate::line::rule::Single;
use crate::line::visit::Demand;
use crate::policy::TokenBucket;
use crate::rate::Rate;

type Limiter = Arc<Shared<Single<TokenBucket>, LoomClock>>;

/// Returns a limiter with three permits; no other permit accrues.
fn three() -> Limiter {
    let clock = LoomClock::new();
    let policy = TokenBucket::new(Rate::per_second(1), 3);
    Arc::new(Shared::new(Single::new(policy, &clock), clock, Duration::ZERO))
}

/// Takes at most `most` of the available permits. Returns how many it got.
fn up_to(limiter: &Limiter, most: u32) -> u32 {
    let demand = Demand { most: NonZeroU32::new(most), ..ONE };
    limiter.try_as_many(demand, GrantKind::Final).map_or(0, |(n, _)| n)
}

/// The broken twin: reads the available permits, and then takes the number it has seen.
fn read_and_take(limiter: &Limiter, most: u32) -> u32 {
    let n = u32::try_from(limiter.status().available).expect("three").min(most);
    limiter.debit(n);
    n
}

/// A request for two permits against a request for up to three. The sum never exceeds three, and
/// the second request is never refused.
fn against_a_request(take: fn(&Limiter, u32) -> u32) {
    model_up_to(3, move || {
        let limiter = three();
        let other = {
            let limiter = limiter.clone();
            thread::spawn(move || limiter.try_acquire(Demand::exactly(&2, 0)).is_ok())
        };
        let seen = (take(&limiter, 3), other.join().expect("no panic"));
        assert!([(3, false), (1, true)].contains(&seen), "of three permits: {seen:?}");
    });
}

#[test]
fn as_many_as_there_are_is_no_more() {
    against_a_request(up_to);
}

#[test]
#[should_panic(expected = "of three permits")]
fn broken_as_many_as_there_are_is_no_more() {
    against_a_request(read_and_take);
}

/// Two requests for up to two permits. Each gets at least one permit, and all are taken.
#[test]
fn two_requests_share_the_available_permits() {
    model_up_to(3, || {
        let limiter = three();
        let other = {
            let limiter = limiter.clone();
            thread::spawn(move || up_to(&limiter, 2))
        };
        let got = [up_to(&limiter, 2), other.join().expect("no panic")];
        assert!(got == [2, 1] || got == [1, 2], "{got:?}");
    });
}

/// A waiter for four permits joins while a request takes up to three. A request that arrives after
/// the waiter takes none.
#[test]
fn a_waiter_that_has_joined_is_not_overtaken() {
    model_up_to(2, || {
        let limiter = three();
        let policy = &limiter.rule.policy;
        assert_eq!(policy.burst(), 3);
        let other = {
            let limiter = limiter.clone();
            thread::spawn(move || up_to(&limiter, 3))
        };
        let woken = std::task::Waker::from(Woken::new());
        let mut wait = Pending::new(&limiter, Progress::new(3));
        let first = wait.poll(Poller::Task(&woken));
        let after = up_to(&limiter, 3);
        let got = other.join().expect("no panic");
        match first {
            Poll::Ready(answer) => assert!(answer.is_ok() && got + after == 0, "all were taken"),
            Poll::Pending => assert_eq!((got, after), (3, 0), "the other request came first"),
        }
    });
}
