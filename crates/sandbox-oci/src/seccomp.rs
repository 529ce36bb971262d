//! A container's filter of system calls, from its specification to a program of the kernel.
//!
//! A filter gives an action for each architecture's calls; the same calls have other numbers there. Where several
//! rules are about one call, this is what libseccomp, and so runc, makes of them: the first rule without conditions
//! decides alone; rules with conditions decide where these hold. If two of them could hold at once and want different
//! actions, the filter is refused.

mod calls;
mod overlap;
mod program;

use std::collections::BTreeMap;

use oci_spec::runtime::{
    Arch as NamedArch, LinuxSeccomp, LinuxSeccompAction, LinuxSeccompArg, LinuxSyscall,
};
use rawio::child::Instruction;

use crate::reasons::Reasons;
use calls::Arch;
use program::{Decision, Section};

/// A filter, ready for the kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Filter {
    /// Its BPF program.
    pub instructions: Vec<Instruction>,
}

/// What the kernel does with a call: a return value of a filter.
pub(crate) type Action = u32;

pub(crate) const ALLOW: Action = 0x7fff_0000;
pub(crate) const KILL_THREAD: Action = 0;
const ERRNO: Action = 0x0005_0000;
const EPERM: u32 = 1;
const ENOSYS: u32 = 38;

/// The kernel takes no longer program.
const INSTRUCTIONS_MAX: usize = 4096;

impl Filter {
    /// Translates a filter. `None` if it cannot be honoured; `reasons` has the reasons.
    pub(crate) fn new(seccomp: &LinuxSeccomp, reasons: &mut Reasons) -> Option<Self> {
        let before = reasons.len();
        let default = action(
            seccomp.default_action(),
            seccomp.default_errno_ret(),
            reasons,
        );
        let archs = archs(seccomp, reasons);
        let rules = seccomp.syscalls().as_deref().unwrap_or_default();
        unknown_calls(rules, &archs, default, reasons);
        let sections: Vec<_> = archs
            .iter()
            .map(|arch| section(*arch, rules, default, reasons))
            .collect();
        if reasons.len() > before {
            return None;
        }
        let instructions = program::whole(&sections);
        if instructions
            .as_ref()
            .is_none_or(|all| all.len() > INSTRUCTIONS_MAX)
        {
            reasons.push("linux.seccomp is too long for one program".to_owned());
            return None;
        }
        instructions.map(|instructions| Self { instructions })
    }
}

fn action(named: LinuxSeccompAction, errno: Option<u32>, reasons: &mut Reasons) -> Action {
    use LinuxSeccompAction as Named;
    let errno = errno.unwrap_or(EPERM);
    match named {
        Named::ScmpActAllow => ALLOW,
        Named::ScmpActKill | Named::ScmpActKillThread => KILL_THREAD,
        Named::ScmpActKillProcess => 0x8000_0000,
        Named::ScmpActTrap => 0x0003_0000,
        Named::ScmpActLog => 0x7ffc_0000,
        Named::ScmpActErrno if errno <= 4095 => ERRNO | errno,
        Named::ScmpActErrno | Named::ScmpActTrace | Named::ScmpActNotify => {
            reasons.push(format!("linux.seccomp action {named:?} {errno}"));
            KILL_THREAD
        }
    }
}

/// Returns whether an action lets a call happen.
fn lets(action: Action) -> bool {
    matches!(action, ALLOW | 0x7ffc_0000)
}

fn archs(seccomp: &LinuxSeccomp, reasons: &mut Reasons) -> Vec<Arch> {
    let mut archs = vec![Arch::NATIVE];
    for named in seccomp.architectures().iter().flatten() {
        let arch = match named {
            NamedArch::ScmpArchNative => Arch::NATIVE,
            NamedArch::ScmpArchX86_64 => Arch::X86_64,
            NamedArch::ScmpArchX86 => Arch::X86,
            NamedArch::ScmpArchX32 => Arch::X32,
            NamedArch::ScmpArchAarch64 => Arch::Aarch64,
            NamedArch::ScmpArchArm => Arch::Arm,
            other => {
                reasons.push(format!("linux.seccomp.architectures {other:?}"));
                continue;
            }
        };
        if !archs.contains(&arch) {
            archs.push(arch);
        }
    }
    archs
}

