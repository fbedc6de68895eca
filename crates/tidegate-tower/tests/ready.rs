//! The layer that takes permits in `poll_ready`.

#![allow(clippy::unwrap_used)]

use std::convert::Infallible;
use std::future::{Ready, pending, ready};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use http::Response;
use http_body_util::{BodyExt, Full};
use tidegate::{
    AcquireAny, AllOf, AllPermits, AllRefusal, AllRequest, AllStatus, AnyReservation, Clock, CountingLimit,
    Grant, ManualClock, Nanos, QueueBounds, Rate, RateLimiter, Refusal, Request, Reserved, Timer,
    TokenBucket, TokioClock, Unlimited,
};
use tidegate_tower::{Error, Limit, ReadyRateLimit, ReadyRateLimitLayer, UntilResponse};
use tokio::time::{Instant, advance, sleep, timeout};
use tower::load_shed::LoadShedLayer;
use tower::{Layer, Service, ServiceExt, service_fn};

const IDLE: Duration = Duration::from_secs(10);

fn limiter(burst: u32) -> RateLimiter<TokenBucket, ManualClock> {
    RateLimiter::with_clock(TokenBucket::new(Rate::per_second(5), burst), ManualClock::new())
}

fn echo()
-> impl Service<u32, Response = u32, Error = Infallible, Future = Ready<Result<u32, Infallible>>> + Clone {
    service_fn(|n: u32| ready(Ok(n)))
}

fn poll_ready<S: Service<u32>>(service: &mut S) -> Poll<bool> {
    service.poll_ready(&mut Context::from_waker(Waker::noop())).map(|ready| ready.is_ok())
}

/// A limit of calls in flight that a layer can ask, and the limit itself.
fn in_flight(limit: u32) -> (AllOf<TokioClock>, CountingLimit) {
    let calls = CountingLimit::new(limit);
    let unlimited = RateLimiter::with_clock(Unlimited, TokioClock::new());
    (AllOf::new("rate", &unlimited).with_counting("calls", &calls), calls)
}

#[tokio::test]
async fn a_service_is_ready_when_it_has_its_permits() {
    let limit = limiter(2);
    let layer = ReadyRateLimitLayer::plain(limit.clone());
    let mut service = layer.layer(echo());
    assert_eq!(limit.status().available, 2);
    for _ in 0..3 {
        assert_eq!(poll_ready(&mut service), Poll::Ready(true));
        assert_eq!(limit.status().available, 1);
    }
    assert_eq!(service.call(7).await.unwrap(), 7);
    assert_eq!(poll_ready(&mut service), Poll::Ready(true));
    assert_eq!(service.call(8).await.unwrap(), 8);
    assert_eq!(poll_ready(&mut service), Poll::Pending);
    assert_eq!(limit.status().waiting, 1);
    drop(service);
    assert_eq!(limit.status().waiting, 0);
}

#[tokio::test]
async fn a_service_that_is_dropped_ready_costs_nothing() {
    let limit = limiter(5);
    let layer = ReadyRateLimitLayer::plain(limit.clone()).cost(Request::permits(3));
    let mut service = layer.layer(echo());
    assert_eq!(poll_ready(&mut service), Poll::Ready(true));
    let mut clone = service.clone();
    assert_eq!(limit.status().available, 2);
    // A clone is not ready.
    assert_eq!(poll_ready(&mut clone), Poll::Pending);
    drop(service);
    assert_eq!(poll_ready(&mut clone), Poll::Ready(true));
    drop(clone);
    assert_eq!(limit.status().available, 5);
}

#[tokio::test(start_paused = true)]
async fn services_become_ready_in_turn() {
    let policy = TokenBucket::new(Rate::per_second(5), 1);
    let layer = ReadyRateLimitLayer::plain(RateLimiter::with_clock(policy, TokioClock::new()));
    let begin = Instant::now();
    let waits = (0..5).map(|n| {
        let service = layer.layer(echo());
        async move {
            let answer = service.oneshot(n).await;
            (answer.unwrap(), begin.elapsed())
        }
    });
    let mut set = tokio::task::JoinSet::new();
    for wait in waits {
        set.spawn(wait);
        tokio::task::yield_now().await;
    }
    let mut answers = set.join_all().await;
    answers.sort();
    let at = |n: u32| (n, Duration::from_millis(200) * n);
    assert_eq!(answers, [at(0), at(1), at(2), at(3), at(4)]);
}

#[tokio::test]
async fn a_limit_that_is_closed_is_an_error() {
    let limit = limiter(5);
    limit.close();
    let mut service = ReadyRateLimitLayer::plain(limit).layer(echo());
    let Err(Error::Refused(refused)) = service.ready().await.map(|_| ()) else { panic!("ready") };
    assert_eq!(refused.retry_after(), None);
}

