//! The rate of a limiter, changed according to the responses of a server.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tidegate::{Nanos, Rate};

/// The share of the rate that is kept after a refusal. TCP's CUBIC and the AWS clients keep the
/// same share.
const AFTER_REFUSAL: f64 = 0.7;

/// The seconds of success that raise the rate from the floor to the ceiling.
const RECOVERY: f64 = 60.0;

/// The factor by which the rate rises at most each second towards a higher rate that a server
/// reports. So one response that reports a higher rate than the others has little effect.
const RAISE: f64 = 1.1;

/// The smallest relative change of the rate that is applied. A smaller one is not worth
/// rescheduling the waiters.
const NOTICEABLE: f64 = 0.01;

/// Changes the rate of a limiter according to a server's responses, between a floor and a ceiling.
/// The ceiling is the configured rate of the limiter.
///
/// A pace does nothing until [`learn`](Pace::learn) or [`adapt`](Pace::adapt) is set. If both are
/// set, the lower rate counts.
///
/// # Examples
///
/// The client calls a server that reports nothing but 429 less often:
///
/// ```
/// use http::{HeaderMap, StatusCode};
/// use std::time::Duration;
/// use tidegate::{ManualClock, Rate, RateLimiter, TokenBucket};
/// use tidegate_http::obey::{Obey, Options, Pace};
///
/// let clock = ManualClock::new();
/// let policy = TokenBucket::new(Rate::per_second(10), 10);
/// let limiter = RateLimiter::with_clock(policy, clock.clone());
/// let paced = limiter.clone();
/// let pace =
///     Pace::between(Rate::per_second(1), Rate::per_second(10), move |rate| {
///         paced.set_rate(rate)
///     });
/// let options = Options::new().clock(clock.clone()).pace(pace.adapt());
/// let api = Obey::with_options(limiter.clone(), options);
///
/// api.try_acquire()?.obey(StatusCode::TOO_MANY_REQUESTS, &HeaderMap::new());
/// assert_eq!(limiter.status().rate, Rate::per_second(7));
/// # Ok::<(), tidegate::AllRefusal>(())
/// ```
///
/// # Source
///
/// Additive increase, multiplicative decrease: Chiu and Jain, "Analysis of the increase and
/// decrease algorithms for congestion avoidance in computer networks", 1989.
#[derive(Clone)]
#[must_use = "a pace does nothing unless it is given to the options"]
pub struct Pace {
    member: Option<String>,
    floor: f64,
    ceiling: f64,
    ceiling_as_given: Rate,
    learns: bool,
    adapts: bool,
    set: Arc<dyn Fn(Rate) + Send + Sync>,
}

impl Pace {
    /// Creates a pace that sets rates between `floor` and `ceiling`. If the floor is above the
    /// ceiling, the ceiling is also the floor.
    pub fn between(floor: Rate, ceiling: Rate, set: impl Fn(Rate) + Send + Sync + 'static) -> Self {
        let ceiling_as_given = ceiling;
        // An unlimited rate is infinite, and infinity cannot be scaled.
        let ceiling = ceiling.as_per_second().min(f64::MAX);
        let floor = floor.as_per_second().clamp(0.0, ceiling);
        let set = Arc::new(set);
        Self { member: None, floor, ceiling, ceiling_as_given, learns: false, adapts: false, set }
    }

    /// Restricts learning to limits of this member of the limiter. Without this call, a pace learns
    /// from the limits of a single limiter and from limits that count calls.
    pub fn of_member(self, member: impl Into<String>) -> Self {
        Self { member: Some(member.into()), ..self }
    }

    /// Follows the limits that the server reports with their windows. A lower rate applies at once;
    /// a higher one is approached gradually.
    ///
    /// Learning spreads calls, and costs throughput if windows are short. The units that the server
    /// allows until a reset apply as well. At the server's own rate, these units last for the whole
    /// window, resets are reported in whole seconds, and a limiter at that rate does not make up
    /// for the pause until the next window. In simulations of servers with windows of 1 s and 5 s,
    /// a client that learns got 44 to 50 % of the server's limit, and a client that does not learn
    /// got 74 to 93 %.
    pub fn learn(self) -> Self {
        Self { learns: true, ..self }
    }

    /// Lowers the rate with each refusal, and raises it while calls succeed: for servers that
    /// report no limits. Refusals of several calls in flight together count once. It needs a
    /// ceiling: below [`Rate::UNLIMITED`], thousands of refusals make no rate that a limiter would
    /// notice.
    pub fn adapt(self) -> Self {
        Self { adapts: true, ..self }
    }

    pub(super) fn member(&self) -> Option<&str> {
        self.member.as_deref()
    }
}

