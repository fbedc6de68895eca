//! Predicted waits: when a request is due behind the waiters in the queue.
//!
//! A [`Schedule`] computes when a request is due behind a weight, from the policy, a kept share and
//! a pause. The [`Line`] knows the weight.
//!
//! For most policies the sum of the weights ahead determines the due time, at a cost that does not
//! depend on the number of requests. For a window it does not: a request that does not fit leaves
//! room that no other request uses, so each request ahead is forecast, in order. That costs a few
//! nanoseconds for each request, so it ends after [`MAX_FORECAST`] requests, and the next call
//! continues from there. The due times of these requests are kept until something changes, so
//! asking again for any of these entries is a binary search. All other requests are a crowd of
//! which only sums are known, and the forecast assumes the slowest order for them. A predicted due
//! time may then be too late, and is never too early.

use std::time::Duration;

use crate::clock::Timer;
use crate::line::index::block_of;
use crate::line::pause::{Pace, PauseState};
use crate::line::position::{end_of, priority_of};
use crate::line::priorities::{Class, NO_ENTRY};
use crate::line::rule::{Rule, Single};
use crate::line::settings::{KeptShare, Settings};
use crate::line::sizes::Sizes;
use crate::line::visit::{Demand, Visit};
use crate::line::{Entry, Line, State};
use crate::policy::{Crowd, Forecast, Policy, Standstill};
use crate::time::Nanos;

/// The number of requests that are forecast one by one, at most.
pub(super) const MAX_FORECAST: usize = 4096;

/// What determines when a request is due: the policy with its state, and the settings.
pub(crate) struct Schedule<'a, R> {
    pub(crate) rule: &'a R,
    pub(crate) settings: &'a Settings,
}

impl<R: Rule> Schedule<'_, R> {
    /// Returns when a request of this priority is due behind all requests that are `ahead`.
    pub(crate) fn due(&self, now: Nanos, priority: i8, ahead: &R::Ahead, ask: &R::Ask) -> Nanos {
        let opens = self.settings.opens_for(now);
        if opens == Nanos::MAX {
            return opens;
        }
        // The policy is asked as of the end of a pause, because permits accrue until then, up to
        // the burst.
        self.ready_at(now.max(opens), priority, ahead, ask).max(opens)
    }

    /// Returns when a request is due if no request is granted before `now`, which is not before the
    /// end of a pause.
    pub(crate) fn ready_at(&self, now: Nanos, priority: i8, ahead: &R::Ahead, ask: &R::Ask) -> Nanos {
        let (rule, settings, kept) = (self.rule, self.settings, self.settings.kept_from(priority));
        let due = match &settings.pause {
            Some(pause) => rule.ready_after_pause(pause.until(settings.opens), now, ahead, ask, kept),
            None => rule.ready_at(now, ahead, ask, kept),
        };
        if !settings.is_restrained() {
            return due;
        }
        let paced = |pace: Pace| pace.due(rule, rule.permits_in(ahead), ask, kept);
        let due = settings.paces_to_come(rule).map(paced).fold(due, Nanos::max);
        // The last pause of a composite that is over by then leaves the limiter empty.
        let Some((&at, _)) = settings.emptied.range(..=now).next_back() else { return due };
        let due = due.max(rule.ready_after_pause(Standstill::end(at), now, ahead, ask, kept));
        let counting = (0..R::PARTS).filter(|part| !rule.stands_still(*part));
        counting.map(|part| paced(Pace::new(part, at))).fold(due, Nanos::max)
    }
}

/// The requests in the queue before a position, as sums.
struct Sums<Ahead> {
    crowd: Crowd,
    weight: Ahead,
}

/// A forecast of the entries from the head on. The next request that asks continues it. It is
/// dropped when an entry leaves the queue, or joins it before the end, and when anything is changed
/// or given back.
#[derive(Debug)]
pub(super) struct Memo<Ahead> {
    /// The state when the forecast began: a request that came before the queue formed may still
    /// take permits.
    begin: Forecast,
    forecast: Forecast,
    /// The first entry that is not in the forecast, or none.
    next: u32,
    /// The number of entries in the forecast.
    requests: u64,
    permits: u64,
    weight: Ahead,
    /// The positions of the first entries in the forecast, and when each of them is due, in order.
    dues: Vec<(u64, Nanos)>,
    /// The forecast as it was behind the first [`MAX_FORECAST`] entries, without their due times:
    /// for a request that asks for the due time of an entry between them and the last one in the
    /// forecast.
    first: Option<Box<Memo<Ahead>>>,
    /// The pause, and the kept share.
    terms: (Nanos, Option<KeptShare>, Option<PauseState>, Vec<Pace>),
}

