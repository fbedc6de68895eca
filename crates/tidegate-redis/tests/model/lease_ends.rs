//! Leases that end while a booking is in flight, over a model of a server on paused time: no permit
//! is lost or duplicated.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tidegate::{AnyLimiter, Pause};
use tidegate_redis::simulation::{Model, Network, run};
use tidegate_redis::{Store, StoreLimiter};

use crate::MS;

/// Limits that are never full again within a test, so that each permit counts.
const LINES: [&str; 3] = [
    "fixed_window 1000000/h at_wall_clock 0s",
    "sliding_window 1000000/h cells 60",
    "token_bucket 1000/s burst 1000000 start_with 0",
];

/// At each of these times, in milliseconds, each limit has a booking in flight.
const EARLY: Range<u32> = 156..176;

/// At these times the bucket is in full use: bookings lie ahead.
const LATE: Range<u32> = 306..326;

/// The event that ends the leases of a limiter.
#[derive(Clone, Copy, Debug, PartialEq)]
enum End {
    Pause,
    Resume,
    Close,
    Drop,
    Reset,
    Keep,
}

/// The permits of a limiter after its leases ended.
struct Course {
    /// The difference between the permits of a limit without requests and those of this limit.
    gone: u64,
    /// The number of granted permits; if the end was a reset, since the end.
    granted: u64,
    /// Whether a booking was in flight when the leases ended.
    was_late: bool,
}

/// Ends the leases of a limiter in full use after `millis` milliseconds. Returns how the permits of
/// its limit then differ from those of another limit with the same terms and without requests.
fn course(line: &'static str, end: End, millis: u32) -> Course {
    run(async move {
        // A round trip takes 20 ms.
        let model = Model::new(1, Network { service: Duration::ZERO, ..Network::steady(10 * MS) });
        let store = model.open(Store::builder("redis://model").timeout(500 * MS)).unwrap();
        let limit = |tag| store.limiter(tag).limit("calls", line);
        let (limiter, plain) = (limit("used").leased().build().unwrap(), limit("used").build().unwrap());
        let reference = limit("reference").build().unwrap();
        let both = |change: fn(&AnyLimiter), limiter: &StoreLimiter| {
            change(&AnyLimiter::from(limiter.clone()).non_blocking());
            change(&AnyLimiter::from(reference.clone()).non_blocking());
        };
        plain.status().await.unwrap();
        // Both buckets begin at the same time.
        both(|limiter| limiter.debit(1).unwrap(), &plain);
        let granted = Arc::new(AtomicU64::new(0));
        let tasks: Vec<_> = (0..20)
            .map(|_| {
                let (limiter, granted) = (AnyLimiter::from(limiter.clone()), granted.clone());
                tokio::spawn(async move {
                    while let Ok(permits) = limiter.acquire().await {
                        granted.fetch_add(permits.permits().into(), Ordering::Relaxed);
                        tokio::time::sleep(5 * MS).await;
                    }
                })
            })
            .collect();
        tokio::time::sleep(MS * millis).await;
        let taken = store.lease_counts().taken;
        let stop = || tasks.iter().for_each(tokio::task::JoinHandle::abort);
        match end {
            End::Pause => {
                both(|limiter| limiter.pause(Pause::lasting(50 * MS).keep_permits()).unwrap(), &limiter)
            }
            End::Resume => both(|limiter| _ = limiter.resume(), &limiter),
            End::Close => _ = AnyLimiter::from(limiter.clone()).close(),
            End::Drop => stop(),
            End::Reset => {
                let another_process = async {
                    // After the reset, and before a booking in flight could come back.
                    tokio::time::sleep(MS).await;
                    both(|limiter| limiter.debit(100).unwrap(), &plain);
                };
                granted.store(0, Ordering::Relaxed);
                let (used, unused, ()) = tokio::join!(limiter.reset(), reference.reset(), another_process);
                used.and(unused).unwrap();
            }
            End::Keep => {
                stop();
                granted.store(0, Ordering::Relaxed);
                both(|limiter| _ = limiter.keep_at_most("calls", 0).unwrap(), &limiter);
            }
        }
        drop(limiter);
        tokio::time::sleep(100 * MS).await;
        let was_late = store.lease_counts().taken > taken;
        stop();
        // All leases have ended.
        tokio::time::sleep(12_000 * MS).await;
        assert_eq!(store.lease_counts().outstanding(), 0);
        let (used, unused) = tokio::join!(plain.status(), reference.status());
        let [used, unused] = [used, unused].map(|status| status.unwrap().members[0].1.available);
        Course { gone: unused - used, granted: granted.load(Ordering::Relaxed), was_late }
    })
}

