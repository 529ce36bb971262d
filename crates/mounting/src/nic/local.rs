//! What a mount keeps of the service on the local disk: chunks, indexes, and the plans that came with them.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;

use anyhow::Context as _;
use blocks::ContentId;
use blockservice::client::ServedPlan;
use blockservice::plan_order;
use bootimg::{PLAN_MAX, encode_plan};
use chunks::index::{Index, ZEROS};
use chunks::{Catalog, ChunkStore, SharedStore, StoreConfig};
use node_api::boot_choice::BootChoice;
use node_api::nic::{NicName, NicSpec};
use node_api::nic_needs::{CHUNKS, SOURCES};

/// Of the bytes of a cache, the part that indexes may take, and that plans may: a thirty-second.
const INDEXES: u64 = 32;
/// How deep a cache is: its parts, and their segments.
const CACHE_DEPTH: u8 = 3;
/// Plans are of no machine: the cache has one user.
const GIVER: u64 = 0;

/// What a mount keeps of the service on the local disk.
pub(super) struct Local {
    pub(super) store: Arc<dyn ChunkStore>,
    /// Of the indexes; in place of boot images it has the plans of sources.
    catalog: Arc<Catalog>,
}

/// The thread that keeps what came with a source: it syncs files, for which no mount waits. Whoever drops this waits for
/// its end.
#[derive(Debug)]
pub(super) struct Keeping(Option<JoinHandle<()>>);

impl Drop for Keeping {
    fn drop(&mut self) {
        if let Some(thread) = self.0.take() {
            // It has logged what went wrong.
            let _ended = thread.join();
        }
    }
}

/// What is kept of one source.
#[derive(Clone)]
pub(super) struct Kept {
    pub(super) index: Arc<Index>,
    /// The plan that the service sent last.
    pub(super) plan: Option<ServedPlan>,
}

