//! The permits that several processes grant together while their store is away, on paused time.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use tidegate::{AllRefusal, AllRequest, AnyLimiter, Pause, QueueBounds, Refusal};
use tidegate_redis::simulation::{Model, Network, run};
use tidegate_redis::{Store, StoreKeyedLimiter, WhileAway};
use tokio::time::Instant;

use crate::{MS, SECOND, on_model, one_of_two};

const CLIENTS: usize = 8;

/// Eight processes that share one limit, and the times of their grants.
struct Fleet {
    model: Model,
    stores: Vec<Store>,
    line: &'static str,
    limiters: Vec<AnyLimiter>,
    /// The limits of one key, for requests that keep no limiter of it.
    keys: Option<Vec<StoreKeyedLimiter>>,
    /// The time at which the server's clock was at a whole minute.
    created: Instant,
    began: Instant,
    grants: Vec<Duration>,
}

impl Fleet {
    async fn new(line: &'static str) -> Fleet {
        let created = Instant::now();
        let model = Model::new(7, Network { service: Duration::from_micros(1), ..Network::steady(MS) });
        let open = |_| model.open(Store::builder("redis://model").while_away(WhileAway::Share)).unwrap();
        let stores: Vec<Store> = (0..CLIENTS).map(open).collect();
        let limiter = |store: &Store| {
            let limiter = store.limiter("all").limit("calls", line);
            AnyLimiter::from(limiter.build().unwrap())
        };
        let limiters = stores.iter().map(limiter).collect();
        for store in &stores {
            // A process is counted from its first request on.
            let other = store.limiter("other").limit("calls", "fixed_window 8/d");
            let _ = AnyLimiter::from(other.build().unwrap()).acquire_now([]).await.unwrap();
        }
        let began = Instant::now();
        let keys = None;
        let fleet = Fleet { model, stores, line, limiters, keys, created, began, grants: Vec::new() };
        while fleet.stores.iter().any(|store| store.clients().is_none_or(|n| n.get() != 8)) {
            tokio::time::sleep(MS).await;
        }
        fleet
    }

    /// Makes each request of [`ask`](Fleet::ask) name its key.
    fn by_key(mut self) -> Fleet {
        let keys = |store: &Store| store.keyed("users").limit("calls", self.line).build().unwrap();
        self.keys = Some(self.stores.iter().map(keys).collect());
        self
    }

    /// A request of one process.
    async fn ask(&mut self, client: usize) -> bool {
        let answer = match &self.keys {
            Some(keys) => keys[client].acquire_now("alice", []),
            None => self.limiters[client].acquire_now([]),
        };
        let is_granted = answer.await.is_ok();
        if is_granted {
            self.grants.push(self.began.elapsed());
        }
        is_granted
    }

    /// Requests by each process in turn, until none of them gets a permit.
    async fn take_all(&mut self) {
        loop {
            let before = self.grants.len();
            for client in 0..CLIENTS {
                self.ask(client).await;
            }
            if self.grants.len() == before {
                return;
            }
        }
    }

    async fn until_all_answer(&mut self) {
        while self.stores.iter().any(Store::is_away) {
            for client in 0..CLIENTS {
                self.ask(client).await;
            }
            tokio::time::sleep(MS).await;
        }
    }

    /// The most grants in a duration of this length.
    fn most_in(&self, length: Duration) -> usize {
        let (mut first, mut most) = (0, 0);
        for (last, at) in self.grants.iter().enumerate() {
            while *at - self.grants[first] >= length {
                first += 1;
            }
            most = most.max(last + 1 - first);
        }
        most
    }

    /// The grants of each window from the start.
    fn windows(&self, length: Duration) -> Vec<usize> {
        let mut windows = BTreeMap::<u128, usize>::new();
        for at in &self.grants {
            *windows.entry(at.as_nanos() / length.as_nanos()).or_default() += 1;
        }
        windows.into_values().collect()
    }
}

const WINDOWS: [&str; 4] = [
    "fixed_window 320/min",
    "sliding_window 320/min cells 6",
    "sliding_log 320/min",
    "sliding_estimate 320/min",
];
const MINUTE: Duration = Duration::from_secs(60);

/// The worst case: all processes except one learned early that nearly all permits are left, and the
/// last process took them all. The store comes back with its state, in the same window.
#[test]
fn an_outage_within_a_window_grants_an_eighth_more() {
    for line in WINDOWS
        .into_iter()
        .chain(["token_bucket 320/h burst 320", "smooth_bursty 1/h max_burst 319h start_full"])
    {
        run(async {
            for taken in [0, 160, 320] {
                let mut fleet = Fleet::new(line).await;
                for client in 0..CLIENTS {
                    fleet.ask(client).await;
                }
                for _ in CLIENTS..taken {
                    fleet.ask(0).await;
                }
                fleet.model.stop(true);
                fleet.take_all().await;
                let shares = fleet.grants.len() - taken.max(8);
                assert!(shares >= 32, "{}: {shares} of shares", fleet.line);
                assert!(shares <= 320 / 8, "{}: {shares} of shares", fleet.line);
                fleet.model.stop(false);
                fleet.until_all_answer().await;
                fleet.take_all().await;
                assert!(fleet.began.elapsed() < MINUTE);
                let all = fleet.grants.len();
                assert!(all <= 360, "{}: {all}", fleet.line);
            }
        });
    }
}

/// A second outage in the window of the first one: its shares had the permits of a later window.
#[test]
fn an_outage_behind_another_one_grants_no_more_than_one() {
    for line in WINDOWS.into_iter().chain(["token_bucket 320/min burst 320"]) {
        for gap in [1, 10, 30, 50, 59, 70] {
            run(async move {
                let mut fleet = Fleet::new(line).await;
                for client in 0..CLIENTS {
                    fleet.ask(client).await;
                }
                fleet.model.stop(true);
                fleet.take_all().await;
                fleet.model.stop(false);
                fleet.until_all_answer().await;
                tokio::time::sleep(gap * Duration::from_secs(1)).await;
                // After a further sixth of the window the store has granted its limit.
                let second = fleet.began.elapsed();
                fleet.take_all().await;
                fleet.model.stop(true);
                while fleet.began.elapsed() < second + MINUTE * 5 / 6 {
                    fleet.take_all().await;
                    tokio::time::sleep(1000 * MS).await;
                }
                fleet.grants.retain(|at| *at >= second);
                let all = fleet.grants.len();
                // A fixed window may end meanwhile, and a bucket and its shares refill. So does an
                // estimate in its next window, if most of the first one is left when it ends.
                let next = (second + MINUTE * 5 / 6).saturating_sub(MINUTE).as_millis();
                let refilled = usize::try_from(320 * next / MINUTE.as_millis()).unwrap();
                let most = match line.split_once(' ').unwrap().0 {
                    "fixed_window" => 360 + 320,
                    "token_bucket" => 360 + 320 * 5 / 6,
                    "sliding_estimate" if gap == 50 => 360 + refilled,
                    "sliding_estimate" => 360 + 40,
                    _ => 360,
                };
                assert!(all <= most, "{line}, {gap} s: {all}");
            });
        }
    }
}

