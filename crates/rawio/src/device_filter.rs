//! Which devices a control group may open: a program of the kernel's virtual machine that decides.

#![expect(unsafe_code, reason = "neither std nor nix has bpf")]

use std::io;
use std::os::fd::{AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd, RawFd};

/// `BPF_PROG_LOAD` and `BPF_PROG_ATTACH`.
const LOAD: libc::c_int = 5;
const ATTACH: libc::c_int = 8;
/// `BPF_PROG_TYPE_CGROUP_DEVICE` and `BPF_CGROUP_DEVICE`.
const PROGRAM_TYPE: u32 = 15;
const ATTACH_TYPE: u32 = 6;
/// `BPF_F_ALLOW_MULTI`: those of groups above are asked, too.
const ALLOW_MULTI: u32 = 2;

/// The parameters of `BPF_PROG_LOAD`, as far as they are used.
#[derive(Default)]
#[repr(C)]
struct LoadParameters {
    kind: u32,
    instructions_len: u32,
    instructions: u64,
    license: u64,
    log_level: u32,
    log_size: u32,
    log: u64,
    kernel_version: u32,
    flags: u32,
}

/// Those of `BPF_PROG_ATTACH`.
#[repr(C)]
struct AttachParameters {
    target: u32,
    program: u32,
    kind: u32,
    flags: u32,
}

/// Attaches a BPF program, whose instructions are given in the kernel's format, that decides which devices
/// processes in a control group of version 2 may open and create. It stays as long as the group.
///
/// # Errors
/// If the kernel refuses the program, or does not support such programs (`EINVAL`).
pub fn attach(cgroup: BorrowedFd<'_>, instructions: &[u64]) -> io::Result<()> {
    let load = LoadParameters {
        kind: PROGRAM_TYPE,
        instructions_len: u32::try_from(instructions.len()).map_err(io::Error::other)?,
        instructions: instructions.as_ptr().addr() as u64,
        license: c"MIT".as_ptr().addr() as u64,
        ..LoadParameters::default()
    };
    // SAFETY: the structure begins as `union bpf_attr` does, its size is given, and what it points to
    // lives until the kernel has copied it. The kernel verifies the program.
    let program =
        unsafe { libc::syscall(libc::SYS_bpf, LOAD, &raw const load, size_of_val(&load)) };
    if program < 0 {
        return Err(io::Error::last_os_error());
    }
    let program = RawFd::try_from(program).map_err(io::Error::other)?;
    // SAFETY: the kernel has opened it, and nobody else owns it.
    let program = unsafe { OwnedFd::from_raw_fd(program) };
    let number = |fd: RawFd| u32::try_from(fd).map_err(io::Error::other);
    let attach = AttachParameters {
        target: number(cgroup.as_raw_fd())?,
        program: number(program.as_raw_fd())?,
        kind: ATTACH_TYPE,
        flags: ALLOW_MULTI,
    };
    // SAFETY: as above, without pointers.
    let done = unsafe {
        libc::syscall(
            libc::SYS_bpf,
            ATTACH,
            &raw const attach,
            size_of_val(&attach),
        )
    };
    match done {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::os::fd::AsFd as _;

    #[test]
    fn what_is_no_control_group_is_refused() {
        // r0 = 1; exit.
        let allow = [0x0000_0001_0000_00b7, 0x95];
        assert!(attach(File::open("/").unwrap().as_fd(), &allow).is_err());
    }
}
