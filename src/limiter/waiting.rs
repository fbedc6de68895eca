//! How a request waits at a limiter: it joins the queue, checks for its decision, and leaves.
//!
//! # The steps of `acquire().await` without a permit
//!
//! | step | function | file |
//! |---|---|---|
//! | 1. the future is made, in stage `New` | `Acquire::new` | `limiter/futures.rs` |
//! | 2. its first poll asks the policy without the lock, and the policy refuses for now | `Shared::poll`, `take_without_lock` | here, `limiter/shared.rs` |
//! | 3. the request takes the lock; waiters that are due are served first | `poll_slowly`, `join`, `Shared::serve_then` | here, `limiter/shared.rs` |
//! | 4. the policy is asked again, and refuses for now | `Line::take_as_many` | `line/take.rs` |
//! | 5. the task gets the alarm of its runtime | `rely_on_alarm`, `Alarms::join` | here, `line/alarms.rs` |
//! | 6. the request becomes an entry of the queue, if the queue's bounds allow it, in stage `Queued` | `Line::enter`, `Line::make_room`, `Line::push` | `line/bounds.rs`, `line/mod.rs` |
//! | 7. the gate word is stored: newcomers take the lock from now on | `Shared::finish` | `limiter/shared.rs` |
//! | 8. an alarm is chosen, set without the lock, and put back; the poll returns `Pending` | `Line::watch`, `Arming::run`, `Line::put_back` | `line/watch.rs`, `line/alarms.rs` |
//! | 9. the alarm fires, and its waker takes the lock | `AlarmWaker::wake`, `Shared::recheck` | `line/alarms.rs`, `limiter/shared.rs` |
//! | 10. the entry is charged as of its due time, and leaves the queue | `Line::serve` | `line/serve.rs` |
//! | 11. without the lock, the task is woken | `Deferred::drop` | `line/deferred.rs` |
//! | 12. the second poll takes the grant out of the entry and returns `Ready` | `poll_queued`, `collect`, `answer` | here |

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::task::{Poll, ready};
use std::time::Duration;

use crate::clock::Timer;
use crate::error::Refusal;
use crate::limiter::pending::{Pending, Poller, Progress, Stage};
use crate::limiter::shared::{Shared, UndoGuard, Unreported};
use crate::line::all_waiters::Entered;
use crate::line::answer::{Admitted, Answer, Receipt};
use crate::line::deferred::run_in_drop;
use crate::line::grants::{GrantKind, Granted};
use crate::line::recheck::Recheck;
use crate::line::rule::Rule;
use crate::line::visit::{Demand, Visit};
use crate::line::{Line, NewWaiter, WokenBy};
use crate::policy::limited;
use crate::request::Request;
use crate::sync::lock;
use crate::time::Nanos;

/// After this many alarms of one runtime fired too early for a waiter, the timer and the clock
/// disagree about the time.
const TOO_OFTEN: u8 = 16;

impl<R: Rule, C: Timer> Shared<R, C> {
    /// Polls a request for a task or a blocked thread.
    #[inline]
    pub(crate) fn poll(
        self: &Arc<Self>,
        wait: &mut Progress<R::Ask>,
        poller: Poller<'_>,
    ) -> Poll<Result<Receipt<R::Charge>, Refusal>> {
        if let Stage::New(most) = wait.stage {
            wait.since = self.clock.now();
            let word = self.gate_word.load();
            if most.is_none() && word.is_clear() && wait.kind == GrantKind::Final {
                match self.take_without_lock(word, wait.since, &wait.ask) {
                    Err(refusal) if refusal.may_retry() => wait.stage = Stage::Joining(None),
                    answer => {
                        wait.stage = Stage::Done;
                        return Poll::Ready(answer.map(|charge| Receipt {
                            waited: Nanos::ZERO,
                            granted: Some(Granted { charge, id: None }),
                        }));
                    }
                }
            }
        }
        self.poll_slowly(wait, poller)
    }

