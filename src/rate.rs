//! [`Rate`]: a number of permits per period, stored exactly as written.

use std::error::Error;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

const SECOND: u64 = 1_000_000_000;
const MINUTE: u64 = 60 * SECOND;
const HOUR: u64 = 60 * MINUTE;
const DAY: u64 = 24 * HOUR;

/// The units of a period, longest first: the name and the number of nanoseconds.
const UNITS: [(&str, u64); 7] =
    [("d", DAY), ("h", HOUR), ("min", MINUTE), ("s", SECOND), ("ms", 1_000_000), ("us", 1_000), ("ns", 1)];

/// Other names of units. `m` is read as minutes, as in Go and NGINX. The other names are recognised
/// only so that an error can suggest what to write.
const OTHER_UNITS: [(&str, &str); 22] = [
    ("m", "min"),
    ("mins", "min"),
    ("minute", "min"),
    ("minutes", "min"),
    ("sec", "s"),
    ("secs", "s"),
    ("second", "s"),
    ("seconds", "s"),
    ("hr", "h"),
    ("hrs", "h"),
    ("hour", "h"),
    ("hours", "h"),
    ("day", "d"),
    ("days", "d"),
    ("msec", "ms"),
    ("millis", "ms"),
    ("millisecond", "ms"),
    ("milliseconds", "ms"),
    ("µs", "us"),
    ("μs", "us"),
    ("micros", "us"),
    ("nanos", "ns"),
];

/// A number of permits per period of time: "5 per second", "1000 per 100 ms".
///
/// A rate is exact. It is stored as written: a decimal number of permits, of up to 15 digits unless
/// it is a whole number, and a whole number of nanoseconds. The rate read back from a limiter is
/// therefore the rate that was given. Two rates are equal only if both numbers are equal: `300/min`
/// is as fast as `5/s`, but not equal to it, because a window policy treats them differently. To
/// compare speeds, use [`as_per_second`](Rate::as_per_second).
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use tidegate::Rate;
///
/// let rate = Rate::new(1000, Duration::from_millis(100))?;
/// assert_eq!(rate.to_string(), "1000/100ms");
/// assert_eq!("1000/100ms".parse::<Rate>()?, rate);
/// assert_eq!("2.5/s".parse::<Rate>()?.as_per_second(), 2.5);
/// let error = "0/s".parse::<Rate>().unwrap_err();
/// assert_eq!(
///     error.to_string(),
///     "rate 0/s is not above zero; the rate without permits is `zero`"
/// );
/// let error = "10 per second".parse::<Rate>().unwrap_err();
/// assert_eq!(error.to_string(), "\"10 per second\" is not a rate: write 10/s");
/// # Ok::<(), tidegate::RateError>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Rate {
    /// The digits of the number of permits. Zero only in `UNLIMITED` and `ZERO`.
    digits: u64,
    /// The power of ten that multiplies `digits`; zero for a whole number of permits.
    exponent: i16,
    /// The period in nanoseconds, at least 1 and at most `MAX_PERIOD`. Zero only in `UNLIMITED`.
    period: u64,
}

/// The reason why a [`Rate`] could not be created.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum RateError {
    /// The number of permits is zero or negative.
    NotPositive {
        /// The number given.
        permits: f64,
        /// The period given.
        period: Duration,
    },
    /// The number of permits is infinite or not a number.
    NotFinite {
        /// The number given.
        permits: f64,
    },
    /// The period is zero or longer than [`Rate::MAX_PERIOD`].
    Period {
        /// The period given.
        period: Duration,
    },
    /// The text is not of the form `PERMITS/PERIOD`.
    Syntax {
        /// The text given.
        text: Box<str>,
        /// What to write instead, if the text is recognised.
        write: Option<Box<str>>,
    },
    /// The text contains a number or a period that is invalid in a rate.
    Text {
        /// The text given.
        text: Box<str>,
        /// The error in the text.
        error: Box<RateError>,
    },
}

