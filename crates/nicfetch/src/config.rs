//! The configuration of `nicfetch serve`, from flags or a file: docs/nicfetch.md describes all of it.

mod document;
mod limits;
mod upstream;
mod words;

use std::collections::HashSet;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use mirror::blobs::BlobConfig;
use mirror::upstream::Upstream;
use mirror::{Access, MirrorConfig, ServeConfig};
use serde::Deserialize;
use serving::load::Load;

use crate::blocks::BlockSettings;
use crate::operator::AdminAddress;
use crate::place;
use host::size::Size;
use limits::LimitWords;
use upstream::UpstreamEntry;
use words::{BlobPolicy, FileAddress, FileSize};

/// The registry that clients mean when they name none.
const HUB: &str = "docker.io";

/// The configuration, as the file has it.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    #[serde(default = "listen")]
    pub(crate) listen: SocketAddr,
    #[serde(default)]
    pub(crate) admin: AdminAddress,
    /// A file with what the operator shows.
    #[serde(default)]
    pub(crate) token_file: Option<PathBuf>,
    #[serde(default = "store")]
    pub(crate) store: PathBuf,
    #[serde(default = "size")]
    size: FileSize,
    #[serde(default = "hold_back")]
    hold_back: FileSize,
    #[serde(default)]
    blob_policy: BlobPolicy,
    #[serde(default = "tag_ttl")]
    tag_ttl_seconds: u64,
    #[serde(default = "absent_ttl")]
    absent_ttl_seconds: u64,
    #[serde(default = "connections")]
    connections: u32,
    #[serde(default = "connections_of_one")]
    connections_of_one: u32,
    #[serde(default)]
    pub(crate) limits: LimitWords,
    #[serde(default)]
    upstreams: Vec<UpstreamEntry>,
    #[serde(default)]
    blocks: Option<FileAddress>,
    #[serde(default)]
    blocks_access: Option<PathBuf>,
    #[serde(default)]
    blocks_open: bool,
    #[serde(default)]
    blocks_tls: Option<PathBuf>,
    #[serde(default)]
    blocks_size: Option<FileSize>,
    #[serde(default)]
    blocks_hot: Option<FileSize>,
    #[serde(default)]
    blocks_from_pulls: bool,
}

/// The parts of the store's size for each kind of data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Budgets {
    pub(crate) blob_bytes: u64,
    pub(crate) chunk_bytes: u64,
    /// Boot images that machines give.
    pub(crate) boot_bytes: u64,
}

/// Which part of what blocks may take is for the boot images of sources: the longest of all at 8 GiB.
const BOOT_SHARE: u64 = 8;

const fn listen() -> SocketAddr {
    SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 5050)
}

fn store() -> PathBuf {
    PathBuf::from(place::USUAL)
}

const fn size() -> FileSize {
    FileSize(16 << 30)
}

/// Enough that most layers are verified before anybody sees them, and 4 ms of a fast link.
const fn hold_back() -> FileSize {
    FileSize(4 << 20)
}

const fn tag_ttl() -> u64 {
    60
}

const fn absent_ttl() -> u64 {
    10
}

const fn connections() -> u32 {
    1024
}

const fn connections_of_one() -> u32 {
    256
}

impl Config {
    /// Reads the configuration in a file.
    ///
    /// # Errors
    /// If it cannot be read, or has unknown fields.
    pub fn read(path: &Path) -> anyhow::Result<Self> {
        let text = document::small_file(path)?;
        let config = document::parse(path, &text);
        config.with_context(|| format!("reading the configuration {}", path.display()))
    }

