//! A client of a strict server. While five calls are in flight, another program uses up the quota.
//! The server responds with 429, and all tasks pause for the time in its response. No burst follows
//! the pause, and the server refuses no further call. It prints each call, and fails if this does
//! not hold: `cargo run --example obey_retry_after`

use std::time::{Duration, Instant};

use axum::{Router, extract::State, http::StatusCode, routing::get};
use tidegate::{Rate, RateLimiter, SlidingLog};
use tidegate_http::obey::Obey;

type Refused = (StatusCode, [(&'static str, String); 1]);
type Error = Box<dyn std::error::Error + Send + Sync>;

/// The server works for half a second on each call that it accepts.
async fn serve(State(quota): State<RateLimiter<SlidingLog>>) -> Result<(), Refused> {
    if let Err(refusal) = quota.try_acquire() {
        let secs = refusal.retry_after_secs().expect("a permit is due some day");
        return Err((StatusCode::TOO_MANY_REQUESTS, [("retry-after", secs.to_string())]));
    }
    tokio::time::sleep(Duration::from_millis(500)).await;
    Ok(())
}

#[tokio::main(flavor = "current_thread")] // a busy machine delays client and server equally
async fn main() -> Result<(), Error> {
    let quota = RateLimiter::new(SlidingLog::new(Rate::per_second(12))); // 12 calls in any second
    let app = Router::new().route("/", get(serve)).with_state(quota.clone());
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    let url = format!("http://{}", listener.local_addr()?);
    tokio::spawn(async { axum::serve(listener, app).await });
    let _ = rustls::crypto::ring::default_provider().install_default();
    let (http, begin) = (reqwest::Client::new(), Instant::now());
    let limiter = RateLimiter::paced(Rate::per_second(10));
    limiter.set_catch_up(Duration::ZERO); // no call makes up for a late call
    let api = Obey::new(limiter);
    let mut calls = tokio::task::JoinSet::new();
    for _ in 0..30 {
        let (api, request) = (api.clone(), http.get(&url));
        calls.spawn(async move {
            let mut call = api.acquire().await?;
            let (sent, answer) = (begin.elapsed(), request.send().await?);
            let answered = begin.elapsed();
            call.obey(answer.status(), answer.headers()); // a refusal pauses all tasks
            println!("sent at {:>4} ms: {}", sent.as_millis(), answer.status());
            Ok::<_, Error>((sent, answered, answer.status()))
        });
    }
    tokio::time::sleep(Duration::from_millis(450)).await;
    quota.drain(); // another program uses up the quota
    let calls = calls.join_all().await.into_iter().collect::<Result<Vec<_>, _>>()?;
    let refused = calls.iter().filter(|call| call.2 != 200).map(|call| call.1).min().expect("one is refused");
    let after: Vec<_> = calls.iter().filter(|call| call.0 > refused).collect();
    assert!(after.iter().all(|call| call.2 == 200), "a call after the pause was refused");
    let first = after.iter().map(|call| call.0).min().expect("the others wait");
    let burst = after.iter().filter(|call| call.0 < first + Duration::from_millis(250)).count();
    assert!(burst <= 4, "{burst} calls in the quarter second after the pause");
    Ok(())
}
