//! Failures found by random search, each reduced to the smallest case.

use std::cell::Cell;
use std::error::Error;
use std::time::Duration;

use tidegate::policy::{AnyPolicy, Change, Crowd, Keep};
use tidegate::{
    FixedWindow, LeakyBucket, ManualClock, Nanos, Policy, Rate, RateLimiter, Refusal, SlidingEstimate,
    SlidingLog, SlidingWindow, SmoothBursty, SmoothWarmingUp, TokenBucket,
};

fn ms(ms: u64) -> Nanos {
    Nanos::from_duration(Duration::from_millis(ms))
}

fn secs(seconds: u64) -> Nanos {
    ms(seconds * 1000)
}

/// Returns when the last of `n` requests is served, each for one permit, if all arrive at `at` and
/// wait in the queue.
fn served_one_by_one<P: Policy>(policy: &P, state: &P::State, at: Nanos, n: u32) -> Result<Nanos, Refusal> {
    let mut now = at;
    for _ in 0..n {
        now = policy.ready_at(state, now, 0, 1).max(now);
        policy.try_acquire(state, now, 1)?;
    }
    Ok(now)
}

// Steps of a token bucket

/// Bug: the cost of a permit was rounded up each time, so after some steps the last permit was
/// missing, and the remainder overflowed.
#[test]
fn every_step_brings_all_its_permits() -> Result<(), Box<dyn Error>> {
    for permits in [3, 7, 48] {
        let policy =
            TokenBucket::new(Rate::per_second(permits), u32::try_from(permits)?).interval_refill()?;
        let state = policy.start(Nanos::ZERO);
        for step in 0..100 {
            let granted = (0..permits).filter(|_| policy.try_acquire(&state, secs(step), 1).is_ok()).count();
            assert_eq!(granted as u64, permits, "step {step}");
        }
    }
    Ok(())
}

/// A hundred permits are added, and five fit. Bug: the sum of the requests ahead was converted to a
/// time in which the bucket does not overflow.
#[test]
fn a_step_larger_than_the_bucket_does_not_serve_all_waiters() -> Result<(), Box<dyn Error>> {
    let policy = TokenBucket::new(Rate::per_minute(100), 5).interval_refill()?.start_empty();
    let state = policy.start(Nanos::ZERO);
    let told = policy.ready_at(&state, Nanos::ZERO, policy.weight(1) * 11, 1);
    assert_eq!(served_one_by_one(&policy, &state, Nanos::ZERO, 12)?, secs(180));
    assert_eq!(told, secs(180));
    Ok(())
}

/// Bug: the first step was kept, modulo the old period.
#[test]
fn steps_stay_with_the_wall_clock_when_the_period_changes() -> Result<(), Box<dyn Error>> {
    // The clock started 40 s after a full minute, and 10 minutes and 40 s after a full hour.
    let policy = TokenBucket::new(Rate::per_minute(5), 5).at_wall_clock(Duration::ZERO)?;
    let policy = policy.with_epoch(Duration::from_secs(1_000 * 3600 + 640)).start_empty();
    let state = policy.start(Nanos::ZERO);
    assert_eq!(policy.ready_at(&state, Nanos::ZERO, 0, 5), secs(20));
    policy.set_rate(&state, Nanos::ZERO, Rate::per_hour(5));
    assert_eq!(policy.ready_at(&state, Nanos::ZERO, 0, 5), secs(3600 - 640));
    Ok(())
}

// Rounding of a bucket

/// Bug: the rounding of the cost of the burst, and the ticks beyond it, together made a whole
/// permit.
#[test]
fn a_bucket_holds_its_burst_and_no_permit_more() -> Result<(), Box<dyn Error>> {
    let policy = TokenBucket::new(Rate::new(1950, Duration::from_micros(4))?, 38);
    let state = policy.start(secs(1));
    assert_eq!(policy.status(&state, secs(1)).limit, 38);
    let refused = policy.try_acquire(&state, secs(1), 39).err();
    assert_eq!(refused, Some(Refusal::ExceedsLimit { requested: 39, limit: 38 }));
    Ok(())
}

/// Bug: each permit lost part of a tick, which adds up where the bucket is not full.
#[test]
fn what_the_status_reports_is_granted_one_by_one() -> Result<(), Box<dyn Error>> {
    let policy = TokenBucket::new(Rate::per_second(3), 100).start_empty();
    let state = policy.start(Nanos::ZERO);
    let available = policy.status(&state, secs(10)).available;
    for taken in 0..available {
        assert!(policy.try_acquire(&state, secs(10), 1).is_ok(), "{taken} of {available}");
    }
    Ok(())
}

