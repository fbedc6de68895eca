//! One limit over many connections of an axum server.

#![allow(clippy::unwrap_used)]

use std::net::{IpAddr, SocketAddr};

use axum::Router;
use axum::extract::ConnectInfo;
use axum::routing::get;
use http::StatusCode;
use hyper_util::rt::TokioIo;
use tidegate::{KeyedRateLimiter, ManualClock, Rate, RateLimiter, TokenBucket};
use tidegate_tower::{ClientAddress, RateLimitLayer};
use tokio::net::{TcpListener, TcpStream};

/// Sends requests over one connection, and counts the responses of status 200.
async fn connection(address: SocketAddr, requests: u32) -> u32 {
    let stream = TcpStream::connect(address).await.unwrap();
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    let mut granted = 0;
    for _ in 0..requests {
        let request = http::Request::get("/").header("host", "localhost").body(String::new()).unwrap();
        let response = sender.send_request(request).await.unwrap();
        match response.status() {
            StatusCode::OK => granted += 1,
            status => {
                assert_eq!(status, StatusCode::TOO_MANY_REQUESTS);
                for name in ["retry-after", "ratelimit", "ratelimit-policy", "content-type"] {
                    assert!(response.headers().contains_key(name), "{name}");
                }
            }
        }
        // The next request needs the connection.
        http_body_util::BodyExt::collect(response.into_body()).await.unwrap();
    }
    granted
}

async fn served(app: Router) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let app = app.into_make_service_with_connect_info::<SocketAddr>();
    tokio::spawn(async { axum::serve(listener, app).await });
    address
}

/// tower's own `RateLimit` behind a `Buffer` limits each connection separately, so all of these
/// requests would pass.
#[tokio::test]
async fn five_of_1500_requests_pass_whatever_their_connection() {
    let policy = TokenBucket::new(Rate::per_second(5), 5);
    let limiter = RateLimiter::with_clock(policy, ManualClock::new());
    let app = Router::new().route("/", get(|| async { "hello" })).layer(RateLimitLayer::new(limiter));
    let address = served(app).await;
    let connections: Vec<_> = (0..50).map(|_| tokio::spawn(connection(address, 30))).collect();
    let mut granted = 0;
    for connection in connections {
        granted += connection.await.unwrap();
    }
    assert_eq!(granted, 5);
}

#[tokio::test]
async fn the_peer_of_a_connection_is_its_key() {
    let policy = TokenBucket::new(Rate::per_second(5), 3);
    let clients: KeyedRateLimiter<IpAddr, _, _> =
        KeyedRateLimiter::with_clock(policy, 100, ManualClock::new());
    let address = ClientAddress::of_peer(|request| {
        request.extensions.get::<ConnectInfo<SocketAddr>>().map(|peer| peer.0.ip())
    });
    let layer = RateLimitLayer::keyed(clients.clone(), move |request| address.key(request));
    let app = Router::new().route("/", get(|| async { "hello" })).layer(layer);
    let address = served(app).await;
    assert_eq!(connection(address, 10).await + connection(address, 10).await, 3);
    assert_eq!(clients.status(&IpAddr::from([127, 0, 0, 1])).available, 0);
}
