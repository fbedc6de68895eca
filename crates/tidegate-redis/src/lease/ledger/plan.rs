//! What the task that books permits does next: what goes back, how much is booked, and for how long
//! requests wait for it.
//!
//! More is booked when half of a lease is used, unless the queued requests take half of the next
//! lease: then it is booked for them. A lease ends at 2H, counted from when its booking was sent or
//! becomes usable. By the server's clock it ends before 2H: earlier by the travel time to the
//! server.
//!
//! # More requests than permits
//!
//! This state lasts for a second after a lease was refused, or until a lease is granted at once and
//! leaves a tenth of C: requests that were refused come again at the times reported to them, and
//! are few until then. In this state a lease is asked for at intervals, for the permits that
//! requests asked this process for since the last lease, and the store grants all of it or nothing.
//! So each permit is asked for once, in the same way as if each request asked for itself: the store
//! grants leases as often as single requests. A request that finds no permit makes no call, because
//! the next lease asks for it. A request that may wait for longer than most makes its own call.
//! After a grant the store would refuse all requests of this process until no more than W is
//! booked; permits that are asked for in this time are in no lease.
//!
//! # Leases that are due much later
//!
//! Queued requests may hold a lease that is due much later: it was booked behind a long queue or a
//! debit. If another process then gives these permits back, the store has permits sooner, and does
//! not report it to this process. So while the next lease is due in more than a second, this
//! process asks the store once a second for a lease that is due sooner, and at once again after the
//! store granted one. A refusal changes nothing else. Once the store has granted such a lease,
//! the process keeps leases that are due in more than a second for queued requests only, and gives
//! them back when all of these requests have left. A process with such a lease would book no other.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tidegate::Nanos;

use crate::jitter::jittered;
use crate::lease::account::{Account, TRUST, Usage};
use crate::lease::ledger::{Ledger, State};
use crate::lease::size::whole;
use crate::lock::lock;
use crate::script::{Answer, Reply, StateReport};
use crate::set::{Costs, exactly};
use crate::store::Away;
use crate::terms::Kind;

/// How long nothing is booked at least after a call that failed.
const REST: Nanos = Nanos::new(5_000_000);

/// The most pieces that may be booked at one time.
const MAX_PIECES: usize = 64;

/// A lease that is due sooner must be due within this part of the time to the next lease.
const SOONER: (u32, u32) = (3, 4);

/// The most pieces that are asked for together, if a bucket holds too few permits for a round trip.
const MAX_TOGETHER: u64 = 16;

/// What the task that books permits does next.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Plan {
    Back(Vec<Return>),
    Book(Order),
    /// Notifies the queued requests that no lease serves them, and then rests.
    Fail(Nanos),
    /// Does nothing until a time or a kick.
    Rest(Nanos),
}

/// Permits that go back to the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Return {
    pub(crate) limit: usize,
    pub(crate) permits: u64,
    /// When the booking is due, by the server's clock.
    pub(crate) due: i64,
    /// The value from before the booking, if all of it goes back before it is due.
    pub(crate) before: Option<Arc<[u8]>>,
}

/// A booking that will be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Order {
    pub(crate) costs: Costs,
    pub(crate) longest: Duration,
    /// How many equal bookings are made.
    pub(crate) times: u64,
    /// How long the requests that it is for may wait.
    patience: Duration,
    sent: Nanos,
    generation: u64,
    /// Whether queued requests wait for it.
    is_urgent: bool,
    /// Whether the queued requests have leases, and this one would be due sooner.
    is_sooner: bool,
}

/// The result of a booking.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum OrderOutcome {
    /// These limits have more permits, now or later. What came after the leases had been ended, or
    /// after the end of its own lease, goes back.
    Booked(Vec<usize>, Vec<Return>),
    Refused,
    /// No lease is due sooner than those that the queued requests have.
    NoneSooner,
    /// No request can be served by a lease now.
    Failed,
}

