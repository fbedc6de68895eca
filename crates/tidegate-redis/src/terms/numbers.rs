//! The numbers of a limit that are passed to a script, by their names in the Lua file of its
//! algorithm.

use std::time::Duration;

use super::Kind;

/// The most numbers of one limit.
const MOST: usize = 11;

/// The numbers of one limit. Durations are in microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Numbers {
    Bucket(BucketNumbers),
    Fixed {
        limit: i64,
        length: i64,
        /// `None` if a window begins with its first grant.
        offset: Option<i64>,
    },
    Cells {
        limit: i64,
        /// The length of one cell.
        length: i64,
        offset: i64,
        cells: i64,
    },
    Estimate {
        limit: i64,
        length: i64,
        offset: i64,
    },
    Log {
        limit: i64,
        length: i64,
        room: i64,
    },
}

/// The numbers of a bucket. The table in `lua/bucket.lua` explains them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BucketNumbers {
    pub(crate) refill: i64,
    pub(crate) price: i64,
    pub(crate) cap: i64,
    pub(crate) full: i64,
    pub(crate) start: i64,
    pub(crate) most: i64,
    pub(crate) mode: BucketMode,
    pub(crate) step: i64,
    pub(crate) offset: i64,
    pub(crate) linger: i64,
    /// The time to fill, plus `linger`.
    pub(crate) lasts: i64,
}

/// The treatment of a request for more permits than a bucket ever has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BucketMode {
    /// The request is never due.
    Refuses = 0,
    /// The request waits until its own cost has accrued.
    Stretches = 1,
    /// The request is due at once, and the next request pays.
    NextPays = 2,
}

impl Numbers {
    pub(crate) fn kind(&self) -> Kind {
        match self {
            Numbers::Bucket(_) => Kind::Bucket,
            Numbers::Fixed { .. } => Kind::Fixed,
            Numbers::Cells { .. } => Kind::Cells,
            Numbers::Estimate { .. } => Kind::Estimate,
            Numbers::Log { .. } => Kind::Log,
        }
    }

    /// Returns the duration of a window that ends with all that it counts: of a fixed window, or of
    /// a step that fills its bucket. `None` for any other limit.
    pub(crate) fn window(&self) -> Option<Duration> {
        match *self {
            Numbers::Fixed { length, .. } => Some(duration(length)),
            Numbers::Bucket(BucketNumbers { refill, cap, step, .. }) if step > 0 && refill >= cap => {
                Some(duration(step))
            }
            _ => None,
        }
    }

    /// In the order of the table at the head of the Lua file.
    pub(crate) fn iter(&self) -> impl ExactSizeIterator<Item = i64> {
        let (numbers, count) = match *self {
            Numbers::Bucket(of) => row([
                of.refill,
                of.price,
                of.cap,
                of.full,
                of.start,
                of.most,
                of.mode as i64,
                of.step,
                of.offset,
                of.linger,
                of.lasts,
            ]),
            Numbers::Fixed { limit, length, offset } => row([limit, length, offset.unwrap_or(-1)]),
            Numbers::Cells { limit, length, offset, cells } => row([limit, length, offset, cells]),
            Numbers::Estimate { limit, length, offset } => row([limit, length, offset]),
            Numbers::Log { limit, length, room } => row([limit, length, room]),
        };
        numbers.into_iter().take(count)
    }
}

/// Returns a duration in microseconds as a [`Duration`].
pub(crate) fn duration(micros: i64) -> Duration {
    Duration::from_micros(u64::try_from(micros).unwrap_or(0))
}

fn row<const N: usize>(numbers: [i64; N]) -> ([i64; MOST], usize) {
    let mut row = [0; MOST];
    row[..N].copy_from_slice(&numbers);
    (row, N)
}
