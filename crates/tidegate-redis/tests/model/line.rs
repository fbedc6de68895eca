//! The queue of a limiter, on paused time over a model of a server: which requests share a call,
//! and which request takes which booked time.

use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Waker};
use std::time::Duration;

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use tidegate::{
    AllPermits, AllRefusal, AllRequest, AnyLimiter, Nanos, Pause, QueueBounds, Refusal, Request, WhenFull,
};
use tidegate_redis::simulation::{Model, Network, run};
use tidegate_redis::{Store, StoreLimiter};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

use crate::{MS, SECOND, assert_in_order, on_model, one_of_two, settle};

/// A round trip: both directions, and the server's work.
const TRIP: Duration = Duration::from_micros(2010);

type Answer = Result<AllPermits, AllRefusal>;

fn limiter(store: &Store, line: &str) -> StoreLimiter {
    store.limiter("all").limit("limit", line).build().unwrap()
}

/// A store that was called once, so that it is known to be near, and a full limiter.
async fn open(model: &Model, line: &str) -> (Store, StoreLimiter) {
    let store = model.open(Store::builder("redis://model")).unwrap();
    let limiter = limiter(&store, line);
    let _ = limiter.status().await.unwrap();
    (store, limiter)
}

/// A request in a separate task.
fn spawn(limiter: &StoreLimiter, request: impl Into<Request>) -> JoinHandle<(Answer, Instant)> {
    let limiter = AnyLimiter::from(limiter.clone());
    let request = AllRequest::from(request.into());
    tokio::spawn(async move {
        let answer = limiter.acquire_many(request).await;
        (answer, Instant::now())
    })
}

/// The times after the first decision at which the others came, in whole milliseconds.
async fn after(first: Instant, tasks: Vec<JoinHandle<(Answer, Instant)>>) -> Vec<u128> {
    let mut times = Vec::new();
    for task in tasks {
        let (answer, at) = task.await.unwrap();
        let _ = answer.unwrap();
        times.push((at - first).as_millis());
    }
    times
}

/// A limiter with one permit a second that is empty since `Instant`, and requests that wait for it.
async fn booked(
    model: &Model,
    requests: &[Request],
) -> (Store, StoreLimiter, Instant, Vec<JoinHandle<(Answer, Instant)>>) {
    let (store, limiter) = open(model, "token_bucket 1/s burst 3").await;
    let (answer, empty) = spawn(&limiter, 3).await.unwrap();
    let _ = answer.unwrap();
    let tasks = requests.iter().map(|request| spawn(&limiter, *request)).collect();
    sleep(10 * MS).await;
    (store, limiter, empty, tasks)
}

fn is(answer: &Answer, refusal: &Refusal) -> bool {
    answer.as_ref().is_err_and(|error| error.refusal() == Some(*refusal))
}

#[test]
fn requests_that_come_one_by_one_leave_one_by_one() {
    on_model(async |model| {
        let (store, limiter) = open(&model, "token_bucket 1/s burst 3").await;
        for wait in [0, 0, 0, 1, 1, 1] {
            let (answer, _) = spawn(&limiter, 1).await.unwrap();
            let waited = answer.unwrap().waited();
            assert!(waited <= wait * SECOND && waited + 3 * TRIP >= wait * SECOND, "{waited:?}");
        }
        assert_eq!(store.counts().answered, 1 + 6);
    });
}

#[test]
fn requests_that_come_during_a_call_leave_together_and_in_order() {
    on_model(async |model| {
        let (store, limiter) = open(&model, "token_bucket 1/s burst 1").await;
        let tasks: Vec<_> = (0..30).map(|_| spawn(&limiter, 1)).collect();
        let began = Instant::now();
        let times = after(began, tasks).await;
        assert_eq!(store.counts().answered, 1 + 2);
        // Each of them at its own booked time, one direction's latency after the server's.
        let expected: Vec<u128> = (0..30).map(|second| 2 + 1000 * second).collect();
        for (time, expected) in times.iter().zip(expected) {
            assert!((expected..=expected + 2).contains(time), "{times:?}");
        }
    });
}

#[test]
fn a_long_line_leaves_by_sixty_four() {
    on_model(async |model| {
        let (store, limiter) = open(&model, "token_bucket 1000/s burst 100").await;
        let began = Instant::now();
        let tasks: Vec<_> = (0..200).map(|_| spawn(&limiter, 1)).collect();
        let times = after(began, tasks).await;
        assert!(times.is_sorted(), "{times:?}");
        // One at once, three times 64 as soon as they queue, and then the others.
        assert_eq!(store.counts().answered, 1 + 1 + 3 + 1);
        assert!(*times.last().unwrap() <= 100 + 5, "{times:?}");
    });
}

#[test]
fn a_request_dropped_in_line_leaves_no_trace() {
    on_model(async |model| {
        let (store, limiter) = open(&model, "fixed_window 10/d").await;
        let (first, dropped) = (spawn(&limiter, 1), spawn(&limiter, 5));
        settle().await;
        dropped.abort();
        assert!(dropped.await.is_err());
        let _ = first.await.unwrap().0.unwrap();
        sleep(10 * MS).await;
        assert_eq!((store.counts().answered, limiter.status().await.unwrap().members[0].1.available), (2, 9));
    });
}

#[test]
fn a_request_dropped_during_its_call_gives_back_what_it_got() {
    on_model(async |model| {
        let (store, limiter) = open(&model, "token_bucket 1/s burst 1").await;
        for (available, name) in [(1, "granted"), (0, "booked")] {
            let before = store.counts().answered;
            let dropped = spawn(&limiter, 1);
            settle().await;
            dropped.abort();
            assert!(dropped.await.is_err());
            sleep(5 * MS).await;
            // The request, and the permits that it gave back.
            assert_eq!(store.counts().answered - before, 2, "{name}");
            let status = limiter.status().await.unwrap();
            assert_eq!((status.members[0].1.available, status.waiting), (available, 0), "{name}");
            let (answer, _) = spawn(&limiter, 1).await.unwrap();
            assert!(answer.unwrap().waited() <= SECOND, "{name}");
        }
    });
}

/// The booked times of requests that leave go to the requests behind them, and the last one to the
/// store.
#[test]
fn requests_behind_one_that_leaves_move_up_by_one() {
    on_model(async |model| {
        let one = Request::permits(1);
        let (store, limiter, empty, mut tasks) = booked(&model, &[one; 4]).await;
        let before = store.counts().answered;
        tasks.remove(0).abort();
        sleep(10 * MS).await;
        assert_eq!(store.counts().answered - before, 1);
        tasks.push(spawn(&limiter, 1));
        let times = after(empty, tasks).await;
        for (second, time) in (1..).zip(&times) {
            assert!((1000 * second..1000 * second + 5).contains(time), "{times:?}");
        }
        assert_eq!(limiter.status().await.unwrap().waiting, 0);
    });
}

#[test]
fn an_instant_goes_to_the_next_request_of_equal_size() {
    on_model(async |model| {
        let requests = [1, 2, 1].map(Request::permits);
        let (_, _, empty, mut tasks) = booked(&model, &requests).await;
        tasks.remove(0).abort();
        let times = after(empty, tasks).await;
        // Two permits after three seconds, as booked; one after a second.
        assert!((3000..3005).contains(&times[0]) && (1000..1005).contains(&times[1]), "{times:?}");
    });
}

fn poll_once(wait: Pin<&mut tidegate::AcquireAny>) {
    assert!(wait.poll(&mut Context::from_waker(Waker::noop())).is_pending());
}

