//! Permits in use over a separate server: several processes that wait, crash, and lose the store.

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use crate::support::{Server, wait_until};
use tidegate::{AllPermits, AnyLimiter, Pause, Refusal, Request, Statistics};
use tidegate_redis::{Store, StoreBuilder, StoreCountingLimit, WhileAway};
use tokio_test::task::spawn;

const HOUR: Duration = Duration::from_secs(3600);
const MINUTE: Duration = Duration::from_secs(60);

/// With a timeout that no machine misses, for tests of anything else.
fn builder(url: String) -> StoreBuilder {
    Store::builder(url).timeout(Duration::from_secs(60))
}

/// A limit of another process, with a time to live that no machine misses.
fn counting(url: String, limit: u32) -> StoreCountingLimit {
    let store = builder(url).open().unwrap();
    store.counting("all", limit).time_to_live(HOUR).build().unwrap()
}

fn any(server: &Server, limit: u32) -> AnyLimiter {
    counting(server.url(), limit).into()
}

fn available(limiter: &AnyLimiter) -> u64 {
    limiter.status().members[0].1.available
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

fn size(server: &Server) -> u64 {
    redis::cmd("DBSIZE").query(&mut server.connect()).unwrap()
}

/// All keys except the key in which processes are counted, by each store every two seconds.
fn keys_of_limits(server: &Server) -> Vec<String> {
    let mut keys: Vec<String> = redis::cmd("KEYS").arg("*").query(&mut server.connect()).unwrap();
    keys.retain(|key| key != "tidegate:1:clients");
    keys
}

#[tokio::test]
async fn permits_in_use_are_those_of_all_processes() {
    let Some(server) = Server::start() else { return };
    let (one, other) = (any(&server, 5), any(&server, 5));
    let three = one.acquire_now(3).await.unwrap();
    assert_eq!(three.permits(), 3);
    assert_eq!(available(&other), 2);
    let refusal = other.acquire_now(3).await.unwrap_err();
    assert_eq!(refusal.refusal(), Some(Refusal::InUse { limit: 5 }));
    assert_eq!(refusal.member(), None);
    let two = other.acquire_now(Request::permits(2).with_left()).await.unwrap();
    assert_eq!(two.left().unwrap().members[0].1.available, 0);
    drop(three);
    until(|| available(&other) == 3).await;
    drop(two);
    until(|| available(&other) == 5).await;
    until(|| size(&server) == 0).await;
}

#[tokio::test]
async fn a_request_of_any_kind_is_answered_by_a_store() {
    let Some(server) = Server::start() else { return };
    let limiter = any(&server, 3);
    let refusal = |answer: Result<AllPermits, tidegate::AllRefusal>| answer.unwrap_err().refusal();
    assert_eq!(refusal(limiter.acquire_now(0).await), Some(Refusal::ZeroPermits));
    let too_many = Refusal::ExceedsLimit { requested: 4, limit: 3 };
    assert_eq!(refusal(limiter.acquire_many(4).await), Some(too_many));
    assert!(limiter.acquire_now([("other", 1)]).await.is_err());
    let named = limiter.acquire_now([("limit", 2)]).await.unwrap();
    assert_eq!((named.permits(), available(&limiter)), (2, 1));
    drop(named);
    until(|| available(&limiter) == 3).await;
    // A refused reservation reports the state as well, if its thread may wait for the store.
    for permits in [0, 4] {
        let refusal = limiter.reserve(Request::permits(permits).with_left()).unwrap_err();
        assert_eq!(refusal.left().map(|left| left.members[0].1.available), Some(3), "{refusal}");
    }
    let non_blocking = limiter.non_blocking().reserve(Request::permits(4).with_left()).unwrap_err();
    assert!(non_blocking.left().is_none() && non_blocking.refusal() == Some(too_many));
    let fewest = limiter.acquire_now(Request::up_to(10)).await.unwrap();
    assert_eq!((fewest.permits(), available(&limiter)), (1, 2));
    let exempt = limiter.acquire_many(Request::permits(9).exempt()).await.unwrap();
    assert_eq!((exempt.permits(), available(&limiter)), (0, 2));
    let busy = limiter.acquire_many(Request::permits(3).within(Duration::ZERO)).await;
    assert_eq!(refusal(busy), Some(Refusal::InUse { limit: 3 }));
    limiter.debit(7).unwrap();
    assert_eq!(limiter.keep_at_most("limit", 0), Ok(0));
    assert!(limiter.keep_at_most("other", 0).is_err() && limiter.debit([("other", 1)]).is_err());
    assert_eq!(available(&limiter), 2);
    // A limit of 0 grants nothing, and the limit is that of each process.
    let none = counting(server.url(), 0);
    let mut waits = spawn(AnyLimiter::from(none.clone()).acquire());
    assert!(waits.poll().is_pending());
    until(|| AnyLimiter::from(none.clone()).status().waiting == 1).await;
    none.set_limit(9);
    drop(waits.await.unwrap());
}

#[tokio::test]
async fn permits_that_come_back_go_to_those_that_wait() {
    let Some(server) = Server::start() else { return };
    let (one, other) = (any(&server, 2), any(&server, 2));
    let held = one.acquire_now(2).await.unwrap();
    // A reservation, and a wait in another process.
    let reservation = one.reserve(1).unwrap();
    // The store receives the reservation first.
    let line = || {
        let mut cmd = redis::cmd("HSTRLEN");
        cmd.arg("tidegate:1:{all}:in-use").arg("line").query::<u32>(&mut server.connect()).unwrap()
    };
    until(|| line() == 8).await;
    let mut wait = spawn(other.acquire_many(2));
    assert!(wait.poll().is_pending());
    until(|| line() == 16).await;
    assert_eq!(reservation.due_in(), Duration::ZERO);
    drop(held);
    let mut reservation = reservation;
    assert_eq!((&mut reservation).await.unwrap().permits(), 1);
    assert_eq!(available(&one), 0);
    reservation.settle(1).unwrap();
    let both = wait.await.unwrap();
    assert!(one.acquire_now(1).await.is_err());
    drop(both);
    until(|| size(&server) == 0).await;
}

/// A request that came during the call of a waiting request does not overtake it.
#[tokio::test]
async fn no_request_overtakes_one_that_waits() {
    let Some(server) = Server::start() else { return };
    let limiter = any(&server, 2);
    let held = limiter.acquire_now(1).await.unwrap();
    server.signal("STOP");
    let mut two = spawn(limiter.acquire_many(2));
    assert!(two.poll().is_pending());
    let mut one = spawn(limiter.acquire_now(1));
    assert!(one.poll().is_pending());
    server.signal("CONT");
    let in_use = Some(Refusal::InUse { limit: 2 });
    assert_eq!(one.await.unwrap_err().refusal(), in_use);
    // One is free, and kept for the request that waits, here and in another process.
    assert_eq!(limiter.acquire_now(1).await.unwrap_err().refusal(), in_use);
    assert_eq!(any(&server, 2).acquire_now(1).await.unwrap_err().refusal(), in_use);
    drop(held);
    assert_eq!(two.await.unwrap().permits(), 2);
}

/// Also while the call that asks for the request is in flight.
#[tokio::test]
async fn dropped_waits_hold_nothing() {
    let Some(server) = Server::start() else { return };
    let limiter = any(&server, 3);
    for _ in 0..50 {
        let held = limiter.acquire_now(2).await.unwrap();
        let mut waits: Vec<_> = (0..200).map(|_| spawn(limiter.acquire())).collect();
        for wait in &mut waits {
            let _ = wait.poll();
        }
        drop(waits);
        drop(held);
    }
    until(|| size(&server) == 0).await;
    drop(limiter.acquire_now(3).await.unwrap());
}

#[tokio::test]
async fn a_call_serves_all_requests_that_came_meanwhile() {
    let Some(server) = Server::start() else { return };
    let limiter = any(&server, 1000);
    let calls = |server: &Server| {
        let text: String = redis::cmd("INFO").arg("commandstats").query(&mut server.connect()).unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix("cmdstat_evalsha:calls="));
        line.map_or(0, |line| line.split(',').next().unwrap().parse::<u32>().unwrap())
    };
    let first = limiter.acquire_now(1).await.unwrap();
    server.signal("STOP");
    let before = spawn(limiter.acquire());
    let mut before = before;
    assert!(before.poll().is_pending());
    let mut waits: Vec<_> = (0..60).map(|_| spawn(limiter.acquire())).collect();
    // Requests that do not wait for permits wait for the reply.
    waits.extend((0..3).map(|_| spawn(limiter.acquire_now(1))));
    for wait in &mut waits {
        assert!(wait.poll().is_pending());
    }
    server.signal("CONT");
    let mut permits = vec![before.await.unwrap()];
    for wait in waits {
        permits.push(wait.await.unwrap());
    }
    // The first call carries all requests that came before it.
    assert!(calls(&server) <= 1 + 3, "{} calls", calls(&server));
    drop((first, permits));
    until(|| size(&server) == 0).await;
}

