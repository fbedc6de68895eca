//! Separate servers for each test.

#![allow(dead_code)] // Each test program uses a part of it.

use std::fs::File;
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use tempfile::TempDir;

/// The program that this variable names is tested instead of the first installed one.
const VARIABLE: &str = "TIDEGATE_REDIS_SERVER";

/// The programs that speak the protocol.
const PROGRAMS: [&str; 2] = ["redis-server", "valkey-server"];

/// A server that listens at a socket in its own directory, and ends with the test.
#[derive(Debug)]
pub(crate) struct Server {
    program: String,
    directory: TempDir,
    args: Vec<String>,
    /// Commands and their arguments that precede the program, such as `faketime`.
    before: Vec<String>,
    port: u16,
    /// Whether it is a sentinel, with the settings in a file of this name.
    is_sentinel: bool,
    child: Option<Child>,
}

/// The settings of a sentinel, which it also writes itself.
const SENTINEL: &str = "sentinel.conf";

/// The output of a server.
const LOG: &str = "log";

/// The program of the servers; `None`, with a message, if none is installed. A program that the
/// variable names must be there: otherwise all tests would pass without a server.
pub(crate) fn program() -> Option<String> {
    if let Ok(program) = std::env::var(VARIABLE) {
        assert!(is_installed(&program), "{VARIABLE} is {program}, which does not run");
        return Some(program);
    }
    let installed = PROGRAMS.into_iter().find(|program| is_installed(program));
    if installed.is_none() {
        eprintln!("skipped: no redis-server and no valkey-server; apt-get install redis-server");
    }
    installed.map(str::to_owned)
}

/// Whether a program is installed.
pub(crate) fn is_installed(program: &str) -> bool {
    let mut version = Command::new(program);
    let version = version.arg("--version").stdout(Stdio::null()).stderr(Stdio::null());
    version.status().is_ok_and(|status| status.success())
}

/// A port at which no program listens, and which the system gives to no client.
pub(crate) fn free_port() -> u16 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let is_free = |port: &u16| TcpListener::bind((Ipv4Addr::LOCALHOST, *port)).is_ok();
    // Programs that run concurrently begin at different ports.
    let next = || std::process::id().wrapping_mul(7).wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed));
    let ports = (0..10_000).filter_map(|_| u16::try_from(20_000 + next() % 10_000).ok());
    { ports }.find(is_free).expect("a port")
}

/// Waits until the condition holds. The time limit only ends a test that hangs.
#[track_caller]
pub(crate) fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < Duration::from_secs(300), "it never becomes so: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

impl Server {
    /// Starts a server that listens at a socket only.
    pub(crate) fn start() -> Option<Server> {
        Server::start_with(0, &[])
    }

    /// Starts this program as a server that listens at a socket only.
    pub(crate) fn start_program(program: &str) -> Server {
        let program = program.to_owned();
        let directory = tempfile::tempdir().expect("a directory for the server");
        let (args, before) = (Vec::new(), Vec::new());
        let mut server =
            Server { program, directory, args, before, port: 0, is_sentinel: false, child: None };
        server.run();
        server
    }

    /// Starts a server that listens at a port, too.
    pub(crate) fn start_at_port(args: &[&str]) -> Option<Server> {
        Server::start_with(free_port(), args)
    }

    /// Starts a server with more settings: `--name value` each.
    pub(crate) fn start_with(port: u16, args: &[&str]) -> Option<Server> {
        Server::start_under(&[], port, args)
    }

    /// Starts a server by another program, such as `faketime`.
    pub(crate) fn start_under(before: &[&str], port: u16, args: &[&str]) -> Option<Server> {
        let program = program()?;
        let directory = tempfile::tempdir().expect("a directory for the server");
        let owned = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect();
        let (before, args) = (owned(before), owned(args));
        let mut server = Server { program, directory, args, before, port, is_sentinel: false, child: None };
        server.run();
        Some(server)
    }

