//! Permits that are charged at a future time, like the shares of `tidegate-redis`.

use std::time::Duration;

use tidegate::{AnyPolicy, Clock, KeyedRateLimiter, ManualClock, Refusal};

const SECOND: Duration = Duration::from_secs(1);

/// The policies have 12 permits, and a window of 6 s or fill in 6 s.
const POLICIES: [&str; 9] = [
    "token_bucket 2/s burst 12",
    "token_bucket 12/6s burst 12 interval_refill",
    "leaky_bucket 2/s nodelay 11",
    "smooth_bursty 2/s max_burst 6s start_full",
    "fixed_window 12/6s",
    "fixed_window 12/6s from_first_grant",
    "sliding_window 12/6s cells 3",
    "sliding_log 12/6s",
    "sliding_estimate 12/6s",
];

fn keys(line: &str, clock: &ManualClock) -> KeyedRateLimiter<u64, AnyPolicy, ManualClock> {
    KeyedRateLimiter::with_clock(line.parse().expect("a policy"), 1000, clock.clone())
}

/// From the debit on, and up to a window after its time, no more is granted than the limit less the
/// permits of the debit. A request is granted at its predicted time, and not a nanosecond earlier.
#[test]
fn permits_of_an_instant_to_come_count_from_now_on() {
    for line in POLICIES {
        for (used, n, ahead) in [(0, 9, 20), (5, 9, 20), (0, 12, 1), (3, 1, 7), (12, 9, 2), (0, 30, 50)] {
            let clock = ManualClock::new();
            let keys = keys(line, &clock);
            let text = format!("{line}, {used} used, {n} in {ahead} s");
            for _ in 0..used {
                let _ = keys.try_acquire(&7).expect("a permit");
            }
            // The used permits may still count at that time, or may have accrued again by then.
            keys.debit_ahead(&7, n, SECOND * ahead).expect("room");
            let mut granted = 0;
            loop {
                match keys.try_acquire(&7) {
                    Ok(_) => granted += 1,
                    Err(Refusal::Limited { retry_after, .. }) => {
                        clock.advance(retry_after.as_duration() - Duration::from_nanos(1));
                        assert!(keys.try_acquire(&7).is_err(), "{text}: earlier than predicted");
                        clock.advance(Duration::from_nanos(1));
                        // A bucket refills from that time on. A window counts the permits of the
                        // debit up to its own end, or for six seconds less a cell.
                        let is_bucket = line.contains("bucket") || line.contains("bursty");
                        let now = clock.now().as_duration();
                        if now > SECOND * ahead && (is_bucket || now >= SECOND * (ahead + 4)) {
                            break;
                        }
                        let _ = keys.try_acquire(&7).expect("at the predicted time");
                        granted += 1;
                    }
                    Err(other) => panic!("{text}: {other}"),
                }
            }
            // The last request to Guava's limiter is paid for later.
            let paid_later = u32::from(line.starts_with("smooth_bursty") && n <= 12);
            assert!(granted <= 12_u32.saturating_sub(n) + paid_later, "{text}: {granted}");
        }
    }
}
