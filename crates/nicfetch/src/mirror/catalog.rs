//! What the mirror knows about images: tags, manifests, and which repository has what.
//!
//! It is kept in one database that survives a crash. Losing it loses no blob and no correctness:
//! what is not known is asked for again. So failures are logged and look like "not known", and when
//! there is too much of something a part of it goes ([`Bounds`]).

mod bounds;
mod needs;

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use hyper::body::Bytes;
use parking_lot::{Mutex, RwLock};
use redb::{
    Database, ReadableDatabase as _, ReadableTable as _, ReadableTableMetadata as _,
    TableDefinition,
};
use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::task::block_in_place;

use super::document::children;
use super::documents::Documents;
use crate::blobs::BlobDigest;
use bounds::Bounds;
use needs::Needs;

/// `REGISTRY/REPOSITORY:TAG` → digest, media type, bytes, milliseconds since 1970 of the last check.
const TAGS: TableDefinition<'_, &str, (&str, &str, u64, u64)> = TableDefinition::new("tags");
/// Digest → media type and the bytes as they came.
const MANIFESTS: TableDefinition<'_, &str, (&str, &[u8])> = TableDefinition::new("manifests");
/// `REGISTRY/REPOSITORY@DIGEST`: the repository has this manifest or blob.
const LINKS: TableDefinition<'_, &str, ()> = TableDefinition::new("links");

/// Bytes of its pages that the database keeps in memory. By itself it would take a gigabyte.
const CACHE_BYTES: usize = 8 << 20;

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
    path: PathBuf,
    /// Another one when it was written anew; whoever still reads the old one may.
    database: RwLock<Arc<Database>>,
    bounds: Bounds,
    documents: Documents,
    needs: Mutex<Needs>,
    /// Held while something is written.
    turn: Mutex<()>,
}

impl std::fmt::Debug for Catalog {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Catalog").finish_non_exhaustive()
    }
}

/// What stays of a catalog that is written anew.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stays {
    /// What manifests that are kept need, and most of the latest tags.
    Needed,
    Nothing,
}

impl Catalog {
    /// Opens the catalog in a file, and makes it if it is not there. It is beside blobs that may take
    /// `budget` bytes. One that an earlier release made larger than it may be is written anew.
    pub(super) fn open(
        path: &Path,
        budget: u64,
        documents: Documents,
    ) -> Result<Self, redb::Error> {
        let bounds = Bounds::of(budget);
        let database = opened(path)?;
        let mut needs = Needs::default();
        let mut dropped = false;
        {
            let read = database.begin_read()?;
            for entry in read.open_table(MANIFESTS)?.iter()? {
                let (name, value) = entry?;
                let (media_type, bytes) = value.value();
                match (name.value().parse(), costs(&bounds, media_type, bytes)) {
                    (Ok(digest), Some((children, cost))) => {
                        needs.add(&digest, &children, cost, 0);
                        dropped |= !needs.drop_over(&bounds).is_empty();
                    }
                    _ => dropped = true,
                }
            }
        }
        let catalog = Self {
            path: path.to_owned(),
            database: RwLock::new(Arc::new(database)),
            bounds,
            documents,
            needs: Mutex::new(needs),
            turn: Mutex::new(()),
        };
        if dropped || catalog.is_too_large()? {
            let len = fs::metadata(path).map_or(0, |file| file.len());
            log::info!("the catalog has {len} bytes: it is written anew");
            catalog.write_anew()?;
        }
        Ok(catalog)
    }

    /// Returns how many manifests need a blob, and when an image with it was last asked for, in
    /// seconds since 1970.
    pub(super) fn worth(&self, digest: &BlobDigest) -> (usize, u64) {
        let (needed, used) = self.needs.lock().of(digest);
        (needed, used / 1000)
    }

    pub(super) fn manifest_count(&self) -> usize {
        self.needs.lock().len()
    }

