//! Clusters of three primaries.

use std::time::Duration;

use redis::{FromRedisValue, Value};
use tidegate::AnyLimiter;
use tidegate_redis::{Counts, Store, WhileAway};

use crate::load::{self, Load, limiter};
use crate::support::{Server, free_port, wait_until};

/// Three primaries, and replicas behind them.
struct Cluster {
    servers: Vec<Server>,
}

impl Cluster {
    /// Starts three primaries with a third of the slots each, and on request a replica of the first
    /// one.
    fn start(with_replica: bool) -> Option<Cluster> {
        let mut servers = Vec::new();
        for _ in 0..3 + usize::from(with_replica) {
            let bus = free_port().to_string();
            // Without a replica, no server must be considered dead, however long it stands still.
            let dead_after = if with_replica { "2000" } else { "600000" };
            let args = [
                ["--cluster-enabled", "yes"],
                ["--cluster-port", &bus],
                ["--cluster-node-timeout", dead_after],
                ["--cluster-require-full-coverage", "no"],
                ["--repl-diskless-sync-delay", "0"],
            ];
            servers.push(Server::start_at_port(args.as_flattened())?);
        }
        let cluster = Cluster { servers };
        for (i, first, last) in [(0, 0, 5460), (1, 5461, 10922), (2, 10923, 16383)] {
            cluster.servers[i].tell(&format!("CLUSTER ADDSLOTSRANGE {first} {last}"));
            cluster.servers[i].tell(&format!("CLUSTER SET-CONFIG-EPOCH {}", i + 1));
        }
        wait_until("all servers know each other", || {
            // A server that is slow to reply is dropped from the cluster, and has to be added
            // again.
            let met = text(cluster.servers[0].tell("CLUSTER NODES"));
            for server in &cluster.servers[1..] {
                let bus = Cluster::bus(server);
                if !met.contains(&format!(":{}@{bus}", server.port())) {
                    cluster.servers[0].tell(&format!("CLUSTER MEET 127.0.0.1 {} {bus}", server.port()));
                }
            }
            cluster.servers.iter().all(|server| {
                let known = Cluster::info(server, "cluster_known_nodes") == cluster.servers.len().to_string();
                known
                    && Cluster::info(server, "cluster_slots_assigned") == "16384"
                    && Cluster::info(server, "cluster_state") == "ok"
            })
        });
        if with_replica {
            let first = Cluster::id(&cluster.servers[0]);
            wait_until("a server is a replica", || {
                let mut replicate = redis::cmd("CLUSTER");
                replicate.arg("REPLICATE").arg(&first);
                let _ = replicate.exec(&mut cluster.servers[3].connect());
                let link = cluster.servers[3].info("replication", "master_link_status");
                link.as_deref() == Some("up")
            });
            // The others have to know the replica to vote for it.
            wait_until("all servers know the replica", || {
                cluster.servers.iter().all(|server| text(server.tell("CLUSTER NODES")).contains("slave"))
            });
        }
        Some(cluster)
    }

    fn info(server: &Server, name: &str) -> String {
        let text = text(server.tell("CLUSTER INFO"));
        let line = text.lines().find_map(|line| line.strip_prefix(&format!("{name}:")));
        line.unwrap_or_default().to_owned()
    }

    fn id(server: &Server) -> String {
        text(server.tell("CLUSTER MYID"))
    }

    fn bus(server: &Server) -> String {
        text(server.tell("CONFIG GET cluster-port"))
    }

    /// Returns the slot of the keys of a tag.
    fn slot(&self, tag: &str) -> u16 {
        let key = format!("tidegate:1:{{{tag}}}:limit:fixed-864000000000000");
        redis::cmd("CLUSTER").arg("KEYSLOT").arg(key).query(&mut self.servers[0].connect()).unwrap()
    }

    fn url(&self) -> String {
        // One missing server, and two running ones.
        let ports: Vec<_> = self.servers[1..3].iter().map(|s| format!("127.0.0.1:{}", s.port())).collect();
        format!("redis+cluster://127.0.0.1:1,{}", ports.join(","))
    }
}

