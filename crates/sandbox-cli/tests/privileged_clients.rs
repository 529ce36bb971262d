//! Clients of the daemon that others run: the real pytest, and the real Jupyter.

#![cfg(feature = "privileged")]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const PROGRAM: &str = env!("CARGO_BIN_EXE_sandbox");
const PATIENCE: Duration = Duration::from_secs(60);

/// A daemon, wheels, and packages of the machine's own Python.
struct Served {
    dir: tempfile::TempDir,
    daemon: Child,
}

impl Served {
    /// `packages` are those that the client needs itself.
    fn start(packages: &[&str]) -> Self {
        assert!(nix::unistd::geteuid().is_root(), "this test needs root");
        let dir = tempfile::tempdir().unwrap();
        let name = dir.path().file_name().unwrap().to_str().unwrap();
        let archive = images().join("wheels.tar");
        assert!(
            archive.exists(),
            "{} is missing: run scripts/images/wheels.sh",
            archive.display()
        );
        ok(Command::new("tar")
            .arg("-xf")
            .arg(archive)
            .arg("-C")
            .arg(dir.path()));
        let (wheels, site) = (dir.path().join("wheels"), dir.path().join("site"));
        let pip =
            "-m pip install -q --no-compile --no-index --root-user-action ignore --find-links";
        ok(Command::new("/usr/bin/python3")
            .args(pip.split(' '))
            .arg(wheels)
            .arg("--target")
            .arg(site)
            .args(packages));
        let daemon = Command::new(PROGRAM)
            .arg("--run-dir")
            .arg(dir.path().join("run"))
            .args(["serve", "--max", "64", "--cgroup"])
            .arg(format!(
                "sandbox-clients-test/{}",
                name.trim_start_matches('.')
            ))
            .arg("--first-uid")
            .arg((0x7000_0000 + std::process::id() % 1000 * 0x1_0000).to_string())
            .arg("--packages")
            .arg(dir.path().join("packages"))
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let served = Self { dir, daemon };
        let deadline = Instant::now() + PATIENCE;
        while !served
            .sandbox(&["stats"])
            .output()
            .unwrap()
            .status
            .success()
        {
            assert!(Instant::now() < deadline, "the daemon does not come");
            std::thread::sleep(Duration::from_millis(5));
        }
        ok(&mut served.sandbox(&["base", "add", "host", "/", "--hide", "work"]));
        served
    }

    fn at(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn sandbox(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(PROGRAM);
        command.arg("--run-dir").arg(self.at("run")).args(arguments);
        command
    }

    fn add(&self, package: &str) {
        let wheels = self.at("wheels");
        let add = ["package", "add", "--base", "host", "--from"];
        ok(self.sandbox(&add).arg(wheels).arg(package));
    }

    /// Python with our clients and what they need, with a deadline.
    fn python(&self, dir: &Path) -> Command {
        let clients = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../clients");
        let mut command = Command::new("timeout");
        let path = format!("{}:{}", self.at("site").display(), clients.display());
        command
            .args(["--kill-after=5", "120", "/usr/bin/python3"])
            .current_dir(dir)
            .env("PYTHONPATH", path)
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .env("HOME", self.dir.path());
        command
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let listed = self.sandbox(&["ps", "--json"]).output();
        let listed = listed.map(|output| output.stdout).unwrap_or_default();
        let listed: serde_json::Value = serde_json::from_slice(&listed).unwrap_or_default();
        for sandbox in listed.as_array().into_iter().flatten() {
            let id = sandbox["id"].as_str().unwrap_or_default();
            let _gone = self.sandbox(&["kill", id]).output();
        }
        let pid = self.daemon.id().to_string();
        let _ended = Command::new("kill").args(["-TERM", &pid]).status();
        let _reaped = self.daemon.wait();
    }
}

fn images() -> PathBuf {
    let here = || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.cache/images");
    std::env::var_os("YOLOFS_IMAGES").map_or_else(here, PathBuf::from)
}

/// Runs a command, and returns what it says.
fn ok(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said).into_owned();
    assert!(output.status.success(), "{command:?}: {said}");
    said
}

