//! Container images as sources of the block service: what is mounted from it is compared, byte by
//! byte, with what an engine would have unpacked.

#![cfg(feature = "privileged")]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod nic;

use std::collections::BTreeSet;
use std::fs;
use std::ops::ControlFlow;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::process::Command;

use lab::{Lab, busybox_root, fails, images, json, noise, ok};
use nic::BlockServer;
use oci::unpack::{Limits, unpack};
use oci::{Image, Platform};
use serde_json::{Value, json as value};
use testkit::layouts::{LayoutDir, named};

/// Layers of an image on each other, as overlayfs shows them; unmounted when it is dropped.
struct Overlay(PathBuf);

impl Overlay {
    fn of(lab: &Lab, image: &Image) -> Self {
        let mut lower = Vec::new();
        for (number, layer) in image.layers.iter().enumerate() {
            let dir = lab.make_dir(&format!("unpacked{number}"));
            let go_on = &mut |_| ControlFlow::Continue(());
            unpack(layer, &dir, &Limits::default(), go_on).unwrap();
            lower.insert(0, dir.display().to_string());
        }
        // The kernel wants two at least.
        lower.push(lab.make_dir("empty").display().to_string());
        let at = lab.make_dir("overlay");
        let options = format!("lowerdir={}", lower.join(":"));
        ok(Command::new("mount")
            .args(["-t", "overlay", "overlay", "-o", &options])
            .arg(&at));
        Self(at)
    }
}

impl Drop for Overlay {
    fn drop(&mut self) {
        let _unmounted = Command::new("umount").arg(&self.0).status();
    }
}

/// Compares two trees: names, kinds, modes, owners, times, targets, devices, and every byte.
fn same(left: &Path, right: &Path) {
    let names = |dir: &Path| {
        let entries = fs::read_dir(dir).unwrap();
        let names = entries.map(|entry| entry.unwrap().file_name());
        names.collect::<BTreeSet<_>>()
    };
    let all = names(left);
    assert_eq!(all, names(right), "{}", left.display());
    for name in all {
        let (left, right) = (left.join(&name), right.join(&name));
        let what = |path: &Path| {
            let found = path.symlink_metadata().unwrap();
            let target = fs::read_link(path).ok();
            // Directories are as long as their file system likes.
            let size = (!found.is_dir()).then_some(found.size());
            let owner = (found.uid(), found.gid(), found.mode());
            // A whiteout is as old as whoever made it.
            let is_whiteout = found.file_type().is_char_device() && found.rdev() == 0;
            let time = (!is_whiteout).then(|| (found.mtime(), found.mtime_nsec()));
            (owner, time, found.rdev(), size, target)
        };
        assert_eq!(what(&left), what(&right), "{}", left.display());
        let kind = left.symlink_metadata().unwrap().file_type();
        if kind.is_dir() {
            same(&left, &right);
        } else if kind.is_file() {
            let equal = fs::read(&left).unwrap() == fs::read(&right).unwrap();
            assert!(equal, "{}", left.display());
        }
    }
}

fn open(layout: &Path, tag: &str) -> Image {
    oci::layout::open(layout, Some(tag), &Platform::host()).unwrap()
}

fn import(server: &BlockServer, source: &str, name: &str) -> Value {
    let mut import = server.ask("import");
    json(import.args(["--json", "--name", name, source]))
}

#[test]
fn privileged_real_images_run_from_the_service_alone() {
    let lab = Lab::new();
    let server = BlockServer::start(&lab.path("nic"), &lab.path("nic.sock"));
    let layout = images().join("oci");
    let source = |tag: &str| format!("oci:{}:{tag}", layout.display());
    let redis = import(&server, &source("redis"), "docker.io/library/redis:7");
    let python = import(&server, &source("python"), "docker.io/library/python:3.12");
    for taken in [&redis, &python] {
        assert_eq!(taken["absent_chunks"], 0, "{taken}");
    }
    // Their lowest layer is one, and was read once.
    assert_eq!(redis["layers"][0], python["layers"][0]);
    let own: u64 = python["layers"].as_array().unwrap()[1..]
        .iter()
        .map(|layer| layer["bytes"].as_u64().unwrap())
        .sum();
    assert!(python["new_bytes"].as_u64().unwrap() <= own, "{python}");
    let again = import(&server, &source("redis"), "docker.io/library/redis:7");
    assert_eq!(
        (&again["index"], &again["new_bytes"]),
        (&redis["index"], &value!(0))
    );
    for (tag, name, run) in [
        (
            "redis",
            "nic:docker.io/library/redis:7",
            &["redis-server", "--version"][..],
        ),
        (
            "python",
            "nic:docker.io/library/python:3.12",
            &["python3", "-c", "import json, ssl; print('runs')"],
        ),
    ] {
        let image = open(&layout, tag);
        let mounted = lab.mount(Path::new(name), tag, &["--nic", &server.address]);
        let said = ok(Command::new("chroot").arg(&mounted).args(run));
        assert!(said.contains("Redis server") || said == "runs\n", "{said}");
        let status = lab.status(&mounted);
        assert_eq!(status["nic"]["failed_reads"], 0, "{status}");
        if tag == "redis" {
            let overlay = Overlay::of(&lab, &image);
            same(&overlay.0, &mounted);
        }
        lab.umount(&mounted);
    }
}

