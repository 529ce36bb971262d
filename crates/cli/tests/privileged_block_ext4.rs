//! Container images become ext4 images: with every file as it was, the same in each run, and written to by a machine
//! that boots from one.

#![cfg(feature = "privileged")]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod block_export;
mod block_layers;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use block_export::{Process, arg, export, succeeds, yolofs};
use block_layers::{Mounted, first_difference, lower, packed, seen, unpacked, upper};
use serde_json::{Value, json};
use testkit::layouts::{LayoutDir, named};

/// Makes a container image of these layers in a layout, and returns its name.
fn image(dir: &Path, layers: &[Vec<u8>]) -> String {
    let source = LayoutDir(dir);
    source.start();
    source.index(&[named(source.image(layers, &json!({})), "app")]);
    format!("oci:{}:app", dir.display())
}

/// Converts an image to an ext4 in the directory `to`.
fn convert(source: &str, to: &Path) -> Value {
    let to = arg(to);
    let args = ["block", "convert", "--json", "--fs", "ext4", source, to];
    let done = succeeds(yolofs().args(args));
    serde_json::from_slice(&done.stdout).unwrap()
}

/// An image that is served as a file, which is mounted by a loop device.
struct Served {
    mounted: Mounted,
    /// Ends after the file system on it.
    _server: Process,
    /// What a server leaves that was killed.
    export: Mounted,
}

impl Served {
    fn new(image: &Path, dir: &Path) -> Self {
        let (at, mounted) = (dir.join("export"), dir.join("mounted"));
        fs::create_dir(&at).unwrap();
        fs::create_dir(&mounted).unwrap();
        let server = export(&[arg(image), "--mount", arg(&at)]);
        let export = Mounted(at);
        let file = export.0.join("disk");
        // Nothing is to be replayed: there is no journal.
        let mut mount = Command::new("mount");
        mount.args(["-t", "ext4", "-o", "loop,ro", arg(&file), arg(&mounted)]);
        succeeds(&mut mount);
        Self {
            mounted: Mounted(mounted),
            _server: server,
            export,
        }
    }

    fn assert_clean(&self) {
        let file = self.export.0.join("disk");
        succeeds(Command::new("e2fsck").args(["-fn", arg(&file)]));
    }
}

#[test]
fn privileged_block_an_ext4_has_every_file_as_it_was_and_the_same_digest_each_time() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let layers = [lower(dir), upper(dir)];
    let source = image(dir, &layers);
    let to = dir.join("images");
    let first = convert(&source, &to);
    for run in ["second", "third"] {
        assert_eq!(
            convert(&source, &dir.join(run))["manifest"],
            first["manifest"]
        );
    }
    // Of the same layers as an EROFS, nothing is taken for this.
    let erofs = [
        "block",
        "convert",
        "--json",
        &source,
        arg(&to),
        "--name",
        "erofs",
    ];
    let erofs = succeeds(yolofs().args(erofs)).stdout;
    let erofs: Value = serde_json::from_slice(&erofs).unwrap();
    for layer in 0..2 {
        assert_eq!(erofs["layers"][layer]["reused"], false);
        assert_ne!(
            erofs["layers"][layer]["digest"],
            first["layers"][layer]["digest"]
        );
    }
    let manifest = first["manifest"].as_str().unwrap().replace(':', "/");
    let manifest = fs::read(to.join("blobs").join(manifest)).unwrap();
    let manifest: Value = serde_json::from_slice(&manifest).unwrap();
    let kind = "containerd.io/snapshot/overlaybd/blob-fs-type";
    assert_eq!(manifest["layers"][1]["annotations"][kind], "ext4");

    let served = Served::new(&to.join("image"), dir);
    served.assert_clean();
    let unpacked = unpacked(dir, &layers);
    fs::create_dir(unpacked.join("lost+found")).unwrap();
    let mut chmod = Command::new("chmod");
    succeeds(chmod.args(["700", arg(&unpacked.join("lost+found"))]));
    let (expected, found) = (seen(&unpacked), seen(&served.mounted.0));
    assert_eq!(first_difference(&expected, &found), None);
    assert_eq!(expected.lines().count(), found.lines().count());
    assert!(expected.lines().count() > 1400);
}

