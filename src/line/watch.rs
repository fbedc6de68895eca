//! Who looks at the line when its head is due: the alarm of an event loop, or a blocked thread.

use crate::clock::Timer;
use crate::line::alarms::{Found, Job, Lost, PutBack, SLACK};
use crate::line::deferred::Deferred;
use crate::line::priorities::NONE;
use crate::line::rule::Rule;
use crate::line::{Entry, Kind, Line, State};
use crate::time::Nanos;

impl<R: Rule<C>, C: Timer> Line<R, C> {
    /// Sees that somebody will look when the head is due at `due`: sets an alarm, or tells a
    /// thread. Returns an alarm to be set without the lock.
    pub(crate) fn watch(&mut self, due: Nanos, clock: &C, deferred: &mut Deferred<C>) -> Option<Job<C>> {
        loop {
            let first = match self.entries.get(self.head as usize)?.kind {
                Kind::Task { alarm, .. } => Some(alarm as usize),
                Kind::Thread { .. } | Kind::Lost { .. } | Kind::Nobody => None,
            };
            match self.alarms.check(first, due, clock) {
                Found::Job(job) => return Some(job),
                Found::Lost(lost) => self.lose(lost, deferred),
                Found::Nothing => break,
            }
        }
        self.tell_thread(due, deferred);
        None
    }

    /// Puts back an alarm that was set, or whose event loop or timer is `gone`.
    pub(crate) fn put_back(&mut self, job: Job<C>, gone: bool, deferred: &mut Deferred<C>) {
        match self.alarms.put_back(job, gone) {
            PutBack::There => {}
            PutBack::Unused(sleep) => deferred.sleeps.push(sleep),
            PutBack::Lost(lost) => self.lose(lost, deferred),
        }
    }

    /// Wakes those who relied on an alarm that is lost.
    fn lose(&mut self, lost: Lost<C>, deferred: &mut Deferred<C>) {
        let Lost { key, domain, sleep } = lost;
        deferred.sleeps.extend(sleep);
        for entry in self.entries.iter_mut() {
            if let State::Waiting(waker) = &mut entry.state
                && let Kind::Task { alarm, lost } = entry.kind
                && alarm as usize == key
            {
                entry.kind = Kind::Lost { domain, times: lost.saturating_add(1) };
                deferred.wake.extend(waker.take());
            }
        }
    }

    /// The first blocked thread in line looks at the time itself: when the head is due if it is the
    /// head, or if there are no alarms, and else a little later, in case they are held up.
    fn tell_thread(&mut self, due: Nanos, deferred: &mut Deferred<C>) {
        let first = self.levels.first_thread();
        let own = first == self.head || self.alarms.is_empty();
        let at = if own { due } else { due.saturating_add(SLACK) };
        if let Some(Entry { kind: Kind::Thread { looks_at }, state: State::Waiting(Some(waker)), .. }) =
            self.entries.get_mut(first as usize)
            && *looks_at > at
        {
            *looks_at = at;
            deferred.wake.push(waker.clone());
        }
    }

    /// Until when the blocked thread of an entry is to be parked.
    pub(crate) fn looks_at(&self, key: u32) -> Nanos {
        match &self.entries[key as usize] {
            Entry { state: State::Waiting(_), kind: Kind::Thread { looks_at }, .. } => *looks_at,
            // It relies on an alarm.
            Entry { state: State::Waiting(_), .. } => Nanos::MAX,
            // It has its answer. Its wake-up may have been used up by a waker that parked this
            // thread.
            _ => Nanos::ZERO,
        }
    }

    /// Changes who waits.
    pub(crate) fn set_kind(&mut self, key: u32, kind: Kind<C::RuntimeId>, deferred: &mut Deferred<C>) {
        let old = std::mem::replace(&mut self.entries[key as usize].kind, kind);
        self.leave_alarm(old, deferred);
    }

    /// The first blocked thread of a level from an entry on. Each entry is passed once, since all
    /// threads of the level stand behind its first.
    pub(super) fn thread_from(&self, mut key: u32, priority: i8) -> u32 {
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

    pub(crate) fn leave_alarm(&mut self, kind: Kind<C::RuntimeId>, deferred: &mut Deferred<C>) {
        if let Kind::Task { alarm, .. } = kind {
            deferred.sleeps.extend(self.alarms.leave(alarm as usize));
        }
    }
}
