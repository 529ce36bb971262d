//! What the mirror knows about images: tags, manifests, and which repository has what.
//!
//! It is kept in one database that survives a crash. Losing it loses no blob and no correctness:
//! what is not known is asked for again. So failures are logged and look like "not known".

use std::collections::HashMap;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use hyper::body::Bytes;
use parking_lot::Mutex;
use redb::{Database, ReadableDatabase as _, ReadableTable as _, TableDefinition};
use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::task::block_in_place;

use super::document::children;
use crate::blobs::BlobDigest;

/// `REGISTRY/REPOSITORY:TAG` → digest, media type, bytes, milliseconds since 1970 of the last check.
const TAGS: TableDefinition<'_, &str, (&str, &str, u64, u64)> = TableDefinition::new("tags");
/// Digest → media type and the bytes as they came.
const MANIFESTS: TableDefinition<'_, &str, (&str, &[u8])> = TableDefinition::new("manifests");
/// `REGISTRY/REPOSITORY@DIGEST`: the repository has this manifest or blob.
const LINKS: TableDefinition<'_, &str, ()> = TableDefinition::new("links");

/// Manifests that are kept; above it those go that were not asked for longest. With some 2 KiB each
/// they take less than one layer.
const MANIFESTS_MAX: usize = 10_000;

/// A repository of a registry, by the names that clients use.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Scope {
    pub(super) registry: String,
    pub(super) repository: String,
}

impl std::fmt::Display for Scope {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.registry, self.repository)
    }
}

/// What a tag pointed to when it was looked at last.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Tagged {
    pub(super) digest: BlobDigest,
    pub(super) media_type: String,
    pub(super) size: u64,
    /// Milliseconds since 1970.
    pub(super) checked: u64,
}

/// A manifest or an index, as it came.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Manifest {
    pub(super) media_type: String,
    pub(super) bytes: Bytes,
}

pub(super) struct Catalog {
    database: Database,
    needs: Mutex<Needs>,
}

impl std::fmt::Debug for Catalog {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Catalog").finish_non_exhaustive()
    }
}

/// Which manifests need a blob, and when each was last asked for.
#[derive(Debug, Default)]
struct Needs {
    by: HashMap<BlobDigest, Vec<BlobDigest>>,
    used: HashMap<BlobDigest, u64>,
}

impl Catalog {
    /// Opens the catalog in a file, and makes it if it is not there.
    pub(super) fn open(path: &Path) -> Result<Self, redb::Error> {
        let database = Database::create(path)?;
        let mut needs = Needs::default();
        let write = database.begin_write()?;
        {
            write.open_table(TAGS)?;
            write.open_table(LINKS)?;
            let manifests = write.open_table(MANIFESTS)?;
            for entry in manifests.iter()? {
                let (name, value) = entry?;
                if let Ok(digest) = name.value().parse() {
                    needs.add(&digest, value.value().1, 0);
                }
            }
        }
        write.commit()?;
        let needs = Mutex::new(needs);
        Ok(Self { database, needs })
    }

    /// Returns how many manifests need a blob, and when an image with it was last asked for, in
    /// seconds since 1970.
    pub(super) fn worth(&self, digest: &BlobDigest) -> (usize, u64) {
        let needs = self.needs.lock();
        let by = needs.by.get(digest).map(Vec::as_slice).unwrap_or_default();
        let used = by.iter().filter_map(|manifest| needs.used.get(manifest));
        (by.len(), used.max().copied().unwrap_or(0))
    }

    pub(super) fn manifest_count(&self) -> usize {
        self.needs.lock().used.len()
    }

    pub(super) fn tag(&self, scope: &Scope, tag: &str) -> Option<Tagged> {
        let read = self.read("a tag", |read| {
            let table = read.open_table(TAGS)?;
            let entry = table.get(format!("{scope}:{tag}").as_str())?;
            Ok(entry.map(|entry| {
                let (digest, media_type, size, checked) = entry.value();
                (digest.to_owned(), media_type.to_owned(), size, checked)
            }))
        });
        let (digest, media_type, size, checked) = read??;
        Some(Tagged {
            digest: digest.parse().ok()?,
            media_type,
            size,
            checked,
        })
    }

    pub(super) fn put_tag(&self, scope: &Scope, tag: &str, tagged: &Tagged) {
        self.write("a tag", |write| {
            let digest = tagged.digest.to_string();
            write.open_table(TAGS)?.insert(
                format!("{scope}:{tag}").as_str(),
                (
                    digest.as_str(),
                    tagged.media_type.as_str(),
                    tagged.size,
                    tagged.checked,
                ),
            )?;
            Ok(())
        });
    }

