//! Converted images have the same digests each time, and share what they have in common.

#![expect(clippy::unwrap_used, reason = "tests")]

use std::fs::{self, File};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use blockimages::convert::{
    CONTENT_ROOT, ConvertError, ConvertOptions, Converted, convert, convert_disk,
};
use blockimages::{ContentRoot, DeviceConfig, open_image};
use blocks::{BlockDevice as _, Digest};
use lsmt::{FileStorage, ReadAt as _};
use oci::{Manifest, Platform};
use serde_json::{Value, json};
use testkit::layouts::{LayoutDir, layer, named};

fn go_on(_: u64) -> ControlFlow<()> {
    ControlFlow::Continue(())
}

/// Makes a layout of two images that share their two lowest layers.
fn layout(dir: &Path) {
    let big = vec![7; 300_000];
    let base = layer(&[("etc/a", b"one"), ("usr/big", &big), ("usr/empty", b"")]);
    let middle = layer(&[("etc/.wh.a", b""), ("etc/b", b"two")]);
    let (one, two) = (layer(&[("app/1", b"1")]), layer(&[("app/2", b"22")]));
    let made = LayoutDir(dir);
    made.start();
    let image =
        |top: &Vec<u8>| made.image(&[base.clone(), middle.clone(), top.clone()], &json!({}));
    made.index(&[named(image(&one), "one"), named(image(&two), "two")]);
}

fn converted(source: &Path, to: &Path, name: &str) -> Converted {
    let image = oci::layout::open(source, Some(name), &Platform::host()).unwrap();
    convert(&image, to, name, &ConvertOptions::default(), &mut go_on).unwrap()
}

#[test]
fn the_same_image_has_the_same_digests_in_ten_runs() {
    let dir = tempfile::tempdir().unwrap();
    layout(dir.path());
    let run = |number: usize| {
        let to = dir.path().join(number.to_string());
        let done = converted(dir.path(), &to, "one");
        assert!(done.layers.iter().all(|layer| !layer.reused));
        done.manifest
    };
    let first = run(0);
    assert!((1..10).all(|number| run(number) == first));
}

fn blob_path(layout: &Path, digest: Digest) -> PathBuf {
    layout.join("blobs/sha256").join(digest.hex())
}

/// Hashes what a reader gets of a blob.
fn hashed(layout: &Path, digest: Digest) -> ContentRoot {
    let blob = File::open(blob_path(layout, digest)).unwrap();
    let content = lsmt::open_content(Arc::new(FileStorage::new(blob))).unwrap();
    let mut bytes = vec![0; usize::try_from(content.size().unwrap()).unwrap()];
    content.read_at(&mut bytes, 0).unwrap();
    assert_eq!(bytes[..4], *b"LSMT");
    ContentRoot(*blake3::hash(&bytes).as_bytes())
}

/// Returns the roots that the manifest and the configuration of an image have of its layers.
fn roots(layout: &Path, image: &Converted) -> (Vec<Option<ContentRoot>>, Vec<Option<ContentRoot>>) {
    let manifest = fs::read(blob_path(layout, image.manifest)).unwrap();
    let manifest = Manifest::decode(&manifest).unwrap();
    let annotated = manifest.layers.iter();
    let annotated = annotated.map(|layer| layer.annotations.get(CONTENT_ROOT));
    let annotated = annotated.map(|root| root.map(|root| root.parse().unwrap()));
    let (config, _) = DeviceConfig::read(&image.config).unwrap();
    let configured = config.lowers.iter().map(|lower| lower.content);
    (annotated.collect(), configured.collect())
}

#[test]
fn manifest_and_configuration_have_the_hash_of_each_layers_content() {
    let dir = tempfile::tempdir().unwrap();
    layout(dir.path());
    let to = dir.path().join("to");
    let one = converted(dir.path(), &to, "one");
    let hashes = { one.layers.iter() }.map(|layer| Some(hashed(&to, layer.digest)));
    let hashes: Vec<_> = hashes.collect();
    assert_eq!(roots(&to, &one), (hashes.clone(), hashes));
}