/// All processes continue to ask, so none of them counts fewer. A process that returned early
/// counted only those that had asked in the period of the outage.
#[test]
fn an_outage_takes_no_process_out_of_the_count() {
    for outage in [4000, 5000, 6000, 7000, 12_000] {
        for phase in 0..6 {
            run(async move {
                let fleet = Fleet::new("fixed_window 320/min").await;
                for limiter in &fleet.limiters {
                    let limiter = limiter.clone();
                    tokio::spawn(async move {
                        loop {
                            _ = limiter.acquire_now([]).await;
                            tokio::time::sleep(120 * MS).await;
                        }
                    });
                }
                tokio::time::sleep(20_000 * MS + phase * 1000 * MS).await;
                fleet.model.stop(true);
                tokio::time::sleep(outage * MS).await;
                fleet.model.stop(false);
                for _ in 0..600 {
                    let counts: Vec<_> =
                        fleet.stores.iter().map(|store| store.clients().unwrap().get()).collect();
                    assert!(counts.iter().all(|n| *n >= 8), "{outage} ms, phase {phase}: {counts:?}");
                    tokio::time::sleep(50 * MS).await;
                }
            });
        }
    }
}

/// Permits that a process granted of its share count when another number of processes is seen.
#[test]
fn processes_that_come_and_go_between_outages_renew_no_share() {
    for line in ["fixed_window 100/h", "sliding_window 100/h cells 6", "token_bucket 1/10h burst 100"] {
        run(async {
            let model = Model::new(7, Network { service: Duration::from_micros(1), ..Network::steady(MS) });
            // Each with its limiter, the permits of its share, and the maximum of these.
            let mut fleet: Vec<(Store, AnyLimiter, u32, u32)> = Vec::new();
            // A process that ended counts for half a minute more.
            for (processes, seen) in [(2, 2), (3, 3), (1, 3), (1, 1), (2, 2), (4, 4), (2, 2)] {
                fleet.truncate(processes);
                while fleet.len() < processes {
                    let builder = Store::builder("redis://model").while_away(WhileAway::Share);
                    let store = model.open(builder).unwrap();
                    let limit = store.limiter("all").limit("calls", line);
                    fleet.push((store.clone(), limit.build().unwrap().into(), 0, 0));
                }
                while fleet.iter().any(|(store, ..)| store.clients().is_none_or(|n| n.get() != seen)) {
                    for (_, limiter, ..) in &fleet {
                        _ = limiter.acquire_now([]).await;
                    }
                    tokio::time::sleep(Duration::from_secs(1)).await;
                }
                model.stop(true);
                for (_, limiter, granted, most) in &mut fleet {
                    *most = (*most).max(100 / (seen * seen));
                    for _ in 0..200 {
                        *granted += u32::from(limiter.acquire_now([]).await.is_ok_and(|p| p.is_degraded()));
                    }
                    assert_eq!(granted, most, "{line}, {seen} processes");
                }
                model.stop(false);
            }
        });
    }
}

/// The permits of booked waits were granted in addition to a whole share, and requests that waited
/// for a share continued to wait for it while the store was back: over many windows, the limit was
/// granted twice.
#[test]
fn requests_that_wait_get_the_limit_once_in_an_outage_and_after_it() {
    // The most permits in a second, and in a second of an outage: an eighth more.
    for ((line, most, most_away), tasks) in [
        ("token_bucket 80/s burst 8", 80 + 8, 99),
        ("leaky_bucket 80/s nodelay 7 capacity 1000", 80 + 8, 99),
        ("smooth_bursty 80/s max_burst 100ms", 80 + 8 + 1, 99),
        ("sliding_log 80/s", 80, 90),
        ("sliding_window 80/s cells 10", 80, 90),
        ("fixed_window 80/s", 80, 90),
    ]
    .into_iter()
    .flat_map(|row| [10, 15, 40, 100].map(|tasks| (row, tasks)))
    {
        run(async {
            let mut fleet = Fleet::new(line).await;
            let grants = Arc::new(Mutex::new(Vec::new()));
            // They wait for a tenth of a second for each task of a process.
            for limiter in fleet.limiters.iter().flat_map(|limiter| vec![limiter; tasks]) {
                let (limiter, grants) = (limiter.clone(), grants.clone());
                tokio::spawn(async move {
                    while limiter.acquire().await.is_ok() {
                        grants.lock().unwrap().push(Instant::now());
                    }
                });
            }
            let (second, model, stores) = (Duration::from_secs(1), fleet.model.clone(), fleet.stores.clone());
            // The most permits in a second, over a period from now on.
            let mut most_in = async |seconds: u32| {
                grants.lock().unwrap().clear();
                tokio::time::sleep(second * seconds).await;
                fleet.grants = grants.lock().unwrap().iter().map(|at| *at - fleet.created).collect();
                match line {
                    // It may grant twice its limit around the end of a window.
                    "fixed_window 80/s" => fleet.windows(second).into_iter().max().unwrap(),
                    // A part of one of its cells may be over.
                    "sliding_window 80/s cells 10" => fleet.most_in(second * 9 / 10),
                    // A grant is seen up to a round trip after its booked time.
                    _ => fleet.most_in(second - 2 * MS),
                }
            };
            assert!(most_in(4).await <= most, "{line}, {tasks}");
            model.stop(true);
            let away = most_in(10).await;
            assert!((70..=most_away).contains(&away), "{line}, {tasks}: {away} while away");
            model.stop(false);
            // Each process asks for the store once in up to six seconds.
            let back = most_in(7).await;
            assert!(back <= most + most_away, "{line}, {tasks}: {back} on the return");
            assert!(!stores.iter().any(Store::is_away), "{line}");
            let after = most_in(4).await;
            assert!((70..=most).contains(&after), "{line}, {tasks}: {after} afterwards");
        });
    }
}

