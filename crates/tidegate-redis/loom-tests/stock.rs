//! Models the word of a stock of leased permits: taken, put back, and closed when a list is
//! replaced.

use std::sync::Arc;

use loom::thread;
use tidegate::Nanos;

use crate::lease::stock::{CLOSED, Origin, Piece, Stock};
use crate::lease::sync::Ordering;

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

/// Permits are added, and those left are removed by `clear`, while others are taken. None is lost
/// or doubled.
fn taken_and_removed(clear: fn(&Stock) -> Vec<Piece>) {
    loom::model(move || {
        let stock = Arc::new(Stock::new());
        stock.add(piece(2), 0);
        let other = thread::spawn({
            let stock = stock.clone();
            move || takes(&stock, 1) + takes(&stock, 2)
        });
        stock.add(piece(1), 0);
        let removed = permits(&clear(&stock));
        let taken = other.join().expect("no panic");
        assert_eq!(taken + removed, 3, "as many as were added");
        assert_eq!(stock.taken(), taken);
    });
}

#[test]
fn permits_taken_and_removed_are_what_was_added() {
    taken_and_removed(Stock::clear);
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

/// The broken twin: closes the word by a load and a store. A permit taken in between is kept as
/// well.
#[test]
#[should_panic(expected = "as many as were added")]
fn broken_permits_taken_and_removed_are_what_was_added() {
    taken_and_removed(|stock| {
        stock.clear_by(|word| {
            let gone = word.load(Ordering::Relaxed);
            word.store(CLOSED, Ordering::Relaxed);
            gone
        })
    });
}
