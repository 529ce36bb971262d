//! The images of a Docker that stores them in a containerd, with containerd's own overlayfs snapshotter.
//!
//! There a layer is a snapshot, in a directory `snapshots/N/fs` that overlays use as lower layer. containerd
//! reports that directory, and events when images are added or removed. A layer with a mount over it is
//! held by a lease, one for each layer: so containerd does not remove it before the mount is gone. If
//! it does, it cannot delete anything through a read-only mount.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::Context as _;
use blocks::Digest;
use engine::Containerd;
use engine::containerd::{Collected, Described, LayerAge, chain_ids};
use engine::docker::ImageStore;
use parking_lot::{Condvar, Mutex};

use super::images::{Images, RootImage, RootLayer, Stamp};
use host::caught::caught;
use host::mount_table::{Standing, standing};

/// What is followed: containers that come and go change no image.
const TOPICS: [&str; 5] = [
    "/images/create",
    "/images/update",
    "/images/delete",
    "/snapshot/commit",
    "/snapshot/remove",
];
/// How soon the thread that follows notices that it is to end.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// How long to wait for a containerd that is away.
const AWAY: Duration = Duration::from_secs(1);

/// Docker's images in a containerd.
#[derive(Debug)]
pub struct StoreImages {
    data_root: PathBuf,
    store: ImageStore,
    /// What the names of the leases begin with.
    prefix: String,
    known: Mutex<Known>,
    follower: Follower,
}

#[derive(Debug, Default)]
struct Known {
    connection: Option<Arc<Containerd>>,
    /// By the digest of the index or manifest, which determines the rest.
    described: HashMap<Digest, Described>,
    /// By the chain of the whole image.
    dirs: HashMap<Digest, (LayerAge, Vec<PathBuf>)>,
    /// The layers with leases, by their directories: their images may be removed before the mounts are.
    held: BTreeMap<PathBuf, Digest>,
}

impl StoreImages {
    /// Opens the images of the Docker whose directory is `data_root`. `label` names the leases.
    ///
    /// # Errors
    /// If no thread can be started. containerd need not run.
    pub fn new(data_root: &Path, store: &ImageStore, label: &str) -> anyhow::Result<Self> {
        Ok(Self {
            data_root: data_root.to_owned(),
            store: store.clone(),
            prefix: format!("yolofs-{label}-"),
            known: Mutex::default(),
            follower: Follower::start(store.clone())?,
        })
    }

    fn containerd(&self) -> anyhow::Result<Arc<Containerd>> {
        let there = self.known.lock().connection.clone();
        if let Some(there) = there {
            return Ok(there);
        }
        // It finds a containerd that was restarted by itself.
        let made = Arc::new(self.store.connect()?);
        self.known.lock().connection = Some(Arc::clone(&made));
        Ok(made)
    }

    fn described(
        &self,
        containerd: &Containerd,
        target: &Digest,
        name: &str,
    ) -> anyhow::Result<Described> {
        let known = self.known.lock().described.get(target).cloned();
        if let Some(known) = known {
            return Ok(known);
        }
        let described = containerd.described(name)?.context("it is gone")?;
        let mut known = self.known.lock();
        known.described.insert(*target, described.clone());
        Ok(described)
    }

    /// Returns the directories of an image's layers, the lowest first.
    fn dirs(&self, containerd: &Containerd, image: &Described) -> anyhow::Result<Vec<PathBuf>> {
        let chains = chain_ids(&image.layers);
        let Some(top) = chains.last() else {
            return Ok(Vec::new());
        };
        let age = containerd.layer_age(top)?.context("it is not unpacked")?;
        let known = self.known.lock().dirs.get(top).cloned();
        if let Some((of, dirs)) = known
            && of == age
        {
            return Ok(dirs);
        }
        let dirs = containerd.layer_dirs(&image.reference, &image.layers)?;
        let mut known = self.known.lock();
        known.dirs.insert(*top, (age, dirs.clone()));
        Ok(dirs)
    }

    fn image(
        &self,
        containerd: &Containerd,
        target: Digest,
        name: &str,
    ) -> anyhow::Result<RootImage> {
        let described = self.described(containerd, &target, name)?;
        let dirs = self.dirs(containerd, &described)?;
        let chains = chain_ids(&described.layers);
        let layers = described.layers.iter().zip(chains).zip(dirs);
        Ok(RootImage {
            id: target,
            config: described.image,
            name: (!name.contains('@')).then(|| name.to_owned()),
            layers: layers
                .map(|((diff_id, chain), dir)| RootLayer {
                    diff_id: *diff_id,
                    chain,
                    dir,
                })
                .collect(),
        })
    }

    /// Returns which layer is where.
    fn chains(&self) -> BTreeMap<PathBuf, Digest> {
        let known = self.known.lock();
        let images = known.described.values();
        let stacks = images.filter_map(|image| {
            let chains = chain_ids(&image.layers);
            let (_, dirs) = known.dirs.get(chains.last()?)?;
            Some(dirs.iter().cloned().zip(chains).collect::<Vec<_>>())
        });
        let held = known.held.iter().map(|(dir, chain)| (dir.clone(), *chain));
        stacks.flatten().chain(held).collect()
    }
}

