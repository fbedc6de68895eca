//! The state that a limiter and its futures share: a policy with its state, the gate word, and the
//! queue.
//!
//! A request asks the policy without a lock if the [gate word](super::gate_word) allows it.
//! Otherwise it takes the queue's lock.
//!
//! | operation | ordering | why |
//! |---|---|---|
//! | the gate word | Relaxed | `limiter/gate_word.rs` |
//! | `undo_number` is stored, under the lock | Release | only for composites: `all_of/member.rs` |
//! | policy state | as in `policy/atomic_word.rs` | |
//! | everything else | under the lock | |

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, Weak};
use std::time::Duration;

use crate::clock::Timer;
use crate::error::Refusal;
use crate::grant::{Grant, Left};
use crate::limiter::events::{Events, Observers};
use crate::limiter::gate_word::{GateWord, LATE, PAUSED, SHADOW, SHARE_KEPT, Word};
#[cfg(feature = "keyed")]
use crate::limiter::gate_word::{OBSERVED, word_of};
use crate::line::Line;
#[cfg(feature = "keyed")]
use crate::line::all_waiters::AllWaiters;
use crate::line::answer::{Admitted, Answer, Receipt};
use crate::line::deferred::{Deferred, keep, run, run_in_drop};
use crate::line::grants::{GrantKind, Granted, Undoable, counts, part_counts};
#[cfg(feature = "keyed")]
use crate::line::lateness::CATCH_UP;
use crate::line::lateness::Lateness;
use crate::line::recheck::Recheck;
use crate::line::rule::{Rule, Single, TakeLimit};
use crate::line::visit::{Demand, Visit};
use crate::policy::{Policy, PolicyStatus};
use crate::status::Status;
use crate::sync::{AtomicU64, MAX_RETRIES, Mutex, MutexGuard, Ordering, lock, try_lock};
use crate::time::Nanos;

/// How many limiters have been made.
static LIMITERS_MADE: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);

/// How much a request took, and its grant; `None` in shadow mode.
type Took<R> = (<R as Rule>::Ask, Option<Granted<<R as Rule>::Charge>>);

/// The state that a limiter and its futures share.
pub(crate) struct Shared<R: Rule, C: Timer> {
    pub(crate) rule: R,
    pub(crate) clock: C,
    /// Its number among all limiters. Composites ask their members in the order of these numbers.
    pub(crate) number: u64,
    pub(crate) gate_word: GateWord,
    /// The next number of the queue's undo log, which rises with each mark, refund, debit and
    /// change. A composite reads it before it takes permits without the lock. When the grant is
    /// undone, the log uses this number to find what happened since.
    pub(crate) undo_number: AtomicU64,
    /// The number of changes that affect the requests of composites, counted as
    /// [`TIMES_CHANGED`](crate::limiter::change::TIMES_CHANGED) and
    /// [`WEIGHTS_CHANGED`](crate::limiter::change::WEIGHTS_CHANGED).
    pub(crate) changes: AtomicU64,
    /// How late the last grants were.
    pub(crate) lateness: Lateness,
    pub(crate) line: Mutex<Line<R, C>>,
    pub(crate) events: Observers,
}

impl<R: Rule, C: Timer> Shared<R, C> {
    pub(crate) fn new(rule: R, clock: C, catch_up: Duration) -> Self {
        let line = Line::new(&rule);
        Shared {
            rule,
            clock,
            // Relaxed: each limiter gets a distinct number at any ordering.
            number: LIMITERS_MADE.fetch_add(1, std::sync::atomic::Ordering::Relaxed),
            gate_word: GateWord::new(false),
            undo_number: AtomicU64::new(line.undo_number()),
            changes: AtomicU64::new(0),
            lateness: Lateness::new(catch_up),
            line: Mutex::new(line),
            events: Observers::new(None),
        }
    }

    /// Counts the waiters among the waiters of all keys.
    #[cfg(feature = "keyed")]
    pub(crate) fn among(self, all_waiters: Arc<AllWaiters>) -> Self {
        lock(&self.line).all_waiters = Some(all_waiters);
        self
    }

