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
    /// What it is told beside what this program was told.
    pub(crate) environment: Vec<(&'static str, PathBuf)>,
}

/// The priority of what runs beside tests that need root: where both want a processor, it has a quarter.
const NICENESS: &str = "5";

impl Program {
    pub(crate) fn package(&self) -> &str {
        let (package, _) = self.name.split_once(' ').unwrap_or((&self.name, ""));
        package
    }

    /// Whether its tests mount, and count what others of their kind would change.
    pub(crate) fn needs_root(&self) -> bool {
        self.name.contains(" privileged_")
    }

    /// The same program, for which others do not wait.
    pub(crate) fn at_lower_priority(&self) -> Self {
        let before = ["-n", NICENESS, "--"].map(str::to_owned);
        let file = self.file.to_string_lossy().into_owned();
        Self {
            file: "nice".into(),
            arguments: before
                .into_iter()
                .chain([file])
                .chain(self.arguments.iter().cloned())
                .collect(),
            ..self.clone()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lower_priority_changes_nothing_else() {
        let program = Program {
            name: "cli test privileged_nic".to_owned(),
            file: "/w/nic-1".into(),
            arguments: vec!["--exact".to_owned()],
            directory: "/w".into(),
            environment: vec![("CARGO_MANIFEST_DIR", "/w".into())],
        };
        assert!(program.needs_root());
        assert_eq!(program.package(), "cli");
        let lower = program.at_lower_priority();
        assert_eq!(lower.arguments, ["-n", "5", "--", "/w/nic-1", "--exact"]);
        assert_eq!(
            (&lower.name, &lower.directory, &lower.environment),
            (&program.name, &program.directory, &program.environment)
        );
        let name = "fetch lib fetch".to_owned();
        assert!(!Program { name, ..program }.needs_root());
    }
}
