//! Limiters without type parameters: each call has the same effect as the call of the limiter
//! behind the handle.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use crate::support::bucket;
use proptest::prelude::*;
use tidegate::{
    AcquireAny, AllOf, AllPermits, AllRefusal, AllRequest, AllStatus, AnyLimiter, AnyReservation,
    CountingLimit, Grant, Limiter, ManualClock, Pause, RateLimiter, Refusal, Request, Reserved, TokenBucket,
};

/// A call, or the passing of time.
#[derive(Clone, Debug)]
pub(crate) enum Act {
    Try(u32),
    Reserve(u32),
    /// Polls the oldest reservation, and settles it if it has its permits.
    Settle(u32),
    Drop,
    Pause(u64),
    Resume,
    Debit(u32),
    Refund(u32),
    KeepAtMost(u64),
    Close,
    Advance(u64),
}

pub(crate) fn acts() -> impl Strategy<Value = Vec<Act>> {
    let act = prop_oneof![
        (0_u32..8).prop_map(Act::Try),
        (0_u32..8).prop_map(Act::Reserve),
        (0_u32..9).prop_map(Act::Settle),
        Just(Act::Drop),
        (0_u64..500).prop_map(Act::Pause),
        Just(Act::Resume),
        (0_u32..8).prop_map(Act::Debit),
        (0_u32..8).prop_map(Act::Refund),
        (0_u64..6).prop_map(Act::KeepAtMost),
        prop_oneof![19 => (0_u64..400).prop_map(Act::Advance), 1 => Just(Act::Close)],
        (0_u64..400).prop_map(Act::Advance),
    ];
    prop::collection::vec(act, 1..60)
}

pub(crate) fn poll<T>(future: &mut (impl Future<Output = T> + Unpin)) -> Poll<T> {
    std::pin::Pin::new(future).poll(&mut Context::from_waker(Waker::noop()))
}

/// Plays the acts through a handle, and returns the result of each act.
pub(crate) fn play_any(limiter: &AnyLimiter, clock: &ManualClock, acts: &[Act]) -> Vec<String> {
    let mut reservations: Vec<AnyReservation> = Vec::new();
    let play = |act: &Act| match *act {
        Act::Try(n) => format!("{:?}", limiter.try_acquire_many(n).map(|permits| permits.waited())),
        Act::Reserve(n) => match limiter.reserve(n) {
            Ok(reservation) => {
                reservations.push(reservation);
                "Ok".to_owned()
            }
            Err(refusal) => format!("{refusal:?}"),
        },
        Act::Settle(used) if !reservations.is_empty() => {
            let mut reservation = reservations.remove(0);
            let due = reservation.due_in();
            match poll(&mut reservation) {
                Poll::Ready(Ok(grant)) => {
                    format!("{due:?} {:?} {:?}", grant.waited(), reservation.settle(used))
                }
                Poll::Ready(Err(refusal)) => format!("{due:?} {refusal:?}"),
                Poll::Pending => format!("{due:?}"),
            }
        }
        Act::Drop if !reservations.is_empty() => {
            drop(reservations.remove(0));
            String::new()
        }
        Act::Settle(_) | Act::Drop => String::new(),
        Act::Pause(span) => format!("{:?}", limiter.pause_for(Duration::from_millis(span))),
        Act::Resume => limiter.resume().to_string(),
        Act::Debit(n) => format!("{:?}", limiter.debit([("limit", 3), ("limit", n)])),
        Act::Refund(n) => format!("{:?}", limiter.refund([("limit", 3), ("limit", n)])),
        Act::KeepAtMost(n) => format!("{:?}", limiter.keep_at_most("limit", n)),
        Act::Close => format!("{:?} {}", limiter.close(), limiter.is_closed()),
        Act::Advance(span) => {
            clock.advance(Duration::from_millis(span));
            format!("{:?}", limiter.status())
        }
    };
    acts.iter().map(play).collect()
}

