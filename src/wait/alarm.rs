//! Alarms: who looks at the queue when the next permit is due.
//!
//! The queue has one alarm per event loop in which tasks wait: a [`Sleep`] set to the time at which the
//! head of the queue is due, with a waker that serves the queue itself. So nobody depends on a waiter being polled, and
//! a time that moves is one alarm to set, not one timer per waiter.
//!
//! Setting an alarm may call its waker on the spot, and the waker takes the queue's lock. So an alarm is taken out of
//! the queue, set without the lock, and put back. Whoever finds it taken leaves it: the one who has it looks at the
//! queue again when putting it back.
//!
//! # States of an alarm
//!
//! | `sleep` | `armed` | meaning | who changes it |
//! |---|---|---|---|
//! | there | none | set to nothing: new, or it rang | the next one to look at the queue takes it |
//! | there | a time | rings at that time | taken when the head is due earlier; or it rings |
//! | taken | | somebody sets it right now | that one puts it back |
//!
//! An alarm is lost if it rings far too early: its event loop is shutting down, which fires all timers, or does not keep the clock's
//! time. Or if its event loop turns out to be gone when it is set, or its timer panics. Those who relied on it are woken, and the ones that still live
//! make a new one.

use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Wake, Waker};

use slab::Slab;

use crate::clock::{Sleep, Timer};
use crate::gate::Gate;
use crate::nanos::Nanos;
use crate::rule::Rule;
use crate::sync::{AtomicBool, Ordering};

/// How much later than the head is due the alarms of other event loops ring, and blocked threads look, in case the head's own
/// alarm is held up. Together with a late timer less than the catch-up, so that nothing is lost by it.
pub(crate) const SLACK: Nanos = Nanos::new(5_000_000);

/// How early an alarm may ring: two clocks that differ a little, or one that ticks in milliseconds.
const EARLY: Nanos = Nanos::new(2_000_000);

/// The waker of an alarm.
struct Bell<R: Rule<C>, C: Timer> {
    /// Weak, so that a sleeping alarm does not keep a dropped limiter.
    gate: Weak<Gate<R, C>>,
    rung: Arc<AtomicBool>,
}

impl<R: Rule<C>, C: Timer> Wake for Bell<R, C> {
    fn wake(self: Arc<Self>) {
        // Before the lock: whoever holds the queue, or the alarm, sees it when they look again.
        self.rung.store(true, Ordering::Release);
        if let Some(gate) = self.gate.upgrade() {
            gate.ring();
        }
    }
}

#[derive(Debug)]
struct Alarm<C: Timer> {
    domain: C::Domain,
    /// How many tasks of this event loop wait.
    users: usize,
    /// `None` while somebody has taken it to set it.
    sleep: Option<Pin<Box<C::Sleep>>>,
    waker: Waker,
    rung: Arc<AtomicBool>,
    /// When it was set, and to when.
    armed: Option<(Nanos, Nanos)>,
}

/// All alarms of a queue.
pub(crate) struct Alarms<C: Timer> {
    list: Slab<Alarm<C>>,
}

/// An alarm taken out to be set.
pub(crate) struct Job<C: Timer> {
    key: usize,
    sleep: Pin<Box<C::Sleep>>,
    waker: Waker,
    rung: Arc<AtomicBool>,
    since: Nanos,
    at: Nanos,
    /// Whether the waker has to be left with the timer anew.
    register: bool,
}

/// What [`Alarms::check`] found.
pub(crate) enum Found<C: Timer> {
    /// All alarms are set.
    Nothing,
    /// This one has to be set.
    Job(Job<C>),
    /// An alarm was removed.
    Lost(Lost<C>),
}

/// An alarm that was removed, and its users have none.
pub(crate) struct Lost<C: Timer> {
    pub(crate) key: usize,
    pub(crate) domain: C::Domain,
    /// To be dropped without the lock.
    pub(crate) sleep: Option<Pin<Box<C::Sleep>>>,
}

/// What [`Alarms::put_back`] did.
pub(crate) enum PutBack<C: Timer> {
    /// The alarm is set.
    There,
    /// Its last user left meanwhile. The sleep is to be dropped without the lock.
    Unused(Pin<Box<C::Sleep>>),
    /// Its event loop is gone, or its timer panicked: the alarm was removed.
    Lost(Lost<C>),
}

