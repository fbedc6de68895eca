//! One attempt at a time to make what many calls need, such as a connection.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::time::Instant;

use super::failure::Failure;
use crate::counted::Counted;
use crate::lock::lock;

/// The failure of an attempt that began so long before a call says nothing to that call: a server
/// that is back may answer a newer connection, and not the old one.
const OLD: Duration = Duration::from_secs(1);

/// The attempts to make one thing. Calls that come during an attempt share its outcome.
#[derive(Default)]
pub(super) struct Attempts {
    /// When the attempt in progress began.
    began: Mutex<Option<Instant>>,
    /// The number of attempts that have ended.
    ended: AtomicU64,
    /// The number of calls that wait for an attempt, or for their turn behind it.
    waiting: AtomicUsize,
    /// Held during an attempt. Holds the failure of the last attempt.
    last: Arc<tokio::sync::Mutex<Option<Failure>>>,
}

impl Attempts {
    /// Returns whether calls wait for an attempt, or for their turn behind it.
    pub(super) fn has_waiting(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) > 0
    }

    /// Returns what `find` finds. If it finds nothing, this call makes an attempt, unless another
    /// attempt fails first that began since, or just before: then the call fails with that failure.
    ///
    /// The attempt is a separate task: the deadline of one call does not end what other calls wait
    /// for. Calls go on in the order in which they came: each lets the next one go on when it runs
    /// itself, and a new call waits behind them.
    pub(super) async fn join<T: Send + 'static>(
        self: &Arc<Attempts>,
        find: impl Fn() -> Option<T>,
        attempt: impl Future<Output = Result<T, Failure>> + Send + 'static,
    ) -> Result<T, Failure> {
        if !self.has_waiting()
            && let Some(found) = find()
        {
            return Ok(found);
        }
        let _waiting = Counted::new(&self.waiting);
        // In this order: an attempt that ends meanwhile then counts as ended.
        let is_old = lock(&self.began).is_some_and(|began| began.elapsed() >= OLD);
        let ended = self.ended.load(Ordering::Acquire);
        let mut last = self.last.clone().lock_owned().await;
        if let Some(found) = find() {
            return Ok(found);
        }
        if self.ended.load(Ordering::Relaxed) > ended + u64::from(is_old)
            && let Some(failure) = &*last
        {
            return Err(failure.clone());
        }
        let this = self.clone();
        let made = tokio::spawn(async move {
            *lock(&this.began) = Some(Instant::now());
            let made = attempt.await;
            this.ended.fetch_add(1, Ordering::Release);
            *lock(&this.began) = None;
            *last = made.as_ref().err().cloned();
            (made, last)
        });
        match made.await {
            Ok((made, _last)) => made,
            Err(_) => Err(Failure::NotRun("could not be connected to".into())),
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::stream::{FuturesUnordered, StreamExt};

    use super::*;

    /// A call once failed with an attempt that had begun long before, and the next one began only
    /// after a whole rest of the breaker.
    #[tokio::test(start_paused = true)]
    async fn a_call_that_joins_an_old_attempt_begins_another_one() {
        let attempts = Arc::<Attempts>::default();
        let began = Instant::now();
        let ends = [0, 500, 1_500, 4_999].map(|joins| {
            let attempts = attempts.clone();
            async move {
                tokio::time::sleep(Duration::from_millis(joins)).await;
                let attempt = async {
                    tokio::time::sleep(Duration::from_secs(5)).await;
                    Err(Failure::NotRun("not now".into()))
                };
                assert!(attempts.join(|| None::<()>, attempt).await.is_err());
                began.elapsed().as_secs()
            }
        });
        assert_eq!(futures_util::future::join_all(ends).await, [5, 5, 10, 10]);
    }

    /// Bug: the calls that waited were tasks, and a thread of a runtime of several threads runs the
    /// last task first. A debit was sent behind a request that followed it.
    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn calls_that_waited_go_on_in_their_order() {
        let calls = tokio::spawn(async {
            let (attempts, made) = (Arc::<Attempts>::default(), Arc::<Mutex<Option<u32>>>::default());
            let order = Mutex::new(Vec::new());
            let call = |number| {
                let (attempts, made, order) = (&attempts, &made, &order);
                async move {
                    let (found, make) = (made.clone(), made.clone());
                    let attempt = async move {
                        tokio::task::yield_now().await;
                        *lock(&make) = Some(7);
                        Ok(7)
                    };
                    assert!(attempts.join(move || *lock(&found), attempt).await.is_ok());
                    lock(order).push(number);
                }
            };
            let mut calls: FuturesUnordered<_> = (0..20).map(call).collect();
            calls.next().await;
            // This one comes while the others have their turns.
            calls.push(call(20));
            calls.collect::<()>().await;
            order.into_inner().expect("no panic")
        });
        assert_eq!(calls.await.expect("no panic"), (0..=20).collect::<Vec<_>>());
    }

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