#[test]
fn pytest_runs_each_test_in_a_sandbox() {
    let served = Served::start(&["pytest"]);
    served.add("pytest");
    let tests = served.at("tests");
    fs::create_dir(&tests).unwrap();
    let text = "
import os, pytest
def test_first():
    open('/tmp/left', 'w').close()
    assert os.getpid() == 1 and os.getuid() != 0
def test_second(): assert not os.path.exists('/tmp/left')
def test_fails(): assert 'this' == 'that'
def test_ends(): os._exit(9)
@pytest.mark.skip
def test_skipped(): pass
";
    fs::write(tests.join("test_own.py"), text).unwrap();
    let mut pytest = served.python(&tests);
    pytest
        .args("-m pytest -q -p no:cacheprovider -p pytest_sandbox --sandbox-base host".split(' '))
        .args(["--sandbox-require", "pytest", "--sandbox-run-dir"])
        .arg(served.at("run"));
    let output = pytest.output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("2 failed, 2 passed, 1 skipped"), "{said}");
    assert!(said.contains("assert 'this' == 'that'"), "{said}");
}

#[test]
fn a_kernel_of_jupyter_runs_in_a_sandbox() {
    let served = Served::start(&["jupyter_client"]);
    served.add("ipykernel");
    // As a package that is installed would name it.
    let info = served.at("site/sandbox_provisioner-1.dist-info");
    fs::create_dir(&info).unwrap();
    fs::write(
        info.join("METADATA"),
        "Metadata-Version: 2.1\nName: sandbox-provisioner\nVersion: 1\n",
    )
    .unwrap();
    let entry = "[jupyter_client.kernel_provisioners]\n\
                 sandbox-provisioner = sandbox_provisioner:SandboxProvisioner\n";
    fs::write(info.join("entry_points.txt"), entry).unwrap();
    let kernel = served.at("jupyter/kernels/sandboxed");
    fs::create_dir_all(&kernel).unwrap();
    let spec = serde_json::json!({
        "argv": ["python", "-m", "ipykernel_launcher", "-f", "{connection_file}"],
        "display_name": "Sandboxed", "language": "python",
        "metadata": {"kernel_provisioner": {"provisioner_name": "sandbox-provisioner", "config": {
            "base": "host", "requires": ["ipykernel"], "run_dir": served.at("run")}}},
    });
    fs::write(kernel.join("kernel.json"), spec.to_string()).unwrap();
    let text = "
from jupyter_client import KernelManager
manager = KernelManager(kernel_name='sandboxed')
manager.start_kernel()
client = manager.client()
client.start_channels()
client.wait_for_ready(timeout=90)
def say(code):
    said = []
    def hear(message):
        if message['msg_type'] in ('stream', 'error'):
            said.append(message['content'].get('text') or message['content']['ename'])
    client.execute_interactive(code, output_hook=hear, timeout=60)
    return ''.join(said).strip()
print('process', say('import os; print(os.getpid(), os.getuid() != 0, os.path.exists(\"/root/.bashrc\"))'))
print('value', say('x = 6'), say('print(x * 7)'))
client.stop_channels()
manager.shutdown_kernel(now=True)
print('ended')
";
    let mut jupyter = served.python(served.dir.path());
    jupyter
        .env("JUPYTER_PATH", served.at("jupyter"))
        .env("JUPYTER_RUNTIME_DIR", served.at("runtime"))
        .args(["-c", text]);
    let said = ok(&mut jupyter);
    assert!(
        said.contains("process 1 True False\nvalue  42\nended\n"),
        "{said}"
    );
    let listed = ok(&mut served.sandbox(&["ps"]));
    assert!(!listed.contains("running"), "{listed}");
}
