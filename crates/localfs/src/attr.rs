//! Conversion of the kernel's attributes to ours.

use blocks::{Attr, NodeKind, Timestamp};
use rawio::stat::Stat;

/// Returns the attributes of a file, or `None` if its kind is unknown.
pub(crate) fn attr_of(stat: &Stat) -> Option<Attr> {
    let kind = NodeKind::of_mode(stat.mode)?;
    let device = matches!(kind, NodeKind::CharDevice | NodeKind::BlockDevice);
    Some(Attr {
        kind,
        perm: u16::try_from(stat.mode & 0o7777).unwrap_or_default(),
        uid: stat.uid,
        gid: stat.gid,
        nlink: stat.nlink,
        rdev: if device { encode_device(stat.rdev) } else { 0 },
        size: stat.size,
        blocks: stat.blocks,
        atime: timestamp(stat.atime),
        mtime: timestamp(stat.mtime),
        ctime: timestamp(stat.ctime),
        source_inode: stat.inode,
    })
}

const fn timestamp((secs, nanos): (i64, u32)) -> Timestamp {
    Timestamp { secs, nanos }
}

/// The kernel's `new_encode_dev`: the low 8 bits of the minor number, 12 bits of the major one,
/// then the high 12 bits of the minor one.
const fn encode_device((major, minor): (u32, u32)) -> u32 {
    (minor & 0xff) | ((major & 0xfff) << 8) | ((minor & 0xf_ff00) << 12)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_numbers_are_encoded_as_the_kernel_does() {
        assert_eq!(encode_device((1, 3)), 0x103); // /dev/null
        assert_eq!(encode_device((259, 70_000)), 0x1111_0370);
        assert_eq!(encode_device((0xfff, 0xf_ffff)), u32::MAX);
    }
}
