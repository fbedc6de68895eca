//! A word of state that is closed while the terms by which it is read are replaced. For the window
//! policies.
//!
//! # The problem
//!
//! A state is one word, the terms are several other words, and no single CAS replaces both. A
//! request that reads a converted count by the old limit, or an old count by the new limit, takes
//! permits that do not exist. No order of publishing prevents both: whichever comes first, the
//! thread that changes may stall in between.
//!
//! # Protocol
//!
//! | bits | name | meaning |
//! |---|---|---|
//! | `TOP` | closed | a change is in progress |
//! | the `TURNS` below it | turn | the number of changes, modulo `2^TURNS` |
//! | the others | content | what the policy counts |
//!
//! A policy puts these bits at the top of one half of the word, so that its own numbers do not
//! cross the middle.
//!
//! A change holds the lock of the terms' writer. It closes the word, converts the content,
//! publishes the terms, and opens the word with the new content and the next turn:
//!
//! | word | content | terms | a request |
//! |---|---|---|---|
//! | open, turn *k* | old | old | takes by the old terms |
//! | closed | old | old, or new | retries, and then is refused for the shortest possible time |
//! | open, turn *k* + 1 | new | new | takes by the new terms |
//!
//! A request never blocks. It finds the word closed for the few stores that a change takes, and
//! checks it [`MAX_RETRIES`] times. If the word is still closed, the thread that changes was taken
//! off its processor; then the request is refused with a retry time of a nanosecond. An operation
//! that cannot be refused, such as a refund, waits for the writer's lock. In a limiter it never has
//! to wait, because the limiter's own operations of this kind and its changes hold the lock of the
//! queue.
//!
//! # Memory ordering
//!
//! | operation | ordering | pairs with | why |
//! |---|---|---|---|
//! | 1 close: CAS | Relaxed | | the stores of 2 publish it |
//! | 2 the terms are stored | Release | 5 | a request that reads a new term comes after 1 |
//! | 3 open: store | Release | 4 | a request that reads the new content reads the new terms |
//! | 4 load of the word, failed CAS | Acquire | 3 | as above |
//! | 5 load of the terms, always after 4 | Acquire | 2 | as above |
//! | 6 take: CAS | Relaxed, unless the policy says otherwise | | reads the newest word, or fails |
//!
//! **Why enough.** The bad executions are a new content read by old terms, and an old content read
//! by new terms. The first: the request has loaded the new content in 4, so it comes after 3 and
//! thus after 2, and loads the new terms in 5, or newer ones. The second: the request has loaded a
//! new term in 5, so it comes after 1, and its CAS in 6 does not find the open word of turn *k*.
//! **Why not more.** A taker publishes nothing, and its CAS continues what 3 published, because it
//! reads and writes in one step.
//!
//! **What remains.** A request that stalls between 4 and 6 for a multiple of `2^TURNS` changes, and
//! then finds the word as it was to the last bit, takes by the terms that it has read. If there are
//! few turns, it checks the version of the terms before 4 and again in 5: so these terms were those
//! of the word at one time. A *refusal* is not checked again: a refusal that overlaps with a change
//! may mix both terms, and return a time that neither of them gives. Giving back does not check the
//! version: a grant that is undone over a multiple of `2^TURNS` changes at one instant may take a
//! permit of another grant out.
//!
//! **Checked by** `loom-tests/change.rs`, with twins that do not close the word; by
//! `loom-tests/undo.rs`, also for what remains; and by `tests/policy/stress.rs`.

use std::fmt;

use crate::policy::atomic_word::AtomicWord;
use crate::sync::{AtomicU128, MAX_RETRIES, Ordering, spin_loop};

pub(crate) struct ClosableWord<const TOP: u32, const TURNS: u32>(AtomicU128);

/// A word that was open when it was loaded.
#[derive(Clone, Copy)]
pub(crate) struct OpenWord<const TOP: u32, const TURNS: u32>(u128);

impl<const TOP: u32, const TURNS: u32> OpenWord<TOP, TURNS> {
    #[inline]
    pub(crate) fn content(self) -> u128 {
        self.0 & ClosableWord::<TOP, TURNS>::CONTENT
    }
}

impl<const TOP: u32, const TURNS: u32> ClosableWord<TOP, TURNS> {
    const CLOSED: u128 = 1 << TOP;
    /// The lowest bit of the turn, or the bit above it if there is no turn.
    const NEXT: u128 = 1 << (TOP - TURNS);
    const TURN: u128 = Self::CLOSED - Self::NEXT;
    const CONTENT: u128 = !(Self::CLOSED | Self::TURN);

