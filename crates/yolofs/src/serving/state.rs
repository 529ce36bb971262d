//! What the threads of a mount tell each other.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Instant;

use parking_lot::{Condvar, Mutex, MutexGuard};

use super::End;
use crate::walk::Held;

#[derive(Debug, Default)]
pub(crate) struct State {
    inner: Mutex<Inner>,
    changed: Condvar,
    /// Locked for as long as a prewarm runs; never while `inner` is.
    held: Mutex<Held>,
}

#[derive(Debug, Default)]
pub(crate) struct Inner {
    private: Option<Arc<OwnedFd>>,
    visible_gone: bool,
    session_end: Option<End>,
    /// Whether this server is to read no more from the device.
    retiring: bool,
    /// Threads that read no more.
    parked: usize,
    /// Files that are looked up in the private mount before a request for their handle is answered.
    named: isize,
}

impl Inner {
    pub(crate) fn end(&self) -> Option<End> {
        let gone = self.visible_gone.then_some(End::Unmounted);
        self.session_end.clone().or(gone)
    }

    pub(crate) fn gone(&self) -> Option<()> {
        self.visible_gone.then_some(())
    }

    /// Returns whether no file is being given a name.
    pub(crate) fn none_is_named(&self) -> Option<()> {
        (self.named == 0).then_some(())
    }

    /// Returns whether so many threads read no more.
    pub(crate) fn all_parked(&self, threads: usize) -> Option<()> {
        (self.parked >= threads).then_some(())
    }

    pub(crate) fn session_end(&self) -> Option<End> {
        self.session_end.clone()
    }
}

impl State {
    /// Returns what `of` says of it now.
    pub(crate) fn look<T>(&self, of: impl FnOnce(&Inner) -> T) -> T {
        of(&self.inner.lock())
    }

    /// Waits until `ready` gives something, or until the deadline.
    pub(crate) fn wait_for<T>(
        &self,
        deadline: Option<Instant>,
        ready: impl Fn(&Inner) -> Option<T>,
    ) -> Option<T> {
        let mut inner = self.inner.lock();
        loop {
            if let Some(value) = ready(&inner) {
                return Some(value);
            }
            match deadline {
                Some(deadline) => {
                    if self.changed.wait_until(&mut inner, deadline).timed_out() {
                        return ready(&inner);
                    }
                }
                None => self.changed.wait(&mut inner),
            }
        }
    }

    /// Returns whether the visible mount is there, as far as anybody said.
    pub(crate) fn visible(&self) -> bool {
        !self.inner.lock().visible_gone
    }

    /// Returns the root of the private mount, unless that was let go.
    pub(crate) fn private(&self) -> Option<Arc<OwnedFd>> {
        self.inner.lock().private.clone()
    }

    /// Returns the root of the private mount to look names up in, unless nobody is to: our threads, which
    /// would answer, are about to stop.
    pub(crate) fn private_to_look_in(&self) -> Option<Arc<OwnedFd>> {
        let inner = self.inner.lock();
        inner.private.clone().filter(|_| !inner.retiring)
    }

    /// Counts one more file that is given a name, or one less.
    pub(crate) fn naming(&self, change: isize) {
        self.inner.lock().named += change;
        self.changed.notify_all();
    }

    /// Has threads that serve read no more after the next request for space (statfs).
    pub(crate) fn retire(&self) {
        self.inner.lock().retiring = true;
    }

    /// Keeps this thread from reading the next request, if it is to read no more.
    pub(crate) fn park_if_retiring(&self) {
        let mut inner = self.inner.lock();
        if !inner.retiring {
            return;
        }
        inner.parked += 1;
        self.changed.notify_all();
        // Until the connection is over for us, which is when the process ends.
        while inner.session_end.is_none() {
            self.changed.wait(&mut inner);
        }
    }

    /// Gives the root of the private mount. Somebody may have been quick to unmount: then it is
    /// closed.
    pub(crate) fn set_private(&self, private: OwnedFd) {
        let mut inner = self.inner.lock();
        if !inner.visible_gone {
            inner.private = Some(Arc::new(private));
        }
    }

    pub(crate) fn session_ended(&self, end: End) {
        self.inner.lock().session_end = Some(end);
        self.changed.notify_all();
    }

    /// Notes that the visible mount is gone, and tells whoever waits for that. Returns the private
    /// one, to be let go.
    pub(crate) fn mark_gone(&self) -> Option<Arc<OwnedFd>> {
        let private = {
            let mut inner = self.inner.lock();
            inner.visible_gone = true;
            inner.private.take()
        };
        self.changed.notify_all();
        private
    }

    /// Lets go of the private mount and of everything held in it.
    pub(crate) fn let_go(&self, private: Option<Arc<OwnedFd>>) {
        // Without the other lock: closing the last descriptor ends the session, which takes it. A
        // prewarm that is running notices that the mount is gone, and ends first.
        self.release();
        drop(private);
    }

    /// Waits for a running prewarm, and returns what prewarms hold.
    pub(crate) fn held(&self) -> MutexGuard<'_, Held> {
        self.held.lock()
    }

    /// Drops what prewarms hold. Waits for one that is running.
    pub(crate) fn release(&self) {
        *self.held() = Held::default();
    }
}
