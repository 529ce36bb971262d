//! Problems of a machine that runs yolofs, and the configuration of its container engines.
//!
//! - [`Finding`]: a check, its result, and a remedy;
//! - [`Machine`]: the features of the kernel ([`Machine::check`]);
//! - [`store`], [`nodes`], [`mounts`]: checks of our own parts;
//! - [`Containerd`], [`Docker`]: an engine, its configuration, known problems of that
//!   (`check`), and the changes that make it use yolofs (`plan`);
//! - [`Plan`]: files to write, which can be shown, applied and undone ([`plan::undo`]).
//!
//! Nothing here starts or restarts a service; it only executes the engines' own programs, to get
//! their version and their effective configuration.
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
