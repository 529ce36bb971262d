//! Disk mode: files without boot data are passed through to the source.

use std::collections::HashSet;
use std::fs::{self, File};
use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;

use blocks::testing::{MemObserver, Node};
use blocks::{BackingFile, FileId, FileKey};
use tempfile::TempDir;
use yolofs::{Config, FileSystem, Mode, Request};

use crate::rig::{Files, Mounted, pattern};

/// The source's files on this machine, by their numbers.
struct Backing(PathBuf);

impl BackingFile for Backing {
    fn open_backing(&self, file: &FileKey) -> io::Result<OwnedFd> {
        Ok(File::open(self.0.join(file.file.0.to_string()))?.into())
    }
}

/// A disk with boot data and one without, both of them files of `dir` too.
fn disks(dir: &TempDir) -> (Files, FileSystem) {
    let nodes = vec![
        Node::dir(&[("boot", 1), ("cold", 2)]),
        Node::file(0),
        Node::file(0),
    ];
    let contents = [(1, pattern(1, 500_000)), (2, pattern(2, 500_000))];
    for (file, content) in &contents {
        fs::write(dir.path().join(file.to_string()), content).unwrap();
    }
    let files = Files::new(nodes, &contents);
    let config = Config {
        mode: Mode::Disk,
        boot_files: HashSet::from([FileId(1)]),
    };
    let backing = Arc::new(Backing(dir.path().to_owned()));
    let fs = FileSystem::new(files.tree.clone(), files.source.clone(), config);
    (files, fs.with_backing(backing))
}

#[test]
fn a_file_without_boot_data_is_passed_through() {
    let dir = TempDir::new().unwrap();
    let (files, fs) = disks(&dir);
    let mounted = Mounted::new(fs);
    for _ in 0..20 {
        let first = File::open(mounted.path("cold")).unwrap();
        assert_eq!(
            std::fs::read(mounted.path("cold")).unwrap(),
            pattern(2, 500_000)
        );
        drop(first);
    }
    let counters = mounted.mount().counters();
    assert_eq!(
        (counters.requests(Request::Read), files.source.reads()),
        (0, 0)
    );
    assert_eq!(counters.requests(Request::Open), 40);
    assert_eq!(
        std::fs::read(mounted.path("boot")).unwrap(),
        pattern(1, 500_000)
    );
    assert!(mounted.mount().counters().requests(Request::Read) > 0);
}

#[test]
fn a_file_that_the_kernel_will_not_pass_through_is_served() {
    // A directory cannot back a file: the kernel refuses it.
    struct Wrong;
    impl BackingFile for Wrong {
        fn open_backing(&self, _: &FileKey) -> io::Result<OwnedFd> {
            Ok(File::open("/")?.into())
        }
    }
    /// It is not there any more.
    struct Gone;
    impl BackingFile for Gone {
        fn open_backing(&self, _: &FileKey) -> io::Result<OwnedFd> {
            Err(io::ErrorKind::NotFound.into())
        }
    }
    for backing in [Arc::new(Wrong) as Arc<dyn BackingFile>, Arc::new(Gone)] {
        let dir = TempDir::new().unwrap();
        let (_, fs) = disks(&dir);
        let mounted = Mounted::new(fs.with_backing(backing));
        for _ in 0..2 {
            assert_eq!(
                std::fs::read(mounted.path("cold")).unwrap(),
                pattern(2, 500_000)
            );
        }
        assert!(mounted.mount().counters().requests(Request::Read) > 0);
    }
}

#[test]
fn nothing_is_passed_by_a_recorder() {
    let dir = TempDir::new().unwrap();
    let (_, fs) = disks(&dir);
    let recorder = Arc::new(MemObserver::default());
    let mounted = Mounted::new(fs.with_observer(recorder.clone()));
    assert_eq!(
        std::fs::read(mounted.path("cold")).unwrap(),
        pattern(2, 500_000)
    );
    let read: u64 = recorder
        .take()
        .into_iter()
        .filter_map(|(_, event)| match event {
            blocks::Event::Read(access) => Some(access.len),
            blocks::Event::Touch(_) => None,
        })
        .sum();
    assert_eq!(read, 123 * 4096, "every page once, and none ahead");
}
