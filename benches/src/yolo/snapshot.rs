//! A machine that was saved, with its memory in a file, and is restored by mapping this file: a page comes when the guest
//! touches it, from the disk, from the page cache, or from a mount.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use clap::ValueEnum;
use serde::Serialize;
use serde_json::json;
use tempfile::TempDir;

use super::guest::{LightGuest, READY, drive};
use super::{Cache, Mode};
use crate::boots::milliseconds;
use crate::caches::{self, HostFiles};
use crate::lab_args::Places;
use crate::process::{Guard, disk_bytes_read, run_ok, wait_for};
use crate::programs::{DEADLINE, Programs, record};
use crate::stage::{Access, Stage};
use crate::throttle::Throttle;
use crate::vm::qmp::Qmp;
use crate::vm::{connect, small_pages, socket, wait_for_line};

/// What the guest is told, and what it says when it has read its files again, which are in its memory.
const QUESTION: &[u8] = b"again\n";
const ANSWER: &str = "LIGHT-ANSWER";
/// Sixty megabytes from a disk of 150 requests a second, on a busy machine.
const RESTORE_DEADLINE: Duration = Duration::from_secs(300);
const MEMORY_MIB: u64 = 512;
/// QEMU maps a file that it may not write, copy on write, since 8.2.
const QEMU_SINCE: (u32, u32) = (8, 2);

/// As which monitor of machines QEMU saves memory to a file, and maps it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Monitor {
    /// With holes where the guest has never written, and in huge pages.
    Qemu,
    /// With zeros instead of holes, and in pages of 4 KiB.
    Firecracker,
}

impl Monitor {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Qemu => "qemu",
            Self::Firecracker => "firecracker",
        }
    }

    /// What starts QEMU with its memory mapped as by this monitor.
    fn launch(self, qemu: &Path) -> anyhow::Result<Command> {
        match self {
            Self::Qemu => Ok(Command::new(qemu)),
            Self::Firecracker => {
                let itself = std::env::current_exe().context("finding this program")?;
                let mut command = Command::new(itself);
                command.arg(small_pages::WORD).arg(qemu);
                Ok(command)
            }
        }
    }
}

/// What was measured of a restore.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Restored {
    /// As which monitor.
    pub monitor: Monitor,
    /// From where.
    pub mode: Mode,
    /// Milliseconds from the start of QEMU to the guest's answer.
    pub answer_ms: f64,
    /// Read requests that reached the disk.
    pub disk_reads: u64,
    /// Bytes they asked for.
    pub disk_bytes: u64,
    /// Bytes that QEMU had read from any disk, if that is more: of its own program, libraries and firmware.
    pub qemu_bytes: u64,
}

/// A QEMU, and the guest that it runs.
#[derive(Debug)]
struct Host {
    qemu: PathBuf,
    guest: LightGuest,
}

/// A disk with snapshots of a machine, and what was recorded of their restores.
#[derive(Debug)]
pub struct Snapshots {
    // First: what is mounted goes before the directory that it is in.
    stage: Stage,
    programs: Programs,
    host: Host,
    files: HostFiles,
    home: TempDir,
}

impl Snapshots {
    /// Boots a machine, saves it to a disk of this readahead in KiB as each monitor does, and records a restore of each. The bench itself is what
    /// restores: with `restore`, it is called with the monitor, the QEMU, the guest's directory and the one of the snapshot.
    ///
    /// # Errors
    /// If an image, a program or a right is missing, or QEMU is too old.
    pub fn take(
        places: &Places,
        qemu: &Path,
        restore: &str,
        read_ahead: u32,
    ) -> anyhow::Result<Self> {
        check(qemu)?;
        let beside = places.images.parent().unwrap_or(&places.images);
        let home = tempfile::Builder::new()
            .prefix("snapshots.")
            .tempdir_in(beside);
        let home = home.with_context(|| format!("making a directory in {}", beside.display()))?;
        let dir = |name: &str| -> anyhow::Result<PathBuf> {
            let path = home.path().join(name);
            fs::create_dir(&path).with_context(|| format!("making {}", path.display()))?;
            Ok(path)
        };
        let host = Host {
            qemu: qemu.to_owned(),
            guest: LightGuest::unpack(&places.images, &dir("light")?)?,
        };
        let stage = make_stage(&home.path().join("stage.ext4"), &dir("stage")?)?;
        stage.set_read_ahead(read_ahead)?;
        let saved = dir("saved")?;
        host.save(&saved)?;
        dir("mount")?;
        let programs = Programs::new(&places.bin, home.path())?;
        let itself = std::env::current_exe().context("finding this program")?;
        for monitor in Monitor::value_variants() {
            let at = stage.path().join(monitor.as_str());
            copy(&saved, &at, *monitor)?;
            let words = [
                itself.display().to_string(),
                restore.to_owned(),
                monitor.as_str().to_owned(),
                host.qemu.display().to_string(),
                host.guest.dir().display().to_string(),
            ];
            let words: Vec<_> = words.iter().map(|word| format!("'{word}'")).collect();
            let script = format!("exec {} \"$YOLOFS_MNT\"", words.join(" "));
            // A restored machine touches other pages each time.
            let flags = ["--no-chroot", "--runs", "3", "--name", monitor.as_str()];
            record(programs.bootimg(), &flags, &at, &["sh", "-c", &script])
                .context("recording a restore")?;
        }
        Ok(Self {
            stage,
            programs,
            host,
            files: HostFiles::find(&places.bin),
            home,
        })
    }

