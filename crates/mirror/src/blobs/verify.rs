//! Reads all complete blobs and compares them with their digests, to find damage before a client does.

use std::io::{self, ErrorKind, Read as _};
use std::ops::ControlFlow;

use rawio::regular::{self, Links};

use super::{BlobCache, BlobDigest, BlobKey, Stored};

/// What [`BlobCache::verify`] found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VerifiedBlobs {
    /// Blobs that were read, damaged ones too.
    pub blobs: u64,
    /// Bytes that were read.
    pub bytes: u64,
    /// Damaged blobs, which were removed.
    pub damaged: Vec<BlobDigest>,
    /// Blobs that could not be read to their end, and are kept: a disk that fails for a moment has damaged nothing, and the
    /// registry may be away.
    pub unread: Vec<BlobDigest>,
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
        for (key, stored) in keys {
            let bytes = &mut verified.bytes;
            let mut count = |read: &[u8]| {
                *bytes += read.len() as u64;
                watch(*bytes)
            };
            match self.digest_of(&key, &mut buffer, &mut count) {
                Ok(ControlFlow::Break(())) => break,
                Ok(ControlFlow::Continue(found)) => {
                    verified.blobs += 1;
                    if found != key.digest {
                        log::error!("{key} is damaged on disk: removed");
                        self.remove_broken(&key, &stored);
                        verified.damaged.push(key.digest);
                    }
                }
                // Removed since: nobody waits for it.
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                Err(error) => {
                    log::error!("{key} cannot be read, and is kept: {error}");
                    verified.unread.push(key.digest);
                }
            }
        }
        verified
    }

    /// Reads a complete blob, a buffer at a time, and returns the digest of its bytes.
    fn digest_of(
        &self,
        key: &BlobKey,
        buffer: &mut [u8],
        count: &mut dyn FnMut(&[u8]) -> ControlFlow<()>,
    ) -> io::Result<ControlFlow<(), BlobDigest>> {
        let mut file = regular::open(&self.whole_path(key), Links::Followed)?;
        let mut hasher = key.digest.algorithm().hasher();
        loop {
            let read = match file.read(buffer) {
                Ok(len) => &buffer[..len],
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            };
            if count(read).is_break() {
                return Ok(ControlFlow::Break(()));
            }
            if read.is_empty() {
                return Ok(ControlFlow::Continue(hasher.finish()));
            }
            hasher.update(read);
        }
    }
}
