//! Why a device could not be exported.

use std::io;
use std::path::PathBuf;

/// Why a device could not be exported.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ExportError {
    /// Another process serves there.
    #[error("{} is served by another process; stop that one, or choose another path", .0.display())]
    InUse(PathBuf),
    /// The path is too long for a socket.
    #[error("the path {} is too long for a socket: at most 90 bytes", .0.display())]
    PathTooLong(PathBuf),
    /// The file at the path is not a socket.
    #[error("{} exists and is no socket; choose another path", .0.display())]
    NoSocket(PathBuf),
    /// The file at the path is not a symbolic link.
    #[error("{} exists and is no link to a ublk device; choose another path", .0.display())]
    NoLink(PathBuf),
    /// What a dead server has left at the path is not what is to be served there.
    #[error(
        "users of the device at {} wait for a server that died, and it {what}: serve there what was served, or remove \
         that link, so that the device ends",
        .path.display()
    )]
    Left {
        /// The link.
        path: PathBuf,
        /// What the device is.
        what: String,
    },
    /// The kernel's driver of ublk devices refused.
    #[error("the kernel makes no ublk device{}", advice(.0))]
    Ublk(#[source] io::Error),
    /// The device's shape is not supported by the protocol.
    #[error("a device of {size} bytes in blocks of {block_size} cannot be exported")]
    Shape {
        /// Its size.
        size: u64,
        /// Its block size.
        block_size: u32,
    },
    /// A system call failed.
    #[error("{doing} {}", .path.display())]
    System {
        /// The operation.
        doing: &'static str,
        /// Its path.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
}

/// Returns what to do about an error of the driver of ublk devices.
fn advice(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::NotFound => {
            ": load its driver (modprobe ublk_drv), or serve the image over NBD if it has none"
        }
        io::ErrorKind::Unsupported => {
            " that outlives its server: that takes Linux 6.5; serve the image over NBD"
        }
        io::ErrorKind::PermissionDenied => ": it takes root",
        _ => "",
    }
}
