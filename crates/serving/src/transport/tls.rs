//! TLS 1.3 with certificates on both sides. The name in a client's certificate is its identity.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::server::WebPkiClientVerifier;
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
        let config = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])?
            .with_client_cert_verifier(verifier)
            .with_single_cert(read.chain, read.key)?;
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
