//! Access to a layer by its path on the host.
//!
//! An image's set-user-id programs are for its containers, which reach them through overlays with their own
//! mount flags. On the host only root is to reach them, so engines keep their layers in directories
//! that other users cannot enter. Where they do not, the mount itself is `nosuid` and `nodev`:
//! overlays over it are not affected.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use yolofs::Privileges;

/// What everybody needs to get through a directory.
const OTHERS_ENTER: u32 = 0o001;

/// Returns what set-user-id bits, file capabilities and devices are to count for in a mount at a place.
pub(crate) fn privileges_at(place: &Path) -> Privileges {
    static SAID: AtomicBool = AtomicBool::new(false);
    if !everybody_gets_to(place) {
        return Privileges::Honoured;
    }
    if !SAID.swap(true, Relaxed) {
        log::warn!(
            "every user of this machine can enter {}: set-user-id programs and devices of layers count \
             for nothing there, other than in containers; close the engine's directory (chmod o-x)",
            place.parent().unwrap_or(place).display()
        );
    }
    Privileges::Ignored
}

/// Returns whether every user can reach a place. The place itself decides whether they can enter it.
fn everybody_gets_to(place: &Path) -> bool {
    let enters = |dir: &Path| match fs::metadata(dir) {
        Ok(of) => of.mode() & OTHERS_ENTER != 0,
        // Who knows.
        Err(_) => true,
    };
    place.ancestors().skip(1).all(enters)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    #[test]
    fn one_closed_directory_on_the_way_is_enough() {
        let dir = tempfile::tempdir().unwrap();
        let chmod = |path: &Path, mode| {
            fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        };
        let place = dir.path().join("overlay2/abc/diff");
        fs::create_dir_all(&place).unwrap();
        // As everybody has it.
        for open in place
            .ancestors()
            .take_while(|path| path.starts_with(dir.path()))
        {
            chmod(open, 0o755);
        }
        assert_eq!(privileges_at(&place), Privileges::Ignored);
        for closed in place.ancestors().skip(1).take(3) {
            for mode in [0o700, 0o710, 0o750] {
                chmod(closed, mode);
                assert_eq!(privileges_at(&place), Privileges::Honoured, "{closed:?}");
            }
            chmod(closed, 0o711);
            assert_eq!(privileges_at(&place), Privileges::Ignored, "{closed:?}");
        }
        // Its own mode is the image's.
        chmod(&place, 0o700);
        assert_eq!(privileges_at(&place), Privileges::Ignored);
    }
}
