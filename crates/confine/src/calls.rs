//! The system calls that a process may make, by seccomp.
//!
//! The lists (`calls/lists.rs`) have a reason for each call. There are three kinds:
//!
//! - *Listed* calls are allowed, some with certain arguments only.
//! - Calls that only an attacker makes, such as executing a program or mounting, **kill** the
//!   process. Our code never makes them after the start, and an attacker gets no second try; the
//!   mounts are taken over by a successor.
//! - Every other call is **refused with `ENOSYS`**, as by a kernel that does not support it. Killing
//!   would end the mounts if a new C library tries a new call first, and `EPERM`
//!   would keep it from falling back to the old one. A call that is missing in the list must not stay
//!   unnoticed: tests have it kill the process ([`Unlisted::Kills`]).

pub(crate) mod lists;

use std::collections::BTreeMap;

use nix::errno::Errno;
use nix::unistd::getpid;
use seccompiler::{
    BackendError, BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition,
    SeccompFilter, SeccompRule, TargetArch, apply_filter, apply_filter_all_threads,
};

use crate::ConfineError;
use lists::{Argument, Call, Is};

/// What a process does with its system calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Set {
    /// Serves mounts that another process makes and unmounts.
    Serve,
    /// The same, and uses a service over connections that another process makes.
    ServeAndAsk,
    /// The same, and uses a service on the network.
    ServeAndConnect,
    /// The same, with a service that listens in the file system.
    ServeAndCall,
    /// Attaches and unmounts mounts, for other processes.
    Mount,
}

/// What becomes of a call that is in no list.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Unlisted {
    /// It fails with `ENOSYS`.
    #[default]
    Refused,
    /// It kills the process with `SIGSYS`, so that a test sees it.
    Kills,
}

impl Unlisted {
    const fn action(self) -> SeccompAction {
        match self {
            Self::Refused => SeccompAction::Errno(Errno::ENOSYS as u32),
            Self::Kills => SeccompAction::KillProcess,
        }
    }
}

/// Allows the process, with all threads that it has and will have, only the calls of a set, for good.
///
/// # Errors
/// If the kernel refuses, or a thread has a filter of its own.
pub fn allow_only(set: Set, unlisted: Unlisted) -> Result<(), ConfineError> {
    let otherwise = unlisted.action();
    let groups = match set {
        Set::Serve => lists::SERVE.to_vec(),
        Set::ServeAndAsk => [lists::SERVE, lists::ASK].concat(),
        Set::ServeAndConnect => [
            lists::SERVE,
            lists::ASK,
            &[&lists::CONNECT, &lists::NAME_CACHE],
        ]
        .concat(),
        Set::ServeAndCall => [lists::SERVE, lists::ASK, &[&lists::CONNECT, &lists::CALL]].concat(),
        Set::Mount => lists::MOUNT.to_vec(),
    };
    let mut allowed: Vec<&[Call]> = groups.iter().map(|group| group.calls).collect();
    allowed.push(lists::REPLACED.calls);
    let unknown: &[&[Call]] = match set {
        Set::ServeAndConnect => &[lists::REPLACED.calls, lists::NAME_CACHE.calls],
        Set::Serve | Set::ServeAndAsk | Set::ServeAndCall | Set::Mount => &[lists::REPLACED.calls],
    };
    let killing: &[&[Call]] = match set {
        Set::Serve | Set::ServeAndAsk | Set::ServeAndConnect | Set::ServeAndCall => &[
            lists::NEVER.calls,
            lists::RINGS.calls,
            lists::ENGINE.calls,
            lists::PROGRAMS.calls,
        ],
        Set::Mount => &[
            lists::NEVER.calls,
            lists::RINGS.calls,
            lists::PROGRAMS.calls,
        ],
    };
    // The strictest of all filters decides, so the order does not matter. Each is a program of
    // its own because a program has one answer for what it lists and one for the rest.
    let filters = [
        program(&allowed, SeccompAction::Allow, otherwise)?,
        program(
            unknown,
            SeccompAction::Errno(Errno::ENOSYS as u32),
            SeccompAction::Allow,
        )?,
        program(killing, SeccompAction::KillProcess, SeccompAction::Allow)?,
    ];
    // The strictest last: the two before it would be refused by it.
    for filter in filters.iter().rev() {
        apply(filter)?;
    }
    let calls: usize = allowed.iter().map(|calls| calls.len()).sum();
    log::debug!("confined to {calls} system calls; others are {unlisted:?}");
    Ok(())
}

/// Whether a process executes programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Programs {
    /// It does.
    Executed,
    /// It does not, and is killed if it tries.
    Never,
}

