//! How much memory the buffers of sessions take.

/// Blocks of memory of this size, in bytes, are mapped by themselves; smaller ones are many.
const LARGE_BLOCK: u32 = 1 << 20;

/// Has the large buffers of this process take only what is touched of them. Each session has one for the
/// largest request there may be, 16 MiB, of which mounts that are only read touch the first page.
pub fn map_large() {
    rawio::malloc::map_blocks_from(LARGE_BLOCK);
}
