//! Reading all whole blobs, to find rot before somebody waits for one.

use std::fs::File;
use std::io::Read as _;
use std::ops::ControlFlow;

use super::{BlobCache, BlobDigest, BlobKey};

/// What [`BlobCache::verify`] found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VerifiedBlobs {
    /// Blobs that were read.
    pub blobs: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Those that were damaged, and are gone.
    pub damaged: Vec<BlobDigest>,
}

impl BlobCache {
    /// Reads every whole blob, and removes those that are not what they are called. Others come and
    /// go meanwhile. Tells `watch` how many bytes it has read now and then, and stops when that
    /// says so.
    pub fn verify(&self, watch: &mut dyn FnMut(u64) -> ControlFlow<()>) -> VerifiedBlobs {
        let mut verified = VerifiedBlobs::default();
        let keys: Vec<BlobKey> = self.state.lock().whole.keys().cloned().collect();
        let mut buffer = vec![0; 1 << 20];
        'blobs: for key in keys {
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
                self.remove_whole(&key);
                verified.damaged.push(key.digest);
            }
        }
        verified
    }
}
