//! A program of a container: its user, its rights, its limits.

use std::collections::BTreeMap;
use std::path::PathBuf;

use nix::sys::resource::Resource;
use oci_spec::runtime::{Capability as Named, LinuxCapabilities, PosixRlimitType, Process};
use serde_json::Value;

use super::Reasons;
use crate::error::{OciError, Result};
use crate::honoured;

/// Numbers of capabilities, in the five sets that a process has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rights {
    /// What no program of it may have beyond.
    pub bounding: caps::CapsHashSet,
    /// The effective set.
    pub effective: caps::CapsHashSet,
    /// The permitted set.
    pub permitted: caps::CapsHashSet,
    /// The inheritable set.
    pub inheritable: caps::CapsHashSet,
    /// The ambient set.
    pub ambient: caps::CapsHashSet,
}

/// A program, and its rights.
#[derive(Clone, Debug, PartialEq)]
pub struct ProcessPlan {
    /// Its arguments; the first is the program.
    pub arguments: Vec<String>,
    /// Its variables.
    pub variables: Vec<String>,
    /// Its working directory.
    pub directory: PathBuf,
    /// Its user.
    pub uid: u32,
    /// Its group.
    pub gid: u32,
    /// Its other groups.
    pub groups: Vec<u32>,
    /// The mode that its files do not get.
    pub umask: u32,
    /// Its capabilities; none if not given.
    pub rights: Rights,
    /// Its limits: soft and hard.
    pub limits: BTreeMap<LimitName, (u64, u64)>,
    /// Whether it may gain rights by programs that it executes.
    pub no_new_privileges: bool,
    /// How likely the kernel ends it when memory is short.
    pub oom_score: Option<i32>,
    /// Whether it has a terminal.
    pub terminal: bool,
    /// Rows and columns of the terminal.
    pub terminal_size: Option<(u16, u16)>,
}

/// A limit, as the kernel numbers it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LimitName(u32);

impl LimitName {
    pub(crate) fn resource(self) -> Option<Resource> {
        RESOURCES
            .iter()
            .copied()
            .find(|resource| *resource as u32 == self.0)
    }
}

const RESOURCES: &[Resource] = &[
    Resource::RLIMIT_AS,
    Resource::RLIMIT_CORE,
    Resource::RLIMIT_CPU,
    Resource::RLIMIT_DATA,
    Resource::RLIMIT_FSIZE,
    Resource::RLIMIT_LOCKS,
    Resource::RLIMIT_MEMLOCK,
    Resource::RLIMIT_MSGQUEUE,
    Resource::RLIMIT_NICE,
    Resource::RLIMIT_NOFILE,
    Resource::RLIMIT_NPROC,
    Resource::RLIMIT_RSS,
    Resource::RLIMIT_RTPRIO,
    Resource::RLIMIT_RTTIME,
    Resource::RLIMIT_SIGPENDING,
    Resource::RLIMIT_STACK,
];

impl ProcessPlan {
    /// Translates the process of a specification, as `exec --process` has it.
    ///
    /// # Errors
    /// If it has fields that are not honoured.
    pub fn new(process: &Value) -> Result<Self> {
        let mut reasons = honoured::unhonoured_below("process", process);
        let parsed: std::result::Result<Process, _> = serde_json::from_value(process.clone());
        let process = parsed.map_err(|error| OciError::NotHonoured(vec![error.to_string()]))?;
        let plan = translate(&process, &mut reasons);
        match reasons.is_empty() {
            true => Ok(plan),
            false => Err(OciError::NotHonoured(reasons)),
        }
    }
}

pub(super) fn translate(process: &Process, reasons: &mut Reasons) -> ProcessPlan {
    let user = process.user();
    let arguments = process.args().clone().unwrap_or_default();
    if arguments.is_empty() {
        reasons.push("process.args is empty".to_owned());
    }
    if !process.cwd().is_absolute() {
        reasons.push(format!(
            "process.cwd {} is not absolute",
            process.cwd().display()
        ));
    }
    let terminal_size = process.console_size().and_then(|size| {
        let cells = |count: u64| u16::try_from(count).ok();
        let size = cells(size.height()).zip(cells(size.width()));
        if size.is_none() {
            reasons.push("process.consoleSize".to_owned());
        }
        size
    });
    ProcessPlan {
        arguments,
        variables: process.env().clone().unwrap_or_default(),
        directory: process.cwd().clone(),
        uid: user.uid(),
        gid: user.gid(),
        groups: user.additional_gids().clone().unwrap_or_default(),
        umask: user.umask().unwrap_or(0o022),
        rights: process
            .capabilities()
            .as_ref()
            .map(rights)
            .unwrap_or_default(),
        limits: limits(process, reasons),
        no_new_privileges: process.no_new_privileges().unwrap_or(false),
        oom_score: process.oom_score_adj(),
        terminal: process.terminal().unwrap_or(false),
        terminal_size,
    }
}

fn limits(process: &Process, reasons: &mut Reasons) -> BTreeMap<LimitName, (u64, u64)> {
    let mut limits = BTreeMap::new();
    for limit in process.rlimits().iter().flatten() {
        let name = LimitName(resource(limit.typ()) as u32);
        let replaced = limits.insert(name, (limit.soft(), limit.hard()));
        if replaced.is_some() || limit.soft() > limit.hard() {
            reasons.push(format!(
                "process.rlimits has {:?} twice, or softer than hard",
                limit.typ()
            ));
        }
    }
    limits
}

fn resource(named: PosixRlimitType) -> Resource {
    use PosixRlimitType as Named;
    match named {
        Named::RlimitCpu => Resource::RLIMIT_CPU,
        Named::RlimitFsize => Resource::RLIMIT_FSIZE,
        Named::RlimitData => Resource::RLIMIT_DATA,
        Named::RlimitStack => Resource::RLIMIT_STACK,
        Named::RlimitCore => Resource::RLIMIT_CORE,
        Named::RlimitRss => Resource::RLIMIT_RSS,
        Named::RlimitNproc => Resource::RLIMIT_NPROC,
        Named::RlimitNofile => Resource::RLIMIT_NOFILE,
        Named::RlimitMemlock => Resource::RLIMIT_MEMLOCK,
        Named::RlimitAs => Resource::RLIMIT_AS,
        Named::RlimitLocks => Resource::RLIMIT_LOCKS,
        Named::RlimitSigpending => Resource::RLIMIT_SIGPENDING,
        Named::RlimitMsgqueue => Resource::RLIMIT_MSGQUEUE,
        Named::RlimitNice => Resource::RLIMIT_NICE,
        Named::RlimitRtprio => Resource::RLIMIT_RTPRIO,
        Named::RlimitRttime => Resource::RLIMIT_RTTIME,
    }
}

fn rights(named: &LinuxCapabilities) -> Rights {
    let set = |list: &Option<std::collections::HashSet<Named>>| {
        list.iter().flatten().filter_map(capability).collect()
    };
    Rights {
        bounding: set(named.bounding()),
        effective: set(named.effective()),
        permitted: set(named.permitted()),
        inheritable: set(named.inheritable()),
        ambient: set(named.ambient()),
    }
}

/// One that this kernel's tables do not have is not given: that is less than was asked for, and never more.
fn capability(named: &Named) -> Option<caps::Capability> {
    let name = serde_json::to_value(named).ok()?;
    let name = name.as_str()?.trim_start_matches("CAP_").to_owned();
    format!("CAP_{name}").parse().ok()
}
