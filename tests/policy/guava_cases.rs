//! Guava's own tests of its `RateLimiter`, under their names, on the public API: see
//! `tests/golden/guava/test-cases.md`.
//!
//! As in Guava's tests, a granted wait moves the clock. Guava compares waits to two decimals; these
//! tests compare exactly.

use std::time::Duration;

use tidegate::Acquire;
use tidegate::policy::Change;
use tidegate::{
    Grant, ManualClock, Nanos, Policy, PolicyError, Rate, RateError, RateLimiter, Refusal, Request,
    SmoothBursty, SmoothWarmingUp, Timer,
};
use tokio_test::task::spawn;
use tokio_test::{assert_ready, assert_ready_eq};

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);
/// The most permits that a caller can request from Guava.
const MANY: u32 = (1 << 31) - 1;

/// A limiter and its clock.
struct Run<P: Policy> {
    limiter: RateLimiter<P, ManualClock>,
    clock: ManualClock,
}

fn run<P: Policy>(policy: P) -> Run<P> {
    // Not zero: no limiter may rely on that.
    let clock = ManualClock::starting_at(Nanos::new(7));
    Run { limiter: RateLimiter::with_clock(policy, clock.clone()), clock }
}

fn bursty(permits: u64) -> Run<SmoothBursty> {
    run(SmoothBursty::new(Rate::per_second(permits)))
}

fn warming_up(
    permits: u64,
    warm_up: Duration,
    cold_factor: f64,
) -> Result<Run<SmoothWarmingUp>, PolicyError> {
    // These tests cover Guava's rule of cooling.
    Ok(run(SmoothWarmingUp::try_new(Rate::per_second(permits), warm_up, cold_factor)?.cool_at_once()))
}

impl<P: Policy> Run<P> {
    /// Acquires `n` permits and moves the clock to the time of the grant. Returns the wait.
    fn acquire(&self, n: u32) -> Result<Duration, Refusal> {
        self.finish(n, self.limiter.acquire_many(n))
    }

    /// Acquires each of `ns`. Returns the waits in nanoseconds.
    fn acquire_each(&self, ns: &[u32]) -> Result<Vec<u128>, Refusal> {
        ns.iter().map(|n| Ok(self.acquire(*n)?.as_nanos())).collect()
    }

    /// Acquires a permit if that takes no longer than `within`, and moves the clock. Returns the
    /// wait.
    fn try_within(&self, within: Duration) -> Result<Duration, Refusal> {
        self.finish(1, self.limiter.acquire_within(within))
    }

    /// Waits for a request of `n` permits by moving the clock to its due time, and checks that the
    /// request was not ready earlier.
    fn finish(&self, n: u32, request: Acquire<'_, P, ManualClock>) -> Result<Duration, Refusal> {
        // Dropping a reservation leaves no trace.
        let due_in = self.limiter.reserve(n)?.due_in();
        let mut request = spawn(request);
        if let std::task::Poll::Ready(answer) = request.poll() {
            return answer.map(Grant::waited);
        }
        self.clock.advance(due_in - Duration::from_nanos(1));
        assert!(request.poll().is_pending(), "granted before it was due in {due_in:?}");
        self.clock.advance(Duration::from_nanos(1));
        let waited = assert_ready!(request.poll())?.waited();
        assert_eq!(waited, due_in);
        Ok(waited)
    }

    fn pass(&self, time: Duration) {
        self.clock.advance(time);
    }

    /// Takes `permits` in random pieces and then one permit, which pays for the last piece. Returns
    /// the time taken.
    fn take_in_pieces(&self, mut permits: u32, dice: &mut Dice) -> Result<Duration, Refusal> {
        let mut total = Duration::ZERO;
        while permits > 0 {
            let piece = dice.roll(permits);
            total += self.acquire(piece)?;
            permits -= piece;
        }
        Ok(total + self.acquire(1)?)
    }
}

/// Random numbers from a fixed seed.
struct Dice(u64);

impl Dice {
    /// Returns a number from 1 to `sides`.
    fn roll(&mut self, sides: u32) -> u32 {
        // Knuth's linear congruential generator; its upper half is random enough.
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        u32::try_from(self.0 >> 32).unwrap_or(0) % sides + 1
    }
}

/// Converts milliseconds to the unit of [`Run::acquire_each`].
fn ms<const N: usize>(waits: [u128; N]) -> Vec<u128> {
    waits.iter().map(|ms| ms * 1_000_000).collect()
}

