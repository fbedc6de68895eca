//! A limiter of another crate, made only from public items: behind a handle, a layer, a client that
//! obeys, a stream and a reader.

#![allow(clippy::unwrap_used)]

use std::convert::Infallible;
use std::future::ready;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::{StreamExt, stream};
use http::{HeaderMap, HeaderValue, Request as HttpRequest, Response, StatusCode};
use tidegate::io::Throttled;
use tidegate::stream::LimitStream;
use tidegate::{
    AcquireAny, AllPermits, AllRefusal, AllRequest, AllStatus, AnyLimiter, AnyReservation, Grant, Left,
    Limiter, Nanos, Pause, Rate, Refusal, Request, Reserved, Status,
};
use tidegate_http::obey::Obey;
use tidegate_tower::{Limit, RateLimitLayer, Refused};
use tokio::io::AsyncReadExt;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until, timeout_at};
use tower::{Layer, Service, ServiceExt, service_fn};

/// Two named limits that a mutex guards. A wait books its permits when it begins, like a wait at a
/// store. Requests of negative priority leave one permit of each limit.
#[derive(Clone, Debug)]
struct Foreign(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    began: Instant,
    state: Mutex<State>,
    closed: watch::Sender<bool>,
}

#[derive(Debug)]
struct State {
    limits: [Bucket; 2],
    paused_until: Nanos,
    waiting: usize,
    in_use: usize,
}

/// A bucket that fills from empty to full, beginning at `empty_at`.
#[derive(Clone, Copy, Debug)]
struct Bucket {
    name: &'static str,
    burst: u32,
    interval: u64,
    empty_at: u64,
}

/// The permits of the two limits.
type Costs = [u32; 2];

impl Bucket {
    fn new(name: &'static str, per_second: u64, burst: u32) -> Bucket {
        let bucket = Bucket { name, burst, interval: 1_000_000_000 / per_second, empty_at: 0 };
        // The bucket is full when the time begins.
        Bucket { empty_at: START - bucket.time_of(burst), ..bucket }
    }

    fn time_of(&self, n: u32) -> u64 {
        self.interval * u64::from(n)
    }

    fn left(&self, now: u64, opens: u64) -> Left {
        let at = |time: u64| Duration::from_nanos(time.max(opens).saturating_sub(now));
        let available = if opens > now { 0 } else { now.saturating_sub(self.empty_at) / self.interval };
        Left::new(self.burst.into(), available.min(self.burst.into()))
            .next_in(at(self.empty_at + self.interval))
            .full_in(at(self.empty_at + self.time_of(self.burst)))
    }

    /// Takes `n` permits, and returns the time at which they are due.
    fn book(&mut self, now: u64, n: u32) -> u64 {
        let oldest = now.saturating_sub(self.time_of(self.burst));
        self.empty_at = self.empty_at.max(oldest) + self.time_of(n);
        self.empty_at
    }

    fn give_back(&mut self, n: u32) {
        self.empty_at -= self.time_of(n);
    }
}

/// The clock of the limiter begins so late that a full bucket was empty after its zero.
const START: u64 = 3_600_000_000_000;

impl Foreign {
    fn new() -> Foreign {
        let limits = [Bucket::new("requests", 10, 2), Bucket::new("tokens", 1000, 1000)];
        let state = State { limits, paused_until: Nanos::ZERO, waiting: 0, in_use: 0 };
        let (state, closed) = (Mutex::new(state), watch::Sender::new(false));
        Foreign(Arc::new(Shared { began: Instant::now(), state, closed }))
    }

    fn now(&self) -> u64 {
        START + Nanos::from_duration(self.0.began.elapsed()).as_u64()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap()
    }

    fn instant(&self, at: u64) -> Instant {
        self.0.began + Duration::from_nanos(at.saturating_sub(START))
    }

    /// Returns the index of a limit.
    fn find(&self, name: &str) -> Result<usize, AllRefusal> {
        let limits = self.state().limits;
        limits.iter().position(|limit| limit.name == name).ok_or_else(|| AllRefusal::NoMember {
            name: name.into(),
            members: limits.map(|limit| limit.name.into()).into(),
        })
    }

    fn costs(&self, request: &AllRequest<'_>, others: Costs) -> Result<Costs, AllRefusal> {
        let mut costs = others;
        for (name, n) in request.costs() {
            costs[self.find(name)?] = n;
        }
        Ok(costs)
    }

