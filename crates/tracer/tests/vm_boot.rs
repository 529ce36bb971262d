//! Two real boots of one VM disk (SeaBIOS, extlinux, kernel, sshd), as QEMU 7.2 logged them, from
//! the log to the plan. `scripts/images/disk.sh` makes such a disk. The machine was busy: the boots
//! took 10.8 and 8.6 seconds, and still read the same blocks.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

use std::fs;
use std::path::Path;

use blocks::testing::{Node, tree};
use blocks::{FileId, RangeSet, Tree};
use tracer::import::{self, Clock, Disk};
use tracer::{MergeOptions, Summary, Trace, TraceInfo, TracedFile, merge};

const DISK_BYTES: u64 = 1 << 30;
const DISK: FileId = FileId(1);

fn disk_tree() -> Tree {
    tree(&[Node::dir(&[("vm.raw", DISK.0)]), Node::file(DISK_BYTES)]).unwrap()
}

fn boots(tree: &Tree) -> [Trace; 2] {
    let disk = Disk {
        info: TraceInfo::default(),
        file: TracedFile {
            file: DISK,
            version: tree.key(DISK).unwrap().version,
            path: tree.path(DISK).unwrap(),
        },
    };
    ["vm-boot-1.log", "vm-boot-2.log"].map(|name| {
        let path = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("tests/fixtures")
            .join(name);
        let imported = import::qemu(&fs::read(path).unwrap(), &disk).unwrap();
        assert_eq!(imported.clock, Clock::Recorded);
        assert_eq!(
            (
                imported.skipped_lines,
                imported.other_devices,
                imported.outside
            ),
            (0, 0, 0)
        );
        imported.trace
    })
}

#[test]
fn a_boot_in_figures() {
    let [boot, _] = boots(&disk_tree());
    let summary = Summary::of(&boot);
    assert_eq!(
        (summary.reads, summary.blocks, summary.runs),
        (740, 7772, 84)
    );
    assert_eq!(summary.bytes_asked, 31_844_864);
    let mib: Vec<u64> = summary
        .footprint
        .iter()
        .map(|f| f.bytes.div_ceil(1 << 20))
        .collect();
    assert_eq!(mib, [31, 32, 35, 38, 67], "what coarser blocks would cost");
}

#[test]
fn two_boots_read_the_same_blocks_in_nearly_the_same_order() {
    let tree = disk_tree();
    let merged = merge(&boots(&tree), &tree, &MergeOptions::default()).unwrap();
    let similarity = merged.similarity;
    assert!((similarity.jaccard_min - 1.0).abs() < 1e-9);
    assert!((similarity.core_share - 1.0).abs() < 1e-9);
    assert!(
        (0.95..1.0).contains(&similarity.order_mean),
        "{}",
        similarity.order_mean
    );

    let plan = merged.plan;
    assert_eq!(plan.block_count(), 7772, "the touched blocks and no others");
    let set: RangeSet = plan.extents.iter().map(|extent| extent.range).collect();
    assert_eq!(set.len(), 7772, "each once");
    assert!(
        plan.extents.len() < 740 / 4,
        "{} extents",
        plan.extents.len()
    );
    assert!(plan.extents.iter().all(|extent| extent.seen == 2));
    assert!(plan.extents.is_sorted_by_key(|extent| extent.bin));
}

#[test]
fn a_boot_survives_its_file() {
    for boot in boots(&disk_tree()) {
        assert_eq!(Trace::read(&boot.write().unwrap()), Ok(boot));
    }
}
