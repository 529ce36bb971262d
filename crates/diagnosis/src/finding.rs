//! The result of one check.

use serde::Serialize;

/// The severity of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// No problem.
    Fine,
    /// It works, slower or less safely than it could.
    Advice,
    /// A failure.
    Fault,
}

/// One thing that was checked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// The name of the check; scripts may rely on it.
    pub check: &'static str,
    /// The severity.
    pub verdict: Verdict,
    /// The finding.
    pub what: String,
    /// What to do about it; nothing where all is fine.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cure: Option<String>,
}

impl Finding {
    /// Returns a finding of something as it should be.
    pub fn fine(check: &'static str, what: impl Into<String>) -> Self {
        Self::new(check, Verdict::Fine, what.into(), None)
    }

    /// Returns a finding of something that could be better.
    pub fn advice(check: &'static str, what: impl Into<String>, cure: impl Into<String>) -> Self {
        Self::new(check, Verdict::Advice, what.into(), Some(cure.into()))
    }

    /// Returns a finding of something that does not work.
    pub fn fault(check: &'static str, what: impl Into<String>, cure: impl Into<String>) -> Self {
        Self::new(check, Verdict::Fault, what.into(), Some(cure.into()))
    }

    const fn new(
        check: &'static str,
        verdict: Verdict,
        what: String,
        cure: Option<String>,
    ) -> Self {
        Self {
            check,
            verdict,
            what,
            cure,
        }
    }
}
