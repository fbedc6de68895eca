//! Serving the queue when its head is due: by the alarm of a runtime, or by a blocked thread.

use crate::clock::Timer;
use crate::line::alarms::{AlarmCheck, Arming, LostAlarm, PutBack, SLACK};
use crate::line::deferred::Deferred;
use crate::line::rule::Rule;
use crate::line::{Entry, Line, State, WokenBy};
use crate::time::Nanos;

impl<R: Rule, C: Timer> Line<R, C> {
    /// Makes sure that an alarm or a blocked thread checks the queue when the head is due, at
    /// `due`. Returns an alarm that must be set without the lock, if there is one.
    pub(crate) fn watch(&mut self, due: Nanos, clock: &C, deferred: &mut Deferred) -> Option<Arming<C>> {
        loop {
            let first = match self.entries.get(self.head as usize)?.woken_by {
                WokenBy::Task { alarm, .. } => Some(alarm as usize),
                WokenBy::Thread { .. } | WokenBy::Lost { .. } | WokenBy::Nothing => None,
            };
            match self.alarms.check(first, due, clock) {
                AlarmCheck::Arming(arming) => return Some(arming),
                AlarmCheck::Lost(lost) => self.lose(lost, 1, deferred),
                AlarmCheck::Nothing => break,
            }
        }
        self.wake_thread(due, deferred);
        None
    }

    /// Puts back an alarm that was set, or that lost its runtime or timer (`gone`).
    pub(crate) fn put_back(&mut self, arming: Arming<C>, gone: bool, deferred: &mut Deferred) {
        match self.alarms.put_back(arming, gone) {
            PutBack::There => {}
            PutBack::Unused(sleep) => deferred.drops.push(sleep),
            PutBack::Lost(lost) => self.lose(lost, 0, deferred),
        }
    }

    /// Loses all alarms, because the clock panicked while one of them was chosen: no alarm may be
    /// set to when the head is due, at `due`.
    pub(crate) fn lose_alarms(&mut self, due: Nanos, deferred: &mut Deferred) {
        while let Some(lost) = self.alarms.lose_one() {
            self.lose(lost, 0, deferred);
        }
        self.wake_thread(due, deferred);
    }

    /// Wakes the tasks that relied on a lost alarm, so that each of them gets a new one. `early` is
    /// 1 if the alarm fired too early, and 0 if its runtime is gone or its timer panicked.
    fn lose(&mut self, lost: LostAlarm<C>, early: u8, deferred: &mut Deferred) {
        let LostAlarm { key, runtime, sleep } = lost;
        deferred.drops.extend(sleep.map(|sleep| sleep as _));
        for (_, entry) in self.entries.iter_mut() {
            if let State::Waiting(waker) = &mut entry.state
                && let WokenBy::Task { alarm, too_early } = entry.woken_by
                && alarm as usize == key
            {
                entry.woken_by = WokenBy::Lost { runtime, too_early: too_early.saturating_add(early) };
                deferred.wake.extend(waker.take());
            }
        }
    }

    /// Sets the time at which the first blocked thread in the queue checks the queue. It checks
    /// when the head is due if the thread is the head itself, or if no alarms exist. Otherwise it
    /// checks slightly later, in case the alarms are held up.
    ///
    /// The waker of a blocked thread is this crate's own and unparks the thread, so it may be
    /// cloned under the lock. A thread that has just joined unparks itself, and checks once more.
    fn wake_thread(&mut self, due: Nanos, deferred: &mut Deferred) {
        let Some((_, &first)) = self.threads.first_key_value() else { return };
        let own = first == self.head || self.alarms.is_empty();
        let at = if own { due } else { due.saturating_add(SLACK) };
        if let Some(Entry {
            woken_by: WokenBy::Thread { checks_at }, state: State::Waiting(Some(waker)), ..
        }) = self.entries.get_mut(first as usize)
            && *checks_at > at
        {
            *checks_at = at;
            deferred.wake.push(waker.clone());
        }
    }

    /// Returns the time until which the blocked thread of an entry must park.
    pub(crate) fn checks_at(&self, key: u32) -> Nanos {
        match &self.entries[key as usize] {
            Entry { state: State::Waiting(_), woken_by: WokenBy::Thread { checks_at }, .. } => *checks_at,
            // The entry relies on an alarm.
            Entry { state: State::Waiting(_), .. } => Nanos::MAX,
            // The entry has its result, so the thread must not park. It cannot rely on its unpark
            // token: user code that this thread ran may have parked and used the token up.
            _ => Nanos::ZERO,
        }
    }

    /// Changes what wakes a waiter.
    pub(crate) fn set_woken_by(
        &mut self,
        key: u32,
        woken_by: WokenBy<C::RuntimeId>,
        deferred: &mut Deferred,
    ) {
        let entry = &mut self.entries[key as usize];
        let old = std::mem::replace(&mut entry.woken_by, woken_by);
        match woken_by {
            WokenBy::Thread { .. } => self.threads.insert(entry.position, key),
            WokenBy::Task { .. } | WokenBy::Lost { .. } | WokenBy::Nothing => {
                self.threads.remove(&entry.position)
            }
        };
        self.unattended += usize::from(matches!(woken_by, WokenBy::Nothing));
        self.unattended -= usize::from(matches!(old, WokenBy::Nothing));
        self.leave_alarm(old, deferred);
    }

    pub(crate) fn leave_alarm(&mut self, woken_by: WokenBy<C::RuntimeId>, deferred: &mut Deferred) {
        if let WokenBy::Task { alarm, .. } = woken_by {
            let sleep = self.alarms.leave(alarm as usize);
            deferred.drops.extend(sleep.map(|sleep| sleep as _));
        }
    }
}
