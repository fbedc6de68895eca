//! The behaviours that users rely on, as calls of an [`AnyLimiter`](tidegate::AnyLimiter).

use std::time::Duration;

use tidegate::{AllRequest, Nanos, Pause, Refusal, Request};

use crate::conformance_tests::{World, compare, compare_both};
use crate::script_tests::conformance::EXACT;

const US: Duration = Duration::from_micros(1);
const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_secs(3600);

/// The policies whose windows and steps begin when a limiter is built, in one process and over a
/// store. The tests of the scripts cover the policies by the wall clock.
pub(crate) fn policies() -> impl Iterator<Item = &'static str> {
    EXACT.into_iter().filter(|line| !line.contains("at_wall_clock"))
}

/// Returns whether a policy grants so few permits that the store decides each request, also with
/// leases.
pub(crate) fn are_few(line: &str) -> bool {
    ["5/s", "7/s", "10/s", "100/min"].map(Some).contains(&line.split(' ').nth(1))
}

/// Compares a behaviour in which permits are short. If a lease was refused, a limiter reports when
/// it asks for the next one.
fn compare_short(line: &str, behaviour: impl Fn(&mut World)) {
    match are_few(line) {
        true => compare_both(line, behaviour),
        false => compare(line, behaviour),
    }
}

/// Two limits: of calls, and of their cost.
const LIMITS: [(&str, &str); 2] =
    [("calls", "fixed_window 4/min"), ("tokens", "token_bucket 100/s burst 100")];

/// Each policy, for some rounds: everything available at once, then a predicted wait that is exact.
#[test]
fn predicted_waits_are_exact_for_every_policy() {
    for line in policies() {
        compare_both(line, |world| {
            let limiter = world.limit(line);
            world.advance(7 * SECOND + 13 * MS);
            for _ in 0..3 {
                let refusal = loop {
                    if let Err(refusal) = world.try_acquire(&limiter, Request::permits(1).with_left()) {
                        break refusal;
                    }
                };
                let wait = refusal.retry_after().expect("a time");
                world.advance(wait - US);
                assert!(world.try_acquire(&limiter, 1).is_err());
                world.advance(US);
                assert!(world.try_acquire(&limiter, 1).is_ok());
            }
            world.advance(HOUR);
            world.status(&limiter);
        });
    }
}

/// Each policy: waits in sequence, each due at the time that the next reservation predicts.
#[test]
fn waits_are_due_in_order_for_every_policy() {
    // Timers do not end waits that are microseconds apart.
    for line in policies().filter(|line| !line.contains("1000000/s")) {
        compare_short(line, |world| {
            let limiter = world.limit(line);
            world.advance(7 * SECOND + 13 * MS);
            let refusal = loop {
                if let Err(refusal) = world.try_acquire(&limiter, 1) {
                    break refusal;
                }
            };
            world.acquire(&limiter, 1);
            let reservations: Vec<usize> =
                [1, 1, 2, 1].into_iter().filter_map(|n| world.reserve(&limiter, n)).collect();
            world.advance(refusal.retry_after().expect("a time"));
            for reservation in reservations {
                let due = world.due_in(reservation);
                world.tell(format!("due in {due:?}"));
                world.advance(due);
                // Timers have whole milliseconds.
                world.advance(MS);
                world.look(reservation);
            }
            world.advance(HOUR);
        });
    }
}

#[test]
fn costs_are_charged_by_name_all_or_nothing() {
    compare_both("costs", |world| {
        let api = world.limiter(&LIMITS);
        assert!(world.try_acquire(&api, AllRequest::from([("tokens", 60)]).with_left()).is_ok());
        world.status(&api);
        let refusal = world.try_acquire(&api, [("tokens", 60)]).expect_err("limited");
        assert_eq!((refusal.member(), refusal.retry_after()), (Some("tokens"), Some(200 * MS)));
        world.status(&api);
        assert!(world.try_acquire(&api, [("tokens", 40), ("calls", 3)]).is_ok());
        let refusal = world.try_acquire(&api, [("calls", 1), ("tokens", 0)]).expect_err("limited");
        assert_eq!(refusal.member(), Some("calls"));
        // Both refuse, and the one that is ready last is named.
        let refusal = world.try_acquire(&api, AllRequest::from(1).with_left()).expect_err("limited");
        assert_eq!(refusal.member(), Some("calls"));
        world.advance(60 * SECOND);
        world.status(&api);
        assert!(world.try_acquire(&api, AllRequest::from(Request::up_to(3)).cost("tokens", 10)).is_ok());
        assert!(world.try_acquire(&api, Request::permits(1).with_left()).is_ok());
        assert!(world.try_acquire(&api, Request::permits(1).with_left()).is_err());
    });
}

