//! Why a registry did not do what it was asked.

use std::io;
use std::path::PathBuf;

use blocks::Digest;
use distribution::Inside;

use crate::{BlobError, DocumentError};

/// Why a registry did not do what it was asked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RegistryError {
    /// A certificate, a proxy or the system's set of authorities cannot be used.
    #[error("cannot set up requests to {registry}")]
    SetUp {
        /// The registry.
        registry: String,
        /// What is wrong.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// No answer could be had, though it was tried more than once.
    #[error("{doing}: no response from {registry}")]
    NoAnswer {
        /// What was asked.
        doing: &'static str,
        /// The registry.
        registry: String,
        /// What went wrong last.
        source: reqwest::Error,
    },
    /// A step took too long.
    #[error("{doing}: {registry} sent nothing for {seconds} s")]
    TooSlow {
        /// What was asked.
        doing: &'static str,
        /// The registry.
        registry: String,
        /// How long was waited.
        seconds: u64,
    },
    /// The registry refused.
    #[error("{doing}: {registry} answered {status}{message}")]
    Refused {
        /// What was asked.
        doing: &'static str,
        /// The registry.
        registry: String,
        /// The status of the answer.
        status: u16,
        /// What it said, after a colon; empty if nothing.
        message: String,
    },
    /// The registry wants to know who asks, or does not like who does.
    #[error("{doing}: {registry} rejects these credentials: {hint}")]
    Unauthorized {
        /// What was asked.
        doing: &'static str,
        /// The registry.
        registry: String,
        /// What to try.
        hint: &'static str,
    },
    /// The registry wants the password to be sent to somebody else.
    #[error(
        "{doing}: {registry} names {host} for tokens, which is not in its domain: \
         name {host} in `token_hosts` if it may receive the password"
    )]
    Realm {
        /// What was asked.
        doing: &'static str,
        /// The registry.
        registry: String,
        /// Whom it names.
        host: String,
    },
    /// The registry leads further inside than it is.
    #[error(
        "{doing}: {registry} redirects to an address that it must not name \
         (`redirect_networks` allows it)"
    )]
    Inside {
        /// What was asked.
        doing: &'static str,
        /// The registry.
        registry: String,
        /// Where it leads.
        source: Inside,
    },
    /// The answer breaks the protocol.
    #[error("{doing}: {registry} sent an invalid response: {rule}")]
    Protocol {
        /// What was asked.
        doing: &'static str,
        /// The registry.
        registry: String,
        /// Which rule.
        rule: &'static str,
    },
    /// A manifest or an index cannot be used.
    #[error("{registry} sent an invalid document")]
    Document {
        /// The registry.
        registry: String,
        /// What is wrong with it.
        source: Box<DocumentError>,
    },
    /// A blob is not what its name says.
    #[error("the blob {digest} of {registry} does not match its digest")]
    Blob {
        /// The registry.
        registry: String,
        /// Which blob.
        digest: Digest,
        /// What is wrong with it.
        source: Box<BlobError>,
    },
    /// A local file cannot be read or written.
    #[error("{doing} {path}")]
    File {
        /// What was done.
        doing: &'static str,
        /// Which file.
        path: PathBuf,
        /// Why it failed.
        source: io::Error,
    },
    /// Somebody wanted it to stop.
    #[error("cancelled")]
    Cancelled,
}
