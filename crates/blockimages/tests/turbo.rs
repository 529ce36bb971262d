//! Images that refer to the layers of a container image are the same devices as those that have their data.

#![expect(clippy::unwrap_used, reason = "tests")]

use std::fs;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use blockimages::convert::{
    CONTENT_ROOT, ConvertError, ConvertOptions, Converted, DataPlace, FileSystem, convert,
};
use blockimages::plan::StartPlan;
use blockimages::{
    BlobSource, CONFIG_NAME, DeviceConfig, ImageError, LayerStart, RemoteLayer, Start,
    StartRecorder, open_image, open_image_from,
};
use blocks::BlockDevice;
use lsmt::{FileStorage, Layer, ReadAt, SegmentBudget};
use oci::Platform;
use serde_json::json;
use testkit::layouts::{LayoutDir, layer, named};

const DEVICE: u64 = 64 << 20;

fn go_on(_: u64) -> ControlFlow<()> {
    ControlFlow::Continue(())
}

/// Bytes that do not compress well.
fn bytes(len: usize) -> Vec<u8> {
    let mut word = 0x9e37_79b9_7f4a_7c15_u64;
    let words = std::iter::repeat_with(|| {
        word ^= word << 13;
        word ^= word >> 7;
        word ^= word << 17;
        word
    });
    words.flat_map(u64::to_le_bytes).take(len).collect()
}

/// Makes a layout of an image with two layers.
fn layout(dir: &Path) {
    let big = bytes(9_000_001);
    let base = layer(&[("etc/a", b"one"), ("usr/big", &big), ("usr/empty", b"")]);
    let top = layer(&[("etc/.wh.a", b""), ("etc/b", b"two"), ("odd", &big[..5000])]);
    let made = LayoutDir(dir);
    made.start();
    made.index(&[named(made.image(&[base, top], &json!({})), "one")]);
}

fn options(file_system: FileSystem, data: DataPlace) -> ConvertOptions {
    ConvertOptions {
        file_system,
        data,
        virtual_size: DEVICE,
        ..ConvertOptions::default()
    }
}

fn converted(source: &Path, to: &Path, options: &ConvertOptions) -> Converted {
    let image = oci::layout::open(source, Some("one"), &Platform::host()).unwrap();
    convert(&image, to, "image", options, &mut go_on).unwrap()
}

fn content(device: &dyn BlockDevice) -> Vec<u8> {
    let mut bytes = vec![9; usize::try_from(DEVICE).unwrap()];
    device.read_at(0, &mut bytes).unwrap();
    bytes
}

#[test]
fn the_device_is_the_one_that_has_its_data() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    layout(dir);
    for file_system in [FileSystem::Erofs, FileSystem::Ext4] {
        let [copied, referred, again] = ["copied", "referred", "again"]
            .map(|name| dir.join(format!("{name}-{}", file_system.name())));
        let has_data = converted(dir, &copied, &options(file_system, DataPlace::Copied));
        let index = options(file_system, DataPlace::Referred);
        let refers = converted(dir, &referred, &index);
        // The same each time, and small.
        assert_eq!(converted(dir, &again, &index).manifest, refers.manifest);
        // What it refers to is the container image's.
        let (config, _) = DeviceConfig::read(&refers.config).unwrap();
        assert!(config.lowers.iter().all(|lower| lower.content.is_none()));
        let manifest = fs::read(referred.join("blobs/sha256").join(refers.manifest.hex()));
        let manifest = String::from_utf8(manifest.unwrap()).unwrap();
        assert!(!manifest.contains(CONTENT_ROOT), "{manifest}");
        let bytes = |image: &Converted| image.layers.iter().map(|layer| layer.size).sum::<u64>();
        assert!(bytes(&has_data) > 9_000_000);
        assert!(bytes(&refers) < bytes(&has_data) / 10, "{}", bytes(&refers));
        let reused = converted(dir, &referred, &index);
        assert!(reused.layers.iter().all(|layer| layer.reused));
        assert_eq!(reused.manifest, refers.manifest);

        let [copied, referred] = [copied, referred].map(|dir| {
            let device = open_image(&dir.join("image"), None).unwrap();
            content(&device)
        });
        assert!(copied == referred, "the devices differ");
        // Records are of either kind, not of both.
        let both = converted(dir, &again, &options(file_system, DataPlace::Copied));
        assert_eq!(both.manifest, has_data.manifest);
    }
}

#[test]
fn overlaybds_own_image_is_read() {
    let vectors = Path::new(env!("CARGO_MANIFEST_DIR")).join("../lsmt/tests/vectors");
    let at = |name: &str| vectors.join(name).display().to_string();
    let dir = tempfile::tempdir().unwrap();
    let config = json!({"lowers": [{
        "file": at("C.ext4.fs.meta"),
        "targetFile": at("layer1.tar.gz"),
        "gzipIndex": at("C.gzip.meta"),
    }]});
    fs::write(dir.path().join(CONFIG_NAME), config.to_string()).unwrap();
    let device = open_image(dir.path(), None).unwrap();
    let mut superblock = [0; 1024];
    device.read_at(1024, &mut superblock).unwrap();
    assert_eq!(superblock[56..58], 0xef53_u16.to_le_bytes());
}

