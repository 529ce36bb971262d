//! Where cells are measured: a disk with a base and its clones, the programs, and what was recorded.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use tempfile::TempDir;

use super::guest::{LightGuest, Machine, READY};
use super::neighbours::Neighbours;
use super::pins::Pins;
use super::{Cache, Cell, Images, Mode, Sample};
use crate::boots::milliseconds;
use crate::caches;
use crate::lab_args::Places;
use crate::process::run_ok;
use crate::programs::{DEADLINE, Programs, YoloMount, record};
use crate::report::count;
use crate::stage::{Access, Stage};
use crate::throttle::Throttle;

/// Machines at once, at most.
const MACHINES_MAX: usize = 16;
/// How often a sample is tried that somebody else spoils.
const ATTEMPTS: u32 = 5;
/// Making a file system of half a gigabyte.
const MKFS_DEADLINE: Duration = Duration::from_secs(300);

/// The site.
#[derive(Debug)]
pub struct Site {
    // First: what is mounted goes before the directory that it is in.
    stage: Stage,
    programs: Programs,
    guest: LightGuest,
    pins: Pins,
    home: TempDir,
}

impl Site {
    /// Makes the disk, and records a boot and what QEMU touches.
    ///
    /// # Errors
    /// If an image, a program or a right is missing.
    pub fn open(places: &Places) -> anyhow::Result<Self> {
        let beside = places.images.parent().unwrap_or(&places.images);
        let home = tempfile::Builder::new().prefix("yolo.").tempdir_in(beside);
        let home = home.with_context(|| format!("making a directory in {}", beside.display()))?;
        let dir = |name: &str| -> anyhow::Result<PathBuf> {
            let path = home.path().join(name);
            fs::create_dir(&path).with_context(|| format!("making {}", path.display()))?;
            Ok(path)
        };
        let guest = LightGuest::unpack(&places.images, &dir("light")?)?;
        let (mountpoint, image) = (dir("stage")?, home.path().join("stage.ext4"));
        make_disk(&guest.disk(), &dir("tree")?, &image)?;
        let stage = Stage::mount(&image, &mountpoint, Access::ReadOnly)?;
        let programs = Programs::new(&places.bin, home.path())?;
        for name in ["mount", "machines"] {
            dir(name)?;
        }
        let until = format!("line:{READY}");
        let flags = ["--name", "light", "--runs", "2", "--until", &until];
        let base = stage.path().join("base/01.raw");
        record(programs.bootimg(), &flags, &base, &guest.recordable())
            .context("recording a boot")?;
        let pins = Pins::record(&programs, &guest.machine(), home.path().join("pins"))?;
        let site = Self {
            stage,
            programs,
            guest,
            pins,
            home,
        };
        for images in [Images::Shared, Images::Clones] {
            // What a directory of clones has in common with the base is found out when it is mounted first.
            site.mount(images, Mode::Yolofs)?;
        }
        Ok(site)
    }

    fn source(&self, images: Images) -> PathBuf {
        self.stage.path().join(match images {
            Images::Shared => "base",
            Images::Clones => "clones",
        })
    }

