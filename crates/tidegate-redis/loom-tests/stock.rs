//! Models the word of a stock of leased permits: taken, put back, and closed when a list is
//! replaced.

use std::sync::Arc;

use loom::thread;
use tidegate::Nanos;

use crate::lease::stock::{Origin, Piece, Stock};
use crate::lease::sync::{AtomicU64, Ordering};

fn piece(permits: u64) -> Piece {
    let origin = Origin { due: 0, before: None };
    Piece { permits, usable: Nanos::ZERO, ends: Nanos::new(10), origin }
}

fn permits(pieces: &[Piece]) -> u64 {
    pieces.iter().map(|piece| piece.permits).sum()
}

fn takes(stock: &Stock, n: u32) -> u64 {
    stock.take(Nanos::ZERO, n).map_or(0, |(taken, _)| taken.n)
}

/// A permit is added, and one given back, while others are taken. None is lost or doubled.
#[test]
fn permits_taken_and_removed_are_what_was_added() {
    loom::model(|| {
        let stock = Arc::new(Stock::new());
        stock.add(piece(2), 0);
        let other = thread::spawn({
            let stock = stock.clone();
            move || takes(&stock, 1) + takes(&stock, 2)
        });
        stock.add(piece(1), 0);
        let removed = permits(&stock.clear());
        let taken = other.join().expect("no panic");
        assert_eq!((taken + removed, stock.taken()), (3, taken));
    });
}

/// Permits that are put back are there again, in the list from which they came or in the next one.
#[test]
fn what_is_put_back_is_kept() {
    loom::model(|| {
        let stock = Arc::new(Stock::new());
        stock.add(piece(2), 0);
        let other = thread::spawn({
            let stock = stock.clone();
            move || {
                if let Some((taken, _)) = stock.take(Nanos::ZERO, 1) {
                    stock.put_back(taken);
                }
            }
        });
        let mine = takes(&stock, 1);
        stock.add(piece(1), 0);
        other.join().expect("no panic");
        assert_eq!((mine, permits(&stock.clear()), stock.taken()), (1, 2, 1));
    });
}

/// Two requests meet an ended piece, and each removes it.
#[test]
fn an_ended_piece_is_removed_once() {
    loom::model(|| {
        let stock = Arc::new(Stock::new());
        stock.add(piece(3), 0);
        let late = |stock: &Stock| stock.take(Nanos::new(10), 1).is_none();
        let other = thread::spawn({
            let stock = stock.clone();
            move || late(&stock)
        });
        assert!(late(&stock));
        assert!(other.join().expect("no panic"));
        assert_eq!((permits(&stock.remove(Nanos::new(10), Nanos::new(10), 0)), stock.taken()), (3, 0));
    });
}

/// The broken twin: a word is closed by a load and a store, and a permit taken in between is kept.
#[test]
#[should_panic(expected = "as many as there were")]
fn broken_permits_taken_and_removed_are_what_was_added() {
    const CLOSED: u64 = u64::MAX;
    loom::model(|| {
        let word = Arc::new(AtomicU64::new(0));
        let other = thread::spawn({
            let word = word.clone();
            move || word.compare_exchange(0, 1, Ordering::Relaxed, Ordering::Relaxed).is_ok()
        });
        let gone = word.load(Ordering::Relaxed);
        word.store(CLOSED, Ordering::Relaxed);
        let kept = 2 - gone;
        let taken = u64::from(other.join().expect("no panic"));
        assert_eq!(taken + kept, 2, "as many as there were");
    });
}