impl fmt::Display for RateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RateError::NotPositive { permits, period } => {
                match period.as_secs() {
                    _ if period.subsec_nanos() > 0 => write!(f, "rate {permits}/{period:?}")?,
                    1 => write!(f, "rate {permits}/s")?,
                    60 => write!(f, "rate {permits}/min")?,
                    3600 => write!(f, "rate {permits}/h")?,
                    86_400 => write!(f, "rate {permits}/d")?,
                    _ => write!(f, "rate {permits}/{period:?}")?,
                }
                f.write_str(" is not above zero; the rate without permits is `zero`")
            }
            RateError::NotFinite { permits } => {
                write!(
                    f,
                    "{permits} permits are not a finite number; the rate without a limit is `unlimited`"
                )
            }
            RateError::Period { period } => {
                write!(f, "period {period:?} is not between 1ns and 36.5 years")
            }
            RateError::Syntax { text, write: Some(write) } => {
                write!(f, "{text:?} is not a rate: write {write}")
            }
            RateError::Syntax { text, write: None } => write!(
                f,
                "{text:?} is not a rate: write permits/period with s, min, h, d, ms, us or ns, such as 5/s, \
                 2.5/min or 1000/100ms, or unlimited or zero"
            ),
            RateError::Text { text, error } => write!(f, "rate {text:?}: {error}"),
        }
    }
}

impl Error for RateError {}

impl Rate {
    /// The longest period of a rate: 2^60 ns, about 36.5 years.
    pub const MAX_PERIOD: Duration = Duration::from_nanos(1 << 60);

    /// No limit. A limiter with this rate grants every request at once. Only Guava's two policies
    /// repay an earlier negative balance first.
    ///
    /// Only this constant, or the text `unlimited`, means "no limit". No number overflows into it:
    /// an infinite `f64` is an error.
    pub const UNLIMITED: Rate = Rate { digits: 0, exponent: 0, period: 0 };

    /// No permits, until the rate is changed. A bucket at this rate still grants its stored
    /// permits.
    ///
    /// Only this constant, or the text `zero`, means "no permits": a number that is zero by mistake
    /// is an error.
    pub const ZERO: Rate = Rate { digits: 0, exponent: 0, period: SECOND };

    /// Creates a rate of `permits` per second.
    ///
    /// # Panics
    ///
    /// Panics if `permits` is 0. In a constant this is a build error. For numbers from a
    /// configuration, use [`Rate::new`] or parse a string.
    #[must_use]
    #[track_caller]
    pub const fn per_second(permits: u64) -> Rate {
        Rate::per(permits, SECOND)
    }

    /// Creates a rate of `permits` per minute.
    ///
    /// # Panics
    ///
    /// Panics if `permits` is 0, like [`per_second`](Rate::per_second).
    #[must_use]
    #[track_caller]
    pub const fn per_minute(permits: u64) -> Rate {
        Rate::per(permits, MINUTE)
    }

    /// Creates a rate of `permits` per hour.
    ///
    /// # Panics
    ///
    /// Panics if `permits` is 0, like [`per_second`](Rate::per_second).
    #[must_use]
    #[track_caller]
    pub const fn per_hour(permits: u64) -> Rate {
        Rate::per(permits, HOUR)
    }

    /// Creates a rate of `permits` per day of 24 hours.
    ///
    /// # Panics
    ///
    /// Panics if `permits` is 0, like [`per_second`](Rate::per_second).
    #[must_use]
    #[track_caller]
    pub const fn per_day(permits: u64) -> Rate {
        Rate::per(permits, DAY)
    }

    #[track_caller]
    const fn per(permits: u64, period: u64) -> Rate {
        assert!(permits > 0, "a rate of 0 permits is not above zero; the rate without permits is Rate::ZERO");
        Rate { digits: permits, exponent: 0, period }
    }

    /// Creates a rate of `permits` per `period`.
    ///
    /// # Errors
    ///
    /// - [`RateError::NotPositive`] if `permits` is 0.
    /// - [`RateError::Period`] if `period` is 0 or longer than [`Rate::MAX_PERIOD`].
    pub const fn new(permits: u64, period: Duration) -> Result<Rate, RateError> {
        if permits == 0 {
            return Err(RateError::NotPositive { permits: 0.0, period });
        }
        match nanos_of(period) {
            Some(period) => Ok(Rate { digits: permits, exponent: 0, period }),
            None => Err(RateError::Period { period }),
        }
    }

