//! The gate: the policy and its state in front, the queue behind.
//!
//! # How the two halves meet
//!
//! `front` is a count and flags. While it is zero, a request asks the policy directly: one load, one clock reading, one
//! compare-and-swap. Otherwise it takes the queue's lock, serves those who are due, and goes behind the rest.
//!
//! | bits of `front` | meaning | a request that sees it |
//! |---|---|---|
//! | 0, [`PAUSED`] | nobody passes before a time | takes the lock; the first to do so after that time clears it |
//! | 1, [`SHARED`] | a share of the permits is kept for the important | takes the lock, since looking and taking are two steps |
//! | 2, [`WATCHED`] | somebody wants to know of each call | asks the policy without the lock, and tells |
//! | 3, [`SHADOW`] | nobody is refused, and nobody waits | asks the policy without the lock, and passes anyway |
//! | the rest | how many are in line, or were granted a moment ago and have not run yet | takes the lock |
//!
//! What the flags say in one bit is plain data under the lock, in [`Control`](crate::wait::control::Control). Whoever has the lock and
//! changed anything stores the count and all flags, so none can be lost. A feature that is off costs no instruction.
//!
//! | operation | ordering | why |
//! |---|---|---|
//! | `front` is stored, under the lock | Relaxed | see below |
//! | `front` is loaded, without the lock | Relaxed | see below |
//! | `levels` is stored, under the lock | Release | only for those who take from several limiters: `compose/member.rs` |
//! | policy state | as in `policy/cell.rs` | |
//! | everything else | under the lock | |
//!
//! **Nobody overtakes.** The promise: a request that begins after a waiter has joined the line goes behind it. "After" means
//! happens-before, by whatever the program uses to order the two. The store of `front` then happens before the load, and
//! coherence makes the load see it or something later, at any ordering. The same holds for a pause and whoever begins after it.
//! A request that overlaps with the joining may
//! have read zero and take a permit a moment later: it came first, and is served first. The waiter's alarm then rings
//! before its permit is there, and is set again.
//!
//! **No lost wake-up.** Whatever can make permits come *earlier* (a refund, a rate, a dropped wait) runs under the lock, and so
//! does joining the line: either the one who joins asks the policy afterwards, or the change finds it in line. A taker without
//! the lock only makes permits come later, and an alarm that rings too early is set again. So there is no pattern of
//! store-then-load on two sides, which would need sequential consistency.
//!
//! **Checked by** `loom-tests/gate.rs`: try against a waiter, joining against a refund, dropping against a grant, blocked threads;
//! with twins that ask before they lock, or forget to look again.

use std::fmt::Debug;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, OnceLock};
use std::task::{Poll, ready};
use std::time::Duration;

use crate::clock::Timer;
use crate::error::{PolicyError, Refusal};
use crate::events::Events;
use crate::limiter::Status;
use crate::nanos::Nanos;
use crate::policy::{Change, Policy, PolicyStatus, limited};
use crate::request::Request;
use crate::rule::{Rule, Single};
use crate::sync::{AtomicU64, AtomicUsize, Mutex, MutexGuard, Ordering, lock};
use crate::wait::after::After;
use crate::wait::pending::{Place, Poller, Wait};
use crate::wait::queue::{Kind, Newcomer, Queue, Seen, Source};

/// After a waiter lost so many alarms of one event loop, the timer and the clock do not tell the same time.
const TOO_OFTEN: u8 = 16;

/// The flags of [`Gate::front`].
pub(crate) const PAUSED: usize = 1;
pub(crate) const SHARED: usize = 2;
pub(crate) const WATCHED: usize = 4;
pub(crate) const SHADOW: usize = 8;
/// What one more in line adds to it. A sixteenth of all numbers is more than fit in memory.
pub(crate) const ONE: usize = 16;

/// How many gates were made so far.
static GATES: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);

