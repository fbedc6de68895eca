//! Limiters over a separate server: one call per decision. `tests/faults` has the faults of servers.
//!
//! Time is that of the server, and of deadlines, so no test asserts a duration. Tests of waits are
//! in `line.rs`, over a model of a server.

use std::num::NonZeroU32;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::support::Server;
use tidegate::{AllRefusal, AllRequest, AnyLimiter, Pause, Refusal, Request};
use tidegate_redis::{BuildError, Store, StoreBuilder, StoreLimiter, WhileAway};

const HOUR: Duration = Duration::from_secs(3600);
const MINUTE: Duration = Duration::from_secs(60);

/// With a timeout that no machine misses, for tests of anything else.
fn builder(server: &Server) -> StoreBuilder {
    Store::builder(server.url()).timeout(Duration::from_secs(60))
}

fn open(server: &Server) -> Store {
    builder(server).open().unwrap()
}

fn limiter(store: &Store, lines: &[(&str, &str)]) -> StoreLimiter {
    let builder = store.limiter("all");
    let builder = lines.iter().fold(builder, |builder, (name, line)| builder.limit(*name, *line));
    builder.build().unwrap()
}

fn any(store: &Store, line: &str) -> AnyLimiter {
    limiter(store, &[("limit", line)]).into()
}

/// Retries while the other tasks go on, until the condition holds. The time limit only ends a hang.
async fn until(is_so: impl Fn() -> bool) {
    let looks = async {
        while !is_so() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(2 * MINUTE, looks).await.expect("it becomes so");
}

/// How many times the server carried out a command.
fn calls_of(server: &Server, command: &str) -> u64 {
    let text: String = redis::cmd("INFO").arg("commandstats").query(&mut server.connect()).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(&format!("cmdstat_{command}:calls=")));
    line.map_or(0, |line| line.split(',').next().unwrap().parse().unwrap())
}

#[tokio::test]
async fn a_decision_is_one_call_whatever_the_number_of_limits() {
    let Some(server) = Server::start() else { return };
    let store = open(&server);
    let lines = [
        ("second", "token_bucket 100/s burst 100000"),
        ("minute", "sliding_window 100000/min cells 6"),
        ("day", "fixed_window 1001/10000d"),
    ];
    let three = AnyLimiter::from(limiter(&store, &lines));
    let _ = three.acquire_now([]).await.unwrap();
    let (evals, before) = (calls_of(&server, "eval"), calls_of(&server, "evalsha"));
    for _ in 0..500 {
        let _ = three.acquire_now([]).await.unwrap();
        let _ = three.acquire().await.unwrap();
    }
    // None is left.
    assert!(three.acquire_now([]).await.is_err());
    assert_eq!(calls_of(&server, "evalsha") - before, 1001);
    // The text went to the server once, and before it the self-test of the connection.
    assert_eq!((evals, calls_of(&server, "eval")), (2, 2));
    assert_eq!(calls_of(&server, "script|load"), 0);
}

