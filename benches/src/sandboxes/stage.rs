//! What the measurements are made with: a program that does nothing, bases, and bundles of the same.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use sandbox::{BaseSpec, Config, Request, Sandboxes};

use super::docker::Docker;

/// Sandboxes of a run, and the files that they need.
#[derive(Debug)]
pub struct Stage {
    pub(super) sandboxes: Sandboxes,
    dir: tempfile::TempDir,
    /// The records of the sandboxes.
    _run: tempfile::TempDir,
    next_docker: AtomicU64,
}

/// What else runs the program that does nothing.
#[derive(Debug)]
pub(super) enum Other {
    /// A runtime.
    Bundle(Bundle),
    /// An engine.
    Docker(Docker),
}

impl Other {
    /// What is measured.
    pub(super) fn name(&self) -> String {
        match self {
            Self::Bundle(bundle) if bundle.is_legacy => {
                format!("{} run, by unshare and sh", bundle.runtime)
            }
            Self::Bundle(bundle) => format!("{} run", bundle.runtime),
            Self::Docker(_) => "docker run".to_owned(),
        }
    }

    /// Runs it to its end.
    pub(super) fn run(&self) -> anyhow::Result<()> {
        match self {
            Self::Bundle(bundle) => bundle.run(),
            Self::Docker(docker) => docker.run(),
        }
    }
}

/// A bundle that an OCI runtime runs.
#[derive(Debug)]
pub(super) struct Bundle {
    runtime: &'static str,
    /// Whether it sees control groups of version 1 only.
    is_legacy: bool,
    dir: PathBuf,
    state: PathBuf,
    next: AtomicU64,
}

impl Stage {
    /// Makes the files and opens the sandboxes.
    ///
    /// # Errors
    /// If this process is not root, or the machine cannot have sandboxes.
    pub fn set() -> anyhow::Result<Self> {
        ensure!(
            nix::unistd::geteuid().is_root(),
            "sandboxes need root: run it as root"
        );
        let dir = tempfile::tempdir()?;
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755))?;
        let root = dir.path().join("root");
        for name in ["bin", "proc", "dev", "sys", "tmp"] {
            fs::create_dir_all(root.join(name))?;
        }
        let noop = root.join("bin/noop");
        fs::write(&noop, noop_program()?)?;
        fs::set_permissions(&noop, fs::Permissions::from_mode(0o755))?;
        fs::create_dir(dir.path().join("store"))?;
        // In memory, as `/run` is on most machines: each start makes a file there, and each end removes it.
        let run = tempfile::tempdir_in("/dev/shm")?;
        let config = Config::new(
            run.path().join("sandbox"),
            &format!("bench-sandbox-{}", std::process::id()),
        );
        let sandboxes = Sandboxes::open(config)?;
        let base = |name: &str, root: &Path| BaseSpec {
            name: name.to_owned(),
            root: root.to_owned(),
            hide: vec!["work".to_owned()],
        };
        sandboxes.add_base(&base("noop", &root))?;
        sandboxes.add_base(&base("host", Path::new("/")))?;
        Ok(Self {
            sandboxes,
            dir,
            _run: run,
            next_docker: AtomicU64::new(0),
        })
    }

    pub(super) fn noop_root(&self) -> PathBuf {
        self.dir.path().join("root")
    }

    pub(super) fn noop_path(&self) -> PathBuf {
        self.noop_root().join("bin/noop")
    }

    pub(super) fn noop_request(&self) -> Request {
        Request::new("noop", &["/bin/noop"])
    }

    pub(super) fn store(&self) -> PathBuf {
        self.dir.path().join("store")
    }

    /// Returns what else there is on this machine that can run the program.
    pub(super) fn others(&self) -> anyhow::Result<Vec<Other>> {
        let mut others = Vec::new();
        for runtime in ["runc", "crun"] {
            others.extend(self.bundle(runtime)?.map(Other::Bundle));
        }
        let number = self.next_docker.fetch_add(1, Relaxed);
        let dir = self.dir.path().join(format!("docker-{number}"));
        let docker = Docker::start(dir, &self.dir.path().join("root"))?;
        others.extend(docker.map(Other::Docker));
        Ok(others)
    }

    /// Makes a bundle for a runtime, unless the runtime is not there or cannot run it on this machine. crun 1.8 refuses
    /// one with both versions of control groups, so version 2 is hidden from it.
    fn bundle(&self, runtime: &'static str) -> anyhow::Result<Option<Bundle>> {
        let found = Command::new(runtime)
            .arg("--version")
            .stdout(Stdio::null())
            .status();
        if found.is_err() {
            return Ok(None);
        }
        let dir = self.dir.path().join(format!("bundle-{runtime}"));
        fs::create_dir_all(&dir)?;
        let path = dir.join("config.json");
        if !path.exists() {
            let mut command = Command::new(runtime);
            let made = command.arg("spec").current_dir(&dir).status()?;
            ensure!(made.success(), "{runtime} spec failed");
        }
        let mut config: serde_json::Value = serde_json::from_slice(&fs::read(&path)?)?;
        config["process"]["args"] = serde_json::json!(["/bin/noop"]);
        config["process"]["terminal"] = serde_json::json!(false);
        config["root"]["path"] = serde_json::json!(self.dir.path().join("root"));
        fs::write(&path, serde_json::to_vec(&config)?)?;
        let mut bundle = Bundle {
            runtime,
            is_legacy: false,
            dir,
            state: self.dir.path().join(format!("state-{runtime}")),
            next: AtomicU64::new(0),
        };
        if bundle.run().is_ok() {
            return Ok(Some(bundle));
        }
        bundle.is_legacy = true;
        match bundle.run() {
            Ok(()) => Ok(Some(bundle)),
            Err(error) => {
                eprintln!("bench-sandbox: without {runtime}: {error:#}");
                Ok(None)
            }
        }
    }

    /// Writes a package of 150 modules with 100 functions each.
    pub(super) fn write_large_package(&self, package: &str) -> anyhow::Result<()> {
        let dir = self.store().join(package).join("large");
        fs::create_dir_all(&dir)?;
        let functions = (0..100).map(|n| format!("def f{n}(a, b=1):\n    return [a, b, {n}]\n"));
        let text: String = functions.collect();
        let mut all = String::new();
        for number in 0..150 {
            fs::write(dir.join(format!("m{number}.py")), &text)?;
            all.push_str(&format!("from . import m{number}\n"));
        }
        all.push_str("def answer():\n    return m0.f0(1)\n");
        fs::write(dir.join("__init__.py"), all)?;
        // As an installer does.
        let compiled = Command::new("/usr/bin/python3")
            .args(["-m", "compileall", "-q"])
            .arg(&dir)
            .status()?;
        ensure!(compiled.success(), "compiling the package failed");
        Ok(())
    }

    /// Ends all sandboxes.
    pub(super) fn end_all(&self) -> anyhow::Result<()> {
        Ok(self.sandboxes.end_all(Duration::from_secs(120))?)
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        if let Err(error) = self.end_all() {
            eprintln!("bench-sandbox: {error}");
        }
    }
}