/// Plays the acts through the limiter itself.
fn play(limiter: &RateLimiter<TokenBucket, ManualClock>, clock: &ManualClock, acts: &[Act]) -> Vec<String> {
    let mut reservations = Vec::new();
    let refused = |refusal: Refusal| AllRefusal::from(refusal);
    let play = |act: &Act| match *act {
        Act::Try(n) => {
            format!("{:?}", limiter.try_acquire_many(n).map(|grant| grant.waited()).map_err(refused))
        }
        Act::Reserve(n) => match limiter.reserve(n) {
            Ok(reservation) => {
                reservations.push(reservation);
                "Ok".to_owned()
            }
            Err(refusal) => format!("{:?}", refused(refusal)),
        },
        Act::Settle(used) if !reservations.is_empty() => {
            let mut reservation = reservations.remove(0);
            let due = reservation.due_in();
            match poll(&mut reservation) {
                Poll::Ready(Ok(grant)) => {
                    reservation.settle(used);
                    format!("{due:?} {:?} {:?}", grant.waited(), Ok::<(), AllRefusal>(()))
                }
                Poll::Ready(Err(refusal)) => format!("{due:?} {:?}", refused(refusal)),
                Poll::Pending => format!("{due:?}"),
            }
        }
        Act::Drop if !reservations.is_empty() => {
            drop(reservations.remove(0));
            String::new()
        }
        Act::Settle(_) | Act::Drop => String::new(),
        Act::Pause(span) => {
            limiter.pause_for(Duration::from_millis(span));
            format!("{:?}", Ok::<(), AllRefusal>(()))
        }
        Act::Resume => limiter.resume().to_string(),
        Act::Debit(n) => {
            limiter.debit(n);
            format!("{:?}", Ok::<(), AllRefusal>(()))
        }
        Act::Refund(n) => {
            limiter.refund(n);
            format!("{:?}", Ok::<(), AllRefusal>(()))
        }
        Act::KeepAtMost(n) => format!("{:?}", Ok::<u64, AllRefusal>(limiter.keep_at_most(n))),
        Act::Close => format!("{:?} {}", Ok::<bool, AllRefusal>(limiter.close()), limiter.is_closed()),
        Act::Advance(span) => {
            clock.advance(Duration::from_millis(span));
            format!("{:?}", AnyLimiter::from(limiter.clone()).status())
        }
    };
    acts.iter().map(play).collect()
}

proptest! {
    #[test]
    fn a_handle_does_as_the_limiter_behind_it(acts in acts()) {
        let (clock, other) = (ManualClock::new(), ManualClock::new());
        let any = AnyLimiter::from(bucket(&clock, 5, 5));
        prop_assert_eq!(play_any(&any, &clock, &acts), play(&bucket(&other, 5, 5), &other, &acts));
    }

    #[cfg(feature = "keyed")]
    #[test]
    fn a_key_does_as_a_limiter_of_its_own(acts in acts()) {
        use tidegate::{KeyedRateLimiter, OfKey};

        let (clock, other) = (ManualClock::new(), ManualClock::new());
        let policy = TokenBucket::new(tidegate::Rate::per_second(5), 5);
        let keys: KeyedRateLimiter<u64, _, _> = KeyedRateLimiter::with_clock(policy, 10, clock.clone());
        let any = AnyLimiter::from(OfKey::new(&keys, 7));
        prop_assert_eq!(play_any(&any, &clock, &acts), play(&bucket(&other, 5, 5), &other, &acts));
    }
}

#[test]
fn a_number_is_the_cost_at_each_rate_but_not_at_a_counting_limit() {
    let clock = ManualClock::new();
    let (connection, user) = (bucket(&clock, 100, 100), bucket(&clock, 300, 300));
    let in_flight = CountingLimit::new(2);
    let all =
        AllOf::new("connection", &connection).with("user", &user).with_counting("in flight", &in_flight);
    let any = AnyLimiter::from(all);
    let permits = any.try_acquire_many(Request::permits(80)).expect("available");
    assert_eq!((connection.status().available, user.status().available, in_flight.available()), (20, 220, 1));
    drop(permits);
    assert_eq!(in_flight.available(), 2);

    let request = AllRequest::from(20).cost("user", 200);
    drop(any.try_acquire_many(request).expect("available"));
    assert_eq!((connection.status().available, user.status().available), (0, 20));
}

