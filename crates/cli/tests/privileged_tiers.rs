//! Boot images on tiers: served from the fastest copy, and from the store when that fails.

#![cfg(feature = "privileged")]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::fs;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use nix::sys::signal::Signal;
use serde_json::Value;

use lab::service::{Service, signal_to};
use lab::tiers::TierLab;
use lab::{busybox_root, fails, json, ok, until};

/// A lab with a fast tier in memory, a slow one on the disk, and a boot image of a small root.
struct Tiered {
    lab: TierLab,
    root: PathBuf,
    nvm: PathBuf,
}

impl Tiered {
    /// Makes one; the fast tier's file system has `mib` MiB, and objects may take `size` of it.
    fn new(mib: u32, size: &str) -> Self {
        let lab = TierLab::new(&[("nvm", size), ("ssd", "64M")]);
        lab.mount_memory("nvm", mib);
        let root = lab.make_dir("root");
        busybox_root(&root);
        let script = "cat /usr/lib/part0* > /dev/null";
        ok(lab
            .bootimg()
            .args(["record", "--name", "boot"])
            .arg(&root)
            .args(["--", "sh", "-c", script]));
        let nvm = lab.tier_dir("nvm");
        Self { lab, root, nvm }
    }

    fn prewarm(&self) -> Command {
        let mut command = self.lab.bootimg();
        command.args([
            "prewarm",
            "--tier",
            "nvm",
            "boot",
            "--tiers",
            self.lab.tiers(),
        ]);
        command
    }

    /// Mounts the root, so that every read of it comes to the daemon.
    fn mount(&self, name: &str) -> PathBuf {
        let flags = ["--no-inject", "--tiers", self.lab.tiers()];
        self.lab.mount(&self.root, name, &flags)
    }

    /// Everything is right, wherever it comes from.
    fn assert_same(&self, mountpoint: &Path) {
        let mut diff = Command::new("diff");
        ok(diff
            .args(["-r", "--no-dereference"])
            .args([&self.root, mountpoint]));
    }

    fn boot(&self, mountpoint: &Path) -> Value {
        self.lab.status(mountpoint)["boot"].clone()
    }

    /// The copies in the fast tier's directory, unfinished ones included.
    fn files(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(&self.nvm).unwrap();
        let paths = entries.map(|entry| entry.unwrap().path());
        paths.filter(|path| !path.ends_with("tier")).collect()
    }

    /// What copies are made of.
    fn pools(&self) -> Vec<PathBuf> {
        let is_pool = |path: &PathBuf| path.extension().is_some_and(|it| it == "pool");
        self.files().into_iter().filter(is_pool).collect()
    }
}

#[test]
fn privileged_copy_serves_and_is_kept_while_it_is_open() {
    let t = Tiered::new(64, "50%");
    let said = ok(&mut t.prewarm());
    assert!(said.contains("on nvm, verified"), "{said}");
    assert!(ok(&mut t.prewarm()).contains("already"));
    let objects = t.lab.objects(0);
    assert_eq!((objects.len(), &objects[0]["name"]), (1, &"boot".into()));
    assert_eq!(objects[0]["open"], false);
    // What was brought for a start that is to come does not go before it.
    let plan = json(&mut t.lab.tier(&["plan", "--json"]));
    assert_eq!(plan["moves"], Value::Array(Vec::new()), "{plan}");
    let plot = t.lab.path("tiers.svg");
    ok(t.lab.tier(&["status"]).arg("--plot").arg(&plot));
    let plot = fs::read_to_string(plot).unwrap();
    assert!(
        plot.starts_with("<svg") && plot.contains("<title>boot: "),
        "{plot}"
    );

    let mountpoint = t.mount("mnt");
    t.assert_same(&mountpoint);
    let boot = t.boot(&mountpoint);
    assert_eq!(
        (&boot["tier"], &boot["copy_failures"]),
        (&"nvm".into(), &0.into())
    );
    let object = &t.lab.objects(0)[0];
    assert_eq!(object["open"], true);
    assert!(
        object["heat"].as_f64() > Some(1.9),
        "a mount is a start, and one was expected: {object}"
    );
    fails_with_open(&t);
    assert_eq!(t.lab.objects(0).len(), 1);

    t.lab.umount(&mountpoint);
    until("the daemon to let go of the copy", || {
        t.lab.objects(0)[0]["open"] == false
    });
    ok(&mut t.lab.tier(&["evict", "boot"]));
    assert_eq!(t.files(), [""; 0].map(PathBuf::from));
    let mountpoint = t.mount("again");
    assert_eq!(t.boot(&mountpoint)["tier"], Value::Null);
    t.assert_same(&mountpoint);
}

