//! The adapter between fuser and the [`FileSystem`]: it translates, calls and replies.
//!
//! What is decided here is only what has no meaning outside of FUSE: which of the kernel's
//! abilities are asked for, and how its caches are to be used.

mod backings;
mod convert;

use std::cell::RefCell;
use std::ffi::OsStr;
use std::io;
use std::ops::ControlFlow;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use blocks::{Lifetime, Seek};
use fuser::{
    BsdFileFlags, CopyFileRangeFlags, Errno, FileHandle, Filesystem, FopenFlags, Generation,
    INodeNo, InitFlags, IoctlFlags, KernelConfig, LockOwner, OpenAccMode, OpenFlags, RenameFlags,
    ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty, ReplyEntry,
    ReplyIoctl, ReplyLseek, ReplyOpen, ReplyStatfs, ReplyWrite, ReplyXattr, TimeOrNow, WriteFlags,
};

use crate::errno::errno;
use crate::fs::{CachePath, FileSystem, FsError, Mode, PassedTo, Request, XattrReply};
use backings::{Backings, Opened};
use convert::{NO_NODE, caller, file, file_attr, file_type, lifetime, node};

/// Largest request: 256 pages is what Linux allows unless `fs.fuse.max_pages_limit` is raised,
/// and larger ones were not faster.
const MAX_REQUEST_BYTES: u32 = 1 << 20;

/// File numbers are never given to another file.
const GENERATION: Generation = Generation(0);

/// What a file handle says: which way the file was opened. Nothing else hangs on it.
const CACHED: FileHandle = FileHandle(1);
const PASSED: FileHandle = FileHandle(2);

/// Serves a [`FileSystem`] to the kernel.
pub(crate) struct Adapter {
    fs: Arc<FileSystem>,
    /// How much the kernel may read ahead, in bytes; `None` leaves it as it is.
    readahead: Option<u32>,
    backings: Backings,
}

