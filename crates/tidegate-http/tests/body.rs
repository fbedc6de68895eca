//! Bodies that take a permit for each byte.

#![allow(clippy::unwrap_used)]

use std::collections::VecDeque;
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Buf, Bytes};
use http::{HeaderMap, HeaderValue};
use http_body::{Body, Frame, SizeHint};
use http_body_util::{BodyExt, Full};
use proptest::collection::vec;
use proptest::prelude::*;
use tidegate::policy::Change;
use tidegate::{
    AllOf, AllRefusal, CountingLimit, ManualClock, Rate, RateLimiter, Refusal, Statistics, TokenBucket,
    TokioClock,
};
use tidegate_http::ThrottledBody;
use tokio::time::Instant;
use tokio_test::task::spawn;
use tokio_test::{assert_pending, assert_ready};

type Manual = RateLimiter<TokenBucket, ManualClock>;

fn bucket(per_second: u64, burst: u32) -> (Manual, ManualClock) {
    let clock = ManualClock::new();
    let policy = TokenBucket::new(Rate::per_second(per_second), burst);
    (RateLimiter::with_clock(policy, clock.clone()), clock)
}

/// Yields these frames. An empty queue is the end; an error is an error of the body.
#[derive(Debug, Default)]
struct Frames(VecDeque<Result<Frame<Bytes>, std::fmt::Error>>);

impl Frames {
    fn of(sizes: &[usize]) -> Frames {
        Frames(sizes.iter().map(|size| Ok(Frame::data(Bytes::from(vec![7; *size])))).collect())
    }

    fn and(mut self, frame: Result<Frame<Bytes>, std::fmt::Error>) -> Frames {
        self.0.push_back(frame);
        self
    }
}

impl Body for Frames {
    type Data = Bytes;
    type Error = std::fmt::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, std::fmt::Error>>> {
        Poll::Ready(self.0.pop_front())
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        let data = self.0.iter().flatten().filter_map(Frame::data_ref);
        SizeHint::with_exact(data.map(|data| data.len() as u64).sum())
    }
}

fn trailers() -> HeaderMap {
    HeaderMap::from_iter([("checksum".parse().unwrap(), HeaderValue::from_static("7"))])
}

fn size<E: std::fmt::Debug>(frame: Option<Result<Frame<Bytes>, E>>) -> Option<usize> {
    Some(frame?.unwrap().into_data().unwrap().len())
}

#[test]
fn chunks_are_paid_for_before_they_are_yielded() {
    let (limiter, clock) = bucket(1000, 600);
    let mut body = ThrottledBody::new(Frames::of(&[1100, 100]), limiter.clone());
    assert_eq!(body.size_hint().exact(), Some(1200));
    assert_eq!(size(assert_ready!(spawn(body.frame()).poll())), Some(512), "a chunk");
    assert_eq!(limiter.status().available, 88);
    assert_eq!(body.size_hint().exact(), Some(688));
    let mut next = spawn(body.frame());
    assert_pending!(next.poll());
    clock.advance(Duration::from_millis(423));
    assert!(!next.is_woken());
    clock.advance(Duration::from_millis(1));
    assert_eq!(size(assert_ready!(next.poll())), Some(512));
    drop(next);
    clock.advance(Duration::from_millis(600));
    assert_eq!(size(assert_ready!(spawn(body.frame()).poll())), Some(76), "the rest of the frame");
    assert!(!body.is_end_stream());
    assert_eq!(size(assert_ready!(spawn(body.frame()).poll())), Some(100), "a frame of its own");
    assert!(body.is_end_stream());
    assert_eq!(body.size_hint().exact(), Some(0));
    assert_eq!(limiter.status().available, 424);
}

#[test]
fn trailers_empty_frames_errors_and_the_end_are_free() {
    let (limiter, _) = bucket(1000, 100);
    limiter.drain();
    let frames = Frames::of(&[0])
        .and(Ok(Frame::trailers(trailers())))
        .and(Err(std::fmt::Error))
        .and(Ok(Frame::data(Bytes::from_static(b"more"))));
    let mut body = ThrottledBody::new(frames, limiter.clone());
    assert_eq!(size(assert_ready!(spawn(body.frame()).poll())), Some(0));
    let frame = assert_ready!(spawn(body.frame()).poll()).unwrap().unwrap();
    assert_eq!(frame.into_trailers().unwrap(), trailers());
    let error = assert_ready!(spawn(body.frame()).poll()).unwrap().unwrap_err();
    assert!(error.is::<std::fmt::Error>());
    assert_pending!(spawn(body.frame()).poll(), "data waits");

    let mut empty = ThrottledBody::new(Frames::default(), limiter);
    assert!(empty.is_end_stream());
    assert!(assert_ready!(spawn(empty.frame()).poll()).is_none());
}

