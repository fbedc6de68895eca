//! Leases of several processes over a model of a server, on paused time.

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Waker};
use std::time::Duration;

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use tidegate::{AllPermits, AllRefusal, AllRequest, AnyLimiter, Pause, QueueBounds, Refusal, Request};
use tidegate_redis::simulation::{Model, Network, run};
use tidegate_redis::{Store, StoreLimiter, WhileAway};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::{MS, assert_in_order, on_model};

/// The number of random courses of events.
const SEEDS: u64 = 1;

/// The life of a lease.
const LIFE: Duration = Duration::from_millis(200);

/// Processes that lease one limit.
struct Fleet {
    model: Model,
    stores: Vec<Store>,
    limiters: Vec<AnyLimiter>,
    began: Instant,
    grants: Arc<Mutex<Vec<(Duration, u64)>>>,
}

impl Fleet {
    fn new(seed: u64, network: Network, processes: u32, line: &str) -> Fleet {
        let model = Model::new(seed, network);
        let share = WhileAway::ShareOf(NonZeroU32::new(processes).unwrap());
        let open = |_| model.open(Store::builder("redis://model").while_away(share)).unwrap();
        let stores: Vec<Store> = (0..processes).map(open).collect();
        let limiter =
            |store: &Store| store.limiter("all").limit("calls", line).leased().build().unwrap().into();
        let limiters = stores.iter().map(limiter).collect();
        Fleet { model, stores, limiters, began: Instant::now(), grants: Arc::default() }
    }

    /// A log of the grants of one process.
    fn log(&self) -> impl Fn(u64) + Clone + Send + 'static {
        let (grants, began) = (self.grants.clone(), self.began);
        move |n| grants.lock().unwrap().push((began.elapsed(), n))
    }

    /// Starts tasks that acquire permits one after another, and log the grants.
    fn start_loops(&self, limiter: &AnyLimiter, tasks: u32) {
        for _ in 0..tasks {
            let (limiter, log) = (limiter.clone(), self.log());
            tokio::spawn(async move {
                while let Ok(permits) = limiter.acquire().await {
                    log(permits.permits().into());
                }
            });
        }
    }

    /// Returns a limiter of another process, which does not lease.
    fn other(&self, line: &str) -> StoreLimiter {
        let store = self.model.open(Store::builder("redis://model")).unwrap();
        store.limiter("all").limit("calls", line).build().unwrap()
    }

    fn granted(&self) -> u64 {
        self.grants.lock().unwrap().iter().map(|(_, n)| n).sum()
    }

    fn calls(&self) -> u64 {
        self.model.calls() - self.model.counting_calls()
    }

    /// Asserts that in each window `w` no more than `burst + rate * (w + LIFE)` permits were
    /// granted.
    fn assert_bound(&self, rate: f64, burst: f64) {
        let most = burst + rate * LIFE.as_secs_f64();
        assert_bucket(&self.grants.lock().unwrap(), rate, most);
    }
}

/// Asserts that a bucket of this rate and size grants all of them.
fn assert_bucket(grants: &[(Duration, u64)], rate: f64, most: f64) {
    let (mut level, mut last) = (most, Duration::ZERO);
    for (at, n) in grants {
        level = most.min(level + rate * (*at - last).as_secs_f64()) - *n as f64;
        assert!(level >= -1e-6, "too many at {at:?}: {level}");
        last = *at;
    }
}

#[test]
fn eight_processes_use_all_of_a_limit_in_few_trips() {
    run(async {
        let fleet = Fleet::new(1, Network::steady(MS), 8, "token_bucket 5000/s burst 500");
        for limiter in &fleet.limiters {
            for _ in 0..20 {
                let (limiter, log) = (limiter.clone(), fleet.log());
                tokio::spawn(async move {
                    loop {
                        let permits = limiter.acquire().await.unwrap();
                        log(permits.permits().into());
                    }
                });
            }
        }
        // In the first second, processes learn their demand.
        tokio::time::sleep(Duration::from_secs(1)).await;
        let (granted, calls) = (fleet.granted(), fleet.calls());
        tokio::time::sleep(Duration::from_secs(5)).await;
        let (granted, calls) = (fleet.granted() - granted, fleet.calls() - calls);
        assert!(granted >= 24_900, "{granted} of 25,000");
        assert!(calls * 50 <= granted, "{calls} calls for {granted} permits");
        fleet.assert_bound(5000.0, 500.0);
    });
}

/// Permits of a window that are too few for one more lease are not used. A lease had no more
/// permits than accrue over 100 ms, so a process that used a day's quota at its beginning asked the
/// store for each permit.
#[test]
fn a_limit_that_comes_in_slowly_is_leased_by_its_use() {
    for line in [
        "token_bucket 10/s burst 10000",
        "token_bucket 100000/d burst 100000",
        "leaky_bucket 10/s nodelay 9999 capacity 9999",
        "fixed_window 100000/d",
        "sliding_window 100000/h cells 60",
        "sliding_estimate 100000/h",
    ] {
        run(async move {
            let fleet = Fleet::new(4, Network::steady(MS), 2, line);
            for _ in 0..3_000 {
                for limiter in &fleet.limiters {
                    let _ = limiter.acquire().await.unwrap();
                }
                tokio::time::sleep(MS).await;
            }
            let calls = fleet.calls();
            assert!(calls <= 300, "{line}: {calls} calls for 6000 permits");
        });
    }
}

#[test]
fn a_window_as_long_as_a_lease_is_used() {
    let windows =
        ["sliding_window 1000/100ms cells 10", "sliding_estimate 1000/100ms", "sliding_log 1000/100ms"];
    for line in windows {
        for processes in [1, 4] {
            run(async {
                let fleet = Fleet::new(10, Network::steady(MS), processes, line);
                for limiter in fleet.limiters.iter().flat_map(|limiter| std::iter::repeat_n(limiter, 20)) {
                    let (limiter, log) = (limiter.clone(), fleet.log());
                    tokio::spawn(async move {
                        loop {
                            log(limiter.acquire().await.unwrap().permits().into());
                        }
                    });
                }
                tokio::time::sleep(Duration::from_secs(1)).await;
                let granted = fleet.granted();
                tokio::time::sleep(Duration::from_secs(3)).await;
                let granted = fleet.granted() - granted;
                // Except less than one lease of each window.
                assert!(granted >= 30_000 * 15 / 16, "{line}, {processes}: {granted}");
            });
        }
    }
}

#[test]
fn what_is_not_used_goes_back() {
    run(async {
        let fleet = Fleet::new(2, Network::steady(MS), 2, "token_bucket 1000/s burst 1000");
        let one = &fleet.limiters[0];
        for _ in 0..200 {
            let _ = one.acquire().await.unwrap();
        }
        let counts = fleet.stores[0].lease_counts();
        assert!(counts.outstanding() > 0, "{counts:?}");
        tokio::time::sleep(Duration::from_secs(2)).await;
        let counts = fleet.stores[0].lease_counts();
        assert_eq!((counts.outstanding(), counts.lost), (0, 0));
        assert_eq!(counts.taken, counts.used + counts.returned);
        // A limit that is full again (as new) has no key. The one key is that in which the store
        // counts clients.
        assert_eq!(fleet.model.keys(), 1);
        // A dropped limiter gives back at once.
        for _ in 0..100 {
            let _ = one.acquire().await.unwrap();
        }
        drop(fleet.limiters);
        tokio::time::sleep(3 * MS).await;
        assert_eq!(fleet.stores[0].lease_counts().outstanding(), 0);
    });
}

