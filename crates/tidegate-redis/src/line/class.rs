//! The booked requests of one size, and their bookings at the store.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tidegate::Nanos;
use tokio::sync::oneshot;

use crate::script::Reply;

/// The most turns that are counted to find the booking of a request, requests that are checked to
/// find one to drop, and bookings that are counted to predict when there is room.
pub(super) const MAX_CHECKED: usize = 4096;

/// The position of a request among those of its size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Turn {
    priority: Reverse<i8>,
    /// The latest time at which the request is granted, unless a request of higher priority goes
    /// before it. This is the time that the store booked for it, an earlier time, by which its
    /// booking is due since it moved up, or a later time, of a request that came before it.
    pub(crate) due: Nanos,
    pub(crate) number: u64,
}

impl Turn {
    pub(crate) fn new(priority: i8, due: Nanos, number: u64) -> Turn {
        Turn { priority: Reverse(priority), due, number }
    }
}

/// A reservation at the store: when it is due, the number of the request that it was made for, and
/// the reply.
#[derive(Debug)]
pub(crate) struct Booking {
    pub(crate) due: Nanos,
    pub(crate) number: u64,
    pub(crate) reply: Reply,
}

/// The booked requests of one size. The n-th request in turn has the n-th booking. So a request
/// that leaves passes its booking to the next request, and all behind it move up, without a step
/// for each of them.
#[derive(Debug, Default)]
pub(crate) struct Class {
    turns: BTreeSet<Turn>,
    /// By their due times and numbers.
    bookings: BTreeMap<(Nanos, u64), Booking>,
    /// Whether a request may have another booking than the one that its timer is for.
    has_moved: bool,
    /// When the store's thread checks this class, unless the sender is dropped before.
    watched: Option<(Nanos, oneshot::Sender<()>)>,
    /// How many bookings the calls of [`add`](Class::add) have checked.
    #[cfg(test)]
    checked: std::cell::Cell<usize>,
}

impl Class {
    /// Returns the latest turn of a priority.
    pub(crate) fn latest(&self, priority: i8) -> Option<Nanos> {
        let priority = Reverse(priority);
        let last = Turn { priority, due: Nanos::MAX, number: u64::MAX };
        self.turns.range(..=last).next_back().filter(|turn| turn.priority == priority).map(|turn| turn.due)
    }

    /// Adds a request, and the booking that the store made for it, which is not due later than its
    /// turn. Requests that came before it and moved up to an earlier booking stay before it.
    /// Returns their new turns.
    ///
    /// From then on these requests are due by the turn of the new request. Each of them has an
    /// earlier booking. So it still holds for every turn that its booking is due no later than the
    /// turn's `due`.
    pub(crate) fn add(&mut self, turn: Turn, booking: Booking) -> Vec<Turn> {
        let mut moved_up = self.moved_up(turn);
        moved_up.retain(|other| self.turns.remove(other));
        for other in &mut moved_up {
            other.due = turn.due;
        }
        self.turns.extend(moved_up.iter().copied());
        self.has_moved |= booking.due < turn.due || self.turns.last().is_some_and(|last| *last > turn);
        self.turns.insert(turn);
        self.bookings.insert((booking.due, booking.number), booking);
        moved_up
    }

    /// Returns the requests of the same priority that have a later turn than this one, and a booking
    /// that is due by it, some of them twice. In a longer queue, only the first and the last
    /// [`MAX_CHECKED`] requests are checked. The others then stand behind this turn.
    fn moved_up(&self, turn: Turn) -> Vec<Turn> {
        if self.latest(turn.priority.0).is_none_or(|latest| latest <= turn.due) {
            return Vec::new();
        }
        let by_turn = self.bookings.range(..=(turn.due, u64::MAX)).take(MAX_CHECKED);
        let early = by_turn.inspect(|_| self.note_check()).count();
        let is_later = |other: &&Turn| **other > turn && other.priority == turn.priority;
        let mut moved_up: Vec<Turn> = self.turns.iter().take(early).filter(is_later).copied().collect();
        if early == MAX_CHECKED {
            let last = self.turns.iter().rev().zip(self.bookings.keys().rev()).take(MAX_CHECKED);
            let last = last.inspect(|_| self.note_check()).skip_while(|(_, (due, _))| *due > turn.due);
            let last = last.map(|(other, _)| other).take_while(|other| **other > turn);
            moved_up.extend(last.filter(is_later));
        }
        moved_up
    }

    /// Counts a booking that is checked, for a test.
    fn note_check(&self) {
        #[cfg(test)]
        self.checked.update(|checked| checked + 1);
    }

