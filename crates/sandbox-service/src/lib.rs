//! The daemon of sandboxes: it owns those of a machine, and serves requests on a unix socket.
//!
//! [`bodies`] has the JSON bodies, [`Daemon`] the operations, [`api`] the HTTP
//! server, and [`client`] a client. `docs/sandboxes.md` describes it for users.
//!
//! ```
//! use sandbox_service::bodies::Create;
//! use sandbox_service::client::{CallError, Client};
//!
//! // What `sandbox run` sends.
//! let text = r#"{"request": {"base": "python", "command": ["/bin/true"]}, "wait_ms": 1000}"#;
//! let create: Create = serde_json::from_str(text)?;
//! assert_eq!(create.request.command, ["/bin/true"]);
//! // A field that the daemon does not know is an error, and not ignored.
//! assert!(serde_json::from_str::<Create>(&text.replace("wait_ms", "wait")).is_err());
//!
//! let dir = tempfile::tempdir()?;
//! let nobody = Client::at(dir.path().join("sandbox.sock")).create(&create);
//! assert!(matches!(nobody, Err(CallError::Nobody(_))));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![forbid(unsafe_code)]

pub mod api;
pub mod bodies;
pub mod client;
mod daemon;
mod handlers;
mod metrics;
mod packages;
mod readers;
mod settings_file;

pub use daemon::Daemon;
