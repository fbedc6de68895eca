//! Requests that wait for a store that is away, on paused time.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use tidegate::{
    AllRefusal, AllRequest, AllStatus, AnyLimiter, Events, Pause, QueueBounds, Refusal, Request, StoreEvent,
    WhenFull,
};
use tidegate_redis::simulation::{Model, Network, run};
use tidegate_redis::{LimiterBuilder, Store, StoreLimiter, WhileAway};
use tokio::time::{Instant, sleep, timeout};

use crate::{MS, SECOND, on_model};

const MAX_SKIPS: usize = 100_000;

fn open(model: &Model) -> Store {
    model.open(Store::builder("redis://model").while_away(WhileAway::Wait)).unwrap()
}

fn builder(store: &Store, policy: &str) -> LimiterBuilder {
    store.limiter("all").limit("calls", policy)
}

fn limiter(store: &Store, policy: &str) -> AnyLimiter {
    builder(store, policy).build().unwrap().into()
}

fn is_unavailable<T>(answer: &Result<T, AllRefusal>) -> bool {
    let refusal = answer.as_ref().err().and_then(AllRefusal::refusal);
    matches!(refusal, Some(Refusal::Unavailable { .. }))
}

fn available(status: &AllStatus) -> u64 {
    status.members[0].1.available
}

/// Starts a killed server in a second.
async fn starts_later(model: &Model) {
    sleep(SECOND).await;
    model.start_empty();
}

/// Requests that record their number when they are granted.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<(usize, Duration)>>>);

impl Log {
    fn spawn(&self, limiter: &AnyLimiter, number: usize, request: impl Into<AllRequest<'static>>) {
        let (wait, log) = (limiter.acquire_many(request.into()), self.0.clone());
        tokio::spawn(async move {
            let permits = wait.await.unwrap();
            assert!(!permits.is_degraded());
            log.lock().unwrap().push((number, permits.waited()));
        });
    }

    fn numbers(&self) -> Vec<usize> {
        self.0.lock().unwrap().iter().map(|(number, _)| *number).collect()
    }

    async fn until(&self, granted: usize) {
        while self.numbers().len() < granted {
            sleep(MS).await;
        }
    }
}

#[test]
fn requests_outlast_an_outage_in_their_order() {
    on_model(async |model| {
        let store = open(&model);
        let limiter = limiter(&store, "token_bucket 10/s burst 1");
        drop(limiter.acquire().await.unwrap());
        model.kill();
        let (log, began) = (Log::default(), Instant::now());
        for number in 0..100 {
            log.spawn(&limiter, number, 1);
            sleep(MS).await;
        }
        log.spawn(&limiter, 100, AllRequest::from(1).priority(1));
        sleep(10 * SECOND).await;
        assert!(store.is_away() && log.numbers().is_empty());
        model.start_empty();
        // A newcomer is behind those that wait.
        log.spawn(&limiter, 101, 1);
        log.until(102).await;
        let expected: Vec<usize> = [100].into_iter().chain(0..100).chain([101]).collect();
        assert_eq!(log.numbers(), expected);
        // The limit had its burst of one permit when the store came back.
        let took = began.elapsed();
        assert!(took >= 10 * SECOND + 101 * 100 * MS && took < 16 * SECOND + 101 * 100 * MS, "{took:?}");
        let waits: Vec<Duration> = log.0.lock().unwrap().iter().map(|(_, waited)| *waited).collect();
        assert!(waits[1] > 10 * SECOND && waits[100] >= waits[1] + 98 * 100 * MS, "{waits:?}");
        let counts = store.counts();
        assert_eq!(counts.degraded, 0);
    });
}

#[test]
fn a_request_that_does_not_wait_is_refused_at_once() {
    run(async {
        let model = Model::new(2, Network::steady(MS));
        let store = open(&model);
        let limiter = limiter(&store, "token_bucket 10/s burst 1");
        model.kill();
        assert!(is_unavailable(&limiter.acquire_now([]).await));
        let log = Log::default();
        log.spawn(&limiter, 0, 1);
        sleep(SECOND).await;
        let began = Instant::now();
        let answer = limiter.acquire_now([]).await;
        assert!(is_unavailable(&answer) && began.elapsed() == Duration::ZERO);
        let retry_after = answer.unwrap_err().retry_after().unwrap();
        assert!(retry_after > Duration::ZERO && retry_after < 5 * SECOND, "{retry_after:?}");
        model.start_empty();
        log.until(1).await;
    });
}

#[test]
fn a_longest_wait_ends_in_an_outage() {
    run(async {
        let model = Model::new(3, Network::steady(MS));
        let store = open(&model);
        let limiter = limiter(&store, "token_bucket 10/s burst 1");
        model.kill();
        for within in [700 * MS, 30 * SECOND] {
            let began = Instant::now();
            assert!(is_unavailable(&limiter.acquire_within(within).await));
            let took = began.elapsed();
            assert!(took >= within && took <= within + MS, "{took:?} of {within:?}");
        }
        let (permits, ()) = tokio::join!(limiter.acquire_within(30 * SECOND), starts_later(&model));
        assert!(permits.unwrap().waited() > SECOND);
    });
}

/// A request was refused when the call ended that asked whether the store is back: up to a timeout
/// of the store after its maximum wait. A request for permits in use was refused up to 240 ms after
/// it.
#[test]
fn a_longest_wait_ends_in_the_first_calls_of_an_outage() {
    for in_use in [false, true] {
        on_model(async move |model| {
            let store = open(&model);
            let limiter: AnyLimiter = match in_use {
                true => store.counting("all", 10).build().unwrap().into(),
                false => limiter(&store, "token_bucket 100/s burst 10"),
            };
            drop(limiter.acquire().await.unwrap());
            sleep(SECOND).await;
            model.stop(true);
            for within in [20, 40, 51, 70, 91, 130, 49, 55, 100, 300].map(|within| within * MS) {
                let asked = Instant::now();
                let answer = limiter.acquire_within(within).await;
                assert!(is_unavailable(&answer), "{in_use} {within:?}: {answer:?}");
                let took = asked.elapsed();
                // The timeout of the store is 50 ms.
                assert!(took <= within.max(50 * MS) + MS, "{in_use}: {took:?} of {within:?}");
            }
        });
    }
}

