//! The result of a request: how it ends.
//!
//! | type | made by | content |
//! |---|---|---|
//! | [`Answer`] | the queue, or a taker without its lock | a refusal, or how the request [`Admitted`]; the observers are notified of it |
//! | [`Receipt`] | the limiter, from an answer that is not a refusal | how long the request waited, and what it got; the caller's [`Grant`](crate::Grant) is made from it |

use crate::error::Refusal;
use crate::line::grants::Granted;
use crate::time::Nanos;

/// The end of a request: how it passed, or its refusal.
pub(crate) type Answer<Got> = Result<Admitted<Got>, Refusal>;

/// How a request passed.
#[derive(Debug)]
pub(crate) enum Admitted<Got> {
    Granted(Got),
    /// The limiter is in shadow mode. Outside shadow mode the request would have got this refusal.
    Shadow(Refusal),
    /// The request is exempt: the policy was not asked.
    Exempt,
}

impl<Got> Admitted<Got> {
    pub(crate) fn map<T>(self, map: impl FnOnce(Got) -> T) -> Admitted<T> {
        match self {
            Admitted::Granted(grant) => Admitted::Granted(map(grant)),
            Admitted::Shadow(refusal) => Admitted::Shadow(refusal),
            Admitted::Exempt => Admitted::Exempt,
        }
    }

    /// Returns what the request took, if anything.
    pub(crate) fn granted(self) -> Option<Got> {
        match self {
            Admitted::Granted(grant) => Some(grant),
            Admitted::Shadow(_) | Admitted::Exempt => None,
        }
    }
}

/// How long a request waited that passed, and what it got, if anything.
#[derive(Debug)]
pub(crate) struct Receipt<Charge> {
    pub(crate) waited: Nanos,
    /// `None` if the request passed without a permit: the limiter is in shadow mode, or the request
    /// is exempt.
    pub(crate) granted: Option<Granted<Charge>>,
}
