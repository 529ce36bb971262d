//! Nothing can be changed: every verb that would is refused with EROFS.

use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{PermissionsExt, chown, symlink};

use blocks::testing::Node;
use nix::libc::EROFS;
use nix::sys::stat::{Mode as FileMode, SFlag, mknod};
use yolofs::{Mode, Request};

use crate::rig::{Files, Mounted};

#[track_caller]
fn refused<T>(result: io::Result<T>) {
    assert_eq!(
        result.err().and_then(|error| error.raw_os_error()),
        Some(EROFS)
    );
}

#[test]
fn every_verb_that_changes_is_refused() {
    let nodes = vec![
        Node::dir(&[("file", 1), ("dir", 2)]),
        Node::file(0),
        Node::dir(&[]),
    ];
    for mode in [Mode::Lower, Mode::Disk] {
        let files = Files::new(nodes.clone(), &[(1, b"content".to_vec())]);
        let mounted = Mounted::new(files.file_system(mode));
        let (file, dir, fresh) = (
            mounted.path("file"),
            mounted.path("dir"),
            mounted.path("new"),
        );
        refused(File::create(&fresh));
        refused(OpenOptions::new().write(true).open(&file));
        refused(OpenOptions::new().append(true).open(&file));
        refused(
            OpenOptions::new()
                .read(true)
                .write(true)
                .truncate(true)
                .open(&file),
        );
        refused(fs::create_dir(&fresh));
        refused(fs::remove_file(&file));
        refused(fs::remove_dir(&dir));
        refused(fs::rename(&file, &fresh));
        refused(fs::hard_link(&file, &fresh));
        refused(symlink("file", &fresh));
        refused(fs::set_permissions(&file, Permissions::from_mode(0o777)));
        refused(chown(&file, Some(1), Some(1)));
        refused(mknod(&fresh, SFlag::S_IFIFO, FileMode::empty(), 0).map_err(io::Error::from));
        refused(nix::unistd::truncate(&file, 0).map_err(io::Error::from));
        let open = File::open(&file).unwrap();
        refused(open.set_modified(std::time::SystemTime::now()));
        let root = File::open(mounted.mount().target()).unwrap();
        refused(rawio::xattr::set_at(&root, b"file", c"user.a", b"b"));
        assert_eq!(fs::read(&file).unwrap(), b"content");
        let names: Vec<_> = fs::read_dir(mounted.mount().target())
            .unwrap()
            .map(|entry| entry.unwrap().file_name())
            .collect();
        assert_eq!(names, [OsStr::new("dir"), OsStr::new("file")]);
        assert_eq!(mounted.mount().counters().requests(Request::Write), 0);
    }
}
