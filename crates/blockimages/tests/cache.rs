//! The cache of blobs: each chunk once, never a wrong byte, within its bounds, whatever origins and disks do.

#![expect(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    reason = "tests"
)]

mod cache_lab;

use std::fs;
use std::io;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use blockimages::{
    Background, BlobCache, CacheConfig, CachedBlobs, Filler, ImageError, PlanFetcher, open_image,
};
use blocks::{BlockDevice, Digest};
use lsmt::ReadAt as _;
use ranges::{Fault, FaultKind};

use cache_lab::{CHUNK, Lab, Whim, honest, memory};

#[test]
fn chunks_are_fetched_once_joined_and_kept() {
    let lab = Lab::new(10 * 4096 + 100);
    let cache = lab.cache();
    let blob = lab.open(&cache, honest());
    lab.check(&blob, 5000..5001);
    assert_eq!(lab.asked(), std::slice::from_ref(&(4096..8192)));
    lab.check(&blob, 0..4 * 4096);
    assert_eq!(
        lab.asked(),
        [0..4096, 8192..16_384],
        "what is there is not fetched again"
    );
    lab.check(&blob, 16_000..41_060);
    assert_eq!(lab.asked(), std::slice::from_ref(&(16_384..41_060)));
    lab.check(&blob, 0..41_060);
    assert_eq!(lab.asked(), []);
    let mut past = [0; 2];
    assert!(blob.read_at(&mut past, 41_059).is_err());
    drop(blob);
    drop(cache);
    // After a restart, all is there.
    let cache = lab.cache();
    let blob = lab.open(&cache, honest());
    lab.check(&blob, 0..41_060);
    assert_eq!(lab.asked(), []);
    // And nobody else may have the directory.
    let other = BlobCache::open(&lab.dir.path().join("cache"), lab.config);
    assert!(matches!(other, Err(ImageError::CacheInUse(_))));
}

#[test]
fn readers_who_want_the_same_share_one_request() {
    let lab = Lab::new(8 * 4096);
    let cache = lab.cache();
    let all = Arc::new(Barrier::new(9));
    let gate = Arc::clone(&all);
    let blob = lab.open(
        &cache,
        Box::new(move |number, _| {
            if number == 0 {
                gate.wait(); // Until all readers are on their way.
            }
            Ok(())
        }),
    );
    std::thread::scope(|scope| {
        for reader in 0..8 {
            let (lab, blob, all) = (&lab, &blob, &all);
            scope.spawn(move || {
                if reader > 0 {
                    all.wait();
                }
                lab.check(blob, 100..200);
            });
        }
        all.wait();
    });
    // On a busy machine the answer is late, and requested once more.
    let hedged = cache.counts().hedged;
    assert_eq!(lab.asked().len() as u64, 1 + hedged);
}

/// Nobody waits for another blob's files, and all who want the same blob share it.
#[test]
fn who_opens_a_blob_at_the_same_time_as_others_shares_it() {
    let lab = Lab::new(1 << 20);
    let cache = lab.cache();
    let open = || lab.open(&cache, honest());
    let blobs: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..16).map(|_| scope.spawn(open)).collect();
        let joined = threads.into_iter().map(|thread| thread.join().unwrap());
        joined.collect()
    });
    assert!(blobs.iter().all(|blob| Arc::ptr_eq(blob, &blobs[0])));
    lab.check(&blobs[0], 0..1 << 20);
    let cached = cache.counts().cached_bytes;
    drop(blobs);
    // Counted once, and found again.
    assert_eq!((cache.counts().cached_bytes, cached), (1 << 20, 1 << 20));
    let requests = cache.counts().requests;
    lab.check(&open(), 0..1 << 20);
    assert_eq!(cache.counts().requests, requests);
}

#[test]
fn what_fails_is_tried_again_and_what_is_absent_is_told() {
    let lab = Lab::new(4 * 4096);
    let cache = lab.cache();
    let blob = lab.open(
        &cache,
        Box::new(|number, bytes| match number {
            0 | 4 => Err(Fault::new(FaultKind::Absent, "no such blob")),
            1 => Err(Fault::new(FaultKind::Busy, "busy")),
            // It sends less than it should.
            2 => {
                bytes.pop();
                Ok(())
            }
            _ => Ok(()),
        }),
    );
    let mut byte = [0];
    let mut absent = |at| {
        let error = blob.read_at(&mut byte, at).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
        assert_eq!(error.to_string(), "no such blob");
    };
    absent(0);
    lab.check(&blob, 0..4096);
    assert_eq!(lab.asked.lock().unwrap().len(), 4);
    assert!(cache.counts().retried >= 2, "{:?}", cache.counts());
    let mut read = [0];
    assert!(blob.read_at(&mut read, 4096).is_err());
    lab.check(&blob, 0..4 * 4096);
}

