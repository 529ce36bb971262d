//! How the registry of an image is talked to, and as whom.

use std::fs;

use anyhow::{Context as _, anyhow};
use artifacts::{login, proxy};
use node_api::image::RegistrySpec;
use oci::Reference;
use oci::registry::{RegistryConfig, Transport, is_loopback};

/// Returns how to talk to the registry of a reference.
pub(crate) fn config(spec: &RegistrySpec, reference: &Reference) -> anyhow::Result<RegistryConfig> {
    let registry = reference.registry();
    let is_plain = spec.plain_http || (is_loopback(registry) && spec.ca.is_none());
    let authority = spec.ca.as_ref().map(|path| {
        fs::read(path).with_context(|| format!("reading the authorities in {}", path.display()))
    });
    let networks = spec.redirect_networks.iter();
    let networks = networks.map(|network| {
        let parsed = network.parse();
        parsed.map_err(|error| anyhow!("{network} is no network: {error}"))
    });
    let login = login::of_docker(registry);
    Ok(RegistryConfig {
        transport: match is_plain {
            true => Transport::Plain,
            false => Transport::Tls,
        },
        credentials: login.with_context(|| format!("looking for the login of {registry}"))?,
        token_hosts: spec.token_hosts.clone(),
        redirect_networks: networks.collect::<Result<_, _>>()?,
        authorities: authority.transpose()?.into_iter().collect(),
        proxy: proxy::proxy_for(registry),
    })
}
