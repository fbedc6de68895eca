//! The table of keys. It finds, adds and forgets keys, and gives a key its own limiter when one is
//! needed.
//!
//! # States of a key
//!
//! | state | cost | next state |
//! |---|---|---|
//! | unknown: not in the table | nothing | known, by its first request |
//! | known: a state in the table | the state and the key | with a key limiter, when a request must wait or a caller asks for the key's limiter; unknown, when its state is fresh |
//! | with a key limiter, instead of the state | a limiter | known or unknown again, when no request waits, no caller holds the limiter, and nothing was set for this key |
//!
//! A state is *fresh* when a new key would get no more permits ([`Policy::is_fresh`]); the public
//! documentation calls such a key idle. `keyed/forget.rs` describes the way back: when a key is
//! forgotten, and when a key limiter becomes a known key again.
//!
//! The policy state itself moves from the table into the key limiter and back. So a key has exactly
//! one state at any time, and a caller that holds a key limiter does not access the table.
//!
//! # Locks
//!
//! The table is divided into shards by the hash of the key. Each shard has its own reader-writer
//! lock.
//!
//! | operation | lock | why |
//! |---|---|---|
//! | take from a known state | shared, until the state is written | the state is not moved or forgotten meanwhile |
//! | find a key limiter | shared, released before the key limiter is used | the key limiter lives while any handle to it exists |
//! | add a key, forget a key, create a key limiter, settle a key limiter | exclusive | no request takes from the state meanwhile |
//! | change the policy of all keys | exclusive, one shard after the other | a state and its policy change together |
//!
//! **Forgetting neither loses nor doubles a permit.** A key is judged fresh and forgotten in one
//! exclusive section. A grant before that section is part of the state that is judged. A request
//! after that section does not find the key and adds it again, with a fresh state like the
//! forgotten one.
//!
//! **Two first requests for a key.** The second request checks again under the exclusive lock, and
//! finds the key.
//!
//! **No request overtakes a waiter.** A waiter's key limiter is in the table before the waiter's
//! first poll returns. A request that begins later takes the shard's lock later, finds the key
//! limiter, and waits behind the waiter: the limiter promises that order.
//!
//! **A state is read by its own policy.** Each shard has the policy of its keys, and a request
//! reads state and policy under one shared lock. `keyed/change.rs` describes how both change
//! together.
//!
//! **The number of keys is bounded.** The count is raised before a key is added and lowered after
//! one is removed, so the table never holds more keys than `max_keys`.
//!
//! **Readers do not contend.** The lock is crossbeam's `ShardedLock`: a reader writes only to a
//! cache line of its own thread. `docs/DESIGN.md` compares it with other maps.
//!
//! **User code.** The table calls the code of its keys, its policy, its clock and its observer.
//!
//! | code | runs under a lock | if it panics |
//! |---|---|---|
//! | `Hash` of a request's key, `Clone` of a new key, the function that returns plans | no | nothing has changed |
//! | `Drop` of a key, a state, a limiter | no: `keyed/removed.rs` | the other entries are dropped, then the panic resumes |
//! | `Eq` of keys; `Clone` of keys by `iter` and `replan` | of a shard | nothing has changed |
//! | `Hash` of the known keys, when their table grows | of a shard, exclusive | nothing has changed: `keyed/slots.rs` |
//! | policies, clocks | of a shard | a key that was not added is not counted |
//! | wakers, timers, observers | no | the panic resumes |
//!
//! So each entry in a table is counted exactly once: the count is raised just before an entry is
//! inserted, and lowered as soon as the entry is removed. User code that runs in between is covered
//! by the guard [`Counted`].
//!
//! A key limiter's lock is taken while a shard is locked, never the other way round.
//!
//! **Checked by** `loom-tests/keyed.rs`, with twins that judge and forget in two sections, that do
//! not check again under the exclusive lock, or that leave a copy of the state in the table.

use std::hash::{BuildHasher, Hash};
use std::sync::Arc;
use std::time::Duration;

