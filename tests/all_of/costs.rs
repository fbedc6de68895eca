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
    let mut place = Some(estimate(&a, 1).expect("there"));
    let waits: Vec<_> = (0..MANY).map(|_| waiting_for_all(both.acquire())).collect();
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
    check("a settle above the estimate", &mut || place.take().into_iter().for_each(|place| place.settle(5)));
    check("a pause", &mut || b.pause_for(Duration::from_secs(9)));
    check("the end of a pause", &mut || assert!(b.resume()));
    check("a kept share", &mut || b.keep_for_priority(1, 1));
    check("a pause of the composite", &mut || both.pause_for(Duration::from_secs(9)));
    assert_eq!(both.status().waiting, waits.len());
}
