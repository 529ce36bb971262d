//! Opens arbitrary bytes as the three files of a writable layer: no panic, and what is opened can be read,
//! written and committed, or says why not.

#![no_main]

use std::sync::Arc;

use libfuzzer_sys::fuzz_target;
use lsmt::{
    BlobOptions, Image, MemoryStorage, NewUpper, Stack, Upper, UpperFiles, UpperKind, open_blob,
};

fuzz_target!(|bytes: &[u8]| {
    let Some((&choice, bytes)) = bytes.split_first() else {
        return;
    };
    let memory = || Arc::new(MemoryStorage::default());
    let (data, index, journal) = (memory(), memory(), memory());
    let files = UpperFiles {
        data: data.clone(),
        index: index.clone(),
        journal: Some(journal.clone()),
    };
    let new = NewUpper {
        kind: [UpperKind::Append, UpperKind::Sparse, UpperKind::Hybrid][usize::from(choice % 3)],
        virtual_size: 1 << 16,
        ..NewUpper::default()
    };
    drop(Upper::create(files.clone(), &new).expect("memory does not fail"));
    // Valid headers, and behind them what is arbitrary.
    let (file, at) =
        [(&data, 4096), (&index, 4096), (&journal, 0), (&data, 0)][usize::from(choice / 64)];
    lsmt::Storage::write_at(&**file, bytes, at).expect("memory does not fail");
    let Ok(upper) = Upper::open(files) else {
        return;
    };
    let blob = memory();
    if upper
        .commit(&*blob, BlobOptions::default(), &upper.info())
        .is_ok()
    {
        open_blob(blob).expect("what was committed is valid");
    }
    let stack = Stack::new(Vec::new()).expect("no layer is no high stack");
    let image = Image::open(stack, Some(upper)).expect("the size is known");
    drop(image.read_at(&mut [0; 4096], 0));
    drop(image.trim(0..4096));
    drop(image.flush());
});
