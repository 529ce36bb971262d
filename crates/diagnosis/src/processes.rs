//! The processes of this machine, by program.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// Most bytes of a command line that are looked at; it is cut, not refused.
const MAX_LINE: usize = 64 << 10;

/// The kernel tells when a process began in such ticks a second, whatever its own clock is.
const TICKS: f64 = 100.0;
/// A file that is younger than a process by less may have been written before it: clocks are that coarse.
const COARSE: Duration = Duration::from_millis(50);

/// A process, and its command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Process {
    pub(crate) pid: u32,
    /// The process that started it, or took it over; `None` if that is unknown.
    pub(crate) parent: Option<u32>,
    /// Its program, if it is readable.
    pub(crate) program: Option<PathBuf>,
    /// Its command line, the program's name included.
    pub(crate) args: Vec<String>,
}

impl Process {
    /// Returns a path as it is meant in the directory that the process works in.
    pub(crate) fn path(&self, named: &str) -> PathBuf {
        match fs::read_link(format!("/proc/{}/cwd", self.pid)) {
            Ok(dir) => dir.join(named),
            Err(_) => PathBuf::from(named),
        }
    }

    /// Returns when it began, by the clock of now.
    pub(crate) fn started(&self) -> Option<SystemTime> {
        let began: f64 = stat_field(self.pid, 22)?.parse().ok()?;
        let uptime = fs::read_to_string("/proc/uptime").ok()?;
        let uptime: f64 = uptime.split_whitespace().next()?.parse().ok()?;
        let runs = Duration::try_from_secs_f64(uptime - began / TICKS).ok()?;
        SystemTime::now().checked_sub(runs)
    }

    /// Returns a variable of the environment that it was started with, if that is readable, and it is not empty.
    pub(crate) fn variable(&self, name: &str) -> Option<String> {
        let environment = fs::read(format!("/proc/{}/environ", self.pid)).ok()?;
        let mut variables = environment.split(|byte| *byte == 0);
        variables.find_map(|variable| {
            let value = std::str::from_utf8(variable).ok()?.strip_prefix(name)?;
            let value = value.strip_prefix('=')?;
            (!value.is_empty()).then(|| value.to_owned())
        })
    }

    /// Returns the value of a flag, written as `--flag value` or `--flag=value`.
    pub(crate) fn flag(&self, names: &[&str]) -> Option<&str> {
        let mut args = self.args.iter().skip(1);
        while let Some(arg) = args.next() {
            for name in names {
                if arg == name {
                    return args.next().map(String::as_str);
                }
                if let Some(value) = arg
                    .strip_prefix(name)
                    .and_then(|rest| rest.strip_prefix('='))
                {
                    return Some(value);
                }
            }
        }
        None
    }
}

/// Returns whether a file was written after a process had begun, which then has not read it as it is.
pub(crate) fn is_younger(file: &Path, started: Option<SystemTime>) -> bool {
    let written = fs::metadata(file).and_then(|metadata| metadata.modified());
    match (written, started) {
        (Ok(written), Some(started)) => written > started + COARSE,
        _ => false,
    }
}

/// Returns the processes that run a program of this name, by process id; those in other mount namespaces are
/// left out, because their files differ.
pub(crate) fn running(name: &str) -> Vec<Process> {
    let ours = fs::read_link("/proc/self/ns/mnt").ok();
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let mut found: Vec<Process> = pids
        .filter(|pid: &u32| {
            let theirs = fs::read_link(format!("/proc/{pid}/ns/mnt")).ok();
            theirs.is_none() || theirs == ours
        })
        .filter_map(|pid| process(pid, name))
        .collect();
    found.sort_by_key(|process| process.pid);
    found
}

fn process(pid: u32, name: &str) -> Option<Process> {
    let line = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
    let line = String::from_utf8_lossy(line.get(..MAX_LINE).unwrap_or(&line)).into_owned();
    let args: Vec<String> = line
        .trim_end_matches('\0')
        .split('\0')
        .map(str::to_owned)
        .collect();
    let program = fs::read_link(format!("/proc/{pid}/exe")).ok();
    if !is_called(name, args.first()?, program.as_deref()) {
        return None;
    }
    Some(Process {
        pid,
        parent: stat_field(pid, 4).and_then(|parent| parent.parse().ok()),
        program,
        args,
    })
}

