//! One limiter among several: the calls that a composite makes to it.
//!
//! There are two kinds of calls. A `try_` call arrives without a lock, and takes none while no
//! request is in the member's queue. A call on behalf of a waiter arrives with the composite's
//! lock, takes the member's lock for a short section, and leaves all user code in [`Deferred`].
//!
//! # Taking without the lock
//!
//! A member takes, keeps on its own stack what it took, and lets the rest take. If the rest fails,
//! it puts back exactly that, as far as there was room since the take (`line/undo_log.rs`). The
//! line knows this room only for grants that were made under its lock. So the limiter publishes a
//! number (`undo_number`) that changes each time permits are given back, and at other times. The
//! line remembers how much the last of these changes gave back. From that follows the room since
//! the number that was read before the take. If permits were given back more often than the line
//! remembers, or if the terms were changed, nothing is put back.
//!
//! | operation | ordering | pairs with | what for |
//! |---|---|---|---|
//! | `undo_number` is stored, under the lock, after permits were given back | Release | the load | |
//! | `undo_number` is loaded, before the take without the lock | Acquire | the store | a thread that reads a number takes from a state in which these permits are back |
//! | `undo_number` is compared, under the lock | as the lock | | |
//!
//! **Why enough.** The bad execution: permits are given back after the take, and the number at the
//! comparison is still the one read before the take. Giving back happens under the lock and raises
//! the line's own number in one section. The comparison takes the lock after the take. If the
//! comparison comes after that section, it sees the higher number. If it comes before, the permits
//! are given back after the undo, which does no harm. Conversely, if a number that is read with
//! Acquire counts a level, the take comes after that level in the order of the state. **Why not
//! less.** With Relaxed on both sides, the take could come before permits that the number counts
//! already, and be undone with a level that is too high.

use std::fmt::Debug;
use std::sync::{Arc, Weak};
use std::time::Duration;

use crate::clock::Timer;
use crate::error::Refusal;
use crate::grant::Left;
use crate::limiter::RateLimiter;
use crate::limiter::gate_word::{LATE, OBSERVED, PAUSED, SHADOW, SHARE_KEPT};
use crate::limiter::settle::SettleableGrant;
use crate::limiter::shared::{Shared, UndoGuard};
use crate::line::Line;
use crate::line::deferred::{Deferred, run};
use crate::line::grants::Undoable;
use crate::line::position::end_of;
use crate::line::recheck::Recheck;
use crate::line::rule::Single;
use crate::line::visit::Demand;
use crate::policy::{Forecast, Policy, limited};
use crate::status::Status;
use crate::sync::{MutexGuard, Ordering, lock};
use crate::time::Nanos;

/// A time relative to now, so that clocks with different zeros can be compared; negative for a past
/// time.
pub(crate) type Span = i128;

/// Never.
pub(crate) const NEVER: Span = Span::MAX;

/// Returns the span from `now` to `at`.
pub(crate) fn span(at: Nanos, now: Nanos) -> Span {
    if at == Nanos::MAX { NEVER } else { Span::from(at.as_u64()) - Span::from(now.as_u64()) }
}

/// Returns the time that is `span` after `now`.
pub(crate) fn time(now: Nanos, span: Span) -> Nanos {
    let at = span.saturating_add(Span::from(now.as_u64())).max(0);
    Nanos::new(u64::try_from(at).unwrap_or(u64::MAX))
}

/// How long until permits are due, and whether the limiter is paused. The longer wait is greater;
/// of two equally long waits, the wait at a paused limiter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Wait {
    pub(crate) time: Nanos,
    pub(crate) paused: bool,
}

impl Wait {
    pub(crate) const NONE: Wait = Wait { time: Nanos::ZERO, paused: false };

    /// Returns the refusal of a request that would have to wait this long.
    pub(crate) fn refusal(self) -> Refusal {
        let retry_after = self.time;
        if self.paused { Refusal::Paused { retry_after } } else { Refusal::Limited { retry_after } }
    }
}

