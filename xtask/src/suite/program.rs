//! One program that runs tests.

use std::path::PathBuf;

/// A program that cargo built from tests, or cargo itself for the tests in documentation.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Program {
    /// Package, kind of target, and target: `cli test privileged_nic`.
    pub(crate) name: String,
    pub(crate) file: PathBuf,
    pub(crate) arguments: Vec<String>,
    /// Where cargo runs it: the directory of its package.
    pub(crate) directory: PathBuf,
}
