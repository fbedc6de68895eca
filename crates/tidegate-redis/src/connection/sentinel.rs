//! Sentinels, which know the primary of a group of servers.
//!
//! In a planned failover they demote the old primary some ten seconds after they promoted the new
//! one, and never if they cannot reach it. A process that stayed at the old primary would be
//! granted the limit there, and others at the new one. So the sentinel that reported the primary is
//! asked again each second.

use std::pin::pin;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::stream::{self, FuturesUnordered, StreamExt};
use redis::{Cmd, FromRedisValue, Value};

use super::address::Node;
use super::failure::{Failure, of_connecting};
use super::link::Link;
use crate::jitter::jittered;
use crate::lock::lock;

/// How often the sentinel that reported the primary is asked whether it is still the primary.
const WATCH: Duration = Duration::from_secs(1);

/// The timeout for one sentinel, and for the server that it reports: a connection over TLS takes
/// four round trips.
const ANSWER: Duration = Duration::from_secs(2);

/// The time for which only the sentinel that last reported a primary is asked. After this time, or
/// when it fails, the other sentinels are asked concurrently. The time is a fifth of the default
/// timeout of a call, so that a silent sentinel costs no such call its deadline. If each process of
/// a fleet asked all sentinels at once, it would open several connections to a primary that has
/// just been promoted.
const ALONE: Duration = Duration::from_millis(10);

/// The sentinels of a primary.
pub(crate) struct Sentinels {
    sentinels: Vec<Node>,
    name: String,
    login: Node,
    /// The sentinel that last reported a primary.
    first: AtomicUsize,
    /// The host and the port that it reported.
    primary: Mutex<(String, u16)>,
}

impl Sentinels {
    pub(super) fn new(sentinels: Vec<Node>, name: String, login: Node) -> Sentinels {
        Sentinels { sentinels, name, login, first: AtomicUsize::new(0), primary: Mutex::default() }
    }

    /// Connects to the primary: to the first server that a sentinel reports and that reports itself
    /// to be a primary.
    pub(crate) async fn connect(&self) -> Result<Link, Failure> {
        // Relaxed: any order of the sentinels is right.
        let (first, count) = (self.first.load(Ordering::Relaxed), self.sentinels.len());
        let ask = |rank: usize| async move {
            let i = (first + rank) % count;
            match in_time(self.address_over(&mut None, &self.sentinels[i])).await {
                Ok((host, port)) => {
                    let reply = in_time(self.primary_at(&host, port)).await;
                    (true, rank, i, reply.map(|link| (link, (host, port))))
                }
                Err(failure) => (false, rank, i, Err(failure)),
            }
        };
        let mut asked = FuturesUnordered::from_iter([ask(0)]);
        let alone = tokio::time::timeout(ALONE, asked.next()).await.ok().flatten();
        if !matches!(alone, Some((.., Ok(_)))) {
            asked.extend((1..count).map(ask));
        }
        let mut replies = pin!(stream::iter(alone).chain(asked));
        let mut failed = Vec::new();
        while let Some((is_of_primary, rank, i, reply)) = replies.next().await {
            match reply {
                Ok((link, primary)) => {
                    self.first.store(i, Ordering::Relaxed);
                    *lock(&self.primary) = primary;
                    return Ok(link);
                }
                Err(failure) => failed.push((is_of_primary, rank, failure)),
            }
        }
        Err(most_telling(failed))
    }

    /// Waits until the sentinel that reported the current primary reports another one. While that
    /// sentinel does not reply, the primary stays.
    pub(super) async fn replaced(&self) {
        // Relaxed: this begins behind the attempt to connect that set it.
        let sentinel = &self.sentinels[self.first.load(Ordering::Relaxed)];
        let (primary, mut link) = (lock(&self.primary).clone(), None);
        loop {
            tokio::time::sleep(jittered(WATCH)).await;
            match in_time(self.address_over(&mut link, sentinel)).await {
                Ok(address) if address != primary => return,
                Ok(_) => {}
                Err(_) => link = None,
            }
        }
    }

    /// Returns the address of the primary that one sentinel reports over a link, which is made if
    /// there is none.
    async fn address_over(&self, link: &mut Option<Link>, sentinel: &Node) -> Result<(String, u16), Failure> {
        let link = match link {
            Some(link) => link,
            None => link.insert(Link::connect(sentinel).await?),
        };
        let mut cmd = redis::cmd("SENTINEL");
        cmd.arg("GET-MASTER-ADDR-BY-NAME").arg(&self.name);
        let unknown = || Failure::Misconfigured("a sentinel knows no primary of this name".into());
        ask(link, &cmd).await?.ok_or_else(unknown)
    }

