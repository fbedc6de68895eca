//! Calls of a limiter that has permits on lease.

use std::time::Duration;

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use tidegate::{AllRequest, AnyLimiter, Pause, Refusal, Request};

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

/// Makes requests for so long, and for so few permits, that leases serve them.
fn ask(world: &mut World, limiter: &AnyLimiter) {
    for _ in 0..20 {
        // More than accrue: a full limit would have the permits on lease in addition.
        for _ in 0..12 {
            assert!(world.try_acquire(limiter, 1).is_ok());
        }
        world.acquire(limiter, 1);
        world.acquire(limiter, Request::permits(2).within(SECOND));
        world.advance(10 * MS);
        world.available(limiter);
    }
}

/// Compares the results of a behaviour that begins with permits on lease.
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
        // The lease goes back while there is room for it.
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
        world.call("pause", || limiter.pause(Pause::lasting(SECOND).keep_permits())).expect("a pause");
        for _ in 0..3 {
            let refusal = world.try_acquire(limiter, 1).expect_err("paused");
            assert!(matches!(refusal.refusal(), Some(Refusal::Paused { .. })), "{refusal}");
        }
        world.advance(100 * MS);
        world.call("pause", || limiter.pause(Pause::lasting(2 * SECOND).keep_permits())).expect("a pause");
        world.try_acquire(limiter, 1).expect_err("paused");
        assert!(world.call("resume", || limiter.resume()));
        world.status(limiter);
        ask(world, limiter);
    });
}

/// A lease that is booked in a pause, for a request that waits for the end of the pause.
#[test]
fn a_pause_that_ends_sooner_ends_the_waits_of_leases() {
    compare_lent(|world, limiter| {
        world.call("pause", || limiter.pause(Pause::lasting(2 * SECOND).keep_permits())).expect("a pause");
        let wait = world.acquire(limiter, 1);
        let refusal = world.try_acquire(limiter, 1).expect_err("paused");
        assert!(matches!(refusal.refusal(), Some(Refusal::Paused { .. })), "{refusal}");
        world.advance(100 * MS);
        assert!(world.call("resume", || limiter.resume()));
        world.look(wait);
        assert!(world.try_acquire(limiter, 1).is_ok());
        world.acquire(limiter, 1);
        world.available(limiter);
    });
}

