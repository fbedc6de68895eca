//! The first waiter of a composite at its counting limits.
//!
//! A waiting composite holds no permit. It has a seat in the queue of each limit
//! (`src/counting/line.rs`) and takes from all members at one moment, when all permits are
//! available.
//!
//! | the first waiter | its seats | what a free permit does meanwhile |
//! |---|---|---|
//! | waits for a rate | parked | serves others |
//! | waits for permits that are in use | stand at the limits that lack permits | |
//! | has its turn at one limit, and lacks permits elsewhere | stand until `until`, then they are parked | is kept no longer than the composite has waited before |
//! | is served, or dropped | are given up | |
//!
//! # Why does a seat stand while permits are missing elsewhere?
//!
//! The permits of two busy members may never be free at one moment. If the composite always let
//! others go first, it could wait for ever. If it never let others go first, it would keep permits
//! idle for as long as the other member takes. So it may keep a free permit from others for as long
//! as it has already waited for permits in use, and no longer.
//!
//! A rate predicts when it is due, so the permit is kept only if the rate is due soon enough. A
//! counting limit predicts nothing, so the permit is kept until the time is over. Then the
//! composite lets others pass at that limit, until another of its limits has permits. Each time is
//! longer than the one before, so in the end one of them is longer than the other member needs. At
//! one of the limits that lack permits it always stands, because nothing else would notify it.

use crate::all_of::all::{All, Kind, Permits, Seats};
use crate::all_of::weights::Weights;
use crate::clock::Timer;
use crate::error::Refusal;
use crate::line::deferred::Deferred;
use crate::sync::lock;
use crate::time::Nanos;

/// The state of the first waiter at the counting limits. Accessed under the composite's lock.
#[derive(Debug)]
pub(crate) struct Counting {
    /// The request that found permits missing at this check, with all rates due.
    short: Option<Weights>,
    /// The priority of the first waiter, if it found permits missing at the check before.
    was_short: Option<i8>,
    /// The request of the first waiter. Another request starts with a new state.
    ask: Option<Weights>,
    /// When the first waiter found permits missing for the first time.
    since: Option<Nanos>,
    /// The time until which it keeps free permits from others.
    until: Nanos,
    /// One mark for each member of the composite.
    marks: Vec<Mark>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Mark {
    /// Whether the member's permits were available at the last check.
    there: bool,
    /// Whether the waiter lets others pass here, because the time to keep its permits is over.
    passes: bool,
}

impl Counting {
    pub(crate) fn new(members: usize) -> Counting {
        let marks = vec![Mark::default(); members];
        Counting { short: None, was_short: None, ask: None, since: None, until: Nanos::ZERO, marks }
    }

    /// Resets the state: another waiter is the first.
    pub(crate) fn begin(&mut self) {
        self.marks.fill(Mark::default());
        (self.was_short, self.ask, self.since, self.until) = (None, None, None, Nanos::ZERO);
    }

    /// Returns whether the first waiter lacked permits in use until now, so that its rates were not
    /// late.
    pub(crate) fn was_short(&self, priority: i8) -> bool {
        self.was_short == Some(priority)
    }

    /// Returns the request of the first waiter, if it waits for permits in use.
    pub(crate) fn lacks_permits(&self) -> Option<Weights> {
        self.ask.clone().filter(|_| self.since.is_some())
    }

    /// Returns whether free permits may be kept from others for `span` from now.
    fn may_keep(&self, now: Nanos, span: Nanos) -> bool {
        self.since.is_some_and(|since| span <= now.saturating_since(since))
    }
}

impl<C: Timer> All<C> {
    /// Takes the permits of the counting limits, all or none, for a waiter that is due at its
    /// rates.
    pub(super) fn take_counting(&self, ask: &Weights, deferred: &mut Deferred) -> Result<Permits, Refusal> {
        let mut seats = lock(&self.seats);
        let position = |seats: &Seats, index| seats.position(index, ask.priority);
        // All limits are checked first: taking permits and giving them back would notify the
        // composite again.
        let missing = self.counting(ask).find_map(|(index, limit, n)| {
            let has_turn = || limit.pool.has_turn(position(&seats, index), n);
            limit.check(n).err().or_else(|| (!has_turn()).then(|| limit.in_use()))
        });
        let mut permits = Permits::default();
        let taken = missing.map_or(Ok(()), Err).and_then(|()| {
            self.counting(ask).try_for_each(|(index, limit, n)| {
                let permit = limit.take_turn(position(&seats, index), n);
                permits.add(permit.ok_or_else(|| limit.in_use())?);
                Ok(())
            })
        });
        taken.map(|()| std::mem::take(&mut permits)).inspect_err(|_| {
            seats.counting.short = Some(ask.clone());
            deferred.drops.push(Box::pin(permits));
        })
    }

