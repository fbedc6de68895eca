//! Permits in use: only the script, under a time that the tests set.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use redis::{Connection, RedisResult, Value};

use crate::counting::call::{Call, CallReport, Operation, script};
use crate::script::Script;
use crate::script_tests::START;
use crate::script_tests::support::Server;

const SPAN: Duration = Duration::from_secs(10);
const PATIENCE: Duration = Duration::from_secs(1);
const SECOND: u64 = 1_000_000;

struct Store {
    _server: Server,
    connection: Connection,
    script: Arc<Script>,
    key: String,
    now: u64,
    calls: u64,
}

impl Store {
    fn new() -> Option<Store> {
        let server = Server::start()?;
        let connection = server.connect();
        let key = "{all}:in-use".into();
        Some(Store { _server: server, connection, script: script(), key, now: START, calls: 0 })
    }

    fn query(&mut self, call: Call<'_>) -> RedisResult<CallReport> {
        let cmd = self.script.by_text(&call.command(&self.script));
        let value: Value = cmd.query(&mut self.connection)?;
        Ok(CallReport::read(&value).expect("a reply"))
    }

    fn try_call(&mut self, process: u8, limit: u32, held: u64, sizes: &[i64]) -> RedisResult<CallReport> {
        self.calls += 1;
        let key = self.key.clone();
        let (now, number) = (Some(self.now), self.calls);
        let (operation, span, patience) = (Operation::Call, SPAN, PATIENCE);
        let process = [process; 8];
        self.query(Call { operation, key: &key, process, now, limit, span, number, held, patience, sizes })
    }

    fn call(&mut self, process: u8, limit: u32, held: u64, sizes: &[i64]) -> CallReport {
        self.try_call(process, limit, held, sizes).expect("a reply")
    }

    fn other(&mut self, operation: Operation) -> CallReport {
        let key = self.key.clone();
        let (now, process, span, patience) = (Some(self.now), [0; 8], SPAN, PATIENCE);
        let call = Call {
            operation,
            key: &key,
            process,
            now,
            limit: 0,
            span,
            number: 0,
            held: 0,
            patience,
            sizes: &[],
        };
        self.query(call).expect("a reply")
    }

    fn in_use(&mut self) -> u64 {
        self.other(Operation::Status).in_use
    }

    fn size(&mut self) -> u64 {
        redis::cmd("DBSIZE").query(&mut self.connection).expect("a size")
    }
}

#[test]
fn permits_are_granted_up_to_the_limit_and_come_back() {
    let Some(mut store) = Store::new() else { return };
    assert_eq!(store.call(1, 5, 0, &[-2, -2, -2, -1]).granted, [true, true, false, true]);
    let before = values_of(&mut store);
    assert_eq!(store.call(2, 5, 0, &[-1]).granted, [false]);
    assert_eq!(values_of(&mut store), before, "a refused request changes nothing");
    assert_eq!(store.call(1, 5, 1, &[]).in_use, 1);
    assert_eq!(store.call(2, 5, 0, &[-4]).granted, [true]);
    store.call(1, 5, 0, &[]);
    assert!(store.size() > 0);
    store.call(2, 5, 0, &[]);
    assert_eq!(store.size(), 0, "an idle limit has no key");
}

fn values_of(store: &mut Store) -> BTreeMap<Vec<u8>, Vec<u8>> {
    redis::cmd("HGETALL").arg(&store.key).query(&mut store.connection).expect("a hash")
}

#[test]
fn a_process_that_does_not_call_is_lost() {
    let Some(mut store) = Store::new() else { return };
    store.call(1, 3, 0, &[-2]);
    store.now += 6 * SECOND;
    store.call(2, 3, 0, &[-1]);
    // The first one counts as lost at 10 s, and the second one calls again.
    store.now += 4 * SECOND - 1;
    assert_eq!(store.call(3, 3, 0, &[-1]).granted, [false]);
    store.now += 1;
    assert_eq!(store.call(3, 3, 0, &[-1, -1, -1]).granted, [true, true, false]);
    store.call(2, 3, 1, &[]);
    store.now += 9 * SECOND;
    assert_eq!(store.in_use(), 3);
    // It lives, and keeps its permits: nothing is granted until fewer are in use.
    assert_eq!(store.call(1, 3, 2, &[-1]).in_use, 5);
    assert_eq!(store.call(2, 3, 0, &[-1]).granted, [false]);
}

#[test]
fn a_call_that_comes_late_changes_nothing() {
    let Some(mut store) = Store::new() else { return };
    store.call(1, 3, 0, &[-3]);
    store.call(1, 3, 1, &[]);
    store.calls -= 2;
    assert_eq!(store.call(1, 3, 3, &[]).in_use, 1);
    assert_eq!(store.in_use(), 1);
    // The next call makes up for a call that the store did not get.
    store.calls += 7;
    assert_eq!(store.call(1, 3, 2, &[]).in_use, 2);
}

