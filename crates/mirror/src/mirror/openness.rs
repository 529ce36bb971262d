//! Remembers which registries were open to all clients.
//!
//! Content of registries that are open to all is cached together. When a registry stops being open, its
//! content cannot be distinguished from that of others, so all of it is removed. The same holds for the cache of
//! an earlier release, which kept all content together.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::Path;

use rawio::regular::{self, Links};

use super::Access;
use crate::blobs::{BlobCache, Realm};

/// The file with the names of the registries that were open to all, as a list of JSON.
const FILE: &str = "open.json";
/// Bytes of it that are read.
const FILE_MAX: u64 = 1 << 20;
/// The file of the catalog.
pub(super) const CATALOG: &str = "catalog.redb";

/// Removes the shared blobs and the catalog if they may have content of a registry that is no
/// longer open to all; then records which registries are open.
pub(super) fn settle<'a>(
    dir: &Path,
    rules: impl Iterator<Item = (&'a str, &'a Access)>,
    blobs: &BlobCache,
) -> io::Result<()> {
    let (open, closed): (Vec<_>, Vec<_>) = rules.partition(|(_, rule)| **rule == Access::All);
    let names = |rules: Vec<(&str, &Access)>| -> BTreeSet<String> {
        rules.into_iter().map(|(name, _)| name.to_owned()).collect()
    };
    let (mut open, closed) = (names(open), names(closed));
    let were = noted(dir);
    let is_known = were.is_some();
    let is_apart = match &were {
        Some(were) => were.is_disjoint(&closed),
        None => closed.is_empty(),
    };
    match were {
        Some(were) if is_apart && open.is_subset(&were) => return Ok(()),
        Some(were) if is_apart => open.extend(were),
        None if is_apart => {}
        _ => forget(dir, blobs)?,
    }
    match note(dir, &open) {
        // As it is, it opens nothing: the next process removes what may be of others, too.
        Err(error) if !is_known => {
            log::warn!("cannot write {}: {error}", dir.join(FILE).display());
            Ok(())
        }
        noted => noted,
    }
}

fn forget(dir: &Path, blobs: &BlobCache) -> io::Result<()> {
    let gone = blobs.clear(Realm::Open);
    match fs::remove_file(dir.join(CATALOG)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        Err(_) if gone.blobs == 0 => {}
        _ => log::warn!(
            "removed all manifests, and {} blobs of {} bytes: they may have come from a \
             registry that is not open to all now",
            gone.blobs,
            gone.bytes
        ),
    }
    Ok(())
}

/// Returns the record of an earlier process; `None` if there was none, or it cannot be read.
fn noted(dir: &Path) -> Option<BTreeSet<String>> {
    let path = dir.join(FILE);
    let names = match regular::read(&path, Links::Followed, FILE_MAX) {
        Ok(names) => serde_json::from_slice(&names).map_err(io::Error::from),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return None,
        Err(error) => Err(error),
    };
    let damaged = |error: &_| log::warn!("{} is damaged: {error}", path.display());
    names.inspect_err(damaged).ok()
}

fn note(dir: &Path, open: &BTreeSet<String>) -> io::Result<()> {
    let aside = dir.join(FILE).with_extension("new");
    let mut file = regular::create_anew(&aside)?;
    file.write_all(&serde_json::to_vec(open)?)?;
    file.sync_all()?;
    fs::rename(aside, dir.join(FILE))?;
    File::open(dir)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::blobs::{Algorithm, BlobConfig, BlobDigest, BlobKey};
    use chunks::PolicyKind;

    #[test]
    fn what_a_registry_sent_before_it_was_closed_is_not_open() {
        let dir = tempfile::tempdir().unwrap();
        let config = BlobConfig {
            budget: 1 << 20,
            hold_back: 0,
            policy: PolicyKind::Lru,
        };
        let digest = BlobDigest::of(Algorithm::Sha256, b"x");
        let blob = dir.path().join("blobs/sha256").join(digest.hex());
        fs::create_dir_all(blob.parent().unwrap()).unwrap();
        let closed = Access::Clients(Vec::new());
        let stays = |rules: &[(&str, &Access)]| {
            fs::write(&blob, b"x").unwrap();
            fs::write(dir.path().join(CATALOG), b"known").unwrap();
            let blobs = BlobCache::open(dir.path(), config, &[], Box::new(|_| (0, 0))).unwrap();
            settle(dir.path(), rules.iter().copied(), &blobs).unwrap();
            assert_eq!(blob.exists(), dir.path().join(CATALOG).exists());
            assert_eq!(blob.exists(), blobs.is_here(&BlobKey::open(digest.clone())));
            blob.exists()
        };
        // As an earlier release left it: nobody knows whose it was.
        assert!(!stays(&[("a", &Access::All), ("b", &closed)]));
        assert!(stays(&[("a", &Access::All), ("b", &closed)]), "once");
        assert!(stays(&[("a", &Access::All), ("b", &Access::Upstream)]));
        assert!(stays(&[("c", &Access::All)]));
        assert!(!stays(&[("a", &closed), ("c", &Access::All)]));
        assert!(stays(&[("a", &closed)]));
        assert!(
            !stays(&[("c", &Access::Upstream)]),
            "what it sent is here still"
        );
        assert!(stays(&[("a", &Access::All), ("b", &Access::All)]));
        let no_record: [&dyn Fn(&Path); 3] = [
            &|path| fs::write(path, b"[1").unwrap(),
            &|path| nix::unistd::mkfifo(path, nix::sys::stat::Mode::S_IRWXU).unwrap(),
            &|path| fs::create_dir_all(path.join("a")).unwrap(),
        ];
        for put in no_record {
            let file = dir.path().join(FILE);
            fs::remove_file(&file).unwrap();
            put(&file);
            assert!(!stays(&[("b", &closed)]), "it cannot be read");
        }
        // It could not be replaced, so the next one believes nothing, either.
        assert!(!stays(&[("b", &closed)]));
        fs::remove_dir_all(dir.path().join(FILE)).unwrap();
        assert!(stays(&[("b", &Access::All)]), "all are open");
        fs::remove_file(dir.path().join(FILE)).unwrap();
        assert!(stays(&[("b", &Access::All)]), "all are open");
    }
}
