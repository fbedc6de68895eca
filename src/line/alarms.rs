//! Alarms: timers that serve the queue when the next permit is due.
//!
//! The queue has one alarm for each runtime in which tasks wait: a [`Sleep`] set to the time at
//! which the head of the queue is due, with a waker that serves the queue itself. So no waiter
//! depends on another waiter being polled. If the due time moves, one alarm is set anew instead of
//! one timer for each waiter.
//!
//! Setting an alarm may call its waker immediately, and the waker takes the lock of the queue. So
//! an alarm is taken out of the queue, set without the lock, and put back. A lock holder that finds
//! an alarm taken does not touch it: the thread that took it checks the queue again when it puts
//! the alarm back.
//!
//! # States of an alarm
//!
//! | `sleep` | `armed` | meaning | changed by |
//! |---|---|---|---|
//! | there | none | not set: the alarm is new, or it fired | the next lock holder, which takes it to set it |
//! | there | a time | fires at that time | a lock holder that takes it to set it to another time; its firing |
//! | taken | | a thread is setting it | that thread, which puts it back |
//!
//! # Which alarm is set to which time
//!
//! | alarm | set to |
//! |---|---|
//! | the alarm of the head's runtime | when the head is due |
//! | the reserve: of the other alarms, that of the runtime whose timer fired last | [`SLACK`] later |
//! | the second reserve: of the other alarms, that of the runtime whose task joined the queue last | [`SECOND_MARGIN`] later |
//! | all other alarms | [`REST`] later, or up to [`REST_LATE`] after that |
//!
//! The reserves serve the queue if the head's runtime stalls. While that runtime runs, they never
//! fire: a reserve is moved later as soon as half of its margin is used up. An alarm is moved later
//! at most once in [`EARLY`], because a due time may move with the clock.
//!
//! If one runtime stalls, each waiter of that runtime is served late by [`SLACK`] when it is the
//! head. If the first reserve's runtime stalls too, the second reserve serves the queue,
//! [`SECOND_MARGIN`] late. That happens once: the second reserve has fired last, so it is the first
//! reserve from then on.
//!
//! An alarm is lost in four cases. It fires far too early, because its runtime is shutting down and
//! fires all timers, or does not keep the clock's time. Its runtime is gone when the alarm is set.
//! Its timer panics. The clock panics while an alarm is chosen: then all alarms are lost. The tasks
//! that relied on the alarm are woken, and each task that still runs creates a new alarm or joins
//! that of its runtime.

use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Wake, Waker};

use crate::clock::{Sleep, Timer};
use crate::line::entries::Entries;
use crate::line::recheck::Recheck;
use crate::sync::{AtomicBool, Ordering};
use crate::time::Nanos;

/// The margin of the reserve, and of blocked threads that check the queue instead of it. With the
/// usual lateness of a timer the margin is less than the catch-up, so a stalled runtime loses no
/// permits.
pub(crate) const SLACK: Nanos = Nanos::new(5_000_000);

/// The margin of the second reserve.
const SECOND_MARGIN: Nanos = Nanos::new(20_000_000);

/// The margin of all other alarms. It is long because there may be hundreds of them, and each must
/// be moved later when half of the margin is used up.
const REST: Nanos = Nanos::new(1_000_000_000);

/// How much later than that these alarms may be: if the due time moves up by less, they are not all
/// set anew.
const REST_LATE: Nanos = Nanos::new(500_000_000);

/// How early an alarm may fire, because two clocks differ a little, or one ticks in milliseconds.
const EARLY: Nanos = Nanos::new(2_000_000);

/// The waker of an alarm.
struct AlarmWaker {
    /// Weak, so that a sleeping alarm does not keep a dropped limiter alive.
    owner: Weak<dyn Recheck>,
    fired: Arc<AtomicBool>,
}

impl Wake for AlarmWaker {
    fn wake(self: Arc<Self>) {
        // The flag is set before the lock is taken. So a thread that holds the lock, or has taken
        // the alarm, finds that the alarm fired when it checks again. Release: pairs with the
        // Acquire load in `check`.
        self.fired.store(true, Ordering::Release);
        if let Some(owner) = self.owner.upgrade() {
            owner.recheck();
        }
    }
}

#[derive(Debug)]
struct Alarm<C: Timer> {
    runtime: C::RuntimeId,
    /// The number of waiting tasks of this runtime.
    users: usize,
    /// `None` while a thread has taken the sleep to set it.
    sleep: Option<Pin<Box<C::Sleep>>>,
    waker: Waker,
    fired: Arc<AtomicBool>,
    armed: Option<Armed>,
    /// The number of the latest user.
    joined: u64,
}

/// What an alarm is set to.
#[derive(Clone, Copy, Debug)]
struct Armed {
    /// When the alarm was set.
    since: Nanos,
    at: Nanos,
    /// `at`, or an earlier time if the alarm was moved later: it may have fired at that moment.
    earliest: Nanos,
}

