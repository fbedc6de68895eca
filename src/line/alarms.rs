//! Alarms: timers that serve the line when the next permit is due.
//!
//! The line has one alarm per event loop in which tasks wait: a [`Sleep`] set to the time at which
//! the head of the line is due, with a waker that serves the line itself. So no waiter depends on
//! another waiter being polled, and a time that moves is one alarm to set, not one timer per
//! waiter.
//!
//! Setting an alarm may call its waker on the spot, and the waker takes the line's lock. So an
//! alarm is taken out of the line, set without the lock, and put back. A lock holder that finds an
//! alarm taken leaves it alone: the thread that took it looks at the line again when it puts the
//! alarm back.
//!
//! # States of an alarm
//!
//! | `sleep` | `armed` | meaning | changed by |
//! |---|---|---|---|
//! | there | none | not set: new, or it rang | the next lock holder, which takes it to set it |
//! | there | a time | rings at that time | a lock holder that takes it to set it to another time; its ring |
//! | taken | | a thread sets it right now | that thread, which puts it back |
//!
//! # Which alarm is set to when
//!
//! | alarm | set to |
//! |---|---|
//! | the alarm of the head's event loop | when the head is due |
//! | the reserve: of the other alarms, that of the event loop with the timer that rang last | [`SLACK`] later |
//! | the second reserve: of the other alarms, that of the event loop with the task that joined the line last | [`SECOND`] later |
//! | all other alarms | [`REST`] later |
//!
//! The reserves serve the line if the head's event loop stalls. While it runs they never ring: a
//! reserve is moved later as soon as half of its margin is used up. An alarm is moved later at most
//! once in [`EARLY`]: a time may move with the clock.
//!
//! If one event loop stalls, each waiter of that event loop is served late by [`SLACK`] when it is
//! the head. If the first reserve's event loop stalls too, the second reserve serves the line,
//! [`SECOND`] late. That happens once: the second reserve has rung last, so it is the first reserve
//! from then on.
//!
//! An alarm is lost in three cases: it rings far too early, since its event loop is shutting down
//! and fires all timers, or does not keep the clock's time; its event loop is gone when it is set;
//! its timer panics. The tasks that relied on it are woken, and each task that still runs makes a
//! new alarm or joins that of its event loop.

use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Wake, Waker};

use crate::clock::{Sleep, Timer};
use crate::line::entries::Entries;
use crate::line::recheck::Recheck;
use crate::sync::{AtomicBool, Ordering};
use crate::time::Nanos;

/// The margin of the reserve, and of blocked threads that look at the line in its place. With the
/// usual lateness of a timer it is less than the catch-up, so a stalled event loop loses no
/// permits.
pub(crate) const SLACK: Nanos = Nanos::new(5_000_000);

/// The margin of the second reserve.
const SECOND: Nanos = Nanos::new(20_000_000);

/// The margin of all other alarms. It is long since there may be hundreds, and each has to be moved
/// later when half of the margin is used up.
const REST: Nanos = Nanos::new(1_000_000_000);

/// How early an alarm may ring, since two clocks differ a little, or one ticks in milliseconds.
const EARLY: Nanos = Nanos::new(2_000_000);

/// The waker of an alarm.
struct AlarmWaker {
    /// Weak, so that a sleeping alarm does not keep a dropped limiter.
    owner: Weak<dyn Recheck>,
    rung: Arc<AtomicBool>,
}

impl Wake for AlarmWaker {
    fn wake(self: Arc<Self>) {
        // The flag is set before the lock is taken, so that a thread that holds the lock, or has
        // taken the alarm, finds the ring when it looks again. Release: pairs with the Acquire load
        // in `check`.
        self.rung.store(true, Ordering::Release);
        if let Some(owner) = self.owner.upgrade() {
            owner.recheck();
        }
    }
}

#[derive(Debug)]
struct Alarm<C: Timer> {
    runtime: C::RuntimeId,
    /// How many tasks of this event loop wait.
    users: usize,
    /// `None` while a thread has taken it to set it.
    sleep: Option<Pin<Box<C::Sleep>>>,
    waker: Waker,
    rung: Arc<AtomicBool>,
    armed: Option<Armed>,
    /// The number of its latest user.
    joined: u64,
}

