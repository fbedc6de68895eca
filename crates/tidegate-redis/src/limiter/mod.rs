//! [`StoreLimiter`]: limits in a store, as a limiter of the core.

mod builder;
mod keyed;
mod request;
mod reserved;
mod tags;
mod wait;

use std::fmt;
use std::future::poll_fn;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use tidegate::{
    AcquireAny, AllPermits, AllRefusal, AllRequest, AllStatus, AnyLimiter, AnyReservation, DefaultClock,
    Events, FetchStatus, Limiter, Pause, QueueBounds, Status,
};

pub use builder::LimiterBuilder;
pub use keyed::{KeyedBuilder, StoreKeyedLimiter};

use crate::block_on::Blocks;
use crate::line::Line;
use crate::methods::methods;
use crate::observe::Watch;
use crate::script::{NO_GRANT, Operation, Reply};
use crate::set::{Cost, Costs};
use crate::store::Away;
use request::OwnedRequest;
use reserved::StoreReservation;

/// One or more limits in a store. Processes share them if they name the same store, tag and limits.
///
/// [`Store::limiter`](crate::Store::limiter) builds it. One round trip decides a request for all
/// limits together, all or nothing. Requests that come during a round trip share the next one.
/// `AnyLimiter::from(limiter.clone())` is the handle that every adapter of `tidegate` takes.
///
/// # Fairness
///
/// The store books a waiting request when it receives the request, and the request sleeps until its
/// booking is due. So requests are granted first come, first served over all processes. A request
/// that does not wait overtakes neither a booking nor a request of this limiter that came before
/// it.
///
/// [Priorities](tidegate::Request::priority) order the requests of this limiter and its clones. A
/// request of higher priority is sent first, and takes the booking of the first waiting request of
/// lower priority that costs as much. If this delays a request beyond its maximum wait, the request
/// is refused at the end of that wait. No priority goes before the requests of other processes.
///
/// # Cancel safety
///
/// A request that is dropped before it was sent leaves no trace. A request that is dropped later
/// passes its booking to the next waiting request of this limiter with equal costs, and each such
/// request behind that moves up by one booking. The last booking is then unused, and goes back to
/// the store, once, with the next call of this limiter. That call leaves at once if none is in
/// flight. The store undoes a booking that came back once all later bookings have come back as
/// well, in any order. Until then other requests may take its permits, and those that are unused
/// at its due time are refunded, as far as there is room. The store remembers at most 1,024
/// separate groups of such bookings of a limit; the permits of the oldest groups count as used.
///
/// A future that is never polled again is granted when its booking is due. It delays no other
/// request beyond the time that the store booked for that request.
///
/// # Scope of each call
///
/// [`pause`](AnyLimiter::pause), [`resume`](AnyLimiter::resume), [`debit`](AnyLimiter::debit),
/// [`refund`](AnyLimiter::refund), [`keep_at_most`](AnyLimiter::keep_at_most) and
/// [`reset`](StoreLimiter::reset) change the limits of all processes. To stop one process only,
/// stop its tasks. Closing, shadow mode and the bounds of the queue apply to this limiter and its
/// clones. [A table](crate::operating#scope-of-each-call) lists the calls of all limiters over a
/// store.
///
/// # While the store is away
///
/// [`WhileAway`](crate::WhileAway) decides a request that the store did not decide, and the result
/// [is degraded](tidegate::AllRefusal::is_degraded). The `retry_after` of
/// [`Refusal::Unavailable`](tidegate::Refusal::Unavailable) says when the store is asked again. It
/// is absent if the store cannot be used as it is; [`Store::trouble`](crate::Store::trouble) then
/// returns the reason. A request that is larger than the share of its process is refused as
/// unavailable until the store is back.
///
/// # Requests for up to n permits
///
/// A request for [`up_to`](tidegate::Request::up_to) a number of permits takes the permits that are
/// available. At a limit in full use these are few, and each request is a call. So a job that takes
/// permits by the hundred asks for a hundred, or for [`at_least`](tidegate::Request::at_least) a
/// hundred.
///
/// # Blocking
///
/// The futures of this type and its [`reserve`](StoreLimiter::reserve) never block a thread. A
/// request that waits in a tokio runtime uses its timer, and panics if its time driver is disabled,
/// like [`RateLimiter::acquire`](tidegate::RateLimiter::acquire). The call
/// [`try_acquire`](StoreLimiter::try_acquire) blocks the thread for the round trip, at most for the
/// [timeout](crate::StoreBuilder::timeout) of the store. So do these calls of the handle
/// [`AnyLimiter`], which `AnyLimiter::from(limiter.clone())` makes:
/// [`reserve`](AnyLimiter::reserve), [`status`](AnyLimiter::status),
/// [`keep_at_most`](AnyLimiter::keep_at_most) and [`resume`](AnyLimiter::resume).
/// [`blocking_acquire`](StoreLimiter::blocking_acquire) blocks the thread until the permits are
/// due. All of these calls work on the threads of a tokio runtime, even on its only thread, whose
/// other tasks wait meanwhile. The [non-blocking handle](AnyLimiter::non_blocking), which adapters
/// use, blocks no thread.
///
/// [`pause`](AnyLimiter::pause), [`debit`](AnyLimiter::debit) and [`refund`](AnyLimiter::refund) do
/// not wait for a reply: they send a message, which is lost if the process ends at once, or if the
/// store is away. The methods [`pause`](StoreLimiter::pause), [`debit`](StoreLimiter::debit) and
/// [`refund`](StoreLimiter::refund) of this type wait for the reply, as does
/// [`Store::flush`](crate::Store::flush), and return an error if there is none.
///
/// A [`CancelToken`](tidegate::CancelToken) of the thread ends a `blocking_acquire`. It does not
/// end the round trip of any other call.
///
/// Observers of a store and wakers run on the store's thread, which cannot wait for itself. Neither
/// can a thread of the [runtime](crate::StoreBuilder::on_this_runtime) that makes the store's
/// calls. On such a thread, a call that would block sends nothing, and is refused at once with
/// [`Refusal::Unavailable`](tidegate::Refusal::Unavailable). There, `status` reports that nothing
/// is available, and `resume` does not wait for its message, and returns `false`. Spawn a task that
/// awaits the permits instead.
#[derive(Clone)]
pub struct StoreLimiter {
    line: Arc<Line>,
    /// Whether calls of this handle may block their thread.
    blocks: Blocks,
}

