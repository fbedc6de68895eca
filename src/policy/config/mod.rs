//! A policy as a configuration: a line of text, or with serde.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use crate::policy::any::Kind;
use crate::policy::kinds::kinds;
use crate::policy::{
    AnyPolicy, Change, DenyAll, FixedWindow, LeakyBucket, Policy, SlidingEstimate, SlidingLog, SlidingWindow,
    SmoothBursty, SmoothWarmingUp, TokenBucket, Unlimited, ticks,
};
use crate::rate::Rate;

mod both;
mod error;
mod field;
mod suggest;
#[cfg(feature = "serde")]
mod with_serde;

pub use error::ConfigError;
use field::{Field, Value};

macro_rules! define {
    ([] $($kind:ident {
        $name:literal
        fields { $($(#[$docs:meta])* $field:ident: $type:ty,)* }
        build $build:block
        read |$policy:ident| { $($read:tt)* }
    })*) => {
        /// A configuration of a policy: the fields of its kind.
        ///
        /// It is read from a [line](PolicyConfig#text) or, with the feature `serde`, from a
        /// [configuration file](PolicyConfig#serde), and written to both. [`AnyPolicy::try_from`]
        /// makes it a policy. A policy that a program itself chooses needs no configuration: call
        /// its constructor. Its methods have the names of the fields. Where a configuration is
        /// required, the policy is converted: `TokenBucket::new(Rate::per_second(5), 10).into()`.
        ///
        /// A field that is not set has the default of the policy's own constructor. A field that
        /// the kind does not have is an error, so that nothing is silently ignored. New versions
        /// may add kinds and fields.
        ///
        /// # Text
        ///
        /// The name of the kind in lower case, the rate, and then each field with its value, in any
        /// order: `token_bucket 100/s burst 20`. White space is allowed on either side of the slash
        /// of a rate. A field that is a `bool`, such as `from_first_grant`, is true if it is named,
        /// and has no value. Durations are whole numbers with a unit: `500ms`, `8h`. `unlimited`
        /// and `deny_all` have no rate and no fields.
        ///
        /// Two lines with `and` between them are read as a [`Both`](crate::Both) of two
        /// [`AnyPolicy`]: `token_bucket 5/s burst 10 and fixed_window 100/min`.
        ///
        /// # serde
        ///
        /// A string, which is a line; or a map: the name of the kind as `policy`, and each field by
        /// its name. Rates and durations are strings as in a line. The map can be a part of a
        /// larger map, with `#[serde(flatten)]`. A configuration is written as a map. The format
        /// must be self-describing, like JSON, TOML and YAML.
        ///
        /// An [`AnyPolicy`] can be read and written, too. A policy that cannot be created is then
        /// an error of the format, and the policy is written as its
        /// [configuration](AnyPolicy::config). A [`Both`](crate::Both) can also be read and
        /// written: as a line, or as a list of two policies.
        ///
        /// # Examples
        ///
        /// ```
        /// use tidegate::policy::{AnyPolicy, PolicyConfig};
        ///
        /// let config: PolicyConfig = "token_bucket 100/s burst 20".parse()?;
        /// assert!(matches!(config, PolicyConfig::TokenBucket { burst: 20, .. }));
        /// let policy = AnyPolicy::try_from(config)?;
        ///
        /// let error = "sliding_log 5000/h burst 20".parse::<AnyPolicy>().unwrap_err();
        /// assert_eq!(error.to_string(), "burst: sliding_log has only with_capacity");
        /// # Ok::<(), tidegate::policy::ConfigError>(())
        /// ```
        #[derive(Clone, Debug)]
        #[non_exhaustive]
        pub enum PolicyConfig {
            $(
                #[doc = concat!("`", $name, "`: a [`", stringify!($kind), "`].")]
                #[non_exhaustive]
                $kind { $($(#[$docs])* $field: $type,)* },
            )*
        }

        #[allow(unused_variables)] // A kind without fields asks for none.
        const KINDS: &[Schema] = &[$(
            Schema {
                name: $name,
                fields: &[$((stringify!($field), <$type as Field>::IS_FLAG)),*],
                make: |given| Ok(PolicyConfig::$kind { $($field: given.field(stringify!($field))?),* }),
            },
        )*];

        impl PolicyConfig {
            /// Returns the name of the kind.
            fn name(&self) -> &'static str {
                match self {
                    $(PolicyConfig::$kind { .. } => $name,)*
                }
            }

            /// Returns the fields that are set.
            fn fields(&self) -> Vec<(&'static str, Value)> {
                let fields: Vec<(&'static str, Option<Value>)> = match self {
                    $(PolicyConfig::$kind { $($field),* } => vec![$((stringify!($field), $field.value())),*],)*
                };
                fields.into_iter().filter_map(|(name, value)| Some((name, value?))).collect()
            }
        }

        impl Kind {
            /// Returns the configuration of the terms in force.
            pub(in crate::policy) fn config(&self) -> PolicyConfig {
                let config = match self {
                    $(Kind::$kind($policy) => PolicyConfig::$kind { $($read)* },)*
                };
                match config {
                    // A configuration with this burst is refused, as it would grant nothing.
                    PolicyConfig::TokenBucket { burst: 0, rate: Rate::UNLIMITED, .. } => PolicyConfig::Unlimited {},
                    PolicyConfig::TokenBucket { burst: 0, .. } => PolicyConfig::DenyAll {},
                    config => config,
                }
            }
        }

        $(
            /// Converts a policy to the configuration of its terms in force.
            impl From<$kind> for PolicyConfig {
                fn from(policy: $kind) -> PolicyConfig {
                    Kind::$kind(policy).config()
                }
            }
        )*

        impl TryFrom<PolicyConfig> for AnyPolicy {
            type Error = ConfigError;

            fn try_from(config: PolicyConfig) -> Result<AnyPolicy, ConfigError> {
                Ok(match config {
                    $(PolicyConfig::$kind { $($field),* } => AnyPolicy::from(Kind::$kind($build)),)*
                })
            }
        }
    };
}

kinds!(define []);

/// A kind of policy, as a configuration describes it.
struct Schema {
    name: &'static str,
    /// The fields in the order in which they are written, each with whether it is a flag.
    fields: &'static [(&'static str, bool)],
    make: fn(&Given) -> Result<PolicyConfig, ConfigError>,
}

impl Schema {
    fn of(name: &str) -> Result<&'static Schema, ConfigError> {
        let kind = KINDS.iter().find(|kind| kind.name == name);
        kind.ok_or_else(|| ConfigError::Policy { name: name.into(), write: suggest::kind(name) })
    }

    fn has(&self, field: &str) -> bool {
        self.fields.iter().any(|(name, _)| *name == field)
    }

    fn has_flag(&self, field: &str) -> bool {
        self.fields.contains(&(field, true))
    }
}

impl PolicyConfig {
    /// Returns the [`Change`] that leads a limiter from this configuration to another one. Returns
    /// `None` if only another policy has the new terms: a policy of another kind, with another
    /// tolerance, number of cells or start, or with a log that has room for more permits than the
    /// first one. Returns `None` also
    /// if one of the two configurations is not a valid policy.
    ///
    /// [`RateLimiter::apply`](crate::RateLimiter::apply) makes the change, or replaces the policy.
    ///
    /// # Examples
    ///
    /// ```
    /// use tidegate::{Change, PolicyConfig, Rate};
    ///
    /// let config = |line: &str| line.parse::<PolicyConfig>();
    /// let old = config("token_bucket 5/s burst 10")?;
    /// let change = Change::rate(Rate::per_second(9)).burst(20);
    /// assert_eq!(old.change_to(&config("token_bucket 9/s burst 20")?), Some(change));
    /// assert_eq!(old.change_to(&config("fixed_window 9/s")?), None);
    /// assert_eq!(
    ///     old.change_to(&config("token_bucket 9/s burst 10 tolerance 1s")?),
    ///     None
    /// );
    /// # Ok::<(), tidegate::ConfigError>(())
    /// ```
    #[must_use]
    pub fn change_to(&self, new: &PolicyConfig) -> Option<Change> {
        let policy = |config: &PolicyConfig| AnyPolicy::try_from(config.clone()).ok();
        let (old, new) = (policy(self)?, policy(new)?);
        old.change_to(&new).filter(|_| old.config().starts_like(&new.config()))
    }

    /// Returns whether a limiter begins with equal stored permits.
    pub(in crate::policy) fn starts_like(&self, other: &PolicyConfig) -> bool {
        let start = |config: &PolicyConfig| -> Vec<_> {
            let fields = config.fields().into_iter().filter(|(name, _)| name.starts_with("start_"));
            fields.map(|(name, value)| (name, value.to_string())).collect()
        };
        start(self) == start(other)
    }
}

/// The fields of a configuration as they were given, with their values as text.
struct Given {
    kind: &'static Schema,
    values: Vec<(&'static str, String)>,
}

impl Given {
    /// Returns the configuration of a kind, before any of its fields is set.
    fn of(kind: &str) -> Result<Given, ConfigError> {
        Ok(Given { kind: Schema::of(kind)?, values: Vec::new() })
    }

    /// Sets a field. With a value of `None` the field stays unset.
    fn set(&mut self, name: &str, value: Option<&str>) -> Result<(), ConfigError> {
        let Some((field, _)) = self.kind.fields.iter().find(|(field, _)| *field == name) else {
            return Err(surplus(self.kind, name));
        };
        if self.values.iter().any(|(other, _)| other == field) {
            return Err(ConfigError::Twice { field, other: field });
        }
        self.values.extend(value.map(|value| (*field, value.into())));
        Ok(())
    }

    fn field<T: Field>(&self, name: &'static str) -> Result<T, ConfigError> {
        match self.values.iter().find(|(field, _)| *field == name) {
            Some((_, value)) => T::read(name, value),
            None => T::UNSET.ok_or(ConfigError::Missing { field: name, policy: self.kind.name }),
        }
    }

    fn config(&self) -> Result<PolicyConfig, ConfigError> {
        (self.kind.make)(self)
    }
}

/// Reads a line such as `token_bucket 100/s burst 20`; see [Text](PolicyConfig#text).
impl FromStr for PolicyConfig {
    type Err = ConfigError;

    fn from_str(text: &str) -> Result<PolicyConfig, ConfigError> {
        let mut words = text.split_whitespace();
        let kind = words.next().unwrap_or_default();
        let mut given = Given::of(kind).map_err(|error| without_kind(text).unwrap_or(error))?;
        let kind = given.kind;
        if kind.has("rate")
            && let Some(rate) = words.next()
        {
            if kind.has(rate) {
                let write = format!("the rate first, such as {} 100/s", kind.name);
                return Err(ConfigError::Form { given: rate.into(), write: write.into() });
            }
            let mut rate = rate.to_owned();
            while let Some(word) = words.clone().next()
                && goes_on(&rate, word)
                && !kind.has(word)
            {
                words.next();
                rate = format!("{rate} {word}");
            }
            if let Some(word) = words.clone().next() {
                parted(&rate, word)?;
            }
            given.set("rate", Some(&rate))?;
        }
        let mut before = "";
        while let Some(word) = words.next() {
            if kind.has_flag(word) {
                given.set(word, Some("true"))?;
            } else if kind.has(word) {
                given.set(word, Some(words.next().unwrap_or_default()))?;
            } else {
                return Err(unknown(kind, before, word));
            }
            before = word;
        }
        given.config()
    }
}

/// Reads a line, like [`from_str`](PolicyConfig::from_str): for calls that take a policy in either
/// form.
impl TryFrom<&str> for PolicyConfig {
    type Error = ConfigError;

    fn try_from(text: &str) -> Result<PolicyConfig, ConfigError> {
        text.parse()
    }
}

/// Reads a line, like [`from_str`](PolicyConfig::from_str).
impl TryFrom<String> for PolicyConfig {
    type Error = ConfigError;

    fn try_from(text: String) -> Result<PolicyConfig, ConfigError> {
        text.parse()
    }
}

/// Returns whether a word belongs to the rate that has begun: white space is allowed on either side
/// of the slash. `10 per second` is not a rate, and the error for all its words says what to write.
fn goes_on(rate: &str, word: &str) -> bool {
    if rate.contains('/') {
        return rate.ends_with('/');
    }
    word.starts_with('/') || word == "per" || rate.ends_with(" per")
}

/// Refuses a rate that is split by a space elsewhere than at its slash, such as `1 0/s`.
fn parted(rate: &str, word: &str) -> Result<(), ConfigError> {
    let whole = format!("{rate}{word}");
    if rate.parse::<Rate>().is_ok() || whole.parse::<Rate>().is_err() {
        return Ok(());
    }
    let write = format!("{whole}, without a space").into();
    Err(ConfigError::Form { given: format!("{rate} {word}").into(), write })
}

/// Returns the error for a line that begins with a rate.
fn without_kind(text: &str) -> Option<ConfigError> {
    let mut words = text.split_whitespace();
    let rate = words.next().filter(|word| word.contains('/') && word.parse::<Rate>().is_ok())?;
    let burst = words.skip_while(|word| *word != "burst").nth(1).unwrap_or("20");
    Some(ConfigError::Form { given: rate.into(), write: format!("token_bucket {rate} burst {burst}").into() })
}

/// Returns the error for a field that a kind does not have.
fn surplus(kind: &Schema, name: &str) -> ConfigError {
    let write = suggest::field(kind, name).map(Into::into);
    ConfigError::Surplus { field: name.into(), policy: kind.name, write }
}

/// Returns the error for a word that is in the position of a field's name, but is not one.
fn unknown(kind: &Schema, before: &str, word: &str) -> ConfigError {
    let form = |write: String| ConfigError::Form { given: word.into(), write: write.into() };
    match word.split_once('=') {
        Some((field, _)) if kind.has_flag(field) => form(field.into()),
        Some((field, value)) if kind.has(field) => form(format!("{field} {value}")),
        None if kind.has_flag(before) && word == "true" => form(format!("{before} without {word}")),
        None if kind.has_flag(before) && word == "false" => form(format!("no {before}")),
        _ => both::one_policy(word).unwrap_or_else(|| surplus(kind, word)),
    }
}

/// Writes the line from which [`from_str`](PolicyConfig::from_str) reads an equal configuration.
impl fmt::Display for PolicyConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())?;
        for (name, value) in self.fields() {
            match value {
                Value::Rate(rate) => write!(f, " {rate}")?,
                Value::Flag => write!(f, " {name}")?,
                value => write!(f, " {name} {value}")?,
            }
        }
        Ok(())
    }
}