#[tokio::test]
async fn a_set_of_limits_is_asked_as_one_limiter() {
    let Some(server) = Server::start() else { return };
    let store = open(&server);
    let lines = [("requests", "fixed_window 3/10000d"), ("tokens", "token_bucket 1/h burst 1000")];
    let api = AnyLimiter::from(limiter(&store, &lines));
    // Another process.
    let other = AnyLimiter::from(limiter(&open(&server), &lines));
    assert_eq!(api.acquire_now([("tokens", 850)]).await.unwrap().permits(), 1);
    let refusal = other.acquire_now([("tokens", 151)]).await.unwrap_err();
    assert_eq!(refusal.member(), Some("tokens"));
    assert!(matches!(refusal.refusal(), Some(Refusal::Limited { .. })));
    let refusal = other.acquire_now([("tonkes", 1)]).await.unwrap_err();
    assert_eq!(refusal.to_string(), r#""tonkes" is not a member: the members are "requests", "tokens""#);
    let refusal = other.acquire_now([("tokens", 1001)]).await.unwrap_err().refusal();
    assert_eq!(refusal, Some(Refusal::ExceedsLimit { requested: 1001, limit: 1000 }));
    let refusal = other.acquire_now([("tokens", 0), ("requests", 0)]).await.unwrap_err().refusal();
    assert_eq!(refusal, Some(Refusal::ZeroPermits));
    // As many as both have.
    let some = other.acquire_now(Request::up_to(100).with_left()).await.unwrap();
    assert_eq!((some.permits(), other.status().member("tokens").unwrap().available), (2, 148));
    assert_eq!(other.acquire_now(Request::permits(7).exempt()).await.unwrap().permits(), 0);

    assert_eq!(api.keep_at_most("tokens", 100), Ok(48));
    api.debit([("tokens", 30), ("requests", 0)]).unwrap();
    // The message is not waited for.
    until(|| other.status().member("tokens").unwrap().available == 70).await;
    let status = other.status();
    assert_eq!(status.member("requests").unwrap().available, 0);
    assert_eq!(status.member("tokens").unwrap().limit, 1000);
}

#[tokio::test]
async fn a_limiter_is_paused_for_all_and_closed_for_one() {
    let Some(server) = Server::start() else { return };
    let store = open(&server);
    let (one, other) = (any(&store, "token_bucket 10/s burst 10"), any(&store, "token_bucket 10/s burst 10"));
    one.pause(Pause::lasting(HOUR).keep_permits()).unwrap();
    let refusal = other.acquire_now([]).await.unwrap_err();
    assert!(matches!(refusal.refusal(), Some(Refusal::Paused { retry_after }) if retry_after <= HOUR));
    assert!(other.status().paused_for > Duration::ZERO);
    assert!(other.resume() && !other.resume());
    assert!(one.acquire_now(10).await.is_ok());
    one.pause_for(HOUR).unwrap();
    let wait = one.acquire();
    let close = async {
        until(|| one.status().waiting > 0).await;
        one.close()
    };
    let (waited, closed) = tokio::join!(wait, close);
    assert_eq!((waited.unwrap_err().refusal(), closed), (Some(Refusal::Closed), Ok(true)));
    assert!(one.is_closed() && !other.is_closed());
}

#[tokio::test]
async fn a_shadow_limit_grants_all_and_takes_what_is_there() {
    let Some(server) = Server::start() else { return };
    let store = open(&server);
    let shadow = limiter(&store, &[("limit", "fixed_window 2/10000d")]);
    shadow.set_shadow(true);
    let shadow = AnyLimiter::from(shadow);
    let mut permits = 0;
    for _ in 0..10 {
        permits += shadow.acquire().await.unwrap().permits();
    }
    assert_eq!(permits, 2);
}

#[test]
fn threads_without_a_runtime_are_served() {
    let Some(server) = Server::start() else { return };
    let store = open(&server);
    let limiter = any(&store, "fixed_window 1000/10000d");
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| (0..300).filter(|_| limiter.try_acquire().is_ok()).count());
        }
    });
    let status = limiter.status();
    assert_eq!(status.members[0].1.available, 0);
    // Requests that came during a call were sent together.
    assert!(store.counts().answered <= 1201, "{:?}", store.counts());
}

#[tokio::test]
async fn a_request_that_waits_too_long_for_a_script_gets_a_retry_time() {
    let Some(server) = Server::start() else { return };
    let store = open(&server);
    let limiter = any(&store, "leaky_bucket 3/s");
    let refusal = limiter.acquire_many(u32::MAX).await.unwrap_err();
    // 2^32 thirds of a second, less the 30 years that a script books ahead.
    let years = refusal.retry_after().unwrap().as_secs() / (365 * 86_400);
    assert_eq!(years, 15, "{refusal:?}");
}

#[tokio::test]
async fn a_policy_of_another_kind_begins_anew() {
    let Some(server) = Server::start() else { return };
    let store = builder(&server).open().unwrap();
    let policies = [
        "token_bucket 5/d burst 5",
        "leaky_bucket 5/d nodelay 4",
        "smooth_bursty 1/d",
        "fixed_window 5/10000d",
        "sliding_window 5/d cells 5",
        "sliding_estimate 5/d",
        "sliding_log 5/d",
        "deny_all",
    ];
    for (before, after) in policies.into_iter().flat_map(|one| policies.map(|other| (one, other))) {
        if before == after || after == "deny_all" {
            continue;
        }
        let old = limiter(&store, &[("limit", before)]);
        let spent = AnyLimiter::from(old.clone()).acquire_now(Request::permits(5)).await;
        assert_eq!(spent.is_ok(), before != "deny_all", "{before}");
        let new = limiter(&store, &[("limit", after)]);
        assert!(AnyLimiter::from(new.clone()).acquire_now([]).await.is_ok(), "{after} after {before}");
        old.reset().await.unwrap();
        new.reset().await.unwrap();
    }
}

