//! That a prewarmed mount asks for nothing, and never gives a wrong byte.

use std::fs::{self, File};
use std::num::NonZeroU32;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use blocks::testing::{MemAttrs, MemCache, MemObserver, MemSource, Node};
use blocks::{
    BlockCache, BlockIndex, BlockRange, CachedSource, Extent, FileId, FileKey, NodeKind, Observer,
    ReplayPlan, Timestamp, Touch,
};
use nix::fcntl::{PosixFadviseAdvice, posix_fadvise};
use rawio::cached::cached_pages;
use yolofs::{
    Busy, Config, FileSystem, Lock, Mode, PrewarmError, PrewarmOptions, Progress, Request,
};

use crate::lifecycle::Server;
use crate::rig::{
    ChangingSource, Files, Mounted, PATIENCE, eventually, memory_image, pattern, plan_of,
};
use testkit::undisturbed::undisturbed;

/// A tree with all that a boot touches: nested directories, files of odd sizes, links.
pub(crate) fn tree() -> Files {
    let nodes = vec![
        Node::dir(&[("usr", 1), ("bin", 2), ("empty", 9)]),
        Node::dir(&[("lib", 3)]),
        Node::symlink("usr/lib"),
        Node::dir(&[
            ("libc.so", 4),
            ("libm.so", 5),
            ("one", 6),
            ("page", 7),
            ("big", 8),
        ]),
        Node::file(0),
        Node::symlink("libc.so"),
        Node::file(0),
        Node::file(0),
        Node::file(0),
        Node::file(0),
    ];
    Files::new(
        nodes,
        &[
            (4, pattern(4, 300_001)),
            (6, pattern(6, 1)),
            (7, pattern(7, 4096)),
            (8, pattern(8, 5_000_000)),
            (9, vec![]),
        ],
    )
}

/// What a boot does; returns all bytes it read.
pub(crate) fn boot(root: &Path) -> Vec<u8> {
    let mut bytes = Vec::new();
    for name in [
        "usr/lib/libm.so",
        "bin/one",
        "usr/lib/page",
        "usr/lib/big",
        "empty",
    ] {
        bytes.extend(fs::read(root.join(name)).unwrap());
    }
    for name in ["nothing", "usr/lib/libz.so", "usr/nothing/at/all"] {
        assert!(fs::symlink_metadata(root.join(name)).is_err());
    }
    for entry in fs::read_dir(root.join("usr/lib")).unwrap() {
        bytes.extend(entry.unwrap().metadata().unwrap().size().to_le_bytes());
    }
    bytes.extend(
        fs::read_link(root.join("bin"))
            .unwrap()
            .into_os_string()
            .into_encoded_bytes(),
    );
    bytes
}

#[test]
fn a_prewarmed_boot_sends_no_request() {
    undisturbed(|| {
        let files = tree();
        let recorder = Arc::new(MemObserver::default());
        let observer: Arc<dyn Observer> = recorder.clone();
        let recorded = Mounted::new(files.file_system(Mode::Lower).with_observer(observer));
        let expected = boot(recorded.mount().target());
        drop(recorded);
        let plan = plan_of(recorder.take());
        assert_eq!(plan.block_count(), 74 + 1 + 1 + 1221);

        let image = memory_image(&files, &plan);
        let mounted = Mounted::new(files.file_system(Mode::Lower));
        let report = mounted
            .mount()
            .prewarm(&plan, &image, &PrewarmOptions::default())
            .unwrap();
        assert_eq!(report.failed_touches, 0);
        assert_eq!(report.injected_bytes, 300_001 + 1 + 4096 + 5_000_000);
        assert_eq!(report.skipped_bytes, 0);
        let (bytes, requests) = mounted.requests_of(|| boot(mounted.mount().target()));
        let counters = mounted.mount().counters();
        assert_eq!(bytes, expected);
        assert_eq!(counters.requests(Request::Read), 0);
        assert_eq!(requests, 0, "{:?}", counters.by_kind().collect::<Vec<_>>());
        assert_eq!(counters.evicted_pages, 0);
    });
}

pub(crate) fn run(start: u64, len: u64) -> BlockRange {
    BlockRange::with_len(BlockIndex(start), len)
}

