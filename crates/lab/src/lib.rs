//! A place of its own for each test of the programs: store, run directory, scratch space, and the two programs; and what
//! a test starts there: engines, a node, guests. Tests only: what fails here panics.
//!
//! It is compiled once, for all test programs of `cli`.

#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

pub mod containerd;
pub mod counted;
pub mod docker29;
pub mod docker_process;
pub mod dockerd;
pub mod engines;
pub mod group;
pub mod guest;
pub mod service;
pub mod stopped;
pub mod tiers;
pub mod twin;
pub mod unit;

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

use serde_json::Value;
use tempfile::TempDir;

/// The lab; what is still mounted when it is dropped is unmounted.
#[derive(Debug)]
pub struct Lab {
    dir: TempDir,
}

impl Lab {
    /// Returns a fresh lab. Panics without root: a privileged test that cannot run has failed.
    #[expect(
        clippy::new_without_default,
        reason = "it makes a directory, and may panic"
    )]
    pub fn new() -> Self {
        assert!(
            nix::unistd::geteuid().is_root(),
            "this test mounts file systems: run it as root"
        );
        Self {
            dir: tempfile::Builder::new()
                .prefix("yolofs-lab")
                .tempdir()
                .unwrap(),
        }
    }

    /// Returns its name, which no other lab has.
    pub fn name(&self) -> &str {
        let name = self.dir.path().file_name().unwrap();
        name.to_str().unwrap()
    }

    /// Returns a path in the lab.
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Makes a directory in the lab.
    pub fn make_dir(&self, name: &str) -> PathBuf {
        let path = self.path(name);
        fs::create_dir_all(&path).unwrap();
        path
    }

    /// Returns where boot images are kept.
    pub fn store(&self) -> PathBuf {
        self.path("store")
    }

    /// Returns where those that run leave what others are to find.
    pub fn run_dir(&self) -> PathBuf {
        self.path("run")
    }

    /// Returns `bootimg` with this lab's store and run directory.
    pub fn bootimg(&self) -> Command {
        self.with_places(Command::new(program("bootimg")))
    }

    /// Returns `yolofs` with this lab's store and run directory.
    pub fn yolofs(&self) -> Command {
        self.with_places(Command::new(program("yolofs")))
    }

    /// Returns `yolofs` as a unit of `packaging/` starts it.
    pub fn yolofs_of(&self, unit: &str) -> Command {
        self.with_places(unit::program(unit, program("yolofs")))
    }

    fn with_places(&self, mut command: Command) -> Command {
        command
            .env("YOLOFS_STORE", self.store())
            .env("YOLOFS_RUN_DIR", self.run_dir())
            // That of the machine is everybody's.
            .env("YOLOFS_NIC_CACHE", "none");
        command
            .env_remove("YOLOFS_LOG")
            .env_remove("YOLOFS_LOG_FORMAT");
        command
    }

    /// Mounts `source` on a new directory and returns it.
    pub fn mount(&self, source: &Path, name: &str, flags: &[&str]) -> PathBuf {
        let mountpoint = self.make_dir(name);
        ok(self
            .yolofs()
            .arg("mount")
            .args([source, &mountpoint])
            .args(flags));
        mountpoint
    }

    /// Unmounts; panics if that fails.
    pub fn umount(&self, mountpoint: &Path) {
        ok(self.yolofs().arg("umount").arg(mountpoint));
    }

    /// Returns what `yolofs status --json` says of a mount.
    pub fn status(&self, mountpoint: &Path) -> Value {
        let mounts = json(self.yolofs().args(["status", "--json"]).arg(mountpoint));
        mounts[0].clone()
    }

    /// Returns how many requests of `kind` the daemon of a mount has seen.
    pub fn requests(&self, mountpoint: &Path, kind: &str) -> u64 {
        self.status(mountpoint)["served"]["requests"][kind]
            .as_u64()
            .unwrap_or(0)
    }
}

impl Lab {
    /// Shows what daemons in the background have said.
    fn show_logs(&self) {
        let Ok(entries) = fs::read_dir(self.run_dir()) else {
            return;
        };
        let logs = entries.flatten().map(|entry| entry.path());
        for log in logs.filter(|path| path.extension().is_some_and(|end| end == "log")) {
            let said = fs::read_to_string(&log).unwrap_or_default();
            eprintln!("{} says:\n{said}", log.display());
        }
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.show_logs();
        }
        let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
        let mine = self
            .dir
            .path()
            .to_str()
            .unwrap_or("/nonexistent")
            .to_owned();
        let points = mounts.lines().filter_map(|line| line.split(' ').nth(1));
        for point in points
            .filter(|point| point.starts_with(&mine))
            .collect::<Vec<_>>()
            .iter()
            .rev()
        {
            let umount = Command::new(program("yolofs"))
                .env("YOLOFS_RUN_DIR", self.run_dir())
                .args(["umount", "--lazy", point])
                .output();
            if !umount.is_ok_and(|output| output.status.success()) {
                let _last_resort = Command::new("umount").args(["-l", point]).output();
            }
        }
    }
}

/// Returns a program that cargo has built beside the test program. Panics if it is not there.
fn program(name: &str) -> PathBuf {
    let here = std::env::current_exe().unwrap();
    // A test program is in `deps` below it; in a guest it is beside it.
    let mut beside = here.ancestors().skip(1).take(2).map(|dir| dir.join(name));
    let found = beside.find(|path| path.is_file());
    found.unwrap_or_else(|| {
        let here = here.display();
        panic!("{name} is missing beside {here}: cargo builds it for the tests of cli")
    })
}

