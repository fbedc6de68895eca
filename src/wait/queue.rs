//! The queue: who is next, when, and who is woken.
//!
//! The more important first, and of equals first come, first served. A waiter owes nothing until it is served; then it is charged as of the time its permits were
//! due, and leaves the line. Its entry stays until its future has seen the grant or is dropped.
//!
//! # Entry
//!
//! | state | in line | charged | leaves by |
//! |---|---|---|---|
//! | waiting | yes | no | [`serve`](Queue::serve): granted or refused; [`remove`](Queue::remove): its future was dropped |
//! | granted | no | yes | its future sees it; or was dropped: the charge is undone |
//! | passed | no | no | its future sees it, or was dropped: it was in line when nobody was to wait any more |
//! | refused | no | no | its future sees it, or was dropped |
//!
//! All of this is plain data under one lock. Wakers and sleeps are collected in [`After`] and called or dropped when
//! the lock is gone, since both may run foreign code that comes back here.

use std::task::Waker;
use std::time::Duration;

use slab::Slab;

use crate::clock::Timer;
use crate::error::Refusal;
use crate::gate::ONE;
use crate::nanos::Nanos;
use crate::policy::limited;
use crate::rule::Rule;
use crate::wait::after::After;
use crate::wait::alarm::{Alarms, Found, Job, Lost, PutBack, SLACK};
use crate::wait::control::Control;
use crate::wait::levels::{Levels, NONE};
use crate::wait::lows::Lows;
use crate::wait::seats::{END, Seats, end_of};

/// For how long a grant that was not seen keeps newcomers in line: longer than an executor takes to run a woken task.
const PATIENCE: Nanos = Nanos::new(10_000_000);

pub(crate) struct Queue<R: Rule<C>, C: Timer> {
    pub(super) entries: Slab<Entry<R::Ask, R::Charge, C::Domain>>,
    /// The line, linked through the entries.
    pub(super) head: u32,
    pub(super) levels: Levels<R::Ahead>,
    len: usize,
    /// How many permits those in line wait for.
    pub(super) permits: u128,
    /// The latest time that anybody told, also if the clock went back since.
    latest: Nanos,
    /// How many were granted in the round before and in this round and have not seen it; see [`unseen`](Queue::unseen).
    unseen: [usize; 2],
    /// The number of this round, so that an entry knows where it is counted.
    round: u32,
    /// When this round began.
    began: Nanos,
    lows: Lows,
    /// Places held for those who wait for other limiters as well.
    pub(crate) seats: Seats<R, C>,
    pub(crate) alarms: Alarms<C>,
    pub(crate) control: Control,
}

#[derive(Debug)]
pub(super) struct Entry<Ask, Charge, Domain> {
    pub(super) ask: Ask,
    /// Its place among entries and seats.
    pub(super) place: u64,
    pub(super) priority: i8,
    /// Whether it may have to make room for others.
    pub(super) droppable: bool,
    pub(super) previous: u32,
    pub(super) next: u32,
    kind: Kind<Domain>,
    /// When it joined: it is not charged as of a time before.
    since: Nanos,
    /// Due later than this, it is refused.
    deadline: Nanos,
    state: State<Charge>,
}

/// Who joins the line.
pub(crate) struct Newcomer<Ask, Domain> {
    pub(crate) ask: Ask,
    pub(crate) priority: i8,
    /// Whether it may have to make room for others.
    pub(crate) droppable: bool,
    pub(crate) kind: Kind<Domain>,
    /// Now.
    pub(crate) since: Nanos,
    /// Due later than this, it is refused.
    pub(crate) deadline: Nanos,
    pub(crate) waker: Option<Waker>,
}

/// Who waits.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Kind<Domain> {
    /// A task, with the key of its event loop's alarm, and how many of the same event loop it lost before.
    Task { alarm: u32, lost: u8 },
    /// A task that lost so many alarms of this event loop, and was woken to get a new one.
    Lost { domain: Domain, times: u8 },
    /// A blocked thread, which is its own alarm when it is first: it will look at this time.
    Thread { looks_at: Nanos },
    /// A reservation that nobody awaits yet. Nobody looks when it is due.
    Nobody,
}

