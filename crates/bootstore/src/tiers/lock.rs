//! Locks of the tiers: who moves objects is alone, and a copy that is open stays.

use std::fs::File;
use std::path::Path;
use std::time::Duration;

use rawio::file_lock::{self, FileLock};
use tiering::medium::open_regular;

/// The result of locking a copy.
#[derive(Debug)]
pub(super) enum Hold {
    /// It is not open; it cannot be opened as long as this is held.
    Ours(#[expect(dead_code, reason = "held, not looked at")] FileLock),
    /// It is open.
    Open,
    /// It does not exist.
    Gone,
}

/// Locks a copy exclusively, unless it is open.
pub(super) fn hold_alone(path: &Path) -> Hold {
    hold_alone_within(path, Duration::ZERO)
}

/// As [`hold_alone`], for copies that may be locked for a moment by a process that checks or reads them.
/// One that is still locked after `patience` counts as open.
pub(super) fn hold_alone_within(path: &Path, patience: Duration) -> Hold {
    let Ok(file) = open_regular(path) else {
        return Hold::Gone;
    };
    match FileLock::unless(file, patience, || false) {
        Ok(Some(lock)) => Hold::Ours(lock),
        Ok(None) | Err(_) => Hold::Open,
    }
}

/// Prevents the removal of a copy as long as `file` is open; returns whether no other process locked it
/// exclusively, or only for shorter than `patience`.
pub(super) fn share_within(file: &File, patience: Duration) -> bool {
    file_lock::share(file, patience).unwrap_or(false)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread::sleep;

    #[test]
    fn who_has_a_copy_open_keeps_it_and_who_holds_it_keeps_others_from_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("copy");
        assert!(matches!(hold_alone(&path), Hold::Gone));
        let file = File::create(&path).unwrap();
        file.try_lock_shared().unwrap();
        assert!(matches!(hold_alone(&path), Hold::Open));
        drop(file);
        let held = hold_alone(&path);
        assert!(matches!(held, Hold::Ours(_)));
        let late = File::open(&path).unwrap();
        assert!(!share_within(&late, Duration::ZERO));
        // Who holds it for a moment has it not open.
        let moment = std::thread::spawn(move || {
            sleep(Duration::from_millis(10));
            drop(held);
        });
        let soon = hold_alone_within(&path, Duration::from_secs(60));
        assert!(matches!(soon, Hold::Ours(_)));
        moment.join().unwrap();
        let moment = std::thread::spawn(move || {
            sleep(Duration::from_millis(10));
            drop(soon);
        });
        assert!(share_within(&late, Duration::from_secs(60)));
        moment.join().unwrap();
    }
}
