//! Mounts and the block service of nicfetch: options, connection, cache and source.

mod boot;
mod fill;
mod local;
mod origin;
mod share;
mod status;

use std::fs;
use std::num::NonZeroUsize;
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
use localfs::{Patience as WaitPatience, TimedSource, Timekeeping};
use serving::transport::{Address, TlsClient, TlsFiles};

use fill::Filler;
use local::{Keeping, Kept, Local};
use origin::OriginDir;

pub use blockservice::client::{ConnectionRequest, Connector};
pub use boot::{BootBlocks, NicBoot, Recorded};
use node_api::boot_choice::BootChoice;
use node_api::nic::{NicName, NicSpec};

/// How long a mount waits for a service that it cannot begin without, and for one that it can.
const NEEDED: Duration = Duration::from_secs(10);
const WELCOME: Duration = Duration::from_secs(2);

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
    /// Keeps the index and the plan in the cache, and has its end waited for.
    _keeping: Option<Keeping>,
    /// Dropped last: the fields above use it.
    client: Client,
}

/// Whether the service was asked for a plan when the source was opened, or need not be, and knows plans.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PlanRequested {
    /// If there is one, it came.
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
            _keeping: None,
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
            _keeping: opened.keeping,
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

/// A source that was opened, and what is known of its boots.
struct Opened {
    remote: Remote,
    plan_requested: PlanRequested,
    plan: Option<ServedPlan>,
    keeping: Option<Keeping>,
}

impl Opened {
    /// Returns a source that was known before.
    const fn before(remote: Remote) -> Self {
        Self {
            remote,
            plan_requested: PlanRequested::No,
            plan: None,
            keeping: None,
        }
    }

    /// Returns a source as it was kept, with the plan that came with it: nobody is asked for another one.
    fn kept(client: &Client, name: &[u8], kept: Kept) -> Self {
        Self {
            remote: client.remote(name, kept.index),
            plan_requested: PlanRequested::Yes,
            plan: kept.plan,
            keeping: None,
        }
    }
}

/// Opens a source: with the index that the service has, or with the one that is kept of it. Nobody is asked for one that
/// is named by its index, if all that boots read of it is here.
fn open(
    client: &Client,
    name: &NicName,
    local: Option<&Local>,
    boot: &BootChoice,
) -> anyhow::Result<Opened> {
    let bytes = name.name.as_bytes();
    let kept = local.and_then(|local| local.kept(name));
    if let (Some(_), Some(local), Some(kept)) = (name.id, local, &kept)
        && local.has_all(kept, boot)
    {
        return Ok(Opened::kept(client, bytes, kept.clone()));
    }
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
        have: kept.as_ref().map(|kept| Arc::clone(&kept.index)),
        ask,
    };
    match (client.start_source(&wanted, patience), kept) {
        (Ok(started), kept) => {
            let keeping = local.and_then(|local| {
                let (index, plan) = (started.remote.index(), started.plan.as_ref());
                local.keep(name, index, plan, kept.as_ref())
            });
            let plan_requested = match started.version {
                1 => PlanRequested::No,
                _ if ask == Ask::Index => PlanRequested::No,
                _ => PlanRequested::Yes,
            };
            // The service may have dropped what it is made of.
            let index = started.remote.index().id();
            let before = kept.filter(|kept| kept.index.id() == index);
            Ok(Opened {
                remote: started.remote,
                keeping,
                plan_requested,
                plan: started.plan.or(before.and_then(|kept| kept.plan)),
            })
        }
        (Err(error), Some(kept)) => {
            log::warn!(
                "{}: using the index of the last mount: {:#}",
                name.label(),
                anyhow::Error::new(error)
            );
            Ok(Opened::kept(client, bytes, kept))
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
