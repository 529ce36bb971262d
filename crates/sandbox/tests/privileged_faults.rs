//! Two things go wrong at once: who holds what meanwhile, and what the other one is told.

#![cfg(feature = "privileged")]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod rig;

use std::fs;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Duration;

use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use rig::python::{script, store, zygote};
use rig::{PATIENCE, Rig, python, shell};
use sandbox::{Phase, Sandbox};

fn nulls() -> [OwnedFd; 3] {
    [(); 3].map(|()| fs::File::open("/dev/null").unwrap().into())
}

fn out(sandbox: &Sandbox) -> String {
    let [out, _] = sandbox.written().unwrap();
    String::from_utf8(out.bytes).unwrap()
}

fn command(parts: [&str; 3]) -> [String; 3] {
    parts.map(str::to_owned)
}

/// A package in a Zygote may become each of the Zygote's users. Sandboxes of a former Zygote, also of a former program, are
/// none of them.
#[test]
fn a_zygote_has_no_user_of_a_sandbox_of_a_former_one() {
    let mut rig = Rig::new();
    let attack = "import os
victim = int(open('/packages/evil==1/victim').read())
for user in range(1, 513):
    os.setresuid(user, user, 0)
    try: os.kill(victim, 9)
    except OSError: pass
    os.setresuid(0, 0, 0)";
    let store = store(&[("good==1", ""), ("evil==1", attack)]);
    let good = zygote(&rig, &["good==1"], store.path());
    let text = "import time; time.sleep(1000)";
    let victim = rig.start(script(text, &["good==1"], Some(store.path())));
    assert_eq!(victim.ancestry().len(), 1, "it is forked");
    fs::write(
        store.path().join("evil==1/victim"),
        victim.pid().to_string(),
    )
    .unwrap();
    rig.sandboxes().evict(&good.id).unwrap();
    let evil = zygote(&rig, &["evil==1"], store.path());
    assert_eq!(
        victim.wait(Duration::from_millis(300)),
        None,
        "it was killed"
    );

    rig.sandboxes().evict(&evil.id).unwrap();
    rig.close();
    rig.reopen();
    let victim = rig.sandboxes().get(victim.id()).unwrap();
    zygote(&rig, &["evil==1"], store.path());
    assert_eq!(
        victim.wait(Duration::from_millis(300)),
        None,
        "it was killed"
    );
}

#[test]
fn a_paused_sandbox_says_that_it_is_paused() {
    let rig = Rig::new();
    let sandbox = rig.start(shell("sleep 1000"));
    sandbox.pause().unwrap();
    let exec = || {
        rig.sandboxes()
            .exec(&sandbox, &command(["/bin/sh", "-c", "exit 3"]), nulls())
    };
    let refused = exec().unwrap_err().to_string();
    assert!(refused.contains("is paused: resume it"), "{refused}");
    sandbox.resume().unwrap();
    assert!(exec().unwrap().wait(PATIENCE).unwrap().is_some());
}

/// A program may keep others of its user from their start, as by a lease on the file that they execute. All else can be done
/// to its sandbox meanwhile.
#[test]
fn a_program_that_is_kept_from_its_start_keeps_nobody_from_its_sandbox() {
    let rig = Rig::new();
    let sandbox = rig.start(python(
        "import fcntl, os, signal, time
with open('/tmp/program', 'w') as file: file.write('#!/bin/sh')
os.chmod('/tmp/program', 0o755)
file = open('/tmp/program')
signal.signal(signal.SIGIO, lambda *_: print('asked', flush=True))
fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_WRLCK)
print('up', flush=True)
while True: time.sleep(1000)",
    ));
    Rig::wait_until("it has its lease", || out(&sandbox) == "up\n");
    let program = command(["/tmp/program", "", ""]);
    std::thread::scope(|scope| {
        let started = scope.spawn(|| rig.sandboxes().exec(&sandbox, &program, nulls()).map(drop));
        Rig::wait_until("it is kept", || {
            assert!(!started.is_finished(), "it is not kept");
            out(&sandbox).starts_with("up\nasked\n")
        });
        let (tell, told) = channel();
        let looked = Arc::clone(&sandbox);
        let looks = std::thread::spawn(move || tell.send(looked.processes().map(|all| all.len())));
        let processes = told.recv_timeout(Duration::from_secs(10));
        sandbox.kill().unwrap();
        assert!(sandbox.wait(PATIENCE).is_some());
        let _ended = started.join().unwrap();
        let _told = looks.join().unwrap();
        assert_eq!(processes.expect("it is not kept, too").unwrap(), 2);
    });
}