impl fmt::Debug for Pace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pace")
            .field("member", &self.member)
            .field("floor", &self.floor)
            .field("ceiling", &self.ceiling)
            .field("learns", &self.learns)
            .field("adapts", &self.adapts)
            .finish_non_exhaustive()
    }
}

/// The state of a pace in use. Rates are permits per second.
pub(super) struct Pacing {
    pace: Pace,
    state: Mutex<State>,
}

struct State {
    learned: f64,
    adapted: f64,
    /// The times at which the two rates last changed.
    learned_at: Nanos,
    adapted_at: Nanos,
    /// The rate that was last set.
    applied: f64,
    /// A thread is calling `set`, and also applies later changes. So the last rate is set last, and
    /// no lock is held meanwhile.
    is_setting: bool,
}

impl Pacing {
    pub(super) fn new(pace: Pace, now: Nanos) -> Self {
        let Pace { ceiling, .. } = pace;
        let state = State {
            learned: ceiling,
            adapted: ceiling,
            learned_at: now,
            adapted_at: now,
            applied: ceiling,
            is_setting: false,
        };
        Self { pace, state: Mutex::new(state) }
    }

    pub(super) fn pace(&self) -> &Pace {
        &self.pace
    }

    /// Learns that the server reports a limit of `reported` permits per second, which is positive.
    pub(super) fn learn(&self, now: Nanos, reported: f64) {
        if !self.pace.learns {
            return;
        }
        let reported = reported.clamp(self.pace.floor, self.pace.ceiling);
        let mut state = self.state();
        let passed = seconds(now.saturating_since(state.learned_at));
        if reported <= state.learned {
            state.learned = reported;
            state.learned_at = now;
        } else if passed >= 1.0 {
            state.learned = reported.min(state.learned * RAISE);
            state.learned_at = now;
        }
        drop(state);
        self.apply();
    }

    /// Lowers the rate after the refusal of a call that began after the last refusal.
    pub(super) fn refused(&self, now: Nanos) {
        if !self.pace.adapts {
            return;
        }
        let mut state = self.state();
        state.adapted = (state.adapted * AFTER_REFUSAL).max(self.pace.floor);
        state.adapted_at = now;
        drop(state);
        self.apply();
    }

    /// Raises the rate after a successful call.
    pub(super) fn succeeded(&self, now: Nanos) {
        if !self.pace.adapts {
            return;
        }
        let Pace { floor, ceiling, .. } = self.pace;
        let mut state = self.state();
        // A period without calls says nothing about the server, so at most one second counts.
        let passed = seconds(now.saturating_since(state.adapted_at)).min(1.0);
        state.adapted = ((ceiling - floor) / RECOVERY).mul_add(passed, state.adapted).min(ceiling);
        state.adapted_at = now;
        drop(state);
        self.apply();
    }

    /// Sets the rate if it changed enough.
    fn apply(&self) {
        let mut setting = Setting { pacing: self, is_mine: false };
        while let Some(rate) = self.next(&mut setting) {
            (self.pace.set)(rate);
        }
    }

    /// Returns the rate to set, if it changed and no other thread is setting it.
    fn next(&self, setting: &mut Setting<'_>) -> Option<Rate> {
        let Pace { floor, ceiling, ceiling_as_given, .. } = self.pace;
        let mut state = self.state();
        if state.is_setting && !setting.is_mine {
            return None;
        }
        let rate = state.learned.min(state.adapted);
        let is_bound = rate <= floor || rate >= ceiling;
        let change = (rate - state.applied).abs();
        let differs = if is_bound { change > 0.0 } else { change > NOTICEABLE * state.applied };
        let rate_to_set = match Rate::from_per_second(rate) {
            Ok(_) if rate >= ceiling => Some(ceiling_as_given),
            Ok(rate) => Some(rate),
            // A rate of zero would stop the limiter for good.
            Err(_) => None,
        };
        let rate_to_set = rate_to_set.filter(|_| differs);
        if rate_to_set.is_some() {
            state.applied = rate;
        }
        // This happens under the same lock that found nothing left to set: a later change finds no
        // setter, and becomes the setter.
        state.is_setting = rate_to_set.is_some();
        setting.is_mine = rate_to_set.is_some();
        rate_to_set
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The right to set the rate. It is given up even if `set` panics.
struct Setting<'a> {
    pacing: &'a Pacing,
    is_mine: bool,
}

impl Drop for Setting<'_> {
    fn drop(&mut self) {
        if self.is_mine {
            self.pacing.state().is_setting = false;
        }
    }
}

fn seconds(span: Nanos) -> f64 {
    Duration::from(span).as_secs_f64()
}

impl fmt::Debug for Pacing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.pace.fmt(f)
    }
}
