//! What a start reads is recorded on one machine, pushed, and all that a start on another machine takes.

#![cfg(feature = "privileged")]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod block_export;
mod block_layers;
mod block_node;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use block_export::{arg, succeeds, yolofs};
use block_layers::{lower, packed};
use block_node::Node;
use serde_json::{Value, json};
use testkit::layouts::{LayoutDir, named};
use testkit::registries::{Kind, Registry};

/// A registry with a converted image, which is in a directory, too.
struct Pushed {
    registry: Registry,
    reference: String,
    here: PathBuf,
}

impl Pushed {
    fn new(dir: &Path) -> Self {
        let layers = [lower(dir), packed(dir, "mkdir new; echo n > new/file")];
        let source = LayoutDir(dir);
        source.start();
        source.index(&[named(source.image(&layers, &json!({})), "app")]);
        let registry = Registry::start(Kind::Olareg);
        let reference = format!("{}/some/app:block", registry.host());
        let layout = format!("oci:{}:app", dir.display());
        let here = dir.join("here");
        let convert = ["block", "convert", &layout, arg(&here)];
        succeeds(yolofs().args(convert).args(["--push", &reference]));
        Self {
            registry,
            reference,
            here,
        }
    }

    /// Returns the bytes of all blobs.
    fn bytes(&self) -> u64 {
        let blobs = fs::read_dir(self.here.join("blobs/sha256")).unwrap();
        let bytes = blobs.map(|blob| blob.unwrap().metadata().unwrap().len());
        bytes.sum()
    }
}

fn value(command: &mut Command) -> Value {
    serde_json::from_slice(&succeeds(command.arg("--json")).stdout).unwrap()
}

#[test]
fn privileged_a_start_that_was_recorded_needs_no_registry_once_it_was_prewarmed() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let pushed = Pushed::new(dir);
    let reference = &pushed.reference;
    let first = Node::new(dir.join("first"), reference);
    assert_eq!(first.plans(), json!([]));
    first.start(&["--record", "--background", "plan"]);
    let image = first.image();
    let push = ["block", "plan", "push", &image, reference, "--no-data"];
    let done = value(first.yolofs().args(push));
    assert!(done["data_bytes"].is_null(), "{done}");

    let second = Node::new(dir.join("second"), reference);
    let plans = second.plans();
    assert_eq!(plans[0]["layers"].as_array().unwrap().len(), 2, "{plans}");
    assert_eq!(plans[0]["bytes"], first.plans()[0]["bytes"]);
    let (image, cache) = (second.image(), second.dir.join("cache"));
    let prewarm = ["block", "prewarm", &image, "--cache", arg(&cache)];
    let done = value(second.yolofs().args(prewarm));
    let bytes = done["bytes"].as_u64().unwrap();
    assert!(bytes < pushed.bytes() / 4, "{done}");
    drop(pushed.registry);
    second.start(&["--background", "plan"]);
    // As overlaybd has it, and back.
    let trace = dir.join("trace");
    let exported = ["block", "plan", "export", &image, arg(&trace)];
    succeeds(second.yolofs().args(exported));
    let mut from_trace = Command::new(env!("CARGO_BIN_EXE_bootimg"));
    from_trace.env("YOLOFS_STORE", dir.join("third"));
    from_trace.args(["from-trace", &image, "--overlaybd", arg(&trace)]);
    let kept = value(&mut from_trace);
    assert_eq!(kept["bytes"], plans[0]["bytes"]);
}

#[test]
fn privileged_a_start_with_a_boot_image_takes_nothing_of_the_layers() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let pushed = Pushed::new(dir);
    let reference = &pushed.reference;
    let first = Node::new(dir.join("first"), reference);
    first.start(&["--record", "--background", "plan"]);
    let (image, cache) = (first.image(), first.dir.join("cache"));
    let push = ["block", "plan", "push", &image, reference];
    // The layers are elsewhere, and it may not fetch them.
    let done = value(first.yolofs().args(push));
    assert!(done["data_bytes"].is_null(), "{done}");
    let done = value(first.yolofs().args(push).args(["--cache", arg(&cache)]));
    let data = done["data_bytes"].as_u64().unwrap();

    // Of both, the one with data counts. It is less than the ranges of the layers that have the same.
    let second = Node::new(dir.join("second"), reference);
    let prewarm = |node: &Node| {
        let (image, cache) = (node.image(), node.dir.join("cache"));
        let prewarm = ["block", "prewarm", &image, "--cache", arg(&cache)];
        let done = value(node.yolofs().args(prewarm));
        done["bytes"].as_u64().unwrap()
    };
    assert_eq!(prewarm(&second), data);
    let third = Node::new(dir.join("third"), reference);
    for kept in fs::read_dir(third.dir.join("store/block-plans")).unwrap() {
        let kept = kept.unwrap().path();
        if kept
            .extension()
            .is_some_and(|extension| extension == "bdata")
        {
            fs::remove_file(kept).unwrap();
        }
    }
    assert!(prewarm(&third) > data, "{data} bytes of data");
    // All that the start reads is in it.
    drop(pushed.registry);
    second.start(&["--background", "plan"]);
}
