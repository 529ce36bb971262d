//! Entries of a tar made into files.

use std::collections::BTreeMap;
use std::ffi::CString;
use std::fs::File;
use std::io::{self, Read};

use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, openat};
use nix::sys::stat::{
    FchmodatFlags, FileStat, Mode, SFlag, UtimensatFlags, fchmodat, makedev, mkdirat, mknodat,
    utimensat,
};
use nix::sys::time::TimeSpec;
use nix::unistd::{Gid, Uid, UnlinkatFlags, fchownat, linkat, symlinkat};
use rawio::xattr;

use super::attributes::is_kept;
use super::entry::{Entry, Kind};
use super::implied::Implied;
use super::limits::Spent;
use super::root::{Root, Spot, clean, split};
use super::{Devices, Limits, TarError, Unpacked};

/// Starts the name of what is deleted from lower layers.
const WHITEOUT: &[u8] = b".wh.";
/// Starts the names by which the tar speaks of itself; of those only this one has a meaning left.
const SPECIAL: &[u8] = b".wh..wh.";
const OPAQUE: &[u8] = b".wh..wh..opq";
/// The attribute by which overlayfs recognizes that a directory hides those below it.
pub(crate) const OPAQUE_XATTR: &std::ffi::CStr = c"trusted.overlay.opaque";
/// Bytes of memory that a remembered directory takes beside its path: a place in a tree, and what the
/// allocator adds.
const REMEMBERED_BYTES: usize = 96;
/// The kernel's own bounds: a larger attribute is no attribute.
pub(crate) const XATTR_VALUE_MAX: usize = 64 << 10;

/// The meaning of a name in a tar for lower layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Marker<'a> {
    /// The directory that contains it hides those below it.
    Opaque,
    /// The entry with this name is deleted.
    Deleted(&'a [u8]),
    /// No meaning: a remnant of AUFS.
    Nothing,
}

impl<'a> Marker<'a> {
    /// Returns the marker of a name; `None` for names of files.
    pub(crate) fn of(name: &'a [u8]) -> Result<Option<Self>, TarError> {
        let Some(hidden) = name.strip_prefix(WHITEOUT) else {
            return Ok(None);
        };
        match hidden {
            _ if name == OPAQUE => Ok(Some(Self::Opaque)),
            _ if name.starts_with(SPECIAL) => Ok(Some(Self::Nothing)),
            b"" | b"." | b".." => Err(TarError::Rule(
                "a whiteout names nothing that it could hide",
            )),
            hidden => Ok(Some(Self::Deleted(hidden))),
        }
    }
}

/// What becomes of the directory that a layer is unpacked into.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Top {
    /// What the tar says.
    AsTold,
    /// Nothing.
    Left,
}

pub(crate) struct Writer {
    root: Root,
    top: Top,
    limits: Limits,
    spent: Spent,
    done: Unpacked,
    /// Directories and the times that they get when nothing is put into them any more.
    times: BTreeMap<Vec<u8>, (i64, u32)>,
    implied: Implied,
}

impl Writer {
    pub(crate) fn new(root: Root, limits: Limits, top: Top) -> Self {
        Self {
            root,
            top,
            limits,
            spent: Spent::new(limits),
            done: Unpacked::default(),
            times: BTreeMap::new(),
            implied: Implied::new(),
        }
    }

    /// Creates the file of an entry.
    pub(crate) fn write(&mut self, entry: &Entry, content: &mut dyn Read) -> Result<(), TarError> {
        self.spent.entry()?;
        self.done.entries += 1;
        let path = clean(&entry.name)?;
        self.spent.names(path.len() + entry.target.len())?;
        let (parent, name) = split(&path);
        if let Some(marker) = Marker::of(name)? {
            return self.mark(parent, marker);
        }
        let spot = match (path.is_empty(), entry.kind) {
            (true, Kind::Directory) if self.top == Top::Left => return Ok(()),
            (true, Kind::Directory) => self.root.itself()?,
            (true, _) => return Err(TarError::Rule("its root is not a directory")),
            (false, _) => self.put(&path, entry, content)?,
        };
        match entry.kind {
            Kind::HardLink => return Ok(()), // its file was described already
            _ => self.describe(&spot, entry)?,
        }
        if entry.kind == Kind::Directory {
            self.remember(path, entry.mtime)?;
        }
        Ok(())
    }

