//! A limiter as a configuration: its limits, and the store that shares them.

use std::fmt;
use std::num::NonZeroU32;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use tidegate::{
    AllOf, AnyKeyed, AnyLimiter, AnyPolicy, CountingLimit, Events, KeyedAllOf, KeyedCountingLimit,
    KeyedRateLimiter, PolicyConfig, Rate, RateLimiter,
};

use crate::connection::Address;
use crate::counting::{SHORTEST_TIME_TO_LIVE, TIME_TO_LIVE};
use crate::error::{BuildError, FIELDS, has_password_field, may_be_secret};
use crate::limiter::{KeyedBuilder, LimiterBuilder};
use crate::store::{Store, StoreBuilder, WhileAway};

#[cfg(feature = "serde")]
mod with_serde;

/// The name of a single limit, as in the core crate.
const ONLY: &str = "limit";

/// The allowed form of `in_use`.
const ALONE: &str =
    "the only limit, without a policy and without leased; a rate as well is a configuration of its own";

/// The limits of a limiter, and where they are kept: in this process, or in a store for all
/// processes.
///
/// A configuration is read from a line or, with the feature `serde`, from a configuration file. It
/// is [built](LimiterConfig::build) into an [`AnyLimiter`], or into limits [of each
/// key](LimiterConfig::build_keyed). A program thus moves from one process to a fleet by changing
/// one line of its configuration.
///
/// # Text
///
/// The text is a policy in the form of [`PolicyConfig`](PolicyConfig#text), or two policies with
/// `and` between them, which are named `first` and `second`. For a shared limiter, `store` and an
/// address follow, then a `tag`, and then the other fields. A single policy is named `limit`.
///
/// ```text
/// token_bucket 100/s burst 20
/// token_bucket 100/s burst 20 store redis://127.0.0.1 tag uploads prefix shop while_away share
/// in_use 20 store redis://127.0.0.1 tag jobs time_to_live 5s
/// ```
///
/// `in_use` and a number replace the policies. The limiter then limits the permits in use at one
/// time: it is a [`CountingLimit`] of this process, or one of [`Store::counting`]. It cannot be
/// combined with a policy.
///
/// | field | value | default |
/// |---|---|---|
/// | `limit` | a line, only in a map: the policy, instead of its fields | the fields of a policy are in the map |
/// | `limits` | names and policies, only in a map: several limits | there is one limit |
/// | `in_use` | a number of permits, from 1 | the limits are policies |
/// | `time_to_live` | a duration of 1 s or more, with `in_use` and `store`: [`CountingBuilder::time_to_live`](crate::CountingBuilder::time_to_live) | `10s` |
/// | `store` | an address in the form of [`Store::builder`] | the limiter is process-local |
/// | `tag` | a name: the limiters of one tag share their limits, in all processes: [`Store::limiter`] | required with `store` |
/// | `prefix` | the first part of all keys: [`StoreBuilder::prefix`] | `tidegate` |
/// | `timeout` | a duration above zero: [`StoreBuilder::timeout`] | `50ms` |
/// | `while_away` | `share`, `share_of` and a number, `open`, `wait` or `closed`: [`WhileAway`] | `closed` |
/// | `leased` | no value: [`LimiterBuilder::leased`](crate::LimiterBuilder::leased) | not leased |
///
/// # serde
///
/// A configuration is a string, which is a line, or a map of the fields of a policy and these
/// fields. In a map `leased` is `true` or `false`, and `share_of` and its number are one string.
/// Several limits are a map from names to policies, under `limits`, instead of the policy. The
/// format must be self-describing, as JSON, TOML and YAML are. An unknown field is an error. A
/// configuration is written as a map, with a single policy as a line under `limit`; reading accepts
/// that form too. In TOML:
///
/// ```toml
/// downloads = "token_bucket 100/s burst 20"      # a line; process-local
///
/// [uploads]                                      # the fields of a policy, and those of a store
/// policy = "token_bucket"
/// rate = "100/s"
/// burst = 20
/// store = "redis://127.0.0.1"
/// tag = "uploads"
/// while_away = "share_of 8"
///
/// [model]                                        # several limits, for costs by name
/// store = "redis://127.0.0.1"
/// tag = "team-a"
/// leased = true
/// limits = { requests = "token_bucket 500/min burst 20", tokens = "sliding_window 9000/min cells 6" }
///
/// [jobs]                                         # permits in use at one time
/// store = "redis://127.0.0.1"
/// tag = "jobs"
/// in_use = 20
/// ```
///
/// Without a store, `tag` is the only field of a store that may be set: to go back to one process,
/// remove the others. A process-local limiter does not use its tag. The address is validated when
/// the limiter is built.
///
/// # At the start of a program
///
/// [`build`](LimiterConfig::build) makes no call to the store. [`Store::check`] detects a wrong
/// password or a missing permission. A store that is merely away may be back before the first
/// request; until then `while_away` decides:
///
/// ```no_run
/// use tidegate_redis::LimiterConfig;
///
/// # async fn example(config: LimiterConfig) -> Result<(), Box<dyn std::error::Error>> {
/// if let Some(store) = config.open()?
///     && let Err(error) = store.check().await
///     && !error.is_away()
/// {
///     return Err(error.into());
/// }
/// let limiter = config.build()?; // over the same store
/// # Ok(())
/// # }
/// ```
///
/// # When the configuration changes
///
/// A program builds a new limiter, and puts it into the [`Replaceable`](tidegate::Replaceable) that
/// its layers and tasks use. Over a store the state is kept, because limits are not stored: the new
/// rate and burst apply to the permits that are available. Only a policy of another kind, another
/// tag or another name starts with new state. While some processes still have the old
/// configuration, each process decides by its own configuration.
///
/// A process-local limiter starts full, so a program takes from it the permits that the old limiter
/// does not have. Requests that wait stay in the queue of the old limiter, on its terms.
/// [`RateLimiter::apply`] changes a limiter while it is in use, and its waits with it.
///
/// ```
/// use tidegate::{AnyLimiter, Replaceable};
/// use tidegate_redis::{BuildError, LimiterConfig};
///
/// fn reload(limiter: &Replaceable, config: &LimiterConfig) -> Result<(), BuildError> {
///     let new = config.build()?;
///     if config.store_builder().is_none() {
///         for (name, limit) in limiter.current().status().members {
///             _ = new.keep_at_most(&name, limit.available); // an error if it has no such limit
///         }
///     }
///     limiter.replace(new);
///     Ok(())
/// }
///
/// let limiter = Replaceable::new("token_bucket 20/d burst 20".parse::<LimiterConfig>()?.build()?);
/// let in_layer = AnyLimiter::from(limiter.clone()); // what adapters take
/// in_layer.try_acquire_many(15)?;
/// reload(&limiter, &"token_bucket 50/d burst 50".parse()?)?;
/// assert_eq!(in_layer.status().members[0].1.available, 5);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Certificates
///
/// An address that begins with `rediss` needs the feature `tls`. A server is trusted by the
/// system's certificates, or by those of the file that the environment variable `SSL_CERT_FILE`
/// names. For a private authority, that variable is all that a program needs. Other certificates
/// are set by `StoreBuilder::tls` on the builder that
/// [`store_builder`](LimiterConfig::store_builder) returns.
///
/// # Secrets
///
/// An address may contain a password. No error, no `Debug` and no `Display` output contains it, and
/// the address is serialized without its user and password. The error of a format may quote the
/// line of the file, with the password: `toml` does so, unless a program prints only the error's
/// `message()`.
///
/// # Examples
///
/// ```
/// use tidegate_redis::LimiterConfig;
///
/// let line = "token_bucket 100/s burst 20";
/// let alone: LimiterConfig = line.parse()?;
/// assert!(alone.build()?.try_acquire().is_ok());
///
/// // One changed line, and all processes share the limit.
/// let line = format!("{line} store redis://:secret@127.0.0.1 tag uploads");
/// let shared: LimiterConfig = line.parse()?;
/// let limiter = shared.build()?; // connects at its first call
/// assert!(!format!("{shared:?}").contains("secret"));
/// # drop(limiter);
/// # Ok::<(), tidegate_redis::BuildError>(())
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct LimiterConfig {
    /// Each with its name.
    limits: Vec<(String, PolicyConfig)>,
    /// The maximum of permits in use at one time. If set, there is no other limit.
    in_use: Option<u32>,
    /// The time after which the permits of a crashed process go back.
    time_to_live: Option<Duration>,
    /// The address of the store.
    store: Option<String>,
    prefix: Option<String>,
    tag: Option<String>,
    timeout: Option<Duration>,
    while_away: Option<WhileAway>,
    leased: bool,
    observer: Observer,
}

