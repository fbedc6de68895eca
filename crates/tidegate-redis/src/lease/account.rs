//! What a process knows of its leases of one limit. Time is an argument.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tidegate::Nanos;
use tokio::sync::Notify;

use crate::lease::patience::Patience;
use crate::lease::stock::{LeaseCharge, Origin, Piece, Stock};
use crate::script::Reply;
use crate::terms::{Kind, Numbers, Terms, duration};

/// The time over which the use of permits is averaged, in seconds.
const MEMORY: f64 = 1.0;

/// How long a process believes what it learned: that a limit has no permit, that there are more
/// requests than permits, or that leases cannot be had. A lease that is due later than this is far
/// ahead.
pub(super) const TRUST: Nanos = Nanos::new(1_000_000_000);

/// The leases of one limit.
#[derive(Debug)]
pub(crate) struct Account {
    pub(crate) terms: Terms,
    /// The kind of the limit. A bucket that each step fills is leased like a fixed window.
    pub(super) kind: Kind,
    pub(crate) stock: Stock,
    /// Permits asked for that were not taken from the stock.
    pub(super) missed: AtomicU64,
    /// Those of the missed permits that a call of the request asked the store for, or that the
    /// store would have refused.
    pub(super) by_store: AtomicU64,
    /// Permits that queued requests wait for.
    pub(super) waiting: AtomicU64,
    /// The most permits of one queued request.
    pub(super) largest: AtomicU64,
    /// The most permits that requests which [stay in the queue](Patience::min_wait) waited for
    /// since the last booking. This is not what they wait for now: while requests are served, only
    /// a part of them is in the queue.
    pub(super) most_waiting: AtomicU64,
    /// The permits of bookings that have no reply yet, except those that would be due sooner than
    /// permits on lease.
    pub(super) coming: AtomicU64,
    pub(super) patience: Arc<Patience>,
    kick: Arc<Notify>,
}

impl Account {
    pub(super) fn new(terms: Terms, patience: Arc<Patience>, kick: Arc<Notify>) -> Account {
        Account {
            kind: if terms.numbers.window().is_some() { Kind::Fixed } else { terms.kind() },
            terms,
            stock: Stock::new(),
            missed: AtomicU64::default(),
            by_store: AtomicU64::default(),
            waiting: AtomicU64::default(),
            largest: AtomicU64::default(),
            most_waiting: AtomicU64::default(),
            coming: AtomicU64::default(),
            patience,
            kick,
        }
    }

    /// Takes permits, and has more booked when half of them are gone.
    pub(crate) fn take(&self, at: Nanos, n: u32) -> Option<LeaseCharge> {
        let (taken, asks) = self.stock.take(at, n)?;
        if asks {
            self.kick.notify_one();
        }
        Some(taken)
    }

    /// Puts back permits that a request did not use. If they end before all others, the task that
    /// books permits learns when.
    pub(crate) fn put_back(&self, taken: LeaseCharge) {
        if self.stock.put_back(taken) {
            self.kick.notify_one();
        }
    }

    /// Returns when `n` permits are there, behind requests for `ahead` permits. Permits that are
    /// not booked may be there at the end of the time for which a request
    /// [stays](Patience::min_wait) in the queue. If requests queue only for booked permits, this
    /// holds only for permits that [are coming](Account::are_coming).
    pub(crate) fn ready_at(&self, at: Nanos, ahead: u64, n: u64) -> Nanos {
        match self.stock.ready_at(at, ahead, n) {
            Nanos::MAX if !self.patience.is_crowded(at) || self.are_coming(at, ahead, n) => {
                at.saturating_add(Nanos::from_duration(self.patience.min_wait()))
            }
            due => due,
        }
    }

    /// Returns whether `n` permits behind requests for `ahead` permits may be those of a booking
    /// that has no reply yet, or of the next one, which requests before this one need. At the
    /// store, this request would stand behind the first booking, which would serve later requests
    /// without a maximum wait, or before the second one, which is for such requests before it. If
    /// all queued requests have a maximum wait, later ones go to the store as well.
    fn are_coming(&self, at: Nanos, ahead: u64, n: u64) -> bool {
        let coming = self.coming.load(Ordering::Relaxed);
        if self.patience.endless() == 0 {
            return false;
        }
        let held = self.stock.held(at);
        held < ahead || coming > 0 && held.saturating_add(coming) >= ahead.saturating_add(n)
    }

    /// Returns all permits that were ever asked for.
    pub(super) fn asked(&self) -> u64 {
        self.stock.taken() + self.missed.load(Ordering::Relaxed)
    }

