//! How large a lease of one limit is, and how often it is asked for.
//!
//! Let *r* be the permits asked for in a second, *H* the horizon, *C* the limit and *L* the permits
//! left in the store. A lease has r·H permits. While L is a tenth of C or more, it has at most C/2
//! ÷ processes. Below that the lease does not shrink: it is booked ahead, and is usable when its
//! permits have accrued. Its first permit is due within *W*, the maximum wait of most requests of
//! this process, so that the lease goes before no request of another process. A booking without a
//! maximum wait is made for a queued request that has none. As long as no request is refused, a
//! lease of a sliding window is at most a 16th of C: of two leases of 0.6 C one fits, and the rest
//! of the window would not be used. In a fixed window nothing accrues: there a lease is at most
//! half of L ÷ processes, so the last permits are decided one by one.
//!
//! # Loops of several processes
//!
//! A loop that awaits its permits asks for as many as it was granted. So with r as the only measure
//! a process that received many permits would continue to receive many, and a process that joins
//! would receive few forever. Without leases each queued request has its own booking at the store,
//! and processes receive permits in proportion to the lengths *w* of their queues, in permits.
//!
//! So while such requests are queued, a lease has √(w·r·T) permits, where T is 8H. The parts of the
//! processes in the store's queue are then proportional to the square roots of w·r: a part that is
//! too small for its w grows, a part that is too large shrinks, and only parts proportional to w
//! stay. Because r is an average over a second, the logarithm of the error of a part falls by half
//! in 1.4 seconds. A single process takes r·H permits, and so do all processes while a tenth of a
//! bucket is left. Loops use up a window while it has more than that: there a lease has √(w·r·T)
//! permits if r·H is 2 or more.
//!
//! All leases together keep the limit booked for √(T·q), where *q* is the time in which the permits
//! accrue that all queued requests wait for. If that is W or more, the store refuses a process that
//! joins. So once less than a tenth of C is left, T is W if that is less than 8H. The limit is then
//! booked for less than W/2 while q is less than W/4. H is then W if that is less than 100 ms. A
//! lease has no more permits than accrue over W/2, or over W/4 if no queued request counts. A fixed
//! window is not booked ahead, so there H stays and T is 8H. Nor are leases adapted to maximum
//! waits of less than 10 ms, because a call takes a part of such a wait.
//!
//! A request with a maximum wait counts as such a request if it may wait for 200 ms or for W/2, and
//! as long as no request is refused. A loop that waits asks for what the limit has, so its requests
//! are not refused unless there are more tasks than permits in the maximum wait. Requests that come
//! regardless of the limit are soon refused if they are too many: then each of them is asked for
//! once, as [`ledger`](crate::lease::ledger) explains. The number of queued requests does not
//! distinguish these two cases, because by Little's law it is the number of grants during the wait
//! of one request.

use std::sync::atomic::Ordering;
use std::time::Duration;

use tidegate::Nanos;

use crate::lease::account::{Account, Usage};
use crate::terms::{Kind, Numbers, duration};

/// The horizon of a lease, and the largest horizon of a lease of a fixed window.
pub(super) const HORIZON: Duration = Duration::from_millis(100);
const LONGEST_HORIZON: Duration = Duration::from_secs(5);

/// The 8 of T. With a larger number there are fewer calls, and requests queue for longer: with half
/// of it, two loops at 2000/s make 0.036 calls a permit rather than 0.025.
pub(super) const FOR_EACH: u32 = 8;

impl Account {
    fn horizon(&self) -> Duration {
        let window = self.terms.numbers.window();
        window.map_or(HORIZON, |length| (length / 32).clamp(HORIZON, LONGEST_HORIZON))
    }

    /// Returns whether leases of this limit are booked too slowly. A lease must last for two round
    /// trips. A lease of a sliding window has a sixteenth of the permits, and is booked when the
    /// last one is half used. The leases of a fixed window end with it: in a window of ten round
    /// trips, queued requests waited for leases of later windows, while the store served others.
    pub(super) fn is_too_slow(&self, round_trip: Duration) -> bool {
        let length = match self.terms.numbers {
            Numbers::Bucket(_) | Numbers::Fixed { .. } => self.terms.numbers.window(),
            Numbers::Cells { length, cells, .. } => Some(duration(length.saturating_mul(cells))),
            Numbers::Estimate { length, .. } | Numbers::Log { length, .. } => Some(duration(length)),
        };
        length.is_some_and(|length| length < 16 * round_trip) || self.life() < 2 * round_trip
    }

    pub(super) fn life(&self) -> Duration {
        2 * self.horizon()
    }

    /// Returns the horizon, or this part of the maximum wait if that is less. A fixed window is not
    /// booked ahead.
    fn part_of_wait(&self, part: u32) -> Duration {
        match self.kind {
            Kind::Fixed => self.horizon(),
            _ => (self.patience.longest() / part).min(self.horizon()),
        }
    }

    /// Returns the permits that accrue over a time.
    fn come_in(&self, time: Duration) -> f64 {
        self.terms.rate.as_per_second() * time.as_secs_f64()
    }

    /// Returns the most permits of a lease over `time`, for requests that all get permits in
    /// the end.
    fn part(&self, time: Duration) -> f64 {
        self.come_in(time).min(self.part_of_window())
    }

