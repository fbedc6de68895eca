//! The link between a store and its server: a connection of the client library, or a model of one.

use std::sync::{Arc, Mutex};
use std::task::Waker;

use redis::{Cmd, RedisError, Value};

use super::address::Node;
use super::failure::Failure;
use super::link::{Link, PendingReply};
use super::sentinel::{Reported, Sentinels};

/// Makes connections to one server.
#[derive(Default)]
pub(crate) enum Wire {
    /// Connects to one address. A connection is tested with the key.
    Server { node: Node, key: Option<String> },
    /// Connects to the primary that sentinels report.
    Sentinels { sentinels: Arc<Sentinels>, key: String },
    /// Connects to no server.
    #[default]
    Nowhere,
    #[cfg(feature = "simulation")]
    Model(crate::model::Link),
}

/// A connection. Clones share it.
#[derive(Clone)]
pub(crate) enum Connection {
    Client(Link),
    #[cfg(feature = "simulation")]
    Model(crate::model::Connection),
}

impl Wire {
    /// Connects. The caller sets the deadline of all attempts. Also returns what a sentinel
    /// reported, which may report another server later. `misconfigured` is set as by
    /// [`Sentinels::connect`].
    pub(super) async fn connect(
        &self,
        misconfigured: &Mutex<Option<Failure>>,
    ) -> Result<(Connection, Option<Reported>), Failure> {
        let (mut link, key, reported) = match self {
            Wire::Server { node, key } => (Link::connect(node).await?, key.as_deref(), None),
            Wire::Sentinels { sentinels, key } => {
                let (link, reported) = sentinels.connect(misconfigured).await?;
                (link, Some(key.as_str()), Some(reported))
            }
            Wire::Nowhere => return Err(Failure::NotRun("no server is known".into())),
            #[cfg(feature = "simulation")]
            Wire::Model(link) => {
                let made = link.connect().await.map(|made| (Connection::Model(made), None));
                return made.map_err(|error| super::failure::of_connecting(&error));
            }
        };
        link.test(key).await?;
        Ok((Connection::Client(link), reported))
    }
}

impl Connection {
    /// Returns whether the connection is known to be closed.
    pub(crate) fn is_closed(&self) -> bool {
        match self {
            Connection::Client(link) => link.is_closed(),
            // The model reports to the next call that the connection is closed.
            #[cfg(feature = "simulation")]
            Connection::Model(_) => false,
        }
    }

    /// Sends a call, and waits for its reply. An error reply is returned as an error.
    pub(crate) async fn call(&mut self, cmd: &Cmd) -> Result<Value, RedisError> {
        match self {
            Connection::Client(link) => link.call(cmd).await,
            #[cfg(feature = "simulation")]
            Connection::Model(connection) => connection.call(cmd).await.and_then(Value::extract_error),
        }
    }

    /// Sends a call on this thread, like [`Link::send`].
    pub(super) fn send(&self, cmd: Arc<Cmd>, waker: &Waker) -> Option<PendingReply> {
        match self {
            Connection::Client(link) => link.send(cmd, waker),
            #[cfg(feature = "simulation")]
            Connection::Model(_) => None,
        }
    }

    /// Sends a call to a cluster server that is about to get its slot.
    pub(crate) async fn call_asking(&mut self, cmd: &Cmd) -> Result<Value, RedisError> {
        match self {
            Connection::Client(link) => link.call_asking(cmd).await,
            // The model is not a cluster.
            #[cfg(feature = "simulation")]
            Connection::Model(_) => self.call(cmd).await,
        }
    }
}