/// A limiter among several.
pub(crate) trait Member: Send + Sync {
    /// Checks whether `n` permits can ever be granted to a request of this priority.
    fn check(&self, n: u32, priority: i8) -> Result<(), Refusal>;

    /// Returns a count of the changes for the requests of composites, in units of [`TIMES_CHANGED`]
    /// and [`WEIGHTS_CHANGED`].
    ///
    /// [`TIMES_CHANGED`]: crate::limiter::change::TIMES_CHANGED
    /// [`WEIGHTS_CHANGED`]: crate::limiter::change::WEIGHTS_CHANGED
    fn changes(&self) -> u64;

    /// Charges `n` permits, even if they are not available.
    fn debit(&self, n: u32);

    /// Gives back `n` permits that were not used.
    fn refund(&self, n: u32);

    /// Takes the permits that are available beyond `permits`. Returns how many it took.
    fn keep_at_most(&self, permits: u64) -> u64;

    /// Returns how many permits a request may take that has this priority and this seat (position
    /// 0: no seat) and takes as many permits as are available. Takes no permits.
    fn leaves(&self, seat: u64, priority: i8) -> u64;

    /// Returns the weight of `n` permits in a sum of requests that go first.
    fn weight(&self, n: u32) -> u128;

    /// Returns the maximum wait of a request.
    fn max_wait(&self) -> Duration;

    fn status(&self) -> Status;

    /// Returns the number of the limiter, which is equal for all clones.
    fn number(&self) -> u64;

    /// Returns how long until `n` permits are due, behind all waiters. Takes no permits, and writes
    /// nothing while no request waits.
    fn predict_wait(&self, n: u32, priority: i8) -> Wait;

    /// Takes the permits `asked` for, at a priority, now; then calls `rest`, and puts the permits
    /// back if `rest` fails. Sets `left`, if given, to what this leaves. Returns whether it took
    /// permits: in shadow mode it may let the request pass without.
    fn take_then(
        &self,
        asked: (u32, i8),
        left: Option<&mut Option<Left>>,
        rest: &mut dyn FnMut() -> Result<(), Refusal>,
    ) -> Result<bool, Refusal>;

    /// Returns when the seat is due; or, with position 0, when a newcomer would be due behind all
    /// requests in the queue and others of the total weight `ahead`. Assumes that nothing happens
    /// before `begin`. The result is not before `at`. Leaves out the seat `own`.
    fn due(&self, times: (Span, Span), seat_own: (u64, u64), ahead: u128, asked: (u32, i8)) -> Span;

    /// Returns whether no request waits here except `own` seats, and nothing but the policy
    /// restrains grants.
    fn is_plain(&self, own: usize) -> bool;

    /// Begins a forecast of the grants from now on, by this limiter's clock.
    fn forecast(&self) -> Forecast;

    /// Returns when a request for `n` permits is due behind all requests in the forecast. Adds the
    /// request to the forecast.
    fn predict(&self, forecast: &mut Forecast, n: u32) -> Nanos;

    /// Schedules that the limiter is left as if it were empty `span` from now, at the end of a
    /// pause of the composite, and returns that time; without `span` it schedules nothing. Cancels
    /// this for the time `before`, which an earlier call returned.
    ///
    /// Calls `span` after the limiter has read its clock, so that the limiter is empty by the end
    /// of the pause, and not a moment later.
    fn empty_in(
        &self,
        before: Option<Nanos>,
        span: Option<&dyn Fn() -> Span>,
        deferred: &mut Deferred,
    ) -> Option<Nanos>;

    /// Takes a seat, or keeps the seat at this position, for a request of `n` permits that expects
    /// to be granted `at`. Returns the position, and when the request is due here.
    fn take_seat(
        &self,
        seat: u64,
        asked: (u32, i8),
        at: Span,
        shared: &Weak<dyn Recheck>,
        deferred: &mut Deferred,
    ) -> (u64, Span);

    /// Keeps the position of a seat and makes it idle.
    fn make_idle(&self, seat: u64, deferred: &mut Deferred);

