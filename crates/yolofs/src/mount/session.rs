//! The threads that serve requests.

use std::io;
use std::num::NonZeroUsize;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::thread::JoinHandle;

use super::{End, MountError, State};
use crate::fuse::Adapter;
use crate::notify::Notifier;

/// The threads that serve a mount; they end when its last user is gone.
#[derive(Debug)]
pub(super) struct Session(JoinHandle<()>);

impl Session {
    /// Agrees with the kernel on what both can do, and starts to serve.
    pub(super) fn start(
        adapter: Adapter,
        device: OwnedFd,
        threads: NonZeroUsize,
        state: &Arc<State>,
        notifier: &Arc<Notifier>,
    ) -> Result<Self, MountError> {
        let mut config = fuser::Config::default();
        config.n_threads = Some(threads.get());
        // Permissions are the kernel's to check; fuser would shut out everybody but the owner.
        let all = fuser::SessionACL::All;
        let session = fuser::Session::from_fd(adapter, device, all, config)
            .map_err(MountError::step("the first talk with the kernel"))?;
        let state = Arc::clone(state);
        let notifier = Arc::clone(notifier);
        let thread = std::thread::Builder::new()
            .name("yolofs-session".to_owned())
            .spawn(move || {
                let end = end_of(session.run());
                // A device that stays open would leave those who use a failed mount waiting.
                notifier.close();
                state.session_ended(end);
            })
            .map_err(MountError::step("starting the session"))?;
        Ok(Self(thread))
    }

    /// Waits for the threads, which must be at their end.
    pub(super) fn join(self) {
        if self.0.join().is_err() {
            log::error!("the session thread panicked");
        }
    }
}

fn end_of(result: io::Result<()>) -> End {
    match result {
        Ok(()) => End::SessionOver,
        Err(error) => {
            log::error!("the session failed: {error}");
            End::Failed(error.to_string())
        }
    }
}
