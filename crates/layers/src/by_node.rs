//! Layers whose mounts the node service owns: they outlive this process.
//!
//! The attached layers are the mounts with our label in the mount table: the node keeps them, and a
//! restarted process finds them there. This process only remembers which layer it has attached
//! where, and from which boot image.

mod attachments;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use blocks::Digest;
use bootimg::{Image, ImageId, Store, layer_name, place_name};
use localfs::{Patience, SourceRoot};
use parking_lot::Mutex;

use super::bind::bind;
use super::reach::privileges_at;
use super::recorded_here::{inode_of, is_of, open, recorded_here};
use super::warm::Hold;
use crate::patient_node::PatientClient;
use crate::server::{Attach, LayerPlace, LayerServer, ServedBy, WarmedLayer};
use crate::status::LayerStatus;
use attachments::{Attachment, Attachments};
use host::caught::caught_or;
use host::interrupt::Interrupt;
use host::mount_table::MOUNT_KIND;
use host::mount_table::{is_covered, labelled, top_at};
use host::run_dir::RunDir;
use mounting::source::Source;
use node_api::boot_choice::BootChoice;
use node_api::client::{CallError, NodeClient};
use node_api::control::WhenInUse;
use node_api::mount_state::MountState;
use node_api::serve_mode::ServeMode;
use node_api::spec::MountSpec;
use node_api::status::MountStatus;
use node_api::view::MountView;
use yolofs::Privileges;
use yolofs::XattrAnswers;

/// How long a node that went away may take to come back: its keeper starts it again at once.
const COMES_BACK: Duration = Duration::from_secs(10);
/// How long it may take for those who only look.
const COMES_BACK_TO_LOOK: Duration = Duration::from_secs(2);
/// What HTTP says of things that are not there.
const NOT_FOUND: u16 = 404;
/// Layers that are detached at the same time: those in use take the node a moment each.
const DETACHED_AT_A_TIME: usize = 8;

/// Requests the mounts of layers from the node.
#[derive(Debug)]
pub(crate) struct NodeServer {
    store: Store,
    /// The store's, as the node is to find it.
    store_dir: PathBuf,
    label: String,
    all_xattrs: bool,
    node: PatientClient,
    interrupt: Interrupt,
    attachments: Attachments,
}

impl NodeServer {
    /// Returns one without attached layers. Its mounts have this label.
    ///
    /// # Errors
    /// If the current directory was removed, and the store's path is relative to it.
    pub(crate) fn new(
        store: Store,
        label: &str,
        node: NodeClient,
        xattrs: XattrAnswers,
        interrupt: &Interrupt,
    ) -> anyhow::Result<Self> {
        let store_dir = std::path::absolute(store.dir()).context("finding the store")?;
        Ok(Self {
            store,
            store_dir,
            label: label.to_owned(),
            all_xattrs: xattrs == XattrAnswers::Always,
            node: PatientClient::new(node, interrupt.clone()),
            interrupt: interrupt.clone(),
            attachments: Attachments::default(),
        })
    }

    /// Returns the mount of ours that the node has at a place. One whose worker was just replaced, or has not answered the
    /// node yet, is waited for, a little: then it can be told what it is served from.
    fn standing(&self, target: &Path) -> anyhow::Result<Option<MountView>> {
        if !is_covered(target) {
            return Ok(None);
        }
        let id = RunDir::id_of(target);
        let deadline = Instant::now() + COMES_BACK;
        loop {
            let view = match self.node.ask(COMES_BACK, |node| node.mount(&id)) {
                Ok(view) if view.label.as_deref() == Some(&self.label) => view,
                Ok(_) => return Ok(None),
                Err(error) if is_unknown(&error) => return Ok(None),
                Err(error) => return Err(error.into()),
            };
            match Told::of(&view.status) {
                Told::Now => return Ok(Some(view)),
                Told::Later if self.node.may_wait(deadline) => {}
                Told::Later => bail!("its worker is still being replaced, or does not answer"),
                Told::Never => return Ok(None),
            }
        }
    }

    /// Returns the boot image for the very directory, which is read if there is none yet.
    fn bound(&self, root: SourceRoot, layer: &Digest) -> anyhow::Result<Option<Arc<Image>>> {
        if let Some(image) = recorded_here(&self.store, &root, layer)? {
            return Ok(Some(image));
        }
        let source = Source::scan(Arc::new(root))?;
        bind(&self.store, &source, layer, &self.interrupt)
    }