pub(crate) fn extents(runs: &[(u32, BlockRange)]) -> ReplayPlan {
    let extent = |(file, range): &(u32, BlockRange)| Extent {
        file: FileId(*file),
        range: *range,
        bin: 0,
        seen: 1,
    };
    ReplayPlan {
        runs: 1,
        bin_ms: 100,
        extents: runs.iter().map(extent).collect(),
        touches: Vec::new(),
    }
}

/// One file of so many blocks, all of them in the plan.
fn one_file(blocks: u32) -> (Files, ReplayPlan) {
    let nodes = vec![Node::dir(&[("file", 1)]), Node::file(0)];
    let files = Files::new(nodes, &[(1, pattern(1, blocks as usize * 4096))]);
    (files, extents(&[(1, run(0, blocks.into()))]))
}

/// Makes the kernel drop the clean pages of a part of a file. It passes over those that it is about
/// to move somewhere itself, as a busy machine does now and then.
fn drop_pages(file: &File, range: BlockRange) {
    eventually("the pages are gone", || {
        ask_to_drop_pages(file, range);
        let (start, len) = (range.start().0 * 4096, range.len() * 4096);
        cached_pages(file, start, len).unwrap() == 0
    });
}

/// Asks the kernel once to drop the pages of a part of a file.
fn ask_to_drop_pages(file: &File, range: BlockRange) {
    let bytes = |n: u64| i64::try_from(n * 4096).unwrap();
    let (offset, len) = (bytes(range.start().0), bytes(range.len()));
    posix_fadvise(file, offset, len, PosixFadviseAdvice::POSIX_FADV_DONTNEED).unwrap();
}

#[test]
fn a_sample_is_held_back_and_tells_what_is_needed() {
    undisturbed(|| {
        let (files, plan) = one_file(1000);
        let image = memory_image(&files, &plan);
        let mounted = Mounted::without_readahead(files.file_system(Mode::Lower));
        let options = PrewarmOptions {
            hold_back: NonZeroU32::new(10),
            ..PrewarmOptions::default()
        };
        let report = mounted.mount().prewarm(&plan, &image, &options).unwrap();
        let counters = mounted.mount().counters();
        let held_back = counters.sampled_blocks;
        assert!((50..200).contains(&held_back), "{counters:?}");
        assert_eq!(report.injected_bytes, (1000 - held_back) * 4096);
        // A boot that reads the first half of the file.
        let mut half = vec![0; 500 * 4096];
        let file = File::open(mounted.path("file")).unwrap();
        file.read_exact_at(&mut half, 0).unwrap();
        assert_eq!(half, pattern(1, 1000 * 4096)[..half.len()]);
        let counters = mounted.mount().counters();
        assert!(counters.sampled_asked > 0 && counters.sampled_asked < held_back);
        assert_eq!(counters.bytes_read, counters.sampled_asked * 4096);
        assert_eq!(counters.evicted_pages, 0);
    });
}

#[test]
fn pages_that_the_kernel_dropped_are_served_counted_and_brought_back() {
    undisturbed(|| {
        let (files, plan) = one_file(1000);
        let image = memory_image(&files, &plan);
        let mounted = Mounted::without_readahead(files.file_system(Mode::Lower));
        let prewarm = || {
            mounted
                .mount()
                .prewarm(&plan, &image, &PrewarmOptions::default())
                .unwrap()
        };
        assert_eq!(prewarm().injected_bytes, 1000 * 4096);

        let file = File::open(mounted.path("file")).unwrap();
        drop_pages(&file, run(100, 50));
        assert_eq!(
            fs::read(mounted.path("file")).unwrap(),
            pattern(1, 1000 * 4096)
        );
        let counters = mounted.mount().counters();
        assert_eq!(counters.injected_pages, 1000);
        // A machine short of memory may have dropped more.
        assert!((50..1000).contains(&counters.evicted_pages), "{counters:?}");
        assert_eq!(counters.bytes_read, counters.evicted_pages * 4096);

        drop_pages(&file, run(0, 1000));
        let (again, _) = mounted.requests_of(prewarm);
        assert_eq!(
            (again.injected_bytes, again.present_bytes),
            (1000 * 4096, 0)
        );
        let (bytes, requests) = mounted.requests_of(|| fs::read(mounted.path("file")).unwrap());
        assert_eq!((bytes, requests), (pattern(1, 1000 * 4096), 0));
        let nothing_missing = prewarm();
        assert_eq!(nothing_missing.injected_bytes, 0);
        assert_eq!(nothing_missing.present_bytes, 1000 * 4096);
    });
}

