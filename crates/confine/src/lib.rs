//! Drops the privileges that a process does not need.
//!
//! A process that serves a mount reads boot images from registries and answers requests of
//! containers. If one of them exploits a bug in it, the attacker must not reach
//! the rest of the machine. So a serving process drops, before it serves:
//!
//! - being root, if it is to be [another user](identity);
//! - all [capabilities] but those it names, and all ways to gain new ones
//!   (`no_new_privs`);
//! - the [files] it does not read or write, by Landlock, as far as the kernel supports it;
//! - the [system calls](calls) it does not make, by seccomp.
//!
//! [`Confinement::apply`] does all of it, in a process that has one thread yet. A process that
//! must confine itself in steps calls the modules' functions one by one.
//!
//! ```
//! use std::fs;
//!
//! use confine::{Files, Reads};
//!
//! let dir = tempfile::tempdir()?;
//! let own = dir.path().join("own");
//! fs::write(&own, "mine")?;
//! let files = Files {
//!     reads: Reads::Beneath(vec![dir.path().to_owned()]),
//!     ..Files::default()
//! };
//! // A thread is enough to see it; a process confines itself before it starts others.
//! let confined = std::thread::spawn(move || {
//!     files.confine()?;
//!     assert_eq!(fs::read_to_string(&own).ok().as_deref(), Some("mine"));
//!     assert!(fs::read_to_string("/etc/passwd").is_err());
//!     assert!(fs::write(&own, "other").is_err());
//!     Ok::<(), confine::ConfineError>(())
//! });
//! confined.join().expect("it does not panic")?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![forbid(unsafe_code)]

pub mod calls;
pub mod capabilities;
mod error;
pub mod files;
pub mod guest;
pub mod identity;

use nix::sys::prctl::set_no_new_privs;

pub use calls::{Programs, Rings, Set, Sockets, Unlisted};
pub use caps::Capability;
pub use error::ConfineError;
pub use files::{Files, Ports, Reads};
pub use identity::Identity;

/// The privileges that a process keeps.
#[derive(Clone, Debug)]
pub struct Confinement {
    /// The user that it becomes; `None` for no change.
    pub identity: Option<Identity>,
    /// The capabilities that it keeps, if it has them.
    pub capabilities: Vec<Capability>,
    /// The files that it may open.
    pub files: Files,
    /// The system calls that it may make.
    pub calls: Set,
    /// What becomes of other calls.
    pub unlisted: Unlisted,
}

impl Confinement {
    /// Confines the process, and everything that it starts, for good.
    ///
    /// # Errors
    /// If the process has more than one thread: the others would not be confined. If a system call
    /// fails; the process may then be confined in part, and should end.
    pub fn apply(&self) -> Result<(), ConfineError> {
        let threads = std::fs::read_dir("/proc/self/task")
            .map_err(ConfineError::step("counting threads"))?
            .count();
        if threads != 1 {
            return Err(ConfineError::Threads(threads));
        }
        if let Some(identity) = self.identity {
            identity.assume()?;
        }
        capabilities::keep_only(&self.capabilities)?;
        set_no_new_privs()
            .map_err(|errno| ConfineError::step("giving up new privileges")(errno.into()))?;
        self.files.confine()?;
        calls::allow_only(self.calls, self.unlisted)
    }
}
