//! What is wrong on a machine that runs yolofs, and how its container engines are told of it.
//!
//! - [`Finding`]: one thing that was checked, what was found, and its cure;
//! - [`Machine`]: what the kernel offers ([`Machine::check`]);
//! - [`store`], [`nodes`], [`mounts`]: checks of our own parts;
//! - [`Containerd`], [`Docker`]: what an engine is, what it is configured to do, the traps in that
//!   (`check`), and what would have to be written for it to use yolofs (`plan`);
//! - [`Plan`]: files to write, which can be shown, applied and undone ([`plan::undo`]).
//!
//! Nothing here starts or restarts a service; what it runs are the engines' own programs, to ask for
//! their version and for the configuration that they make of their files.
//!
//! ```
//! use diagnosis::{Finding, Verdict};
//!
//! let finding = Finding::fault("fuse-device", "/dev/fuse is missing", "modprobe fuse");
//! assert_eq!(finding.verdict, Verdict::Fault);
//! ```

#![forbid(unsafe_code)]

mod bounded;
pub mod containerd;
pub mod docker;
mod finding;
mod machine;
pub mod mounts;
pub mod nodes;
pub mod plan;
mod processes;
pub mod store;

pub use containerd::Containerd;
pub use docker::Docker;
pub use finding::{Finding, Verdict};
pub use machine::Machine;
pub use plan::Plan;
