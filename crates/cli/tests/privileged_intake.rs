//! What gets who has broken into a command that takes in an archive or a registry's answers: it may read
//! what it is given, write where that goes, and start nothing.

#![cfg(all(feature = "privileged", target_arch = "x86_64"))]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod broken;
mod node;

use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use broken::{Came, DENIED, Deed, KILLED, one_does, status, until_confined};
use lab::{Lab, busybox_root, ok, until};
use node::pack;
use testkit::layouts::{LayoutDir, layer, named};

/// What only root may read, and no command needs.
const SECRET: &str = "/etc/shadow";
/// Files of the image that are long enough to be unpacked for a while.
const LARGE: usize = 128 << 20;

/// A registry that takes connections and never answers.
struct Silent(TcpListener);

impl Silent {
    fn start() -> Self {
        Self(TcpListener::bind("127.0.0.1:0").unwrap())
    }

    fn image(&self) -> String {
        format!("{}/some/app:1", self.0.local_addr().unwrap())
    }
}

/// An image in a layout whose only layer takes long to be unpacked.
fn large_image(lab: &Lab) -> String {
    let dir = lab.make_dir("layout");
    let layout = LayoutDir(&dir);
    layout.start();
    let zeros = vec![0; LARGE];
    let tar = layer(&[("zeros", &zeros)]);
    let run = serde_json::json!({"Cmd": ["/bin/sh"]});
    layout.index(&[named(layout.image(&[tar], &run), "1")]);
    format!("oci:{}:1", dir.display())
}

fn start(command: &mut Command) -> Child {
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

/// Attacks the same process in every way; `inside` is where it may write.
fn attack(lab: &Lab, capabilities: &str, inside: &Path, command: &mut dyn FnMut() -> Command) {
    let outside = lab.path("outside");
    let mut confined = || {
        let child = start(&mut command());
        until_confined(&child);
        let shown = status(&child);
        for expected in ["\nNoNewPrivs:\t1\n", "\nCapInh:\t0000000000000000\n"] {
            assert!(shown.contains(expected), "{expected}: {shown}");
        }
        for set in ["CapPrm", "CapEff", "CapBnd"] {
            let expected = format!("\n{set}:\t{capabilities}\n");
            assert!(shown.contains(&expected), "{expected}: {shown}");
        }
        child
    };
    let mut attacked = |deed, path: &Path| one_does(&mut confined, deed, path);
    assert_eq!(attacked(Deed::Make, &outside), DENIED);
    assert!(!outside.exists());
    assert_eq!(attacked(Deed::Read, Path::new(SECRET)), DENIED);
    assert_eq!(attacked(Deed::Execute, Path::new("/bin/true")), KILLED);
    let made = inside.join("made");
    assert_eq!(attacked(Deed::Make, &made), Came::Done, "it may, there");
    fs::remove_file(made).unwrap();
    // And it is no accident of how it is attacked.
    let free = || start(command().env("YOLOFS_CONFINE", "off"));
    assert_eq!(one_does(free, Deed::Make, &outside), Came::Done);
    fs::remove_file(outside).unwrap();
}

/// `CAP_CHOWN`, `CAP_DAC_OVERRIDE`, `CAP_FOWNER`, `CAP_FSETID`.
const KEEPS: &str = "000000000000001b";
/// These, `CAP_SYS_ADMIN`, `CAP_MKNOD` and `CAP_SETFCAP`.
const UNPACKS: &str = "000000008820001b";

#[test]
fn privileged_who_unpacks_for_a_recorder_does_nothing_else() {
    let lab = Lab::new();
    let image = large_image(&lab);
    let into = lab.make_dir("into");
    attack(&lab, UNPACKS, &into, &mut || {
        let _earlier = fs::remove_dir_all(into.join("0"));
        let mut command = lab.bootimg();
        command.args(["unpack-image", &image]).arg(&into);
        command
    });
    // That is what the recorder starts, before anything of the image is looked at.
    let mut recorder = lab.bootimg();
    recorder.args(["record", &image, "--", "/none"]);
    let mut recorder = start(recorder.arg("--scratch").arg(lab.make_dir("scratch")));
    let children = format!("/proc/{0}/task/{0}/children", recorder.id());
    let mut seen = String::new();
    until("the recorder's child", || {
        let children = fs::read_to_string(&children).unwrap_or_default();
        let of = |pid: &str| fs::read_to_string(format!("/proc/{pid}/cmdline"));
        let children = children.split_whitespace().filter_map(|pid| of(pid).ok());
        seen = children.collect();
        seen.contains("unpack-image") || recorder.try_wait().unwrap().is_some()
    });
    assert!(seen.contains("unpack-image"), "{seen}");
    recorder.kill().unwrap();
    recorder.wait().unwrap();
}

#[test]
fn privileged_who_imports_for_a_block_service_does_nothing_else() {
    let lab = Lab::new();
    let (image, registry) = (large_image(&lab), Silent::start());
    let (store, scratch) = (lab.make_dir("nic"), lab.make_dir("scratch"));
    let import = |source: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_nicfetch"));
        command.args(["import", source, "--name", "some"]);
        command.args(["--size", "256M", "--store"]).arg(&store);
        command.arg("--scratch").arg(&scratch);
        command
    };
    attack(&lab, KEEPS, &store, &mut || import(&image));
    let pulled = format!("docker://{}", registry.image());
    attack(&lab, KEEPS, &store, &mut || import(&pulled));
    // What it pulls into is where nobody else gets; beside it, it only removes what is its own.
    let confined = || {
        let child = start(&mut import(&pulled));
        until_confined(&child);
        child
    };
    let beside = scratch.join("beside");
    assert_eq!(one_does(confined, Deed::Make, &beside), DENIED);
    ok(Command::new("find").args([&scratch, &PathBuf::from("-delete")]));
}