/// Returns whether a process is one of the program of this name, by the first word of its command line. A program that
/// starts itself, as ours do for their daemons, has a word there that names none.
fn is_called(name: &str, word: &str, program: Option<&Path>) -> bool {
    let file = match (word, program) {
        ("/proc/self/exe", Some(program)) => program.file_name(),
        _ => Path::new(word).file_name(),
    };
    // The kernel's note on a program that was replaced since.
    let file = file.and_then(|file| file.to_str()).unwrap_or_default();
    file.strip_suffix(" (deleted)").unwrap_or(file) == name
}

/// Returns a field of `/proc/PID/stat`, counted from 1, behind the name (proc_pid_stat(5)).
fn stat_field(pid: u32, number: usize) -> Option<String> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name may have spaces and brackets. What follows it begins with the third field.
    let (_, fields) = stat.rsplit_once(')')?;
    let field = fields.split_whitespace().nth(number - 3)?;
    Some(field.to_owned())
}

/// Returns where a program of this name is installed.
pub(crate) fn installed(name: &str) -> Option<PathBuf> {
    [
        "/usr/local/bin",
        "/usr/local/sbin",
        "/usr/bin",
        "/usr/sbin",
        "/bin",
        "/sbin",
    ]
    .iter()
    .map(|dir| Path::new(dir).join(name))
    .find(|path| path.is_file())
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    #[test]
    fn flags_are_found_as_people_write_them() {
        let words = "containerd --config /a.toml --log-level=debug -c";
        let process = Process {
            pid: 1,
            parent: None,
            program: None,
            args: words.split(' ').map(str::to_owned).collect(),
        };
        assert_eq!(process.flag(&["--config", "-c"]), Some("/a.toml"));
        assert_eq!(process.flag(&["--log-level"]), Some("debug"));
        assert_eq!(process.flag(&["--root"]), None);
        assert_eq!(process.flag(&["-c"]), None);
    }

    #[test]
    fn a_file_is_younger_than_a_process_that_began_before_it() {
        let own = Process {
            pid: std::process::id(),
            parent: None,
            program: None,
            args: Vec::new(),
        };
        let started = own.started();
        assert!(started.is_some_and(|started| started <= SystemTime::now()));
        let file = tempfile::NamedTempFile::new().unwrap();
        let hour = Duration::from_secs(3600);
        let written = |at: SystemTime| {
            file.as_file().set_modified(at).unwrap();
            is_younger(file.path(), started)
        };
        assert!(written(SystemTime::now() + hour));
        assert!(!written(started.unwrap() - hour));
        assert!(!is_younger(Path::new("/none"), started) && !is_younger(file.path(), None));
    }

    #[test]
    fn a_program_that_started_itself_is_found_by_its_file() {
        let own = Path::new("/proc/self/exe").to_str().unwrap();
        let called = |word, program: &str| is_called("yolofs", word, Some(Path::new(program)));
        assert!(called("/usr/bin/yolofs", "/usr/bin/yolofs") && called("yolofs", "/x"));
        assert!(called(own, "/usr/bin/yolofs") && called(own, "/usr/bin/yolofs (deleted)"));
        assert!(!called(own, "/usr/bin/bootimg") && !called("/usr/bin/bootimg", "/usr/bin/yolofs"));
        assert!(!is_called("yolofs", own, None));
    }

    #[test]
    fn a_process_is_found_by_its_name() {
        let mut child = std::process::Command::new("sleep")
            .arg("60")
            .env("YOLOFS_TEST_PLACE", "/run/other")
            .env("YOLOFS_TEST", "")
            .spawn()
            .unwrap();
        // The kernel shows its command line shortly after it has begun.
        let deadline = Instant::now() + Duration::from_secs(20);
        let ours = |process: &Process| {
            process.pid == child.id() && process.parent == Some(std::process::id())
        };
        while !running("sleep").iter().any(ours) && Instant::now() < deadline {
            std::thread::yield_now();
        }
        let found = running("sleep").into_iter().find(ours);
        let variable = |name| found.as_ref().and_then(|process| process.variable(name));
        let (place, empty) = (variable("YOLOFS_TEST_PLACE"), variable("YOLOFS_TEST"));
        child.kill().and_then(|()| child.wait()).unwrap();
        assert!(found.is_some());
        assert_eq!(place.as_deref(), Some("/run/other"));
        assert_eq!(empty, None);
        assert!(installed("sleep").is_some() && installed("none-such").is_none());
    }
}
