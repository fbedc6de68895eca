//! Plain decimal numbers in headers.

use std::time::Duration;

/// A decimal number in a header, not negative.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Decimal {
    pub(super) whole: u64,
    nanos: u32,
}

impl Decimal {
    /// Returns this many times `unit`, which is a minute or less, rounded down to a nanosecond.
    /// Returns `None` on overflow.
    pub(super) fn times(self, unit: Duration) -> Option<Duration> {
        // The product is below 2^64 times 2^36; a minute has fewer than 2^36 nanoseconds.
        let fraction = u128::from(self.nanos) * unit.as_nanos() / 1_000_000_000;
        let nanos = u128::from(self.whole) * unit.as_nanos() + fraction;
        let seconds = u64::try_from(nanos / 1_000_000_000).ok()?;
        Some(Duration::new(seconds, u32::try_from(nanos % 1_000_000_000).ok()?))
    }

    /// Returns the number as a count, or `None` above the largest Integer of RFC 9651: no limit is
    /// that large.
    fn count(self) -> Option<f64> {
        // Counts are far below 2^53, where a float is exact.
        #[expect(clippy::cast_precision_loss)]
        let count = self.whole as f64 + f64::from(self.nanos) / 1e9;
        (count < 1e15).then_some(count)
    }
}

/// Reads digits with an optional fraction, and nothing else: no sign, no exponent. Quotes around
/// the number are allowed. A sign marks a sentinel (`-1`), and no server sends `1e400` as a number.
pub(super) fn decimal(text: &str) -> Option<Decimal> {
    let text = unquoted(text.trim());
    let (whole, fraction) = text.split_once('.').unwrap_or((text, "0"));
    let digits = |s: &str| !s.is_empty() && s.bytes().all(|b| b.is_ascii_digit());
    if !digits(whole) || !digits(fraction) {
        return None;
    }
    let nanos = fraction.bytes().map(|b| u32::from(b - b'0')).chain(std::iter::repeat(0)).take(9);
    Some(Decimal { whole: whole.parse().ok()?, nanos: nanos.fold(0, |n, digit| n * 10 + digit) })
}

pub(super) fn unquoted(text: &str) -> &str {
    let inner = text.strip_prefix('"').and_then(|t| t.strip_suffix('"'));
    inner.filter(|t| !t.contains('"')).unwrap_or(text)
}

/// Reads a plain count.
pub(super) fn count(text: &str) -> Option<f64> {
    decimal(text)?.count()
}
