//! The data of a start comes instead of the layers, and whatever is wrong with it, what is read is right.

#![expect(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    reason = "tests"
)]

use std::fs;
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use blockimages::convert::ConvertOptions;
use blockimages::manage::{self, NewImage, Top, UpperKind};
use blockimages::plan::StartPlan;
use blockimages::start_data::{LayerContent, StartDataError, StartDataRef, make, verify};
use blockimages::{
    Background, BlobCache, CacheConfig, CachedBlobs, ContentRoot, DeviceConfig, LayeredDevice,
    Origin, ReadAt, Start, StartRecorder, open_image, open_image_from,
};
use blocks::{BlockDevice as _, Digest, Durability};
use lsmt::{MemoryStorage, Storage as _, open_content};
use ranges::testing::MemoryPlace;
use ranges::{Fault, FaultKind};

type Asked = Arc<Mutex<Vec<Range<u64>>>>;

/// A blob of the registry, and what was asked for of it.
#[derive(Clone)]
struct Served {
    bytes: Arc<Vec<u8>>,
    digest: Digest,
    asked: Asked,
}

impl Served {
    fn new(bytes: Vec<u8>) -> Self {
        Self {
            digest: oci::digest_of(&bytes),
            bytes: Arc::new(bytes),
            asked: Asked::default(),
        }
    }

    /// Has the registry send other bytes under the same name.
    fn sending(self, bytes: Vec<u8>) -> Self {
        Self {
            bytes: Arc::new(bytes),
            ..self
        }
    }

    fn named(&self) -> StartDataRef {
        StartDataRef {
            digest: self.digest,
            size: self.bytes.len() as u64,
        }
    }

    fn answer(&self, range: Range<u64>) -> Result<Vec<u8>, Fault> {
        self.asked.lock().unwrap().push(range.clone());
        let bytes = self.bytes.get(range.start as usize..range.end as usize);
        bytes
            .map(<[u8]>::to_vec)
            .ok_or_else(|| Fault::new(FaultKind::Absent, "it is not there"))
    }

    fn asked_bytes(&self) -> u64 {
        let asked = self.asked.lock().unwrap();
        asked.iter().map(|range| range.end - range.start).sum()
    }
}

/// A machine that has opened the image.
struct Machine {
    device: LayeredDevice,
    blobs: CachedBlobs,
}

impl Machine {
    fn new(
        layer: &Served,
        content: Option<ContentRoot>,
        data: Option<&Served>,
        start: &Start,
    ) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let (digest, size) = (layer.digest, layer.bytes.len());
        let content = content.map_or_else(String::new, |root| {
            format!(r#", "yolofsContent": "{root}""#)
        });
        let config = format!(
            r#"{{"repoBlobUrl":"https://registry.example/v2/an/image/blobs",
                "lowers":[{{"digest":"{digest}","size":{size}{content}}}]}}"#
        );
        fs::write(dir.path().join("config.v1.json"), config).unwrap();
        let cache = BlobCache::open(&dir.path().join("cache"), CacheConfig::default()).unwrap();
        let served = [Some(layer.clone()), data.cloned()];
        let make = move |_: &oci::Reference, digest| {
            let mut served = served.iter().flatten();
            let served = served.find(|served| served.digest == digest).cloned();
            let answer = move |range| match &served {
                Some(served) => served.answer(range),
                None => Err(Fault::new(FaultKind::Absent, "it is not there")),
            };
            Ok(Origin {
                servers: vec!["memory".to_owned()],
                places: vec![Arc::new(MemoryPlace {
                    answer: Arc::new(answer),
                    parallel: 4,
                })],
            })
        };
        let background = match start.plan.is_some() || data.is_some() {
            true => Background::Plan,
            false => Background::Nothing,
        };
        let blobs = CachedBlobs::new(cache, background, Box::new(make));
        let data = data.map(Served::named).or(start.data);
        let start = Start {
            data,
            ..start.clone()
        };
        let device = open_image_from(dir.path(), Some(&blobs), &start).unwrap();
        Self { device, blobs }
    }

    /// Waits until all that is known of the start came.
    fn wait(&self) -> bool {
        let began = std::time::Instant::now();
        self.blobs
            .wait_for_plans(&mut || began.elapsed().as_secs() < 30)
    }

    /// Reads two of three parts of the first two thirds of the device, the last ones first, and returns the hash of what they
    /// are.
    fn start(&self) -> blake3::Hash {
        let parts = (0..BLOCKS * 2 / 3).rev().filter(|first| first % 24 == 0);
        self.read(parts.map(|first| (first, 16)))
    }

    /// Reads all of it.
    fn all(&self) -> blake3::Hash {
        self.read((0..BLOCKS).step_by(16).map(|first| (first, 16)))
    }

    fn read(&self, parts: impl Iterator<Item = (u64, u64)>) -> blake3::Hash {
        let mut hasher = blake3::Hasher::new();
        for (first, blocks) in parts {
            let mut bytes = vec![0; blocks as usize * 4096];
            self.device.read_at(first * 4096, &mut bytes).unwrap();
            hasher.update(&bytes);
        }
        hasher.finalize()
    }
}

