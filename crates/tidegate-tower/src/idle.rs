//! [`Idle`]: gives back the permits of services that are ready and not called.
//!
//! Each ready service has a [`Slot`] with its permits. The slot is in a list, sorted by the time at
//! which the service counts as idle. A service that waits checks the list: it takes the permits out
//! of the slots whose time has come, and gives them back. While it waits, it wakes up at the next
//! time in the list. So idle permits need no task and no thread, and if no service waits, nothing
//! happens.
//!
//! | a slot | the list | next |
//! |---|---|---|
//! | holds permits, listed at *T* | has (*T*, slot) | called: empty, off the list. Dropped: given back, off the list. At *T*, if a service waits: given back, off the list |
//! | empty | may have an older (*T*, slot), just being removed | ready: holds permits, listed anew |
//!
//! Between the removal of a slot from the list and its emptying, the service may be called and the
//! slot filled again. So a slot is only emptied if it still has the number under which it was
//! listed.
//!
//! A waiter that finds no slot wakes up after the idle time. No service that becomes ready later
//! counts as idle before that, so no time is missed.

use std::collections::BTreeMap;
use std::fmt;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tidegate::{AnyReservation, Nanos, Timer};

/// The permits of a ready service.
#[derive(Debug, Default)]
pub(crate) struct Slot(Mutex<Option<Held>>);

#[derive(Debug)]
struct Held {
    reservation: AnyReservation,
    /// The entry of the slot in the list.
    listed: Option<Listed>,
}

/// The time at which a service counts as idle, and a unique number.
type Listed = (Nanos, u64);

/// The slots of a layer that can become idle.
pub(crate) struct Idle {
    after: Duration,
    clock: Box<dyn IdleClock>,
    list: Mutex<List>,
}

#[derive(Default)]
struct List {
    slots: BTreeMap<Listed, Arc<Slot>>,
    next: u64,
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

/// The clock is the only user code that runs under these locks. A poisoned lock guards a whole
/// value.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Gives all permits back.
pub(crate) fn give_back(reservation: AnyReservation) {
    // The cost names no limit, so no name can be wrong.
    let _ = reservation.settle(0);
}

impl Slot {
    /// Fills the slot.
    pub(crate) fn put(self: &Arc<Self>, reservation: AnyReservation, idle: Option<&Idle>) {
        let due = idle.map(|idle| (idle, idle.due()));
        // The slot is filled before another thread can take it from the list. No thread locks a
        // slot while it holds the lock of the list.
        let mut held = lock(&self.0);
        let listed = due.map(|(idle, due)| idle.add(self, due));
        *held = Some(Held { reservation, listed });
    }

    pub(crate) fn is_full(&self) -> bool {
        lock(&self.0).is_some()
    }

    /// Takes the permits, unless they were given back.
    pub(crate) fn take(&self, idle: Option<&Idle>) -> Option<AnyReservation> {
        let Held { reservation, listed } = lock(&self.0).take()?;
        if let (Some(idle), Some(listed)) = (idle, listed) {
            lock(&idle.list).slots.remove(&listed);
        }
        Some(reservation)
    }

    /// Takes the permits if the slot is still listed as `as_listed`.
    fn take_listed(&self, as_listed: Listed) -> Option<AnyReservation> {
        let mut held = lock(&self.0);
        held.take_if(|held| held.listed == Some(as_listed)).map(|held| held.reservation)
    }
}

impl Idle {
    pub(crate) fn new(after: Duration, clock: impl Timer) -> Idle {
        // With an idle time of zero, a waiting service would check for idle services in an endless
        // loop.
        let after = after.max(Duration::from_millis(1));
        Idle { after, clock: Box::new(clock), list: Mutex::default() }
    }

    fn add(&self, slot: &Arc<Slot>, due: Nanos) -> Listed {
        let mut list = lock(&self.list);
        let listed = (due, list.next);
        list.next += 1;
        list.slots.insert(listed, slot.clone());
        listed
    }

    /// Returns the time at which a service that becomes ready now counts as idle.
    fn due(&self) -> Nanos {
        self.clock.now().saturating_add(Nanos::from_duration(self.after))
    }

    /// Gives the permits of idle services back. Returns the time of the next check.
    pub(crate) fn give_back(&self) -> Nanos {
        let now = self.clock.now();
        loop {
            let (listed, slot) = {
                let mut list = lock(&self.list);
                match list.slots.first_entry() {
                    Some(first) if first.key().0 <= now => first.remove_entry(),
                    Some(first) => return first.key().0.min(self.due()),
                    None => return self.due(),
                }
            };
            // Outside of the list's lock: giving permits back wakes other requests.
            if let Some(reservation) = slot.take_listed(listed) {
                give_back(reservation);
            }
        }
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
