//! Container images become block images that another machine mounts, with every file as it was.

#![cfg(feature = "privileged")]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod block_content;
mod block_export;
mod block_layers;
mod block_node;

use std::collections::HashMap;
use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::process::Command;

use block_content::{configured, roots_of};
use block_export::{Process, arg, export, succeeds, yolofs};
use block_layers::{Mounted, first_difference, lower, seen, unpacked, upper};
use block_node::Node;
use blocks::Digest;
use oci::digest_of;
use serde_json::json;
use testkit::layouts::{LayoutDir, named};
use testkit::registries::{Kind, Registry};

/// An EROFS that is mounted from the file of an export.
struct Elsewhere {
    mounted: Mounted,
    /// Ends after the file system on it.
    _server: Process,
    /// What a server leaves that was killed.
    _export: Mounted,
}

/// Serves a block image of a registry on a machine that has nothing but its name, and mounts it: nothing
/// was fetched before but the manifest.
fn mounted_elsewhere(dir: &Path, reference: &str) -> Elsewhere {
    let there = dir.join("there");
    let (image, lower) = (arg(&there), format!("docker://{reference}"));
    let create = [
        "block", "create", image, "--lower", &lower, "--kind", "sealed",
    ];
    succeeds(yolofs().args(create));
    let (at, cache, mounted) = (dir.join("export"), dir.join("cache"), dir.join("mounted"));
    fs::create_dir(&at).unwrap();
    fs::create_dir(&mounted).unwrap();
    let server = export(&[image, "--mount", arg(&at), "--cache", arg(&cache)]);
    let export = Mounted(at);
    let file = export.0.join("disk");
    succeeds(Command::new("mount").args(["-t", "erofs", arg(&file), arg(&mounted)]));
    Elsewhere {
        mounted: Mounted(mounted),
        _server: server,
        _export: export,
    }
}

#[test]
fn privileged_a_pushed_image_is_mounted_elsewhere_with_every_file_as_it_was() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let layers = [lower(dir), upper(dir)];
    let source = LayoutDir(dir);
    source.start();
    source.index(&[named(source.image(&layers, &json!({})), "app")]);

    let registry = Registry::start(Kind::Olareg);
    let reference = format!("{}/some/app:block", registry.host());
    let layout = format!("oci:{}:app", dir.display());
    let here = dir.join("here");
    let convert = [
        "block",
        "convert",
        "--json",
        &layout,
        arg(&here),
        "--push",
        &reference,
    ];
    let done = succeeds(yolofs().args(convert));
    let done: serde_json::Value = serde_json::from_slice(&done.stdout).unwrap();
    assert_eq!(done["pushed"]["blobs"], 3, "{done}");
    // What the registry has is not pushed again.
    let again = succeeds(yolofs().args(convert));
    let again: serde_json::Value = serde_json::from_slice(&again.stdout).unwrap();
    assert_eq!(
        (&again["pushed"]["blobs"], &again["manifest"]),
        (&json!(0), &done["manifest"])
    );

    let roots = roots_of(&reference);
    assert_eq!(
        (roots.len(), configured(&here.join("image"))),
        (2, roots.clone())
    );

    // Another machine, which has nothing but the name.
    fs::remove_dir_all(&here).unwrap();
    let elsewhere = mounted_elsewhere(dir, &reference);
    assert_eq!(configured(&dir.join("there")), roots);
    let mounted = &elsewhere.mounted;
    let unpacked = unpacked(dir, &layers);
    let (expected, found) = (seen(&unpacked), seen(&mounted.0));
    assert_eq!(first_difference(&expected, &found), None);
    assert_eq!(expected.lines().count(), found.lines().count());
    assert!(expected.lines().count() > 1400);
    let device = fs::metadata(mounted.0.join("etc/device")).unwrap();
    assert_eq!(device.rdev(), nix::sys::stat::makedev(1, 3));
}

