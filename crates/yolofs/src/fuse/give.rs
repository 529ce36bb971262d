//! Sending the kernel a response or an error.

use std::sync::Arc;

use blocks::Attr;
use fuser::{
    FileHandle, FopenFlags, INodeNo, ReplyAttr, ReplyData, ReplyEmpty, ReplyEntry, ReplyLseek,
    ReplyOpen, ReplyStatfs, ReplyXattr,
};

use super::NO_GENERATION;
use super::backings::Opened;
use super::convert::{NO_NODE, file, file_attr, lifetime};
use super::handles::Handles;
use crate::errno::errno;
use crate::fs::{Entry, FileSystem, FsError, PassedTo, Space, XattrReply};

/// What a file handle says: which way the file was opened. Nothing else hangs on it.
const CACHED: FileHandle = FileHandle(1);
const PASSED: FileHandle = FileHandle(2);

pub(super) fn give_entry(handles: &Handles, reply: ReplyEntry, found: Result<Entry, FsError>) {
    match found {
        Ok(entry) => {
            // An entry without a node is how FUSE says "no such name, and remember that".
            let nothing = (lifetime(entry.lifetime), NO_NODE, NO_GENERATION);
            let (ttl, attr, generation) = entry.node.map_or(nothing, |node| {
                let generation = handles.generation(node.file);
                let attr = file_attr(node.file, &node.attr);
                (handles.known_for(node.file), attr, generation)
            });
            reply.entry(&ttl, &attr, generation);
        }
        Err(error) => reply.error(errno(&error)),
    }
}

pub(super) fn give_attr(
    handles: &Handles,
    reply: ReplyAttr,
    ino: INodeNo,
    attr: Result<Attr, FsError>,
) {
    let shown = file(ino).and_then(|file| Ok((file_attr(file, &attr?), handles.known_for(file))));
    match shown {
        Ok((attr, ttl)) => reply.attr(&ttl, &attr),
        Err(error) => reply.error(errno(&error)),
    }
}

pub(super) fn give_data(reply: ReplyData, data: Result<Vec<u8>, FsError>) {
    match data {
        Ok(data) => reply.data(&data),
        Err(error) => reply.error(errno(&error)),
    }
}

pub(super) fn give_ok(reply: ReplyEmpty, done: Result<(), FsError>) {
    match done {
        Ok(()) => reply.ok(),
        Err(error) => reply.error(errno(&error)),
    }
}

pub(super) fn give_offset(reply: ReplyLseek, found: Result<i64, FsError>) {
    match found {
        Ok(offset) => reply.offset(offset),
        Err(error) => reply.error(errno(&error)),
    }
}

pub(super) fn give_opened(fs: &Arc<FileSystem>, reply: ReplyOpen, opened: Result<Opened, FsError>) {
    if let Ok(Opened::Passed(_, PassedTo::Copy)) = opened {
        fs.count_copy();
    }
    match opened {
        Ok(Opened::Cached) => reply.opened(CACHED, FopenFlags::FOPEN_KEEP_CACHE),
        Ok(Opened::Passed(id, _)) => reply.opened_passthrough(PASSED, FopenFlags::empty(), &id),
        Err(error) => reply.error(errno(&error)),
    }
}

pub(super) fn give_space(reply: ReplyStatfs, space: Result<Space, FsError>) {
    const NAME_MAX: u32 = 255;
    match space {
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

pub(super) fn give_xattr(reply: ReplyXattr, answer: Result<XattrReply, FsError>) {
    match answer {
        Ok(XattrReply::Size(len)) => reply.size(len),
        Ok(XattrReply::Bytes(bytes)) => reply.data(&bytes),
        Err(error) => reply.error(errno(&error)),
    }
}