/// The observer of what a configuration builds. It is not part of the text of a configuration, so
/// configurations with different observers are equal.
#[derive(Clone, Default)]
struct Observer(Option<Arc<dyn Events>>);

impl PartialEq for Observer {
    fn eq(&self, _: &Observer) -> bool {
        true
    }
}

impl Eq for Observer {}

impl LimiterConfig {
    fn new(limits: Vec<(String, PolicyConfig)>) -> LimiterConfig {
        LimiterConfig {
            limits,
            in_use: None,
            time_to_live: None,
            store: None,
            prefix: None,
            tag: None,
            timeout: None,
            while_away: None,
            leased: false,
            observer: Observer::default(),
        }
    }

    /// Sets the observer of what this configuration builds: of the limiter of this process, or of
    /// the [store](StoreBuilder::observed_by) that the configuration opens. A program that moves
    /// from one process to a fleet thus observes both by one line. A second observer replaces the
    /// first.
    ///
    /// The observer of a store is also notified of the calls to the store, and of every limiter
    /// over it. Configurations with the same observer share a store, and configurations with
    /// different observers have separate stores. The calls that end with `over` use a given store,
    /// which has its own observer or none.
    ///
    /// The observer is not written with the configuration, and `==` does not compare it.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::sync::Arc;
    /// use tidegate::Statistics;
    /// use tidegate_redis::LimiterConfig;
    ///
    /// let line = "token_bucket 100/s burst 20"; // or with a store
    /// let statistics = Arc::new(Statistics::new());
    /// let config = line.parse::<LimiterConfig>()?.observed_by(statistics.clone());
    /// let limiter = config.build()?;
    /// limiter.try_acquire_many(20)?;
    /// assert!(limiter.try_acquire_many(20).is_err());
    /// let counts = statistics.snapshot();
    /// assert_eq!((counts.granted, counts.permits, counts.limited), (1, 20, 1));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn observed_by(self, events: Arc<dyn Events>) -> LimiterConfig {
        LimiterConfig { observer: Observer(Some(events)), ..self }
    }

    /// Builds the limiter: a process-local one if there is no store, and otherwise one that all
    /// processes share, over the store that [`open`](LimiterConfig::open) returns.
    ///
    /// An [`Unlimited`](tidegate::Unlimited) limiter needs no store, and opens none.
    ///
    /// # Errors
    ///
    /// - [`BuildError::Config`] or [`BuildError::Policy`] if a policy is invalid, or not supported
    ///   over a store;
    /// - [`BuildError::Name`] or [`BuildError::Twice`] if the tag or the names of the limits cannot
    ///   be keys;
    /// - [`BuildError::Store`] if the store cannot be opened.
    pub fn build(&self) -> Result<AnyLimiter, BuildError> {
        match self.open()? {
            Some(store) => self.build_over(&store),
            None => self.build_local(),
        }
    }

    /// Opens the store, for several limiters that share a connection; `None` if the configuration
    /// has no store. The store connects at its first call.
    ///
    /// Configurations with equal `store`, `prefix`, `timeout` and `while_away`, and with the same
    /// [observer](LimiterConfig::observed_by) or none, share one store in a process, as long as a
    /// limiter uses it or a handle is kept.
    ///
    /// # Errors
    ///
    /// [`BuildError::Store`] if the store cannot be opened.
    pub fn open(&self) -> Result<Option<Store>, BuildError> {
        self.store_builder().map(StoreBuilder::open_shared).transpose().map_err(BuildError::Store)
    }

    /// Returns the settings of the store, for a program that adds an observer, certificates or [its
    /// runtime](StoreBuilder::on_this_runtime); `None` if the configuration has no store. The
    /// builder opens a separate store, for [`limiter_builder`](LimiterConfig::limiter_builder) and
    /// the calls that end with `over`.
    ///
    /// # Examples
    ///
    /// An operator's handle, next to the one that the program uses:
    ///
    /// ```
    /// use std::sync::Arc;
    /// use tidegate::{AnyLimiter, Statistics};
    /// use tidegate_redis::LimiterConfig;
    ///
    /// let line = "token_bucket 100/s burst 20 store redis://127.0.0.1 tag uploads";
    /// let config: LimiterConfig = line.parse()?;
    /// let statistics = Arc::new(Statistics::new());
    /// if let Some(store) = config.store_builder() {
    ///     let store = store.observed_by(statistics.clone()).open()?;
    ///     let limiter = config.limiter_builder(&store)?.build()?;
    ///     limiter.set_shadow(true); // a `StoreLimiter` also has `reset` and an async `status`
    ///     let handle = AnyLimiter::from(limiter);
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn store_builder(&self) -> Option<StoreBuilder> {
        let is_needed = self.in_use.is_some() || self.limits.iter().any(|(_, limit)| !is_unlimited(limit));
        let mut builder = Store::builder(self.store.as_deref().filter(|_| is_needed)?);
        if let Some(prefix) = &self.prefix {
            builder = StoreBuilder::prefix(builder, prefix.as_str());
        }
        if let Some(timeout) = self.timeout {
            builder = builder.timeout(timeout);
        }
        if let Some(while_away) = self.while_away {
            builder = builder.while_away(while_away);
        }
        if let Observer(Some(events)) = &self.observer {
            builder = builder.observed_by(events.clone());
        }
        Some(builder)
    }

    /// Builds the limiter over this store, regardless of the store of the configuration.
    ///
    /// # Errors
    ///
    /// Like [`build`](LimiterConfig::build), and a [`BuildError`] if the configuration has no
    /// `tag`.
    pub fn build_over(&self, store: &Store) -> Result<AnyLimiter, BuildError> {
        match self.in_use {
            Some(limit) => {
                let time_to_live = self.time_to_live.unwrap_or(TIME_TO_LIVE);
                Ok(store.counting(self.tag()?, limit).time_to_live(time_to_live).build()?.into())
            }
            None => Ok(self.limiter_builder(store)?.build()?.into()),
        }
    }

    /// Returns the settings of the limiter over this store, which build a
    /// [`StoreLimiter`](crate::StoreLimiter).
    ///
    /// # Errors
    ///
    /// A [`BuildError`] if the configuration has no `tag`, or limits permits in use.
    pub fn limiter_builder(&self, store: &Store) -> Result<LimiterBuilder, BuildError> {
        if self.in_use.is_some() {
            return Err(bad("in_use", "made by build, build_over or Store::counting"));
        }
        let builder = store.limiter(self.tag()?);
        let limits = self.limits.iter().cloned();
        let builder = limits.fold(builder, |builder, (name, limit)| builder.limit(name, limit));
        Ok(if self.leased { builder.leased() } else { builder })
    }

    /// Builds limits of each key: users, tenants, addresses. Without a store the limits are
    /// process-local, for at most `max_keys` keys at a time. Requests for further keys are refused,
    /// even those that would wait: choose more keys than a program has users or hosts at a time.
    /// Over a store all processes share the limits, and the store keeps any number of keys.
    ///
    /// Over a store each key is appended to the tag, as by [`Store::keyed`].
    ///
    /// # Errors
    ///
    /// Like [`build`](LimiterConfig::build), and [`BuildError::Field`] for permits in use of each
    /// key over a store, which are not supported, and for a `max_keys` of zero without a store.
    ///
    /// # Examples
    ///
    /// ```
    /// use tidegate_redis::LimiterConfig;
    ///
    /// let config: LimiterConfig = "token_bucket 100/min burst 2".parse()?;
    /// let users = config.build_keyed(100_000)?;
    /// let alice = users.limiter("alice")?;
    /// alice.try_acquire_many(2)?;
    /// assert!(alice.try_acquire().is_err());
    /// assert!(users.limiter("bob")?.try_acquire().is_ok());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn build_keyed(&self, max_keys: usize) -> Result<AnyKeyed<String>, BuildError> {
        match self.open()? {
            Some(store) => self.build_keyed_over(&store),
            None => self.build_keyed_local(max_keys),
        }
    }

    /// Builds limits of each key over this store, regardless of the store of the configuration.
    ///
    /// # Errors
    ///
    /// Like [`build_over`](LimiterConfig::build_over).
    pub fn build_keyed_over(&self, store: &Store) -> Result<AnyKeyed<String>, BuildError> {
        Ok(self.keyed_builder(store)?.build()?.into())
    }

    /// Returns the settings of limits of each key over this store, which build a
    /// [`StoreKeyedLimiter`](crate::StoreKeyedLimiter).
    ///
    /// # Errors
    ///
    /// A [`BuildError`] if the configuration has no `tag`, or limits permits in use.
    pub fn keyed_builder(&self, store: &Store) -> Result<KeyedBuilder, BuildError> {
        if self.in_use.is_some() {
            return Err(bad("in_use", "left out of limits of each key over a store"));
        }
        self.limiter_builder(store).map(KeyedBuilder)
    }

    fn build_local(&self) -> Result<AnyLimiter, BuildError> {
        if let Some(limit) = self.in_use {
            let limit = CountingLimit::new(limit);
            self.observer.0.iter().for_each(|events| _ = limit.observe(events.clone()));
            return Ok(limit.into());
        }
        let mut all: Option<AllOf> = None;
        for (name, limit) in &self.limits {
            let limiter = RateLimiter::new(AnyPolicy::try_from(limit.clone())?);
            if self.limits.len() == 1 && name == ONLY {
                self.observer.0.iter().for_each(|events| _ = limiter.observe(events.clone()));
                return Ok(limiter.into());
            }
            all = Some(match all {
                None => AllOf::new(name.as_str(), &limiter),
                Some(all) => all.with(name.as_str(), &limiter),
            });
        }
        let all = all.ok_or(BuildError::NoLimit)?;
        self.observer.0.iter().for_each(|events| _ = all.observe(events.clone()));
        Ok(all.into())
    }

    /// The tag. It has no default: the limits of two configurations would have one key.
    fn tag(&self) -> Result<&str, BuildError> {
        let allowed = "set for a limit over a store, to the name by which all processes share this limit, such as \
                       uploads";
        self.tag.as_deref().ok_or(bad("tag", allowed))
    }

    fn build_keyed_local(&self, max_keys: usize) -> Result<AnyKeyed<String>, BuildError> {
        if max_keys == 0 {
            return Err(bad("max_keys", "above zero, and more than the keys that are in use at a time"));
        }
        if let Some(limit) = self.in_use {
            let limit: KeyedCountingLimit<String> = KeyedCountingLimit::new(limit, max_keys);
            return Ok(match &self.observer {
                Observer(Some(events)) => limit.observed_by(events.clone()).into(),
                Observer(None) => limit.into(),
            });
        }
        let mut all: Option<KeyedAllOf<str>> = None;
        for (name, limit) in &self.limits {
            let policy = AnyPolicy::try_from(limit.clone())?;
            let limiter: KeyedRateLimiter<String, _> = KeyedRateLimiter::new(policy, max_keys);
            if self.limits.len() == 1 && name == ONLY {
                return Ok(match &self.observer {
                    Observer(Some(events)) => limiter.observed_by(events.clone()).into(),
                    Observer(None) => limiter.into(),
                });
            }
            all = Some(match all {
                None => KeyedAllOf::new(name.as_str(), &limiter),
                Some(all) => all.with_keyed(name.as_str(), &limiter),
            });
        }
        let all = all.ok_or(BuildError::NoLimit)?;
        Ok(match &self.observer {
            Observer(Some(events)) => all.observed_by(events.clone()).into(),
            Observer(None) => all.into(),
        })
    }

    /// Sets a field that is not a field of a policy.
    fn set(&mut self, field: &'static str, value: &str) -> Result<(), BuildError> {
        let is_set = match field {
            "in_use" => {
                let allowed = "a whole number from 1 to 4294967295; a limit that grants nothing is deny_all";
                let limit = value.parse::<NonZeroU32>().map_err(|_| bad(field, allowed).with_value(value))?;
                self.in_use.replace(limit.get()).is_some()
            }
            // In the line the address is missing.
            "store" if value.is_empty() || FIELDS.contains(&value) => {
                return Err(bad(field, "an address, such as redis://127.0.0.1"));
            }
            "prefix" | "tag" if value.is_empty() => return Err(bad(field, "a text")),
            // `Debug` and errors print it.
            "prefix" | "tag" if has_login(value) => {
                return Err(bad(field, "a name, and not an address with a password"));
            }
            "store" => self.store.replace(value.into()).is_some(),
            "prefix" => self.prefix.replace(value.into()).is_some(),
            "tag" => self.tag.replace(value.into()).is_some(),
            "timeout" => {
                let allowed = "a whole number above zero and a unit, such as 50ms or 1s";
                let span = span(value).ok_or_else(|| bad(field, allowed).with_value(value))?;
                self.timeout.replace(span).is_some()
            }
            "time_to_live" => {
                let span = span(value).filter(|span| *span >= SHORTEST_TIME_TO_LIVE);
                let allowed = "a whole number and a unit, at least 1s, such as 10s";
                self.time_to_live
                    .replace(span.ok_or_else(|| bad(field, allowed).with_value(value))?)
                    .is_some()
            }
            "while_away" => self.while_away.replace(value.parse()?).is_some(),
            _ => std::mem::replace(&mut self.leased, true),
        };
        if is_set { Err(bad(field, "set once")) } else { Ok(()) }
    }

    /// The fields that are set, without secrets.
    fn fields(&self) -> Vec<(&'static str, String)> {
        let texts = [("prefix", &self.prefix), ("tag", &self.tag)];
        let texts = texts.into_iter().filter_map(|(field, text)| Some((field, text.clone()?)));
        let in_use = self.in_use.map(|limit| ("in_use", limit.to_string()));
        let store = self.store.iter().map(|address| ("store", without_login(address)));
        let time_to_live = self.time_to_live.map(|span| ("time_to_live", span_text(span)));
        let timeout = self.timeout.map(|timeout| ("timeout", span_text(timeout)));
        let while_away = self.while_away.map(|choice| ("while_away", choice.to_string()));
        let of_store = texts.chain(timeout).chain(while_away);
        in_use.into_iter().chain(time_to_live).chain(store).chain(of_store).collect()
    }

    /// Returns an error if fields of a store are set without a store, if a store is set without a
    /// tag, or if a limit of permits in use is combined with anything else.
    fn checked(self) -> Result<LimiterConfig, BuildError> {
        if self.in_use.is_some() && (self.leased || !self.limits.is_empty()) {
            return Err(bad("in_use", ALONE));
        }
        if self.in_use.is_none() && self.time_to_live.is_some() {
            return Err(bad("time_to_live", "left out where in_use is not set"));
        }
        if self.store.is_some() {
            self.tag()?;
            return Ok(self);
        }
        let of_store = self
            .fields()
            .into_iter()
            .map(|(field, _)| field)
            .find(|field| !["in_use", "tag"].contains(field));
        match of_store.or(self.leased.then_some("leased")) {
            Some(field) => Err(bad(field, "left out where no store is set")),
            None => Ok(self),
        }
    }
}