#[test]
fn what_the_cache_lacks_is_served_on_demand() {
    undisturbed(|| {
        let (files, _) = one_file(100);
        let image = memory_image(&files, &extents(&[(1, run(10, 20)), (1, run(50, 1))]));
        let mounted = Mounted::without_readahead(files.file_system(Mode::Lower));
        let plan = extents(&[(1, run(0, 200)), (7, run(0, 1))]);
        let report = mounted
            .mount()
            .prewarm(&plan, &image, &PrewarmOptions::default())
            .unwrap();
        assert_eq!(report.injected_bytes, 21 * 4096);
        assert_eq!(
            (report.missing_bytes, report.skipped_bytes),
            (79 * 4096, 79 * 4096)
        );
        assert_eq!(
            fs::read(mounted.path("file")).unwrap(),
            pattern(1, 100 * 4096)
        );
        assert_eq!(mounted.mount().counters().bytes_read, 79 * 4096);
        assert_eq!(mounted.mount().counters().evicted_pages, 0);
    });
}

#[test]
fn a_prewarm_ends_when_it_is_told_to_or_the_budget_is_spent() {
    let (files, plan) = one_file(1000);
    let image = memory_image(&files, &plan);
    let mounted = Mounted::new(files.file_system(Mode::Lower));
    let prewarm =
        |options: PrewarmOptions<'_>| mounted.mount().prewarm(&plan, &image, &options).unwrap();
    let cancel = AtomicBool::new(true);
    let report = prewarm(PrewarmOptions {
        cancel: Some(&cancel),
        ..PrewarmOptions::default()
    });
    assert_eq!((report.injected_bytes, report.cancelled), (0, true));
    let report = prewarm(PrewarmOptions {
        budget_bytes: Some(500 * 4096),
        ..PrewarmOptions::default()
    });
    assert!((1..=500 * 4096).contains(&report.injected_bytes) && !report.cancelled);
    assert_eq!(
        fs::read(mounted.path("file")).unwrap(),
        pattern(1, 1000 * 4096)
    );
}

#[test]
fn locked_pages_survive_what_drops_all_others() {
    undisturbed(|| {
        let (files, plan) = one_file(300);
        let image = memory_image(&files, &plan);
        let mounted = Mounted::new(files.file_system(Mode::Lower));
        let options = PrewarmOptions {
            lock: Lock::Yes,
            ..PrewarmOptions::default()
        };
        let report = mounted.mount().prewarm(&plan, &image, &options).unwrap();
        assert_eq!(report.locked_bytes, 300 * 4096);
        let file = File::open(mounted.path("file")).unwrap();
        ask_to_drop_pages(&file, run(0, 300));
        let (bytes, requests) = mounted.requests_of(|| fs::read(mounted.path("file")).unwrap());
        assert_eq!((bytes, requests), (pattern(1, 300 * 4096), 0));
        mounted.mount().release();
        drop_pages(&file, run(0, 300));
        let (_, requests) = mounted.requests_of(|| fs::read(mounted.path("file")).unwrap());
        assert!(requests > 0);
    });
}

#[test]
fn files_that_may_not_be_held_are_warm_all_the_same() {
    undisturbed(|| {
        let files = tree();
        let every_file = [
            (4, run(0, 80)),
            (6, run(0, 1)),
            (7, run(0, 1)),
            (8, run(0, 1221)),
        ];
        let plan = extents(&every_file);
        let image = memory_image(&files, &plan);
        let mounted = Mounted::new(files.file_system(Mode::Lower));
        let options = PrewarmOptions {
            max_pins: Some(2),
            ..PrewarmOptions::default()
        };
        let report = mounted.mount().prewarm(&plan, &image, &options).unwrap();
        assert_eq!(report.pinned, 2);
        assert!(report.unpinned > 0);
        assert_eq!(report.skipped_bytes, 0);
        let read = || fs::read(mounted.path("usr/lib/big")).unwrap();
        let (bytes, requests) = mounted.requests_of(read);
        assert_eq!((bytes, requests), (pattern(8, 5_000_000), 0));
    });
}

