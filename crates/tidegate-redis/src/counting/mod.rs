//! [`StoreCountingLimit`]: permits in use over all processes.

pub(crate) mod call;
mod line;
mod wait;

use std::fmt;
use std::pin::Pin;
use std::sync::atomic::AtomicU32;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use tidegate::{
    AcquireAny, AllPermits, AllRefusal, AllRequest, AllStatus, AnyLimiter, AnyReservation, Clock,
    DefaultClock, Events, FetchStatus, Grant, Left, Limiter, Nanos, Pause, Refusal, Request, Reserved,
    Status,
};
use tokio::sync::Notify;

use crate::block_on::Blocks;
use crate::counting::call::{CallReport, Operation};
use crate::counting::line::{Held, Line, Shared, left};
use crate::counting::wait::Wait;
use crate::error::{BuildError, with_left};
use crate::jitter;
use crate::key;
use crate::methods::methods;
use crate::observe::{Observers, Watch};
use crate::store::{Away, Store};

/// The name of a limiter without members, in reports and requests.
const NAME: &str = "limit";

/// The default time for which permits of a lost process stay in use.
pub(crate) const TIME_TO_LIVE: Duration = Duration::from_secs(10);

/// A process reports its permits at least three times in this time, and a call may take part of it.
pub(crate) const SHORTEST_TIME_TO_LIVE: Duration = Duration::from_secs(1);

/// A limit of permits in use at one time, over all processes that name the same store and tag:
/// connections, calls in flight, jobs. Permits go back when the [`AllPermits`] or the
/// [`AnyReservation`] is dropped.
///
/// It is built by [`Store::counting`], and is the equivalent of
/// [`CountingLimit`](tidegate::CountingLimit) over several processes. A process that holds permits
/// reports them to the store while it lives. If the process crashes, its permits go back after the
/// [time to live](CountingBuilder::time_to_live), by the store's clock.
/// `AnyLimiter::from(limit.clone())` is the handle that every adapter of `tidegate` takes.
///
/// # Cost
///
/// A process makes one call at a time. The call serves all requests that came during the previous
/// call, up to 64 that wait and 1,024 in total, and carries the permits that were given back. A
/// permit therefore costs at most one call to take and one call to give back. While permits are in
/// use, a process makes about four calls per time to live. The store keeps a few hundred bytes for
/// each process that holds permits or waits.
///
/// # Fairness
///
/// In one process, requests are served by [priority](Request::priority), then first come, first
/// served, and none is overtaken. Over all processes, a process that waits has a position in a
/// queue in the store, and permits that are given back are kept for the processes in their order. A
/// process announces up to 64 requests at once, and goes to the end of the queue for more. When
/// permits come back is not known, so nothing can be booked. A process asks again after an eighth
/// of the time that it has waited, between 2 ms times its position and 200 ms, and at once when it
/// gives permits back itself. If it does not ask for a second, it loses its position. At most 64
/// processes have a position; others ask for one.
///
/// # Cancel safety
///
/// Dropping a waiting future withdraws its request. If the request was already granted, its permits
/// are given back. The message that gives permits back is not waited for, and is repeated until the
/// store replies.
///
/// # Scope of each call
///
/// A [pause](AnyLimiter::pause) and its end apply to all processes. A [changed
/// limit](StoreCountingLimit::set_limit), [closing](AnyLimiter::close) and
/// [priorities](Request::priority) apply to this process. [A
/// table](crate::operating#scope-of-each-call) lists the calls of all limiters over a store.
///
/// # Blocking
///
/// As with [`StoreLimiter`](crate::StoreLimiter), a call that would block a store's thread is
/// refused at once as [`Refusal::Unavailable`]. A request that does not wait for permits is decided
/// within the [timeout](crate::StoreBuilder::timeout) of the store, even if it queues behind others
/// for that long: then it is decided as if the store were away.
///
/// # While the store is away
///
/// Permits that are out stay out. A process decides by its [`WhileAway`](crate::WhileAway); for its
/// share it counts all permits that it holds, by all limits that it built over this store for this
/// tag. A request that is larger than the share is refused as [`Refusal::Unavailable`]. In a pause
/// that this process knows of, it grants nothing. When the store is back, even without its state,
/// each process reports the permits that it holds. No permit is granted until fewer permits than the
/// limit are in use.
///
/// # Examples
///
/// ```no_run
/// use tidegate_redis::Store;
///
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// let store = Store::open("redis://127.0.0.1")?;
/// let in_flight = store.counting("tenant-7", 20).build()?;
/// let permit = in_flight.acquire().await?;
/// // ... the call ...
/// drop(permit);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct StoreCountingLimit {
    shared: Arc<Shared>,
    /// Whether calls of this handle may block their thread.
    blocks: Blocks,
}

