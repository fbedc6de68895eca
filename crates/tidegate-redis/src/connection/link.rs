//! One connection to one server.

use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Waker};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Cmd, ConnectionAddr, RedisError, Value};
use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::task::{JoinHandle, JoinSet, coop};

use super::address::Node;
use super::driver;
use super::failure::{Failure, Meaning, meaning, of_connecting, of_reaching};

/// The time without traffic after which a connection is probed, which keeps it in the tables of
/// firewalls.
const KEEPALIVE: Duration = Duration::from_secs(15);

/// A connection that many calls share. Clones are handles to it.
#[derive(Clone)]
pub(crate) struct Link {
    connection: MultiplexedConnection,
    driver: Arc<Driver>,
    task: Arc<Task>,
}

/// The reply to a call that was sent.
pub(crate) type PendingReply = Pin<Box<dyn Future<Output = Result<Value, RedisError>> + Send>>;

/// The library's future, which writes calls and reads replies.
type Driver = driver::Driver<Pin<Box<dyn Future<Output = ()> + Send>>>;

/// The task that polls the future.
struct Task(JoinHandle<()>);

impl Task {
    fn spawn(driver: Arc<Driver>) -> Task {
        /// Ends the future with the task.
        struct End(Arc<Driver>);

        impl Drop for End {
            fn drop(&mut self) {
                self.0.end();
            }
        }

        let driver = End(driver);
        Task(tokio::spawn(std::future::poll_fn(move |context| driver.0.poll(context))))
    }
}

impl Drop for Task {
    /// A future with outstanding replies would run for as long as the server is silent.
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Link {
    /// Resolves the name anew, connects and logs in. It sets no deadline.
    pub(super) async fn connect(node: &Node) -> Result<Link, Failure> {
        match node.info.addr() {
            ConnectionAddr::Tcp(host, port) => {
                let stream = tcp(host, *port).await.map_err(|error| of_reaching(&error))?;
                match &node.tls {
                    Some(tls) => Link::over(node, tls.connect(host, stream).await?).await,
                    None => Link::over(node, stream).await,
                }
            }
            #[cfg(unix)]
            ConnectionAddr::Unix(path) => {
                let stream = tokio::net::UnixStream::connect(path).await;
                let stream = stream.map_err(|error| of_reaching(&error))?;
                Link::over(node, stream).await
            }
            _ => Err(Failure::Misconfigured("an address that this system does not have".into())),
        }
    }

    async fn over<S>(node: &Node, stream: S) -> Result<Link, Failure>
    where
        S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        // The caller of a call sets its deadline.
        let config = AsyncConnectionConfig::new().set_response_timeout(None).set_connection_timeout(None);
        let made = MultiplexedConnection::new_with_config(node.info.redis_settings(), stream, config).await;
        let (connection, future) = made.map_err(|error| failure(&error))?;
        let driver = Arc::new(Driver::new(Box::pin(future)));
        Ok(Link { connection, task: Arc::new(Task::spawn(driver.clone())), driver })
    }

    /// Returns whether the connection is known to be closed: no call that begins now would run.
    pub(crate) fn is_closed(&self) -> bool {
        self.task.0.is_finished()
    }

    /// Sends a call, and waits for its reply. An error reply is returned as an error.
    pub(crate) async fn call(&mut self, cmd: &Cmd) -> Result<Value, RedisError> {
        self.connection.send_packed_command(cmd).await.and_then(Value::extract_error)
    }

    /// Sends a call on this thread. The waker is woken when its reply arrives. Returns `None` if
    /// the call is not sent because another thread is at work or the connection is closed.
    pub(super) fn send(&self, cmd: Arc<Cmd>, waker: &Waker) -> Option<PendingReply> {
        let (reply, poll) = self.driver.send(|| {
            let mut link = self.clone();
            let mut reply: PendingReply = Box::pin(async move { link.call(&cmd).await });
            // The future runs without a cooperative budget: the budget of the calling task might
            // end here, and its runtime might resume the task at any time.
            let poll = pin!(coop::unconstrained(reply.as_mut())).poll(&mut Context::from_waker(waker));
            (reply, poll)
        })?;
        // A reply before the future was polled further means a closed connection.
        poll.is_pending().then_some(reply)
    }

    /// Sends a call that a cluster server may carry out for a slot that it is about to get.
    pub(crate) async fn call_asking(&mut self, cmd: &Cmd) -> Result<Value, RedisError> {
        let mut both = redis::pipe();
        both.cmd("ASKING").add_command(cmd.clone());
        let mut replies = self.connection.send_packed_commands(&both, 0, 2).await?.into_iter();
        let (asking, reply) = (replies.next().unwrap_or(Value::Nil), replies.next().unwrap_or(Value::Nil));
        // A server that refuses `ASKING` redirects the call to where it came from.
        reply.extract_error().or_else(|error| asking.extract_error().and(Err(error)))
    }

    /// Tests whether scripts run and may do what limiters need, with this key or without one.
    ///
    /// Only an error that indicates a wrong configuration, a replica or a lost connection is
    /// returned.
    pub(super) async fn test(&mut self, key: Option<&str>) -> Result<(), Failure> {
        // By its text, because a server that has the scripts may forget them later. The call that
        // follows is by a hash.
        let mut test = redis::cmd("EVAL");
        test.arg(SELF_TEST).arg(key.iter().len()).arg(key);
        match self.call(&test).await {
            Ok(_) => Ok(()),
            Err(error) => match meaning(&error) {
                Meaning::Misconfigured | Meaning::ReadOnly | Meaning::Lost | Meaning::NoRedis => {
                    Err(failure(&error))
                }
                // A following call finds out for itself.
                _ => Ok(()),
            },
        }
    }
}

