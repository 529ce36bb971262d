//! Making mounts and taking them away.

use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use localfs::{Patience, SourceRoot};
use nix::errno::Errno;
use nix::poll::{PollFlags, PollTimeout, poll};
use yolofs::{Busy, Connection, MountError, MountTable, Visible, Writes};

use super::assignment::Service;
use super::descriptors::{KeptDescriptor, MountDescriptors};
use super::mount_locks::MountLock;
use super::owned::Owned;
use super::owner::Owner;
use super::place;
use super::wire::WorkerRequest;
use bootstore::store::StoreSettings;
use bootstore::tiers::ways::note_passing;
use host::mount_table::{in_use_below, overlay_on};
use mounting::boot::note_use;
use node_api::control::{Made, NodeError};
use node_api::spec::MountSpec;
use node_records::hello::HelloBytes;
use node_records::instance::Instance;

/// How long users of a mount may take to let go before an unmount gives up and says "busy".
const UMOUNT_PATIENCE: Duration = Duration::from_secs(2);
/// How long an unmount waits for the end of the file system if it is unused.
const END_PATIENCE: Duration = Duration::from_secs(2);
/// How long it waits if the file system may still be in use.
const LAZY_END_PATIENCE: Duration = Duration::from_millis(200);
/// How long it waits for the worker to close what it had of the mount.
const CLOSE: Duration = Duration::from_secs(5);

impl Owner {
    /// Makes a mount, or finds it mounted already.
    ///
    /// # Errors
    /// As [`NodeControl::make`](node_api::control::NodeControl::make).
    pub(crate) fn make_mount(&self, spec: &MountSpec) -> Result<Made, NodeError> {
        let id = place::check(spec)?;
        let lock = self.mount_locks.take(&id)?;
        self.make_in_turn(&id, spec, &lock)
    }

    /// Makes a mount at a place whose lock the caller holds.
    ///
    /// # Errors
    /// As [`Owner::make_mount`].
    pub(crate) fn make_in_turn(
        &self,
        id: &str,
        spec: &MountSpec,
        _lock: &MountLock<'_>,
    ) -> Result<Made, NodeError> {
        if let Some(mount) = self.standing(id)? {
            if mount.spec() != *spec {
                return Err(NodeError::Conflict(format!(
                    "{} is mounted on {} already, in another way: unmount it first (yolofs umount)",
                    mount.spec().source.display(),
                    spec.mountpoint.display()
                )));
            }
            // The record may have been lost with a disk that was full.
            self.keep_desired(id, spec)?;
            let mount = self.view_of(&mount);
            return Ok(Made { mount, new: false });
        }
        if self.is_draining() {
            return Err(NodeError::Conflict(
                "the node drains: it takes no more mounts until it is started again (systemctl restart yolofs-node; or end it, \
                 and run yolofs node)"
                    .to_owned(),
            ));
        }
        if self.count() >= self.config.most_mounts {
            return Err(NodeError::Unavailable(format!(
                "the node has {} mounts, and takes no more: that is its limit",
                self.config.most_mounts
            )));
        }
        // Its source may not answer for long.
        let _shown = self.missing.show(id, spec);
        place::make_free(spec, &self.run_dir)?;
        self.check_covers(spec)?;
        let mount = self.create(id, spec)?;
        let served = self
            .serve_first(&mount)
            .and_then(|()| Ok(self.keep_desired(id, spec)?));
        if let Err(error) = served {
            self.undo(&mount);
            return Err(error);
        }
        self.missing.remove(id);
        let mount = self.view_of(&mount);
        Ok(Made { mount, new: true })
    }

    /// Stores a mount that is to be made again after a reboot, if that was requested.
    ///
    /// # Errors
    /// If the state directory cannot be written.
    pub(crate) fn keep_desired(&self, id: &str, spec: &MountSpec) -> anyhow::Result<()> {
        if spec.lasting {
            self.records.keep_desired(id, spec)?;
        }
        Ok(())
    }

    /// Returns the mount that is visible at a place. What turns out to be gone, or was given up,
    /// is cleared away.
    fn standing(&self, id: &str) -> Result<Option<Arc<Owned>>, NodeError> {
        let Some(mount) = self.visible_at(id) else {
            return Ok(None);
        };
        if matches!(mount.assigned.service(), Service::GivenUp(_)) {
            self.forget(&mount);
            return Ok(None);
        }
        let table = MountTable::read().context("reading the list of mounts")?;
        if mount.visible.is_listed(&table) {
            return Ok(Some(mount));
        }
        self.let_go(&mount);
        Ok(None)
    }