/// Bug: a bucket that starts with part of its burst was short of the rounding of single permits:
/// with eleven permits at 3 per second, ten were granted one by one.
#[test]
fn a_bucket_starts_with_as_many_permits_as_were_set() -> Result<(), Box<dyn Error>> {
    let rates = [(3, 1), (7, 1), (3, 7), (60_617, 3600), (999_983, 1), (300_000_000, 1), (10, 1)];
    for (permits, seconds) in rates {
        for burst in [1, 2, 12, 60] {
            for start in (0..=burst).filter(|start| *start <= 12) {
                let policy = TokenBucket::new(Rate::new(permits, Duration::from_secs(seconds))?, burst);
                let policy = policy.start_with(start)?;
                let state = policy.start(secs(10));
                let case = format!("{permits} in {seconds} s, burst {burst}, start with {start}");
                assert_eq!(policy.status(&state, secs(10)).available, u64::from(start), "{case}");
                let granted = (0..=burst).find(|_| policy.try_acquire(&state, secs(10), 1).is_err());
                assert_eq!(granted, Some(start), "{case}");
            }
        }
    }
    Ok(())
}

/// Bug: five permits, converted and rounded down, were a tick less than five.
#[test]
fn five_permits_in_stock_stay_five() -> Result<(), Box<dyn Error>> {
    let policy = TokenBucket::new(Rate::per_second(1), 10).start_with(5)?;
    let state = policy.start(secs(100));
    policy.set_rate(&state, secs(100), Rate::per_second(3));
    assert_eq!(policy.status(&state, secs(100)).available, 5);
    // At rate zero the missing part of a tick would never accrue.
    policy.set_rate(&state, secs(100), Rate::ZERO);
    assert_eq!(policy.status(&state, secs(100)).available, 5);
    Ok(())
}

// No limit

/// One thread's clock reading is older than that of another thread that was granted before it.
#[test]
fn without_a_limit_no_request_is_refused() -> Result<(), Box<dyn Error>> {
    let policy = TokenBucket::new(Rate::UNLIMITED, 1);
    let state = policy.start(Nanos::ZERO);
    policy.try_acquire(&state, Nanos::new(1000), 1)?;
    policy.try_acquire(&state, Nanos::new(999), 1)?;
    Ok(())
}

/// Bug: at the time of the last free grant the bucket was empty.
#[test]
fn leaving_no_limit_the_bucket_is_full() -> Result<(), Box<dyn Error>> {
    let policy = TokenBucket::new(Rate::UNLIMITED, 10);
    let state = policy.start(Nanos::ZERO);
    policy.try_acquire(&state, secs(1), 1)?;
    policy.set_rate(&state, secs(1), Rate::per_second(1));
    assert_eq!(policy.status(&state, secs(1)).available, 10);
    Ok(())
}

// Changes of a bucket

/// Bug: a negative balance was converted by the ratio of the buckets' sizes, like stored permits.
/// The case needs a clock that goes back.
#[test]
fn a_debt_keeps_its_time() -> Result<(), Box<dyn Error>> {
    let policy = TokenBucket::new(Rate::per_second(1), 1);
    let state = policy.start(secs(100));
    policy.try_acquire(&state, secs(100), 1)?;
    policy.change(&state, secs(99), Change::only_burst(100).keep(Keep::Ratio))?;
    // A second for the negative balance and a second for the permit.
    assert_eq!(policy.ready_at(&state, secs(99), 0, 1), secs(101));
    Ok(())
}

/// Bug: the permit of the request in progress was subtracted from a burst of zero, a panic in debug
/// builds.
#[test]
fn a_leaky_bucket_always_lets_one_pass() -> Result<(), Box<dyn Error>> {
    let policy = LeakyBucket::new(Rate::per_second(1));
    let state = policy.start(secs(100));
    policy.change(&state, secs(100), Change::only_burst(0))?;
    assert_eq!(format!("{policy:?}"), format!("{:?}", LeakyBucket::new(Rate::per_second(1))));
    let available = policy.status(&state, secs(101)).available;
    assert_eq!(available, u64::from(policy.try_acquire(&state, secs(101), 1).is_ok()));
    Ok(())
}

/// Bug: a grant of five permits, or of one after idling, was given back only up to the burst of
/// one.
#[test]
fn undoing_leaves_no_trace_for_larger_requests() -> Result<(), Box<dyn Error>> {
    for n in [1, 5] {
        let policy = LeakyBucket::new(Rate::per_second(1));
        let state = policy.start(Nanos::ZERO);
        let charge = policy.try_acquire(&state, secs(100), n)?;
        policy.undo(&state, secs(100), charge, u64::MAX);
        assert!(policy.try_acquire(&state, secs(100), 5).is_ok(), "after {n}");
    }
    Ok(())
}

