//! The one compare-and-swap loop that every one-word policy runs on.
//!
//! # Memory ordering
//!
//! **Shared.** One atomic word: a `u64`, or a `u128` where a policy needs two numbers.
//!
//! | operation | ordering | pairs with | why |
//! |---|---|---|---|
//! | load | Acquire | a conversion | a first guess; a stale one is corrected by the exchange |
//! | compare and exchange, success | Relaxed | nothing | reads the newest value of the word, or fails |
//! | compare and exchange of a conversion, success | Release | load, failure | a thread that sees the word in new terms sees all that was written before |
//! | compare and exchange, failure | Acquire | a conversion | the next guess |
//!
//! **Why enough.** The bad execution is two takers that both spend one permit. Each successful
//! exchange reads the latest value in the word's modification order and puts its own directly
//! behind, so the second taker sees the permit that the first one spent. A refusal from a stale
//! guess is a refusal that was right a moment earlier, in a call that overlaps with the change.
//! **Why not more.** The word carries its whole meaning, so a taker publishes nothing; and its
//! exchange carries on what a conversion published, since it reads and writes in one.
//!
//! The terms are other memory, which a change replaces together with the word. Each policy argues
//! itself which of both comes first, and how a taker reads a word in other terms. A taker never
//! sees half a rate: [`published`](super::published) promises that.
//!
//! **Promise.** None: a grant establishes no happens-before between callers.
//!
//! **Checked by** `loom-tests/atomic_word.rs`, with a load-and-store twin that double-spends, and
//! `change.rs`.

use crate::sync::{AtomicU64, AtomicU128, Ordering};

/// A word of state that is replaced as a whole.
pub(crate) trait AtomicWord {
    type Word: Copy;
    fn load(&self) -> Self::Word;
    /// Replaces `current` by `new`, or returns the word that is there instead; may fail for no
    /// reason.
    fn exchange(&self, current: Self::Word, new: Self::Word, success: Ordering) -> Result<(), Self::Word>;
}

impl AtomicWord for AtomicU64 {
    type Word = u64;

    fn load(&self) -> u64 {
        // Acquire: a word that a conversion stored shows what was written before it.
        self.load(Ordering::Acquire)
    }

    fn exchange(&self, current: u64, new: u64, success: Ordering) -> Result<(), u64> {
        // Weak: the loop goes round anyway. Acquire on failure: the newer word is the next guess.
        self.compare_exchange_weak(current, new, success, Ordering::Acquire).map(drop)
    }
}

impl AtomicWord for AtomicU128 {
    type Word = u128;

    fn load(&self) -> u128 {
        // Acquire, here and below: as for a word of 64 bits.
        self.load(Ordering::Acquire)
    }

    fn exchange(&self, current: u128, new: u128, success: Ordering) -> Result<(), u128> {
        self.compare_exchange_weak(current, new, success, Ordering::Acquire).map(drop)
    }
}

/// Applies a pure step until it is applied to the newest word. An error from the step writes
/// nothing.
#[inline]
pub(crate) fn update<A: AtomicWord, R, E>(
    atomic: &A,
    step: impl Fn(A::Word) -> Result<(A::Word, R), E>,
) -> Result<R, E> {
    // Relaxed: the exchange reads the newest word or fails, and publishes nothing but the word.
    apply(atomic, Ordering::Relaxed, step)
}

/// Converts a word to other terms. A thread that sees the new word, or a word made of it, also sees
/// all that was written before.
pub(crate) fn convert<A: AtomicWord, R, E>(
    atomic: &A,
    step: impl Fn(A::Word) -> Result<(A::Word, R), E>,
) -> Result<R, E> {
    // Release: pairs with the Acquire of each load, as promised above.
    apply(atomic, Ordering::Release, step)
}

#[inline]
fn apply<A: AtomicWord, R, E>(
    atomic: &A,
    success: Ordering,
    step: impl Fn(A::Word) -> Result<(A::Word, R), E>,
) -> Result<R, E> {
    let mut word = atomic.load();
    loop {
        let (new, result) = step(word)?;
        match atomic.exchange(word, new, success) {
            Ok(()) => return Ok(result),
            Err(newer) => word = newer,
        }
    }
}

#[cfg(all(test, not(tidegate_loom)))]
mod tests {
    use std::cell::Cell;

    use super::{AtomicWord, Ordering, convert, update};

    /// A word that another thread replaces before the first exchange, and that counts exchanges.
    struct Counted {
        word: Cell<u64>,
        exchanges: Cell<u32>,
        replaced_by: Cell<Option<u64>>,
    }

    impl AtomicWord for Counted {
        type Word = u64;

        fn load(&self) -> u64 {
            self.word.get()
        }

        fn exchange(&self, current: u64, new: u64, _success: Ordering) -> Result<(), u64> {
            self.exchanges.set(self.exchanges.get() + 1);
            self.word.set(self.replaced_by.take().unwrap_or(self.word.get()));
            if self.word.get() != current {
                return Err(self.word.get());
            }
            self.word.set(new);
            Ok(())
        }
    }

    /// Takes one permit, or refuses.
    fn take(word: u64) -> Result<(u64, ()), &'static str> {
        word.checked_sub(1).map(|left| (left, ())).ok_or("no permit")
    }

    #[test]
    fn a_refusal_writes_nothing() {
        let counted = |word, replaced_by| Counted {
            word: Cell::new(word),
            exchanges: Cell::new(0),
            replaced_by: Cell::new(replaced_by),
        };
        let takes = [|of: &Counted| update(of, take), |of: &Counted| convert(of, take)];
        for take in takes {
            let empty = counted(0, None);
            assert_eq!((take(&empty), empty.exchanges.get()), (Err("no permit"), 0));
            let one = counted(1, None);
            assert_eq!((take(&one), one.exchanges.get(), one.word.get()), (Ok(()), 1, 0));
            // Another thread takes the last permit first. The exchange that fails is the only one.
            let raced = counted(1, Some(0));
            assert_eq!((take(&raced), raced.exchanges.get()), (Err("no permit"), 1));
            // Another thread gives permits back first.
            let refunded = counted(1, Some(5));
            assert_eq!((take(&refunded), refunded.exchanges.get(), refunded.word.get()), (Ok(()), 2, 4));
        }
    }
}
