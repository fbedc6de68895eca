//! The line: which request is next, when it is due, and which waiters are woken.
//!
//! The more important first, and of equals first come, first served. A waiter owes nothing until it
//! is served; then it is charged as of the time its permits were due, and leaves the line. Its
//! entry stays until its future has seen the grant or is dropped.
//!
//! # Entry
//!
//! | state | in line | charged | leaves by |
//! |---|---|---|---|
//! | waiting | yes | no | [`serve`](Line::serve): granted or refused; [`remove`](Line::remove): its future was dropped |
//! | granted | no | yes | its future sees it; or was dropped: the charge is undone |
//! | passed | no | no | its future sees it, or was dropped: it was in line when shadow began |
//! | refused | no | no | its future sees it, or was dropped |
//!
//! Serving is in `line/serve.rs`, told times are in `line/due.rs`, and the alarms are in
//! `line/watch.rs`.
//!
//! All of this is plain data under one lock. Wakers and sleeps are collected in
//! [`Deferred`](deferred::Deferred) and called or dropped when the lock is gone, since both may run
//! foreign code that comes back here.

pub(crate) mod alarms;
pub(crate) mod bounds;
pub(crate) mod deferred;
mod due;
pub(crate) mod entries;
pub(crate) mod grant;
mod index;
pub(crate) mod lateness;
pub(crate) mod outcome;
pub(crate) mod place;
pub(crate) mod priorities;
pub(crate) mod recheck;
pub(crate) mod rule;
pub(crate) mod seats;
mod serve;
pub(crate) mod settings;
pub(crate) mod sizes;
mod take;
pub(crate) mod terms;
mod undo;
pub(crate) mod visit;
mod watch;

use std::cell::Cell;
use std::collections::BTreeSet;
use std::sync::Weak;
use std::task::Waker;

use crate::clock::Timer;
use crate::error::Refusal;
use crate::line::alarms::Alarms;
use crate::line::due::Memo;
use crate::line::entries::Entries;
use crate::line::grant::{GrantKind, Granted, Tracked, counts};
use crate::line::index::{Index, LONG};
use crate::line::outcome::{Decision, Outcome};
use crate::line::place::place_of;
use crate::line::priorities::{NONE, Priorities};
use crate::line::recheck::Recheck;
use crate::line::rule::Rule;
use crate::line::seats::Seats;
use crate::line::settings::Settings;
use crate::line::terms::Terms;
use crate::line::undo::UndoLog;
use crate::line::visit::{Demand, Visit};
use crate::time::Nanos;

/// For how long a grant that was not seen keeps newcomers in line: longer than an executor takes to
/// run a woken task.
const PATIENCE: Nanos = Nanos::new(10_000_000);

pub(crate) struct Line<R: Rule<C>, C: Timer> {
    entries: Entries<Entry<R::Ask, R::Charge, C::RuntimeId>>,
    /// The line, linked through the entries.
    head: u32,
    priorities: Priorities<R::Ahead>,
    /// Of a long line.
    index: Option<Index>,
    /// What was foreseen for the last one that asked for its time behind all.
    memo: Cell<Option<Box<Memo<R::Ahead>>>>,
    len: usize,
    /// How many permits the waiters in line ask for.
    permits: u128,
    /// How many places were given, to entries and to seats.
    arrivals: u64,
    /// The entries in line that are refused if they are due too late, by the time at which that is.
    deadlines: BTreeSet<(Nanos, u32)>,
    /// The highest clock reading so far.
    latest: Nanos,
    /// The latest time as of which a waiter was charged.
    pub(crate) charged: Nanos,
    /// How many were granted in the round before and in this round and have not seen it; see
    /// [`uncollected`](Line::uncollected).
    uncollected: [usize; 2],
    /// The number of this round, so that an entry knows where it is counted.
    epoch: u32,
    /// When this round began.
    epoch_began: Nanos,
    /// How much of each grant can still be given back.
    undo_log: UndoLog,
    /// Places of composites, which wait for other limiters as well.
    pub(crate) seats: Seats<R, C>,
    pub(crate) alarms: Alarms<C>,
    pub(crate) settings: Settings,
}

#[derive(Debug)]
struct Entry<Ask, Charge, RuntimeId> {
    ask: Ask,
    /// Its place among entries and seats.
    place: u64,
    priority: i8,
    /// Whether it may have to make room for others.
    droppable: bool,
    previous: u32,
    next: u32,
    woken_by: WokenBy<RuntimeId>,
    /// It is not charged as of a time before.
    since: Nanos,
    /// Due later than this, it is refused.
    deadline: Nanos,
    state: State<Charge>,
}