fn is_unlimited(config: &PolicyConfig) -> bool {
    matches!(config, PolicyConfig::Unlimited { .. })
}

fn bad(field: &'static str, allowed: &'static str) -> BuildError {
    BuildError::Field { field, allowed, value: None }
}

/// A duration in the form of a policy's line: the period of a rate of one permit. It may be longer
/// than that of a rate.
fn span(text: &str) -> Option<Duration> {
    let unit = text.trim_start_matches(|c: char| c.is_ascii_digit());
    let count = text.strip_suffix(unit).filter(|count| !count.is_empty())?;
    let period = |text: &str| Some(format!("1/{text}").parse::<Rate>().ok()?.period());
    let many = || {
        let nanos = period(unit)?.as_nanos().saturating_mul(count.parse().unwrap_or(u128::MAX));
        let secs = u64::try_from(nanos / 1_000_000_000).unwrap_or(u64::MAX);
        // The remainder is below a second.
        Some(Duration::new(secs, u32::try_from(nanos % 1_000_000_000).unwrap_or(0)))
    };
    // A count of zero is no duration, like that of a rate.
    period(text).or_else(many).filter(|span| !span.is_zero())
}

fn span_text(span: Duration) -> String {
    let Ok(rate) = Rate::new(1, span) else { return format!("{}ns", span.as_nanos()) };
    let text = rate.to_string();
    match text.split_once('/').map(|(_, span)| span) {
        Some(span) if span.starts_with(|c: char| c.is_ascii_digit()) => span.into(),
        Some(unit) => format!("1{unit}"),
        None => text,
    }
}