/// A reply as text; of an array the last part.
fn text(value: Value) -> String {
    match value {
        Value::Array(mut values) => text(values.pop().unwrap()),
        value => String::from_redis_value(value).unwrap(),
    }
}

/// All keys of a call are in one slot, for every request of a limiter.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_kind_of_call_works_in_a_cluster() {
    let Some(cluster) = Cluster::start(false) else { return };
    let store = load::patient(cluster.url()).while_away(WhileAway::Share).open().unwrap();
    store.check().await.unwrap();
    for tag in tags() {
        let limits = store.limiter(&tag).limit("calls", "token_bucket 10000/s burst 5");
        let limits = limits.limit("log", "sliding_log 1000/min");
        let limiter = AnyLimiter::from(limits.limit("day", load::LINE).build().unwrap());
        for _ in 0..10 {
            let _ = limiter.acquire().await.unwrap();
        }
        drop(limiter.reserve(2).unwrap());
        limiter.debit([("day", 5)]).unwrap();
        assert!(limiter.keep_at_most("day", 1000).is_ok());
        limiter.pause_for(Duration::from_secs(3600)).unwrap();
        assert!(limiter.resume());
        assert_eq!(limiter.status().members.len(), 3);
        let in_use = AnyLimiter::from(store.counting(&tag, 3).build().unwrap());
        let permits = in_use.acquire_now(2).await.unwrap();
        assert_eq!(in_use.status().members[0].1.available, 1);
        drop(permits);
        let leased = store.limiter(&tag).limit("leased", "token_bucket 10000/s burst 1000");
        let leased = AnyLimiter::from(leased.leased().build().unwrap());
        for _ in 0..100 {
            let _ = leased.acquire().await.unwrap();
        }
    }
    let counts = store.counts();
    assert_eq!((counts.failed, counts.unknown, counts.misconfigured), (0, 0, 0), "{:?}", store.trouble());
}

/// A cluster server at an address of a single server reports that it is part of a cluster, and no
/// address.
#[tokio::test]
async fn a_cluster_at_the_address_of_a_single_server_is_reported() {
    let Some(cluster) = Cluster::start(false) else { return };
    for server in &cluster.servers {
        let error = load::patient(server.tcp_url()).open().unwrap().check().await.unwrap_err();
        assert!(!error.is_away() && error.to_string().contains("part of a cluster"), "{error}");
    }
    let (store, _) = load::open(load::patient(cluster.servers[0].tcp_url()));
    let mut all = load::Tally::default();
    for tag in tags() {
        all.add(load::ask(&limiter(&store, &tag)).await);
    }
    assert!(all.granted > 0 && all.refused > 0 && all.open == 0, "{all:?}");
    let elsewhere = tags().into_iter().map(|tag| limiter(&store, &tag));
    for limiter in elsewhere {
        if load::ask(&limiter).await.refused > 0 {
            let trouble = store.trouble().unwrap();
            assert!(!trouble.is_away() && trouble.to_string().contains("part of a cluster"), "{trouble}");
            assert!(!trouble.to_string().contains("127.0.0.1"), "{trouble}");
        }
    }
}

