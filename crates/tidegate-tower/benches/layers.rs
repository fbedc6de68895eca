//! What does a layer cost a request, compared with no layer and with the layers of other crates?
//!
//! ```sh
//! cargo bench -p tidegate-tower --bench layers
//! cargo bench -p tidegate-tower --bench layers -- 5      # fewer rounds
//! ```
//!
//! The first table calls a service that responds at once: time and allocations of the layer itself.
//! The second one sends requests over a connection to an axum server. Each round measures all
//! subjects, one after the other, and the tables contain medians, so that a busy machine slows all
//! of them down alike.

#![allow(clippy::unwrap_used)]

use std::alloc::System;
use std::convert::Infallible;
use std::future::{Ready, ready};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::num::NonZeroU32;
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use axum::Router;
use axum::extract::ConnectInfo;
use axum::routing::get;
use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use stats_alloc::{Region, StatsAlloc};
use tidegate::{KeyedRateLimiter, Rate, RateLimiter, TokenBucket};
use tidegate_tower::{ClientAddress, RateLimitLayer};
use tokio::net::{TcpListener, TcpStream};
use tower::limit::ConcurrencyLimitLayer;
use tower::{Layer, Service, service_fn};
use tower_governor::GovernorLayer;
use tower_governor::governor::GovernorConfigBuilder;

#[global_allocator]
static ALLOCATOR: StatsAlloc<System> = StatsAlloc::system();

const PEER: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 4711);
/// The calls of one subject in one round.
const CALLS: u32 = 2000;

/// A policy with enough permits for all requests.
fn plenty() -> TokenBucket {
    TokenBucket::new(Rate::per_second(1_000_000_000), 1_000_000_000)
}

/// A policy that refuses all requests except the first.
fn scarce() -> TokenBucket {
    TokenBucket::new(Rate::per_hour(1), 1)
}

fn keyed(policy: TokenBucket) -> RateLimitLayer<KeyedRateLimiter<IpAddr>> {
    let address = ClientAddress::of_peer(|request| {
        request.extensions.get::<ConnectInfo<SocketAddr>>().map(|peer| peer.0.ip())
    });
    let limiter = KeyedRateLimiter::new(policy, 100_000);
    RateLimitLayer::keyed(limiter, move |request| address.key(request))
}

fn one(policy: TokenBucket) -> RateLimitLayer<RateLimiter<TokenBucket>> {
    RateLimitLayer::new(RateLimiter::new(policy))
}

macro_rules! governor {
    ($builder:expr) => {
        GovernorLayer::new($builder.finish().unwrap())
    };
}

/// A service that responds at once. Like axum's, it is cloned for each request.
fn inner() -> impl Service<
    Request<Full<Bytes>>,
    Response = Response<axum::body::Body>,
    Error = Infallible,
    Future = Ready<Result<Response<axum::body::Body>, Infallible>>,
> + Clone
+ Send
+ Sync {
    service_fn(|_| ready(Ok(Response::new(axum::body::Body::from("hello")))))
}

/// A named service that is called once.
struct Subject<'a> {
    name: &'a str,
    call: Box<dyn FnMut()>,
    times: Vec<Duration>,
    allocations: usize,
}

fn subject<'a, S, B>(name: &'a str, mut service: S) -> Subject<'a>
where
    S: Service<Request<Full<Bytes>>, Response = Response<B>> + 'static,
    S::Error: std::fmt::Debug,
{
    let call = Box::new(move || {
        let mut request = Request::new(Full::new(Bytes::new()));
        request.extensions_mut().insert(ConnectInfo(PEER));
        let context = &mut Context::from_waker(Waker::noop());
        assert!(service.poll_ready(context).is_ready());
        let mut answer = pin!(service.call(request));
        let Poll::Ready(answer) = answer.as_mut().poll(context) else { panic!("it waits") };
        std::hint::black_box(answer.unwrap());
    });
    Subject { name, call, times: Vec::new(), allocations: 0 }
}

impl Subject<'_> {
    fn measure(&mut self) {
        let begin = Instant::now();
        for _ in 0..CALLS {
            (self.call)();
        }
        self.times.push(begin.elapsed() / CALLS);
        let region = Region::new(&ALLOCATOR);
        for _ in 0..CALLS {
            (self.call)();
        }
        self.allocations = region.change().allocations / CALLS as usize;
    }
}

fn median(times: &mut [Duration]) -> Duration {
    times.sort();
    times[times.len() / 2]
}