/// An address without its user and password. The path of a socket may be followed by them, and by a
/// database. In a text that is not an address, their position is unknown.
fn without_login(text: &str) -> String {
    let (address, query) = text.split_once('?').unwrap_or((text, ""));
    let Some((protocol, rest)) = address.split_once("://").filter(|_| is_address(text)) else {
        return "(no address)".into();
    };
    // The path of a socket has no login before it, and may have an `@`.
    let login_ends = rest.rfind('@').filter(|_| !rest.starts_with('/'));
    let servers = login_ends.map_or(rest, |at| &rest[at + 1..]);
    let database = query.split('&').find(|field| field.starts_with("db="));
    let database = database.map_or(String::new(), |database| format!("?{database}"));
    format!("{protocol}://{servers}{database}")
}

/// Returns whether a text is an address, with or without the feature `tls`.
fn is_address(text: &str) -> bool {
    let plain = ["rediss", "valkeys"].into_iter().find_map(|protocol| {
        let rest = text.strip_prefix(protocol).filter(|rest| rest.starts_with([':', '+']))?;
        Some(format!("redis{rest}"))
    });
    Address::read(plain.as_deref().unwrap_or(text), None).is_ok()
}

/// Returns whether an address may end in the middle of its password: in a field for it, or before
/// the `@` that follows a password.
fn may_be_cut(address: &str) -> bool {
    let host = address.split_once("://").map_or(address, |(_, rest)| rest);
    let end = host.rsplit_once(':').map_or("", |(_, end)| end.split('/').next().unwrap_or(end));
    address.contains("pass") || !host.contains('@') && !end.chars().all(|c| c.is_ascii_digit())
}