#[test]
fn debits_and_reservations_count_with_leases() {
    compare_lent(|world, limiter| {
        world.call("debit", || limiter.debit(100)).expect("a debit");
        world.available(limiter);
        let reservation = world.reserve(limiter, 50).expect("a reservation");
        world.look(reservation);
        world.available(limiter);
        world.settle_as(reservation, 20);
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

/// Two limits: of calls, and of their cost.
const LIMITS: [(&str, &str); 2] =
    [("calls", "token_bucket 1000/s burst 1000"), ("tokens", "sliding_log 4000/s")];

#[test]
fn several_limits_are_charged_by_name_with_leases() {
    let taken = compare_leased("several limits", |world| {
        let limiter = world.limiter(&LIMITS);
        ask(world, &limiter);
        for n in [1, 3, 10] {
            assert!(world.try_acquire(&limiter, [("tokens", n)]).is_ok());
            assert!(world.try_acquire(&limiter, [("tokens", n), ("calls", 2)]).is_ok());
            world.acquire(&limiter, AllRequest::from([("calls", 1)]).cost_of_others(0));
            world.acquire(&limiter, AllRequest::from([("tokens", n)]).within(SECOND));
            world.advance(10 * MS);
            world.available(&limiter);
        }
        let refusal = world.try_acquire(&limiter, [("tokens", 4001)]).expect_err("too many");
        assert_eq!(refusal.member(), Some("tokens"));
        world.try_acquire(&limiter, [("tokens", 0), ("calls", 0)]).expect_err("nothing");
        let reservation = world.reserve(&limiter, [("tokens", 30)]).expect("a reservation");
        world.look(reservation);
        world.settle_as(reservation, [("tokens", 20)]);
        world.call("debit", || limiter.debit([("tokens", 50)])).expect("a debit");
        world.call("keep", || limiter.keep_at_most("tokens", 100)).expect("some");
        world.available(&limiter);
        world.advance(3 * SECOND);
        world.status(&limiter);
    });
    assert_ne!(taken, Some(0));
}

#[test]
fn as_many_as_there_are_and_what_is_left_are_reported_with_leases() {
    compare_lent(|world, limiter| {
        for n in [1, 2, 3] {
            assert!(world.try_acquire(limiter, Request::up_to(n)).is_ok());
            assert!(world.try_acquire(limiter, Request::permits(n).at_least(1)).is_ok());
            world.available(limiter);
            world.left_of(limiter, n);
            world.advance(10 * MS);
        }
    });
}

#[test]
fn a_limit_in_shadow_refuses_nothing_with_leases() {
    compare_lent(|world, limiter| {
        world.shadow(true);
        for n in [1, 300, 1000, 1] {
            assert!(world.try_acquire(limiter, n).is_ok());
            world.acquire(limiter, n);
            world.available(limiter);
        }
        world.shadow(false);
        world.advance(3 * SECOND);
        world.status(limiter);
        ask(world, limiter);
    });
}

#[test]
fn each_key_has_leases_of_its_own() {
    let lines = ["token_bucket 1000/s burst 1000", "sliding_log 1000/s"];
    for line in lines {
        let taken = compare_leased(line, |world| {
            let keys = world.keyed(line);
            let limiters =
                ["alice", "bob"].map(|key| world.inside(|| keys.limiter(key.to_owned()).expect("room")));
            for limiter in &limiters {
                ask(world, limiter);
            }
            for limiter in limiters.iter().rev() {
                world.available(limiter);
                world.try_acquire(limiter, 1001).expect_err("too many");
                ask(world, limiter);
            }
            world.advance(250 * MS);
            world.advance(3 * SECOND);
            for limiter in &limiters {
                world.status(limiter);
            }
        });
        assert_ne!(taken, Some(0), "{line}");
    }
}

/// The permits that a caller gets in ten seconds if it retries after each predicted wait.
fn permits_of(world: &mut World, line: &str) -> u64 {
    let limiter = world.limit(line);
    let (mut permits, mut rest) = (0, 10 * SECOND);
    loop {
        match world.try_acquire(&limiter, 1) {
            Ok(_) => permits += 1,
            Err(refusal) => {
                let wait = refusal.retry_after().expect("a time").max(MS);
                match rest.checked_sub(wait) {
                    Some(less) => rest = less,
                    None => return permits,
                }
                world.advance(wait);
            }
        }
    }
}

/// If permits are short, a limiter with leases refuses requests until it asks for the next lease.
/// It grants no more than one process does, and catches up except for the second in which a refusal
/// is believed, and the life of a lease.
#[test]
fn permits_are_had_where_they_are_short_with_leases() {
    for line in POLICIES {
        let Some(shared) = World::over_a_store() else { return };
        let mut leased = World { is_leased: true, ..shared };
        let (one, leased) = (permits_of(&mut World::in_process(), line), permits_of(&mut leased, line));
        assert!((one - 1200..=one).contains(&leased), "{line}: {leased} of {one}");
    }
}

/// Random calls while there are permits for all of them.
#[test]
fn random_calls_have_one_answer_while_leases_serve_them() {
    for (seed, line) in (0..).zip(POLICIES.repeat(6)) {
        let taken = compare_leased(line, |world| {
            let limiter = world.limit(line);
            ask(world, &limiter);
            if line == POLICIES[0] {
                // More than accrue: a full bucket would have the permits on lease in addition.
                world.call("debit", || limiter.debit(500)).expect("a debit");
            }
            let mut random = SmallRng::seed_from_u64(seed);
            for _ in 0..150 {
                play(world, &limiter, &mut random);
                world.available(&limiter);
            }
        });
        assert_ne!(taken, Some(0), "{line}: no lease");
    }
}

/// Makes a random call.
fn play(world: &mut World, limiter: &AnyLimiter, random: &mut SmallRng) {
    let n = random.random_range(1..4);
    match random.random_range(0..32) {
        0..8 => drop(world.try_acquire(limiter, n)),
        8..12 => _ = world.acquire(limiter, n),
        12..14 => _ = world.acquire(limiter, Request::permits(n).within(SECOND)),
        14 => drop(world.try_acquire(limiter, 10 * n)),
        15 => drop(world.call("debit", || limiter.debit(n))),
        16 => world.left_of(limiter, n),
        17 => {
            let reservation = world.reserve(limiter, 5).expect("a reservation");
            world.look(reservation);
            world.settle_as(reservation, n);
        }
        18 => {
            let pause = Pause::lasting(MS * random.random_range(1..300)).keep_permits();
            world.call("pause", || limiter.pause(pause)).expect("a pause");
            world.try_acquire(limiter, 1).expect_err("paused");
            assert!(world.call("resume", || limiter.resume()));
        }
        _ => {
            let most = [3, 30][random.random_range(0..2)];
            world.advance(MS * random.random_range(0..most));
        }
    }
}
