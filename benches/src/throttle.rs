//! A slow disk, made of a fast one: reads of one device are limited for one control group.
//!
//! The limit holds per group and is not shared with groups below it, so the workload, the daemon
//! and what contends with them all have to be in the same one: the rig joins it, and what it
//! starts from then on is born there.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail, ensure};

/// Start of the names of our groups; the rig's pid follows.
const GROUP_PREFIX: &str = "yolofs-rig.";

/// Which of the kernel's two interfaces limits reads here.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Controller {
    /// cgroup v1, its `blkio` hierarchy mounted here.
    Blkio(PathBuf),
    /// cgroup v2 with the `io` controller, mounted here.
    Io(PathBuf),
}

/// A limit on reads of one device, for as long as it lives.
#[derive(Debug)]
pub struct Throttle {
    group: PathBuf,
    /// The group that the rig goes back to.
    home: PathBuf,
    /// Where the limit is written, and what, and what takes it away.
    file: PathBuf,
    rule: String,
    no_rule: String,
}

/// A stay in a throttled group.
#[derive(Debug)]
pub struct Stay<'a> {
    throttle: &'a Throttle,
}

impl Throttle {
    /// Limits reads of the device with this number (as in `7:0`) to `iops` requests a second.
    ///
    /// # Errors
    /// If this machine cannot; the message says why.
    pub fn new(device_number: &str, iops: u32) -> anyhow::Result<Self> {
        let mounts = fs::read_to_string("/proc/self/mounts").context("reading the mounts")?;
        let controller = find_controller(&mounts)?;
        let groups = fs::read_to_string("/proc/self/cgroup").context("reading our own cgroup")?;
        let (root, file, rule, no_rule) = match &controller {
            Controller::Blkio(root) => (
                root,
                "blkio.throttle.read_iops_device",
                format!("{device_number} {iops}"),
                format!("{device_number} 0"),
            ),
            Controller::Io(root) => {
                let control = root.join("cgroup.subtree_control");
                fs::write(&control, "+io").context("handing out the io controller")?;
                (
                    root,
                    "io.max",
                    format!("{device_number} riops={iops}"),
                    format!("{device_number} riops=max"),
                )
            }
        };
        let home = root.join(own_group(&groups, &controller)?.trim_start_matches('/'));
        remove_leftovers(root);
        let group = root.join(format!("{GROUP_PREFIX}{}", std::process::id()));
        fs::create_dir(&group).with_context(|| format!("making {}", group.display()))?;
        let throttle = Self {
            file: group.join(file),
            group,
            home,
            rule,
            no_rule,
        };
        throttle.impose()?;
        let kept = fs::read_to_string(&throttle.file).context("reading the limit back")?;
        ensure!(
            kept.contains(device_number),
            "the kernel did not keep the limit ({})",
            throttle.rule
        );
        Ok(throttle)
    }

    /// Limits reads again, after [`lift`](Self::lift).
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn impose(&self) -> anyhow::Result<()> {
        self.write(&self.rule)
    }

    /// Takes the limit away. Requests that wait for their turn go on at once.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn lift(&self) -> anyhow::Result<()> {
        self.write(&self.no_rule)
    }

    fn write(&self, rule: &str) -> anyhow::Result<()> {
        fs::write(&self.file, rule)
            .with_context(|| format!("writing {rule} to {}", self.file.display()))
    }

    /// Moves the rig into the group until the stay is dropped.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn stay(&self) -> anyhow::Result<Stay<'_>> {
        self.admit(std::process::id())?;
        Ok(Stay { throttle: self })
    }

    /// Moves a process into the group.
    ///
    /// # Errors
    /// If it is gone, or the kernel refuses.
    pub fn admit(&self, pid: u32) -> anyhow::Result<()> {
        move_to(&self.group, pid)
    }
}

impl Drop for Throttle {
    fn drop(&mut self) {
        // A daemon may still be in it, and lives on without the limit.
        let left = fs::read_to_string(self.group.join("cgroup.procs")).unwrap_or_default();
        for pid in left.lines().filter_map(|line| line.parse().ok()) {
            let _it_may_have_ended = move_to(&self.home, pid);
        }
        if let Err(error) = fs::remove_dir(&self.group) {
            eprintln!("warning: cannot remove {}: {error}", self.group.display());
        }
    }
}

