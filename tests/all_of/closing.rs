//! Composites with a member that is closed, or with a counting limit that is lowered below their
//! requests.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Wake, Waker};

use crate::support::{Bucket, bucket, bucket_at, spawn_pending};
use tidegate::{AllOf, AllRefusal, CountingLimit, ManualClock, Rate, Refusal};
use tokio_test::assert_ready_err;

fn refused(refusal: Refusal) -> AllRefusal {
    AllRefusal::from_member("calls", refusal)
}

/// Makes a bucket whose next permit is due in an hour, a limit of two calls at a time, and a
/// composite of both.
fn an_hour_and_two(clock: &ManualClock) -> (Bucket, CountingLimit, AllOf<ManualClock>) {
    let (rate, calls) = (bucket_at(clock, Rate::per_hour(1), 1), CountingLimit::new(2));
    assert!(rate.try_acquire().is_ok());
    let both = AllOf::new("rate", &rate).with_counting("calls", &calls);
    (rate, calls, both)
}

/// A change visits the first 4,096 waiters. Bug: the waiters behind them waited until their rate
/// was due.
#[test]
fn a_limit_that_is_closed_or_lowered_refuses_thousands_of_waiters_at_once() {
    for refusal in [Refusal::Closed, Refusal::ExceedsLimit { requested: 2, limit: 1 }] {
        let clock = ManualClock::new();
        let (_rate, calls, both) = an_hour_and_two(&clock);
        let request = || both.acquire_many([("calls", 2)]);
        let mut waits: Vec<_> = (0..5000).map(|_| spawn_pending(request())).collect();
        match refusal {
            Refusal::Closed => assert!(calls.close()),
            _ => calls.set_limit(1),
        }
        for wait in &mut waits {
            assert!(wait.is_woken());
            assert_eq!(assert_ready_err!(wait.poll()), refused(refusal));
        }
    }
}

/// The composites share the visits of a change. Bug: each composite refused only its first waiters.
#[test]
fn a_closed_limit_refuses_all_waiters_of_many_composites_at_once() {
    let clock = ManualClock::new();
    let (rate, calls, _) = an_hour_and_two(&clock);
    let of_one = || AllOf::new("rate", &rate).with_counting("calls", &calls);
    let composites: Vec<_> = (0..1500).map(|_| of_one()).collect();
    let mut waits: Vec<_> =
        composites.iter().flat_map(|both| (0..4).map(|_| spawn_pending(both.acquire()))).collect();
    assert!(calls.close());
    for wait in &mut waits {
        assert!(wait.is_woken());
        assert_eq!(assert_ready_err!(wait.poll()), refused(Refusal::Closed));
    }
}

/// Bug: closing a rate notified only the first 64 composites. The others waited for their own
/// rates.
#[test]
fn a_closed_rate_refuses_all_composites_that_wait_for_another_limiter() {
    let clock = ManualClock::new();
    let all = bucket(&clock, 10, 10);
    let owns: Vec<_> = (0..200).map(|_| bucket_at(&clock, Rate::per_hour(1), 1)).collect();
    assert!(owns.iter().all(|own| own.try_acquire().is_ok()));
    let of_one = |own| AllOf::new("own", own).with("all", &all);
    let mut waits: Vec<_> = owns.iter().map(|own| spawn_pending(of_one(own).acquire())).collect();
    assert!(all.close());
    for wait in &mut waits {
        assert!(wait.is_woken());
        assert_eq!(assert_ready_err!(wait.poll()), AllRefusal::from_member("all", Refusal::Closed));
    }
}

/// Counts the requests in the queue of a limit at each of its wake-ups.
struct Counter {
    calls: CountingLimit,
    waiters: AtomicUsize,
}

impl Wake for Counter {
    fn wake(self: Arc<Self>) {
        self.waiters.fetch_add(self.calls.status().waiting, Ordering::Relaxed);
    }
}

/// Bug: each composite that left visited all requests that still waited: half a million steps for a
/// thousand composites.
#[test]
fn composites_that_leave_a_closed_limit_visit_no_other_waiters() {
    let clock = ManualClock::new();
    let (rate, calls) = (bucket(&clock, 10_000, 10_000), CountingLimit::new(1));
    let _held = calls.try_acquire().expect("the only one");
    let counter = Arc::new(Counter { calls: calls.clone(), waiters: AtomicUsize::new(0) });
    let waker = Waker::from(counter.clone());
    let mut waits: Vec<_> = (0..1000)
        .map(|_| Box::pin(AllOf::new("rate", &rate).with_counting("calls", &calls).acquire()))
        .collect();
    let context = &mut Context::from_waker(&waker);
    assert!(waits.iter_mut().all(|wait| wait.as_mut().poll(context).is_pending()));
    let mut plain = spawn_pending(calls.acquire());
    assert_eq!(calls.status().waiting, 1001);
    assert!(calls.close());
    assert_eq!(counter.waiters.load(Ordering::Relaxed), 0);
    for wait in &mut waits {
        assert_eq!(assert_ready_err!(wait.as_mut().poll(context)), refused(Refusal::Closed));
    }
    assert_eq!(assert_ready_err!(plain.poll()), Refusal::Closed);
    assert_eq!(calls.status().waiting, 0);
}