/// Requests that queued behind others, and not behind permits that the store had reported, were
/// decided as if the store were away when their maximum wait was over: up to 13 of 10 permits were
/// in use.
#[test]
fn a_longest_wait_for_permits_in_use_is_no_outage() {
    let two = std::num::NonZeroU32::new(2).unwrap();
    for while_away in [WhileAway::Open, WhileAway::ShareOf(two), WhileAway::Closed, WhileAway::Wait] {
        for (seed, latency) in [(1, MS / 2), (2, 5 * MS)] {
            run(async move {
                let model = Model::new(seed, Network::steady(latency));
                let in_use = Arc::new(AtomicUsize::new(0));
                let (mut stores, mut tasks) = (Vec::new(), Vec::new());
                for _ in 0..2 {
                    let builder = Store::builder("redis://model").while_away(while_away);
                    let store = model.open(builder).unwrap();
                    let limiter = AnyLimiter::from(store.counting("jobs", 10).build().unwrap());
                    tasks.extend(vec![limiter; 30]);
                    stores.push(store);
                }
                let tasks = tasks.into_iter().zip(0..).map(|(limiter, task)| {
                    let in_use = in_use.clone();
                    tokio::spawn(async move {
                        let mut random = SmallRng::seed_from_u64(100 * seed + task);
                        for _ in 0..60 {
                            sleep(random.random_range(1..400) * MS).await;
                            let answer = limiter.acquire_within(random.random_range(51..500) * MS).await;
                            if let Ok(permits) = answer {
                                assert!(in_use.fetch_add(1, Ordering::Relaxed) < 10, "{while_away}");
                                sleep(random.random_range(20..400) * MS).await;
                                in_use.fetch_sub(1, Ordering::Relaxed);
                                drop(permits);
                            } else {
                                let refusal = answer.unwrap_err().refusal();
                                assert!(matches!(refusal, Some(Refusal::InUse { limit: 10 })), "{refusal:?}");
                            }
                        }
                    })
                });
                for task in tasks.collect::<Vec<_>>() {
                    task.await.unwrap();
                }
                assert!(stores.iter().all(|store| store.counts().degraded == 0), "{while_away}");
            });
        }
    }
}

/// A reservation of permits in use forgot the maximum wait of its request: it waited until a permit
/// came back, and for all of an outage.
#[test]
fn a_reservation_among_permits_in_use_is_refused_after_its_longest_wait() {
    for while_away in [WhileAway::Closed, WhileAway::Wait] {
        on_model(async move |model| {
            let store = model.open(Store::builder("redis://model").while_away(while_away)).unwrap();
            let jobs = store.counting("jobs", 1).build().unwrap();
            let held = jobs.acquire().await.unwrap();
            let request = || Request::from(1).within(100 * MS);
            let wait = jobs.acquire_many(request()).await.unwrap_err();
            let began = Instant::now();
            let mut reservation = jobs.reserve(request()).unwrap();
            let refusal = timeout(SECOND, &mut reservation).await.unwrap().unwrap_err();
            assert_eq!(refusal.refusal(), wait.refusal());
            // A timer fires at whole milliseconds.
            assert!(began.elapsed() < 101 * MS, "{:?}", began.elapsed());
            // A refused reservation is in no queue, even while it is kept.
            assert_eq!(jobs.status().await.unwrap().waiting, 0);
            drop(held);
            sleep(100 * MS).await;
            assert_eq!(available(&jobs.status().await.unwrap()), 1);
            model.stop(true);
            let mut reservation = jobs.reserve(request()).unwrap();
            let refusal = timeout(SECOND, &mut reservation).await.unwrap();
            assert!(is_unavailable(&refusal), "{while_away}: {refusal:?}");
        });
    }
}

/// A process that had paused permits in use itself continued to grant them while the store was
/// away. It refused a request that is larger than its share as one that is larger than the limit.
#[test]
fn permits_in_use_are_paused_and_shared_while_the_store_is_away() {
    let two = std::num::NonZeroU32::new(2).unwrap();
    for while_away in [WhileAway::Open, WhileAway::ShareOf(two)] {
        on_model(async move |model| {
            let store = model.open(Store::builder("redis://model").while_away(while_away)).unwrap();
            let jobs = store.counting("jobs", 8).build().unwrap();
            jobs.pause(Pause::lasting(60 * SECOND)).await.unwrap();
            model.stop(true);
            let refusal = jobs.acquire_now(1).await.unwrap_err();
            assert!(refusal.is_degraded());
            assert!(matches!(refusal.refusal(), Some(Refusal::Paused { .. })), "{refusal:?}");
            assert!(refusal.retry_after().unwrap() > 59 * SECOND, "{refusal:?}");
            let began = Instant::now();
            let permit = jobs.acquire().await.unwrap();
            assert!(permit.is_degraded() && began.elapsed() > 59 * SECOND);
            jobs.pause(Pause::lasting(60 * SECOND)).await.unwrap_err();
            jobs.resume().await.unwrap_err();
            drop(jobs.acquire_now(1).await.unwrap());
            let many = jobs.acquire_now(5).await;
            match while_away {
                WhileAway::Open => assert!(many.is_ok()),
                _ => assert!(is_unavailable(&many) && many.unwrap_err().refusal().unwrap().may_retry()),
            }
        });
    }
}

/// Bug: in a known pause, requests for permits in use were refused as unavailable where a process
/// grants nothing while the store is away, unlike requests for a rate.
#[test]
fn a_pause_that_is_known_refuses_requests_for_permits_in_use_while_the_store_is_away() {
    for while_away in [WhileAway::Closed, WhileAway::Wait] {
        on_model(async move |model| {
            let store = model.open(Store::builder("redis://model").while_away(while_away)).unwrap();
            let jobs = store.counting("jobs", 1).build().unwrap();
            jobs.pause(Pause::lasting(60 * SECOND)).await.unwrap();
            model.stop(true);
            for _ in 0..2 {
                for refusal in [jobs.acquire_now(1).await, jobs.acquire_within(SECOND).await] {
                    let refusal = refusal.unwrap_err();
                    assert!(matches!(refusal.refusal(), Some(Refusal::Paused { .. })), "{refusal:?}");
                }
            }
        });
    }
}

