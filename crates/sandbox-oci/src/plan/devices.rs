//! Devices of a container: nodes, and the access to devices.

use std::path::PathBuf;

use oci_spec::runtime::{LinuxDevice, LinuxDeviceCgroup, LinuxDeviceType};

use super::{Reasons, is_plain};

/// What kind of device a node leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// A character device.
    Character,
    /// A block device.
    Block,
}

/// A device node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// Its path.
    pub path: PathBuf,
    /// The kind of device; `None` for a named pipe.
    pub kind: Option<Kind>,
    /// The major number.
    pub major: u64,
    /// The minor number.
    pub minor: u64,
    /// Its mode.
    pub mode: u32,
    /// Its owner.
    pub uid: u32,
    /// Its group.
    pub gid: u32,
}

pub(super) fn nodes(devices: &[LinuxDevice], reasons: &mut Reasons) -> Vec<Node> {
    let mut nodes = Vec::new();
    for device in devices {
        let path = device.path().clone();
        let kind = match device.typ() {
            LinuxDeviceType::C | LinuxDeviceType::U => Some(Kind::Character),
            LinuxDeviceType::B => Some(Kind::Block),
            LinuxDeviceType::P => None,
            LinuxDeviceType::A => {
                reasons.push(format!("linux.devices: {} has no type", path.display()));
                continue;
            }
        };
        let number = |number: i64| u64::try_from(number).ok().filter(|n| *n < 1 << 20);
        let numbers = number(device.major()).zip(number(device.minor()));
        let Some((major, minor)) = numbers.filter(|_| is_plain(&path)) else {
            reasons.push(format!("linux.devices: {}", path.display()));
            continue;
        };
        nodes.push(Node {
            path,
            kind,
            major,
            minor,
            mode: device.file_mode().unwrap_or(0o666),
            uid: device.uid().unwrap_or(0),
            gid: device.gid().unwrap_or(0),
        });
    }
    nodes
}

/// What may be done to a device: bits as the kernel has them.
pub type Access = u32;
/// To make a node of it.
pub const MAKE: Access = 1;
/// Reading.
pub const READ: Access = 2;
/// Writing.
pub const WRITE: Access = 4;

/// A rule about one device, or all of a kind, or all with a number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// The kind.
    pub kind: Kind,
    /// The major number; `None` for all.
    pub major: Option<u32>,
    /// The minor number; `None` for all.
    pub minor: Option<u32>,
    /// What the rule is about.
    pub access: Access,
}

/// The access to devices.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeviceAccess {
    /// Whether everything is allowed that has no rule; otherwise, nothing is.
    pub is_open: bool,
    /// The exceptions.
    pub exceptions: Vec<Rule>,
}

/// What every container may do, whatever its specification says, as with runc: make nodes, and use those that
/// `/dev` always has.
fn always() -> Vec<Rule> {
    let rule = |kind, major, minor, access| Rule {
        kind,
        major,
        minor,
        access,
    };
    let all = MAKE | READ | WRITE;
    let mut rules = vec![
        rule(Kind::Character, None, None, MAKE),
        rule(Kind::Block, None, None, MAKE),
        rule(Kind::Character, Some(136), None, all), // /dev/pts
        rule(Kind::Character, Some(5), Some(2), all), // /dev/ptmx
        rule(Kind::Character, Some(5), Some(0), all), // /dev/tty
    ];
    for minor in [3, 5, 7, 8, 9] {
        rules.push(rule(Kind::Character, Some(1), Some(minor), all)); // null, zero, full, random, urandom
    }
    rules
}

/// Reduces a list of which later ones overrule earlier ones to exceptions from allowing or denying all.
pub(super) fn access(rules: &[LinuxDeviceCgroup], reasons: &mut Reasons) -> DeviceAccess {
    let mut result = DeviceAccess::default();
    for rule in rules {
        let Some(access) = letters(rule.access().as_deref().unwrap_or("rwm")) else {
            reasons.push(format!(
                "linux.resources.devices: access {:?}",
                rule.access()
            ));
            continue;
        };
        let any = |number: Option<i64>| match number {
            None | Some(-1) => Some(None),
            Some(number) => u32::try_from(number).ok().map(Some),
        };
        let (Some(major), Some(minor)) = (any(rule.major()), any(rule.minor())) else {
            reasons.push("linux.resources.devices: a negative number".to_owned());
            continue;
        };
        let kind = match rule.typ() {
            None | Some(LinuxDeviceType::A) => {
                match access == MAKE | READ | WRITE && major.is_none() && minor.is_none() {
                    true => {
                        result = DeviceAccess {
                            is_open: rule.allow(),
                            exceptions: Vec::new(),
                        }
                    }
                    false => reasons.push("linux.resources.devices: some of all kinds".to_owned()),
                }
                continue;
            }
            Some(LinuxDeviceType::B) => Kind::Block,
            Some(LinuxDeviceType::C | LinuxDeviceType::U) => Kind::Character,
            Some(LinuxDeviceType::P) => {
                reasons.push("linux.resources.devices: a pipe".to_owned());
                continue;
            }
        };
        let rule_is = Rule {
            kind,
            major,
            minor,
            access,
        };
        if !result.add(&rule_is, rule.allow()) {
            reasons.push(format!(
                "linux.resources.devices: a part of another rule: {rule_is:?}"
            ));
        }
    }
    if !result.is_open {
        for rule in always() {
            result.add(&rule, true);
        }
    }
    result
}

impl DeviceAccess {
    /// Adds a rule. Returns false if it takes a part out of another one, which exceptions cannot say.
    fn add(&mut self, rule: &Rule, allow: bool) -> bool {
        let same = |other: &&mut Rule| {
            (other.kind, other.major, other.minor) == (rule.kind, rule.major, rule.minor)
        };
        let known = self.exceptions.iter_mut().find(same);
        if allow != self.is_open {
            match known {
                Some(known) => known.access |= rule.access,
                None => self.exceptions.push(rule.clone()),
            }
            return true;
        }
        if let Some(known) = known {
            known.access &= !rule.access;
        }
        self.exceptions.retain(|other| other.access != 0);
        let meet = |one: Option<u32>, other: Option<u32>| match (one, other) {
            (Some(one), Some(other)) => one == other,
            _ => true,
        };
        !self.exceptions.iter().any(|other| {
            other.kind == rule.kind
                && meet(other.major, rule.major)
                && meet(other.minor, rule.minor)
                && other.access & rule.access != 0
        })
    }
}

fn letters(text: &str) -> Option<Access> {
    text.chars().try_fold(0, |access, letter| {
        Some(
            access
                | match letter {
                    'r' => READ,
                    'w' => WRITE,
                    'm' => MAKE,
                    _ => return None,
                },
        )
    })
}
