//! Gives names to files that the kernel finds by a handle.
//!
//! Since Linux 6.16 a name has an epoch, and one of an earlier epoch than the connection's is not valid
//! any more. A file that was found by its handle alone has no name, and an uninitialized epoch:
//! below an overlay it is stale at the second look-up (`ESTALE`), without a request to
//! us. So the file is looked up by its path, through the private mount, before the request for its
//! handle is answered: the kernel then uses the inode that it has.
//!
//! That is done on a thread that serves no requests: the look-ups are requests, too.

use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::Duration;

use blocks::FileId;
use fuser::{Errno, FileAttr, Generation, ReplyEntry};
use nix::fcntl::{OFlag, openat};
use nix::sys::stat::{Mode, fstat};
use parking_lot::Mutex;

use crate::fs::{FileSystem, node_id};
use crate::serving::State;

/// Questions that wait; more are answered as if there were no such file.
const QUEUE: usize = 1024;

/// How long a file stays open after its question was answered: until the kernel has taken the answer
/// it must not forget the name.
const HOLD: Duration = Duration::from_secs(1);

/// The response to a request for a handle, to be sent when the file has a name.
pub(super) struct PendingReply {
    pub(super) file: FileId,
    pub(super) attr: FileAttr,
    pub(super) lifetime: Duration,
    pub(super) generation: Generation,
    pub(super) reply: ReplyEntry,
}

/// What becomes of a file that cannot be given a name: the private mount was let go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Nameless {
    /// It is found all the same.
    Found,
    /// It is not found, which overlays cope with.
    Stale,
}

/// Sends responses when the files have names. The thread starts with the first.
#[derive(Debug)]
pub(super) struct Connector {
    fs: Arc<FileSystem>,
    state: Arc<State>,
    nameless: Nameless,
    /// The thread ends when this is dropped, without a join: it may be waiting for a response of
    /// a connection that is over.
    answers: Mutex<Option<SyncSender<PendingReply>>>,
}

impl Connector {
    pub(super) fn new(fs: Arc<FileSystem>, state: Arc<State>, nameless: Nameless) -> Self {
        Self {
            fs,
            state,
            nameless,
            answers: Mutex::new(None),
        }
    }

    /// Queues a response; never waits.
    pub(super) fn answer(&self, answer: PendingReply) {
        let mut answers = self.answers.lock();
        if answers.is_none() {
            match self.start() {
                Ok(started) => *answers = Some(started),
                Err(error) => log::error!("files are not found by their handles: {error}"),
            }
        }
        self.state.naming(1);
        let refused = match &*answers {
            Some(answers) => answers.try_send(answer).err().map(|error| match error {
                std::sync::mpsc::TrySendError::Full(answer)
                | std::sync::mpsc::TrySendError::Disconnected(answer) => answer,
            }),
            None => Some(answer),
        };
        if let Some(refused) = refused {
            refused.reply.error(Errno::ESTALE);
            self.state.naming(-1);
        }
    }

    fn start(&self) -> io::Result<SyncSender<PendingReply>> {
        let (sender, answers) = sync_channel(QUEUE);
        let (fs, state) = (Arc::clone(&self.fs), Arc::clone(&self.state));
        let nameless = self.nameless;
        std::thread::Builder::new()
            .name("yolofs-handles".to_owned())
            .spawn(move || give(&answers, &fs, &state, nameless))?;
        Ok(sender)
    }
}

fn give(answers: &Receiver<PendingReply>, fs: &FileSystem, state: &State, nameless: Nameless) {
    let mut held = None;
    loop {
        let answer = match answers.recv_timeout(HOLD) {
            Ok(answer) => answer,
            Err(RecvTimeoutError::Timeout) => {
                drop(held.take());
                match answers.recv() {
                    Ok(answer) => answer,
                    Err(_over) => return,
                }
            }
            Err(RecvTimeoutError::Disconnected) => return,
        };
        let known = make_known(fs, state, answer.file);
        match (&known, nameless) {
            (Ok(_), _) | (Err(_), Nameless::Found) => {
                let PendingReply {
                    attr,
                    lifetime,
                    generation,
                    reply,
                    ..
                } = answer;
                reply.entry(&lifetime, &attr, generation);
            }
            (Err(error), Nameless::Stale) => {
                log::debug!("file {} has no name: {error}", node_id(answer.file));
                answer.reply.error(Errno::ESTALE);
            }
        }
        held = known.ok();
        state.naming(-1);
    }
}

/// Looks a file up by its path. As long as what is returned is open, the kernel knows the file by
/// that name.
fn make_known(fs: &FileSystem, state: &State, file: FileId) -> io::Result<OwnedFd> {
    let gone = || io::Error::from(io::ErrorKind::NotFound);
    let root = state.private_to_look_in().ok_or_else(gone)?;
    let path = fs.names().path(file).ok_or_else(gone)?;
    let mut at = root.as_fd().try_clone_to_owned()?;
    // Name by name: a path may be longer than the kernel takes at once.
    for name in path
        .split(|byte| *byte == b'/')
        .filter(|name| !name.is_empty())
    {
        let flags = OFlag::O_PATH | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        at = openat(&at, OsStr::from_bytes(name), flags, Mode::empty())?;
    }
    if fstat(&at)?.st_ino == node_id(file) {
        Ok(at)
    } else {
        Err(gone())
    }
}
