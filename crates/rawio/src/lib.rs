//! Kernel calls that `nix` lacks: the only crate of yolofs with unsafe code.
//!
//! One module for each idea; each opts in to `unsafe` by itself and argues every use. Everything
//! public here is safe to call.
//!
//! ```
//! use std::fs;
//!
//! use rawio::private::make_dir;
//! use rawio::rename::exchange;
//!
//! // A private directory, in which the new state takes the place of the old in one step.
//! let dir = tempfile::tempdir()?;
//! let state = dir.path().join("state");
//! make_dir(&state)?;
//! let (current, next) = (state.join("current"), state.join("next"));
//! fs::write(&current, "old")?;
//! fs::write(&next, "new")?;
//! exchange(&current, &next)?;
//! assert_eq!(fs::read_to_string(&current)?, "new");
//! assert_eq!(fs::read_to_string(&next)?, "old");
//! # Ok::<(), std::io::Error>(())
//! ```

pub mod bpf;
pub mod cached;
pub mod child;
pub mod dax;
pub mod dents;
pub mod destination;
pub mod device_cache;
pub mod extent;
pub mod fd;
pub mod file_lock;
pub mod fork;
pub mod handle;
pub mod idle;
pub mod inherit;
pub mod io_flusher;
pub mod keyring;
pub mod lock;
pub mod loop_device;
pub mod malloc;
pub mod mapped;
pub mod mount;
pub mod net;
pub mod once;
pub mod passing;
pub mod pidfd;
pub mod private;
pub mod read;
pub mod readahead;
pub mod regular;
pub mod rename;
pub mod resident;
pub mod sorted;
pub mod stat;
pub mod terminal;
pub mod trusted;
pub mod ublk;
pub mod unix_socket;
pub mod xattr;
