//! Runs a limiter against a demand on a manual clock, and counts the permits that it let through.

use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use tidegate::{Acquire, Clock, ManualClock, Policy, RateLimiter, Refusal};

use crate::demand::{Demand, Request, seconds};

/// The behavior of callers when no permit is due.
#[derive(Clone, Copy)]
pub(crate) enum Patience {
    /// They do not wait.
    None,
    /// They wait, unless the wait would be longer.
    AtMost(f64),
    /// They wait without bound.
    Endless,
}

/// The result of a run.
pub(crate) struct Course {
    end: Duration,
    /// All requests, at the times at which they were made.
    pub(crate) asked: Vec<Request>,
    /// The requests that were not refused, at the times at which they were made.
    pub(crate) let_in: Vec<Request>,
    /// The requests that were granted, at the times at which they were granted.
    pub(crate) granted: Vec<Request>,
    /// How many permits the limiter counted as used, over time.
    counted: Vec<(Duration, u64)>,
}

/// The interval at which a limiter is asked for its count.
const READING: Duration = Duration::from_millis(500);

impl Course {
    /// Runs a new limiter with this policy until `end`.
    pub(crate) fn new(
        policy: impl Policy,
        demand: &Demand,
        patience: Patience,
        end: f64,
    ) -> Result<Course, Refusal> {
        let clock = ManualClock::new();
        let limiter = RateLimiter::with_clock(policy, clock.clone());
        let end = seconds(end);
        let mut course =
            Course { end, asked: Vec::new(), let_in: Vec::new(), granted: Vec::new(), counted: Vec::new() };
        let mut waiting = Vec::new();
        let mut now = Duration::ZERO;
        let mut pause = demand.paused();
        let mut advance = |to: Duration| {
            if let Some((begin, pause)) = pause.take_if(|(begin, _)| *begin <= to) {
                clock.advance(begin - now);
                now = begin;
                limiter.pause(pause);
            }
            clock.advance(to - now);
            now = to;
        };

        let mut requests = demand.requests().iter().copied().peekable();
        let mut reading = Duration::ZERO;
        while reading <= end {
            while let Some(request) = requests.next_if(|request| request.at < reading) {
                advance(request.at);
                course.asked.push(request);
                let mut caller = Caller::new(&clock, ask(&limiter, request.permits, patience));
                match caller.poll() {
                    Poll::Ready(Err(Refusal::Limited { .. } | Refusal::Paused { .. })) => continue,
                    Poll::Ready(Err(refusal)) => return Err(refusal),
                    Poll::Ready(Ok(_)) => course.granted.push(request),
                    Poll::Pending => waiting.push((request, caller)),
                }
                course.let_in.push(request);
            }
            advance(reading);
            let status = limiter.status();
            course.counted.push((reading, status.limit.saturating_sub(status.available)));
            reading += READING;
        }
        for (request, mut caller) in waiting {
            // The task was woken when its request was granted, or refused after all.
            let woken = caller.alarm.woken.get().copied();
            if let (Some(at), Poll::Ready(Ok(_))) = (woken, caller.poll()) {
                course.granted.push(Request { at, ..request });
            }
        }
        course.granted.sort_by_key(|grant| grant.at);
        Ok(course)
    }

    /// Returns the permits granted from one time until before another.
    pub(crate) fn between(&self, from: f64, until: f64) -> u64 {
        let (from, until) = (seconds(from), seconds(until));
        total(self.granted.iter().filter(|grant| (from..until).contains(&grant.at)))
    }

    /// Returns the permits granted at a time.
    pub(crate) fn at(&self, at: f64) -> u64 {
        total(self.granted.iter().filter(|grant| grant.at == seconds(at)))
    }

    /// Returns the permits granted after one time and before another.
    pub(crate) fn after(&self, from: f64, until: f64) -> u64 {
        self.between(from, until) - self.at(from)
    }

