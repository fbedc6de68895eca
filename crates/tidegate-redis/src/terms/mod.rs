//! The terms of a policy in the numbers of the scripts: integers below 2^53.

use std::time::Duration;

use tidegate::{PolicyConfig, Rate};

use crate::error::BuildError;

mod numbers;

pub(crate) use numbers::{BucketMode, BucketNumbers, Numbers, duration};

/// No level, and no product of a count and a length, is larger, so sums of two of them are exact in
/// a double.
const MOST: u128 = 1 << 51;

/// The most grant times that a log keeps in the store.
const MAX_ROOM: u32 = 4096;

/// The most cells of a window in the store.
const MAX_CELLS: u16 = 128;

/// A bucket that never refills is kept for a century, in microseconds.
const CENTURY: u128 = 3_155_760_000_000_000;

/// How much longer the full state of a limiter is kept, in microseconds, if the limiter does not
/// start full: with a new state it would have fewer permits.
const LINGER: i64 = 86_400_000_000;

/// How much longer the full state of a bucket is kept, in microseconds, if its requests may be
/// larger than its burst: for such a request, the time for which the bucket was full counts.
const IDLE: i64 = 10_000_000;

/// The algorithm of a policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    Bucket,
    Fixed,
    Cells,
    Estimate,
    Log,
}

impl Kind {
    pub(crate) const ALL: [Kind; 5] = [Kind::Bucket, Kind::Fixed, Kind::Cells, Kind::Estimate, Kind::Log];
}

/// The terms of one limit.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Terms {
    /// The end of the key. Policies of different kinds have no state in common, even if one
    /// algorithm serves them, nor do windows of different lengths.
    pub(crate) ending: String,
    pub(crate) numbers: Numbers,
    /// The most permits that one request can have; `None` if there is no such number.
    pub(crate) largest: Option<u64>,
    /// The most permits that can be available.
    pub(crate) limit: u64,
    /// The maximum wait that the policy itself allows.
    pub(crate) longest: Option<Duration>,
    pub(crate) rate: Rate,
}

impl Terms {
    pub(crate) fn kind(&self) -> Kind {
        self.numbers.kind()
    }

    pub(crate) fn new(config: &PolicyConfig) -> Result<Terms, BuildError> {
        // A configuration can be wrong in ways that only the policy detects.
        tidegate::AnyPolicy::try_from(config.clone())?;
        match config {
            PolicyConfig::TokenBucket {
                rate,
                burst,
                start_with,
                interval_refill,
                at_wall_clock,
                tolerance,
                ..
            } => {
                let stepped = *interval_refill || at_wall_clock.is_some();
                // A bucket with a tolerance holds more than its burst.
                let tolerance = tolerance.unwrap_or_default();
                let policy = BucketPolicy {
                    rate: *rate,
                    burst: *burst,
                    start_with: start_with.filter(|permits| permits < burst || !tolerance.is_zero()),
                    steps: stepped.then(|| at_wall_clock.unwrap_or_default()),
                    tolerance,
                    mode: BucketMode::Refuses,
                };
                Ok(bucket("bucket", *rate, policy.numbers(config)?))
            }
            PolicyConfig::LeakyBucket { rate, nodelay, capacity, max_wait, .. } => {
                leaky(config, *rate, *nodelay, *capacity, *max_wait)
            }
            PolicyConfig::SmoothBursty { rate, max_burst, start_full, .. } => {
                bursty(config, *rate, max_burst.unwrap_or(Duration::from_secs(1)), *start_full)
            }
            PolicyConfig::FixedWindow { rate, at_wall_clock, from_first_grant, .. } => {
                let (limit, length) = window(config, *rate)?;
                let offset = offset_in(at_wall_clock.unwrap_or_default(), length);
                let offset = (!from_first_grant).then_some(offset);
                Ok(counted(*rate, limit, Numbers::Fixed { limit, length, offset }))
            }
            PolicyConfig::SlidingWindow { rate, cells, at_wall_clock, .. } => {
                let (limit, length) = window(config, *rate)?;
                if *cells > MAX_CELLS {
                    return Err(unfit(config, format!("a window of more than {MAX_CELLS} cells")));
                }
                let cells = i64::from(*cells);
                let length = (length + cells - 1) / cells;
                let offset = offset_in(at_wall_clock.unwrap_or_default(), length);
                Ok(counted(*rate, limit, Numbers::Cells { limit, length, offset, cells }))
            }
            PolicyConfig::SlidingEstimate { rate, at_wall_clock, .. } => {
                let (limit, length) = window(config, *rate)?;
                if limit.unsigned_abs().saturating_mul(length.unsigned_abs()) >= 1 << 51 {
                    return Err(too_large(config));
                }
                let offset = offset_in(at_wall_clock.unwrap_or_default(), length);
                Ok(counted(*rate, limit, Numbers::Estimate { limit, length, offset }))
            }
            PolicyConfig::SlidingLog { rate, with_capacity, .. } => {
                let (limit, length) = window(config, *rate)?;
                let room = limit.max(with_capacity.unwrap_or(0).into()).max(1);
                if room > i64::from(MAX_ROOM) {
                    return Err(unfit(config, format!("a log of more than {MAX_ROOM} permits")));
                }
                Ok(counted(*rate, limit, Numbers::Log { limit, length, room }))
            }
            PolicyConfig::DenyAll { .. } => {
                let never = Numbers::Fixed { limit: 0, length: 1_000_000, offset: Some(0) };
                let terms = counted(Rate::ZERO, 0, never);
                // The rate refuses a request of any size, as in one process.
                Ok(Terms { largest: None, ending: "none".into(), ..terms })
            }
            PolicyConfig::SmoothWarmingUp { .. } => {
                Err(unfit(config, "smooth_warming_up, whose costs are not integers,"))
            }
            PolicyConfig::Unlimited { .. } => {
                Err(unfit(config, "a limit that limits nothing, which is to be left out,"))
            }
            _ => Err(unfit(config, "this policy")),
        }
    }
}

