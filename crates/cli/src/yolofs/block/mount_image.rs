//! `yolofs block mount-image`: mounts the file system in an exported file for its export, which is confined, and so may
//! mount nothing. It does so once, at one place, and unmounts it when the export ends.

use std::io::{BufRead as _, BufReader, Read as _, Write as _, stdin};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use anyhow::{Context as _, ensure};
use blockimages::MountedImage;
use nix::sys::signal::SigSet;

use crate::exit::Outcome;
use crate::output::write_out;

/// What is said when it is mounted; anything else is why not.
const MOUNTED: &str = "mounted";

/// Mount the file system in a file when a byte comes on standard input, and unmount it when that ends
#[derive(Clone, Debug, clap::Args)]
pub(super) struct MountImageArgs {
    /// The exported file
    file: PathBuf,
    /// Where
    at: PathBuf,
}

pub(super) fn run(args: &MountImageArgs) -> anyhow::Result<Outcome> {
    // The export hears these, and ends this.
    SigSet::all().thread_block().context("blocking signals")?;
    let mut byte = [0];
    let mut is_there = || Ok::<_, anyhow::Error>(stdin().read(&mut byte)? > 0);
    if !is_there()? {
        return Ok(Outcome::Done);
    }
    match MountedImage::mount(&args.file, &args.at) {
        Ok(mounted) => {
            write_out(format!("{MOUNTED}\n").as_bytes())?;
            while is_there()? {}
            drop(mounted);
        }
        Err(error) => {
            let why = format!("{:#}", anyhow::Error::from(error)).replace('\n', " ");
            write_out(format!("{why}\n").as_bytes())?;
        }
    }
    Ok(Outcome::Done)
}

/// The export's end of it.
pub(super) struct MountedByOther {
    process: Child,
    /// `None` when it is being ended.
    asks: Option<ChildStdin>,
    says: ChildStdout,
}

impl MountedByOther {
    /// Starts it, while this process has all its rights.
    ///
    /// # Errors
    /// If it cannot be started.
    pub(super) fn start(file: &Path, at: &Path) -> anyhow::Result<Self> {
        let mut process = Command::new("/proc/self/exe")
            .args(["block", "mount-image"])
            .args([file, at])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            // What is typed at the terminal is not for it.
            .process_group(0)
            .spawn()
            .context("starting the process that mounts the file system of the image")?;
        let (asks, says) = (process.stdin.take(), process.stdout.take());
        Ok(Self {
            asks,
            says: says.context("a process without standard output")?,
            process,
        })
    }

    /// Has it mounted.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub(super) fn mount(&mut self) -> anyhow::Result<()> {
        const ASKING: &str = "asking the process that mounts the file system of the image";
        let asks = self.asks.as_mut().context(ASKING)?;
        asks.write_all(b"m").context(ASKING)?;
        let mut said = String::new();
        let mut says = BufReader::new(&mut self.says);
        says.read_line(&mut said).context(ASKING)?;
        let said = said.trim_end();
        ensure!(said == MOUNTED, "{said}");
        Ok(())
    }
}

impl Drop for MountedByOther {
    fn drop(&mut self) {
        drop(self.asks.take());
        if let Err(error) = self.process.wait() {
            log::warn!("cannot wait for the process that unmounts: {error}");
        }
    }
}
