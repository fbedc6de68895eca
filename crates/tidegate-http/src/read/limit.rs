//! One limit that a server reports.

use std::time::Duration;

use crate::{Unit, When};

/// One limit that a server reports. A field is `None` if the response does not report it.
///
/// Counts are floating-point numbers, because some servers send `598.0` requests left, or a limit
/// of `0.0056` requests a second. They are never negative and never infinite.
#[derive(Debug, Clone, PartialEq, Default)]
#[non_exhaustive]
pub struct ServerLimit {
    /// The name in the headers: a policy, a bucket, a resource, a window or a dimension such as
    /// `input-tokens`.
    pub name: Option<String>,
    /// The unit that the limit counts; `None` if it is unknown or not one of the [`Unit`]s.
    pub unit: Option<Unit>,
    /// The most units in a window.
    pub limit: Option<f64>,
    /// How many units are left.
    pub remaining: Option<f64>,
    /// The time at which more units are available. Servers differ: at this time the limit has one
    /// more unit, or all of its units.
    pub reset: Option<When>,
    /// The window, if the headers report it.
    pub window: Option<Duration>,
    /// The scope of the limit, if a header reports it: `user`, `global`, `shared`, ...
    pub scope: Option<String>,
    /// The partition key of the share, parameter `pk` of the IETF draft.
    pub partition_key: Option<Vec<u8>>,
}

impl ServerLimit {
    /// Returns whether less than one unit is left. A limit of an unknown unit, such as money, is
    /// exhausted only when nothing is left.
    #[must_use]
    pub fn is_exhausted(&self) -> bool {
        self.remaining.is_some_and(|left| left <= 0.0 || (left < 1.0 && self.unit.is_some()))
    }

    /// Returns whether the limit refuses until its reset. A limit of calls in flight does not,
    /// because calls that end give its units back. A count of an unknown unit with neither a limit
    /// nor a reset does not either, because it may be a balance that was never filled.
    pub(crate) fn is_used_up(&self) -> bool {
        let is_balance = self.unit.is_none() && self.limit.is_none() && self.reset.is_none();
        self.is_exhausted() && !is_balance && self.unit != Some(Unit::Concurrency)
    }

    /// Returns whether the limit allows nothing. In a success, such a limit is not a limit.
    pub(crate) fn is_zero(&self) -> bool {
        self.limit == Some(0.0) && self.remaining == Some(0.0)
    }

    /// Returns whether the response reports more than a window and names.
    pub(super) fn has_values(&self) -> bool {
        self.limit.is_some() || self.remaining.is_some() || self.reset.is_some()
    }

    /// Returns whether both can be one limit, because no field of one contradicts the other. Resets
    /// contradict each other only if the counts do not show that the limit is the same.
    pub(super) fn agrees(&self, other: &ServerLimit) -> bool {
        fn same<T: PartialEq>(a: Option<&T>, b: Option<&T>) -> bool {
            a.is_none() || b.is_none() || a == b
        }
        let counted = self.limit.is_some() && self.remaining.is_some();
        let equal = counted && self.limit == other.limit && self.remaining == other.remaining;
        let resets = match (self.reset, other.reset) {
            // Two spellings of one reset differ by their rounding.
            (Some(When::In(a)), Some(When::In(b))) => a.abs_diff(b) <= Duration::from_secs(2),
            _ => true,
        };
        (resets || equal)
            && self.unit == other.unit
            && same(self.limit.as_ref(), other.limit.as_ref())
            && same(self.remaining.as_ref(), other.remaining.as_ref())
            && same(self.window.as_ref(), other.window.as_ref())
            && same(self.partition_key.as_ref(), other.partition_key.as_ref())
    }

    /// Takes over the fields of `other` that this limit does not have. Of two resets, a reset from
    /// now is kept, otherwise the later one.
    pub(super) fn absorb(&mut self, other: ServerLimit) {
        self.name = self.name.take().or(other.name);
        self.limit = self.limit.or(other.limit);
        self.remaining = self.remaining.or(other.remaining);
        self.window = self.window.or(other.window);
        self.scope = self.scope.take().or(other.scope);
        self.partition_key = self.partition_key.take().or(other.partition_key);
        self.reset = match (self.reset, other.reset) {
            (Some(a), Some(b)) => Some(later(a, b)),
            (a, b) => a.or(b),
        };
    }
}

/// Returns the later of two times of one event. A time from now takes precedence over an absolute
/// timestamp.
pub(super) fn later(a: When, b: When) -> When {
    match (a, b) {
        (When::In(a), When::In(b)) => When::In(a.max(b)),
        (When::At(a), When::At(b)) => When::At(a.max(b)),
        (When::In(_), When::At(_)) => a,
        (When::At(_), When::In(_)) => b,
    }
}
