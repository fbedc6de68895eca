//! [`Idle`]: permits of services that are ready and not called go back.
//!
//! Each service that is ready has a [`Slot`] with its permits, and the slot stands in a list,
//! sorted by the time at which the service counts as idle. A service that has to wait looks at the
//! list: it takes the permits out of the slots whose time has come, and gives them back. While it
//! waits, it wakes up when the next time comes. So idle permits need no task and no thread, and if
//! no service waits nothing happens.
//!
//! | a slot | the list | next |
//! |---|---|---|
//! | holds permits, listed at *T* | has (*T*, slot) | called: empty, off the list. Dropped: given back, off the list. At *T*, if a service waits: given back, off the list |
//! | empty | may have an older (*T*, slot), just being removed | ready: holds permits, listed anew |
//!
//! A slot that is taken from the list may have been called and filled again before it is emptied.
//! So it is only emptied if it still has the number under which it was listed.
//!
//! A waiter that finds no slot wakes up after the idle time. No service that becomes ready later
//! counts as idle before that, so no time is missed.

use std::collections::BTreeMap;
use std::fmt;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tidegate::{AnyReservation, Nanos, Timer};

/// The permits of a service that is ready.
#[derive(Debug, Default)]
pub(crate) struct Slot(Mutex<Option<Held>>);

#[derive(Debug)]
struct Held {
    place: AnyReservation,
    /// Where the slot is listed.
    listed: Option<Listed>,
}

/// The time at which a service counts as idle, and a number that is used once.
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

/// No code of others runs under these locks but that of the clock; a poisoned lock guards a whole
/// value.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Gives all permits back.
pub(crate) fn give_back(place: AnyReservation) {
    // No name is given that could be wrong.
    let _ = place.settle(0);
}

impl Slot {
    /// Fills the slot.
    pub(crate) fn put(self: &Arc<Self>, place: AnyReservation, idle: Option<&Idle>) {
        let due = idle.map(|idle| (idle, idle.due()));
        // Filled before it can be taken from the list. No thread locks a slot while it holds the
        // list.
        let mut held = lock(&self.0);
        let listed = due.map(|(idle, due)| idle.add(self, due));
        *held = Some(Held { place, listed });
    }

    pub(crate) fn is_full(&self) -> bool {
        lock(&self.0).is_some()
    }

    /// Takes the permits, unless they went back.
    pub(crate) fn take(&self, idle: Option<&Idle>) -> Option<AnyReservation> {
        let Held { place, listed } = lock(&self.0).take()?;
        if let (Some(idle), Some(listed)) = (idle, listed) {
            lock(&idle.list).slots.remove(&listed);
        }
        Some(place)
    }

    /// Takes the permits that were listed so.
    fn take_listed(&self, as_listed: Listed) -> Option<AnyReservation> {
        let mut held = lock(&self.0);
        held.take_if(|held| held.listed == Some(as_listed)).map(|held| held.place)
    }
}

impl Idle {
    pub(crate) fn new(after: Duration, clock: impl Timer) -> Idle {
        // After no time a service that waits would look for idle ones without end.
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

    /// The time at which a service that becomes ready now counts as idle.
    fn due(&self) -> Nanos {
        self.clock.now().saturating_add(Nanos::from_duration(self.after))
    }

    /// Gives the permits of idle services back. Returns the time at which to look again.
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
            // Outside of the list's lock: giving back wakes other requests.
            if let Some(place) = slot.take_listed(listed) {
                give_back(place);
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
