//! The client over a model of a server, on paused time.

#![allow(clippy::unwrap_used)]

// The modules `check` and `scenario` are parts of the example `simulation`.
#[allow(dead_code)]
#[path = "../../examples/simulation/check.rs"]
mod check;
#[allow(dead_code)]
#[path = "../../examples/simulation/scenario.rs"]
mod scenario;

mod crowds;
mod differ;
mod dropped_waits;
mod keyed;
mod layers;
mod lease_ends;
mod lease_order;
mod leases;
mod line;
mod observers;
mod outages;
mod paused_sets;
mod pauses;
mod predicted;
mod settled;
mod shares;
mod simulation;
mod waiting;

use std::num::NonZeroU32;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tidegate::AnyLimiter;
use tidegate_redis::simulation::{Model, Network, run};
use tidegate_redis::{Store, WhileAway};
use tokio::time::Instant;

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

/// Runs a test on a model of a server that is a millisecond away.
fn on_model<T>(test: impl AsyncFnOnce(Model) -> T) -> T {
    run(async { test(Model::new(1, Network::steady(MS))).await })
}

/// A server that is a millisecond away and works a microsecond on a call.
fn model() -> Model {
    let service = Duration::from_micros(1);
    Model::new(3, Network { service, ..Network::steady(MS) })
}

/// Lets the tasks run until all of them wait.
async fn settle() {
    for _ in 0..10 {
        tokio::task::yield_now().await;
    }
}

/// Requests that come at one time are served in their order, within four seconds.
async fn assert_in_order(limiter: &AnyLimiter, requests: usize, of: &str) {
    let served = Arc::new(Mutex::new(Vec::new()));
    for number in 0..requests {
        let (wait, served) = (limiter.acquire(), served.clone());
        tokio::spawn(async move {
            let _ = wait.await.unwrap();
            served.lock().unwrap().push((Instant::now(), number));
        });
    }
    tokio::time::sleep(Duration::from_secs(4)).await;
    let mut served = served.lock().unwrap().clone();
    // Those of one time ran in any order.
    served.sort_unstable();
    assert!(served.len() == requests && served.iter().map(|(_, number)| number).is_sorted(), "{of}");
}

/// A store whose process may grant half of each limit while the server is away.
fn one_of_two(model: &Model) -> Store {
    let two = WhileAway::ShareOf(NonZeroU32::new(2).unwrap());
    model.open(Store::builder("redis://model").while_away(two)).unwrap()
}
