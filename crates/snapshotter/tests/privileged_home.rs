//! Layers that come home from the fast place.

#![cfg(feature = "privileged")]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod fast_rig;

use std::cell::Cell;
use std::collections::HashMap;
use std::ffi::CStr;
use std::fs;
use std::ops::ControlFlow;
use std::os::unix::fs::{
    FileExt as _, FileTypeExt as _, MetadataExt as _, PermissionsExt as _, chown, symlink,
};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use fast_rig::{Rig, is_on_fast, prepare, take, used};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sys::stat::{Mode, SFlag, mknod};
use nix::sys::statvfs::statvfs;
use snapshotter::{Pace, PlainLowers, SnapshotError, Snapshotter, Taken, Unhurried};

/// As old as a file of an image may be.
const LONG_AGO: SystemTime = SystemTime::UNIX_EPOCH;

/// A tmpfs somewhere, until it is dropped.
struct Tmpfs(PathBuf);

impl Tmpfs {
    fn mount(at: &Path, options: &str) -> Self {
        mount::<str, _, str, str>(None, at, Some("tmpfs"), MsFlags::empty(), Some(options))
            .unwrap();
        Self(at.to_owned())
    }
}

impl Drop for Tmpfs {
    fn drop(&mut self) {
        let _after_a_failure = umount2(&self.0, MntFlags::MNT_DETACH);
    }
}

/// Makes as many rigs as it takes in memory: all those flushes would wait for the disk.
fn each_in_memory(mut test: impl FnMut(usize, &Rig) -> ControlFlow<()>) {
    let dir = tempfile::tempdir().unwrap();
    let mounted = Tmpfs::mount(dir.path(), "size=64m");
    let mut numbers = 0..;
    while test(
        numbers.next().unwrap(),
        &Rig(tempfile::tempdir_in(dir.path()).unwrap()),
    )
    .is_continue()
    {}
    drop(mounted);
}

/// Makes layers on the fast place that are called after their numbers' words.
fn commit_fast(rig: &Rig, snapshotter: &Snapshotter<PlainLowers>, layers: &[(u64, &str)]) {
    for (id, key) in layers {
        prepare(snapshotter, key, None);
        assert_eq!(take(snapshotter, *id, 300_000), Taken::Fast);
        fill(&rig.fs(*id), key);
        let layer = format!("layer-{key}");
        snapshotter.commit(&layer, key, HashMap::new()).unwrap();
    }
}

/// Stops at one of its turns, as a crash would.
struct StopsAt(Cell<usize>);

impl Pace for StopsAt {
    fn turn(&self, _bytes: u64) -> ControlFlow<()> {
        match self.0.get().checked_sub(1) {
            Some(left) => {
                self.0.set(left);
                ControlFlow::Continue(())
            }
            None => ControlFlow::Break(()),
        }
    }
}

/// Attributes of overlayfs, of programs and of users.
const ATTRIBUTES: [(&[u8], &CStr, &[u8]); 3] = [
    (b"dir", c"trusted.overlay.opaque", b"y"),
    (b"dir/small", c"user.word", b"said"),
    // cap_net_bind_service, permitted and effective.
    (
        b"file",
        c"security.capability",
        b"\x01\0\0\x02\0\x04\0\0\0\0\0\0\0\0\0\0\0\0\0\0",
    ),
];
const HOLE: u64 = 8 << 20;

