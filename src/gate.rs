//! The gate: the policy and its state in front, the queue behind.
//!
//! # How the two halves meet
//!
//! `waiting` counts those in line, those who were granted a moment ago and have not run yet, and the seats of those who wait for
//! several limiters. While it is zero, a request asks
//! the policy directly: one load, one clock reading, one compare-and-swap. Otherwise it takes the queue's lock, serves those who
//! are due, and goes behind the rest.
//!
//! | operation | ordering | why |
//! |---|---|---|
//! | `waiting` is stored, under the lock | Relaxed | see below |
//! | `waiting` is loaded, without the lock | Relaxed | see below |
//! | `levels` is stored, under the lock | Release | only for those who take from several limiters: `compose/member.rs` |
//! | policy state | as in `policy/cell.rs` | |
//! | everything else | under the lock | |
//!
//! **Nobody overtakes.** The promise: a request that begins after a waiter has joined the line goes behind it. "After" means
//! happens-before, by whatever the program uses to order the two. The store of `waiting` then happens before the load, and
//! coherence makes the load see it or something later, at any ordering. A request that overlaps with the joining may
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
use std::sync::Arc;
use std::task::{Poll, Waker};
use std::time::Duration;

use crate::clock::Timer;
use crate::error::{PolicyError, Refusal};
use crate::limiter::Status;
use crate::nanos::Nanos;
use crate::policy::{Change, Policy, PolicyStatus, limited};
use crate::rule::{Rule, Single};
use crate::sync::{AtomicU64, AtomicUsize, Mutex, MutexGuard, Ordering, lock};
use crate::wait::queue::{After, Kind, Queue, Seen, Source};

/// After a waiter lost so many alarms of one event loop, the timer and the clock do not tell the same time.
const TOO_OFTEN: u8 = 16;

/// How many gates were made so far.
static GATES: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);

/// What a limiter and its futures share.
pub(crate) struct Gate<R: Rule<C>, C: Timer> {
    pub(crate) rule: R,
    pub(crate) clock: C,
    /// Its number among all gates, by which those who take from several ask them in the same order.
    pub(crate) number: u64,
    /// How many are in line, or were granted and have not run yet.
    pub(crate) waiting: AtomicUsize,
    /// A number that is another one each time permits are given back, for those who undo a grant that they made without the lock.
    pub(crate) levels: AtomicU64,
    /// In nanoseconds.
    catch_up: AtomicU64,
    pub(crate) queue: Mutex<Queue<R, C>>,
}

/// A request on its way: what a future keeps.
#[derive(Debug)]
pub(crate) struct Wait<Ask> {
    ask: Ask,
    place: Place,
    /// Refused if it would take longer.
    within: Option<Nanos>,
    /// When it was first polled.
    since: Nanos,
    /// Not 0 if its grant may be undone in part later: then what to end it with, when it has its answer.
    begun: u64,
}

#[derive(Debug)]
enum Place {
    /// Not polled yet.
    New,
    /// In the queue, under this key.
    Queued(u32),
    /// It has its answer.
    Done,
}

