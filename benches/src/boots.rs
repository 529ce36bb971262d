//! Boots, in every mode, under every condition.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use serde::Serialize;
use serde_json::Value;
use tempfile::TempDir;

use crate::caches::{self, HostFiles};
use crate::container::{Container, WORKLOAD};
use crate::contention::Contention;
use crate::programs::{Programs, Serving, YoloMount, record};
use crate::stage::{Access, Reads, Stage};
use crate::throttle::Throttle;
use crate::vm::{self, Cache};

/// What boots.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Subject {
    /// A Debian root with Python.
    Container,
    /// A Debian disk, with this use of the host's page cache.
    Vm(Cache),
}

/// What the disk is doing meanwhile.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Disk {
    /// Nothing else, as fast as it is.
    Idle,
    /// Nothing else, with so many read requests a second.
    Slow(u32),
    /// So many read requests a second, and a neighbour that keeps eight in flight.
    Contended(u32),
}

/// From where the boot is served.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// The disk, with empty caches.
    NativeCold,
    /// A daemon's memory: each read is a request to it, as in YOLO.
    YoloStyle,
    /// The page cache, filled before the boot.
    Yolofs,
    /// The page cache, filled by a boot before: as fast as this machine goes. A machine uses the
    /// page cache here (cache=writeback), whatever the others do: without, it is never warm.
    NativeWarm,
}

impl Mode {
    /// All modes, in the order of a table.
    pub const ALL: [Self; 4] = [
        Self::NativeCold,
        Self::YoloStyle,
        Self::Yolofs,
        Self::NativeWarm,
    ];
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Container => "container",
            Self::Vm(Cache::Writeback) => "VM, cache=writeback",
            Self::Vm(Cache::None) => "VM, cache=none",
        })
    }
}

impl fmt::Display for Disk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Idle => write!(f, "disk idle"),
            Self::Slow(iops) => write!(f, "disk at {iops} IOPS"),
            Self::Contended(iops) => write!(f, "disk at {iops} IOPS and contended"),
        }
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NativeCold => "native cold",
            Self::YoloStyle => "YOLO-style",
            Self::Yolofs => "yolofs",
            Self::NativeWarm => "native warm",
        })
    }
}

/// One timed boot.
#[derive(Clone, Debug, Serialize)]
pub struct Sample {
    /// What booted.
    pub subject: Subject,
    /// What the disk did meanwhile.
    pub disk: Disk,
    /// From where it was served.
    pub mode: Mode,
    /// Which round it was part of, from 1.
    pub round: u32,
    /// Milliseconds until it was ready.
    pub ready_ms: f64,
    /// Milliseconds of mounting and prewarming before, off the critical path.
    pub prepare_ms: f64,
    /// Read requests that reached the disk during the boot; where there is a contender, without
    /// its own, give or take the eight it has in flight.
    pub disk_reads: u64,
    /// Bytes they asked for.
    pub disk_bytes: u64,
    /// Read requests of the guest, for a machine.
    pub guest_reads: Option<u64>,
    /// Requests to the daemon during the boot by kind, where there is one.
    pub fuse_requests: Option<BTreeMap<String, u64>>,
}

/// How often a sample is tried that somebody else spoils.
const ATTEMPTS: u32 = 5;

/// A stage, the programs, and a place for what they write.
#[derive(Debug)]
pub struct Lab {
    stage: Stage,
    programs: Programs,
    host: HostFiles,
    home: TempDir,
}

impl Lab {
    /// Mounts the stage from the directory of images, and makes a home beside that directory.
    ///
    /// # Errors
    /// If an image, a program or a right is missing.
    pub fn open(images: &Path, bin: &Path) -> anyhow::Result<Self> {
        let beside = images
            .parent()
            .context("the directory of images has no parent")?;
        fs::create_dir_all(beside).with_context(|| format!("making {}", beside.display()))?;
        // On a disk, as QEMU's files must be for cache=none; a tmpfs would not do everywhere.
        let home = tempfile::Builder::new().prefix("rig.").tempdir_in(beside);
        let home = home.with_context(|| format!("making a directory in {}", beside.display()))?;
        for dir in ["stage", "mount", "container", "vm"] {
            fs::create_dir(home.path().join(dir)).context("making the rig's directories")?;
        }
        let stage = home.path().join("stage");
        let stage = Stage::mount(&images.join("stage.ext4"), &stage, Access::ReadOnly)?;
        let programs = Programs::new(bin, home.path())?;
        Ok(Self {
            stage,
            programs,
            host: HostFiles::find(bin),
            home,
        })
    }

