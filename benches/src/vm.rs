//! The boot of a virtual machine under software emulation: SeaBIOS, extlinux, a Debian kernel,
//! sshd. The guest says on its serial console when sshd answers.

pub(crate) mod qmp;
pub mod small_pages;

use std::ffi::OsString;
use std::io::Read as _;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use clap::ValueEnum;
use serde::Serialize;

use crate::interrupt;
use crate::process::{Guard, run_ok, wait_for};
use qmp::Qmp;

/// What the guest prints when sshd greets.
pub const READY: &str = "YOLO-BOOT-READY";

/// A light boot takes 3.5 s of processor time, and 17 s from a disk with 50 requests a second
/// without a cache; on a busy machine several times that.
const READY_DEADLINE: Duration = Duration::from_secs(180);
/// QEMU makes its sockets at once.
const SOCKET_DEADLINE: Duration = Duration::from_secs(20);
/// How often a silent console is left to look for an interrupt or a dead QEMU.
const CONSOLE_CHECK: Duration = Duration::from_millis(100);

/// How QEMU uses the host's page cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Cache {
    /// It reads through the page cache.
    Writeback,
    /// It goes around the page cache (O_DIRECT).
    None,
}

impl Cache {
    fn as_str(self) -> &'static str {
        match self {
            Self::Writeback => "writeback",
            Self::None => "none",
        }
    }
}

/// What a boot of a machine did.
#[derive(Clone, Copy, Debug)]
pub struct Booted {
    /// From the start of QEMU to the ready line.
    pub elapsed: Duration,
    /// Requests of the guest to its disk.
    pub guest_reads: u64,
    /// Bytes they asked for.
    pub guest_bytes: u64,
}

/// Boots from the raw disk image `base`, which is not written to, with files in `scratch`.
///
/// # Errors
/// If QEMU fails, or the guest is not ready in time.
pub fn boot(base: &Path, cache: Cache, scratch: &Path) -> anyhow::Result<Booted> {
    let overlay = make_overlay(base, scratch)?;
    let (serial, control) = (scratch.join("serial"), scratch.join("qmp"));
    let mut command = Command::new("qemu-system-x86_64");
    command.args(machine()).args(disk(
        &overlay,
        "qcow2",
        &format!(",cache={}", cache.as_str()),
    ));
    command
        .arg("-chardev")
        .arg(socket("serial", &serial))
        .args(["-serial", "chardev:serial"]);
    command.arg("-chardev").arg(socket("control", &control));
    command.args(["-mon", "chardev=control,mode=control"]);
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .process_group(0);
    let started = Instant::now();
    let mut qemu = Guard::spawn(&mut command)?;
    let console = connect(&serial, &mut qemu)?;
    let text = wait_for_line(console, READY, &mut qemu, started + READY_DEADLINE)?;
    let elapsed = started.elapsed();
    ensure!(
        text.contains("SSH-2.0"),
        "the guest says it is ready, but not that sshd answers"
    );
    let mut qmp = Qmp::new(connect(&control, &mut qemu)?)?;
    let reads = qmp.disk_reads()?;
    Ok(Booted {
        elapsed,
        guest_reads: reads.requests,
        guest_bytes: reads.bytes,
    })
}

/// Returns the command that boots from the image whose path is in `$YOLOFS_IMAGE`, with the
/// console on standard output: what `bootimg record` runs.
#[must_use]
pub fn recordable_command() -> Vec<OsString> {
    let mut script = OsString::from("exec qemu-system-x86_64");
    let image = Path::new("$YOLOFS_IMAGE");
    // What the guest writes goes to a temporary file of QEMU's.
    for arg in machine()
        .into_iter()
        .chain(disk(image, "raw", ",snapshot=on"))
    {
        script.push(" ");
        script.push(arg);
    }
    script.push(" -serial stdio -monitor none");
    vec!["sh".into(), "-c".into(), script]
}

/// The guest, without its disk and its console. No argument holds a space.
fn machine() -> Vec<OsString> {
    // `qemu64` and not `max`: what the guest's kernel does not find it does not emulate, which
    // saves a third of the time. `rdrand` feeds its random numbers.
    let args = "-nodefaults -no-user-config -accel tcg,thread=multi -cpu qemu64,+rdrand -m 256 \
                -machine q35 -display none -no-reboot";
    args.split_whitespace().map(OsString::from).collect()
}

fn disk(path: &Path, format: &str, options: &str) -> Vec<OsString> {
    let mut drive = OsString::from("if=none,id=disk,file=");
    drive.push(path);
    drive.push(format!(",format={format}{options}"));
    vec![
        "-drive".into(),
        drive,
        "-device".into(),
        "virtio-blk-pci,drive=disk,bootindex=1".into(),
    ]
}

