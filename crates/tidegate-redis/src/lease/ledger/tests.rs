//! The ledger and its plans, without a store.

use super::*;
use crate::script::{Answer, StateReport};
use crate::store::{Away, LeaseCounts};

const MS: Duration = Duration::from_millis(1);

fn at(millis: u64) -> Nanos {
    Nanos::new(millis * 1_000_000)
}

/// Returns the leases of as many limits of this configuration.
fn ledger(line: &str, limits: usize) -> Ledger {
    let terms = Terms::new(&line.parse().expect("a configuration")).expect("terms");
    Ledger::new(vec![terms; limits].into_iter(), Arc::default())
}

/// Asks for permits until a lease is booked for such requests. Returns its order.
fn order_after_misses(ledger: &Ledger, costs: &Costs, longest: Duration) -> Order {
    for _ in 0..60 {
        assert_eq!(ledger.next_lease_at(at(100), costs, longest), None);
        ledger.missed(costs);
    }
    let Plan::Book(order) = ledger.plan(at(100), 0, false) else { panic!("it books") };
    order
}

/// Returns the reply to a lease of these permits, which is due in 30 ms.
fn booked(full_in: Duration, permits: Vec<u64>) -> Reply {
    let report =
        StateReport { available: 0, full_in, next_in: Duration::ZERO, paused_for: Duration::ZERO, other: 0 };
    Reply {
        answer: Answer::Done,
        wait: 30 * MS,
        tightest: None,
        due: 1_000_000,
        limits: vec![report; permits.len()],
        permits,
        before: Vec::new(),
    }
}

/// A booking for queued requests is in flight while the leases end. Returns which limits get
/// how many permits back, and the counts.
fn late(end: fn(&Ledger)) -> (Vec<(usize, u64)>, LeaseCounts) {
    let ledger = ledger("token_bucket 1000/s burst 100", 2);
    ledger.joins(&vec![(5, 5), (7, 7)], true);
    let Plan::Book(order) = ledger.plan(at(10), 1, false) else { panic!("it books") };
    end(&ledger);
    let outcome = ledger.handle_reply(at(17), &order, Ok(&booked(MS, vec![5, 7])));
    let OrderOutcome::Booked(_, returns) = outcome else { panic!("{outcome:?}") };
    assert_eq!(ledger.end(at(17)), []);
    (returns.iter().map(|back| (back.limit, back.permits)).collect(), ledger.counters.read())
}

#[test]
fn a_booking_in_flight_ends_as_the_leases_did() {
    let counts = |returned, lost| LeaseCounts { taken: 12, used: 0, returned, lost };
    assert_eq!(late(|ledger| _ = ledger.end(at(15))), (vec![(0, 5), (1, 7)], counts(12, 0)));
    assert_eq!(late(|ledger| _ = ledger.discard(Some(0))), (vec![(1, 7)], counts(7, 5)));
}

/// Otherwise a lease would be granted where a request is refused.
#[test]
fn the_first_permit_of_a_lease_is_due_within_the_longest_wait_of_a_request() {
    let ledger = ledger("token_bucket 1000/s burst 100", 1);
    let one = vec![(1, 1)];
    let order = order_after_misses(&ledger, &one, 80 * MS);
    let n = order.costs[0].0;
    // A permit accrues each millisecond.
    assert_eq!((n, order.longest), (5, 80 * MS + 4 * MS));
}

#[test]
fn a_lease_ends_200_ms_after_it_was_asked_for_and_with_its_window() {
    for (line, full_in, usable, ends) in [
        ("token_bucket 100/s burst 100", 50 * MS, 47, 240),
        ("sliding_log 100/s", 50 * MS, 47, 240),
        ("fixed_window 100/s", 60 * MS, 47, 70),
        // The last booking is in a later window.
        ("fixed_window 100/s", 1060 * MS, 47, 70),
        ("fixed_window 100/s", 2060 * MS, 47, 70),
        ("fixed_window 100/s from_first_grant", 60 * MS, 47, 70),
        ("fixed_window 100/s from_first_grant", 1060 * MS, 47, 40),
        ("token_bucket 100/min burst 100 interval_refill", 60_060 * MS, 47, 70),
        // These limits have longer horizons, up to 5 s.
        ("fixed_window 100/min", 60_000 * MS, 47, 10 + 30 + 3750),
        ("fixed_window 100/d", 80_000_000 * MS, 47, 10 + 30 + 10_000),
        ("token_bucket 100/min burst 100 interval_refill", 60_000 * MS, 47, 10 + 30 + 3750),
        ("token_bucket 100/min burst 100 interval_refill", 60 * MS, 47, 70),
        ("token_bucket 100/min burst 101 interval_refill", 60 * MS, 47, 240),
    ] {
        let ledger = ledger(line, 1);
        let reply = booked(full_in, vec![5]);
        // The lease was asked for at 10 ms, and the reply came at 17 ms.
        let piece = ledger.accounts[0].piece(at(10), at(17), &reply, 0);
        assert_eq!((piece.usable, piece.ends, piece.permits), (at(usable), at(ends), 5), "{line}");
    }
}