impl Drop for Stay<'_> {
    fn drop(&mut self) {
        if let Err(error) = move_to(&self.throttle.home, std::process::id()) {
            eprintln!("warning: the rig stays throttled: {error:#}");
        }
    }
}

fn move_to(group: &Path, pid: u32) -> anyhow::Result<()> {
    fs::write(group.join("cgroup.procs"), pid.to_string())
        .with_context(|| format!("moving process {pid} to {}", group.display()))
}

/// Removes the groups of rigs that were killed.
fn remove_leftovers(root: &Path) {
    for entry in fs::read_dir(root).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let pid = name
            .to_str()
            .and_then(|name| name.strip_prefix(GROUP_PREFIX));
        if pid.is_some_and(|pid| !Path::new("/proc").join(pid).exists()) {
            let _busy_ones_stay = fs::remove_dir(entry.path());
        }
    }
}

/// Finds what can limit reads, in the lines of `/proc/mounts`.
fn find_controller(mounts: &str) -> anyhow::Result<Controller> {
    let mut unified = None;
    for line in mounts.lines() {
        let mut fields = line.split(' ').skip(1);
        let (Some(target), Some(kind), Some(options)) =
            (fields.next(), fields.next(), fields.next())
        else {
            continue;
        };
        match kind {
            "cgroup" if options.split(',').any(|option| option == "blkio") => {
                return Ok(Controller::Blkio(target.into()));
            }
            "cgroup2" => unified = Some(PathBuf::from(target)),
            _ => {}
        }
    }
    let Some(root) = unified else {
        bail!("no cgroup file system is mounted")
    };
    let controllers = fs::read_to_string(root.join("cgroup.controllers")).unwrap_or_default();
    if controllers
        .split_whitespace()
        .any(|controller| controller == "io")
    {
        return Ok(Controller::Io(root));
    }
    bail!("neither cgroup v1's blkio nor cgroup v2's io controller is there")
}

/// Finds our own group in `/proc/self/cgroup`: `ID:CONTROLLERS:PATH` a line.
fn own_group<'a>(groups: &'a str, controller: &Controller) -> anyhow::Result<&'a str> {
    let ours = |controllers: &str| match controller {
        Controller::Blkio(_) => controllers.split(',').any(|name| name == "blkio"),
        Controller::Io(_) => controllers.is_empty(),
    };
    let mut lines = groups.lines().filter_map(|line| {
        let (_, rest) = line.split_once(':')?;
        rest.split_once(':')
    });
    let found = lines.find(|(controllers, _)| ours(controllers));
    found
        .map(|(_, path)| path)
        .context("we are in no group of the controller")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_version_wins_where_both_are() {
        let hybrid = "cgroup /sys/fs/cgroup/cpu cgroup rw,cpu 0 0\n\
                      cgroup /sys/fs/cgroup/blkio cgroup rw,relatime,blkio 0 0\n\
                      cgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0\n";
        let blkio = Controller::Blkio("/sys/fs/cgroup/blkio".into());
        assert_eq!(find_controller(hybrid).unwrap(), blkio);
        assert_eq!(
            own_group("3:cpu:/a\n2:blkio,x:/b/c\n0::/d\n", &blkio).unwrap(),
            "/b/c"
        );
    }

    #[test]
    fn the_second_version_counts_only_with_its_controller() {
        let dir = tempfile::tempdir().unwrap();
        let mounts = format!("cgroup2 {} cgroup2 rw 0 0\n", dir.path().display());
        assert!(find_controller(&mounts).is_err());
        fs::write(dir.path().join("cgroup.controllers"), "cpu io memory\n").unwrap();
        let io = Controller::Io(dir.path().to_owned());
        assert_eq!(find_controller(&mounts).unwrap(), io);
        assert_eq!(own_group("0::/user.slice\n", &io).unwrap(), "/user.slice");
    }

    #[test]
    fn a_machine_without_says_why() {
        let error = find_controller("proc /proc proc rw 0 0\n")
            .unwrap_err()
            .to_string();
        assert!(error.contains("no cgroup"), "{error}");
        assert!(own_group("1:cpu:/\n", &Controller::Io("/".into())).is_err());
    }
}
