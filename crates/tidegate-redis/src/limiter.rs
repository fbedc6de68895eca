//! [`StoreLimiter`]: limits in a store, as a limiter of the core.

use std::fmt;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use tidegate::{
    AcquireAny, AllPermits, AllRefusal, AllRequest, AllStatus, AnyLimiter, AnyReservation, Clock,
    DefaultClock, Grant, Limiter, Nanos, Pause, Place, PolicyConfig, Refusal, Request, Status, Timer,
};
use tokio::sync::watch;

use crate::error::BuildError;
use crate::key;
use crate::script::{Operation, Reply, Script};
use crate::set::{Booking, Costs, Instead, Member, Set, left};
use crate::share;
use crate::store::{Store, WhileAway};
use crate::terms::Terms;

/// One or several limits that all processes share which name the same store, tag and names.
///
/// It is made by [`Store::limiter`], and used as an [`AnyLimiter`], which it converts to: every
/// adapter of `tidegate` works over it. A request is decided by one round trip, for all limits
/// together, all or nothing.
///
/// # Fairness
///
/// A request that waits books its instant when the store gets it, and sleeps until then: first
/// come, first served over all processes. A request that does not wait never overtakes a booking.
/// [Priorities](tidegate::Request::priority) have no effect over a store yet.
///
/// # Cancel safety
///
/// Dropping a future gives its permits back once, by a message that is not waited for. If a request
/// is dropped whose instant is not the last one booked, its instant goes to the next request of
/// equal size, and is lost if there is none in time.
///
/// # Blocking
///
/// `acquire`, `acquire_now` and the futures never block a thread.
/// [`try_acquire`](AnyLimiter::try_acquire), [`reserve`](AnyLimiter::reserve),
/// [`status`](AnyLimiter::status), [`keep_at_most`](AnyLimiter::keep_at_most) and
/// [`resume`](AnyLimiter::resume) block the calling thread for the round trip, at most for the
/// [timeout](crate::StoreBuilder::timeout) of the store.
#[derive(Clone, Debug)]
pub struct StoreLimiter(Arc<Set>);

/// The limits of a [`StoreLimiter`].
#[derive(Clone, Debug)]
#[must_use = "limits do nothing until the limiter is built"]
pub struct LimiterBuilder {
    store: Store,
    tag: String,
    limits: Vec<(String, PolicyConfig)>,
}

impl Store {
    /// A limiter for this tag: a user, a tenant, an API key, or the name of what all share. Limits
    /// of one tag lie in one slot of a cluster, so they can be decided together.
    ///
    /// A limiter costs the client some hundred bytes and no call; make one for each tag when it is
    /// needed, and drop it. The state is in the store, and expires there.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// use tidegate::AnyLimiter;
    /// use tidegate_redis::Store;
    ///
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// let store = Store::open("redis://127.0.0.1")?;
    /// let limiter: AnyLimiter = store
    ///     .limiter("tenant-7")
    ///     .limit("calls", "token_bucket 100/s burst 20".parse()?)
    ///     .limit("daily", "fixed_window 1000000/d at_wall_clock 0s".parse()?)
    ///     .build()?
    ///     .into();
    /// limiter.acquire().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn limiter(&self, tag: impl Into<String>) -> LimiterBuilder {
        LimiterBuilder { store: self.clone(), tag: tag.into(), limits: Vec::new() }
    }
}

impl LimiterBuilder {
    /// Adds a limit. The name is part of the key in the store, and that by which requests name
    /// their cost.
    pub fn limit(mut self, name: impl Into<String>, policy: PolicyConfig) -> LimiterBuilder {
        self.limits.push((name.into(), policy));
        self
    }

