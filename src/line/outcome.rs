//! How a request ends.

use crate::error::Refusal;

/// How a request passed.
#[derive(Debug)]
pub(crate) enum Outcome<Charge> {
    Granted(Charge),
    /// The limiter is in shadow. Otherwise the request would have been refused like this.
    Shadow(Refusal),
    /// The request is exempt: the policy was not asked.
    Exempt,
}

/// How a request ended.
pub(crate) type Decision<Charge> = Result<Outcome<Charge>, Refusal>;

impl<Charge> Outcome<Charge> {
    pub(crate) fn map<T>(self, map: impl FnOnce(Charge) -> T) -> Outcome<T> {
        match self {
            Outcome::Granted(charge) => Outcome::Granted(map(charge)),
            Outcome::Shadow(refusal) => Outcome::Shadow(refusal),
            Outcome::Exempt => Outcome::Exempt,
        }
    }

    /// What the request took, if anything.
    pub(crate) fn charge(self) -> Option<Charge> {
        match self {
            Outcome::Granted(charge) => Some(charge),
            Outcome::Shadow(_) | Outcome::Exempt => None,
        }
    }
}