/// Reservations in the share of a process were granted seconds after the limiter was closed.
#[test]
fn a_close_ends_reservations_in_a_share() {
    on_model(async |model| {
        let two = std::num::NonZeroU32::new(2).unwrap();
        let builder = Store::builder("redis://model").while_away(WhileAway::ShareOf(two));
        let store = model.open(builder).unwrap();
        let limiter = self::builder(&store, "token_bucket 1/s burst 4").build().unwrap();
        drop(limiter.acquire_now(1).await.unwrap());
        model.stop(true);
        while limiter.acquire_now(1).await.is_ok() {}
        let mut reservations = [limiter.reserve(1).unwrap(), limiter.reserve(1).unwrap()];
        for reservation in &mut reservations {
            assert!(timeout(100 * MS, reservation).await.is_err());
        }
        let [waits, mut late] = reservations;
        let waits = tokio::spawn(waits);
        sleep(10 * MS).await;
        let began = Instant::now();
        assert!(limiter.close());
        assert_eq!(waits.await.unwrap().unwrap_err().refusal(), Some(Refusal::Closed));
        assert_eq!(began.elapsed(), Duration::ZERO);
        sleep(10 * SECOND).await;
        assert_eq!((&mut late).await.unwrap_err().refusal(), Some(Refusal::Closed));
    });
}

/// A reset ended the pause of the store, and not that of this process.
#[test]
fn a_reset_ends_a_pause_also_while_the_store_is_away() {
    for leased in [false, true] {
        on_model(async move |model| {
            let store = model.open(Store::builder("redis://model").while_away(WhileAway::Open)).unwrap();
            let builder = builder(&store, "token_bucket 1000/s burst 1000");
            let builder = if leased { builder.leased() } else { builder };
            let limiter = builder.build().unwrap();
            limiter.pause(Pause::lasting(60 * SECOND)).await.unwrap();
            limiter.reset().await.unwrap();
            drop(limiter.acquire_now(1).await.unwrap());
            model.stop(true);
            drop(limiter.acquire_now(1).await.unwrap());
        });
    }
}

/// A request that does not wait queued behind a call without a deadline, or behind a call that was
/// sent before the request came and whose reply was lost.
#[test]
fn requests_that_do_not_wait_have_answers_in_time_where_answers_get_lost() {
    let two = std::num::NonZeroU32::new(2).unwrap();
    for (seed, while_away) in
        (0..400).flat_map(|seed| [(seed, WhileAway::Wait), (seed, WhileAway::ShareOf(two))])
    {
        run(async move {
            let model = Model::new(seed, Network { lost_answers: 0.25, ..Network::steady(MS) });
            let store = model.open(Store::builder("redis://model").while_away(while_away)).unwrap();
            let limiter: AnyLimiter = match while_away {
                WhileAway::Wait => limiter(&store, "token_bucket 20/s burst 6"),
                _ => store.counting("jobs", 6).build().unwrap().into(),
            };
            // The breaker is closed again.
            let _ = limiter.acquire_now([]).await;
            sleep(16 * SECOND).await;
            let mut random = SmallRng::seed_from_u64(seed);
            let tasks = (0..random.random_range(3..14)).map(|_| {
                let (comes, permits) = (random.random_range(0..80) * MS, random.random_range(1..5));
                let (kind, within) = (random.random_range(0..3), random.random_range(1..90) * MS);
                let limiter = limiter.clone();
                tokio::spawn(async move {
                    sleep(comes).await;
                    let asked = Instant::now();
                    let answer = match kind {
                        0 => limiter.acquire_now(permits).await,
                        1 => limiter.acquire_many(Request::permits(permits).within(within)).await,
                        _ => limiter.acquire_many(permits).await,
                    };
                    let took = asked.elapsed();
                    assert!(kind > 0 || took <= 51 * MS, "{seed}, {while_away}: {took:?}");
                    sleep(20 * MS).await;
                    drop(answer);
                })
            });
            for task in tasks.collect::<Vec<_>>() {
                task.await.unwrap();
            }
        });
    }
}

/// The calls that give bookings of dropped waits back have no deadline, and requests that do not
/// wait queued behind them for up to 198 ms.
#[test]
fn requests_that_do_not_wait_have_answers_in_time_beside_dropped_waits() {
    for seed in 0..20 {
        run(async move {
            let model = Model::new(seed, Network { lost_answers: 0.02, ..Network::steady(3 * MS) });
            let store = model.open(Store::builder("redis://model")).unwrap();
            let limiter = limiter(&store, "token_bucket 1000/s burst 100");
            let _ = limiter.acquire_now([]).await;
            let began = Instant::now();
            let tasks = (0..20).map(|task| {
                let (limiter, mut random) = (limiter.clone(), SmallRng::seed_from_u64(100 * seed + task));
                tokio::spawn(async move {
                    while began.elapsed() < 10 * SECOND {
                        sleep(random.random_range(0..40) * MS).await;
                        let (permits, asked) = (random.random_range(1..=5), Instant::now());
                        if random.random_bool(0.25) {
                            let _ = limiter.acquire_now(permits).await;
                            let took = asked.elapsed();
                            assert!(took <= 51 * MS, "{seed}: {took:?}");
                        } else {
                            let longest = random.random_range(0..300) * MS;
                            let _ = timeout(longest, limiter.acquire_many(permits)).await;
                        }
                    }
                })
            });
            for task in tasks.collect::<Vec<_>>() {
                task.await.unwrap();
            }
        });
    }
}

/// Calls of requests that waited behind a pause have no deadline, and requests that do not wait
/// queued behind them for up to a round trip more than the timeout.
#[test]
fn requests_that_do_not_wait_have_answers_in_time_behind_the_end_of_a_pause() {
    for stops_after in (0..60).step_by(4) {
        run(async move {
            let model = Model::new(1, Network::steady(10 * MS));
            let store = model.open(Store::builder("redis://model").timeout(100 * MS)).unwrap();
            let limiter = limiter(&store, "token_bucket 100000/s burst 10");
            let _ = limiter.acquire().await.unwrap();
            limiter.pause(Pause::lasting(SECOND)).unwrap();
            sleep(100 * MS).await;
            let waits: Vec<_> = (0..3000).map(|_| tokio::spawn(limiter.acquire())).collect();
            sleep(890 * MS).await;
            let newcomers = (0..100).map(|after| {
                let limiter = limiter.clone();
                tokio::spawn(async move {
                    sleep(after * MS).await;
                    let asked = Instant::now();
                    let _ = limiter.acquire_now([]).await;
                    let took = asked.elapsed();
                    assert!(took <= 101 * MS, "{stops_after}, {after}: {took:?}");
                })
            });
            let newcomers: Vec<_> = newcomers.collect();
            sleep(stops_after * MS).await;
            model.stop(true);
            for newcomer in newcomers {
                newcomer.await.unwrap();
            }
            drop(waits);
        });
    }
}

