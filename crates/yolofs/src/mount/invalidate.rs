//! The thread that makes the kernel forget files which changed.
//!
//! It serves no requests: the kernel waits here until pages that are being read are there, and
//! their reads wait for the threads that serve.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::thread::JoinHandle;

use blocks::FileId;

use super::MountError;
use crate::fs::FileSystem;
use crate::notify::Notifier;

/// Makes the kernel forget every file that is diverted, until dropped.
#[derive(Debug)]
pub(super) struct Invalidator {
    fs: Arc<FileSystem>,
    thread: Option<JoinHandle<()>>,
}

impl Invalidator {
    pub(super) fn start(
        fs: &Arc<FileSystem>,
        notifier: &Arc<Notifier>,
    ) -> Result<Self, MountError> {
        let (sender, receiver) = channel();
        fs.diversions().tell(Some(sender));
        let worker = (Arc::clone(fs), Arc::clone(notifier));
        let thread = std::thread::Builder::new()
            .name("yolofs-inval".to_owned())
            .spawn(move || run(&worker.0, &worker.1, &receiver))
            .map_err(MountError::step("starting the invalidation"))?;
        Ok(Self {
            fs: Arc::clone(fs),
            thread: Some(thread),
        })
    }
}

impl Drop for Invalidator {
    fn drop(&mut self) {
        // Without a sender the thread comes to its end.
        self.fs.diversions().tell(None);
        if self
            .thread
            .take()
            .is_some_and(|thread| thread.join().is_err())
        {
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
