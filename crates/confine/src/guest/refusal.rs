//! A short filter that refuses calls with `EPERM`, or as missing.
//!
//! Each sandbox loads one anew. The kernel translates it then, and runs it once for each number of a call to know which are
//! always allowed, so its length is a part of each start, and how many instructions a call that is allowed meets is a larger one:
//! the number is searched for by halves. The filter that `seccompiler` makes has some eight instructions for each flag of a
//! call; here one instruction tests all of them.

use std::collections::BTreeMap;

use crate::ConfineError;
use crate::calls::lists::{Argument, Call, Is};

use super::{ALLOW, IF_EQUAL, Instruction, LOAD_NUMBER, MISSING};

/// Loads the architecture of the call, which is at 4 of `seccomp_data`.
const LOAD_ARCHITECTURE: Instruction = (0x20, 0, 0, 4);
/// `BPF_RET | BPF_K` with `SECCOMP_RET_KILL_PROCESS`.
const KILL: Instruction = (0x06, 0, 0, 0x8000_0000);
/// `BPF_RET | BPF_K` with `SECCOMP_RET_ERRNO | EPERM`.
const REFUSE: Instruction = (0x06, 0, 0, 0x0005_0000 | 1);
/// `BPF_JMP | BPF_JSET | BPF_K`: whether one of these bits is set.
const IF_ANY: u16 = 0x45;

/// `AUDIT_ARCH_X86_64` and `AUDIT_ARCH_AARCH64` of linux/audit.h.
const ARCHITECTURE: u32 = match cfg!(target_arch = "aarch64") {
    true => 0xc000_00b7,
    false => 0xc000_003e,
};

/// `BPF_JMP | BPF_JGE | BPF_K`.
const IF_NOT_BELOW: u16 = 0x35;

/// What happens to a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Allow,
    Refuse,
    /// As if the kernel did not know it.
    Miss,
    /// Refused with one of these flags, which an argument has.
    RefuseWith(u8, u32),
}

impl Verdict {
    fn instructions(self) -> Vec<Instruction> {
        match self {
            Self::Allow => vec![ALLOW],
            Self::Refuse => vec![REFUSE],
            Self::Miss => vec![MISSING],
            Self::RefuseWith(index, flags) => vec![
                // The lower half of an argument, which are at 16 of `seccomp_data`.
                (0x20, 0, 0, 16 + 8 * u32::from(index)),
                (IF_ANY, 0, 1, flags),
                REFUSE,
                ALLOW,
            ],
        }
    }
}

/// Returns a filter that refuses these calls, or those of them with one of their flags, says that `missing` are not there, and
/// allows all others.
///
/// # Errors
/// If a call has conditions of another kind.
pub(super) fn of(calls: &[Call], missing: &[u32]) -> Result<Vec<Instruction>, ConfineError> {
    let mut verdicts: BTreeMap<u32, Verdict> = BTreeMap::new();
    for call in calls {
        let number = u32::try_from(call.number).map_err(|_| unknown(call))?;
        let verdict = match flags_of(call)? {
            None => Verdict::Refuse,
            Some((index, flags)) => Verdict::RefuseWith(index, flags),
        };
        // The second one of a number would hide the first.
        if verdicts.insert(number, verdict).is_some() {
            return Err(unknown(call));
        }
    }
    for number in missing {
        if verdicts.insert(*number, Verdict::Miss).is_some() {
            return Err(ConfineError::Condition(i64::from(*number)));
        }
    }
    let mut filter = vec![
        LOAD_ARCHITECTURE,
        (IF_EQUAL, 1, 0, ARCHITECTURE),
        KILL,
        LOAD_NUMBER,
    ];
    filter.extend(search(&ranges(&verdicts))?);
    Ok(filter)
}

/// Ranges of numbers by their first ones, in order and from 0 on, with what happens to the calls of each.
fn ranges(verdicts: &BTreeMap<u32, Verdict>) -> Vec<(u32, Verdict)> {
    let mut ranges = vec![(0, Verdict::Allow)];
    let mut add = |first: u32, verdict: Verdict| match ranges.last_mut() {
        Some(last) if last.1 == verdict => {}
        Some(last) if last.0 == first => last.1 = verdict,
        _ => ranges.push((first, verdict)),
    };
    for (number, verdict) in verdicts {
        add(*number, *verdict);
        let next = number.saturating_add(1);
        if !verdicts.contains_key(&next) {
            add(next, Verdict::Allow);
        }
    }
    ranges
}

