//! Policies from configurations (text, struct and serde), and the errors for bad ones.

use proptest::option;
use proptest::prelude::*;
use std::time::Duration;
use tidegate::policy::{AnyPolicy, ConfigError, Policy, PolicyConfig};
use tidegate::{
    Both, Change, DenyAll, Keep, LeakyBucket, ManualClock, Nanos, Rate, RateLimiter, Refusal, SlidingWindow,
    TokenBucket,
};

fn told(text: &str) -> String {
    text.parse::<AnyPolicy>().map_or_else(|error| error.to_string(), |policy| policy.to_string())
}

#[test]
fn a_policy_in_rust_becomes_its_configuration() {
    let minute = Rate::new(100, Duration::from_secs(60)).expect("a rate");
    let configs: [(PolicyConfig, &str); 4] = [
        (TokenBucket::new(Rate::per_second(5), 10).into(), "token_bucket 5/s burst 10"),
        (SlidingWindow::new(minute, 6).into(), "sliding_window 100/min cells 6"),
        (LeakyBucket::new(Rate::per_second(5)).nodelay(3).into(), "leaky_bucket 5/s nodelay 3"),
        (DenyAll.into(), "deny_all"),
    ];
    for (config, line) in configs {
        assert_eq!(config, line.parse().expect("a configuration"));
    }
}

#[test]
fn every_kind_is_made_from_a_line() {
    for text in [
        "smooth_bursty 5/s max_burst 2s start_full",
        "smooth_warming_up 5/s warm_up 3s cold_factor 4.5 start_warm cool_at_once",
        "token_bucket 100/min burst 20 start_with 5 interval_refill tolerance 10ms",
        "token_bucket 100/min burst 20 at_wall_clock 0s",
        // With its tolerance, a full bucket has 25.
        "token_bucket 1/s burst 20 start_with 20 tolerance 5s",
        "leaky_bucket 10/s nodelay 3 capacity 5",
        "leaky_bucket 10/s max_wait 500ms",
        "fixed_window 100/min from_first_grant",
        "fixed_window 100/d at_wall_clock 8h",
        "sliding_window 100/min cells 6",
        "sliding_estimate 100/min",
        "sliding_log 5000/h with_capacity 10000",
        "unlimited",
        "deny_all",
    ] {
        assert_eq!(told(text), text);
        assert_eq!(text.parse::<PolicyConfig>().map(|config| config.to_string()), Ok(text.to_owned()));
    }
}

