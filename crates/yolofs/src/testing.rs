//! A kernel of another age, for tests on the kernel that there is.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

static OLD: AtomicBool = AtomicBool::new(false);

/// Has connections that this process opens from now on look as if the kernel could send no request again,
/// as before Linux 6.9.
pub fn pretend_an_old_kernel() {
    OLD.store(true, Relaxed);
}

pub(crate) fn kernel_is_old() -> bool {
    OLD.load(Relaxed)
}
