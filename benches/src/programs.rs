//! The programs under test, run as a user runs them.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::process::run_ok;

/// Recording a machine's boot takes the longest: a few boots, each slower than without a recorder.
pub(crate) const DEADLINE: Duration = Duration::from_secs(600);

/// Where the programs are, and the store and the run directory they use.
#[derive(Clone, Debug)]
pub struct Programs {
    /// Directory of `bootimg` and `yolofs`.
    bin: PathBuf,
    store: PathBuf,
    run_dir: PathBuf,
    /// The tiers file; without, boot images are only in the store.
    tiers: Option<PathBuf>,
}

/// How a mount serves its boot image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Serving {
    /// The boot image is pushed into the page cache before the boot: what yolofs does.
    Injected,
    /// The kernel reads the whole copies of files that tiers have; only names and attributes are
    /// the boot image's.
    Passed,
    /// The daemon answers each read from the boot image, which is in memory: what YOLO did.
    Answered,
}

/// What of `yolofs status --json` the rig looks at.
#[derive(Clone, Debug, Deserialize)]
pub struct Status {
    /// The daemon.
    pub pid: u32,
    /// What it was asked.
    pub served: Option<Served>,
}

/// What a daemon was asked.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct Served {
    /// Bytes it read from the source.
    pub fallthrough_bytes: u64,
    /// Requests of the kernel, by kind.
    pub requests: BTreeMap<String, u64>,
}

impl Served {
    /// Returns the requests that came after `earlier`, without kinds that did not.
    #[must_use]
    pub fn requests_since(&self, earlier: &Self) -> BTreeMap<String, u64> {
        let before = |kind: &String| earlier.requests.get(kind).copied().unwrap_or(0);
        let later = self
            .requests
            .iter()
            .map(|(kind, count)| (kind, count - before(kind).min(*count)));
        later
            .filter(|(_, count)| *count > 0)
            .map(|(kind, count)| (kind.clone(), count))
            .collect()
    }
}

impl Programs {
    /// Takes the programs from `bin`, with a store and a run directory in `home`.
    ///
    /// # Errors
    /// If they are not there, or the directories cannot be made.
    pub fn new(bin: &Path, home: &Path) -> anyhow::Result<Self> {
        for program in ["bootimg", "yolofs"] {
            let path = bin.join(program);
            ensure!(
                path.exists(),
                "{} is missing: run cargo build --release -p cli",
                path.display()
            );
        }
        let (store, run_dir) = (home.join("store"), home.join("run"));
        for dir in [&store, &run_dir] {
            fs::create_dir_all(dir).with_context(|| format!("making {}", dir.display()))?;
        }
        Ok(Self {
            bin: bin.to_owned(),
            store,
            run_dir,
            tiers: None,
        })
    }

    /// Returns where the programs say what runs, and what was measured.
    #[must_use]
    pub fn run_dir(&self) -> &Path {
        &self.run_dir
    }

    /// Returns the same programs with another store.
    #[must_use]
    pub fn with_store(&self, store: &Path) -> Self {
        Self {
            store: store.to_owned(),
            ..self.clone()
        }
    }

    /// Returns the same programs with a tiers file.
    #[must_use]
    pub fn with_tiers(&self, file: &Path) -> Self {
        Self {
            tiers: Some(file.to_owned()),
            ..self.clone()
        }
    }

    /// Returns the store's directory.
    #[must_use]
    pub fn store(&self) -> &Path {
        &self.store
    }

    /// Returns `bootimg` with our store and run directory.
    #[must_use]
    pub fn bootimg(&self) -> Command {
        self.command("bootimg")
    }

    /// Returns `yolofs` with our store and run directory.
    #[must_use]
    pub fn yolofs(&self) -> Command {
        self.command("yolofs")
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(self.bin.join(program));
        command
            .env("YOLOFS_STORE", &self.store)
            .env("YOLOFS_RUN_DIR", &self.run_dir)
            // That of the machine would be there for the second start.
            .env("YOLOFS_NIC_CACHE", "none")
            .envs(self.tiers.as_ref().map(|file| ("YOLOFS_TIERS", file)));
        command
    }

    /// Mounts `source` on the directory `mountpoint`, with its boot image in memory.
    ///
    /// # Errors
    /// If `yolofs mount` fails.
    pub fn mount(
        &self,
        source: &Path,
        mountpoint: &Path,
        image: &str,
        serving: Serving,
    ) -> anyhow::Result<YoloMount<'_>> {
        let mut command = self.yolofs();
        // The stage never changes; trusting that, a mount reads nothing of the source, so that the
        // tree under the mount is as cold as for the native boot.
        command
            .args(["mount", "--trust", "--boot", image])
            .args([source, mountpoint]);
        match serving {
            Serving::Injected => command.arg("--wait-prewarm"),
            Serving::Passed => command.args(["--mode", "disk", "--wait-prewarm"]),
            Serving::Answered => {
                let mut prewarm = self.bootimg();
                prewarm.args(["prewarm", image]);
                run_ok(prewarm, DEADLINE)?;
                command.arg("--no-inject")
            }
        };
        run_ok(command, DEADLINE)?;
        let mount = YoloMount {
            programs: self,
            mountpoint: mountpoint.to_owned(),
        };
        if serving == Serving::Answered {
            read_nothing_ahead(mountpoint)?;
        }
        Ok(mount)
    }

    /// Takes over what is mounted on the directory `mountpoint`.
    #[must_use]
    pub fn adopt(&self, mountpoint: &Path) -> YoloMount<'_> {
        YoloMount {
            programs: self,
            mountpoint: mountpoint.to_owned(),
        }
    }
}

