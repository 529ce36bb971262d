//! Files in the order in which they lie on the disk.

use std::fs::File;
use std::path::PathBuf;

use rawio::extent::first_physical;

use crate::backing::Backing;
use crate::reader::open_regular;

/// Returns the place of a file on its disk; unknown ones come first.
pub(super) fn place_on_disk(file: &File) -> u64 {
    first_physical(file).ok().flatten().unwrap_or(0)
}

/// Makes the kernel read whole small files soon, in the order of the disk: the next reader reads them in
/// another order. Failures to open are ignored.
pub(crate) fn read_soon(paths: impl Iterator<Item = PathBuf>) {
    let placed = paths.filter_map(|path| Some((place_on_disk(&open_regular(&path).ok()?), path)));
    let mut placed: Vec<_> = placed.collect();
    placed.sort_unstable();
    for (_, path) in placed {
        if let Ok(file) = open_regular(&path) {
            let backing = Backing::file(file);
            let len = backing.len().unwrap_or(0);
            backing.advise_soon(0, len);
        }
    }
}
