//! An NGINX process with its own directory.

use std::error::Error;
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use std::{env, fs, thread};

/// The rate in requests per second, and the burst that NGINX accepts on top at once.
pub(crate) const RATE: u32 = 50;
pub(crate) const BURST: u32 = 10;

/// NGINX's response to a request above its limit.
#[derive(Clone, Copy)]
pub(crate) enum Refusal {
    /// 429 with `Retry-After: 1`.
    RetryAfter,
    /// 503 without a time, which is NGINX's default.
    Default,
}

impl Refusal {
    fn directives(self) -> &'static str {
        match self {
            Refusal::Default => "",
            Refusal::RetryAfter => "limit_req_status 429; error_page 429 @limited;",
        }
    }
}

/// A running NGINX.
pub(crate) struct Nginx {
    process: Child,
    directory: PathBuf,
    port: u16,
}

impl Nginx {
    /// Starts NGINX, and waits until it accepts connections.
    pub(crate) fn start(refusal: Refusal) -> Result<Nginx, Box<dyn Error>> {
        let directory = env::temp_dir().join(format!("tidegate-nginx-{}", std::process::id()));
        fs::create_dir_all(&directory)?;
        fs::write(directory.join("index.html"), "hello\n")?;
        // NGINX cannot report which port it was given, so it gets a port that was free just now.
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        fs::write(directory.join("nginx.conf"), configuration(port, refusal))?;
        let process = command(&directory).spawn().map_err(|error| format!("nginx: {error}"))?;
        let mut nginx = Nginx { process, directory, port };
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            if let Some(status) = nginx.process.try_wait()? {
                return Err(format!("NGINX did not start: {status}").into());
            }
            thread::sleep(Duration::from_millis(10));
        }
        Ok(nginx)
    }

    pub(crate) fn url(&self) -> String {
        format!("http://127.0.0.1:{}/", self.port)
    }

    /// Lets NGINX end, and reads the statuses of its responses from its log.
    pub(crate) fn statuses(mut self) -> Result<Vec<u16>, Box<dyn Error>> {
        command(&self.directory).args(["-s", "quit"]).stderr(Stdio::null()).status()?;
        self.process.wait()?;
        let log = fs::read_to_string(self.directory.join("access.log"))?;
        Ok(log.lines().map(str::parse).collect::<Result<_, _>>()?)
    }
}

impl Drop for Nginx {
    fn drop(&mut self) {
        // NGINX has already ended, unless this program fails.
        let _ = self.process.kill();
        let _ = self.process.wait();
        let _ = fs::remove_dir_all(&self.directory);
    }
}

fn command(directory: &Path) -> Command {
    // Debian installs NGINX in a directory that is only in the path of root.
    let path = format!("{}:/usr/sbin", env::var("PATH").unwrap_or_default());
    let mut command = Command::new("nginx");
    command.env("PATH", path).stdin(Stdio::null());
    command.arg("-p").arg(directory).args(["-e", "stderr", "-c", "nginx.conf"]);
    command
}

/// One process without privileges, with all its files in its directory. The zone has one key, so
/// all requests share the limit.
fn configuration(port: u16, refusal: Refusal) -> String {
    format!(
        "
daemon off;
master_process off;
pid nginx.pid;
error_log stderr crit;
events {{}}
http {{
    client_body_temp_path body;
    proxy_temp_path proxy;
    fastcgi_temp_path fastcgi;
    uwsgi_temp_path uwsgi;
    scgi_temp_path scgi;
    log_format status '$status';
    access_log access.log status;
    limit_req_zone $server_port zone=all:1m rate={RATE}r/s;
    server {{
        listen 127.0.0.1:{port};
        root .;
        location / {{
            limit_req zone=all burst={BURST} nodelay;
            {}
        }}
        location @limited {{
            add_header Retry-After 1 always;
            return 429;
        }}
    }}
}}
",
        refusal.directives()
    )
}
