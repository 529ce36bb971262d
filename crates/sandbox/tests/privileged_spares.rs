//! Children that a Zygote has forked in advance: they become the next programs, and nothing is left of them.

#![cfg(feature = "privileged")]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod rig;

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use rig::python::{script, store, zygote};
use rig::{PATIENCE, Rig};
use sandbox::{Cause, ExitStatus, Request};

/// Waits until a child waits.
fn until_one_waits(rig: &Rig) {
    Rig::wait_until("a child is forked in advance", || {
        rig.sandboxes().zygotes()[0].waiting == 1
    });
}

fn ends_well(rig: &Rig, request: Request) -> String {
    let (exit, said) = rig.run(request);
    assert_eq!(exit.status, ExitStatus::Code(0), "{said}");
    said
}

/// The processes in the groups of a rig that are of version 2.
fn processes(rig: &Rig) -> Vec<String> {
    let own = rig.groups();
    let below = own.iter().flat_map(|dir| fs::read_dir(dir).unwrap());
    let below = below.map(|entry| entry.unwrap().path());
    let all: Vec<_> = own.iter().cloned().chain(below).collect();
    let tables = all.iter().map(|dir| dir.join("cgroup.procs"));
    let tables = tables.filter_map(|path| fs::read_to_string(path).ok());
    let mut pids: Vec<_> = tables
        .flat_map(|table| table.lines().map(str::to_owned).collect::<Vec<_>>())
        .collect();
    pids.sort();
    pids.dedup();
    pids
}

#[test]
fn a_child_that_waits_becomes_the_next_program_with_all_that_it_asks_for() {
    let rig = Rig::new();
    let packages = store(&[]);
    zygote(&rig, &[], packages.path());
    assert_eq!(rig.sandboxes().zygotes()[0].waiting, 0);
    ends_well(&rig, script("pass", &[], None));
    let scratch = tempfile::tempdir().unwrap();
    fs::set_permissions(scratch.path(), fs::Permissions::from_mode(0o777)).unwrap();
    let mut seen = Vec::new();
    for number in 0..3 {
        until_one_waits(&rig);
        let before = rig.sandboxes().zygotes()[0].forks;
        let waiting = processes(&rig);
        let text = "import os, random, resource, sys
print(os.environ['NUMBER'], sys.argv[1:], os.getpid(), os.getcwd(), os.listdir('/tmp'))
print(resource.getrlimit(resource.RLIMIT_NOFILE), os.statvfs('/tmp').f_blocks * 4096 >> 20, flush=True)
open('/scratch/' + os.environ['NUMBER'], 'w').write(os.environ['NUMBER'])
sys.stderr.write(str(random.random())); sys.stderr.flush(); import time; time.sleep(1000)";
        let mut request = script(text, &[], None);
        request.command.push("argument".to_owned());
        let number = number.to_string();
        request
            .environment
            .insert("NUMBER".to_owned(), number.clone());
        request.limits.descriptors = 99;
        request.limits.tmp_bytes = 3 << 20;
        request.scratch = Some(scratch.path().to_owned());
        let sandbox = rig.start(request);
        assert_eq!(sandbox.ancestry().len(), 1);
        // It was there before it was asked for.
        assert!(waiting.contains(&sandbox.pid().to_string()));
        Rig::wait_until("it says all", || {
            !sandbox.written().unwrap()[1].bytes.is_empty()
        });
        let [out, err] = sandbox.written().unwrap();
        let expected = format!("{number} ['argument'] 1 /tmp []\n(99, 99) 3\n");
        assert_eq!(String::from_utf8(out.bytes).unwrap(), expected);
        assert!(!seen.contains(&err.bytes), "the same random number twice");
        seen.push(err.bytes);
        let kept = fs::read_to_string(scratch.path().join(&number)).unwrap();
        assert_eq!(kept, number);
        assert_eq!(rig.sandboxes().zygotes()[0].forks, before + 1);
        sandbox.kill().unwrap();
        sandbox.wait(PATIENCE).unwrap();
    }
    until_one_waits(&rig);
    let mut request = script("x = b'x' * (300 << 20)", &[], None);
    request.limits.memory_bytes = 64 << 20;
    assert_eq!(rig.run(request).0.cause, Some(Cause::Memory));
    assert_eq!(rig.sandboxes().zygote_counts().replaced, 0);
}

#[test]
fn a_child_that_has_ended_is_not_waited_for() {
    let rig = Rig::new();
    let packages = store(&[]);
    let pid = zygote(&rig, &[], packages.path()).pid.to_string();
    ends_well(&rig, script("pass", &[], None));
    until_one_waits(&rig);
    let waiting = processes(&rig);
    let [waiting] = &waiting
        .into_iter()
        .filter(|one| *one != pid)
        .collect::<Vec<_>>()[..]
    else {
        panic!("one child and the Zygote")
    };
    let killed = std::process::Command::new("kill")
        .args(["-KILL", waiting])
        .status();
    assert!(killed.unwrap().success());
    for _ in 0..3 {
        assert_eq!(ends_well(&rig, script("print(1)", &[], None)), "1\n");
    }
    let counts = rig.sandboxes().zygote_counts();
    assert_eq!((counts.exact, counts.replaced), (4, 0));
}

#[test]
fn children_that_wait_end_with_their_zygote_and_with_the_program() {
    let mut rig = Rig::new();
    let packages = store(&[]);
    let id = zygote(&rig, &[], packages.path()).id;
    ends_well(&rig, script("pass", &[], None));
    until_one_waits(&rig);
    assert_eq!(processes(&rig).len(), 2);
    rig.sandboxes().evict(&id).unwrap();
    assert_eq!(processes(&rig), [""; 0]);
    zygote(&rig, &[], packages.path());
    ends_well(&rig, script("pass", &[], None));
    until_one_waits(&rig);
    rig.close();
    assert_eq!(processes(&rig), [""; 0]);
    rig.reopen();
}

/// A Zygote is evicted while a start waits for its child, which then fails: the sandbox starts without it.
#[test]
fn a_start_whose_zygote_is_evicted_goes_on_without_it() {
    let rig = Rig::new();
    let slow = "import os, time
set_groups, hold = os.setgroups, '/packages/slow==1/hold'
def slow(groups):
    held = os.path.exists(hold)
    while os.path.exists(hold): time.sleep(0.01)
    if held: os._exit(3)
    set_groups(groups)
os.setgroups = slow";
    let packages = store(&[("slow==1", slow)]);
    let id = zygote(&rig, &["slow==1"], packages.path()).id;
    let request = || script("print('ran')", &["slow==1"], Some(packages.path()));
    ends_well(&rig, request());
    until_one_waits(&rig);
    let hold = packages.path().join("slow==1/hold");
    fs::write(&hold, "").unwrap();
    std::thread::scope(|scope| {
        let start = scope.spawn(|| rig.run(request()));
        Rig::wait_until("it has the child that waits", || {
            rig.sandboxes().zygotes()[0].waiting == 0
        });
        rig.sandboxes().evict(&id).unwrap();
        fs::remove_file(&hold).unwrap();
        let (exit, said) = start.join().unwrap();
        assert_eq!((exit.status, said.as_str()), (ExitStatus::Code(0), "ran\n"));
    });
    let counts = rig.sandboxes().zygote_counts();
    assert_eq!((counts.fresh, counts.replaced), (1, 0));
}