impl<C: Timer> Alarms<C> {
    pub(crate) fn new() -> Self {
        Alarms { list: Slab::new() }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// Adds a user from `domain`, the calling task's event loop, and returns the key of its alarm.
    pub(crate) fn join<R: Rule<C>>(
        &mut self,
        gate: &Arc<Gate<R, C>>,
        domain: C::Domain,
        now: Nanos,
    ) -> usize {
        let found = self.list.iter().find(|(_, alarm)| alarm.domain == domain).map(|(key, _)| key);
        let key = found.unwrap_or_else(|| {
            let sleep = Some(Box::pin(gate.clock.sleep_until(now)));
            let rung = Arc::new(AtomicBool::new(false));
            let waker = Waker::from(Arc::new(Bell { gate: Arc::downgrade(gate), rung: rung.clone() }));
            self.list.insert(Alarm { domain, users: 0, sleep, waker, rung, armed: None })
        });
        self.list[key].users += 1;
        key
    }

    /// The event loop of an alarm.
    pub(crate) fn domain(&self, key: usize) -> C::Domain {
        self.list[key].domain
    }

    /// Removes a user. Returns the sleep that nobody uses any more, to be dropped without the lock.
    #[must_use]
    pub(crate) fn leave(&mut self, key: usize) -> Option<Pin<Box<C::Sleep>>> {
        self.list[key].users -= 1;
        if self.list[key].users > 0 {
            return None;
        }
        // If it is taken, whoever has it will not find its place and drop it.
        self.list.remove(key).sleep
    }

    /// Looks for an alarm that has to be set, if the head of the queue is due at `due` and has the alarm `first`.
    pub(crate) fn check(&mut self, first: Option<usize>, due: Nanos, clock: &C) -> Found<C> {
        // With no preference, the first alarm is as good as any.
        let first = first.or_else(|| self.list.iter().next().map(|(key, _)| key));
        for (key, alarm) in &mut self.list {
            if alarm.sleep.is_none() {
                // Whoever has it looks again. A ring stays for them: it may be that of the new setting already.
                continue;
            }
            if alarm.rung.load(Ordering::Acquire) {
                // A new reading of the clock: an older one may be from before the time that made it ring. Before
                // anything is changed, since a clock may panic.
                let now = clock.now();
                alarm.rung.store(false, Ordering::Relaxed);
                match alarm.armed.take() {
                    Some((since, at)) if far_too_early(since, at, now) => {
                        return Found::Lost(self.lose(key));
                    }
                    Some(_) | None => {}
                }
            }
            let at = if first == Some(key) { due } else { due.saturating_add(SLACK) };
            let set = alarm.armed.is_some_and(|(_, armed)| armed <= at);
            if set || at == Nanos::MAX {
                continue;
            }
            let since = clock.now();
            if let Some(sleep) = alarm.sleep.take() {
                let register = alarm.armed.is_none();
                let (waker, rung) = (alarm.waker.clone(), alarm.rung.clone());
                return Found::Job(Job { key, sleep, waker, rung, since, at, register });
            }
        }
        Found::Nothing
    }

    fn lose(&mut self, key: usize) -> Lost<C> {
        let Alarm { domain, sleep, .. } = self.list.remove(key);
        Lost { key, domain, sleep }
    }

    /// Puts back an alarm that was set, or whose event loop or timer is `gone`.
    pub(crate) fn put_back(&mut self, job: Job<C>, gone: bool) -> PutBack<C> {
        match self.list.get_mut(job.key) {
            // The key may be another alarm's by now.
            Some(alarm) if Arc::ptr_eq(&alarm.rung, &job.rung) => {
                alarm.sleep = Some(job.sleep);
                alarm.armed = Some((job.since, job.at));
                if gone { PutBack::Lost(self.lose(job.key)) } else { PutBack::There }
            }
            _ => PutBack::Unused(job.sleep),
        }
    }
}

impl<C: Timer> Job<C> {
    /// Sets the alarm. Returns whether its event loop is gone. Not under the queue's lock: this may call the bell.
    pub(crate) fn run(&mut self) -> bool {
        self.sleep.as_mut().reset(self.at);
        if self.register && self.sleep.as_mut().poll(&mut Context::from_waker(&self.waker)).is_ready() {
            self.rung.store(true, Ordering::Release);
        }
        self.sleep.is_gone()
    }
}

/// A steady clock and a steady timer drift apart by far less than an eighth.
fn far_too_early(since: Nanos, at: Nanos, now: Nanos) -> bool {
    let missing = at.saturating_since(now);
    // A clock that went back is late itself, which is no fault of the timer's.
    now > since && missing.as_u64() > EARLY.as_u64() + at.saturating_since(since).as_u64() / 8
}
