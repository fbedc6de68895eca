//! Times in headers: numbers of several units, durations and dates, relative to the response's
//! `Date`.

use std::time::{Duration, SystemTime};

use jiff::civil::{DateTime, Time};
use jiff::fmt::{rfc2822, strtime, temporal::Pieces};
use jiff::tz::Offset;
use jiff::{Span, SpanRelativeTo, Timestamp};

use super::number::{self, Decimal};
use crate::When;

/// The longest wait that a server can mean. A longer number is a mistake or an attack, and is
/// ignored. A date may be later, because a pause is capped anyway.
pub(super) const FURTHEST: Duration = Duration::from_secs(100 * 365 * 86_400);

/// A month, the longest window of a common quota, in seconds. A larger plain number is
/// milliseconds.
const MONTH: u64 = 31 * 86_400;

/// How a plain number in a reset header is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum Numbers {
    /// By its size: a Unix time in seconds, milliseconds, microseconds or nanoseconds, otherwise
    /// seconds from now. A number from 100 on that exceeds the window of its limit by more than two
    /// seconds, or a month if the window is unknown, is read as milliseconds if these do not exceed
    /// it. If a policy of the draft has the window, as in `100;w=60`, this applies to numbers from
    /// 10,000 on. If the window is unknown, a multiple of 60,000 is milliseconds, too, and from
    /// 100,000 on a multiple of 1000 that is not whole hours in seconds. A number that equals the
    /// `Retry-After` is always seconds.
    #[default]
    Guess,
    /// Seconds from now.
    Seconds,
    /// Milliseconds from now.
    Milliseconds,
    /// A Unix time in seconds.
    UnixSeconds,
    /// A Unix time in milliseconds.
    UnixMilliseconds,
}

/// The window of a limit, and where it is from.
#[derive(Debug, Clone, Copy)]
pub(super) enum Window {
    /// A policy of the draft. The draft has resets in seconds, and a bucket in debt resets after
    /// its window.
    OfPolicy(Duration),
    Other(Duration),
}

impl Window {
    pub(super) fn length(self) -> Duration {
        let (Window::OfPolicy(length) | Window::Other(length)) = self;
        length
    }
}

/// The time of the response, by the clock of the server, and how this server writes resets.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Clock {
    date: Option<Timestamp>,
    numbers: Numbers,
    /// A time to retry that the response reports next to its resets.
    pub(super) retry_after: Option<When>,
}

impl Clock {
    /// Reads the header `Date`.
    pub(super) fn of(date: Option<&str>, numbers: Numbers) -> Self {
        // A server without a clock sends 1970; no HTTP response is older than 1991.
        let plausible = |date: &Timestamp| date.as_second() > 662_688_000;
        let date = date.and_then(|text| parse_date(text.trim())).filter(plausible);
        Self { date, numbers, retry_after: None }
    }

    /// Counts a time from the `Date` if there is one.
    fn when(self, at: Timestamp) -> When {
        let Some(date) = self.date else {
            // Platforms differ in how they represent times before 1970. Such a time is in the past.
            let since_1970 = Duration::try_from(at.as_duration()).unwrap_or_default();
            return When::At(
                SystemTime::UNIX_EPOCH.checked_add(since_1970).unwrap_or(SystemTime::UNIX_EPOCH),
            );
        };
        let ahead = at.duration_since(date);
        When::In(if ahead.is_negative() { Duration::ZERO } else { ahead.unsigned_abs() })
    }

    /// Reads a `Retry-After`, or a header with this meaning. `unit` is the unit of a plain number.
    pub(super) fn retry_after(self, text: &str, unit: Duration) -> Option<When> {
        match number::decimal(text) {
            Some(number) => match number.times(unit)? {
                long if long.as_secs() >= UNIX_SECONDS => self.unix(number),
                wait => Some(When::In(wait)),
            },
            None => self.duration_or_date(text),
        }
    }