/// Fills a layer with what a layer may hold.
fn fill(fs: &Path, word: &str) {
    fs::write(fs.join("file"), word.repeat(200_000)).unwrap();
    fs::hard_link(fs.join("file"), fs.join("name")).unwrap();
    symlink("file", fs.join("link")).unwrap();
    fs::create_dir(fs.join("dir")).unwrap();
    chown(fs.join("dir"), Some(3), Some(4)).unwrap();
    fs::write(fs.join("dir/small"), word).unwrap();
    let sparse = fs::File::create(fs.join("sparse")).unwrap();
    sparse.set_len(HOLE).unwrap();
    sparse.write_all_at(word.as_bytes(), HOLE / 2).unwrap();
    // What overlayfs takes for a file that is no more.
    let kind = SFlag::S_IFCHR;
    mknod(&fs.join("dir/whiteout"), kind, Mode::empty(), 0).unwrap();
    fs::set_permissions(fs.join("dir/small"), fs::Permissions::from_mode(0o4751)).unwrap();
    let dir = fs::File::open(fs).unwrap();
    for (name, attribute, value) in ATTRIBUTES {
        // A name in a directory of its own is set there.
        let (dir, name) = match name.strip_prefix(b"dir/") {
            Some(name) => (fs::File::open(fs.join("dir")).unwrap(), name),
            None => (dir.try_clone().unwrap(), name),
        };
        rawio::xattr::set_at(&dir, name, attribute, value).unwrap();
    }
    for name in ["file", "dir"] {
        let file = fs::File::open(fs.join(name)).unwrap();
        file.set_modified(LONG_AGO).unwrap();
    }
}

fn is_whole(fs: &Path, word: &str) -> bool {
    let keeps = |(name, attribute, value): &(&[u8], &CStr, &[u8])| {
        let (dir, name) = match name.strip_prefix(b"dir/") {
            Some(name) => (fs.join("dir"), name),
            None => (fs.to_owned(), *name),
        };
        let dir = fs::File::open(dir).unwrap();
        let found = rawio::xattr::get_at(&dir, name, attribute.to_bytes()).unwrap();
        found.as_deref() == Some(*value)
    };
    let of = |name| fs::symlink_metadata(fs.join(name)).unwrap();
    let mut hole = vec![0; usize::try_from(HOLE).unwrap()];
    let middle = hole.len() / 2;
    hole[middle..middle + word.len()].copy_from_slice(word.as_bytes());
    fs::read(fs.join("sparse")).unwrap() == hole
        && of("sparse").blocks() * 512 < HOLE / 4
        && of("dir/whiteout").file_type().is_char_device()
        && of("dir/whiteout").rdev() == 0
        && of("dir/small").mode() & 0o7777 == 0o4751
        && ["file", "dir"].map(|name| of(name).modified().unwrap()) == [LONG_AGO; 2]
        && ATTRIBUTES.iter().all(keeps)
        && fs::read(fs.join("file")).unwrap() == word.repeat(200_000).as_bytes()
        && fs::metadata(fs.join("name")).unwrap().nlink() == 2
        && fs::read_link(fs.join("link")).unwrap() == Path::new("file")
        && fs::metadata(fs.join("dir")).unwrap().uid() == 3
        && fs::read(fs.join("dir/small")).unwrap() == word.as_bytes()
        && of("name").ino() == of("file").ino()
        && fs::read_dir(fs).unwrap().count() == 5
}

#[test]
fn privileged_a_layer_is_whole_wherever_its_way_home_ends() {
    each_in_memory(|stop, rig| {
        let snapshotter = rig.open();
        commit_fast(rig, &snapshotter, &[(1, "a"), (2, "b")]);
        let ended = snapshotter.bring_home(&StopsAt(Cell::new(stop)));
        drop(snapshotter);
        let snapshotter = rig.open();
        assert_eq!(rig.numbers(), [["1", "2"], ["1", "2"]], "stop {stop}");
        assert!(
            is_whole(&rig.fs(1), "a") && is_whole(&rig.fs(2), "b"),
            "stop {stop}"
        );
        // Whatever was begun is ended by the next: one round to come home, mark, and free.
        snapshotter.bring_home(&Unhurried).unwrap();
        snapshotter.bring_home(&Unhurried).unwrap();
        assert!(
            is_whole(&rig.fs(1), "a") && is_whole(&rig.fs(2), "b"),
            "stop {stop}"
        );
        let nothing: [&str; 0] = [];
        assert_eq!(rig.numbers()[1], nothing, "stop {stop}");
        assert!(!is_on_fast(rig, 1) && !is_on_fast(rig, 2));
        assert_eq!(used(&snapshotter), 0, "stop {stop}");
        if ended.is_err() {
            return ControlFlow::Continue(());
        }
        assert!(stop > 15, "it has many steps: {stop}");
        ControlFlow::Break(())
    });
}