/// What an alarm is set to.
#[derive(Clone, Copy, Debug)]
struct Armed {
    /// When it was set.
    since: Nanos,
    at: Nanos,
    /// `at`, or earlier if it was moved later: it may have rung in that moment.
    earliest: Nanos,
}

/// All alarms of a line.
pub(crate) struct Alarms<C: Timer> {
    list: Entries<Alarm<C>>,
    /// How many users have joined so far.
    joins: u64,
    /// The two event loops with the timers that rang last. Their alarms may be removed, and made
    /// again.
    rang_last: [Option<C::RuntimeId>; 2],
}

/// An alarm taken out to be set.
pub(crate) struct Arming<C: Timer> {
    key: usize,
    sleep: Pin<Box<C::Sleep>>,
    waker: Waker,
    rung: Arc<AtomicBool>,
    armed: Armed,
    /// Whether the waker has to be left with the timer anew.
    register: bool,
}

/// What [`Alarms::check`] found.
pub(crate) enum AlarmCheck<C: Timer> {
    /// All alarms are set.
    Nothing,
    /// This one has to be set.
    Arming(Arming<C>),
    /// An alarm was removed.
    Lost(LostAlarm<C>),
}

/// An alarm that was removed, and its users have none.
pub(crate) struct LostAlarm<C: Timer> {
    pub(crate) key: usize,
    pub(crate) runtime: C::RuntimeId,
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
    Lost(LostAlarm<C>),
}

