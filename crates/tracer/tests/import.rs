//! Imports of logs that real tools wrote (`fixtures/`), and of lines that none should have written.
//!
//! How the logs were made: `qemu-io` with three reads of an 8 MiB image; QEMU 7.2 looking for
//! something to boot on it, with and without time stamps and format probing; the kernel's `blk`
//! tracer on a loop device, read by `dd` (`bs=4k skip=100 count=3 iflag=direct`, then
//! `bs=64k skip=10 count=2`), as text and through blkparse 1.2.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

use std::fs;
use std::path::Path;

use blocks::{Event, FileId, SourceId, Timestamp, Version};
use tracer::import::{self, BlkparseOptions, Clock, Disk, ImportError, Imported};
use tracer::{Trace, TraceInfo, TracedFile};

const KIB: u64 = 1024;
const MIB: u64 = 1024 * KIB;

fn disk(size: u64) -> Disk {
    Disk {
        info: TraceInfo {
            label: b"disk:/srv/d.raw".to_vec(),
            source: SourceId::of_label(b"disk:/srv/d.raw"),
            started: Timestamp::default(),
        },
        file: TracedFile {
            file: FileId(1),
            version: Version {
                size,
                ..Version::default()
            },
            path: b"d.raw".to_vec(),
        },
    }
}

fn fixture(name: &str) -> Vec<u8> {
    fs::read(
        Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("tests/fixtures")
            .join(name),
    )
    .unwrap()
}

fn qemu(log: &[u8]) -> Imported {
    let imported = import::qemu(log, &disk(8 * MIB)).unwrap();
    imported.trace.check().unwrap();
    imported
}

fn blkparse(text: &[u8]) -> Imported {
    let imported = import::blkparse(text, &disk(32 * MIB), &BlkparseOptions::default()).unwrap();
    imported.trace.check().unwrap();
    imported
}

fn reads(trace: &Trace) -> Vec<(u64, u64, u64)> {
    let read = |event: &tracer::TraceEvent| match &event.what {
        Event::Read(access) => (event.at_us, access.offset, access.len),
        Event::Touch(_) => panic!("a block trace has no metadata"),
    };
    trace.events.iter().map(read).collect()
}

#[test]
fn reads_of_qemu_io() {
    let imported = qemu(&fixture("qemu-io.log"));
    assert_eq!(imported.clock, Clock::Counted);
    assert_eq!(
        (
            imported.skipped_lines,
            imported.other_devices,
            imported.outside
        ),
        (0, 0, 0)
    );
    assert_eq!(
        reads(&imported.trace),
        [
            (0, 0, 64 * KIB),
            (4000, MIB, 4 * KIB),
            (8000, 7 * MIB, 128 * KIB)
        ]
    );
    assert_eq!(imported.trace.info, disk(0).info);
}

#[test]
fn reads_of_qemu_with_time_stamps() {
    let imported = qemu(&fixture("qemu-timestamps.log"));
    assert_eq!(imported.clock, Clock::Recorded);
    assert_eq!(reads(&imported.trace), [(0, 0, 512), (130_996, 0, 512)]);
    assert!(
        imported
            .trace
            .events
            .iter()
            .all(|event| event.pid == 30_386)
    );
    assert_eq!(imported.trace.lasted_us, 130_996);
}

#[test]
fn probing_for_a_format_is_another_device() {
    let imported = qemu(&fixture("qemu-probing.log"));
    assert_eq!(imported.trace.events.len(), 2);
    assert_eq!(imported.other_devices, 1);
}

#[test]
fn reads_of_blkparse() {
    let expected = [
        (0, 800 * 512, 4 * KIB),
        (124, 808 * 512, 4 * KIB),
        (218, 816 * 512, 4 * KIB),
        (2596, 1280 * 512, 64 * KIB),
        (2812, 1408 * 512, 256 * KIB),
    ];
    for name in ["blkparse-default.txt", "blkparse-fields.txt"] {
        let imported = blkparse(&fixture(name));
        assert_eq!(reads(&imported.trace), expected, "{name}");
        assert_eq!(
            (imported.skipped_lines, imported.first_skipped),
            (0, None),
            "{name}"
        );
        assert_eq!(imported.clock, Clock::Recorded);
    }
    let default = blkparse(&fixture("blkparse-default.txt")).trace;
    assert_eq!(default.events[0].pid, 1351);
    assert_eq!(default.commands, [b""], "blkparse did not know the name");
}

#[test]
fn reads_of_the_kernel_s_own_text() {
    let imported = blkparse(&fixture("blk-classic.txt"));
    assert_eq!(imported.skipped_lines, 0);
    assert_eq!(imported.trace.events.len(), 5);
    assert_eq!(imported.trace.commands, [b"dd"]);
}