/// Also those of a booking in flight, which no request can get.
#[test]
fn a_dropped_limiter_gives_back_all_permits_on_lease() {
    let mut in_flight = 0;
    for after in 0..30 {
        in_flight += run(async {
            const LINE: &str = "fixed_window 1000/10s";
            let mut fleet = Fleet::new(2, Network::steady(5 * MS), 1, LINE);
            let (store, limiter) = (&fleet.stores[0], fleet.limiters.pop().unwrap());
            let mut used = 0;
            for _ in 0..100 + after {
                used += limiter.acquire().await.unwrap().permits();
                tokio::time::sleep(MS).await;
            }
            let taken = store.lease_counts().taken;
            drop(limiter);
            tokio::time::sleep(100 * MS).await;
            let counts = store.lease_counts();
            assert_eq!((counts.outstanding(), counts.lost), (0, 0));
            let limiter = store.limiter("all").limit("calls", LINE).build().unwrap();
            let left = limiter.status().await.unwrap().members[0].1.available;
            assert_eq!(left + u64::from(used), 1000, "dropped after {after} requests");
            u32::from(counts.taken > taken)
        });
    }
    assert!(in_flight > 5, "{in_flight}");
}

#[test]
fn refused_requests_make_no_trips() {
    run(async {
        let fleet = Fleet::new(3, Network::steady(MS), 8, "token_bucket 1000/s burst 100");
        let refused = Arc::new(Mutex::new((0_u64, Duration::ZERO)));
        for limiter in &fleet.limiters {
            for _ in 0..4 {
                let (limiter, log, refused) = (limiter.clone(), fleet.log(), refused.clone());
                tokio::spawn(async move {
                    loop {
                        match limiter.acquire_now(1).await {
                            Ok(permits) => log(permits.permits().into()),
                            Err(refusal) => {
                                let retry_after = refusal.retry_after().unwrap();
                                let mut refused = refused.lock().unwrap();
                                *refused = (refused.0 + 1, refused.1.max(retry_after));
                            }
                        }
                        tokio::time::sleep(10 * MS).await;
                    }
                });
            }
        }
        // In the first second, processes learn their demand.
        tokio::time::sleep(Duration::from_secs(1)).await;
        let (before, calls) = (fleet.granted(), fleet.calls());
        tokio::time::sleep(Duration::from_secs(9)).await;
        let (granted, calls) = (fleet.granted(), fleet.calls() - calls);
        let (refused, longest) = *refused.lock().unwrap();
        // Three requests for each permit.
        assert!(granted >= 9_950 && refused >= 20_000, "{granted} granted, {refused} refused");
        // A process requests 400 permits per second by 12 leases, and the store grants a third.
        assert!(calls * 9 <= granted - before, "{calls} calls");
        // The last permit of a booking that is made ahead.
        assert!(longest <= Duration::from_millis(300), "{longest:?}");
        fleet.assert_bound(1000.0, 100.0);
    });
}

#[test]
fn windows_grant_what_they_would_without_leases() {
    run(async {
        let fleet = Fleet::new(4, Network::steady(2 * MS), 4, "fixed_window 1000/s at_wall_clock 0s");
        for (i, limiter) in fleet.limiters.iter().enumerate() {
            for _ in 0..5 {
                let (limiter, log) = (limiter.clone(), fleet.log());
                tokio::spawn(async move {
                    loop {
                        let permits = limiter.acquire().await.unwrap();
                        log(permits.permits().into());
                        tokio::time::sleep(Duration::from_millis(i as u64 + 1)).await;
                    }
                });
            }
        }
        tokio::time::sleep(Duration::from_secs(10)).await;
        let mut windows = BTreeMap::new();
        for (at, n) in &*fleet.grants.lock().unwrap() {
            *windows.entry(at.as_secs()).or_insert(0) += n;
        }
        // A reply of the store may arrive in the window after the one in which it was granted.
        let mut sum = 0;
        for (window, n) in &windows {
            sum += n;
            assert!(sum <= 1000 * (window + 1), "{windows:?}");
        }
        assert!(fleet.granted() >= 9_950 && fleet.calls() * 10 <= fleet.granted());
    });
}

/// `n` concurrent requests.
fn at_once(limiter: &AnyLimiter, n: usize) -> Vec<JoinHandle<Result<AllPermits, AllRefusal>>> {
    (0..n).map(|_| tokio::spawn(limiter.acquire())).collect()
}

/// The most permits in a duration.
fn most_in(grants: &[(Duration, u64)], span: Duration) -> u64 {
    let (mut first, mut sum, mut most) = (0, 0, 0);
    for (at, n) in grants {
        sum += n;
        // Durations are closed at their beginning and open at their end.
        while grants[first].0 + span <= *at {
            sum -= grants[first].1;
            first += 1;
        }
        most = most.max(sum);
    }
    most
}

/// Random requests of a process, some of them dropped, with idle times between them.
async fn load(limiter: AnyLimiter, seed: u64, largest: u32, log: impl Fn(u64)) {
    let mut random = SmallRng::seed_from_u64(seed);
    loop {
        if random.random_ratio(1, 200) {
            // The process was stopped, or was idle.
            tokio::time::sleep(MS * random.random_range(1..1500)).await;
        }
        let n = if random.random_ratio(1, 8) { random.random_range(1..=largest) } else { 1 };
        let answer = match random.random_range(0..8) {
            0 | 1 => limiter.acquire_now(n).await,
            2 => limiter.acquire_now(Request::up_to(n)).await,
            3 => limiter.acquire_many(Request::permits(n).within(MS * random.random_range(0..300))).await,
            4 => {
                let request = Request::permits(n).priority(random.random_range(-1..=1));
                let wait = limiter.acquire_many(request);
                match tokio::time::timeout(MS * random.random_range(0..30), wait).await {
                    Ok(answer) => answer,
                    Err(_) => continue,
                }
            }
            _ => limiter.acquire_many(n).await,
        };
        match answer {
            Ok(permits) => log(permits.permits().into()),
            Err(_) => tokio::time::sleep(MS * random.random_range(0..10)).await,
        }
        if random.random_ratio(1, 4) {
            tokio::time::sleep(MS * random.random_range(0..20)).await;
        }
    }
}

