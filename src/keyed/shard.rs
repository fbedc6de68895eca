//! One part of the table: a policy, its known keys and its key limiters, under one lock.

use std::ops::Deref;
use std::sync::Arc;

use super::entries::{Entries, EntriesMut};
use super::key_limiters::KeyLimiter;
use super::key_ref::Matches;
use super::pause::Hold;
use super::slots::Slots;
use super::terms::{Planned, Terms};
use crate::clock::Timer;
use crate::limiter::RateLimiter;
use crate::policy::Policy;
use crate::sync::ShardLock;
use crate::time::Nanos;

/// Fits in one cache line together with the pointers of its lock, because each request reads it.
pub(crate) struct Shard<K, P: Policy + Clone, C: Timer> {
    /// The policy of all keys that do not have their own. It changes together with the states,
    /// under the lock.
    pub(crate) policy: Arc<P>,
    /// The known keys, where keys have no plans.
    pub(crate) known: Slots<K, P::State>,
    /// `None` if there are no key limiters, no plans and no pause. This is so for most shards.
    pub(super) more: Option<Box<ShardExtras<K, P, C>>>,
}

/// The key limiters of a shard, its known keys with plans, and its pause.
pub(crate) struct ShardExtras<K, P: Policy + Clone, C: Timer> {
    pub(super) limiters: Limiters<K, P, C>,
    /// The known keys, where keys have plans.
    pub(super) planned: Option<Slots<K, Planned<P>>>,
    /// How many times `replan` has asked for the plans of these keys.
    version: u64,
    /// The pause of all keys.
    hold: Option<Hold>,
    /// When a pause left all keys empty, if one did. A change of all keys converts this time.
    pub(super) emptied: Option<Nanos>,
    /// The time from which windows space their grants after a pause, if a pause left all keys
    /// empty. No change moves this time.
    pub(super) spaced_from: Option<Nanos>,
    /// The known keys during the pause, where keys have no plans.
    held: Slots<K, P::State>,
}

pub(crate) type Limiters<K, P, C> = Slots<K, KeyLimiter<P, C>>;

/// The known keys of a shard, and its key limiters if there may be any.
pub(super) type Parts<'a, K, P, C> = (EntriesMut<'a, K, P>, Option<&'a mut Limiters<K, P, C>>);

/// A shard and its lock, on their own cache line.
#[repr(align(64))]
pub(crate) struct Locked<K, P: Policy + Clone, C: Timer>(pub(super) ShardLock<Shard<K, P, C>>);

impl<K, P: Policy + Clone, C: Timer> Deref for Locked<K, P, C> {
    type Target = ShardLock<Shard<K, P, C>>;

    #[inline]
    fn deref(&self) -> &ShardLock<Shard<K, P, C>> {
        &self.0
    }
}

impl<K, P: Policy + Clone, C: Timer> ShardExtras<K, P, C> {
    fn new() -> Self {
        ShardExtras {
            limiters: Slots::new(),
            planned: None,
            version: 0,
            hold: None,
            emptied: None,
            spaced_from: None,
            held: Slots::new(),
        }
    }
}

impl<K, P: Policy + Clone, C: Timer> Shard<K, P, C> {
    pub(super) fn new(policy: Arc<P>) -> Self {
        Shard { policy, known: Slots::new(), more: None }
    }

    /// Returns an empty shard for keys with plans.
    pub(super) fn with_plans(policy: Arc<P>) -> Self {
        let more = ShardExtras { planned: Some(Slots::new()), ..ShardExtras::new() };
        Shard { policy, known: Slots::new(), more: Some(Box::new(more)) }
    }

    pub(crate) fn limiters(&self) -> Option<&Limiters<K, P, C>> {
        self.more.as_ref().map(|more| &more.limiters).filter(|limiters| !limiters.is_empty())
    }

    pub(crate) fn all_limiters(&self) -> impl Iterator<Item = &(K, KeyLimiter<P, C>)> {
        self.more.iter().flat_map(|more| more.limiters.iter())
    }

