//! A virtual machine that is booted from a disk image to record its reads.
//!
//! QEMU runs without a window, with the image as its disk. The disk is the file of the recorded mount, which is
//! read-only; writes of the guest go to a temporary overlay that QEMU discards. A boot is ready when the serial
//! console shows a line, or when the machine shows one of its own [`MachineSign`]s.

mod convert;
mod signs;

use std::ffi::{OsStr, OsString};
use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use anyhow::{Context as _, bail, ensure};
use localfs::DiskFormat;

pub use convert::{Converted, convert};
pub use signs::MachineSign;
pub(crate) use signs::Signs;

use crate::words::split;

/// Begins the name of a source that is a disk image to boot.
const PREFIX: &[u8] = b"vm:";

/// Memory of the guest, in MiB, unless the options say otherwise: what distributions need to boot.
const MEMORY_MIB: &str = "1024";

/// Port of the guest at which its SSH server listens.
const SSH_PORT: u16 = 22;

/// Sockets of the machine, in its scratch directory.
pub(crate) const SOCKETS: [&str; 2] = ["qmp", "agent"];

/// A virtual machine that is not booted yet.
#[derive(Clone, Debug, Default)]
pub struct Machine {
    /// Options of QEMU, which come last.
    options: Vec<String>,
}

/// A machine for one boot.
#[derive(Debug)]
pub(crate) struct Prepared {
    pub(crate) command: Vec<OsString>,
    pub(crate) signs: Signs,
}

/// Returns the disk image that is to be booted, if the source is called `vm:IMAGE`.
#[must_use]
pub fn image_of(source: &Path) -> Option<PathBuf> {
    let path = source.as_os_str().as_bytes().strip_prefix(PREFIX)?;
    Some(PathBuf::from(OsStr::from_bytes(path)))
}

impl Machine {
    /// Makes a machine with more options of QEMU, each piece split as a shell does it.
    ///
    /// # Errors
    /// If a quote is not closed.
    pub fn new(options: &[String]) -> anyhow::Result<Self> {
        let words: anyhow::Result<Vec<Vec<String>>> =
            options.iter().map(|text| split(text)).collect();
        let options = words.context("splitting the options of QEMU")?.concat();
        Ok(Self { options })
    }

    /// Returns the program that boots a machine.
    pub(crate) fn program() -> String {
        format!("qemu-system-{}", std::env::consts::ARCH)
    }

    /// Prepares one boot from the image at `disk`, with its sockets in `scratch`, until `sign` is seen.
    ///
    /// # Errors
    /// If there is no free port for SSH, or the options leave no network for it.
    pub(crate) fn prepare(
        &self,
        disk: &Path,
        format: DiskFormat,
        scratch: &Path,
        sign: Option<&MachineSign>,
    ) -> anyhow::Result<Prepared> {
        let ssh = match sign {
            Some(MachineSign::Ssh) => Some(self.free_port()?),
            _ => None,
        };
        let [qmp, agent] = SOCKETS.map(|name| scratch.join(name));
        let mut command = self.own_words(disk, format, ssh)?;
        command.push("-qmp".into());
        command.push(socket("unix:", &qmp)?);
        if sign == Some(&MachineSign::GuestAgent) {
            command.extend(["-device", "virtio-serial", "-chardev"].map(OsString::from));
            command.push(socket("socket,id=agent0,path=", &agent)?);
            let port = "virtserialport,chardev=agent0,name=org.qemu.guest_agent.0";
            command.extend(["-device", port].map(OsString::from));
        }
        command.extend(self.options.iter().map(OsString::from));
        let signs = Signs::new(qmp, agent, ssh);
        Ok(Prepared { command, signs })
    }

