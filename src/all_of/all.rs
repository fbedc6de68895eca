//! All of several limiters as one rule, which an [`AllOf`](crate::AllOf) asks for permits.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Weak};
use std::time::Duration;

use crate::all_of::counting::Counting;
use crate::all_of::member::{Member, MemberGrant, Span, Wait, span, time};
use crate::all_of::name::Name;
#[cfg(feature = "keyed")]
use crate::all_of::of_keys::KeyCleanup;
use crate::all_of::weights::Weights;
use crate::clock::Timer;
use crate::counting::{CountingLimit, CountingPermit, give_back_together};
use crate::error::Refusal;
use crate::grant::Left;
use crate::limiter::change::{TIMES_CHANGED, WEIGHTS_CHANGED};
use crate::limiter::shared::Shared;
use crate::line::deferred::Deferred;
use crate::line::recheck::Recheck;
use crate::line::rule::{Changes, Rule, TakeLimit};
use crate::line::sizes::Sizes;
use crate::policy::{Crowd, Forecast, Standstill, limited};
use crate::status::Status;
use crate::sync::{AtomicU64, Mutex, Ordering, lock};
use crate::time::{CLOCK_SKEW, Nanos};

/// The most rounds in which the members are asked again about the time found so far. One round is
/// enough unless other composites have seats, too.
const ROUNDS: usize = 4;

/// The most requests that are forecast one by one. Each costs some ten times what it costs in the
/// queue of one limiter.
const MAX_FORECAST: usize = 512;

/// All of several limiters.
pub(crate) struct All<C: Timer> {
    pub(crate) members: Vec<Entry>,
    /// The order in which members are asked for permits. Any two composites ask their common
    /// members in the same order, so if both compete for the last permits, one of them gets them.
    /// Counting limits come last.
    order: Vec<usize>,
    /// The seats in the queues of the members. Accessed under the composite's lock.
    pub(super) seats: Mutex<Seats>,
    /// The time of the last grant to a waiter, in nanoseconds. The waiter behind it was not due
    /// earlier, so it is not charged as of an earlier time, however long its own rates were due.
    /// Changed under the composite's lock.
    last: AtomicU64,
    /// The sum of the members' change counters when this composite last read them. Changed under
    /// the composite's lock.
    changes: AtomicU64,
    pub(super) shared: Weak<Shared<All<C>, C>>,
    /// The last field, because its drop notifies the tables of keys that the members were dropped.
    #[cfg(feature = "keyed")]
    home: Option<KeyCleanup<C>>,
}

#[derive(Clone)]
pub(crate) struct Entry {
    pub(crate) name: Name,
    pub(crate) kind: Kind,
    /// The cost of a request that does not name this member, if it was set.
    pub(crate) cost: Option<u32>,
    /// For a placeholder, the key in its limiter of keys. The placeholder lets each request pass.
    pub(crate) placeholder_of: Option<Arc<dyn AbsentKey>>,
}

/// A key of a limiter of keys, in a composite that has no limiter of the key. Each call looks the
/// key up.
///
/// By default no call changes anything, because permits in use come back only from their holders.
pub(crate) trait AbsentKey: Send + Sync {
    /// Charges the key, which is added if it is new, if there is room for it or another key can be
    /// replaced.
    fn debit(&self, _n: u32) {}

    fn refund(&self, _n: u32) {}

    fn keep_at_most(&self, _permits: u64) -> u64 {
        0
    }

    fn status(&self) -> Status;
}

#[derive(Clone)]
pub(crate) enum Kind {
    Rate(Arc<dyn Member>),
    Counting(CountingLimit),
}

/// The seats of the first waiters. The first waiter of each priority keeps its seats while a waiter
/// of higher priority is first.
pub(super) struct Seats {
    /// The positions of the seats in the queue of each member, for each priority with a waiter that
    /// was once the first; 0 without a seat.
    pub(super) positions: BTreeMap<i8, Vec<u64>>,
    /// The priority of the first waiter, as long as it has seats.
    first: i8,
    /// Whether the seats of the first waiter are marked, because it waits for other seats.
    held_up: bool,
    /// The state of the first waiter at the counting limits.
    pub(super) counting: Counting,
    /// The time at which a pause leaves each member empty, by the member's clock.
    emptied: Vec<Option<Nanos>>,
}

impl Seats {
    pub(super) fn position(&self, index: usize, priority: i8) -> u64 {
        self.positions.get(&priority).map_or(0, |positions| positions[index])
    }
}