    fn put<'a>(
        &mut self,
        path: &'a [u8],
        entry: &Entry,
        content: &mut dyn Read,
    ) -> Result<Spot<'a>, TarError> {
        let spot = self.make_way(path)?;
        let opaque = make_room(&spot, entry.kind)?;
        self.make(&spot, entry, content)?;
        if opaque {
            xattr::set_at(spot.fd(), spot.name, OPAQUE_XATTR, b"y")?;
        }
        Ok(spot)
    }

    /// Returns the place of a path, and remembers the directories that have to be made for it.
    fn make_way<'a>(&mut self, path: &'a [u8]) -> Result<Spot<'a>, TarError> {
        let (implied, spent) = (&mut self.implied, &mut self.spent);
        self.root.make_way(path, &mut |dir| {
            spent.implied()?;
            spent.memory(dir.len() + REMEMBERED_BYTES)?;
            implied.add(dir);
            Ok(())
        })
    }

    /// Sets the times of directories, after all files were created in them. Returns the
    /// result, and the directories without an entry.
    pub(crate) fn finish(self) -> Result<(Unpacked, Implied), TarError> {
        for (path, mtime) in &self.times {
            let spot = match path.is_empty() {
                true => self.root.itself(),
                false => self.root.spot(path),
            };
            match spot.and_then(|spot| set_mtime(&spot, *mtime)) {
                // Something else took its place.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                other => other?,
            }
        }
        Ok((self.done, self.implied))
    }

    /// Makes what the tar says of lower layers.
    fn mark(&mut self, parent: &[u8], marker: Marker<'_>) -> Result<(), TarError> {
        let below = |name: &[u8]| match parent {
            b"" => name.to_vec(),
            _ => [parent, b"/", name].concat(),
        };
        let hidden = match marker {
            Marker::Nothing => return Ok(()),
            Marker::Opaque => {
                let dot = below(b".");
                let spot = self.make_way(&dot)?;
                return Ok(xattr::set_at(spot.fd(), b".", OPAQUE_XATTR, b"y")?);
            }
            Marker::Deleted(name) => below(name),
        };
        let spot = self.make_way(&hidden)?;
        match spot.stat()? {
            None => make_node(&spot, SFlag::S_IFCHR, 0),
            // This layer has deleted it and made it anew: only what lies below is hidden.
            Some(stat) if is(&stat, SFlag::S_IFDIR) => {
                Ok(xattr::set_at(spot.fd(), spot.name, OPAQUE_XATTR, b"y")?)
            }
            Some(_) => Ok(()),
        }
    }

    fn make(
        &mut self,
        spot: &Spot<'_>,
        entry: &Entry,
        content: &mut dyn Read,
    ) -> Result<(), TarError> {
        let device = || match (self.limits.devices, entry.device) {
            (Devices::Refused, _) => Err(TarError::Device),
            (_, (0, 0)) => Err(TarError::Rule(
                "a device has the number 0/0, which means a whiteout",
            )),
            (_, (major, minor)) => Ok(makedev(major.into(), minor.into())),
        };
        match entry.kind {
            Kind::File => {
                let flags = OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_NOFOLLOW;
                let mode = Mode::S_IRUSR | Mode::S_IWUSR;
                let file = openat(spot.fd(), spot.name, flags | OFlag::O_CLOEXEC, mode);
                let mut file = File::from(file.map_err(io::Error::from)?);
                self.done.bytes += io::copy(content, &mut file)?;
            }
            Kind::Directory => match mkdirat(spot.fd(), spot.name, Mode::S_IRWXU) {
                Ok(()) | Err(Errno::EEXIST) => {}
                Err(error) => return Err(io::Error::from(error).into()),
            },
            Kind::Symlink => {
                let made = symlinkat(entry.target.as_slice(), spot.fd(), spot.name);
                made.map_err(io::Error::from)?;
            }
            Kind::HardLink => self.link(spot, &entry.target)?,
            Kind::Character => make_node(spot, SFlag::S_IFCHR, device()?)?,
            Kind::Block => make_node(spot, SFlag::S_IFBLK, device()?)?,
            Kind::Fifo => make_node(spot, SFlag::S_IFIFO, 0)?,
        }
        Ok(())
    }

    fn link(&self, spot: &Spot<'_>, target: &[u8]) -> Result<(), TarError> {
        let path = clean(target)?;
        let missing = || TarError::HardLink {
            target: String::from_utf8_lossy(&path).chars().take(200).collect(),
        };
        let from = match self.root.spot(&path) {
            Ok(from) => from,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(missing()),
            Err(error) => return Err(error.into()),
        };
        match linkat(from.fd(), from.name, spot.fd(), spot.name, AtFlags::empty()) {
            Ok(()) => Ok(()),
            Err(Errno::ENOENT) => Err(missing()),
            Err(error) => Err(io::Error::from(error).into()),
        }
    }

    /// Sets owner, attributes, mode and time, in the order in which one does not undo another.
    fn describe(&mut self, spot: &Spot<'_>, entry: &Entry) -> Result<(), TarError> {
        let (uid, gid) = (Uid::from_raw(entry.uid), Gid::from_raw(entry.gid));
        let no_follow = AtFlags::AT_SYMLINK_NOFOLLOW;
        fchownat(spot.fd(), spot.name, Some(uid), Some(gid), no_follow).map_err(io::Error::from)?;
        for (name, value) in &entry.xattrs {
            if !self.set_xattr(spot, name, value)? {
                self.done.skipped_xattrs += 1;
            }
        }
        if entry.kind != Kind::Symlink {
            let mode = Mode::from_bits_truncate(entry.mode);
            let flag = FchmodatFlags::FollowSymlink; // it is none: we have just made it
            fchmodat(spot.fd(), spot.name, mode, flag).map_err(io::Error::from)?;
        }
        Ok(set_mtime(spot, entry.mtime)?)
    }

    /// Returns whether the attribute was set.
    fn set_xattr(&mut self, spot: &Spot<'_>, name: &[u8], value: &[u8]) -> Result<bool, TarError> {
        let fits = value.len() <= XATTR_VALUE_MAX;
        let (true, Ok(name), true) = (is_kept(name), CString::new(name), fits) else {
            return Ok(false);
        };
        self.spent.names(name.count_bytes() + value.len())?;
        match xattr::set_at(spot.fd(), spot.name, &name, value) {
            Ok(()) => Ok(true),
            Err(error) => match error.raw_os_error().map(Errno::from_raw) {
                Some(Errno::EOPNOTSUPP | Errno::EPERM | Errno::ERANGE | Errno::E2BIG) => Ok(false),
                _ => Err(error.into()),
            },
        }
    }

    fn remember(&mut self, path: Vec<u8>, mtime: (i64, u32)) -> Result<(), TarError> {
        self.implied.is_told(&path);
        self.spent.memory(path.len() + REMEMBERED_BYTES)?;
        self.times.insert(path, mtime);
        Ok(())
    }
}