    /// Sets the observer of all keys, before the limiter is shared. Runs no user code.
    #[cfg(feature = "keyed")]
    pub(crate) fn observed_by(mut self, all: Option<Arc<dyn Events>>) -> Self {
        if all.is_some() {
            lock(&self.line).settings.observed = true;
            self.gate_word = GateWord::new(true);
            self.events = Observers::new(all);
        }
        self
    }

    /// Takes exactly what a request asks for now, or refuses. Returns the grant, or `None` in
    /// shadow mode.
    #[inline]
    pub(crate) fn try_grant(
        &self,
        demand: Demand<'_, R::Ask>,
    ) -> Result<Option<Granted<R::Charge>>, Refusal> {
        let word = self.gate_word.load();
        if word.is_clear() {
            let charge = self.take_without_lock(word, self.clock.now(), demand.ask)?;
            return Ok(Some(Granted { charge, id: None }));
        }
        self.try_as_many(demand, GrantKind::Final).map(|(_, granted)| granted)
    }

    /// Takes as many permits as are available and the request takes. Takes none if fewer are
    /// available than the request asks for. Returns what it took, with `None` in shadow mode.
    #[cold]
    pub(crate) fn try_as_many(
        &self,
        demand: Demand<'_, R::Ask>,
        kind: GrantKind,
    ) -> Result<Took<R>, Refusal> {
        let word = self.gate_word.load();
        let taken = self.or_report_cancelled(demand.ask, || match kind {
            GrantKind::Final if word.needs_no_lock() => self
                .take_as_many(word, self.clock.now(), demand)
                .map(|(ask, charge)| (ask, Granted { charge, id: None })),
            _ => self.try_in_line(demand, kind),
        });
        let (ask, answer) = match taken {
            Ok((ask, granted)) => (ask, Ok(Admitted::Granted(granted))),
            Err(refusal) => (demand.ask.clone(), Err(refusal)),
        };
        let granted = self.report_end(&ask, Nanos::ZERO, answer)?;
        Ok((ask, granted))
    }

    /// Takes as many permits as are available and the request takes, without the lock. Takes none
    /// if fewer are available than the request asks for. Called if the gate word
    /// [allows](Word::needs_no_lock) it.
    ///
    /// The take is one decision of the policy: it takes all permits that the check found, or none.
    /// If another request took some of them in between, this request checks again, and finally it
    /// takes exactly what it asks for. So it is refused only if that was not available.
    pub(crate) fn take_as_many(
        &self,
        word: Word,
        now: Nanos,
        demand: Demand<'_, R::Ask>,
    ) -> Result<(R::Ask, R::Charge), Refusal> {
        let ask = demand.ask;
        if let Some(most) = demand.most {
            for _ in 0..=MAX_RETRIES {
                let more = self.rule.as_many(now, ask, most.get(), TakeLimit::FREE);
                if more == *ask {
                    break;
                }
                if let Ok(charge) = self.take_without_lock(word, now, &more) {
                    return Ok((more, charge));
                }
            }
        }
        self.take_without_lock(word, now, ask).map(|charge| (ask.clone(), charge))
    }

    /// Takes permits without the lock, now or as of when they were due, or refuses. Every take
    /// without the lock calls this function. Called if the gate word [allows](Word::needs_no_lock)
    /// it.
    #[inline]
    pub(crate) fn take_without_lock(
        &self,
        word: Word,
        now: Nanos,
        ask: &R::Ask,
    ) -> Result<R::Charge, Refusal> {
        if word.has(LATE) { self.take_late(now, ask) } else { self.take_at(now, ask) }
    }

    /// Takes permits without the lock as of `at`, or refuses.
    #[inline]
    fn take_at(&self, at: Nanos, ask: &R::Ask) -> Result<R::Charge, Refusal> {
        if R::PARTS == 1 {
            return self.rule.try_take(at, ask);
        }
        // As when a composite puts permits back: `all_of/member.rs` has the orderings.
        let undo_number = || self.undo_number.load(Ordering::Acquire);
        self.rule.take_all(at, ask, undo_number, |undo_number, taken| {
            self.serve_then(|line, visit| line.take_back(visit, Undoable::since(taken, undo_number)));
        })
    }

