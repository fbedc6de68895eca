//! Observers: how a limiter reports its calls.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use crate::error::Refusal;
use crate::grant::Left;
use crate::line::deferred::run_in_drop;

/// Observes the calls of a limiter: an observer is notified of every call when the call ends. Pass
/// it to [`RateLimiter::observe`](crate::RateLimiter::observe),
/// [`CountingLimit::observe`](crate::CountingLimit::observe) or
/// [`AllOf::observe`](crate::AllOf::observe).
#[cfg_attr(
    feature = "keyed",
    doc = "[`KeyedRateLimiter::observed_by`](crate::KeyedRateLimiter::observed_by) and
[`KeyedCountingLimit::observed_by`](crate::KeyedCountingLimit::observed_by) set one observer for all keys."
)]
///
/// The observer of a limiter is not notified of permits that an [`AllOf`](crate::AllOf) takes from
/// the limiter: the `AllOf` notifies its own observer. No observer is notified of a call that names
/// an unknown member.
///
/// All methods default to doing nothing. They run on the calling thread, after the decision and
/// outside any lock, so they may call the limiter. They run on every call, so keep them fast.
/// [`Statistics`](crate::Statistics) is an observer that counts calls.
///
/// A panic of an observer unwinds the call that it observes, and the permits of that call are
/// spent; permits of a counting limit are given back. The limiter and its waiters are not affected.
///
/// # Examples
///
/// ```
/// use std::sync::{Arc, Mutex};
/// use tidegate::{Events, ManualClock, Rate, RateLimiter, Refusal, SmoothBursty};
///
/// #[derive(Default)]
/// struct Log(Mutex<Vec<String>>);
///
/// impl Events for Log {
///     fn refused(&self, permits: u64, refusal: &Refusal) {
///         self.0.lock().unwrap().push(format!("{permits}: {refusal}"));
///     }
/// }
///
/// let policy = SmoothBursty::new(Rate::per_second(5));
/// let limiter = RateLimiter::with_clock(policy, ManualClock::new());
/// let log = Arc::new(Log::default());
/// limiter.observe(log.clone());
/// limiter.try_acquire_many(3)?;
/// assert!(limiter.try_acquire().is_err());
/// assert_eq!(*log.0.lock().unwrap(), ["1: limited, retry after 600ms"]);
/// # Ok::<(), Refusal>(())
/// ```
///
/// Counters of a metrics crate, with the name of the limiter as label:
///
/// ```
/// use std::time::Duration;
/// use tidegate::{Events, Refusal};
///
/// # fn counter(_metric: &str, _limiter: &str) -> Counter { Counter }
/// # fn histogram(_metric: &str, _limiter: &str) -> Counter { Counter }
/// # struct Counter;
/// # impl Counter { fn increment(&self, _by: u64) {} fn record(&self, _seconds: f64) {} }
/// struct Metrics(&'static str);
///
/// // `counter` and `histogram` stand for the macros of that crate, such as
/// // `metrics::counter!("permits_granted", "limiter" => self.0)`.
/// impl Events for Metrics {
///     fn granted(&self, permits: u64, waited: Duration) {
///         counter("permits_granted", self.0).increment(permits);
///         histogram("wait_seconds", self.0).record(waited.as_secs_f64());
///     }
///
///     fn refused(&self, _permits: u64, _refusal: &Refusal) {
///         counter("requests_refused", self.0).increment(1);
///     }
///
///     fn cancelled(&self, _permits: u64, _waited: Duration) {
///         counter("requests_cancelled", self.0).increment(1);
///     }
///
///     // For a limiter over a store; such a request is also reported as granted or refused.
///     fn degraded(&self, _permits: u64) {
///         counter("requests_degraded", self.0).increment(1);
///     }
/// }
/// # let _: &dyn Events = &Metrics("uploads");
/// ```
///
/// The observer of a store is notified of the store's calls and of every limiter over the store.
/// This one writes log lines for an operator who wants to know of an outage, and of a limit that is
/// almost used up.
///
/// ```
/// use std::sync::Mutex;
/// use std::time::Duration;
/// use tidegate::{Events, Left, StoreEvent};
///
/// #[derive(Default)]
/// struct Alerts(Mutex<Vec<String>>);
///
/// impl Alerts {
///     fn say(&self, line: String) {
///         self.0.lock().unwrap().push(line);
///     }
/// }
///
/// impl Events for Alerts {
///     fn store(&self, event: &StoreEvent) {
///         match event {
///             StoreEvent::Answered(took) if *took > Duration::from_millis(20) => {
///                 self.say(format!("the store took {took:?}"));
///             }
///             StoreEvent::BreakerOpened => self.say("the store is away".to_owned()),
///             StoreEvent::BreakerClosed => self.say("the store is back".to_owned()),
///             StoreEvent::Misconfigured => self.say("the store cannot be used".to_owned()),
///             // Later versions add events.
///             _ => {}
///         }
///     }
///
///     fn near_limit(&self, name: &str, left: &Left) {
///         self.say(format!("{name}: {} of {} left", left.available, left.limit));
///     }
/// }
///
/// let alerts = Alerts::default();
/// // A store calls its observer like this.
/// alerts.store(&StoreEvent::Answered(Duration::from_millis(2)));
/// alerts.store(&StoreEvent::BreakerOpened);
/// assert_eq!(*alerts.0.lock().unwrap(), ["the store is away"]);
/// ```
pub trait Events: Send + Sync + 'static {
    /// A call got its permits after it waited for `waited`, which is zero if they were available.
    /// For several limits, `permits` is the sum. If a limiter over a network lets a call pass
    /// without permits, because its store is down, `permits` is the number that the call asked for.
    fn granted(&self, permits: u64, waited: Duration) {
        let _ = (permits, waited);
    }

    /// A call was refused, at once or while it waited.
    fn refused(&self, permits: u64, refusal: &Refusal) {
        let _ = (permits, refusal);
    }

    /// A call was cancelled and took nothing. The caller dropped its wait, or a
    /// [`CancelToken`](crate::CancelToken) ended the call, or the call ran another request's waker
    /// and that waker panicked. `waited` is how long the call waited.
    fn cancelled(&self, permits: u64, waited: Duration) {
        let _ = (permits, waited);
    }

    /// A call passed without a permit because the limiter is in [shadow
    /// mode](crate::RateLimiter::set_shadow). `refusal` is the refusal that the call would have
    /// got, or carries the time that it would have waited.
    ///
    /// The shadow mode of a `tidegate-tower` layer does not call this method: the limiter of such a
    /// layer refuses and calls [`refused`](Events::refused), and the layer lets the request pass.
    fn shadowed(&self, permits: u64, refusal: &Refusal) {
        let _ = (permits, refusal);
    }

    /// A call passed because it is [exempt](crate::Request::exempt).
    fn exempted(&self, permits: u64) {
        let _ = permits;
    }

    /// The limiter was paused, for `remaining` from now; [`Duration::MAX`] means until it is
    /// resumed.
    fn paused(&self, remaining: Duration) {
        let _ = remaining;
    }

    /// A pause was ended early.
    fn resumed(&self) {}

    /// A call was decided without the limiter's store, because the store did not reply. The call is
    /// also reported as granted or refused. Only a limiter over a network calls this method.
    fn degraded(&self, permits: u64) {
        let _ = permits;
    }

    /// A granted call left a fifth or less of the limit `name`. If there are several limits, it is
    /// the one closest to exhaustion. A limit of one permit, such as that of a paced policy, is
    /// never reported, because each grant leaves nothing of it. Only a limiter over a network calls
    /// this method, because its replies carry the state at no cost.
    fn near_limit(&self, name: &str, left: &Left) {
        let _ = (name, left);
    }

    /// A call was made to the limiter's store, the store is no longer called or is called again, or
    /// leased permits changed hands. Only a limiter over a network calls this method.
    fn store(&self, event: &StoreEvent) {
        let _ = event;
    }
}

