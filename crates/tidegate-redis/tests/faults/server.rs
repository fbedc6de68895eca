//! Faults of one server.

use std::net::TcpListener;
use std::time::Duration;

use tidegate::AnyLimiter;
use tidegate_redis::Store;

use crate::load::{self, Load, assert_charged_once, charged, row};
use crate::relay::Relay;
use crate::support::{Server, wait_until};

/// Four limiters that share a limit, each with its own queue: one call for each request.
fn four(store: &Store) -> [AnyLimiter; 4] {
    [(); 4].map(|()| load::limiter(store, "all"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_is_stopped_for_a_while() {
    for millis in [10, 100, 500, 2000] {
        let Some(server) = Server::start() else { return };
        let (store, _) = load::open(Store::builder(server.url()));
        let load = Load::start(four(&store));
        load.granted(100).await;
        server.signal("STOP");
        tokio::time::sleep(Duration::from_millis(millis)).await;
        if millis >= 500 {
            // The breaker refuses at once, regardless of the deadline.
            wait_until("requests are not waiting", || store.counts().skipped > 100);
        }
        server.signal("CONT");
        load.granted(100).await;
        let tally = load.end().await;
        row(&format!("stopped for {millis} ms"), tally, &store);
        assert_eq!((tally.refused, store.counts().misconfigured), (0, 0));
        assert_charged_once(charged(&server.url()).await, tally, &store);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_is_killed_and_starts_empty() {
    let Some(mut server) = Server::start_at_port(&[]) else { return };
    let (store, limiter) = load::open(Store::builder(server.tcp_url()));
    let load = Load::start(four(&store));
    load.granted(100).await;
    let before = load.so_far();
    server.kill();
    load.opened(100).await;
    assert!(store.is_away());
    server.run();
    load.granted(100).await;
    let tally = load.end().await;
    row("killed, and started empty", tally, &store);
    assert_eq!((tally.refused, store.counts().misconfigured), (0, 0));
    // It knows only the requests since then.
    let charged = charged(&server.url()).await;
    assert!(charged <= tally.granted - before.granted + store.counts().unknown, "{charged} charged");
    // The last calls may have been too late.
    while store.is_away() || store.trouble().is_some() {
        load::ask(&limiter).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_is_killed_and_loads_from_disk() {
    let Some(mut server) = Server::start() else { return };
    let (store, limiter) = load::open(Store::builder(server.url()));
    let mut tally = load::ask_times(&limiter, 100).await;
    server.tell("DEBUG POPULATE 3000 filler 100");
    server.tell("SAVE");
    // It no longer saves: the filler would be loaded at each start.
    server.set_args(&["--key-load-delay", "20000", "--loading-process-events-interval-bytes", "1024"]);
    server.kill();
    let load = Load::start(four(&store));
    load.opened(20).await;
    server.spawn();
    wait_until("the server is loading", || server.ping().is_err_and(|error| error.code() == Some("LOADING")));
    // Another process, whose breaker does not rest.
    let (other, of_other) = load::open(load::patient(server.url()));
    assert_eq!(load::ask(&of_other).await.open, 1);
    let trouble = other.trouble().unwrap();
    assert!(trouble.is_away() && trouble.to_string().contains("LOADING"), "{trouble}");
    server.tell("CONFIG SET key-load-delay 0");
    load.granted(100).await;
    tally.add(load.end().await);
    row("killed, and loaded from disk", tally, &store);
    assert_eq!((tally.refused, store.counts().misconfigured), (0, 0));
    assert_charged_once(charged(&server.url()).await, tally, &store);
}

/// A server that becomes a replica reports that nothing ran, so the call goes to the primary.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_becomes_a_replica() {
    let Some((first, second)) = pair() else { return };
    let relay = Relay::to(first.port()).await;
    // No fallback is caused by the deadline.
    let (store, _) = load::open(load::patient(relay.url()));
    let load = Load::start(four(&store));
    load.granted(100).await;
    second.tell("REPLICAOF NO ONE");
    relay.lead_to(second.port());
    first.tell(&format!("REPLICAOF 127.0.0.1 {}", second.port()));
    load.granted(100).await;
    let tally = load.end().await;
    row("made a replica", tally, &store);
    assert_eq!((tally.open, tally.refused, store.counts().unknown), (0, 0, 0), "{:?}", store.trouble());
    // Grants of the first server after the second became a primary are unknown there.
    assert!(charged(&second.url()).await <= tally.granted);
}

/// Bug: a connection to a server that refuses calls was kept, so no probe found the server that the
/// name meant by then. A primary that became a replica, or that lost its replicas, kept all calls.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_name_leads_from_a_server_that_refuses_calls_to_another_one() {
    for (words, code) in
        [("REPLICAOF 127.0.0.1 1", "MASTERDOWN"), ("CONFIG SET min-replicas-to-write 1", "NOREPLICAS")]
    {
        let Some(first) = Server::start_at_port(&["--replica-serve-stale-data", "no"]) else { return };
        let Some(second) = Server::start_at_port(&[]) else { return };
        let relay = Relay::to(first.port()).await;
        let (store, _) = load::open(load::patient(relay.url()));
        let load = Load::start(four(&store));
        load.granted(20).await;
        first.tell(words);
        load.opened(20).await;
        let trouble = store.trouble().unwrap();
        assert!(trouble.is_away() && trouble.to_string().contains(code), "{trouble}");
        relay.lead_to(second.port());
        load.granted(20).await;
        let tally = load.end().await;
        row(&format!("a name that leads elsewhere after {code}"), tally, &store);
        assert_eq!((tally.refused, store.counts().unknown, store.counts().misconfigured), (0, 0, 0));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_link_is_cut_and_a_replica_is_promoted() {
    let Some((first, second)) = pair() else { return };
    let relay = Relay::to(first.port()).await;
    let (store, _) = load::open(Store::builder(relay.url()));
    let load = Load::start(four(&store));
    load.granted(100).await;
    second.tell("REPLICAOF NO ONE");
    relay.lead_to(second.port());
    relay.cut();
    load.granted(100).await;
    let tally = load.end().await;
    row("link cut, replica promoted", tally, &store);
    assert_eq!((tally.refused, store.counts().misconfigured), (0, 0), "{:?}", store.trouble());
    let (at_first, at_second) = (charged(&first.url()).await, charged(&second.url()).await);
    assert!(at_second <= tally.granted + store.counts().unknown, "{at_first}, {at_second}, {tally:?}");
}

/// A primary, and a replica in sync with it.
fn pair() -> Option<(Server, Server)> {
    let first = Server::start_at_port(&["--repl-diskless-sync-delay", "0"])?;
    let second = Server::start_at_port(&[])?;
    second.tell(&format!("REPLICAOF 127.0.0.1 {}", first.port()));
    wait_until("the replica is in step", || {
        second.info("replication", "master_link_status").as_deref() == Some("up")
    });
    Some((first, second))
}

/// Asserts that, while a setting is on, the server refuses calls and charges nothing.
async fn refuses(fault: &str, says: &str, on: impl FnOnce(&Server), off: impl FnOnce(&Server)) {
    let Some(server) = Server::start() else { return };
    let (store, _) = load::open(load::patient(server.url()));
    let load = Load::start(four(&store));
    load.granted(100).await;
    on(&server);
    load.opened(100).await;
    let trouble = store.trouble().unwrap();
    assert!(trouble.is_away() && trouble.to_string().contains(says), "{trouble}");
    assert!(store.is_away());
    off(&server);
    load.granted(100).await;
    let tally = load.end().await;
    row(fault, tally, &store);
    assert_eq!((tally.refused, store.counts().unknown, store.counts().misconfigured), (0, 0, 0));
    assert_eq!(charged(&server.url()).await, tally.granted);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_has_no_memory() {
    let set = |server: &Server, most: &str| _ = server.tell(&format!("CONFIG SET maxmemory {most}"));
    refuses("no memory", "OOM", |server| set(server, "1"), |server| set(server, "0")).await;
}

/// Makes a server busy with an endless script.
fn keep_busy(server: &Server) {
    server.tell("CONFIG SET busy-reply-threshold 10");
    let mut connection = server.connect();
    std::thread::spawn(move || {
        let _ = redis::cmd("EVAL").arg("while true do end").arg(0).exec(&mut connection);
    });
    wait_until("the script runs", || server.ping().is_err());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_is_busy_with_a_script() {
    let off = |server: &Server| _ = server.tell("SCRIPT KILL");
    refuses("busy with an endless script", "BUSY", keep_busy, off).await;
}

/// The client library reports a refused change of the database without the code of the error, which
/// read like a wrong number of a database.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_busy_server_refuses_to_change_the_database() {
    let Some(server) = Server::start_at_port(&[]) else { return };
    keep_busy(&server);
    let (store, limiter) = load::open(load::patient(format!("redis://127.0.0.1:{}/1", server.port())));
    assert_eq!(load::ask(&limiter).await.open, 1, "{:?}", store.trouble());
    let trouble = store.trouble().unwrap();
    assert!(trouble.is_away() && trouble.to_string().contains("busy"), "{trouble}");
    server.tell("SCRIPT KILL");
    let load = Load::start([limiter]);
    load.granted(10).await;
    assert_eq!((load.end().await.refused, store.counts().misconfigured), (0, 0), "{:?}", store.trouble());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_wants_replicas() {
    let set = |server: &Server, n: u32| _ = server.tell(&format!("CONFIG SET min-replicas-to-write {n}"));
    refuses("too few replicas", "NOREPLICAS", |server| set(server, 1), |server| set(server, 0)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_has_no_free_connection() {
    let Some(server) = Server::start() else { return };
    let (store, _) = load::open(Store::builder(server.url()));
    let mut admin = server.connect();
    redis::cmd("CONFIG").arg(&["SET", "maxclients", "1"]).exec(&mut admin).unwrap();
    let load = Load::start(four(&store));
    load.opened(100).await;
    // The server closes the connection, so its message about that may be lost.
    let trouble = store.trouble().unwrap();
    assert!(trouble.is_away(), "{trouble}");
    redis::cmd("CONFIG").arg(&["SET", "maxclients", "100"]).exec(&mut admin).unwrap();
    load.granted(100).await;
    let tally = load.end().await;
    row("no free connection", tally, &store);
    assert_eq!((tally.refused, store.counts().misconfigured), (0, 0), "{:?}", store.trouble());
    assert_charged_once(charged(&server.url()).await, tally, &store);
}

/// One call at a time sends the text, and no call fails.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scripts_are_flushed_again_and_again() {
    let Some(server) = Server::start() else { return };
    let (store, limiter) = load::open(load::patient(server.url()));
    let load = Load::start((0..20).map(|_| limiter.clone()));
    for _ in 0..100 {
        server.tell("SCRIPT FLUSH");
        load.granted(5).await;
    }
    let tally = load.end().await;
    row("scripts flushed 100 times", tally, &store);
    assert_eq!((tally.open, tally.refused), (0, 0), "{:?}", store.trouble());
    assert_eq!((store.counts().failed, store.counts().unknown), (0, 0));
    assert_eq!(charged(&server.url()).await, tally.granted);
}

#[tokio::test]
async fn many_calls_at_once_send_the_text_of_a_script_once() {
    let Some(server) = Server::start() else { return };
    let (store, _) = load::open(load::patient(server.url()));
    let limiters = (0..500).map(|_| load::limiter(&store, "all"));
    let calls: Vec<_> = limiters.map(|limiter| tokio::spawn(limiter.acquire_now([]))).collect();
    for call in calls {
        assert_eq!(call.await.unwrap().unwrap().permits(), 1);
    }
    // The self-test of the connection, and the script.
    let evals = server.info("commandstats", "cmdstat_eval").unwrap();
    assert!(evals.starts_with("calls=2,"), "{evals}");
}

/// A firewall forgets an idle connection, and silently drops what is sent on it. One call is lost,
/// and the next one uses a new connection.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_idle_connection_is_dropped_silently() {
    let Some(server) = Server::start_at_port(&[]) else { return };
    let relay = Relay::to(server.port()).await;
    let (store, limiter) = load::open(Store::builder(relay.url()).timeout(Duration::from_secs(6)));
    let mut tally = load::ask_times(&limiter, 10).await;
    relay.silence();
    let lost = load::ask(&limiter).await;
    assert_eq!((lost.open, store.counts().unknown), (1, 1), "{:?}", store.trouble());
    let after = load::ask_times(&limiter, 10).await;
    assert_eq!((after.granted, store.counts().unknown), (10, 1), "{:?}", store.trouble());
    tally.add(lost);
    tally.add(after);
    row("idle connection dropped by a firewall", tally, &store);
    // The call was lost, and not its reply.
    assert_eq!(charged(&server.url()).await, tally.granted);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn idle_connections_are_closed_by_the_server() {
    let Some(server) = Server::start() else { return };
    let (store, limiter) = load::open(load::patient(server.url()));
    let mut tally = load::Tally::default();
    for _ in 0..10 {
        tally.add(load::ask_times(&limiter, 3).await);
        server.tell("CLIENT KILL TYPE normal SKIPME yes");
        wait_until("the connection is closed", || {
            server.info("clients", "connected_clients").as_deref() == Some("1")
        });
    }
    row("idle connections closed", tally, &store);
    // Of three calls, the outcome of the first is unknown if it is sent before the client sees the
    // end.
    assert!(tally.granted >= 20 && tally.refused == 0, "{tally:?}");
    assert_charged_once(charged(&server.url()).await, tally, &store);
}

/// An address that accepts connections and sends nothing: nothing was sent to it, so nothing ran.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_says_nothing_is_not_waited_for() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("redis://{}", listener.local_addr().unwrap());
    let (store, limiter) = load::open(Store::builder(url));
    let tally = load::ask_times(&limiter, 200).await;
    row("connections accepted, nothing said", tally, &store);
    assert_eq!((tally.open, store.counts().unknown), (200, 0), "{:?}", store.trouble());
    assert!(store.counts().skipped > 100 && store.is_away());
}

/// Calls in flight have a bound. Further calls pass without the store, at once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_in_flight_are_bounded() {
    let Some(server) = Server::start() else { return };
    let (store, limiter) = load::open(Store::builder(server.url()).timeout(Duration::from_secs(600)));
    let _ = load::ask(&limiter).await;
    server.signal("STOP");
    // Each with its own queue.
    let limiters = (0..20_000).map(|_| load::limiter(&store, "all"));
    let calls: Vec<_> = limiters.map(|limiter| tokio::spawn(limiter.acquire_now([]))).collect();
    wait_until("the calls are shed", || store.counts().skipped >= 20_000 - 16_384);
    server.signal("CONT");
    let mut open = 0;
    for call in calls {
        open += u64::from(call.await.unwrap().unwrap().permits() == 0);
    }
    assert_eq!((open, store.counts().unknown), (20_000 - 16_384, 0));
    assert_eq!(charged(&server.url()).await, 1 + 16_384);
}

/// Replies come late or never, and calls that were carried out are not repeated.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_are_late_or_lost() {
    let Some(server) = Server::start_at_port(&[]) else { return };
    let relay = Relay::to(server.port()).await;
    let (store, _) = load::open(Store::builder(relay.url()));
    let load = Load::start(four(&store));
    load.granted(50).await;
    relay.harm(Duration::from_millis(50), 0.1);
    load.granted(50).await;
    relay.harm(Duration::ZERO, 0.2);
    load.granted(100).await;
    relay.harm(Duration::ZERO, 0.0);
    load.granted(50).await;
    let tally = load.end().await;
    row("answers late or lost", tally, &store);
    let counts = store.counts();
    assert_eq!((tally.refused, counts.misconfigured), (0, 0), "{:?}", store.trouble());
    assert!(counts.unknown > 0, "{counts:?}");
    assert_charged_once(charged(&server.url()).await, tally, &store);
}

/// A server that is not ready has run nothing: the call is repeated once, within its deadline.
#[tokio::test]
async fn a_call_is_repeated_once_where_the_server_was_not_ready() {
    let Some(server) = Server::start_at_port(&[]) else { return };
    let relay = Relay::to(server.port()).await;
    let (store, limiter) = load::open(load::patient(relay.url()));
    assert_eq!(load::ask(&limiter).await.granted, 1);
    for code in ["LOADING", "MASTERDOWN", "CLUSTERDOWN", "TRYAGAIN"] {
        let failed = store.counts().failed;
        let error = format!("-{code} not now\r\n");
        relay.answer_next([error.clone()]);
        assert_eq!(load::ask(&limiter).await.granted, 1, "{code}");
        assert_eq!(store.counts().failed, failed, "{code}");
        relay.answer_next([error.clone(), error]);
        assert_eq!(load::ask(&limiter).await.open, 1, "{code}");
        assert_eq!(store.counts().failed, failed + 1, "{code}");
        assert_eq!(store.counts().misconfigured, 0, "{code}");
        assert_eq!(load::ask(&limiter).await.granted, 1, "{code}");
    }
}
