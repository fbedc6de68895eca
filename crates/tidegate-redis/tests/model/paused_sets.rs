//! Several limits in one limiter, of which each has its own pause.

use std::sync::Arc;
use std::time::Duration;

use tidegate::{AllRefusal, AllRequest, AnyLimiter, Events, Pause, Refusal};
use tidegate_redis::simulation::Model;
use tidegate_redis::{Store, StoreLimiter};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

use crate::{MS, SECOND, on_model};

const HOUR: Duration = Duration::from_secs(3600);

/// A process with the limits of these names.
fn of(model: &Model, names: &[&str]) -> StoreLimiter {
    let limits = model.open(Store::builder("redis://model")).unwrap().limiter("all");
    let limit = |limits: tidegate_redis::LimiterBuilder, name: &&str| {
        limits.limit(*name, "token_bucket 10/s burst 10")
    };
    names.iter().fold(limits, limit).build().unwrap()
}

/// Requests one permit of `a` or of `b`.
fn one(name: &'static str) -> AllRequest<'static> {
    AllRequest::new().cost("a", u32::from(name == "a")).cost("b", u32::from(name == "b"))
}

/// A request in a separate task, which returns the time of the grant.
fn wait(both: &AnyLimiter, request: AllRequest<'_>) -> JoinHandle<Result<Instant, AllRefusal>> {
    let wait = both.acquire_many(request);
    tokio::spawn(async move { wait.await.map(|_| Instant::now()) })
}

/// Bug: requests behind the pause of one limit waited for the longest pause of all limits, and
/// newcomers overtook them.
#[test]
fn requests_behind_the_pause_of_a_limit_wait_for_that_pause() {
    for is_first in [true, false] {
        on_model(async move |model| {
            of(&model, &["a"]).pause(Pause::lasting(HOUR)).await.unwrap();
            of(&model, &["b"]).pause(Pause::lasting(10 * SECOND).keep_permits()).await.unwrap();
            let began = Instant::now();
            let both = AnyLimiter::from(of(&model, &["a", "b"]));
            let longer = is_first.then(|| wait(&both, one("a")));
            sleep(10 * MS).await;
            let reserved = both.non_blocking().reserve(one("b")).unwrap();
            // The pause delays these by 10 s, and those before them by no more.
            let mut waits: Vec<_> = (0..5).map(|_| wait(&both, one("b"))).collect();
            waits.extend((0..4).map(|_| wait(&both, one("b").within(11 * SECOND))));
            sleep(10 * MS).await;
            let longer = longer.unwrap_or_else(|| wait(&both, one("a")));
            sleep(10 * MS).await;
            assert!(reserved.due_in() <= 10 * SECOND, "{:?}", reserved.due_in());
            sleep(9 * SECOND + 960 * MS).await;
            waits.extend((0..40).map(|_| {
                let both = both.clone();
                tokio::spawn(async move {
                    let _ = both.acquire_many(one("b")).await?;
                    Ok(Instant::now())
                })
            }));
            drop(reserved);
            let mut last = began;
            for (i, wait) in waits.into_iter().enumerate() {
                let at = wait.await.unwrap().unwrap();
                assert!(at >= last && at <= began + 14 * SECOND, "{i}: {:?}", at - began);
                last = at;
            }
            assert!(!longer.is_finished());
        });
    }
}

/// Bug: so they did when another process had ended the pause of their limit.
#[test]
fn requests_behind_the_pause_of_a_limit_go_on_when_another_process_ends_it() {
    for ended in [&["b"][..], &["a", "b"]] {
        on_model(async move |model| {
            of(&model, &["a", "b"]).pause(Pause::lasting(HOUR).keep_permits()).await.unwrap();
            let both = AnyLimiter::from(of(&model, &["a", "b"]));
            let of_a = wait(&both, one("a"));
            sleep(10 * MS).await;
            let waits: Vec<_> = (0..5).map(|_| wait(&both, one("b"))).collect();
            sleep(3 * SECOND).await;
            of(&model, ended).resume().await.unwrap();
            let at_end = Instant::now();
            for wait in waits {
                let at = wait.await.unwrap().unwrap();
                assert!(at <= at_end + 1010 * MS, "{ended:?}: {:?}", at - at_end);
            }
            if ended.contains(&"a") {
                let at = of_a.await.unwrap().unwrap();
                assert!(at <= at_end + 1010 * MS, "{:?}", at - at_end);
            } else {
                assert!(!of_a.is_finished());
            }
        });
    }
}

/// Bug: each set of limits that requests used asked every second.
#[test]
fn one_request_asks_whether_pauses_have_ended_whatever_limits_the_others_use() {
    on_model(async |model| {
        let store = model.open(Store::builder("redis://model")).unwrap();
        let names: Vec<_> = (0..20).map(|i| format!("limit-{i}")).collect();
        let limits = names.iter().fold(store.limiter("all"), |limits, name| {
            limits.limit(name.as_str(), "token_bucket 10/s burst 10")
        });
        let limits = limits.build().unwrap();
        limits.pause(Pause::lasting(HOUR)).await.unwrap();
        let all = AnyLimiter::from(limits);
        let pair = |i: usize, j: usize| {
            let none = AllRequest::new().cost_of_others(0);
            wait(&all, none.cost(names[i].as_str(), 1).cost(names[j].as_str(), 1))
        };
        let waits: Vec<_> =
            (0..20).flat_map(|i| (0..i).map(move |j| (i, j))).map(|(i, j)| pair(i, j)).collect();
        sleep(5 * SECOND).await;
        let before = store.counts().answered;
        sleep(10 * SECOND).await;
        assert_eq!(store.counts().answered - before, 10);
        assert!(!waits.iter().any(JoinHandle::is_finished));
    });
}

/// Bug: where each reply has the state of all limits, for observers, a request that was granted
/// after the pause of its limit did not show that this pause was over.
#[test]
fn a_grant_shows_the_end_of_a_pause_whatever_other_limits_are_paused() {
    struct Nothing;
    impl Events for Nothing {}
    on_model(async |model| {
        let of_a = of(&model, &["a"]);
        of_a.pause(Pause::lasting(HOUR)).await.unwrap();
        of(&model, &["b"]).pause(Pause::lasting(HOUR).keep_permits()).await.unwrap();
        let both = of(&model, &["a", "b"]);
        assert!(both.observe(Arc::new(Nothing)));
        let both = AnyLimiter::from(both);
        let waits: Vec<_> = (0..5).map(|_| wait(&both, one("b"))).collect();
        sleep(3 * SECOND).await;
        of(&model, &["b"]).resume().await.unwrap();
        let ended = Instant::now();
        for wait in waits {
            let at = wait.await.unwrap().unwrap();
            assert!(at <= ended + 1010 * MS, "{:?}", at - ended);
        }
    });
}

/// Bug: such a request was told that it was paused, and for as long as the other limit.
#[test]
fn a_limit_that_is_used_up_refuses_as_limited_beside_a_paused_limit() {
    for leased in [false, true] {
        on_model(async move |model| {
            of(&model, &["a"]).pause(Pause::lasting(Duration::MAX)).await.unwrap();
            let store = model.open(Store::builder("redis://model")).unwrap();
            let limit = "token_bucket 10/s burst 10";
            let both = store.limiter("all").limit("a", limit).limit("b", limit);
            let both = if leased { both.leased() } else { both }.build().unwrap();
            let both = AnyLimiter::from(both);
            let all = AllRequest::new().cost("a", 0).cost("b", 10);
            drop(both.acquire_now(all).await.unwrap());
            for i in 0..5 {
                let refusal = both.acquire_now(one("b")).await.unwrap_err();
                let Some(Refusal::Limited { retry_after }) = refusal.refusal() else {
                    panic!("leased {leased}, {i}: {refusal:?}")
                };
                assert!(retry_after.as_duration() <= 100 * MS, "leased {leased}, {i}: {retry_after:?}");
                assert_eq!(refusal.member(), Some("b"));
            }
            let refusal = both.acquire_now(one("a")).await.unwrap_err();
            assert!(matches!(refusal.refusal(), Some(Refusal::Paused { .. })), "{refusal:?}");
        });
    }
}

/// Bug: only the requests that use the limits of the one that asks heard that their pause was
/// prolonged. The others asked all at once at its former end, and were told that end.
#[test]
fn requests_for_other_limits_hear_of_a_prolonged_pause() {
    on_model(async |model| {
        of(&model, &["a"]).pause(Pause::lasting(HOUR)).await.unwrap();
        of(&model, &["b"]).pause(Pause::lasting(10 * SECOND)).await.unwrap();
        let store = model.open(Store::builder("redis://model")).unwrap();
        let line = "token_bucket 10/s burst 10";
        let both = store.limiter("all").limit("a", line).limit("b", line).build().unwrap();
        let both = AnyLimiter::from(both);
        let _first = wait(&both, one("a"));
        sleep(10 * MS).await;
        let reserved = both.non_blocking().reserve(one("b")).unwrap();
        let _waits: Vec<_> = (0..640).map(|_| wait(&both, one("b"))).collect();
        sleep(5 * SECOND).await;
        of(&model, &["b"]).pause(Pause::lasting(60 * SECOND)).await.unwrap();
        sleep(3 * SECOND).await;
        assert!(reserved.due_in() > 50 * SECOND, "{:?}", reserved.due_in());
        let before = store.counts().answered;
        sleep(4 * SECOND).await;
        let calls = store.counts().answered - before;
        assert!(calls <= 5, "{calls}");
    });
}
