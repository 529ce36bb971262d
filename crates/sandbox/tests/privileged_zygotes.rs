//! Python from a Zygote: as from an interpreter of its own, but for the imports, and with no package that
//! was not asked for.

#![cfg(feature = "privileged")]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod rig;

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use rig::python::{PYTHON, script, set, store, zygote};
use rig::{PATIENCE, Rig};
use sandbox::{ExitStatus, Network, Request, SandboxError, ZygoteSpec};

fn ends_well(rig: &Rig, request: Request) -> String {
    let (exit, said) = rig.run(request);
    assert_eq!(exit.status, ExitStatus::Code(0), "{said}");
    said
}

/// Programs, and what they end with.
const CASES: &[(&str, i32)] = &[
    (
        "print('out'); import sys; print('err', file=sys.stderr); sys.exit(7)",
        7,
    ),
    ("print(__name__, __import__('sys').argv)", 0),
    ("raise ValueError('x')", 1),
    ("import sys; sys.exit('text')", 1),
    (
        "import atexit; atexit.register(print, 'at the end'); print('first')",
        0,
    ),
    (
        "import threading; threading.Thread(target=lambda: print('thread')).start()",
        0,
    ),
    (
        "import os; print(sorted(set(os.environ) - {'LC_CTYPE'})); print(os.getcwd(), os.getpid())",
        0,
    ),
    (
        "import subprocess; print(subprocess.run(['/bin/echo', 'x'], capture_output=True).stdout)",
        0,
    ),
    (
        "import multiprocessing as m\nwith m.Pool(2) as p: print(p.map(abs, [-1, -2]))",
        0,
    ),
    (
        "import os; print(open('/proc/self/status').read().count('NoNewPrivs:\\t1'), os.listdir('/tmp'))",
        0,
    ),
    (
        "import resource as r; print(r.getrlimit(r.RLIMIT_NPROC), r.getrlimit(r.RLIMIT_NOFILE))",
        0,
    ),
    (
        "import socket; s = socket.create_server(('127.0.0.1', 0)); socket.create_connection(s.getsockname()); print('ok')",
        0,
    ),
];

#[test]
fn a_fork_does_what_an_interpreter_does() {
    let rig = Rig::new();
    let store = store(&[]);
    let run = |fresh: bool, text: &str| {
        let mut request = match fresh {
            true => Request::new("host", &[PYTHON, "-c", text]),
            false => script(text, &[], None),
        };
        request.command.push("argument".to_owned());
        request
            .environment
            .insert("NAME".to_owned(), "value".to_owned());
        let sandbox = rig.start(request);
        let exit = sandbox.wait(PATIENCE).unwrap();
        let [out, err] = sandbox.written().unwrap();
        let err = String::from_utf8_lossy(&err.bytes).into_owned();
        // A traceback has a line of ours in it.
        let last = err.lines().last().unwrap_or_default().to_owned();
        (
            exit.status,
            String::from_utf8_lossy(&out.bytes).into_owned(),
            last,
            sandbox.ancestry().len(),
        )
    };
    let fresh: Vec<_> = CASES.iter().map(|(text, _)| run(true, text)).collect();
    zygote(&rig, &[], store.path());
    for ((text, code), fresh) in CASES.iter().zip(fresh) {
        let forked = run(false, text);
        assert_eq!((fresh.3, forked.3), (0, 1), "{text}");
        assert_eq!(forked.0, ExitStatus::Code(*code), "{text}: {forked:?}");
        assert_eq!(
            (forked.0, &forked.1, &forked.2),
            (fresh.0, &fresh.1, &fresh.2),
            "{text}"
        );
    }
    assert_eq!(
        rig.sandboxes().zygote_counts().exact,
        u64::try_from(CASES.len()).unwrap()
    );
}