/// All alarms of a queue.
pub(crate) struct Alarms<C: Timer> {
    list: Entries<Alarm<C>>,
    /// The number of users that have joined so far.
    joins: u64,
    /// The two runtimes whose timers fired last. Their alarms may have been removed, and created
    /// again.
    fired_last: [Option<C::RuntimeId>; 2],
}

/// An alarm taken out of the queue to be set.
pub(crate) struct Arming<C: Timer> {
    key: usize,
    sleep: Pin<Box<C::Sleep>>,
    waker: Waker,
    fired: Arc<AtomicBool>,
    armed: Armed,
    /// Whether the waker must be registered with the timer again.
    register: bool,
}

/// What [`Alarms::check`] found.
pub(crate) enum AlarmCheck<C: Timer> {
    /// All alarms are set.
    Nothing,
    /// This alarm must be set.
    Arming(Arming<C>),
    /// An alarm was removed.
    Lost(LostAlarm<C>),
}

/// A removed alarm. Its users have no alarm.
pub(crate) struct LostAlarm<C: Timer> {
    pub(crate) key: usize,
    pub(crate) runtime: C::RuntimeId,
    /// Must be dropped without the lock.
    pub(crate) sleep: Option<Pin<Box<C::Sleep>>>,
}

/// What [`Alarms::put_back`] did.
pub(crate) enum PutBack<C: Timer> {
    /// The alarm is set.
    There,
    /// Its last user left meanwhile. The sleep must be dropped without the lock.
    Unused(Pin<Box<C::Sleep>>),
    /// Its runtime is gone, or its timer panicked: the alarm was removed.
    Lost(LostAlarm<C>),
}