    /// Returns the bytes of its file, and how many it may have.
    pub(super) fn size(&self) -> (u64, u64) {
        let len = fs::metadata(&self.path).map_or(0, |file| file.len());
        (len, self.bounds.file)
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
        if !Bounds::take_type(&tagged.media_type) {
            return;
        }
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

    /// Returns a manifest if it is known that the repository has it, and there is memory for it.
    pub(super) fn manifest(&self, scope: &Scope, digest: &BlobDigest) -> Option<Manifest> {
        let read = self.read("a manifest", |read| {
            let linked = read.open_table(LINKS)?.get(link(scope, digest).as_str())?;
            if linked.is_none() {
                return Ok(None);
            }
            let table = read.open_table(MANIFESTS)?;
            let entry = table.get(digest.to_string().as_str())?;
            Ok(entry.and_then(|entry| {
                let (media_type, bytes) = entry.value();
                Some(Manifest {
                    media_type: media_type.to_owned(),
                    bytes: self.documents.copy(bytes)?,
                })
            }))
        });
        let manifest = read??;
        self.needs.lock().touch(digest, now_millis());
        Some(manifest)
    }

    /// Keeps a manifest, and that the repository has it and what it names; not if it is longer or names
    /// more than can be kept.
    pub(super) fn put_manifest(&self, scope: &Scope, digest: &BlobDigest, manifest: &Manifest) {
        let costs = costs(&self.bounds, &manifest.media_type, &manifest.bytes);
        let Some((children, cost)) = costs else {
            return;
        };
        let oldest = {
            let mut needs = self.needs.lock();
            needs.add(digest, &children, cost, now_millis());
            needs.drop_over(&self.bounds)
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
            for child in &children {
                links.insert(link(scope, child).as_str(), ())?;
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
            let begun = self.database().begin_read().map_err(redb::Error::from);
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
            let _turn = self.turn.lock();
            let transaction = self.database().begin_write()?;
            write(&transaction)?;
            transaction.commit()?;
            match self.is_too_large()? {
                true => self.write_anew(),
                false => Ok(()),
            }
        });
        if let Err(error) = done {
            log::error!("the catalog cannot keep {what}: {error}");
        }
    }

    fn database(&self) -> Arc<Database> {
        Arc::clone(&self.database.read())
    }

    /// Returns whether there is more in it than there may be, or its file is too long.
    fn is_too_large(&self) -> Result<bool, redb::Error> {
        let read = self.database().begin_read()?;
        let tags = read.open_table(TAGS)?.len()?;
        let links = read.open_table(LINKS)?.len()?;
        let (len, most) = self.size();
        Ok(tags > self.bounds.tags || links > self.bounds.links || len > most)
    }

    /// Writes what is needed of it into another file, which takes its place. To be called by whoever has
    /// the turn.
    fn write_anew(&self) -> Result<(), redb::Error> {
        for stays in [Stays::Needed, Stays::Nothing] {
            if stays == Stays::Nothing {
                log::warn!("the catalog is too long with what is needed: it begins anew");
                self.needs.lock().clear();
            }
            let aside = self.path.with_extension("new");
            remove(&aside)?;
            let copy = opened(&aside)?;
            self.copy_into(&copy, stays)?;
            fs::rename(&aside, &self.path)?;
            if let Some(dir) = self.path.parent() {
                File::open(dir)?.sync_all()?;
            }
            *self.database.write() = Arc::new(copy);
            if self.size().0 <= self.bounds.file {
                break;
            }
        }
        Ok(())
    }

    fn copy_into(&self, copy: &Database, stays: Stays) -> Result<(), redb::Error> {
        if stays == Stays::Nothing {
            return Ok(());
        }
        let read = self.database().begin_read()?;
        let write = copy.begin_write()?;
        {
            let tags = read.open_table(TAGS)?;
            let latest = latest(&tags, most_of(self.bounds.tags))?;
            let mut to = write.open_table(TAGS)?;
            for name in latest {
                if let Some(tagged) = tags.get(name.as_str())? {
                    to.insert(name.as_str(), tagged.value())?;
                }
            }
            let mut to = write.open_table(MANIFESTS)?;
            for entry in read.open_table(MANIFESTS)?.iter()? {
                let (name, value) = entry?;
                let digest = name.value().parse::<BlobDigest>();
                if digest.is_ok_and(|digest| self.needs.lock().has(&digest)) {
                    to.insert(name.value(), value.value())?;
                }
            }
            let mut to = write.open_table(LINKS)?;
            let mut left = most_of(self.bounds.links);
            for entry in read.open_table(LINKS)?.iter()? {
                let (name, _) = entry?;
                let digest = name.value().rsplit_once('@').map(|(_, digest)| digest);
                let digest = digest.and_then(|digest| digest.parse::<BlobDigest>().ok());
                if left > 0 && digest.is_some_and(|digest| self.needs.lock().need(&digest)) {
                    to.insert(name.value(), ())?;
                    left -= 1;
                }
            }
        }
        write.commit()?;
        Ok(())
    }
}

/// Opens a database with all tables.
fn opened(path: &Path) -> Result<Database, redb::Error> {
    let database = Database::builder()
        .set_cache_size(CACHE_BYTES)
        .create(path)?;
    let write = database.begin_write()?;
    write.open_table(TAGS)?;
    write.open_table(LINKS)?;
    write.open_table(MANIFESTS)?;
    write.commit()?;
    Ok(database)
}

fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Returns what a manifest names and costs; `None` if it cannot be kept.
fn costs(bounds: &Bounds, media_type: &str, bytes: &[u8]) -> Option<(Vec<BlobDigest>, u64)> {
    let children = children(bytes)?;
    let cost = Bounds::cost(bytes.len(), children.len());
    (Bounds::take_type(media_type) && bounds.take(cost)).then_some((children, cost))
}

/// Returns what stays of so many: enough is let go that it lasts.
const fn most_of(most: u64) -> u64 {
    most / 4 * 3
}

/// Returns the names of the tags that were looked at last.
fn latest(
    tags: &redb::ReadOnlyTable<&'static str, (&'static str, &'static str, u64, u64)>,
    most: u64,
) -> Result<Vec<String>, redb::Error> {
    let mut found = Vec::new();
    for entry in tags.iter()? {
        let (name, value) = entry?;
        found.push((value.value().3, name.value().to_owned()));
    }
    found.sort_unstable_by(|a, b| b.cmp(a));
    let most = usize::try_from(most).unwrap_or(usize::MAX);
    found.truncate(most);
    Ok(found.into_iter().map(|(_, name)| name).collect())
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
            let catalog = open(&path, 1 << 30);
            catalog.put_manifest(&scope("a"), &digest, &manifest);
            catalog.put_tag(&scope("a"), "v1", &tagged);
        }
        let catalog = open(&path, 1 << 30);
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

