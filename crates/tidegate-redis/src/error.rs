//! The errors of opening a store, of building a limiter, and of a store that is away or
//! misconfigured.

use std::convert::Infallible;
use std::error::Error;
use std::fmt;
use std::io;

use tidegate::{AllRefusal, AllStatus, ConfigError};

/// Why a limiter over a store cannot be built.
///
/// No message contains the address or a password of a store.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum BuildError {
    /// The configuration is not a valid policy.
    Config(ConfigError),
    /// The scripts cannot decide this policy exactly.
    Policy {
        /// The policy, as a line of configuration.
        policy: String,
        /// What is not supported.
        why: String,
    },
    /// A tag, or the name of a limit, that cannot be part of a key.
    Name {
        /// The name.
        name: String,
    },
    /// Two limits have the same name.
    Twice {
        /// The name.
        name: String,
    },
    /// No limit is given.
    NoLimit,
    /// A field of a [configuration](crate::LimiterConfig) has an invalid value, or is missing.
    Field {
        /// The field.
        field: &'static str,
        /// What the field must be.
        allowed: &'static str,
        /// The value of the field; `None` if it is missing or may be a secret.
        value: Option<String>,
    },
    /// A field that a [configuration](crate::LimiterConfig) does not have.
    Unknown {
        /// The name given.
        field: String,
    },
    /// The store of a [configuration](crate::LimiterConfig) cannot be opened.
    Store(OpenError),
}

/// The number of characters of a name that are shown. A key may be a megabyte long.
const SHOWN: usize = 600;

/// The fields of a configuration that are not fields of a policy.
pub(crate) const FIELDS: [&str; 8] =
    ["in_use", "time_to_live", "store", "prefix", "tag", "timeout", "while_away", "leased"];

/// Returns the text that lists these fields.
pub(crate) fn other_fields() -> String {
    let [others @ .., last] = FIELDS;
    format!("besides the limits there are {} and {last}", others.join(", "))
}

impl fmt::Display for BuildError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BuildError::Config(error @ ConfigError::Surplus { .. }) => {
                write!(f, "{error}; {}", other_fields())
            }
            BuildError::Config(error) => error.fmt(f),
            BuildError::Policy { policy, why } => write!(f, "{policy}: {why} is not supported over a store"),
            BuildError::Name { name } => {
                let name: String = name.chars().take(SHOWN).collect();
                write!(
                    f,
                    "{name:?} cannot be part of a key: a tag has 1 to 500 bytes, and no brace or control \
                     character; a name of a limit has 1 to 200, and no colon or space either"
                )
            }
            BuildError::Twice { name } => write!(f, "two limits are named {name:?}"),
            BuildError::NoLimit => write!(f, "no limit is given"),
            BuildError::Field { field, allowed, value: None } => write!(f, "{field} must be {allowed}"),
            BuildError::Field { field, allowed, value: Some(value) } => {
                write!(f, "{field} is {value:?}, and must be {allowed}")
            }
            BuildError::Unknown { field } => {
                write!(f, "{field}: there is no such field; {}", other_fields())
            }
            BuildError::Store(error) => error.fmt(f),
        }
    }
}

impl BuildError {
    /// Adds the value of the field, unless it is missing or may be a secret.
    pub(crate) fn with_value(self, of: &str) -> BuildError {
        match self {
            BuildError::Field { field, allowed, .. } if !of.is_empty() && !may_be_secret(of) => {
                BuildError::Field { field, allowed, value: Some(of.into()) }
            }
            error => error,
        }
    }
}

impl Error for BuildError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            BuildError::Config(error) => error.source(),
            BuildError::Store(error) => error.source(),
            _ => None,
        }
    }
}

impl From<ConfigError> for BuildError {
    fn from(error: ConfigError) -> BuildError {
        BuildError::Config(error)
    }
}

/// A policy that needs no parsing cannot fail.
impl From<Infallible> for BuildError {
    fn from(never: Infallible) -> BuildError {
        match never {}
    }
}

