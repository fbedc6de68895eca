//! [`Refused`], the reason of a refusal, and [`Error`].

use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;
use tidegate::{AllRefusal, Nanos, Refusal};

/// The name of a limit that has no other name.
pub(crate) const NAME: &str = "limit";

/// The reason why a layer refused a request.
///
/// In [shadow mode](crate::RateLimitLayer::shadow) the request carries it as an extension.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refused {
    cause: Cause,
    /// The name that the layer was given.
    name: Option<Arc<str>>,
    /// Whether the limit that refused is the only limit of the limiter.
    is_only: bool,
    /// Whether several limits refused together, such as a composite that is paused. None of them is
    /// the one that refused.
    is_common: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Cause {
    Limit(AllRefusal),
    NoKey(StatusCode),
}

impl Refused {
    pub(crate) fn by_limit(refusal: AllRefusal) -> Refused {
        Refused { cause: Cause::Limit(refusal), name: None, is_only: false, is_common: false }
    }

    pub(crate) fn no_key(status: StatusCode) -> Refused {
        Refused { cause: Cause::NoKey(status), name: None, is_only: false, is_common: false }
    }

    /// Sets the name of the layer. The layer's only limit has this name.
    pub(crate) fn named(self, name: Option<Arc<str>>, is_only: bool) -> Refused {
        Refused { name, is_only, ..self }
    }

    /// Sets whether several limits refused together.
    pub(crate) fn common(self, is_common: bool) -> Refused {
        Refused { is_common, ..self }
    }

    /// Returns the refusal of the limiter. `None` if the request has no key.
    #[must_use]
    pub fn refusal(&self) -> Option<&AllRefusal> {
        match &self.cause {
            Cause::Limit(refusal) => Some(refusal),
            Cause::NoKey(_) => None,
        }
    }

    /// Returns the name of the limit that refused, as it is in the headers. With several limits
    /// this is the name of the member, otherwise the [name](crate::RateLimitLayer::named) of the
    /// layer. If several limits refused together, such as an `AllOf` that is paused, this is also
    /// the name of the layer; then the headers have no limit of this name.
    #[must_use]
    pub fn limit(&self) -> &str {
        let name = self.name.as_deref();
        match self.refusal().and_then(AllRefusal::member) {
            Some(member) if self.is_only => name.unwrap_or(member),
            Some(member) => member,
            None => name.unwrap_or(NAME),
        }
    }

    /// Returns the name of the limit that the request violated, if there is one.
    pub(crate) fn violated(&self) -> Option<&str> {
        (!self.is_common && !self.is_undecided()).then(|| self.limit())
    }

    /// Returns whether the request was refused because the store of the limiter is unavailable, not
    /// by a limit.
    pub(crate) fn is_undecided(&self) -> bool {
        let refusal = self.refusal().and_then(AllRefusal::refusal);
        matches!(refusal, Some(Refusal::Unavailable { .. }))
    }

    /// Returns the reason as clients of the service see it. The time to wait is in whole units of
    /// `unit`, at least one, like the header with that time. The text does not reveal where the
    /// limiter keeps its permits, how many keys it has, or which members it has.
    pub(crate) fn detail(&self, unit: Nanos) -> String {
        let rounded = |wait: Nanos| match wait {
            Nanos::MAX => wait,
            wait => {
                let units = wait.as_u64().div_ceil(unit.as_u64()).max(1);
                Nanos::new(units.saturating_mul(unit.as_u64()))
            }
        };
        let reason = match self.refusal().and_then(AllRefusal::refusal) {
            Some(Refusal::Unavailable { retry_after }) => {
                let undecided = "the service cannot decide about the request now";
                return match rounded(retry_after) {
                    Nanos::MAX => undecided.to_owned(),
                    wait => format!("{undecided}, retry after {wait}"),
                };
            }
            Some(Refusal::Limited { retry_after }) => Refusal::Limited { retry_after: rounded(retry_after) },
            Some(Refusal::Paused { retry_after }) => Refusal::Paused { retry_after: rounded(retry_after) },
            Some(Refusal::QueueFull { retry_after }) => {
                Refusal::QueueFull { retry_after: rounded(retry_after) }
            }
            Some(Refusal::TooManyKeys { .. }) => {
                return format!("{}: no room for a new key now", self.limit());
            }
            Some(reason) => reason,
            None if self.refusal().is_some() => return "the service made an error".to_owned(),
            None => return self.to_string(),
        };
        if self.is_common { reason.to_string() } else { format!("{}: {reason}", self.limit()) }
    }

    /// Returns the time to wait before the request can succeed. `None` if the time is unknown, or
    /// if the request can never succeed.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        self.refusal()?.retry_after()
    }

    /// Returns the status of the response. It is 429 or 503 as in [`Refusal::status_code`], 500 if
    /// the cost names an unknown member, or the status with which the key function
    /// [refused](crate::Key::Refused) the request.
    ///
    /// A full limit of permits in use results in 429, because it is a limit that was reached: the
    /// layer cannot distinguish a limit of one client from a limit of the whole fleet.
    #[must_use]
    pub fn status(&self) -> StatusCode {
        match &self.cause {
            Cause::NoKey(status) => *status,
            Cause::Limit(refusal) => {
                StatusCode::from_u16(refusal.status_code()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
            }
        }
    }
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.cause {
            Cause::Limit(refusal) => match refusal.refusal() {
                Some(reason) if self.is_undecided() => reason.fmt(f),
                Some(reason) => write!(f, "{}: {reason}", self.limit()),
                None => refusal.fmt(f),
            },
            Cause::NoKey(status) => write!(f, "the request has no key that is accepted: {status}"),
        }
    }
}

impl StdError for Refused {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.refusal().map(|refusal| refusal as _)
    }
}

/// The error of a service behind a layer: a refusal, or an error of the service.
#[derive(Debug)]
pub enum Error<E> {
    /// The layer refused the request. The service was not called.
    Refused(Box<Refused>),
    /// The service failed.
    Service(E),
}

impl<E> Error<E> {
    /// Returns the refusal, unless the service failed.
    #[must_use]
    pub fn refused(&self) -> Option<&Refused> {
        match self {
            Error::Refused(refused) => Some(refused),
            Error::Service(_) => None,
        }
    }

    /// Returns the error of either kind as a boxed error, even if `E` is a boxed error.
    #[must_use]
    pub fn into_boxed(self) -> Box<dyn StdError + Send + Sync>
    where
        E: Into<Box<dyn StdError + Send + Sync>>,
    {
        match self {
            Error::Refused(refused) => refused,
            Error::Service(error) => error.into(),
        }
    }
}

impl<E> From<Refused> for Error<E> {
    fn from(refused: Refused) -> Error<E> {
        Error::Refused(Box::new(refused))
    }
}

impl<E: fmt::Display> fmt::Display for Error<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Refused(refused) => refused.fmt(f),
            Error::Service(error) => error.fmt(f),
        }
    }
}

impl<E: StdError + 'static> StdError for Error<E> {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        match self {
            Error::Refused(refused) => refused.source(),
            Error::Service(error) => error.source(),
        }
    }
}
