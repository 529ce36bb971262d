//! The merge, against a model that looks at every block by itself.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU32;

use blocks::testing::{Node, tree};
use blocks::{Access, BLOCK_SIZE, BlockIndex, Event, FileId, SourceId, Touch, Tree, Warmth};
use proptest::prelude::*;
use tracer::plot::Plot;
use tracer::{
    CommandId, MergeError, MergeOptions, Trace, TraceEvent, TraceInfo, TracedFile, merge,
};

const BLOCK: u64 = BLOCK_SIZE as u64;
const SIZES: [u64; 3] = [10 * BLOCK + 1, 64 * BLOCK, 3];

/// A root with three files, `0`, `1` and `2`, whose ids begin at `1`.
fn three_files() -> Tree {
    let names: Vec<String> = (0..SIZES.len()).map(|i| i.to_string()).collect();
    let entries: Vec<(&str, u32)> = names.iter().map(String::as_str).zip(1..).collect();
    let mut nodes = vec![Node::dir(&entries)];
    nodes.extend(SIZES.map(Node::file));
    tree(&nodes).unwrap()
}

fn trace_of(tree: &Tree, reads: &[(u32, u64, u64, u64)]) -> Trace {
    let event = |&(file, offset, len, at_us): &(u32, u64, u64, u64)| TraceEvent {
        at_us,
        took_us: 0,
        pid: 0,
        command: CommandId(0),
        what: Event::Read(Access {
            file: FileId(file),
            offset,
            len,
            warmth: Warmth::Unknown,
        }),
    };
    let mut events: Vec<TraceEvent> = reads.iter().map(event).collect();
    events.sort_by_key(|event| event.at_us);
    Trace {
        info: TraceInfo::default(),
        files: files_of(tree),
        commands: vec![Vec::new()],
        events,
        ..Trace::default()
    }
}

fn files_of(tree: &Tree) -> Vec<TracedFile> {
    tree.files()
        .map(|(file, inode)| TracedFile {
            file,
            version: inode.attr.version(),
            path: tree.path(file).unwrap(),
        })
        .collect()
}

fn with_touches(mut trace: Trace, touches: &[(u64, Touch)]) -> Trace {
    trace
        .events
        .extend(touches.iter().map(|(at_us, touch)| TraceEvent {
            at_us: *at_us,
            took_us: 0,
            pid: 0,
            command: CommandId(0),
            what: Event::Touch(touch.clone()),
        }));
    trace.events.sort_by_key(|event| event.at_us);
    trace
}

fn options(bin_ms: u32) -> MergeOptions {
    MergeOptions {
        bin_ms: NonZeroU32::new(bin_ms).unwrap(),
    }
}

type BlockOf = (u32, u64);

/// For each block the time of its first read in each run that read it.
fn model(runs: &[Trace]) -> BTreeMap<BlockOf, Vec<u64>> {
    let mut blocks: BTreeMap<BlockOf, BTreeMap<usize, u64>> = BTreeMap::new();
    for (run, trace) in runs.iter().enumerate() {
        for event in &trace.events {
            let Event::Read(access) = event.what else {
                continue;
            };
            let size = SIZES[access.file.index() - 1];
            let mut at = access.offset - access.offset % BLOCK;
            while access.len > 0 && at < size && at < access.offset + access.len {
                let times = blocks.entry((access.file.0, at / BLOCK)).or_default();
                times.entry(run).or_insert(event.at_us);
                at += BLOCK;
            }
        }
    }
    let sorted = |times: BTreeMap<usize, u64>| {
        let mut times: Vec<u64> = times.into_values().collect();
        times.sort_unstable();
        times
    };
    blocks
        .into_iter()
        .map(|(block, times)| (block, sorted(times)))
        .collect()
}

/// The plan of the model, block by block: what, when, how often.
fn model_plan(blocks: &BTreeMap<BlockOf, Vec<u64>>, bin_ms: u32) -> Vec<(BlockOf, u64, usize)> {
    let bin_us = u64::from(bin_ms) * 1000;
    let median = |times: &[u64]| times[(times.len() - 1) / 2];
    let mut first_use: BTreeMap<(u64, u32), u64> = BTreeMap::new();
    for ((file, _), times) in blocks {
        let at_us = median(times);
        let first = first_use.entry((at_us / bin_us, *file)).or_insert(at_us);
        *first = at_us.min(*first);
    }
    let mut plan: Vec<_> = blocks
        .iter()
        .map(|(block, times)| {
            let bin = median(times) / bin_us;
            ((bin, first_use[&(bin, block.0)], *block), times.len())
        })
        .collect();
    plan.sort_unstable();
    plan.into_iter()
        .map(|((bin, _, block), seen)| (block, bin, seen))
        .collect()
}

