//! Sentinels, which know the primary of a group of servers.

use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::stream::{self, FuturesUnordered, StreamExt};
use redis::{Cmd, FromRedisValue, Value};

use super::address::Node;
use super::failure::{Failure, of_connecting};
use super::link::Link;

/// The timeout for one sentinel and the server that it reports.
const ANSWER: Duration = Duration::from_millis(500);

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
}

impl Sentinels {
    pub(super) fn new(sentinels: Vec<Node>, name: String, login: Node) -> Sentinels {
        Sentinels { sentinels, name, login, first: AtomicUsize::new(0) }
    }

    /// Connects to the primary: to the first server that a sentinel reports and that reports itself
    /// to be a primary.
    pub(crate) async fn connect(&self) -> Result<Link, Failure> {
        // Relaxed: any order of the sentinels is right.
        let (first, count) = (self.first.load(Ordering::Relaxed), self.sentinels.len());
        let ask = |rank: usize| async move {
            let i = (first + rank) % count;
            let silent = |_| Err(Failure::NotRun("a sentinel or its primary did not answer".into()));
            let answer = tokio::time::timeout(ANSWER, self.by(&self.sentinels[i])).await;
            (rank, i, answer.unwrap_or_else(silent))
        };
        let mut asked = FuturesUnordered::from_iter([ask(0)]);
        let alone = tokio::time::timeout(ALONE, asked.next()).await.ok().flatten();
        if !matches!(alone, Some((.., Ok(_)))) {
            asked.extend((1..count).map(ask));
        }
        let mut answers = pin!(stream::iter(alone).chain(asked));
        let mut last = (0, Failure::NotRun("no sentinel reported a primary".into()));
        while let Some((rank, i, answer)) = answers.next().await {
            match answer {
                Ok(link) => {
                    self.first.store(i, Ordering::Relaxed);
                    return Ok(link);
                }
                // If all fail, the failure of the last sentinel in the order of the address is
                // returned, whichever replies last.
                Err(failure) if rank >= last.0 => last = (rank, failure),
                Err(_) => {}
            }
        }
        Err(last.1)
    }

    /// Connects to the primary that one sentinel reports.
    async fn by(&self, sentinel: &Node) -> Result<Link, Failure> {
        let mut link = Link::connect(sentinel).await?;
        let mut cmd = redis::cmd("SENTINEL");
        cmd.arg("GET-MASTER-ADDR-BY-NAME").arg(&self.name);
        let (host, port): (String, u16) = match ask(&mut link, &cmd).await? {
            Some(address) => address,
            None => return Err(Failure::Misconfigured("a sentinel knows no primary of this name".into())),
        };
        let mut link = Link::connect(&self.login.at(&host, port)).await?;
        let role: Option<Vec<Value>> = ask(&mut link, &redis::cmd("ROLE")).await?;
        match role.as_deref() {
            Some([Value::BulkString(role), ..]) if role == b"master" => Ok(link),
            _ => Err(Failure::NotRun("the server that a sentinel reported is not a primary".into())),
        }
    }
}

async fn ask<T: FromRedisValue>(link: &mut Link, cmd: &Cmd) -> Result<Option<T>, Failure> {
    let answer = link.call(cmd).await.map_err(|error| of_connecting(&error))?;
    let unread = |_| Failure::NotRun("an answer that makes no sense".into());
    Option::<T>::from_redis_value(answer).map_err(unread)
}
