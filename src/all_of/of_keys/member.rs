//! A limiter of keys as a member: the calls that a composite makes to it, with the key as an
//! argument.
//!
//! A known key without a queue is decided in the table. So a request that is decided at once
//! creates no limiter for its key.

use std::borrow::Borrow;
use std::hash::Hash;
use std::marker::PhantomData;
use std::sync::Arc;

use crate::all_of::all::{AbsentKey, Kind};
use crate::all_of::member::{Member, Wait};
use crate::all_of::of_keys::composites::Number;
use crate::clock::Timer;
use crate::counting::CountingLimit;
use crate::error::Refusal;
use crate::grant::Left;
use crate::keyed::pause::Hold;
use crate::keyed::table::{Attempt, Found, Table};
use crate::keyed::{KeyedCountingLimit, KeyedRateLimiter};
use crate::limiter::RateLimiter;
use crate::line::deferred::run;
use crate::policy::{Policy, Unlimited};
use crate::request::Request;
use crate::status::Status;

/// A limiter of keys, of any policy.
pub(crate) trait KeyedMember<Q: ?Sized>: Send + Sync {
    /// Returns its address, which is equal for all clones.
    fn address(&self) -> usize;

    /// Returns this member, if it can be asked without a limiter for the key. A limit of permits in
    /// use cannot, because its permits belong to the limiter of the key.
    fn in_table(&self) -> Option<&dyn InTable<Q>>;

    /// Returns the limiter of a key, which is in use until the lease is dropped. Unless it is
    /// `asked` for permits, no other key in use makes room for the key.
    fn lease(&self, key: &Q, asked: bool) -> Result<Lease, Refusal>;

    /// Returns a limiter that is in no table, for requests that this member lets pass without
    /// permits. What is charged to it is charged to the key.
    fn placeholder(&self, key: &Q) -> Lease;

    /// Returns the number of the limiter that a key has now, or else the number of its placeholder.
    fn number(&self, key: &Q) -> Number;

    /// Returns how long until `n` permits are due, behind all waiters; or why they never will be,
    /// or that they are in use. Takes no permits, and adds no key.
    fn predict_wait(&self, key: &Q, n: u32, priority: i8) -> Result<Wait, Refusal>;

    fn status(&self, key: &Q) -> Status;
}

/// The calls for a decision about a key that needs no composite.
pub(crate) trait InTable<Q: ?Sized> {
    /// Returns whether a refused request passes, because all keys are in shadow mode.
    fn passes(&self, refusal: Refusal) -> bool;

    /// Takes `n` permits now, or none. Notifies no observer. Sets `left`, if given, to what this
    /// leaves. Returns whether it took permits: in shadow mode it may let the request pass without.
    fn take(&self, key: &Q, asked: (u32, i8), left: Option<&mut Option<Left>>) -> Result<bool, Refusal>;
}

/// The limiter of a key, as a member of the key's composite.
pub(crate) struct Lease {
    /// Dropped before `leave`, because the table settles a limiter to which it has the only handle.
    pub(crate) kind: Kind,
    pub(crate) number: Number,
    /// For a placeholder, the key in its limiter of keys.
    pub(crate) placeholder_of: Option<Arc<dyn AbsentKey>>,
    /// Dropping this notifies the table of keys.
    pub(crate) leave: Box<dyn Send + Sync>,
}

struct Leave<K: Hash + Eq, P: Policy + Clone, C: Timer + Clone> {
    table: Arc<Table<K, P, C>>,
    hash: u64,
    number: u64,
}

impl<K: Hash + Eq, P: Policy + Clone, C: Timer + Clone> Drop for Leave<K, P, C> {
    fn drop(&mut self) {
        // A clock or a hash that panics here would cost the call its grant.
        _ = run(&mut None, || self.table.leave(self.hash, self.number));
    }
}

/// A limiter of keys, and the part of the composite's key that is the key here.
pub(crate) struct ByKey<K, P: Policy + Clone, C: Timer, R: ?Sized, F> {
    pub(crate) limiter: KeyedRateLimiter<K, P, C>,
    /// A function of the composite's key; for a placeholder, the part itself.
    pub(crate) part: F,
    pub(crate) of: PhantomData<fn(&R)>,
}