/// What all limits together need.
#[derive(Default)]
struct Needs {
    /// The permits of each limit that the next booking asks for.
    permits: Vec<u64>,
    /// For each limit, how many permits the queued requests wait for, and how many are held.
    queues: Vec<(u64, u64)>,
    /// How much later than the first permits of the booking the last ones are due.
    span: Duration,
    /// How soon the next lease is asked for, while there are more requests than permits.
    pace: Duration,
    /// The most pieces that a limit has.
    pieces: usize,
    /// A limit is short of permits.
    is_short: bool,
    /// Queued requests wait for them.
    is_urgent: bool,
}

/// How many permits of one limit are booked next.
struct Demand {
    n: u64,
    /// They are booked now, and not only together with those of another limit.
    is_short: bool,
    /// Queued requests wait for them.
    is_urgent: bool,
}

impl Ledger {
    /// Returns what the task that books permits does at this time, with `in_queue` queued requests.
    /// If `has_store_queue` is set, other requests wait at the store. The task must carry out a
    /// plan before it makes the next one.
    pub(crate) fn plan(&self, now: Nanos, in_queue: usize, has_store_queue: bool) -> Plan {
        let mut state = self.lock();
        let has_store_queue = has_store_queue && now < state.by_store_till;
        let (needs, returns) = self.needs(&mut state, now, in_queue, has_store_queue);
        self.note_due(&mut state, now);
        self.count(&mut state);
        if !returns.is_empty() {
            return Plan::Back(returns);
        }
        let ends = self.accounts.iter().filter_map(|account| account.stock.first_end()).min();
        let ends = ends.unwrap_or(Nanos::MAX);
        let paced = if now < state.overloaded_till && now < state.next { state.next } else { Nanos::ZERO };
        let rests = if needs.is_urgent { state.not_before } else { state.not_before.max(paced) };
        if needs.is_short && now < rests {
            let until = ends.min(rests);
            return if needs.is_urgent { Plan::Fail(until) } else { Plan::Rest(until) };
        }
        if needs.is_short && needs.pieces < MAX_PIECES {
            return match self.order(&mut state, now, needs) {
                Some(order) => Plan::Book(order),
                None => Plan::Rest(ends.min(state.next)),
            };
        }
        let mut next_sooner = Nanos::MAX;
        let may_ask = !has_store_queue && needs.pieces < 2 * MAX_PIECES;
        if may_ask && let Some((costs, first)) = self.far_ahead(&mut state, now, in_queue) {
            next_sooner = state.next_sooner.max(state.not_before);
            if next_sooner <= now {
                let longest = first.saturating_since(now).as_duration() / SOONER.1 * SOONER.0;
                return Plan::Book(Order { is_sooner: true, ..state.order(costs, longest, now) });
            }
        }
        let paced = if paced > now { paced } else { Nanos::MAX };
        Plan::Rest(ends.min(paced).min(next_sooner))
    }

    /// Returns the permits of a lease for queued requests that have too few permits for the next
    /// second and hold later ones, and when the first of these are usable.
    fn far_ahead(&self, state: &mut State, now: Nanos, in_queue: usize) -> Option<(Costs, Nanos)> {
        let mut first = None;
        let mut permits = Vec::new();
        for (i, account) in self.accounts.iter().enumerate() {
            let waiting = self.waiting(account, in_queue);
            let (usable, later) = account.stock.usable_by(now, now.saturating_add(TRUST));
            let later = later.filter(|_| usable < waiting);
            first = first.into_iter().chain(later).min();
            let size = self.size(i, now, state);
            let n = if later.is_some() { size.min(waiting).max(account.for_queue(waiting)) } else { 0 };
            permits.push(n);
        }
        Some((exactly(permits), first?))
    }

