//! The recorder: what it keeps, in which order, and what it says about what it did not keep.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

use std::fs;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use blocks::testing::{Node, tree};
use blocks::{Access, Caller, Event, FileId, Observer, SourceId, Timestamp, Touch, Tree, Warmth};
use tracer::{Allowance, Limits, Recorder, TraceInfo};

fn small_tree() -> Tree {
    let nodes = [
        Node::dir(&[("bin", 1), ("link", 3)]),
        Node::dir(&[("sh", 2)]),
        Node::file(10_000),
        Node::symlink("bin/sh"),
    ];
    tree(&nodes).unwrap()
}

fn info() -> TraceInfo {
    TraceInfo {
        label: b"dir:/srv/root".to_vec(),
        source: SourceId::of_label(b"dir:/srv/root"),
        started: Timestamp::default(),
    }
}

fn read(file: u32, offset: u64, len: u64) -> Event {
    Event::Read(Access {
        file: FileId(file),
        offset,
        len,
        warmth: Warmth::Cold,
    })
}

fn lookup(name: &[u8]) -> Event {
    Event::Touch(Touch::Lookup {
        dir: FileId::ROOT,
        name: name.to_vec(),
    })
}

const NOBODY: Caller = Caller { pid: 0 };
const NO_TIME: Duration = Duration::ZERO;

#[test]
fn keeps_every_event_with_its_file() {
    let recorder = Recorder::new(Limits::default());
    let events = [
        lookup(b"bin"),
        read(2, 0, 4096),
        Event::Touch(Touch::List { dir: FileId(1) }),
        Event::Touch(Touch::ReadLink { link: FileId(3) }),
        read(2, 8192, 4096),
    ];
    for event in &events {
        recorder.note(NOBODY, event.clone(), NO_TIME);
    }
    assert_eq!(recorder.len(), events.len());
    let tree = small_tree();
    let trace = recorder.finish(info(), &tree);

    trace.check().unwrap();
    assert_eq!(trace.info, info());
    assert_eq!(trace.lost, 0);
    let what: Vec<&Event> = trace.events.iter().map(|event| &event.what).collect();
    assert_eq!(what, events.iter().collect::<Vec<_>>());
    let paths: Vec<&[u8]> = trace.files.iter().map(|f| f.path.as_slice()).collect();
    assert_eq!(paths, [b"".as_slice(), b"bin", b"bin/sh", b"link"]);
    for file in &trace.files {
        assert_eq!(
            Some(file.version),
            tree.key(file.file).map(|key| key.version)
        );
    }
}

#[test]
fn orders_events_by_when_they_were_asked_for() {
    let recorder = Recorder::new(Limits::default());
    std::thread::sleep(Duration::from_millis(5)); // so that an event can have begun earlier
    recorder.note(NOBODY, read(2, 4096, 1), NO_TIME);
    recorder.note(NOBODY, read(2, 0, 1), Duration::from_millis(5));
    let trace = recorder.finish(info(), &small_tree());
    assert_eq!(trace.events[0].what, read(2, 0, 1));
    assert_eq!(trace.events[0].took_us, 5000);
    assert_eq!(trace.events[1].what, read(2, 4096, 1));
    assert!(trace.lasted_us >= trace.events[1].at_us);
}

#[test]
fn stops_at_the_limit_of_events_and_says_so() {
    let limits = Limits {
        events: 3,
        ..Limits::default()
    };
    let recorder = Recorder::new(limits);
    for block in 0..10 {
        recorder.note(NOBODY, read(2, block * 4096, 4096), NO_TIME);
    }
    let trace = recorder.finish(info(), &small_tree());
    assert_eq!(trace.events.len(), 3);
    assert_eq!(trace.lost, 7);
}

#[test]
fn keeps_nothing_once_names_do_not_fit() {
    let limits = Limits {
        name_bytes: 6,
        ..Limits::default()
    };
    let recorder = Recorder::new(limits);
    for event in [lookup(b"bin"), lookup(b"long"), lookup(b"x"), read(2, 0, 1)] {
        recorder.note(NOBODY, event, NO_TIME);
    }
    let trace = recorder.finish(info(), &small_tree());
    assert_eq!(
        trace.events.len(),
        1,
        "the beginning of a boot, not a sieve of it"
    );
    assert_eq!(trace.lost, 3);
}

