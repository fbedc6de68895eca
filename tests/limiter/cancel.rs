//! Blocking waits that another thread ends by a token.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use crate::support::{one_per_second, until, waiting};
use tidegate::{
    AllOf, AllRefusal, AnyLimiter, CancelToken, CountingLimit, Grant, ManualClock, Rate, RateLimiter,
    Refusal, Request, Statistics, SystemClock, TokenBucket,
};
use tokio_test::{assert_ready_eq, assert_ready_ok};

const SECOND: Duration = Duration::from_secs(1);

fn until_at_least(count: usize, waiting: impl Fn() -> usize) {
    until(count, || waiting().min(count));
}

#[test]
fn one_blocked_thread_is_refused_and_the_others_move_up() {
    let (limiter, clock) = one_per_second();
    let statistics = Arc::new(Statistics::new());
    limiter.observe(statistics.clone());
    let token = CancelToken::new();
    thread::scope(|scope| {
        let first = scope.spawn(|| token.run(|| limiter.blocking_acquire()));
        until(1, || limiter.status().waiting);
        let mut behind = waiting(&limiter);
        assert!(token.cancel());
        assert_eq!(first.join().expect("no panic"), Err(Refusal::Cancelled));
        assert_eq!(limiter.status().waiting, 1);
        clock.advance(SECOND);
        assert_ready_eq!(behind.poll().map_ok(Grant::waited), Ok(SECOND));
    });
    let told = statistics.snapshot();
    assert_eq!((told.granted, told.cancelled, told.refused()), (1, 1, 0));
}

#[test]
fn a_cancelled_token_refuses_before_anything_is_taken() {
    let limiter = RateLimiter::with_clock(TokenBucket::new(Rate::per_second(1), 3), ManualClock::new());
    let token = CancelToken::new();
    // Without the token's scope, and with a token that is not cancelled, nothing changes.
    assert!(token.run(|| limiter.blocking_acquire()).is_ok());
    assert!(token.cancel() && token.is_cancelled());
    assert!(!token.clone().cancel() && token.is_cancelled());
    assert_eq!(token.run(|| limiter.blocking_acquire()), Err(Refusal::Cancelled));
    let exempt = Request::permits(9).exempt();
    assert_eq!(token.run(|| limiter.blocking_acquire_many(exempt)), Err(Refusal::Cancelled));
    assert_eq!(limiter.status().available, 2);
    // Calls that do not block are not refused.
    assert!(token.run(|| limiter.try_acquire()).is_ok());
    assert!(limiter.blocking_acquire().is_ok());
    assert!(!Refusal::Cancelled.may_retry());
    assert_eq!(Refusal::Cancelled.retry_after(), None);
    assert_eq!(Refusal::Cancelled.to_string(), "cancelled by another thread");
}

#[test]
fn an_observer_is_notified_of_a_call_under_a_cancelled_token() {
    // The observer was notified of a call that a token ended while it waited, and not of one that
    // began under a token that was cancelled already.
    let limiter = RateLimiter::with_clock(TokenBucket::new(Rate::per_second(1), 3), ManualClock::new());
    let both = AllOf::new("one", &limiter);
    let (of_one, of_both) = (Arc::new(Statistics::new()), Arc::new(Statistics::new()));
    assert!(limiter.observe(of_one.clone()) && both.observe(of_both.clone()));
    let token = CancelToken::new();
    token.cancel();
    assert_eq!(token.run(|| limiter.blocking_acquire()), Err(Refusal::Cancelled));
    assert!(token.run(|| both.blocking_acquire()).is_err());
    let told = |statistics: &Statistics| {
        let told = statistics.snapshot();
        (told.cancelled, told.granted, told.refused())
    };
    assert_eq!((told(&of_one), told(&of_both)), ((1, 0, 0), (1, 0, 0)));
    // A reservation keeps its position, and is reported when it is claimed.
    let mut reservation = limiter.reserve(1).expect("a reservation");
    assert_eq!(token.run(|| reservation.blocking_claim()), Err(Refusal::Cancelled));
    assert_eq!(told(&of_one), (1, 0, 0));
    assert!(reservation.claim());
    assert_eq!(told(&of_one), (1, 1, 0));
}

