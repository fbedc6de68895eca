//! Several limits in one limiter, of which each has its own pause.

use std::time::Duration;

use tidegate::{AllRequest, AnyLimiter, Pause, Refusal};
use tidegate_redis::simulation::Model;
use tidegate_redis::{Store, StoreLimiter};

use crate::{MS, on_model};

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
