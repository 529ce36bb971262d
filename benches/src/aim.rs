//! An aim of a benchmark, beside what was measured.

use std::fmt;

use serde::Serialize;

/// Which side of the limit is good.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Good {
    /// The limit and what is below.
    AtMost,
    /// The limit and what is above.
    AtLeast,
}

/// One aim. It is a report, not a gate: a busy machine misses aims that the code meets.
#[derive(Clone, Debug, Serialize)]
pub struct Aim {
    /// What is measured, with its unit.
    pub what: String,
    /// What was measured, if it was.
    pub measured: Option<f64>,
    /// Which side of `limit` is good.
    pub good: Good,
    /// The limit.
    pub limit: f64,
}

impl Aim {
    /// An aim of at most `limit`.
    #[must_use]
    pub fn at_most(limit: f64, what: impl Into<String>, measured: Option<f64>) -> Self {
        Self {
            what: what.into(),
            measured,
            good: Good::AtMost,
            limit,
        }
    }

    /// An aim of at least `limit`.
    #[must_use]
    pub fn at_least(limit: f64, what: impl Into<String>, measured: Option<f64>) -> Self {
        Self {
            what: what.into(),
            measured,
            good: Good::AtLeast,
            limit,
        }
    }

    /// Returns whether it was reached, or nothing if it was not measured.
    #[must_use]
    pub fn reached(&self) -> Option<bool> {
        let measured = self.measured?;
        Some(match self.good {
            Good::AtMost => measured <= self.limit,
            Good::AtLeast => measured >= self.limit,
        })
    }
}

impl fmt::Display for Aim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verdict = match self.reached() {
            Some(true) => "reached",
            Some(false) => "MISSED",
            None => "-",
        };
        let measured = self
            .measured
            .map_or("not measured".to_owned(), |value| format!("{value:.2}"));
        let good = match self.good {
            Good::AtMost => "at most",
            Good::AtLeast => "at least",
        };
        write!(
            f,
            "  {verdict:8} {measured:>12}  {good} {}  {}",
            self.limit, self.what
        )
    }
}
