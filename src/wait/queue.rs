//! The queue: who is next, when, and who is woken.
//!
//! First come, first served. A waiter owes nothing until it is served; then it is charged as of the time its permits were
//! due, and leaves the line. Its entry stays until its future has seen the grant or is dropped.
//!
//! # Entry
//!
//! | state | in line | charged | leaves by |
//! |---|---|---|---|
//! | waiting | yes | no | [`serve`](Queue::serve): granted or refused; [`remove`](Queue::remove): its future was dropped |
//! | granted | no | yes | its future sees it; or was dropped: the charge is undone |
//! | refused | no | no | its future sees it, or was dropped |
//!
//! All of this is plain data under one lock. Wakers and sleeps are collected in [`After`] and called or dropped when
//! the lock is gone, since both may run foreign code that comes back here.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use slab::Slab;

use crate::clock::Timer;
use crate::error::Refusal;
use crate::nanos::Nanos;
use crate::rule::Rule;
use crate::wait::alarm::{Alarms, Found, Job, Lost, PutBack, SLACK};
use crate::wait::lows::Lows;
use crate::wait::ring::{Ring, ring_all};
use crate::wait::seats::{END, Seats};

/// For how long a grant that was not seen keeps newcomers in line: longer than an executor takes to run a woken task.
const PATIENCE: Nanos = Nanos::new(10_000_000);

/// No entry.
const NONE: u32 = u32::MAX;

pub(crate) struct Queue<R: Rule<C>, C: Timer> {
    entries: Slab<Entry<R::Ask, R::Charge, C::Domain>>,
    /// The line, linked through the entries.
    head: u32,
    tail: u32,
    len: usize,
    /// The first blocked thread in line.
    first_thread: u32,
    /// The latest time that anybody told, also if the clock went back since.
    latest: Nanos,
    /// How many were granted in the round before and in this round and have not seen it; see [`unseen`](Queue::unseen).
    unseen: [usize; 2],
    /// The number of this round, so that an entry knows where it is counted.
    round: u32,
    /// When this round began.
    began: Nanos,
    lows: Lows,
    /// All in line, summed.
    ahead: R::Ahead,
    /// Places held for those who wait for other limiters as well.
    pub(crate) seats: Seats<R, C>,
    pub(crate) alarms: Alarms<C>,
}

#[derive(Debug)]
struct Entry<Ask, Charge, Domain> {
    ask: Ask,
    /// Its place among entries and seats: the later it joined, the higher.
    place: u64,
    previous: u32,
    next: u32,
    kind: Kind<Domain>,
    /// When it joined: it is not charged as of a time before.
    since: Nanos,
    /// Due later than this, it is refused.
    deadline: Nanos,
    state: State<Charge>,
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
enum State<Charge> {
    Waiting(Option<Waker>),
    Granted(Grant<Charge>),
    Refused(Refusal),
}

/// A grant that was not seen yet.
#[derive(Debug)]
struct Grant<Charge> {
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
    Refused(Refusal),
}

/// What is done when the lock is gone: on drop, so also if a caller's code panics meanwhile.
pub(crate) struct After<C: Timer> {
    pub(crate) wake: Vec<Waker>,
    pub(crate) discard: Vec<Waker>,
    pub(crate) sleeps: Vec<Pin<Box<C::Sleep>>>,
    /// Gates that have to look at their queues.
    pub(crate) rings: Vec<Arc<dyn Ring>>,
    /// What calls foreign code when it is dropped.
    pub(crate) drops: Vec<Box<dyn Any + Send>>,
    /// The first panic of foreign code, which goes on when everything is done.
    pub(crate) panic: Option<Box<dyn Any + Send>>,
}

impl<C: Timer> After<C> {
    pub(crate) fn new() -> Self {
        After {
            wake: Vec::new(),
            discard: Vec::new(),
            sleeps: Vec::new(),
            rings: Vec::new(),
            drops: Vec::new(),
            panic: None,
        }
    }
}

impl<C: Timer> Drop for After<C> {
    fn drop(&mut self) {
        for waker in self.wake.drain(..) {
            // One that panics must not take the wake-ups of the others with it.
            if let Err(panic) = catch_unwind(AssertUnwindSafe(|| waker.wake())) {
                self.panic.get_or_insert(panic);
            }
        }
        for item in self.drops.drain(..) {
            if let Err(panic) = catch_unwind(AssertUnwindSafe(|| drop(item))) {
                self.panic.get_or_insert(panic);
            }
        }
        let panic = ring_all(std::mem::take(&mut self.rings));
        self.panic = self.panic.take().or(panic);
        if let Some(panic) = self.panic.take()
            && !std::thread::panicking()
        {
            resume_unwind(panic);
        }
    }
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
            tail: NONE,
            len: 0,
            first_thread: NONE,
            latest: Nanos::ZERO,
            unseen: [0, 0],
            round: 0,
            began: Nanos::ZERO,
            lows: Lows::new(),
            ahead: R::Ahead::default(),
            seats: Seats::new(),
            alarms: Alarms::new(),
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
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