#[test]
fn privileged_what_may_be_mounted_is_freed_when_its_users_are_gone() {
    let rig = Rig::new();
    let snapshotter = rig.open();
    commit_fast(&rig, &snapshotter, &[(1, "a")]);
    let old = rig.path("fast/snapshots/1/fs");
    snapshotter
        .prepare("before", Some("layer-a"), HashMap::new())
        .unwrap();
    for _ in 0..3 {
        snapshotter.bring_home(&Unhurried).unwrap();
        assert!(!is_on_fast(&rig, 1) && is_whole(&rig.fs(1), "a"));
        assert!(is_whole(&old, "a"), "a container may have it mounted");
    }
    assert!(used(&snapshotter) > 0, "it takes its room still");
    // Who comes later has the copy.
    snapshotter
        .prepare("after", Some("layer-a"), HashMap::new())
        .unwrap();
    drop(snapshotter);
    let snapshotter = rig.open();
    snapshotter.bring_home(&Unhurried).unwrap();
    assert!(is_whole(&old, "a"), "a restart forgets nothing");
    assert!(used(&snapshotter) > 0);
    snapshotter.remove("before").unwrap();
    snapshotter.bring_home(&Unhurried).unwrap();
    assert!(!old.exists() && is_whole(&rig.fs(1), "a"));
    assert_eq!(used(&snapshotter), 0);
}

#[test]
fn privileged_a_layer_that_cannot_come_home_stays_and_hinders_no_other() {
    let rig = Rig::new();
    let snapshotter = rig.open();
    commit_fast(&rig, &snapshotter, &[(1, "a"), (2, "b")]);
    // Something is mounted where the copy of the first is to be.
    let spare = rig.path("root/turning/1");
    fs::create_dir(&spare).unwrap();
    let mounted = Tmpfs::mount(&spare, "size=1m");
    let failed = snapshotter.bring_home(&Unhurried);
    drop(mounted);
    assert!(
        matches!(failed, Err(SnapshotError::Io { .. })),
        "{failed:?}"
    );
    assert!(is_on_fast(&rig, 1) && !is_on_fast(&rig, 2));
    assert!(is_whole(&rig.fs(1), "a") && is_whole(&rig.fs(2), "b"));
    assert_eq!(snapshotter.bring_home(&Unhurried).unwrap(), 1);
    assert!(!is_on_fast(&rig, 1) && is_whole(&rig.fs(1), "a"));
}

/// Does something at one of its turns.
struct Does<F>(Cell<usize>, F);

impl<F: Fn()> Pace for Does<F> {
    fn turn(&self, _bytes: u64) -> ControlFlow<()> {
        if self.0.replace(self.0.get().wrapping_sub(1)) == 0 {
            self.1();
        }
        ControlFlow::Continue(())
    }
}

#[test]
fn privileged_a_layer_that_is_removed_on_its_way_is_gone() {
    each_in_memory(|at, rig| {
        let snapshotter = rig.open();
        commit_fast(rig, &snapshotter, &[(1, "a"), (2, "b")]);
        let removes = Does(Cell::new(at), || {
            snapshotter.remove("layer-a").unwrap();
            snapshotter.cleanup().unwrap();
        });
        let home = snapshotter.bring_home(&removes).unwrap();
        let is_over = removes.0.get() < usize::MAX / 2;
        if is_over {
            assert!(at > 15, "it has many steps: {at}");
            return ControlFlow::Break(());
        }
        assert!(home > 0 && !is_on_fast(rig, 2) && is_whole(&rig.fs(2), "b"));
        snapshotter.bring_home(&Unhurried).unwrap();
        snapshotter.cleanup().unwrap();
        let nothing: [&str; 0] = [];
        assert_eq!(rig.numbers(), [vec!["2"], nothing.to_vec()], "at {at}");
        let turning = fs::read_dir(rig.path("root/turning")).unwrap();
        assert_eq!(turning.count(), 0, "at {at}");
        assert_eq!(used(&snapshotter), 0, "at {at}");
        ControlFlow::Continue(())
    });
}