/// Serves the layers of a layout, and counts the bytes that are read.
struct Counting {
    blobs: PathBuf,
    read: Arc<AtomicU64>,
    /// Bytes that are known to be read.
    planned: AtomicU64,
}

struct CountingBlob {
    file: FileStorage,
    read: Arc<AtomicU64>,
}

impl ReadAt for CountingBlob {
    fn size(&self) -> std::io::Result<u64> {
        self.file.size()
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> std::io::Result<()> {
        self.read.fetch_add(buffer.len() as u64, Relaxed);
        self.file.read_at(buffer, offset)
    }
}

impl BlobSource for Counting {
    fn open(
        &self,
        _: &str,
        _: &[RemoteLayer],
        _: &Start,
        _: &SegmentBudget,
    ) -> Result<Vec<Layer>, ImageError> {
        unreachable!("there is no layer with data")
    }

    fn blob(
        &self,
        blob_url: &str,
        layer: &RemoteLayer,
        start: LayerStart<'_>,
    ) -> Result<Arc<dyn ReadAt>, ImageError> {
        let planned = start.plan().into_iter();
        let planned: u64 = planned.map(|(_, range)| range.end - range.start).sum();
        self.planned.fetch_add(planned, Relaxed);
        assert_eq!(blob_url, "https://registry/v2/some/app/blobs");
        let path = self
            .blobs
            .join(layer.digest.strip_prefix("sha256:").unwrap());
        assert_eq!(layer.size, path.metadata().unwrap().len());
        Ok(start.watched(Arc::new(CountingBlob {
            file: FileStorage::new(fs::File::open(path).unwrap()),
            read: Arc::clone(&self.read),
        })))
    }
}

#[test]
fn a_read_fetches_what_it_needs_of_a_layer_elsewhere() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    layout(dir);
    let to = dir.join("to");
    let index = options(FileSystem::Erofs, DataPlace::Referred);
    converted(dir, &to, &index);
    let here = content(&open_image(&to.join("image"), None).unwrap());
    // As an image is that was made of a registry's.
    let (mut config, path) = DeviceConfig::read(&to.join("image")).unwrap();
    config.repo_blob_url = "https://registry/v2/some/app/blobs".to_owned();
    for lower in &mut config.lowers {
        lower.target_file.clear();
    }
    fs::write(&path, serde_json::to_vec(&config).unwrap()).unwrap();
    let failed = open_image(&path, None).unwrap_err().to_string();
    assert!(failed.contains("`cache`"), "{failed}");
    let read = Arc::new(AtomicU64::new(0));
    let elsewhere = Counting {
        blobs: dir.join("blobs/sha256"),
        read: Arc::clone(&read),
        planned: AtomicU64::new(0),
    };
    let recorder = StartRecorder::default();
    let start = Start {
        plan: None,
        recorder: Some(recorder.clone()),
        ..Start::default()
    };
    let device = open_image_from(&path, Some(&elsewhere), &start).unwrap();
    assert_eq!(read.load(Relaxed), 0, "opening needs no data");
    // Somewhere in the file of 9 MB.
    let mut block = [0; 4096];
    device.read_at(5 << 20, &mut block).unwrap();
    assert_eq!(block, here[5 << 20..][..4096]);
    // At most the part between two access points, and a buffer.
    let fetched = read.load(Relaxed);
    assert!((1..=1_300_000).contains(&fetched), "{fetched}");
    // What was read of the layer is a plan of it, for the next that opens it.
    let digests = config.digests();
    let plan = StartPlan::of_trace(&recorder.trace(), &digests, 1);
    assert!(plan.bytes() >= fetched / 2, "{} of {fetched}", plan.bytes());
    let start = Start {
        plan: Some(plan.trace_of(&digests)),
        recorder: None,
        ..Start::default()
    };
    open_image_from(&path, Some(&elsewhere), &start).unwrap();
    assert_eq!(elsewhere.planned.load(Relaxed), plan.bytes());
    assert!(content(&device) == here, "the devices differ");
}