/// Takes the roots out of all records of layers, as they were before there were any. Returns how many had one.
fn forget_roots(layout: &Path) -> usize {
    let mut found = 0;
    for record in fs::read_dir(layout.join("chains")).unwrap() {
        let path = record.unwrap().path();
        let mut record: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        let root = record.as_object_mut().unwrap().remove("content");
        found += usize::from(root.is_some());
        fs::write(&path, record.to_string()).unwrap();
    }
    found
}

#[test]
fn layers_of_an_older_version_get_the_hash_of_their_content() {
    let dir = tempfile::tempdir().unwrap();
    layout(dir.path());
    let to = dir.path().join("to");
    let one = converted(dir.path(), &to, "one");
    let before = roots(&to, &one);
    assert!(forget_roots(&to) >= one.layers.len());
    let again = converted(dir.path(), &to, "one");
    assert!(again.layers.iter().all(|layer| layer.reused));
    assert_eq!(again.manifest, one.manifest);
    assert_eq!(roots(&to, &again), before);
    // From then on they are known.
    for layer in &one.layers {
        let lost = File::create(blob_path(&to, layer.digest)).unwrap();
        lost.set_len(layer.size).unwrap();
    }
    assert_eq!(converted(dir.path(), &to, "one").manifest, one.manifest);
    // A blob that cannot be read is made again.
    assert!(forget_roots(&to) >= one.layers.len());
    let again = converted(dir.path(), &to, "one");
    assert!(again.layers.iter().all(|layer| !layer.reused));
    assert_eq!(again.manifest, one.manifest);
    assert_eq!(Some(hashed(&to, one.layers[0].digest)), before.0[0]);
}

#[test]
fn layers_are_converted_once_for_all_images() {
    let dir = tempfile::tempdir().unwrap();
    layout(dir.path());
    let to = dir.path().join("to");
    let one = converted(dir.path(), &to, "one");
    let two = converted(dir.path(), &to, "two");
    let reused: Vec<_> = two.layers.iter().map(|layer| layer.reused).collect();
    assert_eq!(reused, [true, true, false]);
    assert_eq!(one.layers[1].digest, two.layers[1].digest);
    // What was made on top of known layers is what would have been made of all.
    let alone = converted(dir.path(), &dir.path().join("alone"), "two");
    assert_eq!(alone.manifest, two.manifest);
    // A blob that is gone is made again.
    let lost = to.join("blobs/sha256").join(two.layers[0].digest.hex());
    fs::remove_file(&lost).unwrap();
    let again = converted(dir.path(), &to, "one");
    assert_eq!(again.manifest, one.manifest);
    assert!(lost.exists());
    // Both are listed, and are images for others, too.
    for name in ["one", "two"] {
        let listed = oci::layout::open(&to, Some(name), &Platform::host()).unwrap();
        assert_eq!(listed.layers.len(), 3);
    }
    let device = open_image(two.config.parent().unwrap(), None).unwrap();
    assert_eq!(device.info().size, 64 << 30);
    let mut superblock = [0; 512];
    device.read_at(1024, &mut superblock).unwrap();
    assert_eq!(superblock[..4], 0xe0f5_e1e2_u32.to_le_bytes());
}