/// A request that had waited for a lease was decided up to a timeout of the store after the end of
/// its maximum wait: it was sent when the lease had failed, and its call had a separate timeout. So
/// was a request that was sent again while others had restarted the queue.
#[test]
fn a_longest_wait_for_a_lease_ends_in_an_outage() {
    let modes = [WhileAway::Wait, WhileAway::Closed];
    for (mode, within) in modes.into_iter().flat_map(|mode| [50, 60, 95, 120, 150].map(|ms| (mode, ms))) {
        for tasks in [20, within / 4] {
            on_model(async move |model| {
                let store = model.open(Store::builder("redis://model").while_away(mode)).unwrap();
                let limiter = builder(&store, "token_bucket 300/s burst 10").leased().build().unwrap();
                let limiter = AnyLimiter::from(limiter);
                let (within, began) = (within * MS, Instant::now());
                let tasks = (0..tasks).map(|i| {
                    let limiter = limiter.clone();
                    tokio::spawn(async move {
                        sleep(17 * MS * i).await;
                        while began.elapsed() < 2 * SECOND {
                            let asked = Instant::now();
                            let answer = limiter.acquire_within(within).await;
                            let took = asked.elapsed();
                            // The store counts the wait of a granted request from its decision, a
                            // timeout later at most, and its reply takes a trip.
                            let late = if answer.is_ok() { 50 * MS } else { Duration::ZERO };
                            let most = within + late + 3 * MS;
                            assert!(took <= most, "{mode:?} {within:?}: {answer:?} after {took:?}");
                            if answer.is_err() {
                                sleep(5 * MS).await;
                            }
                        }
                    })
                });
                let tasks: Vec<_> = tasks.collect();
                for _ in 0..2 {
                    sleep(500 * MS).await;
                    model.stop(true);
                    sleep(500 * MS).await;
                    model.stop(false);
                }
                for task in tasks {
                    task.await.unwrap();
                }
            });
        }
    }
}

/// A request that no lease served went to the store, behind a call of another request. If that call
/// got no reply, the first request was decided at the end of that call, which was sent later.
#[test]
fn refusals_in_outages_are_on_time_whether_or_not_a_request_waited_for_a_lease() {
    for seed in 0..30 {
        run(async move {
            let mut random = SmallRng::seed_from_u64(seed);
            let model = Model::new(seed, Network::steady(random.random_range(1..10) * MS));
            let store = model.open(Store::builder("redis://model").while_away(WhileAway::Closed)).unwrap();
            let limiter = builder(&store, "token_bucket 1000/s burst 100").leased().build().unwrap();
            let limiter = AnyLimiter::from(limiter);
            let began = Instant::now();
            let tasks = (0..16).map(|i| {
                let (limiter, mut random) = (limiter.clone(), SmallRng::seed_from_u64(seed * 100 + i));
                tokio::spawn(async move {
                    while began.elapsed() < 2 * SECOND {
                        let (within, asked) = (random.random_range(1..150) * MS, Instant::now());
                        let request = Request::permits(random.random_range(1..3)).within(within);
                        // No lease serves a request that asks for the remaining permits.
                        let request = if i % 4 == 0 { request.with_left() } else { request };
                        let answer = limiter.acquire_many(request).await;
                        let took = asked.elapsed();
                        assert!(
                            !is_unavailable(&answer) || took <= within.max(50 * MS),
                            "seed {seed}: {within:?} became {took:?}"
                        );
                        sleep(random.random_range(0..20) * MS).await;
                    }
                })
            });
            let tasks: Vec<_> = tasks.collect();
            for _ in 0..8 {
                sleep(random.random_range(100_000..250_000) * MS / 1000).await;
                model.stop(true);
                sleep(random.random_range(20_000..150_000) * MS / 1000).await;
                model.stop(false);
            }
            for task in tasks {
                task.await.unwrap();
            }
        });
    }
}

#[test]
fn a_request_that_is_dropped_in_an_outage_leaves_no_trace() {
    run(async {
        let model = Model::new(4, Network::steady(MS));
        let store = open(&model);
        let limiter = limiter(&store, "token_bucket 1/d burst 3");
        model.kill();
        let storm: Vec<_> = (0..1000).map(|_| timeout(SECOND, limiter.acquire())).collect();
        let ended = futures_util::future::join_all(storm).await;
        assert!(ended.iter().all(Result::is_err));
        model.start_empty();
        let log = Log::default();
        (0..3).for_each(|number| log.spawn(&limiter, number, 1));
        log.until(3).await;
        let refusal = limiter.acquire_now([]).await.unwrap_err().refusal();
        assert!(matches!(refusal, Some(Refusal::Limited { .. })), "{refusal:?}");
    });
}

/// The store carries out calls to which it does not reply in time.
#[test]
fn a_call_without_an_answer_takes_permits_twice_at_most() {
    run(async {
        let model = Model::new(5, Network::steady(MS));
        let store = open(&model);
        let limiter = limiter(&store, "token_bucket 1/d burst 10");
        drop(limiter.acquire().await.unwrap());
        model.stop(true);
        let log = Log::default();
        (0..2).for_each(|number| log.spawn(&limiter, number, 1));
        sleep(100 * MS).await;
        model.stop(false);
        log.until(2).await;
        assert_eq!(log.numbers(), [0, 1]);
        let unknown = store.counts().unknown;
        let left = limiter.acquire_now(Request::up_to(10)).await.unwrap().permits();
        assert!(unknown > 0 && u64::from(left) < 7, "{unknown}, {left}");
    });
}