/// The settings of a [`StoreCountingLimit`].
#[derive(Clone, Debug)]
#[must_use = "a limit does nothing until it is built"]
pub struct CountingBuilder {
    store: Store,
    tag: String,
    limit: u32,
    time_to_live: Duration,
}

impl Store {
    /// Returns the settings of a limit of permits in use at one time, for all processes with this
    /// tag. With a limit of 0 no permit is available until the limit is changed.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use tidegate::AnyLimiter;
    /// use tidegate_redis::Store;
    ///
    /// let store = Store::open("redis://127.0.0.1")?;
    /// let jobs = store.counting("jobs", 20).time_to_live(Duration::from_secs(5)).build()?;
    /// let limiter = AnyLimiter::from(jobs.clone());
    /// jobs.set_limit(30); // for this process
    /// assert_eq!(jobs.limit(), 30);
    /// # drop(limiter);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn counting(&self, tag: impl Into<String>, limit: u32) -> CountingBuilder {
        CountingBuilder { store: self.clone(), tag: tag.into(), limit, time_to_live: TIME_TO_LIVE }
    }
}

impl CountingBuilder {
    /// Sets the time without a call after which the permits of a process go back. The default is
    /// 10 s, the minimum 1 s. More than a year counts as a year. A process that is suspended for
    /// more than two thirds of this time may hold permits that were given to others. If the
    /// server's clock is set ahead by as much, all processes may do so for a third of this time.
    pub fn time_to_live(self, time_to_live: Duration) -> CountingBuilder {
        CountingBuilder { time_to_live, ..self }
    }

    /// Builds the limit, without a call to the store.
    ///
    /// # Errors
    ///
    /// A [`BuildError`] if the tag cannot be part of a key, or if the time to live is below 1 s.
    pub fn build(self) -> Result<StoreCountingLimit, BuildError> {
        let CountingBuilder { store, tag, limit, time_to_live } = self;
        if !key::is_tag(&tag) {
            return Err(BuildError::Name { name: tag });
        }
        if time_to_live < SHORTEST_TIME_TO_LIVE {
            let value = Some(format!("{time_to_live:?}"));
            return Err(BuildError::Field { field: "time_to_live", allowed: "at least 1s", value });
        }
        store.begin_counting();
        // A year is longer than any process needs, and keeps times below 2^53.
        let span = time_to_live.min(Duration::from_secs(365 * 86_400));
        let key = key::counting(store.prefix(), &tag);
        let shared = Shared {
            known_pause: store.known_pause(&[key.clone()].into()),
            in_process: store.held_by_key().of(&key),
            key,
            observers: Arc::new(Observers::new(store.events().cloned())),
            store,
            script: call::script(),
            process: jitter::own().to_be_bytes(),
            span,
            limit: AtomicU32::new(limit),
            line: Mutex::new(Line::default()),
            changed: Notify::new(),
            clock: DefaultClock::new(),
        };
        Ok(StoreCountingLimit { shared: Arc::new(shared), blocks: Blocks::Yes })
    }
}

impl StoreCountingLimit {
    /// Returns the limit that this process applies.
    #[must_use]
    pub fn limit(&self) -> u32 {
        self.shared.limit()
    }

    /// Changes the limit for this process, including requests that already wait, like
    /// [`CountingLimit::set_limit`](tidegate::CountingLimit::set_limit). Limits are not stored:
    /// each process decides by its own limit.
    pub fn set_limit(&self, limit: u32) {
        self.shared.set_limit(limit);
    }

