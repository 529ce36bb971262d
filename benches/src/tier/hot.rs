//! Hot image files, as the paper has them: each file that a start reads, whole.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, ensure};
use serde::Deserialize;
use serde_json::Value;

use crate::process::run_ok;
use crate::programs::{DEADLINE, Programs, Serving, json};

/// The tier that is NVM.
pub(super) const TIER: &str = "nvm";

/// What of `bootimg inspect --json` counts here.
#[derive(Debug, Deserialize)]
pub(super) struct Recorded {
    files: Vec<RecordedFile>,
    /// Bytes of the boot image without its blocks: names and attributes of all files.
    #[serde(rename = "file_bytes")]
    pub(super) name_bytes: u64,
}

#[derive(Debug, Deserialize)]
struct RecordedFile {
    path: PathBuf,
}

/// Returns what a boot image says of itself.
pub(super) fn recorded(programs: &Programs, image: &str) -> anyhow::Result<Recorded> {
    let mut inspect = programs.bootimg();
    inspect.args(["inspect", image]);
    json(inspect)
}

/// Puts a boot image on the tier `tier`, and returns its bytes there: its blocks, those that it
/// shares with others too, and the names and attributes of all files.
pub(super) fn prewarm(programs: &Programs, image: &str, tier: &str) -> anyhow::Result<u64> {
    let mut prewarm = programs.bootimg();
    prewarm.args(["prewarm", "--tier", tier, image]);
    run_ok(prewarm, DEADLINE).with_context(|| format!("putting {image} on {tier}"))?;
    let mut status = programs.yolofs();
    status.args(["tier", "status"]);
    let said: Value = json(status)?;
    let objects = said.pointer("/tiers/0/objects").and_then(Value::as_array);
    let mut objects = objects.into_iter().flatten();
    let ours = objects.find(|object| object["name"] == image);
    let bytes = ours.and_then(|object| object["bytes"].as_u64());
    bytes.with_context(|| format!("yolofs tier status does not know {image}: {said}"))
}

/// Has `yolofs` copy the files that a start reads from `root` to the tier `tier`, whole, and returns
/// their bytes there. Files with the same content are there once.
pub(super) fn promote(
    programs: &Programs,
    recorded: &Recorded,
    root: &Path,
    tier: &str,
) -> anyhow::Result<u64> {
    let below = |path: &Path| root.join(path.strip_prefix("/").unwrap_or(path));
    let mut promote = programs.yolofs();
    promote.args(["tier", "promote", "--tier", tier]);
    promote.args(recorded.files.iter().map(|file| below(&file.path)));
    let promoted: Vec<Promoted> = json(promote).context("promoting what a start reads")?;
    ensure!(
        promoted.len() == recorded.files.len(),
        "{} of {} files were promoted",
        promoted.len(),
        recorded.files.len()
    );
    Ok(promoted.iter().map(|file| file.written_bytes).sum())
}

/// Programs with a store and a tier of their own, and what `yolofs tier apply` has put there.
#[derive(Debug)]
pub(super) struct Mixed {
    pub(super) programs: Programs,
    /// Bytes on the tier.
    pub(super) bytes: u64,
    /// Files that are there whole.
    pub(super) whole_files: u64,
}

impl Mixed {
    /// Has `yolofs` place what starts of `root` read, as the boot image `image` of `programs` says, for
    /// a mount that passes files through. The store will be in `home`, which is not there yet, and
    /// the tier in `dir`; `at` is where something can be mounted.
    pub(super) fn place(
        programs: &Programs,
        image: &str,
        root: &Path,
        (home, dir, at): (&Path, &Path, &Path),
    ) -> anyhow::Result<Self> {
        for dir in [home, dir] {
            fs::create_dir(dir).with_context(|| format!("making {}", dir.display()))?;
        }
        let tiers = home.join("tiers.toml");
        fs::write(&tiers, tiers_file(dir))
            .with_context(|| format!("writing {}", tiers.display()))?;
        let file = home.join("boot");
        let mut export = programs.bootimg();
        export.args(["export", image]).arg(&file);
        run_ok(export, DEADLINE)?;
        let programs = programs.with_store(&home.join("store")).with_tiers(&tiers);
        let mut import = programs.bootimg();
        import.args(["import", "--name", image]).arg(&file);
        run_ok(import, DEADLINE)?;
        // So it is known that files are passed through, and that they are used.
        drop(programs.mount(root, at, image, Serving::Passed)?);
        let mut apply = programs.yolofs();
        apply.args(["tier", "apply"]);
        let applied: Vec<Applied> = json(apply).context("placing what a start reads")?;
        let done = applied.iter().all(|one| one.state == "done");
        ensure!(done, "not all was placed: {applied:?}");
        let whole = applied.iter().filter(|one| one.way == "whole");
        let mut status = programs.yolofs();
        status.args(["tier", "status"]);
        let said: Value = json(status)?;
        let bytes = said.pointer("/tiers/0/used_bytes").and_then(Value::as_u64);
        Ok(Self {
            bytes: bytes.with_context(|| format!("yolofs tier status said {said}"))?,
            whole_files: whole.count() as u64,
            programs,
        })
    }
}

/// Returns the text of a tiers file with one tier.
pub(super) fn tiers_file(dir: &Path) -> String {
    format!("[[tier]]\nname = {TIER:?}\ndir = {dir:?}\nsize = \"4G\"\n")
}

/// What of `yolofs tier apply --json` counts here.
#[derive(Debug, Deserialize)]
struct Applied {
    way: String,
    state: String,
}

/// What of `yolofs tier promote --json` counts here.
#[derive(Debug, Deserialize)]
struct Promoted {
    written_bytes: u64,
}

/// Takes all that `yolofs` put on tiers away.
pub(super) fn evict_all(programs: &Programs) -> anyhow::Result<()> {
    let mut evict = programs.yolofs();
    evict.args(["tier", "evict", "--all"]);
    run_ok(evict, DEADLINE).context("clearing the tiers")?;
    Ok(())
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