    /// Polls a request that must wait, or that arrives while other requests wait or a flag is set.
    fn poll_slowly(
        self: &Arc<Self>,
        wait: &mut Progress<R::Ask>,
        poller: Poller<'_>,
    ) -> Poll<Result<Receipt<R::Charge>, Refusal>> {
        if let Stage::New(most) = wait.stage {
            wait.stage = Stage::Joining(most);
            let word = self.gate_word.load();
            if word.needs_no_lock() && wait.kind == GrantKind::Final {
                match self.take_as_many(word, wait.since, wait.demand()) {
                    Err(refusal) if refusal.may_retry() => {}
                    answer => {
                        let answer = answer.map(|(ask, charge)| {
                            wait.ask = ask;
                            Admitted::Granted(Granted { charge, id: None })
                        });
                        return Poll::Ready(self.answer(wait, Nanos::ZERO, answer));
                    }
                }
            }
        }
        let (answer, waited) = match wait.stage {
            Stage::Exempt => (Ok(Admitted::Exempt), Nanos::ZERO),
            // `New` became `Joining` above.
            Stage::New(_) | Stage::Joining(_) => (ready!(self.join(wait, poller)), Nanos::ZERO),
            Stage::Queued(key) => {
                let (answer, now) = ready!(self.poll_queued(wait, key, poller));
                (answer, now.saturating_since(wait.since))
            }
            Stage::Done | Stage::Spent => panic!("polled after it was ready"),
        };
        Poll::Ready(self.answer(wait, waited, answer))
    }

    /// Ends a request with its decision.
    fn answer(
        &self,
        wait: &mut Progress<R::Ask>,
        waited: Nanos,
        answer: Answer<Granted<R::Charge>>,
    ) -> Result<Receipt<R::Charge>, Refusal> {
        // Set first, so that the drop after a panic of an observer has nothing to leave.
        let is_granted = matches!(answer, Ok(Admitted::Granted(_)));
        wait.stage = if is_granted { Stage::Spent } else { Stage::Done };
        let ended = self.report_end(&wait.ask, waited, answer);
        wait.stage = Stage::Done;
        ended.map(|granted| Receipt { waited, granted })
    }

    /// Joins the queue, unless the permits are available by now.
    fn join(
        self: &Arc<Self>,
        wait: &mut Progress<R::Ask>,
        poller: Poller<'_>,
    ) -> Poll<Answer<Granted<R::Charge>>> {
        let (Poller::Task(waker) | Poller::Thread(waker)) = poller;
        // Cloned, and dropped if it is not needed, without the lock: both run user code.
        let mut waker = Some(waker.clone());
        let held = self.serve_then(|line, visit| {
            let demand = wait.demand();
            line.check(visit.rule, visit.now, demand)?;
            let no_room = !line.has_room(visit.rule, demand.ask);
            // Asked again, with the lock: permits may have been added in between, and only a holder
            // of the lock learns of later ones. In a full queue the request cannot wait, so it
            // takes an available permit even before woken waiters have collected theirs.
            if (line.uncollected() == 0 || no_room) && line.is_open(visit, demand) {
                match line.take_as_many(visit, demand) {
                    Err(refusal) if refusal.may_retry() => {}
                    Err(refusal) => return Err(refusal),
                    Ok((ask, charge)) => {
                        wait.ask = ask;
                        let grant = line.undoable(visit.rule, charge, wait.kind);
                        return Ok(Some(Admitted::Granted(UndoGuard::new(self, grant))));
                    }
                }
            }
            if line.settings.is_shadow() {
                return Ok(Some(Admitted::Shadow(limited(line.due_behind(visit, demand), visit.now))));
            }
            let deadline = deadline(line, visit, wait)?;
            let woken_by = match poller {
                Poller::Thread(_) if !self.clock.wakes_threads() => WokenBy::Thread { checks_at: Nanos::MAX },
                Poller::Task(_) | Poller::Thread(_) => self.rely_on_alarm(line, self.runtime(), visit.now, 0),
            };
            // After the timer, which may panic, so that no waiter makes room for a request that
            // does not join.
            let room = line.enter(visit, demand);
            let entered = match room.and_then(|entered| line.make_room(visit, demand).map(|()| entered)) {
                Ok(entered) => entered,
                Err(refusal) => {
                    line.leave_alarm(woken_by, visit.deferred);
                    return Err(refusal);
                }
            };
            let since = visit.made_at(|| line.due_behind(visit, demand));
            let Demand { ask, priority, most } = demand;
            let (ask, waker, droppable) = (ask.clone(), waker.take(), true);
            let new_waiter = NewWaiter { ask, most, priority, droppable, woken_by, since, deadline, waker };
            wait.stage = Stage::Queued(line.push(visit, new_waiter));
            entered.keep();
            // From here on user code may panic. The request knows of its entry.
            line.refuse_moved_back(visit, wait.priority);
            Ok(None)
        });
        drop(waker);
        match held {
            Ok(None) => Poll::Pending,
            Ok(Some(outcome)) => Poll::Ready(Ok(outcome.map(UndoGuard::keep))),
            Err(refusal) => Poll::Ready(Err(refusal)),
        }
    }

