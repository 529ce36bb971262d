//! Finds what is on the disk when a cache is opened.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::digest::Algorithm;
use super::key::{APART, BlobKey, Realm};
use super::{Stored, seconds};

/// Makes the directories of these realms, and returns them and all others that are there.
pub(super) fn realms(dir: &Path, wanted: &[Realm]) -> io::Result<Vec<Realm>> {
    let mut realms = vec![Realm::Open];
    realms.extend(wanted);
    let apart = dir.join(APART);
    fs::create_dir_all(&apart)?;
    for entry in fs::read_dir(&apart)? {
        let entry = entry?;
        let name = entry.file_name();
        match name.to_str().and_then(|name| name.parse().ok()) {
            Some(id) if entry.file_type()?.is_dir() => realms.push(Realm::Of(id)),
            _ => log::warn!("unknown file {}: ignored", entry.path().display()),
        }
    }
    realms.sort_unstable();
    realms.dedup();
    for realm in &realms {
        fs::create_dir_all(realm.dir(dir).join("parts"))?;
        for algorithm in Algorithm::ALL {
            fs::create_dir_all(blobs_dir(dir, *realm, algorithm))?;
        }
    }
    Ok(realms)
}

/// Returns where blobs of a realm are.
pub(super) fn blobs_dir(dir: &Path, realm: Realm, algorithm: Algorithm) -> PathBuf {
    realm.dir(dir).join("blobs").join(algorithm.word())
}

/// Adds the whole blobs of a realm.
pub(super) fn blobs(
    dir: &Path,
    realm: Realm,
    whole: &mut Vec<(BlobKey, Stored)>,
) -> io::Result<()> {
    for algorithm in Algorithm::ALL {
        for entry in fs::read_dir(blobs_dir(dir, realm, algorithm))? {
            let entry = entry?;
            let hex = entry.file_name();
            let name = format!("{}:{}", algorithm.word(), hex.to_string_lossy());
            let metadata = fs::metadata(entry.path())
                .ok()
                .filter(fs::Metadata::is_file);
            let (Ok(digest), Some(metadata)) = (name.parse(), metadata) else {
                log::warn!("{} is not a blob: ignored", entry.path().display());
                continue;
            };
            let used = metadata.modified().map_or(0, seconds);
            let bytes = metadata.len();
            let noted = used;
            whole.push((BlobKey { realm, digest }, Stored::new(bytes, used, noted)));
        }
    }
    Ok(())
}
