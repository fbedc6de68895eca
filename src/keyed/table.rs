//! The keys: which there are, which may be forgotten, and what becomes of one that has to wait.
//!
//! # States of a key
//!
//! | where | it costs | becomes |
//! |---|---|---|
//! | nowhere | nothing | known, by its first request |
//! | known: a state in the table | its state and the key | a line, when somebody has to wait or asks for its limiter; nowhere, when it is as good as new |
//! | a line: a whole limiter | a limiter | known or nowhere again, when nobody waits, nobody has the limiter, and nothing was set for this key |
//!
//! `keyed/forget.rs` has the ways back: when a key is forgotten, and when a line becomes a known
//! key again.
//!
//! The state itself moves from the table into the line and back. So there is one state per key at
//! any time, and whoever has a line needs no look into the table.
//!
//! # Locks
//!
//! The table is cut into shards by the keys' hashes, each under a lock of its own that is shared by
//! those who only look.
//!
//! | operation | lock | why |
//! |---|---|---|
//! | take from a known state | shared, until the state is written | the state is neither moved nor forgotten meanwhile |
//! | find a line | shared; then used without | it lives as long as anybody has it |
//! | add, forget, make a line of a known key, and back | exclusive | nobody is taking |
//! | change the policy of all keys | exclusive, one shard after the other | a state and its policy change as one |
//!
//! **No permit is lost or doubled by forgetting.** A key is judged and forgotten in one exclusive
//! section. A grant before it is in the state that is judged; a request after it does not find the
//! key and adds it anew, as good as it was.
//!
//! **Two first requests of a key.** The second request looks again under the exclusive lock, and
//! finds the key.
//!
//! **Nobody overtakes.** A waiter's line is in the table before its first poll returns. A request
//! that begins later takes the shard's lock later, finds the line, and goes behind by the promise
//! of the limiter.
//!
//! **A state and its policy belong together.** Each shard has the policy of its keys, and both are
//! looked at under one shared lock. How they change as one tells `keyed/change.rs`.
//!
//! **Bound.** The count of keys is raised before one is added and lowered after one is removed, so
//! there are never more than allowed.
//!
//! **Readers do not disturb each other.** The lock is crossbeam's `ShardedLock`: a thread that
//! looks writes to a line of its own. `docs/DESIGN.md` has the comparison with other maps.
//!
//! **Foreign code.** The table calls the code of its keys, its policy, its clock and its observer.
//!
//! | code | runs under a lock | if it panics |
//! |---|---|---|
//! | `Hash` of the key that is asked for, `Clone` of a new key | no | nothing has changed |
//! | `Drop` of a key, a state, a limiter | no: `keyed/removed.rs` | the others are dropped, then the panic goes on |
//! | `Eq` of keys; `Clone` of keys by `iter` | of a shard | nothing has changed |
//! | `Hash` of the known keys, when their table grows | of a shard, exclusive | nothing has changed: `keyed/slots.rs` |
//! | policies, clocks | of a shard | a key that was not added is not counted |
//! | wakers, timers, observers | no | the panic goes on |
//!
//! So an entry that is in a table is counted once, and one that is not is not counted: the count
//! is raised just before an entry goes in and lowered as soon as it is out, with no foreign code
//! between that a guard does not answer for.
//!
//! A queue's lock is taken while a shard is locked, and never the other way round.
//!
//! **Checked by** `loom-tests/keyed/table.rs`, with twins that judge and forget in two sections, that do
//! not look again, that leave the state where it was.

use std::borrow::Borrow;
use std::hash::{BuildHasher, Hash};
use std::sync::Arc;
use std::time::Duration;

use hashbrown::DefaultHashBuilder;

use super::WhenKeysFull;
use super::key_policy::KeyPolicy;
use super::lines::{Visit, new_line};
use super::removed::Removed;
use super::shard::{Locked, Shard};
use crate::clock::Timer;
use crate::error::Refusal;
use crate::limiter::RateLimiter;
use crate::limiter::events::{Events, report};
use crate::policy::Policy;
use crate::request::Request;
use crate::status::Status;
use crate::sync::{AtomicUsize, Mutex, Ordering, ShardLock, read, write};
use crate::time::Nanos;

