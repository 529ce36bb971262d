//! The tests that a table of a document names: each must exist. A row that names none has a fault, too.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use anyhow::Context as _;

/// The heading of the last column of a table that names tests.
const HEADING: &str = "test";
/// What a row says whose test is that of the row above.
const AS_ABOVE: &str = "the same";
/// Folders of sources.
const SOURCES: [&str; 3] = ["crates", "e2e", "xtask"];

/// Returns the names of all functions below the folders of sources.
pub(super) fn functions(root: &Path) -> anyhow::Result<BTreeSet<String>> {
    let mut names = BTreeSet::new();
    for folder in SOURCES {
        collect(&root.join(folder), &mut names)?;
    }
    Ok(names)
}

fn collect(folder: &Path, names: &mut BTreeSet<String>) -> anyhow::Result<()> {
    let Ok(entries) = fs::read_dir(folder) else {
        return Ok(());
    };
    for entry in entries {
        let entry = entry.with_context(|| format!("listing {}", folder.display()))?;
        let path = entry.path();
        if entry.file_type()?.is_dir() {
            if entry.file_name() != "target" {
                collect(&path, names)?;
            }
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text =
                fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
            names.extend(text.lines().filter_map(function_of).map(str::to_owned));
        }
    }
    Ok(())
}

/// Returns the name of the function that a line begins.
fn function_of(line: &str) -> Option<&str> {
    let (before, after) = line.split_once("fn ")?;
    let is_code = before
        .chars()
        .all(|c| c.is_alphabetic() || " ()".contains(c));
    let end = after.find(|c: char| !c.is_alphanumeric() && c != '_')?;
    (is_code && end > 0).then(|| &after[..end])
}

/// Returns the faults of the tables of a document, each as `LINE: what`.
pub(super) fn faults(text: &str, functions: &BTreeSet<String>) -> Vec<String> {
    let mut faults = Vec::new();
    let mut in_table = false;
    for (number, line) in text.lines().enumerate() {
        let Some(cells) = line
            .strip_prefix('|')
            .and_then(|line| line.trim_end().strip_suffix('|'))
        else {
            in_table = false;
            continue;
        };
        let last = cells.rsplit('|').next().unwrap_or_default().trim();
        if last == HEADING {
            in_table = true;
            continue;
        }
        if !in_table || last.chars().all(|c| "-: ".contains(c)) || last == AS_ABOVE {
            continue;
        }
        let named: Vec<_> = last.split('`').skip(1).step_by(2).collect();
        if named.is_empty() {
            faults.push(format!("{}: a row names no test", number + 1));
        }
        // The name of a file is checked as those of other documents are.
        for name in named.into_iter().filter(|name| !name.contains('/')) {
            if !functions.iter().any(|function| matches(name, function)) {
                faults.push(format!("{}: there is no test {name}", number + 1));
            }
        }
    }
    faults
}

/// Returns whether a name means a function: `...` stands for any beginning or end.
fn matches(name: &str, function: &str) -> bool {
    let middle = name.trim_matches('.');
    match (name.starts_with("..."), name.ends_with("...")) {
        (true, true) => function.contains(middle),
        (true, false) => function.ends_with(middle),
        (false, true) => function.starts_with(middle),
        (false, false) => function == middle,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_functions_are_found_and_prose_is_not() {
        assert_eq!(
            function_of("    pub(crate) async fn a_b(x: u8) {"),
            Some("a_b")
        );
        assert_eq!(function_of("fn c<T>() {"), Some("c"));
        assert_eq!(function_of("// see fn d()"), None);
        assert_eq!(function_of("let f: fn (u8) = g;"), None);
    }

    #[test]
    fn each_row_names_tests_that_exist() {
        let functions = ["one_two", "privileged_three"].map(str::to_owned).into();
        let faults = |rows: &str| {
            let text = format!(
                "| attack | test |\n| --- | --- |\n{rows}\n\n| a | b |\n| - | - |\n| c | d |\n"
            );
            super::faults(&text, &functions)
        };
        assert_eq!(
            faults("| a | `one_two`, `x/tests/y.rs` |\n| b | the same |\n| c | `..._three` |"),
            [""; 0]
        );
        assert_eq!(faults("| a | `one` |"), ["3: there is no test one"]);
        assert_eq!(
            faults("| a | `..._two_` |"),
            ["3: there is no test ..._two_"]
        );
        assert_eq!(faults("| a | tried by hand |"), ["3: a row names no test"]);
    }
}
