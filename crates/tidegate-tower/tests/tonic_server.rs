//! A tonic server and a tonic client.

#![allow(clippy::unwrap_used)]

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use tidegate::{KeyedRateLimiter, ManualClock, Rate, RateLimiter, TokenBucket};
use tidegate_tower::{ClientAddress, Limit, RateLimitLayer};
use tokio::net::TcpListener;
use tonic::transport::server::{TcpConnectInfo, TcpIncoming};
use tonic::transport::{Channel, Server};
use tonic::{Code, Status};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;
use tower::ServiceBuilder;

/// Serves the health service behind this layer.
async fn served<L: Limit>(layer: RateLimitLayer<L>) -> HealthClient<Channel> {
    let (_reporter, health) = tonic_health::server::health_reporter();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let server = Server::builder().layer(layer).add_service(health);
    tokio::spawn(server.serve_with_incoming(TcpIncoming::from(listener)));
    let channel = Channel::from_shared(format!("http://{address}")).unwrap();
    HealthClient::new(channel.connect().await.unwrap())
}

async fn check(client: &mut HealthClient<Channel>) -> Result<i32, Status> {
    client.check(HealthCheckRequest::default()).await.map(|answer| answer.into_inner().status)
}

fn policy(burst: u32) -> TokenBucket {
    TokenBucket::new(Rate::per_second(5), burst)
}

#[tokio::test]
async fn a_client_gets_resource_exhausted_and_the_time_to_retry() {
    let limiter = RateLimiter::with_clock(policy(2), ManualClock::new());
    let mut client = served(RateLimitLayer::new(limiter).named("api")).await;
    assert_eq!(check(&mut client).await.unwrap(), 1);
    let answer = client.check(HealthCheckRequest::default()).await.unwrap();
    assert_eq!(answer.metadata().get("ratelimit").unwrap(), r#""api";r=0;t=1"#);

    let refused = check(&mut client).await.unwrap_err();
    assert_eq!(refused.code(), Code::ResourceExhausted);
    assert_eq!(refused.message(), "api: limited, retry after 200ms");
    assert_eq!(refused.metadata().get("grpc-retry-pushback-ms").unwrap(), "200");
    assert_eq!(refused.metadata().get("ratelimit").unwrap(), r#""api";r=0;t=1"#);
}

#[tokio::test]
async fn a_limiter_without_capacity_is_unavailable() {
    let limiter = RateLimiter::with_clock(policy(2), ManualClock::new());
    limiter.pause_for(Duration::from_secs(3));
    let mut client = served(RateLimitLayer::new(limiter)).await;
    let refused = check(&mut client).await.unwrap_err();
    assert_eq!(refused.code(), Code::Unavailable);
    assert_eq!(refused.metadata().get("grpc-retry-pushback-ms").unwrap(), "3200");
}

#[tokio::test]
async fn the_peer_of_a_connection_is_found() {
    let clients: KeyedRateLimiter<IpAddr, _, _> =
        KeyedRateLimiter::with_clock(policy(1), 10, ManualClock::new());
    let address = ClientAddress::of_peer(|request| {
        request.extensions.get::<TcpConnectInfo>()?.remote_addr().map(|peer: SocketAddr| peer.ip())
    });
    let layer = RateLimitLayer::keyed(clients.clone(), move |request| address.key(request));
    let mut client = served(layer).await;
    assert!(check(&mut client).await.is_ok());
    assert_eq!(check(&mut client).await.unwrap_err().code(), Code::ResourceExhausted);
    assert_eq!(clients.len(), 1);
}

/// A tonic client takes the layer around its channel.
#[tokio::test]
async fn a_client_waits_for_its_turn() {
    let unlimited = RateLimiter::with_clock(policy(100), ManualClock::new());
    let (_reporter, health) = tonic_health::server::health_reporter();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let server = Server::builder().layer(RateLimitLayer::new(unlimited)).add_service(health);
    tokio::spawn(server.serve_with_incoming(TcpIncoming::from(listener)));

    let channel = Channel::from_shared(url).unwrap().connect().await.unwrap();
    let limiter = RateLimiter::with_clock(policy(2), ManualClock::new());
    let channel =
        ServiceBuilder::new().layer(RateLimitLayer::new(limiter).for_client().refuse()).service(channel);
    let mut client = HealthClient::new(channel);
    for _ in 0..2 {
        client.check(HealthCheckRequest::default()).await.unwrap();
    }
    let refused = client.check(HealthCheckRequest::default()).await.unwrap_err();
    let source = std::error::Error::source(&refused).expect("the error of the channel");
    assert!(source.to_string().contains("limited, retry after 200ms"), "{source}");
}
