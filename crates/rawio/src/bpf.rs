//! Programs of the kernel's virtual machine (BPF), which it verifies and runs.

#![expect(unsafe_code, reason = "neither std nor nix has bpf")]

use std::io;
use std::os::fd::{AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd, RawFd};

/// `BPF_PROG_LOAD` and `BPF_PROG_ATTACH`.
const LOAD: libc::c_int = 5;
const ATTACH: libc::c_int = 8;
/// `BPF_CGROUP_DEVICE`.
const DEVICES_OF_CGROUP: u32 = 6;
/// `BPF_F_ALLOW_MULTI`: those of groups above are asked, too.
const ALLOW_MULTI: u32 = 2;

/// What a program decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Kind {
    /// What becomes of a packet: `BPF_PROG_TYPE_SCHED_CLS`.
    Packets = 3,
    /// Whether a device may be opened: `BPF_PROG_TYPE_CGROUP_DEVICE`.
    Devices = 15,
}

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

/// Loads a program, whose instructions are given in the kernel's format.
///
/// # Errors
/// If the kernel refuses the program, or does not support such programs (`EINVAL`).
pub fn load(kind: Kind, instructions: &[u64]) -> io::Result<OwnedFd> {
    let load = LoadParameters {
        kind: kind as u32,
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
    Ok(unsafe { OwnedFd::from_raw_fd(program) })
}

/// Has a program decide which devices processes in a control group of version 2 may open and create. It stays as long as
/// the group.
///
/// # Errors
/// As [`load`], or if it is no such group.
pub fn filter_devices(cgroup: BorrowedFd<'_>, instructions: &[u64]) -> io::Result<()> {
    let program = load(Kind::Devices, instructions)?;
    let number = |fd: RawFd| u32::try_from(fd).map_err(io::Error::other);
    let attach = AttachParameters {
        target: number(cgroup.as_raw_fd())?,
        program: number(program.as_raw_fd())?,
        kind: DEVICES_OF_CGROUP,
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

/// Encodes an instruction: its code, its registers, and what it jumps over or is about.
pub fn instruction(code: u8, to: u8, from: u8, offset: u16, value: u32) -> u64 {
    let registers = u64::from(from) << 4 | u64::from(to);
    u64::from(code) | registers << 8 | u64::from(offset) << 16 | u64::from(value) << 32
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::os::fd::AsFd as _;

    #[test]
    fn what_is_no_control_group_is_refused() {
        // r0 = 1; exit.
        let allow = [instruction(0xb7, 0, 0, 0, 1), instruction(0x95, 0, 0, 0, 0)];
        assert_eq!(allow, [0x0000_0001_0000_00b7, 0x95]);
        assert!(filter_devices(File::open("/").unwrap().as_fd(), &allow).is_err());
    }
}