// Windows

/// Bug: the requests ahead were treated as one request. But their permits count, with their weight,
/// in the next window.
#[test]
fn requests_ahead_delay_an_estimate_as_they_are_served() -> Result<(), Box<dyn Error>> {
    let policy = SlidingEstimate::new(Rate::per_minute(10));
    let state = policy.start(Nanos::ZERO);
    let told = policy.ready_at(&state, Nanos::ZERO, 10, 1);
    assert_eq!(served_one_by_one(&policy, &state, Nanos::ZERO, 11)?, secs(66));
    assert_eq!(told, secs(66));
    Ok(())
}

/// Bug: `ready_at` returned the start of the newest window reached, although requests are granted
/// before it.
#[test]
fn an_estimate_whose_clock_went_back_is_ready_when_it_grants() -> Result<(), Box<dyn Error>> {
    let policy = SlidingEstimate::new(Rate::per_second(10));
    let state = policy.start(Nanos::ZERO);
    policy.try_acquire(&state, ms(2000), 1)?;
    let ready = policy.ready_at(&state, ms(1999), 0, 1);
    assert!(policy.try_acquire(&state, ms(1999), 1).is_ok());
    assert!(ready <= ms(1999), "{ready}");
    Ok(())
}

/// Grants are noted as of the latest time, so the next lap is later than it would be as of now.
#[test]
fn a_log_whose_clock_went_back_predicts_when_the_next_lap_is() -> Result<(), Box<dyn Error>> {
    let policy = SlidingLog::new(Rate::per_second(2));
    let state = policy.start(Nanos::ZERO);
    policy.try_acquire(&state, ms(2000), 1)?;
    let told = policy.ready_at(&state, ms(1900), 2, 1);
    assert_eq!(served_one_by_one(&policy, &state, ms(1900), 3)?, told);
    Ok(())
}

#[test]
fn a_log_whose_clock_went_back_is_full_now_if_it_was_full_at_the_latest_time() -> Result<(), Refusal> {
    let policy = SlidingLog::new(Rate::per_second(2));
    let state = policy.start(Nanos::ZERO);
    policy.try_acquire(&state, secs(1), 1)?;
    let undone = policy.try_acquire(&state, secs(2), 1)?;
    policy.undo(&state, secs(2), undone, u64::MAX);
    assert_eq!(policy.status(&state, ms(1500)).full_at, ms(1500));
    Ok(())
}

#[test]
fn a_log_predicts_never_for_a_permit_that_is_due_after_its_last_time() -> Result<(), Refusal> {
    const SECOND: u64 = 1_000_000_000;
    const LAST: u64 = (1 << 62) - (1 << 60) - 1;
    let policy = SlidingLog::new(Rate::per_second(1));
    for (granted, due) in [(LAST - SECOND, LAST), (LAST - SECOND + 1, u64::MAX)] {
        let state = policy.start(Nanos::ZERO);
        policy.try_acquire(&state, Nanos::new(granted), 1)?;
        assert_eq!(policy.ready_at(&state, Nanos::new(granted), 0, 1), Nanos::new(due));
        assert_eq!(policy.try_acquire(&state, Nanos::new(due), 1).is_ok(), due < u64::MAX);
    }
    Ok(())
}

/// Bug: permits that had expired in the old window stayed where they were.
#[test]
fn a_reset_log_is_as_new_in_a_longer_window() -> Result<(), Box<dyn Error>> {
    let policy = SlidingLog::new(Rate::per_second(1));
    let state = policy.start(Nanos::ZERO);
    policy.try_acquire(&state, secs(10), 1)?;
    policy.change(&state, secs(20), Change::rate(Rate::per_hour(1)).keep(Keep::Nothing))?;
    assert!(policy.try_acquire(&state, secs(20), 1).is_ok());
    Ok(())
}

/// Undone permits are set aside when they expire, and taken back when a longer window covers their
/// time again.
#[test]
fn an_undone_permit_that_was_over_does_not_count_in_a_longer_window() -> Result<(), Box<dyn Error>> {
    let per_100_ms = Rate::new(2, Duration::from_millis(100))?;
    let policy = SlidingLog::new(per_100_ms);
    let state = policy.start(Nanos::ZERO);
    let charge = policy.try_acquire(&state, ms(10), 2)?;
    policy.undo(&state, ms(10), charge, u64::MAX);
    // The second undone grant makes the log set the first one aside.
    let charge = policy.try_acquire(&state, ms(150), 1)?;
    policy.undo(&state, ms(150), charge, u64::MAX);
    policy.change(&state, ms(200), Change::rate(Rate::per_second(2)))?;
    assert_eq!(policy.status(&state, ms(200)).available, 2);
    Ok(())
}