impl<Ahead> Memo<Ahead> {
    fn without_dues(&self) -> Memo<Ahead>
    where
        Ahead: Clone,
    {
        let Memo { begin, forecast, weight, terms, .. } = self;
        let (begin, forecast, weight, terms) =
            (begin.clone(), forecast.clone(), weight.clone(), terms.clone());
        Memo { begin, forecast, weight, dues: Vec::new(), first: None, terms, ..*self }
    }

    /// Notes an entry that has joined behind all others.
    pub(super) fn with_last(mut self: Box<Self>, key: u32) -> Box<Self> {
        if self.next == NO_ENTRY {
            self.next = key;
        }
        self
    }

    /// Returns when the entry at a position is due, if it is among the first entries in the
    /// forecast.
    fn due_at(&self, position: u64) -> Option<Nanos> {
        let index = self.dues.binary_search_by_key(&position, |(position, _)| *position).ok()?;
        Some(self.dues[index].1)
    }
}

impl<Ahead> Sums<Ahead> {
    /// Sums the requests before a position by their sizes, or else by their weight.
    fn new<R: Rule<Ahead = Ahead>>(rule: &R, sizes: &Sizes, weight: Ahead) -> Sums<Ahead> {
        let crowd = Crowd::new(sizes.requests(), sizes.permits(), 0, sizes.largest());
        let weight = if crowd.requests > 0 { rule.weigh(sizes).unwrap_or(weight) } else { weight };
        Sums { crowd, weight }
    }
}

impl<R: Rule, C: Timer> Line<R, C> {
    /// Returns the sum of all requests that go before a newcomer of this priority, without seats.
    pub(crate) fn ahead(&self, rule: &R, priority: i8) -> R::Ahead {
        let mut ahead = R::Ahead::default();
        for class in self.priorities.before(priority) {
            rule.merge(&mut ahead, &class.ahead);
        }
        ahead
    }

    /// Returns when a request at this position is due, behind requests that weigh `ahead` together.
    pub(super) fn due(&self, rule: &R, now: Nanos, position: u64, ahead: &R::Ahead, ask: &R::Ask) -> Nanos {
        let schedule = self.schedule(rule);
        if self.seats.is_empty() {
            return schedule.due(now, priority_of(position), ahead, ask);
        }
        self.seats.due(&schedule, (now, now), (position, 0), ahead, ask)
    }

    /// Searches the last [`MAX_FORECAST`] requests that go before a newcomer for the requests that
    /// its rule must know. If it finds none, the predicted due time of the newcomer may be too
    /// late.
    fn find_last_asks(&self, rule: &R, ahead: &mut R::Ahead, demand: Demand<'_, R::Ask>) {
        let Demand { ask, priority, .. } = demand;
        let mut key = self.priorities.last_before(priority);
        for _ in 0..MAX_FORECAST {
            let Some(entry) = self.entries.get(key as usize).filter(|_| rule.needs_last(ahead, ask)) else {
                break;
            };
            rule.find_last(ahead, &entry.ask);
            key = entry.previous;
        }
    }