/// The places of a shard when all keys are there, at least: growing a table of so many stops nobody
/// for long.
const PLACES: usize = 4096;

/// The most shards. More would be locks that are not in the processor's nearest cache; fewer,
/// larger ones take longer to grow.
const MOST_SHARDS: usize = 64;

/// How many places are searched for a key that may be forgotten, when there is no room.
pub(super) const SEARCH: usize = 64;

/// How often a request makes room before it gives up, if other requests take the room each time.
const TRIES: usize = 8;

/// The keys of one limiter.
pub(crate) struct Table<K, P: Policy + Clone, C: Timer> {
    pub(crate) clock: C,
    pub(super) hasher: DefaultHashBuilder,
    pub(crate) shards: Box<[Locked<K, P, C>]>,
    /// How many keys there are, those included that are being added.
    pub(super) count: AtomicUsize,
    pub(crate) max_keys: usize,
    pub(crate) when_full: WhenKeysFull,
    /// How often a new key without room looked around: so the next one looks elsewhere.
    pub(super) hand: AtomicUsize,
    /// Of all keys without room, if they share one.
    pub(super) overflow: Line<P, C>,
    /// Held by whoever changes the policy of all keys: so each shard goes through the same changes
    /// in the same order.
    pub(super) changing: Mutex<()>,
    /// Told of every call, if anybody watches.
    pub(crate) events: Option<Arc<dyn Events>>,
}

/// How many shards there are for so many keys: as many as it takes for their tables to be as full
/// as hashbrown fills one (7 of 8 places), less what random shares deviate, when all keys are
/// there. So no table has to double for the last of them.
fn shards(max_keys: usize) -> usize {
    let with = |places: usize| max_keys.div_ceil(places / 5 * 4);
    let places = std::iter::successors(Some(PLACES), |places| places.checked_mul(2));
    let shards = places.map(with).find(|shards| *shards <= MOST_SHARDS).unwrap_or(MOST_SHARDS);
    let few = (max_keys / SEARCH).min(16);
    shards.max(few).max(1)
}

/// Where a key is.
pub(crate) enum Found<T, L> {
    /// Its state was used.
    Known(T),
    /// It has a limiter of its own, or shares that of all without room.
    Line(L),
    /// It is not there.
    Nowhere,
}

pub(crate) type Line<P, C> = RateLimiter<KeyPolicy<P>, C>;

/// What a request was told, or the line that it has to ask.
type Asked<P, C> = Found<Result<(), Refusal>, Line<P, C>>;

/// A key, and what it could have or whom to ask.
type StatisticsSnapshot<K, P, C> = (K, Found<Status, Line<P, C>>);

/// How far a request that may need a place for its key got under the lock.
pub(super) enum Step<T> {
    Done(T),
    /// It needs a key to keep, which is cloned without the lock.
    Key,
    /// It needs a place.
    Room,
}

impl<K, P: Policy + Clone, C: Timer> Table<K, P, C> {
    /// How many keys there are.
    pub(crate) fn len(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }

