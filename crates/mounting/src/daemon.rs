//! The process of a standalone mount: assembles the file system, serves it, responds to commands, and
//! ends with the mount.

mod event;
mod prepare;

use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::time::{Duration, SystemTime};

use anyhow::{Context as _, bail};
use parking_lot::Mutex;
use tracer::Recorder;
use yolofs::{Busy, End, Lock, Mount};

use event::{DaemonEvent, answer_callers, ask_to_unmount};
use prepare::{Prepared, mount_options, note_uses, prepare};

use super::from::From;
use super::mounter::Helper;
use super::prewarmer::Prewarmer;
use crate::assembly::{Assembly, Parts};
use crate::confinement;
use crate::request::MountRequest;
use bootstore::store::StoreSettings;
use host::control::{Callers, listen, serve as serve_commands};
use host::interrupt::Interrupt;
use host::mount_table::MOUNT_KIND;
use host::mount_table::{clear_by_force, kind_at, needs_root};
use host::run_dir::{MountRecord, RunDir, RunDirLock, process_start};
use node_api::mount_daemon::{Request, Response};
use node_api::mount_state::MountState;
use node_api::status::MountStatus;

/// How long users of a mount may take to let go before `umount` gives up and says "busy".
const UMOUNT_PATIENCE: Duration = Duration::from_secs(2);

/// How long the session of an unmounted, unused mount may take to end.
const END_PATIENCE: Duration = Duration::from_secs(2);

/// How long the wait for the last user of an unmounted mount takes between two looks; each look
/// is a wait on a condition, so this bounds nothing that anyone sees.
const USERS_CHECK: Duration = Duration::from_secs(3600);

/// Everything a running mount consists of.
#[derive(Debug)]
struct Daemon {
    run_dir: RunDir,
    record: MountRecord,
    mount: Arc<Mount>,
    parts: Parts,
    /// Brings the boot image into the page cache, if there is one.
    prewarmer: Option<Arc<Prewarmer>>,
    recorder: Option<Arc<Recorder>>,
    started: SystemTime,
}

/// Mounts and serves until the mount is over; calls `serving` once, when it is served, with the warnings about it.
pub fn serve(
    request: &MountRequest,
    store: &StoreSettings,
    run_dir: &RunDir,
    mountpoint: &Path,
    serving: &dyn Fn(Vec<String>) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    crate::buffers::map_large();
    crate::descriptors::allow_many_files();
    // Opened before the mount covers it: a mount may lie over its own source.
    let from = From::open(&request.source, request.source_deadline)?;
    clear_dead(run_dir, mountpoint, None, &run_dir.lock()?)?;
    if let From::Disk(root) = &from {
        note_uses(request, store, root);
    }
    let trace = request
        .record
        .as_deref()
        .map(std::path::absolute)
        .transpose()?;
    let helper = Arc::new(Helper::start(mountpoint)?);
    let network = request.nic.clone().map(|spec| spec.needs());
    match &from {
        From::Image(_) => {
            let image = request.image.as_ref();
            let image = image.map(|image| (&image.needs, image.identity));
            confinement::image_daemon(run_dir.path(), image)?;
        }
        From::Disk(_) | From::Nic(_) => {
            confinement::before_mounting(run_dir.path(), trace.as_deref(), network.as_ref())?;
        }
    }
    let interrupt = Interrupt::install_abrupt()?;
    let Prepared { assembly, recorder } = prepare(request, store, &from)?;
    let Assembly { fs, parts } = assembly;
    let boot = parts.boot.current();
    let shown = from.shown();
    let id = RunDir::id_of(mountpoint);
    // Looked at again: while we scanned, another daemon may have taken the place.
    let lock = run_dir.lock()?;
    clear_dead(run_dir, mountpoint, Some(&helper), &lock)?;
    let listener = listen(&run_dir.socket(&id))?;
    let mut options = mount_options(request, boot.as_deref(), mountpoint, &shown)?;
    options.mounter = helper;
    // From here on there is something to be taken away.
    interrupt.be_orderly();
    let mount = Mount::start(Arc::new(fs), &options)
        .with_context(|| format!("mounting on {}{}", mountpoint.display(), needs_root()))?;
    let mount = Arc::new(mount);
    let record = MountRecord {
        pid: std::process::id(),
        pid_started: process_start(std::process::id())?,
        source: shown,
        mountpoint: mountpoint.to_path_buf(),
        boot_image: boot.as_ref().map(|boot| boot.recorded.id()),
        id: id.clone(),
    };
    run_dir.write(&record)?;
    drop(lock);
    let lock = if request.lock { Lock::Yes } else { Lock::No };
    let prewarmer = boot.map(|boot| Prewarmer::new(Arc::clone(&mount), boot, lock));
    let daemon = Arc::new(Daemon {
        run_dir: run_dir.clone(),
        record,
        mount,
        parts,
        prewarmer,
        recorder,
        started: SystemTime::now(),
    });
    // The directory it was started in must not stay busy because of us.
    std::env::set_current_dir("/").context("leaving the current directory")?;
    let served = daemon.run(request, listener, &interrupt, serving);
    daemon.leave();
    served?;
    match trace {
        Some(path) => daemon.keep_trace(&path, &from),
        None => daemon.share_boot(&from),
    }
}

