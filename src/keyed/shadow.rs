//! Shadow mode of all keys.
//!
//! The table has a flag. A request that is decided without a key limiter looks at it when it is
//! refused, and passes if it is up. So a granted request pays nothing for it, and no key is touched
//! when shadow mode begins or ends. Only the key limiters are told, since in them requests wait.
//!
//! The call that switches sets the flag, then takes the lock of each shard in turn. A key limiter
//! is made under this lock: before the call comes to its shard, and the call finds it; or
//! afterwards, and it reads the flag. A mutex lets one call pass through all shards before the next
//! begins.
//!
//! Shadow mode of all keys is not a setting of a key limiter, which would keep its key from being
//! forgotten. It is a mark beside the key limiter's own.
//!
//! **Checked by** `loom-tests/keyed.rs`, with a twin that sets the flag last, and by
//! `tests/keyed/shadow.rs`.

use std::sync::Arc;

use super::table::Table;
use crate::clock::Timer;
use crate::error::Refusal;
use crate::limiter::shared::Shared;
use crate::line::deferred::Deferred;
use crate::line::rule::Rule;
use crate::policy::Policy;
use crate::sync::{Ordering, lock, write};

impl<K, P: Policy + Clone, C: Timer> Table<K, P, C> {
    /// Whether all keys are in shadow.
    #[inline]
    pub(crate) fn is_shadow(&self) -> bool {
        // Relaxed: for a key limiter, the lock of its shard orders it. For a key without a key
        // limiter it decides how one call ends, and publishes nothing.
        self.shadow.load(Ordering::Relaxed)
    }

    /// Whether a request that is refused passes. A closed limiter refuses also in shadow.
    pub(crate) fn passes(&self, refusal: Refusal) -> bool {
        self.is_shadow() && refusal != Refusal::Closed
    }

    /// Turns shadow mode of all keys on or off.
    pub(crate) fn set_shadow(&self, shadow: bool) {
        let mut deferred = Deferred::new();
        let mut limiters = vec![self.overflow.clone()];
        {
            let _one_at_a_time = lock(&self.changing);
            // Relaxed: as `is_shadow`.
            self.shadow.store(shadow, Ordering::Relaxed);
            for shard in &self.shards {
                let shard = write(shard);
                for (_, limiter) in shard.all_limiters() {
                    deferred.run_with(|deferred| limiter.shared().shadow_with_all(shadow, deferred));
                    limiters.push(limiter.clone());
                }
            }
            self.overflow.shared().shadow_with_all(shadow, &mut deferred);
        }
        // No lock of a shard is held here, since this wakes tasks.
        drop(deferred);
        if shadow {
            limiters.iter().for_each(|limiter| limiter.shared().ring_seats());
        }
    }
}

impl<R: Rule, C: Timer> Shared<R, C> {
    /// Turns shadow mode on or off with all keys. The caller holds the lock of a shard: foreign
    /// code is left in `deferred`.
    fn shadow_with_all(self: &Arc<Self>, shadow: bool, deferred: &mut Deferred) {
        self.with_all(deferred, |line, _| line.settings.shadow_with_all = shadow);
    }

    /// Begins in the shadow mode of all keys. Runs no waker, since no request waits yet.
    pub(super) fn begin_in_shadow(&self) {
        let mut line = lock(&self.line);
        line.settings.shadow_with_all = true;
        self.store_gate_word(&line);
    }
}
