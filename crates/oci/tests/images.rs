//! Images in layouts and archives, as real tools write them and as nobody should.

#![allow(
    clippy::unwrap_used,
    clippy::allow_attributes,
    reason = "a test that cannot go on has failed"
)]

use std::fs;
use std::io::Read as _;
#[cfg(feature = "privileged")]
use std::path::Path;

use oci::{DocumentError, Image, ImageError, Platform, archive, digest_of, layout};
use serde_json::{Value, json};
use tempfile::TempDir;
use testkit::layouts;
use testkit::layouts::{INDEX, LayoutDir, gzip, layer, named};

fn amd64() -> Platform {
    Platform {
        architecture: "amd64".to_owned(),
        os: "linux".to_owned(),
        variant: None,
    }
}

fn two_layers() -> Vec<Vec<u8>> {
    vec![
        layer(&[("bin/sh", b"#!shell"), ("etc/a", b"one")]),
        layer(&[("etc/a", b"two")]),
    ]
}

/// A layout with the images `one` (two layers) and `two` (the first of them).
fn two_images() -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    let layout = LayoutDir(dir.path());
    layout.start();
    let layers = two_layers();
    let run = json!({"Entrypoint": ["/bin/sh"], "Healthcheck": {"Test": ["CMD", "true"]}});
    let one = named(layout.image(&layers, &run), "one");
    let two = named(layout.image(&layers[..1], &json!(null)), "localhost/b:two");
    layout.index(&[one, two]);
    dir
}

fn open(dir: &TempDir, wanted: Option<&str>) -> Result<Image, ImageError> {
    layout::open(dir.path(), wanted, &amd64())
}

fn contents(image: &Image) -> Vec<Vec<u8>> {
    let read = |layer: &oci::LayerBlob| {
        let mut bytes = Vec::new();
        layer.open().unwrap().read_to_end(&mut bytes).unwrap();
        bytes
    };
    image.layers.iter().map(read).collect()
}

#[test]
fn a_layout_is_opened_by_tag_name_or_digest() {
    let dir = two_images();
    let one = open(&dir, Some("one")).unwrap();
    let layers = two_layers();
    let diff_ids: Vec<_> = layers.iter().map(|layer| digest_of(layer)).collect();
    assert_eq!(one.config.diff_ids, diff_ids);
    assert_eq!(one.config.run.argv(&[]), ["/bin/sh"]);
    assert!(one.config.run.healthcheck.is_some());
    assert_eq!(one.name.as_deref(), Some("one"));
    let packed: Vec<_> = layers.iter().map(|layer| gzip(layer)).collect();
    assert_eq!(contents(&one), packed);
    let two = open(&dir, Some("localhost/b:two")).unwrap();
    assert_eq!(two.layers.len(), 1);
    let digest = two.manifest.unwrap().to_string();
    assert_eq!(open(&dir, Some(&digest)).unwrap().id, two.id);
}

#[test]
fn what_is_there_is_named_if_nothing_fits() {
    let dir = two_images();
    let error = open(&dir, None).unwrap_err();
    assert!(matches!(error, ImageError::Ambiguous { .. }), "{error}");
    assert!(
        error
            .to_string()
            .ends_with("name one of one, localhost/b:two"),
        "{error}"
    );
    let error = open(&dir, Some("three")).unwrap_err();
    assert!(matches!(error, ImageError::NoSuchImage { .. }), "{error}");
    let empty = tempfile::tempdir().unwrap();
    let error = open(&empty, None).unwrap_err();
    assert!(matches!(error, ImageError::Missing { .. }), "{error}");
}