impl StoreLimiter {
    fn new(line: Arc<Line>) -> StoreLimiter {
        StoreLimiter { line, blocks: Blocks::Yes }
    }

    /// Waits for a future on this thread. Returns `None` if this thread must not wait.
    fn block_on<T>(&self, future: impl Future<Output = T>) -> Option<T> {
        self.line.set.store.block_on(self.blocks, future)
    }

    /// Sets whether requests that would be refused pass without permits, for trying out a limit. It
    /// applies to this process, and to requests that come later. While the store is away, each
    /// request passes, as with [`WhileAway::Open`](crate::WhileAway::Open).
    ///
    /// # Examples
    ///
    /// ```
    /// use tidegate_redis::Store;
    ///
    /// let store = Store::open("redis://127.0.0.1")?;
    /// let limiter = store.limiter("all").limit("calls", "token_bucket 100/s burst 20").build()?;
    /// limiter.set_shadow(true); // an observer is notified of would-be refusals
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn set_shadow(&self, shadow: bool) {
        self.line.set.shadow.store(shadow, Ordering::Relaxed);
    }

    /// Returns whether the limiter is in [shadow mode](StoreLimiter::set_shadow).
    #[must_use]
    pub fn is_shadow(&self) -> bool {
        self.line.set.shadow.load(Ordering::Relaxed)
    }

    /// Bounds the requests that wait from now on, like [`LimiterBuilder::queue_bounds`]. Requests
    /// that wait already stay.
    pub fn set_queue_bounds(&self, bounds: QueueBounds) {
        self.line.set_bounds(bounds);
    }

