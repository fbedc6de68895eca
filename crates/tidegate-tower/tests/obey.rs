//! A client that obeys the responses of servers.

#![allow(clippy::unwrap_used)]

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use axum::Router;
use bytes::Bytes;
use http::{HeaderMap, Request, Response, StatusCode, Uri, header};
use http_body_util::{BodyExt, Empty, Full};
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use tidegate::{AllOf, CountingLimit, ManualClock, Rate, RateLimiter, Refusal, TokenBucket, Unlimited};
use tidegate_http::obey::{Obey, Options, Scopes};
use tidegate_tower::{Error, ObeyLayer, RateLimitLayer};
use tokio::net::TcpListener;
use tokio_test::{assert_pending, assert_ready};
use tonic::transport::server::TcpIncoming;
use tonic::transport::{Channel, Server};
use tonic::{Code, Status};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;
use tower::{Layer, Service, ServiceBuilder, ServiceExt, service_fn};

const AT_ONCE: Duration = Duration::ZERO;

fn bucket(burst: u32, clock: &ManualClock) -> RateLimiter<TokenBucket, ManualClock> {
    RateLimiter::with_clock(TokenBucket::new(Rate::per_second(5), burst), clock.clone())
}

fn obey(limiter: impl Into<tidegate::AnyLimiter>, clock: &ManualClock) -> Obey {
    Obey::with_options(limiter, Options::new().clock(clock.clone()).jitter(0.0))
}

/// A server whose paths are statuses, such as `/429`, and the number of requests to it.
async fn server() -> (String, Arc<AtomicU32>) {
    let requests = Arc::new(AtomicU32::new(0));
    let count = requests.clone();
    let app = Router::new().fallback(move |uri: Uri| async move {
        count.fetch_add(1, Ordering::Relaxed);
        let status = uri.path()[1..].parse().unwrap_or(StatusCode::OK);
        let refuses = status == StatusCode::TOO_MANY_REQUESTS;
        let headers = HeaderMap::from_iter(refuses.then(|| (header::RETRY_AFTER, "30".parse().unwrap())));
        (status, headers, "hello")
    });
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async { axum::serve(listener, app).await });
    (url, requests)
}

fn get(url: &str, path: &str) -> Request<Empty<Bytes>> {
    Request::get(format!("{url}{path}")).body(Empty::new()).unwrap()
}

fn refusal<E>(error: &Error<E>) -> Option<Refusal> {
    error.refused()?.refusal()?.refusal()
}

#[tokio::test]
async fn a_client_of_hyper_pauses_when_the_server_asks_for_it() {
    let (url, requests) = server().await;
    let clock = ManualClock::new();
    let layer = ObeyLayer::new(obey(bucket(10, &clock), &clock)).wait_at_most(AT_ONCE);
    let client = Client::builder(TokioExecutor::new()).build_http();
    let mut client = layer.layer(client);
    let answer = client.ready().await.unwrap().call(get(&url, "/429")).await.unwrap();
    assert_eq!(answer.status(), StatusCode::TOO_MANY_REQUESTS);
    // Clones share the limit.
    let refused = client.clone().oneshot(get(&url, "/")).await.unwrap_err();
    assert!(matches!(refusal(&refused), Some(Refusal::Paused { .. })));
    assert_eq!(requests.load(Ordering::Relaxed), 1);
    clock.advance(refused.refused().unwrap().retry_after().unwrap());
    let answer = client.oneshot(get(&url, "/")).await.unwrap();
    assert_eq!(answer.into_body().collect().await.unwrap().to_bytes(), "hello");
}

#[tokio::test]
async fn hosts_have_limits_of_their_own() {
    let ((first, _), (second, _)) = (server().await, server().await);
    let clock = ManualClock::new();
    let hosts = Scopes::new(10, move |_host| obey(bucket(2, &clock), &clock));
    let layer = ObeyLayer::per_host(hosts.clone()).wait_at_most(AT_ONCE);
    let client = layer.layer(Client::builder(TokioExecutor::new()).build_http());
    let send = async |url: &str, path: &str| Ok(client.clone().oneshot(get(url, path)).await?.status());
    let send = async |url, path| send(url, path).await.map_err(|error: Error<_>| refusal(&error).is_some());
    assert_eq!(send(&first, "/429").await, Ok(StatusCode::TOO_MANY_REQUESTS));
    assert_eq!(send(&first, "/").await, Err(true));
    assert_eq!(send(&second, "/").await, Ok(StatusCode::OK));
    assert_eq!(hosts.len(), 2);
}