    pub(super) fn forget_tag(&self, scope: &Scope, tag: &str) {
        self.write("that a tag is gone", |write| {
            write
                .open_table(TAGS)?
                .remove(format!("{scope}:{tag}").as_str())?;
            Ok(())
        });
    }

    /// Returns a manifest if it is known that the repository has it.
    pub(super) fn manifest(&self, scope: &Scope, digest: &BlobDigest) -> Option<Manifest> {
        let read = self.read("a manifest", |read| {
            let linked = read.open_table(LINKS)?.get(link(scope, digest).as_str())?;
            if linked.is_none() {
                return Ok(None);
            }
            let table = read.open_table(MANIFESTS)?;
            let entry = table.get(digest.to_string().as_str())?;
            Ok(entry.map(|entry| {
                let (media_type, bytes) = entry.value();
                Manifest {
                    media_type: media_type.to_owned(),
                    bytes: Bytes::copy_from_slice(bytes),
                }
            }))
        });
        let manifest = read??;
        let mut needs = self.needs.lock();
        if let Some(used) = needs.used.get_mut(digest) {
            *used = now_millis() / 1000;
        }
        Some(manifest)
    }

    /// Keeps a manifest, and that the repository has it and what it names.
    pub(super) fn put_manifest(&self, scope: &Scope, digest: &BlobDigest, manifest: &Manifest) {
        let oldest = {
            let mut needs = self.needs.lock();
            needs.add(digest, &manifest.bytes, now_millis() / 1000);
            needs.drop_oldest(MANIFESTS_MAX)
        };
        self.write("a manifest", |write| {
            let mut manifests = write.open_table(MANIFESTS)?;
            let value = (manifest.media_type.as_str(), &manifest.bytes[..]);
            manifests.insert(digest.to_string().as_str(), value)?;
            for old in &oldest {
                manifests.remove(old.to_string().as_str())?;
            }
            let mut links = write.open_table(LINKS)?;
            links.insert(link(scope, digest).as_str(), ())?;
            for child in children(&manifest.bytes) {
                links.insert(link(scope, &child).as_str(), ())?;
            }
            Ok(())
        });
    }

    /// Returns all tags, as `REGISTRY/REPOSITORY:TAG`, and what they pointed to when they were looked
    /// at last.
    pub(super) fn tags(&self) -> Vec<(String, BlobDigest)> {
        let read = self.read("the tags", |read| {
            let mut tags = Vec::new();
            for entry in read.open_table(TAGS)?.iter()? {
                let (name, value) = entry?;
                if let Ok(digest) = value.value().0.parse() {
                    tags.push((name.value().to_owned(), digest));
                }
            }
            Ok(tags)
        });
        read.unwrap_or_default()
    }

    /// Returns a manifest or an index, whoever has it.
    pub(super) fn document(&self, digest: &BlobDigest) -> Option<Bytes> {
        let read = self.read("a manifest", |read| {
            let table = read.open_table(MANIFESTS)?;
            let entry = table.get(digest.to_string().as_str())?;
            Ok(entry.map(|entry| Bytes::copy_from_slice(entry.value().1)))
        });
        read?
    }

    /// Returns whether it is known that the repository has this.
    pub(super) fn is_linked(&self, scope: &Scope, digest: &BlobDigest) -> bool {
        let linked = self.read("whose a blob is", |read| {
            let table = read.open_table(LINKS)?;
            Ok(table.get(link(scope, digest).as_str())?.is_some())
        });
        linked.unwrap_or(false)
    }

    pub(super) fn link(&self, scope: &Scope, digest: &BlobDigest) {
        self.write("whose a blob is", |write| {
            let mut links = write.open_table(LINKS)?;
            links.insert(link(scope, digest).as_str(), ())?;
            Ok(())
        });
    }

    fn read<T>(
        &self,
        what: &str,
        read: impl FnOnce(&redb::ReadTransaction) -> Result<T, redb::Error>,
    ) -> Option<T> {
        let done = blocking(|| {
            let begun = self.database.begin_read().map_err(redb::Error::from);
            begun.and_then(|transaction| read(&transaction))
        });
        done.map_err(|error| log::error!("the catalog cannot tell {what}: {error}"))
            .ok()
    }