    /// Sets the observer of this limiter. It is notified of every call of this limiter and its
    /// clones from now on. Returns `false`, and changes nothing, if this limiter has its own
    /// observer already.
    ///
    /// The observer of the [store](crate::StoreBuilder::observed_by) is notified as well, so an
    /// observer that is given to both is notified of each call twice. No observer receives the tag:
    /// give the store an observer of its calls, and each limiter an observer with its own label.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::sync::Arc;
    /// use tidegate::Statistics;
    /// use tidegate_redis::Store;
    ///
    /// let store = Store::open("redis://127.0.0.1")?;
    /// let policy = "token_bucket 100/s burst 20";
    /// let limiter = store.limiter("all").limit("calls", policy).build()?;
    /// assert!(limiter.observe(Arc::new(Statistics::new())));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn observe(&self, events: Arc<dyn Events>) -> bool {
        self.line.set.observers.observe(events)
    }

    /// Returns the clock by which [`Pause::until`] has its time. It begins when the limiter is
    /// built. The store decides by its own clock.
    #[must_use]
    pub fn clock(&self) -> &DefaultClock {
        &self.line.set.clock
    }

    /// Resets every limit to its initial state, for all processes: permits taken before no longer
    /// count.
    ///
    /// Requests that wait keep their times, and their bookings no longer count either. So until the
    /// last of them is due, up to twice the limit may be granted. A reservation from before the
    /// reset gives nothing back when it is settled. Until the last of them is due, neither does a
    /// later one, nor a dropped wait of a `sliding_log`.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the store may still reset the limits.
    ///
    /// # Errors
    ///
    /// Returns [`Refusal::Unavailable`](tidegate::Refusal::Unavailable) if the store did not reply.
    /// The store may still have reset the limits.
    pub async fn reset(&self) -> Result<(), AllRefusal> {
        if let Some(leases) = &self.line.leases {
            leases.discard(None);
        }
        let answer = self.ask(Operation::Reset, &[]).await;
        // Also if the store did not reply: permits may have been booked before it reset the limits.
        self.resume_leases();
        answer.map(|_| self.line.resumed())
    }

    /// Returns a snapshot of the limits, like [`AnyLimiter::status`], without blocking a thread. It
    /// changes nothing, and can be dropped at any time.
    ///
    /// # Errors
    ///
    /// Returns [`Refusal::Unavailable`](tidegate::Refusal::Unavailable) if the store did not reply.
    pub async fn status(&self) -> Result<AllStatus, AllRefusal> {
        let reply = self.ask(Operation::Status, &[]).await?;
        Ok(self.line.status_of(&reply, Duration::ZERO))
    }

    /// Pauses the limits for all processes, like [`AnyLimiter::pause`], and waits until the store
    /// has recorded the pause.
    ///
    /// A pause concerns the limits with the tag and the names of this limiter, with policies of the
    /// same kinds, and with windows of the same length; rates and bursts may differ. A limit of
    /// another kind or length is another limit: the call succeeds, but does not pause the limit
    /// that the processes use. A bucket refills at the rate of this call up to the pause, as in
    /// each [call of a process with another rate](crate::operating#scope-of-each-call).
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the store may still pause the limits.
    ///
    /// # Errors
    ///
    /// Returns [`Refusal::Unavailable`](tidegate::Refusal::Unavailable) if the store did not reply.
    /// The store may still have paused the limits, and this process pauses the requests that it
    /// decides while the store is away.
    ///
    /// # Examples
    ///
    /// An operator's tool, which knows that the store books no request for a time within the pause
    /// from now on. Requests that wait are granted at their booked times, as
    /// [`one_process`](crate::one_process) tells:
    ///
    /// ```no_run
    /// use std::time::Duration;
    /// use tidegate::Pause;
    /// use tidegate_redis::Store;
    ///
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// let store = Store::open("redis://127.0.0.1")?;
    /// let policy = "token_bucket 100/s burst 20";
    /// let limiter = store.limiter("checkout").limit("calls", policy).build()?;
    /// limiter.pause(Pause::lasting(Duration::from_secs(60))).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn pause(&self, pause: Pause) -> Result<(), AllRefusal> {
        match self.begin_pause(pause) {
            Some(operation) => {
                let answer = self.ask(operation, &[]).await;
                self.end_leases();
                answer.map(drop)
            }
            None => Ok(()),
        }
    }

    /// Pauses all limits for all processes for at least `span`, like
    /// [`pause`](StoreLimiter::pause).
    ///
    /// # Errors
    ///
    /// Returns the errors of [`pause`](StoreLimiter::pause).
    pub async fn pause_for(&self, span: Duration) -> Result<(), AllRefusal> {
        self.pause(Pause::lasting(span)).await
    }

    /// Ends a pause for all processes, like [`AnyLimiter::resume`]. Returns whether there was a
    /// pause.
    ///
    /// Requests of this process that wait behind the pause ask the store at once, and those of
    /// other processes within a second.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the store may still end the pause.
    ///
    /// # Errors
    ///
    /// Returns [`Refusal::Unavailable`](tidegate::Refusal::Unavailable) if the store did not reply.
    /// The store may still have ended the pause. It is over for the requests that this process
    /// decides while the store is away.
    pub async fn resume(&self) -> Result<bool, AllRefusal> {
        let reply = self.ask(Operation::Resume, &[]).await;
        // If the store did not reply, the pause is over for what this process decides without it.
        if reply.is_err() {
            self.line.leases.iter().for_each(|leases| leases.forget_pause());
        }
        self.line.resumed();
        let was_paused = reply?.was_paused();
        if was_paused {
            self.resume_leases();
            self.line.set.observers.report(|events| events.resumed());
        }
        Ok(was_paused)
    }

    /// Takes permits from all processes, like [`AnyLimiter::debit`], and waits until the store has
    /// taken them.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the store may still take the permits.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`AnyLimiter::debit`], and
    /// [`Refusal::Unavailable`](tidegate::Refusal::Unavailable) if the store did not reply. The
    /// store may still have taken the permits.
    pub async fn debit<'a>(&self, costs: impl Into<AllRequest<'a>>) -> Result<(), AllRefusal> {
        let costs = self.debited(&costs.into())?;
        self.ask(Operation::Debit, &costs).await.map(drop)
    }

    /// Gives permits back to all processes, like [`AnyLimiter::refund`], and waits until the store
    /// has them. Do not give back permits that [are degraded](tidegate::AllPermits::is_degraded):
    /// the store did not grant them.
    ///
    /// While requests wait, not all of the permits may come back, because the store does not know
    /// which grant they are of: see [`limitations`](crate::limitations). The reservation of a
    /// request can be [settled](tidegate::AnyReservation::settle) instead, which gives back just
    /// what this grant took.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the store may still get the permits.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`AnyLimiter::refund`], and
    /// [`Refusal::Unavailable`](tidegate::Refusal::Unavailable) if the store did not reply. The
    /// store may still have got the permits.
    pub async fn refund<'a>(&self, costs: impl Into<AllRequest<'a>>) -> Result<(), AllRefusal> {
        let costs = self.debited(&costs.into())?;
        self.ask(Operation::Refund { due: NO_GRANT }, &costs).await?;
        self.line.move_up(&costs);
        Ok(())
    }

    /// Takes permits of a limit from all processes, like [`AnyLimiter::keep_at_most`]. Returns how
    /// many permits it took.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the store may still take the permits.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`AnyLimiter::keep_at_most`], and
    /// [`Refusal::Unavailable`](tidegate::Refusal::Unavailable) if the store did not reply. The
    /// store may still have taken the permits.
    pub async fn keep_at_most(&self, name: &str, permits: u64) -> Result<u64, AllRefusal> {
        let (member, costs) = self.kept(name, permits)?;
        let lost = self.discard_beyond(member, permits);
        let reply = self.ask(Operation::Keep, &costs).await?;
        // Permits may have been booked before the message left.
        let taken = reply.limits.get(member).map_or(0, |report| report.other);
        Ok(taken + lost + self.discard_beyond(member, permits))
    }

    /// Pauses this process. Returns the operation that pauses the store; nothing if the pause is
    /// over.
    fn begin_pause(&self, pause: Pause) -> Option<Operation> {
        let now = self.line.set.now();
        let span = pause.end(now).saturating_since(now).as_duration();
        if span.is_zero() {
            return None;
        }
        self.end_leases();
        self.line.prolong_pause(span);
        let set = &self.line.set;
        if span > set.known_pause.rest() {
            set.observers.paused(span);
        }
        Some(Operation::Pause { span, keep_permits: pause.keeps_permits() })
    }

    /// Ends the leases for a pause: before the message to the store, and once more after it,
    /// because permits may have been booked before it left.
    fn end_leases(&self) {
        self.line.leases.iter().for_each(|leases| leases.end());
    }

    fn resume_leases(&self) {
        self.line.leases.iter().for_each(|leases| leases.resume());
    }

    fn debited(&self, costs: &AllRequest<'_>) -> Result<Costs, AllRefusal> {
        let others = u64::from(costs.others().unwrap_or(1));
        self.line.set.costs(costs, (others, others))
    }

    /// Returns the member of this name, and the most permits that each member keeps.
    fn kept(&self, name: &str, permits: u64) -> Result<(usize, Costs), AllRefusal> {
        let member = self.line.set.find(name)?;
        // The other members keep any number of permits. A script counts below 2^53.
        let any = 1 << 52;
        let mut costs = vec![(any, any); self.line.set.members.len()];
        costs[member] = (permits.min(any), permits.min(any));
        Ok((member, costs))
    }

    /// Drops the permits of a member that this process has on lease, unless `permits` are as many
    /// as there may be. Returns how many it dropped.
    fn discard_beyond(&self, member: usize, permits: u64) -> u64 {
        let now = self.line.set.now();
        let leases = self.line.leases.as_ref().filter(|leases| permits < leases.ledger.most(member, now));
        leases.map_or(0, |leases| leases.discard(Some(member)))
    }

    async fn ask(&self, operation: Operation, costs: &[Cost]) -> Result<Reply, AllRefusal> {
        self.line.set.ask(operation, costs).await.map_err(|away| away.refusal().into())
    }

    /// Returns the decision of the leases, if they can decide.
    fn by_lease(&self, request: &AllRequest<'_>) -> Option<Result<AllPermits, AllRefusal>> {
        let answer = self.line.leases_for(request)?.try_acquire(request)?;
        self.report_answer(request, &answer);
        Some(answer)
    }

    /// Returns the decision of the store, without a wait for permits.
    fn by_store(&self, request: &AllRequest<'_>) -> AcquireAny {
        let ask = match OwnedRequest::new(&self.line.set, request) {
            Ok(ask) => ask,
            Err(refusal) => return AcquireAny::ready(Err(refusal)),
        };
        let this = self.clone();
        AcquireAny::new(async move {
            let watch = Watch::new(&this.line.set.observers, &ask.costs);
            let came = this.line.set.now();
            this.decided(ask, Duration::ZERO, came, None, watch).await
        })
    }

    /// Returns the result of a request for which this thread waited, or a refusal if it must not
    /// wait.
    fn waited(
        &self,
        request: &AllRequest<'_>,
        answer: Option<Result<AllPermits, AllRefusal>>,
    ) -> Result<AllPermits, AllRefusal> {
        answer.unwrap_or_else(|| {
            let answer = Err(Away::WOULD_BLOCK.refusal().into());
            self.report_answer(request, &answer);
            answer
        })
    }

    fn report_answer(&self, request: &AllRequest<'_>, answer: &Result<AllPermits, AllRefusal>) {
        if !self.line.set.observers.is_empty()
            && let Ok(ask) = OwnedRequest::new(&self.line.set, request)
            && let Some(watch) = Watch::new(&self.line.set.observers, &ask.costs)
        {
            watch.answered(answer.as_ref());
        }
    }
}

