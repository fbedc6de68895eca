//! A server of its own for each test.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

/// The programs that speak the protocol.
const PROGRAMS: [&str; 2] = ["redis-server", "valkey-server"];

/// A server that listens at a socket in a directory of its own, and ends with the test.
#[derive(Debug)]
pub(crate) struct Server {
    program: &'static str,
    directory: TempDir,
    child: Option<Child>,
}

impl Server {
    /// Starts a server of the first program that is installed. `None`, with a message, if there is
    /// none.
    pub(crate) fn start() -> Option<Server> {
        let installed = PROGRAMS.into_iter().find(|program| {
            let version = Command::new(program).arg("--version").stdout(Stdio::null()).status();
            version.is_ok_and(|status| status.success())
        });
        let Some(program) = installed else {
            eprintln!("skipped: no redis-server and no valkey-server; apt-get install redis-server");
            return None;
        };
        let directory = tempfile::tempdir().expect("a directory for the server");
        let mut server = Server { program, directory, child: None };
        server.run();
        Some(server)
    }

    /// Starts the server again, without what it knew.
    pub(crate) fn run(&mut self) {
        self.kill();
        let _ = std::fs::remove_file(self.socket());
        let child = Command::new(self.program)
            .args(["--port", "0", "--save", "", "--appendonly", "no", "--unixsocket"])
            .arg(self.socket())
            .current_dir(self.directory.path())
            .stdout(Stdio::null())
            .spawn();
        self.child = Some(child.expect("a server"));
        let begun = Instant::now();
        while !self.answers() {
            assert!(begun.elapsed() < Duration::from_secs(30), "the server did not start");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn answers(&self) -> bool {
        let client = redis::Client::open(self.url()).expect("an address");
        client.get_connection().and_then(|mut c| redis::cmd("PING").query::<()>(&mut c)).is_ok()
    }

    pub(crate) fn socket(&self) -> PathBuf {
        let directory: &Path = self.directory.path();
        directory.join("s")
    }

    pub(crate) fn url(&self) -> String {
        format!("redis+unix://{}", self.socket().display())
    }

    pub(crate) fn connect(&self) -> redis::Connection {
        let client = redis::Client::open(self.url()).expect("an address");
        client.get_connection().expect("a connection")
    }

    pub(crate) fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Sends the server a signal, such as `STOP` and `CONT`.
    #[allow(dead_code)]
    pub(crate) fn signal(&self, name: &str) {
        if let Some(child) = &self.child {
            let status = Command::new("kill").args([&format!("-{name}"), &child.id().to_string()]).status();
            assert!(status.is_ok_and(|status| status.success()), "no signal sent");
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.signal("CONT");
        self.kill();
    }
}
