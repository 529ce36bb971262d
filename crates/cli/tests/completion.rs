//! What shells complete: verbs, and the names that there are.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::path::Path;
use std::process::Command;

/// Returns what bash is offered for the last word of a line.
fn offered(store: &Path, program: &str, line: &[&str]) -> Vec<String> {
    let output = Command::new(program)
        .env("YOLOFS_COMPLETE", "bash")
        .env("YOLOFS_STORE", store)
        .env("_CLAP_COMPLETE_INDEX", (line.len() - 1).to_string())
        .env("_CLAP_COMPLETE_COMP_TYPE", "9")
        .env("_CLAP_IFS", "\n")
        .arg("--")
        .args(line)
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines().map(str::to_owned).collect()
}

#[test]
fn names_of_images_are_completed() {
    let dir = tempfile::tempdir().unwrap();
    let (store, root) = (dir.path().join("store"), dir.path().join("root"));
    std::fs::create_dir(&root).unwrap();
    std::fs::write(root.join("file"), [7; 9000]).unwrap();
    let bootimg = env!("CARGO_BIN_EXE_bootimg");
    let list = |words: &[&str]| offered(&store, bootimg, &[&["bootimg"], words].concat());
    // Asking makes no store.
    let flags_only = list(&["inspect", ""]);
    assert!(
        flags_only.iter().all(|word| word.starts_with('-')),
        "{flags_only:?}"
    );
    assert!(!store.exists());
    let disk = dir.path().join("disk.raw");
    std::fs::write(&disk, vec![7; 1 << 20]).unwrap();
    let log = dir.path().join("qemu.log");
    std::fs::write(
        &log,
        "blk_co_preadv blk 0x1 bs 0x1 offset 0 bytes 8192 flags 0x0\n",
    )
    .unwrap();
    for name in ["web", "webshop", "other"] {
        let made = Command::new(bootimg)
            .env("YOLOFS_STORE", &store)
            .arg("from-trace")
            .arg(&disk)
            .arg("--qemu")
            .arg(&log)
            .args(["--name", name])
            .output()
            .unwrap();
        assert!(made.status.success(), "{made:?}");
    }
    assert_eq!(list(&["inspect", "we"]), ["web", "webshop"]);
    assert_eq!(list(&["rm", "other", "o"]), ["other"]);
    assert_eq!(list(&["bench", "webs"]), ["webshop"]);
    let yolofs = env!("CARGO_BIN_EXE_yolofs");
    let swap = ["yolofs", "node", "swap", "/mnt", "webs"];
    assert_eq!(offered(&store, yolofs, &swap), ["webshop"]);
    let here = format!("--store={}", store.display());
    let elsewhere = dir.path().join("elsewhere");
    let named = offered(&elsewhere, bootimg, &["bootimg", &here, "verify", "webs"]);
    assert_eq!(named, ["webshop"]);
    assert_eq!(list(&["insp"]), ["inspect"]);
}

#[test]
fn every_verb_and_flag_is_completed_and_hidden_ones_are_not() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("store");
    let bootimg = env!("CARGO_BIN_EXE_bootimg");
    let all = |words: &[&str]| offered(&store, bootimg, &[&["bootimg"], words].concat());
    let verbs = all(&[""]);
    for verb in ["from-trace", "prewarm", "unpin"] {
        assert!(verbs.iter().any(|word| word == verb), "{verb}: {verbs:?}");
    }
    assert!(
        verbs.iter().all(|word| !word.starts_with("__")),
        "{verbs:?}"
    );
    assert_eq!(all(&["record", "--keep"]), ["--keep-traces"]);
    let limits = all(&["record", "--store-m"]);
    assert!(
        limits.iter().any(|word| word == "--store-max"),
        "{limits:?}"
    );
    let yolofs = env!("CARGO_BIN_EXE_yolofs");
    let flags = offered(&store, yolofs, &["yolofs", "mount", "--wait"]);
    assert_eq!(flags, ["--wait-prewarm"]);
    for hidden in ["recor", "worke", "mounte"] {
        assert_eq!(offered(&store, yolofs, &["yolofs", hidden]), [""; 0]);
    }
    assert!(!store.exists(), "nothing but text was asked for");
}

#[test]
fn the_scripts_call_the_programs() {
    for (name, program) in [
        ("bootimg", env!("CARGO_BIN_EXE_bootimg")),
        ("yolofs", env!("CARGO_BIN_EXE_yolofs")),
        ("nicfetch", env!("CARGO_BIN_EXE_nicfetch")),
    ] {
        for shell in ["bash", "fish", "zsh"] {
            let printed = Command::new(program).args(["completions", shell]).output();
            let script = String::from_utf8(printed.unwrap().stdout).unwrap();
            assert!(
                script.contains("YOLOFS_COMPLETE"),
                "{name} {shell}: {script}"
            );
            assert!(script.contains(name), "{name} {shell}");
        }
        let verbs = offered(Path::new("/nonexistent"), program, &[name, "completio"]);
        assert_eq!(verbs, ["completions"]);
    }
}