#[test]
fn a_composite_settles_by_name() {
    let clock = ManualClock::new();
    let (calls, tokens) = (bucket(&clock, 10, 10), bucket(&clock, 1000, 1000));
    let any = AnyLimiter::from(AllOf::new("calls", &calls).with("tokens", &tokens));
    let mut reservation = any.reserve([("tokens", 800)]).expect("available");
    // One permit of the member that the request does not name, as `acquire_many` reports. A
    // reservation reported the sum of both, 801, which is the number of no limit.
    assert!(matches!(poll(&mut reservation), Poll::Ready(Ok(grant)) if grant.permits() == 1));
    reservation.settle([("tokens", 300)]).expect("a member");
    assert_eq!((calls.status().available, tokens.status().available), (9, 700));
    for is_claimed in [true, false] {
        let mut reservation = any.reserve([("tokens", 500)]).expect("available");
        assert!(!is_claimed || poll(&mut reservation).is_ready());
        reservation.settle_unused();
        assert_eq!((calls.status().available, tokens.status().available), (9, 700));
    }

    let reservation = any.reserve([("tokens", 100)]).expect("available");
    let refusal = reservation.settle([("tonkes", 1)]).expect_err("no member");
    assert_eq!(refusal.to_string(), r#""tonkes" is not a member: the members are "calls", "tokens""#);
    // The reservation was not claimed, and is given up.
    assert_eq!((calls.status().available, tokens.status().available), (9, 700));
}

/// A reservation of two members reported twice as many permits as `acquire_many`.
#[test]
fn a_reservation_reports_the_permits_that_an_acquire_reports() {
    let requests = {
        let named = AllRequest::from(3).cost("tokens", 200);
        let up_to = AllRequest::from(Request::up_to(4_096));
        [
            AllRequest::new(),
            7.into(),
            named,
            up_to.clone(),
            up_to.cost("tokens", 1),
            AllRequest::new().exempt(),
        ]
    };
    for (request, expected) in requests.into_iter().zip([1, 7, 3, 700, 700, 0]) {
        let any = || {
            let clock = ManualClock::new();
            AnyLimiter::from(
                AllOf::new("calls", &bucket(&clock, 700, 700)).with("tokens", &bucket(&clock, 1000, 1000)),
            )
        };
        let mut wait = any().acquire_many(request.clone());
        let acquired = poll(&mut wait).map(|permits| permits.map(|permits| permits.permits()));
        assert_eq!(acquired, Poll::Ready(Ok(expected)), "{request:?}");
        let mut reservation = any().reserve(request.clone()).expect("there");
        assert_eq!(
            poll(&mut reservation).map(|grant| grant.map(|grant| grant.permits())),
            acquired,
            "{request:?}"
        );
        let mut reservation = any().reserve(request).expect("there");
        for _ in 0..2 {
            assert_eq!(reservation.blocking_claim().map(|grant| grant.permits()), Ok(expected));
        }
    }
}

#[test]
fn a_single_limiter_is_named_limit() {
    let any = AnyLimiter::from(bucket(&ManualClock::new(), 10, 10));
    let unknown = r#""tokens" is not a member: the members are "limit""#;
    for costs in [[("limit", 1), ("tokens", 1)], [("tokens", 1), ("limit", 1)]] {
        assert_eq!(any.try_acquire_many(costs).expect_err("no member").to_string(), unknown);
        assert_eq!(any.reserve(costs).expect_err("no member").to_string(), unknown);
    }
    assert_eq!(any.try_acquire_many([("limit", 3)]).map(|permits| permits.permits()), Ok(3));
    // The last cost counts, and a request that names the limit is granted in full or refused.
    let named = AllRequest::from(Request::up_to(9)).cost("limit", 1).cost("limit", 2);
    assert_eq!(any.try_acquire_many(named).map(|permits| permits.permits()), Ok(2));
    assert!(any.try_acquire_many([("limit", 6)]).is_err());
    let mut reservation = any.reserve([("limit", 5)]).expect("available");
    assert!(matches!(poll(&mut reservation), Poll::Ready(Ok(grant)) if grant.permits() == 5));
    reservation.settle([("limit", 0)]).expect("the name");
    assert_eq!(any.status().member("limit").map(|limit| limit.available), Some(5));
    let reservation = any.reserve(1).expect("available");
    assert_eq!(reservation.settle([("tokens", 1)]).expect_err("no member").to_string(), unknown);
    assert_eq!(any.keep_at_most("tokens", 1).expect_err("no member").to_string(), unknown);
    assert_eq!(any.debit([("limit", 1), ("tokens", 1)]).expect_err("no member").to_string(), unknown);
    any.debit(AllRequest::new()).expect("one permit");
    assert_eq!(any.status().member("limit").map(|limit| limit.available), Some(4));
    assert_eq!(any.refund([("limit", 1), ("tokens", 1)]).expect_err("no member").to_string(), unknown);
    any.refund(AllRequest::new()).expect("one permit");
    assert_eq!(any.status().member("limit").map(|limit| limit.available), Some(5));

    let in_use = AnyLimiter::from(CountingLimit::new(2));
    assert!(in_use.try_acquire_many([("limit", 3)]).is_err());
    let both = in_use.try_acquire_many([("limit", 2)]).expect("available");
    assert_eq!((both.permits(), in_use.try_acquire().is_err()), (2, true));
    assert_eq!(in_use.try_acquire_many([("tokens", 1)]).expect_err("no member").to_string(), unknown);
    assert_eq!(in_use.refund([("tokens", 1)]).expect_err("no member").to_string(), unknown);
    in_use.refund(2).expect("it gives nothing back");
    assert!(in_use.try_acquire().is_err());
    drop(both);
    assert!(in_use.try_acquire_many(2).is_ok());
}

#[test]
fn a_composite_is_charged_refunded_and_lowered_by_name() {
    let clock = ManualClock::new();
    let (calls, tokens, in_flight) =
        (bucket(&clock, 10, 10), bucket(&clock, 1000, 1000), CountingLimit::new(2));
    let all = AllOf::new("calls", &calls).with("tokens", &tokens).with_counting("in flight", &in_flight);
    let any = AnyLimiter::from(all);
    let left = || (calls.status().available, tokens.status().available, in_flight.available());
    any.debit([("tokens", 100)]).expect("a member");
    assert_eq!(left(), (9, 900, 2));
    any.debit(AllRequest::from(5).cost("in flight", 2)).expect("a member");
    assert_eq!(left(), (4, 895, 2));
    let refusal = any.debit([("tokens", 100), ("tonkes", 1)]).expect_err("no member");
    assert!(matches!(refusal, AllRefusal::NoMember { .. }));
    assert!(matches!(any.keep_at_most("tonkes", 1), Err(AllRefusal::NoMember { .. })));
    assert_eq!(left(), (4, 895, 2));
    any.refund([("tokens", 50)]).expect("a member");
    assert_eq!(left(), (5, 945, 2));
    any.refund(AllRequest::from(0).cost("calls", 9).cost("in flight", 2)).expect("a member");
    assert_eq!(left(), (10, 945, 2), "no fuller than full");
    assert!(matches!(any.refund([("calls", 1), ("tonkes", 1)]), Err(AllRefusal::NoMember { .. })));
    any.debit(AllRequest::from(6).cost("tokens", 50)).expect("a member");
    assert_eq!(any.keep_at_most("tokens", 95), Ok(800));
    assert_eq!(any.keep_at_most("in flight", 1), Ok(0));
    assert_eq!(left(), (4, 95, 2));
    assert_eq!((any.close(), any.close(), any.is_closed()), (Ok(true), Ok(false), true));
    assert!(matches!(any.try_acquire(), Err(AllRefusal::Queue { .. } | AllRefusal::Member { .. })));
    assert!(tokens.try_acquire().is_ok(), "members stay open");
}

#[cfg(feature = "tokio")]
#[tokio::test(start_paused = true)]
async fn a_wait_through_a_handle_can_be_dropped() {
    let policy = TokenBucket::new(tidegate::Rate::per_second(10), 1);
    let limiter = RateLimiter::with_clock(policy, tidegate::TokioClock::new());
    let any = AnyLimiter::from(limiter.clone());
    drop(any.acquire().await.expect("available"));
    let (first, second) = (any.acquire(), any.acquire_within(Duration::from_millis(100)));
    let mut first = Box::pin(first);
    assert!(poll(&mut first).is_pending());
    assert_eq!(any.status().waiting, 1);
    drop(first);
    assert_eq!(any.status().waiting, 0);
    assert_eq!(second.await.expect("in time").waited(), Duration::from_millis(100));
    let late = any.acquire_many(Request::permits(1).within(Duration::from_millis(99))).await;
    assert!(matches!(late, Err(AllRefusal::Queue { refusal: Refusal::Limited { .. }, .. })));
}

/// A limiter of another crate: it counts permits, which are given back.
#[derive(Debug, Default)]
struct Foreign(Arc<AtomicU32>);

struct GiveBack(Arc<AtomicU32>);

impl Drop for GiveBack {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Limiter for Foreign {
    fn try_acquire(&self, _: &AllRequest<'_>) -> Result<AllPermits, AllRefusal> {
        let clock = ManualClock::new();
        let grant = bucket(&clock, 1, 1).try_acquire()?;
        self.0.fetch_add(1, Ordering::Relaxed);
        Ok(AllPermits::with_guard(grant, GiveBack(self.0.clone())))
    }

    fn acquire(&self, request: &AllRequest<'_>) -> AcquireAny {
        let permits = Limiter::try_acquire(self, request);
        AcquireAny::new(async { permits })
    }

    fn blocking_acquire(&self, request: &AllRequest<'_>) -> Result<AllPermits, AllRefusal> {
        Limiter::try_acquire(self, request)
    }

    fn reserve(&self, _: &AllRequest<'_>) -> Result<AnyReservation, AllRefusal> {
        Err(Refusal::ZeroPermits.into())
    }

    fn status(&self) -> AllStatus {
        AnyLimiter::from(bucket(&ManualClock::new(), 1, 1)).status()
    }

    fn pause(&self, _: Pause) -> Result<(), AllRefusal> {
        Ok(())
    }

    fn resume(&self) -> bool {
        false
    }

    fn debit(&self, _: &AllRequest<'_>) -> Result<(), AllRefusal> {
        Ok(())
    }

    fn keep_at_most(&self, _: &str, _: u64) -> Result<u64, AllRefusal> {
        Ok(0)
    }

    fn close(&self) -> Result<bool, AllRefusal> {
        Ok(false)
    }

    fn is_closed(&self) -> bool {
        false
    }
}

#[test]
fn a_limiter_of_another_crate_gives_back_what_it_holds() {
    let used = Arc::new(AtomicU32::new(0));
    let any = AnyLimiter::new(Foreign(used.clone()));
    let permits = any.try_acquire().expect("available");
    assert_eq!(used.load(Ordering::Relaxed), 1);
    drop(permits);
    assert_eq!(used.load(Ordering::Relaxed), 0);
}

/// A reservation of another crate, which supports only polling.
struct ForeignReservation(AnyReservation);

impl Future for ForeignReservation {
    type Output = Result<Grant, AllRefusal>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.0).poll(context)
    }
}

