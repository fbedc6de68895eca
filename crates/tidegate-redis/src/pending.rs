//! What the store is told and has not answered, for [`Store::flush`](crate::Store::flush).

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex};

use tokio::sync::Notify;

use crate::error::StoreError;
use crate::lock::lock;

/// The tellings that have begun and not ended, by their numbers.
#[derive(Debug, Default)]
pub(crate) struct Pending {
    state: Mutex<State>,
    /// Told when a telling ends.
    ended: Notify,
}

#[derive(Debug, Default)]
struct State {
    next: u64,
    open: BTreeSet<u64>,
    /// The error of a message without an answer, until a flush tells it.
    lost: Option<StoreError>,
}

/// Something that the store is told now or next, until it is dropped. What an answer has sent in
/// turn begins before the telling of this answer ends.
#[derive(Debug)]
pub(crate) struct Telling {
    pending: Arc<Pending>,
    number: u64,
}

impl Telling {
    pub(crate) fn new(pending: &Arc<Pending>) -> Telling {
        let mut state = lock(&pending.state);
        let number = state.next;
        state.next += 1;
        state.open.insert(number);
        drop(state);
        Telling { pending: pending.clone(), number }
    }
}

impl Drop for Telling {
    fn drop(&mut self) {
        lock(&self.pending.state).open.remove(&self.number);
        // The panic of a foreign waker must not end the task that tells the store.
        _ = catch_unwind(AssertUnwindSafe(|| self.pending.ended.notify_waiters()));
    }
}

impl Pending {
    /// Waits until all tellings have ended that have begun so far. Later ones may go on.
    pub(crate) async fn ended_so_far(&self) {
        let next = lock(&self.state).next;
        loop {
            let ended = self.ended.notified();
            if lock(&self.state).open.first().is_none_or(|first| *first >= next) {
                return;
            }
            ended.await;
        }
    }

    /// A message that no caller waits for has no answer.
    pub(crate) fn lose(&self, error: StoreError) {
        lock(&self.state).lost = Some(error.of_lost_message());
    }

    /// The error of the last message that was lost since it was taken last.
    pub(crate) fn take_lost(&self) -> Option<StoreError> {
        lock(&self.state).lost.take()
    }
}
