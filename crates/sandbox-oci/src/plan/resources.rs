//! Limits of a container.

use oci_spec::runtime::LinuxResources;

use super::Reasons;
use super::devices::{self, DeviceAccess};

/// Limits. An absent one is unlimited.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Resources {
    /// Bytes of memory; -1 is no limit.
    pub memory: Option<i64>,
    /// Bytes of memory that it is pushed back to when memory is short.
    pub memory_reservation: Option<i64>,
    /// Bytes of memory and swap together.
    pub memory_and_swap: Option<i64>,
    /// Its weight for time of the processors, of which 1024 is normal.
    pub cpu_shares: Option<u64>,
    /// Microseconds of processor time in a period; -1 is no limit.
    pub cpu_quota: Option<i64>,
    /// Microseconds of the period.
    pub cpu_period: Option<u64>,
    /// The processors that it may use.
    pub cpus: Option<String>,
    /// The nodes of memory that it may use.
    pub mems: Option<String>,
    /// Processes; -1 is no limit.
    pub pids: Option<i64>,
    /// The devices that it may use.
    pub devices: DeviceAccess,
}

/// Translates limits. For engines zero means absent.
pub fn translate(resources: Option<&LinuxResources>, reasons: &mut Reasons) -> Resources {
    let empty = LinuxResources::default();
    let given = resources.unwrap_or(&empty);
    let rules = match resources {
        Some(given) => given.devices().as_deref().unwrap_or_default(),
        None => &[],
    };
    let mut limits = Resources {
        devices: devices::access(rules, reasons),
        ..Resources::default()
    };
    let Some(given) = resources.map(|_| given) else {
        return limits;
    };
    if let Some(memory) = given.memory() {
        let said = |bytes: Option<i64>| bytes.filter(|bytes| *bytes != 0);
        limits.memory = said(memory.limit());
        limits.memory_reservation = said(memory.reservation());
        limits.memory_and_swap = said(memory.swap());
        if memory.disable_oom_killer() == Some(true) {
            reasons.push("linux.resources.memory.disableOOMKiller".to_owned());
        }
    }
    if let Some(cpu) = given.cpu() {
        let said = |list: &Option<String>| list.clone().filter(|list| !list.is_empty());
        limits.cpu_shares = cpu.shares().filter(|shares| *shares != 0);
        limits.cpu_quota = cpu.quota().filter(|quota| *quota != 0);
        limits.cpu_period = cpu.period().filter(|period| *period != 0);
        limits.cpus = said(cpu.cpus());
        limits.mems = said(cpu.mems());
    }
    limits.pids = given
        .pids()
        .map(|pids| pids.limit())
        .filter(|most| *most != 0);
    let weight = given.block_io().as_ref().and_then(|io| io.weight());
    if weight.is_some_and(|weight| weight != 0) {
        reasons.push("linux.resources.blockIO.weight".to_owned());
    }
    limits
}
