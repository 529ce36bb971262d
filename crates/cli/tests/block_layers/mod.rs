//! Two layers with files of all kinds, and what is seen of them where they are unpacked or mounted.

#![allow(
    clippy::allow_attributes,
    clippy::unwrap_used,
    reason = "a test that cannot go on has failed"
)]
#![allow(dead_code, reason = "each test uses its own part of it")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::block_export::succeeds;

/// A mount that goes with the test.
pub(crate) struct Mounted(pub(crate) PathBuf);

impl Drop for Mounted {
    fn drop(&mut self) {
        // What another test has just forked has its files until it is executed.
        lab::until("nobody to use a mount", || {
            let umount = Command::new("umount").arg(&self.0).output().unwrap();
            umount.status.success()
        });
    }
}

/// Makes the lower layer, with one file of each kind, by the tar of the machine.
pub(crate) fn lower(dir: &Path) -> Vec<u8> {
    let script = r#"
        mkdir -p etc usr/many opt/gone opt/opaque "$(printf 'd%.0s' $(seq 200))"
        for i in $(seq 700); do echo $i > usr/many/name-that-takes-some-room-$i; done
        head -c 5000000 /dev/urandom > usr/big
        : > usr/empty
        ln usr/big etc/hard
        ln -s "$(printf 'x/%.0s' $(seq 1900))" etc/long
        ln -s ../usr etc/short
        mknod etc/device c 1 3
        mkfifo etc/pipe
        setfattr -n user.some -v thing usr/big
        setcap cap_net_raw+ep usr/empty
        echo old > etc/replaced; echo x > opt/gone/x; echo y > opt/opaque/y; echo z > opt/z
        chown 1000:70000 etc/replaced; chmod 6755 etc/replaced; touch -d @1234567890.5 etc/replaced
        chmod 1777 opt
    "#;
    packed(dir, script)
}

pub(crate) fn packed(dir: &Path, script: &str) -> Vec<u8> {
    let (root, tar) = (dir.join("root"), dir.join("tar"));
    fs::create_dir(&root).unwrap();
    succeeds(Command::new("sh").args(["-ec", script]).current_dir(&root));
    let mut program = Command::new("tar");
    program.args(["--xattrs", "--xattrs-include=*", "--format=pax", "-cf"]);
    succeeds(program.arg(&tar).arg("-C").args([&root, Path::new(".")]));
    fs::remove_dir_all(&root).unwrap();
    fs::read(tar).unwrap()
}

/// Returns what can be seen of a tree: a line for each file, with a digest of its content.
pub(crate) fn seen(root: &Path) -> String {
    let script = r#"
        find . -type d -printf '%p %m %U:%G\n' -o -printf '%p %M %m %U:%G %s %l %n %T@\n' | LC_ALL=C sort
        find . -type f -print0 | LC_ALL=C sort -z | xargs -0 sha256sum
        find . -print0 | LC_ALL=C sort -z | xargs -0 getfattr -hd -m - 2>/dev/null
    "#;
    let output = succeeds(Command::new("sh").args(["-ec", script]).current_dir(root));
    String::from_utf8(output.stdout).unwrap()
}

pub(crate) fn first_difference(one: &str, other: &str) -> Option<(String, String)> {
    let mut pairs = one.lines().zip(other.lines());
    let found = pairs.find(|(one, other)| one != other);
    found.map(|(one, other)| (one.to_owned(), other.to_owned()))
}

/// Makes the layer on top: what it has replaces, removes and hides files of the lower one.
pub(crate) fn upper(dir: &Path) -> Vec<u8> {
    let script = "mkdir -p etc opt/opaque new; echo new > etc/replaced; echo n > new/file;
        : > opt/.wh.gone; : > opt/opaque/.wh..wh..opq; echo k > opt/opaque/kept; chmod 700 opt";
    packed(dir, script)
}

/// Unpacks the same layers with tar.
pub(crate) fn unpacked(dir: &Path, layers: &[Vec<u8>; 2]) -> PathBuf {
    let unpacked = dir.join("unpacked");
    fs::create_dir(&unpacked).unwrap();
    fs::write(dir.join("1.tar"), &layers[0]).unwrap();
    fs::write(dir.join("2.tar"), &layers[1]).unwrap();
    let unpack = |tar: &str| {
        let mut program = Command::new("tar");
        program.args(["--xattrs", "--xattrs-include=*", "--numeric-owner", "-xpf"]);
        succeeds(program.arg(dir.join(tar)).arg("-C").arg(&unpacked));
    };
    unpack("1.tar");
    fs::remove_dir_all(unpacked.join("opt/gone")).unwrap();
    fs::remove_dir_all(unpacked.join("opt/opaque")).unwrap();
    unpack("2.tar");
    for whiteout in ["opt/.wh.gone", "opt/opaque/.wh..wh..opq"] {
        fs::remove_file(unpacked.join(whiteout)).unwrap();
    }
    unpacked
}
