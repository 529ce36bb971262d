//! Memory that a thread keeps for the compressed bytes of its next read: to take and to clear it for each read takes as long
//! as a checksum of them.

use std::cell::Cell;

/// Bytes that a thread keeps at most.
const KEPT_BYTES: usize = 1 << 18;

thread_local! {
    static KEPT: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// Hands so many bytes to `act`. They have what an earlier read left in them.
pub(super) fn with_scratch<T>(len: usize, act: impl FnOnce(&mut [u8]) -> T) -> T {
    // A read within `act` finds nothing here, and takes memory of its own.
    let mut bytes = KEPT.take();
    if bytes.len() < len {
        bytes.resize(len, 0);
    }
    let done = act(&mut bytes[..len]);
    if bytes.len() <= KEPT_BYTES {
        KEPT.set(bytes);
    }
    done
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_kept_for_the_next_read_of_the_thread_and_not_more_than_the_bound() {
        let place = |len| with_scratch(len, |bytes| bytes.as_ptr());
        let first = place(10_000);
        assert_eq!(place(9_000), first);
        assert_eq!(place(10_000), first);
        place(KEPT_BYTES + 1);
        assert_eq!(KEPT.take().len(), 0);
    }

    #[test]
    fn a_read_within_a_read_has_memory_of_its_own() {
        with_scratch(8, |outer| {
            outer.fill(1);
            with_scratch(8, |inner| inner.fill(2));
            assert_eq!(outer, [1; 8]);
        });
    }
}
