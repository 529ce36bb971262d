//! Whole files on tiers: the kernel reads the copy, and the source when there is none.

#![cfg(feature = "privileged")]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use nix::sys::signal::Signal;

use lab::service::signal_to;
use lab::tiers::TierLab;
use lab::{fails, json, noise, ok, until};

const LEN: usize = 3 << 20;

/// A lab with a disk image and a tier.
struct Whole {
    lab: TierLab,
    disk: PathBuf,
    tier: PathBuf,
}

impl Whole {
    fn new() -> Self {
        let lab = TierLab::new(&[("nvm", "64M")]);
        let disk = lab.make_dir("disks").join("disk.raw");
        fs::write(&disk, noise(1, LEN)).unwrap();
        let tier = lab.tier_dir("nvm");
        Self { lab, disk, tier }
    }

    /// Copies the disk image to the tier, and returns the bytes that were written.
    fn promote(&self) -> u64 {
        let promoted = json(self.lab.tier(&["promote", "--json"]).arg(&self.disk));
        assert_eq!(promoted[0]["bytes"], LEN as u64, "{promoted}");
        promoted[0]["written_bytes"].as_u64().unwrap()
    }

    fn mount(&self, name: &str) -> PathBuf {
        self.lab
            .mount(&self.disk, name, &["--tiers", self.lab.tiers()])
    }

    /// Compares all that a mount gives with the source, and waits until nobody has it open: the
    /// kernel tells of that a moment later, and until then the next open is like this one.
    fn assert_same(&self, mountpoint: &Path) {
        let found = fs::read(mountpoint.join("disk.raw")).unwrap();
        assert!(found == fs::read(&self.disk).unwrap(), "the bytes differ");
        until("the daemon to hear that the file is closed", || {
            let of = |kind| self.lab.requests(mountpoint, kind);
            of("release") == of("open")
        });
    }

    /// How often the mount opened a copy, and failed to, and was asked to read.
    fn counts(&self, mountpoint: &Path) -> [u64; 3] {
        let served = &self.lab.status(mountpoint)["served"];
        let reads = &served["requests"]["read"];
        [&served["copy_opens"], &served["copies_failed"], reads].map(|of| of.as_u64().unwrap())
    }

    /// The copy's own file.
    fn copy(&self) -> PathBuf {
        let objects = self.lab.objects(0);
        self.tier.join(objects[0]["object"].as_str().unwrap())
    }

    fn evict(&self) -> Command {
        let mut evict = self.lab.tier(&["evict"]);
        evict.arg(&self.disk);
        evict
    }
}

#[test]
fn privileged_a_whole_file_is_read_from_its_tier_and_stays_there_while_it_is_open() {
    let whole = Whole::new();
    assert_eq!(whole.promote(), LEN as u64);
    assert_eq!(whole.promote(), 0, "it is there");
    let object = &whole.lab.objects(0)[0];
    assert_eq!(object["name"], whole.disk.to_str().unwrap());
    assert_eq!(object["open"], false);

    let mountpoint = whole.mount("mnt");
    whole.assert_same(&mountpoint);
    assert_eq!(whole.counts(&mountpoint), [1, 0, 0]);
    let open = File::open(mountpoint.join("disk.raw")).unwrap();
    // The daemon has closed what the kernel reads: the lock is the kernel's.
    assert_eq!(whole.lab.objects(0)[0]["open"], true);
    let stays = whole.evict().output().unwrap();
    assert_eq!(stays.status.code(), Some(4), "{stays:?}");
    // A program that is run or mapped reads the same.
    let mut mapped = vec![0; LEN];
    rawio::mapped::MappedFile::map(&open)
        .unwrap()
        .copy(0, &mut mapped);
    assert!(mapped == noise(1, LEN));
    drop(open);
    until("the kernel to let go of the copy", || {
        whole.lab.objects(0)[0]["open"] == false
    });

    ok(whole.lab.tier(&["pin"]).arg(&whole.disk));
    let error = fails(1, &mut whole.evict());
    assert!(error.contains("is pinned"), "{error}");
    ok(whole.lab.tier(&["unpin"]).arg(&whole.disk));
    ok(&mut whole.evict());
    assert!(whole.lab.objects(0).is_empty());
    whole.assert_same(&mountpoint);
    assert_eq!(whole.counts(&mountpoint), [2, 0, 0], "nothing failed");
    // What is promoted under a mount is used by the next one who opens it.
    assert_eq!(whole.promote(), LEN as u64);
    whole.assert_same(&mountpoint);
    assert_eq!(whole.counts(&mountpoint), [3, 0, 0]);
    whole.lab.umount(&mountpoint);
}