fn memory(bytes: &[u8]) -> Arc<MemoryStorage> {
    let storage = MemoryStorage::default();
    storage.write_at(bytes, 0).unwrap();
    Arc::new(storage)
}

/// Blocks of the device.
const BLOCKS: u64 = 1200;

/// Makes a sealed layer whose blocks are of words, so that they can be compressed.
fn layer() -> Vec<u8> {
    let dir = tempfile::tempdir().unwrap();
    let new = NewImage::from(Top::Pair(UpperKind::Append)).sized(BLOCKS * 4096);
    manage::create(dir.path(), DeviceConfig::default(), new).unwrap();
    let device = open_image(dir.path(), None).unwrap();
    for number in 0..BLOCKS {
        // A gap now and then, as a device has them.
        if number % 100 == 99 {
            continue;
        }
        let words = (0..).flat_map(|word: u64| {
            let seed = blake3::hash(&(number * 1000 + word / 5).to_le_bytes());
            [&seed.as_bytes()[..8], b" of the same content "].concat()
        });
        let block: Vec<u8> = words.take(4096).collect();
        let written = device.write_at(number * 4096, &block, Durability::Flushed);
        written.unwrap();
    }
    device.flush().unwrap();
    drop(device);
    let options = ConvertOptions::default().blob();
    let layers = manage::commit(dir.path(), None, options, b"").unwrap();
    fs::read(&layers[0].file).unwrap()
}

/// An image of one layer, whose start was recorded.
struct Recorded {
    layer: Served,
    content: Arc<dyn ReadAt>,
    root: ContentRoot,
    plan: StartPlan,
    /// What a start reads, and what all of it is.
    right: [blake3::Hash; 2],
}

fn recorded() -> Recorded {
    let blob = layer();
    let content = open_content(memory(&blob)).unwrap();
    let root = ContentRoot::of(&*content).unwrap();
    let layer = Served::new(blob);
    let recorder = StartRecorder::default();
    let start = Start {
        recorder: Some(recorder.clone()),
        ..Start::default()
    };
    let machine = Machine::new(&layer, None, None, &start);
    let started = machine.start();
    let plan = StartPlan::of_trace(&recorder.trace(), &[Some(layer.digest)], 7);
    let right = [started, machine.all()];
    layer.asked.lock().unwrap().clear();
    Recorded {
        layer,
        content,
        root,
        plan,
        right,
    }
}

impl Recorded {
    fn made(&self) -> Vec<u8> {
        self.made_of(Arc::clone(&self.content)).unwrap()
    }

    fn made_of(&self, reader: Arc<dyn ReadAt>) -> Result<Vec<u8>, StartDataError> {
        let layer = LayerContent {
            digest: self.layer.digest,
            content: self.root,
            reader,
        };
        Ok(make(&self.plan, &[layer])?.unwrap())
    }

    fn start(&self) -> Start {
        Start {
            plan: Some(self.plan.trace_of(&[Some(self.layer.digest)])),
            ..Start::default()
        }
    }
}

#[test]
fn a_start_takes_its_data_and_nothing_of_the_layers() {
    let recorded = recorded();
    let data = Served::new(recorded.made());
    let machine = Machine::new(
        &recorded.layer,
        Some(recorded.root),
        Some(&data),
        &recorded.start(),
    );
    assert!(machine.wait());
    assert_eq!(machine.start(), recorded.right[0]);
    assert_eq!(recorded.layer.asked_bytes(), 0);
    // Each byte of it once, and it is less than what the plan has of the layer.
    assert_eq!(data.asked_bytes(), data.bytes.len() as u64);
    let planned = recorded
        .layer
        .clone()
        .sending(recorded.layer.bytes.to_vec());
    let machine = Machine::new(&planned, None, None, &recorded.start());
    assert!(machine.wait());
    assert!(data.asked_bytes() < planned.asked_bytes());
    // What is not in it comes from the layer.
    let machine = Machine::new(
        &recorded.layer,
        Some(recorded.root),
        Some(&data),
        &recorded.start(),
    );
    assert_eq!(machine.all(), recorded.right[1]);
    assert!(recorded.layer.asked_bytes() > 0);
    assert_eq!(machine.start(), recorded.right[0]);
}

#[test]
fn it_is_made_the_same_each_time_and_its_beginning_is_kept() {
    let recorded = recorded();
    let made = recorded.made();
    assert_eq!(made, recorded.made());
    assert_eq!(&made[..8], b"YOLOBS\0\x01");
    let trusted = |digest: &Digest| (*digest == recorded.layer.digest).then_some(recorded.root);
    // All that the start read.
    assert_eq!(verify(&made, &trusted).unwrap(), recorded.plan.bytes());
    assert_eq!(verify(&made, &|_| None).unwrap(), 0);
    let mut damaged = made.clone();
    damaged[made.len() - 1] ^= 1;
    verify(&damaged, &trusted).unwrap_err();
    verify(&made[..made.len() - 1], &trusted).unwrap_err();
}

