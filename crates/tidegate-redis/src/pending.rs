//! The messages to the store without a reply yet, for [`Store::flush`](crate::Store::flush).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use crate::error::StoreError;
use crate::guarded::guarded;
use crate::lock::lock;

/// The messages that have begun and not ended, by their numbers. A message exists from the
/// decision to send it until its reply.
#[derive(Debug, Default)]
pub(crate) struct Pending {
    state: Mutex<State>,
    /// Notified when a message ends, or when a call with it fails.
    changed: Notify,
}

#[derive(Debug, Default)]
struct State {
    next: u64,
    open: BTreeSet<u64>,
    /// The messages among them that are sent again, because their calls have failed.
    failing: BTreeMap<u64, Failures>,
    /// The error of a message without a reply, until a flush returns it.
    lost: Option<StoreError>,
}

/// The failures of the calls with a message.
#[derive(Debug)]
struct Failures {
    first: Instant,
    last: Instant,
    /// The error of the last one.
    error: StoreError,
}

/// A message to the store that is in flight or will be sent next, until this is dropped. A message
/// that a reply triggers begins before the message of this reply ends.
#[derive(Debug)]
pub(crate) struct PendingMessage {
    pending: Arc<Pending>,
    number: u64,
}

impl PendingMessage {
    pub(crate) fn new(pending: &Arc<Pending>) -> PendingMessage {
        let mut state = lock(&pending.state);
        let number = state.next;
        state.next += 1;
        state.open.insert(number);
        drop(state);
        PendingMessage { pending: pending.clone(), number }
    }

    /// Records that a call with this message has no reply. The next call sends the message again.
    /// The caller holds no lock.
    pub(crate) fn failed(&self, error: StoreError) {
        let last = Instant::now();
        let mut state = lock(&self.pending.state);
        let first = state.failing.get(&self.number).map_or(last, |failures| failures.first);
        state.failing.insert(self.number, Failures { first, last, error });
        drop(state);
        self.pending.changed.notify_waiters();
    }

    /// Records that the store replied to a call of the queue that has yet to send this message. The
    /// failures before that call no longer count.
    pub(crate) fn replied(&self) {
        lock(&self.pending.state).failing.remove(&self.number);
    }

    /// Ends a message that no call will carry any more. It is lost if its calls have failed.
    pub(crate) fn give_up(self) {
        let mut state = lock(&self.pending.state);
        if let Some(Failures { error, .. }) = state.failing.remove(&self.number) {
            state.lost = Some(error.of_lost_message());
        }
    }
}

impl Drop for PendingMessage {
    fn drop(&mut self) {
        let mut state = lock(&self.pending.state);
        state.open.remove(&self.number);
        state.failing.remove(&self.number);
        drop(state);
        self.pending.changed.notify_waiters();
    }
}

impl Pending {
    /// Waits until all messages that have begun so far have ended. Later ones may go on.
    ///
    /// Returns an error if the calls with one of these messages fail for `patience`: such a message
    /// may never end, although the store replies to all other calls.
    pub(crate) async fn ended_so_far(&self, patience: Duration) -> Result<(), StoreError> {
        let (next, began) = (lock(&self.state).next, Instant::now());
        let is_over = |failures: &&Failures| failures.last - failures.first.max(began) >= patience;
        loop {
            let changed = self.changed.notified();
            {
                let state = lock(&self.state);
                if state.open.first().is_none_or(|first| *first >= next) {
                    return Ok(());
                }
                let mut failing = state.failing.range(..next).map(|(_, failures)| failures);
                if let Some(failures) = failing.find(is_over) {
                    return Err(failures.error.clone());
                }
            }
            guarded(changed).await;
        }
    }

    /// Records that a message that no caller waits for has no reply.
    pub(crate) fn record_lost(&self, error: StoreError) {
        lock(&self.state).lost = Some(error.of_lost_message());
    }

    /// Takes the error of the last message that was lost since the previous take.
    pub(crate) fn take_lost(&self) -> Option<StoreError> {
        lock(&self.state).lost.take()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// Bug: of a message that outlasted many calls, two failed calls ended a flush, although all
    /// calls between them had replies.
    #[tokio::test(start_paused = true)]
    async fn a_flush_fails_only_if_no_call_has_a_reply() {
        for is_answered in [false, true] {
            let pending = Arc::<Pending>::default();
            let message = PendingMessage::new(&pending);
            message.failed(StoreError::away("one lost call"));
            let flush = tokio::spawn(async move { pending.ended_so_far(100 * MS).await });
            tokio::time::sleep(150 * MS).await;
            if is_answered {
                message.replied();
            }
            message.failed(StoreError::away("another one"));
            tokio::time::sleep(MS).await;
            assert_eq!(flush.is_finished(), !is_answered);
            drop(message);
            assert_eq!(flush.await.expect("no panic").is_ok(), is_answered);
        }
    }
}
