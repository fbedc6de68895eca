//! Threads take from one sliding log while others give permits back. The tests judge which permits
//! were granted, never how long that took.

use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use tidegate::policy::Change;
use tidegate::{Clock, Nanos, Policy, Rate, SlidingLog, SystemClock};

const LIMIT: u64 = 100;
const TAKERS: usize = 2;

fn per_hour(limit: u64) -> SlidingLog {
    SlidingLog::new(Rate::per_hour(limit))
}

/// Runs the takers until `giver_back` returns. Returns the sum of the takers' results.
fn beside(taker: impl Fn(&AtomicBool) -> u64 + Sync, giver_back: impl FnOnce()) -> u64 {
    let (done, start) = (AtomicBool::new(false), Barrier::new(TAKERS + 1));
    let run = || {
        start.wait();
        taker(&done)
    };
    thread::scope(|scope| {
        let takers: Vec<_> = (0..TAKERS).map(|_| scope.spawn(run)).collect();
        start.wait();
        giver_back();
        done.store(true, Ordering::Release);
        takers.into_iter().map(|taker| taker.join().expect("no panic")).sum()
    })
}

/// Bug: a reset freed the entries that were taken while it ran, and restarted whenever a request
/// was granted: 62 times the limit were granted at one time.
#[test]
fn a_reset_grants_the_limit_once_more_and_not_more() {
    const RESETS: u64 = 1000;
    for limit in [1, 7, LIMIT, 10_000] {
        let (policy, at) = (per_hour(limit), Nanos::new(1_000_000));
        let state = policy.start(at);
        let take = || policy.try_acquire(&state, at, 1).is_ok();
        let takers = |done: &AtomicBool| {
            let mut granted = 0;
            while !done.load(Ordering::Acquire) {
                granted += u64::from(take());
            }
            granted
        };
        let mut own = 0;
        let granted = beside(takers, || {
            for _ in 0..RESETS {
                // No permit is left when the reset starts.
                while take() {
                    own += 1;
                }
                policy.change(&state, at, Change::reset()).expect("a reset");
            }
        });
        while take() {
            own += 1;
        }
        assert_eq!(granted + own, (RESETS + 1) * limit, "of {limit}");
    }
}

/// Each thread keeps some grants and undoes others, each in a different order, while the time
/// stands still. Many times more permits are undone than the ring has spare entries.
#[test]
fn undone_permits_are_granted_once_more_and_not_more() {
    const ROUNDS: u64 = 20_000;
    let (policy, at) = (per_hour(LIMIT), Nanos::new(1_000_000));
    let state = policy.start(at);
    let out = AtomicU64::new(0);
    let take_and_undo = |_: &AtomicBool| {
        let mut held = Vec::new();
        for round in 0..ROUNDS {
            let n = [1, 1, 2, 7, 1, 30][(round % 6) as usize];
            if let Ok(charge) = policy.try_acquire(&state, at, n) {
                let before = out.fetch_add(n.into(), Ordering::AcqRel);
                assert!(before + u64::from(n) <= LIMIT, "{before} and {n} are out");
                held.push((charge, n));
            }
            if held.len() > 8 || round % 3 == 0 && !held.is_empty() {
                let (charge, n) = held.remove((round % 5) as usize % held.len());
                // The permit counts as out until it has certainly been given back.
                out.fetch_sub(n.into(), Ordering::AcqRel);
                policy.undo(&state, at, charge, u64::MAX);
            }
        }
        held.iter().map(|(_, n)| u64::from(*n)).sum()
    };
    let held = beside(take_and_undo, || ());
    assert_eq!(policy.status(&state, at).available, LIMIT - held, "{held} are held");
}

/// Threads take permits on the real clock while a thread settles estimates. The kept permits never
/// exceed the limit in any window.
#[test]
fn a_log_keeps_its_bound_while_permits_are_undone_and_refunded() {
    const WINDOW: u64 = 1_000_000;
    let rate = Rate::new(LIMIT, Duration::from_nanos(WINDOW)).expect("a whole rate");
    let (policy, clock) = (SlidingLog::new(rate), SystemClock::new());
    let state = policy.start(clock.now());
    let kept = std::sync::Mutex::new(Vec::new());
    let take = |done: &AtomicBool| {
        let mut grants = Vec::new();
        while !done.load(Ordering::Acquire) {
            let before = clock.now();
            if policy.try_acquire(&state, before, 3).is_ok() {
                grants.push((before.as_u64(), clock.now().as_u64()));
            }
        }
        let count = grants.len() as u64;
        kept.lock().expect("no panic").extend(grants);
        count
    };
    let granted = beside(take, || {
        for round in 0..50_000u32 {
            let now = clock.now();
            let Ok(charge) = policy.try_acquire(&state, now, 1 + round % 40) else { continue };
            policy.undo(&state, clock.now(), charge, u64::MAX);
        }
    });
    assert!(granted > 0);
    let mut kept = kept.into_inner().expect("no panic");
    kept.sort_unstable();
    // Each grant was made between the two clock readings around it.
    for (index, (from, _)) in kept.iter().enumerate() {
        let inside = kept[index..].iter().take_while(|(before, _)| *before < from + WINDOW);
        let permits = 3 * inside.filter(|(_, after)| *after < from + WINDOW).count() as u64;
        assert!(permits <= LIMIT, "{permits} permits in a window");
    }
}

/// Bug: each settlement moved all newer times, one permit at a time. These settlements would take
/// many minutes.
#[test]
fn settling_costs_what_it_gives_back_whatever_came_since() {
    const PERMITS: u64 = 200_000;
    let (policy, at) = (SlidingLog::new(Rate::per_minute(PERMITS)), |nanos| Nanos::new(1_000_000 + nanos));
    let state = policy.start(at(0));
    let mut charges = Vec::new();
    for nanos in 0..PERMITS / 10 {
        charges.push(policy.try_acquire(&state, at(nanos), 10).expect("a tenth of a tenth"));
    }
    let mut turn = 1;
    while !charges.is_empty() {
        // Grants from all over the log.
        turn = (turn * 48271) % 0x7fff_ffff;
        let charge = charges.swap_remove(turn % charges.len());
        let unused = policy.unspent(charge, 10, 3).expect("seven of them");
        policy.undo(&state, at(PERMITS), unused, u64::MAX);
    }
    assert_eq!(policy.status(&state, at(PERMITS)).available, PERMITS / 10 * 7);
}