#[test]
fn only_regular_files_have_content_to_bring() {
    let mut device = Node::new(NodeKind::CharDevice);
    device.attr.size = 8192;
    device.attr.rdev = (1 << 8) | 7; // the kernel's "full": opening it would do no harm
    let mut dir = Node::dir(&[]);
    dir.attr.size = 8192;
    let link = Node::symlink(&"x".repeat(4000));
    let nodes = vec![
        Node::dir(&[("dir", 1), ("device", 2), ("link", 3)]),
        dir,
        device,
        link,
    ];
    let files = Files::new(nodes, &[]);
    let plan = extents(&[0, 1, 2, 3].map(|file| (file, run(0, 2))));
    let image = MemCache::default();
    for file in 0..4 {
        image.put(&files.key(file), run(0, 2), &[7; 8192]);
    }
    let mounted = Mounted::new(files.file_system(Mode::Lower));
    let options = PrewarmOptions {
        lock: Lock::Yes,
        ..PrewarmOptions::default()
    };
    let report = mounted.mount().prewarm(&plan, &image, &options).unwrap();
    assert_eq!((report.injected_bytes, report.locked_bytes), (0, 0));
    assert_eq!(mounted.mount().counters().requests(Request::Open), 0);
    assert_eq!(fs::read_dir(mounted.path("dir")).unwrap().count(), 0);
    assert_eq!(
        fs::read_link(mounted.path("link"))
            .unwrap()
            .as_os_str()
            .len(),
        4000
    );
}

#[test]
fn a_mount_may_go_in_the_middle_of_a_prewarm() {
    let (files, plan) = one_file(2000);
    let image = memory_image(&files, &plan);
    let (mount, _dir) = Mounted::new(files.file_system(Mode::Lower)).into_mount();
    let unmount = |progress: Progress| {
        if progress.bytes > 0 && mount.visible() {
            mount.unmount(Busy::Wait, PATIENCE).unwrap();
        }
    };
    let options = PrewarmOptions {
        progress: Some(&unmount),
        ..PrewarmOptions::default()
    };
    let result = mount.prewarm(&plan, &image, &options);
    assert!(matches!(result, Err(PrewarmError::Unmounted)), "{result:?}");
    assert!(mount.wait_for_users(PATIENCE));
}

#[test]
fn touches_that_lead_nowhere_are_counted_and_harmless() {
    let (files, _) = one_file(1);
    let mounted = Mounted::new(files.file_system(Mode::Lower));
    let plan = ReplayPlan {
        touches: vec![
            Touch::List { dir: FileId(99) },
            Touch::ReadLink { link: FileId(1) },
            Touch::Lookup {
                dir: FileId(1),
                name: b"below-a-file".to_vec(),
            },
            Touch::Lookup {
                dir: FileId::ROOT,
                name: b"file".to_vec(),
            },
        ],
        ..ReplayPlan::default()
    };
    let cache = MemCache::default();
    let report = mounted
        .mount()
        .prewarm(&plan, &cache, &PrewarmOptions::default())
        .unwrap();
    assert_eq!((report.touches, report.failed_touches), (4, 3));
}

#[test]
fn readers_beside_the_injection_get_every_byte_right() {
    let (files, plan) = one_file(8000);
    let image = memory_image(&files, &plan);
    let expected = pattern(1, 8000 * 4096);
    let mounted = Mounted::new(files.file_system(Mode::Lower));
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for seed in 0..3_u64 {
            let (mounted, expected, done) = (&mounted, &expected, &done);
            scope.spawn(move || {
                let file = File::open(mounted.path("file")).unwrap();
                let mut state = seed * 7919 + 1;
                let mut buf = vec![0; 20_000];
                let mut rounds = 0_u32;
                while !done.load(SeqCst) || rounds < 200 {
                    rounds += 1;
                    state = state
                        .wrapping_mul(6_364_136_223_846_793_005)
                        .wrapping_add(1);
                    let offset = state % (expected.len() as u64 - 20_000);
                    file.read_exact_at(&mut buf, offset).unwrap();
                    let at = usize::try_from(offset).unwrap();
                    assert!(buf == expected[at..at + 20_000], "wrong bytes at {offset}");
                }
            });
        }
        for round in 0..4 {
            let report = mounted
                .mount()
                .prewarm(&plan, &image, &PrewarmOptions::default())
                .unwrap();
            assert_eq!(report.skipped_bytes, 0, "round {round}");
            ask_to_drop_pages(&File::open(mounted.path("file")).unwrap(), run(0, 8000));
        }
        done.store(true, SeqCst);
    });
}