impl Bundle {
    /// Runs the bundle to its end.
    fn run(&self) -> anyhow::Result<()> {
        let number = self.next.fetch_add(1, Relaxed);
        let mut command = Command::new(if self.is_legacy {
            "unshare"
        } else {
            self.runtime
        });
        if self.is_legacy {
            let hide = "umount /sys/fs/cgroup/unified && exec \"$0\" \"$@\"";
            command.args(["--mount", "sh", "-c", hide, self.runtime]);
        }
        let status = command
            .arg("--root")
            .arg(&self.state)
            .args(["run", "--bundle"])
            .arg(&self.dir)
            .arg(format!("bench-{}-{number}", std::process::id()))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .status()
            .with_context(|| format!("starting {}", self.runtime))?;
        ensure!(status.success(), "{} run failed: {status}", self.runtime);
        Ok(())
    }
}

/// Returns a program without a libc that ends at once, so that its own start costs nothing.
#[cfg(target_arch = "x86_64")]
fn noop_program() -> anyhow::Result<Vec<u8>> {
    const LOAD: u64 = 0x40_0000;
    /// Headers of a file and of one segment.
    const HEADERS: u16 = 64 + 56;
    // xor edi, edi; mov eax, 60; syscall
    let code = [0x31, 0xff, 0xb8, 60, 0, 0, 0, 0x0f, 0x05];
    let size = u64::from(HEADERS) + u64::try_from(code.len())?;
    let mut elf = b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0".to_vec();
    for half in [2_u16, 62] {
        elf.extend(half.to_le_bytes());
    }
    elf.extend(1_u32.to_le_bytes());
    for long in [LOAD + u64::from(HEADERS), 64, 0] {
        elf.extend(long.to_le_bytes());
    }
    elf.extend(0_u32.to_le_bytes());
    for half in [64_u16, 56, 1, 0, 0, 0] {
        elf.extend(half.to_le_bytes());
    }
    for word in [1_u32, 5] {
        elf.extend(word.to_le_bytes());
    }
    for long in [0, LOAD, LOAD, size, size, 0x1000] {
        elf.extend(long.to_le_bytes());
    }
    elf.extend(code);
    Ok(elf)
}

#[cfg(not(target_arch = "x86_64"))]
fn noop_program() -> anyhow::Result<Vec<u8>> {
    anyhow::bail!(
        "there is a program that does nothing for x86_64 only: add one for this processor"
    )
}
