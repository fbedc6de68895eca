//! Meta's usage headers, which are JSON: percentages of limits that Meta does not report.

use std::time::Duration;

use serde_json::{Map, Value};

use super::limit::ServerLimit;
use super::time::SECOND;
use crate::When;

/// Reads `X-App-Usage: {"call_count":28,"total_time":25}` and related headers, among them
/// `X-Business-Use-Case-Usage`, which has lists of such objects by account. A limit is 100 percent
/// of a count that Meta does not report, so its unit is unknown.
pub(super) fn limits(header: &str, value: &str) -> Vec<ServerLimit> {
    if !matches!(
        header,
        "x-app-usage"
            | "x-ad-account-usage"
            | "x-page-usage"
            | "x-fb-ads-insights-throttle"
            | "x-business-use-case-usage"
    ) {
        return Vec::new();
    }
    match serde_json::from_str(value) {
        Ok(Value::Object(usage)) if header == "x-business-use-case-usage" => {
            let accounts = usage.values().filter_map(Value::as_array).flatten();
            accounts.filter_map(Value::as_object).flat_map(percents).take(super::MAX_LIMITS).collect()
        }
        Ok(Value::Object(usage)) => percents(&usage),
        _ => Vec::new(),
    }
}

fn percents(usage: &Map<String, Value>) -> Vec<ServerLimit> {
    let minutes = usage.get("estimated_time_to_regain_access").and_then(Value::as_u64).unwrap_or(0);
    let seconds = usage.get("reset_time_duration").and_then(Value::as_u64);
    let regain = (minutes > 0).then(|| Duration::from_secs(minutes.min(1_000_000) * 60));
    let reset = regain.or_else(|| Some(SECOND * u32::try_from(seconds?).ok()?)).map(When::In);
    let percent = |(name, value): (&String, &Value)| {
        let share = ["call_count", "total_time", "total_cputime", "acc_id_util_pct", "app_id_util_pct"];
        let used = value.as_f64().filter(|used| used.is_finite() && *used >= 0.0)?;
        share.contains(&name.as_str()).then(|| ServerLimit {
            name: Some(name.clone()),
            limit: Some(100.0),
            remaining: Some((100.0 - used).max(0.0)),
            reset,
            ..ServerLimit::default()
        })
    };
    usage.iter().filter_map(percent).collect()
}
