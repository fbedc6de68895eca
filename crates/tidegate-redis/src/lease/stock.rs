//! The permits of one limit that this process has on lease, and the one atomic word by which
//! requests take them.
//!
//! # Algorithm
//!
//! A stock is a list of pieces. Each piece is permits that the store has debited, with the time
//! from which they are usable and the time at which they end. The permits of all pieces are
//! numbered consecutively, and one word counts how many are gone: a request moves the word over the
//! permits that it takes.
//!
//! A list never changes, but is replaced by a new one: the thread that makes the new list closes
//! the word of the old one, keeps the permits that are not gone, and numbers them anew. A thread
//! that adds or removes a piece does this. So does a request that meets a piece that has ended, or
//! that puts back permits behind which others were taken. Permits that are put back after all
//! pieces were removed enter no list.
//!
//! # Memory ordering
//!
//! **Shared.** The word of each list, whether a taker of it was told to have more booked, and the
//! pointer to the current list.
//!
//! | operation | ordering | pairs with | why |
//! |---|---|---|---|
//! | word: CAS by a taker, and back | Relaxed | nothing | reads the newest word, or fails |
//! | word: swap to closed, under the lock | Relaxed | nothing | the last write to the word |
//! | `asked`: load, swap | Relaxed | nothing | one swap of each list returns `false` |
//! | pointer: load, store | of `ArcSwap`, at least Acquire and Release | each other | shows the pieces of a list |
//!
//! **Why enough.** The bad execution is a permit that is taken from the old list and kept in the
//! new one, or is in neither. The swap and all CASes are in one modification order: a taker before
//! the swap is seen by it, and a taker after it finds the word closed and takes nothing. Such a
//! taker waits for the lock, under which the new list is stored. **Why not more.** The word
//! publishes nothing: what it counts never changes.
//!
//! **Promise.** The permits that were taken, kept and handed out of a stock add up to the permits
//! that were put in.
//!
//! **Checked by** `loom-tests/stock.rs`, with a twin that closes a word by a load and a store, and
//! by `each_permit_is_taken_once` below, with threads.

use std::ops::Deref;
use std::sync::{Arc, PoisonError};

use tidegate::Nanos;

use crate::lease::sync::{AtomicBool, AtomicU64, Mutex, MutexGuard, Ordering, Swap};

/// A list with this word is no longer the current list.
pub(super) const CLOSED: u64 = u64::MAX;

/// Permits of one booking, or the rest of them. Times are those of this process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    pub(crate) permits: u64,
    pub(crate) usable: Nanos,
    /// No permit is taken at this time or later.
    pub(crate) ends: Nanos,
    pub(crate) origin: Origin,
}

/// What the store needs to take permits back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Origin {
    /// When the booking is due, by the server's clock in microseconds.
    pub(crate) due: i64,
    /// The value of the limit from before the booking, by which the store undoes all of the
    /// booking; `None` for a part of a booking.
    pub(crate) before: Option<Arc<[u8]>>,
}

/// What a request took of a stock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LeaseCharge {
    pub(crate) n: u64,
    /// The number of the list.
    list: u64,
    /// The word before.
    from: u64,
    /// The earliest end of the permits.
    ends: Nanos,
    /// The earliest due time of their bookings. The store takes permits of that booking back no
    /// longer than those of the others.
    due: i64,
}

/// The pieces at one time.
#[derive(Debug)]
struct List {
    number: u64,
    pieces: Box<[Piece]>,
    /// When more permits than this are gone, more must be booked.
    low: u64,
    asked: AtomicBool,
    word: Word,
}

/// How many permits of a list are gone. The word has its own cache line.
#[derive(Debug)]
#[repr(align(128))]
struct Word(AtomicU64);

/// The permits of one limit on lease.
#[derive(Debug)]
pub(crate) struct Stock {
    list: Swap<List>,
    /// Held while a list is replaced. It counts what happened to the permits of earlier lists.
    change: Mutex<Past>,
}

#[derive(Debug, Default)]
struct Past {
    /// How many lists there were.
    number: u64,
    /// The number of the first list after the last [`Stock::clear`].
    cleared: u64,
    /// How many permits of them were taken and not put back.
    taken: u64,
    /// The last `low` of [`Stock::add`].
    low: u64,
    /// Pieces that ended with permits left, and permits put back after all pieces were removed.
    ended: Vec<Piece>,
}

