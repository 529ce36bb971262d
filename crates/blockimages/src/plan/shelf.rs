//! The directory of plans of a machine: one for each set of layers that was recorded.

use std::fs;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use blocks::Digest;
use rawio::regular::{self, Links};

use super::{PLAN_BYTES_MAX, PlanError, PlanHead, StartPlan};
use crate::ImageError;
use crate::convert::write_file;
use crate::error::file;
use crate::start_data::StartDataRef;
use crate::start_data::kept::{self, RECORD_BYTES};

/// Plans that are kept; the oldest go.
const PLANS_MAX: usize = 1000;
/// Files that are looked at. Workers write to the directory, and may be broken into.
const FILES_MAX: usize = 4 * PLANS_MAX;
const EXTENSION: &str = "bplan";
/// Of what is known of a plan's data.
const DATA_EXTENSION: &str = "bdata";

/// A directory of plans.
#[derive(Clone, Debug)]
pub struct PlanShelf {
    dir: PathBuf,
}

/// A plan of the directory.
#[derive(Clone, Debug)]
pub struct KeptPlan {
    /// Its file.
    pub path: PathBuf,
    /// When it was recorded, in seconds since 1970.
    pub recorded_at: u64,
    /// The layers of which something is read.
    pub layers: Vec<Digest>,
    /// How many bytes are read, uncompressed.
    pub bytes: u64,
}

impl PlanShelf {
    /// Wraps a directory, which is created when a plan is stored in it.
    #[must_use]
    pub fn at(dir: impl Into<PathBuf>) -> Self {
        Self { dir: dir.into() }
    }