#[test]
fn a_qcow2_disk_is_converted_and_read_back() {
    let dir = tempfile::tempdir().unwrap();
    let [raw, qcow2, images, copy] =
        ["a.raw", "a.qcow2", "images", "copy.raw"].map(|name| dir.path().join(name));
    // A cluster of data, and one with data at its end only: the rest of the disk is a hole.
    let mut bytes = vec![0; 8 << 20];
    bytes[..65_536].fill(7);
    bytes[(3 << 20) - 5..3 << 20].fill(9);
    fs::write(&raw, &bytes).unwrap();
    let images_of = [
        "convert",
        "-f",
        "raw",
        "-O",
        "qcow2",
        arg(&raw),
        arg(&qcow2),
    ];
    succeeds(Command::new("qemu-img").args(images_of));
    let convert = [
        "block",
        "convert",
        arg(&qcow2),
        arg(&images),
        "--name",
        "disk",
    ];
    succeeds(yolofs().args(convert));
    let socket = dir.path().join("s");
    let _server = export(&[arg(&images.join("disk")), "--nbd", arg(&socket)]);
    let address = format!("nbd+unix:///disk?socket={}", socket.display());
    succeeds(Command::new("nbdcopy").args([&address, arg(&copy)]));
    assert!(fs::read(&copy).unwrap() == bytes, "the disk differs");
}

#[test]
fn privileged_block_an_image_that_refers_to_the_layers_of_another_is_mounted_elsewhere() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let layers = [lower(dir), upper(dir)];
    let source = LayoutDir(dir);
    source.start();
    source.index(&[named(source.image(&layers, &json!({})), "app")]);
    let (registry, other) = (Registry::start(Kind::Olareg), Registry::start(Kind::Olareg));
    let original = format!("docker://{}/some/app:latest", registry.host());
    let mut skopeo = Command::new("skopeo");
    skopeo.args(["copy", "--insecure-policy", "--dest-tls-verify=false"]);
    let layout = format!("oci:{}:app", dir.display());
    succeeds(skopeo.args([&layout, &original]));

    let here = dir.join("here");
    let convert = |reference: &str| {
        let mut yolofs = yolofs();
        let from = ["block", "convert", "--json", "--turbo", &original];
        yolofs.args(from).args([arg(&here), "--push", reference]);
        yolofs.output().unwrap()
    };
    // Where the layers are not, there would be nothing to refer to.
    let failed = convert(&format!("{}/some/app:turbo", other.host()));
    assert!(!failed.status.success());
    let said = String::from_utf8_lossy(&failed.stderr);
    assert!(
        said.contains("push the container image to it first"),
        "{said}"
    );
    let reference = format!("{}/some/app:turbo", registry.host());
    let done = convert(&reference);
    assert!(done.status.success(), "{done:?}");
    let done: serde_json::Value = serde_json::from_slice(&done.stdout).unwrap();
    // Of 5 MB.
    assert!(
        done["pushed"]["bytes"].as_u64().unwrap() < 400_000,
        "{done}"
    );
    assert!(done["layers"][0]["target"].is_string(), "{done}");

    fs::remove_dir_all(&here).unwrap();
    let elsewhere = mounted_elsewhere(dir, &reference);
    let unpacked = unpacked(dir, &layers);
    let (expected, found) = (seen(&unpacked), seen(&elsewhere.mounted.0));
    assert_eq!(first_difference(&expected, &found), None);
    assert_eq!(expected.lines().count(), found.lines().count());
    drop(elsewhere);
    // A start of it is recorded, and another machine has what it read before it starts.
    let first = Node::new(dir.join("first"), &reference);
    first.start(&["--record", "--background", "plan"]);
    let push = ["block", "plan", "push", &first.image(), &reference];
    succeeds(first.yolofs().args(push));
    let second = Node::new(dir.join("second"), &reference);
    assert_eq!(second.plans()[0]["bytes"], first.plans()[0]["bytes"]);
    let (image, cache) = (second.image(), second.dir.join("cache"));
    let prewarm = ["block", "prewarm", &image, "--cache", arg(&cache)];
    succeeds(second.yolofs().args(prewarm));
    drop(registry);
    second.start(&["--background", "plan"]);
}

/// A registry whose tag means another of its images with each request.
struct Moving {
    address: SocketAddr,
    /// The digest of each image's manifest, and of the blobs of its layers.
    images: Vec<(Digest, Vec<String>)>,
}