/// Tags in slots of all servers.
fn tags() -> Vec<String> {
    (0..30).map(|i| format!("tag-{i}")).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slot_is_moved_key_by_key() {
    let Some(cluster) = Cluster::start(false) else { return };
    let (store, _) = load::open(load::patient(cluster.url()));
    // Two limits of one tag: a call with one key here and one there gets the reply to try again.
    let both = store.limiter("moved").limit("a", load::LINE);
    let both = both.limit("b", "sliding_window 1000000/d cells 2").build().unwrap();
    let both = AnyLimiter::from(both);
    let others = tags().into_iter().take(9).map(|tag| limiter(&store, &tag));
    let load = Load::start(others.chain([both.clone()]));
    load.granted(100).await;
    // The other limiters may have had all grants so far. This one creates both keys.
    let first = load::ask(&both).await;
    assert_eq!(first.granted, 1);

    let [from, to, third] = cluster.servers.as_slice() else { panic!("three servers") };
    let servers = [from, to, third];
    let slot = cluster.slot("moved");
    let owner = servers.into_iter().position(|server| {
        let mut cmd = redis::cmd("CLUSTER");
        let keys: u64 = cmd.arg("COUNTKEYSINSLOT").arg(slot).query(&mut server.connect()).unwrap();
        keys > 0
    });
    let owner = owner.unwrap();
    let (from, to, third) = (servers[owner], servers[(owner + 1) % 3], servers[(owner + 2) % 3]);
    to.tell(&format!("CLUSTER SETSLOT {slot} IMPORTING {}", Cluster::id(from)));
    from.tell(&format!("CLUSTER SETSLOT {slot} MIGRATING {}", Cluster::id(to)));
    let before = load.so_far().granted;
    for key in ["tidegate:1:{moved}:b:cells-2x43200000000", "tidegate:1:{moved}:a:fixed-864000000000000"] {
        from.tell(&format!("MIGRATE 127.0.0.1 {} {key} 0 5000", to.port()));
        load.granted(100).await;
    }
    // All keys are at the server that is about to get the slot. It serves them to calls that ask
    // for an exception.
    let asked = load::ask_times(&both, 20).await;
    assert_eq!(asked.granted, 20, "{:?}", store.trouble());
    for server in [to, from, third] {
        server.tell(&format!("CLUSTER SETSLOT {slot} NODE {}", Cluster::id(to)));
    }
    load.granted(100).await;
    let mut tally = load.end().await;
    tally.add(asked);
    tally.add(first);
    load::row("a slot moved key by key", tally, &store);
    assert!(tally.granted > before && tally.refused == 0, "{tally:?}");
    let Counts { unknown, misconfigured, .. } = store.counts();
    assert_eq!((unknown, misconfigured), (0, 0), "{:?}", store.trouble());
    // Both limits of the tag were charged alike, and each call once.
    let status = both.status();
    let used: Vec<_> = status.members.iter().map(|(_, status)| load::LIMIT - status.available).collect();
    let mut charged = used[0];
    for tag in tags().into_iter().take(9) {
        charged += load::charged_to(&cluster.url(), &tag).await;
    }
    assert_eq!((used[0], charged), (used[1], tally.granted));
}

/// Bug: without the permission for `ASKING`, two servers redirected a call to each other, which
/// counted as an outage.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slot_is_moved_only_for_users_who_may_ask() {
    let Some(cluster) = Cluster::start(false) else { return };
    // The rules in the documentation.
    let rules = "on >pass-word -@all +evalsha +eval +get +set +del +pttl +time ~tidegate:* +cluster|slots";
    let store = |user: &str, more: &str| {
        for server in &cluster.servers {
            server.tell(&format!("ACL SETUSER {user} {rules}{more}"));
        }
        let url = cluster.url().replace("//", &format!("//{user}:pass-word@"));
        load::open(load::patient(url)).0
    };
    let (may_ask, may_not) = (store("lean", " +asking"), store("without-asking", ""));
    let (from, to) = (&cluster.servers[0], &cluster.servers[1]);
    let mut at_from = tags().into_iter().filter(|tag| cluster.slot(tag) < 5461);
    let (moved, other) = (at_from.next().unwrap(), at_from.next().unwrap());
    to.tell(&format!("CLUSTER SETSLOT {} IMPORTING {}", cluster.slot(&moved), Cluster::id(from)));
    from.tell(&format!("CLUSTER SETSLOT {} MIGRATING {}", cluster.slot(&moved), Cluster::id(to)));
    for store in [&may_ask, &may_not] {
        store.check().await.unwrap();
        assert_eq!(load::ask(&limiter(store, &other)).await.granted, 1, "{:?}", store.trouble());
    }
    assert_eq!(load::ask(&limiter(&may_ask, &moved)).await.granted, 1, "{:?}", may_ask.trouble());
    assert_eq!(load::ask(&limiter(&may_not, &moved)).await.refused, 1, "{:?}", may_not.trouble());
    let trouble = may_not.trouble().unwrap();
    assert!(!trouble.is_away() && trouble.to_string().contains("'asking'"), "{trouble}");
}