/// A request that joins the line.
pub(crate) struct NewWaiter<Ask, RuntimeId> {
    pub(crate) ask: Ask,
    pub(crate) priority: i8,
    /// Whether it may have to make room for others.
    pub(crate) droppable: bool,
    pub(crate) woken_by: WokenBy<RuntimeId>,
    /// It is not charged as of a time before: now, or [earlier](Visit::arrival) where the last
    /// grants were late.
    pub(crate) since: Nanos,
    /// Due later than this, it is refused.
    pub(crate) deadline: Nanos,
    pub(crate) waker: Option<Waker>,
}

/// What wakes a waiter.
#[derive(Clone, Copy, Debug)]
pub(crate) enum WokenBy<RuntimeId> {
    /// A task, with the key of its event loop's alarm, and how many of that event loop it lost
    /// before.
    Task { alarm: u32, lost: u8 },
    /// A task that lost so many alarms of this event loop, and was woken to get a new one.
    Lost { domain: RuntimeId, times: u8 },
    /// A blocked thread, which is its own alarm when it is first: it will look at this time.
    Thread { looks_at: Nanos },
    /// A reservation that is not awaited yet. Nothing wakes it when it is due.
    Nobody,
}

#[derive(Debug)]
enum State<Charge> {
    Waiting(Option<Waker>),
    Granted(Uncollected<Charge>),
    /// It passes without a permit, and would have been told this.
    Passed(Refusal),
    Refused(Refusal),
}

/// A grant that its future has not collected yet.
#[derive(Debug)]
struct Uncollected<Charge> {
    grant: Tracked<Charge>,
    /// The epoch in which the line counts it as not collected.
    epoch: u32,
}

