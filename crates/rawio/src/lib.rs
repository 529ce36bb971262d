//! Kernel calls that `nix` lacks: the only crate of yolofs with unsafe code.
//!
//! One module for each idea; each opts in to `unsafe` by itself and argues every use. Everything
//! public here is safe to call.

pub mod cached;
pub mod child;
pub mod dax;
pub mod dents;
pub mod destination;
pub mod device_filter;
pub mod fd;
pub mod fork;
pub mod handle;
pub mod idle;
pub mod inherit;
pub mod keyring;
pub mod lock;
pub mod malloc;
pub mod mapped;
pub mod mount;
pub mod net;
pub mod once;
pub mod passing;
pub mod pidfd;
pub mod private;
pub mod read;
pub mod rename;
pub mod resident;
pub mod stat;
pub mod terminal;
pub mod xattr;
