//! A cached source says what its source says, whatever the cache has and wherever it fails.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

use blocks::testing::{Fault, Faulty, MemCache, MemSource};
use blocks::{
    BLOCK_SIZE, BlockCache, BlockIndex, BlockRange, BlockSource, CachedSource, FileId, FileKey,
    SourceErrorKind, Version,
};
use proptest::prelude::*;

fn key(size: usize) -> FileKey {
    FileKey {
        file: FileId(7),
        version: Version {
            size: size as u64,
            inode: 11,
            ..Version::default()
        },
    }
}

fn content(size: usize) -> Vec<u8> {
    (0..size)
        .map(|i| ((i * 31 + i / BLOCK_SIZE) % 253).try_into().unwrap())
        .collect()
}

fn source(data: &[u8]) -> MemSource {
    let mut source = MemSource::default();
    source.insert(key(data.len()), data.to_vec());
    source
}

/// Puts those of the file's blocks in a cache that `has` names, the last one filled with zeros.
fn cache(data: &[u8], has: &[bool]) -> MemCache {
    let cache = MemCache::default();
    for (index, chunk) in data.chunks(BLOCK_SIZE).enumerate() {
        if has.get(index).copied().unwrap_or(false) {
            let mut block = chunk.to_vec();
            block.resize(BLOCK_SIZE, 0);
            cache.put(
                &key(data.len()),
                BlockRange::with_len(BlockIndex(index as u64), 1),
                &block,
            );
        }
    }
    cache
}

/// Any offset and length, with those at the borders of blocks and of the file among them.
fn any_read(size: usize) -> impl Strategy<Value = (u64, usize)> {
    let borders = (0..=size / BLOCK_SIZE + 2, 0..=8_usize)
        .prop_map(|(block, len)| ((block * BLOCK_SIZE) as u64, len * BLOCK_SIZE));
    let near_end = (0..5000_usize, 0..5000_usize)
        .prop_map(move |(back, len)| (size.saturating_sub(back) as u64, len));
    prop_oneof![
        borders,
        near_end,
        (0..size as u64 + 5000, 0..40_000_usize),
        Just((u64::MAX, 100)),
    ]
}

fn any_case() -> impl Strategy<Value = (usize, Vec<bool>, Vec<(u64, usize)>)> {
    let size = prop_oneof![
        Just(0),
        1..50_000_usize,
        (0..12_usize).prop_map(|n| n * BLOCK_SIZE)
    ];
    size.prop_flat_map(|size| {
        let has = prop::collection::vec(any::<bool>(), 13);
        (
            Just(size),
            has,
            prop::collection::vec(any_read(size), 1..20),
        )
    })
}

/// Reads into a buffer of a length and returns all of what came, with what came behind it.
fn read(
    source: &impl BlockSource,
    key: &FileKey,
    at: (u64, usize),
) -> Result<Vec<u8>, SourceErrorKind> {
    let mut buf = vec![0xDD; at.1];
    let len = source
        .read_at(key, at.0, &mut buf)
        .map_err(|error| error.kind())?;
    assert!(len <= at.1);
    buf.truncate(len);
    Ok(buf)
}

