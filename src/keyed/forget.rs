//! How a key leaves the table, and how a key limiter becomes a known key again.
//!
//! # When a key is forgotten
//!
//! A key may be forgotten once its state is [fresh](crate::policy::Policy::is_fresh): a new key
//! would get no more permits than this key has. A fresh key is forgotten
//!
//! - when a new key finds no room: the new key searches [`SEARCH`] slots, or all slots of a small
//!   table, and forgets every fresh key among them. If there is none it searches other slots, up to
//!   [`TURNS`] times, unless new keys have just searched the whole table in vain;
//! - after it has been fresh for [`RETENTION`]: each new key examines [`SWEEP`] slots of its shard;
//! - by `sweep`, and by `remove`.
//!
//! Fresh keys stay while there is room, because a key far below its limit is fresh at each of its
//! requests. If it were forgotten each time, each of its requests would add it again, under the
//! exclusive lock.
//!
//! # When a key limiter becomes a known key again
//!
//! A key limiter is idle when only the table holds it, no request waits in it, and it has no
//! settings that differ from the policy of all keys. An idle key limiter is settled: its state
//! moves back into the table, and its limiter is dropped.
//!
//! - Each call that used a key limiter checks it when the call ends. The call first gives up its
//!   handle, then checks. The handles share one reference count, so the call that gives up its
//!   handle last finds that only the table holds the key limiter.
//! - While all keys are paused, no key limiter is settled: see `keyed/pause.rs`.
//! - When a user drops a handle or a reservation, no check runs. Its limiter is settled by a later
//!   call for its key, or by a new key or new key limiter of its shard: each examines [`SWEEP`] key
//!   limiters.
//!
//! A table of key limiters that is nearly empty is shrunk.
//!
//! **Checked by** `loom-tests/keyed.rs`, with a twin that checks before it gives up its handle.

use std::hash::Hash;

use super::WhenKeysFull;
use super::key_limiters::KeyLimiter;
use super::pause::may_forget;
use super::removed::Removed;
use super::shard::{Locked, Shard};
use super::slots::Slots;
use super::table::{SEARCH, Table};
use crate::clock::Timer;
use crate::policy::Policy;
use crate::sync::{Ordering, read, write};
use crate::time::Nanos;

/// How many slots each new key examines for fresh keys, and again for idle key limiters.
const SWEEP: usize = 4;

/// The most turns of a new key without room, each of which searches [`SEARCH`] slots. The turns
/// search a shard with a small table again before they have searched all slots of a larger one.
const TURNS: usize = 64;

/// How long a key may stay fresh before a new key of its shard forgets it although there is room:
/// one minute. A key that is used more often than that is cheaper to keep.
const RETENTION: Nanos = Nanos::new(60_000_000_000);

/// How many slots [`sweep_all`](Table::sweep_all) examines before it releases the lock once.
const SLICE: usize = 4096;

