//! Opens arbitrary bytes as a layer, whatever is around it, and as metadata of turboOCI: no panic, no memory
//! beyond proportion, and what is opened reads without gaps.

#![no_main]

use std::sync::Arc;

use libfuzzer_sys::fuzz_target;
use lsmt::{Index, Layer, MemoryStorage, Stack, open_blob, open_turbo_blob};

fuzz_target!(|bytes: &[u8]| {
    let memory = || Arc::new(MemoryStorage::new(bytes.to_vec()));
    read(open_blob(memory()));
    read(open_turbo_blob(
        memory(),
        Arc::new(MemoryStorage::new(vec![1; 5000])),
    ));
});

fn read(layer: lsmt::Result<Layer>) {
    let Ok(layer) = layer else {
        return;
    };
    let stack = Stack::new(vec![layer]).expect("one layer is no high stack");
    Index::new(stack.index().segments().to_vec()).expect("segments are in order");
    let mut at = 0;
    for extent in stack.extents(0..stack.virtual_size()) {
        assert_eq!(extent.range.start, at);
        at = extent.range.end;
        let len = usize::try_from(at - extent.range.start)
            .unwrap_or(4096)
            .min(4096);
        drop(stack.read_at(&mut vec![0; len], extent.range.start));
    }
    assert_eq!(at, stack.virtual_size());
}