/// A tar with all that layers say of each other.
fn tar_of(entries: &[Made<'_>]) -> Vec<u8> {
    let mut tar = tar::Builder::new(Vec::new());
    for (made, number) in entries.iter().zip(0..) {
        let mut header = tar::Header::new_ustar();
        header.set_mtime(1_700_000_000 + number);
        header.set_uid(number);
        header.set_mode(made.mode);
        header.set_entry_type(made.kind);
        header.set_size(made.content.len() as u64);
        if made.kind == tar::EntryType::Char {
            header.set_device_major(1).unwrap();
            header.set_device_minor(3).unwrap();
        }
        match made.target {
            "" => tar
                .append_data(&mut header, made.name, made.content)
                .unwrap(),
            target => tar.append_link(&mut header, made.name, target).unwrap(),
        }
    }
    tar.into_inner().unwrap()
}

struct Made<'a> {
    name: &'a str,
    kind: tar::EntryType,
    mode: u32,
    target: &'a str,
    content: &'a [u8],
}

fn dir(name: &str) -> Made<'_> {
    entry(name, tar::EntryType::Directory, 0o750)
}

fn file<'a>(name: &'a str, content: &'a [u8]) -> Made<'a> {
    let made = entry(name, tar::EntryType::Regular, 0o644);
    Made { content, ..made }
}

fn link<'a>(name: &'a str, kind: tar::EntryType, target: &'a str) -> Made<'a> {
    Made {
        target,
        ..entry(name, kind, 0o777)
    }
}

const fn entry(name: &str, kind: tar::EntryType, mode: u32) -> Made<'_> {
    Made {
        name,
        kind,
        mode,
        target: "",
        content: b"",
    }
}

#[test]
fn privileged_layers_hide_what_they_say_they_hide() {
    use tar::EntryType::{Char, Fifo, Link, Regular, Symlink};
    let lab = Lab::new();
    let long = noise(5, 300_000);
    let lowest = tar_of(&[
        dir("etc/"),
        file("etc/a", b"one"),
        link("etc/b", Link, "etc/a"),
        dir("gone/"),
        file("gone/deep", b"lower"),
        dir("opaque/"),
        file("opaque/old", b"lower"),
        dir("opaque/sub/"),
        file("opaque/sub/old", b"lower"),
        dir("kept/"),
        file("kept/long", &long),
        link("way", Symlink, "kept"),
        file("way/through", b"a link in its own layer is followed"),
        entry("null", Char, 0o666),
        entry("pipe", Fifo, 0o600),
        file("becomes-dir", b"lower"),
        dir("becomes-file/"),
        file("becomes-file/x", b"lower"),
        Made {
            mode: 0o4755,
            ..entry("suid", Regular, 0)
        },
    ]);
    let middle = tar_of(&[
        dir("etc/"),
        file("etc/.wh.a", b""),
        file(".wh.gone", b""),
        dir("opaque/"),
        file("opaque/.wh..wh..opq", b""),
        file("opaque/new", b"middle"),
        dir("becomes-dir/"),
        file("becomes-dir/inside", b"middle"),
        file("becomes-file", b"middle"),
        file("kept/short", b"middle"),
        Made {
            mode: 0o700,
            ..dir("kept/")
        },
    ]);
    let upper = tar_of(&[
        dir("gone/"),
        file("gone/anew", &long[..131_072]),
        dir("opaque/"),
        file("opaque/.wh.new", b""),
        file("empty", b""),
        file("zeros", &[0; 200_000]),
    ]);
    let layout = lab.make_dir("layout");
    let written = LayoutDir(&layout);
    written.start();
    let manifest = written.image(&[lowest, middle, upper], &value!({}));
    written.index(&[named(manifest, "v1")]);
    let server = BlockServer::start(&lab.path("nic"), &lab.path("nic.sock"));
    let taken = import(&server, &format!("oci:{}", layout.display()), "it");
    assert_eq!(taken["layers"].as_array().unwrap().len(), 3, "{taken}");
    let mounted = lab.mount(Path::new("nic:it"), "mnt", &["--nic", &server.address]);
    let overlay = Overlay::of(&lab, &open(&layout, "v1"));
    same(&overlay.0, &mounted);
    lab.umount(&mounted);
    // And a layer alone is what engines put below others.
    let lowest = taken["layers"][1]["name"].as_str().unwrap();
    let source = format!("nic:{lowest}");
    let mounted = lab.mount(Path::new(&source), "layer", &["--nic", &server.address]);
    same(&lab.path("unpacked1"), &mounted);
    lab.umount(&mounted);
}

#[test]
fn privileged_sources_are_taken_while_the_service_runs() {
    let lab = Lab::new();
    let root = lab.make_dir("root");
    busybox_root(&root);
    let server = BlockServer::start(&lab.path("nic"), &lab.path("nic.sock"));
    let path = root.to_str().unwrap();
    let first = import(&server, path, "a root/with any name & more");
    assert!(first["new_bytes"].as_u64().unwrap() > 600_000, "{first}");
    let second = import(&server, path, "root");
    assert_eq!(second["new_bytes"], 0, "{second}");
    let mounted = lab.mount(Path::new("nic:root"), "mnt", &["--nic", &server.address]);
    same(&root, &mounted);
    lab.umount(&mounted);
    let why = fails(1, server.ask("import").arg(path));
    assert!(why.contains("--name"), "{why}");
    // Directly, it would have to be nobody else's.
    let mut direct = Command::new(env!("CARGO_BIN_EXE_nicfetch"));
    direct.args(["import", "--name", "root", path, "--store"]);
    let why = fails(1, direct.arg(lab.path("nic")));
    assert!(why.contains("opening the chunks"), "{why}");
    let raw = nic::operate(&server.admin, "POST", "/v1/chunks?id=00", &[]);
    assert_eq!(raw.status, 400);
}