/// What a limiter and its futures share.
pub(crate) struct Gate<R: Rule<C>, C: Timer> {
    pub(crate) rule: R,
    pub(crate) clock: C,
    /// Its number among all gates, by which those who take from several ask them in the same order.
    pub(crate) number: u64,
    /// How many are in line, or were granted and have not run yet, or hold a seat; and flags.
    pub(crate) front: AtomicUsize,
    /// A number that is another one each time permits are given back, for those who undo a grant that they made without the lock.
    pub(crate) levels: AtomicU64,
    /// How often those in line were moved, for those who wait for several limiters.
    pub(crate) changes: AtomicU64,
    /// In nanoseconds.
    catch_up: AtomicU64,
    pub(crate) queue: Mutex<Queue<R, C>>,
    pub(crate) events: OnceLock<Arc<dyn Events>>,
}

/// What a request is told: the time waited, and what it took, if anything.
pub(crate) type Answer<Charge> = Result<(Duration, Option<Charge>), Refusal>;

/// How a call passed.
#[derive(Debug)]
pub(crate) enum Pass<Charge> {
    Granted(Charge),
    /// Only because nobody is refused: this is what it would have been told.
    Shadow(Refusal),
    /// Nobody asked.
    Exempt,
}

impl<Charge> Pass<Charge> {
    /// What it took, if anything.
    fn charge(self) -> Option<Charge> {
        match self {
            Pass::Granted(charge) => Some(charge),
            Pass::Shadow(_) | Pass::Exempt => None,
        }
    }
}

impl<R: Rule<C>, C: Timer> Gate<R, C> {
    pub(crate) fn new(rule: R, clock: C, catch_up: Duration) -> Self {
        let queue = Queue::new();
        Gate {
            rule,
            clock,
            number: GATES.fetch_add(1, std::sync::atomic::Ordering::Relaxed),
            front: AtomicUsize::new(0),
            levels: AtomicU64::new(queue.levels()),
            changes: AtomicU64::new(0),
            catch_up: AtomicU64::new(Nanos::from_duration(catch_up).as_u64()),
            queue: Mutex::new(queue),
            events: OnceLock::new(),
        }
    }

    /// Takes what is asked for now or not at all.
    #[inline]
    pub(crate) fn try_acquire(&self, ask: &R::Ask) -> Result<(), Refusal> {
        // Each way forgets its charge by itself, so that this one does not have to put it where the other one does.
        if self.front.load(Ordering::Relaxed) == 0 {
            return self.rule.try_take(self.clock.now(), ask).map(drop);
        }
        self.try_acquire_behind(ask, 0).map(drop)
    }

    /// The same for a request of this priority. Returns what it took, if anything.
    #[inline]
    pub(crate) fn try_acquire_as(&self, ask: &R::Ask, priority: i8) -> Result<Option<R::Charge>, Refusal> {
        if self.front.load(Ordering::Relaxed) == 0 {
            return self.rule.try_take(self.clock.now(), ask).map(Some);
        }
        self.try_acquire_behind(ask, priority)
    }

    /// The same for a request that says more. How long it would wait does not matter.
    pub(crate) fn try_acquire_with(&self, ask: &R::Ask, request: &Request) -> Result<(), Refusal> {
        if request.exempt {
            return self.tell(ask, Duration::ZERO, Ok(Pass::Exempt)).map(drop);
        }
        if self.front.load(Ordering::Relaxed) == 0 {
            return self.rule.try_take(self.clock.now(), ask).map(drop);
        }
        self.try_acquire_behind(ask, request.priority).map(drop)
    }

    /// The same while others wait, or a flag is up.
    #[cold]
    fn try_acquire_behind(&self, ask: &R::Ask, priority: i8) -> Result<Option<R::Charge>, Refusal> {
        let answer = if self.is_free() {
            self.rule.try_take(self.clock.now(), ask)
        } else {
            self.try_in_line(ask, priority)
        };
        self.tell(ask, Duration::ZERO, answer.map(Pass::Granted))
    }

    /// Serves who is due, and takes only what nobody waits for who goes before this request.
    pub(crate) fn try_in_line(&self, ask: &R::Ask, priority: i8) -> Result<R::Charge, Refusal> {
        self.with_queue(|queue, now, after| self.take_in_line(queue, now, ask, priority, after))
    }