impl List {
    fn new(number: u64, pieces: Vec<Piece>, low: u64) -> List {
        let sum = sum(&pieces);
        let (low, asked) = (sum.saturating_sub(low), AtomicBool::new(false));
        List { number, pieces: pieces.into(), low, asked, word: Word(AtomicU64::new(0)) }
    }

    /// Returns the pieces of which permits are not gone, with the number of these permits.
    fn rest(&self, mut gone: u64) -> impl Iterator<Item = (&Piece, u64)> {
        self.pieces.iter().filter_map(move |piece| {
            let rest = piece.permits.saturating_sub(gone);
            gone = gone.saturating_sub(piece.permits);
            (rest > 0).then_some((piece, rest))
        })
    }

    /// Returns the pieces, or their rests. Called under the lock.
    fn left(&self) -> Vec<Piece> {
        self.left_of(self.word.0.load(Ordering::Relaxed))
    }

    fn left_of(&self, gone: u64) -> Vec<Piece> {
        let rest = |(piece, permits): (&Piece, u64)| {
            let mut rest = Piece { permits, ..piece.clone() };
            if permits < piece.permits {
                rest.origin.before = None;
            }
            rest
        };
        self.rest(gone).map(rest).collect()
    }

    /// Returns what a request for `n` permits meets at a time.
    fn check(&self, gone: u64, at: Nanos, n: u64) -> Availability {
        let mut have = 0_u64;
        let (mut ends, mut due) = (Nanos::MAX, i64::MAX);
        for (piece, rest) in self.rest(gone) {
            if at < piece.usable {
                break;
            }
            if at >= piece.ends {
                return Availability::Ended;
            }
            have = have.saturating_add(rest);
            ends = ends.min(piece.ends);
            due = due.min(piece.origin.due);
            if have >= n {
                return Availability::There(LeaseCharge { n, list: self.number, from: gone, ends, due });
            }
        }
        Availability::Short
    }
}

/// What a request meets in a list.
enum Availability {
    There(LeaseCharge),
    Short,
    /// A piece that has ended stands before the permits, if there are enough.
    Ended,
}

impl Stock {
    pub(crate) fn new() -> Stock {
        Stock { list: Swap::new(List::new(0, Vec::new(), 0)), change: Mutex::new(Past::default()) }
    }

    /// Takes permits at a time. The flag is set if more permits must be booked: one taker of each
    /// list receives it.
    pub(crate) fn take(&self, at: Nanos, n: u32) -> Option<(LeaseCharge, bool)> {
        loop {
            let list = self.list.load();
            let mut gone = list.word.0.load(Ordering::Relaxed);
            while gone != CLOSED {
                let taken = match list.check(gone, at, n.into()) {
                    Availability::There(taken) => taken,
                    Availability::Short => return None,
                    Availability::Ended => {
                        self.end(at);
                        break;
                    }
                };
                let new = gone + taken.n;
                match list.word.0.compare_exchange_weak(gone, new, Ordering::Relaxed, Ordering::Relaxed) {
                    Ok(_) => {
                        let is_low = new > list.low && !list.asked.load(Ordering::Relaxed);
                        return Some((taken, is_low && !list.asked.swap(true, Ordering::Relaxed)));
                    }
                    Err(newer) => gone = newer,
                }
            }
            // The next list is stored before the lock is free.
            drop(self.lock());
        }
    }

    /// Puts back permits that a request took and did not use. If all pieces were
    /// [removed](Stock::clear) meanwhile, these permits are removed next. Returns whether they may
    /// end before all others.
    pub(crate) fn put_back(&self, taken: LeaseCharge) -> bool {
        let list = self.list.load();
        let gone = taken.from + taken.n;
        let word = &list.word.0;
        let is_last = list.number == taken.list
            && word.compare_exchange(gone, taken.from, Ordering::Relaxed, Ordering::Relaxed).is_ok();
        if is_last {
            list.rest(gone).all(|(piece, _)| piece.ends > taken.ends)
        } else {
            let origin = Origin { due: taken.due, before: None };
            let piece = Piece { permits: taken.n, usable: Nanos::ZERO, ends: taken.ends, origin };
            let mut past = self.lock();
            // Permits of one booking form one piece.
            let is_of_it = |other: &&mut Piece| {
                (other.usable, other.ends, &other.origin) == (piece.usable, piece.ends, &piece.origin)
            };
            let put = |pieces: &mut Vec<Piece>| match pieces.iter_mut().find(is_of_it) {
                Some(other) => other.permits += piece.permits,
                None => pieces.push(piece.clone()),
            };
            match taken.list < past.cleared {
                true => put(&mut past.ended),
                false => self.replace(&mut past, put),
            }
            past.taken = past.taken.saturating_sub(taken.n);
            true
        }
    }