/// A request that is polled once and never again holds its own booked time, in every state.
#[test]
fn a_leaked_request_delays_no_request_beyond_its_own_instant() {
    on_model(async |model| {
        let (store, limiter) = open(&model, "token_bucket 1/s burst 1").await;
        let any = AnyLimiter::from(limiter.clone());
        let leak = || {
            let mut wait = Box::pin(any.acquire());
            poll_once(wait.as_mut());
            std::mem::forget(wait);
        };
        let began = Instant::now();
        // In its call, and in the queue.
        leak();
        leak();
        let tasks = vec![spawn(&limiter, 1), spawn(&limiter, 1)];
        sleep(10 * MS).await;
        // Booked, before the others and behind them, and one that moves up.
        leak();
        let dropped = spawn(&limiter, 1);
        sleep(10 * MS).await;
        let last = spawn(&limiter, 1);
        sleep(10 * MS).await;
        dropped.abort();
        let times = after(began, tasks).await;
        assert!((2000..2008).contains(&times[0]) && (3000..3008).contains(&times[1]), "{times:?}");
        // At its own booked time in the sixth second, or at the previous one.
        let times = after(began, vec![last]).await;
        assert!(times[0] < 6020, "{times:?}");
        assert_eq!(limiter.status().await.unwrap().waiting, 0);
        assert_eq!(store.trouble(), None);
    });
}

/// Calls that are repeated with the text of their script once were overtaken by later ones.
#[test]
fn requests_keep_their_order_at_a_server_that_knows_no_script() {
    for leased in [false, true] {
        run(async move {
            let model = Model::new(1, Network::steady(MS / 2));
            let store = model.open(Store::builder("redis://model")).unwrap();
            let limit = store.limiter("all").limit("limit", "sliding_log 1000/s");
            let limit = if leased { limit.leased() } else { limit };
            let limiter = AnyLimiter::from(limit.build().unwrap());
            assert_in_order(&limiter, 2000, if leased { "leased" } else { "not leased" }).await;
        });
    }
}

/// Requests that moved up behind a leaked one once were granted together, when the timer of the
/// last one fired.
#[test]
fn requests_behind_a_leaked_one_that_moved_up_are_granted_one_by_one() {
    // Each with its priority, and whether it is dropped or leaked after a while.
    enum Then {
        Waits,
        Goes,
        Leaks,
    }
    use Then::{Goes, Leaks, Waits};
    let dropped = vec![(0, Goes), (0, Goes), (0, Leaks), (0, Leaks), (0, Waits), (0, Waits), (0, Waits)];
    let before = vec![(0, Waits), (2, Waits), (1, Leaks), (1, Waits)];
    for (requests, expected) in [(dropped, vec![3, 4, 5]), (before, vec![4, 1, 3])] {
        on_model(async |model| {
            let (_, limiter) = open(&model, "token_bucket 1/s burst 1").await;
            let (_, empty) = spawn(&limiter, 1).await.unwrap();
            let (mut waits, mut gone) = (Vec::new(), Vec::new());
            for (priority, then) in requests {
                let request = Request::permits(1).priority(priority);
                if let Leaks = then {
                    let any = AnyLimiter::from(limiter.clone());
                    let mut wait = Box::pin(any.acquire_many(AllRequest::from(request)));
                    poll_once(wait.as_mut());
                    std::mem::forget(wait);
                } else {
                    let kept = if let Goes = then { &mut gone } else { &mut waits };
                    kept.push(spawn(&limiter, request));
                }
                sleep(10 * MS).await;
            }
            gone.iter().for_each(JoinHandle::abort);
            let times = after(empty, waits).await;
            let seconds: Vec<u128> = times.iter().map(|millis| millis / 1000).collect();
            assert_eq!(seconds, expected);
        });
    }
}

/// The store's thread checks requests that moved up. It once would have slept for each of them.
#[test]
fn nothing_is_left_of_requests_that_moved_up_and_were_dropped() {
    on_model(async |model| {
        let (_, limiter) = open(&model, "token_bucket 1/h burst 1").await;
        let _ = spawn(&limiter, 1).await.unwrap().0.unwrap();
        let tasks = || tokio::runtime::Handle::current().metrics().num_alive_tasks();
        let before = tasks();
        for _ in 0..100 {
            let (first, second) = (spawn(&limiter, 1), spawn(&limiter, 1));
            sleep(10 * MS).await;
            first.abort();
            sleep(10 * MS).await;
            assert!(tasks() > before);
            second.abort();
            sleep(10 * MS).await;
        }
        assert_eq!(tasks(), before);
    });
}

#[test]
fn an_attempt_does_not_overtake_the_line() {
    on_model(async |model| {
        for (priority, overtakes) in [(0, false), (1, true)] {
            let (_, limiter) = open(&model, "token_bucket 1/s burst 10").await;
            limiter.reset().await.unwrap();
            let any = AnyLimiter::from(limiter.clone());
            let (first, second) = (spawn(&limiter, 1), spawn(&limiter, 9));
            settle().await;
            let attempt = any.acquire_now(Request::permits(1).priority(priority)).await;
            assert_eq!(attempt.is_ok(), overtakes);
            let (_, second) = (first.await.unwrap().0.unwrap(), second.await.unwrap().0.unwrap());
            assert_eq!(second.waited() > Duration::ZERO, overtakes);
        }
    });
}

/// The time in the queue counts: 10 ms after the first permit, of which a round trip was spent in
/// the queue and the latency of one direction is still to come.
#[test]
fn a_longest_wait_begins_when_a_request_joins_the_line() {
    on_model(async |model| {
        for (within, is_granted) in [(9990, false), (10_000, true), (10_010, true)] {
            let (_, limiter) = open(&model, "token_bucket 100/s burst 1").await;
            limiter.reset().await.unwrap();
            let first = spawn(&limiter, 1);
            settle().await;
            let within = Duration::from_micros(within);
            let (answer, _) = spawn(&limiter, Request::permits(1).within(within)).await.unwrap();
            let _ = first.await.unwrap().0.unwrap();
            match answer {
                Ok(permits) => assert_eq!((is_granted, permits.waited()), (true, 10 * MS)),
                // The same call now would be granted.
                Err(refusal) => {
                    assert_eq!((is_granted, refusal.retry_after()), (false, Some(Duration::ZERO)))
                }
            }
        }
    });
}

#[test]
fn a_higher_priority_takes_the_first_instant_of_its_size() {
    on_model(async |model| {
        let one = Request::permits(1);
        let (_, limiter, empty, mut tasks) = booked(&model, &[one, one.within(2500 * MS), one]).await;
        tasks.push(spawn(&limiter, one.priority(3)));
        let (late, at) = tasks.remove(1).await.unwrap();
        // Its own booked time went to the request before it, and the next one is too late.
        assert!(matches!(late.unwrap_err().refusal(), Some(Refusal::Limited { .. })));
        assert!((2500..2520).contains(&(at - empty).as_millis()), "{:?}", at - empty);
        let times = after(empty, tasks).await;
        for (time, expected) in times.iter().zip([2000, 3000, 1000]) {
            assert!((expected..expected + 5).contains(time), "{times:?}");
        }
        assert_eq!(limiter.status().await.unwrap().waiting, 0);
    });
}