/// Permits of counting limits. A grant nearly always has at most one, which is kept without
/// allocating.
#[derive(Debug, Default)]
pub(crate) struct Permits {
    first: Option<CountingPermit>,
    #[expect(clippy::box_collection, reason = "a grant is moved and dropped sooner")]
    more: Option<Box<Vec<CountingPermit>>>,
}

/// The sum of the requests that go first at one member.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Sum {
    /// The weight of the requests, in the member's own unit.
    weight: u128,
    /// The permits that the last request asks for; 0 if unknown.
    last: u32,
    /// The priority of the last request.
    priority: i8,
}

/// The permits that one grant took.
#[derive(Default)]
pub(crate) struct AllCharge {
    /// Empty for a grant that was made without the lock, because its owner saw the grant at once.
    pub(crate) taken: Vec<(usize, Box<dyn MemberGrant>)>,
    pub(crate) permits: Permits,
    /// What a grant that was made without the lock left in the members, if the request asks for it.
    #[expect(clippy::box_collection, reason = "a grant is moved and dropped sooner")]
    pub(crate) left: Option<Box<Vec<(usize, Left)>>>,
    /// The members from which a grant that was made without the lock took nothing.
    #[expect(clippy::box_collection, reason = "a grant is moved and dropped sooner")]
    pub(crate) passed: Option<Box<Vec<usize>>>,
}

impl Permits {
    pub(crate) fn iter(&self) -> impl Iterator<Item = &CountingPermit> {
        self.first.iter().chain(self.more.iter().flat_map(|more| more.iter()))
    }

    pub(super) fn add(&mut self, permit: CountingPermit) {
        match self.first {
            None => self.first = Some(permit),
            Some(_) => self.more.get_or_insert_default().push(permit),
        }
    }
}

impl AllCharge {
    /// Notes whether a grant that is made without the lock took permits from this member.
    fn note_taken(&mut self, index: usize, took: bool) {
        if !took {
            self.passed.get_or_insert_default().push(index);
        }
    }
}

impl Drop for Permits {
    fn drop(&mut self) {
        if let Some(more) = self.more.take() {
            give_back_together(self.first.take().into_iter().chain(*more));
        }
    }
}

impl Entry {
    pub(crate) fn new(name: Name, kind: Kind) -> Entry {
        Entry { name, kind, cost: None, placeholder_of: None }
    }

    /// Returns whether the number of a request that names no member applies to this one.
    pub(crate) fn takes_number(&self) -> bool {
        self.cost.is_none() && matches!(self.kind, Kind::Rate(_))
    }

    pub(crate) fn check(&self, n: u32, priority: i8) -> Result<(), Refusal> {
        match &self.kind {
            _ if n == 0 => Ok(()),
            Kind::Rate(member) => member.check(n, priority),
            Kind::Counting(limit) => limit.check(n),
        }
    }

    /// Charges permits that are not part of a grant. Does nothing to a counting limit.
    pub(crate) fn debit(&self, n: u32) {
        match (&self.placeholder_of, &self.kind) {
            (Some(key), _) => key.debit(n),
            (None, Kind::Rate(member)) => member.debit(n),
            (None, Kind::Counting(_)) => {}
        }
    }

    /// Gives back permits that were not used. Does nothing to a counting limit.
    pub(crate) fn refund(&self, n: u32) {
        match (&self.placeholder_of, &self.kind) {
            (Some(key), _) => key.refund(n),
            (None, Kind::Rate(member)) => member.refund(n),
            (None, Kind::Counting(_)) => {}
        }
    }

    /// Takes the permits beyond this number, and returns how many it took. Does nothing to a
    /// counting limit.
    pub(crate) fn keep_at_most(&self, permits: u64) -> u64 {
        match (&self.placeholder_of, &self.kind) {
            (Some(key), _) => key.keep_at_most(permits),
            (None, Kind::Rate(member)) => member.keep_at_most(permits),
            (None, Kind::Counting(_)) => 0,
        }
    }

    pub(crate) fn status(&self) -> Status {
        match (&self.placeholder_of, &self.kind) {
            (Some(key), _) => key.status(),
            (None, Kind::Rate(member)) => member.status(),
            (None, Kind::Counting(limit)) => limit.status(),
        }
    }

    /// Returns the member's rank in the order of asking; each limiter has a rank of its own.
    pub(crate) fn rank(&self) -> (bool, u64) {
        match &self.kind {
            Kind::Rate(member) => (false, member.number()),
            // An address identifies the limit as well as a number does.
            Kind::Counting(limit) => (true, limit.address() as u64),
        }
    }
}

