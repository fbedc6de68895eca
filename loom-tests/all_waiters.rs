//! Models the bound on the requests that wait in several queues.

use std::sync::Arc;

use loom::thread;

use super::support::model;
use crate::line::all_waiters::{AllWaiters, Entered};
use crate::request::QueueBounds;

/// Two requests enter at once, where only one may wait. One of them waits, and leaves.
fn two_requests_with_room_for_one(enter: fn(&Arc<AllWaiters>) -> Option<Entered>) {
    model(move || {
        let all = Arc::new(AllWaiters::new());
        all.set_bounds(QueueBounds::UNBOUNDED.max_waiters(1));
        let other = {
            let all = all.clone();
            thread::spawn(move || enter(&all))
        };
        let mine = enter(&all);
        let other = other.join().expect("no panic");
        assert_ne!(mine.is_some(), other.is_some(), "one of two");
        drop((mine, other));
        assert_eq!(all.requests(), 0);
    });
}

#[test]
fn the_last_room_is_taken_once() {
    two_requests_with_room_for_one(|all| Entered::new(Some(all), 1, false));
}

/// The broken twin: checks in one section, and enters in another.
#[test]
#[should_panic = "one of two"]
fn broken_the_last_room_is_taken_once() {
    two_requests_with_room_for_one(
        |all| if all.has_room(1) { Entered::new(Some(all), 1, true) } else { None },
    );
}
