//! Counting processes.

use redis::{Connection, Value};
use tokio::time::Instant;

use super::START;
use super::support::Server;
use crate::clients::{Clients, script};

const SECOND: u64 = 1_000_000;

/// A process asks at a time. Returns the number of processes.
fn ask(connection: &mut Connection, client: &Clients, now: u64) -> u32 {
    let script = script();
    let question = client.question(&script, "clients", Some(now));
    let answer: Value = script.by_text(&question).query(connection).expect("an answer");
    client.answered(&answer, Instant::now());
    let Value::Array(numbers) = answer else { panic!("{answer:?}") };
    let Value::Int(count) = numbers[2] else { panic!("{numbers:?}") };
    u32::try_from(count).expect("a count")
}

#[test]
fn each_process_is_counted_once_in_constant_memory() {
    let Some(server) = Server::start() else { return };
    let mut connection = server.connect();
    let clients: Vec<Clients> = (0..8).map(|_| Clients::default()).collect();
    assert_eq!(clients[0].get(), None);
    for beat in 0..20 {
        for (i, client) in (0..).zip(&clients) {
            let told = ask(&mut connection, client, START + beat * 2 * SECOND + i);
            let expected = if beat == 0 { u32::try_from(i).expect("small") + 1 } else { 8 };
            assert_eq!(told, expected, "beat {beat}");
        }
    }
    let length: usize = redis::cmd("STRLEN").arg("clients").query(&mut connection).expect("a length");
    assert_eq!(length, 32);
    let left: u64 = redis::cmd("PTTL").arg("clients").query(&mut connection).expect("a time");
    assert!((1..=12_000).contains(&left), "{left}");
    // Five of them end, and are forgotten after two periods. Another one begins.
    let new = Clients::default();
    for beat in 20..30 {
        for client in clients[..3].iter().chain([&new]) {
            let told = ask(&mut connection, client, START + beat * 2 * SECOND);
            assert!((4..=9).contains(&told), "{told}");
            assert!(beat < 27 || told == 4, "{told} at {beat}");
        }
    }
}

fn leave(connection: &mut Connection, client: &Clients, now: u64) {
    let script = script();
    let farewell = client.farewell(&script, "clients", Some(now));
    script.by_text(&farewell).exec(connection).expect("an answer");
}

/// Processes leave in all parts of a period, and come back.
#[test]
fn a_process_that_leaves_is_not_counted_and_each_other_one_is() {
    let Some(server) = Server::start() else { return };
    let mut connection = server.connect();
    let clients: Vec<Clients> = (0..8).map(|_| Clients::default()).collect();
    let mut lives = [false; 8];
    for beat in 0..200_u64 {
        let now = START + beat * SECOND;
        let changed = usize::try_from(beat * 5 % 8).expect("small");
        if lives[changed] {
            leave(&mut connection, &clients[changed], now);
        }
        lives[changed] = !lives[changed];
        let alive = clients.iter().zip(lives).filter(|(_, lives)| *lives);
        let told: Vec<u32> = alive.map(|(client, _)| ask(&mut connection, client, now)).collect();
        let count = u32::try_from(told.len()).expect("small");
        assert!(told.iter().all(|told| *told <= count), "{told:?} at {beat}");
        assert!(told.last().is_none_or(|told| *told == count), "{told:?} at {beat}");
    }
}

#[test]
fn a_lost_count_and_a_clock_set_back_are_counted_anew() {
    let Some(server) = Server::start() else { return };
    let mut connection = server.connect();
    let clients: Vec<Clients> = (0..8).map(|_| Clients::default()).collect();
    let ask_all = |connection: &mut Connection, now: u64| {
        clients.iter().map(|client| ask(connection, client, now)).last().expect("a count")
    };
    assert_eq!(ask_all(&mut connection, START + 60 * SECOND), 8);
    assert_eq!(ask_all(&mut connection, START + 60 * SECOND), 8);
    redis::cmd("FLUSHALL").exec(&mut connection).expect("no keys");
    assert_eq!(ask(&mut connection, &clients[0], START + 61 * SECOND), 1);
    // A process keeps the larger number for a while.
    assert_eq!(clients[0].get().map(|n| n.get()), Some(8));
    assert_eq!(ask_all(&mut connection, START + 61 * SECOND), 8);
    assert_eq!(ask_all(&mut connection, START), 8);
    assert_eq!(ask_all(&mut connection, START + 2 * SECOND), 8);
}
