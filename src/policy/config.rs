//! A policy as a configuration: a struct, a line of text, or with serde.

use std::error::Error;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use crate::error::PolicyError;
use crate::policy::{
    AnyPolicy, DenyAll, FixedWindow, LeakyBucket, SlidingEstimate, SlidingLog, SlidingWindow, SmoothBursty,
    SmoothWarmingUp, TokenBucket, Unlimited,
};
use crate::rate::{Rate, RateError, read_span, span_in_units};

/// Which policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "snake_case"))]
#[non_exhaustive]
#[allow(missing_docs)] // Each is what it is named after.
pub enum PolicyKind {
    SmoothBursty,
    SmoothWarmingUp,
    TokenBucket,
    LeakyBucket,
    FixedWindow,
    SlidingWindow,
    SlidingEstimate,
    SlidingLog,
    Unlimited,
    DenyAll,
}

/// What a configuration says of a policy: its kind, its rate, and what else that kind has.
///
/// What is left out is as in the policy's own constructor. A field that the policy does not have is
/// an error, so that nothing is silently ignored.
///
/// # Text
///
/// The kind, the rate without spaces, and then each field with its value, in any order:
/// `token_bucket 100/s burst 20`. A field that is only set or not, such as `from_first_grant`, has
/// no value. `unlimited` and `deny_all` have nothing else. Spans are whole numbers with a unit:
/// `500ms`, `8h`.
///
/// | kind | fields |
/// |---|---|
/// | `smooth_bursty` | `max_burst` (span), `start_full` |
/// | `smooth_warming_up` | `warm_up` (span, needed), `cold_factor`, `start_warm`, `cool_at_once` |
/// | `token_bucket` | `burst` (needed), `start_with`, `interval_refill`, `at_wall_clock` (span), `tolerance` (span) |
/// | `leaky_bucket` | `nodelay`, `capacity` or `max_wait` (span) |
/// | `fixed_window` | `at_wall_clock` (span) or `from_first_grant` |
/// | `sliding_window` | `cells` (needed), `at_wall_clock` (span) |
/// | `sliding_estimate` | `at_wall_clock` (span) |
/// | `sliding_log` | `with_capacity` |
///
/// # serde
///
/// With the feature `serde` it can be read from and written to any format, with the same names;
/// rates and spans are strings. An [`AnyPolicy`] can be read, too: then what is missing or does not
/// fit is an error of the format's.
///
/// New versions may add fields: make one with [`new`](PolicyConfig::new), and with `..` where you
/// name fields.
///
/// # Examples
///
/// ```
/// use tidegate::policy::{AnyPolicy, PolicyConfig, PolicyKind};
/// use tidegate::Rate;
///
/// let config: PolicyConfig = "token_bucket 100/s burst 20".parse()?;
/// assert_eq!(config, PolicyConfig { burst: Some(20), ..PolicyConfig::new(PolicyKind::TokenBucket, Rate::per_second(100)) });
/// let policy = AnyPolicy::try_from(config)?;
///
/// let error = "sliding_log 5000/h burst 20".parse::<AnyPolicy>().unwrap_err();
/// assert_eq!(error.to_string(), "burst 20: sliding_log has only with_capacity");
/// # Ok::<(), tidegate::policy::ConfigError>(())
/// ```
#[derive(Clone, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(deny_unknown_fields))]
pub struct PolicyConfig {
    /// Which policy.
    pub policy: PolicyKind,
    /// The rate; the limit and the window of a policy that counts. Not for
    /// [`PolicyKind::Unlimited`] and [`PolicyKind::DenyAll`].
    #[cfg_attr(feature = "serde", serde(default, skip_serializing_if = "Option::is_none"))]
    pub rate: Option<Rate>,
    /// For how long unused permits are saved: [`SmoothBursty::max_burst`].
    #[cfg_attr(feature = "serde", serde(default, with = "spans", skip_serializing_if = "Option::is_none"))]
    pub max_burst: Option<Duration>,
    /// Whether the stock is full at the start: [`SmoothBursty::start_full`].
    #[cfg_attr(feature = "serde", serde(default, skip_serializing_if = "is_false"))]
    pub start_full: bool,
    /// How long it takes to warm up: [`SmoothWarmingUp::new`].
    #[cfg_attr(feature = "serde", serde(default, with = "spans", skip_serializing_if = "Option::is_none"))]
    pub warm_up: Option<Duration>,
    /// How many times slower it is when cold: [`SmoothWarmingUp::try_new`].
    #[cfg_attr(feature = "serde", serde(default, with = "factor", skip_serializing_if = "Option::is_none"))]
    pub cold_factor: Option<f64>,
    /// [`SmoothWarmingUp::start_warm`].
    #[cfg_attr(feature = "serde", serde(default, skip_serializing_if = "is_false"))]
    pub start_warm: bool,
    /// [`SmoothWarmingUp::cool_at_once`].
    #[cfg_attr(feature = "serde", serde(default, skip_serializing_if = "is_false"))]
    pub cool_at_once: bool,
    /// The size of the bucket: [`TokenBucket::new`].
    #[cfg_attr(feature = "serde", serde(default, skip_serializing_if = "Option::is_none"))]
    pub burst: Option<u32>,
    /// The permits at the start: [`TokenBucket::start_with`].
    #[cfg_attr(feature = "serde", serde(default, skip_serializing_if = "Option::is_none"))]
    pub start_with: Option<u32>,
    /// [`TokenBucket::interval_refill`].
    #[cfg_attr(feature = "serde", serde(default, skip_serializing_if = "is_false"))]
    pub interval_refill: bool,
    /// How long after the periods of Unix time the policy's own begin:
    /// [`FixedWindow::at_wall_clock`].
    #[cfg_attr(feature = "serde", serde(default, with = "spans", skip_serializing_if = "Option::is_none"))]
    pub at_wall_clock: Option<Duration>,
    /// [`TokenBucket::tolerance`].
    #[cfg_attr(feature = "serde", serde(default, with = "spans", skip_serializing_if = "Option::is_none"))]
    pub tolerance: Option<Duration>,
    /// [`LeakyBucket::nodelay`].
    #[cfg_attr(feature = "serde", serde(default, skip_serializing_if = "Option::is_none"))]
    pub nodelay: Option<u32>,
    /// [`LeakyBucket::capacity`].
    #[cfg_attr(feature = "serde", serde(default, skip_serializing_if = "Option::is_none"))]
    pub capacity: Option<u32>,
    /// [`LeakyBucket::max_wait`].
    #[cfg_attr(feature = "serde", serde(default, with = "spans", skip_serializing_if = "Option::is_none"))]
    pub max_wait: Option<Duration>,
    /// [`FixedWindow::from_first_grant`].
    #[cfg_attr(feature = "serde", serde(default, skip_serializing_if = "is_false"))]
    pub from_first_grant: bool,
    /// The number of cells: [`SlidingWindow::new`].
    #[cfg_attr(feature = "serde", serde(default, skip_serializing_if = "Option::is_none"))]
    pub cells: Option<u16>,
    /// [`SlidingLog::with_capacity`].
    #[cfg_attr(feature = "serde", serde(default, skip_serializing_if = "Option::is_none"))]
    pub with_capacity: Option<u32>,
}

