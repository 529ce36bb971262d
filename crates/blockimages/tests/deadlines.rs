//! How long is waited for a registry: one deadline for a read and its repetitions, one for all of an opening, and none for
//! who may not wait, or whose device ends.

#![expect(clippy::unwrap_used, reason = "tests")]
#![expect(clippy::cast_possible_truncation, reason = "tests")]

#[expect(dead_code, reason = "other tests use all of it")]
mod cache_lab;

use std::fs;
use std::net::TcpStream;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use blockimages::manage::{self, NewImage, Top, UpperKind};
use blockimages::{
    Background, BlobCache, CacheConfig, CachedBlobs, DeviceConfig, DeviceFile, ImageError,
    LayeredDevice, Origin, OriginConfig, Start, open_image, open_image_from,
};
use blocks::{
    BlockDevice as _, BlockSource as _, DeviceErrorKind, Digest, Durability, SourceErrorKind,
    prompt,
};
use link_emulator::{Link, Shape};
use lsmt::{BlobOptions, Compression, ZFileOptions};
use oci::registry::{RegistryConfig, Transport};
use ranges::testing::MemoryPlace;
use testkit::range_server::{RangeServer, Treatment};

use cache_lab::{CHUNK, write_config};

/// Blocks of 4 KiB of the device.
const BLOCKS: u64 = 64;

/// A sealed, compressed layer of a whole device.
fn layer() -> Arc<Vec<u8>> {
    let dir = tempfile::tempdir().unwrap();
    let top = Top::Pair(UpperKind::Append);
    let image = NewImage::from(top).sized(BLOCKS * CHUNK);
    manage::create(dir.path(), DeviceConfig::default(), image).unwrap();
    let device = open_image(dir.path(), None).unwrap();
    let mut state = 1_u64;
    let words = (0..BLOCKS * CHUNK / 8).flat_map(|_| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    });
    let content: Vec<u8> = words.collect();
    device.write_at(0, &content, Durability::Flushed).unwrap();
    device.flush().unwrap();
    drop(device);
    let options = BlobOptions {
        compression: Compression::ZFile(ZFileOptions::default()),
        ..BlobOptions::default()
    };
    let layers = manage::commit(dir.path(), None, options, b"").unwrap();
    Arc::new(fs::read(&layers[0].file).unwrap())
}

/// A registry that falls silent, until it is dropped.
#[derive(Clone, Default)]
struct Registry(Arc<Silence>);

#[derive(Default)]
struct Silence {
    is_silent: AtomicBool,
    /// Each answer takes so long, in milliseconds.
    slow_ms: AtomicUsize,
    asked: AtomicUsize,
    is_over: Mutex<bool>,
    over: Condvar,
}

impl Registry {
    fn origin(&self, blob: &Arc<Vec<u8>>) -> Origin {
        let (blob, silence) = (Arc::clone(blob), Arc::clone(&self.0));
        let answer = move |range: std::ops::Range<u64>| {
            silence.asked.fetch_add(1, SeqCst);
            thread::sleep(Duration::from_millis(silence.slow_ms.load(SeqCst) as u64));
            let mut is_over = silence.is_over.lock().unwrap();
            while silence.is_silent.load(SeqCst) && !*is_over {
                is_over = silence.over.wait(is_over).unwrap();
            }
            Ok(blob[range.start as usize..range.end as usize].to_vec())
        };
        Origin {
            servers: vec!["silent".to_owned()],
            places: vec![Arc::new(MemoryPlace {
                answer: Arc::new(answer),
                parallel: 16,
            })],
        }
    }

    fn asked(&self) -> usize {
        self.0.asked.load(SeqCst)
    }

    fn fall_silent(&self) {
        self.0.is_silent.store(true, SeqCst);
    }

    fn wait_until_asked(&self, more_than: usize) {
        let deadline = Instant::now() + Duration::from_secs(30);
        while self.asked() <= more_than {
            assert!(Instant::now() < deadline, "nothing is asked");
            thread::yield_now();
        }
    }
}

impl Drop for Registry {
    fn drop(&mut self) {
        *self.0.is_over.lock().unwrap() = true;
        self.0.over.notify_all();
    }
}

/// Opens a device of the layer, which the registry has.
fn open(
    dir: &Path,
    read_deadline: Duration,
    blob: &Arc<Vec<u8>>,
    registry: &Registry,
    start: &Start,
) -> Result<LayeredDevice, ImageError> {
    write_config(dir, blob);
    let config = CacheConfig {
        read_deadline,
        ..CacheConfig::default()
    };
    let cache = BlobCache::open(&dir.join("cache"), config).unwrap();
    let origin = Mutex::new(Some(registry.origin(blob)));
    let make = move |_: &oci::Reference, _: Digest| Ok(origin.lock().unwrap().take().unwrap());
    let blobs = CachedBlobs::new(cache, Background::Nothing, Box::new(make));
    open_image_from(dir, Some(&blobs), start)
}

