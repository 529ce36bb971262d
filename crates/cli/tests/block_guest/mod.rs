//! A virtual machine that copies the first half of its disk to the second, while the disk's server is killed.

#![allow(
    clippy::allow_attributes,
    clippy::unwrap_used,
    reason = "a test that cannot go on has failed"
)]

use std::fs::{self, File};
use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::block_export::{Process, arg, filled, succeeds};

/// MiB of each half of the guest's disk, which it copies from the first to the second, and how many KiB
/// at a time.
const HALF_MIB: u64 = 8;
const PIECE_KIB: u64 = 128;

/// Makes the initial file system of a guest that copies its disk's first half to the second.
fn guest(dir: &Path) {
    let kernel = std::env::var_os("YOLOFS_IMAGES").map_or_else(
        || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.cache/images"),
        PathBuf::from,
    );
    let archive = kernel.join("kernel.tar");
    assert!(
        archive.exists(),
        "{}: run scripts/images/kernel.sh",
        archive.display()
    );
    let unpack = ["-xf", arg(&archive), "vmlinuz", "initrd.img"];
    succeeds(Command::new("tar").current_dir(dir).args(unpack));
    let root = dir.join("root");
    fs::create_dir_all(root.join("dev")).unwrap();
    let unpack = "gzip -dc ../initrd.img | cpio --quiet -id 'modules/*'";
    succeeds(Command::new("sh").current_dir(&root).args(["-c", unpack]));
    let busybox = succeeds(Command::new("which").arg("busybox")).stdout;
    let busybox = String::from_utf8(busybox).unwrap();
    fs::copy(busybox.trim(), root.join("busybox")).unwrap();
    let pieces = HALF_MIB * 1024 / PIECE_KIB;
    let init = format!(
        "#!/busybox sh\n\
         /busybox mount -t devtmpfs dev /dev\n\
         for module in /modules/*.ko; do /busybox insmod $module 2>/dev/null; done\n\
         while [ ! -b /dev/vda ]; do /busybox usleep 10000; done\n\
         piece=0\n\
         while [ $piece -lt {pieces} ]; do\n\
           /busybox dd if=/dev/vda of=/dev/vda bs={PIECE_KIB}k count=1 skip=$piece \
             seek=$((piece + {pieces})) iflag=direct oflag=direct conv=notrunc,fsync 2>/dev/null \
             || echo FAILED $piece\n\
           piece=$((piece + 1))\n\
           echo COPIED $piece\n\
         done\n\
         echo ALL COPIED\n\
         /busybox poweroff -f\n"
    );
    fs::write(root.join("init"), init).unwrap();
    fs::set_permissions(root.join("init"), fs::Permissions::from_mode(0o755)).unwrap();
    let pack = "find . | cpio --quiet -o -H newc | gzip -1n >../guest.img";
    succeeds(Command::new("sh").current_dir(&root).args(["-c", pack]));
}

/// Makes a guest and its disk, whose second half is empty.
pub(crate) fn guest_with_disk(dir: &Path) -> PathBuf {
    guest(dir);
    let disk = dir.join("disk.raw");
    filled(&disk, HALF_MIB);
    let file = File::options().write(true).open(&disk).unwrap();
    file.set_len((2 * HALF_MIB) << 20).unwrap();
    disk
}

pub(crate) fn assert_copied(disk: &Path) {
    let content = fs::read(disk).unwrap();
    assert_eq!(content.len() as u64, (2 * HALF_MIB) << 20);
    let (first, second) = content.split_at(content.len() / 2);
    assert!(first == second, "the copy differs");
    assert!(first.iter().any(|byte| *byte != 0), "there is nothing");
}

/// Boots the guest with the disk that is served at a socket, and has the server killed and replaced four times
/// meanwhile.
pub(crate) fn outlives(dir: &Path, socket: &Path, replace: &mut dyn FnMut()) {
    let chardev = format!("socket,id=c0,reconnect=1,path={}", socket.display());
    let machine = Command::new("timeout")
        .args([
            "--foreground",
            "240",
            "qemu-system-x86_64",
            "-nodefaults",
            "-no-user-config",
        ])
        .args([
            "-accel",
            "tcg",
            "-cpu",
            "qemu64,+rdrand",
            "-m",
            "192",
            "-display",
            "none",
        ])
        .args(["-object", "memory-backend-memfd,id=mem,size=192M,share=on"])
        .args([
            "-machine",
            "q35,memory-backend=mem",
            "-no-reboot",
            "-serial",
            "stdio",
        ])
        .args(["-kernel", arg(&dir.join("vmlinuz"))])
        .args(["-initrd", arg(&dir.join("guest.img"))])
        .args([
            "-append",
            "console=ttyS0 quiet panic=-1",
            "-chardev",
            &chardev,
        ])
        .args(["-device", "vhost-user-blk-pci,chardev=c0,num-queues=1"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut machine = Process(machine);
    let console = BufReader::new(machine.0.stdout.take().unwrap());
    let (mut said, mut killed) = (Vec::new(), 0);
    for line in console.lines() {
        let line = line.unwrap();
        // Four times, with whatever is in flight then.
        if let Some(piece) = line.trim().strip_prefix("COPIED ")
            && piece.parse::<u64>().unwrap() % 12 == 0
            && killed < 4
        {
            replace();
            killed += 1;
        }
        said.push(line);
    }
    let all = said.join("\n");
    assert!(said.iter().any(|line| line.trim() == "ALL COPIED"), "{all}");
    assert!(
        !all.contains("FAILED") && !all.contains("I/O error"),
        "{all}"
    );
    assert_eq!(killed, 4, "{all}");
}