/// What a container has changed becomes a layer on top of those that its image was converted to.
#[test]
fn a_layer_on_a_converted_image_is_converted_on_top_of_it() {
    let dir = tempfile::tempdir().unwrap();
    layout(dir.path());
    let to = dir.path().join("to");
    let one = converted(dir.path(), &to, "one");
    let blob = |number: usize| {
        let name = one.layers[number].digest.hex();
        fs::read(to.join("blobs/sha256").join(name)).unwrap()
    };
    let changes = layer(&[("usr/.wh.big", b""), ("srv/new", &[9; 10_000])]);
    // As an engine commits it, and the same on the image that was converted.
    let committed = dir.path().join("committed");
    let made = LayoutDir(&committed);
    made.start();
    let mixed = made.image(&[blob(0), blob(1), blob(2), changes.clone()], &json!({}));
    made.index(&[named(mixed, "mixed")]);
    let mixed = converted(&committed, &to, "mixed");
    let reused: Vec<_> = mixed.layers.iter().map(|layer| layer.reused).collect();
    assert_eq!(reused, [true, true, true, false]);
    for (layer, its) in one.layers.iter().zip(&mixed.layers) {
        assert_eq!(layer.digest, its.digest);
    }
    let plain = dir.path().join("plain");
    let made = LayoutDir(&plain);
    made.start();
    let big = vec![7; 300_000];
    let layers = [
        layer(&[("etc/a", b"one"), ("usr/big", &big), ("usr/empty", b"")]),
        layer(&[("etc/.wh.a", b""), ("etc/b", b"two")]),
        layer(&[("app/1", b"1")]),
        changes,
    ];
    made.index(&[named(made.image(&layers, &json!({})), "plain")]);
    let plain = converted(&plain, &to, "plain");
    let device = |image: &Converted| {
        let device = open_image(image.config.parent().unwrap(), None).unwrap();
        let mut bytes = vec![0; 2 << 20];
        device.read_at(0, &mut bytes).unwrap();
        bytes
    };
    let (mixed, plain) = (device(&mixed), device(&plain));
    assert!(plain.windows(10_000).any(|window| window == [9; 10_000]));
    // But for the superblock, which has an identity.
    let differs = mixed.iter().zip(&plain).map(|(one, other)| one != other);
    assert!(
        { differs }
            .enumerate()
            .all(|(at, differs)| !differs || (1024..1152).contains(&at))
    );
    // Elsewhere the layers below are not known.
    let elsewhere = dir.path().join("elsewhere");
    let image = oci::layout::open(&committed, Some("mixed"), &Platform::host()).unwrap();
    let refused = convert(
        &image,
        &elsewhere,
        "x",
        &ConvertOptions::default(),
        &mut go_on,
    );
    let said = refused.unwrap_err().to_string();
    assert!(said.contains("where that image was converted"), "{said}");
}

#[test]
fn what_does_not_fit_or_was_cancelled_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    layout(dir.path());
    let to = dir.path().join("to");
    let image = oci::layout::open(dir.path(), Some("one"), &Platform::host()).unwrap();
    let small = ConvertOptions {
        virtual_size: 64 << 10,
        ..ConvertOptions::default()
    };
    let failed = convert(&image, &to, "x", &small, &mut go_on).unwrap_err();
    assert!(matches!(failed, ConvertError::TooSmall { .. }), "{failed}");
    let mut stop = |_| ControlFlow::Break(());
    convert(&image, &to, "x", &ConvertOptions::default(), &mut stop).unwrap_err();
    assert_eq!(fs::read_dir(to.join("blobs/sha256")).unwrap().count(), 0);
    assert!(!to.join("index.json").exists());
    for name in ["", "..", "a/b", "blobs", ".x"] {
        let failed = convert(&image, &to, name, &ConvertOptions::default(), &mut go_on);
        assert!(matches!(failed, Err(ConvertError::Name { .. })), "{name}");
    }
}

#[test]
fn a_disk_is_converted_without_its_zeros() {
    let dir = tempfile::tempdir().unwrap();
    let raw = dir.path().join("disk.raw");
    let mut content = vec![0; (3 << 20) + 512];
    content[5000..9000].fill(1);
    content[(1 << 20)..(2 << 20)].fill(2);
    content[(3 << 20) + 100] = 3;
    fs::write(&raw, &content).unwrap();
    let to = dir.path().join("to");
    let done = convert_disk(&raw, &to, "disk", &ConvertOptions::default(), &mut go_on).unwrap();
    assert_eq!(done.device, content.len() as u64);
    let (config, _) = DeviceConfig::read(&done.config).unwrap();
    assert_eq!(config.lowers[0].content, Some(hashed(&to, done.digest)));
    let device = open_image(&to.join("disk"), None).unwrap();
    let mut read = vec![9; content.len()];
    device.read_at(0, &mut read).unwrap();
    assert!(read == content, "the device differs");
    let data: u64 = device
        .extents(0..done.device, 100)
        .unwrap()
        .iter()
        .filter(|extent| extent.content == blocks::Content::Data)
        .map(|extent| extent.len)
        .sum();
    assert_eq!(data, (1 << 20) + 8192 + 512);
}
