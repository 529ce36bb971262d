//! The checksums of the formats.
//!
//! overlaybd's CRC-32C has no complement at either end; `AgentENV`'s traces have the standard one.

/// The seed of the checksum behind each block of a `ZFile`.
pub(crate) const BLOCK_SEED: u32 = 100_007;

/// Returns overlaybd's CRC-32C: the polynomial's register, which starts at `seed`.
pub(crate) fn raw(seed: u32, bytes: &[u8]) -> u32 {
    !crc32c::crc32c_append(!seed, bytes)
}

/// Returns the standard CRC-32C.
pub(crate) fn standard(bytes: &[u8]) -> u32 {
    crc32c::crc32c(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_raw_sum_of_zeros_is_zero_and_the_standard_one_is_not() {
        assert_eq!(raw(0, &[0; 64]), 0);
        assert_ne!(standard(&[0; 64]), 0);
        // The check value of CRC-32C in the catalog of CRCs.
        assert_eq!(standard(b"123456789"), 0xe306_9283);
        assert_eq!(raw(!0, b"123456789"), !0xe306_9283);
    }
}