#[test]
fn the_error_of_a_bad_configuration_says_what_to_write() {
    for (text, error) in [
        (
            "policy 5/s",
            "\"policy\" is not a policy: there are only smooth_bursty, smooth_warming_up, token_bucket, leaky_bucket, \
             fixed_window, sliding_window, sliding_estimate, sliding_log, unlimited and deny_all",
        ),
        ("gcra 5/s", "\"gcra\" is not a policy: write token_bucket"),
        ("paced 5/s", "\"paced\" is not a policy: write smooth_bursty, and max_burst 0s behind its rate"),
        ("100/s", "100/s: write token_bucket 100/s burst 20"),
        ("2.5/min burst 5", "2.5/min: write token_bucket 2.5/min burst 5"),
        ("TokenBucket 5/s burst 5", "\"TokenBucket\" is not a policy: write token_bucket"),
        ("token-bukcet 5/s burst 5", "\"token-bukcet\" is not a policy: write token_bucket"),
        ("sliding_windows 5/s", "\"sliding_windows\" is not a policy: write sliding_window"),
        ("token_bucket", "token_bucket needs a rate, such as 100/s"),
        ("token_bucket rate 5/s burst 5", "rate: write the rate first, such as token_bucket 100/s"),
        ("token_bucket burst 5 5/s", "burst: write the rate first, such as token_bucket 100/s"),
        ("token_bucket 5/sec burst 5", "\"5/sec\" is not a rate: write 5/s"),
        ("token_bucket 10 per second burst 5", "\"10 per second\" is not a rate: write 10/s"),
        ("token_bucket 1k/s burst 5", "\"1k/s\" is not a rate: write 1000/s"),
        ("token_bucket 5 burst 5", "\"5\" is not a rate: write 5/s, 5/min or with another period"),
        (
            "token_bucket 1e400/s burst 5",
            "rate \"1e400/s\": inf permits are not a finite number; the rate without a limit is `unlimited`",
        ),
        ("token_bucket 0/s burst 5", "rate 0/s is not above zero; the rate without permits is `zero`"),
        (
            "token_bucket 5/40000d burst 5",
            "rate \"5/40000d\": period 3456000000s is not between 1ns and 36.5 years",
        ),
        ("token_bucket 5/s burst=5", "burst=5: write burst 5"),
        ("token_bucket 5/s interval_refill=true burst 5", "interval_refill=true: write interval_refill"),
        ("token_bucket 5/s interval_refill true burst 5", "true: write interval_refill without true"),
        ("token_bucket 5/s interval_refill false burst 5", "false: write no interval_refill"),
        (
            "token_bucket 5/s burst 5 in_steps",
            "in_steps: token_bucket has only burst, start_with, interval_refill, at_wall_clock and tolerance; write \
             interval_refill",
        ),
        (
            "token_bucket 5/s burst 5 start_empty",
            "start_empty: token_bucket has only burst, start_with, interval_refill, at_wall_clock and tolerance; \
             write start_with 0",
        ),
        (
            "token_bucket 5/s burst 5 tolerence 1s",
            "tolerence: token_bucket has only burst, start_with, interval_refill, at_wall_clock and tolerance; write \
             tolerance",
        ),
        ("token_bucket 5/s", "token_bucket needs burst, such as token_bucket 10/s burst 20"),
        ("token_bucket 1 0/s burst 20", "1 0/s: write 10/s, without a space"),
        ("token_bucket 10 /sec burst 20", "\"10 /sec\" is not a rate: write 10/s"),
        (
            "token_bucket 10/ burst 20",
            "\"10/\" is not a rate: write permits/period with s, min, h, d, ms, us or ns, such as 5/s, 2.5/min or \
             1000/100ms, or unlimited or zero",
        ),
        (
            "token_bucket 10/s /s burst 20",
            "/s: token_bucket has only burst, start_with, interval_refill, at_wall_clock and tolerance",
        ),
        ("token_bucket 5/s burst five", "burst \"five\" is not a whole number from 1 to 4294967295"),
        ("token_bucket 5/s burst -1", "burst \"-1\" is not a whole number from 1 to 4294967295"),
        (
            "token_bucket 5/s burst 5 start_with -1",
            "start_with \"-1\" is not a whole number from 0 to 4294967295",
        ),
        ("token_bucket 5/s burst 0", "burst \"0\" is not above 0; a policy that grants nothing is deny_all"),
        ("token_bucket 5/s burst", "burst needs a value"),
        ("token_bucket 5/s burst 5 burst 6", "burst is set twice"),
        (
            "fixed_window 5/s from_first_grant at_wall_clock 0s",
            "from_first_grant and at_wall_clock exclude each other",
        ),
        ("token_bucket 5/s burst 5 start_with 6", "start_with 6 exceeds the burst of 5"),
        (
            "token_bucket 1/d burst 1000",
            "a burst of 1000 at 1/d takes longer to fill than the limit of 2.28 years",
        ),
        (
            "token_bucket 1/s burst 1 tolerance 1000d",
            "a burst of 1 at 1/s with a tolerance of 2.74 years takes longer to fill than the limit of 2.28 \
             years",
        ),
        (
            "leaky_bucket 5/s max_wait soon",
            "max_wait \"soon\" is not a whole number and a unit, such as 500ms, 5s, 1min or 8h",
        ),
        (
            "leaky_bucket 5/s max_wait 999999999d",
            "max_wait \"999999999d\" is not a whole number and a unit, at most 213503d",
        ),
        (
            "leaky_bucket 5/s max_wait 1.5s",
            "max_wait \"1.5s\" is not a whole number and a unit: write 1500ms",
        ),
        ("leaky_bucket 5/s max_wait 5sec", "max_wait \"5sec\" is not a whole number and a unit: write 5s"),
        (
            "leaky_bucket 5/s max_wait 5",
            "max_wait \"5\" is not a whole number and a unit: write 5s, 5ms or another unit",
        ),
        ("leaky_bucket 5/s capacity 5 max_wait 1s", "max_wait and capacity exclude each other"),
        (
            "leaky_bucket 5/s burst 5",
            "burst: leaky_bucket has only nodelay, capacity and max_wait; write capacity or nodelay",
        ),
        (
            "smooth_bursty 5/s burst 5",
            "burst: smooth_bursty has only max_burst and start_full; write max_burst",
        ),
        ("sliding_window 100/min", "sliding_window needs cells, such as sliding_window 10/s cells 10"),
        (
            "sliding_window 100/min segments 6",
            "segments: sliding_window has only cells and at_wall_clock; write cells",
        ),
        ("sliding_window 100/min cells 0", "a window of 0 cells, at least 1 is needed"),
        ("sliding_log 5000/h burst 20", "burst: sliding_log has only with_capacity"),
        ("sliding_log 99999999/h", "a log of 99999999 permits is longer than the limit of 16777215"),
        (
            "fixed_window 0.3333333333333/s",
            "rate 0.3333333333333/s is not a whole number of permits, at most 4294967295, in a whole number of nanoseconds: write 1/3s",
        ),
        (
            "fixed_window 4294967296/s",
            "rate 4294967296/s is not a whole number of permits, at most 4294967295, in a whole number of nanoseconds",
        ),
        ("smooth_bursty 5/s color red", "color: smooth_bursty has only max_burst and start_full"),
        (
            "smooth_warming_up 5/s",
            "smooth_warming_up needs warm_up, such as smooth_warming_up 10/s warm_up 5s",
        ),
        ("unlimited 5/s", "5/s: unlimited has no fields"),
    ] {
        assert_eq!(told(text), error, "{text}");
    }
}

