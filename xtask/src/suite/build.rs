//! Has cargo build the tests, and finds the programs that it made.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::{Context as _, ensure};
use serde_json::Value;

use super::program::Program;
use crate::cargo::cargo;
use crate::workspace;

/// The tests of a package that need root are behind this feature.
const FEATURE: &str = "privileged";

/// Which tests to build.
#[derive(Clone, Debug, Default)]
pub(crate) struct Selection {
    /// One package; all of the workspace if none.
    pub(crate) package: Option<String>,
    /// One integration test of it; all targets and the documentation if none.
    pub(crate) test: Option<String>,
}

/// Builds what `cargo test` would run, and returns it in a fixed order, the documentation last.
pub(crate) fn build(selection: &Selection) -> anyhow::Result<Vec<Program>> {
    let root = workspace::root()?;
    let selected = arguments(selection)?;
    let output = cargo()
        .args(["test", "--no-run"])
        .arg("--message-format=json-render-diagnostics")
        .args(&selected)
        .current_dir(&root)
        .stderr(Stdio::inherit())
        .output()
        .context("running cargo test --no-run")?;
    ensure!(output.status.success(), "the tests cannot be built");
    let messages = String::from_utf8(output.stdout).context("reading cargo's messages")?;
    let mut programs: Vec<_> = messages
        .lines()
        .filter_map(|line| program(line).transpose())
        .collect::<Result<_, _>>()?;
    if let (None, Some(dir)) = (&selection.package, commands(&messages)?) {
        let told = ("YOLOFS_PROGRAMS", dir);
        for program in &mut programs {
            program.environment.push(told.clone());
        }
    }
    programs.sort();
    if selection.test.is_none() {
        programs.push(documentation(&root, &selected));
    }
    Ok(programs)
}

/// Of the whole workspace all features are built: what no program has by default is compiled, too.
fn arguments(selection: &Selection) -> anyhow::Result<Vec<String>> {
    let mut arguments = Vec::new();
    match &selection.package {
        Some(package) => {
            arguments.extend(["--package".to_owned(), package.clone()]);
            if has_feature(package)? {
                arguments.extend(["--features".to_owned(), FEATURE.to_owned()]);
            }
        }
        None => arguments.extend(["--workspace", "--all-features"].map(str::to_owned)),
    }
    if let Some(test) = &selection.test {
        arguments.extend(["--test".to_owned(), test.clone()]);
    }
    Ok(arguments)
}

/// Cargo refuses a feature that the selected package has not.
fn has_feature(package: &str) -> anyhow::Result<bool> {
    let packages = workspace::load()?;
    Ok(packages
        .iter()
        .any(|known| known.name == package && known.features.contains(FEATURE)))
}

/// Reads one message of cargo's: a program with tests, or something else.
fn program(message: &str) -> anyhow::Result<Option<Program>> {
    let message: Value = serde_json::from_str(message).context("reading a message of cargo's")?;
    let (Some(file), Some(true)) = (
        message["executable"].as_str(),
        message["profile"]["test"].as_bool(),
    ) else {
        return Ok(None);
    };
    let text = |value: &Value, what: &str| {
        let text = value.as_str().map(str::to_owned);
        text.with_context(|| format!("cargo's message about {file} lacks {what}"))
    };
    let manifest = PathBuf::from(text(&message["manifest_path"], "the manifest")?);
    let directory = manifest.parent().context("a manifest without directory")?;
    let package = directory.file_name().unwrap_or_default().to_string_lossy();
    let target = &message["target"];
    let kind = text(&target["kind"][0], "the kind of target")?;
    let name = text(&target["name"], "the target's name")?;
    Ok(Some(Program {
        name: format!("{package} {kind} {name}"),
        file: file.into(),
        arguments: Vec::new(),
        directory: directory.to_owned(),
        environment: vec![("CARGO_MANIFEST_DIR", directory.to_owned())],
    }))
}

/// Returns the directory of the commands that were built with the tests. Told where they are, tests of other packages
/// do not have cargo build them again, with the features of one package only.
fn commands(messages: &str) -> anyhow::Result<Option<PathBuf>> {
    for message in messages.lines() {
        let message: Value =
            serde_json::from_str(message).context("reading a message of cargo's")?;
        let is_command = message["target"]["name"] == "yolofs"
            && message["target"]["kind"][0] == "bin"
            && message["profile"]["test"] == false;
        if let (true, Some(file)) = (is_command, message["executable"].as_str()) {
            return Ok(Path::new(file).parent().map(Path::to_owned));
        }
    }
    Ok(None)
}

/// Cargo builds these while it runs them. It is told of no package, as the first one was not: see
/// [`forget_this_package`](crate::cargo::forget_this_package).
fn documentation(root: &Path, selected: &[String]) -> Program {
    let mut arguments = vec!["test".to_owned(), "--doc".to_owned()];
    arguments.push("--no-fail-fast".to_owned());
    arguments.extend(selected.iter().cloned());
    // What follows is for the tests, as it is for other programs.
    arguments.push("--".to_owned());
    Program {
        name: "documentation".to_owned(),
        file: env!("CARGO").into(),
        arguments,
        directory: root.to_owned(),
        environment: Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn takes_programs_with_tests_only() {
        let message = |executable: &str, test: bool| {
            format!(
                r#"{{"reason":"compiler-artifact","manifest_path":"/w/crates/cli/Cargo.toml",
                "target":{{"kind":["test"],"name":"nic"}},"profile":{{"test":{test}}},"executable":{executable}}}"#
            )
        };
        let found = program(&message(r#""/w/target/nic-1""#, true)).unwrap();
        let found = found.unwrap();
        assert_eq!(found.name, "cli test nic");
        assert_eq!(found.file, Path::new("/w/target/nic-1"));
        assert_eq!(found.directory, Path::new("/w/crates/cli"));
        assert_eq!(program(&message("null", true)).unwrap(), None);
        assert_eq!(program(&message(r#""/w/nicfetch""#, false)).unwrap(), None);
        assert_eq!(program(r#"{"reason":"build-finished"}"#).unwrap(), None);
        assert!(program("{").is_err());
        assert!(program(r#"{"executable":"/a","profile":{"test":true}}"#).is_err());
    }

    #[test]
    fn finds_the_commands_that_were_built_beside_the_tests() {
        let message = |kind: &str, file: &str, test: bool| {
            format!(
                r#"{{"target":{{"kind":["{kind}"],"name":"yolofs"}},"profile":{{"test":{test}}},"executable":{file}}}"#
            )
        };
        let command = message("bin", r#""/w/target/debug/yolofs""#, false);
        let tests = message("bin", r#""/w/target/debug/deps/yolofs-1""#, true);
        let library = message("lib", "null", false);
        let found = commands(&[&*library, &tests, &command].join("\n")).unwrap();
        assert_eq!(found.unwrap(), Path::new("/w/target/debug"));
        assert_eq!(commands(&[library, tests].join("\n")).unwrap(), None);
        assert!(commands("{").is_err());
    }

    #[test]
    fn asks_for_the_feature_where_there_is_one() {
        let arguments = |package: Option<&str>, test: Option<&str>| {
            let selection = Selection {
                package: package.map(str::to_owned),
                test: test.map(str::to_owned),
            };
            arguments(&selection).unwrap().join(" ")
        };
        assert_eq!(arguments(None, None), "--workspace --all-features");
        assert_eq!(arguments(Some("xtask"), None), "--package xtask");
        assert_eq!(
            arguments(Some("cli"), Some("help")),
            "--package cli --features privileged --test help"
        );
    }
}
