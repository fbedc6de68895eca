//! The queue of a limiter: which request is next, when it is due, and which waiters are woken.
//!
//! Waiters are served by priority, and within a priority first come, first served. When a waiter is
//! served, it is charged as of the time at which its permits were due, and it leaves the queue. Its
//! entry stays in memory until its future has collected the result or is dropped.
//!
//! # Entry
//!
//! | state | in the queue | charged | leaves by |
//! |---|---|---|---|
//! | waiting | yes | no | `serve_due`: granted or refused; `expire`: refused at its deadline; `retime`: refused because a change made it too late; `make_room`: refused in favour of a newcomer; `pass_all`: passed in shadow mode; `refuse_all`: refused because the limiter is closed; [`remove`](Line::remove): its future was dropped |
//! | granted | no | yes | [`collect`](Line::collect): its future collects the grant; `remove`: the charge is undone |
//! | passed | no | no | `collect` or `remove`; the entry was in the queue when shadow mode began |
//! | refused | no | no | `collect` or `remove` |
//!
//! # Modules
//!
//! | module | content |
//! |---|---|
//! | `entries`, `position`, `priorities`, `index`, `sizes` | the entries in memory, their order and their sums |
//! | `serve`, `take`, `bounds` | granting and refusing waiters, taking permits under the lock, making room in a full queue |
//! | `all_waiters` | a bound on the waiters of several queues together |
//! | `due`, `settings`, `pause` | when a request is due, and the settings and pauses that decide it |
//! | `retime` | the due times after a change, and the waiters that the change makes too late |
//! | `watch`, `alarms` | what serves the queue when its head is due |
//! | `seats` | advance reservations of composites |
//! | `grants`, `undo_log`, `lateness` | grants that can be undone, how much of them can be given back, and late grants |
//! | `rule`, `visit`, `answer` | the interface to the policy, the context of a lock holder, the result of a request |
//! | `deferred`, `recheck` | work to do after the lock is released: wakers, drops, and other limiters that must check their queues |
//!
//! All of this is plain data under one lock. [`Deferred`] collects wakers and sleeps, and calls or
//! drops them after the lock is released, because both may run user code that calls this limiter
//! again.

pub(crate) mod alarms;
pub(crate) mod all_waiters;
pub(crate) mod answer;
pub(crate) mod bounds;
pub(crate) mod deferred;
pub(crate) mod due;
pub(crate) mod entries;
pub(crate) mod grants;
mod index;
pub(crate) mod lateness;
pub(crate) mod pause;
pub(crate) mod position;
pub(crate) mod priorities;
pub(crate) mod recheck;
mod retime;
pub(crate) mod rule;
pub(crate) mod seats;
mod serve;
pub(crate) mod settings;
pub(crate) mod sizes;
mod take;
mod undo_log;
pub(crate) mod visit;
mod watch;

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU32;
use std::sync::{Arc, Weak};
use std::task::Waker;

use crate::clock::Timer;
use crate::error::Refusal;
use crate::line::alarms::Alarms;
use crate::line::all_waiters::AllWaiters;
use crate::line::answer::{Admitted, Answer};
use crate::line::deferred::Deferred;
use crate::line::due::{Memo, Schedule};
use crate::line::entries::Entries;
use crate::line::grants::{GrantKind, Granted, Tracked, counts};
use crate::line::index::{INDEX_MIN_LEN, Index};
use crate::line::position::position_of;
use crate::line::priorities::{NO_ENTRY, Priorities};
use crate::line::recheck::Recheck;
use crate::line::rule::Rule;
use crate::line::seats::Seats;
use crate::line::settings::Settings;
use crate::line::sizes::Sizes;
use crate::line::undo_log::UndoLog;
use crate::line::visit::{Demand, Visit};
use crate::time::Nanos;

/// The duration of a round. A grant that was not collected keeps newcomers in the queue during its
/// round and the next one. That is longer than an executor takes to run a woken task. A round ends
/// when a lock holder next notes the time, so a grant counts for 10 ms to 30 ms.
const ROUND: Nanos = Nanos::new(10_000_000);

