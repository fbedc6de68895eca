//! Encrypted connections, with the feature `tls`.

#[cfg(feature = "tls")]
pub use with_tls::Tls;
#[cfg(feature = "tls")]
pub(crate) use with_tls::{Connector, failure};
#[cfg(not(feature = "tls"))]
pub(crate) use without_tls::Connector;

#[cfg(feature = "tls")]
mod with_tls {
    use std::fmt;
    use std::io;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tokio::net::TcpStream;
    use tokio_rustls::TlsConnector;
    use tokio_rustls::rustls::crypto::ring;
    use tokio_rustls::rustls::pki_types::pem::PemObject;
    use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
    use tokio_rustls::rustls::{self, AlertDescription, CertificateError, ClientConfig, RootCertStore};

    use crate::connection::failure::Failure;
    use crate::counted::Counted;
    use crate::error::OpenError;

    type Stream = tokio_rustls::client::TlsStream<TcpStream>;

    /// The certificates of encrypted connections (`rediss://`), in PEM.
    ///
    /// By default, a server is trusted by the system's certificates, or by those of the file that
    /// the environment variable `SSL_CERT_FILE` names, and the client presents no certificate. The
    /// name in the address must be one of the server's certificate. This check cannot be disabled.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// use tidegate_redis::{Store, Tls};
    ///
    /// # fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// let tls = Tls::new()
    ///     .ca(std::fs::read("ca.pem")?)
    ///     .client_certificate(std::fs::read("client.pem")?, std::fs::read("client-key.pem")?);
    /// let store = Store::builder("rediss://user:password@redis.example.org").tls(tls).open()?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// For a store that a configuration names:
    ///
    /// ```no_run
    /// use tidegate::AnyLimiter;
    /// use tidegate_redis::{LimiterConfig, Tls};
    ///
    /// # fn example(config: LimiterConfig) -> Result<AnyLimiter, Box<dyn std::error::Error>> {
    /// let tls = Tls::new().ca(std::fs::read("ca.pem")?);
    /// let limiter = match config.store_builder() {
    ///     Some(store) => config.build_over(&store.tls(tls).open()?)?,
    ///     None => config.build()?,
    /// };
    /// # Ok(limiter)
    /// # }
    /// ```
    #[derive(Clone, Default)]
    #[must_use = "certificates do nothing until a store is opened with them"]
    pub struct Tls {
        ca: Option<Vec<u8>>,
        client: Option<(Vec<u8>, Vec<u8>)>,
    }

    impl Tls {
        /// Creates settings with the certificates of the system, and no client certificate.
        pub fn new() -> Tls {
            Tls::default()
        }

        /// Sets the certificates by which servers are trusted, instead of the system's.
        pub fn ca(self, pem: impl Into<Vec<u8>>) -> Tls {
            Tls { ca: Some(pem.into()), ..self }
        }

        /// Sets the client certificate, with its chain, and the private key.
        pub fn client_certificate(self, chain: impl Into<Vec<u8>>, key: impl Into<Vec<u8>>) -> Tls {
            Tls { client: Some((chain.into(), key.into())), ..self }
        }
    }

    impl fmt::Debug for Tls {
        /// Omits the certificates and the key.
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.debug_struct("Tls")
                .field("has_ca", &self.ca.is_some())
                .field("has_client_certificate", &self.client.is_some())
                .finish()
        }
    }

    /// Encrypts connections. Clones belong to one store.
    #[derive(Clone)]
    pub(crate) struct Connector {
        tls: TlsConnector,
        /// The number of handshakes in progress.
        handshakes: Arc<AtomicUsize>,
    }

    impl Connector {
        /// Reads the certificates, once for all connections.
        pub(crate) fn new(tls: &Tls) -> Result<Connector, OpenError> {
            let bad = |why| OpenError::Certificate { why };
            let certificates = |pem: &[u8], why| {
                let read: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
                read.ok().filter(|read| !read.is_empty()).ok_or(bad(why))
            };
            let mut roots = RootCertStore::empty();
            match &tls.ca {
                Some(pem) => {
                    for certificate in certificates(pem, "the ca has no certificates in PEM")? {
                        let added = roots.add(certificate);
                        added.map_err(|_| bad("a certificate of the ca is none of an authority"))?;
                    }
                }
                None => _ = roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs),
            }
            if roots.is_empty() {
                return Err(bad("the system has no certificate to trust a server by: set a ca"));
            }
            // The program's choice of a cryptography provider is left unchanged.
            let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()));
            let builder = builder.with_safe_default_protocol_versions();
            let builder =
                builder.map_err(|_| bad("no version of TLS can be used"))?.with_root_certificates(roots);
            let config = match &tls.client {
                Some((chain, key)) => {
                    let key = PrivateKeyDer::from_pem_slice(key);
                    let key = key.map_err(|_| bad("the client's key is no private key in PEM"))?;
                    let chain = certificates(chain, "the client's chain has no certificates in PEM")?;
                    builder.with_client_auth_cert(chain, key)
                }
                None => Ok(builder.with_no_client_auth()),
            };
            let config = config.map_err(|_| bad("the client's key is not that of its certificate"))?;
            Ok(Connector { tls: TlsConnector::from(Arc::new(config)), handshakes: Arc::default() })
        }

        pub(crate) async fn connect(&self, host: &str, stream: TcpStream) -> Result<Stream, Failure> {
            let name = ServerName::try_from(host.to_owned());
            let name = name.map_err(|_| Failure::Misconfigured("TLS: not a name of a server".into()))?;
            let _handshake = Counted::new(&*self.handshakes);
            self.tls.connect(name, stream).await.map_err(|error| {
                failure(&error).unwrap_or_else(|| Failure::NotRun("TLS: the handshake failed".into()))
            })
        }

        /// Returns whether a server has not completed a handshake yet.
        pub(crate) fn is_in_handshake(&self) -> bool {
            self.handshakes.load(Ordering::Relaxed) > 0
        }
    }

    /// What an error of an encrypted connection says about its configuration. The text of the
    /// library may contain names.
    pub(crate) fn failure(error: &io::Error) -> Option<Failure> {
        let error = error.get_ref()?.downcast_ref::<rustls::Error>()?;
        let text = match error {
            rustls::Error::InvalidCertificate(why) => match why {
                CertificateError::UnknownIssuer => {
                    "TLS: the issuer of the server's certificate is not trusted"
                }
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
                    "TLS: the server's certificate is not for the host of the address"
                }
                CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
                    "TLS: the server's certificate has expired"
                }
                _ => "TLS: the server's certificate is not valid",
            },
            // The server, or a proxy, is in trouble itself.
            rustls::Error::AlertReceived(
                AlertDescription::InternalError | AlertDescription::UserCanceled,
            ) => {
                return None;
            }
            rustls::Error::AlertReceived(_) => "TLS: the server refused the connection",
            rustls::Error::InvalidMessage(_) => "TLS: the server answers without TLS",
            _ => return None,
        };
        Some(Failure::Misconfigured(text.into()))
    }
}

#[cfg(not(feature = "tls"))]
mod without_tls {
    use tokio::net::TcpStream;

    use crate::connection::failure::Failure;

    /// Without the feature, no connector exists.
    #[derive(Clone)]
    pub(crate) enum Connector {}

    impl Connector {
        pub(crate) async fn connect(&self, _: &str, _: TcpStream) -> Result<TcpStream, Failure> {
            match *self {}
        }

        pub(crate) fn is_in_handshake(&self) -> bool {
            match *self {}
        }
    }
}
