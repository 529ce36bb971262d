//! Where blobs come from that are not on this machine.

use std::collections::HashMap;
use std::sync::Arc;

use blocks::Digest;
use oci::registry::{RegistryClient, RegistryConfig, RegistryError, blob_url, pull_scope};
use oci::{ParseReferenceError, Reference};
use parking_lot::Mutex;
use ranges::{Logins, Place, RegistryPlace};

/// The origin of a blob: servers from which ranges of it are read, each for what those before it do not bring.
///
/// The data may be wrong: readers verify it as far as possible.
pub struct Origin {
    /// What the servers are called. Blobs whose servers have the same names share windows and measurements.
    pub servers: Vec<String>,
    /// Where the blob is at each of them.
    pub places: Vec<Arc<dyn Place>>,
}

impl Origin {
    /// Returns what the registry is called: the last server, for which mirrors before it speak.
    pub(crate) fn registry(&self) -> &str {
        self.servers.last().map_or("", String::as_str)
    }
}

impl std::fmt::Debug for Origin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Origin")
            .field("servers", &self.servers)
            .finish_non_exhaustive()
    }
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

/// How the blobs of a registry are fetched.
#[derive(Clone, Debug, Default)]
pub struct OriginConfig {
    /// How the registry is talked to.
    pub registry: RegistryConfig,
    /// Who knows the login when that of `registry` is refused, and what is missing.
    pub logins: Option<Arc<dyn Logins>>,
    /// The addresses of mirrors of it (`http://10.0.0.1:5050`), each asked before all that follow, and all of them
    /// before the registry. They are sent no password.
    pub mirrors: Vec<String>,
}

/// The connections to registries, which blobs of one registry share.
#[derive(Debug, Default)]
pub struct Registries {
    clients: Mutex<HashMap<String, Arc<RegistryClient>>>,
}

impl Registries {
    /// Returns the origin of a blob. Nothing is requested yet.
    ///
    /// # Errors
    /// If the registry's certificate or proxy cannot be used.
    pub fn origin(
        &self,
        reference: &Reference,
        digest: Digest,
        config: &OriginConfig,
    ) -> Result<Origin, RegistryError> {
        let mut origin = Origin {
            servers: Vec::new(),
            places: Vec::new(),
        };
        let anonymous = RegistryConfig {
            credentials: None,
            ..config.registry.clone()
        };
        let mirrors = config.mirrors.iter();
        let mirrors = mirrors.map(|mirror| mirror.trim_end_matches('/').to_owned());
        let named = mirrors.map(|mirror| (mirror, &anonymous, Some(reference.registry())));
        let own = (config.registry.address(reference), &config.registry, None);
        let logins = &config.logins;
        for (address, config, registry) in named.chain([own]) {
            let url = blob_url(&address, reference, digest);
            let mut url = url.ok_or_else(|| RegistryError::Protocol {
                doing: "making the URL of a blob",
                registry: address.clone(),
                rule: "its address is no URL",
            })?;
            if let Some(registry) = registry {
                url.query_pairs_mut().append_pair("ns", registry);
            }
            let client = self.client(&address, config)?;
            let login = config.credentials.clone();
            let place = RegistryPlace::new(client, url, pull_scope(reference), login);
            let place = match logins {
                Some(logins) if registry.is_none() => place.with_logins(Arc::clone(logins)),
                _ => place,
            };
            origin.places.push(Arc::new(place));
            origin.servers.push(address);
        }
        Ok(origin)
    }

    fn client(
        &self,
        address: &str,
        config: &RegistryConfig,
    ) -> Result<Arc<RegistryClient>, RegistryError> {
        let mut clients = self.clients.lock();
        if let Some(client) = clients.get(address) {
            return Ok(Arc::clone(client));
        }
        let client = config.client(address)?;
        clients.insert(address.to_owned(), Arc::clone(&client));
        Ok(client)
    }
}