/// An observer that passes each event to a function.
pub(crate) struct EachEvent<F>(pub(crate) F);

/// Makes observers of these events: a pair notifies its first observer and then its second, an
/// `Arc` notifies its content, and an [`EachEvent`] calls its function.
macro_rules! forward {
    ($($event:ident($($argument:ident: $type:ty),*);)*) => {
        /// Notifies the first observer, then the second; not the second if the first one panics.
        ///
        /// # Examples
        ///
        /// ```
        /// use std::sync::Arc;
        /// use tidegate::{Events, ManualClock, Rate, RateLimiter};
        /// use tidegate::{Refusal, Statistics, TokenBucket};
        ///
        /// struct Log;
        ///
        /// impl Events for Log {
        ///     fn refused(&self, _permits: u64, refusal: &Refusal) {
        ///         eprintln!("{refusal}");
        ///     }
        /// }
        ///
        /// let statistics = Arc::new(Statistics::new());
        /// let policy = TokenBucket::new(Rate::per_second(5), 1);
        /// let limiter = RateLimiter::with_clock(policy, ManualClock::new());
        /// limiter.observe(Arc::new((statistics.clone(), Log)));
        /// let (_granted, _logged) = (limiter.try_acquire(), limiter.try_acquire());
        /// assert_eq!(statistics.snapshot().limited, 1);
        /// ```
        #[deny(clippy::missing_trait_methods)]
        impl<A: Events, B: Events> Events for (A, B) {
            $(fn $event(&self, $($argument: $type),*) {
                self.0.$event($($argument),*);
                self.1.$event($($argument),*);
            })*
        }

        #[deny(clippy::missing_trait_methods)]
        impl<E: Events + ?Sized> Events for Arc<E> {
            $(fn $event(&self, $($argument: $type),*) {
                (**self).$event($($argument),*);
            })*
        }

        #[deny(clippy::missing_trait_methods)]
        impl<F: Fn(&dyn Fn(&dyn Events)) + Send + Sync + 'static> Events for EachEvent<F> {
            $(fn $event(&self, $($argument: $type),*) {
                (self.0)(&|events: &dyn Events| events.$event($($argument),*));
            })*
        }
    };
}