/// A lease that comes after the end of its fixed window says nothing of the next window.
#[test]
fn leases_are_left_to_the_store_if_they_come_too_late_and_not_at_the_end_of_a_window() {
    for (line, full_in, took, is_left) in [
        ("fixed_window 100/s", 5 * MS, 7, false),
        ("fixed_window 100/s", 900 * MS, 7, false),
        // A window of sixteen round trips, and of a few more.
        ("fixed_window 100/s", 900 * MS, 63, true),
        ("fixed_window 100/s", 900 * MS, 62, false),
        // The permits came back to a window before that of the last booking.
        ("fixed_window 100/s", 1900 * MS, 7, false),
        ("fixed_window 100/s from_first_grant", 1900 * MS, 7, true),
        ("token_bucket 100/s burst 100", 50 * MS, 199, true),
        ("token_bucket 100/s burst 100", 50 * MS, 200, true),
        ("token_bucket 100/s burst 100", 50 * MS, 7, false),
    ] {
        let ledger = ledger(line, 1);
        ledger.joins(&vec![(5, 5)], true);
        let Plan::Book(order) = ledger.plan(at(10), 1, false) else { panic!("it books") };
        let outcome = ledger.handle_reply(at(10 + took), &order, Ok(&booked(full_in, vec![5])));
        assert!(matches!(outcome, OrderOutcome::Booked(..)), "{line}: {outcome:?}");
        assert_eq!(ledger.is_backing_off(at(10 + took)), is_left, "{line} after {took} ms");
    }
}

/// One late reply among fast ones: the shortest of the last round trips shows nothing.
#[test]
fn leases_are_left_to_the_store_after_one_that_came_too_late() {
    let ledger = ledger("token_bucket 100/s burst 100", 1);
    for (sent, took, is_left) in [(10, 7, false), (20, 250, true)] {
        ledger.joins(&vec![(40, 40)], true);
        let Plan::Book(order) = ledger.plan(at(sent), 2, false) else { panic!("it books") };
        let reply = booked(50 * MS, vec![5]);
        _ = ledger.handle_reply(at(sent + took), &order, Ok(&reply));
        assert_eq!(ledger.is_backing_off(at(sent + took)), is_left, "after {took} ms");
    }
}

/// The queued requests keep their lease whatever the store replies, also nothing.
#[test]
fn a_lease_that_is_due_sooner_is_asked_for_once_a_second() {
    let ledger = ledger("token_bucket 1000/s burst 100", 1);
    ledger.joins(&vec![(5, 5)], true);
    let Plan::Book(order) = ledger.plan(at(10), 1, false) else { panic!("it books") };
    let ahead = Reply { wait: 60_000 * MS, ..booked(60_000 * MS, vec![5]) };
    assert!(matches!(ledger.handle_reply(at(17), &order, Ok(&ahead)), OrderOutcome::Booked(..)));
    let refused = Reply { answer: Answer::Refused, ..booked(MS, vec![0]) };
    let paused = Reply { answer: Answer::Predicted, ..booked(MS, vec![0]) };
    let replies = [Err(Away::Misconfigured), Ok(&refused), Ok(&paused)];
    for (second, reply) in (1..).zip(replies) {
        let now = at(17 + 1000 * second);
        assert_eq!(ledger.plan(at(17 + 1000 * (second - 1)), 1, false), Plan::Rest(now));
        let Plan::Book(order) = ledger.plan(now, 1, false) else { panic!("it asks") };
        assert_eq!(order.longest, Duration::from_secs(60 - second) / 4 * 3);
        assert_eq!(ledger.handle_reply(now, &order, reply), OrderOutcome::NoneSooner);
        let stock = &ledger.accounts[0].stock;
        assert_eq!((stock.usable(now), stock.held(now)), (0, 5));
    }
    let Plan::Book(order) = ledger.plan(at(5000), 1, false) else { panic!("it asks") };
    let sooner = Reply { wait: Duration::ZERO, ..booked(MS, vec![5]) };
    assert!(matches!(ledger.handle_reply(at(5001), &order, Ok(&sooner)), OrderOutcome::Booked(..)));
    let held = || (ledger.accounts[0].stock.usable(at(5001)), ledger.accounts[0].stock.held(at(5001)));
    assert_eq!(held(), (5, 10));
    // The lease far ahead goes back.
    let Plan::Back(returns) = ledger.plan(at(5001), 1, false) else { panic!("it goes back") };
    assert_eq!(returns.iter().map(|back| back.permits).collect::<Vec<_>>(), [5]);
    assert_eq!(held(), (5, 5));
}