impl<Q, K, P, C, R, F> KeyedMember<Q> for ByKey<K, P, C, R, F>
where
    Q: ?Sized,
    K: Borrow<R> + Hash + Eq + Send + Sync + 'static,
    P: Policy + Clone,
    C: Timer + Clone,
    R: Hash + Eq + ToOwned<Owned = K> + ?Sized + 'static,
    F: Fn(&Q) -> &R + Send + Sync,
{
    fn address(&self) -> usize {
        Arc::as_ptr(self.limiter.table()).addr()
    }

    fn in_table(&self) -> Option<&dyn InTable<Q>> {
        Some(self)
    }

    fn lease(&self, key: &Q, asked: bool) -> Result<Lease, Refusal> {
        let (table, key) = (self.limiter.table(), (self.part)(key));
        let hash = table.hash_of(key);
        let limiter = if asked { table.limiter(key)? } else { table.limiter_in_room(key)? };
        let number = limiter.shared.number;
        let leave = Box::new(Leave { table: table.clone(), hash, number });
        let (kind, number) = (Kind::Rate(Arc::new(limiter)), Number::Limiter(number));
        Ok(Lease { kind, number, placeholder_of: None, leave })
    }

    fn placeholder(&self, key: &Q) -> Lease {
        let (table, key) = (self.limiter.table(), (self.part)(key));
        let limiter = RateLimiter::with_clock(Unlimited, table.clock.clone());
        let number = Number::Placeholder(table.hash_of(key));
        let absent = ByKey { limiter: self.limiter.clone(), part: key.to_owned(), of: self.of };
        let placeholder_of = Some(Arc::new(absent) as Arc<dyn AbsentKey>);
        Lease { kind: Kind::Rate(Arc::new(limiter)), number, placeholder_of, leave: Box::new(()) }
    }

    fn number(&self, key: &Q) -> Number {
        let (table, key) = (self.limiter.table(), (self.part)(key));
        let hash = table.hash_of(key);
        let shared = match table.find_hashed(hash, key, |_, _, _| ()) {
            Found::Limiter(limiter) => return Number::Limiter(limiter.shared.number),
            Found::Known(()) => None,
            Found::Unknown => table.shared(),
        };
        shared.map_or(Number::Placeholder(hash), |limiter| Number::Limiter(limiter.shared.number))
    }

    fn predict_wait(&self, key: &Q, n: u32, priority: i8) -> Result<Wait, Refusal> {
        let (table, key) = (self.limiter.table(), (self.part)(key));
        let predict_wait = |policy: &P, state: &P::State, hold: Option<&Hold>| {
            policy.check(n)?;
            let now = table.clock.now();
            let due = match hold {
                Some(hold) => hold.due(policy, state, n),
                None => policy.ready_at(state, now, 0, n),
            };
            let paused = hold.is_some_and(|hold| now < hold.opens);
            Ok(Wait { time: due.saturating_since(now), paused })
        };
        let predict_wait_at = |limiter: &RateLimiter<P, C>| {
            limiter.check(n, priority)?;
            Ok(limiter.predict_wait(n, priority))
        };
        let wait = match table.find(key, predict_wait) {
            Found::Known(answer) => answer,
            Found::Limiter(limiter) => predict_wait_at(&limiter),
            Found::Unknown if table.is_closed() => Err(Refusal::Closed),
            Found::Unknown => match table.instead_of_new() {
                Some(Ok(limiter)) => predict_wait_at(limiter),
                Some(Err(no_room)) => table.unknown(key, predict_wait).and(Err(no_room)),
                None => table.unknown(key, predict_wait),
            },
        };
        match wait {
            Err(Refusal::Closed) => Err(Refusal::Closed),
            _ if table.is_shadow() => Ok(Wait::NONE),
            wait => wait,
        }
    }

    fn status(&self, key: &Q) -> Status {
        self.limiter.table().status((self.part)(key))
    }
}

impl<Q, K, P, C, R, F> InTable<Q> for ByKey<K, P, C, R, F>
where
    Q: ?Sized,
    K: Borrow<R> + Hash + Eq + Send + Sync + 'static,
    P: Policy + Clone,
    C: Timer + Clone,
    R: Hash + Eq + ToOwned<Owned = K> + ?Sized,
    F: Fn(&Q) -> &R + Send + Sync,
{
    fn passes(&self, refusal: Refusal) -> bool {
        self.limiter.table().passes(refusal)
    }

    fn take(
        &self,
        key: &Q,
        (n, priority): (u32, i8),
        left: Option<&mut Option<Left>>,
    ) -> Result<bool, Refusal> {
        let (table, key) = (self.limiter.table(), (self.part)(key));
        let request = Request { wants_left: left.is_some(), ..Request::permits(n).priority(priority) };
        match table.attempt(table.hash_of(key), key, &request) {
            Ok(Attempt::Granted(grant)) => {
                if let Some(left) = left {
                    *left = grant.left();
                }
                Ok(true)
            }
            Ok(Attempt::Limiter(limiter)) => limiter.take_then((n, priority), left, &mut || Ok(())),
            // Like a member in shadow mode, it refuses no request.
            Err(refusal) if table.passes(refusal) => Ok(false),
            Err(refusal) => Err(refusal),
        }
    }
}

