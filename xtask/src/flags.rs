//! Messages of libraries that name flags of the command line, which libraries do not know.
//!
//! A library says which setting is meant, in backquotes; the programs write the flag in its place
//! (crates/cli/src/api_words.rs). A whole command line is no such case: who is told to run
//! `bootimg record --runs 3` can do so, whatever showed the message.

use std::fs;
use std::path::Path;

use anyhow::{Context as _, anyhow, bail};
use proc_macro2::{Delimiter, TokenStream, TokenTree};

use crate::workspace::Package;

/// Crates that know a command line, or are only there for tests of those.
const WITH_FLAGS: &[&str] = &[
    "benches",
    "cli",
    "e2e",
    "lab",
    "link-emulator",
    "sandbox-cli",
    "sandbox-oci",
    "testkit",
    "xtask",
];

/// What command lines begin with.
const PROGRAMS: &[&str] = &[
    "bootimg ",
    "ctr ",
    "docker ",
    "nicfetch ",
    "sandbox ",
    "systemctl ",
    "tar ",
    "yolofs ",
];

/// Fails, and shows the messages, if a library's messages name flags.
pub(crate) fn check(packages: &[Package]) -> anyhow::Result<()> {
    let mut faults = Vec::new();
    for package in packages {
        let known = WITH_FLAGS.contains(&package.name.as_str());
        let folder = package.library.as_deref().and_then(Path::parent);
        if let (false, Some(folder)) = (known, folder) {
            check_folder(folder, &mut faults)?;
        }
    }
    if !faults.is_empty() {
        bail!(
            "{}\na library names settings, as `run_dir`; crates/cli/src/api_words.rs makes flags of them",
            faults.join("\n")
        );
    }
    println!("flags: no message of a library names one");
    Ok(())
}

fn check_folder(folder: &Path, faults: &mut Vec<String>) -> anyhow::Result<()> {
    let reading = || format!("reading {}", folder.display());
    for entry in fs::read_dir(folder).with_context(reading)? {
        let path = entry.with_context(reading)?.path();
        let stem = path.file_stem().unwrap_or_default();
        if stem == "tests" {
            continue;
        }
        if path.is_dir() {
            check_folder(&path, faults)?;
        } else if path.extension().is_some_and(|is| is == "rs") {
            let text = fs::read_to_string(&path)?;
            let messages = messages_with_flags(&text);
            let messages = messages.with_context(|| format!("reading {}", path.display()))?;
            faults.extend(
                messages
                    .iter()
                    .map(|message| format!("{}: {message}", path.display())),
            );
        }
    }
    Ok(())
}

/// Returns the texts of a source file that name flags.
fn messages_with_flags(source: &str) -> anyhow::Result<Vec<String>> {
    let tokens: TokenStream = source
        .parse()
        .map_err(|error| anyhow!("it is not Rust: {error}"))?;
    let mut found = Vec::new();
    literals(tokens, &mut found);
    found.retain(|literal| names_flag(literal));
    Ok(found)
}

/// Collects literals, but for those of documents and tests.
fn literals(tokens: TokenStream, found: &mut Vec<String>) {
    let mut tokens = tokens.into_iter().peekable();
    while let Some(token) = tokens.next() {
        match token {
            TokenTree::Literal(literal) => found.push(literal.to_string()),
            TokenTree::Group(group) => literals(group.stream(), found),
            TokenTree::Punct(punct) if punct.as_char() == '#' => {
                let _inner = tokens.next_if(
                    |next| matches!(next, TokenTree::Punct(mark) if mark.as_char() == '!'),
                );
                let Some(TokenTree::Group(attribute)) =
                    tokens.next_if(|next| matches!(next, TokenTree::Group(_)))
                else {
                    continue;
                };
                let text = attribute.stream().to_string().replace(' ', "");
                if text == "cfg(test)" {
                    // The item ends with its body, or without one.
                    let ends = |token: &TokenTree| match token {
                        TokenTree::Group(body) => body.delimiter() == Delimiter::Brace,
                        TokenTree::Punct(punct) => punct.as_char() == ';',
                        _ => false,
                    };
                    let _item = tokens.find(ends);
                } else if !text.starts_with("doc") {
                    literals(attribute.stream(), found);
                }
            }
            TokenTree::Punct(_) | TokenTree::Ident(_) => {}
        }
    }
}

/// Returns whether a literal is a sentence with a flag, and not a command line or an argument of one.
fn names_flag(literal: &str) -> bool {
    let flag = literal.match_indices("--").find(|(at, dashes)| {
        let before = literal[..*at].chars().next_back();
        let after = literal[at + dashes.len()..].chars().next();
        before.is_some_and(|c| " (`\"".contains(c)) && after.is_some_and(|c| c.is_ascii_lowercase())
    });
    flag.is_some_and(|(at, _)| {
        let is_command = PROGRAMS
            .iter()
            .any(|program| literal[..at].contains(program));
        literal.contains(' ') && !is_command
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sentences_with_flags_are_found_in_macros_and_attributes() {
        let source = r#"
            #[error("no room: raise --size")]
            fn f() { bail!("there is no store (choose one with --store)") }
        "#;
        let found = messages_with_flags(source).unwrap();
        assert_eq!(
            found,
            [
                r#""no room: raise --size""#,
                r#""there is no store (choose one with --store)""#
            ]
        );
    }

    #[test]
    fn arguments_commands_documents_and_tests_may_have_them() {
        let source = r#"
            //! What `--store` names.
            /// As --store says.
            fn f() { arg("--store").args(["--user={uid}"]); bail!("run yolofs doctor --store DIR") }
            #[cfg(test)]
            mod tests { const A: &str = "choose one with --store"; }
            const B: &str = "a -- b";
        "#;
        assert_eq!(messages_with_flags(source).unwrap(), [""; 0]);
    }
}
