//! What a process knows of the leases of all limits of a set. [`plan`] decides what the process
//! does next. Time is an argument. The letters are those of [`size`](crate::lease::size), which
//! explains how large a lease is.
//!
//! # Requests that are left to the store
//!
//! The store decides waiting requests of mixed costs. While some of them wait there, permits of a
//! single limit are booked here only for the queued requests, and permits that these do not need go
//! back at once: later requests would take them before those that wait at the store. During a
//! pause, and while the store is away, all waiting requests of mixed costs are left to the store,
//! where they keep the order of their arrival. Leases of several limits are booked regardless of
//! requests that wait at the store: parts of bookings, one for each limit, would end before the
//! first queued request has permits of all limits.
//!
//! # Invariant
//!
//! Each permit that a process grants from a lease was debited before: at most 2H before, and no
//! earlier than the beginning of a fixed window that is still open. So in any duration *d* a limit
//! grants at most what its policy grants in d + 2H, and a fixed window grants what it grants
//! without leases.

mod plan;
mod queued;
#[cfg(test)]
mod tests;

use std::cmp::Reverse;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tidegate::{Nanos, Refusal};
use tokio::sync::Notify;

use crate::lease::account::{Account, TRUST, Usage};
pub(crate) use crate::lease::ledger::plan::{Order, OrderOutcome, Plan, Return};
use crate::lease::ledger::queued::Queued;
use crate::lease::patience::{Patience, Usual};
use crate::lease::size::{FOR_EACH, HORIZON};
use crate::lease::stock::{Origin, Piece};
use crate::lock::lock;
use crate::script::Reply;
use crate::set::Costs;
use crate::store::LeaseCounters;
use crate::terms::{Kind, Terms};

/// How long waiting requests count as of mixed costs after two of them asked for different permits.
const MIXED: Nanos = Nanos::new(10_000_000_000);

/// The least time for which the store decides waiting requests of mixed costs. By then the use of a
/// process that begins is known.
const BY_STORE: Nanos = Nanos::new(2_000_000_000);

/// The leases of the limits of one set.
#[derive(Debug)]
pub(crate) struct Ledger {
    pub(crate) accounts: Vec<Arc<Account>>,
    pub(crate) kick: Arc<Notify>,
    queued: Queued,
    patience: Arc<Patience>,
    /// How many processes lease, as far as is known.
    processes: AtomicU64,
    pub(crate) counters: Arc<LeaseCounters>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    limits: Vec<Usage>,
    usual: Usual,
    /// Until this time there are more requests than permits.
    overloaded_till: Nanos,
    /// When the next lease is asked for, while there are more requests than permits.
    next: Nanos,
    /// What the last waiting request asked for.
    asked: Costs,
    /// Until when requests of several costs wait.
    mixed_till: Nanos,
    /// Until when the store decides requests of several costs.
    by_store_till: Nanos,
    /// How many permits such requests ask for besides the first, on average.
    more: f64,
    /// How long a booking takes: the shortest of the last ones, before the first one unknown.
    round_trip: Option<Duration>,
    /// When the last lease became usable, and later ones will, and how far ahead each was booked.
    bookings: Vec<(Nanos, Duration)>,
    /// Nothing is booked before this time.
    not_before: Nanos,
    /// When the store is asked next for a lease that is due sooner.
    next_sooner: Nanos,
    /// Whether the last lease that is due in more than a second was booked for queued requests.
    is_far_for_queue: bool,
    /// Whether the store granted a lease sooner than others, and has granted none late since.
    has_sooner: bool,
    /// Whether the last booking for queued requests failed for another reason than an outage.
    is_hopeless: bool,
    /// How many times the leases were ended. A booking that was asked for before an ending ends
    /// like the leases did.
    generation: u64,
}

impl Ledger {
    pub(crate) fn new(terms: impl Iterator<Item = Terms>, counters: Arc<LeaseCounters>) -> Ledger {
        let kick = Arc::new(Notify::new());
        let patience = Arc::new(Patience::new());
        let accounts: Vec<Arc<Account>> =
            terms.map(|terms| Arc::new(Account::new(terms, patience.clone(), kick.clone()))).collect();
        let limits =
            accounts.iter().map(|account| Usage { left: account.terms.limit, ..Usage::default() }).collect();
        let state = Mutex::new(State { limits, ..State::default() });
        let processes = AtomicU64::new(1);
        Ledger { accounts, kick, queued: Queued::default(), patience, processes, counters, state }
    }

