//! A fleet of processes that ask a store for permits, over a model of the store.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rand::SeedableRng;
use rand::rngs::SmallRng;
use rand_distr::{Distribution, Exp, Zipf};
use tidegate::AnyLimiter;
pub(crate) use tidegate_redis::simulation::Network;
use tidegate_redis::simulation::{Model, run};
use tidegate_redis::{Store, WhileAway};
use tokio::time::Instant;

use crate::check::{Bound, Grant};

/// Permits are counted together over this duration.
pub(crate) const BIN: Duration = Duration::from_millis(100);

/// This long before the load begins, each process makes one request: it connects, and the processes
/// learn how many they are.
const CONNECTING: Duration = Duration::from_secs(15);

/// The tag of the limiter of those first requests.
const WARM_UP: &str = "warm-up";

/// The fleet, its limits and its load.
#[derive(Clone)]
pub(crate) struct Setup {
    pub(crate) seed: u64,
    /// The shares of the processes in the requests have a Zipf distribution.
    pub(crate) processes: u32,
    /// The shares of the keys have a Zipf distribution, too. Each key has the limit.
    pub(crate) keys: u32,
    pub(crate) limit: Bound,
    /// Requests per second of all processes, at random times.
    pub(crate) asked: f64,
    /// The duration of the load.
    pub(crate) span: Duration,
    /// Whether processes lease permits.
    pub(crate) is_leased: bool,
    /// The maximum wait of a request.
    pub(crate) within: Duration,
    pub(crate) network: Network,
    pub(crate) faults: Vec<(Duration, Fault)>,
}

/// A fault, or its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// Cuts the connections of every n-th process.
    Cut(usize),
    Join(usize),
    Stop,
    GoOn,
    Kill,
    StartEmpty,
    /// The server is killed, and its replica takes over.
    FailOver,
    /// The replica takes over, and the server becomes a replica.
    Demote,
}

/// The results of the requests.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    /// For each process, how many requests it made, and how many got a permit.
    pub(crate) processes: Vec<(u64, u64)>,
    /// For each key, the grants of the store.
    pub(crate) grants: HashMap<u32, Vec<Grant>>,
    /// For each key, the permits that requests got, by the time of the decision.
    pub(crate) spent: HashMap<u32, Vec<Grant>>,
    /// For each key, the number of requests.
    pub(crate) asked: HashMap<u32, u64>,
    /// Permits that the store granted, in each [`BIN`].
    pub(crate) granted: Vec<u64>,
    /// Permits of the shares of processes, in each [`BIN`].
    pub(crate) degraded: Vec<u64>,
    /// Requests that were refused without the store.
    pub(crate) degraded_refusals: u64,
    /// The time of the slowest decision beyond the wait of the permit, and beyond the millisecond
    /// by which the timer may end that wait late.
    pub(crate) slowest: Duration,
    /// Calls that the server carried out while processes asked for permits.
    pub(crate) calls: u64,
    /// How many keys the server had at the end, and some time after it.
    pub(crate) keys: (usize, usize),
}

impl Setup {
    /// A healthy network: 0.2 to 20 ms one way, and a server that takes 10 µs for a call.
    pub(crate) fn network() -> Network {
        Network {
            latency: Duration::from_micros(200)..=Duration::from_millis(20),
            jitter: 0.05,
            lost_answers: 0.0,
            service: Duration::from_micros(10),
            lag: Duration::from_millis(50),
        }
    }

    pub(crate) fn run(&self) -> Outcome {
        run(self.simulate())
    }

