//! Sentinels, which know the primary of a group of servers.
//!
//! In a planned failover they demote the old primary some ten seconds after they promoted the new
//! one, and never if they cannot reach it. A process that stayed at the old primary would be
//! granted the limit there, and others at the new one. So the sentinel that reported the primary is
//! asked again each second.

use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
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
}

/// What a sentinel reported to an attempt to connect. Other attempts may run beside it.
pub(super) struct Reported {
    sentinels: Arc<Sentinels>,
    by: usize,
    /// The host and the port of the primary.
    primary: (String, u16),
}

impl Sentinels {
    pub(super) fn new(sentinels: Vec<Node>, name: String, login: Node) -> Sentinels {
        Sentinels { sentinels, name, login, first: AtomicUsize::new(0) }
    }

    /// Connects to the primary: to the first server that a sentinel reports and that reports itself
    /// to be a primary. Meanwhile `misconfigured` is set to the failure that the attempt would have
    /// if nothing else replied, if time does not mend that failure.
    pub(super) async fn connect(
        self: &Arc<Sentinels>,
        misconfigured: &Mutex<Option<Failure>>,
    ) -> Result<(Link, Reported), Failure> {
        // Relaxed: any order of the sentinels is right.
        let (first, count) = (self.first.load(Ordering::Relaxed), self.sentinels.len());
        // The failures, and whether this attempt has set `misconfigured`: others run beside it.
        let failed = Mutex::new((Vec::new(), false));
        let note = |is_of_primary, rank, failure: &Failure| {
            let (failed, has_set) = &mut *lock(&failed);
            failed.retain(|(_, of, _)| *of != rank);
            failed.push((is_of_primary, rank, failure.clone()));
            let failure = Some(most_telling(failed, count)).filter(Failure::is_misconfigured);
            if *has_set || failure.is_some() {
                *has_set = failure.is_some();
                *lock(misconfigured) = failure;
            }
        };
        let (failed, note) = (&failed, &note);
        let ask = |rank: usize| async move {
            let i = (first + rank) % count;
            let address = in_time(self.address_over(&mut None, &self.sentinels[i])).await;
            let (host, port) = address.inspect_err(|failure| note(false, rank, failure)).ok()?;
            // A primary is away until it replies.
            note(true, rank, &silent());
            let link = in_time(self.primary_at(&host, port)).await;
            let link = link.inspect_err(|failure| note(true, rank, failure)).ok()?;
            self.first.store(i, Ordering::Relaxed);
            Some((link, Reported { sentinels: self.clone(), by: i, primary: (host, port) }))
        };
        let mut asked = FuturesUnordered::from_iter([ask(0)]);
        let alone = tokio::time::timeout(ALONE, asked.next()).await.ok().flatten();
        if !matches!(alone, Some(Some(_))) {
            asked.extend((1..count).map(ask));
        }
        let mut made = pin!(stream::iter(alone).chain(asked).filter_map(std::future::ready));
        made.next().await.ok_or_else(|| most_telling(&lock(failed).0, count))
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

impl Reported {
    /// Waits until the sentinel that reported this primary reports another one. While that sentinel
    /// does not reply, the primary stays.
    pub(super) async fn replaced(self) {
        let Reported { sentinels, by, primary } = self;
        let mut link = None;
        loop {
            tokio::time::sleep(jittered(WATCH)).await;
            match in_time(sentinels.address_over(&mut link, &sentinels.sentinels[by])).await {
                Ok(address) if address != primary => return,
                Ok(_) => {}
                Err(_) => link = None,
            }
        }
    }
}

/// Returns the failure to report if these attempts have failed: whether each is of a primary, and
/// its rank. Those of the `count` sentinels that are missing count as away. A primary that a
/// sentinel reported counts more than a sentinel. Of sentinels, those that are away hide those that
/// know no primary, which may have lost their state, unless these are more. Of equal failures that
/// of the last sentinel in the order of the address is returned, whichever replies last.
fn most_telling(failed: &[(bool, usize, Failure)], count: usize) -> Failure {
    let misconfigured = failed.iter().filter(|(.., failure)| failure.is_misconfigured()).count();
    let outage = 2 * misconfigured <= count;
    let order = |of: &&(bool, usize, Failure)| (of.0, of.2.is_misconfigured() != outage, of.1);
    // The last of equal ones counts, so this one counts only for the others.
    let silent = (false, 0, Failure::NotRun("no sentinel reported a primary".into()));
    let last = std::iter::once(&silent).chain(failed).max_by_key(order);
    last.unwrap_or(&silent).2.clone()
}

async fn in_time<T>(reply: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    tokio::time::timeout(ANSWER, reply).await.unwrap_or_else(|_| Err(silent()))
}

fn silent() -> Failure {
    Failure::NotRun("a sentinel or its primary did not reply".into())
}

async fn ask<T: FromRedisValue>(link: &mut Link, cmd: &Cmd) -> Result<Option<T>, Failure> {
    let reply = link.call(cmd).await.map_err(|error| of_connecting(&error))?;
    let unread = |_| Failure::NotRun("an answer that makes no sense".into());
    Option::<T>::from_redis_value(reply).map_err(unread)
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;
    use std::sync::atomic::AtomicU16;

    use futures_util::future::{Either, select};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;
    use crate::connection::Address;

    /// Starts a server that replies to a command with what `reply` returns, and else OK.
    async fn server(reply: impl Fn(&str) -> Option<String> + Send + Sync + 'static) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        tokio::spawn(async move {
            let reply = Arc::new(reply);
            while let Ok((mut client, _)) = listener.accept().await {
                let reply = reply.clone();
                tokio::spawn(async move {
                    let mut buffer = vec![0; 4096];
                    while let Ok(read @ 1..) = client.read(&mut buffer).await {
                        let text = String::from_utf8_lossy(&buffer[..read]).into_owned();
                        for command in text.split('*').skip(1) {
                            let reply = reply(command).unwrap_or_else(|| "+OK\r\n".into());
                            client.write_all(reply.as_bytes()).await.expect("a client that reads");
                        }
                    }
                });
            }
        });
        address
    }

