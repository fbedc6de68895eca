//! The permits that callers ask for, and when.

use std::time::Duration;

use tidegate::Pause;

/// One request.
#[derive(Clone, Copy)]
pub(crate) struct Request {
    pub(crate) at: Duration,
    pub(crate) permits: u32,
}

/// Requests in the order of time, and a pause of the limiter.
#[derive(Clone, Default)]
pub(crate) struct Demand {
    requests: Vec<Request>,
    pause: Option<(Duration, Pause)>,
}

/// A time in the pictures.
pub(crate) fn seconds(seconds: f64) -> Duration {
    Duration::from_secs_f64(seconds)
}

impl Demand {
    /// Adds `count` requests for one permit each, all at once.
    pub(crate) fn burst(self, at: f64, count: usize) -> Demand {
        self.with((0..count).map(|_| Request { at: seconds(at), permits: 1 }))
    }

    /// Adds one request for several permits.
    pub(crate) fn large(self, at: f64, permits: u32) -> Demand {
        self.with([Request { at: seconds(at), permits }])
    }

    /// Adds requests for one permit each, evenly spaced, from one time until before another.
    pub(crate) fn steady(self, from: f64, until: f64, per_second: u32) -> Demand {
        let time = |index| seconds(from) + Duration::from_secs(index) / per_second;
        let times = (0..).map(time).take_while(|at| *at < seconds(until));
        self.with(times.map(|at| Request { at, permits: 1 }))
    }

    /// Adds a pause of the limiter that begins at a time.
    pub(crate) fn pause(self, at: f64, pause: Pause) -> Demand {
        Demand { pause: Some((seconds(at), pause)), ..self }
    }

    /// Returns the pause, and when it begins.
    pub(crate) fn paused(&self) -> Option<(Duration, Pause)> {
        self.pause
    }

    pub(crate) fn requests(&self) -> &[Request] {
        &self.requests
    }

    fn with(mut self, requests: impl IntoIterator<Item = Request>) -> Demand {
        self.requests.extend(requests);
        // The sort is stable: requests of one time stay in the order in which they were added.
        self.requests.sort_by_key(|request| request.at);
        self
    }
}
