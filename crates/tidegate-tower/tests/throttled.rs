//! Bodies of an axum server that wait for permits, behind the layer.

#![allow(clippy::unwrap_used)]

use axum::body::Body;
use axum::routing::post;
use axum::{Router, extract::Request, response::Response};
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use tidegate::{AllOf, CountingLimit, ManualClock, Rate, RateLimiter, TokenBucket, Unlimited};
use tidegate_http::ThrottledBody;
use tidegate_tower::RateLimitLayer;
use tower::util::{MapRequestLayer, MapResponseLayer};

fn bandwidth(burst: u32) -> RateLimiter<TokenBucket, ManualClock> {
    RateLimiter::with_clock(TokenBucket::new(Rate::per_second(10_000_000), burst), ManualClock::new())
}

#[tokio::test]
async fn uploads_and_downloads_of_a_server_are_charged() {
    let (up, down, calls) = (bandwidth(1_000_000), bandwidth(8 * 65_536), CountingLimit::new(1));
    let (uploads, downloads) = (up.clone(), down.clone());
    let unlimited = RateLimiter::with_clock(Unlimited, ManualClock::new());
    let in_flight = AllOf::new("rate", &unlimited).with_counting("calls", &calls);
    let app = Router::new()
        .route("/", post(async |body: Bytes| Body::from(body.repeat(10))))
        .layer(MapRequestLayer::new(move |request: Request| {
            request.map(|body| Body::new(ThrottledBody::new(body, uploads.clone())))
        }))
        .layer(MapResponseLayer::new(move |response: Response| {
            response.map(|body| Body::new(ThrottledBody::new(body, downloads.clone())))
        }))
        .layer(RateLimitLayer::new(in_flight));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    tokio::spawn(async { axum::serve(listener, app).await });

    let client = Client::builder(TokioExecutor::new()).build_http();
    let upload = http::Request::post(&url).body(Full::new(Bytes::from(vec![7; 60_000]))).unwrap();
    let mut answer = client.request(upload).await.unwrap();
    assert_eq!(up.status().available, 940_000);
    assert_eq!(answer.headers()["content-length"], "600000", "the size is still known");
    // Eight chunks. The clock stands still, so the rest of the body waits.
    let mut came = 0;
    while came < 8 * 65_536 {
        came += answer.frame().await.unwrap().unwrap().into_data().unwrap().len();
    }
    while down.status().waiting == 0 {
        tokio::task::yield_now().await;
    }
    assert_eq!((came, down.status().available, calls.available()), (8 * 65_536, 0, 0));
    // The client disconnects: the body leaves the queue, and the call is over.
    drop((answer, client));
    while calls.available() == 0 {
        tokio::task::yield_now().await;
    }
    assert_eq!(down.status().waiting, 0);
}