/// As above, but no undone permit counts when the window becomes longer.
#[test]
fn a_longer_window_reaches_undone_permits_beside_no_other() -> Result<(), Box<dyn Error>> {
    let per_100_ms = Rate::new(3, Duration::from_millis(100))?;
    let policy = SlidingLog::new(per_100_ms);
    let state = policy.start(Nanos::ZERO);
    let charge = policy.try_acquire(&state, ms(10), 2)?;
    policy.undo(&state, ms(10), charge, u64::MAX);
    // The second debit makes the log set the undone grant aside, because it has expired by the time
    // of the first debit.
    policy.debit(&state, ms(150), 1);
    policy.debit(&state, ms(150), 1);
    policy.change(&state, ms(200), Change::rate(Rate::per_second(3)))?;
    assert_eq!(policy.status(&state, ms(200)).available, 1);
    Ok(())
}

/// A grant may be the last one of a lap, and the grants after it the first ones of the next lap.
#[test]
fn a_grant_of_a_log_reports_what_it_left_at_any_index() -> Result<(), Box<dyn Error>> {
    let policy = SlidingLog::new(Rate::per_second(4));
    let state = policy.start(Nanos::ZERO);
    // A ring of four permits has fewer than a hundred entries.
    for second in 0..100 {
        let first = policy.try_acquire(&state, secs(second), 1)?;
        policy.try_acquire(&state, secs(second), 2)?;
        assert_eq!(policy.left(&state, first, secs(second)).available, 3, "{second}");
        assert_eq!(policy.status(&state, secs(second)).available, 1, "{second}");
    }
    Ok(())
}

/// An undone permit counts until it expires. Then its entry is reused, while another undone permit
/// still counts.
#[test]
fn undone_permits_stay_forgotten_when_their_entry_is_taken_anew() -> Result<(), Box<dyn Error>> {
    let policy = SlidingLog::new(Rate::per_second(200));
    let state = policy.start(Nanos::ZERO);
    // Three halves of the limit exceed the entries of the ring.
    for at in [ms(1), ms(900)] {
        let charge = policy.try_acquire(&state, at, 1)?;
        policy.try_acquire(&state, at, 99)?;
        policy.undo(&state, at, charge, u64::MAX);
        policy.try_acquire(&state, at, 1)?;
    }
    policy.try_acquire(&state, ms(1001), 100)?;
    assert_eq!(policy.status(&state, ms(1001)).available, 0);
    assert!(policy.try_acquire(&state, ms(1001), 1).is_err());
    Ok(())
}

/// A debit gives up the copy that leaves undone permits out, and the spare entries fill up.
#[test]
fn undone_permits_between_debits_are_granted_once() -> Result<(), Box<dyn Error>> {
    let policy = SlidingLog::new(Rate::per_hour(100));
    let state = policy.start(Nanos::ZERO);
    let charges: Result<Vec<_>, _> = (0..100).map(|at| policy.try_acquire(&state, ms(at), 1)).collect();
    // The newest first: a debit reuses the entries of the oldest.
    for charge in charges?.into_iter().rev() {
        policy.undo(&state, ms(100), charge, u64::MAX);
        policy.debit(&state, ms(100), 1);
        assert!(policy.try_acquire(&state, ms(100), 1).is_err());
    }
    Ok(())
}

/// Bug: an empty cell kept its start, which lies within the longer cell, and the grant was counted
/// from that start.
#[test]
fn a_longer_cell_begins_where_it_begins() -> Result<(), Box<dyn Error>> {
    let policy = SlidingWindow::new(Rate::per_second(1), 1);
    let state = policy.start(Nanos::ZERO);
    policy.try_acquire(&state, secs(119), 1)?;
    policy.refund(&state, secs(119), 1);
    policy.set_rate(&state, secs(119), Rate::per_minute(1));
    policy.try_acquire(&state, secs(119), 1)?;
    assert_eq!(policy.ready_at(&state, secs(119), 0, 1), secs(120));
    Ok(())
}

