//! A directory where somebody else has put pipes: workers write to `--nic-cache`, and may be broken into.

use std::path::Path;
use std::sync::mpsc::channel;
use std::time::Duration;

use nix::sys::stat::Mode;
use nix::unistd::mkfifo;

use super::*;

/// Opens the store elsewhere, and returns why it was refused.
fn refusal(dir: &Path) -> String {
    let (tell, told) = channel();
    let dir = dir.to_owned();
    std::thread::spawn(move || {
        let opened = DiskStore::open(&dir, CONFIG);
        tell.send(opened.map(drop)).unwrap();
    });
    let opened = told.recv_timeout(Duration::from_secs(30));
    let error = opened.expect("it waits for the pipe").unwrap_err();
    format!("{error:?}")
}

#[test]
fn a_pipe_at_the_name_of_the_lock_is_not_waited_for() {
    let dir = tempfile::tempdir().unwrap();
    mkfifo(&dir.path().join("lock"), Mode::S_IRWXU).unwrap();
    let why = refusal(dir.path());
    assert!(why.contains("not a regular file"), "{why}");
}

/// A record of a segment has a chunk of this seed.
fn chunk(seed: u8) -> (ChunkId, Vec<u8>) {
    let bytes = vec![seed; 5000];
    (ChunkId::of(&bytes), bytes)
}

#[test]
fn what_is_no_segment_hides_no_other() {
    let in_its_place: [fn(&Path); 4] = [
        |path| mkfifo(path, Mode::S_IRWXU).unwrap(),
        |path| std::fs::create_dir_all(path.join("a")).unwrap(),
        |path| std::os::unix::fs::symlink("nowhere", path).unwrap(),
        |path| std::os::unix::fs::symlink(path, path).unwrap(),
    ];
    for put in in_its_place {
        let dir = tempfile::tempdir().unwrap();
        let (before, after) = (chunk(1), chunk(2));
        let store = DiskStore::open(dir.path(), CONFIG).unwrap();
        store.put(&before.0, &before.1, Class::Demand).unwrap();
        drop(store);
        // Between those that come, and as young as a number can be.
        for name in ["0000000000000007.seg", "ffffffffffffffff.seg"] {
            put(&dir.path().join("segments").join(name));
        }
        for _ in 0..2 {
            let store = DiskStore::open(dir.path(), CONFIG).unwrap();
            assert!(store.contains(&before.0));
            store.put(&after.0, &after.1, Class::Demand).unwrap();
            assert!(store.get(&after.0, Class::Demand).is_some());
        }
    }
}
