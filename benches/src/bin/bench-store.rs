//! A store with hundreds of boot images.

#![forbid(unsafe_code)]

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Duration;

use anyhow::Context as _;
use benches::aims::Aim;
use benches::caches;
use benches::ending::end;
use benches::lab_args::LabArgs;
use benches::machine::Machine;
use benches::process::run_ok;
use benches::programs::Programs;
use benches::report::{Report, count};
use benches::stage::{Access, Stage};
use benches::store::{Catalog, Filled, Warmed, fill, list, peak_mib, prewarm, sequential};
use benches::throttle::Throttle;
use clap::Parser;
use serde::Serialize;

/// Fills a store with made-up boot images, and measures its size, its list, and the prewarm of a budget
#[derive(Debug, Parser)]
#[command(name = "bench-store", version, max_term_width = 100)]
struct Args {
    #[command(flatten)]
    lab: LabArgs,
    /// Boot images
    #[arg(long, value_name = "N", default_value_t = 900)]
    count: u32,
    /// How many of them are versions of one
    #[arg(long, value_name = "N", default_value_t = 15)]
    versions: u32,
    /// In how many percent of what a boot reads a version differs from the one before
    #[arg(long, value_name = "PERCENT", default_value_t = 30)]
    changes: u64,
    /// Divide the sizes of the paper (45 MiB on average, and a budget of 2 GiB) by this
    #[arg(long, value_name = "N", default_value_t = 8)]
    divide: u64,
    /// Read requests a second of the slow disk
    #[arg(long, value_name = "N", default_value_t = 150)]
    iops: u32,
    /// Write what was measured to this file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// What is prewarmed of the paper's sizes.
const BUDGET: u64 = 2 << 30;
/// Making a file system.
const DEADLINE: Duration = Duration::from_secs(300);

/// What was measured.
#[derive(Debug, Default, Serialize)]
struct Measured {
    filled: Filled,
    list_cold_s: f64,
    list_warm_s: f64,
    fast: Prewarm,
    slow: Prewarm,
    peak_mib: f64,
}

/// A prewarm, beside a file of the same length that is read from front to back.
#[derive(Debug, Default, Serialize)]
struct Prewarm {
    warmed: Warmed,
    sequential_mb_s: f64,
}

fn main() -> ExitCode {
    end(&run(&Args::parse()))
}

fn run(args: &Args) -> anyhow::Result<()> {
    let places = args.lab.set_up()?;
    let machine = Machine::look();
    let beside = places.images.parent().unwrap_or(&places.images);
    let home = tempfile::Builder::new().prefix("store.").tempdir_in(beside);
    let home = home.with_context(|| format!("making a directory in {}", beside.display()))?;
    let stage = make_stage(home.path())?;
    let on_stage = stage.path().join("store");
    let programs = Programs::new(&places.bin, home.path())?.with_store(&on_stage);
    let budget = BUDGET / args.divide.max(1);
    let catalog = Catalog {
        images: args.count,
        versions: args.versions,
        changes: args.changes,
        scale: 1.0 / count(args.divide.max(1)),
    };
    let mut measured = Measured {
        filled: fill(&on_stage, &catalog, |done| {
            if done % 100 == 0 {
                eprintln!("{done} boot images");
            }
        })?,
        ..Measured::default()
    };
    let file = stage.path().join("sequential");
    write_file(&file, budget)?;
    measured.list_cold_s = list(&programs, true)?;
    measured.list_warm_s = list(&programs, false)?;
    let one = |throttle: Option<&Throttle>| -> anyhow::Result<Prewarm> {
        let _stay = throttle.map(Throttle::stay).transpose()?;
        Ok(Prewarm {
            sequential_mb_s: sequential(&file)?,
            warmed: prewarm(&programs, &stage, budget)?,
        })
    };
    measured.fast = one(None)?;
    let throttle = Throttle::new(&stage.device_number()?, args.iops)?;
    measured.slow = one(Some(&throttle))?;
    measured.peak_mib = peak_mib()?;
    tell(&measured);
    let aims = aims(&measured);
    for aim in &aims {
        println!("{aim}");
    }
    args.json.as_ref().map_or(Ok(()), |path| {
        Report::new(machine, caches::PROCEDURE, measured, aims).write(path)
    })
}

/// Makes a file system for the store.
fn make_stage(home: &Path) -> anyhow::Result<Stage> {
    let (image, at) = (home.join("stage.ext4"), home.join("stage"));
    fs::create_dir(&at).context("making a directory")?;
    let mut mkfs = Command::new("mkfs.ext4");
    let options = "lazy_itable_init=0,lazy_journal_init=0,nodiscard";
    mkfs.args(["-q", "-F", "-b", "4096", "-E", options])
        .arg(&image)
        .arg("24G");
    run_ok(mkfs, DEADLINE).context("making a disk")?;
    Stage::mount(&image, &at, Access::ReadWrite)
}

/// Writes a file that no disk can leave out.
fn write_file(path: &Path, bytes: u64) -> anyhow::Result<()> {
    let mut file = fs::File::create(path).with_context(|| format!("making {}", path.display()))?;
    let block = vec![0x5a; 1 << 20];
    for _ in 0..bytes >> 20 {
        file.write_all(&block).context("writing a file")?;
    }
    file.sync_all().context("syncing a file")
}

fn tell(measured: &Measured) {
    let Measured { filled, .. } = measured;
    let gb = |bytes: u64| count(bytes) / 1e9;
    println!(
        "{} boot images: {:.2} GB plain, {:.2} GB in the store, added in {:.0} s",
        filled.images,
        gb(filled.plain_bytes),
        gb(filled.store_bytes),
        filled.took_s
    );
    println!(
        "list: {:.2} s cold, {:.2} s warm",
        measured.list_cold_s, measured.list_warm_s
    );
    for (
        disk,
        Prewarm {
            warmed,
            sequential_mb_s,
        },
    ) in [("as it is", &measured.fast), ("slow", &measured.slow)]
    {
        println!(
            "prewarm, disk {disk}: {} images, {:.2} GB in {:.1} s of {:.1}, {:.0} MB/s beside {sequential_mb_s:.0} \
             sequentially; {:.2} GB of the disk in {} requests",
            warmed.images,
            gb(warmed.bytes),
            warmed.pass_s,
            warmed.took_s,
            warmed.rate(),
            gb(warmed.disk_bytes),
            warmed.disk_requests
        );
    }
    println!(
        "the most memory that a command took: {:.0} MiB\n",
        measured.peak_mib
    );
}

fn aims(measured: &Measured) -> Vec<Aim> {
    let Measured { filled, .. } = measured;
    let share = count(filled.store_bytes) / count(filled.plain_bytes.max(1));
    let rate = |prewarm: &Prewarm| Some(prewarm.warmed.rate() / prewarm.sequential_mb_s);
    vec![
        Aim::at_most(0.5, "the store to the plain sum", Some(share)),
        Aim::at_most(1.0, "list, cold, s", Some(measured.list_cold_s)),
        Aim::at_most(1.0, "list, warm, s", Some(measured.list_warm_s)),
        Aim::at_least(
            0.8,
            "prewarm to the sequential rate, disk as it is",
            rate(&measured.fast),
        ),
        Aim::at_least(
            0.8,
            "prewarm to the sequential rate, slow disk",
            rate(&measured.slow),
        ),
    ]
}
