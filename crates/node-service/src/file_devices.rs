//! Devices that are files: mounts of the node, and what is mounted of the files in them.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, anyhow};
use blockimages::{DeviceConfig, FileDevice, FileSystemKind, ImageError, MountedImage, Power};
use nix::errno::Errno;
use nix::mount::{MntFlags, umount2};
use yolofs::Busy;

use super::assignment::Service;
use super::device::unserved;
use super::owner::Owner;
use super::wire::{WorkerRequest, WorkerResponse};
use host::mount_table::kind_at;
use host::run_dir::RunDir;
use node_api::boot_choice::BootChoice;
use node_api::control::NodeError;
use node_api::device::{Attached, DeviceSpec, DeviceStatus, DeviceView};
use node_api::image::{ImageSpec, KeptPlan};
use node_api::mount_state::MountState;
use node_api::spec::MountSpec;
use node_api::view::MountView;
use node_records::devices::DeviceInstance;

/// Threads that answer requests: each may wait for a registry.
const THREADS: u8 = 8;

/// How long a plan may take to be written.
const KEEP: Duration = Duration::from_secs(10);

impl Owner {
    /// Mounts an image as a file, and the file system in it if that is wanted; or finds that they are there.
    ///
    /// # Errors
    /// As [`NodeControl::attach`](node_api::control::NodeControl::attach).
    pub(crate) fn attach_file(&self, spec: &DeviceSpec) -> Result<Attached, NodeError> {
        let making = || format!("making {}", spec.at.display());
        if let Some(dir) = &spec.erofs {
            self.check_covers_at(dir, &spec.at)?;
        }
        std::fs::create_dir_all(&spec.at).with_context(making)?;
        // Until the file system in it is mounted, too, which reads it. Asked for once more, it is served on.
        let is_new = self.devices.file(&spec.name).is_none();
        let _making = is_new.then(|| self.devices.make_file(spec));
        let made = self.make_mount(&mount_spec(spec))?;
        let stale = made.new && self.devices.file(&spec.name).is_some();
        let mounted = spec.erofs.as_deref().map(|dir| {
            if stale {
                unmount_dead(spec)?;
            }
            mount_file_system(spec, dir)
        });
        let mounted = mounted.transpose().and_then(|_| match spec.loop_device {
            true => FileDevice::attach(&spec.file(), &loop_name(spec))
                .map(drop)
                .map_err(invalid),
            false => Ok(()),
        });
        if let Err(error) = mounted {
            if made.new {
                let _unmounted = self.unmount_at(&RunDir::id_of(&spec.at), Busy::Lazy);
            }
            return Err(error);
        }
        let instance = DeviceInstance {
            spec: spec.clone(),
            worker: None,
            restarts: 0,
            last_gap_ms: None,
        };
        self.devices.add_file(spec);
        self.device_records.keep(&instance)?;
        self.device_records.keep_desired(spec)?;
        Ok(Attached {
            device: view(spec, Some(&made.mount)),
            new: made.new,
        })
    }

    /// Has the worker that opens the image of a file, if it is being attached, wait for no registry any more; nor those who
    /// read it to mount the file system in it.
    pub(crate) fn give_up_making(&self, name: &str, patience: Duration) {
        let spec = self.devices.file_in_making(name);
        let mount = spec.and_then(|spec| self.visible_at(&RunDir::id_of(&spec.at)));
        let Some(mount) = mount else {
            return;
        };
        if let Service::Asked(worker) | Service::By(worker) = mount.assigned.service() {
            let id = mount.key.clone();
            // It may be over by now, or the worker of an earlier release.
            let _told = worker.ask(&WorkerRequest::GiveUp { id }, patience);
        }
    }

    /// Unmounts what is mounted of a file, and the file.
    ///
    /// # Errors
    /// [`NodeError::Conflict`] if it is in use; nothing is unmounted then that was in use.
    pub(crate) fn end_file(&self, spec: &DeviceSpec) -> Result<(), NodeError> {
        if let Some(dir) = spec.erofs.as_deref().filter(|dir| has_file_system(dir)) {
            match umount2(dir, MntFlags::empty()) {
                Ok(()) => {}
                Err(Errno::EBUSY) => {
                    let dir = dir.display();
                    return Err(NodeError::Conflict(format!(
                        "{dir} is in use: end what uses it first"
                    )));
                }
                Err(error) => {
                    let why = anyhow::Error::from(error);
                    return Err(why.context(format!("unmounting {}", dir.display())).into());
                }
            }
        }
        let id = RunDir::id_of(&spec.at);
        if spec.loop_device {
            // Freed while it is mounted, it would be gone for whoever mounts it next.
            if let Some(device) = FileDevice::found(&spec.file()).ok().flatten()
                && device.is_in_use().unwrap_or(false)
            {
                let device = device.path().display();
                return Err(NodeError::Conflict(format!(
                    "{device} is in use: end what has it mounted first"
                )));
            }
            let detached = FileDevice::detach(&spec.file(), &loop_name(spec));
            detached.with_context(|| format!("detaching {}", spec.name))?;
        }
        match self.unmount_at(&id, Busy::Wait) {
            // Somebody has unmounted it already.
            Ok(()) | Err(NodeError::Unknown(_)) => {}
            Err(error) => return Err(error),
        }
        self.devices.remove_file(&spec.name);
        self.device_records.forget(&spec.name);
        Ok(())
    }