#[derive(Debug)]
pub(super) enum State<Charge> {
    Waiting(Option<Waker>),
    Granted(Grant<Charge>),
    /// It passes without a permit, and would have been told this.
    Passed(Refusal),
    Refused(Refusal),
}

/// A grant that was not seen yet.
#[derive(Debug)]
pub(super) struct Grant<Charge> {
    charge: Charge,
    /// What the lowest level since is asked for with.
    begun: u64,
    /// The round in which it is counted as unseen.
    round: u32,
}

/// What a look at an entry found.
pub(crate) enum Seen<Charge, Domain> {
    Waiting(Kind<Domain>),
    Granted(Charge),
    Passed(Refusal),
    Refused(Refusal),
}

/// Where the queue asks for permits.
pub(crate) struct Source<'a, R> {
    pub(crate) rule: &'a R,
    pub(crate) catch_up: Nanos,
}

impl<R: Rule<C>, C: Timer> Queue<R, C> {
    pub(crate) fn new() -> Self {
        Queue {
            entries: Slab::new(),
            head: NONE,
            levels: Levels::new(),
            len: 0,
            permits: 0,
            latest: Nanos::ZERO,
            unseen: [0, 0],
            round: 0,
            began: Nanos::ZERO,
            lows: Lows::new(),
            seats: Seats::new(),
            alarms: Alarms::new(),
            control: Control::new(),
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Whether it has no entry, also none that was granted and not seen.
    #[cfg(feature = "keyed")]
    pub(crate) fn is_unused(&self) -> bool {
        self.entries.is_empty() && self.control.is_unbounded()
    }

    /// Tells the queue the time, before it does anything else.
    pub(crate) fn tell(&mut self, now: Nanos) {
        self.latest = self.latest.max(now);
        let lasted = self.latest.saturating_since(self.began);
        if self.unseen != [0, 0] && lasted > PATIENCE {
            let two = lasted > PATIENCE.saturating_add(PATIENCE);
            self.unseen = [if two { 0 } else { self.unseen[1] }, 0];
            self.round = self.round.wrapping_add(if two { 2 } else { 1 });
            self.began = self.latest;
        }
    }

    /// How many were granted lately, and their futures were woken and have not run yet.
    ///
    /// While there are any, a newcomer does not run on even if its permit is there: it is granted at once, and woken behind
    /// them. Rounds last for `PATIENCE`, and this one and the one before are counted, so that a future
    /// that never runs does not keep everybody in line for ever.
    pub(crate) fn unseen(&self) -> usize {
        self.unseen[0] + self.unseen[1]
    }

    /// What requests without the lock have to know.
    pub(crate) fn front(&self) -> usize {
        (self.len + self.unseen() + self.seats.len()).saturating_mul(ONE) | self.control.flags(self.latest)
    }

    /// Nobody passes before.
    pub(crate) fn pause_until(&mut self, until: Nanos) {
        self.control.opens = until;
        self.seats.opens = until;
    }

    /// Ends a pause. Returns whether there was one.
    pub(crate) fn resume(&mut self, now: Nanos) -> bool {
        let paused = self.control.resume(now);
        self.seats.opens = self.control.opens;
        paused
    }

    /// Keeps so many permits for requests of a priority or a higher one.
    pub(crate) fn set_reserve(&mut self, reserve: Option<(u32, i8)>) {
        self.control.reserve = reserve;
        self.seats.reserve = reserve;
    }

    /// Whether nobody passes now.
    pub(crate) fn is_paused(&self) -> bool {
        self.control.opens > self.latest
    }

    /// Whether a newcomer of this priority has nobody to wait for but the policy: nobody is in line before it, and no seat loses its time
    /// by it.
    pub(crate) fn is_open(&self, rule: &R, now: Nanos, ask: &R::Ask, priority: i8) -> bool {
        !self.is_paused()
            && self.levels.before(priority).is_empty()
            && (self.seats.len() == 0 || self.due_behind(rule, now, ask, priority) <= now)
    }

    /// All that go before a newcomer of this priority, summed; without seats.
    pub(crate) fn ahead(&self, rule: &R, priority: i8) -> R::Ahead {
        let mut ahead = R::Ahead::default();
        for level in self.levels.before(priority) {
            rule.merge(&mut ahead, &level.ahead);
        }
        ahead
    }

    /// When a request at this place is due, if those ahead go first.
    pub(super) fn due(&self, rule: &R, now: Nanos, place: u64, ahead: &R::Ahead, ask: &R::Ask) -> Nanos {
        self.seats.due(rule, (now, now), (place, 0), ahead, ask)
    }

    /// When a newcomer is due, behind those that go before it.
    pub(crate) fn due_behind(&self, rule: &R, now: Nanos, ask: &R::Ask, priority: i8) -> Nanos {
        let place = end_of(priority);
        match self.levels.before(priority) {
            [] => self.due(rule, now, place, &R::Ahead::default(), ask),
            [only] => self.due(rule, now, place, &only.ahead, ask),
            _ => self.due(rule, now, place, &self.ahead(rule, priority), ask),
        }
    }

    /// Whether a request of this priority can ever be granted.
    pub(crate) fn check(&self, rule: &R, now: Nanos, ask: &R::Ask, priority: i8) -> Result<(), Refusal> {
        match self.control.kept_from(priority) {
            0 => {}
            kept => rule.check_leaving(now, ask, kept)?,
        }
        rule.check(ask)
    }

    /// Takes for a newcomer that has nobody to wait for, and moves back those that it goes before.
    pub(crate) fn take(
        &mut self,
        from: &Source<'_, R>,
        now: Nanos,
        ask: &R::Ask,
        priority: i8,
        after: &mut After<C>,
    ) -> Result<R::Charge, Refusal> {
        if self.control.kept_from(priority) > 0 {
            // Looking and taking are two steps. Nobody takes in between, since all of them need this lock.
            let due = self.due(from.rule, now, end_of(priority), &R::Ahead::default(), ask);
            if due > now {
                return Err(limited(due, now));
            }
        }
        let charge = from.rule.take(now, now, ask, after)?;
        self.moved_back(from, now, priority, after);
        Ok(charge)
    }

    /// Refuses those that somebody of this priority has gone before, if they are too late by it.
    fn moved_back(&mut self, from: &Source<'_, R>, now: Nanos, priority: i8, after: &mut After<C>) {
        if self.levels.behind(priority).iter().any(|level| level.dated > 0) {
            self.retime(from, now, after);
        }
    }

    /// Joins the line: behind those that are as important, and before those that are less so.
    pub(crate) fn push(
        &mut self,
        from: &Source<'_, R>,
        newcomer: Newcomer<R::Ask, C::Domain>,
        after: &mut After<C>,
    ) -> u32 {
        let Newcomer { ask, priority, droppable, kind, since, deadline, waker } = newcomer;
        let previous = self.levels.last_before(priority);
        let next = self.entries.get(previous as usize).map_or(self.head, |previous| previous.next);
        self.permits += u128::from(from.rule.permits(&ask));
        let level = self.levels.level(priority);
        from.rule.add(&mut level.ahead, &ask);
        let (place, state) = (self.seats.place(priority), State::Waiting(waker));
        self.seats.joined(from.rule, place, &ask);
        let entry = Entry { ask, place, priority, droppable, previous, next, kind, since, deadline, state };
        // Four billion waiters at 64 bytes would not fit in memory.
        let key = u32::try_from(self.entries.insert(entry)).unwrap_or(NONE);
        level.last = key;
        level.len += 1;
        level.dated += usize::from(deadline != Nanos::MAX);
        if matches!(kind, Kind::Thread { .. }) && level.first_thread == NONE {
            level.first_thread = key;
        }
        match self.entries.get_mut(previous as usize) {
            Some(entry) => entry.next = key,
            None => self.head = key,
        }
        if let Some(entry) = self.entries.get_mut(next as usize) {
            entry.previous = key;
        }
        self.len += 1;
        self.moved_back(from, since, priority, after);
        key
    }

    /// Takes an entry out of the line; it stays in memory.
    fn unlink(&mut self, rule: &R, key: u32, after: &mut After<C>) {
        let Entry { ref ask, place, priority, previous, next, kind, deadline, .. } =
            self.entries[key as usize];
        self.seats.left(rule, place, ask);
        self.permits = self.permits.saturating_sub(rule.permits(ask).into());
        let level = self.levels.level(priority);
        rule.subtract(&mut level.ahead, ask);
        level.len -= 1;
        level.dated -= usize::from(deadline != Nanos::MAX);
        if level.last == key {
            level.last = previous;
        }
        if level.len == 0 {
            self.levels.forget(priority);
            rule.nobody_waits(priority, after);
        } else if level.first_thread == key {
            let first = self.thread_from(next, priority);
            self.levels.level(priority).first_thread = first;
        }
        match self.entries.get_mut(previous as usize) {
            Some(entry) => entry.next = next,
            None => self.head = next,
        }
        if let Some(entry) = self.entries.get_mut(next as usize) {
            entry.previous = previous;
        }
        self.len -= 1;
        self.leave_alarm(kind, after);
    }

    /// The first blocked thread of a level from an entry on. Each entry is passed once, since all threads of the level stand
    /// behind its first.
    fn thread_from(&self, mut key: u32, priority: i8) -> u32 {
        while let Some(entry) = self.entries.get(key as usize)
            && entry.priority == priority
        {
            if matches!(entry.kind, Kind::Thread { .. }) {
                return key;
            }
            key = entry.next;
        }
        NONE
    }

    fn leave_alarm(&mut self, kind: Kind<C::Domain>, after: &mut After<C>) {
        if let Kind::Task { alarm, .. } = kind {
            after.sleeps.extend(self.alarms.leave(alarm as usize));
        }
    }

    /// Ends the wait of an entry in line.
    pub(super) fn settle(&mut self, rule: &R, key: u32, state: State<R::Charge>, after: &mut After<C>) {
        self.unlink(rule, key, after);
        if let State::Waiting(waker) = std::mem::replace(&mut self.entries[key as usize].state, state) {
            after.wake.extend(waker);
        }
    }

    /// Grants everybody who is due, in order, and refuses those who cannot be served by their deadline. Returns
    /// when the first of the others is due. Tells those about it who wait for several limiters.
    pub(crate) fn serve(&mut self, from: &Source<'_, R>, now: Nanos, after: &mut After<C>) -> Option<Nanos> {
        if self.len > 0 && from.rule.has_changed() {
            self.retime(from, now, after);
        }
        let mut due = self.serve_due(from, now, after);
        if due.is_some() && self.control.shadow {
            self.pass_all(from, now, after);
            due = None;
        }
        match self.seats.len() {
            0 => {}
            _ if self.control.shadow => self.seats.ring_all(after),
            _ => self.seats.ring(from.rule, now, after),
        }
        let first = self.entries.get(self.head as usize).zip(due);
        from.rule.wait_first(now, first.map(|(first, due)| (&first.ask, first.priority, due)), after);
        due
    }

    /// In shadow nobody waits: all in line pass without a permit.
    fn pass_all(&mut self, from: &Source<'_, R>, now: Nanos, after: &mut After<C>) {
        let mut ahead = R::Ahead::default();
        while let Some(Entry { ask, place, .. }) = self.entries.get(self.head as usize) {
            let (key, refusal) = (self.head, limited(self.due(from.rule, now, *place, &ahead, ask), now));
            from.rule.add(&mut ahead, ask);
            self.settle(from.rule, key, State::Passed(refusal), after);
        }
    }

    fn serve_due(&mut self, from: &Source<'_, R>, now: Nanos, after: &mut After<C>) -> Option<Nanos> {
        while let Some(first) = self.entries.get(self.head as usize) {
            let key = self.head;
            let (ask, none) = (first.ask.clone(), R::Ahead::default());
            let &Entry { place, kind, since, deadline, priority, .. } = first;
            let due = self.due(from.rule, now, place, &none, &ask);
            if due == Nanos::MAX
                && let Err(never) = self.check(from.rule, now, &ask, priority)
            {
                // Where one of several limiters was changed.
                self.settle(from.rule, key, State::Refused(never), after);
                continue;
            }
            if due > deadline {
                let retry_after = due.saturating_since(deadline).as_duration();
                self.settle(from.rule, key, State::Refused(Refusal::Limited { retry_after }), after);
                continue;
            }
            if due > now {
                return Some(due);
            }
            // As of when it was due, so that a late timer costs nothing; but not further back than allowed, so
            // that a machine that stood still does not let everything through at once. Where nobody was to look, the
            // grant was not late: its turn passed at its time, and is over. And not before it was asked for.
            let late = match kind {
                _ if !from.rule.catches_up() => 0,
                Kind::Nobody => u64::MAX,
                Kind::Task { .. } | Kind::Lost { .. } | Kind::Thread { .. } => from.catch_up.as_u64(),
            };
            let oldest = since.max(Nanos::new(now.as_u64().saturating_sub(late)));
            // The clock may have gone back since it joined.
            match from.rule.take(due.max(oldest).min(now), now, &ask, after) {
                Ok(charge) => {
                    let grant = Grant { charge, begun: self.lows.begin(), round: self.round };
                    if !matches!(kind, Kind::Nobody) {
                        if self.unseen == [0, 0] {
                            self.began = self.latest;
                        }
                        self.unseen[1] += 1;
                    }
                    self.settle(from.rule, key, State::Granted(grant), after);
                }
                Err(Refusal::Limited { .. }) => {
                    // Somebody who came before the line formed took it just now.
                    if self.due(from.rule, now, place, &none, &ask) <= due {
                        // Or somebody is in between, or the policy does not agree with itself: look again, but do not spin.
                        return Some(due.max(now.saturating_add(Nanos::new(1))));
                    }
                }
                // Nobody knows when it will be there. Whoever brings it rings; until then only deadlines pass.
                Err(refusal @ Refusal::InUse { .. }) => {
                    let next = self.expire(from.rule, now, refusal, after);
                    if self.entries.contains(self.head as usize) && self.head == key {
                        return Some(next);
                    }
                }
                Err(refusal) => self.settle(from.rule, key, State::Refused(refusal), after),
            }
        }
        None
    }

    /// Refuses those whose deadline has passed. Returns the next deadline.
    fn expire(&mut self, rule: &R, now: Nanos, refusal: Refusal, after: &mut After<C>) -> Nanos {
        let (mut key, mut first) = (self.head, Nanos::MAX);
        while let Some(&Entry { next, deadline, .. }) = self.entries.get(key as usize) {
            if deadline <= now {
                self.settle(rule, key, State::Refused(refusal), after);
            } else {
                first = first.min(deadline);
            }
            key = next;
        }
        first
    }

    /// After a change: weighs anew, and refuses at once those who will not be served by their deadline, or not at all.
    pub(crate) fn retime(&mut self, from: &Source<'_, R>, now: Nanos, after: &mut After<C>) {
        // Counted anew: the sums so far are at the old rate.
        let mut sums: Vec<(i8, R::Ahead)> = Vec::with_capacity(self.levels.all().len());
        let mut ahead = R::Ahead::default();
        let (mut key, mut counted) = (self.head, 0);
        self.seats.begin_reweighing(from.rule);
        while let Some(entry) = self.entries.get(key as usize) {
            let &Entry { place, priority, next, deadline, .. } = entry;
            let ask = entry.ask.clone();
            self.seats.reweigh(counted, place, &ahead);
            counted = place;
            let due = self.due(from.rule, now, place, &ahead, &ask);
            if let Err(never) = self.check(from.rule, now, &ask, priority) {
                // More than can be had at once now: it would keep all others waiting for ever.
                self.settle(from.rule, key, State::Refused(never), after);
            } else if due > deadline {
                let retry_after = due.saturating_since(deadline).as_duration();
                self.settle(from.rule, key, State::Refused(Refusal::Limited { retry_after }), after);
            } else {
                from.rule.add(&mut ahead, &ask);
                if sums.last().is_none_or(|(level, _)| *level != priority) {
                    sums.push((priority, R::Ahead::default()));
                }
                if let Some((_, sum)) = sums.last_mut() {
                    from.rule.add(sum, &ask);
                }
            }
            key = next;
        }
        self.seats.reweigh(counted, END, &ahead);
        self.seats.end_reweighing(from.rule);
        for (priority, sum) in sums {
            self.levels.level(priority).ahead = sum;
        }
    }

    /// Sees that somebody will look when the head is due at `due`: sets an alarm, or tells a thread. Returns an alarm to be
    /// set without the lock.
    pub(crate) fn watch(&mut self, due: Nanos, clock: &C, after: &mut After<C>) -> Option<Job<C>> {
        loop {
            let first = match self.entries.get(self.head as usize)?.kind {
                Kind::Task { alarm, .. } => Some(alarm as usize),
                Kind::Thread { .. } | Kind::Lost { .. } | Kind::Nobody => None,
            };
            match self.alarms.check(first, due, clock) {
                Found::Job(job) => return Some(job),
                Found::Lost(lost) => self.lose(lost, after),
                Found::Nothing => break,
            }
        }
        self.tell_thread(due, after);
        None
    }

    /// Puts back an alarm that was set, or was to be set and `broke`.
    pub(crate) fn put_back(&mut self, job: Job<C>, broke: bool, after: &mut After<C>) {
        match self.alarms.put_back(job, broke) {
            PutBack::There => {}
            PutBack::Unused(sleep) => after.sleeps.push(sleep),
            PutBack::Lost(lost) => self.lose(lost, after),
        }
    }

    /// Wakes those who relied on an alarm that is lost.
    fn lose(&mut self, lost: Lost<C>, after: &mut After<C>) {
        let Lost { key, domain, sleep } = lost;
        after.sleeps.extend(sleep);
        for (_, entry) in &mut self.entries {
            if let State::Waiting(waker) = &mut entry.state
                && let Kind::Task { alarm, lost } = entry.kind
                && alarm as usize == key
            {
                entry.kind = Kind::Lost { domain, times: lost.saturating_add(1) };
                after.wake.extend(waker.take());
            }
        }
    }

    /// The first blocked thread in line looks at the time itself: when the head is due if it is the head, or if there are no
    /// alarms, and else a little later, in case they are held up.
    fn tell_thread(&mut self, due: Nanos, after: &mut After<C>) {
        let first = self.levels.first_thread();
        let own = first == self.head || self.alarms.is_empty();
        let at = if own { due } else { due.saturating_add(SLACK) };
        if let Some(Entry { kind: Kind::Thread { looks_at }, state: State::Waiting(Some(waker)), .. }) =
            self.entries.get_mut(first as usize)
            && *looks_at > at
        {
            *looks_at = at;
            after.wake.push(waker.clone());
        }
    }

    /// Looks at an entry on behalf of its future, and removes it if its wait is over.
    ///
    /// With a place to `keep` what a grant is to be ended with, that is left to the caller.
    pub(crate) fn see(&mut self, key: u32, keep: Option<&mut u64>) -> Seen<R::Charge, C::Domain> {
        let Entry { kind, ref state, .. } = self.entries[key as usize];
        if let State::Waiting(_) = state {
            return Seen::Waiting(kind);
        }
        match self.entries.remove(key as usize).state {
            State::Waiting(_) => Seen::Waiting(kind),
            State::Granted(grant) => {
                self.was_seen(kind, &grant);
                match keep {
                    Some(begun) => *begun = grant.begun,
                    None => drop(self.lows.end(grant.begun)),
                }
                Seen::Granted(grant.charge)
            }
            State::Passed(refusal) => Seen::Passed(refusal),
            State::Refused(refusal) => Seen::Refused(refusal),
        }
    }

    /// A grant was seen, or given up. Returns the lowest level since.
    fn was_seen(&mut self, kind: Kind<C::Domain>, grant: &Grant<R::Charge>) {
        match self.round.wrapping_sub(grant.round) {
            _ if matches!(kind, Kind::Nobody) => {}
            0 => self.unseen[1] -= 1,
            1 => self.unseen[0] -= 1,
            _ => {}
        }
    }

    /// Leaves a waker with an entry in line.
    pub(crate) fn set_waker(&mut self, key: u32, waker: &Waker, after: &mut After<C>) {
        if let State::Waiting(old) = &mut self.entries[key as usize].state
            && !old.as_ref().is_some_and(|old| old.will_wake(waker))
        {
            after.discard.extend(old.replace(waker.clone()));
        }
    }

    /// Until when the blocked thread of an entry is to be parked.
    pub(crate) fn looks_at(&self, key: u32) -> Nanos {
        match &self.entries[key as usize] {
            Entry { state: State::Waiting(_), kind: Kind::Thread { looks_at }, .. } => *looks_at,
            // It relies on an alarm.
            Entry { state: State::Waiting(_), .. } => Nanos::MAX,
            // It has its answer. Its wake-up may have been used up by a waker that parked this thread.
            _ => Nanos::ZERO,
        }
    }

    /// Changes who waits.
    pub(crate) fn set_kind(&mut self, key: u32, kind: Kind<C::Domain>, after: &mut After<C>) {
        let old = std::mem::replace(&mut self.entries[key as usize].kind, kind);
        self.leave_alarm(old, after);
    }

    /// The latest time that anybody told.
    pub(crate) fn latest(&self) -> Nanos {
        self.latest
    }

    /// A grant is made that may be undone later. Returns what to [end](Queue::end) it with.
    pub(crate) fn begin(&mut self) -> u64 {
        self.lows.begin()
    }

    /// A grant is final, or undone. Returns the lowest level since it was made.
    pub(crate) fn end(&mut self, begun: u64) -> u64 {
        self.lows.end(begun)
    }

    /// The lowest level since there were so many [`levels`](Queue::levels), or 0 if that is too long ago.
    pub(crate) fn lowest_since(&self, levels: u64) -> u64 {
        self.lows.lowest_since(levels)
    }

    /// A number that is another one each time permits are given back.
    pub(crate) fn levels(&self) -> u64 {
        self.lows.levels()
    }

    /// Something gave permits back, and left the state at this level.
    pub(crate) fn note(&mut self, level: u64) {
        self.lows.note(level);
    }

    /// Removes an entry whose future is dropped. Leaves no trace: in line it owed nothing, granted it is undone.
    pub(crate) fn remove(&mut self, from: &Source<'_, R>, key: u32, after: &mut After<C>) {
        if let State::Waiting(_) = self.entries[key as usize].state {
            self.unlink(from.rule, key, after);
        }
        let Entry { kind, state, .. } = self.entries.remove(key as usize);
        match state {
            State::Waiting(waker) => after.discard.extend(waker),
            State::Granted(grant) => {
                self.was_seen(kind, &grant);
                let lowest = self.lows.end(grant.begun);
                // At the latest time: what overflowed by then is lost, also if the clock went back.
                let level = from.rule.undo(self.latest, grant.charge, lowest, after);
                self.lows.note(level);
            }
            State::Passed(_) | State::Refused(_) => {}
        }
    }

    /// When an entry is due, if nothing changes: zero time from now if it is granted.
    pub(crate) fn due_in(&self, from: &Source<'_, R>, key: u32, now: Nanos) -> Duration {
        match &self.entries[key as usize].state {
            State::Waiting(_) => {}
            State::Granted(_) | State::Passed(_) => return Duration::ZERO,
            State::Refused(_) => return Duration::MAX,
        }
        let mut ahead = R::Ahead::default();
        let mut at = self.head;
        while at != key
            && let Some(entry) = self.entries.get(at as usize)
        {
            from.rule.add(&mut ahead, &entry.ask);
            at = entry.next;
        }
        let Entry { ask, place, .. } = &self.entries[key as usize];
        let due = self.due(from.rule, now, *place, &ahead, ask);
        due.saturating_since(now).as_duration()
    }
}