/// Bug: permits counted beyond the new limit were left out of the sum, so the first cell to drop
/// out seemed to make room.
#[test]
fn a_lower_limit_waits_for_all_that_is_counted_beyond_it() -> Result<(), Box<dyn Error>> {
    let rate = |limit| Rate::new(limit, Duration::from_secs(10));
    let policy = SlidingWindow::new(rate(9)?, 10);
    let state = policy.start(Nanos::ZERO);
    policy.try_acquire(&state, secs(0), 1)?;
    policy.try_acquire(&state, secs(5), 8)?;
    policy.set_rate(&state, secs(6), rate(1)?);
    let refused = policy.try_acquire(&state, secs(6), 1).err();
    assert_eq!(refused, Some(Refusal::Limited { retry_after: Duration::from_secs(9).into() }));
    assert_eq!(policy.ready_at(&state, secs(6), 0, 1), secs(15));
    Ok(())
}

/// Bug: a cell that does not count in the new window was put where a newer cell is, and counted
/// with it.
#[test]
fn a_cell_that_is_over_in_the_new_window_is_not_counted_with_a_newer_cell() -> Result<(), Box<dyn Error>> {
    for begin in [0, 30] {
        let policy = SlidingWindow::new(Rate::new(2, Duration::from_secs(20))?, 2);
        let state = policy.start(Nanos::ZERO);
        policy.try_acquire(&state, secs(begin + 5), 1)?;
        policy.try_acquire(&state, secs(begin + 15), 1)?;
        // Cells of 6 s: the last moment of the first cell is in the new cell that starts at 6 s,
        // which drops out at 18 s.
        policy.set_rate(&state, secs(begin + 19), Rate::new(2, Duration::from_secs(12))?);
        assert!(policy.try_acquire(&state, secs(begin + 19), 1).is_ok(), "{begin}");
    }
    Ok(())
}

/// Bug: the difference was taken modulo the window, which is not a whole number of cells.
#[test]
fn cells_begin_by_the_wall_clock_also_before_its_first_window() {
    let rate = Rate::new(1, Duration::from_nanos(71)).expect("a rate");
    // Two cells of 36 ns, one of which starts at 916 ns. So another cell starts at 88 ns, and ends
    // at 124.
    let policy =
        SlidingWindow::new(rate, 2).at_wall_clock(Duration::from_nanos(916)).with_epoch(Duration::ZERO);
    let state = policy.start(Nanos::ZERO);
    assert!(policy.try_acquire(&state, Nanos::new(123), 1).is_ok());
    assert_eq!(policy.ready_at(&state, Nanos::new(123), 0, 1), Nanos::new(88 + 72));
}

/// Holds even for a window whose length changes later.
#[test]
fn a_window_keeps_to_the_wall_clock_also_before_its_first_window() {
    let policy = FixedWindow::new(Rate::per_second(1))
        .at_wall_clock(Duration::from_secs(90))
        .with_epoch(Duration::ZERO);
    let state = policy.start(Nanos::ZERO);
    policy.set_rate(&state, Nanos::ZERO, Rate::per_minute(1));
    assert!(policy.try_acquire(&state, secs(31), 1).is_ok());
    assert_eq!(policy.ready_at(&state, secs(31), 0, 1), secs(90));
}

/// Bug: a second at rate zero was a second in which a window ended, or permits were saved.
#[test]
fn nothing_comes_in_at_the_rate_zero() -> Result<(), Box<dyn Error>> {
    for text in [
        "token_bucket 10/s burst 10",
        "leaky_bucket 10/s nodelay 9",
        "smooth_bursty 10/s start_full",
        "fixed_window 10/10s",
        "sliding_window 10/10s cells 5",
        "sliding_estimate 10/10s",
        "sliding_log 10/10s",
    ] {
        let policy: AnyPolicy = text.parse()?;
        let (rate, state) = (policy.rate(), policy.start(Nanos::ZERO));
        while policy.try_acquire(&state, Nanos::ZERO, 1).is_ok() {}
        policy.set_rate(&state, Nanos::ZERO, Rate::ZERO);
        assert_eq!(policy.status(&state, ms(2000)).available, 0, "{text}");
        assert_eq!(policy.ready_at(&state, ms(2000), 0, 1), Nanos::MAX, "{text}");
        policy.set_rate(&state, ms(2000), rate);
        assert!(
            policy.status(&state, ms(2000)).available <= 1,
            "{text}: {:?}",
            policy.status(&state, ms(2000))
        );
    }
    Ok(())
}

