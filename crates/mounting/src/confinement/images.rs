//! Confinement of processes that serve block images.

use std::path::{Path, PathBuf};

use anyhow::Context as _;
use blockimages::BlobCache;
use bootstore::store::{block_plans, make_block_plans};
use confine::{Capability, Files, Identity, Ports, Programs, Reads, Rings, Sockets};
use node_api::image::ImageSpec;
use serde::{Deserialize, Serialize};

use super::block::{BlockAccess, is_image};
use super::intake::SELF;
use super::{FUSE, READAHEAD, SERVING, is_off};

/// What it takes to read images, whosever they are; and `--lock`.
const READING: [Capability; 2] = [Capability::CAP_DAC_READ_SEARCH, Capability::CAP_IPC_LOCK];

/// What a process that serves block images needs, besides reading.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageNeeds {
    /// Where layers and disks are that are written to.
    pub layers: Vec<PathBuf>,
    /// The files of its only image, or the disk. `None` if it may read any file: it serves later images, too, and
    /// these are anywhere; or a node of an earlier release does not tell.
    #[serde(default)]
    pub reads: Option<Vec<PathBuf>>,
    /// The cache. Without one, nothing is fetched.
    pub cache: Option<PathBuf>,
    /// The store of boot images, of which only the directory of plans is written to.
    #[serde(default)]
    pub store: Option<PathBuf>,
    /// Whether it serves ublk devices, whose requests come by io_uring.
    #[serde(default)]
    pub rings: bool,
}

impl ImageNeeds {
    /// Returns the needs of one image, or raw disk; `is_writable` is whether clients may write to a raw disk. Plans are kept
    /// in `store`.
    #[must_use]
    pub fn of(image: &Path, spec: &ImageSpec, store: &Path, is_writable: bool) -> Self {
        let access = BlockAccess::to(image, is_writable);
        let mut reads = access.reads;
        // A configuration that is replaced while the image is served is another file.
        reads.extend(directory_of(image));
        let cache = spec.cache.clone().filter(|_| is_image(image));
        let keeps_plans = cache.is_some() && spec.plan;
        Self {
            layers: access.writes,
            // Images with the same cache share a process.
            reads: spec.cache.is_none().then_some(reads),
            cache,
            store: keeps_plans.then(|| store.to_owned()),
            rings: false,
        }
    }

    const fn rings(&self) -> Rings {
        match self.rings {
            true => Rings::Used,
            false => Rings::Never,
        }
    }

    fn writes(&self) -> Vec<PathBuf> {
        let plans = self.store.as_deref().map(block_plans);
        let plans = plans.filter(|dir| dir.is_dir());
        let known = self.layers.iter().chain(&self.cache).cloned();
        known.chain(plans).collect()
    }

    fn files(&self, more: Vec<PathBuf>) -> Files {
        Files {
            reads: match &self.reads {
                None => Reads::All,
                Some(own) => Reads::ContentBeneath(own.iter().cloned().chain(known()).collect()),
            },
            writes: [self.writes(), more].concat(),
            ports: match self.cache {
                // A registry's answers name other hosts.
                Some(_) => Ports::Opened(Vec::new()),
                None => Ports::Called(Vec::new()),
            },
            ..Files::default()
        }
    }

    const fn sockets(&self) -> Sockets {
        match self.cache {
            Some(_) => Sockets::OfNetwork,
            None => Sockets::Given,
        }
    }

    /// Returns what of root's power it takes. None of it changes the mode or the owner of a file.
    fn capabilities(&self) -> Vec<Capability> {
        let mut keep = READING.to_vec();
        if !self.writes().is_empty() {
            keep.push(Capability::CAP_DAC_OVERRIDE);
        }
        keep
    }

    /// Makes the directories that it writes to, which a confined process cannot.
    fn make_dirs(&self) -> anyhow::Result<()> {
        if let Some(store) = &self.store
            && let Err(error) = make_block_plans(store)
        {
            // Images are served without plans, too; who asks for one to be kept is told.
            log::warn!("plans of block images cannot be kept: {error:#}");
        }
        let Some(dir) = &self.cache else {
            return Ok(());
        };
        BlobCache::make(dir).with_context(|| format!("making {}", dir.display()))
    }
}

/// Returns the directory of the configuration of an image; `None` for a raw disk.
fn directory_of(image: &Path) -> Option<PathBuf> {
    let configured = is_image(image).then_some(image)?;
    match configured.is_dir() {
        true => Some(configured.to_owned()),
        false => configured.parent().map(Path::to_owned),
    }
}

/// Returns what is read of the system: the mounts, and how much memory may be locked.
fn known() -> impl Iterator<Item = PathBuf> {
    [SELF, "/sys/fs/cgroup"].into_iter().map(PathBuf::from)
}

/// Confines a worker of block images, and changes its user if one is given: it writes to the cache and to layers of its
/// images, and opens connections only if it fetches. One without a cache, which serves one image, reads the files of this image
/// only, and so no device but the disk that it may be. Without needs, which a node of an earlier release does not tell, it keeps its files and its
/// network. To be called before it starts a thread.
///
/// # Errors
/// If the kernel refuses: it must not serve then.
pub fn image_worker(needs: Option<&ImageNeeds>, identity: Option<Identity>) -> anyhow::Result<()> {
    const CONFINING: &str = "confining the worker";
    if is_off()? {
        return Ok(());
    }
    let Some(needs) = needs else {
        let keep = [&SERVING[..], &[Capability::CAP_DAC_OVERRIDE]].concat();
        return confine::capabilities::keep_only(&keep)
            .and_then(|()| confine::calls::deny_intrusion(Programs::Never, Rings::Never))
            .context(CONFINING);
    };
    needs.make_dirs()?;
    identity
        .map_or(Ok(()), Identity::assume)
        .and_then(|()| confine::capabilities::keep_only(&needs.capabilities()))
        .and_then(|()| needs.files(Vec::new()).confine())
        .and_then(|()| confine::calls::deny_intrusion(Programs::Never, needs.rings()))
        .and_then(|()| confine::calls::deny_mounting(needs.sockets()))
        .context(CONFINING)
}

/// Confines the daemon of a mount of a block image like [`image_worker`]: it also writes beneath `run_dir`. It has
/// `CAP_SYS_ADMIN` to make its mount; it can no
/// longer mount or unmount; a helper does that. To be called before it starts a thread.
///
/// # Errors
/// If the kernel refuses.
pub fn image_daemon(
    run_dir: &Path,
    image: Option<(&ImageNeeds, Option<Identity>)>,
) -> anyhow::Result<()> {
    if is_off()? {
        return Ok(());
    }
    let image = image.context("an image that is served without saying what that takes")?;
    let (needs, identity) = image;
    needs.make_dirs()?;
    let keep = [&SERVING[..], &[Capability::CAP_DAC_OVERRIDE]].concat();
    let own = vec![run_dir.to_owned(), FUSE.into(), READAHEAD.into()];
    identity
        .map_or(Ok(()), Identity::assume)
        .and_then(|()| confine::capabilities::keep_only(&keep))
        .and_then(|()| needs.files(own).confine())
        .and_then(|()| confine::calls::deny_intrusion(Programs::Never, Rings::Never))
        .context("confining the daemon")
}

/// Removes from a daemon what it does not need once it has mounted.
///
/// # Errors
/// If the kernel refuses.
pub fn image_daemon_mounted(needs: &ImageNeeds) -> anyhow::Result<()> {
    if is_off()? {
        return Ok(());
    }
    confine::calls::deny_mounting(needs.sockets()).context("confining the daemon")
}