/// Bug: each refusal was an error of `poll_ready`, after which tower's `Buffer` fails for good and
/// `Balance` drops the service.
#[tokio::test]
async fn a_refusal_that_passes_is_an_error_of_its_call_only() {
    let at_once = Request::permits(1).within(Duration::ZERO);
    let limit = limiter(1);
    let mut service = ReadyRateLimitLayer::plain(limit.clone()).cost(at_once).layer(echo());
    assert_eq!(service.ready().await.unwrap().call(1).await.unwrap(), 1);
    assert_eq!(poll_ready(&mut service), Poll::Ready(true));
    let Err(Error::Refused(refused)) = service.call(2).await else { panic!("called") };
    assert_eq!(refused.retry_after(), Some(Duration::from_millis(200)));
    // The limiter decides again if the service is polled again.
    assert_eq!(poll_ready(&mut service), Poll::Ready(true));
    limit.clock().advance(Duration::from_millis(200));
    assert_eq!(poll_ready(&mut service), Poll::Ready(true));
    assert_eq!(limit.status().available, 0);
    assert_eq!(service.call(3).await.unwrap(), 3);

    // A full queue refuses when the service is first polled.
    let limit = limiter(1);
    limit.set_queue_bounds(QueueBounds::UNBOUNDED.max_waiters(1));
    let layer = ReadyRateLimitLayer::plain(limit);
    let (mut first, mut second, mut third) = (layer.layer(echo()), layer.layer(echo()), layer.layer(echo()));
    assert_eq!(poll_ready(&mut first), Poll::Ready(true));
    assert_eq!(poll_ready(&mut second), Poll::Pending);
    assert_eq!(poll_ready(&mut third), Poll::Ready(true));
    assert!(matches!(third.call(4).await, Err(Error::Refused(_))));
    assert_eq!(first.call(5).await.unwrap(), 5);
}

#[tokio::test]
async fn no_permit_is_taken_for_a_service_that_is_not_ready() {
    #[derive(Clone)]
    struct Never;
    impl Service<u32> for Never {
        type Response = ();
        type Error = Infallible;
        type Future = std::future::Pending<Result<(), Infallible>>;
        fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
            Poll::Pending
        }
        fn call(&mut self, _: u32) -> Self::Future {
            pending()
        }
    }
    let limit = limiter(1);
    let mut service = ReadyRateLimitLayer::plain(limit.clone()).layer(Never);
    assert_eq!(poll_ready(&mut service), Poll::Pending);
    assert_eq!(limit.status().available, 1);
}

#[tokio::test]
async fn load_is_shed_when_there_are_no_permits() {
    let limiting = ReadyRateLimitLayer::plain(limiter(2)).layer(echo());
    let mut service = LoadShedLayer::new().layer(limiting);
    let mut answers = Vec::new();
    for n in 0..4 {
        answers.push(service.ready().await.unwrap().call(n).await.is_ok());
    }
    assert_eq!(answers, [true, true, false, false]);
}

#[tokio::test]
async fn a_counted_permit_is_in_use_until_the_answer() {
    let (limit, calls) = in_flight(1);
    let layer = ReadyRateLimitLayer::plain(limit);
    let mut service = layer.layer(echo());
    assert_eq!(poll_ready(&mut service), Poll::Ready(true));
    let call = service.call(7);
    assert_eq!(calls.available(), 0);
    assert_eq!(poll_ready(&mut service), Poll::Pending);
    call.await.unwrap();
    assert_eq!(poll_ready(&mut service), Poll::Ready(true));
    drop(service.call(8));
    assert_eq!(calls.available(), 1);
}

/// An HTTP service responds before its body has ended.
#[tokio::test]
async fn a_counted_permit_is_in_use_until_the_body_ends() {
    let (limit, calls) = in_flight(1);
    let inner = service_fn(|text: &'static str| {
        ready(match text {
            "fail" => Err(std::fmt::Error),
            text => Ok(Response::new(Full::<Bytes>::from(text))),
        })
    });
    let mut service = ReadyRateLimitLayer::new(limit).layer(inner);
    let answer = service.ready().await.unwrap().call("hello").await.unwrap();
    assert_eq!(calls.available(), 0);
    let mut next = tokio_test::task::spawn(service.ready());
    tokio_test::assert_pending!(next.poll());
    let mut body = answer.into_body();
    assert_eq!(body.frame().await.unwrap().unwrap().into_data().unwrap(), "hello");
    assert!(next.is_woken(), "the body ended with its last frame");
    drop(next);

    for text in ["", "dropped", "fail"] {
        drop(service.ready().await.unwrap().call(text).await);
        assert_eq!(calls.available(), 1);
    }
}

