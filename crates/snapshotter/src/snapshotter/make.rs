//! Making snapshots, showing them, and settling those that are to be committed.

use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use super::State;
use super::place::Reserved;
use super::reuse::STACKED_LATER;
use crate::catalog::NewSnapshot;
use crate::copy::copy_tree;
use crate::directories::{Directories, owner};
use crate::error::{Result, SnapshotError};
use crate::filter::Filter;
use crate::lowers::{LayerDir, Lowers};
use crate::mapping::Mapping;
use crate::overlay::{Layout, Mount};
use crate::pace::Unhurried;
use crate::snapshot::{Kind, Labels, Snapshot, SnapshotId, Stack};
use crate::staged::{self, StagedName};
use crate::unpacks::{Adopted, Unpack, is_unpacked_into};

impl<L: Lowers> State<L> {
    pub(super) fn create(
        &self,
        kind: Kind,
        key: &str,
        parent: Option<&str>,
        labels: Labels,
    ) -> Result<Vec<Mount>> {
        let on = self.catalog.check_create(key, parent)?;
        on.as_ref().map_or(Ok(()), |on| self.present(on))?;
        let staged = match kind {
            Kind::Active => StagedName::of(&labels)?,
            _ => None,
        };
        let shared = match (kind, &staged) {
            (Kind::Active, None) => self.reused(key, parent, &labels)?,
            _ => None,
        };
        let block = match (kind, &staged, &shared) {
            (Kind::Active, None, None) => self.block_layer(key, parent, &labels)?,
            _ => shared.as_ref().and_then(|layer| layer.block.clone()),
        };
        let device = match (kind, &staged, &shared, &block) {
            (Kind::Active, None, None, None) => self.device_form(key, &labels, on.as_ref())?,
            _ => None,
        };
        let shares = shared.map(|layer| (layer.name, layer.shares.unwrap_or(layer.id)));
        let dirs = match (&staged, &shares, device) {
            (None, None, None) => self.place_for(kind, key, &labels)?,
            _ => &self.root, // or a link there
        };
        let owner = match (&block, device) {
            (Some(_), _) | (_, Some(_)) => None, // its directory is nobody's root
            (None, None) => self.owner(&labels, on.as_ref())?,
        };
        let reserved = Reserved::next(self);
        let made = match &shares {
            Some((_, with)) => self.share(reserved.id, *with).map(|()| None),
            None => self.fill(dirs, reserved.id, kind, owner, staged.as_ref()),
        };
        let made = made.and_then(|adopted| {
            let stack = self.catalog.create(NewSnapshot {
                key: key.to_owned(),
                id: reserved.id,
                kind,
                parent: parent.map(str::to_owned),
                labels,
                tier: self.tier_of(dirs),
                shares,
                block,
                device,
            })?;
            let mounts = self.mounts(&stack);
            if mounts.is_err() {
                self.end_device(&stack.snapshot);
                // Who is refused a snapshot does not know that there is one.
                drop(self.catalog.remove(key));
            }
            Ok((stack, adopted, mounts?))
        });
        match made {
            Ok((stack, adopted, mounts)) => {
                self.tell_of(kind, &stack.snapshot, adopted);
                Ok(mounts)
            }
            Err(error) => {
                // What cannot be deleted now is garbage for the next sweep.
                drop(dirs.delete(reserved.id));
                if let Some(fast) = self.fast.as_ref().filter(|_| staged.is_some()) {
                    fast.let_go(reserved.id);
                    drop(fast.directories().delete(reserved.id));
                }
                Err(error)
            }
        }
    }

    /// Returns whom the topmost directory of a new snapshot is to belong to: root of its container, or whom
    /// that below belongs to.
    fn owner(&self, labels: &Labels, on: Option<&Snapshot>) -> Result<Option<(u32, u32)>> {
        if let Some(mapping) = Mapping::of(|label| labels.get(label))? {
            return Ok(Some(mapping.root()));
        }
        let Some(on) = on else { return Ok(None) };
        let below = self.image_root(on)?.unwrap_or_else(|| self.root.fs(on.id));
        owner(&below).map(Some)
    }

    /// Returns what is to be shifted for a container, if its client has not done so.
    fn mapping(&self, stack: &Stack) -> Result<Option<Mapping>> {
        let Some(mapping) = Mapping::of(|label| stack.snapshot.labels.get(label))? else {
            return Ok(None);
        };
        let done = match stack.parents.first() {
            Some(on) => mapping.is_done_in(&self.root.fs(on.id))?,
            None => false,
        };
        Ok((!done).then_some(mapping))
    }

