//! The plan for a container, translated from its specification.
//!
//! The translation changes nothing on the machine. It refuses all that it cannot express, with all reasons at once, so
//! that `runc` gets the specification as it is.

pub mod devices;
pub mod mounts;
pub mod process;
pub mod resources;

use std::collections::BTreeMap;
use std::path::{Component, Path, PathBuf};

use oci_spec::runtime::{Hooks, Linux, LinuxNamespaceType, Spec};
use serde_json::Value;

use crate::error::{OciError, Result};
use crate::honoured;
use crate::reasons::Reasons;
use crate::seccomp::Filter;
use devices::Node;
use mounts::MountPlan;
use process::ProcessPlan;
use resources::Resources;

/// A namespace of a container: new, the machine's, or an existing one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Namespace {
    /// That of the process that makes the container.
    #[default]
    Host,
    /// A new one.
    New,
    /// The one at this path.
    At(PathBuf),
}

/// The namespaces of a container. That of its mounts is always new.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Namespaces {
    /// Of process ids.
    pub pid: Namespace,
    /// Of the network.
    pub network: Namespace,
    /// Of System V objects and message queues.
    pub ipc: Namespace,
    /// Of host names.
    pub uts: Namespace,
    /// Of control groups.
    pub cgroup: Namespace,
}

/// The plan for a container.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// The version of the specification.
    pub version: String,
    /// The directory that becomes the root, relative to the bundle or not.
    pub root: PathBuf,
    /// Whether the root is read-only.
    pub root_is_read_only: bool,
    /// Whether its mounts are private; otherwise, as with runc, they are slaves of the machine's.
    pub root_is_private: bool,
    /// The program.
    pub process: ProcessPlan,
    /// The name of the host.
    pub hostname: Option<String>,
    /// The name of its domain.
    pub domainname: Option<String>,
    /// Its namespaces.
    pub namespaces: Namespaces,
    /// The mounts, in this order.
    pub mounts: Vec<MountPlan>,
    /// Device nodes beside those that all have.
    pub devices: Vec<Node>,
    /// Paths that are hidden.
    pub masked: Vec<PathBuf>,
    /// Paths that are read-only.
    pub read_only: Vec<PathBuf>,
    /// Parameters of the kernel, by their paths below `/proc/sys`.
    pub sysctl: BTreeMap<PathBuf, String>,
    /// The path of the control group in each hierarchy; `None` for one with the name of the container.
    pub cgroup: Option<PathBuf>,
    /// Its limits.
    pub resources: Resources,
    /// Its filter of system calls.
    pub seccomp: Option<Filter>,
    /// The engine's hooks.
    pub hooks: Hooks,
    /// What the engine keeps with it.
    pub annotations: BTreeMap<String, String>,
}

impl Plan {
    /// Translates a specification.
    ///
    /// # Errors
    /// If it has a field, or a value of a field, that is not honoured: [`OciError::NotHonoured`].
    pub fn new(specification: &Value) -> Result<Self> {
        let unhonoured = honoured::unhonoured(specification);
        if !unhonoured.is_empty() {
            return Err(OciError::NotHonoured(unhonoured));
        }
        let spec: Spec = serde_json::from_value(specification.clone())
            .map_err(|error| OciError::NotHonoured(vec![error.to_string()]))?;
        let mut reasons = Reasons::new();
        let plan = translate(&spec, &mut reasons);
        match plan {
            Some(plan) if reasons.is_empty() => Ok(plan),
            _ => Err(OciError::NotHonoured(reasons)),
        }
    }
}

fn translate(spec: &Spec, reasons: &mut Reasons) -> Option<Plan> {
    let mut needed = |what: &str| reasons.push(format!("{what} is missing"));
    let (Some(root), Some(process), Some(linux)) = (spec.root(), spec.process(), spec.linux())
    else {
        needed("root, process or linux");
        return None;
    };
    let namespaces = namespaces(linux, reasons);
    let hooks = spec.hooks().clone().unwrap_or_default();
    hooks_are_whole(&hooks, reasons);
    let is_named = spec.hostname().is_some() || spec.domainname().is_some();
    if is_named && namespaces.uts != Namespace::New {
        reasons.push("hostname without linux.namespaces[].type uts".to_owned());
    }
    match linux.rootfs_propagation().as_deref() {
        None | Some("" | "private" | "rprivate" | "slave" | "rslave") => {}
        Some(other) => reasons.push(format!("linux.rootfsPropagation {other}")),
    }
    let plan = Plan {
        version: spec.version().clone(),
        root: root.path().clone(),
        root_is_read_only: root.readonly().unwrap_or(false),
        root_is_private: matches!(
            linux.rootfs_propagation().as_deref(),
            Some("private" | "rprivate")
        ),
        process: process::translate(process, reasons),
        hostname: spec.hostname().clone(),
        domainname: spec.domainname().clone(),
        mounts: mounts::translate(spec.mounts().as_deref().unwrap_or_default(), reasons),
        devices: devices::nodes(linux.devices().as_deref().unwrap_or_default(), reasons),
        masked: paths(linux.masked_paths(), "linux.maskedPaths", reasons),
        read_only: paths(linux.readonly_paths(), "linux.readonlyPaths", reasons),
        sysctl: sysctl(linux, &namespaces, reasons),
        cgroup: cgroup(linux, reasons),
        resources: resources::translate(linux.resources().as_ref(), reasons),
        seccomp: linux
            .seccomp()
            .as_ref()
            .and_then(|seccomp| Filter::new(seccomp, reasons)),
        hooks,
        annotations: spec
            .annotations()
            .clone()
            .unwrap_or_default()
            .into_iter()
            .collect(),
        namespaces,
    };
    Some(plan)
}

