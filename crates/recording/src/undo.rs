//! Undoes a recording's changes to an engine, even if the recorder is killed.
//!
//! A recorded mount is over a directory of Docker's or containerd's. If its daemon dies, the mount stays
//! and does not respond, and neither does any container of that image. So another process watches:
//! `bootimg __guard` receives from the recorder what would have to be undone, and undoes it when
//! their pipe closes without a message of success.

use std::io::{BufRead as _, Write as _};
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, ExitCode, Stdio};

use anyhow::Context as _;
use engine::{Containerd, Docker};
use nix::mount::{MntFlags, umount2};
use serde::{Deserialize, Serialize};

use host::mount_table::{clear_if_dead, top_at};

/// The label of recorded containers.
pub const LABEL: &str = "yolofs.record";

/// One change to undo.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Undo {
    /// Unmounts a recorded mount, if it is (still) there.
    Unmount {
        /// Where it is.
        at: PathBuf,
        /// Its label: other mounts below it stay.
        label: String,
    },
    /// Removes Docker's containers with this value of our label.
    DockerContainers {
        /// The daemon, if not the client's own choice.
        host: Option<String>,
        /// The value.
        label: String,
    },
    /// Removes a container of containerd's.
    ContainerdContainer {
        /// Where containerd listens.
        address: PathBuf,
        /// The container's namespace.
        namespace: String,
        /// The snapshotter that has its root.
        snapshotter: String,
        /// The container.
        id: String,
    },
    /// Removes a directory with all that is in it.
    RemoveDir {
        /// The directory: one that we made.
        dir: PathBuf,
    },
}

/// What the recorder tells its guard, a line each.
#[derive(Debug, Serialize, Deserialize)]
enum Word {
    Promised(Undo),
    Fulfilled(Undo),
    Done,
}

impl Undo {
    /// Undoes the change, unless it is undone already.
    ///
    /// # Errors
    /// If it cannot be done.
    pub fn run(&self) -> anyhow::Result<()> {
        match self {
            Self::Unmount { at, label } => {
                if top_at(at)?.is_some_and(|top| top.is_ours(label)) {
                    let flags = MntFlags::UMOUNT_NOFOLLOW | MntFlags::MNT_DETACH;
                    umount2(at, flags).with_context(|| format!("unmounting {}", at.display()))?;
                    // Its daemon may have died below us.
                    clear_if_dead(at)?;
                }
            }
            Self::DockerContainers { host, label } => {
                let docker = Docker::new(host.clone());
                for id in docker.labelled(LABEL, label)? {
                    docker.remove(&id)?;
                }
            }
            Self::ContainerdContainer {
                address,
                namespace,
                snapshotter,
                id,
            } => Containerd::connect(address, namespace, snapshotter)?.remove(id)?,
            Self::RemoveDir { dir } => match std::fs::remove_dir_all(dir) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                    return Err(error).with_context(|| format!("removing {}", dir.display()));
                }
                _ => {}
            },
        }
        Ok(())
    }
}

/// Undoes all, the last first, and logs failures.
pub fn undo_all(undos: &[Undo]) {
    for undo in undos.iter().rev() {
        if let Err(error) = undo.run() {
            log::error!("{error:#}");
        }
    }
}

/// The process that undoes changes if this one dies.
#[derive(Debug)]
pub struct Guard {
    child: Child,
    pipe: Option<ChildStdin>,
    promised: Vec<Undo>,
}

impl Guard {
    /// Starts it, in a process group of its own: a signal to ours does not end it.
    ///
    /// # Errors
    /// If it cannot be started.
    pub fn start() -> anyhow::Result<Self> {
        let mut child = Command::new("/proc/self/exe")
            .arg("__guard")
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .process_group(0)
            .spawn()
            .context("starting the process that cleans up behind a killed recorder")?;
        let pipe = child.stdin.take();
        Ok(Self {
            child,
            pipe,
            promised: Vec::new(),
        })
    }

    /// Registers a change to undo: before it is made.
    ///
    /// # Errors
    /// If the guard has ended.
    pub fn promise(&mut self, undo: Undo) -> anyhow::Result<()> {
        self.tell(&Word::Promised(undo.clone()))?;
        self.promised.push(undo);
        Ok(())
    }

    /// Removes a change that was undone in the meantime.
    ///
    /// # Errors
    /// If the guard has ended.
    pub fn fulfilled(&mut self, undo: &Undo) -> anyhow::Result<()> {
        self.promised.retain(|promised| promised != undo);
        self.tell(&Word::Fulfilled(undo.clone()))
    }

    fn tell(&mut self, word: &Word) -> anyhow::Result<()> {
        let mut line = serde_json::to_vec(word).context("writing what to undo")?;
        line.push(b'\n');
        let pipe = self.pipe.as_mut().context("the guard process has ended")?;
        pipe.write_all(&line).context("telling the guard")
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        undo_all(&self.promised);
        if let Some(mut pipe) = self.pipe.take() {
            // If it does not hear this, it finds that all is undone.
            let done = serde_json::to_vec(&Word::Done).unwrap_or_default();
            let _told = pipe.write_all(&done);
        }
        let _ended = self.child.wait();
    }
}

/// Runs the guard: listens until the recorder reports success, or dies.
///
/// # Errors
/// If standard input cannot be read.
pub fn guard() -> anyhow::Result<ExitCode> {
    let mut undos: Vec<Undo> = Vec::new();
    for line in std::io::stdin().lock().lines() {
        let line = line.context("listening to the recorder")?;
        match serde_json::from_str(&line).context("decoding a message of the recorder")? {
            Word::Promised(undo) => undos.push(undo),
            Word::Fulfilled(undo) => undos.retain(|promised| *promised != undo),
            Word::Done => return Ok(ExitCode::SUCCESS),
        }
    }
    undo_all(&undos);
    Ok(ExitCode::SUCCESS)
}
