//! The window policies, when a clock reading is older than the latest time in a state: a thread
//! read its clock, stalled, and made its call later. All times are arguments.

use std::time::Duration;

use proptest::collection::vec;
use proptest::prelude::*;
use tidegate::policy::{AnyPolicy, Change, Keep, Policy};
use tidegate::{FixedWindow, Nanos, Rate, Refusal, SlidingEstimate, SlidingWindow};

const DAY: u64 = 86_400_000_000_000;
const SECOND: u64 = 1_000_000_000;

/// The windows of 100 permits per second.
fn windows() -> [AnyPolicy; 6] {
    let rate = Rate::per_second(100);
    let aligned = |offset| FixedWindow::new(rate).at_wall_clock(Duration::from_nanos(offset));
    [
        FixedWindow::new(rate).into(),
        FixedWindow::new(rate).from_first_grant().into(),
        AnyPolicy::from(aligned(SECOND / 3)).with_epoch(Duration::from_secs(77)),
        SlidingEstimate::new(rate).into(),
        SlidingWindow::new(rate, 1).into(),
        SlidingWindow::new(rate, 10).into(),
    ]
}

/// Takes single permits until one is refused.
fn take_all<P: Policy>(policy: &P, state: &P::State, at: u64) -> usize {
    (0..1000).take_while(|_| policy.try_acquire(state, Nanos::new(at), 1).is_ok()).count()
}

/// How long before the last grant an operation read its clock.
const LAGS: [u64; 7] = [0, 1, 1000, SECOND / 20, SECOND / 2, SECOND, DAY];

/// Makes grants at two days, then runs the operation as of an earlier time, and expects no more
/// permits.
fn nothing_more_after(what: &str, operation: impl Fn(&AnyPolicy, &<AnyPolicy as Policy>::State, Nanos)) {
    for policy in windows() {
        for lag in LAGS {
            // Just after the start of a window, of a cell, and in the middle.
            for after in [1, SECOND / 10 + 1, SECOND / 3 + 1, SECOND / 2] {
                let (policy, granted) = (policy.clone(), 2 * DAY + after);
                let state = policy.start(Nanos::ZERO);
                assert_eq!(take_all(&policy, &state, granted), 100);
                operation(&policy, &state, Nanos::new(granted - lag));
                let more = take_all(&policy, &state, granted + 1);
                assert_eq!(more, 0, "{what} {lag} ns before, {after} ns into a window: {policy:?}");
            }
        }
    }
}

/// Bug: the stamp of the last time was one bit longer than its field, so each grant was forgotten.
#[test]
fn the_limit_is_kept_at_the_end_of_time() {
    const LAST: u64 = (1 << 62) - (1 << 60);
    for policy in windows() {
        for at in [LAST - 2, LAST - 1, LAST, LAST + 1, u64::MAX - 1, u64::MAX] {
            let state = policy.start(Nanos::ZERO);
            assert_eq!(take_all(&policy, &state, at), 100, "at {at}: {policy:?}");
            policy.debit(&state, Nanos::new(at), 1);
            assert_eq!(policy.status(&state, Nanos::new(at)).available, 0, "at {at}: {policy:?}");
            policy.refund(&state, Nanos::new(at), 1);
            assert_eq!(take_all(&policy, &state, at), 0, "at {at}: {policy:?}");
        }
    }
}

/// Bug: the open window was forgotten, because it starts after the time of the change.
#[test]
fn a_change_as_of_an_older_time_forgets_nothing() {
    for keep in [Keep::Count, Keep::Ratio] {
        nothing_more_after("a change", |policy, state, at| {
            let change = Change::rate(policy.rate()).keep(keep);
            policy.change(state, at, change).expect("a rate fits");
        });
    }
}

/// The policies without windows store times, and a log stores all of them.
#[test]
fn a_change_as_of_an_older_time_forgets_nothing_of_other_policies() {
    for text in [
        "token_bucket 100/s burst 100",
        "token_bucket 100/s burst 100 interval_refill",
        "leaky_bucket 100/s nodelay 99",
        "smooth_bursty 100/s start_full",
        "smooth_warming_up 100/s warm_up 1s",
        "sliding_log 100/s",
    ] {
        for (lag, keep) in LAGS.into_iter().flat_map(|lag| [(lag, Keep::Count), (lag, Keep::Ratio)]) {
            let policy: AnyPolicy = text.parse().expect("a policy");
            let (state, granted) = (policy.start(Nanos::ZERO), 2 * DAY + SECOND / 3);
            assert!(take_all(&policy, &state, granted) > 0);
            let change = Change::rate(policy.rate()).keep(keep);
            policy.change(&state, Nanos::new(granted - lag), change).expect("a rate fits");
            assert_eq!(take_all(&policy, &state, granted + 1), 0, "{lag} ns before, {keep:?}: {text}");
        }
    }
}

