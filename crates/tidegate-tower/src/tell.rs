//! [`Tell`]: the state of limits as headers of an answer.

use std::time::{Duration, SystemTime};

use http::header::{HeaderMap, HeaderName, RETRY_AFTER};
use tidegate::AllStatus;
use tidegate_http::tell::{self, Format, Limit};

use crate::refused::Refused;

/// How the state of limits is told.
#[derive(Debug, Clone)]
pub(crate) struct Tell {
    /// `None` tells nothing but `Retry-After`.
    pub(crate) format: Option<Format>,
}

impl Default for Tell {
    fn default() -> Self {
        Tell { format: Some(Format::Draft) }
    }
}

impl Tell {
    /// Adds the headers of a request that was granted. `name` is that of a limit without a name.
    pub(crate) fn granted(&self, state: &AllStatus, name: &str, headers: &mut HeaderMap) {
        let Some(format) = self.format() else { return };
        let limits = Self::limits(state, name);
        beside(headers, |headers| tell::granted(&limits, format, headers));
    }

    /// Adds the headers of a request that was refused.
    pub(crate) fn refused(
        &self,
        refused: &Refused,
        state: Option<AllStatus>,
        name: &str,
        headers: &mut HeaderMap,
    ) {
        let wait = refused.retry_after();
        beside(headers, |headers| match (self.format(), state) {
            (Some(format), Some(state)) => {
                let limits = Self::limits(&state, name);
                match wait {
                    Some(wait) => {
                        let limits: Vec<_> =
                            limits.into_iter().map(|limit| within(limit, refused, wait)).collect();
                        tell::refused(&limits, wait, format, headers);
                    }
                    None => tell::granted(&limits, format, headers),
                }
            }
            _ => {
                if let Some(wait) = wait {
                    headers.insert(RETRY_AFTER, tell::retry_after(wait));
                }
            }
        });
    }

    fn format(&self) -> Option<Format> {
        match self.format? {
            Format::XRateLimitUnix(_) => Some(Format::XRateLimitUnix(SystemTime::now())),
            format => Some(format),
        }
    }

    fn limits<'a>(AllStatus { members, .. }: &'a AllStatus, name: &'a str) -> Vec<Limit<'a>> {
        let alone = members.len() == 1;
        // A member that never refuses is no limit. A name may not fit into a header.
        let limits = members.iter().filter(|(_, member)| member.limit < u64::MAX);
        let limits = limits.filter_map(|(member, status)| {
            Limit::of(if alone { name } else { member.as_str() }, status).ok()
        });
        limits.collect()
    }
}

/// The limit that refused has enough permits after `wait`, though it may not be full: the draft
/// asks for a `Retry-After` that is not before the end of the time told with the limit.
fn within<'a>(limit: Limit<'a>, refused: &Refused, wait: Duration) -> Limit<'a> {
    if limit.name() == refused.limit() { limit.reset(wait) } else { limit }
}

/// Tells headers beside those of an answer. The fields of the draft are lists, so those of an inner
/// layer stay beside these. All other headers stay if they are there.
fn beside(headers: &mut HeaderMap, tell: impl FnOnce(&mut HeaderMap)) {
    let is_told = |name: &HeaderName| name == RETRY_AFTER || name.as_str().contains("ratelimit");
    if !headers.keys().any(is_told) {
        return tell(headers);
    }
    let mut told = HeaderMap::new();
    tell(&mut told);
    for (name, value) in told {
        let Some(name) = name else { continue };
        if name == "ratelimit" || name == "ratelimit-policy" {
            headers.append(name, value);
        } else {
            headers.entry(name).or_insert(value);
        }
    }
}
