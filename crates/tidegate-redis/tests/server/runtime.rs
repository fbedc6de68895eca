//! Stores whose calls are made by tasks of the user's runtime.

use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use crate::support::Server;
use tidegate::{AllPermits, AllRefusal, AnyLimiter, Events, Pause, Refusal};
use tidegate_redis::{OpenError, Store, StoreBuilder, WhileAway};
use tokio::runtime::{Builder, Runtime};
use tokio_test::task::spawn;
use tokio_test::{assert_pending, assert_ready};

/// A timeout that no machine misses.
const HOUR: Duration = Duration::from_secs(3600);

fn builder(server: &Server) -> StoreBuilder {
    Store::builder(server.url()).timeout(HOUR).on_this_runtime()
}

/// A runtime that runs by itself.
fn runtime() -> Runtime {
    Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap()
}

fn limiter(store: &Store, line: &str) -> AnyLimiter {
    store.limiter("all").limit("limit", line).build().unwrap().into()
}

fn is_away(answer: &Result<AllPermits, AllRefusal>) -> bool {
    matches!(answer, Err(refusal) if refusal.refusal() == Some(Refusal::Unavailable { retry_after: tidegate::Nanos::MAX }))
}

#[tokio::test]
async fn tasks_of_the_only_thread_are_served_by_it() {
    let Some(server) = Server::start() else { return };
    let store = builder(&server).open().unwrap();
    store.check().await.unwrap();
    let limiter = limiter(&store, "token_bucket 1000/s burst 5");
    for _ in 0..20 {
        assert!(!limiter.acquire().await.unwrap().is_degraded());
    }
    let all = (0..100).map(|_| limiter.acquire());
    assert!(futures_util::future::join_all(all).await.into_iter().all(|permits| permits.is_ok()));
}

#[tokio::test]
async fn calls_that_block_are_refused_on_its_threads_alone() {
    let Some(server) = Server::start() else { return };
    let store = builder(&server).open().unwrap();
    let limiter = limiter(&store, "fixed_window 5/10000d");
    let of_thread = limiter.clone();
    assert!(is_away(&limiter.try_acquire()) && is_away(&limiter.blocking_acquire()));
    assert_eq!(limiter.status().members[0].1.available, 0);
    assert!(!limiter.resume());
    let (done, is_done) = tokio::sync::oneshot::channel();
    std::thread::spawn(move || done.send(of_thread.try_acquire()));
    assert!(is_done.await.unwrap().is_ok());
    let blocking = tokio::task::spawn_blocking(move || limiter.try_acquire());
    assert!(is_away(&blocking.await.unwrap()));
}

/// Makes a call that blocks when another limiter has granted a request.
#[derive(Default)]
struct Asks {
    limiter: OnceLock<AnyLimiter>,
    answers: Mutex<Vec<Result<AllPermits, AllRefusal>>>,
}

impl Events for Asks {
    fn granted(&self, _: u64, _: Duration) {
        if let Some(limiter) = self.limiter.get() {
            self.answers.lock().unwrap().push(limiter.try_acquire());
        }
    }
}

/// Bug: a call that blocks waited for itself on the only thread of this runtime, because the thread
/// had entered the runtime of another store to wait for it.
#[test]
fn a_call_that_blocks_is_refused_while_its_thread_waits_for_another_store() {
    let Some(server) = Server::start() else { return };
    let asks = Arc::new(Asks::default());
    let (of_thread, url) = (asks.clone(), server.url());
    let (done, is_done) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        let store = runtime.block_on(async { Store::builder(&url).timeout(HOUR).on_this_runtime().open() });
        let store = store.unwrap();
        assert!(of_thread.limiter.set(limiter(&store, "fixed_window 5/10000d")).is_ok());
        let other = Store::builder(&url).timeout(HOUR).observed_by(of_thread).open().unwrap();
        let other = limiter(&other, "fixed_window 5/9000d");
        done.send(runtime.block_on(async { other.blocking_acquire().is_ok() }))
    });
    // The time limit only ends a test that hangs.
    assert_eq!(is_done.recv_timeout(Duration::from_secs(60)), Ok(true));
    let answers = asks.answers.lock().unwrap();
    assert!(answers.len() == 1 && is_away(&answers[0]), "{answers:?}");
}

#[test]
fn there_must_be_a_runtime() {
    let error = Store::builder("redis://127.0.0.1").on_this_runtime().open().unwrap_err();
    assert_eq!(error, OpenError::NoRuntime);
}

/// A store on a runtime that ends while the server is stopped, and the requests that wait
/// meanwhile.
#[test]
fn what_waits_is_answered_when_the_runtime_ends() {
    for while_away in [WhileAway::Closed, WhileAway::Wait] {
        what_waits_is_answered(while_away);
    }
}

