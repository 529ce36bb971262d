//! A mount, as the node holds it.

use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::sync::Arc;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use parking_lot::Mutex;
use yolofs::{Hello, Visible};

use super::assigned::Assigned;
use super::assignment::{Assignment, Service};
use super::descriptors::{KeptDescriptor, MountDescriptors};
use super::wire::Adoption;
use super::workers::Worker;
use node_api::mount_state::{MountMode, MountState};
use node_api::spec::MountSpec;
use node_api::status::MountStatus;
use node_api::view::MountView;
use node_records::company::Company;
use node_records::hello::HelloBytes;
use node_records::instance::{Instance, Records};

/// A mount of the node, from the moment it is in the mount table until its last user is gone.
#[derive(Debug)]
pub(crate) struct Owned {
    /// Its name: that of its place.
    pub id: String,
    /// Distinguishes it from others at the same place.
    pub key: String,
    /// Its place and whether it is mounted there.
    pub visible: Visible,
    device: OwnedFd,
    names: OwnedFd,
    /// Which worker serves it.
    pub assigned: Assigned<State>,
    /// Held while the record is written.
    recording: Mutex<()>,
}

#[derive(Debug)]
pub(crate) struct State {
    spec: MountSpec,
    hello: HelloBytes,
    private: Option<Arc<OwnedFd>>,
    /// `None` if the source is on no disk, or the mount is over: later holders of this struct then do
    /// not keep the source open.
    source: Option<Arc<OwnedFd>>,
    /// Whether its worker has released the private mount, or never had it.
    told: bool,
    /// The last status from its worker.
    heard: Option<MountStatus>,
}

impl Owned {
    /// Returns the mount of a record, with its descriptors.
    pub(crate) fn new(instance: &Instance, held: MountDescriptors) -> Arc<Self> {
        let place = instance.spec.mountpoint.clone();
        Arc::new(Self {
            id: instance.id.clone(),
            key: instance.key.clone(),
            visible: Visible::resume(place, instance.mount.into()),
            device: held.device,
            names: held.names,
            assigned: Assigned::new(
                Assignment::after_a_restart(
                    instance.alone,
                    instance.restarts,
                    instance.last_gap_ms,
                ),
                State {
                    spec: instance.spec.clone(),
                    hello: instance.hello.clone(),
                    private: held.private.map(Arc::new),
                    source: held.source.map(Arc::new),
                    told: false,
                    heard: None,
                },
            ),
            recording: Mutex::new(()),
        })
    }

    /// Returns the requested specification.
    pub(crate) fn spec(&self) -> MountSpec {
        self.assigned.lock().spec.clone()
    }

    /// Serves from another boot image from now on.
    pub(crate) fn set_spec(&self, spec: MountSpec) {
        self.assigned.lock().spec = spec;
    }

    /// Returns whether the kernel sends requests again that a dead worker had read: since Linux 6.9.
    pub(crate) fn kernel_resends(&self) -> bool {
        kernel_resends(&self.assigned.lock().hello)
    }

    /// Returns whether there are requests that no worker has read.
    pub(crate) fn has_unread(&self) -> bool {
        let mut unread = [PollFd::new(self.device.as_fd(), PollFlags::POLLIN)];
        // Nothing is said of a device that cannot be asked.
        poll(&mut unread, PollTimeout::ZERO) != Ok(0)
    }

    /// Returns whether the visible mount is gone.
    pub(crate) fn is_leaving(&self) -> bool {
        self.assigned.lock().private.is_none()
    }

    /// Returns whether the visible mount is gone and its worker was not notified.
    pub(crate) fn is_to_be_told(&self) -> bool {
        let state = self.assigned.lock();
        state.private.is_none() && !state.told
    }

    /// Notes that its worker was notified that the visible mount is gone.
    pub(crate) fn set_told(&self) {
        self.assigned.lock().told = true;
    }

    /// Returns what kind of worker it is to have.
    pub(crate) fn company(&self) -> Company {
        let state = self.assigned.lock();
        Company::of(&state.spec, state.assignment.alone())
    }

    /// Returns what a worker needs to serve it, with the source and the private mount.
    pub(crate) fn adoption(&self) -> (Adoption, [Option<Arc<OwnedFd>>; 2]) {
        let state = self.assigned.lock();
        let adoption = Adoption {
            id: self.key.clone(),
            spec: state.spec.clone(),
            hello: state.hello.clone(),
        };
        (adoption, [state.source.clone(), state.private.clone()])
    }