    /// Restores a machine, from a disk of so many requests a second.
    ///
    /// # Errors
    /// If anything on the way fails.
    pub fn sample(&self, monitor: Monitor, mode: Mode, iops: u32) -> anyhow::Result<Restored> {
        let throttle = Throttle::new(&self.stage.device_number()?, iops)?;
        caches::drop_all(&self.files)?;
        // From wherever a machine is restored, QEMU itself and the guest's disk are in memory, and are no part of it.
        self.host.warm_up(monitor)?;
        let source = self.stage.path().join(monitor.as_str());
        let mount = match mode {
            Mode::Yolofs | Mode::Pinned => {
                let at = self.home.path().join("mount");
                let mut command = self.programs.yolofs();
                command
                    .args(["mount", "--wait-prewarm", "--lock"])
                    .args([&source, &at]);
                run_ok(command, DEADLINE)?;
                Some(self.programs.adopt(&at))
            }
            Mode::Native => None,
            Mode::Warm => {
                self.host.restore(monitor, &source)?;
                None
            }
        };
        if let Some(mount) = &mount {
            throttle.admit(mount.status()?.pid)?;
        }
        let stay = throttle.stay()?;
        let before = self.stage.reads()?;
        let dir = mount.as_ref().map_or(source, |at| at.path().to_owned());
        let (took, read) = self.host.restore(monitor, &dir)?;
        let reads = self.stage.reads()?.since(before);
        drop((stay, mount));
        Ok(Restored {
            monitor,
            mode,
            answer_ms: milliseconds(took),
            disk_reads: reads.requests,
            disk_bytes: reads.bytes,
            qemu_bytes: read.saturating_sub(reads.bytes),
        })
    }
}

/// Restores a machine once, for a recorder.
///
/// # Errors
/// If QEMU fails, or the guest does not answer.
pub fn restore(
    monitor: Monitor,
    qemu: &Path,
    guest: &Path,
    dir: &Path,
) -> anyhow::Result<Duration> {
    let host = Host {
        qemu: qemu.to_owned(),
        guest: LightGuest::unpacked(guest),
    };
    host.restore(monitor, dir).map(|(took, _)| took)
}

impl Host {
    /// Has the guest's disk in memory, and what QEMU reads of the host when it starts with these devices, as its libraries and
    /// firmware: it starts, with other memory, and ends.
    fn warm_up(&self, monitor: Monitor) -> anyhow::Result<()> {
        let disk = self.guest.disk();
        let opened = File::open(&disk).with_context(|| format!("{}", disk.display()));
        io::copy(&mut opened?, &mut io::sink()).context("reading the guest's disk")?;
        let scratch = tempfile::tempdir().context("making a directory")?;
        let memory = format!("memory-backend-ram,id=memory,size={MEMORY_MIB}M");
        let incoming = ["-incoming", "defer"];
        let (qemu, ..) = self.start(
            monitor.launch(&self.qemu)?,
            &memory,
            scratch.path(),
            &incoming,
        )?;
        drop(qemu);
        Ok(())
    }

    /// Starts QEMU with its memory in a file, and its sockets in `scratch`.
    fn start(
        &self,
        mut command: Command,
        memory: &str,
        scratch: &Path,
        incoming: &[&str],
    ) -> anyhow::Result<(Guard, UnixStream, Qmp)> {
        let (serial, control) = (scratch.join("serial"), scratch.join("qmp"));
        let disk = self.guest.disk().display().to_string();
        command
            .args(["-machine", "q35,memory-backend=memory", "-m"])
            .arg(MEMORY_MIB.to_string())
            .args(["-object", memory])
            .args(self.guest.devices())
            .args(["-drive", &drive(&disk, Cache::Writeback)])
            .args(["-device", "virtio-blk-pci,drive=disk", "-chardev"])
            .arg(socket("serial", &serial))
            .args(["-serial", "chardev:serial", "-chardev"])
            .arg(socket("control", &control))
            .args(["-mon", "chardev=control,mode=control"])
            .args(incoming)
            .env("TMPDIR", scratch)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .process_group(0);
        let mut qemu = Guard::spawn(&mut command)?;
        let console = connect(&serial, &mut qemu)?;
        let mut control = Qmp::new(connect(&control, &mut qemu)?)?;
        // The memory is in its file, and not in the state.
        let apart = json!({ "capabilities": [{ "capability": "x-ignore-shared", "state": true }] });
        control.execute("migrate-set-capabilities", &apart)?;
        Ok((qemu, console, control))
    }