#[test]
fn a_request_for_up_to_a_number_takes_what_all_have() {
    compare_both("up to", |world| {
        let limits = [("few", "fixed_window 7/min"), ("many", "token_bucket 100/s burst 100")];
        let limiter = world.limiter(&limits);
        for (n, least, got) in [(5, 1, Some(5)), (5, 3, None), (5, 2, Some(2)), (5, 1, None), (0, 0, None)] {
            let answer = world.try_acquire(&limiter, Request::permits(n).at_least(least));
            assert_eq!(answer.ok().map(|permits| permits.permits()), got, "{n}, {least}");
        }
        world.advance(60 * SECOND);
        assert!(world.try_acquire(&limiter, Request::up_to(1000)).is_ok());
        world.status(&limiter);
    });
}

/// A grant over a store reported one permit.
#[test]
fn a_cost_of_the_only_limit_is_what_was_granted() {
    for line in policies() {
        compare(line, |world| {
            let limiter = world.limit(line);
            world.advance(3 * SECOND);
            let _ = world.try_acquire(&limiter, [("limit", 3)]);
        });
    }
}

#[test]
fn what_can_never_be_granted_is_refused_for_good() {
    compare_both("errors", |world| {
        let api = world.limiter(&LIMITS);
        let zero = world.try_acquire(&api, 0).expect_err("nothing");
        assert_eq!(zero.refusal(), Some(Refusal::ZeroPermits));
        world.try_acquire(&api, [("tokens", 0), ("calls", 0)]).expect_err("nothing");
        world.try_acquire(&api, Request::up_to(0)).expect_err("nothing");
        world.try_acquire(&api, [("tokens", 101)]).expect_err("too many");
        world.try_acquire(&api, [("tonkes", 1)]).expect_err("no member");
        world.try_acquire(&api, 5).expect_err("too many");
        world.try_acquire(&api, Request::permits(5).with_left()).expect_err("too many");
        world.try_acquire(&api, u32::MAX).expect_err("too many");
        assert!(world.reserve(&api, [("tokens", 101)]).is_none());
        assert!(world.reserve(&api, 0).is_none());
        world.acquire(&api, [("tokens", 101)]);
        world.acquire(&api, [("nobody", 1)]);
        world.acquire(&api, 0);
        world.call("debit", || api.debit([("nobody", 1)])).expect_err("no member");
        world.call("keep", || api.keep_at_most("nobody", 1)).expect_err("no member");
        world.status(&api);
        let never = world.limiter(&[("limit", "deny_all")]);
        let refusal = world.try_acquire(&never, 1).expect_err("never");
        assert_eq!(refusal.retry_after(), None);
        world.try_acquire(&never, 100).expect_err("never");
        world.acquire(&never, Request::permits(2).within(HOUR));
        for request in [Request::permits(1), Request::permits(2).with_left()] {
            assert!(world.reserve(&never, request.within(HOUR)).is_none());
        }
        world.status(&never);
    });
}

#[test]
fn an_exempt_request_passes_and_takes_nothing() {
    compare_both("exempt", |world| {
        let api = world.limiter(&LIMITS);
        for request in [Request::permits(1), Request::permits(0), Request::permits(9999)] {
            let permits = world.try_acquire(&api, request.exempt()).expect("exempt");
            assert_eq!(permits.permits(), 0);
        }
        world.acquire(&api, Request::permits(9999).exempt());
        let reservation = world.reserve(&api, Request::permits(9999).exempt()).expect("exempt");
        world.drop_wait(reservation);
        world.call("pause", || api.pause_for(HOUR)).expect("a pause");
        assert!(world.try_acquire(&api, Request::permits(1).exempt()).is_ok());
        world.call("resume", || api.resume());
        world.status(&api);
    });
}

