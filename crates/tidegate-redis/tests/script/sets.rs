//! Random requests at several limits together: each limit is within its bound.

use std::time::Duration;

use rand::rngs::SmallRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};

use crate::script::{Answer, GivenBack, Mode, Reply, ReserveRequest};
use crate::script_tests::refunds::{BOUNDED, Net, is_within};
use crate::script_tests::{Limit, Operation, Part, START, Store, intervals};

/// A grant, or a booking, and its permits of each limit.
struct Grant {
    reply: Reply,
    permits: Vec<u64>,
}

impl Grant {
    fn due(&self) -> u64 {
        u64::try_from(self.reply.due).expect("an instant")
    }

    fn given_back(&self) -> GivenBack<'_> {
        GivenBack { due: self.reply.due, permits: &self.permits, before: &self.reply.before }
    }
}

/// A set of limits, and the requests that it granted.
struct Set<'a> {
    store: &'a mut Store,
    random: SmallRng,
    limits: Vec<Limit>,
    /// The mean time of a permit of the slowest limit, in microseconds.
    interval: u64,
    now: u64,
    /// Grants that stay.
    settled: Vec<Grant>,
    /// Other grants and bookings.
    open: Vec<Grant>,
}

impl Set<'_> {
    /// Makes a call that has no permits, for all limits or for one of them.
    fn control(&mut self, operation: Operation) {
        let only = self.random.random_range(0..2 * self.limits.len());
        let parts = self.limits.iter().map(|limit| limit.part(0, &[]));
        let parts: Vec<Part<'_>> = match only < self.limits.len() {
            true => parts.skip(only).take(1).collect(),
            false => parts.collect(),
        };
        self.store.call(operation, self.now, &parts);
    }

    fn pause(&mut self) {
        let span = Duration::from_micros(self.random.random_range(1..=8) * self.interval);
        let keep_permits = self.random.random();
        self.control(Operation::Pause { span, keep_permits });
    }

    /// Settles up to three grants, and returns bookings that are dropped. Some are dropped late.
    fn end_some(&mut self) -> Vec<Grant> {
        let mut dropped = Vec::new();
        for _ in 0..self.random.random_range(1..=3).min(self.open.len()) {
            let grant = self.open.swap_remove(self.random.random_range(0..self.open.len()));
            if grant.due() > self.now || self.random.random_bool(0.2) {
                dropped.push(grant);
                continue;
            }
            let unused: Vec<u64> = grant.permits.iter().map(|n| self.random.random_range(0..=*n)).collect();
            let parts: Vec<Part<'_>> =
                self.limits.iter().zip(&unused).map(|(limit, n)| limit.part(*n, &[])).collect();
            self.store.call(Operation::Refund { due: grant.reply.due }, self.now, &parts);
            let permits = grant.permits.iter().zip(unused).map(|(n, unused)| n - unused).collect();
            self.settled.push(Grant { permits, ..grant });
        }
        dropped
    }

    /// Returns a request, for permits of all limits or of one of them.
    fn request(&mut self, is_large: bool) -> ReserveRequest {
        let only = self.random.random_range(0..5 * self.limits.len());
        let costs = self.limits.iter().enumerate().map(|(i, limit)| {
            let most = if limit.key.contains("leaky") { 4 } else { limit.terms.limit.min(10) };
            let n = self.random.random_range(if is_large { most / 2..=most } else { 0..=most.div_ceil(2) });
            if only < self.limits.len() && only != i { (0, 0) } else { (n, n) }
        });
        let costs = costs.collect();
        let longest = Duration::from_micros(self.random.random_range(0..40) * self.interval);
        ReserveRequest { longest, mode: Mode::Normal, wants_state: true, costs }
    }

    /// Makes one call that gives bookings back and decides requests.
    fn decide(&mut self, dropped: &[Grant], requests: Vec<ReserveRequest>) {
        let given_back: Vec<GivenBack<'_>> = dropped.iter().map(Grant::given_back).collect();
        let parts: Vec<Part<'_>> = self.limits.iter().map(|limit| limit.part(0, &[])).collect();
        let replies = self.store.reserve(self.now, &parts, &given_back, &requests);
        for (reply, request) in replies.into_iter().zip(requests) {
            if reply.answer == Answer::Done {
                let permits = request.costs.iter().map(|(n, _)| *n).collect();
                self.open.push(Grant { reply, permits });
            }
        }
    }
}

#[test]
fn each_limit_of_a_set_is_within_its_bound() {
    let Some(mut store) = Store::new() else { return };
    let sets = if std::env::var_os("TIDEGATE_REDIS_CALLS").is_some() { 2_000 } else { 60 };
    for seed in 0..sets {
        let mut random = SmallRng::seed_from_u64(seed);
        let count = random.random_range(2..=4);
        let lines: Vec<&str> = BOUNDED.choose_multiple(&mut random, count).copied().collect();
        let limit =
            |line: &&str| Limit { key: format!("{seed} {line}"), ..Limit::new(line).without_longest() };
        let limits: Vec<Limit> = lines.iter().map(limit).collect();
        let interval = limits.iter().map(|limit| intervals(limit, 1.0)).max().expect("limits");
        let (ended, is_paused) = (random.random_range(0.1..0.9), random.random_bool(0.2));
        let (load, is_large) = (random.random_range(1..=4), random.random_bool(0.3));
        let store = &mut store;
        let mut set =
            Set { store, random, limits, interval, now: START, settled: Vec::new(), open: Vec::new() };
        for _ in 0..200 {
            if set.random.random_bool(0.6) {
                set.now += set.random.random_range(0..=load * interval);
            }
            if is_paused && set.random.random_bool(0.03) {
                set.pause();
            }
            if is_paused && set.random.random_bool(0.02) {
                set.control(Operation::Resume);
            }
            let dropped = if set.random.random_bool(ended) { set.end_some() } else { Vec::new() };
            let requests = (0..set.random.random_range(1..=2)).map(|_| set.request(is_large)).collect();
            set.decide(&dropped, requests);
        }
        set.settled.append(&mut set.open);
        for (i, limit) in set.limits.iter().enumerate() {
            let net = set.settled.iter().map(|grant| Net { at: grant.due(), n: grant.permits[i] });
            if let Err(found) = is_within(limit, &net.collect::<Vec<_>>()) {
                panic!("{seed}, {lines:?}, {}: {found}", lines[i]);
            }
        }
    }
}
