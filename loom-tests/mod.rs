//! Loom models, which run a few threads in every interleaving, within a bound. See `README.md` next
//! to this file.

#[cfg(feature = "keyed")]
mod all_waiters;
mod atomic_word;
mod both;
mod cancel;
mod change;
mod compose;
mod control;
mod counting;
mod gate;
mod keep_at_most;
#[cfg(feature = "keyed")]
mod keyed;
#[cfg(feature = "keyed")]
mod keyed_counting;
mod kinds;
mod lateness;
mod published;
mod sliding_log;
mod sliding_window;
mod support;
mod undo;
mod up_to;
mod windows;
