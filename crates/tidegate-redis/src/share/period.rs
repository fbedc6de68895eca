//! How long a share is reduced at first.

use std::time::Duration;

use crate::terms::{BucketNumbers, Numbers, duration};

/// A time that begins with an outage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Period {
    For(Duration),
    /// To the end of a window of this length by the wall clock, with this offset.
    Window(Duration, Duration),
}

impl Period {
    pub(super) fn of(numbers: &Numbers) -> Period {
        match *numbers {
            Numbers::Fixed { length, offset: Some(offset), .. } => {
                Period::Window(duration(length), duration(offset))
            }
            Numbers::Fixed { length, offset: None, .. }
            | Numbers::Estimate { length, .. }
            | Numbers::Log { length, .. } => Period::For(duration(length)),
            Numbers::Cells { length, cells, .. } => Period::For(duration(length.saturating_mul(cells))),
            Numbers::Bucket(BucketNumbers { refill: 0, .. }) => Period::For(Duration::MAX),
            Numbers::Bucket(BucketNumbers { refill, cap, step, .. }) => {
                let refills = (cap + refill - 1) / refill;
                Period::For(duration(refills.saturating_mul(step.max(1))))
            }
        }
    }

    /// Returns how long a share that begins lacks `less` permits. For a bucket, this is until they
    /// have accrued, when an unused share is full. A bucket that refills in steps lacks all of them
    /// for its whole period, because its first step may come at once.
    pub(super) fn lacking(numbers: &Numbers, less: u32) -> Period {
        match *numbers {
            Numbers::Bucket(BucketNumbers { refill, price, step: 0, .. }) if refill > 0 => {
                let refills = i128::from(less) * i128::from(price) / i128::from(refill);
                Period::For(duration(i64::try_from(refills).unwrap_or(i64::MAX)))
            }
            _ => Period::of(numbers),
        }
    }

    /// Returns whether the period is not over, after a silence of this duration, at this time of
    /// the server's clock.
    pub(super) fn is_running(self, silence: Duration, time: Duration) -> bool {
        match self {
            Period::For(length) => silence < length,
            Period::Window(length, offset) => {
                let length = length.as_nanos().max(1);
                let in_window = (time.as_nanos() + length - offset.as_nanos() % length) % length;
                silence.as_nanos() <= in_window
            }
        }
    }
}