/// A relay that passes on the calls of clients. Instead of every `every`-th reply to a call of a
/// script, it breaks the connection.
async fn relay(to: std::path::PathBuf, at: std::path::PathBuf, every: usize) {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let listener = tokio::net::UnixListener::bind(at).unwrap();
    let mut calls = 0;
    loop {
        let (mut client, _) = listener.accept().await.unwrap();
        let mut server = tokio::net::UnixStream::connect(&to).await.unwrap();
        let (mut asked, mut answered) = (vec![0; 1 << 16], vec![0; 1 << 16]);
        loop {
            let n = client.read(&mut asked).await.unwrap_or(0);
            if n == 0 {
                break;
            }
            server.write_all(&asked[..n]).await.unwrap();
            let m = server.read(&mut answered).await.unwrap();
            calls += usize::from(asked[..n].windows(7).any(|word| word == b"reserve"));
            if calls == every {
                calls = 0;
                break;
            }
            client.write_all(&answered[..m]).await.unwrap();
        }
    }
}

/// A call whose reply is lost was carried out. It is not repeated, and a request without a reply is
/// charged at most once.
#[tokio::test]
async fn a_call_whose_answer_is_lost_is_not_repeated() {
    let Some(server) = Server::start() else { return };
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("relay");
    tokio::spawn(relay(server.socket(), socket.clone(), 3));
    until(|| socket.exists()).await;
    let store = Store::builder(format!("redis+unix://{}", socket.display()));
    let store = store.while_away(WhileAway::Open).timeout(Duration::from_secs(60)).open().unwrap();
    let limiter = any(&store, "fixed_window 1000/10000d");
    let mut known = 0;
    for _ in 0..60 {
        known += u64::from(limiter.acquire_now([]).await.unwrap().permits());
    }
    let lost = store.counts().unknown;
    assert!(lost >= 15 && known + lost == 60, "{known} known, {lost} lost");
    // As the server itself reports it.
    let direct = open(&server);
    let status = self::limiter(&direct, &[("limit", "fixed_window 1000/10000d")]).status().await.unwrap();
    assert_eq!(status.members[0].1.available, 1000 - 60);
}

#[tokio::test]
async fn a_killed_server_is_replaced_by_a_share_and_found_again() {
    let Some(mut server) = Server::start() else { return };
    let two = NonZeroU32::new(2).unwrap();
    let store = builder(&server).while_away(WhileAway::ShareOf(two)).open().unwrap();
    let limiter = any(&store, "fixed_window 10/10000d");
    assert!(limiter.acquire_now([]).await.is_ok());
    server.kill();
    let mut granted = 0;
    for _ in 0..1000 {
        match limiter.acquire_now([]).await {
            Ok(permits) => granted += u32::from(permits.is_degraded()),
            Err(refusal) => assert!(refusal.is_degraded(), "{refusal:?}"),
        }
    }
    // Half of a half, in the window in which the store went away.
    assert_eq!(granted, 2);
    assert_eq!(store.counts().degraded, 1000);
    assert!(store.trouble().unwrap().is_away());
    server.run();
    while store.is_away() {
        _ = limiter.acquire_now([]).await;
    }
    // The store is empty, and its limit is full again.
    while limiter.acquire_now([]).await.is_ok() {
        granted += 1;
    }
    assert!(granted <= 2 + 10, "{granted}");
    assert_eq!(store.trouble(), None);
}

#[tokio::test]
async fn a_store_that_is_not_there_is_refused_and_not_waited_for() {
    let directory = tempfile::tempdir().unwrap();
    let url = format!("redis+unix://{}/none", directory.path().display());
    let store = Store::open(&url).unwrap();
    let limiter = any(&store, "fixed_window 10/10000d");
    for request in [AllRequest::new(), AllRequest::from(3)] {
        let refusal = limiter.acquire_now(request).await.unwrap_err();
        assert!(
            matches!(refusal, AllRefusal::Queue { refusal: Refusal::Unavailable { .. }, .. }),
            "{refusal:?}"
        );
    }
    assert!(store.check().await.unwrap_err().is_away());
    assert_eq!(limiter.status().members[0].1.available, 0);
    assert_eq!((store.counts().answered, store.counts().unknown), (0, 0));
}

