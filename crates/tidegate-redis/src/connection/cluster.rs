//! The servers of a cluster, and the slots of each server.

use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use redis::{Arg, Cmd, Value};
use tokio::task::JoinSet;

use super::address::Node;
use super::attempt::Attempts;
use super::failure::Failure;
use super::sent::Sent;
use super::server::Server;
use super::wire::Wire;
use crate::lock::lock;

/// The timeout for servers to report the slots.
const ANSWER: Duration = Duration::from_millis(500);

/// The number of slots of a cluster.
const SLOTS: usize = 16_384;

/// A cluster, as far as it is known. It is asked for its slots when it is first needed, and again
/// when a server fails or cannot be connected to. The server that had a slot reports when the slot
/// moves.
pub(crate) struct Cluster {
    seeds: Vec<Node>,
    map: Mutex<Map>,
    learning: Arc<Attempts>,
    /// Stands in for the server of a slot while no server of the slot is known.
    unknown: Arc<Server>,
    /// The servers of which others have the slots by now. No call ends their rest any more.
    replaced: Mutex<Vec<Arc<Server>>>,
}

#[derive(Default)]
struct Map {
    servers: HashMap<(String, u16), Arc<Server>>,
    /// By slot; empty while nothing is known.
    owners: Vec<Option<Arc<Server>>>,
}

impl Map {
    fn server(&mut self, seed: &Node, host: &str, port: u16) -> Arc<Server> {
        let address = (host.to_owned(), port);
        let new = || Server::new(Wire::Server { node: seed.at(host, port), key: None });
        self.servers.entry(address).or_insert_with(new).clone()
    }

    fn owner(&self, slot: usize) -> Option<Arc<Server>> {
        self.owners.get(slot).cloned().flatten()
    }

    /// The servers that have slots.
    fn owners(&self) -> Vec<Arc<Server>> {
        let mut owners: Vec<Arc<Server>> = Vec::new();
        for owner in self.owners.iter().flatten() {
            // Adjacent slots mostly have one owner.
            if owners.last().is_none_or(|last| !Arc::ptr_eq(last, owner)) {
                owners.push(owner.clone());
            }
        }
        owners
    }

    fn has_unknown_owners(&self) -> bool {
        self.owners.is_empty() || self.owners.iter().any(Option::is_none)
    }
}

impl Cluster {
    pub(super) fn new(seeds: Vec<Node>) -> Arc<Cluster> {
        let (map, learning, unknown, replaced) = Default::default();
        Arc::new(Cluster { seeds, map, learning, unknown, replaced })
    }

    /// The server that has a slot, as far as it is known. Its breaker is checked before the call.
    pub(super) fn owner(&self, slot: usize) -> Arc<Server> {
        lock(&self.map).owner(slot).unwrap_or_else(|| self.unknown.clone())
    }

    /// The servers that have slots, and the stand-in while a slot has no known server.
    pub(super) fn owners(&self) -> Vec<Arc<Server>> {
        let map = lock(&self.map);
        let unknown = map.has_unknown_owners().then(|| self.unknown.clone());
        map.owners().into_iter().chain(unknown).collect()
    }

    pub(super) fn servers(&self) -> Vec<Arc<Server>> {
        let map = lock(&self.map);
        map.servers.values().cloned().chain([self.unknown.clone()]).collect()
    }

    /// Returns, once, the servers of which others have the slots by now, and the stand-in after a
    /// slot without a known server got one. Calls no longer go to these servers, and so cannot end
    /// their rests.
    pub(super) fn replaced(&self) -> Vec<Arc<Server>> {
        std::mem::take(&mut lock(&self.replaced))
    }

    /// Returns the server that has a slot. The cluster is asked if the server is unknown or in
    /// doubt.
    pub(super) async fn find(self: &Arc<Cluster>, slot: usize) -> Result<Arc<Server>, Failure> {
        let (known, this) = (self.clone(), self.clone());
        let known = move || {
            let server = lock(&known.map).owner(slot)?;
            (!server.is_suspect.load(Ordering::Relaxed)).then_some(server)
        };
        let learn = async move {
            this.ask_for_slots().await?;
            let owner = lock(&this.map).owner(slot);
            owner.ok_or_else(|| Failure::NotRun("no server of the cluster has the slot".into()))
        };
        // A known server is not asked for behind calls that wait for others.
        if let Some(found) = known() {
            return Ok(found);
        }
        let found = self.learning.join(known, learn).await;
        // A server may be reachable although no server reports it.
        found.or_else(|failure| lock(&self.map).owner(slot).ok_or(failure))
    }

