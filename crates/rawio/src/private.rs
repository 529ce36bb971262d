//! Directories and files that only their owner can access, or a group that was given read access.
//!
//! The mode of a directory determines the access of others: mode 0700 is for the owner, and a directory with
//! the set-group-id bit whose group, and nobody else, may read and enter it is for that group, too.
//! Files and directories in it get the same access.

use std::ffi::OsStr;
use std::fs::{self, DirBuilder, File, Permissions};
use std::io;
use std::os::unix::fs::{
    DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _, fchown,
};
use std::path::Path;

use nix::fcntl::OFlag;
use nix::unistd::geteuid;

use crate::regular::{self, Links};

/// What everybody but owner and group may do.
const OTHERS: u32 = 0o007;
const GROUP: u32 = 0o070;
/// The bit that keeps names in a directory for their owners: such a directory is everybody's place.
const STICKY: u32 = 0o1000;
/// What a directory has that is for a group.
const SHARED: u32 = 0o2050;
/// Levels of directories that are walked: none of ours nests so deep.
const DEPTH_MAX: usize = 16;

/// The users who may read the content of a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Readers {
    /// Its owner.
    Owner,
    /// The group with this number besides.
    Group(u32),
}

impl Readers {
    /// Returns who may read new files in a directory, by its mode.
    ///
    /// # Errors
    /// If the directory cannot be examined.
    pub fn in_dir(dir: &Path) -> io::Result<Self> {
        let of = fs::metadata(dir)?;
        let is_shared = of.mode() & SHARED == SHARED && of.mode() & OTHERS == 0;
        Ok(if is_shared {
            Self::Group(of.gid())
        } else {
            Self::Owner
        })
    }

    /// Returns the mode of a directory for them.
    #[must_use]
    pub const fn dir_mode(self) -> u32 {
        match self {
            Self::Owner => 0o700,
            Self::Group(_) => 0o2750,
        }
    }

    /// Returns the mode of a file for them.
    #[must_use]
    pub const fn file_mode(self) -> u32 {
        match self {
            Self::Owner => 0o600,
            Self::Group(_) => 0o640,
        }
    }
}

/// Creates a directory for its owner, and missing parents with the default mode. An existing one
/// is not changed.
///
/// # Errors
/// If it cannot be created, or another kind of file has its name.
pub fn make_dir(dir: &Path) -> io::Result<()> {
    make(dir, Readers::Owner)
}

/// Creates a directory, and missing parents, with the access of its parent. An existing
/// one is not changed.
///
/// # Errors
/// If it cannot be created, or another kind of file has its name.
pub fn make_dir_alike(dir: &Path) -> io::Result<()> {
    let above = parent(dir);
    let readers = match Readers::in_dir(above) {
        Err(error) if error.kind() == io::ErrorKind::NotFound && above != dir => {
            make_dir_alike(above)?;
            Readers::in_dir(above)?
        }
        readers => readers?,
    };
    make(dir, readers)
}

fn make(dir: &Path, readers: Readers) -> io::Result<()> {
    if let Some(parent) = dir.parent().filter(|parent| !parent.as_os_str().is_empty()) {
        fs::create_dir_all(parent)?;
    }
    match DirBuilder::new().mode(0o700).create(dir) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && dir.is_dir() => Ok(()),
        Ok(()) => {
            let made = open_dir(dir)?;
            let mode = made.metadata()?.mode() & 0o7777;
            // Whatever the umask took away, or a set-group-id directory gave.
            if mode != readers.dir_mode() {
                made.set_permissions(Permissions::from_mode(readers.dir_mode()))?;
            }
            Ok(())
        }
        made => made,
    }
}

/// Creates a new file with the access of its directory, and opens it to read and write.
///
/// # Errors
/// If the name exists, or the file cannot be created.
pub fn create_new(path: &Path) -> io::Result<File> {
    let readers = Readers::in_dir(parent(path))?;
    let mut options = File::options();
    let options = options.read(true).write(true).create_new(true);
    let file = options.mode(readers.file_mode()).open(path)?;
    // Whatever the umask took away. A confined process may not change modes, and need not mostly.
    if file.metadata()?.mode() & 0o777 != readers.file_mode() {
        file.set_permissions(Permissions::from_mode(readers.file_mode()))?;
    }
    Ok(file)
}

/// Opens a file for reading and writing that belongs to this user, or to the owner of the directory.
///
/// # Errors
/// If it cannot be opened, is a link or no regular file, or another user's, who could read the written data.
pub fn open_own(path: &Path) -> io::Result<File> {
    owned(regular::open_to_write(path, Links::Refused, false)?, path)
}

