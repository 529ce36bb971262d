//! A program's processes: its descendants, where they wait, and their end.
//!
//! A daemon leaves its parent and its process group, but it keeps the environment. So each program gets a
//! variable that no other has.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::Pid;

/// The variable by which the processes of a program are found.
pub(crate) const VARIABLE: &str = "XTASK_SUITE";
/// How long to look at processes: a look at one whose memory waits for a dead file system may wait with it.
const LOOK: Duration = Duration::from_secs(10);
/// How often to look for what was started while the others were killed.
const ROUNDS: usize = 5;

/// A program and all that it started.
#[derive(Clone, Debug)]
pub(crate) struct Family {
    /// Leader of the process group.
    pub(crate) leader: Pid,
    /// Value of the variable.
    pub(crate) mark: String,
}

impl Family {
    /// Tells of each thread what it waits for: state, kernel function, system call and kernel stack.
    pub(crate) fn describe(&self) -> Vec<String> {
        let family = self.clone();
        gather(move |tell| {
            for pid in family.members() {
                for line in describe(pid) {
                    tell(line);
                }
            }
        })
    }

    /// Kills all of them.
    pub(crate) fn kill(&self) {
        // What is dead already is what this wants.
        let _: Result<_, _> = killpg(self.leader, Signal::SIGKILL);
        for _ in 0..ROUNDS {
            let family = self.clone();
            let members = gather(move |tell| {
                for pid in family.members() {
                    tell(pid);
                }
            });
            if members.is_empty() {
                return;
            }
            for pid in members {
                let _: Result<_, _> = kill(Pid::from_raw(pid), Signal::SIGKILL);
            }
            thread::sleep(Duration::from_millis(50));
        }
    }

    /// Those that live: descendants of the leader, and whoever has the mark.
    fn members(&self) -> Vec<i32> {
        let mut members = BTreeSet::from([self.leader.as_raw()]);
        let all = processes();
        let mut before = 0;
        while before < members.len() {
            before = members.len();
            let children = all.iter().filter(|one| members.contains(&one.parent));
            let found: Vec<_> = children.map(|one| one.pid).collect();
            members.extend(found);
        }
        let mark = format!("{VARIABLE}={}", self.mark);
        let living = all.iter().filter(|one| !one.is_dead);
        let ours = |pid: i32| members.contains(&pid) || has_variable(pid, &mark);
        living.map(|one| one.pid).filter(|&pid| ours(pid)).collect()
    }
}

struct Process {
    pid: i32,
    parent: i32,
    /// A zombie, which waits for its parent only.
    is_dead: bool,
}

fn processes() -> Vec<Process> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries
        .filter_map(|entry| {
            let pid = entry.file_name().to_str()?.parse().ok()?;
            process(pid, &fs::read_to_string(entry.path().join("stat")).ok()?)
        })
        .collect()
}

/// Reads /proc/PID/stat: the name in it is in parentheses, and may have any character.
fn process(pid: i32, stat: &str) -> Option<Process> {
    let (_, fields) = stat.rsplit_once(") ")?;
    let mut fields = fields.split(' ');
    let state = fields.next()?;
    Some(Process {
        pid,
        parent: fields.next()?.parse().ok()?,
        is_dead: state == "Z" || state == "X",
    })
}

fn has_variable(pid: i32, variable: &str) -> bool {
    let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
    environment
        .split(|&byte| byte == 0)
        .any(|one| one == variable.as_bytes())
}

fn describe(pid: i32) -> Vec<String> {
    let process = format!("/proc/{pid}");
    let mut lines = vec![format!(
        "process {pid} ({})",
        text(Path::new(&process), "comm")
    )];
    let threads = fs::read_dir(format!("{process}/task"));
    for thread in threads.into_iter().flatten().flatten() {
        let path = thread.path();
        let stat = text(&path, "stat");
        let state = stat
            .rsplit_once(") ")
            .and_then(|(_, rest)| rest.split(' ').next());
        lines.push(format!(
            "  thread {} ({}) {}, in {}, system call {}",
            thread.file_name().to_string_lossy(),
            text(&path, "comm"),
            state.unwrap_or("gone"),
            text(&path, "wchan"),
            text(&path, "syscall"),
        ));
        let stack = text(&path, "stack");
        lines.extend(stack.lines().map(|frame| format!("    {frame}")));
    }
    lines
}

fn text(directory: &Path, file: &str) -> String {
    let text = fs::read_to_string(directory.join(file)).unwrap_or_default();
    text.trim().to_owned()
}

/// Collects what a look at processes finds, and leaves it alone when it takes too long.
fn gather<T: Send + 'static>(look: impl FnOnce(&dyn Fn(T)) + Send + 'static) -> Vec<T> {
    let (sender, receiver) = mpsc::channel();
    let end = Instant::now() + LOOK;
    // Without an owner that joins it: it may never end.
    let _thread = thread::Builder::new()
        .name("look".to_owned())
        .spawn(move || look(&|one| drop(sender.send(one)))); // an error: the time is over
    let mut found = Vec::new();
    while let Ok(one) = receiver.recv_timeout(end.saturating_duration_since(Instant::now())) {
        found.push(one);
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_a_process_whatever_its_name() {
        let found = process(7, "7 (a) b) S 3 7 7 0 -1").unwrap();
        assert_eq!((found.pid, found.parent, found.is_dead), (7, 3, false));
        assert!(process(7, "7 (a) Z 3 7").unwrap().is_dead);
        assert!(process(7, "").is_none());
    }

    #[test]
    fn describes_what_its_own_threads_wait_for() {
        let lines = describe(i32::try_from(std::process::id()).unwrap());
        assert!(lines[0].starts_with("process "), "{lines:?}");
        let thread = thread::current();
        let name: String = thread.name().unwrap().chars().take(15).collect();
        assert!(
            lines.iter().any(|line| line.contains(&name)),
            "{name}: {lines:?}"
        );
    }
}