/// Who polls.
#[derive(Clone, Copy)]
pub(crate) enum Poller<'a> {
    Task(&'a Waker),
    Thread(&'a Waker),
}

impl<Ask> Wait<Ask> {
    /// A request that waits for as long as it takes.
    pub(crate) fn new(ask: Ask) -> Wait<Ask> {
        Wait { ask, place: Place::New, within: None, since: Nanos::ZERO, begun: 0 }
    }

    /// A request that is refused if it would take longer than `within`, or than the policy lets anybody wait.
    pub(crate) fn within<R, C>(gate: &Gate<R, C>, ask: Ask, within: Option<Duration>) -> Wait<Ask>
    where
        R: Rule<C, Ask = Ask>,
        C: Timer,
    {
        Wait { within: gate.limit_wait(within), ..Wait::new(ask) }
    }

    pub(crate) fn ask(&self) -> &Ask {
        &self.ask
    }

    /// Whether it had its answer.
    pub(crate) fn is_done(&self) -> bool {
        matches!(self.place, Place::Done)
    }

    /// Takes the key of its entry, if it has one: from then on the entry is the caller's to remove.
    pub(crate) fn take_key(&mut self) -> Option<u32> {
        match std::mem::replace(&mut self.place, Place::Done) {
            Place::Queued(key) => Some(key),
            Place::New | Place::Done => None,
        }
    }

    /// A request that has joined the queue under this key.
    pub(crate) fn queued(ask: Ask, key: u32, since: Nanos) -> Wait<Ask> {
        Wait { place: Place::Queued(key), since, ..Wait::new(ask) }
    }

    /// The same, but its grant can be undone in part later: it has to be [ended](Queue::end) with [`begun`](Wait::begun).
    pub(crate) fn keeping(self) -> Wait<Ask> {
        Wait { begun: u64::MAX, ..self }
    }

    /// What to end a grant with that was kept.
    pub(crate) fn begun(&self) -> u64 {
        self.begun
    }

    fn keeps(&self) -> bool {
        self.begun != 0
    }
}

impl<R: Rule<C>, C: Timer> Gate<R, C> {
    pub(crate) fn new(rule: R, clock: C, catch_up: Duration) -> Self {
        let queue = Queue::new();
        Gate {
            rule,
            clock,
            number: GATES.fetch_add(1, std::sync::atomic::Ordering::Relaxed),
            waiting: AtomicUsize::new(0),
            levels: AtomicU64::new(queue.levels()),
            catch_up: AtomicU64::new(Nanos::from_duration(catch_up).as_u64()),
            queue: Mutex::new(queue),
        }
    }

    /// Takes what is asked for now or not at all.
    #[inline]
    pub(crate) fn try_acquire(&self, ask: &R::Ask) -> Result<R::Charge, Refusal> {
        if self.waiting.load(Ordering::Relaxed) == 0 {
            self.rule.try_take(self.clock.now(), ask)
        } else {
            self.try_acquire_behind(ask)
        }
    }

    /// The same while others wait: serves who is due, and takes only what nobody waits for.
    #[cold]
    pub(crate) fn try_acquire_behind(&self, ask: &R::Ask) -> Result<R::Charge, Refusal> {
        self.rule.check(ask)?;
        self.with_queue(|queue, now, after| {
            if queue.is_free(&self.rule, now, ask) {
                return self.rule.take(now, now, ask, after);
            }
            Err(limited(queue.due_behind(&self.rule, now, ask), now))
        })
    }

    /// The same for a grant that can be undone in part later. Returns what to [end](Queue::end) it with.
    pub(crate) fn try_keeping(&self, ask: &R::Ask) -> Result<(R::Charge, u64), Refusal> {
        self.rule.check(ask)?;
        self.with_queue(|queue, now, after| {
            if queue.is_free(&self.rule, now, ask) {
                return Ok((self.rule.take(now, now, ask, after)?, queue.begin()));
            }
            Err(limited(queue.due_behind(&self.rule, now, ask), now))
        })
    }

    /// Polls a request: on behalf of a task or a blocked thread.
    #[inline]
    pub(crate) fn poll(
        self: &Arc<Self>,
        wait: &mut Wait<R::Ask>,
        poller: Poller<'_>,
    ) -> Poll<Result<(Duration, R::Charge), Refusal>> {
        let answer = match wait.place {
            Place::New => {
                wait.since = self.clock.now();
                let free = if wait.keeps() { None } else { self.enter_free(&wait.ask, wait.since) };
                match free {
                    Some(answer) => answer.map(|charge| (Duration::ZERO, charge)),
                    None => match self.enter(wait, poller) {
                        Poll::Pending => return Poll::Pending,
                        Poll::Ready(answer) => answer.map(|charge| (Duration::ZERO, charge)),
                    },
                }
            }
            Place::Queued(key) => match self.look(wait, key, poller) {
                Poll::Ready(answer) => {
                    answer.map(|charge| (self.clock.now().saturating_since(wait.since).as_duration(), charge))
                }
                Poll::Pending => return Poll::Pending,
            },
            Place::Done => panic!("polled after it was ready"),
        };
        wait.place = Place::Done;
        Poll::Ready(answer)
    }

    /// Asks the policy if nobody is in line or about to run. `None`: go to the queue.
    #[inline]
    fn enter_free(&self, ask: &R::Ask, now: Nanos) -> Option<Result<R::Charge, Refusal>> {
        if self.waiting.load(Ordering::Relaxed) != 0 {
            return None;
        }
        match self.rule.try_take(now, ask) {
            Err(refusal) if refusal.is_limited() => None,
            answer => Some(answer),
        }
    }

    /// Joins the queue, unless a permit is there after all.
    fn enter(
        self: &Arc<Self>,
        wait: &mut Wait<R::Ask>,
        poller: Poller<'_>,
    ) -> Poll<Result<R::Charge, Refusal>> {
        self.rule.check(&wait.ask)?;
        self.with_queue(|queue, now, after| {
            if queue.unseen() == 0 && queue.is_free(&self.rule, now, &wait.ask) {
                match self.rule.take(now, now, &wait.ask, after) {
                    Err(refusal) if refusal.is_limited() => {}
                    answer => {
                        if wait.keeps() && answer.is_ok() {
                            wait.begun = queue.begin();
                        }
                        return Poll::Ready(answer);
                    }
                }
            }
            let (Poller::Task(waker) | Poller::Thread(waker)) = poller;
            let deadline = self.deadline(queue, now, &wait.ask, wait.within)?;
            let kind = match poller {
                Poller::Thread(_) if !self.clock.rings_anywhere() => Kind::Thread { looks_at: Nanos::MAX },
                Poller::Task(_) | Poller::Thread(_) => self.task(queue, self.domain(), now, 0),
            };
            let ask = wait.ask.clone();
            let key = queue.push(&self.rule, ask, deadline, kind, now, Some(waker.clone()));
            // Here, so that the future knows of its entry also if foreign code panics before this returns.
            wait.place = Place::Queued(key);
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
        self.rule.check(&ask)?;
        self.with_queue(|queue, now, _| {
            let deadline = self.deadline(queue, now, &ask, self.limit_wait(None))?;
            let key = queue.push(&self.rule, ask.clone(), deadline, Kind::Nobody, now, None);
            Ok(Wait::queued(ask, key, now))
        })
    }

    /// How long a request may wait, if there is a limit.
    fn limit_wait(&self, within: Option<Duration>) -> Option<Nanos> {
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
        within: Option<Nanos>,
    ) -> Result<Nanos, Refusal> {
        let Some(within) = within else { return Ok(Nanos::MAX) };
        let deadline = now.saturating_add(within);
        let due = queue.due_behind(&self.rule, now, ask);
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
    ) -> Poll<Result<R::Charge, Refusal>> {
        // Nearly always it was granted before it was woken: nothing to serve then, and nothing to set.
        let seen = {
            let mut queue = lock(&self.queue);
            let seen = queue.see(key, wait.keeps().then_some(&mut wait.begun));
            self.waiting.store(queue.busy(), Ordering::Relaxed);
            seen
        };
        let seen = match seen {
            Seen::Waiting(_) => self.stay(wait, key, poller),
            Seen::Granted(_) | Seen::Refused(_) => seen,
        };
        match seen {
            Seen::Granted(charge) => Poll::Ready(Ok(charge)),
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
        let (Refusal::Limited { .. }, Some(within)) = (refusal, wait.within) else { return refusal };
        self.with_queue(|queue, now, _| {
            let due = queue.due_behind(&self.rule, now, &wait.ask);
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
        match self.with_queue(|queue, _, _| queue.see(key, None)) {
            Seen::Waiting(_) => return Ok(false),
            Seen::Granted(_) => wait.place = Place::Done,
            Seen::Refused(refusal) => {
                wait.place = Place::Done;
                return Err(refusal);
            }
        }
        Ok(true)
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
    }

    /// How many wait.
    pub(crate) fn waiting(&self) -> usize {
        match self.waiting.load(Ordering::Relaxed) {
            0 => 0,
            // Serves those who are due, so that they are not reported as waiting.
            _ => self.with_queue(|queue, _, _| queue.len()),
        }
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

    /// Serves, tells how many wait, sees that somebody will look when the next one is due, and unlocks.
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
        let status = status(now);
        let full_in = status.full_at.saturating_since(now).as_duration();
        let available = if waiting == 0 { status.available } else { 0 };
        Status { limit: status.limit, available, full_in, waiting }
    }

    /// Tells those who come without the lock whether they have to take it.
    pub(crate) fn tell_others(&self, queue: &Queue<R, C>) {
        self.waiting.store(queue.busy(), Ordering::Relaxed);
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
            queue.retime(&self.source(), now, after);
            Ok(())
        })
    }

    pub(crate) fn status(&self) -> Status {
        self.status_of(|now| self.rule.policy.status(&self.rule.state, now))
    }
}