    /// Keeps a plan; it replaces the one of the same layers. Returns its file.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn keep(&self, plan: &StartPlan) -> Result<PathBuf, ImageError> {
        fs::create_dir_all(&self.dir).map_err(file("making", &self.dir))?;
        let path = self.path_of(plan);
        write_file(&path, &plan.encode())?;
        self.make_room()?;
        Ok(path)
    }

    /// Keeps a plan that was recorded elsewhere, unless there is one of the same layers that is as new.
    ///
    /// # Errors
    /// As [`keep`](Self::keep).
    pub fn keep_newer(&self, plan: &StartPlan) -> Result<PathBuf, ImageError> {
        let path = self.path_of(plan);
        match read_plan(&path) {
            Ok(known) if known.recorded_at >= plan.recorded_at => Ok(path),
            _ => self.keep(plan),
        }
    }

    /// Notes that a repository has the data of a plan.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn keep_data(
        &self,
        plan: &StartPlan,
        data: &StartDataRef,
        blob_url: &str,
    ) -> Result<(), ImageError> {
        let path = self.path_of(plan).with_extension(DATA_EXTENSION);
        write_file(&path, &kept::encode(data, blob_url))
    }

    /// Returns the data of a start of an image with these layers that its repository has: of plans with data, that of the
    /// one that has most of the image's layers.
    ///
    /// # Errors
    /// If the directory cannot be read.
    pub fn find_data(
        &self,
        layers: &[Option<Digest>],
        blob_url: &str,
    ) -> Result<Option<StartDataRef>, ImageError> {
        let own: Vec<_> = layers.iter().copied().flatten().collect();
        let ranked = self.ranked(&own)?;
        let mut known = ranked.iter().filter_map(|(path, _)| {
            let record = beginning(
                &path.with_extension(DATA_EXTENSION),
                RECORD_BYTES as u64 + 1,
            );
            kept::decode(&record.ok()?, blob_url)
        });
        Ok(known.next())
    }

    fn path_of(&self, plan: &StartPlan) -> PathBuf {
        let mut layers = plan.layers().to_vec();
        layers.sort_unstable();
        let bytes: Vec<u8> = layers.iter().flat_map(|layer| layer.0).collect();
        let name = format!("{}.{EXTENSION}", oci::digest_of(&bytes).hex());
        self.dir.join(name)
    }

    /// Returns the plan of an image with these layers, the lowest first: for each layer the reads of
    /// the plan that has most of the others; of plans with as many, the newest.
    ///
    /// # Errors
    /// If the directory cannot be read. An unusable plan is skipped.
    pub fn find(&self, layers: &[Option<Digest>]) -> Result<Option<StartPlan>, ImageError> {
        let own: Vec<_> = layers.iter().copied().flatten().collect();
        let found = self.ranked(&own)?;
        let mut plan = StartPlan::default();
        // One at a time is in memory: each may have a million reads.
        for (path, head) in &found {
            let is_new = |layer: &Digest| own.contains(layer) && !plan.layers().contains(layer);
            if !head.layers.iter().any(is_new) {
                continue;
            }
            match read_plan(path) {
                Ok(kept) => {
                    plan.recorded_at = plan.recorded_at.max(kept.recorded_at);
                    plan.add(&kept.restricted_to(&own));
                }
                Err(error) => log::warn!("{error}"),
            }
        }
        Ok((!plan.is_empty()).then_some(plan))
    }

    /// Returns the plans that have one of these layers, those with most of them first, and of these the newest.
    fn ranked(&self, own: &[Digest]) -> Result<Vec<(PathBuf, PlanHead)>, ImageError> {
        let shared = |head: &PlanHead| {
            let known = head.layers.iter();
            known.filter(|layer| own.contains(layer)).count()
        };
        let mut found = Vec::new();
        for path in self.files()? {
            match read_head(&path) {
                Ok(head) if shared(&head) > 0 => found.push((path, head)),
                Ok(_) => {}
                Err(error) => log::warn!("{error}"),
            }
        }
        found.sort_by_key(|(path, head)| {
            let rank = (shared(head), head.recorded_at);
            std::cmp::Reverse((rank, path.clone()))
        });
        Ok(found)
    }

    /// Returns all plans.
    ///
    /// # Errors
    /// If the directory cannot be read. A plan that cannot be used is passed over.
    pub fn list(&self) -> Result<Vec<KeptPlan>, ImageError> {
        let mut plans = Vec::new();
        for path in self.files()? {
            match read_plan(&path) {
                Ok(plan) => plans.push(KeptPlan {
                    path,
                    recorded_at: plan.recorded_at,
                    layers: plan.layers().to_vec(),
                    bytes: plan.bytes(),
                }),
                Err(error) => log::warn!("{error}"),
            }
        }
        Ok(plans)
    }

    fn files(&self) -> Result<Vec<PathBuf>, ImageError> {
        let entries = match fs::read_dir(&self.dir) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries.map_err(file("reading the plans in", &self.dir))?,
        };
        let mut files = Vec::new();
        for entry in entries {
            if files.len() >= FILES_MAX {
                let dir = self.dir.display();
                log::warn!("there are more than {FILES_MAX} plans in {dir}: some are not used");
                break;
            }
            let path = entry
                .map_err(file("reading the plans in", &self.dir))?
                .path();
            if path
                .extension()
                .is_some_and(|extension| extension == EXTENSION)
            {
                files.push(path);
            }
        }
        Ok(files)
    }

    fn make_room(&self) -> Result<(), ImageError> {
        let files = self.files()?;
        let excess = files.len().saturating_sub(PLANS_MAX);
        let written = |path: &PathBuf| path.metadata().and_then(|about| about.modified()).ok();
        let mut files: Vec<_> = files
            .into_iter()
            .map(|path| (written(&path), path))
            .collect();
        files.sort();
        for (_, path) in files.iter().take(excess) {
            // Few have one.
            let _none = fs::remove_file(path.with_extension(DATA_EXTENSION));
            // Something else may be there: others go the next time.
            if let Err(error) = fs::remove_file(path) {
                log::warn!("cannot remove {}: {error}", path.display());
            }
        }
        Ok(())
    }
}

/// Reads a plan.
///
/// # Errors
/// If it cannot be read, or is not a plan.
pub fn read_plan(path: &Path) -> Result<StartPlan, ImageError> {
    let bytes = beginning(path, PLAN_BYTES_MAX + 1)?;
    StartPlan::decode(&bytes).map_err(failed(path))
}

/// Reads what a plan is about.
fn read_head(path: &Path) -> Result<PlanHead, ImageError> {
    let bytes = beginning(path, PlanHead::BYTES_MAX as u64)?;
    PlanHead::decode(&bytes).map_err(failed(path))
}

