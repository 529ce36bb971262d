//! What a program of somebody else may not ask of the kernel, by seccomp.
//!
//! Our own processes have lists of what they do, and all else is refused (`calls`). A program that
//! nobody knows cannot have such a list. Here everything is allowed but what reaches out of a
//! sandbox or into parts of the kernel that no ordinary program needs:
//!
//! - what only an intruder does **kills** the program;
//! - what a program may try and do without is **refused with `EPERM`**, or with `ENOSYS` if libc
//!   has an older call for it, whose arguments can be checked.
//!
//! The filters are for a process that is started with them, so they are returned and not applied.

use std::os::fd::OwnedFd;

use landlock::{Ruleset, RulesetAttr as _, Scope};
use nix::errno::Errno;
use seccompiler::{BpfProgram, SeccompAction, sock_filter};

use crate::ConfineError;
use crate::calls::lists::{GUEST_KILLED, GUEST_MISSING, GUEST_REFUSED, GUEST_REFUSED_ZYGOTE};
use crate::calls::program;

/// One instruction of a filter: code, jumps if true and if false, operand.
pub type Instruction = (u16, u8, u8, u32);

/// What a program is to the one who starts it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Guest {
    /// It makes no namespaces and mounts nothing.
    Program,
    /// It starts sandboxes itself, within a user namespace that gives it no rights outside.
    Zygote,
}

/// Returns the filters for a guest, in the order in which they are to be applied.
///
/// # Errors
/// If a list does not compile.
pub fn filters(guest: Guest) -> Result<Vec<Vec<Instruction>>, ConfineError> {
    let refused = SeccompAction::Errno(Errno::EPERM as u32);
    let missing = SeccompAction::Errno(Errno::ENOSYS as u32);
    let allowed = SeccompAction::Allow;
    let killed = program(
        &[GUEST_KILLED.calls],
        SeccompAction::KillProcess,
        allowed.clone(),
    )?;
    let mut filters = vec![convert(killed)];
    match guest {
        Guest::Program => {
            let calls = [GUEST_REFUSED_ZYGOTE.calls, GUEST_REFUSED.calls];
            filters.push(convert(program(&calls, refused, allowed.clone())?));
            filters.push(convert(program(&[GUEST_MISSING.calls], missing, allowed)?));
        }
        Guest::Zygote => {
            let calls = [GUEST_REFUSED_ZYGOTE.calls];
            filters.push(convert(program(&calls, refused, allowed)?));
        }
    }
    #[cfg(target_arch = "x86_64")]
    filters.push(without_x32());
    Ok(filters)
}

/// Returns a Landlock ruleset that keeps a process from the abstract unix sockets of others and from
/// signalling them, or nothing if the kernel does not know it (Linux before 6.12). It is for a process
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
    /// Loads the number of the call (`BPF_LD | BPF_W | BPF_ABS` at 0 of `seccomp_data`).
    const LOAD_NUMBER: Instruction = (0x20, 0, 0, 0);
    /// `BPF_JMP | BPF_JGE | BPF_K` over `__X32_SYSCALL_BIT`.
    const IF_X32: Instruction = (0x35, 0, 1, 0x4000_0000);
    /// `BPF_RET | BPF_K` with `SECCOMP_RET_ERRNO | ENOSYS`, and with `SECCOMP_RET_ALLOW`.
    const MISSING: Instruction = (0x06, 0, 0, 0x0005_0000 | 38);
    const ALLOW: Instruction = (0x06, 0, 0, 0x7fff_0000);
    vec![LOAD_NUMBER, IF_X32, MISSING, ALLOW]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filters_compile_and_a_zygote_may_more() {
        let program = filters(Guest::Program).unwrap();
        let zygote = filters(Guest::Zygote).unwrap();
        let len = |filters: &[Vec<Instruction>]| filters.iter().map(Vec::len).sum::<usize>();
        assert!(len(&program) > len(&zygote));
        // The kernel takes at most 4096 instructions a program.
        assert!(
            program
                .iter()
                .all(|filter| (1..4096).contains(&filter.len()))
        );
    }
}
