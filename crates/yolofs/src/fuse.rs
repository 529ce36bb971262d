//! The adapter between fuser and the [`FileSystem`]: it translates, calls and responds.
//!
//! Only decisions without meaning outside of FUSE are made here: which of the kernel's
//! capabilities are requested, and how its caches are used.

mod backings;
mod changed;
mod connect;
mod convert;
mod give;
mod handing;
mod handles;
mod listing;
mod writes;

use std::cell::RefCell;
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use blocks::{FileId, Lifetime, Seek};
use fuser::{
    BsdFileFlags, CopyFileRangeFlags, Errno, FileHandle, Filesystem, Generation, INodeNo,
    InitFlags, IoctlFlags, KernelConfig, LockOwner, OpenAccMode, OpenFlags, PollEvents, PollFlags,
    PollNotifier, RenameFlags, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory,
    ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyIoctl, ReplyLseek, ReplyOpen, ReplyPoll,
    ReplyStatfs, ReplyWrite, ReplyXattr, TimeOrNow, WriteFlags,
};

use crate::connection::Hello;
use crate::errno::errno;
use crate::fs::{CachePath, Entry, FileSystem, FsError, Mode, PassedTo, Request};
use crate::serving::State;
use backings::{Backings, Opened};
use connect::PendingReply;
use convert::{caller, file, file_attr, file_type, lifetime, node};
use give::{
    give_attr, give_data, give_entry, give_offset, give_ok, give_opened, give_space, give_xattr,
};
use handles::{Asked, Handles};
use listing::stop_if;

/// Largest request: 256 pages is what Linux allows unless `fs.fuse.max_pages_limit` is raised,
/// and larger ones were not faster.
const MAX_REQUEST_BYTES: u32 = 1 << 20;

/// Requests for readahead that the kernel sends at a time; every read through its page cache is one.
/// Those that hang in the source count. With the usual 12 or 16, as many hung readers would hold up all
/// others.
const MAX_BACKGROUND: u16 = 4096;

/// The generation of nothing.
const NO_GENERATION: Generation = Generation(0);

/// Serves a [`FileSystem`] to the kernel.
pub(crate) struct Adapter {
    fs: Arc<FileSystem>,
    /// How much the kernel may read ahead, in bytes; `None` leaves it as it is.
    readahead: Option<u32>,
    backings: Arc<Backings>,
    handles: Arc<Handles>,
    state: Arc<State>,
}

