//! Mounts and the block service of nicfetch: what the command line says, and what comes of it.

mod fill;
mod origin;
mod share;
mod status;

use std::fs;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use blocks::{ContentId, SourceId, Tree};
use nicfetch::client::{Client, ClientConfig, NicCache, NicSource, Origin, Patience, Remote};
use nicfetch::identity::Key;
use nicfetch::index::Index;
use nicfetch::transport::{Address, TlsClient, TlsFiles};
use nicfetch::{Catalog, ChunkStore, DiskStore, StoreConfig};

use crate::size::Size;
use fill::Filler;
use origin::OriginDir;

pub(crate) use status::NicStatus;

/// What the source of a mount begins with when it is one of the service.
const PREFIX: &str = "nic:";

/// How long a mount waits for a service that it cannot begin without, and for one that it can.
const NEEDED: Duration = Duration::from_secs(10);
const WELCOME: Duration = Duration::from_secs(2);

/// The block service of a mount.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "SmartNIC")]
pub(crate) struct NicArgs {
    /// Ask the block service of nicfetch: HOST:PORT, unix:PATH or vsock:CID:PORT
    #[arg(long, value_name = "ADDR")]
    pub(crate) nic: Option<Address>,
    /// What the service calls this local source; NAME@ID if only the index of this id counts
    #[arg(long, value_name = "NAME", requires = "nic")]
    pub(crate) nic_source: Option<NicName>,
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

/// What the service calls a source, and which index it must be.
#[derive(Clone, Debug, PartialEq, Eq)]
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

/// The service, and the one source of it that a mount reads.
#[derive(Debug)]
pub(crate) struct Nic {
    address: Address,
    name: NicName,
    way: Way,
    /// The last to go: what is above asks it.
    client: Client,
}

/// How the source is read.
#[derive(Debug)]
enum Way {
    /// Beside a local source.
    Beside(Arc<NicCache>),
    /// There is no local source.
    Alone(Arc<NicSource>, Option<Filler>),
}

impl Nic {
    /// Connects for a mount of a local source; `None`, said on the log, if the service cannot say
    /// now what the source consists of: the mount does without.
    ///
    /// # Errors
    /// If what the command line says cannot be used.
    pub(crate) fn beside(args: &NicArgs, tree: &Tree) -> anyhow::Result<Option<Self>> {
        let Some(address) = &args.nic else {
            return Ok(None);
        };
        let name = args.nic_source.clone();
        let name = name.context("--nic beside a local source needs --nic-source NAME")?;
        ensure!(
            args.nic_cache.is_none() && args.origin.is_none(),
            "--nic-cache and --origin are for sources that are not on the disk (nic:NAME)"
        );
        let client = connect(args, address)?;
        let _known = client.wait_until_connected(WELCOME);
        let remote = match client.open(name.name.as_bytes(), name.id, |_| None) {
            Ok(remote) => remote,
            Err(error) => {
                let error = anyhow::Error::new(error);
                log::warn!(
                    "{}: everything is read from the disk: {error:#}",
                    name.label()
                );
                return Ok(None);
            }
        };
        let cache = Arc::new(NicCache::new(remote, tree));
        log::info!("{} files are also at {address}", cache.files());
        Ok(Some(Self {
            address: address.clone(),
            name,
            way: Way::Beside(cache),
            client,
        }))
    }

    /// Connects for a mount of a source that is not on the disk.
    ///
    /// # Errors
    /// If the service is not there and the source was never mounted with this cache, or what the
    /// command line says cannot be used.
    pub(crate) fn alone(
        args: &NicArgs,
        name: &NicName,
        deadline: Duration,
    ) -> anyhow::Result<Self> {
        let address = args.nic.as_ref();
        let address = address.with_context(|| format!("{} needs --nic ADDR", name.label()))?;
        if args.nic_source.is_some() {
            bail!("--nic-source is for local sources: here the source says it");
        }
        let client = connect(args, address)?;
        let local = args
            .nic_cache
            .as_deref()
            .map(|dir| Local::open(dir, args.nic_cache_size));
        let local = local.transpose()?;
        let remote = open(&client, name, local.as_ref())?;
        let origin = args.origin.as_deref().map(OriginDir::open).transpose()?;
        let origin = origin.map(|origin| Box::new(origin) as Box<dyn Origin>);
        let store = local.map(|local| local.store);
        let source = NicSource::new(remote, store.clone(), origin, deadline);
        let source = Arc::new(source);
        let filler = store
            .map(|_| Filler::start(Arc::clone(&source)))
            .transpose()?;
        Ok(Self {
            address: address.clone(),
            name: name.clone(),
            way: Way::Alone(source, filler),
            client,
        })
    }