/// Omits the tag, which may have the key of a user.
impl fmt::Debug for StoreLimiter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StoreLimiter")
            .field("store", &self.line.set.store)
            .field("limits", &self.line.set.members)
            .finish_non_exhaustive()
    }
}

methods!(StoreLimiter);

impl Limiter for StoreLimiter {
    fn try_acquire(&self, request: &AllRequest<'_>) -> Result<AllPermits, AllRefusal> {
        match self.by_lease(request) {
            Some(answer) => answer,
            None => self.waited(request, self.block_on(self.by_store(request))),
        }
    }

    fn acquire_now(&self, request: &AllRequest<'_>) -> AcquireAny {
        match self.by_lease(request) {
            Some(answer) => AcquireAny::ready(answer),
            None => self.by_store(request),
        }
    }

    fn acquire(&self, request: &AllRequest<'_>) -> AcquireAny {
        let ask = match OwnedRequest::new(&self.line.set, request) {
            Ok(ask) => ask,
            Err(refusal) => return AcquireAny::ready(Err(refusal)),
        };
        let this = self.clone();
        let line = self.line.leases_for(request).and_then(|leases| leases.acquire(request));
        AcquireAny::new(async move {
            let watch = Watch::new(&this.line.set.observers, &ask.costs);
            let (came, mut number) = (this.line.set.now(), None);
            if let (Some(leases), Some(line)) = (&this.line.leases, line) {
                let (are_held, arrive) = (|| this.line.is_held(), || number = Some(this.line.arrive()));
                let answer = leases.wait(line, &ask.costs, ask.all_else.within, are_held, arrive);
                if let Some(answer) = answer.await {
                    if let Some(watch) = watch {
                        watch.answered(answer.as_ref());
                    }
                    return answer;
                }
            }
            let longest = ask.all_else.within.unwrap_or(Duration::MAX);
            this.decided(ask, longest, came, number, watch).await
        })
    }

