//! When a thread began the read of a device that it is at: all that has to be fetched for it, however often it is wrong,
//! has one deadline.

use std::cell::Cell;
use std::time::Instant;

thread_local! {
    static BEGAN: Cell<Option<Instant>> = const { Cell::new(None) };
}

/// A read of a device by this thread, until it is dropped.
#[derive(Debug)]
pub(crate) struct DeviceRead(());

impl DeviceRead {
    /// Begins it now.
    pub(crate) fn begin() -> Self {
        BEGAN.set(Some(Instant::now()));
        Self(())
    }
}

impl Drop for DeviceRead {
    fn drop(&mut self) {
        BEGAN.set(None);
    }
}

/// Returns when this thread began to read, which is now if it reads no device.
pub(crate) fn began() -> Instant {
    BEGAN.get().unwrap_or_else(Instant::now)
}