/// Bug: a process whose last requests were leased did not know how far ahead the store was booked
/// when it went away. Its share began beside the bookings of other processes.
#[test]
fn a_share_begins_behind_the_bookings_of_a_store_also_with_leases() {
    for is_leased in [false, true] {
        on_model(async |model| {
            let store = one_of_two(&model);
            let limit = store.limiter("all").limit("calls", "token_bucket 100/s burst 100");
            let limiter = if is_leased { limit.leased() } else { limit }.build().unwrap();
            for _ in 0..300 {
                let _ = AnyLimiter::from(limiter.clone()).acquire().await.unwrap();
            }
            assert_eq!(store.lease_counts().used > 100, is_leased);
            // The leases end, and the bucket fills.
            tokio::time::sleep(2 * SECOND).await;
            limiter.debit(1100).await.unwrap();
            let limiter = AnyLimiter::from(limiter);
            let waits: Vec<_> = (0..30).map(|_| tokio::spawn(limiter.acquire())).collect();
            tokio::time::sleep(9500 * MS).await;
            model.stop(true);
            for wait in waits {
                let permits = wait.await.unwrap().unwrap();
                assert!(!permits.is_degraded() && permits.waited() >= 9 * SECOND, "{is_leased}");
            }
            // Other processes may have bookings for up to ten more seconds.
            for _ in 0..500 {
                let refusal = limiter.acquire_now(1).await.unwrap_err();
                assert!(refusal.is_degraded(), "leased: {is_leased}");
                tokio::time::sleep(10 * MS).await;
            }
        });
    }
}

/// A share that counts as of the end of dropped waits would grant nothing for that long.
#[test]
fn dropped_waits_shut_no_share() {
    run(async {
        let model = Model::new(3, Network::steady(MS));
        let store = one_of_two(&model);
        let limit = store.limiter("all").limit("calls", "token_bucket 10/s burst 10");
        let limiter = AnyLimiter::from(limit.build().unwrap());
        let mut waits: Vec<_> = (0..20).map(|_| tokio::spawn(limiter.acquire_many(10))).collect();
        tokio::time::sleep(100 * MS).await;
        waits.drain(3..).for_each(|wait| wait.abort());
        tokio::time::sleep(100 * MS).await;
        model.stop(true);
        for wait in waits {
            assert!(!wait.await.unwrap().unwrap().is_degraded());
        }
        // The last of them came after two seconds.
        let permits = tokio::time::timeout(Duration::from_secs(3), limiter.acquire()).await.unwrap();
        assert!(permits.unwrap().is_degraded());
    });
}

/// Requests that return to the store's queue from a share keep their order, and report the time
/// that they waited since their arrival.
#[test]
fn requests_that_return_from_a_share_stand_before_newcomers() {
    run(async {
        let model = Model::new(3, Network::steady(MS));
        let share = WhileAway::ShareOf(std::num::NonZeroU32::new(4).unwrap());
        let store = model.open(Store::builder("redis://model").while_away(share)).unwrap();
        let limit = store.limiter("all").limit("calls", "token_bucket 4/s burst 1");
        let limiter = AnyLimiter::from(limit.build().unwrap());
        drop(limiter.acquire().await.unwrap());
        model.stop(true);
        let granted = Arc::new(Mutex::new(Vec::new()));
        let ask = |number: usize| {
            let (wait, granted) = (limiter.acquire(), granted.clone());
            let asked = Instant::now();
            tokio::spawn(async move {
                let permits = wait.await.unwrap();
                let (took, waited) = (asked.elapsed(), permits.waited());
                // The round trips of its call are not part of the wait.
                assert!(permits.is_degraded() || took - waited <= 5 * MS, "{number}: {waited:?} of {took:?}");
                granted.lock().unwrap().push((number, permits.is_degraded()));
            });
        };
        (0..20).for_each(ask);
        while !store.is_away() {
            drop(limiter.acquire_now(1).await);
        }
        tokio::time::sleep(2 * Duration::from_secs(1)).await;
        model.stop(false);
        while store.is_away() {
            tokio::time::sleep(MS).await;
        }
        (20..30).for_each(ask);
        tokio::time::sleep(Duration::from_secs(10)).await;
        let granted = granted.lock().unwrap();
        let by_store: Vec<usize> =
            granted.iter().filter(|(_, is_degraded)| !is_degraded).map(|(number, _)| *number).collect();
        assert!(by_store.len() >= 20 && granted.len() == 30, "{granted:?}");
        // The request that returns first is sent at once.
        assert!(by_store[1..].is_sorted() && by_store[0] < 20, "{by_store:?}");
    });
}

/// The first requests in the queue, for which permits were booked, once went to the share, and the
/// last ones took these permits.
#[test]
fn the_first_requests_in_line_get_what_is_booked_when_the_store_goes_away() {
    run(async {
        let model = Model::new(3, Network::steady(MS));
        let share = WhileAway::ShareOf(std::num::NonZeroU32::MIN);
        let store = model.open(Store::builder("redis://model").while_away(share)).unwrap();
        let limit = store.limiter("all").limit("calls", "token_bucket 100/s burst 10");
        let limiter = AnyLimiter::from(limit.leased().build().unwrap());
        let _ = limiter.acquire().await.unwrap();
        let granted = Arc::new(Mutex::new((Vec::new(), Vec::new())));
        for number in 0..800 {
            let (wait, granted) = (limiter.acquire(), granted.clone());
            tokio::spawn(async move {
                let permits = wait.await.unwrap();
                let (by_lease, by_share) = &mut *granted.lock().unwrap();
                if permits.is_degraded() { by_share.push(number) } else { by_lease.push(number) }
            });
            tokio::time::sleep(MS).await;
        }
        model.stop(true);
        tokio::time::sleep(12 * Duration::from_secs(1)).await;
        let (by_lease, by_share) = &*granted.lock().unwrap();
        assert!(by_share.len() > 50 && by_lease.len() + by_share.len() == 800);
        assert!(by_lease.is_sorted() && by_lease.last() < by_share.iter().min());
    });
}

