//! What cargo knows of this workspace.

use std::collections::BTreeSet;
use std::path::PathBuf;

use anyhow::{Context as _, ensure};
use serde_json::Value;

use crate::cargo::cargo;

/// One package of the workspace.
#[derive(Clone, Debug, Default)]
pub(crate) struct Package {
    pub(crate) name: String,
    pub(crate) manifest: PathBuf,
    /// Root file of its library, if it has one.
    pub(crate) library: Option<PathBuf>,
    /// What it depends on, for its tests and its build script too.
    pub(crate) dependencies: BTreeSet<String>,
    /// Names of its features.
    pub(crate) features: BTreeSet<String>,
}

/// Returns the directory of the workspace's manifest.
pub(crate) fn root() -> anyhow::Result<PathBuf> {
    let here = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    Ok(here
        .parent()
        .context("xtask has no parent directory")?
        .to_owned())
}

/// Returns the packages of the workspace, as `cargo metadata` tells.
pub(crate) fn load() -> anyhow::Result<Vec<Package>> {
    let output = cargo()
        .args(["metadata", "--format-version", "1", "--no-deps"])
        .current_dir(root()?)
        .output()
        .context("running cargo metadata")?;
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "cargo metadata failed: {errors}");
    parse(&output.stdout)
}

/// Reads what `cargo metadata` printed.
fn parse(metadata: &[u8]) -> anyhow::Result<Vec<Package>> {
    let metadata: Value = serde_json::from_slice(metadata).context("reading cargo metadata")?;
    let packages = metadata["packages"]
        .as_array()
        .context("cargo metadata has no packages")?;
    packages.iter().map(package).collect()
}

fn package(value: &Value) -> anyhow::Result<Package> {
    let text = |value: &Value, key: &str| -> anyhow::Result<String> {
        let text = value[key]
            .as_str()
            .with_context(|| format!("cargo metadata lacks {key}"))?;
        Ok(text.to_owned())
    };
    let list = |key: &str| value[key].as_array().map_or(&[][..], Vec::as_slice);
    let is_library = |target: &&Value| {
        target["kind"]
            .as_array()
            .is_some_and(|kinds| kinds.iter().any(|kind| kind == "lib"))
    };
    Ok(Package {
        name: text(value, "name")?,
        manifest: text(value, "manifest_path")?.into(),
        library: list("targets")
            .iter()
            .find(is_library)
            .map(|target| text(target, "src_path").map(PathBuf::from))
            .transpose()?,
        dependencies: list("dependencies")
            .iter()
            .map(|dependency| text(dependency, "name"))
            .collect::<Result<_, _>>()?,
        features: value["features"]
            .as_object()
            .map(|features| features.keys().cloned().collect())
            .unwrap_or_default(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_the_packages_of_this_workspace() {
        let packages = load().unwrap();
        let blocks = packages
            .iter()
            .find(|package| package.name == "blocks")
            .unwrap();
        assert!(
            blocks
                .library
                .as_ref()
                .unwrap()
                .ends_with("crates/blocks/src/lib.rs")
        );
        assert!(blocks.dependencies.contains("thiserror"));
        // A dependency for tests only counts too.
        assert!(blocks.dependencies.contains("proptest"));
        assert!(blocks.features.contains("testing"));
        let xtask = packages
            .iter()
            .find(|package| package.name == "xtask")
            .unwrap();
        assert_eq!(xtask.library, None);
    }

    #[test]
    fn refuses_what_is_not_metadata() {
        assert!(parse(b"{").is_err());
        assert!(parse(b"{}").is_err());
        assert!(parse(br#"{"packages": [{"name": "a"}]}"#).is_err());
    }
}