    /// Boots a machine until it is ready, and writes its memory and its state to files in `dir`.
    fn save(&self, dir: &Path) -> anyhow::Result<()> {
        let scratch = tempfile::tempdir().context("making a directory")?;
        let file = dir.join("vm.mem");
        let memory = format!("{},share=on", backend(&file));
        let (mut qemu, console, mut control) =
            self.start(Command::new(&self.qemu), &memory, scratch.path(), &[])?;
        let deadline = Instant::now() + RESTORE_DEADLINE;
        wait_for_line(console, READY, &mut qemu, deadline)?;
        control.execute("stop", &json!({}))?;
        let state = dir.join("vm.state");
        let to = json!({ "uri": format!("exec:cat > '{}'", state.display()) });
        control.execute("migrate", &to)?;
        wait_for("the saved state of the machine", RESTORE_DEADLINE, || {
            let answer = control.execute("query-migrate", &json!({}))?;
            ensure!(answer["status"] != "failed", "QEMU cannot save: {answer}");
            Ok((answer["status"] == "completed").then_some(()))
        })
    }

    /// Restores the machine of `dir`, asks it something, and returns how long the answer took from the start of QEMU, and how many
    /// bytes QEMU had read from disks by then.
    fn restore(&self, monitor: Monitor, dir: &Path) -> anyhow::Result<(Duration, u64)> {
        let scratch = tempfile::tempdir().context("making a directory")?;
        let started = Instant::now();
        let memory = backend(&dir.join("vm.mem"));
        // Copy on write, of a file that cannot be written.
        let memory = format!("{memory},share=off,readonly=on,rom=off");
        let incoming = ["-incoming", "defer"];
        let qemu = monitor.launch(&self.qemu)?;
        let (mut qemu, console, mut control) =
            self.start(qemu, &memory, scratch.path(), &incoming)?;
        let state = dir.join("vm.state");
        let from = json!({ "uri": format!("exec:cat '{}'", state.display()) });
        control.execute("migrate-incoming", &from)?;
        wait_for("the restored machine", RESTORE_DEADLINE, || {
            let answer = control.execute("query-status", &json!({}))?;
            Ok((answer["status"] != "inmigrate").then_some(()))
        })?;
        control.execute("cont", &json!({}))?;
        let mut ask = console.try_clone().context("asking the guest")?;
        ask.write_all(QUESTION).context("asking the guest")?;
        wait_for_line(console, ANSWER, &mut qemu, started + RESTORE_DEADLINE)?;
        let took = started.elapsed();
        Ok((took, disk_bytes_read(qemu.pid())?))
    }
}

fn backend(file: &Path) -> String {
    let file = file.display();
    format!("memory-backend-file,id=memory,size={MEMORY_MIB}M,mem-path={file}")
}

/// Fails if a QEMU cannot map a file that it may not write.
fn check(qemu: &Path) -> anyhow::Result<()> {
    let mut command = Command::new(qemu);
    command.arg("--version");
    let said = run_ok(command, DEADLINE)?.output;
    let version = version(&said).with_context(|| format!("{} says {said}", qemu.display()))?;
    let (major, minor) = QEMU_SINCE;
    ensure!(
        version >= QEMU_SINCE,
        "{} is of version {}.{}: memory of a mounted file needs {major}.{minor} or later (--qemu PATH)",
        qemu.display(),
        version.0,
        version.1
    );
    Ok(())
}

/// Finds a version in `QEMU emulator version 10.0.2 (Debian ...)`.
fn version(said: &str) -> Option<(u32, u32)> {
    let (_, rest) = said.split_once("version ")?;
    let mut parts = rest.split(|c: char| !c.is_ascii_digit());
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

/// Makes a file system for two snapshots.
fn make_stage(image: &Path, at: &Path) -> anyhow::Result<Stage> {
    let mut mkfs = Command::new("mkfs.ext4");
    let options = "lazy_itable_init=0,lazy_journal_init=0,nodiscard";
    mkfs.args(["-q", "-F", "-b", "4096", "-E", options])
        .arg(image)
        .arg("1536M");
    run_ok(mkfs, DEADLINE).context("making a disk")?;
    Stage::mount(image, at, Access::ReadWrite)
}

/// Copies a snapshot to a directory of its own.
fn copy(saved: &Path, to: &Path, monitor: Monitor) -> anyhow::Result<()> {
    fs::create_dir(to).with_context(|| format!("making {}", to.display()))?;
    let sparse = match monitor {
        Monitor::Qemu => "--sparse=always",
        Monitor::Firecracker => "--sparse=never",
    };
    let mut cp = Command::new("cp");
    cp.args([sparse, "--reflink=never"])
        .args([saved.join("vm.mem"), saved.join("vm.state")])
        .arg(to);
    run_ok(cp, DEADLINE).context("writing a snapshot")?;
    nix::unistd::sync();
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_found() {
        let said = "QEMU emulator version 10.0.2 (Debian 1:10.0.2+ds-2)\nCopyright";
        assert_eq!(version(said), Some((10, 0)));
        assert!(version("QEMU emulator version 7.2.22").unwrap() < QEMU_SINCE);
        assert_eq!(version("qemu: not found"), None);
    }
}