impl Images for StoreImages {
    fn data_root(&self) -> &Path {
        &self.data_root
    }

    fn stamp(&self) -> Stamp {
        Stamp {
            told: self.follower.told(),
            ..Stamp::default()
        }
    }

    fn images(&self) -> anyhow::Result<Vec<RootImage>> {
        let containerd = self.containerd()?;
        // An image may have several names. One that says less is a name all the same.
        let mut names = BTreeMap::new();
        for named in containerd.names()? {
            let name: &mut String = names.entry(named.target).or_default();
            if name.is_empty() || name.contains('@') {
                *name = named.reference;
            }
        }
        let mut images = Vec::new();
        for (target, name) in &names {
            match self.image(&containerd, *target, name) {
                Ok(image) => images.push(image),
                Err(error) => log::debug!("image {name} is left out: {error:#}"),
            }
        }
        let mut known = self.known.lock();
        known
            .described
            .retain(|target, _| names.contains_key(target));
        let tops: BTreeSet<Digest> = known
            .described
            .values()
            .filter_map(|image| chain_ids(&image.layers).last().copied())
            .collect();
        known.dirs.retain(|top, _| tops.contains(top));
        Ok(images)
    }

    fn hold(&self, layer: &RootLayer) -> anyhow::Result<bool> {
        let containerd = self.containerd()?;
        let lease = containerd.lasting_lease(&format!("{}{}", self.prefix, layer.chain.hex()))?;
        let is_there = lease.keep_layer(&layer.chain)?;
        if is_there {
            let mut known = self.known.lock();
            known.held.insert(layer.dir.clone(), layer.chain);
        }
        Ok(is_there)
    }

    fn release_all_but(&self, dirs: &BTreeSet<PathBuf>) -> anyhow::Result<()> {
        let containerd = self.containerd()?;
        let mut chains = self.chains();
        chains.retain(|dir, _| dirs.contains(dir));
        let needed: BTreeSet<String> = chains.values().map(Digest::hex).collect();
        for lease in containerd.leases(&self.prefix)? {
            if !needed.contains(&lease[self.prefix.len()..]) {
                containerd.remove_lease(&lease, Collected::Now)?;
            }
        }
        self.known.lock().held.retain(|dir, _| dirs.contains(dir));
        Ok(())
    }

    /// Only a containerd that Docker runs itself has its directory in Docker's.
    fn hides_mounts(&self) -> anyhow::Result<bool> {
        let inside = {
            let known = self.known.lock();
            let mut dirs = known.dirs.values().flat_map(|(_, dirs)| dirs);
            dirs.any(|dir| dir.starts_with(&self.data_root))
        };
        Ok(inside && standing(&self.data_root)? == Standing::InPrivate)
    }
}

/// Follows what happens to images, in a thread of its own; that ends when this is dropped.
#[derive(Debug)]
struct Follower {
    shared: Arc<Followed>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Followed {
    told: AtomicU64,
    ends: AtomicBool,
    asleep: Mutex<()>,
    wakes: Condvar,
}

impl Follower {
    fn start(store: ImageStore) -> anyhow::Result<Self> {
        let shared = Arc::new(Followed::default());
        let followed = Arc::clone(&shared);
        let thread = std::thread::Builder::new()
            .name("images".to_owned())
            .spawn(move || followed.follow(&store))
            .context("starting the thread that follows containerd")?;
        Ok(Self {
            shared,
            thread: Some(thread),
        })
    }

    fn told(&self) -> u64 {
        self.shared.told.load(SeqCst)
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        self.shared.ends.store(true, SeqCst);
        self.shared.wakes.notify_all();
        if self
            .thread
            .take()
            .is_some_and(|thread| thread.join().is_err())
        {
            log::warn!("the thread that followed containerd died");
        }
    }
}

impl Followed {
    fn follow(&self, store: &ImageStore) {
        while !self.ends.load(SeqCst) {
            match caught(|| self.follow_one(store)) {
                Ok(Ok(())) => {}
                Ok(Err(error)) => log::debug!("{error:#}; trying again"),
                Err(panicked) => log::error!("following containerd {panicked}; trying again"),
            }
            // Whatever happened meanwhile was not told.
            self.told.fetch_add(1, SeqCst);
            let mut asleep = self.asleep.lock();
            if !self.ends.load(SeqCst) {
                self.wakes.wait_for(&mut asleep, AWAY);
            }
        }
    }

    /// Follows until the connection is lost, or the end.
    fn follow_one(&self, store: &ImageStore) -> anyhow::Result<()> {
        let containerd = store.connect()?;
        let mut events = containerd.events(&TOPICS)?;
        self.told.fetch_add(1, SeqCst);
        while !self.ends.load(SeqCst) {
            if events.next(LOOK_EVERY)? {
                self.told.fetch_add(1, SeqCst);
            }
        }
        Ok(())
    }
}