#[test]
fn a_fork_has_its_code_its_scratch_and_its_limits() {
    let rig = Rig::new();
    let store = store(&[]);
    zygote(&rig, &[], store.path());
    let code = tempfile::tempdir().unwrap();
    fs::set_permissions(code.path(), fs::Permissions::from_mode(0o755)).unwrap();
    fs::write(code.path().join("other.py"), "WHAT = 'imported'").unwrap();
    let main = "import os, sys, other
print(other.WHAT, os.getcwd(), sys.argv)
open('/scratch/kept', 'w').write('kept')
try: open('/code/x', 'w')
except OSError as error: print(error.strerror)";
    fs::write(code.path().join("main.py"), main).unwrap();
    let scratch = tempfile::tempdir().unwrap();
    fs::set_permissions(scratch.path(), fs::Permissions::from_mode(0o777)).unwrap();
    let mut request = script("", &[], None);
    request.command = vec!["/code/main.py".to_owned(), "a".to_owned()];
    request
        .environment
        .insert("PYTHONPATH".to_owned(), "/code".to_owned());
    request.code = Some(code.path().to_owned());
    request.scratch = Some(scratch.path().to_owned());
    let said = ends_well(&rig, request);
    assert_eq!(
        said,
        "imported /code ['/code/main.py', 'a']\nRead-only file system\n"
    );
    assert_eq!(
        fs::read_to_string(scratch.path().join("kept")).unwrap(),
        "kept"
    );

    let mut request = script("x = b'x' * (300 << 20)", &[], None);
    request.limits.memory_bytes = 64 << 20;
    let (exit, _) = rig.run(request);
    assert_eq!(exit.cause, Some(sandbox::Cause::Memory));
    let mut request = script("while True: pass", &[], None);
    request.timeout_ms = Some(50);
    assert_eq!(rig.run(request).0.cause, Some(sandbox::Cause::Timeout));
    assert_eq!(rig.sandboxes().zygote_counts().exact, 3);
}

/// What two children of one interpreter must not share.
#[test]
fn children_are_renewed() {
    let rig = Rig::new();
    let store = store(&[(
        "state==1",
        "import logging, random, tempfile, uuid, os
random.random(); tempfile.mkdtemp(); uuid.uuid4()
logging.basicConfig(filename='/tmp/log'); logging.warning('of the zygote')
os.environ['OF_THE_ZYGOTE'] = '1'",
    )]);
    zygote(&rig, &["state==1"], store.path());
    let text = "import state, random, ssl, tempfile, uuid, os, logging, time
logging.warning('mine')
print(random.random(), ssl.RAND_bytes(8).hex(), tempfile.mktemp(), uuid.uuid4(), id(object()) and '')
print(os.environ.get('OF_THE_ZYGOTE'), time.tzname[0], open('/tmp/log').read().strip())";
    let mut seen = BTreeSet::new();
    for zone in ["UTC", "XYZ-3"] {
        let mut request = script(text, &["state==1"], Some(store.path()));
        request.environment.insert("TZ".to_owned(), zone.to_owned());
        let said = ends_well(&rig, request);
        let (random, same) = said.split_once('\n').unwrap();
        let name = zone.split('-').next().unwrap();
        assert_eq!(same, format!("None {name} WARNING:root:mine\n"));
        for word in random.split_whitespace() {
            assert!(seen.insert(word.to_owned()), "{word} twice");
        }
    }
    assert_eq!(rig.sandboxes().zygote_counts().exact, 2);
}

/// A package that changes the interpreter changes it for those only who asked for it.
#[test]
fn an_attack_package_reaches_nobody_who_did_not_ask_for_it() {
    let rig = Rig::new();
    let attack = "import json, sys
json.dumps = lambda *a, **k: 'attacked'";
    let store = store(&[
        ("evil==1", attack),
        ("evil==2", ""),
        ("good==1", "import json"),
    ]);
    zygote(&rig, &["evil==1"], store.path());
    zygote(&rig, &["evil==1", "good==1"], store.path());
    let text = "import json; print(json.dumps(1))";
    let needs: [(&[&str], &str); 6] = [
        (&[], "1\n"),
        (&["good==1"], "1\n"),
        (&["evil==2"], "1\n"),
        (&["evil==2", "good==1"], "1\n"),
        (&["evil==1"], "attacked\n"),
        (&["evil==1", "good==1"], "attacked\n"),
    ];
    // The second time there is a Zygote for each.
    for _ in 0..2 {
        for (packages, expected) in needs {
            let sandbox = rig.start(script(text, packages, Some(store.path())));
            sandbox.wait(PATIENCE).unwrap();
            let [out, err] = sandbox.written().unwrap();
            let said = String::from_utf8_lossy(&out.bytes).into_owned();
            assert_eq!(
                said,
                expected,
                "{packages:?} {err:?} {:?}",
                sandbox.ancestry()
            );
            let evil = sandbox
                .ancestry()
                .iter()
                .any(|zygote| zygote.contains("evil==1"));
            assert_eq!(evil, packages.contains(&"evil==1"));
        }
    }
    let counts = rig.sandboxes().zygote_counts();
    assert_eq!(counts.replaced, 0, "{counts:?}");
}

