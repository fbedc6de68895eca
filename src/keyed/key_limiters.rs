//! Creates a key limiter, which is a limiter for one key, and lends it to one call.
//!
//! `keyed/forget.rs` describes when a key limiter becomes a known key again.

use std::hash::Hash;
use std::ops::Deref;
use std::sync::Arc;

use super::WhenKeysFull;
use super::key_ref::KeyRef;
use super::table::{Found, Step, Table};
use super::terms::Terms;
use crate::clock::Timer;
use crate::error::Refusal;
use crate::limiter::RateLimiter;
use crate::line::deferred::run;
use crate::line::settings::Drift;
use crate::policy::Policy;
use crate::sync::lock;

/// A key limiter in its shard.
pub(crate) struct KeyLimiter<P: Policy, C: Timer> {
    /// Its policy is a copy from the start, so that requests that run during a change read the
    /// policy that changes.
    pub(crate) limiter: RateLimiter<P, C>,
    /// The terms that the policy was copied from, or that a `replan` gave to it; `None` means the
    /// terms of the shard.
    pub(super) terms: Option<Arc<Terms<P>>>,
}

impl<P: Policy, C: Timer> KeyLimiter<P, C> {
    /// Returns whether a change of all keys applies to this key, unless it has its own terms.
    pub(super) fn is_common(&self) -> bool {
        self.terms.as_ref().is_none_or(|terms| terms.common)
    }

    /// Returns whether this key has its own terms, such as its own rate or burst.
    pub(super) fn has_own_terms(&self) -> bool {
        lock(&self.limiter.shared.line).settings.has_own_terms()
    }

    /// Returns whether the policy of this limiter and the terms read a state in the same way.
    pub(super) fn shares_states(&self) -> bool {
        lock(&self.limiter.shared.line).settings.drift == Drift::None
    }
}

/// A key limiter that a call uses. When the call ends and the key limiter is idle, its key becomes
/// a known key again.
pub(crate) struct LimiterGuard<'a, K: Hash + Eq, P: Policy + Clone, C: Timer + Clone> {
    /// Dropped first: `_leave` must see the table's handle as the only one.
    limiter: RateLimiter<P, C>,
    _leave: Leave<'a, K, P, C>,
}

struct Leave<'a, K: Hash + Eq, P: Policy + Clone, C: Timer + Clone> {
    table: &'a Table<K, P, C>,
    hash: u64,
    /// The number of the key limiter.
    number: u64,
}

impl<K: Hash + Eq, P: Policy + Clone, C: Timer + Clone> Deref for LimiterGuard<'_, K, P, C> {
    type Target = RateLimiter<P, C>;

    fn deref(&self) -> &RateLimiter<P, C> {
        &self.limiter
    }
}

impl<K: Hash + Eq, P: Policy + Clone, C: Timer + Clone> Drop for Leave<'_, K, P, C> {
    fn drop(&mut self) {
        // A clock or a hash that panics here would cost the call its grant. A later call settles the
        // limiter.
        _ = run(&mut None, || self.table.leave(self.hash, self.number));
    }
}

