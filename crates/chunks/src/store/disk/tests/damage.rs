//! Segments as others left them: what version 1 wrote, and what happened to it since.

use std::path::PathBuf;

use super::*;
use crate::store::format::{self, FIRST};

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/store-v1")
}

/// Chunks that are short: 5 are in the sealed segment, 5 in the one that was being written.
fn short(number: u64) -> Vec<u8> {
    match number % 2 {
        0 => noise(number, 90),
        _ => b"a short chunk that compresses. ".repeat(10 + usize::try_from(number).unwrap()),
    }
}

fn sample(number: u64, chunks: std::ops::Range<u64>, sealed: bool) -> Vec<u8> {
    let mut bytes = format::header(number).to_vec();
    let mut lines = Vec::new();
    for chunk in chunks {
        let (id, stored) = (
            ChunkId::of(&short(chunk)),
            Stored::pack(&short(chunk)).unwrap(),
        );
        let offset = u32::try_from(bytes.len()).unwrap();
        bytes.extend(format::record(number, offset, &id, &stored));
        lines.push(Line {
            id,
            offset,
            stored_len: u32::try_from(stored.bytes.len()).unwrap(),
            raw_len: stored.raw_len,
            codec: stored.codec,
        });
    }
    if sealed {
        let end = u32::try_from(bytes.len()).unwrap();
        bytes.extend(format::seal(number, end, &lines));
    }
    bytes
}

/// Both segments of the fixtures.
fn samples() -> [(u64, Vec<u8>); 2] {
    [(0, sample(0, 0..5, true)), (1, sample(1, 5..10, false))]
}

fn name(number: u64) -> String {
    format!("segments/{number:016x}.seg")
}

/// Opens a store of these segments.
fn open(segments: &[(u64, Vec<u8>)]) -> (TempDir, DiskStore) {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("segments")).unwrap();
    for (number, bytes) in segments {
        fs::write(dir.path().join(name(*number)), bytes).unwrap();
    }
    let store = open_with(&dir, CONFIG);
    (dir, store)
}

/// Counts the chunks that are there, which are right.
fn right(store: &DiskStore) -> u64 {
    let there = (0..10).filter(|number| {
        let raw = short(*number);
        let id = ChunkId::of(&raw);
        let stored = store.get(&id, Class::Demand);
        stored.is_some_and(|stored| stored.open(&id).unwrap() == raw)
    });
    there.count() as u64
}

#[test]
fn what_version_1_wrote_is_read_and_written() {
    let kept = [0, 1].map(|number| {
        let path = fixtures().join(format!("{number:016x}.seg"));
        (number, fs::read(path).unwrap())
    });
    let (_dir, store) = open(&kept);
    assert_eq!((right(&store), store.stats().damaged), (10, 0));
    // zstd may compress better one day; all else is the same for ever.
    if zstd::zstd_safe::VERSION_NUMBER / 100 == 105 {
        assert_eq!(kept, samples());
    }
}

#[test]
fn what_is_in_memory_is_read_at_once_unless_it_is_damaged() {
    let (dir, store) = open(&samples());
    let now = |number| {
        let id = ChunkId::of(&short(number));
        let stored = store.get_now(&id, Class::Demand);
        stored.map(|stored| stored.open(&id).unwrap())
    };
    // Opening has read the heads, and a file of some kilobytes is read whole.
    assert_eq!(right(&store), 10);
    for number in 0..10 {
        assert_eq!(now(number), Some(short(number)));
    }
    let segment = fs::File::options()
        .write(true)
        .open(dir.path().join(name(1)));
    let segment = segment.unwrap();
    let end = segment.metadata().unwrap().len();
    segment.write_all_at(&[0x55], end - 1).unwrap();
    assert_eq!(now(9), None);
    // It is left to a get to say so, and to forget it.
    assert!(store.contains(&ChunkId::of(&short(9))));
    assert_eq!(right(&store), 9);
    assert!(!store.contains(&ChunkId::of(&short(9))));
    assert!(
        store
            .get_now(&ChunkId::of(b"another"), Class::Demand)
            .is_none()
    );
}