    /// Returns the runtime of the calling task.
    fn runtime(&self) -> C::RuntimeId {
        match self.clock.runtime() {
            Some(runtime) => runtime,
            None => {
                panic!("a `TokioClock` limiter must wait inside a tokio runtime; use `SystemClock` elsewhere")
            }
        }
    }

    /// Joins the queue without a waker. If the permits are available, the request is granted at
    /// once. Its entry keeps the grant until the request claims it.
    pub(crate) fn reserve(
        self: &Arc<Self>,
        ask: R::Ask,
        request: &Request,
    ) -> Result<Progress<R::Ask>, Refusal> {
        let mut this = Pending::new(self, Progress::with(ask, request).tracked());
        let wait = &mut this.wait;
        if request.exempt {
            return Ok(this.release());
        }
        wait.stage = Stage::Joining(request.more());
        let answer = self.serve_then(|line, visit| {
            let (demand, now) = (wait.demand(), visit.now);
            line.check(&self.rule, now, demand)?;
            let deadline = deadline(line, visit, wait)?;
            // A request that is due now needs no room, unless it waits for permits in use.
            let due = line.due_behind(visit, demand);
            let may_lack = || self.rule.may_lack_permits(demand.ask, line.goes_first(demand.priority));
            let entered = if due > now || deadline > now && may_lack() {
                let entered = line.enter(visit, demand)?;
                line.make_room(visit, demand)?;
                Some(entered)
            } else {
                Entered::new(line.all_waiters.as_ref(), visit.rule.permits(demand.ask), true)
            };
            let Demand { ask, priority, most } = demand;
            let new_waiter = NewWaiter {
                ask: ask.clone(),
                most,
                priority,
                // The owner of a reservation relies on its position.
                droppable: false,
                woken_by: WokenBy::Nothing,
                since: visit.made_at(|| due),
                deadline,
                waker: None,
            };
            (wait.stage, wait.since) = (Stage::Queued(line.push(visit, new_waiter)), now);
            entered.into_iter().for_each(Entered::keep);
            line.refuse_moved_back(visit, wait.priority);
            Ok(())
        });
        if let Err(refusal) = answer.and_then(|()| self.check_not_refused(&mut this.wait)) {
            // In shadow mode the request passes, and has nothing to claim.
            this.wait.stage = Stage::Done;
            self.report_end(&this.wait.ask, Nanos::ZERO, Err(refusal))?;
        }
        Ok(this.release())
    }

    /// Refuses a new reservation that can no longer be served in time, because another request took
    /// the permits without the lock between the check and the charge.
    fn check_not_refused(&self, wait: &mut Progress<R::Ask>) -> Result<(), Refusal> {
        let Stage::Queued(key) = wait.stage else { return Ok(()) };
        if !lock(&self.line).was_refused(key) {
            return Ok(());
        }
        match self.collect(wait, key, self.clock.now()) {
            Some(Err(refusal)) => Err(self.refused_now(wait, refusal)),
            _ => Ok(()),
        }
    }

    /// Makes a waiter rely on the alarm of its runtime. `too_early` is how many of the runtime's
    /// alarms fired too early for the waiter before.
    fn rely_on_alarm(
        self: &Arc<Self>,
        line: &mut Line<R, C>,
        runtime: C::RuntimeId,
        now: Nanos,
        too_early: u8,
    ) -> WokenBy<C::RuntimeId> {
        let alarm = line.alarms.join(&self.clock, runtime, now, || self.weak());
        // There is one alarm for each runtime, so never 2^32 of them.
        WokenBy::Task { alarm: u32::try_from(alarm).unwrap_or(u32::MAX), too_early }
    }

