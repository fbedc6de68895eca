//! A primary, its replica, and the sentinels that fail over from one to the other.

use std::net::TcpListener;
use std::time::Duration;

use tidegate_redis::{Store, StoreError};

use crate::load::{self, Load};
use crate::support::{Server, wait_until};

const LOGIN: [&str; 4] = ["--requirepass", "of-servers", "--masterauth", "of-servers"];

/// Two servers, the second a replica of the first, and three sentinels.
struct Group {
    servers: [Server; 2],
    sentinels: Vec<Server>,
}

impl Group {
    fn start() -> Option<Group> {
        Group::start_with(&[])
    }

    /// Starts the primary with more settings.
    fn start_with(of_primary: &[&str]) -> Option<Group> {
        let args = [LOGIN.as_slice(), &["--repl-diskless-sync-delay", "0"]].concat();
        let of_primary = [args.as_slice(), of_primary].concat();
        let servers = [Server::start_at_port(&of_primary)?, Server::start_at_port(&args)?];
        servers[1].tell(&format!("REPLICAOF 127.0.0.1 {}", servers[0].port()));
        wait_until("the replica is in step", || {
            servers[1].info("replication", "master_link_status").as_deref() == Some("up")
        });
        let settings = format!(
            "sentinel monitor main 127.0.0.1 {} 2\nsentinel auth-pass main of-servers\n\
             sentinel down-after-milliseconds main 2000\nsentinel failover-timeout main 3000\n\
             sentinel sentinel-pass of-sentinels\n",
            servers[0].port()
        );
        let start = |_| Server::start_sentinel(&settings, &["--requirepass", "of-sentinels"]);
        let sentinels: Option<Vec<Server>> = (0..3).map(start).collect();
        let group = Group { servers, sentinels: sentinels? };
        wait_until("the sentinels know each other and the replica", || {
            group.sentinels.iter().all(|sentinel| {
                let line = sentinel.info("sentinel", "master0").unwrap_or_default();
                line.contains("status=ok") && line.contains("slaves=1") && line.contains("sentinels=3")
            })
        });
        Some(group)
    }

    fn url(&self, name: &str, password: &str) -> String {
        // The first of them does not exist.
        self.url_behind("127.0.0.1:1", name, password)
    }