/// Removes what a new entry replaces: the last one of a name counts. Returns whether the entry
/// must be opaque, because it is a directory where this layer had deleted something before.
fn make_room(spot: &Spot<'_>, kind: Kind) -> Result<bool, TarError> {
    let Some(found) = spot.stat()? else {
        return Ok(false);
    };
    match (is(&found, SFlag::S_IFDIR), kind == Kind::Directory) {
        (true, true) => Ok(false),
        (true, false) => match spot.remove(UnlinkatFlags::RemoveDir) {
            Err(error) if error.raw_os_error() == Some(Errno::ENOTEMPTY as i32) => Err(
                TarError::Rule("an entry replaces a directory of the same layer that is not empty"),
            ),
            other => other.map(|()| false).map_err(TarError::from),
        },
        (false, is_directory) => {
            spot.remove(UnlinkatFlags::NoRemoveDir)?;
            let was_whiteout = is(&found, SFlag::S_IFCHR) && found.st_rdev == 0;
            Ok(is_directory && was_whiteout)
        }
    }
}

fn is(stat: &FileStat, kind: SFlag) -> bool {
    SFlag::from_bits_truncate(stat.st_mode) & SFlag::S_IFMT == kind
}

fn make_node(spot: &Spot<'_>, kind: SFlag, device: u64) -> Result<(), TarError> {
    let mode = Mode::S_IRUSR | Mode::S_IWUSR;
    mknodat(spot.fd(), spot.name, kind, mode, device).map_err(io::Error::from)?;
    Ok(())
}

fn set_mtime(spot: &Spot<'_>, (seconds, nanos): (i64, u32)) -> io::Result<()> {
    let time = TimeSpec::new(seconds, nanos.into());
    let flag = UtimensatFlags::NoFollowSymlink;
    Ok(utimensat(spot.fd(), spot.name, &time, &time, flag)?)
}
