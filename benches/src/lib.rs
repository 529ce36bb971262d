//! The rig that times whole boots, and compares what may be compared.
//!
//! A boot is a container's (an overlay, a chroot, Python) or a virtual machine's (firmware,
//! boot loader, kernel, sshd). It is made from a file system on a loop device of its own, the
//! [`stage`], which can be slowed down ([`throttle`]), kept busy ([`contention`]) and whose reads
//! are counted. The programs under test are run as a user runs them ([`programs`]).
//!
//! What makes a comparison fair: the modes of one comparison take turns in an order that is
//! shuffled anew each round, caches are dropped by one stated procedure ([`caches`]), and every
//! raw sample is kept in the report beside the median.
//!
//! Everything that waits has a deadline. Everything that is mounted or started is undone when its
//! owner is dropped, also on Ctrl-C ([`interrupt`]); mounts are made in a mount namespace of the
//! rig's own, so that even a killed rig leaves none behind.

#![forbid(unsafe_code)]

mod aim;
pub mod aims;
pub mod block;
pub mod boots;
pub mod caches;
pub mod chart;
pub mod container;
pub mod containers;
pub mod contention;
pub mod ending;
pub mod far;
pub mod interrupt;
pub mod lab_args;
pub mod machine;
pub mod micro;
pub mod namespace;
pub mod nic;
pub mod process;
pub mod programs;
pub mod report;
pub mod results;
pub mod rounds;
pub mod sandboxes;
pub mod stage;
pub mod store;
pub mod suite;
pub mod throttle;
pub mod tier;
pub mod vm;
pub mod yolo;