    /// Returns when a newcomer is due, behind the requests that go before it.
    pub(crate) fn due_behind(&self, visit: &Visit<'_, R>, demand: Demand<'_, R::Ask>) -> Nanos {
        let (&Visit { rule, now, .. }, Demand { ask, priority, .. }) = (visit, demand);
        let (position, priorities) = (end_of(priority), self.priorities.before(priority));
        let steps = self.steps(rule, priorities);
        match priorities {
            [] => self.due(rule, now, position, &R::Ahead::default(), ask),
            [only] if steps == 0 && !rule.needs_last(&only.ahead, ask) => {
                self.due(rule, now, position, &only.ahead, ask)
            }
            _ if steps == 0 => {
                let mut ahead = self.ahead(rule, priority);
                self.find_last_asks(rule, &mut ahead, demand);
                self.due(rule, now, position, &ahead, ask)
            }
            _ => {
                let sum =
                    |of: fn(&Class<R::Ahead>) -> u64| priorities.iter().map(of).fold(0, u64::saturating_add);
                let permits = sum(|class| class.sizes.permits());
                let crowd = Crowd::new(sum(|class| class.len as u64), permits, 0, largest(priorities));
                let sums = Sums { crowd, weight: self.ahead(rule, priority) };
                let last = self.priorities.last_before(priority);
                let end = self.entries.get(last as usize).map_or(self.head, |last| last.next);
                self.due_by_forecast(visit, (steps, end), sums, demand)
            }
        }
    }

    /// Returns the time until an entry is due, if nothing changes: zero if it is granted.
    pub(crate) fn due_in(&self, visit: &Visit<'_, R>, key: u32) -> Duration {
        match &self.entries[key as usize].state {
            State::Waiting(_) => {}
            State::Granted(_) | State::Shadowed(_) => return Duration::ZERO,
            State::Refused(_) => return Duration::MAX,
        }
        self.due_of(visit, key).saturating_since(visit.now).as_duration()
    }

    /// Returns when an entry in the queue is due.
    pub(super) fn due_of(&self, visit: &Visit<'_, R>, key: u32) -> Nanos {
        let &Visit { rule, now, .. } = visit;
        let Entry { ask, position, priority, .. } = &self.entries[key as usize];
        let steps = self.steps(rule, self.priorities.before(*priority));
        if steps == 0 {
            return self.due(rule, now, *position, &self.sums_before(rule, key).weight, ask);
        }
        self.due_from_memo(visit, steps, *position).unwrap_or_else(|| {
            let sums = self.sums_before(rule, key);
            self.due_by_forecast(visit, (steps, key), sums, Demand::exactly(ask, *priority))
        })
    }

    /// Returns when the entry at a position is due, from the kept forecast, which is extended to
    /// there. Returns `None` if the entry is not among the first `steps`.
    ///
    /// So asking for each entry of a queue costs about as much as asking for the last one.
    fn due_from_memo(&self, visit: &Visit<'_, R>, steps: usize, position: u64) -> Option<Nanos> {
        if self.settings.opens == Nanos::MAX {
            return Some(Nanos::MAX);
        }
        let mut memo = self.memo(visit);
        let left = steps.saturating_sub(memo.dues.len());
        let due = match self.extend_forecast(visit, &mut memo, left, |entry| entry.position > position) {
            Ok(()) => memo.due_at(position),
            // The entries behind an entry that is never due are not due either.
            Err(Never) => memo.due_at(position).or(Some(Nanos::MAX)),
        };
        self.memo.set(Some(memo));
        due
    }

    /// Returns the kept forecast, or a new one if anything has changed since.
    fn memo(&self, visit: &Visit<'_, R>) -> Box<Memo<R::Ahead>> {
        let Settings { opens, kept, ref pause, ref paces, .. } = self.settings;
        let begin = self.forecast(visit.rule, visit.now);
        let terms = (opens, kept, pause.clone(), paces.clone());
        let last = self.memo.take();
        last.filter(|memo| memo.terms == terms && memo.begin.has_equal_state(&begin)).unwrap_or_else(|| {
            let (forecast, weight) = (begin.clone(), R::Ahead::default());
            let (next, dues) = (self.head, Vec::new());
            Box::new(Memo {
                begin,
                forecast,
                next,
                requests: 0,
                permits: 0,
                weight,
                dues,
                first: None,
                terms,
            })
        })
    }

