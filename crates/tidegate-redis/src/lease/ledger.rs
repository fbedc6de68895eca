//! What a process knows of its leases, and what it does next. Time is an argument.
//!
//! # Size of a lease
//!
//! With *r* permits asked for in a second, *H* the horizon, *C* the limit and *L* the permits left
//! in the store: r·H permits. While L is a tenth of C or more, at most C/2 ÷ processes. Below that
//! the lease does not shrink: it is booked ahead, and usable when it is earned. A booking whose
//! first permit is due later than 2H is made for waiting requests alone: a limit on its last permit
//! would refuse large leases where small ones fit, and so busy processes. A fixed window earns
//! nothing: there a lease is at most half of L ÷ processes, so the last permits are decided one by
//! one.
//!
//! More is booked when half of a lease is used. A lease ends at 2H, counted from the moment at
//! which its booking was sent or becomes usable. That is earlier, by the way to the server, than 2H
//! by the clock of the server.
//!
//! # Invariant
//!
//! Each permit that a process grants from a lease was debited before, at most 2H and no earlier
//! than the beginning of a fixed window that is still open. So in any span *d* a limit grants at
//! most what its policy grants in d + 2H, and a fixed window what it grants without leases.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tidegate::{Nanos, Refusal};
use tokio::sync::Notify;

use crate::lease::counts::LeaseCounters;
use crate::lease::stock::{Origin, Piece, Stock, Taken};
use crate::script::{Answer, Operation, Reply};
use crate::set::{Costs, Undecided};
use crate::terms::{Kind, Terms};

/// The horizon of a lease, and of a lease of a fixed window at most.
pub(super) const HORIZON: Duration = Duration::from_millis(100);
const LONGEST_HORIZON: Duration = Duration::from_secs(5);

/// The time over which the use of permits is averaged, in seconds.
const MEMORY: f64 = 1.0;

/// How long a process believes that a limit has no permit.
const TRUST: Nanos = Nanos::new(1_000_000_000);

/// How long nothing is booked at least after a call that failed.
const REST: Nanos = Nanos::new(5_000_000);

/// So many pieces may be booked at one time.
const MOST_PIECES: usize = 64;

/// The leases of one limit.
#[derive(Debug)]
pub(crate) struct Account {
    pub(crate) terms: Terms,
    pub(crate) stock: Stock,
    /// Permits asked for that were not taken from the stock.
    missed: AtomicU64,
    /// Permits that requests in line wait for, and the most of one request.
    waiting: AtomicU64,
    largest: AtomicU64,
    kick: Arc<Notify>,
}

impl Account {
    /// Takes permits, and has more booked when half of them are gone.
    pub(crate) fn take(&self, at: Nanos, n: u32) -> Option<Taken> {
        let (taken, asks) = self.stock.take(at, n)?;
        if asks {
            self.kick.notify_one();
        }
        Some(taken)
    }

    fn horizon(&self) -> Duration {
        match self.terms.kind {
            Kind::Fixed => {
                let length = Duration::from_micros(self.terms.numbers[1].unsigned_abs());
                (length / 32).clamp(HORIZON, LONGEST_HORIZON)
            }
            _ => HORIZON,
        }
    }

    fn life(&self) -> Duration {
        2 * self.horizon()
    }
}

/// The leases of the limits of one set.
#[derive(Debug)]
pub(crate) struct Ledger {
    pub(crate) accounts: Vec<Arc<Account>>,
    pub(crate) kick: Arc<Notify>,
    /// How many processes lease, as far as is known.
    processes: AtomicU64,
    counters: Arc<LeaseCounters>,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    limits: Vec<Use>,
    /// Nothing is booked ahead before this time, and nothing at all before that one.
    rests: Nanos,
    away: Nanos,
    /// How often the leases were ended: a booking that was asked for before goes back.
    endings: u64,
}

/// How a limit is used, and what the store told of it last.
#[derive(Clone, Debug)]
struct Use {
    /// Permits asked for in a second, as of a time, and all that were asked for until then.
    rate: f64,
    at: Nanos,
    asked: u64,
    /// How many were asked for when permits were booked last.
    booked: u64,
    /// How many permits were used, as far as they are counted.
    used: u64,
    left: u64,
    told: Nanos,
    /// The limit has no permit before this time, which is believed until another time.
    none_before: Nanos,
    believed: Nanos,
}