#[test]
fn the_error_of_a_bad_pair_says_what_to_write() {
    let one = "token_bucket 5/s burst 5 and fixed_window 9/s";
    assert_eq!(told(one), "and: write one policy; two are read as a Both, or are two limits of one limiter");
    assert_eq!(
        told("fixed_window 10/s and"),
        "and: write one policy; two are read as a Both, or are two limits of one limiter"
    );
    let form = "write two policies, such as token_bucket 5/s burst 10 and fixed_window 100/min";
    for (text, error) in [
        ("unlimited", format!("unlimited: {form}")),
        ("unlimited and", format!("unlimited and: {form}")),
        ("and unlimited", format!("and unlimited: {form}")),
        ("", format!(": {form}")),
        (
            "unlimited and unlimited and unlimited",
            "and: write one policy; two are read as a Both, or are two limits of one limiter".into(),
        ),
        ("gcra 5/s and unlimited", "\"gcra\" is not a policy: write token_bucket".into()),
        ("unlimited and fixed_window 5 minutes", told("fixed_window 5 minutes")),
    ] {
        let pair = text.parse::<Both<AnyPolicy, AnyPolicy>>();
        assert_eq!(pair.expect_err("bad").to_string(), error, "{text}");
    }
}

#[cfg(feature = "serde")]
#[test]
fn a_pair_is_read_from_a_line_or_a_list() -> Result<(), serde_json::Error> {
    type Pair = Both<AnyPolicy, AnyPolicy>;
    let line = "token_bucket 5/s burst 10 and fixed_window 100/min";
    let list =
        r#"[{"policy":"token_bucket","rate":"5/s","burst":10},{"policy":"fixed_window","rate":"100/min"}]"#;
    let mixed = r#"["token_bucket 5/s burst 10",{"policy":"fixed_window","rate":"100/min"}]"#;
    for json in [&format!("{line:?}"), list, mixed] {
        let pair: Pair = serde_json::from_str(json)?;
        assert_eq!(pair.to_string(), line);
        assert_eq!(serde_json::to_string(&pair)?, list);
    }
    for (json, part) in [
        ("5", "expected two policies: a line, such as"),
        (r#"["unlimited"]"#, "invalid length 1, expected two policies"),
        (r#"["unlimited","unlimited","unlimited"]"#, "invalid length 3, expected two policies"),
        (r#"["unlimited","gcra"]"#, "\"gcra\" is not a policy: write token_bucket"),
    ] {
        let error = serde_json::from_str::<Pair>(json).expect_err("bad").to_string();
        assert!(error.contains(part), "{error}");
    }
    Ok(())
}

#[test]
fn other_spellings_are_read() {
    for (text, line) in [
        ("token_bucket 10 / s burst 5", "token_bucket 10/s burst 5"),
        ("token_bucket 10 /s burst 5", "token_bucket 10/s burst 5"),
        ("token_bucket 10/ s burst 5", "token_bucket 10/s burst 5"),
        ("fixed_window 10\t/ 5min from_first_grant", "fixed_window 10/5min from_first_grant"),
        ("sliding_log 10/ s", "sliding_log 10/s"),
        ("token_bucket 5/m burst 5", "token_bucket 5/min burst 5"),
        ("fixed_window 5/s at_wall_clock 0", "fixed_window 5/s at_wall_clock 0s"),
        ("fixed_window 5/h at_wall_clock 1m", "fixed_window 5/h at_wall_clock 1min"),
    ] {
        assert_eq!(text.parse::<PolicyConfig>().map(|config| config.to_string()), Ok(line.to_owned()));
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

/// A cold factor that a configuration may contain by mistake is refused with its value, and equals
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

/// Returns a configuration whose cold factor a program sets.
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
    /// A line that parses is written as a line that parses to an equal configuration, and making
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

    /// With its feature `arbitrary_precision`, `serde_json` passes a number as a map like this one.
    #[test]
    fn a_number_may_come_as_a_map_of_its_text() -> Result<(), serde_json::Error> {
        let text = r#"{"policy":"token_bucket","rate":"5/s","burst":{"$serde_json::private::Number":"5"}}"#;
        assert_eq!(serde_json::from_str::<PolicyConfig>(text)?.to_string(), "token_bucket 5/s burst 5");
        Ok(())
    }

    /// Bug: JSON has no such numbers. They were written as null, and null was read as the default.
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
    fn a_map_may_be_a_part_of_a_larger_one() -> Result<(), serde_json::Error> {
        #[derive(Debug, serde::Deserialize, serde::Serialize)]
        struct Plan {
            name: String,
            #[serde(flatten)]
            policy: PolicyConfig,
            seats: u32,
        }

        let text = r#"{"name":"free","policy":"leaky_bucket","rate":"5/s","capacity":5,"seats":3}"#;
        let plan: Plan = serde_json::from_str(text)?;
        assert_eq!(plan.policy.to_string(), "leaky_bucket 5/s capacity 5");
        assert_eq!((plan.name.as_str(), plan.seats), ("free", 3));
        assert_eq!(serde_json::to_string(&plan)?, text);
        let error = serde_json::from_str::<Plan>(&text.replace("capacity", "capcity")).expect_err("a typo");
        let told = "capcity: leaky_bucket has only nodelay, capacity and max_wait; write capacity";
        assert!(error.to_string().starts_with(told), "{error}");
        Ok(())
    }

    #[test]
    fn a_map_that_is_a_part_of_a_larger_one_names_what_neither_has() {
        #[derive(Debug, serde::Deserialize)]
        struct Plan {
            #[serde(flatten)]
            policy: AnyPolicy,
            #[serde(flatten)]
            more: std::collections::BTreeMap<String, serde_json::Value>,
        }

        let text = r#"{"policy":"leaky_bucket","rate":"5/s","capcity":5}"#;
        let plan = serde_json::from_str::<Plan>(text).map(|plan| (plan.policy.config(), plan.more));
        let error = plan.expect_err("a typo").to_string();
        assert!(error.starts_with("capcity: leaky_bucket has only"), "{error}");
    }

    #[test]
    fn a_line_may_stand_for_a_map() -> Result<(), serde_json::Error> {
        let line = r#""token_bucket 5/s burst 10""#;
        let config: PolicyConfig = serde_json::from_str(line)?;
        assert_eq!(config.to_string(), "token_bucket 5/s burst 10");
        let policy: AnyPolicy = serde_json::from_str(line)?;
        assert_eq!(serde_json::to_string(&policy)?, r#"{"policy":"token_bucket","rate":"5/s","burst":10}"#);
        Ok(())
    }

    #[test]
    fn a_policy_is_read_at_once() {
        let policy = |text| serde_json::from_str::<AnyPolicy>(text).map(|policy| policy.rate().to_string());
        assert_eq!(policy(r#"{"policy":"sliding_log","rate":"5/s"}"#).ok().as_deref(), Some("5/s"));
        let error = policy(r#"{"policy":"token_bucket","rate":"5/s"}"#).expect_err("no burst");
        assert!(error.to_string().starts_with("token_bucket needs burst"), "{error}");
    }

    #[test]
    fn the_error_of_bad_json_names_the_value() {
        for (text, part) in [
            (r#"{"policy":"policy"}"#, "\"policy\" is not a policy: there are only smooth_bursty,"),
            (r#"{"policy":"gcra"}"#, "\"gcra\" is not a policy: write token_bucket"),
            (
                r#"{"policy":"token_bucket 5/s burst 5"}"#,
                "the field `policy` is the name of a policy; a line stands in place of the map",
            ),
            (
                r#"{"rate":"5/s"}"#,
                "a policy needs the field `policy`, one of smooth_bursty, smooth_warming_up, token_bucket,",
            ),
            (r#""token_bucket 5/s burst=5""#, "burst=5: write burst 5"),
            (r#"5"#, "expected a policy: a line, such as \"token_bucket 100/s burst 20\", or a map"),
            (
                r#"{"policy":"sliding_log","rate":5}"#,
                "\"5\" is not a rate: write 5/s, 5/min or with another period, as a string",
            ),
            (
                r#"{"policy":"token_bucket","rate":"5/s","burst":5,"tolerance":1}"#,
                "tolerance \"1\" is not a whole number and a unit: write 1s, 1ms or another unit, as a string",
            ),
            (r#"{"policy":"token_bucket","rate":"5/s","burst":0}"#, "burst \"0\" is not above 0;"),
            (
                r#"{"policy":"token_bucket","rate":"5/s","tolerence":"1s"}"#,
                "tolerence: token_bucket has only burst, start_with, interval_refill, at_wall_clock and tolerance; \
                 write tolerance",
            ),
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
            let policy = serde_json::from_str::<PolicyConfig>(text)
                .and_then(|config| AnyPolicy::try_from(config).map_err(serde::de::Error::custom));
            let error = policy.expect_err("bad").to_string();
            assert!(error.contains(part), "{error}");
        }
    }

    #[test]
    fn the_error_of_a_rate_that_is_no_string_says_how_to_write_one() {
        for (text, error) in [
            ("5", "invalid type: integer `5`, expected a rate as a string, such as \"5/s\""),
            ("true", "invalid type: boolean `true`, expected a rate as a string, such as \"5/s\""),
            ("\"5\"", "\"5\" is not a rate: write 5/s, 5/min or with another period"),
        ] {
            let told = serde_json::from_str::<Rate>(text).expect_err("no rate").to_string();
            assert!(told.starts_with(error), "{told}");
        }
    }
}

/// Such a bucket grants nothing. Its configuration had a burst of 1, or one that was refused.
#[test]
fn a_bucket_without_a_burst_is_written_as_one_that_grants_nothing() {
    let changed = AnyPolicy::from(TokenBucket::new(Rate::per_second(5), 10));
    let limiter = RateLimiter::with_clock(changed, ManualClock::new());
    limiter.change(Change::only_burst(0)).expect("a burst");
    let policies = [TokenBucket::new(Rate::per_second(5), 0), TokenBucket::new(Rate::ZERO, 0)];
    for config in policies.map(PolicyConfig::from).into_iter().chain([limiter.policy().config()]) {
        assert_eq!(config.to_string(), "deny_all");
        limiter.apply(&config, Keep::Count).expect("a policy");
        assert!(limiter.try_acquire().is_err());
    }
    // At this rate it grants everything.
    assert_eq!(PolicyConfig::from(TokenBucket::new(Rate::UNLIMITED, 0)).to_string(), "unlimited");
}