/// Grants of eight processes under random loads over a network with faults. One process crashes.
fn grants(seed: u64, line: &'static str, largest: u32) -> Vec<(Duration, u64)> {
    run(async move {
        let mut random = SmallRng::seed_from_u64(seed);
        let latency = MS * random.random_range(0..15);
        let network = Network { jitter: 0.3, lost_answers: 0.01, ..Network::steady(latency.max(MS / 10)) };
        let model = Model::new(seed, network);
        let grants = Arc::new(Mutex::new(Vec::new()));
        let began = Instant::now();
        let mut tasks = Vec::new();
        for process in 0..8 {
            let store = model.open(Store::builder("redis://model")).unwrap();
            let limiter = store.limiter("all").limit("calls", line).leased();
            let limiter = AnyLimiter::from(limiter.build().unwrap());
            // Busy and idle processes.
            for task in 0..1 + process * 2 {
                let grants = grants.clone();
                let log = move |n| grants.lock().unwrap().push((began.elapsed(), n));
                let seed = seed * 1000 + process * 100 + task;
                let task = tokio::spawn(load(limiter.clone(), seed, largest, log));
                tasks.push((process, task));
            }
        }
        for fault in 0..6 {
            tokio::time::sleep(MS * random.random_range(100..1500)).await;
            let clients = [random.random_range(0..8), random.random_range(0..8)];
            match fault % 3 {
                0 => {
                    model.stop(true);
                    tokio::time::sleep(MS * random.random_range(1..400)).await;
                    model.stop(false);
                }
                1 => {
                    model.cut(clients, true);
                    tokio::time::sleep(MS * random.random_range(1..400)).await;
                    model.cut(clients, false);
                }
                // The permits that it gives back are lost with it.
                _ => {
                    model.cut([fault], true);
                    tasks
                        .iter()
                        .filter(|(process, _)| *process == fault as u64)
                        .for_each(|(_, task)| task.abort());
                }
            }
        }
        tokio::time::sleep(Duration::from_secs(2)).await;
        std::mem::take(&mut *grants.lock().unwrap())
    })
}

#[test]
fn no_span_has_more_grants_than_its_bound_and_the_life_of_a_lease() {
    let second = Duration::from_secs(1);
    for seed in 0..SEEDS {
        let buckets = [
            ("token_bucket 2000/s burst 300", 2000.0, 300.0),
            ("token_bucket 500/s burst 500", 500.0, 500.0),
            ("token_bucket 300/100ms burst 300 interval_refill", 3000.0, 600.0),
            ("smooth_bursty 1000/s max_burst 100ms", 1000.0, 100.0 + 2.0 * 100.0),
            ("leaky_bucket 1000/s nodelay 99", 1000.0, 100.0),
        ];
        for (line, rate, burst) in buckets {
            let grants = grants(seed, line, 20);
            let most = burst + rate * LIFE.as_secs_f64();
            assert_bucket(&grants, rate, most);
        }
        let windows = [
            ("sliding_log 800/s", 800, second - LIFE),
            ("sliding_window 1000/s cells 10", 1000, second - second / 10 - LIFE),
            ("sliding_estimate 1000/s", 2 * 1000 - 1, second - LIFE),
        ];
        for (line, limit, span) in windows {
            let grants = grants(seed, line, 20);
            let most = most_in(&grants, span);
            assert!(most <= limit, "{line}: {most}");
        }
        let grants = grants(seed, "fixed_window 1000/s at_wall_clock 0s", 20);
        let mut windows = BTreeMap::new();
        for (at, n) in &grants {
            // A grant by the store itself may belong to the previous window, because of its way
            // back. No call takes longer than 50 ms.
            if at.subsec_millis() > 50 {
                *windows.entry(at.as_secs()).or_insert(0) += n;
            }
        }
        assert!(windows.values().all(|n| *n <= 1000), "{windows:?}");
    }
}

/// The booking for requests of mixed costs had too few permits of one limit for the first of them,
/// and the permits of the other limit expired: a tenth of the limit was used, and less and less.
#[test]
fn requests_of_mixed_costs_at_several_limits_use_all_of_the_tightest() {
    for (line, other, most) in [
        ("token_bucket 300/s burst 300", "token_bucket 50000/s burst 50000", 20),
        ("token_bucket 300/s burst 300", "smooth_bursty 400/s", 20),
        ("sliding_window 300/s cells 10", "token_bucket 50000/s burst 50000", 5),
        ("fixed_window 300/s", "sliding_log 4000/s", 5),
    ] {
        on_model(async move |model| {
            let store = model.open(Store::builder("redis://model")).unwrap();
            let limiter = store.limiter("all").limit("a", line);
            let limiter = limiter.limit("b", other).leased();
            let limiter = AnyLimiter::from(limiter.build().unwrap());
            let sum = Arc::new(Mutex::new(0));
            for task in 0..100 {
                let (limiter, sum) = (limiter.clone(), sum.clone());
                tokio::spawn(async move {
                    let mut random = SmallRng::seed_from_u64(task);
                    loop {
                        let (a, b) = (random.random_range(1..=most), random.random_range(1..=20));
                        if limiter.acquire_many([("a", a), ("b", b)]).await.is_ok() {
                            *sum.lock().unwrap() += a;
                        }
                    }
                });
            }
            tokio::time::sleep(Duration::from_secs(20)).await;
            *sum.lock().unwrap() = 0;
            tokio::time::sleep(Duration::from_secs(40)).await;
            let used = f64::from(*sum.lock().unwrap()) / (40.0 * 300.0);
            // A request that is larger than the rest of a window waits for the next one.
            assert!(used > if line.contains("window") { 0.98 } else { 0.99 }, "{line}, {other}: {used}");
        });
    }
}

/// The part of a limit that a fleet of tasks uses that request up to `largest` permits each, and
/// the number of calls.
fn mixed_costs(line: &'static str, processes: u32, largest: u32, is_leased: bool) -> (f64, f64) {
    run(async move {
        let mut fleet = Fleet::new(7, Network::steady(MS / 2), processes, line);
        if !is_leased {
            let plain = |store: &Store| store.limiter("all").limit("calls", line).build();
            fleet.limiters = fleet.stores.iter().map(|store| plain(store).unwrap().into()).collect();
        }
        for task in 0..160 {
            let (limiter, log) = (fleet.limiters[task % fleet.limiters.len()].clone(), fleet.log());
            let mut random = SmallRng::seed_from_u64(task as u64);
            tokio::spawn(async move {
                loop {
                    let n = random.random_range(1..=largest);
                    log(limiter.acquire_many(n).await.unwrap().permits().into());
                }
            });
        }
        tokio::time::sleep(Duration::from_secs(6)).await;
        let (granted, calls) = (fleet.granted(), fleet.calls());
        tokio::time::sleep(Duration::from_secs(10)).await;
        let granted = (fleet.granted() - granted) as f64;
        (granted, (fleet.calls() - calls) as f64 / granted)
    })
}

/// The rest of a lease that was too small for the next request expired unused: of these limits 58
/// to 95 % were used.
#[test]
fn requests_of_mixed_costs_use_as_much_by_leases_as_without_them() {
    for (line, processes, largest) in [
        ("token_bucket 300/s burst 300", 1, 75),
        ("token_bucket 300/s burst 300", 8, 20),
        ("sliding_estimate 300/s", 1, 75),
        ("sliding_window 300/s cells 10", 8, 20),
        ("fixed_window 1000/s", 8, 20),
        ("token_bucket 600/s burst 600 interval_refill", 1, 1),
        ("token_bucket 600/s burst 600 interval_refill", 4, 20),
    ] {
        let (without, _) = mixed_costs(line, processes, largest, false);
        let (with, calls) = mixed_costs(line, processes, largest, true);
        assert!(with >= 0.99 * without, "{line}: {with} permits, and {without} without leases");
        assert!(calls < 0.15, "{line}: {calls} calls a permit");
    }
    // Leases that serve some requests are used.
    let (with, calls) = mixed_costs("token_bucket 2000/s burst 2000", 8, 5, true);
    assert!(with >= 0.99 * 10.0 * 2000.0 && calls < 0.03, "{with} permits, {calls} calls a permit");
}