    /// Returns the configuration of a few registries, each as `[NAME=]URL`, and of a block service,
    /// with which everything else is as usual.
    #[must_use]
    pub fn of(upstreams: &[String], blocks: &BlockSettings) -> Self {
        let entry = |text: &String| {
            // A URL may have a `=` in it, but not before its `://`.
            let named = text.split_once('=').filter(|(name, _)| !name.contains('/'));
            let (name, url) = named.unwrap_or((HUB, text));
            UpstreamEntry::for_all(name, url)
        };
        Self {
            listen: listen(),
            admin: AdminAddress::default(),
            token_file: None,
            store: store(),
            size: size(),
            hold_back: hold_back(),
            blob_policy: BlobPolicy::default(),
            tag_ttl_seconds: tag_ttl(),
            absent_ttl_seconds: absent_ttl(),
            connections: connections(),
            connections_of_one: connections_of_one(),
            limits: LimitWords::default(),
            upstreams: upstreams.iter().map(entry).collect(),
            blocks: blocks.blocks.clone().map(FileAddress),
            blocks_access: blocks.blocks_access.clone(),
            blocks_open: blocks.blocks_open,
            blocks_tls: blocks.blocks_tls.clone(),
            blocks_size: blocks.blocks_size.map(|size| FileSize(size.0)),
            blocks_hot: blocks.blocks_hot.map(|size| FileSize(size.0)),
            blocks_from_pulls: blocks.blocks_from_pulls,
        }
    }

    /// Returns the settings of the block service; they have no address if there is none.
    pub(crate) fn blocks(&self) -> anyhow::Result<BlockSettings> {
        let blocks = BlockSettings {
            blocks: self.blocks.as_ref().map(|address| address.0.clone()),
            blocks_access: self.blocks_access.clone(),
            blocks_open: self.blocks_open,
            blocks_tls: self.blocks_tls.clone(),
            blocks_size: self.blocks_size.map(|size| Size(size.0)),
            blocks_hot: self.blocks_hot.map(|size| Size(size.0)),
            blocks_from_pulls: self.blocks_from_pulls,
        };
        // The command line has seen to this; a file has not.
        ensure!(
            blocks.blocks.is_some()
                || (!blocks.blocks_open
                    && blocks.blocks_access.is_none()
                    && blocks.blocks_tls.is_none()
                    && blocks.blocks_size.is_none()
                    && blocks.blocks_hot.is_none()
                    && !blocks.blocks_from_pulls),
            "blocks_access, blocks_open, blocks_tls, blocks_size, blocks_hot and blocks_from_pulls are settings of the \
             block service: say with blocks where they are served, or remove these settings"
        );
        ensure!(
            !blocks.blocks_open || blocks.blocks_access.is_none(),
            "blocks_open and blocks_access exclude each other: remove one"
        );
        Ok(blocks)
    }

    /// Returns whether there are registries to mirror.
    pub(crate) const fn mirrors(&self) -> bool {
        !self.upstreams.is_empty()
    }

    /// Returns the limits of blobs, chunks and boot images: blocks get half of all, if both are served.
    pub(crate) fn budgets(&self) -> anyhow::Result<Budgets> {
        let all = self.size.0;
        let said = self.blocks_size.map(|size| size.0);
        let block_bytes = match (&self.blocks, self.mirrors()) {
            (None, _) => 0,
            (Some(_), true) => said.unwrap_or(all / 2),
            (Some(_), false) => said.unwrap_or(all),
        };
        let blob_bytes = all.checked_sub(block_bytes).with_context(|| {
            let (chunks, all) = (Size(block_bytes), Size(all));
            format!(
                "chunks cannot take {chunks} of {all}: make size larger, or blocks_size smaller"
            )
        })?;
        let boot_bytes = block_bytes / BOOT_SHARE;
        Ok(Budgets {
            blob_bytes,
            chunk_bytes: block_bytes - boot_bytes,
            boot_bytes,
        })
    }

    /// Changes where clients of the mirror come.
    pub const fn set_listen(&mut self, address: SocketAddr) {
        self.listen = address;
    }

    /// Changes where the operator comes.
    pub fn set_admin(&mut self, address: AdminAddress) {
        self.admin = address;
    }

    /// Changes which file has what the operator shows, if any.
    pub fn set_token_file(&mut self, path: Option<PathBuf>) {
        self.token_file = path;
    }

