//! A state that was retired grants nothing any more, whatever comes. And a debit is owed.

use std::error::Error;
use std::time::Duration;

use proptest::collection::vec;
use proptest::prelude::*;
use tidegate::policy::{AnyPolicy, Change, Keep};
use tidegate::{
    Blocked, FixedWindow, LeakyBucket, Nanos, Policy, Rate, Refusal, SlidingEstimate, SlidingLog,
    SlidingWindow, SmoothBursty, SmoothWarmingUp, TokenBucket, Unlimited,
};

const SECOND: u64 = 1_000_000_000;

fn at(seconds: u64) -> Nanos {
    Nanos::new(seconds * SECOND)
}

/// All that have a state.
fn policies(rate: Rate) -> Result<Vec<AnyPolicy>, Box<dyn Error>> {
    let log = SlidingLog::try_new(rate).and_then(|log| log.room_for(20));
    let windows = [
        FixedWindow::try_new(rate).map(AnyPolicy::from),
        FixedWindow::try_new(rate).map(|policy| policy.from_first_grant().into()),
        SlidingWindow::try_new(rate, 3).map(AnyPolicy::from),
        SlidingEstimate::try_new(rate).map(AnyPolicy::from),
        log.map(AnyPolicy::from),
    ];
    let buckets = [
        AnyPolicy::from(SmoothBursty::new(rate)),
        SmoothBursty::new(rate).max_burst(Duration::ZERO).into(),
        SmoothWarmingUp::new(rate, Duration::from_secs(4)).into(),
        SmoothWarmingUp::new(rate, Duration::ZERO).into(),
        LeakyBucket::new(rate).undelayed(3).into(),
    ];
    let tokens = [
        TokenBucket::try_new(rate, 10).map(AnyPolicy::from),
        TokenBucket::try_new(rate, 0).map(AnyPolicy::from),
        TokenBucket::try_new(rate, 10).and_then(TokenBucket::in_steps).map(AnyPolicy::from),
        TokenBucket::try_new(rate, 3).and_then(TokenBucket::in_steps).map(AnyPolicy::from),
    ];
    Ok(windows.into_iter().chain(tokens).flatten().chain(buckets).collect())
}

#[derive(Clone, Debug)]
enum Call {
    Try(u64, u32),
    Undo(u64, usize, Option<u32>),
    Refund(u64, u32),
    Debit(u64, u32),
    Retire(u64),
    Change(u64, Option<Rate>, Option<Keep>),
}

fn some_rate() -> impl Strategy<Value = Rate> {
    prop_oneof![
        6 => (1u64..20, 1u64..4).prop_filter_map("a rate", |(permits, seconds)| Rate::new(permits, Duration::from_secs(seconds)).ok()),
        1 => Just(Rate::ZERO),
        1 => Just(Rate::per_second(1 << 34)),
    ]
}

fn some_time() -> impl Strategy<Value = u64> {
    prop_oneof![4 => 0..100 * SECOND, 1 => 0..u64::MAX, 1 => Just(u64::MAX)]
}

fn some_n() -> impl Strategy<Value = u32> {
    prop_oneof![5 => 1u32..5, 1 => any::<u32>()]
}

fn some_call() -> impl Strategy<Value = Call> {
    let keep = prop_oneof![Just(Keep::Count), Just(Keep::Ratio), Just(Keep::Reset)];
    let rate = proptest::option::of(some_rate());
    prop_oneof![
        4 => (some_time(), some_n()).prop_map(|(at, n)| Call::Try(at, n)),
        1 => (some_time(), any::<usize>(), proptest::option::of(1u32..5)).prop_map(|(at, index, used)| Call::Undo(at, index, used)),
        1 => (some_time(), some_n()).prop_map(|(at, n)| Call::Refund(at, n)),
        1 => (some_time(), some_n()).prop_map(|(at, n)| Call::Debit(at, n)),
        1 => some_time().prop_map(Call::Retire),
        2 => (some_time(), rate, proptest::option::of(keep)).prop_map(|(at, rate, keep)| Call::Change(at, rate, keep)),
    ]
}

proptest! {
    #[test]
    fn a_retired_state_grants_nothing(
        rate in some_rate(), before in vec((0..4 * SECOND, 1u32..4), 0..8), rest in prop_oneof![Just(0), 0..20 * SECOND],
        after in vec(some_call(), 1..30),
    ) {
        let policies = policies(rate).map_err(|error| TestCaseError::fail(error.to_string()))?;
        for policy in policies {
            let mut now = at(10);
            let state = policy.start(now);
            let mut charges = Vec::new();
            for (pass, n) in &before {
                now = now.saturating_add(Nanos::new(*pass));
                charges.extend(policy.try_acquire(&state, now, *n).ok().map(|charge| (charge, *n)));
            }
            now = now.saturating_add(Nanos::new(rest));
            let fits = policy.status(&state, now).full_at <= now;
            if !policy.retire(&state, now) {
                prop_assert!(!policy.is_retired(&state));
                continue;
            }
            // By some ten nanoseconds, a bucket is never as full as it can be.
            prop_assert!(fits || rate.is_zero(), "{policy:?}");
            let (mut rate, never) = (rate, Refusal::Limited { retry_after: Duration::MAX });
            for call in &after {
                prop_assert!(policy.is_retired(&state), "{policy:?}");
                match *call {
                    Call::Try(at, n) => {
                        let got = policy.try_acquire(&state, Nanos::new(at), n).err();
                        match policy.check(n) {
                            Ok(()) => prop_assert_eq!(got, Some(never), "{:?}", policy),
                            Err(refusal) => prop_assert_eq!(got, Some(refusal)),
                        }
                        prop_assert_eq!(policy.ready_at(&state, Nanos::new(at), 0, n), Nanos::MAX);
                        prop_assert_eq!(policy.status(&state, Nanos::new(at)).available, 0);
                        prop_assert_eq!(policy.status(&state, Nanos::new(at)).full_at, Nanos::MAX);
                    }
                    Call::Undo(at, index, used) => {
                        if let Some((charge, n)) = charges.get(index % charges.len().max(1)).copied() {
                            let charge = used.map_or(Some(charge), |used| policy.unused(charge, n, used));
                            if let Some(charge) = charge {
                                policy.undo(&state, Nanos::new(at), charge, 0);
                            }
                        }
                    }
                    Call::Refund(at, n) => {
 policy.refund(&state, Nanos::new(at), n); },
                    Call::Debit(at, n) => policy.debit(&state, Nanos::new(at), n),
                    Call::Retire(at) => prop_assert!(!policy.retire(&state, Nanos::new(at)), "twice"),
                    Call::Change(at, new, keep) => {
                        rate = new.unwrap_or(rate);
                        let change = Change::rate(rate);
                        let change = keep.map_or(change, |keep| change.keep(keep));
                        prop_assert!(policy.change(&state, Nanos::new(at), change).is_ok());
                    }
                }
            }
        }
    }
}