    /// Returns the program and what it gets whatever is waited for; the options replace defaults of theirs.
    fn own_words(
        &self,
        disk: &Path,
        format: DiskFormat,
        ssh: Option<u16>,
    ) -> anyhow::Result<Vec<OsString>> {
        let mut words = vec![Self::program()];
        words.extend(
            "-nodefaults -no-user-config -display none -no-reboot"
                .split(' ')
                .map(str::to_owned),
        );
        let mut unless = |given: &[&str], default: &[&str]| {
            if !self.has(given) {
                words.extend(default.iter().map(|&word| word.to_owned()));
            }
        };
        let accel = if Path::new("/dev/kvm").exists() {
            ["-accel", "kvm", "-accel", "tcg"].as_slice()
        } else {
            &["-accel", "tcg"]
        };
        unless(&["-accel", "-enable-kvm"], accel);
        // Without it, an emulated processor is one of 2003, on which kernels and libraries for x86-64-v2 do not start.
        unless(&["-cpu"], &["-cpu", "max"]);
        unless(&["-m"], &["-m", MEMORY_MIB]);
        unless(&["-serial", "-nographic"], &["-serial", "stdio"]);
        if cfg!(target_arch = "aarch64") {
            unless(&["-machine", "-M"], &["-machine", "virt"]);
        }
        // Without entropy, a guest may wait for it.
        unless(
            &["-object"],
            &[
                "-object",
                "rng-random,id=rng0,filename=/dev/urandom",
                "-device",
                "virtio-rng-pci,rng=rng0",
            ],
        );
        let forward = ssh.map_or_else(String::new, |port| {
            format!(",hostfwd=tcp:127.0.0.1:{port}-:{SSH_PORT}")
        });
        // DHCP answers, and nobody else does: an update that is downloaded is no part of a boot.
        let network = format!("user,model=virtio-net-pci,restrict=on{forward}");
        unless(&NETWORKS, &["-nic", &network]);
        let mut words: Vec<OsString> = words.into_iter().map(OsString::from).collect();
        let format = match format {
            DiskFormat::Raw => "raw",
            DiskFormat::Qcow2 => "qcow2",
        };
        let mut drive = OsString::from("file=");
        drive.push(escaped(disk));
        drive.push(format!(",format={format},if=virtio,snapshot=on"));
        words.push("-drive".into());
        words.push(drive);
        Ok(words)
    }

    /// Returns the program and the given options, for people.
    pub(crate) fn shown_command(&self) -> Vec<OsString> {
        let words = std::iter::once(Self::program()).chain(self.options.iter().cloned());
        words.map(OsString::from).collect()
    }

    fn has(&self, names: &[&str]) -> bool {
        self.options
            .iter()
            .any(|option| names.contains(&option.as_str()))
    }

    /// Returns a free port. Another program may take it before QEMU does; then QEMU reports that.
    fn free_port(&self) -> anyhow::Result<u16> {
        ensure!(
            !self.has(&NETWORKS),
            "the options of QEMU make a network of their own: forward a port to the guest's {SSH_PORT} there, \
             and wait for that (`until tcp:PORT`)"
        );
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0));
        let address = listener.and_then(|listener| listener.local_addr());
        Ok(address.context("finding a port for SSH")?.port())
    }
}

/// Options that give a machine its network.
const NETWORKS: [&str; 3] = ["-nic", "-netdev", "-net"];

/// Returns a socket that QEMU makes and listens at.
fn socket(prefix: &str, path: &Path) -> anyhow::Result<OsString> {
    let mut word = OsString::from(prefix);
    word.push(escaped(path));
    word.push(",server=on,wait=off");
    // What the kernel takes as the name of a socket.
    if path.as_os_str().len() > 107 {
        bail!(
            "{} is too long for a socket: use a shorter run directory",
            path.display()
        );
    }
    Ok(word)
}

/// Returns a path as an option of QEMU takes it, which ends at a comma that is not doubled.
fn escaped(path: &Path) -> OsString {
    let mut bytes = Vec::new();
    for byte in path.as_os_str().as_bytes() {
        bytes.push(*byte);
        if *byte == b',' {
            bytes.push(b',');
        }
    }
    OsString::from_vec(bytes)
}

