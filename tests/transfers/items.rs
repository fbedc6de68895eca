//! Streams.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::stream::FusedStream;
use futures_util::{FutureExt, Stream, StreamExt, TryStreamExt, stream};
use tidegate::stream::{LimitStream, RefusedItem};
use tidegate::{
    AllOf, ManualClock, Rate, RateLimiter, Refusal, Request, SmoothBursty, TokenBucket, TokioClock,
};
use tokio::time::Instant;
use tokio_test::task::spawn;
use tokio_test::{assert_pending, assert_ready};

fn bucket(per_second: u64, burst: u32) -> (RateLimiter<TokenBucket, ManualClock>, ManualClock) {
    let clock = ManualClock::new();
    let policy = TokenBucket::new(Rate::per_second(per_second), burst);
    (RateLimiter::with_clock(policy, clock.clone()), clock)
}

fn item<T>(answer: Poll<Option<Result<T, RefusedItem<T>>>>) -> Option<T> {
    match assert_ready!(answer) {
        Some(Ok(item)) => Some(item),
        Some(Err(RefusedItem { refusal, .. })) => panic!("refused: {refusal}"),
        None => None,
    }
}

#[test]
fn an_item_comes_when_its_permits_are_due() {
    let (limiter, clock) = bucket(10, 2);
    let items = [1_u32, 2, 2, 0, 1];
    let mut items = spawn(stream::iter(items).rate_limited(limiter.clone()).cost(|cost| *cost));
    assert_eq!(item(items.poll_next()), Some(1));
    assert_pending!(items.poll_next());
    clock.advance(Duration::from_millis(100));
    assert!(items.is_woken());
    assert_eq!(item(items.poll_next()), Some(2));
    assert_pending!(items.poll_next());
    clock.advance(Duration::from_millis(199));
    assert_pending!(items.poll_next());
    clock.advance(Duration::from_millis(1));
    assert_eq!(item(items.poll_next()), Some(2));
    assert_eq!(item(items.poll_next()), Some(0), "it costs nothing");
    assert_pending!(items.poll_next());
    clock.advance(Duration::from_millis(100));
    assert_eq!(item(items.poll_next()), Some(1));
    assert_eq!(item(items.poll_next()), None);
    assert_eq!(limiter.status().waiting, 0);
}

#[test]
fn a_silent_stream_holds_nothing() {
    let (limiter, _) = bucket(10, 1);
    let mut silent = spawn(stream::pending::<()>().rate_limited(limiter.clone()));
    assert_pending!(silent.poll_next());
    assert_eq!((limiter.status().available, limiter.status().waiting), (1, 0));
}

#[test]
fn a_stream_that_is_dropped_leaves_no_trace() {
    let (limiter, clock) = bucket(10, 1);
    let mut first = spawn(stream::repeat(()).rate_limited(limiter.clone()));
    item(first.poll_next());
    assert_pending!(first.poll_next());
    let mut second = spawn(stream::repeat(()).rate_limited(limiter.clone()));
    assert_pending!(second.poll_next());
    // Granted, but not yet seen by the caller.
    clock.advance(Duration::from_millis(100));
    assert!(first.is_woken());
    drop(first);
    assert_eq!(item(second.poll_next()), Some(()));
    assert_pending!(second.poll_next());
    let (_, waits) = second.into_inner().into_parts();
    assert_eq!(waits, Some(()));
    assert_eq!(limiter.status().waiting, 0);
}

#[test]
fn the_sizes_count_the_item_that_waits() {
    let (limiter, clock) = bucket(10, 1);
    let mut items = spawn(stream::iter(0..3).rate_limited(limiter));
    for left in [3, 2, 1] {
        assert_eq!(items.size_hint(), (left, Some(left)));
        while items.poll_next().is_pending() {
            assert_eq!(items.size_hint(), (left, Some(left)), "one waits");
            clock.advance(Duration::from_millis(100));
        }
    }
    assert_eq!(items.size_hint(), (0, Some(0)));
    assert!(!items.is_terminated(), "it does not know yet");
    assert_eq!(item(items.poll_next()), None);
    assert!(items.is_terminated());
    let largest = spawn(Endless.rate_limited(bucket(1, 1).0));
    assert_eq!(largest.size_hint(), (usize::MAX, None));
}

struct Endless;

impl Stream for Endless {
    type Item = ();

    fn poll_next(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<()>> {
        Poll::Ready(Some(()))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (usize::MAX, None)
    }
}

/// A stream that ends once and must not be polled again.
struct Once(Option<u32>);

impl Stream for Once {
    type Item = u32;