impl<C: Timer> All<C> {
    pub(crate) fn new(members: Vec<Entry>, shared: Weak<Shared<All<C>, C>>) -> All<C> {
        let mut order: Vec<_> = (0..members.len()).collect();
        order.sort_by_key(|&index| members[index].rank());
        let counting = Counting::new(members.len());
        let emptied = vec![None; members.len()];
        let seats =
            Mutex::new(Seats { positions: BTreeMap::new(), first: 0, held_up: false, counting, emptied });
        All {
            members,
            order,
            seats,
            last: AtomicU64::new(0),
            changes: AtomicU64::new(0),
            shared,
            #[cfg(feature = "keyed")]
            home: None,
        }
    }

    /// Returns whether permits in use keep this composite alive.
    #[cfg(feature = "keyed")]
    pub(super) fn is_kept(&self) -> bool {
        self.home.as_ref().is_some_and(|home| home.is_kept)
    }

    /// This rule as that of one key, among the composites of all keys.
    #[cfg(feature = "keyed")]
    pub(super) fn with_home(mut self, home: Option<KeyCleanup<C>>) -> All<C> {
        self.home = home;
        self
    }

    /// Returns the rate limiters that this request asks, in order.
    fn rates<'a>(&'a self, ask: &'a [u32]) -> impl Iterator<Item = (usize, &'a Arc<dyn Member>, u32)> {
        self.order.iter().filter_map(|&index| match (&self.members.get(index)?.kind, *ask.get(index)?) {
            (_, 0) | (Kind::Counting(_), _) => None,
            (Kind::Rate(member), n) => Some((index, member, n)),
        })
    }

    /// Returns the rate limiters that this request waits for behind all requests that are `ahead`,
    /// in order. Each comes with the weight of the requests ahead, and with the permits and the
    /// priority that are asked for behind them. A member of which the request asks nothing must be
    /// ready for the last request before it that asks for some.
    fn waited_for<'a>(
        &'a self,
        ask: &'a Weights,
        ahead: &'a [Sum],
    ) -> impl Iterator<Item = (usize, &'a Arc<dyn Member>, u128, (u32, i8))> {
        self.order.iter().filter_map(|&index| {
            let Kind::Rate(member) = &self.members.get(index)?.kind else { return None };
            let Sum { weight, last, priority } = ahead.get(index).copied().unwrap_or_default();
            Some(match *ask.get(index)? {
                0 if weight == 0 => return None,
                0 => {
                    let n = last.max(1);
                    (index, member, weight.saturating_sub(member.weight(n)), (n, priority))
                }
                n => (index, member, weight, (n, ask.priority)),
            })
        })
    }

    /// Returns the costs of a request, plus one permit of each member of which it asks nothing
    /// although requests before it do. Called without any lock.
    fn with_waited_for(&self, ask: &Weights) -> Weights {
        let mut asked = ask.clone();
        if ask.contains(&0)
            && let Some(shared) = self.shared.upgrade()
            && shared.gate_word.load().has_waiters()
        {
            let ahead = lock(&shared.line).ahead(self, ask.priority);
            let waited_for = ahead.iter().zip(ask.iter()).map(|(sum, n)| *n == 0 && sum.weight > 0);
            waited_for.enumerate().filter(|(_, is)| *is).for_each(|(index, _)| asked.set(index, 1));
        }
        asked
    }

    /// Returns the counting limits that this request asks, in order.
    pub(super) fn counting<'a>(
        &'a self,
        ask: &'a [u32],
    ) -> impl Iterator<Item = (usize, &'a CountingLimit, u32)> {
        self.order.iter().filter_map(|&index| match (&self.members.get(index)?.kind, *ask.get(index)?) {
            (_, 0) | (Kind::Rate(_), _) => None,
            (Kind::Counting(limit), n) => Some((index, limit, n)),
        })
    }

    /// Returns a counting limit that has too few permits for a request now.
    fn lacking(&self, ask: &Weights) -> Option<&CountingLimit> {
        let limits = self.members.iter().zip(ask.iter());
        limits.filter(|(_, n)| **n > 0).find_map(|(entry, n)| match &entry.kind {
            Kind::Counting(limit) if limit.available() < *n => Some(limit),
            Kind::Counting(_) | Kind::Rate(_) => None,
        })
    }

    /// Checks whether all members have enough permits, and takes none.
    fn check_available(&self, ask: &Weights) -> Result<(), Refusal> {
        if let Some(limit) = self.lacking(ask) {
            return Err(limit.in_use());
        }
        match self.rates(ask).map(|(_, member, n)| member.predict_wait(n, ask.priority)).max() {
            None | Some(Wait { time: Nanos::ZERO, .. }) => Ok(()),
            Some(wait) => Err(wait.refusal()),
        }
    }

    /// Returns the rate limiter that is ready last for a request and the requests before it, and
    /// how long that takes. Called without any lock.
    pub(super) fn last(&self, ask: &Weights) -> Option<(Wait, &Entry)> {
        let ask = self.with_waited_for(ask);
        let asked = self.members.iter().zip(ask.iter()).filter(|(_, n)| **n > 0);
        let waits = asked.filter_map(|(entry, n)| match &entry.kind {
            Kind::Rate(member) => Some((member.predict_wait(*n, ask.priority), entry)),
            Kind::Counting(_) => None,
        });
        // Of several members that are ready last, the first one counts.
        waits.reduce(|last, other| if other.0 > last.0 { other } else { last })
    }

    /// Takes from all members in their order, each inside the call of the member before it, and
    /// calls `rest` innermost. A member puts its permits back if a later one has too few. On a
    /// refusal, the caller drops the permits in `charge`.
    pub(super) fn take_then(
        &self,
        ask: &Weights,
        charge: &mut AllCharge,
        rest: &mut dyn FnMut() -> Result<(), Refusal>,
    ) -> Result<(), Refusal> {
        self.take_more(ask, &self.order, charge, rest)
    }

    fn take_more(
        &self,
        ask: &Weights,
        more: &[usize],
        charge: &mut AllCharge,
        rest: &mut dyn FnMut() -> Result<(), Refusal>,
    ) -> Result<(), Refusal> {
        let Some((&index, more)) = more.split_first() else { return rest() };
        let Entry { kind, placeholder_of, .. } = &self.members[index];
        match (kind, ask[index]) {
            (_, 0) => self.take_more(ask, more, charge, rest),
            (Kind::Rate(_), _) if placeholder_of.is_some() => {
                charge.note_taken(index, false);
                self.take_more(ask, more, charge, rest)
            }
            (Kind::Rate(member), n) if ask.wants_left => {
                let (asked, mut left) = ((n, ask.priority), None);
                let mut more = || self.take_more(ask, more, charge, rest);
                let took = member.take_then(asked, Some(&mut left), &mut more)?;
                charge.left.get_or_insert_default().extend(left.map(|left| (index, left)));
                charge.note_taken(index, took);
                Ok(())
            }
            (Kind::Rate(member), n) => {
                let mut more = || self.take_more(ask, more, charge, rest);
                let took = member.take_then((n, ask.priority), None, &mut more)?;
                charge.note_taken(index, took);
                Ok(())
            }
            (Kind::Counting(limit), n) => {
                charge.permits.add(limit.take(n)?);
                self.take_more(ask, more, charge, rest)
            }
        }
    }

    /// Returns the limit for whose permits in use the first waiter waits.
    pub(super) fn awaited(&self) -> Option<&Entry> {
        let first = lock(&self.seats).counting.lacks_permits()?;
        let missing = self.counting(&first).find(|(_, limit, n)| limit.available() < *n);
        let (index, ..) = missing.or_else(|| self.counting(&first).next())?;
        self.members.get(index)
    }

    /// Gives up seats in the queues of the members.
    fn give_up(&self, positions: impl IntoIterator<Item = Vec<u64>>, deferred: &mut Deferred) {
        for positions in positions {
            for (entry, position) in self.members.iter().zip(positions) {
                deferred.run_with(|deferred| entry.give_up(position, deferred));
            }
        }
    }
}

