//! One connection to one server.
//!
//! The client library has a future that writes calls and reads replies, and a queue of calls to it.
//! A task polls that future. A thread that sends a call polls it as well, once, and so writes the
//! call by itself: the task is not woken for it, and waits for the reply.

use std::cell::Cell;
use std::io;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use futures_util::task::AtomicWaker;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Cmd, ConnectionAddr, RedisError, Value};
use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::task::{JoinHandle, JoinSet, coop};

use super::address::Node;
use super::failure::{Failure, Meaning, meaning, of_connecting, of_reaching, told};
use super::lock;
use crate::script::Script;

/// After so long without traffic a connection is probed, which keeps it in the tables of firewalls.
const KEEPALIVE: Duration = Duration::from_secs(15);

/// A connection that many calls share. Clones are handles to it.
#[derive(Clone)]
pub(crate) struct Link {
    connection: MultiplexedConnection,
    driver: Arc<Driver>,
    task: Arc<Task>,
}

/// The answer to a call that was sent.
pub(crate) type Answer = Pin<Box<dyn Future<Output = Result<Value, RedisError>> + Send>>;

/// The library's future.
struct Driver {
    /// `None` when it has ended.
    future: Mutex<Option<Pin<Box<dyn Future<Output = ()> + Send>>>>,
    task: Arc<Wakes>,
    /// Wakes the task.
    waker: Waker,
}

impl Driver {
    fn new(future: impl Future<Output = ()> + Send + 'static) -> Driver {
        let task = Arc::new(Wakes(AtomicWaker::new()));
        Driver { future: Mutex::new(Some(Box::pin(future))), waker: Waker::from(task.clone()), task }
    }

    fn poll(&self, future: &mut Option<Pin<Box<dyn Future<Output = ()> + Send>>>) -> Poll<()> {
        let context = &mut Context::from_waker(&self.waker);
        let poll = future.as_mut().map_or(Poll::Ready(()), |future| future.as_mut().poll(context));
        if poll.is_ready() {
            *future = None;
        }
        poll
    }
}

thread_local! {
    /// This thread adds a call, and polls the future after that.
    static SENDS: Cell<bool> = const { Cell::new(false) };
}

/// While it lives, this thread adds a call. Also a panic ends it.
struct Sending;

impl Sending {
    fn begin() -> Sending {
        SENDS.set(true);
        Sending
    }
}

impl Drop for Sending {
    fn drop(&mut self) {
        SENDS.set(false);
    }
}

/// The waker of the task.
struct Wakes(AtomicWaker);

impl Wake for Wakes {
    fn wake(self: Arc<Wakes>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Wakes>) {
        if !SENDS.get() {
            self.0.wake();
        }
    }
}

/// The task that polls the future.
struct Task(JoinHandle<()>);

impl Task {
    fn spawn(driver: Arc<Driver>) -> Task {
        /// Ends the future with the task.
        struct End(Arc<Driver>);

        impl Drop for End {
            fn drop(&mut self) {
                *lock(&self.0.future) = None;
            }
        }

        let driver = End(driver);
        Task(tokio::spawn(std::future::poll_fn(move |context| {
            driver.0.task.0.register(context.waker());
            driver.0.poll(&mut lock(&driver.0.future))
        })))
    }
}

impl Drop for Task {
    /// A future with replies to come would go on for as long as the server is silent.
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Link {
    /// Connects, resolves the name anew, and logs in. It sets no deadline.
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
        let driver = Arc::new(Driver::new(future));
        Ok(Link { connection, task: Arc::new(Task::spawn(driver.clone())), driver })
    }

    /// Whether the connection is known to be closed: no call that begins now would run.
    pub(crate) fn is_closed(&self) -> bool {
        self.task.0.is_finished()
    }

    /// Sends a call, and waits for its answer. An error of the server is an error.
    pub(crate) async fn call(&mut self, cmd: &Cmd) -> Result<Value, RedisError> {
        self.connection.send_packed_command(cmd).await.and_then(Value::extract_error)
    }

    /// Sends a call from this thread. The waker is woken when its answer is there. `None` if it is
    /// not sent, since another thread is at work or the connection is closed.
    pub(super) fn send(&self, cmd: Arc<Cmd>, waker: &Waker) -> Option<Answer> {
        let mut future = self.driver.future.try_lock().ok()?;
        let mut link = self.clone();
        let mut answer: Answer = Box::pin(async move { link.call(&cmd).await });
        let sending = Sending::begin();
        // Else a budget of the calling task might end here, and its runtime would go on at any
        // time.
        let poll = pin!(coop::unconstrained(answer.as_mut())).poll(&mut Context::from_waker(waker));
        drop(sending);
        let driving = std::future::poll_fn(|_| self.driver.poll(&mut future));
        if pin!(coop::unconstrained(driving)).poll(&mut Context::from_waker(Waker::noop())).is_ready() {
            self.driver.task.0.wake();
        }
        // An answer before the future went on is that of a closed connection.
        poll.is_pending().then_some(answer)
    }

    /// Sends a call that a server of a cluster may carry out for a slot that it is to get.
    pub(crate) async fn call_asking(&mut self, cmd: &Cmd) -> Result<Value, RedisError> {
        let mut both = redis::pipe();
        both.cmd("ASKING").add_command(cmd.clone());
        let mut answers = self.connection.send_packed_commands(&both, 0, 2).await?;
        answers.pop().unwrap_or(Value::Nil).extract_error()
    }

    /// Whether scripts run and may do what limiters need, with this key or none.
    ///
    /// Only an error that tells of a wrong configuration, or of a replica, is one.
    pub(super) async fn test(&mut self, key: Option<&str>) -> Result<(), Failure> {
        let script = Script::new(SELF_TEST.into());
        let mut by_hash = redis::cmd("EVALSHA");
        by_hash.arg(&script.hash).arg(key.iter().len()).arg(key);
        let mut answer = self.call(&by_hash).await;
        if matches!(&answer, Err(error) if meaning(error) == Meaning::NoScript) {
            answer = self.call(&script.by_text(&by_hash)).await;
        }
        match answer {
            Ok(_) => Ok(()),
            Err(error) => match meaning(&error) {
                Meaning::Misconfigured => Err(failure(&error)),
                Meaning::ReadOnly | Meaning::Lost => Err(Failure::NotRun(told(&error))),
                // A call that follows will see for itself.
                _ => Ok(()),
            },
        }
    }
}

/// Makes once each command of the scripts of limiters. An error tells the command. It returns
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
  make('DEL', KEYS[1])
end";

/// Connects to the first address of a name that answers.
async fn tcp(host: &str, port: u16) -> io::Result<TcpStream> {
    let mut attempts = JoinSet::new();
    // Of a name that is not resolved the system tells no kind.
    let resolved = tokio::net::lookup_host((host, port)).await;
    for address in resolved.map_err(|_| io::ErrorKind::NotFound)? {
        attempts.spawn(TcpStream::connect(address));
    }
    let mut error = io::Error::from(io::ErrorKind::NotFound);
    while let Some(attempt) = attempts.join_next().await {
        match attempt.unwrap_or_else(|error| Err(io::Error::other(error))) {
            Ok(stream) => {
                // A call is one small write, and waits for no other.
                stream.set_nodelay(true)?;
                SockRef::from(&stream).set_tcp_keepalive(&TcpKeepalive::new().with_time(KEEPALIVE))?;
                return Ok(stream);
            }
            Err(refused) => error = refused,
        }
    }
    Err(error)
}

/// The failure of a command by which a connection begins.
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
    of_connecting(error)
}