    /// Sets the observer of this limit. The observer is notified of every call of this limit and
    /// its clones from now on, like [`StoreLimiter::observe`](crate::StoreLimiter::observe).
    /// Returns `false`, and changes nothing, if this limit already has its own observer.
    pub fn observe(&self, events: Arc<dyn Events>) -> bool {
        self.shared.observers.observe(events)
    }

    /// Returns the clock by which [`Pause::until`] has its time, like
    /// [`StoreLimiter::clock`](crate::StoreLimiter::clock).
    #[must_use]
    pub fn clock(&self) -> &DefaultClock {
        &self.shared.clock
    }

    /// Returns a snapshot of the limit, like [`AnyLimiter::status`], without blocking a thread.
    /// `available` is 0 while a process waits. The call changes nothing, and its future can be
    /// dropped at any time.
    ///
    /// # Errors
    ///
    /// [`Refusal::Unavailable`] if the store does not reply.
    pub async fn status(&self) -> Result<AllStatus, AllRefusal> {
        let pauses = self.shared.known_pause.messages();
        let report = self.ask(Operation::Status).await?;
        self.shared.known_pause.reported(pauses, report.paused_for);
        let left = left(self.limit(), if report.before > 0 { u64::MAX } else { report.in_use });
        Ok(self.status_of(left, report.paused_for))
    }

    /// Pauses the limit for all processes, like [`AnyLimiter::pause`], and waits until the store
    /// has the pause. Permits that are out stay out.
    ///
    /// # Cancel safety
    ///
    /// A dropped future may have paused the limit.
    ///
    /// # Errors
    ///
    /// [`Refusal::Unavailable`] if the store does not reply. The store may have paused the limit
    /// anyway, and this process applies the pause to what it decides while the store is away.
    pub async fn pause(&self, pause: Pause) -> Result<(), AllRefusal> {
        match self.begin_pause(pause) {
            Some(operation) => self.ask(operation).await.map(drop),
            None => Ok(()),
        }
    }

    /// Pauses the limit for all processes for at least `span`, like
    /// [`pause`](StoreCountingLimit::pause).
    ///
    /// # Errors
    ///
    /// Returns the errors of [`pause`](StoreCountingLimit::pause).
    pub async fn pause_for(&self, span: Duration) -> Result<(), AllRefusal> {
        self.pause(Pause::lasting(span)).await
    }

    /// Ends a pause for all processes, like [`AnyLimiter::resume`]. Returns whether there was a
    /// pause.
    ///
    /// # Cancel safety
    ///
    /// A dropped future may have ended the pause.
    ///
    /// # Errors
    ///
    /// [`Refusal::Unavailable`] if the store does not reply. It may have ended the pause.
    pub async fn resume(&self) -> Result<bool, AllRefusal> {
        let was_paused = self.ask(Operation::Resume).await?.granted == [true];
        if was_paused {
            self.shared.observers.report(|events| events.resumed());
        }
        Ok(was_paused)
    }

    /// Returns nothing if the pause is over.
    fn begin_pause(&self, pause: Pause) -> Option<Operation> {
        let now = self.clock().now();
        let span = pause.end(now).saturating_since(now).as_duration();
        if span.is_zero() {
            return None;
        }
        if span > self.shared.known_pause.rest() {
            self.shared.observers.paused(span);
        }
        Some(Operation::Pause(span))
    }

    async fn ask(&self, operation: Operation) -> Result<CallReport, AllRefusal> {
        self.shared.ask(operation).await.map_err(|away| away.refusal().into())
    }

    fn status_of(&self, left: Left, paused_for: Duration) -> AllStatus {
        let waiting = self.shared.waiting();
        // In a pause nothing is available. The permits that are free now are available at its end.
        let left = match paused_for {
            Duration::ZERO => left,
            rest => {
                let full_in = left.full_in.max(rest);
                Left::new(left.limit, 0).next_in(left.next_in.max(rest)).full_in(full_in)
            }
        };
        let status = Status::from(left).waiting(waiting).paused_for(paused_for);
        AllStatus::new([(NAME, status)]).waiting(waiting).paused_for(paused_for)
    }

