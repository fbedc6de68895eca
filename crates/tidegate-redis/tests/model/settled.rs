//! Reservations that are settled for less than they reserved, while other requests wait: the
//! permits that come back serve these requests, as in one process.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tidegate::{AllOf, AnyLimiter, AnyPolicy, RateLimiter, Request};
use tidegate_redis::simulation::{Model, Network, run};
use tidegate_redis::{LimiterConfig, Store};
use tokio::time::{Instant, sleep};

use crate::{MS, SECOND, on_model};

const RESERVED: u32 = 100;
const USED: u32 = 30;

/// The times of the grants by the server's clock in microseconds.
type Grants = Arc<Mutex<Vec<i64>>>;

async fn reserve_and_settle(limiter: &AnyLimiter, hold: Duration) {
    let mut reservation = limiter.non_blocking().reserve(RESERVED).unwrap();
    (&mut reservation).await.unwrap();
    sleep(hold).await;
    reservation.settle(USED).unwrap();
}

/// The permits that are used per second by tasks that reserve for 0.2 s and settle, again and
/// again.
async fn used_per_second(limiters: &[AnyLimiter]) -> f64 {
    let used = Arc::new(AtomicU64::new(0));
    for task in 0..20 {
        let (limiter, used) = (limiters[task % limiters.len()].clone(), used.clone());
        tokio::spawn(async move {
            loop {
                reserve_and_settle(&limiter, 200 * MS).await;
                used.fetch_add(USED.into(), Ordering::Relaxed);
            }
        });
    }
    sleep(20 * SECOND).await;
    used.load(Ordering::Relaxed) as f64 / 20.0
}

