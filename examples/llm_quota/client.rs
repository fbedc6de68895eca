//! The callers: tasks of several tenants, one queue, one HTTP client.

use std::error::Error;
use std::fmt;
use std::iter;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use reqwest::{Client, StatusCode, Url};
use serde_json::{Value, json};
use tidegate::{
    AllOf, AllRequest, AllReservation, CountingLimit, Rate, RateLimiter, Reservation, TokenBucket,
};
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval};

use crate::tenants::{TENANTS, Tenant};

/// The lateness that a limiter makes up for, so that a busy machine does not slow it down.
const CATCH_UP: Duration = Duration::from_millis(50);

/// The most by which the transit times of two calls can differ.
const JITTER: Duration = Duration::from_millis(250);

/// The limits of the callers.
pub(crate) struct Limits {
    requests: RateLimiter<TokenBucket>,
    tokens: RateLimiter<TokenBucket>,
    in_flight: CountingLimit,
    all: AllOf,
    /// A limit of only this tenant.
    own: [Option<RateLimiter<TokenBucket>>; TENANTS.len()],
}

impl Limits {
    /// Creates the limits for a server that saves the permits of a duration `burst`.
    ///
    /// A call is charged here before the server charges it, and given back here after the server
    /// gives it back. So the server never has fewer permits than the callers believe, except for
    /// permits that accrue in transit, and for the lateness that a limiter makes up for. The
    /// callers save that much less.
    pub(crate) fn new(
        [requests, tokens]: [Rate; 2],
        burst: Duration,
        in_flight: u32,
    ) -> Result<Limits, Box<dyn Error>> {
        let largest = TENANTS.iter().map(Tenant::largest).max().unwrap_or(0);
        let saved = burst.saturating_sub(CATCH_UP + JITTER);
        let bursts = [requests, tokens].map(|rate| whole(rate.as_per_second() * saved.as_secs_f64()));
        if bursts[0] < 1 || bursts[1] < largest {
            return Err(format!(
                "the burst is too short: of {burst:?} the callers save {} requests and {} tokens, and need 1 and {largest}",
                bursts[0], bursts[1]
            )
            .into());
        }
        let limiter = |rate, burst| -> Result<_, Box<dyn Error>> {
            let limiter = RateLimiter::new(TokenBucket::try_new(rate, burst)?);
            limiter.set_catch_up(CATCH_UP);
            Ok(limiter)
        };
        let mut own = [const { None }; TENANTS.len()];
        for (own, tenant) in own.iter_mut().zip(&TENANTS) {
            if let Some(part) = tenant.part {
                let rate = Rate::from_per_second(tokens.as_per_second() / f64::from(part))?;
                *own = Some(limiter(rate, tenant.largest().max(bursts[1] / part))?);
            }
        }
        let (requests, tokens) = (limiter(requests, bursts[0])?, limiter(tokens, bursts[1])?);
        let in_flight = CountingLimit::new(in_flight);
        let all =
            AllOf::new("requests", &requests).with("tokens", &tokens).with_counting("in flight", &in_flight);
        Ok(Limits { requests, tokens, in_flight, all, own })
    }

    /// Waits until a tenant may make a call that costs at most `tokens` tokens.
    ///
    /// It waits for the tenant's own limit first. In the queue that all tenants share, the waiters
    /// behind would also wait for that limit.
    async fn acquire(&self, tenant: usize, tokens: u32) -> Result<Permit, Box<dyn Error + Send + Sync>> {
        let mut waited = [Duration::ZERO; 2];
        let own = match &self.own[tenant] {
            Some(limiter) => {
                let mut own = limiter.reserve(tokens)?;
                waited[0] = (&mut own).await?.waited();
                Some(own)
            }
            None => None,
        };
        let request = AllRequest::new().cost("tokens", tokens).priority(TENANTS[tenant].priority);
        let mut all = self.all.reserve(request)?;
        waited[1] = (&mut all).await?.waited();
        Ok(Permit { own, all, waited })
    }

    /// Returns the rest of both budgets. It is negative if a call used more than its estimate.
    fn left(&self) -> [f64; 2] {
        // While a request waits, no permit counts as available. So the rest is computed from the
        // time until full.
        [&self.requests, &self.tokens].map(|limiter| {
            let missing = limiter.rate().as_per_second() * limiter.status().full_in.as_secs_f64();
            f64::from(limiter.policy().burst()) - missing
        })
    }
}