    /// Makes the directories of a new snapshot, or takes those that were staged for it.
    fn fill(
        &self,
        dirs: &Directories,
        id: SnapshotId,
        kind: Kind,
        owner: Option<(u32, u32)>,
        staged: Option<&StagedName>,
    ) -> Result<Option<Adopted>> {
        let Some(name) = staged else {
            return dirs.create(id, kind, owner).map(|()| None);
        };
        if let Some(from) = staged::find(&self.root, name)? {
            let to = self.root.of(id);
            std::fs::rename(&from, &to).map_err(SnapshotError::io("adopt", &from))?;
            return Ok(Some(Adopted::Disk));
        }
        match &self.fast {
            Some(fast) if fast.adopt(name, id)? => Ok(Some(Adopted::Fast)),
            _ => Err(staged::not_staged(name.as_str())),
        }
    }

    /// Notifies the placer of layers of a new snapshot, if it is for a layer.
    fn tell_of(&self, kind: Kind, snapshot: &Snapshot, adopted: Option<Adopted>) {
        let Some(fast) = &self.fast else { return };
        if let Some(place) = adopted {
            fast.unpacks.adopted(place);
        } else if let Some(unpack) =
            Unpack::of(snapshot).filter(|_| kind == Kind::Active && !snapshot.is_elsewhere())
        {
            fast.unpacks.begins(unpack);
        }
    }

    pub(super) fn mounts(&self, stack: &Stack) -> Result<Vec<Mount>> {
        let snapshot = &stack.snapshot;
        if let Some(form) = snapshot.device {
            return self.device_mounts(stack, form);
        }
        let (above, image) = self.above_blocks(stack)?;
        let layers: Vec<LayerDir> = above.iter().map(|parent| self.layer(parent)).collect();
        let mapping = self.mapping(stack)?;
        let places = match mapping {
            Some(_) if !self.lowers.may_be_mapped() => Vec::new(),
            // What is above a block image was made on this machine, and belongs to no image that is recorded.
            _ if image.is_some() => Vec::new(),
            // A layer is unpacked on what was unpacked just now: that need not be served, nor waited for.
            _ if is_unpacked_into(snapshot) => Vec::new(),
            _ => self.lowers.places(snapshot, &layers),
        };
        let mut places = places.into_iter();
        let lowers: Vec<PathBuf> = layers
            .into_iter()
            .map(|layer| lower(places.next().flatten(), layer))
            .chain(image.map(Ok))
            .collect::<Result<_>>()?;
        let dirs = self.directories(snapshot);
        // Nobody is to write into what is another's, or elsewhere: it is shown as the layer that it will be.
        let kind = match snapshot.is_elsewhere() {
            true => Kind::Committed,
            false => snapshot.kind,
        };
        self.options.mounts(&Layout {
            kind,
            fs: &dirs.fs(snapshot.id),
            work: &dirs.work(snapshot.id),
            lowers: &lowers,
            is_stacked_later: snapshot.parent.is_none()
                && snapshot.labels.contains_key(STACKED_LATER),
            mapping: mapping.as_ref(),
        })
    }

    pub(super) fn layer(&self, committed: &Snapshot) -> LayerDir {
        LayerDir {
            id: committed.id,
            name: committed.name.clone(),
            dir: self.root.fs(committed.id),
        }
    }

    /// Moves the directories of a snapshot that is to be committed to the disk of the root.
    /// Until the result is dropped they do not count as garbage.
    pub(super) fn settle(&self, active: &Snapshot, name: &str) -> Result<Option<Reserved<'_, L>>> {
        let Some(tier) = &active.tier else {
            return Ok(None);
        };
        let reserved = Reserved::alone(self, active)?;
        // Another commit may have ended just now, and what is there would be its layer.
        self.catalog.check_commit(name, &active.name, None)?;
        // What a former attempt left.
        self.root.delete(active.id)?;
        let to = self.root.of(active.id);
        let made = std::fs::DirBuilder::new().mode(0o700).create(&to);
        made.map_err(SnapshotError::io("make", &to))?;
        copy_tree(
            &Directories::at(tier).fs(active.id),
            &to.join("fs"),
            &Unhurried,
        )?;
        sync(&to)?;
        Ok(Some(reserved))
    }

    pub(super) fn walk(&self, filter: &Filter) -> Result<Vec<Snapshot>> {
        self.catalog
            .walk(filter, |error| log::warn!("{error}; skipped"))
    }
}

/// Returns where an overlay finds `layer`: at `served`, if that is a directory.
fn lower(served: Option<PathBuf>, layer: LayerDir) -> Result<PathBuf> {
    if let Some(served) = served {
        if served.is_dir() {
            return Ok(served);
        }
        let served = served.display();
        log::warn!(
            "{served} no longer serves {:?}; using the plain directory",
            layer.name
        );
    }
    if layer.dir.is_dir() {
        return Ok(layer.dir);
    }
    Err(SnapshotError::Lost {
        key: layer.name,
        dir: layer.dir,
    })
}

/// Syncs the file system that holds `dir`: data from a tmpfs must not be lost after the snapshot was
/// committed.
pub(super) fn sync(dir: &Path) -> Result<()> {
    let file = std::fs::File::open(dir).map_err(SnapshotError::io("open", dir))?;
    nix::unistd::syncfs(&file).map_err(|error| SnapshotError::io("flush", dir)(error.into()))
}
