//! Control groups of version 2 with all controllers, which a machine with some in version 1 does not have: in a guest
//! with a kernel of Debian 13.

#![cfg(feature = "privileged")]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod rig;

use std::fs;
use std::path::Path;

use testkit::guest::Guest;

/// How many tests there are in `inside`, so that none is left out unseen.
const INSIDE: usize = 6;

#[test]
fn limits_hold_in_control_groups_of_version_2() {
    let guest = Guest::new(include_str!("guest/init"));
    guest.add_program("holder", Path::new(env!("CARGO_BIN_EXE_sandbox-holder")));
    fs::create_dir(guest.root().join("work")).unwrap();
    guest.must_pass(INSIDE);
}

/// What the guest runs.
mod inside {
    use std::fs;
    use std::io::{BufRead as _, BufReader};
    use std::os::unix::fs::PermissionsExt as _;
    use std::path::{Path, PathBuf};
    use std::process::{Command, Stdio as ProcessStdio};

    use sandbox::{Cause, ExitStatus, Limits, Phase, Sandbox};

    use crate::rig::python::{script, set, store, zygote};
    use crate::rig::{PATIENCE, Rig, python, shell};

    /// Returns the only group that a process is in.
    fn group_of(sandbox: &Sandbox) -> PathBuf {
        let text = fs::read_to_string(format!("/proc/{}/cgroup", sandbox.pid())).unwrap();
        let line = text.strip_prefix("0::/").expect(&text).trim();
        assert!(!line.contains('\n'), "{text}");
        Path::new("/sys/fs/cgroup").join(line)
    }

    fn read(group: &Path, name: &str) -> String {
        fs::read_to_string(group.join(name))
            .unwrap()
            .trim()
            .to_owned()
    }

    fn limits() -> Limits {
        Limits {
            memory_bytes: 64 << 20,
            cpu_millis: Some(200),
            processes: 20,
            ..Limits::default()
        }
    }

    #[test]
    #[ignore = "in the guest"]
    fn each_limit_is_the_groups_and_none_is_left_for_the_next() {
        let rig = Rig::new();
        let mut request = shell("while :; do :; done");
        request.limits = limits();
        let sandbox = rig.start(request);
        let group = group_of(&sandbox);
        assert_eq!(read(&group, "memory.max"), (64 << 20).to_string());
        assert_eq!(read(&group, "cpu.max"), "20000 100000");
        let throttled = || {
            let stat = read(&group, "cpu.stat");
            let count = stat
                .lines()
                .find_map(|line| line.strip_prefix("nr_throttled "));
            count.unwrap().parse::<u64>().unwrap()
        };
        Rig::wait_until("it is held back", || throttled() > 3);
        sandbox.kill().unwrap();
        sandbox.wait(PATIENCE).unwrap();
        assert_eq!(read(&group, "cgroup.procs"), "");
        let next = rig.start(shell("sleep 1000"));
        assert_eq!(group_of(&next), group, "groups are used again");
        assert_eq!(read(&group, "memory.max"), (512 << 20).to_string());
        assert_eq!(read(&group, "cpu.max"), "max 100000");
    }

    #[test]
    #[ignore = "in the guest"]
    fn who_wants_more_is_ended_or_refused() {
        let rig = Rig::new();
        let mut greedy = python("x = b'x' * (256 << 20)");
        greedy.limits = limits();
        let (exit, _) = rig.run(greedy);
        assert_eq!(
            (exit.status, exit.cause),
            (ExitStatus::Signal(9), Some(Cause::Memory))
        );
        // What the former one was killed for is not the next one's.
        let (exit, _) = rig.run(shell("kill -9 $$; exit 3"));
        assert_eq!(exit.cause, None);
        let mut many = python(
            "
import os
count = 0
try:
    while True:
        if os.fork() == 0:
            import time; time.sleep(1000)
        count += 1
except BlockingIOError: print(count)",
        );
        many.limits = limits();
        let (exit, said) = rig.run(many);
        assert_eq!(exit.status, ExitStatus::Code(0), "{said}");
        let count: u32 = said.trim().parse().unwrap();
        assert!((15..20).contains(&count), "{count}");
    }