/// Why a configuration does not make a policy.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum ConfigError {
    /// The policy is none that there is.
    Policy {
        /// The name given.
        name: Box<str>,
    },
    /// A field that is needed is missing.
    Missing {
        /// The field.
        field: &'static str,
        /// The policy that needs it.
        policy: PolicyKind,
    },
    /// A field that the policy does not have, or not together with another one.
    Surplus {
        /// The field, and its value if it has one.
        field: Box<str>,
        /// The policy.
        policy: PolicyKind,
    },
    /// A field that is set twice, or one that excludes another.
    Twice {
        /// The field.
        field: Box<str>,
        /// The other one, or the same.
        other: &'static str,
    },
    /// A value that cannot be read.
    Value {
        /// The field.
        field: Box<str>,
        /// The value given.
        value: Box<str>,
        /// What is allowed.
        allowed: &'static str,
    },
    /// The rate cannot be read.
    Rate(RateError),
    /// A number is out of range.
    Number(PolicyError),
}

/// All kinds, with their names and the fields that they have.
const KINDS: [(PolicyKind, &str, &[&str]); 10] = [
    (PolicyKind::SmoothBursty, "smooth_bursty", &["max_burst", "start_full"]),
    (
        PolicyKind::SmoothWarmingUp,
        "smooth_warming_up",
        &["warm_up", "cold_factor", "start_warm", "cool_at_once"],
    ),
    (
        PolicyKind::TokenBucket,
        "token_bucket",
        &["burst", "start_with", "interval_refill", "at_wall_clock", "tolerance"],
    ),
    (PolicyKind::LeakyBucket, "leaky_bucket", &["nodelay", "capacity", "max_wait"]),
    (PolicyKind::FixedWindow, "fixed_window", &["at_wall_clock", "from_first_grant"]),
    (PolicyKind::SlidingWindow, "sliding_window", &["cells", "at_wall_clock"]),
    (PolicyKind::SlidingEstimate, "sliding_estimate", &["at_wall_clock"]),
    (PolicyKind::SlidingLog, "sliding_log", &["with_capacity"]),
    (PolicyKind::Unlimited, "unlimited", &[]),
    (PolicyKind::DenyAll, "deny_all", &[]),
];