    /// Returns what the limits need, and the permits that go back to the store before it is booked.
    fn needs(
        &self,
        state: &mut State,
        now: Nanos,
        in_queue: usize,
        has_store_queue: bool,
    ) -> (Needs, Vec<Return>) {
        let is_overloaded = now < state.overloaded_till;
        let mut returns = Vec::new();
        let mut needs = Needs { pace: state.usual.longest / 32, ..Needs::default() };
        for (i, account) in self.accounts.iter().enumerate() {
            let size = self.size(i, now, state);
            let limit = &state.limits[i];
            let waiting = self.waiting(account, in_queue);
            let spare = if has_store_queue { 0 } else { 2 * size.max(limit.lease) };
            let removed = match has_store_queue && waiting == 0 {
                true => account.stock.clear(),
                false => account.stock.remove(now, now, waiting.saturating_add(spare)),
            };
            returns.extend(self.returns_of(i, now, removed));
            if state.has_sooner || state.is_far_for_queue && waiting == 0 {
                let removed = account.stock.remove(now, now.saturating_add(TRUST), waiting);
                returns.extend(self.returns_of(i, now, removed));
            }
            let held = account.stock.held(now);
            let Demand { n, is_short, is_urgent } =
                self.demand(account, limit, (waiting, held), size, is_overloaded, has_store_queue);
            needs.is_short |= is_short;
            needs.is_urgent |= is_urgent;
            needs.permits.push(n);
            needs.queues.push((waiting, held));
            needs.pieces = needs.pieces.max(account.stock.pieces());
            needs.span = needs.span.max(account.span(n));
            needs.pace = needs.pace.max(account.pace(size));
        }
        (needs, returns)
    }

    /// Returns the order of a booking; `None` if the store would refuse it.
    fn order(&self, state: &mut State, now: Nanos, needs: Needs) -> Option<Order> {
        let Needs { mut permits, queues, span, pace, pieces, is_urgent, .. } = needs;
        // With mixed costs the first queued request may ask for more of a limit than the others do.
        if is_urgent && now >= state.mixed_till {
            balance(&mut permits, &queues);
        }
        state.next = now.saturating_add(Nanos::from_duration(jittered(pace)));
        for ((account, limit), n) in self.accounts.iter().zip(&mut state.limits).zip(&permits) {
            limit.ordered = asked_by_leases(account, limit);
            limit.lease = *n;
            account.most_waiting.fetch_min(account.waiting.load(Ordering::Relaxed), Ordering::Relaxed);
        }
        let times = if is_urgent { self.times(&permits, &queues, pieces) } else { 1 };
        let (patience, costs) = (state.usual.longest, exactly(permits));
        if !is_urgent && state.refusal(now, &costs, patience).is_some() {
            self.refused(state, now);
            return None;
        }
        let longest = match is_urgent {
            true if self.patience.endless() > 0 => Duration::MAX,
            true => patience.max(self.patience.min_wait()).saturating_add(span),
            false => patience.saturating_add(span),
        };
        for (account, (n, _)) in self.accounts.iter().zip(&costs) {
            account.coming.store(n.saturating_mul(times), Ordering::Relaxed);
        }
        Some(Order { times, is_urgent, ..state.order(costs, longest, now) })
    }

    /// Returns how much of a limit is booked next, if the queued requests wait for `waiting`
    /// permits of it and hold `held`.
    fn demand(
        &self,
        account: &Account,
        limit: &Usage,
        (waiting, held): (u64, u64),
        size: u64,
        is_overloaded: bool,
        has_store_queue: bool,
    ) -> Demand {
        if waiting > held {
            let n = size.max(account.for_queue(waiting));
            // The permits that are held may end before those of this booking are usable. So this
            // booking has enough for the first queued request.
            let least = account.largest.load(Ordering::Relaxed).max(waiting - held);
            let n = if has_store_queue { n.min(least) } else { n };
            return Demand { n, is_short: true, is_urgent: true };
        }
        if is_overloaded {
            let owed = asked_by_leases(account, limit).saturating_sub(limit.ordered);
            return Demand { n: owed.min(account.most(size)), is_short: owed > 0, is_urgent: false };
        }
        // A lease that was not used is not renewed. Nor is a lease of which the queued requests
        // take half: of two processes with such leases, the process that booked ahead would have
        // twice the permits of the other forever.
        let are_several = self.processes.load(Ordering::Relaxed) > 1;
        let is_for_queue = are_several && waiting >= size / 2;
        let is_unused = size < 2 || limit.asked <= limit.booked;
        let ahead = if is_unused || is_for_queue || has_store_queue { 0 } else { size };
        let n = if held < waiting.saturating_add(ahead) { size } else { 0 };
        Demand { n, is_short: held < waiting.saturating_add(ahead / 2), is_urgent: false }
    }