/// As a kernel does that reads ahead, and then the page alone that somebody waits for, and a file system on that.
#[test]
fn a_read_and_its_repetitions_have_one_deadline() {
    let (blob, registry) = (layer(), Registry::default());
    let dir = tempfile::tempdir().unwrap();
    let patience = Duration::from_millis(300);
    let device = open(dir.path(), patience, &blob, &registry, &Start::default()).unwrap();
    registry.fall_silent();
    let read = |range: std::ops::Range<u64>| {
        let mut bytes = vec![0; ((range.end - range.start) * CHUNK) as usize];
        device.read_at(range.start * CHUNK, &mut bytes)
    };
    let late = read(8..40).unwrap_err();
    assert_eq!(late.kind(), DeviceErrorKind::TimedOut);
    let why = format!("{:?}", std::error::Error::source(&late).unwrap());
    assert!(why.contains("did not come from a server in time"), "{why}");
    let asked = registry.asked();
    for _ in 0..3 {
        let late = read(20..21).unwrap_err();
        assert_eq!(late.kind(), DeviceErrorKind::TimedOut);
    }
    assert_eq!(registry.asked(), asked, "a repetition waited once more");
    // Who reads something else has a deadline of his own.
    read(50..51).unwrap_err();
    assert!(registry.asked() > asked);
}

#[test]
fn an_image_is_opened_within_one_deadline() {
    let (blob, registry) = (layer(), Registry::default());
    let dir = tempfile::tempdir().unwrap();
    // Each of the requests of an opening is answered in time, and all of them together are not.
    let patience = Duration::from_millis(1000);
    registry.0.slow_ms.store(600, SeqCst);
    let opened = open(dir.path(), patience, &blob, &registry, &Start::default());
    let why = opened.unwrap_err();
    let said = format!("{:?}", std::error::Error::source(&why).unwrap());
    assert!(
        said.contains("did not come from a server in time"),
        "{said}"
    );
}

#[test]
fn who_waits_gives_up_when_the_device_ends() {
    let (blob, registry) = (layer(), Registry::default());
    let dir = tempfile::tempdir().unwrap();
    // Longer than anybody waits for this test.
    let patience = Duration::from_secs(3600);
    let start = Start::default();
    let device = open(dir.path(), patience, &blob, &registry, &start).unwrap();
    registry.fall_silent();
    let asked = registry.asked();
    thread::scope(|scope| {
        let reader = scope.spawn(|| device.read_at(8 * CHUNK, &mut [0; CHUNK as usize]));
        registry.wait_until_asked(asked);
        start.ending.within(Duration::ZERO);
        let ended = reader.join().unwrap().unwrap_err();
        assert_eq!(ended.kind(), DeviceErrorKind::Io, "{ended}");
    });
    // Who comes later does not begin to wait.
    let asked = registry.asked();
    device
        .read_at(50 * CHUNK, &mut [0; CHUNK as usize])
        .unwrap_err();
    assert_eq!(registry.asked(), asked);
}

#[test]
fn an_opening_is_given_up_when_nobody_wants_it() {
    let (blob, registry) = (layer(), Registry::default());
    let dir = tempfile::tempdir().unwrap();
    registry.fall_silent();
    let (patience, start) = (Duration::from_secs(3600), Start::default());
    thread::scope(|scope| {
        let opening = scope.spawn(|| open(dir.path(), patience, &blob, &registry, &start));
        registry.wait_until_asked(0);
        start.ending.within(Duration::ZERO);
        let why = opening.join().unwrap().unwrap_err();
        let said = format!("{:?}", std::error::Error::source(&why).unwrap());
        assert!(said.contains("before the device ended"), "{said}");
    });
}

#[test]
fn a_thread_that_may_not_wait_reads_what_is_here() {
    let (blob, registry) = (layer(), Registry::default());
    let dir = tempfile::tempdir().unwrap();
    let patience = Duration::from_secs(60);
    let device = open(dir.path(), patience, &blob, &registry, &Start::default()).unwrap();
    let (file, tree) = DeviceFile::new(Arc::new(device)).unwrap();
    let key = tree.key(tree.resolve(b"disk").unwrap()).unwrap();
    let mut page = vec![0; CHUNK as usize];
    let asked = registry.asked();
    let missing = prompt::now(|| file.read_at(&key, 8 * CHUNK, &mut page));
    assert_eq!(missing.unwrap_err().kind(), SourceErrorKind::WouldWait);
    assert_eq!(registry.asked(), asked, "somebody else asks for it");
    file.read_at(&key, 8 * CHUNK, &mut page).unwrap();
    registry.fall_silent();
    let here = prompt::now(|| file.read_at(&key, 8 * CHUNK, &mut page));
    assert_eq!(here.unwrap(), page.len());
}