/// Returns the directory of the workspace.
fn repository() -> &'static Path {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.ancestors().nth(2).unwrap()
}

/// Runs a command and returns its output, whatever its code.
pub fn output(command: &mut Command) -> Output {
    command
        .output()
        .unwrap_or_else(|error| panic!("{command:?}: {error}"))
}

/// Runs a command that must succeed, and returns its standard output.
pub fn ok(command: &mut Command) -> String {
    let output = output(command);
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert!(
        output.status.success(),
        "{command:?}: {}\n{out}{err}",
        output.status
    );
    out
}

/// Runs a command that must fail with `code`, and returns its standard error.
pub fn fails(code: i32, command: &mut Command) -> String {
    let output = output(command);
    let err = text(&output.stderr);
    assert_eq!(
        output.status.code(),
        Some(code),
        "{command:?}\n{}{err}",
        text(&output.stdout)
    );
    err
}

/// Runs a command that must succeed, and returns its standard output as JSON.
pub fn json(command: &mut Command) -> Value {
    let out = ok(command);
    serde_json::from_str(&out).unwrap_or_else(|error| panic!("{command:?}: {error}\n{out}"))
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Makes a small root that can run a shell: busybox, its usual names, and some data.
pub fn busybox_root(root: &Path) {
    let busybox = ["/bin/busybox", "/usr/bin/busybox"]
        .into_iter()
        .find(|path| Path::new(path).exists());
    let busybox = busybox.expect("busybox-static is not installed: scripts/test.sh installs it");
    for dir in ["bin", "etc", "usr/lib", "tmp", "proc", "dev", "sys"] {
        fs::create_dir_all(root.join(dir)).unwrap();
    }
    fs::copy(busybox, root.join("bin/busybox")).unwrap();
    fs::set_permissions(root.join("bin/busybox"), fs::Permissions::from_mode(0o755)).unwrap();
    for name in [
        "sh", "cat", "ls", "sleep", "true", "md5sum", "find", "nc", "httpd", "dd", "stat",
    ] {
        std::os::unix::fs::symlink("busybox", root.join("bin").join(name)).unwrap();
    }
    fs::write(root.join("etc/config"), "answer = 42\n").unwrap();
    for index in 0..20_u32 {
        fs::write(
            root.join(format!("usr/lib/part{index:02}")),
            noise(index, 30_000),
        )
        .unwrap();
    }
}

/// Returns bytes that do not compress and that differ for each seed.
pub fn noise(seed: u32, len: usize) -> Vec<u8> {
    let mut state = u64::from(seed).wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut next = || {
        // xorshift64: any generator will do, as long as it is the same every time.
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()[3]
    };
    (0..len).map(|_| next()).collect()
}

/// Asserts that all threads of a process have these capabilities, get no others, and have a filter
/// of system calls.
#[track_caller]
pub fn assert_confined_to(pid: &serde_json::Value, capabilities: u64) {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    // One that ended meanwhile has none.
    let tasks =
        tasks.filter_map(|task| fs::read_to_string(task.unwrap().path().join("status")).ok());
    let sets = ["CapPrm", "CapEff", "CapBnd"].map(|set| format!("{set}:\t{capabilities:016x}\n"));
    for task in tasks {
        for expected in sets
            .iter()
            .map(String::as_str)
            .chain(["NoNewPrivs:\t1", "Seccomp:\t2"])
        {
            assert!(task.contains(expected), "{expected}\n{task}");
        }
    }
}

/// Returns where `scripts/images/` puts what it makes.
pub fn images() -> PathBuf {
    std::env::var_os("YOLOFS_IMAGES")
        .map_or_else(|| repository().join(".cache/images"), PathBuf::from)
}

/// Returns the Debian root that `scripts/images/root.sh` makes.
pub fn debian_root() -> PathBuf {
    let root = images().join("root");
    let missing = format!("{} is missing: run scripts/images/root.sh", root.display());
    assert!(root.join("etc/debian_version").exists(), "{missing}");
    root
}

/// How long [`until`] waits from one look to the next: at first, and when it has waited for a second.
const LOOK_SOON: Duration = Duration::from_millis(5);
const LOOK_LATE: Duration = Duration::from_millis(60);

/// Waits until `condition` holds; panics if it takes so long that it never will.
pub fn until(what: &str, mut condition: impl FnMut() -> bool) {
    // Long enough for a busy machine; reached only by a failure.
    let patience = Duration::from_secs(60);
    let start = std::time::Instant::now();
    while !condition() {
        assert!(start.elapsed() < patience, "waited in vain: {what}");
        // Most conditions start a program: to look all the time would take the processor from what is waited for.
        let pause = (start.elapsed() / 16).clamp(LOOK_SOON, LOOK_LATE);
        std::thread::sleep(pause);
    }
}

/// Waits for a boot that reads nothing: memory may be short on the machine, and the kernel drop what was
/// brought into the page cache before the boot comes to it. So everything is brought there again each time.
pub fn until_boot_reads_nothing(lab: &Lab, reads: impl Fn() -> u64, mut boot: impl FnMut(u32)) {
    let mut number = 0;
    until("a boot that reads nothing", || {
        ok(lab.bootimg().args(["prewarm", "--all"]));
        let before = reads();
        number += 1;
        boot(number);
        reads() == before
    });
}
