//! Policies from configurations: text, struct and serde; and the errors for bad ones.

use proptest::option;
use proptest::prelude::*;
use std::time::Duration;
use tidegate::policy::{AnyPolicy, ConfigError, Policy, PolicyConfig};
use tidegate::{Nanos, Rate, Refusal};

fn told(text: &str) -> String {
    text.parse::<AnyPolicy>().map_or_else(|error| error.to_string(), |policy| format!("{policy:?}"))
}

#[test]
fn every_kind_is_made_from_a_line() {
    for (text, policy) in [
        ("smooth_bursty 5/s max_burst 2s start_full", "SmoothBursty"),
        ("smooth_warming_up 5/s warm_up 3s cold_factor 4.5 start_warm cool_at_once", "SmoothWarmingUp"),
        ("token_bucket 100/min burst 20 start_with 5 interval_refill tolerance 10ms", "TokenBucket"),
        ("token_bucket 100/min burst 20 at_wall_clock 0s", "TokenBucket"),
        ("leaky_bucket 10/s nodelay 3 capacity 5", "LeakyBucket"),
        ("leaky_bucket 10/s max_wait 500ms", "LeakyBucket"),
        ("fixed_window 100/min from_first_grant", "FixedWindow"),
        ("fixed_window 100/d at_wall_clock 8h", "FixedWindow"),
        ("sliding_window 100/min cells 6", "SlidingWindow"),
        ("sliding_estimate 100/min", "SlidingEstimate"),
        ("sliding_log 5000/h with_capacity 10000", "SlidingLog"),
        ("unlimited", "Unlimited"),
        ("deny_all", "DenyAll"),
    ] {
        assert!(told(text).starts_with(policy), "{}", told(text));
        assert_eq!(text.parse::<PolicyConfig>().map(|config| config.to_string()), Ok(text.to_owned()));
    }
}

#[test]
fn a_bad_configuration_names_the_field_the_value_and_what_is_allowed() {
    for (text, error) in [
        (
            "bucket 5/s",
            "\"bucket\" is not a policy: there are only smooth_bursty, smooth_warming_up, token_bucket, leaky_bucket, \
             fixed_window, sliding_window, sliding_estimate, sliding_log, unlimited and deny_all",
        ),
        ("token_bucket", "token_bucket needs a rate, such as 100/s"),
        ("token_bucket rate 5/s burst 5", "rate: write the rate first, such as token_bucket 100/s"),
        ("token_bucket burst 5 5/s", "burst: write the rate first, such as token_bucket 100/s"),
        ("token_bucket 5/s burst=5", "burst=5: write burst 5"),
        ("token_bucket 5/s interval_refill=true burst 5", "interval_refill=true: write interval_refill"),
        ("token_bucket 5/s interval_refill true burst 5", "true: write interval_refill without true"),
        ("token_bucket 5/s interval_refill false burst 5", "false: write no interval_refill"),
        ("token_bucket 5/s", "token_bucket needs burst"),
        ("token_bucket 0/s burst 5", "rate 0/s is not above zero"),
        ("token_bucket 5/s burst -1", "burst \"-1\" is not a whole number from 0 to 4294967295"),
        ("token_bucket 5/s burst", "burst needs a value"),
        ("token_bucket 5/s burst 5 burst 6", "burst is set twice"),
        (
            "fixed_window 5/s from_first_grant at_wall_clock 0s",
            "from_first_grant and at_wall_clock exclude each other",
        ),
        ("token_bucket 5/s burst 5 start_with 6", "a stock of 6 permits is more than the burst of 5"),
        (
            "token_bucket 1/d burst 1000",
            "a burst of 1000 at 1/d takes longer to fill than the limit of 2.28 years",
        ),
        (
            "leaky_bucket 5/s max_wait soon",
            "max_wait \"soon\" is not a whole number and a unit, such as 500ms, 5s, 1min or 8h",
        ),
        ("leaky_bucket 5/s capacity 5 max_wait 1s", "max_wait and capacity exclude each other"),
        ("sliding_window 100/min", "sliding_window needs cells"),
        ("sliding_window 100/min cells 0", "a window of 0 cells, at least 1 is needed"),
        ("sliding_log 5000/h burst 20", "burst: sliding_log has only with_capacity"),
        ("sliding_log 99999999/h", "a log of 99999999 permits is longer than the limit of 16777215"),
        (
            "fixed_window 0.333333333333333333/s",
            "0.3333333333333333/s is not a whole number of permits, at most 4294967295, in a whole number of nanoseconds",
        ),
        ("smooth_bursty 5/s color red", "color: smooth_bursty has only max_burst and start_full"),
        ("smooth_warming_up 5/s", "smooth_warming_up needs warm_up"),
        ("unlimited 5/s", "5/s: unlimited has no fields"),
    ] {
        assert_eq!(told(text), error, "{text}");
    }
}