#[test]
fn a_zygote_is_made_when_a_need_comes_again_and_ended_without_its_children() {
    let rig = Rig::new();
    let store = store(&[("a==1", "import json")]);
    let text = "import a, time; print('up', flush=True); time.sleep(1000)";
    let start = || rig.start(script(text, &["a==1"], Some(store.path())));
    let (first, second) = (start(), start());
    assert_eq!((first.ancestry().len(), second.ancestry().len()), (0, 1));
    let [zygote] = &rig.sandboxes().zygotes()[..] else {
        panic!()
    };
    assert_eq!((zygote.forks, &zygote.packages), (1, &set(&["a==1"])));
    assert!(second.ancestry()[0].starts_with(&zygote.id));
    rig.sandboxes().evict(&zygote.id).unwrap();
    assert!(matches!(
        rig.sandboxes().evict(&zygote.id),
        Err(SandboxError::Unknown { .. })
    ));
    assert!(!fs::exists(format!("/proc/{}", zygote.pid)).unwrap());
    second.pause().unwrap();
    second.resume().unwrap();
    second.kill().unwrap();
    assert_eq!(second.wait(PATIENCE).unwrap().status, ExitStatus::Signal(9));
}

#[test]
fn a_zygote_that_hangs_or_dies_or_grows_is_replaced() {
    let rig = Rig::new();
    let store = store(&[
        (
            "dies==1",
            "import os\nos.register_at_fork(before=lambda: os._exit(9))",
        ),
        (
            "breaks==1",
            "import json\njson.JSONEncoder.encode = lambda self, what: '[0]'",
        ),
        ("lies==1", "import os\nos.setresuid = lambda *a: None"),
        (
            "grows==1",
            "import os\nos.register_at_fork(after_in_parent=lambda: big.extend([bytes(1 << 20) + b'x' for _ in range(80)]))\nbig = []",
        ),
        ("fails==1", "raise ValueError('on purpose')"),
        (
            "threads==1",
            "import threading, time\nthreading.Thread(target=time.sleep, args=(1000,), daemon=True).start()",
        ),
    ]);
    for package in ["dies==1", "breaks==1", "lies==1"] {
        zygote(&rig, &[package], store.path());
        let before = rig.sandboxes().zygote_counts();
        // One that has ended before its rights are looked at is not looked at.
        let text = "import time; time.sleep(1)";
        let sandbox = rig.start(script(text, &[package], Some(store.path())));
        assert_eq!(
            sandbox.wait(PATIENCE).unwrap().status,
            ExitStatus::Code(0),
            "{package}"
        );
        assert!(
            sandbox.ancestry().is_empty(),
            "{package} {:?} {:?}",
            sandbox.ancestry(),
            rig.sandboxes().zygotes()
        );
        let after = rig.sandboxes().zygote_counts();
        assert_eq!(
            (after.replaced, after.fresh),
            (before.replaced + 1, before.fresh + 1)
        );
        assert!(rig.sandboxes().zygotes().is_empty());
    }
    let mut spec = ZygoteSpec::new("host", PYTHON, &[]);
    spec.packages = set(&["grows==1"]);
    spec.store = Some(store.path().to_owned());
    spec.memory_bytes = 80 << 20;
    rig.sandboxes().add_zygote(spec.clone()).unwrap();
    let before = rig.sandboxes().zygotes()[0].pid;
    for _ in 0..3 {
        ends_well(
            &rig,
            script("print('ran')", &["grows==1"], Some(store.path())),
        );
    }
    assert_ne!(rig.sandboxes().zygotes()[0].pid, before);
    for (package, says) in [
        ("fails==1", "on purpose"),
        ("threads==1", "started threads"),
    ] {
        spec.packages = set(&[package]);
        let error = rig
            .sandboxes()
            .add_zygote(spec.clone())
            .unwrap_err()
            .to_string();
        assert!(error.contains(says), "{error}");
    }
}