/// The lease was once for the permits of 50 ms, which a bucket with fewer permits never books. The
/// store then decided all requests, in a different order than they came in.
#[test]
fn requests_that_wait_for_a_bucket_with_a_small_burst_are_served_by_leases() {
    run(async {
        let mut fleet = Fleet::new(1, Network::steady(MS / 2), 1, "token_bucket 1000/s burst 10");
        let limiter = fleet.limiters.remove(0);
        let waits = at_once(&limiter, 1000);
        for wait in waits {
            let _ = wait.await.unwrap().unwrap();
        }
        let counts = fleet.stores[0].lease_counts();
        assert!(counts.used >= 950, "{counts:?}");
    });
}

/// A lease of the long window was once for more requests than the bucket served in its time, so the
/// window was used up by permits that went back. Then all bookings were for the next window.
#[test]
fn requests_at_several_limits_are_served_as_fast_as_without_leases() {
    for (line, other, n, seconds) in [
        ("fixed_window 2000/min", "token_bucket 1000/s burst 10", 1000, 1),
        ("fixed_window 500/s", "sliding_log 400/s", 1200, 3),
        ("sliding_window 2000/min cells 6", "token_bucket 100/s burst 20", 500, 5),
    ] {
        run(async move {
            let model = Model::new(7, Network::steady(MS / 2));
            let store = model.open(Store::builder("redis://model")).unwrap();
            let limiter = store.limiter("all").limit("a", line);
            let limiter = limiter.limit("b", other).leased();
            let limiter = AnyLimiter::from(limiter.build().unwrap());
            let waits = at_once(&limiter, n);
            let began = Instant::now();
            for wait in waits {
                let _ = wait.await.unwrap().unwrap();
            }
            assert!(
                began.elapsed() <= Duration::from_millis(seconds * 1010),
                "{line}: {:?}",
                began.elapsed()
            );
        });
    }
}

/// One booking at a time took the permits that the bucket holds: 10 permits in 20 ms.
#[test]
fn a_small_bucket_of_a_far_server_is_used_by_leases() {
    for (line, latency) in [("token_bucket 1000/s burst 5", 6), ("token_bucket 1000/s burst 10", 10)] {
        run(async move {
            let network = Network::steady(MS * latency);
            let mut fleet = Fleet::new(1, network, 1, line);
            let limiter = fleet.limiters.remove(0);
            let _ = limiter.acquire().await.unwrap();
            let waits = at_once(&limiter, 3000);
            let began = Instant::now();
            for wait in waits {
                let _ = wait.await.unwrap().unwrap();
            }
            assert!(began.elapsed() <= Duration::from_millis(3100), "{line}: {:?}", began.elapsed());
            assert!(fleet.stores[0].lease_counts().used > 2500);
        });
    }
}

/// A request that is granted and never polled again was once counted as waiting in the queue, for
/// ever.
#[test]
fn attempts_beside_a_leaked_wait_find_the_permits_of_a_limit() {
    run(async {
        let mut fleet = Fleet::new(1, Network::steady(MS), 1, "token_bucket 1000/s burst 10");
        let limiter = fleet.limiters.remove(0);
        let waits = at_once(&limiter, 200);
        tokio::time::sleep(100 * MS).await;
        let mut leaked = Box::pin(limiter.acquire());
        let mut context = Context::from_waker(Waker::noop());
        assert!(leaked.as_mut().poll(&mut context).is_pending());
        std::mem::forget(leaked);
        for wait in waits {
            let _ = wait.await.unwrap().unwrap();
        }
        tokio::time::sleep(Duration::from_secs(5)).await;
        for _ in 0..100 {
            let _ = limiter.acquire_now(10).await.unwrap();
            tokio::time::sleep(100 * MS).await;
        }
    });
}

/// An attempt was once refused while a request waited for the reply to its lease.
#[test]
fn attempts_beside_waits_find_the_permits_of_a_limit_with_plenty() {
    for line in ["token_bucket 200000/s burst 200000", "fixed_window 100000000/d", "sliding_log 4000/s"] {
        run(async move {
            let mut fleet = Fleet::new(1, Network::steady(MS), 1, line);
            let limiter = fleet.limiters.remove(0);
            for _ in 0..20 {
                let ask = |number: u32| {
                    let limiter = limiter.clone();
                    tokio::spawn(async move {
                        match number % 3 {
                            0 => limiter.acquire().await,
                            1 => limiter.acquire_within(20 * MS).await,
                            _ => limiter.acquire_now(1).await,
                        }
                    })
                };
                let tasks: Vec<_> = (0..30).map(ask).collect();
                for task in tasks {
                    let _ = task.await.unwrap().unwrap();
                }
                tokio::time::sleep(500 * MS).await;
            }
        });
    }
}

/// The first of many requests find no lease and are decided by the store. Leases were once booked
/// before these requests were.
#[test]
fn requests_that_come_at_once_are_served_in_their_order() {
    for line in [
        "token_bucket 1000/s burst 100",
        "token_bucket 1000/s burst 10",
        "leaky_bucket 1000/s nodelay 20",
        "sliding_estimate 700/s",
        "fixed_window 700/s",
    ] {
        run(async move {
            let mut fleet = Fleet::new(1, Network::steady(MS / 2), 1, line);
            let limiter = fleet.limiters.remove(0);
            // The store is known to be near, and the process requests few permits.
            let _ = limiter.acquire().await.unwrap();
            tokio::time::sleep(Duration::from_secs(5)).await;
            assert_in_order(&limiter, 1000, line).await;
        });
    }
}

/// The bounds apply to requests in the queue to the store, and not to leases, which also stand in
/// it.
#[test]
fn a_full_line_does_not_refuse_leases() {
    on_model(async |model| {
        let store = model.open(Store::builder("redis://model")).unwrap();
        let limiter = store.limiter("all").limit("calls", "token_bucket 1000/s burst 10");
        let limiter = limiter.leased().queue_bounds(QueueBounds::UNBOUNDED.max_waiters(0)).build().unwrap();
        let limiter = AnyLimiter::from(limiter);
        let _ = limiter.acquire_now(10).await.unwrap();
        let answers = at_once(&limiter, 400);
        let mut granted = 0;
        for answer in answers {
            granted += usize::from(answer.await.unwrap().is_ok());
        }
        assert!(granted >= 350, "{granted}");
    });
}

/// Two scripts are sent to a server that knows neither. They were once sent in sequence, and all
/// requests that waited for the second were too late.
#[test]
fn a_burst_at_a_far_server_that_knows_no_script_is_served() {
    run(async {
        let mut fleet = Fleet::new(1, Network::steady(5 * MS), 1, "token_bucket 1000/s burst 100");
        let limiter = fleet.limiters.remove(0);
        let waits = at_once(&limiter, 200);
        for wait in waits {
            assert!(!wait.await.unwrap().unwrap().is_degraded());
        }
    });
}

