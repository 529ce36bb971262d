//! How the registry of an image is talked to, and as whom.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context as _, anyhow};
use artifacts::login::FoundLogin;
use artifacts::{login, proxy};
use blockimages::{Asker, Logins, OriginConfig};
use node_api::image::RegistrySpec;
use oci::Reference;
use oci::registry::{Known, RegistryConfig, Transport, is_loopback};

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
    let logins = FileLogins {
        registry: registry.to_owned(),
        file: spec.login.clone(),
    };
    let credentials = logins.read()?.login;
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
        logins: Some(Arc::new(logins)),
        mirrors: Vec::new(),
    })
}

/// The login of a registry in a file.
#[derive(Debug)]
struct FileLogins {
    registry: String,
    file: Option<PathBuf>,
}

impl FileLogins {
    fn read(&self) -> anyhow::Result<Asker> {
        let registry = &self.registry;
        let found = login::look_up(registry, self.file.as_deref());
        let found = found.with_context(|| format!("looking for the login of {registry}"))?;
        Ok(asker_of(found, registry))
    }
}

impl Logins for FileLogins {
    fn now(&self) -> Asker {
        self.read().unwrap_or_else(|error| Asker {
            login: None,
            advice: format!("{error:#}"),
        })
    }
}

fn asker_of(found: FoundLogin, registry: &str) -> Asker {
    let file = found.file.map(|file| file.display().to_string());
    let file = file.unwrap_or_else(|| "any file (its user has no home)".to_owned());
    match found.known {
        Known::Here(login) => {
            let user = &login.username;
            let advice = format!(
                "the login of {user} at {registry} in {file} is not accepted: renew it with docker login"
            );
            Asker {
                login: Some(login),
                advice,
            }
        }
        // A worker executes no program: the kernel would end it.
        Known::Helper { name, .. } => {
            let advice = format!(
                "the login of {registry} is kept by docker-credential-{name}, as {file} says, which is not asked here: \
                 put the login itself into that file"
            );
            Asker {
                login: None,
                advice,
            }
        }
        Known::Nowhere => {
            let advice = format!(
                "no login of {registry} is in {file}: put it there with docker login; that of a pull is not passed on"
            );
            Asker {
                login: None,
                advice,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use oci::registry::Credentials;

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
            let Asker { login, advice } = asker_of(FoundLogin { file, known }, "r.io");
            assert_eq!(login.is_some(), uses);
            assert!(
                advice.contains(says) && !advice.contains("hidden"),
                "{advice}"
            );
        }
    }
}