    pub(crate) fn new(content: u128) -> Self {
        ClosableWord(AtomicU128::new(content & Self::CONTENT))
    }

    /// Returns the word if it is open, or becomes open soon.
    #[inline]
    pub(crate) fn load(&self) -> Option<OpenWord<TOP, TURNS>> {
        let bits = AtomicWord::load(&self.0);
        if bits & Self::CLOSED == 0 { Some(OpenWord(bits)) } else { self.retry_closed() }
    }

    /// Terms are nearly always replaced within this many checks.
    #[cold]
    fn retry_closed(&self) -> Option<OpenWord<TOP, TURNS>> {
        for _ in 0..MAX_RETRIES {
            let bits = AtomicWord::load(&self.0);
            if bits & Self::CLOSED == 0 {
                return Some(OpenWord(bits));
            }
            spin_loop();
        }
        None
    }

    /// Returns whether the word is the one that was seen.
    pub(crate) fn is_unchanged(&self, seen: OpenWord<TOP, TURNS>) -> bool {
        AtomicWord::load(&self.0) == seen.0
    }

    /// Replaces the content, if the word is still the one that was seen. It may fail spuriously.
    #[inline]
    pub(crate) fn replace(&self, seen: OpenWord<TOP, TURNS>, content: u128, success: Ordering) -> bool {
        // Masking the content as well would cost more than everything else here.
        debug_assert!(content & !Self::CONTENT == 0, "the content has no bits beyond its own");
        let bits = (seen.0 & !Self::CONTENT) | content;
        self.0.exchange(seen.0, bits, success).is_ok()
    }

    /// Returns the word, for an operation that can wait until it is open: `wait` waits for the
    /// thread that changes.
    pub(crate) fn settled(&self, wait: impl Fn()) -> OpenWord<TOP, TURNS> {
        loop {
            if let Some(seen) = self.load() {
                return seen;
            }
            wait();
        }
    }

    /// Applies a step that cannot be refused to the newest content, when the word is open.
    pub(crate) fn update(&self, wait: impl Fn(), step: impl Fn(u128) -> u128) {
        self.take(wait, |content| Some((step(content), ())));
    }

    /// Applies a step that may leave the content as it is, when the word is open.
    pub(crate) fn take<R>(&self, wait: impl Fn(), step: impl Fn(u128) -> Option<(u128, R)>) -> Option<R> {
        loop {
            let seen = self.settled(&wait);
            let (content, result) = step(seen.content())?;
            // Relaxed: the word holds all that an operation changes (6).
            if self.replace(seen, content, Ordering::Relaxed) {
                return Some(result);
            }
        }
    }

    /// Calls `inspect` with the content, when the word is open, by terms that belong to it.
    pub(crate) fn inspect<R>(&self, wait: impl Fn(), inspect: impl Fn(u128) -> R) -> R {
        loop {
            let seen = self.settled(&wait);
            let result = inspect(seen.content());
            // Another turn shows that the terms were replaced meanwhile. Permits that were taken
            // meanwhile do not matter.
            if (AtomicWord::load(&self.0) ^ seen.0) & !Self::CONTENT == 0 {
                return result;
            }
        }
    }

    /// Closes the word. The caller holds the lock of the terms' writer. Returns the content.
    pub(crate) fn close(&self) -> u128 {
        let mut bits = AtomicWord::load(&self.0);
        // Relaxed: the stores of the terms publish it (1).
        while let Err(newer) = self.0.exchange(bits, bits | Self::CLOSED, Ordering::Relaxed) {
            bits = newer;
        }
        bits & Self::CONTENT
    }

    /// Opens the word with another content. The caller has closed it, and has published the terms
    /// of the content.
    pub(crate) fn open(&self, content: u128) {
        // No other thread writes a closed word.
        let turn = (AtomicWord::load(&self.0) & Self::TURN) + Self::NEXT;
        // Release: a request that reads this content reads the new terms (3).
        self.0.store(turn & Self::TURN | content & Self::CONTENT, Ordering::Release);
    }
}

impl<const TOP: u32, const TURNS: u32> fmt::Debug for ClosableWord<TOP, TURNS> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", AtomicWord::load(&self.0))
    }
}