    fn blocking_acquire(&self, request: &AllRequest<'_>) -> Result<AllPermits, AllRefusal> {
        let wait = Limiter::acquire(self, request);
        self.waited(request, self.line.set.store.block_on_permits(self.blocks, wait))
    }

    /// The reservation is a booking at the store. If it is dropped, the booking is given back, as
    /// far as [`StoreLimiter`] says. While the store is away, the reservation is made in the share
    /// of this process, or is refused. A reservation that is settled before the store decided takes
    /// nothing, and the permits named by that call are charged.
    fn reserve(&self, request: &AllRequest<'_>) -> Result<AnyReservation, AllRefusal> {
        let mut reserved = StoreReservation::new(self, OwnedRequest::new(&self.line.set, request)?);
        if let Some(refusal) = reserved.refused_at_once(self.blocks) {
            return Err(refusal);
        }
        if self.blocks == Blocks::Yes && !reserved.is_decided() {
            match self.block_on(poll_fn(|context| reserved.poll_decided(context))) {
                Some(decided) => decided?,
                None => return Err(reserved.give_up(Away::WOULD_BLOCK.refusal().into())),
            }
        }
        Ok(AnyReservation::new(reserved))
    }

    /// If the store does not reply, nothing is available.
    fn status(&self) -> AllStatus {
        self.block_on(StoreLimiter::status(self)).and_then(Result::ok).unwrap_or_else(|| {
            let members = self.line.set.members.iter().map(|member| {
                let nothing = tidegate::Left::new(member.terms.limit, 0);
                (member.name.as_str(), Status::from(nothing).rate(member.terms.rate))
            });
            AllStatus::new(members).waiting(self.line.waiting())
        })
    }