/// Each policy, empty and full, with and without its stored permits, ended by time and by a call.
#[test]
fn a_pause_holds_up_every_policy() {
    for line in policies() {
        for (taken, keeps, resumes) in
            [(0, false, false), (3, true, false), (1, false, true), (2, true, true)]
        {
            // In one process only, windows space the permits after a pause that keeps none.
            if !keeps && (line.contains("window") || line.contains("sliding")) {
                continue;
            }
            compare_short(line, |world| pause(world, line, taken, keeps, resumes));
        }
    }
}

fn pause(world: &mut World, line: &str, taken: u32, keeps: bool, resumes: bool) {
    let limiter = world.limit(line);
    world.advance(3 * SECOND);
    for _ in 0..taken {
        let _ = world.try_acquire(&limiter, 1);
    }
    let lasting = |span| match keeps {
        true => Pause::lasting(span).keep_permits(),
        false => Pause::lasting(span),
    };
    world.call("pause", || limiter.pause(lasting(10 * SECOND))).expect("a pause");
    let refusal = world.try_acquire(&limiter, 1).expect_err("paused");
    assert!(matches!(refusal.refusal(), Some(Refusal::Paused { .. })), "{refusal}");
    world.advance(5 * SECOND);
    // The later end counts.
    world.call("pause", || limiter.pause(lasting(10 * SECOND))).expect("a pause");
    world.call("pause", || limiter.pause(lasting(SECOND))).expect("a pause");
    assert!(world.try_acquire(&limiter, 1).is_err());
    if resumes {
        assert!(world.call("resume", || limiter.resume()));
        assert!(!world.call("resume", || limiter.resume()));
    } else {
        world.advance(10 * SECOND);
    }
    world.status(&limiter);
    let refusal = loop {
        if let Err(refusal) = world.try_acquire(&limiter, 1) {
            break refusal;
        }
    };
    world.advance(refusal.retry_after().expect("a time"));
    assert!(world.try_acquire(&limiter, 1).is_ok());
}

/// Over a store, a pause of no length emptied all buckets.
#[test]
fn a_pause_that_is_over_does_nothing() {
    let pauses = [Pause::lasting(Duration::ZERO), Pause::until(Nanos::ZERO)];
    for line in policies() {
        compare_both(line, |world| {
            let limiter = world.limit(line);
            world.advance(8 * SECOND);
            let _ = world.try_acquire(&limiter, 1);
            for pause in pauses.into_iter().chain(pauses.map(Pause::keep_permits)) {
                world.call("pause", || limiter.pause(pause)).expect("no pause");
                world.status(&limiter);
            }
            world.call("pause", || limiter.pause(Pause::lasting(SECOND).keep_permits())).expect("a pause");
            world.call("pause", || limiter.pause_for(Duration::ZERO)).expect("no pause");
            world.status(&limiter);
            world.advance(SECOND);
            let _ = world.try_acquire(&limiter, 1);
            world.status(&limiter);
        });
    }
}

/// Buckets: the idle time of a leaky bucket paid again for a debit of a pause that was ended.
#[test]
fn a_debit_in_a_pause_counts_after_it() {
    for line in policies().filter(|line| !line.contains("window") && !line.contains("sliding")) {
        for debits in [&[1][..], &[20], &[7, 7], &[7, 7, 2]] {
            for (keeps, resumes) in [(false, true), (false, false), (true, true), (true, false)] {
                compare_both(line, |world| {
                    let limiter = world.limit(line);
                    world.advance(8 * SECOND);
                    let pause = Pause::lasting(5 * SECOND);
                    let pause = if keeps { pause.keep_permits() } else { pause };
                    world.call("pause", || limiter.pause(pause)).expect("a pause");
                    for debit in debits {
                        world.advance(10 * MS);
                        world.call("debit", || limiter.debit(*debit)).expect("a debit");
                    }
                    match resumes {
                        true => assert!(world.call("resume", || limiter.resume())),
                        false => world.advance(5 * SECOND),
                    }
                    for n in [7, 1, 1] {
                        let _ = world.try_acquire(&limiter, n);
                        world.status(&limiter);
                    }
                    // Over a store, the pause that was ended left it no room.
                    world.call("refund", || limiter.refund(2)).expect("a refund");
                    world.status(&limiter);
                });
            }
        }
    }
}