    fn watch(&self, request: &Request) -> Option<Watch> {
        let permits = u64::from(request.permits);
        Watch::new(&self.shared.observers, &[(permits, permits)])
    }

    fn begin_wait(&self, request: &AllRequest<'_>, waits_for_permits: bool) -> AcquireAny {
        match single_request(request) {
            Ok(request) => AcquireAny::new(self.clone().wait(request, waits_for_permits)),
            Err(refusal) => AcquireAny::ready(Err(refusal)),
        }
    }

    /// Waits for permits, or asks for them once.
    async fn wait(self, request: Request, waits_for_permits: bool) -> Result<AllPermits, AllRefusal> {
        let watch = self.watch(&request);
        if request.exempt {
            watch.into_iter().for_each(Watch::exempted);
            return Ok(Grant::new(0, Nanos::ZERO).into());
        }
        let answer = self.decided(&request, waits_for_permits).await;
        let left = answer.as_ref().ok().and_then(|(permits, left)| (!permits.is_degraded()).then_some(*left));
        // This process may refuse the request, or the store may refuse it for a reason other than
        // permits in use.
        let answer = answer.map(|(permits, _)| permits);
        let answer = with_left(answer, request.wants_left, self.status()).await;
        if let Some(watch) = watch {
            watch.answered_with(answer.as_ref(), left.map(|left| (NAME, left)));
        }
        answer
    }

    async fn decided(
        &self,
        request: &Request,
        waits_for_permits: bool,
    ) -> Result<(AllPermits, Left), AllRefusal> {
        let joined = Wait::join(&self.shared, request, waits_for_permits);
        let mut wait = joined.map_err(|refusal| self.refused(request, refusal.into()))?;
        let answer = (&mut wait).await;
        let (held, left) = answer.map_err(|refusal| self.refused(request, refusal))?;
        let is_degraded = held.is_degraded;
        let mut permits = AllPermits::with_guard(Grant::new(request.permits, wait.waited), held);
        if request.wants_left {
            permits = permits.with_left(self.status_of(left, Duration::ZERO));
        }
        if is_degraded {
            permits = permits.as_degraded();
        }
        Ok((permits, left))
    }

    /// Returns the answer, or the refusal of a request for which this thread would have to wait. A
    /// store's thread cannot wait for a store.
    fn waited(
        &self,
        request: &AllRequest<'_>,
        answer: Option<Result<AllPermits, AllRefusal>>,
    ) -> Result<AllPermits, AllRefusal> {
        answer.unwrap_or_else(|| {
            let refusal = Err(Away::WOULD_BLOCK.refusal().into());
            if let Some(watch) = self.watch(&single_request(request)?) {
                watch.answered(refusal.as_ref());
            }
            refusal
        })
    }

    fn refused(&self, request: &Request, refusal: AllRefusal) -> AllRefusal {
        match (request.wants_left, refusal.refusal()) {
            (true, Some(Refusal::InUse { limit })) => {
                // The report may be newer than the refusal.
                let free = self.shared.free().min(u64::from(request.permits).saturating_sub(1));
                refusal.with_left(self.status_of(Left::new(limit.into(), free), Duration::ZERO))
            }
            (true, Some(Refusal::Paused { .. })) => {
                let left = Left::new(self.limit().into(), self.shared.free());
                refusal.with_left(self.status_of(left, self.shared.known_pause.rest()))
            }
            _ => refusal,
        }
    }
}

/// Converts a request for a limiter without members. Permits come back together, so a request for
/// up to a number gets the fewest that it accepts.
fn single_request(request: &AllRequest<'_>) -> Result<Request, AllRefusal> {
    let asked = request.to_request();
    let named = request.costs().try_fold(asked.permits, |_, (name, n)| check_name(name).map(|()| n));
    named.map(|permits| asked.at_least(permits))
}