/// Whether a process uses io_uring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rings {
    /// It does. What it has a ring do is seen by no filter of system calls.
    Used,
    /// It uses those that it has made, which are restricted to what it needs, and is killed if it makes another one, or changes
    /// one.
    Made,
    /// Programs of others that it executes may try, are refused with `ENOSYS`, and do without.
    Refused,
    /// It does not, and is killed if it tries.
    Never,
}

/// Makes calls that only an attacker makes kill the process, with all threads that it has and will have,
/// and allows all others: for processes that mount, whose calls cannot be listed.
///
/// # Errors
/// As [`allow_only`].
pub fn deny_intrusion(programs: Programs, rings: Rings) -> Result<(), ConfineError> {
    let mut denied: Vec<&[Call]> = vec![lists::NEVER.calls];
    if programs == Programs::Never {
        denied.push(lists::PROGRAMS.calls);
    }
    match rings {
        Rings::Used => {}
        Rings::Made => denied.push(lists::NEW_RINGS.calls),
        Rings::Refused => refuse(&[lists::RINGS.calls])?,
        Rings::Never => denied.push(lists::RINGS.calls),
    }
    apply(&program(
        &denied,
        SeccompAction::KillProcess,
        SeccompAction::Allow,
    )?)
}

/// The sockets that a process makes whose calls cannot be listed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sockets {
    /// None: it uses those that it is given, and pairs of streams.
    Given,
    /// The same, and those of the network. None by which a name on this machine could be called, such as Docker's.
    OfNetwork,
}

/// Makes mounting and the like kill the process, in addition to [`deny_intrusion`], and has other sockets than these, and
/// changes of modes and owners by names, refused with `ENOSYS`, with all threads that it has and will have.
///
/// # Errors
/// As [`allow_only`].
pub fn deny_mounting(sockets: Sockets) -> Result<(), ConfineError> {
    let refused: &[&[Call]] = match sockets {
        Sockets::Given => &[lists::ANY_SOCKET.calls, lists::DATAGRAM_PAIR.calls],
        Sockets::OfNetwork => &[lists::NAME_CACHE.calls, lists::DATAGRAM_PAIR.calls],
    };
    refuse(refused)?;
    refuse(&[
        lists::MODES.calls,
        lists::WIDER_MODES.calls,
        #[cfg(target_arch = "x86_64")]
        lists::OLDER_MODES.calls,
    ])?;
    apply(&program(
        &[lists::ENGINE.calls],
        SeccompAction::KillProcess,
        SeccompAction::Allow,
    )?)
}

/// Has calls fail with `ENOSYS`.
fn refuse(calls: &[&[Call]]) -> Result<(), ConfineError> {
    apply(&program(
        calls,
        SeccompAction::Errno(Errno::ENOSYS as u32),
        SeccompAction::Allow,
    )?)
}

/// Allows the calling thread, and the program of the system that it starts, only the calls of reading files and writing files: no
/// process of its own but by executing, no socket, no mode, owner or attribute of a file, and no ring. The program is killed for
/// what only an attacker does.
///
/// # Errors
/// As [`allow_only`].
pub fn allow_program() -> Result<(), ConfineError> {
    let allowed: Vec<&[Call]> = lists::CONVERT.iter().map(|group| group.calls).collect();
    let killing = [lists::NEVER.calls, lists::ENGINE.calls];
    // In the order of [`allow_only`].
    apply_by(
        &program(&killing, SeccompAction::KillProcess, SeccompAction::Allow)?,
        apply_filter,
    )?;
    // Of another release it may try others: rings and `clone3` are refused in this way, too.
    let otherwise = Unlisted::Refused.action();
    apply_by(
        &program(&allowed, SeccompAction::Allow, otherwise)?,
        apply_filter,
    )
}

/// Puts a filter over all threads.
fn apply(filter: &BpfProgram) -> Result<(), ConfineError> {
    apply_by(filter, apply_filter_all_threads)
}

