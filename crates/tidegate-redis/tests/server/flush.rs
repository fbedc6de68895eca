//! Processes that send the store all pending messages before they end.

use std::time::Duration;

use crate::support::Server;
use tidegate::{AllPermits, AnyLimiter, Nanos, Pause, Refusal};
use tidegate_redis::simulation::{Model, Network, run};
use tidegate_redis::{Store, StoreBuilder, StoreLimiter, WhileAway};
use tokio::runtime::{Builder, Runtime};
use tokio::time::Instant;
use tokio_test::task::spawn;

const HOUR: Duration = Duration::from_secs(3600);
const MS: Duration = Duration::from_millis(1);

/// A process that ends when it is dropped, with its runtime that makes its calls.
struct Process {
    runtime: Runtime,
    store: Store,
}

fn limiter(store: &Store, line: &str) -> AnyLimiter {
    store.limiter("all").limit("calls", line).build().unwrap().into()
}

impl Process {
    fn new(server: &Server) -> Process {
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        // With a timeout that no machine misses.
        let builder = Store::builder(server.url()).timeout(HOUR).on_this_runtime();
        let store = runtime.block_on(async { builder.open() }).unwrap();
        Process { runtime, store }
    }

    fn counting(&self) -> AnyLimiter {
        self.store.counting("jobs", 20).time_to_live(HOUR).build().unwrap().into()
    }

    fn limiter(&self, line: &str) -> AnyLimiter {
        limiter(&self.store, line)
    }

    fn take(&self, limiter: &AnyLimiter, permits: u32) -> Option<AllPermits> {
        self.runtime.block_on(limiter.acquire_now(permits)).ok()
    }

    fn flush(&self) {
        self.runtime.block_on(self.store.flush()).unwrap();
    }
}

#[test]
fn permits_in_use_that_a_process_drops_at_its_end_are_free_at_once() {
    let Some(server) = Server::start() else { return };
    let first = Process::new(&server);
    let jobs = first.counting();
    let held: Vec<AllPermits> = (0..20).map(|_| first.take(&jobs, 1).unwrap()).collect();
    drop(held);
    first.flush();
    drop(first);
    let next = Process::new(&server);
    assert!(next.take(&next.counting(), 20).is_some());
}

#[test]
fn an_operator_that_flushes_has_debited_and_paused_a_fleet() {
    let Some(server) = Server::start() else { return };
    let line = "token_bucket 1/h burst 20";
    let status = || {
        let process = Process::new(&server);
        let limiter = process.store.limiter("all").limit("calls", line).build().unwrap();
        process.runtime.block_on(limiter.status()).unwrap()
    };
    let operate = |operate: fn(AnyLimiter)| {
        let process = Process::new(&server);
        operate(process.limiter(line));
        process.flush();
    };
    operate(|limiter| limiter.debit(5).unwrap());
    assert_eq!(status().members[0].1.available, 15);
    operate(|limiter| limiter.pause_for(HOUR).unwrap());
    assert!(status().paused_for > Duration::ZERO);
}

/// Twice the deadline of a call, by timers that fire at whole milliseconds.
const LONGEST: Duration = Duration::from_millis(101);

/// A server a millisecond away.
fn model() -> Model {
    Model::new(5, Network { service: Duration::from_micros(1), ..Network::steady(MS) })
}

fn builder() -> StoreBuilder {
    Store::builder("redis://model").timeout(50 * MS)
}

/// Another process, which is connected.
async fn other(model: &Model, line: &str) -> StoreLimiter {
    let store = model.open(builder()).unwrap();
    let limiter = store.limiter("all").limit("calls", line).build().unwrap();
    limiter.status().await.unwrap();
    limiter
}