    fn fetch_status(&self) -> FetchStatus {
        let this = self.clone();
        Box::pin(async move { StoreLimiter::status(&this).await })
    }

    /// Pauses all processes, without waiting for the reply. Bookings that were made before are
    /// still granted during the pause.
    fn pause(&self, pause: Pause) -> Result<(), AllRefusal> {
        if let Some(operation) = self.begin_pause(pause) {
            self.line.set.send_detached(operation, &[]);
            self.end_leases();
        }
        Ok(())
    }

    fn resume(&self) -> bool {
        match self.block_on(StoreLimiter::resume(self)) {
            Some(was_paused) => was_paused.unwrap_or(false),
            None => {
                let leases = self.line.leases.as_ref().map(Arc::downgrade);
                // The reply to an earlier call may have reported the pause meanwhile.
                self.line.set.resume_detached(move || {
                    leases.iter().filter_map(Weak::upgrade).for_each(|leases| leases.forget_pause());
                });
                // From now on leases are booked after the end of the pause.
                self.resume_leases();
                self.line.resumed();
                false
            }
        }
    }

    /// Does not wait for the reply.
    fn debit(&self, costs: &AllRequest<'_>) -> Result<(), AllRefusal> {
        self.line.set.send_detached(Operation::Debit, &self.debited(costs)?);
        Ok(())
    }

    /// Does not wait for the reply.
    fn refund(&self, costs: &AllRequest<'_>) -> Result<(), AllRefusal> {
        self.line.settle(NO_GRANT, &self.debited(costs)?);
        Ok(())
    }

    fn keep_at_most(&self, name: &str, permits: u64) -> Result<u64, AllRefusal> {
        if self.blocks == Blocks::No {
            let (member, costs) = self.kept(name, permits)?;
            self.discard_beyond(member, permits);
            self.line.set.send_detached(Operation::Keep, &costs);
            self.discard_beyond(member, permits);
            return Ok(0);
        }
        self.line.set.find(name)?;
        let taken = self.block_on(StoreLimiter::keep_at_most(self, name, permits));
        taken.unwrap_or_else(|| Err(Away::WOULD_BLOCK.refusal().into()))
    }

    /// Applies to this process.
    fn close(&self) -> Result<bool, AllRefusal> {
        Ok(self.line.close())
    }

    fn is_closed(&self) -> bool {
        *self.line.set.closed.borrow()
    }

    fn non_blocking(&self) -> Option<AnyLimiter> {
        (self.blocks == Blocks::Yes)
            .then(|| AnyLimiter::new(StoreLimiter { line: self.line.clone(), blocks: Blocks::No }))
    }
}