/// A process that booked a lease ahead of the requests in the queue once had two and three times
/// the permits of another process, for ever, if leases were as large as the queue.
#[test]
fn equal_processes_have_equal_parts_by_leases_of_few_permits() {
    for line in ["token_bucket 300/s burst 300", "token_bucket 300/s burst 20", "smooth_bursty 300/s"] {
        run(async move {
            let mut network = Network::steady(MS / 2);
            network.jitter = 0.3;
            let fleet = Fleet::new(1, network, 8, line);
            let parts = Arc::new(Mutex::new([0; 8]));
            for (process, limiter) in fleet.limiters.iter().enumerate() {
                let _ = limiter.acquire().await.unwrap();
                for _ in 0..20 {
                    let (limiter, parts) = (limiter.clone(), parts.clone());
                    tokio::spawn(async move {
                        while limiter.acquire().await.is_ok() {
                            parts.lock().unwrap()[process] += 1;
                        }
                    });
                }
            }
            tokio::time::sleep(Duration::from_secs(10)).await;
            *parts.lock().unwrap() = [0; 8];
            let calls = fleet.calls();
            tokio::time::sleep(Duration::from_secs(20)).await;
            let (parts, calls) = (*parts.lock().unwrap(), fleet.calls() - calls);
            let sum: u64 = parts.iter().sum();
            assert!(sum >= 5_940 && calls * 10 < sum, "{line}: {sum} by {calls} calls");
            // A lease of 20 permits more or less.
            assert!(parts.iter().all(|part| part.abs_diff(sum / 8) <= sum / 80), "{line}: {parts:?}");
        });
    }
}

/// A process once counted 64 bookings as kept when all of their permits were used, and booked no
/// more.
#[test]
fn more_requests_wait_than_bookings_are_kept() {
    for line in ["token_bucket 100/s burst 10", "sliding_log 50/s", "fixed_window 5/s"] {
        run(async move {
            let mut fleet = Fleet::new(1, Network::steady(MS), 1, line);
            let limiter = fleet.limiters.remove(0);
            let mut waits = Vec::new();
            for _ in 0..2000 {
                waits.push(tokio::spawn(limiter.acquire()));
                tokio::time::sleep(5 * MS).await;
            }
            let all = async {
                for wait in waits {
                    drop(wait.await.unwrap().unwrap());
                }
            };
            let patience = Duration::from_secs(2000 / 5 + 1);
            assert!(tokio::time::timeout(patience, all).await.is_ok(), "{line}");
        });
    }
}

#[test]
fn a_request_at_several_limits_takes_of_all_leases_or_of_none() {
    run(async {
        let model = Model::new(5, Network::steady(MS));
        let store = model.open(Store::builder("redis://model")).unwrap();
        let limiter = store
            .limiter("all")
            .limit("calls", "token_bucket 1000/s burst 1000")
            .limit("tokens", "token_bucket 50000/s burst 100000")
            .leased();
        let limiter = AnyLimiter::from(limiter.build().unwrap());
        let (mut calls, mut tokens) = (0_u64, 0_u64);
        for i in 0..2_000_u32 {
            let n = 20 + i % 100;
            let _ = limiter.acquire_many([("tokens", n)]).await.unwrap();
            (calls, tokens) = (calls + 1, tokens + u64::from(n));
            if i % 3 == 0 {
                tokio::time::sleep(MS).await;
            }
        }
        let trips = store.counts().answered;
        assert!(trips * 20 <= calls, "{trips}");
        let counts = store.lease_counts();
        // The store served all requests that leases did not serve.
        assert!(counts.used > (calls + tokens) * 9 / 10, "{counts:?} of {calls} and {tokens}");
        // Unnamed limits cost the amount that the request sets for others.
        let only = limiter.acquire_many(AllRequest::new().cost("tokens", 10).cost_of_others(0)).await;
        assert!(only.is_ok());
        let refusal = limiter.acquire_now([("tonkes", 1)]).await.unwrap_err();
        assert!(matches!(refusal, AllRefusal::NoMember { .. }));
        let refusal = limiter.acquire_now([("tokens", 100_001)]).await.unwrap_err();
        assert_eq!(refusal.member(), Some("tokens"));
        assert!(matches!(refusal.refusal(), Some(Refusal::ExceedsLimit { limit: 100_000, .. })));
        let refusal = limiter.acquire_now([("tokens", 0), ("calls", 0)]).await.unwrap_err().refusal();
        assert_eq!(refusal, Some(Refusal::ZeroPermits));
        // After a while all permits are back.
        tokio::time::sleep(Duration::from_secs(3)).await;
        assert_eq!(store.lease_counts().outstanding(), 0);
        assert_eq!(model.keys(), 1);
    });
}

#[test]
fn what_is_on_lease_is_spent_while_the_store_is_away() {
    run(async {
        let fleet = Fleet::new(6, Network::steady(MS), 2, "token_bucket 1000/s burst 1000");
        let one = &fleet.limiters[0];
        for _ in 0..500 {
            let _ = one.acquire().await.unwrap();
            tokio::time::sleep(MS).await;
        }
        fleet.model.cut([0], true);
        let (counts, before) = (fleet.stores[0].lease_counts(), fleet.stores[0].counts().degraded);
        assert!(counts.outstanding() >= 10, "{counts:?}");
        for _ in 0..10 {
            assert!(one.acquire_now(1).await.is_ok());
        }
        assert_eq!(fleet.stores[0].counts().degraded, before);
        // Then by the share of this process, and the requests in the queue as well.
        let waits = (0..300).map(|_| tokio::spawn(one.acquire()));
        for wait in waits.collect::<Vec<_>>() {
            assert!(wait.await.unwrap().is_ok());
        }
        assert!(fleet.stores[0].counts().degraded > before);
        // The network is back, and no request hangs.
        fleet.model.cut([0], false);
        tokio::time::sleep(Duration::from_secs(8)).await;
        let degraded = fleet.stores[0].counts().degraded;
        for _ in 0..500 {
            let _ = one.acquire().await.unwrap();
            tokio::time::sleep(MS).await;
        }
        assert_eq!(fleet.stores[0].counts().degraded, degraded);
    });
}

#[test]
fn a_pause_and_an_end_take_the_lease_back() {
    run(async {
        let fleet = Fleet::new(7, Network::steady(MS), 2, "token_bucket 1000/s burst 1000");
        let [one, other] = &fleet.limiters[..] else { panic!("two") };
        let warm = |limiter: AnyLimiter| async move {
            for _ in 0..300 {
                let _ = limiter.acquire().await.unwrap();
                tokio::time::sleep(MS).await;
            }
        };
        warm(one.clone()).await;
        one.pause(Pause::lasting(Duration::from_secs(2)).keep_permits()).unwrap();
        let refusal = one.acquire_now(1).await.unwrap_err().refusal();
        assert!(matches!(refusal, Some(Refusal::Paused { .. })), "{refusal:?}");
        // A request in the queue is served after the pause.
        let began = Instant::now();
        let _ = one.acquire().await.unwrap();
        let took = began.elapsed();
        assert!(took > Duration::from_millis(1990) && took < Duration::from_millis(2020), "{took:?}");
        warm(one.clone()).await;
        assert!(fleet.stores[0].lease_counts().outstanding() > 0);
        // Closing refuses the requests in the queue, and gives all permits back.
        let waits: Vec<_> = (0..2000).map(|_| tokio::spawn(one.acquire())).collect();
        tokio::time::sleep(10 * MS).await;
        assert_eq!(one.close(), Ok(true));
        let mut closed = 0;
        for wait in waits {
            closed += u32::from(
                wait.await.unwrap().is_err_and(|refusal| refusal.refusal() == Some(Refusal::Closed)),
            );
        }
        assert!(closed > 500, "{closed}");
        assert_eq!(one.acquire_now(1).await.unwrap_err().refusal(), Some(Refusal::Closed));
        tokio::time::sleep(Duration::from_secs(3)).await;
        assert_eq!(fleet.stores[0].lease_counts().outstanding(), 0);
        warm(other.clone()).await;
    });
}

