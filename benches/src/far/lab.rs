//! A service with a Debian root, and machines behind a line that start programs from it.

use std::fs;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use link_emulator::{Address, Link, Shape};
use serde::Deserialize;
use tempfile::TempDir;

use super::cpu;
use super::frames::Frames;
use super::programs::{Times, run_all};
use super::sample::{Floor, Point, Sample, Way, Wire};
use crate::boots::milliseconds;
use crate::lab_args::Places;
use crate::nic::service::{BLOCKS, Nicfetch, Server, admin_at};
use crate::process::{run_ok, wait_for};
use crate::programs::{Programs, YoloMount, json};
use crate::rounds::{Shuffle, median};

/// What was done before each sample, for the report.
pub const PROCEDURE: &str = "each sample is a mount of its own, of which the kernel has nothing, on a \
machine that has nothing of the root; the service has its store in the page cache, as one that runs has";

/// The source with a boot image, and the one without.
pub(super) const SOURCE: &str = "far";
const BARE: &str = "bare";
/// Files of the way [`Way::Files`].
const FILES: usize = 2_000;
/// Which files these are is the same in each run.
const SEED: u64 = 18;
/// Turns of the native start, for the floor.
const NATIVE_TURNS: u32 = 7;
/// Mounting, importing, unmounting.
const DEADLINE: Duration = Duration::from_secs(300);

/// The service and what it serves.
#[derive(Debug)]
pub struct Lab {
    nicfetch: Nicfetch,
    bin: PathBuf,
    root: PathBuf,
    address: Address,
    floor: Floor,
    files: Vec<PathBuf>,
    machines: AtomicU32,
    server: Server,
    home: TempDir,
}

/// A line from a machine to the service, and what went over it.
#[derive(Debug)]
pub struct Line {
    /// The line.
    pub link: Link,
    /// Where the machine finds the service.
    pub address: Address,
    /// What went over it.
    pub frames: Frames,
}

/// What `nicfetch ls --json` says.
#[derive(Deserialize)]
struct Listed {
    sources: Vec<ListedSource>,
}

#[derive(Deserialize)]
struct ListedSource {
    name: String,
    boots: u64,
}

impl Lab {
    /// Serves the root of scripts/images/far.sh with more flags of `nicfetch serve`, and records a boot
    /// image of it.
    ///
    /// # Errors
    /// If the root, a program or a right is missing.
    pub fn open(places: &Places, flags: &[String]) -> anyhow::Result<Self> {
        let root = places.images.join("far");
        ensure!(
            root.join("usr/bin/node").exists(),
            "{} is missing: run scripts/images/far.sh",
            root.display()
        );
        let home = tempfile::Builder::new()
            .prefix("rig.")
            .tempdir_in(places.images.parent().unwrap_or(&places.images))
            .context("making a directory beside the images")?;
        let nicfetch = Nicfetch::new(&places.bin)?;
        let store = home.path().join("store");
        for name in [SOURCE, BARE] {
            nicfetch.import(&store, name, &root)?;
        }
        let mut all = vec!["--blocks-open"];
        all.extend(flags.iter().map(String::as_str));
        let anywhere = format!("{}:0", Ipv4Addr::LOCALHOST);
        let server = nicfetch.serve_blocks(&store, &anywhere, &all)?;
        let address = server.address(BLOCKS)?.parse()?;
        let mut lab = Self {
            nicfetch,
            bin: places.bin.clone(),
            files: files(&root)?,
            root,
            address,
            floor: Floor::default(),
            machines: AtomicU32::new(0),
            server,
            home,
        };
        lab.floor = lab.measure_floor()?;
        Ok(lab)
    }

    /// Returns what no start can beat.
    #[must_use]
    pub const fn floor(&self) -> Floor {
        self.floor
    }

    /// Returns the milliseconds of processor time that the service has taken.
    ///
    /// # Errors
    /// If it is gone.
    pub fn service_cpu_ms(&self) -> anyhow::Result<f64> {
        cpu::of_process(self.server.pid())
    }