    pub(crate) fn set_processes(&self, processes: u64) {
        self.processes.store(processes, Ordering::Relaxed);
    }

    /// Notes that a request was not served from the leases.
    pub(crate) fn missed(&self, costs: &Costs) {
        for (account, (n, _)) in self.accounts.iter().zip(costs) {
            account.missed.fetch_add(*n, Ordering::Relaxed);
        }
    }

    /// Notes that a missed request is decided by the store, or is known to be refused there. So no
    /// lease asks for its permits as well.
    pub(crate) fn note_by_store(&self, costs: &Costs) {
        for (account, (n, _)) in self.accounts.iter().zip(costs) {
            account.by_store.fetch_add(*n, Ordering::Relaxed);
        }
    }

    /// Returns when the next lease is asked for, if a missed request that may wait for `longest`
    /// leaves its chance to that lease. `None` means that the request is decided by itself.
    pub(crate) fn next_lease_at(&self, now: Nanos, costs: &Costs, longest: Duration) -> Option<Nanos> {
        let mut state = self.lock();
        self.note(&mut state, longest);
        // A request that may wait for longer than permits are short is not refused for that reason.
        // Nor is a request that may wait for longer than most: a later one that may wait for less
        // would get the permits of a lease that came in between.
        let leaves_it = longest <= state.usual.longest.min(2 * TRUST.as_duration());
        // The store reports what a pause refuses, and decides while no lease is booked.
        let is_overloaded = now < state.overloaded_till && now >= state.not_before && !state.is_paused(now);
        (is_overloaded && leaves_it && self.is_worthwhile_by(&mut state, now, costs)).then_some(state.next)
    }

    /// Notes that a request waits in the queue, for at most `longest`. A request without a maximum
    /// wait counts like one with the shortest maximum wait for which leases are as large as for any
    /// longer one.
    pub(crate) fn waits(&self, now: Nanos, costs: &Costs, longest: Option<Duration>) {
        self.note(&mut self.lock(), longest.unwrap_or(FOR_EACH * HORIZON));
        let stays = |longest| longest >= self.patience.min_wait() && !self.patience.is_crowded(now);
        if longest.is_none_or(stays) {
            for (account, (n, _)) in self.accounts.iter().zip(costs) {
                let ahead = account.waiting.load(Ordering::Relaxed);
                account.most_waiting.fetch_max(ahead.saturating_add(*n), Ordering::Relaxed);
            }
        }
    }

    /// Notes that a request may wait for `longest`.
    fn note(&self, state: &mut State, longest: Duration) {
        state.usual.note(longest);
        let has_fixed_window = self.accounts.iter().any(|account| account.kind == Kind::Fixed);
        self.patience.set(state.usual.longest, has_fixed_window);
    }

    /// Notes that a request joins the queue, until it [leaves](Ledger::leaves). Returns the number
    /// of the request.
    pub(crate) fn joins(&self, costs: &Costs, is_endless: bool) -> u64 {
        let number = self.queued.join(costs, is_endless, || {
            for (account, (n, _)) in self.accounts.iter().zip(costs) {
                account.largest.fetch_max(*n, Ordering::Relaxed);
                account.waiting.fetch_add(*n, Ordering::Relaxed);
            }
            self.patience.join(is_endless);
        });
        self.kick.notify_one();
        number
    }

    pub(crate) fn leaves(&self, number: u64) {
        self.queued.leave(number, |costs, is_endless| {
            for (account, (n, _)) in self.accounts.iter().zip(costs) {
                if account.waiting.fetch_sub(*n, Ordering::Relaxed) == *n {
                    account.largest.store(0, Ordering::Relaxed);
                }
            }
            self.patience.leave(is_endless);
        });
        self.kick.notify_one();
    }

    /// Returns whether requests are queued.
    pub(crate) fn has_waiting(&self) -> bool {
        self.accounts.iter().any(|account| account.waiting.load(Ordering::Relaxed) > 0)
    }

