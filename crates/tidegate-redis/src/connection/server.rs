//! A server, and the connection to it, which is made anew after a failure.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use futures_util::stream::{FuturesUnordered, StreamExt};
use redis::{Cmd, RedisError, Value};
use tokio::task::JoinSet;

use super::attempt::Attempts;
use super::congestion::Congestion;
use super::failure::{Failure, Meaning, meaning, redacted_text};
use super::link::PendingReply;
use super::sent::Sent;
use super::wire::{Connection, Wire};
use crate::breaker::{Breaker, next_rest};
use crate::counted::Counted;
use crate::jitter::jittered;
use crate::late::LateCalls;
use crate::lock::lock;
use crate::script::Script;
use crate::share::Silence;

/// An attempt to connect is given up after all these times. After each of the first ones it begins
/// once more, beside the earlier connections: a connection that was begun while the server was away
/// may stay silent when the server is back, and a slow handshake needs time.
const CONNECTING: [Duration; 3] = [Duration::from_secs(1), Duration::from_secs(2), Duration::from_secs(2)];

/// A server with one connection, which all calls share.
#[derive(Default)]
pub(crate) struct Server {
    wire: Wire,
    pub(crate) breaker: Arc<Mutex<Breaker>>,
    pub(crate) congestion: Congestion,
    pub(crate) late: Mutex<LateCalls>,
    pub(crate) silence: Mutex<Silence>,
    /// When a queue last asked whether the server is back.
    pub(crate) asked: Mutex<Option<tokio::time::Instant>>,
    /// With the number of the connection, so that a call drops the connection that failed it.
    current: Mutex<Option<(u64, Connection)>>,
    connecting: Arc<Attempts>,
    /// Drops the connection when the sentinels report another primary.
    watch: Mutex<JoinSet<()>>,
    /// The number of connections made.
    connections: AtomicU64,
    /// Set after a failure that time does not mend.
    rest: Mutex<Option<Rest>>,
    /// A failure that time does not mend, of the last attempt to connect or of the one in progress.
    /// A call whose deadline ends before the attempt does fails with this failure.
    pub(super) misconfigured: Mutex<Option<Failure>>,
    /// For each script that the server did not know, by its hash: the number of texts that the
    /// server had been sent, up to the last text of this script. Held while a call with that text
    /// is in flight.
    texts: Mutex<BTreeMap<String, Arc<tokio::sync::Mutex<u64>>>>,
    /// The number of calls that wait for their turn to lock one of these.
    turns: AtomicUsize,
    /// The number of replies of the server, error replies included.
    replies: AtomicU64,
    /// The number of texts that the server was sent.
    pub(super) texts_sent: AtomicU64,
    /// In a cluster: whether another server may have its slots by now.
    pub(super) is_suspect: AtomicBool,
}

/// After a failure that time does not mend, such as a wrong login, no attempt to connect is made
/// until the end of this rest: each attempt would be a connection, and a line in the log of the
/// server.
#[derive(Clone)]
struct Rest {
    length: Duration,
    end: tokio::time::Instant,
    failure: Failure,
}

/// A call that the thread of its caller has sent.
pub(crate) struct SentCall {
    pub(crate) server: Arc<Server>,
    /// When the call was sent.
    pub(crate) at: Instant,
    /// The number of the connection.
    number: u64,
    /// The number of replies of the server before the call.
    replies: u64,
    reply: PendingReply,
}

impl SentCall {
    /// Returns the reply of the server, if it has arrived and is not an error.
    pub(crate) fn reply(&mut self, context: &mut Context<'_>) -> Option<Value> {
        let Poll::Ready(reply) = self.reply.as_mut().poll(context) else { return None };
        match reply {
            Ok(value) => {
                self.server.replies.fetch_add(1, Ordering::Relaxed);
                Some(value)
            }
            Err(error) => {
                self.reply = Box::pin(std::future::ready(Err(error)));
                None
            }
        }
    }
}

impl Server {
    pub(super) fn new(wire: Wire) -> Arc<Server> {
        Arc::new(Server { wire, ..Server::default() })
    }