impl FromStr for MachineSign {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.split_once(':').unwrap_or((text, "")) {
            ("ssh", "") => Ok(Self::Ssh),
            ("agent", "") => Ok(Self::GuestAgent),
            ("qmp", event) if !event.is_empty() => Ok(Self::QmpEvent(event.to_owned())),
            _ => bail!("use ssh, qmp:EVENT or agent"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(options: &[&str], sign: Option<&MachineSign>) -> anyhow::Result<Vec<String>> {
        let options: Vec<String> = options.iter().map(|&word| word.to_owned()).collect();
        let machine = Machine::new(&options)?;
        let disk = Path::new("/run/a,b/disk.raw");
        let prepared = machine.prepare(disk, DiskFormat::Raw, Path::new("/run/x"), sign)?;
        let words = prepared.command.into_iter();
        Ok(words
            .map(|word| word.into_string().expect("text"))
            .collect())
    }

    #[test]
    fn the_disk_is_thrown_away_and_its_name_is_escaped() {
        let words = words(&[], None).unwrap();
        let drive = "file=/run/a,,b/disk.raw,format=raw,if=virtio,snapshot=on";
        assert!(words.iter().any(|word| word == drive), "{words:?}");
        assert!(words.iter().any(|word| word.contains("restrict=on")));
    }

    #[test]
    fn options_replace_defaults_and_come_last() {
        let words = words(&["-m 256 -accel tcg", "-append 'a b'"], None).unwrap();
        let count = |name: &str| words.iter().filter(|word| *word == name).count();
        assert_eq!((count("-m"), count("-accel")), (1, 1));
        assert_eq!(words.last().unwrap(), "a b");
    }

    #[test]
    fn each_option_replaces_just_what_it_concerns() {
        let ours = ["-accel", "-cpu", "-m", "-serial", "-nic", "-object"];
        for (given, replaced) in [
            ("-enable-kvm", "-accel"),
            ("-nographic", "-serial"),
            ("-netdev user,id=n", "-nic"),
            ("-net none", "-nic"),
            ("-device virtio-net-pci", ""),
        ] {
            let words = words(&[given], None).unwrap();
            for name in ours {
                let is_there = words.iter().any(|word| word == name);
                assert_eq!(is_there, name != replaced, "{given}: {name}");
            }
        }
        let words = words(&["-object memory-backend-ram,id=m,size=1M"], None).unwrap();
        assert!(!words.iter().any(|word| word.contains("rng")), "{words:?}");
    }

    #[test]
    fn the_processor_has_all_that_can_be_had() {
        let cpu = |options: &[&str]| {
            let words = words(options, None).unwrap();
            let names = words.iter().enumerate().filter(|(_, word)| *word == "-cpu");
            let cpus: Vec<_> = names.map(|(at, _)| words[at + 1].clone()).collect();
            cpus
        };
        assert_eq!(cpu(&[]), ["max"]);
        assert_eq!(cpu(&["-accel tcg"]), ["max"]);
        assert_eq!(cpu(&["-accel tcg -cpu qemu64"]), ["qemu64"]);
    }

    #[test]
    fn ssh_needs_a_network_of_ours() {
        let with_ssh = words(&[], Some(&MachineSign::Ssh)).unwrap();
        assert!(with_ssh.iter().any(|word| word.ends_with("-:22")));
        assert!(words(&["-nic none"], Some(&MachineSign::Ssh)).is_err());
    }

    #[test]
    fn a_source_says_that_it_is_to_be_booted() {
        assert_eq!(
            image_of(Path::new("vm:a/b.raw")),
            Some(PathBuf::from("a/b.raw"))
        );
        assert_eq!(image_of(Path::new("a/vm:b")), None);
    }
}
