//! One attempt at a time to make what many calls need, such as a connection.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::failure::Failure;

/// The attempts to make one thing. Calls that come during an attempt share its outcome.
#[derive(Default)]
pub(super) struct Attempts {
    /// The number of attempts that have ended.
    ended: AtomicU64,
    /// Held during an attempt. Holds the failure of the last attempt.
    last: tokio::sync::Mutex<Option<Failure>>,
}

impl Attempts {
    /// Returns what `find` finds. If it finds nothing, this call makes an attempt, unless an
    /// attempt in progress fails first: then the call fails with that failure.
    ///
    /// The attempt is a separate task: the deadline of one call does not end what other calls wait
    /// for.
    pub(super) async fn join<T: Send + 'static>(
        self: &Arc<Attempts>,
        find: impl Fn() -> Option<T> + Send + 'static,
        attempt: impl Future<Output = Result<T, Failure>> + Send + 'static,
    ) -> Result<T, Failure> {
        if let Some(found) = find() {
            return Ok(found);
        }
        let (this, ended) = (self.clone(), self.ended.load(Ordering::Relaxed));
        let joined = tokio::spawn(async move {
            let mut last = this.last.lock().await;
            if let Some(found) = find() {
                return Ok(found);
            }
            if this.ended.load(Ordering::Relaxed) != ended
                && let Some(failure) = &*last
            {
                return Err(failure.clone());
            }
            let made = attempt.await;
            this.ended.fetch_add(1, Ordering::Relaxed);
            *last = made.as_ref().err().cloned();
            made
        });
        joined.await.unwrap_or_else(|_| Err(Failure::NotRun("could not be connected to".into())))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;
    use std::time::Duration;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn calls_share_the_failure_of_an_attempt_and_a_later_call_makes_another_one() {
        let (attempts, made) = (Arc::<Attempts>::default(), Arc::<AtomicUsize>::default());
        for round in 1..=2 {
            let calls = (0..100).map(|_| {
                let made = made.clone();
                attempts.join(|| None::<()>, async move {
                    made.fetch_add(1, Ordering::Relaxed);
                    tokio::time::sleep(Duration::from_secs(1)).await;
                    Err(Failure::NotRun("not now".into()))
                })
            });
            assert!(futures_util::future::join_all(calls).await.iter().all(Result::is_err));
            assert_eq!(made.load(Ordering::Relaxed), round);
        }
    }
}
