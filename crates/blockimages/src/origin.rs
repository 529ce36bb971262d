//! Where blobs come from that are not on this machine.

use std::io;
use std::ops::Range;
use std::time::{Duration, Instant};

use blocks::Digest;
use oci::registry::{Access, RegistryConfig, RegistryError, Repository};
use oci::{ParseReferenceError, Reference};

/// The origin of a blob, from which ranges are read.
///
/// The data may be wrong: callers verify it as far as possible.
pub trait Origin: Send + Sync {
    /// Returns the bytes of a range, all of them, before the deadline.
    ///
    /// # Errors
    /// If it cannot be reached, refuses, or does not respond in time.
    fn fetch(&self, range: Range<u64>, deadline: Instant) -> io::Result<Vec<u8>>;
}

/// A blob in a registry.
#[derive(Debug)]
pub struct RegistryOrigin {
    repository: Repository,
    digest: Digest,
}

/// Finds the repository in the address of its blobs, as overlaybd's configuration has it:
/// `https://registry/v2/repository/blobs`.
///
/// # Errors
/// If it is no such address.
pub fn repository_of(blob_url: &str) -> Result<Reference, ParseReferenceError> {
    let url = blob_url.trim_end_matches('/');
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    let (host, path) = rest.split_once('/').unwrap_or((rest, ""));
    let path = path.strip_prefix("v2/").unwrap_or(path);
    let name = path.strip_suffix("/blobs").unwrap_or(path);
    format!("{host}/{name}:latest").parse()
}

impl RegistryOrigin {
    /// Returns the origin of a blob. Nothing is requested yet.
    ///
    /// # Errors
    /// If the registry's certificate or proxy cannot be used.
    pub fn new(
        reference: &Reference,
        digest: Digest,
        config: &RegistryConfig,
    ) -> Result<Self, RegistryError> {
        let repository = Repository::open(reference, Access::Pull, config)?;
        Ok(Self { repository, digest })
    }
}

impl Origin for RegistryOrigin {
    fn fetch(&self, range: Range<u64>, deadline: Instant) -> io::Result<Vec<u8>> {
        let mut watch = |_| match deadline.saturating_duration_since(Instant::now()) {
            Duration::ZERO => std::ops::ControlFlow::Break(()),
            _ => std::ops::ControlFlow::Continue(()),
        };
        let fetched = self.repository.blob_range(self.digest, range, &mut watch);
        fetched.map_err(|error| match error {
            RegistryError::Cancelled => io::ErrorKind::TimedOut.into(),
            error => io::Error::other(error),
        })
    }
}