    /// Returns when `n` permits are there, behind requests for `ahead` permits.
    pub(crate) fn ready_at(&self, at: Nanos, ahead: u64, n: u64) -> Nanos {
        let (list, gone) = self.current();
        let wanted = ahead.saturating_add(n);
        // This is the case for most requests of a long queue.
        let all = list.rest(gone).filter(|(piece, _)| at < piece.ends);
        if all.fold(0_u64, |sum, (_, rest)| sum.saturating_add(rest)) < wanted {
            return Nanos::MAX;
        }
        for (last, _) in list.rest(gone) {
            let due = at.max(last.usable);
            // Requests that go first take the permits that end before this time. Without such
            // requests those permits are lost.
            let from = if ahead > 0 { at } else { due };
            let there = list.rest(gone).filter(|(piece, _)| piece.usable <= due && from < piece.ends);
            if there.fold(0_u64, |sum, (_, rest)| sum.saturating_add(rest)) >= wanted {
                return due;
            }
        }
        Nanos::MAX
    }

    /// Returns how many permits can be taken at a time.
    pub(crate) fn usable(&self, at: Nanos) -> u64 {
        self.usable_by(at, at).0
    }

    /// Returns how many permits can be taken at a time or later.
    pub(crate) fn held(&self, at: Nanos) -> u64 {
        self.usable_by(at, Nanos::MAX).0
    }

    /// Returns how many permits that do not end before `at` are usable by another time, and when
    /// the first ones after that time are usable.
    pub(crate) fn usable_by(&self, at: Nanos, by: Nanos) -> (u64, Option<Nanos>) {
        let (list, gone) = self.current();
        let (mut sum, mut next) = (0_u64, None);
        for (piece, rest) in list.rest(gone).filter(|(piece, _)| at < piece.ends) {
            if piece.usable <= by {
                sum = sum.saturating_add(rest);
            } else {
                next = next.or(Some(piece.usable));
            }
        }
        (sum, next)
    }

    /// Adds a piece. When fewer than `low` permits are left, more must be booked.
    pub(crate) fn add(&self, piece: Piece, low: u64) {
        let mut past = self.lock();
        past.low = low;
        self.replace(&mut past, |pieces| pieces.push(piece));
    }

    /// Removes the pieces that have ended. Of the pieces that are usable later than `by` it removes
    /// the last ones, as long as `keep` permits remain.
    pub(crate) fn remove(&self, at: Nanos, by: Nanos, keep: u64) -> Vec<Piece> {
        let mut past = self.lock();
        let mut removed = std::mem::take(&mut past.ended);
        let list = self.list.load();
        // A list that stays notifies one taker that more must be booked, and a new list would
        // notify another one.
        if out(&list.left(), at, by, keep).contains(&true) {
            self.replace(&mut past, |pieces| {
                let mut out = out(pieces, at, by, keep).into_iter();
                removed.extend(pieces.extract_if(.., |_| out.next().unwrap_or(false)));
            });
        }
        removed
    }

    /// Removes all pieces. Permits that were taken of them do not come back into the stock.
    pub(crate) fn clear(&self) -> Vec<Piece> {
        self.clear_by(close)
    }

    /// Like [`clear`](Stock::clear), with the step that closes the word and returns what it was.
    pub(super) fn clear_by(&self, close: impl FnOnce(&AtomicU64) -> u64) -> Vec<Piece> {
        let mut past = self.lock();
        let mut removed = std::mem::take(&mut past.ended);
        self.replace_by(close, &mut past, |pieces| removed.append(pieces));
        past.cleared = past.number;
        removed
    }

    /// Returns how many pieces have permits left.
    pub(crate) fn pieces(&self) -> usize {
        let (list, gone) = self.current();
        list.rest(gone).count()
    }

