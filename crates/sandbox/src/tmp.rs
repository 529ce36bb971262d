//! The `/tmp` of a sandbox.

use std::ffi::{CStr, CString};

use rawio::child::OwnMount;
use rawio::mount::Forbids;

/// A `/tmp` of a bounded size, which is gone with its namespace.
pub(crate) fn mount(options: &CStr) -> OwnMount<'_> {
    OwnMount {
        fs_type: c"tmpfs",
        options,
        forbids: Forbids::PRIVILEGES.and(Forbids::DEVICES),
        at: c"/tmp",
    }
}

/// The options of one with this size.
pub(crate) fn options(bytes: u64) -> CString {
    // One inode for each 4 KiB: names cost memory, too, which no size bounds.
    let options = format!("mode=1777,size={bytes},nr_inodes=65536");
    // There is no NUL in it.
    CString::new(options).unwrap_or_default()
}