/// Turns readahead off on a mount whose daemon answers each read. Boot images hold what was asked
/// for, not what the kernel would have read ahead: with readahead, requests would span blocks that
/// are not in memory, and the disk would be measured instead of the daemon.
fn read_nothing_ahead(mountpoint: &Path) -> anyhow::Result<()> {
    let device = fs::metadata(mountpoint)
        .context("looking at the mount")?
        .dev();
    let number = format!(
        "{}:{}",
        nix::sys::stat::major(device),
        nix::sys::stat::minor(device)
    );
    let file = format!("/sys/class/bdi/{number}/read_ahead_kb");
    fs::write(&file, "0").with_context(|| format!("turning readahead off in {file}"))
}

/// Runs a program of ours with `--json`, and returns what it says.
///
/// # Errors
/// If it fails or says something else.
pub fn json<T: DeserializeOwned>(mut command: Command) -> anyhow::Result<T> {
    command.arg("--json");
    let shown = format!("{command:?}");
    let output = run_ok(command, DEADLINE)?.output;
    serde_json::from_str(&output).with_context(|| format!("reading what {shown} said: {output}"))
}

/// Runs a program of ours whose arguments end with a command, so that its flags come first, and
/// returns what it says.
///
/// # Errors
/// If it fails or says something that is not JSON.
pub fn record(
    mut bootimg: Command,
    flags: &[&str],
    source: &Path,
    workload: &[impl AsRef<std::ffi::OsStr>],
) -> anyhow::Result<Value> {
    bootimg
        .args(["record", "--json"])
        .args(flags)
        .arg(source)
        .arg("--")
        .args(workload);
    let output = run_ok(bootimg, DEADLINE)?.output;
    serde_json::from_str(&output)
        .with_context(|| format!("reading what bootimg record said: {output}"))
}

/// A mount of `yolofs`, unmounted with its owner.
#[derive(Debug)]
pub struct YoloMount<'a> {
    programs: &'a Programs,
    mountpoint: PathBuf,
}

impl YoloMount<'_> {
    /// Returns where it is mounted.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.mountpoint
    }

    /// Returns what its daemon says of itself.
    ///
    /// # Errors
    /// If it says nothing.
    pub fn status(&self) -> anyhow::Result<Status> {
        let mut command = self.programs.yolofs();
        command.arg("status").arg(&self.mountpoint);
        let mounts: Vec<Status> = json(command)?;
        mounts
            .into_iter()
            .next()
            .context("yolofs status does not know the mount")
    }

    /// Returns what its daemon was asked so far.
    ///
    /// # Errors
    /// If it does not say.
    pub fn served(&self) -> anyhow::Result<Served> {
        self.status()?.served.context("the daemon does not answer")
    }
}

impl Drop for YoloMount<'_> {
    fn drop(&mut self) {
        let pid = self.status().map(|status| status.pid);
        let mut command = self.programs.yolofs();
        command.args(["umount", "--lazy"]).arg(&self.mountpoint);
        // Not `run_ok`: that one gives up when interrupted, and this must be done all the more.
        match command.output() {
            Ok(output) if output.status.success() => {}
            Ok(output) => eprintln!(
                "warning: {}",
                String::from_utf8_lossy(&output.stderr).trim()
            ),
            Err(error) => eprintln!("warning: cannot run yolofs umount: {error}"),
        }
        // The next sample must not share the machine with a daemon that is still going.
        let gone = |pid| !Path::new(&format!("/proc/{pid}")).exists();
        if let Ok(pid) = pid {
            let _reported_above =
                crate::process::wait_for("end of the daemon", Duration::from_secs(10), || {
                    Ok(gone(pid).then_some(()))
                });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn served(counts: &[(&str, u64)]) -> Served {
        let requests = counts
            .iter()
            .map(|(kind, count)| ((*kind).to_owned(), *count))
            .collect();
        Served {
            requests,
            ..Served::default()
        }
    }

    #[test]
    fn only_new_requests_count() {
        let (before, after) = (
            served(&[("read", 3), ("lookup", 1)]),
            served(&[("read", 3), ("lookup", 5), ("open", 2)]),
        );
        let new: Vec<_> = after.requests_since(&before).into_iter().collect();
        assert_eq!(new, [("lookup".to_owned(), 4), ("open".to_owned(), 2)]);
    }
}