fn idle_layer(limit: AllOf<TokioClock>) -> ReadyRateLimitLayer<AllOf<TokioClock>, UntilResponse> {
    ReadyRateLimitLayer::plain(limit).idle_after_on(IDLE, TokioClock::new())
}

#[tokio::test(start_paused = true)]
async fn permits_of_an_idle_service_go_to_a_service_that_waits() {
    let (limit, calls) = in_flight(1);
    let layer = idle_layer(limit);
    let mut idle = layer.layer(echo());
    idle.ready().await.unwrap();
    sleep(Duration::from_secs(3)).await;
    let mut other = layer.layer(echo());
    let begin = Instant::now();
    other.ready().await.unwrap();
    assert_eq!(begin.elapsed(), Duration::from_secs(7));
    assert_eq!(calls.available(), 0);

    // The idle service is no longer ready: a call waits for its turn.
    let call = idle.call(1);
    let mut call = Box::pin(call);
    assert!(timeout(Duration::from_secs(5), &mut call).await.is_err());
    assert_eq!(other.call(2).await.unwrap(), 2);
    assert_eq!(call.await.unwrap(), 1);
    assert_eq!(calls.available(), 1);
}

/// The service that becomes idle was not yet ready when the other one began to wait.
#[tokio::test(start_paused = true)]
async fn a_service_that_becomes_idle_later_does_not_hold_up_the_rest() {
    let (limit, _calls) = in_flight(1);
    let layer = idle_layer(limit);
    let mut first = layer.layer(echo());
    first.ready().await.unwrap();
    let answer = first.call(1);
    let mut second: ReadyRateLimit<_, _, _> = layer.layer(echo());
    assert_eq!(poll_ready(&mut second), Poll::Pending);
    let mut third = layer.layer(echo());
    let waits = tokio::spawn(async move {
        third.ready().await.unwrap();
        Instant::now()
    });
    tokio::task::yield_now().await;
    advance(Duration::from_secs(4)).await;
    answer.await.unwrap();
    assert_eq!(poll_ready(&mut second), Poll::Ready(true));
    let since = Instant::now();
    assert_eq!(waits.await.unwrap() - since, IDLE);
    drop(second);
}

#[tokio::test(start_paused = true)]
async fn a_service_that_is_called_in_time_keeps_its_permit() {
    let (limit, calls) = in_flight(1);
    let layer = idle_layer(limit);
    let (mut busy, mut other) = (layer.layer(echo()), layer.layer(echo()));
    for n in 0..5 {
        busy.ready().await.unwrap();
        sleep(IDLE - Duration::from_millis(1)).await;
        assert_eq!(poll_ready(&mut other), Poll::Pending);
        assert_eq!(busy.call(n).await.unwrap(), n);
        // The service waited, so it is the next one.
        assert_eq!(poll_ready(&mut other), Poll::Ready(true));
        assert_eq!(other.call(n).await.unwrap(), n);
    }
    assert_eq!(calls.available(), 1);
}

/// A clock that fails a test that creates sleeps in an endless loop.
#[derive(Clone, Debug)]
struct FewSleeps(ManualClock, Arc<AtomicU32>);

impl Clock for FewSleeps {
    fn now(&self) -> Nanos {
        self.0.now()
    }
}

impl Timer for FewSleeps {
    type Sleep = <ManualClock as Timer>::Sleep;
    type RuntimeId = ();

    fn runtime(&self) -> Option<()> {
        self.0.runtime()
    }

    fn sleep_until(&self, at: Nanos) -> Self::Sleep {
        assert!(self.1.fetch_add(1, Ordering::Relaxed) < 100, "it spins");
        self.0.sleep_until(at)
    }

    fn park_until(&self, at: Nanos) {
        self.0.park_until(at);
    }
}

/// A service that was not polled when its turn came kept the permits of that turn for ever.
#[tokio::test(start_paused = true)]
async fn a_service_that_stops_polling_does_not_hold_up_the_rest() {
    let (limit, calls) = in_flight(1);
    let layer = idle_layer(limit);
    let (mut first, mut second, mut third) = (layer.layer(echo()), layer.layer(echo()), layer.layer(echo()));
    first.ready().await.unwrap();
    assert!(timeout(IDLE / 10, second.ready()).await.is_err());
    drop(first);
    // It is the turn of the second service, which is not polled.
    assert_eq!(calls.available(), 0);
    sleep(2 * IDLE).await;
    assert!(timeout(2 * IDLE, third.ready()).await.is_ok(), "the third is ready");
    // The second service begins to wait anew, and a call without readiness waits as well.
    assert!(timeout(IDLE / 10, second.ready()).await.is_err());
    let call = second.call(7);
    assert_eq!(third.call(8).await.unwrap(), 8);
    assert_eq!(call.await.unwrap(), 7);
    assert_eq!(calls.available(), 1);
}

