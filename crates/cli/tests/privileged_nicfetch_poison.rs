//! Images that nicfetch cannot take: it outlives them, and does not try them for ever.

#![cfg(feature = "privileged")]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod nic;

use std::fs;
use std::process::Command;

use lab::{Lab, json as asked, ok, until};
use nic::{IMAGE, Mirror, Site, ended};
use serde_json::{Value, json};
use testkit::layouts::{GZIP, LayoutDir, MANIFEST, gzip, named};
use testkit::registries::Kind;

/// An image whose only layer unpacks to 32 GiB of nothing: to take it lasts longer than any test.
fn endless_layer() -> Vec<u8> {
    const FRAME: usize = 64 << 20;
    let mut header = tar::Header::new_gnu();
    header.set_path("endless").unwrap();
    header.set_size(512 * FRAME as u64);
    header.set_mode(0o644);
    header.set_cksum();
    let mut blob = gzip(header.as_bytes());
    let frame = gzip(&vec![0; FRAME]);
    for _ in 0..512 {
        blob.extend_from_slice(&frame);
    }
    blob
}

/// A layer of some KiB whose names stand for three million directories.
fn deep_layer() -> Vec<u8> {
    let mut tar = tar::Builder::new(Vec::new());
    for number in 0..1500 {
        let name = format!("{number}/") + &"d/".repeat(2030) + "file";
        let mut header = tar::Header::new_gnu();
        header.set_size(0);
        header.set_mode(0o644);
        tar.append_data(&mut header, name, &b""[..]).unwrap();
    }
    let layer = gzip(&tar.into_inner().unwrap());
    assert!(layer.len() < 256 << 10, "{}", layer.len());
    layer
}

/// Pushes an image of one layer, and returns its blobs. That the layer has the diff ID which the
/// configuration names is found out at its end only.
fn push_one_layer(site: &Site, name: &str, layer: &[u8]) -> [String; 2] {
    let dir = site.path(name);
    let layout = LayoutDir(&dir);
    layout.start();
    let config = json!({
        "architecture": "amd64", "os": "linux", "config": {},
        "rootfs": {"type": "layers", "diff_ids": [oci::digest_of(name.as_bytes())]},
    });
    let config = config.to_string();
    let config = layout.blob(
        "application/vnd.oci.image.config.v1+json",
        config.as_bytes(),
    );
    let layer = layout.blob(GZIP, layer);
    let manifest = json!({
        "schemaVersion": 2, "mediaType": MANIFEST, "config": config, "layers": [layer],
    });
    let manifest = layout.blob(MANIFEST, manifest.to_string().as_bytes());
    layout.index(&[named(manifest, "v1")]);
    ok(Command::new("skopeo")
        .args(["copy", "--insecure-policy", "--dest-tls-verify=false"])
        .arg(format!("oci:{}:v1", dir.display()))
        .arg(format!(
            "docker://{}/library/{name}:v1",
            site.registry.host()
        )));
    [config, layer].map(|blob| blob["digest"].as_str().unwrap().to_owned())
}

/// Pulls such an image, as a client does.
fn pull_one_layer(mirror: &Mirror, name: &str, blobs: &[String]) {
    let manifest = mirror.get(&format!("/v2/library/{name}/manifests/v1"), &[]);
    assert_eq!(manifest.status, 200);
    for blob in blobs {
        let reply = mirror.get(&format!("/v2/library/{name}/blobs/{blob}"), &[]);
        assert!(reply.status == 200 && reply.is_whole(), "{blob}");
    }
}

/// Returns what is told of the making of chunks.
fn feed(mirror: &Mirror) -> Value {
    asked(&mut mirror.ask(&["status", "--json"]))["blocks"]["feed"].clone()
}

/// Returns the most memory that a mirror had.
fn peak(mirror: &Mirror) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", mirror.child.id())).unwrap();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let peak = peak.unwrap().trim().trim_end_matches(" kB");
    peak.parse::<u64>().unwrap() << 10
}