#[test]
fn a_full_line_refuses_a_newcomer_that_would_wait() {
    on_model(async |model| {
        let one = Request::permits(1);
        let (_, limiter, empty, tasks) = booked(&model, &[one; 2]).await;
        limiter.set_queue_bounds(QueueBounds::UNBOUNDED.max_waiters(2));
        let (answer, at) = spawn(&limiter, 1).await.unwrap();
        let Some(Refusal::QueueFull { retry_after }) = answer.unwrap_err().refusal() else { panic!() };
        // Then the first request in the queue is served.
        let room = at + retry_after.as_duration();
        assert!(room >= empty + SECOND && room <= empty + SECOND + TRIP, "{:?}", room - empty);
        tokio::time::sleep_until(room + MS).await;
        let (newcomer, times) = (spawn(&limiter, 1), after(empty, tasks).await);
        assert!(times[0] < 1005 && times[1] < 2005, "{times:?}");
        assert!(after(empty, vec![newcomer]).await[0] < 3005);

        // Requests that come together are counted one by one.
        limiter.set_queue_bounds(QueueBounds::UNBOUNDED.max_permits(3));
        limiter.reset().await.unwrap();
        let first = spawn(&limiter, 3);
        let tasks: Vec<_> = [1, 2, 1, 1].map(|n| spawn(&limiter, n)).into();
        let _ = first.await.unwrap().0.unwrap();
        let began = Instant::now();
        let mut answers = Vec::new();
        for task in tasks {
            answers.push(task.await.unwrap().0);
        }
        let full = |answer: &Answer| matches!(answer, Err(error) if matches!(error.refusal(), Some(Refusal::QueueFull { .. })));
        assert_eq!(answers.iter().map(full).collect::<Vec<_>>(), [false, false, true, true]);
        assert!(began.elapsed() <= 3 * SECOND + 5 * MS);
        // They left no booking behind.
        let (answer, _) = spawn(&limiter, 1).await.unwrap();
        assert!(answer.unwrap().waited() <= SECOND);
    });
}

#[test]
fn a_full_line_makes_room_by_the_rule_that_is_set() {
    on_model(async |model| {
        let one = Request::permits(1);
        let two = QueueBounds::UNBOUNDED.max_waiters(2);
        for (rule, newcomer, dropped) in [
            (WhenFull::DropOldest, one, Some(0)),
            (WhenFull::DropOldest, one.priority(-1), None),
            (WhenFull::DropLeastImportant, one, None),
            (WhenFull::DropLeastImportant, one.priority(1), Some(1)),
        ] {
            let (_, limiter, empty, mut tasks) = booked(&model, &[one; 2]).await;
            limiter.set_queue_bounds(two.when_full(rule));
            tasks.push(spawn(&limiter, newcomer));
            let out = tasks.remove(dropped.unwrap_or(2)).await.unwrap().0;
            match dropped {
                Some(_) => assert!(is(&out, &Refusal::Displaced), "{rule:?}: {out:?}"),
                None => assert!(matches!(out.unwrap_err().refusal(), Some(Refusal::QueueFull { .. }))),
            }
            let mut times = after(empty, tasks).await;
            times.sort_unstable();
            assert!(times[0] < 1005 && times[1] < 2005, "{rule:?}, {newcomer:?}: {times:?}");
            // No permit was lost.
            let (answer, at) = spawn(&limiter, 1).await.unwrap();
            assert!(answer.is_ok() && at <= empty + 3 * SECOND + 5 * MS, "{rule:?}: {:?}", at - empty);
            limiter.reset().await.unwrap();
        }
    });
}

#[test]
fn a_closed_line_ends_all_requests_at_once() {
    on_model(async |model| {
        let one = Request::permits(1);
        let (_, limiter, empty, mut tasks) = booked(&model, &[one; 3]).await;
        // One in a call, and one in the queue.
        tasks.extend([spawn(&limiter, 1), spawn(&limiter, 1)]);
        settle().await;
        let any = AnyLimiter::from(limiter.clone());
        assert_eq!((any.close(), any.close(), any.is_closed()), (Ok(true), Ok(false), true));
        let began = Instant::now();
        for task in tasks {
            assert!(is(&task.await.unwrap().0, &Refusal::Closed));
        }
        assert_eq!(began.elapsed(), Duration::ZERO);
        assert!(is(&spawn(&limiter, 1).await.unwrap().0, &Refusal::Closed));
        sleep(10 * MS).await;
        // All booked times are back.
        let (_, other) = open(&model, "token_bucket 1/s burst 3").await;
        let times = after(empty, vec![spawn(&other, 1), spawn(&other, 1)]).await;
        assert!(times[0] < 1005 && times[1] < 2005, "{times:?}");
    });
}

/// A stopped server replies to no call, and every request is decided within the deadline.
#[test]
fn the_time_in_line_is_part_of_the_deadline() {
    on_model(async |model| {
        let (store, limiter) = open(&model, "token_bucket 1/s burst 3").await;
        model.stop(true);
        let mut tasks = Vec::new();
        let mut random = SmallRng::seed_from_u64(1);
        for _ in 0..300 {
            sleep(random.random_range(0..2) * MS).await;
            let began = Instant::now();
            let task = spawn(&limiter, 1);
            tasks.push(async move { (began, task.await.unwrap()) });
        }
        for task in tasks {
            let (began, (answer, at)) = task.await;
            assert!(matches!(answer.unwrap_err().refusal(), Some(Refusal::Unavailable { .. })));
            assert!(at - began <= 50 * MS, "{:?}", at - began);
        }
        assert!(store.is_away());
    });
}

/// A failed call decides the queue behind it: no request in the queue is charged.
#[test]
fn a_line_behind_a_call_that_failed_is_not_sent() {
    on_model(async |model| {
        let (store, limiter) = open(&model, "fixed_window 10/d").await;
        model.stop(true);
        // A timer fires at a whole millisecond.
        sleep(MS).await;
        let began = Instant::now();
        let mut tasks = vec![spawn(&limiter, 1)];
        sleep(10 * MS).await;
        tasks.extend([spawn(&limiter, 1), spawn(&limiter, 1)]);
        for task in tasks {
            assert!(task.await.unwrap().0.is_err());
        }
        assert_eq!((began.elapsed(), store.counts().unknown, store.counts().degraded), (50 * MS, 1, 3));
        model.stop(false);
        sleep(10 * MS).await;
        assert_eq!(limiter.status().await.unwrap().members[0].1.available, 9);
    });
}

/// Requests that waited for a slow call would be charged without a reply. Requests that may wait
/// longer than the deadline queue again, because the store does reply.
#[test]
fn a_call_with_too_little_time_left_is_not_sent() {
    run(async {
        let model = Model::new(1, Network::steady(6 * MS));
        let (store, limiter) = open(&model, "token_bucket 1/h burst 10").await;
        // The first call had to connect.
        let _ = limiter.status().await.unwrap();
        let calls = model.calls();
        model.stop(true);
        let slow = spawn(&limiter, 1);
        sleep(MS).await;
        let late = spawn(&limiter, 1);
        let attempt = tokio::spawn(AnyLimiter::from(limiter.clone()).acquire_now([]));
        // The first reply comes after 45 ms of 50.
        sleep(38 * MS).await;
        model.stop(false);
        let (answer, _) = slow.await.unwrap();
        let _ = answer.unwrap();
        let answer = attempt.await.unwrap();
        assert!(
            is(&answer, &Refusal::Unavailable { retry_after: Nanos::from_duration(100 * MS) }),
            "{answer:?}"
        );
        let _ = late.await.unwrap().0.unwrap();
        let counts = store.counts();
        assert_eq!((counts.answered, counts.unknown, counts.failed, counts.skipped), (4, 0, 0, 1));
        assert_eq!((model.calls(), store.trouble()), (calls + 2, None));
        assert_eq!(limiter.status().await.unwrap().members[0].1.available, 8);
    });
}

/// Its message is sent long after its booked time.
#[test]
fn a_wait_that_is_dropped_after_its_instant_gives_its_permits_back() {
    run(async {
        let (_store, limiter) = open(&Model::new(1, Network::steady(MS)), "token_bucket 1/s burst 5").await;
        let limiter = AnyLimiter::from(limiter);
        let _ = limiter.acquire_now(5).await.unwrap();
        let mut wait = Box::pin(limiter.acquire());
        poll_once(wait.as_mut());
        sleep(3500 * MS).await;
        drop(wait);
        sleep(10 * MS).await;
        let _ = limiter.acquire_now(3).await.unwrap();
        assert!(limiter.acquire_now([]).await.is_err());
    });
}