    /// Makes the limiter. The store is not asked.
    ///
    /// # Errors
    ///
    /// A [`BuildError`] if a name cannot be part of a key or comes twice, if a policy cannot be had
    /// over a store, or if there is no limit.
    pub fn build(self) -> Result<StoreLimiter, BuildError> {
        let LimiterBuilder { store, tag, limits } = self;
        if !key::is_tag(&tag) {
            return Err(BuildError::Name { name: tag });
        }
        if limits.is_empty() {
            return Err(BuildError::NoLimit);
        }
        let mut members: Vec<Member> = Vec::with_capacity(limits.len());
        for (name, config) in &limits {
            if !key::is_name(name) {
                return Err(BuildError::Name { name: name.clone() });
            }
            if members.iter().any(|member| member.name == *name) {
                return Err(BuildError::Twice { name: name.clone() });
            }
            let terms = Terms::new(config)?;
            let key = key::of(store.prefix(), &tag, name, terms.kind);
            members.push(Member { name: name.clone(), key, terms });
        }
        let share = match store.while_away() {
            WhileAway::Share(processes) => Some(share::limiter(&limits, processes)?),
            WhileAway::Open | WhileAway::Closed => None,
        };
        Ok(StoreLimiter(Arc::new(Set {
            script: Arc::new(Script::of(members.iter().map(|member| member.terms.kind))),
            store,
            members,
            share,
            shadow: AtomicBool::new(false),
            closed: watch::Sender::new(false),
            waiting: AtomicUsize::new(0),
        })))
    }
}

impl StoreLimiter {
    /// Sets whether requests that would be refused pass without permits, for trying out a limit.
    /// It holds for this process.
    pub fn set_shadow(&self, shadow: bool) {
        self.0.shadow.store(shadow, Ordering::Relaxed);
    }

    /// Forgets what all processes took: every limit is as new.
    ///
    /// # Errors
    ///
    /// [`Refusal::Unavailable`] if the store did not answer. Then it may have been reset.
    pub async fn reset(&self) -> Result<(), AllRefusal> {
        self.ask_all(Operation::Reset).await.map(drop)
    }

    /// A snapshot of the limits, as [`AnyLimiter::status`], without blocking a thread.
    ///
    /// # Errors
    ///
    /// [`Refusal::Unavailable`] if the store did not answer.
    pub async fn status(&self) -> Result<AllStatus, AllRefusal> {
        let reply = self.ask_all(Operation::Status).await?;
        Ok(self.status_of(&reply))
    }

    async fn ask_all(&self, operation: Operation) -> Result<Reply, AllRefusal> {
        let costs = vec![(1, 1); self.0.members.len()];
        self.0.ask(operation, &costs).await.map_err(|undecided| self.0.unavailable(undecided))
    }

    fn status_of(&self, reply: &Reply) -> AllStatus {
        let paused_for = reply.limits.iter().map(|told| told.paused_for).max().unwrap_or_default();
        let members = self.0.members.iter().zip(&reply.limits).map(|(member, told)| {
            let status = Status::from(left(member, told)).rate(member.terms.rate);
            (member.name.as_str(), status.paused_for(told.paused_for))
        });
        let waiting = self.0.waiting.load(Ordering::Relaxed);
        AllStatus::new(members).waiting(waiting).paused_for(paused_for)
    }

    /// Waits for permits, at most this long.
    async fn wait(self, ask: Ask, longest: Duration) -> Result<Won, AllRefusal> {
        if ask.exempt {
            return Ok(Won::Free);
        }
        self.0.check(&ask.costs)?;
        let undecided = match self.0.book(ask.costs.clone(), longest).await {
            Ok(Ok(mut booking)) => {
                self.sleep(booking.reply.wait).await?;
                booking.keep();
                return Ok(Won::Booked(booking));
            }
            Ok(Err(refusal)) => return Err(refusal),
            Err(undecided) => undecided,
        };
        match self.0.instead(undecided) {
            Instead::Everyone => Ok(Won::Free),
            Instead::Nobody => Err(self.0.unavailable(undecided)),
            Instead::Share(share) => {
                let request = ask.request();
                let permits = match longest {
                    Duration::ZERO => share.try_acquire_many(request)?,
                    _ => share.acquire_many(request).await?,
                };
                Ok(Won::Shared(permits))
            }
        }
    }

