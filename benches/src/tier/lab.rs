//! The stage with the images, and how one start is taken.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use nix::mount::MsFlags;
use tempfile::TempDir;

use super::hot::{self, Mixed, TIER};
use super::image::{self, ImageFacts};
use super::migration::{self, Foreground};
use super::place::{Footprint, Place, Start};
use crate::boots::milliseconds;
use crate::caches::{self, HostFiles};
use crate::container::Container;
use crate::namespace::Mounted;
use crate::process::{Guard, disk_bytes_read, run_ok};
use crate::programs::{Programs, Serving, YoloMount, record};
use crate::rounds::Shuffle;
use crate::stage::{Access, Reads, Stage};
use crate::throttle::Throttle;

/// How often a sample is tried that somebody else spoils.
const ATTEMPTS: u32 = 5;
/// The slowest start reads some ten thousand blocks, at 150 a second.
const DEADLINE: Duration = Duration::from_secs(300);
/// What a start runs: the script that `scripts/images/tiers.sh` put there.
const SCRIPT: &str = "/.start";

/// A stage with images, and NVM beside it.
#[derive(Debug)]
pub struct TierLab {
    // Dropped in this order.
    throttle: Throttle,
    stage: Stage,
    nvm: Mounted,
    programs: Programs,
    host: HostFiles,
    images: BTreeMap<String, ImageFacts>,
    home: TempDir,
}

/// What a start took, and what it asked for.
struct Taken {
    ready: Duration,
    prepared: Duration,
    reads: Reads,
    requests: BTreeMap<String, u64>,
}

/// What an image has on NVM while it is measured.
#[derive(Debug)]
struct OnNvm {
    all: PathBuf,
    hot_files: PathBuf,
    /// Where what is mixed lies, and its store.
    mixed_dirs: [PathBuf; 2],
}

impl Drop for OnNvm {
    fn drop(&mut self) {
        let [objects, store] = &self.mixed_dirs;
        for dir in [&self.all, &self.hot_files, objects, store] {
            match fs::remove_dir_all(dir) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                    eprintln!("warning: cannot remove {}: {error}", dir.display());
                }
                _ => {}
            }
        }
    }
}

impl TierLab {
    /// Mounts the stage `image`, which `scripts/images/tiers.sh` made, and a tmpfs for NVM.
    ///
    /// # Errors
    /// If an image, a program or a right is missing.
    pub fn open(image: &Path, bin: &Path, iops: u32) -> anyhow::Result<Self> {
        let images = image.parent().and_then(Path::parent);
        let beside = images.context("the directory of images has no parent")?;
        let home = tempfile::Builder::new().prefix("rig.").tempdir_in(beside);
        let home = home.with_context(|| format!("making a directory in {}", beside.display()))?;
        for dir in ["stage", "nvm", "mount", "container"] {
            fs::create_dir(home.path().join(dir)).context("making the rig's directories")?;
        }
        let stage = Stage::mount(image, &home.path().join("stage"), Access::ReadOnly)?;
        let nvm = home.path().join("nvm");
        let nvm = Mounted::new("tmpfs", &nvm, "tmpfs", MsFlags::empty(), "mode=0755")?;
        let throttle = Throttle::new(&stage.device_number()?, iops)?;
        let objects = nvm.path().join("objects");
        let tiers = home.path().join("tiers.toml");
        fs::create_dir(&objects).context("making the tier's directory")?;
        fs::write(&tiers, hot::tiers_file(&objects))
            .with_context(|| format!("writing {}", tiers.display()))?;
        let programs = Programs::new(bin, home.path())?.with_tiers(&tiers);
        let images = image::all(stage.path())?;
        Ok(Self {
            throttle,
            stage,
            nvm,
            programs,
            host: HostFiles::find(bin),
            images,
            home,
        })
    }

    /// Returns the images, by their names.
    #[must_use]
    pub fn images(&self) -> &BTreeMap<String, ImageFacts> {
        &self.images
    }