#[test]
fn privileged_a_copy_that_is_lost_or_of_another_version_is_not_read() {
    let whole = Whole::new();
    whole.promote();
    let mountpoint = whole.mount("lost");
    whole.assert_same(&mountpoint);
    fs::remove_file(whole.copy()).unwrap();
    whole.assert_same(&mountpoint);
    assert_eq!(whole.counts(&mountpoint), [1, 1, 0], "the source is passed");
    whole.lab.umount(&mountpoint);

    // Cut short, as by who knows whom.
    assert_eq!(whole.promote(), LEN as u64, "it is made anew");
    let cut = File::options().write(true).open(whole.copy()).unwrap();
    cut.set_len(4096).unwrap();
    let mountpoint = whole.mount("short");
    whole.assert_same(&mountpoint);
    assert_eq!(whole.counts(&mountpoint), [0, 1, 0]);
    whole.lab.umount(&mountpoint);

    assert_eq!(whole.promote(), LEN as u64);
    fs::write(&whole.disk, noise(2, LEN)).unwrap();
    let mountpoint = whole.mount("other");
    whole.assert_same(&mountpoint);
    assert_eq!(
        whole.counts(&mountpoint),
        [0, 0, 0],
        "there is none of this version"
    );
    // It is of no use any more, and goes with the next plan.
    ok(&mut whole.lab.tier(&["apply"]));
    assert!(whole.lab.objects(0).is_empty());
    whole.lab.umount(&mountpoint);
}

#[test]
fn privileged_a_file_with_boot_data_is_read_from_its_copy_and_from_them_without_it() {
    let whole = Whole::new();
    let log = whole.lab.path("log");
    let line = "blk_co_preadv blk 0x1 bs 0x2 offset 0 bytes 65536 flags 0x0\n";
    fs::write(&log, line).unwrap();
    ok(whole
        .lab
        .bootimg()
        .arg("from-trace")
        .arg(&whole.disk)
        .arg("--qemu")
        .arg(&log)
        .args(["--name", "boot"]));
    whole.promote();
    let flags = ["--wait-prewarm", "--tiers", whole.lab.tiers()];
    let mountpoint = whole.lab.mount(&whole.disk, "mnt", &flags);
    let boot = &whole.lab.status(&mountpoint)["boot"];
    assert_eq!(
        (&boot["image"], &boot["injected_pages"]),
        (&"boot".into(), &0.into()),
        "nobody would look at the pages"
    );
    let [before, ..] = whole.counts(&mountpoint);
    whole.assert_same(&mountpoint);
    assert_eq!(whole.counts(&mountpoint), [before + 1, 0, 0]);
    until("the kernel to let go of the copy", || {
        whole.lab.objects(0)[0]["open"] == false
    });
    ok(&mut whole.evict());
    whole.assert_same(&mountpoint);
    let [opens, failed, reads] = whole.counts(&mountpoint);
    assert_eq!((opens, failed), (before + 1, 0));
    assert!(reads > 0, "it goes through the page cache now");
    whole.lab.umount(&mountpoint);
}

