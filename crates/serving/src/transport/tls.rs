//! TLS 1.3 with certificates on both sides. The name in a client's certificate is its identity.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use tokio::net::TcpStream;
use tokio_rustls::{TlsAcceptor, TlsConnector};

use super::{Connected, Peer, PeerAddress, Stream};

/// The files of one side: its certificate, its key, and the authority that it trusts. All are PEM.
#[derive(Clone, Debug)]
pub struct TlsFiles {
    /// The certificate, and those between it and the authority.
    pub certificate: PathBuf,
    /// Its key.
    pub key: PathBuf,
    /// The authority that must have signed the other side's.
    pub authority: PathBuf,
}

/// Why TLS cannot be set up.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TlsError {
    /// A file cannot be read, or has the wrong content.
    #[error("cannot use {path}: {why}")]
    File {
        /// The file.
        path: PathBuf,
        /// The cause.
        why: String,
    },
    /// The certificate and the key do not match.
    #[error("the certificate or the key cannot be used")]
    Unusable(#[from] rustls::Error),
    /// The authority cannot be used.
    #[error("the authority cannot be used")]
    Authority(#[from] rustls::server::VerifierBuilderError),
}

/// A client's side of TLS.
#[derive(Clone)]
pub struct TlsClient(TlsConnector);

/// A service's side of TLS.
#[derive(Clone)]
pub struct TlsServer(TlsAcceptor);

impl std::fmt::Debug for TlsClient {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("TlsClient")
    }
}

impl std::fmt::Debug for TlsServer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("TlsServer")
    }
}

impl TlsClient {
    /// Reads a client's certificate, key and authority.
    ///
    /// # Errors
    /// If one of them cannot be used.
    pub fn open(files: &TlsFiles) -> Result<Self, TlsError> {
        let read = Read::of(files)?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])?
            .with_root_certificates(read.authority)
            .with_client_auth_cert(read.chain, read.key)?;
        Ok(Self(TlsConnector::from(Arc::new(config))))
    }

    pub(super) async fn connect(
        &self,
        address: &str,
        stream: TcpStream,
    ) -> io::Result<Box<dyn Stream>> {
        let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
        let host = host
            .trim_start_matches('[')
            .trim_end_matches(']')
            .to_owned();
        let name = ServerName::try_from(host).map_err(io::Error::other)?;
        Ok(Box::new(self.0.connect(name, stream).await?))
    }
}

impl TlsServer {
    /// Reads a service's certificate, key, and the authority of its clients.
    ///
    /// # Errors
    /// If one of them cannot be used.
    pub fn open(files: &TlsFiles) -> Result<Self, TlsError> {
        let read = Read::of(files)?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let authority = Arc::new(read.authority);
        let verifier =
            WebPkiClientVerifier::builder_with_provider(authority, Arc::clone(&provider))
                .build()?;
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])?
            .with_client_cert_verifier(verifier)
            .with_single_cert(read.chain, read.key)?;
        // A session that is resumed is of a certificate that was valid once: nobody looks at it again, and each
        // resumption gives the next one.
        config.send_tls13_tickets = 0;
        config.session_storage = Arc::new(NoServerSessionStorage {});
        Ok(Self(TlsAcceptor::from(Arc::new(config))))
    }

    pub(super) async fn accept(
        &self,
        stream: TcpStream,
        link: PeerAddress,
    ) -> io::Result<Connected> {
        let stream = self.0.accept(stream).await?;
        let certificates = stream.get_ref().1.peer_certificates();
        let certified = certificates.and_then(|all| dns_name(all.first()?));
        if certified.is_none() {
            let why = "a client's certificate has no DNS name: nobody knows who it is";
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
        }
        Ok(Connected {
            stream: Box::new(stream),
            peer: Peer { certified, link },
        })
    }
}

