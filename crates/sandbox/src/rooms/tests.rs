//! Each is for one sandbox.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::time::{Duration, Instant};

use super::*;
use crate::base::BaseSpec;
use crate::starters::Starters;

/// The thread of a base, and what it has made.
fn rooms(aside: &std::path::Path) -> Starters {
    let spec = BaseSpec {
        name: "host".to_owned(),
        root: "/".into(),
        hide: vec!["work".to_owned()],
    };
    Starters::start(&spec, aside).unwrap()
}

/// Waits for one: they are made while others are used.
fn taken(starters: &Starters) -> Room {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        if let Some(room) = starters.room() {
            return room;
        }
        assert!(Instant::now() < deadline, "none is made");
        std::thread::yield_now();
    }
}

fn inode(namespace: &OwnedFd) -> u64 {
    let copy = File::from(namespace.try_clone().unwrap());
    copy.metadata().unwrap().ino()
}

/// Does something in the namespace of mounts of a room.
fn inside<T: Send>(room: &Room, act: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            unshare(CloneFlags::CLONE_FS).unwrap();
            setns(room.mounts.as_fd(), CloneFlags::CLONE_NEWNS).unwrap();
            act()
        });
        thread.join().unwrap()
    })
}

#[test]
fn privileged_each_is_used_once_and_has_nothing_of_another() {
    const ROUNDS: usize = 3 * STOCK.max;
    let aside = tempfile::tempdir().unwrap();
    let starters = rooms(aside.path());
    let own = fs::metadata("/proc/thread-self/ns/ipc").unwrap().ino();
    let mut seen = BTreeSet::from([own]);
    // Held, so that no number is given out again.
    let mut held = Vec::new();
    for round in 0..ROUNDS {
        let room = taken(&starters);
        let numbers = [&room.mounts, &room.ipc].map(inode);
        assert!(numbers.iter().all(|number| seen.insert(*number)), "{round}");
        let found = inside(&room, || {
            let found = fs::read_dir("/tmp").unwrap().count();
            fs::write("/tmp/left", b"by the one before").unwrap();
            nix::mount::mount(
                None::<&str>,
                "/proc",
                Some("tmpfs"),
                nix::mount::MsFlags::empty(),
                None::<&str>,
            )
            .unwrap();
            found
        });
        assert_eq!(found, 0, "{round}");
        held.push(room);
    }
    // What each has mounted is in its own: the next ones are copies of the base.
    let room = taken(&starters);
    assert_eq!(inside(&room, || fs::read_dir("/proc").unwrap().count()), 0);
    let proc = inside(&room, || nix::sys::statfs::statfs("/proc").unwrap());
    let root = inside(&room, || nix::sys::statfs::statfs("/").unwrap());
    assert_eq!(proc.filesystem_id(), root.filesystem_id());
}
