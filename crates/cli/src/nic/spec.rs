//! What is said about a mount and its block service: on the command line, and to the node.

use std::path::{Path, PathBuf};
use std::str::FromStr;

use anyhow::{Context as _, ensure};
use blocks::{ContentId, SourceId};
use serde::{Deserialize, Serialize};
use serving::transport::Address;

use crate::size::Size;

/// What the source of a mount begins with when it is one of the service.
const PREFIX: &str = "nic:";

/// The block service of a mount.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "SmartNIC")]
pub(crate) struct NicArgs {
    /// Ask the block service of nicfetch: HOST:PORT, unix:PATH or vsock:CID:PORT
    #[arg(long, value_name = "ADDR")]
    pub(crate) nic: Option<Address>,
    /// What the service calls this local source; NAME@ID if only the index of this id counts
    #[arg(long, value_name = "NAME", requires = "nic")]
    nic_source: Option<NicName>,
    /// Our name there [default: the host's]
    #[arg(long, value_name = "NAME", requires = "nic")]
    nic_name: Option<String>,
    /// A file with our key: 64 hexadecimal digits
    #[arg(long, value_name = "FILE", requires = "nic")]
    nic_key: Option<PathBuf>,
    /// A directory with cert.pem, key.pem and ca.pem: speak TLS
    #[arg(long, value_name = "DIR", requires = "nic")]
    nic_tls: Option<PathBuf>,
    /// Keep what comes in this directory, and fetch the rest in the background
    #[arg(long, value_name = "DIR", requires = "nic")]
    nic_cache: Option<PathBuf>,
    /// Let that directory take so much
    #[arg(
        long,
        value_name = "SIZE",
        default_value = "8G",
        requires = "nic_cache"
    )]
    nic_cache_size: Size,
    /// Read what the service has not from this directory, which the source was made of
    #[arg(long, value_name = "DIR", requires = "nic")]
    origin: Option<PathBuf>,
    /// Record what is read until it is unmounted, and give the boot image to the service
    #[arg(long, requires = "nic", conflicts_with = "record")]
    pub(crate) nic_share: bool,
}

/// How a mount asks a block service: what the command line says, for whoever serves the mount. It
/// names files with secrets, and has none itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct NicSpec {
    /// Where the service listens: `HOST:PORT`, `unix:PATH` or `vsock:CID:PORT`.
    #[serde(with = "as_text")]
    pub(super) address: Address,
    /// What the service calls the local source beside which it is asked: `NAME` or `NAME@ID`.
    #[serde(default)]
    source: Option<NicName>,
    /// Our name there; the host's if absent.
    #[serde(default)]
    pub(super) name: Option<String>,
    /// A file with our key.
    #[serde(default)]
    pub(super) key: Option<PathBuf>,
    /// A directory with our certificate.
    #[serde(default)]
    pub(super) tls: Option<PathBuf>,
    /// Where what comes is kept.
    #[serde(default)]
    pub(super) cache: Option<PathBuf>,
    /// How much may be kept there.
    #[serde(default = "cache_bytes")]
    pub(super) cache_bytes: u64,
    /// Where else the source can be read.
    #[serde(default)]
    pub(super) origin: Option<PathBuf>,
}

/// What `--nic-cache-size` is unless it is said.
const fn cache_bytes() -> u64 {
    8 << 30
}

impl NicArgs {
    /// Returns what they say, with paths that mean the same in every directory; `None` if no
    /// service is to be asked.
    ///
    /// # Errors
    /// If the current directory cannot be told.
    pub(crate) fn spec(&self) -> anyhow::Result<Option<NicSpec>> {
        let Some(address) = &self.nic else {
            return Ok(None);
        };
        let whole = |path: &Path| {
            let path = std::path::absolute(path);
            path.context("finding the current directory")
        };
        let optional = |path: &Option<PathBuf>| path.as_deref().map(whole).transpose();
        let address = match address {
            Address::Unix(path) => Address::Unix(whole(path)?),
            other => other.clone(),
        };
        Ok(Some(NicSpec {
            address,
            source: self.nic_source.clone(),
            name: self.nic_name.clone(),
            key: optional(&self.nic_key)?,
            tls: optional(&self.nic_tls)?,
            cache: optional(&self.nic_cache)?,
            cache_bytes: self.nic_cache_size.0,
            origin: optional(&self.origin)?,
        }))
    }
}