    /// Asks all servers for the slots. The first reply of a server that is not in doubt counts: a
    /// server that is cut off from its cluster reports that it still has its slots.
    async fn ask_for_slots(&self) -> Result<(), Failure> {
        let mut asked = JoinSet::new();
        let addresses: Vec<_> = {
            let mut map = lock(&self.map);
            let mut addresses: Vec<_> = map.servers.keys().cloned().collect();
            let seeds = self.seeds.iter().filter_map(Node::host_and_port);
            addresses.extend(seeds.map(|(host, port)| (host.to_owned(), port)));
            addresses.sort();
            addresses.dedup();
            addresses
                .into_iter()
                .map(|(host, port)| (map.server(&self.seeds[0], &host, port), host))
                .collect()
        };
        for (server, host) in addresses {
            let is_suspect = server.is_suspect.load(Ordering::Relaxed);
            asked.spawn(async move {
                let mut cmd = redis::cmd("CLUSTER");
                cmd.arg("SLOTS");
                let reply = server.attempt(&cmd, false, &Sent::default()).await;
                reply.map(|value| (is_suspect, ranges(value, &host))).map_err(|(_, failure)| failure)
            });
        }
        let mut last = Failure::NotRun("no server of the cluster reported its slots".into());
        let (mut doubtful, mut misconfigured) = (None, None);
        let first = async {
            while let Some(reply) = asked.join_next().await {
                match reply {
                    Ok(Ok((_, ranges))) if ranges.is_empty() => {}
                    Ok(Ok((false, ranges))) => return Some(ranges),
                    Ok(Ok((true, ranges))) => doubtful = Some(ranges),
                    Ok(Err(failure)) if failure.is_misconfigured() => {
                        *lock(&self.unknown.misconfigured) = Some(failure.clone());
                        misconfigured = Some(failure);
                    }
                    Ok(Err(failure)) => last = failure,
                    Err(_) => {}
                }
            }
            None
        };
        let first = tokio::time::timeout(ANSWER, first).await.ok().flatten();
        let ranges = first.or(doubtful);
        // Servers that are away hide no wrong configuration.
        let misconfigured = misconfigured.filter(|_| ranges.is_none());
        lock(&self.unknown.misconfigured).clone_from(&misconfigured);
        let Some(ranges) = ranges else { return Err(misconfigured.unwrap_or(last)) };
        self.learn(&ranges);
        Ok(())
    }

    /// Notes which servers have the slots.
    fn learn(&self, ranges: &[Range]) {
        let mut map = lock(&self.map);
        let (mut before, mut is_found) = (map.owners(), false);
        let mut owners = vec![None; SLOTS];
        for range in ranges {
            let server = map.server(&self.seeds[0], &range.host, range.port);
            server.is_suspect.store(false, Ordering::Relaxed);
            let mut gets_slots = false;
            for (slot, owner) in owners.iter_mut().enumerate().take(range.last + 1).skip(range.first) {
                let old = map.owner(slot);
                is_found |= old.is_none();
                gets_slots |= old.is_none_or(|old| !Arc::ptr_eq(&old, &server));
                *owner = Some(server.clone());
            }
            if gets_slots {
                // It may have granted permits of these slots since this process asked it last.
                lock(&server.silence).end();
            }
        }
        map.owners = owners;
        let owners = map.owners();
        before.retain(|old| !owners.iter().any(|owner| Arc::ptr_eq(owner, old)));
        before.extend(is_found.then(|| self.unknown.clone()));
        lock(&self.replaced).extend(before);
        // Servers that left are removed, and their connections closed.
        map.servers
            .retain(|(host, port), _| ranges.iter().any(|range| (&range.host, range.port) == (host, *port)));
    }

    #[cfg(test)]
    pub(super) fn find_all(&self, servers: u16) {
        let first = |server: u16| usize::from(server) * SLOTS / usize::from(servers);
        let range = |server: u16| {
            let (first, last) = (first(server), first(server + 1) - 1);
            Range { first, last, host: "127.0.0.1".into(), port: server + 1 }
        };
        self.learn(&(0..servers).map(range).collect::<Vec<_>>());
    }