fn namespaces(linux: &Linux, reasons: &mut Reasons) -> Namespaces {
    let mut found = Namespaces::default();
    let mut own_mounts = false;
    let mut seen = Vec::new();
    for namespace in linux.namespaces().as_deref().unwrap_or_default() {
        let kind = namespace.typ();
        if seen.contains(&kind) {
            reasons.push(format!("linux.namespaces has {kind:?} twice"));
        }
        seen.push(kind);
        let place = match namespace.path() {
            Some(path) if !path.as_os_str().is_empty() => Namespace::At(path.clone()),
            _ => Namespace::New,
        };
        match (kind, place) {
            (LinuxNamespaceType::Mount, Namespace::New) => own_mounts = true,
            (LinuxNamespaceType::Pid, place) => found.pid = place,
            (LinuxNamespaceType::Network, place) => found.network = place,
            (LinuxNamespaceType::Ipc, place) => found.ipc = place,
            (LinuxNamespaceType::Uts, place) => found.uts = place,
            (LinuxNamespaceType::Cgroup, Namespace::New) => found.cgroup = Namespace::New,
            (kind, place) => reasons.push(format!("linux.namespaces[].type {kind:?}, {place:?}")),
        }
    }
    if !own_mounts {
        reasons.push("linux.namespaces has no new one of mounts".to_owned());
    }
    found
}

/// `runc` refuses some of these, or gives them a meaning that we do not.
fn hooks_are_whole(hooks: &Hooks, reasons: &mut Reasons) {
    let of_runtime = [
        hooks.create_runtime(),
        hooks.poststart(),
        hooks.poststop(),
        hooks.prestart(),
    ];
    for hook in of_runtime.into_iter().flatten().flatten() {
        if !hook.path().is_absolute() {
            reasons.push(format!(
                "hooks: {} is no absolute path",
                hook.path().display()
            ));
        }
    }
}

/// Paths that are absolute and have no `..`; they are looked up below the new root, whatever links are there.
fn paths(list: &Option<Vec<String>>, name: &str, reasons: &mut Reasons) -> Vec<PathBuf> {
    let paths: Vec<_> = list.iter().flatten().map(PathBuf::from).collect();
    for path in &paths {
        if !is_plain(path) {
            reasons.push(format!("{name}: {}", path.display()));
        }
    }
    paths
}

/// Returns whether a path is absolute and goes only down.
pub(crate) fn is_plain(path: &Path) -> bool {
    let mut parts = path.components();
    parts.next() == Some(Component::RootDir)
        && parts.all(|part| matches!(part, Component::Normal(_)))
}

fn cgroup(linux: &Linux, reasons: &mut Reasons) -> Option<PathBuf> {
    let path = linux.cgroups_path().as_ref()?;
    if path.as_os_str().is_empty() {
        return None;
    }
    let of_systemd = path.to_string_lossy().contains(':');
    if of_systemd || !is_plain(path) || path.parent().is_none() {
        reasons.push(format!("linux.cgroupsPath {}", path.display()));
    }
    Some(path.clone())
}

/// Parameters of the kernel that an IPC namespace has its own of.
const OF_IPC: &[&str] = &[
    "kernel.msgmax",
    "kernel.msgmnb",
    "kernel.msgmni",
    "kernel.sem",
    "kernel.shmall",
    "kernel.shmmax",
    "kernel.shmmni",
    "kernel.shm_rmid_forced",
];

fn sysctl(
    linux: &Linux,
    namespaces: &Namespaces,
    reasons: &mut Reasons,
) -> BTreeMap<PathBuf, String> {
    let mut parameters = BTreeMap::new();
    for (name, value) in linux.sysctl().iter().flatten() {
        let of_ipc = OF_IPC.contains(&name.as_str()) || name.starts_with("fs.mqueue.");
        let own = match name.starts_with("net.") {
            true => namespaces.network == Namespace::New,
            false => of_ipc && namespaces.ipc == Namespace::New,
        };
        // `.` and `/` stand for each other if a part of the name has a dot; runc knows how.
        let plain = name
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte));
        if !own || !plain || name.split('.').any(str::is_empty) {
            reasons.push(format!("linux.sysctl {name}"));
        }
        parameters.insert(name.split('.').collect(), value.clone());
    }
    parameters
}
