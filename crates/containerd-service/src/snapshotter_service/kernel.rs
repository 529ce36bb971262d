//! What the kernel supports for our mounts.

/// The first Linux that makes idmapped mounts of a FUSE file system that asks for them.
const MAPS_FUSE: (u32, u32) = (6, 12);

/// Returns whether this kernel mounts a served layer with other user IDs.
pub(super) fn maps_fuse() -> bool {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease");
    release.is_ok_and(|release| is_since(&release, MAPS_FUSE))
}

fn is_since(release: &str, version: (u32, u32)) -> bool {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(str::parse);
    match (numbers.next(), numbers.next()) {
        (Some(Ok(major)), Some(Ok(minor))) => (major, minor) >= version,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tells_kernels_that_map_from_older_ones() {
        for release in ["6.12.0-rc1", "6.18.44-fc-v657", "7.0", "10.1.1"] {
            assert!(is_since(release, MAPS_FUSE), "{release}");
        }
        for release in ["6.1.0-28-amd64", "6.11", "5.19.0", "", "new", "6"] {
            assert!(!is_since(release, MAPS_FUSE), "{release}");
        }
    }
}