#[test]
fn dropped_waits_leave_no_trace() {
    run(async {
        const LINE: &str = "token_bucket 1000/s burst 100";
        let fleet = Fleet::new(8, Network::steady(MS), 1, LINE);
        let one = &fleet.limiters[0];
        for _ in 0..300 {
            let _ = one.acquire().await.unwrap();
        }
        // A storm of waits, all of them dropped.
        let waits: Vec<_> = (0..3000).map(|_| tokio::spawn(one.acquire())).collect();
        tokio::time::sleep(20 * MS).await;
        waits.iter().for_each(tokio::task::JoinHandle::abort);
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(fleet.stores[0].lease_counts().outstanding(), 0);
        let same = fleet.stores[0].limiter("all").limit("calls", LINE).build().unwrap();
        assert_eq!(same.status().await.unwrap().members[0].1.available, 100);
        let began = Instant::now();
        for _ in 0..1000 {
            let _ = one.acquire().await.unwrap();
        }
        // A full bucket, the rate, and the rest of a lease.
        assert!(began.elapsed() <= Duration::from_millis(930), "{:?}", began.elapsed());
    });
}

/// Equal shares of the requests of busy and idle processes are served, apart from the luck of their
/// leases.
#[test]
fn busy_and_idle_processes_are_served_alike() {
    run(async {
        // Over routes of one length, calls of one millisecond would arrive in the order of their
        // timers.
        let network = Network { jitter: 1.0, ..Network::steady(MS) };
        let fleet = Fleet::new(9, network, 16, "token_bucket 10000/s burst 1000");
        let served = Arc::new(Mutex::new([(0_u64, 0_u64); 16]));
        for (i, limiter) in fleet.limiters.iter().enumerate() {
            // By Zipf's law, three times the limit together.
            let rate = 30_000.0 / 3.38 / (i + 1) as f64;
            let (limiter, served) = (limiter.clone(), served.clone());
            tokio::spawn(async move {
                let mut random = SmallRng::seed_from_u64(i as u64);
                loop {
                    // The requests of a millisecond.
                    let mut due = rate / 1000.0;
                    while random.random_bool(due.clamp(0.0, 1.0)) {
                        let is_served = limiter.acquire_now(1).await.is_ok();
                        let mut served = served.lock().unwrap();
                        served[i].0 += 1;
                        served[i].1 += u64::from(is_served);
                        due -= 1.0;
                    }
                    tokio::time::sleep(MS).await;
                }
            });
        }
        tokio::time::sleep(Duration::from_secs(2)).await;
        *served.lock().unwrap() = Default::default();
        let calls = fleet.calls();
        tokio::time::sleep(Duration::from_secs(20)).await;
        let served = *served.lock().unwrap();
        let (asked, granted) = served.iter().fold((0, 0), |sum, of| (sum.0 + of.0, sum.1 + of.1));
        let shares: Vec<f64> =
            served.iter().map(|(asked, granted)| *granted as f64 / *asked as f64).collect();
        let calls = fleet.calls() - calls;
        assert!(granted >= 199_000 && calls * 20 <= granted, "{granted} granted, {calls} calls");
        let all = granted as f64 / asked as f64;
        // A lease is granted completely or not at all, and the idlest process asks for one every 58
        // ms.
        let deviation = (all * (1.0 - all) / (20.0 / 0.058)).sqrt();
        assert!(shares.iter().all(|share| (all - share).abs() < 4.0 * deviation), "{shares:.2?}");
        let mean = |shares: &[f64]| shares.iter().sum::<f64>() / 8.0;
        let (busy, idle) = (mean(&shares[..8]), mean(&shares[8..]));
        assert!((all - busy).abs() < 0.03 && (all - idle).abs() < 0.03, "{busy} and {idle} of {all}");
    });
}

/// Tasks request a permit within a time, again and again. A refused task sleeps for its
/// `retry_after`. Returns the longest time that a decision took, apart from the wait of its
/// request, and the time from which it is measured.
fn loops_within(fleet: &Fleet, tasks: usize, within: Duration) -> Arc<Mutex<(Duration, Instant)>> {
    let slowest = Arc::new(Mutex::new((Duration::ZERO, Instant::now())));
    for limiter in fleet.limiters.iter().flat_map(|limiter| std::iter::repeat_n(limiter, tasks)) {
        let (limiter, log, slowest) = (limiter.clone(), fleet.log(), slowest.clone());
        tokio::spawn(async move {
            loop {
                let began = Instant::now();
                let answer = limiter.acquire_within(within).await;
                let waited = answer.as_ref().map_or(Duration::ZERO, tidegate::AllPermits::waited);
                {
                    let mut slowest = slowest.lock().unwrap();
                    let took = began.max(slowest.1).elapsed().saturating_sub(waited);
                    slowest.0 = took.max(slowest.0);
                }
                match answer {
                    Ok(permits) => log(permits.permits().into()),
                    Err(refusal) => tokio::time::sleep(refusal.retry_after().unwrap().max(MS)).await,
                }
            }
        });
    }
    slowest
}

/// A request with a maximum wait stays in the queue while a lease is booked for it. It is refused
/// at once if the lease is refused, or is due too late.
#[test]
fn requests_in_line_are_refused_at_once_where_more_ask_than_can_wait() {
    for line in ["token_bucket 1000/s burst 100", "sliding_window 1000/s cells 10", "fixed_window 1000/s"] {
        run(async move {
            refuses_loops_at_once(Fleet::new(12, Network::steady(MS), 3, line), line).await;
        });
    }
}

/// Tasks that may wait for 300 ms use all of a limit of 1000/s by few calls, and are refused early.
async fn refuses_loops_at_once(fleet: Fleet, limits: &str) {
    let slowest = loops_within(&fleet, 200, 300 * MS);
    tokio::time::sleep(Duration::from_secs(2)).await;
    let (granted, calls) = (fleet.granted(), fleet.calls());
    tokio::time::sleep(Duration::from_secs(4)).await;
    let (granted, calls) = (fleet.granted() - granted, fleet.calls() - calls);
    let (slowest, _) = *slowest.lock().unwrap();
    // Permits that are too few for a lease are not used.
    assert!(granted >= 3_900 && calls * 25 <= granted, "{limits}: {granted} by {calls} calls");
    // A call, and a lease that is requested after another one.
    assert!(slowest <= 60 * MS, "{limits}: {slowest:?}");
}

/// As above, for two limits that are decided together.
#[test]
fn requests_in_line_for_two_limits_are_refused_at_once() {
    run(async move {
        let mut fleet = Fleet::new(13, Network::steady(MS), 3, "token_bucket 1000/s burst 100");
        let both = |store: &Store| {
            let limiter = store.limiter("all").limit("calls", "token_bucket 1000/s burst 100");
            let limiter = limiter.limit("more", "token_bucket 1500/s burst 100");
            limiter.leased().build().unwrap().into()
        };
        fleet.limiters = fleet.stores.iter().map(both).collect();
        refuses_loops_at_once(fleet, "two limits").await;
    });
}