#[tokio::test]
async fn in_one_process_the_most_important_request_is_first() {
    let Some(server) = Server::start() else { return };
    let limiter = any(&server, 1);
    let held = limiter.acquire_now(1).await.unwrap();
    let mut waits: Vec<_> = [0, -1, 1, 0]
        .map(|priority| spawn(limiter.acquire_many(Request::permits(1).priority(priority))))
        .into();
    for wait in &mut waits {
        assert!(wait.poll().is_pending());
    }
    let mut held = Some(held);
    for next in [2, 0, 3, 1] {
        drop(held.take());
        let served = tokio::time::timeout(MINUTE, &mut *waits[next]).await;
        held = Some(served.expect("the most important request is served").unwrap());
        for (i, wait) in waits.iter_mut().enumerate() {
            if [2, 0, 3, 1].iter().position(|n| *n == i) > [2, 0, 3, 1].iter().position(|n| *n == next) {
                assert!(wait.poll().is_pending());
            }
        }
    }
}

#[tokio::test]
async fn a_pause_is_for_all_and_closing_for_one() {
    let Some(server) = Server::start() else { return };
    let (one, other) = (any(&server, 2), any(&server, 2));
    one.pause(Pause::lasting(HOUR)).unwrap();
    until(|| other.status().paused_for > Duration::ZERO).await;
    let refusal = other.acquire_now(1).await.unwrap_err().refusal();
    assert!(matches!(refusal, Some(Refusal::Paused { retry_after }) if retry_after <= HOUR), "{refusal:?}");
    assert!(other.resume() && !other.resume());
    let held = one.acquire_now(2).await.unwrap();
    let mut wait = spawn(one.acquire());
    assert!(wait.poll().is_pending());
    assert!(one.close().unwrap() && one.is_closed() && !one.close().unwrap());
    assert_eq!(wait.await.unwrap_err().refusal(), Some(Refusal::Closed));
    assert!(!other.is_closed());
    drop(held);
    until(|| available(&other) == 2).await;
}

