//! Obeying clients against strict servers, with calls that take time: on a manual clock, without a
//! network.

#![allow(clippy::unwrap_used)]

use std::pin::Pin;
use std::task::{Context, Waker};
use std::time::Duration;

use http::StatusCode;
use http::header::{HeaderMap, HeaderName, HeaderValue};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use tidegate::{AllRefusal, Clock, FixedWindow, ManualClock, Policy, Rate, RateLimiter, SlidingLog};
use tidegate::{SmoothBursty, TokenBucket};
use tidegate_http::obey::{Call, Obey, Options};

/// A server that refuses all calls beyond its policy.
struct Server<P: Policy> {
    quota: RateLimiter<P, ManualClock>,
    /// The server reports what remains until when. Otherwise it sends only `Retry-After`.
    reports: bool,
}

impl<P: Policy> Server<P> {
    fn respond(&self) -> (u16, HeaderMap) {
        let mut headers = HeaderMap::new();
        let mut send = |name: &'static str, number: u64| {
            headers.insert(HeaderName::from_static(name), HeaderValue::from(number));
        };
        let secs_up = |wait: Duration| wait.as_nanos().div_ceil(1_000_000_000).try_into().unwrap();
        let granted = self.quota.try_acquire();
        let status = self.quota.status();
        if self.reports {
            send("x-ratelimit-limit", status.limit);
            send("x-ratelimit-remaining", status.available);
            send("x-ratelimit-reset", secs_up(status.full_in));
        }
        match granted {
            Ok(_) => (200, headers),
            Err(refusal) => {
                send("retry-after", secs_up(refusal.retry_after().unwrap()));
                (429, headers)
            }
        }
    }
}

type Wait = Pin<Box<dyn Future<Output = Result<Call, AllRefusal>>>>;

/// One task of a client, which makes one call after another.
enum Task {
    Waits(Wait),
    Sent { call: Call, arrives: Duration },
    Responded { call: Call, response: (u16, HeaderMap), arrives: Duration },
}

#[derive(Debug, Default, PartialEq)]
struct Outcome {
    granted: usize,
    refused: usize,
    /// Refused calls that began after the client had seen a refusal.
    refused_later: usize,
}

/// Runs clients with this many tasks each against a server.
fn simulate<P: Policy>(
    (clock, server): (&ManualClock, &Server<P>),
    clients: &[Obey],
    (tasks, latency): (usize, u64),
    span: Duration,
    seed: u64,
) -> Outcome {
    let mut rng = SmallRng::seed_from_u64(seed);
    let mut travel = || Duration::from_millis(rng.random_range(1..=latency));
    let wait = |client: &Obey| -> Wait {
        let client = client.clone();
        Box::pin(async move { client.acquire().await })
    };
    let mut first = vec![false; clients.len()];
    let mut outcome = Outcome::default();
    let mut all: Vec<(usize, bool, Option<Task>)> = (0..tasks * clients.len())
        .map(|i| (i % clients.len(), false, Some(Task::Waits(wait(&clients[i % clients.len()])))))
        .collect();
    let begin = Duration::from(clock.now());
    loop {
        let now = Duration::from(clock.now()) - begin;
        if now > span {
            return outcome;
        }
        for (client, later, task) in &mut all {
            // Several steps of one task may be due at the same time.
            loop {
                *task = Some(match task.take().unwrap() {
                    Task::Waits(mut wait) => {
                        let polled = wait.as_mut().poll(&mut Context::from_waker(Waker::noop()));
                        let std::task::Poll::Ready(call) = polled else {
                            *task = Some(Task::Waits(wait));
                            break;
                        };
                        *later = first[*client];
                        Task::Sent { call: call.unwrap(), arrives: now + travel() }
                    }
                    Task::Sent { call, arrives } if arrives <= now => {
                        Task::Responded { call, response: server.respond(), arrives: now + travel() }
                    }
                    Task::Responded { mut call, response: (status, headers), arrives } if arrives <= now => {
                        call.obey(StatusCode::from_u16(status).unwrap(), &headers);
                        if status == 200 {
                            outcome.granted += 1;
                        } else {
                            outcome.refused += 1;
                            outcome.refused_later += usize::from(*later);
                            first[*client] = true;
                        }
                        Task::Waits(wait(&clients[*client]))
                    }
                    waits => {
                        *task = Some(waits);
                        break;
                    }
                });
            }
        }
        let arrivals = all.iter().filter_map(|(_, _, task)| match task {
            Some(Task::Sent { arrives, .. } | Task::Responded { arrives, .. }) => Some(*arrives + begin),
            _ => None,
        });
        let next = arrivals.min().into_iter().chain(clock.next_due().map(Duration::from)).min().unwrap();
        clock.advance(next.saturating_sub(clock.now().into()));
    }
}

