//! [`Store::flush`]: waiting until the store has replied to all messages of this process.

use std::pin::pin;

use futures_util::future::{Either, select};
use tidegate::{Clock, DefaultClock, Nanos, Timer};

use crate::block_on::Blocks;
use crate::error::StoreError;
use crate::lock::lock;
use crate::store::Store;

impl Store {
    /// Waits until the store has replied to every message that this process has sent or still has
    /// to send to it.
    ///
    /// Some calls do not wait for the messages that they send: dropped permits in use, dropped
    /// waits, settled reservations, unused permits, permits on lease of a dropped limiter, and
    /// [`pause`], [`debit`] and [`refund`] of an [`AnyLimiter`]. A process that ends before these
    /// messages are sent loses them. Call this method at the end of a program, after permits and
    /// limiters are dropped, and wherever a program must know that its pause was carried out.
    ///
    /// The process leaves the count of [`clients`](Store::clients), and is counted again from its
    /// next request for permits on.
    ///
    /// Later requests and messages are not waited for. A live wait keeps its position, and a live
    /// limiter may keep its lease.
    ///
    /// # Errors
    ///
    /// Returns the [`StoreError`] of the last such message without a reply since the last flush, or
    /// since the store was opened. The text of the error says that a message got lost. The store
    /// may be back meanwhile: [`trouble`](Store::trouble) returns its current state. The store may
    /// have carried the message out. A message that a repeated call delivered, such as that of
    /// dropped permits in use, does not count as lost. If the store replies to no call for twice
    /// its [timeout](crate::StoreBuilder::timeout), the error is that of the last call. If it
    /// replies to others, but to none of the repeated calls with one message for that long, the
    /// error is that of the last of these calls.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future ends only the wait. All messages go on.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// use tidegate_redis::Store;
    ///
    /// # #[tokio::main]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let store = Store::open("redis://127.0.0.1")?;
    /// let jobs = store.counting("jobs", 20).build()?;
    /// // ... the work of the program ...
    /// drop(jobs);
    /// store.flush().await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// [`pause`]: tidegate::AnyLimiter::pause
    /// [`debit`]: tidegate::AnyLimiter::debit
    /// [`refund`]: tidegate::AnyLimiter::refund
    /// [`AnyLimiter`]: tidegate::AnyLimiter
    pub async fn flush(&self) -> Result<(), StoreError> {
        let pending = &self.0.shared.pending;
        if !self.has_ended() {
            self.0.shared.clients.leave(|| self.begin_message());
        }
        let clock = DefaultClock::new();
        let patience = 2 * self.timeout();
        let late = pin!(async {
            let mut answered = None;
            // While the store replies to others, the replies to these messages are still to come.
            while answered.replace(self.counts().answered) != Some(self.counts().answered) {
                clock.sleep_until(clock.now().saturating_add(Nanos::from_duration(patience))).await;
            }
        });
        let all_sent = pin!(async {
            pending.ended_so_far(patience).await?;
            // The messages that waited for these replies have been sent by now.
            pending.ended_so_far(patience).await
        });
        match select(all_sent, late).await {
            Either::Left((Ok(()), _)) => pending.take_lost().map_or(Ok(()), Err),
            Either::Left((Err(error), _)) => Err(error),
            Either::Right(_) => Err(lock(&self.0.shared.trouble).last()),
        }
    }

    /// Like [`flush`](Store::flush), but blocks the calling thread.
    ///
    /// # Errors
    ///
    /// Like [`flush`](Store::flush). On a thread that makes the store's calls, this returns an
    /// error at once.
    pub fn blocking_flush(&self) -> Result<(), StoreError> {
        let here = || Err(StoreError::away("cannot be waited for by a thread that asks it"));
        self.block_on(Blocks::Yes, self.flush()).unwrap_or_else(here)
    }
}
