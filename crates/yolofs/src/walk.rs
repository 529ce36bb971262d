//! Walking through the private mount, so that the kernel knows what a boot will ask for.

mod names;

use std::collections::HashMap;
use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;

use blocks::{FileId, Namespace, RangeSet, ReplayPlan, Touch};
use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, openat, readlinkat};
use nix::sys::resource::{Resource, getrlimit};
use nix::sys::stat::{Mode, SFlag, fstatat};
use rawio::dents::Lister;
use rawio::lock::LockedPages;

use crate::fs::FileSystem;
use names::Names;

/// What a mount holds on to after a prewarm, through its private mount.
#[derive(Debug, Default)]
pub(crate) struct Held {
    pub(crate) walker: Option<Walker>,
    pub(crate) locks: Vec<LockedPages>,
}

/// One of the attributes that overlays ask for at each look-up.
const BY_OVERLAYS: &[u8] = b"trusted.overlay.opaque";

/// Descriptors of the process that pins leave alone: for everything else it does.
const SPARE_DESCRIPTORS: u64 = 128;

/// Looks names up through the private mount, and holds on to what it finds.
#[derive(Debug)]
pub(crate) struct Walker {
    names: Names,
    /// The root is always among them.
    pins: HashMap<FileId, Arc<OwnedFd>>,
    /// How many more may be held.
    room: u64,
    unpinned: u64,
    lister: Lister,
}

impl Walker {
    /// Returns a walker that knows the root, and may hold nothing else.
    pub(crate) fn new(root: Arc<OwnedFd>) -> Self {
        Self {
            names: Names::default(),
            pins: HashMap::from([(FileId::ROOT, root)]),
            room: 0,
            unpinned: 0,
            lister: Lister::new(),
        }
    }

    /// Prepares for the files of a plan: learns their names, and how many may be held.
    pub(crate) fn prepare(
        &mut self,
        namespace: &dyn Namespace,
        plan: &ReplayPlan,
        max_pins: Option<u64>,
    ) -> io::Result<()> {
        let (limit, _) = getrlimit(Resource::RLIMIT_NOFILE)?;
        let open = std::fs::read_dir("/proc/self/fd")?.count() as u64;
        let possible = limit.saturating_sub(open + SPARE_DESCRIPTORS);
        let wanted = max_pins.map_or(u64::MAX, |max| max.saturating_sub(self.pinned()));
        self.room = possible.min(wanted);
        self.unpinned = 0;
        self.names.learn(namespace, plan);
        Ok(())
    }

    pub(crate) fn pinned(&self) -> u64 {
        self.pins.len() as u64
    }

    pub(crate) const fn unpinned(&self) -> u64 {
        self.unpinned
    }

    /// Sends one request of each kind that the kernel sends once and never again, so that the
    /// boot need not: opening, closing, and what overlays ask of attributes if there are none.
    ///
    /// Failures are of no account: then the boot sends the request.
    pub(crate) fn settle_protocol(&mut self, plan: &ReplayPlan, fs: &FileSystem) {
        let root = Arc::clone(&self.pins[&FileId::ROOT]);
        let _opendir = open_under(root.as_fd(), b".", OFlag::O_DIRECTORY);
        if fs.is_vain_question(BY_OVERLAYS) {
            let _getxattr = rawio::xattr::get_at(&root, b"", BY_OVERLAYS);
        }
        // Any file will do; one that is gone will not.
        let mut files = plan.extents.iter().map(|extent| extent.file);
        let _open_and_flush = files.find_map(|file| self.open_to_read(file).ok());
    }

    /// Does once more what a boot did.
    pub(crate) fn replay(&mut self, namespace: &dyn Namespace, touch: &Touch) -> io::Result<()> {
        match touch {
            Touch::Lookup { dir, name } => {
                let parent = self.reach(*dir)?;
                match open_under(parent.as_fd(), name, OFlag::O_PATH) {
                    Ok(fd) => {
                        if let Ok(Some(file)) = namespace.lookup(*dir, name) {
                            self.pin(file, Arc::new(fd));
                        }
                        Ok(())
                    }
                    // The boot was told so too, and the kernel remembers that.
                    Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
                    Err(error) => Err(error),
                }
            }
            Touch::List { dir } => self.list(*dir),
            Touch::ReadLink { link } => {
                let link = self.reach(*link)?;
                readlinkat(&*link, "")?;
                Ok(())
            }
        }
    }

