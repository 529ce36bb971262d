//! Names and attributes.

use std::fs;

use super::Scene;
use crate::Rng;
use crate::tally::Outcome;

/// Lists a directory, or looks at a file.
pub(super) fn walk_one(scene: &Scene, rng: &mut Rng) -> Outcome {
    if rng.once_in(2) {
        let files = scene.truth.files();
        let (path, truth) = &files[rng.index(files.len())];
        let attributes = fs::metadata(scene.root.join(path))?;
        let right = attributes.len() == truth.len() as u64 && attributes.is_file();
        return Ok((!right).then(|| format!("{}: {} bytes long", path.display(), attributes.len())));
    }
    let dirs: Vec<_> = scene.truth.dirs().collect();
    let (dir, expected) = dirs[rng.index(dirs.len())];
    let entries = fs::read_dir(scene.root.join(dir))?;
    let mut names = Vec::new();
    for entry in entries {
        names.push(dir.join(entry?.file_name()));
    }
    names.sort();
    Ok((names != expected).then(|| format!("{}: the names are {names:?}", dir.display())))
}
