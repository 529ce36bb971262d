//! The help of every verb, as snapshots: whoever changes a word of it sees what users will see.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use clap::Arg;

/// Set to anything to write the snapshots anew.
const UPDATE: &str = "UPDATE_SNAPSHOTS";

/// The programs with their command lines.
fn programs() -> [(&'static str, &'static str, clap::Command); 3] {
    [
        (
            "bootimg",
            env!("CARGO_BIN_EXE_bootimg"),
            cli::bootimg_command(),
        ),
        (
            "yolofs",
            env!("CARGO_BIN_EXE_yolofs"),
            cli::yolofs_command(),
        ),
        (
            "nicfetch",
            env!("CARGO_BIN_EXE_nicfetch"),
            cli::nicfetch_command(),
        ),
    ]
}

fn snapshots() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/snapshots")
}

/// Returns what `program VERB --help` prints, 100 columns wide, whatever the environment says.
fn help(program: &str, verb: &[&str]) -> String {
    let output = Command::new(program)
        .args(verb)
        .arg("--help")
        .env("COLUMNS", "100")
        .env_remove("YOLOFS_STORE")
        .env_remove("YOLOFS_STORE_MAX")
        .env_remove("YOLOFS_TIERS")
        .env_remove("YOLOFS_RUN_DIR")
        .env_remove("YOLOFS_STATE_DIR")
        .env_remove("NICFETCH_STORE")
        .env_remove("NICFETCH_TOKEN_FILE")
        .env_remove("DOCKER_HOST")
        .output()
        .unwrap();
    assert!(output.status.success(), "{program} {verb:?}: {output:?}");
    assert!(output.stderr.is_empty(), "{program} {verb:?}: {output:?}");
    // clap ends some lines in spaces, which editors do not keep.
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines()
        .map(|line| format!("{}\n", line.trim_end()))
        .collect()
}

/// Compares `text` with the snapshot `name`, or writes it.
fn check(name: &str, text: &str) -> Option<String> {
    let path = snapshots().join(name);
    if std::env::var_os(UPDATE).is_some() {
        fs::create_dir_all(snapshots()).unwrap();
        fs::write(&path, text).unwrap();
        return None;
    }
    let wanted = fs::read_to_string(&path).unwrap_or_default();
    if wanted == text {
        return None;
    }
    let first = wanted.lines().zip(text.lines()).position(|(a, b)| a != b);
    let first = first.unwrap_or_else(|| wanted.lines().count().min(text.lines().count()));
    let line = |text: &str| text.lines().nth(first).unwrap_or("(nothing)").to_owned();
    let (was, is) = (line(&wanted), line(text));
    Some(format!(
        "{name}, line {}:\n  was {was:?}\n  is  {is:?}\n",
        first + 1
    ))
}

#[test]
fn help_is_what_the_snapshots_say() {
    let mut wrong = String::new();
    let mut names = Vec::new();
    for (name, path, command) in programs() {
        let shown = command.get_subcommands().filter(|verb| !verb.is_hide_set());
        let verbs = shown.map(|verb| verb.get_name());
        let all = std::iter::once(None).chain(verbs.filter(|verb| *verb != "help").map(Some));
        for verb in all {
            let file = format!(
                "{}.txt",
                [name].into_iter().chain(verb).collect::<Vec<_>>().join("-")
            );
            wrong.extend(check(&file, &help(path, verb.as_slice())));
            names.push(file);
        }
    }
    let kept = fs::read_dir(snapshots()).unwrap();
    for file in kept.map(|entry| entry.unwrap().file_name().into_string().unwrap()) {
        if !names.contains(&file) {
            wrong.push_str(&format!("{file}: there is no such verb\n"));
        }
    }
    assert!(
        wrong.is_empty(),
        "{wrong}if this is what users should read: {UPDATE}=1 cargo test -p cli --test help, \
         and look at the difference before it is committed"
    );
}

#[test]
fn every_verb_and_option_is_explained() {
    for (name, _, command) in programs() {
        for verb in command.get_subcommands() {
            let about = verb
                .get_about()
                .map(ToString::to_string)
                .unwrap_or_default();
            explained(&format!("{name} {}", verb.get_name()), &about);
            for arg in verb.get_arguments().chain(command.get_arguments()) {
                check_argument(&format!("{name} {}", verb.get_name()), arg);
            }
        }
    }
}

fn check_argument(verb: &str, arg: &Arg) {
    if arg.is_hide_set() {
        return;
    }
    let what = format!("{verb}: {}", arg.get_id());
    let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
    explained(&what, &help);
    if !arg.get_action().takes_values() {
        return;
    }
    let names = arg.get_value_names().unwrap_or_default();
    assert_eq!(names.len(), 1, "{what}: its value has no name");
    let name = names[0].as_str();
    let kinds = [
        "ADDR",
        "ARCH",
        "ARGS",
        "COMMAND",
        "DIR",
        "FILE",
        "FILE.svg",
        "HOST",
        "IMAGE",
        "MODE",
        "MOUNTPOINT",
        "N",
        "NAME",
        "NETWORK",
        "SECS",
        "SECTORS",
        "SHELL",
        "SIZE",
        "SOCKET",
        "SOURCE",
        "UID:GID",
        "URL",
        "VARIANT",
        "WHEN",
        "[NAME=]URL",
    ];
    assert!(
        kinds.contains(&name),
        "{what}: {name} does not say which unit or kind of value it is"
    );
}

/// Panics unless a text reads like the others: a capital first, no full stop, not too short.
fn explained(what: &str, text: &str) {
    assert!(text.len() >= 8, "{what}: {text:?} explains nothing");
    assert!(
        !text.ends_with('.'),
        "{what}: {text:?} ends with a full stop"
    );
    let first = text.chars().next().unwrap();
    assert!(
        first.is_uppercase(),
        "{what}: {text:?} begins without a capital"
    );
}

#[test]
fn the_exit_codes_are_in_the_help_of_all_programs() {
    for (_, path, _) in programs() {
        let text = help(path, &[]);
        for code in ["0  ", "1  ", "2  ", "3  ", "4  ", "130"] {
            let listed = text.lines().any(|line| line.trim_start().starts_with(code));
            assert!(listed, "{code} in:\n{text}");
        }
    }
}
