//! Encrypted connections, with certificates that a test makes.

use std::path::Path;
use std::process::{Command, Stdio};

use tidegate_redis::{OpenError, Store, StoreError, Tls};

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
}

fn is_openssl_there() -> bool {
    let status = Command::new("openssl").arg("version").stdout(Stdio::null()).status();
    is_installed("openssl") || status.is_ok_and(|status| status.success())
}

#[tokio::test]
async fn connections_are_encrypted() {
    let Some(certificates) = Certificates::new() else { return };
    let port = free_port().to_string();
    let (cert, key, ca) =
        (certificates.path("server.pem"), certificates.path("server.key"), certificates.path("ca.pem"));
    let args = [
        ["--tls-port", &port],
        ["--tls-cert-file", &cert],
        ["--tls-key-file", &key],
        ["--tls-ca-cert-file", &ca],
        ["--requirepass", "of-servers"],
    ];
    let Some(server) = Server::start_with(0, args.as_flattened()) else { return };
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
        let builder = Store::builder(at(host)).tls(tls).timeout(std::time::Duration::from_secs(20));
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
        // The name is none of the certificate.
        ("localhost", with_client("client"), "not for the host"),
    ] {
        let trouble = wrong(host, tls).await;
        assert!(trouble.to_string().contains(says), "{trouble}");
    }
    // Without a certificate of the client, where the server wants none.
    server.tell("CONFIG SET tls-auth-clients no");
    let (store, limiter) = load::open(load::patient(at("127.0.0.1")).tls(ours.clone()));
    store.check().await.unwrap();
    assert_eq!(load::ask(&limiter).await.granted, 1);

    for tls in [
        Tls::new().ca("no certificate"),
        Tls::new().ca(certificates.pem("ca.key")),
        ours.clone().client_certificate(certificates.pem("client.pem"), certificates.pem("client.pem")),
        // A key of another certificate.
        ours.clone().client_certificate(certificates.pem("client.pem"), certificates.pem("server.key")),
    ] {
        let opened = Store::builder(at("127.0.0.1")).tls(tls).open();
        assert!(matches!(opened, Err(OpenError::Certificate)), "{opened:?}");
    }
    // Certificates say that the connection is to be encrypted.
    let plain = Store::builder("redis://127.0.0.1").tls(ours.clone()).open();
    assert!(matches!(plain, Err(OpenError::Address)));
    let shown = format!("{:?} {:?}", with_client("client"), Store::builder(at("127.0.0.1")).tls(ours));
    assert!(!shown.contains("127.0.0.1") && !shown.contains("BEGIN") && !shown.contains("[45,"), "{shown}");
}
