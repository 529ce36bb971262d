//! The file form: what goes in comes out, and what is damaged does not come out at all.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use blocks::{Access, Event, FileId, SourceId, Timestamp, Touch, Version, Warmth};
use proptest::prelude::*;
use tracer::{CommandId, Trace, TraceError, TraceEvent, TraceInfo, TracedFile};

/// The trace that `fixtures/v1.trace` holds: something of everything.
fn sample() -> Trace {
    let file = |id: u32, size: u64, path: &[u8]| TracedFile {
        file: FileId(id),
        version: Version {
            size,
            mtime: Timestamp {
                secs: 1_700_000_000 + i64::from(id),
                nanos: 123_456_789,
            },
            ctime: Timestamp {
                secs: -1,
                nanos: 999_999_999,
            },
            inode: 1 << 40 | u64::from(id),
        },
        path: path.to_vec(),
    };
    let event = |at_us, took_us, pid, command, what| TraceEvent {
        at_us,
        took_us,
        pid,
        command: CommandId(command),
        what,
    };
    let read = |file, offset, len, warmth| {
        Event::Read(Access {
            file: FileId(file),
            offset,
            len,
            warmth,
        })
    };
    let lookup = |dir, name: &[u8]| {
        Event::Touch(Touch::Lookup {
            dir: FileId(dir),
            name: name.to_vec(),
        })
    };
    Trace {
        info: TraceInfo {
            label: b"dir:/srv/r\xf6\xf6t".to_vec(),
            source: SourceId::of_label(b"dir:/srv/root"),
            started: Timestamp {
                secs: 1_800_000_000,
                nanos: 1,
            },
        },
        lasted_us: 3_100_000,
        lost: 2,
        files: vec![
            file(0, 4096, b""),
            file(3, 4096, b"bin"),
            file(7, 5 << 30, b"bin/b\xc3\xa4sh"),
            file(u32::MAX, 9, b"link"),
        ],
        commands: vec![b"sh".to_vec(), Vec::new(), b"python3".to_vec()],
        events: vec![
            event(0, 5, 1, 0, lookup(0, b"bin")),
            event(17, 0, 1, 0, lookup(3, b"b\xc3\xa4sh")),
            event(17, 9_000, 1, 0, read(7, 0, 4096, Warmth::Cold)),
            event(
                400,
                2,
                4_000_000_000,
                2,
                read(7, (5 << 30) - 1, 1, Warmth::Warm),
            ),
            event(500, 1, 0, 1, Event::Touch(Touch::List { dir: FileId(3) })),
            event(
                600,
                1,
                9,
                2,
                Event::Touch(Touch::ReadLink {
                    link: FileId(u32::MAX),
                }),
            ),
            event(700, u32::MAX, 9, 2, lookup(0, b"bin")),
            event(
                3_000_000,
                1,
                9,
                2,
                read(7, 1 << 33, 1 << 20, Warmth::Unknown),
            ),
        ],
    }
}

/// A trace as text: one line for every fact, so that a change of the format shows as a change of
/// some line.
fn dump(trace: &Trace) -> String {
    let mut text = String::new();
    let show = |bytes: &[u8]| bytes.escape_ascii().to_string();
    let info = &trace.info;
    writeln!(text, "label \"{}\"", show(&info.label)).unwrap();
    writeln!(text, "source {}", info.source.0).unwrap();
    writeln!(
        text,
        "started {}.{:09}",
        info.started.secs, info.started.nanos
    )
    .unwrap();
    writeln!(text, "lasted {} us, lost {}", trace.lasted_us, trace.lost).unwrap();
    for traced in &trace.files {
        let Version {
            size,
            mtime,
            ctime,
            inode,
        } = traced.version;
        writeln!(
            text,
            "file {} \"{}\" size {size} mtime {}.{:09} ctime {}.{:09} inode {inode}",
            traced.file.0,
            show(&traced.path),
            mtime.secs,
            mtime.nanos,
            ctime.secs,
            ctime.nanos,
        )
        .unwrap();
    }
    for (index, command) in trace.commands.iter().enumerate() {
        writeln!(text, "command {index} \"{}\"", show(command)).unwrap();
    }
    for event in &trace.events {
        let TraceEvent {
            at_us,
            took_us,
            pid,
            command,
            what,
        } = event;
        let what = match what {
            Event::Read(Access {
                file,
                offset,
                len,
                warmth,
            }) => {
                format!("read {} {offset}+{len} {warmth:?}", file.0)
            }
            Event::Touch(Touch::Lookup { dir, name }) => {
                format!("lookup {} \"{}\"", dir.0, show(name))
            }
            Event::Touch(Touch::List { dir }) => format!("list {}", dir.0),
            Event::Touch(Touch::ReadLink { link }) => format!("readlink {}", link.0),
        };
        writeln!(
            text,
            "at {at_us} took {took_us} pid {pid} command {} {what}",
            command.0
        )
        .unwrap();
    }
    text
}

fn fixture(name: &str) -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/fixtures")
        .join(name)
}