    /// Creates a rate of `permits` per second from a float, which must be finite and above zero.
    ///
    /// The float is read as the shortest decimal that parses to it. For example, `0.1` is exactly
    /// one permit per ten seconds, and [`as_per_second`](Rate::as_per_second) returns the float
    /// that was given.
    ///
    /// # Errors
    ///
    /// - [`RateError::NotPositive`] if `permits` is zero or negative.
    /// - [`RateError::NotFinite`] if `permits` is infinite or not a number. For no limit, use
    ///   [`Rate::UNLIMITED`].
    ///
    /// # Examples
    ///
    /// ```
    /// use tidegate::Rate;
    ///
    /// assert_eq!(Rate::from_per_second(0.1)?.as_per_second(), 0.1);
    /// assert!(Rate::from_per_second(f64::NAN).is_err());
    /// assert!(Rate::from_per_second(-1.0).is_err());
    /// # Ok::<(), tidegate::RateError>(())
    /// ```
    pub fn from_per_second(permits: f64) -> Result<Rate, RateError> {
        Rate::from_float(permits, Duration::from_secs(1))
    }

    /// Creates a rate of `permits` per `period` from a float.
    fn from_float(permits: f64, period: Duration) -> Result<Rate, RateError> {
        if !permits.is_finite() {
            return Err(RateError::NotFinite { permits });
        }
        if permits <= 0.0 {
            return Err(RateError::NotPositive { permits, period });
        }
        let period = nanos_of(period).ok_or(RateError::Period { period })?;
        // The standard library writes the shortest decimal that reads back as this float: at most
        // 17 digits, which fit, and an exponent between -340 and 308.
        let shortest = format!("{permits:e}");
        let (mantissa, exponent) = shortest.split_once('e').unwrap_or((&shortest, "0"));
        let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
        let digits = format!("{whole}{fraction}").parse().unwrap_or(1);
        let shift = i16::try_from(fraction.len()).unwrap_or(i16::MAX);
        let exponent = exponent.parse::<i16>().unwrap_or(0) - shift;
        Ok(Rate { digits, exponent, period }.plain())
    }

    /// Removes the exponent of a whole number that fits, so that `5.0` and `5` are equal rates.
    fn plain(self) -> Rate {
        let whole = u32::try_from(self.exponent)
            .ok()
            .and_then(|exponent| 10u64.checked_pow(exponent))
            .and_then(|power| self.digits.checked_mul(power));
        match whole {
            Some(digits) => Rate { digits, exponent: 0, ..self },
            None => self,
        }
    }

    /// Returns whether this is [`Rate::UNLIMITED`].
    #[must_use]
    pub const fn is_unlimited(self) -> bool {
        self.period == 0
    }

    /// Returns whether this is [`Rate::ZERO`].
    #[must_use]
    pub const fn is_zero(self) -> bool {
        self.digits == 0 && self.period > 0
    }

    /// Returns the permits per second as a float, for display and statistics. The result is
    /// infinite if the rate is unlimited.
    ///
    /// A rate created with [`from_per_second`](Rate::from_per_second) returns the float from which
    /// it was created.
    #[must_use]
    pub fn as_per_second(self) -> f64 {
        if self.is_unlimited() {
            return f64::INFINITY;
        }
        let permits = self.permits();
        // A period of one second needs no arithmetic, so a float comes back unchanged.
        if self.period == SECOND { permits } else { permits * (SECOND as f64 / self.period as f64) }
    }

    /// Returns the period, or zero if the rate is unlimited.
    #[must_use]
    pub const fn period(self) -> Duration {
        Duration::from_nanos(self.period)
    }

    /// Returns the permits of one [`period`](Rate::period): the exact number if it is whole and has
    /// at most 15 digits, and the nearest float otherwise. The result is infinite if the rate is
    /// unlimited.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use tidegate::Rate;
    ///
    /// let rate: Rate = "100/1min".parse()?;
    /// assert_eq!((rate.permits(), rate.period()), (100.0, Duration::from_secs(60)));
    /// assert_eq!(Rate::ZERO.permits(), 0.0);
    /// assert_eq!(Rate::UNLIMITED.permits(), f64::INFINITY);
    /// # Ok::<(), tidegate::RateError>(())
    /// ```
    #[must_use]
    pub fn permits(self) -> f64 {
        if self.is_unlimited() {
            return f64::INFINITY;
        }
        // Parsing the decimal rounds correctly; a product of floats would not.
        format!("{}e{}", self.digits, self.exponent).parse().unwrap_or(f64::INFINITY)
    }

