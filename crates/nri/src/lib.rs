//! A plugin of the Node Resource Interface (NRI): it hears of pods and containers before they start.
//!
//! containerd (2.0 and later, 1.7 if configured) listens on a socket for plugins. A plugin registers, says
//! which events it wants, and is asked about each of them; the pod waits for the answer. This one only
//! listens: it changes nothing of a container, and answers before it does anything else.
//!
//! - [`Session`]: one connection, from registration until either side ends it.
//! - [`Listener`]: who hears of pods and containers.
//!
//! The interface is ttrpc (protobuf messages with a header of ten bytes) in frames that say which of two
//! connections they belong to. All lengths are bounded before memory is taken.
//!
//! ```
//! use nri::{Identity, NriError, Session};
//!
//! let identity = Identity::new("yolofs", 90);
//! let nobody = Session::register("/nonexistent/nri.sock".as_ref(), &identity);
//! assert!(matches!(nobody, Err(NriError::Connect { .. })));
//! ```

#![forbid(unsafe_code)]

mod error;
mod frames;
mod messages;
mod session;
mod ttrpc;

pub use error::NriError;
pub use messages::{Container, Image, Pod};
pub use session::{Ended, Identity, Listener, Session};
