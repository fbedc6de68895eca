//! Problem details (RFC 9457) of refusals, with the problem types of the draft.

use std::fmt;

use http::StatusCode;
use http::header::HeaderValue;
use serde_json::{Map, Value};

/// The address under which the draft registers its problem types.
const BASE: &str = "https://iana.org/assignments/http-problem-types#";

/// The kind of a [`Problem`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ProblemType {
    /// `quota-exceeded`: the client has used up its quota. Status 429.
    QuotaExceeded,
    /// `temporary-reduced-capacity`: the server has less capacity than usual. Status 503.
    TemporaryReducedCapacity,
    /// `abnormal-usage-detected`: the server detected a pattern of use that it does not allow.
    /// Status 429.
    AbnormalUsageDetected,
}

impl ProblemType {
    const ALL: [(Self, &'static str, &'static str); 3] = [
        (Self::QuotaExceeded, "quota-exceeded", "Quota exceeded"),
        (Self::TemporaryReducedCapacity, "temporary-reduced-capacity", "Temporarily reduced capacity"),
        (Self::AbnormalUsageDetected, "abnormal-usage-detected", "Abnormal usage detected"),
    ];

    fn words(self) -> (&'static str, &'static str) {
        let found = Self::ALL.into_iter().find(|(kind, ..)| *kind == self);
        found.map(|(_, name, title)| (name, title)).unwrap_or_default()
    }
}

impl fmt::Display for ProblemType {
    /// Writes the address of the type.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{BASE}{}", self.words().0)
    }
}

/// Problem details of a refusal: the status and the body, as `application/problem+json`.
///
/// # Examples
///
/// ```
/// use tidegate_http::Problem;
///
/// let mut problem = Problem::quota_exceeded(["daily"]);
/// problem.detail = Some("1000 requests a day".into());
/// let body = problem.to_json();
/// assert_eq!(Problem::from_json(body.as_bytes()), Some(problem));
/// ```
///
/// # Source
///
/// RFC 9457; the problem types of draft-ietf-httpapi-ratelimit-headers-11.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Problem {
    /// The kind of the problem.
    pub kind: ProblemType,
    /// The status code of the response.
    pub status: StatusCode,
    /// An explanation of this refusal, for human readers.
    pub detail: Option<String>,
    /// The URI of this occurrence.
    pub instance: Option<String>,
    /// Names of the limits that the request would have broken.
    pub violated_policies: Vec<String>,
}

impl Problem {
    /// The value of the header `Content-Type`.
    pub const CONTENT_TYPE: HeaderValue = HeaderValue::from_static("application/problem+json");

    /// Creates a problem of type [`ProblemType::QuotaExceeded`] with status 429, for the limits
    /// with these names.
    #[must_use]
    pub fn quota_exceeded<N: Into<String>>(violated: impl IntoIterator<Item = N>) -> Self {
        let violated_policies = violated.into_iter().map(Into::into).collect();
        let status = StatusCode::TOO_MANY_REQUESTS;
        Self { kind: ProblemType::QuotaExceeded, status, detail: None, instance: None, violated_policies }
    }

    /// Creates a problem of type [`ProblemType::TemporaryReducedCapacity`] with status 503.
    #[must_use]
    pub fn temporary_reduced_capacity<N: Into<String>>(violated: impl IntoIterator<Item = N>) -> Self {
        let status = StatusCode::SERVICE_UNAVAILABLE;
        Self { kind: ProblemType::TemporaryReducedCapacity, status, ..Self::quota_exceeded(violated) }
    }

    /// Creates a problem of type [`ProblemType::AbnormalUsageDetected`] with status 429.
    #[must_use]
    pub fn abnormal_usage_detected<N: Into<String>>(violated: impl IntoIterator<Item = N>) -> Self {
        Self { kind: ProblemType::AbnormalUsageDetected, ..Self::quota_exceeded(violated) }
    }

    /// Returns the body.
    #[must_use]
    pub fn to_json(&self) -> String {
        let texts = [("detail", &self.detail), ("instance", &self.instance)];
        let (name, title) = self.kind.words();
        // Room for a detail and a name.
        let mut json = Vec::with_capacity(256);
        for text in ["{\"type\":\"", BASE, name, "\",\"title\":\"", title, "\",\"status\":"] {
            json.extend_from_slice(text.as_bytes());
        }
        json.extend_from_slice(self.status.as_str().as_bytes());
        for (key, value) in texts {
            if let Some(value) = value {
                json.extend_from_slice(b",\"");
                json.extend_from_slice(key.as_bytes());
                json.extend_from_slice(b"\":");
                push_string(&mut json, value);
            }
        }
        json.extend_from_slice(b",\"violated-policies\":[");
        for (index, name) in self.violated_policies.iter().enumerate() {
            if index > 0 {
                json.push(b',');
            }
            push_string(&mut json, name);
        }
        json.extend_from_slice(b"]}");
        // Every part was written as UTF-8.
        String::from_utf8(json).unwrap_or_default()
    }

    /// Reads a body. Returns `None` if the body is not a problem of one of the [`ProblemType`]s. A
    /// member of the wrong type counts as absent, as RFC 9457 requires.
    #[must_use]
    pub fn from_json(body: &[u8]) -> Option<Self> {
        let members: Map<String, Value> = serde_json::from_slice(body).ok()?;
        let text = |key| members.get(key).and_then(Value::as_str).map(str::to_owned);
        let address = text("type")?;
        // The registry is reachable under `www.` too, so only the fragment is compared.
        let name = address.split_once('#')?.1;
        let (kind, ..) = ProblemType::ALL.into_iter().find(|(_, known, _)| *known == name)?;
        let mut problem = match kind {
            ProblemType::QuotaExceeded => Self::quota_exceeded::<String>([]),
            ProblemType::TemporaryReducedCapacity => Self::temporary_reduced_capacity::<String>([]),
            ProblemType::AbnormalUsageDetected => Self::abnormal_usage_detected::<String>([]),
        };
        let status = members.get("status").and_then(Value::as_u64).and_then(|s| u16::try_from(s).ok());
        if let Some(status) = status.and_then(|s| StatusCode::from_u16(s).ok()) {
            problem.status = status;
        }
        problem.detail = text("detail");
        problem.instance = text("instance");
        if let Some(names) = members.get("violated-policies").and_then(Value::as_array) {
            problem.violated_policies = names.iter().filter_map(Value::as_str).map(str::to_owned).collect();
        }
        Some(problem)
    }
}

fn push_string(json: &mut Vec<u8>, text: &str) {
    // Writing to a `Vec` cannot fail.
    let _ = serde_json::to_writer(json, text);
}
