//! How a limiter is to pause.

use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

use crate::time::Nanos;

/// How a limiter pauses: until when, by how much more at random, and what it has afterwards.
///
/// During a pause nothing passes and nothing comes in. Afterwards the limiter goes on as if it were
/// empty: permits come in one interval apart, the first one an interval after the end. A bucket
/// with a [stepped refill](crate::TokenBucket::interval_refill) gets its permits at the next step,
/// and [`SmoothWarmingUp`](crate::SmoothWarmingUp) at the intervals of its coldness.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use tidegate::{ManualClock, Pause, Rate, RateLimiter, TokenBucket};
///
/// let clock = ManualClock::new();
/// let policy = TokenBucket::new(Rate::per_second(20), 10);
/// let limiter = RateLimiter::with_clock(policy, clock.clone());
/// // A server was restarted: come back within 10 s to 15 s, and not all clients at once.
/// let pause =
///     Pause::lasting(Duration::from_secs(10)).jitter(Duration::from_secs(5));
/// limiter.pause(pause);
/// assert!(limiter.status().paused_for >= Duration::from_secs(10));
/// assert!(limiter.status().paused_for <= Duration::from_secs(15));
/// ```
///
/// # Picture
///
/// [All policies](crate::algorithms) in a pause:
///
#[cfg_attr(doc, doc = include_str!("../../docs/pictures/pauses.svg"))]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "it does nothing by itself; pass it to `pause`"]
pub struct Pause {
    end: End,
    jitter: Duration,
    pub(crate) keeps_stock: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    After(Duration),
    At(Nanos),
}

impl Pause {
    fn new(end: End) -> Pause {
        Pause { end, jitter: Duration::ZERO, keeps_stock: false }
    }

    /// A pause of the time `span` from the call on, as a server's `Retry-After` asks for.
    /// [`Duration::MAX`] lasts until [`resume`](crate::RateLimiter::resume).
    pub fn lasting(span: Duration) -> Pause {
        Pause::new(End::After(span))
    }

    /// A pause until this time of the limiter's clock.
    pub fn until(time: Nanos) -> Pause {
        Pause::new(End::At(time))
    }

    /// Prolongs the pause by a random time up to `most`, drawn when the pause is told to a limiter.
    /// So the processes that got one answer at one time do not come back at one time.
    pub fn jitter(self, most: Duration) -> Pause {
        Pause { jitter: most, ..self }
    }

    /// Keeps the permits in stock: after the pause the limiter goes on with the permits that it had
    /// before. The permits of a window come back in real time, also during this pause. If another
    /// pause that overlaps does not keep the stock, it is not kept.
    pub fn keep_stock(self) -> Pause {
        Pause { keeps_stock: true, ..self }
    }

    /// Tells whether the pause [keeps the stock](Pause::keep_stock).
    #[must_use]
    pub fn keeps_stock(&self) -> bool {
        self.keeps_stock
    }

    /// Tells the end, by a clock that shows `now`, for a [`Limiter`](crate::Limiter) of another
    /// crate. Each call draws the [jitter](Pause::jitter) anew.
    #[must_use]
    pub fn end(&self, now: Nanos) -> Nanos {
        let end = match self.end {
            End::After(span) => now.saturating_add(Nanos::from_duration(span)),
            End::At(time) => time,
        };
        end.saturating_add(Nanos::new(random_up_to(Nanos::from_duration(self.jitter).as_u64())))
    }
}

/// A random number up to this one. A hasher's keys are random, and differ from call to call.
fn random_up_to(most: u64) -> u64 {
    if most == 0 {
        return 0;
    }
    let random = RandomState::new().hash_one(most);
    let scaled = (u128::from(random) * (u128::from(most) + 1)) >> 64;
    u64::try_from(scaled).unwrap_or(most)
}
