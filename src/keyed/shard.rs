//! One part of the table: a policy, its known keys and its lines, under one lock.

use std::borrow::Borrow;
use std::ops::Deref;
use std::sync::Arc;

use super::slots::Slots;
use super::table::Line;
use crate::clock::Timer;
use crate::policy::Policy;
use crate::sync::ShardLock;

/// Fits in one cache line together with the pointers of its lock, because each request reads it.
pub(crate) struct Shard<K, P: Policy + Clone, C: Timer> {
    /// The policy of all keys without one of their own. It changes together with the states, under
    /// the lock.
    pub(crate) policy: Arc<P>,
    pub(crate) known: Slots<K, P::State>,
    /// `None` if there are no lines, so that a request sees that without following a pointer.
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

    /// Returns all parts, to change several of them at once.
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

    /// Frees memory if few lines or none are left.
    pub(super) fn shrink_lines(&mut self, hash_of: impl Fn(&K) -> u64) {
        match &mut self.lines {
            Some(lines) if lines.is_empty() => self.lines = None,
            Some(lines) => lines.shrink(hash_of),
            None => {}
        }
    }
}