/// Returns whether a text looks like an address with a password. A tag may be the address of a user
/// or of a host.
fn has_login(text: &str) -> bool {
    text.contains("://") && text.contains('@') || has_password_field(text)
}

/// Reads a line; see [Text](LimiterConfig#text).
impl FromStr for LimiterConfig {
    type Err = BuildError;

    fn from_str(line: &str) -> Result<LimiterConfig, BuildError> {
        let words: Vec<_> = line.split_whitespace().collect();
        // An address with a space in its password ends too early: the next words belong to the
        // password.
        let address = words.iter().position(|word| *word == "store").and_then(|at| words.get(at + 1..));
        let cut = || bad("store", "an address; a space in its password is written as %20");
        let Some([address, rest @ ..]) = address else { return read_words(&words) };
        let goes_on = rest.iter().any(|word| word.contains('@'));
        match read_words(&words) {
            // A word of the password is the name of a field.
            Ok(_) if goes_on && !is_address(address) => Err(cut()),
            Ok(config) => Ok(config),
            Err(error) if !goes_on && !may_be_cut(address) => Err(error),
            Err(BuildError::Unknown { .. }) => Err(cut()),
            Err(BuildError::Field { field, allowed, .. }) => Err(bad(field, allowed)),
            Err(error) => Err(error),
        }
    }
}