    fn poll_next(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<u32>> {
        let left = self.0.expect("polled after its end");
        self.0 = left.checked_sub(1);
        Poll::Ready(self.0)
    }
}

#[test]
fn the_inner_stream_is_not_polled_after_its_end() {
    let mut items = spawn(Once(Some(1)).rate_limited(bucket(1, 5).0));
    assert_eq!(item(items.poll_next()), Some(0));
    for _ in 0..3 {
        assert_eq!(item(items.poll_next()), None);
    }
}

#[test]
fn a_refused_item_comes_back_and_the_stream_goes_on() {
    let (limiter, clock) = bucket(10, 2);
    let cost = |n: &u32| Request::permits(*n).within(Duration::from_millis(100));
    let mut items = spawn(stream::iter([2, 3, 2, 1, 1]).rate_limited(limiter.clone()).cost(cost));
    assert_eq!(item(items.poll_next()), Some(2));
    let refused = |answer: Poll<_>| match assert_ready!(answer) {
        Some(Err(RefusedItem { item, refusal })) => (item, refusal.refusal()),
        other => panic!("not refused: {other:?}"),
    };
    let never = Refusal::ExceedsLimit { requested: 3, limit: 2 };
    assert_eq!(refused(items.poll_next()), (3, Some(never)));
    let late = Refusal::Limited { retry_after: tidegate::Nanos::from_duration(Duration::from_millis(100)) };
    assert_eq!(refused(items.poll_next()), (2, Some(late)), "in 200 ms");
    assert_pending!(items.poll_next());
    limiter.close();
    assert!(items.is_woken());
    assert_eq!(refused(items.poll_next()), (1, Some(Refusal::Closed)));
    assert_eq!(refused(items.poll_next()), (1, Some(Refusal::Closed)));
    assert_eq!(item(items.poll_next()), None);
    clock.advance(Duration::from_secs(9));
    assert_eq!(item(items.poll_next()), None);
}

#[test]
fn streams_of_one_limiter_take_turns() {
    let (limiter, clock) = bucket(10, 1);
    let mut streams: Vec<_> =
        (0..3).map(|n| spawn(stream::repeat(n).rate_limited(limiter.clone()))).collect();
    let mut came = Vec::new();
    for _ in 0..9 {
        for stream in &mut streams {
            if let Poll::Ready(Some(Ok(n))) = stream.poll_next() {
                came.push(n);
                // Waits for the next item, behind the other streams.
                assert_pending!(stream.poll_next());
            }
        }
        clock.advance(Duration::from_millis(100));
    }
    // The first stream waits for its second item before the others have started.
    assert_eq!(came, [0, 0, 1, 2, 0, 1, 2, 0, 1]);
}

#[tokio::test(start_paused = true)]
async fn a_stream_need_not_be_unpin() {
    let policy = SmoothBursty::new(Rate::per_second(5));
    let limiter = RateLimiter::with_clock(policy, TokioClock::new());
    let numbers = stream::unfold(0, async |n| {
        tokio::task::yield_now().await;
        (n < 6).then_some((n, n + 1))
    });
    let begin = Instant::now();
    let numbers: Vec<_> = Box::pin(numbers.rate_limited(limiter)).try_collect().await.expect("all granted");
    assert_eq!(numbers, [0, 1, 2, 3, 4, 5]);
    assert_eq!(begin.elapsed(), Duration::from_secs(1));
}

#[test]
fn several_limits_count_each_item() {
    let (second, clock) = bucket(10, 2);
    let minute = RateLimiter::with_clock(TokenBucket::new(Rate::per_minute(60), 3), clock);
    let both = AllOf::new("second", &second).with("minute", &minute);
    let items = stream::repeat(()).rate_limited(both).take(2);
    assert_eq!(items.count().now_or_never(), Some(2));
    assert_eq!((second.status().available, minute.status().available), (0, 1));
}

#[test]
fn a_cost_that_panics_loses_no_item() {
    let (limiter, _) = bucket(10, 2);
    let mut asked = 0;
    let cost = |_: &i32| {
        asked += 1;
        assert!(asked != 2, "a panic of user code");
        1
    };
    let mut items = spawn(stream::iter([1, 2]).rate_limited(limiter).cost(cost));
    assert_eq!(item(items.poll_next()), Some(1));
    let poll = std::panic::AssertUnwindSafe(|| items.poll_next());
    assert!(std::panic::catch_unwind(poll).is_err());
    assert_eq!(item(items.poll_next()), Some(2));
}