    /// Reads a reset. `window` is the window of the limit, if it is known.
    pub(super) fn reset(self, text: &str, window: Option<Window>) -> Option<When> {
        let Some(number) = number::decimal(text) else {
            return self.duration_or_date(text);
        };
        let within = |unit| number.times(unit).filter(|d| *d < FURTHEST).map(When::In);
        match self.numbers {
            Numbers::Seconds => within(SECOND),
            Numbers::Milliseconds => within(MILLISECOND),
            Numbers::UnixSeconds => unix_time(number, SECOND).map(|at| self.when(at)),
            Numbers::UnixMilliseconds => unix_time(number, MILLISECOND).map(|at| self.when(at)),
            Numbers::Guess if number.whole >= UNIX_SECONDS => self.unix(number),
            Numbers::Guess => {
                let (longest, least) = match window {
                    // Servers in milliseconds that send policies are rarer than hours of debt.
                    Some(Window::OfPolicy(window)) => (window, 10_000),
                    Some(Window::Other(window)) => (window, 100),
                    None => (Duration::from_secs(MONTH), 100),
                };
                let (seconds, milliseconds) = (number.times(SECOND)?, number.times(MILLISECOND)?);
                // Two seconds of grace, because servers round up, and some count the present
                // second.
                let misread = number.whole >= least
                    && seconds > longest.saturating_add(2 * SECOND)
                    && milliseconds <= longest;
                // A number that equals the `Retry-After` when read in milliseconds is in
                // milliseconds.
                let beside = matches!(self.retry_after, Some(When::In(wait))
                    if number.whole >= 1000 && milliseconds.abs_diff(wait) <= SECOND);
                // A `Retry-After` of the same number is in seconds, and so is the reset.
                let same = matches!(self.retry_after, Some(When::In(wait))
                    if seconds.abs_diff(wait) <= SECOND);
                let round = window.is_none() && is_round_in_milliseconds(number.whole);
                within(if !same && (misread || beside || round) { MILLISECOND } else { SECOND })
            }
        }
    }

    /// Reads a Unix time, whose unit follows from its size. Microseconds and nanoseconds are rare:
    /// they are accepted only if the result is near the `Date`.
    fn unix(self, number: Decimal) -> Option<When> {
        let unit = match number.whole {
            0..UNIX_MILLISECONDS => SECOND,
            UNIX_MILLISECONDS..UNIX_MICROSECONDS => MILLISECOND,
            UNIX_MICROSECONDS..UNIX_NANOSECONDS => Duration::from_micros(1),
            UNIX_NANOSECONDS.. => Duration::from_nanos(1),
        };
        let at = unix_time(number, unit)?;
        let near = || self.date.is_some_and(|date| at.duration_since(date).unsigned_abs() < YEAR);
        (unit >= MILLISECOND || near()).then(|| self.when(at))
    }

    fn duration_or_date(self, text: &str) -> Option<When> {
        match parse_duration(text) {
            // A Unix time with a unit: `1792567710s`.
            Some(at) if at.as_secs() >= UNIX_SECONDS => {
                let at = jiff::SignedDuration::try_from(at).ok().filter(|_| at < FURTHEST)?;
                Timestamp::from_duration(at).ok().map(|at| self.when(at))
            }
            Some(duration) => Some(When::In(duration)),
            None => parse_date(text).map(|at| self.when(at)),
        }
    }
}

pub(super) const SECOND: Duration = Duration::from_secs(1);
pub(super) const MILLISECOND: Duration = Duration::from_millis(1);

/// The smallest numbers that are read as Unix times: 2001 in seconds, and for each smaller unit a
/// thousand times the number before.
const UNIX_SECONDS: u64 = 1_000_000_000;
const UNIX_MILLISECONDS: u64 = UNIX_SECONDS * 1000;
const UNIX_MICROSECONDS: u64 = UNIX_MILLISECONDS * 1000;
const UNIX_NANOSECONDS: u64 = UNIX_MICROSECONDS * 1000;

const YEAR: Duration = Duration::from_secs(365 * 86_400);

fn unix_time(number: Decimal, unit: Duration) -> Option<Timestamp> {
    let since_1970 = jiff::SignedDuration::try_from(number.times(unit)?).ok()?;
    Timestamp::from_duration(since_1970).ok()
}

/// Returns whether a reset is whole minutes in milliseconds, or whole seconds in milliseconds and
/// not whole hours in seconds. A quota of days or of a month starts with whole hours.
fn is_round_in_milliseconds(number: u64) -> bool {
    (number > 0 && number.is_multiple_of(60_000))
        || (number >= 100_000 && number.is_multiple_of(1000) && !number.is_multiple_of(3600))
}

/// Reads durations such as `6m0s`, `12ms`, `30 seconds`, `30 (in seconds)`, `00:00:30` and `PT30S`.
pub(super) fn parse_duration(text: &str) -> Option<Duration> {
    if !short(text) {
        return None;
    }
    let span: Span = match text.strip_suffix(')').and_then(|text| text.split_once('(')) {
        Some((number, unit)) => format!("{number}{}", unit.strip_prefix("in ").unwrap_or(unit)).parse(),
        None => text.parse(),
    }
    .ok()?;
    let duration = span.to_duration(SpanRelativeTo::days_are_24_hours()).ok()?;
    // Negative durations are ignored.
    Duration::try_from(duration).ok()
}