    /// Returns the directory that is served.
    #[must_use]
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Takes one sample; the line of one that has any is returned, too.
    ///
    /// # Errors
    /// If the mount or a program fails, or a byte is wrong.
    pub fn sample(&self, way: Way, point: Point) -> anyhow::Result<(Sample, Option<Line>)> {
        let (source, flags): (_, &[&str]) = match way {
            Way::Native => return Ok((self.native(point)?, None)),
            Way::BootImage => (SOURCE.to_owned(), &[]),
            Way::OnDemand | Way::Files => (BARE.to_owned(), &[]),
            Way::Recording => (self.import_new()?, &["--nic-share"]),
        };
        let line = self.line(point)?;
        let machine = self.machine()?;
        let work = |root: &Path| match way {
            Way::Files => self.read_files(root),
            _ => run_all(root, &machine.scratch),
        };
        let sample = machine.start(way, point, &line, &source, flags, work);
        let sample = sample.with_context(|| format!("{way}, {point}"))?;
        Ok((sample, Some(line)))
    }

    fn native(&self, point: Point) -> anyhow::Result<Sample> {
        let machine = self.machine()?;
        let times = run_all(&self.root, &machine.scratch)?;
        Ok(Sample {
            way: Way::Native,
            point,
            mount_ms: 0.0,
            after_ms: milliseconds(times.all),
            each_ms: times.each_ms,
            wire: Wire::default(),
            daemon_cpu_ms: 0.0,
            status: serde_json::Value::Null,
        })
    }

    /// Lays a line to the service.
    ///
    /// # Errors
    /// If it cannot listen.
    pub fn line(&self, point: Point) -> anyhow::Result<Line> {
        let frames = Frames::default();
        let shape = Shape::new(Duration::from_millis(point.rtt_ms), point.mbit);
        let mut link = Link::tapped(shape, frames.tap());
        let anywhere = Address::Tcp((Ipv4Addr::LOCALHOST, 0).into());
        let address = link.carry(&anywhere, self.address.clone())?;
        Ok(Line {
            link,
            address,
            frames,
        })
    }

    /// Makes a machine that has nothing yet.
    ///
    /// # Errors
    /// If its directories cannot be made.
    pub fn machine(&self) -> anyhow::Result<Machine> {
        let number = self.machines.fetch_add(1, Relaxed);
        let home = self.home.path().join(format!("machine{number}"));
        let [at, scratch] = ["mount", "scratch"].map(|name| home.join(name));
        for dir in [&at, &scratch] {
            fs::create_dir_all(dir).with_context(|| format!("making {}", dir.display()))?;
        }
        Ok(Machine {
            programs: Programs::new(&self.bin, &home)?,
            home,
            at,
            scratch,
        })
    }

    /// Imports the root once more under a name that nobody has recorded.
    fn import_new(&self) -> anyhow::Result<String> {
        let name = format!("new{}", self.machines.fetch_add(1, Relaxed));
        let mut import = self.operator("import");
        import.args(["--name", &name]).arg(&self.root);
        run_ok(import, DEADLINE)?;
        Ok(name)
    }

    fn operator(&self, verb: &str) -> Command {
        let mut command = Command::new(self.nicfetch.program());
        let admin = admin_at(&self.home.path().join("store"));
        command.args([verb, "--admin", &admin]);
        command
    }

    /// Has one start recorded for the source, which shows what a start touches, and times native ones.
    fn measure_floor(&self) -> anyhow::Result<Floor> {
        let near = Point { rtt_ms: 0, mbit: 0 };
        let line = self.line(near)?;
        let machine = self.machine()?;
        let work = |root: &Path| run_all(root, &machine.scratch);
        machine.start(Way::Recording, near, &line, SOURCE, &["--nic-share"], work)?;
        // The daemon gives the boot image away after the mount is over, over the line.
        wait_for("boot image at the service", DEADLINE, || {
            let listed: Listed = json(self.operator("ls"))?;
            let mut sources = listed.sources.iter();
            let recorded = |source: &ListedSource| source.name == SOURCE && source.boots > 0;
            Ok(sources.any(recorded).then_some(()))
        })?;
        drop(line);
        let touched = self.touched()?;
        let mut native = Vec::new();
        for _ in 0..NATIVE_TURNS {
            native.push(self.native(near)?.after_ms);
        }
        Ok(Floor {
            own_ms: median(&native).unwrap_or_default(),
            ..touched
        })
    }

    /// Starts the programs once more: what comes is what the recorded start touched, as it is stored.
    fn touched(&self) -> anyhow::Result<Floor> {
        let point = Point { rtt_ms: 0, mbit: 0 };
        let (line, machine) = (self.line(point)?, self.machine()?);
        let work = |root: &Path| run_all(root, &machine.scratch);
        let sample = machine.start(Way::BootImage, point, &line, SOURCE, &[], work)?;
        Ok(Floor {
            own_ms: 0.0,
            touched_bytes: sample.wire.chunk_bytes - sample.wire.twice_bytes,
            touched_chunks: sample.wire.chunks - sample.wire.twice,
        })
    }