/// A server that takes a millisecond for a call of 64 requests was sent 157 of them at once. Most
/// of them were charged and got no reply in time.
#[test]
fn requests_that_come_at_one_moment_are_not_sent_too_late() {
    run(async {
        let network = Network { service: MS, ..Network::steady(MS) };
        let (store, limiter) = open(&Model::new(1, network), "fixed_window 100000/d").await;
        let limiter = AnyLimiter::from(limiter);
        let attempts = (0..10_000).map(|_| limiter.acquire_now([]));
        let answers = futures_util::future::join_all(attempts).await;
        let granted = answers.iter().filter(|answer| answer.is_ok()).count();
        assert!(granted > 1_500, "{granted}");
        assert_eq!(store.counts().unknown, 0);
        let left = limiter.acquire_now(AllRequest::new().with_left()).await.unwrap();
        assert_eq!(left.left().unwrap().members[0].1.available, 100_000 - granted as u64 - 1);
    });
}

/// A store that is too far away for two round trips within the deadline is called concurrently.
#[test]
fn a_far_store_is_asked_without_a_line() {
    run(async {
        let model = Model::new(1, Network::steady(7 * MS));
        let (store, limiter) = open(&model, "token_bucket 1/s burst 100").await;
        let began = Instant::now();
        let times = after(began, (0..100).map(|_| spawn(&limiter, 1)).collect()).await;
        assert!(times.iter().all(|time| *time <= 16), "{times:?}");
        assert_eq!((store.counts().answered, store.counts().degraded), (101, 0));
    });
}

/// Eight clients whose tasks are dropped at random: no grant too many in any window, and at most a
/// hundredth of the permits lost.
#[test]
fn random_drops_lose_no_permits_and_grant_none_twice() {
    run(async {
        let (rate, burst) = (500, 20);
        let model = Model::new(7, Network { latency: MS / 5..=2 * MS, jitter: 0.3, ..Network::steady(MS) });
        let grants = Arc::new(Mutex::new(Vec::new()));
        let mut tasks = Vec::new();
        for client in 0..8 {
            let (store, limiter) = open(&model, &format!("token_bucket {rate}/s burst {burst}")).await;
            let log = grants.clone();
            store.log_grants(move |_, due, n| log.lock().unwrap().push((due, n)));
            for task in 0..25 {
                let (limiter, mut random) =
                    (AnyLimiter::from(limiter.clone()), SmallRng::seed_from_u64(client * 100 + task));
                tasks.push(tokio::spawn(async move {
                    loop {
                        // The queue is 200 requests long, 400 ms. A third of the waits is too long.
                        let patience = Duration::from_millis(random.random_range(200..1000));
                        let wait = limiter.acquire();
                        if random.random_bool(0.3) {
                            _ = tokio::time::timeout(patience.mul_f64(random.random()), wait).await;
                        } else {
                            let _ = wait.await.unwrap();
                        }
                    }
                }));
            }
        }
        let seconds = 6;
        sleep(seconds * SECOND).await;
        tasks.iter().for_each(JoinHandle::abort);
        let mut grants = std::mem::take(&mut *grants.lock().unwrap());
        grants.sort_unstable();
        let sum: u64 = grants.iter().map(|(_, n)| n).sum();
        assert!(sum >= u64::from(seconds) * rate * 99 / 100, "{sum}");
        for (i, (first, _)) in grants.iter().enumerate() {
            let mut sum = 0;
            for (last, n) in grants.iter().skip(i).take(1000) {
                sum += n;
                let bound = burst + u64::try_from(last - first + 1).unwrap() * rate / 1_000_000;
                assert!(sum <= bound, "{sum} from {first} to {last}");
            }
        }
    });
}

/// Ten thousand waits that are dropped in any order leave the limiter as if they had never come.
#[test]
fn a_storm_of_dropped_waits_leaves_no_trace() {
    on_model(async |model| {
        let (store, limiter) = open(&model, "token_bucket 1/s burst 1").await;
        let (answer, empty) = spawn(&limiter, 1).await.unwrap();
        let _ = answer.unwrap();
        let before = store.counts().answered;
        let mut tasks: Vec<_> = (0..10_000).map(|_| spawn(&limiter, 1)).collect();
        sleep(500 * MS).await;
        assert_eq!(limiter.status().await.unwrap().waiting, 10_000);
        let mut random = SmallRng::seed_from_u64(1);
        while !tasks.is_empty() {
            tasks.swap_remove(random.random_range(0..tasks.len())).abort();
        }
        sleep(300 * MS).await;
        let calls = store.counts().answered - before;
        // 64 per call, there and back.
        assert!(calls <= 2 * (10_000 / 64 + 3), "{calls}");
        assert_eq!(limiter.status().await.unwrap().waiting, 0);
        let times = after(empty, vec![spawn(&limiter, 1)]).await;
        assert!((1000..1005).contains(&times[0]), "{times:?}");
    });
}

/// Waits that are dropped while their calls are in flight, in any order, give back everything that
/// they got, the last booking first.
#[test]
fn a_storm_that_is_dropped_during_its_calls_leaves_no_trace() {
    run(async {
        for waits in [20, 200, 2_000] {
            for dropped_after in [0, 1, 3] {
                let model = Model::new(1, Network::steady(MS));
                let (_, limiter) = open(&model, "token_bucket 1/s burst 1").await;
                let (answer, empty) = spawn(&limiter, 1).await.unwrap();
                let _ = answer.unwrap();
                let tasks: Vec<_> = (0..waits).map(|_| spawn(&limiter, 1)).collect();
                settle().await;
                sleep(dropped_after * MS).await;
                tasks.iter().for_each(JoinHandle::abort);
                settle().await;
                let times = after(empty, vec![spawn(&limiter, 1)]).await;
                assert!((1000..1005).contains(&times[0]), "{waits}, {dropped_after}: {times:?}");
            }
        }
    });
}

/// If new waits came while others timed out, waits stayed debited, for hours at this rate.
#[test]
fn waits_that_time_out_at_random_leave_no_trace() {
    run(async {
        for (waits, sizes) in [(300, 6..=6), (3_000, 6..=6), (30, 6..=300), (300, 6..=300)] {
            let model = Model::new(1, Network::steady(MS));
            let (_store, limiter) = open(&model, "token_bucket 1/h burst 1000").await;
            let _ = spawn(&limiter, 995).await.unwrap().0.unwrap();
            let any = AnyLimiter::from(limiter.clone());
            let mut random = SmallRng::seed_from_u64(7);
            let mut tasks = Vec::new();
            for i in 0..waits {
                let (any, n) = (any.clone(), random.random_range(sizes.clone()));
                let patience = Duration::from_micros(random.random_range(0..60_000));
                tasks.push(tokio::spawn(async move {
                    sleep(Duration::from_micros(i * 10)).await;
                    assert!(tokio::time::timeout(patience, any.acquire_many(n)).await.is_err());
                }));
            }
            for task in tasks {
                task.await.unwrap();
            }
            sleep(300 * MS).await;
            let limit = limiter.status().await.unwrap().members[0].1;
            let missing = limit.full_in.as_secs().div_ceil(3600);
            assert_eq!((limit.available, missing), (5, 995), "{waits} waits of {sizes:?}");
        }
    });
}

