//! Calls that block a thread: on the only thread of a runtime, under paused time, and on a store's
//! thread.

use std::num::NonZeroU32;
use std::pin::Pin;
use std::sync::{Arc, Mutex, OnceLock};
use std::task::{Context, Wake, Waker};
use std::time::Duration;

use crate::support::Server;
use tidegate::{AnyLimiter, CancelToken, Events, Refusal, Request, Statistics, StoreEvent};
use tidegate_redis::{Store, StoreBuilder, WhileAway};

const MINUTE: Duration = Duration::from_secs(60);
const MS: Duration = Duration::from_millis(1);

/// With a timeout that no machine misses.
fn builder(server: &Server) -> StoreBuilder {
    Store::builder(server.url()).timeout(Duration::from_secs(60))
}

fn limiter(store: &Store, line: &str) -> AnyLimiter {
    store.limiter("all").limit("limit", line).build().unwrap().into()
}

/// The thread that parks is the only one that fires the timers of its runtime.
#[tokio::test]
async fn a_booked_request_blocks_the_only_thread_of_a_runtime() {
    let Some(server) = Server::start() else { return };
    let store = builder(&server).open().unwrap();
    let limiter = store.limiter("all").limit("limit", "token_bucket 100/s burst 1").build().unwrap();
    for _ in 0..2 {
        let _ = limiter.blocking_acquire().unwrap();
        let _ = limiter.blocking_acquire_many(1).unwrap();
    }
    let unblocked = tokio::time::timeout(2 * MINUTE, limiter.acquire());
    let _ = unblocked.await.unwrap().unwrap();
}

#[tokio::test]
async fn a_leased_request_blocks_the_only_thread_of_a_runtime() {
    let Some(server) = Server::start() else { return };
    let store = builder(&server).open().unwrap();
    let limiter = store.limiter("all").limit("limit", "token_bucket 100/s burst 2");
    let limiter = AnyLimiter::from(limiter.leased().build().unwrap());
    for _ in 0..6 {
        let _ = limiter.blocking_acquire().unwrap();
    }
}

#[test]
fn a_thread_waits_for_the_permits_of_a_key() {
    let Some(server) = Server::start() else { return };
    let store = builder(&server).open().unwrap();
    let users = store.keyed("users").limit("calls", "token_bucket 100/s burst 3").build().unwrap();
    assert_eq!(users.blocking_acquire("alice").unwrap().permits(), 1);
    assert_eq!(users.blocking_acquire_many("alice", 3).unwrap().permits(), 3);
    assert!(users.blocking_acquire_many("bob", 4).is_err());
    assert_eq!(users.try_acquire_many("bob", 3).unwrap().permits(), 3);
}

/// Wakes a thread outside of tokio.
struct Unpark(std::thread::Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// The sleep of a request belongs to the runtime that polled it.
#[test]
fn a_request_outlives_the_runtime_that_polled_it_first() {
    let Some(server) = Server::start() else { return };
    let store = builder(&server).open().unwrap();
    let jobs = AnyLimiter::from(store.counting("jobs", 1).build().unwrap());
    for limiter in [limiter(&store, "token_bucket 20/s burst 1"), jobs] {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let (_held, wait) = runtime.block_on(async {
            let held = limiter.acquire().await.unwrap();
            let mut wait = limiter.acquire_many(Request::from(1).within(200 * MS));
            // It sleeps as soon as the store has replied with its due time.
            let polled = tokio::time::timeout(20 * MS, &mut wait).await;
            (held, polled.is_err().then_some(wait))
        });
        drop(runtime);
        // The machine stood still until it was granted.
        let Some(mut wait) = wait else { continue };
        // Refused or granted, but in time.
        let (done, is_done) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
            while Pin::new(&mut wait).poll(&mut Context::from_waker(&waker)).is_pending() {
                std::thread::park();
            }
            done.send(())
        });
        assert!(is_done.recv_timeout(Duration::from_secs(60)).is_ok());
    }
}

#[tokio::test]
async fn a_share_blocks_the_only_thread_of_a_runtime() {
    let store = Store::builder("redis+unix:///nowhere/s").while_away(WhileAway::ShareOf(NonZeroU32::MIN));
    let limiter = limiter(&store.open().unwrap(), "token_bucket 100/s burst 1");
    for _ in 0..3 {
        assert!(limiter.blocking_acquire().unwrap().is_degraded());
    }
}

#[tokio::test]
async fn a_counting_limit_blocks_the_only_thread_no_longer_than_allowed() {
    let Some(server) = Server::start() else { return };
    let store = builder(&server).open().unwrap();
    let limit = AnyLimiter::from(store.counting("jobs", 1).build().unwrap());
    let _held = limit.blocking_acquire().unwrap();
    let refused = limit.blocking_acquire_many(Request::from(1).within(MS)).unwrap_err();
    assert_eq!(refused.refusal(), Some(Refusal::InUse { limit: 1 }));
}

