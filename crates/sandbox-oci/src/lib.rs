//! Containers of Docker, containerd and podman, started like lean sandboxes: with the command line of `runc`.
//!
//! A specification (`config.json`) is translated as a whole into a [`Plan`]. If it has any field, or any value, that is
//! not honoured, nothing is done and the program executes `runc` with the same arguments. A start leaves out the parts
//! that take a runtime most of its time: a second and a third process, a mount table that is read
//! again and again, and a library that compiles filters. `docs/sandbox-oci.md` lists what is honoured, and what is not.
//!
//! ```
//! use sandbox_oci::{OciError, Plan};
//!
//! let specification = serde_json::json!({"ociVersion": "1.2.0", "linux": {"intelRdt": {"closID": "x"}}});
//! let Err(OciError::NotHonoured(reasons)) = Plan::new(&specification) else {
//!     panic!("nothing is skipped");
//! };
//! assert_eq!(reasons, ["linux.intelRdt"]);
//! ```

#![forbid(unsafe_code)]

mod cgroup;
mod console;
pub mod container;
mod error;
pub mod honoured;
mod hooks;
mod identity;
mod init;
pub mod plan;
mod reasons;
mod root;
mod seccomp;
mod starters;
mod state;

pub use error::{OciError, Result};
pub use plan::Plan;
pub use seccomp::Filter;