impl fmt::Display for Limits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [requests, tokens] = [&self.requests, &self.tokens].map(|limiter| limiter.policy().burst());
        write!(f, "bursts {requests} and {tokens}, {} in flight", self.in_flight.limit())
    }
}

/// The right to make a call.
struct Permit {
    own: Option<Reservation<TokenBucket>>,
    all: AllReservation,
    /// The wait for the tenant's own limit, and then the wait in the common queue.
    waited: [Duration; 2],
}

impl Permit {
    /// Ends the call, which used this many tokens. If the use is unknown, `settle` is not called,
    /// and the call costs its estimate.
    fn settle(self, tokens: u32) -> Result<(), Box<dyn Error + Send + Sync>> {
        if let Some(own) = self.own {
            own.settle(tokens);
        }
        // This also ends the call: it is no longer in flight.
        self.all.settle([("tokens", tokens)])?;
        Ok(())
    }
}

/// One call, from the wait to the response.
pub(crate) struct Call {
    /// The index of the tenant.
    pub(crate) tenant: usize,
    /// Whether the call belongs to the second half.
    pub(crate) short: bool,
    /// The most tokens that it could cost.
    pub(crate) estimate: u32,
    /// When it asked for permits, from the start of the run.
    pub(crate) asked_at: Duration,
    /// The wait for the tenant's own limit, and then the wait in the common queue.
    pub(crate) waited: [Duration; 2],
    /// When the request was sent, and when the response arrived, from the start of the run.
    pub(crate) began_at: Duration,
    pub(crate) answered_at: Duration,
    pub(crate) answer: Answer,
}

pub(crate) enum Answer {
    /// With the tokens that it cost.
    Success(u32),
    /// 429.
    Refused,
    /// Another status, no response, or an invalid response.
    Failed(String),
}

/// The budgets that the callers believed to have at some time, from the start of the run.
#[derive(Clone, Copy)]
pub(crate) struct Believed {
    pub(crate) at: Duration,
    pub(crate) budgets: [f64; 2],
}

/// The state that the tasks share.
struct Shared {
    client: Client,
    url: Url,
    limits: Option<Limits>,
    calls: u32,
    begin: Instant,
    bar: ProgressBar,
    asked: AtomicU32,
    refused: AtomicU32,
    believed: Mutex<Vec<Believed>>,
}

/// Makes the calls, and shows their progress. Returns them with the budgets that the callers
/// believed to have in the meantime.
pub(crate) async fn run(
    url: Url,
    limits: Option<Limits>,
    calls: u32,
    begin: Instant,
) -> Result<(Vec<Call>, Vec<Believed>), Box<dyn Error>> {
    // Fails if a provider is already installed, which is fine.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let client = Client::builder()
        .redirect(reqwest::redirect::Policy::none())
        // Each call needs a permit, so the client must not retry by itself.
        .retry(reqwest::retry::never())
        .timeout(Duration::from_secs(30))
        .build()?;
    let bar = ProgressBar::new(calls.into());
    let style = ProgressStyle::with_template("{bar:50.green/dim} {pos} of {len} calls, {elapsed}");
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    let zero = || AtomicU32::new(0);
    let full = limits.iter().map(|limits| Believed { at: Duration::ZERO, budgets: limits.left() });
    let believed = Mutex::new(full.collect());
    let shared = Shared { client, url, limits, calls, begin, bar, asked: zero(), refused: zero(), believed };
    let shared = Arc::new(shared);

    let watchers = [tokio::spawn(print_every_second(shared.clone())), tokio::spawn(watch(shared.clone()))];
    let mut tasks = JoinSet::new();
    for (tenant, Tenant { tasks: number, .. }) in TENANTS.iter().enumerate() {
        for _ in 0..*number {
            tasks.spawn(make_calls(shared.clone(), tenant));
        }
    }
    let calls = tasks.join_all().await.into_iter().flatten().collect();
    watchers.iter().for_each(tokio::task::JoinHandle::abort);
    shared.bar.finish_and_clear();
    let believed = std::mem::take(&mut *shared.believed.lock().unwrap_or_else(PoisonError::into_inner));
    Ok((calls, believed))
}

/// One task of a tenant: waits, calls, settles and pauses in a loop, until all calls are made.
async fn make_calls(shared: Arc<Shared>, tenant: usize) -> Vec<Call> {
    let mut calls = Vec::new();
    loop {
        let number = shared.asked.fetch_add(1, Ordering::Relaxed);
        if number >= shared.calls {
            return calls;
        }
        let call = make_call(&shared, tenant, number).await;
        if let Answer::Refused = call.answer {
            shared.refused.fetch_add(1, Ordering::Relaxed);
        }
        shared.bar.inc(1);
        calls.push(call);
        tokio::time::sleep(TENANTS[tenant].pause(number)).await;
    }
}

