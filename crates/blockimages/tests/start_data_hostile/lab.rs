//! An image whose start was recorded, a registry that does what a test says, and machines that open the image.

use std::fs;
use std::ops::Range;
use std::path::Path;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use blockimages::convert::ConvertOptions;
use blockimages::manage::{self, NewImage, Top, UpperKind};
use blockimages::start_data::{StartDataRef, verify};
use blockimages::{
    Background, BlobCache, CacheConfig, CachedBlobs, ContentRoot, DeviceConfig, LayeredDevice,
    Origin, ReadAt as _, Start, StartRecorder, Trace, open_image, open_image_from,
};
use blocks::{BlockDevice as _, Digest, Durability};
use lsmt::{MemoryStorage, Storage as _, open_content};
use ranges::testing::MemoryPlace;
use ranges::{Fault, FaultKind};

use super::forged::{BLOCK, BLOCKS, Forged, disclose};

/// An image of one layer, and what is known of it.
pub(crate) struct Lab {
    pub(crate) layer: Vec<u8>,
    pub(crate) digest: Digest,
    pub(crate) content: Vec<u8>,
    pub(crate) root: ContentRoot,
    pub(crate) plan: Trace,
    /// All of the device.
    pub(crate) right: Vec<u8>,
}

impl Lab {
    pub(crate) fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let new = NewImage::from(Top::Pair(UpperKind::Append)).sized(BLOCKS * BLOCK);
        manage::create(dir.path(), DeviceConfig::default(), new).unwrap();
        let device = open_image(dir.path(), None).unwrap();
        let mut bytes = vec![0; (BLOCKS * BLOCK) as usize];
        blake3::Hasher::new().finalize_xof().fill(&mut bytes);
        // Half of each block can be compressed.
        for block in bytes.chunks_mut(BLOCK as usize) {
            block[2048..].fill(7);
        }
        device.write_at(0, &bytes, Durability::Flushed).unwrap();
        device.flush().unwrap();
        drop(device);
        let options = ConvertOptions::default().blob();
        let layers = manage::commit(dir.path(), None, options, b"").unwrap();
        let layer = fs::read(&layers[0].file).unwrap();
        let storage = MemoryStorage::default();
        storage.write_at(&layer, 0).unwrap();
        let reader = open_content(Arc::new(storage)).unwrap();
        let mut content = vec![0; reader.size().unwrap() as usize];
        reader.read_at(&mut content, 0).unwrap();
        let mut lab = Self {
            digest: oci::digest_of(&layer),
            layer,
            root: ContentRoot(*blake3::hash(&content).as_bytes()),
            content,
            plan: Trace {
                dialect: blockimages::TraceDialect::Overlaybd,
                reads: Vec::new(),
            },
            right: bytes,
        };
        let recorder = StartRecorder::default();
        let start = Start {
            recorder: Some(recorder.clone()),
            ..Start::default()
        };
        let machine = lab.opened(Registry::default(), &start);
        machine.check(&lab);
        lab.plan = recorder.trace();
        lab
    }

    pub(crate) fn len(&self) -> u64 {
        self.content.len() as u64
    }

    /// Returns right data of these blocks.
    pub(crate) fn of_blocks(&self, runs: &[(u64, u64)]) -> Forged {
        let mut pieces = Vec::new();
        for (start, end) in runs.iter().copied() {
            let mut first = start;
            while first < end {
                let fits = |n: &u64| first.is_multiple_of(*n) && first + n <= end;
                let blocks = [16, 8, 4, 2, 1].into_iter().find(fits).unwrap();
                // Four pieces of 16 blocks at most.
                pieces.push((0, blocks as u16, pieces.len() as u32 / 4, first));
                first += blocks;
            }
        }
        self.of_pieces(&pieces)
    }

    pub(crate) fn of_pieces(&self, pieces: &[(u16, u16, u32, u64)]) -> Forged {
        let range = |piece: &(u16, u16, u32, u64)| {
            let start = piece.3 * BLOCK;
            start..(start + u64::from(piece.1) * BLOCK).min(self.len())
        };
        let ranges: Vec<_> = pieces.iter().map(range).collect();
        let mut hashes = Vec::new();
        disclose(&self.content, 0..self.len(), &ranges, &mut hashes);
        let mut frames = vec![Vec::new(); pieces.last().map_or(0, |last| last.2 as usize + 1)];
        for (piece, range) in pieces.iter().zip(&ranges) {
            frames[piece.2 as usize]
                .extend(&self.content[range.start as usize..range.end as usize]);
        }
        Forged {
            layers: vec![(self.digest.0, self.root.0, self.len())],
            pieces: pieces.to_vec(),
            frames: frames.iter().map(|frame| squeezed(frame)).collect(),
            hashes,
            more: [0; 4],
            reserved: 0,
        }
    }

    pub(crate) fn right(&self) -> Forged {
        self.of_blocks(&[(0, self.len().div_ceil(BLOCK))])
    }

    pub(crate) fn opened(&self, registry: Registry, start: &Start) -> Machine {
        let dir = tempfile::tempdir().unwrap();
        self.opened_in(dir.path(), registry, start)
    }

    pub(crate) fn opened_in(&self, dir: &Path, registry: Registry, start: &Start) -> Machine {
        let (digest, root, size) = (self.digest, self.root, self.layer.len());
        let config = format!(
            r#"{{"repoBlobUrl":"https://registry.example/v2/an/image/blobs",
                "lowers":[{{"digest":"{digest}","size":{size},"yolofsContent":"{root}"}}]}}"#
        );
        fs::write(dir.join("config.v1.json"), config).unwrap();
        let config = CacheConfig {
            // A quarter of it is what a reader may wait for a hint.
            read_deadline: Duration::from_secs(if registry.is_slow() { 8 } else { 60 }),
            limit_bytes: registry
                .limit
                .unwrap_or_else(|| CacheConfig::default().limit_bytes),
            ..CacheConfig::default()
        };
        let cache = BlobCache::open(&dir.join("cache"), config).unwrap();
        let registry = Arc::new(registry);
        registry.put(digest, self.layer.clone());
        let served = Arc::clone(&registry);
        let make = move |_: &oci::Reference, digest| {
            let served = Arc::clone(&served);
            Ok(Origin {
                servers: vec!["memory".to_owned()],
                places: vec![Arc::new(MemoryPlace {
                    answer: Arc::new(move |range| served.answer(digest, range)),
                    parallel: 16,
                })],
            })
        };
        let background = match start.plan.is_some() || start.data.is_some() {
            true => Background::Plan,
            false => Background::Nothing,
        };
        let blobs = CachedBlobs::new(cache, background, Box::new(make));
        let device = open_image_from(dir, Some(&blobs), start).unwrap();
        Machine {
            device,
            blobs,
            registry,
        }
    }

    /// Opens it with data of its start.
    pub(crate) fn started(&self, data: Vec<u8>) -> Machine {
        let registry = Registry::default();
        let named = StartDataRef {
            digest: oci::digest_of(&data),
            size: data.len() as u64,
        };
        registry.put(named.digest, data);
        self.opened(registry, &self.start(named))
    }

    pub(crate) fn start(&self, data: StartDataRef) -> Start {
        Start {
            plan: Some(self.plan.clone()),
            data: Some(data),
            ..Start::default()
        }
    }

    pub(crate) fn verify(&self, data: &[u8]) -> Option<u64> {
        verify(data, &|digest| {
            (*digest == self.digest).then_some(self.root)
        })
        .ok()
    }
}

