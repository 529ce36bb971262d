//! All extended attributes of a file.

use std::io;
use std::os::fd::AsFd;

use rawio::xattr;

/// Returns names and values, sorted by name, of `name` in `dir`; of `dir` itself if it is empty.
pub(crate) fn read(dir: impl AsFd, name: &[u8]) -> io::Result<Vec<(Vec<u8>, Vec<u8>)>> {
    let mut all = Vec::new();
    let names = xattr::list_at(dir.as_fd(), name)?;
    for attribute in names.split(|byte| *byte == 0).filter(|a| !a.is_empty()) {
        // One that was removed since the list was made is not there, and that is all.
        if let Some(value) = xattr::get_at(dir.as_fd(), name, attribute)? {
            all.push((attribute.to_vec(), value));
        }
    }
    all.sort_unstable();
    all.dedup_by(|a, b| a.0 == b.0);
    Ok(all)
}