    /// Sleeps until a booking is due, from now on: the reply is as old as its way back.
    async fn sleep(&self, wait: Duration) -> Result<(), AllRefusal> {
        if wait == Duration::ZERO {
            return Ok(());
        }
        let waiting = Waiting::new(&self.0.waiting);
        let mut closed = self.0.closed.subscribe();
        let clock = DefaultClock::new();
        let due = clock.now().saturating_add(Nanos::from_duration(wait));
        let mut sleep = pin!(clock.sleep_until(due));
        let mut is_closed = pin!(closed.wait_for(|closed| *closed));
        let answer = poll_fn(|context| match sleep.as_mut().poll(context) {
            Poll::Ready(()) => Poll::Ready(Ok(())),
            Poll::Pending => is_closed.as_mut().poll(context).map(|_| Err(Refusal::Closed.into())),
        });
        let answer = answer.await;
        drop(waiting);
        answer
    }
}

/// Counts a request that waits.
struct Waiting<'a>(&'a AtomicUsize);

impl Waiting<'_> {
    fn new(waiting: &AtomicUsize) -> Waiting<'_> {
        waiting.fetch_add(1, Ordering::Relaxed);
        Waiting(waiting)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// What a request asks for, without a borrow.
#[derive(Clone)]
struct Ask {
    costs: Costs,
    named: Vec<(String, u32)>,
    others: Option<u32>,
    exempt: bool,
    with_left: bool,
    /// All else that it says.
    all_else: Request,
}

impl Ask {
    fn new(set: &Set, request: &AllRequest<'_>) -> Result<Ask, AllRefusal> {
        let all_else = request.to_request();
        let Request { permits, most, exempt, tells_left, .. } = all_else;
        Ok(Ask {
            costs: set.costs(request, (permits.into(), most.max(permits).into()))?,
            named: request.costs().map(|(name, n)| (name.to_owned(), n)).collect(),
            others: request.others(),
            exempt,
            with_left: tells_left,
            all_else,
        })
    }

    /// The request again.
    fn request(&self) -> AllRequest<'_> {
        let Request { priority, within, .. } = self.all_else;
        let mut request = match self.others {
            Some(_) => AllRequest::from(self.all_else),
            None => AllRequest::new().priority(priority),
        };
        if let Some(within) = within {
            request = request.within(within);
        }
        self.named.iter().fold(request, |request, (name, n)| request.cost(name, *n))
    }
}

/// What a request got.
enum Won {
    Booked(Booking),
    Shared(AllPermits),
    /// It passes without permits.
    Free,
}

impl Won {
    fn permits(self, set: &Set, ask: &Ask) -> AllPermits {
        match self {
            Won::Shared(permits) => permits,
            Won::Free => Grant::new(0, Nanos::ZERO).into(),
            Won::Booked(booking) => grant(set, ask, &booking).into(),
        }
    }
}

fn grant(set: &Set, ask: &Ask, booking: &Booking) -> Grant {
    if booking.is_shadow() {
        return Grant::new(0, Nanos::ZERO);
    }
    // Of the members that the request does not name; of a member that is, if it names all.
    let unnamed =
        set.members.iter().position(|member| ask.named.iter().all(|(name, _)| *name != member.name));
    let permits = match unnamed {
        Some(i) => booking.reply.limits[i].permits,
        None => ask.all_else.permits.into(),
    };
    let grant = Grant::new(u32::try_from(permits).unwrap_or(u32::MAX), booking.reply.wait);
    match set.left(&booking.reply).filter(|_| ask.with_left) {
        Some(left) => grant.with_left(left),
        None => grant,
    }
}

impl Limiter for StoreLimiter {
    fn try_acquire(&self, request: &AllRequest<'_>) -> Result<AllPermits, AllRefusal> {
        block_on(self.acquire_now(request))
    }

    fn acquire_now(&self, request: &AllRequest<'_>) -> AcquireAny {
        let ask = match Ask::new(&self.0, request) {
            Ok(ask) => ask,
            Err(refusal) => return AcquireAny::ready(Err(refusal)),
        };
        let this = self.clone();
        AcquireAny::new(async move {
            let won = this.clone().wait(ask.clone(), Duration::ZERO).await?;
            Ok(won.permits(&this.0, &ask))
        })
    }

    fn acquire(&self, request: &AllRequest<'_>) -> AcquireAny {
        let ask = match Ask::new(&self.0, request) {
            Ok(ask) => ask,
            Err(refusal) => return AcquireAny::ready(Err(refusal)),
        };
        let this = self.clone();
        AcquireAny::new(async move {
            let longest = ask.all_else.within.unwrap_or(Duration::MAX);
            let won = this.clone().wait(ask.clone(), longest).await?;
            Ok(won.permits(&this.0, &ask))
        })
    }

