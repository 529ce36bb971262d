//! The directory of plans of a machine: one for each set of layers that was recorded.

use std::fs;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use blocks::Digest;
use rawio::regular::{self, Links};

use super::{PLAN_BYTES_MAX, PlanError, StartPlan};
use crate::ImageError;
use crate::convert::write_file;
use crate::error::file;

/// Plans that are kept; the oldest go.
const PLANS_MAX: usize = 1000;
const EXTENSION: &str = "bplan";

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
    /// Its content.
    pub plan: StartPlan,
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
        let shared = |plan: &StartPlan| {
            let known = plan.layers().iter();
            known
                .filter(|layer| layers.contains(&Some(**layer)))
                .count()
        };
        let mut found = self.list()?;
        found.retain(|kept| shared(&kept.plan) > 0);
        found.sort_by_key(|kept| {
            let rank = (shared(&kept.plan), kept.plan.recorded_at);
            std::cmp::Reverse((rank, kept.path.clone()))
        });
        let mut plan = StartPlan::default();
        for kept in &found {
            plan.recorded_at = plan.recorded_at.max(kept.plan.recorded_at);
            plan.add(&kept.plan);
        }
        let own: Vec<_> = layers.iter().copied().flatten().collect();
        let plan = plan.restricted_to(&own);
        Ok((!plan.is_empty()).then_some(plan))
    }

    /// Returns all plans.
    ///
    /// # Errors
    /// If the directory cannot be read. A plan that cannot be used is passed over.
    pub fn list(&self) -> Result<Vec<KeptPlan>, ImageError> {
        let mut plans = Vec::new();
        for path in self.files()? {
            match read_plan(&path) {
                Ok(plan) => plans.push(KeptPlan { path, plan }),
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
            fs::remove_file(path).map_err(file("removing", path))?;
        }
        Ok(())
    }
}

/// Reads a plan.
///
/// # Errors
/// If it cannot be read, or is not a plan.
pub fn read_plan(path: &Path) -> Result<StartPlan, ImageError> {
    let opened = regular::open(path, Links::Followed).map_err(file("opening", path))?;
    let mut bytes = Vec::new();
    let read = opened.take(PLAN_BYTES_MAX + 1).read_to_end(&mut bytes);
    read.map_err(file("reading", path))?;
    let failed = |source: PlanError| ImageError::Plan {
        path: path.into(),
        source,
    };
    StartPlan::decode(&bytes).map_err(failed)
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
        // A newer one of the same layers replaces the older, and damage is passed over.
        shelf.keep(&plan(&[1, 2], 11)).unwrap();
        assert_eq!(blocks(&[1, 2]), [11, 22]);
        fs::write(path, "no plan").unwrap();
        assert_eq!(shelf.find(&digests(&[9])).unwrap(), None);
        assert_eq!(shelf.list().unwrap().len(), 2);
    }
}