    /// Returns whether calls wait while a text is sent to the server. One task polls all calls of
    /// limiters, so none of them comes between another's turn and its sending.
    pub(super) fn has_turns(&self) -> bool {
        self.turns.load(Ordering::Relaxed) > 0
    }

    /// Counts a call that waits for such a text, until the call has its turn.
    pub(super) fn turn(&self) -> Counted<&AtomicUsize> {
        Counted::new(&self.turns)
    }

    /// The record of this script's text at the server.
    pub(super) fn text(&self, script: &Script) -> Arc<tokio::sync::Mutex<u64>> {
        lock(&self.texts).entry(script.hash.clone()).or_default().clone()
    }

    /// The number of replies of the server, error replies included.
    pub(crate) fn replies(&self) -> u64 {
        self.replies.load(Ordering::Relaxed)
    }

    fn current(&self) -> Option<(u64, Connection)> {
        lock(&self.current).clone().filter(|(_, connection)| !connection.is_closed())
    }

    /// Returns whether calls are sent over the connection of this number.
    pub(super) fn uses(&self, number: u64) -> bool {
        lock(&self.current).as_ref().is_some_and(|(current, _)| *current == number)
    }

    async fn connection(self: &Arc<Server>) -> Result<(u64, Connection), Failure> {
        if !self.connecting.has_waiting()
            && let Some(connection) = self.current()
        {
            return Ok(connection);
        }
        let (current, this) = (self.clone(), self.clone());
        let connecting = self.connecting.join(move || current.current(), async move { this.connect().await });
        // Boxed: most calls find a connection, and their futures are small.
        Box::pin(connecting).await
    }

    /// Connects, unless the server rests.
    async fn connect(self: &Arc<Server>) -> Result<(u64, Connection), Failure> {
        let last = lock(&self.rest).clone();
        if let Some(rest) = &last
            && tokio::time::Instant::now() < rest.end
        {
            return Err(rest.failure.clone());
        }
        let made = first_made(|| self.wire.connect(&self.misconfigured)).await;
        let misconfigured = made.as_ref().err().filter(|failure| failure.is_misconfigured());
        *lock(&self.misconfigured) = misconfigured.cloned();
        *lock(&self.rest) = match &made {
            Err(failure @ Failure::Misconfigured(_)) => {
                // Its address may be that of another service by now.
                self.is_suspect.store(true, Ordering::Relaxed);
                let length = next_rest(last.map(|rest| rest.length));
                let end = tokio::time::Instant::now() + jittered(length);
                Some(Rest { length, end, failure: failure.clone() })
            }
            _ => None,
        };
        let (connection, reported) = made?;
        let connection = (self.connections.fetch_add(1, Ordering::Relaxed), connection);
        self.congestion.connected();
        lock(&self.breaker).connected(tokio::time::Instant::now());
        *lock(&self.current) = Some(connection.clone());
        let mut watch = JoinSet::new();
        if let Some(reported) = reported {
            let (server, number) = (Arc::downgrade(self), connection.0);
            watch.spawn(async move {
                reported.replaced().await;
                server.upgrade().into_iter().for_each(|server| server.forget(number));
            });
        }
        *lock(&self.watch) = watch;
        Ok(connection)
    }

    /// The failure of a call that had no connection at its deadline. The server may be gone for
    /// good: the next call asks the cluster for its successor.
    pub(crate) fn not_connected_in_time(&self) -> Failure {
        self.is_suspect.store(true, Ordering::Relaxed);
        if let Some(failure) = &*lock(&self.misconfigured) {
            return failure.clone();
        }
        let is_in_handshake = matches!(&self.wire, Wire::Server { node, .. } if node.is_in_handshake());
        Failure::NotRun(match is_in_handshake {
            true => "TLS: the handshake was not answered in time, as by a port without TLS".into(),
            false => "could not be connected to in time".into(),
        })
    }

    #[cfg(feature = "simulation")]
    pub(super) fn is_model(&self) -> bool {
        matches!(self.wire, Wire::Model(_))
    }

