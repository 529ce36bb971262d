//! Reads the load of the machine: from the files of our control group, or of the whole machine.

use std::fs;
use std::path::{Path, PathBuf};

use super::Reading;

/// Where the kernel exposes processes and control groups.
const PROC: &str = "/proc";
const CGROUPS: &str = "/sys/fs/cgroup";

/// Version 1 writes a number of pages close to this where nothing is limited.
const NO_LIMIT: u64 = 1 << 60;

/// The files that are read; those that do not exist are left out.
#[derive(Debug, Default)]
pub(super) struct Sources {
    cpu: Option<PathBuf>,
    memory: Option<PathBuf>,
    io: Option<PathBuf>,
    /// Our memory control group and those around it, each of which may have a limit.
    groups: Vec<MemoryGroup>,
}

/// A control group that may limit memory.
#[derive(Debug)]
struct MemoryGroup {
    dir: PathBuf,
    names: &'static Names,
}

/// The names of files, and of lines in `memory.stat`, in one version of control groups.
#[derive(Debug)]
struct Names {
    used: &'static str,
    limits: &'static [&'static str],
    /// Page cache of files, which the kernel can reclaim.
    clean: &'static [&'static str],
    /// The part of it that is dirty, and has to be written back first.
    dirty: &'static [&'static str],
}

const V2: Names = Names {
    used: "memory.current",
    limits: &["memory.high", "memory.max"],
    clean: &["inactive_file", "active_file"],
    dirty: &["file_dirty", "file_writeback"],
};

const V1: Names = Names {
    used: "memory.usage_in_bytes",
    limits: &["memory.limit_in_bytes"],
    clean: &["total_inactive_file", "total_active_file"],
    dirty: &["total_dirty", "total_writeback"],
};

impl Sources {
    /// Finds the files of this process.
    pub(super) fn find() -> Self {
        Self::below(Path::new(PROC), Path::new(CGROUPS))
    }

    fn below(proc: &Path, cgroups: &Path) -> Self {
        let mine = fs::read_to_string(proc.join("self/cgroup")).unwrap_or_default();
        // Beside version 1 the second version is mounted one directory below.
        let unified = match cgroups.join("unified").is_dir() {
            true => cgroups.join("unified"),
            false => cgroups.to_owned(),
        };
        let v2 = path_in(&mine, "").map(|path| unified.join(path));
        let v1 = path_in(&mine, "memory").map(|path| cgroups.join("memory").join(path));
        let pressure = |name: &str| {
            let own = v2.as_ref().map(|dir| dir.join(format!("{name}.pressure")));
            let all = proc.join("pressure").join(name);
            let mut places = own.into_iter().chain([all]);
            // Also a kernel that was told not to measure has the files: reading them fails.
            places.find(|path| pressure_in(path, "some").is_some())
        };
        let mut groups = Vec::new();
        for (dir, root, names) in [
            (v2.clone(), &unified, &V2),
            (v1, &cgroups.join("memory"), &V1),
        ] {
            let Some(dir) = dir else { continue };
            let above = dir.ancestors().take_while(|dir| dir.starts_with(root));
            let above = above.filter(|dir| dir.join(names.used).exists());
            groups.extend(above.map(|dir| MemoryGroup {
                dir: dir.to_owned(),
                names,
            }));
        }
        Self {
            cpu: pressure("cpu"),
            memory: pressure("memory"),
            io: pressure("io"),
            groups,
        }
    }

    /// Reads the current values.
    pub(super) fn read(&self) -> Reading {
        let pressure = |path: &Option<PathBuf>, who| pressure_in(path.as_deref()?, who);
        let used = self.groups.iter().filter_map(MemoryGroup::percent);
        Reading {
            cpu: pressure(&self.cpu, "some"),
            memory: pressure(&self.memory, "some"),
            io: pressure(&self.io, "full"),
            memory_used: used.max(),
        }
    }
}

/// Returns the control group of a hierarchy, relative to its mount: lines are `N:NAMES:/PATH`.
fn path_in<'a>(mine: &'a str, controller: &str) -> Option<&'a str> {
    let mut lines = mine.lines().filter_map(|line| {
        let (_, line) = line.split_once(':')?;
        line.split_once(':')
    });
    let found = lines.find(|(names, _)| names.split(',').any(|name| name == controller));
    let (_, path) = found?;
    // A group outside of our view of the hierarchy is shown with dots.
    let is_inside = !path.split('/').any(|part| part == "..");
    is_inside.then(|| path.trim_start_matches('/'))
}

/// Reads a file of pressures: how much of the last ten seconds `some` or all (`full`) waited.
fn pressure_in(path: &Path, who: &str) -> Option<u32> {
    average(&fs::read_to_string(path).ok()?, who)
}

/// Finds `avg10` in a line such as `some avg10=12.97 avg60=3.00 avg300=0.10 total=204342140`.
fn average(text: &str, who: &str) -> Option<u32> {
    let line = text.lines().find_map(|line| line.strip_prefix(who))?;
    let mut words = line.split_ascii_whitespace();
    let value = words.find_map(|word| word.strip_prefix("avg10="))?;
    // A part of a percent decides nothing.
    value.split('.').next()?.parse().ok()
}

