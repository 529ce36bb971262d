//! Sources that change under mounts of the node, whose workers are replaced meanwhile: nobody sees
//! a version again that he has seen the end of.
#![cfg(feature = "privileged")]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::fs::{self, File};
use std::io::ErrorKind;
use std::os::unix::fs::{FileExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::process::Command;

use nix::errno::Errno;
use nix::fcntl::{OFlag, PosixFadviseAdvice, posix_fadvise};
use nix::sys::signal::Signal;

use lab::service::{Service, signal_to, umount};
use lab::stopped::Stopped;
use lab::{Lab, busybox_root, noise, ok, until};

/// How long the file is at first; its first half is in the boot image.
const LEN: usize = 1 << 20;
const HALF: usize = LEN / 2;

/// A mount of a source with one file that changes.
struct Changing<'a> {
    service: &'a Service<'a>,
    source: PathBuf,
    mountpoint: PathBuf,
}

impl<'a> Changing<'a> {
    /// Mounts a source from a boot image that has half of a file, all of which is in the page cache.
    fn new(service: &'a Service<'_>) -> Self {
        let lab = service.lab;
        let source = lab.make_dir("source");
        busybox_root(&source);
        fs::write(source.join("file"), noise(0, LEN)).unwrap();
        record(lab, &source, "first");
        let mountpoint = lab.mount(&source, "mnt", &["--wait-prewarm"]);
        let changing = Self {
            service,
            source,
            mountpoint,
        };
        changing.until_prewarmed();
        changing
    }

    /// Gives the file another content, of another length.
    fn change(&self, seed: u32) -> Vec<u8> {
        let content = noise(seed, LEN + 5000 * usize::try_from(seed).unwrap());
        fs::write(self.source.join("file"), &content).unwrap();
        content
    }

    fn open(&self) -> File {
        File::open(self.mountpoint.join("file")).unwrap()
    }

    /// Reads what is not in the boot image, so that the change is noticed.
    fn notice(&self, content: &[u8]) {
        until("the source to be asked", || {
            let (file, mut half) = (self.open(), vec![0; LEN - HALF]);
            let behind = i64::try_from(HALF).unwrap();
            posix_fadvise(&file, behind, 0, PosixFadviseAdvice::POSIX_FADV_DONTNEED).unwrap();
            file.read_exact_at(&mut half, HALF as u64).unwrap();
            half == content[HALF..LEN]
        });
        until("the kernel to forget the old version", || self.is(content));
    }

    fn is(&self, content: &[u8]) -> bool {
        let len = self.open().metadata().unwrap().size();
        len == content.len() as u64 && fs::read(self.mountpoint.join("file")).unwrap() == content
    }

    /// Waits until the worker has brought all that it ever will into the page cache.
    fn until_prewarmed(&self) {
        until("the mount to be prewarmed", || {
            let listed = self.service.listed(&self.mountpoint).unwrap();
            listed["boot"]["prewarm"] == "done"
        });
    }

    /// Whether a new worker comes to wait for a page before it has brought all into the page cache.
    fn waits_before_it_has_pushed(&self, worker: u32) -> bool {
        let (mut looks, mut is_waiting) = (0, false);
        until("the worker to wait, or to have pushed", || {
            looks += 1;
            is_waiting = waits_for_a_page(worker);
            let listed = self.service.listed(&self.mountpoint).unwrap();
            // It may be listed as its predecessor was.
            is_waiting || looks > 100 && listed["boot"]["prewarm"] == "done"
        });
        is_waiting
    }

    /// Fails unless this is the content, in the page cache and without it.
    #[track_caller]
    fn assert_is(&self, content: &[u8], when: &str) {
        assert!(self.is(content), "another version {when}");
        let file = self.open();
        posix_fadvise(&file, 0, 0, PosixFadviseAdvice::POSIX_FADV_DONTNEED).unwrap();
        assert!(self.is(content), "another version {when}, read anew");
        let mut around = File::options();
        let around = around.read(true).custom_flags(OFlag::O_DIRECT.bits());
        let mut bytes = vec![0; content.len()];
        let file = around.open(self.mountpoint.join("file")).unwrap();
        file.read_exact_at(&mut bytes, 0).unwrap();
        assert!(
            bytes == content,
            "another version {when}, around the page cache"
        );
    }
}

