//! Batches: permits taken many at a time, handed out one by one, and given back.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use crate::support::spawn_pending;
use proptest::prelude::*;
use tidegate::{
    AnyPolicy, CancelToken, FixedWindow, ManualClock, Rate, RateLimiter, Refusal, SlidingLog, SmoothBursty,
    Statistics, TokenBucket,
};
use tokio_test::assert_ready;

#[derive(Clone, Debug)]
enum Act {
    Take(u32),
    GiveBack,
    Advance(u64),
}

fn acts() -> impl Strategy<Value = Vec<Act>> {
    let act = prop_oneof![
        4 => (1_u32..12).prop_map(Act::Take),
        1 => Just(Act::GiveBack),
        1 => (0_u64..400).prop_map(Act::Advance),
    ];
    prop::collection::vec(act, 1..60)
}

fn policies() -> impl Strategy<Value = AnyPolicy> {
    let rate = Rate::per_second(20);
    prop_oneof![
        Just(AnyPolicy::from(TokenBucket::new(rate, 20))),
        Just(SmoothBursty::new(rate).start_full().into()),
        Just(FixedWindow::new(rate).into()),
        Just(SlidingLog::new(rate).into()),
    ]
}

proptest! {
    /// After a batch is given back at once, the limiter is as single permits would have left it.
    #[test]
    fn a_batch_that_is_given_back_took_what_it_handed_out(
        policy in policies(), size in 1_u32..40, acts in acts()
    ) {
        let (clock, other) = (ManualClock::new(), ManualClock::new());
        let limiter = RateLimiter::with_clock(policy.clone(), clock.clone());
        let single = RateLimiter::with_clock(policy, other.clone());
        for act in acts {
            match act {
                Act::Take(n) => {
                    let mut batch = limiter.batch(size);
                    for _ in 0..n {
                        let expected = single.try_acquire().map(drop);
                        prop_assert_eq!(batch.try_acquire().map_err(Refusal::retry_after),
                            expected.map_err(Refusal::retry_after));
                    }
                    prop_assert!(batch.left() < size);
                }
                Act::GiveBack => limiter.batch(size).give_back(),
                Act::Advance(span) => {
                    clock.advance(Duration::from_millis(span));
                    other.advance(Duration::from_millis(span));
                }
            }
            prop_assert_eq!(limiter.status(), single.status());
        }
    }

    /// However many permits batches hold, no more are handed out than accrued.
    #[test]
    fn batches_hand_out_no_more_than_they_took(sizes in prop::collection::vec(0_u32..40, 1..5), acts in acts()) {
        let clock = ManualClock::new();
        let limiter = RateLimiter::with_clock(TokenBucket::new(Rate::per_second(20), 20), clock.clone());
        let mut batches: Vec<_> = sizes.iter().map(|size| limiter.batch(*size)).collect();
        let (mut used, mut elapsed) = (0, 0);
        for (turn, act) in acts.into_iter().enumerate() {
            let count = batches.len();
            let batch = &mut batches[turn % count];
            match act {
                Act::Take(n) => used += (0..n).filter(|_| batch.try_acquire().is_ok()).count() as u64,
                Act::GiveBack => batch.give_back(),
                Act::Advance(span) => {
                    clock.advance(Duration::from_millis(span));
                    elapsed += span;
                }
            }
            let out: u64 = batches.iter().map(|batch| u64::from(batch.left())).sum();
            prop_assert!((used + out) * 1000 <= 20 * 1000 + elapsed * 20);
        }
    }
}

#[test]
fn threads_with_batches_share_all_permits_and_no_more() {
    let limiter = RateLimiter::new(TokenBucket::new(Rate::ZERO, 100_000));
    let take = |limiter: RateLimiter<TokenBucket>, size| {
        move || {
            let mut batch = limiter.batch(size);
            (0..40_000).filter(|_| batch.try_acquire().is_ok()).count()
        }
    };
    let threads = [7, 64, 1000].map(|size| thread::spawn(take(limiter.clone(), size)));
    let used: usize = threads.into_iter().map(|thread| thread.join().expect("no panic")).sum();
    assert_eq!(used as u64 + limiter.status().available, 100_000);
    assert!(used > 60_000);
}

#[cfg(feature = "tokio")]
#[tokio::test(start_paused = true)]
async fn an_empty_batch_waits_in_the_queue() {
    let policy = TokenBucket::new(Rate::per_second(10), 2);
    let limiter = RateLimiter::with_clock(policy, tidegate::TokioClock::new());
    let mut batch = limiter.batch(10);
    let start = tokio::time::Instant::now();
    for _ in 0..5 {
        batch.acquire().await.expect("not bounded");
    }
    assert_eq!(start.elapsed(), Duration::from_millis(300));
    limiter.set_shadow(true);
    batch.try_acquire().expect("in shadow mode it passes");
    assert_eq!(batch.left(), 0);
}

/// Bug: the observers were told that the call was refused, and then that it was granted.
#[test]
fn a_call_of_a_batch_that_waits_is_reported_once() {
    let clock = ManualClock::new();
    let limiter = RateLimiter::with_clock(TokenBucket::new(Rate::per_second(10), 2), clock.clone());
    let statistics = Arc::new(Statistics::new());
    limiter.observe(statistics.clone());
    let (mut first, mut second) = (limiter.batch(2), limiter.batch(9));
    assert_eq!(first.try_acquire(), Ok(()));
    let mut wait = spawn_pending(second.acquire());
    clock.advance(Duration::from_millis(100));
    assert_eq!(assert_ready!(wait.poll()), Ok(()));
    drop(wait);
    let told = statistics.snapshot();
    assert_eq!((told.granted, told.limited, told.cancelled), (2, 0, 0));
    let mut wait = spawn_pending(second.acquire());
    drop(wait);
    let told = statistics.snapshot();
    assert_eq!((told.granted, told.limited, told.cancelled), (2, 0, 1));
    wait = spawn_pending(second.acquire());
    first.give_back();
    assert_eq!(assert_ready!(wait.poll()), Ok(()));
    let token = CancelToken::new();
    token.cancel();
    let answers = token.run(|| {
        limiter.refund(2);
        [first.blocking_acquire(), first.blocking_acquire(), first.blocking_acquire()]
    });
    assert_eq!(answers, [Ok(()), Ok(()), Err(Refusal::Cancelled)]);
    let told = statistics.snapshot();
    assert_eq!((told.granted, told.limited, told.cancelled), (4, 0, 2));
}

#[test]
fn a_batch_that_waited_takes_what_is_available() {
    let clock = ManualClock::new();
    let limiter = RateLimiter::with_clock(FixedWindow::new(Rate::per_second(10)), clock.clone());
    assert_eq!(limiter.drain(), 10);
    let mut batch = limiter.batch(4);
    let mut wait = spawn_pending(batch.acquire());
    clock.advance(Duration::from_secs(1));
    assert_eq!(assert_ready!(wait.poll()), Ok(()));
    drop(wait);
    assert_eq!((batch.left(), limiter.status().available), (3, 6));
}

#[test]
fn a_batch_of_nothing_takes_one_at_a_time() {
    let limiter = RateLimiter::with_clock(TokenBucket::new(Rate::per_second(1), 2), ManualClock::new());
    let mut batch = limiter.batch(0);
    assert_eq!(batch.try_acquire(), Ok(()));
    assert_eq!((batch.left(), limiter.status().available), (0, 1));
    let mut huge = limiter.batch(u32::MAX);
    assert_eq!(huge.try_acquire(), Ok(()));
    assert!(huge.try_acquire().is_err());
}
