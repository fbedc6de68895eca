//! How a request ends.

use crate::error::Refusal;

/// How a request passed.
#[derive(Debug)]
pub(crate) enum Outcome<Grant> {
    Granted(Grant),
    /// The limiter is in shadow mode. Outside of it the request would have got this refusal.
    Shadow(Refusal),
    /// The request is exempt: the policy was not asked.
    Exempt,
}

/// How a request ended.
pub(crate) type Decision<Grant> = Result<Outcome<Grant>, Refusal>;

impl<Grant> Outcome<Grant> {
    pub(crate) fn map<T>(self, map: impl FnOnce(Grant) -> T) -> Outcome<T> {
        match self {
            Outcome::Granted(grant) => Outcome::Granted(map(grant)),
            Outcome::Shadow(refusal) => Outcome::Shadow(refusal),
            Outcome::Exempt => Outcome::Exempt,
        }
    }

    /// What the request took, if anything.
    pub(crate) fn granted(self) -> Option<Grant> {
        match self {
            Outcome::Granted(grant) => Some(grant),
            Outcome::Shadow(_) | Outcome::Exempt => None,
        }
    }
}