/// A process decides by the permits that it holds, and reports them to the store when it is back.
#[tokio::test]
async fn without_a_store_a_process_has_its_share() {
    let Some(mut server) = Server::start() else { return };
    let two = NonZeroU32::new(2).unwrap();
    let with = |away| {
        let store = builder(server.url()).while_away(away).open().unwrap();
        AnyLimiter::from(store.counting("all", 8).time_to_live(HOUR).build().unwrap())
    };
    let (share, open, closed) =
        (with(WhileAway::ShareOf(two)), with(WhileAway::Open), with(WhileAway::Closed));
    let three = share.acquire_now(3).await.unwrap();
    server.kill();
    assert!(
        closed
            .acquire_now(1)
            .await
            .is_err_and(|refusal| { matches!(refusal.refusal(), Some(Refusal::Unavailable { .. })) })
    );
    let all = open.acquire_now(8).await.unwrap();
    // It fits the limit, but not the share.
    let many = share.acquire_now(5).await.unwrap_err().refusal();
    assert!(matches!(many, Some(Refusal::Unavailable { .. })), "{many:?}");
    assert_eq!(share.acquire_now(2).await.unwrap_err().refusal(), Some(Refusal::InUse { limit: 4 }));
    let one = share.acquire_now(1).await.unwrap();
    let mut wait = spawn(share.acquire());
    assert!(wait.poll().is_pending());
    drop(one);
    let one = wait.await.unwrap();
    // The store comes back with no state.
    server.run();
    until(|| !keys_of_limits(&server).is_empty()).await;
    drop(all);
    until(|| available(&closed) == 4).await;
    drop((one, three));
    until(|| keys_of_limits(&server).is_empty()).await;
}