    /// How many reasons there are to come here instead of asking the policy directly.
    pub(crate) fn busy(&self) -> usize {
        self.len + self.unseen() + self.seats.len()
    }

    /// All in line, summed; without seats.
    pub(crate) fn ahead(&self) -> &R::Ahead {
        &self.ahead
    }

    /// When a newcomer is due, behind all in line.
    pub(crate) fn due_behind(&self, rule: &R, now: Nanos, ask: &R::Ask) -> Nanos {
        self.seats.due(rule, (now, now), (END, 0), &self.ahead, ask)
    }

    /// Whether a newcomer may ask the policy: nobody is in line, and no seat loses its time by it.
    pub(crate) fn is_free(&self, rule: &R, now: Nanos, ask: &R::Ask) -> bool {
        self.len == 0 && (self.seats.len() == 0 || self.due_behind(rule, now, ask) <= now)
    }

    /// Joins the line at the end.
    pub(crate) fn push(
        &mut self,
        rule: &R,
        ask: R::Ask,
        deadline: Nanos,
        kind: Kind<C::Domain>,
        since: Nanos,
        waker: Option<Waker>,
    ) -> u32 {
        rule.add(&mut self.ahead, &ask);
        let (place, state) = (self.seats.place(), State::Waiting(waker));
        let entry = Entry { ask, place, previous: self.tail, next: NONE, kind, since, deadline, state };
        let key = self.entries.insert(entry);
        // Four billion waiters at 64 bytes would not fit in memory.
        let key = u32::try_from(key).unwrap_or(NONE);
        match self.entries.get_mut(self.tail as usize) {
            Some(last) => last.next = key,
            None => self.head = key,
        }
        self.tail = key;
        if matches!(kind, Kind::Thread { .. }) && self.first_thread == NONE {
            self.first_thread = key;
        }
        self.len += 1;
        key
    }

    /// Takes an entry out of the line; it stays in memory.
    fn unlink(&mut self, rule: &R, key: u32, after: &mut After<C>) {
        let Entry { ref ask, place, previous, next, kind, .. } = self.entries[key as usize];
        rule.subtract(&mut self.ahead, ask);
        self.seats.left(rule, place, ask);
        match self.entries.get_mut(previous as usize) {
            Some(entry) => entry.next = next,
            None => self.head = next,
        }
        match self.entries.get_mut(next as usize) {
            Some(entry) => entry.previous = previous,
            None => self.tail = previous,
        }
        self.len -= 1;
        if key == self.first_thread {
            self.first_thread = self.thread_from(next);
        }
        self.leave_alarm(kind, after);
    }

    /// The first blocked thread in line from an entry on. Each entry is passed once, since all threads stand behind the first.
    fn thread_from(&self, mut key: u32) -> u32 {
        while let Some(entry) = self.entries.get(key as usize)
            && !matches!(entry.kind, Kind::Thread { .. })
        {
            key = entry.next;
        }
        key
    }

    /// A task does not rely on its alarm any more.
    fn leave_alarm(&mut self, kind: Kind<C::Domain>, after: &mut After<C>) {
        if let Kind::Task { alarm, .. } = kind {
            after.sleeps.extend(self.alarms.leave(alarm as usize));
        }
    }

    /// Ends the wait of an entry in line.
    fn settle(&mut self, rule: &R, key: u32, state: State<R::Charge>, after: &mut After<C>) {
        self.unlink(rule, key, after);
        if let State::Waiting(waker) = std::mem::replace(&mut self.entries[key as usize].state, state) {
            after.wake.extend(waker);
        }
    }

