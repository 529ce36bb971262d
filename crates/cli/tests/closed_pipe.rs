//! Programs whose output nobody reads any more (`| head`): they end as if all of it had been read.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod fixture;

use std::fs;
use std::process::{Child, Command, Stdio};

use fixture::Fixture;
use lab::until;

/// Runs a command with a standard output whose other end is closed. It must say nothing about that,
/// and end with 0.
#[track_caller]
fn unread(command: &mut Command) {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let output = command.stdout(writer).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{command:?}: {said}");
    assert_eq!(said, "", "{command:?}");
}

/// Runs a command with a standard error whose other end is closed. It must end with `code`.
#[track_caller]
fn unheard(command: &mut Command, code: i32) {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let status = command.stdout(Stdio::null()).stderr(writer).status();
    assert_eq!(status.unwrap().code(), Some(code), "{command:?}");
}

/// Returns a program that knows nothing of this machine's stores and mounts.
fn program(path: &str, fixture: &Fixture) -> Command {
    let mut command = Command::new(path);
    command
        .current_dir(fixture.path(""))
        .env("YOLOFS_STORE", fixture.path("store"))
        .env("YOLOFS_RUN_DIR", fixture.path("run"))
        .env(
            "NICFETCH_ADMIN",
            format!("unix:{}", fixture.path("admin.sock").display()),
        )
        .env_remove("NICFETCH_STORE")
        .env_remove("NICFETCH_TOKEN_FILE")
        .env_remove("YOLOFS_LOG");
    command
}

const BOOTIMG: &str = env!("CARGO_BIN_EXE_bootimg");
const YOLOFS: &str = env!("CARGO_BIN_EXE_yolofs");
const NICFETCH: &str = env!("CARGO_BIN_EXE_nicfetch");

#[test]
fn help_and_completions_that_nobody_reads_end_well() {
    let fixture = Fixture::new();
    let commands = [
        (BOOTIMG, cli::bootimg_command()),
        (YOLOFS, cli::yolofs_command()),
        (NICFETCH, cli::nicfetch_command()),
    ];
    for (path, command) in commands {
        for words in [&["--version"][..], &["--help"], &["completions", "bash"]] {
            unread(program(path, &fixture).args(words));
        }
        for verb in command.get_subcommands() {
            unread(program(path, &fixture).args([verb.get_name(), "--help"]));
        }
    }
}

#[test]
fn lists_and_reports_that_nobody_reads_end_well() {
    let fixture = Fixture::with_images();
    fs::write(fixture.path("accesses"), "a 4096\nb 4096\na 4096\n").unwrap();
    let bootimg = [
        &["ls"][..],
        &["inspect", "one"],
        &["verify", "one"],
        &["prewarm", "one"],
        &["gc", "--dry-run"],
        &["rm", "two"],
    ];
    let yolofs = [
        &["status"][..],
        &["snapshotter", "status"],
        &["docker", "clear", "--dry-run"],
    ];
    let nicfetch = [&["simulate", "--capacity", "50%", "accesses"][..]];
    let all = [
        (BOOTIMG, &bootimg[..]),
        (YOLOFS, &yolofs),
        (NICFETCH, &nicfetch),
    ];
    for (path, commands) in all {
        for words in commands {
            unread(program(path, &fixture).args(*words));
            let help = program(path, &fixture).args(*words).arg("--help").output();
            let has_json = String::from_utf8_lossy(&help.unwrap().stdout).contains("--json");
            if has_json && words[0] != "rm" {
                unread(program(path, &fixture).args(*words).arg("--json"));
            }
        }
    }
}

#[test]
fn errors_that_nobody_hears_keep_their_codes() {
    let fixture = Fixture::new();
    unheard(program(BOOTIMG, &fixture).args(["inspect", "nothing"]), 1);
    unheard(program(YOLOFS, &fixture).args(["node", "status"]), 1);
    unheard(program(NICFETCH, &fixture).args(["status"]), 1);
    // It says that there is nothing to be done.
    fs::create_dir(fixture.path("mnt")).unwrap();
    unheard(program(YOLOFS, &fixture).args(["umount", "mnt"]), 0);
}

/// A nicfetch that runs; it is killed when it is dropped.
struct Running(Child);

impl Running {
    fn start(fixture: &Fixture) -> Self {
        let blocks = format!("unix:{}", fixture.path("blocks.sock").display());
        let admin = format!("unix:{}", fixture.path("admin.sock").display());
        let mut command = program(NICFETCH, fixture);
        command
            .args(["serve", "--blocks", &blocks, "--blocks-open"])
            .args(["--admin", &admin, "--size", "1G", "--store"])
            .arg(fixture.path("nic"));
        // The addresses that it tells are read by nobody.
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let mut running = Self(command.stdout(writer).spawn().unwrap());
        until("nicfetch to answer", || {
            let ended = running.0.try_wait().unwrap();
            assert!(ended.is_none(), "it ended: {ended:?}");
            let status = program(NICFETCH, fixture).arg("status").output();
            status.unwrap().status.success()
        });
        running
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ended = self.0.kill().and_then(|()| self.0.wait());
    }
}

#[test]
fn a_nicfetch_asked_by_somebody_who_does_not_read_ends_well() {
    let fixture = Fixture::new();
    let running = Running::start(&fixture);
    unread(program(NICFETCH, &fixture).args(["import", "disk.raw", "--name", "disk"]));
    let commands = [
        &["status"][..],
        &["ls"],
        &["verify"],
        &["pin", "disk"],
        &["unpin", "disk"],
        &["gc"],
    ];
    for words in commands {
        unread(program(NICFETCH, &fixture).args(words));
        unread(program(NICFETCH, &fixture).args(words).arg("--json"));
    }
    drop(running);
    let store = fixture.path("import").display().to_string();
    let import = ["import", "disk.raw", "--name", "disk", "--store", &store];
    unread(program(NICFETCH, &fixture).args(import));
    let store = fixture.path("import/chunks").display().to_string();
    for verb in ["status", "verify", "gc"] {
        unread(program(NICFETCH, &fixture).args(["chunks", verb, "--store", &store]));
    }
}