/// A service that is not polled keeps its position while its permits are not due.
#[tokio::test(start_paused = true)]
async fn a_service_that_waits_for_long_keeps_its_position() {
    let rate = Rate::new(1, 100 * IDLE).unwrap();
    let limiter = RateLimiter::with_clock(TokenBucket::new(rate, 1), TokioClock::new());
    let layer = ReadyRateLimitLayer::plain(limiter).idle_after_on(IDLE, TokioClock::new());
    let (mut first, mut second, mut third) = (layer.layer(echo()), layer.layer(echo()), layer.layer(echo()));
    assert_eq!(first.ready().await.unwrap().call(0).await.unwrap(), 0);
    assert_eq!(poll_ready(&mut second), Poll::Pending);
    assert!(timeout(90 * IDLE, third.ready()).await.is_err());
    sleep(10 * IDLE).await;
    // The permit has just become due.
    assert_eq!(poll_ready(&mut third), Poll::Pending);
    assert_eq!(poll_ready(&mut second), Poll::Ready(true));
}

/// An idle time of zero had always passed, so a waiting service looked for idle services in an
/// endless loop.
#[tokio::test]
async fn permits_go_back_after_no_time_without_a_spin() {
    for is_called in [true, false] {
        let clock = FewSleeps(ManualClock::new(), Arc::default());
        let layer = ReadyRateLimitLayer::plain(limiter(1)).idle_after_on(Duration::ZERO, clock.clone());
        let (mut first, mut second) = (layer.layer(echo()), layer.layer(echo()));
        assert_eq!(poll_ready(&mut first), Poll::Ready(true));
        if is_called {
            assert_eq!(first.call(1).await.unwrap(), 1);
        }
        assert_eq!(poll_ready(&mut second), Poll::Pending);
        clock.0.advance(Duration::from_millis(1));
        let expected = if is_called { Poll::Pending } else { Poll::Ready(true) };
        assert_eq!(poll_ready(&mut second), expected);
    }
}

/// A limiter whose reservations wait for ever. The first call of `due_in` panics.
#[derive(Clone, Debug, Default)]
struct PanicsOnce(Arc<Asked>);

#[derive(Debug, Default)]
struct Asked {
    due_in: AtomicU32,
    settled: AtomicU32,
}

impl Limit for PanicsOnce {
    type Key = ();
    type Ask = Request;

    fn try_acquire(&self, (): &(), _: &Request) -> Result<AllPermits, AllRefusal> {
        Err(Refusal::Displaced.into())
    }

    fn acquire(&self, (): &(), ask: &Request) -> AcquireAny {
        AcquireAny::ready(self.try_acquire(&(), ask))
    }

    fn reserve(&self, (): &(), _: &Request) -> Result<AnyReservation, AllRefusal> {
        Ok(AnyReservation::new(self.clone()))
    }

    fn status(&self, (): &()) -> Option<AllStatus> {
        None
    }
}

impl Future for PanicsOnce {
    type Output = Result<Grant, AllRefusal>;

    fn poll(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Self::Output> {
        Poll::Pending
    }
}

impl Reserved for PanicsOnce {
    fn due_in(&self) -> Duration {
        assert!(self.0.due_in.fetch_add(1, Ordering::Relaxed) > 0, "the first call panics");
        Duration::ZERO
    }

    fn settle(self: Box<Self>, _: &AllRequest<'_>) -> Result<(), AllRefusal> {
        self.0.settled.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }
}

/// Bug: after a panic of a waker or an observer that ran when the limiter was asked whether permits
/// are due, the service with these permits never counted as idle again.
#[test]
fn a_service_counts_as_idle_after_a_panic() {
    let (clock, limit) = (ManualClock::new(), PanicsOnce::default());
    let layer = ReadyRateLimitLayer::plain(limit.clone()).idle_after_on(IDLE, clock.clone());
    let (mut idle, mut other) = (layer.layer(echo()), layer.layer(echo()));
    assert_eq!(poll_ready(&mut idle), Poll::Pending);
    clock.advance(IDLE);
    let panics = std::panic::AssertUnwindSafe(|| poll_ready(&mut other));
    assert!(std::panic::catch_unwind(panics).is_err());
    for _ in 0..2 {
        clock.advance(IDLE);
        assert_eq!(poll_ready(&mut other), Poll::Pending);
    }
    assert_eq!(limit.0.settled.load(Ordering::Relaxed), 1);
}

#[test]
fn services_can_be_shared_by_threads() {
    fn shared<T: Send + Sync>(_: &T) {}
    shared(&ReadyRateLimitLayer::plain(limiter(1)).layer(echo()));
}
