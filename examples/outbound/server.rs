//! The third party: an HTTP server that counts strictly.

use std::collections::VecDeque;
use std::error::Error;
use std::fmt;
use std::net::{SocketAddr, TcpListener};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::get;
use clap::ValueEnum;
use tidegate::{AnyPolicy, Rate, RateLimiter};

use crate::client::CATCH_UP;

/// The way in which the third party counts.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Kind {
    /// An exact log of 5 seconds, with a tolerance of what LIMIT allows in 100 ms.
    Tolerant,
    /// An exact log: LIMIT in any window.
    Log,
    /// LIMIT in each window of its clock.
    Window,
    /// A token bucket with a burst of 10.
    Bucket,
    /// GCRA without a tolerance.
    Gcra,
    /// NGINX with `burst=10 nodelay`.
    NginxBurst,
    /// NGINX without a burst.
    Nginx,
}

impl Kind {
    /// Returns the policy, and how many calls may come early.
    fn policy(self, rate: Rate) -> Option<(String, &'static str)> {
        Some(match self {
            Kind::Tolerant => return None,
            Kind::Log => (format!("sliding_log {rate}"), "all calls of a window at once"),
            Kind::Window => (format!("fixed_window {rate}"), "all calls of a window at once"),
            Kind::Bucket => (format!("token_bucket {rate} burst 10"), "a burst of 10 calls"),
            Kind::Gcra => (format!("token_bucket {rate} burst 1"), "none"),
            Kind::NginxBurst => {
                (format!("leaky_bucket {rate} capacity 10 nodelay 10"), "10 calls beside the one that passes")
            }
            Kind::Nginx => (format!("leaky_bucket {rate} capacity 0"), "none"),
        })
    }
}

/// The rule of the third party: in any span of time *d*, of 5 s or shorter, it accepts at most
/// `rate * d` calls plus a tolerance. (Below 0.2 permits per second the longest span is the time of
/// one permit.)
///
/// The count is exact: the server keeps the times of all calls accepted in the last 5 s, and
/// refuses a call if it would be one too many since any of them. A refused call does not count.
///
/// The tolerance is 1 call, plus what the rate allows in 100 ms. This accepts what a limiter may
/// do: a limiter that makes up for late timers grants up to `1 + rate * (d + catch-up)`, and the
/// catch-up is 50 ms here. The other 50 ms cover the difference between the transit times of two
/// calls. In 5 s, a caller that is 3 % too fast is 150 ms ahead, and refused.
#[derive(Clone, Copy)]
struct Rule {
    rate: f64,
    tolerance: f64,
    longest: Duration,
}

impl Rule {
    const LONGEST: Duration = Duration::from_secs(5);
    /// The most by which the transit times of two calls can differ.
    const JITTER: Duration = Duration::from_millis(50);

    fn new(rate: Rate) -> Rule {
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

/// The calls accepted in the last 5 s.
struct Log {
    rule: Rule,
    accepted: VecDeque<Instant>,
    /// The most of the tolerance that was ever used.
    used: f64,
}

impl Log {
    fn accepts(&mut self, now: Instant) -> bool {
        while self.accepted.front().is_some_and(|&at| now.duration_since(at) > self.rule.longest) {
            self.accepted.pop_front();
        }
        // From each accepted call to this one: the number of calls, minus the number that the rate
        // allows.
        let spans = self.accepted.iter().rev().zip(2u32..);
        let ahead = spans.map(|(&at, calls)| f64::from(calls) - self.rule.rate * (now - at).as_secs_f64());
        let ahead = ahead.fold(1.0, f64::max);
        if ahead > self.rule.tolerance {
            return false;
        }
        self.used = self.used.max(ahead);
        self.accepted.push_back(now);
        true
    }
}

enum By {
    Log(Log),
    Policy(RateLimiter<AnyPolicy>),
}

/// The counts so far.
struct Count {
    by: By,
    calls: u32,
    refused: u32,
}

impl Count {
    fn answer(&mut self, now: Instant) -> StatusCode {
        self.calls += 1;
        let accepted = match &mut self.by {
            By::Log(log) => log.accepts(now),
            By::Policy(limiter) => limiter.try_acquire().is_ok(),
        };
        if accepted {
            return StatusCode::OK;
        }
        self.refused += 1;
        StatusCode::TOO_MANY_REQUESTS
    }
}

/// The server. It runs until the program ends.
pub(crate) struct Server {
    address: SocketAddr,
    /// The rule by which it accepts calls.
    rule: String,
    /// How many calls may come early.
    tolerance: String,
    count: Arc<Mutex<Count>>,
}

impl Server {
    /// Starts the server on a free port of the loopback, on a thread with its own runtime.
    pub(crate) fn start(kind: Kind, rate: Rate) -> Result<Server, Box<dyn Error>> {
        let (by, rule, tolerance) = match kind.policy(rate) {
            None => {
                let rule = Rule::new(rate);
                let tolerance = format!("{:.0} calls in any span", rule.tolerance.floor());
                let by = By::Log(Log { rule, accepted: VecDeque::new(), used: 0.0 });
                (by, rule.to_string(), tolerance)
            }
            Some((policy, tolerance)) => {
                let limiter = RateLimiter::new(policy.parse()?);
                (By::Policy(limiter), format!("what {policy} does"), tolerance.to_owned())
            }
        };
        let listener = TcpListener::bind(("127.0.0.1", 0))?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let count = Arc::new(Mutex::new(Count { by, calls: 0, refused: 0 }));
        let app = Router::new().route("/", get(answer)).with_state(count.clone());
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        thread::Builder::new().name("third party".into()).spawn(move || {
            runtime.block_on(async { axum::serve(tokio::net::TcpListener::from_std(listener)?, app).await })
        })?;
        Ok(Server { address, rule, tolerance, count })
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}/", self.address)
    }

    pub(crate) fn rule(&self) -> &str {
        &self.rule
    }

    pub(crate) fn tolerance(&self) -> &str {
        &self.tolerance
    }

    /// Returns its counts.
    pub(crate) fn tally(&self) -> String {
        let Count { by, calls, refused } = &*self.count.lock().unwrap_or_else(PoisonError::into_inner);
        let counted = format!("{calls} calls, {refused} refused");
        match by {
            By::Policy(_) => counted,
            By::Log(Log { rule, used, .. }) => {
                format!("{counted}; {used:.1} of the tolerance of {} used", rule.tolerance.floor())
            }
        }
    }
}

async fn answer(State(count): State<Arc<Mutex<Count>>>) -> StatusCode {
    let mut count = count.lock().unwrap_or_else(PoisonError::into_inner);
    count.answer(Instant::now())
}
