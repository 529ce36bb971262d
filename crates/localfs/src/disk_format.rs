//! Formats of disk images.

/// How the bytes of a disk image are laid out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DiskFormat {
    /// Raw sectors.
    Raw,
    /// QEMU's format, possibly based on another image.
    Qcow2,
}
