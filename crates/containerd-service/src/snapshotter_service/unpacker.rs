//! What the served containerd accepts for layers that exist already.

use std::path::{Path, PathBuf};
use std::time::Duration;

use engine::containerd::version_at;
use snapshotter::Unpacker;

/// How long containerd may take to say what it is: it waits for our answer meanwhile.
const PATIENCE: Duration = Duration::from_secs(2);
/// The first that takes a read-only mount for a layer that is there.
const FIRST: (u32, u32) = (2, 4);

/// The containerd at a socket. The version is requested each time, because it may be upgraded
/// meanwhile: that is one call, and only for existing layers.
#[derive(Debug)]
pub(super) struct ContainerdUnpacker(PathBuf);

impl ContainerdUnpacker {
    pub(super) fn at(socket: &Path) -> Self {
        Self(socket.to_owned())
    }
}

impl Unpacker for ContainerdUnpacker {
    fn takes_read_only_for_unpacked(&self) -> bool {
        match version_at(&self.0, PATIENCE) {
            Ok(version) => numbers(&version).is_some_and(|numbers| numbers >= FIRST),
            Err(error) => {
                log::debug!("a layer that is there is unpacked again: {error:#}");
                false
            }
        }
    }
}

/// Returns the first two numbers of a version, as in `v2.4.2` and `1.6.20~ds1`.
fn numbers(version: &str) -> Option<(u32, u32)> {
    let mut parts = version.trim_start_matches('v').split('.');
    let mut number = || {
        let part = parts.next()?;
        let digits = part
            .find(|c: char| !c.is_ascii_digit())
            .unwrap_or(part.len());
        part.get(..digits)?.parse::<u32>().ok()
    };
    Some((number()?, number()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_compared_by_their_numbers() {
        for (version, takes) in [
            ("v2.4.2", true),
            ("2.4", true),
            ("v2.10.0-rc.1", true),
            ("3.0.0", true),
            ("v2.3.9", false),
            ("1.6.20~ds1", false),
            ("2.4.2+unknown", true),
            ("2", false),
            ("", false),
            ("main", false),
        ] {
            let is_new = numbers(version).is_some_and(|numbers| numbers >= FIRST);
            assert_eq!(is_new, takes, "{version}");
        }
    }

    #[test]
    fn nobody_takes_nothing() {
        assert!(!ContainerdUnpacker::at(Path::new("/nonexistent")).takes_read_only_for_unpacked());
    }
}
