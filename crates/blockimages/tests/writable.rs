//! Images with a writable layer do what an array does, and lose nothing when they are closed.

#![expect(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    reason = "tests"
)]

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use blockimages::manage;
use blockimages::{DeviceFile, FILE_NAME, ImageError, LayeredDevice, open_image};
use blocks::testing::MemDevice;
use blocks::{
    BlockDevice, BlockSource as _, Content, DeviceAccess, DeviceErrorKind, Durability,
    FileWriter as _, NodeKind, Space,
};
use lsmt::{DirFolder, FileStorage, LiveImage, NewUpper, Upper, UpperFiles, UpperKind};

const BLOCK: u64 = 512;
/// What of the device the model has: the rest is as the layers below have it.
const MODEL: u64 = 4096 * BLOCK;

fn vectors() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../lsmt/tests/vectors")
}

/// Makes an image of a sealed layer of the real tools, and a pair of files on top of it.
fn with_pair(dir: &Path, kind: UpperKind) {
    let create = |name: &str| {
        let mut options = File::options();
        let opened = options.read(true).write(true).create_new(true);
        Arc::new(FileStorage::new(opened.open(dir.join(name)).unwrap()))
    };
    let files = UpperFiles {
        data: create("upper.data"),
        index: create("upper.index"),
        journal: None,
    };
    Upper::create(files, &new(kind)).unwrap();
    configure(dir, r#"{"index":"upper.index","data":"upper.data"}"#);
}

/// Makes the same with the directory of a live image.
fn with_folder(dir: &Path) {
    std::fs::create_dir(dir.join("upper")).unwrap();
    let folder = Arc::new(DirFolder::new(dir.join("upper")));
    let blob = File::open(vectors().join("A.lz4.4k.obd")).unwrap();
    let lower = lsmt::open_blob(Arc::new(FileStorage::new(blob))).unwrap();
    LiveImage::create(folder, vec![Arc::new(lower)], &new(UpperKind::Append)).unwrap();
    configure(dir, r#"{"dir":"upper"}"#);
}

fn new(kind: UpperKind) -> NewUpper {
    NewUpper {
        kind,
        virtual_size: 1 << 30,
        ..NewUpper::default()
    }
}

fn configure(dir: &Path, upper: &str) {
    std::fs::copy(vectors().join("A.lz4.4k.obd"), dir.join("a")).unwrap();
    let text = format!(r#"{{"lowers":[{{"file":"a"}}],"upper":{upper}}}"#);
    std::fs::write(dir.join("config.v1.json"), text).unwrap();
}

/// Numbers that are the same in each run.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, bound: u64) -> u64 {
        // xorshift64
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }
}

fn read(device: &LayeredDevice) -> Vec<u8> {
    let mut bytes = vec![0xEE; MODEL as usize];
    device.read_at(0, &mut bytes).unwrap();
    bytes
}

/// Changes device and model in the same way.
fn change(device: &LayeredDevice, model: &mut [u8], numbers: &mut Numbers) {
    let start = numbers.below(MODEL / BLOCK) * BLOCK;
    let end = start + BLOCK * (1 + numbers.below(((MODEL - start) / BLOCK).min(64)));
    let span = start as usize..end as usize;
    let durability = match numbers.below(8) {
        0 => Durability::Durable,
        _ => Durability::Flushed,
    };
    match numbers.below(6) {
        0 => {
            device.trim(start..end, durability).unwrap();
            model[span].fill(0);
        }
        1 => {
            let space = [Space::Keep, Space::Release][numbers.below(2) as usize];
            device.write_zeroes(start..end, space, durability).unwrap();
            model[span].fill(0);
        }
        2 => device.flush().unwrap(),
        _ => {
            let seed = numbers.below(251);
            let data: Vec<u8> = span
                .clone()
                .map(|at| (at as u64 * 7 + seed) as u8)
                .collect();
            device.write_at(start, &data, durability).unwrap();
            model[span].copy_from_slice(&data);
        }
    }
}

/// All of the device is told of, and what is told to be zeros is zeros.
fn check_extents(device: &LayeredDevice, model: &[u8]) {
    let (mut at, mut written) = (0, 0);
    while at < MODEL {
        for extent in device.extents(at..MODEL, 5).unwrap() {
            let end = at + extent.len;
            if extent.content == Content::Data {
                written += extent.len;
            } else {
                let zeros = &model[at as usize..end as usize];
                assert!(zeros.iter().all(|byte| *byte == 0), "{at}..{end}");
            }
            at = end;
        }
    }
    assert_eq!(at, MODEL);
    assert!(written > 0 && written < MODEL, "{written}");
}

fn does_what_an_array_does(dir: &Path) {
    let mut numbers = Numbers(0x5eed);
    let device = open_image(dir, None).unwrap();
    let info = device.info();
    assert_eq!((info.size, info.access), (1 << 30, DeviceAccess::ReadWrite));
    let mut model = read(&device);
    assert!(
        model.iter().any(|byte| *byte != 0),
        "there is a layer below"
    );
    drop(device);
    for _ in 0..5 {
        let device = open_image(dir, None).unwrap();
        assert!(read(&device) == model, "it is another one after a start");
        for _ in 0..60 {
            change(&device, &mut model, &mut numbers);
        }
        assert!(read(&device) == model);
        check_extents(&device, &model);
        // Closed with what was not flushed: the journal has it.
    }
    let device = open_image(dir, None).unwrap();
    assert!(read(&device) == model);

    // One process owns it, and one device of that.
    assert!(matches!(
        open_image(dir, None),
        Err(ImageError::UpperInUse(_))
    ));
    let outside = device.write_at(info.size, &[0; 512], Durability::Flushed);
    assert_eq!(outside.unwrap_err().kind(), DeviceErrorKind::OutOfBounds);
    let misaligned = device.trim(1..512, Durability::Flushed);
    assert_eq!(misaligned.unwrap_err().kind(), DeviceErrorKind::Misaligned);
}

#[test]
fn an_image_with_a_pair_of_files_does_what_an_array_does() {
    for kind in [UpperKind::Append, UpperKind::Sparse, UpperKind::Hybrid] {
        let dir = tempfile::tempdir().unwrap();
        with_pair(dir.path(), kind);
        does_what_an_array_does(dir.path());
    }
}

#[test]
fn an_image_with_a_directory_does_what_an_array_does() {
    let dir = tempfile::tempdir().unwrap();
    with_folder(dir.path());
    does_what_an_array_does(dir.path());
}

#[test]
fn what_was_flushed_needs_no_journal() {
    let dir = tempfile::tempdir().unwrap();
    with_pair(dir.path(), UpperKind::Append);
    let device = open_image(dir.path(), None).unwrap();
    device.write_at(0, &[1; 512], Durability::Flushed).unwrap();
    device.flush().unwrap();
    device
        .write_at(512, &[2; 512], Durability::Durable)
        .unwrap();
    device.trim(1024..1536, Durability::Durable).unwrap();
    drop(device);
    std::fs::remove_file(dir.path().join("upper.data.journal")).unwrap();
    let device = open_image(dir.path(), None).unwrap();
    let expected = [[1; 512], [2; 512], [0; 512]].concat();
    assert_eq!(read(&device)[..1536], expected);
}

/// As a mount shows it: parts of blocks can be written, and the rest of them stays.
#[test]
fn the_file_of_a_device_is_written_to_byte_by_byte() {
    let device = Arc::new(MemDevice::new(8 * BLOCK, BLOCK as u32));
    let (file, tree) = DeviceFile::new(Arc::clone(&device) as _).unwrap();
    let id = tree.resolve(FILE_NAME.as_bytes()).unwrap();
    let attr = tree.inode(id).unwrap().attr;
    assert_eq!((attr.kind, attr.perm), (NodeKind::File, 0o600));
    let mut model = vec![0; 8 * BLOCK as usize];
    for (at, len, byte) in [
        (0, 512, 1),
        (700, 100, 2),
        (100, 1500, 3),
        (4095, 1, 4),
        (1000, 24, 5),
    ] {
        file.write_at(id, at, &vec![byte; len]).unwrap();
        model[at as usize..][..len].fill(byte);
        assert_eq!(device.content(), model);
    }
    file.clear(id, 512..1024).unwrap();
    model[512..1024].fill(0);
    let mut found = vec![0; model.len()];
    file.read_at(&tree.key(id).unwrap(), 0, &mut found).unwrap();
    assert_eq!(found, model);
    // Nothing is durable before it is flushed.
    device.crash();
    assert!(device.content().iter().all(|byte| *byte == 0));
    file.write_at(id, 0, &[1]).unwrap();
    file.flush(id).unwrap();
    device.crash();
    assert_eq!(device.content()[0], 1);
    file.write_at(id, 4095, &[1, 2]).unwrap_err();
    file.write_at(blocks::FileId::ROOT, 0, &[1]).unwrap_err();
}

/// What was written becomes a layer, and the image has it still.
#[test]
fn a_writable_layer_is_sealed_and_stays() {
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("image");
    std::fs::create_dir(&image).unwrap();
    with_pair(&image, UpperKind::Hybrid);
    let write = |at: u64, byte: u8| {
        let device = open_image(&image, None).unwrap();
        let data = vec![byte; 64 * BLOCK as usize];
        device.write_at(at, &data, Durability::Durable).unwrap();
    };
    write(0, 1);
    let blob = dir.path().join("blob");
    let options = blockimages::convert::ConvertOptions::default().blob();
    // One that is in use is not sealed, and nothing is left of the attempt.
    let open = open_image(&image, None).unwrap();
    let refused = manage::seal(&image, &blob, options, &[]).unwrap_err();
    assert!(matches!(refused, ImageError::UpperInUse(_)), "{refused}");
    assert!(!blob.exists());
    drop(open);
    let first = manage::seal(&image, &blob, options, &[]).unwrap();
    write(100 * BLOCK, 2);
    let second = manage::seal(&image, &blob, options, &[]).unwrap();
    assert_ne!(first.digest, second.digest);
    assert_eq!(second.size, blob.metadata().unwrap().len());
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 2);
    // On the same layers below, it is what the image is.
    let stacked = dir.path().join("stacked");
    std::fs::create_dir(&stacked).unwrap();
    let lower = vectors().join("A.lz4.4k.obd");
    let config = format!(r#"{{"lowers":[{{"file":{lower:?}}},{{"file":{blob:?}}}]}}"#);
    std::fs::write(stacked.join("config.v1.json"), config).unwrap();
    let read = |image: &Path| {
        let device = open_image(image, None).unwrap();
        let mut found = vec![0; 4096 * BLOCK as usize];
        device.read_at(0, &mut found).unwrap();
        (device.info().size, found)
    };
    assert!(read(&image) == read(&stacked), "the layer differs");
}

/// The same content, written in another order and in other pieces, is the same blob.
#[test]
fn the_same_content_is_sealed_to_the_same_blob() {
    let dir = tempfile::tempdir().unwrap();
    let options = blockimages::convert::ConvertOptions::default().blob();
    let seal = |name: &str, kind, pieces: &[std::ops::Range<u64>]| {
        let image = dir.path().join(name);
        let new = manage::NewImage::from(manage::Top::Pair(kind)).sized(1 << 30);
        manage::create(&image, blockimages::DeviceConfig::default(), new).unwrap();
        let device = open_image(&image, None).unwrap();
        for piece in pieces {
            let data: Vec<u8> = piece
                .clone()
                .flat_map(|block| [block as u8; 4096])
                .collect();
            let at = piece.start * 4096;
            device.write_at(at, &data, Durability::Flushed).unwrap();
        }
        device.flush().unwrap();
        drop(device);
        let blob = dir.path().join(format!("{name}.blob"));
        manage::seal(&image, &blob, options, b"same")
            .unwrap()
            .digest
    };
    // More than a segment has: 8 MiB.
    let whole = [10..20, 100..5100];
    let blocks: Vec<_> = (100..5100)
        .rev()
        .chain(10..20)
        .map(|at| at..at + 1)
        .collect();
    let twice = [0..4, 4000..5100, 10..20, 100..4050];
    let digests = [
        seal("whole", UpperKind::Append, &whole),
        seal("blocks", UpperKind::Append, &blocks),
        seal("hybrid", UpperKind::Hybrid, &twice[1..]),
        seal("sparse", UpperKind::Sparse, &whole),
    ];
    assert!(
        digests.iter().all(|digest| *digest == digests[0]),
        "{digests:?}"
    );
    assert_ne!(seal("more", UpperKind::Hybrid, &twice), digests[0]);
}