    /// Checks whether a queued request has its decision, and if not, stores the waker. Returns the
    /// decision and the time at which it was seen.
    ///
    /// Nearly always the request was granted before it was woken; then nothing is left to serve.
    fn poll_queued(
        self: &Arc<Self>,
        wait: &mut Progress<R::Ask>,
        key: u32,
        poller: Poller<'_>,
    ) -> Poll<(Answer<Granted<R::Charge>>, Nanos)> {
        let mut now = self.clock.now();
        let mut answer = self.collect(wait, key, now);
        if answer.is_none() {
            self.keep_waiting(key, poller);
            now = self.clock.now();
            answer = self.collect(wait, key, now);
        }
        match answer {
            Some(Err(refusal)) => Poll::Ready((Err(self.refused_now(wait, refusal)), now)),
            Some(answer) => Poll::Ready((answer, now)),
            None => Poll::Pending,
        }
    }

    /// Takes the decision of a queued request out of the queue, if it has one.
    ///
    /// The entry leaves the queue and the request forgets its key, with no user code in between. If
    /// another waiter's waker panicked in this call after the entry had left, the key might belong
    /// to a newcomer when the request is dropped.
    fn collect(
        &self,
        wait: &mut Progress<R::Ask>,
        key: u32,
        now: Nanos,
    ) -> Option<Answer<Granted<R::Charge>>> {
        let mut line = lock(&self.line);
        let was_granted = line.was_granted(key);
        if was_granted {
            self.note_lateness(&line, now);
        }
        let answer = line.collect(key, wait.kind, &mut wait.ask)?;
        wait.stage = Stage::Done;
        self.store_gate_word(&line);
        drop(line);
        if let Ok(Admitted::Granted(granted)) = &answer
            && was_granted
        {
            self.rule.note_collected(&granted.charge);
        }
        Some(answer)
    }

    /// Serves the waiters that are due. If this request is not among them, stores its waker and
    /// handles its alarm.
    fn keep_waiting(self: &Arc<Self>, key: u32, poller: Poller<'_>) {
        let (Poller::Task(waker) | Poller::Thread(waker)) = poller;
        // Cloned, and the old one dropped, without the lock: both run user code.
        let mut waker = Some(waker.clone());
        self.serve_then(|line, visit| {
            let Some(woken_by) = line.woken_by(key) else { return };
            line.set_waker(key, &mut waker);
            let (runtime, too_early) = match woken_by {
                WokenBy::Task { alarm, .. } => match self.clock.runtime() {
                    // Polled in another runtime than before: the request relies on that runtime
                    // from now on.
                    Some(runtime) if runtime != line.alarms.runtime(alarm as usize) => (runtime, 0),
                    // The request has an alarm, and may be polled from any thread.
                    Some(_) | None => return,
                },
                WokenBy::Lost { runtime: before, too_early } => {
                    let runtime = self.runtime();
                    let too_early = if runtime == before { too_early } else { 0 };
                    assert!(
                        too_early < TOO_OFTEN,
                        "the timer of this limiter fires long before its clock says so; if tokio's time is paused, \
                         enable tidegate's feature `test-util` or make the limiter with a `TokioClock`"
                    );
                    (runtime, too_early)
                }
                WokenBy::Nothing if matches!(poller, Poller::Thread(_)) && !self.clock.wakes_threads() => {
                    line.set_woken_by(key, WokenBy::Thread { checks_at: Nanos::MAX }, visit.deferred);
                    return;
                }
                WokenBy::Nothing => (self.runtime(), 0),
                WokenBy::Thread { checks_at } => {
                    if checks_at <= visit.now {
                        // The due time has passed without a grant: check again at the next one.
                        line.set_woken_by(key, WokenBy::Thread { checks_at: Nanos::MAX }, visit.deferred);
                    }
                    return;
                }
            };
            let woken_by = self.rely_on_alarm(line, runtime, visit.now, too_early);
            line.set_woken_by(key, woken_by, visit.deferred);
        });
    }

    /// Returns the refusal that a new call would get now, for a request that was refused while it
    /// waited.
    fn refused_now(&self, wait: &Progress<R::Ask>, refusal: Refusal) -> Refusal {
        let (Refusal::Limited { .. } | Refusal::Paused { .. }, Some(within)) =
            (refusal, wait.longest(self.rule.max_wait(&wait.ask)))
        else {
            return refusal;
        };
        // If a waker panics, the observers get the refusal that the request already has.
        let predict = || {
            self.serve_then(|line, visit| {
                let demand = wait.demand();
                let (due, by) = (line.due_behind(visit, demand), visit.now.saturating_add(within));
                line.refuse_late(visit, demand, due, by)
            })
        };
        catch_unwind(AssertUnwindSafe(predict)).unwrap_or_else(|panic| {
            let _ = self.report_end(&wait.ask, Nanos::ZERO, Err(refusal));
            resume_unwind(panic)
        })
    }