/// Requests took parts of permits that came back from larger ones. If many bookings came back
/// before such a part, the server forgot which request had it. The server then undid no booking
/// before that one, and the limit stayed debited for a minute.
#[test]
fn waits_of_mixed_sizes_that_time_out_at_random_leave_no_trace() {
    let policies =
        ["token_bucket 100/s burst 20", "leaky_bucket 100/s nodelay 19", "smooth_bursty 100/s max_burst 1s"];
    for (policy, processes, seed) in policies
        .into_iter()
        .flat_map(|policy| [1, 3].map(|processes| (policy, processes)))
        .flat_map(|(policy, processes)| (0..8).map(move |seed| (policy, processes, seed)))
    {
        run(async move {
            let model = Model::new(seed, Network::steady(MS));
            let mut random = SmallRng::seed_from_u64(seed);
            let (mut limiters, mut tasks) = (Vec::new(), Vec::new());
            for _ in 0..processes {
                limiters.push(open(&model, policy).await);
            }
            for i in 0..300 * processes {
                let limiter = AnyLimiter::from(limiters[i % processes].1.clone());
                let (n, patience) = (random.random_range(1..=20), random.random_range(1..200) * MS);
                tasks.push(tokio::spawn(async move {
                    _ = tokio::time::timeout(patience, limiter.acquire_many(n)).await;
                }));
            }
            for task in tasks {
                task.await.unwrap();
            }
            sleep(2 * SECOND).await;
            let full_in = limiters[0].1.status().await.unwrap().members[0].1.full_in;
            assert_eq!(full_in, Duration::ZERO, "{policy}, {processes} processes, seed {seed}");
        });
    }
}

/// A request took the first of the bookings that had come back, and was granted. The server did not
/// know the state from before the second one, so it undid none of the others.
#[test]
fn the_first_of_many_places_that_is_taken_leaves_the_others_undone() {
    run(async {
        for policy in ["token_bucket 1/s burst 1", "leaky_bucket 1/s", "smooth_bursty 1/s max_burst 0s"] {
            let model = Model::new(1, Network::steady(MS));
            let (_, limiter) = open(&model, policy).await;
            let (_, other) = open(&model, policy).await;
            let (answer, empty) = spawn(&limiter, 1).await.unwrap();
            let _ = answer.unwrap();
            let dropped: Vec<_> = (0..4).map(|_| spawn(&limiter, 1)).collect();
            sleep(10 * MS).await;
            let behind = spawn(&other, 1);
            sleep(10 * MS).await;
            dropped.iter().for_each(JoinHandle::abort);
            sleep(10 * MS).await;
            // The requests of the other process have the first booking, and the last one.
            let last = spawn(&other, 1);
            let times = after(empty, vec![behind]).await;
            assert!((1000..1010).contains(&times[0]), "{policy}: {times:?}");
            last.abort();
            sleep(10 * MS).await;
            let full_in = limiter.status().await.unwrap().members[0].1.full_in;
            assert!(full_in <= SECOND, "{policy}: {full_in:?}");
        }
    });
}

/// The calls of a far store are all in flight at once. A request behind them takes the booked time
/// of a dropped request.
#[test]
fn a_request_behind_a_storm_of_calls_moves_up() {
    run(async {
        let model = Model::new(1, Network::steady(150 * MS));
        let store = model.open(Store::builder("redis://model").timeout(SECOND)).unwrap();
        let limiter = limiter(&store, "token_bucket 100/s burst 10");
        let _ = limiter.status().await.unwrap();
        let tasks: Vec<_> = (0..2_000).map(|_| spawn(&limiter, 1)).collect();
        sleep(5 * MS).await;
        tasks.iter().for_each(JoinHandle::abort);
        settle().await;
        let (answer, _) = spawn(&limiter, 1).await.unwrap();
        let waited = answer.unwrap().waited();
        assert!(waited < SECOND, "{waited:?}");
    });
}

/// A queue that is full most of the time: the requests that it refuses and drops cost no permits.
#[test]
fn a_limit_is_used_behind_a_full_line() {
    run(async {
        for rule in [WhenFull::RefuseNewcomer, WhenFull::DropOldest, WhenFull::DropLeastImportant] {
            for (waiters, priorities) in [(0, 1), (7, 5)] {
                let model = Model::new(1, Network::steady(MS / 10));
                let (_, limiter) = open(&model, "token_bucket 500/s burst 5").await;
                limiter.set_queue_bounds(QueueBounds::UNBOUNDED.max_waiters(waiters).when_full(rule));
                let granted = Arc::new(Mutex::new(0));
                let tasks: Vec<_> = (0..30_i8)
                    .map(|i| {
                        let (limiter, granted) = (AnyLimiter::from(limiter.clone()), granted.clone());
                        tokio::spawn(async move {
                            loop {
                                let request = Request::permits(1).priority(i % priorities);
                                match limiter.acquire_many(request).await {
                                    Ok(_) => *granted.lock().unwrap() += 1,
                                    Err(_) => sleep(2 * MS).await,
                                }
                            }
                        })
                    })
                    .collect();
                sleep(SECOND / 2).await;
                tasks.iter().for_each(JoinHandle::abort);
                let granted = *granted.lock().unwrap();
                assert!(granted >= 240, "{rule:?}, {waiters}, {priorities}: {granted} of 255");
            }
        }
    });
}

struct Panics;

impl std::task::Wake for Panics {
    fn wake(self: Arc<Self>) {
        panic!("a foreign waker");
    }
}

fn poll_with_panics<T>(wait: Pin<&mut impl Future<Output = T>>) {
    let waker = Waker::from(Arc::new(Panics));
    assert!(wait.poll(&mut Context::from_waker(&waker)).is_pending());
}

/// A waker that panics harms neither the other requests nor the store's thread.
#[test]
fn a_waker_that_panics_is_alone_with_it() {
    on_model(async |model| {
        let (_, limiter) = open(&model, "token_bucket 1/s burst 1").await;
        let any = AnyLimiter::from(limiter.clone());
        let mut waits = [Box::pin(any.acquire()), Box::pin(any.acquire())];
        for wait in &mut waits {
            poll_with_panics(wait.as_mut());
        }
        let began = Instant::now();
        let times = after(began, vec![spawn(&limiter, 1), spawn(&limiter, 1)]).await;
        // Behind the two, which are never polled again.
        assert!((2000..2005).contains(&times[0]) && (3000..3005).contains(&times[1]), "{times:?}");
        drop(waits);
    });
}

/// A waker that panicked when a state was reported, or when a flush ended, ended the task that
/// makes all calls of the store.
#[test]
fn a_waker_that_panics_ends_no_store() {
    on_model(async |model| {
        let (store, limiter) = open(&model, "token_bucket 1/s burst 5").await;
        let mut status = Box::pin(limiter.status());
        poll_with_panics(status.as_mut());
        sleep(10 * MS).await;
        assert_eq!(status.await.unwrap().members[0].1.available, 5);
        assert!(AnyLimiter::from(limiter.clone()).debit(1).is_ok());
        let mut flush = Box::pin(store.flush());
        poll_with_panics(flush.as_mut());
        sleep(10 * MS).await;
        flush.await.unwrap();
        assert_eq!(limiter.status().await.unwrap().members[0].1.available, 4);
    });
}

