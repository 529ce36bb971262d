//! Why a request to a registry failed.

use std::io;
use std::path::PathBuf;

use blocks::Digest;
use distribution::Inside;

use crate::{BlobError, DocumentError};

/// Why a request to a registry failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RegistryError {
    /// A certificate, a proxy or the system's set of authorities cannot be used.
    #[error("cannot set up requests to {registry}")]
    SetUp {
        /// The registry.
        registry: String,
        /// The cause.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// No response was received, after several attempts.
    #[error("{doing}: no response from {registry}")]
    NoAnswer {
        /// The operation.
        doing: &'static str,
        /// The registry.
        registry: String,
        /// The latest cause.
        source: reqwest::Error,
    },
    /// A step took too long.
    #[error("{doing}: {registry} sent nothing for {seconds} s")]
    TooSlow {
        /// The operation.
        doing: &'static str,
        /// The registry.
        registry: String,
        /// The deadline.
        seconds: u64,
    },
    /// The registry refused the request.
    #[error("{doing}: {registry} answered {status}{message}")]
    Refused {
        /// The operation.
        doing: &'static str,
        /// The registry.
        registry: String,
        /// The status of the response.
        status: u16,
        /// Its message, after a colon; empty if none.
        message: String,
    },
    /// The registry requires credentials, or does not accept them.
    #[error("{doing}: {registry} rejects these credentials: {hint}")]
    Unauthorized {
        /// The operation.
        doing: &'static str,
        /// The registry.
        registry: String,
        /// What to try.
        hint: &'static str,
    },
    /// The registry names another host for the password.
    #[error(
        "{doing}: {registry} names {host} for tokens, which is not in its domain: \
         name {host} in `token_hosts` if it may receive the password"
    )]
    Realm {
        /// The operation.
        doing: &'static str,
        /// The registry.
        registry: String,
        /// The named host.
        host: String,
    },
    /// The registry leads further inside than it is.
    #[error(
        "{doing}: {registry} redirects to an address that it must not name \
         (`redirect_networks` allows it)"
    )]
    Inside {
        /// The operation.
        doing: &'static str,
        /// The registry.
        registry: String,
        /// The refused target.
        source: Inside,
    },
    /// The response breaks the protocol.
    #[error("{doing}: {registry} sent an invalid response: {rule}")]
    Protocol {
        /// The operation.
        doing: &'static str,
        /// The registry.
        registry: String,
        /// The rule.
        rule: &'static str,
    },
    /// A manifest or an index cannot be used.
    #[error("{registry} sent an invalid document")]
    Document {
        /// The registry.
        registry: String,
        /// The error in it.
        source: Box<DocumentError>,
    },
    /// A blob does not match its name.
    #[error("the blob {digest} of {registry} does not match its digest")]
    Blob {
        /// The registry.
        registry: String,
        /// The blob.
        digest: Digest,
        /// The error.
        source: Box<BlobError>,
    },
    /// A local file cannot be read or written.
    #[error("{doing} {path}")]
    File {
        /// The operation.
        doing: &'static str,
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// It was cancelled.
    #[error("cancelled")]
    Cancelled,
}