    /// The address of the sentinels, with other hosts before them.
    fn url_behind(&self, others: &str, name: &str, password: &str) -> String {
        let hosts: Vec<_> = self.sentinels.iter().map(|s| format!("127.0.0.1:{}", s.port())).collect();
        let hosts = hosts.join(",");
        format!("redis+sentinel://:{password}@{others},{hosts}/{name}?sentinel_password=of-sentinels")
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sentinels_replace_a_primary() {
    let Some(mut group) = Group::start() else { return };
    let (store, limiter) = load::open(Store::builder(group.url("main", "of-servers")));
    let load = Load::start([limiter, load::limiter(&store, "all")]);
    load.granted(100).await;
    group.servers[0].kill();
    load.opened(10).await;
    // The store is found at the replica, without a further setting.
    load.granted(100).await;
    let tally = load.end().await;
    load::row("a primary replaced by sentinels", tally, &store);
    assert_eq!((tally.refused, store.counts().misconfigured), (0, 0), "{:?}", store.trouble());
    wait_until("the replica is a primary", || {
        group.servers[1].info("replication", "role").as_deref() == Some("master")
    });
    let charged = load::charged(&group.servers[1].url()).await;
    assert!(charged <= tally.granted + store.counts().unknown, "{charged} charged, {tally:?}");

    // A primary that comes back is a replica, and gets no call.
    group.servers[0].run();
    wait_until("the primary of before is a replica", || {
        group.servers[0].info("replication", "role").as_deref() == Some("slave")
    });
    let (another, limiter) = load::open(load::patient(group.url("main", "of-servers")));
    assert_eq!(load::ask_times(&limiter, 10).await.granted, 10, "{:?}", another.trouble());
}

/// The primary from before a planned failover is a primary for some ten seconds more, here for
/// ever. Calls stayed there, and processes that connected later were granted the limit once more.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_planned_failover_moves_all_calls() {
    let Some(group) = Group::start_with(&["--rename-command", "SLAVEOF", ""]) else { return };
    let (store, limiter) = load::open(load::patient(group.url("main", "of-servers")));
    let load = Load::start([limiter]);
    load.granted(100).await;
    group.sentinels[0].tell("SENTINEL FAILOVER main");
    wait_until("the replica is a primary", || {
        group.servers[1].info("replication", "role").as_deref() == Some("master")
    });
    let calls = |server: &Server| server.info("commandstats", "cmdstat_evalsha");
    wait_until("the calls go to the new primary", || calls(&group.servers[1]).is_some());
    assert_eq!(group.servers[0].info("replication", "role").as_deref(), Some("master"));
    let at_old = calls(&group.servers[0]);
    load.granted(100).await;
    assert_eq!(calls(&group.servers[0]), at_old);
    let tally = load.end().await;
    load::row("a planned failover by sentinels", tally, &store);
    assert_eq!((tally.refused, tally.open, store.counts().misconfigured), (0, 0, 0), "{:?}", store.trouble());
}

/// Errors of sentinels, and unmet needs of servers, are reported as errors, and never hidden by a
/// fallback.
#[tokio::test]
async fn a_wrong_name_or_password_is_no_outage() {
    let Some(group) = Group::start() else { return };
    let trouble = async |url: String| -> StoreError {
        let (store, limiter) = load::open(load::patient(url));
        assert_eq!(load::ask_times(&limiter, 3).await.refused, 3);
        store.trouble().unwrap()
    };
    for (name, password) in [("none", "of-servers"), ("main", "pass-word")] {
        let trouble = trouble(group.url(name, password)).await;
        assert!(!trouble.is_away(), "{trouble}");
    }
    // The login of the servers is not valid at the sentinels.
    let url = group.url("main", "of-servers").replace("of-sentinels", "of-servers");
    assert!(!trouble(url).await.is_away());
    // Bug: requests passed without the store while a sentinel was silent.
    let socket = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = group.url_behind(&socket.local_addr().unwrap().to_string(), "main", "pass-word");
    let (store, limiter) = load::open(Store::builder(url).timeout(Duration::from_secs(1)));
    assert_eq!(load::ask_times(&limiter, 3).await.refused, 3, "{:?}", store.trouble());
}

/// The rules in the documentation, and those without one of their commands.
#[tokio::test]
async fn users_of_sentinels_and_servers_need_a_few_permissions() {
    let Some(group) = Group::start() else { return };
    const LEAN: &str = "-@all +evalsha +eval +get +set +del +pttl +time ~tidegate:*";
    let store = |at_servers: &str, at_sentinels: &str| {
        for server in &group.servers {
            server.tell(&format!("ACL SETUSER lean reset on >pass-word {LEAN}{at_servers}"));
        }
        for sentinel in &group.sentinels {
            sentinel.tell(&format!("ACL SETUSER lean reset on >pass-word -@all{at_sentinels}"));
        }
        let url = group.url("main", "pass-word").replace("//:", "//lean:");
        let url =
            url.replace("sentinel_password=of-sentinels", "sentinel_user=lean&sentinel_password=pass-word");
        load::patient(url).open().unwrap()
    };
    store(" +role", " +sentinel").check().await.unwrap();
    for (at_servers, at_sentinels, command) in [("", " +sentinel", "role"), (" +role", "", "sentinel")] {
        let error = store(at_servers, at_sentinels).check().await.unwrap_err();
        assert!(!error.is_away() && error.to_string().contains(command), "{error}");
    }
}

/// Sentinels were once asked in sequence, and each silent one cost half a second. These sentinels
/// thus cost more than an attempt to connect may take, and the sentinels behind them were never
/// asked.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn silent_sentinels_hide_no_primary() {
    let Some(group) = Group::start() else { return };
    // The system accepts connections, and no program reads from them.
    let sockets: Vec<_> = (0..12).map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
    let silent: Vec<_> = sockets.iter().map(|socket| socket.local_addr().unwrap().to_string()).collect();
    let url = group.url_behind(&silent.join(","), "main", "of-servers");
    let (store, limiter) = load::open(Store::builder(url));
    let load = Load::start([limiter]);
    load.granted(1).await;
    load::row("twelve silent sentinels before three", load.end().await, &store);
}