thread_local! {
    /// Where a thread puts what it reads. It grows to the largest read and stays.
    static READ_BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

impl Adapter {
    pub(crate) fn new(
        fs: Arc<FileSystem>,
        readahead: Option<u32>,
        (hello, state): (&Hello, &Arc<State>),
    ) -> Self {
        Self {
            handles: Arc::new(Handles::new(&fs, hello, state)),
            fs,
            readahead,
            backings: Arc::default(),
            state: Arc::clone(state),
        }
    }

    /// The kernel's abilities that this mount requests; it gets those that the kernel has.
    fn wanted(&self) -> InitFlags {
        let mut flags = InitFlags::FUSE_DO_READDIRPLUS
            | InitFlags::FUSE_READDIRPLUS_AUTO
            | InitFlags::FUSE_CACHE_SYMLINKS
            | InitFlags::FUSE_PARALLEL_DIROPS
            | InitFlags::FUSE_ASYNC_DIO
            // Containers in user namespaces mount it with IDs of their own (Linux 6.12). Requests then carry no
            // user, whom nobody here asks for: the kernel checks permissions.
            | InitFlags::FUSE_ALLOW_IDMAP
            | self.handles.wanted();
        if self.fs.mode() == Mode::Lower {
            flags |= InitFlags::FUSE_NO_OPEN_SUPPORT | InitFlags::FUSE_NO_OPENDIR_SUPPORT;
        } else if self.fs.may_pass_through() {
            flags |= InitFlags::FUSE_PASSTHROUGH;
        }
        if self.fs.lifetime() != Lifetime::Forever {
            flags |= InitFlags::FUSE_AUTO_INVAL_DATA;
        }
        if self.fs.has_access_lists() {
            flags |= InitFlags::FUSE_POSIX_ACL;
        }
        flags
    }

    /// Answers a question for the handle of a file that the kernel has forgotten.
    fn connect(&self, entry: &Entry, reply: ReplyEntry) {
        let Some(node) = entry.node else {
            return reply.error(Errno::ESTALE);
        };
        self.handles.connector.answer(PendingReply {
            file: node.file,
            attr: file_attr(node.file, &node.attr),
            lifetime: lifetime(entry.lifetime),
            generation: self.handles.generation(node.file),
            reply,
        });
    }

    /// Answers a request: at once if that takes no waiting, and otherwise by somebody who may wait.
    /// What is asked for then is made by `later`, to be kept until its turn.
    fn answer<R: Send + 'static, T, Later>(
        &self,
        reply: R,
        now: impl FnOnce(&FileSystem) -> Result<T, FsError>,
        later: impl FnOnce() -> Later,
        give: impl Fn(R, Result<T, FsError>) + Send + Sync + 'static,
    ) where
        Later: FnOnce(&FileSystem) -> Result<T, FsError> + Send + 'static,
    {
        match handing::now(&self.fs, || now(&self.fs)) {
            Err(error) if error.would_wait() => {
                handing::over(&self.fs, reply, later(), give);
            }
            answer => give(reply, answer),
        }
    }

    /// Answers an open of a file that was open already, and is once more.
    fn give_again(&self, file: FileId, opened: Opened, reply: ReplyOpen) {
        self.fs.count(Request::Open);
        if !matches!(opened, Opened::Passed(_, PassedTo::Source)) {
            return give_opened(&self.fs, reply, Ok(opened));
        }
        // The kernel reads the file as it is now, and checked rights as they are shown.
        let ask = move |fs: &FileSystem| fs.admit(file);
        let (fs, backings) = (Arc::clone(&self.fs), Arc::clone(&self.backings));
        let give = move |reply: ReplyOpen, admitted: Result<(), FsError>| {
            let opened = admitted
                .map(|()| opened.clone())
                .inspect_err(|_| backings.close(file));
            give_opened(&fs, reply, opened);
        };
        self.answer(reply, ask, || ask, give);
    }
}

/// Answers requests that would change something else than content: nothing of that changes here.
///
/// The kernel refuses most of them by itself, if the mount is read-only.
macro_rules! refuse {
    ($($verb:ident($($argument:ty),*) -> $reply:ty;)*) => {
        $(fn $verb(&self, _: &fuser::Request, $(_: $argument,)* reply: $reply) {
            self.fs.count(Request::Write);
            reply.error(errno(&FsError::ReadOnly));
        })*
    };
}

impl Filesystem for Adapter {
    fn init(&mut self, _: &fuser::Request, config: &mut KernelConfig) -> io::Result<()> {
        let wanted = self.wanted() & config.capabilities();
        let unknown = |flags| io::Error::other(format!("the kernel has no {flags:?}"));
        config.add_capabilities(wanted).map_err(unknown)?;
        self.handles.agree(wanted);
        // Both are smaller than the largest that the calls allow.
        let _was = config.set_max_write(MAX_REQUEST_BYTES);
        // The kernel holds back what it reads ahead beyond this, and with it reads that need no source.
        let _was = config.set_max_background(MAX_BACKGROUND);
        if wanted.contains(InitFlags::FUSE_PASSTHROUGH) {
            // 1: files may be passed through, and an overlay may still lie on top.
            let _was = config.set_max_stack_depth(1);
        }
        if let Some(readahead) = self.readahead {
            // 0 is refused, and 1 is rounded down to no page. More than the kernel offers is cut;
            // `Visible` asks for the rest by other means.
            if let Err(nearest) = config.set_max_readahead(readahead.max(1)) {
                let _was = config.set_max_readahead(nearest);
            }
        }
        Ok(())
    }