    /// Learns from a redirection which server has a slot.
    pub(super) fn moved(&self, slot: usize, to: &str, from: &Server) -> Option<Arc<Server>> {
        let server = self.redirected(to, from)?;
        let mut map = lock(&self.map);
        if let Some(owner) = map.owners.get_mut(slot) {
            if owner.replace(server.clone()).is_none() {
                lock(&self.replaced).push(self.unknown.clone());
            }
            // It may have granted permits of the slot since this process asked it last.
            lock(&server.silence).end();
        }
        Some(server)
    }

    /// The server at the address of a redirection: `host:port`, or `:port` at the host of the
    /// server that sent the redirection.
    pub(super) fn redirected(&self, to: &str, from: &Server) -> Option<Arc<Server>> {
        let (host, port) = to.rsplit_once(':')?;
        let mut map = lock(&self.map);
        let host = match host {
            // The host is not known to the server either.
            "?" => return None,
            "" => {
                let known = map.servers.iter().find(|(_, server)| std::ptr::eq(&***server, from));
                known.map(|((host, _), _)| host.clone())?
            }
            host => host.to_owned(),
        };
        Some(map.server(&self.seeds[0], &host, port.parse().ok()?))
    }
}

/// A range of adjacent slots, and the primary that has them.
struct Range {
    first: usize,
    last: usize,
    host: String,
    port: u16,
}

/// Reads the reply of CLUSTER SLOTS. A server without a name has the name of the server that was
/// asked. A server whose name is not known to that server may be given with its address.
fn ranges(value: Value, asked: &str) -> Vec<Range> {
    let Value::Array(ranges) = value else { return Vec::new() };
    let range = |range: &Value| {
        let Value::Array(range) = range else { return None };
        let [Value::Int(first), Value::Int(last), Value::Array(primary), ..] = range.as_slice() else {
            return None;
        };
        let [host, Value::Int(port), more @ ..] = primary.as_slice() else { return None };
        let host = match host {
            Value::BulkString(host) if host == b"?" => address_in(more.get(1)?)?,
            Value::BulkString(host) if !host.is_empty() => String::from_utf8(host.clone()).ok()?,
            _ => asked.to_owned(),
        };
        let (first, last) = (usize::try_from(*first).ok()?, usize::try_from(*last).ok()?);
        Some(Range { first, last, host, port: u16::try_from(*port).ok()? })
    };
    ranges.iter().filter_map(range).collect()
}

/// Returns the address among the names that a server has besides the preferred one.
fn address_in(names: &Value) -> Option<String> {
    let is_ip = |name: &Value| matches!(name, Value::BulkString(name) if name == b"ip");
    let address = match names {
        Value::Array(names) => names.chunks_exact(2).find(|pair| is_ip(&pair[0])).map(|pair| &pair[1]),
        Value::Map(names) => names.iter().find(|(name, _)| is_ip(name)).map(|(_, address)| address),
        _ => None,
    };
    match address? {
        Value::BulkString(address) => String::from_utf8(address.clone()).ok(),
        _ => None,
    }
}

/// The slot of the first key of a script's call.
pub(super) fn slot_of(cmd: &Cmd) -> usize {
    // The words are the command, a hash, the number of keys, and the first key.
    match cmd.args_iter().nth(3) {
        Some(Arg::Simple(key)) => slot(key),
        _ => 0,
    }
}

