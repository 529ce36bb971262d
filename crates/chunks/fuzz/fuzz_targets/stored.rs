//! Opens arbitrary bytes as stored chunks: no panic, never more bytes than a chunk has, and what is
//! opened is what its id says. Chunks that are packed are opened as they were.

#![no_main]

use blocks::ContentId;
use libfuzzer_sys::fuzz_target;
use chunks::{CHUNK_MAX, Codec, Stored};

#[derive(Debug, arbitrary::Arbitrary)]
struct Input<'a> {
    is_zstd: bool,
    raw_len: u32,
    bytes: &'a [u8],
}

fuzz_target!(|input: Input<'_>| {
    let codec = match input.is_zstd {
        true => Codec::Zstd,
        false => Codec::Raw,
    };
    open(codec, input.raw_len, input.bytes.to_vec(), &ContentId::of(input.bytes));
    let chunk = &input.bytes[..input.bytes.len().min(CHUNK_MAX)];
    let id = ContentId::of(chunk);
    if let Ok(stored) = Stored::pack(chunk) {
        assert!(stored.open(&id).expect("what was packed is opened") == chunk);
        // As long as it says or not: a bomb is one that says too little.
        open(stored.codec, input.raw_len, stored.bytes, &id);
    }
    // What a compressor makes of much more than a chunk.
    let much = chunk.repeat(1 + (1 << 20) / chunk.len().max(1));
    let bomb = zstd::bulk::compress(&much, 1).expect("whatever is in memory compresses");
    open(Codec::Zstd, input.raw_len, bomb, &ContentId::of(&much));
});

fn open(codec: Codec, raw_len: u32, bytes: Vec<u8>, id: &ContentId) {
    let stored = Stored {
        codec,
        raw_len,
        bytes,
    };
    if let Ok(raw) = stored.open(id) {
        assert!(raw.len() <= CHUNK_MAX && ContentId::of(&raw) == *id);
    }
}