    /// Grants everybody who is due, in order, and refuses those who cannot be served by their deadline. Returns
    /// when the first of the others is due. Tells those about it who wait for several limiters.
    pub(crate) fn serve(&mut self, from: &Source<'_, R>, now: Nanos, after: &mut After<C>) -> Option<Nanos> {
        let due = self.serve_line(from, now, after);
        if self.seats.len() > 0 {
            self.seats.ring(from.rule, now, after);
        }
        let first = self.entries.get(self.head as usize).zip(due);
        from.rule.wait_first(now, first.map(|(first, due)| (&first.ask, due)), after);
        due
    }

    fn serve_line(&mut self, from: &Source<'_, R>, now: Nanos, after: &mut After<C>) -> Option<Nanos> {
        while let Some(first) = self.entries.get(self.head as usize) {
            let key = self.head;
            let (ask, none) = (first.ask.clone(), R::Ahead::default());
            let &Entry { place, kind, since, deadline, .. } = first;
            let due = self.seats.due(from.rule, (now, now), (place, 0), &none, &ask);
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
                    if from.rule.ready_at(now, &none, &ask) <= due {
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
        // Counted anew: the sum so far is at the old rate.
        let mut ahead = R::Ahead::default();
        let (mut key, mut counted) = (self.head, 0);
        while let Some(entry) = self.entries.get(key as usize) {
            let (ask, next, deadline) = (entry.ask.clone(), entry.next, entry.deadline);
            self.seats.reweigh(counted, entry.place, &ahead);
            counted = entry.place;
            if let Err(never) = from.rule.check(&ask) {
                // More than can be had at once now: it would keep all others waiting for ever.
                self.settle(from.rule, key, State::Refused(never), after);
                key = next;
                continue;
            }
            let due = from.rule.ready_at(now, &ahead, &ask);
            if due > deadline {
                let retry_after = due.saturating_since(deadline).as_duration();
                self.settle(from.rule, key, State::Refused(Refusal::Limited { retry_after }), after);
            } else {
                from.rule.add(&mut ahead, &ask);
            }
            key = next;
        }
        self.seats.reweigh(counted, END, &ahead);
        self.ahead = ahead;
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
        let own = self.first_thread == self.head || self.alarms.is_empty();
        let at = if own { due } else { due.saturating_add(SLACK) };
        if let Some(Entry { kind: Kind::Thread { looks_at }, state: State::Waiting(Some(waker)), .. }) =
            self.entries.get_mut(self.first_thread as usize)
            && *looks_at > at
        {
            *looks_at = at;
            after.wake.push(waker.clone());
        }
    }

    /// Looks at an entry on behalf of its future, and removes it if its wait is over.
    ///
    /// With `keep` its grant can still be undone, until [`end`](Queue::end); then it is told what to end it with.
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
            State::Refused(refusal) => Seen::Refused(refusal),
        }
    }

    /// A grant was seen, or given up.
    fn was_seen(&mut self, kind: Kind<C::Domain>, grant: &Grant<R::Charge>) {
        match self.round.wrapping_sub(grant.round) {
            _ if matches!(kind, Kind::Nobody) => {}
            0 => self.unseen[1] -= 1,
            1 => self.unseen[0] -= 1,
            _ => {}
        }
    }

    /// A grant was made outside of the line, and can be undone until [`end`](Queue::end).
    pub(crate) fn begin(&mut self) -> u64 {
        self.lows.begin()
    }

    /// Such a grant is final, or about to be undone. Returns the lowest level since it was made.
    pub(crate) fn end(&mut self, begun: u64) -> u64 {
        self.lows.end(begun)
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
            State::Refused(_) => {}
        }
    }

    /// When an entry is due, if nothing changes: zero time from now if it is granted.
    pub(crate) fn due_in(&self, from: &Source<'_, R>, key: u32, now: Nanos) -> Duration {
        match &self.entries[key as usize].state {
            State::Waiting(_) => {}
            State::Granted(_) => return Duration::ZERO,
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
        let Entry { place, ask, .. } = &self.entries[key as usize];
        self.seats.due(from.rule, (now, now), (*place, 0), &ahead, ask).saturating_since(now).as_duration()
    }
}
