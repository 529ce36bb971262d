//! Descriptors that outlive the process that opened them.
//!
//! A service that holds open mounts, sockets or files must not lose them when it crashes or is
//! replaced. systemd can hold them for it: the service sends descriptors with a name to the
//! service manager (`FDSTORE=1`), and gets them again when it is started the next time
//! (`LISTEN_FDS`). This crate has both sides of that:
//!
//! - the service's: [`Notifier`] sends messages, [`Inherited`] takes inherited descriptors;
//! - the manager's, for machines without systemd: [`Keeper`] starts a program, holds its
//!   descriptors, and restarts it when it dies.
//!
//! Both use the protocol of `sd_notify(3)` and `sd_listen_fds(3)`, so that a service has one
//! code path for both managers. There is one extension, `X_YOLOFS_PROGRAM=`,
//! with which a service sets the program to run the next time: an upgrade.
//!
//! # When the keeper dies
//!
//! When the keeper dies, its child keeps running. It detects the death by the keeper's pidfd ([`KEEPER_PID`]), and
//! starts another keeper around itself with [`surround`], which passes all descriptors and one end of
//! a pair of sockets: messages sent on the other from then on wait there. [`Keeper::adopt`] is the
//! counterpart.
//!
//! # What is refused
//!
//! A keeper receives messages from its child only: over a pair of connected sockets that is made for each child and
//! has no name in any namespace. The kernel's credentials of a sender are not trusted: a process with
//! `CAP_SYS_ADMIN` can forge them. [`Limits`] bound how many descriptors there are
//! and how long their names are together: they are passed to the next start in one environment
//! variable, and a start must never fail because of its length.
//!
//! # Other releases
//!
//! Earlier keepers listened at a name, as systemd does. A service of this release uses such a
//! keeper like systemd. One of an earlier release that this keeper starts ends at once, with the error
//! that `NOTIFY_SOCKET` is no address; the program before it is started again. If one starts a
//! keeper of this release around itself, the keeper watches it, and ignores its messages.
//!
//! ```
//! use std::os::fd::AsFd as _;
//! use std::os::unix::net::UnixDatagram;
//!
//! use fdstore::{Inherited, Message, Notifier};
//!
//! // A service manager listens at an address, which it names in `NOTIFY_SOCKET`.
//! let dir = tempfile::tempdir()?;
//! let address = dir.path().join("notify");
//! let manager = UnixDatagram::bind(&address)?;
//!
//! // The service gives it a file to keep.
//! let notifier = Notifier::find(address.as_os_str(), &mut Inherited::default())?;
//! let file = std::fs::File::create(dir.path().join("state"))?;
//! notifier.store("state", file.as_fd())?;
//!
//! let mut bytes = [0; 1024];
//! let length = manager.recv(&mut bytes)?;
//! let message = Message::parse(&bytes[..length]);
//! assert!(message.store);
//! assert_eq!(message.name.as_deref(), Some("state"));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![forbid(unsafe_code)]

mod address;
mod error;
mod inherited;
mod keeper;
mod link;
mod message;
mod notifier;
mod store;

pub use address::Address;
pub use error::{Result, StoreError};
pub use inherited::{Inherited, Variables};
pub use keeper::{Ended, KEEPER_PID, Keeper, Program, surround};
pub use link::Link;
pub use message::{MAX_NAME_BYTES, Message, is_name};
pub use notifier::Notifier;
pub use store::Limits;