pub(crate) fn socket(id: &str, path: &Path) -> OsString {
    let mut chardev = OsString::from(format!("socket,id={id},server=on,wait=off,path="));
    chardev.push(path);
    chardev
}

fn make_overlay(base: &Path, scratch: &Path) -> anyhow::Result<PathBuf> {
    let overlay = scratch.join("overlay.qcow2");
    let mut command = Command::new("qemu-img");
    command
        .args(["create", "-q", "-f", "qcow2", "-F", "raw", "-b"])
        .args([base, &overlay]);
    run_ok(command, SOCKET_DEADLINE).context("making an overlay on the disk")?;
    Ok(overlay)
}

pub(crate) fn connect(socket: &Path, qemu: &mut Guard) -> anyhow::Result<UnixStream> {
    wait_for(
        "socket of QEMU",
        SOCKET_DEADLINE,
        || match UnixStream::connect(socket) {
            Ok(stream) => Ok(Some(stream)),
            Err(error) => match qemu.ended()? {
                Some(status) => bail!("QEMU ended ({status}) without a socket: {error}"),
                None => Ok(None),
            },
        },
    )
}

/// Reads the console until a line with `wanted` in it is complete, and returns that line.
pub(crate) fn wait_for_line(
    mut console: UnixStream,
    wanted: &str,
    qemu: &mut Guard,
    deadline: Instant,
) -> anyhow::Result<String> {
    console
        .set_read_timeout(Some(CONSOLE_CHECK))
        .context("setting a timeout")?;
    let mut seen = Vec::new();
    let mut chunk = [0; 4096];
    loop {
        interrupt::check()?;
        let text = String::from_utf8_lossy(&seen);
        if let Some((line, _)) = text.find(wanted).and_then(|at| text[at..].split_once('\n')) {
            return Ok(line.to_owned());
        }
        if Instant::now() > deadline || qemu.ended()?.is_some() {
            bail!(
                "the guest did not get ready; it said: {}",
                last_lines(&text)
            );
        }
        match console.read(&mut chunk) {
            Ok(len) => seen.extend_from_slice(&chunk[..len]),
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error).context("reading the guest's console"),
        }
    }
}

/// The end of a console's output, enough to tell what went wrong.
fn last_lines(text: &str) -> String {
    let lines: Vec<_> = text.lines().rev().take(5).collect();
    lines.into_iter().rev().collect::<Vec<_>>().join(" / ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;

    fn idle() -> Guard {
        Guard::spawn(Command::new("sleep").arg("1000")).unwrap()
    }

    #[test]
    fn the_ready_line_is_found_whole() {
        let (mut guest, console) = UnixStream::pair().unwrap();
        let writer = std::thread::spawn(move || {
            for part in [
                "BIOS\r\nYOLO-BOOT",
                "-READY up=1 sshd=SSH-2.0",
                "-x\r\nmore",
            ] {
                guest.write_all(part.as_bytes()).unwrap();
            }
            guest
        });
        let deadline = Instant::now() + Duration::from_secs(60);
        let line = wait_for_line(console, READY, &mut idle(), deadline).unwrap();
        assert_eq!(line.trim_end(), "YOLO-BOOT-READY up=1 sshd=SSH-2.0-x");
        drop(writer.join().unwrap());
    }

    #[test]
    fn a_guest_that_dies_is_quoted() {
        let (mut guest, console) = UnixStream::pair().unwrap();
        guest.write_all(b"one\nKernel panic\n").unwrap();
        let mut dead = Guard::spawn(&mut Command::new("true")).unwrap();
        let deadline = Instant::now() + Duration::from_secs(60);
        dead.wait_until(deadline).unwrap();
        let error = wait_for_line(console, READY, &mut dead, deadline)
            .unwrap_err()
            .to_string();
        assert!(error.contains("did not get ready"), "{error}");
        let (mut guest, console) = UnixStream::pair().unwrap();
        guest.write_all(b"one\nKernel panic\n").unwrap();
        let past = Instant::now() + Duration::from_millis(200);
        let error = wait_for_line(console, READY, &mut idle(), past)
            .unwrap_err()
            .to_string();
        assert!(error.contains("one / Kernel panic"), "{error}");
    }

    #[test]
    fn the_recorded_command_takes_the_image_from_the_environment() {
        let command = recordable_command();
        let script = command[2].to_str().unwrap();
        assert!(
            script.contains("file=$YOLOFS_IMAGE,format=raw,snapshot=on"),
            "{script}"
        );
    }
}