#[test]
fn privileged_an_image_with_which_the_server_dies_is_set_aside() {
    let (site, lab) = (Site::new(Kind::Docker), Lab::new());
    let blobs = push_one_layer(&site, "endless", &endless_layer());
    let name = "docker.io/library/endless:v1";
    let start = || takes_what_is_pulled(&site, &lab);
    let mirror = start();
    pull_one_layer(&mirror, "endless", &blobs);
    until("it is being taken", || feed(&mirror)["at"] == name);
    mirror.kill();
    // Once more: it may not have been the image's fault.
    let mut mirror = start();
    until("it is being taken", || feed(&mirror)["at"] == name);
    // An orderly end is no failure.
    mirror.terminate();
    assert_eq!(ended(&mut mirror), Some(0));
    drop(mirror);
    let mirror = start();
    until("it is being taken", || feed(&mirror)["at"] == name);
    mirror.kill();
    for _ in 0..2 {
        let mirror = start();
        // Others get their turn, and what was pulled again does not bring it back.
        pull_one_layer(&mirror, "endless", &blobs);
        ok(&mut mirror.skopeo(&site.path("copy")));
        until("the other image is a source", || is_source(&mirror, IMAGE));
        let told = feed(&mirror);
        assert_eq!(told["set_aside"], 1, "{told}");
        assert_eq!(told["aside"][0]["name"], name, "{told}");
        let why = told["aside"][0]["why"].as_str().unwrap();
        assert!(why.contains("nicfetch ended while"), "{why}");
        assert_eq!((&told["at"], &told["waiting"]), (&Value::Null, &json!(0)));
        assert_eq!(mirror.metric("nicfetch_blocks_feed_set_aside "), 1);
        let text = ok(&mut mirror.ask(&["status"]));
        assert!(text.contains(&format!("set aside  {name}: ")), "{text}");
        mirror.kill();
    }
    // Whoever asks for it by hand gets it.
    let mirror = start();
    asked(&mut mirror.ask(&["prewarm", name, "--json"]));
    until("it is being taken", || feed(&mirror)["at"] == name);
    assert_eq!(feed(&mirror)["set_aside"], 0);
}

#[test]
fn privileged_a_tiny_layer_neither_kills_the_server_nor_is_tried_for_ever() {
    let (site, lab) = (Site::new(Kind::Docker), Lab::new());
    let blobs = push_one_layer(&site, "deep", &deep_layer());
    for attempt in 0..3 {
        let mirror = takes_what_is_pulled(&site, &lab);
        pull_one_layer(&mirror, "deep", &blobs);
        ok(&mut mirror.skopeo(&site.path(&format!("copy{attempt}"))));
        until("the other image is a source", || is_source(&mirror, IMAGE));
        // Others were taken after it, or it was not taken at all.
        until("it was tried", || {
            let told = feed(&mirror);
            told["at"].is_null() && told["waiting"] == 0
        });
        let told = feed(&mirror);
        assert_eq!(told["failed"], u64::from(attempt < 2), "{told}");
        assert_eq!(told["set_aside"], u64::from(attempt > 0), "{told}");
        if attempt > 0 {
            let why = told["aside"][0]["why"].as_str().unwrap();
            assert!(why.contains("more levels of directories"), "{why}");
        }
        let peak = peak(&mirror);
        assert!(peak < 512 << 20, "{peak}");
        mirror.kill();
    }
}

/// Names cost nothing: an image that fails under one of them fails under all.
#[test]
fn privileged_many_tags_of_a_manifest_are_one_image_that_fails() {
    let (site, lab) = (Site::new(Kind::Docker), Lab::new());
    let blobs = push_one_layer(&site, "deep", &deep_layer());
    let image = |tag: &str| format!("docker://{}/library/deep:{tag}", site.registry.host());
    for tag in ["v2", "v3", "v4", "v5"] {
        let mut copy = Command::new("skopeo");
        copy.args(["copy", "--insecure-policy", "--src-tls-verify=false"]);
        copy.args(["--dest-tls-verify=false", &image("v1"), &image(tag)]);
        ok(&mut copy);
    }
    for start in 0..2 {
        let mirror = takes_what_is_pulled(&site, &lab);
        pull_one_layer(&mirror, "deep", &blobs);
        for tag in ["v2", "v3", "v4", "v5"] {
            let path = format!("/v2/library/deep/manifests/{tag}");
            assert_eq!(mirror.get(&path, &[]).status, 200);
        }
        ok(&mut mirror.skopeo(&site.path(&format!("copy{start}"))));
        until("the other image is a source", || is_source(&mirror, IMAGE));
        until("all were seen", || {
            let told = feed(&mirror);
            told["at"].is_null() && told["waiting"] == 0 && told["set_aside"] == 1
        });
        let told = feed(&mirror);
        let attempts = if start == 0 { 2 } else { 0 };
        assert_eq!(told["failed"], attempts, "{told}");
        mirror.kill();
    }
}

/// Starts a mirror that makes chunks of what clients pull.
fn takes_what_is_pulled(site: &Site, lab: &Lab) -> Mirror {
    let socket = format!("unix:{}", lab.path("nic.sock").display());
    let flags = ["--size", "2G", "--blocks", &socket, "--blocks-open"];
    site.mirror("store", &[&flags[..], &["--blocks-from-pulls"]].concat())
}

/// Whether an image is a source of the block service, and whole.
fn is_source(mirror: &Mirror, name: &str) -> bool {
    let listed = asked(&mut mirror.ask(&["ls", "--json"]));
    let sources = listed["sources"].as_array().into_iter().flatten();
    let mut found = sources.filter(|source| source["name"] == name);
    found.any(|source| source["absent_chunks"] == 0)
}
