//! Calls of a limiter that has permits on lease.

use std::time::Duration;

use tidegate::{AnyLimiter, Pause, Refusal, Request};

use crate::conformance_tests::{World, compare_leased};

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

const POLICIES: [&str; 6] = [
    "token_bucket 1000/s burst 1000",
    "token_bucket 1000/s burst 1000 interval_refill",
    "fixed_window 1000/s",
    "sliding_window 1000/s cells 10",
    "sliding_estimate 1000/s",
    "sliding_log 1000/s",
];

/// Requests for so long, and so few, that leases serve them.
fn ask(world: &mut World, limiter: &AnyLimiter) {
    for _ in 0..20 {
        // More than come in: a full limit would have the permits on lease besides.
        for _ in 0..12 {
            assert!(world.try_acquire(limiter, 1).is_ok());
        }
        world.acquire(limiter, 1);
        world.acquire(limiter, Request::permits(2).within(SECOND));
        world.advance(10 * MS);
        world.available(limiter);
    }
}

/// Compares what a behaviour tells that begins with permits on lease.
fn compare_lent(behaviour: impl Fn(&mut World, &AnyLimiter)) {
    for line in POLICIES {
        let taken = compare_leased(line, |world| {
            let limiter = world.limit(line);
            ask(world, &limiter);
            behaviour(world, &limiter);
        });
        assert_ne!(taken, Some(0), "{line}: no lease");
    }
}

#[test]
fn leases_serve_requests_and_end_unseen() {
    compare_lent(|world, limiter| {
        // A request that is too large for a lease.
        assert!(world.try_acquire(limiter, 300).is_ok());
        world.available(limiter);
        // The lease goes back, while there is room for it.
        world.advance(250 * MS);
        world.advance(3 * SECOND);
        world.status(limiter);
        ask(world, limiter);
    });
}

#[test]
fn what_can_never_be_granted_is_refused_with_leases() {
    compare_lent(|world, limiter| {
        world.try_acquire(limiter, 0).expect_err("nothing");
        world.try_acquire(limiter, Request::up_to(0)).expect_err("nothing");
        world.try_acquire(limiter, 1001).expect_err("too many");
        world.try_acquire(limiter, [("nobody", 1)]).expect_err("no member");
        world.acquire(limiter, 1001);
        world.acquire(limiter, 0);
        assert!(world.reserve(limiter, 1001).is_none());
        world.call("debit", || limiter.debit([("nobody", 1)])).expect_err("no member");
        world.call("keep", || limiter.keep_at_most("nobody", 1)).expect_err("no member");
        assert!(world.try_acquire(limiter, Request::permits(1).exempt()).is_ok());
        world.available(limiter);
    });
}

#[test]
fn a_pause_has_leases_given_back() {
    compare_lent(|world, limiter| {
        world.call("pause", || limiter.pause(Pause::lasting(SECOND).keep_stock())).expect("a pause");
        for _ in 0..3 {
            let refusal = world.try_acquire(limiter, 1).expect_err("paused");
            assert!(matches!(refusal.refusal(), Some(Refusal::Paused { .. })), "{refusal}");
        }
        world.advance(100 * MS);
        world.call("pause", || limiter.pause(Pause::lasting(2 * SECOND).keep_stock())).expect("a pause");
        world.try_acquire(limiter, 1).expect_err("paused");
        assert!(world.call("resume", || limiter.resume()));
        world.status(limiter);
        ask(world, limiter);
    });
}

#[test]
fn debits_and_places_count_with_leases() {
    compare_lent(|world, limiter| {
        world.call("debit", || limiter.debit(100)).expect("a debit");
        world.available(limiter);
        let place = world.reserve(limiter, 50).expect("a place");
        world.look(place);
        world.available(limiter);
        world.settle_as(place, 20);
        world.available(limiter);
        world.call("keep", || limiter.keep_at_most("limit", 100)).expect("some");
        world.available(limiter);
        world.advance(3 * SECOND);
        world.status(limiter);
    });
}

#[test]
fn a_closed_limiter_refuses_all_with_leases() {
    compare_lent(|world, limiter| {
        world.call("close", || limiter.close()).expect("open");
        world.try_acquire(limiter, 1).expect_err("closed");
        world.acquire(limiter, 1);
        world.acquire(limiter, Request::permits(1).within(SECOND));
        assert!(world.reserve(limiter, 1).is_none());
        world.call("close", || limiter.close()).expect("closed");
    });
}