fn reads() -> impl Strategy<Value = Vec<(u32, u64, u64, u64)>> {
    let offset = 0..70 * BLOCK;
    let len = prop_oneof![Just(0), 1..3 * BLOCK, Just(32 * BLOCK), Just(u64::MAX / 2)];
    let read = (1_u32..=3, offset, len, 0_u64..900_000);
    proptest::collection::vec(read, 0..40)
}

fn runs() -> impl Strategy<Value = Vec<Vec<(u32, u64, u64, u64)>>> {
    proptest::collection::vec(reads(), 0..6)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn plan_is_the_model_s(runs in runs(), bin_ms in 1_u32..400) {
        let tree = three_files();
        let traces: Vec<Trace> = runs.iter().map(|reads| trace_of(&tree, reads)).collect();
        let plan = merge(&traces, &tree, &options(bin_ms)).unwrap().plan;
        let flat: Vec<(BlockOf, u64, usize)> = plan
            .extents
            .iter()
            .flat_map(|extent| {
                let of = |block: BlockIndex| (extent.file.0, block.0);
                let rest = (u64::from(extent.bin), usize::from(extent.seen));
                extent.range.iter().map(move |block| (of(block), rest.0, rest.1))
            })
            .collect();
        prop_assert_eq!(flat, model_plan(&model(&traces), bin_ms));
        prop_assert_eq!(usize::from(plan.runs), traces.len());
        for pair in plan.extents.windows(2) {
            let (a, b) = (pair[0], pair[1]);
            let joins = (a.file, a.bin, a.seen) == (b.file, b.bin, b.seen)
                && a.range.end() == b.range.start();
            prop_assert!(!joins, "{a:?} and {b:?} are one extent");
        }
        prop_assert!(plan.extents.iter().all(|extent| !extent.range.is_empty()));
    }

    #[test]
    fn similarity_is_the_model_s(runs in runs()) {
        let tree = three_files();
        let traces: Vec<Trace> = runs.iter().map(|reads| trace_of(&tree, reads)).collect();
        let similarity = merge(&traces, &tree, &MergeOptions::default()).unwrap().similarity;
        let sets: Vec<BTreeSet<BlockOf>> = traces
            .iter()
            .map(|trace| model(std::slice::from_ref(trace)).into_keys().collect())
            .collect();
        let share = |part: usize, whole: usize| if whole == 0 { 1.0 } else { part as f64 / whole as f64 };
        let mut jaccards = Vec::new();
        for (i, a) in sets.iter().enumerate() {
            for b in &sets[i + 1..] {
                jaccards.push(share(a.intersection(b).count(), a.union(b).count()));
            }
        }
        let min = jaccards.iter().copied().fold(1.0, f64::min);
        let mean = if jaccards.is_empty() { 1.0 } else { jaccards.iter().sum::<f64>() / jaccards.len() as f64 };
        let blocks = model(&traces);
        let core = blocks.values().filter(|times| times.len() == traces.len()).count();
        prop_assert!((similarity.jaccard_min - min).abs() < 1e-9);
        prop_assert!((similarity.jaccard_mean - mean).abs() < 1e-9);
        prop_assert!((similarity.core_share - share(core, blocks.len())).abs() < 1e-9);
    }

    /// The order of two runs, by the textbook's quadratic recurrence over single blocks.
    #[test]
    fn order_is_the_model_s(a in reads(), b in reads()) {
        let tree = three_files();
        let traces = [trace_of(&tree, &a), trace_of(&tree, &b)];
        let similarity = merge(&traces, &tree, &MergeOptions::default()).unwrap().similarity;
        let (in_a, in_b) = (model(&traces[..1]), model(&traces[1..]));
        let mut common: Vec<(u64, BlockOf)> = in_a
            .iter()
            .filter(|(block, _)| in_b.contains_key(*block))
            .map(|(block, times)| (times[0], *block))
            .collect();
        common.sort_unstable();
        let ranks: Vec<(u64, BlockOf)> = common.iter().map(|(_, block)| (in_b[block][0], *block)).collect();
        let mut longest = vec![1_usize; ranks.len()];
        for i in 0..ranks.len() {
            for j in 0..i {
                if ranks[j] < ranks[i] {
                    longest[i] = longest[i].max(longest[j] + 1);
                }
            }
        }
        let best = longest.into_iter().max().unwrap_or(0);
        let expected = if ranks.is_empty() { 1.0 } else { best as f64 / ranks.len() as f64 };
        prop_assert!((similarity.order_mean - expected).abs() < 1e-9);
    }
}

#[test]
fn one_odd_run_of_three_does_not_pull_a_block_forward() {
    let tree = three_files();
    let late = [(2, 0, BLOCK, 800_000)];
    let odd = [(2, 0, BLOCK, 0)];
    let traces = [late, odd, late].map(|reads| trace_of(&tree, &reads));
    let plan = merge(&traces, &tree, &options(100)).unwrap().plan;
    assert_eq!((plan.extents[0].bin, plan.extents[0].seen), (8, 3));
    let two = merge(&traces[..2], &tree, &options(100)).unwrap().plan;
    assert_eq!(two.extents[0].bin, 0, "of two runs, the earlier");
}

