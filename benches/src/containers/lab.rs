//! The stage with an engine on it, and how one sample is taken.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use tempfile::TempDir;

use super::attached::{self, Attached, PARTS};
use super::containerd::{Containerd, Setup};
use super::ctr::{Ctr, Keeper};
use super::engine::Docker;
use super::hidden::hide_blkio;
use super::launch::{Running, Times, launch};
use super::phases::{self, Meter, Parts, Phase};
use super::program::Program;
use super::sample::{Sample, Way};
use crate::boots::{Disk, milliseconds};
use crate::caches::{self, HostFiles};
use crate::contention::Contention;
use crate::namespace::Mounted;
use crate::process::run_ok;
use crate::programs::Programs;
use crate::stage::{Access, Reads, Stage};
use crate::throttle::Throttle;

/// What "cold" and "warm" mean for containers, in words, for the report.
pub const PROCEDURE: &str = "sync; echo 3 > /proc/sys/vm/drop_caches; read fio, bootimg, yolofs and \
their libraries; read all of the engine's directory but the layers, and run a container of an empty \
image, so that all files of the engine's own (docker, dockerd, containerd, its shim, runc, their \
databases) are warm and only the layers are cold; then, \
for native warm, start the image once and remove it, for yolofs, attach it (which prewarms); sync; \
impose the limit; start the neighbour; docker run";

/// The stage with all programs, in the directory of images.
pub const STAGE: &str = "engines.ext4";

/// How often a sample is tried that somebody else spoils.
const ATTEMPTS: u32 = 5;
/// Copying a gigabyte.
const COPY_DEADLINE: Duration = Duration::from_secs(300);

/// An engine whose data is on a stage, and which is in a group whose reads can be limited.
#[derive(Debug)]
pub struct ContainerLab {
    // Dropped in this order: the engine leaves the stage first.
    docker: Docker,
    throttle: Throttle,
    stage: Stage,
    _hidden: Mounted,
    programs: Programs,
    host: HostFiles,
    depth: u32,
    home: TempDir,
}

/// What a disk is limited to, and who else reads it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Neighbourhood {
    /// Read requests a second of all together.
    pub iops: u32,
    /// Requests that the neighbour keeps in flight.
    pub depth: u32,
}

/// What is started, and how.
#[derive(Clone, Copy, Debug)]
pub struct Start<'a> {
    /// What the report calls it.
    pub subject: &'a str,
    /// One container of each of these, all at once.
    pub programs: &'a [Program],
    /// What the disk does meanwhile.
    pub disk: Disk,
    /// From where the images are served.
    pub way: Way,
    /// Which round it is part of, from 1.
    pub round: u32,
}

impl ContainerLab {
    /// Copies a stage that `scripts/images/engines.sh` made, mounts it and starts an engine on it.
    ///
    /// # Errors
    /// If an image, a program or a right is missing.
    pub fn open(image: &Path, bin: &Path, around: Neighbourhood) -> anyhow::Result<Self> {
        let images = image.parent().and_then(Path::parent);
        let beside = images.context("the directory of images has no parent")?;
        let home = tempfile::Builder::new().prefix("rig.").tempdir_in(beside);
        let home = home.with_context(|| format!("making a directory in {}", beside.display()))?;
        for dir in ["stage", "blkio", "ids"] {
            fs::create_dir(home.path().join(dir)).context("making the rig's directories")?;
        }
        let copy = home.path().join("engines.ext4");
        ensure!(
            image.exists(),
            "{} is missing: run scripts/images/engines.sh",
            image.display()
        );
        let mut command = Command::new("cp");
        command
            .args(["--sparse=always", "--reflink=auto"])
            .args([image, &copy]);
        run_ok(command, COPY_DEADLINE).context("copying the stage")?;
        let hidden = hide_blkio(&home.path().join("blkio"))?;
        let stage = Stage::mount(&copy, &home.path().join("stage"), Access::ReadWrite)?;
        let throttle = Throttle::new(&stage.device_number()?, around.iops)?;
        throttle.lift()?;
        // The engine is born in the group, and so is all that it starts.
        throttle.admit(std::process::id())?;
        let docker = Docker::start(&stage.path().join("docker"), &home.path().join("engine"))?;
        let programs = Programs::new(bin, home.path())?;
        Ok(Self {
            docker,
            throttle,
            stage,
            _hidden: hidden,
            programs,
            host: HostFiles::find(bin),
            depth: around.depth,
            home,
        })
    }

