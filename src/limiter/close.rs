//! Closing a limiter permanently.

use crate::clock::Timer;
use crate::limiter::RateLimiter;
use crate::limiter::gate_word::PAUSED;
use crate::limiter::shared::Shared;
use crate::line::deferred::{resume_panic, run};
use crate::line::rule::Rule;
use crate::policy::Policy;
use crate::sync::lock;

impl<R: Rule, C: Timer> Shared<R, C> {
    /// Grants no further request, and refuses all waiters. Returns whether the limiter was open.
    pub(crate) fn close(&self) -> bool {
        let (mut was_open, mut has_seats, mut panic) = (false, false, None);
        let visit = || {
            self.serve_then(|line, visit| {
                was_open = line.settings.close();
                has_seats = !line.seats.is_empty();
                self.lateness.clear();
                // The waiters in the queue are refused when it is served, at the end of the visit.
                self.retime(line, visit);
            });
        };
        run(&mut panic, visit);
        if was_open && has_seats {
            // `retime` notifies only the first composites.
            run(&mut panic, || self.notify_seats());
        }
        resume_panic(panic);
        was_open
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.gate_word.load().has(PAUSED) && lock(&self.line).settings.closed
    }
}

/// Closing; any clone can do it.
impl<P: Policy, C: Timer> RateLimiter<P, C> {
    /// Closes the limiter permanently. From then on no request gets a permit, and all waiters are
    /// refused at once with [`Refusal::Closed`](crate::Refusal::Closed): tasks, blocked threads and
    /// reservations. Permits granted earlier stay granted. Returns whether the limiter was open.
    ///
    /// Use it to end a program in which tasks or threads wait. An [exempt](crate::Request::exempt)
    /// request still passes. Requests of an [`AllOf`](crate::AllOf) that wait for this limiter are
    /// refused, too.
    ///
    /// # Examples
    ///
    /// ```
    /// use tidegate::{Rate, RateLimiter, Refusal};
    ///
    /// let limiter = RateLimiter::smooth_bursty(Rate::per_hour(1));
    /// limiter.blocking_acquire()?;
    /// let worker = std::thread::spawn({
    ///     let limiter = limiter.clone();
    ///     move || limiter.blocking_acquire() // would take an hour
    /// });
    /// limiter.close();
    /// assert_eq!(worker.join().unwrap(), Err(Refusal::Closed));
    /// assert_eq!(limiter.try_acquire(), Err(Refusal::Closed));
    /// # Ok::<(), Refusal>(())
    /// ```
    pub fn close(&self) -> bool {
        self.shared.close()
    }

    /// Returns whether the limiter was [closed](RateLimiter::close).
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.shared.is_closed()
    }
}
