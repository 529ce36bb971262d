//! Random numbers that are the same in every run.

/// A generator; equal seeds give equal numbers.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// Returns the generator of a seed.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Returns a number below `limit`, or 0 if that is 0.
    pub const fn below(&mut self, limit: u64) -> u64 {
        // SplitMix64.
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^= mixed >> 31;
        match limit {
            0 => 0,
            limit => mixed % limit,
        }
    }
}
