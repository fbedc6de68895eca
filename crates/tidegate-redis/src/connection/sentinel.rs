//! Sentinels, which know the primary of a group of servers.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use redis::{Cmd, FromRedisValue, Value};

use super::address::Node;
use super::failure::{Failure, of_connecting};
use super::link::Link;

/// How long one sentinel, and the server that it tells, are waited for.
const ANSWER: Duration = Duration::from_millis(500);

/// The sentinels of a primary.
pub(crate) struct Sentinels {
    sentinels: Vec<Node>,
    name: String,
    login: Node,
    /// The sentinel that told last.
    first: AtomicUsize,
}

impl Sentinels {
    pub(super) fn new(sentinels: Vec<Node>, name: String, login: Node) -> Sentinels {
        Sentinels { sentinels, name, login, first: AtomicUsize::new(0) }
    }

    /// Connects to the primary: to the first server that a sentinel tells, and that says itself
    /// that it is a primary.
    pub(crate) async fn connect(&self) -> Result<Link, Failure> {
        // Relaxed: any order of the sentinels is right.
        let first = self.first.load(Ordering::Relaxed);
        let mut last = Failure::NotRun("no sentinel told a primary".into());
        for i in 0..self.sentinels.len() {
            let i = (first + i) % self.sentinels.len();
            match tokio::time::timeout(ANSWER, self.by(&self.sentinels[i])).await {
                Ok(Ok(link)) => {
                    self.first.store(i, Ordering::Relaxed);
                    return Ok(link);
                }
                Ok(Err(failure)) => last = failure,
                Err(_) => last = Failure::NotRun("a sentinel or its primary did not answer".into()),
            }
        }
        Err(last)
    }

    /// Connects to the primary that one sentinel tells.
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
            _ => Err(Failure::NotRun("the server that a sentinel told is no primary".into())),
        }
    }
}

async fn ask<T: FromRedisValue>(link: &mut Link, cmd: &Cmd) -> Result<Option<T>, Failure> {
    let answer = link.call(cmd).await.map_err(|error| of_connecting(&error))?;
    let unread = |_| Failure::NotRun("an answer that makes no sense".into());
    Option::<T>::from_redis_value(answer).map_err(unread)
}