pub(crate) struct Line<R: Rule, C: Timer> {
    entries: Entries<Entry<R::Ask, R::Charge, C::RuntimeId>>,
    /// The first entry of the queue, which is linked through the entries.
    head: u32,
    priorities: Priorities<R::Ahead>,
    /// Only a long queue has an index.
    index: Option<Index>,
    /// The forecast made for the last request that asked for its due time behind all others.
    memo: Cell<Option<Box<Memo<R::Ahead>>>>,
    len: usize,
    /// How many entries in the queue nothing wakes.
    unattended: usize,
    /// When the head was last found not to be due, or left without a grant. No entry that nothing
    /// wakes is charged as of an earlier time: if it was due by then, its owner did not know.
    checked: Nanos,
    /// The number of permits that the waiters in the queue ask for.
    permits: u128,
    /// All requests that wait in this queue and in others, if they are bounded together.
    pub(crate) all_waiters: Option<Arc<AllWaiters>>,
    /// The number of positions given so far, to entries and to seats.
    positions_given: u64,
    /// The deadlines of the entries in the queue that have one, in order of time.
    deadlines: BTreeSet<(Nanos, u32)>,
    /// The entries of blocked threads in the queue, by position.
    threads: BTreeMap<u64, u32>,
    /// The highest clock reading so far.
    latest: Nanos,
    /// The latest time as of which a waiter was charged.
    pub(crate) charged: Nanos,
    /// The number of grants made in the previous round and in this round that were not collected;
    /// see [`uncollected`](Line::uncollected).
    uncollected: [usize; 2],
    /// The number of this round. An entry records the number of the round in which it is counted.
    round: u32,
    /// When this round began.
    round_began: Nanos,
    /// How much of each grant can still be given back.
    undo_log: UndoLog,
    /// Advance reservations of composites, which wait for other limiters as well.
    pub(crate) seats: Seats<R>,
    pub(crate) alarms: Alarms<C>,
    pub(crate) settings: Settings,
}

#[derive(Debug)]
struct Entry<Ask, Charge, RuntimeId> {
    /// The permits that the entry waits for and, after its grant, the permits that it got.
    ask: Ask,
    /// As in [`Demand::most`].
    most: Option<NonZeroU32>,
    /// The entry's position among entries and seats.
    position: u64,
    priority: i8,
    /// Whether the entry may be dropped to make room for a newcomer.
    droppable: bool,
    previous: u32,
    next: u32,
    woken_by: WokenBy<RuntimeId>,
    /// The entry is not charged as of a time before this.
    since: Nanos,
    /// The entry is refused if it is due later than this.
    deadline: Nanos,
    state: State<Charge>,
}

/// A request that joins the queue.
pub(crate) struct NewWaiter<Ask, RuntimeId> {
    pub(crate) ask: Ask,
    /// As in [`Demand::most`].
    pub(crate) most: Option<NonZeroU32>,
    pub(crate) priority: i8,
    /// Whether the waiter may be dropped to make room for a newcomer.
    pub(crate) droppable: bool,
    pub(crate) woken_by: WokenBy<RuntimeId>,
    /// The waiter is not charged as of a time before this. It is now, or [earlier](Visit::made_at)
    /// if the last grants were late.
    pub(crate) since: Nanos,
    /// The waiter is refused if it is due later than this.
    pub(crate) deadline: Nanos,
    pub(crate) waker: Option<Waker>,
}

/// What wakes a waiter.
#[derive(Clone, Copy, Debug)]
pub(crate) enum WokenBy<RuntimeId> {
    /// A task, with the key of its runtime's alarm, and the number of alarms of that runtime that
    /// fired too early for it.
    Task { alarm: u32, too_early: u8 },
    /// A task that lost its alarm and was woken to get a new one. `too_early` alarms of this
    /// runtime fired too early for it.
    Lost { runtime: RuntimeId, too_early: u8 },
    /// A blocked thread, which parks until this time and then checks the queue itself.
    Thread { checks_at: Nanos },
    /// A reservation that is not awaited yet. Nothing wakes it when it is due.
    Nothing,
}

