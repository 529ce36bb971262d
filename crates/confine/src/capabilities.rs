//! The part of root's power that a process keeps.

use caps::{CapSet, Capability, CapsHashSet};
use nix::unistd::geteuid;

use crate::ConfineError;

/// Drops all capabilities of the calling thread but `keep`, and prevents gaining others by
/// executing a program. Threads that it starts later have no more than it has.
///
/// Capabilities of `keep` that the thread does not have are not added.
///
/// # Errors
/// If the kernel refuses.
pub fn keep_only(keep: &[Capability]) -> Result<(), ConfineError> {
    let has = caps::read(None, CapSet::Permitted)?;
    let keep: CapsHashSet = keep
        .iter()
        .copied()
        .filter(|cap| has.contains(cap))
        .collect();
    // First of all, for it takes a capability by itself. Who lacks that one executes nothing that
    // could use the others, once `no_new_privs` is set.
    if has.contains(&Capability::CAP_SETPCAP) {
        let bounding = caps::read(None, CapSet::Bounding)?;
        for cap in bounding.difference(&keep) {
            caps::drop(None, CapSet::Bounding, *cap)?;
        }
    }
    caps::clear(None, CapSet::Ambient)?;
    caps::clear(None, CapSet::Inheritable)?;
    caps::set(None, CapSet::Effective, &keep)?;
    caps::set(None, CapSet::Permitted, &keep)?;
    log::debug!(
        "of {} capabilities, user {} keeps {keep:?}",
        has.len(),
        geteuid()
    );
    Ok(())
}