    #[cold]
    fn take_late(&self, now: Nanos, ask: &R::Ask) -> Result<R::Charge, Refusal> {
        // Another request may take the permit between the check and the take, so check again. The
        // number of checks is bounded, because a policy may contradict itself.
        for _ in 0..=MAX_RETRIES {
            let due = self.rule.ready_at(now, &R::Ahead::default(), ask, 0);
            if due > now {
                break;
            }
            let at = due.max(self.lateness.made_at(now, due)).min(now);
            match self.take_at(at, ask) {
                Err(refusal) if refusal.may_retry() => {}
                Err(refusal) => return Err(refusal),
                Ok(charge) => {
                    self.lateness.note_use(now, at);
                    if !self.lateness.is_some()
                        && let Some(line) = try_lock(&self.line)
                    {
                        // Clears the flag. If another thread holds the lock, the flag may stay set,
                        // and the next request takes the lock unnecessarily: see
                        // `src/line/lateness.rs`.
                        self.store_gate_word(&line);
                    }
                    return Ok(charge);
                }
            }
        }
        self.take_at(now, ask)
    }

    /// Serves the waiters that are due, then takes permits only if no waiter goes before this
    /// request.
    fn try_in_line(
        &self,
        demand: Demand<'_, R::Ask>,
        kind: GrantKind,
    ) -> Result<(R::Ask, Granted<R::Charge>), Refusal> {
        let held = self.serve_then(|line, visit| {
            let (ask, charge) = line.try_take(visit, demand)?;
            Ok((ask, UndoGuard::new(self, line.undoable(visit.rule, charge, kind))))
        });
        held.map(|(ask, held)| (ask, held.keep()))
    }

    /// Notifies the observers of how a call ended, and turns a refusal into a pass in shadow mode.
    pub(crate) fn report_end(
        &self,
        ask: &R::Ask,
        waited: Nanos,
        answer: Answer<Granted<R::Charge>>,
    ) -> Result<Option<Granted<R::Charge>>, Refusal> {
        let for_caller =
            |refusal| self.or_report_cancelled(ask, || self.rule.refusal_for_caller(ask, refusal));
        let answer = match answer {
            Ok(Admitted::Shadow(refusal)) => Ok(Admitted::Shadow(for_caller(refusal))),
            // A closed limiter refuses even in shadow mode, because what it guards has ended.
            Err(refusal) if refusal != Refusal::Closed && self.gate_word.load().has(SHADOW) => {
                Ok(Admitted::Shadow(for_caller(refusal)))
            }
            answer => answer.map_err(for_caller),
        };
        self.report(|events| {
            let permits = self.rule.permits(ask);
            match &answer {
                Ok(Admitted::Granted(_)) => events.granted(permits, waited.as_duration()),
                Ok(Admitted::Shadow(refusal)) => events.shadowed(permits, refusal),
                Ok(Admitted::Exempt) => events.exempted(permits),
                Err(refusal) => events.refused(permits, refusal),
            }
        });
        answer.map(Admitted::granted)
    }

    /// Runs a part of a call. If user code panics in it, such as the waker of another request, the
    /// observers are notified that the call was cancelled: it took nothing.
    #[inline]
    pub(crate) fn or_report_cancelled<T>(&self, ask: &R::Ask, work: impl FnOnce() -> T) -> T {
        let unreported = Unreported::new(self, ask);
        let done = work();
        std::mem::forget(unreported);
        done
    }

    /// Notifies the observers, if there are any. Not under the lock.
    pub(crate) fn report(&self, event: impl Fn(&dyn Events)) {
        self.events.report(event);
    }

    /// Returns how many requests are in the queue.
    pub(crate) fn waiting(&self) -> usize {
        if !self.gate_word.load().has_waiters() {
            return 0;
        }
        // Serves the waiters that are due, so that they are not reported as waiting.
        self.serve_then(|line, _| line.len())
    }

    /// Returns whether no request is in the queue, and no setting has changed since the limiter was
    /// made, except for the observer of all keys.
    #[cfg(feature = "keyed")]
    pub(crate) fn is_plain(&self) -> bool {
        let mut line = lock(&self.line);
        let now = self.now_in_line();
        // A pause may have ended with no call since then. The gate word is not stored, so the next
        // request may take the lock unnecessarily.
        line.begin_check(&self.rule, now, self.lateness.catch_up());
        // Shadow mode of all keys is not a setting of this limiter.
        let unset = if line.settings.shadow { OBSERVED } else { OBSERVED | SHADOW };
        word_of(&line).has_only(unset)
            // The next request may be charged as of an earlier time, and the policy's state does
            // not contain that time.
            && !self.lateness.is_usable(now)
            && !self.events.has_own()
            && line.is_unused()
            && self.lateness.catch_up() == Nanos::from_duration(CATCH_UP)
    }