/// What the layers of a container may keep, they may keep together.
#[test]
fn recorders_of_one_boot_share_what_they_keep() {
    let allowance = Arc::new(Allowance::new(Limits {
        events: 5,
        name_bytes: 100,
    }));
    let layers = [(); 3].map(|()| Recorder::sharing(&allowance));
    for _ in 0..4 {
        for layer in &layers {
            layer.note(NOBODY, lookup(b"bin"), NO_TIME);
        }
    }
    let traces = layers.map(|layer| layer.finish(info(), &small_tree()));
    assert_eq!(
        traces.iter().map(|trace| trace.events.len()).sum::<usize>(),
        5
    );
    assert_eq!(traces.iter().map(|trace| trace.lost).sum::<u64>(), 7);
}

/// A tree of some KiB whose paths are gigabytes: the recorder of first boots took 7 GB for them.
#[test]
fn paths_of_a_deep_tree_do_not_fill_the_memory() {
    const DEPTH: u32 = 300;
    const FILES: u32 = 3000;
    let name = "n".repeat(200);
    let mut nodes: Vec<Node> = (1..=DEPTH)
        .map(|next| Node::dir(&[(&name, next)]))
        .collect();
    let names: Vec<_> = (0..FILES).map(|number| format!("{number:04}")).collect();
    let numbered = names.iter().map(String::as_str).zip(DEPTH + 1..);
    nodes.push(Node::dir(&numbered.collect::<Vec<_>>()));
    nodes.extend((0..FILES).map(|_| Node::file(4096)));
    let deep = tree(&nodes).unwrap();
    let recorder = Recorder::new(Limits::default());
    for file in DEPTH + 1..=DEPTH + FILES {
        recorder.note(NOBODY, read(file, 0, 4096), NO_TIME);
    }
    let trace = recorder.finish(info(), &deep);
    trace.check().unwrap();
    let paths: usize = trace.files.iter().map(|file| file.path.len()).sum();
    assert!(paths <= 32 << 20, "{paths}");
    // The beginning of the boot, and nothing else.
    let kept = trace.files.len();
    assert!(kept > 500, "{kept}");
    let files = trace.files.iter().map(|file| file.file.0);
    assert!(files.eq((DEPTH + 1..).take(kept)));
    assert_eq!(trace.events.len(), kept);
    assert_eq!(trace.lost, u64::from(FILES) - kept as u64);
}

#[test]
fn counts_events_about_unknown_files_and_ignores_impossible_names() {
    let recorder = Recorder::new(Limits::default());
    recorder.note(NOBODY, read(77, 0, 1), NO_TIME);
    recorder.note(NOBODY, lookup(&[b'x'; 256]), NO_TIME);
    recorder.note(NOBODY, lookup(&[b'x'; 255]), NO_TIME);
    let trace = recorder.finish(info(), &small_tree());
    trace.check().unwrap();
    assert_eq!((trace.events.len(), trace.lost), (1, 1));
}

#[test]
fn is_deaf_after_the_end() {
    let recorder = Recorder::new(Limits::default());
    recorder.note(NOBODY, read(2, 0, 1), NO_TIME);
    assert_eq!(recorder.finish(info(), &small_tree()).events.len(), 1);
    recorder.note(NOBODY, read(2, 0, 1), NO_TIME);
    let second = recorder.finish(info(), &small_tree());
    assert_eq!((second.events.len(), second.lost), (0, 0));
}

#[test]
fn knows_when_it_last_heard_something() {
    let before = Instant::now();
    let recorder = Recorder::new(Limits {
        events: 1,
        ..Limits::default()
    });
    assert_eq!(recorder.last_event(), None);
    recorder.note(NOBODY, read(2, 0, 1), NO_TIME);
    let first = recorder.last_event().unwrap();
    assert!(before <= first + Duration::from_micros(1) && first <= Instant::now());
    std::thread::sleep(Duration::from_millis(1)); // so that the second event is later
    recorder.note(NOBODY, read(2, 0, 1), NO_TIME); // beyond the limit
    assert!(recorder.last_event().unwrap() > first);
}