#[cfg(feature = "keyed")]
#[test]
fn an_observer_of_keys_is_notified_of_a_call_under_a_cancelled_token() -> Result<(), Refusal> {
    // As above, for a key that is not known, and for a key with a limiter.
    use tidegate::KeyedRateLimiter;

    let policy = TokenBucket::new(Rate::per_second(1), 1);
    let users: KeyedRateLimiter<u32, _, _> = KeyedRateLimiter::with_clock(policy, 10, ManualClock::new());
    let (of_all, of_one) = (Arc::new(Statistics::new()), Arc::new(Statistics::new()));
    let users = users.observed_by(of_all.clone());
    let token = CancelToken::new();
    token.cancel();
    assert_eq!(token.run(|| users.blocking_acquire(&1)), Err(Refusal::Cancelled));
    assert_eq!((of_all.snapshot().cancelled, users.len()), (1, 0));
    users.limiter(&1)?.observe(of_one.clone());
    assert_eq!(token.run(|| users.blocking_acquire(&1)), Err(Refusal::Cancelled));
    assert_eq!((of_all.snapshot().cancelled, of_one.snapshot().cancelled), (2, 1));
    Ok(())
}

/// A grant that came before is kept: the thread was granted, and only had not run yet.
#[test]
fn a_grant_is_taken_or_goes_to_the_next() {
    for _ in 0..200 {
        let (limiter, clock) = one_per_second();
        let token = CancelToken::new();
        thread::scope(|scope| {
            let blocked = scope.spawn(|| token.run(|| limiter.blocking_acquire()));
            until(1, || limiter.status().waiting);
            let mut behind = waiting(&limiter);
            let canceller = scope.spawn(|| token.cancel());
            clock.advance(SECOND);
            assert!(canceller.join().expect("no panic"));
            match blocked.join().expect("no panic") {
                Ok(_) => assert!(behind.poll().is_pending()),
                Err(refusal) => {
                    assert_eq!(refusal, Refusal::Cancelled);
                    assert_ready_ok!(behind.poll());
                }
            }
        });
    }
}

#[test]
fn one_token_ends_waits_at_limiters_of_all_kinds() -> Result<(), AllRefusal> {
    let (limiter, clock) = one_per_second();
    let all = AllOf::new("limiter", &limiter);
    let any = AnyLimiter::new(all.clone());
    let calls = CountingLimit::new(1);
    let permit = calls.try_acquire()?;
    let in_use = AllOf::<ManualClock>::new("limiter", &limiter).with_counting("calls", &calls);
    let mut reservations = (limiter.reserve(1)?, all.reserve([])?);
    let [mut any_reservation, mut any_alone] =
        [any.reserve(1)?, AnyLimiter::new(limiter.clone()).reserve(1)?];
    let mut any_call = AnyLimiter::from(calls.clone()).reserve(1)?;
    let token = &CancelToken::new();
    thread::scope(|scope| {
        let cancelled = AllRefusal::from(Refusal::Cancelled);
        let plain = scope.spawn(|| token.run(|| limiter.blocking_acquire()));
        let of_all = scope.spawn(|| token.run(|| all.blocking_acquire()));
        let of_any = scope.spawn(|| token.run(|| any.blocking_acquire_many(1)));
        let of_calls = scope.spawn(|| token.run(|| calls.blocking_acquire_many(1)));
        let of_both = scope.spawn(|| token.run(|| in_use.blocking_acquire()));
        // Its reservation, the thread, and perhaps the reservation of a composite.
        until_at_least(2, || limiter.status().waiting);
        until(4, || all.status().waiting);
        until(1, || in_use.status().waiting);
        until_at_least(1, || calls.status().waiting);
        let (reservation, all_reservation) = (&mut reservations.0, &mut reservations.1);
        let claim = scope.spawn(move || token.run(|| reservation.blocking_claim()));
        let all_claim = scope.spawn(move || token.run(|| all_reservation.blocking_claim()));
        let any_claims = [&mut any_reservation, &mut any_alone, &mut any_call]
            .map(|reservation| scope.spawn(|| token.run(|| reservation.blocking_claim())));
        token.cancel();
        assert_eq!(plain.join().expect("no panic"), Err(Refusal::Cancelled));
        assert_eq!(of_all.join().expect("no panic").map(drop), Err(cancelled.clone()));
        assert_eq!(of_any.join().expect("no panic").map(drop), Err(cancelled.clone()));
        assert_eq!(of_both.join().expect("no panic").map(drop), Err(cancelled.clone()));
        assert_eq!(of_calls.join().expect("no panic").map(drop), Err(Refusal::Cancelled));
        assert_eq!(claim.join().expect("no panic"), Err(Refusal::Cancelled));
        assert_eq!(all_claim.join().expect("no panic"), Err(cancelled.clone()));
        for claim in any_claims {
            assert_eq!(claim.join().expect("no panic"), Err(cancelled.clone()));
        }
    });
    // Nothing waits but the reservations, and nothing is in use but the permit.
    assert_eq!((all.status().waiting, in_use.status().waiting), (2, 0));
    drop(permit);
    assert!(any_call.blocking_claim().is_ok());
    assert_eq!(calls.available(), 0);
    drop(any_call);
    assert_eq!((calls.available(), calls.status().waiting), (1, 0));
    clock.advance(2 * SECOND);
    assert!(reservations.0.claim() && reservations.1.claim());
    for reservation in [&mut any_alone, &mut any_reservation] {
        clock.advance(2 * SECOND);
        assert!(reservation.blocking_claim().is_ok());
    }
    Ok(())
}