#[test]
fn a_partition_is_cut_out_of_its_device() {
    let text = b"8,0 1 1 0.5 9 Q R 2047 + 1 [a]\n\
        8,0 1 2 1.0 9 Q R 2048 + 8 [a]\n\
        8,0 1 3 1.25 9 Q RA 2056 + 8 [a b]\n\
        8,0 1 3 1.50 9 Q R 2056 + 16 [a]\n";
    let options = BlkparseOptions { first_sector: 2048 };
    let imported = import::blkparse(text, &disk(8 * KIB), &options).unwrap();
    assert_eq!(
        reads(&imported.trace),
        [(0, 0, 4 * KIB), (250_000, 4 * KIB, 4 * KIB)]
    );
    assert_eq!(
        imported.outside, 2,
        "one before the partition, one across its end"
    );
    assert_eq!(imported.trace.commands, [b"a".to_vec(), b"a b".to_vec()]);
}

#[test]
fn lines_out_of_order_are_put_in_order() {
    let line = |time: &str, offset| {
        format!("7@{time}:blk_co_preadv blk 0x1 bs 0x2 offset {offset} bytes 512 flags 0x0\n")
    };
    let log = [
        line("10.000300", 1024),
        line("10.000100", 512),
        line("9.999999", 0),
    ]
    .concat();
    let expected = [(0, 0, 512), (101, 512, 512), (301, 1024, 512)];
    assert_eq!(reads(&qemu(log.as_bytes()).trace), expected);
}

#[test]
fn nonsense_is_skipped_counted_and_quoted() {
    let good = "blk_co_preadv blk 0x1 bs 0x2 offset 0 bytes 512 flags 0x0";
    let bad = [
        "qemu-system-x86_64: warning: something",
        "blk_co_preadv blk 0x1 bs 0x2 offset 0 bytes 51", // cut
        "blk_co_preadv blk 0x1 bs 0x2 offset -1 bytes 512 flags 0x0",
        "blk_co_preadv blk 0x1 bs 0x2 offset 99999999999999999999 bytes 512 flags 0x0",
        "blk_co_preadv blk 1 bs 0x2 offset 0 bytes 512 flags 0x0",
        "12@34:blk_co_preadv blk 0x1 bs 0x2 offset 0 bytes 512 flags 0x0",
        "blk_co_pwritev blk 0x1 bs 0x2 offset 0 bytes 512 flags 0x0",
    ];
    let log = format!("{good}\n\n{}\n{good}\n", bad.join("\n"));
    let imported = qemu(log.as_bytes());
    assert_eq!(imported.trace.events.len(), 2);
    assert_eq!(imported.skipped_lines, bad.len() as u64);
    let first = imported.first_skipped.unwrap();
    assert_eq!((first.number, first.text.as_str()), (3, bad[0]));

    let bad = [
        "8,0 1 1 x 9 Q R 0 + 8 [a]",
        "8,0 1 1 0.5 x Q R 0 + 8 [a]",
        "8,0 1 1 0.5 9 Q R 0 8 [a]",
        "8,0 1 1 0.5 9 Q R 0 + 8000000000000000000000 [a]",
        "8,0 1 1 0.5 9 Q R 18446744073709551615 + 8 [a]",
        "8,0 1 1 0.5 9 Q R",
    ];
    let text = format!("{}\n8,0 1 1 0.5 9 Q R 0 + 8 [a]\n", bad.join("\n"));
    let imported = blkparse(text.as_bytes());
    assert_eq!(imported.trace.events.len(), 1);
    assert_eq!(imported.skipped_lines, bad.len() as u64);
}

#[test]
fn what_is_not_a_log_is_an_error() {
    let text = b"#!/bin/sh\necho hello\n";
    let Err(ImportError::NoReads {
        skipped_lines,
        first_skipped,
    }) = import::qemu(text, &disk(MIB))
    else {
        panic!("a script was taken for a log");
    };
    assert_eq!(skipped_lines, 2);
    assert_eq!(first_skipped.unwrap().text, "#!/bin/sh");
    let options = BlkparseOptions::default();
    assert!(import::blkparse(b"", &disk(MIB), &options).is_err());
    let far = b"8,0 1 1 0.5 9 Q R 10000 + 8 [a]";
    assert_eq!(
        import::blkparse(far, &disk(MIB), &options),
        Err(ImportError::Outside {
            outside: 1,
            disk_bytes: MIB
        })
    );
}

#[test]
fn long_lines_are_cut() {
    let mut log = vec![b'x'; 100_000];
    log.extend_from_slice(b"\nblk_co_preadv blk 0x1 bs 0x2 offset 0 bytes 512 flags 0x0\n");
    assert_eq!(qemu(&log).first_skipped.unwrap().text.len(), 120);
    let name = "n".repeat(100_000);
    let text = format!("8,0 1 1 0.5 9 Q R 0 + 8 [{name}]");
    assert_eq!(blkparse(text.as_bytes()).trace.commands[0].len(), 64);
}
