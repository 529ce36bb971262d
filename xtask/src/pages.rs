//! Manual pages and shell completions, by the program `pages`, which is built for it.

use std::path::Path;

use anyhow::{Context as _, ensure};

use crate::cargo::cargo;
use crate::workspace;

/// Writes a manual page for each program and each of its commands.
pub(crate) fn man(out: &Path) -> anyhow::Result<()> {
    write("man", out)
}

/// Writes the completions of each program for each shell.
pub(crate) fn completions(out: &Path) -> anyhow::Result<()> {
    write("completions", out)
}

fn write(what: &str, out: &Path) -> anyhow::Result<()> {
    let out = std::path::absolute(out).context("finding the directory")?;
    let status = cargo()
        .args(["run", "--quiet", "--package", "pages", "--", what])
        .arg(out)
        .current_dir(workspace::root()?)
        .status()
        .context("running the program pages")?;
    ensure!(status.success(), "writing {what} failed");
    Ok(())
}
