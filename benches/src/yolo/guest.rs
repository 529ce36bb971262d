//! The light guest of `scripts/images/light.sh`, as a machine of the rig.

use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};

use super::Cache;
use crate::process::{Guard, run_ok};
use crate::vm::qmp::{DiskReads, Qmp};
use crate::vm::{connect, socket, wait_for_line};

/// What the guest says when it has read its part of the disk.
pub(super) const READY: &str = "LIGHT-READY";
/// What the guest's kernel is told.
const WORDS: &str = "console=ttyS0 loglevel=1 nowatchdog no_timer_check panic=-1 mitigations=off";
/// Sixteen machines that wait for a hard disk on a busy machine.
const DEADLINE: Duration = Duration::from_secs(300);

/// Kernel, initramfs and disk, in a directory.
#[derive(Debug)]
pub(super) struct LightGuest {
    dir: PathBuf,
}

impl LightGuest {
    pub(super) fn unpack(images: &Path, dir: &Path) -> anyhow::Result<Self> {
        let archive = images.join("light.tar");
        ensure!(
            archive.exists(),
            "{} is missing: run scripts/images/light.sh",
            archive.display()
        );
        let mut tar = Command::new("tar");
        tar.arg("-xf").arg(&archive).arg("-C").arg(dir);
        run_ok(tar, DEADLINE).context("unpacking the light guest")?;
        Ok(Self {
            dir: dir.to_owned(),
        })
    }

    /// Takes what was unpacked before.
    pub(super) fn unpacked(dir: &Path) -> Self {
        Self {
            dir: dir.to_owned(),
        }
    }

    pub(super) fn dir(&self) -> &Path {
        &self.dir
    }

    pub(super) fn disk(&self) -> PathBuf {
        self.dir.join("disk.raw")
    }

    /// Returns the arguments of a machine, without its disk and its console.
    pub(super) fn machine(&self) -> Vec<String> {
        let memory = ["-machine", "q35", "-m", "96"].map(str::to_owned);
        memory.into_iter().chain(self.devices()).collect()
    }

    /// Returns the arguments of a machine, without its memory, its disk and its console.
    pub(super) fn devices(&self) -> Vec<String> {
        let fixed = "-nodefaults -no-user-config -accel tcg,thread=multi -cpu qemu64,+rdrand,-cx16 \
                     -display none -no-reboot";
        let file = |name: &str| self.dir.join(name).display().to_string();
        let kernel = ["-kernel".to_owned(), file("vmlinuz")];
        let initrd = ["-initrd".to_owned(), file("initrd.img")];
        let words = ["-append".to_owned(), WORDS.to_owned()];
        let fixed = fixed.split_whitespace().map(str::to_owned);
        fixed.chain(kernel).chain(initrd).chain(words).collect()
    }

    /// Returns the shell command that boots from `$YOLOFS_IMAGE`, with the console on standard output.
    pub(super) fn recordable(&self) -> [String; 3] {
        let args: Vec<_> = self
            .machine()
            .into_iter()
            .map(|arg| format!("'{arg}'"))
            .collect();
        let drive = drive("$YOLOFS_IMAGE", Cache::Writeback);
        let script = format!(
            "exec qemu-system-x86_64 {} -drive \"{drive}\" -device virtio-blk-pci,drive=disk -serial stdio",
            args.join(" ")
        );
        ["sh".to_owned(), "-c".to_owned(), script]
    }

    /// Turns a machine on, with its sockets in `scratch`.
    pub(super) fn start(
        &self,
        file: &Path,
        cache: Cache,
        scratch: &Path,
    ) -> anyhow::Result<Machine> {
        std::fs::create_dir_all(scratch)
            .with_context(|| format!("making {}", scratch.display()))?;
        let (serial, control) = (scratch.join("serial"), scratch.join("qmp"));
        let mut command = Command::new("qemu-system-x86_64");
        command
            .args(self.machine())
            .args(["-drive", &drive(&file.display().to_string(), cache)])
            .args(["-device", "virtio-blk-pci,drive=disk"])
            .arg("-chardev")
            .arg(socket("serial", &serial))
            .args(["-serial", "chardev:serial", "-chardev"])
            .arg(socket("control", &control))
            .args(["-mon", "chardev=control,mode=control"])
            // What the guest writes: nothing.
            .env("TMPDIR", scratch)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .process_group(0);
        let mut qemu = Guard::spawn(&mut command)?;
        let console = connect(&serial, &mut qemu)?;
        Ok(Machine {
            qemu,
            console,
            control,
        })
    }
}

pub(super) fn drive(file: &str, cache: Cache) -> String {
    let cache = cache.as_str();
    format!("if=none,id=disk,format=raw,snapshot=on,cache={cache},file={file}")
}

/// A machine that is on, until this is dropped.
#[derive(Debug)]
pub(super) struct Machine {
    qemu: Guard,
    console: UnixStream,
    control: PathBuf,
}

impl Machine {
    /// Waits until it has read its part of the disk.
    pub(super) fn wait_until_ready(&mut self) -> anyhow::Result<()> {
        let console = self.console.try_clone().context("reading a console")?;
        let deadline = Instant::now() + DEADLINE;
        wait_for_line(console, READY, &mut self.qemu, deadline).map(drop)
    }

    /// Returns what it has read of its disk.
    pub(super) fn disk_reads(&mut self) -> anyhow::Result<DiskReads> {
        Qmp::new(connect(&self.control, &mut self.qemu)?)?.disk_reads()
    }
}
