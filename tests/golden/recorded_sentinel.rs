//! Worked examples of Alibaba Sentinel: its uniform queue, and its warm-up.
//!
//! The examples are computed from formulas, not recorded. The queue matches row by row. Both
//! warm-ups are Guava's ramp, but Sentinel decides once a second and refuses, while tidegate
//! decides per permit and spaces requests out. So this test asserts tidegate's exact numbers, and
//! their distance from Sentinel's.

use std::task::Poll;
use std::time::Duration;

use tidegate::{
    Clock, LeakyBucket, ManualClock, Nanos, Policy, Rate, RateLimiter, Request, Reservation, SmoothWarmingUp,
};
use tokio_test::task::spawn;

const SECOND: u64 = 1_000_000_000;
const MS: u64 = 1_000_000;

/// Returns the rate; a rate that is not whole is written with its decimal.
fn rate(count: f64) -> Rate {
    Rate::from_per_second(count).expect("a positive number")
}

/// Replays requests of Sentinel's section 3 on a limiter and its queue. A row has the time at which
/// a request arrives, the permits it asks for, and the time at which it passes, in milliseconds;
/// `None` if it is rejected. `apart_ns` is how far tidegate's time may be from that.
fn check_queue(count: f64, max_wait_ms: u64, apart_ns: f64, rows: &[(u64, u32, Option<f64>)]) {
    let clock = ManualClock::new();
    let policy = LeakyBucket::new(rate(count)).max_wait(Duration::from_millis(max_wait_ms));
    let limiter = RateLimiter::with_clock(policy, clock.clone());
    let mut waiting = Vec::new();
    for row in rows {
        let (arrives, n, passes) = *row;
        let at = Nanos::new(arrives * MS);
        // Serves the waiters that become due meanwhile, each at its own time.
        clock.advance(at.saturating_since(clock.now()).as_duration());
        let reservation = limiter.reserve(n);
        let due = reservation.as_ref().ok().map(|reservation| at.as_u64() + nanos(reservation.due_in()));
        match (due, passes) {
            (None, None) => {}
            #[allow(clippy::cast_precision_loss)]
            (Some(due), Some(passes)) if (due as f64 - passes * 1e6).abs() <= apart_ns => {}
            _ => panic!("{row:?} of {count}/s: due at {due:?} ns"),
        }
        // In the queue, or refused.
        waiting.extend(reservation.ok().map(|reservation: Reservation<_, _>| spawn(reservation)));
        waiting.retain_mut(|reservation| reservation.poll().is_pending());
    }
}

fn nanos(span: Duration) -> u64 {
    Nanos::from_duration(span).as_u64()
}

/// If Sentinel's cost is a whole number of milliseconds, tidegate has the same cost, and the times
/// agree to the nanosecond.
const SAME: f64 = 0.0;

#[test]
fn queue_of_single_permits() {
    let mut rows = vec![
        (0, 1, Some(0.0)),
        (0, 1, Some(100.0)),
        (0, 1, Some(200.0)),
        (0, 1, Some(300.0)),
        (0, 1, Some(400.0)),
    ];
    // A wait of exactly the maximum is accepted.
    rows.push((0, 1, Some(500.0)));
    rows.extend([(0, 1, None); 4]);
    rows.extend([(60, 1, None), (150, 1, Some(600.0)), (250, 1, Some(700.0))]);
    rows.extend([(1000, 1, Some(1000.0)), (1040, 1, Some(1100.0)), (1300, 1, Some(1300.0))]);
    check_queue(10.0, 500, SAME, &rows);
}

#[test]
fn queue_of_mixed_sizes() {
    let rows = [
        (0, 1, Some(0.0)),
        (0, 3, Some(300.0)),
        (0, 5, Some(800.0)),
        (0, 8, None),
        (0, 1, Some(900.0)),
        (950, 2, Some(1100.0)),
        (5000, 4, Some(5000.0)),
        (5100, 1, Some(5100.0)),
        (5100, 4, Some(5500.0)),
    ];
    check_queue(10.0, 1000, SAME, &rows);
}