    /// Returns the rate as a whole number of permits in a period of nanoseconds: `2.5/s` is 5 in 2
    /// s. Returns `None` if there is no such period, or a number does not fit.
    pub(crate) fn whole(self) -> Option<(u32, u64)> {
        let power = 10u64.checked_pow(u32::from(self.exponent.unsigned_abs()))?;
        let (mut permits, mut period) = (self.digits, self.period);
        if self.exponent < 0 {
            // Lengthens the period by the smallest whole factor.
            let needed = power / gcd(permits, power).max(1);
            permits /= power / needed;
            period = period
                .checked_mul(needed)
                .filter(|period| nanos_of(Duration::from_nanos(*period)).is_some())?;
        } else {
            permits = permits.checked_mul(power)?;
        }
        Some((u32::try_from(permits).ok()?, period))
    }

    /// Returns a rate of whole permits that differs from this rate by less than a millionth, in at
    /// most a thousand periods of this rate: `1/3s` for `0.3333333/s`.
    pub(crate) fn whole_nearby(self) -> Option<Rate> {
        let permits = self.permits();
        (1..=1000u32).find_map(|periods| {
            let count = permits * f64::from(periods);
            let near = count.round();
            let is_near = near >= 1.0 && near <= f64::from(u32::MAX) && (near / count - 1.0).abs() < 1e-6;
            // In range, just checked.
            #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
            is_near.then(|| Rate::new(near as u64, self.period().saturating_mul(periods)).ok()).flatten()
        })
    }

    /// Returns the shortest period, in nanoseconds, with a whole number of permits, or this rate's
    /// period if there is none: 2 s for `2.5/s`.
    pub(crate) fn whole_period(self) -> u64 {
        self.whole().map_or(self.period, |(_, period)| period)
    }

    /// Returns a rate of whole permits in a period, as near as possible to this rate and never
    /// faster: fewer permits, or one permit in a longer period.
    pub(crate) fn whole_or_less(self) -> (u32, u64) {
        let permits = self.permits();
        if permits >= 1.0 || permits == 0.0 {
            // The cast truncates, and saturates at `u32::MAX`.
            #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
            return (permits as u32, self.period);
        }
        // The value is above zero, and the cast saturates at `u64::MAX`.
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        let period = (self.period as f64 / permits).ceil() as u64;
        // The period, the permits and the quotient are each off by at most one part in 2^53. The
        // additions make up for that, so the period is never too short. A rate slower than one
        // permit in the longest period becomes that rate.
        (1, period.saturating_add(period >> 50).saturating_add(1).min(1 << 60))
    }

    /// Returns the digits, the power of ten and the period in nanoseconds. All are zero if the rate
    /// is unlimited.
    pub(crate) const fn parts(self) -> (u64, i16, u64) {
        (self.digits, self.exponent, self.period)
    }

    /// Packs the rate into words that can be published atomically.
    pub(crate) fn to_words(self) -> [u64; 3] {
        [self.digits, u64::from(self.exponent.cast_unsigned()), self.period]
    }

    /// Unpacks the words of [`to_words`](Rate::to_words).
    pub(crate) fn from_words([digits, exponent, period]: [u64; 3]) -> Rate {
        // Only the low 16 bits are ever set.
        #[allow(clippy::cast_possible_truncation)]
        Rate { digits, exponent: (exponent as u16).cast_signed(), period }
    }
}

fn gcd(mut a: u64, mut b: u64) -> u64 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

/// Returns the nanoseconds of a period, or `None` if a rate cannot have this period.
const fn nanos_of(period: Duration) -> Option<u64> {
    let nanos = period.as_nanos();
    if nanos == 0 || nanos > Rate::MAX_PERIOD.as_nanos() {
        return None;
    }
    // At most 2^60, just checked.
    #[allow(clippy::cast_possible_truncation)]
    Some(nanos as u64)
}

/// Writes the rate so that parsing the text returns the same rate: `5/s`, `2.5/s`, `100/min`,
/// `1000/100ms`, `unlimited`, `zero`.
impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_unlimited() {
            return f.write_str("unlimited");
        }
        if self.is_zero() {
            return f.write_str("zero");
        }
        let places = usize::from(self.exponent.unsigned_abs());
        match self.exponent {
            0 => write!(f, "{}", self.digits)?,
            // Up to 20 decimal places are written out. Other exponents use scientific notation.
            -20..0 => {
                let digits = format!("{:0width$}", self.digits, width = places + 1);
                let (whole, fraction) = digits.split_at(digits.len() - places);
                write!(f, "{whole}.{fraction}")?;
            }
            _ => write!(f, "{}e{}", self.digits, self.exponent)?,
        }
        match span_in_units(self.period) {
            (1, name) => write!(f, "/{name}"),
            (count, name) => write!(f, "/{count}{name}"),
        }
    }
}

