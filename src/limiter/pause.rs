//! Pauses: the parameters of a pause, and the calls that begin and end one.

use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

use crate::clock::Timer;
use crate::limiter::RateLimiter;
use crate::limiter::events::Events;
use crate::limiter::gate_word::PAUSED;
use crate::limiter::shared::Shared;
use crate::line::Line;
use crate::line::deferred::{resume_panic, run};
use crate::line::rule::Rule;
use crate::line::visit::Visit;
use crate::policy::Policy;
use crate::time::Nanos;

/// A pause of a limiter: its end, a random extension, and the permits that the limiter has
/// afterwards.
///
/// During a pause no request passes and no permits accrue. Afterwards the limiter continues as if
/// it were empty: permits accrue one interval apart, the first one an interval after the end. A
/// bucket with a [stepped refill](crate::TokenBucket::interval_refill) gets its permits at the next
/// step, and [`SmoothWarmingUp`](crate::SmoothWarmingUp) at the intervals of its coldness.
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
/// // A server was restarted: retry after 10 s to 15 s, and not all clients at once.
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

    /// Creates a pause of the duration `span` from the call on, as a server's `Retry-After` asks
    /// for. [`Duration::MAX`] lasts until [`resume`](crate::RateLimiter::resume).
    pub fn lasting(span: Duration) -> Pause {
        Pause::new(End::After(span))
    }

    /// Creates a pause until this time of the limiter's clock.
    pub fn until(time: Nanos) -> Pause {
        Pause::new(End::At(time))
    }

    /// Prolongs the pause by a random duration of up to `most`, drawn when the pause is passed to a
    /// limiter. So processes that got the same response at the same time do not all retry at
    /// the same time.
    pub fn jitter(self, most: Duration) -> Pause {
        Pause { jitter: most, ..self }
    }

    /// Keeps the available permits: after the pause the limiter continues with the permits that it
    /// had before. The permits of a window come back in real time, even during this pause. If an
    /// overlapping pause does not keep the permits, they are not kept.
    pub fn keep_permits(self) -> Pause {
        Pause { keeps_permits: true, ..self }
    }

    /// Returns whether the pause [keeps the permits](Pause::keep_permits).
    #[must_use]
    pub fn keeps_permits(&self) -> bool {
        self.keeps_permits
    }

    /// Returns the end of the pause, by a clock that shows `now`. For implementors of
    /// [`Limiter`](crate::Limiter). Each call draws a new [jitter](Pause::jitter).
    #[must_use]
    pub fn end(&self, now: Nanos) -> Nanos {
        let end = match self.end {
            End::After(span) => now.saturating_add(Nanos::from_duration(span)),
            End::At(time) => time,
        };
        end.saturating_add(Nanos::new(random_up_to(Nanos::from_duration(self.jitter).as_u64())))
    }
}

/// Returns a random number from 0 to `most`. A hasher's keys are random, and differ from call to
/// call.
fn random_up_to(most: u64) -> u64 {
    if most == 0 {
        return 0;
    }
    let random = RandomState::new().hash_one(most);
    let scaled = (u128::from(random) * (u128::from(most) + 1)) >> 64;
    u64::try_from(scaled).unwrap_or(most)
}

impl<R: Rule, C: Timer> Shared<R, C> {
    /// Grants no request before the end of the pause, nor before the end of an earlier pause.
    pub(crate) fn pause(&self, pause: Pause) {
        let until = pause.end(self.clock.now());
        self.change_and_report(
            |line, visit| {
                let (changed, later) = line.pause(visit.rule, until, pause.keeps_permits);
                if changed {
                    // A lateness from before the pause would charge a request as of a time during
                    // the pause.
                    self.lateness.clear();
                    visit.rule.empty_at(line.settings.leaves_empty(), visit.deferred);
                    self.retime(line, visit);
                }
                later.then(|| until.saturating_since(visit.now).as_duration())
            },
            |events, remaining| events.paused(remaining),
        );
    }

    /// Ends a pause. Returns whether the limiter was paused.
    pub(crate) fn resume(&self) -> bool {
        self.change_and_report(
            |line, visit| {
                let paused = line.resume(visit.rule);
                if paused {
                    visit.rule.empty_at(None, visit.deferred);
                    self.retime_composites(line, visit);
                }
                paused.then_some(())
            },
            |events, ()| events.resumed(),
        )
    }

