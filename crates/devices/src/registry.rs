//! How the registry of an image is talked to, and as whom.

use std::fs;

use anyhow::{Context as _, anyhow};
use artifacts::login::FoundLogin;
use artifacts::{login, proxy};
use blockimages::OriginConfig;
use node_api::image::RegistrySpec;
use oci::Reference;
use oci::registry::{Credentials, Known, RegistryConfig, Transport, is_loopback};

/// Returns how to talk to the registry of a reference, without mirrors.
pub(crate) fn config(spec: &RegistrySpec, reference: &Reference) -> anyhow::Result<OriginConfig> {
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
    let found = login::look_up(registry, spec.login.as_deref());
    let found = found.with_context(|| format!("looking for the login of {registry}"))?;
    let (credentials, advice) = login_of(found, registry);
    let registry = RegistryConfig {
        transport: match is_plain {
            true => Transport::Plain,
            false => Transport::Tls,
        },
        credentials,
        token_hosts: spec.token_hosts.clone(),
        redirect_networks: networks.collect::<Result<_, _>>()?,
        authorities: authority.transpose()?.into_iter().collect(),
        proxy: proxy::proxy_for(registry),
    };
    Ok(OriginConfig {
        registry,
        advice: Some(advice),
        mirrors: Vec::new(),
    })
}

/// Returns the login to use, and what to do if the registry does not let us in.
fn login_of(found: FoundLogin, registry: &str) -> (Option<Credentials>, String) {
    let file = found.file.map(|file| file.display().to_string());
    let file = file.unwrap_or_else(|| "any file (its user has no home)".to_owned());
    match found.known {
        Known::Here(login) => {
            let user = &login.username;
            let advice = format!(
                "the login of {user} at {registry} in {file} is not accepted: renew it with docker login"
            );
            (Some(login), advice)
        }
        // A worker executes no program: the kernel would end it.
        Known::Helper { name, .. } => {
            let advice = format!(
                "the login of {registry} is kept by docker-credential-{name}, as {file} says, which is not asked here: \
                 put the login itself into that file"
            );
            (None, advice)
        }
        Known::Nowhere => {
            let advice = format!(
                "no login of {registry} is in {file}: put it there with docker login; that of a pull is not passed on"
            );
            (None, advice)
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    #[test]
    fn who_is_not_let_in_is_told_which_login_is_missing() {
        let login = Credentials {
            username: "me".to_owned(),
            password: "hidden".to_owned(),
        };
        let helper = Known::Helper {
            name: "pass".to_owned(),
            server: "r.io".to_owned(),
        };
        for (known, uses, says) in [
            (
                Known::Here(login),
                true,
                "the login of me at r.io in /logins",
            ),
            (helper, false, "docker-credential-pass"),
            (Known::Nowhere, false, "no login of r.io is in /logins"),
        ] {
            let file = Some(PathBuf::from("/logins"));
            let (login, advice) = login_of(FoundLogin { file, known }, "r.io");
            assert_eq!(login.is_some(), uses);
            assert!(
                advice.contains(says) && !advice.contains("hidden"),
                "{advice}"
            );
        }
    }
}