impl Entry {
    fn give_up(&self, position: u64, deferred: &mut Deferred) {
        match (&self.kind, position) {
            (_, 0) => {}
            (Kind::Rate(member), _) => member.give_up(position, deferred),
            (Kind::Counting(limit), _) => limit.pool.give_up(position, deferred),
        }
    }
}

impl<C: Timer> Rule for All<C> {
    type Ask = Weights;
    /// The sum for each member; empty if there is no request.
    type Ahead = Vec<Sum>;
    type Charge = AllCharge;

    fn check(&self, ask: &Weights) -> Result<(), Refusal> {
        if ask.iter().all(|n| *n == 0) {
            return Err(Refusal::ZeroPermits);
        }
        self.members.iter().zip(ask.iter()).try_for_each(|(entry, n)| entry.check(*n, ask.priority))
    }

    /// The refusal names a pause if the member that is ready last is paused. If all rates are due,
    /// the requests that go first wait for permits in use, and it is unknown for how long.
    fn refusal_for_caller(&self, ask: &Weights, refusal: Refusal) -> Refusal {
        match refusal {
            Refusal::Limited { retry_after: Nanos::ZERO } => match self.awaited() {
                Some(Entry { kind: Kind::Counting(limit), .. }) => limit.in_use(),
                Some(_) | None => refusal,
            },
            Refusal::Limited { retry_after } => {
                let last = self.last(ask).map(|(wait, _)| wait);
                // A request that may not wait needs permits in use as soon as the rates are due.
                // When such permits come back is unknown.
                let may_wait = last.is_none_or(|wait| retry_after < wait.time);
                match (last, self.lacking(ask)) {
                    (_, Some(limit)) if !may_wait => limit.in_use(),
                    (Some(Wait { paused: true, .. }), _) => Refusal::Paused { retry_after },
                    _ => refusal,
                }
            }
            refusal => refusal,
        }
    }