/// Asserts waits that are not whole ticks, or that come from a cold factor that is not a binary
/// fraction. Fixed point then rounds a cost up by a tick. The clock moves in whole nanoseconds, so
/// it shows one nanosecond more once, and one nanosecond less in the next wait.
fn assert_close(waits: &[u128], expected: &[u128]) {
    assert_eq!(waits.len(), expected.len());
    let close = waits.iter().zip(expected).all(|(wait, expected)| wait.abs_diff(*expected) <= 1);
    assert!(close, "{waits:?}, expected {expected:?}");
}

// Bursty

#[test]
fn simple() -> Result<(), Refusal> {
    let run = bursty(5);
    assert_eq!(run.acquire_each(&[1, 1, 1])?, ms([0, 200, 200]));
    Ok(())
}

#[test]
fn immediate_try_acquire() {
    // This test uses the real clock. An hour replaces Guava's second, so that no stall of the
    // machine can fail the test.
    let limiter = RateLimiter::smooth_bursty(Rate::per_hour(1));
    assert!(limiter.try_acquire().is_ok());
    assert!(limiter.try_acquire().is_err_and(Refusal::may_retry));
}

#[test]
fn simple_with_wait() -> Result<(), Refusal> {
    let run = bursty(5);
    assert_eq!(run.acquire_each(&[1])?, ms([0]));
    run.pass(200 * MS);
    assert_eq!(run.acquire_each(&[1, 1])?, ms([0, 200]));
    Ok(())
}

#[test]
fn simple_acquire_return_values() {
    let run = bursty(5);
    assert_ready_eq!(spawn(run.limiter.acquire()).poll().map_ok(Grant::waited), Ok(Duration::ZERO));
    run.pass(200 * MS);
    assert_ready_eq!(spawn(run.limiter.acquire()).poll().map_ok(Grant::waited), Ok(Duration::ZERO));
    let mut third = spawn(run.limiter.acquire());
    assert!(third.poll().is_pending());
    run.pass(200 * MS);
    assert_ready_eq!(third.poll().map_ok(Grant::waited), Ok(200 * MS));
}

#[test]
fn simple_acquire_earliest_available_is_in_past() -> Result<(), Refusal> {
    let run = bursty(5);
    assert_eq!(run.acquire_each(&[1])?, ms([0]));
    run.pass(400 * MS);
    // Half of that time paid for the first permit, and the other half saved one.
    assert_eq!(run.acquire_each(&[1, 1, 1])?, ms([0, 0, 200]));
    Ok(())
}

#[test]
fn one_second_burst() -> Result<(), Refusal> {
    let run = bursty(5);
    run.pass(SECOND);
    run.pass(SECOND);
    // Five permits are saved, and one request is granted ahead.
    assert_eq!(run.acquire_each(&[1, 1, 3, 1])?, ms([0, 0, 0, 0]));
    assert_eq!(run.acquire_each(&[1])?, ms([200]));
    Ok(())
}

#[test]
fn simple_weights() -> Result<(), Refusal> {
    let run = bursty(1);
    assert_eq!(run.acquire_each(&[1, 1, 2, 4, 8, 1])?, ms([0, 1000, 1000, 2000, 4000, 8000]));
    Ok(())
}

/// The interval of some rates is no whole number of ticks, and each cost is rounded up. The last
/// stored permit was due a nanosecond late; in Guava it is due at once. Above 15 permits per second
/// the roundings may add up to more than the nanosecond that is always saved.
#[test]
fn bursty_grants_all_stored_permits_at_once() {
    let at = |seconds: u64| Nanos::from_duration(Duration::from_secs(seconds));
    for rate in [1, 3, 6, 7, 9, 11, 13, 18] {
        let plain = SmoothBursty::new(Rate::per_second(rate));
        let changed = SmoothBursty::new(Rate::per_second(5));
        let full = SmoothBursty::new(Rate::per_second(rate)).start_full();
        for (policy, idle) in [(plain, 10), (changed, 10), (full, 0)] {
            let state = policy.start(at(0));
            policy.change(&state, at(0), Change::rate(Rate::per_second(rate))).expect("a rate");
            let status = policy.status(&state, at(idle));
            assert_eq!((status.limit, status.available), (rate + 1, rate + 1));
            assert!(status.full_at <= at(idle));
            let granted = (0..).take_while(|_| policy.try_acquire(&state, at(idle), 1).is_ok()).count();
            assert_eq!(granted as u64, rate + 1, "{rate} per second");
            // As Guava shows it, in microseconds.
            let refusal = policy.try_acquire(&state, at(idle), 1).expect_err("none is left");
            let micros = refusal.retry_after().expect("a time").as_micros();
            assert!((1_000_000 / u128::from(rate)).abs_diff(micros) <= 1, "{rate} per second: {micros}");
        }
    }
}

