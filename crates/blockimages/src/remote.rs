//! Layers that are fetched on demand: from a registry through the cache, checked, and fetched again where
//! they are wrong.

use std::io;
use std::ops::Range;
use std::sync::Arc;

use blocks::Digest;
use lsmt::{Layer, LsmtError, ReadAt, Window, ZFile};
use parking_lot::Mutex;

use crate::cache::{BlobCache, CachedBlob, Filler};
use crate::origin::repository_of;
use crate::{BlobSource, ImageError, LayerStart, Origin, RegistryOrigin};

/// How often what is wrong is fetched again before a read fails.
const REFETCHES: usize = 2;

/// The longest blob: its chunks have 32-bit numbers, and this is more than registries take.
const BLOB_MAX_BYTES: u64 = 1 << 44;

/// Makes the origin of a blob, of the address of its repository and its digest.
pub type MakeOrigin = dyn Fn(&oci::Reference, Digest) -> io::Result<Box<dyn Origin>> + Send + Sync;

/// Opens blobs of registries through a cache.
pub struct CachedBlobs {
    cache: Arc<BlobCache>,
    make_origin: Box<MakeOrigin>,
    /// What is fetched in the background, if that is wanted.
    fillers: Option<Mutex<Vec<Filler>>>,
}

impl std::fmt::Debug for CachedBlobs {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CachedBlobs")
            .field("cache", &self.cache)
            .finish_non_exhaustive()
    }
}

/// What is fetched that nobody has read yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Background {
    /// Nothing.
    Nothing,
    /// All of each blob.
    Everything,
}

impl CachedBlobs {
    /// Returns a source of blobs, each from the origin that `make_origin` returns.
    #[must_use]
    pub fn new(
        cache: Arc<BlobCache>,
        background: Background,
        make_origin: Box<MakeOrigin>,
    ) -> Self {
        let fillers = match background {
            Background::Nothing => None,
            Background::Everything => Some(Mutex::default()),
        };
        Self {
            cache,
            make_origin,
            fillers,
        }
    }

    /// Returns a source of blobs of registries, each talked to as `config` says for it.
    #[must_use]
    pub fn of_registries(
        cache: Arc<BlobCache>,
        background: Background,
        config: impl Fn(&oci::Reference) -> io::Result<oci::registry::RegistryConfig>
        + Send
        + Sync
        + 'static,
    ) -> Self {
        let make = move |reference: &oci::Reference, digest| -> io::Result<Box<dyn Origin>> {
            let origin = RegistryOrigin::new(reference, digest, &config(reference)?);
            Ok(Box::new(origin.map_err(io::Error::other)?))
        };
        Self::new(cache, background, Box::new(make))
    }
}

impl BlobSource for CachedBlobs {
    fn open(
        &self,
        blob_url: &str,
        digest: &str,
        size: u64,
        start: LayerStart<'_>,
    ) -> Result<Layer, ImageError> {
        let failed = |source: io::Error| ImageError::Origin {
            digest: digest.to_owned(),
            source,
        };
        let parsed: Digest = digest
            .parse()
            .map_err(|error| failed(io::Error::other(error)))?;
        if size == 0 || size > BLOB_MAX_BYTES {
            return Err(failed(io::Error::other(
                "the configuration has no valid size for it",
            )));
        }
        let reference = repository_of(blob_url);
        let reference = reference.map_err(|error| failed(io::Error::other(error)))?;
        let origin = (self.make_origin)(&reference, parsed).map_err(failed)?;
        let blob = self.cache.blob(parsed, size, origin)?;
        let (layer, content) = open_layer(&blob, start).map_err(|error| failed(error.into()))?;
        if let Some(fillers) = &self.fillers {
            let plan = start
                .plan()
                .iter()
                .filter_map(|range| content.stored(range))
                .collect();
            let filler = Filler::start(blob, plan).map_err(failed)?;
            fillers.lock().push(filler);
        }
        Ok(layer)
    }
}

