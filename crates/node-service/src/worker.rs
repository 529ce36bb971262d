//! `yolofs worker`: the process that serves mounts and devices of the node.
//!
//! It owns nothing: the node made the mounts, holds their descriptors, and gives them to another
//! worker when this one dies, which may be at any moment. So nothing is deferred until an orderly
//! end, and a failure beyond one request ends the process: its successor serves better than a
//! worker in an unknown state.

mod access_log;
mod changes;
mod devices;
mod names;
mod open;
mod prepare;
mod presence;
mod prewarm;
mod served;
mod served_mounts;
mod service;
#[cfg(all(test, feature = "privileged"))]
mod tests;

use mounting::confinement::{Asking, Connections};
use std::io::Write as _;
use std::os::fd::AsRawFd as _;
use std::path::Path;
use std::process::exit;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use anyhow::Context as _;
use confine::Identity;
use nix::sys::socket::{Shutdown, shutdown};
use yolofs::End;

use self::devices::ServedDevices;
use super::connector::NodeConnector;
use super::network::NetworkWorker;
use super::{wire, workers};
use host::admission::Admission;
use host::run_dir::RunDir;
use served_mounts::ServedMounts;
use service::WorkerContext;

/// A worker that serves nothing and is asked nothing ends after so long.
const IDLE: Duration = Duration::from_secs(30);

/// The last to go when memory runs short, but before the node itself and the system's own.
const OOM_SCORE: &str = "-800";

/// What a worker is started as.
#[derive(Clone, Copy, Debug)]
pub struct WorkerSettings {
    /// The user that it becomes before it serves.
    pub user: Option<Identity>,
    /// Which kind of worker it is.
    pub kind: WorkerKind,
}

/// What a worker is for, which says what it may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WorkerKind {
    /// Mounts of sources on disks.
    Disks,
    /// One mount that asks a block service.
    Network,
    /// Block images, as devices and as mounts.
    Images,
}

/// Gives up what serving does not take. One that asks the network is told by the node what it takes;
/// a node of an earlier release tells nothing, and its worker stays who it is. Returns who makes its connections.
fn confine(args: WorkerSettings) -> anyhow::Result<Connections> {
    match args.kind {
        WorkerKind::Disks => {
            mounting::confinement::worker(args.user)?;
            return Ok(Connections::Own);
        }
        WorkerKind::Images => {
            let told = workers::images_told()?;
            if told.is_none() {
                log::warn!(
                    "the node is of an earlier release: the files of this worker are not confined"
                );
            }
            if told.as_ref().is_none_or(|needs| !needs.layers.is_empty())
                && let Err(error) = rawio::io_flusher::mark()
            {
                log::info!(
                    "file systems of this machine that are written by way of this worker may hang when memory runs \
                     short: {error}"
                );
            }
            mounting::confinement::image_worker(told.as_ref(), args.user)?;
            return Ok(Connections::Own);
        }
        WorkerKind::Network => {}
    }
    let told = NetworkWorker::told()?;
    if told.is_none() {
        log::warn!("the node is of an earlier release: the files of this worker are not confined");
    }
    let asking = told.map(|told| Asking {
        identity: told.identity(),
        connections: told.connections(),
        needs: told.needs,
        disk: told.disk,
    });
    mounting::confinement::network_worker(asking.as_ref())?;
    Ok(asking.map_or(Connections::Own, |asking| asking.connections))
}

/// Serves until no mount is left.
///
/// # Errors
/// If it cannot listen for requests.
pub fn run(args: WorkerSettings, run_dir: &Path) -> anyhow::Result<()> {
    mounting::buffers::map_large();
    mounting::descriptors::allow_many_files();
    if let Err(error) = std::fs::write("/proc/self/oom_score_adj", OOM_SCORE) {
        log::debug!("this worker is as likely to be killed as any other process: {error}");
    }
    // The directory it was started in must not stay busy because of us.
    std::env::set_current_dir("/").context("leaving the current directory")?;
    let run_dir = RunDir::open(run_dir)?;
    let socket = RunDir::worker_socket(run_dir.path(), std::process::id());
    // While it is still who the directory belongs to: a worker makes and removes no file after.
    let listener = service::listen(&socket)?;
    let closing = listener.try_clone().context("sharing the socket")?;
    // The node, which started it.
    let admission = Admission::own().but_workers_of(run_dir.path());
    let connector = match confine(args)? {
        Connections::Own => None,
        Connections::ByNode => {
            let connector = NodeConnector::start()
                .context("starting the thread that requests connections from the node")?;
            Some(Arc::new(connector))
        }
    };
    let (over, ends) = channel();
    let images = Arc::default();
    let mounts = ServedMounts::start(over, connector.clone(), Arc::clone(&images))?;
    let mounts = Arc::new(mounts);
    let devices = Arc::new(ServedDevices::new(images));
    let served = (Arc::clone(&mounts), Arc::clone(&devices));
    let context = WorkerContext::new(served, admission, connector);
    let context = Arc::new(context);
    service::serve(listener, &context)?;
    let mut stdout = std::io::stdout();
    writeln!(stdout, "{}", wire::READY)
        .and_then(|()| stdout.flush())
        .context("telling the node that the worker listens")?;
    loop {
        let idle = if mounts.is_empty() && devices.is_empty() {
            context.idle()
        } else {
            Duration::ZERO
        };
        if idle >= IDLE {
            break;
        }
        match ends.recv_timeout(IDLE.saturating_sub(idle)) {
            Ok((id, End::Failed(why))) => {
                // Its users wait, because the node holds the device: another worker can answer.
                log::error!("{id}: serving it failed: {why}");
                exit(1);
            }
            Ok((id, _)) => mounts.forget(&id),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => break,
        }
    }
    // Whoever connects from now on is told by the system that nobody is there. The node removes
    // the socket when it has seen the end.
    shutdown(closing.as_raw_fd(), Shutdown::Both).context("closing the socket")?;
    Ok(())
}