async fn make_call(shared: &Shared, tenant: usize, number: u32) -> Call {
    let Tenant { name, .. } = &TENANTS[tenant];
    let (asked_at, short) = (shared.begin.elapsed(), number >= shared.calls.div_ceil(2));
    let (prompt_tokens, max_tokens) = TENANTS[tenant].call(number, short);
    // The cost that the server charges. An estimate could be wrong in either direction; here it is
    // the most that a call can cost.
    let estimate = prompt_tokens + max_tokens;
    let permit = match &shared.limits {
        Some(limits) => limits.acquire(tenant, estimate).await.map(Some),
        None => Ok(None),
    };
    let waited = permit.iter().flatten().map(|permit| permit.waited).next().unwrap_or_default();
    let began_at = shared.begin.elapsed();
    let answer = match permit {
        Ok(permit) => {
            let body = json!({ "tenant": name, "prompt_tokens": prompt_tokens, "max_tokens": max_tokens });
            let answer = send(shared, &body).await;
            match (&answer, permit) {
                (Answer::Success(tokens), Some(permit)) => match permit.settle(*tokens) {
                    Ok(()) => answer,
                    Err(error) => Answer::Failed(error.to_string()),
                },
                _ => answer,
            }
        }
        Err(refusal) => Answer::Failed(refusal.to_string()),
    };
    Call { tenant, short, estimate, asked_at, waited, began_at, answered_at: shared.begin.elapsed(), answer }
}

async fn send(shared: &Shared, body: &Value) -> Answer {
    let answer = async {
        let request = shared.client.post(shared.url.clone()).header("content-type", "application/json");
        let response = request.body(body.to_string()).send().await?;
        let status = response.status();
        // Read to the end, so that the connection can be reused.
        Ok::<_, reqwest::Error>((status, response.bytes().await?))
    };
    match answer.await {
        Ok((status, body)) if status.is_success() => match used(&body) {
            Some(tokens) => Answer::Success(tokens),
            None => Answer::Failed("a response without usage".to_owned()),
        },
        Ok((StatusCode::TOO_MANY_REQUESTS, _)) => Answer::Refused,
        Ok((status, _)) => Answer::Failed(status.to_string()),
        Err(error) => Answer::Failed(with_causes(&error)),
    }
}

/// Returns the tokens that a call used, from its response.
fn used(body: &[u8]) -> Option<u32> {
    let body: Value = serde_json::from_slice(body).ok()?;
    u32::try_from(body["usage"]["total_tokens"].as_u64()?).ok()
}

/// Returns an error and its causes on one line.
fn with_causes(error: &(dyn Error + 'static)) -> String {
    let causes = iter::successors(Some(error), |&error| error.source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

/// Records the budgets that the callers believe to have, fifty times per second.
async fn watch(shared: Arc<Shared>) {
    let Some(limits) = &shared.limits else { return };
    let mut ticks = interval(Duration::from_millis(20));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
    loop {
        ticks.tick().await;
        let now = Believed { at: shared.begin.elapsed(), budgets: limits.left() };
        shared.believed.lock().unwrap_or_else(PoisonError::into_inner).push(now);
    }
}

/// Prints a line every second, above the bar if there is one.
async fn print_every_second(shared: Arc<Shared>) {
    let mut ticks = interval(Duration::from_secs(1));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
    ticks.tick().await;
    loop {
        ticks.tick().await;
        let (now, answered) = (shared.begin.elapsed().as_secs_f64(), shared.bar.position());
        let refused = shared.refused.load(Ordering::Relaxed);
        let believed = shared.limits.as_ref().map(|limits| {
            let ([requests, tokens], waiting) = (limits.left(), limits.all.status().waiting);
            format!(", {requests:4.0} requests and {tokens:5.0} tokens left, {waiting:2} wait")
        });
        shared.bar.suspend(|| {
            let believed = believed.unwrap_or_default();
            println!("{now:4.0} s {answered:6} answered {refused:6} x 429{believed}");
        });
    }
}

/// Returns a number of whole permits.
fn whole(permits: f64) -> u32 {
    // A cast of a float saturates.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    let whole = permits.floor() as u32;
    whole
}
