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
//! The state itself moves from the table into the line and back. So there is one state per key at any time, and whoever has a line
//! needs no look into the table.
//!
//! # Locks
//!
//! The table is cut into shards by the keys' hashes, each under a lock of its own that is shared by those who only look.
//!
//! | operation | lock | why |
//! |---|---|---|
//! | take from a known state | shared, until the state is written | the state is neither moved nor forgotten meanwhile |
//! | find a line | shared; then used without | it lives as long as anybody has it |
//! | add, forget, make a line of a known key, and back | exclusive | nobody is taking |
//! | change the policy of all keys | exclusive, one shard after the other | a state and its policy change as one |
//!
//! **No permit is lost or doubled by forgetting.** A key is judged and forgotten in one exclusive section. A grant before it is in
//! the state that is judged; a request after it does not find the key and adds it anew, as good as it was.
//!
//! **Two first requests of a key.** Whoever comes second looks again under the exclusive lock, and finds it.
//!
//! **Nobody overtakes.** A waiter's line is in the table before its first poll returns. A request that begins later takes the shard's lock
//! later, finds the line, and goes behind by the promise of the gate.
//!
//! **A state and its policy belong together.** Each shard has the policy of its keys, and both are looked at under one shared lock. How they change
//! as one tells `keyed/change.rs`.
//!
//! **Bound.** The count of keys is raised before one is added and lowered after one is removed, so there are never more than allowed.
//!
//! **Readers do not disturb each other.** The lock is crossbeam's `ShardedLock`: a thread that looks writes to a line of its own.
//! `docs/DESIGN.md` has the comparison with other maps.
//!
//! **Foreign code.** `Hash`, `Eq`, `Clone` and `Drop` of keys, policies and clocks run under these locks; wakers, timers and those who watch never do. A queue's lock is
//! taken while a shard is locked, and never the other way round.
//!
//! **Checked by** `loom-tests/keyed.rs`, with twins that judge and forget in two sections, that do not look again, that leave the
//! state where it was.

use std::borrow::Borrow;
use std::hash::{BuildHasher, Hash};
use std::sync::Arc;
use std::time::Duration;

use hashbrown::{DefaultHashBuilder, HashTable};

use super::WhenKeysFull;
use super::for_key::ForKey;
use crate::clock::Timer;
use crate::error::Refusal;
use crate::events::{Events, report};
use crate::limiter::{RateLimiter, Status};
use crate::nanos::Nanos;
use crate::policy::Policy;
use crate::request::Request;
use crate::sync::{AtomicUsize, Mutex, Ordering, ShardLock, read, write};

/// The places of a shard when all keys are there, at least: growing a table of so many stops nobody for long.
const PLACES: usize = 4096;

/// The most shards. More would be locks that are not in the processor's nearest cache; fewer, larger ones take longer to grow.
const MOST_SHARDS: usize = 64;

/// A table that is used up by places of forgotten keys is made anew, instead of twice as large, if that frees so many.
const SPARE: usize = 64;

/// How many places each new key looks at for others that may be forgotten. Two would keep up; more forgets sooner.
const SWEEP: usize = 4;

/// How many places a new key looks at when there is no room.
const SEARCH: usize = 64;

/// The keys of one limiter.
pub(crate) struct Table<K, P: Policy + Clone, C: Timer> {
    pub(crate) clock: C,
    hasher: DefaultHashBuilder,
    pub(crate) shards: Box<[ShardLock<Shard<K, P, C>>]>,
    /// How many keys there are, those included that are being added.
    count: AtomicUsize,
    pub(crate) max_keys: usize,
    pub(crate) when_full: WhenKeysFull,
    /// The shard in which a key without room looks next.
    hand: AtomicUsize,
    /// Of all keys without room, if they share one.
    pub(super) overflow: Line<P, C>,
    /// Held by whoever changes the policy of all keys: so each shard goes through the same changes in the same order.
    pub(super) changing: Mutex<()>,
    /// Told of every call, if anybody watches.
    pub(crate) events: Option<Arc<dyn Events>>,
}

pub(crate) struct Shard<K, P: Policy + Clone, C: Timer> {
    /// Of all keys that have none of their own. It belongs to the states, and changes together with them, under the lock.
    pub(crate) policy: Arc<P>,
    pub(crate) known: HashTable<(K, P::State)>,
    pub(crate) lines: HashTable<(K, Line<P, C>)>,
    /// The place at which sweeping goes on. Also moved by those who only look, and where it stands does not matter to anybody.
    known_hand: AtomicUsize,
    lines_hand: usize,
}

