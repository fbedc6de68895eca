//! Keys with two policies each.

use std::sync::Barrier;
use std::time::Duration;

use tidegate::policy::{Both, Change, Keep};
use tidegate::{FixedWindow, KeyedRateLimiter, ManualClock, Policy, Rate, Refusal, SlidingLog, TokenBucket};

const SECOND: Duration = Duration::from_secs(1);

#[test]
fn each_key_has_ten_per_second_and_a_hundred_per_minute() -> Result<(), Box<dyn std::error::Error>> {
    let policy = TokenBucket::new(Rate::per_second(10), 10).and(FixedWindow::new(Rate::per_minute(100)));
    let clock = ManualClock::new();
    let users: KeyedRateLimiter<u32, Both<TokenBucket, FixedWindow>, _> =
        KeyedRateLimiter::with_clock(policy, 1000, clock.clone());
    for _ in 0..9 {
        users.try_acquire_many(&1, 10)?;
        assert_eq!(users.try_acquire(&1).err().and_then(Refusal::retry_after), Some(SECOND / 10));
        clock.advance(SECOND);
    }
    users.try_acquire_many(&1, 10)?;
    clock.advance(SECOND);
    assert_eq!(users.try_acquire(&1).err().and_then(Refusal::retry_after), Some(50 * SECOND));
    users.try_acquire(&2)?;
    // Of one key, and of all keys.
    let one = users.limiter(&1)?;
    one.change(Change::rate(Rate::per_minute(105)).part(1))?;
    users.try_acquire_many(&1, 5)?;
    drop(one);
    users.change_all(Change::rate(Rate::per_minute(2)).part(1))?;
    users.try_acquire(&2)?;
    assert_eq!(users.try_acquire_many(&2, 3), Err(Refusal::ExceedsLimit { requested: 3, limit: 2 }));
    assert_eq!(users.try_acquire(&2).err().and_then(Refusal::retry_after), Some(50 * SECOND));
    // A key is idle (as new) when both policies are.
    assert_eq!(users.len(), 2);
    clock.advance(50 * SECOND);
    users.try_acquire(&3)?;
    users.sweep();
    assert!(users.len() < 3, "keys are forgotten");
    Ok(())
}

/// Threads take from one key at one time. Afterwards each of the two policies lacks what was
/// granted, and no more.
#[test]
fn refused_requests_of_a_key_leave_no_trace_among_threads() {
    for _ in 0..20 {
        let policy = TokenBucket::new(Rate::per_hour(1), 1000).and(TokenBucket::new(Rate::per_hour(1), 400));
        let policy = policy.and(SlidingLog::new(Rate::per_hour(2000)));
        let users = KeyedRateLimiter::with_clock(policy, 10, ManualClock::new());
        users.try_acquire(&"key").expect("new");
        let start = Barrier::new(4);
        let granted: u32 = std::thread::scope(|scope| {
            let threads: Vec<_> = (1..5u32)
                .map(|n| {
                    let (users, start) = (&users, &start);
                    scope.spawn(move || {
                        start.wait();
                        (0..300).filter(|_| users.try_acquire_many(&"key", n).is_ok()).map(|_| n).sum::<u32>()
                    })
                })
                .collect();
            threads.into_iter().map(|thread| thread.join().expect("no panic")).sum()
        });
        assert_eq!(u64::from(granted) + 1 + users.status(&"key").available, 400);
        let limiter = users.limiter(&"key").expect("known");
        limiter.change(Change::only_burst(1000).keep(Keep::Nothing).part(1)).expect("a burst");
        assert_eq!(
            limiter.status().available,
            1000 - 1 - u64::from(granted),
            "the permits of the first policy"
        );
    }
}
