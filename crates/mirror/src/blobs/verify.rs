//! Reads all complete blobs and compares them with their digests, to find damage before a client does.

use std::fs::File;
use std::io::Read as _;
use std::ops::ControlFlow;

use super::{BlobCache, BlobDigest, BlobKey, Stored};

/// What [`BlobCache::verify`] found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VerifiedBlobs {
    /// Blobs that were read.
    pub blobs: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Damaged blobs, which were removed.
    pub damaged: Vec<BlobDigest>,
}

impl BlobCache {
    /// Reads every complete blob, and removes those whose digests differ. The cache can be used
    /// meanwhile. Calls `watch` now and then with the number of bytes that were read, and stops
    /// when it breaks.
    pub fn verify(&self, watch: &mut dyn FnMut(u64) -> ControlFlow<()>) -> VerifiedBlobs {
        let mut verified = VerifiedBlobs::default();
        let keys: Vec<(BlobKey, Stored)> = {
            let state = self.state.lock();
            let whole = state.whole.iter();
            whole.map(|(key, stored)| (key.clone(), *stored)).collect()
        };
        let mut buffer = vec![0; 1 << 20];
        'blobs: for (key, stored) in keys {
            // Removed since: nobody waits for it.
            let Ok(mut file) = File::open(self.whole_path(&key)) else {
                continue;
            };
            let mut hasher = key.digest.algorithm().hasher();
            let is_read = loop {
                if watch(verified.bytes).is_break() {
                    break 'blobs;
                }
                match file.read(&mut buffer) {
                    Ok(0) => break true,
                    Ok(count) => {
                        hasher.update(&buffer[..count]);
                        verified.bytes += count as u64;
                    }
                    Err(error) => {
                        log::error!("{key} cannot be read: {error}");
                        break false;
                    }
                }
            };
            verified.blobs += 1;
            if !is_read || hasher.finish() != key.digest {
                log::error!("{key} is damaged on disk: removed");
                self.remove_broken(&key, &stored);
                verified.damaged.push(key.digest);
            }
        }
        verified
    }
}
