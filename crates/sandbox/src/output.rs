//! The output of a program, up to a limit.
//!
//! The program has the pipe open in both directions. So it does not get a broken pipe when the
//! process that reads is killed, but waits when the pipe is full; and the next daemon reads on, by
//! `/proc/PID/fd` of the program.

use std::fs::{File, OpenOptions};
use std::io::{self, Read as _};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, OpenOptionsExt as _};

use nix::fcntl::{FcntlArg, OFlag, fcntl};

use crate::error::{Result, step};

/// The maximum that is kept of either stream. Further bytes are read and counted.
pub const KEPT_MAX_BYTES: usize = 1 << 20;

/// The most that is read at a time, so that one sandbox does not keep the others' waiting.
const TURN_MAX_BYTES: usize = 1 << 18;

/// One stream of a program.
#[derive(Debug)]
pub(crate) struct Stream {
    pipe: Option<File>,
    kept: Vec<u8>,
    dropped: u64,
}

/// What a program has written so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Written {
    /// The first bytes.
    pub bytes: Vec<u8>,
    /// How many more there were.
    pub dropped_bytes: u64,
}

/// Makes a pipe. Returns our end, which never blocks, the program's, and the inode of the pipe.
pub(crate) fn pipe() -> Result<(Stream, OwnedFd, u64)> {
    let doing = "making a pipe";
    let (read, write) = nix::unistd::pipe2(OFlag::O_CLOEXEC).map_err(step(doing))?;
    // Both ways, which only opening it anew gives.
    let path = format!("/proc/self/fd/{}", write.as_raw_fd());
    let both = OpenOptions::new().read(true).write(true).open(path);
    let both = OwnedFd::from(both.map_err(step(doing))?);
    fcntl(&read, FcntlArg::F_SETFL(OFlag::O_NONBLOCK)).map_err(step(doing))?;
    let read = File::from(read);
    let inode = read.metadata().map_err(step(doing))?.ino();
    Ok((Stream::of(read), both, inode))
}

impl Stream {
    fn of(pipe: File) -> Self {
        Self {
            pipe: Some(pipe),
            kept: Vec::new(),
            dropped: 0,
        }
    }

    /// Opens the pipe that a process writes to, if it still has it in its place. What the process has
    /// there is its own choice, so nothing else is opened for reading than the pipe that we made.
    pub(crate) fn reopen(pid: u32, number: u32, inode: u64) -> Option<Self> {
        let path = format!("/proc/{pid}/fd/{number}");
        let is_ours = |file: &File| {
            let is = file.metadata();
            is.is_ok_and(|is| is.file_type().is_fifo() && is.ino() == inode)
        };
        let looked = OpenOptions::new()
            .read(true)
            .custom_flags(OFlag::O_PATH.bits())
            .open(path);
        let looked = looked.ok().filter(is_ours)?;
        let path = format!("/proc/self/fd/{}", looked.as_raw_fd());
        let pipe = OpenOptions::new()
            .read(true)
            .custom_flags(OFlag::O_NONBLOCK.bits())
            .open(path);
        pipe.ok().map(Self::of)
    }

    /// Opens the pipe of a sandbox of a former program: one of these processes has it as its output. If none has, nobody writes
    /// to it any more, and it has ended.
    pub(crate) fn find(processes: &[u32], inode: u64) -> Self {
        let outputs = processes.iter().flat_map(|&pid| [(pid, 1), (pid, 2)]);
        let mut found = outputs.filter_map(|(pid, number)| Self::reopen(pid, number, inode));
        found.next().unwrap_or(Self {
            pipe: None,
            kept: Vec::new(),
            dropped: 0,
        })
    }

    /// Our end of the pipe.
    pub(crate) fn pipe(&self) -> Option<&File> {
        self.pipe.as_ref()
    }

    /// Reads the available data, within a turn.
    pub(crate) fn read_some(&mut self) {
        let Some(pipe) = &mut self.pipe else { return };
        let mut buffer = vec![0; 1 << 16];
        let mut turn = 0;
        while turn < TURN_MAX_BYTES {
            match pipe.read(&mut buffer) {
                Ok(0) => {
                    self.pipe = None;
                    break;
                }
                Ok(len) => {
                    let room = KEPT_MAX_BYTES - self.kept.len();
                    let kept = room.min(len);
                    self.kept.extend_from_slice(&buffer[..kept]);
                    self.dropped += u64::try_from(len - kept).unwrap_or(0);
                    turn += len;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(_) => {
                    self.pipe = None;
                    break;
                }
            }
        }
    }

    /// Reads the remaining data when no process writes any more, and closes the pipe. A pipe has at most a
    /// megabyte in it, so this ends.
    pub(crate) fn finish(&mut self) {
        for _ in 0..8 {
            self.read_some();
        }
        self.pipe = None;
    }

    pub(crate) fn written(&self) -> Written {
        Written {
            bytes: self.kept.clone(),
            dropped_bytes: self.dropped,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;

    #[test]
    fn the_first_bytes_are_kept_and_the_rest_is_counted() {
        let (mut stream, writer, _) = pipe().unwrap();
        let mut writer = File::from(writer);
        let piece = [7; 1 << 15];
        for _ in 0..40 {
            writer.write_all(&piece).unwrap();
            stream.read_some();
        }
        let written = stream.written();
        assert_eq!(written.bytes.len(), KEPT_MAX_BYTES);
        assert_eq!(written.dropped_bytes, (40 << 15) - (1 << 20));
    }

    #[test]
    fn a_pipe_is_found_again_and_nothing_else_is_taken_for_it() {
        let (mut stream, writer, inode) = pipe().unwrap();
        let number = u32::try_from(writer.as_raw_fd()).unwrap();
        let pid = std::process::id();
        assert!(Stream::reopen(pid, number, inode + 1).is_none());
        let other = File::open("/dev/zero").unwrap();
        let other = u32::try_from(other.as_raw_fd()).unwrap();
        assert!(Stream::reopen(pid, other, inode).is_none());
        stream.finish();
        File::from(writer.try_clone().unwrap())
            .write_all(b"later")
            .unwrap();
        let mut again = Stream::reopen(pid, number, inode).unwrap();
        again.read_some();
        assert_eq!(again.written().bytes, b"later");
    }
}
