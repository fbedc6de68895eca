//! Two policies as a configuration: two lines with `and` between them.

use std::fmt;
use std::str::FromStr;

use super::ConfigError;
use crate::policy::Both;

/// Between the lines of two policies.
const AND: &str = "and";

/// Reads two policies with `and` between them. Each policy is a line in the form of
/// [`PolicyConfig`](super::PolicyConfig#text). Three policies are a `Both` of a `Both` and a
/// policy, like `first.and(second).and(third)`.
///
/// # Examples
///
/// ```
/// use tidegate::{AnyPolicy, Both, ManualClock, RateLimiter};
///
/// let line = "token_bucket 5/s burst 10 and fixed_window 100/min";
/// let policy: Both<AnyPolicy, AnyPolicy> = line.parse()?;
/// assert_eq!(policy.to_string(), line);
/// let limiter = RateLimiter::with_clock(policy, ManualClock::new());
/// assert!(limiter.try_acquire().is_ok());
/// # Ok::<(), tidegate::ConfigError>(())
/// ```
impl<P, Q> FromStr for Both<P, Q>
where
    P: FromStr<Err = ConfigError>,
    Q: FromStr<Err = ConfigError>,
{
    type Err = ConfigError;

    fn from_str(text: &str) -> Result<Both<P, Q>, ConfigError> {
        let words: Vec<_> = text.split_whitespace().collect();
        let read = |at: usize| -> Result<Both<P, Q>, ConfigError> {
            Ok(Both::new(words[..at].join(" ").parse()?, words[at + 1..].join(" ").parse()?))
        };
        let is_between = |at: &usize| words[*at] == AND && *at > 0 && at + 1 < words.len();
        let mut first_error = None;
        // Either policy may be a pair itself.
        for at in (0..words.len()).rev().filter(is_between) {
            match read(at) {
                Ok(both) => return Ok(both),
                Err(error) => first_error = first_error.or(Some(error)),
            }
        }
        Err(first_error.unwrap_or_else(|| {
            let write = "two policies, such as token_bucket 5/s burst 10 and fixed_window 100/min";
            ConfigError::Form { given: text.into(), write: write.into() }
        }))
    }
}

/// Writes a line that reads back as an equal pair.
impl<P: fmt::Display, Q: fmt::Display> fmt::Display for Both<P, Q> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {AND} {}", self.first(), self.second())
    }
}

/// Returns the error for an `and` where one policy is read.
pub(super) fn one_policy(word: &str) -> Option<ConfigError> {
    let write = "one policy; two are read as a Both, or are two limits of one limiter";
    (word == AND).then(|| ConfigError::Form { given: word.into(), write: write.into() })
}

#[cfg(feature = "serde")]
mod with_serde {
    use std::marker::PhantomData;

    use serde::de::{self, Deserialize, Deserializer, SeqAccess, Visitor};
    use serde::ser::{Serialize, Serializer};

    use super::{Both, ConfigError, FromStr, fmt};

    /// Writes a list of the two policies.
    impl<P: Serialize, Q: Serialize> Serialize for Both<P, Q> {
        fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
            (self.first(), self.second()).serialize(serializer)
        }
    }

    /// Reads a line, or a list of two policies.
    impl<'de, P, Q> Deserialize<'de> for Both<P, Q>
    where
        P: Deserialize<'de> + FromStr<Err = ConfigError>,
        Q: Deserialize<'de> + FromStr<Err = ConfigError>,
    {
        fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Both<P, Q>, D::Error> {
            deserializer.deserialize_any(Pair(PhantomData))
        }
    }

    struct Pair<P, Q>(PhantomData<(P, Q)>);

    impl<'de, P, Q> Visitor<'de> for Pair<P, Q>
    where
        P: Deserialize<'de> + FromStr<Err = ConfigError>,
        Q: Deserialize<'de> + FromStr<Err = ConfigError>,
    {
        type Value = Both<P, Q>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str(
                "two policies: a line, such as \"token_bucket 5/s burst 10 and fixed_window 100/min\", or a \
                 list of two",
            )
        }

        fn visit_str<E: de::Error>(self, line: &str) -> Result<Both<P, Q>, E> {
            line.parse().map_err(E::custom)
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Both<P, Q>, A::Error> {
            let first = list.next_element()?.ok_or_else(|| de::Error::invalid_length(0, &self))?;
            let second = list.next_element()?.ok_or_else(|| de::Error::invalid_length(1, &self))?;
            match list.next_element::<de::IgnoredAny>()? {
                None => Ok(Both::new(first, second)),
                Some(_) => Err(de::Error::invalid_length(3, &self)),
            }
        }
    }
}
