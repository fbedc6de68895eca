//! Readers and writers.

use std::io::{self, IoSlice, SeekFrom};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use proptest::collection::vec;
use proptest::prelude::*;
use tidegate::io::{Throttled, chunk_size};
use tidegate::policy::Change;
use tidegate::{
    AllOf, AllRefusal, CountingLimit, ManualClock, Rate, RateLimiter, Refusal, Statistics, TokenBucket,
    TokioClock,
};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncSeekExt, AsyncWrite, AsyncWriteExt};
use tokio::time::Instant;
use tokio_test::task::spawn;
use tokio_test::{assert_pending, assert_ready_err, assert_ready_ok};

type Manual = RateLimiter<TokenBucket, ManualClock>;

fn bucket(per_second: u64, burst: u32) -> (Manual, ManualClock) {
    let clock = ManualClock::new();
    let policy = TokenBucket::new(Rate::per_second(per_second), burst);
    (RateLimiter::with_clock(policy, clock.clone()), clock)
}

fn in_tokio(per_second: u64, burst: u32) -> RateLimiter<TokenBucket, TokioClock> {
    let policy = TokenBucket::new(Rate::per_second(per_second), burst);
    RateLimiter::with_clock(policy, TokioClock::new())
}

fn refusal(error: &io::Error) -> Option<Refusal> {
    error.get_ref()?.downcast_ref::<AllRefusal>()?.refusal()
}

/// Takes at most `most` bytes in a write, and none while it is full.
#[derive(Clone, Default)]
struct Peer {
    taken: Arc<Mutex<Vec<u8>>>,
    most: usize,
    full: Arc<Mutex<bool>>,
}

