//! Requests that change content.

use fuser::ReplyWrite;
use nix::libc::{FALLOC_FL_KEEP_SIZE, FALLOC_FL_PUNCH_HOLE, FALLOC_FL_ZERO_RANGE};

use crate::errno::errno;
use crate::fs::{FileSystem, FsError};
use blocks::FileId;

/// Writes to a file, and answers.
pub(super) fn answer(
    fs: &FileSystem,
    file: Result<FileId, FsError>,
    offset: u64,
    data: &[u8],
    reply: ReplyWrite,
) {
    match file.and_then(|file| fs.write(file, offset, data)) {
        // No request is longer than `MAX_REQUEST_BYTES`.
        Ok(()) => reply.written(u32::try_from(data.len()).unwrap_or(u32::MAX)),
        Err(error) => reply.error(errno(&error)),
    }
}

/// Changes the space of a file from an offset on for a length, if that makes it zeros and keeps its size.
pub(super) fn clear(
    fs: &FileSystem,
    file: FileId,
    (offset, length): (u64, u64),
    mode: i32,
) -> Result<(), FsError> {
    match mode & !FALLOC_FL_KEEP_SIZE {
        FALLOC_FL_PUNCH_HOLE | FALLOC_FL_ZERO_RANGE => {}
        _ => return Err(FsError::Unsupported),
    }
    let end = offset.checked_add(length).ok_or(FsError::TooLarge)?;
    fs.clear(file, offset..end)
}
