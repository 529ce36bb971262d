//! A place for one run: a run directory, mount points, and the programs.

use std::fs;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context as _;
use nix::mount::{MntFlags, umount2};
use tempfile::TempDir;

use crate::Base;
use crate::commands::{done, programs, until};
use crate::names::IMAGE;
use crate::processes::{self, Process, Role};

/// The place. What is left in it when it is dropped is ended and unmounted.
#[derive(Debug)]
pub(crate) struct Lab {
    dir: TempDir,
    store: PathBuf,
    source: PathBuf,
}

impl Lab {
    pub(crate) fn new(base: &Base) -> anyhow::Result<Self> {
        let dir = tempfile::Builder::new()
            .prefix("yolofs-soak-run")
            .tempdir()?;
        fs::create_dir_all(dir.path().join("run"))?;
        Ok(Self {
            dir,
            store: base.store(),
            source: base.source(),
        })
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Returns a name that no other lab has.
    pub(crate) fn name(&self) -> String {
        let name = self.dir.path().file_name().unwrap_or_default();
        name.to_string_lossy().into_owned()
    }

    pub(crate) fn make_dir(&self, name: &str) -> anyhow::Result<PathBuf> {
        let path = self.path(name);
        fs::create_dir_all(&path).with_context(|| format!("making {}", path.display()))?;
        Ok(path)
    }

    pub(crate) fn run_dir(&self) -> PathBuf {
        self.path("run")
    }

    /// Serves from another store from now on.
    pub(crate) fn set_store(&mut self, store: PathBuf) {
        self.store = store;
    }

    /// Mounts another source from now on.
    pub(crate) fn set_source(&mut self, source: PathBuf) {
        self.source = source;
    }

    pub(crate) fn source(&self) -> &Path {
        &self.source
    }

    /// Returns one of the programs, for this lab.
    pub(crate) fn program(&self, name: &str) -> anyhow::Result<Command> {
        let mut command = Command::new(programs()?.join(name));
        command
            .env("YOLOFS_STORE", &self.store)
            .env("YOLOFS_RUN_DIR", self.run_dir())
            .env("YOLOFS_STATE_DIR", self.path("state"))
            .env_remove("YOLOFS_LOG")
            // Ctrl-C is for the harness alone, which then ends them in order.
            .process_group(0);
        Ok(command)
    }

    pub(crate) fn yolofs(&self, args: &[&str]) -> anyhow::Result<Command> {
        let mut command = self.program("yolofs")?;
        command.args(args);
        Ok(command)
    }

    /// Mounts the source on a new directory, served by a daemon of its own.
    pub(crate) fn mount(&self, name: &str, flags: &[&str]) -> anyhow::Result<PathBuf> {
        self.mount_from(name, IMAGE, flags)
    }

    /// The same, from another boot image.
    pub(crate) fn mount_from(
        &self,
        name: &str,
        image: &str,
        flags: &[&str],
    ) -> anyhow::Result<PathBuf> {
        let mountpoint = self.make_dir(name)?;
        let mut mount = self.mount_command()?;
        mount.args(["--boot", image]).args(flags);
        done(mount.args([self.source(), &mountpoint]))?;
        Ok(mountpoint)
    }

    /// Returns the command that mounts something, served by a daemon of its own.
    pub(crate) fn mount_command(&self) -> anyhow::Result<Command> {
        self.yolofs(&["mount"])
    }

    pub(crate) fn umount(&self, mountpoint: &Path) -> anyhow::Result<()> {
        done(self.yolofs(&["umount"])?.arg(mountpoint)).map(drop)
    }

    /// Returns the processes that work here in a role.
    pub(crate) fn processes(&self, role: Role) -> Vec<Process> {
        let mut all = self.all_processes();
        all.retain(|process| process.role == role);
        all
    }

    pub(crate) fn all_processes(&self) -> Vec<Process> {
        processes::of_run_dir(&self.run_dir())
    }

    /// Returns where something is mounted, the topmost last.
    pub(crate) fn mounts(&self) -> anyhow::Result<Vec<PathBuf>> {
        let table = fs::read_to_string("/proc/self/mounts").context("reading the mount table")?;
        let points = table.lines().filter_map(|line| line.split(' ').nth(1));
        let ours = points.map(PathBuf::from);
        Ok(ours
            .filter(|point| point.starts_with(self.dir.path()))
            .collect())
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        // More than once: a node may just have started another keeper, or a keeper a node.
        let ended = until("what is left to be ended", || {
            let left = self.all_processes();
            for process in &left {
                if let Ok(process) = rawio::pidfd::PidFd::open(process.pid) {
                    // It may have ended by itself just now.
                    drop(process.signal(nix::sys::signal::Signal::SIGKILL));
                }
            }
            Ok(left.is_empty())
        });
        if let Err(error) = ended {
            eprintln!("{error:#}: {:?}", self.all_processes());
        }
        for point in self.mounts().unwrap_or_default().iter().rev() {
            if let Err(errno) = umount2(point, MntFlags::MNT_DETACH) {
                eprintln!("unmounting {}: {errno}", point.display());
            }
        }
    }
}
