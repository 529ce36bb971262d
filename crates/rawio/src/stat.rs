//! `statx(2)`: the attributes of a file with what older calls leave out, its time of birth and
//! the mount it was reached through.

#![expect(unsafe_code, reason = "no safe wrapper that we depend on has statx")]

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd};

use nix::NixPath;

/// The attributes of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stat {
    /// Type and permissions, as `st_mode`.
    pub mode: u32,
    /// Number of hard links.
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Inode number.
    pub inode: u64,
    /// Device of the file system, major and minor.
    pub device: (u32, u32),
    /// Device that the file is, major and minor.
    pub rdev: (u32, u32),
    /// Length in bytes.
    pub size: u64,
    /// Space on the disk, in units of 512 bytes.
    pub blocks: u64,
    /// Time of the last access: seconds and nanoseconds.
    pub atime: (i64, u32),
    /// Time of the last change of the content: seconds and nanoseconds.
    pub mtime: (i64, u32),
    /// Time of the last change of content or attributes: seconds and nanoseconds.
    pub ctime: (i64, u32),
    /// Time of birth, where the file system keeps it: seconds and nanoseconds.
    pub birth: Option<(i64, u32)>,
    /// The mount through which it was reached, if the kernel reports it (since Linux 5.8).
    pub mount: Option<u64>,
}

/// Returns the attributes of `path` relative to the directory `dir`, or of `dir` itself if `path`
/// is empty. A symbolic link at the end is not followed and nothing is mounted on the way.
///
/// # Errors
/// Whatever `statx(2)` gives; never `EINTR`.
pub fn stat_at<P: ?Sized + NixPath>(dir: impl AsFd, path: &P) -> io::Result<Stat> {
    const FLAGS: libc::c_int =
        libc::AT_SYMLINK_NOFOLLOW | libc::AT_NO_AUTOMOUNT | libc::AT_EMPTY_PATH;
    const MASK: libc::c_uint = libc::STATX_BASIC_STATS | libc::STATX_BTIME | libc::STATX_MNT_ID;
    loop {
        let mut raw = MaybeUninit::<libc::statx>::zeroed();
        let result = path.with_nix_path(|path| {
            // SAFETY: `path` ends in a NUL and lives through the call, the descriptor is borrowed
            // and open, and `raw` has room for one statx, the only thing that is written.
            unsafe {
                libc::statx(
                    dir.as_fd().as_raw_fd(),
                    path.as_ptr(),
                    FLAGS,
                    MASK,
                    raw.as_mut_ptr(),
                )
            }
        })?;
        if result == 0 {
            // SAFETY: the call succeeded and filled the structure, all zeros before, in.
            return Ok(convert(&unsafe { raw.assume_init() }));
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}

fn convert(raw: &libc::statx) -> Stat {
    let time = |at: libc::statx_timestamp| (at.tv_sec, at.tv_nsec);
    let given = |field| raw.stx_mask & field != 0;
    Stat {
        mode: raw.stx_mode.into(),
        nlink: raw.stx_nlink,
        uid: raw.stx_uid,
        gid: raw.stx_gid,
        inode: raw.stx_ino,
        device: (raw.stx_dev_major, raw.stx_dev_minor),
        rdev: (raw.stx_rdev_major, raw.stx_rdev_minor),
        size: raw.stx_size,
        blocks: raw.stx_blocks,
        atime: time(raw.stx_atime),
        mtime: time(raw.stx_mtime),
        ctime: time(raw.stx_ctime),
        birth: given(libc::STATX_BTIME).then(|| time(raw.stx_btime)),
        mount: given(libc::STATX_MNT_ID).then_some(raw.stx_mnt_id),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{self, File};
    use std::os::unix::fs::{MetadataExt, symlink};

    #[test]
    fn says_what_the_standard_library_says() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("file"), b"seven b").unwrap();
        symlink("file", dir.path().join("link")).unwrap();
        let fd = File::open(dir.path()).unwrap();
        for name in ["file", "link"] {
            let want = fs::symlink_metadata(dir.path().join(name)).unwrap();
            let got = stat_at(&fd, name).unwrap();
            assert_eq!(u64::from(got.nlink), want.nlink());
            assert_eq!(
                (got.mode, got.uid, got.gid),
                (want.mode(), want.uid(), want.gid())
            );
            assert_eq!(
                (got.inode, got.size, got.blocks),
                (want.ino(), want.size(), want.blocks())
            );
            assert_eq!(
                (got.mtime.0, i64::from(got.mtime.1)),
                (want.mtime(), want.mtime_nsec())
            );
            assert_eq!(
                (got.ctime.0, i64::from(got.ctime.1)),
                (want.ctime(), want.ctime_nsec())
            );
            let device = nix::sys::stat::makedev(got.device.0.into(), got.device.1.into());
            assert_eq!(device, want.dev());
        }
    }

    #[test]
    fn an_empty_path_is_the_descriptor_itself() {
        let dir = tempfile::tempdir().unwrap();
        let fd = File::open(dir.path()).unwrap();
        let want = fs::metadata(dir.path()).unwrap();
        assert_eq!(stat_at(&fd, "").unwrap().inode, want.ino());
    }

    #[test]
    fn what_is_not_there_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let fd = File::open(dir.path()).unwrap();
        let error = stat_at(&fd, "nothing").unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
    }
}