/// The slot of a key: that of its tag, if it has one.
pub(super) fn slot(key: &[u8]) -> usize {
    let tag = key.iter().position(|byte| *byte == b'{').and_then(|open| {
        let tag = &key[open + 1..];
        tag.iter().position(|byte| *byte == b'}').map(|close| &tag[..close])
    });
    let hashed = tag.filter(|tag| !tag.is_empty()).unwrap_or(key);
    // The checksum is CRC16, XMODEM.
    let crc = hashed.iter().fold(0u16, |crc, byte| {
        (0..8).fold(crc ^ (u16::from(*byte) << 8), |crc, _| {
            if crc & 0x8000 == 0 { crc << 1 } else { (crc << 1) ^ 0x1021 }
        })
    });
    usize::from(crc) % SLOTS
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::sync::atomic::AtomicUsize;

    use futures_util::future::{Either, select};
    use tokio::time::Instant;

    use super::*;
    use crate::breaker::Admission;
    use crate::connection::{Address, Servers};

    /// Calls that came during an attempt do not make one each, when no server reports the slots.
    #[tokio::test(start_paused = true)]
    async fn silent_servers_are_asked_once_for_all_calls() {
        // The listener accepts connections, and sends nothing.
        let silent = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let url = format!("redis+cluster://{}", silent.local_addr().expect("an address"));
        let Ok(Address::Cluster(seeds)) = Address::read(&url, None) else { panic!("no cluster") };
        let (cluster, began) = (Cluster::new(seeds), Instant::now());
        let finds: Vec<_> = (0..100)
            .map(|slot| {
                let cluster = cluster.clone();
                tokio::spawn(async move { cluster.find(slot).await.is_err() })
            })
            .collect();
        for find in finds {
            assert!(find.await.expect("no panic"));
        }
        assert!(began.elapsed() < 2 * ANSWER, "{:?}", began.elapsed());
    }

    /// Starts a server that reports these slots, and replies OK to every other command. Returns its
    /// port. `asked` runs before it reports the slots.
    async fn server<F: Future + Send>(
        slots: impl FnOnce(u16) -> String,
        asked: impl Fn() -> F + Send + 'static,
    ) -> u16 {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};

        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let slots = slots(port);
        tokio::spawn(async move {
            while let Ok((mut client, _)) = listener.accept().await {
                let mut buffer = vec![0; 4096];
                while let Ok(read @ 1..) = client.read(&mut buffer).await {
                    let text = String::from_utf8_lossy(&buffer[..read]).into_owned();
                    for command in text.split('*').skip(1) {
                        let is_for_slots = command.contains("SLOTS");
                        if is_for_slots {
                            asked().await;
                        }
                        let reply = if is_for_slots { slots.as_str() } else { "+OK\r\n" };
                        client.write_all(reply.as_bytes()).await.expect("a client that reads");
                    }
                }
            }
        });
        port
    }

    /// The first slot, at a server.
    fn first_slot(port: u16) -> String {
        format!("*1\r\n*3\r\n:0\r\n:0\r\n*2\r\n$9\r\n127.0.0.1\r\n:{port}\r\n")
    }

    fn cluster_at(ports: &[u16]) -> Arc<Cluster> {
        let hosts: Vec<_> = ports.iter().map(|port| format!("127.0.0.1:{port}")).collect();
        let address = Address::read(&format!("redis+cluster://{}", hosts.join(",")), None);
        let Ok(Address::Cluster(seeds)) = address else { panic!("no cluster") };
        Cluster::new(seeds)
    }

    /// Each of many calls asked all servers again for a slot that none of them had.
    #[tokio::test]
    async fn a_slot_without_a_server_is_asked_for_once_for_all_calls() {
        let asked = Arc::<AtomicUsize>::default();
        let count = asked.clone();
        let port = server(first_slot, move || {
            count.fetch_add(1, Ordering::Relaxed);
            std::future::ready(())
        });
        let cluster = cluster_at(&[port.await]);
        let found = futures_util::future::join_all((0..100).map(|_| cluster.find(7))).await;
        assert!(found.iter().all(Result::is_err));
        assert_eq!(asked.load(Ordering::Relaxed), 1);
        assert!(cluster.find(0).await.is_ok());
    }

    /// Bug: a primary that was cut off from its cluster, and reported first that it had its slots,
    /// kept them here, although another server had them.
    #[tokio::test]
    async fn a_server_in_doubt_is_believed_only_if_no_other_reports_the_slots() {
        let asked = Arc::<tokio::sync::Notify>::default();
        let (first, then) = (asked.clone(), asked.clone());
        let in_doubt = server(first_slot, move || {
            first.notify_one();
            std::future::ready(())
        });
        let other = server(first_slot, move || {
            let then = then.clone();
            async move {
                then.notified().await;
                // The reply of the first server arrives before this one.
                for _ in 0..100 {
                    tokio::task::yield_now().await;
                }
            }
        });
        let (in_doubt, other) = (in_doubt.await, other.await);
        let cluster = cluster_at(&[in_doubt, other]);
        let server_at = |port| lock(&cluster.map).server(&cluster.seeds[0], "127.0.0.1", port);
        server_at(in_doubt).is_suspect.store(true, Ordering::Relaxed);
        cluster.ask_for_slots().await.expect("slots");
        assert!(Arc::ptr_eq(&cluster.owner(0), &server_at(other)));
        // No other server replies.
        drop(cluster);
        let alone = cluster_at(&[in_doubt]);
        let server_at = |port| lock(&alone.map).server(&alone.seeds[0], "127.0.0.1", port);
        server_at(in_doubt).is_suspect.store(true, Ordering::Relaxed);
        alone.ask_for_slots().await.expect("slots");
        assert!(Arc::ptr_eq(&alone.owner(0), &server_at(in_doubt)));
    }

    /// Starts a server of another protocol. Returns its port.
    async fn web_server() -> u16 {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};

        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let port = listener.local_addr().expect("an address").port();
        tokio::spawn(async move {
            while let Ok((mut client, _)) = listener.accept().await {
                _ = client.read(&mut [0; 4096]).await;
                _ = client.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").await;
            }
        });
        port
    }

    /// Bug: a wrong configuration was taken for an outage while another server of the address was
    /// silent, and after the first attempt if another server refused connections.
    #[tokio::test]
    async fn a_server_that_is_away_hides_no_wrong_configuration() {
        let silent = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let silent = silent.local_addr().map(|address| (silent, address.port())).expect("an address");
        let cluster = cluster_at(&[silent.1, web_server().await]);
        let is_known = async {
            while lock(&cluster.unknown.misconfigured).is_none() {
                tokio::task::yield_now().await;
            }
        };
        let has_ended =
            matches!(select(pin!(cluster.ask_for_slots()), pin!(is_known)).await, Either::Left(_));
        assert!(!has_ended);
        // A call whose deadline ends while the silent server is asked is told the failure.
        assert!(cluster.owner(0).not_connected_in_time().is_misconfigured());
        drop(silent);
        for _ in 0..2 {
            let found = cluster.find(0).await.err();
            assert!(matches!(found, Some(Failure::Misconfigured(_))), "{found:?}");
        }
    }

    /// Bug: a server that did not let this process log in any more kept its slots here for ever,
    /// although another server had them.
    #[tokio::test]
    async fn a_server_that_cannot_be_logged_in_to_is_in_doubt() {
        let former = web_server().await;
        let owner = server(first_slot, || std::future::ready(())).await;
        let cluster = cluster_at(&[owner]);
        cluster.learn(&[Range { first: 0, last: 0, host: "127.0.0.1".into(), port: former }]);
        let servers = Servers::Cluster(cluster.clone());
        let (ping, script) = (redis::cmd("PING"), crate::script::Script::new("return 1".into()));
        let mut is_ok = [false; 2];
        for is_ok in &mut is_ok {
            let sent = Sent::new(&cluster.owner(0), Admission::Allow);
            let call = servers.call(&ping, &script, None, &sent, Duration::MAX, |_, _| ());
            *is_ok = call.await.is_ok();
        }
        assert_eq!(is_ok, [false, true]);
    }

    /// Bug: the outage of the stand-in ended with each reply of another server, while a slot had no
    /// server.
    #[test]
    fn the_stand_in_is_replaced_when_a_slot_gets_a_server_and_not_while_one_has_none() {
        let cluster = cluster_at(&[1]);
        let learn = |last| {
            cluster.learn(&[Range { first: 0, last, host: "127.0.0.1".into(), port: 2 }]);
            cluster.replaced().len()
        };
        assert_eq!([8191, 8191, 9000, 9000].map(learn), [1, 0, 1, 0]);
        // By a redirection.
        let moved = |slot| {
            cluster.moved(slot, "127.0.0.1:2", &cluster.owner(0)).expect("a server");
            cluster.replaced().len()
        };
        assert_eq!([9000, 9001, 9001].map(moved), [0, 1, 0]);
        assert_eq!([SLOTS - 1, SLOTS - 1].map(learn), [1, 0]);
    }

    /// Bug: the slots of a server whose name was not known yet were those of the server that had
    /// been asked.
    #[test]
    fn a_server_without_a_name_is_found_by_its_address() {
        let text = |text: &str| Value::BulkString(text.into());
        let hosts = |primary: Vec<Value>| {
            let range = Value::Array(vec![Value::Int(0), Value::Int(7), Value::Array(primary)]);
            ranges(Value::Array(vec![range]), "asked").into_iter().map(|range| range.host).collect::<Vec<_>>()
        };
        let names = vec![text("hostname"), text("name"), text("ip"), text("10.0.0.7")];
        let map = names.chunks(2).map(|pair| (pair[0].clone(), pair[1].clone())).collect();
        let rows: [(Value, Option<Value>, &[&str]); 7] = [
            (text("name"), None, &["name"]),
            (text(""), None, &["asked"]),
            (Value::Nil, None, &["asked"]),
            (text("?"), Some(Value::Array(names)), &["10.0.0.7"]),
            (text("?"), Some(Value::Map(map)), &["10.0.0.7"]),
            (text("?"), Some(Value::Array(Vec::new())), &[]),
            (text("?"), None, &[]),
        ];
        for (host, names, expected) in rows {
            let with_names = names.map(|names| [text("id"), names]).into_iter().flatten();
            let primary = [host.clone(), Value::Int(6379)].into_iter().chain(with_names).collect();
            assert_eq!(hosts(primary), expected, "{host:?}");
        }
        let cluster = cluster_of_two();
        assert!(cluster.redirected("?:6379", &cluster.owner(0)).is_none());
    }

    /// A cluster of two servers, which have half of the slots each.
    fn cluster_of_two() -> Arc<Cluster> {
        let address = Address::read("redis+cluster://127.0.0.1:1", None);
        let Ok(Address::Cluster(seeds)) = address else { panic!("no cluster") };
        let cluster = Cluster::new(seeds);
        cluster.find_all(2);
        cluster
    }

    /// A key moved to a server on the way to another one, which the cluster then gave up. No call
    /// ends the rest of that server.
    #[tokio::test(start_paused = true)]
    async fn a_store_is_not_away_because_a_server_without_slots_is() {
        let cluster = cluster_of_two();
        let servers = Servers::Cluster(cluster.clone());
        let to = cluster.redirected("127.0.0.1:7", &cluster.owner(0)).expect("a server");
        let away = |server: &Server| {
            for _ in 0..5 {
                lock(&server.breaker).failed(Admission::Allow, Instant::now());
            }
        };
        away(&to);
        assert!(lock(&to.breaker).is_open());
        assert!(!servers.is_away());
        away(&cluster.owner(SLOTS - 1));
        assert!(servers.is_away());
    }

    /// A server that gets a slot may have granted permits of the slot since this process asked that
    /// server last: an outage that was known before says nothing about them.
    #[tokio::test(start_paused = true)]
    async fn a_slot_that_moves_ends_the_old_silence_of_its_new_server() {
        let cluster = cluster_of_two();
        let (first, last) = (cluster.owner(0), cluster.owner(SLOTS - 1));
        let began = Instant::now();
        let silence = |server: &Server| lock(&server.silence).times();
        let times = [silence(&first), silence(&last)];
        let after = async |seconds| tokio::time::sleep(Duration::from_secs(seconds)).await;
        after(10).await;
        assert_eq!([silence(&first), silence(&last)], times);
        // By a redirection.
        let to = cluster.moved(0, "127.0.0.1:2", &first).expect("a server");
        assert!(Arc::ptr_eq(&to, &last));
        assert_eq!(silence(&first), times[0]);
        assert_eq!(silence(&last), (Instant::now(), Instant::now()));
        // By a report of the slots: the first server gets its slot back, the last one gets none.
        after(10).await;
        let of_last = silence(&last);
        cluster.find_all(2);
        assert_eq!(silence(&first).0 - began, Duration::from_secs(20));
        assert_eq!(silence(&last), of_last);
        // A report without a change ends no outage.
        let of_first = silence(&first);
        after(10).await;
        cluster.find_all(2);
        assert_eq!(silence(&first), of_first);
    }

    #[test]
    fn a_key_has_the_slot_of_its_tag() {
        // The slots are those that CLUSTER KEYSLOT returns.
        for (key, expected) in
            [("123456789", 12739), ("foo", 12182), ("{user1000}.following", 3443), ("foo{}{bar}", 8363)]
        {
            assert_eq!(slot(key.as_bytes()), expected, "{key}");
        }
        let of = |tag: &str, name: &str| slot(format!("tidegate:1:{{{tag}}}:{name}:log").as_bytes());
        assert_eq!(of("a", "x"), of("a", "y"));
        assert_ne!(slot(b"foo{}{bar}"), slot(b"bar"));
    }
}