#[derive(Debug)]
enum State<Charge> {
    Waiting(Option<Waker>),
    Granted(Uncollected<Charge>),
    /// The request passes without a permit. Outside shadow mode it would have got this refusal.
    Shadowed(Refusal),
    Refused(Refusal),
}

/// A grant that its future has not collected yet.
#[derive(Debug)]
struct Uncollected<Charge> {
    grant: Tracked<Charge>,
    /// The round in which the grant is counted as not collected.
    round: u32,
}

impl<R: Rule, C: Timer> Line<R, C> {
    pub(crate) fn new(rule: &R) -> Self {
        Line {
            entries: Entries::new(),
            head: NO_ENTRY,
            priorities: Priorities::new(),
            index: None,
            memo: Cell::new(None),
            len: 0,
            unattended: 0,
            checked: Nanos::ZERO,
            permits: 0,
            all_waiters: None,
            positions_given: 0,
            deadlines: BTreeSet::new(),
            threads: BTreeMap::new(),
            latest: Nanos::ZERO,
            charged: Nanos::ZERO,
            uncollected: [0, 0],
            round: 0,
            round_began: Nanos::ZERO,
            undo_log: UndoLog::new(R::PARTS, |part| rule.level_unit(part)),
            seats: Seats::new(),
            alarms: Alarms::new(),
            settings: Settings::new(),
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Counts the grants of entries that nothing wakes from this time on, even if they were due
    /// before.
    pub(crate) fn count_from(&mut self, now: Nanos) {
        self.checked = self.checked.max(now);
    }

    /// Returns whether the queue has an entry that nothing wakes. Such an entry may have been due
    /// for long. So before a change that makes entries due sooner, the queue is served.
    pub(crate) fn has_unattended(&self) -> bool {
        self.unattended > 0
    }

    /// Returns whether the queue has no entry, not even one with an uncollected grant, no bounds,
    /// and no terms of its own.
    #[cfg(feature = "keyed")]
    pub(crate) fn is_unused(&self) -> bool {
        self.entries.is_empty() && self.settings.is_unbounded() && !self.settings.has_own_terms()
    }

    /// Notes the time, before a lock holder does anything else.
    pub(crate) fn note_time(&mut self, now: Nanos) {
        self.latest = self.latest.max(now);
        let lasted = self.latest.saturating_since(self.round_began);
        if self.uncollected != [0, 0] && lasted > ROUND {
            // The previous round is forgotten, and this one becomes the previous round. If no lock
            // holder noted the time for two rounds, both are forgotten.
            let two = lasted > ROUND.saturating_add(ROUND);
            self.uncollected = [if two { 0 } else { self.uncollected[1] }, 0];
            self.round = self.round.wrapping_add(if two { 2 } else { 1 });
            self.round_began = self.latest;
        }
    }

    /// Returns how many waiters were granted lately and have not run since they were woken.
    ///
    /// While this is not zero, a newcomer does not return at once even if its permit is available:
    /// it joins the queue, is granted, and is woken behind the earlier waiters. A round lasts for
    /// `ROUND`. Only this round and the previous one are counted, so a future that never runs does
    /// not keep newcomers in the queue for ever.
    pub(crate) fn uncollected(&self) -> usize {
        self.uncollected[0] + self.uncollected[1]
    }

    /// Returns whether a newcomer of this priority goes before all requests in the queue.
    pub(crate) fn goes_first(&self, priority: i8) -> bool {
        self.priorities.before(priority).is_empty()
    }

    /// Returns how many requests are in the queue, were granted a moment ago and have not run yet,
    /// or hold a seat.
    pub(crate) fn present(&self) -> usize {
        self.len + self.uncollected() + self.seats.len()
    }

    /// Returns the policy and the settings, which decide when a request is due.
    pub(crate) fn schedule<'a>(&'a self, rule: &'a R) -> Schedule<'a, R> {
        Schedule { rule, settings: &self.settings }
    }

    /// Returns a new position behind all others of a priority.
    fn new_position(&mut self, priority: i8) -> u64 {
        self.positions_given += 1;
        position_of(priority, self.positions_given)
    }

    /// Takes a seat for a composite, behind all others of a priority. Returns its position.
    pub(crate) fn take_seat(
        &mut self,
        rule: &R,
        demand: Demand<'_, R::Ask>,
        composite: Weak<dyn Recheck>,
    ) -> u64 {
        let Demand { ask, priority, .. } = demand;
        let (position, mut entries) = (self.new_position(priority), Sizes::default());
        self.priorities.before(priority).iter().for_each(|class| entries.merge(&class.sizes));
        self.seats.take_seat(rule, position, ask.clone(), entries, composite);
        position
    }

    /// Sets the request of a seat and the time until which the seat is held. Returns whether that
    /// changes anything for the requests behind, and when the seat is due here.
    pub(crate) fn update_seat(
        &mut self,
        rule: &R,
        now: Nanos,
        position: u64,
        ask: &R::Ask,
        at: Nanos,
        deferred: &mut Deferred,
    ) -> (bool, Nanos) {
        // `schedule` is not called here, because it borrows the seats as well.
        let schedule = Schedule { rule, settings: &self.settings };
        self.seats.update(&schedule, now, position, ask, at, deferred)
    }

    /// Returns whether the limiter is paused or closed.
    pub(crate) fn is_paused(&self) -> bool {
        self.settings.opens > self.latest
    }

    /// Refuses the waiters that miss their deadline because a request of this priority has gone
    /// before them.
    pub(crate) fn refuse_moved_back(&mut self, visit: &mut Visit<'_, R>, priority: i8) {
        if self.priorities.behind(priority).iter().any(|class| class.with_deadline > 0) {
            self.retime(visit);
        }
    }

    /// Adds a request to the queue, behind all waiters of its priority or a higher one. The caller
    /// has [entered](Line::enter) the request, and [refuses](Line::refuse_moved_back) the waiters
    /// that have moved back once it has kept the key: that may run user code.
    pub(crate) fn push(
        &mut self,
        visit: &mut Visit<'_, R>,
        new_waiter: NewWaiter<R::Ask, C::RuntimeId>,
    ) -> u32 {
        let rule = visit.rule;
        let NewWaiter { ask, most, priority, droppable, woken_by, since, deadline, waker } = new_waiter;
        let previous = self.priorities.last_before(priority);
        let next = self.entries.get(previous as usize).map_or(self.head, |previous| previous.next);
        self.permits += u128::from(rule.permits(&ask));
        let position = self.new_position(priority);
        let class = self.priorities.class(priority);
        rule.add(&mut class.ahead, &ask);
        rule.size(&ask).into_iter().for_each(|n| class.sizes.add(n));
        let state = State::Waiting(waker);
        if !self.seats.is_empty() {
            self.seats.count_entry(rule, position, &ask);
        }
        let entry = Entry {
            ask,
            most,
            position,
            priority,
            droppable,
            previous,
            next,
            woken_by,
            since,
            deadline,
            state,
        };
        // Four billion waiters at 64 bytes would not fit in memory.
        let key = u32::try_from(self.entries.insert(entry)).unwrap_or(NO_ENTRY);
        class.last = key;
        class.len += 1;
        if deadline != Nanos::MAX {
            class.with_deadline += 1;
            self.deadlines.insert((deadline, key));
        }
        if matches!(woken_by, WokenBy::Thread { .. }) {
            self.threads.insert(position, key);
        }
        match self.entries.get_mut(previous as usize) {
            Some(entry) => entry.next = key,
            None => self.head = key,
        }
        if let Some(entry) = self.entries.get_mut(next as usize) {
            entry.previous = key;
        }
        self.len += 1;
        self.unattended += usize::from(matches!(woken_by, WokenBy::Nothing));
        // The kept forecast stays valid if the entry joins behind all others: it continues from its
        // last entry.
        self.memo.set(self.memo.take().filter(|_| next == NO_ENTRY).map(|memo| memo.with_last(key)));
        self.add_to_index(rule, key);
        key
    }

    /// Adds an entry that has joined to the index. Creates the index once the queue is long.
    fn add_to_index(&mut self, rule: &R, key: u32) {
        let new = self.index.is_none();
        if new && self.len < INDEX_MIN_LEN {
            return;
        }
        let index = self.index.get_or_insert_default();
        let mut at = if new { self.head } else { key };
        while let Some(Entry { ask, position, next, .. }) = self.entries.get(at as usize) {
            // The index sums sizes, so a queue of requests without sizes has no index.
            let Some(n) = rule.size(ask) else { return self.index = None };
            index.add(*position, at, n);
            at = if new { *next } else { NO_ENTRY };
        }
    }

    /// Takes an entry out of the queue. The entry stays in memory.
    fn unlink(&mut self, visit: &mut Visit<'_, R>, key: u32) {
        let rule = visit.rule;
        let Entry { ref ask, position, priority, previous, next, woken_by, deadline, .. } =
            self.entries[key as usize];
        let n = rule.size(ask);
        if !self.seats.is_empty() {
            self.seats.uncount_entry(rule, position, ask);
        }
        self.memo.set(None);
        let permits = rule.permits(ask);
        self.permits = self.permits.saturating_sub(permits.into());
        if let Some(all_waiters) = &self.all_waiters {
            all_waiters.leave(permits);
        }
        let class = self.priorities.class(priority);
        rule.subtract(&mut class.ahead, ask);
        n.into_iter().for_each(|n| class.sizes.remove(n));
        class.len -= 1;
        if deadline != Nanos::MAX {
            class.with_deadline -= 1;
            self.deadlines.remove(&(deadline, key));
        }
        if class.last == key {
            class.last = previous;
        }
        let was_last = class.len == 0;
        if was_last {
            self.priorities.forget(priority);
        }
        if matches!(woken_by, WokenBy::Thread { .. }) {
            self.threads.remove(&position);
        }
        match self.entries.get_mut(previous as usize) {
            Some(entry) => entry.next = next,
            None => self.head = next,
        }
        if let Some(entry) = self.entries.get_mut(next as usize) {
            entry.previous = previous;
        }
        self.len -= 1;
        self.unattended -= usize::from(matches!(woken_by, WokenBy::Nothing));
        if let Some(index) = &mut self.index {
            n.into_iter().for_each(|n| index.remove(position, key, n, next));
            // The bound is far below `INDEX_MIN_LEN`, so that a queue of about that length does not
            // create its index again and again.
            if self.len < INDEX_MIN_LEN / 4 {
                self.index = None;
            }
        }
        self.leave_alarm(woken_by, visit.deferred);
        if was_last {
            // This comes last, because the rule of a composite calls its members. Their policies may
            // panic.
            visit.deferred.run_with(|deferred| rule.priority_emptied(priority, deferred));
        }
    }

    /// Ends the wait of an entry in the queue.
    fn answer(&mut self, visit: &mut Visit<'_, R>, key: u32, state: State<R::Charge>) {
        self.unlink(visit, key);
        if let State::Waiting(waker) = std::mem::replace(&mut self.entries[key as usize].state, state) {
            visit.deferred.wake.extend(waker);
        }
    }

    /// Returns what wakes an entry, or `None` if the entry no longer waits.
    pub(crate) fn woken_by(&self, key: u32) -> Option<WokenBy<C::RuntimeId>> {
        let Entry { woken_by, ref state, .. } = self.entries[key as usize];
        matches!(state, State::Waiting(_)).then_some(woken_by)
    }

    /// Returns whether an entry was granted, and a future or a thread has waited for it.
    pub(crate) fn was_granted(&self, key: u32) -> bool {
        let Entry { woken_by, ref state, .. } = self.entries[key as usize];
        matches!(state, State::Granted(_)) && !matches!(woken_by, WokenBy::Nothing)
    }

    /// Returns whether an entry was refused, and its request has not collected the refusal yet.
    pub(crate) fn was_refused(&self, key: u32) -> bool {
        matches!(self.entries[key as usize].state, State::Refused(_))
    }

    /// Removes an entry and returns its result, if its wait is over.
    ///
    /// Another entry may get the key after that, so no user code may run before the future has
    /// forgotten the key. A grant of the kind `Final` can no longer be undone after that. If the
    /// request took up to a number of permits, the number granted is written to `ask`.
    pub(crate) fn collect(
        &mut self,
        key: u32,
        kind: GrantKind,
        ask: &mut R::Ask,
    ) -> Option<Answer<Granted<R::Charge>>> {
        if self.woken_by(key).is_some() {
            return None;
        }
        let Entry { ask: granted, most, woken_by, state, .. } = self.entries.remove(key as usize);
        if most.is_some() {
            *ask = granted;
        }
        match state {
            State::Waiting(_) => None,
            State::Granted(Uncollected { grant, round }) => {
                self.uncount_collected(woken_by, round);
                Some(Ok(Admitted::Granted(self.hand_over(grant, kind))))
            }
            State::Shadowed(refusal) => Some(Ok(Admitted::Shadow(refusal))),
            State::Refused(refusal) => Some(Err(refusal)),
        }
    }

    /// Records a grant that its future has not collected yet.
    fn grant(
        &mut self,
        rule: &R,
        charge: R::Charge,
        woken_by: WokenBy<C::RuntimeId>,
    ) -> Uncollected<R::Charge> {
        let grant = Uncollected { grant: self.track(rule, charge), round: self.round };
        if !matches!(woken_by, WokenBy::Nothing) {
            if self.uncollected == [0, 0] {
                self.round_began = self.latest;
            }
            self.uncollected[1] += 1;
        }
        grant
    }

    /// Uncounts a grant that was collected or given up, if its round is still counted.
    fn uncount_collected(&mut self, woken_by: WokenBy<C::RuntimeId>, round: u32) {
        match self.round.wrapping_sub(round) {
            _ if matches!(woken_by, WokenBy::Nothing) => {}
            0 => self.uncollected[1] -= 1,
            1 => self.uncollected[0] -= 1,
            _ => {}
        }
    }

    /// Stores a waker in an entry in the queue, unless the entry has one that wakes the same task.
    pub(crate) fn set_waker(&mut self, key: u32, waker: &mut Option<Waker>) {
        if let State::Waiting(old) = &mut self.entries[key as usize].state
            && !old.as_ref().zip(waker.as_ref()).is_some_and(|(old, new)| old.will_wake(new))
        {
            std::mem::swap(old, waker);
        }
    }

    /// Returns the highest clock reading so far.
    pub(crate) fn latest(&self) -> Nanos {
        self.latest
    }

    /// Removes an entry after its future was dropped. An entry in the queue owes nothing. A grant
    /// is undone, unless a part of the policy [counts]: then the grant is returned, and the caller
    /// undoes it without the lock.
    pub(crate) fn remove(&mut self, visit: &mut Visit<'_, R>, key: u32) -> Option<Tracked<R::Charge>> {
        if let State::Waiting(_) = self.entries[key as usize].state {
            self.unlink(visit, key);
        }
        let Entry { woken_by, state, .. } = self.entries.remove(key as usize);
        match state {
            State::Waiting(waker) => visit.deferred.discard.extend(waker),
            State::Granted(Uncollected { grant, round }) => {
                self.uncount_collected(woken_by, round);
                if counts(visit.rule, &grant.charge) {
                    return Some(grant);
                }
                self.take_back(visit, grant.into());
            }
            State::Shadowed(_) | State::Refused(_) => {}
        }
        None
    }
}