    /// Changes the directory of all that is kept.
    pub fn set_store(&mut self, dir: PathBuf) {
        self.store = dir;
    }

    /// Sets the limit of blobs and chunks together.
    pub const fn set_size(&mut self, bytes: u64) {
        self.size = FileSize(bytes);
    }

    /// Changes how much of each blob waits until it is verified.
    pub const fn set_hold_back(&mut self, bytes: u64) {
        self.hold_back = FileSize(bytes);
    }

    /// Changes how long a tag is believed.
    pub const fn set_tag_ttl(&mut self, seconds: u64) {
        self.tag_ttl_seconds = seconds;
    }

    pub(crate) fn mirror(&self, load: &Arc<Load>) -> anyhow::Result<MirrorConfig> {
        Ok(MirrorConfig {
            tag_ttl: Duration::from_secs(self.tag_ttl_seconds),
            absent_ttl: Duration::from_secs(self.absent_ttl_seconds),
            blobs: BlobConfig {
                budget: self.budgets()?.blob_bytes,
                hold_back: self.hold_back.0,
                policy: self.blob_policy.0,
            },
            load: Arc::clone(load),
            fetch_rate: self.limits.fetch_rate()?,
        })
    }

    pub(crate) fn serving(&self) -> anyhow::Result<ServeConfig> {
        Ok(ServeConfig {
            connections: self.connections,
            connections_of_one: self.connections_of_one,
            send_rate_of_one: self.limits.send_rate_of_one()?,
        })
    }