/// A service that responds at once.
fn local() -> impl Service<
    Request<String>,
    Response = Response<String>,
    Error = Infallible,
    Future: Future<Output = Result<Response<String>, Infallible>>,
> + Clone {
    service_fn(async |request: Request<String>| Ok(Response::new(request.into_body())))
}

#[tokio::test]
async fn a_host_is_one_in_any_case_with_the_dot_of_the_root_and_with_the_port_of_its_scheme() {
    let clock = ManualClock::new();
    let hosts = Scopes::new(10, move |_host| obey(bucket(9, &clock), &clock));
    let client = ObeyLayer::per_host(hosts.clone()).layer(local());
    let send = async |uri| {
        client.clone().oneshot(Request::get(uri).body(String::new()).unwrap()).await.unwrap();
        hosts.len()
    };
    for uri in ["http://api.example/", "http://API.Example/", "http://api.example./"] {
        assert_eq!(send(uri).await, 1, "{uri}");
    }
    // The default port of the scheme made a second limiter.
    for uri in ["http://api.example:80/", "https://api.example/", "https://api.example.:443/"] {
        assert_eq!(send(uri).await, 1, "{uri}");
    }
    for (n, uri) in ["http://api.example:443/", "https://api.example:80/", "http://api.example:8080/"]
        .into_iter()
        .enumerate()
    {
        assert_eq!(send(uri).await, 2 + n, "{uri}");
    }
}

/// The maximum wait of the layer replaced that of the request.
#[tokio::test]
async fn of_two_longest_waits_the_shorter_one_holds() {
    for (own, of_layer) in [(50, 30_000), (30_000, 50)] {
        let clock = ManualClock::new();
        let rate = bucket(1, &clock);
        rate.drain();
        let layer = ObeyLayer::new(obey(rate.clone(), &clock))
            .cost(move |_| tidegate::Request::permits(1).within(Duration::from_millis(own)))
            .wait_at_most(Duration::from_millis(of_layer));
        let mut call = tokio_test::task::spawn(layer.layer(local()).oneshot(Request::default()));
        let error = assert_ready!(call.poll()).unwrap_err();
        assert!(matches!(refusal(&error), Some(Refusal::Limited { .. })));
    }
}

#[tokio::test]
async fn a_request_costs_what_it_is_said_to_and_nothing_without_a_scope() {
    let clock = ManualClock::new();
    let rate = bucket(10, &clock);
    let api = obey(rate.clone(), &clock);
    let scopes = Scopes::new(10, move |_| api.clone());
    let layer = ObeyLayer::per(scopes, |request| {
        request.headers.get("token").and_then(|token| token.to_str().ok()).map(String::from)
    });
    let client = layer.cost(|request| if request.method == "GET" { 1 } else { 4 }).layer(local());
    client.clone().oneshot(Request::default()).await.unwrap();
    assert_eq!(rate.status().available, 10);
    let request = Request::post("/").header("token", "a").body(String::new()).unwrap();
    client.oneshot(request).await.unwrap();
    assert_eq!(rate.status().available, 6);
}

#[tokio::test]
async fn a_request_that_is_dropped_while_it_waits_costs_nothing() {
    let clock = ManualClock::new();
    let rate = bucket(1, &clock);
    let mut client = ObeyLayer::new(obey(rate.clone(), &clock)).layer(local());
    drop(client.ready().await.unwrap().call(Request::default()));
    assert_eq!(rate.status().available, 1);
    rate.drain();
    let mut waits = tokio_test::task::spawn(client.ready().await.unwrap().call(Request::default()));
    assert_pending!(waits.poll());
    assert_eq!(rate.status().waiting, 1);
    drop(waits);
    assert_eq!(rate.status().waiting, 0);
}