/// Makes a layer whose first process reads all files, compares them, and writes.
fn bootable(dir: &Path) -> Vec<u8> {
    packed(
        dir,
        r#"
        mkdir bin dev proc data; cp "$(which busybox)" bin/busybox
        for i in $(seq 300); do head -c 20000 /dev/urandom > data/$i; done
        (cd data && sha256sum *) > sums
        head -c 200000 /dev/zero > data/gone
        cat > start <<'END'
#!/bin/busybox sh
PATH=/bin; /bin/busybox --install -s /bin; mount -t proc proc /proc
cd /data && sha256sum -c -s ../sums && [ ! -e gone ] && echo READ ALL || echo FAILED to compare
rm 1 2 3 && mkdir more && cp 4 more/copy && echo $(($(cat /upper-layer) + 1)) > /written || echo FAILED to write
cd /; sync
mount -o remount,ro / && echo WRITTEN || echo FAILED to remount
poweroff -f
END
        chmod 755 start
        "#,
    )
}

/// Boots a machine from the device at a socket, and returns what it said.
fn boot(dir: &Path, socket: &Path) -> String {
    let images = std::env::var_os("YOLOFS_IMAGES").map_or_else(
        || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.cache/images"),
        PathBuf::from,
    );
    let kernel = images.join("kernel.tar");
    assert!(
        kernel.exists(),
        "{}: run scripts/images/kernel.sh",
        kernel.display()
    );
    let unpack = ["-xf", arg(&kernel), "vmlinuz", "initrd.img"];
    succeeds(Command::new("tar").current_dir(dir).args(unpack));
    let drive = format!(
        "driver=raw,file.driver=nbd,file.server.type=unix,file.server.path={},if=virtio",
        socket.display()
    );
    let mut machine = Command::new("timeout");
    machine
        .args(["--foreground", "240", "qemu-system-x86_64"])
        .args(["-nodefaults", "-no-user-config", "-accel", "tcg"])
        .args(["-cpu", "qemu64,+rdrand", "-m", "256", "-machine", "q35"])
        .args(["-display", "none", "-no-reboot", "-serial", "stdio"])
        .args(["-kernel", arg(&dir.join("vmlinuz"))])
        .args(["-initrd", arg(&dir.join("initrd.img"))])
        .args(["-append", "console=ttyS0 quiet panic=-1 init=/start"])
        .args(["-drive", &drive]);
    String::from_utf8_lossy(&succeeds(&mut machine).stdout).into_owned()
}

#[test]
fn privileged_block_a_machine_boots_from_an_ext4_and_writes_to_it() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let layers = [
        bootable(dir),
        packed(dir, "echo 41 > upper-layer; mkdir data; : > data/.wh.gone"),
    ];
    let images = dir.join("images");
    convert(&image(dir, &layers), &images);
    let (live, lower) = (dir.join("live"), images.join("image"));
    let create = ["block", "create", arg(&live), "--lower", arg(&lower)];
    succeeds(yolofs().args(create));
    let socket = dir.join("disk.sock");
    let server = export(&[arg(&live), "--nbd", arg(&socket)]);
    let said = boot(dir, &socket);
    for line in ["READ ALL", "WRITTEN"] {
        assert!(
            said.lines().any(|said| said.trim() == line),
            "{line}: {said}"
        );
    }
    assert!(
        !said.contains("FAILED") && !said.contains("EXT4-fs error"),
        "{said}"
    );
    drop(server);

    succeeds(yolofs().args(["block", "commit", arg(&live)]));
    // Without the new writable layer, it can be mounted as a file.
    let config = fs::read(live.join("config.v1.json")).unwrap();
    let mut config: Value = serde_json::from_slice(&config).unwrap();
    config.as_object_mut().unwrap().remove("upper");
    config["lowers"][2]["file"] = arg(&live.join("layer.3.obd")).into();
    let sealed = dir.join("sealed");
    fs::create_dir(&sealed).unwrap();
    fs::write(sealed.join("config.v1.json"), config.to_string()).unwrap();
    let served = Served::new(&sealed, dir);
    served.assert_clean();
    let at = &served.mounted.0;
    assert_eq!(fs::read_to_string(at.join("written")).unwrap(), "42\n");
    assert!(!at.join("data/1").exists());
    let copy = fs::read(at.join("data/more/copy")).unwrap();
    assert_eq!(copy, fs::read(at.join("data/4")).unwrap());
}