/// The rights of a child are those of any other sandbox, as the same attempts show.
#[test]
fn nobody_gets_out_of_a_fork() {
    use std::os::linux::net::SocketAddrExt as _;
    use std::os::unix::net::{SocketAddr, UnixListener};
    let rig = Rig::new();
    let store = store(&[]);
    zygote(&rig, &[], store.path());
    let name = format!("sandbox-test-{}-fork", std::process::id());
    let address = SocketAddr::from_abstract_name(&name).unwrap();
    let _listener = UnixListener::bind_addr(&address).unwrap();
    let mut request = script(include_str!("attacks.py"), &[], None);
    request
        .command
        .extend([std::process::id().to_string(), name]);
    let sandbox = rig.start(request);
    let exit = sandbox.wait(PATIENCE).unwrap();
    let said = sandbox
        .written()
        .unwrap()
        .map(|stream| String::from_utf8_lossy(&stream.bytes).into_owned());
    assert_eq!(
        (exit.status, sandbox.ancestry().len()),
        (ExitStatus::Code(0), 1),
        "{said:?}"
    );
    let bad: Vec<_> = said[0]
        .lines()
        .filter(|line| !line.ends_with(": refused"))
        .collect();
    assert_eq!(bad, ["done"]);
    assert_eq!(said[0].lines().count(), 99);
}

/// A package in a Zygote has the rights of its namespace, and these are none outside.
#[test]
fn a_zygote_reaches_nothing_outside() {
    let rig = Rig::new();
    let victim = rig.start(rig::python("import time; time.sleep(1000)"));
    let secret = tempfile::NamedTempFile::new().unwrap();
    let tries = format!(
        "import os, socket, ctypes
said = []
def tries(what, act):
    try: said.append((what, act()))
    except OSError as error: pass
tries('kill', lambda: os.kill({victim}, 0))
tries('kill the manager', lambda: os.kill({manager}, 0))
tries('see', lambda: os.stat('/proc/{victim}'))
tries('enter', lambda: os.listdir('/proc/{victim}/root'))
tries('file', lambda: open({secret:?}).read())
tries('write', lambda: open('/usr/bin/x', 'w'))
tries('network', lambda: socket.create_connection(('127.0.0.1', {port})))
tries('groups', lambda: os.listdir('/sys/fs/cgroup'))
tries('device', lambda: os.mknod('/tmp/disk', 0o60600, os.makedev(8, 0)))
tries('chown', lambda: os.chown('/tmp', 2 ** 31, 0))
libc = ctypes.CDLL(None, use_errno=True)
for call in (321, 298, 425, 101): tries(call, lambda: said.append(call) if libc.syscall(call, 0, 0, 0, 0) >= 0 else None)
tries('remount', lambda: said.append('remount') if libc.mount(None, b'/usr', None, 32 | 4096, None) == 0 else None)
said = [what for what in said if not isinstance(what, tuple) or what[1] is not None]",
        victim = victim.pid(),
        manager = std::process::id(),
        secret = secret.path(),
        port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port(),
    );
    let store = store(&[("evil==1", &tries)]);
    zygote(&rig, &["evil==1"], store.path());
    let said = ends_well(
        &rig,
        script(
            "import evil; print(evil.said)",
            &["evil==1"],
            Some(store.path()),
        ),
    );
    assert_eq!(said, "[]\n");
    assert_eq!(rig.sandboxes().zygote_counts().exact, 1);
}

#[test]
fn a_zygote_gives_nobody_the_hosts_network_and_refuses_what_makes_no_sense() {
    let rig = Rig::new();
    let store = store(&[("a==1", "")]);
    zygote(&rig, &[], store.path());
    let mut request = script("print(1)", &[], None);
    request.network = Network::Host;
    let sandbox = rig.start(request);
    assert!(sandbox.ancestry().is_empty());
    let mut spec = ZygoteSpec::new("host", PYTHON, &[]);
    spec.packages = set(&["a==1"]);
    assert!(rig.sandboxes().add_zygote(spec.clone()).is_err());
    spec.packages = set(&["../../a==1"]);
    spec.store = Some(store.path().to_owned());
    assert!(rig.sandboxes().add_zygote(spec).is_err());
    // Too long for one message: nobody is to blame but the request.
    let long = "#".repeat(200_000);
    let sandbox = rig
        .sandboxes()
        .create(script(&long, &[], None), sandbox::Stdio::Null);
    assert!(sandbox.is_err());
    assert_eq!(rig.sandboxes().zygotes().len(), 1);
}

