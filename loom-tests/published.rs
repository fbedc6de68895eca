//! Models words that are read as one while they are replaced.

use loom::thread;
use std::sync::Arc;

use super::support::model;
use crate::policy::published::Published;
use crate::policy::{Policy, SmoothBursty};
use crate::rate::Rate;
use crate::sync::{AtomicU64, Ordering};
use crate::time::Nanos;

/// A reader runs against two publications, the second into the slot that the reader may be reading.
#[test]
fn a_reader_sees_one_publication() {
    model(|| {
        let words = Arc::new(Published::new([0, 0]));
        let writer = {
            let words = words.clone();
            thread::spawn(move || {
                words.writer().publish([1, 1]);
                words.writer().publish([2, 2]);
            })
        };
        let [a, b] = words.read(0);
        assert_eq!(a, b);
        writer.join().expect("no panic");
        assert_eq!(words.read(0), [2, 2]);
    });
}

/// The broken twin: a reader that does not check the version again.
#[test]
#[should_panic(expected = "one publication")]
fn broken_a_reader_sees_one_publication() {
    model(|| {
        let version = Arc::new(AtomicU64::new(0));
        let slots =
            Arc::new([[AtomicU64::new(0), AtomicU64::new(0)], [AtomicU64::new(0), AtomicU64::new(0)]]);
        let writer = {
            let (version, slots) = (version.clone(), slots.clone());
            thread::spawn(move || {
                for (next, slot) in [(1, 1), (2, 0)] {
                    slots[slot][0].store(next, Ordering::Release);
                    slots[slot][1].store(next, Ordering::Release);
                    version.store(next, Ordering::Release);
                }
            })
        };
        let slot = &slots[usize::from(version.load(Ordering::Acquire) & 1 == 1)];
        let (a, b) = (slot[0].load(Ordering::Acquire), slot[1].load(Ordering::Acquire));
        assert_eq!(a, b, "one publication");
        writer.join().expect("no panic");
    });
}

/// Two writers publish at once. In the end the words are those of one writer.
#[test]
fn writers_take_turns() {
    model(|| {
        let words = Arc::new(Published::new([0, 0]));
        let other = {
            let words = words.clone();
            thread::spawn(move || words.writer().publish([1, 1]))
        };
        words.writer().publish([2, 2]);
        other.join().expect("no panic");
        let [a, b] = words.read(0);
        assert_eq!(a, b);
    });
}

/// A request takes while the rate changes. Its cost is that of the old rate or of the new one.
#[test]
fn a_take_is_priced_by_one_rate() {
    model(|| {
        let policy = Arc::new(SmoothBursty::new(Rate::per_second(10)).max_burst(std::time::Duration::ZERO));
        let state = Arc::new(policy.start(Nanos::ZERO));
        let taker = {
            let (policy, state) = (policy.clone(), state.clone());
            thread::spawn(move || policy.try_acquire(&state, Nanos::ZERO, 3).is_ok())
        };
        policy.set_rate(&state, Nanos::ZERO, Rate::per_minute(7));
        assert!(taker.join().expect("no panic"));
        let due = policy.ready_at(&state, Nanos::ZERO, 0, 1);
        let (old, new) = (Nanos::new(300_000_000), Nanos::new(25_714_285_715));
        assert!(due == old || due == new, "{due:?}");
        assert_eq!(policy.rate(), Rate::per_minute(7));
    });
}

/// A request takes while the rate changes from zero. The cost at a rate of zero never shuts a
/// limiter that has a rate.
#[test]
fn a_take_while_a_rate_begins_shuts_no_limiter() {
    for n in [1, 3] {
        model(move || {
            let policy = Arc::new(SmoothBursty::new(Rate::ZERO));
            let state = Arc::new(policy.start(Nanos::ZERO));
            let taker = {
                let (policy, state) = (policy.clone(), state.clone());
                thread::spawn(move || policy.try_acquire(&state, Nanos::new(1), n).is_ok())
            };
            policy.set_rate(&state, Nanos::ZERO, Rate::per_second(10));
            taker.join().expect("no panic");
            assert!(policy.ready_at(&state, Nanos::new(1), 0, 1) < Nanos::MAX, "shut for good");
        });
    }
}

/// The broken twin: the cost is read before the change, and whether the rate is zero after it.
#[test]
#[should_panic(expected = "shut for good")]
fn broken_a_take_while_a_rate_begins_shuts_no_limiter() {
    model(|| {
        let price = Arc::new(AtomicU64::new(u64::MAX));
        let writer = {
            let price = price.clone();
            thread::spawn(move || price.store(10, Ordering::Relaxed))
        };
        let cost = price.load(Ordering::Relaxed);
        let is_zero = price.load(Ordering::Relaxed) == u64::MAX;
        assert!(is_zero || cost < u64::MAX, "shut for good");
        writer.join().expect("no panic");
    });
}

/// The broken twin: period and permits in two atomics.
#[test]
#[should_panic(expected = "one rate")]
fn broken_a_take_is_priced_by_one_rate() {
    model(|| {
        let (period, permits) = (Arc::new(AtomicU64::new(1)), Arc::new(AtomicU64::new(10)));
        let writer = {
            let (period, permits) = (period.clone(), permits.clone());
            thread::spawn(move || {
                period.store(60, Ordering::Release);
                permits.store(7, Ordering::Release);
            })
        };
        let rate = (permits.load(Ordering::Acquire), period.load(Ordering::Acquire));
        assert!(rate == (10, 1) || rate == (7, 60), "one rate");
        writer.join().expect("no panic");
    });
}