    /// Returns the most permits of a lease of a sliding window, while no requests are refused.
    /// Permits of the window that are too few for one more lease are in no lease. So a lease is a
    /// part of the window.
    fn part_of_window(&self) -> f64 {
        match self.kind {
            Kind::Bucket | Kind::Fixed => f64::INFINITY,
            Kind::Cells | Kind::Estimate | Kind::Log => self.terms.limit as f64 / 16.0,
        }
    }

    /// Returns how many permits a lease has at least for queued requests that wait for `waiting`
    /// permits. A lease of a fixed window has no such minimum except the largest request. The store
    /// books no more than the limit at one time.
    pub(super) fn for_queue(&self, waiting: u64) -> u64 {
        let part = match self.kind {
            Kind::Fixed => 0,
            _ => whole(self.part(self.part_of_wait(2))),
        };
        self.largest.load(Ordering::Relaxed).max(part).min(waiting).min(self.terms.limit)
    }

    /// Returns the most permits of a lease while there are more requests than permits.
    pub(super) fn most(&self, size: u64) -> u64 {
        let comes_in = whole(self.come_in(self.part_of_wait(1)));
        match self.kind {
            Kind::Fixed => size,
            _ => comes_in.min(self.terms.limit).max(1),
        }
    }

    /// Returns how large a lease is at least for requests of several costs, which ask for `more`
    /// permits besides the first: a lease of that size serves some requests. At a window it serves
    /// many, because permits that are too few for one more lease are not used.
    pub(super) fn serves(&self, more: f64) -> f64 {
        match self.kind {
            Kind::Bucket => 4.0 * more,
            Kind::Fixed | Kind::Cells | Kind::Estimate | Kind::Log => 64.0 * more,
        }
    }

    /// Returns how often a lease is asked for while there are more requests than permits and a
    /// process asks for `size` permits over the horizon. The store grants all of a lease or
    /// nothing: small leases make equal shares sooner, and large leases take fewer calls.
    pub(super) fn pace(&self, size: u64) -> Duration {
        const SMALL: f64 = 32.0;
        let size = size.max(1) as f64;
        // A lease of more than half of the limit may never fit.
        let fits = self.terms.limit as f64 / 2.0 / size;
        self.part_of_wait(1).mul_f64((SMALL / size).clamp(0.25, 1.0).min(fits.max(0.01)))
    }

    /// Returns how much later than its first permit the last permit of a lease is due.
    pub(super) fn span(&self, n: u64) -> Duration {
        match self.kind {
            Kind::Fixed => Duration::ZERO,
            _ => {
                let per_second = self.terms.rate.as_per_second();
                let span = Duration::try_from_secs_f64(n.saturating_sub(1) as f64 / per_second);
                span.unwrap_or(Duration::ZERO).min(HORIZON)
            }
        }
    }

    /// Returns how many permits a lease has that is booked now.
    pub(super) fn size(&self, now: Nanos, usage: &mut Usage, is_overloaded: bool, processes: u64) -> u64 {
        usage.note(now, self.asked());
        let waiting = self.waiting.load(Ordering::Relaxed) as f64;
        let limit = self.terms.limit;
        let left = usage.left(now, limit);
        let is_plenty = left >= limit / 10 && !is_overloaded;
        let horizon = if is_plenty { self.horizon() } else { self.part_of_wait(1) };
        let asked = usage.rate * horizon.as_secs_f64();
        let most_waiting = self.most_waiting.load(Ordering::Relaxed) as f64;
        // Loops use up a window at its beginning, while it has many permits left. A process that
        // would not lease does not lease then, either.
        let is_shared = processes > 1 && (!is_plenty || self.kind != Kind::Bucket && asked >= 2.0);
        let has_queue = is_shared && most_waiting > 0.0;
        let most = match (is_overloaded, is_plenty) {
            (true, _) => self.come_in(horizon),
            (_, true) => self.part_of_window(),
            _ => self.part(self.part_of_wait(if has_queue { 2 } else { 4 })),
        };
        let wish = if has_queue {
            let time = match self.kind {
                Kind::Fixed => FOR_EACH * self.horizon(),
                _ => self.patience.longest().min(FOR_EACH * HORIZON),
            };
            // The size is rounded up; otherwise a small part would not grow.
            (most_waiting * usage.rate * time.as_secs_f64()).sqrt().ceil()
        } else {
            asked
        };
        let wish = wish.max(waiting).min(most);
        let half = |permits: u64| permits / 2 / processes.max(1);
        let most = match self.kind {
            Kind::Fixed if left > 0 => half(left),
            Kind::Fixed => {
                // These leases are for a later window, and it is unknown how much that window has
                // left.
                let fits = |n: &u64| limit % n <= limit / 100;
                (1..=half(limit)).rev().find(fits).unwrap_or(1)
            }
            _ if is_plenty => half(limit),
            _ => limit,
        };
        whole(wish).clamp(1, most.max(1))
    }
}

/// Returns the whole permits of a number of permits.
///
/// The casts lose no more than its fraction: the number is never negative, and a number beyond all
/// integers becomes the largest integer.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
pub(super) fn whole(permits: f64) -> u64 {
    permits as u64
}
