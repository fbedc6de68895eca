//! Sinks on a manual clock.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::{Sink, SinkExt, sink};
use tidegate::{AllOf, ManualClock, Rate, RateLimiter, Refusal, TokenBucket};
use tidegate_futures::{LimitSink, SinkError};
use tokio_test::task::spawn;
use tokio_test::{assert_pending, assert_ready_err, assert_ready_ok};

fn bucket(per_second: u64, burst: u32) -> (RateLimiter<TokenBucket, ManualClock>, ManualClock) {
    let clock = ManualClock::new();
    let policy = TokenBucket::new(Rate::per_second(per_second), burst);
    (RateLimiter::with_clock(policy, clock.clone()), clock)
}

#[test]
fn an_item_is_accepted_when_its_permit_is_due() {
    let (limiter, clock) = bucket(10, 1);
    let mut items = sink::drain().rate_limited(limiter.clone());
    assert_ready_ok!(spawn(items.send(1)).poll());
    assert_eq!(limiter.status().available, 0);
    let mut send = spawn(items.send(2));
    assert_pending!(send.poll());
    clock.advance(Duration::from_millis(100));
    assert!(send.is_woken());
    assert_ready_ok!(send.poll());
    assert_eq!((limiter.status().available, limiter.status().waiting), (0, 0));
}

#[test]
fn the_rest_of_a_cost_is_owed() {
    let (limiter, clock) = bucket(10, 5);
    let mut items = sink::drain().rate_limited(limiter.clone()).cost(|cost: &u32| *cost);
    assert_ready_ok!(spawn(items.send(8)).poll());
    assert!(limiter.try_acquire().is_err());
    let mut send = spawn(items.send(0));
    assert_pending!(send.poll());
    clock.advance(Duration::from_millis(399));
    assert_pending!(send.poll());
    clock.advance(Duration::from_millis(1));
    assert_ready_ok!(send.poll());
    assert_eq!(limiter.status().available, 1, "it costs nothing");
}

#[test]
fn a_permit_that_no_item_used_is_given_back() {
    let (limiter, _) = bucket(10, 1);
    let ready = || {
        let mut items = sink::drain::<u32>().rate_limited(limiter.clone());
        assert_ready_ok!(spawn(std::future::poll_fn(|context| items.poll_ready_unpin(context))).poll());
        assert_eq!(limiter.status().available, 0);
        items
    };
    drop(ready());
    assert_eq!(limiter.status().available, 1);
    assert_ready_ok!(spawn(ready().flush()).poll());
    assert_eq!(limiter.status().available, 1);
    assert_ready_ok!(spawn(ready().close()).poll());
    assert_eq!(limiter.status().available, 1);
    drop(ready().into_inner());
    assert_eq!(limiter.status().available, 1);
}

/// A ready sink that is flushed still accepts an item. The flush gave the permit back, and the item
/// was free.
#[test]
fn an_item_after_a_flush_costs_as_any_other() {
    for cost in [0, 1, 8] {
        let (limiter, _) = bucket(10, 5);
        let mut items = sink::drain().rate_limited(limiter.clone()).cost(|cost: &u32| *cost);
        assert_ready_ok!(spawn(std::future::poll_fn(|context| items.poll_ready_unpin(context))).poll());
        assert_ready_ok!(spawn(items.flush()).poll());
        assert_eq!(limiter.status().available, 5);
        items.start_send_unpin(cost).expect("it was ready");
        assert_eq!(limiter.status().available, u64::from(5_u32.saturating_sub(cost)));
        let owed = Duration::from_millis(100) * cost;
        assert_eq!(limiter.status().full_in, owed);
    }
}

/// Bug: an item of cost 0 was charged the default cost of a limit.
#[test]
fn an_item_of_no_cost_is_charged_no_default_cost() {
    let (items, clock) = bucket(10, 100);
    let bytes = RateLimiter::with_clock(TokenBucket::new(Rate::per_second(10), 100), clock);
    let both = AllOf::new("items", &items).with("bytes", &bytes).default_cost("bytes", 20);
    let mut sent = sink::drain().rate_limited(both).cost(|cost: &u32| *cost);
    assert_ready_ok!(spawn(sent.send(0)).poll());
    assert_eq!((items.status().available, bytes.status().available), (100, 100));
    assert_ready_ok!(spawn(std::future::poll_fn(|context| sent.poll_ready_unpin(context))).poll());
    assert_ready_ok!(spawn(sent.flush()).poll());
    sent.start_send_unpin(0).expect("it was ready");
    assert_eq!((items.status().available, bytes.status().available), (100, 100));
    assert_ready_ok!(spawn(sent.send(3)).poll());
    assert_eq!((items.status().available, bytes.status().available), (97, 80));
}

#[test]
fn flushing_and_dropping_leave_the_queue() {
    let (limiter, _) = bucket(10, 1);
    limiter.try_acquire().expect("there");
    let mut items = sink::drain().rate_limited(limiter.clone());
    assert_pending!(spawn(items.send(1)).poll());
    assert_eq!(limiter.status().waiting, 1, "the sink keeps the position");
    assert_ready_ok!(spawn(items.flush()).poll());
    assert_eq!(limiter.status().waiting, 0);
    assert_pending!(spawn(items.send(1)).poll());
    drop(items);
    assert_eq!(limiter.status().waiting, 0);
}

/// A sink that is never ready.
struct Blocked;

impl Sink<u32> for Blocked {
    type Error = Infallible;

    fn poll_ready(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Pending
    }

    fn start_send(self: Pin<&mut Self>, _: u32) -> Result<(), Infallible> {
        Ok(())
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn poll_close(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }
}

#[test]
fn a_blocked_sink_holds_nothing() {
    let (limiter, _) = bucket(10, 1);
    let mut items = Blocked.rate_limited(limiter.clone());
    assert_pending!(spawn(items.send(1)).poll());
    assert_eq!((limiter.status().available, limiter.status().waiting), (1, 0));
}

#[test]
fn a_closed_limiter_refuses_and_a_new_one_is_asked_each_time() {
    let (limiter, _) = bucket(10, 1);
    let mut items = sink::drain().rate_limited(limiter.clone());
    assert_ready_ok!(spawn(items.send(1)).poll());
    let mut send = spawn(items.send(2));
    assert_pending!(send.poll());
    limiter.close();
    assert!(send.is_woken());
    let refused = |error: SinkError<_>| match error {
        SinkError::Refused(refusal) => refusal.refusal(),
        other => panic!("{other:?}"),
    };
    assert_eq!(refused(assert_ready_err!(send.poll())), Some(Refusal::Closed));
    drop(send);
    assert_eq!(refused(assert_ready_err!(spawn(items.send(3)).poll())), Some(Refusal::Closed));
}
