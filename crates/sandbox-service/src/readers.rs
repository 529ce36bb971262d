//! What a program writes to its two streams, read until it has ended.
//!
//! What it has started may go on, and hold the pipes. So they are not read to their ends, but to what was in them
//! when the program had ended, and no thread is left.

use std::fs::File;
use std::io::{self, PipeReader, PipeWriter, Read as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use sandbox::{KEPT_MAX_BYTES, Written};

/// How long what is left is read for after a program's end: what it has started may write faster than it is read.
const PATIENCE: Duration = Duration::from_secs(1);

/// A thread for each stream.
#[derive(Debug)]
pub(crate) struct Readers {
    threads: [JoinHandle<Written>; 2],
    /// Its end is the program's.
    running: PipeWriter,
}

impl Readers {
    pub(crate) fn start([out, err]: [PipeReader; 2]) -> io::Result<Self> {
        let (ended, running) = io::pipe()?;
        let other = ended.try_clone()?;
        let threads = [spawn(out, ended)?, spawn(err, other)?];
        Ok(Self { threads, running })
    }

    /// Returns what was written, now that the program has ended.
    pub(crate) fn finish(self) -> [Written; 2] {
        drop(self.running);
        self.threads.map(|thread| thread.join().unwrap_or_default())
    }
}

fn spawn(pipe: PipeReader, ended: PipeReader) -> io::Result<JoinHandle<Written>> {
    let thread = Builder::new().name("sandbox-output".to_owned());
    thread.spawn(move || {
        let mut written = Written::default();
        if let Err(error) = read(pipe, &ended, &mut written) {
            log::warn!("a part of a program's output is lost: {error}");
        }
        written
    })
}

fn read(pipe: PipeReader, ended: &PipeReader, written: &mut Written) -> io::Result<()> {
    let mut pipe = File::from(OwnedFd::from(pipe));
    let mut buffer = vec![0; 1 << 16];
    let mut deadline = None;
    while deadline.is_none_or(|deadline| Instant::now() < deadline) {
        let (timeout, ended_too) = match deadline {
            Some(_) => (PollTimeout::ZERO, PollFlags::empty()),
            None => (PollTimeout::NONE, PollFlags::POLLIN),
        };
        let mut fds = [
            PollFd::new(pipe.as_fd(), PollFlags::POLLIN),
            PollFd::new(ended.as_fd(), ended_too),
        ];
        match poll(&mut fds, timeout) {
            Ok(0) => return Ok(()),
            Ok(_) | Err(nix::errno::Errno::EINTR) => {}
            Err(errno) => return Err(errno.into()),
        }
        let [is_readable, has_ended] = fds.map(|fd| fd.any().unwrap_or(false));
        if is_readable {
            let len = pipe.read(&mut buffer)?;
            if len == 0 {
                return Ok(());
            }
            let kept = len.min(KEPT_MAX_BYTES - written.bytes.len());
            written.bytes.extend_from_slice(&buffer[..kept]);
            written.dropped_bytes += u64::try_from(len - kept).unwrap_or(0);
        } else if deadline.is_some() {
            return Ok(());
        }
        if has_ended && deadline.is_none() {
            deadline = Some(Instant::now() + PATIENCE);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;

    #[test]
    fn what_was_written_is_there_though_somebody_holds_the_pipe() {
        let (out, mut held) = io::pipe().unwrap();
        let (err, ended) = io::pipe().unwrap();
        let readers = Readers::start([out, err]).unwrap();
        drop(ended);
        let more = vec![b'x'; KEPT_MAX_BYTES + 7];
        held.write_all(&more).unwrap();
        let [out, err] = readers.finish();
        assert_eq!((out.bytes.len(), out.dropped_bytes), (KEPT_MAX_BYTES, 7));
        assert_eq!((err.bytes.len(), err.dropped_bytes), (0, 0));
        // Nobody reads it any more.
        assert_eq!(
            held.write_all(b"x").unwrap_err().kind(),
            io::ErrorKind::BrokenPipe
        );
    }

    #[test]
    fn who_writes_for_ever_is_read_for_a_while() {
        let (out, mut endless) = io::pipe().unwrap();
        let (err, _held) = io::pipe().unwrap();
        let readers = Readers::start([out, err]).unwrap();
        let writer = std::thread::spawn(move || while endless.write_all(&[0; 4096]).is_ok() {});
        let began = Instant::now();
        readers.finish();
        assert!(began.elapsed() < Duration::from_secs(30));
        writer.join().unwrap();
    }
}
