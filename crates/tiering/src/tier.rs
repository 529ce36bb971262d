//! The properties of a directory as a tier: its kind of storage, and its speed.
//!
//! [`detect`] asks the kernel; [`measure`] tries. Any directory is a tier: one of unknown storage
//! is [`Kind::Other`], and works.

mod detect;
mod measure;

use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use nix::fcntl::{OFlag, open};
use nix::sys::stat::Mode;

pub use detect::{Facts, detect};
pub use measure::{MeasureError, Measured, measure};

/// The kind of storage below a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Memory that keeps its content, mapped directly.
    Nvm,
    /// Memory that does not: tmpfs.
    Memory,
    /// A disk without moving parts.
    Ssd,
    /// A disk that rotates.
    Hdd,
    /// Unknown: a network file system, or one over another.
    Other,
}

/// What a mapping of a file reaches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Map {
    /// The medium itself.
    Direct,
    /// The page cache, of huge pages: a tmpfs that is mounted with `huge=`.
    HugePages,
    /// Through the page cache.
    PageCache,
}

/// How writes are made durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sync {
    /// Through a mapping: flushing the processor's caches (`MAP_SYNC`).
    MapSync,
    /// `msync(2)` or `fsync(2)`.
    Msync,
    /// Nothing: a restart loses it.
    None,
}

/// What a directory can do as a tier.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Capability {
    /// Where it is.
    pub dir: PathBuf,
    /// Its kind of storage.
    pub kind: Kind,
    /// What a mapping of a file reaches.
    pub map: Map,
    /// How writes are made durable.
    pub sync: Sync,
    /// Bytes of the file system.
    pub capacity_bytes: u64,
    /// Bytes of it that are free for us.
    pub free_bytes: u64,
}

impl Capability {
    /// Returns the properties that `facts` show.
    #[must_use]
    pub fn of(facts: &Facts) -> Self {
        let direct = facts.dax == Some(true);
        let kind = match (facts.memory, direct, facts.rotational) {
            (true, _, _) => Kind::Memory,
            (_, true, _) => Kind::Nvm,
            (_, _, Some(true)) => Kind::Hdd,
            (_, _, Some(false)) => Kind::Ssd,
            (_, _, None) => Kind::Other,
        };
        let sync = match (facts.memory, direct && facts.map_sync) {
            (true, _) => Sync::None,
            (_, true) => Sync::MapSync,
            (_, false) => Sync::Msync,
        };
        let map = match (facts.memory && facts.huge_pages, direct) {
            (true, _) => Map::HugePages,
            (_, true) => Map::Direct,
            (_, false) => Map::PageCache,
        };
        Self {
            dir: facts.dir.clone(),
            kind,
            map,
            sync,
            capacity_bytes: facts.capacity_bytes,
            free_bytes: facts.free_bytes,
        }
    }
}

/// Why a directory cannot be looked at.
#[derive(Debug, thiserror::Error)]
#[error("cannot {doing} in {}", dir.display())]
pub struct ProbeError {
    /// The operation.
    pub doing: &'static str,
    /// The directory.
    pub dir: PathBuf,
    /// The cause.
    pub source: io::Error,
}

/// Returns a function that makes a probe's error of a cause.
fn failed(doing: &'static str, dir: &std::path::Path) -> impl FnOnce(io::Error) -> ProbeError {
    let dir = dir.to_owned();
    move |source| ProbeError { doing, dir, source }
}

/// Makes a file in `dir` that has no name, or loses it at once: nothing is left of it, however we
/// end.
fn nameless(dir: &std::path::Path) -> io::Result<std::fs::File> {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let flags = OFlag::O_TMPFILE | OFlag::O_RDWR | OFlag::O_CLOEXEC;
    match open(dir, flags, Mode::S_IRUSR | Mode::S_IWUSR) {
        Ok(fd) => return Ok(fd.into()),
        Err(nix::Error::EOPNOTSUPP | nix::Error::EISDIR | nix::Error::ENOENT) => {}
        Err(error) => return Err(error.into()),
    }
    // Not all file systems have files without names.
    loop {
        let serial = NEXT.fetch_add(1, Relaxed);
        let path = dir.join(format!(".yolofs-probe-{}-{serial}", std::process::id()));
        match rawio::private::create_new(&path) {
            Ok(file) => {
                std::fs::remove_file(path)?;
                return Ok(file);
            }
            // Left over from a process that had our number.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn facts() -> Facts {
        Facts {
            dir: PathBuf::new(),
            memory: false,
            huge_pages: false,
            dax: None,
            map_sync: false,
            rotational: None,
            capacity_bytes: 0,
            free_bytes: 0,
        }
    }

    #[test]
    fn what_the_kernel_says_decides_what_a_directory_is() {
        let of = |facts: Facts| {
            let capability = Capability::of(&facts);
            (capability.kind, capability.map, capability.sync)
        };
        let other = of(facts());
        assert_eq!(other, (Kind::Other, Map::PageCache, Sync::Msync));
        let disk = |rotational| Facts {
            rotational: Some(rotational),
            dax: Some(false),
            ..facts()
        };
        assert_eq!(of(disk(true)), (Kind::Hdd, Map::PageCache, Sync::Msync));
        assert_eq!(of(disk(false)), (Kind::Ssd, Map::PageCache, Sync::Msync));
        // fsdax with MAP_SYNC, and virtio-pmem, which refuses that.
        let nvm = |map_sync| Facts {
            dax: Some(true),
            map_sync,
            rotational: Some(false),
            ..facts()
        };
        assert_eq!(of(nvm(true)), (Kind::Nvm, Map::Direct, Sync::MapSync));
        assert_eq!(of(nvm(false)), (Kind::Nvm, Map::Direct, Sync::Msync));
        let memory = |huge_pages| Facts {
            memory: true,
            huge_pages,
            ..facts()
        };
        let of_memory = |map| (Kind::Memory, map, Sync::None);
        assert_eq!(of(memory(false)), of_memory(Map::PageCache));
        assert_eq!(of(memory(true)), of_memory(Map::HugePages));
    }
}