thread_local! {
    /// Where a thread puts what it reads. It grows to the largest read and stays.
    static READ_BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

impl Adapter {
    pub(crate) fn new(fs: Arc<FileSystem>, readahead: Option<u32>) -> Self {
        Self {
            fs,
            readahead,
            backings: Backings::default(),
        }
    }

    fn ttl(&self) -> Duration {
        lifetime(self.fs.lifetime())
    }

    /// The kernel's abilities that this mount wants; it gets those that the kernel has.
    fn wanted(&self) -> InitFlags {
        let mut flags = InitFlags::FUSE_DO_READDIRPLUS
            | InitFlags::FUSE_READDIRPLUS_AUTO
            | InitFlags::FUSE_CACHE_SYMLINKS
            | InitFlags::FUSE_PARALLEL_DIROPS
            | InitFlags::FUSE_ASYNC_DIO;
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

    fn read_into(
        &self,
        req: &fuser::Request,
        ino: INodeNo,
        offset: u64,
        buf: &mut [u8],
        flags: OpenFlags,
    ) -> Result<usize, FsError> {
        let direct = flags.0 & nix::libc::O_DIRECT != 0;
        let path = if direct {
            CachePath::Around
        } else {
            CachePath::Through
        };
        self.fs.read(caller(req), file(ino)?, offset, buf, path)
    }
}

/// Answers requests that would change something: nothing changes here.
///
/// The kernel refuses most of them by itself, because the mount is read-only.
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
        // Both are smaller than the largest that the calls allow.
        let _was = config.set_max_write(MAX_REQUEST_BYTES);
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
        let found = file(parent).and_then(|dir| self.fs.lookup(caller(req), dir, name.as_bytes()));
        match found {
            Ok(entry) => {
                // An entry without a node is how FUSE says "no such name, and remember that".
                let attr = entry
                    .node
                    .map_or(NO_NODE, |node| file_attr(node.file, &node.attr));
                reply.entry(&lifetime(entry.lifetime), &attr, GENERATION);
            }
            Err(error) => reply.error(errno(&error)),
        }
    }

    fn forget(&self, _: &fuser::Request, _: INodeNo, _: u64) {
        self.fs.count(Request::Forget);
    }

    fn getattr(&self, _: &fuser::Request, ino: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        let attr = file(ino).and_then(|file| Ok(file_attr(file, &self.fs.getattr(file)?)));
        match attr {
            Ok(attr) => reply.attr(&self.ttl(), &attr),
            Err(error) => reply.error(errno(&error)),
        }
    }

    fn readlink(&self, req: &fuser::Request, ino: INodeNo, reply: ReplyData) {
        match file(ino).and_then(|link| self.fs.readlink(caller(req), link)) {
            Ok(target) => reply.data(&target),
            Err(error) => reply.error(errno(&error)),
        }
    }

    fn open(&self, _: &fuser::Request, ino: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        if self.fs.mode() == Mode::Lower {
            // The kernel never asks again, and keeps what it has cached.
            self.fs.count(Request::Open);
            return reply.error(Errno::ENOSYS);
        }
        if flags.acc_mode() != OpenAccMode::O_RDONLY {
            self.fs.count(Request::Open);
            return reply.error(errno(&FsError::ReadOnly));
        }
        let opened = file(ino).and_then(|file| {
            // Most opens are of what is open: libraries that every program maps.
            if let Some(opened) = self.backings.open_again(file) {
                self.fs.count(Request::Open);
                return Ok(opened);
            }
            let decision = self.fs.open(file)?;
            Ok(self.backings.open(file, decision, |backing| {
                let registered = reply.open_backing(&backing.fd);
                registered.inspect_err(|_| self.fs.count_refused(backing.to))
            }))
        });
        if let Ok(Opened::Passed(_, PassedTo::Copy)) = opened {
            self.fs.count_copy();
        }
        match opened {
            Ok(Opened::Cached) => reply.opened(CACHED, FopenFlags::FOPEN_KEEP_CACHE),
            Ok(Opened::Passed(id, _)) => reply.opened_passthrough(PASSED, FopenFlags::empty(), &id),
            Err(error) => reply.error(errno(&error)),
        }
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
        READ_BUFFER.with_borrow_mut(|buffer| {
            let size = size as usize;
            if buffer.len() < size {
                buffer.resize(size, 0);
            }
            match self.read_into(req, ino, offset, &mut buffer[..size], flags) {
                Ok(len) => reply.data(&buffer[..len]),
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
        let listed = file(ino).and_then(|dir| {
            self.fs.readdir(caller(req), dir, offset, &mut |item| {
                let kind = file_type(item.kind);
                let name = OsStr::from_bytes(item.name);
                stop_if(reply.add(node(item.file), item.next, kind, name))
            })
        });
        match listed {
            Ok(()) => reply.ok(),
            Err(error) => reply.error(errno(&error)),
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
        let ttl = self.ttl();
        let listed = file(ino).and_then(|dir| {
            self.fs
                .readdirplus(caller(req), dir, offset, &mut |item, attr| {
                    let name = OsStr::from_bytes(item.name);
                    let attr = file_attr(item.file, &attr);
                    stop_if(reply.add(node(item.file), item.next, name, &ttl, &attr, GENERATION))
                })
        });
        match listed {
            Ok(()) => reply.ok(),
            Err(error) => reply.error(errno(&error)),
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
        const NAME_MAX: u32 = 255;
        match self.fs.statfs() {
            Ok(space) => reply.statfs(
                space.blocks,
                space.blocks_free,
                space.blocks_available,
                space.inodes,
                space.inodes_free,
                space.block_size,
                NAME_MAX,
                space.block_size,
            ),
            Err(error) => reply.error(errno(&error)),
        }
    }

    fn getxattr(
        &self,
        _: &fuser::Request,
        ino: INodeNo,
        name: &OsStr,
        size: u32,
        reply: ReplyXattr,
    ) {
        if !self.fs.has_xattrs() {
            self.fs.count(Request::GetXattr);
            return reply.error(Errno::ENOSYS);
        }
        let value = file(ino).and_then(|file| self.fs.getxattr(file, name.as_bytes(), size));
        reply_xattr(value, reply);
    }

    fn listxattr(&self, _: &fuser::Request, ino: INodeNo, size: u32, reply: ReplyXattr) {
        if !self.fs.has_xattrs() {
            self.fs.count(Request::ListXattr);
            return reply.error(Errno::ENOSYS);
        }
        reply_xattr(
            file(ino).and_then(|file| self.fs.listxattr(file, size)),
            reply,
        );
    }

    fn access(
        &self,
        _: &fuser::Request,
        ino: INodeNo,
        mask: fuser::AccessFlags,
        reply: ReplyEmpty,
    ) {
        match file(ino).and_then(|file| self.fs.access(file, mask.bits())) {
            Ok(()) => reply.ok(),
            Err(error) => reply.error(errno(&error)),
        }
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
        let found = file(ino).and_then(|file| {
            let what = match whence {
                nix::libc::SEEK_DATA => Seek::Data,
                nix::libc::SEEK_HOLE => Seek::Hole,
                _ => return Err(FsError::Invalid), // the kernel does the others by itself
            };
            let offset = u64::try_from(offset).map_err(|_| FsError::BeyondEnd)?;
            let found = self.fs.lseek(file, offset, what)?;
            i64::try_from(found).map_err(|_| FsError::Invalid)
        });
        match found {
            Ok(offset) => reply.offset(offset),
            Err(error) => reply.error(errno(&error)),
        }
    }

    fn fsync(&self, _: &fuser::Request, _: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        self.fs.count(Request::Other);
        reply.ok();
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
        write(INodeNo, FileHandle, u64, &[u8], WriteFlags, OpenFlags, Option<LockOwner>)
            -> ReplyWrite;
        setxattr(INodeNo, &OsStr, &[u8], i32, u32) -> ReplyEmpty;
        removexattr(INodeNo, &OsStr) -> ReplyEmpty;
        create(INodeNo, &OsStr, u32, u32, i32) -> ReplyCreate;
        fallocate(INodeNo, FileHandle, u64, u64, i32) -> ReplyEmpty;
        copy_file_range(
            INodeNo, FileHandle, u64, INodeNo, FileHandle, u64, u64, CopyFileRangeFlags
        ) -> ReplyWrite;
    }
}

fn stop_if(full: bool) -> ControlFlow<()> {
    if full {
        ControlFlow::Break(())
    } else {
        ControlFlow::Continue(())
    }
}

fn reply_xattr(answer: Result<XattrReply, FsError>, reply: ReplyXattr) {
    match answer {
        Ok(XattrReply::Size(len)) => reply.size(len),
        Ok(XattrReply::Bytes(bytes)) => reply.data(&bytes),
        Err(error) => reply.error(errno(&error)),
    }
}
