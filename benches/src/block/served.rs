//! `yolofs block export` as a user runs it.

use std::ffi::OsStr;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::process::Guard;

/// How long an export may take to end.
const DEADLINE: Duration = Duration::from_secs(60);

/// A running export.
#[derive(Debug)]
pub struct Export {
    server: Guard,
}

impl Export {
    /// Starts one, and waits until clients can connect.
    ///
    /// # Errors
    /// If it does not start; it has said why.
    pub fn start(mut command: Command) -> anyhow::Result<Self> {
        let (said, out) = std::io::pipe().context("making a pipe")?;
        command.stdin(Stdio::null()).stdout(out);
        let server = Guard::spawn(&mut command)?;
        drop(command); // with its end of the pipe
        let mut line = String::new();
        BufReader::new(said)
            .read_line(&mut line)
            .context("reading what the export says")?;
        ensure!(line.contains(" is served at "), "the export did not start");
        Ok(Self { server })
    }

    /// Asks it to end, and waits for that: it writes what it recorded.
    ///
    /// # Errors
    /// If it fails, or takes too long.
    pub fn end(mut self) -> anyhow::Result<()> {
        let pid = i32::try_from(self.server.pid()).context("a process has a number")?;
        kill(Pid::from_raw(pid), Signal::SIGINT).context("asking the export to end")?;
        let status = self.server.wait_until(Instant::now() + DEADLINE)?;
        // By the signal, or with what programs say of it.
        ensure!(
            status.success() || status.code() == Some(130),
            "the export failed ({status})"
        );
        Ok(())
    }
}

/// An export as a file, and the EROFS in it.
#[derive(Debug)]
pub struct MountedImage {
    root: PathBuf,
    export: Export,
}

impl MountedImage {
    /// Serves what `command` says as a file in the directory `home`, and mounts it.
    ///
    /// # Errors
    /// If that fails.
    pub fn new(mut command: Command, home: &Path) -> anyhow::Result<Self> {
        let [dir, root] = ["export", "root"].map(|name| home.join(name));
        for dir in [&dir, &root] {
            std::fs::create_dir_all(dir).with_context(|| format!("making {}", dir.display()))?;
        }
        command.args([OsStr::new("--mount"), dir.as_os_str()]);
        command.args([OsStr::new("--erofs"), root.as_os_str()]);
        let export = Export::start(command)?;
        Ok(Self { root, export })
    }

    /// Returns where the file system is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.root
    }

    /// Ends the server, which unmounts it.
    ///
    /// # Errors
    /// If the server fails.
    pub fn end(self) -> anyhow::Result<()> {
        self.export.end()
    }
}
