//! [`Scopes`]: a limiter for each host, route or bucket.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::Duration;

use http::HeaderMap;
use tidegate::{Clock, Nanos};

use super::first_panic::FirstPanic;
use super::handle::Obey;

/// Obeying limiters, one for each scope: a host, a route, or any other unit that a server limits
/// separately. Clones share them.
///
/// A scope is created when it is first requested. If there are then too many scopes, the new scope
/// and half of the others are kept: first those with calls in flight or waiting, then those that a
/// server paused, then the most recently requested. A forgotten scope gets a new limiter when it is
/// next requested, and its earlier handles use that limiter from then on.
///
/// # Buckets
///
/// Some servers report the bucket that counts a route, and several routes can share a bucket. With
/// [`by_bucket`](Scopes::by_bucket), a route begins with its own limiter. When a response reports
/// the route's bucket, the route moves to the limiter that the bucket already has. If the bucket is
/// new, the route's limiter becomes the limiter of the bucket; if that limiter is already the one
/// of another bucket, the new bucket gets a limiter of its own. A call that is waiting at the
/// route's old limiter gets its permits there, and then waits its turn at the limiter of the
/// bucket. So it obeys what the server reports about the bucket. A call that is in flight when its
/// route moves counts at the bucket only from its response on. So when a route moves, the server
/// may refuse as many calls as the route has in flight.
///
/// # Examples
///
/// A limit for each host:
///
/// ```
/// use tidegate::{Rate, RateLimiter, TokenBucket};
/// use tidegate_http::obey::{Obey, Scopes};
///
/// let hosts = Scopes::new(1000, |_host| {
///     Obey::new(RateLimiter::new(TokenBucket::new(Rate::per_second(10), 10)))
/// });
/// let call = hosts.of("api.example").try_acquire()?;
/// # drop(call);
/// # Ok::<(), tidegate::AllRefusal>(())
/// ```
///
/// Discord's buckets, which count each channel separately:
///
/// ```
/// use http::HeaderMap;
/// use tidegate::{Rate, RateLimiter, TokenBucket};
/// use tidegate_http::obey::{Obey, Scopes};
///
/// fn limiter(_route: &str) -> Obey {
///     Obey::new(RateLimiter::new(TokenBucket::new(Rate::per_second(50), 50)))
/// }
///
/// let routes = Scopes::new(10_000, limiter).by_bucket(|route, headers| {
///     let bucket = headers.get("x-ratelimit-bucket")?.to_str().ok()?;
///     // "POST /channels/7/messages"
///     let channel = route.split('/').nth(2)?;
///     Some(format!("{bucket} {channel}"))
/// });
/// let call = routes.of("POST /channels/7/messages").try_acquire()?;
/// # drop(call);
/// # Ok::<(), tidegate::AllRefusal>(())
/// ```
#[derive(Clone)]
pub struct Scopes {
    shared: Arc<Shared>,
}

struct Shared {
    most: usize,
    make: Arc<dyn Fn(&str) -> Obey + Send + Sync>,
    bucket: Option<Arc<Buckets>>,
    /// The clock of the first scope that got a refusal for all scopes. The clocks of the scopes
    /// count from different times, so this one clock measures the pauses of all scopes.
    clock: OnceLock<Arc<dyn Clock>>,
    state: Mutex<State>,
}

type Buckets = dyn Fn(&str, &HeaderMap) -> Option<String> + Send + Sync;

#[derive(Default)]
struct State {
    scopes: HashMap<String, Scope>,
    /// The limiters of the server's buckets.
    buckets: HashMap<String, Scope>,
    /// The ids of these limiters.
    of_buckets: HashSet<usize>,
    /// The number of requests for a scope so far.
    asked: u64,
    /// The end of the server's last pause of all calls.
    paused: Nanos,
}

#[derive(Clone)]
struct Scope {
    obey: Obey,
    asked: u64,
}

/// The scope for which an [`Obey`] was requested.
#[derive(Clone)]
pub(super) struct ScopeRef {
    scopes: Weak<Shared>,
    route: Arc<str>,
}

