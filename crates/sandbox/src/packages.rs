//! Packages by name and exact version, and where a sandbox finds them.

use std::collections::BTreeSet;

use crate::error::{Result, SandboxError};

/// Packages by name and exact version: `name==version`.
pub type Packages = BTreeSet<String>;

/// Returns where packages are in a sandbox.
pub(crate) fn paths_of(packages: &Packages) -> Vec<String> {
    let paths = packages
        .iter()
        .map(|package| format!("/packages/{package}"));
    paths.collect()
}

/// Refuses packages with invalid names: they become parts of paths.
pub(crate) fn check_packages(packages: &Packages) -> Result<()> {
    let is_plain = |part: &str| {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._+!-".contains(&byte);
        !part.is_empty() && !part.starts_with('.') && part.bytes().all(plain)
    };
    for package in packages {
        let parts = package.split_once("==");
        if !parts.is_some_and(|(name, version)| is_plain(name) && is_plain(version)) {
            return Err(SandboxError::Invalid(format!(
                "{package:?} is no package with its version, such as numpy==2.1.0"
            )));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_package_has_a_name_and_a_version_and_no_path() {
        let check = |name: &str| check_packages(&Packages::from([name.to_owned()]));
        check("numpy==2.1.0rc1+cpu").unwrap();
        for wrong in [
            "numpy", "numpy==", "==1", "../a==1", "a/b==1", "a==../1", "a==1/..", "a:b==1",
        ] {
            assert!(check(wrong).is_err(), "{wrong}");
        }
    }
}
