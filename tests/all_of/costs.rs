//! What a change at a member costs while many requests wait for a composite.

use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::support::asked::Asked;
use crate::support::{estimate, waiting_for_all};
use tidegate::{AllOf, ManualClock, Rate, RateLimiter, SmoothBursty};

const MANY: usize = 10_000;

#[test]
fn a_change_of_times_at_a_member_passes_a_part_of_the_line() {
    // A debit, or any other change of times at a member, passed the whole line of a composite under
    // its lock. For each waiter it asked each member when its permits are due.
    let clock = ManualClock::new();
    let limiter = || {
        let policy = Asked::new(SmoothBursty::new(Rate::per_second(1)));
        RateLimiter::with_clock(policy, clock.clone())
    };
    let (a, b) = (limiter(), limiter());
    let both = AllOf::new("a", &a).with("b", &b);
    let place = estimate(&a, 1).expect("there");
    let waits: Vec<_> = (0..MANY).map(|_| waiting_for_all(both.acquire())).collect();
    let changes: [(&str, Box<dyn FnOnce()>); 6] = [
        ("a debit", Box::new(|| a.debit(3))),
        ("a settle above the estimate", Box::new(|| place.settle(5))),
        ("a pause", Box::new(|| b.pause_for(Duration::from_secs(9)))),
        ("the end of a pause", Box::new(|| assert!(b.resume()))),
        ("a kept share", Box::new(|| b.keep_for_priority(1, 1))),
        ("a pause of the composite", Box::new(|| both.pause_for(Duration::from_secs(9)))),
    ];
    for (name, change) in changes {
        let count = || {
            let counts = [&a, &b].map(|member| {
                let Asked { times, weighed, .. } = member.policy();
                (times.load(Ordering::Relaxed), weighed.load(Ordering::Relaxed))
            });
            (counts[0].0 + counts[1].0, counts[0].1 + counts[1].1)
        };
        let (times, weighed) = count();
        change();
        let (times, weighed) = (count().0 - times, count().1 - weighed);
        assert!(times < 100, "{name} asks {times} times when permits are due");
        assert!(weighed < MANY, "{name} weighs {weighed} requests");
    }
    assert_eq!(both.status().waiting, waits.len());
}