/// Finds the range of the number that is loaded.
fn search(ranges: &[(u32, Verdict)]) -> Result<Vec<Instruction>, ConfineError> {
    let (below, from) = ranges.split_at(ranges.len() / 2);
    let [(first, verdict), ..] = from else {
        return Ok(Vec::new());
    };
    if below.is_empty() {
        return Ok(verdict.instructions());
    }
    let below = search(below)?;
    let skipped =
        u8::try_from(below.len()).map_err(|_| ConfineError::Condition(i64::from(*first)))?;
    let mut found = vec![(IF_NOT_BELOW, skipped, 0, *first)];
    found.extend(below);
    found.extend(search(from)?);
    Ok(found)
}

/// The flags of which each has a call refused, and which argument has them.
fn flags_of(call: &Call) -> Result<Option<(u8, u32)>, ConfineError> {
    let mut all: Option<(u8, u32)> = None;
    for Argument { index, is } in call.only {
        let Is::With(flag) = is else {
            return Err(unknown(call));
        };
        let flag = u32::try_from(*flag).map_err(|_| unknown(call))?;
        // More than one bit would have to be set together.
        if !flag.is_power_of_two() || all.is_some_and(|(of, _)| of != *index) {
            return Err(unknown(call));
        }
        all = Some((*index, all.map_or(0, |(_, flags)| flags) | flag));
    }
    Ok(all)
}

fn unknown(call: &Call) -> ConfineError {
    ConfineError::Condition(call.number)
}

#[cfg(test)]
mod tests {
    use seccompiler::SeccompAction;

    use super::super::convert;
    use super::*;
    use crate::calls::{lists, program};

    /// What the kernel returns for a call.
    fn run(filter: &[Instruction], architecture: u32, number: u32, argument: u32) -> u32 {
        run_counted(filter, architecture, number, argument).0
    }

    /// The same, and how many instructions it runs for that.
    fn run_counted(
        filter: &[Instruction],
        architecture: u32,
        number: u32,
        argument: u32,
    ) -> (u32, usize) {
        let (mut at, mut value, mut count) = (0_usize, 0_u32, 0);
        loop {
            let (code, jump_true, jump_false, operand) = filter[at];
            (at, count) = (at + 1, count + 1);
            let mut jump = |is: bool| at += usize::from(if is { jump_true } else { jump_false });
            match code {
                0x20 => {
                    value = match operand {
                        0 => number,
                        4 => architecture,
                        16 => argument,
                        _ => 0,
                    };
                }
                0x54 => value &= operand,
                0x05 => at += usize::try_from(operand).unwrap(),
                0x15 => jump(value == operand),
                0x25 => jump(value > operand),
                0x35 => jump(value >= operand),
                0x45 => jump(value & operand != 0),
                0x06 => return (operand, count),
                _ => panic!("{code:#x}"),
            }
        }
    }

    #[test]
    fn a_call_that_is_allowed_meets_few_instructions() {
        let calls = lists::GUEST_REFUSED.calls;
        let filter = of(calls, &[]).unwrap();
        let count = |number| run_counted(&filter, ARCHITECTURE, number, 0).1;
        let most = (0..1024).map(count).max();
        // One comparison for each of its calls would be some twenty.
        assert!(most <= Some(12), "{most:?}");
    }

    #[test]
    fn a_call_that_is_missing_is_not_there_and_its_neighbours_are() {
        let filter = of(&[], &[435, 436]).unwrap();
        let verdict = |number| run(&filter, ARCHITECTURE, number, 0);
        assert_eq!(
            [434, 435, 436, 437].map(verdict),
            [ALLOW.3, MISSING.3, MISSING.3, ALLOW.3]
        );
        assert_eq!(run(&filter, 0x4000_0003, 435, 0), KILL.3);
        assert_eq!(verdict(u32::MAX), ALLOW.3);
    }

    #[test]
    fn it_decides_as_the_long_one_and_is_short() {
        let calls = lists::GUEST_REFUSED.calls;
        let refused = SeccompAction::Errno(1);
        let long = convert(program(&[calls], refused, SeccompAction::Allow).unwrap());
        let short = of(calls, &[]).unwrap();
        let arguments = (0..32)
            .map(|bit| 1 << bit)
            .chain([0, u32::MAX, 17, 0x0001_0011]);
        let mut refused = 0;
        for argument in arguments {
            for number in 0..1024 {
                for architecture in [ARCHITECTURE, 0x4000_0003] {
                    let [expected, is] =
                        [&long, &short].map(|filter| run(filter, architecture, number, argument));
                    assert_eq!(is, expected, "{number} of {architecture:#x}, {argument:#x}");
                    refused += u32::from(is == REFUSE.3);
                }
            }
        }
        assert!(refused > 36 * 10);
        assert!(
            short.len() <= 64 && long.len() > 2 * short.len(),
            "{} {}",
            short.len(),
            long.len()
        );
    }
}