/// Returns a duration as a whole number of the largest unit that divides it.
pub(crate) fn span_in_units(nanos: u64) -> (u64, &'static str) {
    if nanos == 0 {
        return (0, "s");
    }
    let (name, unit) = UNITS.into_iter().find(|(_, unit)| nanos.is_multiple_of(*unit)).unwrap_or(("ns", 1));
    (nanos / unit, name)
}

/// Reads a duration: a whole number and a unit, or only a unit, which means one of that unit.
pub(crate) fn read_span(text: &str) -> Option<Duration> {
    let unit = text.trim_start_matches(|c: char| c.is_ascii_digit());
    let count = match &text[..text.len() - unit.len()] {
        "" => 1,
        digits => digits.parse::<u64>().ok()?,
    };
    let unit = if unit.trim() == "m" { "min" } else { unit.trim() };
    let (_, nanos) = UNITS.into_iter().find(|(name, _)| *name == unit)?;
    Some(Duration::from_nanos(count.checked_mul(nanos)?))
}

/// Returns whether a text is a whole number and a unit, and too long for [`read_span`].
pub(crate) fn is_too_long(text: &str) -> bool {
    let unit = text.trim_start_matches(|c: char| c.is_ascii_digit());
    unit.len() < text.len() && read_span(unit).is_some() && read_span(text).is_none()
}

/// Returns how to write a duration that is recognised although [`read_span`] does not read it: one
/// with a fraction, or with another name of the unit.
pub(crate) fn suggested_span(text: &str) -> Option<String> {
    let text = text.trim().to_lowercase();
    let unit = text.trim_start_matches(|c: char| c.is_ascii_digit() || c == '.' || c == '_');
    let count = text[..text.len() - unit.len()].replace('_', "");
    let unit = unit.trim();
    let unit = OTHER_UNITS.iter().find(|(name, _)| *name == unit).map_or(unit, |(_, unit)| unit);
    let (_, nanos) = UNITS.into_iter().find(|(name, _)| *name == unit)?;
    let nanos = match count.as_str() {
        "" => nanos as f64,
        count => count.parse::<f64>().ok()? * nanos as f64,
    };
    // Exact below 2^53, which is 104 days.
    if nanos.fract() > 0.0 || nanos > (1u64 << 53) as f64 {
        return None;
    }
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // Just checked.
    let (count, unit) = span_in_units(nanos as u64);
    Some(format!("{count}{unit}"))
}

/// Returns how to write a rate that is recognised although it cannot be read: `10 per second`,
/// `5/sec`, `1k/s`, `5rps`, or `5`, which has no period.
fn suggested_rate(text: &str) -> Option<String> {
    let text = text.trim().to_lowercase();
    if text.parse::<f64>().is_ok_and(|permits| permits.is_finite() && permits > 0.0) {
        return Some(format!("{text}/s, {text}/min or with another period"));
    }
    let (permits, period) = text.split_once('/').or_else(|| text.split_once(" per ")).or_else(|| {
        let permits = ["rps", "qps", "tps", "ps", "hz"].iter().find_map(|unit| text.strip_suffix(unit))?;
        Some((permits, "s"))
    })?;
    // "10 requests per second". Other words, and commas that do not group by three digits, make
    // another number.
    let mut words = permits.split_whitespace();
    let permits = words.next()?;
    let things =
        ["request", "req", "call", "permit", "message", "operation", "op", "query", "queries", "token"];
    let mut groups = permits.split(',');
    let is_whole = |digits: &str| digits.chars().all(|digit| digit.is_ascii_digit() || digit == '_');
    let (first, is_grouped) = (groups.next()?, permits.contains(','));
    let are_groups = (1..=3).contains(&first.len()) && is_whole(first) && !first.starts_with('0');
    let are_groups = are_groups && groups.all(|group| group.len() == 3 && is_whole(group));
    if !words.all(|word| things.contains(&word.trim_end_matches('s'))) || is_grouped && !are_groups {
        return None;
    }
    let permits = permits.replace(['_', ','], "");
    let permits = ["k", "m", "g"].iter().zip(["e3", "e6", "e9"]).fold(permits, |permits, (unit, power)| {
        permits.strip_suffix(unit).map(|permits| format!("{permits}{power}")).unwrap_or(permits)
    });
    let period = period.trim();
    let period = if read_span(period).is_some() { period.to_owned() } else { suggested_span(period)? };
    read_rate(&format!("{permits}/{period}")).ok().map(|rate| rate.to_string())
}