    /// Connects to a primary.
    async fn primary_at(&self, host: &str, port: u16) -> Result<Link, Failure> {
        let mut link = Link::connect(&self.login.at(host, port)).await?;
        let role: Option<Vec<Value>> = ask(&mut link, &redis::cmd("ROLE")).await?;
        match role.as_deref() {
            Some([Value::BulkString(role), ..]) if role == b"master" => Ok(link),
            _ => Err(Failure::NotRun("the server that a sentinel reported is not a primary".into())),
        }
    }
}

/// Returns the failure to report if all attempts have failed: whether each is of a primary, and its
/// rank. A primary that a sentinel reported counts more than a sentinel. Of sentinels, those that
/// are away hide those that know no primary, which may have lost their state, unless these are
/// more. Of equal failures that of the last sentinel in the order of the address is returned,
/// whichever replies last.
fn most_telling(failed: Vec<(bool, usize, Failure)>) -> Failure {
    let is_away = |failure: &Failure| !matches!(failure, Failure::Misconfigured(_));
    let away = failed.iter().filter(|(.., failure)| is_away(failure)).count();
    let outage = 2 * away >= failed.len();
    let order = |of: &(bool, usize, Failure)| (of.0, is_away(&of.2) == outage, of.1);
    let last = failed.into_iter().max_by_key(order);
    last.map_or_else(|| Failure::NotRun("no sentinel reported a primary".into()), |(.., failure)| failure)
}

async fn in_time<T>(reply: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    let silent = |_| Err(Failure::NotRun("a sentinel or its primary did not reply".into()));
    tokio::time::timeout(ANSWER, reply).await.unwrap_or_else(silent)
}

async fn ask<T: FromRedisValue>(link: &mut Link, cmd: &Cmd) -> Result<Option<T>, Failure> {
    let reply = link.call(cmd).await.map_err(|error| of_connecting(&error))?;
    let unread = |_| Failure::NotRun("an answer that makes no sense".into());
    Option::<T>::from_redis_value(reply).map_err(unread)
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;
    use crate::connection::Address;

    /// Starts a sentinel that reports this, and replies OK to every other command.
    async fn sentinel(reports: String) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address").to_string();
        tokio::spawn(async move {
            while let Ok((mut client, _)) = listener.accept().await {
                let mut buffer = vec![0; 4096];
                while let Ok(read @ 1..) = client.read(&mut buffer).await {
                    let text = String::from_utf8_lossy(&buffer[..read]).into_owned();
                    for command in text.split('*').skip(1) {
                        let is_question = command.contains("GET-MASTER-ADDR-BY-NAME");
                        let reply = if is_question { reports.as_str() } else { "+OK\r\n" };
                        client.write_all(reply.as_bytes()).await.expect("a client that reads");
                    }
                }
            }
        });
        address
    }

    /// Regression: a sentinel without its state made an outage of the primary look like a wrong
    /// name.
    #[tokio::test]
    async fn a_sentinel_that_knows_no_primary_hides_no_outage() {
        let unused = TcpListener::bind("127.0.0.1:0").await.expect("a port").local_addr();
        let port = unused.expect("an address").port().to_string();
        let reports = format!("*2\r\n$9\r\n127.0.0.1\r\n${}\r\n{port}\r\n", port.len());
        let (informed, ignorant) = (sentinel(reports).await, sentinel("*-1\r\n".into()).await);
        let (absent, two) = (format!("127.0.0.1:{port}"), format!("{ignorant},{ignorant}"));
        for (sentinels, is_outage) in [
            ([&informed, &ignorant], true),
            ([&ignorant, &informed], true),
            ([&absent, &ignorant], true),
            ([&ignorant, &absent], true),
            ([&ignorant, &ignorant], false),
            // Most of them know no primary of this name.
            ([&absent, &two], false),
            ([&two, &absent], false),
        ] {
            let url = format!("redis+sentinel://{},{}/name", sentinels[0], sentinels[1]);
            let Ok(Address::Sentinels { sentinels, name, login }) = Address::read(&url, None) else {
                panic!("no sentinels in {url}")
            };
            let Err(failure) = Sentinels::new(sentinels, name, login).connect().await else {
                panic!("a link")
            };
            assert_eq!(matches!(failure, Failure::NotRun(_)), is_outage, "{url}: {failure:?}");
        }
    }
}