fn owned(file: File, path: &Path) -> io::Result<File> {
    let owner = file.metadata()?.uid();
    let is_ours = owner == geteuid().as_raw() || owner == 0;
    if !is_ours && owner != fs::metadata(parent(path))?.uid() {
        let why = format!("user {owner} made a file of this name");
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
    }
    Ok(file)
}

/// Opens a file as [`open_own`] does, and creates it with the access of its directory if it is missing.
///
/// # Errors
/// If it cannot be opened or created, is a link, or another user's.
pub fn open_or_create(path: &Path) -> io::Result<File> {
    match create_new(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => open_own(path),
        made => made,
    }
}

/// Opens a file as [`open_or_create`] does, or only for reading if its disk can only be read; returns whether it can be
/// written.
///
/// # Errors
/// As [`open_or_create`], and if it is missing on a disk that can only be read.
pub fn open_or_read(path: &Path) -> io::Result<(File, bool)> {
    match open_or_create(path) {
        Err(error) if error.kind() == io::ErrorKind::ReadOnlyFilesystem => {
            let file = regular::open(path, Links::Refused)?;
            Ok((owned(file, path)?, false))
        }
        opened => Ok((opened?, true)),
    }
}

/// Removes all access of other users than the owner to a directory, and returns whether there was any.
/// Not changed are: another user's directory, unless this process is root, and one with the sticky bit,
/// which all users share.
///
/// # Errors
/// If it cannot be examined or changed, or is a link.
pub fn close_dir(dir: &Path) -> io::Result<bool> {
    let dir = open_dir(dir)?;
    let of = dir.metadata()?;
    if of.mode() & (OTHERS | GROUP) == 0 || !is_ours(&of) {
        return Ok(false);
    }
    let mode = of.mode() & 0o7777 & !(OTHERS | GROUP);
    dir.set_permissions(Permissions::from_mode(mode))?;
    Ok(true)
}

/// Creates a directory for its owner, and missing parents with the default mode; closes an existing one.
///
/// # Errors
/// As [`make_dir`] and [`close_dir`].
pub fn keep(dir: &Path) -> io::Result<()> {
    make_dir(dir)?;
    close_dir(dir).map(|_was_open| ())
}

/// Closes a directory if all of its entries have names of ours; returns whether it was closed.
///
/// # Errors
/// As [`close_dir`].
pub fn close_if(dir: &Path, is_ours: impl Fn(&OsStr) -> bool) -> io::Result<bool> {
    if !is_open(dir)? {
        return Ok(false);
    }
    for entry in fs::read_dir(dir)? {
        let name = entry?.file_name();
        if !is_ours(&name) && name != "lost+found" {
            return Ok(false);
        }
    }
    close_dir(dir)
}

/// Returns whether other users have access to a directory that [`close_dir`] would close.
///
/// # Errors
/// If it cannot be examined.
pub fn is_open(dir: &Path) -> io::Result<bool> {
    let of = fs::metadata(dir)?;
    Ok(of.mode() & OTHERS != 0 && is_ours(&of))
}

/// Gives these readers access to a file, or to a directory and all that is in it; unless this process is root,
/// files of other users are skipped. Links are not followed.
///
/// # Errors
/// If a mode or owner cannot be changed: the process is not in the group, or the disk is read-only.
pub fn give(path: &Path, readers: Readers) -> io::Result<()> {
    give_below(path, readers, 0)
}

fn give_below(path: &Path, readers: Readers, depth: usize) -> io::Result<()> {
    let given = match fs::symlink_metadata(path) {
        Ok(of) if of.is_dir() => give_dir(path, readers, depth),
        Ok(of) if of.is_file() => give_file(path, readers),
        Ok(_) => Ok(()),
        Err(error) => Err(error),
    };
    match given {
        // Whoever uses it removed it meanwhile.
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        given => given,
    }
}

fn give_dir(path: &Path, readers: Readers, depth: usize) -> io::Result<()> {
    if depth < DEPTH_MAX && is_ours(&fs::symlink_metadata(path)?) {
        for entry in fs::read_dir(path)? {
            give_below(&entry?.path(), readers, depth + 1)?;
        }
    }
    set_readers(path, readers)
}

