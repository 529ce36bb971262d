//! Opens a folder whose stack file is arbitrary bytes, its checksum made right: no panic.

#![no_main]

use std::sync::Arc;

use libfuzzer_sys::fuzz_target;
use lsmt::{LiveImage, MemoryFolder, NewUpper};

fuzz_target!(|bytes: &[u8]| {
    let folder = Arc::new(MemoryFolder::default());
    let new = NewUpper {
        virtual_size: 1 << 16,
        ..NewUpper::default()
    };
    drop(LiveImage::create(folder.clone(), Vec::new(), &new).expect("memory does not fail"));
    let mut stack = b"YLOSTACK\x01\0\0\0".to_vec();
    stack.extend(bytes);
    stack.extend(crc32c::crc32c(&stack).to_le_bytes());
    folder.put("stack", stack);
    drop(LiveImage::open(folder, Vec::new()));
});
