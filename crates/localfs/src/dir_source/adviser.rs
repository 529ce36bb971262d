//! Readahead on a thread of its own, because `posix_fadvise(2)` waits for a file's metadata.

use std::io;
use std::os::fd::AsFd as _;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use blocks::{BlockRange, FileKey};
use nix::fcntl::{PosixFadviseAdvice, posix_fadvise};
use parking_lot::Mutex;

use super::Files;

/// Pieces of advice that wait at most. What comes when the disk is that far behind is dropped:
/// by the time it had its turn, the reads would be over.
const WAITING: usize = 64;

/// Runs of blocks in one piece of advice at most.
const RUNS: usize = 1024;

/// How long whoever drops the adviser waits for it: a source that does not answer must not keep a
/// process from ending.
const END_PATIENCE: Duration = Duration::from_secs(1);

/// A thread that advises the kernel of future reads.
#[derive(Debug)]
pub(super) struct Adviser {
    /// `None` only while it is dropped.
    queue: Option<SyncSender<(FileKey, Vec<BlockRange>)>>,
    thread: Option<JoinHandle<()>>,
    /// Nothing ever comes from it; it ends with the thread.
    end: Mutex<Receiver<()>>,
}

impl Adviser {
    pub(super) fn start(files: Arc<Files>) -> io::Result<Self> {
        let (queue, waiting) = sync_channel(WAITING);
        let (ends, end) = sync_channel(0);
        let thread = thread::Builder::new()
            .name("localfs-advise".into())
            .spawn(move || {
                work(&files, &waiting);
                drop(ends);
            })?;
        Ok(Self {
            queue: Some(queue),
            thread: Some(thread),
            end: Mutex::new(end),
        })
    }

    pub(super) fn advise(&self, file: FileKey, ranges: &[BlockRange]) {
        let runs = &ranges[..ranges.len().min(RUNS)];
        if let Some(queue) = &self.queue {
            // A full queue means that the disk is busy: advice would not help it.
            queue.try_send((file, runs.to_vec())).unwrap_or_default();
        }
    }
}

impl Drop for Adviser {
    fn drop(&mut self) {
        self.queue = None;
        let ended = self.end.get_mut().recv_timeout(END_PATIENCE);
        if ended == Err(RecvTimeoutError::Timeout) {
            log::debug!("the source does not answer: its adviser is left behind");
        } else if let Some(thread) = self.thread.take() {
            // It can only have panicked; there is nobody left to tell.
            thread.join().unwrap_or_default();
        }
    }
}

fn work(files: &Files, waiting: &Receiver<(FileKey, Vec<BlockRange>)>) {
    for (key, ranges) in waiting {
        let Ok(fd) = files.file(&key, "advising") else {
            continue;
        };
        for range in ranges {
            let (Ok(start), Ok(len)) = (
                i64::try_from(range.bytes().start),
                i64::try_from(range.byte_len()),
            ) else {
                continue;
            };
            let will_need = PosixFadviseAdvice::POSIX_FADV_WILLNEED;
            // Advice that the file system cannot take changes nothing.
            posix_fadvise(fd.as_fd(), start, len, will_need).unwrap_or_default();
        }
    }
}