    /// Extends the forecast by at most `steps` entries. Ends before the first entry for which
    /// `stops` returns true.
    fn extend_forecast(
        &self,
        visit: &Visit<'_, R>,
        memo: &mut Memo<R::Ahead>,
        steps: usize,
        stops: impl Fn(&Entry<R::Ask, R::Charge, C::RuntimeId>) -> bool,
    ) -> Result<(), Never> {
        let &Visit { rule, now, .. } = visit;
        for _ in 0..steps {
            let Some(entry) = self.entries.get(memo.next as usize).filter(|entry| !stops(entry)) else {
                break;
            };
            let demand = Demand::exactly(&entry.ask, entry.priority);
            let due = self.predict(rule, &mut memo.forecast, demand.ask, entry.priority);
            // A request that can never be granted is refused when it is the first, and takes
            // nothing.
            if due == Nanos::MAX && self.check(rule, now, demand).is_ok() {
                return Err(Never);
            }
            if memo.dues.len() < MAX_FORECAST {
                memo.dues.push((entry.position, due));
            }
            memo.requests += 1;
            memo.permits = memo.permits.saturating_add(rule.permits(&entry.ask));
            rule.add(&mut memo.weight, &entry.ask);
            memo.next = entry.next;
            if memo.requests == MAX_FORECAST as u64 {
                memo.first = Some(Box::new(memo.without_dues()));
            }
        }
        memo.forecast.drop_expired();
        Ok(())
    }

    /// Returns the sums of all requests in the queue before an entry.
    fn sums_before(&self, rule: &R, key: u32) -> Sums<R::Ahead> {
        let &Entry { ref ask, position, .. } = &self.entries[key as usize];
        let (mut sizes, mut weight, mut last) = (Sizes::default(), R::Ahead::default(), None);
        if rule.size(ask).is_none() {
            let mut at = self.head;
            while let Some(entry) = self.entries.get(at as usize).filter(|_| at != key) {
                rule.add(&mut weight, &entry.ask);
                at = entry.next;
            }
            return Sums::new(rule, &sizes, weight);
        }
        let mut at = key;
        if let Some(index) = &self.index {
            index.before(position).for_each(|part| sizes.merge(part));
            last = Some(block_of(position));
        }
        // This visits the entries of the request's own block, or all entries of a short queue.
        while let Some(Entry { previous, .. }) = self.entries.get(at as usize)
            && let Some(entry) = self.entries.get(*previous as usize)
            && last.is_none_or(|block| block_of(entry.position) == block)
        {
            rule.size(&entry.ask).into_iter().for_each(|n| sizes.add(n));
            at = *previous;
        }
        Sums::new(rule, &sizes, weight)
    }

    /// Returns when the entries that are served, counted from the head, satisfy `fits`, which gets
    /// the numbers of requests and permits served. Returns `None` if `fits` never returns true, or
    /// not within the part of the queue that is searched.
    pub(super) fn served_when(&self, visit: &Visit<'_, R>, fits: impl Fn(u64, u64) -> bool) -> Option<Nanos> {
        let (mut requests, mut permits, mut at) = (0, 0, self.head);
        if let Some(index) = &self.index {
            at = index.find(|part| {
                let all = (requests + part.requests(), part.permits().saturating_add(permits));
                let passes = !fits(all.0, all.1);
                if passes {
                    (requests, permits) = all;
                }
                passes
            })?;
        }
        // Without an index, a long queue is searched only in part: that of a composite.
        let most = if self.index.is_some() { usize::MAX } else { MAX_FORECAST };
        for _ in 0..most {
            let entry = self.entries.get(at as usize)?;
            requests += 1;
            permits = visit.rule.permits(&entry.ask).saturating_add(permits);
            if fits(requests, permits) {
                return Some(self.due_of(visit, at));
            }
            at = entry.next;
        }
        None
    }

    /// Returns how many requests of these classes must be forecast one by one, at most.
    fn steps(&self, rule: &R, priorities: &[Class<R::Ahead>]) -> usize {
        if !self.seats.is_empty() || priorities.is_empty() {
            return 0;
        }
        // A request that must leave some permits waits like a request that asks for them. A window
        // does not fill as soon as it could with permits that a pause or a pace holds back.
        let unlike = self.settings.kept.is_some() || self.settings.is_restrained();
        let steps = rule.one_by_one(if unlike { u32::MAX } else { largest(priorities) }).min(MAX_FORECAST);
        let fit = || priorities.iter().map(|class| class.len).sum::<usize>() <= steps;
        if rule.forecasts_crowds() || fit() { steps } else { 0 }
    }