#[test]
fn privileged_a_layer_that_is_away_again_after_a_power_failure_has_all_its_users() {
    let rig = Rig::new();
    let snapshotter = rig.open();
    commit_fast(&rig, &snapshotter, &[(1, "a")]);
    let user = |snapshotter: &Snapshotter<PlainLowers>, key| {
        let made = snapshotter.prepare(key, Some("layer-a"), HashMap::new());
        drop(made.unwrap());
    };
    user(&snapshotter, "before");
    snapshotter.bring_home(&Unhurried).unwrap();
    drop(snapshotter);
    // The disk forgot the exchange of names, and the fast place did not forget what came of it.
    let [home, old] = ["root/snapshots/1", "fast/snapshots/1"].map(|name| rig.path(name));
    assert!(old.join("left").exists() && !home.is_symlink());
    fs::remove_dir_all(&home).unwrap();
    symlink(&old, &home).unwrap();
    let snapshotter = rig.open();
    user(&snapshotter, "after");
    snapshotter.remove("before").unwrap();
    for _ in 0..3 {
        snapshotter.bring_home(&Unhurried).unwrap();
        assert!(!is_on_fast(&rig, 1) && is_whole(&rig.fs(1), "a"));
        assert!(is_whole(&old.join("fs"), "a"), "it may be mounted");
    }
    snapshotter.remove("after").unwrap();
    snapshotter.bring_home(&Unhurried).unwrap();
    assert!(!old.exists() && is_whole(&rig.fs(1), "a"));
}

#[test]
fn privileged_a_full_disk_keeps_layers_away_and_gets_no_fuller() {
    let rig = Rig::new();
    let root = rig.path("root");
    fs::create_dir(&root).unwrap();
    let mounted = Tmpfs::mount(&root, "size=24m");
    let snapshotter = rig.open();
    commit_fast(&rig, &snapshotter, &[(1, "a"), (2, "b")]);
    let filler = root.join("filler");
    let room = statvfs(&root).unwrap();
    let room = room.blocks_available() * room.fragment_size();
    let filled = vec![1; usize::try_from(room - 600_000).unwrap()];
    fs::write(&filler, filled).unwrap();
    let before = statvfs(&root).unwrap().blocks_available();
    let failed = snapshotter.bring_home(&Unhurried).unwrap_err();
    assert!(failed.to_string().contains("bring a layer to"), "{failed}");
    assert_eq!(statvfs(&root).unwrap().blocks_available(), before);
    assert!(is_on_fast(&rig, 1) && is_on_fast(&rig, 2));
    assert!(is_whole(&rig.fs(1), "a") && is_whole(&rig.fs(2), "b"));
    fs::remove_file(filler).unwrap();
    assert_eq!(snapshotter.bring_home(&Unhurried).unwrap(), 2);
    assert!(is_whole(&rig.fs(1), "a") && is_whole(&rig.fs(2), "b"));
    drop(snapshotter);
    drop(mounted);
}

#[test]
fn privileged_layers_on_a_former_place_stay_there() {
    let rig = Rig::new();
    let snapshotter = rig.open();
    commit_fast(&rig, &snapshotter, &[(1, "a")]);
    drop(snapshotter);
    let snapshotter = rig.open_with(Some(rig.place("other")));
    commit_fast(&rig, &snapshotter, &[(2, "b")]);
    for home in [1, 0] {
        assert_eq!(snapshotter.bring_home(&Unhurried).unwrap(), home);
    }
    assert!(is_on_fast(&rig, 1) && is_whole(&rig.fs(1), "a"));
    assert!(!is_on_fast(&rig, 2) && is_whole(&rig.fs(2), "b"));
    snapshotter.remove("layer-a").unwrap();
    snapshotter.cleanup().unwrap();
    assert_eq!(rig.numbers(), [vec!["2"], vec![]]);
}
