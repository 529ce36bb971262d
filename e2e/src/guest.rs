//! The kinds of guests.

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

/// Who reads from behind a wall.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ValueEnum)]
pub enum Guest {
    /// A container of runc's: its root is an overlay over the mount.
    Container,
    /// A machine of QEMU's: it boots from a kernel and a disk on the mount.
    Vm,
}
