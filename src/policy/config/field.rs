//! The types that a field of a configuration can have.

use std::fmt;
use std::time::Duration;

use super::ConfigError;
use crate::rate::{Rate, is_too_long, read_span, span_in_units, suggested_span};

/// A type that a field of a configuration can have.
pub(super) trait Field: Sized {
    /// Whether a line contains the field's name without a value.
    const IS_FLAG: bool = false;
    /// The value of the field if a configuration does not set it. `None` means that the field is
    /// required.
    const UNSET: Option<Self> = None;

    fn read(field: &'static str, value: &str) -> Result<Self, ConfigError>;

    /// Returns the value to write; `None` if the field is not set.
    fn value(&self) -> Option<Value>;
}

/// The value of a field that is set.
#[derive(Debug)]
pub(super) enum Value {
    Rate(Rate),
    Flag,
    Number(u32),
    Factor(f64),
    Span(Duration),
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::Rate(rate) => rate.fmt(f),
            Value::Flag => f.write_str("true"),
            Value::Number(number) => number.fmt(f),
            Value::Factor(factor) => factor.fmt(f),
            Value::Span(span) => {
                let (count, unit) = span_in_units(u64::try_from(span.as_nanos()).unwrap_or(u64::MAX));
                write!(f, "{count}{unit}")
            }
        }
    }
}

fn bad(field: &'static str, value: &str, allowed: &str) -> ConfigError {
    ConfigError::Value { field, value: value.into(), allowed: allowed.into() }
}

impl Field for Rate {
    fn read(_: &'static str, value: &str) -> Result<Rate, ConfigError> {
        value.parse().map_err(ConfigError::Rate)
    }

    fn value(&self) -> Option<Value> {
        Some(Value::Rate(*self))
    }
}

impl Field for bool {
    const IS_FLAG: bool = true;
    const UNSET: Option<bool> = Some(false);

    fn read(field: &'static str, value: &str) -> Result<bool, ConfigError> {
        value.parse().map_err(|_| bad(field, value, "true or false"))
    }

    fn value(&self) -> Option<Value> {
        self.then_some(Value::Flag)
    }
}

impl Field for u32 {
    fn read(field: &'static str, value: &str) -> Result<u32, ConfigError> {
        let allowed = match field {
            "burst" => "a whole number from 1 to 4294967295",
            _ => "a whole number from 0 to 4294967295",
        };
        value.parse().map_err(|_| bad(field, value, allowed))
    }

    fn value(&self) -> Option<Value> {
        Some(Value::Number(*self))
    }
}

/// A number of cells.
impl Field for u16 {
    fn read(field: &'static str, value: &str) -> Result<u16, ConfigError> {
        value.parse().map_err(|_| bad(field, value, "a whole number from 1 to 65535"))
    }

    fn value(&self) -> Option<Value> {
        Some(Value::Number(u32::from(*self)))
    }
}

/// A cold factor.
impl Field for f64 {
    fn read(field: &'static str, value: &str) -> Result<f64, ConfigError> {
        let factor = value.parse().ok().filter(|factor: &f64| factor.is_finite());
        factor.ok_or_else(|| bad(field, value, "a number from 1 to 1000000"))
    }

    fn value(&self) -> Option<Value> {
        Some(Value::Factor(*self))
    }
}

impl Field for Duration {
    fn read(field: &'static str, value: &str) -> Result<Duration, ConfigError> {
        if value == "0" {
            return Ok(Duration::ZERO);
        }
        let form = "a whole number and a unit";
        let allowed = || match suggested_span(value) {
            Some(span) => format!("{form}: write {span}"),
            None if value.parse::<u64>().is_ok() => {
                format!("{form}: write {value}s, {value}ms or another unit")
            }
            None if is_too_long(value) => format!("{form}, at most 213503d"),
            None => format!("{form}, such as 500ms, 5s, 1min or 8h"),
        };
        read_span(value).ok_or_else(|| bad(field, value, &allowed()))
    }

    fn value(&self) -> Option<Value> {
        Some(Value::Span(*self))
    }
}

impl<T: Field> Field for Option<T> {
    const UNSET: Option<Option<T>> = Some(None);

    fn read(field: &'static str, value: &str) -> Result<Option<T>, ConfigError> {
        T::read(field, value).map(Some)
    }

    fn value(&self) -> Option<Value> {
        self.as_ref()?.value()
    }
}
