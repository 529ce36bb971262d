//! Boot images that have blocks in common have one copy of them on a tier.

#![cfg(feature = "privileged")]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use blocks::ContentId;
use nix::fcntl::{PosixFadviseAdvice, posix_fadvise};
use serde_json::{Value, json as object};

use lab::tiers::TierLab;
use lab::{busybox_root, json, noise, ok, until};

/// What both sources have, and their boots read: ten parts of 30 000 bytes, 8 blocks each.
const COMMON: u64 = 10 * 8 * 4096;

/// A lab with a tier in memory, and boot images of two sources that have much in common.
struct Twins {
    lab: TierLab,
    nvm: PathBuf,
}

impl Twins {
    fn new() -> Self {
        let lab = TierLab::new(&[("nvm", "50%")]);
        lab.mount_memory("nvm", 64);
        let nvm = lab.tier_dir("nvm");
        let twins = Self { lab, nvm };
        for (name, seed) in [("one", 100), ("two", 200)] {
            let root = twins.root(name);
            busybox_root(&root);
            for part in 0..5_u32 {
                let own = root.join(format!("usr/lib/part0own{part}"));
                fs::write(own, noise(seed + part, 30_000)).unwrap();
            }
            let mut record = twins.lab.bootimg();
            record.args(["record", "--name", name]).arg(&root);
            ok(record.args(["--", "sh", "-c", "cat /usr/lib/part0* > /dev/null"]));
        }
        twins
    }

    fn root(&self, name: &str) -> PathBuf {
        self.lab.path("roots").join(name)
    }

    /// Brings a boot image to the tier, and returns how many bytes were written.
    fn prewarm(&self, name: &str) -> u64 {
        let mut command = self.lab.bootimg();
        command.args(["prewarm", "--tier", "nvm", name, "--json"]);
        let placed = json(command.args(["--tiers", self.lab.tiers()]));
        placed[0]["written_bytes"].as_u64().unwrap()
    }

    /// All bytes of a boot image on the tier, those that only it has, and the others.
    fn bytes(&self, name: &str) -> [u64; 3] {
        let object = self.object(name);
        ["bytes", "own_bytes", "shared_bytes"].map(|field| object[field].as_u64().unwrap())
    }

    fn object(&self, name: &str) -> Value {
        let status = self.lab.tier_status(0);
        let mut objects = status["objects"].as_array().unwrap().iter();
        objects
            .find(|object| object["name"] == name)
            .unwrap()
            .clone()
    }

    /// Takes the copy of a boot image away whose mount is gone.
    fn evict(&self, name: &str) {
        until("the daemon to let go of the copy", || {
            self.object(name)["open"] == false
        });
        let evicted = json(&mut self.lab.tier(&["evict", name, "--json"]));
        assert_eq!(evicted[0]["state"], "gone", "{evicted}");
    }

    fn used(&self) -> u64 {
        self.lab.tier_status(0)["used_bytes"].as_u64().unwrap()
    }

    /// The bytes that the tier's file system has given to copies.
    fn taken(&self) -> u64 {
        let entries = fs::read_dir(&self.nvm).unwrap();
        let files = entries.map(|entry| entry.unwrap());
        let files = files.filter(|file| file.file_name() != "tier");
        files
            .map(|file| file.metadata().unwrap().blocks() * 512)
            .sum()
    }

    /// Mounts a source, so that every read of it comes to the daemon.
    fn mount(&self, name: &str, at: &str) -> PathBuf {
        let flags = ["--no-inject", "--tiers", self.lab.tiers()];
        self.lab.mount(&self.root(name), at, &flags)
    }

    /// Everything that was recorded is right, comes from the copy, and asks no disk for a byte.
    fn assert_served(&self, name: &str, mountpoint: &Path) {
        let before = self.lab.status(mountpoint);
        for entry in fs::read_dir(self.root(name).join("usr/lib")).unwrap() {
            let file = entry.unwrap().file_name();
            if file.to_str().unwrap().starts_with("part0") {
                let path = Path::new("usr/lib").join(file);
                let want = fs::read(self.root(name).join(&path)).unwrap();
                // What the kernel has kept of it says nothing.
                let cached = File::open(mountpoint.join(&path)).unwrap();
                posix_fadvise(&cached, 0, 0, PosixFadviseAdvice::POSIX_FADV_DONTNEED).unwrap();
                assert!(
                    fs::read(mountpoint.join(&path)).unwrap() == want,
                    "{path:?}"
                );
            }
        }
        let after = self.lab.status(mountpoint);
        assert_eq!(after["boot"]["tier"], "nvm", "{after}");
        assert_eq!(after["boot"]["copy_failures"], 0, "{after}");
        assert_eq!(after["boot"]["damaged"], 0, "{after}");
        let hits = |status: &Value| status["served"]["hit_bytes"].as_u64().unwrap();
        assert!(hits(&after) >= hits(&before) + COMMON, "{after}");
        assert_eq!(
            after["served"]["fallthrough_bytes"], before["served"]["fallthrough_bytes"],
            "the source was asked: {after}"
        );
        let fds = fs::read_dir(format!("/proc/{}/fd", after["pid"])).unwrap();
        let open: Vec<PathBuf> = fds
            .filter_map(|fd| fs::read_link(fd.unwrap().path()).ok())
            .collect();
        let of = |dir: &Path| open.iter().filter(|path| path.starts_with(dir)).count();
        assert!(of(&self.nvm) >= 2, "an index and its pools: {open:?}");
        assert_eq!(of(&self.lab.store().join("segments")), 0, "{open:?}");
    }
}

