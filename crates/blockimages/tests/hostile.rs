//! Registries that lie, and users of the machine who put something into a cache's directory.

#![expect(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    reason = "tests"
)]

mod cache_lab;

use std::fs::{self, Permissions};
use std::ops::Range;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::path::Path;
use std::sync::Arc;

use blockimages::{BlobCache, ImageError};
use lsmt::ReadAt as _;
use ranges::testing::MemoryPlace;

use cache_lab::{Lab, honest, memory};

/// Whoever has an image attached names its registry, and any digest: until all of a blob is there, its bytes are
/// what that registry sent.
#[test]
fn what_one_registry_sent_is_not_served_for_another() {
    let lab = Lab::new(4 * 4096);
    let cache = lab.cache();
    let size = lab.blob.len() as u64;
    let forged = Arc::new(vec![0x66; 4 * 4096]);
    let mut hostile = memory(Arc::clone(&forged), Arc::default(), honest());
    hostile.servers = vec!["https://hostile".to_owned()];
    let hostile = cache.blob(lab.digest(), size, hostile).unwrap();
    let mut read = vec![0; 4 * 4096];
    hostile.read_at(&mut read, 0).unwrap();
    assert_eq!(read, *forged);
    // While that is open, and afterwards.
    lab.check(&lab.open(&cache, honest()), 0..4096);
    drop(hostile);
    lab.check(&lab.open(&cache, honest()), 0..4 * 4096);
    // With a mirror, it is the registry's all the same.
    lab.asked();
    let mut mirrored = memory(Arc::clone(&lab.blob), Arc::clone(&lab.asked), honest());
    mirrored.servers.insert(0, "http://mirror".to_owned());
    mirrored.places.push(Arc::clone(&mirrored.places[0]));
    let mirrored = cache.blob(lab.digest(), size, mirrored).unwrap();
    lab.check(&mirrored, 0..4 * 4096);
    assert_eq!(lab.asked(), []);
}

fn mode(path: &Path) -> u32 {
    fs::symlink_metadata(path).unwrap().mode() & 0o7777
}

#[test]
fn a_cache_is_for_its_owner_alone() {
    let lab = Lab::new(4096);
    let dir = lab.dir.path().join("cache");
    let chmod = |mode| fs::set_permissions(&dir, Permissions::from_mode(mode)).unwrap();
    fs::create_dir(&dir).unwrap();
    // Everybody's place is not ours, and stays as it is.
    chmod(0o1777);
    let refused = BlobCache::open(&dir, lab.config).unwrap_err();
    assert!(matches!(refused, ImageError::File { .. }), "{refused}");
    assert_eq!((mode(&dir), dir.join("lock").exists()), (0o1777, false));
    // One of an earlier release.
    chmod(0o755);
    let cache = lab.cache();
    lab.check(&lab.open(&cache, honest()), 0..4096);
    let data = lab.data();
    let (blob, map) = (data.parent().unwrap(), data.with_file_name("map"));
    assert_eq!([&*dir, blob].map(mode), [0o700, 0o700]);
    assert_eq!([&*data, &*map].map(mode), [0o600, 0o600]);
}

/// Others could make files in it before it was closed.
#[test]
fn no_link_in_a_cache_is_written_through() {
    let lab = Lab::new(4096);
    let elsewhere = lab.dir.path().join("elsewhere");
    fs::create_dir(&elsewhere).unwrap();
    let victim = elsewhere.join("victim");
    drop(lab.open(&lab.cache(), honest()));
    let data = lab.data();
    let blob = data.parent().unwrap().to_owned();
    let lock = blob.with_file_name("lock");
    for name in [lock, data.clone(), data.with_file_name("map"), blob] {
        let was = name.with_extension("was");
        fs::rename(&name, &was).unwrap();
        fs::write(&victim, "root").unwrap();
        let is_dir = was.is_dir();
        let target = if is_dir { &elsewhere } else { &victim };
        symlink(target, &name).unwrap();
        let cache = BlobCache::open(&lab.dir.path().join("cache"), lab.config);
        let opened = cache.and_then(|cache| {
            let origin = memory(Arc::clone(&lab.blob), Arc::default(), honest());
            cache.blob(lab.digest(), lab.blob.len() as u64, origin)
        });
        assert!(matches!(opened, Err(ImageError::File { .. })), "{name:?}");
        assert_eq!(fs::read(&victim).unwrap(), b"root", "{name:?}");
        assert_eq!(fs::read_dir(&elsewhere).unwrap().count(), 1, "{name:?}");
        fs::remove_file(&name).unwrap();
        fs::rename(&was, &name).unwrap();
    }
}

#[test]
fn what_is_no_blob_is_never_evicted() {
    let mut lab = Lab::new(64 * 4096);
    lab.config.limit_bytes = 4 * 4096;
    let others = lab.dir.path().join("cache/app");
    fs::create_dir_all(&others).unwrap();
    fs::write(others.join("data"), vec![1; 40_960]).unwrap();
    let cache = lab.cache();
    lab.check(&lab.open(&cache, honest()), 0..64 * 4096);
    assert!(cache.counts().evicted > 0 && others.join("data").exists());
}

/// A size is what a registry says, and memory has to be there for it.
#[test]
fn a_blob_that_claims_to_be_huge_takes_memory_for_what_is_read() {
    const CLAIMED: u64 = 1 << 43;
    let resident = || {
        let status = fs::read_to_string("/proc/self/status").unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let kib = line.and_then(|line| line.trim().strip_suffix(" kB"));
        kib.unwrap().parse::<u64>().unwrap()
    };
    let lab = Lab::new(4096);
    let cache = lab.cache();
    let mut origin = memory(Arc::default(), Arc::default(), honest());
    origin.places = vec![Arc::new(MemoryPlace {
        answer: Arc::new(|range: Range<u64>| Ok(vec![7; (range.end - range.start) as usize])),
        parallel: 1,
    })];
    let before = resident();
    let blob = cache.blob(lab.digest(), CLAIMED, origin).unwrap();
    for at in [0, CLAIMED / 2, CLAIMED - 1] {
        let mut byte = [0];
        blob.read_at(&mut byte, at).unwrap();
        assert_eq!(byte, [7]);
    }
    assert!(resident() - before < 128 << 10, "in KiB, of 36 GiB");
}
