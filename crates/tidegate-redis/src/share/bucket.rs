//! What accrues in the bucket of a share, in whole permits.

use std::time::Duration;

use tidegate::Status;

use crate::terms::BucketNumbers;

/// Returns how many permits a step adds, at most. A bucket that refills continuously has no steps.
pub(super) fn step_of(of: &BucketNumbers) -> u32 {
    let refill = if of.step > 0 { of.refill.unsigned_abs() } else { 0 };
    u32::try_from(refill.div_ceil(of.price.unsigned_abs().max(1))).unwrap_or(u32::MAX)
}

/// Returns how many permits a bucket lacks to its limit at a time that lies `ahead`, at least. With
/// a negative balance this is more than the limit.
pub(super) fn missing(of: &BucketNumbers, status: Status, ahead: Duration) -> u32 {
    let [refill, price, step] =
        [of.refill, of.price, of.step].map(|number| u128::from(number.unsigned_abs()));
    let full_in = status.full_in.saturating_sub(ahead).as_nanos();
    let refills = match step {
        0 => full_in.saturating_mul(refill) / 1000,
        // The last step may add a single permit.
        _ => (full_in.div_ceil(step * 1000).saturating_sub(1)).saturating_mul(refill),
    };
    let missing = u32::try_from(refills / price.max(1)).unwrap_or(u32::MAX);
    // A part of a permit that accrues continuously may be there.
    let is_whole = ahead.is_zero() && (step > 0 || refill == 0);
    let less = if is_whole { status.limit.saturating_sub(status.available) } else { 0 };
    missing.max(u32::try_from(less).unwrap_or(u32::MAX))
}