    /// The policy of all keys that have none of their own; while it changes, of some of them.
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
        Table::with_shards(policy, max_keys, when_full, clock, shards(max_keys))
    }

    pub(crate) fn with_shards(
        policy: P,
        max_keys: usize,
        when_full: WhenKeysFull,
        clock: C,
        shards: usize,
    ) -> Self {
        let policy = Arc::new(policy.with_epoch(clock.unix_time_at_zero()));
        let state = policy.start(clock.now());
        let overflow = new_line(P::clone(&policy), state, clock.clone(), None);
        Table {
            clock,
            hasher: DefaultHashBuilder::default(),
            shards: (0..shards).map(|_| Locked(ShardLock::new(Shard::new(policy.clone())))).collect(),
            count: AtomicUsize::new(0),
            max_keys,
            when_full,
            hand: AtomicUsize::new(0),
            overflow,
            changing: Mutex::new(()),
            events: None,
        }
    }

    /// The same table, still empty, with somebody who is told of every call.
    pub(crate) fn observed_by(self, events: Option<Arc<dyn Events>>) -> Self {
        let policy = self.policy();
        let state = policy.start(self.clock.now());
        let overflow = new_line(policy, state, self.clock.clone(), events.clone());
        Table { overflow, events, ..self }
    }

    pub(crate) fn hash_of<Q: Hash + ?Sized>(&self, key: &Q) -> u64 {
        self.hasher.hash_one(key)
    }

    /// The shard of a hash. Its tables take the lowest bits for places and the highest seven for
    /// tags, so this takes those between.
    #[inline]
    pub(super) fn shard(&self, hash: u64) -> &Locked<K, P, C> {
        let middle = (hash >> 20) & u64::from(u32::MAX);
        // Below the number of shards.
        #[allow(clippy::cast_possible_truncation)]
        let index = ((middle * self.shards.len() as u64) >> 32) as usize;
        &self.shards[index]
    }

    /// Takes what a request asks for, of a key.
    #[inline]
    pub(crate) fn try_acquire<Q>(&self, key: &Q, request: &Request) -> Result<(), Refusal>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
    {
        let (hash, n) = (self.hash_of(key), request.permits);
        if request.exempt {
            return self.pass_exempt(hash, key, request);
        }
        match self.try_known(hash, key, n) {
            Some(answer) if self.events.is_none() => answer,
            Some(answer) => self.tell(n, answer),
            None => self.try_slow(hash, key, request),
        }
    }

    /// Takes `n` permits of a key if it is known, and its shard has no lines. Tells nobody.
    #[inline]
    fn try_known<Q>(&self, hash: u64, key: &Q, n: u32) -> Option<Result<(), Refusal>>
    where
        K: Borrow<Q>,
        Q: Eq + ?Sized,
    {
        // Before the lock, so that the processor does both at the same time.
        let now = self.clock.now();
        let shard = read(self.shard(hash));
        if shard.lines.is_some() {
            return None;
        }
        let state = shard.known.find(hash, key)?;
        Some(take(&shard.policy, state, now, n))
    }

    /// The same for a key that is new, or in a shard with lines.
    #[cold]
    fn try_slow<Q>(&self, hash: u64, key: &Q, request: &Request) -> Result<(), Refusal>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
    {
        match self.ask(hash, key, request.permits) {
            Ok(Some(line)) => line.try_acquire_many(*request),
            answer => self.tell(request.permits, answer.map(drop)),
        }
    }

    /// Takes what a request asks for, of a key, or returns the line to wait in.
    pub(crate) fn take_or_line<Q>(
        &self,
        key: &Q,
        request: &Request,
    ) -> Result<Option<Visit<'_, K, P, C>>, Refusal>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
    {
        let (hash, n) = (self.hash_of(key), request.permits);
        if request.exempt {
            return self.pass_exempt(hash, key, request).map(|()| None);
        }
        let answer = match self.try_known(hash, key, n) {
            Some(answer) => answer.map(|()| None),
            None => self.ask(hash, key, n),
        };
        match answer {
            Ok(Some(line)) => Ok(Some(line)),
            // It is told when it was served.
            Err(Refusal::Limited { .. }) => self.line_for(key, n).map(Some),
            answer => self.tell(n, answer.map(drop)).map(|()| None),
        }
    }

    /// Lets an exempt request pass. It takes nothing, so a key that is new stays unknown.
    #[cold]
    fn pass_exempt<Q>(&self, hash: u64, key: &Q, request: &Request) -> Result<(), Refusal>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
    {
        if let Found::Line(line) = self.find_hashed(hash, key, |_, _| ()) {
            return self.visit(hash, line).try_acquire_many(*request);
        }
        self.report(|events| events.exempted(request.permits.into()));
        Ok(())
    }

    /// Tells the observer how a request ended that no line was asked for: a line tells by itself.
    #[cold]
    pub(super) fn tell(&self, n: u32, answer: Result<(), Refusal>) -> Result<(), Refusal> {
        self.report(|events| match &answer {
            Ok(()) => events.granted(n.into(), Duration::ZERO),
            Err(refusal) => events.refused(n.into(), refusal),
        });
        answer
    }

    /// Tells the observer, if there is one. Not under the lock of a shard.
    fn report(&self, event: impl FnOnce(&dyn Events)) {
        if let Some(events) = &self.events {
            report(&**events, event);
        }
    }

    /// What the keys without room share, if they do and a new key would find no room.
    pub(crate) fn shared(&self) -> Option<&Line<P, C>> {
        let shares = self.when_full == WhenKeysFull::ShareOne && !self.has_room();
        (shares && !self.can_make_room(self.clock.now())).then_some(&self.overflow)
    }

    /// Takes `n` permits of a key that may be new, or returns the line to ask. Tells nobody.
    fn ask<Q>(&self, hash: u64, key: &Q, n: u32) -> Result<Option<Visit<'_, K, P, C>>, Refusal>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
    {
        let found =
            match self.find_hashed(hash, key, |policy, state| take(policy, state, self.clock.now(), n)) {
                Found::Nowhere => self.add(hash, key, n)?,
                found => found,
            };
        match found {
            Found::Known(answer) => answer.map(|()| None),
            Found::Line(line) => Ok(Some(self.visit(hash, line))),
            // It was added.
            Found::Nowhere => Err(self.no_room()),
        }
    }

    /// Looks for a key, and if it is known does something with its state.
    pub(crate) fn find<Q, T>(
        &self,
        key: &Q,
        work: impl FnOnce(&Arc<P>, &P::State) -> T,
    ) -> Found<T, Line<P, C>>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        self.find_hashed(self.hash_of(key), key, work)
    }

    pub(super) fn find_hashed<Q, T>(
        &self,
        hash: u64,
        key: &Q,
        work: impl FnOnce(&Arc<P>, &P::State) -> T,
    ) -> Found<T, Line<P, C>>
    where
        K: Borrow<Q>,
        Q: Eq + ?Sized,
    {
        let shard = read(self.shard(hash));
        if let Some(line) = shard.line(hash, key) {
            return Found::Line(line.clone());
        }
        match shard.known.find(hash, key) {
            Some(state) => Found::Known(work(&shard.policy, state)),
            None => Found::Nowhere,
        }
    }

    /// What a key could have. One that is not known is as a new one, or as those that share.
    pub(crate) fn status<Q>(&self, key: &Q) -> Status
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let hash = self.hash_of(key);
        match self.find_hashed(hash, key, |policy, state| status(&**policy, state, self.clock.now())) {
            Found::Known(status) => status,
            Found::Line(line) => line.status(),
            Found::Nowhere => match self.shared() {
                Some(shared) => shared.status(),
                None => {
                    let (shard, now) = (read(self.shard(hash)), self.clock.now());
                    status(&*shard.policy, &shard.policy.start_again(now), now)
                }
            },
        }
    }

    /// Adds a key, unless another request did meanwhile, and takes `n` permits.
    fn add<Q>(&self, hash: u64, key: &Q, n: u32) -> Result<Asked<P, C>, Refusal>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
    {
        let new = self.has_room().then(|| key.to_owned());
        let added = self.with_room(hash, key, new, |shard, now, new, removed| {
            if let Some(line) = shard.line(hash, key) {
                return Step::Done(Found::Line(line.clone()));
            }
            if let Some(state) = shard.known.find(hash, key) {
                return Step::Done(Found::Known(take(&shard.policy, state, self.clock.now(), n)));
            }
            // A request that can never be granted leaves no trace.
            if let Err(never) = shard.policy.check(n) {
                return Step::Done(Found::Known(Err(never)));
            }
            self.forget_some(shard, hash, now, removed);
            let Some(counted) = self.count_one() else { return Step::Room };
            if new.is_none() {
                return Step::Key;
            }
            let state = shard.policy.start_again(now);
            let answer = take(&shard.policy, &state, self.clock.now(), n);
            shard.known.reserve(|known| self.hash_of(known));
            // From here on nothing can panic.
            if let Some(key) = new.take() {
                shard.known.insert(hash, key, state);
                counted.keep();
            }
            Step::Done(Found::Known(answer))
        });
        self.or_shared(added, Found::Line)
    }

    /// What was found, or for a key without room the line that all of them share, if they do.
    pub(super) fn or_shared<T>(
        &self,
        found: Result<T, Refusal>,
        shared: fn(Line<P, C>) -> T,
    ) -> Result<T, Refusal> {
        found.or_else(|refusal| match self.when_full {
            WhenKeysFull::ShareOne => Ok(shared(self.overflow.clone())),
            WhenKeysFull::RefuseNew | WhenKeysFull::ForgetFreshest => Err(refusal),
        })
    }

    /// Does what may need a place and a key to keep in it, under the lock of a shard. Makes a place
    /// until there is one, or none can be made.
    pub(super) fn with_room<Q, T>(
        &self,
        hash: u64,
        key: &Q,
        mut new: Option<K>,
        mut work: impl FnMut(&mut Shard<K, P, C>, Nanos, &mut Option<K>, &mut Removed<K, P, C>) -> Step<T>,
    ) -> Result<T, Refusal>
    where
        Q: ToOwned<Owned = K> + ?Sized,
    {
        let mut removed = Removed::new();
        let mut tries = 0;
        while tries < TRIES {
            let now = self.clock.now();
            let step = work(&mut write(self.shard(hash)), now, &mut new, &mut removed);
            match step {
                Step::Done(done) => {
                    // Before the answer is in the caller's hands: an answer that is being returned
                    // when a drop panics is leaked, and a limiter's handle with it.
                    drop(removed);
                    return Ok(done);
                }
                Step::Key => new = Some(key.to_owned()),
                Step::Room if !self.make_room(hash, now, &mut removed) => break,
                // Other requests may take the room that this one makes, but not always.
                Step::Room => tries += 1,
            }
        }
        Err(self.no_room())
    }

    fn no_room(&self) -> Refusal {
        Refusal::TooManyKeys { limit: self.max_keys }
    }

    /// Whether a key can be added without forgetting another one.
    pub(super) fn has_room(&self) -> bool {
        self.len() < self.max_keys
    }

    /// Counts a key that is about to be added, if it may be.
    pub(super) fn count_one(&self) -> Option<Counted<'_>> {
        let more = |count: usize| (count < self.max_keys).then(|| count + 1);
        let counted = self.count.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
        counted.ok().map(|_| Counted(&self.count))
    }

    pub(super) fn uncount(&self) {
        self.count.fetch_sub(1, Ordering::Relaxed);
    }

    /// Forgets a key and what it owes. Returns whether it was known. A caller that has its limiter
    /// keeps that.
    pub(crate) fn remove<Q>(&self, key: &Q) -> bool
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let hash = self.hash_of(key);
        let mut removed = Removed::new();
        let mut shard = write(self.shard(hash));
        let known = shard.known.place(hash, key);
        let line = shard.lines().and_then(|lines| lines.place(hash, key));
        let (_, known_keys, lines) = shard.parts();
        if let Some(entry) = known.and_then(|place| known_keys.remove_at(place)) {
            self.uncount();
            removed.key(entry);
        }
        if let Some(entry) = lines.zip(line).and_then(|(lines, place)| lines.remove_at(place)) {
            self.uncount();
            removed.lines.push(entry);
        }
        known.is_some() || line.is_some()
    }
}

