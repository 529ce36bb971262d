//! `yolofs recorder`: the process that records first boots.
//!
//! A container keeps the recorders' mounts below it until it is removed, which may be months, and a
//! snapshotter is stopped, upgraded and killed meanwhile. So they are in a separate process, which
//! serves the snapshotters of one root, one after the other, and ends when none runs and its mounts
//! have no users.

use std::os::unix::process::parent_id;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use parking_lot::Mutex;
use rawio::file_lock::FileLock;
use rawio::pidfd::PidFd;
use rawio::private;

use super::super::mounts::wait_for_the_last;
use super::talk::{Request, Response};
use snapshotter::SnapshotId;

use super::boot::End;
use super::{FirstBoots, Keeper};
use bootstore::store::StoreSettings;
use host::control::{listen, serve};
use host::interrupt::Interrupt;
use host::run_dir::{RUN_DIR_ENV, RunDir};
use layers::patient_node::PatientClient;
use mounting::confinement;
use mounting::confinement::Service;
use node_api::client::NodeClient;

/// How often it is looked whether anybody needs it; nothing tells all of that.
const LOOK_EVERY_MS: u16 = 200;

/// How long one waits for another that records to end: as long as a snapshotter asks for an answer.
const PATIENCE: Duration = super::talk::START;

/// The settings of a recorder.
#[derive(Clone, Debug)]
pub struct RecorderSettings {
    /// Directory of the snapshots.
    pub root: PathBuf,
    /// Socket of containerd.
    pub containerd: PathBuf,
    /// The process that starts it.
    pub snapshotter: u32,
}

/// Where the recorder of a root listens.
pub(super) fn socket(run_dir: &RunDir, root: &Path) -> PathBuf {
    file(run_dir, root, "sock")
}

fn file(run_dir: &RunDir, root: &Path, ending: &str) -> PathBuf {
    let name = format!("recorder-{}.{ending}", RunDir::id_of(root));
    run_dir.path().join(name)
}

/// Starts the recorder of a root, unless there is one, in which case the new one ends. To be called
/// while this process may execute programs yet.
///
/// # Errors
/// If it cannot be started.
pub fn start(
    root: &Path,
    containerd: &Path,
    store: &StoreSettings,
    run_dir: &RunDir,
) -> anyhow::Result<Child> {
    Command::new("/proc/self/exe")
        .envs(store.as_env())
        .env(RUN_DIR_ENV, run_dir.path())
        .arg("recorder")
        .arg("--root")
        .arg(root)
        .arg("--containerd")
        .arg(containerd)
        .arg("--snapshotter")
        .arg(std::process::id().to_string())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .current_dir("/")
        .spawn()
        .context("starting the process that records first boots")
}

/// Waits for the recorder's end, so that it does not become a zombie; another recorder may run already.
///
/// # Errors
/// If no thread can be started.
pub fn reap(mut recorder: Child) -> anyhow::Result<()> {
    let wait = move || match recorder.wait() {
        Ok(status) if status.success() => {}
        Ok(status) => log::error!("the process that records first boots ended: {status}"),
        Err(error) => log::warn!("the process that records first boots: {error}"),
    };
    std::thread::Builder::new()
        .name("recorder".to_owned())
        .spawn(wait)
        .map(drop)
        .context("starting the thread that waits for the recorder")
}

/// Records until it is not needed.
///
/// # Errors
/// If there is no snapshotter, or the run directory cannot be used.
pub fn run(args: &RecorderSettings, store: &StoreSettings, run_dir: &Path) -> anyhow::Result<()> {
    mounting::descriptors::allow_many_files();
    confinement::engine(Service::Snapshotter)?;
    // Ctrl-C at the snapshotter's terminal is for that alone.
    nix::unistd::setsid().context("leaving the session")?;
    let interrupt = Interrupt::install()?;
    let run_dir = RunDir::open(run_dir)?;
    let snapshotter = PidFd::open(args.snapshotter).context("watching the snapshotter")?;
    if parent_id() != args.snapshotter {
        return Ok(());
    }
    let path = file(&run_dir, &args.root, "lock");
    let Some(only_one) = lock(&path, &snapshotter, &interrupt)? else {
        return Ok(());
    };
    let boots = FirstBoots::new(
        &args.root,
        Keeper {
            store: store.open()?,
            containerd: args.containerd.clone(),
            node: PatientClient::new(NodeClient::of(&run_dir), interrupt.clone()),
            interrupt: interrupt.clone(),
        },
    );
    boots.start()?;
    let recorder = Arc::new(Recorder {
        boots,
        now: Mutex::new(RecorderState {
            snapshotter,
            leaving: false,
        }),
    });
    let socket = socket(&run_dir, &args.root);
    let answering = Arc::clone(&recorder);
    serve(listen(&socket)?, move |ask| answering.answer(ask))?;
    while !interrupt.asked() && !recorder.ends() {
        let mut waits = [PollFd::new(interrupt.fd(), PollFlags::POLLIN)];
        match poll(&mut waits, PollTimeout::from(LOOK_EVERY_MS)) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(errno) => return Err(errno).context("waiting for something to do"),
        }
    }
    // From here on another may record.
    recorder.now.lock().leaving = true;
    if let Err(error) = std::fs::remove_file(&socket) {
        log::debug!("{}: {error}", socket.display());
    }
    recorder.boots.leave();
    drop(only_one);
    wait_for_the_last(|| recorder.boots.in_use())?;
    Ok(())
}

/// Takes the right to record, as soon as nobody has it; `None` if somebody still has it in the end,
/// who has the snapshotter's ear then, or if that is gone.
fn lock(
    path: &Path,
    snapshotter: &PidFd,
    interrupt: &Interrupt,
) -> anyhow::Result<Option<FileLock>> {
    let locking = || format!("locking {}", path.display());
    let file = private::open_or_create(path).with_context(locking)?;
    let is_over = || {
        let is_gone = snapshotter.ended_within(Duration::ZERO).unwrap_or(true);
        is_gone || interrupt.asked()
    };
    FileLock::unless(file, PATIENCE, is_over).with_context(locking)
}

struct Recorder {
    boots: FirstBoots,
    now: Mutex<RecorderState>,
}

struct RecorderState {
    /// The last that has spoken, or has started this process.
    snapshotter: PidFd,
    /// Requests are refused now: another recorder takes over.
    leaving: bool,
}

impl Recorder {
    fn answer(&self, ask: Request) -> Response {
        if let Request::Hello(pid) = ask {
            let mut now = self.now.lock();
            match PidFd::open(pid) {
                Ok(snapshotter) if !now.leaving => now.snapshotter = snapshotter,
                Ok(_) => return Response::Failed("the recorder is about to end".to_owned()),
                Err(error) => return Response::Failed(format!("watching process {pid}: {error}")),
            }
        } else if self.now.lock().leaving {
            return Response::Failed("the recorder is about to end".to_owned());
        }
        match ask {
            Request::Hello(_) | Request::Boots => Response::Boots(self.boots.all()),
            Request::Record(wanted) => Response::Places(self.boots.record(&wanted)),
            Request::Removed(id) => {
                self.boots.end(SnapshotId(id), End::Gone);
                Response::Done
            }
            Request::Committed(id) => {
                self.boots.end(SnapshotId(id), End::Committed);
                Response::Done
            }
        }
    }

    /// Whether it is not needed any more; requests get no response from then on.
    fn ends(&self) -> bool {
        let mut now = self.now.lock();
        let ended = now.snapshotter.ended_within(Duration::ZERO);
        now.leaving = ended.unwrap_or(true) && self.boots.are_over();
        now.leaving
    }
}