    /// Returns whether all limits have permits for the queued requests and for this one, as far as
    /// is known. Then requests are queued only for the reply of a call.
    pub(crate) fn has_plenty(&self, now: Nanos, costs: &Costs) -> bool {
        let state = self.lock();
        let mut limits = self.accounts.iter().zip(&state.limits).zip(costs);
        now >= state.overloaded_till
            && limits.all(|((account, usage), (n, _))| {
                let waiting = account.waiting.load(Ordering::Relaxed);
                *n == 0 || waiting.saturating_add(*n) <= usage.left(now, account.terms.limit)
            })
    }

    /// Returns whether no queued request has a maximum wait.
    pub(crate) fn are_endless(&self) -> bool {
        self.patience.endless() >= self.queued.len()
    }

    /// Returns whether leases can be had again as soon as the store is back.
    pub(crate) fn is_hopeful(&self) -> bool {
        !self.lock().is_hopeless
    }

    /// Returns whether the store decides requests that wait, because they are of mixed costs.
    pub(crate) fn are_mixed(&self, now: Nanos) -> bool {
        let state = self.lock();
        now < if self.accounts.len() == 1 { state.by_store_till } else { state.mixed_till }
    }

    /// Returns whether no lease is asked for now, because a call failed.
    pub(crate) fn is_backing_off(&self, now: Nanos) -> bool {
        now < self.lock().not_before
    }

    /// Notes that the store is back: permits for the queued requests are booked at once.
    pub(crate) fn note_recovery(&self) {
        let mut state = self.lock();
        if !state.is_hopeless {
            state.not_before = Nanos::ZERO;
        }
    }

    /// Returns how many permits the queued requests wait for. A request that is granted, and whose
    /// task did not run yet, has joined and is not queued. If there are such requests, the queued
    /// requests are assumed to be as large as the others, or one of them as the largest.
    fn waiting(&self, account: &Account, in_queue: usize) -> u64 {
        let (joined, in_queue) = (self.queued.len(), in_queue as u64);
        let waiting = account.waiting.load(Ordering::Relaxed);
        if in_queue == 0 || in_queue >= joined {
            return if in_queue == 0 { 0 } else { waiting };
        }
        let share = u128::from(waiting) * u128::from(in_queue) / u128::from(joined);
        let largest = account.largest.load(Ordering::Relaxed);
        u64::try_from(share).unwrap_or(u64::MAX).max(largest).min(waiting)
    }

    /// Returns when a request could be served by the bookings that were made.
    pub(crate) fn ready_at(&self, at: Nanos, costs: &Costs) -> Nanos {
        let due =
            self.accounts.iter().zip(costs).filter(|(_, (n, _))| *n > 0).map(|(account, (n, _))| {
                account.stock.ready_at(at, account.waiting.load(Ordering::Relaxed), *n)
            });
        due.max().unwrap_or(at)
    }

    /// Notes which of the `in_queue` queued requests get no lease. This call assumes that granted
    /// requests whose tasks did not run yet are the first that joined.
    pub(crate) fn note_failure(&self, now: Nanos, in_queue: usize) {
        let held = self.accounts.iter().map(|account| account.stock.held(now)).collect();
        self.queued.note_failure(held, in_queue);
    }

    /// Returns whether no lease comes for the request with this [number](Ledger::joins), as of the
    /// last failure.
    pub(crate) fn is_short(&self, number: u64) -> bool {
        self.queued.is_short(number)
    }

    /// Returns whether leases serve requests of this kind better than calls: at least two for each
    /// round trip.
    pub(crate) fn is_worthwhile(&self, now: Nanos, costs: &Costs) -> bool {
        self.is_worthwhile_by(&mut self.lock(), now, costs)
    }