/// What the task that books permits does next.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Plan {
    Back(Vec<Return>),
    Book(Order),
    /// The requests in line are to be told that no lease serves them. Then as for a rest.
    Fail(Nanos),
    /// Nothing, until a time or a kick.
    Rest(Nanos),
    /// Nothing is on lease, and no request waits.
    Idle,
}

/// Permits that go back to the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Return {
    pub(crate) limit: usize,
    pub(crate) permits: u64,
    pub(crate) operation: Operation,
    /// Of a booking to come the value from before it.
    pub(crate) before: Vec<u8>,
}

/// A booking to be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Order {
    pub(crate) costs: Costs,
    pub(crate) longest: Duration,
    pub(crate) sent: Nanos,
    endings: u64,
}

/// What a booking brought.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// These limits have more permits, now or later.
    Booked(Vec<usize>),
    Refused,
    /// It came when the leases had been ended.
    TooLate(Vec<Return>),
    /// No request can be served by a lease now.
    Failed,
}

impl Ledger {
    pub(crate) fn new(terms: impl Iterator<Item = Terms>, counters: Arc<LeaseCounters>) -> Ledger {
        let kick = Arc::new(Notify::new());
        let accounts: Vec<Arc<Account>> = terms
            .map(|terms| {
                let zero = || AtomicU64::new(0);
                let (missed, waiting, largest) = (zero(), zero(), zero());
                let stock = Stock::new();
                Arc::new(Account { terms, stock, missed, waiting, largest, kick: kick.clone() })
            })
            .collect();
        let limits = accounts.iter().map(|account| Use {
            rate: 0.0,
            at: Nanos::ZERO,
            asked: 0,
            booked: 0,
            used: 0,
            left: account.terms.limit,
            told: Nanos::ZERO,
            none_before: Nanos::ZERO,
            believed: Nanos::ZERO,
        });
        let state = State { limits: limits.collect(), rests: Nanos::ZERO, away: Nanos::ZERO, endings: 0 };
        Ledger { accounts, kick, processes: AtomicU64::new(1), counters, state: Mutex::new(state) }
    }

    pub(crate) fn set_processes(&self, processes: u64) {
        self.processes.store(processes, Ordering::Relaxed);
    }

    /// A request was not served from the leases.
    pub(crate) fn missed(&self, costs: &Costs) {
        for (account, (n, _)) in self.accounts.iter().zip(costs) {
            account.missed.fetch_add(*n, Ordering::Relaxed);
        }
    }

    /// A request joins the line, until it [leaves](Ledger::leaves).
    pub(crate) fn joins(&self, costs: &Costs) {
        for (account, (n, _)) in self.accounts.iter().zip(costs) {
            account.largest.fetch_max(*n, Ordering::Relaxed);
            // SeqCst: see `Leases::drive`.
            account.waiting.fetch_add(*n, Ordering::SeqCst);
        }
        self.kick.notify_one();
    }

    pub(crate) fn leaves(&self, costs: &Costs) {
        for (account, (n, _)) in self.accounts.iter().zip(costs) {
            if account.waiting.fetch_sub(*n, Ordering::Relaxed) == *n {
                account.largest.store(0, Ordering::Relaxed);
            }
        }
        self.kick.notify_one();
    }

    /// Whether requests are in line.
    pub(crate) fn has_waiting(&self) -> bool {
        self.accounts.iter().any(|account| account.waiting.load(Ordering::SeqCst) > 0)
    }

    /// When a request could be served, by the bookings that were made.
    pub(crate) fn ready_at(&self, at: Nanos, costs: &Costs) -> Nanos {
        let due =
            self.accounts.iter().zip(costs).filter(|(_, (n, _))| *n > 0).map(|(account, (n, _))| {
                account.stock.ready_at(at, account.waiting.load(Ordering::Relaxed), *n)
            });
        due.max().unwrap_or(at)
    }

    /// Whether requests in line wait for more permits of a limit than are booked.
    pub(crate) fn is_short(&self, now: Nanos, costs: &Costs) -> bool {
        self.accounts.iter().zip(costs).any(|(account, (n, _))| {
            let (usable, later) = account.stock.held(now);
            *n > 0 && account.waiting.load(Ordering::Relaxed) > usable.saturating_add(later)
        })
    }

