//! The API: an HTTP server with two budgets of its own.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::post;
use serde_json::{Value, json};
use tidegate::Rate;

use crate::tenants::pick;

/// The time to generate one token.
const PER_TOKEN: Duration = Duration::from_millis(2);

/// The terms of a budget.
#[derive(Clone, Copy)]
pub(crate) struct Terms {
    pub(crate) per_second: f64,
    pub(crate) burst: f64,
}

impl Terms {
    pub(crate) fn new(rate: Rate, burst: Duration) -> Terms {
        let per_second = rate.as_per_second();
        Terms { per_second, burst: per_second * burst.as_secs_f64() }
    }

    /// Returns the rest after a time in which nothing was taken.
    pub(crate) fn refilled(self, left: f64, time: Duration) -> f64 {
        (left + self.per_second * time.as_secs_f64()).min(self.burst)
    }
}

/// The rest of requests and tokens at some time, when a call was charged, or was given back its
/// unused tokens.
#[derive(Clone, Copy)]
pub(crate) struct Left {
    pub(crate) at: Instant,
    pub(crate) budgets: [f64; 2],
}

/// Both budgets, and the counts so far.
pub(crate) struct Ledger {
    terms: [Terms; 2],
    left: Left,
    tally: Tally,
}

#[derive(Clone)]
pub(crate) struct Tally {
    pub(crate) calls: u32,
    pub(crate) refused: u32,
    /// The lowest rest of each budget.
    pub(crate) lowest: [f64; 2],
    in_flight: u32,
    /// The most calls in flight at one time.
    pub(crate) most_in_flight: u32,
    /// The rest after each change.
    pub(crate) course: Vec<Left>,
}

impl Ledger {
    fn new(terms: [Terms; 2]) -> Ledger {
        let full = terms.map(|terms| terms.burst);
        let left = Left { at: Instant::now(), budgets: full };
        let tally =
            Tally { calls: 0, refused: 0, lowest: full, in_flight: 0, most_in_flight: 0, course: vec![left] };
        Ledger { terms, left, tally }
    }

    fn refill(&mut self, now: Instant) {
        let time = now.saturating_duration_since(self.left.at);
        for (left, terms) in self.left.budgets.iter_mut().zip(self.terms) {
            *left = terms.refilled(*left, time);
        }
        self.left.at = now;
    }

    /// Accepts a call, unless a budget has too few requests or tokens for the most that it may use.
    fn charge(&mut self, now: Instant, tokens: f64) -> bool {
        self.refill(now);
        self.tally.calls += 1;
        let costs = [1.0, tokens];
        if self.left.budgets.iter().zip(costs).any(|(left, cost)| *left < cost) {
            self.tally.refused += 1;
            return false;
        }
        for ((left, lowest), cost) in self.left.budgets.iter_mut().zip(&mut self.tally.lowest).zip(costs) {
            *left -= cost;
            *lowest = lowest.min(*left);
        }
        self.tally.in_flight += 1;
        self.tally.most_in_flight = self.tally.most_in_flight.max(self.tally.in_flight);
        self.tally.course.push(self.left);
        true
    }

    /// Ends the call, which did not use `tokens` tokens of its charge.
    fn give_back(&mut self, now: Instant, tokens: f64) {
        self.refill(now);
        let [_, left] = &mut self.left.budgets;
        *left = (*left + tokens).min(self.terms[1].burst);
        self.tally.in_flight -= 1;
        self.tally.course.push(self.left);
    }
}

/// The server. It runs until the program ends.
pub(crate) struct Server {
    address: SocketAddr,
    ledger: Arc<Mutex<Ledger>>,
}

impl Server {
    /// Starts the server on a free port of the loopback, on a thread with its own runtime.
    pub(crate) fn start(terms: [Terms; 2]) -> io::Result<Server> {
        let listener = TcpListener::bind(("127.0.0.1", 0))?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let ledger = Arc::new(Mutex::new(Ledger::new(terms)));
        let app = Router::new().route("/v1/complete", post(complete)).with_state(ledger.clone());
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        thread::Builder::new().name("server".into()).spawn(move || {
            runtime.block_on(async { axum::serve(tokio::net::TcpListener::from_std(listener)?, app).await })
        })?;
        Ok(Server { address, ledger })
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}/v1/complete", self.address)
    }

    /// Returns its counts.
    pub(crate) fn tally(&self) -> Tally {
        lock(&self.ledger).tally.clone()
    }
}

fn lock(ledger: &Mutex<Ledger>) -> MutexGuard<'_, Ledger> {
    ledger.lock().unwrap_or_else(PoisonError::into_inner)
}

type Answer = (StatusCode, [(&'static str, String); 3], String);

/// One call: `{tenant, prompt_tokens, max_tokens}`. The response is `{usage: {total_tokens}}`.
async fn complete(State(ledger): State<Arc<Mutex<Ledger>>>, body: Bytes) -> Answer {
    let body: Value = serde_json::from_slice(&body).unwrap_or_default();
    let number = |name: &str| body[name].as_u64().and_then(|number| u32::try_from(number).ok());
    let (Some(prompt), Some(max)) = (number("prompt_tokens"), number("max_tokens")) else {
        return answer(&ledger, StatusCode::BAD_REQUEST, &json!({ "error": "prompt_tokens, max_tokens?" }));
    };
    let charged = {
        let mut ledger = lock(&ledger);
        ledger.charge(Instant::now(), f64::from(prompt) + f64::from(max)).then_some(ledger.tally.calls)
    };
    let Some(call) = charged else {
        return answer(&ledger, StatusCode::TOO_MANY_REQUESTS, &json!({ "error": "rate limit" }));
    };
    // From a fifth of the maximum to all of it.
    let generated = pick(&(max / 5..max.saturating_add(1)), call.into());
    tokio::time::sleep(PER_TOKEN * generated).await;
    lock(&ledger).give_back(Instant::now(), f64::from(max - generated));
    let total = u64::from(prompt) + u64::from(generated);
    answer(&ledger, StatusCode::OK, &json!({ "usage": { "total_tokens": total } }))
}

fn answer(ledger: &Mutex<Ledger>, status: StatusCode, body: &Value) -> Answer {
    let [requests, tokens] = lock(ledger).left.budgets.map(|left| format!("{:.0}", left.floor()));
    let headers = [
        ("content-type", "application/json".to_owned()),
        ("x-ratelimit-remaining-requests", requests),
        ("x-ratelimit-remaining-tokens", tokens),
    ];
    (status, headers, body.to_string())
}
