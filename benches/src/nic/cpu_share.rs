//! A part of a processor for one machine: what many machines do at once must not be limited by
//! the few processors that all of them have here.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context as _;

/// Start of the names of our groups; the rig's pid and the machine follow.
const GROUP_PREFIX: &str = "yolofs-nic.";
/// What a period of the kernel's is.
const PERIOD_US: u64 = 100_000;

/// A control group whose processes together get so much of a processor, and no more.
#[derive(Debug)]
pub struct CpuShare {
    group: PathBuf,
}

impl CpuShare {
    /// Makes one for the machine of this number.
    ///
    /// # Errors
    /// If this machine has no such controller.
    pub fn new(machine: u8, percent: u64) -> anyhow::Result<Self> {
        let mounts = fs::read_to_string("/proc/self/mounts").context("reading the mounts")?;
        let (root, first) = controller(&mounts).context("no cgroup limits processors here")?;
        if !first {
            let control = root.join("cgroup.subtree_control");
            fs::write(&control, "+cpu").context("handing out the cpu controller")?;
        }
        let name = format!("{GROUP_PREFIX}{}.{machine}", std::process::id());
        let group = root.join(name);
        fs::create_dir(&group).with_context(|| format!("making {}", group.display()))?;
        let share = Self { group };
        let quota = PERIOD_US * percent / 100;
        let write = |file: &str, text: String| {
            let path = share.group.join(file);
            fs::write(&path, text).with_context(|| format!("writing {}", path.display()))
        };
        if first {
            write("cpu.cfs_period_us", PERIOD_US.to_string())?;
            write("cpu.cfs_quota_us", quota.to_string())?;
        } else {
            write("cpu.max", format!("{quota} {PERIOD_US}"))?;
        }
        Ok(share)
    }

    /// Returns a command that will run `command` in it.
    #[must_use]
    pub fn command(&self, command: &Command) -> Command {
        let mut inside = Command::new("sh");
        inside.args(["-c", "echo $$ >\"$0/cgroup.procs\" && exec \"$@\""]);
        inside.arg(&self.group).arg(command.get_program());
        inside.args(command.get_args());
        inside
    }
}

impl Drop for CpuShare {
    fn drop(&mut self) {
        // Those who were in it have ended.
        if let Err(error) = fs::remove_dir(&self.group) {
            eprintln!("warning: cannot remove {}: {error}", self.group.display());
        }
    }
}

/// Finds where the controller is mounted, and whether that is cgroup v1.
fn controller(mounts: &str) -> Option<(PathBuf, bool)> {
    let fields = mounts
        .lines()
        .map(|line| line.split(' ').collect::<Vec<_>>());
    let mut second = None;
    for field in fields {
        let [_, at, kind, options, ..] = field[..] else {
            continue;
        };
        if kind == "cgroup" && options.split(',').any(|option| option == "cpu") {
            return Some((PathBuf::from(at), true));
        }
        let has_cpu = |at: &str| {
            let controllers = Path::new(at).join("cgroup.controllers");
            let controllers = fs::read_to_string(controllers).unwrap_or_default();
            controllers.split_whitespace().any(|name| name == "cpu")
        };
        if kind == "cgroup2" && has_cpu(at) {
            second = Some((PathBuf::from(at), false));
        }
    }
    second
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_version_wins() {
        let mounts = "cgroup /cg/cpuacct cgroup rw,cpuacct 0 0\ncgroup /cg/cpu cgroup rw,cpu 0 0\n";
        assert_eq!(controller(mounts), Some((PathBuf::from("/cg/cpu"), true)));
        let dir = tempfile::tempdir().unwrap();
        let at = dir.path().display();
        let second = format!("cgroup2 {at} cgroup2 rw 0 0\n");
        assert_eq!(controller(&second), None);
        fs::write(dir.path().join("cgroup.controllers"), "io cpu\n").unwrap();
        let expected = Some((dir.path().to_owned(), false));
        assert_eq!(controller(&second), expected);
    }
}