/// Requests that waited for a lease moved to the store's queue when the store went away. When it
/// was back, leases served newcomers before them.
#[test]
fn leased_requests_that_wait_for_the_store_keep_their_order() {
    for (line, stops) in [
        ("token_bucket 100/s burst 100", [2000, 300]),
        ("token_bucket 100/s burst 10", [700, 5000]),
        ("fixed_window 100/s", [2000, 20]),
        ("sliding_log 100/s", [1000, 1000]),
    ] {
        run(async move {
            let model = Model::new(3, Network::steady(MS));
            let builder = Store::builder("redis://model").while_away(WhileAway::Wait);
            let store = model.open(builder).unwrap();
            let limit = store.limiter("all").limit("calls", line);
            let limiter = AnyLimiter::from(limit.leased().build().unwrap());
            let served = Arc::new(Mutex::new(Vec::new()));
            let began = Instant::now();
            let mut asked = 0;
            // Three requests for two permits, from before the first outage to after the second one.
            let mut ask_for = async |span: Duration| {
                let from = Instant::now();
                while from.elapsed() < span {
                    let (wait, served, number) = (limiter.acquire(), served.clone(), asked);
                    asked += 1;
                    tokio::spawn(async move {
                        let permits = wait.await.unwrap();
                        served.lock().unwrap().push((number, permits.is_degraded()));
                    });
                    tokio::time::sleep(20 * MS / 3).await;
                }
            };
            ask_for(2000 * MS).await;
            for stop in stops {
                model.stop(true);
                ask_for(stop * MS).await;
                model.stop(false);
                ask_for(3000 * MS).await;
            }
            while served.lock().unwrap().len() < asked {
                tokio::time::sleep(MS).await;
                assert!(began.elapsed() < MINUTE, "{line}: {} of {asked}", served.lock().unwrap().len());
            }
            let served = served.lock().unwrap();
            let late = served.windows(2).find(|two| two[1].0 < two[0].0);
            assert!(late.is_none(), "{line}: {late:?}");
            assert!(served.iter().all(|(_, is_degraded)| !is_degraded), "{line}");
        });
    }
}

/// Tasks that waited for a share are woken in any order. Those that were woken first had their call
/// before the others, and newcomers were granted before three of four requests of the outage.
#[test]
fn requests_that_waited_for_a_share_return_in_their_order() {
    for every in [1, 3, 10] {
        let served = run(async move {
            let model = Model::new(3, Network::steady(MS));
            let store = model.open(Store::builder("redis://model").while_away(WhileAway::Share)).unwrap();
            let limit = store.limiter("all").limit("calls", "token_bucket 20/s burst 3");
            let limiter = AnyLimiter::from(limit.build().unwrap());
            let _ = limiter.acquire_now(1).await;
            tokio::time::sleep(15_000 * MS).await;
            let served = Arc::new(Mutex::new(Vec::new()));
            for asked in (0..5000).step_by(every) {
                match asked {
                    999 | 1000 => model.stop(true),
                    2999..=3001 => model.stop(false),
                    _ => {}
                }
                let (wait, served) = (limiter.acquire(), served.clone());
                tokio::spawn(async move {
                    let permits = wait.await.unwrap();
                    served.lock().unwrap().push((asked, permits.is_degraded()));
                });
                tokio::time::sleep(MS * u32::try_from(every).unwrap()).await;
            }
            tokio::time::sleep(10 * MINUTE).await;
            served.lock().unwrap().clone()
        });
        assert_eq!(served.len(), 5000_usize.div_ceil(every));
        // The request that asks whether the store is back is sent alone.
        let mut later: Vec<_> =
            served.iter().filter(|(asked, by_share)| *asked > 1100 && !by_share).collect();
        let first = later.remove(0);
        assert!(first.0 > 2999, "{every}: {first:?}");
        let late = later.windows(2).find(|two| two[1].0 < two[0].0);
        assert!(late.is_none(), "{every}: {late:?}");
    }
}

/// The share of a leaky bucket predicted the same wait for a large request again and again.
#[test]
fn a_share_predicts_times_that_hold() {
    for line in ["leaky_bucket 50/s", "leaky_bucket 50/s nodelay 5", "leaky_bucket 50/s capacity 20"] {
        run(async move {
            let model = Model::new(3, Network::steady(MS));
            let alone = WhileAway::ShareOf(1.try_into().unwrap());
            let store = model.open(Store::builder("redis://model").while_away(alone)).unwrap();
            let limit = store.limiter("all").limit("calls", line);
            let limiter = AnyLimiter::from(limit.build().unwrap());
            let _ = limiter.acquire_now(1).await;
            tokio::time::sleep(5000 * MS).await;
            model.stop(true);
            let (mut told, mut times) = (0, 0);
            for permits in (1..=5).cycle().take(40) {
                while let Err(refusal) = limiter.acquire_now(permits).await {
                    let Some(Refusal::Limited { retry_after }) = refusal.refusal() else {
                        panic!("{line}, {permits}: {refusal}");
                    };
                    told += 1;
                    assert!(told <= 80, "{line}, {permits}: told {retry_after:?} again and again");
                    tokio::time::sleep(retry_after.as_duration()).await;
                }
                times += 1;
            }
            // A wait is rounded up to a millisecond of the timer, or down.
            assert!(told <= 2 * times && told > 0, "{line}: told {told} times for {times} requests");
        });
    }
}

/// Requests that came in each round trip kept the queue held after an outage without an end: one
/// call at a time left, and a request that does not wait was refused.
#[test]
fn a_queue_under_load_is_not_held_after_the_store_is_back() {
    run(async {
        let model = Model::new(1, Network::steady(5 * MS));
        let store = model.open(Store::builder("redis://model").while_away(WhileAway::Wait)).unwrap();
        let limiter =
            store.limiter("all").limit("limit", "token_bucket 100000/s burst 1000").build().unwrap();
        let limiter = AnyLimiter::from(limiter);
        let load = tokio::spawn({
            let limiter = limiter.clone();
            async move {
                let mut waits = tokio::task::JoinSet::new();
                // More in each round trip than one call decides.
                for _ in 0..2_000 {
                    for _ in 0..10 {
                        waits.spawn(limiter.acquire());
                    }
                    tokio::time::sleep(MS).await;
                }
                let began = Instant::now();
                waits.join_all().await.into_iter().for_each(|answer| drop(answer.unwrap()));
                began.elapsed()
            }
        });
        tokio::time::sleep(100 * MS).await;
        model.stop(true);
        tokio::time::sleep(300 * MS).await;
        model.stop(false);
        tokio::time::sleep(1_500 * MS).await;
        let answer = limiter.acquire_now(1).await;
        assert!(answer.is_ok(), "{answer:?}");
        let late = load.await.unwrap();
        assert!(late <= 30 * MS, "{late:?}");
    });
}