    fn open(path: &Path, budget: u64) -> Catalog {
        Catalog::open(path, budget, Documents::default()).unwrap()
    }

    /// A manifest of so many bytes that names so many layers, all its own.
    fn manifest(seed: u32, bytes: usize, layers: usize) -> (BlobDigest, Manifest) {
        let layer = |number: usize| {
            let digest = BlobDigest::of(Algorithm::Sha256, format!("{seed} {number}").as_bytes());
            format!(r#"{{"digest":"{digest}"}}"#)
        };
        let layers: Vec<_> = (0..layers).map(layer).collect();
        let text = format!(r#"{{"seed":{seed},"layers":[{}]}}"#, layers.join(","));
        let padding = " ".repeat(bytes.saturating_sub(text.len()));
        let bytes = text + &padding;
        let manifest = Manifest {
            media_type: "application/x".to_owned(),
            bytes: Bytes::from(bytes),
        };
        (BlobDigest::of(Algorithm::Sha256, &manifest.bytes), manifest)
    }

    fn counts(catalog: &Catalog) -> [u64; 3] {
        let read = catalog.database().begin_read().unwrap();
        [
            read.open_table(MANIFESTS).unwrap().len().unwrap(),
            read.open_table(TAGS).unwrap().len().unwrap(),
            read.open_table(LINKS).unwrap().len().unwrap(),
        ]
    }

    fn pull(catalog: &Catalog, repository: &str, tag: &str, (digest, of): &(BlobDigest, Manifest)) {
        let tagged = Tagged {
            digest: digest.clone(),
            media_type: of.media_type.clone(),
            size: of.bytes.len() as u64,
            checked: now_millis(),
        };
        catalog.put_manifest(&scope(repository), digest, of);
        catalog.put_tag(&scope(repository), tag, &tagged);
    }

    #[test]
    fn manifests_of_all_lengths_fit_its_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("catalog");
        let catalog = open(&path, 1 << 30);
        let small = manifest(0, 0, 9);
        pull(&catalog, "small", "v1", &small);
        for seed in 1..60 {
            let bytes = 4 << (10 + seed % 11);
            let layers = usize::try_from(seed).unwrap() * 17;
            let one = manifest(seed, bytes, layers);
            pull(&catalog, &format!("a{seed}"), "v1", &one);
            let (len, most) = catalog.size();
            assert!(len <= most && most == 64 << 20, "{len} of {most}");
        }
        let found = catalog.manifest(&scope("small"), &small.0);
        assert_eq!(found, Some(small.1), "long ones do not drive it out");
        drop(catalog);
        let found = open(&path, 1 << 30).manifest(&scope("small"), &small.0);
        assert!(found.is_some(), "nor do they after a restart");
    }

    #[test]
    fn tags_and_links_of_a_small_manifest_have_bounds() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("catalog");
        let catalog = open(&path, 1 << 20);
        let bounds = catalog.bounds;
        assert_eq!(bounds.file, 8 << 20);
        let one = manifest(0, 0, 1000);
        for number in 0..12 {
            pull(&catalog, &format!("r{number}"), "v1", &one);
            let [manifests, _, links] = counts(&catalog);
            assert!(manifests == 1 && links <= bounds.links, "{links}");
        }
        let tagged = catalog.tag(&scope("r11"), "v1").unwrap();
        for number in 0..bounds.tags + 10 {
            catalog.put_tag(&scope("r11"), &format!("t{number}"), &tagged);
        }
        let [_, tags, _] = counts(&catalog);
        assert!(tags <= bounds.tags && tags > bounds.tags / 2, "{tags}");
        let last = format!("t{}", bounds.tags + 9);
        assert_eq!(catalog.tag(&scope("r11"), &last), Some(tagged));
        assert!(catalog.manifest(&scope("r11"), &one.0).is_some());
    }