/// Writes the fixture anew. Only for a new version of the format, under a new name.
#[test]
#[ignore = "makes the fixture; see docs/trace-format.md"]
fn make_fixture() {
    fs::write(fixture("v1.trace"), sample().write().unwrap()).unwrap();
    fs::write(fixture("v1.txt"), dump(&sample())).unwrap();
}

#[test]
fn version_1_is_read_for_ever() {
    let bytes = fs::read(fixture("v1.trace")).unwrap();
    let trace = Trace::read(&bytes).unwrap();
    assert_eq!(dump(&trace), fs::read_to_string(fixture("v1.txt")).unwrap());
    assert_eq!(trace, sample());
}

#[test]
fn version_1_is_written_as_it_was() {
    assert_eq!(
        sample().write().unwrap(),
        fs::read(fixture("v1.trace")).unwrap()
    );
}

/// A small generator: corruptions must be the same in every run.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, end: usize) -> usize {
        usize::try_from(self.next() % end.max(1) as u64).unwrap()
    }
}

/// Damages bytes in one of the ways that files are damaged in.
fn corrupt(bytes: &[u8], random: &mut Random) -> Vec<u8> {
    let mut bad = bytes.to_vec();
    match random.below(5) {
        0 => {
            for _ in 0..=random.below(4) {
                let at = random.below(bad.len());
                bad[at] ^= 1 << random.below(8);
            }
        }
        1 => bad.truncate(random.below(bytes.len())),
        2 => {
            let (from, to) = (random.below(bytes.len()), random.below(bytes.len()));
            let len = random.below(64).min(bytes.len() - from.max(to));
            bad.copy_within(from..from + len, to);
        }
        3 => {
            let at = random.below(bytes.len());
            let len = random.below(64).min(bytes.len() - at);
            drop(bad.drain(at..at + len));
        }
        _ => {
            let at = random.below(bad.len());
            let extreme = [0, 1, 0x7f, 0xff][random.below(4)];
            let len = random.below(9).min(bad.len() - at);
            bad[at..at + len].fill(extreme);
        }
    }
    bad
}

#[test]
fn no_corruption_is_taken_for_a_trace() {
    let good = sample().write().unwrap();
    let mut random = Random(0x5eed);
    let mut refused = 0;
    for _ in 0..100_000 {
        let bad = corrupt(&good, &mut random);
        match Trace::read(&bad) {
            Ok(_) => assert_eq!(bad, good, "damage was not noticed"),
            Err(_) => refused += 1,
        }
    }
    assert!(refused > 90_000, "hardly anything was damaged: {refused}");
}

/// With a checksum that is right, damage must be an error or some other valid trace, and a trace
/// has one file form only: what is read writes as the same bytes.
#[test]
fn no_forgery_breaks_the_reader() {
    let good = sample().write().unwrap();
    let mut random = Random(0xf0e);
    let mut accepted = 0;
    for _ in 0..100_000 {
        let mut bad = corrupt(&good[..good.len() - 32], &mut random);
        if random.below(2) == 0 && bad.len() >= 32 {
            let len = (bad.len() as u64 + 32).to_le_bytes();
            bad[24..32].copy_from_slice(&len);
        }
        bad.extend_from_slice(blake3::hash(&bad).as_bytes());
        if let Ok(trace) = Trace::read(&bad) {
            trace.check().unwrap();
            // The compatible features are the one field that readers ignore.
            bad[16..20].fill(0);
            let body = bad.len() - 32;
            let checksum = blake3::hash(&bad[..body]);
            bad[body..].copy_from_slice(checksum.as_bytes());
            assert_eq!(trace.write().unwrap(), bad);
            accepted += 1;
        }
    }
    assert!(
        accepted > 1000,
        "hardly any forgery got past the checks: {accepted}"
    );
}

#[test]
fn refusals_say_why() {
    let good = sample().write().unwrap();
    let with = |at: usize, value: u8| {
        let mut bytes = good.clone();
        bytes[at] = value;
        Trace::read(&bytes)
    };
    assert_eq!(Trace::read(b""), Err(TraceError::NotATrace));
    assert_eq!(with(0, b'#'), Err(TraceError::NotATrace));
    assert_eq!(with(8, 2), Err(TraceError::Version { found: 2, known: 1 }));
    assert_eq!(with(12, 4), Err(TraceError::Features { bits: 4 }));
    let actual = good.len() as u64 - 1;
    assert_eq!(
        Trace::read(&good[..good.len() - 1]),
        Err(TraceError::Length {
            expected: actual + 1,
            actual
        })
    );
    assert_eq!(with(100, !good[100]), Err(TraceError::Checksum));
}

#[test]
fn what_cannot_be_is_not_written() {
    let mut disorder = sample();
    disorder.events.swap(0, 7);
    assert_eq!(disorder.write(), Err(TraceError::EventOrder(1)));
    let mut stranger = sample();
    stranger.files.remove(1);
    assert_eq!(stranger.write(), Err(TraceError::Reference(1)));
    let mut nameless = sample();
    nameless.events[0].what = Event::Touch(Touch::Lookup {
        dir: FileId(0),
        name: Vec::new(),
    });
    assert_eq!(nameless.write(), Err(TraceError::Reference(0)));
    let mut twice = sample();
    twice.files[1].file = FileId(0);
    assert_eq!(twice.write(), Err(TraceError::FileOrder(1)));
    let mut deep = sample();
    deep.files[1].path = vec![b'x'; 65_536];
    assert_eq!(deep.write(), Err(TraceError::TooLarge("paths")));
}