    /// Makes a mount that is not served yet. A failure leaves nothing behind.
    fn create(&self, id: &str, spec: &MountSpec) -> Result<Arc<Owned>, NodeError> {
        // Opened before the mount covers it: a mount may lie over its own source.
        let source = match spec.is_on_disk() {
            true => Some(open_source(spec, &self.config.store)?),
            false => None,
        };
        let label = match &spec.label {
            Some(label) => label.clone(),
            None => spec.source.to_string_lossy().into_owned(),
        };
        let writes = match spec.writable {
            true => Writes::Allowed,
            false => Writes::Refused,
        };
        let (connection, detached) = Connection::open_for(&label, writes).context("mounting")?;
        if spec.suid_dev {
            detached
                .honour_privileges()
                .context("honouring the privileges of files")?;
        }
        let (visible, private) =
            Visible::attach(detached, &spec.mountpoint).map_err(|error| match error {
                MountError::Target { .. } => {
                    NodeError::Invalid(format!("{:#}", anyhow::Error::from(error)))
                }
                error => NodeError::Failed(error.into()),
            })?;
        let owned = self.own(id, spec, &visible, connection, source, private);
        if owned.is_err() {
            let _undone = visible.unmount(Busy::Lazy, UMOUNT_PATIENCE);
        }
        Ok(owned?)
    }

    fn own(
        &self,
        id: &str,
        spec: &MountSpec,
        visible: &Visible,
        connection: Connection,
        source: Option<OwnedFd>,
        private: OwnedFd,
    ) -> anyhow::Result<Arc<Owned>> {
        let minor = visible.ids().minor;
        // Whoever had this device number before is over, whether that was noticed or not.
        for former in self.all().iter().filter(|m| m.visible.ids().minor == minor) {
            self.forget(former);
        }
        let key = format!("{id}-{minor}");
        self.records.forget(&key);
        let (device, hello) = connection.into_parts();
        let held = MountDescriptors {
            device,
            source,
            names: self.records.names(&key)?,
            private: Some(private),
        };
        let instance = Instance {
            id: id.to_owned(),
            key,
            spec: spec.clone(),
            mount: visible.ids().into(),
            hello: HelloBytes {
                request: hello.request().to_vec(),
                answer: Vec::new(),
            },
            worker: None,
            alone: false,
            leaving: false,
            restarts: 0,
            last_gap_ms: None,
        };
        let mount = Owned::new(&instance, held);
        mount.record(&self.records)?;
        self.keep.put(&mount);
        self.add(&mount);
        Ok(mount)
    }

    /// Takes a mount away that was never served.
    fn undo(&self, mount: &Arc<Owned>) {
        mount.assigned.give_up("it was never served".to_owned());
        // Whoever was quick enough to ask for something gets an error.
        if let Err(error) = mount.visible.abort() {
            log::warn!("{}: ending its connection: {error}", mount.id);
        }
        if let Err(error) = mount.visible.unmount(Busy::Lazy, UMOUNT_PATIENCE) {
            log::warn!("{}: {error}", mount.id);
        }
        self.forget(mount);
    }

    /// Unmounts, and desires it no more.
    ///
    /// # Errors
    /// As [`NodeControl::unmount`](node_api::control::NodeControl::unmount).
    pub(crate) fn unmount_at(&self, id: &str, busy: Busy) -> Result<(), NodeError> {
        let _lock = self.mount_locks.take(id)?;
        let desired = self.missing.remove(id);
        let Some(mount) = self.visible_at(id) else {
            return match self.records.forget_desired(id) || desired {
                true => Ok(()),
                false => Err(NodeError::Unknown(id.to_owned())),
            };
        };
        if busy == Busy::Wait
            && let Some(overlay) = overlay_on(mount.visible.target())?
        {
            let why = in_use_below(mount.visible.target(), &overlay);
            return Err(NodeError::Conflict(why));
        }
        self.take_away(&mount, busy, UMOUNT_PATIENCE)?;
        self.records.forget_desired(id);
        Ok(())
    }

