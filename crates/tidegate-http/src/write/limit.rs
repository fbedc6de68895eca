//! The state of one limit, as plain values.

use std::borrow::Cow;
use std::error::Error;
use std::fmt;
use std::time::Duration;

use crate::Unit;
use crate::structured;

/// The state of one limit, from any limiter.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use tidegate_http::write::Limit;
///
/// let daily = Limit::new("daily", 1000)?
///     .window(Duration::from_secs(86_400))
///     .remaining(12)
///     .reset(Duration::from_secs(3600));
/// assert_eq!(daily.name(), "daily");
/// # Ok::<(), tidegate_http::write::InvalidName>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limit<'a> {
    name: Cow<'a, str>,
    quota: u64,
    unit: Unit,
    window: Option<Duration>,
    remaining: Option<u64>,
    reset: Option<Duration>,
    partition_key: Option<Cow<'a, [u8]>>,
}

impl<'a> Limit<'a> {
    /// Creates a limit of `quota` units of [`Unit::Requests`]. All other properties are unknown at
    /// first.
    ///
    /// # Errors
    ///
    /// Returns [`InvalidName`] if `name` has a character other than printable ASCII, which a field
    /// cannot carry. Another name can help.
    pub fn new(name: impl Into<Cow<'a, str>>, quota: u64) -> Result<Self, InvalidName> {
        let name = name.into();
        if !structured::is_string(&name) {
            return Err(InvalidName { name: name.into_owned() });
        }
        Ok(Self {
            name,
            quota,
            unit: Unit::Requests,
            window: None,
            remaining: None,
            reset: None,
            partition_key: None,
        })
    }

    /// Sets the unit that the limit counts.
    #[must_use]
    pub fn unit(mut self, unit: Unit) -> Self {
        self.unit = unit;
        self
    }

    /// Sets the time in which the quota may be used. It is written rounded up to whole seconds.
    #[must_use]
    pub fn window(mut self, window: Duration) -> Self {
        self.window = Some(window);
        self
    }

    /// Sets how many units are left now. Without it, the policy of the limit is written, but not
    /// its state.
    #[must_use]
    pub fn remaining(mut self, remaining: u64) -> Self {
        self.remaining = Some(remaining);
        self
    }

    /// Sets the time during which a client can use no more than the remaining units.
    ///
    /// If nothing remains, this is the wait for the next unit. Otherwise it is the time until the
    /// limit is at its full quota again, which is cautious for a bucket, or until the window ends.
    /// In a refusal, a limit with nothing left writes a reset no earlier than the wait given to
    /// [`refused`](super::refused).
    #[must_use]
    pub fn reset(mut self, reset: Duration) -> Self {
        self.reset = Some(reset);
        self
    }

    /// Sets the partition key, which identifies the share that the limit counts for, such as a
    /// user. Clients see the bytes: use a hash if the key is secret. Only
    /// [`Format::Draft`](super::Format::Draft) writes it.
    #[must_use]
    pub fn partition_key(mut self, key: impl Into<Cow<'a, [u8]>>) -> Self {
        self.partition_key = Some(key.into());
        self
    }

    /// Returns the name of the limit.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn state(&self) -> State<'_> {
        State {
            name: &self.name,
            quota: integer(self.quota),
            unit: self.unit,
            // The draft has no window of zero.
            window: self.window.map(|w| seconds_up(w).max(1)),
            remaining: self.remaining.map(integer),
            reset: self.reset.map(seconds_up),
            partition_key: self.partition_key.as_deref(),
        }
    }
}

/// A [`Limit`] in the units of a field: whole seconds, and integers of at most 15 digits.
pub(super) struct State<'a> {
    pub(super) name: &'a str,
    pub(super) quota: u64,
    pub(super) unit: Unit,
    pub(super) window: Option<u64>,
    pub(super) remaining: Option<u64>,
    pub(super) reset: Option<u64>,
    pub(super) partition_key: Option<&'a [u8]>,
}

/// Rounds up to whole seconds, at most the largest integer that a field can carry.
pub(super) fn seconds_up(duration: Duration) -> u64 {
    integer(duration.as_secs().saturating_add(u64::from(duration.subsec_nanos() > 0)))
}

/// Replaces a number that a field cannot carry by the largest one that it can: less than the truth,
/// which is cautious.
fn integer(number: u64) -> u64 {
    number.min(structured::MAX_INTEGER.unsigned_abs())
}

/// A name that a field cannot carry.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct InvalidName {
    /// The name.
    pub name: String,
}

impl fmt::Display for InvalidName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "limit name {:?} has a character that is not printable ASCII", self.name)
    }
}

impl Error for InvalidName {}
