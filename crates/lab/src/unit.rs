//! A program started with what its unit in `packaging/` leaves it, as far as that can be had without
//! systemd: so that the units ask for all that it takes.

use std::ffi::OsStr;
use std::process::Command;

use super::repository;

/// Returns the program with the unit's capabilities and umask, and without new privileges. It is the
/// process that is started, not a child of that.
pub fn program(unit: &str, program: impl AsRef<OsStr>) -> Command {
    let path = repository().join("packaging").join(unit);
    let text = std::fs::read_to_string(&path).unwrap();
    let value = |name: &str| {
        text.lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix('='))
    };
    let capabilities = value("CapabilityBoundingSet").unwrap().split(' ');
    let kept =
        capabilities.map(|name| format!(",+{}", name.strip_prefix("CAP_").unwrap().to_lowercase()));
    assert_eq!(value("NoNewPrivileges"), Some("yes"));
    let umask = value("UMask").unwrap_or("0022");
    let mut command = Command::new("/bin/sh");
    command
        .args([
            "-c",
            "umask \"$0\" && exec \"$@\"",
            umask,
            "setpriv",
            "--no-new-privs",
        ])
        .arg(format!("--bounding-set=-all{}", kept.collect::<String>()))
        .arg(program);
    command
}