#[test]
fn what_the_manifest_does_not_name_is_not_used() {
    let recorded = recorded();
    let other = ContentRoot([7; 32]);
    for root in [None, Some(other)] {
        let data = Served::new(recorded.made());
        let machine = Machine::new(&recorded.layer, root, Some(&data), &recorded.start());
        assert!(machine.wait());
        let before = recorded.layer.asked_bytes();
        assert!(before > 0, "the plan comes from the layer");
        assert_eq!(machine.start(), recorded.right[0]);
        assert_eq!(machine.all(), recorded.right[1]);
    }
    // Nor is it made of another content.
    let mut bytes = recorded.layer.bytes.to_vec();
    let content = open_content(memory(&bytes)).unwrap();
    let mut plain = vec![0; content.size().unwrap() as usize];
    content.read_at(&mut plain, 0).unwrap();
    plain[0] ^= 1;
    let why = recorded.made_of(memory(&plain)).unwrap_err();
    assert!(matches!(why, StartDataError::Content(_)), "{why}");
    bytes.clear();
}

/// A content with another byte in a block that starts read: the layer's header, trailer and index are as they were, so that it is
/// opened by the data. It is the true one after so many bytes were read.
struct Lying {
    content: Arc<dyn ReadAt>,
    left: AtomicU64,
}

/// The changed byte.
const CHANGED: u64 = 40 * 4096 + 5;

impl ReadAt for Lying {
    fn size(&self) -> io::Result<u64> {
        self.content.size()
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        self.content.read_at(buffer, offset)?;
        let left = self.left.load(Ordering::Relaxed);
        self.left
            .store(left.saturating_sub(buffer.len() as u64), Ordering::Relaxed);
        if let Some(at) = CHANGED.checked_sub(offset).filter(|_| left > 0)
            && let Some(byte) = buffer.get_mut(at as usize)
        {
            *byte ^= 1;
        }
        Ok(())
    }
}

impl Recorded {
    fn lying_for(&self, bytes: u64) -> Arc<Lying> {
        Arc::new(Lying {
            content: Arc::clone(&self.content),
            left: AtomicU64::new(bytes),
        })
    }

    /// Has a machine start by this data, and checks that what it reads is right and comes from the layer.
    fn starts_without(&self, data: Vec<u8>) {
        let trusted = |_: &Digest| Some(self.root);
        assert!(verify(&data, &trusted).ok().is_none_or(|bytes| bytes == 0));
        let data = Served::new(data);
        let machine = Machine::new(&self.layer, Some(self.root), Some(&data), &self.start());
        assert_eq!(machine.start(), self.right[0]);
        assert_eq!(machine.all(), self.right[1]);
        assert!(self.layer.asked_bytes() > 0);
    }
}

/// Whoever may push to the repository makes data with valid tables and hashes, and another block.
#[test]
fn blocks_that_are_not_those_of_the_layer_are_not_used() {
    let recorded = recorded();
    // All that is compressed is read first, and then what is hashed.
    let lying = recorded.lying_for(recorded.plan.bytes());
    recorded.starts_without(recorded.made_of(lying).unwrap());
}

/// The same with the hashes of another content, and the layer's own as that of all of it.
#[test]
fn hashes_of_another_content_are_not_used() {
    let recorded = recorded();
    let lying = recorded.lying_for(u64::MAX);
    let layer = LayerContent {
        digest: recorded.layer.digest,
        content: ContentRoot::of(&*lying).unwrap(),
        reader: lying,
    };
    let mut data = make(&recorded.plan, &[layer]).unwrap().unwrap();
    // docs/block-start-format.md: the layer's hash, and the checksum of header and tables.
    data[96..128].copy_from_slice(&recorded.root.0);
    let count = |at: usize| u32::from_le_bytes(data[at..at + 4].try_into().unwrap()) as usize;
    let tables = 64 + 72 * count(8) + 16 * count(12) + 4 * count(16) + 32 * count(20);
    let sum = crc32c::crc32c_append(crc32c::crc32c(&data[..60]), &data[64..tables]);
    data[60..64].copy_from_slice(&sum.to_le_bytes());
    recorded.starts_without(data);
}

#[test]
fn damage_anywhere_makes_a_start_slower_and_nothing_else() {
    let recorded = recorded();
    let data = Served::new(recorded.made());
    let len = data.bytes.len();
    let places = (0..len).step_by(len / 20).chain([len - 1]);
    for at in places {
        let mut damaged = data.bytes.to_vec();
        damaged[at] ^= 0x10;
        let damaged = data.clone().sending(damaged);
        let machine = Machine::new(
            &recorded.layer,
            Some(recorded.root),
            Some(&damaged),
            &recorded.start(),
        );
        assert_eq!(machine.start(), recorded.right[0], "byte {at}");
    }
}

#[test]
fn data_that_the_registry_has_no_more_is_done_without() {
    let recorded = recorded();
    let start = Start {
        data: Some(StartDataRef {
            digest: Digest([9; 32]),
            size: 100_000,
        }),
        ..recorded.start()
    };
    let machine = Machine::new(&recorded.layer, Some(recorded.root), None, &start);
    assert_eq!(machine.start(), recorded.right[0]);
    assert!(recorded.layer.asked_bytes() > 0);
}