impl Reserved for ForeignReservation {
    fn due_in(&self) -> Duration {
        self.0.due_in()
    }

    fn settle(self: Box<Self>, used: &AllRequest<'_>) -> Result<(), AllRefusal> {
        self.0.settle(used.clone())
    }
}

#[test]
fn a_thread_claims_a_reservation_of_any_kind() -> Result<(), AllRefusal> {
    let clock = ManualClock::new();
    let (alone, calls) = (bucket(&clock, 1, 1), CountingLimit::new(1));
    let both = AllOf::new("rate", &bucket(&clock, 1, 1)).with_counting("calls", &CountingLimit::new(1));
    for limiter in [AnyLimiter::from(alone), both.into(), calls.into()] {
        for is_foreign in [false, true] {
            let held = limiter.try_acquire()?;
            let reservation = limiter.reserve(1)?;
            let mut reservation =
                if is_foreign { AnyReservation::new(ForeignReservation(reservation)) } else { reservation };
            let grant = std::thread::scope(|scope| {
                let claim = scope.spawn(|| reservation.blocking_claim());
                clock.advance(Duration::from_secs(1));
                drop(held);
                claim.join().expect("no panic")
            })?;
            assert_eq!(grant.permits(), 1);
            assert_eq!(reservation.blocking_claim()?.permits(), 1);
            reservation.settle(AllRequest::new())?;
            clock.advance(Duration::from_secs(1));
        }
    }
    Ok(())
}

