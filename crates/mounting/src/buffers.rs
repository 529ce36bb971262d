//! The memory of session buffers.

/// Blocks of memory of this size, in bytes, are mapped by themselves; smaller ones are many.
const LARGE_BLOCK: u32 = 1 << 20;

/// Makes large buffers of this process use only the pages that are touched. Each session has one for the
/// largest request, 16 MiB, of which mounts that are only read touch the first page.
pub fn map_large() {
    rawio::malloc::map_blocks_from(LARGE_BLOCK);
}
