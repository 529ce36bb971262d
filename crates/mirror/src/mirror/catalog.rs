//! The catalog of images: tags, manifests, and confirmations by registries that their repositories have
//! some content.
//!
//! It is one database, which survives a crash. Losing it costs requests to registries and no
//! correctness. So errors are logged and treated as a miss, and when a part is too large, its oldest
//! records are dropped ([`Bounds`]).

mod bounds;
mod file;
mod latest;
mod needs;

use std::fs::{self, File};
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use hyper::body::Bytes;
use parking_lot::Mutex;
use redb::{
    Database, ReadableDatabase as _, ReadableTable as _, ReadableTableMetadata as _,
    TableDefinition,
};
use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::task::block_in_place;

use super::document::children;
use super::documents::Documents;
use super::proof::{ProofKey, ProofStore, Proved};
use super::scope::Scope;
use crate::blobs::{BlobDigest, BlobKey};
use bounds::Bounds;
use file::{CatalogFile, database_at, forget_links};
use latest::Latest;
use needs::Needs;

/// `REGISTRY/REPOSITORY:TAG` → digest, media type, bytes, milliseconds since 1970 of the last check.
pub(super) const TAGS: TableDefinition<'_, &str, (&str, &str, u64, u64)> =
    TableDefinition::new("tags");
/// Digest, or `REALM@DIGEST` ([`BlobKey`]) → media type and the bytes as they came.
pub(super) const MANIFESTS: TableDefinition<'_, &str, (&str, &[u8])> =
    TableDefinition::new("manifests");
/// [`ProofKey`] → milliseconds since 1970 at which the registry confirmed it, to the mirror's own credentials.
pub(super) const PROOFS: TableDefinition<'_, &[u8; 32], u64> = TableDefinition::new("proofs");
/// Records of earlier releases in place of proofs. They prove nothing: any manifest created them.
pub(super) const LINKS: TableDefinition<'_, &str, ()> = TableDefinition::new("links");

/// The manifest that a tag pointed to when it was last validated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Tagged {
    pub(super) digest: BlobDigest,
    pub(super) media_type: String,
    pub(super) size: u64,
    /// Milliseconds since 1970.
    pub(super) checked: u64,
}

/// A manifest or an index, unchanged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Manifest {
    pub(super) media_type: String,
    pub(super) bytes: Bytes,
}

pub(super) struct Catalog {
    file: CatalogFile,
    bounds: Bounds,
    documents: Documents,
    needs: Mutex<Needs>,
    /// Whether the file has manifests that are not in `needs`.
    has_others: AtomicBool,
    /// Held while the catalog is written.
    write_lock: Mutex<()>,
}

impl std::fmt::Debug for Catalog {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Catalog").finish_non_exhaustive()
    }
}

impl ProofStore for Catalog {
    fn age(&self, key: &ProofKey) -> Option<Duration> {
        self.proof_age(key)
    }

    fn note(&self, key: &ProofKey) {
        self.put_proof(key);
    }

    fn forget(&self, key: &ProofKey) {
        self.forget_proof(key);
    }
}

/// What stays of a catalog that is written anew.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Keep {
    /// Manifests that are known to be here, tags and proofs.
    All,
    Nothing,
}

impl Catalog {
    /// Opens the catalog in a file, which is created if it does not exist. Its limits follow from
    /// `budget`, the bytes of the cache of blobs. A file that an earlier release let grow beyond
    /// them is rewritten. While the file cannot be used, the catalog knows nothing.
    pub(super) fn open(path: &Path, budget: u64, documents: Documents) -> Self {
        let catalog = Self {
            file: CatalogFile::at(path),
            bounds: Bounds::of(budget),
            documents,
            needs: Mutex::default(),
            has_others: AtomicBool::new(false),
            write_lock: Mutex::new(()),
        };
        catalog.write("nothing new", |_| Ok(())); // opens it, and makes it small
        catalog
    }

