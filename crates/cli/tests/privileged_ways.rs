//! Which way hot files go to a tier: whole where mounts pass them through, and by blocks.

#![cfg(feature = "privileged")]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use serde_json::Value;

use lab::service::Service;
use lab::tiers::TierLab;
use lab::{busybox_root, json, noise, ok, until};

/// A lab with a tier.
struct Ways {
    lab: TierLab,
}

impl Ways {
    fn new() -> Self {
        let lab = TierLab::new(&[("nvm", "64M")]);
        Self { lab }
    }

    /// A tree of which most of a library, a part of another, and all of a program are read.
    fn tree(&self) -> PathBuf {
        let root = self.lab.make_dir("tree");
        busybox_root(&root);
        fs::write(root.join("library"), noise(1, 1 << 20)).unwrap();
        fs::write(root.join("part"), noise(2, 1 << 20)).unwrap();
        fs::write(root.join("short"), noise(3, 100 << 10)).unwrap();
        let script = [b"#!/bin/cat\n".to_vec(), noise(4, 512 << 10)].concat();
        fs::write(root.join("script"), script).unwrap();
        fs::set_permissions(root.join("script"), fs::Permissions::from_mode(0o755)).unwrap();
        let script = "cat /library /short /script >/dev/null; head -c 100000 /part >/dev/null";
        ok(self
            .lab
            .bootimg()
            .args(["record", "--name", "tree"])
            .arg(&root)
            .args(["--", "sh", "-c", script]));
        root
    }

    /// A disk image of which a boot reads all.
    fn disk(&self, name: &str, content: &[u8]) -> PathBuf {
        let disk = self.lab.make_dir(name).join("disk.raw");
        fs::write(&disk, content).unwrap();
        let log = self.lab.path(&format!("{name}.log"));
        let len = content.len();
        let line = format!("blk_co_preadv blk 0x1 bs 0x2 offset 0 bytes {len} flags 0x0\n");
        fs::write(&log, line).unwrap();
        let mut from_trace = self.lab.bootimg();
        from_trace.arg("from-trace").arg(&disk);
        ok(from_trace.arg("--qemu").arg(log).args(["--name", name]));
        disk
    }

    fn mount(&self, source: &Path, name: &str, flags: &[&str]) -> PathBuf {
        let flags = [flags, &["--wait-prewarm", "--tiers", self.lab.tiers()]].concat();
        self.lab.mount(source, name, &flags)
    }

    /// Mounts a source once, so that it is hot and it is known how it is served.
    fn start(&self, source: &Path, flags: &[&str]) {
        let mountpoint = self.mount(source, "start", flags);
        self.lab.umount(&mountpoint);
        fs::remove_dir(mountpoint).unwrap();
    }

    /// The moves of the plan, by the names of what is moved, without its directories.
    fn plan(&self) -> Vec<(String, Value)> {
        let plan = json(&mut self.lab.tier(&["plan", "--json"]));
        let moves = plan["moves"].as_array().unwrap().clone().into_iter();
        let named = moves.map(|step| {
            let name = step["name"].as_str().unwrap();
            let name = name.rsplit('/').next().unwrap().to_owned();
            (name, step)
        });
        let mut named: Vec<_> = named.collect();
        named.sort_by(|a, b| a.0.cmp(&b.0));
        named
    }
}

fn names(moves: &[(String, Value)]) -> Vec<&str> {
    moves.iter().map(|(name, _)| name.as_str()).collect()
}