#[test]
fn bursty_and_update() -> Result<(), Refusal> {
    let run = bursty(1);
    assert_eq!(run.acquire_each(&[1, 1])?, ms([0, 1000]));
    run.limiter.set_rate(Rate::per_second(2));
    // The first request pays the old cost.
    assert_eq!(run.acquire_each(&[1, 2, 4, 1])?, ms([1000, 500, 1000, 2000]));
    Ok(())
}

#[test]
fn we_never_get_a_burst_more_than_one_sec() -> Result<(), Refusal> {
    let run = bursty(1);
    let mut dice = Dice(9);
    for rate in [1000, 1, 10, 1_000_000, 10, 1] {
        run.pass(rate * SECOND);
        run.limiter.set_rate(Rate::per_second(rate.into()));
        assert!(run.take_in_pieces(rate, &mut dice)? <= SECOND);
        assert!(run.take_in_pieces(rate, &mut dice)? >= SECOND);
    }
    Ok(())
}

// Trying

#[test]
fn try_acquire_no_wait_allowed() {
    let run = bursty(5);
    assert!(run.try_within(Duration::ZERO).is_ok());
    assert!(run.try_within(Duration::ZERO).is_err());
    assert!(run.limiter.try_acquire().is_err());
    run.pass(100 * MS);
    assert!(run.try_within(Duration::ZERO).is_err());
}

#[test]
fn try_acquire_some_wait_allowed() {
    let run = bursty(5);
    assert_eq!(run.try_within(Duration::ZERO), Ok(Duration::ZERO));
    assert_eq!(run.try_within(200 * MS), Ok(200 * MS));
    assert_eq!(run.try_within(100 * MS), Err(Refusal::Limited { retry_after: (100 * MS).into() }));
    run.pass(100 * MS);
    assert_eq!(run.try_within(100 * MS), Ok(100 * MS));
}

#[test]
fn try_acquire_overflow() {
    let run = bursty(5);
    assert_eq!(run.try_within(Duration::ZERO), Ok(Duration::ZERO));
    run.pass(100 * MS);
    assert_eq!(run.try_within(Duration::from_micros(i64::MAX.unsigned_abs())), Ok(100 * MS));
    assert_eq!(run.try_within(Duration::MAX), Ok(200 * MS));
}

#[test]
fn try_acquire_negative() {
    // A `Duration` is never negative. Guava treats a negative timeout as zero.
    let run = bursty(5);
    assert!(run.limiter.try_acquire_many(5).is_ok());
    run.pass(900 * MS);
    assert!(run.try_within(Duration::ZERO).is_err());
    run.pass(100 * MS);
    assert!(run.try_within(Duration::ZERO).is_ok());
}

// Warming up

const EIGHT: [u32; 8] = [1; 8];
const ELEVEN: [u32; 11] = [1; 11];

#[test]
fn warm_up() -> Result<(), Box<dyn std::error::Error>> {
    let run = warming_up(2, 4 * SECOND, 3.0)?;
    let cold = ms([0, 1375, 1125, 875, 625, 500, 500, 500]);
    assert_eq!(run.acquire_each(&EIGHT)?, cold);
    run.pass(500 * MS);
    run.pass(4 * SECOND);
    assert_eq!(run.acquire_each(&EIGHT)?, cold);
    run.pass(500 * MS);
    run.pass(2 * SECOND);
    assert_eq!(run.acquire_each(&EIGHT)?, ms([0, 500, 500, 500, 500, 500, 500, 500]));
    Ok(())
}

#[test]
fn warm_up_with_cold_factor() -> Result<(), Box<dyn std::error::Error>> {
    let run = warming_up(5, 4 * SECOND, 10.0)?;
    let mut cold = ms([0, 0, 0, 0, 0, 200, 200, 200]);
    // The fifth is 0.30022727...
    cold[1..5].copy_from_slice(&[1_752_500_000, 1_257_500_000, 762_500_000, 300_227_273]);
    assert_close(&run.acquire_each(&EIGHT)?, &cold);
    run.pass(200 * MS);
    run.pass(4 * SECOND);
    assert_close(&run.acquire_each(&EIGHT)?, &cold);
    run.pass(200 * MS);
    run.pass(SECOND);
    assert_close(&run.acquire_each(&EIGHT)?, &ms([0, 200, 200, 200, 200, 200, 200, 200]));
    Ok(())
}

