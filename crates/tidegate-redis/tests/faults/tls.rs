//! Encrypted connections, with certificates that a test makes.

use std::io::Write;
use std::net::{Ipv4Addr, TcpListener};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use tidegate_redis::{LimiterConfig, OpenError, Store, StoreError, Tls};

use crate::load;
use crate::support::{Server, free_port, is_installed};

/// A folder with certificates that one authority signed, and one that another authority signed.
struct Certificates(tempfile::TempDir);

impl Certificates {
    fn new() -> Option<Certificates> {
        if !is_openssl_there() {
            eprintln!("skipped: no openssl; apt-get install openssl");
            return None;
        }
        let made = Certificates(tempfile::tempdir().unwrap());
        for authority in ["ca", "other-ca"] {
            made.openssl(&format!(
                "req -x509 -newkey rsa:2048 -nodes -keyout {authority}.key -out {authority}.pem -days 2 \
                 -subj /CN={authority}"
            ));
        }
        for (name, authority, alternative) in [
            ("server", "ca", "IP:127.0.0.1"),
            ("client", "ca", "DNS:client"),
            ("stranger", "other-ca", "DNS:client"),
        ] {
            std::fs::write(made.0.path().join("ext"), format!("subjectAltName={alternative}\n")).unwrap();
            made.openssl(&format!(
                "req -newkey rsa:2048 -nodes -keyout {name}.key -out {name}.csr -subj /CN={name}"
            ));
            made.openssl(&format!(
                "x509 -req -in {name}.csr -CA {authority}.pem -CAkey {authority}.key -CAcreateserial \
                 -out {name}.pem -days 2 -extfile ext"
            ));
        }
        Some(made)
    }

    fn openssl(&self, words: &str) {
        let mut command = Command::new("openssl");
        let command = command.args(words.split_whitespace()).current_dir(self.0.path());
        let status = command.stdout(Stdio::null()).stderr(Stdio::null()).status();
        assert!(status.unwrap().success(), "openssl {words}");
    }

    fn pem(&self, name: &str) -> Vec<u8> {
        std::fs::read(self.0.path().join(name)).unwrap()
    }

    fn path(&self, name: &str) -> String {
        let path: &Path = self.0.path();
        path.join(name).display().to_string()
    }

    /// Starts a server with TLS and one more setting. Also returns its port.
    fn server(&self, setting: [&str; 2]) -> Option<(Server, String)> {
        let port = free_port().to_string();
        let [cert, key, ca] = ["server.pem", "server.key", "ca.pem"].map(|name| self.path(name));
        let args = [
            ["--tls-port", &port],
            ["--tls-cert-file", &cert],
            ["--tls-key-file", &key],
            ["--tls-ca-cert-file", &ca],
            setting,
        ];
        Some((Server::start_with(0, args.as_flattened())?, port))
    }
}

fn is_openssl_there() -> bool {
    let status = Command::new("openssl").arg("version").stdout(Stdio::null()).status();
    is_installed("openssl") || status.is_ok_and(|status| status.success())
}

#[tokio::test]
async fn connections_are_encrypted() {
    let Some(certificates) = Certificates::new() else { return };
    let Some((server, port)) = certificates.server(["--requirepass", "of-servers"]) else { return };
    let at = |host: &str| format!("rediss://:of-servers@{host}:{port}");
    let ours = Tls::new().ca(certificates.pem("ca.pem"));
    let with_client = |name: &str| {
        let (chain, key) = (format!("{name}.pem"), format!("{name}.key"));
        ours.clone().client_certificate(certificates.pem(&chain), certificates.pem(&key))
    };
    // The server asks for a certificate of the client.
    let (store, limiter) = load::open(load::patient(at("127.0.0.1")).tls(with_client("client")));
    store.check().await.unwrap();
    assert_eq!(load::ask_times(&limiter, 10).await.granted, 10, "{:?}", store.trouble());

    let wrong = async |host: &str, tls: Tls| -> StoreError {
        let builder = Store::builder(at(host)).tls(tls).timeout(Duration::from_secs(20));
        let (store, limiter) = load::open(builder);
        assert_eq!(load::ask_times(&limiter, 3).await.refused, 3);
        let trouble = store.trouble().unwrap();
        assert!(!trouble.is_away() && !format!("{trouble:?}").contains("127.0.0.1"), "{trouble}");
        trouble
    };
    for (host, tls, says) in [
        ("127.0.0.1", ours.clone(), "refused"),
        ("127.0.0.1", with_client("stranger"), "refused"),
        ("127.0.0.1", Tls::new().ca(certificates.pem("other-ca.pem")), "issuer"),
        // The certificate does not contain the name.
        ("localhost", with_client("client"), "not for the host"),
    ] {
        let trouble = wrong(host, tls).await;
        assert!(trouble.to_string().contains(says), "{trouble}");
    }
    let builder = Store::builder(at("127.0.0.1").replace("rediss", "redis"));
    let plain = builder.timeout(Duration::from_secs(20)).open().unwrap();
    let trouble = plain.check().await.unwrap_err().to_string();
    assert!(trouble.contains("unless the address begins with rediss"), "{trouble}");
    // Without a client certificate, at a server that asks for none.
    server.tell("CONFIG SET tls-auth-clients no");
    let (store, limiter) = load::open(load::patient(at("127.0.0.1")).tls(ours.clone()));
    store.check().await.unwrap();
    assert_eq!(load::ask(&limiter).await.granted, 1);

    let client = |chain, key| ours.clone().client_certificate(certificates.pem(chain), certificates.pem(key));
    for (tls, why) in [
        (Tls::new().ca("no certificate"), "the ca has no certificates in PEM"),
        (Tls::new().ca(certificates.pem("ca.key")), "the ca has no certificates in PEM"),
        (client("client.pem", "client.pem"), "the client's key is no private key in PEM"),
        (client("client.key", "client.key"), "the client's chain has no certificates in PEM"),
        (client("client.pem", "server.key"), "the client's key is not that of its certificate"),
    ] {
        let opened = Store::builder(at("127.0.0.1")).tls(tls).open();
        assert_eq!(opened.unwrap_err(), OpenError::Certificate { why });
    }
    // Certificates imply that the connection must be encrypted.
    let plain = Store::builder("redis://127.0.0.1").tls(ours.clone()).open();
    let why = "does not begin with rediss, and certificates are set";
    assert_eq!(plain.unwrap_err(), OpenError::Address { why });
    let shown = format!("{:?} {:?}", with_client("client"), Store::builder(at("127.0.0.1")).tls(ours));
    assert!(!shown.contains("127.0.0.1") && !shown.contains("BEGIN") && !shown.contains("[45,"), "{shown}");
}

