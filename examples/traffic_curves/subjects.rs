//! All policies with one limit, 10 permits per second.

use std::error::Error;
use std::time::Duration;

use tidegate::{
    FixedWindow, LeakyBucket, Policy, Rate, Refusal, SlidingEstimate, SlidingLog, SlidingWindow,
    SmoothBursty, SmoothWarmingUp, TokenBucket,
};

use crate::course::{Course, Patience};
use crate::demand::Demand;

type Run = Box<dyn Fn(&Demand, Patience, f64) -> Result<Course, Refusal>>;

/// The permits of a burst after idling that are let through.
#[derive(Clone, Copy)]
pub(crate) struct Burst {
    pub(crate) at_once: u64,
    /// In the first 2 s.
    pub(crate) soon: u64,
}

pub(crate) struct Subject {
    pub(crate) title: &'static str,
    /// The statement of the overview about it.
    pub(crate) burst: Burst,
    /// The permits that it lets through in 10 s under a permanent excess demand.
    pub(crate) sustained: u64,
    run: Run,
}

impl Subject {
    fn new<P: Policy + Clone>(title: &'static str, (at_once, soon): (u64, u64), policy: P) -> Subject {
        let run: Run =
            Box::new(move |demand, patience, end| Course::new(policy.clone(), demand, patience, end));
        Subject { title, burst: Burst { at_once, soon }, sustained: 100, run }
    }

    fn sustaining(self, sustained: u64) -> Subject {
        Subject { sustained, ..self }
    }

    /// Runs a new limiter.
    pub(crate) fn run(&self, demand: &Demand, patience: Patience, end: f64) -> Result<Course, Refusal> {
        (self.run)(demand, patience, end)
    }
}

pub(crate) fn subjects() -> Result<Vec<Subject>, Box<dyn Error>> {
    let rate = Rate::per_second(10);
    let window: Rate = "20/2s".parse()?;
    let warm_up = Duration::from_secs(4);
    Ok(vec![
        Subject::new("SmoothBursty", (11, 30), SmoothBursty::new(rate)),
        Subject::new("SmoothWarmingUp", (1, 8), SmoothWarmingUp::new(rate, warm_up)),
        Subject::new("TokenBucket", (20, 39), TokenBucket::new(rate, 20)),
        Subject::new("TokenBucket in steps", (20, 40), TokenBucket::new(window, 20).interval_refill()?),
        Subject::new("LeakyBucket", (1, 20), LeakyBucket::new(rate).capacity(20)),
        Subject::new("FixedWindow", (20, 40), FixedWindow::new(window)),
        Subject::new("SlidingWindow (6)", (20, 37), SlidingWindow::new(window, 6)),
        Subject::new("SlidingEstimate", (20, 34), SlidingEstimate::new(window)).sustaining(95),
        Subject::new("SlidingLog", (20, 20), SlidingLog::new(window)),
    ])
}