#[test]
fn a_torn_end_is_cut_and_a_rotten_table_done_without() {
    let [(_, sealed), (_, open_end)] = samples();
    let mut torn = open_end.clone();
    torn.truncate(torn.len() - 1);
    let (dir, store) = open(&[(0, sealed.clone()), (1, torn.clone())]);
    assert_eq!((right(&store), store.stats().damaged), (9, 1));
    let cut = fs::metadata(dir.path().join(name(1))).unwrap().len();
    assert!(cut < torn.len() as u64 - 80);
    let mut rotten = sealed;
    let last = rotten.len() - 70;
    rotten[last] ^= 1;
    let (dir, store) = open(&[(0, rotten.clone()), (1, open_end)]);
    // The records are found; the table, as nothing that could be one.
    assert_eq!((right(&store), store.stats().damaged), (10, 1));
    assert_eq!(
        fs::read(dir.path().join(name(0))).unwrap(),
        rotten,
        "an old one stays"
    );
}

#[derive(Clone, Debug)]
enum Harm {
    Flip(usize, u8),
    Cut(usize),
    Append(Vec<u8>),
    Swap,
}

fn harm() -> impl Strategy<Value = Harm> {
    prop_oneof![
        4 => (any::<usize>(), 1..=255u8).prop_map(|(at, bits)| Harm::Flip(at, bits)),
        1 => any::<usize>().prop_map(Harm::Cut),
        1 => prop::collection::vec(any::<u8>(), 1..300).prop_map(Harm::Append),
        1 => Just(Harm::Swap),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn whatever_happened_to_a_segment_no_chunk_is_wrong(
        harms in prop::collection::vec((0..2usize, harm()), 1..6),
    ) {
        let [(_, a), (_, b)] = samples();
        let mut bytes = [a, b];
        for (which, harm) in harms {
            match harm {
                Harm::Flip(at, bits) => {
                    let len = bytes[which].len();
                    if len > 0 {
                        bytes[which][at % len] ^= bits;
                    }
                }
                Harm::Cut(at) => {
                    let len = bytes[which].len();
                    bytes[which].truncate(at % (len + 1));
                }
                Harm::Append(more) => bytes[which].extend(more),
                Harm::Swap => bytes.swap(0, 1),
            }
        }
        let [a, b] = bytes;
        let (dir, store) = open(&[(0, a), (1, b)]);
        let found = right(&store);
        prop_assert!(found <= store.stats().chunks + store.stats().damaged);
        put_all(&store, [0, 1, 3]);
        prop_assert!(has(&store, 0) && has(&store, 1) && has(&store, 3));
        // A second opening finds no less.
        let found = right(&store);
        let store = reopen(&dir, store);
        prop_assert!(right(&store) >= found && has(&store, 0));
    }

    #[test]
    fn a_forged_head_is_held_to_the_limits(
        codec in 0..4u8, raw_len in prop_oneof![0..300_000u32, any::<u32>()],
        stored_len in prop_oneof![0..300_000u32, any::<u32>()],
    ) {
        // All hashes are right: whoever writes the directory can do that.
        let stored = Stored { codec: Codec::Raw, raw_len, bytes: vec![7; 10] };
        let mut head = format::record(3, FIRST, &id(1), &stored);
        head[4] = codec;
        head[12..16].copy_from_slice(&stored_len.to_le_bytes());
        let mut hasher = blake3::Hasher::new();
        hasher.update(&3u64.to_le_bytes());
        hasher.update(&u64::from(FIRST).to_le_bytes());
        hasher.update(&head[..64]);
        head[64..80].copy_from_slice(&hasher.finalize().as_bytes()[..16]);
        let parsed = format::parse_head(3, FIRST, head[..80].try_into().unwrap());
        let possible = (1..=128 << 10).contains(&raw_len) && match codec {
            0 => stored_len == raw_len,
            1 => (1..=raw_len).contains(&stored_len),
            _ => false,
        };
        prop_assert_eq!(parsed.is_ok(), possible);
    }
}

/// Writes the fixtures of a new version of the format; never those of an old one.
#[test]
#[ignore = "only when the format gets a new version"]
fn write_the_fixtures() {
    fs::create_dir(fixtures()).unwrap();
    for (number, bytes) in samples() {
        fs::write(fixtures().join(format!("{number:016x}.seg")), bytes).unwrap();
    }
}
