//! `nicfetch chunks`: a chunk store as `nicfetch import` leaves it, and as a disk that forgets does.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::fs;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

/// Files of the source, and the chunks that they have together.
const FILES: u8 = 3;
const CHUNKS: u64 = 9;

fn nicfetch(args: &[&str], store: &Path) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_nicfetch"));
    command.args(args).arg("--store").arg(store);
    command
        .env_remove("NICFETCH_STORE")
        .env_remove("YOLOFS_LOG");
    command.output().unwrap()
}

fn json(code: i32, args: &[&str], store: &Path) -> Value {
    let output = nicfetch(&[args, &["--json"]].concat(), store);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(code), "{args:?}: {said}");
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Imports files of 384 KiB without a byte in common.
fn imported(dir: &Path) {
    let source = dir.join("source");
    fs::create_dir(&source).unwrap();
    for file in 0..FILES {
        let mut state = u64::from(file) + 1;
        let mut next = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state.to_le_bytes()[3]
        };
        let bytes: Vec<_> = (0..384 << 10).map(|_| next()).collect();
        fs::write(source.join(file.to_string()), bytes).unwrap();
    }
    let args = ["import", "--name", "one", source.to_str().unwrap()];
    let done = json(0, &args, &dir.join("nic"));
    assert_eq!(done["chunks"], CHUNKS, "{done}");
}

#[test]
fn what_was_imported_is_counted_verified_and_kept() {
    let dir = tempfile::tempdir().unwrap();
    imported(dir.path());
    let store = dir.path().join("nic/chunks");
    let status = json(0, &["chunks", "status"], &store);
    assert_eq!(status["chunks"], CHUNKS, "{status}");
    assert_eq!(status["raw_bytes"], CHUNKS * (128 << 10), "{status}");
    assert_eq!(status["damaged"], 0, "{status}");
    let verified = json(0, &["chunks", "verify"], &store);
    assert_eq!(verified["chunks"], CHUNKS, "{verified}");
    assert_eq!(verified["damaged"], 0, "{verified}");
    let collected = json(0, &["chunks", "gc"], &store);
    assert_eq!(collected["chunks_evicted"], 0, "{collected}");
    assert_eq!(json(0, &["chunks", "status"], &store)["chunks"], CHUNKS);
    // For people, too.
    let text = nicfetch(&["chunks", "status"], &store);
    let text = String::from_utf8(text.stdout).unwrap();
    assert!(text.starts_with("9 chunks of 1.1"), "{text}");
}

#[test]
fn what_is_damaged_is_counted_and_ends_with_code_4() {
    let dir = tempfile::tempdir().unwrap();
    imported(dir.path());
    let store = dir.path().join("nic/chunks");
    let segments = fs::read_dir(store.join("segments")).unwrap();
    let longest = segments
        .map(|entry| entry.unwrap().path())
        .max_by_key(|path| fs::metadata(path).unwrap().len())
        .unwrap();
    // A byte in the middle of the second record, whose head is right.
    let file = fs::File::options().write(true).open(longest).unwrap();
    file.write_all_at(b"?", 200_000).unwrap();
    let verified = json(4, &["chunks", "verify"], &store);
    assert_eq!(verified["damaged"], 1, "{verified}");
    assert_eq!(verified["chunks"], CHUNKS - 1, "{verified}");
    // What is whole is still there.
    let collected = json(0, &["chunks", "gc"], &store);
    assert_eq!(collected["chunks_evicted"], 0, "{collected}");
}

/// Imports so many chunks that nothing compresses and nobody else has.
fn import_noise(dir: &Path, name: &str, chunks: u32, flags: &[&str]) {
    let mut state = 1_u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()[3]
    };
    let mut bytes: Vec<_> = (0..128 << 10).map(|_| next()).collect();
    bytes[..name.len()].copy_from_slice(name.as_bytes());
    let source = dir.join(name);
    fs::create_dir(&source).unwrap();
    let file = fs::File::create(source.join("noise")).unwrap();
    for number in 0..chunks {
        bytes[100..104].copy_from_slice(&number.to_le_bytes());
        let at = u64::from(number) * bytes.len() as u64;
        file.write_all_at(&bytes, at).unwrap();
    }
    let args = [&["import", "--name", name, source.to_str().unwrap()], flags].concat();
    let done = json(0, &args, &dir.join("nic"));
    assert_eq!(done["chunks"], chunks, "{done}");
}

/// Returns how many chunks of a source are on the disk no more.
fn absent(dir: &Path, name: &str) -> usize {
    let config = chunks::StoreConfig {
        budget_bytes: u64::MAX,
        ..chunks::StoreConfig::default()
    };
    let sources = chunks::Sources::open(&dir.join("nic"), config).unwrap();
    let index = sources.catalog().source(name.as_bytes()).unwrap().unwrap();
    sources.absent(&index)
}

#[test]
fn what_is_pinned_stays_when_a_store_is_made_smaller() {
    let dir = tempfile::tempdir().unwrap();
    // Of 256 MiB, 56 are for chunks that live. What is pinned came first, and would go first; there
    // is so much else that its segment is repacked, too.
    import_noise(dir.path(), "pinned", 160, &["--pin"]);
    import_noise(dir.path(), "other", 1000, &[]);
    let store = dir.path().join("nic/chunks");
    let collected = json(0, &["chunks", "gc", "--max", "256M"], &store);
    assert!(
        collected["chunks_evicted"].as_u64().unwrap() > 0,
        "{collected}"
    );
    assert_eq!(absent(dir.path(), "pinned"), 0);
    assert!(absent(dir.path(), "other") > 0);
    // More than there is room for: then nothing goes.
    import_noise(dir.path(), "more", 320, &["--pin"]);
    let before = json(0, &["chunks", "status"], &store);
    let output = nicfetch(&["chunks", "gc", "--max", "256M"], &store);
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("pinned sources do not fit"), "{said}");
    assert_eq!(json(0, &["chunks", "status"], &store), before);
    assert_eq!(absent(dir.path(), "more"), 0);
}

#[test]
fn what_is_no_store_is_said_to_be_none() {
    let dir = tempfile::tempdir().unwrap();
    for verb in ["status", "verify", "gc"] {
        let output = nicfetch(&["chunks", verb], dir.path());
        assert_eq!(output.status.code(), Some(1));
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(said.contains("is not a chunk store"), "{said}");
        assert_eq!(
            fs::read_dir(dir.path()).unwrap().count(),
            0,
            "nothing is made"
        );
    }
    let output = nicfetch(&["chunks", "gc", "--max", "1K"], dir.path());
    assert_ne!(output.status.code(), Some(0));
}