fn client<P: Policy>(clock: &ManualClock, policy: P, jitter: f64) -> Obey {
    let limiter = RateLimiter::with_clock(policy, clock.clone());
    limiter.set_catch_up(Duration::ZERO);
    Obey::with_options(limiter, Options::new().clock(clock.clone()).jitter(jitter))
}

fn server<P: Policy>(clock: &ManualClock, policy: P, reports: bool) -> Server<P> {
    Server { quota: RateLimiter::with_clock(policy, clock.clone()), reports }
}

#[test]
fn a_server_that_reports_what_remains_refuses_nothing() {
    // The number of tasks, the longest trip of a call in milliseconds, the rate and burst of the
    // client's own limiter, which allows more than the server, and the minimum number of calls in a
    // minute. The server allows 600.
    let clients =
        [(20, 200, 30, 30, 500), (50, 2000, 60, 60, 400), (5, 20, 1000, 60, 540), (90, 5000, 100, 90, 300)];
    for (tasks, latency, rate, burst, least) in clients {
        for seed in 0..2 {
            let clock = ManualClock::new();
            let window = FixedWindow::new(Rate::new(100, Duration::from_secs(10)).unwrap());
            let server = server(&clock, window, true);
            let client = client(&clock, TokenBucket::new(Rate::per_second(rate), burst), 0.1);
            let minute = Duration::from_secs(60);
            let outcome = simulate((&clock, &server), &[client], (tasks, latency), minute, seed);
            assert_eq!(outcome.refused, 0, "{tasks} tasks, seed {seed}: {outcome:?}");
            assert!(outcome.granted >= least, "{tasks} tasks, seed {seed}: {outcome:?}");
        }
    }
}

/// By the client's own limit, more calls begin within a round trip than a window of the server has
/// units.
#[test]
fn no_window_begins_with_more_calls_than_the_server_allows() {
    for (tasks, burst) in [(36, 15), (36, 1), (90, 25)] {
        let clock = ManualClock::new();
        let window = FixedWindow::new(Rate::new(25, Duration::from_secs(5)).unwrap());
        let server = server(&clock, window, true);
        let client = client(&clock, TokenBucket::new(Rate::per_second(100), burst), 0.0);
        // The first call is alone, because nothing is known of the first window.
        let (status, headers) = server.respond();
        client.try_acquire().unwrap().obey(StatusCode::from_u16(status).unwrap(), &headers);
        let minute = Duration::from_secs(60);
        let outcome = simulate((&clock, &server), &[client], (tasks, 250), minute, 0);
        assert_eq!(outcome.refused, 0, "{tasks} tasks: {outcome:?}");
        assert!(outcome.granted >= 265, "{tasks} tasks: {outcome:?}");
    }
}

#[test]
fn a_server_with_a_bucket_that_reports_what_remains_refuses_nothing() {
    for seed in 0..2 {
        let clock = ManualClock::new();
        let server = server(&clock, TokenBucket::new(Rate::per_second(10), 50), true);
        let client = client(&clock, TokenBucket::new(Rate::per_second(30), 30), 0.1);
        let minute = Duration::from_secs(60);
        let outcome = simulate((&clock, &server), &[client], (10, 200), minute, seed);
        assert!(outcome.refused == 0 && outcome.granted >= 500, "{seed}: {outcome:?}");
    }
}

#[test]
fn a_server_that_sends_only_retry_after_refuses_once() {
    for seed in 0..6 {
        let clock = ManualClock::new();
        let server = server(&clock, SlidingLog::new(Rate::per_second(12)), false);
        let client = client(&clock, SmoothBursty::new(Rate::per_second(10)).max_burst(Duration::ZERO), 0.1);
        // Another program uses up the quota.
        server.quota.drain();
        let outcome = simulate((&clock, &server), &[client], (5, 40), Duration::from_secs(30), seed);
        assert!(outcome.granted >= 250, "{seed}: {outcome:?}");
        assert!(outcome.refused >= 1 && outcome.refused_later == 0, "{seed}: {outcome:?}");
    }
}

#[test]
fn two_processes_share_the_quota_of_a_server() {
    for seed in 0..6 {
        let clock = ManualClock::new();
        let server = server(&clock, FixedWindow::new(Rate::new(100, Duration::from_secs(10)).unwrap()), true);
        let policy = || TokenBucket::new(Rate::per_second(30), 10);
        let clients = [client(&clock, policy(), 0.1), client(&clock, policy(), 0.1)];
        let outcome = simulate((&clock, &server), &clients, (5, 100), Duration::from_secs(60), seed);
        // In each of six windows the calls of one client may meet those that the other has in
        // flight.
        assert!(outcome.granted >= 590 && outcome.refused <= 6 * 5, "{seed}: {outcome:?}");
    }
}
