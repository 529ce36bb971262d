//! A line of the kernel's trace: which process touched which bytes of which file.

use std::ops::Range;

/// The events that are requested: a read through the page cache, a fault on a page that was not mapped, and the
/// mapping of pages around one that was faulted on.
pub(super) const EVENTS: [&str; 3] = [
    "mm_filemap_get_pages",
    "mm_filemap_fault",
    "mm_filemap_map_pages",
];

/// A file, as the kernel's traces name it: the numbers of its device and its inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Key {
    pub(super) device: (u32, u32),
    pub(super) inode: u64,
}

/// The precision of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Precision {
    /// These pages were touched.
    Exact,
    /// One of these was touched; the others were mapped with it if they were in memory.
    Around,
}

/// One line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Line<'a> {
    pub(super) command: &'a str,
    pub(super) thread: u32,
    pub(super) at_us: u64,
    pub(super) key: Key,
    pub(super) bytes: Range<u64>,
    pub(super) precision: Precision,
}

/// What a line of a trace can be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Said<'a> {
    Touched(Line<'a>),
    /// So many events found no room.
    Lost(u64),
}

/// Parses a line; `None` for other events.
///
/// The name of a program is arbitrary, so fields are searched from the end.
pub(super) fn parse(line: &str) -> Option<Said<'_>> {
    if let Some(rest) = line.strip_prefix("CPU:") {
        let (_, lost) = rest.split_once("[LOST ")?;
        return lost.split(' ').next()?.parse().ok().map(Said::Lost);
    }
    let (head, what) = line.rsplit_once(": ")?;
    let (head, event) = head.rsplit_once(": ")?;
    let event = EVENTS.iter().position(|known| *known == event)?;
    let (head, time) = head.trim_end().rsplit_once(' ')?;
    let (seconds, micros) = time.split_once('.')?;
    let at_us = seconds.parse::<u64>().ok()?.checked_mul(1_000_000)?;
    let (task, _cpu) = head.rsplit_once(" [")?;
    let (command, thread) = task.trim().rsplit_once('-')?;
    let mut key = Key {
        device: (0, 0),
        inode: 0,
    };
    let mut bytes = 0..0;
    for field in what.split(' ') {
        match field.split_once('=')? {
            ("dev", device) => {
                let (major, minor) = device.split_once(':')?;
                key.device = (major.parse().ok()?, minor.parse().ok()?);
            }
            ("ino", inode) => key.inode = u64::from_str_radix(inode, 16).ok()?,
            ("ofs", offsets) => {
                let (first, last) = offsets.split_once('-').unwrap_or((offsets, offsets));
                let last: u64 = last.parse().ok()?;
                bytes = first.parse().ok()?..last.checked_add(1)?;
            }
            _ => {}
        }
    }
    Some(Said::Touched(Line {
        command,
        thread: thread.parse().ok()?,
        at_us: at_us.checked_add(micros.parse().ok()?)?,
        key,
        bytes,
        precision: if event == 2 {
            Precision::Around
        } else {
            Precision::Exact
        },
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn lines_of_linux_6_18_are_understood() {
        let read = "         python3-12600   [000] .....  1246.874587: mm_filemap_get_pages: dev=254:0 ino=510c4a ofs=0-65535";
        let Some(Said::Touched(line)) = parse(read) else {
            panic!("not understood")
        };
        assert_eq!(
            (line.command, line.thread, line.at_us),
            ("python3", 12600, 1_246_874_587)
        );
        assert_eq!((line.key.device, line.key.inode), ((254, 0), 0x51_0c4a));
        assert_eq!((line.bytes, line.precision), (0..65536, Precision::Exact));
        let fault = "             cat-1   [001] d..1.  5.000001: mm_filemap_fault: dev=8:17 ino=a ofs=20480";
        let Some(Said::Touched(line)) = parse(fault) else {
            panic!("not understood")
        };
        assert_eq!(
            (line.bytes, line.precision),
            (20480..20481, Precision::Exact)
        );
        let around = "x-1 [0] . 5.0: mm_filemap_map_pages: dev=8:17 ino=a ofs=8192-28671";
        assert!(
            matches!(parse(around), Some(Said::Touched(line)) if line.precision == Precision::Around)
        );
        assert_eq!(parse("CPU:1 [LOST 1234 EVENTS]"), Some(Said::Lost(1234)));
    }

    #[test]
    fn a_program_cannot_pass_for_another() {
        let name = "x-7 [000] . 1.0: mm_filemap_fault: dev=1:1 ino=1 ofs=0-9 [000] .";
        let line =
            format!("{name}-42   [000] .....  5.000001: mm_filemap_fault: dev=8:17 ino=a ofs=4096");
        let Some(Said::Touched(read)) = parse(&line) else {
            panic!("not understood")
        };
        assert_eq!((read.command, read.thread, read.key.inode), (name, 42, 10));
    }

    proptest! {
        #[test]
        fn nothing_makes_it_panic(line in "(CPU:|x-1 \\[0\\] \\. )?[0-9a-z=:. \\[-]{0,40}(: mm_filemap_fault: )?[0-9a-z=:. -]{0,40}") {
            let _understood = parse(&line);
        }
    }
}