    /// Books the permits of a request that may wait. Returns the booking, which has the time at
    /// which the permits are due.
    fn book(&self, request: &AllRequest<'_>, within: Option<Duration>) -> Result<Booking, AllRefusal> {
        let Request { permits, most, priority, exempt, .. } = request.to_request();
        let mut costs = self.costs(request, [permits; 2])?;
        if *self.0.closed.borrow() {
            return Err(Refusal::Closed.into());
        }
        let now = self.now();
        let mut state = self.state();
        if exempt {
            return Ok(Booking { of: self.clone(), costs: [0; 2], n: 0, now, due: now });
        }
        let refused = |at: usize, refusal| Err(AllRefusal::from_member(state.limits[at].name, refusal));
        let (mut n, unnamed) = (permits, [0, 1].map(|at| request.cost_of(state.limits[at].name).is_none()));
        if most > permits {
            // The number of permits that both limits have.
            let opens = state.paused_until.as_u64();
            let there = (0..2).filter(|at| unnamed[*at]);
            let there = there.map(|at| state.limits[at].left(now, opens).available).min().unwrap_or(0);
            n = u32::try_from(there).unwrap_or(u32::MAX).clamp(permits, most);
            (0..2).filter(|at| unnamed[*at]).for_each(|at| costs[at] = n);
        }
        if costs == [0; 2] {
            return Err(Refusal::ZeroPermits.into());
        }
        let mut after = state.limits;
        let kept = u32::from(priority < 0);
        for (at, limit) in state.limits.iter().enumerate() {
            let (requested, limit) = (costs[at], limit.burst - kept);
            if requested > limit {
                return refused(at, Refusal::ExceedsLimit { requested, limit });
            }
        }
        let due = |at: usize| match costs[at] {
            0 => 0,
            n => after[at].book(now, n) + state.limits[at].time_of(kept),
        };
        let due = [0, 1].map(due);
        let last = usize::from(due[1] > due[0]);
        let opens = state.paused_until.as_u64();
        let retry_after = Nanos::new(due[last].max(opens).saturating_sub(now));
        if within.is_some_and(|within| retry_after > within) {
            let retry_after = retry_after.saturating_since(Nanos::from_duration(within.unwrap_or_default()));
            return match opens > now {
                true => Err(Refusal::Paused { retry_after }.into()),
                false => refused(last, Refusal::Limited { retry_after }),
            };
        }
        state.limits = after;
        state.waiting += 1;
        drop(state);
        Ok(Booking { of: self.clone(), costs, n, now, due: now + retry_after.as_u64() })
    }
}

/// Booked permits. Dropping them gives them back.
struct Booking {
    of: Foreign,
    costs: Costs,
    n: u32,
    now: u64,
    due: u64,
}

impl Booking {
    /// Waits for the permits.
    async fn wait(&mut self) -> Result<Grant, AllRefusal> {
        let mut closed = self.of.0.closed.subscribe();
        let due = self.of.instant(self.due);
        if self.due > self.now && timeout_at(due, closed.wait_for(|closed| *closed)).await.is_ok() {
            return Err(Refusal::Closed.into());
        }
        Ok(Grant::new(self.n, Nanos::new(self.due - self.now)))
    }

    /// Uses the permits. The caller drops the returned guard when the call is over.
    fn permits(mut self, grant: Grant) -> AllPermits {
        self.used(self.costs);
        self.of.state().in_use += 1;
        AllPermits::with_guard(grant, InUse(self.of.clone()))
    }

    /// Settles the booking: `used` permits were used.
    fn used(&mut self, used: Costs) {
        let mut state = self.of.state();
        let now = self.of.now();
        for (limit, (booked, used)) in state.limits.iter_mut().zip(self.costs.into_iter().zip(used)) {
            limit.give_back(booked);
            limit.book(now, used);
        }
        drop(state);
        self.costs = [0; 2];
    }
}

impl Drop for Booking {
    fn drop(&mut self) {
        let mut state = self.of.state();
        state.waiting = state.waiting.saturating_sub(1);
        (0..2).for_each(|at| state.limits[at].give_back(self.costs[at]));
    }
}

/// A call in flight.
struct InUse(Foreign);

