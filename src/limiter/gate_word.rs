//! The gate word tells a request whether it may ask the policy without the line's lock.
//!
//! The word is a count and flags. While it is zero, a request asks the policy directly: one load,
//! one clock reading, one compare-and-swap. Otherwise the request takes the line's lock, serves the
//! waiters that are due, and goes behind the rest, unless the table says that it needs no lock.
//!
//! | bits | meaning | raised and lowered by | a request that sees it |
//! |---|---|---|---|
//! | 0, [`PAUSED`] | no request passes before a time, or ever; or the limiter is left empty at a time, when a pause of a composite ends | a pause and its end; the first lock holder after that time; `close`, which nothing ends | takes the lock |
//! | 1, [`SHARE_KEPT`] | a share of the permits is kept for a priority | `keep_for_priority` | takes the lock, since counting the remaining permits and taking some are two steps |
//! | 2, [`OBSERVED`] | the limiter has an observer | raised by `observe`, never lowered | asks the policy without the lock, then tells the observer how the call ended |
//! | 3, [`SHADOW`] | no request is refused, and none waits | `set_shadow` | asks the policy without the lock, and passes anyway |
//! | 4, [`LATE`] | the last grants were late | a waiter that sees a late grant; a request that uses the lateness up | asks the policy without the lock, as of an earlier time: `line/lateness.rs` |
//! | the rest | how many requests are in line, were granted a moment ago and have not run yet, or hold a seat | joining, leaving, serving | takes the lock |
//!
//! The word is stored under the line's lock alone. What a flag says in one bit is plain data under
//! that lock, in [`Settings`](crate::line::settings::Settings). A lock holder that changed anything
//! stores the count and all flags, so none can be lost. A feature that is off costs no instruction.
//!
//! # Memory ordering
//!
//! | operation | ordering | why |
//! |---|---|---|
//! | the word is stored, under the lock | Relaxed | see below |
//! | the word is loaded, without the lock | Relaxed | see below |
//!
//! **No overtaking.** The promise: a request that begins after a waiter has joined the line goes
//! behind the waiter. "After" means happens-before, by whatever the program uses to order the two.
//! The store of the word then happens before the load, and coherence makes the load see that store
//! or a later one, at any ordering. This also covers a request that begins after a pause was set.
//! A request that overlaps with the joining may have read zero and take a permit a moment later: it
//! came first, and is served first. The waiter's alarm then rings before its permit is there, and
//! is set again.
//!
//! **No lost wake-up.** Every change that makes permits come *earlier* (a refund, a rate, a dropped
//! wait) is followed by serving the line under the lock, and requests join the line under the lock.
//! If a request joins before that, the change finds it in line and serves it. If it joins after
//! that, the lock makes the change visible to it, and it asks the policy again before it waits.
//!
//! - Nearly all such changes happen under the lock, together with the serving.
//! - `Shared::undo` of a policy that counts gives back before it takes the lock, and then takes the
//!   lock and serves. A request that joins in between may still see the old state, but it is in
//!   line when `undo` serves.
//!
//! A request without the lock only makes permits come later, and an alarm that rings too early is
//! set again. So there is no pattern of store-then-load on two sides, which would need sequential
//! consistency.
//!
//! **An end.** Closing is a pause without end, and a mark in the settings that says why. It needs
//! no flag and no protocol of its own. A request that begins after `close` sees the flag, takes the
//! lock, and finds the mark. A request that joins the line holds the lock: before `close`, so that
//! `close` finds it in line and refuses it, or after, and then it finds the mark. A request without
//! the lock that overlaps with `close` may still be granted: it came first.
//!
//! **Checked by** `loom-tests/control.rs` for pauses and the end, and by `loom-tests/gate.rs`: try
//! against a waiter, joining against a refund, dropping against a grant, blocked threads; with
//! twins that ask before they lock, or forget to look again.

use crate::clock::Timer;
use crate::line::Line;
use crate::line::rule::Rule;
use crate::sync::{AtomicUsize, Ordering};

pub(crate) const PAUSED: usize = 1;
pub(crate) const SHARE_KEPT: usize = 2;
pub(crate) const OBSERVED: usize = 4;
pub(crate) const SHADOW: usize = 8;
pub(crate) const LATE: usize = 16;
/// What one more request in line adds to the word: the bits above the flags count up to 2^59
/// requests, more than fit in memory.
pub(crate) const ONE: usize = 32;

/// See the module's documentation.
#[derive(Debug)]
pub(crate) struct GateWord(AtomicUsize);

impl GateWord {
    /// The word of an empty line, of which an observer may be told already.
    pub(crate) fn new(observed: bool) -> GateWord {
        GateWord(AtomicUsize::new(if observed { OBSERVED } else { 0 }))
    }

    #[inline]
    pub(crate) fn load(&self) -> Word {
        // Relaxed: see "No overtaking".
        Word(self.0.load(Ordering::Relaxed))
    }

    /// Stores the word of the line. Under the lock.
    pub(crate) fn store<R: Rule, C: Timer>(&self, line: &Line<R, C>, late: bool) {
        // A store, not an exchange: only the holder of the lock writes the word.
        self.0.store(word_of(line).0 | if late { LATE } else { 0 }, Ordering::Relaxed);
    }

    /// Stores a word without the lock, as the broken twins of the models do.
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
    /// Whether a request may ask the policy, and nothing else is to be done.
    #[inline]
    pub(crate) fn is_clear(self) -> bool {
        self.0 == 0
    }

    /// Whether the word has no flag beside these, and no request is in line.
    #[inline]
    pub(crate) fn has_only(self, flags: usize) -> bool {
        self.0 & !flags == 0
    }

    /// Whether a request may ask the policy without the lock.
    pub(crate) fn needs_no_lock(self) -> bool {
        self.has_only(OBSERVED | SHADOW | LATE)
    }

    #[inline]
    pub(crate) fn has(self, flag: usize) -> bool {
        self.0 & flag != 0
    }

    /// Whether a request is in line, or was granted a moment ago, or holds a seat.
    pub(crate) fn has_waiters(self) -> bool {
        self.0 >= ONE
    }
}

/// The word of a line, but for lateness.
pub(crate) fn word_of<R: Rule, C: Timer>(line: &Line<R, C>) -> Word {
    let flag = |is: bool, flag: usize| if is { flag } else { 0 };
    let word = line.present().saturating_mul(ONE)
        // A closed line is paused for ever, and has neither a pause that ends nor a pace.
        | flag(line.is_paused() || line.settings.is_restrained(), PAUSED)
        | flag(line.settings.kept.is_some(), SHARE_KEPT)
        | flag(line.settings.observed, OBSERVED)
        | flag(line.settings.is_shadow(), SHADOW);
    Word(word)
}