    /// Returns until when a blocked thread parks.
    pub(crate) fn checks_at(&self, wait: &Progress<R::Ask>) -> Nanos {
        let Stage::Queued(key) = wait.stage else { return Nanos::ZERO };
        lock(&self.line).checks_at(key)
    }

    /// Ends the wait of a blocked thread. Its request stays in the queue without the thread.
    /// Returns `false` if the request has its decision.
    pub(crate) fn stop_waiting(&self, wait: &Progress<R::Ask>) -> bool {
        let Stage::Queued(key) = wait.stage else { return false };
        self.serve_then(|line, visit| {
            let waits = line.woken_by(key).is_some();
            if waits {
                let mut waker = None;
                line.set_waker(key, &mut waker);
                visit.deferred.discard.extend(waker);
                line.set_woken_by(key, WokenBy::Nothing, visit.deferred);
            }
            waits
        })
    }

    /// Returns how long a request has still to wait, if nothing changes.
    pub(crate) fn due_in(&self, wait: &Progress<R::Ask>) -> Duration {
        let Stage::Queued(key) = wait.stage else { return Duration::ZERO };
        self.serve_then(|line, visit| line.due_in(visit, key))
    }

    /// Takes the decision of a reservation, if it has one.
    pub(crate) fn claim(&self, wait: &mut Progress<R::Ask>) -> Option<Result<Receipt<R::Charge>, Refusal>> {
        let (decision, waited) = match wait.stage {
            Stage::New(_) | Stage::Joining(_) | Stage::Done | Stage::Spent => return None,
            Stage::Exempt => {
                wait.stage = Stage::Done;
                (Ok(Admitted::Exempt), Nanos::ZERO)
            }
            Stage::Queued(key) => {
                // Serves the queue first, because no alarm fires for a reservation that is not
                // awaited.
                self.recheck();
                let now = self.clock.now();
                let decision = self.collect(wait, key, now)?;
                (decision, now.saturating_since(wait.since))
            }
        };
        Some(self.answer(wait, waited, decision))
    }

    /// Removes a request at any stage; a grant that the request did not see is undone.
    pub(crate) fn leave(&self, wait: &mut Progress<R::Ask>) {
        let key = match std::mem::replace(&mut wait.stage, Stage::Done) {
            Stage::Queued(key) => Some(key),
            Stage::Joining(_) => None,
            Stage::New(_) | Stage::Exempt | Stage::Done | Stage::Spent => return,
        };
        run_in_drop(|| {
            // Reported at the end, even if another waiter's waker panics.
            let unreported = Unreported::new(self, &wait.ask);
            let Some(key) = key else { return };
            // The queue is served first only if it must be: the request leaves before it could be
            // granted only to be undone.
            let held = self.serve_if_then(Line::has_unattended, |line, visit| {
                unreported.waited.set(visit.now.saturating_since(wait.since));
                let grant = line.remove(visit, key);
                // Undone under the lock if another waiter's waker panics now.
                grant.map(|grant| UndoGuard::new(self, grant.into()))
            });
            if let Some(grant) = held.and_then(|held| held.keep().tracked()) {
                self.undo(grant.into());
            }
        });
    }
}

/// Returns the latest time at which a request that joins the queue can be served. Refuses the
/// request if it would be served later, or would wait longer than the policy lets a newcomer wait.
///
/// The returned time depends only on the request's own maximum wait. A request that the policy has
/// let in stays, even if a change makes it wait longer than `max_wait`.
fn deadline<R: Rule, C: Timer>(
    line: &Line<R, C>,
    visit: &Visit<'_, R>,
    wait: &Progress<R::Ask>,
) -> Result<Nanos, Refusal> {
    if let Some(longest) = wait.longest(visit.rule.max_wait(&wait.ask)) {
        let (by, due) = (visit.now.saturating_add(longest), line.due_behind(visit, wait.demand()));
        if due > by || due == Nanos::MAX {
            return Err(line.refuse_late(visit, wait.demand(), due, by));
        }
    }
    Ok(visit.now.saturating_add(wait.within))
}