/// Outages at random: the server stops, or the routes of some processes are cut. No state is lost.
#[test]
fn random_outages_pass_no_limit_and_lose_no_request() {
    for seed in 0..8 {
        run(async {
            let mut random = SmallRng::seed_from_u64(seed);
            let model =
                Model::new(seed, Network { service: Duration::from_micros(1), ..Network::steady(MS) });
            let limiters = [(); 3].map(|()| limiter(&open(&model), "token_bucket 100/s burst 10"));
            // The process, the arrival, and the time of the grant.
            let granted: Arc<Mutex<Vec<(usize, Duration, Duration)>>> = Arc::default();
            let (began, mut asked, mut tasks) = (Instant::now(), [0; 3], Vec::new());
            for _ in 0..40 {
                match random.random_range(0..4) {
                    0 => model.stop(true),
                    1 => model.cut([random.random_range(0..3)], true),
                    _ => {
                        model.stop(false);
                        model.cut(0..3, false);
                    }
                }
                for _ in 0..random.random_range(0..40) {
                    let of = random.random_range(0..3);
                    let (wait, granted, came) = (limiters[of].acquire(), granted.clone(), began.elapsed());
                    asked[of] += 1;
                    tasks.push(tokio::spawn(async move {
                        drop(wait.await.unwrap());
                        granted.lock().unwrap().push((of, came, began.elapsed()));
                    }));
                }
                sleep(random.random_range(1..2000) * MS).await;
            }
            model.stop(false);
            model.cut(0..3, false);
            futures_util::future::join_all(tasks).await;
            let granted = granted.lock().unwrap();
            for (of, asked) in asked.into_iter().enumerate() {
                let came: Vec<_> =
                    granted.iter().filter(|grant| grant.0 == of).map(|grant| grant.1).collect();
                assert_eq!(came.len(), asked, "seed {seed}");
                // A call without a reply may have been sent just before one with a reply.
                let mut latest = Duration::ZERO;
                for came in came {
                    assert!(came + 50 * MS >= latest, "seed {seed}: in order");
                    latest = latest.max(came);
                }
            }
            for (i, (.., first)) in granted.iter().enumerate() {
                for (n, (.., last)) in granted[i..].iter().enumerate() {
                    // A booked time is met up to one direction's latency late, and a timer up to a
                    // millisecond.
                    let span = (*last - *first + 3 * MS).as_secs_f64();
                    assert!((n + 1) as f64 <= 10.0 + 100.0 * span, "seed {seed}: {} in {span} s", n + 1);
                }
            }
        });
    }
}

/// One queue at a time asks whether the store is back. The other queues wait for that reply, and do
/// not ask repeatedly meanwhile.
#[test]
fn held_lines_wait_for_the_answer_to_one_of_them() {
    run(async {
        let model = Model::new(11, Network::steady(MS));
        let store = open(&model);
        let (log, lines) = (Log::default(), 20);
        model.stop(true);
        for number in 0..lines {
            let builder = store.limiter(number.to_string());
            let limiter = builder.limit("calls", "token_bucket 10/s burst 1").build();
            log.spawn(&limiter.unwrap().into(), number, 1);
        }
        sleep(20 * SECOND).await;
        // Each queue asks at the end of a rest, and once again if the store did not reply.
        let (before, rests) = (store.counts(), 10);
        assert!(before.skipped <= 2 * rests * lines as u64, "{before:?}");
        model.stop(false);
        log.until(1).await;
        // The other queues are a round trip behind the one that asked.
        sleep(2 * MS).await;
        let after = store.counts();
        assert_eq!(log.numbers().len(), lines);
        // The queue that asked whether the store is back has one reply more.
        assert_eq!(after.answered - before.answered, 1 + lines as u64, "{after:?}");
    });
}

fn many_a_second(store: &Store) -> AnyLimiter {
    limiter(store, "token_bucket 500/s burst 50")
}

/// An action for each skipped call, with the number of skipped calls so far.
struct OnSkips<F>(AtomicUsize, F);

impl<F: Fn(usize) + Send + Sync + 'static> Events for OnSkips<F> {
    fn store(&self, event: &StoreEvent) {
        if *event == StoreEvent::Skipped {
            (self.1)(self.0.fetch_add(1, Ordering::Relaxed) + 1);
        }
    }
}

/// Refunds take the probe of the store, and the queue has to wait until the probe has a reply. The
/// queue is checked between the end of its rest and the timer for that, which has whole
/// milliseconds.
#[test]
fn a_line_behind_refunds_asks_a_bounded_number_of_times() {
    for (seed, gap) in (0..8).flat_map(|seed| (1..=60).map(move |gap| (seed, gap))) {
        run(async {
            let model = Model::new(seed, Network::steady(MS));
            let closes: Arc<OnceLock<AnyLimiter>> = Arc::default();
            let limiter = closes.clone();
            // A queue that asks without end gives no other task a turn.
            let on_skips = move |skips| _ = (skips > 1000).then(|| limiter.get().unwrap().close());
            let builder = Store::builder("redis://model").while_away(WhileAway::Wait).timeout(50 * MS);
            let builder = builder.observed_by(Arc::new(OnSkips(AtomicUsize::new(0), on_skips)));
            let limiter = many_a_second(&model.open(builder).unwrap());
            closes.set(limiter.clone()).unwrap();
            let reservations: Vec<_> = (0..8).map(|_| limiter.non_blocking().reserve(2).unwrap()).collect();
            sleep(60 * MS).await;
            model.stop(true);
            let request = tokio::spawn(limiter.acquire());
            for reservation in reservations {
                drop(reservation);
                sleep(gap * MS).await;
            }
            model.stop(false);
            let granted = timeout(6 * SECOND, request).await.expect("an answer").unwrap();
            assert!(granted.is_ok(), "seed {seed}, gap {gap}: {granted:?}");
        });
    }
}

/// An observer makes a call for each skipped call, until another task has had a turn.
#[test]
fn calls_that_are_not_made_leave_turns_to_other_tasks() {
    on_model(async |model| {
        let (limiter, is_over) = (Arc::new(OnceLock::<AnyLimiter>::new()), Arc::new(AtomicBool::new(false)));
        let (of, ends) = (limiter.clone(), is_over.clone());
        let on_skips = move |skips| {
            if skips < MAX_SKIPS && !ends.load(Ordering::Relaxed) {
                of.get().unwrap().debit(1).unwrap();
            }
        };
        let observer = Arc::new(OnSkips(AtomicUsize::new(0), on_skips));
        let store = model.open(Store::builder("redis://model").observed_by(observer.clone())).unwrap();
        let limiter = limiter.get_or_init(|| many_a_second(&store));
        model.kill();
        while !store.is_away() {
            _ = limiter.acquire_now([]).await;
        }
        limiter.debit(1).unwrap();
        while observer.0.load(Ordering::Relaxed) == 0 {
            tokio::task::yield_now().await;
        }
        is_over.store(true, Ordering::Relaxed);
        let skips = observer.0.load(Ordering::Relaxed);
        assert!(skips < MAX_SKIPS, "{skips}");
    });
}