#[test]
fn damage_on_the_cache_s_disk_is_noticed_after_a_restart_and_healed() {
    let lab = Lab::new(6 * 4096);
    let cache = lab.cache();
    let blob = lab.open(&cache, honest());
    lab.check(&blob, 0..6 * 4096);
    lab.asked();
    drop((blob, cache));
    let file = fs::File::options().write(true).open(lab.data()).unwrap();
    file.write_all_at(&[0xAA], 2 * 4096 + 17).unwrap();
    // As after a crash that lost what was not written yet.
    file.write_all_at(&[0; 4096], 5 * 4096).unwrap();
    let cache = lab.cache();
    let blob = lab.open(&cache, honest());
    lab.check(&blob, 0..6 * 4096);
    assert_eq!(lab.asked(), [2 * 4096..3 * 4096, 5 * 4096..6 * 4096]);
    assert_eq!(cache.counts().damaged, 2);
    // The map is gone: all is fetched again, and nothing else happens.
    drop((blob, cache));
    fs::write(lab.data().with_file_name("map"), "no map").unwrap();
    let cache = lab.cache();
    lab.check(&lab.open(&cache, honest()), 0..6 * 4096);
}

/// A cache costs speed, and no image: whatever somebody has put in the place of its files.
#[test]
fn what_is_in_the_place_of_a_cache_s_file_is_set_aside() {
    let lab = Lab::new(10 * 4096);
    let fetch = || {
        let cache = lab.cache();
        let blob = lab.open(&cache, honest());
        lab.check(&blob, 0..10 * 4096);
    };
    fetch();
    let data = lab.data();
    let dir = data.parent().unwrap();
    let elsewhere = lab.dir.path().join("elsewhere");
    fs::write(&elsewhere, "not ours").unwrap();
    let in_places: [&dyn Fn(&Path); 3] = [
        &|place| {
            fs::create_dir(place).unwrap();
            fs::write(place.join("kept"), "somebody's").unwrap();
        },
        &|place| nix::unistd::mkfifo(place, nix::sys::stat::Mode::S_IRWXU).unwrap(),
        &|place| std::os::unix::fs::symlink(&elsewhere, place).unwrap(),
    ];
    for place in [dir.join("map"), data.clone()] {
        for put in in_places {
            fs::remove_file(&place).unwrap();
            put(&place);
            lab.asked();
            fetch();
            assert!(!lab.asked().is_empty());
            fetch();
            assert_eq!(lab.asked(), [], "it is kept again");
        }
    }
    assert!(dir.join("map.unusable-0/kept").exists());
    // In the place of all of it.
    fs::remove_dir_all(dir).unwrap();
    fs::write(dir, "somebody's").unwrap();
    fetch();
    fetch();
    let mut aside = dir.as_os_str().to_owned();
    aside.push(".unusable-0");
    assert_eq!(fs::read(aside).unwrap(), b"somebody's");
    assert_eq!(fs::read(&elsewhere).unwrap(), b"not ours");
}

#[test]
fn a_cache_keeps_to_its_limit_while_it_is_read_by_many() {
    let mut lab = Lab::new(64 * 4096);
    lab.config.limit_bytes = 16 * CHUNK;
    let cache = lab.cache();
    let blob = lab.open(&cache, honest());
    std::thread::scope(|scope| {
        for reader in 0..4_u64 {
            let (lab, blob, cache) = (&lab, &blob, &cache);
            scope.spawn(move || {
                let mut at = reader * 7919;
                for _ in 0..400 {
                    at = (at * 6_364_136 + 1_442_695) % (64 * 4096 - 6000);
                    lab.check(blob, at..at + 6000);
                    assert!(cache.counts().cached_bytes <= (16 + 4 * 4) * CHUNK);
                }
            });
        }
    });
    let counts = cache.counts();
    assert!(
        counts.cached_bytes <= 16 * CHUNK && counts.evicted > 0,
        "{counts:?}"
    );
    let data = lab.data();
    let blocks = fs::metadata(&data).unwrap().blocks() * 512;
    // One block of the file system's own lists where the others are.
    assert!(
        blocks <= 16 * CHUNK + 4096,
        "{blocks} bytes are on the disk"
    );
    // A blob that nobody has open makes room for one that somebody has.
    drop(blob);
    let mut other = Lab::new(16 * 4096);
    other.config = lab.config;
    other.blob = Arc::new(vec![9; 16 * 4096]);
    let blob = other.open(&cache, honest());
    other.check(&blob, 0..16 * 4096);
    assert!(cache.counts().cached_bytes <= 16 * CHUNK);
    assert!(!data.exists());
}

