//! A container, as an engine starts it: runc, over an overlay whose lower layer is the mount.

use std::fs;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::Context as _;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use serde_json::json;

use crate::commands::{done, until};
use crate::lab::Lab;

/// Starts a program for each file, so that programs are started from the mount all the time.
const SCRIPT: &str = "while :; do /bin/busybox find /warm /cold /bin -type f \
                      -exec /bin/busybox sha256sum {} ';' 2>&1; done";

/// A container that is made, and not yet removed.
#[derive(Debug)]
pub(super) struct Container {
    /// The bundle, with everything else that belongs to it.
    dir: PathBuf,
    id: String,
    run_dir: PathBuf,
}

impl Container {
    pub(super) fn make(lab: &Lab, lower: &Path) -> anyhow::Result<Self> {
        let made = Self {
            dir: lab.make_dir("container")?,
            id: format!("{}-container", lab.name()),
            run_dir: lab.run_dir(),
        };
        for name in ["upper", "work", "rootfs", "state"] {
            lab.make_dir(&format!("container/{name}"))?;
        }
        let options = format!(
            "lowerdir={},upperdir={},workdir={},xino=on",
            lower.display(),
            made.dir.join("upper").display(),
            made.dir.join("work").display()
        );
        let kind = Some("overlay");
        mount(
            kind,
            &made.rootfs(),
            kind,
            MsFlags::empty(),
            Some(options.as_str()),
        )
        .context("mounting the root of a container")?;
        fs::write(made.dir.join("config.json"), made.config().to_string())?;
        Ok(made)
    }

    fn rootfs(&self) -> PathBuf {
        self.dir.join("rootfs")
    }

    fn config(&self) -> serde_json::Value {
        let namespaces = ["pid", "mount", "ipc", "uts", "network"];
        let namespaces = namespaces.map(|kind| json!({ "type": kind }));
        json!({
            "ociVersion": "1.0.2",
            "process": {
                "args": ["/bin/busybox", "sh", "-c", SCRIPT],
                // By this it is found if it is left behind.
                "env": [format!("YOLOFS_RUN_DIR={}", self.run_dir.display())],
                "cwd": "/",
                "user": { "uid": 0, "gid": 0 },
                "noNewPrivileges": true
            },
            "root": { "path": self.rootfs() },
            "mounts": [
                { "destination": "/proc", "type": "proc", "source": "proc" },
                { "destination": "/dev", "type": "tmpfs", "source": "tmpfs" }
            ],
            "linux": { "namespaces": namespaces, "cgroupsPath": format!("/{}", self.id) }
        })
    }

    fn runc(&self) -> Command {
        let mut runc = Command::new("runc");
        runc.arg("--root").arg(self.dir.join("state"));
        runc
    }

    pub(super) fn run(&self) -> anyhow::Result<Child> {
        self.runc()
            .args(["run", "--bundle"])
            .arg(&self.dir)
            .arg(&self.id)
            .env("YOLOFS_RUN_DIR", &self.run_dir)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .process_group(0)
            .spawn()
            .context("starting a container with runc (apt-get install runc)")
    }

    /// Ends it and what runc left of it; `runner` is what [`Self::run`] has returned.
    pub(super) fn remove(self, runner: &mut Child) -> anyhow::Result<()> {
        done(self.runc().args(["delete", "--force", &self.id]))?;
        until("the end of a container", || {
            Ok(runner.try_wait()?.is_some())
        })?;
        until("the release of a container's root", || {
            Ok(umount2(&self.rootfs(), MntFlags::UMOUNT_NOFOLLOW).is_ok())
        })?;
        fs::remove_dir_all(&self.dir).context("removing a container")
    }
}