    pub(crate) fn take_in_line(
        &self,
        queue: &mut Queue<R, C>,
        now: Nanos,
        ask: &R::Ask,
        priority: i8,
        after: &mut After<C>,
    ) -> Result<R::Charge, Refusal> {
        queue.check(&self.rule, now, ask, priority)?;
        if queue.is_open(&self.rule, now, ask, priority) {
            return queue.take(&self.source(), now, ask, priority, after);
        }
        Err(limited(queue.due_behind(&self.rule, now, ask, priority), now))
    }

    /// The same for a grant that can be undone in part later. Returns what to [end](Queue::end) it with. Nothing was taken if it passed
    /// for another reason.
    pub(crate) fn try_keeping(&self, ask: &R::Ask) -> Result<Option<(R::Charge, u64)>, Refusal> {
        let mut begun = 0;
        let answer = self.with_queue(|queue, now, after| {
            let charge = self.take_in_line(queue, now, ask, 0, after)?;
            begun = queue.begin();
            Ok(Pass::Granted(charge))
        });
        let charge = self.tell(ask, Duration::ZERO, answer)?;
        Ok(charge.map(|charge| (charge, begun)))
    }

    /// Whether the policy may be asked without the lock.
    fn is_free(&self) -> bool {
        self.front.load(Ordering::Relaxed) & !(WATCHED | SHADOW) == 0
    }

    /// Tells who watches how a call ended, and turns a refusal into a pass where nobody is refused.
    fn tell(
        &self,
        ask: &R::Ask,
        waited: Duration,
        answer: Result<Pass<R::Charge>, Refusal>,
    ) -> Result<Option<R::Charge>, Refusal> {
        let answer = match answer {
            Err(refusal) if self.front.load(Ordering::Relaxed) & SHADOW != 0 => Ok(Pass::Shadow(refusal)),
            answer => answer,
        };
        self.report(|events| {
            let permits = self.rule.permits(ask);
            match &answer {
                Ok(Pass::Granted(_)) => events.granted(permits, waited),
                Ok(Pass::Shadow(refusal)) => events.shadowed(permits, refusal),
                Ok(Pass::Exempt) => events.exempted(permits),
                Err(refusal) => events.refused(permits, refusal),
            }
        });
        answer.map(Pass::charge)
    }

    /// Tells who watches, if anybody does. Without the lock: this is foreign code, which may come back here or panic.
    pub(crate) fn report(&self, event: impl FnOnce(&dyn Events)) {
        let Some(events) = self.events.get() else { return };
        if !std::thread::panicking() {
            return event(&**events);
        }
        // In a drop while the thread unwinds, a second panic would end the process.
        let _ = catch_unwind(AssertUnwindSafe(|| event(&**events)));
    }

    /// Polls a request: on behalf of a task or a blocked thread.
    #[inline]
    pub(crate) fn poll(
        self: &Arc<Self>,
        wait: &mut Wait<R::Ask>,
        poller: Poller<'_>,
    ) -> Poll<Answer<R::Charge>> {
        if let Place::New = wait.place {
            wait.since = self.clock.now();
            if self.front.load(Ordering::Relaxed) == 0 && !wait.keeps() {
                match self.rule.try_take(wait.since, &wait.ask) {
                    Err(refusal) if refusal.is_limited() => {}
                    answer => {
                        wait.place = Place::Done;
                        return Poll::Ready(answer.map(|charge| (Duration::ZERO, Some(charge))));
                    }
                }
            }
        }
        self.poll_behind(wait, poller)
    }

    /// The same while others wait, or a flag is up, or no permit is there.
    fn poll_behind(self: &Arc<Self>, wait: &mut Wait<R::Ask>, poller: Poller<'_>) -> Poll<Answer<R::Charge>> {
        let (answer, waited) = match wait.place {
            Place::Exempt => (Ok(Pass::Exempt), Duration::ZERO),
            Place::New => (ready!(self.enter(wait, poller)), Duration::ZERO),
            Place::Queued(key) => {
                let answer = ready!(self.look(wait, key, poller));
                (answer, self.clock.now().saturating_since(wait.since).as_duration())
            }
            Place::Done => panic!("polled after it was ready"),
        };
        // First, so that a panic of who watches finds nothing to leave.
        wait.place = Place::Done;
        Poll::Ready(self.tell(&wait.ask, waited, answer).map(|charge| (waited, charge)))
    }