impl<C: Timer> Alarms<C> {
    pub(crate) fn new() -> Self {
        Alarms { list: Entries::new(), joins: 0, rang_last: [None; 2] }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// Adds a user from `runtime`, the calling task's event loop, and returns the key of its alarm.
    /// A new alarm rings the `owner` of the line.
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
            let rung = Arc::new(AtomicBool::new(false));
            let waker = Waker::from(Arc::new(AlarmWaker { owner: owner(), rung: rung.clone() }));
            self.list.insert(Alarm { runtime, users: 0, sleep, waker, rung, armed: None, joined: 0 })
        });
        self.joins += 1;
        let alarm = &mut self.list[key];
        (alarm.users, alarm.joined) = (alarm.users + 1, self.joins);
        key
    }

    /// The event loop of an alarm.
    pub(crate) fn runtime(&self, key: usize) -> C::RuntimeId {
        self.list[key].runtime
    }

    /// Removes a user. Returns the sleep if that was the last user, to be dropped without the lock.
    #[must_use]
    pub(crate) fn leave(&mut self, key: usize) -> Option<Pin<Box<C::Sleep>>> {
        self.list[key].users -= 1;
        if self.list[key].users > 0 {
            return None;
        }
        // If the sleep is taken, its holder does not find the alarm when it puts the sleep back,
        // and drops it.
        self.list.remove(key).sleep
    }

    /// Looks for an alarm that has to be set, if the head of the line is due at `due` and has the
    /// alarm `first`.
    pub(crate) fn check(&mut self, first: Option<usize>, due: Nanos, clock: &C) -> AlarmCheck<C> {
        // With no preference, the first alarm is as good as any.
        let first = first.or_else(|| self.list.iter().next().map(|(key, _)| key));
        let (reserve, second) = self.reserves(first);
        let mut lost = None;
        for (key, alarm) in self.list.iter_mut() {
            if alarm.sleep.is_none() {
                // The thread that has taken the alarm looks again. The ring is left for that
                // thread, since it may belong to the new setting already.
                continue;
            }
            // Acquire: the code below, its clock reading included, comes after the ring.
            if alarm.rung.load(Ordering::Acquire) {
                // The clock is read anew, since an older reading may lie before the ring. It is
                // read before any change, since a clock may panic.
                let now = clock.now();
                // Relaxed: a waker that rang before this store takes the lock after this
                // section. Its ring is not needed: the alarm is set anew, here or by a later look,
                // since `armed` is empty now.
                alarm.rung.store(false, Ordering::Relaxed);
                if alarm.armed.take().is_some_and(|armed| armed.is_far_too_early(now)) {
                    lost = Some(key);
                    break;
                }
                if self.rang_last[0] != Some(alarm.runtime) {
                    self.rang_last = [Some(alarm.runtime), self.rang_last[0]];
                }
            }
            let margin = match Some(key) {
                key if key == first => Nanos::ZERO,
                key if key == reserve => SLACK,
                key if key == second => SECOND,
                _ => REST,
            };
            let (at, half) =
                (due.saturating_add(margin), due.saturating_add(Nanos::new(margin.as_u64() / 2)));
            let earliest = match alarm.armed {
                _ if at == Nanos::MAX => continue,
                None => at,
                // A ring of the old setting comes later than the new time, so it is not too early.
                Some(armed) if armed.at > at => at,
                // An alarm that may ring at this moment is not moved: its ring would be taken for
                // one of the new setting. Neither is one that was set just now: where a time moves
                // with the clock, it would be moved without end.
                Some(armed) if armed.at < half && armed.may_move(clock.now()) => armed.at,
                Some(_) => continue,
            };
            let armed = Armed { since: clock.now(), at, earliest };
            if let Some(sleep) = alarm.sleep.take() {
                let register = alarm.armed.is_none();
                let (waker, rung) = (alarm.waker.clone(), alarm.rung.clone());
                return AlarmCheck::Arming(Arming { key, sleep, waker, rung, armed, register });
            }
        }
        lost.map_or(AlarmCheck::Nothing, |key| AlarmCheck::Lost(self.lose(key)))
    }

    /// Which alarms, other than the `first`, are to ring in case that one is held up.
    fn reserves(&self, first: Option<usize>) -> (Option<usize>, Option<usize>) {
        if self.list.iter().nth(1).is_none() {
            return (None, None);
        }
        let others = || self.list.iter().filter(|(key, _)| Some(*key) != first);
        let latest = |not: Option<usize>| {
            let rest = others().filter(|(key, _)| Some(*key) != not);
            rest.max_by_key(|(_, alarm)| alarm.joined).map(|(key, _)| key)
        };
        let rang =
            self.rang_last.iter().flatten().find_map(|runtime| {
                others().find(|(_, alarm)| alarm.runtime == *runtime).map(|(key, _)| key)
            });
        let reserve = rang.or_else(|| latest(None));
        (reserve, latest(reserve))
    }

    fn lose(&mut self, key: usize) -> LostAlarm<C> {
        let Alarm { runtime, sleep, .. } = self.list.remove(key);
        LostAlarm { key, runtime, sleep }
    }

    /// Puts back an alarm that was set, or that lost its event loop or timer (`gone`).
    pub(crate) fn put_back(&mut self, arming: Arming<C>, gone: bool) -> PutBack<C> {
        match self.list.get_mut(arming.key) {
            // The key may be another alarm's by now.
            Some(alarm) if Arc::ptr_eq(&alarm.rung, &arming.rung) => {
                alarm.sleep = Some(arming.sleep);
                alarm.armed = Some(arming.armed);
                if gone { PutBack::Lost(self.lose(arming.key)) } else { PutBack::There }
            }
            _ => PutBack::Unused(arming.sleep),
        }
    }
}

impl<C: Timer> Arming<C> {
    /// Sets the alarm. Returns whether its event loop is gone. Called without the line's lock,
    /// since this may call the alarm's waker.
    pub(crate) fn run(&mut self) -> bool {
        self.sleep.as_mut().reset(self.armed.at);
        if self.register && self.sleep.as_mut().poll(&mut Context::from_waker(&self.waker)).is_ready() {
            // The flag is set as the waker of the alarm does: the holder of the lock that looks
            // next finds the ring.
            self.rung.store(true, Ordering::Release);
        }
        self.sleep.is_gone()
    }
}

impl Armed {
    /// Whether it may be moved later.
    fn may_move(self, now: Nanos) -> bool {
        self.at > now.saturating_add(EARLY) && now > self.since.saturating_add(EARLY)
    }

    /// A steady clock and a steady timer drift apart by far less than an eighth.
    fn is_far_too_early(self, now: Nanos) -> bool {
        let missing = self.earliest.saturating_since(now);
        // After the clock went back, the alarm only seems early.
        now > self.since
            && missing.as_u64() > EARLY.as_u64() + self.at.saturating_since(self.since).as_u64() / 8
    }
}
