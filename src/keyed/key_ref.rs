//! A key as a call names it: the key itself, or a borrowed form of it.

use std::borrow::Borrow;
use std::hash::Hash;

/// A form of a key that is compared with known keys.
pub(crate) trait Matches<K>: Eq {
    fn matches(&self, known: &K) -> bool;
}

impl<K: Borrow<Q>, Q: Eq + ?Sized> Matches<K> for Q {
    #[inline]
    fn matches(&self, known: &K) -> bool {
        known.borrow() == self
    }
}

/// A form of a key from which the key is made when it is new.
pub(crate) trait KeyRef<K>: Matches<K> + Hash + ToOwned<Owned = K> {}

impl<K: Borrow<Q>, Q: Hash + Eq + ToOwned<Owned = K> + ?Sized> KeyRef<K> for Q {}