#[test]
fn privileged_a_program_that_has_a_copy_runs_and_is_read_from_it() {
    let whole = Whole::new();
    let tree = whole.lab.make_dir("tree");
    let (deed, script) = (tree.join("deed"), tree.join("script"));
    fs::copy("/bin/true", &deed).unwrap();
    fs::write(
        &script,
        "#!/bin/sh\nread -r line <\"$1\" && echo \"$line\"\n",
    )
    .unwrap();
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
    fs::write(tree.join("text"), "of a file beside it\n").unwrap();
    fs::write(tree.join("empty"), "").unwrap();
    ok(whole.lab.tier(&["promote"]).arg(&tree));
    let flags = ["--mode", "disk", "--tiers", whole.lab.tiers()];
    let mountpoint = whole.lab.mount(&tree, "mnt", &flags);
    // From now on only the copies have what was in them.
    for name in ["deed", "script", "text", "empty"] {
        fs::remove_file(tree.join(name)).unwrap();
    }
    assert!(fs::read(mountpoint.join("empty")).unwrap().is_empty());
    ok(&mut Command::new(mountpoint.join("deed")));
    let said = ok(Command::new(mountpoint.join("script")).arg(mountpoint.join("text")));
    assert_eq!(said, "of a file beside it\n");
    let [opens, failed, reads] = whole.counts(&mountpoint);
    assert_eq!((opens, failed), (1, 0), "only the text was passed through");
    assert!(reads > 0, "the programs went through the page cache");
    whole.lab.umount(&mountpoint);
}

#[test]
fn privileged_a_promotion_keeps_to_its_rate_and_leaves_nothing_when_it_is_interrupted() {
    let whole = Whole::new();
    // At this rate it takes a month. None of the signals is ignored that a shell ignored before us.
    let slow = whole.lab.tier(&["promote", "--rate", "1"]);
    let mut promote = Command::new("env");
    promote
        .arg("--default-signal=INT")
        .arg(slow.get_program())
        .args(slow.get_args())
        .arg(&whole.disk)
        .envs(
            slow.get_envs()
                .filter_map(|(name, value)| Some((name, value?))),
        );
    let mut promote = promote.spawn().unwrap();
    let noted = whole.lab.store().join("tiers/files/heat");
    until("the promotion to have begun", || {
        fs::read_dir(&noted).is_ok_and(|mut found| found.next().is_some())
    });
    signal_to(promote.id(), Signal::SIGINT);
    assert_eq!(promote.wait().unwrap().code(), Some(130));
    assert!(whole.lab.objects(0).is_empty());
    assert_eq!(whole.promote(), LEN as u64, "it is done again");
}

#[test]
fn privileged_what_cannot_be_promoted_is_told() {
    let whole = Whole::new();
    let error = fails(1, &mut whole.lab.tier(&["promote", "/dev/null"]));
    assert!(error.contains("/dev/null is not a regular file"), "{error}");
    let error = fails(
        1,
        &mut whole.lab.tier(&["promote", "--tier", "no", "/etc/passwd"]),
    );
    assert!(error.contains("there is no tier no"), "{error}");
    let large = whole.lab.path("large");
    File::create(&large).unwrap().set_len(65 << 20).unwrap();
    let error = fails(1, whole.lab.tier(&["promote"]).arg(&large));
    assert!(error.contains("make room"), "{error}");
    assert!(whole.lab.objects(0).is_empty());
    // A directory with all that is in it; one content is one object.
    let disks = whole.disk.parent().unwrap();
    fs::copy(&whole.disk, disks.join("same.raw")).unwrap();
    let promoted = json(whole.lab.tier(&["promote", "--json"]).arg(disks));
    assert_eq!(promoted[1]["written_bytes"], 0, "{promoted}");
    assert_eq!(whole.lab.objects(0).len(), 1);
    let error = fails(1, &mut whole.lab.tier(&["evict", "/etc/passwd"]));
    assert!(error.contains("was never promoted"), "{error}");
}