    /// Returns what the service is beside a local source.
    pub(crate) fn cache(&self) -> Option<&Arc<NicCache>> {
        match &self.way {
            Way::Beside(cache) => Some(cache),
            Way::Alone(..) => None,
        }
    }

    /// Returns the source that is not on the disk.
    pub(crate) fn source(&self) -> Option<&Arc<NicSource>> {
        match &self.way {
            Way::Beside(_) => None,
            Way::Alone(source, _) => Some(source),
        }
    }

    /// Returns the index of the source.
    pub(crate) fn index(&self) -> &Arc<Index> {
        self.remote().index()
    }

    fn remote(&self) -> &Remote {
        match &self.way {
            Way::Beside(cache) => cache.remote(),
            Way::Alone(source, _) => source.remote(),
        }
    }
}

/// What a mount keeps of the service on the local disk.
struct Local {
    store: Arc<dyn ChunkStore>,
    catalog: Catalog,
}

impl Local {
    fn open(dir: &Path, size: Size) -> anyhow::Result<Self> {
        let config = StoreConfig {
            budget_bytes: size.0,
            segment_bytes: 8 << 20, // a small cache is no small number of segments
            ..StoreConfig::default()
        };
        let opening = || format!("opening the cache {}", dir.display());
        let store = DiskStore::open(&dir.join("chunks"), config).with_context(opening)?;
        Ok(Self {
            store: Arc::new(store),
            catalog: Catalog::open(&dir.join("sources")).with_context(opening)?,
        })
    }
}

/// Opens a source: with the index that the service has, or with the one that is kept of it.
fn open(client: &Client, name: &NicName, local: Option<&Local>) -> anyhow::Result<Remote> {
    let bytes = name.name.as_bytes();
    let kept = local.and_then(|local| {
        let kept = local.catalog.source(bytes);
        // One that is damaged is fetched anew.
        kept.unwrap_or_else(|error| {
            log::warn!("{}: {:#}", name.label(), anyhow::Error::new(error));
            None
        })
    });
    let kept = kept.filter(|kept| name.id.is_none_or(|id| kept.id() == id));
    let patience = if kept.is_some() { WELCOME } else { NEEDED };
    let _known = client.wait_until_connected(patience);
    let have = |id: &ContentId| kept.clone().filter(|kept| kept.id() == *id);
    match (client.open(bytes, name.id, have), &kept) {
        (Ok(remote), _) => {
            if let Some(local) = local {
                let keeping = || format!("keeping the index of {}", name.label());
                local
                    .catalog
                    .add(bytes, remote.index())
                    .with_context(keeping)?;
            }
            Ok(remote)
        }
        (Err(error), Some(kept)) => {
            log::warn!(
                "{}: as it was when it was last mounted: {:#}",
                name.label(),
                anyhow::Error::new(error)
            );
            Ok(client.remote(bytes, Arc::clone(kept)))
        }
        (Err(error), None) => Err(error).with_context(|| format!("opening {}", name.label())),
    }
}

fn connect(args: &NicArgs, address: &Address) -> anyhow::Result<Client> {
    let name = match &args.nic_name {
        Some(name) => name.clone().into_bytes(),
        None => {
            let name = nix::unistd::gethostname().context("asking for the host's name")?;
            name.to_string_lossy().into_owned().into_bytes()
        }
    };
    ensure!(name.len() <= 255, "--nic-name is longer than 255 bytes");
    let key = args.nic_key.as_deref().map(read_key).transpose()?;
    let tls = args.nic_tls.as_deref().map(tls_files);
    let tls = tls.map(|files| TlsClient::open(&files)).transpose()?;
    ensure!(
        tls.is_none() || matches!(address, Address::Tcp(_)),
        "--nic-tls is for HOST:PORT"
    );
    let config = ClientConfig {
        address: address.clone(),
        name,
        key,
        tls,
        patience: Patience::default(),
    };
    Client::start(config).context("starting the client of the block service")
}

fn read_key(path: &Path) -> anyhow::Result<Key> {
    let text = fs::read_to_string(path);
    let text = text.with_context(|| format!("reading the key {}", path.display()))?;
    Key::from_hex(text.trim())
        .with_context(|| format!("{} is no key: 64 hexadecimal digits are", path.display()))
}

/// Returns where a directory has what TLS needs.
pub(crate) fn tls_files(dir: &Path) -> TlsFiles {
    TlsFiles {
        certificate: dir.join("cert.pem"),
        key: dir.join("key.pem"),
        authority: dir.join("ca.pem"),
    }
}
