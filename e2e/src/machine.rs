//! A small machine: the kernel and initramfs that `scripts/images/disk.sh` has made, and a disk of
//! our own.

mod boot;
mod nvm;
mod reader;

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, ensure};

use crate::commands::{done, programs};
pub(crate) use boot::Boot;
pub(crate) use nvm::{NVM_MODULES, Nvm, NvmKind, with_slots};
pub(crate) use reader::make_reader;

/// The disk of a machine, in its directory.
pub(crate) const DISK: &str = "disk.raw";

/// How QEMU reads the disk.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Cache {
    /// Through the page cache.
    Writeback,
    /// Around it.
    None,
}

/// Where images are: `YOLOFS_IMAGES`, or where the scripts of this repository put them.
fn images() -> PathBuf {
    let here = || Path::new(env!("CARGO_MANIFEST_DIR")).join("../.cache/images");
    std::env::var_os("YOLOFS_IMAGES").map_or_else(here, PathBuf::from)
}

/// Copies a file out of the machine that `scripts/images/disk.sh` has made.
pub(crate) fn take_file(inside: &str, to: &Path) -> anyhow::Result<()> {
    let image = images().join("vm.raw");
    ensure!(
        image.exists(),
        "{} is missing: run scripts/images/disk.sh",
        image.display()
    );
    let mut debugfs = Command::new("debugfs");
    debugfs
        .arg("-R")
        .arg(format!("dump {inside} {}", to.display()));
    done(debugfs.arg(&image))?;
    // It has no exit code for a file that is not there.
    let len = fs::metadata(to).map(|attributes| attributes.len());
    ensure!(
        len.is_ok_and(|len| len > 0),
        "{} has no {inside}",
        image.display()
    );
    Ok(())
}

/// Puts kernel and initramfs into the directory of a machine.
pub(crate) fn take_kernel(dir: &Path) -> anyhow::Result<()> {
    take_file("/boot/vmlinuz", &dir.join("vmlinuz"))?;
    take_file("/boot/initrd.img", &dir.join("initrd.img"))
}

/// Puts the kernel with FUSE passthrough that `scripts/images/kernel.sh` has made, and its initramfs,
/// into the directory of a machine, and its modules into `/modules` of a root.
pub(crate) fn take_passing_kernel(dir: &Path, root: &Path) -> anyhow::Result<()> {
    let archive = images().join("kernel.tar");
    ensure!(
        archive.exists(),
        "{} is missing: run scripts/images/kernel.sh",
        archive.display()
    );
    for (to, what) in [(dir, &["vmlinuz", "initrd.img"][..]), (root, &["modules"])] {
        fs::create_dir_all(to)?;
        let mut tar = Command::new("tar");
        done(tar.arg("-xf").arg(&archive).arg("-C").arg(to).args(what))?;
    }
    Ok(())
}

/// Puts modules of the kernel, by their paths below its directory, into `/modules` of a root.
pub(crate) fn take_modules(paths: &[&str], root: &Path) -> anyhow::Result<()> {
    let mut debugfs = Command::new("debugfs");
    debugfs.args(["-R", "ls -p /lib/modules"]);
    // One line for each entry: /inode/mode/owner/group/name/size/
    let listed = done(debugfs.arg(images().join("vm.raw")))?;
    let names = listed.lines().filter_map(|line| line.split('/').nth(5));
    let mut versions = names.filter(|name| !name.starts_with('.') && !name.is_empty());
    let version = versions.next().context("the machine has no modules")?;
    let to = root.join("modules");
    fs::create_dir_all(&to)?;
    for path in paths {
        let name = path.rsplit('/').next().unwrap_or(path);
        let inside = format!("/lib/modules/{version}/kernel/{path}.ko");
        take_file(&inside, &to.join(name).with_extension("ko"))?;
    }
    Ok(())
}

