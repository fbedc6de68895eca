//! [`WhileAway`]: how a process decides without its store.

use std::fmt;
use std::num::NonZeroU32;
use std::str::FromStr;

use crate::error::BuildError;

/// How limiters decide while their store does not answer.
///
/// It is read from the text of a [configuration](crate::LimiterConfig) and written as such, with
/// the feature `serde` also in files.
///
/// # Examples
///
/// ```
/// use std::num::NonZeroU32;
/// use tidegate_redis::WhileAway;
///
/// let eight = NonZeroU32::new(8).expect("not zero");
/// assert_eq!("share_of 8".parse(), Ok(WhileAway::ShareOf(eight)));
/// assert_eq!(WhileAway::Wait.to_string(), "wait");
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum WhileAway {
    /// Each process grants its share of each limit, by itself: a limit divided by the number of
    /// processes that ask this store under its prefix, as the store [saw](crate::Store::clients) it
    /// last, and at least one permit. A process that has not asked the store for permits yet grants
    /// nothing. A request that is larger than the share is refused as
    /// [`Refusal::Unavailable`](tidegate::Refusal::Unavailable).
    ///
    /// In the window in which the store goes away, all shares together grant the limit divided by
    /// the number of processes, on top of the permits that the store granted: in no window more is
    /// granted than the limit and this part of it, until a later window begins without the store.
    /// So four processes grant nothing of a limit of 15 permits in this window, and one permit each
    /// of a limit of 16. In later windows the shares are together the limit. The shares of a bucket
    /// begin with this part of the burst together, and fill at the rate.
    ///
    /// A request that waits keeps the instant that the store booked for it, and is granted while
    /// the store is away. The process takes the store to be booked as far ahead for all processes
    /// as for the last of its own requests. So the windows up to then count as the one in which the
    /// store goes away, and the share of a bucket fills from then on. A process without requests
    /// that wait does not know how far ahead the store is booked for others: where only some
    /// processes have such requests, up to twice the limit is granted until these are served.
    ///
    /// At most 65,536 keys of a limit have a share at one time. A key beyond them is refused as
    /// [`Refusal::Unavailable`](tidegate::Refusal::Unavailable) until another share is full again.
    ///
    /// When the store answers again, requests that wait for a share, and have no longest wait, go
    /// back to the line of the store. The request that returns first is sent at once, and the
    /// others stand in order of arrival, before newcomers. A request with a longest wait, and a
    /// [reservation](tidegate::AnyReservation), keep their places in the share. Each process asks
    /// whether the store is back at intervals of up to 6.25 s. Until the last process has asked,
    /// the store grants the limit beside the shares of the processes that have not.
    Share,
    /// As [`Share`](WhileAway::Share), with this number of processes.
    ShareOf(NonZeroU32),
    /// Every request is granted.
    Open,
    /// A request that may wait keeps its place in line until the store answers again. A request
    /// that does not wait is refused at once, and one with a longest wait at the end of it, as
    /// [`Refusal::Unavailable`](tidegate::Refusal::Unavailable). A blocking call waits as well, but
    /// for [`reserve`](tidegate::AnyLimiter::reserve), which does not wait for the store.
    ///
    /// Whether the store carried out a call that it did not answer in time is not known. The
    /// requests of such a call are sent again, so their permits may be taken twice: the processes
    /// then grant fewer permits than the limit, never more.
    Wait,
    /// Every request is refused at once, as
    /// [`Refusal::Unavailable`](tidegate::Refusal::Unavailable), also one that would wait for its
    /// turn. Its `retry_after` tells when the store is asked again.
    #[default]
    Closed,
}

/// Reads `share`, `share_of` and a number, `open`, `wait` or `closed`.
impl FromStr for WhileAway {
    type Err = BuildError;

    fn from_str(text: &str) -> Result<WhileAway, BuildError> {
        let words: Vec<_> = text.split_whitespace().collect();
        let choice = match words[..] {
            ["share"] => Some(WhileAway::Share),
            ["share_of", number] => number.parse::<NonZeroU32>().ok().map(WhileAway::ShareOf),
            ["open"] => Some(WhileAway::Open),
            ["wait"] => Some(WhileAway::Wait),
            ["closed"] => Some(WhileAway::Closed),
            _ => None,
        };
        choice.ok_or(BuildError::Field {
            field: "while_away",
            allowed: "closed, wait, open, share, or share_of with a number from 1, such as share_of 8",
            value: None,
        })
    }
}

/// Writes the text from which [`from_str`](WhileAway::from_str) reads an equal choice.
impl fmt::Display for WhileAway {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            WhileAway::Share => f.write_str("share"),
            WhileAway::ShareOf(processes) => write!(f, "share_of {processes}"),
            WhileAway::Open => f.write_str("open"),
            WhileAway::Wait => f.write_str("wait"),
            WhileAway::Closed => f.write_str("closed"),
        }
    }
}

#[cfg(feature = "serde")]
impl serde::Serialize for WhileAway {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(feature = "serde")]
impl<'de> serde::Deserialize<'de> for WhileAway {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<WhileAway, D::Error> {
        let text = <std::borrow::Cow<'_, str>>::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}