    /// Starts a sentinel that replies this to the question for the primary.
    async fn sentinel(reports: impl Fn() -> String + Send + Sync + 'static) -> String {
        let is_question = |command: &str| command.contains("GET-MASTER-ADDR-BY-NAME");
        server(move |command| is_question(command).then(&reports)).await.to_string()
    }

    /// The reply of a sentinel that reports a primary at this port.
    fn at_port(port: u16) -> String {
        let port = port.to_string();
        format!("*2\r\n$9\r\n127.0.0.1\r\n${}\r\n{port}\r\n", port.len())
    }

    fn sentinels_at(url: &str) -> Arc<Sentinels> {
        let Ok(Address::Sentinels { sentinels, name, login }) = Address::read(url, None) else {
            panic!("no sentinels in {url}")
        };
        Arc::new(Sentinels::new(sentinels, name, login))
    }

    /// Regression: a sentinel without its state made an outage of the primary look like a wrong
    /// name.
    #[tokio::test]
    async fn a_sentinel_that_knows_no_primary_hides_no_outage() {
        let unused = TcpListener::bind("127.0.0.1:0").await.expect("a port").local_addr();
        let port = unused.expect("an address").port();
        let informed = sentinel(move || at_port(port)).await;
        let ignorant = sentinel(|| "*-1\r\n".into()).await;
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
            let Err(failure) = sentinels_at(&url).connect(&Mutex::default()).await else { panic!("a link") };
            assert_eq!(matches!(failure, Failure::NotRun(_)), is_outage, "{url}: {failure:?}");
        }
    }

    /// Bug: a wrong password was taken for an outage while a sentinel was silent.
    #[tokio::test]
    async fn a_silent_sentinel_hides_no_wrong_password() {
        let socket = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let silent = socket.local_addr().expect("an address");
        let wrong = |command: &str| command.contains("ROLE").then(|| "-WRONGPASS no\r\n".to_owned());
        let port = server(wrong).await.port();
        let informed = sentinel(move || at_port(port)).await;
        let sentinels = sentinels_at(&format!("redis+sentinel://{silent},{informed}/name"));
        let misconfigured = Mutex::<Option<Failure>>::default();
        let is_known = async {
            while lock(&misconfigured).is_none() {
                tokio::task::yield_now().await;
            }
        };
        // A call whose deadline ends during the attempt fails with this failure.
        let has_ended =
            matches!(select(pin!(sentinels.connect(&misconfigured)), pin!(is_known)).await, Either::Left(_));
        assert!(!has_ended);
    }

    /// Bug: a primary that did not reply was taken for a wrong configuration, until the end of the
    /// attempt, if another sentinel reported a wrong server, or if most sentinels knew no primary.
    #[tokio::test(start_paused = true)]
    async fn wrong_sentinels_make_no_silent_primary_a_wrong_configuration() {
        let socket = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let silent = socket.local_addr().expect("an address").port();
        let wrong = |command: &str| command.contains("ROLE").then(|| "-WRONGPASS no\r\n".to_owned());
        let wrong = server(wrong).await.port();
        let right = sentinel(move || at_port(silent)).await;
        let stray = sentinel(move || at_port(wrong)).await;
        let ignorant = sentinel(|| "*-1\r\n".into()).await;
        for sentinels in [
            [&right, &ignorant, &ignorant],
            [&ignorant, &right, &ignorant],
            [&ignorant, &ignorant, &right],
            [&right, &stray, &right],
            [&stray, &right, &right],
        ] {
            let [a, b, c] = sentinels;
            let url = format!("redis+sentinel://{a},{b},{c}/name");
            let (sentinels, misconfigured) = (sentinels_at(&url), Mutex::<Option<Failure>>::default());
            let attempt = sentinels.connect(&misconfigured);
            // All but the primary have replied by then.
            assert!(tokio::time::timeout(ANSWER / 2, attempt).await.is_err(), "{url}: it has ended");
            assert_eq!(*lock(&misconfigured), None, "{url}");
        }
    }

    /// A failure counts before the attempt ends if no further reply changes it.
    #[test]
    fn sentinels_without_a_reply_count_as_away() {
        let wrong = || Failure::Misconfigured("wrong".into());
        for (failed, count, is_outage) in [
            (vec![(false, 0, wrong())], 1, false),
            (vec![(false, 0, wrong())], 2, true),
            (vec![(false, 0, wrong()), (false, 1, wrong())], 3, false),
            (vec![(true, 0, wrong())], 3, false),
        ] {
            let failure = most_telling(&failed, count);
            assert_eq!(!failure.is_misconfigured(), is_outage, "{failed:?} of {count}");
        }
    }

    /// Bug: attempts to connect that ran side by side shared what the sentinels had reported. A
    /// connection to the old primary stayed if another attempt had found the new one.
    #[tokio::test(start_paused = true)]
    async fn a_connection_is_watched_by_what_its_own_attempt_found() {
        let is_primary =
            |command: &str| command.contains("ROLE").then(|| "*3\r\n$6\r\nmaster\r\n:0\r\n*0\r\n".to_owned());
        let [old, new] = [server(is_primary).await.port(), server(is_primary).await.port()];
        let reported = Arc::new(AtomicU16::new(old));
        let reports = reported.clone();
        let sentinel = sentinel(move || at_port(reports.load(Ordering::Relaxed))).await;
        let sentinels = sentinels_at(&format!("redis+sentinel://{sentinel}/name"));
        let Ok((_used, reported_first)) = sentinels.connect(&Mutex::default()).await else {
            panic!("no link")
        };
        reported.store(new, Ordering::Relaxed);
        let Ok(_unused) = sentinels.connect(&Mutex::default()).await else { panic!("no link") };
        let ends = tokio::time::timeout(10 * WATCH, reported_first.replaced());
        assert!(ends.await.is_ok(), "the connection to the old primary stays");
    }
}