    /// Returns the descriptors, the source and the private mount being those of [`Owned::adoption`].
    pub(crate) fn descriptors<'a>(
        &'a self,
        [source, private]: &'a [Option<Arc<OwnedFd>>; 2],
    ) -> MountDescriptors<BorrowedFd<'a>> {
        MountDescriptors {
            device: self.device.as_fd(),
            source: source.as_ref().map(|fd| fd.as_fd()),
            names: self.names.as_fd(),
            private: private.as_ref().map(|fd| fd.as_fd()),
        }
    }

    /// Returns the source, and the names that the kernel knows; `None` if the source is on no
    /// disk.
    pub(crate) fn source_and_names(&self) -> Option<(Arc<OwnedFd>, BorrowedFd<'_>)> {
        let source = self.assigned.lock().source.clone()?;
        Some((source, self.names.as_fd()))
    }

    /// Returns the descriptors that outlive the node, with the kind of each.
    pub(crate) fn kept(&self) -> Vec<(KeptDescriptor, Arc<OwnedFd>)> {
        let mut kept = Vec::new();
        match self.device.try_clone() {
            Ok(device) => kept.push((KeptDescriptor::Device, Arc::new(device))),
            Err(error) => log::warn!("{}: its device is not kept: {error}", self.id),
        }
        let state = self.assigned.lock();
        kept.extend(state.source.clone().map(|fd| (KeptDescriptor::Source, fd)));
        kept.extend(
            state
                .private
                .clone()
                .map(|fd| (KeptDescriptor::Private, fd)),
        );
        kept
    }

    /// Returns an event for the end of the session: the device has an error then. No other event is
    /// waited for, so that requests wake no thread.
    pub(crate) fn end(&self) -> PollFd<'_> {
        PollFd::new(self.device.as_fd(), PollFlags::empty())
    }

    /// Notes that the worker serves it, and its FUSE_INIT response; unless it has died since.
    pub(crate) fn served(&self, worker: &Arc<Worker>, hello: Vec<u8>) {
        let mut state = self.assigned.lock();
        let first = state.hello.answer.is_empty();
        if first {
            state.hello.answer = hello;
        }
        if state.assignment.served(worker, first) {
            self.assigned.tell();
        }
    }

    /// Notes that a worker serves it that an earlier node had requested.
    pub(crate) fn found(&self, worker: &Arc<Worker>) {
        self.assigned.lock().assignment.found(worker);
    }

    /// Takes the private mount out: the visible one is gone. Returns whether there was one.
    pub(crate) fn take_private(&self) -> Option<Arc<OwnedFd>> {
        let private = self.assigned.lock().private.take();
        self.assigned.tell();
        private
    }

    /// Notes that it is over: its record is not written any more, and its source is closed.
    pub(crate) fn set_over(&self) {
        let source = {
            let mut state = self.assigned.lock();
            state.assignment.over = true;
            state.source.take()
        };
        drop(source);
        self.assigned.tell();
        drop(self.recording.lock());
    }

    /// Writes the record, unless the mount is over.
    ///
    /// # Errors
    /// If the run directory cannot be written.
    pub(crate) fn record(&self, records: &Records) -> anyhow::Result<()> {
        let _one_at_a_time = self.recording.lock();
        match self.instance() {
            Some(instance) => records.keep(&instance),
            None => Ok(()),
        }
    }

    fn instance(&self) -> Option<Instance> {
        let state = self.assigned.lock();
        if state.assignment.over {
            return None;
        }
        Some(Instance {
            id: self.id.clone(),
            key: self.key.clone(),
            spec: state.spec.clone(),
            mount: self.visible.ids().into(),
            hello: state.hello.clone(),
            worker: state.assignment.process(),
            alone: state.assignment.alone(),
            leaving: state.private.is_none(),
            restarts: state.assignment.restarts,
            last_gap_ms: state.assignment.last_gap_ms(),
        })
    }

    /// Returns its status, with the worker's latest status if there is one.
    pub(crate) fn view(&self, heard: Option<MountStatus>) -> MountView {
        let mut state = self.assigned.lock();
        let answered = heard.is_some();
        if heard.is_some() {
            state.heard = heard;
        }
        let leaving = state.private.is_none();
        let (now, pid, error) = match &state.assignment.service {
            Service::By(worker) if leaving => (MountState::Leaving, Some(worker.process.pid), None),
            Service::By(worker) => (MountState::Serving, Some(worker.process.pid), None),
            Service::Nobody | Service::Asked(_) if state.hello.answer.is_empty() => {
                (MountState::Starting, None, None)
            }
            Service::Nobody | Service::Asked(_) => (MountState::Restarting, None, None),
            Service::GivenUp(why) => (MountState::Failed, None, Some(why.clone())),
        };
        let mut status = state.heard.clone().unwrap_or_else(|| MountStatus {
            id: String::new(),
            mountpoint: state.spec.mountpoint.clone(),
            source: state.spec.source.clone(),
            source_inode: None,
            mode: MountMode::Unknown,
            state: now,
            pid,
            boot: None,
            served: None,
            nic: None,
            image: None,
            warnings: Vec::new(),
        });
        // Below one name there is one mount to be seen at a place; others are told apart.
        status.id = if leaving { &self.key } else { &self.id }.clone();
        status.mountpoint.clone_from(&state.spec.mountpoint);
        status.source.clone_from(&state.spec.source);
        status.state = now;
        status.pid = pid;
        if !answered {
            status.served = None;
        }
        MountView {
            status,
            restarts: state.assignment.restarts,
            last_gap_ms: state.assignment.last_gap_ms(),
            error,
            auto: state.spec.auto,
            label: state.spec.label.clone(),
        }
    }
}

/// Returns whether the kernel of a handshake sends requests again that a server had read and not answered.
pub(crate) fn kernel_resends(hello: &HelloBytes) -> bool {
    Hello::from_parts(hello.request.clone(), None).is_ok_and(|hello| hello.resends())
}