#[test]
fn files_are_found_by_path_and_counted_only_in_their_version() {
    let tree = three_files();
    let mut trace = trace_of(&tree, &[(1, 0, BLOCK, 0), (2, 0, BLOCK, 1), (3, 0, 3, 2)]);
    // The recording knew the files by other ids, one in another version, one since deleted.
    for file in &mut trace.files {
        file.file.0 += 100;
    }
    for event in &mut trace.events {
        if let Event::Read(access) = &mut event.what {
            access.file.0 += 100;
        }
    }
    trace.files[2].version.mtime.secs += 1;
    trace.files[3].path = b"gone".to_vec();
    let merged = merge(&[trace], &tree, &MergeOptions::default()).unwrap();
    let files: Vec<FileId> = merged
        .plan
        .extents
        .iter()
        .map(|extent| extent.file)
        .collect();
    assert_eq!(files, [FileId(1)]);
    assert_eq!((merged.changed_files, merged.missing_files), (1, 1));
}

#[test]
fn touches_come_once_in_the_order_of_first_use() {
    let tree = three_files();
    let lookup = |name: &[u8]| Touch::Lookup {
        dir: FileId::ROOT,
        name: name.to_vec(),
    };
    let list = Touch::List { dir: FileId::ROOT };
    let not_a_link = Touch::ReadLink { link: FileId(1) };
    let first = with_touches(
        trace_of(&tree, &[]),
        &[
            (5, lookup(b"0")),
            (7, list.clone()),
            (9, lookup(b"0")),
            (9, not_a_link),
        ],
    );
    let second = with_touches(
        trace_of(&tree, &[]),
        &[(6, lookup(b"nothing")), (8, list.clone())],
    );
    let plan = merge(&[first, second], &tree, &MergeOptions::default())
        .unwrap()
        .plan;
    assert_eq!(plan.touches, [lookup(b"0"), lookup(b"nothing"), list]);
}

#[test]
fn no_traces_make_an_empty_plan_and_other_sources_none() {
    let tree = three_files();
    let merged = merge(&[], &tree, &MergeOptions::default()).unwrap();
    assert_eq!((merged.plan.runs, merged.plan.extents.len()), (0, 0));
    let a = trace_of(&tree, &[]);
    let mut b = a.clone();
    b.info.source = SourceId::of_label(b"another");
    let wanted = a.info.source;
    assert_eq!(
        merge(&[a, b], &tree, &MergeOptions::default()),
        Err(MergeError::OtherSource { index: 1, wanted })
    );
}

/// A source can be of any size and a trace can say anything: time must not depend on it.
#[test]
fn huge_reads_of_huge_files_cost_nothing() {
    let nodes = [
        Node::dir(&[("huge", 1), ("huger", 2)]),
        Node::file(u64::MAX),
        Node::file(u64::MAX),
    ];
    let tree = tree(&nodes).unwrap();
    let reads = [
        (1, 0, u64::MAX, 0),
        (2, 0, u64::MAX, 1),
        (2, 5, u64::MAX - 5, 2),
    ];
    let trace = trace_of(&tree, &reads);
    let merged = merge(&[trace.clone(), trace], &tree, &MergeOptions::default()).unwrap();
    assert_eq!(merged.plan.extents.len(), 2);
    assert!((merged.similarity.jaccard_min - 1.0).abs() < 1e-9);
}

/// All blocks of these files together are more than 64 bits can count.
#[test]
fn more_blocks_than_a_number_holds_are_still_shares_of_a_whole() {
    const FILES: u32 = 5000;
    let names: Vec<String> = (1..=FILES).map(|file| file.to_string()).collect();
    let entries: Vec<(&str, u32)> = names.iter().map(String::as_str).zip(1..).collect();
    let mut nodes = vec![Node::dir(&entries)];
    nodes.extend((0..FILES).map(|_| Node::file(u64::MAX)));
    let tree = tree(&nodes).unwrap();
    let run = |len| {
        let reads: Vec<_> = (1..=FILES)
            .map(|file| (file, 0, len, file.into()))
            .collect();
        trace_of(&tree, &reads)
    };
    let traces = [run(u64::MAX), run(u64::MAX / 2 + 1)];
    let merged = merge(&traces, &tree, &MergeOptions::default()).unwrap();
    assert_eq!(merged.plan.block_count(), u64::MAX);
    let similarity = merged.similarity;
    assert!((similarity.jaccard_min - 0.5).abs() < 1e-9);
    assert!((similarity.core_share - 0.5).abs() < 1e-9);
    assert!((similarity.order_mean - 1.0).abs() < 1e-9);
    let svg = Plot::of_plan(String::new(), &merged.plan, |file| file.0.to_string()).svg();
    assert!(svg.contains("10000 extents of 5000 files"));
}
