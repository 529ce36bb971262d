//! What a start read is recorded, and comes first the next time.

#![expect(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    reason = "tests"
)]

use std::collections::BTreeSet;
use std::fs;
use std::ops::Range;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use blockimages::{
    Background, BlobCache, CacheConfig, CachedBlobs, LayeredDevice, Origin, Start, StartRecorder,
    manage, open_image_from,
};
use blocks::{BlockDevice as _, Content};
use ranges::testing::MemoryPlace;

const CHUNK: u64 = 4096;

type Asked = Arc<Mutex<Vec<Range<u64>>>>;

/// Returns the origin of a blob in memory, which notes what it is asked for.
fn memory(blob: Arc<Vec<u8>>, asked: Asked) -> Origin {
    let answer = move |range: Range<u64>| {
        asked.lock().unwrap().push(range.clone());
        Ok(blob[range.start as usize..range.end as usize].to_vec())
    };
    Origin {
        servers: vec!["memory".to_owned()],
        places: vec![Arc::new(MemoryPlace {
            answer: Arc::new(answer),
            parallel: 1,
        })],
    }
}

/// One machine that starts the image.
struct Machine {
    cache: Arc<BlobCache>,
    asked: Asked,
    device: LayeredDevice,
    _blobs: CachedBlobs,
}

fn blob() -> Vec<u8> {
    let vectors = Path::new(env!("CARGO_MANIFEST_DIR")).join("../lsmt/tests/vectors");
    fs::read(vectors.join("A.lz4.4k.tar.obd")).unwrap()
}

fn machine(dir: &Path, background: Background, start: &Start) -> Machine {
    let blob = Arc::new(blob());
    let (digest, size) = (oci::digest_of(&blob), blob.len());
    fs::create_dir(dir).unwrap();
    let config = format!(
        r#"{{"repoBlobUrl":"https://registry.example/v2/an/image/blobs",
            "lowers":[{{"digest":"{digest}","size":{size}}}]}}"#
    );
    fs::write(dir.join("config.v1.json"), config).unwrap();
    let config = CacheConfig {
        chunk_bytes: CHUNK as u32,
        ..CacheConfig::default()
    };
    let cache = BlobCache::open(&dir.join("cache"), config).unwrap();
    let asked = Asked::default();
    let told = Arc::clone(&asked);
    let make = move |_: &oci::Reference, _| Ok(memory(Arc::clone(&blob), Arc::clone(&told)));
    let blobs = CachedBlobs::new(Arc::clone(&cache), background, Box::new(make));
    let device = open_image_from(dir, Some(&blobs), start).unwrap();
    Machine {
        cache,
        asked,
        device,
        _blobs: blobs,
    }
}

/// Reads some blocks of the device, the last ones first.
fn start(device: &LayeredDevice) {
    let size = device.info().size;
    let (mut at, mut data) = (0, Vec::new());
    while at < size {
        for extent in device.extents(at..size, 100).unwrap() {
            if extent.content == Content::Data {
                data.extend((at..at + extent.len).step_by(64 << 10));
            }
            at += extent.len;
        }
    }
    assert!(data.len() > 8, "{}", data.len());
    for at in data.into_iter().rev().step_by(7) {
        device.read_at(at, &mut [0; 512]).unwrap();
    }
}

fn chunks(range: &Range<u64>) -> impl Iterator<Item = u64> + use<> {
    range.start / CHUNK..range.end.div_ceil(CHUNK)
}

#[test]
fn what_a_start_read_is_fetched_before_all_else_and_nothing_twice() {
    let dir = tempfile::tempdir().unwrap();
    let recorder = StartRecorder::default();
    let first = Start {
        plan: None,
        recorder: Some(recorder.clone()),
        ..Start::default()
    };
    let recorded = machine(&dir.path().join("1"), Background::Nothing, &first);
    start(&recorded.device);
    let needed: BTreeSet<u64> = recorded
        .asked
        .lock()
        .unwrap()
        .iter()
        .flat_map(chunks)
        .collect();
    let all = (blob().len() as u64).div_ceil(CHUNK);
    assert!((needed.len() as u64) < all / 2, "{} of {all}", needed.len());
    // By way of a file, as overlaybd has it.
    let file = dir.path().join("trace");
    manage::write_trace(&file, &recorder.trace()).unwrap();

    let second = Start {
        plan: Some(manage::read_trace(&file).unwrap()),
        recorder: None,
        ..Start::default()
    };
    let planned = machine(&dir.path().join("2"), Background::Everything, &second);
    let deadline = Instant::now() + Duration::from_secs(20);
    while planned.cache.counts().fetched_bytes < blob().len() as u64 {
        assert!(Instant::now() < deadline, "{:?}", planned.cache.counts());
        std::thread::yield_now();
    }
    let asked = planned.asked.lock().unwrap().clone();
    let mut missing = needed.clone();
    for range in &asked {
        if missing.is_empty() {
            break;
        }
        for chunk in chunks(range) {
            assert!(needed.contains(&chunk), "{range:?} came before the plan");
            missing.remove(&chunk);
        }
    }
    assert!(missing.is_empty(), "{missing:?} never came");
    // All of it came, each byte once, and a start needs no more.
    let sum: u64 = asked.iter().map(|range| range.end - range.start).sum();
    assert_eq!(sum, blob().len() as u64);
    start(&planned.device);
    assert_eq!(planned.asked.lock().unwrap().len(), asked.len());
}
