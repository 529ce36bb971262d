//! The lists of crates in README.md and docs/architecture.md: each crate is in both.

use std::fs;
use std::path::Path;

use anyhow::{Context as _, bail};

use crate::workspace::Package;

/// Where crates are listed.
const LISTS: [&str; 2] = ["README.md", "docs/architecture.md"];

/// Programs for developers, which are named beside the list.
const OTHERS: [&str; 2] = ["benches", "xtask"];

/// Fails, and names them, if a list lacks a package or has one that is gone.
pub(crate) fn check(root: &Path, packages: &[Package]) -> anyhow::Result<()> {
    let names: Vec<&str> = packages
        .iter()
        .map(|package| package.name.as_str())
        .collect();
    let mut faults = Vec::new();
    for list in LISTS {
        let path = root.join(list);
        let text = fs::read_to_string(&path);
        let text = text.with_context(|| format!("reading {}", path.display()))?;
        faults.extend(
            faults_of(&text, &names)
                .into_iter()
                .map(|fault| format!("{list}: {fault}")),
        );
    }
    if !faults.is_empty() {
        bail!("{}", faults.join("\n"));
    }
    Ok(())
}

fn faults_of(text: &str, names: &[&str]) -> Vec<String> {
    let listed = listed(text);
    let wanted = names.iter().filter(|name| !OTHERS.contains(name));
    let missing = wanted.filter(|name| !listed.contains(name));
    let missing = missing.map(|name| format!("the list of crates lacks {name}"));
    let gone = listed.iter().filter(|name| !names.contains(name));
    let gone = gone.map(|name| format!("the list of crates has {name}, which is no crate"));
    missing.chain(gone).collect()
}

/// Returns the crates that a document lists: in a table with links to `crates/`, or in the lines of a block, after
/// `L3` or spaces.
fn listed(text: &str) -> Vec<&str> {
    let of_table = text.lines().filter_map(|line| {
        let (name, link) = line.strip_prefix("| [`")?.split_once("`](")?;
        let is_crate = link.starts_with("crates/") || link.starts_with(&format!("{name})"));
        is_crate.then_some(name)
    });
    let in_ladder = text.split_once("```text\nL5 ");
    let ladder = in_ladder
        .and_then(|(_, rest)| rest.split_once("```"))
        .map_or("", |(ladder, _)| ladder);
    let of_ladder = ladder.lines().filter_map(|line| {
        let line = line
            .strip_prefix('L')
            .map_or(line, |line| line.get(1..).unwrap_or_default());
        let name = line.trim_start().split(' ').next()?;
        let is_name = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
        (!name.is_empty() && name.bytes().all(is_name)).then_some(name)
    });
    of_table.chain(of_ladder).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_the_crates_of_a_table_and_of_a_ladder() {
        let table = "| crate | what |\n| --- | --- |\n| [`a-b`](crates/a-b) | x |\n| [`e2e`](e2e) | y |\n| [c](d) | z |\n";
        assert_eq!(listed(table), ["a-b", "e2e"]);
        let ladder = "```text\nL5   cli (the programs)\n     e2e (more)\n      │   text\nL4   node   owns\n```\nL3 other\n";
        assert_eq!(listed(ladder), ["cli", "e2e", "node"]);
    }

    #[test]
    fn names_what_is_missing_and_what_is_gone() {
        let table = "| [`a`](crates/a) | x |\n| [`old`](crates/old) | y |\n";
        assert_eq!(
            faults_of(table, &["a", "b", "xtask"]),
            [
                "the list of crates lacks b",
                "the list of crates has old, which is no crate"
            ]
        );
        assert_eq!(faults_of(table, &["a", "old", "benches"]), [""; 0]);
    }
}
