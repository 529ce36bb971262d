//! Images and raw files are the devices that they should be.

#![expect(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    reason = "tests"
)]

use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use blockimages::{ImageError, RawDevice, open_image};
use blocks::{
    BlockDevice, Content, DeviceAccess, DeviceErrorKind, DeviceExtent, Durability, Space,
};

fn vectors() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../lsmt/tests/vectors")
}

/// Returns the first bytes of a device that the real tools made an image of.
fn expected(name: &str) -> Vec<u8> {
    let packed = File::open(vectors().join(name)).unwrap();
    let mut bytes = Vec::new();
    let mut content = zstd::Decoder::new(packed).unwrap().take(64 << 20);
    content.read_to_end(&mut bytes).unwrap();
    bytes
}

fn config(dir: &Path, text: &str) {
    std::fs::write(dir.join("config.v1.json"), text).unwrap();
}

#[test]
fn an_image_of_the_real_tools_reads_as_it_should() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("top")).unwrap();
    let copy = |from: &str, to: &str| {
        std::fs::copy(vectors().join(from), dir.path().join(to)).unwrap();
    };
    copy("B1.obd", "bottom.obd");
    copy("B2.obd", "top/overlaybd.commit");
    config(
        dir.path(),
        r#"{"repoBlobUrl":"","unknown":1,
            "lowers":[{"file":"bottom.obd"},{"dir":"top","digest":"sha256:00","size":7}],
            "resultFile":"result"}"#,
    );
    let device = open_image(dir.path(), None).unwrap();
    let info = device.info();
    assert_eq!((info.size, info.access), (1 << 30, DeviceAccess::ReadOnly));
    let expected = expected("B1+B2.expected.raw.zst");
    let mut read = vec![0xEE; expected.len()];
    device.read_at(0, &mut read).unwrap();
    assert!(read == expected, "the content differs");

    // What is no data is zero, and all of the device is told of.
    let mut at = 0;
    let mut data = 0;
    while at < info.size {
        for extent in device.extents(at..info.size, 7).unwrap() {
            let end = at + extent.len;
            if extent.content == Content::Data {
                data += extent.len;
            } else if end <= expected.len() as u64 {
                assert!(
                    expected[at as usize..end as usize]
                        .iter()
                        .all(|byte| *byte == 0)
                );
            }
            at = end;
        }
    }
    assert_eq!(at, info.size);
    assert!(data > 0 && data < 16 << 20, "{data}");

    let wrote = device
        .write_at(0, &[0; 512], Durability::Flushed)
        .unwrap_err();
    assert_eq!(wrote.kind(), DeviceErrorKind::ReadOnly);
    let mut sector = [0; 512];
    let outside = device.read_at(info.size, &mut sector).unwrap_err();
    assert_eq!(outside.kind(), DeviceErrorKind::OutOfBounds);
}