    /// Returns the engine.
    #[must_use]
    pub fn docker(&self) -> &Docker {
        &self.docker
    }

    /// Returns the programs, with a store and a run directory of the rig's own.
    #[must_use]
    pub fn programs(&self) -> &Programs {
        &self.programs
    }

    /// Records the boot of an image, with the disk to itself.
    ///
    /// # Errors
    /// If that fails.
    pub fn record(&self, program: Program) -> anyhow::Result<()> {
        attached::record(&self.programs, &self.docker, program).map(drop)
    }

    /// Starts a program from cold or warm layers, and returns what each part of it took.
    ///
    /// # Errors
    /// If that fails.
    pub fn phases(&self, program: Program, disk: Disk, way: Way) -> anyhow::Result<Vec<Phase>> {
        self.make_cold()?;
        let attached = (way == Way::Yolofs)
            .then(|| Attached::attach(&self.programs, &self.docker, &[program]));
        let _until_the_end = attached.transpose()?;
        if way == Way::NativeWarm {
            drop(self.launch_all(&[program])?);
        }
        let mut conditions = Conditions::impose(self, disk)?;
        let mut meter = Meter::new(&self.stage, conditions.contention.as_mut());
        phases::start(&self.docker, program, self.home.path(), &mut meter)
    }

    /// Returns the files that the engine waits for the disk to write while it starts a program.
    ///
    /// # Errors
    /// If strace is missing, or the start fails.
    pub fn synced(&self, program: Program) -> anyhow::Result<BTreeMap<String, u64>> {
        let mut started = Vec::new();
        let (pids, data) = (self.docker.pids()?, self.docker.data_root());
        phases::synced(&pids, data, self.home.path(), || {
            started = self.launch_all(&[program])?;
            Ok(())
        })
    }

    /// Starts a containerd, with its data on the stage, too.
    ///
    /// # Errors
    /// If it does not start.
    pub fn containerd(&self) -> anyhow::Result<Containerd> {
        let (data, home) = (
            self.stage.path().join("snapshots"),
            self.home.path().join("containerd"),
        );
        Containerd::start(
            &self.programs,
            &Setup {
                data: &data,
                home: &home,
                root: &data.join("yolofs"),
                flags: &[],
                pods: false,
            },
        )
    }

    /// Makes a containerd that has an image of Docker's, with its data on the stage, too.
    ///
    /// # Errors
    /// If it does not start, or the image cannot be had.
    pub fn ctr(&self, keeper: Keeper, program: Program) -> anyhow::Result<Ctr> {
        let archive = self.home.path().join(format!("{}.tar", program.image()));
        if !archive.exists() {
            let to = archive.to_str().context("the rig's home is not UTF-8")?;
            self.docker
                .call(&["save", "--output", to, program.image()])?;
        }
        let name = format!("ctr-{keeper:?}");
        let places = (self.stage.path().join(&name), self.home.path().join(&name));
        Ctr::make(keeper, program, &self.programs, archive.as_os_str(), places)
    }

    /// Starts a program with `ctr`, and returns what each part of it took.
    ///
    /// # Errors
    /// If that fails.
    pub fn phases_of_ctr(&self, ctr: &Ctr, disk: Disk, way: Way) -> anyhow::Result<Vec<Phase>> {
        self.make_cold()?;
        let running = ctr.start()?;
        if way == Way::NativeWarm {
            running.run(&mut Meter::new(&self.stage, None))?;
        }
        let mut conditions = Conditions::impose(self, disk)?;
        let mut meter = Meter::new(&self.stage, conditions.contention.as_mut());
        running.run(&mut meter)
    }

