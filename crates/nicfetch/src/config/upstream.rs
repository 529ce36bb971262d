//! A registry in the configuration: where it is, who may pull from it, and with which login.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context as _, bail, ensure};
use mirror::upstream::{Login, Upstream, UpstreamConfig};
use mirror::{Access, ClientRule, Network};
use serde::Deserialize;

use super::document::{self, small_file};

/// An entry of `upstreams`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct UpstreamEntry {
    pub(super) name: String,
    pub(super) url: String,
    /// A file with `username` and `password`.
    #[serde(default)]
    credentials: Option<PathBuf>,
    #[serde(default)]
    token_hosts: Vec<String>,
    /// Where it may lead besides.
    #[serde(default)]
    redirect_networks: Vec<String>,
    /// Files with certificates of authorities.
    #[serde(default)]
    ca: Vec<PathBuf>,
    #[serde(default)]
    pub(super) access: Option<AccessEntry>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(super) enum AccessEntry {
    All,
    Upstream,
    Clients(Vec<ClientEntry>),
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ClientEntry {
    from: Vec<String>,
    repositories: Vec<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct LoginFile {
    username: String,
    password: String,
}

impl UpstreamEntry {
    /// Returns a registry without a login, from which every client may pull.
    pub(super) fn for_all(name: &str, url: &str) -> Self {
        Self {
            name: name.to_owned(),
            url: url.to_owned(),
            credentials: None,
            token_hosts: Vec::new(),
            redirect_networks: Vec::new(),
            ca: Vec::new(),
            access: None,
        }
    }

    /// Checks what is said of the registry, and reads its files; sends it no request.
    pub(super) fn prepare(&self) -> anyhow::Result<(Arc<Upstream>, Access)> {
        let access = match (&self.access, &self.credentials) {
            (None, Some(_)) => bail!(
                "it has credentials but no access: name the clients that may use them (\"all\", or a list of \
                 clients)"
            ),
            (Some(AccessEntry::Upstream), Some(_)) => bail!(
                "with access = \"upstream\" clients bring their own credentials: remove either"
            ),
            (None | Some(AccessEntry::All), _) => Access::All,
            (Some(AccessEntry::Upstream), None) => Access::Upstream,
            (Some(AccessEntry::Clients(clients)), _) => {
                let rules = clients.iter().map(ClientEntry::rule);
                Access::Clients(rules.collect::<anyhow::Result<_>>()?)
            }
        };
        let login = self.credentials.as_deref().map(login).transpose()?;
        let authorities = self.ca.iter().map(|path| small_file(path));
        let upstream = Upstream::new(UpstreamConfig {
            name: self.name.clone(),
            url: self.url.clone(),
            login,
            token_hosts: self.token_hosts.clone(),
            redirect_networks: networks(&self.redirect_networks)?,
            authorities: authorities.collect::<anyhow::Result<_>>()?,
        })?;
        Ok((Arc::new(upstream), access))
    }
}

impl ClientEntry {
    fn rule(&self) -> anyhow::Result<ClientRule> {
        Ok(ClientRule {
            networks: networks(&self.from)?,
            repositories: self.repositories.clone(),
        })
    }
}

fn networks(texts: &[String]) -> anyhow::Result<Vec<Network>> {
    let network = |text: &String| {
        let network: Result<Network, _> = text.parse();
        network.with_context(|| format!("{text:?}"))
    };
    texts.iter().map(network).collect()
}

fn login(path: &Path) -> anyhow::Result<Login> {
    let shown = path.display();
    let metadata = fs::metadata(path).with_context(|| format!("reading {shown}"))?;
    ensure!(
        metadata.permissions().mode() & 0o077 == 0,
        "{shown} has a password and may be read by others: chmod 600 {shown}"
    );
    let text = small_file(path)?;
    let file: LoginFile = document::parse(path, &text).with_context(|| {
        format!("reading {shown} (it needs username = \"…\" and password = \"…\")")
    })?;
    Ok(Login {
        username: file.username,
        password: file.password,
    })
}
