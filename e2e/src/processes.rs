//! The processes that a lab has started, directly or not: all that have its run directory in
//! their environment, which they hand on.

use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

/// What a process is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// Serves one mount of its own.
    Daemon,
    /// Holds the descriptors of the node.
    Keeper,
    /// Owns mounts.
    Node,
    /// Serves mounts of the node.
    Worker,
    /// Everything else, such as a command that asks something.
    Other,
}

/// A process.
#[derive(Clone, Debug)]
pub(crate) struct Process {
    pub(crate) pid: u32,
    pub(crate) role: Role,
    /// The letter of its state; `D` cannot be woken, `Z` is dead.
    pub(crate) state: char,
}

/// Returns all living processes that work for a run directory.
pub(crate) fn of_run_dir(run_dir: &Path) -> Vec<Process> {
    let wanted = [b"YOLOFS_RUN_DIR=", run_dir.as_os_str().as_bytes()].concat();
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    processes
        .filter_map(|entry| {
            let pid = entry.file_name().to_str()?.parse().ok()?;
            let dir = entry.path();
            let environment = strings(&dir.join("environ"))?;
            environment.contains(&wanted).then_some(())?;
            Some(Process {
                pid,
                role: role(&strings(&dir.join("cmdline"))?, &environment),
                state: state(&dir)?,
            })
        })
        .filter(|process| process.pid != std::process::id() && process.state != 'Z')
        .collect()
}

/// The strings of a file of `/proc` that has several.
fn strings(path: &Path) -> Option<Vec<Vec<u8>>> {
    let bytes = fs::read(path).ok()?;
    Some(bytes.split(|byte| *byte == 0).map(<[u8]>::to_vec).collect())
}

fn role(words: &[Vec<u8>], environment: &[Vec<u8>]) -> Role {
    let has = |word: &str| words.iter().any(|one| one == word.as_bytes());
    let kept = environment
        .iter()
        .any(|one| one.starts_with(b"YOLOFS_KEEPER_PID="));
    let asks = ["status", "mounts", "swap", "drain"].into_iter().any(has);
    match () {
        () if has("worker") => Role::Worker,
        () if has("--keep-parent") => Role::Keeper,
        () if has("node") && !asks && kept => Role::Node,
        () if has("node") && !asks => Role::Keeper,
        () if has("mount") => Role::Daemon,
        () => Role::Other,
    }
}

/// The state of a process or thread.
fn state(dir: &Path) -> Option<char> {
    let stat = fs::read_to_string(dir.join("stat")).ok()?;
    // Behind the name, which may have anything in it.
    let (_, rest) = stat.rsplit_once(") ")?;
    rest.chars().next()
}

/// Returns the threads of a process that sleep and cannot be woken, with what they wait in.
pub(crate) fn stuck_threads(pid: u32) -> Vec<String> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task"))
        .into_iter()
        .flatten()
        .flatten();
    tasks
        .map(|task| task.path())
        .filter(|task| state(task) == Some('D'))
        .map(|task: PathBuf| {
            let stack = fs::read_to_string(task.join("stack")).unwrap_or_default();
            let top = stack.lines().next().unwrap_or("?").to_owned();
            format!("{} in {top}", task.display())
        })
        .collect()
}

/// Returns the memory that only this process has, in bytes, or `None` if it is gone.
pub(crate) fn private_memory(pid: u32) -> Option<u64> {
    let sums = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).ok()?;
    let private = sums.lines().filter(|line| line.starts_with("Private_"));
    let kib = private.filter_map(|line| line.split_whitespace().nth(1)?.parse::<u64>().ok());
    Some(kib.sum::<u64>() << 10)
}

/// Returns how many descriptors a process has open, or `None` if it is gone.
pub(crate) fn descriptors(pid: u32) -> Option<usize> {
    Some(fs::read_dir(format!("/proc/{pid}/fd")).ok()?.count())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processes_are_known_by_how_they_were_started() {
        let role = |command: &str, environment: &str| {
            let split = |text: &str| {
                text.split(' ')
                    .map(|word| word.as_bytes().to_vec())
                    .collect()
            };
            let (words, variables): (Vec<_>, Vec<_>) = (split(command), split(environment));
            super::role(&words, &variables)
        };
        assert_eq!(role("yolofs node", "A=B"), Role::Keeper);
        assert_eq!(role("yolofs node", "YOLOFS_KEEPER_PID=7 A=B"), Role::Node);
        assert_eq!(
            role("yolofs node --keep-parent", "YOLOFS_KEEPER_PID=7"),
            Role::Keeper
        );
        assert_eq!(role("yolofs node status --json", "A=B"), Role::Other);
        assert_eq!(role("yolofs --run-dir x worker", ""), Role::Worker);
        assert_eq!(role("/proc/self/exe mount a b", ""), Role::Daemon);
        assert_eq!(role("yolofs umount a", ""), Role::Other);
    }
}