    /// Returns a descriptor of a file, open as a path, and pins it if there is room.
    pub(crate) fn reach(&mut self, file: FileId) -> io::Result<Arc<OwnedFd>> {
        if let Some(pin) = self.pins.get(&file) {
            return Ok(Arc::clone(pin));
        }
        let unknown = || io::Error::from(io::ErrorKind::NotFound);
        let way: Vec<(FileId, Vec<u8>)> = self
            .names
            .way_to(file)
            .ok_or_else(unknown)?
            .into_iter()
            .map(|(file, name)| (file, name.to_vec()))
            .collect();
        // The last directory on the way that is pinned; the root is.
        let start = way.iter().rposition(|(dir, _)| self.pins.contains_key(dir));
        let (mut at, rest) = match start {
            Some(index) => (Arc::clone(&self.pins[&way[index].0]), &way[index + 1..]),
            None => (Arc::clone(&self.pins[&FileId::ROOT]), &way[..]),
        };
        for (file, name) in rest {
            at = Arc::new(open_under(at.as_fd(), name, OFlag::O_PATH)?);
            self.pin(*file, Arc::clone(&at));
        }
        Ok(at)
    }

    /// Looks a file up again whose inode the kernel no longer knows.
    pub(crate) fn reach_again(&mut self, file: FileId) -> io::Result<Arc<OwnedFd>> {
        if file != FileId::ROOT && self.pins.remove(&file).is_some() {
            self.room += 1;
        }
        self.reach(file)
    }

    /// Has the kernel ask for the attributes of a file that it was made to forget: when this
    /// returns, it knows the size that the file has now.
    pub(crate) fn refresh(&mut self, namespace: &dyn Namespace, file: FileId) -> io::Result<()> {
        self.names.find(namespace, file);
        let path = self.reach(file)?;
        fstatat(&*path, "", AtFlags::AT_EMPTY_PATH)?;
        Ok(())
    }

    /// Keeps pages of a file in memory. Returns how many bytes.
    pub(crate) fn lock(
        &self,
        file: FileId,
        set: &RangeSet,
        locks: &mut Vec<LockedPages>,
    ) -> io::Result<u64> {
        let fd = self.open_to_read(file)?;
        let mut bytes = 0;
        for run in set.runs() {
            let len = usize::try_from(run.byte_len()).map_err(io::Error::other)?;
            locks.push(LockedPages::lock(&fd, run.bytes().start, len)?);
            bytes += run.byte_len();
        }
        Ok(bytes)
    }

    fn pin(&mut self, file: FileId, fd: Arc<OwnedFd>) {
        if self.pins.contains_key(&file) {
            return;
        }
        if self.room == 0 {
            self.unpinned += 1;
            return;
        }
        self.room -= 1;
        self.pins.insert(file, fd);
    }

    /// Opens a regular file for reading, and nothing else: trees of images have device nodes, and
    /// some devices act on being opened. The file's own name is needed for that: what is open as
    /// a path cannot be opened again without `/proc`.
    pub(crate) fn open_to_read(&self, file: FileId) -> io::Result<OwnedFd> {
        let way = self.names.way_to(file).unwrap_or_default();
        let unknown = || io::Error::from(io::ErrorKind::NotFound);
        let ((_, name), dirs) = way.split_last().ok_or_else(unknown)?;
        let mut at = Arc::clone(&self.pins[&FileId::ROOT]);
        for (dir, name) in dirs {
            at = match self.pins.get(dir) {
                Some(pin) => Arc::clone(pin),
                None => Arc::new(open_under(at.as_fd(), name, OFlag::O_PATH)?),
            };
        }
        let name = OsStr::from_bytes(name);
        let mode = fstatat(&*at, name, AtFlags::AT_SYMLINK_NOFOLLOW)?.st_mode;
        if SFlag::from_bits_truncate(mode) & SFlag::S_IFMT != SFlag::S_IFREG {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        open_under(at.as_fd(), name.as_bytes(), OFlag::empty())
    }

    /// Lists a whole directory, and asks for the attributes of all that is in it: the kernel is
    /// given them with the names only now and then.
    fn list(&mut self, dir: FileId) -> io::Result<()> {
        let path = self.reach(dir)?;
        let open = open_under(path.as_fd(), b".", OFlag::O_DIRECTORY)?;
        loop {
            let entries = self.lister.next(&open)?;
            if entries.is_empty() {
                return Ok(());
            }
            for entry in entries {
                let name = OsStr::from_bytes(entry.name);
                // A file that is gone by now is not a failure of the listing.
                let _attributes = fstatat(&open, name, AtFlags::AT_SYMLINK_NOFOLLOW);
            }
        }
    }
}

/// Opens what `name` is in a directory, without following it if it is a link.
fn open_under(dir: BorrowedFd<'_>, name: &[u8], flags: OFlag) -> io::Result<OwnedFd> {
    let flags = flags | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    match openat(dir, OsStr::from_bytes(name), flags, Mode::empty()) {
        Ok(fd) => Ok(fd),
        Err(Errno::ENOENT) => Err(io::ErrorKind::NotFound.into()),
        Err(errno) => Err(errno.into()),
    }
}