/// Reads the first bytes of a file, as many as there are.
fn beginning(path: &Path, most: u64) -> Result<Vec<u8>, ImageError> {
    let opened = regular::open(path, Links::Followed).map_err(file("opening", path))?;
    let mut bytes = Vec::new();
    let read = opened.take(most).read_to_end(&mut bytes);
    read.map_err(file("reading", path))?;
    Ok(bytes)
}

fn failed(path: &Path) -> impl FnOnce(PlanError) -> ImageError {
    let path = path.to_owned();
    move |source| ImageError::Plan { path, source }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lsmt::{Trace, TraceDialect, TraceRead};

    fn plan(layers: &[u8], recorded_at: u64) -> StartPlan {
        let reads = (0..)
            .zip(layers)
            .map(|(layer, number)| TraceRead {
                layer,
                offset: 4096 * u64::from(*number) * recorded_at,
                len: 4096,
            })
            .collect();
        let trace = Trace {
            dialect: TraceDialect::Overlaybd,
            reads,
        };
        StartPlan::of_trace(&trace, &digests(layers), recorded_at)
    }

    fn digests(layers: &[u8]) -> Vec<Option<Digest>> {
        layers
            .iter()
            .map(|number| Some(Digest([*number; 32])))
            .collect()
    }

    /// Workers of images write to the directory of plans: one that was broken into may have put anything there.
    #[test]
    fn a_pipe_in_the_place_of_a_plan_is_not_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let shelf = PlanShelf::at(dir.path());
        shelf.keep(&plan(&[1], 10)).unwrap();
        let path = shelf.keep(&plan(&[2], 20)).unwrap();
        fs::remove_file(&path).unwrap();
        nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).unwrap();
        let (tell, told) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let found = shelf.find(&digests(&[1]));
            tell.send(found.map(|found| found.is_some())).unwrap();
        });
        let found = told.recv_timeout(std::time::Duration::from_secs(30));
        assert!(found.expect("it waits for the pipe").unwrap());
    }

    /// The same, at the name that a plan is written at first. Commands of root write plans, too.
    #[test]
    fn a_pipe_or_a_link_in_the_place_of_a_new_plan_is_removed() {
        let dir = tempfile::tempdir().unwrap();
        let shelf = PlanShelf::at(dir.path().join("plans"));
        let path = shelf.keep(&plan(&[1], 10)).unwrap();
        let (aside, other) = (path.with_extension("bplan.part"), dir.path().join("other"));
        fs::write(&other, "what root has").unwrap();
        let put: [&dyn Fn(); 2] = [
            &|| nix::unistd::mkfifo(&aside, nix::sys::stat::Mode::S_IRWXU).unwrap(),
            &|| std::os::unix::fs::symlink(&other, &aside).unwrap(),
        ];
        for (put, recorded_at) in put.iter().zip(20..) {
            put();
            let (tell, told) = std::sync::mpsc::channel();
            let (keeping, new) = (shelf.clone(), plan(&[1], recorded_at));
            std::thread::spawn(move || tell.send(keeping.keep(&new).map(drop)).unwrap());
            let kept = told.recv_timeout(std::time::Duration::from_secs(30));
            kept.expect("it waits for the pipe").unwrap();
            assert_eq!(shelf.list().unwrap()[0].recorded_at, recorded_at);
            assert_eq!(fs::read(&other).unwrap(), b"what root has");
        }
    }

    /// Who broke into a worker of images writes plans of all that it may: valid ones, each as long as a plan may be.
    #[test]
    fn many_long_plans_are_not_in_memory_together() {
        const CHILD: &str = "BLOCKIMAGES_TEST_OF_PLANS";
        let name = "plan::shelf::tests::many_long_plans_are_not_in_memory_together";
        if let Some(dir) = std::env::var_os(CHILD) {
            let shelf = PlanShelf::at(dir);
            let found = shelf.find(&digests(&[1, 2])).unwrap().unwrap();
            let about = (found.layers().len(), found.recorded_at);
            println!(
                "listed {} found {about:?} peak {}",
                shelf.list().unwrap().len(),
                peak()
            );
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let shelf = PlanShelf::at(dir.path());
        let read = TraceRead {
            layer: 0,
            offset: 0,
            len: 4096,
        };
        let trace = Trace {
            dialect: TraceDialect::Overlaybd,
            reads: vec![read; 1 << 20],
        };
        let long = StartPlan::of_trace(&trace, &digests(&[1]), 1).encode();
        for number in 0..16 {
            fs::write(dir.path().join(format!("{number}.bplan")), &long).unwrap();
        }
        shelf.keep(&plan(&[2], 7)).unwrap();
        let mut child = std::process::Command::new(std::env::current_exe().unwrap());
        let child = child
            .args(["--exact", name, "--nocapture"])
            .env(CHILD, dir.path());
        let output = child.output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        let said = said.lines().find(|line| line.contains("listed")).unwrap();
        let (said, peak) = said.rsplit_once(' ').unwrap();
        assert!(said.ends_with("listed 17 found (2, 7) peak"), "{said}");
        let peak: u64 = peak.parse().unwrap();
        assert!(peak < 160 << 20, "{peak} bytes for 16 plans of 16 MiB each");
    }

    /// Returns the most memory that this process had.
    fn peak() -> u64 {
        let status = fs::read_to_string("/proc/self/status").unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let kib = line.and_then(|line| line.trim().strip_suffix(" kB"));
        kib.unwrap().parse::<u64>().unwrap() << 10
    }

    #[test]
    fn an_image_gets_what_is_known_of_its_layers() {
        let dir = tempfile::tempdir().unwrap();
        let shelf = PlanShelf::at(dir.path().join("plans"));
        assert_eq!(shelf.find(&digests(&[1])).unwrap(), None);
        shelf.keep(&plan(&[1, 2], 10)).unwrap();
        shelf.keep(&plan(&[1, 3], 20)).unwrap();
        let path = shelf.keep(&plan(&[9], 30)).unwrap();
        let blocks = |layers: &[u8]| {
            let found = shelf.find(&digests(layers)).unwrap().unwrap();
            let mut reads = found.trace_of(&digests(layers)).reads;
            reads.sort_by_key(|read| read.layer);
            let blocks = reads.iter().map(|read| read.offset / 4096);
            blocks.collect::<Vec<_>>()
        };
        // Both are known together; an image of another program takes the newest of the shared layer.
        assert_eq!(blocks(&[1, 2]), [10, 20]);
        assert_eq!(blocks(&[1, 7]), [20]);
        assert_eq!(blocks(&[1, 2, 9]), [10, 20, 270]);
        // What is known of other layers is not this image's.
        let found = shelf.find(&digests(&[1, 7])).unwrap().unwrap();
        assert_eq!(found.layers(), [Digest([1; 32])]);
        // What comes from elsewhere replaces nothing that is newer.
        shelf.keep_newer(&plan(&[1, 2], 9)).unwrap();
        assert_eq!(blocks(&[1, 2]), [10, 20]);
        shelf.keep_newer(&plan(&[1, 2], 12)).unwrap();
        assert_eq!(blocks(&[1, 2]), [12, 24]);
        shelf.keep(&plan(&[1, 2], 10)).unwrap();
        // The data of a start is known with its plan, for the repository that has it.
        let data = StartDataRef {
            digest: Digest([5; 32]),
            size: 7,
        };
        let kept = plan(&[1, 2], 10);
        shelf.keep_data(&kept, &data, "here").unwrap();
        let found = |layers: &[u8], url: &str| shelf.find_data(&digests(layers), url).unwrap();
        assert_eq!(found(&[1, 2], "here"), Some(data));
        assert_eq!(found(&[2], "here"), Some(data));
        assert_eq!(found(&[1, 2], "there"), None);
        assert_eq!(found(&[3], "here"), None);
        // A newer one of the same layers replaces the older, and damage is passed over.
        shelf.keep(&plan(&[1, 2], 11)).unwrap();
        assert_eq!(blocks(&[1, 2]), [11, 22]);
        fs::write(path, "no plan").unwrap();
        assert_eq!(shelf.find(&digests(&[9])).unwrap(), None);
        assert_eq!(shelf.list().unwrap().len(), 2);
    }
}
