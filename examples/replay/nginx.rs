//! Replays recordings of the `limit_req` module of NGINX: see `tests/golden/nginx/README.md`.
//!
//! A zone is a [`RateLimiter`] with a [`LeakyBucket`], on a clock that is set to the recorded
//! arrivals. Delayed requests really wait in its queue. A request makes a reservation in each zone.
//! If a zone refuses, the request gives its reservations back, which leaves no trace.

use std::path::Path;
use std::time::Duration;

use serde::Deserialize;
use tidegate::{Clock, LeakyBucket, ManualClock, Nanos, Rate, RateLimiter, Reservation};
use tokio_test::task::{Spawn, spawn};

use crate::report::{Outcome, Report, mismatch, read};

/// The most by which waits may differ: NGINX logs the waits that resulted from its timers.
const HELD_APART_MS: f64 = 10.0;

/// Each recorded arrival may be off by this many milliseconds.
const ARRIVAL_APART_MS: f64 = 8.0;

#[derive(Debug, Deserialize)]
struct Run {
    name: String,
    zones: Vec<Zone>,
    events: Vec<Event>,
}

#[derive(Clone, Copy, Debug, Deserialize)]
struct Zone {
    /// Thousandths of a request per second.
    milli_rps: u64,
    #[serde(default)]
    burst: u32,
    #[serde(default)]
    delay: Delay,
}

/// The number of requests in excess after which the others are delayed.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(untagged)]
enum Delay {
    After(u32),
    Not(Never),
}

#[derive(Clone, Copy, Debug, Deserialize)]
enum Never {
    #[serde(rename = "none")]
    Delayed,
}

impl Default for Delay {
    fn default() -> Delay {
        Delay::After(0)
    }
}

#[derive(Clone, Copy, Debug, Deserialize)]
struct Event {
    at_ms: u64,
    verdict: Verdict,
    #[serde(default)]
    held_ms: f64,
    /// Thousandths of a request, if logged, and the zone.
    excess_milli: Option<f64>,
    zone: Option<usize>,
}

#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
enum Verdict {
    Passed,
    Delayed,
    Rejected,
}

type Queued = Reservation<LeakyBucket, ManualClock>;

/// Replays every `*.jsonl` in a directory.
pub(crate) fn replay(dir: &Path) -> Result<Report, String> {
    let mut farthest = Farthest::default();
    let mut report = Report::of(dir, |line| {
        let run: Run = read(line)?;
        replay_run(&run, &mut farthest).map_err(|error| format!("{}: {error}", run.name))
    })?;
    report.notes.push(farthest.note());
    Ok(report)
}

fn replay_run(run: &Run, farthest: &mut Farthest) -> Result<Outcome, String> {
    let clock = ManualClock::new();
    let zones = run.zones.iter().map(|zone| Limiter::new(*zone, &clock)).collect::<Result<Vec<_>, _>>()?;
    let mut waiting = Vec::new();
    for (index, event) in run.events.iter().enumerate() {
        let differs = |(expected, got): (String, String)| mismatch(index, event, expected, got);
        let at = Nanos::from_duration(Duration::from_millis(event.at_ms));
        // Serves the waiters that become due in the meantime, each at its own time.
        clock.advance(at.saturating_since(clock.now()).as_duration());
        waiting.retain_mut(|reservation: &mut Spawn<Queued>| {
            !reservation.is_woken() || reservation.poll().is_pending()
        });
        let excess: Vec<f64> = zones.iter().map(Limiter::excess_milli).collect();
        let verdict = match zones.iter().map(|zone| zone.limiter.reserve(1)).collect::<Result<Vec<_>, _>>() {
            // The reservations made so far are dropped.
            Err(_) => Verdict::Rejected,
            Ok(reservations) => {
                let held = reservations.iter().map(Reservation::due_in).max().unwrap_or_default();
                farthest.held(event, held).map_err(differs)?;
                let reservations = reservations.into_iter().map(spawn);
                waiting
                    .extend(reservations.filter_map(|mut reservation| {
                        reservation.poll().is_pending().then_some(reservation)
                    }));
                if held.is_zero() { Verdict::Passed } else { Verdict::Delayed }
            }
        };
        if verdict != event.verdict {
            return Err(mismatch(index, event, format!("{:?}", event.verdict), format!("{verdict:?}")));
        }
        if let (Some(expected), Some(zone)) = (event.excess_milli, event.zone) {
            let (Some(limiter), Some(got)) = (zones.get(zone), excess.get(zone)) else {
                return Err(mismatch(index, event, "a zone of this run", zone));
            };
            farthest.excess(expected, *got, limiter.milli_rps).map_err(differs)?;
        }
    }
    Ok(Outcome::Passed)
}