#[test]
fn a_crowd_of_no_requests_or_without_a_limit_delays_no_request() -> Result<(), Box<dyn Error>> {
    let texts = [
        "smooth_bursty 5/s",
        "smooth_warming_up 5/s warm_up 1s",
        "token_bucket 5/s burst 5",
        "token_bucket 5/s burst 5 interval_refill",
        "leaky_bucket 5/s",
        "fixed_window 5/s",
        "fixed_window 5/s from_first_grant",
        "sliding_window 5/s cells 4",
        "sliding_estimate 5/s",
        "sliding_log 5/s",
    ];
    for (text, requests) in texts.iter().flat_map(|text| [(text, 0), (text, 10)]) {
        let policy: AnyPolicy = text.parse()?;
        let state = policy.start(secs(10));
        if requests > 0 {
            policy.set_rate(&state, secs(10), Rate::UNLIMITED);
        }
        let mut plain = policy.forecast(&state, secs(10));
        let mut behind = plain.clone();
        let crowd = Crowd::new(requests, requests, requests * policy.weight(1), 1);
        policy.predict_many(&state, &mut behind, &crowd);
        for _ in 0..10 {
            let due = policy.predict(&state, &mut plain, 1);
            assert_eq!(policy.predict(&state, &mut behind, 1), due, "{text}, {requests} requests");
        }
    }
    Ok(())
}

/// Bug: a burst was refused that fits without a rate, because it did not fit at the rate before.
/// The permits that were there stay.
#[test]
fn a_burst_that_fits_without_a_rate_fits_after_any_rate() -> Result<(), Box<dyn Error>> {
    for (rate, burst) in [(Rate::UNLIMITED, 5000), (Rate::UNLIMITED, u32::MAX), (Rate::ZERO, 1000)] {
        for (keep, kept) in
            [(Keep::Count, 3), (Keep::Ratio, u64::from(burst / 10 * 3)), (Keep::Nothing, u64::from(burst))]
        {
            let policy = TokenBucket::new(Rate::per_day(5), 10);
            let state = policy.start(secs(10));
            policy.try_acquire(&state, secs(10), 7)?;
            policy.change(&state, secs(10), Change::rate(rate).burst(burst).keep(keep))?;
            if rate == Rate::ZERO {
                assert_eq!(policy.status(&state, secs(11)).available, kept, "{keep:?}");
            }
            assert_eq!(policy.try_acquire(&state, secs(20), 5000).is_ok(), rate == Rate::UNLIMITED);
            policy.change(&state, secs(30), Change::rate(Rate::per_second(1)).burst(10))?;
            let available = if rate == Rate::ZERO { kept.min(10) } else { 10 };
            assert_eq!(policy.status(&state, secs(30)).available, available, "{rate:?}, {keep:?}");
        }
    }
    Ok(())
}

/// Bug: permits that were to stay as many were lost by a rate of zero.
#[test]
fn stored_permits_outlast_a_rate_of_zero() -> Result<(), Box<dyn Error>> {
    let policy = SmoothBursty::new(Rate::per_second(10)).start_full();
    let state = policy.start(Nanos::ZERO);
    policy.try_acquire(&state, secs(10), 4)?;
    let to = |rate: Rate| Change::rate(rate).keep(Keep::Count);
    policy.change(&state, secs(10), to(Rate::ZERO))?;
    assert_eq!(policy.status(&state, secs(15)).available, 0);
    policy.change(&state, secs(20), to(Rate::per_second(10)))?;
    assert_eq!(policy.status(&state, secs(20)).available, 7);
    // Bug: the permits stayed a time, so another rate made other permits of them.
    policy.change(&state, secs(20), to(Rate::ZERO))?;
    policy.change(&state, secs(25), Change::rate(Rate::ZERO))?;
    policy.change(&state, secs(30), to(Rate::per_second(20)))?;
    assert_eq!(policy.status(&state, secs(30)).available, 7);
    policy.change(&state, secs(30), to(Rate::ZERO))?;
    policy.change(&state, secs(40), to(Rate::per_second(5)))?;
    // Five are stored, and one request never waits for itself.
    assert_eq!(policy.status(&state, secs(40)).available, 6);
    policy.debit(&state, secs(40), 16);
    policy.change(&state, secs(40), to(Rate::ZERO))?;
    policy.change(&state, secs(40), to(Rate::per_second(10)))?;
    // Eleven permits are owed.
    let paid = secs(41).saturating_add(Nanos::new(100_000_000));
    assert_eq!(policy.ready_at(&state, secs(40), 0, 1), paid);
    Ok(())
}

