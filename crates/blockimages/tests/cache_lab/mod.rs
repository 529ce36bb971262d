//! A cache, and a blob in memory as its origin.

use std::fs;
use std::ops::Range;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use blockimages::{BlobCache, CacheConfig, CachedBlob, Origin};
use blocks::Digest;
use lsmt::ReadAt as _;
use ranges::Fault;
use ranges::testing::MemoryPlace;

pub(crate) const CHUNK: u64 = 4096;

/// Writes the configuration of an image in `dir` whose only layer is this blob of a registry.
#[allow(
    clippy::allow_attributes,
    dead_code,
    reason = "not all tests open images"
)]
pub(crate) fn write_config(dir: &Path, blob: &[u8]) {
    let text = format!(
        r#"{{"repoBlobUrl":"https://registry.example/v2/some/image/blobs",
            "lowers":[{{"digest":"{}","size":{}}}]}}"#,
        oci::digest_of(blob),
        blob.len()
    );
    fs::write(dir.join("config.v1.json"), text).unwrap();
}

/// What an origin does with a request, by its number from 0 on.
pub(crate) type Whim = Box<dyn Fn(usize, &mut Vec<u8>) -> Result<(), Fault> + Send + Sync>;

pub(crate) type Asked = Arc<Mutex<Vec<Range<u64>>>>;

/// Returns the origin of a blob in memory, which notes what it is asked for.
pub(crate) fn memory(blob: Arc<Vec<u8>>, asked: Asked, whim: Whim) -> Origin {
    let answer = move |range: Range<u64>| {
        let number = {
            let mut asked = asked.lock().unwrap();
            asked.push(range.clone());
            asked.len() - 1
        };
        let mut bytes = blob[range.start as usize..range.end as usize].to_vec();
        whim(number, &mut bytes)?;
        Ok(bytes)
    };
    Origin {
        servers: vec!["memory".to_owned()],
        places: vec![Arc::new(MemoryPlace {
            answer: Arc::new(answer),
            parallel: 1,
        })],
    }
}

pub(crate) struct Lab {
    pub(crate) dir: tempfile::TempDir,
    pub(crate) config: CacheConfig,
    pub(crate) blob: Arc<Vec<u8>>,
    pub(crate) asked: Asked,
}

impl Lab {
    pub(crate) fn new(len: usize) -> Self {
        let blob: Vec<u8> = (0..len).map(|i| (i / 251 + i % 249) as u8).collect();
        Self {
            dir: tempfile::tempdir().unwrap(),
            config: CacheConfig {
                limit_bytes: 1 << 30,
                chunk_bytes: CHUNK as u32,
                read_deadline: Duration::from_secs(30),
            },
            blob: Arc::new(blob),
            asked: Arc::default(),
        }
    }

    pub(crate) fn digest(&self) -> Digest {
        oci::digest_of(&self.blob)
    }

    pub(crate) fn cache(&self) -> Arc<BlobCache> {
        BlobCache::open(&self.dir.path().join("cache"), self.config).unwrap()
    }

    pub(crate) fn open(&self, cache: &Arc<BlobCache>, whim: Whim) -> Arc<CachedBlob> {
        let origin = memory(Arc::clone(&self.blob), Arc::clone(&self.asked), whim);
        let size = self.blob.len() as u64;
        cache.blob(self.digest(), size, origin).unwrap()
    }

    /// Returns what was asked since the last call, in order.
    pub(crate) fn asked(&self) -> Vec<Range<u64>> {
        std::mem::take(&mut *self.asked.lock().unwrap())
    }

    pub(crate) fn check(&self, blob: &CachedBlob, range: Range<u64>) {
        let mut read = vec![0xEE; (range.end - range.start) as usize];
        blob.read_at(&mut read, range.start).unwrap();
        let expected = &self.blob[range.start as usize..range.end as usize];
        assert!(read == expected, "{range:?} differs");
    }

    pub(crate) fn data(&self) -> std::path::PathBuf {
        let mut entries = fs::read_dir(self.dir.path().join("cache")).unwrap();
        let dir = entries.find_map(|entry| {
            let path = entry.unwrap().path();
            path.is_dir().then_some(path)
        });
        dir.unwrap().join("data")
    }
}

pub(crate) fn honest() -> Whim {
    Box::new(|_, _| Ok(()))
}