    /// Returns how many equal bookings are made together for queued requests. One booking has at
    /// most what a bucket holds, and that may accrue faster than bookings can be made one by one.
    fn times(&self, permits: &[u64], queues: &[(u64, u64)], pieces: usize) -> u64 {
        let ([account], [n], [(waiting, held)]) = (&self.accounts[..], permits, queues) else {
            return 1;
        };
        if account.kind != Kind::Bucket || *n < account.terms.limit {
            return 1;
        }
        let more = MAX_PIECES.saturating_sub(pieces) as u64;
        (waiting.saturating_sub(*held) / n).clamp(1, MAX_TOGETHER.min(more).max(1))
    }

    /// Handles the result of an order.
    pub(crate) fn handle_reply(
        &self,
        now: Nanos,
        order: &Order,
        reply: Result<&Reply, Away>,
    ) -> OrderOutcome {
        let mut state = self.lock();
        if order.is_sooner && !matches!(reply, Ok(Reply { answer: Answer::Done, .. })) {
            state.next_sooner = now.saturating_add(TRUST);
            return OrderOutcome::NoneSooner;
        }
        let reply = match reply {
            Ok(reply) => reply,
            Err(Away::Misconfigured) => {
                state.leave_to_store(now);
                return OrderOutcome::Failed;
            }
            Err(away) => {
                let rest = Nanos::from_duration(away.rest()).clamp(REST, TRUST);
                (state.not_before, state.is_hopeless) = (now.saturating_add(rest), false);
                return OrderOutcome::Failed;
            }
        };
        let is_late = order.generation != state.generation;
        // The state that the reply reports may have ended with the leases, as a pause does.
        if !is_late {
            self.apply_report(&mut state, now, reply);
        }
        match reply.answer {
            Answer::Done => self.booked(&mut state, now, order, reply),
            Answer::Predicted | Answer::Resumed => {
                // In a pause, and while requests in the queue of the store wait for its end, a
                // lease is not booked, or goes back. The queued requests move to that queue.
                let paused_for = reply.paused_for();
                state.not_before = now.saturating_add(Nanos::from_duration(paused_for).min(TRUST));
                state.is_hopeless = false;
                // Bookings in flight end, too: they would serve later requests.
                self.end_bookings(&mut state);
                OrderOutcome::Failed
            }
            Answer::Refused | Answer::Shadow if is_late => OrderOutcome::Refused,
            Answer::Refused | Answer::Shadow if order.longest < Duration::MAX => {
                self.refused(&mut state, now);
                OrderOutcome::Refused
            }
            Answer::Refused | Answer::Shadow => {
                // The booking has no maximum wait, so its permits can never be had.
                state.leave_to_store(now);
                OrderOutcome::Failed
            }
        }
    }

    /// Notes that the reply to an order was handled.
    pub(crate) fn note_handled(&self, order: &Order) {
        let state = self.lock();
        if order.is_sooner || order.generation != state.generation {
            return;
        }
        for (account, (n, _)) in self.accounts.iter().zip(&order.costs) {
            let rest = account.coming.load(Ordering::Relaxed).saturating_sub(*n);
            account.coming.store(rest, Ordering::Relaxed);
        }
    }