/// One zone.
struct Limiter {
    limiter: RateLimiter<LeakyBucket, ManualClock>,
    milli_rps: f64,
}

impl Limiter {
    fn new(zone: Zone, clock: &ManualClock) -> Result<Limiter, String> {
        let Zone { milli_rps, burst, delay } = zone;
        let rate = Rate::new(milli_rps, Duration::from_secs(1000)).map_err(|error| error.to_string())?;
        let nodelay = match delay {
            Delay::Not(Never::Delayed) => burst,
            // A request above the burst is rejected instead of delayed.
            Delay::After(nodelay) => nodelay.min(burst),
        };
        let policy = LeakyBucket::new(rate).capacity(burst).nodelay(nodelay);
        let limiter = RateLimiter::with_clock(policy, clock.clone());
        #[allow(clippy::cast_precision_loss)]
        Ok(Limiter { limiter, milli_rps: milli_rps as f64 })
    }

    /// Returns the excess with one more request: the permits missing until the limiter is full, and
    /// the waiters in the queue, which pay when they leave it.
    fn excess_milli(&self) -> f64 {
        let status = self.limiter.status();
        #[allow(clippy::cast_precision_loss)]
        let waiting = status.waiting as f64;
        status.full_in.as_secs_f64() * self.milli_rps + waiting * 1000.0
    }
}

/// The largest differences from the recordings.
#[derive(Debug, Default)]
struct Farthest {
    held: usize,
    held_ms: f64,
    excesses: usize,
    /// In milliseconds of leakage.
    excess_ms: f64,
}

impl Farthest {
    /// Checks a wait. The error is the expected and the actual value.
    fn held(&mut self, event: &Event, held: Duration) -> Result<(), (String, String)> {
        if event.verdict != Verdict::Delayed {
            return Ok(());
        }
        let (expected, got) = (event.held_ms, held.as_secs_f64() * 1e3);
        let apart = (got - expected).abs();
        self.held += 1;
        self.held_ms = self.held_ms.max(apart);
        within(apart, HELD_APART_MS, || (format!("held for {expected} ms"), format!("{got:.3} ms")))
    }

    fn excess(&mut self, expected: f64, got: f64, milli_rps: f64) -> Result<(), (String, String)> {
        let apart_ms = (got - expected).abs() / milli_rps * 1000.0;
        self.excesses += 1;
        self.excess_ms = self.excess_ms.max(apart_ms);
        within(apart_ms, ARRIVAL_APART_MS, || (format!("an excess of {expected}"), format!("{got:.1}")))
    }

    fn note(&self) -> String {
        let Farthest { held, held_ms, excesses, excess_ms } = self;
        format!(
            "{held} times of waiting, at most {held_ms:.1} ms apart where {HELD_APART_MS} ms were allowed; \
             {excesses} excesses, at most {excess_ms:.1} ms of leakage apart where {ARRIVAL_APART_MS} ms were allowed"
        )
    }
}

fn within<E>(apart: f64, allowance: f64, error: impl FnOnce() -> E) -> Result<(), E> {
    if apart <= allowance { Ok(()) } else { Err(error()) }
}
