//! Which pages of which files are to stay in memory.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::Metadata;
use std::os::unix::ffi::OsStringExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Component, Path, PathBuf};

use anyhow::{Context as _, bail, ensure};
use blocks::{Event, FileId, SourceId, Timestamp, Version};
use tracer::Trace;

use crate::pages::{PAGE, Pages};

/// What traces of a host's own files call their source.
pub const SOURCE: &str = "host-files:/";

/// The most ranges of one profile: each is a mapping of the process that holds it, and Linux gives it 65 530.
const RANGES_MAX: usize = 16_384;

/// What some command touches of the host's files, in the order in which it first touched them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Profile {
    /// Its name.
    pub name: String,
    /// When it was recorded.
    pub recorded: Timestamp,
    /// The files.
    pub files: Vec<ProfileFile>,
}

/// What a command touches of one file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProfileFile {
    /// Its path.
    pub path: PathBuf,
    /// The version that was recorded.
    pub version: Version,
    /// Its pages.
    pub pages: Pages,
}

impl Profile {
    /// Reads a profile of a trace.
    ///
    /// # Errors
    /// If it is damaged, is no trace of the host's files, or has too many ranges.
    pub fn from_bytes(name: &str, bytes: &[u8]) -> anyhow::Result<Self> {
        let doing = || format!("reading the profile {name}");
        let trace = Trace::read(bytes).with_context(doing)?;
        Self::of(name, &trace).with_context(doing)
    }

    fn of(name: &str, trace: &Trace) -> anyhow::Result<Self> {
        if trace.info.source != SourceId::of_label(SOURCE.as_bytes()) {
            let label = String::from_utf8_lossy(&trace.info.label);
            bail!(
                "it is a trace of {label}, not of a host's files: record one with `yolofs pin record`"
            );
        }
        let mut touched: BTreeMap<FileId, (usize, Pages)> = BTreeMap::new();
        for event in &trace.events {
            if let Event::Read(access) = &event.what {
                let last = access.offset.saturating_add(access.len).div_ceil(PAGE);
                let order = touched.len();
                let entry = touched.entry(access.file);
                let (_, pages) = entry.or_insert_with(|| (order, Pages::default()));
                pages.insert(access.offset / PAGE..last);
            }
        }
        let mut files = Vec::with_capacity(touched.len());
        for (id, (order, pages)) in touched {
            let file = trace.file(id).context("an event without its file")?;
            let path = Path::new("/").join(OsString::from_vec(file.path.clone()));
            ensure!(is_plain(&path), "{} is no plain path", path.display());
            let version = file.version;
            files.push((
                order,
                ProfileFile {
                    path,
                    version,
                    pages,
                },
            ));
        }
        files.sort_by_key(|(order, _)| *order);
        let files: Vec<_> = files.into_iter().map(|(_, file)| file).collect();
        let ranges: usize = files.iter().map(|file| file.pages.ranges().count()).sum();
        ensure!(
            ranges <= RANGES_MAX,
            "it has {ranges} ranges, more than {RANGES_MAX}"
        );
        Ok(Self {
            name: name.to_owned(),
            recorded: trace.info.started,
            files,
        })
    }

    /// Returns the size of its pages.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.files
            .iter()
            .map(|file| file.pages.count() * PAGE)
            .sum()
    }

    /// Returns how many bytes its files have, all their pages counted.
    #[must_use]
    pub fn file_bytes(&self) -> u64 {
        let whole = |file: &ProfileFile| file.version.size.div_ceil(PAGE) * PAGE;
        self.files.iter().map(whole).sum()
    }
}

fn is_plain(path: &Path) -> bool {
    let plain = |part| matches!(part, Component::RootDir | Component::Normal(_));
    path.components().all(plain) && !path.as_os_str().as_encoded_bytes().contains(&0)
}

/// Returns the version of a file that was looked at.
pub(crate) fn version_of(file: &Metadata) -> Version {
    let time = |secs: i64, nanos: i64| Timestamp {
        secs,
        nanos: u32::try_from(nanos).unwrap_or(0),
    };
    Version {
        size: file.len(),
        mtime: time(file.mtime(), file.mtime_nsec()),
        ctime: time(file.ctime(), file.ctime_nsec()),
        inode: file.ino(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use blocks::{Access, Warmth};
    use tracer::{CommandId, TraceEvent, TraceInfo, TracedFile};

    fn trace(label: &str, paths: &[&str], reads: &[(u32, u64, u64)]) -> Vec<u8> {
        let file = |(id, path): (u32, &&str)| TracedFile {
            file: FileId(id),
            version: Version {
                size: 1 << 20,
                ..Version::default()
            },
            path: path.as_bytes().to_vec(),
        };
        let read = |&(file, offset, len): &(u32, u64, u64)| TraceEvent {
            at_us: 0,
            took_us: 0,
            pid: 1,
            command: CommandId(0),
            what: Event::Read(Access {
                file: FileId(file),
                offset,
                len,
                warmth: Warmth::Unknown,
            }),
        };
        let trace = Trace {
            info: TraceInfo {
                label: label.as_bytes().to_vec(),
                source: SourceId::of_label(label.as_bytes()),
                started: Timestamp::default(),
            },
            files: (0..).zip(paths).map(file).collect(),
            commands: vec![b"sh".to_vec()],
            events: reads.iter().map(read).collect(),
            ..Trace::default()
        };
        trace.write().unwrap()
    }

    #[test]
    fn files_come_in_the_order_in_which_they_were_touched() {
        let bytes = trace(
            SOURCE,
            &["bin/a", "bin/b"],
            &[(1, 0, 1), (0, 4096, 4097), (1, 4000, 200)],
        );
        let profile = Profile::from_bytes("x", &bytes).unwrap();
        let paths: Vec<_> = profile
            .files
            .iter()
            .map(|file| file.path.to_str().unwrap())
            .collect();
        assert_eq!(paths, ["/bin/b", "/bin/a"]);
        assert_eq!(profile.bytes(), 4 * PAGE);
        assert_eq!(profile.file_bytes(), 2 << 20);
    }

    #[test]
    fn nothing_else_is_taken_for_a_profile() {
        let refused = |bytes: &[u8]| format!("{:#}", Profile::from_bytes("x", bytes).unwrap_err());
        let other = trace("dir:/srv", &["a"], &[(0, 0, 1)]);
        assert!(refused(&other).contains("dir:/srv"));
        let outside = trace(SOURCE, &["../etc/shadow"], &[(0, 0, 1)]);
        assert!(refused(&outside).contains("no plain path"));
        let mut damaged = trace(SOURCE, &["a"], &[(0, 0, 1)]);
        damaged[100] ^= 1;
        assert!(refused(&damaged).contains("checksum"));
        let apart: Vec<_> = (0..=16_384).map(|at| (0, at * 2 * PAGE, 1)).collect();
        assert!(refused(&trace(SOURCE, &["a"], &apart)).contains("16385 ranges"));
    }
}
