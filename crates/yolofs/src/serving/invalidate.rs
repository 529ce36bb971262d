//! The thread that makes the kernel forget files which changed.
//!
//! It serves no requests: the kernel waits here until pages that are being read are there, and
//! their reads wait for the threads that serve. It starts with the first file that changes; a
//! layer of a container mostly never has one.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use blocks::FileId;
use parking_lot::Mutex;

use crate::fs::FileSystem;
use crate::notify::Notifier;

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
}

impl Invalidator {
    pub(super) fn start(fs: &Arc<FileSystem>, notifier: &Arc<Notifier>) -> Self {
        let worker = Arc::new(Mutex::new(None));
        let told = (Arc::clone(&worker), Arc::clone(fs), Arc::clone(notifier));
        fs.diversions().tell(Some(Box::new(move |file| {
            let mut worker = told.0.lock();
            if worker.is_none() {
                match Worker::start(&told.1, &told.2) {
                    Ok(started) => *worker = Some(started),
                    Err(error) => log::error!("the kernel keeps what it has of files: {error}"),
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
    fn start(fs: &Arc<FileSystem>, notifier: &Arc<Notifier>) -> io::Result<Self> {
        let (diverted, receiver) = channel();
        let (fs, notifier) = (Arc::clone(fs), Arc::clone(notifier));
        let thread = std::thread::Builder::new()
            .name("yolofs-inval".to_owned())
            .spawn(move || run(&fs, &notifier, &receiver))?;
        Ok(Self { diverted, thread })
    }
}

impl Drop for Invalidator {
    fn drop(&mut self) {
        self.fs.diversions().tell(None);
        let Some(Worker { diverted, thread }) = self.worker.lock().take() else {
            return;
        };
        // Without a sender the thread comes to its end.
        drop(diverted);
        if thread.join().is_err() {
            log::error!("the invalidation thread panicked");
        }
    }
}

fn run(fs: &FileSystem, notifier: &Notifier, diverted: &Receiver<FileId>) {
    for file in diverted {
        fs.diversions().wait_for_pushes();
        fs.injected().forget(file);
        if let Err(error) = notifier.invalidate(file) {
            log::warn!("the kernel keeps what it has of file {}: {error}", file.0);
        }
    }
}