proptest! {
    #[test]
    fn reads_are_those_of_the_bare_source(
        (size, has, reads) in any_case(),
        patience in 0..30_u64,
        busy in any::<bool>(),
    ) {
        let data = content(size);
        let fault = if busy { Fault::Busy } else { Fault::Fail };
        let bare = source(&data);
        let cached = CachedSource::new(Faulty::new(cache(&data, &has), fault, patience), source(&data));
        let mut given = 0;
        for at in reads {
            let want = read(&bare, &key(size), at);
            given += want.as_ref().map_or(0, Vec::len) as u64;
            prop_assert_eq!(read(&cached, &key(size), at), want);
        }
        let counts = cached.counts();
        prop_assert_eq!(counts.hit_bytes + counts.fallthrough_bytes, given);
    }

    /// A cache that has all spares the source every read; what was read once is cached.
    #[test]
    fn what_is_cached_does_not_reach_the_source((size, _, reads) in any_case()) {
        let data = content(size);
        let full = CachedSource::new(cache(&data, &[true; 13]), source(&data));
        for at in &reads {
            prop_assert_eq!(read(&full, &key(size), *at), read(&source(&data), &key(size), *at));
        }
        prop_assert_eq!(full.source().reads(), 0);

        let filling = CachedSource::new(MemCache::default(), source(&data));
        let aligned = size / BLOCK_SIZE * BLOCK_SIZE;
        for _ in 0..2 {
            prop_assert_eq!(read(&filling, &key(size), (0, aligned)).unwrap(), &data[..aligned]);
        }
        prop_assert_eq!(filling.source().reads(), u64::from(aligned > 0));
    }

    /// A failing source fails the read where its bytes are needed, and nowhere else.
    #[test]
    fn a_failing_source_is_seen((size, has, reads) in any_case()) {
        let data = content(size);
        let broken = Faulty::new(source(&data), Fault::Fail, 0);
        let cached = CachedSource::new(cache(&data, &has), broken);
        for at in reads {
            let want = read(&source(&data), &key(size), at).unwrap();
            let blocks = BlockRange::covering(at.0, want.len() as u64);
            let all_here = blocks.iter().all(|block| has[usize::try_from(block.0).unwrap()]);
            let got = read(&cached, &key(size), at);
            prop_assert_eq!(got, if all_here { Ok(want) } else { Err(SourceErrorKind::Io) });
        }
    }

    /// The cache knows an older version and the source a newer one: no byte of either is mixed.
    #[test]
    fn another_version_is_stale_and_never_served((size, has, reads) in any_case()) {
        let old = content(size);
        let new: Vec<u8> = old.iter().map(|byte| !byte).collect();
        let old_key = key(size);
        let mut new_key = old_key;
        new_key.version.inode += 1;
        let mut newer = MemSource::default();
        newer.insert(new_key, new.clone());
        let cached = CachedSource::new(cache(&old, &has), newer);
        for (offset, len) in reads {
            let start = usize::try_from(offset).unwrap().min(size);
            let end = start.saturating_add(len).min(size);
            prop_assert_eq!(read(&cached, &new_key, (offset, len)).unwrap(), &new[start..end]);
            match read(&cached, &old_key, (offset, len)) {
                Ok(bytes) => prop_assert_eq!(bytes, &old[start..end]),
                Err(kind) => prop_assert_eq!(kind, SourceErrorKind::Stale { now: new_key.version }),
            }
        }
    }
}

/// The source has less than the version promises: what is there is given, once.
#[test]
fn a_source_that_ends_early_ends_the_read() {
    let data = content(6000);
    let mut longer = key(6000);
    longer.version.size = 20_000;
    let mut short = MemSource::default();
    short.insert(longer, data.clone());
    let cached = CachedSource::new(MemCache::default(), short);
    assert_eq!(read(&cached, &longer, (0, 20_000)).unwrap(), data);
    assert_eq!(read(&cached, &longer, (6000, 10)).unwrap(), b"");
}

#[test]
fn the_first_miss_is_remembered() {
    let data = content(3 * BLOCK_SIZE);
    let cached = CachedSource::new(cache(&data, &[true, false, false]), source(&data));
    let whole = key(data.len());
    read(&cached, &whole, (0, BLOCK_SIZE)).unwrap();
    assert_eq!(cached.first_miss(), None);
    for block in [2, 1] {
        read(&cached, &whole, (block * BLOCK_SIZE as u64, BLOCK_SIZE)).unwrap();
    }
    let miss = cached.first_miss().unwrap();
    assert_eq!(
        (miss.file, miss.offset),
        (whole.file, 2 * BLOCK_SIZE as u64)
    );
}
