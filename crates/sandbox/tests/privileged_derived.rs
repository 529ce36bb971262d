//! Zygotes that are forked from Zygotes: what one imports besides does not reach the other.

#![cfg(feature = "privileged")]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod rig;

use std::collections::BTreeSet;
use std::fs;
use std::process::Command;

use rig::python::{script, set, store, zygote};
use rig::{PATIENCE, Rig};
use sandbox::{ExitStatus, Phase};

/// What two programs need in common is imported once, and what one of them needs besides reaches neither the other
/// nor the Zygote that both descend from.
#[test]
fn a_zygote_is_forked_from_a_zygote_and_cannot_reach_it() {
    let rig = Rig::new();
    let evil = "
import common, os, signal
common.WHOSE = 'evil'
SEEN = [pid for pid in os.listdir('/proc') if pid.isdigit() and int(pid) != os.getpid()]
KILLED = []
for pid in range(os.getpid() - 200, os.getpid()):
    try:
        os.kill(pid, signal.SIGKILL)
        KILLED.append(pid)
    except OSError:
        pass
# The directory that is being read, and the socket.
OPEN = [fd for fd in os.listdir('/proc/self/fd') if int(fd) > 2]
";
    let packages = [
        ("common==1", "WHOSE = 'common'"),
        ("good==1", "import common"),
        ("evil==1", evil),
    ];
    let store = store(&packages);
    let start = |packages: &[&str], text: &str| {
        let sandbox = rig.start(script(text, packages, Some(store.path())));
        sandbox.wait(PATIENCE).unwrap();
        let [out, err] = sandbox.written().unwrap();
        let said = String::from_utf8_lossy(&[out.bytes, err.bytes].concat()).into_owned();
        (said, sandbox.ancestry().to_vec())
    };
    let text = "import common, sys; print(common.WHOSE, 'evil' in sys.modules)";
    zygote(&rig, &[], store.path());
    for _ in 0..2 {
        start(&["common==1", "good==1"], text);
        start(&["common==1", "evil==1"], text);
    }
    let counts = rig.sandboxes().zygote_counts();
    // One without packages; one with good; one with what both have in common; one with evil.
    let made = (counts.made, counts.derived, counts.replaced);
    assert_eq!(made, (4, 3, 0), "{counts:?}");
    let ask = "import evil; print(evil.SEEN, evil.KILLED, len(evil.OPEN))";
    let (said, ancestry) = start(&["common==1", "evil==1"], ask);
    assert_eq!(said, "[] [] 2\n");
    assert_eq!(ancestry.len(), 3, "{ancestry:?}");
    assert!(ancestry[1].ends_with("[common==1]"), "{ancestry:?}");
    assert!(ancestry[2].ends_with("[common==1 evil==1]"), "{ancestry:?}");
    for packages in [&["common==1", "good==1"][..], &["common==1"]] {
        let (said, ancestry) = start(packages, text);
        assert_eq!(said, "common False\n", "{ancestry:?}");
        assert!(!ancestry.iter().any(|zygote| zygote.contains("evil")));
    }
    let views = rig.sandboxes().zygotes();
    let of = |packages: &[&str]| views.iter().find(|view| view.packages == set(packages));
    let between = of(&["common==1"]).unwrap();
    let below = of(&["common==1", "evil==1"]).unwrap();
    assert_eq!(below.parent.as_ref(), Some(&between.id));
    // Nobody has a user in common with another.
    let users: BTreeSet<_> = views.iter().map(|view| root_of(view.pid)).collect();
    assert_eq!(users.len(), views.len());
    // A parent stays as long as there is one below it.
    let kept = rig.sandboxes().kept_zygotes();
    let children = |id: &str| kept.iter().find(|one| one.id == id).unwrap().children;
    assert_eq!((children(&between.id), children(&below.id)), (1, 0));
    assert!(kept.iter().all(|one| one.bytes > 0), "{kept:?}");
    for _ in 0..4 {
        let before = rig.sandboxes().zygotes();
        let gone = rig.sandboxes().evict_least().unwrap();
        assert!(
            before
                .iter()
                .all(|view| view.parent.as_ref() != Some(&gone))
        );
    }
    assert_eq!(rig.sandboxes().evict_least(), None);
}

/// Returns the user that is root for a Zygote.
fn root_of(pid: u32) -> u32 {
    let map = fs::read_to_string(format!("/proc/{pid}/uid_map")).unwrap();
    map.split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// A Zygote says which process its child is, and may name any of the machine.
#[test]
fn a_zygote_that_names_another_process_harms_nobody() {
    let rig = Rig::new();
    let lie = "
import os, socket, sys
def send_fds(control, buffers, descriptors):
    if descriptors:
        descriptors = [os.pidfd_open(int(open('/packages/lies==1/victim').read()))]
    return socket.send_fds(control, buffers, descriptors)
sys.modules['__main__'].send_fds = send_fds";
    let store = store(&[("lies==1", lie), ("more==1", "")]);
    let mut victim = Command::new("sleep").arg("1000").spawn().unwrap();
    let other = rig.start(rig::python("import time; time.sleep(1000)"));
    for pid in [victim.id(), other.pid()] {
        fs::write(store.path().join("lies==1/victim"), pid.to_string()).unwrap();
        // Neither for a program nor for another Zygote, which the second need makes.
        for packages in [
            &["lies==1"][..],
            &["lies==1", "more==1"],
            &["lies==1", "more==1"],
        ] {
            if rig.sandboxes().zygotes().is_empty() {
                zygote(&rig, &["lies==1"], store.path());
            }
            let sandbox = rig.start(script("print(1)", packages, Some(store.path())));
            let exit = sandbox.wait(PATIENCE).unwrap();
            assert_eq!(exit.status, ExitStatus::Code(0));
            let last = sandbox.ancestry().last();
            assert!(!last.is_some_and(|zygote| zygote.ends_with("[lies==1]")));
        }
    }
    assert!(rig.sandboxes().zygote_counts().replaced >= 2);
    assert!(victim.try_wait().unwrap().is_none(), "it goes on");
    assert_eq!(other.phase(), Phase::Running);
    victim.kill().unwrap();
    victim.wait().unwrap();
}