#[tokio::test]
async fn observers_are_notified_of_what_callers_got() {
    let Some(mut server) = Server::start() else { return };
    let all = Arc::new(Statistics::new());
    let share = WhileAway::ShareOf(NonZeroU32::new(2).unwrap());
    let store = builder(server.url()).while_away(share).observed_by(all.clone()).open().unwrap();
    let limit = store.counting("all", 5).time_to_live(HOUR).build().unwrap();
    let own = Arc::new(Statistics::new());
    assert!(limit.observe(own.clone()) && !limit.observe(own.clone()));
    let limiter = AnyLimiter::from(limit);

    let one = limiter.acquire_now(1).await.unwrap();
    let mut three = limiter.reserve(3).unwrap();
    assert_eq!(limiter.reserve(0).unwrap_err().refusal(), Some(Refusal::ZeroPermits));
    let _ = limiter.acquire_now(Request::permits(2).exempt()).await.unwrap();
    assert_eq!((&mut three).await.unwrap().permits(), 3);
    assert!(limiter.acquire_now(2).await.is_err());
    let at_once = limiter.acquire_within(Duration::ZERO).await;
    assert!(at_once.is_ok(), "{at_once:?}");
    drop(at_once);
    let mut wait = spawn(limiter.acquire_many(2));
    assert!(wait.poll().is_pending());
    drop(wait);
    limiter.pause_for(HOUR).unwrap();
    assert!(limiter.resume());
    for statistics in [&all, &own] {
        let told = statistics.snapshot();
        assert_eq!((told.granted, told.permits, told.near_limit, told.degraded), (3, 5, 2, 0));
        assert_eq!((told.in_use, told.zero_permits, told.cancelled, told.exempted), (1, 1, 1, 1));
        assert_eq!(told.pauses, 1);
    }

    server.kill();
    let refusal = limiter.acquire_now(1).await.unwrap_err();
    assert!(refusal.is_degraded(), "{refusal:?}");
    drop(three);
    let granted = limiter.acquire_now(1).await.unwrap();
    assert!(granted.is_degraded());
    for statistics in [&all, &own] {
        let told = statistics.snapshot();
        assert_eq!((told.granted, told.near_limit, told.in_use, told.degraded), (4, 2, 2, 2));
    }
    drop((one, granted));
}

