//! An overlay on top: the mount as a container engine uses it.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use blocks::testing::{MemObserver, Node};
use blocks::{NodeKind, Observer};
use tempfile::TempDir;
use yolofs::{Busy, End, Mode, PrewarmOptions};

use crate::prewarm::{boot, tree};
use crate::rig::{Files, Mounted, PATIENCE, memory_image, pattern, plan_of, run};
use testkit::undisturbed::undisturbed;

/// An overlay of the mount, above a directory, below one that can be written.
struct Overlay {
    dir: TempDir,
    merged: PathBuf,
}

impl Overlay {
    fn new(middle: &Path) -> Self {
        Self::with(middle, "")
    }

    fn with(middle: &Path, further: &str) -> Self {
        let dir = TempDir::new().unwrap();
        let path = |name: &str| dir.path().canonicalize().unwrap().join(name);
        for name in ["base", "upper", "work", "merged"] {
            fs::create_dir(path(name)).unwrap();
        }
        fs::create_dir(path("base/dir")).unwrap();
        for name in ["base/hidden", "base/below", "base/dir/below"] {
            fs::write(path(name), b"from below").unwrap();
        }
        let mut options = OsString::from("lowerdir=");
        for (text, path) in [
            ("", middle.to_owned()),
            (":", path("base")),
            (",upperdir=", path("upper")),
            (",workdir=", path("work")),
        ] {
            options.push(text);
            options.push(path);
        }
        options.push(further);
        let merged = path("merged");
        let fixed: [&OsStr; 4] = [
            "-t".as_ref(),
            "overlay".as_ref(),
            "over".as_ref(),
            "-o".as_ref(),
        ];
        run(
            "mount",
            &[&fixed[..], &[&options, merged.as_os_str()]].concat(),
        );
        Self { dir, merged }
    }

    fn names(&self, dir: &str) -> Vec<OsString> {
        let entries = fs::read_dir(self.merged.join(dir)).unwrap();
        let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        names
    }
}

impl Drop for Overlay {
    fn drop(&mut self) {
        run("umount", &[self.merged.as_os_str()]);
        assert!(self.dir.path().exists());
    }
}

/// A layer with a whiteout and an opaque directory.
fn layer() -> Files {
    let mut opaque = Node::dir(&[("own", 2)]);
    opaque.xattrs = vec![(b"trusted.overlay.opaque".to_vec(), b"y".to_vec())];
    let nodes = vec![
        Node::dir(&[("dir", 1), ("hidden", 3), ("file", 4)]),
        opaque,
        Node::file(0),
        Node::new(NodeKind::CharDevice),
        Node::file(0),
    ];
    Files::new(nodes, &[(2, b"own".to_vec()), (4, pattern(4, 50_000))])
}

#[test]
fn whiteouts_and_opaque_directories_hide_what_is_below() {
    let mounted = Mounted::new(layer().file_system(Mode::Lower));
    let overlay = Overlay::new(mounted.mount().target());
    assert_eq!(overlay.names(""), ["below", "dir", "file"]);
    assert_eq!(overlay.names("dir"), ["own"]);
    assert_eq!(
        fs::read(overlay.merged.join("below")).unwrap(),
        b"from below"
    );
    assert_eq!(
        fs::read(overlay.merged.join("file")).unwrap(),
        pattern(4, 50_000)
    );
}

#[test]
fn writing_above_changes_nothing_below() {
    let mounted = Mounted::new(layer().file_system(Mode::Lower));
    let overlay = Overlay::new(mounted.mount().target());
    let path = |name: &str| overlay.merged.join(name);
    fs::write(path("hidden"), b"made").unwrap();
    fs::rename(path("file"), path("moved")).unwrap();
    fs::write(path("dir/own"), b"changed").unwrap();
    fs::remove_dir_all(path("dir")).unwrap();
    assert_eq!(overlay.names(""), ["below", "hidden", "moved"]);
    assert_eq!(fs::read(path("moved")).unwrap(), pattern(4, 50_000));
    assert_eq!(fs::read(mounted.path("dir/own")).unwrap(), b"own");
    assert_eq!(fs::read(mounted.path("file")).unwrap(), pattern(4, 50_000));
}

#[test]
fn an_overlay_outlives_the_visible_mount() {
    let (mount, _dir) = Mounted::new(layer().file_system(Mode::Lower)).into_mount();
    let overlay = Overlay::new(mount.target());
    mount.unmount(Busy::Wait, PATIENCE).unwrap();
    assert_eq!(mount.wait(), End::Unmounted);
    assert_eq!(
        fs::read(overlay.merged.join("file")).unwrap(),
        pattern(4, 50_000)
    );
    drop(overlay);
    assert!(mount.wait_for_users(PATIENCE));
    assert_eq!(mount.wait(), End::SessionOver);
}

#[test]
fn a_prewarmed_boot_in_an_overlay_sends_no_request() {
    undisturbed(|| {
        let files = tree();
        let recorder = Arc::new(MemObserver::default());
        let observer: Arc<dyn Observer> = recorder.clone();
        let recorded = Mounted::new(files.file_system(Mode::Lower).with_observer(observer));
        let overlay = Overlay::new(recorded.mount().target());
        let expected = boot(&overlay.merged);
        drop(overlay);
        drop(recorded);
        let plan = plan_of(recorder.take());

        let image = memory_image(&files, &plan);
        for further in ["", ",xino=on"] {
            let mounted = Mounted::new(files.file_system(Mode::Lower));
            let options = PrewarmOptions::default();
            let report = mounted.mount().prewarm(&plan, &image, &options).unwrap();
            assert_eq!((report.failed_touches, report.skipped_bytes), (0, 0));
            let overlay = Overlay::with(mounted.mount().target(), further);
            let (bytes, requests) = mounted.requests_of(|| boot(&overlay.merged));
            let counters = mounted.mount().counters();
            assert_eq!(bytes, expected);
            assert_eq!(requests, 0, "{:?}", counters.by_kind().collect::<Vec<_>>());
        }
    });
}