impl PolicyKind {
    fn entry(self) -> (&'static str, &'static [&'static str]) {
        let found = KINDS.iter().find(|(kind, ..)| *kind == self);
        found.map_or(("", &[]), |(_, name, fields)| (name, fields))
    }

    fn has_rate(self) -> bool {
        !matches!(self, PolicyKind::Unlimited | PolicyKind::DenyAll)
    }
}

impl fmt::Display for PolicyKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.entry().0)
    }
}

impl FromStr for PolicyKind {
    type Err = ConfigError;

    fn from_str(text: &str) -> Result<PolicyKind, ConfigError> {
        let found = KINDS.iter().find(|(_, name, _)| *name == text);
        found.map(|(kind, ..)| *kind).ok_or_else(|| ConfigError::Policy { name: text.into() })
    }
}

/// Equal if each field is, and a [`cold_factor`](PolicyConfig::cold_factor) that is not a number is
/// equal to itself.
impl PartialEq for PolicyConfig {
    fn eq(&self, other: &PolicyConfig) -> bool {
        self.policy == other.policy && self.rate == other.rate && self.fields() == other.fields()
    }
}

impl Eq for PolicyConfig {}

impl PolicyConfig {
    /// A policy with this rate, and nothing else set.
    #[must_use]
    pub fn new(policy: PolicyKind, rate: Rate) -> PolicyConfig {
        PolicyConfig { rate: Some(rate), ..PolicyConfig::without_rate(policy) }
    }

    fn without_rate(policy: PolicyKind) -> PolicyConfig {
        PolicyConfig {
            policy,
            rate: None,
            max_burst: None,
            start_full: false,
            warm_up: None,
            cold_factor: None,
            start_warm: false,
            cool_at_once: false,
            burst: None,
            start_with: None,
            interval_refill: false,
            at_wall_clock: None,
            tolerance: None,
            nodelay: None,
            capacity: None,
            max_wait: None,
            from_first_grant: false,
            cells: None,
            with_capacity: None,
        }
    }

    /// The fields that are set, with their values; an empty value for those that have none.
    fn fields(&self) -> Vec<(&'static str, String)> {
        let text = |value: &dyn fmt::Display| Some(value.to_string());
        let number = |value: Option<u32>| value.map(|value| value.to_string());
        let flag = |set: bool| set.then(String::new);
        let fields = [
            ("max_burst", self.max_burst.map(write_span)),
            ("start_full", flag(self.start_full)),
            ("warm_up", self.warm_up.map(write_span)),
            ("cold_factor", self.cold_factor.and_then(|factor| text(&factor))),
            ("start_warm", flag(self.start_warm)),
            ("cool_at_once", flag(self.cool_at_once)),
            ("burst", number(self.burst)),
            ("start_with", number(self.start_with)),
            ("interval_refill", flag(self.interval_refill)),
            ("at_wall_clock", self.at_wall_clock.map(write_span)),
            ("tolerance", self.tolerance.map(write_span)),
            ("nodelay", number(self.nodelay)),
            ("capacity", number(self.capacity)),
            ("max_wait", self.max_wait.map(write_span)),
            ("from_first_grant", flag(self.from_first_grant)),
            ("cells", number(self.cells.map(u32::from))),
            ("with_capacity", number(self.with_capacity)),
        ];
        fields.into_iter().filter_map(|(name, value)| Some((name, value?))).collect()
    }