    /// Marks a seat whose composite waits for other seats, and for no member, or unmarks it.
    fn mark_held_up(&self, seat: u64, held_up: bool);

    /// Gives up a seat.
    fn give_up(&self, seat: u64, deferred: &mut Deferred);

    /// Takes `n` permits through a seat, or with position 0 as a newcomer. Charges them as of
    /// `late` ago.
    fn take(
        &self,
        late: Nanos,
        seat: u64,
        asked: (u32, i8),
        deferred: &mut Deferred,
    ) -> Result<Box<dyn MemberGrant>, Refusal>;
}

/// A member's grant to a waiter of a composite. Dropping it makes the grant final.
pub(crate) trait MemberGrant: Send + Sync + Debug {
    /// Makes the grant final. `used` permits of it were used, or more than it has.
    fn settle(self: Box<Self>, used: u32);

    /// Puts the grant back.
    fn undo(self: Box<Self>, deferred: &mut Deferred);

    /// Records that a waiter sees its grant.
    fn note_collected(&self);

    /// Returns whether the grant took permits.
    fn took(&self) -> bool;

    /// Returns what the grant left in the limiter; `None` if it took nothing.
    fn left(&self) -> Option<Left>;
}

impl<P: Policy, C: Timer> Shared<Single<P>, C> {
    /// Locks the line on behalf of a waiter of a composite. Call
    /// [`unlock_and_recheck`](Shared::unlock_and_recheck) if anything has changed.
    fn lock_for_composite(
        self: &Arc<Self>,
        deferred: &mut Deferred,
    ) -> (MutexGuard<'_, Line<Single<P>, C>>, Nanos) {
        let mut line = lock(&self.line);
        // The caller goes on even if the clock or the policy panics: the composite may be in the
        // middle of a change.
        let now = deferred.run(|| self.now_in_line()).unwrap_or(line.latest());
        if line.must_serve_before(now, self.lateness.catch_up()).is_some() {
            // These waiters are served first. The next waiter needs an alarm, or is due as well.
            deferred.rechecks.push(self.clone());
        }
        deferred.run_with(|deferred| self.begin_visit(&mut line, now, deferred));
        (line, now)
    }

    /// Serves the waiters that are due, before a change that makes waiters due sooner, if nothing
    /// wakes some of them. Returns the latest clock reading.
    fn serve_unattended(self: &Arc<Self>, deferred: &mut Deferred) -> Nanos {
        let (mut line, now) = self.lock_for_composite(deferred);
        if line.has_unattended() {
            // The lock of a composite may be held, so only a slice is served. The others count from
            // now on.
            deferred.run_with(|deferred| line.serve(&mut self.visit_at(now, deferred)));
            line.count_from(now);
        }
        self.publish(&line);
        line.latest()
    }

    /// Locks the line for a short check.
    fn lock_for_check(&self) -> (MutexGuard<'_, Line<Single<P>, C>>, Nanos) {
        let mut line = lock(&self.line);
        let now = self.now_in_line();
        line.begin_check(&self.rule, now, self.lateness.catch_up());
        (line, now)
    }

    /// Unlocks the line. If anything has changed for requests other than the `own` seats, the line
    /// is rechecked when no lock is held.
    fn unlock_and_recheck(
        self: &Arc<Self>,
        line: MutexGuard<'_, Line<Single<P>, C>>,
        news: bool,
        own: usize,
        deferred: &mut Deferred,
    ) {
        self.publish(&line);
        if news && (line.len() > 0 || line.seats.len() > own) {
            deferred.rechecks.push(self.clone());
        }
    }
}