#[cfg(feature = "keyed")]
#[test]
fn a_token_ends_waits_for_keys() -> Result<(), Refusal> {
    use tidegate::{KeyedCountingLimit, KeyedRateLimiter};

    let policy = TokenBucket::new(Rate::per_second(1), 1);
    let users: KeyedRateLimiter<u32, _, _> = KeyedRateLimiter::with_clock(policy, 10, ManualClock::new());
    let calls: KeyedCountingLimit<u32> = KeyedCountingLimit::new(1, 10);
    let (_, permit) = (users.try_acquire(&1)?, calls.try_acquire(&1)?);
    let token = CancelToken::new();
    thread::scope(|scope| {
        let user = scope.spawn(|| token.run(|| users.blocking_acquire(&1)));
        let call = scope.spawn(|| token.run(|| calls.blocking_acquire(&1).map(drop)));
        until(1, || users.status(&1).waiting);
        until(1, || calls.limiter(&1).map_or(0, |limit| limit.status().waiting));
        token.cancel();
        assert_eq!(user.join().expect("no panic"), Err(Refusal::Cancelled));
        assert_eq!(call.join().expect("no panic"), Err(Refusal::Cancelled));
    });
    // Refused before the key is added.
    assert_eq!(token.run(|| users.blocking_acquire(&2)), Err(Refusal::Cancelled));
    assert_eq!(users.len(), 1);
    drop(permit);
    assert!(calls.try_acquire(&1).is_ok());
    Ok(())
}

#[test]
fn each_token_around_a_wait_ends_it() {
    let (limiter, _clock) = one_per_second();
    for outer in [true, false] {
        let (a, b) = (CancelToken::new(), CancelToken::new());
        thread::scope(|scope| {
            let blocked = scope.spawn(|| {
                let inner = a.run(|| b.run(|| limiter.blocking_acquire()));
                // The scopes have ended.
                assert!(limiter.try_acquire().is_err());
                inner
            });
            until(1, || limiter.status().waiting);
            if outer {
                a.cancel()
            } else {
                b.cancel()
            };
            assert_eq!(blocked.join().expect("no panic"), Err(Refusal::Cancelled));
        });
    }
}

#[test]
fn a_scope_ends_with_a_panic() {
    let (limiter, clock) = one_per_second();
    clock.advance(SECOND);
    let token = CancelToken::new();
    let panic = catch_unwind(AssertUnwindSafe(|| token.run(|| panic!("in the work"))));
    assert!(panic.is_err());
    token.cancel();
    assert!(limiter.blocking_acquire().is_ok());
}

/// By the system's clock, the first blocked thread looks at the time for all. When its wait is
/// ended, the next thread does, also behind a reservation that keeps its position.
#[test]
fn a_thread_behind_a_cancelled_one_is_served() {
    let limiter = RateLimiter::with_clock(TokenBucket::new(Rate::per_second(20), 1), SystemClock::new());
    for _ in 0..3 {
        let token = CancelToken::new();
        limiter.drain();
        limiter.pause_for(Duration::MAX);
        let mut reservation = limiter.reserve(1).expect("a reservation");
        thread::scope(|scope| {
            let first = scope.spawn(|| token.run(|| reservation.blocking_claim()));
            let second = scope.spawn(|| token.run(|| limiter.blocking_acquire()));
            until(2, || limiter.status().waiting);
            let third = scope.spawn(|| limiter.blocking_acquire());
            until(3, || limiter.status().waiting);
            limiter.resume();
            token.cancel();
            // Granted, if the machine was slow.
            assert!(
                first.join().expect("no panic").err().is_none_or(|refusal| refusal == Refusal::Cancelled)
            );
            assert!(
                second.join().expect("no panic").err().is_none_or(|refusal| refusal == Refusal::Cancelled)
            );
            assert!(third.join().expect("no panic").is_ok());
        });
        assert!(reservation.blocking_claim().is_ok());
    }
}

#[test]
fn a_batch_hands_out_what_it_has_under_a_cancelled_token() {
    let limiter = RateLimiter::with_clock(TokenBucket::new(Rate::per_hour(1), 3), ManualClock::new());
    let (mut batch, token) = (limiter.batch(2), CancelToken::new());
    token.cancel();
    token.run(|| {
        for _ in 0..3 {
            assert!(batch.blocking_acquire().is_ok());
        }
        assert_eq!(batch.blocking_acquire(), Err(Refusal::Cancelled));
    });
}