#[test]
fn a_layer_may_be_a_plain_tar_whatever_its_media_type_says() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    layout(dir);
    let image = oci::layout::open(dir, Some("one"), &Platform::host()).unwrap();
    let path = image.layers[0].file().unwrap().to_owned();
    let mut tar = Vec::new();
    let gzip = fs::File::open(&path).unwrap();
    std::io::copy(&mut flate2::read::GzDecoder::new(gzip), &mut tar).unwrap();
    let index = options(FileSystem::Ext4, DataPlace::Referred);
    let copied = converted(
        dir,
        &dir.join("copied"),
        &options(FileSystem::Ext4, DataPlace::Copied),
    );
    let expected = content(&open_image(copied.config.parent().unwrap(), None).unwrap());
    for bytes in [tar, fs::read(&path).unwrap()] {
        let stored = LayoutDir(dir).blob("", &bytes);
        let digest = stored["digest"].as_str().unwrap();
        let path = dir.join("blobs").join(digest.replace(':', "/"));
        let mut plain = image.clone();
        plain.layers = vec![
            oci::LayerBlob::from_file(&path, image.config.diff_ids[0]).unwrap(),
            image.layers[1].clone(),
        ];
        let source = Stored(plain, digest.parse().unwrap());
        let to = dir.join("to").join(&digest[7..]);
        convert(&source, &to, "x", &index, &mut go_on).unwrap();
        let device = open_image(&to.join("x"), None).unwrap();
        assert!(content(&device) == expected, "the device differs");
    }
}

#[test]
fn what_cannot_be_referred_to_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    layout(dir);
    let image = oci::layout::open(dir, Some("one"), &Platform::host()).unwrap();
    let mut zstd = image.clone();
    let path = zstd.layers[0].file().unwrap().to_owned();
    let mut tar = Vec::new();
    let gzip = fs::File::open(&path).unwrap();
    std::io::copy(&mut flate2::read::GzDecoder::new(gzip), &mut tar).unwrap();
    let index = options(FileSystem::Erofs, DataPlace::Referred);
    // Two gzip files, one behind the other, are a layer, too.
    let (one, other) = tar.split_at(tar.len() / 2);
    let twice = [testkit::layouts::gzip(one), testkit::layouts::gzip(other)].concat();
    for (bytes, why) in [
        (
            zstd::encode_all(&tar[..], 1).unwrap(),
            "compressed with zstd",
        ),
        (twice, "something follows its end"),
    ] {
        let stored = LayoutDir(dir).blob("", &bytes);
        let digest = stored["digest"].as_str().unwrap();
        let path = dir.join("blobs").join(digest.replace(':', "/"));
        let layer = oci::LayerBlob::from_file(&path, image.config.diff_ids[0]).unwrap();
        zstd.layers[0] = layer;
        let source = Stored(zstd.clone(), digest.parse().unwrap());
        let failed = convert(&source, &dir.join("to"), "x", &index, &mut go_on).unwrap_err();
        let said = match std::error::Error::source(&failed) {
            Some(source) => source.to_string(),
            None => failed.to_string(),
        };
        assert!(said.contains(why), "{said}");
        // Its data can be copied.
        converted_of(&source, &dir.join("copied"));
    }
    // A layer within an archive is no file.
    let failed = convert(&zstd, &dir.join("to"), "x", &index, &mut go_on).unwrap_err();
    assert!(matches!(failed, ConvertError::Rule { .. }), "{failed}");
}

/// Or else files of a container would be the metadata of its image.
#[test]
fn what_is_only_metadata_is_not_converted() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    layout(dir);
    for file_system in [FileSystem::Erofs, FileSystem::Ext4] {
        let to = dir.join(file_system.name());
        converted(dir, &to, &options(file_system, DataPlace::Referred));
        let turbo = oci::layout::open(&to, Some("image"), &Platform::host()).unwrap();
        for data in [DataPlace::Copied, DataPlace::Referred] {
            let again = dir.join("again");
            let failed = convert(&turbo, &again, "x", &options(file_system, data), &mut go_on);
            let said = failed.unwrap_err().to_string();
            assert!(said.contains("only metadata"), "{said}");
        }
    }
}

fn converted_of(source: &dyn blockimages::convert::SourceImage, to: &Path) {
    let copied = options(FileSystem::Erofs, DataPlace::Copied);
    convert(source, to, "x", &copied, &mut go_on).unwrap();
}

/// An image whose first layer is stored in another way.
struct Stored(oci::Image, blocks::Digest);

impl blockimages::convert::SourceImage for Stored {
    fn config(&self) -> &[u8] {
        &self.0.config_bytes
    }

    fn diff_ids(&self) -> &[blocks::Digest] {
        &self.0.config.diff_ids
    }

    fn layer(
        &self,
        number: usize,
        _: &Path,
        _: oci::Watch<'_>,
    ) -> Result<oci::LayerBlob, ConvertError> {
        Ok(self.0.layers[number].clone())
    }

    fn stored(&self, number: usize) -> Result<blockimages::convert::StoredLayer, ConvertError> {
        let layer = &self.0.layers[number];
        Ok(blockimages::convert::StoredLayer {
            digest: layer.stored_digest().unwrap_or(self.1),
            size: layer.size(),
            media_type: "application/vnd.oci.image.layer.v1.tar+gzip".to_owned(),
            file: layer.file().map(Into::into),
        })
    }
}