/// Sentinel rounds a third of a second to whole nanoseconds. Tidegate's third is exact to a
/// sixteenth of a nanosecond, and a due time is the first whole nanosecond after it: at most one
/// away from the true third. The bucket's slack of 15 sixteenths exists so that three thirds do not
/// exceed a second.
#[test]
fn queue_of_thirds() {
    let third = 1000.0 / 3.0;
    let rows = [
        (0, 1, Some(0.0)),
        (0, 1, Some(third)),
        (0, 1, Some(2.0 * third)),
        (0, 1, Some(1000.0)),
        (0, 1, None),
        (2500, 1, Some(2500.0)),
        (2600, 1, Some(2500.0 + third)),
    ];
    check_queue(3.0, 1000, 1.0, &rows);
}

#[test]
fn queue_of_more_than_one_permit_per_millisecond() {
    let rows = [
        (0, 1, Some(0.0)),
        (0, 1, Some(0.5)),
        (0, 1, Some(1.0)),
        (0, 1, Some(1.5)),
        (0, 1, Some(2.0)),
        (0, 1, None),
        (1, 1, Some(2.5)),
        (1, 1, Some(3.0)),
        (10, 1, Some(10.0)),
    ];
    check_queue(2000.0, 2, SAME, &rows);
}

#[test]
fn queue_without_waiters_is_spacing() {
    let rows = [
        (0, 1, Some(0.0)),
        (50, 1, None),
        (99, 1, None),
        (100, 1, Some(100.0)),
        (150, 1, None),
        (200, 1, Some(200.0)),
        (320, 1, Some(320.0)),
        (410, 1, None),
        (420, 1, Some(420.0)),
    ];
    check_queue(10.0, 0, SAME, &rows);
}

/// A warm-up of section 1: stable rate, period in seconds, cold factor.
#[derive(Clone, Copy, Debug)]
struct WarmUp {
    count: f64,
    period: f64,
    factor: f64,
}

impl WarmUp {
    fn policy(self) -> SmoothWarmingUp {
        let period = Duration::from_secs_f64(self.period);
        SmoothWarmingUp::try_new(rate(self.count), period, self.factor).expect("a warm-up")
    }

    /// Returns the number of permits in the ramp, from cold to the stable rate: Sentinel's
    /// `max - warning`, not truncated to whole permits.
    fn ramp(self) -> f64 {
        2.0 * self.period * self.count / (1.0 + self.factor)
    }

    /// Returns by how much each permit of the ramp costs less than the one before it, in seconds.
    fn slope(self) -> f64 {
        (self.factor - 1.0) / self.count / self.ramp()
    }

    /// Returns when the k-th permit after the first is due in the ramp: the area under the ramp.
    fn due(self, k: f64) -> f64 {
        k * self.factor / self.count - self.slope() * k * k / 2.0
    }
}

/// Takes single permits as soon as each is due, from `from` to `until`. Returns the times.
fn saturate(
    policy: &SmoothWarmingUp,
    state: &<SmoothWarmingUp as Policy>::State,
    from: u64,
    until: u64,
) -> Vec<u64> {
    let mut granted = Vec::new();
    let mut now = Nanos::new(from);
    loop {
        now = policy.ready_at(state, now, 0, 1).max(now);
        if now.as_u64() >= until {
            return granted;
        }
        policy.try_acquire(state, now, 1).expect("it is due");
        granted.push(now.as_u64());
    }
}

/// Returns how many permits were granted in each second.
fn per_second(granted: &[u64], seconds: std::ops::Range<u64>) -> Vec<usize> {
    seconds.map(|second| granted.iter().filter(|at| **at / SECOND == second).count()).collect()
}

fn seconds(nanos: u64) -> f64 {
    Duration::from_nanos(nanos).as_secs_f64()
}

