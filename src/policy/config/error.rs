//! The errors of a configuration.

use std::error::Error;
use std::fmt;

use super::KINDS;
use crate::error::PolicyError;
use crate::rate::RateError;

/// The reason why a configuration does not make a policy.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum ConfigError {
    /// No kind of policy has this name.
    Policy {
        /// The name given.
        name: Box<str>,
        /// The kind that was probably meant.
        write: Option<&'static str>,
    },
    /// A required field is missing.
    Missing {
        /// The field.
        field: &'static str,
        /// The kind of policy that needs it.
        policy: &'static str,
    },
    /// A field that the kind of policy does not have.
    Surplus {
        /// The name given.
        field: Box<str>,
        /// The kind of policy.
        policy: &'static str,
        /// What to write instead, if the name is recognised.
        write: Option<Box<str>>,
    },
    /// A field that is set twice, or that excludes another field.
    Twice {
        /// The field.
        field: &'static str,
        /// The other field.
        other: &'static str,
    },
    /// A word of a line that must be written in another form.
    Form {
        /// The word given.
        given: Box<str>,
        /// What to write.
        write: Box<str>,
    },
    /// A value that cannot be read.
    Value {
        /// The field.
        field: &'static str,
        /// The value given.
        value: Box<str>,
        /// The values that are allowed, and what to write if the value is recognised.
        allowed: Box<str>,
    },
    /// No change leads from the terms in force to this configuration, and the policy cannot be
    /// replaced by another one.
    Replaces {
        /// The configuration in force.
        old: Box<str>,
        /// The configuration given.
        new: Box<str>,
    },
    /// The rate cannot be read.
    Rate(RateError),
    /// A number is out of range.
    Number(PolicyError),
}

impl From<PolicyError> for ConfigError {
    fn from(error: PolicyError) -> ConfigError {
        ConfigError::Number(error)
    }
}

/// An example value of each field that a policy requires in addition to its rate.
const EXAMPLES: [(&str, &str); 3] = [("burst", "20"), ("cells", "10"), ("warm_up", "5s")];

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
            ConfigError::Policy { name, write: Some(kind) } => {
                write!(f, "{name:?} is not a policy: write {kind}")
            }
            ConfigError::Policy { name, write: None } => {
                let names = list(KINDS.iter().map(|kind| kind.name));
                write!(f, "{name:?} is not a policy: there are {names}")
            }
            ConfigError::Missing { field: "rate", policy } => {
                write!(f, "{policy} needs a rate, such as 100/s")
            }
            ConfigError::Missing { field, policy } => {
                write!(f, "{policy} needs {field}")?;
                let example = EXAMPLES.iter().find(|(name, _)| name == field);
                example.map_or(Ok(()), |(_, value)| write!(f, ", such as {policy} 10/s {field} {value}"))
            }
            ConfigError::Surplus { field, policy, write } => {
                let fields = KINDS.iter().filter(|kind| kind.name == *policy).flat_map(|kind| kind.fields);
                let names = fields.map(|(name, _)| *name).filter(|name| *name != "rate");
                write!(f, "{field}: {policy} has {}", list(names))?;
                write.as_ref().map_or(Ok(()), |write| write!(f, "; write {write}"))
            }
            ConfigError::Twice { field, other } if field == other => write!(f, "{field} is set twice"),
            ConfigError::Twice { field, other } => write!(f, "{field} and {other} exclude each other"),
            ConfigError::Form { given, write } => write!(f, "{given}: write {write}"),
            ConfigError::Value { field, value, .. } if value.is_empty() => write!(f, "{field} needs a value"),
            ConfigError::Value { field, value, allowed } => write!(f, "{field} {value:?} is not {allowed}"),
            ConfigError::Replaces { old, new } => {
                write!(f, "cannot change {old} to {new} in place; create a new limiter")
            }
            ConfigError::Rate(error) => error.fmt(f),
            ConfigError::Number(error @ PolicyError::NotWhole { rate }) => {
                write!(f, "rate {error}")?;
                rate.whole_nearby().map_or(Ok(()), |near| write!(f, ": write {near}"))
            }
            ConfigError::Number(error) => error.fmt(f),
        }
    }
}

impl Error for ConfigError {}
