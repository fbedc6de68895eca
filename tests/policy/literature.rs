//! Worked examples from the literature, on virtual time.

use std::time::Duration;

use tidegate::{
    FixedWindow, LeakyBucket, ManualClock, Policy, Rate, RateLimiter, Refusal, SlidingEstimate, SlidingLog,
    SlidingWindow, SmoothBursty, TokenBucket,
};

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

fn limiter<P: Policy>(policy: P) -> (RateLimiter<P, ManualClock>, ManualClock) {
    let clock = ManualClock::new();
    (RateLimiter::with_clock(policy, clock.clone()), clock)
}

/// Returns the times of requests, one each `every` in `from..until`.
fn steady(from: Duration, until: Duration, every: Duration) -> impl Iterator<Item = Duration> {
    let requests = u32::try_from((until - from).as_nanos() / every.as_nanos()).unwrap_or(u32::MAX);
    (0..requests).map(move |request| from + every * request)
}

/// Tries once at each of these times. Returns the times at which a request was granted.
fn let_through<P: Policy>(policy: P, requests: impl IntoIterator<Item = Duration>) -> Vec<Duration> {
    let (limiter, clock) = limiter(policy);
    let mut last = Duration::ZERO;
    requests
        .into_iter()
        .filter(|at| {
            clock.advance(*at - last);
            last = *at;
            limiter.try_acquire().is_ok()
        })
        .collect()
}

/// Returns how many requests were granted from one time on, and before another.
fn count(times: &[Duration], from: Duration, until: Duration) -> usize {
    times.iter().filter(|at| (from..until).contains(*at)).count()
}

/// 2 per minute: 0:24 and 0:36 pass, 0:49 does not. 1:12 is a full window later than neither of
/// them, so that request must wait until 1:24.
#[test]
fn two_per_minute_with_a_request_too_many() {
    let requests = [24, 36, 49, 72, 85].map(Duration::from_secs);
    let through = let_through(SlidingLog::new(Rate::per_minute(2)), requests);
    assert_eq!(through, [24, 36, 85].map(Duration::from_secs));
    // A fixed window counts from zero again at 1:00.
    let through = let_through(FixedWindow::new(Rate::per_minute(2)), requests);
    assert_eq!(through, [24, 36, 72, 85].map(Duration::from_secs));
}

/// 9 in the previous minute, 5 in this one, a quarter of it over: 9 * 0.75 + 5 = 11.75 exceeds 10.
/// The 9 permits of the previous minute leave room for 3.
#[test]
fn nine_times_three_quarters_and_five_are_too_many() -> Result<(), Refusal> {
    let (limiter, clock) = limiter(SlidingEstimate::new(Rate::per_minute(10)));
    clock.advance(30 * SECOND);
    limiter.try_acquire_many(9)?;
    clock.advance(45 * SECOND);
    // 1:15, requests one after another: 6.75 + 3 is the last that fits.
    assert_eq!(limiter.status().available, 3);
    let refusal = limiter.try_acquire_many(5).expect_err("6.75 and 5 are 11.75");
    // 9 * (1 - part) + 5 = 10 at four ninths of the minute: 26.666666667 s into it.
    assert_eq!(refusal.retry_after(), Some(Duration::from_nanos(11_666_666_667)));
    limiter.try_acquire_many(3)?;
    Ok(())
}

/// 100 a minute with 10/s from 0:50.
#[test]
fn a_fixed_window_lets_twice_the_limit_through_at_the_edge() {
    let (rate, requests) = (Rate::per_minute(100), || steady(50 * SECOND, 70 * SECOND, 100 * MS));
    assert_eq!(let_through(FixedWindow::new(rate), requests()).len(), 200);
    assert_eq!(let_through(SlidingWindow::new(rate, 6), requests()).len(), 100);
    assert_eq!(let_through(SlidingLog::new(rate), requests()).len(), 100);
}

/// 100 a minute, six sub-windows of 10 s, 20/s from 0:05: all requests of the first 5 s count as of
/// 0:00 and drop out at 1:00.
#[test]
fn six_sub_windows_let_twice_the_limit_through_in_a_minute() {
    let (rate, requests) = (Rate::per_minute(100), || steady(5 * SECOND, 65 * SECOND, 50 * MS));
    assert_eq!(let_through(SlidingWindow::new(rate, 6), requests()).len(), 200);
    assert_eq!(let_through(SlidingLog::new(rate), requests()).len(), 100);
}

