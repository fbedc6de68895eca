//! [`Store::flush`]: waiting until the store has answered all that it is told.

use std::pin::pin;

use futures_util::future::{Either, select};
use tidegate::{Clock, DefaultClock, Nanos, Timer};

use crate::block_on::Blocks;
use crate::error::StoreError;
use crate::store::Store;

impl Store {
    /// Waits until the store has answered all that this process has told it or owes it by now.
    ///
    /// Some messages are not waited for by the call that sends them: dropped permits in use,
    /// dropped waits, settled reservations, unused permits, permits on lease of a dropped limiter,
    /// [`pause`] and [`debit`] of an [`AnyLimiter`]. A process that ends before they left loses
    /// them. So call this at the end of a program, after permits and limiters are dropped, and
    /// where a program must know that its pause was carried out.
    ///
    /// The process leaves the count of [`clients`](Store::clients), and is counted again from its
    /// next request for permits on.
    ///
    /// Requests and messages that come later are not waited for. A wait that still lives keeps its
    /// place, and a limiter that still lives may keep its lease.
    ///
    /// # Errors
    ///
    /// The [`StoreError`] of the last such message that had no answer since the last flush, or
    /// since the store was opened. Its text says that a message got lost, and the store may be back
    /// meanwhile: [`trouble`](Store::trouble) tells how it is now. The store may have carried the
    /// message out. A message that the store was
    /// told by a repeated call, such as dropped permits in use, is not counted as lost. If the
    /// store answers nothing for twice its [timeout](crate::StoreBuilder::timeout), the error is
    /// that of the last call.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future ends the wait alone. All messages go on.
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
    /// [`AnyLimiter`]: tidegate::AnyLimiter
    pub async fn flush(&self) -> Result<(), StoreError> {
        let pending = &self.0.shared.pending;
        if !self.has_ended() {
            self.0.shared.clients.leave(|| self.begin_telling());
        }
        let clock = DefaultClock::new();
        let late = pin!(async {
            let mut answered = None;
            // While the store answers others, the answers to these messages are still to come.
            while answered.replace(self.counts().answered) != Some(self.counts().answered) {
                let silence = Nanos::from_duration(2 * self.timeout());
                clock.sleep_until(clock.now().saturating_add(silence)).await;
            }
        });
        let told = pin!(async {
            pending.ended_so_far().await;
            // The messages that waited for these answers have left by now.
            pending.ended_so_far().await;
        });
        if matches!(select(told, late).await, Either::Left(_)) {
            pending.take_lost().map_or(Ok(()), Err)
        } else {
            Err(self.last_error())
        }
    }

    /// As [`flush`](Store::flush), and blocks the calling thread meanwhile.
    ///
    /// # Errors
    ///
    /// As [`flush`](Store::flush). A thread that asks the store cannot wait for it, and has an
    /// error at once.
    pub fn blocking_flush(&self) -> Result<(), StoreError> {
        let here = || Err(StoreError::away("cannot be waited for by a thread that asks it"));
        self.block_on(Blocks::Yes, self.flush()).unwrap_or_else(here)
    }
}