/// Reads the words of a line. An error shows the value that is wrong.
fn read_words(words: &[&str]) -> Result<LimiterConfig, BuildError> {
    let at = words.iter().position(|word| FIELDS.contains(word)).unwrap_or(words.len());
    let (policies, fields) = words.split_at(at);
    if policies.iter().any(|word| may_be_secret(word)) {
        // The word may be a password, which no error may show.
        return Err(bad("store", "named before its address"));
    }
    let policies: Vec<_> = policies.split(|word| *word == "and").map(|words| words.join(" ")).collect();
    let names: &[&str] = if policies.len() == 1 { &[ONLY] } else { &["first", "second"] };
    if policies.len() > names.len() {
        return Err(bad("policy", "one, or two with `and` between them"));
    }
    if at == 0 && !fields.contains(&"in_use") {
        return Err(bad("policy", "first in a line, such as token_bucket 100/s burst 20"));
    }
    // A limit of permits in use has no policy.
    let policies = policies.into_iter().filter(|policy| !policy.is_empty() || !fields.contains(&"in_use"));
    let limits = names.iter().zip(policies);
    let limits = limits.map(|(name, policy)| Ok(((*name).to_owned(), policy.parse()?)));
    let mut config = LimiterConfig::new(limits.collect::<Result<_, BuildError>>()?);
    let mut fields = fields.iter().peekable();
    while let Some(word) = fields.next() {
        let Some(field) = FIELDS.iter().find(|field| *field == word) else {
            let field = if may_be_secret(word) { "an address" } else { word };
            return Err(BuildError::Unknown { field: field.into() });
        };
        let mut value = match *field {
            "leased" if matches!(fields.peek(), Some(&&("true" | "false"))) => {
                return Err(bad("leased", "named without a value, or left out"));
            }
            "leased" => String::new(),
            _ => fields.next().copied().unwrap_or_default().to_owned(),
        };
        if value == "share_of" {
            value = format!("{value} {}", fields.next().copied().unwrap_or_default());
        }
        config.set(field, &value)?;
    }
    config.checked()
}

/// Omits the password of the address.
impl fmt::Debug for LimiterConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("LimiterConfig");
        for (name, limit) in &self.limits {
            debug.field(name, &format_args!("{limit}"));
        }
        for (name, value) in self.fields() {
            debug.field(name, &value);
        }
        debug.field("leased", &self.leased).finish()
    }
}

/// Writes the line, without the user and the password of the address. Several limits are written
/// with `and` between them, without their names.
impl fmt::Display for LimiterConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let limits = self.limits.iter().map(|(_, limit)| limit.to_string()).collect::<Vec<_>>().join(" and ");
        let limits = Some(limits).filter(|limits| !limits.is_empty());
        let fields = self.fields().into_iter().map(|(name, value)| format!("{name} {value}"));
        let leased = self.leased.then(|| "leased".to_owned());
        f.write_str(&limits.into_iter().chain(fields).chain(leased).collect::<Vec<_>>().join(" "))
    }
}
