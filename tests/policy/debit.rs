//! A debit is owed, and the unused part of a grant is given back.

use std::error::Error;
use std::time::Duration;

use proptest::prelude::*;
use tidegate::policy::{AnyPolicy, Change, Keep};
use tidegate::{
    FixedWindow, LeakyBucket, Nanos, Policy, Rate, SlidingEstimate, SlidingLog, SlidingWindow, SmoothBursty,
    SmoothWarmingUp, TokenBucket,
};

const SECOND: u64 = 1_000_000_000;

fn at(seconds: u64) -> Nanos {
    Nanos::new(seconds * SECOND)
}

/// Returns every policy that has a state.
fn policies(rate: Rate) -> Result<Vec<AnyPolicy>, Box<dyn Error>> {
    let log = SlidingLog::try_new(rate).and_then(|log| log.with_capacity(20));
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
        LeakyBucket::new(rate).nodelay(3).into(),
    ];
    let tokens = [
        TokenBucket::try_new(rate, 10).map(AnyPolicy::from),
        TokenBucket::try_new(rate, 0).map(AnyPolicy::from),
        TokenBucket::try_new(rate, 10).and_then(TokenBucket::interval_refill).map(AnyPolicy::from),
        TokenBucket::try_new(rate, 3).and_then(TokenBucket::interval_refill).map(AnyPolicy::from),
    ];
    Ok(windows.into_iter().chain(tokens).flatten().chain(buckets).collect())
}

#[test]
fn a_debit_is_owed() -> Result<(), Box<dyn Error>> {
    // Ten a second, ten permits stored, and twenty more are owed.
    let policy = TokenBucket::new(Rate::per_second(10), 10);
    let state = policy.start(at(0));
    policy.debit(&state, at(0), 30);
    assert_eq!(policy.ready_at(&state, at(0), 0, 1), Nanos::new(2_100_000_000));
    assert_eq!(policy.status(&state, at(0)).available, 0);
    policy.refund(&state, at(0), 10);
    assert_eq!(policy.ready_at(&state, at(0), 0, 1), Nanos::new(1_100_000_000));
    // A window counts the debits, and the next one starts at zero.
    let policy = FixedWindow::new(Rate::per_second(10));
    let state = policy.start(at(0));
    policy.debit(&state, at(0), 30);
    policy.refund(&state, at(0), 10);
    assert!(policy.try_acquire(&state, at(0), 1).is_err(), "twenty are counted");
    assert_eq!(policy.ready_at(&state, at(0), 0, 10), at(1));
    Ok(())
}

/// However much is owed, the negative balance never wraps to zero.
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
                assert!(policy.try_acquire(&state, at(10), 1).is_err(), "{policy:?}");
            }
            policy.set_rate(&state, at(10), Rate::per_second(u64::from(u32::MAX)));
            policy.set_rate(&state, at(10), rate);
        }
    }
    Ok(())
}

/// A large request to a leaky bucket used the time before it, in which no request arrived. A small
/// request would have found no more than the bucket holds. So the unused part of the large request
/// is not saved.
#[test]
fn what_a_large_request_did_not_use_is_not_saved() -> Result<(), Box<dyn Error>> {
    let policy = LeakyBucket::new(Rate::per_second(1));
    let state = policy.start(at(0));
    let charge = policy.try_acquire(&state, at(1000), 100)?;
    let unused = policy.unspent(charge, 100, 1).ok_or("99 of them")?;
    policy.undo(&state, at(1000), unused, u64::MAX);
    assert_eq!(policy.ready_at(&state, at(1000), 0, 1), at(1001));
    Ok(())
}

