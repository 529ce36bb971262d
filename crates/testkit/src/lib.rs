//! What tests of several crates share: registries, images, servers that answer what a test says, a network that
//! looks like the open one, and a guest with another kernel. Tests only: what fails here panics.
//!
//! ```
//! use testkit::layouts::{LayoutDir, layer, named};
//!
//! let dir = tempfile::tempdir()?;
//! let layout = LayoutDir(dir.path());
//! layout.start();
//! let image = layout.image(&[layer(&[("etc/motd", b"hello")])], &serde_json::json!({}));
//! layout.index(&[named(image, "latest")]);
//! assert!(dir.path().join("index.json").is_file());
//! # Ok::<(), std::io::Error>(())
//! ```

#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

pub mod by_name;
pub mod certificates;
pub mod elf;
pub mod guest;
pub mod layouts;
pub mod outside;
pub mod range_server;
pub mod registries;
pub mod scripted;
pub mod tokens;
pub mod undisturbed;