/// Clears what an earlier daemon left at this place when it crashed, or has the helper do it if this
/// process may not.
fn clear_dead(
    run_dir: &RunDir,
    mountpoint: &Path,
    helper: Option<&Helper>,
    lock: &RunDirLock,
) -> anyhow::Result<()> {
    let Some(record) = run_dir.find(mountpoint)? else {
        return Ok(());
    };
    if record.is_mounted()? {
        bail!(
            "{} is served already, by process {}",
            mountpoint.display(),
            record.pid
        );
    }
    // A daemon that is still alive serves the last users of a mount that is gone from here.
    if !record.is_alive() && kind_at(mountpoint)?.as_deref() == Some(MOUNT_KIND) {
        match helper {
            Some(helper) => helper.clear()?,
            None => clear_by_force(mountpoint)?,
        }
    }
    run_dir.remove(&record, lock);
    Ok(())
}

impl Daemon {
    /// Serves until the mount is over.
    fn run(
        self: &Arc<Self>,
        request: &MountRequest,
        listener: UnixListener,
        interrupt: &Interrupt,
        serving: &dyn Fn(Vec<String>) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let network = request.nic.clone().filter(|_| self.parts.nic.is_some());
        let network = network.map(|spec| spec.needs());
        match &request.image {
            Some(image) => confinement::image_daemon_mounted(&image.needs)?,
            None => confinement::once_mounted(network.as_ref())?,
        }
        let (tell, events) = channel();
        self.watch_mount(tell.clone())?;
        self.watch_signals(interrupt, tell.clone())?;
        let callers = self.take_commands(listener, tell)?;
        self.first_prewarm(request)?;
        serving(self.parts.warnings())?;
        // Ends with the mount: the threads above hold the other ends for as long as they live.
        while let Ok(event) = events.recv() {
            match event {
                // Users of the mount are served until they let go; a second signal ends us.
                DaemonEvent::Interrupted => self.unmount(Busy::Lazy)?,
                DaemonEvent::Unmount(busy, answer) => {
                    let done = match self.unmount(busy) {
                        // The place is free for another daemon from now on.
                        Ok(()) => {
                            self.leave();
                            // Whoever detaches does not ask.
                            let in_use =
                                busy == Busy::Wait && !self.mount.wait_for_users(END_PATIENCE);
                            Response::Unmounted { in_use }
                        }
                        Err(error) => Response::Failed {
                            why: format!("{error:#}"),
                        },
                    };
                    // A command that went away does not care.
                    let _told = answer.send(done);
                }
                DaemonEvent::Over(End::Unmounted) => {
                    self.stop_prewarm();
                    self.leave();
                }
                DaemonEvent::Over(End::SessionOver) => break,
                DaemonEvent::Over(End::Failed(why)) => {
                    bail!("serving {}: {why}", self.record.mountpoint.display())
                }
            }
        }
        answer_callers(events, &callers);
        Ok(())
    }

    /// Tells when the visible mount is gone, and when the last user of it is.
    fn watch_mount(&self, tell: Sender<DaemonEvent>) -> anyhow::Result<()> {
        let mount = Arc::clone(&self.mount);
        let watch = move || {
            let end = mount.wait();
            // Nobody listens any more when the daemon is ending by itself.
            let users_left = end == End::Unmounted;
            if tell.send(DaemonEvent::Over(end)).is_err() || !users_left {
                return;
            }
            while !mount.wait_for_users(USERS_CHECK) {}
            let _told = tell.send(DaemonEvent::Over(End::SessionOver));
        };
        std::thread::Builder::new()
            .name("watch-mount".to_owned())
            .spawn(watch)
            .context("starting the thread that watches the mount")?;
        Ok(())
    }

