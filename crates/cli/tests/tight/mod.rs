//! A control group with little in it, of whatever version this machine has.

#![allow(
    clippy::allow_attributes,
    reason = "what is unused differs from test to test"
)]
#![allow(dead_code, reason = "each test binary uses its own part of it")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use lab::until;

/// A control group of version 2, and one of version 1 for memory where that is what there is.
/// Both go when it is dropped; whatever is in it must have ended.
pub(crate) struct Tight {
    dirs: Vec<PathBuf>,
    limit: PathBuf,
    no_limit: &'static str,
}

impl Tight {
    /// Makes one that limits nothing yet.
    pub(crate) fn new() -> Self {
        static MADE: AtomicU32 = AtomicU32::new(0);
        let number = MADE.fetch_add(1, Relaxed);
        let name = format!("nicfetch-test-{}-{number}", std::process::id());
        let root = Path::new("/sys/fs/cgroup");
        let v1 = root.join("memory");
        let unified = root.join("unified");
        let (dirs, limit, no_limit) = if v1.is_dir() {
            let memory = v1.join(&name);
            let limit = memory.join("memory.limit_in_bytes");
            let unified = unified.is_dir().then(|| unified.join(&name));
            (
                unified.into_iter().chain([memory]).collect::<Vec<_>>(),
                limit,
                "-1",
            )
        } else {
            let dir = root.join(&name);
            let limit = dir.join("memory.max");
            (vec![dir], limit, "max")
        };
        for dir in &dirs {
            fs::create_dir(dir).unwrap();
        }
        Self {
            dirs,
            limit,
            no_limit,
        }
    }

    /// Lets what is in it have so many bytes of memory.
    pub(crate) fn limit_memory(&self, bytes: u64) {
        fs::write(&self.limit, bytes.to_string()).unwrap();
    }

    pub(crate) fn lift_limit(&self) {
        fs::write(&self.limit, self.no_limit).unwrap();
    }

    /// Bytes of the page cache that are charged to it.
    pub(crate) fn page_cache(&self) -> u64 {
        let dir = self.dirs.last().unwrap();
        let stat = fs::read_to_string(dir.join("memory.stat")).unwrap();
        let words = ["total_cache ", "file "];
        let line = |word| stat.lines().find_map(|line: &str| line.strip_prefix(word));
        words.into_iter().find_map(line).unwrap().parse().unwrap()
    }

    /// How often its limit was met, and how many of its processes were killed for that.
    pub(crate) fn met_limit(&self) -> (u64, u64) {
        let dir = self.dirs.last().unwrap();
        let read = |name: &str| fs::read_to_string(dir.join(name)).unwrap_or_default();
        let text = format!(
            "failcnt {}\n{}\n{}",
            read("memory.failcnt"),
            read("memory.oom_control"),
            read("memory.events")
        );
        let number = |words: [&str; 2]| {
            let lines = text.lines().filter_map(|line| line.split_once(' '));
            let found = lines.filter(|(word, _)| words.contains(word));
            let numbers = found.map(|(_, number)| number.trim().parse::<u64>().unwrap_or(0));
            numbers.sum()
        };
        (number(["failcnt", "max"]), number(["oom_kill", "oom"]))
    }

    /// Returns a command that enters it and becomes the given one.
    pub(crate) fn enter(&self, program: &str) -> Command {
        let mut sh = Command::new("sh");
        let mut script = String::new();
        for dir in &self.dirs {
            script += &format!("echo $$ > {}/cgroup.procs && ", dir.display());
        }
        sh.args(["-c", &format!("{script}exec \"$@\""), "sh", program]);
        sh
    }

    /// Has two programs want one processor all the time: one of them always waits.
    pub(crate) fn spin(&self) -> Spinners {
        let status = fs::read_to_string("/proc/self/status").unwrap();
        let allowed = status
            .lines()
            .find_map(|line| line.strip_prefix("Cpus_allowed_list:"))
            .unwrap();
        let first = allowed.trim().split(['-', ',']).next().unwrap();
        let spin = || {
            let mut command = self.enter("nice");
            command.args(["-n", "19", "taskset", "-c", first]);
            command.args(["sh", "-c", "while :; do :; done"]);
            command.stdin(Stdio::null()).spawn().unwrap()
        };
        Spinners([spin(), spin()])
    }
}

impl Drop for Tight {
    fn drop(&mut self) {
        if std::thread::panicking() {
            for dir in &self.dirs {
                let _gone = fs::remove_dir(dir);
            }
            return;
        }
        for dir in &self.dirs {
            // Goes as soon as the last process in it is gone.
            until("the control group to be empty", || {
                fs::remove_dir(dir).is_ok()
            });
        }
    }
}

/// Programs that do nothing, quickly; killed when they are dropped.
pub(crate) struct Spinners([Child; 2]);

impl Drop for Spinners {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _killed = child.kill();
            let _waited = child.wait();
        }
    }
}
