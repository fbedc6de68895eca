//! [`Idle`]: gives back the permits of services that are ready and not called, and of services
//! whose permits are due and that are not polled.
//!
//! Each service that is ready or waits has a [`Slot`] with its reservation. The slot is in a list,
//! sorted by the time at which the service counts as idle. A service that waits checks the lists:
//! the service takes the reservations out of the due slots whose time has come, and gives them
//! back. While the service waits, it wakes up at the next time in the list of due slots, and at
//! least once in the idle time. So idle permits need no task and no thread, and if no service
//! waits, nothing happens.
//!
//! | a slot | the list | next |
//! |---|---|---|
//! | of a ready service, listed at *T* | has (*T*, slot) | called: empty, off the list. Dropped: given back, off the list. At *T*, if another service waits: given back, off the list |
//! | of a waiting service, listed at *T* | that of the waiting services has (*T*, slot) | polled: empty, off the list, then listed anew. Dropped: as above. At *T*, if another service waits: listed anew; if the reservation is due, like the slot of a ready service |
//! | empty | may have an older (*T*, slot), just being removed | ready, or waits: listed anew |
//!
//! Between the removal of a slot from the list and its emptying, the service may be called and the
//! slot filled again. So a slot is only emptied if it still has the number under which it was
//! listed.
//!
//! A waiter that finds no slot wakes up after the idle time. No service that becomes ready later
//! counts as idle before that, so no time is missed.

use std::collections::BTreeMap;
use std::collections::btree_map::OccupiedEntry;
use std::fmt;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tidegate::{AnyReservation, Nanos, Timer};

/// The reservation of a service that is ready or waits.
#[derive(Debug, Default)]
pub(crate) struct Slot(Mutex<Option<Held>>);

#[derive(Debug)]
struct Held {
    reservation: AnyReservation,
    /// The list that has the slot, and its entry there.
    stage: Stage,
    listed: Option<Listed>,
}

/// The time at which a service counts as idle, and a unique number.
type Listed = (Nanos, u64);

/// What a service with a reservation does.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Stage {
    Waits,
    /// The service is ready, or its permits are due and it was not polled since.
    Due,
}

/// The slots of a layer that can become idle.
pub(crate) struct Idle {
    after: Duration,
    clock: Box<dyn IdleClock>,
    list: Mutex<List>,
}

#[derive(Default)]
struct List {
    due: BTreeMap<Listed, Arc<Slot>>,
    waiting: BTreeMap<Listed, Arc<Slot>>,
    next: u64,
}

impl List {
    fn of(&mut self, stage: Stage) -> &mut BTreeMap<Listed, Arc<Slot>> {
        match stage {
            Stage::Waits => &mut self.waiting,
            Stage::Due => &mut self.due,
        }
    }
}

/// A clock without its type.
trait IdleClock: Send + Sync {
    fn now(&self) -> Nanos;
    fn sleep_until(&self, at: Nanos) -> Pin<Box<dyn Future<Output = ()> + Send>>;
}

impl<C: Timer> IdleClock for C {
    fn now(&self) -> Nanos {
        self.now()
    }

    fn sleep_until(&self, at: Nanos) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        Box::pin(self.sleep_until(at))
    }
}

/// A poisoned lock guards a whole value. A clock runs under these locks. While a slot is asked
/// whether its permits are due, wakers and observers of the limiter run under its lock as well: a
/// waker must not use the service of this slot.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Slot {
    /// Fills the slot.
    pub(crate) fn put(self: &Arc<Self>, reservation: AnyReservation, stage: Stage, idle: Option<&Idle>) {
        let due = idle.map(|idle| (idle, idle.due()));
        // The slot is filled before another thread can take it from the list. No thread locks a
        // slot while it holds the lock of the list.
        let mut held = lock(&self.0);
        let listed = due.map(|(idle, due)| idle.add(self, stage, due));
        *held = Some(Held { reservation, stage, listed });
    }

    pub(crate) fn is_full(&self) -> bool {
        lock(&self.0).is_some()
    }

    /// Takes the reservation, unless it was given back.
    pub(crate) fn take(&self, idle: Option<&Idle>) -> Option<AnyReservation> {
        let Held { reservation, stage, listed } = lock(&self.0).take()?;
        if let (Some(idle), Some(listed)) = (idle, listed) {
            lock(&idle.list).of(stage).remove(&listed);
        }
        Some(reservation)
    }

    /// Takes the reservation if the slot is still listed as `as_listed`. Lists the slot of a
    /// service that waits anew: if its permits are due, with the slots of ready services.
    fn take_listed(self: &Arc<Self>, as_listed: Listed, idle: &Idle) -> Option<AnyReservation> {
        let due = idle.due();
        let mut slot = lock(&self.0);
        let held = slot.as_mut().filter(|held| held.listed == Some(as_listed))?;
        if held.stage == Stage::Waits {
            // Listed anew first: the limiter may run a waker or an observer that panics.
            let listed = idle.add(self, Stage::Waits, due);
            held.listed = Some(listed);
            if held.reservation.due_in().is_zero() {
                held.stage = Stage::Due;
                let mut list = lock(&idle.list);
                if let Some(slot) = list.waiting.remove(&listed) {
                    list.due.insert(listed, slot);
                }
            }
            return None;
        }
        slot.take().map(|held| held.reservation)
    }
}

impl Idle {
    pub(crate) fn new(after: Duration, clock: impl Timer) -> Idle {
        // With an idle time of zero, a waiting service would check for idle services in an endless
        // loop.
        let after = after.max(Duration::from_millis(1));
        Idle { after, clock: Box::new(clock), list: Mutex::default() }
    }

    fn add(&self, slot: &Arc<Slot>, stage: Stage, due: Nanos) -> Listed {
        let mut list = lock(&self.list);
        let listed = (due, list.next);
        list.next += 1;
        list.of(stage).insert(listed, slot.clone());
        listed
    }

    /// Returns the time at which a service that becomes ready, or is polled, now counts as idle.
    fn due(&self) -> Nanos {
        self.clock.now().saturating_add(Nanos::from_duration(self.after))
    }

    /// Gives the permits of idle services back. Returns the time of the next check.
    pub(crate) fn give_back(&self) -> Nanos {
        let now = self.clock.now();
        let idle = |stage| {
            let mut list = lock(&self.list);
            list.of(stage).first_entry().filter(|first| first.key().0 <= now).map(OccupiedEntry::remove_entry)
        };
        while let Some((listed, slot)) = idle(Stage::Due).or_else(|| idle(Stage::Waits)) {
            // Outside of the list's lock: giving permits back wakes other requests.
            if let Some(reservation) = slot.take_listed(listed, self) {
                reservation.settle_unused();
            }
        }
        let due = self.due();
        lock(&self.list).due.first_key_value().map_or(due, |(first, _)| first.0.min(due))
    }

    pub(crate) fn sleep_until(&self, at: Nanos) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        self.clock.sleep_until(at)
    }
}

impl fmt::Debug for Idle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Idle").field("after", &self.after).finish_non_exhaustive()
    }
}