impl Scopes {
    /// Creates an empty set of at most `most` scopes; `make` creates the limiter of each scope.
    /// With [buckets](Scopes#buckets) it also creates the limiter of a new bucket, from the name of
    /// a route. The limiters of routes that can share a bucket must have the same members in the
    /// same order, because calls move from one limiter to another.
    #[must_use]
    pub fn new(most: usize, make: impl Fn(&str) -> Obey + Send + Sync + 'static) -> Self {
        Self::with(most, Arc::new(make), None)
    }

    /// Sets the function that returns the bucket of a route, from the headers of a response to one
    /// of the route's calls. For a gRPC call, it is called again with the trailers. `None` leaves
    /// the route where it is. See [above](Scopes#buckets). Scopes created before are forgotten.
    #[must_use]
    pub fn by_bucket(
        self,
        bucket: impl Fn(&str, &HeaderMap) -> Option<String> + Send + Sync + 'static,
    ) -> Self {
        Self::with(self.shared.most, self.shared.make.clone(), Some(Arc::new(bucket)))
    }

    fn with(
        most: usize,
        make: Arc<dyn Fn(&str) -> Obey + Send + Sync>,
        bucket: Option<Arc<Buckets>>,
    ) -> Self {
        let (most, clock, state) = (most.max(1), OnceLock::new(), Mutex::default());
        Self { shared: Arc::new(Shared { most, make, bucket, clock, state }) }
    }

    /// Returns the limiter of this scope.
    #[must_use]
    pub fn of(&self, scope: &str) -> Obey {
        let found = self.shared.find(scope).unwrap_or_else(|| {
            // Without the lock, because `make` is user code.
            let new = (self.shared.make)(scope);
            self.shared.insert(scope, new)
        });
        found.with_scope_ref(ScopeRef { scopes: Arc::downgrade(&self.shared), route: scope.into() })
    }

    /// Returns the number of scopes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.shared.state().scopes.len()
    }

    /// Returns whether there are no scopes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        // No user code runs under the lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn find(&self, scope: &str) -> Option<Obey> {
        let mut state = self.state();
        state.asked += 1;
        let asked = state.asked;
        let found = state.scopes.get_mut(scope)?;
        found.asked = asked;
        Some(found.obey.clone())
    }

    /// Adds a scope, unless another thread has added it meanwhile.
    fn insert(&self, scope: &str, new: Obey) -> Obey {
        let mut state = self.state();
        if let Some(found) = state.scopes.get(scope) {
            return found.obey.clone();
        }
        let (obey, asked) = (new.clone(), state.asked);
        state.scopes.insert(scope.to_owned(), Scope { obey: new, asked });
        let until = state.paused;
        drop(state);
        if let Some(clock) = self.clock.get() {
            obey.pause_until(Some(until), clock.now());
        }
        self.forget_idle(scope, |state| &mut state.scopes);
        obey
    }

    /// Moves a route to the limiter of its bucket, and returns that limiter. Returns `None` if
    /// `make` panics.
    fn move_to(&self, route: &str, bucket: &str, from: &Obey, panic: &mut FirstPanic) -> Option<Obey> {
        let (mut made, mut state) = (None, self.state());
        if state.needs_limiter(bucket, from) {
            drop(state);
            // Without the lock, because `make` is user code.
            made = Some(panic.catch(|| (self.make)(route))?);
            state = self.state();
        }
        let (asked, until) = (state.asked, state.paused);
        let is_new = !state.buckets.contains_key(bucket);
        if is_new {
            let obey = made.take().unwrap_or_else(|| from.clone().without_scope_ref());
            state.of_buckets.insert(obey.id());
            state.buckets.insert(bucket.to_owned(), Scope { obey, asked });
        }
        let known = state.buckets.get_mut(bucket)?;
        known.asked = asked;
        let to = known.obey.clone();
        let left = state.scopes.get_mut(route).map(|scope| std::mem::replace(&mut scope.obey, to.clone()));
        drop(state);
        // A pause of all scopes has reached a limiter that a route or a bucket had.
        let was_here = left.is_some_and(|left| left.is_same(&to));
        if let Some(clock) = self.clock.get().filter(|_| is_new && !was_here) {
            panic.catch(|| to.pause_until(Some(until), clock.now()));
        }
        panic.catch(|| self.forget_idle(bucket, |state| &mut state.buckets));
        Some(to)
    }

    /// Forgets half of these scopes, besides the one with the name `added`, if there are more than
    /// `most`. So this is rare, and its cost is small when spread over all added scopes.
    fn forget_idle(&self, added: &str, of: impl Fn(&mut State) -> &mut HashMap<String, Scope>) {
        let mut ranked: Vec<_> = {
            let mut state = self.state();
            let scopes = of(&mut state);
            if scopes.len() <= self.most {
                return;
            }
            let others = scopes.iter().filter(|(name, _)| *name != added);
            others.map(|(name, scope)| (Rank::default(), name.clone(), scope.clone())).collect()
        };
        // Without the lock, because a clock is user code.
        for (rank, _, scope) in &mut ranked {
            *rank = (scope.obey.is_busy(), scope.obey.is_paused(), scope.asked);
        }
        let kept = self.most / 2;
        ranked.select_nth_unstable_by_key(kept, |(rank, ..)| std::cmp::Reverse(*rank));
        let mut state = self.state();
        let scopes = of(&mut state);
        let forgotten = ranked[kept..].iter().filter_map(|(_, name, ranked)| {
            let found = scopes.get(name)?;
            let is_as_ranked = found.asked == ranked.asked && found.obey.is_same(&ranked.obey);
            is_as_ranked.then(|| scopes.remove(name))
        });
        let forgotten: Vec<_> = forgotten.collect();
        state.of_buckets = state.buckets.values().map(|bucket| bucket.obey.id()).collect();
        drop(state);
        // Without the lock, because a limiter may run user code when it is dropped.
        drop((forgotten, ranked));
    }

    /// Pauses all scopes but this one, which was asked to pause already.
    fn pause_others(&self, own: &Obey, clock: &Arc<dyn Clock>, wait: Duration, panic: &mut FirstPanic) {
        let now = panic.catch(|| self.clock.get_or_init(|| clock.clone()).now());
        let mut state = self.state();
        if let Some(now) = now {
            state.paused = state.paused.max(now.saturating_add(wait.into()));
        }
        // The routes of a bucket may have been forgotten, and several routes can share a limiter.
        let all = state.scopes.values().chain(state.buckets.values());
        let all: Vec<Obey> = all.map(|scope| scope.obey.clone()).collect();
        drop(state);
        let mut paused = HashSet::from([own.id()]);
        for obey in all.into_iter().filter(|obey| paused.insert(obey.id())) {
            // A key without room for a pause has no permits either.
            panic.catch(|| _ = obey.pause_for(wait));
        }
    }
}