/// After a pause that keeps no permits, a grant from before it gave all its permits back over a
/// store.
#[test]
fn a_grant_from_before_a_pause_gives_back_only_what_is_owed_at_its_end() {
    for line in ["token_bucket 2/s burst 100", "smooth_bursty 2/s max_burst 50s"] {
        for (debt, waits, pauses) in
            [(0, 10 * MS, 1), (50, 10 * MS, 1), (95, 3 * SECOND, 1), (0, SECOND, 2), (50, SECOND, 2)]
        {
            compare_both(line, |world| {
                let limiter = world.limit(line);
                world.advance(100 * SECOND);
                let reservation = world.reserve(&limiter, 90).expect("a reservation");
                world.look(reservation);
                world.call("debit", || limiter.debit(debt)).expect("charged");
                for _ in 0..pauses {
                    world.call("pause", || limiter.pause_for(SECOND)).expect("a pause");
                    world.advance(SECOND + waits);
                }
                world.settle_as(reservation, 20);
                world.status(&limiter);
                let _ = world.try_acquire(&limiter, 1);
                world.advance(20 * SECOND);
                world.status(&limiter);
            });
        }
    }
}

/// Each policy: permits that are charged and given back without a request.
#[test]
fn debits_and_settled_reservations_count_for_every_policy() {
    // In one process, a settled reservation of a leaky bucket also gives back the time for which
    // the bucket had been empty, and larger debits count that.
    for line in policies().filter(|line| !line.starts_with("leaky")) {
        compare_both(line, |world| {
            let limiter = world.limit(line);
            world.advance(3 * SECOND);
            let most = world.status(&limiter).members[0].1.available;
            let most = u32::try_from(most).expect("a few");
            let reservation = world.reserve(&limiter, most).expect("a reservation");
            world.look(reservation);
            world.status(&limiter);
            world.settle_as(reservation, most / 2);
            world.status(&limiter);
            world.call("debit", || limiter.debit(2)).expect("a debit");
            world.status(&limiter);
            world.advance(10 * MS);
            world.call("debit", || limiter.debit([("limit", most)])).expect("a debit");
            world.status(&limiter);
            world.advance(60 * SECOND);
            world.status(&limiter);
            world.call("keep", || limiter.keep_at_most("limit", 1)).expect("some");
            world.call("keep", || limiter.keep_at_most("limit", 1)).expect("none");
            world.status(&limiter);
            let _ = world.try_acquire(&limiter, 1);
            let _ = world.try_acquire(&limiter, 1);
        });
    }
}

/// Each policy: a refund names no grant.
#[test]
fn a_refund_gives_back_permits_for_every_policy() {
    for line in policies() {
        compare_both(line, |world| {
            let limiter = world.limit(line);
            world.call("refund", || limiter.refund(2)).expect("a refund");
            world.status(&limiter);
            world.advance(3 * SECOND);
            let most = world.status(&limiter).members[0].1.available;
            let most = u32::try_from(most).expect("a few");
            drop(world.try_acquire(&limiter, most).expect("all permits"));
            for refund in [1, 2, 60] {
                world.call("refund", || limiter.refund(refund)).expect("a refund");
                world.status(&limiter);
                let _ = world.try_acquire(&limiter, most.min(3));
                world.advance(MS);
            }
            world.call("debit", || limiter.debit(5)).expect("a debit");
            world.call("refund", || limiter.refund([("limit", 3)])).expect("a refund");
            world.call("refund", || limiter.refund([("lmit", 3)])).expect_err("an unknown name");
            world.status(&limiter);
            let _ = world.try_acquire(&limiter, 1);
        });
    }
}

/// Of several limits a refund concerns those that it names.
#[test]
fn a_refund_gives_back_permits_by_name() {
    compare_both("refunds", |world| {
        let api = world.limiter(&LIMITS);
        drop(world.try_acquire(&api, [("tokens", 90)]).expect("granted"));
        world.call("refund", || api.refund([("tokens", 40)])).expect("a refund");
        world.status(&api);
        world.call("refund", || api.refund([("tokens", 0), ("calls", 1)])).expect("a refund");
        world.status(&api);
        world.call("refund", || api.refund([("tokns", 1)])).expect_err("an unknown name");
        world.status(&api);
    });
}