/// A token bucket or a leaky bucket, in the units of a configuration.
struct BucketPolicy {
    rate: Rate,
    burst: u32,
    start_with: Option<u32>,
    /// Set if permits are added all at once: the offset of the periods.
    steps: Option<Duration>,
    tolerance: Duration,
    mode: BucketMode,
}

impl BucketPolicy {
    fn numbers(&self, config: &PolicyConfig) -> Result<BucketNumbers, BuildError> {
        let (step, offset) = match self.steps {
            None => (0, 0),
            Some(_) if self.rate.is_zero() => (0, 0),
            Some(offset) => {
                let step = micros(config, self.rate.period())?;
                (step, offset_in(offset, step))
            }
        };
        // The numbers are those of one unit of time: a microsecond, or a step.
        let fraction = match (self.rate.is_zero(), step) {
            (true, _) => Some((0, 1)),
            (false, 0) => fraction(self.rate, 1000, self.rate.period().as_nanos()),
            (false, _) => fraction(self.rate, 1, 1),
        };
        let (refill, price) = fraction.ok_or_else(|| too_large(config))?;
        let tolerance = match step {
            0 => self.tolerance.as_nanos().checked_mul(refill).map(|units| units / 1000),
            step => {
                let units = self.tolerance.as_nanos().checked_mul(refill);
                units.map(|units| units / (u128::from(step.unsigned_abs()) * 1000))
            }
        };
        let slack = if step == 0 { refill.saturating_sub(1) } else { 0 };
        let full = u128::from(self.burst) * price;
        let cap = tolerance.and_then(|tolerance| full.checked_add(tolerance)?.checked_add(slack));
        let cap = cap.filter(|cap| *cap < MOST && price < MOST && refill < MOST);
        let Some(cap) = cap else { return Err(too_large(config)) };
        // A step adds no more than a bucket holds, as in one process.
        let refill = if step == 0 { refill } else { refill.min(cap) };
        let start = self.start_with.map_or(cap - slack, |permits| u128::from(permits) * price);
        let most = (cap - slack) / price;
        let number = |number: u128| i64::try_from(number).unwrap_or(i64::MAX);
        let linger = match (self.start_with, self.mode) {
            (Some(_), _) => LINGER,
            (None, BucketMode::Stretches) => IDLE,
            (None, _) => 0,
        };
        Ok(BucketNumbers {
            refill: number(refill),
            price: number(price),
            cap: number(cap),
            full: number(most * price),
            start: number(start),
            most: number(most),
            mode: self.mode,
            step,
            offset,
            linger,
            lasts: fills_in(refill, cap + price, step) + linger,
        })
    }
}

