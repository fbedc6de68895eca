//! The gate word decides whether a request may ask the policy without the queue's lock.
//!
//! The word is a count and flags. While it is zero, a request asks the policy directly: one load,
//! one clock reading, one compare-and-swap. Otherwise the request takes the queue's lock, serves
//! the waiters that are due, and goes behind the others, unless the table says that it needs no
//! lock.
//!
//! | bits | meaning | raised and lowered by | a request that sees it |
//! |---|---|---|---|
//! | 0, [`PAUSED`] | no request passes before a time, or ever; or the limiter must be left empty at a time, when a pause of a composite ends | a pause and its end; the first lock holder after that time; `close`, which is permanent | takes the lock |
//! | 1, [`SHARE_KEPT`] | a share of the permits is kept for a priority | `keep_for_priority` | takes the lock, because counting the remaining permits and taking some are two steps |
//! | 2, [`OBSERVED`] | the limiter has an observer | raised by `observe`, never lowered | asks the policy without the lock, then notifies the observer of the result |
//! | 3, [`SHADOW`] | no request is refused, and none waits | `set_shadow` | asks the policy without the lock, and passes anyway |
//! | 4, [`LATE`] | the last grants were late | a waiter that sees a late grant; a request that uses up the lateness | asks the policy without the lock, as of an earlier time: `line/lateness.rs` |
//! | the rest | the number of requests that are in the queue, were granted but have not run yet, or hold a seat | joining, leaving, serving | takes the lock |
//!
//! The word is stored only under the queue's lock. Each flag summarizes plain data under that lock,
//! in [`Settings`](crate::line::settings::Settings). A lock holder that changed anything stores the
//! count and all flags, so no flag can be lost. A feature that is off costs no instruction.
//!
//! # Memory ordering
//!
//! | operation | ordering | why |
//! |---|---|---|
//! | the word is stored, under the lock | Relaxed | see below |
//! | the word is loaded, without the lock | Relaxed | see below |
//!
//! **No overtaking.** The promise: a request that begins after a waiter has joined the queue goes
//! behind the waiter. "After" means happens-before, by any means that the program uses to order the
//! two. The store of the word then happens before the load, and coherence makes the load see that
//! store or a later one, at any ordering. The same argument covers a request that begins after a
//! pause was set. A request that overlaps with the joining may have read zero and take a permit a
//! moment later: it came first, and is served first. The waiter's alarm then fires before its
//! permit is available, and is set again.
//!
//! **No lost wake-up.** Every change that makes permits available *earlier* (a refund, a rate, a
//! dropped wait) is followed by serving the queue under the lock, and requests join the queue under
//! the lock. If a request joins before the queue is served, the change finds it in the queue and
//! serves it. If it joins later, the lock makes the change visible to it, and it asks the policy
//! again before it waits.
//!
//! - Nearly all such changes happen under the lock, together with the serving.
//! - `Shared::undo` of a window policy gives back before it takes the lock, and then takes the lock
//!   and serves. A request that joins in between may still see the old state, but it is in the
//!   queue when `undo` serves.
//!
//! A request without the lock only makes permits available later, and an alarm that fires too early
//! is set again. So no two sides each store one word and then load the other's word, a pattern that
//! would need sequential consistency.
//!
//! **Closing.** A closed limiter is paused without end, and has a mark in the settings that gives
//! the reason. It needs no flag and no protocol of its own. A request that begins after `close`
//! sees the flag, takes the lock, and finds the mark. A request that joins the queue holds the lock
//! either before `close`, so that `close` finds it in the queue and refuses it, or after `close`,
//! so that it finds the mark. A request without the lock that overlaps with `close` may still be
//! granted: it came first.
//!
//! **Checked by** `loom-tests/control.rs` for pauses and closing, and by `loom-tests/gate.rs`: a
//! `try_` call against a waiter, joining against a refund, dropping against a grant, blocked
//! threads; with twins that ask before they lock, or do not ask again.

use crate::clock::Timer;
use crate::line::Line;
use crate::line::rule::Rule;
use crate::sync::{AtomicUsize, Ordering};

pub(crate) const PAUSED: usize = 1;
pub(crate) const SHARE_KEPT: usize = 2;
pub(crate) const OBSERVED: usize = 4;
pub(crate) const SHADOW: usize = 8;
pub(crate) const LATE: usize = 16;
/// What one more request in the queue adds to the word: the bits above the flags count up to 2^59
/// requests, more than fit in memory.
pub(crate) const ONE_WAITER: usize = 32;

/// See the module's documentation.
#[derive(Debug)]
pub(crate) struct GateWord(AtomicUsize);

impl GateWord {
    /// Creates the word of an empty queue, which may have an observer already.
    pub(crate) fn new(observed: bool) -> GateWord {
        GateWord(AtomicUsize::new(if observed { OBSERVED } else { 0 }))
    }

    #[inline]
    pub(crate) fn load(&self) -> Word {
        // Relaxed: see "No overtaking".
        Word(self.0.load(Ordering::Relaxed))
    }

    /// Stores the word of the queue. Called under the lock.
    pub(crate) fn store<R: Rule, C: Timer>(&self, line: &Line<R, C>, late: bool) {
        // A store, not a CAS: only the holder of the lock writes the word.
        self.0.store(word_of(line).0 | if late { LATE } else { 0 }, Ordering::Relaxed);
    }

    /// Stores a word without the lock, like the broken twins of the models do.
    #[cfg(all(test, tidegate_loom))]
    pub(crate) fn store_without_lock(&self, word: usize) {
        // Relaxed: as in `store`. Only the lock is missing.
        self.0.store(word, Ordering::Relaxed);
    }
}

/// One reading of the gate word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Word(usize);

impl Word {
    /// Returns whether a request may ask the policy, and needs to do nothing else.
    #[inline]
    pub(crate) fn is_clear(self) -> bool {
        self.0 == 0
    }

    /// Returns whether the word has no flags besides these, and no request is in the queue.
    #[inline]
    pub(crate) fn has_only(self, flags: usize) -> bool {
        self.0 & !flags == 0
    }

    /// Returns whether a request may ask the policy without the lock.
    pub(crate) fn needs_no_lock(self) -> bool {
        self.has_only(OBSERVED | SHADOW | LATE)
    }

    #[inline]
    pub(crate) fn has(self, flag: usize) -> bool {
        self.0 & flag != 0
    }

    /// Returns whether a request is in the queue, or was granted but has not run yet, or holds a
    /// seat.
    pub(crate) fn has_waiters(self) -> bool {
        self.0 >= ONE_WAITER
    }
}

/// Returns the word of a queue, without the flag for lateness.
pub(crate) fn word_of<R: Rule, C: Timer>(line: &Line<R, C>) -> Word {
    let flag = |is: bool, flag: usize| if is { flag } else { 0 };
    let word = line.present().saturating_mul(ONE_WAITER)
        // A closed queue is paused for ever, and has neither a pause that ends nor a pace.
        | flag(line.is_paused() || line.settings.is_restrained(), PAUSED)
        | flag(line.settings.kept.is_some(), SHARE_KEPT)
        | flag(line.settings.observed, OBSERVED)
        | flag(line.settings.is_shadow(), SHADOW);
    Word(word)
}