/// Reads a window: `60`, `1m`, `5 second`, `hour`, `daily`. A plain number that is a multiple of
/// 60,000 is whole minutes in milliseconds: no hour, day or week in seconds is such a multiple.
pub(super) fn window(text: &str) -> Option<Duration> {
    let text = text.trim();
    let duration = match number::decimal(text) {
        Some(number) if number.whole.is_multiple_of(60_000) => number.times(MILLISECOND),
        Some(number) => number.times(SECOND),
        None => unit_of_time(text).or_else(|| parse_duration(text)),
    };
    duration.filter(|d| !d.is_zero() && d.as_secs() < 1_000_000_000)
}

/// Returns the length of a named unit of time. Months and years have no fixed length.
pub(super) fn unit_of_time(word: &str) -> Option<Duration> {
    Some(Duration::from_secs(match word.to_ascii_lowercase().as_str() {
        "s" | "sec" | "second" | "seconds" | "secondly" | "persecond" => 1,
        "m" | "min" | "minute" | "minutes" | "minutely" | "perminute" => 60,
        "h" | "hr" | "hour" | "hours" | "hourly" | "perhour" => 3600,
        "d" | "day" | "days" | "daily" | "today" | "perday" => 86_400,
        "w" | "week" | "weekly" => 7 * 86_400,
        _ => return None,
    }))
}

/// Reads the dates of RFC 9110, of RFC 3339 and ISO 8601 with parts missing, of JavaScript, of Java
/// and of .NET.
fn parse_date(text: &str) -> Option<Timestamp> {
    if !short(text) {
        return None;
    }
    // Some servers use another name for the zone of RFC 9110, and Go writes the zone twice.
    let text = without_zone(text, " UTC");
    let no_zone = without_zone(text, " GMT");
    // The date does not depend on the day of the week, and some servers send a wrong day.
    let no_day = no_zone.split_once([',', ' ']).map_or(no_zone, |(_, rest)| rest.trim_start());
    let utc = |format, text| strtime::parse(format, text).and_then(|t| t.to_datetime()).ok();
    // The last day of the year 9999 is out of jiff's range.
    let last = |date: DateTime| (date.year() == 9999).then_some(Timestamp::MAX);
    let at = |date: DateTime| Offset::UTC.to_timestamp(date).ok().or_else(|| last(date));

    if let Some(date) = utc("%d %b %Y %H:%M:%S", no_day)
        .or_else(|| utc("%d-%b-%y %H:%M:%S", no_day))
        .or_else(|| utc("%d-%b-%Y %H:%M:%S", no_day))
        .or_else(|| utc("%b %e %H:%M:%S %Y", no_day))
        .or_else(|| utc("%b %e %H:%M:%S UTC %Y", no_day))
        .or_else(|| utc("%b %e %H:%M:%S GMT %Y", no_day))
        .or_else(|| utc("%B %d, %Y %I:%M:%S %p", no_day))
        .or_else(|| utc("%Y/%m/%d %H:%M:%S", no_zone))
    {
        return at(date);
    }
    if let Ok(zoned) = rfc2822::DateTimeParser::new().relaxed_weekday(true).parse_timestamp(text) {
        return Some(zoned);
    }
    if let Ok(time) = strtime::parse("%b %e %H:%M:%S %z %Y", no_day) {
        return time.to_timestamp().ok();
    }
    // JavaScript: "Thu Jan 01 2026 00:00:00 GMT+0000 (Coordinated Universal Time)"
    let no_comment = no_day.split(" (").next().unwrap_or(no_day);
    if let Ok(time) = strtime::parse("%b %d %Y %H:%M:%S GMT%z", no_comment) {
        return time.to_timestamp().ok();
    }
    // ISO 8601. Ruby and Go write a blank before the offset.
    let joined = no_zone.replacen(" +", "+", 1).replacen(" -", "-", 1);
    let pieces = Pieces::parse(&joined).ok()?;
    let date = DateTime::from_parts(pieces.date(), pieces.time().unwrap_or(Time::midnight()));
    // A time without an offset is in UTC, because the server does not know the client's time zone.
    pieces.to_numeric_offset().unwrap_or(Offset::UTC).to_timestamp(date).ok()
}

fn without_zone<'t>(text: &'t str, zone: &str) -> &'t str {
    let at = text.len().saturating_sub(zone.len());
    match text.split_at_checked(at) {
        Some((date, end)) if end.eq_ignore_ascii_case(zone) => date,
        _ => text,
    }
}

/// Returns whether a value is short enough to read, which bounds the work. The longest form is
/// JavaScript's.
fn short(text: &str) -> bool {
    text.len() <= 80
}
