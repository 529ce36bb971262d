//! What keeps containerd from collecting what a pull has put there: a lease of the process's own.

use std::time::Duration;

use engine::Containerd;
use engine::containerd::Collected;

use host::run_dir::{has_ended, process_start};

/// Lifetime of a lease that is not deleted: that of containerd's own clients.
pub(super) const LASTS: Duration = Duration::from_secs(24 * 3600);

const PREFIX: &str = "yolofs-pull-";

/// Returns the name of this process's lease, which shows whether the process lives.
///
/// # Errors
/// If `/proc` is not mounted.
pub(super) fn name() -> anyhow::Result<String> {
    let pid = std::process::id();
    Ok(format!("{PREFIX}{pid}-{}", process_start(pid)?))
}

/// Removes the leases of pulls that were killed; their content is garbage-collected, unless it is
/// part of this pull.
///
/// # Errors
/// If containerd does not respond.
pub(super) fn clear_dead(containerd: &Containerd) -> anyhow::Result<()> {
    for lease in containerd.leases(PREFIX)? {
        if is_dead(&lease) {
            log::info!("deleting the lease {lease} of a pull that was killed");
            containerd.remove_lease(&lease, Collected::Later)?;
        }
    }
    Ok(())
}

/// Returns whether a lease is named like that of a pull, and that is gone.
fn is_dead(lease: &str) -> bool {
    let owner = lease
        .strip_prefix(PREFIX)
        .and_then(|owner| owner.split_once('-'));
    let owner = owner.and_then(|(pid, start)| Some((pid.parse().ok()?, start.parse().ok()?)));
    owner.is_some_and(|(pid, start): (u32, u64)| has_ended(pid, start))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_leases_of_the_dead_are_theirs() {
        let alive = name().unwrap();
        assert!(!is_dead(&alive));
        assert!(is_dead(&format!("{alive}0")));
        assert!(is_dead("yolofs-pull-4294967295-7"));
        for other in ["yolofs-pull-", "yolofs-pull-x-y", "yolofs-pull-7", "7-7"] {
            assert!(!is_dead(other), "{other}");
        }
    }
}
