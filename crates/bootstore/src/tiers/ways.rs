//! Decides which files of a boot image are copied to a tier whole, and which by the blocks in the boot
//! image's own copy.
//!
//! A whole copy is useful for mounts whose opens are requests that the kernel passes through. So each
//! standalone mount records with its boot image whether it is one.

use std::collections::{BTreeMap, HashMap};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use blocks::ContentId;
use bootimg::{Image, ImageId, Store};
use tiering::heat::Heat;
use tiering::hif::{Because, KeptAs, Passing, RecordedFile, recorded_files, way_of};

use super::Tiers;
use super::candidate::Candidate;
use super::whole::WholeFile;

/// The ways of the files that starts of one source read.
#[derive(Clone, Debug, Default)]
pub struct Ways {
    /// The files that are copied whole.
    pub whole: Vec<WholeFile>,
    /// How many go by blocks, by why.
    pub blocks: BTreeMap<Because, u64>,
}

impl Ways {
    /// Decides for the files of a boot image whose source was last served from the directory `passed`
    /// with passthrough; `None` if without. Files that changed since the recording are
    /// left out.
    pub fn of(image: &Image, passed: Option<&Path>) -> Self {
        let plan = image.data_plan();
        let mut ways = Self::default();
        for file in recorded_files(&plan, image.tree()).files {
            match way(image, plan.runs, &file, passed) {
                Some((KeptAs::Whole, Some(whole))) => ways.whole.push(whole),
                Some((KeptAs::Blocks(because), _)) => *ways.blocks.entry(because).or_default() += 1,
                Some((KeptAs::Whole, None)) | None => {}
            }
        }
        ways
    }
}

/// Decides for one file; `None` if it is not what was recorded any more.
fn way(
    image: &Image,
    runs: u16,
    file: &RecordedFile,
    passed: Option<&Path>,
) -> Option<(KeptAs, Option<WholeFile>)> {
    let Some(dir) = passed else {
        return Some((way_of(file, runs, Passing::Unasked), None));
    };
    let way = way_of(file, runs, Passing::Asked);
    if way != KeptAs::Whole {
        return Some((way, None));
    }
    // Only what would go whole is looked at.
    let tree = image.tree();
    let path = dir.join(OsStr::from_bytes(&tree.path(file.file)?));
    let whole = WholeFile::at(&path).ok()?;
    if whole.version() != tree.key(file.file)?.version {
        return None;
    }
    let passing = match whole.is_program().ok()? {
        true => Passing::Program,
        false => Passing::Asked,
    };
    Some((way_of(file, runs, passing), Some(whole)))
}

/// A file that is to go whole.
#[derive(Clone, Debug)]
pub(super) struct Hot {
    pub(super) file: WholeFile,
    /// The name of the boot image whose starts read it.
    pub(super) of: String,
    /// That of the boot image: each start needs both.
    pub(super) heat: Heat,
}

/// Returns the files that are copied whole, by their keys, of all boot images whose sources use
/// passthrough; and records which boot images need no copy, because all their files are copied whole.
pub(super) fn hot_files(
    tiers: &Tiers,
    store: &Store,
    candidates: &mut [Candidate],
) -> HashMap<ContentId, Hot> {
    let mut found: HashMap<ContentId, Hot> = HashMap::new();
    let now = super::now();
    for candidate in candidates {
        let Some(id) = candidate.image else { continue };
        let Some(passed) = passed_from(tiers, &id) else {
            continue;
        };
        let Ok(image) = store.peek_image(&id) else {
            continue;
        };
        let ways = Ways::of(&image, Some(&passed));
        candidate.needless = !ways.whole.is_empty() && ways.blocks.is_empty();
        for file in ways.whole {
            let hot = Hot {
                of: candidate.label.clone(),
                heat: candidate.heat,
                file,
            };
            let known = found.entry(hot.file.key()).or_insert_with(|| hot.clone());
            if hot.heat.at(now) > known.heat.at(now) {
                *known = hot;
            }
        }
    }
    found
}

/// Returns from where files of a boot image's source were passed through when it was mounted last.
pub fn passed_from(tiers: &Tiers, id: &ImageId) -> Option<PathBuf> {
    let known = tiers.known().get(id.0)?;
    known.passed.map(PathBuf::from)
}

/// Records from which directory a mount with this boot image passes files through; `None` if it does not. Without
/// this record the next plan assumes the mount before.
pub fn note_passing(tiers: &Tiers, id: &ImageId, dir: Option<&Path>) {
    if !tiers.are_used() {
        return;
    }
    let dir = dir.and_then(Path::to_str).map(str::to_owned);
    let known = tiers.known();
    if known.get(id.0).unwrap_or_default().passed == dir {
        return;
    }
    if let Err(error) = known.change(id.0, |known| known.passed = dir) {
        let id = id.short();
        log::debug!("how the source of boot image {id} is served is not noted: {error:#}");
    }
}