/// Sentinel truncates both ends of the ramp to whole permits, and tidegate does not. So Sentinel's
/// slope belongs to a ramp of `max - warning` permits, and tidegate's to a ramp of
/// [`WarmUp::ramp`]. Costs do not show where the ramp starts in stored permits. For a cold factor
/// of 3 both start at the same number. For other factors tidegate follows Guava, and Sentinel
/// differs.
#[test]
fn ramp_is_that_of_the_derived_parameters() {
    // Count, period, cold factor, warning, max, slope, rate at max.
    let table = [
        (10.0, 10.0, 3.0, 50.0, 100.0, 0.004, 3.3333),
        (100.0, 10.0, 3.0, 500.0, 1000.0, 4e-05, 33.3333),
        (20.0, 5.0, 3.0, 50.0, 100.0, 0.002, 6.6667),
        (5.0, 4.0, 3.0, 10.0, 20.0, 0.04, 1.6667),
        (50.0, 8.0, 2.0, 400.0, 666.0, 7.5188e-05, 25.0),
        (10.0, 10.0, 5.0, 25.0, 58.0, 0.0121212, 2.0),
        (1000.0, 60.0, 3.0, 30000.0, 60000.0, 6.66667e-08, 333.3333),
        (7.0, 3.0, 3.0, 10.0, 20.0, 0.0285714, 2.3333),
        (12.5, 6.0, 3.0, 37.0, 74.0, 0.00432432, 4.1667),
    ];
    for (count, period, factor, warning, max, slope, coldest) in table {
        let warm_up = WarmUp { count, period, factor };
        let policy = warm_up.policy();
        let granted = saturate(
            &policy,
            &policy.start(Nanos::ZERO),
            0,
            nanos(Duration::from_secs_f64(period + 3.0 / count)),
        );
        let waits: Vec<f64> = granted.windows(2).map(|pair| seconds(pair[1] - pair[0])).collect();
        let whole = granted.iter().filter(|at| seconds(**at) < period).count() - 1;
        #[allow(clippy::cast_precision_loss)]
        let steps = (whole - 1) as f64;
        let steepness = (waits[0] - waits[whole - 1]) / steps;
        let expected = slope * (max - warning) / warm_up.ramp();
        // The rounding of two waits to whole nanoseconds, and the precision of the table.
        let apart = 2e-9 / steps + 1e-5 * expected;
        assert!((steepness - expected).abs() < apart, "{warm_up:?}: {steepness}, expected {expected}");
        // The first permit is half a step down the ramp.
        let rate_at_max = 1.0 / (waits[0] + steepness / 2.0);
        assert!((rate_at_max - coldest).abs() < 1e-4, "{warm_up:?}: {rate_at_max}, expected {coldest}");
        let last = waits[waits.len() - 1];
        assert!((last - 1.0 / count).abs() <= 1e-9, "{warm_up:?}: {last} s between permits when warm");
    }
}