/// The address of the server and the expected outcome, for a separate process: `SSL_CERT_FILE`
/// applies to a whole process.
const ROLE: [&str; 2] = ["TIDEGATE_TLS_URL", "TIDEGATE_TLS_OUTCOME"];

/// A process that trusts the authorities of its environment.
#[tokio::test]
async fn a_process_with_authorities_of_its_own() {
    let [Ok(url), Ok(outcome)] = ROLE.map(std::env::var) else { return };
    let config: LimiterConfig = format!("{} store {url} tag all timeout 100s", load::LINE).parse().unwrap();
    let store = config.open().unwrap().unwrap();
    match store.check().await {
        Ok(()) => {
            assert_eq!(load::ask(&config.build().unwrap()).await.granted, 1);
            assert_eq!(outcome, "granted");
        }
        Err(trouble) => assert!(trouble.to_string().contains(&outcome), "{trouble}"),
    }
}

#[test]
fn a_server_is_trusted_by_the_authority_that_the_environment_names() {
    let Some(certificates) = Certificates::new() else { return };
    let Some((_server, port)) = certificates.server(["--tls-auth-clients", "no"]) else { return };
    for (authority, outcome) in [("ca.pem", "granted"), ("other-ca.pem", "issuer")] {
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "tls::a_process_with_authorities_of_its_own"])
            .env("SSL_CERT_FILE", certificates.path(authority))
            // It would add authorities.
            .env_remove("SSL_CERT_DIR")
            .envs([(ROLE[0], format!("rediss://127.0.0.1:{port}")), (ROLE[1], outcome.to_owned())])
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&child.stdout);
        assert!(child.status.success() && text.contains("1 passed"), "{authority}: {text}");
    }
}

/// A store at a port where no server uses TLS.
fn store_without_tls(listener: &TcpListener, timeout: Duration) -> Option<Store> {
    let certificates = Certificates::new()?;
    let address = format!("rediss://{}", listener.local_addr().unwrap());
    let tls = Tls::new().ca(certificates.pem("ca.pem"));
    Some(Store::builder(address).tls(tls).timeout(timeout).open().unwrap())
}

/// A server without TLS waits for the end of the first line, which a handshake may not contain.
#[tokio::test]
async fn a_handshake_without_a_reply_is_reported() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let Some(store) = store_without_tls(&listener, Duration::from_millis(50)) else { return };
    let mut trouble = String::new();
    // At the deadline of the first call there may be no connection yet.
    while !trouble.contains("TLS: the handshake was not answered in time, as by a port without TLS") {
        let error = store.check().await.unwrap_err();
        assert!(error.is_away());
        trouble = error.to_string();
    }
}

#[tokio::test]
async fn an_answer_without_tls_is_an_error_of_the_configuration() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let Some(store) = store_without_tls(&listener, Duration::from_secs(20)) else { return };
    let server = std::thread::spawn(move || {
        let (mut client, _) = listener.accept().unwrap();
        client.write_all(b"-ERR unknown command\r\n").unwrap();
        // Closing a connection with unread data resets it before the reply arrives.
        _ = std::io::copy(&mut client, &mut std::io::sink());
    });
    let trouble = store.check().await.unwrap_err();
    assert!(!trouble.is_away() && trouble.to_string().contains("answers without TLS"), "{trouble}");
    drop(store);
    server.join().unwrap();
}
