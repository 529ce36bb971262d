//! `yolofs pin`: which pages of the host's files a command touches, and that just these stay in memory.

#![cfg(feature = "privileged")]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::fs;
use std::io::{Read as _, Write as _};
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lab::service::Service;
use lab::{Lab, fails, json as json_of, noise, ok, until};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

const PAGE: usize = 4096;

/// There is one recording at a time: it switches read-ahead of the disk off.
static TURN: Mutex<()> = Mutex::new(());

/// A directory `usr` with a file `lib` of 200 pages, which is no file of the machine's own.
struct PinFixture {
    lab: Lab,
    _turn: MutexGuard<'static, ()>,
}

impl PinFixture {
    fn new() -> Self {
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let lab = Lab::new();
        lab.make_dir("usr");
        let desk = Self { lab, _turn: turn };
        desk.replace("lib", 1, 200);
        desk
    }

    fn file(&self, name: &str) -> PathBuf {
        self.lab.path("usr").join(name)
    }

    /// Puts a file in place as dpkg does: written aside, renamed.
    fn replace(&self, name: &str, seed: u32, pages: usize) {
        let aside = self.file(&format!("{name}.dpkg-new"));
        fs::write(&aside, noise(seed, pages * PAGE)).unwrap();
        fs::File::open(&aside).unwrap().sync_all().unwrap();
        fs::rename(aside, self.file(name)).unwrap();
    }

    fn pin(&self, args: &[&str]) -> Command {
        let mut command = self.lab.yolofs();
        command
            .arg("pin")
            .args(args)
            .env("YOLOFS_PINS", self.lab.path("pins"));
        command
    }

    /// Records a command that reads pages 10 to 12 and 100 of `lib`.
    fn record(&self, flags: &[&str]) -> Value {
        let script = "dd if=$0 bs=4096 skip=10 count=3 of=/dev/null && dd if=$0 bs=4096 skip=100 count=1 of=/dev/null";
        let mut command = self.pin(&["record", "--json", "--name", "lib", "--under"]);
        command.arg(self.lab.path("usr")).args(flags);
        command
            .args(["--", "sh", "-c", script])
            .arg(self.file("lib"));
        json_of(command.stderr(Stdio::null()))
    }

    fn status(&self) -> Value {
        json_of(&mut self.pin(&["status", "--json"]))
    }

    fn serve(&self, flags: &[&str]) -> Holder {
        let process = self.pin(&["serve"]).args(flags).spawn().unwrap();
        until("pages are held", || {
            self.status()["pid"].as_u64() == Some(process.id().into())
        });
        Holder(process)
    }
}

/// `yolofs pin serve`, killed when dropped.
struct Holder(Child);

impl Holder {
    /// What the kernel says that it has locked.
    fn locked_pages(&self) -> usize {
        let status = fs::read_to_string(format!("/proc/{}/status", self.0.id())).unwrap();
        let line = status
            .lines()
            .find_map(|line| line.strip_prefix("VmLck:"))
            .unwrap();
        line.trim()
            .trim_end_matches(" kB")
            .parse::<usize>()
            .unwrap()
            * 1024
            / PAGE
    }

    fn end(mut self) -> bool {
        kill(
            Pid::from_raw(self.0.id().try_into().unwrap()),
            Signal::SIGTERM,
        )
        .unwrap();
        self.0.wait().unwrap().success()
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        let _ended = self.0.kill().and_then(|()| self.0.wait());
    }
}

/// The read-ahead of all disks.
fn read_ahead() -> Vec<String> {
    let disks = fs::read_dir("/sys/block")
        .unwrap()
        .map(|disk| disk.unwrap().path());
    let settings = disks.map(|disk| fs::read_to_string(disk.join("queue/read_ahead_kb")).unwrap());
    settings.collect()
}

#[test]
fn privileged_a_recording_has_the_pages_that_were_read_and_no_others() {
    let desk = PinFixture::new();
    let before = read_ahead();
    for (flags, method) in [(&[][..], "pages"), (&["--before-after"], "before_after")] {
        let told = desk.record(flags);
        assert_eq!(told["method"], method);
        assert_eq!(told["bytes"], 4 * PAGE, "{told}");
        assert_eq!(told["file_bytes"], 200 * PAGE);
        assert_eq!(told["lost_events"], 0);
    }
    assert_eq!(read_ahead(), before);
    let instances = fs::read_dir("/sys/kernel/tracing/instances")
        .into_iter()
        .flatten();
    let names = instances.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    assert_eq!(
        names.filter(|name| name.starts_with("yolofs-pin-")).count(),
        0
    );
}