#[test]
fn a_server_short_of_memory_gives_every_byte_right() {
    let group = format!("yolofs-test-{}", std::process::id());
    let v1 = Path::new("/sys/fs/cgroup/memory");
    let (dir, limit) = if v1.is_dir() {
        (v1.join(&group), "memory.limit_in_bytes")
    } else {
        (Path::new("/sys/fs/cgroup").join(&group), "memory.max")
    };
    fs::create_dir(&dir).unwrap();
    fs::write(dir.join(limit), (48_u64 << 20).to_string()).unwrap();
    let join = format!("echo $$ > {}/cgroup.procs;", dir.display());
    let server = Server::start(&join, 128);
    let file = File::open(server.target.join("file")).unwrap();
    let mut words = vec![0; 1 << 20];
    for _ in 0..2 {
        for mib in 0..128_u64 {
            file.read_exact_at(&mut words, mib << 20).unwrap();
            let right = words.chunks_exact(8).enumerate().all(|(word, bytes)| {
                u64::from_le_bytes(bytes.try_into().unwrap()) == (mib << 20) + word as u64 * 8
            });
            assert!(right, "wrong bytes in MiB {mib}");
        }
    }
    drop(file);
    let (injected, evicted) = server.finish();
    assert_eq!(injected, 128 << 8);
    assert!(evicted > 0, "128 MiB do not fit into 48");
    eventually("the group is empty", || fs::remove_dir(&dir).is_ok());
}

#[test]
fn the_kernel_forgets_the_pages_of_a_file_that_changed() {
    let (files, plan) = one_file(3);
    let source = Arc::new(ChangingSource::default());
    let key = files.key(1);
    let put = |key: FileKey, data: Vec<u8>| {
        let mut mem: std::sync::RwLockWriteGuard<'_, MemSource> = source.0.write().unwrap();
        mem.insert(key, data);
    };
    put(key, pattern(1, 3 * 4096));
    // The boot image has the first block only, of the version that was recorded.
    let image = Arc::new(memory_image(&files, &extents(&[(1, run(0, 1))])));
    let stack = CachedSource::new(Arc::clone(&image), Arc::clone(&source));
    let attrs = Arc::new(MemAttrs::of(&files.tree));
    let fs = FileSystem::new(files.tree.clone(), Arc::new(stack), Config::default())
        .with_attrs(Arc::clone(&attrs) as _);
    let mounted = Mounted::without_readahead(fs);
    let report = mounted
        .mount()
        .prewarm(&plan, &*image, &PrewarmOptions::default())
        .unwrap();
    assert_eq!(report.injected_bytes, 4096);

    let mut version = key.version;
    version.size = 4 * 4096;
    version.ctime = Timestamp { secs: 9, nanos: 9 };
    put(FileKey { version, ..key }, pattern(2, 4 * 4096));
    attrs.set_version(key.file, version);
    let file = File::open(mounted.path("file")).unwrap();
    let mut block = vec![0; 4096];
    file.read_exact_at(&mut block, 8192).unwrap();
    assert_eq!(
        block,
        pattern(2, 4 * 4096)[8192..12288],
        "never a stale byte from the source"
    );
    eventually("the injected page is forgotten", || {
        fs::read(mounted.path("file")).unwrap() == pattern(2, 4 * 4096)
    });
    assert_eq!(mounted.path("file").metadata().unwrap().ctime_nsec(), 9);
    let counters = mounted.mount().counters();
    assert_eq!((counters.diverted_files, counters.reads_failed), (1, 0));
    let report = mounted
        .mount()
        .prewarm(&plan, &*image, &PrewarmOptions::default())
        .unwrap();
    assert_eq!(
        report.injected_bytes, 0,
        "the boot image is of another version"
    );
    image.put(&key, run(1, 1), &[0; 4096]);
    assert_eq!(
        fs::read(mounted.path("file")).unwrap(),
        pattern(2, 4 * 4096)
    );
}
