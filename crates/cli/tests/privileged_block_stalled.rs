//! A registry that falls silent: who reads a file of an image, attaches or detaches one, waits no longer than is said.

#![cfg(feature = "privileged")]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod block_attached;
mod block_export;
mod block_registry;

use std::collections::BTreeSet;
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use testkit::range_server::{RangeServer, Treatment};

use block_attached::{attach, device};
use block_export::{Process, arg, export_of};
use block_registry::disk_elsewhere;
use lab::service::Service;
use lab::{Lab, noise, ok, until};

/// More than an end takes, and less than a read may wait.
const SOON: Duration = Duration::from_secs(30);

/// Bytes of the blob that are in no answer, so that what is fetched in the background does not bring them before a test
/// begins.
const NEVER_SENT: Range<u64> = 12 << 20..15 << 20;

/// An image whose only layer a registry has that can fall silent.
struct Stalled {
    image: PathBuf,
    registry: RangeServer,
    is_silent: Arc<AtomicBool>,
}

impl Stalled {
    /// Makes one of 16 MiB.
    fn new(lab: &Lab) -> Self {
        let is_silent = Arc::new(AtomicBool::new(false));
        let silent = Arc::clone(&is_silent);
        let content = noise(20, 16 << 20);
        let (registry, image) = disk_elsewhere(lab, content, move |asked| {
            match silent.load(SeqCst) || NEVER_SENT.contains(&asked.range.start) {
                true => Treatment::Stall,
                false => Treatment::Right,
            }
        });
        Self {
            image,
            registry,
            is_silent,
        }
    }

    fn fall_silent(&self) {
        self.is_silent.store(true, SeqCst);
    }

    fn asked(&self) -> usize {
        self.registry.asked().len()
    }

    /// Waits until more was asked than so much.
    fn until_asked(&self, before: usize) {
        until("the registry to be asked", || self.asked() > before);
    }

    /// Mounts it without a node, and returns the file.
    fn mount(&self, lab: &Lab, deadline: &str) -> PathBuf {
        let at = lab.make_dir("mounted");
        let mut mount = lab.yolofs();
        mount.args(["mount", "--standalone", "--image-deadline", deadline]);
        mount.arg("--image-cache").arg(lab.path("cache"));
        mount.arg(format!("overlaybd:{}", self.image.display()));
        ok(mount.arg(&at));
        at.join("disk")
    }
}

fn read(file: &Path, offset: u64) -> std::io::Result<Vec<u8>> {
    let mut page = vec![0; 4096];
    File::open(file)?.read_exact_at(&mut page, offset)?;
    Ok(page)
}

/// Reads the first page past the kernel's cache.
fn read_directly(file: &Path) -> std::io::Result<Vec<u8>> {
    let mut page = vec![0; 4096];
    let mut options = File::options();
    let options = options.read(true).custom_flags(nix::libc::O_DIRECT);
    options.open(file)?.read_exact_at(&mut page, 0)?;
    Ok(page)
}

/// Waits for the end of a process, and returns how it ended.
fn ends_soon(child: &mut Child) -> ExitStatus {
    let deadline = Instant::now() + SOON;
    loop {
        if let Some(ended) = child.try_wait().unwrap() {
            return ended;
        }
        assert!(Instant::now() < deadline, "it still waits for the registry");
        thread::sleep(Duration::from_millis(20));
    }
}

fn detaches_soon(lab: &Lab) {
    let detach = lab.yolofs().args(["block", "detach", "disk"]).spawn();
    assert!(ends_soon(&mut Process(detach.unwrap()).0).success());
}

#[test]
fn privileged_block_a_read_is_not_begun_anew_by_the_kernel() {
    let lab = Lab::new();
    let stalled = Stalled::new(&lab);
    let file = stalled.mount(&lab, "1");
    stalled.fall_silent();
    let before = stalled.asked();
    let why = read(&file, 8 << 20).unwrap_err();
    assert_eq!(why.raw_os_error(), Some(nix::libc::ETIMEDOUT), "{why}");
    let asked = stalled.registry.asked().split_off(before);
    // The page is requested once, and perhaps on another connection since it is late. When the kernel's readahead has
    // failed, it requests the page once more: for that nothing is asked.
    let first = asked.last().unwrap().range.clone();
    let of_page = asked.iter().filter(|asked| asked.range == first);
    assert!(of_page.count() <= 2, "{asked:?}");
    lab.umount(file.parent().unwrap());
}

#[test]
fn privileged_block_what_is_here_is_read_while_others_wait() {
    let lab = Lab::new();
    let stalled = Stalled::new(&lab);
    let file = stalled.mount(&lab, "30");
    let page = read(&file, 0).unwrap();
    thread::scope(|scope| {
        for number in 0..5 {
            let file = &file;
            scope.spawn(move || read(file, (13 << 20) + number * (256 << 10)));
        }
        // More of them than threads that serve the mount.
        until("all of them to wait", || {
            let asked = stalled.registry.asked();
            let waited = asked
                .iter()
                .filter(|asked| NEVER_SENT.contains(&asked.range.start))
                // What is fetched in the background is longer.
                .filter(|asked| asked.range.end - asked.range.start < 64 << 10);
            let waited: BTreeSet<_> = waited.map(|asked| asked.range.start).collect();
            waited.len() > 2
        });
        // In the cache of the image; that of the kernel is not asked.
        let (tell, told) = channel();
        let again = &file;
        scope.spawn(move || tell.send(read_directly(again)));
        let here = told.recv_timeout(SOON / 3);
        ok(lab
            .yolofs()
            .args(["umount", "--lazy"])
            .arg(file.parent().unwrap()));
        assert!(here.expect("it waits, too").unwrap() == page);
    });
}