#[test]
fn an_index_of_platforms_leads_to_ours() {
    let dir = tempfile::tempdir().unwrap();
    let layout = LayoutDir(dir.path());
    layout.start();
    let on = |mut image: Value, architecture: &str| {
        image["platform"] = json!({"os": "linux", "architecture": architecture});
        image
    };
    let layers = two_layers();
    let theirs = on(layout.image(&layers[..1], &json!(null)), "s390x");
    let ours = on(layout.image(&layers, &json!(null)), "amd64");
    let attestation = on(layout.blob(layouts::MANIFEST, b"{}"), "unknown");
    let index = json!({"schemaVersion": 2, "manifests": [attestation, theirs, ours]});
    let index = layout.blob(INDEX, index.to_string().as_bytes());
    layout.index(&[named(index, "multi")]);
    let image = open(&dir, Some("multi")).unwrap();
    assert_eq!(image.layers.len(), 2);
    assert_eq!(json!(image.manifest), ours["digest"]);
    let mut risc = amd64();
    risc.architecture = "riscv64".to_owned();
    let error = layout::open(dir.path(), None, &risc).unwrap_err();
    assert!(error.to_string().contains("linux/riscv64"), "{error}");
}

/// What a person can do to the parts of an image, and how it is noticed.
#[test]
fn damage_is_noticed() {
    let dir = two_images();
    let image = open(&dir, Some("one")).unwrap();
    let blob = |hex: String| dir.path().join("blobs/sha256").join(hex);
    let layer = blob(digest_of(&gzip(&two_layers()[1])).hex());
    let whole = fs::read(&layer).unwrap();
    let mut wrong = whole.clone();
    *wrong.last_mut().unwrap() ^= 1;
    fs::write(&layer, &wrong).unwrap();
    let mut bytes = Vec::new();
    let read = image.layers[1].open().unwrap().read_to_end(&mut bytes);
    assert!(
        read.unwrap_err()
            .to_string()
            .contains("but the manifest says")
    );
    fs::write(&layer, &whole[1..]).unwrap();
    assert!(matches!(
        open(&dir, Some("one")),
        Err(ImageError::Blob { .. })
    ));
    fs::remove_file(&layer).unwrap();
    assert!(matches!(
        open(&dir, Some("one")),
        Err(ImageError::Missing { .. })
    ));
    let config = blob(image.id.hex());
    let text = fs::read_to_string(&config)
        .unwrap()
        .replace("amd64", "amd46");
    fs::write(&config, text).unwrap();
    assert!(matches!(
        open(&dir, Some("one")),
        Err(ImageError::Blob { .. })
    ));
}

#[test]
fn hostile_documents_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let layout = LayoutDir(dir.path());
    layout.start();
    let layers = two_layers();
    let image = layout.image(&layers, &json!(null));
    // An index that leads to itself cannot be made, one that is deep can.
    let mut deep = image.clone();
    for _ in 0..5 {
        let index = json!({"schemaVersion": 2, "manifests": [deep]});
        deep = layout.blob(INDEX, index.to_string().as_bytes());
    }
    layout.index(&[deep]);
    assert!(matches!(open(&dir, None), Err(ImageError::Rule { .. })));
    // A manifest that is not one of an image.
    let config = layout.blob("application/vnd.example", b"{}");
    let manifest = json!({"schemaVersion": 2, "config": config, "layers": []});
    layout.index(&[layout.blob(layouts::MANIFEST, manifest.to_string().as_bytes())]);
    assert!(matches!(
        open(&dir, None),
        Err(ImageError::Document(DocumentError::NotAnImage { .. }))
    ));
    // A huge one, which is not read.
    let huge = dir.path().join("index.json");
    fs::File::create(&huge).unwrap().set_len(1 << 40).unwrap();
    assert!(matches!(open(&dir, None), Err(ImageError::TooLarge { .. })));
    fs::write(&huge, "[".repeat(1 << 20)).unwrap();
    assert!(matches!(
        open(&dir, None),
        Err(ImageError::Document(DocumentError::Json { .. }))
    ));
}

