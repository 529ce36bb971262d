//! The orderly end of a server: it reads no more from the device, and answers what it has read.
//!
//! A kernel before Linux 6.9 does not send again what a server had read and not answered. So a server that
//! is replaced on purpose must leave nothing behind. Its threads wait in the kernel for the next request:
//! each is given one, for the space of the file system (`statfs`), which the kernel never answers from a
//! cache, and reads no more after that.

use std::sync::Arc;
use std::time::Instant;

use nix::sys::statfs::fstatfs;

use super::{Inner, Serving};

/// Why a server may leave requests behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NotRetired {
    /// The visible mount is gone, and with it the way to reach threads that wait in the kernel.
    #[error("the mount is no longer visible: its threads cannot be reached")]
    Leaving,
    /// Not all was answered in time.
    #[error("requests are left that were not answered in time")]
    Late,
}

impl Serving {
    /// Reads no more requests from the device, and returns when all that were read are answered.
    ///
    /// The process is to end after that, whether or not this fails: requests wait in the kernel, and its threads
    /// never read again.
    ///
    /// # Errors
    /// If requests may be left that were read and not answered.
    pub fn retire(&self, deadline: Instant) -> Result<(), NotRetired> {
        let private = self.state.private();
        self.state.retire();
        let late = |done: Option<()>| done.ok_or(NotRetired::Late);
        // While requests are still read: those who give names to files make some.
        late(self.state.wait_for(Some(deadline), Inner::none_is_named))?;
        let stopped = match private {
            Some(private) => {
                for _ in 0..self.threads {
                    let private = Arc::clone(&private);
                    let ask = move || {
                        let _space = fstatfs(&*private);
                    };
                    // Not joined: it waits for ever if somebody else asked for the space in its place.
                    let asking = std::thread::Builder::new().name("yolofs-retire".to_owned());
                    if let Err(error) = asking.spawn(ask) {
                        log::error!("cannot reach a thread that serves: {error}");
                    }
                }
                let parked = |inner: &Inner| inner.all_parked(self.threads);
                late(self.state.wait_for(Some(deadline), parked))
            }
            None => Err(NotRetired::Leaving),
        };
        let answered = self.fs.in_hand().wait_for_none(deadline);
        stopped.and(late(answered.then_some(())))
    }
}
