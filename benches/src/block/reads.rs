//! Random reads of layered images, beside those of a plain file in the same export.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::Context as _;
use lsmt::{BlobOptions, FileStorage, LayerInfo, LsmtError, write_layer};
use serde_json::json;

use super::fio::{Target, random_reads};
use super::served::Export;
use crate::aims::Aim;
use crate::lab_args::Places;
use crate::micro::{Series, ratio};
use crate::process::run_ok;
use crate::programs::Programs;
use crate::rounds::Shuffle;

/// Bytes of the device.
const BYTES: u64 = 256 << 20;
const DEADLINE: Duration = Duration::from_secs(120);

/// What is exported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Raw,
    Plain,
    Lz4,
    Zstd,
}

const KINDS: [Kind; 4] = [Kind::Raw, Kind::Plain, Kind::Lz4, Kind::Zstd];
const DEPTHS: [u32; 2] = [1, 32];

/// What a kernel has that makes ublk devices.
const UBLK: &str = "/dev/ublk-control";

/// Has all images take turns through the file export, through NBD and, where the kernel has them, as ublk devices.
///
/// # Errors
/// If a program is missing or fails.
pub fn measure(places: &Places, rounds: u32) -> anyhow::Result<(Vec<Series>, Vec<Aim>)> {
    let home = tempfile::tempdir_in(places.images.parent().unwrap_or(&places.images))
        .context("making a directory beside the images")?;
    let programs = Programs::new(&places.bin, home.path())?;
    let images = images(&programs, &places.images, home.path())?;
    let (mut series, mut aims) = (Vec::new(), Vec::new());
    let mut hows = vec!["file", "NBD"];
    match Path::new(UBLK).exists() {
        true => hows.push("ublk"),
        false => eprintln!("ublk is left out: there is no {UBLK} (modprobe ublk_drv)"),
    }
    for how in hows {
        let found = through(how, &programs, &images, home.path(), rounds)?;
        for (at, depth) in DEPTHS.iter().enumerate() {
            let of = |kind: usize| &found[kind * DEPTHS.len() + at];
            for (kind, limit) in [(1, 0.9), (2, 0.7), (3, 0.7)] {
                let what = format!(
                    "reads of 4 KiB by {how} at depth {depth}, {:?} to a plain file",
                    KINDS[kind]
                );
                aims.push(Aim::at_least(limit, what, ratio(of(kind), of(0))));
            }
        }
        series.extend(found);
    }
    Ok((series, aims))
}

/// Makes the same device as a file and as images, in the order of [`KINDS`].
fn images(programs: &Programs, from: &Path, home: &Path) -> anyhow::Result<[PathBuf; 4]> {
    let raw = home.join("disk.raw");
    let mut tar = Command::new("tar");
    tar.args(["-cf"]).arg(&raw).arg("-C").arg(from).arg("far");
    run_ok(tar, DEADLINE).context("making a disk of scripts/images/far.sh")?;
    let file = File::options().write(true).open(&raw)?;
    file.set_len(BYTES).context("cutting a disk")?;
    let plain = home.join("plain");
    write_plain(&raw, &plain)?;
    let converted = |codec: &str| {
        let mut convert = programs.yolofs();
        convert.args(["block", "convert", "--codec", codec, "--name", codec]);
        convert.arg(&raw).arg(home.join("images"));
        run_ok(convert, DEADLINE)?;
        anyhow::Ok(home.join("images").join(codec))
    };
    let [lz4, zstd] = [converted("lz4")?, converted("zstd")?];
    Ok([raw, plain, lz4, zstd])
}

/// Writes the disk as a layer that nothing compresses.
fn write_plain(raw: &Path, image: &Path) -> anyhow::Result<()> {
    fs::create_dir(image).context("making an image")?;
    let bytes = fs::read(raw).context("reading a disk")?;
    let layer = FileStorage::new(File::create_new(image.join("layer"))?);
    let info = LayerInfo {
        virtual_size: BYTES,
        ..LayerInfo::default()
    };
    write_layer::<LsmtError>(&layer, BlobOptions::default(), &info, |body| {
        body.append(0, &bytes)
    })
    .context("writing a layer")?;
    let config = json!({"lowers": [{"file": "layer"}]}).to_string();
    fs::write(image.join("config.v1.json"), config).context("writing an image")
}

fn through(
    how: &str,
    programs: &Programs,
    images: &[PathBuf],
    home: &Path,
    rounds: u32,
) -> anyhow::Result<Vec<Series>> {
    let mut exports = Vec::new();
    let mut places = Vec::new();
    let mut series = Vec::new();
    for (kind, image) in KINDS.iter().zip(images) {
        let place = home.join(format!("{how}.{kind:?}"));
        let mut export = programs.yolofs();
        export.args(["block", "export"]).arg(image);
        match how {
            "file" => {
                fs::create_dir(&place).context("making a directory")?;
                export.arg("--mount").arg(&place);
                places.push(place.join("disk"));
            }
            "ublk" => {
                export.arg("--ublk").arg(&place);
                places.push(place);
            }
            _ => {
                export.arg("--nbd").arg(&place);
                places.push(place);
            }
        }
        exports.push(Export::start(export)?);
        let name = |depth| format!("4 KiB reads by {how} at depth {depth}: {kind:?}");
        series.extend(DEPTHS.map(|depth| Series::new(name(depth), "/s")));
    }
    let mut shuffle = Shuffle::from_clock();
    let turns: Vec<_> = (0..series.len()).collect();
    for _ in 0..rounds {
        for turn in shuffle.order(&turns) {
            let place = &places[turn / DEPTHS.len()];
            let target = match how {
                "file" | "ublk" => Target::File(place),
                _ => Target::Nbd(place),
            };
            let found = random_reads(target, DEPTHS[turn % DEPTHS.len()], BYTES)?;
            series[turn].values.push(found);
        }
    }
    exports.into_iter().try_for_each(Export::end)?;
    Ok(series)
}
