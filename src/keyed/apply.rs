//! Applies a configuration to all keys while they are in use.

use std::hash::Hash;

use crate::clock::Timer;
use crate::keyed::KeyedRateLimiter;
use crate::policy::{AnyPolicy, ConfigError, Keep, PolicyConfig, Step};

impl<K: Hash + Eq, C: Timer + Clone> KeyedRateLimiter<K, AnyPolicy, C> {
    /// Changes all keys without a plan or their own terms to a configuration, like
    /// [`change_all`](KeyedRateLimiter::change_all). `keep` says what happens to their permits.
    ///
    /// The configuration is applied completely or not at all: a configuration that no
    /// [`Change`](crate::Change) [leads to](PolicyConfig::change_to) is an error. In contrast to
    /// [`RateLimiter::apply`](crate::RateLimiter::apply), this method does not change the kind of
    /// the policy. To change the kind, return one [plan](KeyedRateLimiter::with_plans) for all keys
    /// and call [`replan`](KeyedRateLimiter::replan).
    ///
    /// # Errors
    ///
    /// - [`ConfigError::Replaces`] if no change leads from the policy of all keys to this
    ///   configuration.
    /// - Another [`ConfigError`] if the configuration describes no valid policy.
    ///
    /// # Examples
    ///
    /// ```
    /// use tidegate::{AnyPolicy, Keep, KeyedRateLimiter, ManualClock};
    ///
    /// let policy: AnyPolicy = "token_bucket 5/s burst 10".parse()?;
    /// let users: KeyedRateLimiter<String, _, _> =
    ///     KeyedRateLimiter::with_clock(policy, 1000, ManualClock::new());
    /// users.try_acquire_many("alice", 8)?;
    /// users.apply_all(&"token_bucket 50/s burst 100".parse()?, Keep::Count)?;
    /// assert_eq!(users.status("alice").available, 2);
    /// assert_eq!(users.policy().to_string(), "token_bucket 50/s burst 100");
    ///
    /// let error =
    ///     users.apply_all(&"fixed_window 50/s".parse()?, Keep::Count).unwrap_err();
    /// let message = "cannot change token_bucket 50/s burst 100 to fixed_window 50/s in place; \
    ///             create a new limiter";
    /// assert_eq!(error.to_string(), message);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn apply_all(&self, config: &PolicyConfig, keep: Keep) -> Result<(), ConfigError> {
        let policy = self.policy();
        match policy.step_to(config, self.table.clock.unix_time_at_zero())? {
            Step::Change(change) => Ok(self.change_all(change.keep(keep))?),
            Step::Replace(_) => {
                let [old, new] = [policy.to_string(), config.to_string()].map(Into::into);
                Err(ConfigError::Replaces { old, new })
            }
        }
    }
}
