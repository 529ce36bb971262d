//! How long files and functions are, by a rough count that trusts rustfmt's layout.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context as _;

/// A file stops being one idea here; the aim is 300.
const FILE_LINES_MAX: usize = 500;
/// A function stops fitting in a head here; the aim is 35.
const FUNCTION_LINES_MAX: usize = 80;
/// Where our sources are.
const FOLDERS: [&str; 3] = ["crates", "benches", "xtask"];

/// A function and where it is.
#[derive(Debug, PartialEq, Eq)]
struct Function {
    name: String,
    /// Line of its signature, from 1.
    line: usize,
    /// From its signature to its closing brace.
    lines: usize,
}

/// Prints what is over the budget, and the spread.
pub(crate) fn report(root: &Path) -> anyhow::Result<()> {
    let mut files = Vec::new();
    for folder in FOLDERS {
        sources(&root.join(folder), &mut files)?;
    }
    let (mut file_lines, mut function_lines) = (Vec::new(), Vec::new());
    for path in &files {
        let text =
            fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))?;
        let shown = path.strip_prefix(root).unwrap_or(path).display();
        let lines = code_lines(&text);
        if lines > FILE_LINES_MAX {
            println!("{shown}: {lines} lines of code");
        }
        file_lines.push(lines);
        for function in functions(&text) {
            if function.lines > FUNCTION_LINES_MAX {
                println!(
                    "{shown}:{}: {} has {} lines",
                    function.line, function.name, function.lines
                );
            }
            function_lines.push(function.lines);
        }
    }
    println!(
        "{} files, lines of code: {}",
        file_lines.len(),
        spread(file_lines)
    );
    println!(
        "{} functions, lines: {}",
        function_lines.len(),
        spread(function_lines)
    );
    Ok(())
}

fn sources(folder: &Path, found: &mut Vec<PathBuf>) -> anyhow::Result<()> {
    let entries = fs::read_dir(folder).with_context(|| format!("reading {}", folder.display()))?;
    for entry in entries {
        let path = entry
            .with_context(|| format!("reading {}", folder.display()))?
            .path();
        if path.is_dir() && !path.ends_with("target") {
            sources(&path, found)?;
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
    found.sort();
    Ok(())
}

/// Counts lines that are neither blank, nor comment, nor in the file's test module.
fn code_lines(text: &str) -> usize {
    let code = text.split("\n#[cfg(test)]\nmod ").next().unwrap_or(text);
    let counts = |line: &&str| !line.trim().is_empty() && !line.trim_start().starts_with("//");
    code.lines().filter(counts).count()
}

/// Finds the functions of a file in rustfmt's layout: what starts with a signature ends at the
/// first line of the same indent that closes a body, or a signature without one.
fn functions(text: &str) -> Vec<Function> {
    let lines: Vec<&str> = text.lines().collect();
    let mut found = Vec::new();
    for (index, line) in lines.iter().enumerate() {
        let Some(name) = function_name(line) else {
            continue;
        };
        let indent = &line[..line.len() - line.trim_start().len()];
        let closes = |line: &&str| {
            line.strip_prefix(indent).is_some_and(|rest| {
                rest.starts_with('}') || (rest.starts_with(')') && rest.ends_with(';'))
            })
        };
        let last = match line.ends_with(['}', ';']) {
            true => Some(0),
            false => lines[index..].iter().position(closes),
        };
        if let Some(last) = last {
            found.push(Function {
                name: name.to_owned(),
                line: index + 1,
                lines: last + 1,
            });
        }
    }
    found
}

/// Returns the name if the line begins a function's signature.
fn function_name(line: &str) -> Option<&str> {
    let (before, after) = line.split_once("fn ")?;
    let is_qualifier = |word: &str| {
        word.starts_with("pub") || matches!(word, "const" | "async" | "unsafe" | "in" | "extern")
    };
    if !before.is_empty() && !before.ends_with(' ') || !before.split_whitespace().all(is_qualifier)
    {
        return None;
    }
    let end = after.find(|c: char| !c.is_alphanumeric() && c != '_')?;
    (end > 0).then(|| &after[..end])
}

/// Describes sorted sizes: middle, ninth tenth, largest.
fn spread(mut sizes: Vec<usize>) -> String {
    sizes.sort_unstable();
    let at = |tenths: usize| sizes.get((sizes.len() * tenths / 10).min(sizes.len().max(1) - 1));
    match (at(5), at(9), sizes.last()) {
        (Some(median), Some(tall), Some(largest)) => {
            format!("median {median}, 90 % up to {tall}, largest {largest}")
        }
        _ => "none".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAMPLE: &str = "\
//! A file.

fn short() {}

impl A {
    pub(crate) const fn long(
        a: u8,
    ) -> u8 {
        if a > 0 {
            1
        } else {
            2
        }
    }
}

trait B {
    fn wanted(
        &self,
    );
    fn line(&self);
}

// a comment about fn nothing

#[cfg(test)]
mod tests {
    fn tested() {
    }
}
";

    #[test]
    fn finds_each_function_and_its_length() {
        let found: Vec<_> = functions(SAMPLE)
            .into_iter()
            .map(|f| (f.name, f.line, f.lines))
            .collect();
        let expected = [
            ("short", 3, 1),
            ("long", 6, 9),
            ("wanted", 18, 3),
            ("line", 21, 1),
            ("tested", 28, 2),
        ];
        assert_eq!(
            found,
            expected.map(|(name, line, lines)| (name.to_owned(), line, lines))
        );
    }

    #[test]
    fn counts_code_without_comments_and_tests() {
        assert_eq!(code_lines(SAMPLE), 18);
        assert_eq!(code_lines(""), 0);
    }

    #[test]
    fn describes_sizes() {
        assert_eq!(spread(Vec::new()), "none");
        assert_eq!(spread(vec![7]), "median 7, 90 % up to 7, largest 7");
        assert_eq!(
            spread((1..=10).rev().collect()),
            "median 6, 90 % up to 10, largest 10"
        );
    }
}