/// A full leaky bucket grants N at once, plus what leaks out in the rest of the period: at most N +
/// (T - t) * N / T. With N = 100 in T = 60 s, and 20/s from t = 5 s on.
#[test]
fn a_leaky_bucket_lets_a_burst_through_and_what_leaks_out() {
    let requests = || steady(5 * SECOND, 65 * SECOND, 50 * MS);
    // A hundred at once: ninety-nine nodelay, and the request in progress.
    let through = let_through(LeakyBucket::new(Rate::per_minute(100)).nodelay(99), requests());
    let burst_and_outflow = |t: usize| 100 + (60 - t) * 100 / 60;
    for t in 0..60 {
        let from = Duration::from_secs(t);
        let seconds = usize::try_from(t).unwrap_or(0);
        assert!(count(&through, 5 * SECOND + from, 65 * SECOND) <= burst_and_outflow(seconds), "{t}");
    }
    // The first 100, and all but the last of a hundred intervals of 0.6 s.
    assert_eq!(through.len(), 199);
    // As a queue it grants one request per interval.
    let through = let_through(LeakyBucket::new(Rate::per_minute(100)), requests());
    assert_eq!(through.len(), 100);
}

/// 1000 per 3 s: 10 in each of the first two seconds, and then 990 a second. The counter grants 980
/// in the third second, and 1000 more in the next window: 1,980 in the seconds 3 to 5. The log
/// never grants more than 1000.
#[test]
fn a_counter_lets_almost_twice_a_thousand_through() -> Result<(), Box<dyn std::error::Error>> {
    let rate = Rate::new(1000, 3 * SECOND)?;
    let requests = || {
        let slow = steady(Duration::ZERO, 2 * SECOND, 100 * MS);
        let fast = steady(2 * SECOND, 5 * SECOND, Duration::from_nanos(1_000_000_000 / 990));
        slow.chain(fast)
    };
    let seconds_3_to_5 = |times: &[Duration]| count(times, 2 * SECOND, 5 * SECOND);
    assert_eq!(seconds_3_to_5(&let_through(FixedWindow::new(rate), requests())), 1_980);
    assert_eq!(seconds_3_to_5(&let_through(SlidingLog::new(rate), requests())), 1000);
    Ok(())
}

/// Sends requests at these multiples of 10 per second, 20 s each, and returns the granted requests
/// per second in the last 10 s of each.
fn driven<P: Policy>(policy: P) -> Vec<usize> {
    let (limiter, clock) = limiter(policy);
    // 1, 2, 5, 10, 10 x 2, 10 x 2.5, 10 x 5 and 10 x 10 in each second, evenly.
    let asked = [1, 2, 5, 10, 20, 25, 50, 100];
    let measure = |per_second: u32| {
        let (seconds, measured) = (20, 10);
        let mut through = 0;
        for request in 0..per_second * seconds {
            let granted = limiter.try_acquire().is_ok();
            if granted && request >= per_second * (seconds - measured) {
                through += 1;
            }
            clock.advance(SECOND / per_second);
        }
        through / 10
    };
    asked.map(measure).to_vec()
}

#[test]
fn a_driver_measures_the_limit_whatever_it_asks_for() {
    let (rate, measured) = (Rate::per_second(10), [1, 2, 5, 10, 10, 10, 10, 10]);
    assert_eq!(driven(TokenBucket::new(rate, 10)), measured);
    assert_eq!(driven(FixedWindow::new(rate)), measured);
    assert_eq!(driven(SlidingWindow::new(rate, 10)), measured);
    assert_eq!(driven(SlidingLog::new(rate)), measured);
    assert_eq!(driven(SmoothBursty::new(rate)), measured);
}

/// A caller that requests a permit every 40 ms, and saves none, gets a permit of 100 ms every 120
/// ms.
#[test]
fn a_driver_that_may_save_nothing_measures_its_own_steps() {
    let (rate, measured) = (Rate::per_second(10), [1, 2, 5, 10, 10, 8, 10, 10]);
    assert_eq!(driven(TokenBucket::new(rate, 1)), measured);
    assert_eq!(driven(LeakyBucket::new(rate)), measured);
}