/// `status` of a handle for tasks reports that nothing is available.
#[tokio::test]
async fn a_task_fetches_the_status_of_any_limiter() {
    let Some(server) = Server::start() else { return };
    let store = builder(&server).open().unwrap();
    let limiter = limiter(&store, "fixed_window 10/h").non_blocking();
    let in_use = AnyLimiter::from(store.counting("jobs", 5).build().unwrap()).non_blocking();
    let _ = limiter.acquire_now(3).await.unwrap();
    let _held = in_use.acquire_now(2).await.unwrap();
    for (limiter, available) in [(limiter, 7), (in_use, 3)] {
        assert_eq!(limiter.fetch_status().await.unwrap().members[0].1.available, available);
        assert_eq!(limiter.status().members[0].1.available, 0);
    }
}

/// Bug: a limit of permits in use did not report these refusals to its observer.
#[test]
fn refusals_of_calls_that_may_not_block_are_reported() {
    let counts = Arc::new(Statistics::new());
    let builder = Store::builder("redis+unix:///nowhere/s").observed_by(counts.clone());
    let store = builder.open().unwrap();
    let calls = store.limiter("all").limit("calls", "fixed_window 10/h").build().unwrap();
    let in_use = store.counting("jobs", 5).build().unwrap();
    for (limiter, unavailable) in [(AnyLimiter::from(calls), 2), (AnyLimiter::from(in_use), 4)] {
        let limiter = limiter.non_blocking();
        assert!(limiter.try_acquire().is_err() && limiter.blocking_acquire().is_err());
        assert_eq!(counts.snapshot().unavailable, unavailable);
    }
}

/// An hour of paused time.
#[tokio::test(start_paused = true)]
async fn a_blocked_thread_follows_the_paused_time_of_its_runtime() {
    let Some(server) = Server::start() else { return };
    let store = builder(&server).open().unwrap();
    let limiter = limiter(&store, "token_bucket 1/h burst 1");
    let _ = limiter.acquire().await.unwrap();
    let (runtime, blocked) = (tokio::runtime::Handle::current(), limiter.clone());
    let (done, is_done) = tokio::sync::oneshot::channel();
    let thread = std::thread::spawn(move || {
        let _inside = runtime.enter();
        let _ = blocked.blocking_acquire().unwrap();
        done.send(()).unwrap();
    });
    is_done.await.unwrap();
    thread.join().unwrap();
}

/// The results of calls that block, on the store's thread.
#[derive(Default)]
struct Calls {
    limiters: OnceLock<[AnyLimiter; 3]>,
    answers: Mutex<Vec<Option<Refusal>>>,
}

impl Calls {
    fn make(&self) {
        let Some([one, leased, counting]) = self.limiters.get() else { return };
        let mut answers = Vec::new();
        for limiter in [one, leased, counting] {
            let request = Request::from(1);
            answers.push(limiter.try_acquire_many(request).err().and_then(|error| error.refusal()));
            let answer = limiter.blocking_acquire_many(request);
            answers.push(answer.err().and_then(|error| error.refusal()));
            assert!(!limiter.resume());
            assert_eq!(limiter.status().members[0].1.available, 0);
        }
        answers.push(one.reserve(1).err().and_then(|error| error.refusal()));
        answers.push(one.keep_at_most("limit", 0).err().and_then(|error| error.refusal()));
        *self.answers.lock().unwrap() = answers;
    }

    /// Makes the limiter for these calls.
    fn limit(&self, store: &Store) -> AnyLimiter {
        let one = limiter(store, "token_bucket 1/h burst 1");
        let leased = store.limiter("leased").limit("limit", "token_bucket 1/h burst 1");
        let leased = AnyLimiter::from(leased.leased().build().unwrap());
        let counting = AnyLimiter::from(store.counting("jobs", 1).build().unwrap());
        assert!(self.limiters.set([one.clone(), leased, counting]).is_ok());
        one
    }
}

const UNAVAILABLE: Option<Refusal> = Some(Refusal::Unavailable { retry_after: tidegate::Nanos::MAX });

impl Events for Calls {
    fn store(&self, _: &StoreEvent) {
        self.make();
    }
}

impl Wake for Calls {
    fn wake(self: Arc<Self>) {
        self.make();
    }
}