/// A lease that a pause refuses is not requested again for each request in the queue.
#[test]
fn requests_in_line_are_refused_in_a_pause() {
    run(async move {
        let fleet = Fleet::new(14, Network::steady(MS), 2, "token_bucket 1000/s burst 100");
        let slowest = loops_within(&fleet, 20, 1000 * MS);
        tokio::time::sleep(Duration::from_secs(2)).await;
        fleet.limiters[0].pause(Pause::lasting(Duration::from_secs(3))).unwrap();
        slowest.lock().unwrap().1 = Instant::now();
        tokio::time::sleep(500 * MS).await;
        let (granted, calls) = (fleet.granted(), fleet.calls());
        tokio::time::sleep(Duration::from_secs(2)).await;
        let (in_pause, in_calls) = (fleet.granted() - granted, fleet.calls() - calls);
        tokio::time::sleep(Duration::from_secs(3)).await;
        let after = fleet.granted() - granted - in_pause;
        let (slowest, _) = *slowest.lock().unwrap();
        assert!(in_pause == 0 && in_calls <= 40, "{in_pause} by {in_calls} calls");
        assert!(after >= 2_200, "{after}");
        assert!(slowest <= 100 * MS, "{slowest:?}");
    });
}

/// A request in the queue of a process whose call for a lease gets no reply is decided by the
/// store, and then by the share of the process.
#[test]
fn a_request_waits_no_longer_than_allowed_over_leases_store_and_share() {
    run(async {
        let second = 1000 * MS;
        let model = Model::new(1, Network::steady(MS));
        let store = Store::builder("redis://model").while_away(WhileAway::ShareOf(NonZeroU32::MIN));
        let store = model.open(store.timeout(second)).unwrap();
        let limiter = store.limiter("all").limit("calls", "token_bucket 1/s burst 1");
        let limiter = AnyLimiter::from(limiter.leased().build().unwrap());
        let _ = limiter.acquire().await.unwrap();
        model.stop(true);
        let began = Instant::now();
        let wait = |limiter: &AnyLimiter| {
            let limiter = limiter.clone();
            tokio::spawn(async move { limiter.acquire_many(Request::permits(1).within(MS * 1500)).await })
        };
        let (first, late) = (wait(&limiter), wait(&limiter));
        let answers = [first.await.unwrap(), late.await.unwrap()];
        // The call without a reply takes a second. The share has one permit, and the next one a
        // second later.
        assert_eq!(answers.iter().filter(|answer| answer.is_ok()).count(), 1, "{answers:?}");
        assert!(began.elapsed() <= 1500 * MS, "{:?}", began.elapsed());
    });
}

/// To a request that names the only limit, a lease and the store reported the permits that it asks
/// of others.
#[test]
fn a_lease_reports_the_permits_that_the_store_reports() {
    run(async {
        let fleet = Fleet::new(1, Network::steady(MS), 1, "token_bucket 1000/s burst 1000");
        let [limiter] = &fleet.limiters[..] else { panic!("one limiter") };
        let named = || AllRequest::new().cost("calls", 8);
        for _ in 0..300 {
            assert_eq!(limiter.acquire_many(named()).await.unwrap().permits(), 8);
            assert_eq!(limiter.acquire_now(AllRequest::from(3).cost("calls", 8)).await.unwrap().permits(), 8);
            assert_eq!(limiter.acquire_now(5).await.unwrap().permits(), 5);
            tokio::time::sleep(20 * MS).await;
        }
        assert!(fleet.calls() < 450, "{} calls", fleet.calls());
    });
}

/// Leases of a window that is about as short as a round trip had ended when they came, or were
/// booked too slowly: loops that wait had few permits, or none.
#[test]
fn windows_of_a_few_round_trips_are_not_leased() {
    for (line, way, tasks) in [
        ("fixed_window 50/20ms", 12, 1),
        ("fixed_window 50/20ms", 12, 50),
        ("fixed_window 50/20ms", 9, 50),
        ("fixed_window 5/1ms", 1, 50),
        ("fixed_window 100/50ms", 20, 50),
        ("sliding_window 50/10ms cells 5", 5, 30),
        ("sliding_estimate 100/50ms", 12, 25),
        ("sliding_log 100/50ms", 12, 25),
        ("token_bucket 100/s burst 20", 110, 50),
        ("leaky_bucket 100/s capacity 1000", 110, 50),
    ] {
        let granted = |is_leased| {
            run(async move {
                let model = Model::new(1, Network::steady(Duration::from_millis(way)));
                let store = Store::builder("redis://model").timeout(Duration::from_secs(2));
                let limiter = model.open(store).unwrap().limiter("all").limit("limit", line);
                let limiter = if is_leased { limiter.leased() } else { limiter };
                let limiter = AnyLimiter::from(limiter.build().unwrap());
                let granted = Arc::<AtomicU64>::default();
                for _ in 0..tasks {
                    let (limiter, granted) = (limiter.clone(), granted.clone());
                    tokio::spawn(async move {
                        loop {
                            drop(limiter.acquire().await.unwrap());
                            granted.fetch_add(1, Ordering::Relaxed);
                        }
                    });
                }
                tokio::time::sleep(Duration::from_secs(1)).await;
                let before = granted.load(Ordering::Relaxed);
                tokio::time::sleep(Duration::from_secs(10)).await;
                granted.load(Ordering::Relaxed) - before
            })
        };
        let (leased, by_store) = (granted(true), granted(false));
        assert!(leased * 10 >= by_store * 9, "{line}, {way} ms, {tasks} tasks: {leased} of {by_store}");
    }
}

/// Requests that may wait for a minute were refused because a lease for requests that do not wait
/// had been refused, once they were most of the requests.
#[test]
fn requests_that_may_wait_for_long_are_not_refused_when_permits_are_short() {
    for requests in [60_u64, 200] {
        run(async move {
            let model = Model::new(1, Network::steady(Duration::from_millis(1)));
            let store = model.open(Store::builder("redis://model")).unwrap();
            let limiter = store.limiter("all").limit("limit", "token_bucket 50/s burst 50").leased();
            let limiter = AnyLimiter::from(limiter.build().unwrap());
            for _ in 0..50 {
                _ = limiter.acquire_now(1).await;
            }
            let began = Instant::now();
            let waits: Vec<_> = (0..requests)
                .map(|_| tokio::spawn(limiter.acquire_within(Duration::from_secs(60))))
                .collect();
            for wait in waits {
                _ = wait.await.unwrap().unwrap();
            }
            let longest = Duration::from_millis(requests * 20 + 200);
            assert!(began.elapsed() <= longest, "{requests}: {:?}", began.elapsed());
        });
    }
}

