//! A guard that adds one to a number until it is dropped.

use std::ops::Deref;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Adds one to a number until it is dropped. Relaxed: the numbers publish nothing else.
pub(crate) struct Counted<N: Deref<Target = AtomicUsize>>(N);

impl<N: Deref<Target = AtomicUsize>> Counted<N> {
    pub(crate) fn new(number: N) -> Counted<N> {
        number.fetch_add(1, Ordering::Relaxed);
        Counted(number)
    }
}

impl<N: Deref<Target = AtomicUsize>> Drop for Counted<N> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