/// A call without a deadline never ended if a server redirected it to a silent one, because the
/// first server replied to others.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_that_is_led_to_a_silent_server_ends() {
    let Some(cluster) = Cluster::start(false) else { return };
    let store = Store::builder(cluster.url()).timeout(Duration::from_secs(1)).while_away(WhileAway::Wait);
    let store = store.open().unwrap();
    let slot = |tag: &str| cluster.slot(tag);
    // The slots of the first server, and of the second one.
    let tags_of = |first, last| tags().into_iter().filter(move |tag| (first..last).contains(&slot(tag)));
    let (from, to) = (&cluster.servers[0], &cluster.servers[1]);
    let at_from: Vec<_> = tags_of(0, 5461).map(|tag| (limiter(&store, &tag), tag)).collect();
    let at_to: Vec<_> = tags_of(5461, 10923).map(|tag| limiter(&store, &tag)).collect();
    for limiter in at_from.iter().map(|(limiter, _)| limiter).chain(&at_to) {
        let _ = limiter.acquire().await.unwrap();
    }
    let (moved, tag) = &at_from[0];
    // A slot without keys may be given away.
    from.tell("FLUSHALL");
    for server in &cluster.servers {
        server.tell(&format!("CLUSTER SETSLOT {} NODE {}", slot(tag), Cluster::id(to)));
    }
    to.signal("STOP");
    let load = Load::start([at_from[1].0.clone()]);
    load.granted(100).await;
    let waits = tokio::spawn(moved.acquire());
    wait_until("the call has ended", || store.counts().unknown > 0);
    load.granted(100).await;
    to.signal("CONT");
    assert!(!waits.await.unwrap().unwrap().is_degraded());
    assert_eq!(load.end().await.refused, 0, "{:?} of {}", store.trouble(), from.port());
}

/// The outcome of a call counted at the server that had redirected it: the silent server never
/// rested, and each call waited for its deadline.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_gets_a_slot_is_silent() {
    let Some(cluster) = Cluster::start(false) else { return };
    let (store, _) = load::open(Store::builder(cluster.url()).timeout(Duration::from_millis(500)));
    let slot = |tag: &str| cluster.slot(tag);
    let (from, to) = (&cluster.servers[0], &cluster.servers[1]);
    let mut at_from = tags().into_iter().filter(|tag| slot(tag) < 5461);
    let (moved, other) = (at_from.next().unwrap(), at_from.next().unwrap());
    assert_eq!(load::ask(&limiter(&store, &other)).await.granted, 1);
    // The new owner has all keys of the slot: there are none.
    to.tell(&format!("CLUSTER SETSLOT {} IMPORTING {}", slot(&moved), Cluster::id(from)));
    from.tell(&format!("CLUSTER SETSLOT {} MIGRATING {}", slot(&moved), Cluster::id(to)));
    to.signal("STOP");
    let [load, others] = [&moved, &other].map(|tag| Load::start([limiter(&store, tag)]));
    load.opened(100).await;
    assert!(store.is_away(), "{:?}", store.counts());
    // The calls that are redirected to it are not made while it rests.
    let counts = store.counts();
    assert!(counts.skipped >= 90 && counts.failed + counts.unknown <= 10, "{counts:?}");
    others.granted(100).await;
    to.signal("CONT");
    load.granted(10).await;
    others.granted(100).await;
    let mut tally = load.end().await;
    tally.add(others.end().await);
    load::row("a server that gets a slot is silent", tally, &store);
    assert_eq!((tally.refused, store.counts().misconfigured), (0, 0), "{:?}", store.trouble());
    assert!(!store.is_away());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_primary_is_killed_and_its_replica_takes_over() {
    let Some(mut cluster) = Cluster::start(true) else { return };
    let (store, _) = load::open(load::patient(cluster.url()));
    let load = Load::start(tags().iter().map(|tag| limiter(&store, tag)));
    load.granted(300).await;
    cluster.servers[0].kill();
    // The slots of the other servers are still served.
    load.opened(10).await;
    load.granted(300).await;
    wait_until("the replica is a primary", || {
        cluster.servers[3].info("replication", "role").as_deref() == Some("master")
    });
    wait_until("the store is back", || !store.is_away());
    load.granted(300).await;
    let tally = load.end().await;
    load::row("a primary of a cluster killed", tally, &store);
    assert_eq!((tally.refused, store.counts().misconfigured), (0, 0), "{:?}", store.trouble());
    // Grants that the replica had not received are granted again, and nothing is charged twice.
    let mut charged = 0;
    for tag in tags() {
        charged += load::charged_to(&cluster.url(), &tag).await;
    }
    assert!(charged <= tally.granted + store.counts().unknown, "{charged} charged, {tally:?}");
}

