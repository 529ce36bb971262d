//! Boot images that somebody forged to exhaust who opens them, met through the command, which gets
//! little memory.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod fixture;

use std::fs;
use std::process::{Command, Output};

use bootimg::testing;
use fixture::Fixture;
use serde_json::Value;

/// Address space of a command: a hundred times the largest file, which is opened with all that it
/// describes; the forged paths add up to a thousand times as much and more.
const LIMIT: &str = "--as=500000000";
const FILES: u32 = 20_000;

/// Runs `bootimg` with an address space of its own.
fn limited(fixture: &Fixture, args: &[&str]) -> Output {
    let command = fixture.bootimg(args);
    let mut limited = Command::new("prlimit");
    limited.arg(LIMIT).arg(command.get_program());
    limited.args(command.get_args());
    limited.current_dir(command.get_current_dir().unwrap());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => limited.env(name, value),
            None => limited.env_remove(name),
        };
    }
    limited.output().unwrap()
}

fn told(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// All that opens a boot image from a file.
const OPENERS: [&[&str]; 6] = [
    &["inspect", "./x.bimg"],
    &["inspect", "./x.bimg", "--json"],
    &["inspect", "./x.bimg", "--plot", "x.svg"],
    &["verify", "./x.bimg"],
    &["verify", "./x.bimg", "--against", "."],
    &["import", "./x.bimg", "--name", "x"],
];

/// 20 000 directories one below the other, all of which have the same name of 255 bytes: each of
/// 20 000 files has a path of 5 MB.
#[test]
fn names_that_share_their_bytes_are_refused() {
    let fixture = Fixture::new();
    let tree = testing::deep(20_000, 1, FILES);
    testing::write(&tree, &fixture.path("good.bimg"));
    let good = fs::read(fixture.path("good.bimg")).unwrap();
    let forged = testing::replace_tree(&good, &testing::with_one_long_name(&tree));
    fs::write(fixture.path("x.bimg"), forged).unwrap();
    for args in OPENERS {
        let output = limited(&fixture, args);
        // `verify` says what is damaged, and that something is.
        let code = if args[0] == "verify" { 4 } else { 1 };
        assert_eq!(
            output.status.code(),
            Some(code),
            "{args:?}: {}",
            told(&output)
        );
        let text = format!(
            "{}{}",
            told(&output),
            String::from_utf8_lossy(&output.stdout)
        );
        assert!(
            text.contains("the tree is not well formed"),
            "{args:?}: {text}"
        );
    }
    // It was the tree, and nothing else that was forged.
    let same = testing::replace_tree(&good, &tree.encode());
    fs::write(fixture.path("x.bimg"), same).unwrap();
    let output = limited(&fixture, &["verify", "./x.bimg"]);
    assert!(output.status.success(), "{}", told(&output));
}

/// The most that the format allows: a path of 65 KB to each of 20 000 files, 1.3 GB in all.
#[test]
fn long_paths_are_told_in_bounded_memory() {
    let fixture = Fixture::new();
    let tree = testing::deep(256, 254, FILES);
    testing::write(&tree, &fixture.path("x.bimg"));
    let paths: usize = tree
        .files()
        .map(|(file, _)| tree.path(file).unwrap().len())
        .sum();
    assert!(paths > 1 << 30, "{paths}");
    for args in OPENERS {
        let output = limited(&fixture, args);
        let against = args.contains(&"--against");
        let code = if against { 4 } else { 0 };
        assert_eq!(
            output.status.code(),
            Some(code),
            "{args:?}: {}",
            told(&output)
        );
    }
    let json = |args: &[&str]| -> Value {
        serde_json::from_slice(&limited(&fixture, args).stdout).unwrap()
    };
    let inspected = json(&["inspect", "./x.bimg", "--json"]);
    let files = inspected["files"].as_array().unwrap();
    assert_eq!(files.len(), FILES as usize, "all are there");
    let path = |file: &Value| file["path"].as_str().unwrap().to_owned();
    assert_eq!(path(&files[0]).len(), 256 * 255 + "f000000".len());
    assert_eq!(path(files.last().unwrap()), ".../f019999");
    // Attached to another source: all are dropped, a thousand are named.
    let verified = json(&["verify", "./x.bimg", "--against", ".", "--json"]);
    let stale = verified["against"]["stale"].as_array().unwrap();
    assert_eq!(stale.len(), 1001);
    assert_eq!(stale.last().unwrap(), "and 19000 more");
}
