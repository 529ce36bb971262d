//! Stops commits, garbage collections, restacks and all else at each write, sync and rename, as a kill or a
//! loss of power does; what is found then must be what the device may be.

#![allow(
    clippy::allow_attributes,
    clippy::unwrap_used,
    reason = "a test that cannot go on has failed"
)]

mod support;

use std::sync::Arc;

use lsmt::crash::{Crash, CrashFolder, Numbers};
use lsmt::{Durability, Folder, Layer, LiveImage, MemoryFolder, UpperKind};
use support::device::{GROWN, Model, Op, SECTORS, base, new_upper, random_op};

/// Crash points that are tried at least.
const POINTS: u64 = 10_000;
/// Operations of a script.
const OPS: usize = 14;

struct Script {
    kind: UpperKind,
    ops: Vec<Op>,
    base: Arc<Layer>,
}

impl Script {
    fn new(seed: u64, base: &Arc<Layer>) -> Self {
        let mut numbers = Numbers::new(seed + 1);
        let kind = match seed % 3 {
            0 => UpperKind::Append,
            1 => UpperKind::Sparse,
            _ => UpperKind::Hybrid,
        };
        let ops = (0..OPS).map(|_| random_op(&mut numbers)).collect();
        Self {
            kind,
            ops,
            base: base.clone(),
        }
    }

    /// Runs until the end, or until it crashes after so many steps; returns how many it took.
    fn run(&self, steps: Option<u64>) -> (Arc<CrashFolder>, Model, u64) {
        let folder = Arc::new(CrashFolder::default());
        let base = vec![self.base.clone()];
        let live = LiveImage::create(folder.clone(), base, &new_upper(self.kind)).unwrap();
        let created = folder.steps();
        if let Some(steps) = steps {
            folder.crash_after(steps);
        }
        let mut model = Model::new();
        for op in &self.ops {
            match model.act(&live, op) {
                Ok(()) => {}
                Err(error) if steps.is_none() => panic!("{op:?}: {error}"),
                Err(_) => break,
            }
        }
        if steps.is_none() {
            model.check(live.image());
        }
        let taken = folder.steps() - created;
        (folder, model, taken)
    }

    /// Crashes after so many steps, in both ways; then once more while the image is opened.
    fn crash(&self, steps: u64) {
        let (folder, model, _) = self.run(Some(steps));
        for crash in [Crash::Process, Crash::Power] {
            let mut numbers = Numbers::new(steps);
            let left = folder.left_by(crash, &mut numbers);
            let mut model = model.clone();
            let again = CrashFolder::of(&left);
            again.crash_after(numbers.below(8));
            let again = Arc::new(again);
            drop(LiveImage::open(again.clone(), vec![self.base.clone()]));
            let twice = match crash {
                Crash::Process => Crash::Process,
                Crash::Power => [Crash::Process, Crash::Power][usize::from(numbers.below(2) == 0)],
            };
            self.check(again.left_by(twice, &mut numbers), &mut model, crash);
        }
    }

    /// Opens what a crash left, compares it, uses it, and opens it again.
    fn check(&self, left: MemoryFolder, model: &mut Model, crash: Crash) {
        let left = Arc::new(left);
        let live = LiveImage::open(left.clone(), vec![self.base.clone()]).unwrap();
        model.check_after(live.image(), crash);
        let files = live.own_layers().unwrap() + 4;
        assert_eq!(
            left.names().unwrap().len(),
            files,
            "what a crash left is removed"
        );
        for op in &self.ops[..4] {
            model.act(&live, op).unwrap();
        }
        live.image().flush().unwrap();
        drop(live);
        let live = LiveImage::open(left, vec![self.base.clone()]).unwrap();
        model.check(live.image());
    }
}