impl<K, P, C> Table<K, P, C>
where
    K: Hash + Eq,
    P: Policy + Clone,
    C: Timer + Clone,
{
    /// Forgets the fresh keys at some slots. Returns whether it forgot a key.
    fn forget(
        &self,
        shard: &mut Shard<K, P, C>,
        slots: impl Iterator<Item = usize>,
        at: Nanos,
        removed: &mut Removed<K, P, C>,
    ) -> bool {
        let mut forgot = false;
        let at = shard.hold().map_or(at, |hold| at.min(hold.begin));
        let emptied = shard.emptied();
        for slot in slots {
            if let Some((policy, state)) = shard.entries().at(slot)
                && may_forget(policy, state, at, emptied)
                && let Some(entry) = shard.entries_mut().remove_at(slot)
            {
                self.uncount();
                removed.key(entry);
                forgot = true;
            }
        }
        forgot
    }

    /// Settles idle key limiters and forgets fresh keys at a few slots, for each new key.
    pub(super) fn forget_some(
        &self,
        shard: &mut Shard<K, P, C>,
        hash: u64,
        now: Nanos,
        removed: &mut Removed<K, P, C>,
    ) {
        self.settle_some(shard, hash, now, removed);
        if now > RETENTION {
            let slots = shard.entries().slots_from(home(hash), SWEEP);
            self.forget(shard, slots, now.saturating_since(RETENTION), removed);
        }
    }

    /// Settles idle key limiters at a few slots, for each new key and each new key limiter.
    pub(super) fn settle_some(
        &self,
        shard: &mut Shard<K, P, C>,
        hash: u64,
        now: Nanos,
        removed: &mut Removed<K, P, C>,
    ) {
        if let Some(limiters) = shard.limiters() {
            let slots = limiters.slots_from(home(hash), SWEEP);
            let fresh_at = (now > RETENTION).then(|| now.saturating_since(RETENTION));
            self.settle(shard, slots, fresh_at, now, removed);
            shard.shrink_limiters(|key| self.hash_of(key));
        }
    }

    /// Returns whether a key limiter can become a known key again, or be forgotten. A closed table
    /// forgets each key limiter that only it holds.
    fn can_settle(&self, of_key: &KeyLimiter<P, C>, now: Nanos, emptied: Option<Nanos>) -> bool {
        let KeyLimiter { limiter, .. } = of_key;
        if self.is_closed() {
            return limiter.is_only_handle();
        }
        limiter.is_idle()
            && (of_key.shares_states() || may_forget(limiter.policy(), limiter.state(), now, emptied))
    }

    /// Settles the idle key limiters at some slots. Forgets key limiters that could be forgotten at
    /// `fresh_at`, and key limiters that may be forgotten and whose states cannot move into the
    /// table.
    /// Returns whether a key was forgotten.
    fn settle(
        &self,
        shard: &mut Shard<K, P, C>,
        slots: impl Iterator<Item = usize>,
        fresh_at: Option<Nanos>,
        now: Nanos,
        removed: &mut Removed<K, P, C>,
    ) -> bool {
        // The states of a hold are as of another time.
        if shard.hold().is_some() && !self.is_closed() {
            return false;
        }
        let emptied = shard.emptied();
        let (mut entries, Some(limiters)) = shard.parts() else { return false };
        let mut forgot = false;
        for slot in slots {
            let Some((key, of_key)) = limiters.at(slot) else { continue };
            let KeyLimiter { limiter, .. } = of_key;
            if !self.can_settle(of_key, now, emptied) {
                continue;
            }
            let fresh_at = if of_key.shares_states() { fresh_at } else { Some(now) };
            let is_fresh = |at| may_forget(limiter.policy(), limiter.state(), at, emptied);
            if self.is_closed() || fresh_at.is_some_and(is_fresh) {
                if let Some(entry) = limiters.remove_at(slot) {
                    self.uncount();
                    removed.limiters.push(entry);
                    forgot = true;
                }
                continue;
            }
            // `Hash` may panic, so it runs before the state moves.
            let hash = self.hash_of(key);
            entries.reserve(|known| self.hash_of(known));
            limiters.replace_at(slot, |key, KeyLimiter { limiter, terms }| match limiter.into_state() {
                Ok((state, rest)) => {
                    entries.insert(hash, (key, terms, state));
                    removed.rests.push(rest);
                    None
                }
                // Another handle exists at this moment: the handle of an alarm that is firing.
                Err(limiter) => Some((key, KeyLimiter { limiter, terms })),
            });
        }
        forgot
    }

    /// Settles the key limiter with this number if it is idle. A call runs this after it gave up
    /// its handle.
    pub(crate) fn leave(&self, hash: u64, number: u64) {
        let lock = self.shard(hash);
        let slot = |shard: &Shard<K, P, C>, now| {
            let limiters = shard.limiters().filter(|_| shard.hold().is_none() || self.is_closed())?;
            let slot = limiters.slot_of(hash, |of_key| of_key.limiter.shared.number == number)?;
            self.can_settle(&limiters.at(slot)?.1, now, shard.emptied()).then_some(slot)
        };
        let now = self.clock.now();
        // The shared lock comes first: most key limiters are still in use, and then no exclusive
        // lock is needed.
        if slot(&read(lock), now).is_none() {
            return;
        }
        // `removed` is declared before the guard, so that entries are dropped after the lock is
        // released.
        let mut removed = Removed::new();
        let mut shard = write(lock);
        // The key limiter may have moved or be in use again since the shared lock was released.
        let slot = slot(&shard, now);
        // A fresh key stays for a while, like a key that a call without a key limiter used: a leaky
        // bucket may have predicted when a large request passes, and that prediction counts the
        // time for which the key was idle.
        self.settle(&mut shard, slot.into_iter(), None, now, &mut removed);
        shard.shrink_limiters(|key| self.hash_of(key));
    }

    /// Returns the shards that a new key without room searches: all shards from one shard on, until
    /// they have enough slots. Also returns the first slot to search, which is equal in each shard.
    fn search(&self, turn: usize) -> (impl Iterator<Item = &Locked<K, P, C>>, usize) {
        let mut searched = 0;
        let shards = self.all_from(turn).take_while(move |lock| {
            let enough = searched >= self.search;
            searched += read(lock).entries().slot_count().clamp(1, SEARCH);
            !enough
        });
        // `turn` counts searches. Each time every shard has been the first one, the first slot
        // advances by `SEARCH`.
        (shards, (turn / self.shards.len()).wrapping_mul(SEARCH))
    }

    /// Returns whether a search can free a slot in this shard.
    fn may_have_room(&self, shard: &Shard<K, P, C>, first: usize, now: Nanos) -> bool {
        let entries = shard.entries();
        let now = shard.hold().map_or(now, |hold| now.min(hold.begin));
        let emptied = shard.emptied();
        let fresh =
            |slot| entries.at(slot).is_some_and(|(policy, state)| may_forget(policy, state, now, emptied));
        let idle = |limiters: &Slots<K, KeyLimiter<P, C>>| {
            let idle =
                |slot| limiters.at(slot).is_some_and(|(_, of_key)| self.can_settle(of_key, now, emptied));
            limiters.slots_from(first, self.search).any(idle)
        };
        entries.slots_from(first, self.search).any(fresh)
            || shard.hold().is_none() && shard.limiters().is_some_and(idle)
    }

    /// Returns the turns of the next new key without room: each searches other slots, until one
    /// finds a key to forget. If a whole table of slots was searched in vain, all keys are probably
    /// limited, and a flood of new keys searches one turn each.
    fn turns(&self) -> std::ops::Range<usize> {
        // Relaxed, here and below: the counts only choose where to search. A stale value only costs
        // accuracy.
        let all = if self.search == SEARCH { self.max_keys / (SEARCH / 4) } else { 1 };
        let most = all.saturating_sub(self.in_vain.load(Ordering::Relaxed)).clamp(1, TURNS);
        let next = self.search_count.load(Ordering::Relaxed);
        next..next.saturating_add(most)
    }

    /// Returns whether the next new key would find room by forgetting other keys. Changes nothing.
    pub(super) fn can_make_room(&self, now: Nanos) -> bool {
        self.turns().any(|turn| {
            let (mut shards, first) = self.search(turn);
            shards.any(|lock| self.may_have_room(&read(lock), first, now))
        })
    }

    /// Forgets keys to make room for a new one. Returns whether it forgot a key.
    pub(super) fn make_room(&self, hash: u64, now: Nanos, removed: &mut Removed<K, P, C>) -> bool {
        self.forget_idle(now, removed)
            || matches!(self.when_full, WhenKeysFull::EvictLeastUsed)
                && self.evict_least_used(hash, now, removed)
    }

    /// Returns whether there is room for a new key, if necessary after forgetting other keys, but
    /// no key in use.
    pub(crate) fn has_or_finds_room(&self) -> bool {
        self.has_room() || !self.is_closed() && self.forget_idle(self.clock.now(), &mut Removed::new())
    }

    /// Searches for keys that may be forgotten, and forgets them. Returns whether it forgot a key.
    fn forget_idle(&self, now: Nanos, removed: &mut Removed<K, P, C>) -> bool {
        for _ in self.turns() {
            // `fetch_add` gives each search its own turn at any ordering.
            if self.make_room_at(self.search_count.fetch_add(1, Ordering::Relaxed), now, removed) {
                self.in_vain.store(0, Ordering::Relaxed);
                return true;
            }
            self.in_vain.fetch_add(1, Ordering::Relaxed);
        }
        false
    }

    /// Forgets keys at the slots of one turn. Returns whether it forgot a key.
    fn make_room_at(&self, turn: usize, now: Nanos, removed: &mut Removed<K, P, C>) -> bool {
        let (shards, first) = self.search(turn);
        for lock in shards {
            // The shared lock suffices to see that there is nothing to free, and does not block
            // requests.
            if !self.may_have_room(&read(lock), first, now) {
                continue;
            }
            let mut shard = write(lock);
            let limiters = shard.limiters().map(|limiters| limiters.slots_from(first, self.search));
            let forgot_limiter =
                self.settle(&mut shard, limiters.into_iter().flatten(), Some(now), now, removed);
            let known = shard.entries().slots_from(first, self.search);
            let forgot_key = self.forget(&mut shard, known, now, removed);
            shard.shrink_limiters(|key| self.hash_of(key));
            if forgot_key || forgot_limiter {
                return true;
            }
        }
        false
    }

    /// Forgets the key that becomes fresh soonest among [`SEARCH`] neighbouring slots, or the next
    /// key if there is none among them. Returns whether it forgot a key.
    ///
    /// The slots are in the shard of the new key, so that the shards stay equally full. If that
    /// shard has no known key, other shards are tried.
    fn evict_least_used(&self, hash: u64, now: Nanos, removed: &mut Removed<K, P, C>) -> bool {
        for lock in std::iter::once(self.shard(hash)).chain(self.all_from(0)) {
            let mut shard = write(lock);
            let entries = shard.entries();
            let full_at = |slot: usize| {
                let (policy, state) = entries.at(slot)?;
                Some((policy.status(state, now).full_at, slot))
            };
            let freshest = entries.slots_from(home(hash), SEARCH).filter_map(full_at).min().or_else(|| {
                // Few keys may be far apart: the next one counts.
                shard.entries().iter().next()?;
                entries.slots_from(home(hash), entries.slot_count()).find_map(full_at)
            });
            if let Some((_, slot)) = freshest
                && let Some(entry) = shard.entries_mut().remove_at(slot)
            {
                self.uncount();
                removed.key(entry);
                return true;
            }
        }
        false
    }

    /// Returns all shards, from `first` on.
    fn all_from(&self, first: usize) -> impl Iterator<Item = &Locked<K, P, C>> {
        let (before, behind) = self.shards.split_at(first % self.shards.len());
        behind.iter().chain(before)
    }

    /// Forgets all fresh keys, and frees memory.
    pub(crate) fn sweep_all(&self) {
        for lock in &self.shards {
            // Ends a pause that is over. Until then no key of the shard looks idle.
            drop(self.current(lock));
            let limiters = |shard: &Shard<K, P, C>| shard.limiters().map_or(0, Slots::slot_count);
            self.in_slices(lock, limiters, |shard, slots, now, removed| {
                self.settle(shard, slots, Some(now), now, removed);
            });
            let known = |shard: &Shard<K, P, C>| shard.entries().slot_count();
            self.in_slices(lock, known, |shard, slots, now, removed| {
                self.forget(shard, slots, now, removed);
            });
            let mut shard = write(lock);
            shard.shrink_limiters(|key| self.hash_of(key));
            shard.entries_mut().shrink(|key| self.hash_of(key));
        }
    }

    /// Works through all slots of a shard, and releases the lock after every [`SLICE`] slots.
    fn in_slices(
        &self,
        lock: &Locked<K, P, C>,
        all: impl Fn(&Shard<K, P, C>) -> usize,
        work: impl Fn(&mut Shard<K, P, C>, std::ops::Range<usize>, Nanos, &mut Removed<K, P, C>),
    ) {
        let mut first = 0;
        loop {
            // `removed` is declared before the guard: each slice releases the lock, and then drops
            // its entries.
            let mut removed = Removed::new();
            let mut shard = write(lock);
            let all = all(&shard);
            let end = all.min(first + SLICE);
            work(&mut shard, first..end, self.clock.now(), &mut removed);
            if end >= all {
                return;
            }
            first = end;
        }
    }
}

/// Returns the hash as a slot. It is the key's own slot or near it: the request needs that cache
/// line anyway.
fn home(hash: u64) -> usize {
    // Truncation is harmless: the lowest bits choose the slot.
    #[allow(clippy::cast_possible_truncation)]
    let slot = hash as usize;
    slot
}