impl<P: Policy, C: Timer> Member for RateLimiter<P, C> {
    fn check(&self, n: u32, priority: i8) -> Result<(), Refusal> {
        let shared = &self.shared;
        let word = shared.gate_word.load();
        // A closed limiter also has the flag `PAUSED`.
        if !word.has(SHARE_KEPT) && !word.has(PAUSED) && !word.has(SHADOW) {
            return shared.rule.policy.check(n);
        }
        let (line, now) = shared.lock_for_check();
        match line.check(&shared.rule, now, Demand::exactly(&n, priority)) {
            // In shadow mode the member lets the request pass that it would refuse.
            Err(refusal) if refusal != Refusal::Closed && line.settings.is_shadow() => Ok(()),
            answer => answer,
        }
    }

    fn changes(&self) -> u64 {
        // Acquire: see `Shared::retime_composites`.
        self.shared.changes.load(Ordering::Acquire)
    }

    fn debit(&self, n: u32) {
        self.shared.debit(n);
    }

    fn refund(&self, n: u32) {
        self.shared.refund(n);
    }

    fn keep_at_most(&self, permits: u64) -> u64 {
        self.shared.keep_at_most(permits)
    }

    fn leaves(&self, seat: u64, priority: i8) -> u64 {
        let shared = &self.shared;
        if shared.gate_word.load().has_only(OBSERVED | LATE) {
            return shared.rule.status(shared.clock.now()).available;
        }
        let (line, now) = shared.lock_for_check();
        if line.settings.is_shadow() {
            return u64::MAX;
        }
        let left = line.leaves(&shared.rule, line.latest(), priority, 0, usize::from(seat > 0));
        left.of(shared.rule.status(now).available)
    }

    fn weight(&self, n: u32) -> u128 {
        u128::from(self.shared.rule.policy.weight(n))
    }

    fn max_wait(&self) -> Duration {
        // In shadow mode the member refuses no request.
        if self.shared.gate_word.load().has(SHADOW) {
            Duration::MAX
        } else {
            self.shared.rule.policy.max_wait()
        }
    }

    fn status(&self) -> Status {
        self.shared.status()
    }

    fn number(&self) -> u64 {
        self.shared.number
    }

    fn predict_wait(&self, n: u32, priority: i8) -> Wait {
        let shared = &self.shared;
        let word = shared.gate_word.load();
        if word.has(SHADOW) {
            return Wait::NONE;
        }
        if word.has_only(OBSERVED | LATE) {
            let (now, Single { policy, state }) = (shared.clock.now(), &shared.rule);
            return Wait { time: policy.ready_at(state, now, 0, n).saturating_since(now), paused: false };
        }
        shared.serve_then(|line, visit| {
            let due = line.due_behind(visit, Demand::exactly(&n, priority));
            Wait { time: due.saturating_since(visit.now), paused: line.is_paused() }
        })
    }

    fn take_then(
        &self,
        (n, priority): (u32, i8),
        left: Option<&mut Option<Left>>,
        rest: &mut dyn FnMut() -> Result<(), Refusal>,
    ) -> Result<bool, Refusal> {
        let shared = &self.shared;
        let word = shared.gate_word.load();
        let taken = if word.needs_no_lock() {
            // Load the number before the take, so that a refund in between counts as after the
            // take. Acquire: the take finds the state with all refunds that the number counts.
            let undo_number = shared.undo_number.load(Ordering::Acquire);
            let charge = shared.take_without_lock(word, shared.clock.now(), &n);
            charge.map(|charge| UndoGuard::new(shared, Undoable::since(charge, undo_number)))
        } else {
            shared.serve_then(|line, visit| {
                let (_, charge) = line.try_take(visit, Demand::exactly(&n, priority))?;
                Ok(UndoGuard::new(shared, line.track(visit.rule, charge).into()))
            })
        };
        let grant = match taken {
            Ok(taken) => taken,
            // In shadow mode the member lets the request pass that it would have refused.
            Err(_) if word.has(SHADOW) => return rest().map(|()| false),
            Err(refusal) => return Err(refusal),
        };
        // From here on user code may panic. Then the guard undoes this take.
        if let Some(left) = left {
            *left = grant.charge().map(|charge| shared.left(charge));
        }
        if let Err(refusal) = rest() {
            grant.undo();
            return Err(refusal);
        }
        if let Some(id) = grant.keep().id {
            lock(&shared.line).make_final(id);
        }
        Ok(true)
    }