    /// Learns from the file which manifests it has.
    fn learn(&self, database: &Database) -> Result<(), redb::Error> {
        forget_links(database)?;
        let mut needs = Needs::default();
        let mut has_others = false;
        let read = database.begin_read()?;
        for entry in read.open_table(MANIFESTS)?.iter()? {
            let (name, value) = entry?;
            let (media_type, bytes) = value.value();
            match (name.value().parse(), costs(&self.bounds, media_type, bytes)) {
                (Ok(key), Some((children, cost))) => {
                    needs.add(&key, &children, cost, 0);
                    has_others |= !needs.drop_over(&self.bounds).is_empty();
                }
                _ => has_others = true,
            }
        }
        *self.needs.lock() = needs;
        self.has_others.store(has_others, Relaxed);
        Ok(())
    }

    /// Returns how many manifests need a blob, and the time of the last request for one of these,
    /// in seconds since 1970. While that is not known, one does.
    pub(super) fn worth(&self, digest: &BlobDigest) -> (usize, u64) {
        let (needed, used) = self.needs.lock().of(digest);
        let least = usize::from(!self.file.is_open());
        (needed.max(least), used / 1000)
    }

    /// Returns whether it is known which images are here: the file can be used.
    pub(super) fn is_known(&self) -> bool {
        self.database().is_some()
    }

    pub(super) fn manifest_count(&self) -> usize {
        self.needs.lock().len()
    }