    /// Reads files one after the other, and compares them when the time is over.
    fn read_files(&self, root: &Path) -> anyhow::Result<Times> {
        let read = |at: &Path| fs::read(at).with_context(|| format!("reading {}", at.display()));
        let began = Instant::now();
        let all = self.files.iter().map(|file| read(&root.join(file)));
        let all = all.collect::<anyhow::Result<Vec<_>>>()?;
        let ended = Instant::now();
        for (file, bytes) in self.files.iter().zip(all) {
            ensure!(
                read(&self.root.join(file))? == bytes,
                "{} has wrong bytes",
                file.display()
            );
        }
        Ok(Times {
            all: ended - began,
            each_ms: Vec::new(),
            ended,
        })
    }

    /// Compares some files of a mount with those on the disk.
    ///
    /// # Errors
    /// If one cannot be read, or differs.
    pub fn compare(&self, root: &Path) -> anyhow::Result<()> {
        self.read_files(root).map(drop)
    }
}

/// A machine that starts programs from far away.
#[derive(Debug)]
pub struct Machine {
    programs: Programs,
    home: PathBuf,
    at: PathBuf,
    /// An empty directory.
    pub scratch: PathBuf,
}

impl Machine {
    /// Mounts a source over a line, with more flags of `yolofs mount`, and does `work` in the mount.
    ///
    /// # Errors
    /// If mounting or the work fails.
    pub fn start(
        &self,
        way: Way,
        point: Point,
        line: &Line,
        source: &str,
        flags: &[&str],
        work: impl FnOnce(&Path) -> anyhow::Result<Times>,
    ) -> anyhow::Result<Sample> {
        let began = Instant::now();
        let mount = self.mount(line, source, flags)?;
        let mounted = began.elapsed();
        let times = work(mount.path())?;
        let wire = Wire::new(line.link.counts(), line.frames.seen());
        let mut status = self.programs.yolofs();
        status.arg("status").arg(mount.path());
        let status: Vec<serde_json::Value> = json(status)?;
        let daemon = status.first().and_then(|status| status["pid"].as_u64());
        let daemon = daemon.and_then(|pid| u32::try_from(pid).ok());
        let daemon = daemon.context("a mount without a daemon")?;
        Ok(Sample {
            daemon_cpu_ms: cpu::of_process(daemon)?,
            way,
            point,
            mount_ms: milliseconds(mounted),
            after_ms: milliseconds(times.all),
            each_ms: times.each_ms,
            wire,
            status: status.into_iter().next().unwrap_or_default(),
        })
    }

    fn mount(&self, line: &Line, source: &str, flags: &[&str]) -> anyhow::Result<YoloMount<'_>> {
        let mut mount = self.programs.yolofs();
        mount
            .arg("mount")
            .arg(format!("nic:{source}"))
            .arg(&self.at);
        mount.args(["--nic", &line.address.to_string()]).args(flags);
        run_ok(mount, DEADLINE)?;
        Ok(self.programs.adopt(&self.at))
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        // What is left of it goes with the lab.
        let _left = fs::remove_dir_all(&self.home);
    }
}

/// Chooses some regular files of a root, and returns their paths below it.
fn files(root: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let mut all = Vec::new();
    let mut dirs = vec![root.to_owned()];
    while let Some(dir) = dirs.pop() {
        let entries = fs::read_dir(&dir).with_context(|| format!("listing {}", dir.display()))?;
        for entry in entries {
            let entry = entry.with_context(|| format!("listing {}", dir.display()))?;
            let kind = entry.file_type().context("looking at a file")?;
            if kind.is_dir() {
                dirs.push(entry.path());
            } else if kind.is_file() {
                all.push(entry.path().strip_prefix(root)?.to_owned());
            }
        }
    }
    // The order of a directory is the file system's.
    all.sort_unstable();
    let mut some = Shuffle::from_seed(SEED).order(&all);
    some.truncate(FILES);
    Ok(some)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_files_are_chosen_each_time() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join("a/b")).unwrap();
        for name in ["a/one", "a/b/two", "three"] {
            fs::write(dir.path().join(name), name).unwrap();
        }
        std::os::unix::fs::symlink("three", dir.path().join("link")).unwrap();
        let chosen = files(dir.path()).unwrap();
        assert_eq!(chosen.len(), 3);
        assert_eq!(chosen, files(dir.path()).unwrap());
    }
}
