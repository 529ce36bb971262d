//! Moves between tiers leave a disk to those who read it.

#![cfg(feature = "privileged")]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::fs::{self, File};
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use lab::{Lab, json, noise, ok};
use nix::fcntl::{PosixFadviseAdvice, posix_fadvise};
use nix::sys::stat::{major, minor};

const PAGE: usize = 4096;
/// Several slots, also where it is read from memory.
const MOVED: usize = 32 << 20;
const READ: usize = 8 << 20;

/// A disk that nobody else uses.
struct Disk(PathBuf);

impl Disk {
    fn new(lab: &Lab) -> Self {
        let (image, at) = (lab.path("disk.ext4"), lab.make_dir("disk"));
        File::create(&image).unwrap().set_len(128 << 20).unwrap();
        ok(Command::new("mkfs.ext4").arg("-q").arg(&image));
        ok(Command::new("mount")
            .args(["-o", "loop"])
            .args([&image, &at]));
        Self(at)
    }

    /// Makes a file that is on the disk and not in memory.
    fn file(&self, name: &str, len: usize) -> PathBuf {
        let path = self.0.join(name);
        fs::write(&path, noise(1, len)).unwrap();
        let file = File::open(&path).unwrap();
        file.sync_all().unwrap();
        forget(&file);
        path
    }

    /// Reads that the disk has finished.
    fn reads(&self) -> u64 {
        let device = fs::metadata(&self.0).unwrap().dev();
        let stat = format!("/sys/dev/block/{}:{}/stat", major(device), minor(device));
        let stat = fs::read_to_string(stat).unwrap();
        stat.split_whitespace().next().unwrap().parse().unwrap()
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        // Nothing is left to be told; the loop device goes with its mount.
        let _unmounted = Command::new("umount").arg("--lazy").arg(&self.0).status();
    }
}

fn forget(file: &File) {
    posix_fadvise(file, 0, 0, PosixFadviseAdvice::POSIX_FADV_DONTNEED).unwrap();
}

/// Reads a file from its disk, page after page, again and again.
fn read_on(path: &Path, end: &AtomicBool, reads: &AtomicU64) {
    let file = File::open(path).unwrap();
    posix_fadvise(&file, 0, 0, PosixFadviseAdvice::POSIX_FADV_RANDOM).unwrap();
    let mut page = [0; PAGE];
    while !end.load(Relaxed) {
        forget(&file);
        for offset in (0..READ).step_by(PAGE) {
            file.read_exact_at(&mut page, offset as u64).unwrap();
            reads.fetch_add(1, Relaxed);
        }
    }
}

#[test]
fn privileged_a_move_leaves_nearly_all_reads_of_a_busy_disk_to_others() {
    let lab = Lab::new();
    let disk = Disk::new(&lab);
    // Several: one reader that waits for a processor for half a second would look like nobody.
    let read = ["a", "b", "c"].map(|name| disk.file(name, READ));
    let moved = disk.file("moved", MOVED);
    let (tiers, nvm) = (lab.path("tiers.toml"), lab.make_dir("nvm"));
    let nvm = nvm.display();
    let text = format!("[[tier]]\nname = \"nvm\"\ndir = \"{nvm}\"\nsize = \"96M\"\n");
    fs::write(&tiers, text).unwrap();

    let (end, reads) = (AtomicBool::new(false), AtomicU64::new(0));
    let (promoted, others, all) = std::thread::scope(|scope| {
        for file in &read {
            scope.spawn(|| read_on(file, &end, &reads));
        }
        lab::until("somebody to read", || reads.load(Relaxed) > 0);
        let before = (reads.load(Relaxed), disk.reads());
        let mut promote = lab.yolofs();
        promote.args(["tier", "promote", "--json", "--tiers"]);
        let promoted = json(promote.args([&tiers, &moved]));
        let others = reads.load(Relaxed) - before.0;
        let all = disk.reads() - before.1;
        end.store(true, Relaxed);
        (promoted, others, all)
    });
    assert_eq!(promoted[0]["written_bytes"], MOVED as u64, "{promoted}");
    assert!(promoted[0]["gave_way"].as_u64().unwrap() > 1, "{promoted}");
    let its_own = all.saturating_sub(others);
    assert!(
        its_own * 31 < others,
        "{its_own} reads for the move, {others} of others"
    );
}
