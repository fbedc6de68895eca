//! How a request ends.

use crate::error::Refusal;

/// How a request passed.
#[derive(Debug)]
pub(crate) enum Pass<Charge> {
    Granted(Charge),
    /// The limiter is in shadow. Otherwise the request would have been refused like this.
    Shadow(Refusal),
    /// The request is exempt: the policy was not asked.
    Exempt,
}

/// How a request ended.
pub(crate) type Outcome<Charge> = Result<Pass<Charge>, Refusal>;

impl<Charge> Pass<Charge> {
    pub(crate) fn map<T>(self, map: impl FnOnce(Charge) -> T) -> Pass<T> {
        match self {
            Pass::Granted(charge) => Pass::Granted(map(charge)),
            Pass::Shadow(refusal) => Pass::Shadow(refusal),
            Pass::Exempt => Pass::Exempt,
        }
    }

    /// What the request took, if anything.
    pub(crate) fn charge(self) -> Option<Charge> {
        match self {
            Pass::Granted(charge) => Some(charge),
            Pass::Shadow(_) | Pass::Exempt => None,
        }
    }
}
