//! Mounts and the block service of nicfetch: options, connection, cache and source.

mod boot;
mod fill;
mod origin;
mod share;
mod status;

use std::fs;
use std::num::NonZeroUsize;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use blocks::Tree;
use blocks::prompt::Waiter;
use blockservice::client::{
    Ask, Client, ClientConfig, NicCache, NicSource, Origin, Patience, Remote, ServedPlan, Wanted,
};
use blockservice::identity::Key;
use chunks::index::Index;
use chunks::{Catalog, ChunkStore, SharedStore, StoreConfig};
use localfs::{Patience as WaitPatience, TimedSource, Timekeeping};
use serving::transport::{Address, TlsClient, TlsFiles};

use fill::Filler;
use origin::OriginDir;

pub use blockservice::client::{ConnectionRequest, Connector};
pub use boot::{BootBlocks, NicBoot, Recorded};
use node_api::boot_choice::BootChoice;
use node_api::nic::{NicName, NicSpec};
use node_api::nic_needs::{CHUNKS, SOURCES};

/// How long a mount waits for a service that it cannot begin without, and for one that it can.
const NEEDED: Duration = Duration::from_secs(10);
const WELCOME: Duration = Duration::from_secs(2);

/// Of the bytes of a cache, the part that indexes may take: a thirty-second.
const INDEXES: u64 = 32;
/// How deep a cache is: its parts, and their segments.
const CACHE_DEPTH: u8 = 3;

/// Threads that wait for the service at a time: a link gains from more requests than a disk does.
const WAITING: NonZeroUsize = NonZeroUsize::new(16).unwrap();

/// The block service of a mount, and how it connects.
#[derive(Clone, Copy, Debug)]
pub struct NicAccess<'a> {
    /// The options of the service.
    pub spec: &'a NicSpec,
    /// Makes the connections; this process does if absent.
    pub connector: Option<&'a Arc<dyn Connector>>,
}

impl<'a> From<&'a NicSpec> for NicAccess<'a> {
    fn from(spec: &'a NicSpec) -> Self {
        Self {
            spec,
            connector: None,
        }
    }
}

/// The service, and the one source of it that a mount reads.
#[derive(Debug)]
pub struct Nic {
    address: Address,
    name: NicName,
    /// Whether all of the source is fetched.
    fill: bool,
    way: ReadPath,
    /// Whether the plan of boots was requested from the service when the source was opened.
    plan_requested: PlanRequested,
    plan: Option<ServedPlan>,
    /// Dropped last: the fields above use it.
    client: Client,
}

/// Whether the service was asked for a plan when the source was opened, and knows plans.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PlanRequested {
    /// It was, and if there is one, it came.
    Yes,
    No,
}

/// How the source is read.
#[derive(Debug)]
enum ReadPath {
    /// Beside a local source.
    Beside(Arc<NicCache>),
    /// There is no local source.
    Alone(Arc<NicSource>, Option<Filler>, TimedSource<NicSource>),
}

impl Nic {
    /// Connects for a mount of a local source; `None`, which is logged, if the service does not know
    /// the content of the source now: the mount works without it.
    ///
    /// # Errors
    /// If the options cannot be used.
    pub fn beside(access: NicAccess<'_>, tree: &Tree) -> anyhow::Result<Option<Self>> {
        let spec = access.spec;
        let name = spec.beside()?.clone();
        let client = connect(access)?;
        let address = &spec.address;
        let wanted = Wanted {
            name: name.name.as_bytes(),
            id: name.id,
            have: None,
            ask: Ask::Index,
        };
        let remote = match client.start_source(&wanted, WELCOME) {
            Ok(started) => started.remote,
            Err(error) => {
                let error = anyhow::Error::new(error);
                log::warn!(
                    "{}: reading everything from the disk: {error:#}",
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
            fill: false,
            way: ReadPath::Beside(cache),
            plan_requested: PlanRequested::No,
            plan: None,
            client,
        }))
    }

