//! A control-group hierarchy that engines do not see, so that they leave their processes where
//! they were born: in the rig's group, under the rig's limit.

use std::fs;
use std::path::Path;

use anyhow::{Context as _, bail};
use nix::mount::{MntFlags, MsFlags, mount, umount2};

use crate::namespace::Mounted;

/// Moves cgroup v1's `blkio` hierarchy to the directory `aside`, in this mount namespace. The limit
/// on the disk is found there by [`crate::throttle`]; engines look below `/sys/fs/cgroup` only.
///
/// # Errors
/// If there is none, or the kernel refuses.
pub fn hide_blkio(aside: &Path) -> anyhow::Result<Mounted> {
    let mounts = fs::read_to_string("/proc/self/mounts").context("reading the mounts")?;
    let Some(place) = find_blkio(&mounts) else {
        bail!(
            "cgroup v1's blkio hierarchy is not mounted. With cgroup v2 a container would have to \
             be in the same group as its engine, which v2 does not allow: mount v1's blkio"
        );
    };
    mount(
        Some(place),
        aside,
        None::<&str>,
        MsFlags::MS_BIND,
        None::<&str>,
    )
    .with_context(|| format!("binding {place} to {}", aside.display()))?;
    let aside = Mounted::adopt(aside);
    umount2(place, MntFlags::MNT_DETACH).with_context(|| format!("hiding {place}"))?;
    Ok(aside)
}

/// Finds it in the lines of `/proc/mounts`.
fn find_blkio(mounts: &str) -> Option<&str> {
    mounts.lines().find_map(|line| {
        let mut fields = line.split(' ').skip(1);
        let (target, kind, options) = (fields.next()?, fields.next()?, fields.next()?);
        let is_it = kind == "cgroup" && options.split(',').any(|option| option == "blkio");
        is_it.then_some(target)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hierarchy_is_found_by_its_controller() {
        let mounts = "cgroup /sys/fs/cgroup/cpu cgroup rw,cpu 0 0\n\
                      cgroup /sys/fs/cgroup/x cgroup rw,relatime,blkio 0 0\n";
        assert_eq!(find_blkio(mounts), Some("/sys/fs/cgroup/x"));
        assert_eq!(
            find_blkio("cgroup2 /sys/fs/cgroup cgroup2 rw,blkio 0 0\n"),
            None
        );
    }
}