    fn due(
        &self,
        (begin, at): (Span, Span),
        (seat, own): (u64, u64),
        ahead: u128,
        (n, priority): (u32, i8),
    ) -> Span {
        let shared = &self.shared;
        let (line, now) = shared.lock_for_check();
        if line.settings.is_shadow() {
            return Span::MIN;
        }
        let times = (time(now, begin), time(now, at.max(0)));
        let schedule = line.schedule(&shared.rule);
        let due = match line.seats.due_in_seat(&schedule, times, seat, &n) {
            Some(due) => due,
            None => {
                let ahead = line.ahead(&shared.rule, priority).saturating_add(ahead);
                line.seats.due(&schedule, times, (end_of(priority), own), &ahead, &n)
            }
        };
        // If grants are not charged as of an earlier time, it does not matter when the request
        // became due. If permits are kept, the policy may return `now` instead of that time.
        let is_vague = !shared.rule.policy.catches_up() || line.settings.kept_from(priority) > 0;
        if due <= now && is_vague { Span::MIN } else { span(due, now) }
    }

    fn is_plain(&self, own: usize) -> bool {
        let (line, now) = self.shared.lock_for_check();
        let settings = &line.settings;
        let is_alone = line.len() == 0 && line.seats.len() == own;
        let is_free = settings.kept.is_none() && !settings.is_restrained() && !settings.is_shadow();
        is_alone && is_free && settings.opens_for(now) <= now
    }

    fn forecast(&self) -> Forecast {
        let (_line, now) = self.shared.lock_for_check();
        let Single { policy, state } = &self.shared.rule;
        policy.forecast(state, now)
    }

    fn predict(&self, forecast: &mut Forecast, n: u32) -> Nanos {
        let Single { policy, state } = &self.shared.rule;
        policy.predict(state, forecast, n)
    }

    fn empty_in(
        &self,
        before: Option<Nanos>,
        span: Option<&dyn Fn() -> Span>,
        deferred: &mut Deferred,
    ) -> Option<Nanos> {
        let (mut line, now) = self.shared.lock_for_composite(deferred);
        let at = span.map(|span| time(now, span()));
        line.empty_at(now, before, at);
        // A pause that ended by now may have made times later.
        self.shared.unlock_and_recheck(line, true, 0, deferred);
        at
    }

    fn take_seat(
        &self,
        seat: u64,
        (n, priority): (u32, i8),
        at: Span,
        waiter: &Weak<dyn Recheck>,
        deferred: &mut Deferred,
    ) -> (u64, Span) {
        let shared = &self.shared;
        let (mut line, now) = shared.lock_for_composite(deferred);
        let is_new = seat == 0;
        if is_new {
            // A waiter that is due is not late because of this seat, even if its timer is.
            line.serve(&mut shared.visit_at(now, deferred));
        }
        let seat = match is_new {
            true => line.take_seat(&shared.rule, Demand::exactly(&n, priority), waiter.clone()),
            false => seat,
        };
        if is_new && line.settings.is_shadow() {
            // The composite may have asked for its time before shadow mode began, and the start of
            // shadow mode notified only the seats that existed then.
            deferred.rechecks.extend(waiter.upgrade());
        }
        let (news, due) = line.update_seat(&shared.rule, now, seat, &n, time(now, at), deferred);
        if is_new {
            line.refuse_moved_back(&mut shared.visit_at(now, deferred), priority);
        }
        let due = if line.settings.is_shadow() { Span::MIN } else { span(due, now) };
        shared.unlock_and_recheck(line, news || is_new, 1, deferred);
        (seat, due)
    }

    fn make_idle(&self, seat: u64, deferred: &mut Deferred) {
        let shared = &self.shared;
        let (mut line, _) = shared.lock_for_composite(deferred);
        let news = line.seats.make_idle(&shared.rule, seat, deferred);
        shared.unlock_and_recheck(line, news, 1, deferred);
    }

