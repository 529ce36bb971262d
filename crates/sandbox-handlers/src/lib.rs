//! Handlers: programs that sandboxes keep ready for requests, within limits and one budget of memory.
//!
//! A handler is a function in a directory of code. Its first request starts a sandbox that loads it, by a
//! fork of a Zygote (Python) or in one that was started ahead (Node.js). After the response the sandbox stays, frozen,
//! for the next request. Frozen sandboxes share a budget of memory with the Zygotes.
//!
//! ```no_run
//! use std::sync::Arc;
//! use sandbox::{Config, Sandboxes};
//! use sandbox_handlers::{Budget, HandlerSpec, Handlers};
//! use sandbox_packages::Store;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let sandboxes = Arc::new(Sandboxes::open(Config::new("/run/sandboxes", "sandboxes"))?);
//! let store = Arc::new(Store::open("/var/lib/sandbox/packages")?);
//! let handlers = Handlers::new(sandboxes, store, Budget::default())?;
//! handlers.add(HandlerSpec::python("hello", "debian", "/srv/hello"))?;
//! let answer = handlers.call("hello", br#"{"name": "world"}"#)?;
//! println!("{}", String::from_utf8_lossy(&answer));
//! # Ok(())
//! # }
//! ```

#![forbid(unsafe_code)]

mod budget;
mod error;
mod handler;
mod handlers;
mod instance;
mod keeper;
mod shared;
mod spares;
mod spec;

pub use budget::Budget;
pub use error::{CallError, Result};
pub use handlers::{HandlerView, Handlers};
pub use shared::HandlerCounts;
pub use spec::{HandlerSpec, Runtime};
