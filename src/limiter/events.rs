//! Observers: what a limiter tells about its calls.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use crate::error::Refusal;
use crate::grant::Left;
use crate::line::deferred::run_in_drop;

/// Told of every call, when it ends: give it to
/// [`RateLimiter::observe`](crate::RateLimiter::observe),
/// [`CountingLimit::observe`](crate::CountingLimit::observe) or
/// [`AllOf::observe`](crate::AllOf::observe).
#[cfg_attr(
    feature = "keyed",
    doc = "All keys at once are watched by [`KeyedRateLimiter::observed_by`](crate::KeyedRateLimiter::observed_by)
and [`KeyedCountingLimit::observed_by`](crate::KeyedCountingLimit::observed_by)."
)]
///
/// The observer of a limiter is not told of permits that an [`AllOf`](crate::AllOf) takes from it:
/// the `AllOf` tells its own observer. No observer is told of a call with the name of a member that
/// there is not.
///
/// Each method does nothing unless written. They are called in the thread of the call that they
/// tell of, after it was decided and without any lock, so they may call the limiter. They are on
/// the way of every call: be quick. [`Statistics`](crate::Statistics) counts.
///
/// A panic of an observer unwinds the call that it is told of, and the permits of that call are
/// spent; permits in use are given back. The limiter and its waiters are not affected.
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
/// Counters of a crate of metrics, with the name of the limiter as label:
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
/// // `counter` and `histogram` stand for those of the crate, such as
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
///     // Of a limiter over a store; such a request is told as granted or refused, too.
///     fn degraded(&self, _permits: u64) {
///         counter("requests_degraded", self.0).increment(1);
///     }
/// }
/// # let _: &dyn Events = &Metrics("uploads");
/// ```
///
/// The observer of a store, which is told of its calls and of every limiter over it: lines for a
/// log, for an operator who wants to know of an outage and of a limit that is about to be used up.
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
///             // Later versions tell more.
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
/// // What a store calls that has this observer.
/// alerts.store(&StoreEvent::Answered(Duration::from_millis(2)));
/// alerts.store(&StoreEvent::BreakerOpened);
/// assert_eq!(*alerts.0.lock().unwrap(), ["the store is away"]);
/// ```
pub trait Events: Send + Sync + 'static {
    /// A call got its permits, after it waited so long: zero if they were there. Those of several
    /// limits are summed. A call that a limiter over a network lets pass without permits, since its
    /// store is away, is told with the permits that it asked for.
    fn granted(&self, permits: u64, waited: Duration) {
        let _ = (permits, waited);
    }

    /// A call was refused, at once or while it waited.
    fn refused(&self, permits: u64, refusal: &Refusal) {
        let _ = (permits, refusal);
    }

    /// The caller dropped its wait, after so long, or the call was ended by a
    /// [`CancelToken`](crate::CancelToken), or by a panic of the waker of another request, which it
    /// called. It took nothing.
    fn cancelled(&self, permits: u64, waited: Duration) {
        let _ = (permits, waited);
    }

    /// A call passed without a permit because the limiter is [in
    /// shadow](crate::RateLimiter::set_shadow): it would have been refused like this, or would have
    /// waited so long.
    ///
    /// A layer of `tidegate-tower` in shadow does not lead here: the limiter of such a layer
    /// refuses, and tells [`refused`](Events::refused), and the layer lets the request pass.
    fn shadowed(&self, permits: u64, refusal: &Refusal) {
        let _ = (permits, refusal);
    }

    /// A call passed because it is [exempt](crate::Request::exempt).
    fn exempted(&self, permits: u64) {
        let _ = permits;
    }

    /// The limiter is paused, for so long from now; [`Duration::MAX`] means until it is resumed.
    fn paused(&self, remaining: Duration) {
        let _ = remaining;
    }

    /// A pause was ended before its time.
    fn resumed(&self) {}

    /// A call was decided without the store of the limiter, which did not answer. It is told of as
    /// granted or refused as well. Only a limiter over a network tells this.
    fn degraded(&self, permits: u64) {
        let _ = permits;
    }

    /// A granted call left a fifth of the limit of this name, or less. If there are several limits,
    /// it is the one of which the smallest part is left. A limit of one permit, such as that of a
    /// paced policy, is never told of: each grant leaves nothing of it. Only a limiter over a
    /// network tells this, since its answers tell the state at no cost.
    fn near_limit(&self, name: &str, left: &Left) {
        let _ = (name, left);
    }

    /// A call was made to the store of the limiter, the store is left alone or asked again, or
    /// permits on lease changed hands. Only a limiter over a network tells this.
    fn store(&self, event: &StoreEvent) {
        let _ = event;
    }
}

/// What happened at the store of a limiter over a network, told to [`Events::store`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum StoreEvent {
    /// The store answered a call, so long after the call was made.
    Answered(Duration),
    /// A call has no answer. The store may have carried it out.
    Unknown,
    /// The store did not carry out a call.
    Failed,
    /// A call was not made, since the store did not answer earlier calls, since too many calls are
    /// in flight, or since too little time is left for an answer.
    Skipped,
    /// A call showed that the store is not as it must be: a password, a permission, or a foreign
    /// value under a key.
    Misconfigured,
    /// The store is away: it is left alone for a while, since it did not answer several calls in a
    /// row, or a call that probed it. So this is told again at each probe that fails.
    BreakerOpened,
    /// The store is back: it answered again, and is asked as before.
    BreakerClosed,
    /// The store debited so many permits for a lease of this process.
    LeaseTaken(u64),
    /// Requests used so many permits of leases.
    LeaseUsed(u64),
    /// So many permits that were told of as used were not: their requests were dropped before they
    /// saw their grants.
    LeaseUnused(u64),
    /// So many permits went back to the store, since no request used them before their lease ended.
    LeaseReturned(u64),
    /// So many permits on lease were lost, since a limit was reset or lowered.
    LeaseLost(u64),
}

/// The observers of one limiter.
pub(crate) struct Observers {
    /// The observer of all keys, if this is the limiter of a key.
    all: Option<Arc<dyn Events>>,
    /// The observer of this limiter alone.
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

    /// Whether there is an observer to tell.
    #[inline]
    pub(crate) fn is_some(&self) -> bool {
        self.all.is_some() || self.own.get().is_some()
    }

    /// Whether the limiter has an observer of its own.
    #[cfg(feature = "keyed")]
    pub(crate) fn has_own(&self) -> bool {
        self.own.get().is_some()
    }

    /// Tells each observer.
    pub(crate) fn report(&self, event: impl Fn(&dyn Events)) {
        for events in self.all.iter().chain(self.own.get()) {
            report(&**events, &event);
        }
    }
}

/// Tells one observer. Without any lock: this is foreign code, which may call the limiter or panic.
pub(crate) fn report(events: &dyn Events, event: impl FnOnce(&dyn Events)) {
    run_in_drop(|| event(events));
}