use super::WhenKeysFull;
use super::events::KeyedObserver;
use super::hashes::Hashes;
use super::key_limiters::{KeyLimiter, LimiterGuard};
use super::key_ref::{KeyRef, Matches};
use super::pause::Hold;
use super::plan::{NewKey, Plans};
use super::removed::Removed;
use super::shard::{Locked, Shard};
use super::slots::most_kept;
use crate::clock::{Clock, Timer};
use crate::error::Refusal;
use crate::grant::Grant;
use crate::limiter::RateLimiter;
use crate::limiter::events::{Events, report};
use crate::line::all_waiters::AllWaiters;
use crate::line::rule::TakeLimit;
use crate::policy::part::take_all;
use crate::policy::{Policy, PolicyStatus};
use crate::request::Request;
use crate::status::Status;
use crate::sync::{AtomicBool, AtomicUsize, MAX_RETRIES, Mutex, Ordering, ShardLock, read, write};
use crate::time::Nanos;

/// The minimum number of slots of a full shard. A table of this size grows without blocking
/// requests for long.
const SLOTS: usize = 4096;

/// The maximum number of shards. More locks would not fit in the processor's nearest cache; fewer,
/// larger shards take longer to grow.
const MAX_SHARDS: usize = 64;

/// How many slots are searched for a fresh key when there is no room.
pub(super) const SEARCH: usize = 64;

/// A table for at most this many keys is searched completely: a part with so few slots may by
/// chance hold no fresh key.
pub(super) const SMALL: usize = 8 * SEARCH;

/// How many times a request makes room before it gives up, if other requests take that room each
/// time.
const TRIES: usize = 8;

/// The flag in the count of keys: the table is closed.
pub(crate) const CLOSED: usize = 1 << (usize::BITS - 1);

/// The keys of one limiter.
pub(crate) struct Table<K, P: Policy + Clone, C: Timer> {
    pub(crate) clock: C,
    pub(super) hasher: Hashes,
    pub(crate) shards: Box<[Locked<K, P, C>]>,
    /// The number of keys, including keys that are being added, and the flag [`CLOSED`].
    pub(crate) count: AtomicUsize,
    pub(crate) max_keys: usize,
    pub(crate) when_full: WhenKeysFull,
    /// The maximum number of slots that a new key without room searches.
    pub(super) search: usize,
    /// The number of searches for room so far. Each search starts at another slot.
    pub(super) search_count: AtomicUsize,
    /// The number of searches in vain since a search found room.
    pub(super) in_vain: AtomicUsize,
    /// The limiter that all keys without room share, with `ShareOne`.
    pub(super) overflow: KeyLimiter<P, C>,
    /// Held while all keys change or are paused, so that each shard goes through all changes in one
    /// order.
    pub(super) changing: Mutex<()>,
    /// The observer of all calls, if there is one.
    pub(crate) events: Option<KeyedObserver<K>>,
    /// The requests that wait for any key.
    pub(crate) all_waiters: Arc<AllWaiters>,
    /// Whether all keys are in shadow mode.
    pub(crate) shadow: AtomicBool,
    /// The function that returns plans, if keys have plans.
    pub(super) plans: Option<Plans<K, P>>,
}

/// Returns the number of shards for a number of keys.
///
/// When all `max_keys` keys are present, each table is as full as it can be without doubling, minus
/// a margin for chance. Hashes spread the keys over the tables with a standard deviation of at most
/// the square root of the slots. So no table doubles for the last few keys, or while other keys
/// take their slots.
fn shards(max_keys: usize) -> usize {
    let keys = |slots: usize| most_kept(slots).map(|most| most - 8 * slots.isqrt());
    let with = |slots: usize| max_keys.div_ceil(keys(slots).unwrap_or(1));
    let slots = std::iter::successors(Some(SLOTS), |slots| slots.checked_mul(2));
    let shards = slots.map(with).find(|shards| *shards <= MAX_SHARDS).unwrap_or(MAX_SHARDS);
    let few = (max_keys / SEARCH).min(16);
    shards.max(few).max(1)
}

/// Where a key is.
pub(crate) enum Found<T, L> {
    /// The key is known, and its state was used.
    Known(T),
    /// The key has a key limiter, or shares the limiter of all keys without room.
    Limiter(L),
    /// The key is not in the table.
    Unknown,
}

/// The decision on a request, or the key limiter that must decide. A known key without a decision
/// needs a key limiter.
type Decision<P, C> = Found<Option<Result<Grant, Refusal>>, RateLimiter<P, C>>;

/// The grant of a request, or the key limiter at which the request waits.
pub(crate) enum Attempt<L> {
    Granted(Grant),
    Limiter(L),
}

/// A key, and its status or the key limiter that has its status.
type Snapshot<K, P, C> = (K, Found<Status, RateLimiter<P, C>>);

