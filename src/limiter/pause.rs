//! Pauses: how a limiter is to pause, and the calls that begin and end a pause.

use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

use crate::clock::Timer;
use crate::limiter::RateLimiter;
use crate::limiter::gate_word::PAUSED;
use crate::limiter::shared::Shared;
use crate::line::rule::Rule;
use crate::policy::Policy;
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
    pub(crate) keeps_permits: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    After(Duration),
    At(Nanos),
}

impl Pause {
    fn new(end: End) -> Pause {
        Pause { end, jitter: Duration::ZERO, keeps_permits: false }
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
    pub fn keep_permits(self) -> Pause {
        Pause { keeps_permits: true, ..self }
    }

    /// Tells whether the pause [keeps the stock](Pause::keep_permits).
    #[must_use]
    pub fn keeps_permits(&self) -> bool {
        self.keeps_permits
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

impl<R: Rule, C: Timer> Shared<R, C> {
    /// Grants no request before the end of the pause, nor before the end of an earlier one.
    pub(crate) fn pause(&self, pause: Pause) {
        let until = pause.end(self.clock.now());
        let remaining = self.serve_then(|line, visit| {
            let (changed, later) = line.pause(visit.rule, until, pause.keeps_permits);
            if changed {
                // A lateness from before the pause would charge a request as of a time in the
                // pause.
                self.lateness.clear();
                visit.rule.empty_at(line.settings.leaves_empty(), visit.deferred);
                self.retime(line, visit);
            }
            later.then(|| until.saturating_since(visit.now))
        });
        if let Some(remaining) = remaining {
            self.report(|events| events.paused(remaining.as_duration()));
        }
    }

    /// Ends a pause. Returns whether there was one.
    pub(crate) fn resume(&self) -> bool {
        let paused = self.serve_then(|line, visit| {
            let paused = line.resume(visit.rule);
            if paused {
                visit.rule.empty_at(None, visit.deferred);
                self.retime_composites(line, visit);
            }
            paused
        });
        if paused {
            self.report(|events| events.resumed());
        }
        paused
    }

    /// How long the pause still lasts; zero without one.
    pub(crate) fn paused_for(&self) -> Duration {
        if !self.gate_word.load().has(PAUSED) {
            return Duration::ZERO;
        }
        self.serve_then(|line, visit| {
            line.settings.opens_for(visit.now).saturating_since(visit.now).as_duration()
        })
    }
}

/// Pauses, from any clone. They hold at once for waiters, too.
impl<P: Policy, C: Timer> RateLimiter<P, C> {
    /// Pauses the limiter: grants no request before the time `until` of its
    /// [clock](RateLimiter::clock). The pause holds for requests that already wait, too.
    ///
    /// [Waiting](RateLimiter::acquire) requests are served after the pause. A request
    /// [within](RateLimiter::acquire_within) a time that the pause exceeds is refused at once. The
    /// `retry_after` of a refused `try_` call covers the pause and the waiters in line.
    ///
    /// Several callers may pause one limiter: the latest end counts. So a time in the past does
    /// nothing, and neither does a time before the end of the current pause.
    /// [`resume`](RateLimiter::resume) ends a pause; [`Nanos::MAX`] pauses until then.
    ///
    /// No permits come in during a pause. When it ends the limiter goes on as if it were empty:
    /// permits come in one interval apart, the first one an interval after the end. So no burst
    /// follows, and a pause that is told twice is one pause. [`Pause::keep_permits`] goes on with the
    /// permits that there were, and so does a [`resume`](RateLimiter::resume) before the end. A
    /// debt stays. A grant after the pause is never charged as of a time in the pause, even where
    /// the timer is late.
    ///
    /// | policy | after the pause |
    /// |---|---|
    /// | [`TokenBucket`](crate::TokenBucket), [`LeakyBucket`](crate::LeakyBucket), [`SmoothBursty`](crate::SmoothBursty) | is empty. A bucket in steps is filled at its next step |
    /// | [`SmoothWarmingUp`](crate::SmoothWarmingUp) | has granted a permit at the end; the time of the pause cools |
    /// | windows and logs | count in real time, as the server does. For one more window from the end on, the *k*th permit comes no earlier than *k* intervals after the end, so a whole window's permits do not come at once |
    /// | a [`FixedWindow`](crate::FixedWindow) that begins anew in that time | likewise; the windows after that are as ever |
    /// | [`Both`](crate::Both) | each of its policies as if it were alone |
    /// | other [`Policy`] | what [`Policy::pause`] says, or as a window |
    ///
    /// A call that begins after this method has returned obeys the pause; a call that overlaps with
    /// it may pass. The pause checks the deadlines of the first 4,096 waiters at once, or of the
    /// first 512 where an [`AllOf`](crate::AllOf) waits for the limiter; a waiter behind them that
    /// is too late now is refused at its deadline.
    pub fn pause_until(&self, until: Nanos) {
        self.shared.pause(Pause::until(until));
    }

    /// [Pauses](RateLimiter::pause_until) for the time `span` from now, as a server's `Retry-After`
    /// asks for.
    ///
    /// Zero does nothing. [`Duration::MAX`] pauses until [`resume`](RateLimiter::resume) is called.
    ///
    /// After a refusal by the server, pause first, and settle a [reservation](RateLimiter::reserve)
    /// after that: otherwise the permits that it gives back are granted to waiters at once. A call
    /// that is repeated goes to the end of the line, unless it has a higher
    /// [priority](crate::Request::priority).
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use tidegate::{ManualClock, Rate, RateLimiter, SmoothBursty};
    ///
    /// let clock = ManualClock::new();
    /// let policy = SmoothBursty::new(Rate::per_second(5));
    /// let limiter = RateLimiter::with_clock(policy, clock.clone());
    /// limiter.pause_for(Duration::from_secs(30));
    /// let refusal = limiter.try_acquire().unwrap_err();
    /// assert_eq!(refusal.retry_after(), Some(Duration::from_millis(30_200)));
    /// clock.advance(Duration::from_secs(30));
    /// assert!(limiter.try_acquire().is_err());
    /// clock.advance(Duration::from_millis(200));
    /// limiter.try_acquire()?;
    /// # Ok::<(), tidegate::Refusal>(())
    /// ```
    pub fn pause_for(&self, span: Duration) {
        self.shared.pause(Pause::lasting(span));
    }

    /// [Pauses](RateLimiter::pause_until) as `pause` says.
    pub fn pause(&self, pause: Pause) {
        self.shared.pause(pause);
    }

    /// Ends a pause now, with the permits that the limiter had when it began, and the permits given
    /// back since. Waiters that are due are granted at once. Returns whether the limiter was
    /// paused.
    ///
    /// A window, which counts in real time, keeps no more permits than it had, and the others come
    /// back after a window's length.
    pub fn resume(&self) -> bool {
        self.shared.resume()
    }
}
