//! Loom models: every interleaving of a few threads, within a bound. See `README.md` beside this file.

mod cell;
mod compose;
mod gate;
mod published;
mod retire;
mod sliding_log;
mod sliding_window;
mod support;
mod windows;