fn fails_with_open(t: &Tiered) {
    let output = t.lab.tier(&["evict", "boot"]).output().unwrap();
    assert_eq!(output.status.code(), Some(4), "{output:?}");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(said.contains("open on nvm"), "{said}");
}

#[test]
fn privileged_copy_that_rots_or_goes_is_passed_over() {
    let t = Tiered::new(64, "50%");
    ok(&mut t.prewarm());
    // All of the data; the tree is in the other pool, and is read when the copy is opened.
    let data = t.boot_bytes();
    let pools = t.pools().into_iter();
    let segment = pools.max_by_key(|pool| pool.metadata().unwrap().len());
    let rot = fs::File::options().write(true).open(segment.unwrap());
    rot.unwrap().write_all_at(&vec![0xA5; data], 4096).unwrap();
    let mountpoint = t.mount("rotten");
    t.assert_same(&mountpoint);
    let status = t.lab.status(&mountpoint);
    assert_eq!(status["boot"]["tier"], "nvm");
    assert!(
        status["boot"]["copy_failures"].as_u64() > Some(0),
        "{status}"
    );
    assert_eq!(status["boot"]["damaged"], 0);
    assert!(
        status["served"]["hit_bytes"].as_u64() > Some(0),
        "the store has it: {status}"
    );
    // It is made anew, though somebody has the rotten one open.
    assert!(ok(&mut t.prewarm()).contains("verified"));

    // The tier goes away under a mount that has it open.
    let sound = t.mount("sound");
    ok(Command::new("umount").arg("-l").arg(&t.nvm));
    for mountpoint in [&mountpoint, &sound] {
        t.assert_same(mountpoint);
    }
    assert_eq!(t.boot(&sound)["copy_failures"], 0);
    let without = t.mount("without");
    assert_eq!(t.boot(&without)["tier"], Value::Null);
    t.assert_same(&without);
    let status = t.lab.tier_status(0);
    let away = status["away"].as_str().unwrap();
    assert!(away.contains("not mounted"), "{away}");
    let error = fails(1, &mut t.prewarm());
    assert!(error.contains("tier nvm cannot be used"), "{error}");
    assert!(t.files().is_empty(), "the disk below it stays empty");

    // Memory comes back empty, and is the same tier again.
    t.lab.mount_memory("nvm", 64);
    assert_eq!(t.lab.objects(0).len(), 0);
    ok(&mut t.prewarm());
    assert_eq!(t.lab.objects(0).len(), 1);
}

impl Tiered {
    /// Bytes of the data of the boot image.
    fn boot_bytes(&self) -> usize {
        let images = json(self.lab.bootimg().args(["prewarm", "--json", "boot"]));
        usize::try_from(images[0]["bytes"].as_u64().unwrap()).unwrap()
    }
}

