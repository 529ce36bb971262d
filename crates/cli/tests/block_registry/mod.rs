//! A converted disk whose only layer a registry has that does what a test says.

#![allow(
    clippy::allow_attributes,
    clippy::unwrap_used,
    reason = "a test that cannot go on has failed"
)]

use std::fs;
use std::path::PathBuf;

use serde_json::{Value, json};
use testkit::range_server::{Asked, RangeServer, Treatment};

use super::block_export::arg;
use lab::{Lab, ok};

/// Converts a disk of this content, and returns the registry with its layer, and the directory of an image of it.
pub(crate) fn disk_elsewhere(
    lab: &Lab,
    content: Vec<u8>,
    treat: impl Fn(&Asked) -> Treatment + Send + Sync + 'static,
) -> (RangeServer, PathBuf) {
    let disk = lab.path("disk.raw");
    fs::write(&disk, content).unwrap();
    let images = lab.path("images");
    let convert = ["block", "convert", arg(&disk), arg(&images)];
    ok(lab.yolofs().args(convert).args(["--name", "disk"]));
    let config = fs::read(images.join("disk/config.v1.json")).unwrap();
    let config: Value = serde_json::from_slice(&config).unwrap();
    let (digest, size) = (&config["lowers"][0]["digest"], &config["lowers"][0]["size"]);
    let name = digest.as_str().unwrap().trim_start_matches("sha256:");
    let blob = fs::read(images.join("blobs/sha256").join(name)).unwrap();
    let registry = RangeServer::start(blob, treat);
    let image = lab.make_dir("image");
    let config = json!({
        "repoBlobUrl": registry.url("/v2/a/disk/blobs"),
        "lowers": [{"digest": digest, "size": size}],
    });
    fs::write(image.join("config.v1.json"), config.to_string()).unwrap();
    (registry, image)
}