impl State {
    /// Returns whether a bucket is unknown, and the limiter of its route is that of another bucket.
    fn needs_limiter(&self, bucket: &str, from: &Obey) -> bool {
        !self.buckets.contains_key(bucket) && self.of_buckets.contains(&from.id())
    }
}

impl ScopeRef {
    /// Returns the limiter of the bucket that a response reports, or `None` if that is `from`.
    pub(super) fn bucket(&self, headers: &HeaderMap, from: &Obey, panic: &mut FirstPanic) -> Option<Obey> {
        let scopes = self.scopes.upgrade()?;
        let bucket_of = scopes.bucket.as_ref()?;
        let bucket = panic.catch(|| bucket_of(&self.route, headers))??;
        let to = scopes.move_to(&self.route, &bucket, from, panic)?;
        (!to.is_same(from)).then(|| to.with_scope_ref(self.clone()))
    }

    /// Returns the limiter of the route, if it is no longer `from`.
    pub(super) fn moved(&self, from: &Obey) -> Option<Obey> {
        let scopes = self.scopes.upgrade()?;
        let state = scopes.state();
        let to = state.scopes.get(&*self.route).filter(|scope| !scope.obey.is_same(from))?;
        Some(to.obey.clone().with_scope_ref(self.clone()))
    }

    /// Pauses all scopes but this one, which was asked to pause already.
    pub(super) fn pause_others(
        &self,
        own: &Obey,
        clock: &Arc<dyn Clock>,
        wait: Duration,
        panic: &mut FirstPanic,
    ) {
        if let Some(scopes) = self.scopes.upgrade() {
            scopes.pause_others(own, clock, wait, panic);
        }
    }
}

/// The priority for keeping a scope: whether it has calls in flight or waiting, whether it pauses,
/// and when it was last requested.
type Rank = (bool, bool, u64);

impl fmt::Debug for Scopes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scopes")
            .field("most", &self.shared.most)
            .field("len", &self.len())
            .finish_non_exhaustive()
    }
}