#[tokio::test]
async fn a_counted_permit_is_kept_until_the_body_ends() {
    let clock = ManualClock::new();
    let calls = CountingLimit::new(1);
    let unlimited = RateLimiter::with_clock(Unlimited, clock.clone());
    let api = obey(AllOf::new("rate", &unlimited).with_counting("calls", &calls), &clock);
    let mut client = ObeyLayer::new(api.clone()).layer(local());
    let answer = client.ready().await.unwrap().call(Request::new("hello".to_owned())).await.unwrap();
    // The call has its response, but not yet its body.
    assert_eq!((api.in_flight(), calls.available()), (0, 0));
    answer.into_body().collect().await.unwrap();
    assert_eq!(calls.available(), 1);

    let failing = service_fn(async |_: Request<()>| Err::<Response<String>, _>(std::fmt::Error));
    // Bug: a call that failed was in flight until its future was dropped.
    let mut failing = ObeyLayer::new(api.clone()).layer(failing);
    let mut failed = tokio_test::task::spawn(failing.ready().await.unwrap().call(Request::default()));
    assert!(matches!(assert_ready!(failed.poll()), Err(Error::Service(std::fmt::Error))));
    assert_eq!((api.in_flight(), calls.available()), (0, 1));
}

/// The tonic server sends a time to retry after, and the tonic client obeys.
#[tokio::test]
async fn a_client_of_tonic_obeys_the_pushback_of_a_server() {
    let server_clock = ManualClock::new();
    let layer = RateLimitLayer::new(bucket(1, &server_clock)).no_headers();
    let (_reporter, health) = tonic_health::server::health_reporter();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let server = Server::builder().layer(layer).add_service(health);
    tokio::spawn(server.serve_with_incoming(TcpIncoming::from(listener)));

    let clock = ManualClock::new();
    let api = obey(bucket(10, &clock), &clock);
    let layer = ObeyLayer::new(api.clone()).wait_at_most(AT_ONCE);
    let channel = Channel::from_shared(url).unwrap().connect().await.unwrap();
    let status = |error| match error {
        Error::Refused(refused) => Status::aborted(refused.to_string()),
        Error::Service(error) => Status::from_error(Box::new(error)),
    };
    let layers = ServiceBuilder::new().map_err(status).layer(layer);
    let mut client = HealthClient::new(layers.service(channel));
    let mut check = async || client.check(HealthCheckRequest::default()).await.map(|_| ());

    check().await.unwrap();
    assert_eq!(check().await.map_err(|status: Status| status.code()), Err(Code::ResourceExhausted));
    // `Retry-After` is in whole seconds.
    assert_eq!(api.limiter().status().paused_for, Duration::from_secs(1));
    let refused = check().await.unwrap_err();
    assert_eq!(refused.code(), Code::Aborted, "it was not sent");
    for clock in [server_clock, clock] {
        clock.advance(Duration::from_millis(1200));
    }
    check().await.unwrap();
}

/// Bug: a refusal in the trailers of gRPC was not obeyed.
#[tokio::test]
async fn a_pushback_in_the_trailers_of_grpc_pauses() {
    for (status, pushback, paused_for) in [("8", "30000", 30), ("14", "7000", 7), ("0", "30000", 0)] {
        let clock = ManualClock::new();
        let limiter = bucket(10, &clock);
        let trailers = [("grpc-status", status), ("grpc-retry-pushback-ms", pushback)];
        let trailers = HeaderMap::from_iter(trailers.map(|(name, value)| {
            (name.parse::<header::HeaderName>().unwrap(), value.parse::<header::HeaderValue>().unwrap())
        }));
        let inner = service_fn(move |_: Request<()>| {
            let trailers = trailers.clone();
            let body = Full::new(Bytes::from("data")).with_trailers(async { Some(Ok(trailers)) });
            std::future::ready(Ok::<_, Infallible>(Response::new(body)))
        });
        let layer = ObeyLayer::new(obey(limiter.clone(), &clock));
        let answer = layer.layer(inner).oneshot(Request::default()).await.unwrap();
        assert_eq!(limiter.status().paused_for, Duration::ZERO);
        answer.into_body().collect().await.unwrap();
        assert_eq!(limiter.status().paused_for, Duration::from_secs(paused_for), "{status}");
    }
}
