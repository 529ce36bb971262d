//! System calls of a program and its children, counted by the kernel: in an instance of its tracing that is a test's own.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::path::PathBuf;

use rawio::mount::{DetachedMount, MountContext};

pub(crate) struct Calls {
    /// Tracing, mounted nowhere.
    _tracing: DetachedMount,
    dir: PathBuf,
}

impl Calls {
    /// Counts those of all threads that this program has, and of all that these start.
    pub(crate) fn count() -> Self {
        Self::count_but(None)
    }

    /// The same without the threads of a name, which do what nobody waits for.
    pub(crate) fn count_but(uncounted: Option<&str>) -> Self {
        let tracing = MountContext::open(c"tracefs").and_then(MountContext::mount_writable);
        let tracing = tracing.expect("this test needs tracefs");
        let root = format!("/proc/self/fd/{}/instances", tracing.as_fd().as_raw_fd());
        let dir = PathBuf::from(root).join(format!("sandbox-test-{}", std::process::id()));
        fs::create_dir(&dir).unwrap();
        let calls = Self {
            _tracing: tracing,
            dir,
        };
        let mut threads = String::new();
        for task in fs::read_dir("/proc/self/task").unwrap() {
            let task = task.unwrap();
            let comm = fs::read_to_string(task.path().join("comm")).unwrap();
            if uncounted.is_some_and(|name| comm.trim_end() == name) {
                continue;
            }
            let name = task.file_name();
            write!(threads, "{} ", name.to_str().unwrap()).unwrap();
        }
        calls.put("set_event_pid", &threads);
        calls.put("options/event-fork", "1");
        calls.put("events/raw_syscalls/sys_enter/enable", "1");
        calls
    }

    fn put(&self, name: &str, value: &str) {
        fs::write(self.dir.join(name), value).unwrap();
    }

    /// Returns how many there were of each number, from now on uncounted. A longer list than the kernel's buffer is
    /// an error.
    pub(crate) fn stop(self) -> BTreeMap<u32, u64> {
        self.put("events/raw_syscalls/sys_enter/enable", "0");
        for cpu in fs::read_dir(self.dir.join("per_cpu")).unwrap() {
            let stats = fs::read_to_string(cpu.unwrap().path().join("stats")).unwrap();
            assert!(stats.contains("\noverrun: 0\n"), "too many calls: {stats}");
        }
        let mut counts = BTreeMap::new();
        let trace = fs::read(self.dir.join("trace")).unwrap();
        for line in String::from_utf8_lossy(&trace).lines() {
            if let Some((_, rest)) = line.split_once(" sys_enter: NR ") {
                let number = rest.split(' ').next().unwrap().parse().unwrap();
                *counts.entry(number).or_default() += 1;
            }
        }
        counts
    }
}

impl Drop for Calls {
    fn drop(&mut self) {
        self.put("events/raw_syscalls/sys_enter/enable", "0");
        fs::remove_dir(&self.dir).unwrap();
    }
}