impl Drop for InUse {
    fn drop(&mut self) {
        self.0.state().in_use -= 1;
    }
}

impl Limiter for Foreign {
    fn try_acquire(&self, request: &AllRequest<'_>) -> Result<AllPermits, AllRefusal> {
        let tells = request.to_request().wants_left;
        match self.book(request, Some(Duration::ZERO)) {
            Ok(booking) => {
                let grant = Grant::new(booking.n, Nanos::ZERO);
                let permits = booking.permits(grant);
                Ok(if tells { permits.with_left(self.status()) } else { permits })
            }
            Err(refusal) => Err(if tells { refusal.with_left(self.status()) } else { refusal }),
        }
    }

    /// Like over a network: the decision takes a millisecond.
    fn acquire_now(&self, request: &AllRequest<'_>) -> AcquireAny {
        let answer_at = Instant::now() + Duration::from_millis(1);
        let answer = self.try_acquire(request);
        AcquireAny::new(async move {
            sleep_until(answer_at).await;
            answer
        })
    }

    fn acquire(&self, request: &AllRequest<'_>) -> AcquireAny {
        // The future must own its costs.
        let costs: Vec<_> = request.costs().map(|(name, n)| (name.to_owned(), n)).collect();
        let (this, all_else, others) = (self.clone(), request.to_request(), request.others());
        AcquireAny::new(async move {
            let mut request = others.map_or(AllRequest::new(), |_| AllRequest::from(all_else));
            for (name, n) in &costs {
                request = request.cost(name, *n);
            }
            let mut booking = this.book(&request, all_else.within)?;
            let grant = booking.wait().await?;
            Ok(booking.permits(grant))
        })
    }

    fn blocking_acquire(&self, request: &AllRequest<'_>) -> Result<AllPermits, AllRefusal> {
        let booking = self.book(request, request.to_request().within)?;
        let grant = Grant::new(booking.n, Nanos::new(booking.due - booking.now));
        std::thread::sleep(grant.waited());
        Ok(booking.permits(grant))
    }

    fn reserve(&self, request: &AllRequest<'_>) -> Result<AnyReservation, AllRefusal> {
        let booking = self.book(request, request.to_request().within)?;
        let sleep = Box::pin(sleep_until(self.instant(booking.due)));
        Ok(AnyReservation::new(Reservation { costs: booking.costs, booking, sleep }))
    }

    fn status(&self) -> AllStatus {
        let (now, state) = (self.now(), self.state());
        let opens = state.paused_until.as_u64();
        let paused_for = Duration::from_nanos(opens.saturating_sub(now));
        let status = |limit: &Bucket| {
            let rate = Rate::new(1, Duration::from_nanos(limit.interval)).unwrap();
            (limit.name, Status::from(limit.left(now, opens)).rate(rate).paused_for(paused_for))
        };
        AllStatus::new(state.limits.iter().map(status)).waiting(state.waiting).paused_for(paused_for)
    }

    fn pause(&self, pause: Pause) -> Result<(), AllRefusal> {
        let mut state = self.state();
        let opens = pause.end(Nanos::new(self.now()));
        if !pause.keeps_permits() {
            state.limits.iter_mut().for_each(|limit| limit.empty_at = opens.as_u64());
        }
        state.paused_until = state.paused_until.max(opens);
        Ok(())
    }

    fn resume(&self) -> bool {
        let now = Nanos::new(self.now());
        std::mem::take(&mut self.state().paused_until) > now
    }

    fn debit(&self, costs: &AllRequest<'_>) -> Result<(), AllRefusal> {
        let costs = self.costs(costs, [costs.others().unwrap_or(1); 2])?;
        let now = self.now();
        self.state().limits.iter_mut().zip(costs).for_each(|(limit, n)| _ = limit.book(now, n));
        Ok(())
    }

    fn keep_at_most(&self, name: &str, permits: u64) -> Result<u64, AllRefusal> {
        let at = self.find(name)?;
        let now = self.now();
        let limit = &mut self.state().limits[at];
        let more = limit.left(now, 0).available.saturating_sub(permits);
        limit.book(now, u32::try_from(more).unwrap());
        Ok(more)
    }

    fn close(&self) -> Result<bool, AllRefusal> {
        Ok(!self.0.closed.send_replace(true))
    }

    fn is_closed(&self) -> bool {
        *self.0.closed.borrow()
    }
}