forward! {
    granted(permits: u64, waited: Duration);
    refused(permits: u64, refusal: &Refusal);
    cancelled(permits: u64, waited: Duration);
    shadowed(permits: u64, refusal: &Refusal);
    exempted(permits: u64);
    paused(remaining: Duration);
    resumed();
    degraded(permits: u64);
    near_limit(name: &str, left: &Left);
    store(event: &StoreEvent);
}

/// What happened at the store of a limiter over a network, reported to [`Events::store`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum StoreEvent {
    /// The store replied to a call, this long after the call was made.
    Answered(Duration),
    /// A call got no reply. The store may have carried it out.
    Unknown,
    /// The store did not carry out a call.
    Failed,
    /// A call was not made, because the store did not reply to earlier calls, because too many
    /// calls are in flight, or because too little time is left for a reply.
    Skipped,
    /// A call showed that the store is misconfigured: a wrong password, a missing permission, or a
    /// value of the wrong type under a key.
    Misconfigured,
    /// The store is down: it is not called for a while, because it did not reply to several calls
    /// in a row, or to a call that probed it. So each failed probe reports this event again.
    BreakerOpened,
    /// The store is back: it replied again, and is called as before.
    BreakerClosed,
    /// The store debited this many permits for a lease of this process.
    LeaseTaken(u64),
    /// Requests used this many leased permits.
    LeaseUsed(u64),
    /// This many permits that were reported as used were not used: their requests were dropped
    /// before they saw their grants.
    LeaseUnused(u64),
    /// This many permits went back to the store, because no request used them before their lease
    /// ended.
    LeaseReturned(u64),
    /// This many leased permits were lost, because a limit was reset or lowered.
    LeaseLost(u64),
}

/// The observers of one limiter.
pub(crate) struct Observers {
    /// The observer of all keys, if this is the limiter of a key.
    all: Option<Arc<dyn Events>>,
    /// The observer of this limiter only.
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

    /// Returns whether there is an observer to notify.
    #[inline]
    pub(crate) fn is_some(&self) -> bool {
        self.all.is_some() || self.own.get().is_some()
    }

    /// Returns whether the limiter has an observer of its own.
    #[cfg(feature = "keyed")]
    pub(crate) fn has_own(&self) -> bool {
        self.own.get().is_some()
    }

    /// Notifies each observer.
    pub(crate) fn report(&self, event: impl Fn(&dyn Events)) {
        for events in self.all.iter().chain(self.own.get()) {
            report(&**events, &event);
        }
    }
}

/// Notifies one observer, outside any lock: an observer is user code, which may call the limiter or
/// panic.
pub(crate) fn report(events: &dyn Events, event: impl FnOnce(&dyn Events)) {
    run_in_drop(|| event(events));
}
