//! Applying a configuration to a limiter while it runs.

use crate::clock::Timer;
use crate::limiter::RateLimiter;
use crate::line::grants::Changed;
use crate::line::rule::Single;
use crate::line::settings::Drift;
use crate::policy::{AnyPolicy, ConfigError, Keep, PolicyConfig, Step};

impl<C: Timer> RateLimiter<AnyPolicy, C> {
    /// Returns the configuration of the terms in force, after all changes; see
    /// [`AnyPolicy::config`].
    #[must_use]
    pub fn config(&self) -> PolicyConfig {
        self.policy().config()
    }

    /// Changes the limiter to a configuration, including the kind of policy. Waiters keep their
    /// positions in the queue, and their due times are recomputed.
    ///
    /// The whole configuration is applied, or nothing. It is applied as a [`Change`](crate::Change)
    /// if a change [leads to it](PolicyConfig::change_to); then the policy defines what `keep`
    /// means. Otherwise a new policy replaces the old one, and the change makes no permit
    /// available:
    ///
    /// - [`Keep::Count`]: no more permits are available than right before the change, and no more
    ///   than the new limit less the permits that were used.
    /// - [`Keep::Ratio`]: an equal share of the limit is available, rounded down.
    /// - [`Keep::Nothing`]: the limiter is like a new one, without a negative balance.
    ///
    /// With the first two, a negative balance of a bucket or of one of Guava's policies stays that
    /// many permits, or that share; a balance that can never be paid becomes one of [`u32::MAX`]
    /// permits. The negative balance of a window ends with the window. So in any span that contains
    /// the change, at most as many permits are granted as the old policy allows until the change,
    /// plus the permits that accrue under the new policy after it. With `Keep::Nothing`, a full
    /// burst or limit is granted in addition. `Unlimited` and `DenyAll` have no state: after
    /// `Unlimited`, the new policy begins as in a new limiter, and after `DenyAll` without permits,
    /// both without the negative balance of the policy before. To grant nothing for a while, set
    /// the rate to [`Rate::ZERO`](crate::Rate::ZERO) or pause the limiter.
    ///
    /// Permits that a window or a log counted are counted from now on in the new policy. A dropped
    /// future or a settled reservation gives back nothing of a grant made before the change. The
    /// change takes the time of one call, but the new counts of a [`SlidingLog`](crate::SlidingLog)
    /// are written one by one. The memory of the policy that the limiter was made with is kept
    /// until the limiter is dropped.
    ///
    /// A call that overlaps with the change is decided by the old or the new terms. A start option,
    /// such as `start_with`, defines the state to which a [reset](RateLimiter::reset) returns.
    ///
    /// # Errors
    ///
    /// A [`ConfigError`] if no policy can be made from the configuration; then nothing was changed.
    ///
    /// # Examples
    ///
    /// ```
    /// use tidegate::{AnyPolicy, Keep, ManualClock, RateLimiter};
    ///
    /// let policy: AnyPolicy = "token_bucket 5/s burst 10".parse()?;
    /// let limiter = RateLimiter::with_clock(policy, ManualClock::new());
    /// limiter.try_acquire_many(4)?;
    /// limiter.apply(&"sliding_log 100/min".parse()?, Keep::Count)?;
    /// // 6 were available, and 4 of 100 are used.
    /// assert_eq!(limiter.status().available, 6);
    /// limiter.apply(&"fixed_window 100/min".parse()?, Keep::Nothing)?;
    /// assert_eq!(limiter.status().available, 100);
    /// assert_eq!(limiter.config().to_string(), "fixed_window 100/min");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn apply(&self, config: &PolicyConfig, keep: Keep) -> Result<(), ConfigError> {
        let epoch = self.shared.clock.unix_time_at_zero();
        // A replaced policy is dropped by the next change, or with the limiter.
        self.shared.serve_then(|line, visit| {
            let step = self.policy().step_to(config, epoch)?;
            let replaces = matches!(step, Step::Replace(_));
            if replaces {
                // A remaining lateness would charge a request as of a time before the change.
                self.shared.lateness.clear();
            }
            let at = visit.now;
            let changed = Changed { only: None, drift: Drift::Own, keep: Some(keep), replaces };
            self.shared.change_terms(line, visit, changed, |Single { policy, state }, now| {
                policy.make_step(state, at, now, step, keep)
            })
        })
    }
}
