//! The life of a sandbox: it runs, is bounded, paused, killed, and leaves nothing.

#![cfg(feature = "privileged")]

mod rig;

use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt as _;
use std::time::{Duration, Instant};

use nix::fcntl::{PosixFadviseAdvice, posix_fadvise};
use rawio::cached::cached_pages;
use rig::{PATIENCE, Rig, python, shell};
use sandbox::{Cause, ExitStatus, KEPT_MAX_BYTES, Network, Phase, Request, SandboxError, Stdio};

#[test]
fn a_program_runs_and_its_end_and_output_are_known() {
    let rig = Rig::new();
    let (exit, said) = rig.run(shell("echo out; echo err >&2; exit 7"));
    assert_eq!((exit.status, exit.cause), (ExitStatus::Code(7), None));
    assert_eq!(said, "out\nerr\n");
    let (exit, _) = rig.run(shell("exec sleep 0; exit 1"));
    assert_eq!(exit.status, ExitStatus::Code(0));
}

#[test]
fn a_program_has_its_files_and_writes_where_it_may() {
    let rig = Rig::new();
    let code = tempfile::tempdir().unwrap();
    let scratch = tempfile::tempdir().unwrap();
    fs::set_permissions(code.path(), fs::Permissions::from_mode(0o755)).unwrap();
    fs::set_permissions(scratch.path(), fs::Permissions::from_mode(0o777)).unwrap();
    fs::write(code.path().join("file"), "content").unwrap();
    let mut request = shell(
        "pwd; cat file; echo kept >/scratch/kept && echo gone >/tmp/gone || exit 1
         for dir in / /code /usr /etc /dev /packages; do
             touch $dir/x 2>/dev/null && exit 2; done; exit 0",
    );
    request.code = Some(code.path().to_owned());
    request.scratch = Some(scratch.path().to_owned());
    let (exit, said) = rig.run(request);
    assert_eq!(
        (exit.status, said.as_str()),
        (ExitStatus::Code(0), "/code\ncontent")
    );
    assert_eq!(
        fs::read_to_string(scratch.path().join("kept")).unwrap(),
        "kept\n"
    );
    let said = rig
        .python("import os; print(os.listdir('/tmp'), os.listdir('/work'), os.listdir('/root'))");
    assert_eq!(said, "[] [] []\n");
}