/// Takes `n` permits of a state.
#[inline]
fn take<P: Policy>(policy: &Arc<P>, state: &P::State, now: Nanos, n: u32) -> Result<(), Refusal> {
    // `?` leaves a charge where it is. `map(drop)` would bring charge and refusal to one place
    // first.
    policy.try_acquire(state, now, n)?;
    Ok(())
}

/// What could be had of a state for which nobody waits.
fn status<P: Policy>(policy: &P, state: &P::State, now: Nanos) -> Status {
    Status::new(policy.status(state, now), now, 0)
}

/// A key is counted. If it is not added after all, because foreign code panics, it is no more.
pub(super) struct Counted<'a>(&'a AtomicUsize);

impl Counted<'_> {
    /// It was added.
    pub(super) fn keep(self) {
        std::mem::forget(self);
    }
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl<K, P, C> Table<K, P, C>
where
    K: Clone,
    P: Policy + Clone,
    C: Timer + Clone,
{
    /// The keys of one shard after the other.
    pub(crate) fn shards(&self) -> impl Iterator<Item = Vec<StatisticsSnapshot<K, P, C>>> {
        self.shards.iter().map(|lock| {
            let (shard, now) = (read(lock), self.clock.now());
            let known = shard
                .known
                .iter()
                .map(|(key, state)| (key.clone(), Found::Known(status(&*shard.policy, state, now))));
            let lines = shard.all_lines().map(|(key, line)| (key.clone(), Found::Line(line.clone())));
            known.chain(lines).collect()
        })
    }
}