    /// Joins the queue, unless a permit is there after all.
    fn enter(
        self: &Arc<Self>,
        wait: &mut Wait<R::Ask>,
        poller: Poller<'_>,
    ) -> Poll<Result<Pass<R::Charge>, Refusal>> {
        if self.is_free() && !wait.keeps() {
            match self.rule.try_take(wait.since, &wait.ask) {
                Err(refusal) if refusal.is_limited() => {}
                answer => return Poll::Ready(answer.map(Pass::Granted)),
            }
        }
        self.with_queue(|queue, now, after| {
            let (source, ask, priority) = (self.source(), &wait.ask, wait.priority);
            queue.check(&self.rule, now, ask, priority)?;
            let no_room = wait.bounded && !queue.has_room(&self.rule, ask);
            // Where there is no room, even a permit that is there could not be waited for.
            if (queue.unseen() == 0 || no_room) && queue.is_open(&self.rule, now, ask, priority) {
                match queue.take(&source, now, ask, priority, after) {
                    Err(refusal) if refusal.is_limited() => {}
                    answer => {
                        if wait.keeps() && answer.is_ok() {
                            wait.begun = queue.begin();
                        }
                        return Poll::Ready(answer.map(Pass::Granted));
                    }
                }
            }
            if queue.control.shadow {
                let due = queue.due_behind(&self.rule, now, ask, priority);
                return Poll::Ready(Ok(Pass::Shadow(limited(due, now))));
            }
            let deadline = self.deadline(queue, now, ask, priority, wait.longest())?;
            if no_room {
                queue.make_room(&source, now, ask, priority, after)?;
            }
            let (Poller::Task(waker) | Poller::Thread(waker)) = poller;
            let kind = match poller {
                Poller::Thread(_) if !self.clock.rings_anywhere() => Kind::Thread { looks_at: Nanos::MAX },
                Poller::Task(_) | Poller::Thread(_) => self.task(queue, self.domain(), now, 0),
            };
            let (ask, waker) = (ask.clone(), Some(waker.clone()));
            let droppable = wait.bounded;
            let newcomer = Newcomer { ask, priority, droppable, kind, since: now, deadline, waker };
            // At once, so that the future knows of its entry also if foreign code panics before this returns.
            wait.place = Place::Queued(queue.push(&source, newcomer, after));
            Poll::Pending
        })
    }

    /// The event loop of the calling task.
    fn domain(&self) -> C::Domain {
        match self.clock.domain() {
            Some(domain) => domain,
            None => {
                panic!("no event loop to wait in: with the default clock, await a permit in a tokio runtime")
            }
        }
    }

    /// Joins the queue with nobody to wake, or takes what is there. Returns the request.
    pub(crate) fn reserve(&self, ask: R::Ask) -> Result<Wait<R::Ask>, Refusal> {
        let answer = self.with_queue(|queue, now, after| {
            let source = self.source();
            queue.check(&self.rule, now, &ask, 0)?;
            let deadline = self.deadline(queue, now, &ask, 0, self.limit_wait(None))?;
            // One that is due does not wait.
            if queue.due_behind(&self.rule, now, &ask, 0) > now {
                queue.make_room(&source, now, &ask, 0, after)?;
            }
            let (kind, ask) = (Kind::Nobody, ask.clone());
            // Who holds it counts on its place: it makes room for nobody.
            let newcomer =
                Newcomer { ask, priority: 0, droppable: false, kind, since: now, deadline, waker: None };
            Ok((queue.push(&source, newcomer, after), now))
        });
        match answer {
            Ok((key, now)) => Ok(Wait::queued(ask, key, now)),
            // In shadow it is as good as claimed.
            Err(refusal) => self
                .tell(&ask, Duration::ZERO, Err(refusal))
                .map(|_| Wait { place: Place::Done, ..Wait::new(ask) }),
        }
    }