#[test]
fn a_reservation_is_settled_by_name_and_a_dropped_one_leaves_nothing() {
    compare_both("reservations", |world| {
        let api = world.limiter(&LIMITS);
        let reservation = world.reserve(&api, [("tokens", 90)]).expect("a reservation");
        world.settle_as(reservation, [("tokens", 30)]);
        world.status(&api);
        let reservation = world.reserve(&api, [("tokens", 70)]).expect("a reservation");
        world.settle_as(reservation, [("tokens", 100)]);
        world.status(&api);
        let reservation = world.reserve(&api, [("tokens", 50)]).expect("a reservation");
        assert_eq!(world.due_in(reservation), 800 * MS);
        world.drop_wait(reservation);
        world.status(&api);
        let wait = world.acquire(&api, [("tokens", 50)]);
        world.drop_wait(wait);
        world.status(&api);
        let reservation = world.reserve(&api, [("tokens", 50)]).expect("a reservation");
        world.advance(800 * MS);
        world.look(reservation);
        world.look(reservation);
        world.settle_as(reservation, 1);
        world.status(&api);
    });
}

/// The last one waits first: no booked time is lost.
#[test]
fn dropped_waits_leave_no_trace() {
    compare_both("dropped waits", |world| {
        let limiter = world.limiter(&[("limit", "token_bucket 1/s burst 2")]);
        assert!(world.try_acquire(&limiter, 2).is_ok());
        let waits: Vec<usize> = (0..20).map(|_| world.acquire(&limiter, 1)).collect();
        let refusal = world.try_acquire(&limiter, 1).expect_err("limited");
        assert_eq!(refusal.retry_after(), Some(21 * SECOND));
        for wait in waits.into_iter().rev() {
            world.drop_wait(wait);
        }
        world.status(&limiter);
        let wait = world.acquire(&limiter, Request::permits(2).within(2 * SECOND));
        world.acquire(&limiter, Request::permits(1).within(3 * SECOND - US));
        let refused = world.reserve(&limiter, Request::permits(1).within(2 * SECOND));
        assert_eq!(refused, None);
        world.advance(2 * SECOND);
        world.look(wait);
        world.status(&limiter);
    });
}

#[test]
fn a_closed_limiter_refuses_all() {
    compare_both("close", |world| {
        let limiter = world.limiter(&[("limit", "token_bucket 1/s burst 1")]);
        assert!(world.try_acquire(&limiter, 1).is_ok());
        let wait = world.acquire(&limiter, 1);
        world.call("close", || limiter.close()).expect("open");
        world.look(wait);
        world.call("close", || limiter.close()).expect("closed");
        world.call("is closed", || limiter.is_closed());
        world.try_acquire(&limiter, 1).expect_err("closed");
        world.acquire(&limiter, 1);
        assert!(world.reserve(&limiter, 1).is_none());
    });
}

#[test]
fn a_shadow_limit_refuses_nothing() {
    use tidegate::{AnyLimiter, RateLimiter, TokenBucket};

    let mut alone = World::in_process();
    // On the clock of the world.
    let limiter = alone.inside(|| RateLimiter::new(TokenBucket::new(tidegate::Rate::per_second(1), 3)));
    limiter.set_shadow(true);
    let limiter = AnyLimiter::from(limiter);
    let of_shadow = |world: &mut World, limiter: &AnyLimiter| {
        for n in [2, 2, 1, 1] {
            let _ = world.try_acquire(limiter, n);
            world.status(limiter);
            world.acquire(limiter, n);
            world.status(limiter);
        }
        world.log.clone()
    };
    let expected = of_shadow(&mut alone, &limiter);
    let Some(mut shared) = World::over_a_store() else { return };
    let limiter = shared.store.as_ref().expect("a store").0.limiter("shadow");
    let limiter = limiter.limit("limit", "token_bucket 1/s burst 3");
    let limiter = limiter.build().expect("a limiter");
    limiter.set_shadow(true);
    let told = of_shadow(&mut shared, &AnyLimiter::from(limiter));
    assert_eq!(told, expected);
}
