//! Access to devices, as a BPF program that the kernel runs for each open.

use std::fs::File;
use std::os::fd::AsFd as _;
use std::path::Path;

use rawio::bpf::instruction;

use crate::error::{Result, at};
use crate::plan::devices::{DeviceAccess, Kind, Rule};

/// Attaches the program to the group.
pub(super) fn filter(dir: &Path, access: &DeviceAccess) -> Result<()> {
    if access.is_open && access.exceptions.is_empty() {
        return Ok(());
    }
    let group = File::open(dir).map_err(at("opening", dir))?;
    rawio::bpf::filter_devices(group.as_fd(), &program(access))
        .map_err(at("filtering devices of", dir))
}

/// Registers: what is asked for is loaded into these from where the first one leads.
const ANSWER: u8 = 0;
const QUESTION: u8 = 1;
const KIND: u8 = 2;
const ACCESS: u8 = 3;
const MAJOR: u8 = 4;
const MINOR: u8 = 5;

/// Operations.
const LOAD_WORD: u8 = 0x61;
const COPY: u8 = 0xbf;
const SET: u8 = 0xb7;
const AND: u8 = 0x57;
const SHIFT_RIGHT: u8 = 0x77;
const IF_EQUAL: u8 = 0x15;
const IF_DIFFERENT: u8 = 0x55;
const END: u8 = 0x95;

fn program(access: &DeviceAccess) -> Vec<u64> {
    let mut code = vec![
        instruction(LOAD_WORD, KIND, QUESTION, 0, 0),
        instruction(LOAD_WORD, MAJOR, QUESTION, 4, 0),
        instruction(LOAD_WORD, MINOR, QUESTION, 8, 0),
        instruction(COPY, ACCESS, KIND, 0, 0),
        instruction(SHIFT_RIGHT, ACCESS, 0, 0, 16),
        instruction(AND, KIND, 0, 0, 0xffff),
    ];
    for rule in &access.exceptions {
        code.extend(exception(rule, access.is_open));
    }
    code.push(instruction(SET, ANSWER, 0, 0, u32::from(access.is_open)));
    code.push(instruction(END, 0, 0, 0, 0));
    code
}

/// Answers what an exception is about, and goes on behind itself otherwise. Something is allowed if all of it
/// is, and denied if a part of it is.
fn exception(rule: &Rule, is_denied: bool) -> Vec<u64> {
    let kind = match rule.kind {
        Kind::Block => 1,
        Kind::Character => 2,
    };
    // Each comparison, with what to do if it does not hold: to go on behind the last instruction.
    let mut checks = vec![(IF_DIFFERENT, KIND, kind)];
    if let Some(major) = rule.major {
        checks.push((IF_DIFFERENT, MAJOR, major));
    }
    if let Some(minor) = rule.minor {
        checks.push((IF_DIFFERENT, MINOR, minor));
    }
    let (bits, leave) = match is_denied {
        true => (rule.access, IF_EQUAL),
        false => (!rule.access & 0xffff, IF_DIFFERENT),
    };
    let mut end = vec![
        instruction(COPY, QUESTION, ACCESS, 0, 0),
        instruction(AND, QUESTION, 0, 0, bits),
        instruction(leave, QUESTION, 0, 2, 0),
        instruction(SET, ANSWER, 0, 0, u32::from(!is_denied)),
        instruction(END, 0, 0, 0, 0),
    ];
    let mut code = Vec::new();
    for (index, (test, register, value)) in checks.iter().enumerate() {
        let rest = checks.len() - index - 1 + end.len();
        let rest = u16::try_from(rest).unwrap_or(u16::MAX); // fewer than ten
        code.push(instruction(*test, *register, 0, rest, *value));
    }
    code.append(&mut end);
    code
}
