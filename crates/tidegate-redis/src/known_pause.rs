//! A pause that this process knows of, for its decisions while the store is away.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tidegate::{AllRefusal, Nanos, Refusal};
use tokio::time::Instant;

use crate::lock::lock;
use crate::script::pause_left;

#[derive(Debug, Default)]
pub(crate) struct KnownPause(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// The end of the pause, if there is one: as this process asked for it, or as the store last
    /// reported it.
    end: Option<Instant>,
    /// The number of messages of this process that begin or end a pause and have no outcome yet.
    pending: u64,
    /// The number of such messages that had their outcome.
    done: u64,
}

/// A message that begins or ends a pause, until its outcome. The replies to calls that left before
/// that outcome may not report what the message changes.
pub(crate) struct PauseMessage(Arc<KnownPause>);

impl KnownPause {
    /// Begins a pause of this process, or extends it, before the message leaves that pauses all.
    pub(crate) fn begin(self: &Arc<KnownPause>, span: Duration) -> PauseMessage {
        self.change(|end| end_of(span).max(end))
    }

    /// Ends the pause for this process, before the message leaves that ends it for all.
    pub(crate) fn end(self: &Arc<KnownPause>) -> PauseMessage {
        self.change(|_| None)
    }

    fn change(self: &Arc<KnownPause>, end: impl FnOnce(Option<Instant>) -> Option<Instant>) -> PauseMessage {
        let state = &mut *lock(&self.0);
        state.end = end(state.end);
        state.pending += 1;
        PauseMessage(self.clone())
    }

    /// Returns how many messages that begin or end a pause had their outcome.
    pub(crate) fn messages(&self) -> u64 {
        lock(&self.0).done
    }

    /// Records the remaining time of a pause that the store reported: zero if there is none.
    /// `messages` is the value of [`messages`](KnownPause::messages) when the call left that the
    /// store replied to.
    pub(crate) fn reported(&self, messages: u64, rest: Duration) {
        let state = &mut *lock(&self.0);
        if state.pending == 0 && state.done == messages {
            state.end = if rest.is_zero() { None } else { end_of(rest) };
        }
    }

    /// The refusal of a request in the pause.
    pub(crate) fn refusal(&self) -> Option<AllRefusal> {
        let end = lock(&self.0).end?;
        let rest = end.saturating_duration_since(Instant::now());
        let retry_after = Nanos::from_duration(pause_left(rest));
        (!rest.is_zero()).then(|| AllRefusal::from(Refusal::Paused { retry_after }).as_degraded())
    }
}

impl Drop for PauseMessage {
    fn drop(&mut self) {
        let state = &mut *lock(&self.0.0);
        state.pending -= 1;
        state.done += 1;
    }
}

/// A pause without an end outlasts any process.
fn end_of(span: Duration) -> Option<Instant> {
    let now = Instant::now();
    now.checked_add(span).or_else(|| now.checked_add(Duration::from_secs(u32::MAX.into())))
}
