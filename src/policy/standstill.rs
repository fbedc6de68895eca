//! A part of a pause, as a policy gets it.

use crate::time::Nanos;

/// A part of a pause: no permit accrues from [`from`](Standstill::from) to [`to`](Standstill::to).
/// [`Policy::pause`](super::Policy::pause) carries it out.
///
/// # Examples
///
/// ```
/// use tidegate::policy::{Policy, Standstill, TokenBucket};
/// use tidegate::{Nanos, Rate};
///
/// let policy = TokenBucket::new(Rate::per_second(2), 5);
/// let state = policy.start(Nanos::ZERO);
/// let [second, minute] = [1_000_000_000, 60_000_000_000].map(Nanos::new);
/// policy.try_acquire(&state, Nanos::ZERO, 5)?;
///
/// // The two permits of the first second are stored, and stay so for a minute.
/// policy.pause(&state, Standstill::keeping(second, minute));
/// assert_eq!(policy.status(&state, minute).available, 2);
/// // The pause ends there, and does not keep them.
/// policy.pause(&state, Standstill::emptying(minute, minute));
/// assert_eq!(policy.status(&state, minute).available, 0);
/// # Ok::<(), tidegate::Refusal>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Standstill {
    /// The state is as of this time.
    pub from: Nanos,
    /// The time up to which no permit accrues, at or after `from`.
    pub to: Nanos,
    /// Whether the stored permits are kept. If not, the pause ends at `to`, and leaves the state as
    /// if it were empty then. A part that is not the last part of a pause keeps them.
    pub keeps_permits: bool,
}

impl Standstill {
    /// Creates a part of a pause that keeps the stored permits.
    #[must_use]
    pub const fn keeping(from: Nanos, to: Nanos) -> Standstill {
        Standstill { from, to, keeps_permits: true }
    }

    /// Creates the last part of a pause that leaves the limiter empty at `to`.
    #[must_use]
    pub const fn emptying(from: Nanos, to: Nanos) -> Standstill {
        Standstill { from, to, keeps_permits: false }
    }

    /// Returns the end of a pause that leaves a limiter empty.
    pub(crate) const fn end(at: Nanos) -> Standstill {
        Standstill::emptying(at, at)
    }
}