    /// Creates the [`Visit`] of a lock holder at the time `now`.
    pub(crate) fn visit_at<'a>(&'a self, now: Nanos, deferred: &'a mut Deferred) -> Visit<'a, R> {
        let (rule, lateness) = (&self.rule, &self.lateness);
        Visit { rule, lateness, now, deferred, due: None, is_unchanged: false }
    }

    /// Returns the target that an alarm of the queue notifies.
    pub(crate) fn weak(self: &Arc<Self>) -> Weak<dyn Recheck> {
        let this: Weak<Self> = Arc::downgrade(self);
        this
    }

    /// Serves the waiters that are due, then runs `work` with the queue.
    pub(crate) fn serve_then<T>(&self, work: impl FnOnce(&mut Line<R, C>, &mut Visit<'_, R>) -> T) -> T {
        self.serve_if_then(|_| true, work)
    }

    /// Runs `work` with the queue. Before that, serves the waiters that are due, if the queue
    /// `needs` it. If user code panics before `work` runs, such as a waker or the clock of a
    /// composite's member, the panic resumes after it.
    pub(crate) fn serve_if_then<T>(
        &self,
        needs: impl Fn(&Line<R, C>) -> bool,
        work: impl FnOnce(&mut Line<R, C>, &mut Visit<'_, R>) -> T,
    ) -> T {
        let (mut work, mut panic) = (Some(work), None);
        loop {
            let (mut served_some, mut in_serve) = (false, None);
            let done = run(&mut panic, || {
                self.with_line(|line, visit| {
                    if needs(line)
                        && let Some(due) = run(&mut in_serve, || line.serve(visit))
                    {
                        visit.due = due;
                        // If more waiters are due than are served in one go, `work` runs in a later
                        // round.
                        served_some = due.is_some_and(|due| due <= visit.now);
                        if served_some {
                            return None;
                        }
                    }
                    work.take().map(|work| work(line, visit))
                })
            });
            in_serve.into_iter().for_each(|payload| keep(&mut panic, payload));
            if served_some {
                continue;
            }
            let done = done.flatten();
            if let Some(panic) = panic {
                resume_unwind(panic);
            }
            if let Some(done) = done {
                return done;
            }
        }
    }

    /// Runs `work` with the queue, serves the waiters that are due, and runs the deferred work.
    /// Unlike [`serve_then`](Shared::serve_then), it does not serve before `work`.
    ///
    /// User code may panic anywhere here: a clock, a policy, a timer that is made outside of its
    /// runtime, a waker that is called.
    ///
    /// The panic is kept. The queue is served as far as possible, the gate word is stored and the
    /// granted waiters are woken; then the panic resumes. After a panic while the queue is served,
    /// or while an alarm is chosen, the alarms are lost: the waiting tasks set new ones.
    ///
    /// A panic discards the result of `work`, so a decision that was taken out of the queue would
    /// be lost. Therefore decisions are taken in a section of their own ([`Line::collect`]), and
    /// permits are kept in an [`UndoGuard`].
    pub(crate) fn with_line<T>(&self, work: impl FnOnce(&mut Line<R, C>, &mut Visit<'_, R>) -> T) -> T {
        let mut deferred = Deferred::new();
        let (mut line, now) = self.enter(lock(&self.line), &mut deferred);
        let mut visit = self.visit_at(now, &mut deferred);
        let result = catch_unwind(AssertUnwindSafe(|| work(&mut line, &mut visit)));
        let served = visit.is_unchanged.then_some(visit.due);
        self.finish(line, now, served, &mut deferred);
        // The lock is released: `finish` has taken the guard. The wakers run before a panic
        // resumes.
        drop(deferred);
        result.unwrap_or_else(|panic| resume_unwind(panic))
    }

    /// Reads the clock for requests that wait. The last time means never: no request that waits
    /// until then is due.
    pub(crate) fn now_in_line(&self) -> Nanos {
        self.clock.now().min(Nanos::new(u64::MAX - 1))
    }

    /// Reads the clock and begins a visit. If the clock panics, its latest reading is used.
    fn enter<'a>(
        &'a self,
        mut line: MutexGuard<'a, Line<R, C>>,
        deferred: &mut Deferred,
    ) -> (MutexGuard<'a, Line<R, C>>, Nanos) {
        loop {
            let now = deferred.run(|| self.now_in_line()).unwrap_or(line.latest());
            let begun = deferred.run_with(|deferred| self.begin_visit(&mut line, now, deferred));
            if begun.unwrap_or(true) {
                return (line, now);
            }
            self.publish(&line);
            line = self.yield_lock(line, deferred);
        }
    }

    /// Releases the lock for a moment, if more waiters are due than are served in one go, so that
    /// other threads can take it and the served waiters wake.
    fn yield_lock<'a>(
        &'a self,
        line: MutexGuard<'a, Line<R, C>>,
        deferred: &mut Deferred,
    ) -> MutexGuard<'a, Line<R, C>> {
        drop(line);
        deferred.wake_now();
        std::thread::yield_now();
        lock(&self.line)
    }

