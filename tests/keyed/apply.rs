//! Configurations applied to all keys.

use std::time::Duration;

use tidegate::{AnyPolicy, ConfigError, Keep, KeyedRateLimiter, ManualClock, PolicyConfig, Refusal};

type Keys = KeyedRateLimiter<u64, AnyPolicy, ManualClock>;

fn config(line: &str) -> PolicyConfig {
    line.parse().expect("a configuration")
}

#[test]
fn all_keys_get_the_terms_of_a_configuration() -> Result<(), Box<dyn std::error::Error>> {
    for (from, to, count, nothing) in [
        ("token_bucket 5/s burst 10", "token_bucket 7/s burst 20", 6, 20),
        ("fixed_window 10/min at_wall_clock 10s", "fixed_window 20/min at_wall_clock 10s", 16, 20),
        ("leaky_bucket 1/s nodelay 9", "leaky_bucket 2/s nodelay 19 max_wait 3s", 6, 20),
        ("sliding_log 10/min with_capacity 30", "sliding_log 20/min with_capacity 30", 16, 20),
    ] {
        let keys: Keys = KeyedRateLimiter::with_clock(from.parse()?, 100, ManualClock::new());
        for key in 0..10 {
            keys.try_acquire_many(&key, 4)?;
        }
        keys.apply_all(&config(to), Keep::Count)?;
        assert_eq!(keys.policy().config(), config(to));
        assert!((0..10).all(|key| keys.status(&key).available == count), "{from}");
        assert_eq!(keys.status(&77).available, 20, "{from}");
        keys.apply_all(&config(to), Keep::Nothing)?;
        assert!((0..10).all(|key| keys.status(&key).available == nothing), "{from}");
    }
    Ok(())
}

#[test]
fn what_no_change_leads_to_changes_nothing() -> Result<(), Box<dyn std::error::Error>> {
    let clock = ManualClock::new();
    let keys: Keys = KeyedRateLimiter::with_clock("token_bucket 5/s burst 10".parse()?, 100, clock.clone());
    keys.try_acquire_many(&1, 10)?;
    for line in [
        "fixed_window 5/s",
        "token_bucket 5/s burst 10 tolerance 1s",
        "token_bucket 5/s burst 10 interval_refill",
        "token_bucket 5/s burst 10 start_with 3",
    ] {
        let error = keys.apply_all(&config(line), Keep::Nothing).expect_err("no change of terms leads to it");
        let told =
            format!("cannot change token_bucket 5/s burst 10 to {line} in place; create a new limiter");
        assert_eq!(error.to_string(), told);
    }
    let error = keys.apply_all(&config("token_bucket 1/d burst 10000"), Keep::Nothing);
    assert!(matches!(error, Err(ConfigError::Number(_))), "{error:?}");
    let retry_after = Duration::from_millis(200).into();
    assert_eq!(keys.try_acquire(&1).map(drop), Err(Refusal::Limited { retry_after }));
    Ok(())
}

/// The policy of a key may become another kind, which its state in the table cannot have. So the
/// key keeps its limiter.
#[test]
fn a_key_with_another_kind_of_policy_keeps_it() -> Result<(), Box<dyn std::error::Error>> {
    let clock = ManualClock::new();
    let keys: Keys = KeyedRateLimiter::with_clock("token_bucket 1/s burst 1".parse()?, 10, clock.clone());
    keys.limiter(&1)?.apply(&config("fixed_window 2/min"), Keep::Nothing)?;
    clock.advance(Duration::from_secs(3600));
    keys.sweep();
    keys.apply_all(&config("token_bucket 1/s burst 5"), Keep::Count)?;
    assert_eq!([1, 2].map(|key| keys.status(&key).limit), [2, 5]);
    assert_eq!([1, 1, 1].map(|key| keys.try_acquire(&key).is_ok()), [true, true, false]);
    assert!(keys.remove(&1));
    assert_eq!(keys.status(&1).limit, 5);
    Ok(())
}