/// Records a boot that reads half of the file.
fn record(lab: &Lab, source: &Path, name: &str) {
    let read = format!("dd if=/file of=/dev/null bs=4096 count={}", HALF / 4096);
    let mut record = lab.bootimg();
    let record = record.arg("record").arg(source).args(["--name", name]);
    ok(record.args(["--", "/bin/sh", "-c", &read]));
}

/// Changes the file, has the worker replaced by `replace`, and looks for the version of before;
/// some times over. What is not noticed before the end of a worker, its successor notices.
fn stays_as_it_was_seen(replace: impl Fn(&Service<'_>, &Path)) {
    let lab = Lab::new();
    let service = Service::start(&lab);
    let changing = Changing::new(&service);
    let mut content = noise(0, LEN);
    for round in 1..=3 {
        let worker = service.worker(&changing.mountpoint);
        content = changing.change(round);
        changing.notice(&content);
        replace(&service, &changing.mountpoint);
        assert_ne!(service.worker(&changing.mountpoint), worker);
        changing.assert_is(&content, "after a worker was replaced");
        changing.until_prewarmed();
        changing.assert_is(&content, "after its successor's prewarm");
    }
    let served = &service.listed(&changing.mountpoint).unwrap()["served"];
    assert_eq!(served["diverted_files"], 1, "{served}");
    // Nothing of it is pushed, whoever asks.
    ok(lab.bootimg().args(["prewarm", "--all"]));
    changing.assert_is(&content, "after it was prewarmed by hand");
    record(&lab, &changing.source, "second");
    for image in ["second", "first"] {
        let mut swap = lab.yolofs();
        ok(swap
            .args(["node", "swap"])
            .arg(&changing.mountpoint)
            .arg(image));
        changing.until_prewarmed();
        changing.assert_is(
            &content,
            &format!("after the {image} boot image was swapped in"),
        );
    }
    lab.umount(&changing.mountpoint);
}

#[test]
fn privileged_worker_that_is_killed_leaves_what_it_knew_of_changes() {
    stays_as_it_was_seen(|service, mountpoint| service.kill_worker(mountpoint, Signal::SIGKILL));
}

#[test]
fn privileged_upgrade_keeps_what_was_known_of_changes() {
    let program = tempfile::tempdir().unwrap();
    let upgraded = program.path().join("upgraded");
    fs::copy(env!("CARGO_BIN_EXE_yolofs"), &upgraded).unwrap();
    stays_as_it_was_seen(|service, _| {
        let node = service.pid();
        let mut upgrade = service.lab.yolofs();
        ok(upgrade.args(["upgrade", "--program"]).arg(&upgraded));
        service.until_another(node);
    });
}

#[test]
fn privileged_node_and_worker_leave_what_they_knew_of_changes() {
    stays_as_it_was_seen(|service, mountpoint| {
        let (node, worker) = (service.pid(), service.worker(mountpoint));
        signal_to(node, Signal::SIGKILL);
        signal_to(worker, Signal::SIGKILL);
        service.until_another(node);
    });
}

#[test]
fn privileged_change_that_no_worker_saw_is_noticed_by_the_next() {
    let lab = Lab::new();
    let service = Service::start(&lab);
    let changing = Changing::new(&service);
    // Before anybody read of it.
    let content = changing.change(1);
    service.kill_worker(&changing.mountpoint, Signal::SIGKILL);
    changing.until_prewarmed();
    changing.notice(&content);
    changing.assert_is(&content, "after it was noticed");
    // While nobody serves: the node is held up.
    let worker = service.worker(&changing.mountpoint);
    let stopped = Stopped::stop(service.pid());
    signal_to(worker, Signal::SIGKILL);
    let content = changing.change(2);
    drop(stopped);
    until("another worker to serve", || {
        service.worker(&changing.mountpoint) != worker
    });
    changing.until_prewarmed();
    changing.notice(&content);
    changing.assert_is(&content, "after it was noticed");
    service.kill_worker(&changing.mountpoint, Signal::SIGKILL);
    changing.assert_is(&content, "after the next worker was killed, too");
    lab.umount(&changing.mountpoint);
}

#[test]
fn privileged_change_that_cannot_be_handed_over_is_not_shown() {
    let lab = Lab::new();
    let run = lab.make_dir("run");
    let mut tmpfs = Command::new("mount");
    ok(tmpfs
        .args(["-t", "tmpfs", "-o", "size=2m,mode=700", "none"])
        .arg(&run));
    {
        let service = Service::start(&lab);
        let changing = Changing::new(&service);
        let filler = run.join("filler");
        // To the last byte: the device gives as many as there is room for.
        let filled = std::io::copy(
            &mut File::open("/dev/zero").unwrap(),
            &mut File::create(&filler).unwrap(),
        );
        assert_eq!(filled.unwrap_err().kind(), ErrorKind::StorageFull);
        // More files than there is room for in the last page of what was written.
        let files = (0..20).map(|file| (file + 100, format!("usr/lib/part{file:02}")));
        let files: Vec<_> = files.collect();
        let modified = |file: &str| {
            fs::metadata(changing.mountpoint.join(file))
                .unwrap()
                .modified()
                .unwrap()
        };
        let before: Vec<_> = files.iter().map(|(_, file)| modified(file)).collect();
        for (seed, file) in &files {
            // As long as before: the kernel need not be told an end before anybody may read.
            fs::write(changing.source.join(file), noise(*seed, 30_000)).unwrap();
        }
        let read = |file: &str| fs::read(changing.mountpoint.join(file));
        let mut failed = 0;
        for ((seed, file), before) in files.iter().zip(before) {
            match read(file) {
                Ok(content) => assert!(content == noise(*seed, 30_000), "{file}"),
                Err(error) => {
                    failed += 1;
                    assert_eq!(error.raw_os_error(), Some(Errno::EIO as i32), "{file}");
                    assert_eq!(modified(file), before, "{file}: the old version is over");
                }
            }
        }
        assert!(
            (4..20).contains(&failed),
            "{failed} could not be written down"
        );
        fs::remove_file(filler).unwrap();
        for (seed, file) in &files {
            until("the new version to be shown", || {
                read(file).is_ok_and(|content| content == noise(*seed, 30_000))
            });
        }
        service.kill_worker(&changing.mountpoint, Signal::SIGKILL);
        for (seed, file) in &files {
            assert!(read(file).unwrap() == noise(*seed, 30_000), "{file}");
        }
        lab.umount(&changing.mountpoint);
    }
    umount(&["-l"], &run);
}

/// Returns a directory, a source that shows what changes in it, and the process that serves that one
/// and can be stopped.
fn stoppable_source(lab: &Lab) -> (PathBuf, PathBuf, u32) {
    let root = lab.make_dir("root");
    busybox_root(&root);
    fs::write(root.join("file"), noise(0, LEN)).unwrap();
    let source = lab.mount(&root, "source", &["--standalone", "--revalidate", "0"]);
    let server = u32::try_from(lab.status(&source)["pid"].as_u64().unwrap()).unwrap();
    (root, source, server)
}

#[test]
fn privileged_takeover_asks_nothing_of_a_source_that_hangs() {
    let lab = Lab::new();
    let service = Service::start(&lab);
    let (root, source, server) = stoppable_source(&lab);
    record(&lab, &source, "first");
    let mountpoint = lab.mount(&source, "mnt", &["--wait-prewarm"]);
    let changing = Changing {
        service: &service,
        source: root.clone(),
        mountpoint,
    };
    let content = changing.change(1);
    changing.notice(&content);
    let stopped = Stopped::stop(server);
    service.kill_worker(&changing.mountpoint, Signal::SIGKILL);
    // What the boot image has is there, and the file is what it was.
    let program = File::open(changing.mountpoint.join("bin/busybox")).unwrap();
    posix_fadvise(&program, 0, 4096, PosixFadviseAdvice::POSIX_FADV_DONTNEED).unwrap();
    let mut first = [0; 4096];
    program.read_exact_at(&mut first, 0).unwrap();
    assert!(
        fs::read(root.join("bin/busybox"))
            .unwrap()
            .starts_with(&first)
    );
    let len = changing.open().metadata().unwrap().size();
    assert_eq!(len, content.len() as u64);
    drop(stopped);
    changing.assert_is(&content, "when the source answers again");
    drop(program);
    lab.umount(&changing.mountpoint);
    lab.umount(&source);
}

/// How many workers hold the lock that says that they are there, on the names of the only mount.
fn workers_left(lab: &Lab) -> usize {
    let instances = fs::read_dir(lab.run_dir().join("node")).unwrap();
    let names = instances.map(|entry| entry.unwrap().path());
    let mut names = names.filter(|path| path.extension().is_some_and(|end| end == "names"));
    let inode = fs::metadata(names.next().unwrap()).unwrap().ino();
    let locks = fs::read_to_string("/proc/locks").unwrap();
    let ours = |line: &&str| line.contains("OFDLCK") && line.contains(&format!(":{inode} "));
    locks.lines().filter(ours).count()
}

/// A thread that pushes waits for a page that a reader has locked, who waits for the source. The
/// worker is killed; the file changes; and what the thread pushes when the reader has his answer comes
/// after the next worker had the kernel forget the old version, or before.
#[test]
fn privileged_what_a_killed_worker_still_pushes_does_not_stay() {
    /// Blocks that the boot image lacks, in the middle of those that it has.
    const GAP: u64 = 64;
    let lab = Lab::new();
    let service = Service::start(&lab);
    let (root, source, server) = stoppable_source(&lab);
    let dd = "dd if=/file of=/dev/null bs=4096";
    let read = format!(
        "{dd} count={GAP}; {dd} skip={} count={}",
        GAP + 2,
        126 - GAP
    );
    let mut record = lab.bootimg();
    let record = record.arg("record").arg(&source).args(["--name", "first"]);
    ok(record.args(["--", "/bin/sh", "-c", &read]));
    let mountpoint = lab.mount(&source, "mnt", &["--wait-prewarm"]);
    let changing = Changing {
        service: &service,
        source: root,
        mountpoint,
    };
    let file = changing.open();
    for file in [&file, &File::open(source.join("file")).unwrap()] {
        posix_fadvise(file, 0, 0, PosixFadviseAdvice::POSIX_FADV_DONTNEED).unwrap();
    }
    let stopped = Stopped::stop(server);
    let reader = std::thread::spawn(move || {
        let mut pages = vec![0; 8 * 4096];
        file.read_exact_at(&mut pages, (GAP - 2) * 4096)
            .map(|()| pages)
    });
    // The next worker brings the pages of the file back that it does not find, if the reader has got so
    // far; he has, once the push is held up. A worker that waits for a page of its program is not.
    service.kill_worker(&changing.mountpoint, Signal::SIGKILL);
    until("a worker to be killed over a push", || {
        let worker = service.worker(&changing.mountpoint);
        let is_waiting = changing.waits_before_it_has_pushed(worker);
        service.kill_worker(&changing.mountpoint, Signal::SIGKILL);
        is_waiting && outlives_its_death(worker)
    });
    assert!(workers_left(&lab) > 1, "one is dead, but for a thread");
    let content = changing.change(1);
    drop(stopped);
    // Of one version each, or the file changed under it.
    let _read = reader.join().unwrap();
    changing.notice(&content);
    until("the dead worker to be gone", || workers_left(&lab) == 1);
    until("what it has pushed to be forgotten", || {
        changing.is(&content)
    });
    changing.until_prewarmed();
    changing.assert_is(&content, "after a worker was killed over a push");
    lab.umount(&changing.mountpoint);
    lab.umount(&source);
}

/// Whether a thread of a process waits in the kernel for a page.
fn waits_for_a_page(pid: u32) -> bool {
    waits(pid).iter().any(|place| place.contains("folio"))
}

/// Whether a thread of a process that was killed is still there, since it waits for a page.
fn outlives_its_death(pid: u32) -> bool {
    let mut left = Vec::new();
    until("all others of its threads to end", || {
        left = waits(pid);
        left.iter().all(|place| place.contains("folio"))
    });
    !left.is_empty()
}

/// Where in the kernel the living threads of a process are.
fn waits(pid: u32) -> Vec<String> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task"));
    let tasks = tasks.into_iter().flatten().flatten();
    let living = tasks.filter_map(|task| {
        let stat = fs::read_to_string(task.path().join("stat")).ok()?;
        let place = fs::read_to_string(task.path().join("wchan")).ok()?;
        let is_dead = stat.contains(") Z ") || stat.contains(") X ");
        (!is_dead).then_some(place)
    });
    living.collect()
}
