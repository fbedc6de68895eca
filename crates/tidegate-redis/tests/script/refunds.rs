//! Permits that come back, and pauses that end, while bookings lie ahead.

use std::time::Duration;

use crate::script::{Operation, Reply};
use crate::script_tests::{Limit, START, Store, TRY};

const ANY_WAIT: Operation = Operation::Reserve { longest: Duration::MAX, shadow: false };
const SECOND: u64 = 1_000_000;

fn pause(seconds: u64, keep_stock: bool) -> Operation {
    Operation::Pause { span: Duration::from_secs(seconds), keep_stock }
}

/// How long after the start a reply lets its request go.
fn due(reply: &Reply) -> u64 {
    u64::try_from(reply.due).expect("an instant").saturating_sub(START)
}

/// A pause that ended sooner took the state back behind the bookings that were made.
#[test]
fn a_resumed_limit_grants_nothing_before_its_bookings() {
    let Some(mut store) = Store::new() else { return };
    for (line, each) in [
        ("token_bucket 1/s burst 1", SECOND),
        ("leaky_bucket 1/s", SECOND),
        ("smooth_bursty 1/s max_burst 0s", SECOND),
        ("token_bucket 1/s burst 1 interval_refill", SECOND),
    ] {
        for keep_stock in [false, true] {
            let mut limit = Limit::new(line);
            limit.key.push_str(if keep_stock { "-kept" } else { "-empty" });
            let mut call = |operation, after: u64| {
                let reply = store.call(operation, START + after, &[limit.part(1, &[])]);
                due(&reply)
            };
            call(TRY, 0);
            assert_eq!([call(ANY_WAIT, 0), call(ANY_WAIT, 0)], [each, 2 * each], "{line}");
            call(pause(10, keep_stock), 0);
            call(Operation::Resume, 0);
            assert_eq!(call(ANY_WAIT, 0), 3 * each, "{line}");
            // Nothing comes in during half a second of a pause that is prolonged.
            call(pause(5, keep_stock), 0);
            call(pause(60, keep_stock), each / 4);
            call(Operation::Resume, each / 2);
            let behind = if line.ends_with("refill") { 4 * each } else { 4 * each + each / 2 };
            assert_eq!(call(ANY_WAIT, each / 2), behind, "{line}");
            // A booking that is made in a pause stays where it is.
            call(pause(10, keep_stock), each / 2);
            let last = call(ANY_WAIT, each / 2);
            assert!(last >= 10 * SECOND, "{line}: {last}");
            call(pause(20, keep_stock), each / 2);
            call(Operation::Resume, each / 2);
            let next = call(ANY_WAIT, each / 2);
            assert_eq!(next, last + each, "{line}");
        }
    }
}
