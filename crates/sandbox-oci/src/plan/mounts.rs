//! The mounts of a container.

use std::path::{Path, PathBuf};

use oci_spec::runtime::Mount;
use rawio::mount::{AccessTimes, Forbids, Propagation, Scope};

use super::{Reasons, is_plain};

/// The content of a mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Content {
    /// A directory or a file of the machine.
    Bind {
        /// Which: absolute, or relative to the bundle.
        source: PathBuf,
        /// Whether mounts below it are included.
        scope: Scope,
    },
    /// A new file system of a type, with parameters.
    FileSystem {
        /// Its type.
        kind: &'static str,
        /// What the table of mounts calls its source.
        source: String,
        /// Its options.
        parameters: Vec<(String, String)>,
    },
    /// The container's own control groups, however the machine has them.
    ControlGroups,
}

/// One mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountPlan {
    /// Where: looked up below the new root, whatever links are there.
    pub destination: PathBuf,
    /// Its content.
    pub content: Content,
    /// The flags that it sets.
    pub forbids: Forbids,
    /// The flags of its source that it clears.
    pub permits: Forbids,
    /// When access times are updated, if given.
    pub times: Option<AccessTimes>,
    /// Its propagation of the machine's mounts.
    pub propagation: Option<(Propagation, Scope)>,
}

/// File systems that are made, and the parameters that they may have.
const KINDS: &[(&str, &[&str])] = &[
    ("proc", &[]),
    ("sysfs", &[]),
    ("mqueue", &[]),
    ("devpts", &["gid", "mode", "ptmxmode", "uid"]),
    (
        "tmpfs",
        &["gid", "mode", "nr_blocks", "nr_inodes", "size", "uid"],
    ),
];

pub(super) fn translate(mounts: &[Mount], reasons: &mut Reasons) -> Vec<MountPlan> {
    let plans = mounts.iter().enumerate().filter_map(|(index, mount)| {
        let mut refuse = |what: &str| reasons.push(format!("mounts[{index}] {what}"));
        one(mount, &mut refuse)
    });
    plans.collect()
}

fn one(mount: &Mount, refuse: &mut dyn FnMut(&str)) -> Option<MountPlan> {
    let destination = mount.destination().clone();
    let kind = mount.typ().as_deref().unwrap_or("none");
    let mut plan = MountPlan {
        destination,
        content: Content::ControlGroups,
        forbids: Forbids::NOTHING,
        permits: Forbids::NOTHING,
        times: None,
        propagation: None,
    };
    let mut scope = None;
    let mut parameters = Vec::new();
    for option in mount.options().iter().flatten() {
        match option.as_str() {
            "bind" => scope = scope.or(Some(Scope::One)),
            "rbind" => scope = Some(Scope::All),
            "newinstance" if kind == "devpts" => {} // each is, since Linux 4.7
            option if plan.take_option(option) => {}
            option => match option.split_once('=') {
                Some((name, value)) => parameters.push((name.to_owned(), value.to_owned())),
                None => refuse(&format!("option {option}")),
            },
        }
    }
    let has_kind = KINDS.iter().find(|(known, _)| *known == kind);
    plan.content = match (scope, has_kind) {
        (Some(scope), _) => {
            let source = mount.source().clone().unwrap_or_default();
            let of_kind = matches!(kind, "bind" | "none" | "");
            if source.as_os_str().is_empty() || !parameters.is_empty() || !of_kind {
                refuse("is a bind without a source, or with parameters or a type");
            }
            Content::Bind { source, scope }
        }
        (None, Some((kind, known))) => {
            if let Some((name, _)) = parameters
                .iter()
                .find(|(name, _)| !known.contains(&&**name))
            {
                refuse(&format!("option {name}"));
            }
            let source = mount.source().as_deref().unwrap_or(Path::new(kind));
            Content::FileSystem {
                kind,
                source: source.to_string_lossy().into_owned(),
                parameters,
            }
        }
        (None, None) if kind == "cgroup" && parameters.is_empty() => Content::ControlGroups,
        (None, None) => {
            refuse(&format!("type {kind}"));
            return None;
        }
    };
    if !plan.has_a_good_place() {
        refuse(&format!("destination {}", plan.destination.display()));
    }
    Some(plan)
}

impl MountPlan {
    /// Takes an option that every mount may have. Returns whether it is one.
    fn take_option(&mut self, option: &str) -> bool {
        let flags = [
            ("ro", "rw", Forbids::WRITING),
            ("nosuid", "suid", Forbids::PRIVILEGES),
            ("nodev", "dev", Forbids::DEVICES),
            ("noexec", "exec", Forbids::PROGRAMS),
            ("nosymfollow", "symfollow", Forbids::LINKS),
            ("nodiratime", "diratime", Forbids::DIRECTORY_TIMES),
        ];
        for (forbids, permits, flag) in flags {
            if option == forbids {
                self.forbids = self.forbids.and(flag);
                self.permits = self.permits.without(flag);
                return true;
            }
            if option == permits {
                self.permits = self.permits.and(flag);
                self.forbids = self.forbids.without(flag);
                return true;
            }
        }
        match option {
            "defaults" => {}
            "relatime" => self.times = Some(AccessTimes::Relative),
            "noatime" => self.times = Some(AccessTimes::Never),
            "strictatime" => self.times = Some(AccessTimes::Strict),
            "private" => self.propagation = Some((Propagation::Private, Scope::One)),
            "rprivate" => self.propagation = Some((Propagation::Private, Scope::All)),
            "slave" => self.propagation = Some((Propagation::Slave, Scope::One)),
            "rslave" => self.propagation = Some((Propagation::Slave, Scope::All)),
            _ => return false,
        }
        true
    }

    /// What the kernel shows of itself is not covered by anything else: a file there that is something
    /// else misleads the programs that write to it.
    fn has_a_good_place(&self) -> bool {
        let path = &self.destination;
        let own = match &self.content {
            Content::FileSystem { kind: "proc", .. } => path == Path::new("/proc"),
            Content::FileSystem { kind: "sysfs", .. } => path == Path::new("/sys"),
            Content::ControlGroups => path == Path::new("/sys/fs/cgroup"),
            Content::Bind { .. } | Content::FileSystem { .. } => !path.starts_with("/proc"),
        };
        own && is_plain(path) && path.parent().is_some()
    }
}