    /// Connects for a mount of a source that is not on the disk; the plan of its boots, and the chunks
    /// that it names, are requested with it if `boot` leaves the choice to the service. `served` is the index of an
    /// earlier process: then that index is used, whether the service is reachable or not.
    ///
    /// # Errors
    /// If the service is not reachable and the source was never mounted with this cache, or the
    /// options cannot be used.
    pub fn alone(
        access: NicAccess<'_>,
        name: &NicName,
        served: Option<Arc<Index>>,
        boot: &BootChoice,
        deadline: Duration,
    ) -> anyhow::Result<Self> {
        let spec = access.spec;
        spec.check_alone()?;
        let address = &spec.address;
        let client = connect(access)?;
        let (opened, local, later) = match served {
            // Its users wait: whatever takes time is done beside serving them.
            Some(index) => {
                let cache = spec.cache.clone().map(|dir| (dir, spec.cache_bytes));
                let open = cache.map(|(dir, bytes)| move || Ok(Local::open(&dir, bytes)?.store));
                let remote = client.remote(name.name.as_bytes(), index);
                (Opened::before(remote), None, open)
            }
            None => {
                let local = Local::of(spec)?;
                (open(&client, name, local.as_ref(), boot)?, local, None)
            }
        };
        let origin = spec.origin.as_deref().map(OriginDir::open).transpose()?;
        let origin = origin.map(|origin| Box::new(origin) as Box<dyn Origin>);
        let store = local.map(|local| local.store);
        let source = NicSource::new(opened.remote, store, origin, deadline);
        let source = Arc::new(source);
        let filler = spec.cache.as_ref().filter(|_| spec.fill || later.is_some());
        let filler = filler.map(|_| Filler::start(Arc::clone(&source), later, spec.fill));
        let filler = filler.transpose()?;
        Ok(Self {
            address: address.clone(),
            name: name.clone(),
            fill: spec.fill,
            way: ReadPath::Alone(Arc::clone(&source), filler, waited_for(source, deadline)),
            plan_requested: opened.plan_requested,
            plan: opened.plan,
            client,
        })
    }

    /// Returns what the service is beside a local source.
    pub fn cache(&self) -> Option<&Arc<NicCache>> {
        match &self.way {
            ReadPath::Beside(cache) => Some(cache),
            ReadPath::Alone(..) => None,
        }
    }

    /// Returns the source that is not on the disk.
    pub fn source(&self) -> Option<&Arc<NicSource>> {
        match &self.way {
            ReadPath::Beside(_) => None,
            ReadPath::Alone(source, ..) => Some(source),
        }
    }

    /// Returns an object that waits for the service in place of the threads of a mount that has no
    /// other source.
    pub fn waiter(&self) -> Option<Arc<dyn Waiter>> {
        match &self.way {
            ReadPath::Beside(_) => None,
            ReadPath::Alone(.., timed) => Some(timed.waiter()),
        }
    }

    /// Returns what waiting has come to.
    pub fn timekeeping(&self) -> Option<Timekeeping> {
        match &self.way {
            ReadPath::Beside(_) => None,
            ReadPath::Alone(.., timed) => Some(timed.timekeeping()),
        }
    }

    /// Returns the index of the source.
    pub fn index(&self) -> &Arc<Index> {
        self.remote().index()
    }

    fn remote(&self) -> &Remote {
        match &self.way {
            ReadPath::Beside(cache) => cache.remote(),
            ReadPath::Alone(source, ..) => source.remote(),
        }
    }
}

/// Returns a source with threads that wait for the service: it keeps each for as long as it does not
/// answer, and the requests of a mount must not be kept with them.
fn waited_for(source: Arc<NicSource>, deadline: Duration) -> TimedSource<NicSource> {
    let patience = WaitPatience {
        deadline,
        helpers: WAITING,
        ..WaitPatience::default()
    };
    TimedSource::new(source, patience)
}

/// What a mount keeps of the service on the local disk.
struct Local {
    store: Arc<dyn ChunkStore>,
    catalog: Catalog,
}

impl Local {
    /// Opens the cache of a mount, if it has one. Without one that nobody asked for, a mount goes on.
    fn of(spec: &NicSpec) -> anyhow::Result<Option<Self>> {
        let Some(dir) = spec.cache.as_deref() else {
            return Ok(None);
        };
        match Self::open(dir, spec.cache_bytes) {
            Err(error) if !spec.fill => {
                log::warn!("nothing is kept of what comes: {error:#}");
                Ok(None)
            }
            opened => opened.map(Some),
        }
    }

    fn open(dir: &Path, budget_bytes: u64) -> anyhow::Result<Self> {
        let budget_bytes = budget_bytes.min(room(dir).unwrap_or(budget_bytes));
        let config = StoreConfig {
            budget_bytes,
            segment_bytes: 8 << 20, // a small cache is no small number of segments
            ..StoreConfig::default()
        };
        let opening = || format!("opening the cache {}", dir.display());
        // Contents of a source whose files not everybody may read.
        for part in [CHUNKS, SOURCES] {
            rawio::private::keep(&dir.join(part)).with_context(opening)?;
        }
        let store = SharedStore::open(&dir.join(CHUNKS), config).with_context(opening)?;
        let catalog = Catalog::open(&dir.join(SOURCES)).with_context(opening)?;
        let indexes = catalog.limit_indexes(budget_bytes / INDEXES);
        indexes.with_context(opening)?;
        Ok(Self {
            store: Arc::new(store),
            catalog,
        })
    }
}

/// Returns the bytes that a cache may take: half of what would be free on its file system without it.
fn room(dir: &Path) -> Option<u64> {
    let mut taken = 0;
    for part in [CHUNKS, SOURCES] {
        taken += bytes_beneath(&dir.join(part), CACHE_DEPTH);
    }
    // It may not be there yet.
    let there = dir.ancestors().find(|dir| dir.is_dir())?;
    let free = nix::sys::statvfs::statvfs(there).ok()?;
    Some((free.blocks_available() * free.fragment_size() + taken) / 2)
}

