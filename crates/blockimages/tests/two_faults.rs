//! Two faults at once: a mirror that lies while nothing can be stored or the registry is away, and a registry that is
//! slow and wrong.

#![expect(clippy::unwrap_used, reason = "tests")]
#![expect(clippy::cast_possible_truncation, reason = "tests")]

#[expect(dead_code, reason = "other tests use all of it")]
mod cache_lab;

use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use blockimages::manage::{self, NewImage, Top, UpperKind};
use blockimages::{
    Background, BlobCache, CacheConfig, CachedBlobs, DeviceConfig, LayeredDevice, Origin,
    open_image,
};
use blocks::{BlockDevice as _, DeviceErrorKind, Digest, Durability};
use lsmt::{BlobOptions, Compression, ZFileOptions};
use ranges::{Fault, FaultKind};

use cache_lab::{Asked, CHUNK, Whim, honest, memory, write_config};

/// Blocks of 4 KiB of the device.
const BLOCKS: u64 = 64;

/// Returns the content of a block, which cannot be compressed.
fn block(number: u64) -> Vec<u8> {
    let mut state = number * 2 + 1;
    let words = (0..CHUNK / 8).flat_map(|_| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    });
    words.collect()
}

/// A sealed layer of every second block of a device.
fn layer(options: BlobOptions) -> Arc<Vec<u8>> {
    let dir = tempfile::tempdir().unwrap();
    let top = Top::Pair(UpperKind::Append);
    manage::create(
        dir.path(),
        DeviceConfig::default(),
        NewImage::from(top).sized(BLOCKS * CHUNK),
    )
    .unwrap();
    let device = open_image(dir.path(), None).unwrap();
    for number in (0..BLOCKS).step_by(2) {
        let durable = Durability::Flushed;
        let written = device.write_at(number * CHUNK, &block(number), durable);
        written.unwrap();
    }
    device.flush().unwrap();
    drop(device);
    let layers = manage::commit(dir.path(), None, options, b"").unwrap();
    Arc::new(fs::read(&layers[0].file).unwrap())
}

fn plain() -> BlobOptions {
    BlobOptions {
        compression: Compression::None,
        ..BlobOptions::default()
    }
}

fn checked() -> BlobOptions {
    BlobOptions {
        compression: Compression::ZFile(ZFileOptions::default()),
        ..BlobOptions::default()
    }
}

/// Opens a device of the layer, which these servers have.
fn open(
    dir: &Path,
    config: CacheConfig,
    blob: &Arc<Vec<u8>>,
    servers: Vec<Origin>,
) -> LayeredDevice {
    write_config(dir, blob);
    let cache = BlobCache::open(&dir.join("cache"), config).unwrap();
    let servers = Mutex::new(servers);
    let make = move |_: &oci::Reference, _: Digest| {
        let servers = std::mem::take(&mut *servers.lock().unwrap());
        let (names, places) = servers
            .into_iter()
            .enumerate()
            .map(|(number, mut origin)| (number.to_string(), origin.places.remove(0)))
            .unzip();
        Ok(Origin {
            servers: names,
            places,
        })
    };
    let blobs = CachedBlobs::new(cache, Background::Nothing, Box::new(make));
    open_image(dir, Some(&blobs)).unwrap()
}

fn check(device: &LayeredDevice, blocks: std::ops::Range<u64>) {
    let mut read = vec![0xEE; ((blocks.end - blocks.start) * CHUNK) as usize];
    device.read_at(blocks.start * CHUNK, &mut read).unwrap();
    for (number, read) in blocks.zip(read.chunks(CHUNK as usize)) {
        match number % 2 {
            0 => assert!(read == block(number), "block {number} is wrong"),
            _ => assert!(read.iter().all(|byte| *byte == 0), "block {number}"),
        }
    }
}

/// A server that lies once `lies` is set.
fn liar(lies: &Arc<AtomicBool>) -> Whim {
    let lies = Arc::clone(lies);
    Box::new(move |_, bytes| {
        if lies.load(SeqCst) {
            bytes.iter_mut().step_by(500).for_each(|byte| *byte ^= 0x55);
        }
        Ok(())
    })
}

#[test]
fn what_a_read_needs_is_requested_together() {
    let blob = layer(plain());
    let dir = tempfile::tempdir().unwrap();
    let asked = Asked::default();
    let origin = memory(Arc::clone(&blob), Arc::clone(&asked), honest());
    let device = open(dir.path(), CacheConfig::default(), &blob, vec![origin]);
    asked.lock().unwrap().clear();
    check(&device, 0..BLOCKS);
    let asked = asked.lock().unwrap();
    // 32 parts of one layer, which lie beside each other in it.
    assert!(asked.len() < 4, "{asked:?}");
}

#[test]
fn a_mirror_that_lies_is_left_also_where_nothing_can_be_stored() {
    let blob = layer(checked());
    let dir = tempfile::tempdir().unwrap();
    let lies = Arc::new(AtomicBool::new(false));
    let mirror = memory(Arc::clone(&blob), Asked::default(), liar(&lies));
    let asked = Asked::default();
    let origin = memory(Arc::clone(&blob), Arc::clone(&asked), honest());
    let config = CacheConfig {
        limit_bytes: 0,
        ..CacheConfig::default()
    };
    let device = open(dir.path(), config, &blob, vec![mirror, origin]);
    lies.store(true, SeqCst);
    check(&device, 0..BLOCKS);
    assert!(!asked.lock().unwrap().is_empty());
}

#[test]
fn a_mirror_that_lies_is_not_all_there_is_while_the_registry_is_away() {
    let blob = layer(checked());
    let dir = tempfile::tempdir().unwrap();
    let lies = Arc::new(AtomicBool::new(false));
    let mirror = memory(Arc::clone(&blob), Asked::default(), liar(&lies));
    // It is away when it is asked first, and comes back.
    let whim: Whim = Box::new(|number, _| match number {
        0 => Err(Fault::new(FaultKind::Away, "away")),
        _ => Ok(()),
    });
    let origin = memory(Arc::clone(&blob), Asked::default(), whim);
    let device = open(
        dir.path(),
        CacheConfig::default(),
        &blob,
        vec![mirror, origin],
    );
    lies.store(true, SeqCst);
    check(&device, 0..BLOCKS);
}

#[test]
fn a_read_has_one_deadline_however_often_it_is_wrong() {
    let blob = layer(checked());
    let dir = tempfile::tempdir().unwrap();
    let lies = Arc::new(AtomicBool::new(false));
    let config = CacheConfig {
        read_deadline: Duration::from_millis(500),
        ..CacheConfig::default()
    };
    let (lie, slow) = (liar(&lies), Arc::clone(&lies));
    let whim: Whim = Box::new(move |number, bytes| {
        if slow.load(SeqCst) {
            // Three such answers take longer than a read may.
            std::thread::sleep(config.read_deadline / 2);
        }
        lie(number, bytes)
    });
    let origin = memory(Arc::clone(&blob), Asked::default(), whim);
    let device = open(dir.path(), config, &blob, vec![origin]);
    lies.store(true, SeqCst);
    let error = device.read_at(0, &mut [0; 512]).unwrap_err();
    assert_eq!(error.kind(), DeviceErrorKind::TimedOut, "{error}");
}