impl<C: Timer> Alarms<C> {
    pub(crate) fn new() -> Self {
        Alarms { list: Entries::new(), joins: 0, fired_last: [None; 2] }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// Adds a user from `runtime`, the calling task's runtime, and returns the key of its alarm. A
    /// new alarm notifies the `owner` of the queue when it fires.
    pub(crate) fn join(
        &mut self,
        clock: &C,
        runtime: C::RuntimeId,
        now: Nanos,
        owner: impl FnOnce() -> Weak<dyn Recheck>,
    ) -> usize {
        let found = self.list.iter().find(|(_, alarm)| alarm.runtime == runtime).map(|(key, _)| key);
        let key = found.unwrap_or_else(|| {
            let sleep = Some(Box::pin(clock.sleep_until(now)));
            let fired = Arc::new(AtomicBool::new(false));
            let waker = Waker::from(Arc::new(AlarmWaker { owner: owner(), fired: fired.clone() }));
            self.list.insert(Alarm { runtime, users: 0, sleep, waker, fired, armed: None, joined: 0 })
        });
        self.joins += 1;
        let alarm = &mut self.list[key];
        (alarm.users, alarm.joined) = (alarm.users + 1, self.joins);
        key
    }

    /// Returns the runtime of an alarm.
    pub(crate) fn runtime(&self, key: usize) -> C::RuntimeId {
        self.list[key].runtime
    }

    /// Removes a user. Returns the sleep if that was the last user. The sleep must be dropped
    /// without the lock.
    #[must_use]
    pub(crate) fn leave(&mut self, key: usize) -> Option<Pin<Box<C::Sleep>>> {
        self.list[key].users -= 1;
        if self.list[key].users > 0 {
            return None;
        }
        // If a thread has taken the sleep, it does not find the alarm when it puts the sleep back,
        // and drops the sleep.
        self.list.remove(key).sleep
    }

    /// Finds an alarm that must be set, if the head of the queue is due at `due` and has the alarm
    /// `first`.
    pub(crate) fn check(&mut self, first: Option<usize>, due: Nanos, clock: &C) -> AlarmCheck<C> {
        // If the head has no alarm, the first alarm takes its part.
        let first = first.or_else(|| self.list.iter().next().map(|(key, _)| key));
        let (reserve, second) = self.reserves(first);
        let mut lost = None;
        for (key, alarm) in self.list.iter_mut() {
            if alarm.sleep.is_none() {
                // The thread that has taken the alarm checks again. The flag is left for that
                // thread, because it may belong to the new setting already.
                continue;
            }
            // Acquire: the code below, including its clock reading, comes after the firing.
            if alarm.fired.load(Ordering::Acquire) {
                // The clock is read again, because an older reading may be before the firing. It is
                // read before any change, because a clock may panic.
                let now = clock.now();
                // Relaxed: a waker that fired before this store takes the lock after this section.
                // Its flag is not needed: `armed` is empty now, so the alarm is set anew, here or
                // by a later check.
                alarm.fired.store(false, Ordering::Relaxed);
                if alarm.armed.take().is_some_and(|armed| armed.is_far_too_early(now)) {
                    lost = Some(key);
                    break;
                }
                if self.fired_last[0] != Some(alarm.runtime) {
                    self.fired_last = [Some(alarm.runtime), self.fired_last[0]];
                }
            }
            let (margin, late) = match Some(key) {
                key if key == first => (Nanos::ZERO, Nanos::ZERO),
                key if key == reserve => (SLACK, Nanos::ZERO),
                key if key == second => (SECOND_MARGIN, Nanos::ZERO),
                _ => (REST, REST_LATE),
            };
            let (at, half) =
                (due.saturating_add(margin), due.saturating_add(Nanos::new(margin.as_u64() / 2)));
            let earliest = match alarm.armed {
                _ if at == Nanos::MAX => continue,
                None => at,
                // The old setting fires later than the new time, so it is not too early.
                Some(armed) if armed.at > at.saturating_add(late) => at,
                // An alarm that may fire at this moment is not moved: its firing would be taken for
                // one of the new setting. An alarm that was set just now is not moved either: if a
                // due time moves with the clock, the alarm would be moved without end.
                Some(armed) if armed.at < half && armed.may_move(clock.now()) => armed.at,
                Some(_) => continue,
            };
            let armed = Armed { since: clock.now(), at, earliest };
            if let Some(sleep) = alarm.sleep.take() {
                let register = alarm.armed.is_none();
                let (waker, fired) = (alarm.waker.clone(), alarm.fired.clone());
                return AlarmCheck::Arming(Arming { key, sleep, waker, fired, armed, register });
            }
        }
        lost.map_or(AlarmCheck::Nothing, |key| AlarmCheck::Lost(self.lose(key)))
    }

    /// Returns the alarms, other than the `first`, that fire if the first one is held up.
    fn reserves(&self, first: Option<usize>) -> (Option<usize>, Option<usize>) {
        if self.list.iter().nth(1).is_none() {
            return (None, None);
        }
        let others = || self.list.iter().filter(|(key, _)| Some(*key) != first);
        let latest = |not: Option<usize>| {
            let rest = others().filter(|(key, _)| Some(*key) != not);
            rest.max_by_key(|(_, alarm)| alarm.joined).map(|(key, _)| key)
        };
        let fired =
            self.fired_last.iter().flatten().find_map(|runtime| {
                others().find(|(_, alarm)| alarm.runtime == *runtime).map(|(key, _)| key)
            });
        let reserve = fired.or_else(|| latest(None));
        (reserve, latest(reserve))
    }

    /// Removes an alarm. The alarms that threads have taken stay: these threads check the queue.
    pub(crate) fn lose_one(&mut self) -> Option<LostAlarm<C>> {
        let key = self.list.iter().find(|(_, alarm)| alarm.sleep.is_some()).map(|(key, _)| key)?;
        Some(self.lose(key))
    }

    fn lose(&mut self, key: usize) -> LostAlarm<C> {
        let Alarm { runtime, sleep, .. } = self.list.remove(key);
        LostAlarm { key, runtime, sleep }
    }

    /// Puts back an alarm that was set, or that lost its runtime or timer (`gone`).
    pub(crate) fn put_back(&mut self, arming: Arming<C>, gone: bool) -> PutBack<C> {
        match self.list.get_mut(arming.key) {
            // The key may belong to another alarm by now.
            Some(alarm) if Arc::ptr_eq(&alarm.fired, &arming.fired) => {
                alarm.sleep = Some(arming.sleep);
                alarm.armed = Some(arming.armed);
                if gone { PutBack::Lost(self.lose(arming.key)) } else { PutBack::There }
            }
            _ => PutBack::Unused(arming.sleep),
        }
    }
}

impl<C: Timer> Arming<C> {
    /// Sets the alarm. Returns whether its runtime is gone. Called without the lock of the queue,
    /// because this may call the alarm's waker.
    pub(crate) fn run(&mut self) -> bool {
        self.sleep.as_mut().reset(self.armed.at);
        if self.register && self.sleep.as_mut().poll(&mut Context::from_waker(&self.waker)).is_ready() {
            // The flag is set as the waker of the alarm sets it, so the lock holder that checks
            // next finds that the alarm fired.
            self.fired.store(true, Ordering::Release);
        }
        self.sleep.is_gone()
    }
}

impl Armed {
    /// Returns whether the alarm may be moved later.
    fn may_move(self, now: Nanos) -> bool {
        self.at > now.saturating_add(EARLY) && now > self.since.saturating_add(EARLY)
    }

    /// Returns whether the alarm fired far too early. A steady clock and a steady timer drift apart
    /// by far less than an eighth.
    fn is_far_too_early(self, now: Nanos) -> bool {
        let missing = self.earliest.saturating_since(now);
        // After the clock went back, the alarm only seems early.
        now > self.since
            && missing.as_u64() > EARLY.as_u64() + self.at.saturating_since(self.since).as_u64() / 8
    }
}