/// Why a store cannot be opened.
///
/// No message contains the address, which may contain a password.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum OpenError {
    /// The address is not an address of a store.
    Address {
        /// What the address has or lacks, without a part of it.
        why: &'static str,
    },
    /// The address asks for an encrypted connection, and the feature `tls` is off.
    NoTls,
    /// A certificate or a key is unusable, or no certificate is available by which to trust a
    /// server.
    Certificate {
        /// Which certificate or key, and why.
        why: &'static str,
    },
    /// The prefix cannot be part of a key.
    Prefix {
        /// The prefix.
        prefix: String,
    },
    /// The [deadline of a call](crate::StoreBuilder::timeout) is zero.
    Timeout,
    /// The store's thread cannot be started.
    Thread {
        /// The cause.
        kind: io::ErrorKind,
    },
    /// The store was set to use [this runtime](crate::StoreBuilder::on_this_runtime), and `open`
    /// was called outside a tokio runtime.
    NoRuntime,
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            OpenError::Address { why } => write!(f, "the address of the store {why}"),
            OpenError::NoTls => write!(f, "tidegate-redis is built without the feature tls"),
            OpenError::Certificate { why } => f.write_str(why),
            OpenError::Prefix { prefix } => {
                let prefix: String = prefix.chars().take(SHOWN).collect();
                write!(f, "{prefix:?}: a prefix has 1 to 200 bytes, and no brace, colon, space or control")
            }
            OpenError::Timeout => write!(f, "the timeout of the store must be above zero, such as 50 ms"),
            OpenError::Thread { kind } => write!(f, "the thread of the store cannot be started: {kind}"),
            OpenError::NoRuntime => write!(f, "on_this_runtime was called outside a tokio runtime"),
        }
    }
}

impl Error for OpenError {}

/// A fault of a store or of its configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreError {
    is_away: bool,
    /// Whether it is reported later, for a message that no caller waited for.
    is_past: bool,
    text: String,
}

impl StoreError {
    pub(crate) fn away(text: impl Into<String>) -> StoreError {
        StoreError { is_away: true, is_past: false, text: text.into() }
    }

    pub(crate) fn misconfigured(text: impl Into<String>) -> StoreError {
        StoreError { is_away: false, is_past: false, text: text.into() }
    }

    /// Marks this as the error of a message that got lost earlier.
    pub(crate) fn of_lost_message(self) -> StoreError {
        StoreError { is_past: true, ..self }
    }

    /// Returns whether the store is merely away, and may reply later. `false` means that its
    /// configuration is wrong: a password, a permission, a value of the wrong type under a key, or
    /// an address where no Redis server replies.
    #[must_use]
    pub fn is_away(&self) -> bool {
        self.is_away
    }
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = match (self.is_past, self.is_away) {
            (false, true) => "the store is away",
            (false, false) => "the store cannot be used",
            (true, true) => "a message got lost while the store was away",
            (true, false) => "a message got lost while the store could not be used",
        };
        write!(f, "{what}: {}", self.text)
    }
}

impl Error for StoreError {}

/// Adds the remaining permits to a refusal if the request asks for them, even if this process
/// refused without asking the store. Otherwise an adapter would request the state by a call that
/// blocks.
pub(crate) async fn with_left<T>(
    answer: Result<T, AllRefusal>,
    asks: bool,
    state: impl Future<Output = Result<AllStatus, AllRefusal>>,
) -> Result<T, AllRefusal> {
    match answer {
        Err(refusal) if asks && lacks_left(&refusal) => match state.await {
            Ok(state) => Err(refusal.with_left(state)),
            Err(_) => Err(refusal),
        },
        answer => answer,
    }
}

/// Returns whether a refusal lacks the remaining permits although the store may know them.
pub(crate) fn lacks_left(refusal: &AllRefusal) -> bool {
    refusal.left().is_none() && !refusal.is_degraded()
}

/// Returns whether a text may be an address, or a part of one, and so may contain a password.
pub(crate) fn may_be_secret(text: &str) -> bool {
    let has_protocol = ["redis", "valkey"].iter().any(|name| text.starts_with(name)) && text.contains(':');
    text.contains("://") || text.contains('@') || has_password_field(text) || has_protocol
}

/// Returns whether a text names a field of an address for a password.
pub(crate) fn has_password_field(text: &str) -> bool {
    text.contains("pass=") || text.contains("password=")
}