    /// Records the time, and applies what a pause must do by then. Before that, it serves a slice
    /// of the waiters that were due [before](Line::must_serve_before). Returns `false` if there are
    /// more such waiters; then the pause has yet to end.
    pub(crate) fn begin_visit(&self, line: &mut Line<R, C>, now: Nanos, deferred: &mut Deferred) -> bool {
        if let Some(at) = line.must_serve_before(now, self.lateness.catch_up())
            && line.serve(&mut self.visit_at(at, deferred)).is_some_and(|due| due <= at)
        {
            return false;
        }
        line.begin_visit(&self.rule, now);
        true
    }

    /// Serves the queue, stores the gate word, handles the alarm for the next waiter that is due,
    /// and unlocks. With `served`, the queue was served already, and `served` is when it must be
    /// served next.
    ///
    /// Wakers are called last, when the caller drops `deferred`: they are user code that may take a
    /// long time, call the limiter or panic.
    fn finish<'a>(
        &'a self,
        mut line: MutexGuard<'a, Line<R, C>>,
        mut now: Nanos,
        mut served: Option<Option<Nanos>>,
        deferred: &mut Deferred,
    ) {
        loop {
            let due = served
                .take()
                .or_else(|| deferred.run_with(|deferred| line.serve(&mut self.visit_at(now, deferred))));
            self.publish(&line);
            // The policy panicked, or the clock of a composite's member.
            let Some(due) = due else { return line.lose_alarms(now, deferred) };
            if due.is_some_and(|due| due <= now) {
                (line, now) = self.enter(self.yield_lock(line, deferred), deferred);
                continue;
            }
            let Some(due) = due else { return };
            let Some(arming) = deferred.run_with(|deferred| line.watch(due, &self.clock, deferred)) else {
                return line.lose_alarms(due, deferred);
            };
            let Some(mut arming) = arming else { return };
            // Setting an alarm may call its waker, which takes the lock.
            drop(line);
            // A timer that panics is treated as gone.
            let gone = deferred.run(|| arming.run()).unwrap_or(true);
            line = lock(&self.line);
            line.put_back(arming, gone, deferred);
            // While the lock was released, the queue may have changed, and other threads do not
            // touch an alarm that this thread is setting. So the loop serves and checks again.
            (line, now) = self.enter(line, deferred);
        }
    }
}

impl<R: Rule, C: Timer> Recheck for Shared<R, C> {
    fn recheck(&self) {
        self.serve_then(|_, _| ());
    }
}

/// A call that has not been reported to the observers. Dropping it reports that the call took
/// nothing.
pub(crate) struct Unreported<'a, R: Rule, C: Timer> {
    shared: &'a Shared<R, C>,
    ask: &'a R::Ask,
    pub(crate) waited: Cell<Nanos>,
}

impl<'a, R: Rule, C: Timer> Unreported<'a, R, C> {
    pub(crate) fn new(shared: &'a Shared<R, C>, ask: &'a R::Ask) -> Self {
        Unreported { shared, ask, waited: Cell::new(Nanos::ZERO) }
    }
}

