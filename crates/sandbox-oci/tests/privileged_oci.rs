//! Containers as engines make them, from bundles; and images that want to get out.

#![cfg(feature = "privileged")]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

const PROGRAM: &str = env!("CARGO_BIN_EXE_sandbox-oci");

/// A bundle with busybox, and a directory for states.
struct Rig {
    dir: tempfile::TempDir,
    config: Value,
}

impl Rig {
    fn new(arguments: &[&str]) -> Self {
        assert!(nix::unistd::geteuid().is_root(), "this test needs root");
        // A subreaper, as an engine's shim is.
        nix::sys::prctl::set_child_subreaper(true).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let bin = dir.path().join("rootfs/bin");
        fs::create_dir_all(&bin).unwrap();
        let busybox = ["/bin/busybox", "/usr/bin/busybox"]
            .into_iter()
            .find(|path| Path::new(path).exists());
        fs::copy(
            busybox.expect("busybox-static is not installed"),
            bin.join("busybox"),
        )
        .unwrap();
        for name in ["sh", "cat", "ls", "sleep", "id", "readlink", "pwd", "touch"] {
            symlink("busybox", bin.join(name)).unwrap();
        }
        let name = dir
            .path()
            .file_name()
            .unwrap()
            .to_string_lossy()
            .replace('.', "");
        let config = json!({
            "ociVersion": "1.0.2",
            "process": {"user": {"uid": 0, "gid": 0}, "args": arguments, "cwd": "/", "env": ["PATH=/bin"]},
            "root": {"path": "rootfs"},
            "mounts": [
                {"destination": "/proc", "type": "proc", "source": "proc"},
                {"destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": ["mode=755"]},
                {"destination": "/dev/pts", "type": "devpts", "source": "devpts", "options": ["ptmxmode=0666"]},
            ],
            "linux": {"cgroupsPath": format!("/sandbox-oci-test/{name}"),
                "namespaces": [{"type": "mount"}, {"type": "pid"}, {"type": "network"}, {"type": "ipc"}, {"type": "uts"}]},
        });
        Self { dir, config }
    }

    fn root(&self) -> PathBuf {
        self.dir.path().join("rootfs")
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(PROGRAM);
        command.arg("--root").arg(self.dir.path().join("state"));
        command
            .arg("--log")
            .arg(self.dir.path().join("log"))
            .args(["--log-format", "json"]);
        command
            .args(arguments)
            .env("SANDBOX_OCI_RUNC", "/bin/echo")
            .current_dir(self.dir.path());
        command
    }

    fn run(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().unwrap()
    }

    /// Creates the container with its output in a file.
    fn create(&self) -> Output {
        fs::write(self.dir.path().join("config.json"), self.config.to_string()).unwrap();
        let out = fs::File::create(self.dir.path().join("out")).unwrap();
        let err = fs::File::create(self.dir.path().join("err")).unwrap();
        let mut command = self.command(&["create", "--pid-file", "pid", "c"]);
        command
            .stdin(Stdio::null())
            .stdout(out)
            .stderr(err)
            .output()
            .unwrap()
    }

    fn said(&self) -> String {
        let read = |name| fs::read_to_string(self.dir.path().join(name)).unwrap_or_default();
        read("out") + &read("err")
    }

