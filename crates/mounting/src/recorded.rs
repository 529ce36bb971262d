//! A source whose boot is recorded.
//!
//! It is not scanned first: on a cold disk that takes many times the reads of the boot itself.
//! The mount looks up only what is requested; the scan, which the boot image needs, comes
//! after the boot.

use std::sync::Arc;
use std::time::{Instant, SystemTime};

use blocks::Namespace as _;
use bootimg::DropReason;
use localfs::{DirSource, LazyTree, Patience, SourceKind, SourceRoot, TimedSource};
use tracer::{Allowance, Limits, RawTrace, Recorder, Trace};
use yolofs::{Config, FileSystem, Mode};

use crate::checked_heads::CheckedHeads;
use crate::read_around::ReadAround;
use crate::source::{Source, space_within, trace_info};

/// Files that are named of those that are left out.
const NAMED: usize = 100;

/// A source, and a recorder of its requests.
#[derive(Debug)]
pub struct Recorded {
    root: Arc<SourceRoot>,
    names: Arc<LazyTree>,
    recorder: Arc<Recorder>,
    started: SystemTime,
}

impl Recorded {
    /// Returns a source that is ready to be mounted. The recording begins now.
    ///
    /// # Errors
    /// If the source cannot be read.
    pub fn new(root: &Arc<SourceRoot>) -> anyhow::Result<Self> {
        Self::sharing(root, &Arc::new(Allowance::new(Limits::default())))
    }

    /// As [`new`](Self::new), for one of several layers, whose recorders share a bound on their memory.
    pub fn sharing(root: &Arc<SourceRoot>, allowance: &Arc<Allowance>) -> anyhow::Result<Self> {
        Ok(Self {
            names: Arc::new(LazyTree::new(Arc::clone(root))?),
            root: Arc::clone(root),
            recorder: Arc::new(Recorder::sharing(allowance)),
            started: SystemTime::now(),
        })
    }

    /// Returns the file system of the source, which reports all requests to the recorder.
    pub fn file_system(&self) -> FileSystem {
        let mode = match self.root.kind() {
            SourceKind::Tree => Mode::Lower,
            SourceKind::Disk { .. } => Mode::Disk,
        };
        let config = Config {
            mode,
            ..Config::default()
        };
        let names = TimedSource::new(Arc::clone(&self.names), Patience::default());
        let paths = Arc::clone(&self.names) as _;
        let reader = Arc::new(DirSource::new(Arc::clone(&self.root), paths));
        let around = ReadAround::new(Arc::clone(&reader));
        let checked =
            CheckedHeads::new(around, Arc::clone(&self.root), Arc::clone(&self.names) as _);
        let checked = names.beside(Arc::new(checked));
        let plain = Arc::new(names.beside(Arc::clone(&reader)));
        FileSystem::new(Arc::new(names), Arc::new(checked), config)
            .with_sparse(Arc::clone(&plain) as _)
            .with_attrs(Arc::clone(&plain) as _)
            .with_residency(reader)
            .with_space(space_within(&plain, &self.root))
            .with_waiter(plain.waiter())
            .with_observer(Arc::clone(&self.recorder) as _)
    }

    /// Returns the time of the last request, or `None` before the first.
    pub fn last_event(&self) -> Option<Instant> {
        self.recorder.last_event()
    }

    /// Returns whether content was read so far.
    pub fn has_read(&self) -> bool {
        self.recorder.has_read()
    }

    /// Ends the recording: the boot is over. The mount is still served to its users.
    pub fn stop(&self) -> RawTrace {
        self.recorder.stop()
    }