#[test]
fn bounds_hold_in_an_outage() {
    run(async {
        let model = Model::new(6, Network::steady(MS));
        let store = open(&model);
        let bounds = QueueBounds::UNBOUNDED.max_waiters(3);
        let limiter: StoreLimiter =
            builder(&store, "token_bucket 10/s burst 5").queue_bounds(bounds).build().unwrap();
        let handle = AnyLimiter::from(limiter.clone());
        model.kill();
        let log = Log::default();
        for number in 0..3 {
            log.spawn(&handle, number, 1);
        }
        sleep(SECOND).await;
        let refusal = handle.acquire().await.unwrap_err().refusal();
        assert!(matches!(refusal, Some(Refusal::QueueFull { .. })), "{refusal:?}");
        limiter.set_queue_bounds(QueueBounds::UNBOUNDED.max_permits(5));
        let refusal = handle.acquire_many(3).await.unwrap_err().refusal();
        assert!(matches!(refusal, Some(Refusal::QueueFull { .. })), "{refusal:?}");
        log.spawn(&handle, 3, 2);
        sleep(MS).await;
        // Lower bounds end no request that already waits, even when the store is asked again.
        limiter.set_queue_bounds(QueueBounds::UNBOUNDED.max_waiters(0));
        sleep(10 * SECOND).await;
        limiter.set_queue_bounds(QueueBounds::UNBOUNDED.max_waiters(4).when_full(WhenFull::DropOldest));
        let oldest = tokio::spawn(handle.acquire_many(AllRequest::from(1).priority(-1)));
        sleep(MS).await;
        assert!(oldest.is_finished(), "a request of lower priority displaces none");
        model.start_empty();
        log.until(4).await;
        assert_eq!(log.numbers(), [0, 1, 2, 3]);
    });
}

/// A wait that was dropped while its call asked whether the store is back was counted until that
/// call had ended: newcomers were refused although no request waited.
#[test]
fn a_wait_that_is_dropped_in_an_outage_leaves_room() {
    run(async {
        let model = Model::new(6, Network::steady(MS));
        let store = open(&model);
        for bounds in [QueueBounds::UNBOUNDED.max_waiters(1), QueueBounds::UNBOUNDED.max_permits(2)] {
            let limiter = builder(&store, "token_bucket 1/s burst 5").queue_bounds(bounds).build().unwrap();
            model.stop(true);
            for i in 0..1000 {
                let answer = timeout(30 * MS, limiter.acquire_many(2)).await;
                assert!(answer.is_err(), "{i}: {answer:?}");
                sleep(MS).await;
            }
            model.stop(false);
            sleep(10 * SECOND).await;
        }
    });
}

/// While a call that asked whether the store is back was in flight, a newcomer was refused with a
/// `retry_after` of zero: the requests of that call could not go.
#[test]
fn a_newcomer_displaces_a_request_whose_call_is_on_its_way() {
    for rule in [WhenFull::DropOldest, WhenFull::DropLeastImportant] {
        run(async move {
            let model = Model::new(6, Network::steady(20 * MS));
            let store = open(&model);
            let bounds = QueueBounds::UNBOUNDED.max_waiters(1).when_full(rule);
            let limiter = builder(&store, "token_bucket 100/s burst 5").queue_bounds(bounds).build().unwrap();
            let limiter = AnyLimiter::from(limiter);
            let join = |number| {
                let priority = if rule == WhenFull::DropOldest { 0 } else { number };
                tokio::spawn(limiter.acquire_many(AllRequest::from(1).priority(priority)))
            };
            for outage in 0..10 {
                model.stop(true);
                let mut last = join(0);
                // A request is counted when it waits for the store, and not for a call before that.
                sleep(100 * MS).await;
                for number in 1..100 {
                    sleep(7 * MS).await;
                    assert!(!last.is_finished(), "{rule:?}, {outage}: {number}");
                    let newcomer = join(number);
                    sleep(MS).await;
                    assert!(last.is_finished(), "{rule:?}, {outage}: {number}");
                    let refusal = last.await.unwrap().unwrap_err().refusal();
                    assert_eq!(refusal, Some(Refusal::Displaced), "{rule:?}, {outage}: {number}");
                    last = newcomer;
                }
                model.stop(false);
                drop(last.await.unwrap().unwrap());
            }
        });
    }
}

/// A call whose reply comes too late was carried out, and the requests of the queue were sent
/// again, up to 64 with each call: a process with a timeout below the round trip booked the limit
/// hours ahead, for all processes.
#[test]
fn a_store_that_answers_too_late_is_not_booked_without_end() {
    for line in ["token_bucket 1/s burst 10", "sliding_window 10/10s cells 10", "sliding_log 10/10s"] {
        run(async move {
            let model = Model::new(7, Network::steady(40 * MS));
            let open = |timeout| {
                let builder = Store::builder("redis://model").while_away(WhileAway::Wait).timeout(timeout);
                model.open(builder).unwrap()
            };
            let (too_short, enough) = (limiter(&open(50 * MS), line), limiter(&open(SECOND), line));
            // The server then knows the script.
            drop(enough.acquire().await.unwrap());
            let log = Log::default();
            for number in 0..1000 {
                log.spawn(&too_short, number, 10);
            }
            sleep(60 * SECOND).await;
            assert!(log.numbers().is_empty());
            let permits = enough.acquire().await.unwrap();
            assert!(permits.waited() <= SECOND, "{line}: {:?}", permits.waited());
        });
    }
}

