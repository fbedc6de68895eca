//! Threads take from one limiter on the real clock. The tests judge which permits were granted,
//! never how long that took.
//!
//! A thread reads the clock before and after each attempt, so each grant was made at some time
//! between the two readings. A test fails only if a bound is broken for every choice of these
//! times.

use std::sync::Barrier;
use std::thread;
use std::time::Duration;

use tidegate::policy::{Change, Keep};
use tidegate::{
    Clock, FixedWindow, LeakyBucket, Nanos, Policy, Rate, RateLimiter, SlidingEstimate, SlidingLog,
    SlidingWindow, SystemClock, TokenBucket,
};

const THREADS: usize = 4;
const ATTEMPTS: usize = 20_000;

const PER_SECOND: Rate = Rate::per_second(20_000);
/// In nanoseconds.
const WINDOW: u64 = 1_000_000;
const LIMIT: u64 = 20;

fn per_ms() -> Rate {
    Rate::new(LIMIT, Duration::from_nanos(WINDOW)).expect("a whole rate")
}

/// A grant of `n` permits, between two readings of the clock.
#[derive(Clone, Copy)]
struct Grant {
    before: u64,
    after: u64,
    n: u64,
}

/// Makes attempts from several threads at once, for one permit and for three. Returns the grants.
fn hammer<P: Policy>(policy: P) -> Vec<Grant> {
    let clock = SystemClock::new();
    let limiter = RateLimiter::with_clock(policy, clock.clone());
    let start = Barrier::new(THREADS);
    let attempts = || {
        start.wait();
        let attempt = |attempt: usize| {
            let n = if attempt.is_multiple_of(3) { 3 } else { 1 };
            let before = clock.now().as_u64();
            let granted = limiter.try_acquire_many(n).is_ok();
            granted.then(|| Grant { before, after: clock.now().as_u64(), n: n.into() })
        };
        (0..ATTEMPTS).filter_map(attempt).collect::<Vec<_>>()
    };
    let grants: Vec<_> = thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(attempts)).collect();
        threads.into_iter().filter_map(|thread| thread.join().ok()).flatten().collect()
    });
    assert!(!grants.is_empty());
    grants
}

/// Returns the most permits that were certainly granted within `span`: those of grants with both
/// readings in it.
fn most_in(grants: &[Grant], span: u64) -> u64 {
    let sum = |from: u64| {
        let inside = grants.iter().filter(|grant| grant.before >= from && grant.after < from + span);
        inside.map(|grant| grant.n).sum()
    };
    grants.iter().map(|grant| sum(grant.before)).max().unwrap_or(0)
}

/// Asserts that between any two readings at most the burst and the permits accrued meanwhile were
/// granted.
fn assert_bucket(mut grants: Vec<Grant>, burst: u64, permits: u64) {
    grants.sort_by_key(|grant| grant.after);
    for first in &grants {
        let mut sum = 0;
        for last in grants.iter().filter(|grant| grant.before >= first.before) {
            sum += last.n;
            let came_in = u128::from(last.after - first.before) * u128::from(permits) / 1_000_000_000;
            assert!(
                u128::from(sum) <= u128::from(burst) + came_in,
                "{sum} in {} ns",
                last.after - first.before
            );
        }
    }
}

#[test]
fn a_token_bucket_keeps_its_bound_among_threads() {
    assert_bucket(hammer(TokenBucket::new(PER_SECOND, 30)), 30, 20_000);
}

/// The largest request is for three permits, so three can pass at once.
#[test]
fn a_leaky_bucket_keeps_its_bound_among_threads() {
    assert_bucket(hammer(LeakyBucket::new(PER_SECOND)), 3, 20_000);
    assert_bucket(hammer(LeakyBucket::new(PER_SECOND).nodelay(9)), 10, 20_000);
}

#[test]
fn a_stepped_bucket_keeps_its_bound_among_threads() -> Result<(), Box<dyn std::error::Error>> {
    let grants = hammer(TokenBucket::new(per_ms(), 30).interval_refill()?);
    for windows in [1, 2, 5] {
        // A stretch touches one step more than it has periods.
        assert!(most_in(&grants, windows * WINDOW) <= 30 + LIMIT * (windows + 1));
    }
    Ok(())
}