fn bucket(ending: &'static str, rate: Rate, numbers: BucketNumbers) -> Terms {
    let limit = numbers.most.unsigned_abs();
    let largest = match numbers.mode {
        BucketMode::Refuses => Some(limit),
        BucketMode::Stretches | BucketMode::NextPays => largest_of(numbers.price.unsigned_abs()),
    };
    let ending = ending.into();
    Terms { ending, numbers: Numbers::Bucket(numbers), largest, limit, longest: None, rate }
}

fn leaky(
    config: &PolicyConfig,
    rate: Rate,
    nodelay: Option<u32>,
    capacity: Option<u32>,
    max_wait: Option<Duration>,
) -> Result<Terms, BuildError> {
    let nodelay = nodelay.unwrap_or(0).min(capacity.unwrap_or(u32::MAX));
    let policy = BucketPolicy {
        rate,
        burst: nodelay.saturating_add(1),
        start_with: None,
        steps: None,
        tolerance: Duration::ZERO,
        mode: BucketMode::Stretches,
    };
    let numbers = policy.numbers(config)?;
    let (refill, price) = (numbers.refill, numbers.price);
    let longest = match capacity {
        None => max_wait,
        // Nothing leaves the queue, so no request waits.
        Some(_) if refill == 0 => Some(Duration::ZERO),
        Some(capacity) => {
            let water = i128::from(capacity - nodelay) * i128::from(price);
            let micros = (water + i128::from(refill) - 1) / i128::from(refill);
            Some(Duration::from_micros(u64::try_from(micros).unwrap_or(u64::MAX)))
        }
    };
    Ok(Terms { longest, ..bucket("leaky", rate, numbers) })
}

/// The time in which `units` units accrue, in microseconds.
fn fills_in(refill: u128, units: u128, step: i64) -> i64 {
    let micros = match refill {
        0 => CENTURY,
        refill => units.div_ceil(refill).saturating_mul(step.unsigned_abs().max(1).into()),
    };
    i64::try_from(micros.min(CENTURY)).unwrap_or(i64::MAX)
}

/// `SmoothBursty`: the next request pays.
fn bursty(
    config: &PolicyConfig,
    rate: Rate,
    max_burst: Duration,
    start_full: bool,
) -> Result<Terms, BuildError> {
    let fraction = match rate.is_zero() {
        true => Some((0, 1)),
        false => fraction(rate, 1000, rate.period().as_nanos()),
    };
    let (refill, price) = fraction.ok_or_else(|| too_large(config))?;
    let full = max_burst.as_nanos().checked_mul(refill).map(|units| units / 1000);
    let cap = full.map(|full| full.max(refill.saturating_sub(1)));
    let (Some(full), Some(cap)) = (full, cap.filter(|cap| *cap < MOST && price < MOST && refill < MOST))
    else {
        return Err(too_large(config));
    };
    let most = full / price + 1;
    // Without stored permits it starts full in any case.
    let start_full = start_full || full == 0;
    let number = |number: u128| i64::try_from(number).unwrap_or(i64::MAX);
    let linger = if start_full { 0 } else { LINGER };
    let numbers = BucketNumbers {
        refill: number(refill),
        price: number(price),
        cap: number(cap),
        full: number(full),
        start: if start_full { number(full) } else { 0 },
        most: number(most),
        mode: BucketMode::NextPays,
        step: 0,
        offset: 0,
        linger,
        lasts: fills_in(refill, cap + price, 0) + linger,
    };
    let terms = bucket("bursty", rate, numbers);
    Ok(Terms { limit: if rate.is_zero() { 0 } else { terms.limit }, ..terms })
}

/// The most permits of one request of a bucket without such a number: their cost is below the
/// smallest level that a script interprets as never.
fn largest_of(price: u64) -> Option<u64> {
    let largest = (2 * MOST - 1) / u128::from(price);
    u32::try_from(largest).ok().map(u64::from)
}