#[test]
fn a_state_at_rest_is_retired() -> Result<(), Box<dyn Error>> {
    for rate in [Rate::per_second(5), Rate::UNLIMITED] {
        for policy in policies(rate)? {
            let state = policy.start(at(10));
            policy.debit(&state, at(10), 7);
            assert!(rate.is_unlimited() || !policy.retire(&state, at(10)), "{policy:?}");
            assert!(policy.retire(&state, at(30)), "{policy:?}");
            assert!(policy.is_retired(&state));
            assert!(!policy.retire(&state, at(30)));
            // With a limit, it stays retired.
            policy.set_rate(&state, at(31), Rate::per_second(5));
            assert!(policy.try_acquire(&state, at(40), 1).is_err(), "{policy:?}");
        }
    }
    Ok(())
}

#[test]
fn without_a_state_any_is_as_good_as_new() {
    assert!(Unlimited.retire(&(), at(0)) && !Unlimited.is_retired(&()));
    assert!(Blocked.retire(&(), at(0)) && !Blocked.is_retired(&()));
}

/// Its permits are cheaper than those of a new one, which is cold: whoever comes now and then would never get warm.
#[test]
fn a_warm_limiter_is_not_at_rest() -> Result<(), Box<dyn Error>> {
    let policy = SmoothWarmingUp::new(Rate::per_second(2), Duration::from_secs(4)).start_warm();
    let state = policy.start(at(0));
    policy.try_acquire(&state, at(0), 1)?;
    assert!(!policy.retire(&state, at(1)));
    assert!(policy.retire(&state, at(5)));
    Ok(())
}

#[test]
fn a_debit_is_owed() -> Result<(), Box<dyn Error>> {
    // Ten a second, ten of them in stock, and twenty more are owed.
    let policy = TokenBucket::new(Rate::per_second(10), 10);
    let state = policy.start(at(0));
    policy.debit(&state, at(0), 30);
    assert_eq!(policy.ready_at(&state, at(0), 0, 1), Nanos::new(2_100_000_000));
    assert_eq!(policy.status(&state, at(0)).available, 0);
    policy.refund(&state, at(0), 10);
    assert_eq!(policy.ready_at(&state, at(0), 0, 1), Nanos::new(1_100_000_000));
    // A window counts them, and begins anew at zero.
    let policy = FixedWindow::new(Rate::per_second(10));
    let state = policy.start(at(0));
    policy.debit(&state, at(0), 30);
    policy.refund(&state, at(0), 10);
    assert!(policy.try_acquire(&state, at(0), 1).is_err(), "twenty are counted");
    assert_eq!(policy.ready_at(&state, at(0), 0, 10), at(1));
    Ok(())
}

/// Whatever is owed, it is never so much that it is nothing, nor what a retired state shows.
#[test]
fn no_debit_overflows() -> Result<(), Box<dyn Error>> {
    for rate in [
        Rate::per_second(5),
        Rate::new(1, Duration::from_secs(1 << 24))?,
        Rate::per_second(u64::from(u32::MAX)),
    ] {
        for policy in policies(rate)? {
            let state = policy.start(at(10));
            for _ in 0..2000 {
                policy.debit(&state, at(10), u32::MAX);
                assert!(!policy.is_retired(&state));
                assert!(policy.try_acquire(&state, at(10), 1).is_err(), "{policy:?}");
            }
            policy.set_rate(&state, at(10), Rate::per_second(u64::from(u32::MAX)));
            policy.set_rate(&state, at(10), rate);
        }
    }
    Ok(())
}

/// A large request of a leaky bucket came out of the time in which nobody came. A small one would have found no more than what the bucket
/// holds: so what it did not use is not in stock.
#[test]
fn what_a_large_request_did_not_use_is_not_saved() -> Result<(), Box<dyn Error>> {
    let policy = LeakyBucket::new(Rate::per_second(1));
    let state = policy.start(at(0));
    let charge = policy.try_acquire(&state, at(1000), 100)?;
    let unused = policy.unused(charge, 100, 1).ok_or("99 of them")?;
    policy.undo(&state, at(1000), unused, u64::MAX);
    assert_eq!(policy.ready_at(&state, at(1000), 0, 1), at(1001));
    Ok(())
}