    fn write(
        &self,
        what: &str,
        write: impl FnOnce(&redb::WriteTransaction) -> Result<(), redb::Error>,
    ) {
        let done = blocking(|| {
            let transaction = self.database.begin_write()?;
            write(&transaction)?;
            transaction.commit()?;
            Ok::<_, redb::Error>(())
        });
        if let Err(error) = done {
            log::error!("the catalog cannot keep {what}: {error}");
        }
    }
}

impl Needs {
    fn add(&mut self, digest: &BlobDigest, bytes: &[u8], used: u64) {
        if self.used.insert(digest.clone(), used).is_some() {
            return;
        }
        for child in children(bytes) {
            self.by.entry(child).or_default().push(digest.clone());
        }
    }

    /// Forgets manifests until there are at most so many, and returns which.
    fn drop_oldest(&mut self, most: usize) -> Vec<BlobDigest> {
        let mut dropped = Vec::new();
        while self.used.len() > most {
            let oldest = self.used.iter().min_by_key(|(_, used)| **used);
            let Some(digest) = oldest.map(|(digest, _)| digest.clone()) else {
                break;
            };
            self.used.remove(&digest);
            self.by.retain(|_, by| {
                by.retain(|manifest| *manifest != digest);
                !by.is_empty()
            });
            dropped.push(digest);
        }
        dropped
    }
}

/// Does what waits for the disk, and lets other tasks of this thread go on elsewhere.
fn blocking<T>(work: impl FnOnce() -> T) -> T {
    let flavor = Handle::try_current().map(|runtime| runtime.runtime_flavor());
    match flavor {
        Ok(RuntimeFlavor::MultiThread) => block_in_place(work),
        _ => work(),
    }
}

fn link(scope: &Scope, digest: &BlobDigest) -> String {
    format!("{scope}@{digest}")
}

/// Returns milliseconds since 1970.
pub(super) fn now_millis() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| {
        u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::blobs::Algorithm;

    fn scope(repository: &str) -> Scope {
        Scope {
            registry: "docker.io".to_owned(),
            repository: repository.to_owned(),
        }
    }

    #[test]
    fn survives_a_restart_and_keeps_repositories_apart() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("catalog");
        let layer = BlobDigest::of(Algorithm::Sha256, b"layer");
        let text = format!(r#"{{"layers":[{{"digest":"{layer}","size":5}}]}}"#);
        let digest = BlobDigest::of(Algorithm::Sha256, text.as_bytes());
        let manifest = Manifest {
            media_type: "application/x".to_owned(),
            bytes: Bytes::from(text),
        };
        let tagged = Tagged {
            digest: digest.clone(),
            media_type: manifest.media_type.clone(),
            size: manifest.bytes.len() as u64,
            checked: 7,
        };
        {
            let catalog = Catalog::open(&path).unwrap();
            catalog.put_manifest(&scope("a"), &digest, &manifest);
            catalog.put_tag(&scope("a"), "v1", &tagged);
        }
        let catalog = Catalog::open(&path).unwrap();
        assert_eq!(catalog.tag(&scope("a"), "v1"), Some(tagged));
        assert_eq!(catalog.manifest(&scope("a"), &digest), Some(manifest));
        assert!(catalog.is_linked(&scope("a"), &layer));
        assert_eq!(catalog.worth(&layer).0, 1);
        assert_eq!(catalog.tag(&scope("b"), "v1"), None);
        assert_eq!(catalog.manifest(&scope("b"), &digest), None);
        assert!(!catalog.is_linked(&scope("b"), &layer));
        catalog.forget_tag(&scope("a"), "v1");
        assert_eq!(catalog.tag(&scope("a"), "v1"), None);
    }

    #[test]
    fn the_manifests_of_longest_ago_are_dropped() {
        let mut needs = Needs::default();
        let layer = BlobDigest::of(Algorithm::Sha256, b"layer");
        let text = format!(r#"{{"layers":[{{"digest":"{layer}"}}]}}"#);
        for used in [3, 1, 2] {
            let name = BlobDigest::of(Algorithm::Sha256, &[u8::try_from(used).unwrap()]);
            needs.add(&name, text.as_bytes(), used);
        }
        assert_eq!(needs.by[&layer].len(), 3);
        assert_eq!(needs.drop_oldest(1).len(), 2);
        assert_eq!(needs.used.values().copied().collect::<Vec<_>>(), [3]);
        assert_eq!(needs.by[&layer].len(), 1);
    }
}