    /// Unmounts a mount at its place; remaining users are served until they end.
    ///
    /// # Errors
    /// [`NodeError::Conflict`] if it is in use, or another mount covers it.
    pub(crate) fn take_away(
        &self,
        mount: &Arc<Owned>,
        busy: Busy,
        patience: Duration,
    ) -> Result<(), NodeError> {
        if matches!(mount.assigned.service(), Service::GivenUp(_)) {
            self.forget(mount);
            return Ok(());
        }
        mount
            .visible
            .unmount(busy, patience)
            .map_err(|error| match &error {
                MountError::Unmount { source, .. }
                    if source.raw_os_error() == Some(Errno::EBUSY as i32) =>
                {
                    NodeError::Conflict(format!(
                        "{} is in use: lazy=true detaches it all the same",
                        mount.visible.target().display()
                    ))
                }
                MountError::Covered { .. } => {
                    NodeError::Conflict(format!("{:#}", anyhow::Error::from(error)))
                }
                _ => NodeError::Failed(error.into()),
            })?;
        self.let_go(mount);
        let patience = match busy {
            Busy::Wait => END_PATIENCE,
            Busy::Lazy => LAZY_END_PATIENCE,
        };
        if ended_within(mount, patience) {
            let server = mount.assigned.service();
            self.forget(mount);
            close_at(&server, &mount.key);
        }
        Ok(())
    }

    /// Releases a mount that is no longer visible. It stays, as leaving, until its last user is
    /// gone.
    pub(crate) fn let_go(&self, mount: &Arc<Owned>) {
        let Some(private) = mount.take_private() else {
            return;
        };
        self.keep
            .drop_kind(KeptDescriptor::Private, mount.visible.ids());
        self.keep.settle();
        self.record(mount);
        drop(private);
        Self::tell_to_let_go(mount);
    }

    /// Forgets a mount that is over.
    pub(crate) fn forget(&self, mount: &Arc<Owned>) {
        if !self.remove(mount) {
            return;
        }
        if let Service::By(worker) | Service::Asked(worker) = mount.assigned.service() {
            worker.release(&mount.key);
        }
        mount.set_over();
        drop(mount.take_private());
        for kind in KeptDescriptor::ALL {
            self.keep.drop_kind(kind, mount.visible.ids());
        }
        self.keep.settle();
        self.records.forget(&mount.key);
    }
}

/// Waits until the worker that served a mount has closed what it had of it: whoever has unmounted may
/// unmount the source's file system next.
fn close_at(server: &Service, key: &str) {
    let (Service::By(worker) | Service::Asked(worker)) = server else {
        return;
    };
    let id = key.to_owned();
    if let Err(error) = worker.ask(&WorkerRequest::Close { id }, CLOSE) {
        log::warn!("{key}: its worker may have it open yet: {error:#}");
    }
}

/// Opens the source of a mount that is on a disk. The tiers are those that the node was `told` of.
fn open_source(spec: &MountSpec, told: &StoreSettings) -> Result<OwnedFd, NodeError> {
    let patience = Patience::default().deadline;
    let source = if spec.plain {
        SourceRoot::open_plain_within(&spec.source, patience)
    } else {
        SourceRoot::open_within(&spec.source, patience)
    };
    let source =
        source.map_err(|error| NodeError::Invalid(format!("{:#}", anyhow::Error::from(error))))?;
    let store = StoreSettings::to_read(spec.store.clone()).with_tiers_of(told);
    // A worker passes no files through: it is replaced by killing it.
    if let (Some(id), Ok(tiers)) = (note_use(&spec.boot, &store, &source), store.tiers()) {
        note_passing(&tiers, &id, None);
    }
    let file = source.as_fd().try_clone_to_owned();
    Ok(file.context("opening the source")?)
}

/// Returns whether the session of a mount is over, by the time `patience` has passed.
pub(crate) fn ended_within(mount: &Owned, patience: Duration) -> bool {
    let deadline = Instant::now() + patience;
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let mut end = [mount.end()];
        let timeout = PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX);
        match poll(&mut end, timeout) {
            Ok(_) => return is_end(end[0].revents()),
            Err(Errno::EINTR) => {}
            Err(errno) => {
                log::error!("{}: looking for its end: {errno}", mount.id);
                return false;
            }
        }
    }
}

/// Returns whether events of a device mean that its session is over.
pub(crate) fn is_end(events: Option<PollFlags>) -> bool {
    events.is_some_and(|events| events.intersects(PollFlags::POLLERR | PollFlags::POLLHUP))
}