#[test]
fn dropped_waits_are_given_back_that_the_store_has_not_answered_yet() {
    run(async {
        let (model, line) = (model(), "token_bucket 1/h burst 2");
        let (store, other) = (model.open(builder()).unwrap(), other(&model, line).await);
        let limiter = limiter(&store, line);
        drop(limiter.acquire_now(2).await.unwrap());
        let mut waits: Vec<_> = (0..5).map(|_| spawn(limiter.acquire())).collect();
        for wait in &mut waits {
            assert!(wait.poll().is_pending());
        }
        // One of them is in flight, and the others have not been sent.
        drop(waits);
        store.flush().await.unwrap();
        let state = other.status().await.unwrap();
        assert!(state.members[0].1.next_in <= HOUR, "{state:?}");
    });
}

#[test]
fn a_flush_reports_a_message_that_was_lost_and_ends_in_time() {
    run(async {
        let model = model();
        let store = model.open(builder()).unwrap();
        let limiter = limiter(&store, "token_bucket 1/h burst 20");
        drop(limiter.acquire_now(1).await.unwrap());
        assert_eq!(store.flush().await, Ok(()));
        model.stop(true);
        limiter.pause_for(HOUR).unwrap();
        let began = Instant::now();
        // A dropped flush keeps the error for the next one.
        assert!(spawn(store.flush()).poll().is_pending());
        let error = store.flush().await.unwrap_err();
        assert!(error.is_away() && began.elapsed() <= LONGEST, "{error} {:?}", began.elapsed());
        assert!(error.to_string().starts_with("a message got lost while the store was away: "), "{error}");
        // The error is returned once.
        assert_eq!(store.flush().await, Ok(()));
    });
}

#[test]
fn a_flush_fails_while_the_store_does_not_know_of_dropped_permits() {
    run(async {
        let model = model();
        let store = model.open(builder()).unwrap();
        let jobs: AnyLimiter = store.counting("jobs", 20).time_to_live(HOUR).build().unwrap().into();
        let held = jobs.acquire_now(20).await.unwrap();
        model.stop(true);
        drop(held);
        for _ in 0..5 {
            let began = Instant::now();
            assert!(store.flush().await.unwrap_err().is_away());
            assert!(began.elapsed() <= LONGEST, "{:?}", began.elapsed());
        }
        model.stop(false);
        while store.flush().await.is_err() {}
        let other = model.open(builder()).unwrap();
        let jobs: AnyLimiter = other.counting("jobs", 20).build().unwrap().into();
        assert!(jobs.acquire_now(20).await.is_ok());
    });
}

/// Bug: permits that were dropped in an outage were forgotten after their time to live, and a flush
/// succeeded although the store had not replied to any call without them.
#[test]
fn a_flush_fails_although_dropped_permits_have_expired() {
    run(async {
        for (refused, held) in [(0, 1), (1, 0)] {
            let model = model();
            let store = model.open(builder().while_away(WhileAway::Closed)).unwrap();
            let jobs: AnyLimiter = store.counting("jobs", 4).build().unwrap().into();
            let permits = if held > 0 { Some(jobs.acquire_now(held).await.unwrap()) } else { None };
            model.stop(true);
            drop(permits);
            for _ in 0..refused {
                assert!(jobs.acquire_now(1).await.is_err());
            }
            tokio::time::sleep(Duration::from_secs(12)).await;
            // A request that was refused lost nothing.
            assert_eq!(store.flush().await.is_err(), held > 0);
            assert_eq!(store.flush().await, Ok(()));
        }
    });
}

/// Also if a lease was asked for, and has not arrived yet.
#[test]
fn a_dropped_limiter_has_given_back_its_lease_after_a_flush() {
    run(async {
        for asked in 50..80 {
            let (model, line) = (model(), "fixed_window 100000/min");
            let (store, other) = (model.open(builder()).unwrap(), other(&model, line).await);
            let leased = store.limiter("all").limit("calls", line).leased();
            let leased = AnyLimiter::from(leased.build().unwrap());
            for _ in 0..asked {
                drop(leased.acquire_now(1).await.unwrap());
            }
            assert!(store.lease_counts().taken > 0);
            drop(leased);
            store.flush().await.unwrap();
            let state = other.status().await.unwrap();
            assert_eq!(state.members[0].1.available, 100_000 - asked);
        }
    });
}