    /// Has the worker of a file make a plan of what was read of it.
    ///
    /// # Errors
    /// As [`NodeControl::keep_plan`](node_api::control::NodeControl::keep_plan).
    pub(crate) fn keep_plan_of(&self, name: &str) -> Result<KeptPlan, NodeError> {
        let unknown = || NodeError::NoDevice(name.to_owned());
        let spec = self.devices.file(name).ok_or_else(unknown)?;
        let mount = self.visible_at(&RunDir::id_of(&spec.at));
        let mount = mount.ok_or_else(unknown)?;
        let Service::By(worker) = mount.assigned.service() else {
            let why = format!("the worker of {name} is being replaced: its recording is lost");
            return Err(NodeError::Conflict(why));
        };
        let id = mount.key.clone();
        match worker.ask(&WorkerRequest::KeepPlan { id }, KEEP)? {
            WorkerResponse::Kept(plan) => Ok(plan),
            WorkerResponse::Refused { fault, why } => Err(fault.error(why)),
            other => Err(NodeError::Failed(anyhow!("a worker answered {other:?}"))),
        }
    }

    /// Returns the views of all devices that are files.
    pub(crate) fn file_views(&self) -> Vec<DeviceView> {
        let files = self.devices.files();
        let views = files.iter().map(|spec| {
            let mount = self.visible_at(&RunDir::id_of(&spec.at));
            view(spec, mount.map(|mount| self.view_of(&mount)).as_ref())
        });
        views.collect()
    }
}

/// Returns what the mount of a device is to be.
fn mount_spec(spec: &DeviceSpec) -> MountSpec {
    MountSpec {
        source: ImageSpec::source(&spec.image),
        mountpoint: spec.at.clone(),
        store: spec.store.clone(),
        boot: BootChoice::None,
        mode: None,
        inject: false,
        lock: false,
        budget_bytes: None,
        // The worker knows whether a plan says what a start reads.
        readahead_kib: None,
        threads: THREADS,
        auto: false,
        suid_dev: false,
        all_xattrs: false,
        plain: false,
        // The device is written down, and makes it again.
        lasting: false,
        label: None,
        nic: None,
        image: Some(spec.options.clone()),
        writable: spec.writable,
    }
}

fn mount_file_system(spec: &DeviceSpec, dir: &Path) -> Result<(), NodeError> {
    if has_file_system(dir) {
        return Ok(());
    }
    let power = match spec.suid_dev {
        true => Power::Honoured,
        false => Power::None,
    };
    let mounted = match spec.writable {
        true => MountedImage::mount_writable(&spec.file(), dir, power),
        false => MountedImage::mount(&spec.file(), dir),
    };
    let mounted = mounted.map_err(invalid)?;
    if spec.writable
        && let Ok((config, path)) = DeviceConfig::read(&spec.image)
        && let Some(left) = config.bytes_left(path.parent().unwrap_or(Path::new("/")))
        && let Err(error) = mounted.bound(left)
    {
        // The layer's own limit is left, of which programs hear late.
        let why = anyhow::Error::from(error);
        log::warn!("{}: {why:#}", spec.name);
    }
    mounted.leave();
    Ok(())
}

/// Returns what the loop device of a file is called, by which it is found after a restart.
fn loop_name(spec: &DeviceSpec) -> String {
    format!("yolofs-{}", RunDir::id_of(&spec.at))
}

fn invalid(error: ImageError) -> NodeError {
    NodeError::Invalid(format!("{:#}", anyhow::Error::from(error)))
}

/// Unmounts the file system of a file that nobody serves any more.
///
/// # Errors
/// If the kernel refuses.
pub(crate) fn unmount_dead(spec: &DeviceSpec) -> anyhow::Result<()> {
    match spec.erofs.as_deref().filter(|dir| has_file_system(dir)) {
        Some(dir) => umount2(dir, MntFlags::MNT_DETACH)
            .with_context(|| format!("unmounting the dead file system on {}", dir.display())),
        None => Ok(()),
    }
}

fn has_file_system(dir: &Path) -> bool {
    let kind = kind_at(dir).ok().flatten();
    FileSystemKind::ALL
        .iter()
        .any(|known| kind.as_deref() == Some(known.name()))
}

/// Returns what there is to tell of a device whose mount is this.
fn view(spec: &DeviceSpec, mount: Option<&MountView>) -> DeviceView {
    let Some(mount) = mount else {
        return DeviceView {
            error: Some("somebody has unmounted it: detach it, and attach it again".to_owned()),
            ..unserved(spec, MountState::Failed)
        };
    };
    let image = mount.status.image.clone().unwrap_or_default();
    let status = mount.status.served.as_ref().map(|served| DeviceStatus {
        name: spec.name.clone(),
        fetches: image.fetches,
        fetched_bytes: image.fetched_bytes,
        cached_bytes: image.cached_bytes,
        start: Some(image.start),
        size: std::fs::metadata(spec.file()).map_or(0, |about| about.len()),
        writable: spec.writable,
        requests: served.requests.get("read").copied().unwrap_or(0),
        bytes_read: served.hit_bytes + served.fallthrough_bytes,
        ..DeviceStatus::default()
    });
    let found = match spec.loop_device {
        true => FileDevice::found(&spec.file()).ok().flatten(),
        false => None,
    };
    DeviceView {
        loop_device: found.map(|device| device.path().to_owned()),
        pid: mount.status.pid,
        restarts: mount.restarts,
        last_gap_ms: mount.last_gap_ms,
        error: mount.error.clone(),
        served: status,
        ..unserved(spec, mount.status.state)
    }
}
