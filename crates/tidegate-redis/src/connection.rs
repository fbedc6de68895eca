//! One connection, made anew after a failure, and what its errors mean.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use redis::{Cmd, ErrorKind, RedisError, Value};

use crate::script::Script;
use crate::wire::{Connection, Wire};

/// How long a server that is loading or changing roles is left alone before the one repetition.
const PAUSE: Duration = Duration::from_millis(5);

/// Why a call has no reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    /// The store did not carry out the call.
    NotRun(String),
    /// The store may have carried out the call.
    Unknown(String),
    /// The store, or what it allows, is not as this crate needs it.
    Misconfigured(String),
}

/// How long an attempt to connect may take. Calls do not wait for it beyond their own deadline.
const CONNECTING: Duration = Duration::from_secs(5);

/// A server that is asked by one connection. All calls share it.
pub(crate) struct Server {
    wire: Wire,
    /// With the number of the connection, so that a call drops the one that failed it.
    current: Mutex<Option<(u64, Connection)>>,
    /// Held while connecting: one attempt at a time.
    connecting: tokio::sync::Mutex<Option<Failure>>,
    /// How many attempts have ended.
    attempts: AtomicU64,
}

impl Server {
    pub(crate) fn new(wire: Wire) -> Server {
        let (current, connecting) = (Mutex::new(None), tokio::sync::Mutex::new(None));
        Server { wire, current, connecting, attempts: AtomicU64::new(0) }
    }

    fn current(&self) -> Option<(u64, Connection)> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    async fn connection(self: &Arc<Server>) -> Result<(u64, Connection), Failure> {
        if let Some(connection) = self.current() {
            return Ok(connection);
        }
        // A task of its own: a server that is far away takes longer to connect to than a call may
        // take.
        let attempts = self.attempts.load(Ordering::Relaxed);
        let this = self.clone();
        let connecting = tokio::spawn(async move { this.connect(attempts).await });
        connecting.await.unwrap_or_else(|_| Err(Failure::NotRun("could not be connected to".into())))
    }

    /// Connects, unless an attempt has ended since so many had.
    async fn connect(&self, attempts: u64) -> Result<(u64, Connection), Failure> {
        let mut last_failure = self.connecting.lock().await;
        if let Some(connection) = self.current() {
            return Ok(connection);
        }
        if self.attempts.load(Ordering::Relaxed) != attempts
            && let Some(failure) = &*last_failure
        {
            return Err(failure.clone());
        }
        let made = match tokio::time::timeout(CONNECTING, self.wire.connect()).await {
            Ok(made) => made.map_err(|error| match meaning(&error) {
                Meaning::Misconfigured => Failure::Misconfigured(told(&error)),
                _ => Failure::NotRun(told(&error)),
            }),
            Err(_) => Err(Failure::NotRun("could not be connected to".into())),
        };
        let number = self.attempts.fetch_add(1, Ordering::Relaxed) + 1;
        *last_failure = made.as_ref().err().cloned();
        let connection = (number, made?);
        *self.current.lock().unwrap_or_else(PoisonError::into_inner) = Some(connection.clone());
        Ok(connection)
    }

    /// Forgets a connection that failed. The next call connects, and resolves the name anew.
    fn forget(&self, number: u64) {
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        if current.as_ref().is_some_and(|(of, _)| *of == number) {
            *current = None;
        }
    }

    pub(crate) fn forget_all(&self) {
        *self.current.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// Carries out a call by the hash of its script, or by the text if the server does not know it.
    /// It is repeated only where the server said that it did not carry it out. `sent` is set before
    /// the call leaves.
    pub(crate) async fn call(
        self: &Arc<Server>,
        by_hash: &Cmd,
        script: &Script,
        sent: &Sent,
    ) -> Result<Value, Failure> {
        let (mut by_text, mut repeated) = (None, false);
        loop {
            sent.set(false);
            let (number, mut connection) = self.connection().await?;
            sent.set(true);
            let error = match connection.call(by_text.as_ref().unwrap_or(by_hash)).await {
                Ok(value) => return Ok(value),
                Err(error) => error,
            };
            match meaning(&error) {
                Meaning::NoScript if by_text.is_none() => by_text = Some(script.by_text(by_hash)),
                Meaning::Loading if !repeated => {
                    repeated = true;
                    sent.set(false);
                    tokio::time::sleep(PAUSE).await;
                }
                Meaning::ReadOnly => {
                    self.forget(number);
                    return Err(Failure::NotRun(told(&error)));
                }
                Meaning::Lost => {
                    self.forget(number);
                    return Err(Failure::Unknown(told(&error)));
                }
                Meaning::Misconfigured => return Err(Failure::Misconfigured(told(&error))),
                Meaning::NoScript | Meaning::Loading | Meaning::Refused => {
                    return Err(Failure::NotRun(told(&error)));
                }
            }
        }
    }
}

/// Whether a call has left, told to the deadline that ends it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sent(Arc<AtomicBool>);

impl Sent {
    fn set(&self, sent: bool) {
        // Relaxed: one thread carries out the call and its deadline.
        self.0.store(sent, Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// What an error says about the call that got it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Meaning {
    /// The server does not know the script.
    NoScript,
    /// The server will be ready soon.
    Loading,
    /// The server became a replica.
    ReadOnly,
    /// The server could not carry out the call.
    Refused,
    /// The connection was lost.
    Lost,
    Misconfigured,
}

fn meaning(error: &RedisError) -> Meaning {
    match error.code() {
        Some("NOSCRIPT") => Meaning::NoScript,
        Some("LOADING" | "MASTERDOWN" | "CLUSTERDOWN" | "TRYAGAIN") => Meaning::Loading,
        Some("READONLY") => Meaning::ReadOnly,
        Some("OOM" | "BUSY" | "MISCONF" | "NOREPLICAS" | "UNKILLABLE") => Meaning::Refused,
        Some("ERR") if error.detail().is_some_and(|text| text.contains("max number of clients")) => {
            Meaning::Refused
        }
        Some(_) => Meaning::Misconfigured,
        None => match error.kind() {
            ErrorKind::AuthenticationFailed | ErrorKind::InvalidClientConfig => Meaning::Misconfigured,
            // Also an answer that makes no sense: the connection cannot be used any more.
            _ => Meaning::Lost,
        },
    }
}

/// What a message may tell: the words of the server, and never an address or a password.
fn told(error: &RedisError) -> String {
    match error.code() {
        Some(code) => format!("{code} {}", error.detail().unwrap_or_default()).trim_end().to_owned(),
        None => error.category().to_owned(),
    }
}