    /// Drops a connection. The next call connects, and resolves the name anew.
    pub(super) fn forget(&self, number: u64) {
        let mut current = lock(&self.current);
        if current.as_ref().is_some_and(|(of, _)| *of == number) {
            *current = None;
        }
    }

    /// Sends a call on this thread, if the server replies and there is a connection. The waker is
    /// woken when there is a reply.
    pub(super) fn begin(self: &Arc<Server>, cmd: Arc<Cmd>, waker: &Waker) -> Option<SentCall> {
        let (number, connection) = self.current().filter(|_| !lock(&self.breaker).is_open())?;
        let (at, replies) = (Instant::now(), self.replies());
        let reply = connection.send(cmd, waker)?;
        Some(SentCall { server: self.clone(), at, number, replies, reply })
    }

    /// Returns the outcome of a call that was sent. If it failed, also returns what the failure
    /// means.
    pub(super) async fn begun(
        self: &Arc<Server>,
        begun: SentCall,
        sent: &Sent,
    ) -> Result<Value, (Meaning, Failure)> {
        let SentCall { number, replies, reply, .. } = begun;
        sent.by(number, replies, false);
        self.outcome(number, reply.await, sent)
    }

    /// Sends a call once. If it fails, also returns what the failure means.
    pub(super) async fn attempt(
        self: &Arc<Server>,
        cmd: &Cmd,
        asking: bool,
        sent: &Sent,
    ) -> Result<Value, (Meaning, Failure)> {
        sent.tries(self);
        let is_new = self.current().is_none();
        let (number, mut connection) = match self.connection().await {
            Ok(connection) => connection,
            Err(failure @ Failure::Misconfigured(_)) => return Err((Meaning::Misconfigured, failure)),
            Err(failure) => return Err((Meaning::NotConnected, failure)),
        };
        sent.by(number, self.replies(), is_new);
        let reply = match asking {
            true => Box::pin(connection.call_asking(cmd)).await,
            false => connection.call(cmd).await,
        };
        self.outcome(number, reply, sent)
    }

    /// Interprets a reply on a connection.
    fn outcome(
        &self,
        number: u64,
        reply: Result<Value, RedisError>,
        sent: &Sent,
    ) -> Result<Value, (Meaning, Failure)> {
        sent.withdraw();
        let error = match reply {
            Ok(value) => {
                self.replies.fetch_add(1, Ordering::Relaxed);
                return Ok(value);
            }
            Err(error) => error,
        };
        let meaning = meaning(&error);
        if meaning != Meaning::Lost {
            self.replies.fetch_add(1, Ordering::Relaxed);
        }
        let is_useless = match meaning {
            Meaning::ReadOnly | Meaning::Lost | Meaning::NoRedis => true,
            // The name may lead to another server by now.
            Meaning::NotReady | Meaning::Refused => sent.is_probe(),
            _ => false,
        };
        if is_useless {
            self.forget(number);
        }
        let text = redacted_text(&error);
        let failure = match meaning {
            Meaning::Lost => Failure::Unknown(text),
            Meaning::Misconfigured | Meaning::NoRedis => Failure::Misconfigured(text),
            _ => Failure::NotRun(text),
        };
        Err((meaning, failure))
    }
}