/// The end of a lease was that of the window in which the last booking lies. A lease of permits
/// that came back to the open window was spent in the next one, in addition to what that window
/// grants.
#[test]
fn a_lease_of_permits_that_came_back_ends_with_their_window() {
    for line in [
        "fixed_window 1000/s at_wall_clock 0s",
        "fixed_window 1000/s from_first_grant",
        "token_bucket 1000/s burst 1000 interval_refill",
    ] {
        run(async move {
            let fleet = Fleet::new(1, Network::steady(MS / 2), 3, line);
            let [holder, waiting, leasing] = &fleet.limiters[..] else { panic!("three processes") };
            let second = Duration::from_secs(1);
            // The windows begin with whole seconds, and one begins here.
            drop(holder.acquire().await.unwrap());
            let began = Instant::now();
            let log = fleet.log();
            let ask = || {
                let granted = leasing.non_blocking().try_acquire().is_ok();
                granted.then(|| log(1));
                granted
            };
            let ask_until = async |end: Duration| {
                while began.elapsed() < end {
                    ask();
                    tokio::time::sleep(2 * MS).await;
                }
            };
            ask_until(2 * second + 10 * MS).await;
            let mut reserved = holder.non_blocking().reserve(900).unwrap();
            (&mut reserved).await.unwrap();
            // Its lease goes back before the window is used up.
            tokio::time::sleep_until(began + 2 * second + 500 * MS).await;
            let waits: Vec<_> = (0..40).map(|_| tokio::spawn(waiting.acquire_many(50))).collect();
            tokio::time::sleep_until(began + 2 * second + 850 * MS).await;
            reserved.settle(0).unwrap();
            ask_until(3 * second - 10 * MS).await;
            tokio::time::sleep_until(began + 3 * second + 50 * MS).await;
            fleet.grants.lock().unwrap().clear();
            while ask() {}
            let of_lease = fleet.granted();
            tokio::time::sleep_until(began + 4 * second - 10 * MS).await;
            let by_waits = 50 * waits.iter().filter(|wait| wait.is_finished()).count() as u64;
            assert!(by_waits >= 1000, "{line}: {by_waits}");
            assert_eq!(of_lease, 0, "{line}: {by_waits} waits");
        });
    }
}

/// Waiting requests kept a lease that was booked far ahead after another process had reset the
/// limit: they got nothing until the lease was due.
#[test]
fn a_lease_far_ahead_is_booked_anew_after_a_reset() {
    for (line, rate) in [
        ("token_bucket 500/s burst 500", 500_u32),
        ("token_bucket 20/s burst 40", 20),
        ("leaky_bucket 500/s nodelay 20", 500),
        ("sliding_window 500/s cells 10", 500),
        ("sliding_estimate 500/s", 500),
        ("sliding_log 500/s", 500),
        ("fixed_window 500/s", 500),
    ] {
        run(async move {
            let second = Duration::from_secs(1);
            let mut fleet = Fleet::new(1, Network::steady(MS / 2), 1, line);
            let other = fleet.other(line);
            let limiter = fleet.limiters.remove(0);
            fleet.start_loops(&limiter, 60);
            tokio::time::sleep(2 * second).await;
            let ahead = AnyLimiter::from(other.clone());
            let ahead: Vec<_> = (0..60 * rate / 20).map(|_| tokio::spawn(ahead.acquire_many(20))).collect();
            tokio::time::sleep(5 * second).await;
            let granted = fleet.granted();
            tokio::time::sleep(2 * second).await;
            let granted = fleet.granted() - granted;
            assert!(granted <= u64::from(rate) / 10, "{line}: {granted}, and the next are due in a minute");
            ahead.iter().for_each(JoinHandle::abort);
            other.reset().await.unwrap();
            tokio::time::sleep(3 * second).await;
            let granted = fleet.granted();
            tokio::time::sleep(10 * second).await;
            let granted = fleet.granted() - granted;
            let all = u64::from(rate) * 10;
            assert!((all * 95 / 100..=all * 105 / 100).contains(&granted), "{line}: {granted} in 10 s");
        });
    }
}

/// A lease far ahead decided requests while the store was away, instead of `while_away`. Requests
/// that do not wait were refused, and new waits stood behind the lease. The lease of dropped waits
/// stayed as well.
#[test]
fn a_lease_far_ahead_decides_nothing_while_the_store_is_away() {
    for drops in [true, false] {
        on_model(async |model| {
            let line = "token_bucket 300/s burst 300";
            let open = |away| model.open(Store::builder("redis://model").while_away(away)).unwrap();
            let limiter = |store: &Store| store.limiter("all").limit("calls", line);
            let store = open(WhileAway::Open);
            let leased = AnyLimiter::from(limiter(&store).leased().build().unwrap());
            let other = AnyLimiter::from(limiter(&open(WhileAway::Wait)).build().unwrap()).non_blocking();
            let loops: Vec<_> = (0..40)
                .map(|_| {
                    let limiter = leased.clone();
                    tokio::spawn(async move { while limiter.acquire().await.is_ok() {} })
                })
                .collect();
            tokio::time::sleep(2000 * MS).await;
            other.debit(9000).unwrap();
            tokio::time::sleep(2000 * MS).await;
            assert_eq!(leased.fetch_status().await.unwrap().waiting, 40);
            if drops {
                loops.iter().for_each(JoinHandle::abort);
                tokio::time::sleep(1000 * MS).await;
                assert_eq!(store.lease_counts().outstanding(), 0);
            }
            model.stop(true);
            // The first calls find out that the store is away.
            tokio::time::sleep(3000 * MS).await;
            _ = leased.acquire_now(1).await;
            for _ in 0..10 {
                assert!(leased.acquire_now(1).await.unwrap().is_degraded(), "{drops}");
                let wait = tokio::time::timeout(1000 * MS, leased.acquire());
                assert!(wait.await.expect("no wait").unwrap().is_degraded(), "{drops}");
            }
            loops.iter().for_each(JoinHandle::abort);
        });
    }
}

/// A process that had not leased yet sent its first requests to the store, where they were booked
/// far ahead. After a reset by another process, leases served all later requests, and the first
/// requests waited on.
#[test]
fn requests_far_ahead_at_the_store_move_up_with_the_leases() {
    for first in [1, 20, 50, 300] {
        run(async move {
            let line = "token_bucket 200/s burst 100";
            let mut fleet = Fleet::new(1, Network::steady(MS / 2), 1, line);
            let other = fleet.other(line);
            AnyLimiter::from(other.clone()).non_blocking().debit(8_000).unwrap();
            let limiter = fleet.limiters.remove(0);
            let firsts = at_once(&limiter, first);
            tokio::time::sleep(2000 * MS).await;
            other.reset().await.unwrap();
            fleet.start_loops(&limiter, 50);
            tokio::time::sleep(12_000 * MS).await;
            let served = firsts.iter().filter(|first| first.is_finished()).count();
            assert_eq!(served, first, "after {} others", fleet.granted());
        });
    }
}

/// Requests whose tasks ran long after the end of their maximum wait had too little time left for a
/// call, and were decided as if the store were away.
#[test]
fn leased_requests_that_are_polled_late_are_decided_by_the_store() {
    for (line, within, requests) in
        [("sliding_log 100/500ms", 1358, 388), ("fixed_window 100/500ms", 1472, 553)]
    {
        run(async move {
            let model = Model::new(1, Network::steady(MS / 2));
            let store = Store::builder("redis://model").timeout(2000 * MS).while_away(WhileAway::Open);
            let store = model.open(store).unwrap();
            let limiter = store.limiter("all").limit("calls", line).leased().build().unwrap();
            let limiter = AnyLimiter::from(limiter);
            for _ in 0..20 {
                let _ = limiter.acquire_now([]).await.unwrap();
            }
            tokio::time::sleep(1200 * MS).await;
            let mut waits: Vec<_> =
                (0..requests).map(|_| tokio_test::task::spawn(limiter.acquire_within(within * MS))).collect();
            waits.retain_mut(|wait| wait.poll().is_pending());
            tokio::time::sleep((within + 300) * MS).await;
            for _ in 0..50 {
                waits.retain_mut(|wait| wait.poll().is_pending());
                tokio::time::sleep(MS).await;
            }
            assert_eq!((waits.len(), store.counts().degraded), (0, 0), "{line}");
        });
    }
}