/// How far a request for a slot got under the lock.
pub(super) enum Step<T> {
    Done(T),
    /// The request needs an owned key, or its plan may be outdated. The key is cloned, and gets its
    /// plan, without the lock.
    Key,
    /// The table is full.
    Room,
}

impl<K, P: Policy + Clone, C: Timer> Table<K, P, C> {
    /// Returns the number of keys.
    pub(crate) fn len(&self) -> usize {
        // Relaxed: a snapshot. `count_one` decides by CAS whether a key may be added.
        self.count.load(Ordering::Relaxed) & !CLOSED
    }

    /// Returns the policy of all keys that do not have their own. During a change, this is the
    /// policy of the first shard.
    pub(crate) fn policy(&self) -> P {
        P::clone(&read(&self.shards[0]).policy)
    }
}

impl<K, P, C> Table<K, P, C>
where
    K: Hash + Eq,
    P: Policy + Clone,
    C: Timer + Clone,
{
    pub(crate) fn new(policy: P, max_keys: usize, when_full: WhenKeysFull, clock: C) -> Self {
        Table::with_shards(policy, max_keys, when_full, clock, shards(max_keys), (None, None))
    }

    /// Creates a table with an observer of all calls, and a function that gives plans to keys.
    pub(crate) fn with_shards(
        policy: P,
        max_keys: usize,
        when_full: WhenKeysFull,
        clock: C,
        shards: usize,
        (events, plans): (Option<KeyedObserver<K>>, Option<Plans<K, P>>),
    ) -> Self {
        // All shards share one policy until a change gives each shard its own.
        let policy = Arc::new(policy.with_epoch(clock.unix_time_at_zero()));
        let state = policy.start(clock.now());
        let all_waiters = Arc::new(AllWaiters::new());
        // The overflow limiter has no key to report.
        let all = events.as_ref().and_then(KeyedObserver::all).cloned();
        let overflow =
            RateLimiter::with_state(P::clone(&policy), state, clock.clone(), all, all_waiters.clone());
        let shard = match plans {
            Some(_) => Shard::with_plans,
            None => Shard::new,
        };
        Table {
            clock,
            hasher: Hashes::default(),
            shards: (0..shards).map(|_| Locked(ShardLock::new(shard(policy.clone())))).collect(),
            count: AtomicUsize::new(0),
            max_keys,
            when_full,
            search: if max_keys <= SMALL { usize::MAX } else { SEARCH },
            search_count: AtomicUsize::new(0),
            in_vain: AtomicUsize::new(0),
            overflow: KeyLimiter { limiter: overflow, terms: None },
            changing: Mutex::new(()),
            events,
            all_waiters,
            shadow: AtomicBool::new(false),
            plans,
        }
    }

    pub(crate) fn hash_of<Q: Hash + ?Sized>(&self, key: &Q) -> u64 {
        self.hasher.hash_one(key)
    }

    /// Returns the shard of a hash. hashbrown uses the lowest bits for slots and the highest seven
    /// for tags, so this uses bits in between.
    #[inline]
    pub(super) fn shard(&self, hash: u64) -> &Locked<K, P, C> {
        let middle = (hash >> 20) & u64::from(u32::MAX);
        // Truncation is harmless: the index is below the number of shards.
        #[allow(clippy::cast_possible_truncation)]
        let index = ((middle * self.shards.len() as u64) >> 32) as usize;
        &self.shards[index]
    }

    /// Takes what a request asks for from a key.
    #[inline]
    pub(crate) fn try_acquire<Q: KeyRef<K> + ?Sized>(
        &self,
        key: &Q,
        request: &Request,
    ) -> Result<Grant, Refusal> {
        let (hash, n) = (self.hash_of(key), request.permits);
        if request.exempt {
            return self.pass_exempt(hash, key, request);
        }
        match self.try_known(hash, key, request) {
            Some(Ok(grant)) if self.events.is_none() => Ok(grant),
            Some(Err(refusal)) if self.events.is_none() && !self.is_shadow() => Err(refusal),
            Some(answer) => self.report_or_pass(key, n, answer),
            None => self.try_slow(hash, key, request),
        }
    }

    /// Takes what a request asks for if the key is known and has no key limiter. Reports nothing.
    #[inline]
    fn try_known<Q: Matches<K> + ?Sized>(
        &self,
        hash: u64,
        key: &Q,
        request: &Request,
    ) -> Option<Result<Grant, Refusal>> {
        // The clock is read before the lock, so that the processor overlaps both.
        let now = self.clock.now();
        let shard = read(self.shard(hash));
        // A key is known or has a key limiter, and never both.
        match shard.known.find(hash, key) {
            Some(state) => Some(take(&*shard.policy, state, (now, &self.clock), request)),
            None => try_planned(&shard, hash, key, (now, &self.clock), request),
        }
    }

    /// Takes what a request asks for if the key is new or its shard has key limiters.
    #[cold]
    fn try_slow<Q: KeyRef<K> + ?Sized>(
        &self,
        hash: u64,
        key: &Q,
        request: &Request,
    ) -> Result<Grant, Refusal> {
        match self.attempt(hash, key, request) {
            Ok(Attempt::Limiter(limiter)) => limiter.try_acquire_many(*request),
            Ok(Attempt::Granted(grant)) => self.report_or_pass(key, request.permits, Ok(grant)),
            Err(refusal) => self.report_or_pass(key, request.permits, Err(refusal)),
        }
    }

    /// Takes what a request asks for from a key, or returns the key limiter to wait in.
    pub(crate) fn take_or_limiter<Q: KeyRef<K> + ?Sized>(
        &self,
        key: &Q,
        request: &Request,
    ) -> Result<Attempt<LimiterGuard<'_, K, P, C>>, Refusal> {
        let (hash, n) = (self.hash_of(key), request.permits);
        if request.exempt {
            return self.pass_exempt(hash, key, request).map(Attempt::Granted);
        }
        let answer = match self.try_known(hash, key, request) {
            Some(answer) => answer.map(Attempt::Granted),
            None => self.attempt(hash, key, request),
        };
        match answer {
            Ok(Attempt::Limiter(limiter)) => Ok(Attempt::Limiter(limiter)),
            // This refusal is not reported: the key limiter reports when the request is granted or
            // refused.
            Err(Refusal::Limited { .. } | Refusal::Paused { .. }) if !self.is_shadow() => {
                self.limiter_for(key, n).map(Attempt::Limiter)
            }
            Ok(Attempt::Granted(grant)) => self.report_or_pass(key, n, Ok(grant)).map(Attempt::Granted),
            Err(refusal) => self.report_or_pass(key, n, Err(refusal)).map(Attempt::Granted),
        }
    }

    /// Lets an exempt request pass. It takes no permits, so a new key stays unknown.
    #[cold]
    fn pass_exempt<Q: KeyRef<K> + ?Sized>(
        &self,
        hash: u64,
        key: &Q,
        request: &Request,
    ) -> Result<Grant, Refusal> {
        if let Found::Limiter(limiter) = self.find_hashed(hash, key, |_, _, _| ()) {
            return self.guard_limiter(hash, limiter).try_acquire_many(*request);
        }
        self.report(key, |events| events.exempted(request.permits.into()));
        Ok(Grant::at_once(0))
    }

    /// Reports a request for at least `n` permits that was decided without a key limiter. In shadow
    /// mode, lets the request pass.
    #[cold]
    fn report_or_pass<Q: KeyRef<K> + ?Sized>(
        &self,
        key: &Q,
        n: u32,
        answer: Result<Grant, Refusal>,
    ) -> Result<Grant, Refusal> {
        match answer {
            Err(refusal) if self.passes(refusal) => {
                self.report(key, |events| events.shadowed(n.into(), &refusal));
                Ok(Grant::at_once(0))
            }
            answer => self.report_end(key, answer.map_or(n, Grant::permits), answer),
        }
    }

    /// Reports a request that was decided without a key limiter. A key limiter reports its own
    /// requests.
    #[cold]
    pub(super) fn report_end<Q: KeyRef<K> + ?Sized, T>(
        &self,
        key: &Q,
        n: u32,
        answer: Result<T, Refusal>,
    ) -> Result<T, Refusal> {
        self.report(key, |events| match &answer {
            Ok(_) => events.granted(n.into(), Duration::ZERO),
            Err(refusal) => events.refused(n.into(), refusal),
        });
        answer
    }

    /// Reports a call for `n` permits that a token cancelled before it began.
    #[cold]
    pub(crate) fn report_cancelled<Q: KeyRef<K> + ?Sized>(&self, key: &Q, n: u32) {
        let tell = |events: &dyn Events| events.cancelled(n.into(), Duration::ZERO);
        match self.find(key, |_, _, _| ()) {
            Found::Limiter(limiter) => limiter.shared.report(tell),
            Found::Known(()) | Found::Unknown => self.report(key, tell),
        }
    }

    /// Returns the observer of all keys that does not receive the key.
    pub(super) fn observer_of_all(&self) -> Option<&Arc<dyn Events>> {
        self.events.as_ref().and_then(KeyedObserver::all)
    }

    /// Reports an event to the observer, if there is one. The caller holds no lock of a shard.
    fn report<Q: KeyRef<K> + ?Sized>(&self, key: &Q, event: impl FnOnce(&dyn Events)) {
        if let Some(observer) = &self.events {
            report(&*observer.of(key), event);
        }
    }

    /// Returns whether new keys share a limiter unless room can be made.
    pub(super) fn may_share(&self) -> bool {
        self.when_full == WhenKeysFull::ShareOne && !self.has_room()
    }

    /// Returns the limiter of the keys without room, if those keys share one and a new key would
    /// find no room.
    pub(crate) fn shared(&self) -> Option<&RateLimiter<P, C>> {
        (self.may_share() && !self.can_make_room(self.clock.now())).then_some(&self.overflow.limiter)
    }

    /// Returns the limiter that decides about a new key without room, or the refusal of the key;
    /// `None` if the key has or finds room, or can replace another key. Forgets only idle keys.
    pub(crate) fn instead_of_new(&self) -> Option<Result<&RateLimiter<P, C>, Refusal>> {
        let can_evict = || self.when_full == WhenKeysFull::EvictLeastUsed && self.has_known_key();
        // The search for room may make known keys of idle key limiters.
        if self.has_room() || can_evict() || self.has_or_finds_room() || can_evict() {
            return None;
        }
        let shares = self.when_full == WhenKeysFull::ShareOne;
        Some(if shares { Ok(&self.overflow.limiter) } else { Err(self.no_room()) })
    }

    /// Takes what a request asks for from a key that may be new, or returns the key limiter that
    /// must decide. Reports nothing.
    pub(crate) fn attempt<Q: KeyRef<K> + ?Sized>(
        &self,
        hash: u64,
        key: &Q,
        request: &Request,
    ) -> Result<Attempt<LimiterGuard<'_, K, P, C>>, Refusal> {
        let decide = |policy: &P, state: &P::State, hold: Option<&Hold>| match hold {
            None => Some(take(policy, state, (self.clock.now(), &self.clock), request)),
            Some(hold) => hold.refuse(policy, state, self.clock.now(), request.permits).err().map(Err),
        };
        let found = match self.find_hashed(hash, key, decide) {
            Found::Unknown => self.add(hash, key, request)?,
            found => found,
        };
        match found {
            Found::Known(Some(answer)) => answer.map(Attempt::Granted),
            Found::Limiter(limiter) => Ok(Attempt::Limiter(self.guard_limiter(hash, limiter))),
            // After a pause, the grants of this key are spaced, and only its limiter does that.
            Found::Known(None) | Found::Unknown => {
                Ok(Attempt::Limiter(self.guard_limiter(hash, self.limiter(key)?)))
            }
        }
    }

    /// Finds a key. If the key is known, runs `work` on its state, with the pause of all keys.
    pub(crate) fn find<Q: Matches<K> + Hash + ?Sized, T>(
        &self,
        key: &Q,
        work: impl FnOnce(&P, &P::State, Option<&Hold>) -> T,
    ) -> Found<T, RateLimiter<P, C>> {
        self.find_hashed(self.hash_of(key), key, work)
    }

    pub(crate) fn find_hashed<Q: Matches<K> + ?Sized, T>(
        &self,
        hash: u64,
        key: &Q,
        work: impl FnOnce(&P, &P::State, Option<&Hold>) -> T,
    ) -> Found<T, RateLimiter<P, C>> {
        let shard = self.read_current(hash);
        if let Some(limiter) = shard.limiter(hash, key) {
            return Found::Limiter(limiter.clone());
        }
        match shard.entries().find(hash, key) {
            Some((policy, state)) => Found::Known(work(policy, state, shard.hold())),
            None => Found::Unknown,
        }
    }

    /// Returns the status of a key. An unknown key has the status of a new key, or of the shared
    /// limiter.
    pub(crate) fn status<Q: KeyRef<K> + ?Sized>(&self, key: &Q) -> Status {
        let hash = self.hash_of(key);
        let status =
            |policy: &P, state: &P::State, hold: Option<&Hold>| status(policy, state, hold, self.clock.now());
        match self.find_hashed(hash, key, status) {
            Found::Known(status) => status,
            Found::Limiter(limiter) => limiter.status(),
            Found::Unknown if self.is_closed() => {
                Status::new(PolicyStatus::NOTHING, self.policy().rate(), Nanos::ZERO)
                    .paused_for(Duration::MAX)
            }
            Found::Unknown => match self.shared() {
                Some(shared) => shared.status(),
                None => self.unknown(key, status),
            },
        }
    }

    /// Runs `work` with the policy and the state that a key would have if it were added now.
    pub(crate) fn unknown<Q: KeyRef<K> + ?Sized, T>(
        &self,
        key: &Q,
        work: impl FnOnce(&P, &P::State, Option<&Hold>) -> T,
    ) -> T {
        let terms = self.terms_of_unknown(key);
        let (shard, now) = (self.read_current(self.hash_of(key)), self.clock.now());
        let policy = shard.policy_of(&terms);
        match shard.hold_of_new(policy, now) {
            Some(hold) => work(policy, &shard.start(policy, hold.begin), Some(&hold)),
            None => work(policy, &shard.start(policy, now), None),
        }
    }

    /// Adds a key, unless another request has added it meanwhile, and takes what the request asks
    /// for.
    fn add<Q: KeyRef<K> + ?Sized>(
        &self,
        hash: u64,
        key: &Q,
        request: &Request,
    ) -> Result<Decision<P, C>, Refusal> {
        let new = self.has_room().then(|| self.new_key(hash, key));
        let added = self.with_room(hash, key, new, |shard, now, new, removed| {
            if let Some(limiter) = shard.limiter(hash, key) {
                return Step::Done(Found::Limiter(limiter.clone()));
            }
            if shard.hold().is_none()
                && let Some((policy, state)) = shard.entries().find(hash, key)
            {
                let answer = take(policy, state, (self.clock.now(), &self.clock), request);
                return Step::Done(Found::Known(Some(answer)));
            }
            // A request that can never be granted adds no key. A plan is checked below, because a
            // key without room gets no plan. A limiter that keys share has its own terms.
            if self.plans.is_none()
                && !self.may_share()
                && let Err(never) = shard.policy.check(request.permits)
            {
                return Step::Done(Found::Known(Some(Err(never))));
            }
            // No key in use makes room for a key that is not added, as in a pause.
            if self.when_full == WhenKeysFull::EvictLeastUsed
                && self.plans.is_none()
                && !self.is_closed()
                && let Some(Err(refusal)) = answer_of_hold(shard, &shard.policy, now, request.permits)
            {
                return Step::Done(Found::Known(Some(Err(refusal))));
            }
            self.forget_some(shard, hash, now, removed);
            let Some(counted) = self.count_one() else { return Step::Room };
            let Some(found) = new.take_if(|new| !new.is_outdated(shard)) else { return Step::Key };
            let policy = shard.policy_of(&found.terms);
            if let Err(never) = policy.check(request.permits) {
                *new = Some(found);
                return Step::Done(Found::Known(Some(Err(never))));
            }
            if let Some(answer) = answer_of_hold(shard, policy, now, request.permits) {
                *new = Some(found);
                return Step::Done(Found::Known(answer.err().map(Err)));
            }
            let state = shard.start(policy, now);
            let answer = take(policy, &state, (self.clock.now(), &self.clock), request);
            let mut entries = shard.entries_mut();
            entries.reserve(|known| self.hash_of(known));
            // From here on nothing can panic, so the key is counted exactly if it is inserted.
            entries.insert(hash, found.into_entry(state));
            counted.keep();
            Step::Done(Found::Known(Some(answer)))
        });
        self.or_shared(added, Found::Limiter)
    }

    /// Returns what was found. A key without room gets the shared limiter, with `ShareOne`.
    pub(super) fn or_shared<T>(
        &self,
        found: Result<T, Refusal>,
        shared: fn(RateLimiter<P, C>) -> T,
    ) -> Result<T, Refusal> {
        found.or_else(|refusal| match self.when_full {
            WhenKeysFull::ShareOne => Ok(shared(self.overflow.limiter.clone())),
            WhenKeysFull::RefuseNew | WhenKeysFull::EvictLeastUsed => Err(refusal),
        })
    }

    /// Runs `work` under the exclusive lock of a shard. If `work` needs a slot, makes room and runs
    /// `work` again, until it succeeds or no room can be made. If `work` needs an owned key, clones
    /// the key and gets its plan without the lock.
    pub(super) fn with_room<Q: KeyRef<K> + ?Sized, T>(
        &self,
        hash: u64,
        key: &Q,
        mut new: Option<NewKey<K, P>>,
        mut work: impl FnMut(
            &mut Shard<K, P, C>,
            Nanos,
            &mut Option<NewKey<K, P>>,
            &mut Removed<K, P, C>,
        ) -> Step<T>,
    ) -> Result<T, Refusal> {
        let mut removed = Removed::new();
        let mut tries = 0;
        while tries < TRIES {
            let now = self.clock.now();
            // This read ends a pause that is over.
            drop(self.read_current(hash));
            let step = work(&mut write(self.shard(hash)), now, &mut new, &mut removed);
            match step {
                Step::Done(done) => {
                    // The entries are dropped before the return: if a drop panics while the result
                    // is being returned, the result leaks, and with it a handle to a limiter.
                    drop(removed);
                    return Ok(done);
                }
                Step::Key => new = Some(self.new_key(hash, key)),
                Step::Room if !self.make_room(hash, now, &mut removed) => break,
                // Other requests may take the room that this request makes, so the tries are
                // bounded.
                Step::Room => tries += 1,
            }
        }
        Err(self.no_room())
    }

    pub(super) fn no_room(&self) -> Refusal {
        if self.is_closed() { Refusal::Closed } else { Refusal::TooManyKeys { limit: self.max_keys } }
    }

    /// Returns whether a key can be added without forgetting another key.
    pub(super) fn has_room(&self) -> bool {
        self.len() < self.max_keys && !self.is_closed()
    }

    /// Returns whether a key is known, so that a new key can replace it with `EvictLeastUsed`.
    fn has_known_key(&self) -> bool {
        self.shards.iter().any(|lock| read(lock).entries().iter().next().is_some())
    }

    /// Counts a key that is about to be added, if the bound allows it.
    pub(super) fn count_one(&self) -> Option<Counted<'_>> {
        Counted::one(&self.count, self.max_keys)
    }

    /// Uncounts a key that has left the table.
    pub(super) fn uncount(&self) {
        // Relaxed: the next `count_one` reads the latest count, and no other memory depends on it.
        self.count.fetch_sub(1, Ordering::Relaxed);
    }

    /// Forgets a key and its negative balance. Returns whether the key was known. A caller that
    /// holds the key's limiter keeps that limiter.
    pub(crate) fn remove<Q: Matches<K> + Hash + ?Sized>(&self, key: &Q) -> bool {
        let hash = self.hash_of(key);
        // `removed` is declared before the guard, so that entries are dropped after the lock is
        // released.
        let mut removed = Removed::new();
        let mut shard = write(self.shard(hash));
        let known = shard.entries().slot(hash, key);
        let limiter = shard.limiters().and_then(|limiters| limiters.slot(hash, key));
        let (mut entries, limiters) = shard.parts();
        if let Some(entry) = known.and_then(|slot| entries.remove_at(slot)) {
            self.uncount();
            removed.key(entry);
        }
        if let Some(entry) = limiters.zip(limiter).and_then(|(limiters, slot)| limiters.remove_at(slot)) {
            self.uncount();
            removed.limiters.push(entry);
        }
        known.is_some() || limiter.is_some()
    }
}

