//! Decisions about calls as a program: a tree of comparisons, so that none takes more than some ten steps.

use oci_spec::runtime::{LinuxSeccompArg, LinuxSeccompOperator};
use rawio::child::Instruction;

use super::calls::{Arch, X32_BIT};
use super::{Action, KILL_THREAD};

/// What becomes of a call.
#[derive(Debug)]
pub(super) enum Decision {
    Always(Action),
    /// The action of the alternative whose conditions all hold.
    If {
        alternatives: Vec<(Vec<LinuxSeccompArg>, Action)>,
        otherwise: Action,
    },
}

/// The calls of one processor.
#[derive(Debug)]
pub(super) struct Section {
    pub(super) arch: Arch,
    pub(super) default: Action,
    /// What becomes of calls with higher numbers than this.
    pub(super) beyond: Option<(u32, Action)>,
    /// In order of their numbers.
    pub(super) calls: Vec<(u32, Decision)>,
}

type Code = Vec<Instruction>;

/// Offsets in `struct seccomp_data`.
const NUMBER_AT: u32 = 0;
const ARCH_AT: u32 = 4;
const ARGUMENTS_AT: u32 = 16;

const fn instruction(code: u16, jump_true: u8, jump_false: u8, operand: u32) -> Instruction {
    Instruction {
        code,
        jump_true,
        jump_false,
        operand,
    }
}

const fn load(at: u32) -> Instruction {
    instruction(0x20, 0, 0, at)
}

const fn mask(bits: u32) -> Instruction {
    instruction(0x54, 0, 0, bits)
}

const fn answer(action: Action) -> Instruction {
    instruction(0x06, 0, 0, action)
}

const IF_EQUAL: u16 = 0x15;
const IF_GREATER: u16 = 0x25;
const IF_AT_LEAST: u16 = 0x35;
const GO: u16 = 0x05;

/// Assembles the program. `None` if a part is longer than it may be.
pub(super) fn whole(sections: &[Section]) -> Option<Code> {
    let mut code = vec![load(ARCH_AT)];
    let mut numbers: Vec<_> = sections.iter().map(|at| at.arch.audit_number()).collect();
    numbers.dedup();
    for (index, number) in numbers.iter().enumerate() {
        if numbers[..index].contains(number) {
            continue;
        }
        let of = |wanted: Arch| sections.iter().find(|section| section.arch == wanted);
        let body = match (of(Arch::X86_64), of(Arch::X32)) {
            (Some(plain), x32) if *number == Arch::X86_64.audit_number() => with_x32(plain, x32)?,
            _ => {
                let section = sections
                    .iter()
                    .find(|at| at.arch.audit_number() == *number)?;
                with_number(tree(&segments(section)?))
            }
        };
        code.push(instruction(IF_EQUAL, 1, 0, *number));
        code.push(over(&body)?);
        code.extend(body);
    }
    // What libseccomp does with a processor that was not named.
    code.push(answer(KILL_THREAD));
    Some(code)
}

fn with_number(body: Code) -> Code {
    let mut code = vec![load(NUMBER_AT)];
    code.extend(body);
    code
}

/// Two processors that the kernel tells apart by a bit of the call's number.
fn with_x32(plain: &Section, x32: Option<&Section>) -> Option<Code> {
    let plain = tree(&segments(plain)?);
    let x32 = match x32 {
        Some(section) => tree(&segments(section)?),
        None => vec![answer(KILL_THREAD)],
    };
    let mut code = vec![load(NUMBER_AT), instruction(IF_AT_LEAST, 0, 1, X32_BIT)];
    code.push(over(&plain)?);
    code.extend(plain);
    code.extend(x32);
    Some(code)
}

/// A jump over code.
fn over(code: &Code) -> Option<Instruction> {
    Some(instruction(GO, 0, 0, u32::try_from(code.len()).ok()?))
}

/// Numbers from here on, up to the next segment, and what becomes of them.
struct Segment {
    from: u32,
    code: Code,
}

