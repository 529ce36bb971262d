//! Random operations to an image in a folder, beside a naive device.

#![allow(
    clippy::allow_attributes,
    clippy::unwrap_used,
    reason = "a test that cannot go on has failed"
)]

mod support;

use std::sync::Arc;
use std::thread;

use lsmt::crash::Numbers;
use lsmt::{
    DirFolder, Durability, ExtentKind, Folder, LiveImage, LsmtError, MemoryFolder, Pace, UpperKind,
};
use proptest::prelude::*;
use support::device::{Model, SECTORS, base, new_upper, random_op, sector};

const KINDS: [UpperKind; 3] = [UpperKind::Append, UpperKind::Sparse, UpperKind::Hybrid];

fn run(folder: &Arc<dyn Folder>, kind: UpperKind, seed: u64, ops: usize) {
    let mut numbers = Numbers::new(seed);
    let base = vec![base()];
    let mut live = LiveImage::create(folder.clone(), base.clone(), &new_upper(kind)).unwrap();
    let mut model = Model::new();
    for _ in 0..ops {
        if numbers.below(10) == 0 {
            // Nothing is flushed: the journal has it.
            drop(live);
            live = LiveImage::open(folder.clone(), base.clone()).unwrap();
        }
        model.act(&live, &random_op(&mut numbers)).unwrap();
        model.check(live.image());
        check_extents(&live);
    }
}

/// Extents leave no gap, and what is said to be zeros is.
fn check_extents(live: &LiveImage) {
    let image = live.image();
    let mut at = 0;
    for extent in image.extents(0..image.virtual_size()) {
        assert_eq!(extent.range.start, at);
        at = extent.range.end;
        if extent.kind != ExtentKind::Data {
            let mut bytes = vec![1; usize::try_from(at - extent.range.start).unwrap()];
            image.read_at(&mut bytes, extent.range.start).unwrap();
            assert!(bytes.iter().all(|&byte| byte == 0), "{extent:?}");
        }
    }
    assert_eq!(at, image.virtual_size());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn a_device_reads_what_was_written(seed in any::<u64>(), kind in 0..3_usize) {
        let folder: Arc<dyn Folder> = Arc::new(MemoryFolder::default());
        run(&folder, KINDS[kind], seed, 40);
    }
}

#[test]
fn a_device_in_files_reads_what_was_written() {
    for (seed, kind) in (0..).zip(KINDS) {
        let dir = tempfile::tempdir().unwrap();
        let folder: Arc<dyn Folder> = Arc::new(DirFolder::new(dir.path()));
        run(&folder, kind, seed, 60);
    }
}

/// Writers, each of its own sectors, and a collector that runs all the time: nobody sees anything but what
/// he wrote last.
#[test]
fn writers_and_a_collector_do_not_disturb_each_other() {
    for kind in [UpperKind::Append, UpperKind::Hybrid] {
        let folder = Arc::new(MemoryFolder::default());
        let live = LiveImage::create(folder.clone(), vec![base()], &new_upper(kind)).unwrap();
        let live = &live;
        let collections = thread::scope(|scope| {
            let writers: Vec<_> = (0..4)
                .map(|writer| scope.spawn(move || write(live, writer)))
                .collect();
            let mut collections = 0;
            loop {
                match live.collect(&Pace::unlimited()) {
                    Ok(_) => collections += 1,
                    Err(error) => panic!("{error}"),
                }
                live.restack(lsmt::Uuid::NIL).map_or_else(
                    |error| assert!(matches!(error, LsmtError::TooLarge { .. }), "{error}"),
                    |()| (),
                );
                // Once at least, however fast the writers are.
                if writers.iter().all(thread::ScopedJoinHandle::is_finished) {
                    break;
                }
            }
            collections
        });
        assert!(collections > 0);
        live.image().flush().unwrap();
        let again = LiveImage::open(folder, vec![base()]).unwrap();
        let read = |live: &LiveImage| {
            let mut bytes = vec![0; usize::try_from(SECTORS * 512).unwrap()];
            live.image().read_at(&mut bytes, 0).unwrap();
            bytes
        };
        assert_eq!(read(live), read(&again));
    }
}

fn write(live: &LiveImage, writer: u64) {
    let image = live.image();
    for round in 1..300_u64 {
        let at = (writer * (SECTORS / 4) + round % 20) * 512;
        let data = [sector(round), sector(round + 1)].concat();
        image.write_at(&data, at, Durability::Flushed).unwrap();
        if round % 50 == 0 {
            image.flush().unwrap();
        }
        let mut found = vec![0; 1024];
        image.read_at(&mut found, at).unwrap();
        assert_eq!(found, data, "writer {writer}, round {round}");
    }
}
