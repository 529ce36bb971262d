//! What all our processes share: the run directory, the mount table, interrupts, access control and framing
//! of sockets, panics of single items, and the display of progress.
//!
//! Nothing here depends on what is mounted or by which file system: only on processes and directories.

#![forbid(unsafe_code)]

pub mod admission;
pub mod callers;
pub mod caught;
pub mod control;
pub mod framed;
pub mod interrupt;
pub mod mount_table;
pub mod mountpoint;
pub mod names;
pub mod own_dir;
pub mod printable;
pub mod progress;
pub mod rights;
pub mod run_dir;
pub mod size;