/// A request may have read the clock before a reply was noted, and look at the limits
/// afterwards. Requests were refused as paused for some nanoseconds, although no limit was
/// paused and all of them had permits.
#[test]
fn a_reply_that_is_newer_than_a_request_refuses_it_only_if_a_limit_has_no_permit() {
    let ledger = ledger("token_bucket 1000/s burst 100", 1);
    let one = vec![(1, 1)];
    let mut reply = booked(Duration::ZERO, vec![5]);
    (reply.wait, reply.limits[0].available) = (Duration::ZERO, 90);
    let order = order_after_misses(&ledger, &one, Duration::ZERO);
    assert!(matches!(ledger.handle_reply(at(110), &order, Ok(&reply)), OrderOutcome::Booked(..)));
    for now in [105, 110] {
        assert_eq!(ledger.refusal(at(now), &one, Duration::ZERO), None, "{now}");
        assert_eq!(ledger.next_lease_at(at(now), &one, Duration::ZERO), None, "{now}");
    }
    (reply.limits[0].available, reply.limits[0].next_in) = (0, 3 * MS);
    ledger.note_report(at(110), &reply);
    let limited = (0, Refusal::Limited { retry_after: at(3) });
    for now in [105, 110] {
        assert_eq!(ledger.refusal(at(now), &one, Duration::ZERO), Some(limited), "{now}");
    }
}

/// While a failed call keeps leases from being booked, the store decides: no lease will ask for
/// the permits of a request.
#[test]
fn no_request_is_refused_until_a_lease_that_is_not_booked() {
    let ledger = ledger("token_bucket 1000/s burst 100", 1);
    let one = vec![(1, 1)];
    let order = order_after_misses(&ledger, &one, Duration::ZERO);
    let refused = Reply { answer: Answer::Refused, ..booked(MS, vec![0]) };
    assert_eq!(ledger.handle_reply(at(101), &order, Ok(&refused)), OrderOutcome::Refused);
    assert!(ledger.next_lease_at(at(101), &one, Duration::ZERO).is_some());
    assert_eq!(ledger.handle_reply(at(102), &order, Err(Away::Misconfigured)), OrderOutcome::Failed);
    assert_eq!(ledger.next_lease_at(at(103), &one, Duration::ZERO), None);
}

/// Bug: permits that were put back when the leases were used up stayed in this process until its
/// next request.
#[test]
fn permits_that_are_put_back_into_an_empty_stock_end_like_others() {
    use futures_util::FutureExt;

    let ledger = ledger("token_bucket 1000/s burst 100", 1);
    let account = &ledger.accounts[0];
    account.stock.add(account.piece(at(10), at(17), &booked(MS, vec![5]), 0), 0);
    let taken = [2, 3].map(|n| account.take(at(50), n).expect("they are usable"));
    assert_eq!(ledger.plan(at(50), 0, false), Plan::Rest(Nanos::MAX));
    let is_kicked = || ledger.kick.notified().now_or_never().is_some();
    is_kicked();
    let are_kicked = taken.map(|taken| {
        account.put_back(taken);
        is_kicked()
    });
    // The second permits are put back into a new list.
    assert_eq!(are_kicked, [true, true]);
    assert_eq!(ledger.plan(at(50), 0, false), Plan::Rest(at(240)));
    let last = account.take(at(50), 1).expect("it is usable");
    is_kicked();
    account.put_back(last);
    assert!(!is_kicked(), "the end is known");
    assert!(matches!(ledger.plan(at(240), 0, false), Plan::Back(returns) if returns[0].permits == 5));
    // Permits behind them end later.
    let late = Reply { wait: 60_000 * MS, ..booked(60_000 * MS, vec![5]) };
    for reply in [booked(MS, vec![5]), late] {
        account.stock.add(account.piece(at(300), at(307), &reply, 0), 0);
    }
    let taken = account.take(at(340), 5).expect("they are usable");
    is_kicked();
    account.put_back(taken);
    assert!(is_kicked(), "they end before the others");
}
