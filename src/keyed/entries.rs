//! The known keys of a shard: one policy for all keys, or terms next to each state.

use super::key_ref::Matches;
use super::slots::{Slots, slots_from};
use super::terms::{Entry, Planned};
use crate::policy::Policy;

/// The known keys of a shard, with the policy of the shard.
pub(crate) enum Entries<'a, K, P: Policy> {
    /// All keys have the policy of the shard.
    Plain(&'a P, &'a Slots<K, P::State>),
    /// Each key may have a plan.
    Planned(&'a P, &'a Slots<K, Planned<P>>),
}

/// The known keys of a shard, to change them.
pub(crate) enum EntriesMut<'a, K, P: Policy> {
    Plain(&'a mut Slots<K, P::State>),
    Planned(&'a mut Slots<K, Planned<P>>),
}

impl<'a, K, P: Policy> Entries<'a, K, P> {
    /// Returns the number of slots, used or empty.
    pub(super) fn slot_count(&self) -> usize {
        match self {
            Entries::Plain(_, slots) => slots.slot_count(),
            Entries::Planned(_, slots) => slots.slot_count(),
        }
    }

    /// Returns `count` slots from `first` on, each once.
    pub(super) fn slots_from(&self, first: usize, count: usize) -> impl Iterator<Item = usize> + use<K, P> {
        slots_from(self.slot_count(), first, count)
    }

    /// Returns the policy and the state at a slot.
    pub(super) fn at(&self, slot: usize) -> Option<(&'a P, &'a P::State)> {
        match *self {
            Entries::Plain(policy, slots) => slots.at(slot).map(|(_, state)| (policy, state)),
            Entries::Planned(policy, slots) => slots.at(slot).map(|(_, planned)| planned.read(policy)),
        }
    }

    /// Returns the policy and the state of a key.
    pub(super) fn find<Q: Matches<K> + ?Sized>(&self, hash: u64, key: &Q) -> Option<(&'a P, &'a P::State)> {
        match *self {
            Entries::Plain(policy, slots) => slots.find(hash, key).map(|state| (policy, state)),
            Entries::Planned(policy, slots) => slots.find(hash, key).map(|planned| planned.read(policy)),
        }
    }

    /// Returns the slot of a key.
    pub(super) fn slot<Q: Matches<K> + ?Sized>(&self, hash: u64, key: &Q) -> Option<usize> {
        match self {
            Entries::Plain(_, slots) => slots.slot(hash, key),
            Entries::Planned(_, slots) => slots.slot(hash, key),
        }
    }

    /// Returns all keys, with their policies and states.
    pub(super) fn iter(self) -> impl Iterator<Item = (&'a K, &'a P, &'a P::State)> {
        let (plain, planned) = match self {
            Entries::Plain(policy, slots) => (Some((policy, slots)), None),
            Entries::Planned(policy, slots) => (None, Some((policy, slots))),
        };
        let plain = plain
            .into_iter()
            .flat_map(|(policy, slots)| slots.iter().map(move |(key, state)| (key, policy, state)));
        let planned = planned.into_iter().flat_map(|(policy, slots)| {
            slots.iter().map(move |(key, planned)| {
                let (policy, state) = planned.read(policy);
                (key, policy, state)
            })
        });
        plain.chain(planned)
    }
}

impl<K, P: Policy> EntriesMut<'_, K, P> {
    pub(super) fn remove_at(&mut self, slot: usize) -> Option<Entry<K, P>> {
        match self {
            EntriesMut::Plain(slots) => slots.remove_at(slot).map(|(key, state)| (key, None, state)),
            EntriesMut::Planned(slots) => {
                slots.remove_at(slot).map(|(key, planned)| (key, planned.terms, planned.state))
            }
        }
    }

    /// Makes room for one more entry. See [`Slots::reserve`].
    pub(crate) fn reserve(&mut self, hash_of: impl Fn(&K) -> u64) {
        match self {
            EntriesMut::Plain(slots) => slots.reserve(hash_of),
            EntriesMut::Planned(slots) => slots.reserve(hash_of),
        }
    }

    /// Adds a key that is not in the table. Call [`reserve`](EntriesMut::reserve) first. Keys have
    /// terms only where they have plans.
    pub(crate) fn insert(&mut self, hash: u64, (key, terms, state): Entry<K, P>) {
        match self {
            EntriesMut::Plain(slots) => slots.insert(hash, key, state),
            EntriesMut::Planned(slots) => slots.insert(hash, key, Planned { terms, state }),
        }
    }

    /// Frees memory if nearly all keys are gone.
    pub(super) fn shrink(&mut self, hash_of: impl Fn(&K) -> u64) {
        match self {
            EntriesMut::Plain(slots) => slots.shrink(hash_of),
            EntriesMut::Planned(slots) => slots.shrink(hash_of),
        }
    }
}