    fn mark_held_up(&self, seat: u64, held_up: bool) {
        lock(&self.shared.line).seats.mark_held_up(seat, held_up);
    }

    fn give_up(&self, seat: u64, deferred: &mut Deferred) {
        let shared = &self.shared;
        shared.serve_unattended(deferred);
        let (mut line, _) = shared.lock_for_composite(deferred);
        let news = line.seats.give_up(&shared.rule, seat, deferred);
        shared.unlock_and_recheck(line, news, 0, deferred);
    }

    fn take(
        &self,
        late: Nanos,
        seat: u64,
        (n, priority): (u32, i8),
        deferred: &mut Deferred,
    ) -> Result<Box<dyn MemberGrant>, Refusal> {
        let shared = &self.shared;
        let (mut line, now) = shared.lock_for_composite(deferred);
        let (visit, demand) = (&mut shared.visit_at(now, deferred), Demand::exactly(&n, priority));
        line.serve(visit);
        let due = match line.seats.due_in_seat(&line.schedule(&shared.rule), (now, now), seat, &n) {
            Some(due) => due,
            None if line.is_open(visit, demand) => line.due_behind(visit, demand),
            None => Nanos::MAX,
        };
        let late =
            if shared.rule.policy.catches_up() { late.min(shared.lateness.catch_up()) } else { Nanos::ZERO };
        let at = Nanos::new(now.as_u64().saturating_sub(late.as_u64()));
        // A new request may use the lateness of the last grants.
        let at = if due <= now { at.min(visit.made_at(|| due).max(due)) } else { at };
        let charge = match due <= now {
            true => line.charge(visit, at, &n),
            false => Err(limited(due, now)),
        };
        if seat == 0 && charge.is_ok() {
            // If another member refuses just now, this share goes back, and these refusals stand.
            line.refuse_moved_back(visit, priority);
        }
        let grant = match charge {
            Ok(charge) => Ok(Some(line.track(&shared.rule, charge))),
            // In shadow mode the member lets the request pass that it would have refused.
            Err(_) if line.settings.is_shadow() => Ok(None),
            Err(refusal) => Err(refusal),
        };
        let taken = grant.map(|grant| {
            Box::new(SettleableGrant { shared: shared.clone(), n, grant }) as Box<dyn MemberGrant>
        });
        // The waiters that were served just now are woken, and the next waiter needs an alarm.
        shared.unlock_and_recheck(line, true, usize::from(seat > 0), deferred);
        taken
    }
}

impl<P: Policy, C: Timer> MemberGrant for SettleableGrant<P, C> {
    fn settle(self: Box<Self>, used: u32) {
        SettleableGrant::settle(*self, used);
    }

    fn undo(mut self: Box<Self>, deferred: &mut Deferred) {
        let Some(mut grant) = self.grant.take() else { return };
        let shared = &self.shared;
        let latest = shared.serve_unattended(deferred);
        // Without the member's lock, like `Shared::undo`, unless the member is paused.
        let is_paused = lock(&shared.line).settings.pause.is_some();
        if !is_paused {
            shared.undo_unlocked(&mut grant.charge, latest, deferred);
        }
        let (mut line, now) = shared.lock_for_composite(deferred);
        let visit = &mut shared.visit_at(now, deferred);
        match is_paused {
            true => line.take_back(visit, grant.into()),
            false => line.undo_rest(visit, grant.into()),
        }
        shared.unlock_and_recheck(line, true, 0, deferred);
    }

    fn note_collected(&self) {
        // A clock that panics here would cost the waiter its grant, and it says nothing that must
        // be known.
        let noted = || {
            let (line, now) = self.shared.lock_for_check();
            self.shared.note_lateness(&line, now);
            self.shared.publish(&line);
        };
        run(&mut None, noted);
    }

    fn took(&self) -> bool {
        self.grant.is_some()
    }

    fn left(&self) -> Option<Left> {
        self.grant.as_ref().map(|grant| self.shared.left(&grant.charge))
    }
}
