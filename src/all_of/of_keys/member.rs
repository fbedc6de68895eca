//! A limiter of keys as a member: what a composite asks of it, with the key as an argument.
//!
//! A key that is known and has no line is asked in the table. So a request that is decided at once
//! makes no limiter for its key.

use std::borrow::Borrow;
use std::hash::Hash;
use std::marker::PhantomData;
use std::sync::Arc;

use crate::all_of::all::Kind;
use crate::all_of::member::{Handle, Member};
use crate::clock::Timer;
use crate::error::Refusal;
use crate::keyed::KeyedRateLimiter;
use crate::keyed::table::{Found, Line, Table, Taken};
use crate::line::deferred::run_in_drop;
use crate::policy::Policy;
use crate::request::Request;
use crate::status::Status;
use crate::time::Nanos;

/// A limiter of keys, of whatever policy.
pub(crate) trait KeyedMember<Q: ?Sized, C: Timer>: Send + Sync {
    /// Whether it is this limiter of keys.
    fn address(&self) -> usize;

    /// The limiter of a key, in use until the lease is dropped.
    fn lease(&self, key: &Q) -> Result<Lease<C>, Refusal>;

    /// The number of the limiter that a key has now, if it has one.
    fn number(&self, key: &Q) -> Option<u64>;

    /// How long until `n` permits are due, behind all waiters; or why never. Takes no permits, and
    /// adds no key.
    fn look(&self, key: &Q, n: u32, priority: i8) -> Result<Nanos, Refusal>;

    /// Takes `n` permits now, or none. Tells no observer.
    fn take(&self, key: &Q, n: u32, priority: i8) -> Result<(), Refusal>;

    fn status(&self, key: &Q) -> Status;
}

/// The limiter of a key, as a member of the key's composite.
pub(crate) struct Lease<C: Timer> {
    /// Dropped before `leave`, since the table settles a limiter to which it has the only handle.
    pub(crate) kind: Kind<C>,
    pub(crate) number: u64,
    /// Dropping it tells the table of keys.
    pub(crate) leave: Box<dyn Send + Sync>,
}

struct Leave<K: Hash + Eq, P: Policy + Clone, C: Timer + Clone> {
    table: Arc<Table<K, P, C>>,
    hash: u64,
    number: u64,
}

impl<K: Hash + Eq, P: Policy + Clone, C: Timer + Clone> Drop for Leave<K, P, C> {
    fn drop(&mut self) {
        run_in_drop(|| self.table.leave(self.hash, self.number));
    }
}

/// A limiter of keys, and which part of the composite's key is the key here.
pub(crate) struct ByKey<K, P: Policy + Clone, C: Timer, R: ?Sized, F> {
    pub(crate) limiter: KeyedRateLimiter<K, P, C>,
    pub(crate) part: F,
    pub(crate) of: PhantomData<fn(&R)>,
}

fn handle<P: Policy + Clone, C: Timer>(line: &Line<P, C>) -> Handle<impl crate::line::rule::OneRule<C>, C> {
    Handle(line.shared().clone())
}

impl<Q, K, P, C, R, F> KeyedMember<Q, C> for ByKey<K, P, C, R, F>
where
    Q: ?Sized,
    K: Borrow<R> + Hash + Eq + Send + Sync + 'static,
    P: Policy + Clone,
    C: Timer + Clone,
    R: Hash + Eq + ToOwned<Owned = K> + ?Sized,
    F: Fn(&Q) -> &R + Send + Sync,
{
    fn address(&self) -> usize {
        Arc::as_ptr(self.limiter.table()).addr()
    }

    fn lease(&self, key: &Q) -> Result<Lease<C>, Refusal> {
        let (table, key) = (self.limiter.table(), (self.part)(key));
        let hash = table.hash_of(key);
        let line = table.line(key)?;
        let number = line.shared().number;
        let leave = Box::new(Leave { table: table.clone(), hash, number });
        Ok(Lease { kind: Kind::Rate(Arc::new(handle(&line))), number, leave })
    }

    fn number(&self, key: &Q) -> Option<u64> {
        let table = self.limiter.table();
        match table.find((self.part)(key), |_, _| ()) {
            Found::Line(line) => Some(line.shared().number),
            Found::Known(()) => None,
            Found::Nowhere => table.shared().map(|line| line.shared().number),
        }
    }

    fn look(&self, key: &Q, n: u32, priority: i8) -> Result<Nanos, Refusal> {
        let (table, key) = (self.limiter.table(), (self.part)(key));
        let look = |policy: &P, state: &P::State, now: Nanos| {
            policy.check(n)?;
            Ok(policy.ready_at(state, now, 0, n).saturating_since(now))
        };
        let look_at = |line: &Line<P, C>| {
            let member = handle(line);
            member.check(n, priority)?;
            Ok(member.look(n, priority))
        };
        match table.find(key, |policy, state| look(policy, state, table.clock.now())) {
            Found::Known(answer) => answer,
            Found::Line(line) => look_at(&line),
            Found::Nowhere => match table.shared() {
                Some(line) => look_at(line),
                None => table.unknown(key, look),
            },
        }
    }

    fn take(&self, key: &Q, n: u32, priority: i8) -> Result<(), Refusal> {
        let (table, key) = (self.limiter.table(), (self.part)(key));
        match table.ask(table.hash_of(key), key, &Request::permits(n).priority(priority))? {
            Taken::Granted(_) => Ok(()),
            Taken::Line(line) => handle(&line).take_then((n, priority), &mut || Ok(())),
        }
    }

    fn status(&self, key: &Q) -> Status {
        self.limiter.table().status((self.part)(key))
    }
}