#[test]
fn a_state_of_another_policy_is_never_free() -> Result<(), ConfigError> {
    let bucket: AnyPolicy = "token_bucket 5/s burst 5".parse()?;
    let log: AnyPolicy = "sliding_log 5/s".parse()?;
    let state = log.start(Nanos::ZERO);
    let refusal = bucket.try_acquire(&state, Nanos::ZERO, 1).map(drop);
    assert_eq!(refusal, Err(Refusal::Limited { retry_after: Nanos::MAX }));
    Ok(())
}

/// A cold factor as a configuration may have it by mistake: refused with its value, and equal to
/// itself.
#[test]
fn a_number_that_is_none_is_refused_by_each_way_in() {
    for factor in
        [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 0.0, -0.0, 0.999, -3.0, 1e7, f64::MAX, f64::MIN_POSITIVE]
    {
        let config = with_cold_factor(factor);
        assert_eq!(config, config.clone(), "{factor}");
        let error = AnyPolicy::try_from(config.clone()).expect_err("out of range").to_string();
        assert_eq!(error, format!("cold factor {factor} is not between 1 and 1000000"));
        let text = config.to_string();
        if factor.is_finite() {
            assert_eq!(text.parse(), Ok(config));
        } else {
            let error = text.parse::<PolicyConfig>().expect_err("no number").to_string();
            assert_eq!(error, format!("cold_factor \"{factor}\" is not a number from 1 to 1000000"));
        }
    }
}

/// A configuration with a cold factor set by a program.
fn with_cold_factor(factor: f64) -> PolicyConfig {
    let mut config = "smooth_warming_up 5/s warm_up 1s".parse().expect("a configuration");
    if let PolicyConfig::SmoothWarmingUp { cold_factor, .. } = &mut config {
        *cold_factor = Some(factor);
    }
    config
}

fn some_span() -> impl Strategy<Value = Duration> {
    any::<u32>().prop_map(|nanos| Duration::from_nanos(nanos.into()))
}

/// A field of a line with its value, or nothing.
fn field<T: ToString>(name: &str, value: Option<T>) -> String {
    value.map_or_else(String::new, |value| format!(" {name} {}", value.to_string()))
}

proptest! {
    /// A line that is read is written as a line that reads as an equal configuration, and making
    /// the policy never panics.
    #[test]
    fn a_configuration_goes_round(
        kind in 0..8usize,
        permits in 1u64..,
        seconds in 1u64..1_000_000,
        max_burst in option::of(some_span()),
        start_full: bool,
        burst in option::of(any::<u32>()),
        capacity in option::of(any::<u32>()),
        at_wall_clock in option::of(some_span()),
        cells in option::of(0..100u16),
    ) {
        let nanos = |span: Duration| format!("{}ns", span.as_nanos());
        let (name, fields) = [
            ("smooth_bursty", field("max_burst", max_burst.map(nanos)) + if start_full { " start_full" } else { "" }),
            ("smooth_warming_up", field("warm_up", max_burst.map(nanos))),
            ("token_bucket", field("burst", burst) + &field("at_wall_clock", at_wall_clock.map(nanos))),
            ("leaky_bucket", field("capacity", capacity) + &field("max_wait", max_burst.map(nanos))),
            ("fixed_window", field("at_wall_clock", at_wall_clock.map(nanos))),
            ("sliding_window", field("cells", cells) + &field("at_wall_clock", at_wall_clock.map(nanos))),
            ("sliding_estimate", field("at_wall_clock", at_wall_clock.map(nanos))),
            ("sliding_log", field("with_capacity", capacity)),
        ][kind].clone();
        let rate = Rate::new(permits, Duration::from_secs(seconds))?;
        match format!("{name} {rate}{fields}").parse::<PolicyConfig>() {
            Ok(config) => {
                prop_assert_eq!(config.to_string().parse(), Ok(config.clone()));
                let _ = AnyPolicy::try_from(config);
            }
            Err(error) => prop_assert!(matches!(error, ConfigError::Missing { .. }), "{}", error),
        }
    }
}

#[cfg(feature = "serde")]
mod with_serde {
    use super::*;