impl<K, P, C> Table<K, P, C>
where
    K: Hash + Eq,
    P: Policy + Clone,
    C: Timer + Clone,
{
    /// Lends a key limiter of the table, or the shared key limiter, to a call.
    pub(super) fn guard_limiter(&self, hash: u64, limiter: RateLimiter<P, C>) -> LimiterGuard<'_, K, P, C> {
        let number = limiter.shared.number;
        LimiterGuard { limiter, _leave: Leave { table: self, hash, number } }
    }

    /// Returns the limiter of a key, or the shared limiter if there is no room.
    pub(crate) fn limiter<Q: KeyRef<K> + ?Sized>(&self, key: &Q) -> Result<RateLimiter<P, C>, Refusal> {
        self.or_shared(self.own_limiter(key), |shared| shared)
    }

    /// Returns the limiter of a key like [`limiter`](Table::limiter), but no key in use makes room
    /// for the key.
    pub(crate) fn limiter_in_room<Q: KeyRef<K> + ?Sized>(
        &self,
        key: &Q,
    ) -> Result<RateLimiter<P, C>, Refusal> {
        if self.when_full == WhenKeysFull::EvictLeastUsed
            && matches!(self.find(key, |_, _, _| ()), Found::Unknown)
            && !self.has_or_finds_room()
        {
            return Err(self.no_room());
        }
        self.limiter(key)
    }

    /// Returns the limiter of a key for one call.
    pub(crate) fn limiter_for_call<Q: KeyRef<K> + ?Sized>(
        &self,
        key: &Q,
    ) -> Result<LimiterGuard<'_, K, P, C>, Refusal> {
        Ok(self.guard_limiter(self.hash_of(key), self.limiter(key)?))
    }

    /// Returns the limiter in which a request for `n` permits of a key waits. For a request that
    /// can never be granted, no key limiter is created.
    #[cold]
    pub(crate) fn limiter_for<Q: KeyRef<K> + ?Sized>(
        &self,
        key: &Q,
        n: u32,
    ) -> Result<LimiterGuard<'_, K, P, C>, Refusal> {
        let (hash, shares) = (self.hash_of(key), self.shared().is_some());
        // The block releases the shard's lock before a key limiter is created, because that needs
        // the lock exclusively.
        let found = {
            let shard = self.read_current(hash);
            match (shard.limiter(hash, key), shard.entries().find(hash, key)) {
                (Some(limiter), _) => Ok(Some(limiter.clone())),
                (None, Some((policy, _))) => policy.check(n).map(|()| None),
                // The limiter of the key, or the one that keys share, will refuse the request.
                (None, None) if self.plans.is_some() || shares => Ok(None),
                (None, None) => shard.policy.check(n).map(|()| None),
            }
        };
        let limiter = match found {
            Ok(Some(limiter)) => Ok(limiter),
            Ok(None) => self.limiter(key),
            // In shadow mode, the limiter of the key lets the request pass.
            Err(never) if self.passes(never) => self.limiter(key),
            Err(never) => Err(never),
        };
        match limiter {
            Ok(limiter) => Ok(self.guard_limiter(hash, limiter)),
            Err(refusal) => self.report_end(key, n, Err(refusal)),
        }
    }

    /// Returns a limiter for the reservation of an exempt request, which takes no permits. This is
    /// the limiter of the key if it has one. Otherwise it is a limiter that is in no table, so a
    /// new key stays unknown.
    #[cold]
    pub(crate) fn limiter_for_exempt<Q: KeyRef<K> + ?Sized>(&self, key: &Q) -> RateLimiter<P, C> {
        if let Found::Limiter(limiter) = self.find(key, |_, _, _| ()) {
            return limiter;
        }
        let (policy, events) = (self.policy(), self.events.as_ref().map(|observer| observer.of(key)));
        let state = policy.start(self.clock.now());
        RateLimiter::with_state(policy, state, self.clock.clone(), events, self.all_waiters.clone())
    }

    /// Returns the limiter of a key. The key has a key limiter from then on.
    pub(crate) fn own_limiter<Q: KeyRef<K> + ?Sized>(&self, key: &Q) -> Result<RateLimiter<P, C>, Refusal> {
        let hash = self.hash_of(key);
        let is_known = match self.find_hashed(hash, key, |_, _, _| ()) {
            Found::Limiter(limiter) => return Ok(limiter),
            Found::Known(()) => true,
            Found::Unknown => false,
        };
        let new = (!is_known && self.has_room()).then(|| self.new_key(hash, key));
        // The observer is created before the lock is taken, because that may clone the key.
        let events = self.events.as_ref().map(|observer| observer.of(key));
        self.with_room(hash, key, new, |shard, now, new, removed| {
            if let Some(limiter) = shard.limiter(hash, key) {
                return Step::Done(limiter.clone());
            }
            self.settle_some(shard, hash, now, removed);
            let known = shard.entries().slot(hash, key);
            // User code that may panic runs before the state moves.
            let (policy, hold, counted) = match known.and_then(|slot| shard.entries().at(slot)) {
                Some((policy, _)) => (P::clone(policy), shard.hold().copied(), None),
                None => {
                    let Some(counted) = self.count_one() else { return Step::Room };
                    let found = new.as_ref().filter(|new| !new.is_outdated(shard));
                    let Some(found) = found else { return Step::Key };
                    let policy = shard.policy_of(&found.terms);
                    let hold = shard.hold_of_new(policy, now);
                    let state = shard.start(policy, hold.map_or(now, |hold| hold.begin));
                    (P::clone(policy), hold, Some((counted, state)))
                }
            };
            let clock = self.clock.clone();
            shard.reserve_limiter(|known| self.hash_of(known));
            let (mut entries, Some(limiters)) = shard.parts() else { return Step::Room };
            let moved = match counted {
                None => known.and_then(|slot| entries.remove_at(slot)),
                Some((counted, state)) => new.take().map(|new| {
                    counted.keep();
                    new.into_entry(state)
                }),
            };
            let Some((key, terms, state)) = moved else { return Step::Room };
            let all_waiters = self.all_waiters.clone();
            let limiter = RateLimiter::with_state(policy, state, clock, events.clone(), all_waiters);
            if let Some(hold) = hold {
                limiter.shared.begin_in_hold(hold);
            }
            if self.is_shadow() {
                limiter.shared.begin_in_shadow();
            }
            limiters.insert(hash, key, KeyLimiter { limiter: limiter.clone(), terms });
            Step::Done(limiter)
        })
    }
}