/// Takes what a request asks for from a key if it is known and keys have plans.
#[cold]
fn try_planned<K, P, C, Q>(
    shard: &Shard<K, P, C>,
    hash: u64,
    key: &Q,
    now: (Nanos, &C),
    request: &Request,
) -> Option<Result<Grant, Refusal>>
where
    Q: Matches<K> + ?Sized,
    P: Policy + Clone,
    C: Timer,
{
    let planned = shard.more.as_ref()?.planned.as_ref().filter(|_| shard.hold().is_none())?;
    let (policy, state) = planned.find(hash, key)?.read(&shard.policy);
    Some(take(policy, state, now, request))
}

/// Takes what a request asks for from a state.
#[inline]
fn take<P: Policy, C: Clock>(
    policy: &P,
    state: &P::State,
    now: (Nanos, &C),
    request: &Request,
) -> Result<Grant, Refusal> {
    match request.more() {
        None => take_all_of(policy, state, now, request),
        Some(most) => take_as_many(policy, state, now, (request, most.get())),
    }
}

/// Takes as many permits from a state as are available, as a key limiter does without its lock.
#[cold]
fn take_as_many<P: Policy, C: Clock>(
    policy: &P,
    state: &P::State,
    now: (Nanos, &C),
    (request, most): (&Request, u32),
) -> Result<Grant, Refusal> {
    // Another request may take some of the permits between the check and the take.
    for _ in 0..=MAX_RETRIES {
        let available = policy.status(state, now.0).available;
        let permits = TakeLimit::FREE.more_of(available, request.permits, most);
        if permits == request.permits {
            break;
        }
        if let Ok(grant) = take_all_of(policy, state, now, &Request { permits, ..*request }) {
            return Ok(grant);
        }
    }
    take_all_of(policy, state, now, request)
}