/// A waker of a request that waited for a share panicked when the store was back, or when a pause
/// began, and no call was made any more. Nor were the tasks woken that had begun to wait later.
#[test]
fn a_waker_that_panics_ends_no_store_that_is_back() {
    for is_paused in [false, true] {
        on_model(async move |model| {
            let open = || {
                let store = one_of_two(&model);
                store.limiter("all").limit("limit", "fixed_window 100/h").build().unwrap()
            };
            let (limiter, other) = (open(), open());
            other.status().await.unwrap();
            drop(limiter.acquire_now(60).await.unwrap());
            model.stop(true);
            sleep(60 * 60 * 2000 * MS).await;
            while limiter.acquire_now(1).await.is_ok() {}
            // The maximum wait lets the request stay in the share when the store is back.
            let longest = if is_paused { 2 * 60 * 60 * 1000 * MS } else { Duration::MAX };
            let mut wait = Box::pin(limiter.acquire_within(longest));
            _ = tokio::time::timeout(200 * MS, &mut wait).await;
            poll_with_panics(wait.as_mut());
            let behind: Vec<_> = (0..20).map(|_| tokio::spawn(limiter.acquire_within(longest))).collect();
            sleep(MS).await;
            model.stop(false);
            sleep(10_000 * MS).await;
            if !is_paused {
                assert!(behind.iter().all(JoinHandle::is_finished), "they wait for the share");
            }
            behind.iter().for_each(JoinHandle::abort);
            if is_paused {
                other.pause(Pause::lasting(60_000 * MS)).await.unwrap();
                assert!(limiter.acquire_now(1).await.is_err());
            }
            let answer = tokio::time::timeout(1000 * MS, limiter.acquire_now(1)).await.unwrap();
            let is_unavailable = answer.is_err_and(|refusal| is_degraded_or_unavailable(&refusal));
            assert!(!is_unavailable);
            limiter.status().await.unwrap();
        });
    }
}

fn is_degraded_or_unavailable(refusal: &AllRefusal) -> bool {
    refusal.is_degraded() || matches!(refusal.refusal(), Some(Refusal::Unavailable { .. }))
}