    /// How long a request may wait, if there is a limit.
    pub(crate) fn limit_wait(&self, within: Option<Duration>) -> Option<Nanos> {
        let most = self.rule.max_wait();
        let within = if most == Duration::MAX { within } else { Some(within.unwrap_or(most).min(most)) };
        within.map(Nanos::from_duration)
    }

    /// The latest time at which a newcomer can be served, or a refusal if it will be later.
    fn deadline(
        &self,
        queue: &Queue<R, C>,
        now: Nanos,
        ask: &R::Ask,
        priority: i8,
        within: Option<Nanos>,
    ) -> Result<Nanos, Refusal> {
        let Some(within) = within else { return Ok(Nanos::MAX) };
        let deadline = now.saturating_add(within);
        let due = queue.due_behind(&self.rule, now, ask, priority);
        if due > deadline || due == Nanos::MAX {
            return Err(limited(due, deadline));
        }
        Ok(deadline)
    }

    /// A waiter that relies on the alarm of its event loop, after it lost others.
    fn task(
        self: &Arc<Self>,
        queue: &mut Queue<R, C>,
        domain: C::Domain,
        now: Nanos,
        lost: u8,
    ) -> Kind<C::Domain> {
        let alarm = queue.alarms.join(self, domain, now);
        // One per event loop.
        Kind::Task { alarm: u32::try_from(alarm).unwrap_or(u32::MAX), lost }
    }

    /// Looks whether a queued request has its answer, and if not, leaves the waker.
    fn look(
        self: &Arc<Self>,
        wait: &mut Wait<R::Ask>,
        key: u32,
        poller: Poller<'_>,
    ) -> Poll<Result<Pass<R::Charge>, Refusal>> {
        // Nearly always it was granted before it was woken: nothing to serve then, and nothing to set.
        let seen = {
            let mut queue = lock(&self.queue);
            let seen = queue.see(key, wait.keeps().then_some(&mut wait.begun));
            self.front.store(queue.front(), Ordering::Relaxed);
            seen
        };
        let seen = match seen {
            Seen::Waiting(_) => self.stay(wait, key, poller),
            seen => seen,
        };
        match seen {
            Seen::Granted(charge) => Poll::Ready(Ok(Pass::Granted(charge))),
            Seen::Passed(refusal) => Poll::Ready(Ok(Pass::Shadow(refusal))),
            Seen::Refused(refusal) => Poll::Ready(Err(self.refused_now(wait, refusal))),
            Seen::Waiting(_) => Poll::Pending,
        }
    }

    /// Serves those who are due, and if this request is not among them, leaves the waker and sees to its alarm.
    fn stay(
        self: &Arc<Self>,
        wait: &mut Wait<R::Ask>,
        key: u32,
        poller: Poller<'_>,
    ) -> Seen<R::Charge, C::Domain> {
        self.with_queue(|queue, now, after| {
            let seen = queue.see(key, wait.keeps().then_some(&mut wait.begun));
            let Seen::Waiting(kind) = seen else { return seen };
            let (Poller::Task(waker) | Poller::Thread(waker)) = poller;
            queue.set_waker(key, waker, after);
            let (domain, lost) = match kind {
                Kind::Task { alarm, .. } => match self.clock.domain() {
                    // Polled in another event loop than before: it relies on that one from now on.
                    Some(domain) if domain != queue.alarms.domain(alarm as usize) => (domain, 0),
                    // It has an alarm, and may be polled from anywhere.
                    Some(_) | None => return seen,
                },
                Kind::Lost { domain: before, times } => {
                    let domain = self.domain();
                    let times = if domain == before { times } else { 0 };
                    assert!(
                        times < TOO_OFTEN,
                        "the timer of this limiter fires long before its clock says so; if tokio's time is paused, \
                         enable tidegate's feature `test-util` or make the limiter with a `TokioClock`"
                    );
                    (domain, times)
                }
                Kind::Nobody => (self.domain(), 0),
                Kind::Thread { looks_at } => {
                    if looks_at <= now {
                        // The time has come without a grant: look again at the next one.
                        queue.set_kind(key, Kind::Thread { looks_at: Nanos::MAX }, after);
                    }
                    return seen;
                }
            };
            let kind = self.task(queue, domain, now, lost);
            queue.set_kind(key, kind, after);
            seen
        })
    }