    /// Whether leases serve requests of this kind better than calls: at least two for each trip.
    pub(crate) fn pays(&self, now: Nanos, costs: &Costs) -> bool {
        let mut state = self.lock();
        let asks = |(_, (n, _)): &(usize, &(u64, u64))| *n > 0;
        let mut asked = costs.iter().enumerate().filter(asks);
        asked.all(|(i, (n, _))| self.size(i, now, &mut state.limits[i]) >= n.saturating_mul(2))
    }

    /// The refusal of a request that may wait so long, if a limit is known to have no permit.
    pub(crate) fn refusal(&self, now: Nanos, costs: &Costs, longest: Duration) -> Option<(usize, Refusal)> {
        let state = self.lock();
        let asked = state.limits.iter().zip(costs).enumerate().filter(|(_, (_, (n, _)))| *n > 0);
        let (limit, (told, _)) = asked.max_by_key(|(_, (told, _))| told.none_before)?;
        let latest = now.saturating_add(Nanos::from_duration(longest));
        let is_known = now < told.believed && latest < told.none_before;
        let retry_after = told.none_before.saturating_since(latest);
        is_known.then_some((limit, Refusal::Limited { retry_after }))
    }

    /// Notes what a reply tells of the limits.
    pub(crate) fn told(&self, now: Nanos, reply: &Reply) {
        let mut state = self.lock();
        for (limit, told) in state.limits.iter_mut().zip(&reply.limits) {
            (limit.left, limit.told) = (told.available, now);
            limit.none_before = now.saturating_add(Nanos::from_duration(told.next_in));
            limit.believed = limit.none_before.min(now.saturating_add(TRUST));
        }
    }

    /// The limits may have more permits than was told.
    pub(crate) fn forget(&self) {
        for limit in &mut self.lock().limits {
            limit.believed = Nanos::ZERO;
        }
    }

    /// What is to be done at this time. A plan must be carried out before the next one is made.
    pub(crate) fn plan(&self, now: Nanos) -> Plan {
        let mut state = self.lock();
        let mut returns = Vec::new();
        let (mut costs, mut is_short, mut longest) = (Vec::new(), false, Duration::ZERO);
        let (mut is_idle, mut pieces) = (true, 0);
        for (i, account) in self.accounts.iter().enumerate() {
            let size = self.size(i, now, &mut state.limits[i]);
            // A lease that was not used is not renewed.
            let is_used = state.limits[i].asked > state.limits[i].booked;
            let ahead = if size < 2 || !is_used { 0 } else { size };
            let waiting = account.waiting.load(Ordering::Relaxed);
            let wanted = waiting.saturating_add(ahead);
            let removed = account.stock.remove(now, waiting.saturating_add(2 * size));
            returns.extend(removed.into_iter().map(|piece| self.comes_back(i, now, piece)));
            let (usable, later) = account.stock.held(now);
            let held = usable.saturating_add(later);
            let n = size.max(account.largest.load(Ordering::Relaxed).min(waiting));
            costs.push(if held < wanted { (n, n) } else { (0, 0) });
            is_short |= held < waiting.saturating_add(ahead / 2);
            pieces = pieces.max(account.stock.pieces());
            is_idle &= held == 0 && waiting == 0;
            // Of a lease that is booked ahead the first permit is due within 2H.
            let span = Duration::try_from_secs_f64(n as f64 / account.terms.rate.as_per_second());
            let span = span.unwrap_or(Duration::ZERO).min(HORIZON);
            longest = longest.max(if waiting > held { Duration::MAX } else { 2 * HORIZON + span });
        }
        self.count(&mut state);
        if !returns.is_empty() {
            return Plan::Back(returns);
        }
        let ends = self.accounts.iter().filter_map(|account| account.stock.first_end()).min();
        let ends = ends.unwrap_or(Nanos::MAX);
        let rests = if longest == Duration::MAX { state.away } else { state.away.max(state.rests) };
        if is_short && now < rests {
            let until = ends.min(rests);
            return if longest == Duration::MAX { Plan::Fail(until) } else { Plan::Rest(until) };
        }
        if is_short && pieces < MOST_PIECES {
            return Plan::Book(Order { costs, longest, sent: now, endings: state.endings });
        }
        if is_idle { Plan::Idle } else { Plan::Rest(ends) }
    }

