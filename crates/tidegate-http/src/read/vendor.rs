//! APIs whose documentation says more than their headers.

use std::time::Duration;

use http::HeaderMap;

use super::time::Numbers;

/// An API whose documentation says more than its headers: what a plain number in a reset means, and
/// how long to back off from a refusal without a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Vendor {
    /// Anthropic: four limits, resets in RFC 3339.
    Anthropic,
    /// AWS: error codes, `x-amz-retry-after` in milliseconds.
    Aws,
    /// Azure OpenAI and GitHub Models: `-requests` and `-tokens`, resets in seconds.
    AzureOpenAi,
    /// Cloudflare: the fields of the IETF draft.
    Cloudflare,
    /// Discord: `X-RateLimit-Reset-After` in fractions of seconds, a bucket.
    Discord,
    /// GitHub: resets in Unix seconds; its secondary limits ask for a back-off of at least a
    /// minute.
    GitHub,
    /// GitLab: the names of old IETF drafts, but resets in Unix seconds.
    GitLab,
    /// HubSpot: limits per day, per second and per interval.
    HubSpot,
    /// Jira: dates without seconds, and the fields of the IETF draft with the prefix `Beta-`.
    Jira,
    /// KuCoin: `gw-ratelimit-*`, resets in milliseconds from now.
    KuCoin,
    /// Linear: requests and complexity, resets in Unix milliseconds.
    Linear,
    /// Okta: resets in Unix seconds.
    Okta,
    /// OpenAI: resets as durations such as `6m0s`.
    OpenAi,
    /// Reddit: fractions of requests, resets in seconds.
    Reddit,
    /// Shopify's REST API: `32/40`.
    Shopify,
    /// Slack: only `Retry-After`.
    Slack,
    /// SmartThings: resets in milliseconds from now.
    SmartThings,
    /// Stripe: a reason, no times.
    Stripe,
    /// X: `x-rate-limit-*`, resets in Unix seconds.
    X,
}

impl Vendor {
    /// Returns how this API writes plain numbers in resets.
    pub(super) fn numbers(self) -> Numbers {
        match self {
            Vendor::Discord | Vendor::GitHub | Vendor::GitLab | Vendor::Okta | Vendor::X => {
                Numbers::UnixSeconds
            }
            Vendor::Linear => Numbers::UnixMilliseconds,
            Vendor::KuCoin | Vendor::SmartThings => Numbers::Milliseconds,
            Vendor::Cloudflare | Vendor::Reddit => Numbers::Seconds,
            // Azure's numbers are seconds, but were sometimes milliseconds.
            Vendor::Anthropic
            | Vendor::Aws
            | Vendor::AzureOpenAi
            | Vendor::HubSpot
            | Vendor::Jira
            | Vendor::OpenAi
            | Vendor::Shopify
            | Vendor::Slack
            | Vendor::Stripe => Numbers::Guess,
        }
    }

    /// Returns the minimum time to back off that the documentation asks for.
    pub(super) fn back_off(self) -> Duration {
        match self {
            Vendor::GitHub => Duration::from_secs(60),
            _ => Duration::ZERO,
        }
    }

    /// Recognises an API whose headers cannot be understood without its documentation.
    pub(super) fn guess(headers: &HeaderMap) -> Option<Vendor> {
        if headers.contains_key("gw-ratelimit-reset") {
            return Some(Vendor::KuCoin);
        }
        let github =
            headers.contains_key("x-github-request-id") || headers.contains_key("x-github-media-type");
        // GitHub Models sends these headers too, but its limits are the limits of Azure OpenAI.
        let models = headers.contains_key("x-ratelimit-limit-requests");
        (github && !models).then_some(Vendor::GitHub)
    }
}