pub(crate) fn squeezed(bytes: &[u8]) -> Vec<u8> {
    zstd::bulk::compress(bytes, 3).unwrap()
}

/// What it does; with 0 it answers.
pub(crate) const STALLS: u8 = 1;
pub(crate) const FAILS: u8 = 2;

/// What the registry has, and what it does about other blobs than the layer.
#[derive(Default)]
pub(crate) struct Registry {
    pub(crate) blobs: Mutex<Vec<(Digest, Arc<Vec<u8>>)>>,
    pub(crate) asked: Mutex<Vec<(Digest, Range<u64>)>>,
    /// From which byte of the data on.
    pub(crate) does: (AtomicU8, u64),
    pub(crate) over: (Mutex<bool>, Condvar),
    /// Of the cache of who opens the image.
    pub(crate) limit: Option<u64>,
}

impl Registry {
    pub(crate) fn that(does: u8, from: u64) -> Self {
        Self {
            does: (AtomicU8::new(does), from),
            ..Self::default()
        }
    }

    pub(crate) fn is_slow(&self) -> bool {
        self.does.0.load(Ordering::SeqCst) == STALLS
    }

    pub(crate) fn put(&self, digest: Digest, bytes: Vec<u8>) {
        self.blobs.lock().unwrap().push((digest, Arc::new(bytes)));
    }

    pub(crate) fn answer(&self, digest: Digest, range: Range<u64>) -> Result<Vec<u8>, Fault> {
        self.asked.lock().unwrap().push((digest, range.clone()));
        let blobs = self.blobs.lock().unwrap().clone();
        // What is past the end of the layer is not the layer's.
        let layer = blobs
            .last()
            .map(|(layer, bytes)| (layer, bytes.len() as u64));
        let is_layer = layer.is_some_and(|(layer, len)| *layer == digest && range.end <= len);
        if !is_layer && range.end > self.does.1 {
            match self.does.0.load(Ordering::SeqCst) {
                STALLS => {
                    let mut over = self.over.0.lock().unwrap();
                    while !*over {
                        over = self.over.1.wait(over).unwrap();
                    }
                }
                FAILS => return Err(Fault::new(FaultKind::Absent, "it is not there")),
                _ => {}
            }
        }
        let known = blobs.iter().find(|(known, _)| *known == digest);
        let part = known.and_then(|(_, bytes)| bytes.get(range.start as usize..range.end as usize));
        part.map(<[u8]>::to_vec)
            .ok_or_else(|| Fault::new(FaultKind::Absent, "it is not there"))
    }

    pub(crate) fn asked_of(&self, digest: Digest) -> u64 {
        let asked = self.asked.lock().unwrap();
        let own = asked.iter().filter(|(of, _)| *of == digest);
        own.map(|(_, range)| range.end - range.start).sum()
    }
}

pub(crate) struct Machine {
    pub(crate) device: LayeredDevice,
    pub(crate) blobs: CachedBlobs,
    pub(crate) registry: Arc<Registry>,
}

impl Drop for Machine {
    fn drop(&mut self) {
        *self.registry.over.0.lock().unwrap() = true;
        self.registry.over.1.notify_all();
    }
}

impl Machine {
    pub(crate) fn check(&self, lab: &Lab) {
        let mut bytes = vec![0; lab.right.len()];
        for (number, part) in bytes.chunks_mut(3 * BLOCK as usize).enumerate() {
            self.device
                .read_at(number as u64 * 3 * BLOCK, part)
                .unwrap();
        }
        assert!(bytes == lab.right, "other bytes");
    }

    pub(crate) fn wait(&self) -> bool {
        let began = Instant::now();
        self.blobs
            .wait_for_plans(&mut || began.elapsed().as_secs() < 30)
    }
}
