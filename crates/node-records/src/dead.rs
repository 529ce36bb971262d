//! Whether a mount is dead.

use std::path::Path;
use std::sync::mpsc::channel;
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::statvfs::statvfs;

/// How long a mount may take to say how full it is.
const PATIENCE: Duration = Duration::from_secs(5);

/// Returns whether the mount at a place can never be served again. One whose state is unknown
/// is not dead.
#[must_use]
pub fn is_dead(place: &Path) -> bool {
    let (tell, told) = channel();
    let place = place.to_path_buf();
    // It may hang for as long as somebody holds the device and does not serve.
    let asked = std::thread::Builder::new()
        .name("is-dead".to_owned())
        .spawn(move || {
            // Attributes may be in the kernel's cache; how full the file system is never is.
            let _too_late = tell.send(statvfs(&place).map(drop));
        });
    if let Err(error) = asked {
        log::warn!("cannot look at a mount: {error}");
        return false;
    }
    matches!(
        told.recv_timeout(PATIENCE),
        Ok(Err(Errno::ENOTCONN | Errno::ECONNABORTED))
    )
}