#[test]
fn warm_up_with_cold_factor_1() -> Result<(), Box<dyn std::error::Error>> {
    // A flat ramp: a cold permit costs the same as a warm one, and idling earns nothing.
    let run = warming_up(5, 4 * SECOND, 1.0)?;
    let flat = ms([0, 200, 200, 200, 200, 200, 200, 200]);
    assert_eq!(run.acquire_each(&EIGHT)?, flat);
    run.pass(340 * MS);
    assert_eq!(run.acquire_each(&EIGHT)?, flat);
    Ok(())
}

#[test]
fn warm_up_and_update() -> Result<(), Box<dyn std::error::Error>> {
    let run = warming_up(2, 4 * SECOND, 3.0)?;
    assert_eq!(run.acquire_each(&EIGHT)?, ms([0, 1375, 1125, 875, 625, 500, 500, 500]));
    run.pass(4500 * MS);
    assert_eq!(run.acquire_each(&[1, 1, 1])?, ms([0, 1375, 1125]));
    run.limiter.set_rate(Rate::per_second(4));
    // The old cost, once.
    assert_eq!(run.acquire_each(&[1])?, ms([875]));
    assert_eq!(run.acquire_each(&[1, 1, 1, 1])?, [343_750_000, 281_250_000, 250_000_000, 250_000_000]);
    run.pass(4250 * MS);
    let cold = [0, 718_750, 656_250, 593_750, 531_250, 468_750, 406_250, 343_750, 281_250, 250_000, 250_000];
    assert_eq!(run.acquire_each(&ELEVEN)?, cold.map(|us| us * 1000));
    Ok(())
}

#[test]
fn warm_up_and_update_with_cold_factor() -> Result<(), Box<dyn std::error::Error>> {
    let run = warming_up(5, 4 * SECOND, 10.0)?;
    run.acquire_each(&EIGHT)?;
    run.pass(4200 * MS);
    assert_close(&run.acquire_each(&[1, 1, 1])?, &[0, 1_752_500_000, 1_257_500_000]);
    run.limiter.set_rate(Rate::per_second(10));
    // The old cost, once.
    assert_close(&run.acquire_each(&[1])?, &[762_500_000]);
    // The second is 0.10460227...
    assert_close(&run.acquire_each(&[1; 4])?, &[195_625_000, 104_602_273, 100_000_000, 100_000_000]);
    run.pass(4100 * MS);
    let cold = [
        0,
        938_125_000,
        814_375_000,
        690_625_000,
        566_875_000,
        443_125_000,
        319_375_000,
        195_625_000,
        104_602_273,
        100_000_000,
        100_000_000,
    ];
    assert_close(&run.acquire_each(&ELEVEN)?, &cold);
    Ok(())
}

#[test]
fn time_to_warm_up_is_honoured_even_with_weights() -> Result<(), Box<dyn std::error::Error>> {
    let mut dice = Dice(19);
    for factor in [2, 3, 10] {
        // 4, 2, 1, 0.5 and 0.1 per second, as the interval.
        for interval in [250 * MS, 500 * MS, SECOND, 2 * SECOND, 10 * SECOND] {
            // Exactly ten permits lie above the threshold.
            let period = (1 + factor) * 5 * interval;
            for _ in 0..100 {
                let policy = SmoothWarmingUp::try_new(Rate::new(1, interval)?, period, factor.into())?;
                let took = run(policy.cool_at_once()).take_in_pieces(10, &mut dice)?;
                // The ticks by which the costs of the pieces are rounded up.
                let late = took.checked_sub(period).ok_or("too early")?;
                assert!(late <= Duration::from_nanos(1), "{late:?}");
            }
        }
    }
    Ok(())
}

// Unlimited and tiny rates

#[test]
fn infinity_bursty() -> Result<(), Refusal> {
    let run = run(SmoothBursty::new(Rate::UNLIMITED));
    assert_eq!(run.acquire_each(&[MANY / 4, MANY / 2, MANY])?, ms([0, 0, 0]));
    run.limiter.set_rate(Rate::per_second(2));
    // Two permits are saved, and one is granted ahead.
    assert_eq!(run.acquire_each(&[1, 1, 1, 1, 1])?, ms([0, 0, 0, 500, 500]));
    run.limiter.set_rate(Rate::UNLIMITED);
    assert_eq!(run.acquire_each(&[1, 1, 1])?, ms([500, 0, 0]));
    Ok(())
}

#[test]
fn infinity_bursty_time_elapsed() -> Result<(), Refusal> {
    let run = run(SmoothBursty::new(Rate::UNLIMITED));
    run.pass(MS);
    run.limiter.set_rate(Rate::per_second(2));
    assert_eq!(run.acquire_each(&[1, 1, 1, 1, 1])?, ms([0, 0, 0, 500, 500]));
    Ok(())
}