#[test]
fn privileged_block_an_end_does_not_wait_for_the_registry() {
    let lab = Lab::new();
    let _service = Service::start(&lab);
    let stalled = Stalled::new(&lab);
    let cache = lab.path("cache");
    let flags = ["--cache", arg(&cache), "--background", "plan"];
    let attached = attach(&lab, &stalled.image, "disk", &flags);
    let other = lab.path("other");
    let socket = lab.path("export.sock");
    let mut export = export_of(
        lab.yolofs(),
        &[
            arg(&stalled.image),
            "--nbd",
            arg(&socket),
            "--cache",
            arg(&other),
            "--background",
            "plan",
        ],
    );
    stalled.fall_silent();
    let readers = [
        attached["address"].as_str().unwrap().to_owned(),
        format!("nbd+unix:///disk?socket={}", socket.display()),
    ];
    let readers = readers.map(|address| {
        let before = stalled.asked();
        let mut reader = Command::new("qemu-io");
        reader.args(["-f", "raw", "-r", "-c", "read 8M 4k", &address]);
        let reader = Process(reader.stdout(Stdio::null()).spawn().unwrap());
        stalled.until_asked(before);
        reader
    });
    detaches_soon(&lab);
    assert!(device(&lab, "disk").is_null());
    let pid = Pid::from_raw(export.0.id().cast_signed());
    kill(pid, Signal::SIGINT).unwrap();
    assert_eq!(ends_soon(&mut export.0).code(), Some(0));
    drop(readers);
}

#[test]
fn privileged_block_what_is_being_attached_can_be_detached() {
    let lab = Lab::new();
    let _service = Service::start(&lab);
    let stalled = Stalled::new(&lab);
    stalled.fall_silent();
    let cache = lab.path("cache");
    let mut attach = lab.yolofs();
    attach.args(["block", "attach", "--cache", arg(&cache)]);
    attach.arg(&stalled.image).arg("disk");
    let attach = attach.stderr(Stdio::piped()).spawn().unwrap();
    stalled.until_asked(0);
    detaches_soon(&lab);
    let attach = attach.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&attach.stderr);
    assert!(!attach.status.success());
    let registry = stalled.registry.address.to_string();
    assert!(said.contains(&registry), "{said}");
    assert!(said.contains("before the device ended"), "{said}");
    // An export, whose registry is silent from the start, is interrupted.
    let before = stalled.asked();
    let (cache, socket) = (lab.path("other"), lab.path("export.sock"));
    let mut export = lab.yolofs();
    export.args([
        "block",
        "export",
        "--cache",
        arg(&cache),
        "--nbd",
        arg(&socket),
    ]);
    let mut export = Process(export.arg(&stalled.image).spawn().unwrap());
    stalled.until_asked(before);
    kill(Pid::from_raw(export.0.id().cast_signed()), Signal::SIGINT).unwrap();
    assert!(!ends_soon(&mut export.0).success());
}

/// The same of a file: its image is opened by the worker of a mount, and then the kernel reads it to mount the file system
/// in it. The registry accepts what is asked and never answers, the second time only where that file system begins.
#[test]
fn privileged_block_a_file_that_is_being_attached_can_be_detached() {
    let lab = Lab::new();
    let _service = Service::start(&lab);
    let answers_first = Arc::new(AtomicBool::new(false));
    let answers = Arc::clone(&answers_first);
    let (registry, image) = disk_elsewhere(&lab, noise(22, 16 << 20), move |asked| {
        let is_of_content = (4096..15 << 20).contains(&asked.range.start);
        match answers.load(SeqCst) && !is_of_content {
            true => Treatment::Right,
            false => Treatment::Stall,
        }
    });
    let cache = lab.path("cache");
    let (place, inside) = (lab.make_dir("place"), lab.make_dir("inside"));
    for (answers, more) in [(false, &[][..]), (true, &["--erofs", arg(&inside)])] {
        answers_first.store(answers, SeqCst);
        let asks_for_content = || {
            let mut asked = registry.asked().into_iter();
            asked.any(|asked| !answers || (4096..15 << 20).contains(&asked.range.start))
        };
        let mut attach = lab.yolofs();
        attach.args(["block", "attach", "--mount", "--cache", arg(&cache)]);
        attach.args(["--background", "plan"]).args(more);
        attach.arg(&image).arg(&place);
        let attach = attach.stderr(Stdio::piped()).spawn().unwrap();
        until("the registry to be asked", asks_for_content);
        let mut detach = lab.yolofs();
        let detach = detach.args(["block", "detach", arg(&place)]).spawn();
        assert!(ends_soon(&mut Process(detach.unwrap()).0).success());
        let attach = attach.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&attach.stderr);
        assert!(!attach.status.success());
        if !answers {
            assert!(said.contains("before the device ended"), "{said}");
        }
        let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap();
        assert!(!mounts.contains(arg(&lab.path(""))), "{mounts}");
    }
}