impl fmt::Debug for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Rate({self})")
    }
}

/// Reads `PERMITS/PERIOD`, `unlimited` or `zero`.
///
/// `PERMITS` is a number above zero, optionally with a fraction or an exponent. `PERIOD` is `s`,
/// `min` or `m`, `h`, `d`, `ms`, `us` or `ns`, optionally after a whole number: `100ms`. Spaces
/// around the parts are ignored. The error for any other text says what to write if the text is
/// recognised.
impl FromStr for Rate {
    type Err = RateError;

    fn from_str(text: &str) -> Result<Rate, RateError> {
        read_rate(text).map_err(|error| match error {
            None => RateError::Syntax { text: text.into(), write: suggested_rate(text).map(Into::into) },
            // This error contains the text as it was written.
            Some(error @ RateError::NotPositive { .. }) => error,
            Some(error) => RateError::Text { text: text.into(), error: Box::new(error) },
        })
    }
}

/// Reads a rate. The error is `None` if the text does not have the form of a rate.
fn read_rate(text: &str) -> Result<Rate, Option<RateError>> {
    if text.trim() == "unlimited" {
        return Ok(Rate::UNLIMITED);
    }
    if text.trim() == "zero" {
        return Ok(Rate::ZERO);
    }
    let (permits, period) = text.split_once('/').ok_or(None)?;
    let (permits, period) = (permits.trim(), period.trim());
    let period = read_span(period).ok_or(None)?;
    let rate = match permits.parse::<u64>() {
        Ok(permits) => Rate::new(permits, period),
        Err(_) => {
            // `f64` parses words like "inf" and "NaN"; `from_float` reports them.
            let permits = permits.parse::<f64>().map_err(|_| None)?;
            Rate::from_float(permits, period)
        }
    };
    rate.map_err(Some)
}

/// Serializes the rate as the text that [`Display`](fmt::Display) writes.
#[cfg(feature = "serde")]
impl serde::Serialize for Rate {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// Deserializes a rate from the text that [`FromStr`] reads.
#[cfg(feature = "serde")]
impl<'de> serde::Deserialize<'de> for Rate {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Rate, D::Error> {
        struct Text;

        impl serde::de::Visitor<'_> for Text {
            type Value = Rate;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a rate as a string, such as \"5/s\"")
            }

            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Rate, E> {
                text.parse().map_err(E::custom)
            }
        }

        deserializer.deserialize_str(Text)
    }
}