/// The duration of a queue of tasks that reserve and settle once.
async fn time_of_a_queue(limiters: &[AnyLimiter]) -> Duration {
    let began = Instant::now();
    let tasks: Vec<_> = (0..200)
        .map(|task| {
            let limiter = limiters[task % limiters.len()].clone();
            tokio::spawn(async move { reserve_and_settle(&limiter, 20 * MS).await })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    began.elapsed()
}

fn here(policy: &str) -> [AnyLimiter; 1] {
    [policy.parse::<LimiterConfig>().unwrap().build().unwrap()]
}

fn there(policy: &str, processes: usize, grants: &Grants) -> (Model, Vec<AnyLimiter>) {
    let model = Model::new(1, Network::steady(MS));
    let open = |_| {
        let store = model.open(Store::builder("redis://model")).unwrap();
        let grants = grants.clone();
        store.log_grants(move |_, due, _| grants.lock().unwrap().push(due));
        store.limiter("all").limit("calls", policy).build().unwrap().into()
    };
    let limiters = (0..processes).map(open).collect();
    (model, limiters)
}

#[test]
fn tasks_that_use_less_than_they_reserve_use_the_limit() {
    // The share of what one process uses. A bucket takes a refund back as far as the burst leaves
    // room next to the bookings ahead; one process has none ahead.
    for (policy, part) in [
        ("token_bucket 1000/s burst 100", 0.99),
        ("token_bucket 1000/s burst 500", 0.8),
        ("token_bucket 1000/s burst 1000", 0.97),
        ("token_bucket 500/500ms burst 500 interval_refill", 0.97),
        ("token_bucket 500/500ms burst 1000 interval_refill", 0.97),
        ("smooth_bursty 1000/s max_burst 1s", 0.97),
        ("fixed_window 1000/s", 0.97),
        ("sliding_estimate 1000/s", 0.8),
    ] {
        let alone = run(async { used_per_second(&here(policy)).await });
        for processes in [1, 4] {
            let used = run(async {
                let (_model, limiters) = there(policy, processes, &Grants::default());
                used_per_second(&limiters).await
            });
            assert!(used >= part * alone, "{policy}: {used} of {alone}");
        }
    }
}

#[test]
fn requests_that_wait_move_up_to_what_others_did_not_use() {
    for (policy, burst, times) in [
        ("token_bucket 1000/s burst 500", 500, 1.05),
        ("token_bucket 1000/s burst 1000", 1000, 1.05),
        ("smooth_bursty 1000/s max_burst 1s", 1000 + RESERVED, 1.05),
        ("fixed_window 1000/s", 2000, 1.01),
        ("sliding_window 1000/s cells 10", 2000, 1.2),
        ("sliding_estimate 1000/s", 2000, 1.2),
    ] {
        let alone = run(async { time_of_a_queue(&here(policy)).await });
        for processes in [1, 4] {
            let grants = Grants::default();
            let took = run(async {
                let (_model, limiters) = there(policy, processes, &grants);
                time_of_a_queue(&limiters).await
            });
            // Of several processes, the last one does not learn what came back to the others.
            if processes == 1 {
                assert!(took <= alone.mul_f64(times), "{policy}: {took:?}, alone {alone:?}");
            }
            // The used permits stay within the bound, from each grant on.
            let mut grants = std::mem::take(&mut *grants.lock().unwrap());
            grants.sort_unstable();
            for (i, first) in grants.iter().enumerate() {
                for (k, last) in grants[i..].iter().enumerate() {
                    let used = i64::from(USED) * i64::try_from(k + 1).unwrap();
                    let most = i64::from(burst) + (last - first) / 1000;
                    assert!(used <= most, "{policy}: {used} permits in {} us", last - first);
                }
            }
        }
    }
}

/// The calls of a gateway in a time: each reserves one call and 800 tokens, and uses 200.
async fn calls_of_a_gateway(limiter: AnyLimiter) -> u64 {
    let calls = Arc::new(AtomicU64::new(0));
    for _ in 0..20 {
        let (limiter, calls) = (limiter.clone(), calls.clone());
        tokio::spawn(async move {
            loop {
                let mut reservation = limiter.non_blocking().reserve([("tokens", 800)]).unwrap();
                (&mut reservation).await.unwrap();
                calls.fetch_add(1, Ordering::Relaxed);
                sleep(50 * MS).await;
                reservation.settle([("tokens", 200)]).unwrap();
            }
        });
    }
    sleep(8 * SECOND).await;
    calls.load(Ordering::Relaxed)
}

/// Requests of two limits waited behind the bookings of the limit that has room: 11 calls of 42.
#[test]
fn a_gateway_of_two_limits_uses_what_comes_back() {
    for tokens in
        ["token_bucket 30000/min burst 5000", "sliding_window 30000/min cells 6", "fixed_window 30000/min"]
    {
        for calls in
            ["token_bucket 600/min burst 100", "fixed_window 600/min", "sliding_window 600/min cells 6"]
        {
            let alone = run(async {
                let policies = [calls, tokens].map(|line| line.parse::<AnyPolicy>().unwrap());
                let [calls, tokens] = policies.map(RateLimiter::new);
                calls_of_a_gateway(AllOf::new("calls", &calls).with("tokens", &tokens).into()).await
            });
            let shared = on_model(async |model| {
                let store = model.open(Store::builder("redis://model")).unwrap();
                let limiter = store.limiter("all").limit("calls", calls);
                let limiter = limiter.limit("tokens", tokens).build().unwrap();
                calls_of_a_gateway(limiter.into()).await
            });
            // A bucket of calls is used up itself, and permits that accrue go to bookings first.
            let part = if calls.starts_with("token") && !tokens.starts_with("token") { 0.65 } else { 0.97 };
            let least = alone as f64 * part;
            assert!(shared as f64 >= least, "{calls}, {tokens}: {shared} of {alone}");
        }
    }
}

/// Small requests together with large ones, and reservations that are settled at once: loans that
/// were too many to be recorded were debited again and again, so nothing came back.
#[test]
fn reservations_beside_small_requests_use_the_limit() {
    run(async {
        let (_model, limiters) = there("token_bucket 1000/s burst 1000", 1, &Grants::default());
        let used = Arc::new(AtomicU64::new(0));
        for task in 0..60 {
            let (limiter, used) = (limiters[0].clone(), used.clone());
            tokio::spawn(async move {
                loop {
                    if task < 45 {
                        reserve_and_settle(&limiter, Duration::ZERO).await;
                        used.fetch_add(USED.into(), Ordering::Relaxed);
                    } else {
                        drop(limiter.acquire().await.unwrap());
                        used.fetch_add(1, Ordering::Relaxed);
                        sleep(20 * MS).await;
                    }
                }
            });
        }
        sleep(3 * SECOND).await;
        let before = used.load(Ordering::Relaxed);
        sleep(5 * SECOND).await;
        let used = used.load(Ordering::Relaxed) - before;
        assert!((4900..=5100).contains(&used), "{used}");
    });
}

/// A reservation that is given up before its time lends nothing, because none of its permits has
/// accrued yet.
#[test]
fn a_reservation_that_is_not_used_is_as_if_it_was_dropped() {
    run(async {
        let grants = Grants::default();
        let (_model, limiters) = there("token_bucket 1/s burst 5", 1, &grants);
        let limiter = limiters[0].non_blocking();
        drop(limiter.acquire_many(5).await.unwrap());
        let mut reservations = Vec::new();
        for used in [0, 1] {
            let reservation = limiter.reserve(2).unwrap();
            sleep(50 * MS).await;
            reservations.push((reservation, used));
        }
        let began = Instant::now();
        let wait = tokio::spawn(limiters[0].acquire());
        sleep(50 * MS).await;
        reservations.into_iter().for_each(|(reservation, used)| reservation.settle(used).unwrap());
        drop(wait.await.unwrap().unwrap());
        // One permit of the reservations is used. The next one accrues 2 s after all were taken.
        assert!(began.elapsed() >= 1850 * MS, "{:?}", began.elapsed());
    });
}

/// A status did not report the permits that a bucket lends, or that a window has free. Requests got
/// them.
#[test]
fn a_status_reports_what_came_back_while_others_wait() {
    for (policy, all) in [
        ("token_bucket 100/s burst 200", 200),
        ("fixed_window 100/10s", 100),
        ("sliding_estimate 100/10s", 100),
    ] {
        on_model(async move |model| {
            let limiter = || {
                let store = model.open(Store::builder("redis://model")).unwrap();
                store.limiter("all").limit("calls", policy).build().unwrap()
            };
            let (one, other) = (limiter(), limiter());
            let told = async || {
                let (_, status) = one.status().await.unwrap().members.remove(0);
                (status.available, status.next_in.is_zero())
            };
            let one_handle = AnyLimiter::from(one.clone());
            let mut reservation = one_handle.non_blocking().reserve(all).unwrap();
            (&mut reservation).await.unwrap();
            let _waits = tokio::spawn(async move { AnyLimiter::from(other).acquire_many(90).await });
            sleep(10 * MS).await;
            reservation.settle(all - 40).unwrap();
            sleep(10 * MS).await;
            assert_eq!(told().await, (40, true), "{policy}");
            let all = Request::up_to(100);
            assert_eq!(one_handle.acquire_now(all).await.unwrap().permits(), 40, "{policy}");
            assert_eq!(told().await, (0, false), "{policy}");
        });
    }
}