#[test]
fn a_log_keeps_its_bound_among_threads() {
    assert!(most_in(&hammer(SlidingLog::new(per_ms())), WINDOW) <= LIMIT);
}

#[test]
fn a_sliding_window_keeps_its_bound_among_threads() {
    let grants = hammer(SlidingWindow::new(per_ms(), 5));
    assert!(most_in(&grants, WINDOW / 5 * 4) <= LIMIT);
    assert!(most_in(&grants, WINDOW) <= 2 * LIMIT);
}

/// Bug: two of three takers forgot the counted permits. They continued by the old cut, while the
/// change had moved the permits to where the new cut expects them: two limits were granted at once.
#[test]
fn a_sliding_window_that_changes_keeps_its_limit_among_threads() {
    const LIMIT: u32 = 100;
    let rate = |seconds| Rate::new(LIMIT.into(), Duration::from_secs(seconds)).expect("a whole rate");
    let policy = SlidingWindow::new(rate(2), 5);
    for round in 0..300 {
        let at = Nanos::from_duration(Duration::from_secs(10 + round % 40));
        let (state, start) = (policy.start(at), Barrier::new(THREADS));
        let take = || {
            start.wait();
            (0..LIMIT).filter(|_| policy.try_acquire(&state, at, 1).is_ok()).count()
        };
        let granted: usize = thread::scope(|scope| {
            let threads: Vec<_> = (1..THREADS).map(|_| scope.spawn(take)).collect();
            start.wait();
            for change in 0..20 {
                policy.set_rate(&state, at, rate(if change % 2 == 0 { 20 } else { 2 }));
            }
            threads.into_iter().filter_map(|thread| thread.join().ok()).sum()
        });
        let left = (0..LIMIT).filter(|_| policy.try_acquire(&state, at, 1).is_ok()).count();
        assert_eq!(granted + left, LIMIT as usize, "round {round}");
    }
}

/// Bug: takers continued by the terms before the change, while a bucket that becomes slower had
/// been converted already. Each taker had permits that others had spent.
#[test]
fn a_bucket_that_changes_keeps_its_burst_among_threads() {
    const BURST: u32 = 1000;
    // Much slower and much faster, and never twice at the same rate: a CAS cannot distinguish a
    // state from an equal state under other terms.
    let rate = |change: u64| {
        let nanos = [1_000_003, 9_999_991, 31][usize::try_from(change % 3).expect("small")] + 64 * change;
        Rate::new(1, Duration::from_nanos(nanos)).expect("a rate")
    };
    for round in 0..300 {
        let at = Nanos::from_duration(Duration::from_secs(100_000 + round));
        let policy = TokenBucket::new(rate(0), BURST);
        let (state, start) = (policy.start(at), Barrier::new(THREADS));
        let take = || {
            start.wait();
            (0..BURST).filter(|_| policy.try_acquire(&state, at, 1).is_ok()).count()
        };
        let granted: usize = thread::scope(|scope| {
            let threads: Vec<_> = (1..THREADS).map(|_| scope.spawn(take)).collect();
            start.wait();
            for change in 1..60 {
                policy.set_rate(&state, at, rate(change));
            }
            threads.into_iter().filter_map(|thread| thread.join().ok()).sum()
        });
        let left = (0..BURST).filter(|_| policy.try_acquire(&state, at, 1).is_ok()).count();
        assert_eq!(granted + left, BURST as usize, "round {round}");
    }
}

/// Takers run concurrently with changes to a window whose permits are all used. Limits and lengths
/// change and change back, and by ratio everything remains used. Bug: takers read the old count
/// with the new limit, or a new count with the old limit.
fn stays_used_up_among_threads<P: Policy>(policy: impl Fn(Rate) -> P) {
    let rate = |(limit, seconds)| Rate::new(limit, Duration::from_secs(seconds)).expect("a whole rate");
    let steps = [(100, 1000), (300, 1000), (7, 1000), (300, 9000), (100, 500), (5000, 70), (100, 1000)];
    for round in 0..60 {
        let at = Nanos::from_duration(Duration::from_secs(100_000 + 13 * round));
        let policy = policy(rate(steps[0]));
        let (state, start) = (policy.start(at), Barrier::new(THREADS));
        policy.try_acquire(&state, at, 100).expect("all of it");
        let take = || {
            start.wait();
            (0..3000).filter(|_| policy.try_acquire(&state, at, 1).is_ok()).count()
        };
        let leaked: usize = thread::scope(|scope| {
            let threads: Vec<_> = (1..THREADS).map(|_| scope.spawn(take)).collect();
            start.wait();
            for step in steps.into_iter().cycle().take(100) {
                policy.change(&state, at, Change::rate(rate(step)).keep(Keep::Ratio)).expect("a rate fits");
                thread::yield_now();
            }
            threads.into_iter().filter_map(|thread| thread.join().ok()).sum()
        });
        let left = (0..100).filter(|_| policy.try_acquire(&state, at, 1).is_ok()).count();
        assert_eq!((leaked, left), (0, 0), "round {round}");
    }
}

