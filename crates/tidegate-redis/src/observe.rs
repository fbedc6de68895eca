//! What the observers of a limiter over a store are told.

use std::cell::Cell;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tidegate::{AllPermits, AllRefusal, Events, Left, Nanos, Refusal, StoreEvent};
use tokio::time::Instant;

use crate::line::Granted;
use crate::script::{Answer, Reply};
use crate::set::Set;

/// The observer of a store, and that of one limiter.
#[derive(Default)]
pub(crate) struct Observers {
    all: Option<Arc<dyn Events>>,
    own: OnceLock<Arc<dyn Events>>,
}

impl Observers {
    pub(crate) fn new(all: Option<Arc<dyn Events>>) -> Observers {
        Observers { all, own: OnceLock::new() }
    }

    /// Sets the limiter's own observer. Returns `false`, and changes nothing, if it has one.
    pub(crate) fn observe(&self, events: Arc<dyn Events>) -> bool {
        self.own.set(events).is_ok()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.all.is_none() && self.own.get().is_none()
    }

    pub(crate) fn report(&self, event: impl Fn(&dyn Events)) {
        for events in self.all.iter().chain(self.own.get()) {
            event(&**events);
        }
    }
}

impl fmt::Debug for Observers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Observers").field("is_empty", &self.is_empty()).finish_non_exhaustive()
    }
}

/// Tells the observer of a store. A panic of the observer ends no thread. A call of the observer
/// that is not made is not told: the observer might make the next one, without an end.
pub(crate) fn report(events: Option<&Arc<dyn Events>>, event: StoreEvent) {
    thread_local! {
        static TELLS: Cell<bool> = const { Cell::new(false) };
    }
    let Some(events) = events else { return };
    if !TELLS.replace(true) {
        _ = catch_unwind(AssertUnwindSafe(|| events.store(&event)));
        TELLS.set(false);
    }
}

/// Tells the observers of a limiter whether a lease left little of it. A panic of an observer ends
/// no thread.
pub(crate) fn leased(set: &Set, reply: &Reply) {
    let near = set.tightest(reply).filter(|(_, left)| is_near(left));
    if let Some((name, left)) = near.filter(|_| reply.answer == Answer::Done) {
        let tell = || set.observers.report(|events| events.near_limit(name, &left));
        _ = catch_unwind(AssertUnwindSafe(tell));
    }
}

/// A request that is being decided. If it is dropped before that, it was cancelled.
#[derive(Debug)]
pub(crate) struct Watch {
    observers: Arc<Observers>,
    permits: u64,
    began: Instant,
    is_told: bool,
}

impl Watch {
    /// `None` if the limiter has no observer.
    pub(crate) fn new(observers: &Arc<Observers>, permits: u64) -> Option<Watch> {
        let watch = || Watch { observers: observers.clone(), permits, began: Instant::now(), is_told: false };
        (!observers.is_empty()).then(watch)
    }

    fn tell(mut self, event: impl Fn(&dyn Events, u64)) {
        self.is_told = true;
        self.observers.report(|events| event(events, self.permits));
    }

    /// The store granted it.
    pub(crate) fn granted(self, set: &Set, granted: &Granted) {
        if granted.reply.answer == Answer::Shadow {
            let refusal = set.refusal(&granted.reply, Duration::ZERO).refusal();
            let refusal = refusal.unwrap_or(Refusal::Limited { retry_after: Nanos::ZERO });
            return self.tell(|events, permits| events.shadowed(permits, &refusal));
        }
        let permits = granted.reply.permits.iter().sum();
        let near = set.tightest(&granted.reply).filter(|(_, left)| is_near(left));
        self.tell(|events, _| {
            events.granted(permits, granted.waited);
            if let Some((name, left)) = &near {
                events.near_limit(name, left);
            }
        });
    }

    /// It was decided by another way than by the store.
    pub(crate) fn answered(self, answer: Result<&AllPermits, &AllRefusal>) {
        self.answered_with(answer, None);
    }

    /// It was decided, and so much is left of the limit of this name if the store granted it.
    pub(crate) fn answered_with(self, answer: Result<&AllPermits, &AllRefusal>, left: Option<(&str, Left)>) {
        let near = left.filter(|(_, left)| is_near(left));
        self.tell(|events, permits| match answer {
            Ok(granted) => {
                if granted.is_degraded() {
                    events.degraded(permits);
                }
                events.granted(permits, granted.waited());
                if let Some((name, left)) = &near {
                    events.near_limit(name, left);
                }
            }
            Err(refusal) => {
                if refusal.is_degraded() {
                    events.degraded(permits);
                }
                if let Some(refusal) = refusal.refusal() {
                    events.refused(permits, &refusal);
                }
            }
        });
    }

    pub(crate) fn exempted(self) {
        self.tell(|events, permits| events.exempted(permits));
    }
}

/// Whether a fifth or less is left.
fn is_near(left: &Left) -> bool {
    left.available.saturating_mul(5) <= left.limit
}

impl Drop for Watch {
    fn drop(&mut self) {
        if self.is_told {
            return;
        }
        let waited = self.began.elapsed();
        let tell = || self.observers.report(|events| events.cancelled(self.permits, waited));
        if std::thread::panicking() {
            // A second panic would end the process.
            _ = catch_unwind(AssertUnwindSafe(tell));
        } else {
            tell();
        }
    }
}