/// One process is two programs, one after the other: `sh` waits for a line, then becomes `cat`.
#[test]
fn names_a_process_as_it_is_called_at_that_moment() {
    use std::io::{Read as _, Write as _};
    let mut child = Command::new("sh")
        .args(["-c", "echo ready; read line; exec cat"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let caller = Caller { pid: child.id() };
    let (mut to, mut from) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
    from.read_exact(&mut [0; 6]).unwrap();

    let recorder = Recorder::new(Limits::default());
    recorder.note(caller, read(2, 0, 1), NO_TIME);
    to.write_all(b"go\nx").unwrap();
    from.read_exact(&mut [0; 1]).unwrap(); // only `cat` answers
    recorder.note(caller, read(2, 0, 1), NO_TIME);
    drop(to);
    child.wait().unwrap();
    recorder.note(caller, read(2, 0, 1), NO_TIME);

    let trace = recorder.finish(info(), &small_tree());
    let names: Vec<String> = trace
        .events
        .iter()
        .map(|event| trace.command(event.command))
        .collect();
    assert_eq!(names, ["sh", "cat", ""]);
    assert!(trace.events.iter().all(|event| event.pid == caller.pid));
}

/// The descriptors that names are read through are bounded and closed at the end.
#[test]
fn holds_few_descriptors() {
    let mine = || fs::read_dir("/proc/self/fd").unwrap().count();
    let before = mine();
    let recorder = Recorder::new(Limits::default());
    let mut children: Vec<_> = (0..150)
        .map(|_| Command::new("cat").stdin(Stdio::piped()).spawn().unwrap())
        .collect();
    let with_children = mine();
    for child in &children {
        recorder.note(Caller { pid: child.id() }, read(2, 0, 1), NO_TIME);
    }
    let held = mine() - with_children;
    assert!((1..=128).contains(&held), "{held} descriptors are held");
    drop(recorder.finish(info(), &small_tree()));
    for child in &mut children {
        drop(child.stdin.take());
        child.wait().unwrap();
    }
    // Other tests of this process may have opened or closed a few at the same time.
    assert!(mine() <= before + 20, "descriptors leak");
}

#[test]
fn loses_nothing_under_many_threads() {
    let recorder = Arc::new(Recorder::new(Limits::default()));
    std::thread::scope(|scope| {
        for thread in 0..4_u64 {
            let recorder = Arc::clone(&recorder);
            scope.spawn(move || {
                for block in 0..500 {
                    recorder.note(NOBODY, read(2, thread * 1000 + block, 1), NO_TIME);
                }
            });
        }
    });
    let trace = recorder.finish(info(), &small_tree());
    trace.check().unwrap();
    let mut offsets: Vec<u64> = trace
        .events
        .iter()
        .map(|event| match event.what {
            Event::Read(access) => access.offset,
            Event::Touch(_) => u64::MAX,
        })
        .collect();
    offsets.sort_unstable();
    let expected: Vec<u64> = (0..4)
        .flat_map(|t| (0..500).map(move |b| t * 1000 + b))
        .collect();
    assert_eq!(offsets, expected);
}

/// A mount whose source was not scanned gives ids of its own.
#[test]
fn files_are_called_what_the_tree_calls_them() {
    let recorder = Recorder::new(Limits::default());
    let list = |dir| Event::Touch(Touch::List { dir: FileId(dir) });
    let link = |link| Event::Touch(Touch::ReadLink { link: FileId(link) });
    for event in [
        lookup(b"bin"),
        read(7, 0, 4096),
        list(5),
        read(9, 0, 1),
        link(8),
    ] {
        recorder.note(NOBODY, event, NO_TIME);
    }
    let mut heard = recorder.stop();
    recorder.note(NOBODY, lookup(b"late"), NO_TIME);
    assert!(recorder.is_empty(), "it is deaf now");
    let left_out = heard.call_files(|file| match file.0 {
        0 => Some(FileId(0)),
        5 => Some(FileId(1)),
        7 => Some(FileId(2)),
        8 => Some(FileId(3)),
        _ => None,
    });
    assert_eq!(left_out, [FileId(9)]);
    let trace = heard.into_trace(info(), &small_tree());
    trace.check().unwrap();
    let what: Vec<&Event> = trace.events.iter().map(|event| &event.what).collect();
    assert_eq!(
        what,
        [&lookup(b"bin"), &read(2, 0, 4096), &list(1), &link(3)]
    );
    assert_eq!(
        trace.lost, 0,
        "what changed is left out, and the rest is whole"
    );
}