impl NicSpec {
    /// Returns what the service calls the local source beside which it is asked.
    ///
    /// # Errors
    /// If it does not say so, or says what is for sources of the service.
    pub(crate) fn beside(&self) -> anyhow::Result<&NicName> {
        ensure!(
            self.cache.is_none() && self.origin.is_none(),
            "--nic-cache and --origin are for sources that are not on the disk (nic:NAME)"
        );
        let name = self.source.as_ref();
        name.context("--nic beside a local source needs --nic-source NAME")
    }

    /// Checks that it can be of a source that is not on the disk.
    ///
    /// # Errors
    /// If it says what is for local sources.
    pub(crate) fn check_alone(&self) -> anyhow::Result<()> {
        ensure!(
            self.source.is_none(),
            "--nic-source is for local sources: here the source says it"
        );
        Ok(())
    }
}

/// An address as it is written.
mod as_text {
    use serde::{Deserialize as _, Deserializer, Serializer, de::Error as _};
    use serving::transport::Address;

    pub(super) fn serialize<S: Serializer>(address: &Address, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(address)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Address, D::Error> {
        let text = String::deserialize(from)?;
        text.parse().map_err(D::Error::custom)
    }
}

/// What the service calls a source, and which index it must be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub(crate) struct NicName {
    pub(crate) name: String,
    pub(crate) id: Option<ContentId>,
}

impl FromStr for NicName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (name, id) = match text.rsplit_once('@') {
            // The digest of an image is a part of its name.
            Some((_, digest)) if digest.starts_with("sha256:") => (text, None),
            Some((name, id)) => (name, Some(id.parse().map_err(|_| bad_id(id))?)),
            None => (text, None),
        };
        if name.is_empty() || name.len() > 255 {
            return Err("a source's name has 1 to 255 bytes".to_owned());
        }
        let name = name.to_owned();
        Ok(Self { name, id })
    }
}

impl TryFrom<String> for NicName {
    type Error = String;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl From<NicName> for String {
    fn from(NicName { name, id }: NicName) -> Self {
        match id {
            Some(id) => format!("{name}@{id}"),
            None => name,
        }
    }
}

fn bad_id(id: &str) -> String {
    format!("{id:?} is no id of an index: 64 hexadecimal digits are")
}

impl NicName {
    /// Returns which source of the service a mount's source is, or `None` for a path.
    ///
    /// # Errors
    /// If it begins like one and is none.
    pub(crate) fn of_source(source: &Path) -> anyhow::Result<Option<Self>> {
        let name = source.to_str().and_then(|text| text.strip_prefix(PREFIX));
        let name = name.map(|name| name.parse().map_err(anyhow::Error::msg));
        name.transpose()
            .with_context(|| format!("{} is no source of a block service", source.display()))
    }

    /// Returns the label that traces and boot images of the source have.
    pub(crate) fn label(&self) -> String {
        format!("{PREFIX}{}", self.name)
    }

    /// Returns the id by which traces and boot images know the source.
    pub(crate) fn source_id(&self) -> SourceId {
        SourceId::of_label(self.label().as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_down_comes_back() {
        let id = ContentId::of(b"index");
        let name: NicName = format!("web@{id}").parse().unwrap();
        let spec = NicSpec {
            address: "unix:/run/nic.sock".parse().unwrap(),
            source: Some(name),
            name: Some("vm1".to_owned()),
            key: Some("/etc/key".into()),
            tls: None,
            cache: None,
            cache_bytes: 1,
            origin: None,
        };
        let text = serde_json::to_string(&spec).unwrap();
        assert!(text.contains("unix:/run/nic.sock"), "{text}");
        assert_eq!(serde_json::from_str::<NicSpec>(&text).unwrap(), spec);
        let short: NicSpec = serde_json::from_str(r#"{"address": "nic:5052"}"#).unwrap();
        assert_eq!(short.cache_bytes, cache_bytes());
        assert!(serde_json::from_str::<NicSpec>(r#"{"address": "nowhere"}"#).is_err());
        let unknown = r#"{"address": "nic:5052", "key_file": "k"}"#;
        assert!(serde_json::from_str::<NicSpec>(unknown).is_err());
    }
}
