//! Which registry, and who asks: the flags, what `docker login` left, and the environment.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::{self, Read as _};
use std::path::PathBuf;

use anyhow::{Context as _, ensure};
use artifacts::{login, proxy};
use node_api::image::RegistrySpec;
use oci::Reference;
use oci::registry::{Credentials, Network, RegistryConfig, Transport, is_loopback};

/// Bytes of a password.
const SECRET_MAX: u64 = 64 << 10;

/// The flags of the commands that talk to a registry.
#[derive(Clone, Debug, Default, clap::Args)]
#[command(next_help_heading = "Registry")]
pub(crate) struct RegistryArgs {
    /// Use plain HTTP; the default for registries on the loopback address, unless --ca is given
    #[arg(long, conflicts_with = "ca")]
    plain_http: bool,
    /// Trust the authorities in this file (PEM), besides the system's
    #[arg(long, value_name = "FILE")]
    ca: Option<PathBuf>,
    /// User name [default: as stored by docker login]
    #[arg(long, value_name = "NAME", requires = "password_stdin")]
    username: Option<String>,
    /// Read the password from standard input
    #[arg(long, requires = "username")]
    password_stdin: bool,
    /// Also send the password to this host, if the registry names it for tokens;
    /// hosts of the registry's own domain need not be named
    #[arg(long, value_name = "HOST")]
    token_host: Vec<String>,
    /// Follow redirects of the registry into this network (10.2.0.0/16), though it is further inside than
    /// the registry itself
    #[arg(long, value_name = "NETWORK")]
    redirect_network: Vec<Network>,
}

impl RegistryArgs {
    /// Returns how to talk to the registry of a reference, and as whom. It may start a program that knows
    /// the login: who confines itself asks before.
    ///
    /// # Errors
    /// If the flags or what `docker login` left cannot be used.
    pub(crate) fn config(&self, reference: &Reference) -> anyhow::Result<RegistryConfig> {
        let registry = reference.registry();
        let plain = self.plain_http || (is_loopback(registry) && self.ca.is_none());
        let authority = self.ca.as_ref().map(|path| {
            fs::read(path).with_context(|| format!("reading the authorities in {}", path.display()))
        });
        Ok(RegistryConfig {
            transport: if plain {
                Transport::Plain
            } else {
                Transport::Tls
            },
            credentials: self.credentials(registry)?,
            token_hosts: self.token_host.clone(),
            redirect_networks: self.redirect_network.clone(),
            authorities: authority.transpose()?.into_iter().collect(),
            proxy: proxy::proxy_for(registry),
        })
    }

    /// Returns the same for the node, which finds a login as `docker login` left it.
    ///
    /// # Errors
    /// If a password is to be read from standard input.
    pub(crate) fn spec(&self) -> anyhow::Result<RegistrySpec> {
        ensure!(
            self.username.is_none(),
            "the node keeps no passwords: run `docker login` as its user instead of giving --username"
        );
        let networks = self.redirect_network.iter();
        Ok(RegistrySpec {
            plain_http: self.plain_http,
            ca: self.ca.as_deref().map(std::path::absolute).transpose()?,
            login: None,
            token_hosts: self.token_host.clone(),
            redirect_networks: networks.map(ToString::to_string).collect(),
        })
    }

    /// Returns whether none of them was given.
    pub(crate) fn are_default(&self) -> bool {
        self.arguments().is_empty()
    }

    /// Returns the same flags, for another process of ours. It gets the password as this one would have.
    pub(super) fn arguments(&self) -> Vec<OsString> {
        let mut arguments = Vec::new();
        let mut add = |flag: &str, value: &dyn AsRef<OsStr>| {
            arguments.extend([OsString::from(flag), value.as_ref().to_owned()]);
        };
        if let Some(ca) = &self.ca {
            add("--ca", ca);
        }
        if let Some(username) = &self.username {
            add("--username", username);
        }
        for host in &self.token_host {
            add("--token-host", host);
        }
        for network in &self.redirect_network {
            add("--redirect-network", &network.to_string());
        }
        let flags = [
            (self.plain_http, "--plain-http"),
            (self.password_stdin, "--password-stdin"),
        ];
        let flags = flags.into_iter().filter(|(is_set, _)| *is_set);
        arguments.extend(flags.map(|(_, flag)| flag.into()));
        arguments
    }

    fn credentials(&self, registry: &str) -> anyhow::Result<Option<Credentials>> {
        let Some(username) = self.username.clone() else {
            return login::of_docker(registry)
                .with_context(|| format!("looking for the login of {registry}"));
        };
        let mut password = String::new();
        let input = io::stdin().take(SECRET_MAX).read_to_string(&mut password);
        input.context("reading the password from standard input")?;
        let password = password.trim_end_matches(['\r', '\n']).to_owned();
        ensure!(
            !password.is_empty(),
            "the password on standard input is empty"
        );
        Ok(Some(Credentials { username, password }))
    }
}