#[test]
fn a_body_that_is_dropped_leaves_no_trace() {
    let (limiter, clock) = bucket(1000, 512);
    let mut body = ThrottledBody::new(Frames::of(&[2000]), limiter.clone());
    assert_ready!(spawn(body.frame()).poll());
    assert_pending!(spawn(body.frame()).poll());
    assert_eq!(limiter.status().waiting, 1, "it keeps its position between polls");
    drop(body);
    assert_eq!(limiter.status().waiting, 0);

    // The chunk was granted, but not yielded.
    let mut body = ThrottledBody::new(Frames::of(&[512]), limiter.clone());
    assert_pending!(spawn(body.frame()).poll());
    clock.advance(Duration::from_millis(512));
    assert!(limiter.try_acquire().is_err(), "the body has the permits");
    drop(body);
    assert_eq!(limiter.status().available, 512);
}

#[test]
fn a_refusal_is_an_error_with_its_reason() {
    let (limiter, _) = bucket(1000, 512);
    let mut body = ThrottledBody::new(Frames::of(&[2000]), limiter.clone());
    assert_ready!(spawn(body.frame()).poll());
    let mut next = spawn(body.frame());
    assert_pending!(next.poll());
    limiter.close();
    assert!(next.is_woken());
    let error = assert_ready!(next.poll()).unwrap().unwrap_err();
    drop(next);
    let refusal = error.downcast_ref::<AllRefusal>().and_then(AllRefusal::refusal);
    assert_eq!(refusal, Some(Refusal::Closed));
    assert!(assert_ready!(spawn(body.frame()).poll()).unwrap().is_err(), "and again");
    assert_eq!(body.size_hint().exact(), Some(1488));
}

/// The waiting chunk is larger than the new burst, so the limiter refuses it.
#[test]
fn a_smaller_burst_makes_the_chunk_smaller_that_waits() {
    let (limiter, clock) = bucket(1000, 512);
    limiter.drain();
    let mut body = ThrottledBody::new(Frames::of(&[1000]), limiter.clone());
    let mut next = spawn(body.frame());
    assert_pending!(next.poll());
    limiter.change(Change::only_burst(100)).unwrap();
    assert!(next.is_woken());
    assert_pending!(next.poll());
    clock.advance(Duration::from_millis(100));
    assert_eq!(size(assert_ready!(next.poll())), Some(100));
}

/// The body ended with the refusal of the waiting chunk, although the burst was as large as before
/// when the task ran.
#[test]
fn a_burst_that_was_small_for_a_moment_ends_no_body() {
    let (limiter, clock) = bucket(1000, 512);
    limiter.drain();
    let mut body = ThrottledBody::new(Frames::of(&[1000]), limiter.clone());
    let mut next = spawn(body.frame());
    assert_pending!(next.poll());
    limiter.change(Change::only_burst(10)).unwrap();
    limiter.change(Change::only_burst(512)).unwrap();
    assert_pending!(next.poll());
    clock.advance(Duration::from_millis(512));
    assert_eq!(size(assert_ready!(next.poll())), Some(512));
}

/// A share of the burst was kept, and the body ended with the refusal of a chunk that was larger
/// than the rest.
#[test]
fn a_share_that_is_kept_ends_no_body() {
    let (limiter, clock) = bucket(1_000_000, 10_000);
    limiter.keep_for_priority(6_000, 1);
    let mut body = ThrottledBody::new(Frames::of(&[20_000]), limiter);
    for _ in 0..5 {
        assert_eq!(size(assert_ready!(spawn(body.frame()).poll())), Some(4_000));
        clock.advance(Duration::from_millis(10));
    }
}

/// Bug: after each wait the body asked again for a chunk that no share of the burst allows, and
/// each time the observer was told of a refusal.
#[test]
fn a_chunk_beside_a_share_that_is_kept_is_not_refused_again_and_again() {
    let (limiter, clock) = bucket(1_000_000, 10_000);
    limiter.keep_for_priority(6_000, 1);
    let statistics = Arc::new(Statistics::new());
    limiter.observe(statistics.clone());
    let mut body = ThrottledBody::new(Frames::of(&[1_000_000]), limiter.clone());
    let mut largest_of = |bytes: usize| {
        let (mut taken, mut largest) = (0, 0);
        while taken < bytes {
            match spawn(body.frame()).poll() {
                Poll::Ready(frame) => {
                    let n = size(frame).unwrap();
                    (taken, largest) = (taken + n, largest.max(n));
                }
                Poll::Pending => clock.advance(Duration::from_millis(1)),
            }
        }
        largest
    };
    assert_eq!(largest_of(200_000), 4_000);
    assert_eq!(statistics.snapshot().exceeds_limit, 1);
    // In the end it asks again, in case the share is no longer kept.
    limiter.keep_for_priority(0, 1);
    assert_eq!(largest_of(200_000), 10_000);
    assert_eq!(statistics.snapshot().exceeds_limit, 1);
}

#[test]
fn no_chunk_is_larger_than_asked() {
    let (limiter, _) = bucket(1_000_000, 100_000);
    let body = |most| ThrottledBody::new(Frames::of(&[50]), limiter.clone()).max_chunk(most);
    assert_eq!(size(assert_ready!(spawn(body(20).frame()).poll())), Some(20));
    assert_eq!(size(assert_ready!(spawn(body(0).frame()).poll())), Some(1));
    assert_eq!(size(assert_ready!(spawn(body(u32::MAX).frame()).poll())), Some(50));
}