/// A key stays for a second or two after its last request, but not longer than its limiter.
/// Otherwise each end of a process cost a part of the limits of all busy keys.
#[test]
fn a_dropped_limiter_of_keys_has_given_back_its_leases_after_a_flush() {
    run(async {
        for asked in 50..80 {
            let (model, line) = (model(), "fixed_window 100000/min");
            let (store, other) = (model.open(builder()).unwrap(), model.open(builder()).unwrap());
            let users = |store: &Store| store.keyed("users").limit("calls", line);
            let leased = users(&store).leased().build().unwrap();
            let handle = leased.clone();
            for _ in 0..asked {
                drop(leased.acquire_now("alice", 1).await.unwrap());
                drop(leased.acquire_now("bob", 1).await.unwrap());
            }
            drop(leased);
            // The limiter is still in use.
            store.flush().await.unwrap();
            assert_eq!(handle.len(), 2);
            assert!(store.lease_counts().taken > 0);
            drop(handle);
            store.flush().await.unwrap();
            let other = users(&other).build().unwrap();
            for user in ["alice", "bob"] {
                let state = other.status(user).await.unwrap();
                assert_eq!(state.members[0].1.available, 100_000 - asked);
            }
            assert_eq!(store.lease_counts().outstanding(), 0);
        }
    });
}

/// Later requests do not hold it up.
#[test]
fn a_flush_of_a_busy_store_ends() {
    run(async {
        let model = model();
        let store = model.open(builder()).unwrap();
        let jobs: AnyLimiter = store.counting("jobs", 3).build().unwrap().into();
        let calls = limiter(&store, "token_bucket 100000/s burst 1000");
        for limiter in [jobs, calls] {
            for _ in 0..8 {
                let limiter = limiter.clone();
                tokio::spawn(async move {
                    loop {
                        drop(limiter.acquire().await.unwrap());
                    }
                });
            }
        }
        for _ in 0..100 {
            tokio::time::sleep(MS).await;
            let began = Instant::now();
            assert_eq!(store.flush().await, Ok(()));
            assert!(began.elapsed() < 50 * MS, "{:?}", began.elapsed());
        }
    });
}

#[test]
fn a_plain_thread_flushes_and_a_thread_that_asks_the_store_cannot() {
    let Some(server) = Server::start() else { return };
    let process = Process::new(&server);
    assert!(process.runtime.block_on(async { process.store.blocking_flush() }).is_err());
    let store = Store::builder(server.url()).timeout(HOUR).open().unwrap();
    let jobs: AnyLimiter = store.counting("jobs", 20).time_to_live(HOUR).build().unwrap().into();
    drop(jobs.blocking_acquire_many(20).unwrap());
    store.blocking_flush().unwrap();
    assert!(process.take(&process.counting(), 20).is_some());
}

#[test]
fn a_process_is_counted_from_its_first_request_until_it_flushes() {
    run(async {
        let model = model();
        let open = || model.open(builder().while_away(WhileAway::Share)).unwrap();
        let (server, tool, leaver) = (open(), open(), open());
        let line = "fixed_window 100000/10000d";
        let of = |store: &Store| store.limiter("all").limit("calls", line).build().unwrap();
        let ask = async |store: &Store| AnyLimiter::from(of(store)).acquire_now(1).await.unwrap();
        // A tool that requests no permits.
        tool.check().await.unwrap();
        let of_tool = of(&tool);
        of_tool.pause_for(HOUR).await.unwrap();
        assert_eq!(of_tool.resume().await, Ok(true));
        assert_eq!(of_tool.resume().await, Ok(false));
        drop((ask(&server).await, ask(&leaver).await));
        tokio::time::sleep(20_000 * MS).await;
        let count = |store: &Store| store.clients().map(|count| count.get());
        assert_eq!((count(&server), count(&leaver), count(&tool)), (Some(2), Some(2), None));
        leaver.flush().await.unwrap();
        tokio::time::sleep(5_000 * MS).await;
        assert_eq!(count(&server), Some(1));
        drop(ask(&leaver).await);
        tokio::time::sleep(5_000 * MS).await;
        assert_eq!(count(&server), Some(2));
    });
}

