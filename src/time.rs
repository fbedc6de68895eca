//! The time type of clocks and policies: whole nanoseconds since a clock's beginning.

use std::cmp::Ordering;
use std::fmt;
use std::time::Duration;

/// Two times that were converted from one clock to another may differ by the time that passes
/// between two clock readings.
pub(crate) const CLOCK_SKEW: Nanos = Nanos::new(100_000);

/// A point in time, in whole nanoseconds since the [`Clock`](crate::Clock)'s beginning, or a
/// duration.
///
/// A `u64` of nanoseconds lasts 584 years. All arithmetic saturates: [`Nanos::MAX`] means "never".
///
/// A duration in this type compares with a [`Duration`], prints like one, and converts to and from
/// one.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use tidegate::Nanos;
///
/// let at = Nanos::from_duration(Duration::from_millis(5));
/// assert_eq!(at.as_u64(), 5_000_000);
/// assert_eq!(at.saturating_add(Nanos::MAX), Nanos::MAX);
/// assert_eq!(Nanos::from_duration(Duration::MAX), Nanos::MAX);
/// assert_eq!(at, Duration::from_millis(5));
/// assert_eq!(format!("{at} or {:?}", Nanos::MAX), "5ms or never");
/// ```
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Nanos(u64);

impl Nanos {
    /// The beginning of a clock's time.
    pub const ZERO: Nanos = Nanos(0);
    /// The end of time. A permit that is due at this time never becomes due.
    pub const MAX: Nanos = Nanos(u64::MAX);

    /// Creates a time from a number of nanoseconds.
    #[must_use]
    pub const fn new(nanos: u64) -> Nanos {
        Nanos(nanos)
    }

    /// Creates a time from a duration. More than 584 years becomes [`Nanos::MAX`].
    #[must_use]
    pub const fn from_duration(duration: Duration) -> Nanos {
        let nanos = duration.as_nanos();
        // The comparison makes the cast exact.
        #[allow(clippy::cast_possible_truncation)]
        if nanos > u64::MAX as u128 { Nanos::MAX } else { Nanos(nanos as u64) }
    }

    /// Returns the number of nanoseconds.
    #[must_use]
    pub const fn as_u64(self) -> u64 {
        self.0
    }

    /// Returns this duration as a [`Duration`]. [`Nanos::MAX`] becomes [`Duration::MAX`].
    #[must_use]
    pub const fn as_duration(self) -> Duration {
        if self.0 == u64::MAX { Duration::MAX } else { Duration::from_nanos(self.0) }
    }

    /// Returns this time plus `span`, or [`Nanos::MAX`] instead of an overflow.
    #[must_use]
    pub const fn saturating_add(self, span: Nanos) -> Nanos {
        Nanos(self.0.saturating_add(span.0))
    }

    /// Returns the duration from `earlier` to this time, or zero if `earlier` is later. "Never"
    /// minus any time is "never".
    #[must_use]
    pub const fn saturating_since(self, earlier: Nanos) -> Nanos {
        if self.0 == u64::MAX { Nanos::MAX } else { Nanos(self.0.saturating_sub(earlier.0)) }
    }
}

impl From<Nanos> for Duration {
    fn from(nanos: Nanos) -> Duration {
        nanos.as_duration()
    }
}

impl From<Duration> for Nanos {
    fn from(duration: Duration) -> Nanos {
        Nanos::from_duration(duration)
    }
}

/// [`Nanos::MAX`] equals [`Duration::MAX`] and no other duration.
impl PartialEq<Duration> for Nanos {
    fn eq(&self, other: &Duration) -> bool {
        self.as_duration() == *other
    }
}

impl PartialEq<Nanos> for Duration {
    fn eq(&self, other: &Nanos) -> bool {
        other == self
    }
}

impl PartialOrd<Duration> for Nanos {
    fn partial_cmp(&self, other: &Duration) -> Option<Ordering> {
        self.as_duration().partial_cmp(other)
    }
}

impl PartialOrd<Nanos> for Duration {
    fn partial_cmp(&self, other: &Nanos) -> Option<Ordering> {
        self.partial_cmp(&other.as_duration())
    }
}

impl fmt::Display for Nanos {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if *self == Nanos::MAX { f.write_str("never") } else { fmt::Debug::fmt(&self.as_duration(), f) }
    }
}

impl fmt::Debug for Nanos {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
