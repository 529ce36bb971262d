//! What every process of ours shares: the run directory, the mount table, interrupts, who may ask over a
//! socket and how messages travel over it, and how long work is shown.
//!
//! Nothing here knows what is mounted or by which file system: processes and directories only.

#![forbid(unsafe_code)]

pub mod admission;
pub mod control;
pub mod framed;
pub mod interrupt;
pub mod mount_table;
pub mod mountpoint;
pub mod names;
pub mod own_dir;
pub mod progress;
pub mod rights;
pub mod run_dir;
pub mod size;