/// A change that takes longer than the limiter needs to fill: what is granted meanwhile is not
/// there once more.
#[test]
fn a_change_that_is_held_up_grants_no_stored_permits_twice() -> Result<(), Box<dyn Error>> {
    let (milli, per_second) = (|n: u64| Nanos::new(n * 1_000_000), Rate::per_second);
    let policy = SmoothBursty::new(per_second(1000)).max_burst(Duration::from_millis(10)).start_full();
    let state = policy.start(Nanos::ZERO);
    let (readings, granted) = (Cell::new(0), Cell::new(0));
    let take = || (0..100).take_while(|_| policy.try_acquire(&state, milli(10), 1).is_ok()).count();
    // The change reads the clock when it takes the stored permits away, and when it puts them back.
    let clock = || match readings.replace(readings.get() + 1) {
        0 => Nanos::ZERO,
        _ => {
            granted.set(granted.get() + take());
            milli(10)
        }
    };
    policy.change_now(&state, Nanos::ZERO, &clock, Change::rate(per_second(500)).keep(Keep::Count))?;
    // By the new rate, of what accrued meanwhile.
    assert_eq!((granted.get(), take()), (6, 0));
    Ok(())
}

/// Bug: a limiter that began, or was reset, at a rate of zero was as full as that only if its rate
/// was zero since the beginning of the clock.
#[test]
fn a_limiter_that_begins_full_at_a_rate_of_zero_is_full() -> Result<(), Box<dyn Error>> {
    let later = Nanos::new(10_000_000_000);
    let policy = SmoothBursty::new(Rate::ZERO).start_full();
    let state = policy.start(later);
    policy.change(&state, later, Change::rate(Rate::per_second(5)))?;
    assert_eq!(policy.status(&state, later).available, 6);

    for keep in [Keep::Nothing, Keep::Ratio] {
        let policy = SmoothBursty::new(Rate::per_second(5)).start_full();
        let state = policy.start(Nanos::ZERO);
        policy.change(&state, Nanos::ZERO, Change::rate(Rate::ZERO))?;
        policy.change(&state, later, Change::rate(Rate::ZERO).keep(Keep::Nothing))?;
        policy.change(&state, later, Change::rate(Rate::per_second(5)).keep(keep))?;
        assert_eq!(policy.status(&state, later).available, 6, "{keep:?}");
    }
    Ok(())
}

/// Bug: at a rate of zero after none, no limit was told, and a change of the kind gave a full
/// burst.
#[test]
fn a_rate_of_zero_after_none_has_a_limit() -> Result<(), Box<dyn Error>> {
    let limiter = RateLimiter::with_clock("smooth_bursty 5/s".parse::<AnyPolicy>()?, ManualClock::new());
    limiter.set_rate(Rate::UNLIMITED);
    limiter.set_rate(Rate::ZERO);
    assert_eq!(limiter.status().limit, 1);
    limiter.apply(&"token_bucket 1/s burst 50".parse()?, Keep::Count)?;
    assert_eq!(limiter.status().available, 0);
    Ok(())
}

/// Bug: without a rate the debt stayed a time, so another rate turned the debt into another number
/// of permits.
#[test]
fn permits_owed_at_a_cold_limiter_outlast_a_rate_of_zero() -> Result<(), Box<dyn Error>> {
    let to = |rate: Rate| Change::rate(rate).keep(Keep::Count);
    for (before, after) in [(10, 1), (1, 10)] {
        let policy = SmoothWarmingUp::new(Rate::per_second(before), Duration::from_secs(4)).start_warm();
        let state = policy.start(Nanos::ZERO);
        policy.debit(&state, Nanos::ZERO, 10);
        policy.change(&state, Nanos::ZERO, to(Rate::ZERO))?;
        policy.change(&state, Nanos::ZERO, to(Rate::per_second(after)))?;
        let direct = SmoothWarmingUp::new(Rate::per_second(before), Duration::from_secs(4)).start_warm();
        let state_of_direct = direct.start(Nanos::ZERO);
        direct.debit(&state_of_direct, Nanos::ZERO, 10);
        direct.change(&state_of_direct, Nanos::ZERO, to(Rate::per_second(after)))?;
        assert_eq!(policy.status(&state, Nanos::ZERO), direct.status(&state_of_direct, Nanos::ZERO));
    }
    // A change of the kind keeps the debt as well.
    for line in ["smooth_bursty 10/s", "smooth_warming_up 10/s warm_up 4s start_warm"] {
        let limiter = RateLimiter::with_clock(line.parse::<AnyPolicy>()?, ManualClock::new());
        limiter.debit(20);
        limiter.change(to(Rate::ZERO))?;
        limiter.apply(&"token_bucket 10/s burst 1".parse()?, Keep::Count)?;
        let told = limiter.status().next_in;
        assert!(told > Duration::from_millis(1900), "{line}: {told:?}");
    }
    Ok(())
}

