//! Handing over requests that need the source.
//!
//! The threads of a mount answer from memory and from the boot image. A request that has to wait for the
//! source goes to a waiter, with its reply: waiting takes no thread of the mount.

use std::sync::Arc;

use blocks::prompt;
use fuser::ReplyData;
use parking_lot::Mutex;

use super::give::give_data;
use crate::fs::{FileSystem, FsError, ReadAnswer};

/// Calls a file system without waiting, if there is a waiter for the rest.
pub(super) fn now<T>(fs: &FileSystem, ask: impl FnOnce() -> T) -> T {
    match fs.waiter() {
        Some(_) => prompt::now(ask),
        None => {
            let _held = fs.in_hand().hold();
            ask()
        }
    }
}

/// Has a waiter answer a request: `ask` computes the result, and `give` sends it, or an error if there is
/// none in time. The first of the two takes the reply, and only that is
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
    // Background work does not yield to who waits for the source: it may bring what he waits for.
    let held = fs.in_hand().hold();
    let place = Arc::new(Mutex::new(Some((reply, held))));
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
            if let Some((reply, _held)) = taken {
                give(reply, answer);
            }
        }
    };
    let late = move |error| {
        let taken = place.lock().take();
        if let Some((reply, _held)) = taken {
            give(reply, Err(FsError::Source(error)));
        }
    };
    waiter.wait_for(Box::new(work), Box::new(late));
}

/// Has a waiter answer a read of `size` bytes.
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

#[cfg(test)]
mod tests {
    use super::*;
    use blocks::SourceError;
    use blocks::prompt::Waiter;
    use blocks::testing::{MemSource, Node, tree};

    use crate::fs::Config;

    /// Keeps what somebody is to wait for.
    #[derive(Default)]
    struct Kept(Mutex<Vec<Box<dyn FnOnce() + Send>>>);

    impl Waiter for Kept {
        fn wait_for(&self, work: Box<dyn FnOnce() + Send>, _: Box<dyn FnOnce(SourceError) + Send>) {
            self.0.lock().push(work);
        }
    }

    #[test]
    fn background_work_does_not_yield_to_who_waits_for_the_source() {
        let waiter = Arc::new(Kept::default());
        let names = Arc::new(tree(&[Node::dir(&[])]).unwrap());
        let fs = FileSystem::new(names, Arc::new(MemSource::default()), Config::default());
        let fs = Arc::new(fs.with_waiter(waiter.clone()));
        let answers = Arc::new(Mutex::new(Vec::new()));
        let given = Arc::clone(&answers);
        over(
            &fs,
            "reply",
            |_| Ok(7),
            move |reply, answer| {
                given.lock().push((reply, answer.ok()));
            },
        );
        assert_eq!(answers.lock().len(), 0);
        assert!(fs.demand().is_idle());
        assert_eq!(fs.counters().in_hand, 1);
        let work = std::mem::take(&mut *waiter.0.lock());
        work.into_iter().for_each(|work| work());
        assert_eq!(*answers.lock(), [("reply", Some(7))]);
        assert_eq!(fs.counters().in_hand, 0);
    }
}