    #[test]
    fn a_configuration_is_read_from_and_written_to_json() -> Result<(), serde_json::Error> {
        let text = r#"{"policy":"token_bucket","rate":"100/s","burst":20,"tolerance":"10ms"}"#;
        let config: PolicyConfig = serde_json::from_str(text)?;
        assert_eq!(config.to_string(), "token_bucket 100/s burst 20 tolerance 10ms");
        assert_eq!(serde_json::to_string(&config)?, text);
        for text in [
            r#"{"policy":"sliding_log","rate":"5/h"}"#,
            r#"{"policy":"smooth_bursty","rate":"2.5/s","max_burst":"3s","start_full":true}"#,
            r#"{"policy":"smooth_warming_up","rate":"5/s","warm_up":"3s","cold_factor":4.5}"#,
            r#"{"policy":"deny_all"}"#,
        ] {
            assert_eq!(serde_json::to_string(&serde_json::from_str::<PolicyConfig>(text)?)?, text);
        }
        Ok(())
    }

    #[test]
    fn a_field_that_is_null_or_false_is_not_set() -> Result<(), serde_json::Error> {
        let text = r#"{"rate":"5/s","start_full":false,"max_burst":null,"policy":"smooth_bursty"}"#;
        let config: PolicyConfig = serde_json::from_str(text)?;
        assert_eq!(config.to_string(), "smooth_bursty 5/s");
        Ok(())
    }

    /// With its feature `arbitrary_precision`, `serde_json` passes a number as such a map.
    #[test]
    fn a_number_may_come_as_a_map_of_its_text() -> Result<(), serde_json::Error> {
        let text = r#"{"policy":"token_bucket","rate":"5/s","burst":{"$serde_json::private::Number":"5"}}"#;
        assert_eq!(serde_json::from_str::<PolicyConfig>(text)?.to_string(), "token_bucket 5/s burst 5");
        Ok(())
    }

    /// JSON has no such numbers: they were written as nothing, and nothing was read as the default.
    #[test]
    fn a_number_that_json_does_not_have_is_not_written() -> Result<(), serde_json::Error> {
        for factor in
            [1.0, 3.0, 1e6, 1.0 + f64::EPSILON, -0.0, 0.1, f64::MAX, f64::MIN_POSITIVE, f64::from_bits(1)]
        {
            let config = with_cold_factor(factor);
            let text = serde_json::to_string(&config)?;
            assert_eq!(serde_json::from_str::<PolicyConfig>(&text)?, config);
        }
        for factor in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
            let config = with_cold_factor(factor);
            let error = serde_json::to_string(&config).expect_err("no number").to_string();
            assert_eq!(error, format!("cold_factor {factor} is not finite"));
        }
        Ok(())
    }

    #[test]
    fn a_forgotten_rate_is_not_unlimited() {
        let config = serde_json::from_str::<PolicyConfig>(r#"{"policy":"token_bucket","burst":20}"#);
        let error = config.expect_err("no rate").to_string();
        assert!(error.starts_with("token_bucket needs a rate, such as 100/s"), "{error}");
    }

    #[test]
    fn a_policy_is_read_at_once() {
        let policy = |text| serde_json::from_str::<AnyPolicy>(text).map(|policy| policy.rate().to_string());
        assert_eq!(policy(r#"{"policy":"sliding_log","rate":"5/s"}"#).ok().as_deref(), Some("5/s"));
        let error = policy(r#"{"policy":"token_bucket","rate":"5/s"}"#).expect_err("no burst");
        assert!(error.to_string().starts_with("token_bucket needs burst"), "{error}");
    }

    #[test]
    fn bad_json_is_told_with_the_value() {
        for (text, part) in [
            (r#"{"policy":"bucket"}"#, "\"bucket\" is not a policy: there are only smooth_bursty,"),
            (r#"{"rate":"5/s"}"#, "missing field `policy`"),
            (r#""token_bucket 5/s burst 5""#, "expected a policy: a map of its name as `policy`"),
            (r#"{"policy":"sliding_log","rate":5}"#, "\"5\" is not a rate"),
            (r#"{"policy":"token_bucket","rate":"5/s","burst":5,"burst":6}"#, "burst is set twice"),
            (r#"{"policy":"token_bucket","rate":"5/s","burst":5.0}"#, "burst \"5.0\" is not a whole number"),
            (
                r#"{"policy":"token_bucket","rate":"5/s","burst":{"a":"5"}}"#,
                "expected a string, a number, true or",
            ),
            (
                r#"{"policy":"smooth_bursty","rate":"5/s","start_full":1}"#,
                "start_full \"1\" is not true or false",
            ),
            (r#"{"policy":"token_bucket","rate":"0/s"}"#, "rate 0/s is not above zero"),
            (r#"{"policy":"token_bucket","rate":"5/s","bursts":1}"#, "bursts: token_bucket has only burst,"),
            (
                r#"{"policy":"leaky_bucket","rate":"5/s","max_wait":"soon"}"#,
                "max_wait \"soon\" is not a whole number and a unit",
            ),
        ] {
            let error = serde_json::from_str::<PolicyConfig>(text).expect_err("bad").to_string();
            assert!(error.contains(part), "{error}");
        }
    }
}