/// The refusal reported the time that the store had booked for the newcomer: a booking that a
/// displaced request had given back, and that was gone when the newcomer came again.
#[test]
fn a_full_queue_predicts_when_a_newcomer_has_room() {
    for (line, sizes) in [
        ("token_bucket 10/s burst 10", [10, 10, 6, 10]),
        ("leaky_bucket 10/s nodelay 10 capacity 1000", [7, 7, 9, 7]),
        ("sliding_log 10/s", [10, 10, 7, 2]),
    ] {
        run(async move {
            let model = Model::new(2, Network::steady(MS));
            let store = open(&model);
            let limiter = builder(&store, line).build().unwrap();
            let _ = limiter.acquire_now(10).await.unwrap();
            let bounds = QueueBounds::UNBOUNDED.max_waiters(1).when_full(WhenFull::DropOldest);
            limiter.set_queue_bounds(bounds);
            let [first, second, reserved, newcomer] = sizes;
            for n in [first, second] {
                let limiter = limiter.clone();
                tokio::spawn(async move { limiter.acquire_many(n).await.map(drop) });
                sleep(10 * MS).await;
            }
            let mut reservation = limiter.reserve(reserved).unwrap();
            // It is in the queue, and displaces the second one.
            assert!(timeout(10 * MS, &mut reservation).await.is_err());
            let refusal = limiter.acquire_many(newcomer).await.unwrap_err();
            assert!(matches!(refusal.refusal(), Some(Refusal::QueueFull { .. })), "{line}: {refusal}");
            sleep(refusal.retry_after().unwrap()).await;
            let again = timeout(5 * MS, limiter.acquire_many(newcomer)).await;
            assert!(!matches!(again, Ok(Err(_))), "{line}: {refusal}, and then {again:?}");
        });
    }
}

/// Requests were in a call, or in the queue behind it, when the store went away. They were refused
/// only when it was back.
#[test]
fn requests_that_find_the_store_away_are_bounded_at_once() {
    run(async {
        let cases = [
            (WhenFull::RefuseNewcomer, 0..3),
            (WhenFull::DropOldest, 7..10),
            (WhenFull::DropLeastImportant, 0..3),
        ];
        for (rule, stay) in cases {
            let model = Model::new(12, Network::steady(MS));
            let bounds = QueueBounds::UNBOUNDED.max_waiters(3).when_full(rule);
            let builder = builder(&open(&model), "token_bucket 10/s burst 5").queue_bounds(bounds);
            let limiter = AnyLimiter::from(builder.build().unwrap());
            drop(limiter.acquire().await.unwrap());
            model.kill();
            let tasks: Vec<_> = (0..10).map(|_| tokio::spawn(limiter.acquire())).collect();
            sleep(SECOND).await;
            for (number, task) in tasks.iter().enumerate() {
                assert_eq!(task.is_finished(), !stay.contains(&number), "{rule:?}: {number}");
            }
            model.start_empty();
            for (number, task) in tasks.into_iter().enumerate() {
                let refusal = task.await.unwrap().err().and_then(|refusal| refusal.refusal());
                let is_expected = match rule {
                    _ if stay.contains(&number) => refusal.is_none(),
                    WhenFull::DropOldest => refusal == Some(Refusal::Displaced),
                    _ => matches!(refusal, Some(Refusal::QueueFull { .. })),
                };
                assert!(is_expected, "{rule:?}: {number}, {refusal:?}");
            }
        }
    });
}

/// The requests of a call that is sent from a held queue were counted by no bound until its reply.
/// By then newcomers had taken their positions.
#[test]
fn newcomers_take_no_positions_of_requests_that_leave_a_held_line() {
    run(async {
        let model = Model::new(13, Network::steady(10 * MS));
        for bounds in [QueueBounds::UNBOUNDED.max_waiters(3), QueueBounds::UNBOUNDED.max_permits(3)] {
            let builder = builder(&open(&model), "token_bucket 10/s burst 1").queue_bounds(bounds);
            let limiter = AnyLimiter::from(builder.build().unwrap());
            model.kill();
            let log = Log::default();
            (0..3).for_each(|number| log.spawn(&limiter, number, 1));
            sleep(SECOND).await;
            model.start_empty();
            let calls = model.calls();
            while model.calls() == calls {
                sleep(MS).await;
            }
            // The reply is in flight.
            for _ in 0..3 {
                let refusal = limiter.acquire().await.unwrap_err().refusal();
                assert!(matches!(refusal, Some(Refusal::QueueFull { .. })), "{refusal:?}");
            }
            log.until(3).await;
            assert_eq!(log.numbers(), [0, 1, 2]);
        }
    });
}

#[test]
fn a_limiter_that_closes_in_an_outage_refuses_its_requests() {
    run(async {
        let model = Model::new(7, Network::steady(MS));
        let store = open(&model);
        let limiter = limiter(&store, "token_bucket 10/s burst 1");
        model.kill();
        let waits: Vec<_> = (0..300).map(|_| tokio::spawn(limiter.acquire())).collect();
        sleep(SECOND).await;
        assert!(limiter.close().unwrap());
        for wait in waits {
            assert_eq!(wait.await.unwrap().unwrap_err().refusal(), Some(Refusal::Closed));
        }
    });
}

/// A request waits for the share of its process, and others wait for the store.
#[test]
fn a_waker_that_panics_does_not_keep_a_line_open() {
    struct Panics;
    impl std::task::Wake for Panics {
        fn wake(self: Arc<Self>) {
            panic!("a foreign waker");
        }
    }
    run(async {
        let model = Model::new(14, Network::steady(MS));
        let share = WhileAway::ShareOf(std::num::NonZeroU32::MIN);
        let store = model.open(Store::builder("redis://model").while_away(share)).unwrap();
        let limiter = limiter(&store, "token_bucket 1/h burst 1");
        model.kill();
        drop(limiter.acquire().await.unwrap());
        let mut waits = [Box::pin(limiter.acquire()), Box::pin(limiter.acquire())];
        let waker = std::task::Waker::from(Arc::new(Panics));
        let mut poll = |i: usize| {
            waits[i].as_mut().poll(&mut std::task::Context::from_waker(&waker)).map(|answer| answer.is_err())
        };
        assert!(poll(0).is_pending());
        sleep(SECOND).await;
        assert!(poll(0).is_pending());
        model.start_empty();
        // It is in its call.
        assert!(poll(1).is_pending());
        assert_eq!(limiter.close(), Ok(true));
        assert_eq!([poll(0), poll(1)], [std::task::Poll::Ready(true); 2]);
    });
}