    fn must(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        let err = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{arguments:?}: {err}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// Runs it to its end. Returns its exit code and what it said.
    fn finish(&self) -> (i32, String) {
        assert!(self.create().status.success(), "{}", self.said());
        self.must(&["start", "c"]);
        let pid: i32 = fs::read_to_string(self.dir.path().join("pid"))
            .unwrap()
            .parse()
            .unwrap();
        let pid = nix::unistd::Pid::from_raw(pid);
        let code = match nix::sys::wait::waitpid(pid, None).unwrap() {
            nix::sys::wait::WaitStatus::Exited(_, code) => code,
            nix::sys::wait::WaitStatus::Signaled(_, signal, _) => 128 + signal as i32,
            other => panic!("{other:?}"),
        };
        self.must(&["delete", "c"]);
        self.leaves_nothing();
        (code, self.said())
    }

    fn leaves_nothing(&self) {
        assert_eq!(
            fs::read_dir(self.dir.path().join("state")).unwrap().count(),
            0
        );
        let name = self.config["linux"]["cgroupsPath"]
            .as_str()
            .unwrap()
            .trim_start_matches('/');
        for hierarchy in fs::read_dir("/sys/fs/cgroup").unwrap() {
            assert!(!hierarchy.unwrap().path().join(name).exists());
        }
        let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
        assert!(!mounts.contains(self.dir.path().to_str().unwrap()));
    }

    fn refused(&self) -> String {
        assert!(!self.create().status.success());
        self.leaves_nothing();
        self.said()
    }
}

/// Waits for a condition.
fn until(what: &str, condition: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(30);
    while !condition() {
        assert!(Instant::now() < deadline, "waited in vain: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn privileged_a_container_lives_as_engines_expect() {
    let rig = Rig::new(&["sleep", "1000"]);
    assert!(rig.create().status.success(), "{}", rig.said());
    let state = |rig: &Rig| serde_json::from_str::<Value>(&rig.must(&["state", "c"])).unwrap();
    assert_eq!(state(&rig)["status"], "created");
    rig.must(&["start", "c"]);
    assert_eq!(state(&rig)["status"], "running");
    assert!(!rig.run(&["start", "c"]).status.success());
    assert_eq!(rig.must(&["exec", "c", "pwd"]), "/\n");
    assert_eq!(
        rig.run(&["exec", "c", "sh", "-c", "exit 9"]).status.code(),
        Some(9)
    );
    rig.must(&["pause", "c"]);
    assert_eq!(state(&rig)["status"], "paused");
    assert!(!rig.run(&["exec", "c", "pwd"]).status.success());
    rig.must(&["resume", "c"]);
    assert!(!rig.run(&["delete", "c"]).status.success(), "it runs");
    let listed: Value = serde_json::from_str(&rig.must(&["list", "--format", "json"])).unwrap();
    assert_eq!(listed[0]["id"], "c");
    let pid = state(&rig)["pid"].clone();
    assert_eq!(
        serde_json::from_str::<Value>(&rig.must(&["ps", "--format", "json", "c"])).unwrap(),
        json!([pid])
    );
    rig.must(&["kill", "c", "KILL"]);
    let pid = nix::unistd::Pid::from_raw(i32::try_from(pid.as_i64().unwrap()).unwrap());
    nix::sys::wait::waitpid(pid, None).unwrap();
    assert_eq!(state(&rig)["status"], "stopped");
    rig.must(&["delete", "c"]);
    rig.leaves_nothing();
}

/// More than may be connected, before the one that starts it.
#[test]
fn privileged_idle_connections_keep_no_container_from_its_start() {
    let rig = Rig::new(&["sleep", "1000"]);
    assert!(rig.create().status.success(), "{}", rig.said());
    let socket = rig.dir.path().join("state/c/start.sock");
    let idle: Vec<_> = (0..300)
        .map(|_| std::os::unix::net::UnixStream::connect(&socket).unwrap())
        .collect();
    rig.must(&["start", "c"]);
    let state: Value = serde_json::from_str(&rig.must(&["state", "c"])).unwrap();
    assert_eq!(state["status"], "running");
    // None of them is left with the program.
    let pid = &state["pid"];
    let open = fs::read_dir(format!("/proc/{pid}/fd")).unwrap();
    assert_eq!(open.count(), 3, "of its streams only");
    drop(idle);
    rig.must(&["kill", "c", "KILL"]);
    let pid = nix::unistd::Pid::from_raw(i32::try_from(pid.as_i64().unwrap()).unwrap());
    nix::sys::wait::waitpid(pid, None).unwrap();
    rig.must(&["delete", "c"]);
    rig.leaves_nothing();
}

#[test]
fn privileged_a_program_has_what_its_specification_says() {
    let script = "id -u; id -g; grep -E 'CapEff|NoNewPrivs' /proc/self/status; ls /proc/self/fd; touch /x || exit 7";
    let mut rig = Rig::new(&["sh", "-c", script]);
    rig.config["root"]["readonly"] = true.into();
    rig.config["process"]["user"] = json!({"uid": 1000, "gid": 1001});
    rig.config["process"]["noNewPrivileges"] = true.into();
    let (code, said) = rig.finish();
    assert_eq!(code, 7, "{said}");
    assert!(
        said.starts_with("1000\n1001\nCapEff:\t0000000000000000\nNoNewPrivs:\t1\n0\n1\n2\n3\n"),
        "{said}"
    );
}

#[test]
fn privileged_what_is_not_honoured_goes_to_runc_with_the_same_arguments() {
    let mut rig = Rig::new(&["sleep", "1"]);
    rig.config["linux"]["intelRdt"] = json!({"closID": "a"});
    assert!(rig.create().status.success());
    let said = rig.said(); // by echo, which stands for runc
    assert!(
        said.ends_with("--log-format json create --pid-file pid c\n"),
        "{said}"
    );
    let log = fs::read_to_string(rig.dir.path().join("log")).unwrap();
    assert!(log.contains("linux.intelRdt: handed to runc"), "{log}");
    assert!(!rig.dir.path().join("state").exists());
    assert!(
        rig.must(&["state", "c"]).contains("state c"),
        "not ours, so runc is asked"
    );
}

/// Fields and flags that engines set on machines that have what they name.
#[test]
fn privileged_profiles_and_groups_of_systemd_go_to_runc_and_the_log_says_why() {
    for (object, name, value) in [
        ("process", "apparmorProfile", "docker-default"),
        (
            "process",
            "selinuxLabel",
            "system_u:system_r:container_t:s0",
        ),
        (
            "linux",
            "mountLabel",
            "system_u:object_r:container_file_t:s0",
        ),
    ] {
        let mut rig = Rig::new(&["sleep", "1"]);
        rig.config[object][name] = value.into();
        let field = format!("{object}.{name}");
        assert!(rig.create().status.success(), "{field}");
        let log = fs::read_to_string(rig.dir.path().join("log")).unwrap();
        assert!(log.contains(&format!("{field}: handed to runc")), "{log}");
        assert!(rig.said().ends_with("create --pid-file pid c\n"), "{field}");
        assert!(!rig.dir.path().join("state").exists(), "{field}");
    }
    let mut rig = Rig::new(&["sleep", "1"]);
    rig.config["linux"]["cgroupsPath"] = "system.slice:docker:c".into();
    fs::write(rig.dir.path().join("config.json"), rig.config.to_string()).unwrap();
    let said = rig.must(&["--systemd-cgroup", "create", "--pid-file", "pid", "c"]);
    assert!(
        said.ends_with("--systemd-cgroup create --pid-file pid c\n"),
        "{said}"
    );
    let log = fs::read_to_string(rig.dir.path().join("log")).unwrap();
    assert!(
        log.contains("--systemd-cgroup") && log.contains("handed to runc"),
        "{log}"
    );
}

#[test]
fn privileged_links_of_an_image_lead_nowhere_else() {
    let mut rig = Rig::new(&["cat", "/etc/up/new/mark"]);
    let (outside, volume) = (
        rig.dir.path().join("outside"),
        rig.dir.path().join("volume"),
    );
    for dir in [&outside, &volume] {
        fs::create_dir(dir).unwrap();
    }
    fs::write(volume.join("mark"), "inside").unwrap();
    fs::create_dir(rig.root().join("etc")).unwrap();
    symlink(&outside, rig.root().join("etc/up")).unwrap();
    rig.config["mounts"].as_array_mut().unwrap().push(json!({
        "destination": "/etc/up/new", "type": "bind", "source": volume, "options": ["rbind", "ro"]}));
    let said = rig.refused();
    assert!(
        said.contains("/etc/up/new"),
        "nothing is there below the root: {said}"
    );
    let below = rig.root().join(outside.strip_prefix("/").unwrap());
    fs::create_dir_all(&below).unwrap();
    let (code, said) = rig.finish();
    assert_eq!((code, said.as_str()), (0, "inside"));
    assert!(
        below.join("new").is_dir(),
        "the link leads below the container's own root"
    );
    assert_eq!(
        fs::read_dir(&outside).unwrap().count(),
        0,
        "and nothing was made outside"
    );
}

#[test]
fn privileged_what_leads_into_proc_or_is_a_link_as_a_whole_is_refused() {
    let mut rig = Rig::new(&["ls"]);
    symlink("/proc/self", rig.root().join("data")).unwrap();
    rig.config["mounts"].as_array_mut().unwrap().push(json!({
        "destination": "/data/attr", "type": "bind", "source": "/etc", "options": ["rbind"]}));
    let said = rig.refused();
    assert!(said.contains("leads into /proc"), "{said}");
    let mut rig = Rig::new(&["ls"]);
    symlink("/", rig.dir.path().join("link")).unwrap();
    rig.config["root"]["path"] = "link".into();
    assert!(rig.refused().contains("opening the root"));
    let rig = Rig::new(&["ls"]);
    symlink("/", rig.root().join("proc")).unwrap();
    let said = rig.refused();
    assert!(said.contains("/proc of the image is a link"), "{said}");
}

#[test]
fn privileged_a_directory_by_a_descriptor_is_refused() {
    for number in 3..12 {
        let mut rig = Rig::new(&["pwd"]);
        rig.config["process"]["cwd"] = format!("/proc/self/fd/{number}").into();
        let said = rig.refused();
        let refused = format!("opening the container's /proc/self/fd/{number}");
        assert!(said.contains(&refused), "{said}");
    }
}

#[test]
fn privileged_nobody_writes_to_the_program_that_makes_containers() {
    let before = fs::read(PROGRAM).unwrap();
    let mut rig = Rig::new(&["sleep", "60"]);
    let capabilities = json!(["CAP_DAC_OVERRIDE", "CAP_SYS_ADMIN", "CAP_SYS_PTRACE"]);
    rig.config["process"]["capabilities"] = json!({"bounding": capabilities,
        "effective": capabilities, "permitted": capabilities});
    assert!(rig.create().status.success(), "{}", rig.said());
    // The first process still runs the program that makes containers. Whoever is inside opens that file, and
    // writes to it when it is not run any more: until then the kernel itself refuses.
    let script = "exec 3</proc/1/exe || exit 4; touch /opened; until test -e /started; do sleep 0.05; done; \
                  (echo x >/proc/self/fd/3) 2>/why && exit 3; exit 0";
    let attacker = rig
        .command(&["exec", "c", "sh", "-c", script])
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let opened = rig.root().join("opened");
    until("it is open", || opened.exists());
    rig.must(&["start", "c"]);
    let pid = fs::read_to_string(rig.dir.path().join("pid")).unwrap();
    let program = format!("/proc/{pid}/exe");
    until("the container's program runs", || {
        fs::read_link(&program).is_ok_and(|path| path.ends_with("busybox"))
    });
    fs::write(rig.root().join("started"), "").unwrap();
    let tried = attacker.wait_with_output().unwrap();
    rig.must(&["delete", "--force", "c"]);
    let why = fs::read_to_string(rig.root().join("why")).unwrap_or_default();
    assert_eq!(tried.status.code(), Some(0), "{why}");
    assert!(why.contains("Read-only file system"), "{why}");
    assert!(fs::read(PROGRAM).unwrap() == before);
}

#[test]
fn privileged_an_image_does_not_choose_what_masks() {
    let mut rig = Rig::new(&["sh", "-c", "cat /secret; cat /proc/keys | cat"]);
    rig.config["mounts"]
        .as_array_mut()
        .unwrap()
        .retain(|mount| mount["destination"] == "/proc");
    fs::create_dir(rig.root().join("dev")).unwrap();
    fs::write(rig.root().join("secret"), "secret").unwrap();
    symlink("/etc/passwd", rig.root().join("dev/null")).unwrap();
    rig.config["linux"]["maskedPaths"] = json!(["/secret", "/proc/keys"]);
    let said = rig.refused();
    assert!(
        said.contains("/dev/null of the image is something else"),
        "{said}"
    );
    fs::remove_file(rig.root().join("dev/null")).unwrap();
    let (_, said) = rig.finish();
    assert!(
        !said.contains("secret\n") && !said.ends_with("secret"),
        "{said}"
    );
}