    /// Returns the stage.
    #[must_use]
    pub fn stage(&self) -> &Stage {
        &self.stage
    }

    /// Returns the programs, with a store and a run directory of the rig's own.
    #[must_use]
    pub fn programs(&self) -> &Programs {
        &self.programs
    }

    /// Returns the directory for what a run leaves; it goes with the lab.
    #[must_use]
    pub fn home(&self) -> &Path {
        self.home.path()
    }

    /// Drops all caches.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn drop_caches(&self) -> anyhow::Result<()> {
        caches::drop_all(&self.host)
    }

    /// Returns what `subject` boots from.
    #[must_use]
    pub fn source(&self, subject: Subject) -> PathBuf {
        self.stage.path().join(match subject {
            Subject::Container => "root",
            Subject::Vm(_) => "disks/vm.raw",
        })
    }

    /// Records `runs` boots of `subject`, and returns what `bootimg record` says of them.
    ///
    /// # Errors
    /// If a boot or the recording fails.
    pub fn record(&self, subject: Subject, runs: u32) -> anyhow::Result<Value> {
        self.record_into(&self.programs, subject, runs)
    }

    /// As [`record`](Self::record), into the store of these programs.
    ///
    /// # Errors
    /// If a boot or the recording fails.
    pub fn record_into(
        &self,
        programs: &Programs,
        subject: Subject,
        runs: u32,
    ) -> anyhow::Result<Value> {
        let (name, runs) = (image_of(subject), runs.to_string());
        let mut flags = vec!["--name", name, "--runs", &runs];
        let source = self.source(subject);
        let bootimg = programs.bootimg();
        match subject {
            Subject::Container => record(bootimg, &flags, &source, &WORKLOAD),
            Subject::Vm(_) => {
                let until = format!("line:{}", vm::READY);
                flags.extend(["--until", &until]);
                record(bootimg, &flags, &source, &vm::recordable_command())
            }
        }
        .with_context(|| format!("recording the boot of a {subject}"))
    }

    /// Prepares, boots once, and tells how it went; again, if somebody else dropped caches
    /// meanwhile, because nothing is warm then.
    ///
    /// # Errors
    /// If anything on the way fails: a sample is whole or there is none.
    pub fn sample(
        &self,
        subject: Subject,
        disk: (Disk, Option<&Throttle>),
        mode: Mode,
        round: u32,
    ) -> anyhow::Result<Sample> {
        for _ in 0..ATTEMPTS {
            self.drop_caches()?;
            let drops = caches::drops()?;
            let sample = self.sample_once(subject, disk, mode, round)?;
            if caches::drops()? == drops {
                return Ok(sample);
            }
        }
        bail!("somebody keeps dropping this machine's caches: measure when it is quiet")
    }

    fn sample_once(
        &self,
        subject: Subject,
        disk: (Disk, Option<&Throttle>),
        mode: Mode,
        round: u32,
    ) -> anyhow::Result<Sample> {
        let started = Instant::now();
        let mount = self.mount(subject, mode)?;
        let prepared = started.elapsed();
        let boots = match (subject, mode) {
            (Subject::Vm(_), Mode::NativeWarm) => Subject::Vm(Cache::Writeback),
            (subject, _) => subject,
        };
        let native = self.source(subject);
        let from = match (&mount, subject) {
            (None, _) => native,
            (Some(mount), Subject::Container) => mount.path().to_owned(),
            (Some(mount), Subject::Vm(_)) => {
                mount.path().join(native.file_name().unwrap_or_default())
            }
        };
        if mode == Mode::NativeWarm {
            self.boot(boots, &from)?;
        }
        let conditions = Conditions::impose(&self.stage, disk, mount.as_ref())?;
        let measured = self.measure(boots, &from, mount.as_ref(), conditions)?;
        Ok(Sample {
            subject,
            disk: disk.0,
            mode,
            round,
            ready_ms: milliseconds(measured.ready),
            prepare_ms: milliseconds(prepared),
            disk_reads: measured.reads.requests,
            disk_bytes: measured.reads.bytes,
            guest_reads: measured.guest_reads,
            fuse_requests: measured.fuse_requests,
        })
    }

    fn mount(&self, subject: Subject, mode: Mode) -> anyhow::Result<Option<YoloMount<'_>>> {
        let serving = match mode {
            Mode::NativeCold | Mode::NativeWarm => return Ok(None),
            Mode::YoloStyle => Serving::Answered,
            Mode::Yolofs => Serving::Injected,
        };
        let (source, at) = (self.source(subject), self.home.path().join("mount"));
        self.programs
            .mount(&source, &at, image_of(subject), serving)
            .map(Some)
    }

    fn measure(
        &self,
        subject: Subject,
        from: &Path,
        mount: Option<&YoloMount<'_>>,
        mut conditions: Conditions<'_>,
    ) -> anyhow::Result<Measured> {
        let served = mount.map(YoloMount::served).transpose()?;
        let (all, foreign) = (self.stage.reads()?, conditions.foreign_reads()?);
        let (ready, guest_reads) = self.boot(subject, from)?;
        let (all, foreign) = (
            self.stage.reads()?.since(all),
            conditions.foreign_reads()?.since(foreign),
        );
        let fuse_requests = match (mount, served) {
            (Some(mount), Some(before)) => Some(mount.served()?.requests_since(&before)),
            _ => None,
        };
        Ok(Measured {
            ready,
            guest_reads,
            reads: all.since(foreign),
            fuse_requests,
        })
    }

    /// Boots from `from`; returns the time until it was ready and the guest's own reads.
    fn boot(&self, subject: Subject, from: &Path) -> anyhow::Result<(Duration, Option<u64>)> {
        match subject {
            Subject::Container => {
                let container = Container::prepare(from, &self.home.path().join("container"))?;
                Ok((container.boot(&WORKLOAD)?, None))
            }
            Subject::Vm(cache) => {
                let booted = vm::boot(from, cache, &self.home.path().join("vm"))?;
                Ok((booted.elapsed, Some(booted.guest_reads)))
            }
        }
    }
}