    fn blocking_acquire(&self, request: &AllRequest<'_>) -> Result<AllPermits, AllRefusal> {
        block_on(self.acquire(request))
    }

    /// The place is booked in the store. It is given back when it is dropped, as far as
    /// [`StoreLimiter`] says. While the store is away there is a place in the share of this
    /// process, or none.
    fn reserve(&self, request: &AllRequest<'_>) -> Result<AnyReservation, AllRefusal> {
        let ask = Ask::new(&self.0, request)?;
        if ask.exempt {
            return Ok(AnyReservation::new(Reserved::free(self)));
        }
        self.0.check(&ask.costs)?;
        let longest = ask.all_else.within.unwrap_or(Duration::MAX);
        match block_on(self.0.book(ask.costs.clone(), longest)) {
            Ok(Ok(booking)) => Ok(AnyReservation::new(Reserved::new(self, &ask, booking))),
            Ok(Err(refusal)) => Err(refusal),
            Err(undecided) => match self.0.instead(undecided) {
                Instead::Everyone => Ok(AnyReservation::new(Reserved::free(self))),
                Instead::Nobody => Err(self.0.unavailable(undecided)),
                Instead::Share(share) => share.reserve(ask.request()),
            },
        }
    }

    /// While the store does not answer, nothing is available.
    fn status(&self) -> AllStatus {
        block_on(StoreLimiter::status(self)).unwrap_or_else(|_| {
            let members = self.0.members.iter().map(|member| {
                let nothing = tidegate::Left::new(member.terms.limit, 0);
                (member.name.as_str(), Status::from(nothing).rate(member.terms.rate))
            });
            AllStatus::new(members).waiting(self.0.waiting.load(Ordering::Relaxed))
        })
    }

    /// For all processes. The message is not waited for. Bookings that were made before are still
    /// granted in the pause.
    fn pause(&self, pause: Pause) -> Result<(), AllRefusal> {
        let now = DefaultClock::new().now();
        let span = pause.end(now).saturating_since(now).as_duration();
        let operation = Operation::Pause { span, keep_stock: pause.keeps_stock() };
        if let Some(share) = &self.0.share {
            share.pause(pause)?;
        }
        self.0.tell(operation, &vec![(1, 1); self.0.members.len()], &[]);
        Ok(())
    }

    fn resume(&self) -> bool {
        if let Some(share) = &self.0.share {
            share.resume();
        }
        let reply = block_on(self.ask_all(Operation::Resume));
        reply.is_ok_and(|reply| reply.limits.iter().any(|told| told.other > 0))
    }

    /// The message is not waited for.
    fn debit(&self, costs: &AllRequest<'_>) -> Result<(), AllRefusal> {
        let others = u64::from(costs.others().unwrap_or(1));
        let costs = self.0.costs(costs, (others, others))?;
        self.0.tell(Operation::Debit, &costs, &[]);
        Ok(())
    }

    fn keep_at_most(&self, name: &str, permits: u64) -> Result<u64, AllRefusal> {
        let member = self.0.find(name)?;
        // Of the other members any number may stay; a script counts below 2^53.
        let any = 1 << 52;
        let mut costs = vec![(any, any); self.0.members.len()];
        costs[member] = (permits.min(any), permits.min(any));
        let reply = block_on(self.0.ask(Operation::Keep, &costs));
        reply.map(|reply| reply.limits[member].other).map_err(|undecided| self.0.unavailable(undecided))
    }

    /// For this process.
    fn close(&self) -> Result<bool, AllRefusal> {
        if let Some(share) = &self.0.share {
            share.close()?;
        }
        Ok(!self.0.closed.send_replace(true))
    }

    fn is_closed(&self) -> bool {
        *self.0.closed.borrow()
    }
}

impl From<StoreLimiter> for AnyLimiter {
    fn from(limiter: StoreLimiter) -> AnyLimiter {
        AnyLimiter::new(limiter)
    }
}

