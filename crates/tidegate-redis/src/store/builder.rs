//! [`StoreBuilder`]: the settings of a store, and opening it.

use std::fmt;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::Duration;

use tidegate::Events;
use tokio::runtime::{Handle, Runtime};

use super::calls::Shared;
use super::serve::serve;
use super::{Inner, Store, WhileAway};
use crate::block_on::this_thread_makes_calls;
#[cfg(feature = "tls")]
use crate::connection::Tls;
use crate::connection::{Address, Connector, Servers, wants_tls};
use crate::error::OpenError;
use crate::key;
use crate::lock::lock;
use crate::queue::queue;
use crate::share::Shares;

/// The address, the prefix, the deadline, the behaviour while the store is away, and the observer.
type Settings = (String, String, Duration, WhileAway, Option<usize>);

/// The stores that configurations opened and that are open in this process.
static OF_CONFIGURATIONS: Mutex<Vec<(Settings, Weak<Inner>)>> = Mutex::new(Vec::new());

/// The settings of a [`Store`].
#[derive(Clone)]
#[must_use = "settings do nothing until the store is opened"]
pub struct StoreBuilder {
    url: String,
    prefix: String,
    timeout: Duration,
    while_away: WhileAway,
    events: Option<Arc<dyn Events>>,
    /// Whether tasks on the caller's runtime make the calls.
    is_on_runtime: bool,
    #[cfg(feature = "tls")]
    tls: Option<Tls>,
}

impl Store {
    /// Opens a store with the default settings: a deadline of 50 ms, and
    /// [`Closed`](WhileAway::Closed) while the store is away.
    ///
    /// # Errors
    ///
    /// Like [`StoreBuilder::open`].
    pub fn open(url: &str) -> Result<Store, OpenError> {
        Store::builder(url).open()
    }

    /// Returns the settings of a store at an [address](crate#addresses), such as
    /// `redis://[user:password@]host[:port][/database]` or `redis+unix:///path`.
    pub fn builder(url: impl Into<String>) -> StoreBuilder {
        StoreBuilder {
            url: url.into(),
            prefix: "tidegate".into(),
            timeout: Duration::from_millis(50),
            while_away: WhileAway::Closed,
            events: None,
            is_on_runtime: false,
            #[cfg(feature = "tls")]
            tls: None,
        }
    }
}

impl StoreBuilder {
    /// Sets the first part of all keys. The default is `tidegate`.
    pub fn prefix(self, prefix: impl Into<String>) -> StoreBuilder {
        StoreBuilder { prefix: prefix.into(), ..self }
    }

    /// Sets the time within which each call must have its reply, connecting included. The default
    /// is 50 ms, the maximum a year. [`open`](StoreBuilder::open) refuses a timeout of zero.
    ///
    /// If the call of a request that may wait has to queue behind other calls, its time starts when
    /// it is sent. Requests that wait for the store ([`WhileAway::Wait`]), and messages that no
    /// caller waits for, also accept later replies, as long as the server replies to other calls. A
    /// server that replies to no call for this time is away.
    pub fn timeout(self, timeout: Duration) -> StoreBuilder {
        // No clock can represent the end of a much longer one.
        StoreBuilder { timeout: timeout.min(Duration::from_secs(365 * 86_400)), ..self }
    }

    /// Sets how limiters decide while the store does not reply.
    pub fn while_away(self, while_away: WhileAway) -> StoreBuilder {
        StoreBuilder { while_away, ..self }
    }

    /// Sets the certificates of encrypted connections, for an address that begins with `rediss`.
    /// With any other address, [`open`](StoreBuilder::open) then returns an error.
    #[cfg(feature = "tls")]
    pub fn tls(self, tls: Tls) -> StoreBuilder {
        StoreBuilder { tls: Some(tls), ..self }
    }

    /// Returns what encrypts connections, if the address asks for encryption.
    fn connector(&self) -> Result<Option<Connector>, OpenError> {
        #[cfg(feature = "tls")]
        return match (wants_tls(&self.url), &self.tls) {
            (true, tls) => Connector::new(tls.as_ref().unwrap_or(&Tls::new())).map(Some),
            // Certificates imply that the connection must be encrypted.
            (false, Some(_)) => {
                Err(OpenError::Address { why: "does not begin with rediss, and certificates are set" })
            }
            (false, None) => Ok(None),
        };
        #[cfg(not(feature = "tls"))]
        return match wants_tls(&self.url) {
            true => Err(OpenError::NoTls),
            false => Ok(None),
        };
    }