    /// Returns the recording as a trace of the files in `source`, which was scanned since. Requests for
    /// files that are missing or changed since are not in the trace: the paths of these files are
    /// returned, each with what became of it.
    pub fn trace(&self, mut raw: RawTrace, source: &Source) -> (Trace, Vec<String>) {
        let tree = &source.tree;
        let left_out = raw.call_files(|file| self.names.in_tree(file, tree));
        let total = left_out.len();
        let paths = left_out.iter().filter_map(|file| self.names.path(*file));
        let left_out = paths.map(|path| {
            let reason = match tree.resolve(&path) {
                Some(_) => DropReason::Changed,
                None => DropReason::Gone,
            };
            format!("{}: {reason}", String::from_utf8_lossy(&path))
        });
        // For people: a hostile tree has a million, with long paths.
        let mut left_out: Vec<String> = left_out.take(NAMED).collect();
        if total > NAMED {
            left_out.push(format!("{} more files", total - NAMED));
        }
        let info = trace_info(&self.root, self.started);
        (raw.into_trace(info, tree), left_out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    use blocks::{Caller, FileId};
    use tempfile::TempDir;
    use yolofs::CachePath;

    const SOMEBODY: Caller = Caller { pid: 0 };

    /// Twenty directories with twenty files each.
    fn source() -> TempDir {
        let dir = tempfile::tempdir().unwrap();
        for sub in 0..20 {
            let sub = dir.path().join(format!("d{sub}"));
            fs::create_dir(&sub).unwrap();
            for file in 0..20 {
                fs::write(sub.join(format!("f{file}")), b"content").unwrap();
            }
        }
        dir
    }

    fn recorded(dir: &TempDir) -> Recorded {
        Recorded::new(&Arc::new(SourceRoot::open(dir.path()).unwrap())).unwrap()
    }

    /// Opens and reads a file as a boot does.
    fn read(fs: &FileSystem, path: &str) {
        let mut file = FileId::ROOT;
        for name in path.split('/') {
            let entry = fs.lookup(SOMEBODY, file, name.as_bytes()).unwrap();
            file = entry.node.unwrap().file;
        }
        let mut buf = [0; 4096];
        let read = fs.read(SOMEBODY, file, 0, &mut buf, CachePath::Through);
        assert_eq!(&buf[..read.unwrap()], b"content");
    }

    #[test]
    fn a_boot_meets_what_it_asks_for_and_nothing_else() {
        let dir = source();
        let recorded = recorded(&dir);
        let fs = recorded.file_system();
        read(&fs, "d7/f3");
        read(&fs, "d7/f4");
        let missing = fs.lookup(SOMEBODY, FileId::ROOT, b"missing").unwrap();
        assert_eq!(missing.node, None);
        assert_eq!(recorded.names.known_files(), 4, "the root, d7, f3 and f4");

        let raw = recorded.stop();
        let source = Source::scan(Arc::clone(&recorded.root)).unwrap();
        let (trace, left_out) = recorded.trace(raw, &source);
        trace.check().unwrap();
        assert!(left_out.is_empty(), "{left_out:?}");
        let mut paths: Vec<_> = trace.files.iter().map(|file| file.path.clone()).collect();
        paths.sort_unstable();
        assert_eq!(paths, [&b""[..], b"d7", b"d7/f3", b"d7/f4"]);
        for file in &trace.files {
            assert_eq!(source.tree.resolve(&file.path), Some(file.file));
        }
        let lost = (trace.lost, trace.events.len());
        assert_eq!(lost, (0, 7), "two reads, and five names");
    }

    /// A qcow2 image of a MiB, which is based on a file and says nothing of its format.
    fn overlay(backing: &[u8]) -> Vec<u8> {
        let mut image = vec![0; 1 << 18];
        image[..8].copy_from_slice(b"QFI\xfb\0\0\0\x02");
        image[15] = 72;
        image[19] = u8::try_from(backing.len()).unwrap();
        image[72..72 + backing.len()].copy_from_slice(backing);
        image
    }

    /// Reads this much of a file from there on, as a mount does.
    fn read_of(fs: &FileSystem, name: &[u8], offset: u64, len: usize) -> Option<Vec<u8>> {
        let entry = fs.lookup(SOMEBODY, FileId::ROOT, name).ok()?;
        let file = entry.node?.file;
        let mut buf = vec![0; len];
        let read = fs.read(SOMEBODY, file, offset, &mut buf, CachePath::Through);
        buf.truncate(read.ok()?);
        Some(buf)
    }

    /// QEMU would open what another header names, whatever was found in the checked one.
    #[test]
    fn a_header_that_was_changed_after_it_was_checked_is_not_read() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        fs::write(path("base"), vec![b'b'; 4096]).unwrap();
        let (good, bad) = (overlay(b"base"), overlay(b"/etc/passwd"));
        let opened = || {
            fs::write(path("image"), &good).unwrap();
            fs::write(path("base"), vec![b'b'; 4096]).unwrap();
            Recorded::new(&Arc::new(SourceRoot::open(path("image")).unwrap())).unwrap()
        };
        let whole = opened().file_system();
        assert!(read_of(&whole, b"image", 0, 1 << 18).unwrap() == good);
        assert!(read_of(&whole, b"base", 0, 1 << 18).unwrap() == [b'b'; 4096]);

        // Replaced by another file, and changed in place.
        for is_replaced in [true, false] {
            let fs = opened().file_system();
            fs::write(path("other"), &bad).unwrap();
            match is_replaced {
                true => fs::rename(path("other"), path("image")).unwrap(),
                false => fs::write(path("image"), &bad).unwrap(),
            }
            for (offset, len) in [(0, 4096), (0, 1 << 18), (72, 1), (65_535, 1)] {
                let found = read_of(&fs, b"image", offset, len);
                let is_same = found.as_ref().is_some_and(|found| {
                    let at = usize::try_from(offset).unwrap();
                    *found == good[at..at + len]
                });
                assert!(found.is_none() || is_same, "{offset}: {len}");
            }
            assert!(read_of(&fs, b"image", 0, 4096).is_none());
            assert!(read_of(&fs, b"image", 65_536, 4096).is_some());
        }
        // A base of which QEMU guesses the format has become an image that names files; it is longer, too.
        let fs = opened().file_system();
        fs::write(path("base"), [&[b'b'; 4096][..], &bad].concat()).unwrap();
        assert!(read_of(&fs, b"base", 4096, 4096).is_none());
        fs::write(path("base"), &bad).unwrap();
        assert!(read_of(&fs, b"base", 0, 512).is_none());
    }

    #[test]
    fn what_changed_before_the_scan_is_left_out_and_named() {
        let dir = source();
        let recorded = recorded(&dir);
        let fs = recorded.file_system();
        for path in ["d1/f1", "d2/f2", "d3/f3"] {
            read(&fs, path);
        }
        fs::write(dir.path().join("d2/f2"), b"longer content").unwrap();
        fs::remove_file(dir.path().join("d3/f3")).unwrap();

        let raw = recorded.stop();
        let source = Source::scan(Arc::clone(&recorded.root)).unwrap();
        let (trace, left_out) = recorded.trace(raw, &source);
        assert_eq!(left_out, ["d2/f2: changed", "d3/f3: gone"]);
        let path = |path: &&str| trace.files.iter().any(|file| file.path == path.as_bytes());
        let here: Vec<_> = ["d1/f1", "d2/f2", "d3/f3"]
            .into_iter()
            .filter(path)
            .collect();
        assert_eq!(here, ["d1/f1"]);
        assert_eq!(trace.lost, 0);
    }
}