#[test]
fn privileged_full_tier_takes_nothing_and_harms_nothing() {
    let t = Tiered::new(1, "64M");
    // Of somebody else: it is left alone.
    let other = t.nvm.join("other");
    fs::write(&other, vec![1; 600 << 10]).unwrap();
    let error = fails(1, &mut t.prewarm());
    assert!(error.contains("file system of tier nvm is full"), "{error}");
    assert_eq!(t.files(), [other]);
    // There is room where it was said that there is not.
    let small = fs::read_to_string(t.lab.tiers())
        .unwrap()
        .replacen("64M", "300K", 1);
    fs::write(t.lab.tiers(), small).unwrap();
    let error = fails(1, &mut t.prewarm());
    assert!(error.contains("tier nvm has 300.0 KiB left"), "{error}");
    // A plan takes what fits where it fits.
    ok(&mut t.lab.tier(&["pin", "boot"]));
    let plan = json(&mut t.lab.tier(&["plan", "--json"]));
    assert_eq!(plan["moves"][0]["tier"], "ssd", "{plan}");
    let mountpoint = t.mount("mnt");
    assert_eq!(t.boot(&mountpoint)["tier"], Value::Null);
    t.assert_same(&mountpoint);
}

#[test]
fn privileged_apply_that_is_killed_leaves_what_was_there() {
    let t = Tiered::new(64, "50%");
    ok(&mut t.lab.tier(&["pin", "boot"]));
    let plan = json(&mut t.lab.tier(&["plan", "--json"]));
    let planned = &plan["moves"][0];
    assert_eq!(planned["move"], "promote");
    assert!(
        planned["hot_files"].as_u64() > Some(9),
        "ten parts were read: {plan}"
    );
    assert!(
        planned["source_bytes"].as_u64() > planned["hot_files_bytes"].as_u64(),
        "{plan}"
    );
    let mut apply = t.lab.tier(&["apply", "--rate", "128K"]);
    let mut apply = apply.stdout(Stdio::null()).spawn().unwrap();
    until("a copy to be half written", || !t.files().is_empty());
    apply.kill().unwrap();
    apply.wait().unwrap();
    assert!(t.lab.objects(0).is_empty(), "it does not count");
    let mountpoint = t.mount("mnt");
    assert_eq!(t.boot(&mountpoint)["tier"], Value::Null);
    t.assert_same(&mountpoint);

    let applied = json(&mut t.lab.tier(&["apply", "--json"]));
    assert_eq!(applied[0]["state"], "done", "{applied}");
    assert_eq!(
        t.files().len(),
        3,
        "an index and two pools, and nothing half written: {:?}",
        t.files()
    );
    let plan = json(&mut t.lab.tier(&["plan", "--json"]));
    assert_eq!(plan["moves"].as_array().unwrap().len(), 0, "{plan}");
    let mountpoint = t.mount("again");
    assert_eq!(t.boot(&mountpoint)["tier"], "nvm");
    t.assert_same(&mountpoint);
}

#[test]
fn privileged_apply_that_is_interrupted_leaves_nothing_and_is_done_again() {
    let t = Tiered::new(64, "50%");
    ok(&mut t.lab.tier(&["pin", "boot"]));
    // Ten seconds for the copy, and none of the signals ignored that a shell ignored before us.
    let slow = t.lab.tier(&["apply", "--rate", "64K"]);
    let mut apply = Command::new("env");
    apply
        .arg("--default-signal=INT")
        .arg(slow.get_program())
        .args(slow.get_args())
        .envs(
            slow.get_envs()
                .filter_map(|(name, value)| Some((name, value?))),
        );
    let mut apply = apply.stdout(Stdio::null()).spawn().unwrap();
    until("a copy to be half written", || !t.files().is_empty());
    signal_to(apply.id(), Signal::SIGINT);
    assert_eq!(apply.wait().unwrap().code(), Some(130));
    assert_eq!(t.files(), [""; 0].map(PathBuf::from), "nothing is left");
    assert!(t.lab.objects(0).is_empty(), "nothing counts");
    let left = fs::read_dir(t.lab.store()).unwrap();
    let left = left.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let left: Vec<_> = left.filter(|name| name.ends_with(".tier")).collect();
    assert_eq!(left, [""; 0], "neither in the store");

    let applied = json(&mut t.lab.tier(&["apply", "--json"]));
    assert_eq!(applied[0]["state"], "done", "{applied}");
    assert_eq!((t.files().len(), t.lab.objects(0).len()), (3, 1));
    let mountpoint = t.mount("mnt");
    assert_eq!(t.boot(&mountpoint)["tier"], "nvm");
    t.assert_same(&mountpoint);
    t.lab.umount(&mountpoint);
}

