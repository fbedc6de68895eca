//! [`WhileAway`]: how a process decides without its store.

use std::fmt;
use std::num::NonZeroU32;
use std::str::FromStr;

use crate::error::BuildError;

/// How limiters decide while their store does not reply.
///
/// It is read from, and written as, the text of a [configuration](crate::LimiterConfig); with the
/// feature `serde` in files as well.
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
    /// Each process grants its share of each limit by itself. The share is the limit divided by the
    /// number of processes that request permits from this store under its prefix, as the store last
    /// [reported](crate::Store::clients) it, and at least one permit. A process that has not
    /// requested permits from the store yet grants nothing. A request that is larger than the share
    /// is refused as [`Refusal::Unavailable`](tidegate::Refusal::Unavailable).
    ///
    /// In the window in which the store goes away, all shares together grant the limit divided by
    /// the number of processes, on top of the permits that the store granted. In no window is more
    /// granted than the limit and this part of it, until a later window begins without the store.
    /// For example, four processes grant nothing of a limit of 15 permits in this window, and one
    /// permit each of a limit of 16. In later windows the shares add up to the limit. The shares of
    /// a bucket together begin with this part of the burst, and refill at the rate.
    ///
    /// A request that waits keeps the time that the store booked for it, and is granted at that
    /// time while the store is away. The process assumes that the store is booked as far ahead for
    /// all processes as for the last of its own requests. All windows up to then therefore count as
    /// the window in which the store goes away, and the share of a bucket refills from then on. A
    /// process without waiting requests does not know how far ahead the store is booked for others:
    /// if only some processes have waiting requests, up to twice the limit is granted until these
    /// requests are served.
    ///
    /// At most 65,536 keys of a limit have a share at one time. A further key is refused as
    /// [`Refusal::Unavailable`](tidegate::Refusal::Unavailable) until another share is full again.
    ///
    /// When the store replies again, requests that wait for a share and have no maximum wait return
    /// to the store's queue. The request that returns first is sent at once, and the others queue
    /// in order of arrival, before newcomers. A request with a maximum wait, and a
    /// [reservation](tidegate::AnyReservation), keep their positions in the share. Each process
    /// asks whether the store is back at intervals of up to 6.25 s. Until the last process has
    /// asked, the store grants the limit in addition to the shares of the processes that have not
    /// asked yet.
    Share,
    /// Like [`Share`](WhileAway::Share), with this number of processes.
    ShareOf(NonZeroU32),
    /// Every request that the limits could grant is granted, except in a pause that this process
    /// knows of. Then a request that may wait until the end of the pause waits, and others, as well
    /// as reservations, are refused as [`Refusal::Paused`](tidegate::Refusal::Paused).
    Open,
    /// A request that may wait keeps its position in the queue until the store replies again. A
    /// request that does not wait is refused at once, and a request with a maximum wait when that
    /// wait ends, both as [`Refusal::Unavailable`](tidegate::Refusal::Unavailable), or as
    /// [`Refusal::Paused`](tidegate::Refusal::Paused) in a pause that this process knows of. A
    /// blocking call waits as well, except [`reserve`](tidegate::AnyLimiter::reserve), which does
    /// not wait for the store.
    ///
    /// If the store does not reply to a call in time, it may still have carried the call out. The
    /// requests of such a call are sent again, so their permits may be taken twice: the processes
    /// then grant fewer permits than the limit, never more.
    Wait,
    /// Every request is refused at once as
    /// [`Refusal::Unavailable`](tidegate::Refusal::Unavailable), even one that would wait for its
    /// turn. Its `retry_after` is the time until the store is tried again. In a pause that this
    /// process knows of, it is refused as [`Refusal::Paused`](tidegate::Refusal::Paused).
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
        let allowed = "closed, wait, open, share, or share_of with a number from 1, such as share_of 8";
        let error = BuildError::Field { field: "while_away", allowed, value: None };
        choice.ok_or_else(|| error.with_value(text))
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