#[test]
fn privileged_files_that_starts_read_most_of_go_whole_where_they_are_passed_through() {
    let ways = Ways::new();
    let root = ways.tree();
    // A container's tree: nobody asks when a file is opened.
    ways.start(&root, &[]);
    let plan = ways.plan();
    assert_eq!(names(&plan), ["tree"]);
    let blocks = &plan[0].1["block_files"];
    assert!(blocks["opens unasked"].as_u64() >= Some(5), "{plan:?}");

    ways.start(&root, &["--mode", "disk"]);
    let plan = ways.plan();
    assert_eq!(names(&plan), ["library", "tree"]);
    let (library, tree) = (&plan[0].1, &plan[1].1);
    assert_eq!(library["way"], "whole");
    assert_eq!(library["hot_of"], "tree");
    assert_eq!(library["bytes"], 1 << 20);
    assert_eq!(
        (&tree["way"], &tree["whole_files"]),
        (&"blocks".into(), &1.into())
    );
    let blocks = &tree["block_files"];
    assert!(blocks["read in part"].as_u64() >= Some(1), "{blocks}");
    assert!(blocks["program"].as_u64() >= Some(1), "{blocks}");
    assert!(blocks["short"].as_u64() >= Some(1), "{blocks}");
    let said = ok(&mut ways.lab.tier(&["plan"]));
    assert!(
        said.contains("library goes whole: starts of tree read most of it"),
        "{said}"
    );

    let applied = json(&mut ways.lab.tier(&["apply", "--json"]));
    let states = applied.as_array().unwrap().iter().map(|one| &one["state"]);
    assert!(states.eq(["done", "done"]), "{applied}");
    assert_eq!(names(&ways.plan()), [""; 0]);
    let objects = ways.lab.objects(0);
    let mut found: Vec<_> = objects
        .iter()
        .map(|object| object["way"].as_str())
        .collect();
    found.sort_unstable();
    assert_eq!(found, [Some("blocks"), Some("whole")]);

    // The kernel reads the library itself; the other files are in the page cache, of the boot image.
    let mountpoint = ways.mount(&root, "mnt", &["--mode", "disk"]);
    let opens = || ways.lab.status(&mountpoint)["served"]["copy_opens"].as_u64();
    let before = opens().unwrap();
    for name in ["library", "short", "script"] {
        let found = fs::read(mountpoint.join(name)).unwrap();
        assert!(
            found == fs::read(root.join(name)).unwrap(),
            "{name} differs"
        );
    }
    assert_eq!(opens(), Some(before + 1));
    let status = ways.lab.status(&mountpoint);
    assert_eq!(status["boot"]["tier"], "nvm");
    assert_eq!(status["served"]["fallthrough_bytes"], 0, "{status}");
    ways.lab.umount(&mountpoint);

    // What changed is not what was read.
    fs::write(root.join("library"), noise(5, 1 << 20)).unwrap();
    assert_eq!(names(&ways.plan()), ["library"]);
    assert_eq!(ways.plan()[0].1["move"], "demote");
}

#[test]
fn privileged_the_node_brings_whole_files_until_its_own_mounts_pass_none() {
    let ways = Ways::new();
    let root = ways.tree();
    ways.start(&root, &["--mode", "disk"]);
    let service = Service::start(&ways.lab);
    until("the node to bring the library and the boot image", || {
        let objects = ways.lab.objects(0);
        let found = |way: &str| objects.iter().any(|object| object["way"] == way);
        found("whole") && found("blocks")
    });
    let mountpoint = ways.lab.mount(&root, "own", &["--no-inject"]);
    // The node looks whether anybody has it open, and has it open as long as it looks.
    until("the library to go", || {
        let mut evict = ways.lab.tier(&["evict"]);
        evict
            .arg(root.join("library"))
            .output()
            .unwrap()
            .status
            .success()
    });
    let plan = ways.plan();
    assert!(!names(&plan).contains(&"library"), "{plan:?}");
    ways.lab.umount(&mountpoint);
    drop(service);
}

#[test]
fn privileged_a_disk_image_that_is_read_whole_needs_no_copy_of_its_blocks() {
    let ways = Ways::new();
    let disk = ways.disk("full", &noise(1, 1 << 20));
    // Zeros take no room as blocks.
    let zeros = ways.disk("zeros", &vec![0; 1 << 20]);
    ways.start(&disk, &[]);
    ways.start(&zeros, &[]);
    let plan = ways.plan();
    assert_eq!(names(&plan), ["disk.raw", "zeros"]);
    assert_eq!(plan[0].1["hot_of"], "full");
    ok(&mut ways.lab.tier(&["apply"]));
    assert_eq!(names(&ways.plan()), [""; 0]);

    let mountpoint = ways.mount(&disk, "mnt", &[]);
    let counts = || {
        let served = ways.lab.status(&mountpoint)["served"].clone();
        [&served["copy_opens"], &served["requests"]["read"]].map(|of| of.as_u64().unwrap())
    };
    let [before, reads] = counts();
    let found = fs::read(mountpoint.join("disk.raw")).unwrap();
    assert!(found == fs::read(&disk).unwrap());
    assert_eq!(counts(), [before + 1, reads], "the kernel read the copy");
    ways.lab.umount(&mountpoint);
    // A copy of its blocks that somebody asked for goes again, unless it is pinned.
    ok(ways.lab.bootimg().args([
        "prewarm",
        "--tier",
        "nvm",
        "full",
        "--tiers",
        ways.lab.tiers(),
    ]));
    assert_eq!(names(&ways.plan()), ["full"]);
    ok(&mut ways.lab.tier(&["pin", "full"]));
    assert_eq!(names(&ways.plan()), [""; 0]);
}