    /// Puts aside the pieces that have ended.
    fn end(&self, at: Nanos) {
        let mut past = self.lock();
        let mut ended = std::mem::take(&mut past.ended);
        self.replace(&mut past, |pieces| ended.extend(pieces.extract_if(.., |piece| at >= piece.ends)));
        past.ended = ended;
    }

    /// Returns when the first piece ends that has permits left.
    pub(crate) fn first_end(&self) -> Option<Nanos> {
        if !self.lock().ended.is_empty() {
            return Some(Nanos::ZERO);
        }
        let (list, gone) = self.current();
        list.rest(gone).map(|(piece, _)| piece.ends).min()
    }

    /// Returns when the last piece becomes usable.
    pub(crate) fn last_usable(&self) -> Nanos {
        self.list.load().pieces.last().map_or(Nanos::ZERO, |piece| piece.usable)
    }

    /// Returns how many permits were taken and not put back, of all that were ever added.
    pub(crate) fn taken(&self) -> u64 {
        let past = self.lock();
        past.taken + self.list.load().word.0.load(Ordering::Relaxed)
    }

    /// Replaces the list by one of the permits that are left, changed by a function.
    fn replace(&self, past: &mut Past, change: impl FnOnce(&mut Vec<Piece>)) {
        self.replace_by(close, past, change);
    }

    fn replace_by(
        &self,
        close: impl FnOnce(&AtomicU64) -> u64,
        past: &mut Past,
        change: impl FnOnce(&mut Vec<Piece>),
    ) {
        let list = self.list.load();
        let gone = close(&list.word.0);
        let mut pieces = list.left_of(gone);
        past.taken += gone;
        past.number += 1;
        change(&mut pieces);
        pieces.sort_by_key(|piece| (piece.usable, piece.ends));
        self.list.store(List::new(past.number, pieces, past.low));
    }

    /// Returns the current list, and how many permits of it are gone.
    fn current(&self) -> (impl Deref<Target: Deref<Target = List>>, u64) {
        loop {
            let list = self.list.load();
            let gone = list.word.0.load(Ordering::Relaxed);
            if gone != CLOSED {
                return (list, gone);
            }
            // The next list is stored before the lock is free.
            drop(self.lock());
        }
    }

    fn lock(&self) -> MutexGuard<'_, Past> {
        self.change.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Closes the word of a list, and returns what it was.
fn close(word: &AtomicU64) -> u64 {
    word.swap(CLOSED, Ordering::Relaxed)
}

/// Returns which pieces [`Stock::remove`] removes.
fn out(pieces: &[Piece], at: Nanos, by: Nanos, keep: u64) -> Vec<bool> {
    let mut out: Vec<bool> = pieces.iter().map(|piece| at >= piece.ends).collect();
    let kept = pieces.iter().zip(&out).filter(|(_, out)| !**out).map(|(piece, _)| piece.permits);
    let mut kept = kept.fold(0, u64::saturating_add);
    for (piece, out) in pieces.iter().zip(&mut out).rev() {
        let rest = kept.saturating_sub(piece.permits);
        if piece.usable <= by || rest < keep {
            break;
        }
        if !*out {
            (*out, kept) = (true, rest);
        }
    }
    out
}

fn sum(pieces: &[Piece]) -> u64 {
    pieces.iter().fold(0, |sum, piece| sum.saturating_add(piece.permits))
}

#[cfg(all(test, not(tidegate_loom)))]
mod tests {
    use rand::rngs::SmallRng;
    use rand::{Rng, SeedableRng};

    use super::*;

    fn piece(permits: u64, usable: u64, ends: u64) -> Piece {
        let origin = Origin { due: 0, before: Some(Arc::from([])) };
        Piece { permits, usable: Nanos::new(usable), ends: Nanos::new(ends), origin }
    }

    fn permits(pieces: &[Piece]) -> u64 {
        pieces.iter().map(|piece| piece.permits).sum()
    }

    fn few(n: u64) -> usize {
        usize::try_from(n).expect("few")
    }

    /// Returns the times of each permit that is left.
    fn left(stock: &Stock) -> Vec<(u64, u64)> {
        let times =
            |piece: Piece| (0..piece.permits).map(move |_| (piece.usable.as_u64(), piece.ends.as_u64()));
        stock.list.load().left().into_iter().flat_map(times).collect()
    }

    fn takes(stock: &Stock, at: u64, n: u32) -> bool {
        stock.take(Nanos::new(at), n).is_some()
    }

