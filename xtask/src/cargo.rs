//! Cargo, called as a user would call it.

use std::env;
use std::ffi::OsStr;
use std::process::Command;

/// Returns a call of the cargo that built this.
pub(crate) fn cargo() -> Command {
    let mut command = Command::new(env!("CARGO"));
    forget_this_package(&mut command);
    command
}

/// Removes what `cargo run` says of xtask. Some build scripts (ring's) ask to run again when it changes, and all that
/// stands on them would be compiled again by each cargo that another one started.
pub(crate) fn forget_this_package(command: &mut Command) {
    for (name, _) in env::vars_os() {
        if is_of_a_package(&name) {
            command.env_remove(name);
        }
    }
}

fn is_of_a_package(name: &OsStr) -> bool {
    let name = name.to_string_lossy();
    name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cargo_is_not_told_of_xtask() {
        // Each test is told where its package is.
        assert!(env::var_os("CARGO_MANIFEST_DIR").is_some());
        let command = cargo();
        let removed = |name: &str| {
            command
                .get_envs()
                .any(|(known, value)| known == name && value.is_none())
        };
        assert!(removed("CARGO_MANIFEST_DIR"));
        assert!(!removed("PATH"));
        assert!(is_of_a_package(OsStr::new("CARGO_PKG_VERSION_MAJOR")));
        assert!(!is_of_a_package(OsStr::new("CARGO_TARGET_DIR")));
    }
}
