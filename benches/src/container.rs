//! The boot of a container: an overlay on a root, a chroot, and a program that starts.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::Context as _;
use nix::mount::MsFlags;

use crate::namespace::Mounted;
use crate::process::run_ok;

/// What the container runs: a Python service's imports, 15 MB of interpreter and libraries.
pub const WORKLOAD: [&str; 3] = ["/usr/bin/python3", "-c", "import json, ssl, http.client"];

/// A boot from a disk with 50 requests a second and a busy neighbour takes half a minute.
const DEADLINE: Duration = Duration::from_secs(300);

/// The root file system of a container: an overlay whose writes go to memory.
#[derive(Debug)]
pub struct Container {
    // Dropped in this order.
    root: Mounted,
    _scratch: Mounted,
}

impl Container {
    /// Prepares a container on the root `lower`, in the empty directory `scratch`.
    ///
    /// # Errors
    /// If a mount fails.
    pub fn prepare(lower: &Path, scratch: &Path) -> anyhow::Result<Self> {
        let tmpfs = Mounted::new("tmpfs", scratch, "tmpfs", MsFlags::empty(), "mode=0755")?;
        let [upper, work, root] = ["upper", "work", "root"].map(|name| scratch.join(name));
        for dir in [&upper, &work, &root] {
            fs::create_dir(dir).with_context(|| format!("making {}", dir.display()))?;
        }
        let (lower, upper, work) = (lower.display(), upper.display(), work.display());
        let options = format!("lowerdir={lower},upperdir={upper},workdir={work},xino=on");
        let root = Mounted::new("overlay", &root, "overlay", MsFlags::empty(), &options)?;
        Ok(Self {
            root,
            _scratch: tmpfs,
        })
    }

    /// Returns its root.
    #[must_use]
    pub fn root(&self) -> &Path {
        self.root.path()
    }

    /// Runs `workload` in it, and returns the time from spawn to exit.
    ///
    /// # Errors
    /// If it fails.
    pub fn boot(&self, workload: &[&str]) -> anyhow::Result<Duration> {
        let mut command = Command::new("chroot");
        command.arg(self.root.path()).args(workload);
        Ok(run_ok(command, DEADLINE)
            .context("booting the container")?
            .elapsed)
    }
}
