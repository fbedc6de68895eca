//! What the client library and the server take by themselves.

use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{Client, Cmd};
use tidegate::AnyLimiter;
use tidegate_redis::Store;

use crate::BARE;
use crate::support::Server;

pub(crate) async fn connect(server: &Server) -> MultiplexedConnection {
    let client = Client::open(server.url()).expect("an address");
    client.get_multiplexed_async_connection().await.expect("a connection")
}

/// Commands to compare with. The last one is the call that a limiter of this policy makes.
pub(crate) fn commands(server: &Server, policy: &str) -> Vec<(&'static str, Cmd)> {
    let mut incr = redis::cmd("INCR");
    incr.arg("counter");
    vec![("PING", redis::cmd("PING")), ("INCR", incr), (BARE, recorded(server, policy))]
}

/// What a limiter sends for a request: recorded by a relay between it and the server.
fn recorded(server: &Server, policy: &str) -> Cmd {
    let directory = tempfile::tempdir().expect("a directory");
    let socket = directory.path().join("s");
    let listener = UnixListener::bind(&socket).expect("a socket");
    let sent = Arc::new(Mutex::new(Vec::new()));
    let (log, to) = (sent.clone(), server.socket());
    // It ends with the program.
    std::thread::spawn(move || {
        for client in listener.incoming() {
            let client = client.expect("a connection");
            let server = UnixStream::connect(&to).expect("a connection");
            let (from_server, to_client) = (server.try_clone(), client.try_clone());
            let back = (from_server.expect("a connection"), to_client.expect("a connection"));
            std::thread::spawn(move || copy(back.0, back.1, None));
            let log = log.clone();
            std::thread::spawn(move || copy(client, server, Some(log)));
        }
    });
    let store = Store::builder(format!("redis+unix://{}", socket.display()));
    let store = store.timeout(Duration::from_secs(10)).open().expect("a store");
    let limiter = store.limiter("bare").limit("calls", policy);
    let limiter = AnyLimiter::from(limiter.build().expect("a limiter"));
    // The first one brings the text of the script.
    for _ in 0..2 {
        let _permits = limiter.try_acquire().expect("a permit");
    }
    let sent = sent.lock().expect("no thread panics");
    let last = last_command(&sent);
    assert_eq!(last.first().map(Vec::as_slice), Some(&b"EVALSHA"[..]));
    let mut cmd = Cmd::new();
    for arg in last {
        cmd.arg(arg);
    }
    cmd
}

fn copy(mut from: UnixStream, mut to: UnixStream, log: Option<Arc<Mutex<Vec<u8>>>>) {
    let mut bytes = vec![0; 1 << 16];
    while let Ok(n @ 1..) = from.read(&mut bytes) {
        if let Some(log) = &log {
            log.lock().expect("no thread panics").extend_from_slice(&bytes[..n]);
        }
        if to.write_all(&bytes[..n]).is_err() {
            return;
        }
    }
}

/// The parts of the last of several commands, each an array of strings.
fn last_command(mut bytes: &[u8]) -> Vec<Vec<u8>> {
    let mut last = Vec::new();
    while !bytes.is_empty() {
        let parts = number(&mut bytes);
        last = (0..parts)
            .map(|_| {
                let size = number(&mut bytes);
                let (part, rest) = bytes.split_at(size);
                bytes = &rest[2..];
                part.to_vec()
            })
            .collect();
    }
    last
}

/// The number of a line, behind its mark.
fn number(bytes: &mut &[u8]) -> usize {
    let end = bytes.iter().position(|byte| *byte == b'\r').expect("a line");
    let text = std::str::from_utf8(&bytes[1..end]).expect("a number");
    *bytes = &bytes[end + 2..];
    text.parse().expect("a number")
}