    /// Starts a sentinel.
    pub(crate) fn start_sentinel(settings: &str, args: &[&str]) -> Option<Server> {
        let program = program()?;
        let directory = tempfile::tempdir().expect("a directory for the sentinel");
        std::fs::write(directory.path().join(SENTINEL), settings).expect("a file");
        let args = args.iter().map(|arg| (*arg).to_owned()).collect();
        let (port, is_sentinel) = (free_port(), true);
        let mut server =
            Server { program, directory, args, before: Vec::new(), port, is_sentinel, child: None };
        server.run();
        Some(server)
    }

    /// Starts the server again, with the data that was saved on disk.
    pub(crate) fn run(&mut self) {
        self.spawn();
        wait_until("the server has started", || {
            let ended = self.child.as_mut().and_then(|child| child.try_wait().ok().flatten());
            assert_eq!(ended, None, "the server has ended: {}", self.log());
            self.ping().is_ok()
        });
    }

    /// Starts the server without waiting until it replies.
    pub(crate) fn spawn(&mut self) {
        self.kill();
        let _ = std::fs::remove_file(self.socket());
        let words = [self.before.as_slice(), std::slice::from_ref(&self.program)].concat();
        let settings: &[&str] = match self.is_sentinel {
            true => &[SENTINEL, "--sentinel"],
            false => &["--save", "", "--appendonly", "no", "--enable-debug-command", "yes"],
        };
        let child = Command::new(&words[0])
            .args(&words[1..])
            .args(settings)
            .args(["--port", &self.port.to_string(), "--unixsocket"])
            .arg(self.socket())
            .args(&self.args)
            .current_dir(self.directory.path())
            .stdout(File::create(self.directory.path().join(LOG)).expect("a file"))
            .spawn();
        self.child = Some(child.expect("a server"));
    }

    /// Changes the settings of the next start.
    pub(crate) fn set_args(&mut self, args: &[&str]) {
        self.args = args.iter().map(|arg| (*arg).to_owned()).collect();
    }

    pub(crate) fn ping(&self) -> redis::RedisResult<()> {
        let client = redis::Client::open(self.url()).expect("an address");
        client.get_connection().and_then(|mut c| redis::cmd("PING").query::<()>(&mut c))
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.directory.path().join(LOG)).unwrap_or_default()
    }

    pub(crate) fn directory(&self) -> &Path {
        self.directory.path()
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.directory.path().join("s")
    }

    pub(crate) fn url(&self) -> String {
        let password = self.args.iter().skip_while(|arg| *arg != "--requirepass").nth(1);
        let password = password.map(|password| format!("?pass={password}")).unwrap_or_default();
        format!("redis+unix://{}{password}", self.socket().display())
    }

    /// The address at the port.
    pub(crate) fn tcp_url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    pub(crate) fn connect(&self) -> redis::Connection {
        let client = redis::Client::open(self.url()).expect("an address");
        client.get_connection().expect("a connection")
    }

    /// Sends a command, given in words.
    #[track_caller]
    pub(crate) fn tell(&self, words: &str) -> redis::Value {
        let mut words = words.split(' ');
        let mut cmd = redis::cmd(words.next().expect("a command"));
        words.for_each(|word| _ = cmd.arg(word));
        cmd.query(&mut self.connect()).expect("an answer")
    }

    /// A line of INFO; `None` if the server does not reply. Sentinels close the connections of a
    /// server whose role they change.
    pub(crate) fn info(&self, section: &str, name: &str) -> Option<String> {
        let client = redis::Client::open(self.url()).expect("an address");
        let mut connection = client.get_connection().ok()?;
        let text: String = redis::cmd("INFO").arg(section).query(&mut connection).ok()?;
        let line = text.lines().find_map(|line| line.strip_prefix(&format!("{name}:")));
        line.map(|line| line.trim_end().to_owned())
    }

    pub(crate) fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Sends the server a signal, such as `STOP` and `CONT`.
    pub(crate) fn signal(&self, name: &str) {
        if let Some(child) = &self.child {
            let status = Command::new("kill").args([&format!("-{name}"), &child.id().to_string()]).status();
            assert!(status.is_ok_and(|status| status.success()), "no signal sent");
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}