#[test]
fn an_observer_that_blocks_the_thread_of_its_store_is_refused() {
    let Some(server) = Server::start() else { return };
    let calls = Arc::new(Calls::default());
    let store = builder(&server).observed_by(calls.clone()).open().unwrap();
    // The observer was notified before the caller had its decision.
    let _ = calls.limit(&store).try_acquire().unwrap();
    assert_eq!(*calls.answers.lock().unwrap(), [UNAVAILABLE; 8]);
}

#[test]
fn a_waker_that_blocks_the_thread_of_its_store_is_refused() {
    let Some(server) = Server::start() else { return };
    let store = builder(&server).open().unwrap();
    let calls = Arc::new(Calls::default());
    let limiter = calls.limit(&store);
    let mut wait = limiter.acquire();
    let waker = Waker::from(calls.clone());
    assert!(std::pin::Pin::new(&mut wait).poll(&mut Context::from_waker(&waker)).is_pending());
    // The store's thread has called the waker once it completes the next call.
    crate::support::wait_until("the waker is called", || !calls.answers.lock().unwrap().is_empty());
    assert_eq!(*calls.answers.lock().unwrap(), [UNAVAILABLE; 8]);
    let _ = limiter.status();
}

/// A token ends a thread's wait for a booked time, for a lease and for permits in use, and refuses
/// later waits before they take anything.
#[test]
fn a_token_ends_the_waits_of_its_thread() {
    let Some(server) = Server::start() else { return };
    let store = builder(&server).open().unwrap();
    let hourly = || store.limiter("hourly").limit("limit", "token_bucket 1/h burst 1");
    let exact = AnyLimiter::from(hourly().build().unwrap());
    let leased = AnyLimiter::from(hourly().leased().build().unwrap());
    let counting = AnyLimiter::from(store.counting("slots", 1).build().unwrap());
    let _ = exact.try_acquire().unwrap();
    let _held = counting.try_acquire().unwrap();
    for limiter in [&exact, &leased, &counting] {
        let token = CancelToken::new();
        let refusal = std::thread::scope(|scope| {
            let waits = scope.spawn(|| token.run(|| limiter.blocking_acquire().map(drop).unwrap_err()));
            while limiter.status().waiting == 0 {
                std::thread::yield_now();
            }
            token.cancel();
            waits.join().unwrap()
        });
        assert_eq!(refusal.refusal(), Some(Refusal::Cancelled), "{limiter:?}");
        let later = token.run(|| limiter.blocking_acquire().map(drop).unwrap_err());
        assert_eq!(later.refusal(), Some(Refusal::Cancelled), "{limiter:?}");
    }
    // The token ends the claim of a reservation, which is kept.
    for limiter in [&exact, &counting] {
        let mut reservation = limiter.reserve(1).unwrap();
        let token = CancelToken::new();
        let refusal = std::thread::scope(|scope| {
            let waits = scope.spawn(|| token.run(|| reservation.blocking_claim().unwrap_err()));
            token.cancel();
            waits.join().unwrap()
        });
        assert_eq!(refusal.refusal(), Some(Refusal::Cancelled), "{limiter:?}");
        assert_eq!(limiter.status().waiting, 1, "{limiter:?}");
    }
    // An attempt waits for no permit, so no token ends it.
    let token = CancelToken::new();
    token.cancel();
    let refusal = token.run(|| exact.try_acquire().unwrap_err());
    assert!(matches!(refusal.refusal(), Some(Refusal::Limited { .. })), "{refusal}");
}

/// On the only thread of a runtime, whose timers do not fire meanwhile.
#[tokio::test]
async fn a_thread_claims_a_reservation_that_is_booked_and_one_for_a_permit_in_use() {
    let Some(server) = Server::start() else { return };
    let store = builder(&server).open().unwrap();
    let limiter = limiter(&store, "token_bucket 100/s burst 2");
    let _ = limiter.try_acquire_many(2).unwrap();
    let mut reservation = limiter.reserve(2).unwrap();
    assert_eq!(reservation.blocking_claim().unwrap().permits(), 2);
    assert_eq!(reservation.blocking_claim().unwrap().permits(), 2);
    reservation.settle(0).unwrap();

    let jobs = AnyLimiter::from(store.counting("jobs", 1).build().unwrap());
    let held = jobs.try_acquire().unwrap();
    let mut reservation = jobs.reserve(1).unwrap();
    let claim =
        std::thread::spawn(move || reservation.blocking_claim().map(|grant| (grant.permits(), reservation)));
    drop(held);
    assert_eq!(claim.join().unwrap().unwrap().0, 1);

    // A handle for tasks blocks no thread.
    let non_blocking = limiter.non_blocking().reserve(1).unwrap().blocking_claim().unwrap_err();
    assert_eq!(non_blocking.refusal(), UNAVAILABLE);
}