    /// Returns the bytes of its file, and how many it may have.
    pub(super) fn size(&self) -> (u64, u64) {
        let len = fs::metadata(self.file.path()).map_or(0, |file| file.len());
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

    /// Returns a manifest, if it is in the catalog, has the right digest, and there is memory for
    /// it.
    pub(super) fn manifest(&self, proved: &Proved) -> Option<Manifest> {
        let key = proved.key();
        let read = self.read("a manifest", |read| {
            let table = read.open_table(MANIFESTS)?;
            let entry = table.get(key.to_string().as_str())?;
            Ok(entry.and_then(|entry| {
                let (media_type, bytes) = entry.value();
                is_right(key, bytes).then_some(())?;
                Some(Manifest {
                    media_type: media_type.to_owned(),
                    bytes: self.documents.copy(bytes)?,
                })
            }))
        });
        let manifest = read??;
        self.needs.lock().touch(key, now_millis());
        Some(manifest)
    }

    /// Returns whether a manifest is in the catalog, in any realm.
    pub(super) fn has(&self, key: &BlobKey) -> bool {
        self.needs.lock().has(key)
    }

    /// Stores a manifest, unless it is too long or names too many blobs.
    pub(super) fn put_manifest(&self, key: &BlobKey, manifest: &Manifest) {
        let costs = costs(&self.bounds, &manifest.media_type, &manifest.bytes);
        let Some((children, cost)) = costs else {
            return;
        };
        let oldest = {
            let mut needs = self.needs.lock();
            needs.add(key, &children, cost, now_millis());
            needs.drop_over(&self.bounds)
        };
        self.write("a manifest", |write| {
            let mut manifests = write.open_table(MANIFESTS)?;
            let value = (manifest.media_type.as_str(), &manifest.bytes[..]);
            manifests.insert(key.to_string().as_str(), value)?;
            for old in &oldest {
                manifests.remove(old.to_string().as_str())?;
            }
            Ok(())
        });
    }

    /// Returns all tags, as `REGISTRY/REPOSITORY:TAG`, and the digests to which they pointed when they were last
    /// checked.
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

    /// Returns a manifest or an index of any realm.
    pub(super) fn document(&self, key: &BlobKey) -> Option<Bytes> {
        let read = self.read("a manifest", |read| {
            let table = read.open_table(MANIFESTS)?;
            let entry = table.get(key.to_string().as_str())?;
            let bytes = entry.filter(|entry| is_right(key, entry.value().1));
            Ok(bytes.map(|entry| Bytes::copy_from_slice(entry.value().1)))
        });
        read?
    }

    /// Returns the age of a confirmation that was requested with the mirror's own credentials.
    pub(super) fn proof_age(&self, proof: &ProofKey) -> Option<Duration> {
        let read = self.read("what a registry has said", |read| {
            let table = read.open_table(PROOFS)?;
            Ok(table.get(&proof.0)?.map(|said| said.value()))
        });
        // What was said in the future is not believed: the clock was wrong.
        let age = now_millis().checked_sub(read??)?;
        Some(Duration::from_millis(age))
    }

    pub(super) fn put_proof(&self, proof: &ProofKey) {
        self.put_proofs(std::slice::from_ref(proof));
    }

    pub(super) fn put_proofs(&self, proofs: &[ProofKey]) {
        let now = now_millis();
        self.write("what a registry has said", |write| {
            let mut table = write.open_table(PROOFS)?;
            for proof in proofs {
                table.insert(&proof.0, now)?;
            }
            Ok(())
        });
    }

    /// Stores a confirmation with this age.
    #[cfg(test)]
    pub(super) fn put_proof_of(&self, proof: &ProofKey, ago: Duration) {
        let ago = u64::try_from(ago.as_millis()).unwrap_or(u64::MAX);
        self.write("what a registry has said", |write| {
            let mut table = write.open_table(PROOFS)?;
            table.insert(&proof.0, now_millis() - ago)?;
            Ok(())
        });
    }

    pub(super) fn forget_proof(&self, proof: &ProofKey) {
        self.write("what a registry says no longer", |write| {
            write.open_table(PROOFS)?.remove(&proof.0)?;
            Ok(())
        });
    }

    fn read<T>(
        &self,
        what: &str,
        read: impl FnOnce(&redb::ReadTransaction) -> Result<T, redb::Error>,
    ) -> Option<T> {
        blocking(|| {
            let done = self.file.run(self.database()?, |database| {
                let begun = database.begin_read().map_err(redb::Error::from);
                begun.and_then(|transaction| read(&transaction))
            });
            done.map_err(|error| log::error!("cannot read {what} from the catalog: {error}"))
                .ok()
        })
    }

    fn write(
        &self,
        what: &str,
        write: impl FnOnce(&redb::WriteTransaction) -> Result<(), redb::Error>,
    ) {
        blocking(|| {
            let _guard = self.write_lock.lock();
            let Some(database) = self.database() else {
                return;
            };
            let done = self.file.run(database, |database| {
                let transaction = database.begin_write()?;
                write(&transaction)?;
                transaction.commit()?;
                self.make_small(database)
            });
            if let Err(error) = done {
                log::error!("cannot write {what} to the catalog: {error}");
            }
        });
    }

    /// Returns the database; `None` while its file cannot be used.
    fn database(&self) -> Option<Arc<Database>> {
        self.file.database(&|database| self.learn(database))
    }

    /// Drops the oldest records beyond the limits. The caller holds the write lock.
    fn make_small(&self, database: &Database) -> Result<(), redb::Error> {
        let read = database.begin_read()?;
        let tags = read.open_table(TAGS)?;
        let mut late_tags = None;
        if tags.len()? > self.bounds.tags {
            let times = tags.iter()?;
            let times = times.map(|entry| Ok::<_, redb::Error>(entry?.1.value().3));
            late_tags = Some(Latest::of(times, self.bounds.tags)?);
        }
        let proofs = read.open_table(PROOFS)?;
        let mut late_proofs = None;
        if proofs.len()? > self.bounds.proofs {
            let times = proofs.iter()?;
            let times = times.map(|entry| Ok::<_, redb::Error>(entry?.1.value()));
            late_proofs = Some(Latest::of(times, self.bounds.proofs)?);
        }
        drop((tags, proofs, read));
        if late_tags.is_some() || late_proofs.is_some() {
            let write = database.begin_write()?;
            if let Some(mut late) = late_tags {
                let mut tags = write.open_table(TAGS)?;
                tags.retain(|_, (_, _, _, checked)| late.takes(checked))?;
            }
            if let Some(mut late) = late_proofs {
                let mut proofs = write.open_table(PROOFS)?;
                proofs.retain(|_, said| late.takes(said))?;
            }
            write.commit()?;
        }
        let (len, most) = self.size();
        if len > most || self.has_others.load(Relaxed) {
            log::info!("the catalog has {len} bytes: rewriting it to make it smaller");
            // If there is no room for a new file, the old one stays in use.
            match self.write_anew(database) {
                Ok(()) => self.has_others.store(false, Relaxed),
                Err(error) => log::error!("cannot rewrite the catalog: {error}"),
            }
        }
        Ok(())
    }

    /// Rewrites the file with the needed records only. The caller holds the write lock.
    fn write_anew(&self, database: &Database) -> Result<(), redb::Error> {
        let anew = [Keep::All, Keep::Nothing];
        for stays in anew {
            if stays == Keep::Nothing {
                log::warn!(
                    "the catalog is too large even without unneeded entries: starting an empty one"
                );
                self.needs.lock().clear();
            }
            let path = self.file.path();
            let aside = path.with_extension("new");
            remove(&aside)?;
            let copy = database_at(&aside)?;
            self.copy_into(database, &copy, stays)?;
            fs::rename(&aside, path)?;
            if let Some(dir) = path.parent() {
                File::open(dir)?.sync_all()?;
            }
            self.file.replace(copy);
            if self.size().0 <= self.bounds.file {
                break;
            }
        }
        Ok(())
    }

    fn copy_into(
        &self,
        database: &Database,
        copy: &Database,
        stays: Keep,
    ) -> Result<(), redb::Error> {
        if stays == Keep::Nothing {
            return Ok(());
        }
        let read = database.begin_read()?;
        let write = copy.begin_write()?;
        {
            let mut to = write.open_table(TAGS)?;
            for entry in read.open_table(TAGS)?.iter()? {
                let (name, value) = entry?;
                to.insert(name.value(), value.value())?;
            }
            let mut to = write.open_table(MANIFESTS)?;
            for entry in read.open_table(MANIFESTS)?.iter()? {
                let (name, value) = entry?;
                let key = name.value().parse::<BlobKey>();
                if key.is_ok_and(|key| self.needs.lock().has(&key)) {
                    to.insert(name.value(), value.value())?;
                }
            }
            let mut to = write.open_table(PROOFS)?;
            for entry in read.open_table(PROOFS)?.iter()? {
                let (key, said) = entry?;
                to.insert(key.value(), said.value())?;
            }
        }
        write.commit()?;
        Ok(())
    }
}

fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Returns the blobs that a manifest names, and its cost; `None` if it is not stored.
fn costs(bounds: &Bounds, media_type: &str, bytes: &[u8]) -> Option<(Vec<BlobDigest>, u64)> {
    let children = children(bytes)?;
    let cost = Bounds::cost(bytes.len(), children.len());
    (Bounds::take_type(media_type) && bounds.take(cost)).then_some((children, cost))
}

/// Returns whether bytes have their digest: the disk may have damaged them.
fn is_right(key: &BlobKey, bytes: &[u8]) -> bool {
    let is_right = BlobDigest::of(key.digest.algorithm(), bytes) == key.digest;
    if !is_right {
        log::error!("{key} is damaged in the catalog: not served");
    }
    is_right
}

/// Runs blocking I/O, and lets other tasks of this thread run elsewhere.
fn blocking<T>(work: impl FnOnce() -> T) -> T {
    let flavor = Handle::try_current().map(|runtime| runtime.runtime_flavor());
    match flavor {
        Ok(RuntimeFlavor::MultiThread) => block_in_place(work),
        _ => work(),
    }
}

/// Returns milliseconds since 1970.
pub(super) fn now_millis() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| {
        u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
    })
}

#[cfg(test)]
mod tests;
