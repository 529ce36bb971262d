//! Nothing is left: after thousands of sandboxes, and after the program that made them was killed.

#![cfg(feature = "privileged")]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod rig;

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::MetadataExt as _;
use std::process::{Command, Stdio as ProcessStdio};
use std::time::Duration;

use rig::{PATIENCE, Rig, python, shell};
use sandbox::{Cause, ExitStatus, Neighbours, Phase, Request, Stdio};

/// What there is of a rig on the machine.
#[derive(Debug, PartialEq, Eq)]
struct Held {
    descriptors: usize,
    mounts: usize,
    groups: usize,
    processes: usize,
    records: usize,
    devices: usize,
}

impl Held {
    fn now(rig: &Rig) -> Self {
        let count = |dir: &str| fs::read_dir(dir).unwrap().count();
        Self {
            descriptors: count("/proc/self/fd"),
            mounts: mounts_of(rig),
            groups: rig.groups().len(),
            processes: processes_of(rig).len(),
            records: fs::read_dir(rig.config.run_dir.join("sandboxes"))
                .unwrap()
                .count(),
            devices: rig.devices().len(),
        }
    }
}

/// The mounts of a rig that the machine sees. Others come and go on it.
fn mounts_of(rig: &Rig) -> usize {
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let dir = rig.dir.path().to_str().unwrap();
    table.lines().filter(|line| line.contains(dir)).count()
}

/// The processes whose user is a sandbox of the rig. One that has ended and waits to be reaped by a
/// parent that is not ours is none.
fn processes_of(rig: &Rig) -> Vec<String> {
    let users = rig.config.first_uid..rig.config.first_uid + rig.config.sandboxes_max;
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").unwrap() {
        let entry = entry.unwrap();
        let is_its = entry.metadata().is_ok_and(|of| users.contains(&of.uid()));
        let name = entry.file_name().into_string().unwrap();
        let stat = fs::read_to_string(entry.path().join("stat")).unwrap_or_default();
        let has_ended = stat
            .rsplit_once(") ")
            .is_none_or(|(_, rest)| rest.starts_with('Z'));
        if is_its && !has_ended && name.bytes().all(|byte| byte.is_ascii_digit()) {
            found.push(name);
        }
    }
    found
}

#[test]
fn thousands_of_sandboxes_leave_nothing() {
    let rig = Rig::new();
    let cycle = |number: usize| {
        let request = match number % 8 {
            0 => shell("sleep 1000 & exit 3"),
            _ => Request::new("host", &["/bin/true"]),
        };
        let stdio = if number.is_multiple_of(4) {
            Stdio::Captured
        } else {
            Stdio::Null
        };
        let sandbox = rig.sandboxes().create(request, stdio).unwrap();
        sandbox.wait(PATIENCE).unwrap();
    };
    // What is made once and kept, and the sandboxes that are still told of.
    (0..520).for_each(cycle);
    let before = Held::now(&rig);
    assert_eq!((before.processes, before.records, before.mounts), (0, 0, 0));
    (0..1000).for_each(cycle);
    let after = Held::now(&rig);
    // Those that are told of hold their process's descriptor.
    let spread = after.descriptors.abs_diff(before.descriptors);
    assert!(spread <= 256, "{before:?} {after:?}");
    let descriptors = before.descriptors;
    assert_eq!(
        Held {
            descriptors,
            ..after
        },
        before
    );
}