impl<R: Rule, C: Timer> Drop for Unreported<'_, R, C> {
    fn drop(&mut self) {
        let (permits, waited) = (self.shared.rule.permits(self.ask), self.waited.get().as_duration());
        self.shared.report(|events| events.cancelled(permits, waited));
    }
}

/// A grant on its way to its caller. If user code panics in between, dropping it undoes the grant.
pub(crate) struct UndoGuard<'a, R: Rule, C: Timer> {
    shared: &'a Shared<R, C>,
    /// `None` once the caller has the grant.
    grant: Option<Undoable<R::Charge>>,
}

impl<'a, R: Rule, C: Timer> UndoGuard<'a, R, C> {
    /// Holds a grant that was just made, under the lock.
    pub(crate) fn new(shared: &'a Shared<R, C>, grant: Undoable<R::Charge>) -> Self {
        UndoGuard { shared, grant: Some(grant) }
    }

    /// Returns what the grant took.
    pub(crate) fn charge(&self) -> Option<&R::Charge> {
        self.grant.as_ref().map(|grant| &grant.charge)
    }

    /// Undoes the grant. The drop does so under the lock.
    pub(crate) fn undo(mut self) {
        self.grant.take().into_iter().for_each(|grant| self.shared.undo(grant));
    }

    /// Hands the grant to its caller.
    pub(crate) fn keep(mut self) -> Granted<R::Charge> {
        match self.grant.take() {
            Some(grant) => grant.granted(),
            None => unreachable!("only this takes it, and takes it with the rest"),
        }
    }
}

impl<R: Rule, C: Timer> Drop for UndoGuard<'_, R, C> {
    fn drop(&mut self) {
        let Some(grant) = self.grant.take() else { return };
        // `with_line` serves after this work, so permits put back are available to the waiters.
        run_in_drop(|| self.shared.with_line(|line, visit| line.take_back(visit, grant)));
    }
}

impl<R: Rule, C: Timer> Shared<R, C> {
    /// Undoes a grant, or a part of one, and serves the waiters.
    ///
    /// A window policy, or a part that is one, undoes before the lock is taken, because a log takes
    /// long to undo many permits. No request overtakes meanwhile: while a waiter is in the queue,
    /// every other request takes the lock, and the holder of the lock serves the waiters first. No
    /// wake-up is lost: the visit that follows serves the waiters with the permits given back. If
    /// nothing wakes some of the waiters, the queue is served before as well. In a pause all is
    /// undone under the lock: see `line/pause.rs`.
    pub(crate) fn undo(&self, mut grant: Undoable<R::Charge>) {
        let mut deferred = Deferred::new();
        if counts(&self.rule, &grant.charge) {
            // The lock is held only for this reading, because a log takes long to undo.
            let (mut latest, has_unattended, is_paused) = {
                let line = lock(&self.line);
                (line.latest(), line.has_unattended(), line.settings.pause.is_some())
            };
            if is_paused {
                return self.serve_then(|line, visit| line.take_back(visit, grant));
            }
            if has_unattended {
                let served = deferred.run(|| self.serve_then(|line, _| line.latest()));
                latest = served.unwrap_or(latest);
            }
            self.undo_unlocked(&mut grant.charge, latest, &mut deferred);
        }
        self.serve_then(|line, visit| line.undo_rest(visit, grant));
    }

    /// Undoes what window policies granted, if there are any among the parts. Called without the
    /// lock.
    pub(crate) fn undo_unlocked(&self, charge: &mut R::Charge, latest: Nanos, deferred: &mut Deferred) {
        for part in 0..R::PARTS {
            if part_counts(&self.rule, charge, part) {
                self.rule.undo(latest, charge, part, u64::MAX, deferred);
            }
        }
    }

    /// Records the lateness of a grant that its waiter sees now, unless other requests are in the
    /// queue: they are charged as of when they are due.
    pub(crate) fn note_lateness(&self, line: &Line<R, C>, now: Nanos) {
        if line.len() + line.seats.len() == 0 && self.rule.records_lateness() {
            self.lateness.set(now, now.saturating_since(line.charged));
        }
    }