#[test]
fn the_background_fetches_the_plan_first_and_then_all() {
    let lab = Lab::new(20 * 4096);
    let cache = lab.cache();
    let blob = lab.open(&cache, honest());
    let plan = [9 * 4096 + 5..10 * 4096 + 7, 0..1, 11 * 4096..11 * 4096 + 1];
    let plan = plan.map(|range| (Arc::clone(&blob), range));
    let _fetcher = PlanFetcher::start(&plan);
    assert!(Filler::start(Arc::clone(&blob)).unwrap().wait());
    let mut asked = lab.asked();
    // What follows each other is requested together.
    asked[..2].sort_by_key(|range| range.start);
    assert_eq!(asked[..2], [0..4096, 9 * 4096..12 * 4096]);
    let bytes: u64 = asked.iter().map(|range| range.end - range.start).sum();
    assert_eq!(bytes, 20 * 4096, "each byte once");
    lab.check(&blob, 0..20 * 4096);
    assert_eq!(lab.asked(), []);
}

/// What a cache cannot keep is kept in memory, which drops what came first when more comes: a plan that brought more would
/// have its own beginning fetched twice.
#[test]
fn no_more_of_a_plan_is_fetched_for_a_full_cache_than_there_is_memory_for() {
    const SIZE: u64 = 40 << 20;
    let mut lab = Lab::new(SIZE as usize);
    lab.config.limit_bytes = 0;
    let cache = lab.cache();
    let blob = lab.open(&cache, honest());
    let plan = PlanFetcher::start(&[(Arc::clone(&blob), 0..SIZE)]);
    let deadline = Instant::now() + Duration::from_secs(60);
    while !plan.is_done() {
        assert!(Instant::now() < deadline, "it does not end");
        std::thread::yield_now();
    }
    assert!(!plan.is_complete(), "it is not all there");
    // What was on its way comes.
    drop(plan);
    lab.check(&blob, SIZE - 4096..SIZE);
    let counts = cache.counts();
    assert!(counts.fetched_bytes <= 16 << 20, "{counts:?}");
    assert_eq!(counts.pauses, 1, "{counts:?}");
    // All that came is still there for who reads it, and only the rest is requested.
    let fetched = counts.fetched_bytes - 4096;
    assert!(fetched >= 12 << 20, "{counts:?}");
    lab.asked();
    lab.check(&blob, 0..12 << 20);
    assert_eq!(lab.asked(), []);
    lab.check(&blob, 30 << 20..31 << 20);
    assert!(!lab.asked().is_empty());
}

#[test]
fn a_plan_overtakes_what_fills_the_cache() {
    const SIZE: u64 = 4 << 20;
    let lab = Lab::new(SIZE as usize);
    let cache = lab.cache();
    let (begun, planned) = (Arc::new(Barrier::new(2)), Arc::new(Barrier::new(2)));
    let gates = (Arc::clone(&begun), Arc::clone(&planned));
    let blob = lab.open(
        &cache,
        Box::new(move |number, _| {
            if number == 0 {
                gates.0.wait();
                gates.1.wait();
            }
            Ok(())
        }),
    );
    let filler = Filler::start(Arc::clone(&blob)).unwrap();
    begun.wait();
    let _fetcher = PlanFetcher::start(&[(Arc::clone(&blob), SIZE - 1..SIZE)]);
    planned.wait();
    assert!(filler.wait());
    let asked = lab.asked();
    let before = asked.iter().take_while(|range| range.end < SIZE);
    let before: u64 = before.map(|range| range.end - range.start).sum();
    // What was under way, of all that lies before it.
    assert!(before < SIZE / 4, "{asked:?}");
}