/// A server was killed with writes that nobody had flushed; its clients reconnect to the next one, and flush.
#[test]
fn a_flush_makes_durable_what_a_process_before_has_written() {
    let base = base();
    for kind in [UpperKind::Append, UpperKind::Sparse, UpperKind::Hybrid] {
        let folder = Arc::new(CrashFolder::default());
        let lowers = || vec![base.clone()];
        let live = LiveImage::create(folder.clone(), lowers(), &new_upper(kind)).unwrap();
        let (old, new) = ([1; 512], [2; 512]);
        live.image().write_at(&old, 0, Durability::Now).unwrap();
        live.image().write_at(&new, 0, Durability::Flushed).unwrap();
        drop(live);
        let live = LiveImage::open(folder.clone(), lowers()).unwrap();
        live.image().flush().unwrap();
        drop(live);
        for seed in 0..20 {
            let left = folder.left_by(Crash::Power, &mut Numbers::new(seed));
            let live = LiveImage::open(Arc::new(left), lowers()).unwrap();
            let mut read = [0; 512];
            live.image().read_at(&mut read, 0).unwrap();
            assert_eq!(read, new, "{kind:?}");
        }
    }
}

/// Bytes of the device before it grows, and after.
const SIZES: [u64; 2] = [SECTORS * 512, GROWN * 512];

/// Makes an image larger, which crashes after so many steps; returns what its folder was then, and whether it was done.
fn resized(kind: UpperKind, base: &Arc<Layer>, steps: u64) -> (Arc<CrashFolder>, bool) {
    let folder = Arc::new(CrashFolder::default());
    let live = LiveImage::create(folder.clone(), vec![base.clone()], &new_upper(kind)).unwrap();
    let last = SIZES[0] - 512;
    live.image()
        .write_at(&[7; 512], last, Durability::Now)
        .unwrap();
    folder.crash_after(steps);
    let done = live.grow(SIZES[1]).is_ok();
    (folder, done)
}

#[test]
fn a_resize_that_crashes_leaves_the_old_size_or_the_new_one() {
    let base = base();
    for kind in [UpperKind::Append, UpperKind::Sparse, UpperKind::Hybrid] {
        let mut seen = std::collections::BTreeSet::new();
        for steps in 0.. {
            let (folder, done) = resized(kind, &base, steps);
            for (crash, seed) in [Crash::Process, Crash::Power]
                .into_iter()
                .flat_map(|crash| (0..12).map(move |seed| (crash, seed)))
            {
                let left = Arc::new(folder.left_by(crash, &mut Numbers::new(seed)));
                let open = || LiveImage::open(left.clone(), vec![base.clone()]).unwrap();
                let live = open();
                let size = live.image().virtual_size();
                assert!(SIZES.contains(&size), "{kind:?} {steps} {crash:?}: {size}");
                assert!(!done || size == SIZES[1], "{kind:?} {crash:?}: it was done");
                seen.insert((done, size));
                let read = |live: &LiveImage, at| {
                    let mut sector = [0xEE; 512];
                    live.image().read_at(&mut sector, at).unwrap();
                    sector
                };
                assert_eq!(read(&live, SIZES[0] - 512), [7; 512], "{kind:?} {steps}");
                // It is made larger again, and used.
                live.grow(SIZES[1]).unwrap();
                let last = SIZES[1] - 512;
                assert_eq!(read(&live, last), [0; 512], "{kind:?} {steps} {crash:?}");
                live.image()
                    .write_at(&[8; 512], last, Durability::Now)
                    .unwrap();
                drop(live);
                let live = open();
                assert_eq!(live.image().virtual_size(), SIZES[1]);
                assert_eq!(read(&live, SIZES[0] - 512), [7; 512]);
                assert_eq!(read(&live, last), [8; 512]);
            }
            if done {
                assert!(steps >= 4, "two headers, each written and synced");
                break;
            }
        }
        let both = SIZES.map(|size| (false, size));
        assert!(both.iter().all(|size| seen.contains(size)), "{kind:?}");
    }
}

#[test]
fn ten_thousand_crashes_leave_no_wrong_byte() {
    let base = base();
    let mut points = 0;
    for seed in 0.. {
        let script = Script::new(seed, &base);
        let (.., taken) = script.run(None);
        for steps in 0..taken {
            script.crash(steps);
            points += 1;
        }
        if points >= POINTS {
            break;
        }
    }
    println!("{points} crash points, each as a kill and as a loss of power");
}