/// Opens a device of the layer, which a registry at an address has. Nothing is fetched before it is read.
fn open_at(
    dir: &Path,
    patience: Duration,
    blob: &[u8],
    registry: &str,
) -> Result<LayeredDevice, ImageError> {
    let text = format!(
        r#"{{"repoBlobUrl":"http://{registry}/v2/an/image/blobs",
            "lowers":[{{"digest":"{}","size":{}}}]}}"#,
        oci::digest_of(blob),
        blob.len()
    );
    fs::write(dir.join("config.v1.json"), text).unwrap();
    let limits = CacheConfig {
        read_deadline: patience,
        ..CacheConfig::default()
    };
    let cache = BlobCache::open(&dir.join("cache"), limits).unwrap();
    let config = |_: &oci::Reference| {
        Ok(OriginConfig {
            registry: RegistryConfig {
                transport: Transport::Plain,
                ..RegistryConfig::default()
            },
            logins: None,
            mirrors: Vec::new(),
        })
    };
    let blobs = CachedBlobs::of_registries(cache, Background::Nothing, config);
    open_image_from(dir, Some(&blobs), &Start::default())
}

/// Its machine answers, and says that nobody is there: who reads or opens waits whether somebody comes, for one deadline.
#[test]
fn a_registry_that_refuses_connections_is_waited_for_one_deadline() {
    let blob = layer();
    let patience = Duration::from_millis(1500);
    // Whoever waits longer has not ended by the deadline of this test.
    let in_time = |waits: &mut dyn FnMut()| {
        let began = Instant::now();
        waits();
        let took = began.elapsed();
        assert!(took >= patience, "it gave up after {took:?}");
        assert!(took < Duration::from_secs(30), "it waited for {took:?}");
    };
    let is_gone = Arc::new(AtomicBool::new(false));
    let gone = Arc::clone(&is_gone);
    let registry = RangeServer::start(blob.to_vec(), move |_| match gone.load(SeqCst) {
        true => Treatment::Cut(0),
        false => Treatment::Right,
    });
    let address = registry.address.to_string();
    // Who was awaited, and what became of it.
    let late = format!("did not come from {address} in time: {address}: no response");
    let is_late = |why: &dyn std::error::Error| {
        let said = format!("{:?}", why.source().unwrap());
        assert!(said.contains(&late), "{said}");
    };
    let dir = tempfile::tempdir().unwrap();
    let device = open_at(dir.path(), patience, &blob, &address).unwrap();
    let read = |block: u64| device.read_at(block * CHUNK, &mut [0; CHUNK as usize]);
    read(8).unwrap();
    // Its port is free now, and connections that were made are closed.
    is_gone.store(true, SeqCst);
    drop(registry);
    TcpStream::connect(&address).unwrap_err();
    in_time(&mut || {
        let late = read(20).unwrap_err();
        assert_eq!(late.kind(), DeviceErrorKind::TimedOut);
        is_late(&late);
    });
    read(8).unwrap();
    let dir = tempfile::tempdir().unwrap();
    in_time(&mut || is_late(&open_at(dir.path(), patience, &blob, &address).unwrap_err()));
}

/// Each answer comes later than servers are silent that are given up for others, and all of them together within the deadline.
#[test]
fn a_registry_at_the_end_of_a_slow_line_is_waited_for() {
    let blob = layer();
    let registry = RangeServer::start(blob.to_vec(), |_| Treatment::Right);
    let mut line = Link::new(Shape::new(Duration::from_millis(800), 2));
    let any = "127.0.0.1:0".parse().unwrap();
    let server = registry.address.to_string().parse().unwrap();
    let address = line.carry(&any, server).unwrap().to_string();
    let dir = tempfile::tempdir().unwrap();
    let device = open_at(dir.path(), Duration::from_secs(60), &blob, &address).unwrap();
    let opening = registry.asked().len();
    // 240 KiB, which take a second of the line.
    let mut read = vec![0; 60 * CHUNK as usize];
    device.read_at(4 * CHUNK, &mut read).unwrap();
    let asked = registry.asked().split_off(opening);
    let bytes: u64 = asked
        .iter()
        .map(|asked| asked.range.end - asked.range.start)
        .sum();
    // Once, and what was late perhaps on another connection.
    assert!(bytes <= 2 * blob.len() as u64, "{asked:?}");
    let again = open(
        tempfile::tempdir().unwrap().path(),
        Duration::from_secs(60),
        &blob,
        &Registry::default(),
        &Start::default(),
    );
    let mut expected = vec![0; read.len()];
    again.unwrap().read_at(4 * CHUNK, &mut expected).unwrap();
    assert!(read == expected, "it differs");
}