#[tokio::test]
async fn a_server_that_becomes_a_replica_is_connected_to_anew() {
    let Some(server) = Server::start() else { return };
    let store = open(&server);
    let limiter = any(&store, "fixed_window 10/10000d");
    let _ = limiter.acquire_now([]).await.unwrap();
    let mut connection = server.connect();
    let connections = |connection: &mut redis::Connection| {
        let text: String = redis::cmd("INFO").arg("stats").query(connection).unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix("total_connections_received:"));
        line.unwrap().parse::<u64>().unwrap()
    };
    redis::cmd("REPLICAOF").arg("127.0.0.1").arg(1).exec(&mut connection).unwrap();
    let before = connections(&mut connection);
    let refusal = limiter.acquire_now([]).await.unwrap_err().refusal();
    assert!(matches!(refusal, Some(Refusal::Unavailable { .. })));
    redis::cmd("REPLICAOF").arg("NO").arg("ONE").exec(&mut connection).unwrap();
    let _ = limiter.acquire_now([]).await.unwrap();
    // One connection whose self-test found a replica, and one to the primary.
    assert_eq!(connections(&mut connection) - before, 2);
}

#[tokio::test]
async fn a_server_without_memory_is_away_and_changes_nothing() {
    let Some(server) = Server::start() else { return };
    let store = open(&server);
    let lines = [("a", "fixed_window 10/10000d"), ("b", "token_bucket 1/d burst 10")];
    let limiter = AnyLimiter::from(limiter(&store, &lines));
    let _ = limiter.acquire_now([]).await.unwrap();
    let mut connection = server.connect();
    let mut memory = |most: &str| {
        redis::cmd("CONFIG").arg(&["SET", "maxmemory", most]).exec(&mut connection).unwrap();
    };
    memory("1");
    let refusal = limiter.acquire_now([]).await.unwrap_err().refusal();
    assert!(matches!(refusal, Some(Refusal::Unavailable { .. })));
    assert!(store.trouble().unwrap().to_string().contains("OOM"));
    memory("0");
    let status = limiter.status();
    assert_eq!(status.members.iter().map(|(_, status)| status.available).collect::<Vec<_>>(), [9, 9]);
}

/// A server that is empty again grants one more window, and no call fails.
#[tokio::test]
async fn a_server_that_loses_its_keys_grants_one_limit_more() {
    let Some(server) = Server::start() else { return };
    let store = open(&server);
    let limiter = any(&store, "fixed_window 10/10000d");
    let mut granted = 0;
    for call in 0..40 {
        if call == 20 {
            redis::cmd("FLUSHALL").exec(&mut server.connect()).unwrap();
        }
        granted += u32::from(limiter.acquire_now([]).await.is_ok());
    }
    assert_eq!((granted, store.trouble()), (20, None));
}

