//! One part of the table: its policy, its known keys and its lines, under one lock.

use std::borrow::Borrow;
use std::ops::Deref;
use std::sync::Arc;

use super::slots::Slots;
use super::table::Line;
use crate::clock::Timer;
use crate::policy::Policy;
use crate::sync::ShardLock;

/// One cache line, together with the pointers of its lock: each request reads it.
pub(crate) struct Shard<K, P: Policy + Clone, C: Timer> {
    /// Of all keys that have none of their own. It belongs to the states, and changes together with
    /// them, under the lock.
    pub(crate) policy: Arc<P>,
    pub(crate) known: Slots<K, P::State>,
    /// `None` while there are none, so that a request sees that without another look.
    pub(super) lines: Option<Box<Lines<K, P, C>>>,
}

pub(crate) type Lines<K, P, C> = Slots<K, Line<P, C>>;

/// The policy of a shard, its known keys, and its lines if there are any.
pub(super) type Parts<'a, K, P, C> =
    (&'a P, &'a mut Slots<K, <P as Policy>::State>, Option<&'a mut Lines<K, P, C>>);

/// A shard and its lock, on a cache line of their own.
#[repr(align(64))]
pub(crate) struct Locked<K, P: Policy + Clone, C: Timer>(pub(super) ShardLock<Shard<K, P, C>>);

impl<K, P: Policy + Clone, C: Timer> Deref for Locked<K, P, C> {
    type Target = ShardLock<Shard<K, P, C>>;

    #[inline]
    fn deref(&self) -> &ShardLock<Shard<K, P, C>> {
        &self.0
    }
}

impl<K, P: Policy + Clone, C: Timer> Shard<K, P, C> {
    pub(super) fn new(policy: Arc<P>) -> Self {
        Shard { policy, known: Slots::new(), lines: None }
    }

    pub(crate) fn lines(&self) -> Option<&Lines<K, P, C>> {
        self.lines.as_deref()
    }

    pub(crate) fn all_lines(&self) -> impl Iterator<Item = &(K, Line<P, C>)> {
        self.lines.iter().flat_map(|lines| lines.iter())
    }

    /// All parts at the same time.
    pub(super) fn parts(&mut self) -> Parts<'_, K, P, C> {
        (&self.policy, &mut self.known, self.lines.as_deref_mut())
    }

    pub(super) fn line<Q>(&self, hash: u64, key: &Q) -> Option<&Line<P, C>>
    where
        K: Borrow<Q>,
        Q: Eq + ?Sized,
    {
        self.lines.as_ref()?.find(hash, key)
    }

    /// Gives memory back if there are no lines any more, or few.
    pub(super) fn shrink_lines(&mut self, hash_of: impl Fn(&K) -> u64) {
        match &mut self.lines {
            Some(lines) if lines.is_empty() => self.lines = None,
            Some(lines) => lines.shrink(hash_of),
            None => {}
        }
    }
}
