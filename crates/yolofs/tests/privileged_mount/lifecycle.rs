//! How mounts end: in every way without a trace.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use blocks::testing::Node;
use blocks::{
    BlockIndex, BlockRange, BlockSource, Extent, FileId, FileKey, ReplayPlan, SourceError,
};
use nix::fcntl::{OFlag, openat};
use nix::sys::stat::Mode as FileMode;
use tempfile::TempDir;
use yolofs::{
    Busy, Config, End, FileSystem, Mode, Mount, MountError, MountOptions, PrewarmError,
    PrewarmOptions,
};

use crate::rig::{Files, Mounted, PATIENCE, eventually, is_mounted, memory_image, pattern, run};

pub(crate) fn one_file() -> Files {
    let nodes = vec![Node::dir(&[("file", 1)]), Node::file(0)];
    Files::new(nodes, &[(1, pattern(1, 100_000))])
}

pub(crate) fn whole_file() -> ReplayPlan {
    ReplayPlan {
        extents: vec![Extent {
            file: FileId(1),
            range: BlockRange::with_len(BlockIndex(0), 25),
            bin: 0,
            seen: 1,
        }],
        ..ReplayPlan::default()
    }
}

/// Everything that a mount leaves behind when it is over: nothing.
#[track_caller]
fn assert_over(mount: &Mount) {
    assert!(matches!(mount.wait(), End::Unmounted | End::SessionOver));
    assert!(mount.wait_for_users(PATIENCE), "the session goes on");
    assert!(!mount.visible());
    assert!(mount.dir_fd().is_none());
    assert!(!is_mounted(mount.target()));
    let prewarm = mount.prewarm(
        &whole_file(),
        &blocks::testing::MemCache::default(),
        &PrewarmOptions::default(),
    );
    assert!(matches!(prewarm, Err(PrewarmError::Unmounted)));
}

#[test]
fn any_program_may_unmount_even_a_prewarmed_mount() {
    for program in [&["umount"][..], &["fusermount3", "-u"], &["umount", "-l"]] {
        let files = one_file();
        let (mount, _dir) = Mounted::new(files.file_system(Mode::Lower)).into_mount();
        let image = memory_image(&files, &whole_file());
        let report = mount
            .prewarm(&whole_file(), &image, &PrewarmOptions::default())
            .unwrap();
        assert_eq!((report.injected_bytes, report.pinned), (100_000, 2));
        let mut args: Vec<_> = program[1..].iter().map(AsRef::as_ref).collect();
        args.push(mount.target().as_os_str());
        run(program[0], &args);
        assert_over(&mount);
    }
}

#[test]
fn a_mount_in_use_is_not_taken_away_by_waiting() {
    let (mount, _dir) = Mounted::new(one_file().file_system(Mode::Lower)).into_mount();
    let file = File::open(mount.target().join("file")).unwrap();
    let busy = mount.unmount(Busy::Wait, Duration::from_millis(50));
    assert!(matches!(busy, Err(MountError::Unmount { .. })));
    assert!(mount.visible() && is_mounted(mount.target()));
    drop(file);
    mount.unmount(Busy::Wait, PATIENCE).unwrap();
    mount.unmount(Busy::Wait, PATIENCE).unwrap(); // once more is no error
    assert_over(&mount);
}

#[test]
fn a_lazy_unmount_serves_its_users_to_the_end() {
    let (mount, _dir) = Mounted::new(one_file().file_system(Mode::Lower)).into_mount();
    let file = File::open(mount.target().join("file")).unwrap();
    mount.unmount(Busy::Lazy, PATIENCE).unwrap();
    assert!(!is_mounted(mount.target()));
    assert_eq!(mount.wait(), End::Unmounted);
    assert!(!mount.wait_for_users(Duration::from_millis(50)));
    let mut bytes = vec![0; 100_000];
    file.read_exact_at(&mut bytes, 0).unwrap();
    assert_eq!(bytes, pattern(1, 100_000));
    drop(file);
    assert_over(&mount);
}

#[test]
fn dropping_a_mount_unmounts_it() {
    let (mount, dir) = Mounted::new(one_file().file_system(Mode::Lower)).into_mount();
    let target = mount.target().to_owned();
    drop(mount);
    assert!(!is_mounted(&target));
    assert_eq!(fs::read_dir(dir.path().join("mnt")).unwrap().count(), 0);
}

#[test]
fn a_mount_on_top_is_left_alone() {
    let (mount, _dir) = Mounted::new(one_file().file_system(Mode::Lower)).into_mount();
    let target = mount.target().as_os_str();
    run(
        "mount",
        &["-t".as_ref(), "tmpfs".as_ref(), "on-top".as_ref(), target],
    );
    let covered = mount.unmount(Busy::Lazy, Duration::from_millis(50));
    assert!(
        matches!(covered, Err(MountError::Covered { .. })),
        "{covered:?}"
    );
    run("umount", &[target]);
    mount.unmount(Busy::Wait, PATIENCE).unwrap();
    assert_over(&mount);
}

#[test]
fn what_cannot_be_mounted_over_is_an_error() {
    let dir = TempDir::new().unwrap();
    let file = dir.path().join("file");
    fs::write(&file, b"").unwrap();
    for target in [file, dir.path().join("nothing")] {
        let fs = Arc::new(one_file().file_system(Mode::Lower));
        let error = Mount::start(fs, &MountOptions::new(target, "rig")).unwrap_err();
        assert!(matches!(error, MountError::Target { .. }), "{error:?}");
    }
}

