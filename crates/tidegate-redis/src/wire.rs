//! What lies between a store and its server: a connection of the client library, or a model of one.

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, Cmd, RedisError, Value};

/// Makes connections to one server.
#[derive(Debug)]
pub(crate) enum Wire {
    Client(Client),
    #[cfg(feature = "simulation")]
    Model(crate::simulation::Link),
}

/// A connection. Clones share it.
#[derive(Clone)]
pub(crate) enum Connection {
    Client(MultiplexedConnection),
    #[cfg(feature = "simulation")]
    Model(crate::simulation::Connection),
}

impl Wire {
    /// Connects. It sets no deadline.
    pub(crate) async fn connect(&self) -> Result<Connection, RedisError> {
        match self {
            Wire::Client(client) => {
                // Deadlines are set by the caller.
                let config =
                    AsyncConnectionConfig::new().set_response_timeout(None).set_connection_timeout(None);
                let made = client.get_multiplexed_async_connection_with_config(&config).await?;
                Ok(Connection::Client(made))
            }
            #[cfg(feature = "simulation")]
            Wire::Model(link) => link.connect().await.map(Connection::Model),
        }
    }
}

impl Connection {
    /// Sends a call, and waits for its answer. An error of the server is an error.
    pub(crate) async fn call(&mut self, cmd: &Cmd) -> Result<Value, RedisError> {
        let answer = match self {
            Connection::Client(connection) => connection.send_packed_command(cmd).await,
            #[cfg(feature = "simulation")]
            Connection::Model(connection) => connection.call(cmd).await,
        };
        answer.and_then(Value::extract_error)
    }
}