/// A lease has no bounds of the queue, so bounded requests go to the store's queue.
#[test]
fn bounds_hold_for_leased_requests_that_wait_for_the_store() {
    run(async {
        let model = Model::new(3, Network::steady(MS));
        let store = model.open(Store::builder("redis://model").while_away(WhileAway::Wait)).unwrap();
        let limit = store.limiter("all").limit("calls", "token_bucket 1000/s burst 100");
        let limiter = limit.leased().build().unwrap();
        let any = AnyLimiter::from(limiter.clone());
        for _ in 0..2000 {
            drop(any.acquire().await.unwrap());
        }
        model.stop(true);
        let wait = || tokio::spawn(any.acquire());
        let first: Vec<_> = (0..500).map(|_| wait()).collect();
        tokio::time::sleep(500 * MS).await;
        let full = |refusal: AllRefusal| matches!(refusal.refusal(), Some(Refusal::QueueFull { .. }));
        // Requests that already wait stay or go by the bounds that are set then.
        limiter.set_queue_bounds(QueueBounds::UNBOUNDED.max_waiters(50));
        tokio::time::sleep(1500 * MS).await;
        let second: Vec<_> = (0..500).map(|_| wait()).collect();
        tokio::time::sleep(500 * MS).await;
        model.stop(false);
        let mut refused = 0;
        for wait in first.into_iter().chain(second) {
            refused += u32::from(wait.await.unwrap().is_err_and(full));
        }
        // Up to a burst of permits was on lease.
        assert!((850..=950).contains(&refused), "{refused}");
    });
}

/// A call that comes too late for its requests is not made. These requests were once decided as in
/// an outage, and waited for a share that never returned to the store's queue, because the store
/// was not away.
#[test]
fn requests_that_wait_in_a_long_line_of_a_store_that_answers_are_decided_by_it() {
    for while_away in [WhileAway::ShareOf(std::num::NonZeroU32::new(16).unwrap()), WhileAway::Closed] {
        run(async move {
            let model = Model::new(3, Network { jitter: 0.3, ..Network::steady(5 * MS) });
            let store = model.open(Store::builder("redis://model").while_away(while_away)).unwrap();
            let limit = store.limiter("all").limit("calls", "token_bucket 100/s burst 1");
            let limiter = AnyLimiter::from(limit.build().unwrap());
            drop(limiter.acquire().await.unwrap());
            let waits: Vec<_> = (0..5000).map(|_| tokio::spawn(limiter.acquire())).collect();
            let all = async {
                for wait in waits {
                    assert!(!wait.await.unwrap().unwrap().is_degraded());
                }
            };
            assert!(tokio::time::timeout(MINUTE, all).await.is_ok(), "{:?}", store.counts());
        });
    }
}

/// After the first window of an outage, the shares add up to the limit, and no permit is lost. The
/// share of a key began anew with each request that kept no limiter of the key.
#[test]
fn a_long_outage_grants_the_limit_in_each_window() {
    for (line, by_key) in WINDOWS.into_iter().flat_map(|line| [(line, false), (line, true)]) {
        run(async {
            let fleet = Fleet::new(line).await;
            let mut fleet = if by_key { fleet.by_key() } else { fleet };
            let mut random = SmallRng::seed_from_u64(3);
            while fleet.began.elapsed() < MINUTE / 2 {
                let client = random.random_range(0..CLIENTS);
                fleet.ask(client).await;
            }
            fleet.model.kill();
            while fleet.began.elapsed() < 6 * MINUTE {
                fleet.take_all().await;
                tokio::time::sleep(2000 * MS).await;
            }
            let (windows, all) = (fleet.windows(MINUTE), fleet.grants.len());
            // The bound of each policy.
            match line.split_once(' ').unwrap().0 {
                "fixed_window" => assert!(windows[0] <= 360 && windows[1..] == [320; 5], "{windows:?}"),
                // One of the six cells is partly over.
                "sliding_window" => assert!(fleet.most_in(MINUTE * 5 / 6) <= 360),
                "sliding_log" => assert!(fleet.most_in(MINUTE) <= 360),
                _ => {}
            }
            assert!((4 * 320..=6 * 360).contains(&all), "{line}: {all}");
        });
    }
}

/// A process waits for bookings of a key, and keeps nothing of that key afterwards. The store
/// grants the limit up to the last of these bookings, so the share is still small in the period
/// after it.
#[test]
fn the_share_of_a_key_is_small_until_its_booked_instants_have_passed() {
    for line in ["sliding_log 64/s", "sliding_window 64/s cells 4", "token_bucket 64/s burst 64"] {
        run(async move {
            let mut fleet = Fleet::new(line).await.by_key();
            let users = fleet.keys.as_ref().unwrap()[0].clone();
            let waits: Vec<_> = (0..5 * 64).map(|_| tokio::spawn(users.acquire("alice"))).collect();
            tokio::time::sleep(SECOND / 2).await;
            fleet.model.kill();
            for wait in waits {
                let _ = wait.await.unwrap().unwrap();
            }
            assert!(users.is_empty() && fleet.began.elapsed() >= 3 * SECOND);
            for _ in 0..3 {
                for _ in 0..20 {
                    fleet.ask(0).await;
                }
                tokio::time::sleep(3 * SECOND).await;
            }
            assert_eq!(fleet.windows(3 * SECOND), [1, 8, 8], "{line}");
        });
    }
}

/// A bucket begins with an eighth of its share and refills at its share of the rate.
#[test]
fn a_long_outage_keeps_the_rate_of_a_bucket() {
    let lines = ["token_bucket 80/s burst 160", "leaky_bucket 80/s nodelay 159 capacity 159"];
    for (line, by_key) in lines.into_iter().flat_map(|line| [(line, false), (line, true)]) {
        run(async {
            let fleet = Fleet::new(line).await;
            let mut fleet = if by_key { fleet.by_key() } else { fleet };
            let began = fleet.began.elapsed();
            for request in 0..200 {
                fleet.ask(request % CLIENTS).await;
            }
            fleet.model.kill();
            while fleet.began.elapsed() - began < MINUTE {
                fleet.take_all().await;
                tokio::time::sleep(50 * MS).await;
            }
            let span = (fleet.began.elapsed() - began).as_secs_f64();
            let all = fleet.grants.len() as f64;
            assert!(all <= 160.0 + 20.0 + 80.0 * span, "{line}: {all} in {span}");
            assert!(all >= 80.0 * span, "{line}: {all} in {span}");
        });
    }
}