    fn permits(&self, ask: &Weights) -> u64 {
        ask.iter().map(|n| u64::from(*n)).sum()
    }

    fn merge(&self, ahead: &mut Vec<Sum>, more: &Vec<Sum>) {
        ahead.resize(self.members.len(), Sum::default());
        for (ahead, more) in ahead.iter_mut().zip(more).filter(|(_, more)| more.weight > 0) {
            *ahead = Sum { weight: ahead.weight.saturating_add(more.weight), ..*more };
        }
    }

    fn unmerge(&self, ahead: &mut Vec<Sum>, less: &Vec<Sum>) {
        for (ahead, less) in ahead.iter_mut().zip(less).filter(|(_, less)| less.weight > 0) {
            *ahead = Sum { weight: ahead.weight.saturating_sub(less.weight), last: 0, ..*ahead };
        }
    }

    fn add(&self, ahead: &mut Vec<Sum>, ask: &Weights) {
        ahead.resize(self.members.len(), Sum::default());
        for (index, member, n) in self.rates(ask) {
            let weight = ahead[index].weight.saturating_add(member.weight(n));
            ahead[index] = Sum { weight, last: n, priority: ask.priority };
        }
    }

    fn subtract(&self, ahead: &mut Vec<Sum>, ask: &Weights) {
        ahead.resize(self.members.len(), Sum::default());
        for (index, member, n) in self.rates(ask) {
            let weight = ahead[index].weight.saturating_sub(member.weight(n));
            ahead[index] = Sum { weight, last: 0, ..ahead[index] };
        }
    }

    fn needs_last(&self, ahead: &Vec<Sum>, ask: &Weights) -> bool {
        ahead.iter().zip(ask.iter()).any(|(sum, n)| *n == 0 && sum.weight > 0 && sum.last == 0)
    }

    fn find_last(&self, ahead: &mut Vec<Sum>, before: &Weights) {
        for (sum, n) in ahead.iter_mut().zip(before.iter()).filter(|(sum, _)| sum.last == 0) {
            sum.last = *n;
        }
    }

    fn try_take(&self, _now: Nanos, ask: &Weights) -> Result<AllCharge, Refusal> {
        self.check(ask)?;
        self.check_available(ask)?;
        let mut charge = AllCharge::default();
        match self.take_then(ask, &mut charge, &mut || Ok(())) {
            Ok(()) => Ok(charge),
            // Another request took the permits just now. Return the refusal that an equal call
            // would get now. If an equal call would be granted, return the first refusal. The
            // charge is dropped before the check, so that the check finds the counted permits that
            // it took.
            Err(refusal) => {
                drop(charge);
                Err(self.check_available(ask).err().unwrap_or(refusal))
            }
        }
    }

    fn take(
        &self,
        at: Nanos,
        now: Nanos,
        ask: &Weights,
        deferred: &mut Deferred,
    ) -> Result<AllCharge, Refusal> {
        let due = self.ready_at(now, &Vec::new(), ask, 0);
        if due > now {
            return Err(limited(due, now));
        }
        // Counting limits come first here, so that no permit of a rate is spent on a request that
        // cannot begin.
        let permits = self.take_counting(ask, deferred)?;
        // If the request waited for a counting limit, the rates were not late. Relaxed: the
        // composite's lock orders it.
        let last = Nanos::new(self.last.load(Ordering::Relaxed));
        let waited_for_permits = lock(&self.seats).counting.was_short(ask.priority);
        let at = if waited_for_permits { now } else { at.max(last).min(now) };
        let late = now.saturating_since(at);
        let mut taken = Vec::with_capacity(self.members.len());
        for (index, member, n) in self.rates(ask) {
            let position = lock(&self.seats).position(index, ask.priority);
            // A policy may panic.
            let share =
                deferred.run_with(|deferred| member.take(late, position, (n, ask.priority), deferred));
            match share.unwrap_or_else(|| Err(limited(now, now))) {
                Ok(share) => taken.push((index, share)),
                Err(refusal) => {
                    taken.into_iter().rev().for_each(|(_, share)| share.undo(deferred));
                    deferred.drops.push(Box::pin(permits));
                    return Err(refusal);
                }
            }
        }
        // Relaxed: as above.
        self.last.store(at.as_u64(), Ordering::Relaxed);
        // The next waiter of this priority takes its seats behind others.
        self.priority_emptied(ask.priority, deferred);
        Ok(AllCharge { taken, permits, ..AllCharge::default() })
    }