/// Returns a number of ticks as a duration.
fn span(ticks: u64) -> Duration {
    Duration::from_nanos(ticks / ticks::PER_NANO)
}

/// Returns a value, unless it is the default.
fn other_than<T: PartialEq>(default: T, value: T) -> Option<T> {
    Some(value).filter(|value| *value != default)
}

/// Writes the line of the [configuration in force](AnyPolicy::config).
impl fmt::Display for AnyPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.config().fmt(f)
    }
}

impl From<&AnyPolicy> for PolicyConfig {
    fn from(policy: &AnyPolicy) -> PolicyConfig {
        policy.config()
    }
}

/// Two configurations are equal if they are written as equal lines. A `cold_factor` that is not a
/// number is therefore equal to itself.
impl PartialEq for PolicyConfig {
    fn eq(&self, other: &PolicyConfig) -> bool {
        self.to_string() == other.to_string()
    }
}

impl Eq for PolicyConfig {}

/// Reads a line such as `token_bucket 100/s burst 20`; see [`PolicyConfig`](PolicyConfig#text).
impl FromStr for AnyPolicy {
    type Err = ConfigError;

    fn from_str(text: &str) -> Result<AnyPolicy, ConfigError> {
        text.parse::<PolicyConfig>()?.try_into()
    }
}