/// Takes from a state the minimum number of permits that a request asks for.
#[inline]
fn take_all_of<P: Policy, C: Clock>(
    policy: &P,
    state: &P::State,
    (now, clock): (Nanos, &C),
    request: &Request,
) -> Result<Grant, Refusal> {
    // `?` leaves the charge where it is. `map(drop)` would first copy charge and refusal to one
    // location.
    let charge = if P::PARTS == 1 {
        policy.try_acquire(state, now, request.permits)?
    } else {
        // Permits are put back as of a new clock reading: permits that have overflowed by then are
        // lost.
        let put_back = |(), taken| {
            policy.undo(state, clock.now(), taken, u64::MAX);
        };
        take_all((policy, state), now, request.permits, || (), put_back)?
    };
    let grant = Grant::at_once(request.permits);
    Ok(match request.wants_left {
        true => grant.with_left(policy.left(state, charge, now).as_left(now)),
        false => grant,
    })
}

/// Returns the answer of the pause with which a new key would start, if there is one.
fn answer_of_hold<K, P, C>(
    shard: &Shard<K, P, C>,
    policy: &P,
    now: Nanos,
    n: u32,
) -> Option<Result<(), Refusal>>
where
    K: Hash + Eq,
    P: Policy + Clone,
    C: Timer + Clone,
{
    let hold = shard.hold_of_new(policy, now)?;
    Some(hold.refuse(policy, &shard.start(policy, hold.begin), now, n))
}