#[test]
fn leases_and_permits_in_use_outlast_an_outage() {
    run(async {
        let model = Model::new(8, Network::steady(MS));
        let store = open(&model);
        let leased: AnyLimiter =
            builder(&store, "token_bucket 1000/s burst 100").leased().build().unwrap().into();
        let in_use: AnyLimiter = store.counting("jobs", 2).build().unwrap().into();
        let permit = in_use.acquire().await.unwrap();
        drop(leased.acquire().await.unwrap());
        model.kill();
        let log = Log::default();
        (0..500).for_each(|number| log.spawn(&leased, number, 1));
        let jobs = Log::default();
        (0..2).for_each(|number| jobs.spawn(&in_use, number, 1));
        sleep(3 * SECOND).await;
        assert!(is_unavailable(&in_use.acquire_now(1).await));
        assert_eq!(jobs.numbers().len(), 0);
        drop(permit);
        model.start_empty();
        log.until(500).await;
        jobs.until(2).await;
        assert_eq!(jobs.numbers(), [0, 1]);
    });
}

/// An awaited reservation waits for the store, as sockets and streams do that reserve.
#[test]
fn a_reservation_of_a_task_waits_for_the_store() {
    run(async {
        let model = Model::new(9, Network::steady(MS));
        let store = open(&model);
        let limiter = limiter(&store, "token_bucket 10/s burst 1").non_blocking();
        model.kill();
        let reservation = limiter.reserve(AllRequest::from(1).within(SECOND)).unwrap();
        let began = Instant::now();
        assert!(is_unavailable(&reservation.await));
        assert!(began.elapsed() >= SECOND && began.elapsed() <= SECOND + MS);
        let (permits, ()) = tokio::join!(limiter.reserve(1).unwrap(), starts_later(&model));
        assert!(permits.unwrap().waited() > SECOND);
    });
}

/// A thread that is blocked by a reservation would be blocked for the whole outage.
#[test]
fn a_thread_that_reserves_does_not_wait_for_the_store() {
    let store = Store::builder("redis+unix:///nowhere").while_away(WhileAway::Wait).open().unwrap();
    let limiter = limiter(&store, "token_bucket 10/s burst 1");
    let answer = limiter.reserve(1).map(drop);
    assert!(is_unavailable(&answer), "{answer:?}");
}

/// The runtime that makes the store's calls ends while requests wait.
#[test]
fn requests_do_not_wait_for_a_store_that_has_ended() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let builder = Store::builder("redis+unix:///nowhere").while_away(WhileAway::Wait);
    let store = runtime.block_on(async { builder.on_this_runtime().open() }).unwrap();
    let limiter = limiter(&store, "token_bucket 10/s burst 1");
    let thread = std::thread::spawn({
        let limiter = limiter.clone();
        move || limiter.blocking_acquire()
    });
    while limiter.status().waiting == 0 {
        std::thread::yield_now();
    }
    drop(runtime);
    assert!(is_unavailable(&thread.join().unwrap()));
}

#[test]
fn observers_are_notified_of_a_grant_after_an_outage() {
    #[derive(Default)]
    struct Told(Mutex<Vec<(u64, Duration)>>);

    impl Events for Told {
        fn granted(&self, permits: u64, waited: Duration) {
            self.0.lock().unwrap().push((permits, waited));
        }

        fn degraded(&self, _: u64) {
            panic!("the store decided");
        }
    }

    run(async {
        let model = Model::new(10, Network::steady(MS));
        let told = Arc::new(Told::default());
        let builder = Store::builder("redis://model").while_away(WhileAway::Wait);
        let store = model.open(builder.observed_by(told.clone())).unwrap();
        let limiter = limiter(&store, "token_bucket 10/s burst 1");
        model.kill();
        let log = Log::default();
        log.spawn(&limiter, 0, 1);
        sleep(SECOND).await;
        model.start_empty();
        log.until(1).await;
        let told = told.0.lock().unwrap();
        assert!(matches!(told[..], [(1, waited)] if waited > SECOND), "{told:?}");
    });
}

/// Of many requests that are due, a task serves some at a time. A task behind these was refused as
/// too late, although its request had been due in time.
#[test]
fn a_request_that_was_due_in_time_is_granted_whatever_task_runs_first() {
    on_model(async |model| {
        let store = model.open(Store::builder("redis://model").timeout(SECOND)).unwrap();
        let limiter = store.limiter("all").limit("calls", "token_bucket 1000/s burst 1").build().unwrap();
        let limiter = AnyLimiter::from(limiter);
        let mut waits: Vec<_> =
            (0..600).map(|_| tokio_test::task::spawn(limiter.acquire_within(700 * MS))).collect();
        waits.iter_mut().for_each(|wait| tokio_test::assert_pending!(wait.poll()));
        tokio::time::sleep(100 * MS).await;
        tokio::time::advance(SECOND).await;
        let mut granted = 0;
        while let Some(mut wait) = waits.pop() {
            match wait.poll() {
                std::task::Poll::Ready(answer) => {
                    granted += 1;
                    assert!(answer.is_ok(), "number {}: {answer:?}", waits.len());
                }
                std::task::Poll::Pending => {
                    waits.insert(0, wait);
                    tokio::time::sleep(MS).await;
                }
            }
        }
        assert_eq!(granted, 600);
    });
}

/// Bug: the maximum wait of a leaky bucket that a request did not use was subtracted from the time
/// that the request was told.
#[test]
fn a_refusal_is_not_told_by_the_bound_of_a_limit_that_it_does_not_use() {
    run(async {
        let store = open(&Model::new(9, Network::steady(Duration::ZERO)));
        let leaky = builder(&store, "leaky_bucket 10/s nodelay 5 capacity 5");
        let limiter: AnyLimiter = leaky.limit("slow", "token_bucket 1/s burst 1").build().unwrap().into();
        let slow = || AllRequest::new().cost("slow", 1).cost_of_others(0);
        let waits: Vec<_> = (0..9).map(|_| tokio::spawn(limiter.acquire_many(slow()))).collect();
        sleep(Duration::from_nanos(1)).await;
        let refusal = limiter.acquire_many(slow().within(2 * SECOND)).await.unwrap_err();
        // The calls of the waits took some microseconds of the model's time.
        assert!(
            refusal.retry_after().is_some_and(|told| told > 6990 * MS && told <= 7 * SECOND),
            "{refusal}"
        );
        drop(waits);
    });
}
