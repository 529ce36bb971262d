//! What gets who has broken into a command that reads a block image, by its layers, its registry or its clients: the files
//! that the command line names, and nothing else.

#![cfg(all(feature = "privileged", target_arch = "x86_64"))]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod broken;

use std::fs::{self, Permissions};
use std::io::{self, PipeReader, PipeWriter, Write as _};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use blockimages::plan::StartPlan;
use blockimages::{Trace, TraceDialect, TraceRead};
use blocks::Digest;
use broken::{Came, DENIED, Deed, KILLED, UNKNOWN, one_does, status};
use lab::{Lab, ok, until};
use nix::fcntl::{FcntlArg, OFlag, fcntl};

/// What only root may read, and no command needs.
const SECRET: &str = "/etc/shadow";
/// A device that is there, and that is no image.
const DEVICE: &str = "/dev/zero";
/// `CAP_CHOWN`, `CAP_DAC_OVERRIDE`, `CAP_FOWNER`, `CAP_FSETID`.
const KEEPS: &str = "000000000000001b";
/// These, and `CAP_SYS_ADMIN`.
const MOUNTS: &str = "000000000020001b";
/// `CAP_DAC_OVERRIDE`, `CAP_DAC_READ_SEARCH`, `CAP_FOWNER`, `CAP_IPC_LOCK`, `CAP_SYS_ADMIN`.
const SERVES: &str = "000000000020400e";
/// A user of no other meaning, and its group.
const NOBODY: &str = "65534:65534";
const DIGEST: [u8; 32] = [2; 32];

/// An image whose layer is in a registry that takes connections and never answers, with a writable one on top.
struct Silent {
    registry: TcpListener,
    image: PathBuf,
}

impl Silent {
    /// One whose writable layer is a pair of files.
    fn new(lab: &Lab) -> Self {
        let upper = serde_json::json!({"data": "data", "index": "index"});
        let silent = Self::with_upper(lab, "image", &upper);
        for file in ["data", "index"] {
            fs::write(silent.image.join(file), "").unwrap();
        }
        silent
    }

    fn with_upper(lab: &Lab, name: &str, upper: &serde_json::Value) -> Self {
        let registry = TcpListener::bind("127.0.0.1:0").unwrap();
        let image = lab.make_dir(name);
        let config = serde_json::json!({
            "repoBlobUrl": format!("http://{}/v2/some/app/blobs", registry.local_addr().unwrap()),
            "lowers": [{"digest": Digest(DIGEST).to_string(), "size": 1 << 20}],
            "upper": upper,
        });
        fs::write(image.join("config.v1.json"), config.to_string()).unwrap();
        Self { registry, image }
    }

    fn reference(&self) -> String {
        format!(
            "docker://{}/some/app:1",
            self.registry.local_addr().unwrap()
        )
    }
}

/// A command of a lab that is to be attacked.
fn block(lab: &Lab, name: &str) -> Command {
    let mut command = lab.yolofs();
    command.args(["block", name]).stdout(Stdio::null());
    command
}

fn start(command: &mut Command) -> Child {
    let quiet = command.stdin(Stdio::null()).stderr(Stdio::null());
    quiet.spawn().unwrap()
}

/// A pipe that takes no byte more: who prints there waits.
fn full_pipe() -> (PipeReader, PipeWriter) {
    let (reader, mut writer) = io::pipe().unwrap();
    fcntl(&writer, FcntlArg::F_SETFL(OFlag::O_NONBLOCK)).unwrap();
    let full = loop {
        if let Err(error) = writer.write(&[0; 4096]) {
            break error;
        }
    };
    assert_eq!(full.kind(), io::ErrorKind::WouldBlock);
    fcntl(&writer, FcntlArg::F_SETFL(OFlag::empty())).unwrap();
    (reader, writer)
}

/// Waits until a process has all filters: those of intrusion, sockets, modes and mounts.
fn until_confined(process: &Child) {
    until("the command to be confined", || {
        status(process).contains("\nSeccomp_filters:\t4\n")
    });
}

