//! Damaged images: an error or the right bytes, never a panic, never a wrong byte.

#![expect(clippy::unwrap_used, reason = "tests")]

mod sample;

use std::path::Path;
use std::sync::Arc;

use bootimg::{FormatError, Image, Variant};
use sample::{Sample, extent};

/// Corruptions of each variant: 100 000 together.
const ROUNDS: u64 = 50_000;
const PAGE: usize = 4096;

/// Random numbers, the same in every run.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % sides as u64).unwrap()
    }

    fn bytes(&mut self, count: usize) -> Vec<u8> {
        (0..count)
            .map(|_| self.roll(256).to_le_bytes()[0])
            .collect()
    }
}

/// A sample of a few blocks, so that 100 000 of them are read in reasonable time.
fn small() -> Sample {
    let mut sample = Sample::new();
    sample.plan.extents = vec![
        extent(sample::APP, 0, 2, 0, 3),
        extent(sample::CONF, 0, 1, 0, 3),
        extent(sample::LIB, 5, 6, 1, 2),
    ];
    sample
}

/// Flips, overwrites, cuts, splices: one to three of them.
fn corrupt(bytes: &mut Vec<u8>, dice: &mut Dice) {
    for _ in 0..=dice.roll(3) {
        let len = bytes.len().max(1);
        let at = dice.roll(len);
        let part = 1 + dice.roll(300.min(len));
        match dice.roll(7) {
            0 => bytes.truncate(at),
            1 => bytes.extend(dice.bytes(part)),
            2 => {
                let more = dice.bytes(part);
                bytes.splice(at..at, more);
            }
            3 => drop(bytes.drain(at..(at + part).min(len))),
            4 => {
                let from = dice.roll(len);
                let piece = bytes[from..(from + part).min(len)].to_vec();
                let end = (at + piece.len()).min(len);
                bytes.splice(at..end, piece);
            }
            _ => {
                if let Some(byte) = bytes.get_mut(at) {
                    *byte ^= 1 << dice.roll(8);
                }
            }
        }
        if bytes.is_empty() {
            return;
        }
    }
}

fn every_corruption_is_noticed(variant: Variant, seed: u64) {
    let sample = small();
    let whole = sample.bytes(variant);
    let planned = sample.plan.block_count();
    let mut dice = Dice(seed);
    let (mut opened, mut refused, mut missed) = (0, 0, 0);
    for round in 0..ROUNDS {
        let mut bytes = whole.clone();
        corrupt(&mut bytes, &mut dice);
        match Image::from_bytes(bytes) {
            Err(_) => refused += 1,
            Ok(image) => {
                opened += 1;
                assert_eq!(**image.tree(), sample.tree, "round {round}");
                assert_eq!(image.info().source, sample.info, "round {round}");
                // It panics if a byte is wrong.
                let hits = sample.read_all(Arc::new(image));
                missed += u64::from(hits < planned);
            }
        }
    }
    // The test has teeth only if all three happen often.
    assert!(
        opened > 1000 && refused > 1000 && missed > 1000,
        "{opened} {refused} {missed}"
    );
}

#[test]
fn fifty_thousand_corruptions_of_a_mapped_image_are_noticed() {
    every_corruption_is_noticed(Variant::Mapped, 0x5EED_0001);
}

#[test]
fn fifty_thousand_corruptions_of_a_packed_image_are_noticed() {
    every_corruption_is_noticed(Variant::Packed, 0x5EED_0002);
}

fn number(bytes: &[u8], at: usize) -> usize {
    let field = bytes.get(at..at + 8).unwrap_or(&[0; 8]);
    usize::try_from(u64::from_le_bytes(field.try_into().unwrap())).unwrap()
}

/// Makes all hashes right again, as a forger would.
fn reseal(bytes: &mut [u8]) {
    let footer = bytes.len() - PAGE;
    let count = u32::from_le_bytes(bytes[48..52].try_into().unwrap());
    for index in 0..usize::try_from(count).unwrap().min(32) {
        let entry = 56 + 32 * index;
        let (offset, len) = (number(bytes, entry + 8), number(bytes, entry + 16));
        let Some(section) = bytes.get(offset..offset.saturating_add(len)) else {
            continue;
        };
        let hash = *blake3::hash(section).as_bytes();
        bytes[footer + 32 * index..footer + 32 * index + 32].copy_from_slice(&hash);
    }
    let seal = *blake3::hash(&bytes[..PAGE - 32]).as_bytes();
    bytes[PAGE - 32..PAGE].copy_from_slice(&seal);
    let mut root = blake3::Hasher::new();
    root.update(&bytes[..PAGE]);
    root.update(&bytes[footer..footer + 1024]);
    let end = bytes.len();
    bytes[end - 32..].copy_from_slice(root.finalize().as_bytes());
}