/// The work of a process in the next test: it takes permits, writes to the log while it has them,
/// and gives them back.
#[test]
fn a_process() {
    let Ok(url) = std::env::var("TIDEGATE_REDIS_URL") else { return };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let store = builder(url.clone()).open().unwrap();
    let limit = store.counting("all", LIMIT).time_to_live(TIME_TO_LIVE).build().unwrap();
    let work = |task: u32| {
        let limiter = AnyLimiter::from(limit.clone());
        let mut connection = redis::Client::open(url.clone()).unwrap().get_connection().unwrap();
        async move {
            let mut tell = |what: u32| {
                let script = "local t = redis.call('TIME') \
                    redis.call('RPUSH', 'log', ARGV[1] .. ' ' .. string.format('%.0f', t[1] * 1e6 + t[2])) \
                    return redis.call('EXISTS', 'stop')";
                let text = format!("{} {task} {what}", std::process::id());
                redis::cmd("EVAL").arg(script).arg(0).arg(text).query::<bool>(&mut connection).unwrap()
            };
            loop {
                let n = 1 + task % 2;
                let permits = limiter.acquire_many(n).await.unwrap();
                tell(n);
                for _ in 0..20 {
                    tokio::task::yield_now().await;
                }
                let stops = tell(0);
                drop(permits);
                if stops {
                    return;
                }
            }
        }
    };
    runtime.block_on(async {
        let local = tokio::task::LocalSet::new();
        for task in 0..4 {
            local.spawn_local(work(task));
        }
        local.await;
    });
}

const LIMIT: u32 = 5;
const TIME_TO_LIVE: Duration = Duration::from_secs(10);

fn begin(server: &Server) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "counting::a_process", "--nocapture"])
        .env("TIDEGATE_REDIS_URL", server.url())
        .stdout(Stdio::null())
        .spawn()
        .unwrap()
}

/// Eight processes, some of which are killed while they hold permits and wait.
#[test]
fn killed_processes_give_their_permits_back_and_no_permit_is_had_twice() {
    let Some(server) = Server::start() else { return };
    let mut connection = server.connect();
    let mut processes: Vec<Child> = (0..8).map(|_| begin(&server)).collect();
    let mut deaths: BTreeMap<u32, u64> = BTreeMap::new();
    let mut length = || redis::cmd("LLEN").arg("log").query::<usize>(&mut connection).unwrap();
    let mut wait_for = |more: usize| {
        let goal = length() + more;
        wait_until("more permits are taken", || length() >= goal);
    };
    wait_for(400);
    let mut other = server.connect();
    for i in 0..12 {
        let mut child = processes.remove(0);
        child.kill().unwrap();
        child.wait().unwrap();
        let (seconds, micros): (u64, u64) = redis::cmd("TIME").query(&mut other).unwrap();
        deaths.insert(child.id(), seconds * 1_000_000 + micros);
        if i < 8 {
            processes.push(begin(&server));
        }
        // Permits of the dead come back, because the others go on.
        wait_for(200);
    }
    redis::cmd("SET").arg(&["stop", "1"]).exec(&mut other).unwrap();
    for mut process in processes {
        assert!(process.wait().unwrap().success());
    }
    let log: Vec<String> = redis::cmd("LRANGE").arg(&["log", "0", "-1"]).query(&mut other).unwrap();
    let mut holds: BTreeMap<(u32, u32), u32> = BTreeMap::new();
    let mut most = 0;
    for line in &log {
        let [process, task, permits, at] =
            line.split(' ').map(|word| word.parse::<u64>().unwrap()).collect::<Vec<_>>()[..]
        else {
            panic!()
        };
        let small = |n: u64| u32::try_from(n).unwrap();
        // A process that was killed holds nothing from then on.
        holds.retain(|(process, _), _| deaths.get(process).is_none_or(|death| *death > at));
        holds.insert((small(process), small(task)), small(permits));
        let in_use: u32 = holds.values().sum();
        assert!(in_use <= LIMIT, "{holds:?}");
        most = most.max(in_use);
    }
    assert_eq!(most, LIMIT);
    // The last permits of the dead come back, and then all permits are free.
    let limiter = any(&server, LIMIT);
    drop(limiter.blocking_acquire_many(LIMIT).unwrap());
    wait_until("no process is known", || size(&server) <= 2);
}