    /// Returns the files that are waited for while `ctr` starts a program.
    ///
    /// # Errors
    /// If strace is missing, or the start fails.
    pub fn synced_by_ctr(&self, ctr: &Ctr) -> anyhow::Result<BTreeMap<String, u64>> {
        let running = ctr.start()?;
        running.synced(|| {
            let phases = running.run(&mut Meter::new(&self.stage, None));
            phases.map(drop)
        })
    }

    /// Records a start from cold layers, from the call of `bootimg record` until an answer of the
    /// program's, and returns what each part of it took; the last one is what comes after the
    /// answer. The recording is forgotten.
    ///
    /// # Errors
    /// If that fails.
    pub fn phases_recorded(&self, program: Program, disk: Disk) -> anyhow::Result<Vec<Phase>> {
        let store = tempfile::tempdir_in(self.home.path()).context("making a store")?;
        let programs = self.programs.with_store(store.path());
        self.make_cold()?;
        let mut conditions = Conditions::impose(self, disk)?;
        let mut meter = Meter::new(&self.stage, conditions.contention.as_mut());
        let mut parts = Parts::begin(&mut meter)?;
        let mut reached = |part| parts.end(part);
        attached::record_until_answer(&programs, &self.docker, program, &mut reached)?;
        parts.end("after that: the layers are scanned, the boot images kept")?;
        Ok(parts.ended)
    }

    /// Records a start, without what comes after the answer.
    fn sample_recorded(&self, start: &Start<'_>) -> anyhow::Result<Sample> {
        let [program] = start.programs else {
            bail!("one image at a time is recorded");
        };
        let mut phases = self.phases_recorded(*program, start.disk)?;
        for Phase {
            name, ms, reads, ..
        } in &phases
        {
            eprintln!("  {name}: {ms:.0} ms, {reads} reads");
        }
        phases.truncate(PARTS.len());
        Ok(Sample {
            subject: start.subject.to_owned(),
            engine: "docker",
            disk: start.disk,
            mode: Way::Recording,
            round: start.round,
            ready_ms: phases.iter().map(|phase| phase.ms).sum(),
            program_ms: None,
            prepare_ms: 0.0,
            disk_reads: phases.iter().map(|phase| phase.reads).sum(),
            disk_bytes: phases.iter().map(|phase| phase.read_bytes).sum(),
            disk_writes: phases.iter().map(|phase| phase.writes).sum(),
            fuse_requests: None,
        })
    }

    /// Prepares, starts one container of each of the programs at once, and tells how it went;
    /// again, if somebody else dropped caches meanwhile, because nothing is warm then.
    ///
    /// # Errors
    /// If anything on the way fails: a sample is whole or there is none.
    pub fn sample(&self, start: &Start<'_>) -> anyhow::Result<Sample> {
        if start.way == Way::Recording {
            return self.sample_recorded(start); // which nothing makes warm
        }
        for _ in 0..ATTEMPTS {
            self.make_cold()?;
            let drops = caches::drops()?;
            let sample = self.sample_once(start)?;
            if caches::drops()? == drops {
                return Ok(sample);
            }
        }
        bail!("somebody keeps dropping this machine's caches: measure when it is quiet")
    }

    /// Empties all caches, and fills them with the engine's own files.
    ///
    /// # Errors
    /// If the kernel or the engine refuses.
    pub fn make_cold(&self) -> anyhow::Result<()> {
        caches::drop_all(&self.host)?;
        self.docker.warm_up().context("warming the engine up")
    }

