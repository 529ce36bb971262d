//! Which snapshots of engines are first boots, and which only look like one: Docker 29 with containerd's image store
//! prepares a snapshot for its own files before it makes that of the container, and BuildKit runs steps in snapshots that
//! it commits.

#![cfg(feature = "privileged")]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod node;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use lab::{Lab, ok, until};
use nix::fcntl::{PosixFadviseAdvice, posix_fadvise};
use node::{Node, archive};
use rawio::cached::cached_pages;

/// What `docker run` calls a container.
const CONTAINER: &str = "8f3c0d54b6a1e2978f3c0d54b6a1e2978f3c0d54b6a1e2978f3c0d54b6a1e297";

/// A snapshot's root, mounted as its engine does; unmounted when it is dropped.
struct Root(PathBuf);

impl Root {
    fn mount(lab: &Lab, node: &Node<'_>, snapshot: &str) -> Self {
        let at = lab.make_dir(&format!("root-{snapshot}"));
        let command = node.ctr(&["snapshots", "mounts", at.to_str().unwrap(), snapshot]);
        ok(Command::new("sh").args(["-c", &command]));
        Self(at)
    }

    fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Root {
    fn drop(&mut self) {
        let _gone = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

/// The snapshot of the whole image: nothing else has it as its parent's child.
fn image_snapshot(node: &Node<'_>) -> String {
    let list = node.ctr(&["snapshots", "ls"]);
    let rows: Vec<Vec<&str>> = list
        .lines()
        .skip(1)
        .map(|line| line.split_whitespace().collect())
        .collect();
    let is_parent = |key: &str| rows.iter().any(|row| row.len() == 3 && row[1] == key);
    let top = rows.iter().find(|row| !is_parent(row[0]));
    top.unwrap()[0].to_owned()
}

fn node(lab: &Lab) -> Node<'_> {
    let node = Node::start(lab, &["--auto-record", "--until", "quiet:0.2"]);
    let archive = archive(lab, 3_000_000);
    node.ctr(&["images", "import", archive.to_str().unwrap()]);
    node
}

#[test]
fn privileged_what_docker_prepares_is_no_boot_and_its_container_is_one() {
    let lab = Lab::new();
    let node = node(&lab);
    let image = image_snapshot(&node);
    let init = format!("{CONTAINER}-init");
    let key = format!("{init}-key");
    node.ctr(&["snapshots", "prepare", &key, &image]);
    {
        let root = Root::mount(&lab, &node, &key);
        fs::create_dir_all(root.path().join("etc")).unwrap();
        fs::write(root.path().join("etc/hostname"), "").unwrap();
    }
    node.ctr(&["snapshots", "commit", &init, &key]);
    assert_eq!(node.first_boot(&key).0, "", "it was taken for a boot");
    node.ctr(&["snapshots", "prepare", CONTAINER, &init]);
    let content = {
        let root = Root::mount(&lab, &node, CONTAINER);
        assert_eq!(node.first_boot(CONTAINER).0, "recording");
        fs::read(root.path().join("etc/hostname")).unwrap();
        fs::read(root.path().join("srv/noise")).unwrap()
    };
    assert_eq!(content.len(), 3_000_000);
    until("the boot to be kept", || {
        node.first_boot(CONTAINER).0 == "recorded"
    });
    until("both layers to be served", || node.served() == 2);
    node.ctr(&["snapshots", "rm", CONTAINER]);
    // The next container of the image has nothing to read from the disk.
    node.ctr(&["snapshots", "prepare", "next", &init]);
    let lowers = node.ctr(&["snapshots", "mounts", "/mnt", "next"]);
    assert_eq!(lowers.matches("/root/served/").count(), 2, "{lowers}");
    node.ctr(&["snapshots", "rm", "next"]);
}

#[test]
fn privileged_a_container_that_reads_nothing_is_no_boot() {
    let lab = Lab::new();
    let node = node(&lab);
    let image = image_snapshot(&node);
    node.ctr(&["snapshots", "prepare", "created", &image]);
    {
        let root = Root::mount(&lab, &node, "created");
        fs::metadata(root.path().join("srv/noise")).unwrap();
    }
    node.ctr(&["snapshots", "rm", "created"]);
    until("its end to be noticed", || {
        node.first_boot("created").0 == "failed"
    });
    let (_, why) = node.first_boot("created");
    assert_eq!(why["why"], "nothing was read");
    // So the next one is recorded.
    node.ctr(&["snapshots", "prepare", "started", &image]);
    let root = Root::mount(&lab, &node, "started");
    fs::read(root.path().join("srv/greeting")).unwrap();
    until("the boot to be kept", || {
        node.first_boot("started").0 == "recorded"
    });
    drop(root);
    node.ctr(&["snapshots", "rm", "started"]);
}

#[test]
fn privileged_a_step_of_a_build_is_no_boot() {
    let lab = Lab::new();
    let node = Node::start(&lab, &["--auto-record", "--until", "after:60"]);
    let archive = archive(&lab, 100_000);
    node.ctr(&["images", "import", archive.to_str().unwrap()]);
    let image = image_snapshot(&node);
    node.ctr(&["snapshots", "prepare", "step", &image]);
    {
        let root = Root::mount(&lab, &node, "step");
        fs::read(root.path().join("srv/noise")).unwrap();
        fs::write(root.path().join("built"), "new").unwrap();
    }
    node.ctr(&["snapshots", "commit", "built", "step"]);
    until("its end to be noticed", || {
        node.first_boot("step").0 == "failed"
    });
    let (_, why) = node.first_boot("step");
    assert_eq!(why["why"], "its snapshot was committed: it was no boot");
    until("its recorders to go", || node.mounts().is_empty());
    node.ctr(&["snapshots", "rm", "built"]);
}

#[test]
fn privileged_pages_that_the_kernel_dropped_are_there_again_for_the_next_container() {
    let lab = Lab::new();
    let node = node(&lab);
    let image = image_snapshot(&node);
    node.ctr(&["snapshots", "prepare", "first", &image]);
    {
        let root = Root::mount(&lab, &node, "first");
        fs::read(root.path().join("srv/noise")).unwrap();
        until("the boot to be kept", || {
            node.first_boot("first").0 == "recorded"
        });
    }
    until("both layers to be served", || {
        node.served() == 2 && node.is_warm()
    });
    let served = node
        .mounts()
        .into_iter()
        .filter(|at| at.contains("/served/"));
    let noise = served.map(|at| Path::new(&at).join("srv/noise"));
    let noise = noise
        .into_iter()
        .find_map(|at| fs::File::open(at).ok())
        .unwrap();
    let cached = || cached_pages(&noise, 0, 3_000_000).unwrap();
    until("the file to be in the page cache", || cached() == 733);
    until("the kernel to drop it", || {
        posix_fadvise(&noise, 0, 0, PosixFadviseAdvice::POSIX_FADV_DONTNEED).unwrap();
        cached() == 0
    });
    node.ctr(&["snapshots", "prepare", "next", &image]);
    until("it to be there again", || cached() == 733);
}