    /// Records an image's start, copies what goes to NVM there, and starts it from each place in
    /// each round.
    ///
    /// # Errors
    /// If anything on the way fails.
    pub fn measure(
        &self,
        image: &str,
        rounds: u32,
        heard: &mut dyn FnMut(&Start),
    ) -> anyhow::Result<(Footprint, Vec<Start>)> {
        let facts = self.images.get(image).context("there is no such image")?;
        let root = self.root(image);
        record(
            self.programs.bootimg(),
            &["--name", image, "--runs", "2"],
            &root,
            &[SCRIPT],
        )
        .with_context(|| format!("recording the start of {image}"))?;
        let recorded = hot::recorded(&self.programs, image)?;
        // The image before this one has made room for it.
        hot::evict_all(&self.programs)?;
        let there = OnNvm {
            all: self.nvm.path().join("all"),
            hot_files: self.nvm.path().join("hot-files"),
            mixed_dirs: [
                self.nvm.path().join("mixed"),
                self.home.path().join("mixed"),
            ],
        };
        let [objects, store] = &there.mixed_dirs;
        let at = self.home.path().join("mount");
        let mixed = Mixed::place(&self.programs, image, &root, (store, objects, &at))?;
        let footprint = Footprint {
            image: image.to_owned(),
            category: facts.category,
            all: hot::copy_all(&root, &there.all)?,
            hot_files: recorded.name_bytes + hot::promote(&self.programs, &recorded, &root, TIER)?,
            hot_files_overlay: hot::copy(&recorded, &root, &there.hot_files)?,
            mixed: mixed.bytes,
            mixed_whole_files: mixed.whole_files,
            hot_blocks: hot::prewarm(&self.programs, image, TIER)?,
        };
        let mut starts = Vec::new();
        let mut shuffle = Shuffle::from_clock();
        for round in 1..=rounds {
            for place in shuffle.order(&Place::ALL) {
                let took = self.sample(image, place, (&there, &mixed))?;
                let start = Start {
                    image: image.to_owned(),
                    category: facts.category,
                    place,
                    round,
                    ready_ms: milliseconds(took.ready),
                    prepare_ms: milliseconds(took.prepared),
                    disk_reads: took.reads.requests,
                    disk_bytes: took.reads.bytes,
                    requests: took.requests,
                };
                heard(&start);
                starts.push(start);
            }
        }
        Ok((footprint, starts))
    }

    /// Reads the largest file of an image through a mount, with and without a migration of the
    /// other large files of `moved` to NVM, in turns.
    ///
    /// # Errors
    /// If anything on the way fails, or the migration ends too early.
    pub fn migration(
        &self,
        image: &str,
        moved: &[String],
        rounds: u32,
        heard: &mut dyn FnMut(&Foreground),
    ) -> anyhow::Result<Vec<Foreground>> {
        let root = self.root(image);
        let flags = ["--name", image];
        record(self.programs.bootimg(), &flags, &root, &["/bin/true"])
            .with_context(|| format!("recording {image}"))?;
        let read = migration::largest(&root, 1)?.pop();
        let read = read.with_context(|| format!("{image} has no files"))?;
        let mut files = Vec::new();
        for image in moved {
            files.extend(migration::largest(&self.root(image), migration::MOVED)?);
        }
        files.retain(|file| *file != read);
        let mut samples = Vec::new();
        let mut shuffle = Shuffle::from_clock();
        for round in 1..=rounds {
            for migrating in shuffle.order(&[false, true]) {
                hot::evict_all(&self.programs)?;
                caches::drop_all(&self.host)?;
                let files: &[PathBuf] = if migrating { &files } else { &[] };
                let sample = self.foreground(image, &read, files, round)?;
                heard(&sample);
                samples.push(sample);
            }
        }
        Ok(samples)
    }

    /// Reads `file` of an image through a mount, while `moved` are moved, if there are any.
    fn foreground(
        &self,
        image: &str,
        file: &Path,
        moved: &[PathBuf],
        round: u32,
    ) -> anyhow::Result<Foreground> {
        let (root, at) = (self.root(image), self.home.path().join("mount"));
        let mount = self.programs.mount(&root, &at, image, Serving::Injected)?;
        let read = at.join(file.strip_prefix(&root).context("a file of another root")?);
        // Finding the files is not what is timed.
        for file in moved {
            fs::metadata(file).with_context(|| format!("looking at {}", file.display()))?;
        }
        let _stay = self.throttle.stay()?;
        self.throttle.admit(mount.status()?.pid)?;
        if moved.is_empty() {
            return migration::read_at_random(&read, round, false);
        }
        let mut promote = self.programs.yolofs();
        promote
            .args(["tier", "promote", "--tier", TIER])
            .args(moved);
        let promote = promote.stdout(Stdio::null()).stderr(Stdio::null());
        let mut mover = Guard::spawn(promote)?;
        let sample = migration::read_at_random(&read, round, true)?;
        ensure!(
            mover.ended()?.is_none(),
            "the migration ended before its window"
        );
        let moved_bytes = disk_bytes_read(mover.pid())?;
        ensure!(moved_bytes > 0, "nothing was moved");
        Ok(Foreground {
            moved_bytes,
            ..sample
        })
    }