    /// Notes what became of an order.
    pub(crate) fn done(&self, now: Nanos, order: &Order, reply: Result<&Reply, Undecided>) -> Outcome {
        let reply = match reply {
            Ok(reply) => reply,
            Err(undecided) => {
                let rest = match undecided {
                    Undecided::Away(rest) => Nanos::from_duration(rest).clamp(REST, TRUST),
                    Undecided::Misconfigured => TRUST,
                };
                self.lock().away = now.saturating_add(rest);
                return Outcome::Failed;
            }
        };
        self.told(now, reply);
        if reply.answer != Answer::Done {
            // It would be booked when it is due within its longest wait.
            let rest = match reply.wait {
                Duration::MAX => TRUST,
                wait => Nanos::from_duration(wait.saturating_sub(order.longest)).clamp(REST, TRUST),
            };
            let until = now.saturating_add(rest);
            if order.longest < Duration::MAX {
                self.lock().rests = until;
                return Outcome::Refused;
            }
            // A request in line waits as long as it takes: its permits can never be had.
            self.lock().away = until;
            return Outcome::Failed;
        }
        let mut state = self.lock();
        state.rests = Nanos::ZERO;
        let (mut booked, mut late) = (Vec::new(), Vec::new());
        for (i, (account, permits)) in self.accounts.iter().zip(&reply.permits).enumerate() {
            if *permits == 0 {
                continue;
            }
            self.counters.leased(*permits);
            let piece = piece(account, order.sent, now, reply, i);
            if order.endings != state.endings {
                late.push(self.comes_back(i, now, piece));
                continue;
            }
            let size = self.size(i, now, &mut state.limits[i]);
            state.limits[i].booked = state.limits[i].asked;
            let waiting = account.waiting.load(Ordering::Relaxed);
            account.stock.add(piece, waiting.saturating_add(size / 2));
            booked.push(i);
        }
        if late.is_empty() { Outcome::Booked(booked) } else { Outcome::TooLate(late) }
    }

    /// Ends all leases. What is not used goes back to the store.
    pub(crate) fn end(&self, now: Nanos) -> Vec<Return> {
        let mut state = self.lock();
        state.endings += 1;
        let mut returns = Vec::new();
        for (i, account) in self.accounts.iter().enumerate() {
            let pieces = account.stock.clear();
            returns.extend(pieces.into_iter().map(|piece| self.comes_back(i, now, piece)));
        }
        self.count(&mut state);
        returns
    }

    /// Ends all leases of a limit, or of all limits, and forgets the permits. Returns how many.
    pub(crate) fn lose(&self, only: Option<usize>) -> u64 {
        let mut state = self.lock();
        state.endings += 1;
        let mut lost = 0;
        for (i, account) in self.accounts.iter().enumerate() {
            if only.is_none_or(|only| only == i) {
                lost += account.stock.clear().iter().map(|piece| piece.permits).sum::<u64>();
            }
        }
        self.counters.ended(lost);
        self.count(&mut state);
        lost
    }

    /// Permits that can be taken of each limit.
    pub(crate) fn usable(&self, limit: usize, now: Nanos) -> u64 {
        self.accounts[limit].stock.held(now).0
    }

    /// What a piece gives back that is not used any more.
    fn comes_back(&self, limit: usize, now: Nanos, piece: Piece) -> Return {
        let Piece { permits, usable, origin, .. } = piece;
        let (operation, before) = match origin.before {
            Some(before) if usable > now => (Operation::Back { due: origin.due }, before.to_vec()),
            _ => (Operation::Refund { due: origin.due }, Vec::new()),
        };
        self.counters.given_back(permits);
        Return { limit, permits, operation, before }
    }