impl<K, P, C, R> AbsentKey for ByKey<K, P, C, R, K>
where
    K: Borrow<R> + Hash + Eq + Send + Sync + 'static,
    P: Policy + Clone,
    C: Timer + Clone,
    R: Hash + Eq + ToOwned<Owned = K> + ?Sized,
{
    fn debit(&self, n: u32) {
        // Without room for the key, no state counts what it uses.
        _ = self.limiter.debit(self.part.borrow(), n);
    }

    fn refund(&self, n: u32) {
        self.limiter.refund(self.part.borrow(), n);
    }

    fn keep_at_most(&self, permits: u64) -> u64 {
        self.limiter.keep_at_most(self.part.borrow(), permits).unwrap_or(0)
    }

    fn status(&self) -> Status {
        self.limiter.status(self.part.borrow())
    }
}

/// A limit of the permits in use of each key, and the part of the composite's key that is the key
/// here.
pub(crate) struct CountedByKey<K, R: ?Sized, F> {
    pub(crate) limit: KeyedCountingLimit<K>,
    /// A function of the composite's key; for a placeholder, the part itself.
    pub(crate) part: F,
    pub(crate) of: PhantomData<fn(&R)>,
}

impl<Q, K, R, F> KeyedMember<Q> for CountedByKey<K, R, F>
where
    Q: ?Sized,
    K: Borrow<R> + Hash + Eq + Send + Sync + 'static,
    R: Hash + Eq + ToOwned<Owned = K> + ?Sized + 'static,
    F: Fn(&Q) -> &R + Send + Sync,
{
    fn address(&self) -> usize {
        Arc::as_ptr(self.limit.table()).addr()
    }

    fn in_table(&self) -> Option<&dyn InTable<Q>> {
        None
    }

    fn lease(&self, key: &Q, _asked: bool) -> Result<Lease, Refusal> {
        let lease = self.limit.lease((self.part)(key))?;
        let number = Number::Limiter(lease.limit.address() as u64);
        let (kind, leave) = (Kind::Counting(lease.limit), Box::new(lease.leave));
        Ok(Lease { kind, number, placeholder_of: None, leave })
    }

    fn placeholder(&self, key: &Q) -> Lease {
        let key = (self.part)(key);
        let number = Number::Placeholder(self.limit.table().hash_of(key));
        let absent = CountedByKey { limit: self.limit.clone(), part: key.to_owned(), of: self.of };
        let placeholder_of = Some(Arc::new(absent) as Arc<dyn AbsentKey>);
        let kind = Kind::Counting(CountingLimit::new(0));
        Lease { kind, number, placeholder_of, leave: Box::new(()) }
    }

    fn number(&self, key: &Q) -> Number {
        let key = (self.part)(key);
        match self.limit.inspect_known(key, CountingLimit::address) {
            Some(address) => Number::Limiter(address as u64),
            None => Number::Placeholder(self.limit.table().hash_of(key)),
        }
    }

    fn predict_wait(&self, key: &Q, n: u32, _priority: i8) -> Result<Wait, Refusal> {
        if self.limit.is_closed() {
            return Err(Refusal::Closed);
        }
        let key = (self.part)(key);
        let wait = |limit: &CountingLimit| {
            limit.check(n)?;
            if limit.available() < n { Err(limit.in_use()) } else { Ok(Wait::NONE) }
        };
        self.limit.inspect_known(key, wait).unwrap_or_else(|| {
            self.limit.table().check_room()?;
            self.limit.inspect_limit(key, wait)
        })
    }

    fn status(&self, key: &Q) -> Status {
        self.limit.status((self.part)(key))
    }
}

impl<K, R> AbsentKey for CountedByKey<K, R, K>
where
    K: Borrow<R> + Hash + Eq + Send + Sync + 'static,
    R: Hash + Eq + ToOwned<Owned = K> + ?Sized,
{
    fn status(&self) -> Status {
        self.limit.status(self.part.borrow())
    }
}