impl<K, P: Policy + Clone, C: Timer> Shard<K, P, C> {
    fn new(policy: Arc<P>) -> Self {
        Shard {
            policy,
            known: HashTable::new(),
            lines: HashTable::new(),
            known_hand: AtomicUsize::new(0),
            lines_hand: 0,
        }
    }

    /// The next so many places, each once.
    fn peek_places(&self, places: usize) -> impl Iterator<Item = usize> + use<K, P, C> {
        let (all, first) = (self.known.num_buckets(), self.known_hand.load(Ordering::Relaxed));
        (0..places.min(all)).map(move |i| first.wrapping_add(i) % all)
    }

    fn skip_places(&self, places: usize) {
        let places = places.min(self.known.num_buckets());
        self.known_hand.fetch_add(places, Ordering::Relaxed);
    }

    /// The same, and goes on after them.
    fn next_places(&self, places: usize) -> impl Iterator<Item = usize> + use<K, P, C> {
        let next = self.peek_places(places);
        self.skip_places(places);
        next
    }
}

/// How many shards there are for so many keys: as many as it takes for their tables to be as full as hashbrown fills one (7 of 8 places), less
/// what random shares deviate, when all keys are there. So no table has to double for the last of them.
fn shards(max_keys: usize) -> usize {
    let with = |places: usize| max_keys.div_ceil(places / 5 * 4);
    let places = std::iter::successors(Some(PLACES), |places| places.checked_mul(2));
    let shards = places.map(with).find(|shards| *shards <= MOST_SHARDS).unwrap_or(MOST_SHARDS);
    let few = (max_keys / SEARCH).min(16);
    shards.max(few).max(1)
}

/// Where a key is, for whoever has to do with it.
pub(crate) enum Found<T, L> {
    /// Its state was used.
    Known(T),
    /// It has a limiter of its own, or shares that of all without room.
    Line(L),
    /// It is not there.
    Nowhere,
}

type Line<P, C> = RateLimiter<ForKey<P>, C>;

/// What a request was told, or the line that it has to ask.
type Asked<P, C> = Found<Result<(), Refusal>, Line<P, C>>;

