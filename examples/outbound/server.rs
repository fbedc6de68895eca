//! The third party: an HTTP server that counts strictly.

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::get;
use tidegate::Rate;

use crate::client::CATCH_UP;

/// What the third party accepts: in any span of time *d*, of 5 s or shorter, at most `rate * d`
/// calls plus a tolerance. (Below 0.2 permits per second the longest span is the time of one
/// permit.)
///
/// The count is exact: the times of all calls accepted in the last 5 s are kept, and a call is
/// refused if there is one of them since which it would be one too many. A refused call does not
/// count.
///
/// The tolerance is 1 call, plus what the rate allows in 100 ms. It takes a limiter as it is: one
/// that pays late timers back grants up to `1 + rate * (d + catch-up)`, and the catch-up is 50 ms
/// here. That leaves 50 ms by which a call may be longer on its way than another. In 5 s, a caller
/// that is 3 % too fast is 150 ms ahead, and refused.
#[derive(Clone, Copy)]
pub(crate) struct Rule {
    rate: f64,
    tolerance: f64,
    longest: Duration,
}

impl Rule {
    const LONGEST: Duration = Duration::from_secs(5);
    /// By how much longer than another a call can be on its way.
    const JITTER: Duration = Duration::from_millis(50);

    pub(crate) fn new(rate: Rate) -> Rule {
        let rate = rate.as_per_second();
        let tolerance = 1.0 + rate * (CATCH_UP + Rule::JITTER).as_secs_f64();
        let permit = Duration::try_from_secs_f64(1.0 / rate).unwrap_or(Duration::MAX);
        Rule { rate, tolerance, longest: permit.max(Rule::LONGEST) }
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/s and a tolerance of {:.0} calls in any span", self.rate, self.tolerance.floor())
    }
}

/// The calls accepted in the last 5 s, and what was seen so far.
struct Log {
    rule: Rule,
    accepted: VecDeque<Instant>,
    calls: u32,
    refused: u32,
    /// How much of the tolerance was ever used.
    used: f64,
}

impl Log {
    fn answer(&mut self, now: Instant) -> StatusCode {
        self.calls += 1;
        while self.accepted.front().is_some_and(|&at| now.duration_since(at) > self.rule.longest) {
            self.accepted.pop_front();
        }
        // From each accepted call on, with this one: how many there are, less how many the rate
        // allows.
        let spans = self.accepted.iter().rev().zip(2u32..);
        let ahead = spans.map(|(&at, calls)| f64::from(calls) - self.rule.rate * (now - at).as_secs_f64());
        let ahead = ahead.fold(1.0, f64::max);
        if ahead > self.rule.tolerance {
            self.refused += 1;
            return StatusCode::TOO_MANY_REQUESTS;
        }
        self.used = self.used.max(ahead);
        self.accepted.push_back(now);
        StatusCode::OK
    }
}

/// The server. It runs until the program ends.
pub(crate) struct Server {
    address: SocketAddr,
    rule: Rule,
    log: Arc<Mutex<Log>>,
}

impl Server {
    /// Starts it on a free port of the loopback, on a thread with an event loop of its own.
    pub(crate) fn start(rule: Rule) -> io::Result<Server> {
        let listener = TcpListener::bind(("127.0.0.1", 0))?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let log = Log { rule, accepted: VecDeque::new(), calls: 0, refused: 0, used: 0.0 };
        let log = Arc::new(Mutex::new(log));
        let app = Router::new().route("/", get(answer)).with_state(log.clone());
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        thread::Builder::new().name("third party".into()).spawn(move || {
            runtime.block_on(async { axum::serve(tokio::net::TcpListener::from_std(listener)?, app).await })
        })?;
        Ok(Server { address, rule, log })
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}/", self.address)
    }

    pub(crate) fn rule(&self) -> Rule {
        self.rule
    }

    /// What it counted.
    pub(crate) fn tally(&self) -> String {
        let Log { rule, calls, refused, used, .. } =
            &*self.log.lock().unwrap_or_else(PoisonError::into_inner);
        let tolerance = rule.tolerance.floor();
        format!("{calls} calls, {refused} refused; {used:.1} of the tolerance of {tolerance} used")
    }
}

async fn answer(State(log): State<Arc<Mutex<Log>>>) -> StatusCode {
    let mut log = log.lock().unwrap_or_else(PoisonError::into_inner);
    log.answer(Instant::now())
}