/// Sentinel computes the rate once a second from what passed in the second before, rounds it down
/// to whole requests and refuses the rest. So it lags: a warm-up of 10 s takes it about 12 s.
/// Tidegate prices each permit separately and makes its request wait: the ramp takes exactly the
/// period. In no second does tidegate grant less.
#[test]
fn saturated_demand_climbs_the_ramp() {
    let table: [(WarmUp, &[usize], &[usize]); 4] = [
        (
            WarmUp { count: 10.0, period: 10.0, factor: 3.0 },
            &[3, 3, 3, 3, 3, 4, 4, 4, 5, 5, 6, 7, 10, 10, 10, 10],
            &[4, 3, 4, 4, 5, 4, 5, 6, 7, 8, 10, 10, 10, 10, 10, 10],
        ),
        (
            WarmUp { count: 20.0, period: 5.0, factor: 3.0 },
            &[6, 7, 8, 9, 11, 14, 20, 20, 20, 20],
            &[7, 8, 9, 11, 15, 20, 20, 20, 20, 20],
        ),
        (
            WarmUp { count: 100.0, period: 10.0, factor: 3.0 },
            &[33, 34, 36, 38, 41, 44, 47, 52, 58, 68, 83, 100, 100, 100, 100, 100],
            &[35, 35, 38, 40, 43, 47, 52, 57, 68, 85, 100, 100, 100, 100, 100, 100],
        ),
        (
            WarmUp { count: 10.0, period: 10.0, factor: 5.0 },
            &[2, 2, 2, 2, 2, 2, 2, 3, 3, 3, 4, 5, 8, 10, 10, 10],
            &[3, 2, 2, 2, 3, 3, 3, 4, 5, 7, 10, 10, 10, 10, 10, 10],
        ),
    ];
    for (warm_up, sentinels, ours) in table {
        let policy = warm_up.policy();
        let granted = saturate(&policy, &policy.start(Nanos::ZERO), 0, ours.len() as u64 * SECOND);
        assert_eq!(per_second(&granted, 0..ours.len() as u64), ours, "{warm_up:?}");
        assert!(ours.iter().zip(sentinels).all(|(ours, sentinels)| ours >= sentinels));
        check_ramp(warm_up, &granted, 0.0);
    }
}

/// Checks each permit that was granted in the ramp; the first one came after `taken` others.
#[allow(clippy::cast_precision_loss)]
fn check_ramp(warm_up: WarmUp, granted: &[u64], taken: f64) {
    for (k, at) in granted.iter().enumerate() {
        let k = taken + k as f64;
        let expected = warm_up.due(k) - warm_up.due(taken);
        let got = seconds(at - granted[0]);
        if k <= warm_up.ramp() {
            assert!((got - expected).abs() < 1.1e-9, "{warm_up:?}, permit {k}: {got}, expected {expected}");
        }
    }
}

/// The warm-up that cools when idle: 10 per second, with a period of 10 s.
const COOLING: WarmUp = WarmUp { count: 10.0, period: 10.0, factor: 3.0 };

/// At full load Sentinel never gets warmer than 40 permits, because it adds the permits that
/// accrued before it subtracts those that passed. So 3 s of idling make it cold enough for 4 a
/// second. Tidegate is at 10 after 14 s, and with the 30 permits of the pause still below the
/// threshold of 50: it is warm. After 12 s of idling both are as cold as at the start.
#[test]
fn idling_cools_and_a_short_pause_does_not() {
    let policy = COOLING.policy();
    let state = policy.start(Nanos::ZERO);
    saturate(&policy, &state, 0, 14 * SECOND);
    let soon = saturate(&policy, &state, 17 * SECOND, 21 * SECOND);
    assert_eq!(per_second(&soon, 17..21), [10, 10, 10, 10]); // Sentinel: 4, 4, 5, 5
    let late = saturate(&policy, &state, 33 * SECOND, 37 * SECOND);
    assert_eq!(per_second(&late, 33..37), [4, 3, 4, 4]); // Sentinel: 3, 3, 3, 3
    check_ramp(COOLING, &late, 0.0);
}

/// Two requests a second leave Sentinel cold, because they arrive more slowly than the cold rate.
/// By default tidegate warms up even then: a pause of up to a cold interval does not cool. With
/// Guava's rule tidegate stays cold like Sentinel.
#[test]
fn light_demand_warms_unless_every_pause_cools() {
    let ours: [(SmoothWarmingUp, f64, &[usize]); 2] =
        [(COOLING.policy(), 12.0, &[5, 4, 5, 5]), (COOLING.policy().cool_at_once(), 0.0, &[4, 3, 4, 4])];
    for (policy, taken, passed) in ours {
        let state = policy.start(Nanos::ZERO);
        for half in 0..12 {
            assert!(policy.try_acquire(&state, Nanos::new(half * SECOND / 2), 1).is_ok());
        }
        let granted = saturate(&policy, &state, 6 * SECOND, 10 * SECOND);
        assert_eq!(per_second(&granted, 6..10), passed); // Sentinel: 3, 3, 3, 3
        check_ramp(COOLING, &granted, taken);
    }
}

