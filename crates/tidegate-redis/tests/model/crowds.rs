//! Crowds of concurrent requests at a server that is well and takes longer for them than the
//! timeout of the store.

use std::time::Duration;

use tidegate::{AllRefusal, AnyLimiter, Refusal};
use tidegate_redis::simulation::{Model, Network, run};
use tidegate_redis::{Store, StoreKeyedLimiter, WhileAway};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use crate::{MS, SECOND};

/// A server at a distance of 0.1 ms that works for `service` on a call.
fn model(seed: u64, service: Duration) -> Model {
    Model::new(seed, Network { service, ..Network::steady(MS / 10) })
}

fn open(model: &Model, while_away: WhileAway) -> Store {
    model.open(Store::builder("redis://model").while_away(while_away)).unwrap()
}

fn keyed(store: &Store, policy: &str) -> StoreKeyedLimiter {
    store.keyed("users").limit("calls", policy).build().unwrap()
}

fn limiter(store: &Store, tag: &str, policy: &str) -> AnyLimiter {
    store.limiter(tag).limit("calls", policy).build().unwrap().into()
}

fn is_unavailable(refusal: &AllRefusal) -> bool {
    matches!(refusal.refusal(), Some(Refusal::Unavailable { .. }))
}

/// The first requests of 20,000 keys waited for 40 s and longer at an idle server. Their calls were
/// late because of the calls before them, which opened the breaker, and all were sent again
/// together. If requests do not wait for a store that is away, the calls that were sent late went
/// to the end of the queue again, and if the process was slow, none was sent.
#[test]
fn many_keys_wait_in_their_order() {
    const KEYS: u32 = 20_000;
    let service = 20 * MS / 1000;
    for while_away in [WhileAway::Wait, WhileAway::Closed] {
        run(async move {
            let model = model(1, service);
            let store = open(&model, while_away);
            let users = keyed(&store, "token_bucket 1/s burst 2");
            drop(users.acquire("first").await.unwrap());
            let (mut waits, began) = (JoinSet::new(), Instant::now());
            for i in 0..KEYS {
                let wait = users.acquire(&format!("user{i}"));
                waits.spawn(async move { wait.await.map(|_| i) });
            }
            let mut answered = Vec::new();
            while let Some(permits) = waits.join_next().await {
                answered.push(permits.unwrap().unwrap());
            }
            assert!(answered.is_sorted(), "a later call was answered first");
            let (took, works) = (began.elapsed(), service * KEYS);
            assert!(took < works + works / 10, "{took:?}");
            let counts = store.counts();
            assert_eq!((counts.unknown, counts.skipped, counts.degraded), (0, 0, 0), "{counts:?}");
            assert_eq!(model.calls() - model.counting_calls(), u64::from(KEYS) + 2, "one told the script");
        });
    }
}

/// Requests that do not wait are decided within the timeout. No call is made for requests that come
/// too late for that, so the breaker stays closed.
#[test]
fn requests_that_come_too_late_in_a_crowd_are_refused_in_time() {
    run(async {
        let model = model(2, 20 * MS / 1000);
        let store = open(&model, WhileAway::Closed);
        let users = keyed(&store, "token_bucket 1/s burst 2");
        drop(users.acquire("first").await.unwrap());
        let (mut answers, began) = (JoinSet::new(), Instant::now());
        for i in 0..20_000 {
            let answer = users.acquire_now(&format!("user{i}"), 1);
            answers
                .spawn(async move { answer.await.map(|_| ()).map_err(|refusal| (refusal, began.elapsed())) });
        }
        let (mut granted, mut refused) = (0, 0);
        while let Some(answer) = answers.join_next().await {
            match answer.unwrap() {
                Ok(()) => granted += 1,
                Err((refusal, took)) => {
                    assert!(is_unavailable(&refusal) && took <= 51 * MS, "{refusal} after {took:?}");
                    refused += 1;
                }
            }
        }
        let counts = store.counts();
        assert_eq!((counts.unknown, counts.failed), (0, 0), "{counts:?}");
        assert!(!store.is_away() && granted > 1000 && refused > 0, "{granted}, {refused}");
        // The server did no work in vain.
        assert_eq!(model.calls() - model.counting_calls(), granted + 2);
        drop(users.acquire("last").await.unwrap());
    });
}

