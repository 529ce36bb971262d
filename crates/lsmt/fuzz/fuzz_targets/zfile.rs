//! Opens arbitrary bytes as a ZFile, and compresses them into one: no panic, and what was compressed comes
//! back.

#![no_main]

use libfuzzer_sys::fuzz_target;
use lsmt::{Codec, MemoryStorage, ReadAt, Verify, ZFile, ZFileOptions, ZFileStyle, ZFileWriter};

fuzz_target!(|bytes: &[u8]| {
    if let Ok(zfile) = ZFile::open(MemoryStorage::new(bytes.to_vec())) {
        let size = zfile.size().expect("memory does not fail");
        for at in [0, size / 2, size.saturating_sub(5000)] {
            let len = usize::try_from(size - at).unwrap_or(9000).min(9000);
            drop(zfile.read(&mut vec![0; len], at));
        }
    }
    let Some((&choice, content)) = bytes.split_first() else {
        return;
    };
    let options = ZFileOptions {
        codec: [Codec::Lz4, Codec::Zstd][usize::from(choice & 1)],
        style: [ZFileStyle::Header, ZFileStyle::Trailer][usize::from(choice >> 1 & 1)],
        verify: [Verify::All, Verify::Nothing][usize::from(choice >> 2 & 1)],
        block_size: 4096 << (choice >> 3 & 3),
    };
    let storage = MemoryStorage::default();
    let mut writer = ZFileWriter::new(&storage, options).expect("the options are valid");
    writer.append(content).expect("memory does not fail");
    writer.finish().expect("memory does not fail");
    let mut back = vec![0; content.len()];
    let zfile = ZFile::open(&storage).expect("what was written is valid");
    zfile.read(&mut back, 0).expect("what was written is valid");
    assert_eq!(back, content);
});