    /// Returns whether a mount shows the directory that is at its source's path now. One that this
    /// process has attached does: who takes the directory away takes the mount away first.
    ///
    /// # Errors
    /// If the directory cannot be looked at: its mount may be in use, and is left as it is.
    fn shows(
        &self,
        mount: &MountView,
        place: &LayerPlace,
        root: &SourceRoot,
    ) -> anyhow::Result<bool> {
        if self.attachments.contains(&place.target) {
            return Ok(true);
        }
        if let Some(shown) = mount.status.source_inode {
            return Ok(inode_of(root)? == shown);
        }
        // A worker of an earlier release tells the boot image only.
        let boot = mount.status.boot.as_ref();
        let used = boot.and_then(|boot| boot.content.parse::<ImageId>().ok());
        match used.and_then(|used| open(&self.store, &used, &place.layer)) {
            Some(image) => is_of(&image, root),
            None => Ok(false),
        }
    }

    fn serve(&self, place: &LayerPlace) -> anyhow::Result<Attach> {
        // Most layers of a node have no boot image: not even their names are read then.
        if self.store.layer(&place.layer)?.is_none() {
            return Ok(Attach::Unknown);
        }
        // It may be served in place.
        let root = SourceRoot::open_plain_within(&place.source, Patience::default().deadline)?;
        let (source, path) = (root.id(), root.path().to_owned());
        let standing = match self.standing(&place.target)? {
            Some(mount) if !self.shows(&mount, place, &root)? => {
                self.detach(&place.target)?;
                None
            }
            standing => standing,
        };
        let Some(image) = self.bound(root, &place.layer)? else {
            return Ok(match standing {
                Some(_) => Attach::Already,
                None => Attach::Unknown,
            });
        };
        let boot = BootChoice::Image(place_name(&place.layer, source));
        let image = image.info().id;
        let became = match standing {
            Some(mount) if is_from(&mount, &image) => Attach::Already,
            Some(mount) => {
                let id = &mount.status.id;
                self.node
                    .ask(COMES_BACK, |node| node.swap(id, boot.clone()))?;
                Attach::Attached
            }
            None => {
                let spec = self.spec(path, place, boot);
                self.node.ask(COMES_BACK, |node| node.make(&spec))?;
                Attach::Attached
            }
        };
        let attachment = Attachment {
            layer: place.layer,
            source,
            image,
        };
        self.attachments.insert(&place.target, attachment);
        Ok(became)
    }

    fn spec(&self, source: PathBuf, place: &LayerPlace, boot: BootChoice) -> MountSpec {
        MountSpec {
            source,
            mountpoint: place.target.clone(),
            store: self.store_dir.clone(),
            boot,
            mode: Some(ServeMode::Lower),
            inject: true,
            lock: false,
            budget_bytes: None,
            readahead_kib: None,
            // Opens cost nothing and pages are pushed: few requests come.
            threads: 1,
            auto: false,
            suid_dev: privileges_at(&place.target) == Privileges::Honoured,
            all_xattrs: self.all_xattrs,
            plain: true,
            // After a reboot the service knows what is to be attached.
            lasting: false,
            label: Some(self.label.clone()),
            image: None,
            nic: None,
            writable: false,
        }
    }

    /// Returns where mounts of ours are, and forgets those that somebody else unmounted.
    fn sweep(&self) -> BTreeSet<PathBuf> {
        let moment = self.attachments.moment();
        match labelled(MOUNT_KIND, &self.label) {
            Ok(listed) => {
                let listed = BTreeSet::from_iter(listed);
                self.attachments.retain(moment, &listed);
                listed
            }
            Err(error) => {
                log::warn!("{error:#}");
                self.attachments.all().into_keys().collect()
            }
        }
    }

    /// Whether a layer was recorded again in its directory. A store that cannot say has no news.
    fn is_outdated(&self, attached: &Attachment) -> bool {
        let newest = self.store.layer_at(&attached.layer, attached.source);
        matches!(newest, Ok(Some(newest)) if newest != attached.image)
    }

    fn is_buried(&self, target: &Path) -> bool {
        let top = top_at(target);
        matches!(top, Ok(Some(top)) if !top.is_ours(&self.label))
    }

    /// Returns the node's state of one of our mounts; `None` if its layer is unknown.
    fn status_of(
        &self,
        mount: MountView,
        attached: &BTreeMap<PathBuf, Attachment>,
    ) -> Option<LayerStatus> {
        let target = mount.status.mountpoint;
        let mut boot = mount.status.boot.unwrap_or_default();
        let layer = match attached.get(&target) {
            Some(attached) => attached.layer,
            // It was detached, or attached by a former process: the boot image is called after it.
            None => boot.image.split('@').next()?.parse().ok()?,
        };
        boot.image = layer_name(&layer);
        let served = mount.status.served.unwrap_or_default();
        let state = mount.status.state;
        Some(LayerStatus::of(layer, target, state, boot, served))
    }
}

impl LayerServer for NodeServer {
    fn served_by(&self) -> ServedBy {
        ServedBy::Node
    }

    fn store(&self) -> &Store {
        &self.store
    }

    /// The boot image of a mount is exchanged under those who use it.
    fn attach(&self, place: &LayerPlace) -> anyhow::Result<Attach> {
        self.serve(place)
            .with_context(|| format!("attaching layer {}", place.layer.short()))
    }

