//! The blobs of a pulled image that containerd has, by the files of its content store.
//!
//! A blob is at `blobs/sha256/<digest>` once it is complete. Manifests and configurations come
//! first, so an image is known before its first layer is unpacked. No request is sent to containerd,
//! which waits for this process; and a missing store is an empty one.

use std::collections::{HashMap, HashSet};
use std::fs::{self, File};
use std::io::Read as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use blocks::Digest;
use engine::containerd::chain_ids;
use oci::{CONFIG_MAX, Descriptor, ImageConfig, Manifest};
use tiering::lass::PullId;

/// Where the blobs are below containerd's root.
const BLOBS: &str = "io.containerd.content.v1.content/blobs/sha256";
/// Blobs that are looked at, and images that are known; what is beyond is not placed.
const BLOBS_MAX: usize = 1 << 20;
const IMAGES_MAX: usize = 1 << 14;
/// Downloads that are looked at, and bytes of the name of one.
const INGESTS_MAX: usize = 4096;
const REF_MAX: u64 = 1024;

/// An image that is being pulled, or was.
#[derive(Debug)]
pub(super) struct PulledImage {
    pub(super) pull: PullId,
    /// The compressed layers, the lowest first.
    pub(super) layers: Vec<Descriptor>,
    seen: SystemTime,
}

/// The content store of a containerd.
#[derive(Debug)]
pub(super) struct Content {
    blobs: PathBuf,
    looked_at: HashSet<Digest>,
    /// Manifests whose configuration is missing.
    incomplete: Vec<(Manifest, SystemTime)>,
    images: usize,
    /// The layers of all images, by their chain IDs; of several images the one seen last.
    layers: HashMap<Digest, (Arc<PulledImage>, usize)>,
}

impl Content {
    pub(super) fn below(containerd_root: &Path) -> Self {
        Self {
            blobs: containerd_root.join(BLOBS),
            looked_at: HashSet::new(),
            incomplete: Vec::new(),
            images: 0,
            layers: HashMap::new(),
        }
    }

    /// Returns the directory of the blobs.
    pub(super) fn blobs(&self) -> &Path {
        &self.blobs
    }

    /// Returns which image a layer is of, and which of its layers it is.
    pub(super) fn find(&mut self, chain: &Digest) -> Option<(Arc<PulledImage>, usize)> {
        self.look();
        self.layers.get(chain).cloned()
    }

    /// Learns of the images that came since the last time.
    pub(super) fn look(&mut self) {
        let Ok(entries) = fs::read_dir(&self.blobs) else {
            return;
        };
        for entry in entries.flatten() {
            let name = entry.file_name();
            let digest = name.to_str().map(|hex| format!("sha256:{hex}").parse());
            let Some(Ok(digest)) = digest else { continue };
            if self.looked_at.len() < BLOBS_MAX && self.looked_at.insert(digest) {
                self.incomplete.extend(self.manifest(&digest));
            }
        }
        for (manifest, seen) in std::mem::take(&mut self.incomplete) {
            match self.document(&manifest.config.digest) {
                Some((config, _)) => self.learn(&config, &manifest, seen),
                None => self.incomplete.push((manifest, seen)),
            }
        }
        // What never gets its configuration is of another platform, or was given up.
        let old = self.incomplete.len().saturating_sub(IMAGES_MAX);
        self.incomplete.drain(..old);
    }

    fn learn(&mut self, config: &[u8], manifest: &Manifest, seen: SystemTime) {
        let Ok(config) = ImageConfig::decode(config) else {
            return;
        };
        if config.expect_layers(manifest.layers.len()).is_err() || self.images >= IMAGES_MAX {
            return;
        }
        let image = Arc::new(PulledImage {
            pull: PullId(self.images as u64),
            layers: manifest.layers.clone(),
            seen,
        });
        self.images += 1;
        for (index, chain) in chain_ids(&config.diff_ids).into_iter().enumerate() {
            let known = self.layers.get(&chain);
            if known.is_none_or(|(known, _)| known.seen <= image.seen) {
                self.layers.insert(chain, (Arc::clone(&image), index));
            }
        }
    }

    fn manifest(&self, digest: &Digest) -> Option<(Manifest, SystemTime)> {
        let (bytes, seen) = self.document(digest)?;
        let manifest = Manifest::decode(&bytes).ok()?;
        (!manifest.layers.is_empty()).then_some((manifest, seen))
    }

    /// Reads a blob that may be a document, and says since when it is there.
    fn document(&self, digest: &Digest) -> Option<(Vec<u8>, SystemTime)> {
        let path = self.blobs.join(digest.hex());
        let of = fs::metadata(&path).ok()?;
        if of.len() > CONFIG_MAX {
            // It is larger than any document: a layer.
            return None;
        }
        let mut file = File::open(path).ok()?;
        let mut bytes = vec![0];
        file.read_exact(&mut bytes).ok()?;
        if bytes != b"{" {
            return None;
        }
        file.take(CONFIG_MAX).read_to_end(&mut bytes).ok()?;
        Some((bytes, of.modified().ok()?))
    }
}

/// Returns how much has arrived of the blobs that are being downloaded.
///
/// containerd has a directory for each, with the reference in `ref`, which ends with the digest, and the data so
/// far in `data`. A blob that is completed meanwhile is missing here: look for complete blobs after
/// this.
pub(super) fn ingested(blobs: &Path) -> HashMap<Digest, u64> {
    let dir = blobs.ancestors().nth(2).map(|dir| dir.join("ingest"));
    let entries = dir.and_then(|dir| fs::read_dir(dir).ok());
    let entries = entries.into_iter().flatten().flatten().take(INGESTS_MAX);
    entries.filter_map(|entry| ingest(&entry.path())).collect()
}

fn ingest(dir: &Path) -> Option<(Digest, u64)> {
    let mut name = String::new();
    let file = File::open(dir.join("ref")).ok()?;
    file.take(REF_MAX).read_to_string(&mut name).ok()?;
    let digest = name.get(name.rfind("sha256:")?..)?.parse().ok()?;
    Some((digest, fs::metadata(dir.join("data")).ok()?.len()))
}

/// Returns when a complete blob was written, in nanoseconds of some clock; `None` if it is not complete.
pub(super) fn arrived(blobs: &Path, blob: &Digest) -> Option<i128> {
    let of = fs::metadata(blobs.join(blob.hex())).ok()?;
    Some(i128::from(of.ctime()) * 1_000_000_000 + i128::from(of.ctime_nsec()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_being_downloaded_is_counted() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("content");
        let blobs = root.join("blobs/sha256");
        assert!(ingested(&blobs).is_empty());
        let write = |name: &str, of: &str, data: Option<usize>| {
            let ingest = root.join("ingest").join(name);
            fs::create_dir_all(&ingest).unwrap();
            fs::write(ingest.join("ref"), of).unwrap();
            if let Some(len) = data {
                fs::write(ingest.join("data"), vec![1; len]).unwrap();
            }
        };
        let [one, other, lost] = ["a", "b", "c"].map(|hex| format!("sha256:{}", hex.repeat(64)));
        write("1", &format!("k8s.io/1/layer-{one}"), Some(100));
        write("2", &format!("default/2/layer-{other}"), Some(0));
        write("3", &format!("default/2/layer-{lost}"), None);
        write("4", "default/2/upload", Some(7));
        let expected = [(one.parse().unwrap(), 100), (other.parse().unwrap(), 0)];
        assert_eq!(ingested(&blobs), HashMap::from(expected));
    }
}