impl Local {
    /// Opens the cache of a mount, if it has one. Without one that nobody asked for, a mount goes on.
    pub(super) fn of(spec: &NicSpec) -> anyhow::Result<Option<Self>> {
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

    pub(super) fn open(dir: &Path, budget_bytes: u64) -> anyhow::Result<Self> {
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
        let plans = catalog.limit_boots(budget_bytes / INDEXES);
        plans.with_context(opening)?;
        Ok(Self {
            store: Arc::new(store),
            catalog: Arc::new(catalog),
        })
    }

    /// Returns what is kept of a source.
    pub(super) fn kept(&self, name: &NicName) -> Option<Kept> {
        let kept = self.catalog.source(name.name.as_bytes());
        // One that is damaged is fetched anew.
        let index = kept.unwrap_or_else(|error| {
            log::warn!("{}: {:#}", name.label(), anyhow::Error::new(error));
            None
        })?;
        let is_wanted = name.id.is_none_or(|id| index.id() == id);
        is_wanted.then(|| Kept {
            plan: self.plan(&index),
            index,
        })
    }

    /// Returns the newest plan of an index; one that is damaged is requested again.
    fn plan(&self, index: &Index) -> Option<ServedPlan> {
        let newest = self.catalog.boots(&index.id()).into_iter().next()?;
        let most = usize::try_from(PLAN_MAX).unwrap_or(usize::MAX);
        let bytes = self.catalog.boot_piece(&index.id(), &newest.id, 0, most);
        let bytes = bytes.inspect_err(|error| log::warn!("the plan of a source: {error}"));
        let plan = ServedPlan::read(&bytes.ok()??, index);
        let plan = plan.inspect_err(|error| log::warn!("the plan of a source: {error}"));
        plan.ok().filter(|plan| plan.id == newest.id)
    }

    /// Returns whether all that a start reads is here: what the plan names, or without one everything.
    pub(super) fn has_all(&self, kept: &Kept, boot: &BootChoice) -> bool {
        let is_here = |id: &ContentId| *id == ZEROS || self.store.contains(id);
        match (boot, &kept.plan) {
            (BootChoice::Auto, Some(plan)) => {
                let order = plan_order(&kept.index, &plan.plan);
                let mut ids = order.iter().filter_map(|n| kept.index.chunk(*n));
                ids.all(|id| is_here(&id))
            }
            (BootChoice::Auto, None) => false,
            _ => kept.index.chunks().iter().all(is_here),
        }
    }

    /// Keeps the index of a source and its plan, as far as they are not `kept`, on a thread. What cannot be kept is requested
    /// again by the next mount.
    pub(super) fn keep(
        &self,
        name: &NicName,
        index: &Arc<Index>,
        plan: Option<&ServedPlan>,
        kept: Option<&Kept>,
    ) -> Option<Keeping> {
        let is_known = kept.is_some_and(|kept| kept.index.id() == index.id());
        let fresh = (!is_known).then(|| Arc::clone(index));
        let known = kept.and_then(|kept| kept.plan.as_ref()).map(|plan| plan.id);
        let plan = plan.filter(|plan| known != Some(plan.id)).cloned();
        if fresh.is_none() && plan.is_none() {
            return None;
        }
        let (catalog, name, id) = (Arc::clone(&self.catalog), name.clone(), index.id());
        let work = move || keep_in(&catalog, &name, &id, fresh.as_deref(), plan.as_ref());
        let thread = std::thread::Builder::new()
            .name("nic-keep".to_owned())
            .spawn(work);
        let failed = |error: &_| log::warn!("what the service sent is not kept: {error}");
        Some(Keeping(thread.inspect_err(failed).ok()))
    }
}

/// Keeps what is new of a source: its index, and the plan of that.
fn keep_in(
    catalog: &Catalog,
    name: &NicName,
    id: &ContentId,
    index: Option<&Index>,
    plan: Option<&ServedPlan>,
) {
    let label = name.label();
    if let Some(index) = index
        && let Err(error) = catalog.add(name.name.as_bytes(), index)
    {
        let error = anyhow::Error::new(error);
        return log::warn!("the index of {label} is not kept: {error:#}");
    }
    if let Some(plan) = plan {
        let bytes = [encode_plan(id, &plan.plan)];
        if let Err(error) = catalog.keep_boot(id, &plan.id, &bytes, GIVER) {
            let error = anyhow::Error::new(error);
            log::warn!("the plan of {label} is not kept: {error:#}");
        }
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    use blocks::testing::{Node, tree};
    use blocks::{BlockIndex, BlockRange, Extent, FileId, ReplayPlan};

    fn index(label: &[u8]) -> Arc<Index> {
        let nodes = [Node::dir(&[("a", 1)]), Node::file(2 * 4096)];
        let tree = Arc::new(tree(&nodes).unwrap());
        Arc::new(Index::new(label, tree, vec![ZEROS]).unwrap())
    }

    /// Returns a plan of so many blocks, as the service sends it.
    fn plan(index: &Index, blocks: u64) -> ServedPlan {
        let extent = Extent {
            file: FileId(1),
            range: BlockRange::with_len(BlockIndex(0), blocks),
            bin: 0,
            seen: 1,
        };
        let plan = ReplayPlan {
            runs: 1,
            bin_ms: 10,
            extents: vec![extent],
            touches: Vec::new(),
        };
        ServedPlan::read(&encode_plan(&index.id(), &plan), index).unwrap()
    }

    #[test]
    fn what_came_is_there_when_the_thread_that_keeps_it_has_ended() {
        let dir = tempfile::tempdir().unwrap();
        let open = || Local::open(dir.path(), 256 << 20).unwrap();
        let name: NicName = "one".parse().unwrap();
        let ids = |kept: &Kept| (kept.index.id(), kept.plan.as_ref().map(|plan| plan.id));
        let (first, second) = (index(b"first"), index(b"second"));
        let plans = [plan(&first, 1), plan(&first, 2)];
        // An index without a plan, its plan, a newer plan of it, and another index.
        let came = [
            (&first, None),
            (&first, Some(&plans[0])),
            (&first, Some(&plans[1])),
            (&second, None),
        ];
        for (index, plan) in came {
            let local = open();
            let kept = local.kept(&name);
            let keeping = local.keep(&name, index, plan, kept.as_ref());
            assert!(keeping.is_some(), "something is new");
            drop(keeping);
            drop(local);
            let local = open();
            let kept = local.kept(&name).unwrap();
            assert_eq!(ids(&kept), (index.id(), plan.map(|plan| plan.id)));
            let again = local.keep(&name, index, plan, Some(&kept));
            assert!(again.is_none(), "nothing is new");
        }
    }

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