    /// Asks for an equal number of each member in `as_many`, which are those that the request does
    /// not name.
    fn as_many(&self, _at: Nanos, ask: &Weights, most: u32, line: TakeLimit) -> Weights {
        let Some(as_many) = &ask.as_many else { return ask.clone() };
        let seats = lock(&self.seats);
        let there = as_many.members.iter().filter_map(|&index| match &self.members.get(index)?.kind {
            Kind::Rate(member) => Some(member.leaves(seats.position(index, ask.priority), ask.priority)),
            Kind::Counting(_) => None,
        });
        let n = line.more_of(there.min().unwrap_or(0), ask.others, most);
        ask.with_others(n, &as_many.members)
    }

    fn ready_at(&self, now: Nanos, ahead: &Vec<Sum>, ask: &Weights, _kept: u32) -> Nanos {
        // The members return durations from now, and `now` may be the end of a pause.
        let clock_now = self.shared.upgrade().map_or(now, |shared| now.min(shared.clock.now()));
        let begin = span(now, clock_now);
        let (seats, mut due, mut from) = (lock(&self.seats), Span::MIN, None);
        for _ in 0..ROUNDS {
            // The seats that go first at the time found so far may differ from those that go first
            // now. If this request is due by then anyway, that makes no difference.
            let judged = self.waited_for(ask, ahead).filter(|(index, ..)| from != Some(*index));
            let judged = judged.map(|(index, member, ahead, (n, priority))| {
                let own = seats.position(index, seats.first);
                let position = if ahead == 0 { seats.position(index, priority) } else { 0 };
                (member.due((begin, due), (position, own), ahead, (n, priority)), index)
            });
            let Some((judged, index)) = judged.max() else { break };
            if judged <= due.max(0) {
                due = due.max(judged);
                break;
            }
            (due, from) = (judged, Some(index));
        }
        time(clock_now, due)
    }

    /// The members are not paused: they go on serving other requests.
    fn pause(&self, _part: usize, _stop: Standstill) -> Option<u64> {
        Some(u64::MAX)
    }

    /// Leaves the members as if they were empty at the end of the composite's pause, whether the
    /// composite is called then or not.
    fn empty_at(&self, at: Option<Nanos>, deferred: &mut Deferred) {
        let Some(shared) = self.shared.upgrade() else { return };
        let span = at.map(|at| move || span(at, shared.clock.now()));
        self.empty_in(span.as_ref().map(|span| span as &dyn Fn() -> Span), deferred);
    }

    fn stands_still(&self, _part: usize) -> bool {
        true
    }

    fn forecast_pause(&self, stop: Standstill) -> Option<Forecast> {
        let now = self.shared.upgrade().map_or(stop.to, |shared| shared.clock.now());
        let mut forecast = self.forecast(now);
        forecast.at = now.max(stop.to);
        Some(forecast)
    }

    fn ready_after_pause(
        &self,
        _stop: Standstill,
        at: Nanos,
        ahead: &Vec<Sum>,
        ask: &Weights,
        kept: u32,
    ) -> Nanos {
        self.ready_at(at, ahead, ask, kept)
    }

    fn size(&self, _ask: &Weights) -> Option<u32> {
        None
    }

    fn weigh(&self, _sizes: &Sizes) -> Option<Vec<Sum>> {
        None
    }

    /// While requests wait for one member, permits of another one overflow, and a window leaves
    /// room that no later request uses. So requests are forecast one by one, if the policies of the
    /// members are all that determines their times. Otherwise, sums predict the times of all
    /// requests, as well as they can.
    fn one_by_one(&self, _largest: u32) -> usize {
        let seats = lock(&self.seats);
        let own = |index: usize| seats.positions.values().filter(|positions| positions[index] != 0).count();
        let is_plain = |(index, entry): (usize, &Entry)| match &entry.kind {
            Kind::Rate(member) => member.is_plain(own(index)),
            Kind::Counting(_) => true,
        };
        if self.members.iter().enumerate().all(is_plain) { MAX_FORECAST } else { 0 }
    }

