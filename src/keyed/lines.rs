//! Lines: making a limiter for a key, and using it for one call.
//!
//! `keyed/forget.rs` tells when a line becomes a known key again.

use std::borrow::Borrow;
use std::hash::Hash;
use std::ops::Deref;
use std::sync::Arc;

use super::key_policy::KeyPolicy;
use super::slots::Slots;
use super::table::{Found, Line, Step, Table};
use crate::clock::Timer;
use crate::error::Refusal;
use crate::limiter::RateLimiter;
use crate::limiter::events::Events;
use crate::line::deferred::run_in_drop;
use crate::policy::Policy;
use crate::sync::read;

/// A line that a call uses. When the call ends, and nothing else needs the line, its key becomes a
/// known one again.
pub(crate) struct Visit<'a, K: Hash + Eq, P: Policy + Clone, C: Timer + Clone> {
    /// It is dropped first.
    line: Line<P, C>,
    _leave: Leave<'a, K, P, C>,
}

struct Leave<'a, K: Hash + Eq, P: Policy + Clone, C: Timer + Clone> {
    table: &'a Table<K, P, C>,
    hash: u64,
    /// The number of the line.
    number: u64,
}

impl<K: Hash + Eq, P: Policy + Clone, C: Timer + Clone> Deref for Visit<'_, K, P, C> {
    type Target = Line<P, C>;

    fn deref(&self) -> &Line<P, C> {
        &self.line
    }
}

impl<K: Hash + Eq, P: Policy + Clone, C: Timer + Clone> Drop for Leave<'_, K, P, C> {
    fn drop(&mut self) {
        run_in_drop(|| self.table.leave(self.hash, self.number));
    }
}

impl<K, P, C> Table<K, P, C>
where
    K: Hash + Eq,
    P: Policy + Clone,
    C: Timer + Clone,
{
    /// A call that uses a line of the table, or the shared one.
    pub(super) fn visit(&self, hash: u64, line: Line<P, C>) -> Visit<'_, K, P, C> {
        let number = line.shared().number;
        Visit { line, _leave: Leave { table: self, hash, number } }
    }

    /// The limiter of a key, or the one that all without room share.
    pub(crate) fn line<Q>(&self, key: &Q) -> Result<Line<P, C>, Refusal>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
    {
        self.or_shared(self.own_line(key), |shared| shared)
    }

    /// The limiter of a key for one call.
    pub(crate) fn line_of_a_call<Q>(&self, key: &Q) -> Result<Visit<'_, K, P, C>, Refusal>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
    {
        Ok(self.visit(self.hash_of(key), self.line(key)?))
    }

    /// The limiter in which a request for `n` permits of a key waits. One that can never be granted
    /// leaves no trace.
    #[cold]
    pub(crate) fn line_for<Q>(&self, key: &Q, n: u32) -> Result<Visit<'_, K, P, C>, Refusal>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
    {
        let hash = self.hash_of(key);
        let found = {
            let shard = read(self.shard(hash));
            match shard.line(hash, key) {
                Some(line) => Ok(Some(line.clone())),
                None => shard.policy.check(n).map(|()| None),
            }
        };
        let line = match found {
            Ok(Some(line)) => Ok(line),
            Ok(None) => self.line(key),
            Err(never) => Err(never),
        };
        match line {
            Ok(line) => Ok(self.visit(hash, line)),
            Err(refusal) => self.tell(n, Err(refusal)).and(Err(refusal)),
        }
    }

    /// The limiter of a key, which has one of its own from then on.
    pub(crate) fn own_line<Q>(&self, key: &Q) -> Result<Line<P, C>, Refusal>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
    {
        let hash = self.hash_of(key);
        let is_known = match self.find_hashed(hash, key, |_, _| ()) {
            Found::Line(line) => return Ok(line),
            Found::Known(()) => true,
            Found::Nowhere => false,
        };
        let new = (!is_known && self.has_room()).then(|| key.to_owned());
        self.with_room(hash, key, new, |shard, now, new, removed| {
            if let Some(line) = shard.line(hash, key) {
                return Step::Done(line.clone());
            }
            self.settle_some(shard, hash, now, removed);
            let known = shard.known.place(hash, key);
            // All that may panic comes before the state moves.
            let lines = shard.lines.get_or_insert_with(|| Box::new(Slots::new()));
            lines.reserve(|known| self.hash_of(known));
            let counted = match known {
                Some(_) => None,
                None => match self.count_one() {
                    None => return Step::Room,
                    Some(_) if new.is_none() => return Step::Key,
                    Some(counted) => Some((counted, shard.policy.start_again(now))),
                },
            };
            let (policy, clock) = (P::clone(&shard.policy), self.clock.clone());
            let moved = match counted {
                None => known.and_then(|place| shard.known.remove_at(place)),
                Some((counted, state)) => new.take().map(|key| {
                    counted.keep();
                    (key, state)
                }),
            };
            let Some((key, state)) = moved else { return Step::Room };
            let line = new_line(policy, state, clock, self.events.clone());
            lines.insert(hash, key, line.clone());
            Step::Done(line)
        })
    }
}

/// A limiter that goes on with a state. Runs no foreign code.
pub(super) fn new_line<P, C>(
    policy: P,
    state: P::State,
    clock: C,
    events: Option<Arc<dyn Events>>,
) -> Line<P, C>
where
    P: Policy,
    C: Timer,
{
    RateLimiter::with_state(KeyPolicy::new(policy), state, clock, events)
}