    /// Notes what a waiting request asks for. Returns whether the store decides it, because
    /// requests of several costs wait, and a lease serves few of them: the rest of the lease would
    /// end unused.
    ///
    /// With several limits that is so if requests are queued, and one of the limits has fewer
    /// permits than this request asks for. A booking for all of them has too few permits of that
    /// limit for the first queued request, and the permits of the other limits end.
    pub(crate) fn note_waiting_costs(&self, now: Nanos, costs: &Costs) -> bool {
        let mut state = self.lock();
        if let ([account], [(n, _)]) = (&self.accounts[..], &costs[..]) {
            // How many permits besides the first requests ask for.
            state.more += ((*n as f64 - 1.0) - state.more) / 16.0;
            let size = self.size(0, now, &mut state) as f64;
            if now < state.mixed_till && size < account.serves(state.more) {
                state.by_store_till = now.saturating_add(BY_STORE);
            }
        }
        if state.asked != *costs {
            if !state.asked.is_empty() {
                state.mixed_till = now.saturating_add(MIXED);
            }
            state.asked.clone_from(costs);
        }
        if self.accounts.len() == 1 {
            return now < state.by_store_till;
        }
        let is_short = state.limits.iter().zip(costs).any(|(usage, (n, _))| usage.left < *n);
        now < state.mixed_till && is_short && self.has_waiting()
    }

    fn is_worthwhile_by(&self, state: &mut State, now: Nanos, costs: &Costs) -> bool {
        let asks = |(_, (n, _)): &(usize, &(u64, u64))| *n > 0;
        let mut asked = costs.iter().enumerate().filter(asks);
        asked.all(|(i, (n, _))| self.size(i, now, state) >= n.saturating_mul(2))
    }

    /// Returns the refusal of a request that may wait for `longest`, if a limit is known to have no
    /// permit.
    pub(crate) fn refusal(&self, now: Nanos, costs: &Costs, longest: Duration) -> Option<(usize, Refusal)> {
        self.lock().refusal(now, costs, longest)
    }

    /// Notes what a reply reports about the limits.
    pub(crate) fn note_report(&self, now: Nanos, reply: &Reply) {
        let mut state = self.lock();
        self.apply_report(&mut state, now, reply);
    }

    fn apply_report(&self, state: &mut State, now: Nanos, reply: &Reply) {
        for (limit, report) in state.limits.iter_mut().zip(&reply.limits) {
            (limit.left, limit.reported_at) = (report.available, now);
            limit.none_before = now.saturating_add(Nanos::from_duration(report.next_in));
            limit.believed = limit.none_before.min(now.saturating_add(TRUST));
            limit.paused_till = now.saturating_add(Nanos::from_duration(report.paused_for));
        }
        let next = state.limits.iter().map(|limit| limit.none_before.saturating_since(now)).max();
        self.patience.note_report(now, next.unwrap_or_default(), state.usual.longest);
    }

    /// Notes that a lease was refused. A pause does not show that there are more requests than
    /// permits.
    fn refused(&self, state: &mut State, now: Nanos) {
        self.patience.crowd(now.saturating_add(TRUST));
        if !state.is_paused(now) {
            state.overloaded_till = now.saturating_add(TRUST);
        }
    }

    /// Notes that the limits may have more permits than was reported.
    pub(crate) fn forget(&self) {
        for limit in &mut self.lock().limits {
            limit.believed = Nanos::ZERO;
        }
    }

    /// Makes the bookings that have no reply yet end like the leases.
    fn end_bookings(&self, state: &mut State) {
        state.generation += 1;
        self.accounts.iter().for_each(|account| account.coming.store(0, Ordering::Relaxed));
    }

    /// Ends all leases. Their unused permits go back to the store. From then on permits are booked
    /// for the queued requests and for later requests, and not for requests that ended before.
    pub(crate) fn end(&self, now: Nanos) -> Vec<Return> {
        let mut state = self.lock();
        self.end_bookings(&mut state);
        let mut returns = Vec::new();
        for (i, (account, limit)) in self.accounts.iter().zip(&mut state.limits).enumerate() {
            returns.extend(self.returns_of(i, now, account.stock.clear()));
            limit.booked = account.asked();
            limit.ordered = limit.booked.saturating_sub(account.by_store.load(Ordering::Relaxed));
        }
        self.note_due(&mut state, now);
        self.count(&mut state);
        returns
    }

    /// Ends all leases of a limit, or of all limits, and drops the permits, including those of a
    /// booking that comes later. Returns how many there were.
    pub(crate) fn discard(&self, only: Option<usize>) -> u64 {
        let mut state = self.lock();
        self.end_bookings(&mut state);
        let (mut lost, generation) = (0, state.generation);
        for (i, (account, limit)) in self.accounts.iter().zip(&mut state.limits).enumerate() {
            if only.is_none_or(|only| only == i) {
                limit.lost = generation;
                lost += account.stock.clear().iter().map(|piece| piece.permits).sum::<u64>();
            }
        }
        lock(&self.counters.now).lost += lost;
        self.count(&mut state);
        lost
    }