/// Requests for permits in use that do not wait are decided in time, however long their queue is.
#[test]
fn ten_thousand_attempts_at_permits_in_use_are_answered_in_time() {
    for (trip, asked) in [(40 * MS, 4 * 1024..=5 * 1024), (2 * MS, 10_000..=10_000)] {
        run(async move {
            let model = Model::new(1, Network::steady(trip / 2));
            let timeout = 200 * MS;
            let store = model.open(Store::builder("redis://model").timeout(timeout)).unwrap();
            let limit = store.counting("all", 20_000).build().unwrap();
            let limiter = AnyLimiter::from(limit.clone());
            // It is connected.
            let _ = limit.status().await.unwrap();
            let began = Instant::now();
            let attempts: Vec<_> = (0..10_000).map(|_| tokio::spawn(limiter.acquire_now(1))).collect();
            let (mut granted, mut others) = (Vec::new(), 0);
            for attempt in attempts {
                match attempt.await.unwrap() {
                    Ok(permit) => granted.push(permit),
                    Err(refusal) => {
                        assert!(
                            matches!(refusal.refusal(), Some(Refusal::Unavailable { .. })),
                            "{refusal:?}"
                        );
                        others += 1;
                    }
                }
            }
            let took = began.elapsed();
            assert!(took <= timeout + MS, "{took:?}");
            assert!(asked.contains(&granted.len()), "{} granted", granted.len());
            assert_eq!(store.counts().degraded, others);
            // Permits granted to requests that were gone by then go back.
            tokio::time::sleep(300 * MS).await;
            let available = limit.status().await.unwrap().members[0].1.available;
            assert_eq!(available, 20_000 - u64::try_from(granted.len()).unwrap());
            drop(granted);
            tokio::time::sleep(300 * MS).await;
            assert_eq!(model.keys(), 0);
        });
    }
}

/// A limit in shadow mode refused requests and held them up while its store was away.
#[test]
fn requests_in_shadow_mode_pass_while_the_store_is_away() {
    let two = std::num::NonZeroU32::new(2).unwrap();
    let choices = || [WhileAway::Closed, WhileAway::Wait, WhileAway::Share, WhileAway::ShareOf(two)];
    for (away, leased) in choices().into_iter().zip([false; 4]).chain(choices().into_iter().zip([true; 4])) {
        run(async move {
            let text = format!("{away}, leased {leased}");
            let model = Model::new(1, Network::steady(MS));
            let store = model.open(Store::builder("redis://model").while_away(away)).unwrap();
            let builder = store.limiter("tried").limit("calls", "token_bucket 4/min burst 4");
            let limiter = if leased { builder.leased() } else { builder }.build().unwrap();
            limiter.set_shadow(true);
            limiter.set_queue_bounds(QueueBounds::UNBOUNDED.max_waiters(0));
            for _ in 0..6 {
                let _ = limiter.acquire_now(1).await.unwrap();
            }
            model.stop(true);
            let began = Instant::now();
            for i in 0..8 {
                let permits = limiter.acquire_now(1).await;
                assert!(permits.unwrap_or_else(|refusal| panic!("{text}, {i}: {refusal}")).is_degraded());
                assert!(limiter.acquire().await.unwrap().is_degraded(), "{text}");
                let mut reservation = limiter.reserve(1).unwrap();
                assert_eq!((&mut reservation).await.unwrap().permits(), 0, "{text}");
            }
            // Five calls without a reply in time, and the calls that ask whether the store is back.
            assert!(began.elapsed() <= 600 * MS, "{text}: {:?}", began.elapsed());
            limiter.set_shadow(false);
            model.stop(false);
        });
    }
}

/// A reservation that the store did not decide did not report so if it was refused.
#[test]
fn a_reservation_that_is_refused_without_the_store_is_degraded() {
    on_model(async move |model| {
        let store = model.open(Store::builder("redis://model").while_away(WhileAway::Closed)).unwrap();
        let limiter = store.limiter("calls").limit("calls", "token_bucket 4/min burst 4").build().unwrap();
        let jobs = store.counting("jobs", 4).build().unwrap();
        let all = [AnyLimiter::from(limiter), jobs.into()];
        for limiter in &all {
            let mut reservation = limiter.non_blocking().reserve(4).unwrap();
            assert!((&mut reservation).await.is_ok() && !reservation.is_degraded());
        }
        model.stop(true);
        for limiter in &all {
            let mut reservation = limiter.non_blocking().reserve(1).unwrap();
            assert!((&mut reservation).await.unwrap_err().is_degraded());
            assert!(reservation.is_degraded());
        }
    });
}

/// The state was reported as of the time at which the request would have been due.
#[test]
fn a_request_that_passes_in_shadow_mode_reports_what_is_left_now() {
    for line in ["token_bucket 4/min burst 4", "fixed_window 4/min", "sliding_log 4/min"] {
        on_model(async move |model| {
            let store = model.open(Store::builder("redis://model")).unwrap();
            let limiter = store.limiter("tried").limit("calls", line).build().unwrap();
            limiter.set_shadow(true);
            let _ = limiter.acquire_now(4).await.unwrap();
            let told = limiter.acquire_now(AllRequest::new().with_left()).await.unwrap();
            let (told, state) = (told.left().unwrap().clone(), limiter.status().await.unwrap());
            let (told, state) = (&told.members[0].1, &state.members[0].1);
            assert_eq!(told.available, 0, "{line}");
            // The status comes a round trip later, and the server works for ten microseconds.
            let later = 2 * MS + Duration::from_micros(10);
            assert_eq!(told.next_in, state.next_in + later, "{line}");
            assert_eq!(told.full_in, state.full_in + later, "{line}");
        });
    }
}

/// A connection that was begun during the outage stayed silent after it for up to five seconds, and
/// the next probe came up to 6.25 s later.
#[test]
fn a_store_that_could_not_be_reached_is_known_within_the_longest_rest() {
    for lasts in [500, 1_000, 1_700, 2_500, 4_000, 4_700, 7_000, 12_000, 31_000] {
        on_model(async move |model| {
            let store = model.open(Store::builder("redis://model")).unwrap();
            let limiter =
                store.limiter("all").limit("calls", "token_bucket 1000000/s burst 100").build().unwrap();
            drop(limiter.acquire_now([]).await.unwrap());
            model.lose_calls(true);
            let away = Instant::now();
            while away.elapsed() < lasts * MS {
                assert!(limiter.acquire_now([]).await.is_err());
                tokio::time::sleep(3 * MS).await;
            }
            model.lose_calls(false);
            let back = Instant::now();
            while limiter.acquire_now([]).await.is_err() {
                tokio::time::sleep(3 * MS).await;
            }
            let took = back.elapsed();
            assert!(took < 6_260 * MS, "{lasts} ms away, known after {took:?}");
        });
    }
}

