//! That the content of a plan is requested while names are still looked up.

use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use blocks::{BlockCache, BlockRange, FileId, FileKey, Lookup, ReplayPlan, Touch};
use yolofs::{Mode, PrewarmOptions, Progress};

use crate::prewarm::{extents, run, tree};
use crate::rig::{Mounted, eventually, memory_image};

/// Says when it is asked for the first time.
struct Asked<C> {
    cache: C,
    asked: AtomicBool,
}

impl<C: BlockCache> BlockCache for Asked<C> {
    fn get(&self, file: &FileKey, range: BlockRange, out: &mut [u8]) -> Lookup {
        self.asked.store(true, SeqCst);
        self.cache.get(file, range, out)
    }
}

#[test]
fn content_is_asked_for_before_all_names_were_looked_up() {
    let files = tree();
    let lookup = Touch::Lookup {
        dir: FileId(3),
        name: b"big".to_vec(),
    };
    let plan = ReplayPlan {
        touches: vec![lookup; 1000],
        ..extents(&[(8, run(0, 10))])
    };
    let cache = Asked {
        cache: memory_image(&files, &plan),
        asked: AtomicBool::new(false),
    };
    let mounted = Mounted::new(files.file_system(Mode::Lower));
    // A walk that does not go on until then.
    let told = |progress: Progress| {
        if progress.touches < progress.touches_total {
            eventually("the cache to be asked", || cache.asked.load(SeqCst));
        }
    };
    let options = PrewarmOptions {
        progress: Some(&told),
        ..PrewarmOptions::default()
    };
    let report = mounted.mount().prewarm(&plan, &cache, &options).unwrap();
    assert_eq!((report.touches, report.injected_bytes), (1000, 10 * 4096));
}