/// Attacks the same command in every way; it may write to `inside`, if anywhere.
fn attack(
    lab: &Lab,
    capabilities: &str,
    inside: Option<&Path>,
    command: &mut dyn FnMut() -> Command,
) {
    let outside = lab.path("outside");
    let mut attacked = |deed, path: &Path| {
        let confined = || {
            let child = start(&mut command());
            until_confined(&child);
            let shown = status(&child);
            assert!(shown.contains("\nNoNewPrivs:\t1\n"), "{shown}");
            for set in ["CapPrm", "CapEff", "CapBnd"] {
                let expected = format!("\n{set}:\t{capabilities}\n");
                assert!(shown.contains(&expected), "{expected}: {shown}");
            }
            child
        };
        one_does(confined, deed, path)
    };
    for (deed, path, expected) in [
        (Deed::Make, outside.as_path(), DENIED),
        (Deed::Read, Path::new(SECRET), DENIED),
        (Deed::Read, Path::new(DEVICE), DENIED),
        (Deed::Execute, Path::new("/bin/true"), KILLED),
        (Deed::Mount, Path::new("/"), KILLED),
        (Deed::Call, Path::new("/"), UNKNOWN),
        (Deed::Open, Path::new(SECRET), UNKNOWN),
        (Deed::Widen, Path::new(SECRET), UNKNOWN),
        (Deed::Ring, Path::new("/"), KILLED),
    ] {
        assert_eq!(attacked(deed, path), expected, "{deed:?}");
    }
    assert!(!outside.exists());
    if let Some(inside) = inside {
        let made = inside.join("made");
        assert_eq!(attacked(Deed::Make, &made), Came::Done, "it may, there");
        fs::remove_file(made).unwrap();
    }
}

#[test]
fn privileged_block_who_reads_layers_of_a_registry_does_nothing_else() {
    let lab = Lab::new();
    let silent = Silent::new(&lab);
    let (cache, new) = (lab.make_dir("cache"), lab.path("new"));
    let trace = Trace {
        dialect: TraceDialect::Overlaybd,
        reads: vec![TraceRead {
            layer: 0,
            offset: 0,
            len: 4096,
        }],
    };
    let plan = StartPlan::of_trace(&trace, &[Some(Digest(DIGEST))], 1);
    devices::plans::shelf(&lab.store()).keep(&plan).unwrap();
    let named = ["verify", "prewarm", "restack", "gc"].map(|name| (name, None));
    for (name, size) in named.into_iter().chain([("resize", Some("8M"))]) {
        attack(&lab, KEEPS, Some(&cache), &mut || {
            let mut command = block(&lab, name);
            command.arg(&silent.image).args(size);
            command.arg("--cache").arg(&cache);
            command
        });
    }
    attack(&lab, KEEPS, None, &mut || {
        let mut command = block(&lab, "plan");
        command.arg("push").arg(&silent.image);
        command.arg(silent.reference().trim_start_matches("docker://"));
        command
    });
    let scratch = lab.make_dir("scratch");
    attack(&lab, KEEPS, Some(&scratch), &mut || {
        let mut command = block(&lab, "push");
        let name = silent.reference();
        let name = name.trim_start_matches("docker://");
        command.arg(&silent.image).args([name, "--base", name]);
        command.arg("--scratch").arg(&scratch);
        command
    });
    let live = Silent::with_upper(&lab, "live", &serde_json::json!({"dir": "layers"}));
    attack(&lab, KEEPS, Some(&live.image), &mut || {
        let mut command = block(&lab, "commit");
        command.arg(&live.image).arg("--cache").arg(&cache);
        command
    });
    attack(&lab, KEEPS, Some(&new), &mut || {
        let mut command = block(&lab, "create");
        command.arg(&new).args(["--lower", &silent.reference()]);
        command
    });
    attack(&lab, KEEPS, Some(&new), &mut || {
        let mut command = block(&lab, "convert");
        command.arg(silent.reference()).arg(&new);
        command
    });
    // And it is no accident of how they are attacked.
    let outside = lab.path("outside");
    let free = || {
        let mut command = block(&lab, "verify");
        command.arg(&silent.image).arg("--cache").arg(&cache);
        let child = start(command.env("YOLOFS_CONFINE", "off"));
        let _asked = silent.registry.accept().unwrap();
        child
    };
    assert_eq!(one_does(free, Deed::Make, &outside), Came::Done);
}

/// What waits for a layer that is a pipe, which nobody writes to.
#[test]
fn privileged_block_who_shows_an_image_does_nothing_else() {
    let lab = Lab::new();
    let image = lab.path("image");
    let create = ["--size", "1M", "--kind", "append"];
    ok(block(&lab, "create").arg(&image).args(create));
    let (_reader, printed) = full_pipe();
    attack(&lab, KEEPS, None, &mut || {
        let mut command = block(&lab, "status");
        command.arg(&image).stdout(printed.try_clone().unwrap());
        command
    });
}

/// The server of a block device has rings, which it may not change, and no driver: another process has that.
#[test]
fn privileged_block_who_serves_a_block_device_does_nothing_else() {
    let lab = Lab::new();
    let silent = Silent::with_upper(&lab, "image", &serde_json::Value::Null);
    let cache = lab.make_dir("cache");
    attack(&lab, KEEPS, Some(&cache), &mut || {
        let mut command = block(&lab, "export");
        command.arg(&silent.image).arg("--cache").arg(&cache);
        command.arg("--ublk").arg(lab.path("device"));
        command
    });
}