/// Calls without a deadline that were on their way when a firewall forgot their connection had no
/// end while a new connection had replies. A limit of permits in use made no calls any more, and
/// permits that came back never did.
#[test]
fn calls_on_a_silent_connection_end_beside_a_new_connection() {
    on_model(async |model| {
        let store = model.open(Store::builder("redis://model").while_away(WhileAway::Wait)).unwrap();
        let busy = store.limiter("busy").limit("calls", "token_bucket 1000/s burst 100").build().unwrap();
        let rate = store.limiter("all").limit("calls", "token_bucket 1000/s burst 100").build().unwrap();
        let in_use = store.counting("all", 1).build().unwrap();
        let held = in_use.acquire().await.unwrap();
        drop(rate.acquire().await.unwrap());
        let load = tokio::spawn(async move {
            loop {
                drop(busy.acquire_now([]).await);
                tokio::time::sleep(MS).await;
            }
        });
        tokio::time::sleep(10 * MS).await;
        model.silence();
        tokio::time::sleep(20 * MS).await;
        drop(held);
        let in_time = |wait| tokio::time::timeout(200 * MS, wait);
        let (of_rate, of_use) = tokio::join!(in_time(rate.acquire()), in_time(in_use.acquire()));
        assert!(of_rate.is_ok(), "a rate");
        assert!(of_use.is_ok(), "permits in use");
        load.abort();
    });
}

/// A request whose call had no reply in time, while the server replied to others, waited for its
/// share until the end, although the store was well: no failure had begun an outage that could end.
#[test]
fn a_wait_whose_call_alone_was_late_returns_to_the_store() {
    on_model(async |model| {
        let store = one_of_two(&model);
        let limiter = |tag, policy| store.limiter(tag).limit("calls", policy).build().unwrap();
        // A share of so small a limit has no permits at first.
        let (busy, limiter) = (limiter("busy", "fixed_window 100/d"), limiter("all", "fixed_window 3/d"));
        tokio::time::sleep(3_000 * MS).await;
        for limiter in [&busy, &limiter] {
            _ = limiter.acquire().await.unwrap();
        }
        // The reply to a request of another limiter arrives, and that to this one does not.
        let of_other = tokio::spawn(busy.acquire_now([]));
        tokio::time::sleep(MS).await;
        let waiting = tokio::spawn(limiter.acquire());
        tokio::time::sleep(MS / 2).await;
        model.stop(true);
        tokio::time::sleep(52 * MS).await;
        model.stop(false);
        _ = of_other.await.unwrap().unwrap();
        tokio::spawn(async move {
            for _ in 0..10 {
                tokio::time::sleep(20 * MS).await;
                _ = busy.acquire_now([]).await;
            }
        });
        let granted = tokio::time::timeout(200 * MS, waiting).await;
        assert!(!granted.unwrap().unwrap().unwrap().is_degraded());
    });
}

/// A request of a limit that had no room for its share was told that no retry helps.
#[test]
fn a_limit_beyond_those_that_have_a_share_is_refused_until_the_next_probe() {
    on_model(async |model| {
        let store = one_of_two(&model);
        model.stop(true);
        let mut last = None;
        for i in 0..=1024 {
            let limiter =
                store.limiter("all").limit(format!("limit{i}"), "fixed_window 8/s").build().unwrap();
            last = limiter.acquire_now([]).await.err();
        }
        let last = last.unwrap();
        assert!(matches!(last.refusal(), Some(Refusal::Unavailable { .. })), "{last:?}");
        assert!(last.retry_after().is_some_and(|rest| rest <= 6250 * MS), "{last:?}");
    });
}

/// Each of many keys with a request that waits for its share asked whether the store is back.
#[test]
fn many_queues_ask_together_whether_the_store_is_back() {
    on_model(async |model| {
        let store = one_of_two(&model);
        let keys = store.keyed("users").limit("calls", "fixed_window 3/d").build().unwrap();
        model.stop(true);
        let waits: Vec<_> = (0..1000)
            .map(|i| {
                let keys = keys.clone();
                tokio::spawn(async move { keys.acquire(&format!("user{i}")).await })
            })
            .collect();
        tokio::time::sleep(10_000 * MS).await;
        let before = store.counts();
        tokio::time::sleep(60_000 * MS).await;
        let after = store.counts();
        let asked = (after.skipped + after.unknown) - (before.skipped + before.unknown);
        assert!((10..=60).contains(&asked), "{asked}");
        model.stop(false);
        tokio::time::sleep(15_000 * MS).await;
        for wait in waits {
            assert!(!wait.await.unwrap().unwrap().is_degraded());
        }
    });
}

/// Bug: each limit that a process built for a tag granted a share of its own, so a process that
/// built a limit for each request granted any number of permits.
#[test]
fn all_limits_of_a_tag_in_a_process_have_one_share_of_the_permits_in_use() {
    on_model(async |model| {
        let store = one_of_two(&model);
        let build = |tag: &str| AnyLimiter::from(store.counting(tag, 8).build().unwrap());
        // The permits of the store count as well, after their limit is gone.
        let of_store = build("all").acquire_now(1).await.unwrap();
        model.stop(true);
        let mut held = Vec::new();
        for _ in 0..10 {
            held.extend(build("all").acquire_now(1).await.ok());
        }
        assert_eq!(held.len(), 3);
        let refusal = build("all").acquire_now(1).await.unwrap_err();
        assert_eq!((refusal.refusal(), refusal.is_degraded()), (Some(Refusal::InUse { limit: 4 }), true));
        let others = build("others").acquire_now(4).await.unwrap();
        assert!(others.is_degraded());
        // A request of one limit waits for the permits of another one.
        let waits = build("all");
        let waits = tokio::spawn(async move { waits.acquire_many(4).await });
        drop((held, of_store));
        let permits = tokio::time::timeout(300 * MS, waits).await.unwrap().unwrap().unwrap();
        assert!(permits.is_degraded() && build("all").acquire_now(1).await.is_err());
        drop(permits);
        drop(build("all").acquire_now(4).await.unwrap());
    });
}

/// Requests of several limits that are decided at one time do not exceed their share together.
#[test]
fn limits_of_a_tag_that_decide_together_have_one_share_of_the_permits_in_use() {
    on_model(async |model| {
        let store = one_of_two(&model);
        model.stop(true);
        let attempts: Vec<_> = (0..40)
            .map(|_| {
                let limit = AnyLimiter::from(store.counting("all", 8).build().unwrap());
                tokio::spawn(async move { limit.acquire_now(1).await })
            })
            .collect();
        let mut held = Vec::new();
        for attempt in attempts {
            held.extend(attempt.await.unwrap().ok());
        }
        assert_eq!(held.len(), 4);
    });
}