    /// Tells of the first signal, and ends a prewarm that somebody waits for.
    fn watch_signals(
        self: &Arc<Self>,
        interrupt: &Interrupt,
        tell: Sender<DaemonEvent>,
    ) -> anyhow::Result<()> {
        let (daemon, interrupt) = (Arc::clone(self), interrupt.clone());
        let watch = move || {
            interrupt.wait();
            daemon.stop_prewarm();
            // Nobody listens any more when the daemon is ending by itself.
            let _told = tell.send(DaemonEvent::Interrupted);
        };
        std::thread::Builder::new()
            .name("watch-signals".to_owned())
            .spawn(watch)
            .context("starting the thread that waits for signals")?;
        Ok(())
    }

    fn take_commands(
        self: &Arc<Self>,
        listener: UnixListener,
        tell: Sender<DaemonEvent>,
    ) -> anyhow::Result<Arc<Callers>> {
        let daemon = Arc::clone(self);
        let tell = Mutex::new(tell);
        serve_commands(listener, move |request| match request {
            Request::Status => Response::Status(Box::new(daemon.status())),
            Request::Prewarm { budget } => daemon.prewarm(budget),
            Request::Unmount { lazy } => {
                let busy = if lazy { Busy::Lazy } else { Busy::Wait };
                ask_to_unmount(&tell, busy)
            }
        })
    }

    /// Starts to bring the boot image into the page cache, if that is wanted, and waits for it,
    /// if that is wanted.
    fn first_prewarm(&self, request: &MountRequest) -> anyhow::Result<()> {
        let Some(prewarmer) = self.prewarmer.as_ref().filter(|_| !request.no_inject) else {
            return Ok(());
        };
        if request.record.is_some() {
            return Ok(()); // a recording must not learn from a prewarm
        }
        let prewarm = prewarmer.start(request.budget_bytes)?;
        if request.wait_prewarm {
            // A panic of the prewarm is on the log, and costs speed only.
            let _ended = prewarm.join();
        }
        Ok(())
    }

    fn prewarm(&self, budget: Option<u64>) -> Response {
        let Some(prewarmer) = &self.prewarmer else {
            return Response::Failed {
                why: "the mount has no boot image".to_owned(),
            };
        };
        match prewarmer.run(budget) {
            Ok(summary) => Response::Prewarmed(summary),
            Err(error) => Response::Failed {
                why: format!("{error:#}"),
            },
        }
    }

    /// Takes the mount out of the run directory.
    fn leave(&self) {
        match self.run_dir.lock() {
            Ok(lock) => self.run_dir.remove(&self.record, &lock),
            // What stays there reads as a dead daemon's: the next mount or umount clears it.
            Err(error) => log::warn!("the description of the mount stays: {error:#}"),
        }
    }

    fn stop_prewarm(&self) {
        if let Some(prewarmer) = &self.prewarmer {
            prewarmer.cancel();
        }
    }

    fn unmount(&self, busy: Busy) -> anyhow::Result<()> {
        self.stop_prewarm();
        self.mount.unmount(busy, UMOUNT_PATIENCE)?;
        Ok(())
    }

    fn status(&self) -> MountStatus {
        let counters = self.mount.counters();
        let prewarm = self.prewarmer.as_ref().map(|prewarmer| prewarmer.state());
        MountStatus {
            id: self.record.id.clone(),
            mountpoint: self.record.mountpoint.clone(),
            source: self.record.source.clone(),
            source_inode: self.parts.source_inode(),
            mode: self.parts.mount_mode(),
            state: if self.mount.visible() {
                MountState::Serving
            } else {
                MountState::Leaving
            },
            pid: Some(self.record.pid),
            boot: prewarm.and_then(|prewarm| self.parts.boot_status(&counters, prewarm)),
            served: Some(self.parts.served_status(&counters)),
            nic: self.parts.nic.as_ref().map(|nic| nic.status()),
            image: None,
            warnings: self.parts.warnings(),
        }
    }

    /// Gives the service a boot image of what was recorded for it.
    fn share_boot(&self, from: &From) -> anyhow::Result<()> {
        let (Some(recorder), Some(nic)) = (&self.recorder, &self.parts.nic) else {
            return Ok(());
        };
        let trace = recorder.finish(from.trace_info(self.started), &self.parts.tree);
        let aside = self.run_dir.log(&self.record.id).with_extension("bimg");
        nic.share(&trace, &self.parts.tree, &aside)
            .context("sharing the boot image")
    }

    /// Writes what was recorded.
    fn keep_trace(&self, path: &Path, from: &From) -> anyhow::Result<()> {
        let Some(recorder) = &self.recorder else {
            return Ok(());
        };
        let trace = recorder.finish(from.trace_info(self.started), &self.parts.tree);
        crate::source::write_trace(&trace, path)
    }
}