    /// Refuses fields that the policy does not have, and pairs that say two things.
    fn check_fields(&self) -> Result<(), ConfigError> {
        if let Some(rate) = self.rate.filter(|_| !self.policy.has_rate()) {
            return Err(ConfigError::Surplus { field: format!("rate {rate}").into(), policy: self.policy });
        }
        let (_, known) = self.policy.entry();
        for (field, other, both) in [
            ("max_wait", "capacity", self.max_wait.is_some() && self.capacity.is_some()),
            ("from_first_grant", "at_wall_clock", self.from_first_grant && self.at_wall_clock.is_some()),
        ] {
            if both && known.contains(&field) {
                return Err(ConfigError::Twice { field: field.into(), other });
            }
        }
        match self.fields().into_iter().find(|(name, _)| !known.contains(name)) {
            None => Ok(()),
            Some((name, value)) => Err(ConfigError::Surplus {
                field: format!("{name} {value}").trim_end().into(),
                policy: self.policy,
            }),
        }
    }

    fn needed<T>(&self, field: &'static str, value: Option<T>) -> Result<T, ConfigError> {
        value.ok_or(ConfigError::Missing { field, policy: self.policy })
    }

    /// Sets the field of a name from the words that follow it.
    fn set<'a>(&mut self, field: &str, words: &mut impl Iterator<Item = &'a str>) -> Result<(), ConfigError> {
        let flag = match field {
            "start_full" => Some(&mut self.start_full),
            "start_warm" => Some(&mut self.start_warm),
            "cool_at_once" => Some(&mut self.cool_at_once),
            "interval_refill" => Some(&mut self.interval_refill),
            "from_first_grant" => Some(&mut self.from_first_grant),
            _ => None,
        };
        if let Some(flag) = flag {
            *flag = true;
            return Ok(());
        }
        let value = words.next().unwrap_or_default();
        let bad = |allowed| ConfigError::Value { field: field.into(), value: value.into(), allowed };
        let span = || read_span(value).ok_or(bad("a whole number and a unit, such as 500ms, 5s, 1min or 8h"));
        let number = || value.parse().map_err(|_| bad("a whole number from 0 to 4294967295"));
        match field {
            "max_burst" => self.max_burst = Some(span()?),
            "warm_up" => self.warm_up = Some(span()?),
            "cold_factor" => {
                let factor = value.parse().ok().filter(|factor: &f64| factor.is_finite());
                self.cold_factor = Some(factor.ok_or(bad("a number from 1 to 1000000"))?);
            }
            "burst" => self.burst = Some(number()?),
            "start_with" => self.start_with = Some(number()?),
            "at_wall_clock" => self.at_wall_clock = Some(span()?),
            "tolerance" => self.tolerance = Some(span()?),
            "nodelay" => self.nodelay = Some(number()?),
            "capacity" => self.capacity = Some(number()?),
            "max_wait" => self.max_wait = Some(span()?),
            "cells" => self.cells = Some(value.parse().map_err(|_| bad("a whole number from 1 to 65535"))?),
            "with_capacity" => self.with_capacity = Some(number()?),
            _ => return Err(ConfigError::Surplus { field: field.into(), policy: self.policy }),
        }
        Ok(())
    }
}

fn write_span(span: Duration) -> String {
    let (count, unit) = span_in_units(u64::try_from(span.as_nanos()).unwrap_or(u64::MAX));
    format!("{count}{unit}")
}

/// Reads a line such as `token_bucket 100/s burst 20`; see [Text](PolicyConfig#text).
impl FromStr for PolicyConfig {
    type Err = ConfigError;