#[test]
fn privileged_prewarm_that_is_interrupted_leaves_nothing_and_is_done_again() {
    let t = Tiered::new(64, "100%");
    let root = t.lab.path("large");
    busybox_root(&root);
    // No block is like another, nor zero.
    let blocks: Vec<u8> = (1..6000_u32)
        .flat_map(|number| number.to_le_bytes().repeat(1024))
        .collect();
    fs::write(root.join("usr/lib/blocks"), blocks).unwrap();
    let mut record = t.lab.bootimg();
    record.args(["record", "--name", "large"]).arg(&root);
    ok(record.args(["--", "sh", "-c", "cat /usr/lib/blocks > /dev/null"]));
    let mut prewarm = Command::new("env");
    prewarm
        .args(["--default-signal=INT", env!("CARGO_BIN_EXE_bootimg")])
        .args(["prewarm", "--tier", "nvm", "large"])
        .args(["--tiers", t.lab.tiers()])
        .env("YOLOFS_STORE", t.lab.store())
        .stdout(Stdio::null());
    // It is stopped when it has begun to write, and told to end. One that had written its last
    // piece by then is done: that is for the next try.
    let interrupted = (0..20).any(|_| {
        let mut child = prewarm.spawn().unwrap();
        until("a copy to be begun, or to be there", || {
            !t.pools().is_empty() || child.try_wait().unwrap().is_some()
        });
        if child.try_wait().unwrap().is_none() {
            for signal in [Signal::SIGSTOP, Signal::SIGINT, Signal::SIGCONT] {
                signal_to(child.id(), signal);
            }
        }
        let code = child.wait().unwrap().code();
        if code == Some(0) {
            ok(&mut t.lab.tier(&["evict", "large"]));
        } else {
            assert_eq!(code, Some(130));
        }
        assert_eq!(t.files(), [""; 0].map(PathBuf::from), "nothing is left");
        assert!(t.lab.objects(0).is_empty(), "nothing counts");
        code == Some(130)
    });
    assert!(interrupted, "none of them could be interrupted");
    let said = ok(prewarm.stdout(Stdio::piped()));
    assert!(said.contains("on nvm, verified"), "{said}");
    assert_eq!(t.lab.objects(0).len(), 1);
}

#[test]
fn privileged_node_moves_what_was_started_and_its_workers_serve_from_there() {
    let t = Tiered::new(64, "50%");
    let service = Service::start(&t.lab);
    let first = t.lab.mount(&t.root, "first", &["--no-inject"]);
    t.assert_same(&first);
    until("the node to bring it to the fast tier", || {
        service.node()["tiers"][0]["objects"] == 1
    });
    let tier = service.node()["tiers"][0].clone();
    assert_eq!(
        (&tier["name"], &tier["away"]),
        (&"nvm".into(), &Value::Null)
    );
    until("the node to count it", || {
        let tier = service.node()["tiers"][0].clone();
        tier["used_bytes"].as_u64() > Some(0) && tier["moved_bytes"] == tier["used_bytes"]
    });
    t.lab.umount(&first);

    // Its worker is nobody in particular, and may make no file.
    let again = t.lab.mount(&t.root, "again", &["--no-inject"]);
    until("its worker to tell", || t.boot(&again)["tier"] == "nvm");
    t.assert_same(&again);
    until("its worker to tell again", || {
        t.boot(&again)["copy_failures"] == 0
    });
    fails_with_open(&t);
    // So does its successor.
    service.kill_worker(&again, Signal::SIGKILL);
    until("its successor to tell", || t.boot(&again)["tier"] == "nvm");
    t.assert_same(&again);
    t.lab.umount(&again);
}
