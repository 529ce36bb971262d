//! How many requests may be doubled.

/// Requests that earn one hedge: 5 % of all may be doubled.
const REQUESTS_PER_HEDGE: u32 = 20;
/// Hedges that may be saved up, and that there are at the start.
const BURST: u32 = 8;

/// Hedges that may still be made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HedgeBudget {
    /// In parts of a hedge: [`REQUESTS_PER_HEDGE`] make one.
    parts: u32,
}

impl HedgeBudget {
    pub(crate) const fn new() -> Self {
        Self {
            parts: BURST * REQUESTS_PER_HEDGE,
        }
    }

    /// Earns a part of a hedge for each piece that was requested.
    pub(crate) fn earn(&mut self, pieces: usize) {
        let pieces = u32::try_from(pieces).unwrap_or(u32::MAX);
        self.parts = self
            .parts
            .saturating_add(pieces)
            .min(BURST * REQUESTS_PER_HEDGE);
    }

    /// Whether a hedge is left.
    pub(crate) const fn allows(&self) -> bool {
        self.parts >= REQUESTS_PER_HEDGE
    }

    /// Spends one hedge.
    pub(crate) fn spend(&mut self) {
        self.parts = self.parts.saturating_sub(REQUESTS_PER_HEDGE);
    }
}