/// A shorter window, or a shorter cell, starts between the time of the change and that of the
/// grants.
#[test]
fn a_shorter_window_as_of_an_older_time_forgets_nothing() {
    for millis in [900, 500, 90, 7] {
        let shorter = Rate::new(100, Duration::from_millis(millis)).expect("a rate");
        for policy in windows() {
            for lag in LAGS {
                for after in [1, SECOND / 10 + 1, SECOND / 3 + 1, SECOND / 2] {
                    let (policy, granted) = (policy.clone(), 2 * DAY + after);
                    let state = policy.start(Nanos::ZERO);
                    assert_eq!(take_all(&policy, &state, granted), 100);
                    let same = policy.clone();
                    let as_of_the_grant = same.start(Nanos::ZERO);
                    assert_eq!(take_all(&same, &as_of_the_grant, granted), 100);
                    policy.set_rate(&state, Nanos::new(granted - lag), shorter);
                    same.set_rate(&as_of_the_grant, Nanos::new(granted), shorter);
                    let more = take_all(&policy, &state, granted);
                    let more_if_not_older = take_all(&same, &as_of_the_grant, granted);
                    assert_eq!(
                        more, more_if_not_older,
                        "{lag} ns before, {after} ns in, {millis} ms: {policy:?}"
                    );
                }
            }
        }
    }
}

#[test]
fn a_debit_or_a_status_as_of_an_older_time_forgets_nothing() {
    nothing_more_after("a debit", |policy, state, at| policy.debit(state, at, 1));
    nothing_more_after("a status", |policy, state, at| {
        assert_eq!(policy.status(state, at).available, 0);
    });
}

/// It gives back the number it is given, and not the whole window.
#[test]
fn a_refund_as_of_an_older_time_gives_back_no_more_than_it_says() {
    nothing_more_after("a refund", |policy, state, at| {
        policy.refund(state, at, 3);
        assert_eq!(policy.status(state, at).available, 3);
        assert!(policy.try_acquire(state, at, 3).is_ok());
    });
}

#[test]
fn an_undo_as_of_an_older_time_gives_back_no_more_than_it_took() {
    for policy in windows() {
        for lag in LAGS {
            let (policy, granted) = (policy.clone(), 2 * DAY + 1);
            let state = policy.start(Nanos::ZERO);
            let charge = policy.try_acquire(&state, Nanos::new(granted), 3).expect("three");
            assert_eq!(take_all(&policy, &state, granted), 97);
            policy.undo(&state, Nanos::new(granted - lag), charge, u64::MAX);
            assert_eq!(take_all(&policy, &state, granted + 1), 3, "{lag}: {policy:?}");
        }
    }
}

#[derive(Clone, Debug)]
enum Call {
    Try(u32),
    Undo(usize),
    Refund(u32),
    Debit(u32),
    Change(u64, u64, Keep),
}

/// Time that passes, a call, and how long before the call its clock was read.
fn some_calls() -> impl Strategy<Value = Vec<(u64, Call, u64)>> {
    let n = || prop_oneof![3 => Just(1u32), 1 => 1u32..8];
    let keep = prop_oneof![Just(Keep::Count), Just(Keep::Ratio), Just(Keep::Nothing)];
    let call = prop_oneof![
        8 => n().prop_map(Call::Try),
        2 => (0usize..6).prop_map(Call::Undo),
        1 => n().prop_map(Call::Refund),
        1 => n().prop_map(Call::Debit),
        2 => (0u64..12, 1u64..1000, keep).prop_map(|(limit, length, keep)| Call::Change(limit, length, keep)),
    ];
    let passes = prop_oneof![3 => Just(0u64), 3 => 0u64..30, 1 => 0u64..3000];
    let lag = prop_oneof![3 => Just(0u64), 3 => 0u64..30, 2 => 0u64..3000, 1 => Just(DAY)];
    vec((passes, call, lag), 1..60)
}

