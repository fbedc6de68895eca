//! The callers: many tasks, one limiter, one HTTP client.

use std::error::Error;
use std::iter;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use reqwest::{Client, StatusCode, Url};
use tidegate::{Rate, RateLimiter, SmoothBursty, SmoothWarmingUp};
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval_at};

/// The lateness that the limiter makes up for, so that a busy machine does not slow it down.
///
/// The default of 5 ms covers tokio's timer. If other programs compete for the processor, the
/// thread of the callers may stall for longer than that.
pub(crate) const CATCH_UP: Duration = Duration::from_millis(50);

pub(crate) enum Limiter {
    Bursty(RateLimiter<SmoothBursty>),
    WarmingUp(RateLimiter<SmoothWarmingUp>),
    None,
}

impl Limiter {
    /// Creates a limiter of a steady rate that saves nothing while no task calls, because the third
    /// party saves nothing either.
    pub(crate) fn bursty(rate: Rate, catch_up: Duration) -> Limiter {
        let limiter = RateLimiter::paced(rate);
        limiter.set_catch_up(catch_up);
        Limiter::Bursty(limiter)
    }

    pub(crate) fn warming_up(rate: Rate, warm_up: Duration, catch_up: Duration) -> Limiter {
        let limiter = RateLimiter::smooth_warming_up(rate, warm_up);
        limiter.set_catch_up(catch_up);
        Limiter::WarmingUp(limiter)
    }

    async fn acquire(&self) -> Duration {
        let answer = match self {
            Limiter::Bursty(limiter) => limiter.acquire().await,
            Limiter::WarmingUp(limiter) => limiter.acquire().await,
            Limiter::None => return Duration::ZERO,
        };
        answer.expect("the queue has no bounds").waited()
    }
}

/// One call, from the wait for a permit to the response.
pub(crate) struct Call {
    /// The position of the call in the order of requests for a permit.
    pub(crate) asked: u32,
    /// The position of the call in the order of grants.
    pub(crate) granted: u32,
    pub(crate) waited: Duration,
    /// When the permit was granted, from the start of the run.
    pub(crate) granted_at: Duration,
    /// When the response arrived, from the start of the run.
    pub(crate) answered_at: Duration,
    pub(crate) answer: Answer,
}

pub(crate) enum Answer {
    Success,
    /// 429.
    Refused,
    /// Another status, or no response.
    Failed(String),
}

/// Creates a client that makes one call per request. It follows no redirect, because that call
/// would have no permit.
pub(crate) fn client() -> Result<Client, Box<dyn Error>> {
    // Fails if a provider is already installed, which is fine.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let client = Client::builder()
        .redirect(reqwest::redirect::Policy::none())
        .retry(reqwest::retry::never())
        .timeout(Duration::from_secs(30))
        .build()?;
    Ok(client)
}

/// The state that the tasks share.
struct Shared {
    client: Client,
    url: Url,
    limiter: Limiter,
    calls: u32,
    begin: Instant,
    bar: ProgressBar,
    asked: AtomicU32,
    granted: AtomicU32,
    refused: AtomicU32,
}

/// Makes the calls, and shows their progress.
pub(crate) async fn run(client: Client, url: Url, limiter: Limiter, calls: u32, tasks: u32) -> Vec<Call> {
    let bar = ProgressBar::new(calls.into());
    let style = ProgressStyle::with_template("{bar:50.green/dim} {pos} of {len} calls, {elapsed}");
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    let begin = Instant::now();
    let zero = || AtomicU32::new(0);
    let shared =
        Shared { client, url, limiter, calls, begin, bar, asked: zero(), granted: zero(), refused: zero() };
    let shared = Arc::new(shared);

    let ticker = tokio::spawn(print_every_second(shared.clone()));
    let tasks: JoinSet<Vec<Call>> = iter::repeat_n(shared.clone(), tasks as usize).map(make_calls).collect();
    let calls = tasks.join_all().await.into_iter().flatten().collect();
    ticker.abort();
    shared.bar.finish_and_clear();
    calls
}

/// One task: waits for a permit and calls, in a loop, until all calls are made.
async fn make_calls(shared: Arc<Shared>) -> Vec<Call> {
    let mut calls = Vec::new();
    loop {
        // Nothing runs between this and the first poll of the limiter, in which the call enters the
        // queue.
        let asked = shared.asked.fetch_add(1, Ordering::Relaxed);
        if asked >= shared.calls {
            return calls;
        }
        let waited = shared.limiter.acquire().await;
        let granted = shared.granted.fetch_add(1, Ordering::Relaxed);
        let granted_at = shared.begin.elapsed();

        let answer = call(&shared).await;
        let answered_at = shared.begin.elapsed();
        if let Answer::Refused = answer {
            shared.refused.fetch_add(1, Ordering::Relaxed);
        }
        shared.bar.inc(1);
        calls.push(Call { asked, granted, waited, granted_at, answered_at, answer });
    }
}

async fn call(shared: &Shared) -> Answer {
    let answer = async {
        let response = shared.client.get(shared.url.clone()).send().await?;
        let status = response.status();
        // Read to the end, so that the connection can be reused.
        response.bytes().await?;
        Ok::<_, reqwest::Error>(status)
    };
    match answer.await {
        Ok(status) if status.is_success() => Answer::Success,
        Ok(StatusCode::TOO_MANY_REQUESTS) => Answer::Refused,
        Ok(status) => Answer::Failed(status.to_string()),
        Err(error) => Answer::Failed(with_causes(&error)),
    }
}

/// Returns an error and its causes on one line.
fn with_causes(error: &(dyn Error + 'static)) -> String {
    let causes = iter::successors(Some(error), |&error| error.source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

/// Prints a line every second, above the bar if there is one.
async fn print_every_second(shared: Arc<Shared>) {
    let second = Duration::from_secs(1);
    let mut ticks = interval_at(tokio::time::Instant::now() + second, second);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
    let (mut told_at, mut told) = (Duration::ZERO, 0);
    loop {
        ticks.tick().await;
        let (now, answered) = (shared.begin.elapsed(), shared.bar.position());
        let rate = (answered - told) as f64 / (now - told_at).as_secs_f64();
        let refused = shared.refused.load(Ordering::Relaxed);
        shared.bar.suspend(|| {
            println!("{:4.0} s {rate:8.1}/s {answered:8} answered {refused:6} x 429", now.as_secs_f64());
        });
        (told_at, told) = (now, answered);
    }
}