    /// The sums of a composite have no sizes.
    fn forecasts_crowds(&self) -> bool {
        false
    }

    fn forecast(&self, now: Nanos) -> Forecast {
        let part = |entry: &Entry| match &entry.kind {
            Kind::Rate(member) => member.forecast(),
            Kind::Counting(_) => Forecast::new(now),
        };
        Forecast::of_parts(now, self.members.iter().map(part).collect())
    }

    /// A request is granted when all members have its permits. Each member is asked as of the time
    /// found so far: a request that is due stays due.
    fn predict(&self, forecast: &mut Forecast, ask: &Weights, _kept: u32) -> Nanos {
        let (from, mut due) = (forecast.from, forecast.at);
        let predict = |(_, member, n): (usize, &Arc<dyn Member>, u32), part: &mut Forecast, due: Nanos| {
            let ahead = span(part.from, from);
            part.at = part.at.max(time(due, ahead));
            let at = member.predict(part, n);
            if at == Nanos::MAX { at } else { due.max(time(at, -ahead)) }
        };
        for _ in 0..ROUNDS {
            let before = due;
            for asked in self.rates(ask) {
                let part = &mut forecast.parts[asked.0];
                let mark = part.mark();
                due = predict(asked, part, due);
                part.rewind(&mark);
                if due == Nanos::MAX {
                    return due;
                }
            }
            if due == before {
                break;
            }
        }
        for asked in self.rates(ask) {
            due = predict(asked, &mut forecast.parts[asked.0], due);
        }
        forecast.at = due;
        due
    }

    fn predict_many(&self, _forecast: &mut Forecast, _crowd: &Crowd, _weight: &Vec<Sum>) {}

    fn undo(
        &self,
        _now: Nanos,
        charge: &mut AllCharge,
        _part: usize,
        _most: u64,
        deferred: &mut Deferred,
    ) -> u64 {
        let AllCharge { taken, permits, .. } = std::mem::take(charge);
        taken.into_iter().rev().for_each(|(_, share)| share.undo(deferred));
        deferred.drops.push(Box::pin(permits));
        u64::MAX
    }

    /// There is always room here: each member's queue limits what is put back there.
    fn moved(&self, _charge: &AllCharge, _part: usize) -> Option<(u64, u64)> {
        Some((0, u64::MAX))
    }

    fn full_level(&self, _now: Nanos, _part: usize) -> u64 {
        0
    }

    fn level_unit(&self, _part: usize) -> (u64, u64) {
        (1, 1)
    }

    /// Each member knows its own lateness.
    fn records_lateness(&self) -> bool {
        false
    }

    fn note_collected(&self, charge: &AllCharge) {
        for (_, share) in &charge.taken {
            share.note_collected();
        }
    }

    fn note_head(&self, now: Nanos, first: Option<(&Weights, Nanos)>, deferred: &mut Deferred) -> Nanos {
        let Some((ask, due)) = first else {
            let positions = std::mem::take(&mut lock(&self.seats).positions);
            self.give_up(positions.into_values(), deferred);
            lock(&self.seats).counting.begin();
            return Nanos::MAX;
        };
        let (at, priority) = (span(due, now), ask.priority);
        let mut seats = lock(&self.seats);
        if seats.first != priority {
            for (index, entry) in self.members.iter().enumerate() {
                match (&entry.kind, seats.position(index, seats.first)) {
                    (_, 0) => {}
                    (Kind::Rate(member), position) => member.make_idle(position, deferred),
                    (Kind::Counting(limit), position) => limit.pool.dequeue_seat(position, deferred),
                }
            }
            seats.first = priority;
            seats.held_up = false;
            seats.counting.begin();
        }
        let positions = seats.positions.entry(priority).or_insert_with(|| vec![0; self.members.len()]);
        let (mut new, mut new_at_rate, mut alone_from) = (false, false, Span::MIN);
        for ((entry, position), n) in self.members.iter().zip(positions).zip(ask.iter()) {
            match &entry.kind {
                Kind::Counting(_) => new |= *position == 0,
                Kind::Rate(_) if *n == 0 => entry.give_up(std::mem::take(position), deferred),
                Kind::Rate(member) => {
                    new_at_rate |= *position == 0;
                    let (seat, due) =
                        member.take_seat(*position, (*n, priority), at, &self.waker(), deferred);
                    *position = seat;
                    alone_from = alone_from.max(due);
                }
            }
        }
        let check_at = self.seat_counting(&mut seats, now, (ask, due), deferred);
        // If the request is due later than `alone_from`, when each member by itself would serve it,
        // other seats will go first at some member. Then its seats are away everywhere until
        // `alone_from`, and from then on the request waits for one member only.
        let alone_from = time(now, alone_from);
        let is_held_up = alone_from > now && alone_from.saturating_add(CLOCK_SKEW) < due;
        let newly_held_up = is_held_up && (new_at_rate || !seats.held_up);
        // A waiter that is first again has seats that were made idle, and so lost their marks.
        if newly_held_up || is_held_up != seats.held_up {
            seats.held_up = is_held_up;
            for (index, member, _) in self.rates(ask) {
                member.mark_held_up(seats.position(index, priority), is_held_up);
            }
        }
        // `ready_at` takes this lock.
        drop(seats);
        // A member may have been lowered or closed, or a time may have moved, before there was a
        // seat to notify, or a mark. A member counts a change under its lock, and so before it
        // gives the seat. Relaxed: as in `changes`.
        let is_changed = || self.sum_of_changes() != self.changes.load(Ordering::Relaxed);
        let is_earlier = || (new_at_rate || newly_held_up) && self.ready_at(now, &Vec::new(), ask, 0) < due;
        if (new || new_at_rate || newly_held_up) && (is_changed() || is_earlier()) {
            deferred.rechecks.extend(self.shared.upgrade().map(|shared| shared as Arc<dyn Recheck>));
        }
        if is_held_up { alone_from.min(check_at) } else { check_at }
    }

