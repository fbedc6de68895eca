//! The order of arrival of requests of mixed costs. Leases serve some of them, and the store
//! others.

use std::time::Duration;

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use tidegate::{AllRequest, AnyLimiter, Pause};
use tidegate_redis::simulation::{Model, Network, run};
use tidegate_redis::{Store, WhileAway};
use tokio::time::{Instant, sleep};

use crate::{MS, SECOND};

const LINES: [&str; 5] = [
    "token_bucket 1000/s burst 10",
    "token_bucket 500/s burst 100",
    "smooth_bursty 500/s",
    "sliding_window 500/s cells 5",
    "sliding_log 1000/s",
];

/// Two processes with leases request 1 to 9 permits for two seconds, up to three times the limit.
/// Each grants its requests of equal costs in order of arrival. If `pause` is set, the limit is
/// paused at a given time for a given duration.
async fn grants_in_order(seed: u64, line: &str, while_away: WhileAway, pause: Option<(Duration, Duration)>) {
    let mut random = SmallRng::seed_from_u64(seed);
    let rate: f64 = line.split([' ', '/']).nth(1).unwrap().parse().unwrap();
    let model = Model::new(seed, Network::steady(MS / 2));
    let limiters = [0; 2].map(|_| {
        let store = model.open(Store::builder("redis://model").while_away(while_away)).unwrap();
        store.limiter("all").limit("limit", line).leased().build().unwrap()
    });
    if let Some((at, lasts)) = pause {
        let limiter = limiters[0].clone();
        tokio::spawn(async move {
            sleep(at).await;
            limiter.pause(Pause::lasting(lasts)).await.unwrap();
        });
    }
    let limiters = limiters.map(AnyLimiter::from);
    let began = Instant::now();
    let mut tasks = Vec::new();
    let gap = 5.0 / (rate * random.random_range(1.0..3.0));
    while began.elapsed() < 2 * SECOND {
        let (process, n) = (random.random_range(0..2), random.random_range(1..10));
        let limiter: AnyLimiter = limiters[process].clone();
        let task = tokio::spawn(async move {
            let _ = limiter.acquire_many(AllRequest::new().cost("limit", n)).await.unwrap();
            Instant::now()
        });
        tasks.push(((process, n), task));
        sleep(Duration::from_secs_f64(gap * random.random_range(0.0..2.0))).await;
    }
    let mut last = std::collections::HashMap::new();
    for (number, (kind, task)) in tasks.into_iter().enumerate() {
        let at = task.await.unwrap();
        let last = last.entry(kind).or_insert(at);
        let early = last.saturating_duration_since(at);
        assert!(early <= MS, "seed {seed}, {line}: {number} of {kind:?} is {early:?} before an earlier one");
        *last = at.max(*last);
    }
}

/// A lease that was booked before waits that were left to the store came due with no request in its
/// queue, and served later requests at once.
#[test]
fn no_lease_serves_a_request_before_earlier_ones_that_wait_for_the_store() {
    for (line, seed) in LINES.into_iter().flat_map(|line| (0..6).map(move |seed| (line, seed))) {
        run(grants_in_order(seed, line, WhileAway::Share, None));
    }
}

/// In a pause, requests waited for a lease, and, once costs were known to be mixed, later requests
/// waited for the store. At the end of the pause the store granted the later ones first.
#[test]
fn requests_of_both_lines_keep_their_order_in_a_pause() {
    for (line, seed) in LINES.into_iter().flat_map(|line| (0..6).map(move |seed| (line, seed))) {
        let pause = Some((seed * 150 * MS, SECOND));
        run(grants_in_order(u64::from(seed), line, WhileAway::Wait, pause));
    }
}

/// The permits held for the first request in the queue had expired when the rest of its booked
/// permits came.
#[test]
fn no_lease_is_booked_that_is_too_small_for_the_first_in_line() {
    for seed in 0..30 {
        run(async move {
            let mut random = SmallRng::seed_from_u64(seed);
            let model = Model::new(seed, Network::steady(MS / 3));
            let limiters = [0; 3].map(|_| {
                let store = model.open(Store::builder("redis://model")).unwrap();
                let limiter = store.limiter("all").limit("limit", "token_bucket 100/s burst 20");
                AnyLimiter::from(limiter.leased().build().unwrap())
            });
            let mut tasks = Vec::new();
            // In groups, for 120 permits a second.
            for _ in 0..40 {
                for _ in 0..11 {
                    sleep(MS * random.random_range(0..2)).await;
                    let limiter = limiters[random.random_range(0..3)].clone();
                    let n = random.random_range(1..=10);
                    tasks.push(tokio::spawn(async move {
                        let began = Instant::now();
                        let _ = limiter.acquire_many(AllRequest::new().cost("limit", n)).await.unwrap();
                        began.elapsed()
                    }));
                }
                sleep(500 * MS).await;
            }
            for task in tasks {
                let waited = task.await.unwrap();
                assert!(waited < 8 * SECOND, "seed {seed}: {waited:?}");
            }
        });
    }
}

/// One process requests more permits than there are, one by one, over a slow network. They are
/// granted in order of arrival.
async fn one_by_one(seed: u64, line: &str, one_way: Duration) {
    let mut random = SmallRng::seed_from_u64(seed);
    let model = Model::new(seed, Network::steady(one_way));
    let store = model.open(Store::builder("redis://model").timeout(SECOND)).unwrap();
    let limiter = store.limiter("all").limit("limit", line).leased().build().unwrap();
    let (limiter, began, mut tasks) = (AnyLimiter::from(limiter), Instant::now(), Vec::new());
    while began.elapsed() < 3 * SECOND {
        let limiter = limiter.clone();
        tasks.push(tokio::spawn(async move {
            let _ = limiter.acquire().await.unwrap();
            Instant::now()
        }));
        sleep(MS * random.random_range(0..3)).await;
    }
    let mut last = began;
    for (number, task) in tasks.into_iter().enumerate() {
        let at = task.await.unwrap();
        let early = last.saturating_duration_since(at);
        assert!(early <= MS, "seed {seed}, {line}, {one_way:?}: {number} is {early:?} before an earlier one");
        last = last.max(at);
    }
}