#[cfg(all(test, not(tidegate_loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn text_goes_round() {
        for text in [
            "5/s",
            "100/min",
            "2.5/s",
            "1000/100ms",
            "7/h",
            "3/d",
            "0.001/s",
            "1/7us",
            "9/3ns",
            "unlimited",
            "zero",
        ] {
            assert_eq!(text.parse::<Rate>().map(|rate| rate.to_string()), Ok(text.to_owned()));
        }
    }

    #[test]
    fn a_rate_in_rust_is_the_rate_of_its_text() {
        let rates = [Rate::per_second(5), Rate::per_minute(5), Rate::per_hour(5), Rate::per_day(5)];
        assert_eq!(rates.map(|rate| rate.to_string()), ["5/s", "5/min", "5/h", "5/d"]);
    }

    #[test]
    fn a_rate_that_is_not_whole_is_rounded_to_less() {
        // A float cannot represent every nanosecond above 2^53 ns.
        for (text, shortest) in [("87e-11/s", 1_149_425_287_356_321_840), ("3e-8/s", 33_333_333_333_333_334)]
        {
            let (permits, period) = text.parse().map(Rate::whole_or_less).unwrap_or_default();
            assert_eq!(permits, 1);
            assert!(period >= shortest && period - shortest <= (shortest >> 49) + 2, "{text}: {period}");
        }
        assert_eq!("1e-300/s".parse().map(Rate::whole_or_less), Ok((1, 1 << 60)));
    }

    #[test]
    fn the_error_of_bad_text_says_what_to_write() {
        let general = "write permits/period with s, min, h, d, ms, us or ns, such as 5/s, 2.5/min or 1000/100ms, \
                       or unlimited or zero";
        for (text, error) in [
            ("0/s", "rate 0/s is not above zero; the rate without permits is `zero`"),
            ("-3/min", "rate -3/min is not above zero; the rate without permits is `zero`"),
            ("0/d", "rate 0/d is not above zero; the rate without permits is `zero`"),
            (
                "NaN/s",
                "rate \"NaN/s\": NaN permits are not a finite number; the rate without a limit is `unlimited`",
            ),
            (
                "1e400/s",
                "rate \"1e400/s\": inf permits are not a finite number; the rate without a limit is `unlimited`",
            ),
            ("1/0s", "rate \"1/0s\": period 0ns is not between 1ns and 36.5 years"),
            ("1/99999d", "rate \"1/99999d\": period 8639913600s is not between 1ns and 36.5 years"),
            ("5", "\"5\" is not a rate: write 5/s, 5/min or with another period"),
            ("5/sec", "\"5/sec\" is not a rate: write 5/s"),
            ("1,500 calls per minute", "\"1,500 calls per minute\" is not a rate: write 1500/min"),
        ] {
            assert_eq!(text.parse::<Rate>().map_err(|e| e.to_string()), Err(error.to_owned()), "{text}");
        }
        // A wrong suggestion is worse than none.
        let numbers = [
            "5 k/s",
            "10 million per second",
            "1,5/s",
            "1,00,000/s",
            "2 thousand/s",
            "10 000/s",
            "10 MB/s",
            "0,125/s",
            "1.234,567/s",
            "12345,678/s",
        ];
        let others =
            ["", "/", "5/week", "x/s", "1/99999999999999999999s", "0 per second", "per second", "k/s"];
        for text in numbers.into_iter().chain(others) {
            let error = format!("{text:?} is not a rate: {general}");
            assert_eq!(text.parse::<Rate>().map_err(|e| e.to_string()), Err(error), "{text}");
        }
    }

    #[test]
    fn m_is_read_as_minutes() {
        assert_eq!("5/m".parse(), Ok(Rate::per_minute(5)));
        assert_eq!("5/10m".parse::<Rate>().map(|rate| rate.to_string()), Ok("5/10min".to_owned()));
    }

    #[test]
    fn a_fraction_is_near_a_whole_rate() {
        let near = |text: &str| text.parse::<Rate>().ok()?.whole_nearby().map(|rate| rate.to_string());
        assert_eq!(near("0.3333333333333/s").as_deref(), Some("1/3s"));
        assert_eq!(near("16.6666666666/min").as_deref(), Some("50/3min"));
        assert_eq!(near("3.14159265358979/s"), Some("355/113s".to_owned()));
        assert_eq!(near("0.0000123456/s"), None);
    }

    #[test]
    fn whole_floats_are_whole_rates() {
        assert_eq!(Rate::from_per_second(5.0), Ok(Rate::per_second(5)));
        assert_eq!(Rate::from_per_second(1e6), Ok(Rate::per_second(1_000_000)));
    }

    #[test]
    fn extreme_floats_read_back() {
        for permits in [f64::from_bits(1), f64::MIN_POSITIVE, f64::MAX, 1e-13, 1.0000000000000002] {
            assert_eq!(Rate::from_per_second(permits).map(Rate::as_per_second), Ok(permits));
        }
    }

    proptest! {
        #[test]
        fn every_rate_reads_back(digits in 1u64.., exponent in -330i16..300, period in 1u64..=1 << 60) {
            let rate = Rate { digits, exponent: 0, period };
            prop_assert_eq!(rate.to_string().parse(), Ok(rate));
            prop_assert_eq!(Rate::from_words(rate.to_words()), rate);
            if let Ok(float) = format!("{digits}e{exponent}").parse::<f64>()
                && float > 0.0
                && float.is_finite()
            {
                let rate = Rate::from_per_second(float)?;
                prop_assert_eq!(rate.as_per_second(), float);
                prop_assert_eq!(rate.to_string().parse(), Ok(rate));
            }
        }
    }
}