    #[test]
    fn permits_are_taken_while_they_are_usable() {
        let stock = Stock::new();
        stock.add(piece(5, 10, 20), 0);
        stock.add(piece(5, 15, 30), 0);
        assert!(!takes(&stock, 9, 1));
        assert!(takes(&stock, 10, 3));
        assert_eq!(stock.ready_at(Nanos::new(11), 0, 3), Nanos::new(15));
        assert_eq!(stock.ready_at(Nanos::new(11), 3, 4), Nanos::new(15));
        assert_eq!(stock.ready_at(Nanos::new(11), 0, 8), Nanos::MAX);
        assert!(!takes(&stock, 14, 3));
        assert!(takes(&stock, 15, 3));
        // One permit of the first piece is gone with the second one, and the rest ends.
        assert_eq!(stock.usable(Nanos::new(29)), 4);
        assert!(!takes(&stock, 30, 1));
        assert_eq!((permits(&stock.remove(Nanos::new(30), Nanos::new(30), 0)), stock.taken()), (4, 6));
    }

    #[test]
    fn what_was_not_used_is_taken_again_until_it_ends() {
        let stock = Stock::new();
        stock.add(piece(4, 0, 20), 0);
        let (first, _) = stock.take(Nanos::new(1), 2).expect("permits");
        let (second, _) = stock.take(Nanos::new(1), 1).expect("a permit");
        // The piece is not the last one, so it becomes a piece of its own in a new list.
        stock.put_back(first);
        assert_eq!(stock.usable(Nanos::new(1)), 3);
        stock.put_back(second);
        assert_eq!((stock.usable(Nanos::new(19)), stock.taken()), (4, 0));
        assert!(!takes(&stock, 20, 1));
        assert_eq!(permits(&stock.remove(Nanos::new(20), Nanos::new(20), 0)), 4);
    }

    /// Regression: grants that were dropped in the order of their arrival made a piece each, and
    /// each piece was copied for the next one. With 64 pieces no more permits are booked.
    #[test]
    fn permits_of_one_booking_that_are_put_back_are_one_piece() {
        let stock = Stock::new();
        stock.add(piece(1000, 0, 20), 0);
        stock.add(piece(1000, 0, 30), 0);
        let taken = |_| stock.take(Nanos::new(1), 1).expect("a permit").0;
        let all: Vec<LeaseCharge> = (0..2000).map(taken).collect();
        for taken in all {
            stock.put_back(taken);
        }
        assert_eq!((stock.pieces(), stock.usable(Nanos::new(1)), stock.taken()), (2, 2000, 0));
        assert_eq!(permits(&stock.remove(Nanos::new(20), Nanos::new(20), 0)), 1000);
    }

    /// Bug: permits that were put back after all leases had ended were granted again.
    #[test]
    fn what_is_put_back_after_all_pieces_were_removed_is_removed_next() {
        let stock = Stock::new();
        stock.add(piece(4, 0, 20), 0);
        let at = Nanos::new(1);
        let [first, second, third] = [1, 1, 1].map(|n| stock.take(at, n).expect("a permit").0);
        assert_eq!(permits(&stock.clear()), 1);
        assert!(stock.put_back(first));
        stock.add(piece(5, 0, 30), 0);
        assert!(stock.put_back(second));
        assert_eq!((stock.held(at), stock.taken(), stock.first_end()), (5, 1, Some(Nanos::ZERO)));
        assert_eq!(
            stock.remove(at, at, 9),
            [Piece { permits: 2, origin: Origin { due: 0, before: None }, ..piece(2, 0, 20) }]
        );
        assert_eq!(stock.remove(at, at, 9), []);
        let (later, _) = stock.take(at, 2).expect("permits");
        stock.put_back(later);
        assert!(stock.put_back(third));
        assert_eq!((stock.held(at), permits(&stock.clear()), stock.taken()), (5, 6, 0));
    }

    #[test]
    fn permits_that_no_request_waits_for_are_removed_from_the_end() {
        let stock = Stock::new();
        for (n, usable) in [(5, 10), (6, 20), (7, 30)] {
            stock.add(piece(n, usable, 100), 0);
        }
        let at = Nanos::new(15);
        assert_eq!(stock.remove(at, at, 12), []);
        let removed = stock.remove(at, at, 11);
        assert_eq!((permits(&removed), removed[0].origin.before.is_some()), (7, true));
        let by = |millis| Nanos::new(millis);
        assert_eq!(stock.remove(at, by(20), 0), []);
        assert_eq!(stock.remove(at, by(19), 0), [piece(6, 20, 100)]);
        // Usable permits stay until they end.
        assert_eq!((stock.usable(at), stock.held(at)), (5, 5));
    }