    fn mount(&self, images: Images, mode: Mode) -> anyhow::Result<YoloMount<'_>> {
        let at = self.home.path().join("mount");
        let mut command = self.programs.yolofs();
        command
            .args(["mount", "--mode", "disk", "--wait-prewarm"])
            .arg(self.source(images))
            .arg(&at);
        if mode == Mode::Pinned {
            command.arg("--lock");
        }
        run_ok(command, DEADLINE)?;
        Ok(self.programs.adopt(&at))
    }

    /// Measures a cell; again, if somebody else drops caches meanwhile, because nothing is warm then.
    ///
    /// # Errors
    /// If anything on the way fails: a sample is whole or there is none.
    pub fn sample(&self, cell: Cell) -> anyhow::Result<Sample> {
        for _ in 0..ATTEMPTS {
            let (drops, sample) = self.sample_once(cell)?;
            if caches::drops()? == drops {
                return Ok(sample);
            }
        }
        bail!("somebody keeps dropping this machine's caches: measure when it is quiet")
    }

    /// Measures a cell once. Returns how often caches had been dropped when it began, too.
    fn sample_once(&self, cell: Cell) -> anyhow::Result<(u64, Sample)> {
        let throttle = Throttle::new(&self.stage.device_number()?, cell.disk.iops())?;
        let held = match cell.mode {
            Mode::Pinned => Some(self.pins.hold(&self.programs)?),
            _ => None,
        };
        // What was pinned stays, and of the host's own files nothing else.
        caches::drop_everything()?;
        let drops = caches::drops()?;
        let started = Instant::now();
        let mount = match cell.mode {
            Mode::Yolofs | Mode::Pinned => Some(self.mount(cell.images, cell.mode)?),
            Mode::Native | Mode::Warm => None,
        };
        let prepared = started.elapsed();
        let dir = mount
            .as_ref()
            .map_or_else(|| self.source(cell.images), |mount| mount.path().to_owned());
        if cell.mode == Mode::Warm {
            drop(self.boot(&dir, cell)?);
        }
        if let Some(mount) = &mount {
            throttle.admit(mount.status()?.pid)?;
        }
        let stay = throttle.stay()?;
        let before = self.stage.reads()?;
        let neighbours = Neighbours::start(&self.stage, cell.neighbours, self.home.path())?;
        let started = Instant::now();
        let mut machines = self.boot(&dir, cell)?;
        let ready = started.elapsed();
        let foreign = neighbours.map(Neighbours::end).transpose()?;
        let reads = self
            .stage
            .reads()?
            .since(before)
            .since(foreign.unwrap_or_default());
        let guests = machines.iter_mut().map(Machine::disk_reads);
        let guests: Vec<_> = guests.collect::<anyhow::Result<_>>()?;
        drop((stay, machines, mount, held));
        let time: Duration = guests.iter().map(|guest| guest.time).sum();
        let sample = Sample {
            cell,
            ready_ms: milliseconds(ready),
            read_ms: milliseconds(time) / count(guests.len() as u64),
            guest_reads: guests.iter().map(|guest| guest.requests).sum(),
            disk_reads: reads.requests,
            disk_bytes: reads.bytes,
            prepare_ms: milliseconds(prepared),
        };
        Ok((drops, sample))
    }

    /// Boots all machines of a cell from the images in a directory, and waits until all are ready.
    fn boot(&self, dir: &Path, cell: Cell) -> anyhow::Result<Vec<Machine>> {
        // Around the page cache, nothing is ever warm.
        let cache = match cell.mode {
            Mode::Warm => Cache::Writeback,
            _ => cell.cache,
        };
        let start = |number: usize| {
            let name = match cell.images {
                Images::Shared => "01.raw".to_owned(),
                Images::Clones => format!("{:02}.raw", number + 1),
            };
            let scratch = self.home.path().join(format!("machines/{number}"));
            self.guest.start(&dir.join(name), cache, &scratch)
        };
        let mut machines = (0..cell.machines)
            .map(start)
            .collect::<anyhow::Result<Vec<_>>>()?;
        for machine in &mut machines {
            machine.wait_until_ready()?;
        }
        Ok(machines)
    }
}

/// Makes a file system with a base and as many clones of it as there are machines.
fn make_disk(disk: &Path, tree: &Path, image: &Path) -> anyhow::Result<()> {
    for dir in ["base", "clones"] {
        fs::create_dir(tree.join(dir)).context("making the stage")?;
    }
    let copy = |name: String| {
        let to = tree.join(name);
        fs::copy(disk, &to).with_context(|| format!("writing {}", to.display()))
    };
    copy("base/01.raw".to_owned())?;
    for number in 1..=MACHINES_MAX {
        copy(format!("clones/{number:02}.raw"))?;
    }
    let mut mkfs = Command::new("mkfs.ext4");
    let options = "lazy_itable_init=0,lazy_journal_init=0,nodiscard";
    mkfs.args(["-q", "-F", "-b", "4096", "-E", options, "-d"])
        .args([tree, image])
        .arg("640M");
    run_ok(mkfs, MKFS_DEADLINE).context("making the stage")?;
    fs::remove_dir_all(tree).context("removing what the stage was made of")
}