/// Gives these readers access to a directory, and not to its content.
///
/// # Errors
/// As [`give`].
pub fn set_readers(dir: &Path, readers: Readers) -> io::Result<()> {
    let dir = open_dir(dir)?;
    let of = dir.metadata()?;
    if !is_ours(&of) {
        return Ok(());
    }
    set(&dir, &of, readers, readers.dir_mode())
}

fn give_file(path: &Path, readers: Readers) -> io::Result<()> {
    let mut options = File::options();
    let flags = OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK;
    let file = options.read(true).custom_flags(flags.bits()).open(path)?;
    let of = file.metadata()?;
    if !is_ours(&of) || !of.is_file() {
        return Ok(());
    }
    set(&file, &of, readers, readers.file_mode())
}

/// The group first: who changes it loses the set-group-id bit.
fn set(file: &File, of: &fs::Metadata, readers: Readers, mode: u32) -> io::Result<()> {
    let mut is_right = of.mode() & 0o7777 == mode;
    if let Readers::Group(gid) = readers
        && of.gid() != gid
    {
        fchown(file, None, Some(gid))?;
        is_right = false;
    }
    if is_right {
        return Ok(());
    }
    file.set_permissions(Permissions::from_mode(mode))
}

fn open_dir(dir: &Path) -> io::Result<File> {
    let mut options = File::options();
    let flags = OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW;
    options.read(true).custom_flags(flags.bits()).open(dir)
}

fn is_ours(of: &fs::Metadata) -> bool {
    let us = geteuid();
    let is_everybodys = of.is_dir() && of.mode() & STICKY != 0;
    (us.is_root() || of.uid() == us.as_raw()) && !is_everybodys
}

fn parent(path: &Path) -> &Path {
    match path.parent() {
        Some(dir) if !dir.as_os_str().is_empty() => dir,
        _ => Path::new("."),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    fn mode(path: &Path) -> u32 {
        fs::symlink_metadata(path).unwrap().mode() & 0o7777
    }

    fn chmod(path: &Path, mode: u32) {
        fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn what_is_made_follows_the_directory() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        chmod(dir.path(), 0o755);
        make_dir(&at("above/own")).unwrap();
        assert_eq!(mode(&at("above/own")), 0o700);
        drop(create_new(&at("file")).unwrap());
        assert_eq!(mode(&at("file")), 0o600);
        assert!(create_new(&at("file")).is_err());
        drop(open_or_create(&at("file")).unwrap());

        make_dir(&at("shared")).unwrap();
        chmod(&at("shared"), 0o2750);
        make_dir_alike(&at("shared/below")).unwrap();
        drop(open_or_create(&at("shared/below/file")).unwrap());
        assert_eq!(mode(&at("shared/below")), 0o2750);
        assert_eq!(mode(&at("shared/below/file")), 0o640);
        // What was shared with everybody is shared with nobody.
        chmod(&at("shared"), 0o2755);
        assert_eq!(Readers::in_dir(&at("shared")).unwrap(), Readers::Owner);
    }

    #[test]
    fn only_what_is_ours_is_closed() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        for (name, before, after) in [
            ("open", 0o755, 0o700),
            ("group", 0o750, 0o700),
            ("closed", 0o700, 0o700),
            ("everybody", 0o1777, 0o1777),
        ] {
            fs::create_dir(at(name)).unwrap();
            chmod(&at(name), before);
            assert_eq!(close_dir(&at(name)).unwrap(), before != after, "{name}");
            assert_eq!(mode(&at(name)), after, "{name}");
        }
        symlink("/etc", at("link")).unwrap();
        assert!(close_dir(&at("link")).is_err());
    }

    #[test]
    fn all_below_is_given_and_no_link_followed() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        fs::create_dir_all(at("kept/below")).unwrap();
        fs::write(at("elsewhere"), "x").unwrap();
        fs::write(at("kept/below/file"), "x").unwrap();
        symlink(at("elsewhere"), at("kept/link")).unwrap();
        chmod(&at("elsewhere"), 0o644);
        let gid = fs::metadata(dir.path()).unwrap().gid();
        for (readers, of_dir, of_file) in [
            (Readers::Group(gid), 0o2750, 0o640),
            (Readers::Owner, 0o700, 0o600),
        ] {
            give(&at("kept"), readers).unwrap();
            assert_eq!(mode(&at("kept")), of_dir);
            assert_eq!(mode(&at("kept/below")), of_dir);
            assert_eq!(mode(&at("kept/below/file")), of_file);
            assert_eq!(mode(&at("elsewhere")), 0o644);
        }
    }
}