/// A request that does not wait queued behind the call of one that does. That call waited to be
/// sent, behind the calls of other keys, and the request was only checked when the call had its
/// reply.
#[test]
fn requests_that_do_not_wait_have_answers_in_time_behind_a_call_that_waits_to_leave() {
    for requests in [1, 3] {
        run(async move {
            let model = model(4, 2 * MS);
            let store = open(&model, WhileAway::Closed);
            let users = keyed(&store, "token_bucket 1/s burst 2");
            let join = |crowd: u32, users_of_it: u32| {
                let waits = (0..users_of_it).map(|i| users.acquire(&format!("user{crowd}.{i}")));
                waits.map(|wait| async { wait.await.map(drop) }).collect::<JoinSet<_>>()
            };
            // Crowds with late calls halve the window.
            for crowd in 0..8 {
                join(crowd, 200).join_all().await;
                sleep(2 * SECOND).await;
                let _ = users.acquire("the breaker is closed").await;
            }
            let others = join(8, 120);
            sleep(MS).await;
            let before = users.acquire("last");
            let before = tokio::spawn(async move { before.await.map(drop) });
            sleep(MS).await;
            let asked = Instant::now();
            let answers = (0..requests).map(|_| users.acquire_now("last", 1));
            let answers = answers.map(|answer| async move {
                let is_ok = answer.await.is_ok();
                assert!(asked.elapsed() <= 51 * MS, "{is_ok} after {:?}", asked.elapsed());
            });
            answers.collect::<JoinSet<_>>().join_all().await;
            assert!(!before.is_finished());
            before.await.unwrap().unwrap();
            others.join_all().await;
        });
    }
}

/// Waits that join one limiter at once, and are dropped at once. Their calls delayed each other:
/// permits were lost, and other limiters of the store were refused.
#[test]
fn a_storm_of_waits_is_served_at_the_rate() {
    let rows = [
        ("token_bucket 200/s burst 50", WhileAway::Wait, 2 * MS),
        ("fixed_window 100/500ms", WhileAway::Wait, 2 * MS),
        ("token_bucket 200/s burst 50", WhileAway::Closed, 3 * MS),
    ];
    for (policy, while_away, service) in rows {
        run(async move {
            let model = model(1, service);
            let store = open(&model, while_away);
            let (crowded, other) = (limiter(&store, "crowded", policy), limiter(&store, "other", policy));
            drop(other.acquire_now(1).await.unwrap());
            let began = Instant::now();
            let mut waits = JoinSet::new();
            for _ in 0..5000 {
                let wait = crowded.acquire();
                waits.spawn(async move { wait.await.map(drop) });
            }
            let mut granted = 0;
            while began.elapsed() < 4 * SECOND {
                drop(other.acquire_now(1).await.unwrap());
                while let Some(answer) = waits.try_join_next() {
                    granted += u32::from(answer.unwrap().is_ok());
                }
                sleep(50 * MS).await;
            }
            assert!(granted >= 790, "{policy}: {granted}");
            waits.shutdown().await;
            store.flush().await.unwrap();
            let counts = store.counts();
            assert_eq!(
                (counts.unknown, counts.skipped, counts.lost_refunds),
                (0, 0, 0),
                "{policy}: {counts:?}"
            );
            let next = Instant::now();
            drop(crowded.acquire().await.unwrap());
            assert!(next.elapsed() <= 500 * MS, "{policy}: {:?}", next.elapsed());
        });
    }
}

/// A request that does not wait queued behind all calls of requests that do, and was refused by a
/// server that was well.
#[test]
fn a_request_that_does_not_wait_is_decided_beside_a_crowd_that_does() {
    run(async {
        let model = model(3, 20 * MS / 1000);
        let store = open(&model, WhileAway::Wait);
        let policy = "token_bucket 1000/s burst 1000";
        let (users, other) = (keyed(&store, policy), limiter(&store, "other", policy));
        drop(other.acquire_now(1).await.unwrap());
        let mut waits = JoinSet::new();
        for i in 0..20_000 {
            waits.spawn(users.acquire(&format!("user{i}")));
        }
        let mut decided = 0;
        while !waits.is_empty() {
            drop(other.acquire_now(1).await.unwrap());
            decided += 1;
            while waits.try_join_next().is_some() {}
            sleep(5 * MS).await;
        }
        assert!(decided > 10, "{decided}");
        // The crowd is served as well as without it.
        assert!(store.counts().unknown == 0 && model.calls() < 20_500);
    });
}

