//! Lean sandboxes: a program in a root of its own, in less than a millisecond.
//!
//! The slow parts of a container's start are done in advance, or left out: the root is a mount
//! namespace that is ready to be copied (`base`), control groups and network namespaces are reused
//! (`cgroup`, `network`), and there is no overlay, no runtime's process and no change of root. The
//! security boundary of a sandbox is described in `docs/sandboxes.md`.
//!
//! ```no_run
//! use std::time::Duration;
//! use sandbox::{BaseSpec, Config, Request, Sandboxes, Stdio};
//!
//! # fn main() -> sandbox::Result<()> {
//! let sandboxes = Sandboxes::open(Config::new("/run/sandboxes", "sandboxes"))?;
//! let base = BaseSpec { name: "debian".into(), root: "/srv/debian".into(), hide: vec![] };
//! sandboxes.add_base(&base)?;
//! let request = Request::new("debian", &["/usr/bin/id", "-u"]);
//! let sandbox = sandboxes.create(request, Stdio::Captured)?;
//! let exit = sandbox.wait(Duration::from_secs(10));
//! println!("{exit:?} {:?}", sandbox.written());
//! # Ok(())
//! # }
//! ```

#![forbid(unsafe_code)]

mod ahead;
mod base;
mod begun;
pub mod cache;
mod cgroup;
mod confinement;
mod error;
mod exec;
mod later;
mod launch;
mod network;
mod output;
mod packages;
mod process;
mod python;
mod record;
mod request;
mod restore;
mod rooms;
mod sandbox;
mod sandboxes;
mod starters;
mod stdio;
mod tmp;
mod watch;
mod zygote;

pub use base::{BaseSpec, PLACES};
pub use cgroup::Limits;
pub use error::{Result, SandboxError};
pub use exec::Execution;
pub use network::{BridgeConfig, Neighbours, Network, Subnet};
pub use output::{KEPT_MAX_BYTES, Written};
pub use packages::Packages;
pub use process::ExitStatus;
pub use request::{Python, Request, Stdio};
pub use sandbox::{Cause, Exit, Phase, Sandbox};
pub use sandboxes::{Config, Counts, Sandboxes};
pub use zygote::{IMPORTS_MAX, ZygoteCounts, ZygoteSpec, ZygoteView};
