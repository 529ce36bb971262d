//! The lock that makes sure that a run directory has one node.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, anyhow};
use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};

use host::run_dir::RunDir;

/// How long a node waits for the right: somebody who only looks whether it is taken has it for a
/// moment, and so has a node that was killed.
const PATIENCE: Duration = Duration::from_secs(2);
/// How often that is looked at; nothing tells.
const LOOK_EVERY: Duration = Duration::from_millis(10);
/// Most bytes of a process's number in the file.
const PID_BYTES: u64 = 16;

/// The right to own the mounts of a run directory, or the list of those that are wanted, until it is dropped or the process ends.
#[derive(Debug)]
pub(crate) struct Ownership(#[expect(dead_code, reason = "held for its lock")] Flock<File>);

impl Ownership {
    /// Takes the lock of a run directory.
    ///
    /// # Errors
    /// If another node holds it; the error names that node.
    pub(crate) fn take(run_dir: &RunDir) -> anyhow::Result<Self> {
        Self::of(&path(run_dir), |owner| taken(run_dir, owner))
    }

    /// Takes the lock of the list of desired mounts: two nodes would make the same mounts after a
    /// reboot, and each would remove those of the other.
    ///
    /// # Errors
    /// If another node holds it; the error names that node.
    pub(crate) fn take_state(dir: &Path) -> anyhow::Result<Self> {
        Self::of(&state_path(dir), |owner| state_taken(dir, owner))
    }

    fn of(path: &Path, taken: impl Fn(Option<u32>) -> anyhow::Error) -> anyhow::Result<Self> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            match lock(path)? {
                Ok(mut lock) => {
                    let pid = std::process::id().to_string();
                    lock.set_len(0)
                        .and_then(|()| lock.write_all(pid.as_bytes()))
                        .context("recording the owner of the mounts")?;
                    return Ok(Self(lock));
                }
                Err(owner) if Instant::now() >= deadline => return Err(taken(owner)),
                Err(_) => std::thread::sleep(LOOK_EVERY),
            }
        }
    }

    /// Makes sure that no node has it now.
    ///
    /// # Errors
    /// If one has, which is named.
    pub(crate) fn is_free(run_dir: &RunDir) -> anyhow::Result<()> {
        // Without the directory there was no node yet.
        if !path(run_dir).parent().is_some_and(Path::exists) {
            return Ok(());
        }
        lock(&path(run_dir))?
            .map(drop)
            .map_err(|owner| taken(run_dir, owner))
    }

    /// Makes sure that no node keeps its mounts in a state directory now.
    ///
    /// # Errors
    /// If one does, which is named.
    pub(super) fn is_free_state(dir: &Path) -> anyhow::Result<()> {
        if !dir.exists() {
            return Ok(());
        }
        lock(&state_path(dir))?
            .map(drop)
            .map_err(|owner| state_taken(dir, owner))
    }
}

/// Returns the error for a process that needs a lock that the process `owner` holds, if that is
/// known.
pub(crate) fn taken(run_dir: &RunDir, owner: Option<u32>) -> anyhow::Error {
    let owner = owner.map_or_else(String::new, |pid| format!(" (process {pid})"));
    anyhow!(
        "another node{owner} owns the mounts of {}: use that one (yolofs node status), end it \
         first, or give this one a run directory and a state directory of its own",
        run_dir.path().display()
    )
}

fn state_taken(dir: &Path, owner: Option<u32>) -> anyhow::Error {
    let owner = owner.map_or_else(String::new, |pid| format!(" (process {pid})"));
    anyhow!(
        "another node{owner}, of another run directory, keeps its mounts in {}: give this one a \
         state directory of its own",
        dir.display()
    )
}

fn state_path(dir: &Path) -> std::path::PathBuf {
    dir.join("lock")
}

fn path(run_dir: &RunDir) -> std::path::PathBuf {
    run_dir.path().join("node/lock")
}

/// Takes the lock, or returns who has it, if that is written down yet.
fn lock(path: &Path) -> anyhow::Result<Result<Flock<File>, Option<u32>>> {
    let mut options = File::options();
    options.create(true).truncate(false).read(true).write(true);
    let opening = || format!("opening {}", path.display());
    let file = options.open(path).with_context(opening)?;
    match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
        Ok(lock) => Ok(Ok(lock)),
        Err((file, Errno::EWOULDBLOCK)) => {
            let mut pid = String::new();
            let read = file.take(PID_BYTES).read_to_string(&mut pid);
            Ok(Err(read.ok().and_then(|_| pid.trim().parse().ok())))
        }
        Err((_, errno)) => Err(errno).with_context(|| format!("locking {}", path.display())),
    }
}
