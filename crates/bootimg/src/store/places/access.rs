//! Access to a store: for its owner, and for a group if one was set. A store has blocks of files
//! that only root may read.
//!
//! Earlier releases made stores that everybody could read. These are closed by the next process with write
//! access that opens them.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use rawio::private::{self, Readers};

use super::is_kept;
use crate::StoreError;

/// Closes a store that everybody may enter, and gives read access to a group if one is requested.
///
/// # Errors
/// If the store cannot be given to a requested group. Failures to close it are ignored: on a read-only
/// disk it can still be read.
pub(in crate::store) fn settle(dir: &Path, group: Option<u32>) -> Result<(), StoreError> {
    if let Some(gid) = group {
        let shared = share(dir, Readers::Group(gid));
        return shared.map_err(|error| StoreError::io(dir, "letting a group read", error));
    }
    if let Err(error) = close(dir) {
        let dir = dir.display();
        log::warn!("everybody can read the store {dir}, and its mode cannot be changed: {error}");
    }
    Ok(())
}

/// What is the store's alone of a directory.
struct Own {
    /// The directory itself, unless it contains other files.
    whole: Option<PathBuf>,
    parts: Vec<PathBuf>,
}

impl Own {
    fn of(dir: &Path) -> io::Result<Self> {
        // That a link leads to the store is its owner's choice.
        let dir = dir.canonicalize()?;
        let (mut parts, mut has_foreign) = (Vec::new(), false);
        for entry in fs::read_dir(&dir)? {
            let entry = entry?;
            match is_kept(&entry.file_name()) {
                Some(true) => parts.push(entry.path()),
                Some(false) => {}
                None => has_foreign = true,
            }
        }
        let whole = (!has_foreign).then_some(dir);
        Ok(Self { whole, parts })
    }
}

fn close(dir: &Path) -> io::Result<()> {
    if !private::is_open(dir)? {
        return Ok(());
    }
    let Own { whole, parts } = Own::of(dir)?;
    if let Some(dir) = &whole {
        private::close_dir(dir)?;
        let dir = dir.display();
        log::warn!(
            "{dir} could be read by everybody; now only by its owner (`store_group` gives it to a group)"
        );
    }
    for part in parts {
        if whole.is_some() || private::is_open(&part)? {
            private::give(&part, Readers::Owner)?;
        }
    }
    Ok(())
}

fn share(dir: &Path, readers: Readers) -> io::Result<()> {
    if Readers::in_dir(dir)? == readers {
        return Ok(());
    }
    let Own { whole, parts } = Own::of(dir)?;
    for part in parts {
        private::give(&part, readers)?;
    }
    // Last of all: a store that is the group's is so as a whole.
    whole.map_or(Ok(()), |dir| private::set_readers(&dir, readers))
}