#[test]
fn a_booking_that_comes_after_the_end_of_its_lease_goes_back_once() {
    for line in LINES {
        for end in [End::Pause, End::Resume, End::Close, End::Drop] {
            for millis in EARLY.chain(LATE).step_by(3) {
                let Course { gone, granted, was_late } = course(line, end, millis);
                assert_eq!(gone, granted, "{line}, {end:?} after {millis} ms");
                assert!(was_late || LATE.contains(&millis), "{line}, {end:?} after {millis} ms");
            }
        }
    }
}

/// Otherwise the limit would have more permits than a new one.
#[test]
fn a_booking_that_comes_after_a_reset_is_forgotten() {
    for line in &LINES[..2] {
        for millis in EARLY.step_by(3) {
            let Course { gone, granted, .. } = course(line, End::Reset, millis);
            assert_eq!(gone, granted, "{line}, after {millis} ms");
        }
    }
}

#[test]
fn a_limit_that_keeps_nothing_gets_no_booking_back() {
    for line in &LINES[..2] {
        for millis in EARLY.step_by(3) {
            let Course { gone, .. } = course(line, End::Keep, millis);
            assert_eq!(gone, 0, "{line}, after {millis} ms");
        }
    }
}

#[test]
fn a_closed_limiter_books_no_more() {
    for millis in (EARLY.end..EARLY.end + 20).step_by(3) {
        // No booking is in flight.
        assert!(!course(LINES[0], End::Close, millis).was_late, "after {millis} ms");
    }
}

/// Each call lost the lease, also if it left more permits than there may be, as one for each
/// response of a server with a large remaining quota does: a bucket was used to 15 %.
#[test]
fn keeping_more_permits_than_there_may_be_loses_no_lease() {
    for (line, most) in [("token_bucket 1000/s burst 200", 1_000_000), ("fixed_window 1000/s", 2_000)] {
        run(async move {
            let model = Model::new(1, Network { service: Duration::ZERO, ..Network::steady(MS) });
            let store = model.open(Store::builder("redis://model").timeout(500 * MS)).unwrap();
            let limiter = store.limiter("kept").limit("calls", line).leased().build().unwrap();
            let limiter = AnyLimiter::from(limiter).non_blocking();
            let granted = Arc::new(AtomicU64::new(0));
            let calls: Vec<_> = (0..50)
                .map(|_| {
                    let (limiter, granted) = (limiter.clone(), granted.clone());
                    tokio::spawn(async move {
                        while limiter.acquire().await.is_ok() {
                            granted.fetch_add(1, Ordering::Relaxed);
                            tokio::time::sleep(20 * MS).await;
                            limiter.keep_at_most("calls", most).unwrap();
                        }
                    })
                })
                .collect();
            tokio::time::sleep(10_000 * MS).await;
            let granted = granted.load(Ordering::Relaxed);
            assert!(granted >= 9_800, "{line}: {granted} in 10 s");
            assert_eq!(store.lease_counts().lost, 0, "{line}");
            limiter.keep_at_most("calls", 0).unwrap();
            assert!(store.lease_counts().lost > 0, "{line}");
            calls.iter().for_each(tokio::task::JoinHandle::abort);
        });
    }
}

/// Bug: permits of a lease that a request put back after a pause, a reset or `keep_at_most` had
/// ended the lease were granted again, even in the pause.
#[test]
fn a_permit_that_is_put_back_after_the_end_of_its_lease_goes_back_to_the_store() {
    for line in LINES {
        run(async move {
            let model = Model::new(1, Network { service: Duration::ZERO, ..Network::steady(10 * MS) });
            let store = model.open(Store::builder("redis://model").timeout(500 * MS)).unwrap();
            let limiter = store.limiter("all").limit("calls", line).leased().build().unwrap();
            let of_lease = AnyLimiter::from(limiter.clone());
            let load: Vec<_> = (0..20)
                .map(|_| {
                    let limiter = of_lease.clone();
                    tokio::spawn(async move {
                        while limiter.acquire().await.is_ok() {
                            tokio::time::sleep(5 * MS).await;
                        }
                    })
                })
                .collect();
            tokio::time::sleep(400 * MS).await;
            // A lease grants this request, whose task does not run.
            let mut context = std::task::Context::from_waker(std::task::Waker::noop());
            let wait = loop {
                let mut wait = Box::pin(of_lease.acquire_many(3));
                if wait.as_mut().poll(&mut context).is_pending() {
                    break wait;
                }
            };
            tokio::time::sleep(200 * MS).await;
            load.iter().for_each(tokio::task::JoinHandle::abort);
            limiter.pause_for(Duration::from_secs(60)).await.unwrap();
            let before = store.lease_counts().returned;
            drop(wait);
            let refusal = of_lease.acquire_now(1).await.map(drop).unwrap_err();
            assert!(
                matches!(refusal.refusal(), Some(tidegate::Refusal::Paused { .. })),
                "{line}: {refusal:?}"
            );
            store.flush().await.unwrap();
            let counts = store.lease_counts();
            assert_eq!((counts.returned - before, counts.outstanding()), (3, 0), "{line}");
        });
    }
}