#[test]
fn a_blocking_claim_reports_what_it_left() -> Result<(), AllRefusal> {
    let limiter = AnyLimiter::from(bucket(&ManualClock::new(), 1, 5));
    let mut reservation = limiter.reserve(AllRequest::from(2).with_left())?;
    reservation.blocking_claim()?;
    assert_eq!(reservation.left().map(|left| left.members[0].1.available), Some(3));
    let nothing = AnyReservation::empty(limiter).blocking_claim()?;
    assert_eq!(nothing.permits(), 0);
    Ok(())
}

#[test]
fn a_reservation_that_passed_without_permits_reports_none() -> Result<(), AllRefusal> {
    // Bug: the reservations of several limits and of permits in use reported the number that was
    // requested.
    let clock = ManualClock::new();
    let alone = bucket(&clock, 1, 1);
    let both = AllOf::new("rate", &bucket(&clock, 1, 1)).with("other", &bucket(&clock, 1, 1));
    for limiter in [AnyLimiter::from(alone), both.into(), CountingLimit::new(1).into()] {
        let mut claimed = limiter.reserve(AllRequest::from(1).exempt())?;
        assert_eq!(claimed.blocking_claim()?.permits(), 0);
        let mut polled = limiter.reserve(AllRequest::from(1).exempt())?;
        assert_eq!(tokio_test::assert_ready_ok!(poll(&mut polled)).permits(), 0);
        assert_eq!(tokio_test::assert_ready_ok!(poll(&mut polled)).permits(), 0);
    }
    Ok(())
}

/// A member with a default cost kept the cost of a reservation that was given back, or was charged
/// for a reservation that gave up its position.
#[test]
fn a_reservation_gives_back_default_costs() -> Result<(), AllRefusal> {
    let clock = ManualClock::new();
    let (calls, tokens) = (bucket(&clock, 1, 100), bucket(&clock, 1, 100));
    let api = AllOf::new("calls", &calls).with("tokens", &tokens).default_cost("tokens", 20);
    let api = AnyLimiter::from(api);
    let mut claimed = api.reserve(1)?;
    claimed.blocking_claim()?;
    claimed.settle_unused();
    assert_eq!(tokens.status().available, 100);
    drop(api.try_acquire_many([("tokens", 100)])?);
    let waiting = api.reserve(1)?;
    waiting.settle_unused();
    clock.advance(Duration::from_secs(20));
    assert_eq!(tokens.status().available, 20);
    Ok(())
}