    /// Updates the seats of the first waiter, which is due at its rates at `due`. Returns when to
    /// check again.
    pub(super) fn seat_counting(
        &self,
        seats: &mut Seats,
        now: Nanos,
        (ask, due): (&Weights, Nanos),
        deferred: &mut Deferred,
    ) -> Nanos {
        let Seats { positions, counting, .. } = seats;
        let Some(positions) = positions.get_mut(&ask.priority) else { return Nanos::MAX };
        // A request that asks nothing of a limit has a seat there as well: the seat is notified if
        // the limit is lowered, for the requests behind this one.
        for ((entry, position), n) in self.members.iter().zip(positions.iter_mut()).zip(ask.iter()) {
            match &entry.kind {
                Kind::Rate(_) => {}
                Kind::Counting(limit) if *position == 0 => *position = limit.pool.take_seat(self.waker()),
                Kind::Counting(limit) if *n == 0 => limit.pool.dequeue_seat(*position, deferred),
                Kind::Counting(_) => {}
            }
        }
        if counting.ask.as_ref() != Some(ask) {
            counting.begin();
            counting.ask = Some(ask.clone());
        }
        // The waiter that found permits missing may have been refused since.
        counting.was_short = counting.short.take().filter(|short| short == ask).map(|short| short.priority);
        let positions: &[u64] = positions;
        let asked = || self.counting(ask).map(|(index, limit, n)| (index, limit, positions[index], n));
        if counting.was_short.is_none() {
            if !counting.may_keep(now, due.saturating_since(now)) {
                asked().for_each(|(_, limit, position, _)| limit.pool.dequeue_seat(position, deferred));
                counting.marks.fill(Mark::default());
            }
            return Nanos::MAX;
        }
        let since = *counting.since.get_or_insert(now);
        let mut came = false;
        for (index, limit, position, n) in asked() {
            let (mark, there) = (&mut counting.marks[index], limit.pool.has_turn(position, n));
            came |= there && !mark.there && !mark.passes;
            mark.there = there;
        }
        if came {
            counting.until = now.saturating_add(now.saturating_since(since));
            counting.marks.iter_mut().for_each(|mark| mark.passes = false);
        }
        // A limit where it let others pass may have lost its permits since. One of the limits that
        // lack permits must notify it.
        let is_notified = asked().any(|(index, ..)| {
            let Mark { there, passes } = counting.marks[index];
            !there && !passes
        });
        if !is_notified {
            counting.marks.iter_mut().filter(|mark| !mark.there).for_each(|mark| mark.passes = false);
        }
        let (mut again, mut all, mut check_at) = (false, true, Nanos::MAX);
        for (index, limit, position, n) in asked() {
            let mark = &mut counting.marks[index];
            mark.passes |= mark.there && counting.until <= now;
            if mark.passes {
                limit.pool.dequeue_seat(position, deferred);
            } else if limit.pool.enqueue_seat(position, n, deferred) {
                // If the permit became free just now, the recheck handles it as above.
                again |= !mark.there;
                check_at = counting.until;
            }
            all &= mark.there;
        }
        if again || all {
            deferred.rechecks.extend(self.shared.upgrade().map(|shared| shared as _));
        }
        check_at
    }
}

#[cfg(all(test, not(tidegate_loom)))]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use super::*;
    use crate::all_of::all::Entry;
    use crate::clock::ManualClock;
    use crate::counting::CountingLimit;
    use crate::limiter::shared::Shared;

    /// A limit had permits again right after the waiter had lacked them, and none at the next
    /// check. Then the waiter let others pass at both limits, and nothing told it of later permits.
    #[test]
    fn a_waiter_stands_at_a_limit_that_lacks_permits() {
        let (clock, now) = (ManualClock::new(), Nanos::ZERO);
        let limits = [CountingLimit::new(1), CountingLimit::new(1)];
        let entry = |limit: &CountingLimit| Entry::new("one".into(), Kind::Counting(limit.clone()));
        let members = limits.each_ref().map(entry);
        let shared = Arc::new_cyclic(|shared| {
            Shared::new(All::new(members.into(), shared.clone()), clock, Duration::ZERO)
        });
        let (all, ask) = (&shared.rule, Weights::new(&[1, 1]));
        lock(&all.seats).positions.insert(0, vec![0, 0]);
        let check = |change: &dyn Fn()| {
            let mut deferred = Deferred::new();
            assert!(all.take_counting(&ask, &mut deferred).is_err());
            change();
            all.seat_counting(&mut lock(&all.seats), now, (&ask, now), &mut deferred);
            // The recheck is a part of the test.
            deferred.rechecks.clear();
        };
        for lacks in [0, 1] {
            let held = std::cell::RefCell::new(limits[lacks].try_acquire().ok());
            check(&|| drop(held.take()));
            let _held = limits[lacks].try_acquire();
            check(&|| ());
            assert!(limits[lacks].status().waiting > 0, "nothing tells it of a permit of {lacks}");
            lock(&all.seats).counting.begin();
            let mut deferred = Deferred::new();
            let positions = lock(&all.seats).positions[&0].clone();
            limits
                .iter()
                .zip(positions)
                .for_each(|(limit, seat)| limit.pool.dequeue_seat(seat, &mut deferred));
            deferred.rechecks.clear();
        }
    }
}
