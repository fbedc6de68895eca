//! Properties of the public types: they can be sent and shared, and `Debug` shows no key.

use std::error::Error;
use std::fmt;

use tidegate::{AllRefusal, AnyKeyed, AnyLimiter};
use tidegate_redis::{
    BuildError, CountingBuilder, KeyedBuilder, LimiterBuilder, LimiterConfig, OpenError, Store, StoreBuilder,
    StoreCountingLimit, StoreError, StoreKeyedLimiter, StoreLimiter, WhileAway,
};

fn shared<T: Clone + fmt::Debug + Send + Sync + 'static>() {}
fn error<T: Error + Send + Sync + 'static>() {}
fn sendable<T: Send>(_: T) {}

#[test]
fn everything_can_be_sent() {
    shared::<Store>();
    shared::<StoreBuilder>();
    shared::<StoreLimiter>();
    shared::<LimiterBuilder>();
    shared::<StoreKeyedLimiter>();
    shared::<KeyedBuilder>();
    shared::<StoreCountingLimit>();
    shared::<CountingBuilder>();
    shared::<LimiterConfig>();
    shared::<WhileAway>();
    #[cfg(feature = "tls")]
    shared::<tidegate_redis::Tls>();
    error::<BuildError>();
    error::<OpenError>();
    error::<StoreError>();
}

#[test]
fn futures_can_be_sent() {
    let store = Store::open("redis+unix:///nowhere/s").unwrap();
    let limiter = store.limiter("all").limit("calls", "fixed_window 5/s").build().unwrap();
    sendable(limiter.acquire());
    sendable(limiter.status());
    sendable(limiter.reset());
    sendable(limiter.debit(1));
    sendable(store.flush());
    sendable(store.check());
}

#[test]
fn debug_shows_the_limits_and_no_key() {
    let store = Store::open("redis+unix:///nowhere/s?pass=hunter2").unwrap();
    let users = store.keyed("users").limit("calls", "fixed_window 5/s").build().unwrap();
    let alice = users.limiter("alice");
    let all = store.limiter("alice").limit("calls", "fixed_window 5/s").build().unwrap();
    let any = [AnyLimiter::from(alice.clone()), all.clone().into()];
    let texts = [
        format!("{users:?}"),
        format!("{:?}", AnyKeyed::from(users.clone())),
        format!("{alice:?}"),
        format!("{all:?}"),
        format!("{any:?}"),
    ];
    for text in &texts {
        assert!(!text.contains("alice") && !text.contains("hunter2"), "{text}");
    }
    assert!(texts[0].contains("calls: fixed_window 5/s") && texts[0].contains("len: 1"), "{}", texts[0]);
    assert!(texts[2].contains("calls: fixed_window 5/s"), "{}", texts[2]);
}

/// It accepted any name.
#[test]
fn a_refund_names_a_limit() {
    let store = Store::open("redis+unix:///nowhere/s").unwrap();
    let limiter = store.limiter("all").limit("calls", "fixed_window 5/s").build().unwrap();
    let in_use = store.counting("jobs", 5).build().unwrap();
    for (limiter, name) in [(AnyLimiter::from(limiter), "calls"), (in_use.into(), "limit")] {
        assert_eq!(limiter.refund([(name, 1)]), Ok(()));
        let wrong = limiter.refund([("cals", 1)]);
        assert!(matches!(wrong, Err(AllRefusal::NoMember { .. })), "{wrong:?}");
    }
}