    async fn simulate(&self) -> Outcome {
        let model = Model::new(self.seed, self.network.clone());
        let record = Record(Arc::default());
        record.lock().processes = vec![(0, 0); self.processes as usize];
        let began = Instant::now() + CONNECTING;
        let weights: Vec<f64> = (1..=self.processes).map(|rank| 1.0 / f64::from(rank)).collect();
        let total: f64 = weights.iter().sum();
        let mut stores = Vec::new();
        for (number, weight) in weights.iter().enumerate() {
            let store = self.store(&model, &record);
            stores.push(store.clone());
            let warm_up = store.limiter(WARM_UP).limit("limit", "token_bucket 1/s burst 1");
            let warm_up = AnyLimiter::from(warm_up.build().expect("a limiter"));
            tokio::spawn(async move { warm_up.acquire_now(1).await });
            let (setup, model, record) = (self.clone(), model.clone(), record.clone());
            let process = Process { number, setup, model, store, record, began };
            tokio::spawn(process.ask(self.asked * weight / total));
        }
        tokio::time::sleep_until(began).await;
        let calls_before = model.calls();
        for (at, fault) in &self.faults {
            tokio::time::sleep_until(began + *at).await;
            self.inflict(&model, *fault);
        }
        tokio::time::sleep_until(began + self.span + self.within + Duration::from_secs(1)).await;
        let mut outcome = std::mem::take(&mut *record.lock());
        outcome.calls = model.calls() - calls_before;
        let keys = model.keys();
        // Processes that end no longer count themselves.
        drop(stores);
        tokio::time::sleep(Duration::from_secs(60)).await;
        outcome.keys = (keys, model.keys());
        outcome
    }

    fn store(&self, model: &Model, record: &Record) -> Store {
        let builder = Store::builder("redis://model").while_away(WhileAway::Share);
        let store = model.open(builder).expect("settings that are right");
        let record = record.clone();
        store.log_grants(move |key, due, permits| {
            // `tidegate:{<number>}:limit:<kind>`
            let tag = key.split(['{', '}']).nth(1).expect("a tag");
            if tag == WARM_UP {
                return;
            }
            let number = tag.parse().expect("the number of a key");
            record.lock().grants.entry(number).or_default().push((due, permits));
        });
        store
    }

    fn limiter(&self, store: &Store, key: u32) -> AnyLimiter {
        let Bound { per_second, burst } = self.limit;
        let policy = format!("token_bucket {per_second}/s burst {burst}");
        let limiter = store.limiter(key.to_string()).limit("limit", policy);
        let limiter = if self.is_leased { limiter.leased() } else { limiter };
        limiter.build().expect("a limiter").into()
    }

    fn inflict(&self, model: &Model, fault: Fault) {
        let each = |nth: usize| (0..self.processes as usize).step_by(nth);
        match fault {
            Fault::Cut(nth) => model.cut(each(nth), true),
            Fault::Join(nth) => model.cut(each(nth), false),
            Fault::Stop => model.stop(true),
            Fault::GoOn => model.stop(false),
            Fault::Kill => model.kill(),
            Fault::StartEmpty => model.start_empty(),
            Fault::FailOver => model.fail_over(false),
            Fault::Demote => model.fail_over(true),
        }
    }
}

/// One process of the fleet.
struct Process {
    number: usize,
    setup: Setup,
    model: Model,
    store: Store,
    record: Record,
    began: Instant,
}

impl Process {
    /// Makes `rate` requests per second.
    async fn ask(self, rate: f64) {
        let Setup { seed, keys, span, within, .. } = self.setup;
        let mut random = SmallRng::seed_from_u64(seed ^ (self.number as u64 + 1) << 32);
        let gaps = Exp::new(rate).expect("a rate");
        let zipf = Zipf::new(f64::from(keys), 1.0).expect("a number of keys");
        // A program with only one key keeps its limiter.
        let only = (keys == 1).then(|| self.setup.limiter(&self.store, 0));
        let mut at = Duration::from_secs_f64(gaps.sample(&mut random));
        while at < span {
            self.model.sleep_until(CONNECTING + at).await;
            at += Duration::from_secs_f64(gaps.sample(&mut random));
            let (key, limiter) = match &only {
                Some(limiter) => (0, limiter.clone()),
                None => {
                    // In range: a rank from 1 to the number of keys.
                    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
                    let key = zipf.sample(&mut random) as u32;
                    (key, self.setup.limiter(&self.store, key))
                }
            };
            {
                let mut record = self.record.lock();
                record.processes[self.number].0 += 1;
                *record.asked.entry(key).or_default() += 1;
            }
            let (record, number, began) = (self.record.clone(), self.number, self.began);
            tokio::spawn(async move {
                let asked = Instant::now();
                let answer = limiter.acquire_within(within).await;
                record.answer((number, key), (began, asked), answer);
            });
        }
    }
}