/// Bug: a rate of zero, with the ratio kept, made a window forget its used permits: 20 of 10 were
/// granted in a minute.
#[test]
fn used_permits_outlast_a_rate_of_zero() -> Result<(), Box<dyn Error>> {
    let lines = [
        "fixed_window 10/min",
        "sliding_window 10/min cells 6",
        "sliding_estimate 10/min",
        "sliding_log 10/min",
    ];
    for line in lines {
        let policy: AnyPolicy = line.parse()?;
        let state = policy.start(secs(10));
        policy.try_acquire(&state, secs(10), 10)?;
        for rate in [Rate::ZERO, Rate::per_minute(10)] {
            policy.change(&state, secs(10), Change::rate(rate).keep(Keep::Ratio))?;
            assert_eq!(policy.status(&state, secs(10)).available, 0, "{line} at {rate}");
        }
    }
    Ok(())
}

/// Bug: the permits of each cell were rounded up, so sixty cells with two permits each were sixty
/// permits of twelve.
#[test]
fn a_window_of_many_cells_that_was_half_used_is_half_used() -> Result<(), Box<dyn Error>> {
    let policy = SlidingWindow::new("120/min".parse()?, 60);
    let state = policy.start(Nanos::ZERO);
    for second in 0..60 {
        policy.try_acquire(&state, secs(second), 1)?;
    }
    policy.change(&state, secs(59), Change::rate("12/min".parse()?).keep(Keep::Ratio))?;
    assert_eq!(policy.status(&state, secs(59)).available, 6);
    Ok(())
}

/// Bug: after permits had come back, or after a change, a grant was told that all permits were
/// left, although its own was not.
#[test]
fn what_a_grant_of_a_sliding_window_left_is_never_more_than_without_its_own_permits()
-> Result<(), Box<dyn Error>> {
    let policy = SlidingWindow::new("3/10s".parse()?, 2);
    let state = policy.start(Nanos::ZERO);
    let first = policy.try_acquire(&state, secs(1), 2)?;
    let second = policy.try_acquire(&state, secs(1), 1)?;
    assert_eq!(policy.left(&state, second, secs(1)).available, 0);
    policy.undo(&state, secs(1), first, u64::MAX);
    assert_eq!(policy.left(&state, second, secs(1)).available, 2);
    policy.change(&state, secs(1), Change::rate("4/10s".parse()?))?;
    assert_eq!(policy.left(&state, second, secs(1)).available, 3);
    Ok(())
}

#[test]
fn a_window_predicts_the_whole_limit_and_never_more() -> Result<(), Box<dyn Error>> {
    for text in ["fixed_window 5/s", "sliding_window 5/s cells 4", "sliding_estimate 5/s", "sliding_log 5/s"]
    {
        let policy: AnyPolicy = text.parse()?;
        let state = policy.start(secs(10));
        policy.try_acquire(&state, secs(10), 1)?;
        for n in [5, 6] {
            let due = policy.ready_at(&state, secs(10), 0, n);
            let mut forecast = policy.forecast(&state, secs(10));
            assert_eq!(policy.predict(&state, &mut forecast, n), due, "{text}, {n} permits");
            assert_eq!(due == Nanos::MAX, n > 5, "{text}, {n} permits");
        }
    }
    Ok(())
}

/// Bug: after a change to a longer window, permits that were undone counted as undone although
/// their entries in the ring had been taken again. Grants were counted from an entry too far back.
#[test]
fn undone_permits_whose_entries_were_taken_again_do_not_count_in_a_longer_window() {
    let rate = |limit, nanos| Rate::new(limit, Duration::from_nanos(nanos)).expect("a rate");
    for (undone, more) in (1..=6).flat_map(|undone| (0..=12).map(move |more| (undone, more))) {
        let log = SlidingLog::new(rate(10, 1)).with_capacity(12).expect("room");
        let state = log.start(Nanos::ZERO);
        let take = |at, n| log.try_acquire(&state, Nanos::new(at), n).expect("room");
        take(0, 4);
        log.undo(&state, Nanos::ZERO, take(0, undone), u64::MAX);
        for at in 1..=23 {
            take(at, 3);
        }
        // The ring has 78 entries.
        for at in 24..24 + more {
            take(at, 1);
        }
        let last = 23 + more;
        log.change(&state, Nanos::new(last), Change::rate(rate(1, 1000))).expect("a rate");
        let due = log.ready_at(&state, Nanos::new(last), 0, 1);
        assert_eq!(due, Nanos::new(last + 1000), "{undone} undone, {more} more");
    }
}