    /// Returns whether it is unknown when the window of a booking ends: it is not the window of the
    /// last booking, and there may be gaps between windows that begin with their first grant.
    pub(super) fn is_end_unknown(&self, reply: &Reply, limit: usize) -> bool {
        let Numbers::Fixed { length, offset: None, .. } = self.terms.numbers else { return false };
        let left = reply.limits[limit].full_in.saturating_sub(reply.wait);
        left > duration(length)
    }

    /// Returns how long the window of a booking lasts after its instant. The reply reports the end
    /// of the window of the last booking, which may be a later one: other bookings lie ahead, and
    /// these permits came back.
    fn left_of_window(&self, reply: &Reply, limit: usize, window: Duration) -> Duration {
        let left = reply.limits[limit].full_in.saturating_sub(reply.wait);
        if left <= window {
            return left;
        }
        if self.is_end_unknown(reply, limit) {
            return Duration::ZERO;
        }
        let rest = left.as_micros() % window.as_micros().max(1);
        u64::try_from(rest).ok().filter(|rest| *rest > 0).map_or(window, Duration::from_micros)
    }

    /// Returns what an order that was sent brings at one limit, by a reply that comes now.
    pub(super) fn piece(&self, sent: Nanos, now: Nanos, reply: &Reply, limit: usize) -> Piece {
        let after = |from: Nanos, span: Duration| from.saturating_add(Nanos::from_duration(span));
        // The permits are not usable before they are due: the reply was made earlier, by its time
        // on the way back.
        let usable = after(now, reply.wait);
        let mut ends = after(sent, reply.wait.saturating_add(self.life()));
        if let Some(window) = self.terms.numbers.window() {
            let left = self.left_of_window(reply, limit, window);
            ends = ends.min(after(sent, reply.wait.saturating_add(left)));
        }
        let before = reply.before.get(limit).map(|before| Arc::from(before.as_slice()));
        Piece { permits: reply.permits[limit], usable, ends, origin: Origin { due: reply.due, before } }
    }
}

/// How a limit is used, and what the store last reported about it.
#[derive(Debug, Default)]
pub(super) struct Usage {
    /// Permits asked for in a second, as of the time `at`.
    pub(super) rate: f64,
    pub(super) at: Nanos,
    /// All permits that were asked for until then.
    pub(super) asked: u64,
    /// How many were asked for when permits were booked last.
    pub(super) booked: u64,
    /// How many of them the store was asked for, by single requests or by a lease, granted or not.
    pub(super) ordered: u64,
    /// How many permits the last lease asked for.
    pub(super) lease: u64,
    /// How many permits were used, as far as they are counted.
    pub(super) used: u64,
    /// How many permits the store had left at the last report.
    pub(super) left: u64,
    pub(super) reported_at: Nanos,
    /// The limit has no permit before this time.
    pub(super) none_before: Nanos,
    /// Until when `none_before` is believed.
    pub(super) believed: Nanos,
    /// The end of a pause.
    pub(super) paused_till: Nanos,
    /// The last ending at which the permits were lost and did not go back.
    pub(super) lost: u64,
}

impl Usage {
    /// Returns the time, which is not before the report. A request may have read the clock before
    /// the reply came that it then looks at.
    pub(super) fn not_before_report(&self, now: Nanos) -> Nanos {
        now.max(self.reported_at)
    }

    /// Returns whether the limit was reported to be paused now.
    pub(super) fn is_paused(&self, now: Nanos) -> bool {
        self.not_before_report(now) < self.paused_till
    }

    /// Returns the permits left in the store, as far as is known.
    pub(super) fn left(&self, now: Nanos, limit: u64) -> u64 {
        // A limit that has no permit until its window ends has none then, either.
        let is_known = now.saturating_since(self.reported_at) < TRUST || now < self.none_before;
        if is_known { self.left } else { limit }
    }

    /// Averages the permits asked for. `asked` is the total until now.
    pub(super) fn note(&mut self, now: Nanos, asked: u64) {
        let more = asked.saturating_sub(self.asked) as f64;
        let memories = now.saturating_since(self.at).as_duration().as_secs_f64() / MEMORY;
        let kept = (-memories).exp();
        let share = if memories > 1e-6 { (1.0 - kept) / memories } else { 1.0 };
        self.rate = self.rate * kept + more / MEMORY * share;
        (self.at, self.asked) = (now.max(self.at), asked);
    }
}
