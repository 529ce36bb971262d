//! The quick loop: what to run before every commit. scripts/test.sh runs the rest.

use anyhow::{Context as _, ensure};

use crate::cargo::cargo;
use crate::{circles, deps, flags, ladder, links, size, workspace};

/// Ordered by how soon they fail.
const STEPS: &[&[&str]] = &[
    &["fmt", "--check"],
    &[
        "clippy",
        "--quiet",
        "--workspace",
        "--all-targets",
        "--",
        "-D",
        "warnings",
    ],
    &["test", "--quiet", "--workspace"],
];

/// Runs the steps, and stops at the first that fails.
pub(crate) fn run() -> anyhow::Result<()> {
    let packages = workspace::load()?;
    ladder::check(&packages)?;
    circles::check(&packages)?;
    flags::check(&packages)?;
    let root = workspace::root()?;
    size::check(&root)?;
    links::check(&root)?;
    deps::check(&root, &deps::Options::default())?;
    for step in STEPS {
        let shown = step.join(" ");
        println!("ci: cargo {shown}");
        let status = cargo().args(*step).current_dir(&root).status();
        let status = status.with_context(|| format!("running cargo {shown}"))?;
        ensure!(status.success(), "cargo {shown} failed");
    }
    Ok(())
}