/// A place that is booked in the store.
struct Reserved {
    of: StoreLimiter,
    /// `None` if it is free.
    booking: Option<Booking>,
    costs: Costs,
    grant: Grant,
    clock: DefaultClock,
    due: Nanos,
    wait: Pin<Box<dyn Future<Output = Result<(), AllRefusal>> + Send>>,
    /// The answer, once it was given.
    claimed: Option<Result<Grant, AllRefusal>>,
}

impl Reserved {
    fn new(of: &StoreLimiter, ask: &Ask, booking: Booking) -> Reserved {
        let (grant, wait) = (grant(&of.0, ask, &booking), booking.reply.wait);
        Reserved { costs: booking.permits(), ..Reserved::made(of, grant, wait) }.with(booking)
    }

    fn free(of: &StoreLimiter) -> Reserved {
        Reserved::made(of, Grant::new(0, Nanos::ZERO), Duration::ZERO)
    }

    fn with(mut self, booking: Booking) -> Reserved {
        self.booking = Some(booking);
        self
    }

    fn made(of: &StoreLimiter, grant: Grant, wait: Duration) -> Reserved {
        let clock = DefaultClock::new();
        let due = clock.now().saturating_add(Nanos::from_duration(wait));
        let this = of.clone();
        let of = of.clone();
        let costs = vec![(0, 0); of.0.members.len()];
        // From now on, and not from the first poll.
        let of_wait = DefaultClock::clone(&clock);
        let wait =
            Box::pin(async move { this.sleep(due.saturating_since(of_wait.now()).as_duration()).await });
        Reserved { of, booking: None, costs, grant, clock, due, wait, claimed: None }
    }
}

impl Future for Reserved {
    type Output = Result<Grant, AllRefusal>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        if let Some(answer) = &this.claimed {
            return Poll::Ready(answer.clone());
        }
        let Poll::Ready(answer) = this.wait.as_mut().poll(context) else {
            return Poll::Pending;
        };
        if answer.is_ok()
            && let Some(booking) = &mut this.booking
        {
            booking.keep();
        }
        let answer = answer.map(|()| this.grant);
        this.claimed = Some(answer.clone());
        Poll::Ready(answer)
    }
}

impl Place for Reserved {
    fn due_in(&self) -> Duration {
        self.due.saturating_since(self.clock.now()).as_duration()
    }

    fn settle(mut self: Box<Self>, used: &AllRequest<'_>) -> Result<(), AllRefusal> {
        // What the request does not tell was used as reserved.
        let mut told = self.costs.clone();
        if let Some(others) = used.others() {
            told = vec![(others.into(), others.into()); told.len()];
        }
        for (name, n) in used.costs() {
            match self.of.0.find(name) {
                Ok(i) => told[i] = (n.into(), n.into()),
                Err(refusal) => {
                    if let Some(booking) = &mut self.booking {
                        booking.keep();
                    }
                    return Err(refusal);
                }
            }
        }
        let Some(booking) = &mut self.booking else { return Ok(()) };
        if booking.is_shadow() {
            return Ok(());
        }
        booking.keep();
        let difference = |more: &dyn Fn(u64, u64) -> u64| -> Costs {
            let pairs = self.costs.iter().zip(&told);
            pairs.map(|((reserved, _), (used, _))| more(*reserved, *used)).map(|n| (n, n)).collect()
        };
        let unused = difference(&|reserved, used| reserved.saturating_sub(used));
        let beyond = difference(&|reserved, used| used.saturating_sub(reserved));
        for (operation, costs) in [(Operation::Refund, unused), (Operation::Debit, beyond)] {
            if costs.iter().any(|(n, _)| *n > 0) {
                self.of.0.tell(operation, &costs, &[]);
            }
        }
        Ok(())
    }
}

impl fmt::Debug for Reserved {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reserved").field("due", &self.due).finish_non_exhaustive()
    }
}

/// Waits for a future on this thread.
fn block_on<T>(future: impl Future<Output = T>) -> T {
    struct Unpark(std::thread::Thread);

    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }

    let mut future = pin!(future);
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(answer) => return answer,
            // A wake-up between the poll and the parking is kept as the thread's unpark token.
            Poll::Pending => std::thread::park(),
        }
    }
}