    /// How many permits a lease has that is booked now.
    fn size(&self, limit: usize, now: Nanos, told: &mut Use) -> u64 {
        let account = &self.accounts[limit];
        let asked = account.stock.taken() + account.missed.load(Ordering::Relaxed);
        told.note(now, asked);
        let horizon = account.horizon().as_secs_f64();
        let all = account.terms.rate.as_per_second() * horizon;
        let waiting = account.waiting.load(Ordering::Relaxed) as f64;
        let wish = (told.rate * horizon).max(waiting).min(all);
        let limit = account.terms.limit;
        let is_recent = now.saturating_since(told.told) < TRUST;
        let left = if is_recent { told.left } else { limit };
        let processes = self.processes.load(Ordering::Relaxed);
        let half = |permits: u64| permits / 2 / processes.max(1);
        let most = match account.terms.kind {
            Kind::Fixed if left > 0 => half(left),
            Kind::Fixed => half(limit),
            _ if left >= limit / 10 => half(limit),
            _ => limit,
        };
        // In range: the rate of a limit has a number of permits below 2^53.
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        let wish = wish as u64;
        wish.clamp(1, most.max(1))
    }

    /// Counts the permits that were used since it last did.
    fn count(&self, state: &mut State) {
        for (account, limit) in self.accounts.iter().zip(&mut state.limits) {
            let used = account.stock.taken();
            self.counters.used(used, limit.used);
            limit.used = used;
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Use {
    /// Averages the permits asked for: all that ever were are told.
    fn note(&mut self, now: Nanos, asked: u64) {
        let more = asked.saturating_sub(self.asked) as f64;
        let memories = now.saturating_since(self.at).as_duration().as_secs_f64() / MEMORY;
        let kept = (-memories).exp();
        let share = if memories > 1e-6 { (1.0 - kept) / memories } else { 1.0 };
        self.rate = self.rate * kept + more / MEMORY * share;
        (self.at, self.asked) = (now.max(self.at), asked);
    }
}

/// What an order that was sent brings at one limit, by a reply that comes now.
fn piece(account: &Account, sent: Nanos, now: Nanos, reply: &Reply, limit: usize) -> Piece {
    let after = |from: Nanos, span: Duration| from.saturating_add(Nanos::from_duration(span));
    // Not before the instant: the reply is as old as its way back.
    let usable = after(now, reply.wait);
    let mut ends = after(sent, reply.wait.saturating_add(account.life()));
    if account.terms.kind == Kind::Fixed {
        // The end of the window. A lease never outlives it.
        ends = ends.min(after(sent, reply.limits[limit].full_in));
    }
    let before = reply.before.get(limit).map(|before| Arc::from(before.as_slice()));
    Piece { permits: reply.permits[limit], usable, ends, origin: Origin { due: reply.due, before } }
}

#[cfg(all(test, not(tidegate_loom)))]
mod tests {
    use super::*;
    use crate::script::Told;

    const MS: Duration = Duration::from_millis(1);

    fn at(millis: u64) -> Nanos {
        Nanos::new(millis * 1_000_000)
    }

    #[test]
    fn a_lease_ends_200_ms_after_it_was_asked_for_and_with_its_window() {
        for (line, full_in, usable, ends) in [
            ("token_bucket 100/s burst 100", 50 * MS, 47, 240),
            ("sliding_log 100/s", 50 * MS, 47, 240),
            ("fixed_window 100/s", 60 * MS, 47, 70),
            // Longer horizons, up to 5 s.
            ("fixed_window 100/min", 60_000 * MS, 47, 10 + 30 + 3750),
            ("fixed_window 100/d", 80_000_000 * MS, 47, 10 + 30 + 10_000),
        ] {
            let terms = Terms::new(&line.parse().expect("a configuration")).expect("terms");
            let ledger = Ledger::new([terms].into_iter(), Arc::default());
            let told =
                Told { available: 0, full_in, next_in: Duration::ZERO, paused_for: Duration::ZERO, other: 0 };
            let reply = Reply {
                answer: Answer::Done,
                wait: 30 * MS,
                tightest: None,
                due: 1_000_000,
                permits: vec![5],
                limits: vec![told],
                before: Vec::new(),
            };
            // It was sent at 10 ms, and the reply came at 17 ms.
            let piece = piece(&ledger.accounts[0], at(10), at(17), &reply, 0);
            assert_eq!((piece.usable, piece.ends, piece.permits), (at(usable), at(ends), 5), "{line}");
        }
    }
}