    /// Sets the observer of all limiters of the store, and of the calls to it. The observer is
    /// passed neither tags nor keys. [`Events::store`] is called on the store's thread or its
    /// [runtime](StoreBuilder::on_this_runtime), or on the caller's thread if too many calls are in
    /// flight or a call ends a lease, so it must return quickly, and must not block. A call that
    /// would block the store's thread is refused at once, as [`StoreLimiter`](crate::StoreLimiter)
    /// describes.
    /// [`Statistics`](tidegate::Statistics) counts [these events](tidegate::StoreStatistics).
    ///
    /// # Examples
    ///
    /// ```
    /// use std::sync::Arc;
    /// use tidegate::Statistics;
    /// use tidegate_redis::Store;
    ///
    /// let statistics = Arc::new(Statistics::new());
    /// let store =
    ///     Store::builder("redis://127.0.0.1").observed_by(statistics.clone()).open()?;
    /// let snapshot = statistics.snapshot();
    /// assert_eq!((snapshot.degraded, snapshot.store.failed), (0, 0));
    /// # Ok::<(), tidegate_redis::OpenError>(())
    /// ```
    pub fn observed_by(self, events: Arc<dyn Events>) -> StoreBuilder {
        StoreBuilder { events: Some(events), ..self }
    }

    /// Makes the calls in tasks on the tokio runtime in which the store is
    /// [opened](StoreBuilder::open), instead of on a thread of its own.
    ///
    /// The reply to a request of this runtime then needs no hop to another thread. That hop is a
    /// quarter of the time of a request without concurrent ones. Concurrent requests share calls,
    /// and gain less. Choose this if the requests come from tasks of one runtime that lasts as long
    /// as the store. Keep the thread if other runtimes and plain threads make requests too, if
    /// calls block, or if tasks of the runtime work for long between two awaits: the runtime keeps
    /// the deadline of a call. The runtime must run, with its time and I/O drivers enabled, and
    /// without paused time. While it exists and nothing runs it, as a `current_thread` runtime
    /// outside of `block_on`, calls from elsewhere do not end, and block a thread if they block.
    ///
    /// - **A call that blocks** would wait for itself on a thread of this runtime. It is refused
    ///   there at once, as [`StoreLimiter`](crate::StoreLimiter) describes, even within
    ///   `spawn_blocking`. Other threads can make such calls. The only thread of this runtime must
    ///   not make one while it has [entered](Handle::enter) another runtime: the call is not
    ///   recognized, and waits for itself.
    /// - **When the runtime ends**, the store ends. Calls in flight are counted as
    ///   [unknown](crate::Counts::unknown). Their requests and all later ones are decided by
    ///   [`WhileAway`], except that no request waits for permits in use. No request waits for a
    ///   reply that cannot come.
    /// - **Another runtime** may use the store. Its requests hop to this runtime.
    /// - **Events** of the store are reported on threads of the runtime.
    ///
    /// A store that a [configuration](crate::LimiterConfig) opens has a thread.
    /// [`LimiterConfig::store_builder`](crate::LimiterConfig::store_builder) lets the program
    /// choose.
    ///
    /// # Examples
    ///
    /// ```
    /// use tidegate_redis::Store;
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let store = Store::builder("redis://127.0.0.1").on_this_runtime().open()?;
    /// let limiter = store.limiter("all").limit("calls", "token_bucket 100/s burst 20").build()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn on_this_runtime(self) -> StoreBuilder {
        StoreBuilder { is_on_runtime: true, ..self }
    }

    /// Opens the store. It connects at its first call.
    ///
    /// # Errors
    ///
    /// - [`OpenError::Address`] if the address is invalid, or if `tls` is set and the address asks
    ///   for no encryption;
    /// - [`OpenError::NoTls`] if it asks for encryption, and the feature `tls` is off;
    /// - [`OpenError::Certificate`] if a certificate or a key is unusable, or none is available;
    /// - [`OpenError::Prefix`] if the prefix cannot be part of a key;
    /// - [`OpenError::Timeout`] if the timeout is zero;
    /// - [`OpenError::Thread`] if no thread can be started;
    /// - [`OpenError::NoRuntime`] if [`on_this_runtime`](StoreBuilder::on_this_runtime) is set and
    ///   the caller is outside a tokio runtime.
    pub fn open(self) -> Result<Store, OpenError> {
        let address = Address::read(&self.url, self.connector()?.as_ref())?;
        let servers = Servers::at(address, crate::key::of_test(&self.prefix));
        let own = match self.is_on_runtime {
            true => Some(Handle::try_current().map_err(|_| OpenError::NoRuntime)?),
            false => None,
        };
        let (store, work) = self.parts(servers)?;
        if let Some(own) = own {
            own.spawn(work);
            _ = store.0.runtime.set(own);
            return Ok(store);
        }
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| OpenError::Thread { kind: error.kind() })?;
        _ = store.0.runtime.set(runtime.handle().clone());
        let runtime = OwnRuntime(Some(runtime));
        std::thread::Builder::new()
            .name("tidegate-redis".into())
            .spawn(move || {
                this_thread_makes_calls();
                // Waking a task costs less than waking the future of `block_on`.
                if let Some(runtime) = &runtime.0 {
                    _ = runtime.block_on(runtime.spawn(work));
                }
            })
            .map_err(|error| OpenError::Thread { kind: error.kind() })?;
        Ok(store)
    }

    /// Returns the store that configurations with these settings share in this process, and opens
    /// it if there is none. A process with several such stores would count as several processes.
    pub(crate) fn open_shared(self) -> Result<Store, OpenError> {
        // The store keeps its observer alive, so no other observer has this address while the store
        // lives.
        let observer = self.events.as_ref().map(|events| Arc::as_ptr(events).addr());
        let settings = (self.url.clone(), self.prefix.clone(), self.timeout, self.while_away, observer);
        let mut open = lock(&OF_CONFIGURATIONS);
        open.retain(|(_, store)| store.strong_count() > 0);
        let of_settings = open.iter().filter(|(of, _)| *of == settings);
        let mut stores = of_settings.filter_map(|(_, store)| store.upgrade().map(Store));
        // The thread of an open store ends only by a panic.
        if let Some(store) = stores.find(|store| !store.has_ended()) {
            return Ok(store);
        }
        drop(stores);
        let store = self.open()?;
        open.push((settings, Arc::downgrade(&store.0)));
        Ok(store)
    }

    /// Returns a store, and the future that makes its calls, for any runtime.
    pub(crate) fn parts(self, servers: Servers) -> Result<(Store, impl Future<Output = ()>), OpenError> {
        if !key::is_name(&self.prefix) {
            return Err(OpenError::Prefix { prefix: self.prefix });
        }
        if self.timeout.is_zero() {
            return Err(OpenError::Timeout);
        }
        let shared = Arc::new(Shared::new(servers, self.timeout, self.events));
        let (calls, received) = queue();
        let Self { prefix, while_away, is_on_runtime, .. } = self;
        let work = serve(received, shared.clone(), key::of_clients(&prefix));
        if matches!(while_away, WhileAway::Share | WhileAway::ShareOf(_)) {
            shared.clients.need();
        }
        let (grant_log, leases, shares) = (OnceLock::new(), Arc::default(), Shares::default());
        let (known_pauses, held_by_key) = (Arc::default(), Arc::default());
        let inner = Inner {
            #[cfg(test)]
            test: super::TestClock::default(),
            grant_log,
            calls,
            shared,
            prefix,
            while_away,
            leases,
            has_counting: AtomicBool::new(false),
            shares,
            known_pauses,
            held_by_key,
            runtime: OnceLock::new(),
            is_on_runtime,
        };
        Ok((Store(Arc::new(inner)), work))
    }
}

/// The runtime of the store's thread. It is `None` only while it is dropped. If no thread can be
/// started, the task of the caller drops it, and tokio lets no task wait for the end of a runtime.
struct OwnRuntime(Option<Runtime>);

impl Drop for OwnRuntime {
    fn drop(&mut self) {
        self.0.take().into_iter().for_each(Runtime::shutdown_background);
    }
}

impl fmt::Debug for StoreBuilder {
    /// Omits the address, which may contain a password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StoreBuilder")
            .field("prefix", &self.prefix)
            .field("timeout", &self.timeout)
            .field("while_away", &self.while_away)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: the error of a thread that could not be started was a panic in a task.
    #[tokio::test]
    async fn a_runtime_without_a_thread_may_end_in_a_task() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        drop(OwnRuntime(Some(runtime.expect("a runtime"))));
    }
}