    fn from_str(text: &str) -> Result<PolicyConfig, ConfigError> {
        let mut words = text.split_whitespace();
        let policy: PolicyKind = words.next().unwrap_or_default().parse()?;
        let mut config = PolicyConfig::without_rate(policy);
        if policy.has_rate() {
            let rate = config.needed("rate", words.next())?;
            config.rate = Some(rate.parse().map_err(ConfigError::Rate)?);
        }
        while let Some(field) = words.next() {
            if let Some((other, _)) = config.fields().into_iter().find(|(name, _)| *name == field) {
                return Err(ConfigError::Twice { field: field.into(), other });
            }
            config.set(field, &mut words)?;
        }
        config.check_fields()?;
        Ok(config)
    }
}

/// Writes the line that reads back as the same.
impl fmt::Display for PolicyConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.policy)?;
        if let Some(rate) = self.rate {
            write!(f, " {rate}")?;
        }
        for (name, value) in self.fields() {
            let space = if value.is_empty() { "" } else { " " };
            write!(f, " {name}{space}{value}")?;
        }
        Ok(())
    }
}

impl TryFrom<PolicyConfig> for AnyPolicy {
    type Error = ConfigError;

    fn try_from(config: PolicyConfig) -> Result<AnyPolicy, ConfigError> {
        config.check_fields()?;
        build(&config)
    }
}

/// Makes the policy. Each field that is set is one that it has.
fn build(config: &PolicyConfig) -> Result<AnyPolicy, ConfigError> {
    if !config.policy.has_rate() {
        return Ok(if config.policy == PolicyKind::DenyAll { DenyAll.into() } else { Unlimited.into() });
    }
    let rate = config.needed("rate", config.rate)?;
    Ok(match config.policy {
        PolicyKind::SmoothBursty => {
            let mut policy = SmoothBursty::new(rate);
            if let Some(max_burst) = config.max_burst {
                policy = policy.try_max_burst(max_burst)?;
            }
            if config.start_full { policy.start_full() } else { policy }.into()
        }
        PolicyKind::SmoothWarmingUp => {
            let warm_up = config.needed("warm_up", config.warm_up)?;
            let mut policy = SmoothWarmingUp::try_new(rate, warm_up, config.cold_factor.unwrap_or(3.0))?;
            if config.start_warm {
                policy = policy.start_warm();
            }
            if config.cool_at_once { policy.cool_at_once() } else { policy }.into()
        }
        PolicyKind::TokenBucket => {
            let mut policy = TokenBucket::try_new(rate, config.needed("burst", config.burst)?)?;
            if let Some(tolerance) = config.tolerance {
                policy = policy.tolerance(tolerance)?;
            }
            if config.interval_refill {
                policy = policy.interval_refill()?;
            }
            if let Some(offset) = config.at_wall_clock {
                policy = policy.at_wall_clock(offset)?;
            }
            if let Some(permits) = config.start_with {
                policy = policy.start_with(permits)?;
            }
            policy.into()
        }
        PolicyKind::LeakyBucket => {
            let mut policy = LeakyBucket::new(rate).nodelay(config.nodelay.unwrap_or(0));
            if let Some(capacity) = config.capacity {
                policy = policy.capacity(capacity);
            }
            if let Some(max_wait) = config.max_wait {
                policy = policy.max_wait(max_wait);
            }
            policy.into()
        }
        PolicyKind::FixedWindow => {
            let mut policy = FixedWindow::try_new(rate)?;
            if let Some(offset) = config.at_wall_clock {
                policy = policy.at_wall_clock(offset);
            }
            if config.from_first_grant { policy.from_first_grant() } else { policy }.into()
        }
        PolicyKind::SlidingWindow => {
            let policy = SlidingWindow::try_new(rate, config.needed("cells", config.cells)?)?;
            match config.at_wall_clock {
                None => policy,
                Some(offset) => policy.at_wall_clock(offset),
            }
            .into()
        }
        PolicyKind::SlidingEstimate => {
            let policy = SlidingEstimate::try_new(rate)?;
            match config.at_wall_clock {
                None => policy,
                Some(offset) => policy.at_wall_clock(offset),
            }
            .into()
        }
        PolicyKind::SlidingLog => {
            let policy = SlidingLog::try_new(rate)?;
            match config.with_capacity {
                None => policy,
                Some(permits) => policy.with_capacity(permits)?,
            }
            .into()
        }
        PolicyKind::Unlimited => Unlimited.into(),
        PolicyKind::DenyAll => DenyAll.into(),
    })
}

