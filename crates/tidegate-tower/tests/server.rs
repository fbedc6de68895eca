//! The layer of an HTTP server.

#![allow(clippy::unwrap_used)]

use std::convert::Infallible;
use std::future::{Ready, ready};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::request::Parts;
use http::{HeaderMap, Request, Response, StatusCode};
use http_body::Body as _;
use http_body_util::{BodyExt, Empty, Full, channel::Channel, combinators::BoxBody};
use tidegate::{
    AllOf, AnyKeyed, AnyLimiter, CountingLimit, KeyedAllOf, KeyedRateLimiter, ManualClock, Rate, RateLimiter,
    Statistics, TokenBucket, TokioClock, Unlimited,
};
use tidegate_http::write::Format;
use tidegate_tower::{Key, Limit, RateLimitLayer, Refused};
use tower::{Layer, Service, ServiceExt, service_fn};

/// Creates a limiter of 5 per second on a clock that stands still.
fn limiter(burst: u32) -> RateLimiter<TokenBucket, ManualClock> {
    RateLimiter::with_clock(TokenBucket::new(Rate::per_second(5), burst), ManualClock::new())
}

fn keyed<K: std::hash::Hash + Eq>(burst: u32) -> KeyedRateLimiter<K, TokenBucket, ManualClock> {
    KeyedRateLimiter::with_clock(TokenBucket::new(Rate::per_second(5), burst), 100, ManualClock::new())
}

/// Responds with 200 and counts its calls.
fn counted(
    calls: &Arc<AtomicU32>,
) -> impl Service<
    Request<String>,
    Response = Response<String>,
    Error = Infallible,
    Future = Ready<Result<Response<String>, Infallible>>,
> + Clone
+ use<> {
    let calls = calls.clone();
    service_fn(move |request: Request<String>| {
        calls.fetch_add(1, Ordering::Relaxed);
        ready(Ok(Response::new(request.into_body())))
    })
}

fn hello() -> impl Service<
    Request<String>,
    Response = Response<String>,
    Error = Infallible,
    Future = Ready<Result<Response<String>, Infallible>>,
> + Clone {
    counted(&Arc::default())
}

fn get(path: &str) -> Request<String> {
    Request::get(path).body(String::new()).unwrap()
}

async fn send<L: Limit>(layer: &RateLimitLayer<L>, request: Request<String>) -> Response<Bytes> {
    let response = layer.layer(hello()).oneshot(request).await.unwrap();
    let (parts, body) = response.into_parts();
    Response::from_parts(parts, body.collect().await.unwrap().to_bytes())
}

fn text<'a>(headers: &'a HeaderMap, name: &str) -> &'a str {
    headers.get(name).map_or("", |value| value.to_str().unwrap())
}

fn length(request: &Parts) -> u32 {
    request.uri.path().len().try_into().unwrap()
}

fn from_header(request: &Parts) -> Option<String> {
    Some(request.headers.get("user")?.to_str().ok()?.to_owned())
}

fn of(user: &str) -> Request<String> {
    Request::get("/").header("user", user).body(String::new()).unwrap()
}