#[test]
fn infinity_warm_up() -> Result<(), Refusal> {
    let run = run(SmoothWarmingUp::new(Rate::UNLIMITED, 10 * SECOND));
    assert_eq!(run.acquire_each(&[MANY / 4, MANY / 2, MANY])?, ms([0, 0, 0]));
    run.limiter.set_rate(Rate::per_second(1));
    assert_eq!(run.acquire_each(&[1, 1, 1])?, ms([0, 1000, 1000]));
    run.limiter.set_rate(Rate::UNLIMITED);
    assert_eq!(run.acquire_each(&[1, 1, 1])?, ms([1000, 0, 0]));
    Ok(())
}

#[test]
fn infinity_warm_up_time_elapsed() -> Result<(), Refusal> {
    let run = run(SmoothWarmingUp::new(Rate::UNLIMITED, 10 * SECOND));
    run.pass(MS);
    run.limiter.set_rate(Rate::per_second(1));
    assert_eq!(run.acquire_each(&[1, 1, 1, 1, 1])?, ms([0, 1000, 1000, 1000, 1000]));
    Ok(())
}

#[test]
fn double_min_value_can_acquire_exactly_once() -> Result<(), RateError> {
    let run = run(SmoothBursty::new(Rate::from_per_second(f64::from_bits(1))?));
    assert!(run.limiter.try_acquire().is_ok());
    assert_eq!(run.limiter.try_acquire(), Err(Refusal::Limited { retry_after: Nanos::MAX }));
    run.pass(MANY * MS);
    assert!(run.limiter.try_acquire().is_err());
    Ok(())
}

#[test]
fn very_small_double_values() -> Result<(), RateError> {
    let run = run(SmoothBursty::new(Rate::from_per_second(f64::from_bits(1))?));
    assert!(run.limiter.try_acquire().is_ok());
    assert!(run.limiter.try_acquire().is_err());
    run.pass(5 * SECOND);
    assert!(run.limiter.try_acquire().is_err());
    Ok(())
}

// Arguments and shape

#[test]
fn simple_rate_update() -> Result<(), Box<dyn std::error::Error>> {
    let run = warming_up(5, 5 * SECOND, 3.0)?;
    assert_eq!(run.limiter.rate(), Rate::per_second(5));
    run.limiter.set_rate(Rate::per_second(10));
    assert_eq!(run.limiter.rate(), Rate::per_second(10));
    // `Rate` rejects the value, so no limiter can receive it.
    assert!(Rate::from_per_second(0.0).is_err());
    assert!(Rate::from_per_second(-10.0).is_err());
    Ok(())
}

#[test]
fn acquire_parameter_validation() {
    // A negative number of permits cannot be expressed.
    let run = bursty(999);
    let refused = Err(Refusal::ZeroPermits);
    assert_ready_eq!(spawn(run.limiter.acquire_many(0)).poll(), refused);
    assert_ready_eq!(spawn(run.limiter.acquire_many(Request::permits(0).within(SECOND))).poll(), refused);
    assert_eq!(run.limiter.try_acquire_many(0), Err(Refusal::ZeroPermits));
    assert_eq!(run.limiter.reserve(0).map(|_| ()), Err(Refusal::ZeroPermits));
    assert_eq!(run.limiter.blocking_acquire_many(0), refused);
    assert_eq!(run.limiter.blocking_acquire_many(Request::permits(0).within(SECOND)), refused);
}

#[test]
fn create_warmup_parameter_validation() {
    // A negative warm-up cannot be expressed.
    for warm_up in [Duration::ZERO, Duration::from_nanos(1)] {
        assert!(SmoothWarmingUp::try_new(Rate::per_second(1), warm_up, 3.0).is_ok());
    }
    assert!(Rate::new(0, SECOND).is_err());
}

// Case 29, Nulls: Rust has no null.

/// Cases 30 and 31, Mocking: code that uses a limiter can be tested without waiting. This test
/// passes a clock and mocks nothing.
#[test]
fn mocking() {
    async fn work<P: Policy, C: Timer>(limiter: &RateLimiter<P, C>) -> u32 {
        limiter.acquire().await.expect("the queue has no bounds");
        limiter.acquire().await.expect("the queue has no bounds");
        42
    }
    let run = bursty(1);
    let mut work = spawn(work(&run.limiter));
    assert!(work.poll().is_pending());
    run.pass(SECOND);
    assert!(work.is_woken());
    assert_ready_eq!(work.poll(), 42);
}
