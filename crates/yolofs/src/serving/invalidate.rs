//! The thread that makes the kernel forget files which changed.
//!
//! It serves no requests: the kernel waits here until pages that are being read are there, and
//! their reads wait for the threads that serve. It starts with the first file that changes; a
//! layer of a container mostly never has one.

use std::convert::Infallible;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;

use blocks::FileId;
use parking_lot::Mutex;

use super::{DROP_PATIENCE, State};
use crate::fs::FileSystem;
use crate::notify::Notifier;
use crate::walk::Walker;

/// Makes the kernel forget every file that is diverted, until dropped.
#[derive(Debug)]
pub(super) struct Invalidator {
    fs: Arc<FileSystem>,
    worker: Arc<Mutex<Option<Worker>>>,
}

#[derive(Debug)]
struct Worker {
    diverted: Sender<FileId>,
    thread: JoinHandle<()>,
    /// Its other end goes with the thread.
    ended: Receiver<Infallible>,
}

/// The mount that a worker tells of changes.
#[derive(Clone)]
struct InvalidatedMount {
    fs: Arc<FileSystem>,
    notifier: Arc<Notifier>,
    state: Arc<State>,
}

impl Invalidator {
    pub(super) fn start(
        fs: &Arc<FileSystem>,
        notifier: &Arc<Notifier>,
        state: &Arc<State>,
    ) -> Self {
        let worker = Arc::new(Mutex::new(None));
        let mount = InvalidatedMount {
            fs: Arc::clone(fs),
            notifier: Arc::clone(notifier),
            state: Arc::clone(state),
        };
        let started = Arc::clone(&worker);
        fs.diversions().tell(Some(Box::new(move |file| {
            let mut worker = started.lock();
            if worker.is_none() {
                match Worker::start(&mount) {
                    Ok(started) => *worker = Some(started),
                    Err(error) => log::error!("cannot invalidate files in the kernel: {error}"),
                }
            }
            if let Some(worker) = &*worker {
                // It ends only when the sender is gone.
                let _sent = worker.diverted.send(file);
            }
        })));
        Self {
            fs: Arc::clone(fs),
            worker,
        }
    }
}

impl Worker {
    fn start(mount: &InvalidatedMount) -> io::Result<Self> {
        let (diverted, receiver) = channel();
        let (ends, ended) = channel();
        let mount = mount.clone();
        let thread = std::thread::Builder::new()
            .name("yolofs-inval".to_owned())
            .spawn(move || {
                let _ends: Sender<Infallible> = ends;
                mount.forget_all(&receiver);
            })?;
        Ok(Self {
            diverted,
            thread,
            ended,
        })
    }
}

impl InvalidatedMount {
    /// Makes the kernel forget files as they are told of, and those that were read soon after a
    /// change once that is over; until nobody tells of any more.
    fn forget_all(&self, told: &Receiver<FileId>) {
        loop {
            let file = match told.recv_timeout(self.fs.recent().idle()) {
                Ok(file) => Some(file),
                Err(RecvTimeoutError::Timeout) => None,
                Err(RecvTimeoutError::Disconnected) => return,
            };
            let later = |file: &FileId| {
                self.fs.recent().holds(*file) && self.fs.diversions().unsettled(*file).is_none()
            };
            if let Some(file) = file.filter(|file| !later(file)) {
                self.forget(file);
            }
            for due in self.fs.recent().take_due() {
                self.fs.recent().forgets(Some(due));
                self.forget(due.file);
                self.fs.recent().forgets(None);
            }
        }
    }

    /// Makes the kernel forget a file, and lets it know if the file is shorter now.
    fn forget(&self, file: FileId) {
        let diversions = self.fs.diversions();
        let unsettled = diversions.unsettled(file);
        diversions.wait_for_pushes();
        self.fs.injected().forget(file);
        if let Err(error) = self.notifier.invalidate(file) {
            log::warn!("cannot invalidate file {} in the kernel: {error}", file.0);
            return;
        }
        let Some(unsettled) = unsettled else { return };
        // Without a private mount, nobody is left but those who still use an unmounted one. Every
        // read that was under way has ended in the invalidation, so a single change is safe.
        if unsettled.shortened
            && let Some(root) = self.state.private()
            && let Err(error) = Walker::new(root).refresh(&**self.fs.names(), file)
        {
            log::debug!(
                "the kernel does not ask for the size of file {}: {error}",
                file.0
            );
        }
        self.fs.settle(file, unsettled.now);
    }
}

impl Drop for Invalidator {
    fn drop(&mut self) {
        self.fs.diversions().tell(None);
        let Some(worker) = self.worker.lock().take() else {
            return;
        };
        // Without a sender the thread comes to its end, unless it waits for readers of a session that
        // has failed.
        drop(worker.diverted);
        if worker.ended.recv_timeout(DROP_PATIENCE) == Err(RecvTimeoutError::Timeout) {
            log::warn!(
                "the kernel does not finish invalidating a file; not waiting for that thread"
            );
        } else if worker.thread.join().is_err() {
            log::error!("the invalidation thread panicked");
        }
    }
}
