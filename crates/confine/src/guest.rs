//! System calls that an untrusted program must not make, by seccomp.
//!
//! Our own processes have lists of their calls, and all others are refused (`calls`). For an
//! unknown program there is no such list. Here all calls are allowed except those that reach out of a
//! sandbox or into parts of the kernel that ordinary programs do not need:
//!
//! - calls that only an attacker makes **kill** the program;
//! - calls that a program may try and can do without are **refused with `EPERM`**, or with `ENOSYS` if libc
//!   has an older call for it, whose arguments can be checked.
//!
//! The filters are for processes that are started with them, so they are returned and not applied.

mod refusal;

use std::os::fd::OwnedFd;

use landlock::{Ruleset, RulesetAttr as _, Scope};
use nix::errno::Errno;
use seccompiler::{BpfProgram, SeccompAction, sock_filter};

use crate::ConfineError;
use crate::calls::{lists, program};

/// One instruction of a filter: code, jumps if true and if false, operand.
pub type Instruction = (u16, u8, u8, u32);

/// Returns the filters for a program that its starter can have as well, so that they
/// are inherited: loading a filter takes the kernel longer than most other steps of a start.
///
/// # Errors
/// If a list does not compile.
pub fn inherited() -> Result<Vec<Vec<Instruction>>, ConfineError> {
    let refused = SeccompAction::Errno(Errno::EPERM as u32);
    let lists = [
        (&lists::GUEST_KILLED, SeccompAction::KillProcess),
        (&lists::GUEST_REFUSED_ALWAYS, refused),
    ];
    let mut filters = Vec::new();
    for (list, action) in lists {
        filters.push(convert(program(
            &[list.calls],
            action,
            SeccompAction::Allow,
        )?));
    }
    #[cfg(target_arch = "x86_64")]
    filters.push(without_x32());
    Ok(filters)
}

/// Returns the filter that keeps a program from making namespaces and from mounting. It comes after
/// those of [`inherited`], when all of that has been done.
///
/// # Errors
/// If the list does not compile.
pub fn own() -> Result<Vec<Instruction>, ConfineError> {
    // Its flags are in memory, which no filter sees: libc makes `clone` instead.
    refusal::of(lists::GUEST_REFUSED.calls, &[SYS_CLONE3])
}

/// `clone3(2)`, the same number on all processors.
const SYS_CLONE3: u32 = 435;

/// Loads the number of the call (`BPF_LD | BPF_W | BPF_ABS` at 0 of `seccomp_data`).
const LOAD_NUMBER: Instruction = (0x20, 0, 0, 0);
/// `BPF_JMP | BPF_JEQ | BPF_K`.
const IF_EQUAL: u16 = 0x15;
/// `BPF_RET | BPF_K` with `SECCOMP_RET_ALLOW`.
const ALLOW: Instruction = (0x06, 0, 0, 0x7fff_0000);
/// `BPF_RET | BPF_K` with `SECCOMP_RET_ERRNO | ENOSYS`.
const MISSING: Instruction = (0x06, 0, 0, 0x0005_0000 | 38);

/// Returns a Landlock ruleset that keeps a process from the abstract unix sockets of others and from
/// signalling them, or `None` if the kernel does not support it (Linux before 6.12). It is for a process
/// that shares the network of the machine.
///
/// # Errors
/// If the kernel refuses.
pub fn scope() -> Result<Option<OwnedFd>, ConfineError> {
    let ruleset = Ruleset::default()
        .scope(Scope::AbstractUnixSocket | Scope::Signal)?
        .create()?;
    Ok(ruleset.into())
}

fn convert(program: BpfProgram) -> Vec<Instruction> {
    let tuple = |at: sock_filter| (at.code, at.jt, at.jf, at.k);
    program.into_iter().map(tuple).collect()
}

/// Refuses the calls of the x32 interface: the same calls by other numbers, which a list of what
/// is refused does not have. Few kernels know them.
#[cfg(target_arch = "x86_64")]
fn without_x32() -> Vec<Instruction> {
    /// `BPF_JMP | BPF_JGE | BPF_K` over `__X32_SYSCALL_BIT`.
    const IF_X32: Instruction = (0x35, 0, 1, 0x4000_0000);
    vec![LOAD_NUMBER, IF_X32, MISSING, ALLOW]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filters_compile_and_are_as_short_as_the_kernel_wants_them() {
        let mut filters = inherited().unwrap();
        filters.push(own().unwrap());
        assert!(
            filters
                .iter()
                .all(|filter| (1..4096).contains(&filter.len()))
        );
    }
}