/// The program is killed at some time, and the next one finds what it has left.
#[test]
fn a_program_that_is_killed_leaves_what_runs_and_nothing_else() {
    let mut rig = Rig::on_bridge(Neighbours::Apart);
    let bridge = rig.config.bridge.clone().unwrap();
    rig.close();
    let mut random = 0x2545_f491_4f6c_dd1d_u64 ^ u64::from(std::process::id());
    let mut outlived = 0;
    for round in 0..24 {
        let mut holder = Command::new(env!("CARGO_BIN_EXE_sandbox-holder"))
            .arg(&rig.config.run_dir)
            .arg(&rig.config.cgroup)
            .arg(rig.config.first_uid.to_string())
            .args([&bridge.name, &bridge.subnet.to_string()])
            .stdout(ProcessStdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(holder.stdout.take().unwrap()).lines();
        assert_eq!(lines.next().unwrap().unwrap(), "ready");
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        std::thread::sleep(Duration::from_micros(random % 40_000));
        holder.kill().unwrap();
        holder.wait().unwrap();
        let (mut run, mut ended) = (BTreeSet::new(), BTreeSet::new());
        for line in lines {
            match line.unwrap().split_once(' ') {
                Some(("runs", id)) => run.insert(id.to_owned()),
                Some(("ends", id)) => ended.insert(id.to_owned()),
                other => panic!("{other:?}"),
            };
        }

        rig.reopen();
        let sandboxes = rig.sandboxes();
        let found = sandboxes.list();
        let ids: BTreeSet<_> = found
            .iter()
            .map(|sandbox| sandbox.id().to_owned())
            .collect();
        let missing: Vec<_> = run
            .difference(&ended)
            .filter(|id| !ids.contains(*id))
            .collect();
        assert!(
            missing.is_empty(),
            "round {round}: {missing:?} of {run:?} did not go on"
        );
        let held = Held::now(&rig);
        assert_eq!(held.mounts, 0);
        // Those that end by themselves may do so meanwhile, so there may be fewer.
        assert!(
            held.records <= found.len() && held.processes <= found.len(),
            "{held:?}"
        );
        outlived += run.len() - ended.len();
        for sandbox in &found {
            if !matches!(sandbox.phase(), Phase::Ended(_))
                && run.contains(sandbox.id())
                && !ended.contains(sandbox.id())
            {
                sandbox.resume().unwrap();
                sandbox.pause().unwrap();
            }
        }
        sandboxes.end_all(PATIENCE).unwrap();
        let held = Held::now(&rig);
        assert_eq!(
            (held.groups, held.processes, held.records),
            (0, 0, 0),
            "round {round}"
        );
        rig.close();
        assert_eq!(rig.devices(), [""; 0], "round {round}");
    }
    assert!(outlived > 0, "no sandbox was there to go on");
    rig.reopen();
}

/// Who comes next is told how a sandbox of another ended, and what it says from then on.
#[test]
fn a_sandbox_goes_on_without_its_program() {
    let mut rig = Rig::new();
    // It ends after the other program has: its end would end that, too.
    let request = shell(
        "mkfifo /tmp/go; echo before; read x </tmp/go; echo after
        set -- /proc/[0-9]*; until test $# = 1; do set -- /proc/[0-9]*; done; exit 9",
    );
    let id = rig.start(request).id().to_owned();
    let mut timed = python("import time; time.sleep(1000)");
    timed.timeout_ms = Some(2000);
    let timed = rig.start(timed).id().to_owned();
    rig.close();
    rig.reopen();
    let sandbox = rig.sandboxes().get(&id).unwrap();
    assert_eq!(sandbox.phase(), Phase::Running);
    let null = || fs::File::open("/dev/null").unwrap().into();
    let command = [
        "/bin/sh",
        "-c",
        "until test -p /tmp/go; do :; done; echo >/tmp/go",
    ];
    let command = command.map(str::to_owned);
    let mut execution = rig
        .sandboxes()
        .exec(&sandbox, &command, [null(), null(), null()])
        .unwrap();
    assert_eq!(execution.wait(PATIENCE).unwrap(), Some(ExitStatus::Code(0)));
    assert_eq!(sandbox.wait(PATIENCE).unwrap().status, ExitStatus::Code(9));
    let said = String::from_utf8(sandbox.written().unwrap()[0].bytes.clone()).unwrap();
    assert!(said.ends_with("after\n"), "{said:?}");
    let timed = rig.sandboxes().get(&timed).unwrap();
    assert_eq!(timed.wait(PATIENCE).unwrap().cause, Some(Cause::Timeout));
}
