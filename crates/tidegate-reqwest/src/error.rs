//! [`Error`]: a refusal, or an error of reqwest.

use std::error::Error as StdError;
use std::fmt;

use tidegate::AllRefusal;

/// The error of a request: its limit refused it, or it failed.
///
/// The refusal is the [source](StdError::source) of the error, so it can be found in the chain of
/// an error that other middlewares wrapped.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// The limit refused the request. It was not sent.
    Refused(AllRefusal),
    /// The request failed.
    Reqwest(reqwest::Error),
}

impl Error {
    /// Returns the refusal, unless the request failed.
    #[must_use]
    pub fn refusal(&self) -> Option<&AllRefusal> {
        match self {
            Error::Refused(refusal) => Some(refusal),
            Error::Reqwest(_) => None,
        }
    }
}

impl From<AllRefusal> for Error {
    fn from(refusal: AllRefusal) -> Error {
        Error::Refused(refusal)
    }
}

impl From<reqwest::Error> for Error {
    fn from(error: reqwest::Error) -> Error {
        Error::Reqwest(error)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Refused(refusal) => write!(f, "a rate limit refused the request: {refusal}"),
            Error::Reqwest(error) => error.fmt(f),
        }
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        match self {
            Error::Refused(refusal) => Some(refusal),
            Error::Reqwest(error) => error.source(),
        }
    }
}