    /// Adds a booking whose request is gone.
    pub(crate) fn add_booking(&mut self, booking: Booking) {
        self.bookings.insert((booking.due, booking.number), booking);
        self.has_moved = true;
    }

    pub(crate) fn remove(&mut self, turn: Turn) {
        self.turns.remove(&turn);
        self.has_moved = true;
    }

    /// Takes the first request whose booking is due, and that booking.
    pub(crate) fn serve(&mut self, now: Nanos) -> Option<(u64, Booking)> {
        let first = self.bookings.first_entry().filter(|first| first.key().0 <= now)?;
        let turn = self.turns.pop_first()?;
        Some((turn.number, first.remove()))
    }

    /// Takes a booking that no request waits for: the last one.
    pub(crate) fn surplus(&mut self) -> Option<Booking> {
        let is_surplus = self.bookings.len() > self.turns.len();
        is_surplus.then(|| self.bookings.pop_last()).flatten().map(|(_, booking)| booking)
    }

    /// Returns how many requests wait.
    pub(crate) fn len(&self) -> usize {
        self.turns.len()
    }

    /// Returns the first request, and when it is due.
    pub(crate) fn first(&self) -> Option<(u64, Nanos)> {
        let (turn, booking) = (self.turns.first()?, self.bookings.first_key_value()?);
        Some((turn.number, booking.0.0))
    }

    /// Returns when a request is due. Behind more than 4,096 others, this is the time that was
    /// booked for it, or a later time at which it is checked again.
    pub(crate) fn due(&self, turn: Turn) -> Nanos {
        let mut seen = turn.due;
        for (of, (due, _)) in self.turns.iter().zip(self.bookings.keys()).take(MAX_CHECKED) {
            if *of == turn {
                return *due;
            }
            seen = seen.max(*due);
        }
        seen
    }

    /// Returns when the task of a request must check again. This is no later than its own due time,
    /// unless requests of higher priority took its booking.
    pub(crate) fn next_check(&self, turn: Turn, now: Nanos) -> Nanos {
        match self.first() {
            Some((number, due)) if number == turn.number => due,
            _ if now < turn.due => turn.due,
            _ => self.due(turn).max(now.saturating_add(Nanos::new(1))),
        }
    }

    /// Returns when the store's thread must check, if that is earlier than it will.
    pub(crate) fn to_watch(&self) -> Option<Nanos> {
        let (_, due) = self.first().filter(|_| self.has_moved)?;
        let is_watched = self.watched.as_ref().is_some_and(|(at, _)| *at <= due);
        (!is_watched).then_some(due)
    }

    /// Makes the store's thread check at this time, until the sender is dropped. Returns the sender
    /// of the time before.
    pub(crate) fn watch(&mut self, at: Nanos, sender: oneshot::Sender<()>) -> Option<oneshot::Sender<()>> {
        self.watched.replace((at, sender)).map(|(_, before)| before)
    }

    /// Ends the check by the store's thread. With a time, only if that is the time of the check.
    pub(crate) fn unwatch(&mut self, at: Option<Nanos>) -> Option<oneshot::Sender<()>> {
        self.watched.take_if(|(watched, _)| at.is_none_or(|at| *watched == at)).map(|(_, sender)| sender)
    }

    /// Takes a request out, with its booking.
    pub(crate) fn take(&mut self, turn: Turn) -> Option<Booking> {
        let due = self.due(turn);
        let (last, _) = self.bookings.range(..=(due, u64::MAX)).next_back()?;
        let last = *last;
        self.remove(turn);
        self.bookings.remove(&last)
    }

    /// Returns when the last booking is due, and how far ahead the store booked it.
    pub(crate) fn last(&self) -> Option<(Nanos, Duration)> {
        self.bookings.last_key_value().map(|(_, last)| (last.due, last.reply.wait))
    }

