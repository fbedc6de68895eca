//! The ways out of the table: when a key is forgotten, and when a line becomes a known key again.
//!
//! # When a key is forgotten
//!
//! A key may be forgotten once its state is [fresh](crate::policy::Policy::is_fresh): as good as
//! new. It is forgotten
//!
//! - when a new key finds no room: [`SEARCH`] places are looked at, and all fresh keys among them
//!   go;
//! - after it was fresh for [`LINGER`]: each new key looks at [`SWEEP`] places of its shard;
//! - by `sweep`, and by `remove`.
//!
//! A fresh key that stays is no worse than a limited one: the table has room for it. A key that
//! is far from its limit is fresh at each of its requests. If it were forgotten each time, each of
//! its requests would add it anew, under the exclusive lock.
//!
//! # When a line becomes a known key again
//!
//! A line is idle when the table alone has it, no request waits in it, and nothing was set that the
//! policy of all keys does not say. An idle line is settled: its state goes back into the table,
//! and its limiter is dropped.
//!
//! - Each call that used a line looks at it when it ends. Calls leave a line one after the other: a
//!   call first gives up its handle, then looks. Both touch one counter, so the call that gives up
//!   its handle last finds that the table's handle is the only one.
//! - A handle that a user keeps, or a reservation, ends without a look. What it leaves is settled
//!   by later calls: each new key, and each new line, looks at [`SWEEP`] lines of its shard.
//!
//! A table of lines that has become nearly empty is made smaller.
//!
//! **Checked by** `loom-tests/keyed/table.rs`, with a twin that looks before it gives up its handle.

use std::hash::Hash;

use super::WhenKeysFull;
use super::removed::Removed;
use super::shard::{Locked, Shard};
use super::slots::Slots;
use super::table::{Line, SEARCH, Table};
use crate::clock::Timer;
use crate::policy::Policy;
use crate::sync::{Ordering, read, write};
use crate::time::Nanos;

/// How many places each new key looks at, for keys and for lines that are not needed.
const SWEEP: usize = 4;

/// How long a key stays fresh before a new key of its shard forgets it although there is room:
/// one minute. A key that is asked for more often is better kept.
const LINGER: Nanos = Nanos::new(60_000_000_000);

/// How many places [`sweep_all`](Table::sweep_all) looks at before it lets go of the lock.
const SLICE: usize = 4096;