#[test]
fn privileged_who_fetches_boot_images_does_nothing_else() {
    let lab = Lab::new();
    let registry = Silent::start();
    attack(&lab, KEEPS, &lab.store(), &mut || {
        let mut command = lab.bootimg();
        command.args(["pull", &registry.image()]);
        command
    });
    // Asked by another command, it is the same process.
    let mut prewarm = lab.bootimg();
    let mut prewarm = start(prewarm.args(["prewarm", "--pull", &registry.image()]));
    let children = format!("/proc/{0}/task/{0}/children", prewarm.id());
    until("its child to be confined", || {
        let child = fs::read_to_string(&children).unwrap_or_default();
        let status = fs::read_to_string(format!("/proc/{}/status", child.trim()));
        status.is_ok_and(|status| status.contains("\nSeccomp:\t2\n"))
    });
    nix::sys::signal::kill(
        nix::unistd::Pid::from_raw(prewarm.id().cast_signed()),
        nix::sys::signal::Signal::SIGTERM,
    )
    .unwrap();
    // Both end: the child is told, and the parent has waited for it.
    assert_eq!(prewarm.wait().unwrap().code(), Some(130));
}

#[test]
fn privileged_who_gives_boot_images_away_does_nothing_else() {
    let lab = Lab::new();
    let registry = Silent::start();
    let dir = lab.make_dir("image");
    busybox_root(&dir.join("base"));
    let archive = pack(&dir, "test.local/small:1", &["/bin/sh"], &["base"]);
    let mut record = lab.bootimg();
    record
        .arg("record")
        .arg(format!("docker-archive:{}", archive.display()));
    ok(record.args(["--until", "exit", "--", "cat", "/etc/config"]));
    attack(&lab, KEEPS, &lab.store(), &mut || {
        let mut command = lab.bootimg();
        command.args(["push", "test.local/small:1", "--to", &registry.image()]);
        command
    });
}

#[test]
fn privileged_who_asks_for_a_prewarm_does_nothing_else() {
    let lab = Lab::new();
    let nic = Silent::start();
    let (token, address) = (lab.path("token"), nic.0.local_addr().unwrap());
    fs::write(&token, "0123456789abcdef\n").unwrap();
    ok(Command::new("chmod").arg("600").arg(&token));
    let outside = lab.path("outside");
    for (deed, path, expected) in [
        (Deed::Make, outside.as_path(), DENIED),
        (Deed::Read, Path::new(SECRET), DENIED),
        (Deed::Execute, Path::new("/bin/true"), KILLED),
    ] {
        let confined = || {
            let mut command = Command::new(env!("CARGO_BIN_EXE_nicfetch"));
            command.args(["prewarm", "some/app:1", "--admin", &address.to_string()]);
            let child = start(command.arg("--token-file").arg(&token));
            until_confined(&child);
            child
        };
        assert_eq!(one_does(confined, deed, path), expected);
    }
    assert!(!outside.exists());
}
