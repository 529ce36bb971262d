//! The programs under test.

#![allow(
    clippy::allow_attributes,
    clippy::unwrap_used,
    reason = "a test that cannot go on has failed"
)]

use std::path::Path;
use std::process::Command;

/// Builds the programs under test, unless told where they are: Cargo does so by itself only for
/// tests of their own package.
pub(crate) fn build() {
    if std::env::var_os("YOLOFS_PROGRAMS").is_some() {
        return;
    }
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR")).join("../Cargo.toml");
    let status = Command::new(env!("CARGO"))
        .args(["build", "--quiet", "-p", "cli", "--bins"])
        .args(["--features", "privileged", "--manifest-path"])
        .arg(manifest)
        .status()
        .unwrap();
    assert!(status.success(), "building the programs: {status}");
}