#[test]
fn privileged_pages_are_held_across_upgrades_and_the_death_of_their_holder() {
    let desk = PinFixture::new();
    desk.record(&[]);
    let noted = fails(1, &mut desk.pin(&["apply", "lib"]));
    assert!(noted.contains("yolofs pin serve"), "{noted}");
    let holder = desk.serve(&[]);
    assert_eq!(holder.locked_pages(), 4);
    let second = fails(1, &mut desk.pin(&["serve"]));
    assert!(second.contains("held already"), "{second}");
    // The new version is shorter.
    desk.replace("lib", 2, 50);
    until("the upgrade is followed", || holder.locked_pages() == 3);
    let status = desk.status();
    assert_eq!(status["profiles"][0]["changed_files"], 1, "{status}");
    assert_eq!(status["locked_bytes"], 3 * PAGE);
    drop(holder); // by SIGKILL
    assert_eq!(desk.status()["pid"], Value::Null);
    let holder = desk.serve(&[]);
    assert_eq!(holder.locked_pages(), 3);
    assert_eq!(
        json_of(&mut desk.pin(&["drop", "lib", "--json"]))["locked_bytes"],
        0
    );
    assert_eq!(holder.locked_pages(), 0);
    ok(&mut desk.pin(&["apply", "lib"]));
    assert_eq!(holder.locked_pages(), 3);
    assert!(holder.end());
    ok(&mut desk.pin(&["drop", "--all", "--forget"]));
    assert_eq!(desk.status()["profiles"].as_array().unwrap().len(), 0);
}

/// A memory cgroup, of whichever version this machine has.
struct Group(PathBuf);

impl Group {
    fn new(limit: &str) -> Self {
        let root = match Path::new("/sys/fs/cgroup/memory").is_dir() {
            true => "/sys/fs/cgroup/memory",
            false => "/sys/fs/cgroup",
        };
        let path = Path::new(root).join(format!("yolofs-pin-test-{}", std::process::id()));
        fs::create_dir(&path).unwrap();
        let group = Self(path);
        group.limit(limit);
        group
    }

    fn limit(&self, limit: &str) {
        let files = ["memory.limit_in_bytes", "memory.max"].map(|file| self.0.join(file));
        let file = files.iter().find(|file| file.exists()).unwrap();
        fs::write(file, limit).unwrap();
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        until("the cgroup is empty", || fs::remove_dir(&self.0).is_ok());
    }
}

#[test]
fn privileged_a_cgroup_is_charged_and_its_limit_is_kept() {
    let desk = PinFixture::new();
    desk.replace("lib", 1, 4000);
    let script = "dd if=$0 bs=1M of=/dev/null";
    let mut command = desk.pin(&["record", "--json", "--name", "lib", "--under"]);
    command.arg(desk.lab.path("usr"));
    command
        .args(["--", "sh", "-c", script])
        .arg(desk.file("lib"));
    let told = json_of(command.stderr(Stdio::null()));
    assert_eq!(told["bytes"], 4000 * PAGE);
    fails(1, &mut desk.pin(&["apply", "lib"]));
    let group = Group::new("64M");
    let path = group.0.to_str().unwrap();
    // What somebody else has read is charged to the cgroup all the same.
    fs::read(desk.file("lib")).unwrap();
    let holder = desk.serve(&["--cgroup", path, "--budget", "8M"]);
    let status = desk.status();
    assert_eq!(status["locked_bytes"], 8 << 20);
    assert_eq!(status["left_out_bytes"], 4000 * PAGE - (8 << 20));
    assert!(
        status["group"]["charged_bytes"].as_u64().unwrap() >= 8 << 20,
        "{status}"
    );
    assert_eq!(status["group"]["limit_bytes"], 64 << 20);
    assert!(holder.end());
    // Less is held than the budget allows, and the rest is named.
    group.limit("14M");
    let holder = desk.serve(&["--cgroup", path, "--budget", "65M"]);
    let status = desk.status();
    let held = status["locked_bytes"].as_u64().unwrap();
    assert!((4 << 20..14 << 20).contains(&held), "{status}");
    assert_eq!(status["bound"]["kind"], "cgroup", "{status}");
    assert_eq!(status["bound"]["path"], path);
    assert_eq!(
        status["left_out"][0]["path"],
        desk.file("lib").to_str().unwrap()
    );
    assert_eq!(
        status["left_out_bytes"].as_u64().unwrap() + held,
        4000 * PAGE as u64
    );
    let told = ok(&mut desk.pin(&["status"]));
    assert!(told.contains("MemoryMax="), "{told}");
    // When it is raised, all is held.
    group.limit("64M");
    ok(&mut desk.pin(&["apply", "lib"]));
    assert_eq!(holder.locked_pages(), 4000);
    assert!(holder.end());
}