struct Reservation {
    booking: Booking,
    /// The booked permits.
    costs: Costs,
    sleep: Pin<Box<tokio::time::Sleep>>,
}

impl Future for Reservation {
    type Output = Result<Grant, AllRefusal>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let answer = self.sleep.as_mut().poll(context);
        if answer.is_ready() {
            // The permits count as used, unless the reservation is settled.
            self.booking.costs = [0; 2];
        }
        let Booking { n, due, now, .. } = self.booking;
        answer.map(|()| Ok(Grant::new(n, Nanos::new(due - now))))
    }
}

impl Reserved for Reservation {
    fn due_in(&self) -> Duration {
        Duration::from_nanos(self.booking.due.saturating_sub(self.booking.of.now()))
    }

    fn settle(mut self: Box<Self>, used: &AllRequest<'_>) -> Result<(), AllRefusal> {
        let reserved = used.others().map_or(self.costs, |n| [n; 2]);
        let used = self.booking.of.costs(used, reserved)?;
        self.booking.costs = self.costs;
        self.booking.used(used);
        Ok(())
    }
}

fn limiter() -> (AnyLimiter, Foreign) {
    let foreign = Foreign::new();
    (AnyLimiter::new(foreign.clone()), foreign)
}

fn available(limiter: &AnyLimiter) -> [u64; 2] {
    let status = limiter.status();
    ["requests", "tokens"].map(|name| status.member(name).unwrap().available)
}

const MS: Duration = Duration::from_millis(1);