#[test]
fn what_cannot_be_had_is_refused_when_it_is_built() {
    let store = Store::open("redis://127.0.0.1:1").unwrap();
    let build = |tag: &str, limits: &[(&str, &str)]| {
        let builder = store.limiter(tag);
        let add = |builder: tidegate_redis::LimiterBuilder, (name, line): &(&str, &str)| {
            builder.limit(*name, *line)
        };
        limits.iter().fold(builder, add).build().map(drop)
    };
    let error = |limits: &[(&str, &str)]| build("all", limits).unwrap_err().to_string();
    assert_eq!(build("a}b", &[("x", "fixed_window 1/s")]), Err(BuildError::Name { name: "a}b".into() }));
    assert_eq!(build("all", &[]), Err(BuildError::NoLimit));
    let twice = [("x", "fixed_window 1/s"), ("x", "sliding_log 9/min")];
    assert_eq!(error(&twice), r#"two limits are named "x""#);
    let cases = [
        ("sliding_log 5000/s", "a log of more than 4096 permits"),
        ("sliding_window 5/s cells 500", "a window of more than 128 cells"),
        ("smooth_warming_up 5/s warm_up 3s", "smooth_warming_up"),
        ("token_bucket 0.1234567890123/s burst 1000", "a number of more than 51 bits"),
        ("sliding_estimate 4000000000/d", "a number of more than 51 bits"),
        ("fixed_window 5/100ns", "not a whole number of microseconds"),
    ];
    for (line, why) in cases {
        let error = error(&[("x", line)]);
        assert!(error.contains(why) && error.ends_with("is not supported over a store"), "{error}");
    }
    let error = Store::open("redis://user:secret@:bad").unwrap_err().to_string();
    assert!(!error.contains("secret"), "{error}");
}

/// Each client has 25 tasks.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn eight_clients_share_a_rate_and_no_more() {
    const RATE: u32 = 5000;
    const PERMITS: usize = 5000;
    let Some(server) = Server::start() else { return };
    let grants = Arc::new(Mutex::new(Vec::new()));
    let left = Arc::new(AtomicUsize::new(PERMITS));
    let mut tasks = Vec::new();
    for _ in 0..8 {
        let (store, log) = (open(&server), grants.clone());
        store.log_grants(move |_, due, permits| log.lock().unwrap().push((due, permits)));
        let limiter = any(&store, &format!("token_bucket {RATE}/s burst 1"));
        for _ in 0..25 {
            let (limiter, left) = (limiter.clone(), left.clone());
            let take = move || left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_sub(1));
            tasks.push(tokio::spawn(async move {
                while take().is_ok() {
                    let _ = limiter.acquire().await.unwrap();
                }
            }));
        }
    }
    for task in tasks {
        task.await.unwrap();
    }
    let mut grants = std::mem::take(&mut *grants.lock().unwrap());
    grants.sort_unstable();
    assert_eq!(grants.len(), PERMITS);
    let interval = 1_000_000 / i64::from(RATE);
    assert!(grants.windows(2).all(|pair| pair[1].0 - pair[0].0 >= interval));
    assert!(grants.iter().all(|(_, permits)| *permits == 1));
}

#[test]
fn threads_that_block_make_one_call_for_each_permit() {
    let Some(server) = Server::start() else { return };
    let store = open(&server);
    let limiter = any(&store, "token_bucket 1000/s burst 1");
    let _ = limiter.try_acquire().unwrap();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| (0..25).for_each(|_| drop(limiter.blocking_acquire().unwrap())));
        }
    });
    let counts = store.counts();
    assert!(counts.answered <= 101, "{counts:?}");
    assert_eq!((limiter.status().waiting, store.trouble()), (0, None));
}

#[tokio::test]
async fn a_limiter_and_a_limit_of_permits_in_use_have_the_calls_of_their_handles() {
    let Some(server) = Server::start() else { return };
    let store = open(&server);
    let limiter = limiter(&store, &[("limit", "fixed_window 9/10000d from_first_grant")]);
    let jobs = store.counting("jobs", 9).build().unwrap();
    let mut held = Vec::new();
    macro_rules! take_nine {
        ($limiter:ident) => {
            held.push($limiter.try_acquire().unwrap());
            held.push($limiter.try_acquire_many(2).unwrap());
            held.push($limiter.acquire_now(1).await.unwrap());
            held.push($limiter.acquire().await.unwrap());
            held.push($limiter.acquire_many(3).await.unwrap());
            held.push($limiter.acquire_within(HOUR).await.unwrap());
        };
    }
    take_nine!(limiter);
    assert!(matches!(limiter.try_acquire().unwrap_err().refusal(), Some(Refusal::Limited { .. })));
    assert!(limiter.acquire_within(HOUR).await.is_err());
    take_nine!(jobs);
    assert_eq!(jobs.try_acquire().unwrap_err().refusal(), Some(Refusal::InUse { limit: 9 }));
    held.clear();
    assert_eq!(jobs.resume().await, Ok(false));
    jobs.pause_for(HOUR).await.unwrap();
    assert!(matches!(jobs.acquire_now(1).await.unwrap_err().refusal(), Some(Refusal::Paused { .. })));
    assert_eq!(jobs.resume().await, Ok(true));
    let _permits = jobs.acquire_now(9).await.unwrap();
    assert!(limiter.close() && !limiter.close() && limiter.is_closed());
    assert!(jobs.close() && !jobs.close() && jobs.is_closed());
    assert_eq!(limiter.acquire().await.unwrap_err().refusal(), Some(Refusal::Closed));
    assert_eq!(jobs.acquire().await.unwrap_err().refusal(), Some(Refusal::Closed));
}
