//! The messages to the store without a reply yet, for [`Store::flush`](crate::Store::flush).

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use tokio::sync::Notify;

use crate::error::StoreError;
use crate::guarded::guarded;
use crate::lock::lock;

/// The messages that have begun and not ended, by their numbers. A message exists from the
/// decision to send it until its reply.
#[derive(Debug, Default)]
pub(crate) struct Pending {
    state: Mutex<State>,
    /// Notified when a message ends.
    ended: Notify,
}

#[derive(Debug, Default)]
struct State {
    next: u64,
    open: BTreeSet<u64>,
    /// The error of a message without a reply, until a flush returns it.
    lost: Option<StoreError>,
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
}

impl Drop for PendingMessage {
    fn drop(&mut self) {
        lock(&self.pending.state).open.remove(&self.number);
        self.pending.ended.notify_waiters();
    }
}

impl Pending {
    /// Waits until all messages that have begun so far have ended. Later ones may go on.
    pub(crate) async fn ended_so_far(&self) {
        let next = lock(&self.state).next;
        loop {
            let ended = self.ended.notified();
            if lock(&self.state).open.first().is_none_or(|first| *first >= next) {
                return;
            }
            guarded(ended).await;
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