    fn lookup(&self, req: &fuser::Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let (who, name) = (caller(req), name.as_bytes());
        let asked = file(parent).map(|file| self.handles.asked(file, name));
        match asked {
            Ok(Some(Asked::Forgotten(Ok(entry)))) => return self.connect(&entry, reply),
            Ok(Some(Asked::Forgotten(found) | Asked::Known(found))) => {
                return give_entry(&self.handles, reply, found);
            }
            Ok(None) | Err(_) => (),
        }
        let handles = Arc::clone(&self.handles);
        self.answer(
            reply,
            |fs| fs.lookup(who, file(parent)?, name),
            || {
                let name = name.to_vec();
                move |fs: &FileSystem| fs.lookup(who, file(parent)?, &name)
            },
            move |reply, found| give_entry(&handles, reply, found),
        );
    }

    fn forget(&self, _: &fuser::Request, _: INodeNo, _: u64) {
        self.fs.count(Request::Forget);
    }

    fn getattr(&self, _: &fuser::Request, ino: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        let ask = move |fs: &FileSystem| fs.getattr(file(ino)?);
        let handles = Arc::clone(&self.handles);
        let give = move |reply, attr| give_attr(&handles, reply, ino, attr);
        self.answer(reply, ask, || ask, give);
    }

    fn readlink(&self, req: &fuser::Request, ino: INodeNo, reply: ReplyData) {
        let who = caller(req);
        let ask = move |fs: &FileSystem| fs.readlink(who, file(ino)?);
        self.answer(reply, ask, || ask, give_data);
    }

    fn open(&self, _: &fuser::Request, ino: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        if self.fs.mode() == Mode::Lower {
            // The kernel never asks again, and keeps what it has cached.
            self.fs.count(Request::Open);
            return reply.error(Errno::ENOSYS);
        }
        if flags.acc_mode() != OpenAccMode::O_RDONLY && !self.fs.is_writable() {
            self.fs.count(Request::Open);
            return reply.error(errno(&FsError::ReadOnly));
        }
        // Most opens are of what is open: libraries that every program maps.
        let again = file(ino).ok();
        let again = again.and_then(|file| Some((file, self.backings.open_again(file)?)));
        if let Some((file, opened)) = again {
            return self.give_again(file, opened, reply);
        }
        let ask = move |fs: &FileSystem| fs.open(file(ino)?);
        let (fs, backings) = (Arc::clone(&self.fs), Arc::clone(&self.backings));
        let give = move |reply: ReplyOpen, decision| {
            let opened = file(ino).and_then(|file| {
                Ok(backings.open(file, decision?, |backing| {
                    let registered = reply.open_backing(&backing.fd);
                    registered.inspect_err(|_| fs.count_refused(backing.to))
                }))
            });
            give_opened(&fs, reply, opened);
        };
        self.answer(reply, ask, || ask, give);
    }

    fn read(
        &self,
        req: &fuser::Request,
        ino: INodeNo,
        _: FileHandle,
        offset: u64,
        size: u32,
        flags: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let size = size as usize;
        let path = match flags.0 & nix::libc::O_DIRECT {
            0 => CachePath::Through,
            _ => CachePath::Around,
        };
        let who = caller(req);
        let ask = move |fs: &FileSystem, buf: &mut [u8]| {
            let file = file(ino)?;
            fs.read_uncounted(who, file, offset, buf, path)
        };
        READ_BUFFER.with_borrow_mut(|buffer| {
            if buffer.len() < size {
                buffer.resize(size, 0);
            }
            let buf = &mut buffer[..size];
            let read = handing::now(&self.fs, || ask(&self.fs, buf));
            self.fs.count_read(&read);
            match read {
                Ok(read) => reply.data(&buf[..read.len]),
                Err(error) if error.would_wait() => {
                    handing::over_read(&self.fs, reply, size, ask);
                }
                Err(error) => reply.error(errno(&error)),
            }
        });
    }

    fn flush(
        &self,
        _: &fuser::Request,
        _: INodeNo,
        _: FileHandle,
        _: LockOwner,
        reply: ReplyEmpty,
    ) {
        // Nothing is ever written back; the kernel never asks again.
        self.fs.count(Request::Flush);
        reply.error(Errno::ENOSYS);
    }