fn dns_name(certificate: &CertificateDer<'_>) -> Option<Vec<u8>> {
    let certificate = webpki::EndEntityCert::try_from(certificate).ok()?;
    let name = certificate.valid_dns_names().next()?;
    Some(name.as_bytes().to_vec())
}

/// What is in the files.
struct Read {
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
    authority: RootCertStore,
}

impl Read {
    fn of(files: &TlsFiles) -> Result<Self, TlsError> {
        let mut authority = RootCertStore::empty();
        for certificate in certificates(&files.authority)? {
            authority.add(certificate)?;
        }
        let key = PrivateKeyDer::from_pem_file(&files.key).map_err(|why| at(&files.key, &why))?;
        Ok(Self {
            chain: certificates(&files.certificate)?,
            key,
            authority,
        })
    }
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let all = CertificateDer::pem_file_iter(path).map_err(|why| at(path, &why))?;
    all.collect::<Result<_, _>>().map_err(|why| at(path, &why))
}

fn at(path: &Path, why: &dyn std::fmt::Display) -> TlsError {
    TlsError::File {
        path: path.to_owned(),
        why: why.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

    use rustls::SignatureScheme;
    use rustls::client::ResolvesClientCert;
    use rustls::sign::CertifiedKey;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;

    use super::*;

    /// Makes an authority and a certificate of it, which serves as the client's and as the service's.
    fn files(dir: &Path) -> TlsFiles {
        testkit::certificates::make(dir, "DNS:vm,IP:127.0.0.1");
        TlsFiles {
            certificate: dir.join("certificate"),
            key: dir.join("key"),
            authority: dir.join("authority"),
        }
    }

    /// A certificate that a client has, until it has none any more.
    #[derive(Debug)]
    struct Wallet {
        certified: Arc<CertifiedKey>,
        has_it: AtomicBool,
    }

    impl ResolvesClientCert for Wallet {
        fn resolve(&self, _: &[&[u8]], _: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
            let has_it = self.has_it.load(Relaxed);
            has_it.then(|| Arc::clone(&self.certified))
        }

        fn has_certs(&self) -> bool {
            true
        }
    }

    /// Connects, and returns who the service takes the client for.
    async fn visit(server: &TlsServer, client: &TlsConnector) -> io::Result<Option<Vec<u8>>> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let accept = async {
            let (stream, _) = listener.accept().await?;
            let mut connected = server.accept(stream, PeerAddress::Unknown).await?;
            connected.stream.write_all(b"x").await?;
            io::Result::Ok(connected.peer.certified)
        };
        let connect = async {
            let name = ServerName::try_from("127.0.0.1").map_err(io::Error::other)?;
            let stream = TcpStream::connect(address).await?;
            let mut stream = client.connect(name, stream).await?;
            // With it come the tickets, if there are any.
            stream.read_u8().await
        };
        let (certified, _came) = tokio::join!(accept, connect);
        certified
    }

    /// As one whose certificate has run out, or was taken from it.
    #[tokio::test]
    async fn who_had_a_certificate_once_does_not_come_back_without_it() {
        let dir = tempfile::tempdir().unwrap();
        let files = files(dir.path());
        let server = TlsServer::open(&files).unwrap();
        let read = Read::of(&files).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let certified = CertifiedKey::from_der(read.chain, read.key, &provider).unwrap();
        let wallet = Arc::new(Wallet {
            certified: Arc::new(certified),
            has_it: AtomicBool::new(true),
        });
        let client = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])
            .unwrap()
            .with_root_certificates(read.authority)
            .with_client_cert_resolver(Arc::clone(&wallet) as Arc<_>);
        let client = TlsConnector::from(Arc::new(client));
        for _ in 0..2 {
            let who = visit(&server, &client).await.unwrap();
            assert_eq!(who.as_deref(), Some(&b"vm"[..]));
        }
        wallet.has_it.store(false, Relaxed);
        for _ in 0..2 {
            let who = visit(&server, &client).await;
            assert!(who.is_err(), "{who:?}");
        }
    }
}