    /// Prepares the registries; sends them no requests.
    pub(crate) fn registries(&self) -> anyhow::Result<Vec<(Arc<Upstream>, Access)>> {
        ensure!(
            self.mirrors() || self.blocks.is_some(),
            "there is nothing to serve: name a registry (upstreams), or where blocks are served (blocks)"
        );
        let mut names = HashSet::new();
        for UpstreamEntry { name, .. } in &self.upstreams {
            ensure!(
                names.insert(name),
                "the registry {name} is configured twice"
            );
        }
        let prepared = self.upstreams.iter().map(|entry| {
            entry
                .prepare()
                .with_context(|| format!("preparing the registry {}", entry.name))
        });
        prepared.collect()
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn config(text: &str) -> Result<Config, String> {
        toml::from_str(text).map_err(|error| error.to_string())
    }

    fn prepared(upstream: &str) -> Result<Access, String> {
        let config = config(&format!("[[upstreams]]\n{upstream}"))?;
        let mut registries = config.registries().map_err(|error| format!("{error:#}"))?;
        Ok(registries.remove(0).1)
    }

    #[test]
    fn who_may_have_what_must_be_said_where_it_matters() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("login");
        fs::write(&path, "username = \"u\"\npassword = \"p\"\n").unwrap();
        let entry = |more: &str| {
            let path = path.display();
            format!("name = \"r.io\"\nurl = \"https://r.io\"\ncredentials = \"{path}\"\n{more}")
        };
        let chmod = |mode| fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        chmod(0o644);
        let all = entry(r#"access = "all""#);
        assert!(prepared(&all).unwrap_err().contains("chmod 600"));
        chmod(0o600);
        assert_eq!(prepared(&all), Ok(Access::All));
        assert!(
            prepared(&entry(""))
                .unwrap_err()
                .contains("name the clients")
        );
        let upstream = entry(r#"access = "upstream""#);
        assert!(prepared(&upstream).unwrap_err().contains("their own"));
        let clients =
            r#"access = { clients = [{ from = ["10.0.0.0/8"], repositories = ["a/*"] }] }"#;
        assert!(
            matches!(prepared(&entry(clients)), Ok(Access::Clients(rules)) if rules.len() == 1)
        );
        let bad = clients.replace("10.0.0.0/8", "10.0.0.0/64");
        assert!(prepared(&entry(&bad)).unwrap_err().contains("10.0.0.0/64"));
        let inside = "access = \"all\"\nredirect_networks = [\"10.2.0.0/16\"]";
        assert_eq!(prepared(&entry(inside)), Ok(Access::All));
        let bad = inside.replace("/16", "/33");
        assert!(prepared(&entry(&bad)).unwrap_err().contains("10.2.0.0/33"));
        // As earlier releases had it.
        fs::write(&path, r#"{"username": "u", "password": "p"}"#).unwrap();
        assert_eq!(prepared(&all), Ok(Access::All));
    }

    #[test]
    fn fields_that_are_not_known_are_refused() {
        let a = "name = \"a\"\nurl = \"https://a\"\n";
        assert!(prepared(&format!("{a}acess = \"all\"")).is_err());
        assert!(prepared("name = \"a\"\nurl = \"ftp://a\"").is_err());
        let twice = prepared(&format!("{a}[[upstreams]]\n{a}"));
        assert!(twice.unwrap_err().contains("twice"));
    }

    /// The example in the documentation, and what packaging names.
    #[test]
    fn the_documented_file_is_read() {
        let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/nicfetch.md");
        let docs = fs::read_to_string(docs).unwrap();
        let (_, section) = docs.split_once("## The configuration file").unwrap();
        let (_, example) = section.split_once("```toml\n").unwrap();
        let (example, _) = example.split_once("```").unwrap();
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("nicfetch.toml");
        fs::write(&path, example).unwrap();
        let config = Config::read(&path).unwrap();
        let names = config.upstreams.iter().map(|entry| entry.name.as_str());
        assert_eq!(Vec::from_iter(names), ["docker.io", "registry.corp:5000"]);
        let clients = &config.upstreams[1].access;
        assert!(matches!(clients, Some(upstream::AccessEntry::Clients(rules)) if rules.len() == 1));
        assert_eq!(config.size.0, 40 << 30);
    }

    #[test]
    fn registries_may_be_named_in_a_flag() {
        let flags = [
            "http://127.0.0.1:5000",
            "ghcr.io=https://ghcr.io",
            "r:5000=http://r:5000",
        ];
        let config = Config::of(&flags.map(str::to_owned), &BlockSettings::default());
        let names: Vec<_> = config
            .upstreams
            .iter()
            .map(|entry| entry.name.as_str())
            .collect();
        assert_eq!(names, ["docker.io", "ghcr.io", "r:5000"]);
        assert_eq!(config.upstreams[2].url, "http://r:5000");
    }

    #[test]
    fn blobs_and_chunks_share_what_there_is() {
        let budgets = |text: &str| {
            let config = config(text)?;
            let budgets = config.budgets().map_err(|error| format!("{error:#}"))?;
            config.blocks().map_err(|error| format!("{error:#}"))?;
            let blocks = budgets.chunk_bytes + budgets.boot_bytes;
            assert_eq!(budgets.boot_bytes, blocks / 8);
            Ok::<_, String>((budgets.blob_bytes >> 30, blocks >> 30))
        };
        let hub = r#"upstreams = [{ name = "a", url = "https://a" }]"#;
        let blocks = "size = \"8G\"\nblocks = \"127.0.0.1:5052\"\nblocks_open = true";
        assert_eq!(budgets(hub), Ok((16, 0)));
        assert_eq!(budgets(blocks), Ok((0, 8)));
        assert_eq!(budgets(&format!("{blocks}\n{hub}")), Ok((4, 4)));
        let said = format!("{blocks}\n{hub}\nblocks_size = \"6G\"");
        assert_eq!(budgets(&said), Ok((2, 6)));
        let wrong = |text: &str, why: &str| {
            let said = budgets(text).unwrap_err();
            assert!(said.contains(why), "{said}");
        };
        wrong(&said.replace("6G", "9G"), "blocks_size smaller");
        wrong(&said.replace("127.0.0.1:5052", "nowhere"), "nowhere");
        let both = said.replace("blocks_open", "blocks_access = \"a\"\nblocks_open");
        wrong(&both, "remove one");
        wrong("blocks_size = \"1G\"", "where they are served");
    }
}
