//! The figures, against blocks counted one by one.

use std::collections::BTreeSet;

use blocks::{Access, Event, FileId, Touch, Version, Warmth};
use proptest::prelude::*;
use tracer::{CommandId, GRANULARITIES, Summary, Trace, TraceEvent, TracedFile};

const SIZE: u64 = 3 << 20;

fn trace(reads: &[(u32, u64, u64)]) -> Trace {
    let event = |(at_us, &(file, offset, len)): (u64, &(u32, u64, u64))| TraceEvent {
        at_us,
        took_us: 10,
        pid: 1,
        command: CommandId(file % 2),
        what: Event::Read(Access {
            file: FileId(file),
            offset,
            len,
            warmth: if file == 0 {
                Warmth::Cold
            } else {
                Warmth::Warm
            },
        }),
    };
    let file = |id| TracedFile {
        file: FileId(id),
        version: Version {
            size: SIZE,
            ..Version::default()
        },
        path: Vec::new(),
    };
    Trace {
        files: (0..3).map(file).collect(),
        commands: vec![b"sh".to_vec(), b"cat".to_vec()],
        events: (0..).zip(reads).map(event).collect(),
        ..Trace::default()
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn footprints_are_what_counting_gives(
        reads in proptest::collection::vec((0_u32..3, 0..SIZE, 1_u64..300_000), 0..20),
    ) {
        let summary = Summary::of(&trace(&reads));
        prop_assert_eq!(summary.footprint.len(), GRANULARITIES.len());
        for footprint in &summary.footprint {
            let mut blocks = BTreeSet::new();
            for (file, offset, len) in &reads {
                let end = (offset + len).min(SIZE);
                for byte in (*offset..end).step_by(4096).chain([end - 1]) {
                    blocks.insert((file, byte / footprint.granularity));
                }
            }
            let bytes = blocks.len() as u64 * footprint.granularity;
            prop_assert_eq!(footprint.bytes, bytes, "at {}", footprint.granularity);
        }
        let asked: u64 = reads.iter().map(|read| read.2).sum();
        prop_assert_eq!(summary.bytes_asked, asked);
        let by_command: u64 = summary.commands.iter().map(|share| share.bytes).sum();
        prop_assert_eq!(by_command, asked);
        let warmth = summary.warmth;
        prop_assert_eq!(warmth.cold + warmth.warm + warmth.unknown, asked);
    }
}

#[test]
fn figures_of_a_small_boot() {
    let mut trace = trace(&[
        (0, 0, 4096),
        (1, 100, 8192),
        (0, 4096, 4096),
        (0, 65_536, 1),
        (1, 8292, 10),
    ]);
    trace.events.push(TraceEvent {
        at_us: 9,
        took_us: 1,
        pid: 1,
        command: CommandId(0),
        what: Event::Touch(Touch::List { dir: FileId(2) }),
    });
    let summary = Summary::of(&trace);
    assert_eq!((summary.reads, summary.lists, summary.lookups), (5, 1, 0));
    assert_eq!((summary.files, summary.blocks, summary.runs), (2, 6, 3));
    assert_eq!((summary.sequential, summary.jumps), (2, 1));
    assert_eq!(summary.waited_us, 50);
    assert_eq!((summary.warmth.cold, summary.warmth.warm), (8193, 8202));
    let who: Vec<(&str, u64)> = summary
        .commands
        .iter()
        .map(|share| (share.command.as_str(), share.requests))
        .collect();
    assert_eq!(who, [("cat", 2), ("sh", 4)]);
}
