//! Changes at run time, and what happens to the permits.

use std::time::Duration;

use crate::error::PolicyError;
use crate::rate::Rate;

/// How a change of the rate, burst or window converts the stored permits, the counts and the
/// negative balances of a limiter.
///
/// Each policy has a default rule, which it follows unless the change specifies another: Guava's
/// two policies keep the ratio, all others keep the count.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Keep {
    /// The number of permits is kept: 5 stored permits stay 5, up to the new burst; a negative
    /// balance of 5 stays 5; 5 counted permits stay 5.
    Count,
    /// The share is kept: a bucket that was half full is half full, a window that was half used is
    /// half used, and a negative balance keeps its time.
    Ratio,
    /// Nothing is kept: the limiter is like a new limiter.
    Nothing,
}

/// A change at run time of the rate, the burst, the capacity of a leaky bucket, or all of them.
///
/// The window of a window policy is the period of its rate.
///
/// # Examples
///
/// ```
/// use tidegate::policy::{Change, Keep};
/// use tidegate::{ManualClock, Rate, RateLimiter, TokenBucket};
///
/// let policy = TokenBucket::new(Rate::per_second(10), 10);
/// let limiter = RateLimiter::with_clock(policy, ManualClock::new());
/// limiter.try_acquire_many(5)?;
/// // Half full before, half full after.
/// limiter.change(Change::rate(Rate::per_second(20)).burst(20).keep(Keep::Ratio))?;
/// assert_eq!(limiter.status().available, 10);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Change {
    pub(crate) rate: Option<Rate>,
    pub(crate) burst: Option<u32>,
    /// At most one of these two is set.
    pub(crate) capacity: Option<u32>,
    pub(crate) max_wait: Option<Duration>,
    pub(crate) keep: Option<Keep>,
    pub(crate) part: Option<usize>,
}

impl Change {
    /// Creates a change to a new rate. For a window policy this sets a new limit and window.
    #[must_use]
    pub fn rate(rate: Rate) -> Change {
        Change { rate: Some(rate), ..Change::default() }
    }

    /// Also sets a new burst. Only for policies that have a burst in permits:
    /// [`TokenBucket`](super::TokenBucket), and [`LeakyBucket`](super::LeakyBucket), where it is
    /// the number of nodelay permits and the one that is passing, as far as they fit.
    #[must_use]
    pub fn burst(self, burst: u32) -> Change {
        Change { burst: Some(burst), ..self }
    }

    /// Also sets a new [capacity](super::LeakyBucket::capacity), instead of a maximum wait. Only
    /// for [`LeakyBucket`](super::LeakyBucket). The number of nodelay permits is cut to it.
    /// Requests that already wait stay.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use tidegate::policy::Change;
    /// use tidegate::{LeakyBucket, ManualClock, Policy, Rate, RateLimiter};
    ///
    /// let policy = LeakyBucket::new(Rate::per_second(10)).capacity(2);
    /// let limiter = RateLimiter::with_clock(policy, ManualClock::new());
    /// limiter.change(Change::default().capacity(5))?;
    /// assert_eq!(limiter.policy().max_wait(), Duration::from_millis(500));
    /// # Ok::<(), tidegate::PolicyError>(())
    /// ```
    #[must_use]
    pub fn capacity(self, permits: u32) -> Change {
        Change { capacity: Some(permits), max_wait: None, ..self }
    }

    /// Also sets a new [maximum wait](super::LeakyBucket::max_wait), instead of a capacity. Only
    /// for [`LeakyBucket`](super::LeakyBucket). Requests that already wait stay. [`Duration::MAX`]
    /// is an unbounded bucket.
    #[must_use]
    pub fn max_wait(self, max_wait: Duration) -> Change {
        Change { capacity: None, max_wait: Some(max_wait), ..self }
    }

    /// Sets what happens to the permits, instead of the policy's own rule.
    #[must_use]
    pub fn keep(self, keep: Keep) -> Change {
        Change { keep: Some(keep), ..self }
    }

    /// Applies the change to this part of a policy with several parts, counted from 0. Without it
    /// the change applies to the first part, and a [reset](Change::reset) to all parts. In
    /// `a.and(b).and(c)`, `b` is part 1.
    ///
    /// # Examples
    ///
    /// ```
    /// use tidegate::policy::Change;
    /// use tidegate::{
    ///     FixedWindow, ManualClock, Policy, Rate, RateLimiter, TokenBucket,
    /// };
    ///
    /// let second = TokenBucket::new(Rate::per_second(10), 10);
    /// let minute = FixedWindow::new(Rate::per_minute(5));
    /// let limiter = RateLimiter::with_clock(second.and(minute), ManualClock::new());
    /// assert_eq!(limiter.status().available, 5);
    /// limiter.change(Change::rate(Rate::per_minute(100)).part(1))?;
    /// assert_eq!(limiter.status().available, 10);
    /// # Ok::<(), tidegate::PolicyError>(())
    /// ```
    #[must_use]
    pub fn part(self, part: usize) -> Change {
        Change { part: Some(part), ..self }
    }

    /// Creates a change of only the burst.
    #[must_use]
    pub fn only_burst(burst: u32) -> Change {
        Change::default().burst(burst)
    }

    /// Creates a change back to the state of a new limiter, with the rate and burst in force.
    #[must_use]
    pub fn reset() -> Change {
        Change::default().keep(Keep::Nothing)
    }

    /// Returns whether the change is more than a choice of what happens to the permits.
    pub(crate) fn has_terms(&self) -> bool {
        Change { keep: None, part: None, ..*self } != Change::default()
    }

    /// Returns the part that this changes; `None` for a reset of all parts.
    pub(crate) fn only_part(&self) -> Option<usize> {
        let all = self.keep == Some(Keep::Nothing) && !self.has_terms();
        self.part.or(if all { None } else { Some(0) })
    }

    /// Checks the change for policies with one part.
    pub(crate) fn of_one_part(self) -> Result<Change, PolicyError> {
        match self.part {
            Some(part) if part > 0 => Err(PolicyError::NoPart { part, parts: 1 }),
            _ => Ok(self),
        }
    }

    /// Checks the change for policies without a burst in permits, and without a bucket that can
    /// overflow.
    pub(crate) fn without_burst(self, policy: &'static str) -> Result<Change, PolicyError> {
        match self.burst {
            None => self.without_height(),
            Some(burst) => Err(PolicyError::NoBurst { burst, policy }),
        }
    }

    /// Checks the change for policies without a bucket that can overflow.
    pub(crate) fn without_height(self) -> Result<Change, PolicyError> {
        match (self.capacity, self.max_wait) {
            (Some(capacity), _) => Err(PolicyError::NoCapacity { capacity }),
            (_, Some(max_wait)) => Err(PolicyError::NoMaxWait { max_wait }),
            (None, None) => self.of_one_part(),
        }
    }
}