/// Bug: each process granted a request of any size at once, for which its next request would pay.
#[test]
fn a_share_grants_no_request_that_is_larger_than_itself() {
    on_model(async |model| {
        let four = WhileAway::ShareOf(4.try_into().unwrap());
        let limiter = |_| {
            let store = model.open(Store::builder("redis://model").while_away(four)).unwrap();
            AnyLimiter::from(store.limiter("all").limit("calls", "smooth_bursty 100/s").build().unwrap())
        };
        let limiters: Vec<AnyLimiter> = (0..4).map(limiter).collect();
        for limiter in &limiters {
            let _ = limiter.acquire().await.unwrap();
        }
        tokio::time::sleep(2 * SECOND).await;
        model.stop(true);
        for limiter in &limiters {
            let refusal = limiter.acquire_now(100).await.unwrap_err();
            assert!(matches!(refusal.refusal(), Some(Refusal::Unavailable { .. })), "{refusal:?}");
        }
        tokio::time::sleep(4 * SECOND).await;
        for limiter in &limiters {
            let refusal = limiter.acquire_now(26).await.unwrap_err();
            assert!(matches!(refusal.refusal(), Some(Refusal::Unavailable { .. })), "{refusal:?}");
            let _ = limiter.acquire_now(25).await.unwrap();
        }
    });
}

/// Bug: a request that had waited for permits in use was refused as if these were still in use, for
/// however long the store had been away.
#[test]
fn a_request_for_permits_in_use_is_unavailable_at_the_end_of_its_wait_for_a_store() {
    on_model(async |model| {
        let store = model.open(Store::builder("redis://model").while_away(WhileAway::Wait)).unwrap();
        let jobs = AnyLimiter::from(store.counting("jobs", 1).build().unwrap());
        let held = jobs.acquire().await.unwrap();
        let wait = tokio::spawn(jobs.acquire_within(5 * SECOND));
        tokio::time::sleep(SECOND).await;
        model.stop(true);
        tokio::time::sleep(SECOND).await;
        drop(held);
        let refusal = wait.await.unwrap().unwrap_err();
        assert!(matches!(refusal.refusal(), Some(Refusal::Unavailable { .. })), "{refusal:?}");
    });
}

/// Bug: while more leased requests than the limit waited for the store, an attempt was refused as
/// if the limit had no permit.
#[test]
fn an_attempt_behind_leased_requests_that_wait_for_the_store_is_unavailable() {
    on_model(async |model| {
        let store = model.open(Store::builder("redis://model").while_away(WhileAway::Wait)).unwrap();
        let limit = store.limiter("all").limit("calls", "token_bucket 100/s burst 10").leased();
        let limiter = AnyLimiter::from(limit.build().unwrap());
        for _ in 0..200 {
            let _ = limiter.acquire().await.unwrap();
        }
        assert!(store.lease_counts().used > 100);
        model.stop(true);
        for _ in 0..50 {
            tokio::spawn(limiter.acquire());
        }
        tokio::time::sleep(5 * SECOND).await;
        let before = store.counts().degraded;
        let refusal = limiter.acquire_now(1).await.unwrap_err();
        assert!(matches!(refusal.refusal(), Some(Refusal::Unavailable { .. })), "{refusal:?}");
        assert_eq!(store.counts().degraded, before + 1);
    });
}

/// Bug: such an attempt was told 100 ms, however long no call was made, and no pause.
#[test]
fn an_attempt_behind_leased_requests_is_told_of_the_next_probe_or_of_the_pause() {
    for is_paused in [false, true] {
        on_model(async |model| {
            let store = model.open(Store::builder("redis://model").while_away(WhileAway::Wait)).unwrap();
            let limit = store.limiter("all").limit("calls", "token_bucket 100/s burst 10").leased();
            let calls = limit.build().unwrap();
            let limiter = AnyLimiter::from(calls.clone());
            for _ in 0..200 {
                let _ = limiter.acquire().await.unwrap();
            }
            assert!(store.lease_counts().used > 100);
            if is_paused {
                calls.pause(Pause::lasting(3600 * SECOND)).await.unwrap();
            }
            model.stop(true);
            for _ in 0..50 {
                tokio::spawn(limiter.acquire());
            }
            tokio::time::sleep(10 * SECOND).await;
            let mut longest = Duration::ZERO;
            for _ in 0..100 {
                tokio::time::sleep(100 * MS).await;
                let refusal = limiter.acquire_now(1).await.unwrap_err();
                longest = longest.max(match refusal.refusal() {
                    Some(Refusal::Unavailable { retry_after }) if !is_paused => retry_after.as_duration(),
                    Some(Refusal::Paused { retry_after }) if is_paused => retry_after.as_duration(),
                    _ => panic!("{refusal:?}, paused: {is_paused}"),
                });
            }
            assert!(longest > if is_paused { 3500 } else { 1 } * SECOND, "{longest:?}, paused: {is_paused}");
        });
    }
}

/// Bug: each request with a maximum wait woke all requests that wait for the store.
#[test]
fn a_leased_request_with_a_maximum_wait_wakes_no_requests_that_wait_for_the_store() {
    on_model(async |model| {
        let store = model.open(Store::builder("redis://model").while_away(WhileAway::Wait)).unwrap();
        let limit = store.limiter("all").limit("calls", "token_bucket 100/s burst 10").leased();
        let limiter = AnyLimiter::from(limit.build().unwrap());
        for _ in 0..200 {
            let _ = limiter.acquire().await.unwrap();
        }
        assert!(store.lease_counts().used > 100);
        model.stop(true);
        let polls = Arc::new(Mutex::new(0));
        for _ in 0..100 {
            let (mut wait, polls) = (Box::pin(limiter.acquire()), polls.clone());
            tokio::spawn(std::future::poll_fn(move |context| {
                *polls.lock().unwrap() += 1;
                wait.as_mut().poll(context).map(drop)
            }));
        }
        tokio::time::sleep(5 * SECOND).await;
        *polls.lock().unwrap() = 0;
        for _ in 0..100 {
            tokio::spawn(limiter.acquire_within(SECOND));
            tokio::time::sleep(10 * MS).await;
        }
        let polls = *polls.lock().unwrap();
        assert!(polls <= 100, "{polls} polls");
    });
}
