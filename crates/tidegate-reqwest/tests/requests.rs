//! Requests to servers on this machine, with limiters on a clock that stands still.

#![allow(clippy::unwrap_used)]

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::http::{HeaderMap, StatusCode, Uri, header};
use axum::response::{IntoResponse, Redirect};
use http_body_util::channel::{Channel, Sender};
use reqwest::Client;
use tidegate::{AllOf, CountingLimit, ManualClock, Rate, RateLimiter, Refusal, TokenBucket, Unlimited};
use tidegate_http::ThrottledBody;
use tidegate_http::obey::{Obey, Options, Scopes};
use tidegate_reqwest::{Error, RateLimit};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::sync::Mutex;

const AT_ONCE: Duration = Duration::ZERO;

fn limiter(burst: u32) -> RateLimiter<TokenBucket, ManualClock> {
    RateLimiter::with_clock(TokenBucket::new(Rate::per_second(5), burst), ManualClock::new())
}

/// A server whose paths are statuses, such as `/429`; `/away` redirects to another host.
async fn server(away: Option<SocketAddr>) -> (SocketAddr, Arc<AtomicU32>) {
    let requests = Arc::new(AtomicU32::new(0));
    let count = requests.clone();
    let app = Router::new().fallback(move |uri: Uri| async move {
        count.fetch_add(1, Ordering::Relaxed);
        let path = &uri.path()[1..];
        if path == "away" {
            return Redirect::to(&format!("http://{}/429", away.unwrap())).into_response();
        }
        let mut headers = HeaderMap::new();
        let status = path.parse().unwrap_or(StatusCode::OK);
        if status == StatusCode::TOO_MANY_REQUESTS {
            headers.insert(header::RETRY_AFTER, "30".parse().unwrap());
        }
        (status, headers, "hello").into_response()
    });
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async { axum::serve(listener, app).await });
    (address, requests)
}

fn retry_after(error: &Error) -> Option<Duration> {
    error.refusal()?.retry_after()
}

#[tokio::test]
async fn a_request_that_would_wait_too_long_is_not_sent() {
    let (address, requests) = server(None).await;
    let client = Client::new();
    let limit = RateLimit::new(limiter(2)).wait_at_most(Duration::from_millis(150));
    for _ in 0..2 {
        let response = limit.send(client.get(format!("http://{address}/200"))).await.unwrap();
        assert_eq!(response.url().port(), Some(address.port()));
        assert_eq!(response.content_length(), Some(5));
        assert_eq!(response.remote_addr(), Some(address));
        assert_eq!(response.text().await.unwrap(), "hello");
    }
    let refused = limit.send(client.get(format!("http://{address}/200"))).await.unwrap_err();
    // The permits are due in 200 ms, and the request may wait for 150 ms.
    assert_eq!(retry_after(&refused), Some(Duration::from_millis(50)));
    assert_eq!(refused.to_string(), "a rate limit refused the request: limited, retry after 50ms");
    assert_eq!(requests.load(Ordering::Relaxed), 2);
}

/// The maximum wait of the limit replaced that of the request.
#[tokio::test]
async fn of_two_longest_waits_the_shorter_one_holds() {
    for (own, of_limit) in [(50, 30_000), (30_000, 50)] {
        let limiter = limiter(1);
        limiter.drain();
        let limit = RateLimit::new(limiter)
            .cost(move |_| tidegate::Request::permits(1).within(Duration::from_millis(own)))
            .wait_at_most(Duration::from_millis(of_limit));
        let request = Client::new().get("http://127.0.0.1/");
        let mut sent = std::pin::pin!(limit.send(request));
        let Poll::Ready(refused) = sent.as_mut().poll(&mut Context::from_waker(Waker::noop())) else {
            panic!("it waits")
        };
        assert_eq!(retry_after(&refused.unwrap_err()), Some(Duration::from_millis(150)));
    }
}

#[tokio::test]
async fn retry_after_holds_up_all_requests() {
    let (address, requests) = server(None).await;
    let (client, clock) = (Client::new(), ManualClock::new());
    let policy = TokenBucket::new(Rate::per_second(5), 10);
    let limiter = RateLimiter::with_clock(policy, clock.clone());
    let options = Options::new().clock(clock.clone()).jitter(0.0);
    let limit = RateLimit::obeying(Obey::with_options(limiter, options)).wait_at_most(AT_ONCE);
    let response = limit.send(client.get(format!("http://{address}/429"))).await.unwrap();
    assert_eq!(response.status(), StatusCode::TOO_MANY_REQUESTS);
    let refused = limit.clone().send(client.get(format!("http://{address}/200"))).await.unwrap_err();
    assert!(matches!(refused.refusal().unwrap().refusal(), Some(Refusal::Paused { .. })));
    clock.advance(retry_after(&refused).unwrap());
    limit.send(client.get(format!("http://{address}/200"))).await.unwrap();
    assert_eq!(requests.load(Ordering::Relaxed), 2);
}

