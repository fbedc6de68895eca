//! The plans and API keys of the file, and a limiter that follows their changes.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};

use http::StatusCode;
use http::request::Parts;
use serde::Deserialize;
use tidegate::{AnyPolicy, DenyAll, KeyedRateLimiter, Plan};

/// The file that the server reads by default.
pub(crate) const PLANS: &str = include_str!("plans.toml");

/// The content of the file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    plans: HashMap<String, AnyPolicy>,
    keys: HashMap<String, String>,
}

/// The plan of each API key.
type PlanOf = HashMap<String, Plan<AnyPolicy>>;

/// A limit for each API key, and the plans behind it.
#[derive(Clone)]
pub(crate) struct Plans {
    plan_of: Arc<RwLock<PlanOf>>,
    pub(crate) limiter: KeyedRateLimiter<String, AnyPolicy>,
}

impl Plans {
    /// Reads the plans from the text of a file.
    pub(crate) fn read(text: &str) -> Result<Plans, String> {
        let plan_of = Arc::new(RwLock::new(parse(text)?));
        let known = plan_of.clone();
        // A key without a plan is refused before it gets here.
        let limiter =
            KeyedRateLimiter::new(AnyPolicy::from(DenyAll), 100_000).with_plans(move |key: &String| {
                known.read().unwrap_or_else(PoisonError::into_inner).get(key).cloned()
            });
        Ok(Plans { plan_of, limiter })
    }

    /// Replaces all plans, while requests arrive. Keys keep their used permits. Returns how many
    /// keys keep their old plan for now, because it cannot be changed while requests wait for it.
    /// On an error nothing changes.
    pub(crate) fn change(&self, text: &str) -> Result<usize, String> {
        *self.plan_of.write().unwrap_or_else(PoisonError::into_inner) = parse(text)?;
        Ok(self.limiter.replan())
    }

    /// Returns the API key of a request.
    pub(crate) fn key(&self, request: &Parts) -> Result<String, StatusCode> {
        let key = request.headers.get("x-api-key").and_then(|key| key.to_str().ok());
        let known = self.plan_of.read().unwrap_or_else(PoisonError::into_inner);
        key.filter(|key| known.contains_key(*key)).map(String::from).ok_or(StatusCode::UNAUTHORIZED)
    }
}

fn parse(text: &str) -> Result<PlanOf, String> {
    let File { plans, keys } = toml::from_str(text).map_err(|error| error.to_string())?;
    let plans: HashMap<_, _> = plans.into_iter().map(|(name, policy)| (name, Plan::new(policy))).collect();
    let plan_of = |(key, plan): (String, String)| match plans.get(&plan) {
        Some(plan) => Ok((key, plan.clone())),
        None => Err(format!("there is no plan {plan:?}, which {key:?} has")),
    };
    keys.into_iter().map(plan_of).collect()
}