impl<R: Rule<C>, C: Timer> Line<R, C> {
    pub(crate) fn new(rule: &R) -> Self {
        Line {
            entries: Entries::new(),
            head: NONE,
            priorities: Priorities::new(),
            index: None,
            memo: Cell::new(None),
            len: 0,
            permits: 0,
            arrivals: 0,
            deadlines: BTreeSet::new(),
            latest: Nanos::ZERO,
            charged: Nanos::ZERO,
            uncollected: [0, 0],
            epoch: 0,
            epoch_began: Nanos::ZERO,
            undo_log: UndoLog::new(rule.level_unit()),
            seats: Seats::new(),
            alarms: Alarms::new(),
            settings: Settings::new(),
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Whether it has no entry, also none that was granted and not seen.
    #[cfg(feature = "keyed")]
    pub(crate) fn is_unused(&self) -> bool {
        self.entries.is_empty() && self.settings.is_unbounded()
    }

    /// Notes the time, before a lock holder does anything else.
    pub(crate) fn note_time(&mut self, now: Nanos) {
        self.latest = self.latest.max(now);
        let lasted = self.latest.saturating_since(self.epoch_began);
        if self.uncollected != [0, 0] && lasted > PATIENCE {
            let two = lasted > PATIENCE.saturating_add(PATIENCE);
            self.uncollected = [if two { 0 } else { self.uncollected[1] }, 0];
            self.epoch = self.epoch.wrapping_add(if two { 2 } else { 1 });
            self.epoch_began = self.latest;
        }
    }

    /// How many were granted lately, and their futures were woken and have not run yet.
    ///
    /// While there are any, a newcomer does not run on even if its permit is there: it is granted
    /// at once, and woken behind them. Rounds last for `PATIENCE`, and this one and the one before
    /// are counted, so that a future that never runs does not keep all requests in line for ever.
    pub(crate) fn uncollected(&self) -> usize {
        self.uncollected[0] + self.uncollected[1]
    }

    /// How many requests are in line, were granted a moment ago and have not run yet, or hold a
    /// seat.
    pub(crate) fn present(&self) -> usize {
        self.len + self.uncollected() + self.seats.len()
    }

    /// What the limiter grants by.
    pub(crate) fn terms<'a>(&'a self, rule: &'a R) -> Terms<'a, R> {
        Terms { rule, settings: &self.settings }
    }

    /// A new place behind all others of a priority.
    fn new_place(&mut self, priority: i8) -> u64 {
        self.arrivals += 1;
        place_of(priority, self.arrivals)
    }

    /// Takes a seat for a composite, behind all others of a priority. Returns its place.
    pub(crate) fn sit(&mut self, rule: &R, demand: Demand<'_, R::Ask>, composite: Weak<dyn Recheck>) -> u64 {
        let Demand { ask, priority } = demand;
        let (place, ahead) = (self.new_place(priority), self.ahead(rule, priority));
        self.seats.sit(rule, place, ask.clone(), ahead, composite);
        place
    }

    /// Tells a seat what it is held for and until when. Returns whether that is news for the
    /// requests behind, and when it is due here.
    pub(crate) fn tell_seat(
        &mut self,
        rule: &R,
        now: Nanos,
        place: u64,
        ask: &R::Ask,
        at: Nanos,
    ) -> (bool, Nanos) {
        self.seats.tell(&Terms { rule, settings: &self.settings }, now, place, ask, at)
    }

    /// Whether a pause lasts.
    pub(crate) fn is_paused(&self) -> bool {
        self.settings.opens > self.latest
    }

    /// Refuses the waiters that a request of this priority has gone before, if they are too late by
    /// it.
    fn moved_back(&mut self, visit: &mut Visit<'_, R, C>, priority: i8) {
        if self.priorities.behind(priority).iter().any(|class| class.with_deadline > 0) {
            self.retime(visit);
        }
    }

    /// Joins the line: behind all waiters of this priority or a higher one.
    pub(crate) fn push(
        &mut self,
        visit: &mut Visit<'_, R, C>,
        new_waiter: NewWaiter<R::Ask, C::RuntimeId>,
    ) -> u32 {
        let rule = visit.rule;
        let NewWaiter { ask, priority, droppable, woken_by, since, deadline, waker } = new_waiter;
        let previous = self.priorities.last_before(priority);
        let next = self.entries.get(previous as usize).map_or(self.head, |previous| previous.next);
        self.permits += u128::from(rule.permits(&ask));
        let place = self.new_place(priority);
        let class = self.priorities.class(priority);
        rule.add(&mut class.ahead, &ask);
        rule.size(&ask).into_iter().for_each(|n| class.sizes.add(n));
        let state = State::Waiting(waker);
        if !self.seats.is_empty() {
            self.seats.joined(rule, place, &ask);
        }
        let entry =
            Entry { ask, place, priority, droppable, previous, next, woken_by, since, deadline, state };
        // Four billion waiters at 64 bytes would not fit in memory.
        let key = u32::try_from(self.entries.insert(entry)).unwrap_or(NONE);
        class.last = key;
        class.len += 1;
        if deadline != Nanos::MAX {
            class.with_deadline += 1;
            self.deadlines.insert((deadline, key));
        }
        if matches!(woken_by, WokenBy::Thread { .. }) && class.first_thread == NONE {
            class.first_thread = key;
        }
        match self.entries.get_mut(previous as usize) {
            Some(entry) => entry.next = key,
            None => self.head = key,
        }
        if let Some(entry) = self.entries.get_mut(next as usize) {
            entry.previous = key;
        }
        self.len += 1;
        self.memo.set(self.memo.take().filter(|_| next == NONE).map(|memo| memo.with_last(key)));
        self.add_to_index(rule, key);
        self.moved_back(visit, priority);
        key
    }

    /// Notes an entry that has joined. A line that is long by now gets an index.
    fn add_to_index(&mut self, rule: &R, key: u32) {
        let new = self.index.is_none();
        if new && self.len < LONG {
            return;
        }
        let index = self.index.get_or_insert_default();
        let mut at = if new { self.head } else { key };
        while let Some(Entry { ask, place, next, .. }) = self.entries.get(at as usize) {
            // Where there are no sizes, there is nothing to tell by them.
            let Some(n) = rule.size(ask) else { return self.index = None };
            index.add(*place, at, n);
            at = if new { *next } else { NONE };
        }
    }

    /// Takes an entry out of the line; it stays in memory.
    fn unlink(&mut self, visit: &mut Visit<'_, R, C>, key: u32) {
        let rule = visit.rule;
        let Entry { ref ask, place, priority, previous, next, woken_by, deadline, .. } =
            self.entries[key as usize];
        let n = rule.size(ask);
        if !self.seats.is_empty() {
            self.seats.left(rule, place, ask);
        }
        self.memo.set(None);
        self.permits = self.permits.saturating_sub(rule.permits(ask).into());
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
        if class.len == 0 {
            self.priorities.forget(priority);
            rule.nobody_waits(priority, visit.deferred);
        } else if class.first_thread == key {
            let first = self.thread_from(next, priority);
            self.priorities.class(priority).first_thread = first;
        }
        match self.entries.get_mut(previous as usize) {
            Some(entry) => entry.next = next,
            None => self.head = next,
        }
        if let Some(entry) = self.entries.get_mut(next as usize) {
            entry.previous = previous;
        }
        self.len -= 1;
        if let Some(index) = &mut self.index {
            n.into_iter().for_each(|n| index.remove(place, key, n, next));
            if self.len < LONG / 4 {
                self.index = None;
            }
        }
        self.leave_alarm(woken_by, visit.deferred);
    }

    /// Ends the wait of an entry in line.
    fn answer(&mut self, visit: &mut Visit<'_, R, C>, key: u32, state: State<R::Charge>) {
        self.unlink(visit, key);
        if let State::Waiting(waker) = std::mem::replace(&mut self.entries[key as usize].state, state) {
            visit.deferred.wake.extend(waker);
        }
    }

    /// How an entry waits, if it still does.
    pub(crate) fn waits(&self, key: u32) -> Option<WokenBy<C::RuntimeId>> {
        let Entry { woken_by, ref state, .. } = self.entries[key as usize];
        matches!(state, State::Waiting(_)).then_some(woken_by)
    }

    /// Whether an entry was granted that a future or a thread waited for.
    pub(crate) fn was_granted(&self, key: u32) -> bool {
        let Entry { woken_by, ref state, .. } = self.entries[key as usize];
        matches!(state, State::Granted(_)) && !matches!(woken_by, WokenBy::Nobody)
    }

    /// Looks at an entry on behalf of its future, and removes it if its wait is over.
    ///
    /// The key is another entry's from then on, so no foreign code may run before the future has
    /// forgotten it.
    ///
    /// A grant of the kind `Final` cannot be undone from then on.
    pub(crate) fn collect(&mut self, key: u32, kind: GrantKind) -> Option<Decision<Granted<R::Charge>>> {
        if self.waits(key).is_some() {
            return None;
        }
        let Entry { woken_by, state, .. } = self.entries.remove(key as usize);
        match state {
            State::Waiting(_) => None,
            State::Granted(Uncollected { grant, epoch }) => {
                self.was_collected(woken_by, epoch);
                Some(Ok(Outcome::Granted(self.hand_over(grant, kind))))
            }
            State::Passed(refusal) => Some(Ok(Outcome::Shadow(refusal))),
            State::Refused(refusal) => Some(Err(refusal)),
        }
    }

    /// A grant is made that its future has still to collect.
    fn grant(
        &mut self,
        rule: &R,
        charge: R::Charge,
        woken_by: WokenBy<C::RuntimeId>,
    ) -> Uncollected<R::Charge> {
        let grant = Uncollected { grant: self.track(rule, charge), epoch: self.epoch };
        if !matches!(woken_by, WokenBy::Nobody) {
            if self.uncollected == [0, 0] {
                self.epoch_began = self.latest;
            }
            self.uncollected[1] += 1;
        }
        grant
    }

    /// A grant of this epoch was collected, or given up.
    fn was_collected(&mut self, woken_by: WokenBy<C::RuntimeId>, epoch: u32) {
        match self.epoch.wrapping_sub(epoch) {
            _ if matches!(woken_by, WokenBy::Nobody) => {}
            0 => self.uncollected[1] -= 1,
            1 => self.uncollected[0] -= 1,
            _ => {}
        }
    }

    /// Leaves a waker with an entry in line, unless it has one that wakes this task.
    pub(crate) fn set_waker(&mut self, key: u32, waker: &mut Option<Waker>) {
        if let State::Waiting(old) = &mut self.entries[key as usize].state
            && !old.as_ref().zip(waker.as_ref()).is_some_and(|(old, new)| old.will_wake(new))
        {
            std::mem::swap(old, waker);
        }
    }

    /// The highest clock reading so far.
    pub(crate) fn latest(&self) -> Nanos {
        self.latest
    }

    /// Removes an entry whose future is dropped. Leaves no trace: in line it owed nothing, granted
    /// it is undone. Returns a grant of a policy that [counts], which is to be undone
    /// without the lock.
    pub(crate) fn remove(&mut self, visit: &mut Visit<'_, R, C>, key: u32) -> Option<Tracked<R::Charge>> {
        if let State::Waiting(_) = self.entries[key as usize].state {
            self.unlink(visit, key);
        }
        let Entry { woken_by, state, .. } = self.entries.remove(key as usize);
        match state {
            State::Waiting(waker) => visit.deferred.discard.extend(waker),
            State::Granted(Uncollected { grant, epoch }) => {
                self.was_collected(woken_by, epoch);
                if counts(visit.rule.moved(&grant.charge)) {
                    return Some(grant);
                }
                self.undo(visit, grant);
            }
            State::Passed(_) | State::Refused(_) => {}
        }
        None
    }
}
