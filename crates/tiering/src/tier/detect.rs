//! Properties of a directory, from the kernel.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use nix::sys::stat::{major, minor};
use nix::sys::statfs::{TMPFS_MAGIC, fstatfs};
use nix::sys::statvfs::fstatvfs;
use rawio::dax::{MapSync, is_dax, try_map_sync};

use super::{Capability, ProbeError, failed, nameless};

/// Bytes of the file that is tried to be mapped: one huge page, the most that DAX maps at once.
const TRIED: usize = 2 << 20;

/// The properties that were found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Facts {
    /// Where it is.
    pub dir: PathBuf,
    /// Whether it is in memory that loses its content (tmpfs).
    pub memory: bool,
    /// Whether the kernel recommends reading it in pieces as large as a huge page: a tmpfs does where it
    /// takes them.
    pub huge_pages: bool,
    /// Whether files in it are the medium's own pages (DAX); `None` if unknown.
    pub dax: Option<bool>,
    /// Whether a synchronous mapping works.
    pub map_sync: bool,
    /// Whether the disk rotates; `None` if there is no disk, or it is unknown.
    pub rotational: Option<bool>,
    /// Bytes of the file system.
    pub capacity_bytes: u64,
    /// Bytes of it that are free for us.
    pub free_bytes: u64,
}

/// Detects the properties of a directory as a tier: from an unnamed file that is made in it, and from
/// sysfs.
///
/// # Errors
/// If it is not a directory that this process may write in.
pub fn detect(dir: &Path) -> Result<Capability, ProbeError> {
    let dir = dir.canonicalize().map_err(failed("look", dir))?;
    let file = nameless(&dir).map_err(failed("make a file", &dir))?;
    let kind = fstatfs(&file).map_err(io::Error::from);
    let kind = kind.map_err(failed("ask for the file system", &dir))?;
    let room = fstatvfs(&file).map_err(io::Error::from);
    let room = room.map_err(failed("ask for the room", &dir))?;
    file.set_len(TRIED as u64).map_err(failed("write", &dir))?;
    // A mapping that fails otherwise is none that works.
    let map_sync = try_map_sync(&file, TRIED).is_ok_and(|sync| sync == MapSync::Works);
    let of = file.metadata().map_err(failed("look", &dir))?;
    Ok(Capability::of(&Facts {
        memory: kind.filesystem_type() == TMPFS_MAGIC,
        dax: is_dax(&file).map_err(failed("ask for DAX", &dir))?,
        map_sync,
        huge_pages: of.blksize() >= TRIED as u64,
        rotational: queue(Path::new("/sys"), of.dev(), "rotational"),
        capacity_bytes: room.blocks().saturating_mul(room.fragment_size()),
        free_bytes: room.blocks_available().saturating_mul(room.fragment_size()),
        dir,
    }))
}

/// Returns what a device's queue says of itself; `None` if it has none, as file systems without a
/// disk have.
fn queue(sys: &Path, device: u64, what: &str) -> Option<bool> {
    let name = format!("dev/block/{}:{}", major(device), minor(device));
    let device = sys.join(name).canonicalize().ok()?;
    // A partition has no queue of its own: its disk has.
    let queues = [device.join("queue"), device.parent()?.join("queue")];
    let text = queues
        .iter()
        .find_map(|queue| fs::read_to_string(queue.join(what)).ok())?;
    match text.trim() {
        "0" => Some(false),
        "1" => Some(true),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tier::{Kind, Map};
    use nix::sys::stat::makedev;
    use std::os::unix::fs::symlink;

    #[test]
    fn a_directory_of_this_machine_is_some_tier() {
        let dir = tempfile::tempdir().unwrap();
        let found = detect(dir.path()).unwrap();
        assert!(found.capacity_bytes >= found.free_bytes && found.capacity_bytes > 0);
        assert_eq!(
            fs::read_dir(dir.path()).unwrap().count(),
            0,
            "nothing is left"
        );
        let error = detect(&dir.path().join("nothing")).unwrap_err();
        assert!(error.to_string().starts_with("cannot look in /"), "{error}");
    }

    #[test]
    fn shared_memory_is_memory() {
        let found = detect(Path::new("/dev/shm")).unwrap();
        assert_eq!((found.kind, found.map), (Kind::Memory, Map::PageCache));
    }

    #[test]
    fn a_partition_is_what_its_disk_is() {
        let sys = tempfile::tempdir().unwrap();
        let at = |path: &str| sys.path().join(path);
        fs::create_dir_all(at("devices/sda/sda1")).unwrap();
        fs::create_dir_all(at("devices/sda/queue")).unwrap();
        fs::create_dir_all(at("devices/pmem0/queue")).unwrap();
        fs::create_dir_all(at("dev/block")).unwrap();
        fs::write(at("devices/sda/queue/rotational"), "1\n").unwrap();
        fs::write(at("devices/pmem0/queue/rotational"), "0\n").unwrap();
        symlink("../../devices/sda", at("dev/block/8:0")).unwrap();
        symlink("../../devices/sda/sda1", at("dev/block/8:1")).unwrap();
        symlink("../../devices/pmem0", at("dev/block/259:0")).unwrap();
        let rotational = |major, minor| queue(sys.path(), makedev(major, minor), "rotational");
        assert_eq!(rotational(8, 0), Some(true));
        assert_eq!(rotational(8, 1), Some(true));
        assert_eq!(rotational(259, 0), Some(false));
        assert_eq!(rotational(0, 42), None, "an overlay has no disk");
        assert_eq!(queue(sys.path(), makedev(8, 0), "dax"), None);
    }
}