impl<K, P, C> Table<K, P, C>
where
    K: Hash + Eq,
    P: Policy + Clone,
    C: Timer + Clone,
{
    /// Forgets the fresh keys of some places. Returns whether there was one.
    fn forget(
        &self,
        shard: &mut Shard<K, P, C>,
        places: impl Iterator<Item = usize>,
        at: Nanos,
        removed: &mut Removed<K, P, C>,
    ) -> bool {
        let (policy, known, _) = shard.parts();
        let mut forgot = false;
        for place in places {
            if let Some((_, state)) = known.at(place)
                && policy.is_fresh(state, at)
                && let Some(entry) = known.remove_at(place)
            {
                self.uncount();
                removed.key(entry);
                forgot = true;
            }
        }
        forgot
    }

    /// What each new key does for the memory of its shard, at the places behind its own.
    pub(super) fn forget_some(
        &self,
        shard: &mut Shard<K, P, C>,
        hash: u64,
        now: Nanos,
        removed: &mut Removed<K, P, C>,
    ) {
        self.settle_some(shard, hash, now, removed);
        if now > LINGER {
            let places = shard.known.places_from(home(hash), SWEEP);
            self.forget(shard, places, now.saturating_since(LINGER), removed);
        }
    }

    /// What each new line does, too.
    pub(super) fn settle_some(
        &self,
        shard: &mut Shard<K, P, C>,
        hash: u64,
        now: Nanos,
        removed: &mut Removed<K, P, C>,
    ) {
        if let Some(lines) = shard.lines() {
            let places = lines.places_from(home(hash), SWEEP);
            self.settle(shard, places, now, removed);
            shard.shrink_lines(|key| self.hash_of(key));
        }
    }

    /// Whether a line can become a known key again, or be forgotten.
    fn can_settle(line: &Line<P, C>, now: Nanos) -> bool {
        line.is_idle()
            && !line.policy().is_own()
            && (line.policy().shares_states() || line.policy().is_fresh(line.state(), now))
    }

    /// Settles the idle lines of some places. Returns whether a key was forgotten.
    fn settle(
        &self,
        shard: &mut Shard<K, P, C>,
        places: impl Iterator<Item = usize>,
        now: Nanos,
        removed: &mut Removed<K, P, C>,
    ) -> bool {
        let (_, known, Some(lines)) = shard.parts() else { return false };
        let mut forgot = false;
        for place in places {
            let Some((key, line)) = lines.at(place) else { continue };
            if !Self::can_settle(line, now) {
                continue;
            }
            if line.policy().is_fresh(line.state(), now) {
                if let Some(entry) = lines.remove_at(place) {
                    self.uncount();
                    removed.lines.push(entry);
                    forgot = true;
                }
                continue;
            }
            // All that may panic comes before the state moves.
            let hash = self.hash_of(key);
            known.reserve(|known| self.hash_of(known));
            lines.replace_at(place, |key, line| match line.into_state() {
                Ok((state, rest)) => {
                    known.insert(hash, key, state);
                    removed.rests.push(rest);
                    None
                }
                // Its alarm is ringing just now.
                Err(line) => Some((key, line)),
            });
        }
        forgot
    }

    /// A call has given up its handle to the line with this number.
    pub(crate) fn leave(&self, hash: u64, number: u64) {
        let lock = self.shard(hash);
        let place = |shard: &Shard<K, P, C>, now| {
            let lines = shard.lines()?;
            let place = lines.place_of(hash, |line| line.shared().number == number)?;
            Self::can_settle(&lines.at(place)?.1, now).then_some(place)
        };
        let now = self.clock.now();
        if place(&read(lock), now).is_none() {
            return;
        }
        let mut removed = Removed::new();
        let mut shard = write(lock);
        let place = place(&shard, now);
        self.settle(&mut shard, place.into_iter(), now, &mut removed);
        shard.shrink_lines(|key| self.hash_of(key));
    }

    /// Where a new key without room looks for it: in the shards from one on, until they have
    /// enough places, each from the same place on.
    fn search(&self, turn: usize) -> (impl Iterator<Item = &Locked<K, P, C>>, usize) {
        let mut places = 0;
        let shards = self.all_from(turn).take_while(move |lock| {
            let enough = places >= SEARCH;
            places += read(lock).known.places().clamp(1, SEARCH);
            !enough
        });
        // Each shard is the first one of as many turns as it has times so many places.
        (shards, (turn / self.shards.len()).wrapping_mul(SEARCH))
    }

    /// Whether a shard has something that a search for room can change.
    fn may_have_room(shard: &Shard<K, P, C>, first: usize, now: Nanos) -> bool {
        let fresh = |place| shard.known.at(place).is_some_and(|(_, state)| shard.policy.is_fresh(state, now));
        let idle = |lines: &Slots<K, Line<P, C>>| {
            let idle = |place| lines.at(place).is_some_and(|(_, line)| Self::can_settle(line, now));
            lines.places_from(first, SEARCH).any(idle)
        };
        shard.known.places_from(first, SEARCH).any(fresh) || shard.lines().is_some_and(idle)
    }

    /// Whether the next new key would find room by forgetting others. Changes nothing.
    pub(super) fn can_make_room(&self, now: Nanos) -> bool {
        let (mut shards, first) = self.search(self.hand.load(Ordering::Relaxed));
        shards.any(|lock| Self::may_have_room(&read(lock), first, now))
    }

    /// Looks around for keys that may be forgotten, and forgets them. Returns whether there was
    /// one.
    pub(super) fn make_room(&self, hash: u64, now: Nanos, removed: &mut Removed<K, P, C>) -> bool {
        let (shards, first) = self.search(self.hand.fetch_add(1, Ordering::Relaxed));
        for lock in shards {
            if !Self::may_have_room(&read(lock), first, now) {
                continue;
            }
            let mut shard = write(lock);
            let lines = shard.lines().map(|lines| lines.places_from(first, SEARCH));
            let forgot_line = self.settle(&mut shard, lines.into_iter().flatten(), now, removed);
            let known = shard.known.places_from(first, SEARCH);
            let forgot_key = self.forget(&mut shard, known, now, removed);
            shard.shrink_lines(|key| self.hash_of(key));
            if forgot_key || forgot_line {
                return true;
            }
        }
        matches!(self.when_full, WhenKeysFull::ForgetFreshest) && self.forget_freshest(hash, now, removed)
    }

    /// Forgets the key that is closest to fresh, of some that stand next to each other. Returns
    /// whether there was one.
    ///
    /// They stand in the shard of the new key, unless that has none, so that shards stay as full as
    /// they are.
    fn forget_freshest(&self, hash: u64, now: Nanos, removed: &mut Removed<K, P, C>) -> bool {
        for lock in std::iter::once(self.shard(hash)).chain(self.all_from(0)) {
            let mut shard = write(lock);
            let full_at = |place: usize| {
                let (_, state) = shard.known.at(place)?;
                Some((shard.policy.status(state, now).full_at, place))
            };
            let freshest = shard.known.places_from(home(hash), SEARCH).filter_map(full_at).min();
            if let Some((_, place)) = freshest
                && let Some(entry) = shard.known.remove_at(place)
            {
                self.uncount();
                removed.key(entry);
                return true;
            }
        }
        false
    }

    /// All shards, from one on.
    fn all_from(&self, first: usize) -> impl Iterator<Item = &Locked<K, P, C>> {
        let (before, deferred) = self.shards.split_at(first % self.shards.len());
        deferred.iter().chain(before)
    }

    /// Forgets all keys that are as good as new, and gives memory back.
    pub(crate) fn sweep_all(&self) {
        for lock in &self.shards {
            let lines = |shard: &Shard<K, P, C>| shard.lines().map_or(0, Slots::places);
            self.in_slices(lock, lines, |shard, places, now, removed| {
                self.settle(shard, places, now, removed);
            });
            let known = |shard: &Shard<K, P, C>| shard.known.places();
            self.in_slices(lock, known, |shard, places, now, removed| {
                self.forget(shard, places, now, removed);
            });
            let mut shard = write(lock);
            shard.shrink_lines(|key| self.hash_of(key));
            shard.known.shrink(|key| self.hash_of(key));
        }
    }

    /// Works through all places of a shard, and lets go of the lock in between.
    fn in_slices(
        &self,
        lock: &Locked<K, P, C>,
        all: impl Fn(&Shard<K, P, C>) -> usize,
        work: impl Fn(&mut Shard<K, P, C>, std::ops::Range<usize>, Nanos, &mut Removed<K, P, C>),
    ) {
        let mut first = 0;
        loop {
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

/// The place of a key, or near it: as good as one by chance, and its cache line is needed anyway.
fn home(hash: u64) -> usize {
    // The lowest bits say the place.
    #[allow(clippy::cast_possible_truncation)]
    let place = hash as usize;
    place
}
