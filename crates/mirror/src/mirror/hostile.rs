//! The parsers of untrusted input and of the mirror's own files, for fuzz targets.

use std::path::Path;

use super::catalog::{Catalog, LINKS, MANIFESTS, PROOFS, TAGS, now_millis};
use super::document::{accepts, children, for_platform};
use super::documents::Documents;
use super::fill::content_range;
use super::proof::{ProofKey, Proved};
use super::range::RequestedRange;
use super::route::Route;
use super::scope::Scope;
use crate::blobs::{BlobDigest, BlobKey};

/// Reads a path, and returns the repository that it asks for, which may begin with a registry.
#[must_use]
pub fn repository_in(path: &str) -> Option<String> {
    Route::parse(path)?.repository().cloned()
}

/// Reads a `Range` header for a blob of `size` bytes, and returns the bytes that are sent; `None`
/// where there is no one range to send.
#[must_use]
pub fn range_in(header: &str, size: u64) -> Option<(u64, u64)> {
    match RequestedRange::parse(Some(header), size) {
        RequestedRange::All => Some((0, size)),
        RequestedRange::Part { start, end, .. } => Some((start, end)),
        RequestedRange::Nothing | RequestedRange::Several => None,
    }
}

/// Reads the `Content-Range` of a registry, and returns where it begins and how long the blob is.
#[must_use]
pub fn content_range_in(header: &str) -> Option<(u64, u64)> {
    content_range(header).map(|stretch| (stretch.start, stretch.size))
}

/// Reads a manifest or an index, and returns how many things it names.
#[must_use]
pub fn names_in(document: &[u8], accept: &str) -> usize {
    let taken = usize::from(accepts(std::iter::once(accept), "application/json"));
    children(document).map_or(0, |children| children.len())
        + for_platform(document, "amd64").len()
        + taken
}

/// Records of a catalog that may be forged or damaged.
#[derive(Clone, Debug, Default)]
pub struct Records {
    /// Name, digest, media type, bytes, and milliseconds since 1970.
    pub tags: Vec<(String, String, String, u64, u64)>,
    /// Name, media type and bytes.
    pub manifests: Vec<(String, String, Vec<u8>)>,
    /// Name, and milliseconds since 1970.
    pub proofs: Vec<([u8; 32], u64)>,
    /// What earlier releases kept in their place.
    pub links: Vec<String>,
}

/// Writes records into a new catalog in a directory, and reads them as the mirror does.
///
/// # Errors
/// If the records cannot be written, or something is given out that is not what it is called.
pub fn read_records(dir: &Path, records: &Records) -> Result<(), String> {
    let path = dir.join("catalog.redb");
    records.write(&path).map_err(|error| error.to_string())?;
    for _ in 0..2 {
        let catalog = Catalog::open(&path, 1 << 20, Documents::default());
        records.read(&catalog)?;
        let (len, most) = catalog.size();
        if len > most {
            return Err(format!("it has {len} bytes, and may have {most}"));
        }
    }
    Ok(())
}

impl Records {
    fn write(&self, path: &Path) -> Result<(), redb::Error> {
        let database = redb::Database::create(path)?;
        let write = database.begin_write()?;
        {
            let mut tags = write.open_table(TAGS)?;
            for (name, digest, media_type, size, checked) in &self.tags {
                let value = (digest.as_str(), media_type.as_str(), *size, *checked);
                tags.insert(name.as_str(), value)?;
            }
            let mut manifests = write.open_table(MANIFESTS)?;
            for (name, media_type, bytes) in &self.manifests {
                manifests.insert(name.as_str(), (media_type.as_str(), &bytes[..]))?;
            }
            let mut proofs = write.open_table(PROOFS)?;
            for (key, said) in &self.proofs {
                proofs.insert(key, *said)?;
            }
            let mut links = write.open_table(LINKS)?;
            for name in &self.links {
                links.insert(name.as_str(), ())?;
            }
        }
        write.commit()?;
        Ok(())
    }

    fn read(&self, catalog: &Catalog) -> Result<(), String> {
        for (name, ..) in &self.manifests {
            let Ok(key) = name.parse::<BlobKey>() else {
                continue;
            };
            let document = catalog.document(&key);
            let manifest = catalog.manifest(&Proved::forged(key.clone()));
            let manifest = manifest.map(|manifest| manifest.bytes);
            for bytes in document.iter().chain(&manifest) {
                if BlobDigest::of(key.digest.algorithm(), bytes) != key.digest {
                    return Err(format!("{key} is not what it is called"));
                }
            }
            let _worth = (catalog.has(&key), catalog.worth(&key.digest));
        }
        for (name, ..) in &self.tags {
            let (scope, tag) = name.rsplit_once(':').unwrap_or((name, ""));
            let (registry, repository) = scope.split_once('/').unwrap_or((scope, ""));
            let scope = Scope {
                registry: registry.to_owned(),
                repository: repository.to_owned(),
            };
            let _tagged = catalog.tag(&scope, tag);
        }
        for (key, said) in &self.proofs {
            let age = catalog.proof_age(&ProofKey(*key));
            if age.is_some() && *said > now_millis() {
                return Err("a record from the future is taken as valid".to_owned());
            }
        }
        let _tags = catalog.tags();
        match catalog.manifest_count() > self.manifests.len() {
            true => Err("there are more manifests than were written".to_owned()),
            false => Ok(()),
        }
    }
}