/// Returns the bytes that files beneath a directory take.
fn bytes_beneath(dir: &Path, depth: u8) -> u64 {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let bytes = entries.filter_map(|entry| {
        let about = entry.metadata().ok()?;
        Some(match about.is_dir() && depth > 0 {
            true => bytes_beneath(&entry.path(), depth - 1),
            false => about.blocks() * 512,
        })
    });
    bytes.sum()
}

/// A source that was opened, and what the service said of its boots.
struct Opened {
    remote: Remote,
    plan_requested: PlanRequested,
    plan: Option<ServedPlan>,
}

impl Opened {
    /// Returns a source that was known before.
    const fn before(remote: Remote) -> Self {
        Self {
            remote,
            plan_requested: PlanRequested::No,
            plan: None,
        }
    }
}

/// Opens a source: with the index that the service has, or with the one that is kept of it.
fn open(
    client: &Client,
    name: &NicName,
    local: Option<&Local>,
    boot: &BootChoice,
) -> anyhow::Result<Opened> {
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
    let ask = match (boot, &kept) {
        // Most of its chunks are here already.
        (BootChoice::Auto, Some(_)) => Ask::Plan,
        (BootChoice::Auto, None) => Ask::Chunks,
        _ => Ask::Index,
    };
    let wanted = Wanted {
        name: bytes,
        id: name.id,
        have: kept.clone(),
        ask,
    };
    match (client.start_source(&wanted, patience), kept) {
        (Ok(started), _) => {
            if let Some(local) = local {
                // The next mount fetches it again.
                if let Err(error) = local.catalog.add(bytes, started.remote.index()) {
                    let error = anyhow::Error::new(error);
                    log::warn!("the index of {} is not kept: {error:#}", name.label());
                }
            }
            let plan_requested = match started.version {
                1 => PlanRequested::No,
                _ if ask == Ask::Index => PlanRequested::No,
                _ => PlanRequested::Yes,
            };
            Ok(Opened {
                remote: started.remote,
                plan_requested,
                plan: started.plan,
            })
        }
        (Err(error), Some(kept)) => {
            log::warn!(
                "{}: using the index of the last mount: {:#}",
                name.label(),
                anyhow::Error::new(error)
            );
            Ok(Opened::before(client.remote(bytes, kept)))
        }
        (Err(error), None) => Err(error).with_context(|| format!("opening {}", name.label())),
    }
}

fn connect(NicAccess { spec, connector }: NicAccess<'_>) -> anyhow::Result<Client> {
    let name = match &spec.name {
        Some(name) => name.clone().into_bytes(),
        None => {
            let name = nix::unistd::gethostname().context("asking for the host's name")?;
            name.to_string_lossy().into_owned().into_bytes()
        }
    };
    ensure!(name.len() <= 255, "nic.name is longer than 255 bytes");
    let key = spec.key.as_deref().map(read_key).transpose()?;
    let tls = spec.tls.as_deref().map(tls_files);
    let tls = tls.map(|files| TlsClient::open(&files)).transpose()?;
    ensure!(
        tls.is_none()
            || spec
                .addresses()
                .all(|address| matches!(address, Address::Tcp(_))),
        "nic.tls is for HOST:PORT"
    );
    let config = ClientConfig {
        address: spec.address.clone(),
        others: spec.others.clone(),
        name,
        key,
        tls,
        patience: Patience::default(),
    };
    Client::start_by(config, connector.cloned()).context("starting the client of the block service")
}

fn read_key(path: &Path) -> anyhow::Result<Key> {
    let text = fs::read_to_string(path);
    let text = text.with_context(|| format!("reading the key {}", path.display()))?;
    Key::from_hex(text.trim()).with_context(|| {
        format!(
            "{} has no valid key: 64 hexadecimal digits are needed",
            path.display()
        )
    })
}

/// Returns where a directory has what TLS needs.
pub fn tls_files(dir: &Path) -> TlsFiles {
    TlsFiles {
        certificate: dir.join("cert.pem"),
        key: dir.join("key.pem"),
        authority: dir.join("ca.pem"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    /// It has contents of a source whose files not everybody may read.
    #[test]
    fn the_cache_is_for_its_owner_also_one_of_an_earlier_release() {
        let dir = tempfile::tempdir().unwrap();
        let parts = ["chunks", "sources"].map(|part| dir.path().join("cache").join(part));
        let modes = || {
            parts
                .each_ref()
                .map(|part| part.metadata().unwrap().mode() & 0o777)
        };
        drop(Local::open(&dir.path().join("cache"), 256 << 20).unwrap());
        assert_eq!(modes(), [0o700; 2]);
        for part in &parts {
            fs::set_permissions(part, fs::Permissions::from_mode(0o755)).unwrap();
        }
        drop(Local::open(&dir.path().join("cache"), 256 << 20).unwrap());
        assert_eq!(modes(), [0o700; 2]);
    }
}