/// A key, and what it could have or whom to ask.
type Snapshot<K, P, C> = (K, Found<Status, Line<P, C>>);

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
        let policy = Arc::new(policy.anchored(clock.unix_time_at_zero()));
        let state = policy.start(clock.now());
        let overflow = line(&*policy, state, clock.clone(), None);
        Table {
            clock,
            hasher: DefaultHashBuilder::default(),
            shards: (0..shards).map(|_| ShardLock::new(Shard::new(policy.clone()))).collect(),
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
    pub(crate) fn watched_by(self, events: Option<Arc<dyn Events>>) -> Self {
        let policy = self.policy();
        let state = policy.start(self.clock.now());
        let overflow = line(&policy, state, self.clock.clone(), events.clone());
        Table { overflow, events, ..self }
    }

    /// The shard of a hash. Its tables take the lowest bits for places and the highest seven for tags, so this takes those between.
    #[inline]
    fn shard(&self, hash: u64) -> &ShardLock<Shard<K, P, C>> {
        let middle = (hash >> 20) & u64::from(u32::MAX);
        // Below the number of shards.
        #[allow(clippy::cast_possible_truncation)]
        let index = ((middle * self.shards.len() as u64) >> 32) as usize;
        &self.shards[index]
    }

    /// Takes `n` permits of a key.
    #[inline]
    pub(crate) fn try_acquire<Q>(&self, key: &Q, n: u32) -> Result<(), Refusal>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
    {
        self.attempt(key, n, false)
    }

    /// Takes `n` permits of a key, or returns the line to wait in.
    pub(crate) fn take_or_line<Q>(&self, key: &Q, n: u32) -> Result<Option<Line<P, C>>, Refusal>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
    {
        match self.attempt(key, n, true) {
            Ok(()) => Ok(None),
            Err(Refusal::Limited { .. }) => self.line_for(key, n).map(Some),
            Err(refusal) => Err(refusal),
        }
    }

    /// Takes `n` permits of a key. If whoever asks `waits` for it, being limited is not the end: then it is not told, and no line is asked.
    #[inline]
    fn attempt<Q>(&self, key: &Q, n: u32, waits: bool) -> Result<(), Refusal>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
    {
        let hash = self.hasher.hash_one(key);
        {
            let shard = read(self.shard(hash));
            if shard.lines.is_empty()
                && let Some((_, state)) = shard.known.find(hash, |(known, _)| known.borrow() == key)
            {
                let answer = shard.policy.try_acquire(state, self.clock.now(), n).map(drop);
                if self.events.is_none() {
                    return answer;
                }
                drop(shard);
                return self.tell(n, answer, waits);
            }
        }
        self.attempt_slow(hash, key, n, waits)
    }

    /// The same for a key that is new, or in a shard in which somebody waits.
    #[cold]
    fn attempt_slow<Q>(&self, hash: u64, key: &Q, n: u32, waits: bool) -> Result<(), Refusal>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
    {
        match self.ask(hash, key, n) {
            Ok(Some(_)) if waits => Err(Refusal::Limited { retry_after: Nanos::ZERO }),
            Ok(Some(line)) => line.try_acquire_many(n),
            answer => self.tell(n, answer.map(drop), waits),
        }
    }

    /// Takes what a request asks for, of a key.
    pub(crate) fn try_acquire_with<Q>(&self, key: &Q, request: &Request) -> Result<(), Refusal>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
    {
        let (hash, n) = (self.hasher.hash_one(key), request.permits);
        if request.exempt {
            if let Found::Line(line) = self.find_hashed(hash, key, |_, _| ()) {
                return line.try_acquire_with(*request);
            }
            self.report(|events| events.exempted(n.into()));
            return Ok(());
        }
        match self.ask(hash, key, n) {
            Ok(Some(line)) => line.try_acquire_with(*request),
            answer => self.tell(n, answer.map(drop), false),
        }
    }

    /// Tells who watches how a request ended that no line was asked for: a line tells by itself. Not that one is limited which `waits` for it.
    #[cold]
    fn tell(&self, n: u32, answer: Result<(), Refusal>, waits: bool) -> Result<(), Refusal> {
        match &answer {
            Ok(()) => self.report(|events| events.granted(n.into(), Duration::ZERO)),
            Err(Refusal::Limited { .. }) if waits => {}
            Err(refusal) => self.report(|events| events.refused(n.into(), refusal)),
        }
        answer
    }

    /// Tells who watches, if anybody does. Not under the lock of a shard.
    fn report(&self, event: impl FnOnce(&dyn Events)) {
        if let Some(events) = &self.events {
            report(&**events, event);
        }
    }

    /// What those without room share, if they do and there is none.
    pub(crate) fn shared(&self) -> Option<&Line<P, C>> {
        let is_full = self.len() >= self.max_keys;
        (is_full && self.when_full == WhenKeysFull::ShareOne).then_some(&self.overflow)
    }

    /// Takes `n` permits of a key that may be new, or returns the line to ask. Tells nobody.
    fn ask<Q>(&self, hash: u64, key: &Q, n: u32) -> Result<Option<Line<P, C>>, Refusal>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
    {
        let found = match self.find_hashed(hash, key, |policy, state| self.take(policy, state, n)) {
            Found::Nowhere => self.add(hash, key, n)?,
            found => found,
        };
        match found {
            Found::Known(answer) => answer.map(|()| None),
            Found::Line(line) => Ok(Some(line)),
            // It was added.
            Found::Nowhere => Err(self.no_room()),
        }
    }

    /// Takes `n` permits of a state.
    fn take(&self, policy: &P, state: &P::State, n: u32) -> Result<(), Refusal> {
        policy.try_acquire(state, self.clock.now(), n).map(drop)
    }

    /// Looks for a key, and if it is known does something with its state.
    pub(crate) fn find<Q, T>(&self, key: &Q, work: impl FnOnce(&P, &P::State) -> T) -> Found<T, Line<P, C>>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        self.find_hashed(self.hasher.hash_one(key), key, work)
    }

    fn find_hashed<Q, T>(
        &self,
        hash: u64,
        key: &Q,
        work: impl FnOnce(&P, &P::State) -> T,
    ) -> Found<T, Line<P, C>>
    where
        K: Borrow<Q>,
        Q: Eq + ?Sized,
    {
        let shard = read(self.shard(hash));
        if let Some((_, line)) = shard.lines.find(hash, |(known, _)| known.borrow() == key) {
            return Found::Line(line.clone());
        }
        match shard.known.find(hash, |(known, _)| known.borrow() == key) {
            Some((_, state)) => Found::Known(work(&shard.policy, state)),
            None => Found::Nowhere,
        }
    }

    /// What a key could have. One that is not known is as a new one, or as those that share.
    pub(crate) fn status<Q>(&self, key: &Q) -> Status
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let hash = self.hasher.hash_one(key);
        match self.find_hashed(hash, key, |policy, state| status(policy, state, self.clock.now())) {
            Found::Known(status) => status,
            Found::Line(line) => line.status(),
            Found::Nowhere => match self.shared() {
                Some(shared) => shared.status(),
                None => {
                    let (shard, now) = (read(self.shard(hash)), self.clock.now());
                    status(&*shard.policy, &shard.policy.start(now), now)
                }
            },
        }
    }

    /// Adds a key, unless somebody did meanwhile, and takes `n` permits.
    fn add<Q>(&self, hash: u64, key: &Q, n: u32) -> Result<Asked<P, C>, Refusal>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
    {
        let added = self.with_room(hash, |now| {
            let mut shard = write(self.shard(hash));
            if let Some((_, line)) = shard.lines.find(hash, |(known, _)| known.borrow() == key) {
                return Some(Found::Line(line.clone()));
            }
            if let Some((_, state)) = shard.known.find(hash, |(known, _)| known.borrow() == key) {
                return Some(Found::Known(self.take(&shard.policy, state, n)));
            }
            // A request that can never be granted leaves no trace.
            if let Err(never) = shard.policy.check(n) {
                return Some(Found::Known(Err(never)));
            }
            self.sweep(&mut shard, now, SWEEP);
            let counted = self.count_one()?;
            let state = shard.policy.start(now);
            let answer = self.take(&shard.policy, &state, n);
            self.insert(&mut shard, hash, key.to_owned(), state);
            counted.keep();
            Some(Found::Known(answer))
        });
        added.or_else(|refusal| match self.when_full {
            WhenKeysFull::ShareOne => Ok(Found::Line(self.overflow.clone())),
            WhenKeysFull::RefuseNew | WhenKeysFull::ForgetFreshest => Err(refusal),
        })
    }

    /// The limiter of a key, or the one that all without room share.
    pub(crate) fn line<Q>(&self, key: &Q) -> Result<Line<P, C>, Refusal>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
    {
        self.own_line(key).or_else(|refusal| match self.when_full {
            WhenKeysFull::ShareOne => Ok(self.overflow.clone()),
            WhenKeysFull::RefuseNew | WhenKeysFull::ForgetFreshest => Err(refusal),
        })
    }

    /// The limiter in which a request for `n` permits of a key waits. One that can never be granted leaves no trace.
    #[cold]
    pub(crate) fn line_for<Q>(&self, key: &Q, n: u32) -> Result<Line<P, C>, Refusal>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
    {
        let found = {
            let hash = self.hasher.hash_one(key);
            let shard = read(self.shard(hash));
            match shard.lines.find(hash, |(known, _)| known.borrow() == key) {
                Some((_, line)) => Ok(Some(line.clone())),
                None => shard.policy.check(n).map(|()| None),
            }
        };
        let line = match found {
            Ok(Some(line)) => Ok(line),
            Ok(None) => self.line(key),
            Err(never) => Err(never),
        };
        line.inspect_err(|refusal| self.report(|events| events.refused(n.into(), refusal)))
    }

    /// The limiter of a key, which has one of its own from then on.
    pub(crate) fn own_line<Q>(&self, key: &Q) -> Result<Line<P, C>, Refusal>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
    {
        let hash = self.hasher.hash_one(key);
        if let Some((_, line)) = read(self.shard(hash)).lines.find(hash, |(known, _)| known.borrow() == key) {
            return Ok(line.clone());
        }
        self.with_room(hash, |now| {
            let mut shard = write(self.shard(hash));
            if let Some((_, line)) = shard.lines.find(hash, |(known, _)| known.borrow() == key) {
                return Some(line.clone());
            }
            self.settle_lines(&mut shard, now, SWEEP);
            let (key, state) = match shard.known.find_entry(hash, |(known, _)| known.borrow() == key) {
                Ok(entry) => entry.remove().0,
                Err(_) => {
                    let counted = self.count_one()?;
                    let key = key.to_owned();
                    counted.keep();
                    (key, shard.policy.start(now))
                }
            };
            let line = line(&*shard.policy, state, self.clock.clone(), self.events.clone());
            let hasher = |(known, _): &(K, Line<P, C>)| self.hasher.hash_one(known);
            shard.lines.insert_unique(hash, (key, line.clone()), hasher);
            Some(line)
        })
    }

    /// Does what may need room for one more key, and makes room until there is some, or cannot be any.
    fn with_room<T>(&self, hash: u64, mut work: impl FnMut(Nanos) -> Option<T>) -> Result<T, Refusal> {
        // Others may take the room that this one makes, but not always.
        for _ in 0..8 {
            let now = self.clock.now();
            if let Some(done) = work(now) {
                return Ok(done);
            }
            if !self.make_room(hash, now) {
                break;
            }
        }
        Err(self.no_room())
    }

    fn no_room(&self) -> Refusal {
        Refusal::TooManyKeys { limit: self.max_keys }
    }

    /// Counts a key that is about to be added, if it may be.
    fn count_one(&self) -> Option<Counted<'_>> {
        let more = |count: usize| (count < self.max_keys).then(|| count + 1);
        self.count.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).ok().map(|_| Counted(&self.count))
    }

    fn uncount(&self, keys: usize) {
        self.count.fetch_sub(keys, Ordering::Relaxed);
    }

    /// Adds a known key.
    fn insert(&self, shard: &mut Shard<K, P, C>, hash: u64, key: K, state: P::State) {
        let known = &mut shard.known;
        let hasher = |(known, _): &(K, P::State)| self.hasher.hash_one(known);
        // What hashbrown fills of its places, at most.
        let most = known.num_buckets() / 8 * 7;
        if known.len() == known.capacity() && known.len() + SPARE <= most {
            for entry in std::mem::replace(known, HashTable::with_capacity(most)) {
                known.insert_unique(hasher(&entry), entry, hasher);
            }
        }
        known.insert_unique(hash, (key, state), hasher);
    }

    /// Forgets those of the next places that are as good as new. Returns how many.
    fn sweep(&self, shard: &mut Shard<K, P, C>, now: Nanos, places: usize) -> usize {
        let next = shard.next_places(places);
        let Shard { policy, known, .. } = shard;
        let mut forgotten = 0;
        for place in next {
            if let Ok(entry) = known.get_bucket_entry(place)
                && is_fresh(&**policy, &entry.get().1, now)
            {
                entry.remove();
                forgotten += 1;
            }
        }
        self.uncount(forgotten);
        forgotten
    }

    /// Turns some of the lines that nobody needs back into known keys, or forgets them. Returns how many were forgotten.
    fn settle_lines(&self, shard: &mut Shard<K, P, C>, now: Nanos, look: usize) -> usize {
        let mut forgotten = 0;
        let places = shard.lines.num_buckets();
        for _ in 0..look.min(places) {
            shard.lines_hand = (shard.lines_hand + 1) % places;
            let Ok(entry) = shard.lines.get_bucket_entry(shard.lines_hand) else { continue };
            let line = &entry.get().1;
            if !line.is_idle() || line.policy().is_own() {
                continue;
            }
            let fresh = is_fresh(line.policy(), line.state(), now);
            if !fresh && !line.policy().shares_states() {
                continue;
            }
            let ((key, line), _) = entry.remove();
            let hash = self.hasher.hash_one(&key);
            match line.into_state() {
                Ok(_) if fresh => forgotten += 1,
                Ok(state) => self.insert(shard, hash, key, state),
                // Its alarm is ringing just now.
                Err(line) => {
                    shard.lines.insert_unique(hash, (key, line), |(known, _)| self.hasher.hash_one(known));
                }
            }
        }
        self.uncount(forgotten);
        forgotten
    }

    /// Looks around for keys that may be forgotten. Returns whether there was one.
    fn make_room(&self, hash: u64, now: Nanos) -> bool {
        let mut looked = 0;
        for lock in self.all_from_hand() {
            if looked >= SEARCH {
                break;
            }
            let (fresh, lines) = {
                let shard = read(lock);
                looked += shard.known.num_buckets().clamp(1, SEARCH);
                let mut places = shard.peek_places(SEARCH);
                let fresh = |place| {
                    let state = shard.known.get_bucket(place);
                    state.is_some_and(|(_, state)| is_fresh(&*shard.policy, state, now))
                };
                (places.any(fresh), !shard.lines.is_empty())
            };
            if fresh || lines {
                let mut shard = write(lock);
                if self.settle_lines(&mut shard, now, SEARCH) + self.sweep(&mut shard, now, SEARCH) > 0 {
                    return true;
                }
            } else {
                read(lock).skip_places(SEARCH);
            }
        }
        matches!(self.when_full, WhenKeysFull::ForgetFreshest) && self.forget_freshest(hash, now)
    }

    /// Forgets the key that is closest to fresh, of some that stand next to each other. Returns whether there was one.
    ///
    /// They stand in the shard of the new key, unless that has none, so that shards stay as full as they are.
    fn forget_freshest(&self, hash: u64, now: Nanos) -> bool {
        for lock in std::iter::once(self.shard(hash)).chain(self.all_from_hand()) {
            let mut shard = write(lock);
            let full_at = |place: &usize| {
                let (_, state) = shard.known.get_bucket(*place)?;
                Some(shard.policy.status(state, now).full_at)
            };
            let known = shard.next_places(SEARCH).filter_map(|place| Some((full_at(&place)?, place)));
            if let Some((_, place)) = known.min()
                && let Ok(entry) = shard.known.get_bucket_entry(place)
            {
                entry.remove();
                self.uncount(1);
                return true;
            }
        }
        false
    }

    /// All shards, from another one each time.
    fn all_from_hand(&self) -> impl Iterator<Item = &ShardLock<Shard<K, P, C>>> {
        let first = self.hand.fetch_add(1, Ordering::Relaxed) % self.shards.len();
        let (before, after) = self.shards.split_at(first);
        after.iter().chain(before)
    }

    /// Forgets a key and what it owes. Returns whether it was known. Whoever has its limiter keeps that.
    pub(crate) fn remove<Q>(&self, key: &Q) -> bool
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let hash = self.hasher.hash_one(key);
        let mut shard = write(self.shard(hash));
        let known = shard.known.find_entry(hash, |(known, _)| known.borrow() == key).ok();
        let known = known.map(|entry| entry.remove().0);
        let line = shard.lines.find_entry(hash, |(known, _)| known.borrow() == key).ok();
        let line = line.map(|entry| entry.remove().0);
        drop(shard);
        let found = known.is_some() || line.is_some();
        self.uncount(usize::from(found));
        // The line is dropped here, without the lock.
        found
    }

    /// Forgets all keys that are as good as new.
    pub(crate) fn sweep_all(&self) {
        for lock in &self.shards {
            let now = self.clock.now();
            let mut shard = write(lock);
            let (places, lines) = (shard.known.num_buckets(), shard.lines.num_buckets());
            self.settle_lines(&mut shard, now, lines);
            self.sweep(&mut shard, now, places);
        }
    }
}

