//! Handing requests over that need the source.
//!
//! The threads of a mount answer from memory and from the boot image. What would have to wait for the
//! source goes to those who wait for it, with the reply: who waits has no thread of the mount.

use std::sync::Arc;

use blocks::prompt;
use fuser::ReplyData;
use parking_lot::Mutex;

use super::give::give_data;
use crate::fs::{FileSystem, FsError, ReadAnswer};

/// Asks a file system for what can be answered at once, if there is somebody to wait for the rest.
pub(super) fn now<T>(fs: &FileSystem, ask: impl FnOnce() -> T) -> T {
    match fs.waiter() {
        Some(_) => prompt::now(ask),
        None => ask(),
    }
}

/// Has a request answered by somebody who may wait for the source: `ask` finds the answer, and `give`
/// gives it, or says that there is none in time. Whichever comes first takes the reply, and only that is
/// counted.
pub(super) fn over<R, T>(
    fs: &Arc<FileSystem>,
    reply: R,
    ask: impl FnOnce(&FileSystem) -> Result<T, FsError> + Send + 'static,
    give: impl Fn(R, Result<T, FsError>) + Send + Sync + 'static,
) where
    R: Send + 'static,
{
    let Some(waiter) = fs.waiter() else {
        return give(reply, ask(fs)); // nothing is put off then
    };
    // Background work yields until it is answered, and not until the source has answered.
    let place = Arc::new(Mutex::new(Some((reply, fs.demand().enter()))));
    let give = {
        let fs = Arc::clone(fs);
        move |reply, answer| {
            fs.count_answer(&answer);
            give(reply, answer);
        }
    };
    let give = Arc::new(give);
    let work = {
        let (fs, place, give) = (Arc::clone(fs), Arc::clone(&place), Arc::clone(&give));
        move || {
            let answer = ask(&fs);
            let taken = place.lock().take();
            if let Some((reply, _busy)) = taken {
                give(reply, answer);
            }
        }
    };
    let late = move |error| {
        let taken = place.lock().take();
        if let Some((reply, _busy)) = taken {
            give(reply, Err(FsError::Source(error)));
        }
    };
    waiter.wait_for(Box::new(work), Box::new(late));
}

/// Has a read of `size` bytes answered by somebody who may wait for the source.
pub(super) fn over_read(
    fs: &Arc<FileSystem>,
    reply: ReplyData,
    size: usize,
    ask: impl Fn(&FileSystem, &mut [u8]) -> Result<ReadAnswer, FsError> + Send + 'static,
) {
    let ask = move |fs: &FileSystem| {
        let mut bytes = vec![0; size];
        let read = ask(fs, &mut bytes)?;
        bytes.truncate(read.len);
        Ok((read, bytes))
    };
    let counting = Arc::clone(fs);
    over(fs, reply, ask, move |reply, answer| {
        let (read, bytes) = match answer {
            Ok((read, bytes)) => (Ok(read), bytes),
            Err(error) => (Err(error), Vec::new()),
        };
        counting.count_read(&read);
        give_data(reply, read.map(|_| bytes));
    });
}