    #[test]
    fn what_names_too_much_or_is_too_long_is_not_kept() {
        let dir = tempfile::tempdir().unwrap();
        let catalog = open(&dir.path().join("catalog"), 1 << 30);
        let before = counts(&catalog);
        for one in [manifest(1, 0, 1025), manifest(2, 4 << 20, 1)] {
            catalog.put_manifest(&scope("a"), &one.0, &one.1);
        }
        let mut odd = manifest(3, 0, 1);
        odd.1.media_type = "x".repeat(256);
        pull(&catalog, "a", "v1", &odd);
        assert_eq!(counts(&catalog), before);
        assert_eq!(catalog.manifest_count(), 0);
    }

    /// As a release wrote it that had no bounds.
    #[test]
    fn a_catalog_of_an_earlier_release_is_read_and_made_small() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("catalog");
        let old = include_bytes!("../../tests/fixtures/catalog-v1.redb.zst");
        fs::write(&path, zstd::decode_all(&old[..]).unwrap()).unwrap();
        let digest = "sha256:6abcb92fc8a95c18994f465558340d55b584f9501f3ae248e9ff3af0a2880397";
        let digest: BlobDigest = digest.parse().unwrap();
        let library = |name: &str| scope(&format!("library/{name}"));
        let layer = BlobDigest::of(Algorithm::Sha256, b"layer");
        let is_whole = |catalog: &Catalog| {
            let tagged = catalog.tag(&library("deb"), "v1").unwrap();
            assert_eq!((tagged.digest, tagged.size), (digest.clone(), 397));
            let manifest = catalog.manifest(&library("other"), &digest).unwrap();
            assert_eq!(BlobDigest::of(Algorithm::Sha256, &manifest.bytes), digest);
            assert!(catalog.is_linked(&library("deb"), &layer));
            assert_eq!(catalog.worth(&layer).0, 1);
        };
        let catalog = open(&path, 1 << 20);
        is_whole(&catalog);
        // What releases without bounds took in.
        for seed in 0..5 {
            let one = manifest(seed, 4 << 20, 1);
            catalog.write("a manifest", |write| {
                let value = (one.1.media_type.as_str(), &one.1.bytes[..]);
                let mut manifests = write.open_table(MANIFESTS)?;
                manifests.insert(one.0.to_string().as_str(), value)?;
                Ok(())
            });
        }
        drop(catalog);
        let catalog = open(&path, 1 << 20);
        assert_eq!(counts(&catalog), [1, 2, 6]);
        assert!(catalog.size().0 < 1 << 20, "{:?}", catalog.size());
        is_whole(&catalog);
    }
}