#[test]
fn what_is_wrong_as_a_whole_is_fetched_once_more_and_then_refused() {
    let lab = Lab::new(8 * 4096);
    let flip = |bytes: &mut Vec<u8>| bytes[3] ^= 1;
    let cache = lab.cache();
    let once = lab.open(
        &cache,
        Box::new(move |number, bytes| {
            if number == 0 {
                flip(bytes);
            }
            Ok(())
        }),
    );
    assert!(Filler::start(Arc::clone(&once)).unwrap().wait());
    lab.check(&once, 0..8 * 4096);
    assert_eq!(lab.asked().len(), 2);
    once.distrust(&(0..8 * 4096));
    drop(once);
    let always = lab.open(
        &cache,
        Box::new(move |_, bytes| {
            flip(bytes);
            Ok(())
        }),
    );
    assert!(!Filler::start(Arc::clone(&always)).unwrap().wait());
    assert_eq!(lab.asked().len(), 2, "it is not fetched for ever");
    let refused = always.read_at(&mut [0], 0).unwrap_err();
    assert_eq!(refused.kind(), io::ErrorKind::InvalidData);
}

/// Makes an image of one remote layer, and returns it as a device, with what was asked of its origin.
fn remote(
    dir: &Path,
    cache: &Arc<BlobCache>,
    whim: Arc<Whim>,
) -> (Lab, Result<Arc<dyn BlockDevice>, ImageError>) {
    let vectors = Path::new(env!("CARGO_MANIFEST_DIR")).join("../lsmt/tests/vectors");
    let mut lab = Lab::new(0);
    lab.blob = Arc::new(fs::read(vectors.join("A.lz4.4k.tar.obd")).unwrap());
    let config = format!(
        r#"{{"repoBlobUrl":"https://registry.example/v2/some/image/blobs",
            "lowers":[{{"digest":"{}","size":{}}}]}}"#,
        lab.digest(),
        lab.blob.len()
    );
    fs::write(dir.join("config.v1.json"), config).unwrap();
    let (bytes, asked) = (Arc::clone(&lab.blob), Arc::clone(&lab.asked));
    let make = move |reference: &oci::Reference, _: Digest| {
        assert_eq!(reference.registry(), "registry.example");
        assert_eq!(reference.repository(), "some/image");
        let whim = Arc::clone(&whim);
        let whim = Box::new(move |number, bytes: &mut _| whim(number, bytes));
        Ok(memory(Arc::clone(&bytes), Arc::clone(&asked), whim))
    };
    let blobs = CachedBlobs::new(Arc::clone(cache), Background::Nothing, Box::new(make));
    let device = open_image(dir, Some(&blobs));
    (lab, device.map(|device| Arc::new(device) as _))
}

fn expected() -> Vec<u8> {
    let vectors = Path::new(env!("CARGO_MANIFEST_DIR")).join("../lsmt/tests/vectors");
    let packed = fs::File::open(vectors.join("A.expected.raw.zst")).unwrap();
    zstd::decode_all(packed).unwrap()
}

#[test]
fn an_origin_that_lies_once_for_each_range_is_never_believed() {
    let dir = tempfile::tempdir().unwrap();
    let config = CacheConfig {
        chunk_bytes: CHUNK as u32,
        ..CacheConfig::default()
    };
    let cache = BlobCache::open(&dir.path().join("cache"), config).unwrap();
    let lies = Arc::new(AtomicUsize::new(0));
    let told = Arc::clone(&lies);
    // Every third answer has a wrong byte in each block.
    let whim: Whim = Box::new(move |number, bytes| {
        if number % 3 == 0 {
            told.fetch_add(1, SeqCst);
            bytes
                .iter_mut()
                .step_by(1000)
                .for_each(|byte| *byte ^= 0x55);
        }
        Ok(())
    });
    let (_, device) = remote(dir.path(), &cache, Arc::new(whim));
    let device = device.unwrap();
    let expected = expected();
    let mut read = vec![0; expected.len()];
    for (at, piece) in (0..).step_by(8192).zip(read.chunks_mut(8192)) {
        device.read_at(at, piece).unwrap();
    }
    assert!(read == expected, "wrong bytes were served");
    assert!(lies.load(SeqCst) > 5);
    assert!(cache.counts().refetched > 5, "{:?}", cache.counts());
}

#[test]
fn an_origin_that_always_lies_gets_nothing_served_and_is_not_asked_for_ever() {
    let dir = tempfile::tempdir().unwrap();
    let cache = BlobCache::open(&dir.path().join("cache"), CacheConfig::default()).unwrap();
    let whim: Whim = Box::new(|_, bytes| {
        bytes.iter_mut().step_by(700).for_each(|byte| *byte ^= 0x55);
        Ok(())
    });
    let (lab, device) = remote(dir.path(), &cache, Arc::new(whim));
    let Err(error) = device else {
        panic!("it was opened");
    };
    assert!(
        matches!(error, ImageError::Origin { .. } | ImageError::Layer { .. }),
        "{error}"
    );
    assert!(lab.asked().len() < 40);
}