/// A source of one file of a directory that was opened before it was mounted over.
struct BelowSource(OwnedFd);

impl BlockSource for BelowSource {
    fn read_at(&self, _: &FileKey, offset: u64, buf: &mut [u8]) -> Result<usize, SourceError> {
        let failed = |error| SourceError::from_io("reading below the mount", error);
        let file = openat(self.0.as_fd(), "file", OFlag::O_RDONLY, FileMode::empty());
        let file = File::from(file.map_err(|errno| failed(errno.into()))?);
        file.read_at(buf, offset).map_err(failed)
    }
}

#[test]
fn a_source_can_be_mounted_over_itself() {
    let dir = TempDir::new().unwrap();
    fs::write(dir.path().join("file"), pattern(1, 100_000)).unwrap();
    let below = BelowSource(File::open(dir.path()).unwrap().into());
    let files = one_file();
    let fs = FileSystem::new(files.tree.clone(), Arc::new(below), Config::default());
    let path = dir.path().canonicalize().unwrap();
    let mounted = Mounted::at(fs, dir, &path);
    assert_eq!(fs::read(mounted.path("file")).unwrap(), pattern(1, 100_000));
    let (mount, _dir) = mounted.into_mount();
    mount.unmount(Busy::Wait, PATIENCE).unwrap();
    assert_over(&mount);
    assert_eq!(fs::read(path.join("file")).unwrap(), pattern(1, 100_000));
}

/// A program made for the tests.
pub(crate) fn example(name: &str) -> PathBuf {
    let tests = std::env::current_exe().unwrap();
    let example = tests
        .ancestors()
        .nth(2)
        .unwrap()
        .join("examples")
        .join(name);
    assert!(
        example.exists(),
        "run `cargo test -p yolofs --features privileged`, examples too"
    );
    example
}

/// The example that serves a pattern, in a process of its own.
pub(crate) struct Server {
    pub(crate) child: Child,
    pub(crate) target: PathBuf,
    output: BufReader<std::process::ChildStdout>,
    _dir: TempDir,
}

impl Server {
    /// Starts it by a shell command that ends in `exec`, and waits until it has prewarmed.
    pub(crate) fn start(shell: &str, mib: u32) -> Self {
        let dir = TempDir::new().unwrap();
        let target = dir.path().canonicalize().unwrap();
        let mut child = Command::new("sh")
            .args(["-c", &format!("{shell} exec \"$@\""), "sh"])
            .arg(example("serve_pattern"))
            .arg(&target)
            .arg(mib.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut output = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        output.read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n");
        Self {
            child,
            target,
            output,
            _dir: dir,
        }
    }

    /// Ends it; returns the pages it pushed and those that were asked for again.
    pub(crate) fn finish(mut self) -> (u64, u64) {
        drop(self.child.stdin.take());
        let mut line = String::new();
        self.output.read_to_string(&mut line).unwrap();
        assert!(self.child.wait().unwrap().success());
        let mut numbers = line
            .split_whitespace()
            .map(|number| number.parse().unwrap());
        (numbers.next().unwrap(), numbers.next().unwrap())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // What a test that failed leaves behind; after one that did not, nothing is there.
        let _killed = self.child.kill().and_then(|()| self.child.wait());
        let _unmounted = nix::mount::umount2(&self.target, nix::mount::MntFlags::MNT_DETACH);
    }
}

#[test]
fn a_killed_server_leaves_a_mount_that_clears() {
    let mut server = Server::start("", 4);
    let file = File::open(server.target.join("file")).unwrap();
    server.child.kill().unwrap();
    server.child.wait().unwrap();
    // What the kernel has cached it still gives; this it has to ask for.
    let error = fs::metadata(server.target.join("nothing")).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(nix::libc::ENOTCONN));
    drop(file);
    run("umount", &[server.target.as_os_str()]);
    assert!(!is_mounted(&server.target));
    assert_eq!(fs::read_dir(&server.target).unwrap().count(), 0);
}

#[test]
fn many_mounts_leave_no_descriptor_and_no_thread() {
    let count = |what: &str| fs::read_dir(format!("/proc/self/{what}")).unwrap().count();
    let once = || drop(Mounted::new(one_file().file_system(Mode::Lower)));
    once();
    let before = (count("fd"), count("task"));
    for _ in 0..100 {
        once();
    }
    // Other tests come and go beside this one, but they do not stay: a leak would.
    eventually("descriptors are closed", || count("fd") < before.0 + 100);
    eventually("threads end", || count("task") < before.1 + 100);
}

#[test]
fn many_mounts_share_one_watcher_and_each_is_told_of_its_own_end() {
    let watchers = || {
        let names = fs::read_dir("/proc/self/task").unwrap().flatten();
        let names = names.filter_map(|task| fs::read_to_string(task.path().join("comm")).ok());
        names.filter(|name| name.trim() == "yolofs-watch").count()
    };
    let mut mounts: Vec<_> = (0..8)
        .map(|_| Mounted::new(one_file().file_system(Mode::Lower)).into_mount())
        .collect();
    // One that ends with the mounts of another test may still be there for a moment.
    eventually("one watcher watches them all", || watchers() == 1);
    let (first, _dir) = mounts.remove(0);
    run("umount", &[first.target().as_os_str()]);
    assert_over(&first);
    assert!(mounts.iter().all(|(mount, _)| mount.visible()));
    for (mount, _dir) in &mounts {
        run("umount", &[mount.target().as_os_str()]);
    }
    for (mount, _dir) in &mounts {
        assert_over(mount);
    }
}