    /// Returns when a request is due behind all requests from the head to `end`. Of these, `steps`
    /// are forecast one by one, in addition to the entries already in the forecast.
    fn due_by_forecast(
        &self,
        visit: &Visit<'_, R>,
        (steps, end): (usize, u32),
        sums: Sums<R::Ahead>,
        demand: Demand<'_, R::Ask>,
    ) -> Nanos {
        let (&Visit { rule, .. }, Demand { ask, priority, .. }) = (visit, demand);
        let Sums { mut crowd, mut weight } = sums;
        if self.settings.opens == Nanos::MAX {
            return Nanos::MAX;
        }
        let end_position = self.entries.get(end as usize).map_or(u64::MAX, |end| end.position);
        let mut memo = self.memo(visit);
        // The kept forecast may extend beyond the end. Then this call sets it aside.
        let is_beyond = |memo: &Memo<R::Ahead>| {
            let next = self.entries.get(memo.next as usize);
            end != NO_ENTRY && next.is_none_or(|next| next.position > end_position)
        };
        let (mut steps, mut aside) = (steps, None);
        if is_beyond(&memo) {
            let first = memo.first.as_deref().filter(|first| !is_beyond(first));
            let other = match first.map(Memo::without_dues) {
                Some(first) => {
                    steps = 0;
                    Box::new(first)
                }
                None => self.memo(visit),
            };
            aside = Some(std::mem::replace(&mut memo, other));
        }
        if self.extend_forecast(visit, &mut memo, steps, |entry| entry.position >= end_position).is_err() {
            self.memo.set(Some(aside.unwrap_or(memo)));
            return Nanos::MAX;
        }
        crowd.requests = crowd.requests.saturating_sub(memo.requests);
        crowd.permits = crowd.permits.saturating_sub(memo.permits);
        rule.unmerge(&mut weight, &memo.weight);
        let due = if crowd.requests > 0 {
            let mut forecast = memo.forecast.clone();
            rule.predict_many(&mut forecast, &crowd, &weight);
            forecast.paced = forecast.paced.saturating_add(crowd.permits);
            self.predict(rule, &mut forecast, ask, priority)
        } else {
            let mark = memo.forecast.mark();
            let due = self.predict(rule, &mut memo.forecast, ask, priority);
            memo.forecast.rewind(&mark);
            due
        };
        self.memo.set(Some(aside.unwrap_or(memo)));
        due
    }
}

impl<P: Policy, C: Timer> Line<Single<P>, C> {
    /// Returns when the limiter is full if no request takes permits. It is not full before the end
    /// of a pause, in which no permits accrue, nor while grants are spaced after the pause.
    pub(crate) fn full_at(&self, visit: &Visit<'_, Single<P>>) -> Nanos {
        let (&Visit { rule, now, .. }, settings) = (visit, &self.settings);
        let rest = settings.pause.as_ref().map(|pause| pause.until(settings.opens));
        let stands_still = rest.and_then(|stop| rule.policy.full_after_pause(&rule.state, stop));
        let full_at = stands_still.unwrap_or_else(|| rule.status(now).full_at);
        let paced = settings.paces_to_come(rule);
        let paced = paced.map(|pace| pace.ends(rule));
        full_at.max(paced.max().unwrap_or(Nanos::ZERO)).max(settings.opens_for(now))
    }

    /// Returns how many requests for one permit would be granted now, one after the other, if
    /// `available` permits are available, no request is in the queue and composites may hold seats.
    pub(crate) fn beside_seats(&self, visit: &Visit<'_, Single<P>>, available: u64) -> u64 {
        if self.seats.is_empty() {
            return available;
        }
        let &Visit { rule, now, .. } = visit;
        let one = u128::from(rule.policy.weight(1));
        // If the last of some requests gets a permit, so do the requests before it.
        let (mut least, mut most) = (0, available);
        while least < most {
            let n = most - (most - least) / 2;
            let ahead = one.saturating_mul(u128::from(n - 1));
            match self.due(rule, now, end_of(0), &ahead, &1) <= now {
                true => least = n,
                false => most = n - 1,
            }
        }
        least
    }
}

/// An entry in the forecast is never due.
struct Never;

/// Returns the most permits that one request of these classes asks for.
fn largest<Ahead>(priorities: &[Class<Ahead>]) -> u32 {
    priorities.iter().map(|class| class.sizes.largest()).max().unwrap_or(0)
}