#[test]
fn forged_images_are_refused_or_read_without_a_panic() {
    let sample = small();
    let mut dice = Dice(0x5EED_0003);
    let (mut opened, mut refused) = (0, 0);
    for variant in [Variant::Mapped, Variant::Packed] {
        let whole = sample.bytes(variant);
        // From the section table on, and what lies behind the data: all of what is decoded.
        let data = Image::from_bytes(whole.clone()).unwrap().info().data_blocks;
        let decoded = PAGE
            + if variant == Variant::Mapped {
                usize::try_from(data).unwrap() * PAGE
            } else {
                0
            };
        for _ in 0..10_000 {
            let mut bytes = whole.clone();
            for _ in 0..=dice.roll(2) {
                let at = match dice.roll(4) {
                    0 => dice.roll(320),
                    _ => decoded + dice.roll(bytes.len() - PAGE - decoded),
                };
                bytes[at] = match dice.roll(3) {
                    0 => 0xFF,
                    1 => bytes[at].wrapping_add(1),
                    _ => dice.roll(256).to_le_bytes()[0],
                };
            }
            reseal(&mut bytes);
            match Image::from_bytes(bytes) {
                Err(_) => refused += 1,
                Ok(image) => {
                    opened += 1;
                    let image = Arc::new(image);
                    let tree = Arc::clone(image.tree());
                    let attached = Arc::clone(&image).attach(&tree);
                    assert!(image.verify(&mut bootimg::unwatched).is_ok());
                    assert!(attached.report().blocks_kept <= image.info().blocks);
                    assert!(image.dump().count() < 100);
                }
            }
        }
    }
    assert!(opened > 100 && refused > 1000, "{opened} {refused}");
}

#[test]
fn unknown_incompatible_features_are_refused_with_advice_and_compatible_ones_pass() {
    let whole = small().bytes(Variant::Mapped);
    let mut compatible = whole.clone();
    compatible[16] = 0x80;
    reseal(&mut compatible);
    assert_eq!(
        small().read_all(Arc::new(Image::from_bytes(compatible).unwrap())),
        9
    );
    let mut incompatible = whole.clone();
    incompatible[24] = 0x80;
    reseal(&mut incompatible);
    let error = Image::from_bytes(incompatible).unwrap_err();
    assert_eq!(error, FormatError::Incompatible { bits: 0x80 });
    assert!(error.to_string().contains("newer"), "{error}");
    let mut later = whole;
    later[8] = 2;
    reseal(&mut later);
    let error = Image::from_bytes(later).unwrap_err();
    assert_eq!(error, FormatError::Version { found: 2 });
}

#[test]
fn each_check_refuses_what_it_is_for() {
    let whole = small().bytes(Variant::Mapped);
    let open = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut bytes = whole.clone();
        change(&mut bytes);
        Image::from_bytes(bytes).unwrap_err()
    };
    let cut = open(&|bytes| bytes.truncate(5000));
    assert!(matches!(cut, FormatError::TooShort { len: 5000 }));
    assert_eq!(open(&|bytes| bytes[0] = 0), FormatError::Magic);
    assert!(matches!(
        open(&|bytes| bytes[100] ^= 1),
        FormatError::Hash { what: "header" }
    ));
    let longer = open(&|bytes| bytes.extend([0; 9]));
    assert!(matches!(longer, FormatError::Length { .. }));
    let end = whole.len();
    assert!(matches!(
        open(&|bytes| bytes[end - 1] ^= 1),
        FormatError::Hash { what: "footer" }
    ));
    // The tree section is the first behind the data.
    let data = Image::from_bytes(whole.clone()).unwrap().info().data_blocks;
    let tree = PAGE * (1 + usize::try_from(data).unwrap());
    let error = open(&|bytes| bytes[tree + 20] ^= 1);
    assert_eq!(
        error,
        FormatError::Hash {
            what: "tree section"
        }
    );
    let reserved = open(&|bytes| {
        bytes[2000] = 1;
        reseal(bytes);
    });
    assert!(matches!(reserved, FormatError::Rule { what: "header", .. }));
    let huge = open(&|bytes| {
        // The decoded length of the first section that is not the data.
        bytes[56 + 32 + 24 + 7] = 0x10;
        reseal(bytes);
    });
    assert!(
        matches!(
            huge,
            FormatError::Rule { .. } | FormatError::TooLarge { .. }
        ),
        "{huge}"
    );
}

/// Nobody writes to the pipe: whoever opened it as a file would wait for good.
#[test]
fn what_is_no_regular_file_is_refused_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let pipe = dir.path().join("pipe");
    nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRUSR).unwrap();
    for path in [pipe.as_path(), dir.path(), Path::new("/dev/null")] {
        let error = Image::open(path).unwrap_err();
        let why = std::error::Error::source(&error).unwrap().to_string();
        assert_eq!(why, "it is not a regular file", "{}", path.display());
    }
}
