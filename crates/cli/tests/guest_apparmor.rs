//! nicfetch under the AppArmor profile of `packaging`: in a guest with a kernel of Debian 13, which has AppArmor.

#![cfg(feature = "privileged")]

use std::fs::{self, File};
use std::path::Path;
use std::process::Command;

use testkit::guest::{Guest, ok};

#[test]
fn privileged_nicfetch_serves_under_its_profile_and_nothing_is_denied() {
    let guest = Guest::new(include_str!("apparmor/init"));
    for (name, program) in [
        ("usr/bin/nicfetch", env!("CARGO_BIN_EXE_nicfetch")),
        ("usr/bin/yolofs", env!("CARGO_BIN_EXE_yolofs")),
        ("busybox", "/bin/busybox"),
    ] {
        guest.add_program(name, Path::new(program));
    }
    let upstream = include_str!("apparmor/upstream.py");
    fs::write(guest.root().join("upstream.py"), upstream).unwrap();
    // Compiled here, for the kernel of this machine may have no AppArmor.
    let packaged = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/apparmor");
    let profile = File::create(guest.root().join("profile")).unwrap();
    ok(Command::new("apparmor_parser")
        .args(["--skip-kernel-load", "--skip-cache", "--stdout"])
        .args(["--kernel-features", "/etc/apparmor.d/abi/3.0"])
        .arg(packaged.join("yolofs-nicfetch"))
        .stdout(profile));
    let said = guest.boot();
    assert!(said.contains("GUEST PASSED"), "{said}");
}
