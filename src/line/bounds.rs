//! Bounds on the queue, and making room when they are reached.

use crate::clock::Timer;
use crate::error::Refusal;
use crate::line::all_waiters::Entered;
use crate::line::due::MAX_FORECAST;
use crate::line::priorities::NO_ENTRY;
use crate::line::rule::Rule;
use crate::line::visit::{Demand, Visit};
use crate::line::{Line, State};
use crate::request::WhenFull;
use crate::time::Nanos;

impl<R: Rule, C: Timer> Line<R, C> {
    /// Returns whether the queue has room, without dropping a waiter.
    pub(crate) fn has_room(&self, rule: &R, ask: &R::Ask) -> bool {
        self.fits(rule, ask) && self.all_waiters.as_ref().is_none_or(|all| all.has_room(rule.permits(ask)))
    }

    /// Returns whether the queue's own bounds have room.
    fn fits(&self, rule: &R, ask: &R::Ask) -> bool {
        self.settings.bounds.fit(self.len(), self.permits, rule.permits(ask))
    }

    /// Enters a newcomer among all requests that wait, in this queue and in others, or refuses it.
    pub(crate) fn enter(&self, visit: &Visit<'_, R>, demand: Demand<'_, R::Ask>) -> Result<Entered, Refusal> {
        let permits = visit.rule.permits(demand.ask);
        Entered::new(self.all_waiters.as_ref(), permits, false).ok_or_else(|| {
            // At that time the request need not wait.
            let retry_after = self.due_behind(visit, demand).saturating_since(visit.now);
            Refusal::QueueFull { retry_after }
        })
    }

    /// Makes room for a newcomer within the queue's own bounds, or refuses it.
    pub(crate) fn make_room(
        &mut self,
        visit: &mut Visit<'_, R>,
        demand: Demand<'_, R::Ask>,
    ) -> Result<(), Refusal> {
        if self.fits(visit.rule, demand.ask) {
            return Ok(());
        }
        let Some(victims) = self.victims(visit.rule, visit.rule.permits(demand.ask), demand.priority) else {
            let retry_after = self.room_at(visit, demand).saturating_since(visit.now);
            return Err(Refusal::QueueFull { retry_after });
        };
        for key in victims {
            self.answer(visit, key, State::Refused(Refusal::Displaced));
        }
        Ok(())
    }

    /// Returns the refusal of a request that is due at `due`, after the latest time `by` at which
    /// it may be served. An equal request is accepted once it is due in time, and the queue has
    /// room for it or it need not wait.
    pub(crate) fn refuse_late(
        &self,
        visit: &Visit<'_, R>,
        demand: Demand<'_, R::Ask>,
        due: Nanos,
        by: Nanos,
    ) -> Refusal {
        let n = visit.rule.permits(demand.ask);
        let has_room =
            || self.fits(visit.rule, demand.ask) || self.victims(visit.rule, n, demand.priority).is_some();
        let room = match &self.all_waiters {
            Some(all) if !all.has_room(n) => due,
            _ if has_room() => visit.now,
            _ => self.room_at(visit, demand),
        };
        let retry_after = room.saturating_since(visit.now);
        if retry_after > due.saturating_since(by) {
            Refusal::QueueFull { retry_after }
        } else {
            self.too_early(due, by)
        }
    }

    /// Returns the waiters to drop, so that `n` permits have room. Returns `None` if dropping
    /// waiters makes no room.
    fn victims(&self, rule: &R, n: u64, priority: i8) -> Option<Vec<u32>> {
        let bounds = self.settings.bounds;
        if !bounds.may_displace(n) {
            return None;
        }
        let oldest = bounds.when_full == WhenFull::DropOldest;
        let (mut waiting, mut permits, mut victims) = (self.len(), self.permits, Vec::new());
        // This many waiters are visited at most, so that a newcomer costs no more behind a million
        // waiters that cannot be dropped.
        let mut budget = MAX_FORECAST;
        for class in self.priorities.all().iter().rev() {
            if class.priority > priority || (!oldest && class.priority == priority) {
                break;
            }
            let mut key = if oldest { self.first_of(class.priority) } else { class.last };
            for _ in 0..class.len {
                let entry = &self.entries[key as usize];
                budget = budget.checked_sub(1)?;
                if entry.droppable {
                    waiting -= 1;
                    permits = permits.saturating_sub(rule.permits(&entry.ask).into());
                    victims.push(key);
                    if bounds.fit(waiting, permits, n) {
                        return Some(victims);
                    }
                }
                key = if oldest { entry.next } else { entry.previous };
            }
        }
        None
    }

    /// Returns the first entry in the queue of a priority.
    fn first_of(&self, priority: i8) -> u32 {
        let before = priority.checked_add(1).map_or(NO_ENTRY, |higher| self.priorities.last_before(higher));
        self.entries.get(before as usize).map_or(self.head, |last| last.next)
    }

    /// Returns when the queue will have room for a newcomer, or the newcomer's permits will be
    /// available, if no other request comes. Returns `Nanos::MAX` if no time is known.
    fn room_at(&self, visit: &Visit<'_, R>, demand: Demand<'_, R::Ask>) -> Nanos {
        let now = visit.now;
        let own = self.due_behind(visit, demand);
        let head = self.entries.contains(self.head as usize).then(|| self.due_of(visit, self.head));
        if own <= now || head.is_some_and(|head| head <= now) {
            // The queue was served just now, so it waits for something other than time.
            return Nanos::MAX;
        }
        let (bounds, n) = (self.settings.bounds, visit.rule.permits(demand.ask));
        let fits = |requests: u64, permits: u64| {
            let waiting = self.len().saturating_sub(usize::try_from(requests).unwrap_or(usize::MAX));
            bounds.fit(waiting, self.permits.saturating_sub(permits.into()), n)
        };
        let room = self.room_beside_victims(visit, demand).or_else(|| self.served_when(visit, fits));
        room.map_or(own, |room| room.min(own))
    }

    /// Returns when so many of the waiters that cannot be dropped for a newcomer are served that
    /// dropping the others makes room. Returns `None` if the bounds drop no waiter for this
    /// newcomer, or if so many requests wait that visiting all of them would take long.
    fn room_beside_victims(&self, visit: &Visit<'_, R>, demand: Demand<'_, R::Ask>) -> Option<Nanos> {
        let (bounds, n) = (self.settings.bounds, visit.rule.permits(demand.ask));
        if !bounds.may_displace(n) || self.len() > MAX_FORECAST {
            return None;
        }
        let oldest = bounds.when_full == WhenFull::DropOldest;
        let stays = |key: &u32| {
            let entry = &self.entries[*key as usize];
            let is_less = entry.priority < demand.priority || oldest && entry.priority == demand.priority;
            !(entry.droppable && is_less)
        };
        let entry_at = |key: u32| self.entries.contains(key as usize).then_some(key);
        let next = |key: &u32| entry_at(self.entries[*key as usize].next);
        let all = std::iter::successors(entry_at(self.head), next);
        let staying: Vec<u32> = all.filter(stays).collect();
        let permits_of = |key: &u32| u128::from(visit.rule.permits(&self.entries[*key as usize].ask));
        let (mut waiting, mut permits) = (staying.len(), staying.iter().map(permits_of).sum::<u128>());
        staying.iter().find_map(|key| {
            (waiting, permits) = (waiting - 1, permits - permits_of(key));
            bounds.fit(waiting, permits, n).then(|| self.due_of(visit, *key))
        })
    }
}