/// Sends a request every 20 ms that waits up to `within`, for 14 s. Returns when each accepted
/// request arrived, and when it passed, in nanoseconds.
fn queue_up(warm_up: WarmUp, within: Duration) -> Vec<(u64, u64)> {
    let clock = ManualClock::new();
    let limiter = RateLimiter::with_clock(warm_up.policy(), clock.clone());
    let (mut waiting, mut passed) = (Vec::new(), Vec::new());
    for arrival in 0..14 * 50 {
        let at = arrival * 20 * MS;
        clock.advance(Duration::from_nanos(at) - Duration::from_nanos(clock.now().as_u64()));
        waiting.push((at, spawn(limiter.acquire_owned(Request::permits(1).within(within)))));
        // One more step at a time, so that each future is polled when it is woken.
        for _ in 0..20 {
            waiting.retain_mut(|(arrived, reservation)| {
                if let Poll::Ready(answer) = reservation.poll() {
                    passed.extend(answer.ok().map(|grant| (*arrived, *arrived + nanos(grant.waited()))));
                    return false;
                }
                true
            });
            clock.advance(Duration::from_millis(1));
        }
    }
    passed
}

/// A warm-up, the maximum wait in milliseconds, the permits that Sentinel and tidegate grant in
/// each second, and when tidegate's first requests arrive and pass.
type QueueRow = (WarmUp, u64, &'static [usize], &'static [usize], &'static [(u64, u64)]);

/// Sentinel has one cost for a whole second, and a request pays its own. In tidegate the cost falls
/// with every permit, and the next request pays it. So tidegate is a little earlier from the second
/// request on, and follows the ramp exactly.
#[test]
fn warm_up_with_a_queue() {
    let table: [QueueRow; 2] = [
        (
            WarmUp { count: 10.0, period: 10.0, factor: 3.0 },
            500,
            &[4, 3, 4, 4, 4, 4, 5, 5, 6, 6, 8, 9, 10, 10],
            &[4, 3, 4, 4, 5, 4, 5, 6, 7, 8, 10, 10, 10, 10],
            // Sentinel: (0, 0), (20, 300), (100, 600), (400, 900), (700, 1200), (1000, 1484),
            // (1280, 1768), (1560, 2052)
            &[
                (0, 0),
                (20, 298),
                (100, 592),
                (400, 882),
                (680, 1168),
                (960, 1450),
                (1240, 1728),
                (1520, 2002),
            ],
        ),
        (
            WarmUp { count: 20.0, period: 5.0, factor: 3.0 },
            200,
            &[7, 7, 9, 9, 11, 16, 19, 20, 20, 20, 20, 20, 20, 20],
            &[7, 8, 9, 11, 15, 20, 20, 20, 20, 20, 20, 20, 20, 20],
            // Sentinel: (0, 0), (20, 150), (100, 300), (260, 450), (400, 600), (560, 750), (700,
            // 900), (860, 1050)
            &[(0, 0), (20, 149), (100, 296), (260, 441), (400, 584), (540, 725), (680, 864), (820, 1001)],
        ),
    ];
    for (warm_up, within, sentinels, ours, first) in table {
        let passed = queue_up(warm_up, Duration::from_millis(within));
        let begin: Vec<_> = passed.iter().take(first.len()).map(|(at, due)| (at / MS, due / MS)).collect();
        assert_eq!(begin, first, "{warm_up:?}");
        let times: Vec<u64> = passed.iter().map(|(_, due)| *due).collect();
        assert_eq!(per_second(&times, 0..14), ours, "{warm_up:?}");
        assert!(ours.iter().zip(sentinels).all(|(ours, sentinels)| ours >= sentinels));
        check_ramp(warm_up, &times, 0.0);
    }
}