/// A waker of a request in the queue of leases panicked, and ended the task that books permits, or
/// kept the limiter from being closed.
#[test]
fn a_waker_that_panics_ends_no_leases() {
    on_model(async |model| {
        let store = model.open(Store::builder("redis://model")).unwrap();
        let limiter = store.limiter("all").limit("limit", "token_bucket 1000/s burst 1000").leased();
        let limiter = AnyLimiter::from(limiter.build().unwrap());
        for _ in 0..500 {
            let _ = limiter.acquire().await.unwrap();
            sleep(2 * MS).await;
        }
        // More than is on lease, and less than the store has.
        let waker = Waker::from(Arc::new(Panics));
        let mut waits: Vec<_> = (0..40).map(|_| Box::pin(limiter.acquire_many(5))).collect();
        waits.retain_mut(|wait| wait.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        assert!(waits.len() > 20);
        sleep(10 * MS).await;
        assert!(store.lease_counts().outstanding() > 0);
        for wait in waits {
            let _ = wait.await.unwrap();
        }
        sleep(1000 * MS).await;
        assert_eq!(store.lease_counts().outstanding(), 0);
        let mut waits: Vec<_> = (0..40).map(|_| Box::pin(limiter.acquire_many(5))).collect();
        waits.retain_mut(|wait| wait.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        assert_eq!(limiter.close(), Ok(true));
        assert!(is(&waits.pop().unwrap().await, &Refusal::Closed));
        assert!(is(&limiter.acquire().await, &Refusal::Closed));
    });
}

#[test]
fn a_waker_that_panics_ends_no_line_of_permits_in_use() {
    on_model(async |model| {
        let store = model.open(Store::builder("redis://model")).unwrap();
        let limiter = AnyLimiter::from(store.counting("all", 2).build().unwrap());
        let mut waits = [Box::pin(limiter.acquire()), Box::pin(limiter.acquire())];
        for wait in &mut waits {
            poll_with_panics(wait.as_mut());
        }
        let behind = tokio::spawn(limiter.acquire());
        sleep(10 * MS).await;
        // Permits that no task has taken go back.
        drop(waits);
        let held = [behind.await.unwrap().unwrap(), limiter.acquire().await.unwrap()];
        let mut wait = Box::pin(limiter.acquire());
        poll_with_panics(wait.as_mut());
        let behind = tokio::spawn(limiter.acquire());
        sleep(10 * MS).await;
        assert_eq!(limiter.close(), Ok(true));
        assert!(is(&behind.await.unwrap(), &Refusal::Closed) && is(&wait.await, &Refusal::Closed));
        drop(held);
    });
}

/// A task that drops its request just after the booked time passes the permit on. Later the permit
/// is lost.
#[test]
fn a_grant_that_is_dropped_at_once_goes_to_the_next_request() {
    on_model(async |model| {
        for (late, next) in [(3, 1003), (30, 2000)] {
            let (_, limiter) = open(&model, "token_bucket 1/s burst 1").await;
            limiter.reset().await.unwrap();
            let any = AnyLimiter::from(limiter.clone());
            let (answer, empty) = spawn(&limiter, 1).await.unwrap();
            let _ = answer.unwrap();
            let mut wait = Box::pin(any.acquire());
            poll_once(wait.as_mut());
            sleep(10 * MS).await;
            let second = spawn(&limiter, 1);
            // The reply to a third request finds that the first one is due.
            tokio::time::sleep_until(empty + 999 * MS).await;
            let third = spawn(&limiter, 1);
            tokio::time::sleep_until(empty + SECOND + late * MS).await;
            drop(wait);
            let times = after(empty, vec![second, third]).await;
            assert!((next..next + 3).contains(&times[0]), "{late} ms late: {times:?}");
        }
    });
}

#[test]
fn a_call_for_several_limits_takes_fewer_requests() {
    on_model(async |model| {
        let store = model.open(Store::builder("redis://model")).unwrap();
        let lines = [
            "token_bucket 1000/s burst 100",
            "fixed_window 100/s",
            "sliding_log 100/s",
            "leaky_bucket 1000/s",
        ];
        let builder = store.limiter("all");
        let named = lines.iter().enumerate();
        let builder = named.fold(builder, |b, (i, line)| b.limit(i.to_string(), *line));
        let limiter = builder.build().unwrap();
        let _ = limiter.status().await.unwrap();
        let began = Instant::now();
        let times = after(began, (0..33).map(|_| spawn(&limiter, 1)).collect()).await;
        // One at once, two times sixteen.
        assert!(times.is_sorted(), "{times:?}");
        assert_eq!(store.counts().answered, 1 + 3);
    });
}

/// Such a request is refused without a call. An adapter that found no state would request it by a
/// call that blocks its thread.
#[test]
fn a_request_that_is_too_large_gets_the_state_by_a_call_of_its_own() {
    on_model(async |model| {
        let (store, limiter, _, _waiting) = booked(&model, &[1.into()]).await;
        let too_large = Refusal::ExceedsLimit { requested: 4, limit: 3 };
        for (request, calls) in [(Request::permits(4), 0), (Request::permits(4).with_left(), 1)] {
            let before = store.counts().answered;
            let (answer, _) = spawn(&limiter, request).await.unwrap();
            assert!(is(&answer, &too_large), "{answer:?}");
            let left = answer.unwrap_err().left().map(|left| (left.members[0].1.available, left.waiting));
            assert_eq!(left, (calls > 0).then_some((0, 1)));
            assert_eq!(store.counts().answered, before + calls);
        }
    });
}

#[test]
fn a_full_queue_reports_the_state_of_its_decision_without_another_call() {
    on_model(async |model| {
        let (store, limiter, _, _waiting) = booked(&model, &[1.into()]).await;
        limiter.set_queue_bounds(QueueBounds::UNBOUNDED.max_waiters(1));
        let calls = store.counts().answered;
        let (full, _) = spawn(&limiter, Request::permits(1).with_left()).await.unwrap();
        let full = full.unwrap_err();
        assert!(matches!(full.refusal(), Some(Refusal::QueueFull { .. })), "{full:?}");
        assert_eq!(full.left().map(|left| left.waiting), Some(1));
        assert_eq!(store.counts().answered, calls + 1);
    });
}

/// A task may settle a reservation that the store has not decided: the used permits are charged.
#[test]
fn a_reservation_settled_before_its_answer_takes_what_was_used() {
    on_model(async |model| {
        let (_store, limiter) = open(&model, "fixed_window 100/d").await;
        let tasks = AnyLimiter::from(limiter.clone()).non_blocking();
        // It is sent, and the others queue behind it.
        let sent = tasks.reserve(10).unwrap();
        let reservations: Vec<_> = (0..3).map(|_| tasks.reserve(20).unwrap()).collect();
        let behind = spawn(&limiter, 7);
        settle().await;
        sent.settle(1).unwrap();
        for (reservation, used) in reservations.into_iter().zip([2, 0]) {
            reservation.settle(used).unwrap();
        }
        assert_eq!(behind.await.unwrap().0.unwrap().permits(), 7);
        sleep(10 * MS).await;
        let left = limiter.status().await.unwrap().members[0].1.available;
        assert_eq!(left, 100 - 1 - 2 - 7);
        // A refused reservation takes nothing, and reports the refusal when it is awaited.
        let at_once = Request::permits(99).within(Duration::ZERO);
        let mut reservation = tasks.reserve(at_once).unwrap();
        let refusal = (&mut reservation).await.unwrap_err();
        assert!(matches!(refusal.refusal(), Some(Refusal::Limited { .. })));
        reservation.settle(99).unwrap();
        assert_eq!(limiter.status().await.unwrap().members[0].1.available, left);
    });
}

/// The first permit of the queue is due a second after the limiter was empty.
#[test]
fn dropped_waits_leave_no_debt() {
    on_model(async |model| {
        let (_store, limiter, empty, mut tasks) = booked(&model, &[Request::permits(1); 50]).await;
        let next_at = async || {
            let next_in = limiter.status().await.unwrap().members[0].1.next_in;
            // The reply comes one direction's latency after the decision.
            (Instant::now() + next_in - empty).as_millis()
        };
        assert!((51_000..51_005).contains(&next_at().await));
        // The last one first: each gives back its own booked time.
        while let Some(task) = tasks.pop() {
            task.abort();
            sleep(5 * MS).await;
            let second = 1000 * (tasks.len() as u128 + 1);
            assert!((second..second + 5).contains(&next_at().await), "{second}");
        }
        assert_eq!(limiter.status().await.unwrap().waiting, 0);

        // In any other order the last request moves up to the first booked time, and the other
        // times go to later requests.
        let mut tasks: Vec<_> = (0..10).map(|_| spawn(&limiter, 1)).collect();
        sleep(10 * MS).await;
        tasks[..9].iter().for_each(JoinHandle::abort);
        tasks.drain(..9);
        sleep(10 * MS).await;
        tasks.extend((0..9).map(|_| spawn(&limiter, 1)));
        let times = after(empty, tasks).await;
        for (second, time) in (1..).zip(&times) {
            assert!((1000 * second..1000 * second + 5).contains(time), "{times:?}");
        }
    });
}

#[test]
fn reservations_stand_in_the_line_of_all_requests() {
    on_model(async |model| {
        let (_store, limiter, empty, tasks) = booked(&model, &[Request::permits(1)]).await;
        let any = AnyLimiter::from(limiter.clone()).non_blocking();
        let [first, second, third] = [(); 3].map(|()| any.reserve(1).unwrap());
        sleep(10 * MS).await;
        let next_at = async || {
            let next_in = limiter.status().await.unwrap().members[0].1.next_in;
            (Instant::now() + next_in - empty).as_millis()
        };
        let due_at = |reservation: &tidegate::AnyReservation| {
            (Instant::now() + reservation.due_in() - empty).as_millis()
        };
        assert_eq!(limiter.status().await.unwrap().waiting, 4);
        assert!((4000..4005).contains(&due_at(&third)), "{}", due_at(&third));
        drop(second);
        assert!((3000..3005).contains(&due_at(&third)), "{}", due_at(&third));
        // The last booked time is back.
        sleep(10 * MS).await;
        assert!((4000..4005).contains(&next_at().await));
        // A reservation that is settled before it is due takes its booked time along, and one
        // permit more.
        first.settle(2).unwrap();
        sleep(10 * MS).await;
        assert!((5000..5005).contains(&next_at().await));
        assert_eq!(limiter.status().await.unwrap().waiting, 2);
        assert!((1000..1005).contains(&after(empty, tasks).await[0]));
        let mut third = third;
        assert_eq!((&mut third).await.unwrap().permits(), 1);
        let granted = (Instant::now() - empty).as_millis();
        assert!((3000..3005).contains(&granted), "{granted}");
        third.settle(0).unwrap();
        sleep(10 * MS).await;
        assert!((4000..4005).contains(&next_at().await));
        assert_eq!(limiter.status().await.unwrap().waiting, 0);
    });
}

#[test]
fn a_reservation_settled_for_less_gives_the_rest_back() {
    on_model(async |model| {
        let (store, limiter, empty, tasks) = booked(&model, &[Request::permits(1); 2]).await;
        let calls = store.counts().answered;
        let any = AnyLimiter::from(limiter.clone()).non_blocking();
        let late = spawn(&limiter, Request::permits(1).within(2 * SECOND)).await.unwrap().0;
        let retry_after = late.unwrap_err().retry_after().unwrap();
        assert!(retry_after <= SECOND && retry_after >= SECOND - 20 * MS, "{retry_after:?}");
        let mut reservation = any.reserve(3).unwrap();
        let times = after(empty, tasks).await;
        assert!((1000..1005).contains(&times[0]) && (2000..2005).contains(&times[1]), "{times:?}");
        assert_eq!((&mut reservation).await.unwrap().permits(), 3);
        let granted = (Instant::now() - empty).as_millis();
        assert!((5000..5005).contains(&granted), "{granted}");
        // Each is booked once, and waits once.
        assert_eq!(store.counts().answered - calls, 2);
        reservation.settle(1).unwrap();
        sleep(10 * MS).await;
        assert_eq!(limiter.status().await.unwrap().members[0].1.available, 2);
    });
}

/// The reply of the store is awaited even if it takes longer than the request may wait for permits.
#[test]
fn a_wait_for_permits_in_use_does_not_begin_before_the_reply_of_the_store() {
    on_model(async |model| {
        let store = model.open(Store::builder("redis://model")).unwrap();
        let limiter = AnyLimiter::from(store.counting("all", 1).build().unwrap());
        let ask = async |within| {
            let began = Instant::now();
            let answer = limiter.acquire_within(within).await;
            (answer, began.elapsed())
        };
        drop(limiter.acquire().await.unwrap());
        sleep(10 * MS).await;
        for within in [Duration::ZERO, Duration::from_nanos(1), MS, 2 * MS, SECOND] {
            let (answer, took) = ask(within).await;
            assert!(answer.is_ok() && took == TRIP, "{within:?}: {answer:?} after {took:?}");
            let (refused, took) = ask(within).await;
            assert!(is(&refused, &Refusal::InUse { limit: 1 }), "{refused:?}");
            let longest = within.max(TRIP);
            assert!(took >= longest && took <= longest + MS, "{within:?}: {took:?}");
            drop(answer);
            sleep(10 * MS).await;
        }
        // A request behind one that already waits is not sent.
        let held = limiter.acquire().await.unwrap();
        let waits = tokio::spawn(limiter.acquire());
        sleep(10 * MS).await;
        let (refused, took) = ask(MS).await;
        assert!(is(&refused, &Refusal::InUse { limit: 1 }) && took <= 2 * MS, "{refused:?}, {took:?}");
        drop(held);
        let _ = waits.await.unwrap().unwrap();
    });
}

/// A wait whose task does not poll it has its grant at its booked time. When it was dropped later,
/// the next request of this process was granted by the old time, and a newcomer as well.
#[test]
fn an_instant_that_has_passed_is_not_granted_later() {
    for line in ["sliding_log 5/2s", "token_bucket 5/2s burst 5", "sliding_window 5/2s cells 4"] {
        for dropped in [2_100, 2_800, 3_500] {
            on_model(async move |model| {
                let (_store, limiter) = open(&model, line).await;
                let (answer, began) = spawn(&limiter, 5).await.unwrap();
                let _ = answer.unwrap();
                let any = AnyLimiter::from(limiter.clone());
                let mut wait = Box::pin(any.acquire_many(5));
                assert!(wait.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
                let behind = spawn(&limiter, 5);
                sleep(Duration::from_millis(dropped) - began.elapsed()).await;
                drop(wait);
                let (answer, at) = behind.await.unwrap();
                let _ = answer.unwrap();
                let first = at - began;
                let newcomer = spawn(&limiter, 5).await.unwrap();
                let _ = newcomer.0.unwrap();
                // Two grants of all permits are a window apart, less one of four cells.
                let apart = newcomer.1 - at;
                assert!(apart + 5 * MS >= 1500 * MS, "{line}, {dropped}: {first:?} and {apart:?}");
                assert!(
                    line.contains("cells") || apart + 5 * MS >= 2 * SECOND,
                    "{line}, {dropped}: {apart:?}"
                );
            });
        }
    }
}

/// A booking that another process gave back went to the next request that asked the store, before
/// earlier requests of its process that waited.
#[test]
fn an_instant_of_another_process_goes_to_the_first_in_line() {
    on_model(async |model| {
        let (_store, one) = open(&model, "token_bucket 1/s burst 3").await;
        let (_other_store, other) = open(&model, "token_bucket 1/s burst 3").await;
        let (answer, empty) = spawn(&one, 3).await.unwrap();
        let _ = answer.unwrap();
        let mut dropped = Vec::new();
        for _ in 0..3 {
            dropped.push(spawn(&other, 1));
            sleep(10 * MS).await;
        }
        let first = spawn(&one, 1);
        sleep(10 * MS).await;
        // The bookings at two seconds and three.
        dropped.drain(1..).for_each(|task| task.abort());
        sleep(10 * MS).await;
        let second = spawn(&one, 1);
        sleep(10 * MS).await;
        // A request that may wait for three seconds takes the third one, and waits no longer.
        let third = spawn(&one, Request::permits(1).within(3 * SECOND));
        sleep(10 * MS).await;
        assert_eq!(after(empty, vec![first, second, third]).await, [2000, 4000, 3000]);
    });
}

/// A reservation got the time of a booking that another process gave back, before an earlier
/// request.
#[test]
fn a_reservation_stands_behind_requests_that_wait() {
    on_model(async |model| {
        let (_store, one) = open(&model, "token_bucket 1/s burst 3").await;
        let (_other_store, other) = open(&model, "token_bucket 1/s burst 3").await;
        let (answer, empty) = spawn(&one, 3).await.unwrap();
        let _ = answer.unwrap();
        let dropped = spawn(&other, 1);
        sleep(10 * MS).await;
        let first = spawn(&one, 1);
        sleep(10 * MS).await;
        dropped.abort();
        sleep(10 * MS).await;
        let reservation = AnyLimiter::from(one.clone()).non_blocking().reserve(1).unwrap();
        sleep(10 * MS).await;
        assert_eq!((Instant::now() + reservation.due_in() - empty).as_millis(), 2000);
        assert_eq!(after(empty, vec![first]).await, [1000]);
        let _ = reservation.await.unwrap();
        assert_eq!((Instant::now() - empty).as_millis(), 2000);
    });
}

/// A store that had lost its bookings granted newcomers before requests that waited.
#[test]
fn a_store_that_lost_its_bookings_serves_the_first_in_line() {
    on_model(async |model| {
        let line = [Request::permits(1); 4];
        let (_store, limiter, empty, tasks) = booked(&model, &line).await;
        let (_other_store, other) = open(&model, "token_bucket 1/s burst 3").await;
        other.reset().await.unwrap();
        // The limit is full again: three permits, and then one each second.
        let newcomers: Vec<_> = (0..4).map(|_| spawn(&limiter, 1)).collect();
        let waits: Vec<_> = after(empty, tasks).await.into_iter().map(|millis| millis / 100).collect();
        assert_eq!(waits, [0, 0, 0, 10]);
        let later: Vec<_> = after(empty, newcomers).await.into_iter().map(|millis| millis / 100).collect();
        assert_eq!(later, [10, 20, 30, 40]);
    });
}

/// Waits that are never polled again were counted as waiting after their booked times, until
/// another request of equal costs checked them.
#[test]
fn leaked_waits_leave_the_bounds_at_their_instants() {
    for line in ["fixed_window 2/1s", "token_bucket 2/s burst 2", "sliding_log 2/1s"] {
        on_model(async move |model| {
            let store = model.open(Store::builder("redis://model")).unwrap();
            let limiter = store.limiter("all").limit("limit", line);
            let limiter = limiter.queue_bounds(QueueBounds::UNBOUNDED.max_waiters(1)).build().unwrap();
            let any = AnyLimiter::from(limiter.clone());
            let _ = any.acquire_many(2).await.unwrap();
            let mut wait = Box::pin(any.acquire());
            assert!(wait.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
            sleep(20 * MS).await;
            assert_eq!(limiter.status().await.unwrap().waiting, 1);
            std::mem::forget(wait);
            sleep(60 * SECOND).await;
            let _ = any.acquire_now(2).await.unwrap();
            let _ = any.acquire_many(2).await.expect(line);
            let mut wait = Box::pin(any.acquire());
            assert!(wait.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
            std::mem::forget(wait);
            sleep(60 * SECOND).await;
            assert_eq!(limiter.status().await.unwrap().waiting, 0);
        });
    }
}

/// By the clock of a process, the later reply of two with equal times has the earlier time. A
/// reservation thus took the booked time of a dropped wait before an earlier request.
#[test]
fn a_reservation_takes_no_earlier_instant_than_a_request_before_it() {
    for millis in 1..9 {
        run(async move {
            let model = Model::new(1, Network { jitter: 0.1, ..Network::steady(MS / 2) });
            let (_store, limiter) = open(&model, "fixed_window 2/1s").await;
            let first = spawn(&limiter, 2);
            sleep(millis * MS).await;
            let (_stays, dropped) = (spawn(&limiter, 1), spawn(&limiter, 1));
            sleep(MS).await;
            let earlier = spawn(&limiter, 1);
            sleep(4 * MS).await;
            let mut reservation = AnyLimiter::from(limiter.clone()).non_blocking().reserve(1).unwrap();
            let reserved = tokio::spawn(async move {
                (&mut reservation).await.unwrap();
                Instant::now()
            });
            sleep(4 * MS).await;
            dropped.abort();
            let _ = first.await.unwrap().0.unwrap();
            let (answer, earlier) = earlier.await.unwrap();
            let _ = answer.unwrap();
            assert!(earlier <= reserved.await.unwrap(), "{millis}");
        });
    }
}

/// The booked time of a leaked wait had passed, and granted a later request of higher priority.
#[test]
fn no_request_takes_the_passed_instant_of_a_leaked_wait() {
    on_model(async |model| {
        let (_store, limiter) = open(&model, "token_bucket 10/s burst 1").await;
        let any = AnyLimiter::from(limiter.clone());
        let _ = any.acquire().await.unwrap();
        let first = Instant::now();
        let mut wait = Box::pin(any.acquire());
        assert!(wait.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        sleep(20 * MS).await;
        std::mem::forget(wait);
        sleep(170 * MS).await;
        let _ = any.acquire_many(Request::permits(1).priority(1)).await.unwrap();
        assert_eq!(first.elapsed().as_millis(), 200);
    });
}