/// At rate zero a debit in permits is charged, and a negative balance that is a time has no length.
#[test]
fn a_debit_at_zero_is_owed_in_permits() -> Result<(), Box<dyn Error>> {
    let rate = Rate::per_second(10);
    // Returns when one permit is due, if 20 are charged at rate zero and the rate is then restored.
    let due = |policy: AnyPolicy| {
        let state = policy.start(at(0));
        policy.set_rate(&state, at(0), Rate::ZERO);
        policy.debit(&state, at(0), 20);
        policy.set_rate(&state, at(0), rate);
        policy.ready_at(&state, at(0), 0, 1)
    };
    // Ten were stored.
    assert_eq!(due(TokenBucket::new(rate, 10).into()), Nanos::new(1_100_000_000));
    assert_eq!(due(LeakyBucket::new(rate).into()), at(2));
    assert_eq!(due(FixedWindow::new(rate).into()), at(1));
    assert_eq!(due(SlidingWindow::new(rate, 2).into()), at(1));
    // Of twenty in the previous window, half count when half of the window is over.
    assert_eq!(due(SlidingEstimate::new(rate).into()), Nanos::new(1_550_000_000));
    assert_eq!(due(SlidingLog::new(rate).into()), at(1));
    assert_eq!(due(SmoothBursty::new(rate).into()), at(0));
    assert_eq!(due(SmoothWarmingUp::new(rate, Duration::from_secs(4)).into()), at(0));
    Ok(())
}

/// A bucket that never had a rate also remembers the number of permits.
#[test]
fn a_debit_before_any_rate_is_owed() {
    let policy = TokenBucket::new(Rate::ZERO, 10);
    let state = policy.start(at(0));
    policy.debit(&state, at(0), 30);
    policy.set_rate(&state, at(5), Rate::per_second(10));
    assert_eq!(policy.ready_at(&state, at(5), 0, 1), Nanos::new(7_100_000_000));
}

#[test]
fn without_a_limit_nothing_is_owed() -> Result<(), Box<dyn Error>> {
    for policy in policies(Rate::UNLIMITED)? {
        let (state, plain) = (policy.start(at(10)), policy.start(at(10)));
        policy.debit(&state, at(10), u32::MAX);
        assert!(policy.ready_at(&state, at(10), 0, 1) <= at(10), "{policy:?}");
        for state in [&plain, &state] {
            policy.set_rate(state, at(10), Rate::UNLIMITED);
            policy.set_rate(state, at(10), Rate::per_second(5));
        }
        assert_eq!(policy.status(&state, at(10)), policy.status(&plain, at(10)), "{policy:?}");
    }
    Ok(())
}

/// Bug: for a debt beyond the range of a state, a new rate took the largest number as the debt. A
/// debit of a million at one per hour was paid in 300 s at a thousand per second.
#[test]
fn no_rate_makes_a_debt_less_that_is_owed_for_ever() -> Result<(), Box<dyn Error>> {
    let slow = [Rate::per_hour(1), Rate::new(1, Duration::from_secs(1 << 29))?, Rate::from_per_second(1e-9)?];
    let fast = [Rate::per_second(1000), Rate::per_second(1 << 34), Rate::from_per_second(0.5)?];
    for (slow, fast) in slow.into_iter().flat_map(|slow| fast.map(|fast| (slow, fast))) {
        for policy in [
            AnyPolicy::from(TokenBucket::try_new(slow, 1).unwrap_or(TokenBucket::new(Rate::per_hour(1), 1))),
            LeakyBucket::new(slow).into(),
            TokenBucket::new(Rate::per_hour(1), 1).interval_refill()?.into(),
            SmoothBursty::new(slow).into(),
            SmoothWarmingUp::new(slow, Duration::from_secs(4)).into(),
        ] {
            for keep in [Keep::Count, Keep::Ratio] {
                let policy = policy.clone();
                let state = policy.start(at(10));
                policy.debit(&state, at(10), u32::MAX);
                policy.debit(&state, at(10), u32::MAX);
                assert_eq!(policy.ready_at(&state, at(10), 0, 1), Nanos::MAX, "{policy:?}");
                for rate in [fast, Rate::ZERO, slow, fast] {
                    policy.change(&state, at(11), Change::rate(rate).keep(keep))?;
                    assert_eq!(policy.ready_at(&state, at(11), 0, 1), Nanos::MAX, "{policy:?} {keep:?}");
                }
                policy.change(&state, at(11), Change::reset())?;
                assert!(policy.ready_at(&state, at(11), 0, 1) < Nanos::MAX, "{policy:?}");
            }
        }
    }
    Ok(())
}

