//! Making block images, beside unpacking the same layers and making a file system of them.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use serde::Deserialize;

use super::subject::{layers, source, untar};
use crate::aims::Aim;
use crate::boots::milliseconds;
use crate::interrupt;
use crate::lab_args::Places;
use crate::micro::{Series, ratio};
use crate::process::run_ok;
use crate::programs::{Programs, json};
use crate::report::count;
use crate::rounds::Shuffle;

const DEADLINE: Duration = Duration::from_secs(300);

/// What `yolofs block convert --json` says.
#[derive(Deserialize)]
struct Converted {
    manifest: String,
}

#[derive(Clone, Copy, Debug)]
enum Turn {
    Ours,
    Erofs,
    Ext4,
}

const TURNS: [Turn; 3] = [Turn::Ours, Turn::Erofs, Turn::Ext4];

/// Has them take turns.
///
/// # Errors
/// If the image or a program is missing, or something fails.
pub fn measure(places: &Places, rounds: u32) -> anyhow::Result<(Vec<Series>, Vec<Aim>)> {
    let home = tempfile::tempdir_in(places.images.parent().unwrap_or(&places.images))
        .context("making a directory beside the images")?;
    let programs = Programs::new(&places.bin, home.path())?;
    let mut series = [
        Series::new("yolofs block convert", "ms"),
        Series::new("tar x and mkfs.erofs", "ms"),
        Series::new("tar x and mkfs.ext4 -d", "ms"),
    ];
    let mut digests = BTreeSet::new();
    let mut shuffle = Shuffle::from_clock();
    for _ in 0..rounds {
        for turn in shuffle.order(&TURNS) {
            interrupt::check()?;
            let dir = home.path().join("turn");
            fs::create_dir(&dir).context("making a directory")?;
            // What was written before is not what this turn waits for.
            nix::unistd::sync();
            let began = Instant::now();
            let at = match turn {
                Turn::Ours => {
                    let mut convert = programs.yolofs();
                    convert
                        .args(["block", "convert", &source(places)])
                        .arg(&dir);
                    let converted: Converted = json(convert)?;
                    digests.insert(converted.manifest);
                    0
                }
                Turn::Erofs => {
                    let mut mkfs = Command::new("mkfs.erofs");
                    mkfs.arg(dir.join("image"));
                    unpack_and(places, &dir, mkfs)?;
                    1
                }
                Turn::Ext4 => {
                    let mut mkfs = Command::new("mke2fs");
                    mkfs.args(["-q", "-t", "ext4", "-d"]).arg(dir.join("root"));
                    mkfs.arg(dir.join("image")).arg("1G");
                    unpack_and(places, &dir, mkfs)?;
                    2
                }
            };
            // Ours is durable when it says so; so are theirs, then.
            if at > 0 {
                nix::unistd::sync();
            }
            series[at].values.push(milliseconds(began.elapsed()));
            fs::remove_dir_all(&dir).context("removing a directory")?;
        }
    }
    let aims = vec![
        Aim::at_most(
            1.0,
            "convert to tar x and mkfs.erofs",
            ratio(&series[0], &series[1]),
        ),
        Aim::at_most(
            1.0,
            "convert to tar x and mkfs.ext4 -d",
            ratio(&series[0], &series[2]),
        ),
        Aim::at_most(
            1.0,
            format!("different digests of {rounds} conversions"),
            Some(count(digests.len() as u64)),
        ),
    ];
    Ok((series.into(), aims))
}

/// Unpacks all layers over each other, and makes a file system of what there is.
fn unpack_and(places: &Places, dir: &Path, mut mkfs: Command) -> anyhow::Result<()> {
    let root = dir.join("root");
    fs::create_dir(&root).context("making a directory")?;
    for layer in layers(places)? {
        run_ok(untar(&layer, &root), DEADLINE)?;
    }
    if mkfs.get_program() == "mkfs.erofs" {
        mkfs.arg(&root);
    }
    run_ok(mkfs, DEADLINE).map(drop)
}
