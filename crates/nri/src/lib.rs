//! A plugin of the Node Resource Interface (NRI): it is notified of pods and containers before they start.
//!
//! containerd (2.0 and later, 1.7 if configured) listens on a socket for plugins. A plugin registers, subscribes
//! to events, and receives a request for each of them; the pod waits for the response. This one only
//! observes: it changes nothing of a container, and responds before it does anything else.
//!
//! - [`Session`]: one connection, from registration until either side ends it.
//! - [`Listener`]: receives the events of pods and containers.
//!
//! The interface is ttrpc (protobuf messages with a header of ten bytes) in frames that name one of two
//! connections. All lengths are bounded before memory is allocated.
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