    #[test]
    fn a_low_stock_is_reported_to_one_taker() {
        let stock = Stock::new();
        stock.add(piece(10, 0, 100), 5);
        let is_low: Vec<bool> = (0..10).map(|_| stock.take(Nanos::ZERO, 1).expect("a permit").1).collect();
        assert_eq!(is_low.iter().position(|is_low| *is_low), Some(5));
        assert_eq!(is_low.iter().filter(|is_low| **is_low).count(), 1);
    }

    /// The model is a list of permits, each with its times.
    #[test]
    fn a_stock_is_a_list_of_permits() {
        for seed in 0..200 {
            let mut random = SmallRng::seed_from_u64(seed);
            let (stock, mut now) = (Stock::new(), 0);
            let mut model: Vec<(u64, u64)> = Vec::new();
            let (mut added, mut removed, mut held) = (0, 0, Vec::new());
            for _ in 0..300 {
                now += random.random_range(0..5);
                let at = Nanos::new(now);
                match random.random_range(0..8) {
                    0 | 1 => {
                        let (n, usable) = (random.random_range(1..10), now + random.random_range(0..20));
                        let ends = usable + random.random_range(1..30);
                        stock.add(piece(n, usable, ends), 0);
                        model.extend((0..n).map(|_| (usable, ends)));
                        model.sort_unstable();
                        added += n;
                    }
                    2..=4 => {
                        model.retain(|(_, ends)| now < *ends);
                        let n = random.random_range(1..8);
                        let there = model.iter().filter(|(usable, _)| *usable <= now).count();
                        let due = stock.ready_at(at, 0, n);
                        let taken = stock.take(at, u32::try_from(n).expect("few"));
                        assert_eq!(taken.is_some(), there as u64 >= n, "{seed}");
                        assert_eq!(due == at, taken.is_some());
                        if let Some((taken, _)) = taken {
                            let ends = model.iter().take(few(n)).map(|(_, ends)| *ends).min();
                            assert_eq!(Some(taken.ends.as_u64()), ends);
                            model.drain(..few(n));
                            held.push(taken);
                        }
                    }
                    5 if !held.is_empty() => {
                        let taken = held.swap_remove(random.random_range(0..held.len()));
                        stock.put_back(taken);
                        // The permits may be in their old position, or in a piece of their own.
                        model = left(&stock);
                    }
                    6 => {
                        let gone = stock.remove(at, at, random.random_range(0..30));
                        removed += permits(&gone);
                        model = left(&stock);
                        assert!(model.iter().all(|(_, ends)| *ends > now));
                    }
                    _ => {}
                }
            }
            removed += permits(&stock.clear());
            assert_eq!(stock.taken() + removed, added);
        }
    }

    #[test]
    fn each_permit_is_taken_once() {
        let stock = Stock::new();
        let (added, taken) = (AtomicU64::new(0), AtomicU64::new(0));
        let removed = std::thread::scope(|scope| {
            for thread in 0..3_u64 {
                let (stock, taken) = (&stock, &taken);
                scope.spawn(move || {
                    for i in 0..20_000_u64 {
                        let at = Nanos::new(i);
                        let Some((of, _)) = stock.take(at, 1 + (i % 3) as u32) else { continue };
                        if (i + thread) % 4 == 0 {
                            stock.put_back(of);
                        } else {
                            taken.fetch_add(of.n, Ordering::Relaxed);
                        }
                    }
                });
            }
            let mut removed = 0;
            for i in 0..5_000_u64 {
                let n = 1 + i % 7;
                added.fetch_add(n, Ordering::Relaxed);
                stock.add(piece(n, 4 * i, 4 * i + 200), 0);
                removed += permits(&stock.remove(Nanos::new(4 * i), Nanos::new(4 * i), 50));
            }
            removed
        });
        let removed = removed + permits(&stock.clear());
        let taken = taken.into_inner();
        assert_eq!((stock.taken(), taken + removed), (taken, added.into_inner()));
    }
}
