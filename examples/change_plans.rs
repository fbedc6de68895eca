//! An admin changes the limits of a running program by a TOML file. A change that cannot be applied
//! is refused with a message, and changes nothing.
//!
//! `cargo run --features serde --example change_plans`

use std::collections::BTreeMap;

use serde::Deserialize;
use tidegate::{AnyPolicy, Keep, PolicyConfig, RateLimiter};

#[derive(Deserialize)]
struct Plan {
    /// A text, or a table with its fields.
    limit: PolicyConfig,
}

type Plans = BTreeMap<String, Plan>;
type Limiters = BTreeMap<String, RateLimiter<AnyPolicy>>;

const START: &str = r#"
[free]
limit = "token_bucket 5/s burst 10"
[pro]
limit = { policy = "token_bucket", rate = "50/s", burst = 100, tolerance = "20ms" }
"#;

const CHANGES: [&str; 5] = [
    "",
    // Another burst, and another kind of policy. Used permits stay used.
    "[free]\nlimit = 'token_bucket 5/s burst 20'\n[pro]\nlimit = 'sliding_log 3000/min'",
    "[free]\nlimit = 'token_bucket 10 per second burst 20'",
    "[free]\nlimit = { policy = 'token_bucket', rate = '5/s', burst = 20, tolerence = '1s' }",
    // The first plan would be valid.
    "[free]\nlimit = 'token_bucket 9/s burst 9'\n[pro]\nlimit = 'token_bucket 1/d burst 5000'",
];

fn apply(limiters: &Limiters, text: &str) -> Result<(), Box<dyn std::error::Error>> {
    let plans = toml::from_str::<Plans>(text)?;
    // All plans are checked before the first one is changed.
    for (name, plan) in &plans {
        limiters.get(name).ok_or_else(|| format!("there is no plan {name:?}"))?;
        AnyPolicy::try_from(plan.limit.clone())?;
    }
    for (name, plan) in plans {
        limiters[&name].apply(&plan.limit, Keep::Count)?;
    }
    Ok(())
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut limiters = Limiters::new();
    for (name, plan) in toml::from_str::<Plans>(START)? {
        limiters.insert(name, RateLimiter::new(AnyPolicy::try_from(plan.limit)?));
    }
    limiters["pro"].try_acquire_many(40)?;
    for text in CHANGES {
        match apply(&limiters, text) {
            Ok(()) => println!("applied"),
            Err(error) => println!("refused: {}", error.to_string().trim_end()),
        }
        for (name, limiter) in &limiters {
            println!("  {name}: {}, {} available", limiter.config(), limiter.status().available);
        }
    }
    Ok(())
}