    /// Changes the pause of the queue, then reports the event if there is one, even if a waker
    /// panics in between. Returns whether there is one.
    pub(crate) fn change_and_report<E: Copy>(
        &self,
        change: impl FnOnce(&mut Line<R, C>, &mut Visit<'_, R>) -> Option<E>,
        report: impl Fn(&dyn Events, E),
    ) -> bool {
        let (mut event, mut panic) = (None, None);
        run(&mut panic, || self.serve_then(|line, visit| event = change(line, visit)));
        if let Some(event) = event {
            run(&mut panic, || self.report(|events| report(events, event)));
        }
        resume_panic(panic);
        event.is_some()
    }

    /// Returns how long the pause still lasts; zero if the limiter is not paused.
    pub(crate) fn paused_for(&self) -> Duration {
        if !self.gate_word.load().has(PAUSED) {
            return Duration::ZERO;
        }
        self.serve_then(|line, visit| {
            line.settings.opens_for(visit.now).saturating_since(visit.now).as_duration()
        })
    }
}

/// Pauses; any clone can set them. They apply at once to waiters, too.
impl<P: Policy, C: Timer> RateLimiter<P, C> {
    /// Pauses the limiter: grants no request before the time `until` of its
    /// [clock](RateLimiter::clock). The pause also applies to requests that already wait.
    ///
    /// [Waiting](RateLimiter::acquire) requests are served after the pause. A request
    /// [within](RateLimiter::acquire_within) a time that the pause exceeds is refused at once. The
    /// `retry_after` of a refused `try_` call covers the pause and the waiters in the queue.
    ///
    /// If several callers pause one limiter, the latest end counts. So a time in the past does
    /// nothing, and neither does a time before the end of the current pause.
    /// [`resume`](RateLimiter::resume) ends a pause; [`Nanos::MAX`] pauses until then.
    ///
    /// No permits accrue during a pause. When it ends, the limiter continues as if it were empty:
    /// permits accrue one interval apart, the first one an interval after the end. So no burst
    /// follows, and setting the same pause twice has the effect of one pause. With
    /// [`Pause::keep_permits`], the limiter continues with the permits that it had, and so it does
    /// after a [`resume`](RateLimiter::resume) before the end. A negative balance stays. A grant
    /// after the pause is never charged as of a time during the pause, even if the timer is late.
    ///
    /// | policy | after the pause |
    /// |---|---|
    /// | [`TokenBucket`](crate::TokenBucket), [`LeakyBucket`](crate::LeakyBucket), [`SmoothBursty`](crate::SmoothBursty) | is empty. A bucket with a stepped refill is filled at its next step |
    /// | [`SmoothWarmingUp`](crate::SmoothWarmingUp) | continues as if it had granted a permit at the end; it cools down during the pause |
    /// | windows and logs | count in real time, as the server does. For one more window after the end, the *k*th permit is due no earlier than *k* intervals after the end, so a whole window's permits are not available at once. A change of the rate keeps the permits that have accrued |
    /// | a [`FixedWindow`](crate::FixedWindow) that begins anew in that window | likewise; later windows are not affected |
    /// | [`Both`](crate::Both) | each of its policies behaves as if it were the only one |
    /// | other [`Policy`] | behaves as [`Policy::pause`] defines, or like a window |
    ///
    /// A call that begins after this method has returned obeys the pause; a call that overlaps with
    /// it may pass. The pause checks the deadlines of the first 4,096 waiters at once, or of the
    /// first 512 if an [`AllOf`](crate::AllOf) waits for the limiter. A waiter behind them that is
    /// now too late is refused at its deadline.
    pub fn pause_until(&self, until: Nanos) {
        self.shared.pause(Pause::until(until));
    }

    /// [Pauses](RateLimiter::pause_until) the limiter for the duration `span` from now, as a
    /// server's `Retry-After` asks for.
    ///
    /// Zero does nothing. [`Duration::MAX`] pauses until [`resume`](RateLimiter::resume) is called.
    ///
    /// After a refusal by the server, pause first, and then settle the
    /// [reservation](RateLimiter::reserve): otherwise the permits that it gives back are granted to
    /// waiters at once. A repeated call goes to the end of the queue, unless it has a higher
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

    /// [Pauses](RateLimiter::pause_until) the limiter as `pause` defines.
    pub fn pause(&self, pause: Pause) {
        self.shared.pause(pause);
    }

    /// Ends a pause now. The limiter has the permits that it had when the pause began, plus the
    /// permits given back since. Waiters that are due are granted at once. Returns whether the
    /// limiter was paused.
    ///
    /// A window counts in real time. It has no more permits than when the pause began, plus those
    /// given back since, even of grants that the window had forgotten by then; the others come back
    /// after a window's length.
    pub fn resume(&self) -> bool {
        self.shared.resume()
    }
}
