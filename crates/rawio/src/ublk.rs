//! ublk: block devices of this machine that a process serves ([the kernel's description][doc]).
//!
//! - [`Control`] makes, starts, finds and ends devices.
//! - [`Queue`] has the requests of one of a device's queues, by a [`QueueRing`].
//!
//! Devices are made for user copy only: the kernel is given no address of a buffer. What is written to a device is
//! read from its character device, and what is read from it is written there, as of a file ([`data_position`]).
//!
//! [doc]: https://docs.kernel.org/block/ublk.html

#![expect(
    clippy::host_endian_bytes,
    reason = "the kernel's structures have the byte order of the machine"
)]

mod abi;
mod control;
mod queue;
mod ring;

pub use abi::{Attributes, DeviceState, MadeDevice, NewDevice, Shape, data_position};
pub use control::Control;
pub use queue::{Event, Operation, Queue, Request};
pub use ring::QueueRing;