    /// Adds the pieces of a booking that was made.
    fn booked(&self, state: &mut State, now: Nanos, order: &Order, reply: &Reply) -> OrderOutcome {
        let is_late = order.generation != state.generation;
        let took = now.saturating_since(order.sent).as_duration();
        self.note_booking(state, now, took, reply);
        state.next_sooner = if order.is_sooner { now } else { now.saturating_add(TRUST) };
        let (mut booked, mut late) = (Vec::new(), Vec::new());
        for (i, (account, permits)) in self.accounts.iter().zip(&reply.permits).enumerate() {
            if *permits == 0 {
                continue;
            }
            lock(&self.counters.now).taken += *permits;
            if order.generation < state.limits[i].lost {
                // The store decided before it reset the limit, or counted what the limit keeps.
                lock(&self.counters.now).lost += *permits;
                continue;
            }
            let piece = account.piece(order.sent, now, reply, i);
            if is_late || piece.ends <= piece.usable {
                late.push(self.return_of(i, now, piece));
                // If the lease came too late, or if its end is unknown, so may be the next one, and
                // the store decides the requests. A lease that its window ended says nothing of the
                // next window.
                if !is_late && (took >= account.life() || account.is_end_unknown(reply, i)) {
                    state.leave_to_store(now);
                }
                continue;
            }
            let size = self.size(i, now, state);
            let limit = &mut state.limits[i];
            limit.booked = limit.asked;
            if order.longest < Duration::MAX {
                // Until one more permit is due in time, the store would refuse all requests of this
                // process, because of this lease. So no lease asks for them.
                let next = reply.wait.saturating_add(account.span(2));
                let shut = next.saturating_sub(order.patience).as_secs_f64();
                let refused = whole((limit.rate * shut).round());
                limit.ordered = limit.ordered.saturating_add(refused);
            }
            let waiting = account.waiting.load(Ordering::Relaxed);
            if piece.usable > now.saturating_add(TRUST) {
                (state.is_far_for_queue, state.has_sooner) = (order.is_urgent, false);
            }
            state.has_sooner |= order.is_sooner;
            state.bookings.push((piece.usable, reply.wait));
            account.stock.add(piece, waiting.saturating_add(size / 2));
            booked.push(i);
        }
        self.note_due(state, now);
        OrderOutcome::Booked(booked, late)
    }

    /// Notes what a booking that was made shows: whether leases are fast enough, and whether there
    /// are more permits than requests.
    fn note_booking(&self, state: &mut State, now: Nanos, took: Duration, reply: &Reply) {
        state.is_hopeless = false;
        let round_trip = state.round_trip.map_or(took, |last| took.min(last + last / 64));
        state.round_trip = Some(round_trip);
        let mut asked = self.accounts.iter().zip(&reply.permits).filter(|(_, permits)| **permits > 0);
        if asked.any(|(account, _)| account.is_too_slow(round_trip)) {
            // The store decides the requests that this lease does not serve.
            state.leave_to_store(now);
        }
        let is_plenty = |(account, report): (&Arc<Account>, &StateReport)| {
            report.available >= (account.terms.limit / 10).max(1)
        };
        if reply.wait.is_zero() && self.accounts.iter().zip(&reply.limits).all(is_plenty) {
            // A request with an earlier clock reading finds no overload either.
            state.overloaded_till = Nanos::ZERO;
            self.patience.open();
        }
    }
}

impl State {
    /// Returns an order of one booking.
    fn order(&self, costs: Costs, longest: Duration, now: Nanos) -> Order {
        let (patience, generation) = (self.usual.longest, self.generation);
        let (is_urgent, is_sooner) = (false, false);
        Order { costs, longest, times: 1, patience, sent: now, generation, is_urgent, is_sooner }
    }

    /// Leaves the requests to the store for a while, without hope of a lease.
    fn leave_to_store(&mut self, now: Nanos) {
        (self.not_before, self.is_hopeless) = (now.saturating_add(TRUST), true);
    }
}

/// Returns all permits of a limit that were asked for, except by requests that the store decided
/// alone.
fn asked_by_leases(account: &Account, limit: &Usage) -> u64 {
    limit.asked.saturating_sub(account.by_store.load(Ordering::Relaxed))
}

/// Makes a booking serve equally many queued requests by each limit. Of each limit, the queue waits
/// for and holds the permits in `queues`. Permits that only one limit has would end unused, and a
/// window that they use up holds up the booking for all limits.
fn balance(permits: &mut [u64], queues: &[(u64, u64)]) {
    let part = |(n, (waiting, held)): (u64, (u64, u64))| (held.saturating_add(n)) as f64 / waiting as f64;
    let served = permits.iter().copied().zip(queues.iter().copied());
    let served = served.filter(|(_, (waiting, _))| *waiting > 0).map(part).fold(f64::INFINITY, f64::min);
    for (n, (waiting, held)) in permits.iter_mut().zip(queues) {
        if *waiting > 0 {
            *n = whole((served * *waiting as f64).ceil()).saturating_sub(*held).min(*n);
        }
    }
}
