//! Descriptors that outlive the process that opened them.
//!
//! A service that holds open mounts, sockets or files must not lose them when it crashes or is
//! replaced. systemd can hold them for it: the service sends descriptors with a name to the
//! service manager (`FDSTORE=1`), and gets them again when it is started the next time
//! (`LISTEN_FDS`). This crate has both sides of that:
//!
//! - the service's: [`Notifier`] tells, [`Inherited`] takes what was handed over;
//! - the manager's, for machines without systemd: [`Keeper`] starts a program, holds its
//!   descriptors, and starts it again when it dies.
//!
//! Both speak the protocol of `sd_notify(3)` and `sd_listen_fds(3)`, so that a service has one
//! code path whoever started it. Beyond it there is one word of our own, `X_YOLOFS_PROGRAM=`,
//! with which a service says which program to run the next time: an upgrade.
//!
//! # When the keeper dies
//!
//! Its child lives on. It learns of the death from the keeper's pidfd ([`KEEPER_PID`]), and starts
//! another keeper around itself with [`surround`], which hands over all descriptors and a bound
//! socket at the same address: nothing that is sent in between is lost. [`Keeper::adopt`] is the
//! other end of that.
//!
//! # What is refused
//!
//! A keeper listens to its child alone, by the credentials that the kernel attaches to each
//! message; what others send is dropped, and their descriptors are closed. [`Limits`] bound how
//! many descriptors there are and how long their names are together: they travel to the next start
//! in one variable of the environment, and a start must never fail for its length.

#![forbid(unsafe_code)]

mod address;
mod error;
mod inherited;
mod keeper;
mod message;
mod notifier;
mod store;

pub use address::Address;
pub use error::{Result, StoreError};
pub use inherited::{Inherited, Variables};
pub use keeper::{Ended, KEEPER_PID, Keeper, Program, surround};
pub use message::{MAX_NAME_BYTES, Message, is_name};
pub use notifier::Notifier;
pub use store::Limits;