fn counted(rate: Rate, limit: i64, numbers: Numbers) -> Terms {
    let limit = limit.unsigned_abs();
    // Counts of windows of another length would match no window. The key of a window that begins
    // with its first grant has another value than that of a window of the clock.
    let ending = match numbers {
        Numbers::Bucket(_) => "bucket".into(),
        Numbers::Fixed { length, offset: None, .. } => format!("first-{length}"),
        Numbers::Fixed { length, .. } => format!("fixed-{length}"),
        Numbers::Cells { length, cells, .. } => format!("cells-{cells}x{length}"),
        Numbers::Estimate { length, .. } => format!("estimate-{length}"),
        Numbers::Log { length, .. } => format!("log-{length}"),
    };
    Terms { ending, numbers, largest: Some(limit), limit, longest: None, rate }
}

/// The permits of a rate as digits and a power of ten, exact for up to 15 digits. More digits do
/// not fit the numbers of a script anyway.
fn decimal(rate: Rate) -> Option<(u128, i32)> {
    let text = format!("{:e}", rate.permits());
    let (mantissa, exponent) = text.split_once('e')?;
    let (whole, part) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let digits = format!("{whole}{part}").parse().ok()?;
    let exponent = exponent.parse::<i32>().ok()?;
    Some((digits, exponent - i32::try_from(part.len()).ok()?))
}

/// Returns the fraction `permits * times / over`, reduced; `None` if it is too large.
pub(crate) fn fraction(rate: Rate, times: u128, over: u128) -> Option<(u128, u128)> {
    let (digits, exponent) = decimal(rate).filter(|_| !rate.is_unlimited())?;
    let power = 10u128.checked_pow(exponent.unsigned_abs())?;
    let (above, below) = match exponent >= 0 {
        true => (digits.checked_mul(power)?.checked_mul(times)?, over),
        false => (digits.checked_mul(times)?, over.checked_mul(power)?),
    };
    let divisor = gcd(above, below).max(1);
    Some((above / divisor, below / divisor))
}

/// Returns a rate as whole permits in a period: `2.5/s` is 5 permits in two seconds.
pub(crate) fn whole_permits(rate: Rate) -> Option<(u64, Duration)> {
    let (permits, periods) = fraction(rate, 1, 1)?;
    let length = u64::try_from(rate.period().as_nanos().checked_mul(periods)?).ok()?;
    Some((u64::try_from(permits).ok()?, Duration::from_nanos(length)))
}

/// The limit and the length of a window, in whole permits and microseconds.
fn window(config: &PolicyConfig, rate: Rate) -> Result<(i64, i64), BuildError> {
    if rate.is_zero() {
        return Ok((0, 1_000_000));
    }
    let (permits, length) = whole_permits(rate).ok_or_else(|| too_large(config))?;
    let length = micros(config, length)?;
    match i64::try_from(permits) {
        Ok(limit) if limit <= i64::from(u32::MAX) => Ok((limit, length)),
        _ => Err(too_large(config)),
    }
}

/// A duration in whole microseconds.
fn micros(config: &PolicyConfig, span: Duration) -> Result<i64, BuildError> {
    let nanos = span.as_nanos();
    if !nanos.is_multiple_of(1000) || nanos == 0 {
        return Err(unfit(config, "a period that is not a whole number of microseconds"));
    }
    match i64::try_from(nanos / 1000) {
        Ok(micros) if u128::from(micros.unsigned_abs()) < MOST => Ok(micros),
        _ => Err(too_large(config)),
    }
}

/// The distance of an offset from the preceding multiple of `length`.
fn offset_in(offset: Duration, length: i64) -> i64 {
    let length = u128::from(length.unsigned_abs());
    i64::try_from(offset.as_micros() % length).unwrap_or(0)
}

fn gcd(mut a: u128, mut b: u128) -> u128 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

fn unfit(config: &PolicyConfig, why: impl Into<String>) -> BuildError {
    BuildError::Policy { policy: config.to_string(), why: why.into() }
}

fn too_large(config: &PolicyConfig) -> BuildError {
    unfit(config, "a number of more than 51 bits")
}
