//! Programs that run from the mount: they are mapped, and page by page read, by the kernel.

use std::io;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, Stdio};

use super::Scene;
use crate::Rng;
use crate::commands::text;
use crate::names::PROGRAM;
use crate::tally::Outcome;

/// Runs the program of the tree on itself, and on the same bytes from where nothing is mounted.
pub(super) fn run_one(scene: &Scene, _rng: &mut Rng) -> Outcome {
    let program = scene.root.join(PROGRAM);
    let files = scene.truth.files();
    let Some((_, bytes)) = files.iter().find(|(path, _)| path.ends_with(PROGRAM)) else {
        return Err(io::ErrorKind::NotFound.into());
    };
    let mut child = Command::new(&program)
        .arg(&program)
        .arg("-")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .process_group(0)
        .spawn()?;
    if let Some(mut input) = child.stdin.take() {
        io::Write::write_all(&mut input, bytes)?;
    }
    let output = child.wait_with_output()?;
    if !output.status.success() {
        return Err(io::Error::other(format!(
            "the program ended with {}",
            output.status
        )));
    }
    let out = text(&output.stdout);
    let mut hashes = out.lines().filter_map(|line| line.split(' ').next());
    let (mounted, piped) = (hashes.next(), hashes.next());
    Ok((mounted.is_none() || mounted != piped).then(|| format!("the program says: {out}")))
}
