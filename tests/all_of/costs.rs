//! The cost of a change at a member while many requests wait for a composite.

use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::support::asked::Asked;
use crate::support::counted::Counted;
use crate::support::{estimate, spawn_pending};
use tidegate::{AllOf, AllRequest, ManualClock, Rate, RateLimiter, SmoothBursty, TokenBucket};
use tokio_test::task::spawn;
use tokio_test::{assert_pending, assert_ready};

const MANY: usize = 10_000;

#[test]
fn a_change_of_times_at_a_member_passes_a_part_of_the_line() {
    // Bug: a debit, or any other change of times at a member, visited the whole queue of a
    // composite under its lock. For each waiter it asked each member when its permits are due.
    let clock = ManualClock::new();
    let limiter = || {
        let policy = Asked::new(SmoothBursty::new(Rate::per_second(1)));
        RateLimiter::with_clock(policy, clock.clone())
    };
    let (a, b) = (limiter(), limiter());
    let both = AllOf::new("a", &a).with("b", &b);
    let mut reservation = Some(estimate(&a, 1).expect("available"));
    let waits: Vec<_> = (0..MANY).map(|_| spawn_pending(both.acquire())).collect();
    let count = || {
        let counts = [&a, &b].map(|member| {
            let Asked { times, weighed, .. } = member.policy();
            (times.load(Ordering::Relaxed), weighed.load(Ordering::Relaxed))
        });
        (counts[0].0 + counts[1].0, counts[0].1 + counts[1].1)
    };
    let check = |name: &str, change: &mut dyn FnMut()| {
        let (times, weighed) = count();
        change();
        let (times, weighed) = (count().0 - times, count().1 - weighed);
        assert!(times < 100, "{name} asks {times} times when permits are due");
        assert!(weighed < MANY, "{name} weighs {weighed} requests");
    };
    check("a debit", &mut || a.debit(3));
    check("a settle above the estimate", &mut || {
        reservation.take().into_iter().for_each(|reservation| reservation.settle(5))
    });
    check("a pause", &mut || b.pause_for(Duration::from_secs(9)));
    check("the end of a pause", &mut || assert!(b.resume()));
    check("a kept share", &mut || b.keep_for_priority(1, 1));
    check("a pause of the composite", &mut || both.pause_for(Duration::from_secs(9)));
    assert_eq!(both.status().waiting, waits.len());
}

#[test]
fn a_change_of_a_member_visits_a_bounded_number_of_waiters() {
    // Bug: it visited the first 4,096 waiters of each of 64 composites, and read the clock for
    // each.
    assert_few_visits(64, 500);
    // Bug: it computed 4,096 times under one lock, which took 5 ms.
    assert_few_visits(1, 3000);
}

/// Changes a member while `composites` composites have `waiters` waiters each.
fn assert_few_visits(composites: usize, waiters: usize) {
    let clock = Counted::default();
    let bucket = || RateLimiter::with_clock(TokenBucket::new(Rate::per_second(100), 1), clock.clone());
    let (shared, second) = (bucket(), Duration::from_secs(1));
    assert!(shared.try_acquire().is_ok());
    let composites = (0..composites).map(|_| AllOf::new("own", &bucket()).with("shared", &shared));
    let composites: Vec<_> = composites.collect();
    let mut lines: Vec<Vec<_>> = Vec::new();
    for all in &composites {
        let request = |n: usize| match n % 2 {
            0 => AllRequest::new(),
            _ => AllRequest::new().within(10_000 * second),
        };
        let mut line: Vec<_> = (0..waiters).map(|n| spawn(all.acquire_many(request(n)))).collect();
        line.iter_mut().for_each(|wait| assert_pending!(wait.poll()));
        lines.push(line);
    }
    let count = |change: &mut dyn FnMut()| {
        let before = clock.readings.load(Ordering::Relaxed);
        change();
        clock.readings.load(Ordering::Relaxed) - before
    };
    // At most a hundred readings for the queue of each composite, and two for each visit.
    let most = composites.len() * 100 + 4_096 * 2;
    let paused = count(&mut || shared.pause_for(500 * second));
    assert!(paused < most, "a pause reads the clock {paused} times");
    let owed = count(&mut || shared.debit(1));
    assert!(owed < most, "a debit reads the clock {owed} times");
    // The first waiters of each composite are refused at once where a change makes them too late.
    shared.pause_for(20_000 * second);
    for (line, all) in lines.iter_mut().zip(&composites) {
        assert_pending!(line[0].poll());
        assert!(assert_ready!(line[1].poll()).is_err());
        assert!(all.status().waiting < waiters);
    }
}
