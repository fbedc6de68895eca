//! Which clients get a 429 from which server: the tables of "At a strict server" in
//! `docs/ALGORITHMS.md`.
//!
//! The client idles, and then calls whenever its policy grants a permit. The servers are models
//! written for this test, in whole nanoseconds. A server refuses a call only because of the number
//! of calls in some stretch of time that ends with the call. In a network that delays calls by at
//! most `stall`, the calls that arrive in `[x, x + d)` are at most the calls sent in
//! `[x - stall, x + d)`. All of these arrive there if every call sent since `x - stall` arrives at `x`. So the
//! worst case is a single stall, tried from each call on, with a server window that starts when the
//! stall ends.

use std::fmt::Write;

use tidegate::{AnyPolicy, Nanos, Policy};

const SECOND: u64 = 1_000_000_000;
const MS: u64 = SECOND / 1000;

/// The calls that every server allows in a second, and the interval of one call.
const CALLS: usize = 100;
const RATE: u64 = CALLS as u64;
const INTERVAL: u64 = SECOND / RATE;
/// The first call, just before a window of the client ends, and the end of the demand.
const FIRST: u64 = 1999 * MS;
const END: u64 = 4100 * MS;

/// The clients: a name for the table, and the policy with `R` for its rate per second.
const CLIENTS: [(&str, &str); 10] = [
    ("[`RateLimiter::paced`]", "smooth_bursty R/s max_burst 0s"),
    ("[`TokenBucket`], burst 1", "token_bucket R/s burst 1"),
    ("[`LeakyBucket`]", "leaky_bucket R/s"),
    ("[`SmoothWarmingUp`] in 1 s", "smooth_warming_up R/s warm_up 1s"),
    ("[`TokenBucket`], burst 10", "token_bucket R/s burst 10"),
    ("[`SmoothBursty`]", "smooth_bursty R/s"),
    ("[`SlidingLog`]", "sliding_log R/s"),
    ("[`SlidingWindow`] of 10 cells", "sliding_window R/s cells 10"),
    ("[`SlidingEstimate`]", "sliding_estimate R/s"),
    ("[`FixedWindow`]", "fixed_window R/s"),
];

#[derive(Clone, Copy)]
enum Server {
    /// At most `CALLS` calls in any second.
    Log,
    /// At most `RATE` calls in each second of its clock.
    Window,
    /// A bucket of this many tokens. With one token it is GCRA without a tolerance.
    Bucket(u64),
    /// `limit_req` with `burst` and `nodelay`: a clock of milliseconds, and thousandths of a call.
    Nginx(u64),
}

const SERVERS: [(&str, Server); 6] = [
    ("exact log", Server::Log),
    ("fixed window", Server::Window),
    ("token bucket, burst 10", Server::Bucket(10)),
    ("NGINX, `burst=10 nodelay`", Server::Nginx(10)),
    ("GCRA, no tolerance", Server::Bucket(1)),
    ("NGINX, no burst", Server::Nginx(0)),
];

impl Server {
    /// Returns whether the server accepts all calls; they arrive at these times, in order.
    fn accepts(self, mut calls: impl Iterator<Item = u64>) -> bool {
        match self {
            Server::Log => {
                let mut accepted = Vec::new();
                calls.all(|at| {
                    accepted.push(at);
                    let before = accepted.len().checked_sub(CALLS + 1).map(|call| accepted[call]);
                    before.is_none_or(|before| before + SECOND <= at)
                })
            }
            Server::Window => {
                let (mut window, mut used) = (0, 0);
                calls.all(|at| {
                    used = if at / SECOND == window { used + 1 } else { 1 };
                    window = at / SECOND;
                    used <= RATE
                })
            }
            Server::Bucket(burst) => {
                let mut full_at = 0; // when all tokens are back
                calls.all(|at| {
                    full_at = at.max(full_at) + INTERVAL;
                    full_at <= at + burst * INTERVAL
                })
            }
            Server::Nginx(burst) => {
                let (mut last, mut excess) = (0, 0);
                calls.all(|at| {
                    let flowed_out = (at / MS - last) * RATE;
                    // The very first call has no excess, because a second has flowed out by then.
                    excess = (excess + 1000u64).saturating_sub(flowed_out);
                    last = at / MS;
                    excess <= burst * 1000
                })
            }
        }
    }
}

/// Returns the times at which a client with this policy calls.
fn calls(policy: &str) -> Vec<u64> {
    let policy: AnyPolicy = policy.parse().expect("a policy");
    let state = policy.start(Nanos::ZERO);
    let (mut now, mut calls) = (FIRST, Vec::new());
    while now < END {
        match policy.try_acquire(&state, Nanos::new(now), 1) {
            Ok(_) => calls.push(now),
            Err(refusal) => {
                let wait = refusal.retry_after().expect("a permit is due some day");
                now += u64::try_from(wait.as_nanos()).expect("a short wait").max(1);
            }
        }
    }
    calls
}

/// Returns whether the server accepts all calls, whenever its windows start, and whichever calls
/// the network delays.
fn never_refused(calls: &[u64], server: Server, stall: u64) -> bool {
    calls.iter().all(|&held| {
        let until = held + stall;
        let shift = SECOND - until % SECOND;
        server.accepts(calls.iter().map(|&at| shift + if at < held { at } else { at.max(until) }))
    })
}

/// Returns the table: by how many percent a client must be slower than the server so that no call
/// is refused.
fn table(stall: u64) -> String {
    let names = SERVERS.map(|(name, _)| name).join(" | ");
    let mut table = format!("| client | {names} |\n|---|{}\n", "---|".repeat(SERVERS.len()));
    for (name, policy) in CLIENTS {
        let mut slower = [None; SERVERS.len()];
        for percent in 0..RATE {
            let calls = calls(&policy.replace('R', &(RATE - percent).to_string()));
            for (slower, (_, server)) in slower.iter_mut().zip(SERVERS) {
                if slower.is_none() && never_refused(&calls, server, stall) {
                    *slower = Some(percent);
                }
            }
        }
        let cell = |slower: Option<u64>| slower.map_or("–".to_owned(), |percent| format!("{percent} %"));
        writeln!(table, "| {name} | {} |", slower.map(cell).join(" | ")).expect("a string");
    }
    table
}

#[test]
fn the_tables_of_strict_servers_are_those_of_the_documentation() {
    let documentation = include_str!("../../docs/ALGORITHMS.md");
    for stall in [0, 20 * MS] {
        let table = table(stall);
        assert!(documentation.contains(&table), "with a stall of {} ms:\n{table}", stall / MS);
    }
}