#[tokio::test]
async fn hosts_have_limits_of_their_own() {
    let (first, _) = server(None).await;
    let (second, _) = server(Some(first)).await;
    let client = Client::new();
    let hosts = Scopes::new(10, |_host| Obey::new(limiter(2)));
    let limit = RateLimit::per_host(hosts.clone()).wait_at_most(AT_ONCE);
    let send = async |url: String| limit.send(client.get(url)).await.map(|response| response.status());
    assert_eq!(send(format!("http://{first}/429")).await.unwrap(), 429);
    assert!(send(format!("http://{first}/200")).await.is_err());
    // The request was redirected to the other host, whose response says nothing about this one.
    assert_eq!(send(format!("http://{second}/away")).await.unwrap(), 429);
    assert_eq!(send(format!("http://{second}/200")).await.unwrap(), 200);
    assert!(send(format!("http://{second}/200")).await.is_err());
    assert_eq!(hosts.len(), 2);
}

/// A server that responds to one request with trailers that ask for a pause of 30 s.
async fn server_of_trailers(content_type: &'static str) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        let (mut connection, _) = listener.accept().await.unwrap();
        let mut request = Vec::new();
        while !request.ends_with(b"\r\n\r\n") {
            connection.read_buf(&mut request).await.unwrap();
        }
        let head = format!("HTTP/1.1 200 OK\r\ncontent-type: {content_type}\r\n");
        let body = "transfer-encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n";
        let trailers = "grpc-status: 8\r\nretry-after: 30\r\n\r\n";
        connection.write_all([&*head, body, trailers].concat().as_bytes()).await.unwrap();
    });
    address
}

/// Bug: the trailers of another host, to which a request was redirected, paused the limit, and so
/// did the trailers of a response that was not one of gRPC.
#[tokio::test]
async fn trailers_are_obeyed_only_if_they_are_of_grpc_and_of_the_host_of_the_request() {
    for (content_type, is_led_away, pause) in
        [("application/grpc", false, 30), ("application/grpc", true, 0), ("text/plain", false, 0)]
    {
        let mut address = server_of_trailers(content_type).await;
        if is_led_away {
            address = server(Some(address)).await.0;
        }
        let limiter = limiter(1);
        let obey = Obey::with_options(limiter.clone(), Options::new().jitter(0.0));
        let limit = RateLimit::obeying(obey);
        let response = limit.send(Client::new().get(format!("http://{address}/away"))).await.unwrap();
        assert_eq!(response.text().await.unwrap(), "hi");
        let paused_for = limiter.status().paused_for;
        assert_eq!(paused_for, Duration::from_secs(pause), "{content_type} {is_led_away}");
    }
}

#[tokio::test]
async fn a_request_without_a_scope_is_not_limited() {
    let (address, _) = server(None).await;
    let client = Client::new();
    let scopes = Scopes::new(10, |_| Obey::new(limiter(1)));
    let limit = RateLimit::per(scopes, |request| {
        let token = request.headers().get("token")?;
        token.to_str().ok().map(String::from)
    });
    let limit = limit.wait_at_most(AT_ONCE);
    let request = |token: Option<&str>| {
        let request = client.get(format!("http://{address}/200"));
        if let Some(token) = token { request.header("token", token) } else { request }
    };
    for _ in 0..3 {
        limit.send(request(None)).await.unwrap();
    }
    limit.send(request(Some("a"))).await.unwrap();
    limit.send(request(Some("b"))).await.unwrap();
    assert!(limit.send(request(Some("a"))).await.is_err());
}

#[tokio::test]
async fn a_request_costs_what_it_is_said_to() {
    let (address, _) = server(None).await;
    let (requests, tokens) = (limiter(10), limiter(100));
    let api = AllOf::new("requests", &requests).with("tokens", &tokens);
    let limit = RateLimit::new(api).cost(|request| {
        let length = request.body().and_then(|body| body.as_bytes()).map_or(1, <[u8]>::len);
        [("tokens", length.try_into().unwrap_or(u32::MAX))]
    });
    let request = Client::new().post(format!("http://{address}/200")).body("twelve bytes");
    limit.send(request).await.unwrap();
    assert_eq!((requests.status().available, tokens.status().available), (9, 88));
}

#[tokio::test]
async fn a_timeout_can_count_the_wait() {
    let (address, _) = server(None).await;
    let (client, limiter) = (Client::new(), limiter(1));
    limiter.drain();
    let limit = RateLimit::new(limiter.clone()).timeout_counts_wait();
    let request = || client.get(format!("http://{address}/200"));
    let refused = limit.send(request().timeout(Duration::from_millis(199))).await.unwrap_err();
    assert_eq!(retry_after(&refused), Some(Duration::from_millis(1)));
    // Without a timeout it waits.
    let waiting = tokio::spawn({
        let (limit, request) = (limit.clone(), request());
        async move { limit.send(request).await.map(drop) }
    });
    while limiter.status().waiting == 0 {
        tokio::task::yield_now().await;
    }
    // A dropped request leaves no trace.
    waiting.abort();
    assert!(waiting.await.unwrap_err().is_cancelled());
    assert_eq!(limiter.status().waiting, 0);
}