/// Returns what the refusal of a request reports: the absolute time at which the request is due.
fn told<C>(answer: Result<C, Refusal>, at: Nanos) -> Option<Nanos> {
    match answer {
        Ok(_) => None,
        Err(Refusal::Limited { retry_after }) => Some(at.saturating_add(retry_after)),
        Err(_) => Some(Nanos::MAX),
    }
}

/// One limiter receives the readings as they are. The other receives the latest reading of all
/// earlier writes, if that is later. Both decide alike.
fn acts_as_of_the_latest<P: Policy + Clone>(
    policy: &P,
    calls: &[(u64, Call, u64)],
) -> Result<(), TestCaseError> {
    let (older, exact) = (policy.clone(), policy.clone());
    let mut now = 2 * DAY;
    let mut latest = Nanos::ZERO;
    let (of_older, of_exact) = (older.start(Nanos::new(now)), exact.start(Nanos::new(now)));
    let mut charges = Vec::new();
    for (passes, call, lag) in calls {
        now += passes;
        let read = Nanos::new(now - lag);
        let at = read.max(latest);
        match *call {
            Call::Try(n) => {
                let a = older.try_acquire(&of_older, read, n);
                let b = exact.try_acquire(&of_exact, at, n);
                prop_assert_eq!(told(a, read), told(b, at));
                if let (Ok(a), Ok(b)) = (a, b) {
                    charges.push((a, b));
                    latest = at;
                }
            }
            Call::Undo(ago) => {
                if let Some(index) = charges.len().checked_sub(ago + 1) {
                    let (a, b) = charges.remove(index);
                    older.undo(&of_older, read, a, u64::MAX);
                    exact.undo(&of_exact, at, b, u64::MAX);
                }
            }
            Call::Refund(n) => {
                older.refund(&of_older, read, n);
                exact.refund(&of_exact, at, n);
            }
            Call::Debit(n) => {
                older.debit(&of_older, read, n);
                exact.debit(&of_exact, at, n);
                latest = at;
            }
            Call::Change(limit, length, keep) => {
                let rate = match limit {
                    0 => Rate::ZERO,
                    limit => Rate::new(limit, Duration::from_nanos(length))?,
                };
                let change = Change::rate(rate).keep(keep);
                prop_assert!(older.change(&of_older, read, change).is_ok());
                prop_assert!(exact.change(&of_exact, at, change).is_ok());
                latest = at;
            }
        }
        let read = Nanos::new(now - lag / 2);
        let at = read.max(latest);
        prop_assert_eq!(older.status(&of_older, read).available, exact.status(&of_exact, at).available);
        for n in [1, 3, 7] {
            let (a, b) = (older.ready_at(&of_older, read, 0, n), exact.ready_at(&of_exact, at, 0, n));
            prop_assert_eq!(a.max(at), b.max(at));
        }
    }
    Ok(())
}

proptest! {
    /// A window that starts at the first grant is excluded. It stores when it started but no later
    /// time, so an older reading may still lie in it after a change that ended it. Its permits are
    /// then counted for longer.
    #[test]
    fn every_operation_is_as_of_the_latest_that_was_seen(
        limit in 1u64..12, length in 1u64..1000, offset in 0u64..1000, calls in some_calls(),
    ) {
        let rate = Rate::new(limit, Duration::from_nanos(length))?;
        let (offset, unix) = (Duration::from_nanos(offset), Duration::from_secs(1));
        acts_as_of_the_latest(&FixedWindow::new(rate), &calls)?;
        acts_as_of_the_latest(&FixedWindow::new(rate).at_wall_clock(offset).with_epoch(unix), &calls)?;
        acts_as_of_the_latest(&SlidingEstimate::new(rate), &calls)?;
        acts_as_of_the_latest(&SlidingEstimate::new(rate).at_wall_clock(offset).with_epoch(unix), &calls)?;
    }

    #[test]
    fn every_operation_of_a_sliding_window_is_as_of_the_latest_that_was_seen(
        limit in 1u64..12, length in 1u64..1000, cells in 1u16..9, offset in 0u64..1000, calls in some_calls(),
    ) {
        let rate = Rate::new(limit, Duration::from_nanos(length))?;
        let (offset, unix) = (Duration::from_nanos(offset), Duration::from_secs(1));
        acts_as_of_the_latest(&SlidingWindow::new(rate, cells), &calls)?;
        acts_as_of_the_latest(&SlidingWindow::new(rate, cells).at_wall_clock(offset).with_epoch(unix), &calls)?;
    }
}
