//! Counting in short arrays that are in order, by the vector instructions of the processor.

#![cfg_attr(
    target_arch = "x86_64",
    expect(unsafe_code, reason = "vector instructions are unsafe to call")
)]

/// How many keys are compared at once.
pub const KEYS: usize = 16;

/// Returns how many of the keys, which are in ascending order, are at most `limit`.
///
/// ```
/// let mut keys = [i32::MAX; rawio::sorted::KEYS];
/// keys[..3].copy_from_slice(&[-5, 0, 7]);
/// assert_eq!(rawio::sorted::count_at_most(&keys, 6), 2);
/// ```
#[inline]
#[must_use]
pub fn count_at_most(keys: &[i32; KEYS], limit: i32) -> usize {
    #[cfg(target_arch = "x86_64")]
    return by_vectors(keys, limit);
    #[cfg(not(target_arch = "x86_64"))]
    keys.iter().filter(|key| **key <= limit).count()
}

/// Makes a bit of each comparison. The compiler makes additions of the loop that says the same, which take twice
/// the time.
#[cfg(target_arch = "x86_64")]
#[inline]
fn by_vectors(keys: &[i32; KEYS], limit: i32) -> usize {
    use std::arch::x86_64::{
        __m128i, _mm_cmpgt_epi32, _mm_loadu_si128, _mm_movemask_epi8, _mm_packs_epi16,
        _mm_packs_epi32, _mm_set1_epi32,
    };
    // SAFETY: every processor of this architecture has SSE2. The four loads are of 16 bytes each within the 64
    // bytes of the array, and need no alignment.
    let above = unsafe {
        let limit = _mm_set1_epi32(limit);
        let at = keys.as_ptr().cast::<__m128i>();
        let part = |number| _mm_cmpgt_epi32(_mm_loadu_si128(at.add(number)), limit);
        let low = _mm_packs_epi32(part(0), part(1));
        let high = _mm_packs_epi32(part(2), part(3));
        _mm_movemask_epi8(_mm_packs_epi16(low, high))
    };
    // A bit for each key above the limit; one behind the last key, so that there always is one.
    (above | 1 << KEYS).trailing_zeros() as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_as_a_walk_counts() {
        let mut keys = [0; KEYS];
        for step in [1, 3, 1 << 27] {
            for (key, number) in keys.iter_mut().zip(-8_i32..) {
                *key = number * step;
            }
            for filled in 0..=KEYS {
                keys[filled..].fill(i32::MAX);
                let near = keys
                    .iter()
                    .flat_map(|key| [key.saturating_sub(1), *key, key.saturating_add(1)]);
                for limit in near.chain([i32::MIN, 0, i32::MAX]) {
                    let walked = keys.iter().filter(|key| **key <= limit).count();
                    assert_eq!(count_at_most(&keys, limit), walked, "{keys:?} {limit}");
                }
                for (key, number) in keys.iter_mut().zip(-8_i32..) {
                    *key = number * step;
                }
            }
        }
    }
}