fn check_name(name: &str) -> Result<(), AllRefusal> {
    if name == NAME {
        return Ok(());
    }
    Err(AllRefusal::NoMember { name: name.into(), members: Box::new([NAME.into()]) })
}

methods!(StoreCountingLimit);

impl Limiter for StoreCountingLimit {
    fn try_acquire(&self, request: &AllRequest<'_>) -> Result<AllPermits, AllRefusal> {
        let answer = Limiter::acquire_now(self, request);
        self.waited(request, self.shared.store.block_on(self.blocks, answer))
    }

    fn acquire_now(&self, request: &AllRequest<'_>) -> AcquireAny {
        self.begin_wait(request, false)
    }

    fn acquire(&self, request: &AllRequest<'_>) -> AcquireAny {
        self.begin_wait(request, true)
    }

    fn blocking_acquire(&self, request: &AllRequest<'_>) -> Result<AllPermits, AllRefusal> {
        let wait = Limiter::acquire(self, request);
        self.waited(request, self.shared.store.block_on_permits(self.blocks, wait))
    }

    /// Takes a position in the queue of this process. It holds its permits from its grant until it
    /// is dropped or settled. A request that is refused at once asks the store for the state that
    /// the refusal reports, unless its handle is a [`non_blocking`](Limiter::non_blocking) one.
    fn reserve(&self, request: &AllRequest<'_>) -> Result<AnyReservation, AllRefusal> {
        let request = single_request(request)?;
        let mut watch = self.watch(&request);
        let wait = if request.exempt {
            watch.take().into_iter().for_each(Watch::exempted);
            None
        } else {
            let refused = |refusal: Refusal| {
                let mut refusal = AllRefusal::from(refusal);
                if request.wants_left
                    && let Some(Ok(state)) =
                        self.shared.store.block_on(self.blocks, StoreCountingLimit::status(self))
                {
                    refusal = refusal.with_left(state);
                }
                watch.take().into_iter().for_each(|watch| watch.answered(Err(&refusal)));
                refusal
            };
            Some(Wait::join(&self.shared, &request, true).map_err(refused)?)
        };
        Ok(AnyReservation::new(InUseReservation { of: self.clone(), request, wait, watch, claimed: None }))
    }

    /// While the store does not reply, nothing is available.
    fn status(&self) -> AllStatus {
        let nothing = Left::new(self.limit().into(), 0);
        let state = self.shared.store.block_on(self.blocks, StoreCountingLimit::status(self));
        state.and_then(Result::ok).unwrap_or_else(|| self.status_of(nothing, Duration::ZERO))
    }

    fn fetch_status(&self) -> FetchStatus {
        let this = self.clone();
        Box::pin(async move { StoreCountingLimit::status(&this).await })
    }

    /// Applies to all processes. The message is not waited for. Permits that are out stay out.
    fn pause(&self, pause: Pause) -> Result<(), AllRefusal> {
        self.begin_pause(pause).into_iter().for_each(|operation| self.shared.send_detached(operation));
        Ok(())
    }

    fn resume(&self) -> bool {
        let Some(was_paused) = self.shared.store.block_on(self.blocks, StoreCountingLimit::resume(self))
        else {
            self.shared.send_detached(Operation::Resume);
            return false;
        };
        was_paused.unwrap_or(false)
    }

    /// Charges nothing: no call would give the permits back.
    fn debit(&self, costs: &AllRequest<'_>) -> Result<(), AllRefusal> {
        costs.costs().try_for_each(|(name, _)| check_name(name))
    }

    /// Gives nothing back: permits go back when they are dropped.
    fn refund(&self, costs: &AllRequest<'_>) -> Result<(), AllRefusal> {
        costs.costs().try_for_each(|(name, _)| check_name(name))
    }

    /// Takes nothing: no call would give the permits back.
    fn keep_at_most(&self, name: &str, _: u64) -> Result<u64, AllRefusal> {
        check_name(name).map(|()| 0)
    }

    /// Applies to this process.
    fn close(&self) -> Result<bool, AllRefusal> {
        Ok(self.shared.close())
    }

    fn is_closed(&self) -> bool {
        self.shared.is_closed()
    }