#[tokio::test]
async fn a_refusal_has_all_headers_and_problem_details() {
    let layer = RateLimitLayer::new(limiter(1)).named("api");
    assert_eq!(send(&layer, get("/")).await.status(), StatusCode::OK);
    let refused = send(&layer, get("/")).await;
    assert_eq!(refused.status(), StatusCode::TOO_MANY_REQUESTS);
    // 200 ms, rounded up.
    assert_eq!(text(refused.headers(), "retry-after"), "1");
    assert_eq!(text(refused.headers(), "ratelimit"), r#""api";r=0;t=1"#);
    assert_eq!(text(refused.headers(), "ratelimit-policy"), r#""api";q=5;w=1"#);
    assert_eq!(text(refused.headers(), "content-type"), "application/problem+json");
    let problem = tidegate_http::Problem::from_json(refused.body()).unwrap();
    assert_eq!(problem.violated_policies, ["api"]);
    assert_eq!(problem.detail.as_deref(), Some("api: limited, retry after 1s"));
}

/// Headers had the name of the layer, but refusals had the name of the member.
#[tokio::test]
async fn an_only_member_has_the_name_of_the_layer_in_headers_and_refusals() {
    for (layer_name, name) in [(Some("api"), "api"), (None, "second")] {
        for is_told in [true, false] {
            let one = limiter(1);
            let all = AllOf::new("second", &one);
            let mut layer = RateLimitLayer::new(all);
            layer = layer_name.map_or(layer.clone(), |name| layer.named(name));
            layer = if is_told { layer } else { layer.no_headers() };
            send(&layer, get("/")).await;
            let refused = send(&layer, get("/")).await;
            let state = if is_told { format!(r#""{name}";r=0;t=1"#) } else { String::new() };
            assert_eq!(text(refused.headers(), "ratelimit"), state);
            let problem = tidegate_http::Problem::from_json(refused.body()).unwrap();
            assert_eq!(problem.violated_policies, [name]);
            assert_eq!(problem.detail, Some(format!("{name}: limited, retry after 1s")));
        }
    }
}

#[tokio::test]
async fn headers_of_a_grant_report_the_decision_itself() {
    let layer = RateLimitLayer::new(limiter(10)).named("api");
    for left in (0..10).rev() {
        let granted = send(&layer, get("/")).await;
        // 200 ms for each permit until the bucket is full; without any permit, until the next
        // permit.
        let t = if left == 0 { 1 } else { (10 - left + 4) / 5 };
        assert_eq!(text(granted.headers(), "ratelimit"), format!(r#""api";r={left};t={t}"#));
        assert!(granted.headers().get("retry-after").is_none());
    }
}

#[tokio::test]
async fn headers_have_the_chosen_format_or_none() {
    let layer = RateLimitLayer::new(limiter(2)).format(Format::XRateLimit);
    let granted = send(&layer, get("/")).await;
    assert_eq!(text(granted.headers(), "x-ratelimit-limit"), "5");
    assert_eq!(text(granted.headers(), "x-ratelimit-remaining"), "1");
    let layer = RateLimitLayer::new(limiter(1)).no_headers();
    assert!(send(&layer, get("/")).await.headers().is_empty());
    let refused = send(&layer, get("/")).await;
    assert!(refused.headers().get("ratelimit").is_none());
    assert_eq!(text(refused.headers(), "retry-after"), "1");
}

#[tokio::test]
async fn a_unix_time_is_that_of_the_answer() {
    let layer = RateLimitLayer::new(limiter(1)).format(Format::XRateLimitUnix(std::time::UNIX_EPOCH));
    let now = || std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
    let before = now();
    let reset: u64 = text(send(&layer, get("/")).await.headers(), "x-ratelimit-reset").parse().unwrap();
    assert!((before..=now() + 2).contains(&reset));
}

#[tokio::test]
async fn nested_layers_of_the_draft_write_each_limit() {
    let outer = RateLimitLayer::new(limiter(5)).named("all");
    let inner = RateLimitLayer::new(limiter(3)).named("one");
    let service = outer.layer(inner.layer(hello()));
    let response = service.oneshot(get("/")).await.unwrap();
    let lines: Vec<_> = response.headers().get_all("ratelimit").iter().collect();
    assert_eq!(lines, [r#""one";r=2;t=1"#, r#""all";r=4;t=1"#]);
}

/// A state of the service without a reset was reported with the reset of the limit.
#[tokio::test]
async fn the_state_that_is_written_is_that_of_one_limit() {
    for (format, prefix) in [(Format::XRateLimit, "x-"), (Format::Draft06, ""), (Format::Draft03, "")] {
        for (burst, expected) in [(100, ["3", ""]), (5, ["3", ""]), (1, ["0", "1"])] {
            let service = service_fn(move |_: Request<String>| {
                let response = Response::builder()
                    .header(format!("{prefix}ratelimit-limit"), "20")
                    .header(format!("{prefix}ratelimit-remaining"), "3");
                ready(Ok::<_, Infallible>(response.body(String::new()).unwrap()))
            });
            let layer = RateLimitLayer::new(limiter(burst)).format(format);
            let headers = layer.layer(service).oneshot(get("/")).await.unwrap().into_parts().0.headers;
            let told =
                ["remaining", "reset"].map(|name| text(&headers, &format!("{prefix}ratelimit-{name}")));
            assert_eq!(told, expected, "{format:?} {burst} {headers:?}");
        }
    }
}

/// Bug: formats without units wrote a limit of calls in flight as a limit of requests. A client
/// that had the only slot read that it had no requests left.
#[tokio::test]
async fn a_limit_of_calls_in_flight_is_written_in_no_format_without_units() {
    for format in [Format::XRateLimit, Format::Draft07, Format::Draft06, Format::Draft03] {
        let (rate, in_flight) = (|| limiter(100), CountingLimit::new(1));
        let alone = send(&RateLimitLayer::new(rate()).format(format), get("/")).await;
        let calls = RateLimitLayer::new(in_flight.clone()).format(format);
        assert!(send(&calls, get("/")).await.headers().is_empty(), "{format:?}");
        let both = AllOf::new("rate", &rate()).with_counting("calls", &in_flight);
        let both = send(&RateLimitLayer::new(both).format(format), get("/")).await;
        let outer = RateLimitLayer::new(rate()).format(format);
        let nested = outer.layer(calls.layer(hello())).oneshot(get("/")).await.unwrap();
        for headers in [both.headers(), nested.headers()] {
            assert_eq!(headers, alone.headers(), "{format:?}");
        }
    }
}

/// With several layers in one format, a format with room for one limit reports the tightest limit.
#[tokio::test]
async fn nested_layers_of_other_formats_write_the_tightest_limit() {
    let layer = |burst, format| RateLimitLayer::new(limiter(burst)).format(format);
    // One limit has 4 of 5 permits left, one has 9 of 10, and one has 19 of 20.
    for bursts in [[5, 10, 20], [5, 20, 10], [10, 5, 20], [20, 5, 10], [10, 20, 5], [20, 10, 5]] {
        let send = async |format| {
            let [outer, middle, inner] = bursts.map(|burst| layer(burst, format));
            let service = outer.layer(middle.layer(inner.layer(hello())));
            service.oneshot(get("/")).await.unwrap().into_parts().0.headers
        };
        let headers = send(Format::Draft07).await;
        let states: Vec<_> = headers.get_all("ratelimit").iter().collect();
        assert_eq!(states, ["limit=5, remaining=4, reset=1"], "{bursts:?}");
        for (format, prefix) in [(Format::Draft06, ""), (Format::Draft03, ""), (Format::XRateLimit, "x-")] {
            let headers = send(format).await;
            let told = |name: &str| text(&headers, &format!("{prefix}ratelimit-{name}")).to_owned();
            assert_eq!((&*told("remaining"), &*told("reset")), ("4", "1"), "{format:?} {bursts:?}");
            if format != Format::Draft03 {
                assert_eq!(told("limit"), "5", "{format:?} {bursts:?}");
                continue;
            }
            let limit = told("limit");
            let (quota, policies) = limit.split_once(", ").unwrap();
            let mut policies: Vec<_> = policies.split(", ").collect();
            policies.sort_unstable();
            assert_eq!((quota, policies), ("5", vec!["10;w=2", "20;w=4", "5;w=1"]), "{bursts:?}");
        }
        let headers = send(Format::XRateLimitUnix(std::time::UNIX_EPOCH)).await;
        assert_eq!(text(&headers, "x-ratelimit-limit"), "5", "{bursts:?}");
    }
}

#[tokio::test]
async fn the_state_that_a_service_writes_stays_unless_the_limit_is_tighter() {
    for (remaining, told) in [("0", "0"), ("90", "4"), ("soon", "soon")] {
        let service = service_fn(move |_: Request<String>| {
            let response = Response::builder()
                .header("x-ratelimit-limit", "100")
                .header("x-ratelimit-remaining", remaining)
                .header("retry-after", "9");
            ready(Ok::<_, Infallible>(response.body(String::new()).unwrap()))
        });
        let layer = RateLimitLayer::new(limiter(5)).format(Format::XRateLimit);
        let response = layer.layer(service).oneshot(get("/")).await.unwrap();
        assert_eq!(text(response.headers(), "x-ratelimit-remaining"), told);
        assert_eq!(text(response.headers(), "retry-after"), "9");
    }
}

#[tokio::test]
async fn an_answer_of_the_user_gets_the_headers() {
    let layer = RateLimitLayer::new(limiter(1)).refuse_with(|refused: &Refused, request: &Parts| {
        let text = format!("{} {}", request.uri.path(), refused.retry_after().unwrap().as_millis());
        Response::builder().status(420).header("retry-after", "7").body(text).unwrap()
    });
    send(&layer, get("/")).await;
    let refused = send(&layer, get("/a")).await;
    assert_eq!(refused.status(), 420);
    assert_eq!(refused.body(), "/a 200");
    assert_eq!(text(refused.headers(), "retry-after"), "7");
    assert_eq!(text(refused.headers(), "ratelimit"), r#""limit";r=0;t=1"#);
}

#[tokio::test]
async fn keys_have_limits_of_their_own() {
    let layer = RateLimitLayer::keyed(keyed::<String>(1), |request| {
        from_header(request).ok_or(StatusCode::UNAUTHORIZED)
    });
    assert_eq!(send(&layer, of("alice")).await.status(), StatusCode::OK);
    assert_eq!(send(&layer, of("alice")).await.status(), StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(send(&layer, of("bob")).await.status(), StatusCode::OK);
    let without = send(&layer, get("/")).await;
    assert_eq!(without.status(), StatusCode::UNAUTHORIZED);
    assert!(without.headers().is_empty() && without.body().is_empty());
}

#[tokio::test]
async fn no_key_is_not_limited_if_the_function_says_so() {
    let layer = RateLimitLayer::keyed(keyed::<String>(1), from_header);
    for _ in 0..9 {
        let response = send(&layer, get("/")).await;
        assert_eq!(response.status(), StatusCode::OK);
        assert!(response.headers().is_empty());
    }
}

#[tokio::test]
async fn a_key_can_be_looked_up() {
    let layer = RateLimitLayer::keyed_async(keyed::<usize>(1), |request| {
        let user = from_header(request);
        async move {
            tokio::task::yield_now().await;
            match user.as_deref() {
                Some("root") => Key::Unlimited,
                Some(user) => Key::Of(user.len()),
                None => Key::Refused(StatusCode::FORBIDDEN),
            }
        }
    });
    for (user, status) in [("bob", 200), ("eve", 429), ("alice", 200), ("root", 200), ("root", 200)] {
        assert_eq!(send(&layer, of(user)).await.status(), status, "{user}");
    }
    assert_eq!(send(&layer, get("/")).await.status(), StatusCode::FORBIDDEN);
}

#[tokio::test]
async fn a_request_costs_what_it_is_said_to() {
    let limit = limiter(10);
    let layer = RateLimitLayer::new(limit.clone()).cost(|request| length(request) - 1);
    send(&layer, get("/1234567")).await;
    assert_eq!(limit.status().available, 3);
    let refused = send(&layer, get("/1234")).await;
    assert_eq!(refused.status(), StatusCode::TOO_MANY_REQUESTS);
    // 3 permits are left, and 4 are available in 200 ms.
    assert_eq!(text(refused.headers(), "ratelimit"), r#""limit";r=3;t=1"#);
    assert_eq!(text(refused.headers(), "retry-after"), "1");
    // More permits than the limit can ever grant.
    let refused = send(&layer, get("/12345678901")).await;
    assert_eq!(refused.status(), StatusCode::TOO_MANY_REQUESTS);
    assert!(refused.headers().get("retry-after").is_none());
    // No permits.
    assert_eq!(send(&layer, get("/")).await.status(), StatusCode::OK);
    assert_eq!(limit.status().available, 3);
}

#[tokio::test]
async fn an_exempt_request_does_not_ask() {
    let limit = limiter(1);
    let layer = RateLimitLayer::new(limit.clone()).exempt(|request| request.uri.path() == "/health");
    for _ in 0..9 {
        assert_eq!(send(&layer, get("/health")).await.status(), StatusCode::OK);
    }
    assert_eq!(limit.status().available, 1);
}

#[tokio::test]
async fn a_paused_limiter_has_no_capacity() {
    let limit = limiter(1);
    limit.pause_for(Duration::from_secs(30));
    let refused = send(&RateLimitLayer::new(limit), get("/")).await;
    assert_eq!(refused.status(), StatusCode::SERVICE_UNAVAILABLE);
    // The first permit accrues 200 ms after the pause.
    assert_eq!(text(refused.headers(), "retry-after"), "31");
}

#[tokio::test]
async fn a_full_table_of_keys_has_no_capacity() {
    let policy = TokenBucket::new(Rate::per_second(5), 1);
    let keys: KeyedRateLimiter<String, _, _> = KeyedRateLimiter::with_clock(policy, 1, ManualClock::new());
    let layer = RateLimitLayer::keyed(keys, from_header);
    send(&layer, of("alice")).await;
    let refused = send(&layer, of("bob")).await;
    assert_eq!(refused.status(), StatusCode::SERVICE_UNAVAILABLE);
    assert!(refused.headers().get("retry-after").is_none());
}

/// The headers of the refusal reported a full limit.
#[tokio::test]
async fn no_limit_is_written_for_a_key_without_room() {
    async fn check<L: Limit<Key = String>>(limit: L) {
        let layer = RateLimitLayer::keyed(limit, from_header);
        let granted = send(&layer, of("alice")).await;
        assert!(granted.headers().get("ratelimit").is_some());
        let refused = send(&layer, of("bob")).await;
        assert_eq!(refused.status(), StatusCode::SERVICE_UNAVAILABLE);
        let told = ["ratelimit", "ratelimit-policy", "retry-after"].map(|name| refused.headers().get(name));
        assert_eq!(told, [None; 3]);
    }
    let keys = || {
        let policy = TokenBucket::new(Rate::per_second(5), 10);
        KeyedRateLimiter::<String, _, _>::with_clock(policy, 1, ManualClock::new())
    };
    check(keys()).await;
    check(AnyKeyed::from(keys())).await;
    check(KeyedAllOf::<str, _>::new("user", &keys())).await;
}

#[tokio::test]
async fn shadow_mode_marks_what_it_would_refuse() {
    let marks = Arc::new(Mutex::new(Vec::new()));
    let seen = marks.clone();
    let service = service_fn(move |request: Request<String>| {
        seen.lock().unwrap().push(request.extensions().get::<Refused>().map(Refused::status));
        ready(Ok::<_, Infallible>(Response::new(String::new())))
    });
    let limit = limiter(1);
    let layer = RateLimitLayer::new(limit.clone()).shadow();
    for _ in 0..3 {
        let response = layer.layer(service.clone()).oneshot(get("/")).await.unwrap();
        assert!(response.headers().is_empty());
    }
    let refused = Some(StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(*marks.lock().unwrap(), [None, refused, refused]);
}

/// The key function refused requests in shadow mode, too: a limit on trial turned clients away.
#[tokio::test]
async fn shadow_mode_lets_a_request_without_a_key_pass() {
    let unauthorized = |request: &Parts| from_header(request).ok_or(StatusCode::UNAUTHORIZED);
    let now = RateLimitLayer::keyed(keyed::<String>(1), unauthorized);
    let later = move |request: &Parts| ready(unauthorized(request));
    let later = RateLimitLayer::keyed_async(keyed::<String>(1), later);
    for layer in [now, later] {
        assert_eq!(send(&layer, get("/")).await.status(), StatusCode::UNAUTHORIZED);
        let marked = service_fn(|request: Request<String>| {
            let status = request.extensions().get::<Refused>().map(|refused| refused.status().to_string());
            ready(Ok::<_, Infallible>(Response::new(status.unwrap_or_default())))
        });
        for layer in [layer.clone().shadow(), layer.shadow().refund_errors()] {
            let response = layer.layer(marked).oneshot(get("/")).await.unwrap();
            assert_eq!(response.status(), StatusCode::OK);
            assert!(response.headers().is_empty());
            assert_eq!(response.into_body().collect().await.unwrap().to_bytes(), "401 Unauthorized");
        }
    }
}

#[tokio::test]
async fn the_shadow_modes_of_layer_and_limiter_are_counted_and_distinguished() {
    let (mut counts, mut told) = (Vec::new(), Vec::new());
    for is_of_layer in [true, false] {
        let (limit, statistics) = (limiter(1), Arc::new(Statistics::new()));
        limit.observe(statistics.clone());
        limit.set_shadow(!is_of_layer);
        let layer = RateLimitLayer::new(limit);
        let layer = if is_of_layer { layer.shadow() } else { layer };
        for _ in 0..3 {
            let passed = send(&layer, get("/")).await;
            assert_eq!(passed.status(), StatusCode::OK);
            told.push(text(passed.headers(), "ratelimit").to_owned());
        }
        let snapshot = statistics.snapshot();
        counts.push((snapshot.granted, snapshot.limited, snapshot.shadowed));
    }
    assert_eq!(counts, [(1, 2, 0), (1, 0, 2)]);
    let empty = r#""limit";r=0;t=1"#;
    assert_eq!(told, ["", "", "", empty, empty, empty]);
}

/// The detail of a refusal had nanoseconds.
#[tokio::test(start_paused = true)]
async fn problem_details_report_the_time_of_retry_after() {
    let policy = TokenBucket::new(Rate::new(1, Duration::from_millis(1300)).unwrap(), 1);
    let layer = RateLimitLayer::new(RateLimiter::with_clock(policy, TokioClock::new()));
    send(&layer, get("/")).await;
    tokio::time::advance(Duration::from_millis(123)).await;
    for (advance, seconds) in [(0, 2), (400, 1)] {
        tokio::time::advance(Duration::from_millis(advance)).await;
        let refused = send(&layer, get("/")).await;
        assert_eq!(text(refused.headers(), "retry-after"), seconds.to_string());
        let problem = tidegate_http::Problem::from_json(refused.body()).unwrap();
        assert_eq!(problem.detail, Some(format!("limit: limited, retry after {seconds}s")));
    }
}

#[tokio::test(start_paused = true)]
async fn a_request_waits_if_it_may() {
    let policy = TokenBucket::new(Rate::per_second(5), 1);
    let limit = RateLimiter::with_clock(policy, TokioClock::new());
    let waits = RateLimitLayer::new(limit.clone()).wait();
    let begin = tokio::time::Instant::now();
    for n in 0..4 {
        assert_eq!(send(&waits, get("/")).await.status(), StatusCode::OK);
        assert_eq!(begin.elapsed(), Duration::from_millis(200) * n);
    }
    // Refused at once: the permit would be due in 200 ms.
    let short = RateLimitLayer::new(limit.clone()).wait_at_most(Duration::from_millis(199));
    assert_eq!(send(&short, get("/")).await.status(), StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(begin.elapsed(), Duration::from_millis(600));
    let long = RateLimitLayer::new(limit).wait_at_most(Duration::from_millis(200));
    assert_eq!(send(&long, get("/")).await.status(), StatusCode::OK);
    assert_eq!(begin.elapsed(), Duration::from_millis(800));
}

/// The maximum wait of the layer replaced that of the request.
#[tokio::test]
async fn of_two_longest_waits_the_shorter_one_holds() {
    for (own, of_layer) in [(50, 30_000), (30_000, 50)] {
        let limit = limiter(1);
        limit.drain();
        let own = Duration::from_millis(own);
        let layer = RateLimitLayer::new(limit.clone())
            .cost(move |_| tidegate::Request::permits(1).within(own))
            .wait_at_most(Duration::from_millis(of_layer));
        for layer in [layer.clone(), layer.refund_if(|_| false)] {
            let mut call = std::pin::pin!(send(&layer, get("/")));
            let Poll::Ready(refused) = futures_poll(call.as_mut()) else { panic!("it waits") };
            assert_eq!(refused.status(), StatusCode::TOO_MANY_REQUESTS);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn keys_wait_in_queues_of_their_own() {
    let policy = TokenBucket::new(Rate::per_second(5), 1);
    let keys: KeyedRateLimiter<String, _, _> = KeyedRateLimiter::with_clock(policy, 100, TokioClock::new());
    let layer = RateLimitLayer::keyed(keys, from_header).wait();
    let begin = tokio::time::Instant::now();
    for (user, at) in [("alice", 0), ("bob", 0), ("alice", 200), ("bob", 200)] {
        send(&layer, of(user)).await;
        assert_eq!(begin.elapsed(), Duration::from_millis(at));
    }
}

#[tokio::test]
async fn a_dropped_call_costs_nothing_before_it_is_granted() {
    let limit = limiter(1);
    let calls = Arc::default();
    let mut service = RateLimitLayer::new(limit.clone()).wait().layer(counted(&calls));
    let unpolled = service.ready().await.unwrap().call(get("/"));
    drop(unpolled);
    assert_eq!(limit.status().available, 1);
    service.ready().await.unwrap().call(get("/")).await.unwrap();
    let mut waiting = Box::pin(service.ready().await.unwrap().call(get("/")));
    assert!(futures_poll(waiting.as_mut()).is_pending());
    assert_eq!(limit.status().waiting, 1);
    drop(waiting);
    assert_eq!(limit.status().waiting, 0);
    assert_eq!(calls.load(Ordering::Relaxed), 1);
}

fn futures_poll<T>(future: std::pin::Pin<&mut impl Future<Output = T>>) -> Poll<T> {
    future.poll(&mut Context::from_waker(std::task::Waker::noop()))
}

#[tokio::test]
async fn several_limits_are_asked_as_one() {
    let (user, all) = (limiter(2), limiter(10));
    let both = AllOf::new("user", &user).with("all", &all);
    let layer = RateLimitLayer::new(both).cost(|request| [("all", length(request))]);
    assert_eq!(send(&layer, get("/1234")).await.status(), StatusCode::OK);
    let refused = send(&layer, get("/12345")).await;
    assert_eq!(refused.status(), StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(text(refused.headers(), "ratelimit"), r#""user";r=1;t=1, "all";r=5;t=1"#);
    // The limit that did not refuse lost no permit.
    assert_eq!((user.status().available, all.status().available), (1, 5));
    let problem = tidegate_http::Problem::from_json(refused.body()).unwrap();
    assert_eq!(problem.violated_policies, ["all"]);
}

/// Bug: a refusal by several limits together named the layer as the violated limit. No header has a
/// limit of this name.
#[tokio::test]
async fn a_refusal_by_all_limits_together_names_none() {
    for is_told in [true, false] {
        let both = AllOf::new("requests", &limiter(9)).with("tokens", &limiter(9));
        let layer = RateLimitLayer::new(both.clone()).named("api");
        let layer = if is_told { layer } else { layer.no_headers() };
        both.pause_for(Duration::from_secs(30));
        let refused = send(&layer, get("/")).await;
        let state = if is_told { r#""requests";r=9;t=0, "tokens";r=9;t=0"# } else { "" };
        assert_eq!(text(refused.headers(), "ratelimit"), state);
        let problem = tidegate_http::Problem::from_json(refused.body()).unwrap();
        assert!(problem.violated_policies.is_empty(), "{problem:?}");
        assert!(problem.detail.unwrap().starts_with("paused, retry after 3"));
    }
    // The only limit is the one that is paused.
    let one = limiter(9);
    one.pause_for(Duration::from_secs(30));
    let refused = send(&RateLimitLayer::new(one).named("api"), get("/")).await;
    assert_eq!(tidegate_http::Problem::from_json(refused.body()).unwrap().violated_policies, ["api"]);
}

#[tokio::test]
async fn keyed_and_common_limits_are_asked_as_one() {
    let clock = ManualClock::new();
    let users: KeyedRateLimiter<String, _, _> =
        KeyedRateLimiter::with_clock(TokenBucket::new(Rate::per_second(5), 2), 100, clock.clone());
    let all = RateLimiter::with_clock(TokenBucket::new(Rate::per_second(5), 3), clock);
    let api: KeyedAllOf<str, _> = KeyedAllOf::new("user", &users).with("all users", &all);
    let layer = RateLimitLayer::keyed(api, from_header);
    let mut refused = Vec::new();
    for user in ["alice", "alice", "alice", "bob", "bob"] {
        let response = send(&layer, of(user)).await;
        if response.status() != StatusCode::OK {
            refused.extend(tidegate_http::Problem::from_json(response.body()).unwrap().violated_policies);
        }
    }
    assert_eq!(refused, ["user", "all users"]);
}

#[tokio::test]
async fn an_estimate_is_settled_by_the_response() {
    #[derive(Clone)]
    struct Used(u32);
    let service = service_fn(|request: Request<String>| {
        let mut response = Response::new(Empty::<Bytes>::new());
        if let Ok(used) = request.uri().path()[1..].parse() {
            response.extensions_mut().insert(Used(used));
        }
        ready(Ok::<_, Infallible>(response))
    });
    let limit = limiter(100);
    let layer = RateLimitLayer::new(limit.clone())
        .cost(|_| 40)
        .settle(|response| response.extensions.get::<Used>().map(|used| used.0));
    let mut left = Vec::new();
    for path in ["/10", "/50", "/unknown"] {
        let response = layer.layer(service).oneshot(get(path)).await.unwrap();
        assert_eq!(response.status(), StatusCode::OK, "{path}");
        left.push(limit.status().available);
    }
    // The last call keeps its estimate. After it, the rest is too small for an estimate.
    assert_eq!(left, [90, 40, 0]);
    assert_eq!(
        layer.layer(service).oneshot(get("/0")).await.unwrap().status(),
        StatusCode::TOO_MANY_REQUESTS
    );
    assert_eq!(limit.status().waiting, 0);
}

/// With every kind of limiter, an estimate of 0 is charged its actual cost.
#[tokio::test]
async fn a_call_that_was_estimated_as_free_is_settled() {
    let used = |_: &http::response::Parts| Some(7);
    let one = limiter(10);
    send(&RateLimitLayer::new(one.clone()).cost(|_| 0).settle(used), get("/")).await;
    assert_eq!(one.status().available, 3);
    // No permit is left: a free call passes, and the limiter owes its cost.
    for _ in 0..2 {
        let layer = RateLimitLayer::new(one.clone()).cost(|_| 0).settle(used);
        assert_eq!(send(&layer, get("/")).await.status(), StatusCode::OK);
    }
    assert_eq!(one.status().next_in, Duration::from_millis(200) * 12);
    let layer = RateLimitLayer::new(one.clone()).cost(|_| 0).settle(used);
    send(&layer.wait().refund_if(|_| true), get("/")).await;
    assert_eq!(one.status().next_in, Duration::from_millis(200) * 12);

    let users: KeyedRateLimiter<String, _, _> = keyed(10);
    send(&RateLimitLayer::keyed(users.clone(), from_header).cost(|_| 0).settle(used), of("alice")).await;
    assert_eq!((users.status("alice").available, users.status("bob").available), (3, 10));

    let (one, other) = (limiter(10), limiter(10));
    let both = AllOf::new("one", &one).with("other", &other);
    let layer = RateLimitLayer::new(both.clone()).cost(|_| 0).settle(|_| Some([("other", 7)]));
    send(&layer, get("/")).await;
    assert_eq!((one.status().available, other.status().available), (10, 3));
    send(&RateLimitLayer::new(AnyLimiter::from(both)).cost(|_| 0).settle(|_| Some(2)), get("/")).await;
    assert_eq!((one.status().available, other.status().available), (8, 1));
}

/// Bug: a member with a default cost kept its permits.
#[tokio::test]
async fn a_refund_gives_back_default_costs() {
    let (calls, tokens) = (limiter(100), limiter(100));
    let api = AllOf::new("calls", &calls).with("tokens", &tokens).default_cost("tokens", 20);
    send(&RateLimitLayer::new(api.clone()), get("/")).await;
    assert_eq!((calls.status().available, tokens.status().available), (99, 80));
    send(&RateLimitLayer::new(api).refund_if(|_| true), get("/")).await;
    assert_eq!((calls.status().available, tokens.status().available), (99, 80));
}

#[tokio::test]
async fn a_refund_comes_before_a_cost_in_any_order() {
    let limit = limiter(10);
    let layer = || RateLimitLayer::new(limit.clone()).cost(|_| 2);
    for layer in [
        layer().settle(|_| Some(5)).refund_if(|_| true),
        layer().refund_if(|_| true).settle(|_| Some(5)),
        layer().refund_if(|_| true).refund_if(|_| false),
        layer().refund_if(|_| false).refund_if(|_| true),
    ] {
        send(&layer, get("/")).await;
        assert_eq!(limit.status().available, 10);
    }
    for (layer, left) in [
        (layer().settle(|_| Some(3)).settle(|_| Some(4)).refund_if(|_| false), 7),
        (layer().refund_if(|_| false).settle(|_| None::<u32>).settle(|_| Some(4)), 3),
    ] {
        send(&layer, get("/")).await;
        assert_eq!(limit.status().available, left);
    }
}

#[tokio::test]
async fn refunded_requests_were_not_counted() {
    let limit = limiter(2);
    let layer = RateLimitLayer::new(limit.clone()).refund_if(|response| response.status.is_server_error());
    let failing = service_fn(|_: Request<String>| {
        let response = Response::builder().status(500).body(Empty::<Bytes>::new());
        ready(Ok::<_, Infallible>(response.unwrap()))
    });
    for _ in 0..5 {
        assert_eq!(layer.layer(failing).oneshot(get("/")).await.unwrap().status(), 500);
        assert_eq!(limit.status().available, 2);
    }
    send(&layer, get("/")).await;
    assert_eq!(limit.status().available, 1);
}

/// Layers of tower-http create default bodies, and threads share boxed bodies.
#[tokio::test]
async fn a_body_can_be_made_from_nothing_and_boxed() {
    let layer = RateLimitLayer::new(limiter(2)).refund_if(|_| true);
    let (_, body) = layer.layer(hello()).oneshot(get("/")).await.unwrap().into_parts();
    let boxed: BoxBody<Bytes, Infallible> = body.boxed();
    drop(boxed);
    let none = tidegate_tower::Body::<Empty<Bytes>>::default();
    assert!(none.is_end_stream());
    assert!(none.collect().await.unwrap().to_bytes().is_empty());
}

/// A limit of calls in flight: of a hundred concurrent calls, two begin.
#[tokio::test]
async fn a_counted_permit_is_kept_until_the_body_ends() {
    let in_flight = CountingLimit::new(2);
    let unlimited = RateLimiter::with_clock(Unlimited, ManualClock::new());
    let layer = RateLimitLayer::new(AllOf::new("rate", &unlimited).with_counting("calls", &in_flight));
    let (sender, body) = Channel::<Bytes>::new(1);
    let body = Arc::new(Mutex::new(Some(body)));
    let streaming = service_fn(move |_: Request<String>| {
        ready(Ok::<_, Infallible>(Response::new(body.lock().unwrap().take().unwrap())))
    });
    let mut response = layer.layer(streaming).oneshot(get("/")).await.unwrap();
    assert_eq!(in_flight.available(), 1);

    let mut sender = sender;
    sender.send_data(Bytes::from_static(b"begin")).await.unwrap();
    response.body_mut().frame().await.unwrap().unwrap();
    assert_eq!(in_flight.available(), 1);
    drop(sender);
    assert!(response.body_mut().frame().await.is_none());
    assert_eq!(in_flight.available(), 2);

    // A body that is dropped, and a body that has ended before it is read.
    let full = service_fn(|request: Request<String>| {
        let text = request.uri().path()[1..].to_owned();
        ready(Ok::<_, Infallible>(Response::new(Full::new(Bytes::from(text)))))
    });
    let with_body = layer.layer(full).oneshot(get("/text")).await.unwrap();
    let without = layer.layer(full).oneshot(get("/")).await.unwrap();
    assert_eq!(in_flight.available(), 1);
    drop(with_body);
    assert_eq!(in_flight.available(), 2);
    drop(without);
    let refused = {
        let _permits = (in_flight.try_acquire().unwrap(), in_flight.try_acquire().unwrap());
        layer.layer(full).oneshot(get("/")).await.unwrap()
    };
    assert_eq!(refused.status(), StatusCode::TOO_MANY_REQUESTS);
}

/// A call with a settled cost makes a reservation, and the reservation could wait.
#[tokio::test]
async fn a_settled_request_is_refused_at_once_if_all_calls_are_in_use() {
    let in_flight = CountingLimit::new(1);
    let rate = limiter(5);
    let limit = AllOf::new("rate", &rate).with_counting("calls", &in_flight);
    let layer = RateLimitLayer::new(limit).refund_if(|_| false);
    let permit = in_flight.try_acquire().unwrap();
    let mut call = std::pin::pin!(send(&layer, get("/")));
    let Poll::Ready(refused) = futures_poll(call.as_mut()) else { panic!("it waits") };
    assert_eq!(refused.status(), StatusCode::TOO_MANY_REQUESTS);
    drop(permit);
    assert_eq!(send(&layer, get("/")).await.status(), StatusCode::OK);
    assert_eq!((rate.status().available, in_flight.available()), (4, 1));
}

/// A server drops a body after its last frame, without polling for another frame.
#[tokio::test]
async fn a_counted_permit_goes_back_with_the_last_frame() {
    let in_flight = CountingLimit::new(1);
    let unlimited = RateLimiter::with_clock(Unlimited, ManualClock::new());
    let layer = RateLimitLayer::new(AllOf::new("rate", &unlimited).with_counting("calls", &in_flight));
    let full = service_fn(|_: Request<String>| {
        ready(Ok::<_, Infallible>(Response::new(Full::new(Bytes::from_static(b"text")))))
    });
    let mut response = layer.layer(full).oneshot(get("/")).await.unwrap();
    assert_eq!(in_flight.available(), 0);
    response.body_mut().frame().await.unwrap().unwrap();
    assert_eq!(in_flight.available(), 1);
}

/// A service that panics if it is called while not ready, and whose clones are not ready.
#[derive(Debug)]
struct Strict(AtomicBool);

impl Clone for Strict {
    fn clone(&self) -> Self {
        Strict(AtomicBool::new(false))
    }
}

impl Service<Request<String>> for Strict {
    type Response = Response<String>;
    type Error = Infallible;
    type Future = Ready<Result<Response<String>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        *self.0.get_mut() = true;
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<String>) -> Self::Future {
        assert!(std::mem::take(self.0.get_mut()), "called without having been ready");
        ready(Ok(Response::new(String::new())))
    }
}

#[tokio::test]
async fn the_service_that_was_ready_is_the_one_that_is_called() {
    let mut service = RateLimitLayer::new(limiter(5)).layer(Strict(AtomicBool::new(false)));
    for _ in 0..3 {
        service.ready().await.unwrap().call(get("/")).await.unwrap();
    }
    let mut client = RateLimitLayer::new(limiter(5)).for_client().layer(Strict(AtomicBool::new(false)));
    client.ready().await.unwrap().call(get("/")).await.unwrap();
}

#[tokio::test]
async fn a_call_of_grpc_is_refused_in_its_own_terms() {
    let layer = RateLimitLayer::new(limiter(1)).named("api");
    let call = |content_type: &str| {
        Request::post("/pkg.Greeter/Hello").header("content-type", content_type).body(String::new()).unwrap()
    };
    send(&layer, get("/")).await;
    for content_type in ["application/grpc", "application/grpc+proto", "application/grpc-web+proto"] {
        let refused = send(&layer, call(content_type)).await;
        assert_eq!(refused.status(), StatusCode::OK);
        assert_eq!(text(refused.headers(), "content-type"), content_type);
        assert_eq!(text(refused.headers(), "grpc-status"), "8");
        assert_eq!(text(refused.headers(), "grpc-message"), "api: limited, retry after 200ms");
        assert_eq!(text(refused.headers(), "grpc-retry-pushback-ms"), "200");
        assert!(refused.body().is_empty());
    }
    for content_type in ["application/grpcx", "application/json", "text/plain"] {
        assert_eq!(send(&layer, call(content_type)).await.status(), StatusCode::TOO_MANY_REQUESTS);
    }
}

#[tokio::test]
async fn a_call_of_grpc_that_can_never_pass_is_not_retried() {
    let layer = RateLimitLayer::new(limiter(1)).cost(|_| 2);
    let call = Request::post("/").header("content-type", "application/grpc").body(String::new()).unwrap();
    let refused = send(&layer, call).await;
    assert_eq!(text(refused.headers(), "grpc-retry-pushback-ms"), "-1");
}

/// The response said never to retry a call, although only the look-up of its key had failed.
#[tokio::test]
async fn a_call_of_grpc_without_a_key_gets_the_status_alone() {
    for (status, code) in [
        (StatusCode::SERVICE_UNAVAILABLE, "14"),
        (StatusCode::BAD_GATEWAY, "14"),
        (StatusCode::GATEWAY_TIMEOUT, "14"),
        (StatusCode::TOO_MANY_REQUESTS, "8"),
        (StatusCode::UNAUTHORIZED, "16"),
        (StatusCode::INTERNAL_SERVER_ERROR, "13"),
        (StatusCode::IM_A_TEAPOT, "2"),
    ] {
        let layer = RateLimitLayer::keyed_async(keyed::<u8>(1), move |_| async move { Err(status) });
        let call = Request::post("/").header("content-type", "application/grpc").body(String::new()).unwrap();
        let refused = send(&layer, call).await;
        assert_eq!(text(refused.headers(), "grpc-status"), code, "{status}");
        assert!(refused.headers().get("grpc-retry-pushback-ms").is_none(), "{status}");
    }
}

#[tokio::test]
async fn all_services_of_a_layer_share_its_permits() {
    let layer = RateLimitLayer::new(limiter(5));
    let clone = layer.clone();
    let service = layer.layer(hello());
    let services = [service.clone(), service, clone.layer(hello())];
    let mut granted = 0;
    for service in services.iter().cycle().take(30) {
        granted += u32::from(service.clone().oneshot(get("/")).await.unwrap().status() == StatusCode::OK);
    }
    assert_eq!(granted, 5);
}

#[test]
#[should_panic(expected = "printable ASCII")]
fn a_name_that_no_header_can_carry_is_refused_early() {
    let _ = RateLimitLayer::new(limiter(1)).named("für alle");
}
