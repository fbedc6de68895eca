//! A real NGINX as the third party: `limit_req` with a rate of 50 requests per second.
//!
//! ```sh
//! apt-get install nginx-light
//! cargo run -p tidegate-reqwest --example nginx
//! ```
//!
//! A client at exactly this rate is never refused. A client at 150 % of it is refused once its
//! requests have filled NGINX's bucket. Then the client pauses for the second that NGINX asks for,
//! and the bucket empties. So the client is refused again only after a whole burst has passed. The
//! program prints the statuses in NGINX's log, and fails if a claim does not hold.

mod server;

use std::error::Error;

use reqwest::{Client, StatusCode};
use tidegate::{Rate, RateLimiter};
use tidegate_http::obey::{Obey, Options};
use tidegate_reqwest::RateLimit;
use tokio::task::JoinSet;

use self::server::{BURST, Nginx, RATE, Refusal};

/// The number of requests in each run. A run sends more until NGINX has made the wanted number of
/// refusals.
const REQUESTS: u32 = 150;
const MAX_REQUESTS: u32 = 3000;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    println!("NGINX: rate={RATE}r/s burst={BURST} nodelay");
    let limit = RateLimit::new(RateLimiter::paced(Rate::per_second(RATE.into())));
    let runs = run("at 100 %, 8 tasks", Refusal::RetryAfter, limit, 8, 0).await?;
    if runs.iter().any(|(status, _)| *status != 200) {
        return Err("a client at the rate of NGINX was refused".into());
    }

    // One request at a time, so that no other request is in flight when NGINX refuses.
    let too_fast = || RateLimiter::paced(Rate::per_second((RATE * 3 / 2).into()));
    let limit = RateLimit::new(too_fast());
    let runs = run("at 150 %, 429 with retry-after: 1", Refusal::RetryAfter, limit, 1, 2).await?;
    check(&runs, 429)?;

    // NGINX's own 503 does not say that a limit is the reason.
    let options = Options::new().refusal(|status, _| status == StatusCode::SERVICE_UNAVAILABLE);
    let limit = RateLimit::obeying(Obey::with_options(too_fast(), options));
    let runs = run("at 150 %, 503 without a time", Refusal::Default, limit, 1, 2).await?;
    check(&runs, 503)
}

/// Sends requests to an NGINX until it has refused `refusals` of them, because a machine that
/// stalls for a while may not be too fast. Returns the runs of equal statuses in NGINX's log: the
/// status, and the length of the run.
async fn run(
    name: &str,
    refusal: Refusal,
    limit: RateLimit,
    tasks: u32,
    refusals: u32,
) -> Result<Vec<(u16, u32)>> {
    let nginx = Nginx::start(refusal)?;
    let (client, mut set) = (Client::new(), JoinSet::new());
    for task in 0..tasks {
        let (limit, client, url) = (limit.clone(), client.clone(), nginx.url());
        let share = (REQUESTS + task) / tasks;
        set.spawn(async move {
            let (mut sent, mut refused) = (0, 0);
            while sent < share || refused < refusals && sent < MAX_REQUESTS {
                let answer = limit.send(client.get(&url)).await?;
                sent += 1;
                refused += u32::from(answer.status() != StatusCode::OK);
                answer.bytes().await?;
            }
            Ok::<_, tidegate_reqwest::Error>(sent)
        });
    }
    let requests: u32 = set.join_all().await.into_iter().sum::<std::result::Result<u32, _>>()?;
    let mut runs: Vec<(u16, u32)> = Vec::new();
    for status in nginx.statuses()? {
        match runs.last_mut() {
            Some((last, times)) if *last == status => *times += 1,
            _ => runs.push((status, 1)),
        }
    }
    let shown: Vec<_> = runs.iter().map(|(status, times)| format!("{times} x {status}")).collect();
    println!("{name}: {}", shown.join(", "));
    let answers: u32 = runs.iter().map(|(_, times)| times).sum();
    if answers != requests {
        return Err(format!("NGINX answered {answers} of {requests} requests").into());
    }
    Ok(runs)
}

/// Checks that no two refusals are adjacent, and that a whole burst passed after each refusal. Then
/// the client had paused until NGINX's bucket was empty. Both hold at any speed of this machine.
fn check(runs: &[(u16, u32)], refusal: u16) -> Result<()> {
    let refusals = runs.iter().filter(|(status, _)| *status == refusal).count();
    if refusals < 2 {
        return Err(format!("NGINX refused {refusals} requests, too few to show anything").into());
    }
    if runs.iter().any(|(status, times)| *status != 200 && (*status != refusal || *times > 1)) {
        return Err("a refusal was not obeyed".into());
    }
    // No refusal follows the last requests.
    let whole = &runs[..runs.len() - 1];
    if whole.iter().any(|(status, times)| *status == 200 && *times <= BURST) {
        return Err("a pause was too short for NGINX's bucket to become empty".into());
    }
    Ok(())
}