/// Puts a filter over some threads. A kernel without filters is worth a warning.
fn apply_by(
    filter: &BpfProgram,
    apply: fn(seccompiler::BpfProgramRef<'_>) -> Result<(), seccompiler::Error>,
) -> Result<(), ConfineError> {
    match apply(filter) {
        Err(seccompiler::Error::Seccomp(error))
            if [Errno::EINVAL, Errno::ENOSYS]
                .iter()
                .any(|errno| error.raw_os_error() == Some(*errno as i32)) =>
        {
            log::warn!("this kernel filters no system calls: the process may make any");
            Ok(())
        }
        applied => Ok(applied?),
    }
}

/// Compiles lists of calls: `listed` is the action for them, `otherwise` for all others.
pub(crate) fn program(
    lists: &[&[Call]],
    listed: SeccompAction,
    otherwise: SeccompAction,
) -> Result<BpfProgram, BackendError> {
    let mut rules: BTreeMap<i64, Vec<SeccompRule>> = BTreeMap::new();
    for call in lists.iter().copied().flatten() {
        let ways = call.only.iter().map(|argument| rule(*argument));
        let ways = ways.collect::<Result<Vec<_>, _>>()?;
        // A call that is in two lists is allowed in the ways of both.
        rules.entry(call.number).or_default().extend(ways);
    }
    let arch = TargetArch::try_from(std::env::consts::ARCH)?;
    SeccompFilter::new(rules, otherwise, listed, arch)?.try_into()
}

/// One way in which a call is meant.
fn rule(argument: Argument) -> Result<SeccompRule, BackendError> {
    let condition = |index, operator, value| {
        SeccompCondition::new(index, SeccompCmpArgLen::Dword, operator, value)
    };
    let Argument { index, is } = argument;
    if let Is::NoneOf(values) = is {
        let other = |value: &u64| condition(index, SeccompCmpOp::Ne, *value);
        return SeccompRule::new(values.iter().map(other).collect::<Result<_, _>>()?);
    }
    let mut conditions = vec![match is {
        Is::Exactly(value) => condition(index, SeccompCmpOp::Eq, value),
        Is::With(bits) => condition(index, SeccompCmpOp::MaskedEq(bits), bits),
        Is::Without(bits) => condition(index, SeccompCmpOp::MaskedEq(bits), 0),
        Is::ThisProcess => {
            let own = u64::from(getpid().as_raw().unsigned_abs());
            condition(index, SeccompCmpOp::Eq, own)
        }
        Is::WithBut(bits, _) => condition(index, SeccompCmpOp::MaskedEq(bits), bits),
        Is::Unix(_) | Is::NoneOf(_) => condition(index, SeccompCmpOp::Eq, lists::AF_UNIX),
    }?];
    if let Is::WithBut(_, value) = is {
        conditions.push(condition(index, SeccompCmpOp::Ne, value)?);
    }
    if let Is::Unix(kind) = is {
        let operator = SeccompCmpOp::MaskedEq(lists::SOCK_KIND);
        conditions.push(condition(index + 1, operator, kind)?);
    }
    SeccompRule::new(conditions)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn every_list_compiles() {
        let killing = [
            &lists::NEVER,
            &lists::RINGS,
            &lists::NEW_RINGS,
            &lists::ENGINE,
            &lists::PROGRAMS,
        ];
        let allowed = lists::SERVE
            .iter()
            .chain(lists::MOUNT)
            .chain(lists::CONVERT);
        let refused = [
            &lists::NAME_CACHE,
            &lists::ANY_SOCKET,
            &lists::DATAGRAM_PAIR,
            &lists::MODES,
            &lists::WIDER_MODES,
        ];
        let local = [&[&lists::CONNECT, &lists::CALL][..], &refused].concat();
        for group in allowed.chain(lists::ASK).chain(&local).chain(&killing) {
            program(&[group.calls], SeccompAction::Allow, SeccompAction::Trap).unwrap();
        }
    }

    /// No ways mean any way: such a call in one list would open what another one narrows.
    #[test]
    fn what_the_network_adds_to_a_call_is_a_way_and_not_all_of_it() {
        let known: HashSet<_> = (lists::SERVE.iter().flat_map(|group| group.calls))
            .map(|call| (call.number, call.only.is_empty()))
            .collect();
        let added = lists::ASK.iter().chain(&[&lists::CONNECT, &lists::CALL]);
        for call in added.flat_map(|group| group.calls) {
            let any = call.only.is_empty();
            assert!(!known.contains(&(call.number, !any)), "{}", call.name);
            assert!(
                !any || !known.contains(&(call.number, true)),
                "{} twice",
                call.name
            );
        }
    }

    #[test]
    fn a_program_of_the_system_may_make_no_call_that_kills_it() {
        let mut seen = HashSet::new();
        let killing = [
            &lists::NEVER,
            &lists::RINGS,
            &lists::ENGINE,
            &lists::REPLACED,
        ];
        for group in lists::CONVERT.iter().chain(&killing) {
            for call in group.calls {
                assert!(seen.insert(call.number), "{} twice", call.name);
            }
        }
    }

    #[test]
    fn no_call_is_in_two_lists() {
        let always = [
            &lists::REPLACED,
            &lists::NEVER,
            &lists::RINGS,
            &lists::PROGRAMS,
        ];
        // Who mounts makes some calls of a list that kills others.
        for groups in [
            [lists::SERVE, &[&lists::ENGINE]].concat(),
            lists::MOUNT.to_vec(),
        ] {
            let mut seen = HashSet::new();
            for group in groups.iter().chain(&always) {
                assert!(!group.why.is_empty());
                for call in group.calls {
                    assert!(seen.insert(call.number), "{} twice", call.name);
                }
            }
        }
    }
}