    #[test]
    #[ignore = "in the guest"]
    fn a_paused_sandbox_is_frozen_and_gives_back_memory() {
        let rig = Rig::new();
        let scratch = tempfile::tempdir().unwrap();
        fs::set_permissions(scratch.path(), fs::Permissions::from_mode(0o777)).unwrap();
        let mut request = python(
            "
import os
with open('/scratch/big', 'wb') as file:
    file.write(b'x' * (32 << 20)); file.flush(); os.fsync(file.fileno())
open('/scratch/big', 'rb').read()
print('up', flush=True)
while True: open('/scratch/count', 'a').write('x')",
        );
        request.scratch = Some(scratch.path().to_owned());
        let sandbox = rig.start(request);
        Rig::wait_until("it is up", || {
            sandbox.written().unwrap()[0].bytes == b"up\n"
        });
        let group = group_of(&sandbox);
        let before = sandbox.memory_bytes().unwrap();
        sandbox.pause().unwrap();
        assert_eq!(sandbox.phase(), Phase::Paused);
        assert!(read(&group, "cgroup.events").contains("frozen 1"));
        let after = sandbox.memory_bytes().unwrap();
        assert!(after + (16 << 20) < before, "{before} to {after}");
        let max: u64 = read(&group, "memory.max").parse().unwrap();
        assert!(max < before, "it may grow to {max}");
        sandbox.resume().unwrap();
        assert!(read(&group, "cgroup.events").contains("frozen 0"));
        assert_eq!(read(&group, "memory.max"), (512 << 20).to_string());
        let count = || fs::metadata(scratch.path().join("count")).map_or(0, |count| count.len());
        let counted = count();
        Rig::wait_until("it goes on", || count() > counted);
    }

    #[test]
    #[ignore = "in the guest"]
    fn a_kill_ends_all_processes_of_a_group_paused_or_not() {
        let rig = Rig::new();
        for paused in [false, true] {
            let sandbox = rig.start(shell(
                "for i in 1 2 3 4 5 6 7 8; do setsid sleep 1000 & done; echo up; wait",
            ));
            Rig::wait_until("it is up", || {
                sandbox.written().unwrap()[0].bytes == b"up\n"
            });
            let group = group_of(&sandbox);
            assert_eq!(read(&group, "cgroup.procs").lines().count(), 9);
            if paused {
                sandbox.pause().unwrap();
            }
            sandbox.kill().unwrap();
            sandbox.wait(PATIENCE).unwrap();
            let events = read(&group, "cgroup.events");
            assert!(
                events.contains("populated 0") && events.contains("frozen 0"),
                "{events}"
            );
        }
    }

    #[test]
    #[ignore = "in the guest"]
    fn a_child_of_a_zygote_is_limited_in_a_group_below_the_zygotes() {
        let rig = Rig::new();
        let store = store(&[("own==1", "value = 7")]);
        zygote(&rig, &["own==1"], store.path());
        let text = "
import own
print(own.value, flush=True)
x = b'x' * (256 << 20)";
        let mut request = script(text, &["own==1"], Some(store.path()));
        request.limits = limits();
        let sandbox = rig.start(request);
        let group = group_of(&sandbox);
        assert_eq!(sandbox.ancestry().len(), 1, "it is forked");
        assert!(
            group
                .parent()
                .unwrap()
                .file_name()
                .unwrap()
                .to_str()
                .unwrap()
                .starts_with('z'),
            "{group:?}"
        );
        let exit = sandbox.wait(PATIENCE).unwrap();
        let [out, _] = sandbox.written().unwrap();
        assert_eq!(out.bytes, b"7\n");
        assert_eq!(
            (exit.status, exit.cause),
            (ExitStatus::Signal(9), Some(Cause::Memory))
        );
        let packages = set(&["own==1"]);
        assert_eq!(
            rig.sandboxes().zygotes()[0].packages,
            packages,
            "it is still there"
        );
    }

    #[test]
    #[ignore = "in the guest"]
    fn a_program_that_is_killed_leaves_no_group() {
        let mut rig = Rig::new();
        let holder = std::env::var("SANDBOX_HOLDER").unwrap();
        for wanted in [1, 5, 9] {
            rig.close();
            let mut holder = Command::new(&holder)
                .arg(&rig.config.run_dir)
                .arg(&rig.config.cgroup)
                .arg(rig.config.first_uid.to_string())
                .stdout(ProcessStdio::piped())
                .spawn()
                .unwrap();
            let mut lines = BufReader::new(holder.stdout.take().unwrap()).lines();
            let runs = lines
                .by_ref()
                .filter(|line| line.as_ref().unwrap().starts_with("runs"));
            assert_eq!(runs.take(wanted).count(), wanted);
            holder.kill().unwrap();
            holder.wait().unwrap();
            rig.reopen();
            assert!(!rig.sandboxes().list().is_empty());
            rig.sandboxes().end_all(PATIENCE).unwrap();
            let left = rig.groups();
            assert!(left.is_empty(), "{left:?}");
        }
    }
}