    /// What the same call would be told now, for one that was refused while it waited.
    fn refused_now(&self, wait: &Wait<R::Ask>, refusal: Refusal) -> Refusal {
        let (Refusal::Limited { .. }, Some(within)) = (refusal, wait.longest()) else { return refusal };
        self.with_queue(|queue, now, _| {
            let due = queue.due_behind(&self.rule, now, &wait.ask, wait.priority);
            limited(due, now.saturating_add(within))
        })
    }

    /// Until when a blocked thread is to be parked.
    pub(crate) fn looks_at(&self, wait: &Wait<R::Ask>) -> Nanos {
        let Place::Queued(key) = wait.place else { return Nanos::ZERO };
        lock(&self.queue).looks_at(key)
    }

    /// How long a request has still to wait, if nothing changes.
    pub(crate) fn due_in(&self, wait: &Wait<R::Ask>) -> Duration {
        let Place::Queued(key) = wait.place else { return Duration::ZERO };
        self.with_queue(|queue, now, _| queue.due_in(&self.source(), key, now))
    }

    /// Takes the answer of a request, if it has one. `Ok(false)`: not yet.
    pub(crate) fn claim(&self, wait: &mut Wait<R::Ask>) -> Result<bool, Refusal> {
        let Place::Queued(key) = wait.place else { return Ok(true) };
        let (seen, now) = self.with_queue(|queue, now, _| (queue.see(key, None), now));
        let answer = match seen {
            Seen::Waiting(_) => return Ok(false),
            Seen::Granted(charge) => Ok(Pass::Granted(charge)),
            Seen::Passed(refusal) => Ok(Pass::Shadow(refusal)),
            Seen::Refused(refusal) => Err(refusal),
        };
        wait.place = Place::Done;
        let waited = now.saturating_since(wait.since).as_duration();
        self.tell(&wait.ask, waited, answer).map(|_| true)
    }

    /// Drops a request at any stage, and leaves no trace of it.
    pub(crate) fn leave(&self, wait: &mut Wait<R::Ask>) {
        let Some(key) = wait.take_key() else { return };
        let mut after = After::new();
        let mut queue = lock(&self.queue);
        let now = self.clock.now();
        queue.tell(now);
        queue.remove(&self.source(), key, &mut after);
        self.finish(queue, now, &mut after);
        drop(after);
        let waited = now.saturating_since(wait.since).as_duration();
        self.report(|events| events.cancelled(self.rule.permits(&wait.ask), waited));
    }

    /// How many wait.
    pub(crate) fn waiting(&self) -> usize {
        match self.front.load(Ordering::Relaxed) / ONE {
            0 => 0,
            // Serves those who are due, so that they are not reported as waiting.
            _ => self.with_queue(|queue, _, _| queue.len()),
        }
    }

    /// Whether nobody is in line, and nothing was set since it was made.
    #[cfg(feature = "keyed")]
    pub(crate) fn is_plain(&self) -> bool {
        let mut queue = lock(&self.queue);
        // A pause may be over, and nobody came since.
        queue.tell(self.clock.now());
        queue.front() == 0
            && queue.is_unused()
            && self.catch_up.load(Ordering::Relaxed)
                == Nanos::from_duration(crate::limiter::CATCH_UP).as_u64()
    }

    pub(crate) fn set_catch_up(&self, catch_up: Duration) {
        self.catch_up.store(Nanos::from_duration(catch_up).as_u64(), Ordering::Relaxed);
    }

    /// Somebody's alarm rang.
    pub(crate) fn ring(&self) {
        self.with_queue(|_, _, _| ());
    }

