//! How long files and functions may be, by a rough count that trusts rustfmt's layout.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};

/// A file stops being one idea here; the aim is 300.
const FILE_LINES_MAX: usize = 500;
/// A function stops fitting in a head here; the aim is 35.
const FUNCTION_LINES_MAX: usize = 80;
/// Where our sources are.
const FOLDERS: [&str; 3] = ["crates", "benches", "xtask"];

/// What may be longer, because it reads better in one piece. It must still be longer: an entry that is not
/// needed any more fails, too.
const EXCEPTIONS: &[Exception] = &[
    Exception {
        path: "crates/oci/tests/privileged_unpack.rs",
        function: None,
        reason: "one rig, and each kind of entry of a layer as a test of it",
    },
    Exception {
        path: "crates/cli/tests/privileged_mirror.rs",
        function: None,
        reason: "one rig, and each promise of the mirror as a test of it",
    },
    Exception {
        path: "crates/fdstore/tests/actor/mod.rs",
        function: Some("obey"),
        reason: "a table: each command of the actor, with what it does",
    },
    Exception {
        path: "crates/confine/tests/deed/confined_deed.rs",
        function: Some("deeds"),
        reason: "a table: each deed that confinement allows or refuses",
    },
    Exception {
        path: "crates/tracer/tests/format.rs",
        function: Some("sample"),
        reason: "a table: one record of each kind",
    },
    Exception {
        path: "crates/cli/tests/privileged_lass.rs",
        function: Some("privileged_pulls_at_once_share_layers_and_the_room_there_is"),
        reason: "a test that tells one story, step by step",
    },
    Exception {
        path: "crates/cli/tests/privileged_intruder.rs",
        function: Some("privileged_the_worker_that_asks_a_service_has_its_files_and_port_only"),
        reason: "a test with one worker and a list of what it must not reach",
    },
];

/// A file or a function that may be over its limit.
#[derive(Clone, Copy, Debug)]
struct Exception {
    path: &'static str,
    /// The file itself is meant if absent.
    function: Option<&'static str>,
    /// Why, for whoever reads this list.
    reason: &'static str,
}

/// A file or a function that is over its limit.
#[derive(Debug, PartialEq, Eq)]
struct TooLong {
    path: String,
    /// The function's name and line; the file itself is meant if absent.
    function: Option<(String, usize)>,
    lines: usize,
}

/// A function and where it is.
#[derive(Debug, PartialEq, Eq)]
struct Function {
    name: String,
    /// Line of its signature, from 1.
    line: usize,
    /// From its signature to its closing brace.
    lines: usize,
}

/// Prints the spread, and fails if something is over its limit.
pub(crate) fn check(root: &Path) -> anyhow::Result<()> {
    let mut files = Vec::new();
    for folder in FOLDERS {
        sources(&root.join(folder), &mut files)?;
    }
    let (mut file_lines, mut function_lines) = (Vec::new(), Vec::new());
    let mut too_long = Vec::new();
    for path in &files {
        let text =
            fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))?;
        let shown = path.strip_prefix(root).unwrap_or(path).to_string_lossy();
        too_long.extend(over_limits(&shown, &text));
        file_lines.push(code_lines(&text));
        function_lines.extend(functions(&text).iter().map(|function| function.lines));
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
    let faults = faults(&too_long, EXCEPTIONS);
    if !faults.is_empty() {
        bail!("{}", faults.join("\n"));
    }
    Ok(())
}

/// Returns what of a file is over its limit.
fn over_limits(path: &str, text: &str) -> Vec<TooLong> {
    let file = (None, code_lines(text), FILE_LINES_MAX);
    let functions = functions(text).into_iter();
    let functions = functions.map(|function| {
        let named = (function.name, function.line);
        (Some(named), function.lines, FUNCTION_LINES_MAX)
    });
    let over = std::iter::once(file).chain(functions);
    over.filter(|(_, lines, most)| lines > most)
        .map(|(function, lines, _)| TooLong {
            path: path.to_owned(),
            function,
            lines,
        })
        .collect()
}

/// Says what is too long and no exception, and which exceptions are of nothing that is too long.
fn faults(too_long: &[TooLong], exceptions: &[Exception]) -> Vec<String> {
    let is_of = |exception: &Exception, one: &TooLong| {
        let function = one.function.as_ref().map(|(name, _)| name.as_str());
        exception.path == one.path && exception.function == function
    };
    let new = too_long
        .iter()
        .filter(|one| !exceptions.iter().any(|exception| is_of(exception, one)));
    let new = new.map(|TooLong { path, function, lines }| match function {
        Some((name, line)) => format!(
            "{path}:{line}: {name} has {lines} lines, and {FUNCTION_LINES_MAX} are the limit: split it"
        ),
        None => format!(
            "{path}: {lines} lines of code, and {FILE_LINES_MAX} are the limit: split the file"
        ),
    });
    let old = exceptions
        .iter()
        .filter(|exception| !too_long.iter().any(|one| is_of(exception, one)));
    let old = old.map(
        |Exception {
             path,
             function,
             reason,
         }| {
            let what =
                function.map_or_else(|| (*path).to_owned(), |name| format!("{path}: {name}"));
            format!(
                "{what} is not over the limit any more: remove it from the exceptions ({reason})"
            )
        },
    );
    new.chain(old).collect()
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
    fn what_is_over_a_limit_is_a_fault_unless_it_is_an_exception() {
        let body = "    let a = 1;\n".repeat(FUNCTION_LINES_MAX - 1);
        let long = format!("fn short() {{}}\n\nfn long() {{\n{body}}}\n");
        let limit = long.replacen("    let a = 1;\n", "", 1);
        assert_eq!(over_limits("a.rs", &limit), []);
        let found = over_limits("a.rs", &long);
        let expected = TooLong {
            path: "a.rs".to_owned(),
            function: Some(("long".to_owned(), 3)),
            lines: FUNCTION_LINES_MAX + 1,
        };
        assert_eq!(found, [expected]);
        let file = over_limits("b.rs", &"const A: u8 = 0;\n".repeat(FILE_LINES_MAX + 1));
        assert_eq!(file.len(), 1);
        let exception = |path, function| Exception {
            path,
            function,
            reason: "a table",
        };
        let (of_function, of_file) = (exception("a.rs", Some("long")), exception("b.rs", None));
        assert_eq!(faults(&found, &[of_function]), [""; 0]);
        assert_eq!(faults(&file, &[of_file]), [""; 0]);
        for wrong in [
            exception("a.rs", None),
            exception("a.rs", Some("short")),
            exception("c.rs", Some("long")),
        ] {
            let faults = faults(&found, &[wrong]);
            assert_eq!(faults.len(), 2, "{faults:?}");
            assert!(
                faults[0].starts_with("a.rs:3: long has 81 lines"),
                "{faults:?}"
            );
            assert!(faults[1].ends_with("exceptions (a table)"), "{faults:?}");
        }
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