fn segments(section: &Section) -> Option<Vec<Segment>> {
    let default = vec![answer(section.default)];
    let mut segments = vec![Segment {
        from: 0,
        code: default.clone(),
    }];
    let mut push = |from: u32, code: Code| match segments.last_mut() {
        Some(last) if last.code == code => {}
        Some(last) if last.from == from => last.code = code,
        _ => segments.push(Segment { from, code }),
    };
    let mut next = 0;
    for (number, decision) in &section.calls {
        if *number != next {
            push(next, default.clone());
        }
        push(*number, decided(decision)?);
        next = number + 1;
    }
    push(next, default);
    if let Some((most, action)) = section.beyond {
        push(most + 1, vec![answer(action)]);
    }
    Some(segments)
}

/// A tree of comparisons with the number, which is loaded, and what becomes of it at the leaves.
fn tree(segments: &[Segment]) -> Code {
    match segments {
        [] => Code::new(),
        [one] => one.code.clone(),
        many => {
            let (low, high) = many.split_at(many.len() / 2);
            let from = high.first().map_or(0, |segment| segment.from);
            let (low, high) = (tree(low), tree(high));
            let far = u32::try_from(low.len()).unwrap_or(u32::MAX); // the whole is bounded
            let mut code = vec![
                instruction(IF_AT_LEAST, 0, 1, from),
                instruction(GO, 0, 0, far),
            ];
            code.extend(low);
            code.extend(high);
            code
        }
    }
}

fn decided(decision: &Decision) -> Option<Code> {
    let (alternatives, otherwise) = match decision {
        Decision::Always(action) => return Some(vec![answer(*action)]),
        Decision::If {
            alternatives,
            otherwise,
        } => (alternatives, otherwise),
    };
    let mut code = Code::new();
    for (conditions, then) in alternatives {
        // From the last one, since each jumps over all that come after it.
        let mut whole = vec![answer(*then)];
        for condition in conditions.iter().rev() {
            let mut check = check(condition, u8::try_from(whole.len()).ok()?)?;
            check.extend(whole);
            whole = check;
        }
        code.extend(whole);
    }
    code.push(answer(*otherwise));
    Some(code)
}

/// Goes on behind itself if a condition holds, and `rest` instructions further if not.
fn check(condition: &LinuxSeccompArg, rest: u8) -> Option<Code> {
    use LinuxSeccompOperator as Is;
    let at = ARGUMENTS_AT + 8 * u32::try_from(condition.index()).ok()?;
    let halves = |value: u64| {
        (
            u32::try_from(value >> 32).ok(),
            u32::try_from(value & 0xffff_ffff).ok(),
        )
    };
    let (Some(high), Some(low)) = halves(condition.value()) else {
        return None;
    };
    let (load_high, load_low) = (load(at + 4), load(at));
    let fail = |distance: u8| distance.checked_add(rest);
    Some(match condition.op() {
        Is::ScmpCmpEq => vec![
            load_high,
            instruction(IF_EQUAL, 0, fail(2)?, high),
            load_low,
            instruction(IF_EQUAL, 0, fail(0)?, low),
        ],
        Is::ScmpCmpNe => vec![
            load_high,
            instruction(IF_EQUAL, 0, 2, high),
            load_low,
            instruction(IF_EQUAL, fail(0)?, 0, low),
        ],
        Is::ScmpCmpMaskedEq => {
            let (Some(wanted_high), Some(wanted_low)) = halves(condition.value_two().unwrap_or(0))
            else {
                return None;
            };
            vec![
                load_high,
                mask(high),
                instruction(IF_EQUAL, 0, fail(3)?, wanted_high),
                load_low,
                mask(low),
                instruction(IF_EQUAL, 0, fail(0)?, wanted_low),
            ]
        }
        Is::ScmpCmpGt | Is::ScmpCmpGe => {
            let compare = match condition.op() {
                Is::ScmpCmpGt => IF_GREATER,
                _ => IF_AT_LEAST,
            };
            vec![
                load_high,
                instruction(IF_GREATER, 3, 0, high),
                instruction(IF_EQUAL, 0, fail(2)?, high),
                load_low,
                instruction(compare, 0, fail(0)?, low),
            ]
        }
        Is::ScmpCmpLt | Is::ScmpCmpLe => {
            let not = match condition.op() {
                Is::ScmpCmpLt => IF_AT_LEAST,
                _ => IF_GREATER,
            };
            vec![
                load_high,
                instruction(IF_GREATER, fail(3)?, 0, high),
                instruction(IF_EQUAL, 0, 2, high),
                load_low,
                instruction(not, fail(0)?, 0, low),
            ]
        }
    })
}
