//! A read-only copy of this program.
//!
//! A container's first process runs this program's file until it executes the container's program; a container
//! that runs `/proc/self/exe` can open it, and root of it may write to it once it is not executing any more
//! (CVE-2019-5736). So a container is only made by a program whose file is on a read-only mount, which
//! is in no namespace and cannot be changed: the file is mounted, executed and detached.

use std::ffi::CString;
use std::fs::File;
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::os::unix::ffi::OsStringExt as _;

use nix::sys::statvfs::{FsFlags, fstatvfs};
use rawio::mount::{DetachedMount, Forbids, Scope};
use sandbox_oci::{OciError, Result};

const OWN: &str = "/proc/self/exe";

/// Returns if this program runs from such a copy, or has itself executed from one.
pub(crate) fn run_from_it() -> Result<()> {
    let failed = |error: std::io::Error| {
        OciError::Invalid(format!(
            "making a copy of {OWN} that cannot be written to: {error}"
        ))
    };
    let own = File::open(OWN).map_err(failed)?;
    let flags = fstatvfs(&own)
        .map_err(|errno| failed(errno.into()))?
        .flags();
    if flags.contains(FsFlags::ST_RDONLY) {
        return Ok(());
    }
    let copy = DetachedMount::copy_tree_of(own.as_fd(), Scope::One).map_err(failed)?;
    copy.set(Forbids::WRITING, Forbids::NOTHING)
        .map_err(failed)?;
    let path =
        CString::new(format!("/proc/self/fd/{}", copy.as_fd().as_raw_fd())).unwrap_or_default();
    let strings = |list: Vec<std::ffi::OsString>| -> Vec<CString> {
        list.into_iter()
            .filter_map(|text| CString::new(text.into_vec()).ok())
            .collect()
    };
    let arguments = strings(std::env::args_os().collect());
    let variables = std::env::vars_os().map(|(mut name, value)| {
        name.push("=");
        name.push(value);
        name
    });
    let variables = strings(variables.collect());
    match nix::unistd::execve(&path, &arguments, &variables) {
        Ok(never) => match never {},
        Err(errno) => Err(failed(errno.into())),
    }
}
