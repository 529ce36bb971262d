//! Tests that need another kernel or other mounts than this machine has: the test program runs itself in a guest, with a
//! Debian root and Debian 13's kernel.

use std::borrow::BorrowMut;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

/// How long a guest may take, in seconds: it is emulated.
const PATIENCE_SECONDS: &str = "420";

/// A guest that is being packed. The calling test program is in it as `/tests`.
#[derive(Debug)]
pub struct Guest {
    dir: TempDir,
}

impl Guest {
    /// Unpacks the root and the kernel (`scripts/images/{root,kernel}.sh`). `init` is the script that is the guest's first
    /// process: it runs `/tests`, and turns the guest off.
    pub fn new(init: &str) -> Self {
        let guest = Self {
            dir: tempfile::tempdir().unwrap(),
        };
        fs::create_dir(guest.root()).unwrap();
        ok(unpack("root.tar", &guest.root()));
        ok(unpack("kernel.tar", guest.dir.path()).args(["vmlinuz", "initrd.img"]));
        fs::write(guest.root().join("init"), init).unwrap();
        fs::set_permissions(guest.root().join("init"), Permissions::from_mode(0o755)).unwrap();
        guest.add_program("tests", &std::env::current_exe().unwrap());
        guest
    }

    /// Returns where its root is made: what is put there is in it.
    pub fn root(&self) -> PathBuf {
        self.dir.path().join("root")
    }

    /// Puts a program into its root, without what debuggers read, which is nine tenths of it.
    pub fn add_program(&self, name: &str, program: &Path) {
        ok(Command::new("strip").args([Path::new("-o"), &self.root().join(name), program]));
    }

    /// Puts a module of its kernel into its root.
    pub fn add_module(&self, name: &str) {
        let module = format!("modules/{name}");
        ok(unpack("kernel.tar", &self.root()).args(["--strip-components=1", &module]));
    }

    /// Boots it with its root on a disk, and returns what it says until it is off.
    pub fn boot(self) -> String {
        let dir = self.dir.path();
        let disk = dir.join("disk.raw");
        let mkfs = "-q -F -b 4096 -m 0 -O ^has_journal -d";
        ok(Command::new("mkfs.ext4")
            .args(mkfs.split_whitespace())
            .args([&self.root(), &disk])
            .arg("400M"));
        // `cmpxchg16b` of QEMU 7.2 may leave wrong flags, which kills one boot of Linux 6.12 in four. And one processor: where
        // there are two, one may execute a half of what the other patches when the first group limits CPU time.
        let fixed = "-nodefaults -no-user-config -accel tcg,thread=multi -cpu qemu64,+rdrand,-cx16 -machine q35 \
                     -display none -no-reboot -serial stdio -monitor none -m 1024";
        let words = "init=/init console=ttyS0 loglevel=1 nowatchdog no_timer_check panic=-1 mitigations=off";
        let disk = format!(
            "if=none,id=disk,format=raw,snapshot=on,file={}",
            disk.display()
        );
        let output = Command::new("timeout")
            .args(["--kill-after=5", PATIENCE_SECONDS, "qemu-system-x86_64"])
            .args(fixed.split_whitespace())
            .arg("-kernel")
            .arg(dir.join("vmlinuz"))
            .arg("-initrd")
            .arg(dir.join("initrd.img"))
            .args(["-append", words, "-drive", &disk])
            .args(["-device", "virtio-blk-pci,drive=disk"])
            .output()
            .unwrap();
        let said = [output.stdout, output.stderr].concat();
        String::from_utf8_lossy(&said).into_owned()
    }

    /// Boots it, and fails unless all `count` tests that it runs pass: none may be left out unseen.
    pub fn must_pass(self, count: usize) {
        let said = self.boot();
        let result = format!("test result: ok. {count} passed; 0 failed");
        assert!(said.contains(&result), "{said}");
    }
}

fn unpack(name: &str, to: &Path) -> Command {
    let here = || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.cache/images");
    let images = std::env::var_os("YOLOFS_IMAGES").map_or_else(here, PathBuf::from);
    let archive = images.join(name);
    let script = name.replace(".tar", ".sh");
    assert!(
        archive.exists(),
        "{} is missing: run scripts/images/{script}",
        archive.display()
    );
    let mut tar = Command::new("tar");
    tar.arg("-xf").arg(archive).arg("-C").arg(to);
    tar
}

/// Runs a command that must succeed.
pub fn ok(mut command: impl BorrowMut<Command>) {
    let command = command.borrow_mut();
    let output = command.output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {error}");
}