impl AsyncWrite for Peer {
    fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, buffer: &[u8]) -> Poll<io::Result<usize>> {
        if *self.full.lock().expect("no panic") {
            return Poll::Pending;
        }
        let n = buffer.len().min(self.most);
        self.taken.lock().expect("no panic").extend(&buffer[..n]);
        Poll::Ready(Ok(n))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
        buffers: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let all: Vec<u8> = buffers.iter().flat_map(|buffer| buffer.to_vec()).collect();
        let n = all.len().min(self.most);
        self.taken.lock().expect("no panic").extend(&all[..n]);
        Poll::Ready(Ok(n))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

#[test]
fn what_the_peer_does_not_take_is_given_back() {
    let (limiter, _) = bucket(1000, 1000);
    let peer = Peer { most: 30, ..Peer::default() };
    let mut writer = Throttled::new(peer.clone()).limit_writes(limiter.clone());
    assert_eq!(assert_ready_ok!(spawn(writer.write(&[1; 100])).poll()), 30);
    assert_eq!(limiter.status().available, 970);
    *peer.full.lock().expect("no panic") = true;
    let mut write = spawn(writer.write(&[1; 100]));
    assert_pending!(write.poll());
    assert_eq!(limiter.status().available, 970, "while the peer takes nothing");
    drop(write);
    assert_eq!(limiter.status().waiting, 0);
}

#[test]
fn a_write_waits_for_its_chunk_and_a_dropped_writer_leaves_no_trace() {
    let (limiter, clock) = bucket(1000, 600);
    let peer = Peer { most: usize::MAX, ..Peer::default() };
    let mut writer = Throttled::new(peer.clone()).limit_writes(limiter.clone());
    assert_eq!(assert_ready_ok!(spawn(writer.write(&[1; 10_000])).poll()), 512, "a chunk");
    let mut write = spawn(writer.write(&[2; 10_000]));
    assert_pending!(write.poll());
    clock.advance(Duration::from_millis(424));
    assert!(write.is_woken());
    drop(write);
    // A shorter write takes over the reservation, and the rest of the chunk is given back.
    assert_eq!(assert_ready_ok!(spawn(writer.write(&[3; 12])).poll()), 12);
    assert_eq!(limiter.status().available, 500);
    let mut write = spawn(writer.write(&[4; 10_000]));
    assert_pending!(write.poll());
    drop(write);
    assert_eq!(limiter.status().waiting, 1, "it keeps its position");
    // Neither call waits.
    assert_ready_ok!(spawn(writer.flush()).poll());
    assert_ready_ok!(spawn(writer.shutdown()).poll());
    assert_eq!(limiter.status().waiting, 0);
    assert_eq!(peer.taken.lock().expect("no panic").len(), 524);
}

#[test]
fn slices_are_cut_at_the_chunk() {
    let (limiter, clock) = bucket(1000, 512);
    let peer = Peer { most: usize::MAX, ..Peer::default() };
    let mut writer = Throttled::new(peer.clone()).limit_writes(limiter);
    assert!(writer.is_write_vectored());
    let bytes: Vec<u8> = (0..=255).cycle().take(1300).collect();
    let cut = |from: usize| -> Vec<u8> { bytes[from..].to_vec() };
    let (mut written, mut waited) = (0, 0);
    while written < bytes.len() {
        let rest = cut(written);
        let (first, second) = rest.split_at(rest.len().min(100));
        let slices = [IoSlice::new(first), IoSlice::new(&[]), IoSlice::new(second)];
        let mut write = spawn(writer.write_vectored(&slices));
        match write.poll() {
            Poll::Ready(n) => written += n.expect("granted"),
            Poll::Pending => {
                clock.advance(Duration::from_millis(1));
                waited += 1;
            }
        }
    }
    assert_eq!(*peer.taken.lock().expect("no panic"), bytes);
    assert_eq!(waited, 1300 - 512);
}

#[test]
fn what_was_read_is_paid_before_the_next_read() {
    let (limiter, clock) = bucket(1000, 600);
    let mut reader = Throttled::new(tokio::io::repeat(7).take(1100)).limit_reads(limiter.clone());
    let mut buffer = [0; 4096];
    assert_eq!(assert_ready_ok!(spawn(reader.read(&mut buffer)).poll()), 512);
    assert_eq!(assert_ready_ok!(spawn(reader.read(&mut buffer)).poll()), 512);
    assert_pending!(spawn(reader.read(&mut buffer)).poll());
    clock.advance(Duration::from_millis(424));
    assert_eq!(assert_ready_ok!(spawn(reader.read(&mut buffer)).poll()), 76);
    clock.advance(Duration::from_millis(76));
    // Once the last bytes are paid for, the end of the stream costs nothing.
    assert_eq!(assert_ready_ok!(spawn(reader.read(&mut buffer)).poll()), 0);
    assert_eq!(assert_ready_ok!(spawn(reader.read(&mut buffer)).poll()), 0);
    assert_eq!(limiter.status().available, 0);
}

/// A dropped reader got back the permits of its last chunk, so a server that reads each connection
/// once had no limit.
#[test]
fn what_was_read_is_paid_for_when_the_reader_is_dropped() {
    let (limiter, clock) = bucket(1000, 600);
    let mut buffer = [0; 4096];
    let next_in = |limiter: &Manual| limiter.reserve(1).expect("a burst").due_in();
    let mut reader = Throttled::new(tokio::io::repeat(7)).limit_reads(limiter.clone());
    assert_eq!(assert_ready_ok!(spawn(reader.read(&mut buffer)).poll()), 512);
    drop(reader);
    assert_eq!(limiter.status().available, 88);
    // These bytes are not paid for yet. Their position is given up, and they are charged.
    let mut reader = Throttled::new(tokio::io::repeat(7)).limit_reads(limiter.clone());
    assert_eq!(assert_ready_ok!(spawn(reader.read(&mut buffer)).poll()), 512);
    let _inner = reader.into_inner();
    assert_eq!(limiter.status().waiting, 0);
    assert_eq!(next_in(&limiter), Duration::from_millis(425));
    // A buffer that is consumed in parts, of which only the first one has a position.
    let mut reader = Throttled::new(tokio::io::BufReader::new(&[7; 100][..])).limit_reads(limiter.clone());
    assert_eq!(assert_ready_ok!(spawn(reader.fill_buf()).poll()).len(), 100);
    for bytes in [30, 20, 10] {
        reader.consume(bytes);
    }
    drop(reader);
    assert_eq!(next_in(&limiter), Duration::from_millis(485));
    clock.advance(Duration::from_millis(485));
    assert_eq!((limiter.status().available, limiter.status().waiting), (1, 0));
}

struct Panics;

impl Wake for Panics {
    fn wake(self: Arc<Self>) {
        panic!("a waker");
    }
}

#[test]
fn all_of_what_was_read_is_paid_for_if_the_waker_of_another_task_panics() {
    let (limiter, _) = bucket(1000, 600);
    limiter.try_acquire_many(590).expect("full");
    let mut reader = Throttled::new(tokio::io::BufReader::new(&[7; 100][..])).limit_reads(limiter.clone());
    assert_eq!(assert_ready_ok!(spawn(reader.fill_buf()).poll()).len(), 100);
    for bytes in [30, 20, 10] {
        reader.consume(bytes);
    }
    let mut next = Box::pin(limiter.acquire());
    assert!(next.as_mut().poll(&mut Context::from_waker(&Waker::from(Arc::new(Panics)))).is_pending());
    assert!(catch_unwind(AssertUnwindSafe(|| drop(reader))).is_err());
    drop(next);
    assert_eq!(limiter.reserve(1).expect("a burst").due_in(), Duration::from_millis(51));
}

#[test]
fn a_silent_peer_costs_nothing() {
    let (limiter, _) = bucket(1000, 600);
    let (near, _far) = tokio::io::duplex(64);
    let mut reader = Throttled::new(near).limit_reads(limiter.clone());
    assert_pending!(spawn(reader.read(&mut [0; 64])).poll());
    assert_eq!((limiter.status().available, limiter.status().waiting), (600, 0));
}

#[test]
fn a_refused_read_reads_nothing_for_nothing() {
    let (limiter, _) = bucket(1000, 600);
    let mut reader = Throttled::new(tokio::io::repeat(7)).limit_reads(limiter.clone());
    let mut buffer = [0; 64];
    assert_eq!(assert_ready_ok!(spawn(reader.read(&mut buffer)).poll()), 64);
    limiter.close();
    // The bytes of the first read are paid for already.
    assert_eq!(assert_ready_ok!(spawn(reader.read(&mut buffer)).poll()), 64);
    for _ in 0..3 {
        let error = assert_ready_err!(spawn(reader.read(&mut buffer)).poll());
        assert_eq!(refusal(&error), Some(Refusal::Closed));
    }
}

#[test]
fn a_refusal_of_bytes_that_wait_to_be_paid_lets_no_more_be_read() {
    let (limiter, _) = bucket(1000, 64);
    let mut reader = Throttled::new(tokio::io::repeat(7)).limit_reads(limiter.clone());
    let mut buffer = [0; 64];
    for _ in 0..2 {
        assert_eq!(assert_ready_ok!(spawn(reader.read(&mut buffer)).poll()), 64);
    }
    assert_pending!(spawn(reader.read(&mut buffer)).poll());
    limiter.close();
    for _ in 0..4 {
        let error = assert_ready_err!(spawn(reader.read(&mut buffer)).poll());
        assert_eq!(refusal(&error), Some(Refusal::Closed));
    }
}

#[test]
fn lines_are_charged_as_they_are_consumed() {
    let (limiter, _) = bucket(1000, 1000);
    let text: &[u8] = b"one\nthree\n";
    let mut reader = Throttled::new(text).limit_reads(limiter.clone());
    let mut line = String::new();
    assert_eq!(assert_ready_ok!(spawn(reader.read_line(&mut line)).poll()), 4);
    assert_eq!(limiter.status().available, 996);
    assert_eq!(assert_ready_ok!(spawn(reader.read_line(&mut line)).poll()), 6);
    assert_eq!((line.as_str(), limiter.status().available), ("one\nthree\n", 990));
    // In two parts, without checking the buffer in between.
    let mut reader = Throttled::new(text).limit_reads(limiter.clone());
    assert_eq!(assert_ready_ok!(spawn(reader.fill_buf()).poll()), text);
    reader.consume(3);
    reader.consume(2);
    assert_eq!(assert_ready_ok!(spawn(reader.fill_buf()).poll()), &text[5..]);
    assert_eq!(limiter.status().available, 985);
}

#[test]
fn a_buffer_that_is_consumed_in_parts_waits_as_one_that_is_consumed_at_once() {
    // Bug: the second part gave up the reservation of the first one and charged both. So the next
    // check of the buffer did not wait, and the debt grew without bound.
    for parts in [[100, 0], [1, 99], [0, 100]] {
        let (limiter, clock) = bucket(1000, 100);
        let text = vec![1; 1000];
        let mut reader = Throttled::new(&text[..]).limit_reads(limiter.clone());
        limiter.drain();
        for _ in 0..3 {
            assert_eq!(assert_ready_ok!(spawn(reader.fill_buf()).poll()).len(), 100);
            parts.into_iter().for_each(|part| reader.consume(part));
            assert_pending!(spawn(reader.fill_buf()).poll(), "{parts:?}");
            clock.advance(Duration::from_millis(99));
            assert_pending!(spawn(reader.fill_buf()).poll(), "{parts:?}");
            clock.advance(Duration::from_millis(1));
        }
    }
}

#[test]
fn no_more_of_a_buffer_is_shown_than_a_chunk() {
    let (limiter, clock) = bucket(1000, 100);
    let text = vec![1; 300];
    let mut reader = Throttled::new(&text[..]).limit_reads(limiter);
    assert_eq!(assert_ready_ok!(spawn(reader.fill_buf()).poll()).len(), 100);
    reader.consume(100);
    assert_eq!(assert_ready_ok!(spawn(reader.fill_buf()).poll()).len(), 100);
    reader.consume(100);
    assert_pending!(spawn(reader.fill_buf()).poll());
    clock.advance(Duration::from_millis(100));
    assert_eq!(assert_ready_ok!(spawn(reader.fill_buf()).poll()).len(), 100);
}

#[test]
fn a_seek_does_not_wait() {
    let (limiter, _) = bucket(1000, 2);
    let mut reader = Throttled::new(io::Cursor::new(vec![1; 300])).limit_reads(limiter);
    assert_eq!(assert_ready_ok!(spawn(reader.read(&mut [0; 64])).poll()), 2);
    assert_eq!(assert_ready_ok!(spawn(reader.seek(SeekFrom::Start(9))).poll()), 9);
}

#[test]
fn the_chunk_follows_the_rate_and_the_burst() -> Result<(), Box<dyn std::error::Error>> {
    let (limiter, clock) = bucket(1_000_000, 100_000);
    let mut reader = Throttled::new(tokio::io::repeat(7)).limit_reads(limiter.clone());
    let mut buffer = vec![0; 1 << 20];
    let mut sizes = Vec::new();
    let mut read = |sizes: &mut Vec<usize>| -> io::Result<()> {
        loop {
            match spawn(reader.read(&mut buffer)).poll() {
                Poll::Ready(read) => {
                    sizes.push(read?);
                    return Ok(());
                }
                Poll::Pending => clock.advance(Duration::from_millis(1)),
            }
        }
    };
    for _ in 0..12 {
        read(&mut sizes)?;
    }
    assert_eq!(sizes, [10_000; 12]);
    limiter.change(Change::rate(Rate::per_second(100_000)).burst(700))?;
    sizes.clear();
    // The unpaid chunk no longer fits, and is paid for in smaller chunks.
    for _ in 0..3 {
        read(&mut sizes)?;
    }
    assert_eq!(sizes, [700; 3]);
    Ok(())
}

#[test]
fn a_chunk_is_no_larger_than_it_may_be() {
    let (limiter, _) = bucket(1_000_000, 100_000);
    let mut buffer = [0; 50_000];
    for (most, chunk) in [(0, 1), (300, 300), (u32::MAX, 10_000)] {
        let reader = Throttled::new(tokio::io::repeat(7)).max_chunk(most).limit_reads(limiter.clone());
        let later = Throttled::new(tokio::io::repeat(7)).limit_reads(limiter.clone()).max_chunk(most);
        for mut reader in [reader, later] {
            assert_eq!(assert_ready_ok!(spawn(reader.read(&mut buffer)).poll()), chunk);
        }
    }
    // A hundredth of a second is 100,000 bytes. A chunk has 65,536 of them unless it may be larger.
    let (limiter, _) = bucket(10_000_000, 1_000_000);
    let mut buffer = vec![0; 200_000];
    for (most, chunk) in [(None, 65_536), (Some(80_000), 80_000), (Some(u32::MAX), 100_000)] {
        let reader = Throttled::new(tokio::io::repeat(7)).limit_reads(limiter.clone());
        let mut reader = if let Some(most) = most { reader.max_chunk(most) } else { reader };
        assert_eq!(assert_ready_ok!(spawn(reader.read(&mut buffer)).poll()), chunk);
    }
}

#[test]
fn each_of_several_limits_is_charged() {
    let (connection, clock) = bucket(1000, 600);
    let all = RateLimiter::with_clock(TokenBucket::new(Rate::per_second(100), 550), clock.clone());
    let both = AllOf::new("connection", &connection).with("all", &all);
    let peer = Peer { most: usize::MAX, ..Peer::default() };
    let mut writer = Throttled::new(peer).limit_writes(both);
    assert_eq!(assert_ready_ok!(spawn(writer.write(&[1; 1000])).poll()), 512);
    assert_eq!((connection.status().available, all.status().available), (88, 38));
    let mut write = spawn(writer.write(&[1; 138]));
    assert_pending!(write.poll());
    clock.advance(Duration::from_secs(1));
    assert_eq!(assert_ready_ok!(write.poll()), 138);
}

/// Reads with a buffer of this size for this long, and returns how many bytes were read.
async fn greedy(limiter: RateLimiter<TokenBucket, TokioClock>, size: usize, span: Duration) -> u64 {
    let mut reader = Throttled::new(tokio::io::repeat(7)).limit_reads(limiter);
    let (mut buffer, mut bytes) = (vec![0; size], 0);
    let end = Instant::now() + span;
    while let Ok(read) = tokio::time::timeout_at(end, reader.read(&mut buffer)).await {
        bytes += read.expect("granted") as u64;
    }
    bytes
}

#[tokio::test(start_paused = true)]
async fn large_buffers_get_no_larger_share() {
    let limiter = in_tokio(1_000_000, 20_000);
    let span = Duration::from_secs(10);
    let sizes = [10_000, 64 << 10, 8 << 20];
    let reads = sizes.map(|size| tokio::spawn(greedy(limiter.clone(), size, span)));
    let mut shares = Vec::new();
    for read in reads {
        shares.push(read.await.expect("no panic"));
    }
    let all: u64 = shares.iter().sum();
    // The burst, and a chunk for each reader.
    assert!((10_000_000..=10_050_000).contains(&all), "{all}");
    let (least, most) = (shares.iter().min(), shares.iter().max());
    // The first reader has the burst, and then they take turns.
    assert!(most.zip(least).is_some_and(|(most, least)| most - least <= 30_000), "{shares:?}");
}

/// Bug: the limiter refuses a chunk that is larger than the new burst, and that ended the transfer.
#[test]
fn a_smaller_burst_makes_the_chunk_smaller_that_waits() {
    let (limiter, clock) = bucket(1000, 512);
    limiter.drain();
    let peer = Peer { most: usize::MAX, ..Peer::default() };
    let mut writer = Throttled::new(peer).limit_writes(limiter.clone());
    let mut write = spawn(writer.write(&[1; 1000]));
    assert_pending!(write.poll());
    limiter.change(Change::only_burst(100)).expect("a bucket");
    assert!(write.is_woken());
    assert_pending!(write.poll());
    clock.advance(Duration::from_millis(100));
    assert_eq!(assert_ready_ok!(write.poll()), 100);

    let mut reader = Throttled::new(tokio::io::repeat(7)).limit_reads(limiter.clone());
    let mut buffer = [0; 1000];
    assert_eq!(assert_ready_ok!(spawn(reader.read(&mut buffer)).poll()), 100);
    let mut read = spawn(reader.read(&mut buffer));
    assert_pending!(read.poll());
    limiter.change(Change::only_burst(10)).expect("a bucket");
    assert!(read.is_woken());
    // Everything that was read is paid for, in smaller chunks.
    assert_pending!(read.poll());
    for _ in 0..9 {
        clock.advance(Duration::from_millis(10));
        assert_pending!(read.poll());
    }
    clock.advance(Duration::from_millis(10));
    assert_eq!(assert_ready_ok!(read.poll()), 10);
}

/// Bug: the transfer ended with the refusal of the waiting chunk, although the burst was as large
/// as before when the task ran.
#[test]
fn a_burst_that_was_small_for_a_moment_ends_no_transfer() {
    let (limiter, clock) = bucket(1000, 512);
    let small_for_a_moment = || {
        limiter.change(Change::only_burst(10)).expect("a bucket");
        limiter.change(Change::only_burst(512)).expect("a bucket");
    };
    limiter.drain();
    let mut writer =
        Throttled::new(Peer { most: usize::MAX, ..Peer::default() }).limit_writes(limiter.clone());
    let mut write = spawn(writer.write(&[1; 1000]));
    assert_pending!(write.poll());
    small_for_a_moment();
    assert_pending!(write.poll());
    clock.advance(Duration::from_millis(512));
    assert_eq!(assert_ready_ok!(write.poll()), 512);

    let mut reader = Throttled::new(tokio::io::repeat(7)).limit_reads(limiter.clone());
    let mut buffer = [0; 1000];
    assert_eq!(assert_ready_ok!(spawn(reader.read(&mut buffer)).poll()), 512);
    let mut read = spawn(reader.read(&mut buffer));
    assert_pending!(read.poll());
    small_for_a_moment();
    assert_pending!(read.poll());
    clock.advance(Duration::from_millis(512));
    assert_eq!(assert_ready_ok!(read.poll()), 512);
}

/// Bug: a chunk may be larger than what the limiter can grant while it keeps permits for other
/// priorities, and the transfer ended with the refusal.
#[test]
fn a_share_that_is_kept_ends_no_transfer() {
    let (limiter, clock) = bucket(1_000_000, 10_000);
    limiter.keep_for_priority(6_000, 1);
    let peer = Peer { most: usize::MAX, ..Peer::default() };
    let mut writer = Throttled::new(peer).limit_writes(limiter.clone());
    let mut reader = Throttled::new(tokio::io::repeat(7)).limit_reads(limiter);
    for _ in 0..2 {
        assert_eq!(assert_ready_ok!(spawn(writer.write(&[1; 20_000])).poll()), 4_000);
        clock.advance(Duration::from_millis(10));
    }
    let mut buffer = [0; 20_000];
    assert_eq!(assert_ready_ok!(spawn(reader.read(&mut buffer)).poll()), 10_000);
    // All of it is paid for before the next read.
    let mut read = spawn(reader.read(&mut buffer));
    assert_pending!(read.poll());
    clock.advance(Duration::from_millis(6));
    assert!(assert_ready_ok!(read.poll()) > 0);
}

/// Bug: after each wait the transfer asked again for a chunk that no share of the burst allows, and
/// each time the observer was told of a refusal.
#[test]
fn a_chunk_beside_a_share_that_is_kept_is_not_refused_again_and_again() {
    let (limiter, clock) = bucket(1_000_000, 10_000);
    limiter.keep_for_priority(6_000, 1);
    let statistics = Arc::new(Statistics::new());
    limiter.observe(statistics.clone());
    let mut writer =
        Throttled::new(Peer { most: usize::MAX, ..Peer::default() }).limit_writes(limiter.clone());
    let mut write = |bytes: usize| {
        let (mut written, mut largest) = (0, 0);
        while written < bytes {
            match spawn(writer.write(&[1; 20_000])).poll() {
                Poll::Ready(n) => {
                    let n = n.expect("no error");
                    (written, largest) = (written + n, largest.max(n));
                }
                Poll::Pending => clock.advance(Duration::from_millis(1)),
            }
        }
        largest
    };
    assert_eq!(write(200_000), 4_000);
    assert_eq!(statistics.snapshot().exceeds_limit, 1);
    // In the end it asks again, in case the share is no longer kept.
    limiter.keep_for_priority(0, 1);
    assert_eq!(write(200_000), 10_000);
    assert_eq!(statistics.snapshot().exceeds_limit, 1);
}

/// Bug: the default cost of a member was charged at each poll of a writer whose peer took nothing.
#[test]
fn a_write_that_the_peer_does_not_take_costs_no_default_cost() {
    let (bytes, clock) = bucket(1000, 1000);
    let writes = RateLimiter::with_clock(TokenBucket::new(Rate::per_second(1), 1000), clock);
    let both = AllOf::new("bytes", &bytes).with("writes", &writes).default_cost("writes", 1);
    let peer = Peer { most: usize::MAX, ..Peer::default() };
    let mut writer = Throttled::new(peer.clone()).limit_writes(both);
    *peer.full.lock().expect("no panic") = true;
    for _ in 0..3 {
        assert_pending!(spawn(writer.write(&[1; 100])).poll());
    }
    assert_eq!((bytes.status().available, writes.status().available), (1000, 1000));
    *peer.full.lock().expect("no panic") = false;
    assert_eq!(assert_ready_ok!(spawn(writer.write(&[1; 100])).poll()), 100);
    assert_eq!((bytes.status().available, writes.status().available), (900, 999));
}

/// Bug: a counting limit of 4 cut the chunks to 4 bytes.
#[test]
fn a_limit_of_permits_in_use_cuts_no_chunk() {
    let (limiter, _) = bucket(1_000_000, 100_000);
    let limits = AllOf::new("bytes", &limiter).with_counting("transfers", &CountingLimit::new(4));
    assert_eq!(chunk_size(&limits.clone().into()), 10_000);
    let mut reader = Throttled::new(tokio::io::repeat(7)).limit_reads(limits);
    assert_eq!(assert_ready_ok!(spawn(reader.read(&mut [0; 50_000])).poll()), 10_000);
    // Without a rate, its permits are the only limit.
    assert_eq!(chunk_size(&CountingLimit::new(4).into()), 4);
}

/// Bug: a reader kept its permit of a counting limit until its next read, and a write that needed
/// the permit waited for ever.
#[test]
fn a_transfer_takes_no_permits_in_use() {
    let (bytes, clock) = bucket(100_000, 512);
    let transfers = CountingLimit::new(1);
    let limits = AllOf::new("bytes", &bytes).with_counting("transfers", &transfers);
    let peer = Peer { most: usize::MAX, ..Peer::default() };
    let mut writer = Throttled::new(peer).limit_writes(limits.clone());
    let mut reader = Throttled::new(tokio::io::repeat(7)).limit_reads(limits);
    for _ in 0..3 {
        let mut buffer = [0; 512];
        let mut read = spawn(reader.read(&mut buffer));
        if read.poll().is_pending() {
            clock.advance(Duration::from_millis(10));
            assert_eq!(assert_ready_ok!(read.poll()), 512);
        }
        drop(read);
        assert_eq!(transfers.available(), 1);
        let mut write = spawn(writer.write(&[1; 512]));
        assert_pending!(write.poll());
        clock.advance(Duration::from_millis(10));
        assert_eq!(assert_ready_ok!(write.poll()), 512);
    }
}

#[tokio::test(start_paused = true)]
async fn both_ways_share_a_limit_and_the_bytes_arrive() -> io::Result<()> {
    let limiter = in_tokio(1_000_000, 10_000);
    let (near, far) = tokio::io::duplex(100_000);
    let (near, far) = (
        Throttled::new(near).limit_reads(limiter.clone()).limit_writes(limiter.clone()),
        Throttled::new(far),
    );
    let (mut from_near, mut to_near) = tokio::io::split(near);
    let (mut from_far, mut to_far) = tokio::io::split(far);
    let bytes: Vec<u8> = (0..=255).cycle().take(500_000).collect();
    let begin = Instant::now();
    let (mut up, mut down) = (Vec::new(), Vec::new());
    tokio::try_join!(
        async {
            to_near.write_all(&bytes).await?;
            to_near.shutdown().await
        },
        async {
            to_far.write_all(&bytes).await?;
            to_far.shutdown().await
        },
        from_near.read_to_end(&mut down),
        from_far.read_to_end(&mut up),
    )?;
    assert!(up == bytes && down == bytes);
    assert!(begin.elapsed() >= Duration::from_millis(980) && begin.elapsed() <= Duration::from_millis(1000));
    Ok(())
}

/// Reads at arbitrary times. Returns the number of bytes read by each time.
async fn read_all(
    limiter: RateLimiter<TokenBucket, TokioClock>,
    sizes: &[usize],
    pauses: &[u64],
) -> Vec<(Duration, u64)> {
    let mut reader = Throttled::new(tokio::io::repeat(7)).limit_reads(limiter);
    let begin = Instant::now();
    let mut came = Vec::new();
    for (size, pause) in sizes.iter().zip(pauses) {
        tokio::time::sleep(Duration::from_micros(*pause)).await;
        let mut buffer = vec![0; *size];
        let read = reader.read(&mut buffer).await.expect("granted");
        came.push((begin.elapsed(), read as u64));
    }
    came
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// In any stretch of time no more is read than the burst, the permits accrued meanwhile, and
    /// one chunk.
    #[test]
    fn reads_are_bounded_in_any_span(
        per_second in 1_000u64..5_000_000,
        burst in 1u32..100_000,
        sizes in vec(1usize..200_000, 1..60),
        pauses in vec(0u64..100_000, 60),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build()?;
        let came = runtime.block_on(async {
            read_all(in_tokio(per_second, burst), &sizes, &pauses).await
        });
        let chunk = (per_second / 100).clamp(512, 65_536).min(burst.into());
        for (index, (begin, _)) in came.iter().enumerate() {
            let mut bytes = 0;
            for (end, read) in &came[index..] {
                prop_assert!(*read <= chunk);
                bytes += read;
                // A late grant is charged as of its due time.
                let span = (*end - *begin + Duration::from_millis(10)).as_nanos();
                let came_in = span * u128::from(per_second) / 1_000_000_000 + 1;
                prop_assert!(u128::from(bytes) <= u128::from(burst) + came_in + u128::from(chunk));
            }
        }
    }
}
