//! What makes an inode one and the same for as long as anybody remembers it.

use blocks::NodeKind;
use rawio::stat::Stat;

use crate::attr::attr_of;

/// An inode on the disk. The number alone does not identify it: it is reused. The time of birth is
/// not, and the type helps on file systems that do not store it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct DiskInode {
    device: (u32, u32),
    inode: u64,
    birth: Option<(i64, u32)>,
    pub(crate) kind: Option<NodeKind>,
}

impl DiskInode {
    pub(crate) fn of(stat: &Stat) -> Self {
        Self {
            device: stat.device,
            inode: stat.inode,
            birth: stat.birth,
            kind: attr_of(stat).map(|attr| attr.kind),
        }
    }
}