    fn priority_emptied(&self, priority: i8, deferred: &mut Deferred) {
        let mut seats = lock(&self.seats);
        let positions = seats.positions.remove(&priority);
        if seats.first == priority {
            seats.counting.begin();
        }
        // The locks of the members are taken without this one.
        drop(seats);
        self.give_up(positions, deferred);
    }

    /// The terms of the members determine the weight of a request.
    fn changes(&self) -> Changes {
        let changes = self.sum_of_changes();
        // Relaxed: the composite's lock orders it.
        match self.changes.swap(changes, Ordering::Relaxed) {
            before if before == changes => Changes::Nothing,
            before if before / WEIGHTS_CHANGED == changes / WEIGHTS_CHANGED => Changes::Times,
            _ => Changes::Weights,
        }
    }

    fn may_lack_permits(&self, ask: &Weights, is_first: bool) -> bool {
        !is_first || self.lacking(ask).is_some()
    }

    /// Each member decides for itself.
    fn catches_up(&self) -> bool {
        true
    }

    /// A member of which the request asks nothing bounds no wait.
    fn max_wait(&self, ask: &Weights) -> Duration {
        self.rates(ask).map(|(_, member, _)| member.max_wait()).min().unwrap_or(Duration::MAX)
    }
}

impl<C: Timer> All<C> {
    /// Returns the sum of the members' change counters.
    fn sum_of_changes(&self) -> u64 {
        let changes = self.members.iter().map(|entry| match &entry.kind {
            Kind::Rate(member) => member.changes(),
            // A request may ask for more permits than a lowered limit has.
            Kind::Counting(limit) => limit.pool.lowered().wrapping_mul(TIMES_CHANGED),
        });
        changes.fold(0, u64::wrapping_add)
    }

    /// Schedules that all rate limiters are left empty `span` from now, or cancels this.
    fn empty_in(&self, span: Option<&dyn Fn() -> Span>, deferred: &mut Deferred) {
        for (entry, emptied) in self.members.iter().zip(&mut lock(&self.seats).emptied) {
            if let Kind::Rate(member) = &entry.kind
                && (span.is_some() || emptied.is_some())
            {
                *emptied = member.empty_in(*emptied, span, deferred);
            }
        }
    }

    /// Returns how long the composite itself is still paused.
    pub(crate) fn paused_for(&self) -> Duration {
        self.shared.upgrade().map_or(Duration::ZERO, |shared| shared.paused_for())
    }

    pub(super) fn waker(&self) -> Weak<dyn Recheck> {
        self.shared.clone()
    }
}

/// When the last handle is dropped, no request waits any longer, whether its future was dropped or
/// leaked.
impl<C: Timer> Drop for All<C> {
    fn drop(&mut self) {
        let mut deferred = Deferred::new();
        let positions = std::mem::take(&mut lock(&self.seats).positions);
        self.give_up(positions.into_values(), &mut deferred);
        // A pause that is still in effect ends here.
        self.empty_in(None, &mut deferred);
        drop(deferred);
    }
}

impl fmt::Debug for AllCharge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AllCharge").field("taken", &self.taken.len()).finish_non_exhaustive()
    }
}