fn calls(rounds: u32) {
    let second = NonZeroU32::MAX.get();
    let mut subjects = [
        subject("no layer", inner()),
        subject("tower's ConcurrencyLimit", ConcurrencyLimitLayer::new(1000).layer(inner())),
        subject("one limit, no headers", one(plenty()).no_headers().layer(inner())),
        subject("one limit, RateLimit headers", one(plenty()).layer(inner())),
        subject("an address, no headers", keyed(plenty()).no_headers().layer(inner())),
        subject("an address, RateLimit headers", keyed(plenty()).layer(inner())),
        subject(
            "an address, settled, no headers",
            keyed(plenty()).no_headers().refund_if(|_| false).layer(inner()),
        ),
        subject(
            "tower_governor, an address, no headers",
            governor!(GovernorConfigBuilder::default().per_nanosecond(1).burst_size(second)).layer(inner()),
        ),
        subject(
            "tower_governor, an address, headers",
            governor!(GovernorConfigBuilder::default().per_nanosecond(1).burst_size(second).use_headers())
                .layer(inner()),
        ),
        subject("refused: an address, headers, problem+json", keyed(scarce()).layer(inner())),
        subject(
            "refused: an address, no headers, empty",
            keyed(scarce()).no_headers().refuse_with(|_, _| Response::new("")).layer(inner()),
        ),
        subject(
            "refused: tower_governor, an address",
            governor!(GovernorConfigBuilder::default().per_second(3600).burst_size(1)).layer(inner()),
        ),
    ];
    for _ in 0..rounds {
        subjects.iter_mut().for_each(Subject::measure);
    }
    println!("| calls of a service | ns | more than no layer | allocations |\n|---|---|---|---|");
    let bare = median(&mut subjects[0].times);
    for Subject { name, times, allocations, .. } in &mut subjects {
        let time = median(times);
        let more = time.saturating_sub(bare).as_nanos();
        println!("| {name} | {} | {more} | {allocations} |", time.as_nanos());
    }
}

async fn connected(app: Router) -> SendRequest<Full<Bytes>> {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let stream = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
    let app = app.into_make_service_with_connect_info::<SocketAddr>();
    tokio::spawn(async { axum::serve(listener, app).await });
    let (sender, connection) = handshake(TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    sender
}

async fn requests(rounds: u32) {
    let app = || Router::new().route("/", get(|| async { "hello" }));
    let second = NonZeroU32::MAX.get();
    let governor =
        governor!(GovernorConfigBuilder::default().per_nanosecond(1).burst_size(second).use_headers());
    let mut subjects = [
        ("no layer", app()),
        ("tower's ConcurrencyLimit", app().layer(ConcurrencyLimitLayer::new(1000))),
        ("tidegate-tower, an address, no headers", app().layer(keyed(plenty()).no_headers())),
        ("tidegate-tower, an address, headers", app().layer(keyed(plenty()))),
        ("tower_governor, an address, headers", app().layer(governor)),
    ]
    .map(|(name, app)| (name, app, Vec::new()));
    let mut connections = Vec::new();
    for (_, app, _) in &subjects {
        connections.push(connected(app.clone()).await);
    }
    for _ in 0..rounds {
        for ((.., times), sender) in subjects.iter_mut().zip(&mut connections) {
            let begin = Instant::now();
            for _ in 0..CALLS {
                let request = Request::get("/").header("host", "localhost").body(Full::default()).unwrap();
                let answer = sender.send_request(request).await.unwrap();
                assert_eq!(answer.status(), 200);
                answer.into_body().collect().await.unwrap();
            }
            times.push(begin.elapsed() / CALLS);
        }
    }
    println!("\n| requests over a connection | requests/s | to no layer |\n|---|---|---|");
    let mut bare = subjects[0].2.clone();
    for (name, _, times) in &mut subjects {
        // Ratios within a round, in which the machine was equally busy.
        let mut ratios: Vec<_> =
            times.iter().zip(&bare).map(|(t, b)| b.as_secs_f64() / t.as_secs_f64()).collect();
        ratios.sort_by(f64::total_cmp);
        let ratio = ratios[ratios.len() / 2];
        let rate = 1.0 / median(&mut times.clone()).as_secs_f64();
        println!("| {name} | {rate:.0} | {ratio:.3} |");
    }
    bare.clear();
}

fn main() {
    let rounds = std::env::args().filter_map(|argument| argument.parse().ok()).next().unwrap_or(101).max(1);
    calls(rounds);
    // One thread: the work of the client and the server adds up.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(requests(rounds.div_ceil(4)));
}