/// The name of a subject's boot image: one for both uses of the cache, whose boots are the same.
#[must_use]
pub fn image_of(subject: Subject) -> &'static str {
    match subject {
        Subject::Container => "container",
        Subject::Vm(_) => "vm",
    }
}

/// Returns a time as a report has it.
#[must_use]
pub fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1000.0
}

struct Measured {
    ready: Duration,
    guest_reads: Option<u64>,
    reads: Reads,
    fuse_requests: Option<BTreeMap<String, u64>>,
}

/// What makes the disk slow and busy, from now on until it is dropped.
pub(crate) struct Conditions<'a> {
    // The contender ends before the rig leaves the group.
    contention: Option<Contention>,
    _stay: Option<crate::throttle::Stay<'a>>,
}

impl<'a> Conditions<'a> {
    pub(crate) fn impose(
        stage: &Stage,
        (disk, throttle): (Disk, Option<&'a Throttle>),
        mount: Option<&YoloMount<'_>>,
    ) -> anyhow::Result<Self> {
        let stay = throttle.map(Throttle::stay).transpose()?;
        if let (Some(throttle), Some(mount)) = (throttle, mount) {
            throttle.admit(mount.status()?.pid)?;
        }
        let contention = match disk {
            Disk::Contended(_) => Some(Contention::start(stage)?),
            Disk::Idle | Disk::Slow(_) => None,
        };
        Ok(Self {
            contention,
            _stay: stay,
        })
    }

    fn foreign_reads(&mut self) -> anyhow::Result<Reads> {
        self.contention
            .as_mut()
            .map_or(Ok(Reads::default()), Contention::reads)
    }
}