/// The first who reads a file is charged for its pages. Others read it, too.
#[test]
fn what_a_sandbox_has_read_stays_in_memory_when_it_has_ended() {
    const BYTES: u64 = 16 << 20;
    let rig = Rig::new();
    // On a disk: pages of a tmpfs are its files.
    let code = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    fs::set_permissions(code.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let path = code.path().join("large");
    fs::write(&path, vec![7; 16 << 20]).unwrap();
    let file = File::open(&path).unwrap();
    file.sync_all().unwrap();
    let cached = || cached_pages(&file, 0, BYTES).unwrap() * 4096;
    posix_fadvise(&file, 0, 0, PosixFadviseAdvice::POSIX_FADV_DONTNEED).unwrap();
    assert_eq!(cached(), 0);
    let mut request = shell("cat large >/dev/null");
    request.code = Some(code.path().to_owned());
    assert_eq!(rig.run(request).0.status, ExitStatus::Code(0));
    // Its group was returned, and is used again or gone.
    rig.sandboxes().end_all(PATIENCE).unwrap();
    assert!(cached() > BYTES / 2, "{} of {BYTES} bytes", cached());
}

#[test]
fn a_request_that_makes_no_sense_is_refused_and_leaves_nothing() {
    let rig = Rig::new();
    let refused = |request: Request| rig.sandboxes().create(request, Stdio::Null).unwrap_err();
    assert!(matches!(
        refused(Request::new("none", &["/bin/true"])),
        SandboxError::Unknown { .. }
    ));
    assert!(matches!(
        refused(Request::new("host", &["true"])),
        SandboxError::Invalid(_)
    ));
    let missing = refused(Request::new("host", &["/bin/nothing-here"]));
    assert!(
        missing.to_string().contains("executing the program"),
        "{missing}"
    );
    let mut request = shell("true");
    request.code = Some("/nowhere".into());
    assert!(refused(request).to_string().contains("/nowhere"));
    // The group of the one that was tried is ready for the next.
    assert_eq!(rig.run(shell("true")).0.status, ExitStatus::Code(0));
    assert_eq!(rig.sandboxes().counts().failed, 4);
}

#[test]
fn time_memory_processes_and_output_are_bounded() {
    let rig = Rig::new();
    let mut request = shell("sleep 1000");
    request.timeout_ms = Some(50);
    let (exit, _) = rig.run(request);
    assert_eq!(
        (exit.status, exit.cause),
        (ExitStatus::Signal(9), Some(Cause::Timeout))
    );

    let mut request = python("x = b'x' * (300 << 20)");
    request.limits.memory_bytes = 64 << 20;
    let (exit, _) = rig.run(request);
    assert_eq!(
        (exit.status, exit.cause),
        (ExitStatus::Signal(9), Some(Cause::Memory))
    );

    let mut request = python(
        "import os, time
made = 0
try:
    while made < 100:
        if os.fork() == 0: time.sleep(1000)
        made += 1
except BlockingIOError: pass
print(made)",
    );
    request.limits.processes = 10;
    assert_eq!(rig.run(request).1, "9\n");

    let mut request = shell("head -c 9000000 /dev/zero >/tmp/file");
    request.limits.tmp_bytes = 1 << 20;
    let (exit, said) = rig.run(request);
    assert!(said.contains("No space left"), "{exit:?} {said}");

    let sandbox = rig.start(shell("head -c 3000000 /dev/zero"));
    assert_eq!(sandbox.wait(PATIENCE).unwrap().status, ExitStatus::Code(0));
    let [out, _] = sandbox.written().unwrap();
    assert_eq!(out.bytes.len(), KEPT_MAX_BYTES);
    assert_eq!(out.dropped_bytes, 3_000_000 - (1 << 20));
}

/// On its way to its program a sandbox shares our memory. Where its own limit is reached then, we are not ended with it,
/// and nobody else reads that memory: neither a core file nor a process of its user.
#[test]
fn a_sandbox_without_memory_for_its_start_ends_alone() {
    let rig = Rig::new();
    let mut fell_short = 0;
    for pages in 0..64 {
        let mut request = Request::new("host", &["/bin/true"]);
        request.limits.memory_bytes = pages << 12;
        match rig.sandboxes().create(request, Stdio::Null) {
            Ok(sandbox) => {
                let exit = sandbox.wait(PATIENCE).unwrap();
                fell_short += usize::from(exit.status != ExitStatus::Code(0));
            }
            Err(error) => {
                assert!(!matches!(error, SandboxError::Late { .. }), "{error}");
                fell_short += 1;
            }
        }
    }
    assert!(fell_short > 0, "all had enough");
    let (exit, _) = rig.run(shell("exit 7"));
    assert_eq!(exit.status, ExitStatus::Code(7));
    assert!(!nix::sys::prctl::get_dumpable().unwrap());
}

#[test]
fn a_kill_ends_all_processes_paused_or_not() {
    let rig = Rig::new();
    for paused in [false, true] {
        let sandbox = rig.start(shell("sleep 1000 & sleep 1000 & echo up; wait"));
        until(|| sandbox.written().unwrap()[0].bytes == b"up\n");
        let processes = sandbox.processes().unwrap();
        assert_eq!(processes.len(), 3);
        if paused {
            sandbox.pause().unwrap();
        }
        sandbox.kill().unwrap();
        let exit = sandbox.wait(PATIENCE).unwrap();
        assert_eq!(
            (exit.status, exit.cause),
            (ExitStatus::Signal(9), Some(Cause::Killed))
        );
        for pid in processes {
            assert!(!fs::exists(format!("/proc/{pid}")).unwrap());
        }
        assert!(sandbox.pause().is_err() && sandbox.memory_bytes().is_err());
        sandbox.kill().unwrap();
        // The next one is in the same group, and neither frozen nor left with the memory of a paused one.
        let (exit, said) = rig.run(python("print(len(b'x' * (64 << 20)))"));
        assert_eq!(
            (exit.status, said.as_str()),
            (ExitStatus::Code(0), "67108864\n")
        );
    }
}

#[test]
fn a_paused_sandbox_runs_nothing_and_gives_back_memory() {
    let rig = Rig::new();
    let scratch = tempfile::tempdir().unwrap();
    fs::set_permissions(scratch.path(), fs::Permissions::from_mode(0o777)).unwrap();
    let mut request = python(
        "import os, sys
with open('/scratch/big', 'wb') as file:
    file.write(b'x' * (32 << 20)); file.flush(); os.fsync(file.fileno())
open('/scratch/big', 'rb').read()
print('up', flush=True)
while True:
    with open('/scratch/count', 'a') as file: file.write('x')",
    );
    request.scratch = Some(scratch.path().to_owned());
    let sandbox = rig.start(request);
    until(|| sandbox.written().unwrap()[0].bytes == b"up\n");
    let before = sandbox.memory_bytes().unwrap();
    sandbox.pause().unwrap();
    assert_eq!(sandbox.phase(), Phase::Paused);
    let after = sandbox.memory_bytes().unwrap();
    assert!(after + (16 << 20) < before, "{before} to {after}");
    let count = || fs::metadata(scratch.path().join("count")).map_or(0, |count| count.len());
    let counted = count();
    // It makes thousands of these in that time when it runs.
    std::thread::sleep(Duration::from_millis(50));
    assert_eq!(count(), counted);
    sandbox.resume().unwrap();
    assert_eq!(sandbox.phase(), Phase::Running);
    until(|| count() > counted);
}

#[test]
fn another_program_runs_inside_with_the_same_rights() {
    let rig = Rig::new();
    let sandbox = rig.start(shell("echo secret >/tmp/file; sleep 1000"));
    let (read, write) = std::io::pipe().unwrap();
    let null = || std::fs::File::open("/dev/null").unwrap().into();
    let script = "until test -s /tmp/file; do :; done; cat /tmp/file; id -u; grep CapBnd /proc/self/status; ls /proc | grep -c '^[0-9]'";
    let command = ["/bin/sh", "-c", script].map(str::to_owned);
    let stdio = [null(), write.try_clone().unwrap().into(), write.into()];
    let mut execution = rig.sandboxes().exec(&sandbox, &command, stdio).unwrap();
    let said = std::io::read_to_string(read).unwrap();
    assert_eq!(execution.wait(PATIENCE).unwrap(), Some(ExitStatus::Code(0)));
    let lines: Vec<_> = said.lines().collect();
    assert_eq!(lines[0], "secret");
    assert!(lines[1].parse::<u32>().unwrap() >= rig.config.first_uid);
    assert_eq!(lines[2], "CapBnd:\t0000000000000000");
    assert!(lines[3].parse::<u32>().unwrap() <= 6, "{said}");
    sandbox.kill().unwrap();
    sandbox.wait(PATIENCE).unwrap();
    let stdio = [null(), null(), null()];
    assert!(rig.sandboxes().exec(&sandbox, &command, stdio).is_err());
}

#[test]
fn networks_are_none_or_the_hosts() {
    let rig = Rig::new();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let script = format!(
        "import socket
def tries(port):
    try: socket.create_connection(('127.0.0.1', port), 5); return 'connected'
    except OSError as error: return type(error).__name__
own = socket.create_server(('127.0.0.1', 0))
print(tries({port}), tries(own.getsockname()[1]))"
    );
    assert_eq!(rig.python(&script), "ConnectionRefusedError connected\n");
    let mut request = python(&script);
    request.network = Network::Host;
    assert_eq!(rig.run(request).1, "connected connected\n");
}

fn until(mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < deadline, "it never came");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// A process begins with a copy of all descriptors of the thread that starts it.
#[test]
fn a_start_copies_few_descriptors_however_many_there_are() {
    let rig = Rig::new();
    let _many: Vec<_> = (0..500)
        .map(|_| fs::File::open("/dev/null").unwrap())
        .collect();
    assert_eq!(rig.run(shell("exit 0")).0.status, ExitStatus::Code(0));
    let mut starters = 0;
    for task in fs::read_dir("/proc/self/task").unwrap() {
        let task = task.unwrap().path();
        let name = fs::read_to_string(task.join("comm")).unwrap_or_default();
        // Threads of other tests come and go.
        if let ("sandbox-starter\n", Ok(open)) = (name.as_str(), fs::read_dir(task.join("fd"))) {
            starters += 1;
            // The standard streams, its socket, and what the process needs that it starts for another test.
            let open = open.count();
            assert!(open <= 20, "{open} descriptors");
        }
    }
    assert!(starters >= 2);
}

/// Whoever drops the last reference to a namespace of mounts waits for its end, and that is not the program.
#[test]
fn mounts_end_behind_the_program_unless_they_are_its_callers() {
    let rig = Rig::new();
    let held = |name: &str| {
        let open = fs::read_dir("/proc/self/fd").unwrap();
        let targets = open.filter_map(|fd| fs::read_link(fd.unwrap().path()).ok());
        targets.filter(|target| target.as_os_str() == name).count()
    };
    let scratch = tempfile::tempdir().unwrap();
    for (scratch, expected) in [(None, 1), (Some(scratch.path().to_owned()), 0)] {
        let mut request = Request::new("host", &["/bin/sleep", "1000"]);
        request.scratch = scratch;
        let sandbox = rig.start(request);
        let namespace = fs::read_link(format!("/proc/{}/ns/mnt", sandbox.pid())).unwrap();
        let namespace = namespace.to_str().unwrap().to_owned();
        // None on Linux before 6.11.
        assert!(held(&namespace) <= expected);
        sandbox.kill().unwrap();
        sandbox.wait(PATIENCE).unwrap();
        Rig::wait_until("its mounts are gone", || held(&namespace) == 0);
    }
}

/// Records have the variables of programs in them.
#[test]
fn what_is_written_down_is_for_its_owner_alone() {
    let mut rig = Rig::new();
    rig.close();
    rig.config.run_dir = rig.dir.path().join("other");
    rig.reopen();
    let mode = fs::metadata(&rig.config.run_dir)
        .unwrap()
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o700);
}
