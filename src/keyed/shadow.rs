//! Shadow mode of all keys.
//!
//! The table has a flag. A request that is decided without a key limiter reads the flag when it is
//! refused, and passes if the flag is set. So a granted request pays nothing, and no key is touched
//! when shadow mode begins or ends. Only the key limiters are notified, because requests wait in
//! them.
//!
//! The call that switches the mode sets the flag, then takes the lock of each shard in turn. A key
//! limiter is created under this lock. If it is created before the call reaches its shard, the call
//! finds it. If it is created afterwards, it reads the flag. A mutex lets one call pass through all
//! shards before the next call begins.
//!
//! Shadow mode of all keys is not a setting of a key limiter: a setting would keep its key from
//! being forgotten. It is a separate flag next to the key limiter's own shadow mode.
//!
//! **Checked by** `loom-tests/keyed.rs`, with a twin that sets the flag last, and by
//! `tests/keyed/shadow.rs`.

use std::sync::Arc;

use super::key_limiters::KeyLimiter;
use super::table::Table;
use crate::clock::Timer;
use crate::error::Refusal;
use crate::limiter::change::TIMES_CHANGED;
use crate::limiter::shared::Shared;
use crate::line::deferred::{Deferred, resume_panic, run};
use crate::line::rule::Rule;
use crate::policy::Policy;
use crate::sync::{Ordering, lock, write};
use crate::time::Nanos;

impl<K, P: Policy + Clone, C: Timer> Table<K, P, C> {
    /// Returns whether all keys are in shadow mode.
    #[inline]
    pub(crate) fn is_shadow(&self) -> bool {
        // Relaxed: for a key limiter, the lock of its shard orders the flag. For a key without a
        // key limiter, the flag decides how one call ends, and publishes nothing.
        self.shadow.load(Ordering::Relaxed)
    }

    /// Returns whether a refused request passes. A closed limiter refuses even in shadow mode.
    pub(crate) fn passes(&self, refusal: Refusal) -> bool {
        self.is_shadow() && refusal != Refusal::Closed
    }

    /// Turns shadow mode of all keys on or off.
    pub(crate) fn set_shadow(&self, shadow: bool) {
        let mut deferred = Deferred::new();
        let mut limiters = vec![self.overflow.limiter.clone()];
        {
            let _one_at_a_time = lock(&self.changing);
            // Relaxed: as in `is_shadow`.
            self.shadow.store(shadow, Ordering::Relaxed);
            for shard in &self.shards {
                let shard = write(shard);
                for (_, KeyLimiter { limiter, .. }) in shard.all_limiters() {
                    deferred.run_with(|deferred| limiter.shared.shadow_with_all(shadow, deferred));
                    limiters.push(limiter.clone());
                }
            }
            deferred.run_with(|deferred| self.overflow.limiter.shared.shadow_with_all(shadow, deferred));
        }
        // No lock of a shard is held here, because this wakes tasks.
        let mut panic = None;
        run(&mut panic, || drop(deferred));
        for limiter in &limiters {
            run(&mut panic, || limiter.shared.notify_seats());
        }
        resume_panic(panic);
    }
}

impl<R: Rule, C: Timer> Shared<R, C> {
    /// Turns shadow mode on or off with all keys. The caller holds the lock of a shard: user code
    /// is left in `deferred`.
    fn shadow_with_all(self: &Arc<Self>, shadow: bool, deferred: &mut Deferred) {
        self.with_all(Nanos::ZERO, deferred, |line, _| line.settings.shadow_with_all = shadow);
        // Release: see `retime_composites`.
        self.changes.fetch_add(TIMES_CHANGED, Ordering::Release);
    }

    /// Starts in the shadow mode of all keys. Runs no waker, because no request waits yet.
    pub(super) fn begin_in_shadow(&self) {
        let mut line = lock(&self.line);
        line.settings.shadow_with_all = true;
        self.store_gate_word(&line);
    }
}