    /// Returns when the bookings are due, in order.
    pub(crate) fn bookings(&self) -> impl Iterator<Item = Nanos> {
        self.bookings.keys().map(|(due, _)| *due)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.turns.is_empty() && self.bookings.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use rand::rngs::SmallRng;
    use rand::{Rng, SeedableRng};

    use super::*;
    use crate::script::Answer;

    fn reply() -> Reply {
        Reply {
            answer: Answer::Done,
            wait: Duration::ZERO,
            tightest: None,
            due: 0,
            permits: Vec::new(),
            limits: Vec::new(),
            before: Vec::new(),
        }
    }

    /// A slow model: requests and bookings are two sorted lists, and the n-th of each belong
    /// together.
    #[test]
    fn the_nth_request_has_the_nth_booking() {
        let mut random = SmallRng::seed_from_u64(1);
        let mut class = Class::default();
        let (mut turns, mut bookings): (Vec<Turn>, Vec<(Nanos, u64)>) = (Vec::new(), Vec::new());
        let mut now = Nanos::ZERO;
        let mut moves = 0;
        for number in 0..20_000 {
            let after = |random: &mut SmallRng| now.saturating_add(Nanos::new(random.random_range(1..50)));
            match random.random_range(0..10) {
                0..4 => {
                    let (priority, due) = (random.random_range(-1..2), after(&mut random));
                    let latest = turns.iter().filter(|turn| turn.priority.0 == priority);
                    let latest = latest.map(|turn| turn.due).max();
                    assert_eq!(class.latest(priority), latest);
                    let behind = if random.random_bool(0.5) { latest } else { None };
                    let turn = Turn::new(priority, behind.unwrap_or(due).max(due), number);
                    let mut returned = class.add(turn, Booking { due, number, reply: reply() });
                    // These requests have an earlier booking, and a later turn.
                    let mut moved_up = Vec::new();
                    for (other, (due, _)) in turns.iter_mut().zip(&bookings) {
                        if other.priority == turn.priority && other.due > turn.due && *due <= turn.due {
                            other.due = turn.due;
                            moved_up.push(*other);
                        }
                    }
                    returned.sort_unstable();
                    moved_up.sort_unstable();
                    assert_eq!(returned, moved_up);
                    moves += moved_up.len();
                    turns.push(turn);
                    bookings.push((due, number));
                }
                4 => {
                    let due = after(&mut random);
                    class.add_booking(Booking { due, number, reply: reply() });
                    bookings.push((due, number));
                }
                5..7 if !turns.is_empty() => {
                    let turn = turns.remove(random.random_range(0..turns.len()));
                    class.remove(turn);
                }
                7 if !turns.is_empty() => {
                    let turn = turns.remove(random.random_range(0..turns.len()));
                    let expected = class.due(turn);
                    let taken = class.take(turn).expect("a booking");
                    assert_eq!(taken.due, expected);
                    bookings.retain(|booking| *booking != (taken.due, taken.number));
                }
                _ => now = after(&mut random),
            }
            turns.sort_unstable();
            bookings.sort_unstable();
            while bookings.first().is_some_and(|first| first.0 <= now) && !turns.is_empty() {
                let (served, booking) = class.serve(now).expect("due");
                assert_eq!((served, (booking.due, booking.number)), (turns[0].number, bookings[0]));
                turns.remove(0);
                bookings.remove(0);
            }
            while bookings.len() > turns.len() {
                let last = bookings.pop().expect("a booking");
                let surplus = class.surplus().expect("more bookings than requests");
                assert_eq!((surplus.due, surplus.number), last);
            }
            assert!(class.serve(now).is_none() && class.surplus().is_none());
            for (turn, (due, _)) in turns.iter().zip(&bookings) {
                assert_eq!(class.due(*turn), *due);
                // The task of the request checks neither too late nor in vain.
                let next_check = class.next_check(*turn, now);
                assert!(next_check > now && next_check <= (*due).max(turn.due));
            }
            assert_eq!(class.is_empty(), turns.is_empty());
        }
        assert!(moves > 100, "{moves}");
    }

    /// Bug: a request whose maximum wait was shorter than the waits of a long queue checked the
    /// bookings of the whole queue under the lock.
    #[test]
    fn a_request_before_a_long_queue_checks_few_bookings() {
        let booking = |due, number| Booking { due, number, reply: reply() };
        let due = |number: u64| Nanos::new(1_000_000 + number);
        for (in_front, behind) in [(0, 100_000), (10, 100_000), (100_000, 10), (50_000, 50_000)] {
            for is_important in [false, true] {
                let mut class = Class::default();
                let priority = i8::from(is_important);
                // This request came before the new one, and has the first booking.
                class.add(Turn::new(priority, due(2_000_000), 0), booking(due(0), 0));
                for number in 1..=in_front + behind {
                    let late = if number <= in_front { 0 } else { 1_000_000 };
                    let due = due(number + late);
                    class.add(Turn::new(0, due, number), booking(due, number));
                }
                class.checked.set(0);
                let (number, due) = (in_front + behind + 1, due(500_000));
                let new = Turn::new(priority, due, number);
                let moved_up = class.add(new, booking(due, number));
                let checked = class.checked.get();
                assert!(checked <= 2 * MAX_CHECKED, "{in_front}, {behind}: {checked}");
                // Requests of its priority that were added before moved it up already.
                let expected = match is_important || in_front == 0 {
                    true => vec![Turn { number: 0, ..new }],
                    false => vec![],
                };
                assert_eq!(moved_up, expected, "{in_front}, {behind}");
            }
        }
    }
}