#[test]
fn a_store_that_forgot_gets_the_permits_in_use_again() {
    let Some(mut store) = Store::new() else { return };
    store.call(1, 3, 0, &[-3]);
    redis::cmd("FLUSHALL").exec(&mut store.connection).expect("a flush");
    assert_eq!(store.call(1, 3, 3, &[]).in_use, 3);
    assert_eq!(store.call(2, 3, 0, &[-1]).granted, [false]);
}

#[test]
fn processes_that_wait_take_turns() {
    let Some(mut store) = Store::new() else { return };
    store.call(1, 4, 0, &[-4]);
    assert_eq!(store.call(2, 4, 0, &[2]).before, 0);
    assert_eq!(store.call(3, 4, 0, &[1]).before, 1);
    // Two permits come back. They are kept for the second process, even from a process that holds
    // some.
    let told = store.call(1, 4, 2, &[1, 1]);
    assert_eq!((told.granted, told.before), (vec![false, false], 2));
    assert_eq!(store.call(4, 4, 0, &[-1]).granted, [false]);
    assert_eq!(store.call(3, 4, 0, &[1]).granted, [false]);
    assert_eq!(store.call(2, 4, 0, &[2]).granted, [true]);
    store.call(1, 4, 1, &[1, 1]);
    assert_eq!(store.call(3, 4, 0, &[1]).granted, [true]);
    // A process that does not ask again loses its position, and its requests hold up no other.
    assert_eq!(store.call(2, 4, 2, &[2]).before, 1);
    store.now += 2 * SECOND;
    store.call(3, 4, 0, &[]);
    assert_eq!(store.call(4, 4, 0, &[-1]).granted, [true]);
    // A withdrawn request is not waited for.
    store.call(2, 4, 2, &[2]);
    assert_eq!(store.call(3, 4, 0, &[1]).before, 1);
    store.call(2, 4, 2, &[]);
    store.call(4, 4, 0, &[]);
    assert_eq!(store.call(3, 4, 0, &[1]).granted, [true]);
}

#[test]
fn nothing_is_granted_in_a_pause_of_permits_in_use() {
    let Some(mut store) = Store::new() else { return };
    store.other(Operation::Pause(Duration::from_secs(5)));
    let told = store.call(1, 4, 0, &[-1]);
    assert_eq!((told.granted, told.paused_for), (vec![false], Duration::from_secs(5)));
    store.now += 5 * SECOND;
    assert_eq!(store.call(1, 4, 0, &[-1]).granted, [true]);
    store.call(1, 4, 0, &[]);
    assert_eq!(store.size(), 0);
    store.other(Operation::Pause(Duration::from_secs(5)));
    assert_eq!(store.other(Operation::Resume).granted, [true]);
    assert_eq!(store.other(Operation::Resume).granted, [false]);
    assert_eq!(store.size(), 0);
}

/// The key of a crashed process stayed for as long as the pause would have lasted.
#[test]
fn a_pause_that_is_ended_keeps_no_key() {
    let Some(mut store) = Store::new() else { return };
    store.call(1, 4, 0, &[-1]);
    store.other(Operation::Pause(Duration::from_secs(3600)));
    let ttl = |store: &mut Store| -> u64 {
        let ttl: u64 = redis::cmd("PTTL").arg(&store.key).query(&mut store.connection).expect("a ttl");
        // Under a time that is set, keys are kept for one day more.
        ttl.saturating_sub(86_400_000) / 1000
    };
    assert!((3590..=3600).contains(&ttl(&mut store)));
    store.other(Operation::Resume);
    assert!(ttl(&mut store) <= SPAN.as_secs());
}

/// The server's clock is set back: processes that live go on, and others are lost after their time
/// to live.
#[test]
fn a_clock_set_back_keeps_no_process_for_longer() {
    let Some(mut store) = Store::new() else { return };
    for process in 1..=40 {
        store.call(process, 40, 0, &[-1]);
    }
    store.other(Operation::Pause(Duration::from_secs(20)));
    store.now -= 3600 * SECOND;
    for _ in 0..4 {
        let told = store.call(1, 40, 1, &[-1]);
        assert_eq!(told.granted, [false]);
    }
    assert_eq!(store.other(Operation::Status).paused_for, Duration::from_secs(20));
    store.other(Operation::Resume);
    store.now += 10 * SECOND;
    assert_eq!(store.call(1, 40, 1, &[]).in_use, 1);
}