    fn non_blocking(&self) -> Option<AnyLimiter> {
        let non_blocking =
            || AnyLimiter::new(StoreCountingLimit { shared: self.shared.clone(), blocks: Blocks::No });
        (self.blocks == Blocks::Yes).then(non_blocking)
    }
}

impl fmt::Debug for StoreCountingLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StoreCountingLimit")
            .field("store", &self.shared.store)
            .field("limit", &self.limit())
            .finish_non_exhaustive()
    }
}

/// A position in the queue, and later its permits.
struct InUseReservation {
    of: StoreCountingLimit,
    request: Request,
    /// `None` if the request passes without permits.
    wait: Option<Wait>,
    /// Until the reservation is claimed.
    watch: Option<Watch>,
    /// Once the reservation is claimed.
    claimed: Option<Result<Claimed, AllRefusal>>,
}

/// A grant, and its permits unless it passes without any.
type Claimed = (Grant, Option<(Held, Left)>);

impl InUseReservation {
    /// Notifies the observers of the decision.
    fn report(&mut self) {
        let (Some(watch), Some(answer)) = (self.watch.take(), &self.claimed) else { return };
        match answer {
            Ok((grant, held)) => {
                let permits = AllPermits::from(*grant);
                match held {
                    Some((held, _)) if held.is_degraded => watch.answered(Ok(&permits.as_degraded())),
                    held => watch.answered_with(Ok(&permits), held.as_ref().map(|(_, left)| (NAME, *left))),
                }
            }
            Err(refusal) => watch.answered(Err(refusal)),
        }
    }
}

impl Future for InUseReservation {
    type Output = Result<Grant, AllRefusal>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        if this.claimed.is_none() {
            this.claimed = Some(match &mut this.wait {
                None => Ok((Grant::new(0, Nanos::ZERO), None)),
                Some(wait) => match Pin::new(&mut *wait).poll(context) {
                    Poll::Pending => return Poll::Pending,
                    Poll::Ready(Ok(held)) => Ok((Grant::new(this.request.permits, wait.waited), Some(held))),
                    Poll::Ready(Err(refusal)) => Err(this.of.refused(&this.request, refusal)),
                },
            });
            this.report();
        }
        Poll::Ready(match &this.claimed {
            Some(Ok((grant, _))) => Ok(*grant),
            Some(Err(refusal)) => Err(refusal.clone()),
            None => return Poll::Pending,
        })
    }
}

impl Reserved for InUseReservation {
    /// When permits come back is not known.
    fn due_in(&self) -> Duration {
        Duration::ZERO
    }

    fn blocking_claim(&mut self) -> Result<Grant, AllRefusal> {
        let StoreCountingLimit { shared, blocks } = self.of.clone();
        let claimed = shared.store.block_on_permits(blocks, self);
        claimed.unwrap_or_else(|| Err(Away::WOULD_BLOCK.refusal().into()))
    }

    fn is_degraded(&self) -> bool {
        match &self.claimed {
            Some(Ok((_, held))) => held.as_ref().is_some_and(|(held, _)| held.is_degraded),
            Some(Err(refusal)) => refusal.is_degraded(),
            None => false,
        }
    }

    fn left(&self) -> Option<AllStatus> {
        match &self.claimed {
            Some(Ok((_, Some((_, left))))) if self.request.wants_left => {
                Some(self.of.status_of(*left, Duration::ZERO))
            }
            _ => None,
        }
    }

    /// Gives all permits of the reservation back. If the reservation was granted, and its permits
    /// were used, it is settled like a claimed one.
    fn settle(mut self: Box<Self>, used: &AllRequest<'_>) -> Result<(), AllRefusal> {
        let is_used = single_request(used)?.permits > 0;
        if is_used
            && self.claimed.is_none()
            && let Some(wait) = &mut self.wait
            && let Some(held) = wait.take_granted()
        {
            let grant = Grant::new(self.request.permits, wait.waited);
            self.claimed = Some(Ok((grant, Some(held))));
            self.report();
        }
        Ok(())
    }
}