/// Returns the status of a state for which no request waits.
fn status<P: Policy>(policy: &P, state: &P::State, hold: Option<&Hold>, now: Nanos) -> Status {
    match hold {
        None => Status::new(policy.status(state, now), policy.rate(), now),
        Some(hold) => hold.status(policy, state, now),
    }
}

/// Guards a counted key until it is added. If user code panics before that, the drop uncounts the
/// key.
pub(super) struct Counted<'a>(&'a AtomicUsize);

impl Counted<'_> {
    /// Counts one more, if it is not above `most`.
    pub(super) fn one(count: &AtomicUsize, most: usize) -> Option<Counted<'_>> {
        let more = |count: usize| (count < most && count & CLOSED == 0).then(|| count + 1);
        // Relaxed: the CAS reads the latest count at any ordering, so the bound holds. The shard's
        // lock publishes the entry.
        let counted = count.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
        counted.ok().map(|_| Counted(count))
    }

    /// Keeps the count: the key was added.
    pub(super) fn keep(self) {
        std::mem::forget(self);
    }
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        // Relaxed, as in `uncount`.
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl<K, P, C> Table<K, P, C>
where
    K: Clone,
    P: Policy + Clone,
    C: Timer + Clone,
{
    /// Returns the keys, one shard after the other.
    pub(crate) fn shards(&self) -> impl Iterator<Item = Vec<Snapshot<K, P, C>>> {
        self.shards.iter().map(|lock| {
            let (shard, now) = (self.current(lock), self.clock.now());
            let known = shard.entries().iter();
            let known = known.map(|(key, policy, state)| {
                (key.clone(), Found::Known(status(policy, state, shard.hold(), now)))
            });
            let limiters = shard
                .all_limiters()
                .map(|(key, of_key)| (key.clone(), Found::Limiter(of_key.limiter.clone())));
            known.chain(limiters).collect()
        })
    }
}