/// Returns the first connection that is made, or a failure if none is left.
async fn first_made<T, F>(begin: impl Fn() -> F) -> Result<T, Failure>
where
    F: Future<Output = Result<T, Failure>>,
{
    let (mut begun, mut failed) = (FuturesUnordered::new(), None);
    for longest in CONNECTING {
        begun.push(begin());
        let end = tokio::time::Instant::now() + longest;
        while let Ok(Some(made)) = tokio::time::timeout_at(end, begun.next()).await {
            match made {
                // An earlier connection may only be slow.
                Err(failure) if !begun.is_empty() => failed = Some(failure),
                made => return made,
            }
        }
    }
    Err(failed.unwrap_or_else(|| Failure::NotRun("could not be connected to".into())))
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;
    use crate::breaker::Admission;
    use crate::connection::{Address, NoReply, Servers};

    /// A server that accepts connections and sends nothing would hold up all calls for ever.
    #[tokio::test(start_paused = true)]
    async fn an_attempt_to_connect_ends() {
        let silent = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let url = format!("redis://{}", silent.local_addr().expect("an address"));
        let Ok(Address::Server(node)) = Address::read(&url, None) else { panic!("no server") };
        let server = Server::new(Wire::Server { node, key: None });
        let (ping, sent) = (redis::cmd("PING"), Sent::default());
        for _ in 0..2 {
            let began = tokio::time::Instant::now();
            let call = tokio::time::timeout(Duration::from_secs(10), server.attempt(&ping, false, &sent));
            assert!(matches!(call.await, Ok(Err((Meaning::NotConnected, _)))));
            assert_eq!(began.elapsed().as_secs(), 5);
        }
        silent.set_nonblocking(true).expect("a socket");
        assert_eq!(std::iter::from_fn(|| silent.accept().ok()).count(), 2 * CONNECTING.len());
    }

    /// Bug: a probe that a loading server answered was repeated in its call, over a new connection.
    /// Where that connection took longer than the call, it ended the rest of the breaker, over and
    /// over for as long as the server loaded.
    #[tokio::test]
    async fn a_probe_connects_once_to_a_server_that_loads() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let url = format!("redis://{}", listener.local_addr().expect("an address"));
        let connections = Arc::<AtomicUsize>::default();
        let accepted = connections.clone();
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                accepted.fetch_add(1, Ordering::Relaxed);
                tokio::spawn(async move {
                    while stream.read(&mut [0; 4096]).await.is_ok_and(|bytes| bytes > 0) {
                        _ = stream.write_all(b"-LOADING not now\r\n").await;
                    }
                });
            }
        });
        let Ok(Address::Server(mut node)) = Address::read(&url, None) else { panic!("no server") };
        // A connection then begins without commands.
        node.info = node
            .info
            .clone()
            .set_redis_settings(redis::RedisConnectionInfo::default().set_skip_set_lib_name());
        let servers = Servers::one(Wire::Server { node, key: None });
        let (ping, script) = (redis::cmd("PING"), Script::new("return 1".into()));
        let server = servers.server_of(&ping);
        for (admission, expected) in [(Admission::Allow, 1), (Admission::Probe, 1), (Admission::Probe, 2)] {
            let sent = Sent::new(&server, admission);
            let reply = servers.call(&ping, &script, None, &sent, Duration::MAX, |_, _| ()).await;
            assert!(matches!(reply, Err(NoReply::Failed(Failure::NotRun(_)))));
            let is_probe = admission == Admission::Probe;
            assert_eq!(connections.load(Ordering::Relaxed), expected, "probes: {is_probe}");
            // The next probe resolves the name anew.
            assert_eq!(server.current().is_none(), is_probe);
        }
    }

    /// A server that refuses a second connection once hid the first one, which was slow.
    #[tokio::test(start_paused = true)]
    async fn the_first_connection_that_is_made_counts() {
        let refused = || Failure::NotRun("no free connection".into());
        // Each case has the milliseconds that each connection takes, and whether it is made. Then
        // it has the milliseconds that `first_made` takes, and whether `first_made` succeeds.
        for (connections, ends, is_made) in [
            (&[(1_400, true), (0, false)][..], 1_400, true),
            (&[(9_000, true), (0, false), (100, true)], 3_100, true),
            (&[(9_000, true), (9_000, true), (9_000, true)], 5_000, false),
            (&[(1_200, false), (300, false)], 1_300, false),
            (&[(200, false)], 200, false),
        ] {
            let (next, began) = (AtomicUsize::new(0), tokio::time::Instant::now());
            let made = first_made(|| {
                let (takes, is_made) = connections[next.fetch_add(1, Ordering::Relaxed)];
                async move {
                    tokio::time::sleep(Duration::from_millis(takes)).await;
                    if is_made { Ok(()) } else { Err(refused()) }
                }
            });
            assert_eq!((made.await.is_ok(), began.elapsed()), (is_made, Duration::from_millis(ends)));
        }
    }
}