/// If leases were too slow, the oldest request in the queue moved to the store each time that a
/// later one had moved there, and left its booked permits to a request that had just come.
#[test]
fn a_slow_network_changes_no_order() {
    for line in LINES.into_iter().chain(["token_bucket 500/s burst 500", "fixed_window 500/s"]) {
        for (seed, one_way) in [1, 20, 25, 35, 45, 60].into_iter().enumerate() {
            run(one_by_one(seed as u64, line, one_way * MS));
        }
    }
}

/// One process requests twice the limit, one permit at a time. Half of the requests have a maximum
/// wait. All that are granted are granted in order of arrival.
async fn half_with_a_maximum_wait(line: &str, one_way: Duration, within: Duration) {
    let mut random = SmallRng::seed_from_u64(1);
    let model = Model::new(1, Network::steady(one_way));
    let store = model.open(Store::builder("redis://model").timeout(SECOND)).unwrap();
    let limiter = AnyLimiter::from(store.limiter("all").limit("limit", line).leased().build().unwrap());
    let (began, mut tasks) = (Instant::now(), Vec::new());
    while began.elapsed() < 4 * SECOND {
        let (limiter, request) = (limiter.clone(), AllRequest::new());
        let request = if random.random() { request.within(within) } else { request };
        tasks.push(tokio::spawn(
            async move { limiter.acquire_many(request).await.is_ok().then(Instant::now) },
        ));
        sleep(MS * random.random_range(0..3)).await;
    }
    let (mut last, mut granted) = (began, 0);
    for (number, task) in tasks.into_iter().enumerate() {
        let Some(at) = task.await.unwrap() else { continue };
        let early = last.saturating_duration_since(at);
        let text = format!("{line}, {one_way:?}, {within:?}");
        assert!(early <= MS, "{text}: {number} is {early:?} before an earlier one");
        (last, granted) = (at.max(last), granted + 1);
    }
    assert!(granted > 2_000);
}

/// One process requests 750 permits a second of 500, one at a time. A share of the requests has
/// maximum waits of 20 ms to 1.5 s. Returns how many are refused although a later one that may wait
/// for less is granted at least 10 ms before they could have been granted at the latest.
async fn refused_for_less_patient_ones(seed: u64, line: &str, share: f64) -> usize {
    let mut random = SmallRng::seed_from_u64(seed);
    let model = Model::new(seed, Network::steady(MS * 5 / 2));
    let store = model.open(Store::builder("redis://model").timeout(SECOND)).unwrap();
    let limiter = AnyLimiter::from(store.limiter("all").limit("limit", line).leased().build().unwrap());
    let (began, mut tasks, mut next) = (Instant::now(), Vec::new(), 0.0);
    while began.elapsed() < 5 * SECOND {
        let (limiter, within) = (limiter.clone(), MS * random.random_range(20..=1500));
        let has_maximum = random.random_bool(share);
        let request = AllRequest::new();
        let request = if has_maximum { request.within(within) } else { request };
        let latest = has_maximum.then(|| Instant::now() + within);
        let task =
            tokio::spawn(async move { limiter.acquire_many(request).await.is_ok().then(Instant::now) });
        tasks.push((latest, within, task));
        next += -random.random_range(1e-9_f64..1.0).ln() / 750.0;
        tokio::time::sleep_until(began + Duration::from_secs_f64(next)).await;
    }
    let mut requests = Vec::new();
    for (latest, within, task) in tasks {
        requests.push((latest, within, task.await.unwrap()));
    }
    let is_wrong =
        |(i, (latest, within, granted)): (usize, &(Option<Instant>, Duration, Option<Instant>))| {
            granted.is_none()
                && requests[i + 1..].iter().any(|(other, shorter, at)| {
                    other.is_some()
                        && shorter < within
                        && other <= latest
                        && at.is_some_and(|at| Some(at + 10 * MS) < *latest)
                })
        };
    requests.iter().enumerate().filter(|request| is_wrong(*request)).count()
}

/// While more permits were requested than there were, a request left its permits to the next lease,
/// also if it could wait for twice as long as most requests. Later requests got the permits.
#[test]
fn more_patient_requests_are_not_refused_for_later_ones() {
    for (share, seed) in [(1.0, 1), (1.0, 2), (0.5, 1), (0.5, 2), (0.5, 3)] {
        run(async move {
            let refused = refused_for_less_patient_ones(seed, "token_bucket 500/s burst 100", share).await;
            assert_eq!(refused, 0, "seed {seed}, {share} with a maximum wait");
        });
    }
}

/// A request with a maximum wait was left to the store because no permits were booked for it. A
/// lease that was on its way, or the next one, then served other requests: later ones before it, or
/// earlier ones behind it. On a slow network, that happened to one request in ten.
#[test]
fn requests_with_a_maximum_wait_keep_their_order_among_others() {
    for line in ["token_bucket 500/s burst 200", "token_bucket 500/s burst 50", "smooth_bursty 500/s"] {
        for (one_way, within) in [
            (MS / 2, 3 * SECOND),
            (8 * MS, 300 * MS),
            (8 * MS, 3 * SECOND),
            (20 * MS, 2 * SECOND),
            (20 * MS, 3 * SECOND),
        ] {
            run(half_with_a_maximum_wait(line, one_way, within));
        }
    }
}