/// The daemon of a mount without a node is not root. Without a cache it reads its image only, as a worker does.
#[test]
fn privileged_block_who_mounts_an_image_does_nothing_else() {
    let lab = Lab::new();
    let (disk, at) = (lab.path("disk.raw"), lab.make_dir("mounted"));
    fs::write(&disk, vec![7; 1 << 20]).unwrap();
    attack(&lab, SERVES, None, &mut || {
        // What a daemon leaves that was killed.
        let _none = Command::new("umount").arg("-l").arg(&at).output().unwrap();
        let mut command = lab.yolofs();
        command.stdout(Stdio::null());
        command.args(["mount", "--foreground", "--worker-user", NOBODY]);
        command.arg(format!("overlaybd:{}", disk.display()));
        command.arg(&at);
        command
    });
    let _none = Command::new("umount").arg("-l").arg(&at).output().unwrap();
    let mut mount = lab.yolofs();
    mount.stdout(Stdio::null());
    mount.args(["mount", "--foreground", "--worker-user", NOBODY]);
    mount.arg(format!("overlaybd:{}", disk.display())).arg(&at);
    let mut daemon = start(&mut mount);
    until_confined(&daemon);
    let shown = status(&daemon);
    for ids in ["Uid", "Gid"] {
        assert!(
            shown.contains(&format!("\n{ids}:\t65534\t65534\t65534\t65534\n")),
            "{shown}"
        );
    }
    assert!(fs::read(at.join("disk")).unwrap() == fs::read(&disk).unwrap());
    ok(lab.yolofs().arg("umount").arg(&at));
    assert!(daemon.wait().unwrap().success());
}

#[test]
fn privileged_block_who_exports_an_image_does_nothing_else() {
    let lab = Lab::new();
    let disk = lab.path("disk.raw");
    fs::write(&disk, vec![7; 1 << 20]).unwrap();
    let (traces, at) = (lab.make_dir("traces"), lab.make_dir("mounted"));
    for way in ["--nbd", "--vhost-user"] {
        attack(&lab, KEEPS, Some(&traces), &mut || {
            let mut command = block(&lab, "export");
            command.arg(&disk).arg(way).arg(lab.path("socket"));
            command.arg("--record-trace").arg(traces.join("trace"));
            command
        });
    }
    attack(&lab, MOUNTS, None, &mut || {
        // What a command leaves that was killed.
        let _none = Command::new("umount").arg("-l").arg(&at).output().unwrap();
        let mut command = block(&lab, "export");
        command.arg(&disk).arg("--mount").arg(&at);
        command
    });
    ok(Command::new("umount").arg("-l").arg(&at));
}

/// The program that reads qcow2 is of others, and is broken into by the disk.
#[test]
fn privileged_block_the_program_that_reads_a_qcow2_does_nothing_else() {
    let lab = Lab::new();
    let (programs, images) = (lab.make_dir("programs"), lab.path("images"));
    let (disk, outside) = (lab.path("disk.qcow2"), lab.path("outside"));
    ok(Command::new("qemu-img")
        .args(["create", "-q", "-f", "qcow2"])
        .arg(&disk)
        .arg("1M"));
    let program = programs.join("qemu-img");
    let script = format!(
        "#!/bin/sh\nfor raw; do :; done\n(cat {SECRET}; echo made >{}; cat {}) >$raw 2>&1\ntruncate -s 1M $raw\n",
        outside.display(),
        disk.display(),
    );
    fs::write(&program, script).unwrap();
    fs::set_permissions(&program, Permissions::from_mode(0o755)).unwrap();
    let path = format!("{}:{}", programs.display(), std::env::var("PATH").unwrap());
    let secret = fs::read(SECRET).unwrap();
    let first = secret.split(|byte| *byte == b'\n').next().unwrap();
    for (confine, gets) in [("on", false), ("off", true)] {
        let mut convert = block(&lab, "convert");
        convert.arg(&disk).arg(&images).args(["--name", confine]);
        ok(convert.env("PATH", &path).env("YOLOFS_CONFINE", confine));
        let raw = lab.path("copy");
        let image = images.join(confine);
        let content = read(&lab, &image, &raw);
        let has = |what: &[u8]| content.windows(what.len()).any(|part| part == what);
        assert!(has(b"QFI\xfb"), "it has the disk");
        assert_eq!(has(first), gets, "{confine}: {SECRET}");
        assert_eq!(outside.exists(), gets, "{confine}");
    }
}

/// Returns the content of an image's device.
fn read(lab: &Lab, image: &Path, copy: &Path) -> Vec<u8> {
    let socket = image.with_extension("sock");
    let mut server = start(block(lab, "export").arg(image).arg("--nbd").arg(&socket));
    until("the image to be served", || socket.exists());
    let _earlier = fs::remove_file(copy);
    let address = format!("nbd+unix:///disk?socket={}", socket.display());
    ok(Command::new("nbdcopy").arg(address).arg(copy));
    server.kill().unwrap();
    server.wait().unwrap();
    fs::read(copy).unwrap()
}