/// A limiter that goes on with a state.
fn line<P, C>(policy: &P, state: P::State, clock: C, events: Option<Arc<dyn Events>>) -> Line<P, C>
where
    P: Policy + Clone,
    C: Timer,
{
    RateLimiter::with_state(ForKey::new(policy.clone()), state, clock, events)
}

/// Whether a state is as good as new.
fn is_fresh<P: Policy>(policy: &P, state: &P::State, now: Nanos) -> bool {
    policy.status(state, now).full_at <= now
}

/// What could be had of a state for which nobody waits.
fn status<P: Policy>(policy: &P, state: &P::State, now: Nanos) -> Status {
    Status::new(policy.status(state, now), now, 0)
}

/// A key is counted. If it is not added after all, because its `Clone` panics, it is no more.
struct Counted<'a>(&'a AtomicUsize);

impl Counted<'_> {
    /// It was added.
    fn keep(self) {
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
    pub(crate) fn shards(&self) -> impl Iterator<Item = Vec<Snapshot<K, P, C>>> {
        self.shards.iter().map(|lock| {
            let (shard, now) = (read(lock), self.clock.now());
            let known = shard
                .known
                .iter()
                .map(|(key, state)| (key.clone(), Found::Known(status(&*shard.policy, state, now))));
            let lines = shard.lines.iter().map(|(key, line)| (key.clone(), Found::Line(line.clone())));
            known.chain(lines).collect()
        })
    }
}