/// While more than 16,384 calls had no reply, permits that went back were lost.
#[test]
fn permits_of_a_crowd_that_leaves_go_back() {
    run(async {
        let model = model(4, 20 * MS / 1000);
        let store = open(&model, WhileAway::Wait);
        let users = keyed(&store, "token_bucket 1/d burst 1");
        let mut waits = JoinSet::new();
        for i in 0..20_000 {
            waits.spawn(users.acquire(&format!("user{i}")));
        }
        sleep(10 * MS).await;
        waits.abort_all();
        let mut granted = 0;
        while let Some(answer) = waits.join_next().await {
            granted += usize::from(answer.is_ok());
        }
        store.flush().await.unwrap();
        // The server keeps a key for a moment after its limit is full again.
        sleep(10 * MS).await;
        assert_eq!((store.counts().lost_refunds, model.keys()), (0, granted));
    });
}

/// While more than 16,384 calls had no reply, each limit asked again every few milliseconds, and
/// the calls that were made were not sent.
#[test]
fn permits_in_use_of_many_limits_are_had() {
    run(async {
        let model = model(5, 20 * MS / 1000);
        let store = open(&model, WhileAway::Wait);
        let began = Instant::now();
        let mut waits = JoinSet::new();
        for i in 0..17_000 {
            let limiter = AnyLimiter::from(store.counting(format!("job{i}"), 1).build().unwrap());
            waits.spawn(async move { limiter.acquire().await.map(drop) });
        }
        while let Some(permits) = waits.join_next().await {
            permits.unwrap().unwrap();
        }
        // Each limit asks for its permit and gives it back.
        assert!(began.elapsed() < 2 * SECOND, "{:?}", began.elapsed());
        store.flush().await.unwrap();
        assert_eq!((store.counts().skipped, model.keys()), (0, 0));
    });
}

/// Calls that were late because of earlier calls opened the breaker of a server that replied.
#[test]
fn late_calls_of_a_server_that_answers_do_not_open_the_breaker() {
    run(async {
        let model = model(6, 2 * MS);
        let store = open(&model, WhileAway::Closed);
        let users = keyed(&store, "token_bucket 1/s burst 2");
        drop(users.acquire("first").await.unwrap());
        let mut answers = JoinSet::new();
        for i in 0..100 {
            answers.spawn(users.acquire_now(&format!("user{i}"), 1));
        }
        let mut granted = 0;
        while let Some(answer) = answers.join_next().await {
            granted += u32::from(answer.unwrap().is_ok());
        }
        // A server completes 25 calls in the timeout of the store.
        assert!(granted >= 20 && store.counts().unknown >= 70, "{granted}, {:?}", store.counts());
        assert!(!store.is_away());
        sleep(200 * MS).await;
        drop(users.acquire_now("last", 1).await.unwrap());
    });
}

/// The requests of a call that was too late to be made queued again, each for the whole of its
/// maximum wait.
#[test]
fn a_longest_wait_in_a_crowd_counts_from_when_the_request_came() {
    run(async {
        let model = model(7, 2 * MS);
        let store = open(&model, WhileAway::Closed);
        let limiter = limiter(&store, "all", "token_bucket 1000/s burst 1");
        drop(limiter.acquire().await.unwrap());
        let (within, mut answers) = (300 * MS, JoinSet::new());
        for _ in 0..10_000 {
            let (answer, asked) = (limiter.acquire_within(within), Instant::now());
            answers.spawn(async move { (answer.await.is_ok(), asked.elapsed()) });
        }
        let mut granted = 0;
        while let Some(answer) = answers.join_next().await {
            let (is_granted, took) = answer.unwrap();
            assert!(took <= within + 51 * MS, "{is_granted} after {took:?}");
            granted += u32::from(is_granted);
        }
        assert!(granted >= 300, "{granted}");
    });
}
