//! What all runs share: a source, a pristine copy of it in memory, and a boot image of it.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use anyhow::{Context as _, ensure};
use tempfile::TempDir;

use crate::commands::{done, programs};
use crate::machine::{make_reader, take_busybox};
use crate::names::{IMAGE, MACHINE, PROGRAM, RUNNABLE};
use crate::{Guest, Rng, Truth};

/// All runs have the same source, so that the seed of a run says it all.
const SEED: u64 = 1;

/// What is read when a boot is recorded: half of the files, and a part of the machine's disk.
const BOOT: &str = "cat $YOLOFS_MNT/warm/*/* $YOLOFS_MNT/bin/* >/dev/null
if [ -d $YOLOFS_MNT/machine ]; then head -c 8M $YOLOFS_MNT/machine/disk.raw >/dev/null; fi";

/// The source that is mounted, and what is true of it.
#[derive(Debug)]
pub struct Base {
    dir: TempDir,
    truth: Arc<Truth>,
    guests: Vec<Guest>,
}

impl Base {
    /// Makes the source, with what the guests need that are to read it, and records a
    /// boot that reads half of it.
    ///
    /// # Errors
    /// If there is no space, recording fails, or what guests are made of is missing.
    pub fn new(guests: &[Guest]) -> anyhow::Result<Self> {
        let dir = tempfile::Builder::new().prefix("yolofs-soak").tempdir()?;
        let source = dir.path().join("source");
        make_source(&source, &mut Rng::new(SEED)).context("making the source")?;
        if !guests.is_empty() {
            take_busybox(&source.join("bin"))?;
        }
        if guests.contains(&Guest::Vm) {
            make_reader(&source, &source.join(MACHINE)).context("making a virtual machine")?;
        }
        let base = Self {
            truth: Arc::new(Truth::of(&source)?),
            dir,
            guests: guests.to_vec(),
        };
        base.record().context("recording the source")?;
        Ok(base)
    }

    fn record(&self) -> anyhow::Result<()> {
        let mut record = Command::new(programs()?.join("bootimg"));
        record
            .env("YOLOFS_STORE", self.store())
            .env("YOLOFS_RUN_DIR", self.dir.path().join("run"))
            .args(["record", "--no-chroot", "--name", IMAGE])
            .arg(self.source())
            .args(["--", "sh", "-c", BOOT]);
        done(&mut record).map(drop)
    }

    /// Returns the directory that is mounted.
    pub(crate) fn source(&self) -> PathBuf {
        self.dir.path().join("source")
    }

    /// Returns the store with the boot image.
    pub(crate) fn store(&self) -> PathBuf {
        self.dir.path().join("store")
    }

    /// Returns who else is to read.
    pub(crate) fn guests(&self) -> &[Guest] {
        &self.guests
    }

    /// Returns what is in the source.
    #[must_use]
    pub fn truth(&self) -> Arc<Truth> {
        Arc::clone(&self.truth)
    }

    /// Checks that the source is as it was made: nothing may have written to it.
    ///
    /// # Errors
    /// If it is not.
    pub fn check_source(&self) -> anyhow::Result<()> {
        let files = self.truth.compare(&self.source())?;
        ensure!(
            files == self.truth.files().len(),
            "files are gone from the source"
        );
        Ok(())
    }
}

/// Files of all sizes, half of them for the boot image, and a program.
fn make_source(root: &Path, rng: &mut Rng) -> anyhow::Result<()> {
    for part in ["warm", "cold"] {
        for dir in 0..4 {
            let dir = root.join(part).join(format!("d{dir}"));
            fs::create_dir_all(&dir)?;
            for file in 0..8 {
                // From nothing to a MiB, seldom at the edge of a page.
                let len = rng.below(1 << (10 + file * 10 / 7));
                let len = if file == 0 { 0 } else { len };
                fs::write(
                    dir.join(format!("f{file}")),
                    rng.bytes(usize::try_from(len)?),
                )?;
            }
        }
    }
    let program = root.join(PROGRAM);
    fs::create_dir_all(root.join("bin"))?;
    fs::copy(RUNNABLE, &program)?;
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755))?;
    Ok(())
}