/// A process without the capability may lock `RLIMIT_MEMLOCK` bytes.
#[test]
fn privileged_the_limit_of_locked_memory_is_kept() {
    let desk = PinFixture::new();
    desk.record(&[]);
    fails(1, &mut desk.pin(&["apply", "lib"]));
    let serve = desk.pin(&["serve"]);
    let words = std::iter::once(serve.get_program()).chain(serve.get_args());
    let mut command = Command::new("prlimit");
    command
        .args(["--memlock=12288", "setpriv", "--bounding-set=-ipc_lock"])
        .arg("--inh-caps=-ipc_lock")
        .args(words);
    for (name, value) in serve.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    let holder = Holder(command.spawn().unwrap());
    until("pages are held", || desk.status()["pid"].is_u64());
    let status = desk.status();
    assert_eq!(holder.locked_pages(), 3, "{status}");
    assert_eq!(status["bound"]["kind"], "memlock", "{status}");
    assert_eq!(
        (&status["left_out_bytes"], &status["errors"]),
        (&json!(PAGE), &json!(0))
    );
    let told = ok(&mut desk.pin(&["status"]));
    assert!(told.contains("LimitMEMLOCK="), "{told}");
    assert!(holder.end());
}

#[test]
fn privileged_a_recorder_that_is_killed_leaves_nothing_that_the_next_does_not_undo() {
    let desk = PinFixture::new();
    let before = read_ahead();
    // The first run ends, and the second does not.
    let script =
        "if [ -e $1 ]; then exec sleep 60; fi; touch $1; dd if=$0 bs=4096 count=1 of=/dev/null";
    let mut command = desk.pin(&["record", "--name", "x", "--under"]);
    command
        .arg(desk.lab.path("usr"))
        .args(["--", "sh", "-c", script]);
    command.arg(desk.file("lib")).arg(desk.lab.path("once"));
    let mut recorder = command.stderr(Stdio::null()).spawn().unwrap();
    until("read-ahead is off", || read_ahead() != before);
    let busy = desk
        .pin(&["record", "--name", "y", "--under"])
        .arg(desk.lab.path("usr"))
        .args(["--", "cat"])
        .arg(desk.file("lib"))
        .output()
        .unwrap();
    let busy = String::from_utf8_lossy(&busy.stderr).into_owned();
    assert!(busy.contains("another recording"), "{busy}");
    recorder.kill().unwrap();
    recorder.wait().unwrap();
    assert_ne!(read_ahead(), before);
    assert_eq!(desk.record(&[])["bytes"], 4 * PAGE);
    assert_eq!(read_ahead(), before);
    assert_eq!(
        desk.status()["profiles"].as_array().unwrap().len(),
        1,
        "x was not recorded"
    );
}

#[test]
fn privileged_a_command_that_fails_or_touches_nothing_makes_no_profile() {
    let desk = PinFixture::new();
    let usr = desk.lab.path("usr");
    let usr = usr.to_str().unwrap();
    let failed = fails(1, &mut desk.pin(&["record", "--under", usr, "--", "false"]));
    assert!(failed.contains("exit status: 1"), "{failed}");
    let nothing = fails(1, &mut desk.pin(&["record", "--under", usr, "--", "true"]));
    assert!(nothing.contains("--under"), "{nothing}");
    // What does not end by itself is ended, and its touches count.
    let lib = desk.file("lib");
    let script = format!(
        "dd if={} bs=4096 count=2 of=/dev/null; exec sleep 60",
        lib.display()
    );
    let told = json_of(
        desk.pin(&[
            "record", "--json", "--for", "0.5", "--under", usr, "--", "sh", "-c", &script,
        ])
        .stderr(Stdio::null()),
    );
    assert_eq!(told["bytes"], 2 * PAGE);
    assert_eq!(told["name"], "sh");
}

/// Returns the page of metrics of a node.
fn metrics(lab: &Lab) -> String {
    let mut stream = UnixStream::connect(lab.run_dir().join("node.sock")).unwrap();
    stream
        .write_all(b"GET /metrics HTTP/1.1\r\nhost: node\r\n\r\n")
        .unwrap();
    let mut page = String::new();
    stream.read_to_string(&mut page).unwrap();
    page
}