    fn sample_once(&self, start: &Start<'_>) -> anyhow::Result<Sample> {
        let began = Instant::now();
        let attached = (start.way == Way::Yolofs)
            .then(|| Attached::attach(&self.programs, &self.docker, start.programs));
        let attached = attached.transpose()?;
        let prepared = began.elapsed();
        if start.way == Way::NativeWarm {
            drop(self.launch_all(start.programs)?);
        }
        let conditions = Conditions::impose(self, start.disk)?;
        let mut sample = self.measure(start, attached.as_ref(), conditions)?;
        sample.prepare_ms = milliseconds(prepared);
        Ok(sample)
    }

    fn measure(
        &self,
        start: &Start<'_>,
        attached: Option<&Attached<'_>>,
        mut conditions: Conditions<'_>,
    ) -> anyhow::Result<Sample> {
        let served = attached.map(Attached::served).transpose()?;
        let writes = self.stage.writes()?;
        let (all, foreign) = (self.stage.reads()?, conditions.foreign_reads()?);
        let started = self.launch_all(start.programs)?;
        let (all, foreign) = (
            self.stage.reads()?.since(all),
            conditions.foreign_reads()?.since(foreign),
        );
        let disk_writes = self.stage.writes()?.saturating_sub(writes);
        let fuse_requests = match (attached, served) {
            (Some(attached), Some(before)) => Some(attached.served()?.requests_since(&before)),
            _ => None,
        };
        drop(conditions); // before the containers are removed, which costs reads, too
        let reads = all.since(foreign);
        let last = started.iter().map(|(_, times)| times.ready).max();
        Ok(Sample {
            subject: start.subject.to_owned(),
            engine: "docker",
            disk: start.disk,
            mode: start.way,
            round: start.round,
            ready_ms: milliseconds(last.context("nothing was started")?),
            program_ms: alone(&started).map(|times| milliseconds(times.program())),
            prepare_ms: 0.0,
            disk_reads: reads.requests,
            disk_bytes: reads.bytes,
            disk_writes,
            fuse_requests,
        })
    }

    /// Starts a container of each of the programs at once, and returns when all are ready.
    fn launch_all(&self, programs: &[Program]) -> anyhow::Result<Vec<(Running<'_>, Times)>> {
        let ids = self.home.path().join("ids");
        thread::scope(|scope| {
            let starts: Vec<_> = programs
                .iter()
                .enumerate()
                .map(|(index, program)| {
                    let (name, ids) = (format!("{}-{index}", program.image()), &ids);
                    scope.spawn(move || launch(&self.docker, *program, &name, ids))
                })
                .collect();
            let ended = starts.into_iter().map(|start| start.join());
            ended
                .map(|end| {
                    end.unwrap_or_else(|_| bail!("a thread that starts a container panicked"))
                })
                .collect()
        })
    }
}

/// Returns the times of a container that was started alone.
fn alone(started: &[(Running<'_>, Times)]) -> Option<Times> {
    match started {
        [(_, times)] => Some(*times),
        _ => None,
    }
}

/// What makes the disk slow and busy, from now on until it is dropped.
struct Conditions<'a> {
    lab: &'a ContainerLab,
    contention: Option<Contention>,
}

impl<'a> Conditions<'a> {
    fn impose(lab: &'a ContainerLab, disk: Disk) -> anyhow::Result<Self> {
        // What was written until now must not be written while the clock runs.
        nix::unistd::sync();
        let mut conditions = Self {
            lab,
            contention: None,
        };
        if disk != Disk::Idle {
            lab.throttle.impose()?;
        }
        if matches!(disk, Disk::Contended(_)) {
            conditions.contention = Some(Contention::with_depth(&lab.stage, lab.depth)?);
        }
        Ok(conditions)
    }

    fn foreign_reads(&mut self) -> anyhow::Result<Reads> {
        let contention = self.contention.as_mut();
        contention.map_or(Ok(Reads::default()), Contention::reads)
    }
}

impl Drop for Conditions<'_> {
    fn drop(&mut self) {
        self.contention = None;
        if let Err(error) = self.lab.throttle.lift() {
            eprintln!("warning: the disk stays slow: {error:#}");
        }
    }
}
