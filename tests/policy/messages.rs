//! The messages that a new user meets, in one table. `tests/policy/config.rs` covers the messages
//! of all configurations.

use tidegate::policy::{AnyPolicy, PolicyConfig};
use tidegate::{Change, CountingLimit, FixedWindow, Nanos, Policy, Rate, RateError, Refusal};

const TOKEN_BUCKET: &str =
    "token_bucket has only burst, start_with, interval_refill, at_wall_clock and tolerance";

/// What a user writes, and the message it produces. `burst 5` stands for a bucket at 5/s.
fn messages() -> Vec<(&'static str, String, String)> {
    let rate = |text: &str| told(&text.parse::<Rate>());
    let line = |text: &str| told(&text.parse::<AnyPolicy>());
    let bucket = |rest: &str| line(&format!("token_bucket {rest}"));
    let only = |message: &str| message.replace("{only}", TOKEN_BUCKET);
    let (window, of_one) = (FixedWindow::new(Rate::per_minute(5)), CountingLimit::new(1));
    let _in_use = of_one.try_acquire();
    let mut rows = vec![
        ("5/sec", rate("5/sec"), "\"5/sec\" is not a rate: write 5/s".into()),
        ("10 per second", rate("10 per second"), "\"10 per second\" is not a rate: write 10/s".into()),
        ("1k/s", rate("1k/s"), "\"1k/s\" is not a rate: write 1000/s".into()),
        ("5", rate("5"), "\"5\" is not a rate: write 5/s, 5/min or with another period".into()),
        (
            "1e400/s",
            rate("1e400/s"),
            "rate \"1e400/s\": inf permits are not a finite number; the rate without a limit is `unlimited`"
                .into(),
        ),
        ("0/s", rate("0/s"), "rate 0/s is not above zero; the rate without permits is `zero`".into()),
        ("-1/s", rate("-1/s"), "rate -1/s is not above zero; the rate without permits is `zero`".into()),
        (
            "5/40000d",
            rate("5/40000d"),
            "rate \"5/40000d\": period 3456000000s is not between 1ns and 36.5 years".into(),
        ),
        ("token_bucket", line("token_bucket"), "token_bucket needs a rate, such as 100/s".into()),
        ("gcra 5/s", line("gcra 5/s"), "\"gcra\" is not a policy: write token_bucket".into()),
        (
            "TokenBucket 5/s",
            line("TokenBucket 5/s"),
            "\"TokenBucket\" is not a policy: write token_bucket".into(),
        ),
        ("burst=5", bucket("5/s burst=5"), "burst=5: write burst 5".into()),
        ("in_steps true", bucket("5/s burst 5 in_steps true"), only("in_steps: {only}; write interval_refill")),
        ("start_empty", bucket("5/s burst 5 start_empty"), only("start_empty: {only}; write start_with 0")),
        (
            "rate 5/s burst 5",
            bucket("rate 5/s burst 5"),
            "rate: write the rate first, such as token_bucket 100/s".into(),
        ),
        (
            "burst 5 5/s",
            bucket("burst 5 5/s"),
            "burst: write the rate first, such as token_bucket 100/s".into(),
        ),
        (
            "burst 0",
            bucket("5/s burst 0"),
            "burst \"0\" is not above 0; a policy that grants nothing is deny_all".into(),
        ),
        (
            "burst five",
            bucket("5/s burst five"),
            "burst \"five\" is not a whole number from 1 to 4294967295".into(),
        ),
        ("start_with 6", bucket("5/s burst 5 start_with 6"), "start_with 6 exceeds the burst of 5".into()),
        (
            "leaky_bucket burst 5",
            line("leaky_bucket 5/s burst 5"),
            "burst: leaky_bucket has only nodelay, capacity and max_wait; write capacity or nodelay".into(),
        ),
        (
            "fixed_window 0.3333333333333/s",
            line("fixed_window 0.3333333333333/s"),
            "rate 0.3333333333333/s is not a whole number of permits, at most 4294967295, in a whole number of nanoseconds: write 1/3s"
                .into(),
        ),
        (
            "cells 0",
            line("sliding_window 5/s cells 0"),
            "a window of 0 cells, at least 1 is needed".into(),
        ),
        (
            "a burst for a window",
            told(&window.change(&window.start(Nanos::ZERO), Nanos::ZERO, Change::rate(Rate::per_minute(5)).burst(9))),
            "a burst of 9 was given to fixed_window, which has no burst in permits".into(),
        ),
        (
            "2 of 1 permits in use",
            told(&of_one.try_acquire_many(2)),
            "2 permits requested, the limit is 1".into(),
        ),
        ("1 of 1 permits in use", told(&of_one.try_acquire()), "the only permit is in use".into()),
        (
            "a pause without end",
            Refusal::Paused { retry_after: Nanos::MAX }.to_string(),
            "paused until the pause is ended".into(),
        ),
    ];
    // Spellings that are accepted.
    for (text, read) in [("5/m", "5/min"), ("at_wall_clock 0", "0s"), ("at_wall_clock 1m", "1min")] {
        let told = match text.strip_prefix("at_wall_clock ") {
            None => text
                .parse::<Rate>()
                .map_or_else(|error: RateError| error.to_string(), |rate| rate.to_string()),
            Some(span) => {
                let config = format!("fixed_window 5/s at_wall_clock {span}").parse::<PolicyConfig>();
                let line = config.map_or_else(|error| error.to_string(), |config| config.to_string());
                line.replace("fixed_window 5/s at_wall_clock ", "")
            }
        };
        rows.push((text, told, read.into()));
    }
    #[cfg(feature = "keyed")]
    for (keys, message) in [
        (1, "no room for a new key, the only key is limited"),
        (2, "no room for a new key, all 2 keys are limited"),
    ] {
        rows.push(("keys", Refusal::TooManyKeys { limit: keys }.to_string(), message.into()));
    }
    #[cfg(feature = "serde")]
    for (toml, message) in [
        ("rate = 5", "\"5\" is not a rate: write 5/s, 5/min or with another period, as a string"),
        (
            "rate = '5/s'\nburst = 5\ntolerance = 1",
            "tolerance \"1\" is not a whole number and a unit: write 1s, 1ms or another unit, as a string",
        ),
        ("rate = '5/s'\nburst = 5\ntolerence = '1s'", "tolerence: {only}; write tolerance"),
    ] {
        let error = toml::from_str::<AnyPolicy>(&format!("policy = 'token_bucket'\n{toml}"));
        let error = error.expect_err("bad").message().to_owned();
        rows.push((toml, error, only(message)));
    }
    rows
}

fn told<T, E: ToString>(answer: &Result<T, E>) -> String {
    answer.as_ref().map_or_else(E::to_string, |_| "no error".into())
}

#[test]
fn a_message_says_what_to_write() {
    let wrong: Vec<_> = messages().into_iter().filter(|(_, told, expected)| told != expected).collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
}
