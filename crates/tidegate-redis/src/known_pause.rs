//! The pauses that this process knows of, for its decisions while the store is away.

use std::collections::HashMap;
use std::ops::Deref;
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tidegate::{AllRefusal, Nanos, Refusal};
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::guarded::guarded;
use crate::lock::lock;
use crate::script::pause_left;

/// The most limiters of different keys whose pauses are known at one time.
const MAX_KNOWN: usize = 65_536;

/// After how many new keys the table is tidied, at least.
const TIDIES_AFTER: usize = 64;

/// What is known of the pauses of each limiter, by its keys. All limiters of the same keys have one
/// pause, also one that is built in the pause.
#[derive(Debug, Default)]
pub(crate) struct KnownPauses(Mutex<Table>);

#[derive(Debug, Default)]
struct Table {
    pauses: HashMap<Arc<[String]>, Arc<KnownPause>>,
    /// How many more keys may come before the table is tidied.
    tidies_after: usize,
}

/// What one limiter knows. When the last limiter of the keys is dropped, a pause is kept until its
/// end, and nothing else is.
#[derive(Debug)]
pub(crate) struct PauseOfKeys {
    known: Arc<KnownPause>,
    keys: Arc<[String]>,
    all: Arc<KnownPauses>,
}

impl KnownPauses {
    /// What is known of the pause of these keys. In a full table nothing is known of new keys.
    pub(crate) fn of(self: &Arc<KnownPauses>, keys: &Arc<[String]>) -> PauseOfKeys {
        let Table { pauses, tidies_after } = &mut *lock(&self.0);
        let known = pauses.get(keys).cloned().unwrap_or_else(|| {
            if *tidies_after == 0 {
                pauses.retain(|_, known| Arc::strong_count(known) > 1 || !known.rest().is_zero());
                pauses.shrink_to(2 * pauses.len());
                *tidies_after = pauses.len().max(TIDIES_AFTER);
            }
            *tidies_after -= 1;
            let known = Arc::<KnownPause>::default();
            if pauses.len() < MAX_KNOWN {
                pauses.insert(keys.clone(), known.clone());
            }
            known
        });
        PauseOfKeys { known, keys: keys.clone(), all: self.clone() }
    }
}

impl Deref for PauseOfKeys {
    type Target = Arc<KnownPause>;

    fn deref(&self) -> &Arc<KnownPause> {
        &self.known
    }
}

impl Drop for PauseOfKeys {
    fn drop(&mut self) {
        let pauses = &mut lock(&self.all.0).pauses;
        // The table, this one, and other limiters or calls on their way.
        if Arc::strong_count(&self.known) == 2
            && self.known.rest().is_zero()
            && pauses.get(&self.keys).is_some_and(|known| Arc::ptr_eq(known, &self.known))
        {
            pauses.remove(&self.keys);
        }
    }
}

#[derive(Debug, Default)]
pub(crate) struct KnownPause {
    state: Mutex<State>,
    /// Notified when a pause begins or ends by a message or a report.
    changed: Notify,
}

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

    /// Keeps the pause until the outcome of a message that may end it.
    pub(crate) fn keep(self: &Arc<KnownPause>) -> PauseMessage {
        self.change(|end| end)
    }

    fn change(self: &Arc<KnownPause>, end: impl FnOnce(Option<Instant>) -> Option<Instant>) -> PauseMessage {
        let mut state = lock(&self.state);
        state.end = end(state.end);
        state.pending += 1;
        drop(state);
        self.changed.notify_waiters();
        PauseMessage(self.clone())
    }

    /// Returns how many messages that begin or end a pause had their outcome.
    pub(crate) fn messages(&self) -> u64 {
        lock(&self.state).done
    }

    /// Records the remaining time of a pause that the store reported: zero if there is none.
    /// `messages` is the value of [`messages`](KnownPause::messages) when the call left that the
    /// store replied to.
    pub(crate) fn reported(&self, messages: u64, rest: Duration) {
        let mut state = lock(&self.state);
        if state.pending == 0 && state.done == messages && (state.end.is_some() || !rest.is_zero()) {
            state.end = if rest.is_zero() { None } else { end_of(rest) };
            drop(state);
            self.changed.notify_waiters();
        }
    }

    /// The remaining time of the pause.
    pub(crate) fn rest(&self) -> Duration {
        let end = lock(&self.state).end;
        end.map_or(Duration::ZERO, |end| pause_left(end.saturating_duration_since(Instant::now())))
    }

    /// The refusal of a request in the pause.
    pub(crate) fn refusal(&self) -> Option<AllRefusal> {
        let rest = self.rest();
        let retry_after = Nanos::from_duration(rest);
        (!rest.is_zero()).then(|| AllRefusal::from(Refusal::Paused { retry_after }).as_degraded())
    }

    /// Waits until a message or a report begins a pause, or, if there `is_paused`, ends it.
    pub(crate) async fn until_changed(&self, is_paused: bool) {
        loop {
            let mut changed = pin!(self.changed.notified());
            changed.as_mut().enable();
            if self.rest().is_zero() == is_paused {
                return;
            }
            guarded(changed).await;
        }
    }
}

impl Drop for PauseMessage {
    fn drop(&mut self) {
        let state = &mut *lock(&self.0.state);
        state.pending -= 1;
        state.done += 1;
    }
}

/// A pause without an end outlasts any process.
fn end_of(span: Duration) -> Option<Instant> {
    let now = Instant::now();
    now.checked_add(span).or_else(|| now.checked_add(Duration::from_secs(u32::MAX.into())))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(i: usize) -> Arc<[String]> {
        [format!("key {i}")].into()
    }

    #[tokio::test(start_paused = true)]
    async fn only_pauses_and_keys_in_use_are_kept() {
        let pauses = Arc::<KnownPauses>::default();
        let (in_use, second) = (pauses.of(&keys(0)), pauses.of(&keys(0)));
        drop(second);
        drop(pauses.of(&keys(1)).begin(Duration::from_secs(1)));
        let len = || lock(&pauses.0).pauses.len();
        (2..1000).for_each(|i| drop(pauses.of(&keys(i))));
        assert_eq!(len(), 2);
        assert!(Arc::ptr_eq(&in_use, &pauses.of(&keys(0))));
        assert!(pauses.of(&keys(1)).refusal().is_some());
        tokio::time::advance(Duration::from_secs(2)).await;
        for i in 2..MAX_KNOWN + 100 {
            drop(pauses.of(&keys(i)).begin(Duration::from_secs(1)));
        }
        assert_eq!(len(), MAX_KNOWN);
        // The pauses have ended.
        tokio::time::advance(Duration::from_secs(2)).await;
        (0..MAX_KNOWN + 100).for_each(|i| drop(pauses.of(&keys(MAX_KNOWN * 2 + i))));
        assert_eq!(len(), 1);
        assert!(lock(&pauses.0).pauses.capacity() < 2 * TIDIES_AFTER);
    }
}