    /// Stores the gate word, from which requests without the lock learn whether they must take it.
    pub(crate) fn store_gate_word(&self, line: &Line<R, C>) {
        self.gate_word.store(line, self.lateness.is_some());
    }

    /// Stores the gate word, and the next number of the undo log. A section that grants and refunds
    /// nothing does not raise the number, and stores only the gate word.
    pub(crate) fn publish(&self, line: &Line<R, C>) {
        self.store_gate_word(line);
        // Release: a thread that reads this number also sees the refunds before it in the policy's
        // state, see `all_of/member.rs`.
        self.undo_number.store(line.undo_number(), Ordering::Release);
    }
}

impl<P: Policy, C: Timer> Shared<Single<P>, C> {
    pub(crate) fn status(&self) -> Status {
        if self.gate_word.load().needs_no_lock() {
            let now = self.clock.now();
            return Status::new(self.rule.status(now), self.rule.policy.rate(), now);
        }
        // Serves the waiters that are due, so that they are not reported as waiting.
        self.serve_then(|line, visit| {
            let (now, opens) = (visit.now, line.settings.opens_for(visit.now));
            let next_at = line.due_behind(visit, Demand::exactly(&1, 0));
            let status = self.rule.status(now);
            let most = line.restraint(visit.rule, line.latest());
            let status = PolicyStatus {
                available: status.available.min(most),
                next_at,
                full_at: line.full_at(visit),
                ..status
            };
            let status = Status::new(status, self.rule.policy.rate(), now);
            let available = match line.len() {
                0 if opens <= now => line.beside_seats(visit, status.available),
                _ => 0,
            };
            Status {
                available,
                waiting: line.len() + line.seats.len(),
                paused_for: opens.saturating_since(now).as_duration(),
                ..status
            }
        })
    }

    /// Computes what a grant left from the charge and not from the state, which may have changed
    /// since the grant.
    #[cold]
    pub(crate) fn left(&self, charge: &P::Charge) -> Left {
        let (now, Single { policy, state }) = (self.clock.now(), &self.rule);
        let left = policy.left(state, *charge, now).as_left(now);
        let word = self.gate_word.load();
        if !word.has(PAUSED) && !word.has(SHARE_KEPT) {
            return left;
        }
        // As far as a pause, the spacing of grants after it, and a kept share allow.
        let status = self.status();
        Left {
            limit: left.limit,
            available: left.available.min(status.available),
            next_in: left.next_in.max(status.next_in),
            full_in: left.full_in.max(status.full_in),
        }
    }

    /// Takes exactly what a request asks for now, or refuses.
    // Inlined, so that a caller that ignores the grant does not pay for its stores.
    #[inline(always)]
    pub(crate) fn try_acquire(&self, demand: Demand<'_, u32>) -> Result<Grant, Refusal> {
        let word = self.gate_word.load();
        if word.is_clear() {
            // `?` leaves the charge where it is. `map`, or `try_grant`, would first move charge and
            // refusal to one address.
            self.take_without_lock(word, self.clock.now(), demand.ask)?;
            return Ok(Grant::at_once(*demand.ask));
        }
        let (_, granted) = self.try_as_many(demand, GrantKind::Final)?;
        Ok(Grant::at_once(if granted.is_some() { *demand.ask } else { 0 }))
    }

    /// Takes as many permits as are available now and the request takes, or refuses.
    #[cold]
    pub(crate) fn try_up_to(&self, demand: Demand<'_, u32>, wants_left: bool) -> Result<Grant, Refusal> {
        let (n, granted) = self.try_as_many(demand, GrantKind::Final)?;
        Ok(self.grant(&Receipt { waited: Nanos::ZERO, granted }, n, wants_left))
    }

    /// Returns the grant for a receipt of a request for `n` permits. The grant reports what it left
    /// if the request asked for that.
    #[inline]
    pub(crate) fn grant(&self, receipt: &Receipt<P::Charge>, n: u32, wants_left: bool) -> Grant {
        match &receipt.granted {
            None => Grant::new(0, receipt.waited),
            Some(_) if !wants_left => Grant::new(n, receipt.waited),
            Some(granted) => Grant::new(n, receipt.waited).with_left(self.left(&granted.charge)),
        }
    }
}