/// `skopeo` writes the archives of old Dockers and OCI's.
#[cfg(feature = "privileged")] // needs skopeo
#[test]
fn archives_hold_what_the_layout_held() {
    let dir = two_images();
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let from = format!("oci:{}:one", dir.path().display());
    let copy = |to: &str| layouts::run("skopeo", &["--insecure-policy", "copy", &from, to]);
    let (old, new) = (path("old.tar"), path("new.tar"));
    copy(&format!("docker-archive:{old}:localhost/a:1"));
    copy(&format!("oci-archive:{new}:one"));
    let one = open(&dir, Some("one")).unwrap();
    for (file, wanted) in [(&old, "localhost/a:1"), (&new, "one")] {
        for wanted in [None, Some(wanted)] {
            let image = archive::open(Path::new(file), wanted, &amd64()).unwrap();
            assert_eq!(image.config.diff_ids, one.config.diff_ids);
            assert_eq!(
                image.config.run.healthcheck, one.config.run.healthcheck,
                "{file}"
            );
        }
        let error = archive::open(Path::new(file), Some("other"), &amd64()).unwrap_err();
        assert!(matches!(error, ImageError::NoSuchImage { .. }), "{error}");
    }
    let image = archive::open(Path::new(&old), None, &amd64()).unwrap();
    assert_eq!(contents(&image), two_layers());
    assert_eq!(
        (image.manifest, image.name),
        (None, Some("localhost/a:1".to_owned()))
    );
    let image = archive::open(Path::new(&new), None, &amd64()).unwrap();
    assert_eq!(image.manifest, one.manifest);
    let packed = path("packed.tar.gz");
    fs::write(&packed, gzip(&fs::read(&old).unwrap())).unwrap();
    let error = archive::open(Path::new(&packed), None, &amd64()).unwrap_err();
    assert!(matches!(error, ImageError::Compressed { .. }), "{error}");
}

/// A tar with links, as Docker writes for layers that occur twice, and with links that lead
/// nowhere, out of it, or in a circle.
#[test]
fn links_in_archives_stay_inside() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("a.tar");
    let layers = two_layers();
    let ids = vec![digest_of(&layers[0]); 2];
    let config = json!({"rootfs": {"type": "layers", "diff_ids": ids}}).to_string();
    let open_with = |link: &str, to: &str| {
        let name = format!("{}.json", digest_of(config.as_bytes()).hex());
        let manifest = json!([{"Config": name, "Layers": ["a/layer.tar", "b/layer.tar"]}]);
        let manifest = manifest.to_string();
        let files: [(&str, &[u8]); 3] = [
            (&name, config.as_bytes()),
            ("manifest.json", manifest.as_bytes()),
            ("a/layer.tar", &layers[0]),
        ];
        let bytes = layer(&files);
        // Two empty records end a tar: they go, and the link follows.
        let mut tar = bytes[..bytes.len() - 1024].to_vec();
        let mut more = tar::Builder::new(Vec::new());
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(tar::EntryType::Symlink);
        header.set_size(0);
        more.append_link(&mut header, link, to).unwrap();
        tar.extend(more.into_inner().unwrap());
        fs::write(&file, tar).unwrap();
        archive::open(&file, None, &amd64())
    };
    let image = open_with("b/layer.tar", "../a/layer.tar").unwrap();
    assert_eq!(contents(&image), vec![layers[0].clone(); 2]);
    for (link, to) in [
        ("b/layer.tar", "../../etc/passwd"),
        ("b/layer.tar", "/etc/passwd"),
        ("b/layer.tar", "layer.tar"),
        ("c/layer.tar", "../a/layer.tar"),
    ] {
        assert!(open_with(link, to).is_err(), "{link} to {to}");
    }
}

#[cfg(feature = "privileged")] // needs skopeo
#[test]
fn an_archive_cut_short_is_refused() {
    let dir = two_images();
    let old = dir.path().join("old.tar");
    let from = format!("oci:{}:one", dir.path().display());
    let to = format!("docker-archive:{}:a:1", old.display());
    layouts::run("skopeo", &["--insecure-policy", "copy", &from, &to]);
    let whole = fs::read(&old).unwrap();
    let cut = dir.path().join("cut.tar");
    for len in (0..whole.len()).step_by(512) {
        fs::write(&cut, &whole[..len]).unwrap();
        // The last two records are empty, and so is the padding before them.
        if let Ok(image) = archive::open(&cut, None, &amd64()) {
            assert_eq!(contents(&image), two_layers(), "{len}");
        }
    }
}