#[test]
fn a_store_without_memory_takes_permits_back_and_grants_none() {
    let Some(mut store) = Store::new() else { return };
    store.call(1, 9, 0, &[-4]);
    store.call(2, 9, 0, &[-1]);
    let config = |store: &mut Store, bytes: &str| {
        redis::cmd("CONFIG")
            .arg(&["SET", "maxmemory", bytes])
            .exec(&mut store.connection)
            .expect("a setting");
    };
    config(&mut store, "1");
    let before = values_of(&mut store);
    let error = store.try_call(3, 9, 0, &[-1]).expect_err("no memory");
    assert_eq!(error.code(), Some("OOM"), "{error}");
    assert!(store.try_call(1, 9, 4, &[-1]).is_err());
    assert_eq!(values_of(&mut store), before);
    assert_eq!(store.call(1, 9, 1, &[]).in_use, 2);
    assert_eq!(store.call(1, 9, 0, &[]).in_use, 1);
    config(&mut store, "0");
    assert_eq!(store.call(3, 9, 0, &[-8]).granted, [true]);
}

/// Random calls of processes that live, are lost and come back: never more than the limit, nothing
/// lost, every key with an expiry, and nothing left.
#[test]
fn random_calls_count_every_permit() {
    let Some(mut store) = Store::new() else { return };
    let limit = 12;
    let mut random = SmallRng::seed_from_u64(1);
    // For each process its permits, and its last call.
    let mut processes: BTreeMap<u8, (u64, u64)> = BTreeMap::new();
    let (mut granted, mut lost, mut waited) = (0, 0, 0);
    for _ in 0..5_000 {
        store.now += random.random_range(0..SECOND / 2);
        if random.random_ratio(1, 200) {
            store.now += 5 * SECOND;
        }
        let now = store.now;
        processes.retain(|_, (held, seen)| {
            let lives = *seen + 10 * SECOND > now;
            lost += if lives { 0 } else { *held };
            lives
        });
        let process = random.random_range(0..20);
        let (held, _) = processes.get(&process).copied().unwrap_or_default();
        let held = held - random.random_range(0..=held);
        let sign = if random.random_ratio(1, 3) { 1 } else { -1 };
        let sizes: Vec<i64> =
            (0..random.random_range(0..4)).map(|_| sign * random.random_range(1..4)).collect();
        let told = store.call(process, limit, held, &sizes);
        let got: i64 = sizes.iter().zip(&told.granted).filter(|(_, is)| **is).map(|(n, _)| n.abs()).sum();
        let held = held + u64::try_from(got).expect("permits");
        granted += got;
        waited += told.before;
        let waits = sizes.iter().zip(&told.granted).any(|(n, is)| *n > 0 && !is);
        match held > 0 || waits {
            true => processes.insert(process, (held, now)),
            false => processes.remove(&process),
        };
        let in_use: u64 = processes.values().map(|(held, _)| held).sum();
        assert_eq!(told.in_use, in_use);
        assert!(in_use <= u64::from(limit));
        let ttl: i64 = redis::cmd("PTTL").arg(&store.key).query(&mut store.connection).expect("a ttl");
        assert_ne!(ttl, -1);
    }
    assert!(granted > 1000 && lost > 20 && waited > 100, "{granted}, {lost}, {waited}");
    for process in 0..20 {
        store.call(process, limit, 0, &[]);
    }
    assert_eq!((store.in_use(), store.size()), (0, 0));
}

/// Many processes crash, and none of them calls again.
#[test]
fn all_that_crashed_processes_held_comes_back_at_once() {
    let Some(mut store) = Store::new() else { return };
    let script = "for i = 1, 20000 do redis.call('HSET', KEYS[1], struct.pack('>I8', i), \
        struct.pack('>ddddd', 1, 1, 0, 0, tonumber(ARGV[1]))) end";
    store.call(1, 20_001, 0, &[-1]);
    let ends = (store.now + 10 * SECOND).to_string();
    redis::cmd("EVAL")
        .arg(script)
        .arg(1)
        .arg(&store.key)
        .arg(ends)
        .exec(&mut store.connection)
        .expect("a script");
    store.now += 10 * SECOND;
    assert_eq!(store.call(2, 20_001, 0, &[-20_001]).granted, [true]);
    store.call(2, 20_001, 0, &[]);
    assert_eq!(store.size(), 0);
}

#[test]
fn no_text_under_a_key_is_a_number_of_permits() {
    let Some(mut store) = Store::new() else { return };
    let texts = (b' '..=b'~').map(|first| [&[first][..], &[b'9'; 60]].concat());
    for text in texts.chain([vec![0xc3; 60], vec![0x80; 60], vec![0xff; 60]]) {
        let mut set = redis::cmd("HSET");
        set.arg(&store.key).arg("all").arg(&text).exec(&mut store.connection).expect("a write");
        let told = store.try_call(1, 5, 0, &[1]);
        let start = String::from_utf8_lossy(&text[..8]).into_owned();
        assert!(told.is_err(), "{start}: {told:?}");
    }
}