/// Opens the layer in a blob; what cannot be opened is fetched again, in case that it is wrong.
fn open_layer(blob: &Arc<CachedBlob>, start: LayerStart<'_>) -> lsmt::Result<(Layer, BlobContent)> {
    let open = || {
        let content = BlobContent::open(blob)?;
        let layer = Layer::open(start.watched(content.reader()))?;
        Ok((layer, content))
    };
    let mut tries = 0;
    loop {
        match open() {
            Err(error) if is_damage(&error) && tries < REFETCHES => {
                log::warn!(
                    "{} cannot be opened: {error}; it is fetched again",
                    blob.digest()
                );
                blob.distrust(&(0..blob.size().unwrap_or(0)));
                tries += 1;
            }
            other => return other,
        }
    }
}

const fn is_damage(error: &LsmtError) -> bool {
    matches!(
        error,
        LsmtError::Checksum { .. }
            | LsmtError::Compression { .. }
            | LsmtError::Rule { .. }
            | LsmtError::Magic { .. }
            | LsmtError::TooLarge { .. }
    )
}

/// The uncompressed content of a blob.
enum BlobContent {
    /// Nothing in it can be checked before all of it is there.
    Plain(Arc<Window<Arc<CachedBlob>>>, u64),
    Checked(Arc<Checked>),
}

impl BlobContent {
    fn reader(&self) -> Arc<dyn ReadAt> {
        match self {
            Self::Plain(window, _) => Arc::clone(window) as Arc<_>,
            Self::Checked(checked) => Arc::clone(checked) as Arc<_>,
        }
    }

    /// Returns which bytes of the blob a range is in; `None` if it is past the end.
    fn stored(&self, range: &Range<u64>) -> Option<Range<u64>> {
        match self {
            Self::Plain(_, start) => {
                Some(start.saturating_add(range.start)..start.saturating_add(range.end))
            }
            Self::Checked(checked) => {
                let len = usize::try_from(range.end.checked_sub(range.start)?).ok()?;
                checked.compressed(range.start, len).ok()
            }
        }
    }
}

/// The uncompressed content of a blob whose blocks have checksums.
struct Checked {
    blob: Arc<CachedBlob>,
    /// Where the compressed file begins in the blob: there may be a tar around it.
    start: u64,
    file: ZFile<Window<Arc<CachedBlob>>>,
}

impl BlobContent {
    fn open(blob: &Arc<CachedBlob>) -> lsmt::Result<Self> {
        let range = lsmt::blob_range(blob)?;
        let window = Window::new(Arc::clone(blob), range.clone());
        let mut magic = [0; 8];
        if range.end - range.start >= 8 {
            let read = window.read_at(&mut magic, 0);
            read.map_err(|source| LsmtError::Storage {
                doing: "read a blob's first bytes",
                source,
            })?;
        }
        if &magic != b"ZFile\0\x01\0" {
            return Ok(Self::Plain(Arc::new(window), range.start));
        }
        Ok(Self::Checked(Arc::new(Checked {
            blob: Arc::clone(blob),
            start: range.start,
            file: ZFile::open(window)?,
        })))
    }
}

impl Checked {
    fn compressed(&self, offset: u64, len: usize) -> lsmt::Result<Range<u64>> {
        let range = self.file.compressed(offset, len as u64)?;
        Ok(self.start + range.start..self.start + range.end)
    }
}

impl ReadAt for Checked {
    fn size(&self) -> io::Result<u64> {
        self.file.size()
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        let mut tries = 0;
        loop {
            match self.file.read(buffer, offset) {
                Err(error) if is_damage(&error) && tries < REFETCHES => {
                    let digest = self.blob.digest();
                    log::warn!("a block of {digest} is wrong: {error}; it is fetched again");
                    self.blob.distrust(&self.compressed(offset, buffer.len())?);
                    tries += 1;
                }
                other => return Ok(other?),
            }
        }
    }
}