    fn release(
        &self,
        _: &fuser::Request,
        ino: INodeNo,
        _: FileHandle,
        _: OpenFlags,
        _: Option<LockOwner>,
        _: bool,
        reply: ReplyEmpty,
    ) {
        if let Ok(file) = file(ino) {
            self.backings.close(file);
        }
        // Counted last: who sees the count may rely on the file being free.
        self.fs.count(Request::Release);
        reply.ok();
    }

    fn opendir(&self, _: &fuser::Request, _: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        // The kernel never asks again, and keeps what it has cached. Linux does so whether or not it
        // was told at the beginning; other modes do not tell it, as servers before this one did not.
        self.fs.count(Request::OpenDir);
        reply.error(Errno::ENOSYS);
    }

    fn readdir(
        &self,
        req: &fuser::Request,
        ino: INodeNo,
        _: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        let (fs, who, mut any) = (&self.fs, caller(req), false);
        let listed = handing::now(fs, || {
            fs.readdir(who, file(ino)?, offset, &mut |item| {
                any = true;
                let (kind, name) = (file_type(item.kind), OsStr::from_bytes(item.name));
                stop_if(reply.add(node(item.file), item.next, kind, name))
            })
        });
        match listed {
            Err(error) if error.would_wait() && !any => {
                let ask = move |fs: &FileSystem| listing::names(fs, who, file(ino)?, offset);
                handing::over(fs, reply, ask, listing::give_names);
            }
            // What is there is an answer: the kernel asks for the rest.
            Err(error) if !error.would_wait() => reply.error(errno(&error)),
            _ => reply.ok(),
        }
    }

    fn readdirplus(
        &self,
        req: &fuser::Request,
        ino: INodeNo,
        _: FileHandle,
        offset: u64,
        mut reply: ReplyDirectoryPlus,
    ) {
        let (fs, who, mut any) = (&self.fs, caller(req), false);
        let listed = handing::now(fs, || {
            fs.readdirplus(who, file(ino)?, offset, &mut |item, attr| {
                any = true;
                let (name, attr) = (OsStr::from_bytes(item.name), file_attr(item.file, &attr));
                let generation = self.handles.generation(item.file);
                let ttl = self.handles.known_for(item.file);
                stop_if(reply.add(node(item.file), item.next, name, &ttl, &attr, generation))
            })
        });
        match listed {
            Err(error) if error.would_wait() && !any => {
                let ask = move |fs: &FileSystem| listing::nodes(fs, who, file(ino)?, offset);
                let handles = Arc::clone(&self.handles);
                let give = move |reply, listed| listing::give_nodes(&handles, reply, listed);
                handing::over(fs, reply, ask, give);
            }
            Err(error) if !error.would_wait() => reply.error(errno(&error)),
            _ => reply.ok(),
        }
    }

    fn releasedir(
        &self,
        _: &fuser::Request,
        _: INodeNo,
        _: FileHandle,
        _: OpenFlags,
        reply: ReplyEmpty,
    ) {
        self.fs.count(Request::ReleaseDir);
        reply.ok();
    }

    fn statfs(&self, _: &fuser::Request, _: INodeNo, reply: ReplyStatfs) {
        let ask = |fs: &FileSystem| fs.statfs();
        self.answer(reply, ask, || ask, give_space);
        // The one request that the kernel never answers by itself: it reaches a thread that waits for one.
        self.state.park_if_retiring();
    }

    fn getxattr(
        &self,
        _: &fuser::Request,
        ino: INodeNo,
        name: &OsStr,
        size: u32,
        reply: ReplyXattr,
    ) {
        let name = name.as_bytes();
        if self.fs.is_vain_question(name) {
            // The kernel never asks again.
            self.fs.count(Request::GetXattr);
            return reply.error(Errno::ENOSYS);
        }
        self.answer(
            reply,
            |fs| fs.getxattr(file(ino)?, name, size),
            || {
                let name = name.to_vec();
                move |fs: &FileSystem| fs.getxattr(file(ino)?, &name, size)
            },
            give_xattr,
        );
    }

    fn listxattr(&self, _: &fuser::Request, ino: INodeNo, size: u32, reply: ReplyXattr) {
        // Always answered, also where there are none: no look-up asks for it.
        let ask = move |fs: &FileSystem| fs.listxattr(file(ino)?, size);
        self.answer(reply, ask, || ask, give_xattr);
    }