#[test]
fn a_fixed_window_that_changes_stays_used_up_among_threads() {
    stays_used_up_among_threads(FixedWindow::new);
    stays_used_up_among_threads(|rate| FixedWindow::new(rate).from_first_grant());
}

#[test]
fn an_estimate_that_changes_stays_used_up_among_threads() {
    stays_used_up_among_threads(SlidingEstimate::new);
}

#[test]
fn a_sliding_window_that_changes_stays_used_up_among_threads() {
    stays_used_up_among_threads(|rate| SlidingWindow::new(rate, 1));
    stays_used_up_among_threads(|rate| SlidingWindow::new(rate, 7));
}

/// The limit and the length change and change back, and used permits remain used: altogether no
/// more than the largest limit is granted. A reset gives back everything: each adds at most the
/// largest limit once more.
fn counts_on_among_threads<P: Policy>(policy: impl Fn(Rate) -> P) {
    let rate = |(limit, seconds)| Rate::new(limit, Duration::from_secs(seconds)).expect("a whole rate");
    let steps = [(100, 1000), (90, 1000), (100, 9000), (10, 50), (100, 1000)];
    for (round, keep) in (0..30).flat_map(|round| [(round, Keep::Count), (round, Keep::Nothing)]) {
        let at = Nanos::from_duration(Duration::from_secs(100_000 + 13 * round));
        let policy = policy(rate(steps[0]));
        let (state, start) = (policy.start(at), Barrier::new(THREADS));
        let take = || {
            start.wait();
            (0..3000).filter(|_| policy.try_acquire(&state, at, 1).is_ok()).count()
        };
        let mut resets = 0;
        let granted: usize = thread::scope(|scope| {
            let threads: Vec<_> = (1..THREADS).map(|_| scope.spawn(take)).collect();
            start.wait();
            for step in steps.into_iter().cycle().take(100) {
                policy.change(&state, at, Change::rate(rate(step)).keep(keep)).expect("a rate fits");
                resets += usize::from(keep == Keep::Nothing);
                thread::yield_now();
            }
            threads.into_iter().filter_map(|thread| thread.join().ok()).sum()
        });
        assert!(granted <= 100 * (1 + resets), "round {round}: {granted} with {resets} resets");
    }
}

#[test]
fn windows_that_change_grant_no_more_than_their_largest_limit_among_threads() {
    counts_on_among_threads(FixedWindow::new);
    counts_on_among_threads(|rate| FixedWindow::new(rate).from_first_grant());
    counts_on_among_threads(SlidingEstimate::new);
    counts_on_among_threads(|rate| SlidingWindow::new(rate, 7));
}

/// Asserts that no aligned window has more than the limit, as far as the readings show which window
/// a grant was in.
fn assert_aligned(grants: &[Grant]) {
    for window in grants.iter().map(|grant| grant.before / WINDOW) {
        let inside = |grant: &&Grant| grant.before / WINDOW == window && grant.after / WINDOW == window;
        let sum: u64 = grants.iter().filter(inside).map(|grant| grant.n).sum();
        assert!(sum <= LIMIT, "{sum} in window {window}");
    }
}

#[test]
fn a_fixed_window_keeps_its_bound_among_threads() {
    assert_aligned(&hammer(FixedWindow::new(per_ms())));
    assert!(most_in(&hammer(FixedWindow::new(per_ms()).from_first_grant()), WINDOW) <= 2 * LIMIT);
}

#[test]
fn an_estimate_keeps_its_bound_among_threads() {
    let grants = hammer(SlidingEstimate::new(per_ms()));
    assert_aligned(&grants);
    assert!(most_in(&grants, WINDOW) < 2 * LIMIT);
}