    fn detach(&self, target: &Path) -> anyhow::Result<()> {
        let id = RunDir::id_of(target);
        let unmount = |node: &NodeClient| node.unmount(&id, WhenInUse::Detach);
        match self.node.ask(COMES_BACK, unmount) {
            Err(error) if !is_unknown(&error) => {
                return Err(error).with_context(|| format!("detaching {}", target.display()));
            }
            _ => {}
        }
        self.attachments.remove(target);
        Ok(())
    }

    fn detach_all(&self) {
        let mut targets = self.targets();
        targets.retain(|target| !self.is_buried(target));
        let waiting = Mutex::new(targets.into_iter());
        let work = || {
            // Taken in a statement of its own, so that the lock is not held while detaching.
            while let Some(target) = { waiting.lock().next() } {
                if let Err(error) = caught_or(|| self.detach(&target)) {
                    log::warn!("{}: {error:#}", target.display());
                }
            }
        };
        std::thread::scope(|scope| {
            for _ in 0..DETACHED_AT_A_TIME {
                scope.spawn(work);
            }
        });
    }

    fn targets(&self) -> Vec<PathBuf> {
        self.sweep().into_iter().collect()
    }

    fn outdated(&self) -> BTreeSet<PathBuf> {
        let mut listed = self.sweep();
        let known = self.attachments.all();
        listed.retain(|target| {
            let attached = known.get(target);
            attached.is_none_or(|attached| self.is_outdated(attached))
        });
        listed
    }

    fn serves(&self, target: &Path) -> bool {
        matches!(top_at(target), Ok(Some(top)) if top.is_ours(&self.label))
    }

    /// Those who use a layer have the node.
    fn leaving(&self) -> usize {
        0
    }

    fn lost(&self) -> u64 {
        self.sweep();
        self.attachments.lost()
    }

    fn status(&self) -> Vec<LayerStatus> {
        self.sweep();
        let attached = self.attachments.all();
        match self.node.ask(COMES_BACK_TO_LOOK, NodeClient::mounts) {
            Ok(mounts) => mounts
                .into_iter()
                .filter(|mount| mount.label.as_deref() == Some(&self.label))
                .filter_map(|mount| self.status_of(mount, &attached))
                .collect(),
            Err(error) => {
                log::warn!("cannot query the counters of layers: {error:#}");
                let unknown = attached.into_iter().map(|(target, attached)| {
                    let (boot, served) = Default::default();
                    LayerStatus::of(
                        attached.layer,
                        target,
                        MountState::NotAnswering,
                        boot,
                        served,
                    )
                });
                unknown.collect()
            }
        }
    }

    fn prewarm(&self, _: &ImageId) -> Vec<WarmedLayer> {
        Vec::new()
    }

    fn warm_again(&self, target: &Path) {
        let id = RunDir::id_of(target);
        let warmed = self
            .node
            .ask(COMES_BACK_TO_LOOK, |node| node.prewarm(&id, None));
        if let Err(error) = warmed {
            log::debug!("{} is not warmed again: {error:#}", target.display());
        }
    }

    /// The node's workers warm layers when they see fit.
    fn hold_warming(&self) -> Option<Hold> {
        None
    }
}

/// Whether the node tells what a mount is served from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Told {
    Now,
    /// It is served, or will be, by a worker that the node has not heard from.
    Later,
    /// Nobody serves it.
    Never,
}

impl Told {
    fn of(status: &MountStatus) -> Self {
        match status.state {
            // Counters are the worker's own: without them, nothing else is known either.
            MountState::Serving if status.served.is_some() => Self::Now,
            MountState::Serving | MountState::Starting | MountState::Restarting => Self::Later,
            MountState::Leaving
            | MountState::Failed
            | MountState::Dead
            | MountState::NotAnswering
            | MountState::Unknown => Self::Never,
        }
    }
}

/// Whether a mount is served from this boot image.
fn is_from(mount: &MountView, image: &ImageId) -> bool {
    let boot = mount.status.boot.as_ref();
    boot.is_some_and(|boot| boot.content == image.to_string())
}

fn is_unknown(error: &CallError) -> bool {
    matches!(error, CallError::Refused { status, .. } if *status == NOT_FOUND)
}

#[cfg(test)]
mod tests {
    use node_api::memory::busy_mount;

    use super::*;

    #[test]
    fn a_mount_whose_worker_has_not_answered_is_not_taken_for_another() {
        let mut status = busy_mount("/layer").status;
        assert_eq!(Told::of(&status), Told::Now);
        // What a node that was started again tells until its worker answers.
        (status.boot, status.served) = (None, None);
        assert_eq!(Told::of(&status), Told::Later);
        status.state = MountState::Failed;
        assert_eq!(Told::of(&status), Told::Never);
    }
}
