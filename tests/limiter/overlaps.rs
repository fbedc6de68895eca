//! Requests that overlap with a change of the terms.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::support::counted::Counted;
use tidegate::policy::{Change, Keep, Policy};
use tidegate::{
    AnyPolicy, Clock, LeakyBucket, ManualClock, Nanos, Rate, RateLimiter, SmoothBursty, SmoothWarmingUp,
    TokenBucket,
};

type Work = Box<dyn FnOnce() + Send>;

/// Creates a clock that runs some work right after its next reading, before the caller has the
/// result.
fn interrupted(clock: ManualClock, next: Arc<Mutex<Option<Work>>>) -> Counted {
    Counted::reading(clock, move |clock, _| {
        let now = clock.now();
        let work = next.lock().expect("no panic").take();
        work.into_iter().for_each(|work| work());
        now
    })
}

/// A limiter changes its terms. Right after it has read the clock, 2 ms pass, and a request without
/// the lock takes all permits. Returns how many more are granted at once.
fn more_after<P: Policy>(policy: P, change: impl FnOnce(&RateLimiter<P, Counted>)) -> usize {
    let clock = ManualClock::starting_at(Nanos::from_duration(Duration::from_secs(8)));
    let next = Arc::new(Mutex::new(None));
    let limiter = Arc::new(RateLimiter::with_clock(policy, interrupted(clock.clone(), next.clone())));
    let takes = limiter.clone();
    *next.lock().expect("no panic") = Some(Box::new(move || {
        clock.advance(Duration::from_millis(2));
        while takes.try_acquire().is_ok() {}
    }));
    change(&limiter);
    (0..1000).take_while(|_| limiter.try_acquire().is_ok()).count()
}

/// The permits that were taken after the clock reading looked like a debt, which the higher rate
/// repaid within the 2 ms: a bucket granted its burst twice.
#[test]
fn a_raised_rate_repays_no_permits_that_were_taken_meanwhile() {
    for fast in [10_000, 1_000_000] {
        for keep in [Keep::Count, Keep::Ratio] {
            let rate = Rate::per_second(5_000);
            let change = Change::rate(Rate::per_second(fast)).keep(keep);
            assert_eq!(
                more_after(TokenBucket::new(rate, 10), |limiter| limiter.change(change).expect("a rate")),
                0,
                "{fast} {keep:?}"
            );
            assert_eq!(
                more_after(LeakyBucket::new(rate).nodelay(9), |limiter| limiter
                    .change(change)
                    .expect("a rate")),
                0,
                "{fast} {keep:?}"
            );
            assert_eq!(
                more_after(SmoothBursty::new(rate).start_full(), |limiter| limiter
                    .change(change)
                    .expect("a rate")),
                0,
                "{fast} {keep:?}"
            );
            let warming_up = SmoothWarmingUp::new(rate, Duration::from_secs(1)).start_warm();
            assert_eq!(
                more_after(warming_up, |limiter| limiter.change(change).expect("a rate")),
                0,
                "{fast} {keep:?}"
            );
            let both = TokenBucket::new(rate, 10).and(TokenBucket::new(rate, 20));
            assert_eq!(
                more_after(both, |limiter| limiter.change(change).expect("a rate")),
                0,
                "{fast} {keep:?}"
            );
        }
    }
}

#[test]
fn another_policy_repays_no_permits_that_were_taken_meanwhile() {
    let lines = [
        "token_bucket 1000000/s burst 10",
        "leaky_bucket 1000000/s nodelay 9",
        "smooth_bursty 1000000/s max_burst 10us",
        "fixed_window 10/min",
        "sliding_log 10/min",
    ];
    for from in lines {
        for to in lines.into_iter().filter(|to| *to != from) {
            for keep in [Keep::Count, Keep::Ratio] {
                let policy: AnyPolicy = from.replace("1000000/s", "5000/s").parse().expect("a policy");
                let config = to.parse().expect("a configuration");
                let more = more_after(policy, |limiter| limiter.apply(&config, keep).expect("fits"));
                assert!(more <= usize::from(to.starts_with("smooth")), "{from} to {to}, {keep:?}: {more}");
            }
        }
    }
}