/// A total has 40 bits. 257 cells that each owe the maximum number of permits exceed that, and a
/// total that wraps would leave 256 permits.
#[test]
fn a_debt_of_many_cells_that_keeps_its_ratio_does_not_wrap() -> Result<(), Box<dyn Error>> {
    let window = Duration::from_secs(257);
    let policy = SlidingWindow::try_new(Rate::new(1, window)?, 257)?;
    let state = policy.start(at(0));
    (0..257).for_each(|cell| policy.debit(&state, at(cell), 1));
    let change = Change::rate(Rate::new(u64::from(u32::MAX), window)?).keep(Keep::Ratio);
    policy.change(&state, at(256), change)?;
    assert_eq!(policy.status(&state, at(256)).available, 0);
    assert!(policy.try_acquire(&state, at(256), 1).is_err());
    Ok(())
}

/// Bug: a debt in permits was lost at a rate with permits that outlast the clock, and from then on
/// at every rate.
#[test]
fn a_debt_is_owed_at_a_rate_that_is_as_good_as_none() -> Result<(), Box<dyn Error>> {
    let never = Rate::from_per_second(1e-200)?;
    let rate = Rate::per_second(10);
    for policy in [
        AnyPolicy::from(TokenBucket::new(rate, 1)),
        LeakyBucket::new(rate).into(),
        SmoothBursty::new(rate).into(),
        SmoothWarmingUp::new(rate, Duration::from_secs(4)).start_warm().into(),
    ] {
        for between in [never, Rate::ZERO] {
            let policy = policy.clone();
            let state = policy.start(at(10));
            policy.debit(&state, at(10), 1000);
            let before = policy.ready_at(&state, at(10), 0, 1);
            for rate in [between, rate] {
                policy.change(&state, at(10), Change::rate(rate).keep(Keep::Count))?;
                assert!(policy.ready_at(&state, at(10), 0, 1) >= before, "{policy:?} by {between}");
            }
        }
    }
    Ok(())
}

/// Permits and nanoseconds: as slow as one in 30 years, and as fast as 2^34 a second.
fn some_quotient() -> impl Strategy<Value = (u64, u64)> {
    prop_oneof![
        (1u64..4, 1u64..1_000_000_000).prop_map(|(permits, secs)| (permits, secs * SECOND)),
        (1u64..1 << 34, Just(SECOND)),
    ]
}

proptest! {
    /// A bucket with a negative balance changes from rate to rate. Its balance stays negative for
    /// at least as long as the owed permits take.
    #[test]
    fn no_change_of_the_rate_forgives_a_debt(
        rates in proptest::collection::vec(some_quotient(), 2..7), n in prop_oneof![1u32..1000, 1u32..],
    ) {
        let rate = |(permits, nanos)| Rate::new(permits, Duration::from_nanos(nanos));
        let policy = LeakyBucket::new(rate(rates[0])?);
        let state = policy.start(at(10));
        policy.debit(&state, at(10), n);
        for (permits, nanos) in rates {
            policy.set_rate(&state, at(10), rate((permits, nanos))?);
            let due = policy.ready_at(&state, at(10), 0, 1);
            if due < Nanos::MAX {
                // One permit was available, and the request asks for one more. The bucket holds a
                // little more than one permit, to make up for rounding.
                let span = u128::from(due.as_u64() - at(10).as_u64());
                prop_assert!(span * u128::from(permits) >= u128::from(n - 1) * u128::from(nanos), "{span} ns at {permits} in {nanos} ns");
            }
        }
    }
}
