//! Requests that somebody else answers, or nobody does in time: counted once.

use std::fs;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use blocks::prompt::{self, Patience, Waiter};
use blocks::testing::Node;
use blocks::{BlockSource, FileKey, SourceError, SourceErrorKind};
use nix::errno::Errno;
use parking_lot::Mutex;
use yolofs::{Config, FileSystem, Request};

use crate::rig::{Files, Mounted, pattern};

/// What is to be done, and what if it is not done in time.
type Put = (
    Box<dyn FnOnce() + Send>,
    Box<dyn FnOnce(SourceError) + Send>,
);

/// Gives to the test what somebody is to wait for.
struct Handed(Mutex<Sender<Put>>);

impl Waiter for Handed {
    fn wait_for(&self, work: Box<dyn FnOnce() + Send>, late: Box<dyn FnOnce(SourceError) + Send>) {
        self.0.lock().send((work, late)).unwrap();
    }
}

/// A source that has to be waited for.
struct Slow {
    files: Files,
    fails: bool,
}

impl BlockSource for Slow {
    fn read_at(&self, file: &FileKey, offset: u64, buf: &mut [u8]) -> Result<usize, SourceError> {
        match prompt::patience() {
            Patience::None => Err(SourceError::new(SourceErrorKind::WouldWait, "reading")),
            _ if self.fails => Err(SourceError::new(SourceErrorKind::Io, "reading")),
            _ => self.files.source.read_at(file, offset, buf),
        }
    }
}

/// Which end of a wait comes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum First {
    Answer,
    Deadline,
}

fn mounted(fails: bool) -> (Mounted, Receiver<Put>) {
    let nodes = vec![Node::dir(&[("file", 1)]), Node::file(0)];
    let files = Files::new(nodes, &[(1, pattern(1, 4096))]);
    let (handed, waits) = channel();
    let tree = files.tree.clone();
    let fs = FileSystem::new(tree, Arc::new(Slow { files, fails }), Config::default());
    let fs = fs.with_waiter(Arc::new(Handed(Mutex::new(handed))));
    (Mounted::without_readahead(fs), waits)
}

fn is_counted_once(fails: bool, first: First) {
    let (mounted, waits) = mounted(fails);
    let path = mounted.path("file");
    let reader = std::thread::spawn(move || fs::read(path));
    // The kernel asks again for what it has read ahead in vain. The last sender goes with the mount.
    while !reader.is_finished() {
        let Ok((work, late)) = waits.recv_timeout(Duration::from_millis(10)) else {
            continue;
        };
        let late = || late(SourceError::new(SourceErrorKind::TimedOut, "reading"));
        // Both come to their ends in any case.
        match first {
            First::Answer => {
                prompt::may_hang(work);
                late();
            }
            First::Deadline => {
                late();
                prompt::may_hang(work);
            }
        }
    }
    let read = reader.join().unwrap();
    let counters = mounted.mount().counters();
    let asked = counters.requests(Request::Read);
    let counted = (
        counters.reads_served,
        counters.reads_failed,
        counters.errors,
        counters.bytes_read,
    );
    if first == First::Answer && !fails {
        assert_eq!(read.unwrap(), pattern(1, 4096));
        assert_eq!(counted, (asked, 0, 0, 4096));
    } else {
        let errno = match first {
            First::Answer => Errno::EIO,
            First::Deadline => Errno::ETIMEDOUT,
        };
        assert_eq!(read.unwrap_err().raw_os_error(), Some(errno as i32));
        assert_eq!(
            counted,
            (0, asked, asked, 0),
            "{first:?}, source fails: {fails}"
        );
    }
}

#[test]
fn a_request_that_is_answered_late_is_counted_once() {
    for fails in [false, true] {
        is_counted_once(fails, First::Deadline);
        is_counted_once(fails, First::Answer);
    }
}