    pub(crate) fn source(&self) -> Source<'_, R> {
        let catch_up = Nanos::new(self.catch_up.load(Ordering::Relaxed));
        Source { rule: &self.rule, catch_up }
    }

    /// Runs `work` with the queue, after those who are due were served.
    pub(crate) fn with_queue<T>(&self, work: impl FnOnce(&mut Queue<R, C>, Nanos, &mut After<C>) -> T) -> T {
        let mut after = After::new();
        let mut queue = lock(&self.queue);
        let now = self.clock.now();
        queue.tell(now);
        queue.serve(&self.source(), now, &mut after);
        // Foreign code may panic here: a timer outside of its event loop, a waker that is cloned. Those who were served
        // before it, and those behind, must not suffer.
        let result = catch_unwind(AssertUnwindSafe(|| work(&mut queue, now, &mut after)));
        self.finish(queue, now, &mut after);
        drop(after);
        result.unwrap_or_else(|panic| resume_unwind(panic))
    }

    /// Serves, stores the front, sees that somebody will look when the next one is due, and unlocks.
    ///
    /// Wakers are called last, by whoever drops `after`: they are foreign code that may take its time, come back here or panic.
    fn finish<'a>(&'a self, mut queue: MutexGuard<'a, Queue<R, C>>, mut now: Nanos, after: &mut After<C>) {
        loop {
            let due = queue.serve(&self.source(), now, after);
            self.tell_others(&queue);
            let Some(mut job) = due.and_then(|due| queue.watch(due, &self.clock, after)) else { return };
            drop(queue);
            let ran = catch_unwind(AssertUnwindSafe(|| job.run()));
            queue = lock(&self.queue);
            queue.put_back(job, ran.is_err(), after);
            after.panic = after.panic.take().or(ran.err());
            // Much may have happened meanwhile, and others left the alarm to us.
            now = self.clock.now();
            queue.tell(now);
        }
    }
}

impl<R: Rule<C>, C: Timer> Gate<R, C> {
    /// The status of a policy behind this queue.
    pub(crate) fn status_of(&self, status: impl FnOnce(Nanos) -> PolicyStatus) -> Status {
        let waiting = self.waiting();
        let now = self.clock.now();
        let status = Status::new(status(now), now, waiting);
        let paused_for = self.paused_for();
        let available = if paused_for.is_zero() { status.available } else { 0 };
        Status { available, paused_for, ..status }
    }

    /// Permits come later than those in line were told, or weigh something else: moves all, also those who wait for other limiters as well.
    pub(crate) fn retime(&self, queue: &mut Queue<R, C>, now: Nanos, after: &mut After<C>) {
        self.changes.fetch_add(1, Ordering::Relaxed);
        queue.retime(&self.source(), now, after);
        queue.seats.ring_all(after);
    }

    /// Tells those who come without the lock whether they have to take it.
    pub(crate) fn tell_others(&self, queue: &Queue<R, C>) {
        self.front.store(queue.front(), Ordering::Relaxed);
        // Whoever reads it finds in the policy's state what was given back before: see `compose/member.rs`.
        self.levels.store(queue.levels(), Ordering::Release);
    }
}

impl<P: Policy, C: Timer> Gate<Single<P>, C> {
    /// Gives back permits that were acquired and not used.
    pub(crate) fn refund(&self, n: u32) {
        let Single { policy, state } = &self.rule;
        self.with_queue(|queue, _, _| queue.note(policy.refund(state, queue.latest(), n)));
    }

    /// Changes the rate or the burst, and with it the times of all who wait.
    pub(crate) fn change(&self, change: Change) -> Result<(), PolicyError> {
        let Single { policy, state } = &self.rule;
        self.with_queue(|queue, now, after| {
            queue.note(policy.change(state, now, change)?);
            self.retime(queue, now, after);
            Ok(())
        })
    }

    pub(crate) fn status(&self) -> Status {
        self.status_of(|now| self.rule.policy.status(&self.rule.state, now))
    }
}
