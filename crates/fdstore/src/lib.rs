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
//! another keeper around itself with [`surround`], which hands over all descriptors and one end of
//! a pair of sockets: what is sent on the other from then on waits there. [`Keeper::adopt`] is the
//! other end of that.
//!
//! # What is refused
//!
//! A keeper hears its child alone: over a pair of connected sockets that is made for each child and
//! has no name in any namespace. What the kernel says of who has sent a message is not gone by: who
//! has `CAP_SYS_ADMIN` has it say what he likes. [`Limits`] bound how many descriptors there are
//! and how long their names are together: they travel to the next start in one variable of the
//! environment, and a start must never fail for its length.
//!
//! # Other releases
//!
//! Earlier keepers listened at a name, as systemd does. A service of this release speaks to such a
//! keeper as to systemd. One of an earlier release that this keeper starts ends at once, and says
//! that `NOTIFY_SOCKET` is no address; the program before it is started again. One that starts a
//! keeper of this release around itself is looked after, and not heard.
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
