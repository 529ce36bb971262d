//! Devices grow while they are used, and stay as large as they are.

#![expect(clippy::unwrap_used, reason = "tests")]

use std::path::{Path, PathBuf};

use blockimages::manage::{self, NewImage, Top, UpperKind};
use blockimages::{DeviceConfig, RawDevice, open_image};
use blocks::{BlockDevice, DeviceAccess, DeviceErrorKind, Durability};

const MIB: u64 = 1 << 20;

/// Makes an image of 1 MiB, or a raw disk, and returns its path.
fn made(dir: &Path, top: Option<Top>) -> PathBuf {
    let path = dir.join("image");
    match top {
        Some(top) => {
            manage::create(
                &path,
                DeviceConfig::default(),
                NewImage::from(top).sized(MIB),
            )
            .unwrap();
        }
        None => std::fs::write(&path, vec![0; 1 << 20]).unwrap(),
    }
    path
}

fn open(path: &Path) -> Box<dyn BlockDevice> {
    match path.is_dir() {
        true => Box::new(open_image(path, None).unwrap()),
        false => Box::new(RawDevice::open(path, DeviceAccess::ReadWrite).unwrap()),
    }
}

fn read(device: &dyn BlockDevice, offset: u64) -> Vec<u8> {
    let mut bytes = vec![0xEE; 4096];
    device.read_at(offset, &mut bytes).unwrap();
    bytes
}

#[test]
fn what_was_there_stays_and_what_is_added_can_be_written_to() {
    let kinds = [UpperKind::Append, UpperKind::Sparse, UpperKind::Hybrid];
    let tops = kinds.map(|kind| Some(Top::Pair(kind)));
    for top in tops.into_iter().chain([Some(Top::Live), None]) {
        let dir = tempfile::tempdir().unwrap();
        let image = made(dir.path(), top);
        let device = open(&image);
        device
            .write_at(MIB - 4096, &[1; 4096], Durability::Flushed)
            .unwrap();
        let behind = device.write_at(MIB, &[2; 4096], Durability::Flushed);
        assert_eq!(behind.unwrap_err().kind(), DeviceErrorKind::OutOfBounds);
        for _twice in 0..2 {
            device.grow(3 * MIB).unwrap();
            assert_eq!(device.info().size, 3 * MIB, "{top:?}");
        }
        assert_eq!(read(&*device, MIB - 4096), [1; 4096], "{top:?}");
        assert_eq!(read(&*device, 3 * MIB - 4096), [0; 4096], "{top:?}");
        device
            .write_at(3 * MIB - 4096, &[2; 4096], Durability::Flushed)
            .unwrap();
        for (size, why) in [
            (2 * MIB, DeviceErrorKind::OutOfBounds),
            (u64::MAX, DeviceErrorKind::OutOfBounds),
            (3 * MIB + 100, DeviceErrorKind::Misaligned),
        ] {
            assert_eq!(device.grow(size).unwrap_err().kind(), why, "{top:?}");
        }
        device.flush().unwrap();
        drop(device);
        // It is as large for who opens it next.
        let device = open(&image);
        assert_eq!(device.info().size, 3 * MIB, "{top:?}");
        assert_eq!(read(&*device, MIB - 4096), [1; 4096], "{top:?}");
        assert_eq!(read(&*device, 2 * MIB), [0; 4096], "{top:?}");
        assert_eq!(read(&*device, 3 * MIB - 4096), [2; 4096], "{top:?}");
    }
}

#[test]
fn what_can_only_be_read_has_its_size() {
    let dir = tempfile::tempdir().unwrap();
    let disk = made(dir.path(), None);
    let device = RawDevice::open(&disk, DeviceAccess::ReadOnly).unwrap();
    let refused = device.grow(2 * MIB).unwrap_err();
    assert_eq!(refused.kind(), DeviceErrorKind::ReadOnly);
    assert_eq!(std::fs::metadata(&disk).unwrap().len(), MIB);
}