#[test]
fn configurations_that_cannot_be_served_say_why() {
    let dir = tempfile::tempdir().unwrap();
    let why = |text: &str| {
        config(dir.path(), text);
        let error = open_image(dir.path(), None).unwrap_err();
        format!("{error}")
    };
    assert!(why("{").contains("is invalid"));
    assert!(why(r#"{"lowers":[]}"#).contains("it has no layers"));
    let many = vec!["{}"; 256].join(",");
    assert!(why(&format!(r#"{{"lowers":[{many}]}}"#)).contains("more than 255"));
    assert!(why(r#"{"lowers":[{}]}"#).contains("neither a file nor a digest"));
    assert!(why(r#"{"lowers":[{"digest":"sha256:12","dir":"x"}]}"#).contains("`cache`"));
    for upper in [r#"{"index":"i"}"#, r#"{"index":"i","data":"d","dir":"u"}"#] {
        assert!(why(&format!(r#"{{"upper":{upper}}}"#)).contains("and not both"));
    }
    assert!(why(r#"{"upper":{"index":"i","data":"missing"}}"#).contains("missing"));
    assert!(why(r#"{"upper":{"index":"","data":""}}"#).contains("it has no layers"));
    let turbo = r#"{"lowers":[{"targetFile":"b"}]}"#;
    assert!(why(turbo).contains("turboOCI"));
    assert!(why(r#"{"lowers":[{"file":"missing"}]}"#).contains("missing"));
    std::fs::write(dir.path().join("junk"), [1; 9000]).unwrap();
    let junk = why(r#"{"lowers":[{"file":"junk"}]}"#);
    assert!(junk.contains("layer 1 (from the bottom"), "{junk}");
    assert!(why(&format!(r#"{{"lowers":[],"x":"{}"}}"#, "y".repeat(2 << 20))).contains("1 MiB"));
}

#[test]
fn damage_is_told_and_not_served() {
    let dir = tempfile::tempdir().unwrap();
    let mut blob = std::fs::read(vectors().join("A.lz4.4k.obd")).unwrap();
    blob[100_000] ^= 1;
    std::fs::write(dir.path().join("a"), blob).unwrap();
    config(dir.path(), r#"{"lowers":[{"file":"a"}]}"#);
    let device = open_image(dir.path(), None).unwrap();
    let expected = expected("A.expected.raw.zst");
    let mut bad = 0;
    for (index, block) in expected.chunks(4096).enumerate() {
        let mut read = vec![0; block.len()];
        match device.read_at(index as u64 * 4096, &mut read) {
            Ok(()) => assert!(read == block, "block {index}"),
            Err(error) => {
                assert_eq!(error.kind(), DeviceErrorKind::Damaged, "{error}");
                bad += 1;
            }
        }
    }
    assert!((1..=2).contains(&bad), "{bad} blocks were not served");
}

#[test]
fn a_raw_file_is_written_trimmed_and_told_of() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("disk.raw");
    File::create(&path)
        .unwrap()
        .set_len((1 << 20) + 100)
        .unwrap();
    let device = RawDevice::open(&path, DeviceAccess::ReadWrite).unwrap();
    assert_eq!(device.info().size, 1 << 20, "whole blocks only");
    assert!(matches!(
        RawDevice::open(&path, DeviceAccess::ReadOnly),
        Err(ImageError::File {
            doing: "locking",
            ..
        })
    ));
    device
        .write_at(65_536, &[5; 131_072], Durability::Durable)
        .unwrap();
    device.trim(131_072..147_456, Durability::Flushed).unwrap();
    device
        .write_zeroes(147_456..163_840, Space::Keep, Durability::Flushed)
        .unwrap();
    device
        .write_zeroes(163_840..164_352, Space::Release, Durability::Flushed)
        .unwrap();
    device.flush().unwrap();
    let mut expected = vec![0; 1 << 20];
    expected[65_536..131_072].fill(5);
    expected[164_352..196_608].fill(5);
    let mut read = vec![0; 1 << 20];
    device.read_at(0, &mut read).unwrap();
    assert!(read == expected);
    let extents = device.extents(512..1 << 20, 100).unwrap();
    let total: u64 = extents.iter().map(|extent| extent.len).sum();
    assert_eq!(total, (1 << 20) - 512);
    assert_eq!(
        extents[0],
        DeviceExtent {
            len: 65_024,
            content: Content::Hole
        }
    );
    assert_eq!(extents[1].content, Content::Data);
    assert_eq!(device.extents(512..1 << 20, 1).unwrap().len(), 1);
    let outside = device
        .write_at(1 << 20, &[0; 512], Durability::Flushed)
        .unwrap_err();
    assert_eq!(outside.kind(), DeviceErrorKind::OutOfBounds);
    drop(device);
    let device = RawDevice::open(&path, DeviceAccess::ReadOnly).unwrap();
    RawDevice::open(&path, DeviceAccess::ReadOnly).unwrap();
    assert!(device.write_at(0, &[0; 512], Durability::Flushed).is_err());
}