#[tokio::test(start_paused = true)]
async fn a_handle_passes_on_what_a_request_says() {
    let (limiter, _) = limiter();
    let permits = limiter.try_acquire_many([("tokens", 850)]).unwrap();
    assert_eq!((permits.permits(), available(&limiter)), (1, [1, 150]));
    let refusal = limiter.try_acquire_many([("tokens", 851)]).unwrap_err();
    assert_eq!((refusal.member(), refusal.retry_after()), (Some("tokens"), Some(701 * MS)));
    let refusal = limiter.try_acquire_many([("tonkes", 1)]).unwrap_err();
    assert_eq!(refusal.to_string(), r#""tonkes" is not a member: the members are "requests", "tokens""#);
    let low = AllRequest::from(Request::permits(1).priority(-1));
    assert_eq!(limiter.try_acquire_many(low).unwrap_err().member(), Some("requests"));
    let exempt = limiter.try_acquire_many(Request::permits(9).exempt()).unwrap();
    assert_eq!((exempt.permits(), available(&limiter)), (0, [1, 150]));
    let one = limiter.try_acquire_many(Request::up_to(100)).unwrap();
    assert_eq!((one.permits(), available(&limiter)), (1, [0, 149]));
    let late = limiter.acquire_within(99 * MS).await.unwrap_err();
    assert_eq!(late.retry_after(), Some(MS));
    let permits = limiter.acquire_within(100 * MS).await.unwrap();
    assert_eq!(permits.waited(), 100 * MS);
}

#[tokio::test(start_paused = true)]
async fn a_handle_controls_the_limiter() {
    let (limiter, foreign) = limiter();
    let permits = limiter.try_acquire().unwrap();
    assert_eq!(foreign.state().in_use, 1);
    drop(permits);
    assert_eq!(foreign.state().in_use, 0);
    assert_eq!(limiter.keep_at_most("tokens", 10), Ok(989));
    limiter.debit([("requests", 0), ("tokens", 5)]).unwrap();
    assert_eq!(available(&limiter), [1, 5]);

    let mut reservation = limiter.reserve([("requests", 1), ("tokens", 105)]).unwrap();
    assert_eq!(reservation.due_in(), 100 * MS);
    assert_eq!((&mut reservation).await.unwrap().waited(), 100 * MS);
    reservation.settle([("tokens", 0)]).unwrap();
    assert_eq!(available(&limiter), [1, 105]);

    limiter.pause_for(Duration::from_secs(1)).unwrap();
    assert!(matches!(limiter.try_acquire().unwrap_err().refusal(), Some(Refusal::Paused { .. })));
    assert!(limiter.resume());
    let wait = limiter.acquire();
    let close = async { limiter.close() };
    let (waited, closed) = tokio::join!(wait, close);
    assert_eq!((waited.unwrap_err().refusal(), closed), (Some(Refusal::Closed), Ok(true)));
    assert!(limiter.is_closed());
    assert_eq!(foreign.state().waiting, 0);
}

#[tokio::test(start_paused = true)]
async fn a_layer_reports_its_limits_and_waits_for_its_decisions() {
    let (limiter, _) = limiter();
    let inner = service_fn(|_: HttpRequest<()>| ready(Ok::<_, Infallible>(Response::new(String::new()))));
    let mut service = RateLimitLayer::new(limiter).layer(inner);
    let begin = Instant::now();
    let mut answers = Vec::new();
    for _ in 0..3 {
        let response = service.ready().await.unwrap().call(HttpRequest::default()).await.unwrap();
        answers.push((response.status(), response.headers()["ratelimit"].to_str().unwrap().to_owned()));
    }
    let (ok, refused) = (StatusCode::OK, StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(answers[0], (ok, r#""requests";r=1;t=1, "tokens";r=999;t=1"#.to_owned()));
    assert_eq!(answers[1].0, ok);
    assert_eq!(answers[2], (refused, r#""requests";r=0;t=1, "tokens";r=1000;t=0"#.to_owned()));
    // Each decision took a millisecond, and no thread was blocked.
    assert_eq!(begin.elapsed(), 3 * MS);
}

#[tokio::test(start_paused = true)]
async fn a_client_obeys_through_it() {
    let (limiter, _) = limiter();
    let api = Obey::new(limiter.clone());
    let mut call = api.try_acquire_many([("tokens", 100)]).unwrap();
    let mut headers = HeaderMap::new();
    headers.insert("x-ratelimit-remaining-tokens", HeaderValue::from_static("400"));
    call.obey(StatusCode::OK, &headers);
    assert_eq!(available(&limiter), [1, 400]);
    let mut call = api.acquire().await.unwrap();
    headers.insert("retry-after", HeaderValue::from_static("2"));
    call.obey(StatusCode::TOO_MANY_REQUESTS, &headers);
    assert!(limiter.status().paused_for >= Duration::from_secs(2));
    assert!(api.acquire().await.unwrap().waited() >= Duration::from_secs(2));
}

#[tokio::test(start_paused = true)]
async fn streams_and_readers_wait_for_it() {
    let begin = Instant::now();
    let (limiter, _) = limiter();
    let items: Vec<_> = stream::iter(0..4).rate_limited(limiter).collect().await;
    assert!(items.into_iter().all(|item| item.is_ok()));
    assert_eq!(begin.elapsed(), 200 * MS);

    let begin = Instant::now();
    let mut reader = Throttled::new(&[0; 5][..]).limit_reads(AnyLimiter::new(Foreign::new())).max_chunk(2);
    let mut bytes = Vec::new();
    reader.read_to_end(&mut bytes).await.unwrap();
    assert_eq!((bytes.len(), begin.elapsed()), (5, 300 * MS));
}

/// A limiter whose reservations are refused when they are polled, as those over a network are, and
/// whether one was settled.
#[derive(Clone, Debug, Default)]
struct RefusesLate(Arc<AtomicBool>);

impl Limit for RefusesLate {
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

impl Future for RefusesLate {
    type Output = Result<Grant, AllRefusal>;

    fn poll(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Self::Output> {
        Poll::Ready(Err(Refusal::Displaced.into()))
    }
}

impl Reserved for RefusesLate {
    fn due_in(&self) -> Duration {
        Duration::ZERO
    }

    fn settle(self: Box<Self>, _: &AllRequest<'_>) -> Result<(), AllRefusal> {
        self.0.store(true, Ordering::Relaxed);
        Ok(())
    }
}

/// Bug: in shadow mode, a reservation that was refused late was charged the actual cost.
#[tokio::test]
async fn a_request_without_permits_is_not_charged_in_shadow_mode() {
    let limiter = RefusesLate::default();
    let layer = RateLimitLayer::new(limiter.clone()).shadow().settle(|_| Some(5));
    let service = service_fn(async |request: HttpRequest<String>| {
        assert!(request.extensions().get::<Refused>().is_some());
        Ok::<_, Infallible>(Response::new(request.into_body()))
    });
    drop(layer.layer(service).oneshot(HttpRequest::default()).await.unwrap());
    assert!(!limiter.0.load(Ordering::Relaxed));
}
