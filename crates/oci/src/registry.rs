//! Registries: manifests, blobs and referrers of a repository, over HTTP.
//!
//! A [`Repository`] is synchronous: every call waits for its response, with a deadline for each
//! step and a watch that can cancel it. Temporary errors are retried, a few times and
//! with increasing delays. A registry is not trusted: its data is bounded before it is stored, and
//! verified by digest before it is returned.

mod blobs;
mod docker_config;
mod error;
mod http;
mod manifests;
mod pulls;
mod referrers;

pub use distribution::{Login as Credentials, Network};
pub use docker_config::{DockerConfig, Known, helper_answer};
pub use error::RegistryError;
pub use manifests::{FoundImage, FoundManifest, Target};
pub use pulls::PulledBlob;
pub use referrers::{Linked, PushedManifest};

use std::sync::Arc;

use blocks::Digest;
use distribution::Client;
use reqwest::Url;

use crate::Reference;
use http::Http;

/// How to talk to a registry.
#[derive(Clone, Debug, Default)]
pub struct RegistryConfig {
    /// With or without TLS.
    pub transport: Transport,
    /// Credentials; anonymous without them.
    pub credentials: Option<Credentials>,
    /// Hosts that may receive the password and issue tokens, besides those of the registry's domain.
    pub token_hosts: Vec<String>,
    /// Networks that it may lead to, though they are further inside than it is itself.
    pub redirect_networks: Vec<Network>,
    /// Certificates (PEM) of authorities to trust besides the system's.
    pub authorities: Vec<Vec<u8>>,
    /// The proxy for requests with TLS, as a URL.
    pub proxy: Option<String>,
}

/// Whether requests are encrypted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Transport {
    /// They are, and the registry shows a certificate.
    #[default]
    Tls,
    /// They are not: for registries on this machine, or in a network that is trusted.
    Plain,
}

/// What one needs to do in a repository.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Reading.
    Pull,
    /// Reading and writing.
    Push,
}

/// Requests to a registry, for who sends them in a way of his own.
pub type RegistryClient = Client;

impl RegistryConfig {
    /// Returns who sends requests to the registry at an address (`https://host`). Sends no request yet.
    ///
    /// # Errors
    /// If an authority's certificate or the proxy cannot be used.
    pub fn client(&self, address: &str) -> Result<Arc<RegistryClient>, RegistryError> {
        http::client(address, self).map(Arc::new)
    }

    /// Returns the address of the registry of a reference: `https://host`.
    #[must_use]
    pub fn address(&self, reference: &Reference) -> String {
        // The Hub's registry has another name than the Hub.
        let host = match reference.registry() {
            "docker.io" => "registry-1.docker.io",
            host => host,
        };
        match self.transport {
            Transport::Tls => format!("https://{host}"),
            Transport::Plain => format!("http://{host}"),
        }
    }
}

/// Returns the URL of a blob of a repository at an address; `None` if the address is no URL.
#[must_use]
pub fn blob_url(address: &str, reference: &Reference, digest: Digest) -> Option<Url> {
    let name = reference.repository();
    Url::parse(&format!("{address}/v2/{name}/blobs/{digest}")).ok()
}

/// Returns what a token has to be good for to read a repository.
#[must_use]
pub fn pull_scope(reference: &Reference) -> String {
    format!("repository:{}:pull", reference.repository())
}

/// One repository of a registry.
#[derive(Debug)]
pub struct Repository {
    http: Http,
    /// Where its requests go: `https://host/v2/name`.
    base: String,
}

impl Repository {
    /// Returns the repository of a reference. Sends no request yet.
    ///
    /// # Errors
    /// If an authority's certificate or the proxy cannot be used.
    pub fn open(
        reference: &Reference,
        access: Access,
        config: &RegistryConfig,
    ) -> Result<Self, RegistryError> {
        Self::open_beside(reference, access, &[], config)
    }

    /// Returns the repository of a reference, which takes blobs of `others` of the registry, too
    /// ([`mount_blob`](Self::mount_blob)). Sends no request yet.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn open_beside(
        reference: &Reference,
        access: Access,
        others: &[&str],
        config: &RegistryConfig,
    ) -> Result<Self, RegistryError> {
        let address = config.address(reference);
        let name = reference.repository();
        let actions = match access {
            Access::Pull => "pull",
            Access::Push => "pull,push",
        };
        let mut scope = format!("repository:{name}:{actions}");
        for other in others.iter().filter(|other| **other != name) {
            scope += &format!(" repository:{other}:pull");
        }
        Ok(Self {
            http: Http::new(&address, scope, config)?,
            base: format!("{address}/v2/{name}"),
        })
    }
}

/// Returns whether a registry (`localhost:5000`, `127.0.0.1`, `[::1]:80`) is on this machine, where
/// connections cannot be intercepted.
#[must_use]
pub fn is_loopback(registry: &str) -> bool {
    let host = match registry.rsplit_once(':') {
        Some((host, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => host,
        _ => registry,
    };
    let address = host.trim_start_matches('[').trim_end_matches(']');
    let address = address.parse::<std::net::IpAddr>();
    host == "localhost" || address.is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_is_told_by_name_and_address() {
        for here in [
            "localhost",
            "localhost:5000",
            "127.0.0.1",
            "127.9.9.9:1",
            "[::1]",
            "[::1]:80",
        ] {
            assert!(is_loopback(here), "{here}");
        }
        for there in [
            "docker.io",
            "10.0.0.1:5000",
            "localhost.example.com",
            "[::2]:80",
            "127.evil.io",
        ] {
            assert!(!is_loopback(there), "{there}");
        }
    }
}
