//! The program as people use it: a daemon, and commands that ask it.

#![cfg(feature = "privileged")]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::io::Read as _;
use std::net::{Ipv4Addr, TcpStream};
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

const PROGRAM: &str = env!("CARGO_BIN_EXE_sandbox");
const PATIENCE: Duration = Duration::from_secs(60);

/// A daemon of a test, with a directory and control groups of its own.
struct Served {
    dir: tempfile::TempDir,
    cgroup: String,
    /// More arguments of the daemon.
    more: Vec<String>,
    daemon: Option<Child>,
}

impl Served {
    fn start() -> Self {
        Self::start_with(&[])
    }

    fn start_with(more: &[&str]) -> Self {
        assert!(is_root(), "this test needs root");
        let dir = tempfile::tempdir().unwrap();
        let name = dir.path().file_name().unwrap().to_str().unwrap();
        let cgroup = format!("sandbox-cli-test/{}", name.trim_start_matches('.'));
        let mut served = Self {
            dir,
            cgroup,
            more: more.iter().map(|&more| more.to_owned()).collect(),
            daemon: None,
        };
        served.serve();
        served.ok(&["base", "add", "host", "/", "--hide", "work"]);
        served
    }

    fn run_dir(&self) -> PathBuf {
        self.dir.path().join("run")
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(PROGRAM);
        command.arg("--run-dir").arg(self.run_dir()).args(arguments);
        command
    }

