//! What the programs say on standard error, and how the environment changes it.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::fs;
use std::process::Command;

use serde_json::Value;

/// Runs `yolofs status` beside a file that describes no mount, which is worth a warning, and
/// returns what it says on standard error.
fn said(variables: &[(&str, &str)]) -> String {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("broken.json"), "{").unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_yolofs"))
        .arg("status")
        .arg("--run-dir")
        .arg(dir.path())
        .env_remove("YOLOFS_LOG")
        .env_remove("YOLOFS_LOG_FORMAT")
        .envs(variables.iter().copied())
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    assert_eq!(output.stdout, b"nothing is mounted\n");
    String::from_utf8(output.stderr).unwrap()
}

#[test]
fn warnings_are_lines_for_people() {
    let text = said(&[]);
    assert_eq!(text.lines().count(), 1, "{text}");
    assert!(text.starts_with("warn: /"), "{text}");
    assert!(
        text.contains("broken.json does not describe a mount: "),
        "{text}"
    );
    assert_eq!(said(&[("YOLOFS_LOG", "error")]), "");
    assert_eq!(said(&[("YOLOFS_LOG", "layers=debug")]), "");
    assert_eq!(
        said(&[("YOLOFS_LOG", "host::run_dir=warn")])
            .lines()
            .count(),
        1
    );
}

#[test]
fn json_is_for_programs() {
    let text = said(&[("YOLOFS_LOG_FORMAT", "json")]);
    assert_eq!(text.lines().count(), 1, "{text}");
    let line: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(
        (&line["level"], &line["target"]),
        (&"WARN".into(), &"host::run_dir".into())
    );
    assert!(
        line["message"].as_str().unwrap().contains("broken.json"),
        "{line}"
    );
    assert!(line["timestamp"].is_string(), "{line}");
}

#[test]
fn settings_that_make_no_sense_are_told() {
    let text = said(&[("YOLOFS_LOG", "verbose"), ("YOLOFS_LOG_FORMAT", "xml")]);
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 3, "{text}");
    assert_eq!(
        lines[0],
        "warn: YOLOFS_LOG=verbose names no level such as debug"
    );
    assert_eq!(
        lines[1],
        "warn: YOLOFS_LOG_FORMAT=xml is neither text nor json"
    );
    assert!(lines[2].contains("broken.json"), "{text}");
}