/// A call that no table knows may be left out of what is allowed, but not out of what is refused.
fn unknown_calls(rules: &[LinuxSyscall], archs: &[Arch], default: Action, reasons: &mut Reasons) {
    for rule in rules {
        let refuses = lets(default) && rule.action() != LinuxSeccompAction::ScmpActAllow;
        for name in rule.names() {
            let known = archs.iter().any(|arch| arch.number(name).is_some());
            if refuses && !known {
                reasons.push(format!(
                    "linux.seccomp refuses {name}, which has no known number"
                ));
            }
        }
    }
}

/// What rules say of one call.
#[derive(Debug, Default)]
struct Of {
    /// The action of the first rule without conditions.
    always: Option<Action>,
    /// Conditions that must all hold, and the action that is taken then.
    alternatives: Vec<(Vec<LinuxSeccompArg>, Action)>,
}

fn section(arch: Arch, rules: &[LinuxSyscall], default: Action, reasons: &mut Reasons) -> Section {
    let mut of_calls: BTreeMap<u32, Of> = BTreeMap::new();
    let mut socketcall = Vec::new();
    for rule in rules {
        let action = action(rule.action(), rule.errno_ret(), reasons);
        let args = rule.args().as_deref().unwrap_or_default();
        for name in rule.names() {
            let Some(number) = arch.number(name) else {
                continue;
            };
            if let Some(door) = arch.common_door(name) {
                socketcall.push((door, action, name.clone()));
            }
            let of = of_calls.entry(number).or_default();
            add(of, action, args, name, reasons);
        }
    }
    for (number, of) in &of_calls {
        if of.always.is_none() && overlap::is_ambiguous(&of.alternatives) {
            reasons.push(format!(
                "linux.seccomp has several actions for call {number} at once"
            ));
        }
    }
    // Calls that can be made through another one, which no rule decides: it would have to do what is said of them.
    for (door, action, name) in socketcall {
        let decided = of_calls.get(&door).and_then(|of| of.always);
        if decided.is_none() && action != default {
            reasons.push(format!(
                "linux.seccomp: {name} of 32-bit programs is also another call"
            ));
        }
    }
    // As with runc: what is newer than the newest call of the rules is not refused, but not there, so that
    // libraries fall back to what is older.
    let beyond = of_calls.keys().max().copied().filter(|_| !lets(default));
    Section {
        arch,
        default,
        beyond: beyond.map(|most| (most, ERRNO | ENOSYS)),
        calls: of_calls
            .into_iter()
            .map(|(number, of)| (number, decision(of, default)))
            .collect(),
    }
}

fn decision(of: Of, default: Action) -> Decision {
    match of.always {
        Some(action) => Decision::Always(action),
        None => Decision::If {
            alternatives: of.alternatives,
            otherwise: default,
        },
    }
}

fn add(of: &mut Of, action: Action, args: &[LinuxSeccompArg], name: &str, reasons: &mut Reasons) {
    if args.is_empty() {
        of.always.get_or_insert(action);
        return;
    }
    if args.iter().any(|arg| arg.index() > 5) {
        reasons.push(format!("linux.seccomp: {name} has no such argument"));
        return;
    }
    let twice = |arg: &LinuxSeccompArg| {
        args.iter()
            .filter(|other| other.index() == arg.index())
            .count()
            > 1
    };
    // As with runc: conditions on one argument are alternatives, those on several must all hold.
    match args.iter().any(twice) {
        true => {
            let each = args.iter().map(|arg| (vec![*arg], action));
            of.alternatives.extend(each);
        }
        false => of.alternatives.push((args.to_vec(), action)),
    }
}

#[cfg(test)]
mod tests;