    fn serve(&mut self) {
        let first_uid = (0x7000_0000 + std::process::id() % 1000 * 0x1_0000).to_string();
        let packages = self.dir.path().join("packages");
        let arguments = [
            "serve",
            "--packages",
            packages.to_str().unwrap(),
            "--cgroup",
            &self.cgroup,
            "--first-uid",
            &first_uid,
            "--max",
            "256",
        ];
        // As from a shell in the background, which has it ignore Ctrl-C; and where core files are wanted.
        let daemon = Command::new("sh")
            .args([
                "-c",
                "trap '' INT HUP USR1; ulimit -c unlimited; exec \"$0\" \"$@\"",
                PROGRAM,
            ])
            .arg("--run-dir")
            .arg(self.run_dir())
            .args(arguments)
            .args(&self.more)
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        self.daemon = Some(daemon);
        let deadline = Instant::now() + PATIENCE;
        while !self.command(&["stats"]).output().unwrap().status.success() {
            assert!(Instant::now() < deadline, "the daemon does not come");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Kills the daemon as a crash does.
    fn kill(&mut self) {
        let mut daemon = self.daemon.take().unwrap();
        daemon.kill().unwrap();
        daemon.wait().unwrap();
    }

    fn run(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().unwrap()
    }

    fn ok(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{arguments:?}: {error}");
        String::from_utf8(output.stdout).unwrap()
    }

    fn refused(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        assert_eq!(output.status.code(), Some(125), "{arguments:?}");
        String::from_utf8(output.stderr).unwrap()
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        if std::thread::panicking() {
            if let Some(daemon) = &mut self.daemon {
                let _gone = daemon.kill();
            }
            return;
        }
        let listed = self.run(&["ps", "--json"]).stdout;
        let listed: serde_json::Value = serde_json::from_slice(&listed).unwrap_or_default();
        for sandbox in listed.as_array().into_iter().flatten() {
            self.run(&["kill", sandbox["id"].as_str().unwrap()]);
        }
        for _ in 0..1000 {
            if self.ok(&["stats"]).contains("sandboxes: 0 live") {
                break;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        if self.daemon.is_some() {
            self.kill();
        }
        // The next one removes what the former has left.
        self.serve();
        let pid = self.daemon.as_ref().unwrap().id().to_string();
        Command::new("kill").args(["-TERM", &pid]).status().unwrap();
        self.daemon.take().unwrap().wait().unwrap();
        for hierarchy in ["unified", "memory", "cpu", ""] {
            let dir = Path::new("/sys/fs/cgroup")
                .join(hierarchy)
                .join(&self.cgroup);
            if dir.is_dir() {
                std::fs::remove_dir(dir).expect("no group is left");
            }
        }
    }
}

fn is_root() -> bool {
    let id = Command::new("id").arg("-u").output().unwrap();
    id.stdout == b"0\n"
}

#[test]
fn a_program_runs_and_its_end_is_ours() {
    let served = Served::start();
    let output = served.run(&[
        "run",
        "--base",
        "host",
        "--",
        "/bin/sh",
        "-c",
        "echo out; echo err >&2; exit 7",
    ]);
    assert_eq!(output.status.code(), Some(7));
    assert_eq!(
        (&output.stdout[..], &output.stderr[..]),
        (&b"out\n"[..], &b"err\n"[..])
    );
    let output = served.run(&[
        "run",
        "--base",
        "host",
        "--timeout",
        "1",
        "--",
        "/bin/sleep",
        "1000",
    ]);
    assert_eq!(output.status.code(), Some(124));
    let output = served.run(&["run", "--base", "host", "--", "/bin/sh", "-c", "kill -9 $$"]);
    // The first process of a PID namespace cannot kill itself.
    assert_eq!(output.status.code(), Some(0));
    let said = served.ok(&["run", "--base", "host", "-e", "A=b", "--", "/usr/bin/env"]);
    assert!(said.contains("A=b\n"), "{said}");
    let ignored = ["/bin/grep", "SigIgn", "/proc/self/status"];
    let said = served.ok(&[&["run", "--base", "host", "--"][..], &ignored].concat());
    let mask = said.trim().rsplit('\t').next().unwrap();
    // But for those above, which are libc's own.
    let mask = u64::from_str_radix(mask, 16).unwrap() & 0x7fff_ffff;
    assert_eq!(mask, 0, "{said}");
    let error = served.refused(&["run", "--base", "none", "--", "/bin/true"]);
    assert_eq!(error, "sandbox: there is no base none\n");
    let error = served.refused(&["run", "--base", "host", "--", "/bin/nothing"]);
    assert!(
        error.contains("executing the program failed: No such file"),
        "{error}"
    );
    assert_eq!(served.run(&["run"]).status.code(), Some(2));
    let error = served.refused(&["pause", "nobody"]);
    assert_eq!(error, "sandbox: there is no sandbox nobody\n");
}

#[test]
fn a_sandbox_is_paused_looked_into_and_ended() {
    let served = Served::start();
    let id = served.ok(&["run", "--base", "host", "-d", "--", "/bin/sleep", "1000"]);
    let id = id.trim();
    served.ok(&["pause", id]);
    assert!(served.ok(&["ps"]).contains("paused"));
    served.ok(&["resume", id]);
    let said = served.ok(&[
        "exec",
        id,
        "--",
        "/bin/sh",
        "-c",
        "ls /proc | grep -c '^[0-9]'; cat /proc/1/comm",
    ]);
    assert!(said.ends_with("sleep\n"), "{said}");
    let late = served.run(&["exec", id, "--timeout", "1", "--", "/bin/sleep", "1000"]);
    assert_eq!(late.status.code(), Some(124));
    served.ok(&["kill", id]);
    let deadline = Instant::now() + PATIENCE;
    while !served.ok(&["ps"]).contains("ended by signal 9, killed") {
        assert!(Instant::now() < deadline);
    }
    let stats = served.ok(&["stats", "--json"]);
    let stats: serde_json::Value = serde_json::from_str(&stats).unwrap();
    assert_eq!(stats["sandboxes"]["started"], 1);
}

#[test]
fn python_is_forked_and_explained() {
    let served = Served::start();
    let zygote = served.ok(&["zygote", "add", "--base", "host", "--module", "json"]);
    let zygote = zygote.trim();
    assert!(served.ok(&["zygote", "ls"]).contains(zygote));
    let text = "import json, sys; print(json.dumps(sys.argv)); sys.exit(3)";
    let output = served.run(&[
        "run", "--base", "host", "--python", "--json", "--", "-c", text, "a",
    ]);
    assert_eq!(output.status.code(), Some(3));
    let seen: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(seen["output"]["stdout"], "[\"-c\", \"a\"]\n");
    let id = seen["sandbox"]["id"].as_str().unwrap();
    let explained = served.ok(&["explain", id]);
    assert!(
        explained.contains(&format!("descends from: {zygote} []")),
        "{explained}"
    );
    served.ok(&["evict", zygote]);
    served.refused(&["evict", zygote]);
}

/// Makes a wheel of a package with one module, and some data: `wheel.py DIR NAME BYTES`.
const WHEEL: &str = "
import sys, zipfile
place, name, size = sys.argv[1:]
with zipfile.ZipFile(f'{place}/{name}-1.5-py3-none-any.whl', 'w') as wheel:
    wheel.writestr(f'{name}.py', 'LAYERS = 3')
    wheel.writestr(f'{name}_data', 'x' * int(size))
    info = f'{name}-1.5.dist-info'
    wheel.writestr(info + '/METADATA', f'Metadata-Version: 2.1\\nName: {name}\\nVersion: 1.5\\n')
    wheel.writestr(info + '/WHEEL', 'Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n')
    wheel.writestr(info + '/RECORD', '')
";

fn wheel(place: &str, name: &str, bytes: u32) {
    let arguments = ["-c", WHEEL, place, name, &bytes.to_string()];
    let made = Command::new("python3").args(arguments).status();
    assert!(made.unwrap().success());
}

#[test]
fn a_package_is_added_required_and_removed() {
    let served = Served::start();
    let links = tempfile::tempdir().unwrap();
    let from = links.path().to_str().unwrap();
    wheel(from, "cake", 10);
    let text = "import cake; print(cake.LAYERS)";
    let run = [
        "run",
        "--base",
        "host",
        "--python",
        "--require",
        "cake>1",
        "--",
        "-c",
        text,
    ];
    let error = served.refused(&run);
    assert!(
        error.contains("sandbox package add --base host cake>1"),
        "{error}"
    );
    let added = served.ok(&["package", "add", "--base", "host", "--from", from, "cake>1"]);
    assert_eq!(added, "cake==1.5\n");
    assert_eq!(served.ok(&run), "3\n");
    let exact = [
        "run",
        "--base",
        "host",
        "--python",
        "--package",
        "cake==1.5",
        "--",
        "-c",
        text,
    ];
    assert_eq!(served.ok(&exact), "3\n");
    assert!(served.ok(&["package", "ls"]).contains("cake==1.5  host"));
    served.ok(&["package", "remove", "--base", "host", "cake==1.5"]);
    served.refused(&["package", "remove", "--base", "host", "cake==1.5"]);
    served.refused(&run);
    let error = served.refused(&["package", "add", "--base", "host", "--from", from, "bread"]);
    assert!(error.contains("resolving bread failed"), "{error}");
}

/// Packages are on the disk, and the next daemon has those that the one before it has kept.
#[test]
fn packages_outlive_a_daemon_and_stay_within_their_bound() {
    let mut served = Served::start_with(&["--keep-packages", "1"]);
    let links = tempfile::tempdir().unwrap();
    let from = links.path().to_str().unwrap();
    for (name, bytes) in [("cake", 10), ("stone", 700_000), ("brick", 700_000)] {
        wheel(from, name, bytes);
    }
    let add = |served: &Served, name| {
        served.ok(&["package", "add", "--base", "host", "--from", from, name])
    };
    let run = ["run", "--base", "host", "--python", "--require"];
    let use_one = |served: &Served, name: &str| {
        let text = format!("import {name}; print({name}.LAYERS)");
        served.run(&[&run[..], &[name, "--", "-c", &text]].concat())
    };
    add(&served, "cake");
    add(&served, "stone");
    served.kill();
    served.serve();
    // Installed and resolved: nothing is asked of anybody any more.
    std::fs::remove_file(links.path().join("cake-1.5-py3-none-any.whl")).unwrap();
    assert_eq!(add(&served, "cake"), "cake==1.5\n");
    for name in ["cake", "stone"] {
        assert_eq!(use_one(&served, name).stdout, b"3\n", "{name}");
    }
    // There is no room for all three: one of the large ones goes.
    add(&served, "brick");
    let listed = |served: &Served| {
        let list = served.ok(&["package", "ls"]);
        ["cake", "stone", "brick"].map(|name| list.contains(name))
    };
    let deadline = Instant::now() + PATIENCE;
    while listed(&served) == [true; 3] {
        assert!(Instant::now() < deadline, "no package goes");
        std::thread::sleep(Duration::from_millis(10));
    }
    let kept = listed(&served);
    assert!(kept[0] && kept[1] != kept[2], "{kept:?}");
    served.kill();
    served.serve();
    assert_eq!(listed(&served), kept);
    for (name, is_kept) in ["cake", "stone", "brick"].into_iter().zip(kept) {
        let output = use_one(&served, name);
        assert_eq!(output.status.success(), is_kept, "{name}: {output:?}");
    }
}

#[test]
fn a_sandbox_on_the_bridge_has_an_address_that_outlives_the_daemon() {
    let pid = std::process::id();
    let subnet = format!("10.{}.{}.0/24", 192 + (pid >> 8 & 31), pid & 255);
    let bridge = format!("c{:x}", pid & 0x7fff);
    let mut served = Served::start_with(&["--subnet", &subnet, "--bridge", &bridge]);
    let text = "import socket
server = socket.create_server(('', 80))
while True: server.accept()[0].sendall(b'here')";
    let server = ["/usr/bin/python3", "-c", text];
    let mut run = vec!["run", "--base", "host", "--network", "veth", "-d", "--"];
    run.extend(server);
    let id = served.ok(&run);
    let ps = served.ok(&["ps"]);
    let line = ps.lines().find(|line| line.contains(id.trim())).unwrap();
    let address = line.split_whitespace().find(|word| word.starts_with("10."));
    let address: Ipv4Addr = address.expect(line).parse().unwrap();
    let reach = || {
        let deadline = Instant::now() + PATIENCE;
        let mut said = String::new();
        while said.is_empty() {
            assert!(Instant::now() < deadline, "nothing answers at {address}");
            // Refused until it listens.
            if let Ok(mut stream) = TcpStream::connect_timeout(&(address, 80).into(), PATIENCE) {
                stream.read_to_string(&mut said).unwrap();
            }
        }
        assert_eq!(said, "here");
    };
    reach();
    served.kill();
    reach();
    served.serve();
    reach();
    assert!(served.ok(&["ps"]).contains(&address.to_string()));
    // No other flag is meant by the advice.
    let plain = Served::start();
    let error = plain.refused(&[
        "run",
        "--base",
        "host",
        "--network",
        "veth",
        "--",
        "/bin/true",
    ]);
    assert!(error.contains("sandbox serve --subnet"), "{error}");
    drop(served);
    assert!(!Path::new("/sys/class/net").join(bridge).exists());
}

#[test]
fn a_daemon_that_is_killed_is_followed_by_one_that_knows_all() {
    let mut served = Served::start();
    served.ok(&["zygote", "add", "--base", "host"]);
    let script = "mkfifo /tmp/go; read x </tmp/go; echo after; exit 9";
    let plain = served.ok(&["run", "--base", "host", "-d", "--", "/bin/sh", "-c", script]);
    let text = "import os; os.mkfifo('/tmp/go'); open('/tmp/go').read(); print('after'); os._exit(9) if not __import__('sys').stdout.flush() else 0";
    let forked = served.ok(&["run", "--base", "host", "--python", "-d", "--", "-c", text]);
    served.kill();
    served.serve();
    for id in [plain.trim(), forked.trim()] {
        assert!(
            served
                .ok(&["ps"])
                .lines()
                .any(|line| line.contains(id) && line.contains("running"))
        );
        let go = "until test -p /tmp/go; do :; done; echo >/tmp/go";
        // The end of the sandbox may take it along before it has ended itself.
        served.run(&["exec", id, "--", "/bin/sh", "-c", go]);
        let deadline = Instant::now() + PATIENCE;
        loop {
            let ps = served.ok(&["ps"]);
            if ps
                .lines()
                .any(|line| line.contains(id) && line.contains("ended with 9"))
            {
                break;
            }
            assert!(Instant::now() < deadline, "{ps}");
        }
        assert_eq!(served.ok(&["logs", id]), "after\n");
    }
    // The base and the Zygote are there again.
    let said = served.ok(&[
        "run", "--base", "host", "--python", "--json", "--", "-c", "",
    ]);
    let seen: serde_json::Value = serde_json::from_str(&said).unwrap();
    assert_eq!(seen["sandbox"]["ancestry"].as_array().unwrap().len(), 1);
    let second = served.run(&["serve", "--cgroup", "sandbox-cli-test/other"]);
    let error = String::from_utf8_lossy(&second.stderr).into_owned();
    assert!(
        error.contains("another program has its sandboxes"),
        "{error}"
    );
}

/// Its memory has the variables and the output of programs in it.
#[test]
fn a_daemon_that_crashes_leaves_no_core_file() {
    let mut served = Served::start();
    served.ok(&["run", "--base", "host", "--", "/bin/true"]);
    let mut daemon = served.daemon.take().unwrap();
    let pid = daemon.id().to_string();
    let limits = std::fs::read_to_string(format!("/proc/{pid}/limits")).unwrap();
    let core = limits
        .lines()
        .find(|line| line.starts_with("Max core file size"));
    assert!(core.unwrap().contains("unlimited"), "{limits}");
    Command::new("kill").args(["-ABRT", &pid]).status().unwrap();
    let ended = daemon.wait().unwrap();
    assert_eq!(ended.signal(), Some(6));
    assert!(!ended.core_dumped());
    served.serve();
}