    /// Returns the most permits in any span of this length that does not include its end.
    pub(crate) fn most_in(&self, span: f64) -> u64 {
        let from = |first: &Request| {
            let times = first.at..first.at + seconds(span);
            total(self.granted.iter().filter(|grant| times.contains(&grant.at)))
        };
        self.granted.iter().map(from).max().unwrap_or_default()
    }

    /// Returns the times from one grant to the next.
    pub(crate) fn gaps(&self) -> impl Iterator<Item = Duration> {
        self.granted.windows(2).map(|pair| pair[1].at - pair[0].at)
    }

    /// Returns the permits of the span that ends at each reading.
    pub(crate) fn in_last(&self, span: f64) -> Vec<(f64, f64)> {
        let times = self.counted.iter().map(|(time, _)| *time);
        let inside = |end: Duration| {
            let recent =
                self.granted.iter().filter(move |grant| grant.at <= end && grant.at + seconds(span) > end);
            total(recent) as f64
        };
        times.map(|time| (time.as_secs_f64(), inside(time))).collect()
    }

    /// Returns the permits that the limiter counted as used, as points.
    pub(crate) fn counted(&self) -> Vec<(f64, f64)> {
        self.counted.iter().map(|(time, used)| (time.as_secs_f64(), *used as f64)).collect()
    }

    /// Returns a staircase of the sum of these requests over time.
    pub(crate) fn sum(&self, requests: &[Request]) -> Vec<(f64, f64)> {
        let mut points = vec![(0.0, 0.0)];
        let mut sum = 0.0;
        for same_time in requests.chunk_by(|a, b| a.at == b.at) {
            let at = same_time[0].at.as_secs_f64();
            points.push((at, sum));
            sum += total(same_time) as f64;
            points.push((at, sum));
        }
        points.push((self.end.as_secs_f64(), sum));
        points
    }

    /// Returns the outline of bars, one for each `width`, as high as the rate in it.
    pub(crate) fn bars(&self, requests: &[Request], width: f64) -> Vec<(f64, f64)> {
        let bins = self.end.div_duration_f64(seconds(width)).ceil();
        let mut points = Vec::new();
        let mut left = 0.0;
        while left < bins * width {
            let (from, until) = (seconds(left), seconds(left + width));
            let inside = requests.iter().filter(|request| (from..until).contains(&request.at));
            let height = total(inside) as f64 / width;
            points.extend([(left, height), (left + width, height)]);
            left += width;
        }
        points
    }
}

/// Returns the permits of some requests.
pub(crate) fn total<'a>(requests: impl IntoIterator<Item = &'a Request>) -> u64 {
    requests.into_iter().map(|request| u64::from(request.permits)).sum()
}

fn ask<P: Policy>(
    limiter: &RateLimiter<P, ManualClock>,
    permits: u32,
    patience: Patience,
) -> Acquire<'_, P, ManualClock> {
    match patience {
        Patience::None => limiter.acquire_many(tidegate::Request::permits(permits).within(Duration::ZERO)),
        Patience::AtMost(most) => {
            limiter.acquire_many(tidegate::Request::permits(permits).within(seconds(most)))
        }
        Patience::Endless => limiter.acquire_many(permits),
    }
}

/// A task that only waits.
struct Caller<F> {
    future: Pin<Box<F>>,
    alarm: Arc<Alarm>,
}

/// Records when its task was woken.
struct Alarm {
    clock: ManualClock,
    woken: OnceLock<Duration>,
}

impl<F: Future> Caller<F> {
    fn new(clock: &ManualClock, future: F) -> Caller<F> {
        let alarm = Alarm { clock: clock.clone(), woken: OnceLock::new() };
        Caller { future: Box::pin(future), alarm: Arc::new(alarm) }
    }

    fn poll(&mut self) -> Poll<F::Output> {
        let waker = Waker::from(self.alarm.clone());
        self.future.as_mut().poll(&mut Context::from_waker(&waker))
    }
}

impl Wake for Alarm {
    fn wake(self: Arc<Self>) {
        // The clock stands at the time for which the task waited.
        self.woken.get_or_init(|| self.clock.now().as_duration());
    }
}
