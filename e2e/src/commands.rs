//! Commands of the harness: where the programs are, how they are run, and how long is waited.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};

/// Longer than anything takes on a busy machine; reached only by a failure.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// Returns where the programs are: beside this one, or what `YOLOFS_PROGRAMS` names.
pub(crate) fn programs() -> anyhow::Result<PathBuf> {
    if let Some(dir) = std::env::var_os("YOLOFS_PROGRAMS") {
        return Ok(dir.into());
    }
    let here = std::env::current_exe().context("finding this program")?;
    let mut dirs = here.ancestors().skip(1).take(2);
    let found = dirs.find(|dir| dir.join("yolofs").exists() && dir.join("bootimg").exists());
    found
        .map(Path::to_owned)
        .context("yolofs and bootimg are missing beside this program: cargo build -p cli")
}

/// Returns the program that does harm, which is this one or beside it.
pub(crate) fn soak() -> anyhow::Result<PathBuf> {
    let here = std::env::current_exe().context("finding this program")?;
    let dirs = here.ancestors().skip(1).take(2);
    let found = dirs.map(|dir| dir.join("soak")).find(|path| path.exists());
    found.context("soak is missing beside this program: cargo build -p e2e")
}

/// Runs a command that must succeed, and returns what it printed.
pub(crate) fn done(command: &mut Command) -> anyhow::Result<String> {
    let output = output(command)?;
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    ensure!(
        output.status.success(),
        "{command:?}: {}\n{out}{err}",
        output.status
    );
    Ok(out)
}

/// Runs a command, whatever its code.
pub(crate) fn output(command: &mut Command) -> anyhow::Result<Output> {
    command
        .output()
        .with_context(|| format!("running {command:?}"))
}

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Waits until `condition` holds, or fails with what `why_not` says.
pub(crate) fn until(
    what: &str,
    mut condition: impl FnMut() -> anyhow::Result<bool>,
) -> anyhow::Result<()> {
    let deadline = Instant::now() + PATIENCE;
    while !condition()? {
        if Instant::now() > deadline {
            bail!("waited in vain: {what}");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}