    /// Returns the known keys.
    pub(super) fn entries(&self) -> Entries<'_, K, P> {
        match self.more.as_deref() {
            Some(ShardExtras { planned: Some(planned), .. }) => Entries::Planned(&self.policy, planned),
            Some(ShardExtras { hold: Some(_), held, .. }) => Entries::Plain(&self.policy, held),
            Some(_) | None => Entries::Plain(&self.policy, &self.known),
        }
    }

    /// Returns the known keys, to change them.
    pub(crate) fn entries_mut(&mut self) -> EntriesMut<'_, K, P> {
        self.parts().0
    }

    /// Returns the known keys, and the key limiters if there may be any, to change both at once.
    pub(super) fn parts(&mut self) -> Parts<'_, K, P, C> {
        match self.more.as_deref_mut() {
            Some(ShardExtras { limiters, planned: Some(planned), .. }) => {
                (EntriesMut::Planned(planned), Some(limiters))
            }
            Some(ShardExtras { limiters, hold: Some(_), held, .. }) => {
                (EntriesMut::Plain(held), Some(limiters))
            }
            Some(ShardExtras { limiters, .. }) => (EntriesMut::Plain(&mut self.known), Some(limiters)),
            None => (EntriesMut::Plain(&mut self.known), None),
        }
    }

    /// Makes room for one more key limiter. `hash_of` may panic.
    pub(super) fn reserve_limiter(&mut self, hash_of: impl Fn(&K) -> u64) {
        Self::more(&mut self.more).limiters.reserve(hash_of);
    }

    fn more(more: &mut Option<Box<ShardExtras<K, P, C>>>) -> &mut ShardExtras<K, P, C> {
        more.get_or_insert_with(|| Box::new(ShardExtras::new()))
    }

    /// Returns the pause of these keys.
    pub(crate) fn hold(&self) -> Option<&Hold> {
        self.more.as_ref()?.hold.as_ref()
    }

    pub(super) fn hold_mut(&mut self) -> Option<&mut Hold> {
        self.more.as_mut()?.hold.as_mut()
    }

    /// Begins, changes or ends the pause of these keys.
    pub(super) fn set_hold(&mut self, new: Option<Hold>) {
        if new.is_none() && self.hold().is_none() {
            return;
        }
        let ShardExtras { hold, held, .. } = Self::more(&mut self.more);
        if new.is_some() != hold.is_some() {
            std::mem::swap(&mut self.known, held);
        }
        *hold = new;
    }

    pub(super) fn limiter<Q: Matches<K> + ?Sized>(&self, hash: u64, key: &Q) -> Option<&RateLimiter<P, C>> {
        self.more.as_ref()?.limiters.find(hash, key).map(|of_key| &of_key.limiter)
    }

    /// Returns the policy of a key with these terms.
    pub(super) fn policy_of<'a>(&'a self, terms: &'a Option<Arc<Terms<P>>>) -> &'a P {
        terms.as_ref().map_or(&*self.policy, |terms| &terms.policy)
    }

    /// Returns how many times `replan` has asked for the plans of these keys.
    pub(super) fn version(&self) -> u64 {
        self.more.as_ref().map_or(0, |more| more.version)
    }

    /// Records that `replan` asks for the plans of these keys again. Returns the new version.
    pub(super) fn raise_version(&mut self) -> u64 {
        let Some(more) = &mut self.more else { return 0 };
        more.version += 1;
        more.version
    }

    /// Returns copies of all keys.
    pub(super) fn all_keys(&self) -> Vec<K>
    where
        K: Clone,
    {
        let known = self.entries().iter().map(|(key, ..)| key.clone());
        known.chain(self.all_limiters().map(|(key, _)| key.clone())).collect()
    }

    /// Frees memory if few key limiters or none are left.
    pub(super) fn shrink_limiters(&mut self, hash_of: impl Fn(&K) -> u64) {
        match self.more.as_deref_mut() {
            Some(ShardExtras { limiters, planned: None, hold: None, emptied: None, .. })
                if limiters.is_empty() =>
            {
                self.more = None;
            }
            Some(more) => more.limiters.shrink(hash_of),
            None => {}
        }
    }
}