    fn root(&self, image: &str) -> PathBuf {
        self.stage.path().join("roots").join(image)
    }

    /// Starts an image once; again, if somebody else dropped caches meanwhile.
    fn sample(&self, image: &str, place: Place, there: (&OnNvm, &Mixed)) -> anyhow::Result<Taken> {
        for _ in 0..ATTEMPTS {
            caches::drop_all(&self.host)?;
            run_ok(started("/", "true"), DEADLINE).context("starting nothing")?;
            let drops = caches::drops()?;
            let start = self.sample_once(image, place, there)?;
            if caches::drops()? == drops {
                return Ok(start);
            }
        }
        bail!("somebody keeps dropping this machine's caches: measure when it is quiet")
    }

    fn sample_once(
        &self,
        image: &str,
        place: Place,
        (there, mixed): (&OnNvm, &Mixed),
    ) -> anyhow::Result<Taken> {
        let began = Instant::now();
        let root = self.root(image);
        let mount = self.mount(image, &root, place, &mixed.programs)?;
        let lower = match (&mount, place) {
            (Some(mount), _) => mount.path().to_owned(),
            (None, Place::Nvm) => there.all.clone(),
            // Two layers: the overlay's separator is the colon.
            (None, Place::HotFilesOverlay) => {
                PathBuf::from(format!("{}:{}", there.hot_files.display(), root.display()))
            }
            (None, _) => root,
        };
        let container = Container::prepare(&lower, &self.home.path().join("container"))?;
        // As an engine does, and a recorder: the image has no devices.
        let (dev, flags) = (
            container.root().join("dev"),
            MsFlags::MS_BIND | MsFlags::MS_REC,
        );
        let _dev = Mounted::new("/dev", &dev, "", flags, "")?;
        let prepared = began.elapsed();
        let _stay = self.throttle.stay()?;
        if let Some(mount) = &mount {
            self.throttle.admit(mount.status()?.pid)?;
        }
        let served = || mount.as_ref().map(YoloMount::served).transpose();
        let (asked, before) = (served()?, self.stage.reads()?);
        let ran = run_ok(started(container.root(), SCRIPT), DEADLINE)
            .with_context(|| format!("starting {image} from {place}"))?;
        let reads = self.stage.reads()?.since(before);
        let requests = served()?.zip(asked);
        let requests = requests.map(|(after, before)| after.requests_since(&before));
        Ok(Taken {
            ready: ran.elapsed,
            prepared,
            reads,
            requests: requests.unwrap_or_default(),
        })
    }

    fn mount<'a>(
        &'a self,
        image: &str,
        root: &Path,
        place: Place,
        mixed: &'a Programs,
    ) -> anyhow::Result<Option<YoloMount<'a>>> {
        let (programs, serving) = match place {
            Place::Disk | Place::Nvm | Place::HotFilesOverlay => return Ok(None),
            Place::HotFiles => (&self.programs, Serving::Passed),
            Place::Mixed => (mixed, Serving::Passed),
            Place::HotBlocks => (&self.programs, Serving::Injected),
        };
        let at = self.home.path().join("mount");
        let mounted = programs.mount(root, &at, image, serving);
        mounted.map(Some)
    }
}

/// Returns what starts a program in a root: in a PID namespace of its own, so that all that it
/// started ends with it.
fn started(root: impl AsRef<Path>, program: &str) -> Command {
    let root = root.as_ref();
    let mut command = Command::new("unshare");
    command.args(["--pid", "--fork", "--kill-child"]);
    let mut proc = std::ffi::OsString::from("--mount-proc=");
    proc.push(root.join("proc"));
    command.arg(proc).arg("chroot").arg(root).arg(program);
    command
}
