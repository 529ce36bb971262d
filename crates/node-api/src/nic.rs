//! The block service of a mount, as an option of the command line and as a field of the node's API.

use std::path::{Path, PathBuf};
use std::str::FromStr;

use anyhow::{Context as _, ensure};
use blocks::{ContentId, SourceId};
use serde::{Deserialize, Serialize};
use serving::transport::Address;

/// The prefix of a mount's source that is served by the block service.
const PREFIX: &str = "nic:";

/// The block service of a mount: the options of the command line, for the process that serves it. It
/// names files with secrets, and contains none.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NicSpec {
    /// Where the service listens: `HOST:PORT`, `unix:PATH` or `vsock:CID:PORT`.
    #[serde(with = "as_text")]
    pub address: Address,
    /// Where other services listen that have the same sources: what one does not bring in time, or brings wrong, is
    /// asked of another. Left out if there are none: nodes of an earlier release refuse fields that they do not know.
    #[serde(default, with = "as_texts", skip_serializing_if = "Vec::is_empty")]
    pub others: Vec<Address>,
    /// What the service calls the local source beside which it is asked: `NAME` or `NAME@ID`.
    #[serde(default)]
    pub source: Option<NicName>,
    /// The name of this client at the service; the host name if absent.
    #[serde(default)]
    pub name: Option<String>,
    /// A file with the client's key.
    #[serde(default)]
    pub key: Option<PathBuf>,
    /// A directory with the client's certificate.
    #[serde(default)]
    pub tls: Option<PathBuf>,
    /// The directory of the cache of chunks.
    #[serde(default)]
    pub cache: Option<PathBuf>,
    /// The greatest size of the cache.
    #[serde(default = "cache_bytes")]
    pub cache_bytes: u64,
    /// Whether all of the source is fetched into the cache in the background, and not only what is read or what a plan
    /// names. Left out if it is: nodes of an earlier release refuse fields that they do not know.
    #[serde(default = "yes", skip_serializing_if = "is_yes")]
    pub fill: bool,
    /// Where else the source can be read.
    #[serde(default)]
    pub origin: Option<PathBuf>,
}

/// How much is kept unless it is said.
const fn cache_bytes() -> u64 {
    8 << 30
}

const fn yes() -> bool {
    true
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes fields so")]
const fn is_yes(value: &bool) -> bool {
    *value
}

/// The most services of one mount: two connections to each.
const SERVICES_MAX: usize = 8;

impl NicSpec {
    /// Returns where all services listen, the first one first.
    pub fn addresses(&self) -> impl Iterator<Item = &Address> {
        [&self.address].into_iter().chain(&self.others)
    }

    /// Checks that the services can be asked together.
    fn check_services(&self) -> anyhow::Result<()> {
        let services = self.others.len() + 1;
        ensure!(
            services <= SERVICES_MAX,
            "a mount can ask {SERVICES_MAX} services, not {services}: leave some out of nic.others"
        );
        let sockets = self.addresses().filter(|a| matches!(a, Address::Unix(_)));
        let sockets = sockets.count();
        ensure!(
            sockets == 0 || sockets == services,
            "the services of a mount (nic.address, nic.others) are all sockets in the file system, or none is"
        );
        Ok(())
    }

    /// Returns what the service calls the local source beside which it is asked.
    ///
    /// # Errors
    /// If it does not say so, or says what is for sources of the service.
    pub fn beside(&self) -> anyhow::Result<&NicName> {
        ensure!(
            self.cache.is_none() && self.origin.is_none(),
            "nic.cache and nic.origin are for sources that are not on the disk (nic:NAME)"
        );
        self.check_services()?;
        let name = self.source.as_ref();
        name.context("nic.address beside a local source needs nic.source")
    }

    /// Checks that it can be of a source that is not on the disk.
    ///
    /// # Errors
    /// If it says what is for local sources.
    pub fn check_alone(&self) -> anyhow::Result<()> {
        ensure!(
            self.source.is_none(),
            "nic.source is for local sources: a source that begins with nic: has its name in it"
        );
        self.check_services()
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

/// Addresses as they are written.
mod as_texts {
    use serde::{Deserialize as _, Deserializer, Serializer, de::Error as _};
    use serving::transport::Address;

    pub(super) fn serialize<S: Serializer>(all: &[Address], to: S) -> Result<S::Ok, S::Error> {
        to.collect_seq(all.iter().map(ToString::to_string))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<Vec<Address>, D::Error> {
        let texts = Vec::<String>::deserialize(from)?;
        let parsed = texts
            .iter()
            .map(|text| text.parse().map_err(D::Error::custom));
        parsed.collect()
    }
}

/// What the service calls a source, and which index it must be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct NicName {
    /// Its name.
    pub name: String,
    /// The id of its index, if only that one will do.
    pub id: Option<ContentId>,
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
    pub fn of_source(source: &Path) -> anyhow::Result<Option<Self>> {
        let name = source.to_str().and_then(|text| text.strip_prefix(PREFIX));
        let name = name.map(|name| name.parse().map_err(anyhow::Error::msg));
        name.transpose()
            .with_context(|| format!("{} is not a source of a block service", source.display()))
    }

    /// Returns the label that traces and boot images of the source have.
    pub fn label(&self) -> String {
        format!("{PREFIX}{}", self.name)
    }

    /// Returns the id by which traces and boot images know the source.
    pub fn source_id(&self) -> SourceId {
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
            others: vec!["unix:/run/nic2.sock".parse().unwrap()],
            source: Some(name),
            name: Some("vm1".to_owned()),
            key: Some("/etc/key".into()),
            tls: None,
            cache: None,
            cache_bytes: 1,
            fill: false,
            origin: None,
        };
        let text = serde_json::to_string(&spec).unwrap();
        assert!(text.contains("unix:/run/nic.sock"), "{text}");
        assert_eq!(serde_json::from_str::<NicSpec>(&text).unwrap(), spec);
        let short: NicSpec = serde_json::from_str(r#"{"address": "nic:5052"}"#).unwrap();
        assert_eq!(short.cache_bytes, cache_bytes());
        assert!(short.others.is_empty() && short.fill);
        assert!(!serde_json::to_string(&short).unwrap().contains("others"));
        let mixed = r#"{"address": "nic:5052", "others": ["unix:/run/nic.sock"]}"#;
        let mixed = serde_json::from_str::<NicSpec>(mixed).unwrap();
        assert!(mixed.check_alone().is_err());
        assert!(serde_json::from_str::<NicSpec>(r#"{"address": "nowhere"}"#).is_err());
        let unknown = r#"{"address": "nic:5052", "key_file": "k"}"#;
        assert!(serde_json::from_str::<NicSpec>(unknown).is_err());
    }
}