    /// Returns how many permits of a limit may be available: those on lease, and those of a full
    /// limit in the store.
    pub(crate) fn most(&self, limit: usize, now: Nanos) -> u64 {
        let account = &self.accounts[limit];
        account.terms.limit.saturating_add(account.stock.held(now))
    }

    /// Returns when the last booked permits become usable.
    pub(crate) fn booked_till(&self) -> Nanos {
        self.accounts.iter().map(|account| account.stock.last_usable()).max().unwrap_or_default()
    }

    /// Returns the last time for which the store booked a lease, and how far ahead it booked it. A
    /// lease that went back before that time does not count.
    pub(crate) fn last_booking(&self, now: Nanos) -> (Nanos, Duration) {
        let mut state = self.lock();
        self.note_due(&mut state, now);
        state.bookings.iter().max().copied().unwrap_or_default()
    }

    /// Forgets the leases that went back before they became usable, and all but the last one of
    /// those that became usable.
    fn note_due(&self, state: &mut State, now: Nanos) {
        let last = self.booked_till();
        let due = state.bookings.iter().filter(|(usable, _)| *usable <= now).max().copied();
        state.bookings.retain(|booking| now < booking.0 && booking.0 <= last || Some(*booking) == due);
    }

    /// Returns how many permits of a limit can be taken.
    pub(crate) fn usable(&self, limit: usize, now: Nanos) -> u64 {
        self.accounts[limit].stock.usable(now)
    }

    /// Returns what unused pieces give back, the latest booking first: a server takes back the last
    /// booking that was made, and then the one before it, but few others.
    fn returns_of(&self, limit: usize, now: Nanos, mut pieces: Vec<Piece>) -> Vec<Return> {
        pieces.sort_by_key(|piece| Reverse(piece.origin.due));
        pieces.into_iter().map(|piece| self.return_of(limit, now, piece)).collect()
    }

    /// Returns what an unused piece gives back.
    fn return_of(&self, limit: usize, now: Nanos, piece: Piece) -> Return {
        let Piece { permits, usable, origin: Origin { due, before }, .. } = piece;
        lock(&self.counters.now).returned += permits;
        Return { limit, permits, due, before: before.filter(|_| usable > now) }
    }

    /// Returns how many permits a lease of this limit has that is booked now.
    fn size(&self, limit: usize, now: Nanos, state: &mut State) -> u64 {
        let (is_overloaded, processes) =
            (now < state.overloaded_till, self.processes.load(Ordering::Relaxed));
        self.accounts[limit].size(now, &mut state.limits[limit], is_overloaded, processes)
    }

    /// Counts the permits that were used since the last count.
    fn count(&self, state: &mut State) {
        for (account, limit) in self.accounts.iter().zip(&mut state.limits) {
            let used = account.stock.taken();
            // A permit that was put back lowers the number.
            let mut counts = lock(&self.counters.now);
            counts.used = counts.used + used - limit.used;
            limit.used = used;
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }
}

impl State {
    /// Returns whether a limit was reported to be paused now.
    fn is_paused(&self, now: Nanos) -> bool {
        self.limits.iter().any(|usage| usage.is_paused(now))
    }

    /// Returns the refusal of a request that may wait for `longest`, if a limit is known to have no
    /// permit.
    fn refusal(&self, now: Nanos, costs: &Costs, longest: Duration) -> Option<(usize, Refusal)> {
        let asked = self.limits.iter().zip(costs).enumerate().filter(|(_, (_, (n, _)))| *n > 0);
        let is_paused = asked.clone().any(|(_, (usage, _))| usage.is_paused(now));
        let (limit, (usage, _)) = asked.max_by_key(|(_, (usage, _))| usage.none_before)?;
        let now = usage.not_before_report(now);
        let latest = now.saturating_add(Nanos::from_duration(longest));
        let is_known = now < usage.believed && latest < usage.none_before;
        let retry_after = usage.none_before.saturating_since(latest);
        let refusal = match is_paused {
            true => Refusal::Paused { retry_after },
            false => Refusal::Limited { retry_after },
        };
        is_known.then_some((limit, refusal))
    }
}