/// A silent primary, unlike one that is killed, refuses no connection: an attempt to connect lasts
/// for longer than a call. Calls asked it for ever, and never asked the cluster for its successor.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_primary_falls_silent_and_its_replica_takes_over() {
    let Some(cluster) = Cluster::start(true) else { return };
    let (store, limiter) = load::open(Store::builder(cluster.url()).timeout(Duration::from_millis(500)));
    let slot = cluster.slot("all");
    assert!(slot <= 5460, "{slot} is not a slot of the first server");
    assert_eq!(load::ask(&limiter).await.granted, 1);
    cluster.servers[0].signal("STOP");
    let load = Load::start([limiter]);
    wait_until("the replica is a primary", || {
        let role = cluster.servers[3].info("replication", "role");
        role.as_deref() == Some("master") && Cluster::info(&cluster.servers[1], "cluster_state") == "ok"
    });
    let made = || store.counts().failed + store.counts().unknown;
    let before = made();
    load.granted(10).await;
    let tally = load.end().await;
    load::row("a primary of a cluster is silent", tally, &store);
    // The server that is asked first may learn late of the successor.
    assert!(made() - before <= 4, "{} calls failed", made() - before);
}

/// Bug: a limiter whose server was away kept the bookings of dropped waits, and a flush waited for
/// them for as long as other servers replied.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flush_ends_although_one_server_of_a_cluster_is_silent() {
    let Some(cluster) = Cluster::start(false) else { return };
    let builder = Store::builder(cluster.url()).timeout(Duration::from_millis(500));
    let store = builder.while_away(WhileAway::Wait).open().unwrap();
    let is_first = |tag: &String| cluster.slot(tag) <= 5460;
    let (first, second): (Vec<_>, Vec<_>) = tags().into_iter().partition(is_first);
    let hour = store.limiter(&first[0]).limit("calls", "token_bucket 1/h burst 1").build().unwrap();
    let hour = AnyLimiter::from(hour);
    drop(hour.acquire().await.unwrap());
    let booked = tokio::spawn(hour.acquire());
    wait_until("the wait is booked", || store.counts().answered >= 2);
    cluster.servers[0].signal("STOP");
    let held = tokio::spawn(hour.acquire());
    let load = Load::start([limiter(&store, &second[0])]);
    wait_until("the server is away", || store.counts().unknown > 0);
    booked.abort();
    load.granted(10).await;
    let flushed = tokio::time::timeout(Duration::from_secs(60), store.flush()).await;
    assert!(flushed.expect("a flush ends").is_err());
    cluster.servers[0].signal("CONT");
    held.abort();
    assert_eq!(load.end().await.refused, 0);
}