/// Runs each command of the limiters' scripts once. An error names the command. The script returns
/// nothing.
pub(crate) const SELF_TEST: &str = "
local function make(command, ...)
  local is_made, failure = pcall(redis.call, command, ...)
  if not is_made then error({err = (failure.err or failure) .. ': ' .. command}) end
end
make('TIME')
if KEYS[1] then
  make('GET', KEYS[1])
  make('SET', KEYS[1], struct.pack('>d', 1), 'PX', 1)
  make('PTTL', KEYS[1])
  make('DEL', KEYS[1])
end";

/// Connects to the first address of a name that replies.
async fn tcp(host: &str, port: u16) -> io::Result<TcpStream> {
    let mut attempts = JoinSet::new();
    // The system reports no kind of error for a name that is not resolved.
    let resolved = tokio::net::lookup_host((host, port)).await;
    for address in resolved.map_err(|_| io::ErrorKind::NotFound)? {
        attempts.spawn(TcpStream::connect(address));
    }
    let mut error = io::Error::from(io::ErrorKind::NotFound);
    while let Some(attempt) = attempts.join_next().await {
        match attempt.unwrap_or_else(|error| Err(io::Error::other(error))) {
            Ok(stream) => {
                // A call is one small write, which need not wait for others.
                stream.set_nodelay(true)?;
                SockRef::from(&stream).set_tcp_keepalive(&TcpKeepalive::new().with_time(KEEPALIVE))?;
                return Ok(stream);
            }
            Err(refused) => error = refused,
        }
    }
    Err(error)
}

/// The failure of a command with which a connection begins.
fn failure(error: &RedisError) -> Failure {
    #[cfg(feature = "tls")]
    if let Some(source) = std::error::Error::source(error)
        && let Some(source) = source.downcast_ref::<Arc<dyn std::error::Error + Send + Sync>>()
        && let Some(source) = source.downcast_ref::<io::Error>()
        && let Some(failure) = super::tls::failure(source)
    {
        // A server may refuse the certificate of a client after its own handshake.
        return failure;
    }
    match error.is_connection_dropped() {
        true => Failure::NotRun(
            "the server closed the connection before it answered, as a port of TLS does unless the address begins \
             with rediss"
                .into(),
        ),
        false => of_connecting(error),
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::super::address::Address;
    use super::super::failure::redacted_text;
    use super::*;

    /// The error of a call with this reply, after which the server closes the connection.
    async fn error_of(reply: &[u8]) -> RedisError {
        let Ok(Address::Server(mut node)) = Address::read("redis://h", None) else { panic!("no server") };
        // A connection then begins without commands.
        node.info = node
            .info
            .clone()
            .set_redis_settings(redis::RedisConnectionInfo::default().set_skip_set_lib_name());
        let (client, mut server) = tokio::io::duplex(4096);
        let mut link = Link::over(&node, client).await.unwrap_or_else(|_| panic!("no connection"));
        let replies = async {
            _ = server.read(&mut [0; 4096]).await;
            server.write_all(reply).await.expect("an open connection");
            drop(server);
        };
        let ping = redis::cmd("PING");
        let (reply, ()) = tokio::join!(link.call(&ping), replies);
        reply.expect_err("an error")
    }

    #[tokio::test]
    async fn a_reply_that_is_cut_is_a_lost_connection() {
        for reply in [
            "+PONG\r\n",
            "-ERR no\r\n",
            ":12\r\n",
            "$4\r\nPONG\r\n",
            "*2\r\n$1\r\na\r\n*1\r\n:12\r\n",
            "_\r\n",
            ",1.5\r\n",
            "#t\r\n",
            "(12\r\n",
            "=8\r\ntxt:PONG\r\n",
            "!6\r\nERR no\r\n",
            "%1\r\n+a\r\n:1\r\n",
            "~1\r\n:1\r\n",
            ">2\r\n+a\r\n:1\r\n",
        ] {
            for end in 0..reply.len() {
                let error = error_of(&reply.as_bytes()[..end]).await;
                assert_eq!(meaning(&error), Meaning::Lost, "{reply:?} until {end}: {error}");
            }
        }
        assert_eq!(
            redacted_text(&error_of(b"$4\r\nPO").await),
            "the connection was lost in the middle of a reply"
        );
    }

    #[tokio::test]
    async fn a_reply_of_another_protocol_is_no_lost_connection() {
        for reply in [
            &b"HTTP/1.1 400 Bad Request\r\n\r\n"[..],
            b"HTTP/1.1 400 end of input\r\n",
            b"SSH-2.0-OpenSSH_9.2\r\n",
            b"220 mail ESMTP\r\n",
            b"ERROR\r\n",
            b"\x15\x03\x01\x00\x02\x02\x28",
            b":twelve\r\n",
            b"+\xff\r\n",
        ] {
            let error = error_of(reply).await;
            assert_eq!(meaning(&error), Meaning::NoRedis, "{reply:?}: {error}");
            assert!(redacted_text(&error).contains("no Redis server"), "{}", redacted_text(&error));
        }
    }
}
