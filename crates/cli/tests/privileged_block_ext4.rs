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

/// An EROFS of one directory, which has itself in it; `change` makes it lie.
fn forged_erofs(change: impl FnOnce(&mut [u8])) -> Vec<u8> {
    let mut disk = vec![0; 1 << 20];
    let mut put = |at: usize, bytes: &[u8]| disk[at..at + bytes.len()].copy_from_slice(bytes);
    // The superblock: blocks of 4 KiB, the root is inode 1 of block 1.
    put(1024, &0xe0f5_e1e2_u32.to_le_bytes());
    put(1024 + 12, &[12]);
    put(1024 + 14, &1_u16.to_le_bytes());
    put(1024 + 16, &1_u64.to_le_bytes());
    put(1024 + 36, &256_u32.to_le_bytes());
    put(1024 + 40, &1_u32.to_le_bytes());
    // The inode: a directory of one block, which is the third.
    let names = b"...loop";
    let inode = 4096 + 32;
    put(inode + 4, &0o40755_u16.to_le_bytes());
    put(inode + 6, &2_u16.to_le_bytes());
    put(
        inode + 8,
        &u32::try_from(36 + names.len()).unwrap().to_le_bytes(),
    );
    put(inode + 16, &2_u32.to_le_bytes());
    put(inode + 20, &1_u32.to_le_bytes());
    for (number, name) in (0_u16..).zip([36_u16, 37, 39]) {
        let entry = 8192 + usize::from(number) * 12;
        put(entry, &1_u64.to_le_bytes());
        put(entry + 8, &name.to_le_bytes());
        put(entry + 10, &[2]);
    }
    put(8192 + 36, names);
    change(&mut disk);
    disk
}

/// The kernel reads them; whoever serves one is there to say so, and goes on.
#[test]
fn privileged_block_a_file_system_that_lies_is_refused_or_read_with_errors() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    let [disk, export_at, mounted] = ["disk.raw", "export", "mounted"].map(at);
    fs::create_dir(&export_at).unwrap();
    fs::create_dir(&mounted).unwrap();
    let put = |disk: &mut [u8], at: usize, number: u32| {
        disk[at..at + 4].copy_from_slice(&number.to_le_bytes());
    };
    let mut ext4 = vec![0; 1 << 20];
    ext4[1080..1082].copy_from_slice(&0xef53_u16.to_le_bytes());
    for (number, lie) in [
        forged_erofs(|disk| put(disk, 1024 + 40, u32::MAX)),
        forged_erofs(|disk| put(disk, 1024 + 12, 0xff)),
        forged_erofs(|disk| disk[4096..8192].fill(0)),
        ext4,
    ]
    .iter()
    .enumerate()
    {
        fs::write(&disk, lie).unwrap();
        let mut export = yolofs();
        export.args(["block", "export", arg(&disk), "--mount", arg(&export_at)]);
        let said = export.args(["--erofs", arg(&mounted)]).output().unwrap();
        let why = String::from_utf8_lossy(&said.stderr);
        assert_eq!(said.status.code(), Some(1), "{number}: {why}");
        assert!(
            why.contains("mounting the file system of the image"),
            "{number}: {why}"
        );
        let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
        assert!(
            !table.contains(arg(dir.path())),
            "{number}: it left a mount"
        );
    }
    // A directory that is in itself, and one that is longer than the disk.
    for lie in [
        forged_erofs(|_| {}),
        forged_erofs(|disk| put(disk, 4096 + 32 + 8, u32::MAX)),
        forged_erofs(|disk| put(disk, 4096 + 32 + 16, u32::MAX - 1)),
    ] {
        fs::write(&disk, lie).unwrap();
        let server = export(&[
            arg(&disk),
            "--mount",
            arg(&export_at),
            "--erofs",
            arg(&mounted),
        ]);
        let mut find = Command::new("timeout");
        let found = find.args(["60", "find", arg(&mounted)]).output().unwrap();
        let said = String::from_utf8_lossy(&found.stderr);
        assert_eq!(found.status.code(), Some(1), "{said}");
        assert!(found.stdout.len() < 1 << 16);
        let pid = nix::unistd::Pid::from_raw(server.0.id().cast_signed());
        nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGINT).unwrap();
        let mut server = server;
        assert!(server.0.wait().unwrap().code().is_some());
    }
}