/// Bug: of two flushes at one moment, the second one made the process leave once more, right after
/// its next request.
#[test]
fn a_process_that_flushes_twice_at_once_is_counted_from_its_next_request() {
    run(async {
        let model = model();
        let store = model.open(builder().while_away(WhileAway::Share)).unwrap();
        let other = model.open(builder().while_away(WhileAway::Share)).unwrap();
        let of = |store: &Store| limiter(store, "fixed_window 100000/10000d");
        let (limiter, of_other) = (of(&store), of(&other));
        drop((limiter.acquire_now(1).await.unwrap(), of_other.acquire_now(1).await.unwrap()));
        tokio::time::sleep(20_000 * MS).await;
        let (first, second) = tokio::join!(store.flush(), store.flush());
        assert_eq!((first, second), (Ok(()), Ok(())));
        drop(limiter.acquire_now(1).await.unwrap());
        tokio::time::sleep(20_000 * MS).await;
        assert_eq!(other.clients().map(|count| count.get()), Some(2));
    });
}

#[test]
fn calls_of_an_operator_report_whether_the_store_carried_them_out() {
    run(async {
        let (model, line) = (model(), "token_bucket 1/h burst 20");
        let limiter = other(&model, line).await;
        limiter.debit(5).await.unwrap();
        assert_eq!(limiter.keep_at_most("calls", 10).await, Ok(5));
        assert!(limiter.keep_at_most("other", 10).await.is_err());
        limiter.pause(Pause::lasting(Duration::MAX)).await.unwrap();
        // A pause without an end.
        let refusal = AnyLimiter::from(other(&model, line).await).acquire_now(1).await.unwrap_err();
        assert_eq!(refusal.refusal(), Some(Refusal::Paused { retry_after: Nanos::MAX }));
        assert_eq!(refusal.retry_after(), None);
        model.stop(true);
        assert!(limiter.pause(Pause::lasting(HOUR)).await.is_err());
        assert!(limiter.resume().await.is_err() && limiter.debit(1).await.is_err());
        assert!(limiter.keep_at_most("calls", 1).await.is_err());
    });
}

/// Bug: a flush never returned while the calls of one limit failed and the store replied to those
/// of others.
#[tokio::test]
async fn a_flush_ends_although_the_message_of_one_limit_fails_again_and_again() {
    let Some(server) = Server::start() else { return };
    let store = Store::builder(server.url()).timeout(Duration::from_secs(1)).while_away(WhileAway::Wait);
    let store = store.open().unwrap();
    let jobs: AnyLimiter = store.counting("jobs", 5).build().unwrap().into();
    let (_kept, dropped) = (jobs.acquire().await.unwrap(), jobs.acquire().await.unwrap());
    server.tell("SET tidegate:1:{jobs}:in-use x");
    let other = limiter(&store, "token_bucket 100000/s burst 1000");
    let asks = tokio::spawn(async move {
        loop {
            drop(other.acquire().await.unwrap());
        }
    });
    drop(dropped);
    // The time limit only ends a test that hangs.
    let flushed = tokio::time::timeout(Duration::from_secs(60), store.flush()).await;
    let error = flushed.expect("an end").unwrap_err();
    assert!(!error.is_away() && error.to_string().contains("WRONGTYPE"), "{error}");
    asks.abort();
}