#[derive(Clone)]
struct Record(Arc<Mutex<Outcome>>);

impl Record {
    fn lock(&self) -> MutexGuard<'_, Outcome> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn answer(
        &self,
        (process, key): (usize, u32),
        (began, asked): (Instant, Instant),
        answer: Result<tidegate::AllPermits, tidegate::AllRefusal>,
    ) {
        let mut outcome = self.lock();
        let waited = match &answer {
            // A timer ends the wait at a whole millisecond.
            Ok(permits) if !permits.waited().is_zero() => permits.waited() + Duration::from_millis(1),
            _ => Duration::ZERO,
        };
        outcome.slowest = outcome.slowest.max(asked.elapsed().saturating_sub(waited));
        match answer {
            Ok(permits) => {
                outcome.processes[process].1 += 1;
                let since = began.elapsed();
                let bin = usize::try_from(since.as_millis() / BIN.as_millis()).unwrap_or(0);
                let outcome = &mut *outcome;
                let bins = if permits.is_degraded() {
                    &mut outcome.degraded
                } else {
                    let at = i64::try_from(since.as_micros()).unwrap_or(i64::MAX);
                    outcome.spent.entry(key).or_default().push((at, 1));
                    &mut outcome.granted
                };
                if bins.len() <= bin {
                    bins.resize(bin + 1, 0);
                }
                bins[bin] += 1;
            }
            Err(refusal) if refusal.is_degraded() => outcome.degraded_refusals += 1,
            Err(_) => {}
        }
    }
}

impl Outcome {
    /// Returns the permits beyond the bound in the worst span of each key, the maximum over all
    /// keys.
    pub(crate) fn over(&mut self, setup: &Setup) -> u64 {
        // Leases are spent up to 200 ms after they were taken, by the clock of the process.
        let (grants, micros) =
            if setup.is_leased { (&mut self.spent, 200_000) } else { (&mut self.grants, 1) };
        grants.values_mut().map(|grants| setup.limit.over(grants, micros)).max().unwrap_or(0)
    }

    pub(crate) fn asked(&self) -> u64 {
        self.processes.iter().map(|(asked, _)| asked).sum()
    }

    pub(crate) fn served(&self) -> u64 {
        self.processes.iter().map(|(_, served)| served).sum()
    }

    /// Returns the part of the requests of these processes that got permits. The first process is
    /// the busiest.
    pub(crate) fn served_of(&self, processes: std::ops::Range<usize>) -> f64 {
        let (asked, served) =
            self.processes[processes].iter().fold((0, 0), |(a, s), (asked, served)| (a + asked, s + served));
        served as f64 / asked.max(1) as f64
    }

    /// Returns the used part of the limits, for the keys that were asked for more than their
    /// limits.
    pub(crate) fn use_of(&self, setup: &Setup) -> f64 {
        let Setup { limit, span, .. } = setup;
        let allowed = limit.per_second * span.as_secs() + limit.burst;
        let busy = self.asked.iter().filter(|(_, asked)| **asked > allowed);
        let used = busy.map(|(key, _)| {
            let grants = if setup.is_leased { &self.spent } else { &self.grants };
            let grants = grants.get(key).map_or(&[][..], |grants| grants);
            // Waits may end after the span.
            let first = grants.iter().map(|(due, _)| *due).min().unwrap_or(0);
            let micros = i64::try_from(span.as_micros()).unwrap_or(i64::MAX);
            let within = grants.iter().filter(|(due, _)| due - first <= micros);
            within.map(|(_, n)| n).sum::<u64>() as f64 / allowed as f64
        });
        let (n, sum) = used.fold((0.0, 0.0), |(n, sum), used| (n + 1.0, sum + used));
        if n == 0.0 { f64::NAN } else { sum / n }
    }
}
