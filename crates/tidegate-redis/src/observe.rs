//! The notifications to the observers of a limiter over a store.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tidegate::{AllPermits, AllRefusal, Events, Left, Refusal, StoreEvent};
use tokio::time::Instant;

/// The observer of a store, and the observer of one limiter. The limiter of a key also has the
/// observer of all keys.
#[derive(Default)]
pub(crate) struct Observers {
    of_store: Option<Arc<dyn Events>>,
    of_all_keys: Option<Arc<Observers>>,
    own: OnceLock<Arc<dyn Events>>,
}

impl Observers {
    pub(crate) fn new(of_store: Option<Arc<dyn Events>>) -> Observers {
        Observers { of_store, ..Observers::default() }
    }

    /// Returns the observers of a key, if these are those of all keys.
    pub(crate) fn of_key(self: &Arc<Observers>) -> Observers {
        Observers { of_all_keys: Some(self.clone()), ..Observers::new(self.of_store.clone()) }
    }

    fn each(&self) -> impl Iterator<Item = &Arc<dyn Events>> {
        let of_all_keys = self.of_all_keys.iter().filter_map(|all| all.own.get());
        self.of_store.iter().chain(of_all_keys).chain(self.own.get())
    }

    /// Sets the limiter's own observer. Returns `false`, and changes nothing, if it has one.
    pub(crate) fn observe(&self, events: Arc<dyn Events>) -> bool {
        self.own.set(events).is_ok()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.each().next().is_none()
    }

    pub(crate) fn report(&self, event: impl Fn(&dyn Events)) {
        for events in self.each() {
            event(&**events);
        }
    }

    /// Reports a pause that is not sent to the store yet. A panic of an observer does not keep it
    /// from being sent.
    pub(crate) fn paused(&self, span: Duration) {
        _ = catch_unwind(AssertUnwindSafe(|| self.report(|events| events.paused(span))));
    }

    /// Reports that a pause was ended. A panic of an observer ends no thread.
    pub(crate) fn resumed(&self) {
        _ = catch_unwind(AssertUnwindSafe(|| self.report(|events| events.resumed())));
    }

    /// Notifies the observers of the permits left of the limit of this name, if they are few. A
    /// panic of an observer ends no thread.
    pub(crate) fn left(&self, left: Option<(&str, Left)>) {
        let report = || self.report(|events| report_near(events, left));
        _ = catch_unwind(AssertUnwindSafe(report));
    }
}

/// Notifies the observer of a store. A panic of the observer ends no thread. If the observer makes
/// a call that is skipped, it is not notified of that: it might make the next call, without an end.
/// If it ends a lease, it is notified of that afterwards.
pub(crate) fn report(events: Option<&Arc<dyn Events>>, event: StoreEvent) {
    thread_local! {
        static IS_REPORTING: Cell<bool> = const { Cell::new(false) };
        /// The notifications that are still to come. A thread that is ending has none.
        static LATER: RefCell<VecDeque<(Arc<dyn Events>, StoreEvent)>> =
            const { RefCell::new(VecDeque::new()) };
    }
    let Some(events) = events else { return };
    if IS_REPORTING.replace(true) {
        if is_of_lease(event) {
            _ = LATER.try_with(|later| later.borrow_mut().push_back((events.clone(), event)));
        }
        return;
    }
    let mut next = Some((events.clone(), event));
    while let Some((events, event)) = next {
        // The observer may be dropped here, which may run the user's code.
        _ = catch_unwind(AssertUnwindSafe(move || events.store(&event)));
        next = LATER.try_with(|later| later.borrow_mut().pop_front()).ok().flatten();
    }
    IS_REPORTING.set(false);
}

fn is_of_lease(event: StoreEvent) -> bool {
    use StoreEvent::{LeaseLost, LeaseReturned, LeaseTaken, LeaseUnused, LeaseUsed};
    matches!(event, LeaseTaken(_) | LeaseUsed(_) | LeaseUnused(_) | LeaseReturned(_) | LeaseLost(_))
}

/// A request that is being decided. If this is dropped before the decision, the request was
/// cancelled.
pub(crate) struct Watch {
    observers: Arc<Observers>,
    /// For each limit, the permits that the request asks for, and the maximum that it takes.
    costs: Vec<(u64, u64)>,
    began: Instant,
    is_reported: bool,
}

impl Watch {
    /// Returns `None` if the limiter has no observer.
    pub(crate) fn new(observers: &Arc<Observers>, costs: &[(u64, u64)]) -> Option<Watch> {
        let watch = || Watch {
            observers: observers.clone(),
            costs: costs.into(),
            began: Instant::now(),
            is_reported: false,
        };
        (!observers.is_empty()).then(watch)
    }

    /// The permits that the request asks for, of all limits together.
    fn permits(&self) -> u64 {
        self.costs.iter().fold(0, |sum, (n, _)| sum.saturating_add(*n))
    }

    /// The permits that the request got, of all limits together. A grant reports the permits of a
    /// limit that the request does not name.
    fn got(&self, granted: &AllPermits) -> u64 {
        let each = self.costs.iter().map(|(n, most)| u64::from(granted.permits()).clamp(*n, *most.max(n)));
        each.fold(0, u64::saturating_add)
    }

    fn report(mut self, event: impl Fn(&dyn Events, u64)) {
        self.is_reported = true;
        let permits = self.permits();
        self.observers.report(|events| event(events, permits));
    }

    /// Reports that `permits` permits were granted, and what is `left` of the limit of this name.
    pub(crate) fn granted(self, permits: u64, waited: Duration, left: Option<(&str, Left)>) {
        self.report(|events, _| {
            events.granted(permits, waited);
            report_near(events, left);
        });
    }

    /// Reports that the limits would have refused the request.
    pub(crate) fn shadowed(self, refusal: &Refusal) {
        self.report(|events, permits| events.shadowed(permits, refusal));
    }

    /// Reports the decision.
    pub(crate) fn answered(self, answer: Result<&AllPermits, &AllRefusal>) {
        self.answered_with(answer, None);
    }

    /// Reports the decision, and the remaining permits of the limit of this name if the store
    /// granted the request.
    pub(crate) fn answered_with(self, answer: Result<&AllPermits, &AllRefusal>, left: Option<(&str, Left)>) {
        let got = answer.map_or(0, |granted| self.got(granted));
        self.report(|events, permits| match answer {
            Ok(granted) => {
                if granted.is_degraded() {
                    events.degraded(got);
                }
                events.granted(got, granted.waited());
                report_near(events, left);
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
        self.report(|events, permits| events.exempted(permits));
    }
}

/// Notifies an observer if a fifth or less is left of the limit of this name. A limit of one permit
/// has none left after each grant, so the observer is not notified of it.
fn report_near(events: &dyn Events, left: Option<(&str, Left)>) {
    let is_near = |left: &Left| left.limit > 1 && left.available.saturating_mul(5) <= left.limit;
    if let Some((name, left)) = left.filter(|(_, left)| is_near(left)) {
        events.near_limit(name, &left);
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        if self.is_reported {
            return;
        }
        let waited = self.began.elapsed();
        let report = || self.observers.report(|events| events.cancelled(self.permits(), waited));
        if std::thread::panicking() {
            // A second panic would end the process.
            _ = catch_unwind(AssertUnwindSafe(report));
        } else {
            report();
        }
    }
}