impl Moving {
    fn start() -> Self {
        let blob = |bytes: Vec<u8>| (digest_of(&bytes), bytes);
        let descriptor = |kind: &str, (digest, bytes): &(Digest, Vec<u8>)| {
            let media_type = format!("application/vnd.oci.image.{kind}");
            json!({"mediaType": media_type, "digest": digest, "size": bytes.len()})
        };
        let mut has = HashMap::new();
        let (mut tagged, mut images) = (Vec::new(), Vec::new());
        for number in 0..2 {
            let layers: Vec<_> = (0..3).map(|layer| blob(vec![number, layer])).collect();
            let diff_ids: Vec<_> = layers.iter().map(|(digest, _)| digest).collect();
            let config = json!({
                "architecture": "amd64", "os": "linux", "rootfs": {"type": "layers", "diff_ids": diff_ids},
            });
            let config = blob(config.to_string().into_bytes());
            let described = layers.iter().map(|layer| {
                let mut described = descriptor("layer.v1.tar", layer);
                described["annotations"] = json!({
                    "containerd.io/snapshot/overlaybd/blob-digest": layer.0,
                    "containerd.io/snapshot/overlaybd/blob-size": "2",
                });
                described
            });
            let manifest = json!({
                "schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json",
                "config": descriptor("config.v1+json", &config), "layers": described.collect::<Vec<_>>(),
            });
            let manifest = blob(manifest.to_string().into_bytes());
            images.push((
                manifest.0,
                layers
                    .iter()
                    .map(|(digest, _)| digest.to_string())
                    .collect(),
            ));
            tagged.push(manifest.1.clone());
            has.extend([config, manifest].map(|(digest, bytes)| (digest.to_string(), bytes)));
        }
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        // It ends with the test.
        std::thread::spawn(move || {
            let mut tagged = tagged.iter().cycle();
            for client in listener.incoming().map_while(Result::ok) {
                let mut lines = BufReader::new(&client).lines().map_while(Result::ok);
                let asked = lines.next().unwrap_or_default();
                lines.take_while(|line| !line.is_empty()).for_each(drop);
                let path = asked.split(' ').nth(1).unwrap_or_default();
                let body = match path.rsplit_once('/') {
                    Some((_, "latest")) => tagged.next(),
                    Some((_, digest)) => has.get(digest),
                    None => None,
                };
                let status = if body.is_some() {
                    "200 OK"
                } else {
                    "404 Not Found"
                };
                let body = body.map_or(&[][..], Vec::as_slice);
                let head = format!(
                    "HTTP/1.1 {status}\r\nConnection: close\r\nContent-Length: {}\r\n\r\n",
                    body.len()
                );
                let _client_is_gone = (&client).write_all(&[head.as_bytes(), body].concat());
            }
        });
        Self { address, images }
    }
}

/// What was made is of one image, and it is said of which.
#[test]
fn privileged_block_of_a_tag_that_moves_comes_one_image_which_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let registry = Moving::start();
    let lower = format!("docker://{}/app:latest", registry.address);
    let mut seen = Vec::new();
    for number in 0..4 {
        let image = dir.path().join(number.to_string());
        let create = [
            "block",
            "create",
            arg(&image),
            "--lower",
            &lower,
            "--kind",
            "sealed",
        ];
        let mut command = yolofs();
        command.env("YOLOFS_STORE", dir.path().join("store"));
        let said = succeeds(command.args(create).arg("--json")).stdout;
        let said: serde_json::Value = serde_json::from_slice(&said).unwrap();
        let of = registry
            .images
            .iter()
            .find(|(digest, _)| said["manifest"] == digest.to_string());
        let (digest, layers) = of.unwrap_or_else(|| panic!("it is not said which: {said}"));
        let config = fs::read(image.join("config.v1.json")).unwrap();
        let config: serde_json::Value = serde_json::from_slice(&config).unwrap();
        let lowers = config["lowers"].as_array().unwrap();
        let made: Vec<_> = lowers
            .iter()
            .map(|lower| lower["digest"].as_str().unwrap())
            .collect();
        assert_eq!(made, *layers, "a mix of images");
        seen.push(*digest);
    }
    assert!(
        seen.iter().any(|digest| *digest != seen[0]),
        "the tag did not move"
    );
}