#[test]
fn privileged_common_blocks_are_there_once_and_stay_for_who_stays() {
    let t = Twins::new();
    let first = t.prewarm("one");
    let [all, own, shared] = t.bytes("one");
    assert_eq!((first, t.used(), own, shared), (all, all, all, 0));
    let second = t.prewarm("two");
    let (one, two) = (t.bytes("one"), t.bytes("two"));
    assert!(two[2] >= COMMON, "{two:?}");
    assert_eq!(two[2], one[2], "what one shares, the other does");
    assert_eq!(
        (two[0], second),
        (two[1] + two[2], two[1]),
        "only what is new is written"
    );
    assert_eq!(t.used(), one[1] + two[0], "what is shared counts once");
    let rounded = |bytes: u64| bytes.next_multiple_of(4096);
    // Only indexes are no whole blocks.
    let most = rounded(t.used()) + 2 * 4096;
    assert!(
        (t.used()..=most).contains(&t.taken()),
        "{} {}",
        t.used(),
        t.taken()
    );
    assert_eq!(t.prewarm("one") + t.prewarm("two"), 0, "both are sound");

    let mounts = [t.mount("one", "mnt-one"), t.mount("two", "mnt-two")];
    t.assert_served("one", &mounts[0]);
    t.assert_served("two", &mounts[1]);

    // One goes while the other is read.
    t.lab.umount(&mounts[0]);
    t.evict("one");
    assert_eq!(t.bytes("two"), [two[0], two[0], 0]);
    assert_eq!(t.used(), two[0]);
    assert!((two[0]..=rounded(two[0]) + 4096).contains(&t.taken()));
    t.assert_served("two", &mounts[1]);
    t.lab.umount(&mounts[1]);
    let again = t.mount("two", "again");
    t.assert_served("two", &again);
    let without = t.mount("one", "without");
    assert_eq!(t.lab.status(&without)["boot"]["tier"], Value::Null);
    ok(Command::new("diff")
        .args(["-r", "--no-dereference"])
        .args([&t.root("one"), &without]));
    t.lab.umount(&without);

    // It comes back, and brings only what left with it: so there is room where there is none for
    // all of it.
    let room = format!("size = \"{}\"", one[1] + two[0]);
    let tight = fs::read_to_string(t.lab.tiers()).unwrap();
    fs::write(t.lab.tiers(), tight.replace("size = \"50%\"", &room)).unwrap();
    ok(&mut t.lab.tier(&["pin", "one"]));
    let plan = json(&mut t.lab.tier(&["plan", "--json"]));
    let planned = &plan["moves"][0];
    assert_eq!(
        (&planned["move"], &planned["name"], &planned["shared_bytes"]),
        (&"promote".into(), &"one".into(), &one[2].into()),
        "{plan}"
    );
    assert_eq!(plan["moves"].as_array().unwrap().len(), 1, "{plan}");
    assert_eq!(plan["tiers"][0]["bytes"], one[1] + two[0], "{plan}");
    let applied = json(&mut t.lab.tier(&["apply", "--json"]));
    assert_eq!(applied[0]["state"], "done", "{applied}");
    assert_eq!(applied[0]["written_bytes"], one[1], "{applied}");
    assert_eq!(t.used(), one[1] + two[0]);
    let back = t.mount("one", "back");
    t.assert_served("one", &back);
    t.assert_served("two", &again);
    t.lab.umount(&back);
    t.lab.umount(&again);
}

#[test]
fn privileged_copy_of_an_earlier_release_is_served_until_it_goes() {
    let t = Twins::new();
    t.prewarm("one");
    ok(&mut t.lab.tier(&["evict", "--all"]));
    assert_eq!(t.taken(), 0);
    // Then a copy was the boot image in one file. As a release before this one left it: there, and
    // known; the journal is lost, so that it is taken in by its hash.
    let file = t.lab.path("whole");
    ok(t.lab
        .bootimg()
        .args(["export", "--variant", "mapped", "one"])
        .arg(&file));
    let bytes = fs::read(&file).unwrap();
    let copy = ContentId::of(&bytes);
    fs::copy(&file, t.nvm.join(copy.to_string())).unwrap();
    let state = t.lab.store().join("tiers");
    fs::remove_file(state.join("journal")).unwrap();
    let known = fs::read_dir(state.join("known")).unwrap().next().unwrap();
    let of_it = object!({"object": copy.to_string(), "bytes": bytes.len()});
    fs::write(known.unwrap().path(), of_it.to_string()).unwrap();

    let mountpoint = t.mount("one", "mnt");
    assert_eq!(t.lab.status(&mountpoint)["boot"]["tier"], "nvm");
    t.lab.umount(&mountpoint);
    assert_eq!(t.prewarm("one"), 0, "it is there, and sound");
    assert_eq!(t.bytes("one"), [bytes.len() as u64, bytes.len() as u64, 0]);
    // One in parts beside it shares nothing with it.
    let second = t.prewarm("two");
    assert_eq!(t.bytes("two"), [second, second, 0]);
    // It goes like any, and what comes back is in parts.
    t.evict("one");
    assert!(!t.nvm.join(copy.to_string()).exists());
    assert!(t.prewarm("one") < bytes.len() as u64 - COMMON);
    assert!(t.bytes("one")[2] >= COMMON);
}
