//! What both programs promise to scripts, whatever the verb: codes, messages, pipes, fields.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod fixture;

use std::collections::BTreeSet;
use std::fs;
use std::io::Read as _;
use std::process::{Command, Stdio};

use serde_json::Value;

use fixture::Fixture;
use lab::{fails, json, ok};

#[test]
fn errors_say_what_to_what_and_why() {
    let fixture = Fixture::with_images();
    fs::create_dir(fixture.path("tree")).unwrap();
    let cases: [(i32, &[&str], &[&str]); 13] = [
        (1, &["inspect", "nope"], &["nope", "bootimg ls"]),
        (1, &["pin", "nope"], &["nope", "bootimg ls"]),
        (1, &["export", "nope", "x"], &["nope", "bootimg ls"]),
        (1, &["verify", "./nope"], &["./nope", "No such file"]),
        (
            1,
            &["inspect", "./disk.raw"],
            &["disk.raw", "not a boot image"],
        ),
        (
            1,
            &["import", "disk.raw"],
            &["importing disk.raw", "not a boot image"],
        ),
        (1, &["export", "one", "tree"], &["tree is a directory"]),
        (1, &["export", "one", "none/x"], &["none/x", "No such file"]),
        (
            1,
            &["from-trace", "nope", "--qemu", "one.log"],
            &["source nope", "No such file"],
        ),
        (
            1,
            &["from-trace", "disk.raw", "--qemu", "nope"],
            &["reading nope", "No such file"],
        ),
        (
            1,
            &["from-trace", "tree", "--qemu", "one.log"],
            &["need a disk image"],
        ),
        (
            1,
            &["from-trace", "disk.raw", "--trace", "one.log"],
            &["the trace one.log"],
        ),
        (
            1,
            &["ls", "--store", "disk.raw"],
            &["store disk.raw", "--store"],
        ),
    ];
    for (code, args, words) in cases {
        let why = fails(code, &mut fixture.bootimg(args));
        assert!(why.starts_with("bootimg: "), "{args:?}: {why}");
        assert_eq!(why.lines().count(), 1, "{args:?}: {why}");
        for word in words {
            assert!(why.contains(word), "{args:?}: {why}");
        }
    }
    assert_eq!(fixture.names(), ["one", "two"]);
}

#[test]
fn looking_for_an_image_makes_no_store() {
    let fixture = Fixture::new();
    assert_eq!(fixture.names(), [""; 0]);
    let verbs: [&[&str]; 6] = [
        &["inspect", "one"],
        &["verify", "one"],
        &["rm", "one"],
        &["pin", "one"],
        &["export", "one", "one.img"],
        &["merge", "one", "two", "--name", "both"],
    ];
    for args in verbs {
        let why = fails(1, &mut fixture.bootimg(args));
        assert!(
            why.contains("no store at") && why.contains("--store"),
            "{why}"
        );
    }
    assert!(!fixture.path("store").exists());
}

#[test]
fn wrong_command_lines_end_with_2() {
    let fixture = Fixture::new();
    let cases: [&[&str]; 10] = [
        &[],
        &["frob"],
        &["ls", "--frob"],
        &["merge", "one", "--name", "x"],
        &["prewarm"],
        &["prewarm", "one", "--all"],
        &["from-trace", "disk.raw"],
        &["record", "tree", "--until", "sometime", "--", "true"],
        &["record", "tree", "--runs", "0", "--", "true"],
        &["ls", "--store-max", "much"],
    ];
    for args in cases {
        let why = fails(2, &mut fixture.bootimg(args));
        assert!(
            !why.contains("__"),
            "the sandbox's stages are nobody's business: {why}"
        );
    }
    assert!(!fixture.path("store").exists());
    let why = fails(2, &mut fixture.bootimg(&["ls", "--store-max", "much"]));
    assert!(why.contains("512M"), "{why}");
}

#[test]
fn a_name_that_is_no_file_name_is_refused() {
    let fixture = Fixture::new();
    for name in ["../x", "", "a/b", &"x".repeat(300)] {
        let args = [
            "from-trace",
            "disk.raw",
            "--qemu",
            "one.log",
            "--name",
            name,
        ];
        let why = fails(2, &mut fixture.bootimg(&args));
        assert!(why.contains("is not a valid name"), "{name}: {why}");
    }
    assert_eq!(fixture.names(), [""; 0]);
}

#[test]
fn nobody_reading_the_output_is_no_error() {
    let fixture = Fixture::with_images();
    let commands: [&[&str]; 6] = [
        &["ls"],
        &["ls", "--json"],
        &["inspect", "one", "--json"],
        &["verify", "one"],
        &["completions", "bash"],
        &["--help"],
    ];
    for args in commands {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let child = fixture
            .bootimg(args)
            .stdout(writer)
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let ended = child.wait_with_output().unwrap();
        let noise = String::from_utf8(ended.stderr).unwrap();
        assert_eq!(
            (ended.status.code(), noise.as_str()),
            (Some(0), ""),
            "{args:?}"
        );
    }
}

#[test]
fn output_that_cannot_be_written_is_an_error() {
    let fixture = Fixture::with_images();
    for args in [&["ls", "--json"][..], &["completions", "zsh"]] {
        let full = fs::File::options().write(true).open("/dev/full").unwrap();
        let why = fails_into(1, fixture.bootimg(args).stdout(full));
        assert!(
            why.contains("standard output") && why.contains("No space left"),
            "{why}"
        );
    }
}

/// Like `fails`, with standard output as it was set.
fn fails_into(code: i32, command: &mut Command) -> String {
    let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
    let mut why = String::new();
    child
        .stderr
        .take()
        .unwrap()
        .read_to_string(&mut why)
        .unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(code), "{why}");
    why
}

/// Collects the names of all fields of a document.
fn fields(document: &Value, names: &mut BTreeSet<String>) {
    match document {
        Value::Array(items) => items.iter().for_each(|item| fields(item, names)),
        Value::Object(object) => {
            for (name, value) in object {
                names.insert(name.clone());
                fields(value, names);
            }
        }
        _ => {}
    }
}

#[test]
fn every_field_of_the_json_is_documented() {
    let docs = include_str!("../../../docs/cli.md");
    let fixture = Fixture::with_images();
    let mut documents = vec![fixture.record("one")];
    let commands: [&[&str]; 8] = [
        &["ls"],
        &["inspect", "one"],
        &["verify", "one", "--against", "disk.raw"],
        &["merge", "one", "two", "--name", "both"],
        &["prewarm", "--all"],
        &["rm", "--dry-run", "one"],
        &["gc", "--dry-run"],
        &["import", "one.img"],
    ];
    ok(&mut fixture.bootimg(&["export", "one", "one.img"]));
    for args in commands {
        documents.push(json(fixture.bootimg(args).arg("--json")));
    }
    let mut names = BTreeSet::new();
    documents
        .iter()
        .for_each(|document| fields(document, &mut names));
    assert!(names.len() > 40, "{names:?}");
    let missing: Vec<_> = names
        .iter()
        .filter(|name| !docs.contains(&format!("`{name}`")))
        .collect();
    assert!(missing.is_empty(), "not in docs/cli.md: {missing:?}");
    let programs = [
        cli::bootimg_command(),
        cli::yolofs_command(),
        cli::nicfetch_command(),
    ];
    for command in programs {
        let shown = command.get_subcommands().filter(|verb| !verb.is_hide_set());
        for verb in shown.map(clap::Command::get_name) {
            assert!(
                docs.contains(&format!("`{verb}`")),
                "not in docs/cli.md: {verb}"
            );
        }
    }
}