    fn access(
        &self,
        _: &fuser::Request,
        ino: INodeNo,
        mask: fuser::AccessFlags,
        reply: ReplyEmpty,
    ) {
        let ask = move |fs: &FileSystem| fs.access(file(ino)?, mask.bits());
        self.answer(reply, ask, || ask, give_ok);
    }

    fn lseek(
        &self,
        _: &fuser::Request,
        ino: INodeNo,
        _: FileHandle,
        offset: i64,
        whence: i32,
        reply: ReplyLseek,
    ) {
        let ask = move |fs: &FileSystem| {
            let what = match whence {
                nix::libc::SEEK_DATA => Seek::Data,
                nix::libc::SEEK_HOLE => Seek::Hole,
                _ => return Err(FsError::Invalid), // the kernel does the others by itself
            };
            let offset = u64::try_from(offset).map_err(|_| FsError::BeyondEnd)?;
            let found = fs.lseek(file(ino)?, offset, what)?;
            i64::try_from(found).map_err(|_| FsError::Invalid)
        };
        self.answer(reply, ask, || ask, give_offset);
    }

    fn write(
        &self,
        _: &fuser::Request,
        ino: INodeNo,
        _: FileHandle,
        offset: u64,
        data: &[u8],
        _: WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        writes::answer(&self.fs, file(ino), offset, data, reply);
    }

    fn fallocate(
        &self,
        _: &fuser::Request,
        ino: INodeNo,
        _: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        let cleared =
            file(ino).and_then(|file| writes::clear(&self.fs, file, (offset, length), mode));
        give_ok(reply, cleared);
    }

    fn fsync(&self, _: &fuser::Request, ino: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        give_ok(reply, file(ino).and_then(|file| self.fs.flush(file)));
    }

    fn fsyncdir(&self, _: &fuser::Request, _: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        self.fs.count(Request::Other);
        reply.ok();
    }

    fn ioctl(
        &self,
        _: &fuser::Request,
        _: INodeNo,
        _: FileHandle,
        _: IoctlFlags,
        _: u32,
        _: &[u8],
        _: u32,
        reply: ReplyIoctl,
    ) {
        self.fs.count(Request::Other);
        reply.error(Errno::ENOTTY);
    }

    /// Processes that wait for a file find it ready: the kernel says so without asking again.
    fn poll(
        &self,
        _: &fuser::Request,
        _: INodeNo,
        _: FileHandle,
        _: PollNotifier,
        _: PollEvents,
        _: PollFlags,
        reply: ReplyPoll,
    ) {
        self.fs.count(Request::Other);
        reply.error(Errno::ENOSYS);
    }

    refuse! {
        setattr(
            INodeNo, Option<u32>, Option<u32>, Option<u32>, Option<u64>, Option<TimeOrNow>,
            Option<TimeOrNow>, Option<SystemTime>, Option<FileHandle>, Option<SystemTime>,
            Option<SystemTime>, Option<SystemTime>, Option<BsdFileFlags>
        ) -> ReplyAttr;
        mknod(INodeNo, &OsStr, u32, u32, u32) -> ReplyEntry;
        mkdir(INodeNo, &OsStr, u32, u32) -> ReplyEntry;
        unlink(INodeNo, &OsStr) -> ReplyEmpty;
        rmdir(INodeNo, &OsStr) -> ReplyEmpty;
        symlink(INodeNo, &OsStr, &Path) -> ReplyEntry;
        rename(INodeNo, &OsStr, INodeNo, &OsStr, RenameFlags) -> ReplyEmpty;
        link(INodeNo, INodeNo, &OsStr) -> ReplyEntry;
        setxattr(INodeNo, &OsStr, &[u8], i32, u32) -> ReplyEmpty;
        removexattr(INodeNo, &OsStr) -> ReplyEmpty;
        create(INodeNo, &OsStr, u32, u32, i32) -> ReplyCreate;
        copy_file_range(
            INodeNo, FileHandle, u64, INodeNo, FileHandle, u64, u64, CopyFileRangeFlags
        ) -> ReplyWrite;
    }
}