impl MemoryGroup {
    /// Returns how much of the tightest limit is used; `None` without one.
    fn percent(&self) -> Option<u32> {
        let number = |name: &str| {
            let text = fs::read_to_string(self.dir.join(name)).ok()?;
            text.trim().parse::<u64>().ok()
        };
        let limits = self.names.limits.iter().filter_map(|name| number(name));
        let limit = limits.filter(|limit| *limit < NO_LIMIT).min()?;
        let used = number(self.names.used)?;
        let stat = fs::read_to_string(self.dir.join("memory.stat")).unwrap_or_default();
        let sum = |names: &[&str]| names.iter().filter_map(|name| stat_of(&stat, name)).sum();
        let (clean, dirty): (u64, u64) = (sum(self.names.clean), sum(self.names.dirty));
        let held = used.saturating_sub(clean.saturating_sub(dirty));
        let percent = held.saturating_mul(100) / limit.max(1);
        Some(u32::try_from(percent).unwrap_or(u32::MAX))
    }
}

fn stat_of(stat: &str, name: &str) -> Option<u64> {
    let mut lines = stat.lines().filter_map(|line| line.split_once(' '));
    lines.find(|(key, _)| *key == name)?.1.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Writes files below a directory, with what is above them.
    fn write(dir: &Path, files: &[(&str, &str)]) {
        for (path, text) in files {
            let path = dir.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
    }

    fn sources(files: &[(&str, &str)]) -> (tempfile::TempDir, Sources) {
        let dir = tempfile::tempdir().unwrap();
        write(dir.path(), files);
        let found = Sources::below(&dir.path().join("proc"), &dir.path().join("cgroup"));
        (dir, found)
    }

    const SOME: &str = "some avg10=12.97 avg60=1.00 avg300=0.10 total=204342140\n\
                        full avg10=3.99 avg60=0.00 avg300=0.00 total=0\n";

    #[test]
    fn lines_of_pressure() {
        assert_eq!(average(SOME, "some"), Some(12));
        assert_eq!(average(SOME, "full"), Some(3));
        // Old kernels have no such line for processors.
        assert_eq!(average("some avg10=0.00 total=0\n", "full"), None);
        for bad in [
            "",
            "some",
            "some avg10=",
            "some avg10=x.1",
            "some avg60=1.00",
        ] {
            assert_eq!(average(bad, "some"), None, "{bad:?}");
        }
    }

    #[test]
    fn our_own_control_group_comes_before_the_machine() {
        let own = "some avg10=77.00 avg60=0.00 avg300=0.00 total=0\n";
        let (_dir, sources) = sources(&[
            ("proc/self/cgroup", "0::/system.slice/nicfetch.service\n"),
            ("proc/pressure/cpu", SOME),
            ("proc/pressure/io", SOME),
            ("cgroup/system.slice/nicfetch.service/cpu.pressure", own),
            (
                "cgroup/system.slice/nicfetch.service/memory.current",
                "900\n",
            ),
            ("cgroup/system.slice/nicfetch.service/memory.high", "1000\n"),
            ("cgroup/system.slice/nicfetch.service/memory.max", "max\n"),
            (
                "cgroup/system.slice/nicfetch.service/memory.stat",
                "anon 300\nactive_file 350\ninactive_file 250\nfile_dirty 90\nfile_writeback 10\n",
            ),
            // The slice around it is tighter.
            ("cgroup/system.slice/memory.current", "950\n"),
            ("cgroup/system.slice/memory.high", "max\n"),
            ("cgroup/system.slice/memory.max", "1900\n"),
            ("cgroup/system.slice/memory.stat", "anon 950\n"),
        ]);
        let expected = Reading {
            cpu: Some(77),
            memory: None,
            io: Some(3),
            memory_used: Some(50),
        };
        assert_eq!(sources.read(), expected);
    }

    #[test]
    fn memory_of_version_one_beside_pressures_of_version_two() {
        let (dir, sources) = sources(&[
            (
                "proc/self/cgroup",
                "4:memory:/nic\n1:cpu,cpuacct:/\n0::/nic\n",
            ),
            ("cgroup/unified/nic/memory.pressure", SOME),
            ("cgroup/memory/memory.usage_in_bytes", "5000\n"),
            (
                "cgroup/memory/memory.limit_in_bytes",
                "9223372036854771712\n",
            ),
            ("cgroup/memory/nic/memory.usage_in_bytes", "1000\n"),
            ("cgroup/memory/nic/memory.limit_in_bytes", "2000\n"),
            ("cgroup/memory/nic/memory.stat", "total_active_file 200\n"),
        ]);
        let expected = Reading {
            memory: Some(12),
            memory_used: Some(40),
            ..Reading::default()
        };
        assert_eq!(sources.read(), expected);
        let limit = "cgroup/memory/nic/memory.limit_in_bytes";
        write(dir.path(), &[(limit, "810\n")]);
        assert_eq!(sources.read().memory_used, Some(98));
    }

    #[test]
    fn a_system_that_says_nothing_is_not_asked() {
        let (_dir, nothing) = sources(&[]);
        assert_eq!(nothing.read(), Reading::default());
        let (_dir, outside) = sources(&[
            ("proc/self/cgroup", "0::/../other\n"),
            ("other/memory.current", "1\n"),
            ("other/memory.max", "1\n"),
        ]);
        assert_eq!(outside.read(), Reading::default());
    }
}
