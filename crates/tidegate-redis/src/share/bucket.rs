//! What comes in to the bucket of a share, in whole permits.

use std::time::Duration;

use tidegate::Status;

use crate::terms::BucketNumbers;

/// How many permits a step brings, at most. A bucket that fills all the time has no steps.
pub(super) fn step_of(of: &BucketNumbers) -> u32 {
    let refill = if of.step > 0 { of.refill.unsigned_abs() } else { 0 };
    u32::try_from(refill.div_ceil(of.price.unsigned_abs().max(1))).unwrap_or(u32::MAX)
}

/// How many permits a bucket has less than its limit at an instant that lies `ahead`, at least.
/// With a debt that is more than the limit.
pub(super) fn missing(of: &BucketNumbers, status: Status, ahead: Duration) -> u32 {
    let [refill, price, step] =
        [of.refill, of.price, of.step].map(|number| u128::from(number.unsigned_abs()));
    let full_in = status.full_in.saturating_sub(ahead).as_nanos();
    let refills = match step {
        0 => full_in.saturating_mul(refill) / 1000,
        // The last step may bring a single permit.
        _ => (full_in.div_ceil(step * 1000).saturating_sub(1)).saturating_mul(refill),
    };
    let missing = u32::try_from(refills / price.max(1)).unwrap_or(u32::MAX);
    // Of a permit that comes in bit by bit, a part may be there.
    let is_whole = ahead.is_zero() && (step > 0 || refill == 0);
    let less = if is_whole { status.limit.saturating_sub(status.available) } else { 0 };
    missing.max(u32::try_from(less).unwrap_or(u32::MAX))
}
