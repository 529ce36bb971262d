//! `bootimg prewarm` warms every mount that uses a boot image, whoever serves it.

#![cfg(feature = "privileged")]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod node;

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use lab::dockerd::Dockerd;
use lab::service::Service;
use lab::{Lab, json, noise, ok, until};
use nix::fcntl::{PosixFadviseAdvice, posix_fadvise};
use node::{IMAGE, Node, archive};
use testkit::undisturbed::undisturbed;

/// Returns the files below a directory.
fn files(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).unwrap() {
        let entry = entry.unwrap();
        let kind = entry.file_type().unwrap();
        if kind.is_dir() {
            found.extend(files(&entry.path()));
        } else if kind.is_file() {
            found.push(entry.path());
        }
    }
    found
}

/// Has the kernel forget the content of all files below a directory.
fn forget(dir: &Path) {
    for path in files(dir) {
        let file = File::open(path).unwrap();
        posix_fadvise(&file, 0, 0, PosixFadviseAdvice::POSIX_FADV_DONTNEED).unwrap();
    }
}

/// Prewarms boot images; each of the places is warmed with so many bytes at least, and then read
/// without a request to whoever serves it. `reads` counts these.
fn warms(lab: &Lab, images: &[&str], places: &[(PathBuf, u64)], reads: impl Fn() -> u64) {
    for (place, _) in places {
        forget(place);
    }
    let warmed = json(lab.bootimg().args(["prewarm", "--json"]).args(images));
    let images = warmed.as_array().unwrap().iter();
    let mounts: Vec<_> = images
        .flat_map(|image| image["mounts"].as_array().unwrap().clone())
        .collect();
    let wanted: BTreeSet<_> = places
        .iter()
        .map(|(place, _)| place.to_str().unwrap())
        .collect();
    let found = mounts
        .iter()
        .map(|mount| mount["mountpoint"].as_str().unwrap());
    assert_eq!(found.collect::<BTreeSet<_>>(), wanted, "{warmed}");
    for (place, bytes) in places {
        let at = |mount: &&serde_json::Value| mount["mountpoint"] == place.to_str().unwrap();
        let injected = mounts.iter().find(at).unwrap()["injected_bytes"].as_u64();
        assert!(
            injected >= Some(*bytes),
            "{}: {bytes}\n{warmed}",
            place.display()
        );
    }
    let before = reads();
    for path in places.iter().flat_map(|(place, _)| files(place)) {
        fs::read(path).unwrap();
    }
    assert_eq!(reads(), before, "all of it was in memory");
}

/// Sums the reads that layers were asked for.
fn reads_of(status: &serde_json::Value) -> u64 {
    let layers = status["layers"].as_array().unwrap().iter();
    layers
        .map(|layer| layer["served"]["requests"]["read"].as_u64().unwrap_or(0))
        .sum()
}

/// Returns how many bytes the files below a directory have.
fn bytes(dir: &Path) -> u64 {
    files(dir)
        .iter()
        .map(|path| path.metadata().unwrap().size())
        .sum()
}

#[test]
fn privileged_prewarm_warms_layers_that_docker_has() {
    let lab = Lab::new();
    let docker = Dockerd::start(&lab, &[]);
    docker.import_base(&lab);
    docker.build(&lab, "app", "base");
    docker.record(&lab, "app");
    ok(&mut docker.yolofs(&lab, &["attach", "app"]));
    until("the layers to be warm", || docker.is_warm(&lab));
    let layers = docker.layers("app");
    assert_eq!(docker.mounts().len(), layers.len());
    let images: Vec<_> = layers.iter().map(|(image, _)| image.as_str()).collect();
    let places = layers.iter().map(|(_, dir)| (dir.clone(), bytes(dir)));
    let places: Vec<_> = places.collect();
    undisturbed(|| warms(&lab, &images, &places, || reads_of(&docker.status(&lab))));
    ok(&mut docker.yolofs(&lab, &["detach", "--all"]));
}

#[test]
fn privileged_prewarm_warms_layers_that_containerd_has() {
    let lab = Lab::new();
    let node = Node::start(&lab, &["--auto-record", "--until", "quiet:0.5"]);
    let archive = archive(&lab, 300_000);
    node.ctr(&["images", "import", archive.to_str().unwrap()]);
    let read_all = "find /bin /etc /usr /srv -type f -exec cat {} + | md5sum";
    node.run(&[], "first", read_all);
    until("both layers to be served", || node.served() == 2);
    until("the layers to be warm", || node.is_warm());
    until("the recorders to go", || node.mounts().len() == 2);
    let places = node.mounts().into_iter().map(|place| {
        let place = PathBuf::from(place);
        let bytes = bytes(&place);
        (place, bytes)
    });
    let places: Vec<_> = places.collect();
    undisturbed(|| warms(&lab, &[IMAGE], &places, || reads_of(&node.status())));
}

#[test]
fn privileged_prewarm_warms_mounts_of_the_node_and_of_daemons() {
    let lab = Lab::new();
    let source = lab.make_dir("source");
    for file in 0..5 {
        fs::write(source.join(file.to_string()), noise(file, 100_000)).unwrap();
    }
    let read_all = "cat $YOLOFS_MNT/* >/dev/null";
    let mut record = lab.bootimg();
    record.args(["record", "--no-chroot", "--name", "all"]);
    ok(record.arg(&source).args(["--", "sh", "-c", read_all]));
    let _service = Service::start(&lab);
    let flags = ["--boot", "all", "--wait-prewarm"];
    let by_node = lab.mount(&source, "by-node", &flags);
    let alone = lab.mount(&source, "alone", &[&flags[..], &["--standalone"]].concat());
    let places = [&by_node, &alone].map(|place| (place.clone(), bytes(place)));
    undisturbed(|| {
        warms(&lab, &["all"], &places, || {
            lab.requests(&by_node, "read") + lab.requests(&alone, "read")
        });
    });
    lab.umount(&by_node);
    lab.umount(&alone);
}
