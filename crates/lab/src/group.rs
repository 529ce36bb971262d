//! A control group for the processes of a test: whatever they start is in it, and all of it is killed at once.
//!
//! Who looks for processes by their command lines misses those that are just being started: between fork and exec they
//! have their parent's, during exec none, and a process that is missed starts others again.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::Duration;

use super::{ok, until};

/// Where groups are shown on machines without version 1, beside it, and in a guest that has not mounted them yet.
const HERE: &str = "/sys/fs/cgroup";

/// How often it is looked whether those of a test that has failed are gone.
const PATIENCE: u32 = 100;

/// The group. Killed and removed when it is dropped.
#[derive(Debug)]
pub struct Group {
    dir: PathBuf,
}

impl Group {
    /// Makes one below that of this process. Panics if it cannot: a test that cannot end what it starts has failed.
    pub fn new(name: &str) -> Self {
        static MADE: AtomicU32 = AtomicU32::new(0);
        let name = format!("{name}-{}", MADE.fetch_add(1, Relaxed));
        // Before that, this process is in none.
        let all = mounted();
        let own = fs::read_to_string("/proc/self/cgroup").unwrap();
        let mut lines = own.lines();
        let own = lines.find_map(|line| line.strip_prefix("0::/"));
        let own = own.expect("this kernel has no control groups of version 2");
        let dir = all.join(own).join(name);
        fs::create_dir(&dir).unwrap();
        Self { dir }
    }

    /// Returns a command that joins this group, and becomes the program then.
    pub fn joins(&self, program: &Command) -> Command {
        let mut command = Command::new("/bin/sh");
        command
            .args(["-c", "echo $$ >\"$0\" && exec \"$@\""])
            .arg(self.dir.join("cgroup.procs"))
            .arg(program.get_program())
            .args(program.get_args());
        command
    }

    /// Kills all processes of it, those that are being started, too, and waits until none is left.
    pub fn kill(&self) {
        self.kill_at_once();
        until("all processes to end", || !self.has_any());
    }

    /// As [`kill`](Self::kill), without waiting.
    pub fn kill_at_once(&self) {
        fs::write(self.dir.join("cgroup.kill"), "1").unwrap();
    }

    /// Returns whether a process of it is alive.
    fn has_any(&self) -> bool {
        let events = fs::read_to_string(self.dir.join("cgroup.events")).unwrap();
        events.lines().any(|line| line == "populated 1")
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.kill_at_once();
            // It stays behind, empty, if they take too long to die.
            let _removed = (0..PATIENCE).any(|_| {
                std::thread::sleep(Duration::from_millis(5));
                fs::remove_dir(&self.dir).is_ok()
            });
        } else {
            self.kill();
            until("the group to be removed", || {
                fs::remove_dir(&self.dir).is_ok()
            });
        }
    }
}

/// Returns where groups of version 2 are shown; mounts them if that is nowhere, as in a guest that has just started.
fn mounted() -> PathBuf {
    let shown = || {
        let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
        let mut mounts = mounts
            .lines()
            .map(|line| line.split(' ').collect::<Vec<_>>());
        let shown = mounts.find(|parts| parts.get(2) == Some(&"cgroup2"));
        shown.map(|parts| PathBuf::from(parts[1]))
    };
    shown().unwrap_or_else(|| {
        assert!(Path::new(HERE).is_dir(), "no /sys is mounted");
        ok(Command::new("mount").args(["-t", "cgroup2", "none", HERE]));
        PathBuf::from(HERE)
    })
}