/// A server that responds to one request with a body of the chunks sent to this channel.
async fn server_of_one_body() -> (SocketAddr, Sender<Bytes>) {
    let (sender, body) = Channel::<Bytes>::new(1);
    let body = Arc::new(Mutex::new(Some(body)));
    let app = Router::new().fallback(move || {
        let body = body.clone();
        async move { Body::new(body.lock().await.take().unwrap()) }
    });
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async { axum::serve(listener, app).await });
    (address, sender)
}

/// The permit of a request that was redirected to another host was given back with the head of the
/// response.
#[tokio::test]
async fn a_counted_permit_is_kept_until_the_body_ends() {
    for is_led_away in [false, true] {
        let (mut address, mut sender) = server_of_one_body().await;
        if is_led_away {
            address = server(Some(address)).await.0;
        }
        let calls = CountingLimit::new(1);
        let unlimited = RateLimiter::with_clock(Unlimited, ManualClock::new());
        let limit = RateLimit::new(AllOf::new("rate", &unlimited).with_counting("calls", &calls));
        let mut response = limit.send(Client::new().get(format!("http://{address}/away"))).await.unwrap();
        assert_eq!(calls.available(), 0, "{is_led_away}");
        sender.send_data(Bytes::from_static(b"hello")).await.unwrap();
        assert_eq!(response.chunk().await.unwrap().unwrap(), "hello");
        assert_eq!(calls.available(), 0);
        drop(sender);
        assert_eq!(response.chunk().await.unwrap(), None);
        assert_eq!(calls.available(), 1);
    }
}

/// Bug: a request that was redirected to another host counted as in flight until the body of that
/// host ended, and the server of the request could allow one call less.
#[tokio::test]
async fn a_request_that_was_redirected_to_another_host_is_not_in_flight() {
    let (other, sender) = server_of_one_body().await;
    let (address, _) = server(Some(other)).await;
    let obey = Obey::new(limiter(1));
    let limit = RateLimit::obeying(obey.clone());
    let response = limit.send(Client::new().get(format!("http://{address}/away"))).await.unwrap();
    assert_eq!(obey.in_flight(), 0);
    drop((sender, response));
}

#[tokio::test]
async fn a_request_that_finds_no_room_in_flight_takes_nothing_of_the_rate() {
    let (address, sender) = server_of_one_body().await;
    let (rate, calls) = (limiter(2), CountingLimit::new(1));
    let both = AllOf::new("rate", &rate).with_counting("in flight", &calls);
    let limit = RateLimit::new(both).wait_at_most(AT_ONCE);
    let response = limit.send(Client::new().get(format!("http://{address}/"))).await.unwrap();
    let refused = limit.send(Client::new().get(format!("http://{address}/"))).await.unwrap_err();
    assert_eq!(refused.refusal().and_then(|refusal| refusal.member()), Some("in flight"));
    assert_eq!((rate.status().available, calls.available()), (1, 0));
    drop((sender, response));
    assert_eq!((rate.status().available, calls.available()), (1, 1));
}

#[tokio::test]
async fn a_request_that_fails_is_over() {
    // A port on which nothing listens, and which no other test gets.
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let url = format!("http://{}/", socket.local_addr().unwrap());
    let calls = CountingLimit::new(1);
    let rate = limiter(2);
    let limit = RateLimit::new(AllOf::new("rate", &rate).with_counting("calls", &calls));
    let error = limit.send(Client::new().get(url)).await.unwrap_err();
    assert!(matches!(error, Error::Reqwest(_)));
    assert_eq!((rate.status().available, calls.available()), (1, 1));
    let invalid = limit.send(Client::new().get("no address")).await.unwrap_err();
    assert!(matches!(invalid, Error::Reqwest(_)));
    assert_eq!(rate.status().available, 1);
}

#[tokio::test]
async fn an_upload_can_wait_for_a_bandwidth() {
    let app = Router::new().fallback(async |body: Bytes| body.len().to_string());
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    tokio::spawn(async { axum::serve(listener, app).await });
    let policy = TokenBucket::new(Rate::per_second(10_000_000), 500_000);
    let bandwidth = RateLimiter::with_clock(policy, ManualClock::new());
    let upload = ThrottledBody::new(reqwest::Body::from(vec![7; 300_000]), bandwidth.clone());
    let request = Client::new().post(url).body(reqwest::Body::wrap(upload));
    let response = RateLimit::new(limiter(1)).send(request).await.unwrap();
    assert_eq!(response.text().await.unwrap(), "300000");
    assert_eq!(bandwidth.status().available, 200_000);
}