/// [`Trace::read`] ends with the same check, so a forger gets no further than a writer.
#[test]
fn impossible_times_and_ranges_are_refused() {
    let malformed = Err(TraceError::Malformed("a time has too many nanoseconds"));
    let mut late = sample();
    late.info.started.nanos = 1_000_000_000;
    assert_eq!(late.write(), malformed);
    let mut late = sample();
    late.files[3].version.ctime.nanos = u32::MAX;
    assert_eq!(late.write(), malformed);
    let mut long = sample();
    long.events[2].what = Event::Read(Access {
        file: FileId(7),
        offset: 2,
        len: u64::MAX - 1,
        warmth: Warmth::Cold,
    });
    assert_eq!(long.write(), Err(TraceError::Reference(2)));

    const STARTED_NANOS: usize = 80 + 40;
    let mut bytes = sample().write().unwrap();
    bytes.truncate(bytes.len() - 32);
    bytes[STARTED_NANOS..STARTED_NANOS + 4].fill(0xff);
    bytes.extend_from_slice(blake3::hash(&bytes).as_bytes());
    assert_eq!(
        Trace::read(&bytes),
        Err(TraceError::Malformed("a time has too many nanoseconds"))
    );
}

/// A trace has one file form: the same name twice would be a second one.
#[test]
fn a_name_stored_twice_is_refused() {
    let mut trace = sample();
    for (event, name) in [(0, b"Aaaa"), (6, b"Bbbb")] {
        trace.events[event].what = Event::Touch(Touch::Lookup {
            dir: FileId(0),
            name: name.to_vec(),
        });
    }
    let mut bytes = trace.write().unwrap();
    let at = bytes.windows(4).position(|part| part == b"Bbbb").unwrap();
    bytes[at..at + 4].copy_from_slice(b"Aaaa");
    bytes.truncate(bytes.len() - 32);
    bytes.extend_from_slice(blake3::hash(&bytes).as_bytes());
    assert_eq!(
        Trace::read(&bytes),
        Err(TraceError::Malformed("a name stored twice"))
    );
}

fn any_event(files: u32) -> impl Strategy<Value = Event> {
    let warmth = prop_oneof![
        Just(Warmth::Unknown),
        Just(Warmth::Cold),
        Just(Warmth::Warm)
    ];
    let read = (0..files, 0_u64..1 << 62, 0_u64..1 << 62, warmth).prop_map(
        |(file, offset, len, warmth)| {
            Event::Read(Access {
                file: FileId(file * 3),
                offset,
                len,
                warmth,
            })
        },
    );
    let name = prop_oneof![
        Just(b"lib".to_vec()),
        proptest::collection::vec(b'0'..=255, 1..256)
    ];
    let touch = (0..files, 0..3, name).prop_map(|(file, kind, name)| {
        let file = FileId(file * 3);
        Event::Touch(match kind {
            0 => Touch::Lookup { dir: file, name },
            1 => Touch::List { dir: file },
            _ => Touch::ReadLink { link: file },
        })
    });
    prop_oneof![read, touch]
}

fn any_trace() -> impl Strategy<Value = Trace> {
    let event = (
        any::<u64>(),
        any::<u32>(),
        any::<u32>(),
        0_u32..3,
        any_event(5),
    );
    let path = proptest::collection::vec(any::<u8>(), 0..20);
    (
        proptest::collection::vec(event, 0..50),
        proptest::collection::vec((path.clone(), any::<u64>(), any::<i64>()), 5),
        proptest::collection::vec(path.clone(), 3),
        path,
        any::<u64>(),
    )
        .prop_map(|(mut events, files, commands, label, lost)| {
            events.sort_by_key(|event| event.0);
            let event = |(at_us, took_us, pid, command, what)| TraceEvent {
                at_us,
                took_us,
                pid,
                command: CommandId(command),
                what,
            };
            let file = |(id, (path, size, secs))| TracedFile {
                file: FileId(id),
                version: Version {
                    size,
                    mtime: Timestamp { secs, nanos: 7 },
                    ..Version::default()
                },
                path,
            };
            Trace {
                info: TraceInfo {
                    source: SourceId::of_label(&label),
                    label,
                    started: Timestamp::default(),
                },
                lasted_us: 1,
                lost,
                files: (0..).step_by(3).zip(files).map(file).collect(),
                commands,
                events: events.into_iter().map(event).collect(),
            }
        })
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn what_goes_in_comes_out(trace in any_trace()) {
        let bytes = trace.write().unwrap();
        prop_assert_eq!(Trace::read(&bytes), Ok(trace));
    }

    #[test]
    fn noise_is_no_trace(noise in proptest::collection::vec(any::<u8>(), 0..500)) {
        prop_assert!(Trace::read(&noise).is_err());
    }
}
