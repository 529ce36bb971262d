//! Errors in a qcow2 image.

/// An error in a qcow2 image.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Qcow2Error {
    /// The header ends early or contradicts itself.
    #[error("its header is damaged")]
    Damaged,
    /// The version is neither 2 nor 3.
    #[error("its version is {0}; 2 and 3 are known")]
    Version(u32),
    /// A file that it needs is in another directory.
    #[error(
        "it needs {0:?}, which is not in its own directory: move that file beside it and run \
         `qemu-img rebase -u`, or flatten the image with `qemu-img convert`"
    )]
    Outside(String),
    /// The backing file has a format that is not looked into.
    #[error(
        "its backing file is {0}, and may name other files: raw and qcow2 are served; make one image of both \
         with `qemu-img convert`, or say what it is with `qemu-img rebase -u -F raw`"
    )]
    Format(String),
    /// The chain comes back to a file that is in it already, or never ends.
    #[error("its chain of backing files is a loop or longer than 64 files")]
    Chain,
}