/// The files that the limits of the only sandbox are written to.
fn limit_files(rig: &Rig) -> Vec<PathBuf> {
    let names = ["memory.limit_in_bytes", "memory.max"];
    let groups = rig.groups().into_iter();
    let files = groups.flat_map(|dir| names.map(|name| dir.join(name)));
    files.filter(|path| path.exists()).collect()
}

#[test]
fn a_sandbox_that_cannot_be_paused_runs_as_it_is_told_to() {
    let rig = Rig::new();
    let sandbox = rig.start(shell("while :; do echo x; sleep 0.01; done"));
    let files = limit_files(&rig);
    assert!(!files.is_empty());
    let paused = std::thread::scope(|scope| {
        let pause = || {
            // Where this thread looks, a limit is written in vain.
            unshare(CloneFlags::CLONE_NEWNS).unwrap();
            let private = MsFlags::MS_REC | MsFlags::MS_PRIVATE;
            let none = None::<&str>;
            mount(none, "/", none, private, none).unwrap();
            for file in &files {
                mount(Some("/dev/full"), file, none, MsFlags::MS_BIND, none).unwrap();
            }
            sandbox.pause()
        };
        scope.spawn(pause).join().unwrap()
    });
    assert!(paused.is_err(), "{paused:?}");
    assert_eq!(sandbox.phase(), Phase::Running);
    let said = out(&sandbox).len();
    Rig::wait_until("it goes on", || out(&sandbox).len() > said);
    sandbox.pause().unwrap();
    assert_eq!(sandbox.phase(), Phase::Paused);
}

/// A program has closed its output, or one of both, and what it has started writes on. The next program reads that.
#[test]
fn output_is_read_on_wherever_it_is_written_from() {
    let mut rig = Rig::new();
    let scripts = [
        "exec 2>&1; echo before; until test -e /tmp/go; do sleep 0.01; done; echo after >&2; exit 9",
        "(until test -e /tmp/go; do sleep 0.01; done; echo after) & echo before; exec >/dev/null 2>&1; wait",
    ];
    let ids = scripts.map(|script| {
        let sandbox = rig.start(shell(script));
        let moved = || {
            let outputs =
                [1, 2].map(|fd| fs::read_link(format!("/proc/{}/fd/{fd}", sandbox.pid())));
            let [out, err] = outputs.map(|to| to.unwrap_or_default());
            out == err
        };
        Rig::wait_until("it has said so", || moved() && out(&sandbox) == "before\n");
        sandbox.id().to_owned()
    });
    rig.close();
    rig.reopen();
    for id in ids {
        let sandbox = rig.sandboxes().get(&id).unwrap();
        let touch = command(["/bin/sh", "-c", "echo >/tmp/go"]);
        let mut touches = rig.sandboxes().exec(&sandbox, &touch, nulls()).unwrap();
        assert!(sandbox.written().is_some(), "its output is kept");
        // Or ends with its sandbox, which it has ended.
        assert!(touches.wait(PATIENCE).unwrap().is_some());
        assert!(sandbox.wait(PATIENCE).is_some());
        assert_eq!(out(&sandbox), "after\n");
    }
}

/// What a former program has left may be stuck. The next one begins without it.
#[test]
fn a_group_that_stays_keeps_no_program_from_its_start() {
    let mut rig = Rig::new();
    let running = rig.start(shell("sleep 1000"));
    let table = fs::read_to_string(format!("/proc/{}/cgroup", running.pid())).unwrap();
    let group = table.lines().find_map(|line| line.strip_prefix("0::/"));
    let roots = ["/sys/fs/cgroup/unified", "/sys/fs/cgroup"].map(Path::new);
    let dirs = roots.map(|root| root.join(group.unwrap()));
    let group = dirs.iter().find(|dir| dir.exists()).unwrap();
    rig.close();
    // Two that have ended, of which one cannot be removed.
    let [stuck, other] = ["300", "301"].map(|slot| group.with_file_name(slot));
    fs::create_dir_all(stuck.join("below")).unwrap();
    fs::create_dir(&other).unwrap();
    rig.reopen();
    let still = rig.sandboxes().get(running.id()).unwrap();
    assert_eq!(still.phase(), Phase::Running);
    assert!(stuck.exists() && !other.exists());
    fs::remove_dir(stuck.join("below")).unwrap();
    rig.close();
    rig.reopen();
    assert!(!stuck.exists());
}