const HAS: &str =
    "import sys; print([name for name in ['colorsys', 'wave', 'b.thread'] if name in sys.modules])";

/// Runs a program that says which modules it finds, notes what it "imported", and returns what it said.
fn finds(rig: &Rig, package: &str, store: &Path, imported: &[&str]) -> String {
    let sandbox = rig.start(script(HAS, &[package], Some(store)));
    assert_eq!(
        sandbox.wait(PATIENCE).unwrap().status,
        ExitStatus::Code(0),
        "{package}"
    );
    let imported = imported.iter().map(|&name| name.to_owned()).collect();
    rig.sandboxes().note_imports(&sandbox, imported);
    let [out, _] = sandbox.written().unwrap();
    String::from_utf8_lossy(&out.bytes).trim().to_owned()
}

#[test]
fn a_zygote_has_what_all_programs_of_its_packages_import() {
    let rig = Rig::new();
    let store = store(&[("a==1", ""), ("b==1", "")]);
    let finds = |package, imported: &[&str]| finds(&rig, package, store.path(), imported);
    assert_eq!(finds("a==1", &["colorsys", "wave", "no.such", "-"]), "[]");
    // The need comes again, so there is a Zygote; this program imports less.
    assert_eq!(finds("a==1", &["wave"]), "['colorsys', 'wave']");
    assert_eq!(finds("a==1", &["wave"]), "['wave']");
    assert_eq!(finds("a==1", &["wave"]), "['wave']");
    // The first one was replaced, and the second stays.
    assert_eq!(rig.sandboxes().zygote_counts().made, 2);
    assert_eq!(rig.sandboxes().zygote_counts().exact, 3);
    // Other packages, other programs.
    assert_eq!(finds("b==1", &[]), "[]");
    assert_eq!(finds("b==1", &[]), "[]");
}

#[test]
fn a_module_that_a_zygote_cannot_have_is_left_to_its_programs() {
    let rig = Rig::new();
    let store = store(&[]);
    let package = store.path().join("b==1/b");
    fs::create_dir_all(&package).unwrap();
    fs::write(package.join("__init__.py"), "").unwrap();
    fs::write(package.join("exits.py"), "raise SystemExit(3)").unwrap();
    let thread = "import threading, time\nthreading.Thread(target=time.sleep, args=(1000,), daemon=True).start()";
    fs::write(package.join("thread.py"), thread).unwrap();
    let finds = |imported: &[&str]| finds(&rig, "b==1", store.path(), imported);
    assert_eq!(finds(&["b.exits", "wave"]), "[]");
    assert_eq!(finds(&["b.exits", "wave"]), "['wave']");
    let counts = rig.sandboxes().zygote_counts();
    assert_eq!((counts.made, counts.exact), (1, 1));
    // Nobody is forked from an interpreter with a second thread.
    let mut other = ZygoteSpec::new("host", PYTHON, &[]);
    other.packages = set(&["b==1"]);
    other.store = Some(store.path().to_owned());
    other.learned = Some(vec!["b.thread".to_owned()]);
    let error = rig.sandboxes().add_zygote(other).unwrap_err().to_string();
    assert!(error.contains("started threads"), "{error}");
}

#[test]
fn a_zygote_is_made_without_modules_that_start_threads() {
    let rig = Rig::new();
    let store = store(&[]);
    let package = store.path().join("b==1/b");
    fs::create_dir_all(&package).unwrap();
    fs::write(package.join("__init__.py"), "").unwrap();
    let thread = "import threading, time\nthreading.Thread(target=time.sleep, args=(1000,), daemon=True).start()";
    fs::write(package.join("thread.py"), thread).unwrap();
    let finds = || finds(&rig, "b==1", store.path(), &["b.thread", "wave"]);
    assert_eq!(finds(), "[]");
    for _ in 0..3 {
        assert_eq!(finds(), "[]");
    }
    let counts = rig.sandboxes().zygote_counts();
    assert_eq!((counts.made, counts.exact), (1, 3));
}
