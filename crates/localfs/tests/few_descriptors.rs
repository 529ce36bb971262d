//! A process that may open few files reads all of a source.
//!
//! The only test of its program: the limit is that of the whole process.

use std::fs;
use std::sync::Arc;

use blocks::{BlockSource as _, FileId};
use localfs::{DirSource, SourceRoot, scan};
use nix::sys::resource::{Resource, getrlimit, setrlimit};

#[test]
fn files_held_open_make_room_for_others() {
    const FILES: usize = 100;
    let dir = tempfile::tempdir().unwrap();
    for index in 0..FILES {
        fs::write(dir.path().join(format!("f{index:03}")), index.to_string()).unwrap();
    }
    let root = Arc::new(SourceRoot::open(dir.path()).unwrap());
    let tree = Arc::new(scan(&root, |_| ()).unwrap().tree);
    let source = DirSource::new(root, Arc::clone(&tree) as _);
    let open = fs::read_dir("/proc/self/fd").unwrap().count() as u64;
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    setrlimit(Resource::RLIMIT_NOFILE, open + 20, hard).unwrap();
    for _ in 0..2 {
        for (index, (_, file)) in tree.entries(FileId::ROOT).enumerate() {
            let mut read = [0; 8];
            let len = source
                .read_at(&tree.key(file).unwrap(), 0, &mut read)
                .unwrap();
            assert_eq!(&read[..len], index.to_string().as_bytes());
        }
    }
    assert!((1..=20).contains(&source.open_files()));
}
