//! What boots are made of, measured apart: hot reads and names, prewarming, memory, look-ups.

pub mod hot;
pub mod lookup;
pub mod memory;
pub mod prewarm;
pub mod size;

use std::fmt;

use serde::Serialize;

use crate::rounds::median;

/// Samples of one thing.
#[derive(Clone, Debug, Serialize)]
pub struct Series {
    /// What was measured.
    pub what: String,
    /// Unit of the values.
    pub unit: &'static str,
    /// One value for each round, in the order in which they came.
    pub values: Vec<f64>,
}

impl Series {
    /// Starts a series without values.
    #[must_use]
    pub fn new(what: impl Into<String>, unit: &'static str) -> Self {
        Self {
            what: what.into(),
            unit,
            values: Vec::new(),
        }
    }

    /// Returns the median, or nothing without values.
    #[must_use]
    pub fn median(&self) -> Option<f64> {
        median(&self.values)
    }
}

impl fmt::Display for Series {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let low = self.values.iter().copied().fold(f64::INFINITY, f64::min);
        let high = self.values.iter().copied().fold(0.0, f64::max);
        let middle = self.median().unwrap_or(f64::NAN);
        let (what, unit, count) = (&self.what, self.unit, self.values.len());
        write!(
            f,
            "  {what:44} {middle:>10.2} {unit:6} ({low:.2}-{high:.2}, {count} samples)"
        )
    }
}

/// Returns one median in parts of another, if both are there.
#[must_use]
pub fn ratio(over: &Series, under: &Series) -> Option<f64> {
    Some(over.median()? / under.median()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn series(values: &[f64]) -> Series {
        Series {
            values: values.to_vec(),
            ..Series::new("x", "ns")
        }
    }

    #[test]
    fn ratios_are_of_medians() {
        assert_eq!(ratio(&series(&[1.0, 8.0, 2.0]), &series(&[4.0])), Some(0.5));
        assert_eq!(ratio(&series(&[]), &series(&[4.0])), None);
    }

    #[test]
    fn a_line_names_spread_and_count() {
        let line = series(&[1.0, 8.0, 2.0]).to_string();
        assert!(
            line.contains("2.00 ns") && line.contains("(1.00-8.00, 3 samples)"),
            "{line}"
        );
    }
}
