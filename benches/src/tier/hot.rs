//! Hot image files, as the paper has them: each file that a start reads, whole.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, ensure};
use serde::Deserialize;

use crate::process::run_ok;
use crate::programs::{DEADLINE, Programs, json};

/// Bytes of a block.
const BLOCK_BYTES: u64 = 4096;

/// What of `bootimg inspect --json` counts here.
#[derive(Debug, Deserialize)]
pub(super) struct Recorded {
    /// Bytes of the boot image's file, in which the store has no blocks.
    file_bytes: u64,
    data_blocks: u64,
    files: Vec<RecordedFile>,
}

#[derive(Debug, Deserialize)]
struct RecordedFile {
    path: PathBuf,
}

impl Recorded {
    /// Returns the bytes of a boot image with its blocks. Those that it shares with others count for
    /// each of them.
    pub(super) fn bytes(&self) -> u64 {
        self.file_bytes + self.data_blocks * BLOCK_BYTES
    }
}

/// Returns what a boot image says of itself.
pub(super) fn recorded(programs: &Programs, image: &str) -> anyhow::Result<Recorded> {
    let mut inspect = programs.bootimg();
    inspect.args(["inspect", image]);
    json(inspect)
}

/// Copies the files that a start reads from `root` to `hot`, whole, with the directories that lead
/// to them and all attributes; returns their bytes.
pub(super) fn copy(recorded: &Recorded, root: &Path, hot: &Path) -> anyhow::Result<u64> {
    fs::create_dir_all(hot).with_context(|| format!("making {}", hot.display()))?;
    let mut tar = Command::new("sh");
    tar.args(["-c", PIPELINE, "sh"]).args([root, hot]);
    let mut names = Vec::new();
    let mut bytes = 0;
    for file in &recorded.files {
        let path = file.path.strip_prefix("/").unwrap_or(&file.path);
        let metadata = fs::symlink_metadata(root.join(path))
            .with_context(|| format!("looking at {} in {}", path.display(), root.display()))?;
        bytes += metadata.len();
        names.extend_from_slice(path.as_os_str().as_encoded_bytes());
        names.push(0);
    }
    let mut child = tar.stdin(Stdio::piped()).spawn().context("running tar")?;
    let mut stdin = child.stdin.take().context("tar takes no names")?;
    stdin.write_all(&names).context("telling tar the names")?;
    drop(stdin);
    let status = child.wait().context("waiting for tar")?;
    ensure!(status.success(), "tar ended with {status}");
    Ok(bytes)
}

/// Directories come with their attributes, as an overlay shows those of the uppermost one.
const PIPELINE: &str = r#"
set -e
list=$(mktemp) && trap 'rm -f "$list"' EXIT
cat >"$list"
{ cat "$list"
  tr '\0' '\n' <"$list" | while IFS= read -r name; do
      while name=$(dirname "$name") && [ "$name" != . ]; do printf '%s\0' "$name"; done
  done
} | sort -zu | tar -C "$1" --no-recursion --null --xattrs --numeric-owner -T - -cf - |
    tar -C "$2" --xattrs --numeric-owner -xpf -
"#;

/// Copies a whole tree, and returns the bytes of its files.
pub(super) fn copy_all(root: &Path, to: &Path) -> anyhow::Result<u64> {
    let mut copy = Command::new("cp");
    copy.arg("-a").args([root, to]);
    run_ok(copy, DEADLINE).context("copying an image")?;
    bytes_of(root)
}

/// Returns the lengths of all files below a directory together, each inode once.
fn bytes_of(root: &Path) -> anyhow::Result<u64> {
    du(root, &["--bytes"])
}

/// Returns the bytes that all files below a directory take, as a file system counts them.
pub(super) fn taken_by(root: &Path) -> anyhow::Result<u64> {
    du(root, &["--block-size=1"])
}

fn du(root: &Path, how: &[&str]) -> anyhow::Result<u64> {
    let mut du = Command::new("du");
    du.args(["--summarize", "--one-file-system"])
        .args(how)
        .arg(root);
    let said = run_ok(du, DEADLINE)?.output;
    let bytes = said.split_whitespace().next();
    bytes
        .and_then(|bytes| bytes.parse().ok())
        .with_context(|| format!("du said {said}"))
}