/// Puts `yolofs`, `bootimg`, the programs `more`, and what they are linked with into a root, with
/// `sha256sum`.
///
/// Linked as they were built, without what debuggers read, which is nine tenths of them. A static
/// build would need no libraries, and would have to be built, all of it, for this alone.
pub(crate) fn furnish(root: &Path, more: &[PathBuf]) -> anyhow::Result<()> {
    let (bin, own) = (root.join("bin"), root.join("usr/bin"));
    fs::create_dir_all(&bin)?;
    fs::create_dir_all(&own)?;
    let dir = programs()?;
    let ours = ["yolofs", "bootimg"].map(|name| dir.join(name));
    let mut libraries = BTreeSet::new();
    for program in ours.iter().chain(more) {
        libraries.append(&mut linked_with(program)?);
        let name = program.file_name().context("a program has a name")?;
        let mut strip = Command::new("strip");
        done(strip.arg("-o").arg(bin.join(name)).arg(program))?;
    }
    let hash = Path::new(crate::names::RUNNABLE);
    libraries.append(&mut linked_with(hash)?);
    fs::copy(hash, own.join("sha256sum"))?;
    for library in libraries {
        let to = root.join(library.strip_prefix("/")?);
        fs::create_dir_all(to.parent().unwrap_or(root))?;
        fs::copy(&library, to).with_context(|| format!("copying {}", library.display()))?;
    }
    Ok(())
}

/// Returns the libraries that a program is linked with.
fn linked_with(program: &Path) -> anyhow::Result<BTreeSet<PathBuf>> {
    let listed = done(Command::new("ldd").arg(program))?;
    let words = listed.split_whitespace();
    Ok(words
        .filter(|word| word.starts_with('/'))
        .map(PathBuf::from)
        .collect())
}

/// Makes a disk of a directory, with a first process and what that needs, and `room_mib` for more.
pub(crate) fn make_disk(root: &Path, init: &str, room_mib: u32, disk: &Path) -> anyhow::Result<()> {
    for dir in ["bin", "dev", "proc", "sys", "tmp"] {
        fs::create_dir_all(root.join(dir))?;
    }
    fs::write(root.join("init"), init)?;
    fs::set_permissions(root.join("init"), fs::Permissions::from_mode(0o755))?;
    take_busybox(&root.join("bin"))?;
    let taken = done(Command::new("du").arg("-sm").arg(root))?;
    let taken: u32 = taken
        .split_whitespace()
        .next()
        .unwrap_or_default()
        .parse()?;
    let mib = taken + room_mib;
    let mut mkfs = Command::new("mkfs.ext4");
    mkfs.args(["-q", "-F", "-b", "4096", "-m", "0", "-O", "^has_journal"]);
    done(mkfs.arg("-d").args([root, disk]).arg(format!("{mib}M"))).map(drop)
}

/// Copies the statically linked busybox of this machine.
pub(crate) fn take_busybox(bin: &Path) -> anyhow::Result<()> {
    let found = ["/usr/bin/busybox", "/bin/busybox"].map(Path::new);
    let found = found.into_iter().find(|path| path.exists());
    let busybox = found.context("busybox is missing: apt-get install busybox-static")?;
    fs::copy(busybox, bin.join("busybox")).context("copying busybox")?;
    Ok(())
}

/// Returns the command that boots the machine of a directory, with its console on standard
/// output, and a word more for its kernel. It writes nothing to its disk.
pub(crate) fn qemu(dir: &Path, cache: Cache, memory_mib: u32, word: &str) -> Command {
    let mut qemu = Command::new("qemu-system-x86_64");
    // Without KVM: a machine that runs machines may itself be one. `qemu64` and not `max`: what
    // the kernel does not find it does not emulate. `cmpxchg16b` of QEMU 7.2 may leave wrong flags,
    // which kills one boot of Linux 6.12 in four.
    qemu.args("-nodefaults -no-user-config -accel tcg,thread=multi".split(' '))
        .args(["-cpu", "qemu64,+rdrand,-cx16"])
        .args("-machine q35 -display none -no-reboot -serial stdio -monitor none".split(' '))
        .args(["-m", &memory_mib.to_string()])
        .arg("-kernel")
        .arg(dir.join("vmlinuz"))
        .arg("-initrd")
        .arg(dir.join("initrd.img"))
        .arg("-append")
        // A machine that is held up says so: what counts is what its readers say. And while it boots it
        // takes a timer whose ticks come late for a broken one, and gives up.
        .arg(format!(
            "init=/init console=ttyS0 loglevel=1 nowatchdog no_timer_check panic=-1 mitigations=off {word}"
        ));
    let cache = match cache {
        Cache::Writeback => "writeback",
        Cache::None => "none",
    };
    let disk = dir.join(DISK);
    let drive = format!(
        "if=none,id=disk,format=raw,snapshot=on,cache={cache},file={}",
        disk.display()
    );
    qemu.args(["-drive", &drive, "-device", "virtio-blk-pci,drive=disk"]);
    qemu
}