#[test]
fn several_limits_are_one_decision() {
    let (user, _) = bucket(100_000, 5000);
    let all = RateLimiter::with_clock(TokenBucket::new(Rate::per_second(62_500), 5000), ManualClock::new());
    let transfers = CountingLimit::new(1000);
    let limits = AllOf::new("user", &user).with("all", &all).with_counting("bytes in flight", &transfers);
    let mut body = ThrottledBody::new(Frames::of(&[5000]), limits);
    // What the slowest limiter grants in 10 ms.
    assert_eq!(size(assert_ready!(spawn(body.frame()).poll())), Some(625));
    assert_eq!((user.status().available, all.status().available), (4375, 4375));
    assert_eq!(transfers.available(), 1000);
}

/// One body arrives in small frames, and the other as a single large frame.
#[tokio::test(start_paused = true)]
async fn bodies_that_share_a_limiter_get_equal_shares() {
    let policy = TokenBucket::new(Rate::per_second(1_000_000), 10_000).start_empty();
    let limiter = RateLimiter::with_clock(policy, TokioClock::new());
    let frames = [vec![10_000; 100], vec![1_000_000]].map(|sizes| Frames::of(&sizes));
    let end = Instant::now() + Duration::from_secs(1);
    let mut tasks = tokio::task::JoinSet::new();
    for frames in frames {
        let mut body = ThrottledBody::new(frames, limiter.clone());
        tasks.spawn(async move {
            let mut bytes = 0;
            while let Ok(frame) = tokio::time::timeout_at(end, body.frame()).await {
                bytes += size(frame).unwrap();
            }
            bytes
        });
    }
    assert_eq!(tasks.join_all().await, [500_000, 500_000]);
}

/// A body with data that is not contiguous.
#[test]
fn data_of_any_kind_is_cut() {
    struct Once(Option<bytes::buf::Chain<Bytes, Bytes>>);
    impl Body for Once {
        type Data = bytes::buf::Chain<Bytes, Bytes>;
        type Error = Infallible;
        fn poll_frame(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Self::Data>, Infallible>>> {
            Poll::Ready(self.0.take().map(|data| Ok(Frame::data(data))))
        }
    }
    let (limiter, _) = bucket(1_000_000, 100_000);
    let data = Bytes::from_static(b"one ").chain(Bytes::from_static(b"and two"));
    let mut body = ThrottledBody::new(Once(Some(data)), limiter).max_chunk(6);
    assert_eq!(body.size_hint().exact(), None);
    let mut next = || assert_ready!(spawn(body.frame()).poll()).unwrap().unwrap().into_data().unwrap();
    assert_eq!((next(), next()), ("one an".into(), "d two".into()));
}

/// The traits that servers and clients require of a body.
#[test]
fn a_body_can_be_sent_and_shared() {
    type Error = Box<dyn std::error::Error + Send + Sync>;
    fn check(_: impl Body<Data = Bytes, Error = Error> + Send + Sync + 'static) {}
    check(ThrottledBody::new(Full::<Bytes>::default(), bucket(1, 1).0));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// All bytes arrive in order, in chunks that are within the limit, and each byte costs one
    /// permit.
    #[test]
    fn bytes_are_neither_lost_nor_free(
        per_second in 1_000_u64..5_000_000,
        burst in 1_u32..100_000,
        sizes in vec(0_usize..100_000, 1..10),
        most in 1_000_u32..200_000,
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build()?;
        runtime.block_on(async {
            let policy = TokenBucket::new(Rate::per_second(per_second), burst);
            let limiter = RateLimiter::with_clock(policy, TokioClock::new());
            let mut left: usize = sizes.iter().sum();
            let frames = Frames(sizes.iter().enumerate().map(|(index, size)| {
                let byte = u8::try_from(index).unwrap_or_default();
                Ok(Frame::data(Bytes::from(vec![byte; *size])))
            }).collect()).and(Ok(Frame::trailers(trailers())));
            let expected: Vec<u8> =
                frames.0.iter().flatten().filter_map(Frame::data_ref).flatten().copied().collect();
            let chunk = (per_second / 100).clamp(512, 65_536).min(burst.into()).min(most.into());
            let (mut got, begin) = (Vec::new(), Instant::now());
            let mut body = ThrottledBody::new(frames, limiter).max_chunk(most);
            while left > 0 {
                prop_assert_eq!(body.size_hint().exact(), Some(left as u64));
                prop_assert!(!body.is_end_stream());
                let data = body.frame().await.unwrap().unwrap().into_data().unwrap();
                prop_assert!(data.len() as u64 <= chunk);
                left -= data.len();
                got.extend(data);
                // The policy's bound, and a tick for each grant that is late by less than 10 ms.
                let span = (begin.elapsed() + Duration::from_millis(10)).as_nanos();
                let came_in = span * u128::from(per_second) / 1_000_000_000 + 1;
                prop_assert!(got.len() as u128 <= u128::from(burst) + came_in);
            }
            prop_assert_eq!(got, expected);
            Ok(())
        })?;
    }
}
