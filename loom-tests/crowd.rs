//! Models the bound on the requests that wait in several lines.

use std::sync::Arc;

use loom::thread;

use super::support::model;
use crate::line::crowd::{Crowd, Entered};

/// Two requests enter at once, where one may wait. One of them does, and leaves.
fn two_requests_for_one_place(enter: fn(&Arc<Crowd>) -> Option<Entered>) {
    model(move || {
        let crowd = Arc::new(Crowd::new());
        crowd.set_bounds(1, u64::MAX);
        let other = {
            let crowd = crowd.clone();
            thread::spawn(move || enter(&crowd))
        };
        let mine = enter(&crowd);
        let other = other.join().expect("no panic");
        assert_ne!(mine.is_some(), other.is_some(), "one of two");
        drop((mine, other));
        assert_eq!(crowd.requests(), 0);
    });
}

#[test]
fn the_last_place_is_taken_once() {
    two_requests_for_one_place(|crowd| Entered::new(Some(crowd), 1, false));
}

/// The broken twin: looks in one section, and enters in another.
#[test]
#[should_panic = "one of two"]
fn broken_the_last_place_is_taken_once() {
    two_requests_for_one_place(
        |crowd| {
            if crowd.has_room(1) { Entered::new(Some(crowd), 1, true) } else { None }
        },
    );
}
