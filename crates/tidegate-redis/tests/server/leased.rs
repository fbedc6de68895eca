//! Leases of several processes over a server.

use std::num::NonZeroU32;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Waker};
use std::time::Duration;

use crate::support::Server;
use tidegate::{AnyLimiter, Events, Pause};
use tidegate_redis::{Store, WhileAway};

const RATE: u64 = 5_000;
const BURST: u64 = 5_000;

fn number_of(server: &Server, command: &str) -> u64 {
    let text: String = redis::cmd("INFO").arg("commandstats").query(&mut server.connect()).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(&format!("cmdstat_{command}:calls=")));
    line.map_or(0, |line| line.split(',').next().unwrap().parse().unwrap())
}

/// The time of the server in microseconds.
fn time_of(server: &Server) -> u64 {
    let (seconds, micros): (u64, u64) = redis::cmd("TIME").query(&mut server.connect()).unwrap();
    seconds * 1_000_000 + micros
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn eight_clients_never_take_more_than_the_server_has() {
    let Some(server) = Server::start() else { return };
    let began = time_of(&server);
    let granted = Arc::new(AtomicU64::new(0));
    let (mut stores, mut tasks) = (Vec::new(), Vec::new());
    for _ in 0..8 {
        let share = WhileAway::ShareOf(NonZeroU32::new(8).unwrap());
        // A timeout that no machine misses.
        let builder = Store::builder(server.url()).timeout(Duration::from_secs(60));
        let store = builder.while_away(share).open().unwrap();
        let line = format!("token_bucket {RATE}/s burst {BURST}");
        let limiter = store.limiter("all").limit("calls", line).leased().build().unwrap();
        let limiter = AnyLimiter::from(limiter);
        for _ in 0..10 {
            let (limiter, granted) = (limiter.clone(), granted.clone());
            tasks.push(tokio::spawn(async move {
                while granted.load(Ordering::Relaxed) < 5 * RATE {
                    let permits = limiter.acquire().await.unwrap();
                    granted.fetch_add(permits.permits().into(), Ordering::Relaxed);
                }
            }));
        }
        stores.push(store);
    }
    for task in tasks {
        task.await.unwrap();
    }
    let (granted, took) = (granted.load(Ordering::Relaxed), time_of(&server) - began);
    let trips = number_of(&server, "evalsha") + number_of(&server, "eval");
    // All that accrued, and no more: a permit that is granted was debited before.
    let most = BURST + RATE * took / 1_000_000 + 1;
    eprintln!("{granted} of {most} permits by {trips} calls");
    assert!(granted <= most, "{granted} of {most}");
    assert!(stores.iter().any(|store| store.lease_counts().taken > 0));
    for counts in stores.iter().map(Store::lease_counts) {
        assert!(counts.used + counts.returned + counts.lost <= counts.taken, "{counts:?}");
    }
}

/// Makes requests when a pause begins, and waits until permits are booked for them.
#[derive(Default)]
struct Asks(OnceLock<(Store, AnyLimiter)>);

impl Events for Asks {
    fn paused(&self, _: Duration) {
        let (store, limiter) = self.0.get().unwrap();
        let taken = store.lease_counts().taken;
        let mut waits: Vec<_> = (0..10).map(|_| limiter.acquire()).collect();
        for wait in &mut waits {
            _ = Pin::new(wait).poll(&mut Context::from_waker(Waker::noop()));
        }
        while store.lease_counts().taken == taken {
            std::thread::yield_now();
        }
    }
}

/// A lease that was booked between the end of the former one and the pause was spent in the pause.
#[tokio::test]
async fn no_lease_is_spent_after_a_pause_has_begun() {
    let Some(server) = Server::start() else { return };
    for blocks in [false, true] {
        let asks = Arc::new(Asks::default());
        let store = Store::builder(server.url()).timeout(Duration::from_secs(3600)).open().unwrap();
        let limit = store.limiter(format!("{blocks}")).limit("calls", "token_bucket 100000/h burst 50000");
        let leased = limit.leased().build().unwrap();
        leased.observe(asks.clone());
        let limiter = AnyLimiter::from(leased.clone());
        assert!(asks.0.set((store, limiter.clone())).is_ok());
        for _ in 0..1000 {
            drop(limiter.acquire_now([]).await.unwrap());
        }
        let pause = Pause::lasting(Duration::from_secs(3600));
        match blocks {
            true => limiter.pause(pause).unwrap(),
            false => leased.pause(pause).await.unwrap(),
        }
        assert!(limiter.acquire_now([]).await.is_err(), "{blocks}");
    }
}