#[test]
fn privileged_the_manager_and_the_node_are_told_what_is_held() {
    let desk = PinFixture::new();
    desk.record(&[]);
    let planned = json_of(&mut desk.pin(&["apply", "lib", "--dry-run", "--json"]));
    assert_eq!(planned["bytes"], 4 * PAGE);
    fails(1, &mut desk.pin(&["apply", "lib"]));
    let node = Service::start(&desk.lab);
    assert!(!metrics(&desk.lab).contains("yolofs_pin_locked_bytes "));
    let manager = desk.lab.path("manager");
    let told = UnixDatagram::bind(&manager).unwrap();
    told.set_read_timeout(Some(Duration::from_secs(60)))
        .unwrap();
    let mut serve = desk.pin(&["serve"]);
    let holder = Holder(serve.env("NOTIFY_SOCKET", manager).spawn().unwrap());
    let mut word = [0; 256];
    let len = told.recv(&mut word).unwrap();
    assert!(String::from_utf8_lossy(&word[..len]).contains("READY=1"));
    assert_eq!(holder.locked_pages(), 4, "all are held by then");
    let has = |line: &str| metrics(&desk.lab).contains(line);
    until("the node knows", || {
        has(&format!("\nyolofs_pin_locked_bytes {}\n", 4 * PAGE))
    });
    assert!(has(&format!("\nyolofs_pin_wanted_bytes {}\n", 4 * PAGE)));
    desk.replace("lib", 2, 200);
    until("the upgrade is counted", || {
        has("\nyolofs_pin_followed_files_total 1\n")
    });
    assert!(has("\nyolofs_pin_errors_total 0\n") && has("\nyolofs_pin_refused_bytes 0\n"));
    assert!(holder.end());
    assert!(!has("yolofs_pin_locked_bytes "), "nobody holds pages");
    drop(node);
}

/// A daemon that runs already counts when it is named.
#[test]
fn privileged_what_a_named_process_touches_is_recorded() {
    let desk = PinFixture::new();
    let (asked, done) = (desk.lab.path("asked"), desk.lab.path("done"));
    for fifo in [&asked, &done] {
        nix::unistd::mkfifo(fifo, nix::sys::stat::Mode::S_IRWXU).unwrap();
    }
    // A shell that reads by itself: what it starts is another process.
    let script = "while read -r go <$1; do read -r -N 4000 bytes <$0; echo done >$2; done";
    let mut daemon = Command::new("bash");
    daemon.env("LC_ALL", "C");
    daemon.args(["-c", script]).arg(desk.file("lib"));
    let daemon = Holder(daemon.args([&asked, &done]).spawn().unwrap());
    let pid = daemon.0.id().to_string();
    let mut command = desk.pin(&["record", "--json", "--name", "d", "--with", &pid, "--under"]);
    command.arg(desk.lab.path("usr"));
    command.args(["--", "sh", "-c", "echo go >$0; read -r line <$1"]);
    let told = json_of(command.args([&asked, &done]).stderr(Stdio::null()));
    assert_eq!(
        (&told["bytes"], &told["method"]),
        (&json!(PAGE), &json!("pages"))
    );
}

/// Where tracefs is not mounted, it is mounted for the recorder alone.
#[test]
fn privileged_tracefs_need_not_be_mounted() {
    let desk = PinFixture::new();
    let lib = desk.file("lib");
    let mut record = desk.pin(&["record", "--json", "--name", "lib", "--under"]);
    record
        .arg(desk.lab.path("usr"))
        .args(["--", "sh", "-c", "head -c1 \"$0\" >/dev/null"])
        .arg(&lib);
    let script = "umount -l /sys/kernel/tracing /sys/kernel/debug/tracing 2>/dev/null; \"$@\"";
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", script, "sh"]);
    command.arg(record.get_program()).args(record.get_args());
    for (name, value) in record.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    let told = json_of(command.stderr(Stdio::null()));
    assert_eq!(
        (&told["method"], &told["bytes"]),
        (&json!("pages"), &json!(PAGE))
    );
}

/// `mincore` calls all pages of a file present for who is not its owner and may not write to it: before the command, and after.
#[test]
fn privileged_who_is_not_told_what_is_in_memory_does_not_record_nothing_or_all() {
    let desk = PinFixture::new();
    std::os::unix::fs::chown(desk.file("lib"), Some(65534), Some(65534)).unwrap();
    let recorded = |flags: &[&str]| {
        let own = desk.pin(&["record", "--json", "--name", "lib"]);
        let mut command = Command::new("setpriv");
        command
            .arg("--bounding-set=-fowner,-dac_override")
            .arg("--");
        command.arg(own.get_program()).args(own.get_args());
        for (name, value) in own.get_envs() {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        command.arg("--under").arg(desk.lab.path("usr")).args(flags);
        command.args(["--", "sh", "-c", "cat \"$0\" > /dev/null"]);
        command.arg(desk.file("lib"));
        lab::output(&mut command)
    };
    let refused = recorded(&["--before-after"]);
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(!refused.status.success(), "{said}");
    assert!(said.contains("does not tell which pages"), "{said}");
    assert!(said.contains("--under") && said.contains("lib"), "{said}");
    // The kernel's events need no such right.
    let by_events = recorded(&[]);
    let said = String::from_utf8_lossy(&by_events.stderr);
    assert!(by_events.status.success(), "{said}");
    assert!(
        said.contains("of 1 files the kernel does not tell"),
        "{said}"
    );
}
