//! Recordings: what one event costs the boot that is recorded, and what comes after it.
//!
//! `cargo bench -p benches --bench tracer`

use std::time::Duration;

use blocks::testing::Node;
use blocks::{Access, Caller, Event, FileId, Observer, Touch, Tree, Warmth};
use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use tracer::{
    CommandId, Limits, MergeOptions, Recorder, Trace, TraceEvent, TraceInfo, TracedFile, merge,
};

const FILES: u32 = 1000;
const FILE_BYTES: u64 = 1 << 20;
const PAGE: u64 = 4096;
/// In all runs together.
const EVENTS: u64 = 100_000;
const RUNS: u64 = 5;
/// Notes in a batch: few enough that a recorder keeps all of them.
const NOTES: u64 = 1000;

fn tree() -> anyhow::Result<Tree> {
    let mut root = Node::dir(&[]);
    root.names = (1..=FILES)
        .map(|file| (name(file).into_bytes(), file))
        .collect();
    let mut nodes = vec![root];
    nodes.extend((0..FILES).map(|_| Node::file(FILE_BYTES)));
    Ok(blocks::testing::tree(&nodes)?)
}

fn name(file: u32) -> String {
    format!("libexample-{file}.so.1.2.3")
}

/// The event with a number: two reads of a page, then a look-up, all over the tree.
fn event(number: u64) -> Event {
    let far = number * 7919; // a prime: all files and pages, in no order
    let file = 1 + u32::try_from(far % u64::from(FILES)).unwrap_or(0);
    if number % 3 == 2 {
        return Event::Touch(Touch::Lookup {
            dir: FileId::ROOT,
            name: name(file).into_bytes(),
        });
    }
    Event::Read(Access {
        file: FileId(file),
        offset: far * PAGE % FILE_BYTES,
        len: PAGE,
        warmth: Warmth::Cold,
    })
}

/// Runs that share most of what they read, at times of their own.
fn trace(tree: &Tree, run: u64, events: u64) -> Trace {
    let files = tree.files().filter_map(|(file, inode)| {
        Some(TracedFile {
            file,
            version: inode.attr.version(),
            path: tree.path(file)?,
        })
    });
    Trace {
        files: files.collect(),
        commands: vec![b"python3".to_vec()],
        events: (0..events)
            .map(|at| TraceEvent {
                at_us: at * (100 + run),
                took_us: 80,
                pid: 42,
                command: CommandId(0),
                what: event(at + run * 50),
            })
            .collect(),
        ..Trace::default()
    }
}

fn noting(c: &mut Criterion) {
    let caller = Caller {
        pid: std::process::id(),
    };
    let mut group = c.benchmark_group("note");
    group.throughput(Throughput::Elements(NOTES));
    for (title, caller) in [
        ("by a thread with a name", caller),
        ("by nobody", Caller::default()),
    ] {
        group.bench_function(title, |b| {
            let fresh = || {
                let events: Vec<Event> = (0..NOTES).map(event).collect();
                (Recorder::new(Limits::default()), events)
            };
            b.iter_batched(
                fresh,
                |(recorder, events)| {
                    for event in events {
                        recorder.note(caller, event, Duration::ZERO);
                    }
                    assert_eq!(recorder.len() as u64, NOTES);
                    recorder
                },
                BatchSize::LargeInput,
            );
        });
    }
    group.finish();
}

fn finishing(c: &mut Criterion) {
    let tree = tree().expect("the tree is a tree");
    let recorded = || {
        let recorder = Recorder::new(Limits::default());
        for number in 0..EVENTS {
            recorder.note(Caller::default(), event(number), Duration::ZERO);
        }
        recorder
    };
    let mut group = c.benchmark_group("after the boot");
    group.sample_size(20);
    group.throughput(Throughput::Elements(EVENTS));
    group.bench_function("finish, 100 000 events", |b| {
        b.iter_batched_ref(
            recorded,
            |recorder| recorder.finish(TraceInfo::default(), &tree),
            BatchSize::LargeInput,
        );
    });
    let traces: Vec<Trace> = (0..RUNS)
        .map(|run| trace(&tree, run, EVENTS / RUNS))
        .collect();
    group.bench_function("merge, 100 000 events of 5 runs", |b| {
        b.iter(|| merge(&traces, &tree, &MergeOptions::default()).expect("one source"));
    });
    group.finish();
}

fn filing(c: &mut Criterion) {
    let tree = tree().expect("the tree is a tree");
    let trace = trace(&tree, 0, EVENTS);
    let bytes = trace.write().expect("the trace holds together");
    let mut group = c.benchmark_group("file of 100 000 events");
    group.sample_size(20);
    group.throughput(Throughput::Bytes(bytes.len() as u64));
    group.bench_function("write", |b| b.iter(|| trace.write()));
    group.bench_function("read", |b| b.iter(|| Trace::read(&bytes)));
    group.finish();
}

criterion_group!(benches, noting, finishing, filing);
criterion_main!(benches);
