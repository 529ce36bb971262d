//! What a file is: its kind and its attributes.

use crate::{ContentId, Timestamp, Version};

/// What kind of file an inode is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum NodeKind {
    /// A regular file.
    File,
    /// A directory.
    Dir,
    /// A symbolic link.
    Symlink,
    /// A character device.
    CharDevice,
    /// A block device.
    BlockDevice,
    /// A named pipe.
    Fifo,
    /// A socket.
    Socket,
}

/// The bits of a mode that say what kind of file it is (`inode(7)`).
const MODE_MASK: u32 = 0o170_000;

impl NodeKind {
    const ALL: [Self; 7] = [
        Self::File,
        Self::Dir,
        Self::Symlink,
        Self::CharDevice,
        Self::BlockDevice,
        Self::Fifo,
        Self::Socket,
    ];

    /// Returns the bits of a mode that say this kind, as `stat(2)` has them.
    #[must_use]
    pub const fn mode(self) -> u16 {
        match self {
            Self::Fifo => 0o010_000,
            Self::CharDevice => 0o020_000,
            Self::Dir => 0o040_000,
            Self::BlockDevice => 0o060_000,
            Self::File => 0o100_000,
            Self::Symlink => 0o120_000,
            Self::Socket => 0o140_000,
        }
    }

    /// Returns the kind that a mode says, or `None` if it is none that Linux knows.
    #[must_use]
    pub fn of_mode(mode: u32) -> Option<Self> {
        let mut all = Self::ALL.into_iter();
        all.find(|kind| u32::from(kind.mode()) == mode & MODE_MASK)
    }
}

/// The attributes of a file, as `stat(2)` gives them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attr {
    /// Its kind.
    pub kind: NodeKind,
    /// Permission bits, with set-user-id, set-group-id and sticky: the low 12 bits of the mode.
    pub perm: u16,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Number of hard links.
    pub nlink: u32,
    /// Device number, as Linux encodes it in 32 bits (12 bits major, 20 bits minor); 0 for all
    /// but devices.
    pub rdev: u32,
    /// Length in bytes.
    pub size: u64,
    /// Space on the disk, in units of 512 bytes.
    pub blocks: u64,
    /// Time of the last access, at the time of the scan.
    pub atime: Timestamp,
    /// Time of the last change of the content.
    pub mtime: Timestamp,
    /// Time of the last change of content or attributes.
    pub ctime: Timestamp,
    /// Inode number on the source's own file system. What a mount shows is the index in the tree.
    pub source_inode: u64,
}

/// The bits of a mode that say what the owner, the group and others may do.
const RIGHTS: u16 = 0o777;

/// The bits of a directory's mode that let somebody reach what is in it.
const PASSAGE: u16 = 0o111;

impl Attr {
    /// Returns the version of the file that has these attributes.
    #[must_use]
    pub const fn version(&self) -> Version {
        Version {
            size: self.size,
            mtime: self.mtime,
            ctime: self.ctime,
            inode: self.source_inode,
        }
    }

    /// Returns whether every user has at least the rights on a file with these attributes as on
    /// one with `others`, by kind, mode and owner; access lists are not compared.
    ///
    /// The bits of the mode that change the user of a program (set-user-id, set-group-id) must be the same.
    #[must_use]
    pub fn give_all_rights_of(&self, others: &Self) -> bool {
        (self.kind, self.uid, self.gid) == (others.kind, others.uid, others.gid)
            && self.perm & !RIGHTS == others.perm & !RIGHTS
            && others.perm & RIGHTS & !self.perm == 0
    }

    /// Returns whether every user who may pass a directory with `others` may pass one with these
    /// attributes, by mode and owner; access lists are not compared.
    #[must_use]
    pub fn let_pass_all_of(&self, others: &Self) -> bool {
        (self.kind, self.uid, self.gid) == (others.kind, others.uid, others.gid)
            && others.perm & PASSAGE & !self.perm == 0
    }

    /// Returns whether everybody may pass a directory that has these attributes; access lists are not
    /// looked at.
    #[must_use]
    pub fn lets_everybody_pass(&self) -> bool {
        self.kind == NodeKind::Dir && self.perm & PASSAGE == PASSAGE
    }

    /// Returns a number that is the same for the same file at every scan, and another one for a file
    /// that took its place: of a directory it goes by the inode number, of everything else by the
    /// time of change, too, because a number is soon given to another file.
    ///
    /// It is part of the handles that overlays keep on disk: another rule would make them stale.
    #[must_use]
    pub fn generation(&self) -> u32 {
        let changed = match self.kind {
            NodeKind::Dir => Timestamp::default(),
            _ => self.ctime,
        };
        let mut bytes = [0; 20];
        bytes[..8].copy_from_slice(&self.source_inode.to_le_bytes());
        bytes[8..16].copy_from_slice(&changed.secs.to_le_bytes());
        bytes[16..].copy_from_slice(&changed.nanos.to_le_bytes());
        let [a, b, c, d, ..] = ContentId::of(&bytes).0;
        u32::from_le_bytes([a, b, c, d])
    }

    /// Returns whether the file has less space than length. One with more space may have holes,
    /// too, if space was preallocated; reading them as data gives the same zeros.
    #[must_use]
    pub const fn may_have_holes(&self) -> bool {
        self.blocks.saturating_mul(512) < self.size
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_is_known_by_its_mode_and_no_other() {
        let kinds = (0..16).filter_map(|bits| NodeKind::of_mode(bits << 12));
        assert!(kinds.clone().all(|kind| NodeKind::ALL.contains(&kind)));
        assert_eq!(kinds.count(), NodeKind::ALL.len());
        assert_eq!(NodeKind::of_mode(0o100_755), Some(NodeKind::File));
        assert_eq!(NodeKind::of_mode(0o755), None);
    }
}