fn what_waits_is_answered(while_away: WhileAway) {
    let Some(server) = Server::start() else { return };
    let runtime = runtime();
    let store = runtime.block_on(async { builder(&server).while_away(while_away).open() }).unwrap();
    let exact = limiter(&store, "token_bucket 100/s burst 1");
    let leased = store.limiter("leased").limit("limit", "token_bucket 100/s burst 100");
    let leased = AnyLimiter::from(leased.leased().build().unwrap());
    let counting = AnyLimiter::from(store.counting("jobs", 1).build().unwrap());
    let held = runtime.block_on(async {
        for _ in 0..150 {
            let _ = leased.acquire().await.unwrap();
        }
        counting.acquire().await.unwrap()
    });
    server.signal("STOP");
    let mut waits: Vec<_> = [&exact, &leased, &counting]
        .into_iter()
        .flat_map(|limiter| (0..200).map(|_| spawn(limiter.acquire())))
        .collect();
    let pending: Vec<bool> = waits.iter_mut().map(|wait| wait.poll().is_pending()).collect();
    assert!(pending.iter().filter(|pending| **pending).count() >= 400);
    drop(runtime);
    let mut away = 0;
    for (wait, was_pending) in waits.iter_mut().zip(pending) {
        if was_pending {
            // Permits that were on lease already may be granted.
            away += usize::from(is_away(&assert_ready!(wait.poll())));
        }
    }
    assert!(away >= 400, "{away}");
    drop(held);
    for limiter in [&exact, &counting] {
        assert!(is_away(&assert_ready!(spawn(limiter.acquire()).poll())));
        assert!(is_away(&limiter.try_acquire()));
    }
    let counts = store.counts();
    assert!(counts.unknown + counts.skipped >= 2 && counts.failed == 0, "{counts:?}");
    assert!(store.trouble().unwrap().is_away());
}

/// The tasks that check whether the pause has ended were dropped with the runtime, and the requests
/// waited for ever.
#[test]
fn what_waits_behind_a_pause_is_answered_when_the_runtime_ends() {
    let Some(server) = Server::start() else { return };
    let runtime = runtime();
    let store = runtime.block_on(async { builder(&server).open() }).unwrap();
    let exact = store.limiter("all").limit("limit", "token_bucket 100/s burst 1").build().unwrap();
    let limiter = AnyLimiter::from(exact.clone());
    runtime.block_on(exact.pause(Pause::lasting(Duration::from_secs(3600)))).unwrap();
    let mut waits: Vec<_> = (0..1000).map(|_| spawn(limiter.acquire())).collect();
    waits.iter_mut().for_each(|wait| assert_pending!(wait.poll()));
    let mut looks = 0;
    while runtime.block_on(exact.status()).unwrap().waiting < 1000 {
        looks += 1;
        assert!(looks < 1_000_000, "not all requests wait behind the pause");
    }
    drop(runtime);
    for wait in &mut waits {
        // This process knows of its pause.
        assert!(assert_ready!(wait.poll()).unwrap_err().is_degraded());
    }
}

#[test]
fn a_store_decides_as_away_after_its_runtime() {
    let Some(server) = Server::start() else { return };
    let runtime = runtime();
    let builder = builder(&server).while_away(WhileAway::Open);
    let store = runtime.block_on(async { builder.open() }).unwrap();
    let limiter = limiter(&store, "fixed_window 1/10000d");
    let mut waits = spawn(limiter.acquire());
    let is_pending = waits.poll().is_pending();
    drop(runtime);
    if is_pending {
        let _ = assert_ready!(waits.poll()).unwrap();
    }
    for _ in 0..5 {
        assert!(limiter.try_acquire().unwrap().is_degraded());
    }
    let counting = AnyLimiter::from(store.counting("jobs", 1).build().unwrap());
    let both = [counting.try_acquire().unwrap(), counting.try_acquire().unwrap()];
    assert!(both.iter().all(AllPermits::is_degraded));
    let mut wait = spawn(store.check());
    assert!(assert_ready!(wait.poll()).unwrap_err().is_away());
}

/// Bug: the thread waited for ever, for a sleep of the runtime that had ended.
#[test]
fn a_blocked_thread_of_another_runtime_is_served_after_the_end_of_the_pause() {
    let Some(server) = Server::start() else { return };
    let first = runtime();
    let builder = builder(&server).while_away(WhileAway::ShareOf(2.try_into().unwrap()));
    let store = first.block_on(async { builder.open() }).unwrap();
    let limiter = limiter(&store, "token_bucket 100/s burst 4");
    limiter.pause_for(Duration::from_millis(100)).unwrap();
    drop(first);
    let (sender, answers) = std::sync::mpsc::channel();
    let other = runtime();
    for _ in 0..3 {
        let (limiter, sender) = (limiter.clone(), sender.clone());
        other.spawn_blocking(move || sender.send(limiter.blocking_acquire().map(|_| ())));
    }
    for _ in 0..3 {
        assert_eq!(answers.recv_timeout(Duration::from_secs(60)), Ok(Ok(())));
    }
}

/// No thread drives it.
#[test]
fn a_request_of_a_runtime_that_stands_still_is_answered_at_its_end() {
    let Some(server) = Server::start() else { return };
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    let store = runtime.block_on(async { builder(&server).open() }).unwrap();
    let limiter = limiter(&store, "fixed_window 1/10000d");
    let mut wait = spawn(limiter.acquire());
    assert_pending!(wait.poll());
    drop(runtime);
    assert!(wait.is_woken() && is_away(&assert_ready!(wait.poll())));
    assert_eq!(store.counts().skipped, 1);
}
