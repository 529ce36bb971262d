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