/// Reads a line such as `token_bucket 100/s burst 20`; see [`PolicyConfig`](PolicyConfig#text).
impl FromStr for AnyPolicy {
    type Err = ConfigError;

    fn from_str(text: &str) -> Result<AnyPolicy, ConfigError> {
        build(&text.parse()?)
    }
}

/// As a [`PolicyConfig`], and made a policy at once.
#[cfg(feature = "serde")]
impl<'de> serde::Deserialize<'de> for AnyPolicy {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<AnyPolicy, D::Error> {
        let config = PolicyConfig::deserialize(deserializer)?;
        AnyPolicy::try_from(config).map_err(serde::de::Error::custom)
    }
}

impl From<PolicyError> for ConfigError {
    fn from(error: PolicyError) -> ConfigError {
        ConfigError::Number(error)
    }
}

/// "only a, b and c".
fn list(words: impl Iterator<Item = &'static str>) -> String {
    let words: Vec<_> = words.collect();
    match words.split_last() {
        None => "no fields".into(),
        Some((last, [])) => format!("only {last}"),
        Some((last, others)) => format!("only {} and {last}", others.join(", ")),
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ConfigError::Policy { name } => {
                let names = list(KINDS.iter().map(|(_, name, _)| *name));
                write!(f, "{name:?} is not a policy: there are {names}")
            }
            ConfigError::Missing { field, policy } => write!(f, "{policy} needs {field}"),
            ConfigError::Surplus { field, policy } => {
                let (name, fields) = policy.entry();
                write!(f, "{field}: {name} has {}", list(fields.iter().copied()))
            }
            ConfigError::Twice { field, other } if **field == **other => write!(f, "{field} is set twice"),
            ConfigError::Twice { field, other } => write!(f, "{field} and {other} exclude each other"),
            ConfigError::Value { field, value, .. } if value.is_empty() => write!(f, "{field} needs a value"),
            ConfigError::Value { field, value, allowed } => write!(f, "{field} {value:?} is not {allowed}"),
            ConfigError::Rate(error) => error.fmt(f),
            ConfigError::Number(error) => error.fmt(f),
        }
    }
}

impl Error for ConfigError {}

// serde passes a reference.
#[cfg(feature = "serde")]
#[allow(clippy::trivially_copy_pass_by_ref)]
fn is_false(flag: &bool) -> bool {
    !flag
}

/// A number that is finite: some formats write others as nothing, which would read back as the
/// default.
#[cfg(feature = "serde")]
mod factor {
    use serde::{Deserialize, Deserializer, Serializer, de, ser};

    #[allow(clippy::ref_option)] // serde passes it so.
    pub(super) fn serialize<S: Serializer>(factor: &Option<f64>, serializer: S) -> Result<S::Ok, S::Error> {
        match factor {
            None => serializer.serialize_none(),
            Some(factor) if factor.is_finite() => serializer.serialize_some(factor),
            Some(factor) => Err(ser::Error::custom(format_args!("cold_factor {factor} is not finite"))),
        }
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<f64>, D::Error> {
        match Option::<f64>::deserialize(deserializer)? {
            Some(factor) if !factor.is_finite() => {
                Err(de::Error::custom(format_args!("cold_factor {factor} is not finite")))
            }
            factor => Ok(factor),
        }
    }
}

/// Spans as text.
#[cfg(feature = "serde")]
mod spans {
    use std::time::Duration;

    use serde::de::{Error, Unexpected};
    use serde::{Deserialize, Deserializer, Serializer};

    #[allow(clippy::ref_option)] // serde passes it so.
    pub(super) fn serialize<S: Serializer>(
        span: &Option<Duration>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        match span {
            None => serializer.serialize_none(),
            Some(span) => serializer.serialize_str(&super::write_span(*span)),
        }
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<Duration>, D::Error> {
        let Some(text) = Option::<String>::deserialize(deserializer)? else { return Ok(None) };
        match super::read_span(&text) {
            Some(span) => Ok(Some(span)),
            None => Err(D::Error::invalid_value(
                Unexpected::Str(&text),
                &"a whole number and a unit, such as 500ms, 5s, 1min or 8h",
            )),
        }
    }
}
