//! The unit that a limit counts.

/// The unit that a limit counts.
///
/// The first three are the quota units of the IETF draft. Servers of language models count tokens,
/// and GraphQL servers count points.
///
/// # Examples
///
/// ```
/// use tidegate_http::Unit;
///
/// assert_eq!(Unit::default(), Unit::Requests);
/// assert_eq!(Unit::Bytes.as_str(), "content-bytes");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum Unit {
    /// Requests, the unit of nearly every API.
    #[default]
    Requests,
    /// Bytes of content.
    Bytes,
    /// Requests in flight at one time.
    Concurrency,
    /// Tokens of a language model.
    Tokens,
    /// Points, cost, weight or complexity: a request counts by the work that it causes.
    Points,
}

impl Unit {
    /// Returns the text of the parameter `qu` of the field `RateLimit-Policy`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Unit::Requests => "requests",
            Unit::Bytes => "content-bytes",
            Unit::Concurrency => "concurrent-requests",
            Unit::Tokens => "tokens",
            Unit::Points => "points",
        }
    }

    /// Returns the unit that a parameter `qu` names, if it is one of these units. The registry of
    /// the draft says `request` where its text says `requests`: both are read.
    pub(crate) fn of_parameter(text: &str) -> Option<Unit> {
        match text {
            "requests" | "request" => Some(Unit::Requests),
            "content-bytes" | "bytes" => Some(Unit::Bytes),
            "concurrent-requests" | "concurrency" => Some(Unit::Concurrency),
            "tokens" => Some(Unit::Tokens),
            "points" => Some(Unit::Points),
            _ => None,
        }
    }
}
