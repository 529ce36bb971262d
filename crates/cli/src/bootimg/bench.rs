//! `bootimg bench`: how much faster a boot is on this host for having been recorded.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};

use super::engine_args::EngineArgs;
use super::report::page_about;
use super::start_args::StartArgs;
use crate::completions::image_names;
use crate::exit::Outcome;
use crate::output::{FormatArg, complain, duration, print, table};
use crate::run_dir_arg::RunDirArg;
use bootstore::store::StoreSettings;
use host::interrupt::Interrupt;
use host::run_dir::RunDir;
use host::size::Size;
use layers::keep::Earlier;
use node_api::boot_choice::BootChoice;
use recording::bench::{
    BenchEvent, BenchReport, BenchSettings, Sample, TreeBench, Way, bench_image, bench_tree,
    recorded_from,
};
use recording::image_recording::ImageRequest;
use recording::keep::KeepPlace;
use recording::locate::{Located, locate};
use recording::machine::{self, Machine};
use recording::run::RunSettings;
use recording::tree_recording::{CommandRoot, TreeRequest};
use recording::until::{Until, seconds};

/// Start what was recorded again and again, cold, prewarmed and warm, and compare the times
///
/// Cold is a start from the disk without yolofs, prewarmed one with the boot image in the page cache, warm one
/// right after another. They take turns; medians are compared. For a cold start, what the page cache has of the
/// source is dropped, and the names and inodes of the host that nobody uses: do not run it where a busy host
/// must not notice. What is started is ended when it is ready, and what it wrote is thrown away.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "\
Examples:
  bootimg bench web
  bootimg bench /srv/rootfs --runs 9 -- python3 -c 'import ssl, json'
  bootimg bench vm:disk.qcow2 --until ssh --report disk.html
  bootimg bench docker://nginx:1.25 --json")]
pub(super) struct BenchArgs {
    /// What was recorded: the name of a boot image, a directory tree, a disk image, vm:IMAGE, docker://REF,
    /// containerd://NAMESPACE/REF, or a name that Docker knows
    #[arg(add = image_names())]
    source: PathBuf,
    /// The boot image of a directory or a disk image: a name in the store, an id, or a file (with a `/`)
    #[arg(long, value_name = "IMAGE", default_value = "auto", add = image_names())]
    boot: BootChoice,
    /// When it counts as ready, as bootimg record takes it, but for quiet and after [default: exit; for images
    /// healthy if they have a health check, else their port]
    #[arg(long, value_name = "WHEN")]
    until: Option<Until>,
    /// Fail if a start is not ready after this many seconds
    #[arg(long, default_value = "300", value_name = "SECS", value_parser = seconds)]
    timeout: Duration,
    /// Starts of each kind
    #[arg(long, default_value_t = 5, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=100))]
    runs: u16,
    /// Write the page of bootimg report about it, with these times, to this file
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
    #[command(flatten)]
    start: StartArgs,
    #[command(flatten)]
    engines: EngineArgs,
    #[command(flatten)]
    format: FormatArg,
    /// The command and its arguments [default: the recorded one, or the image's own]
    #[arg(trailing_var_arg = true)]
    command: Vec<OsString>,
}

pub(super) fn run(
    args: &BenchArgs,
    store: &StoreSettings,
    run_dir: &RunDirArg,
    interrupt: &Interrupt,
) -> anyhow::Result<Outcome> {
    let report = args.measure(store, &RunDir::open(&run_dir.run_dir)?, interrupt)?;
    if let Some(page) = &args.report {
        let measured = serde_json::to_vec(&report).context("writing JSON")?;
        page_about(&report.recorded_as, &measured, page, store, run_dir)?;
    }
    print(args.format.format(), &report, text)?;
    Ok(Outcome::Done)
}

impl BenchArgs {
    fn measure(
        &self,
        store: &StoreSettings,
        run_dir: &RunDir,
        interrupt: &Interrupt,
    ) -> anyhow::Result<BenchReport> {
        let settings = BenchSettings {
            runs: self.runs,
            timeout: self.timeout,
        };
        let tree =
            |bench: &TreeBench| bench_tree(bench, settings, store, run_dir, interrupt, &tell);
        if let Some(image) = machine::image_of(&self.source) {
            return tree(&self.machine_bench(image)?);
        }
        if let Some(source) = self.of_name(store)? {
            let boot = BootChoice::from(self.source.to_string_lossy().into_owned());
            return tree(&self.tree_bench(source, boot)?);
        }
        match locate(&self.source, self.engines.docker_host.as_deref())? {
            Located::Path => tree(&self.tree_bench(self.source.clone(), self.boot.clone())?),
            Located::Image(name) => {
                ensure!(
                    self.boot == BootChoice::Auto
                        && !self.start.no_chroot
                        && self.start.qemu_args.is_empty(),
                    "--boot, --no-chroot and --qemu-args are for directories and disk images"
                );
                let request = ImageRequest {
                    name,
                    until: self.until.clone(),
                    runs: self.run_settings(),
                    run_options: self.start.run_args.clone(),
                    earlier: Earlier::United,
                    engines: self.engines.engines(),
                    scratch: self.engines.scratch.clone(),
                };
                bench_image(&request, settings, store, interrupt, &tell)
            }
        }
    }

    /// Returns where the boot image of this name was recorded, unless the name is written as a path or a reference: what else is
    /// called so in the working directory is `./NAME`.
    fn of_name(&self, store: &StoreSettings) -> anyhow::Result<Option<PathBuf>> {
        let name = self
            .source
            .to_str()
            .filter(|text| !text.contains(['/', ':']));
        match name {
            Some(name) => recorded_from(name, store),
            None => Ok(None),
        }
    }

    fn tree_bench(&self, source: PathBuf, boot: BootChoice) -> anyhow::Result<TreeBench> {
        ensure!(
            self.start.run_args.is_empty() && self.start.qemu_args.is_empty(),
            "--run-args are for container images, and --qemu-args for vm:IMAGE: {} is neither",
            source.display()
        );
        if let Some(until @ (Until::Healthy(_) | Until::Machine(_))) = &self.until {
            bail!("{} is a path, which has no {until}", source.display());
        }
        let request = TreeRequest {
            source,
            machine: None,
            root: match self.start.no_chroot {
                true => CommandRoot::Host,
                false => CommandRoot::Recorded,
            },
            until: self.until.clone().unwrap_or(Until::Exit),
            runs: self.run_settings(),
            keep: KeepPlace::Store { name: None },
        };
        Ok(TreeBench { request, boot })
    }

    fn machine_bench(&self, source: PathBuf) -> anyhow::Result<TreeBench> {
        ensure!(
            self.command.is_empty() && self.start.run_args.is_empty() && !self.start.no_chroot,
            "a machine boots by itself: give options for it with --qemu-args"
        );
        let until = self.until.clone();
        let until = until.filter(|until| !matches!(until, Until::Healthy(_)));
        let request = TreeRequest {
            source,
            machine: Some(Machine::new(&self.start.qemu_args)?),
            root: CommandRoot::Host,
            until: until.context(
                "say when the machine is ready (--until line:REGEX, ssh, agent or qmp:EVENT): nobody can see \
                 whether a cold start still reads",
            )?,
            runs: self.run_settings(),
            keep: KeepPlace::Store { name: None },
        };
        let boot = self.boot.clone();
        Ok(TreeBench { request, boot })
    }

    fn run_settings(&self) -> RunSettings {
        RunSettings {
            runs: self.runs,
            timeout: self.timeout,
            keep_traces: None,
            command: self.command.clone(),
        }
    }
}

fn tell(event: BenchEvent<'_>) {
    match event {
        BenchEvent::Chosen { until, because } => complain(&format!(
            "waiting for {until}, because {because} (choose with --until)"
        )),
        BenchEvent::WarmingUp => complain("one start that is not counted"),
        BenchEvent::Done { sample, rounds } => complain(&format!(
            "{} of {rounds}: {} {}",
            sample.round,
            word(sample.mode),
            millis(sample.ready_ms)
        )),
    }
}

const fn word(way: Way) -> &'static str {
    match way {
        Way::Cold => "cold",
        Way::Prewarmed => "prewarmed",
        Way::Warm => "warm",
    }
}

fn text(report: &BenchReport) -> String {
    let head = [
        "",
        "median",
        "range",
        "disk reads",
        "of",
        "reads of yolofs",
        "prepared in",
    ];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    rows.extend(Way::ALL.map(|way| row(report, way)));
    let mut text = table(&rows);
    let median = |way| report.median(way, |sample| sample.ready_ms);
    if let (Some(cold), Some(ours), Some(warm)) =
        (median(Way::Cold), median(Way::Prewarmed), median(Way::Warm))
    {
        text.push_str(&format!(
            "{}: prewarmed, a start takes {:.2} of a cold one and {:.2} of a warm one\n",
            report.subject,
            ours / cold.max(0.001),
            ours / warm.max(0.001)
        ));
    }
    let median = |of: &dyn Fn(&Sample) -> f64| report.median(Way::Prewarmed, of).unwrap_or(0.0);
    if median(&|sample| number(sample.missed_bytes)) > 0.0 {
        text.push_str("it reads what was not recorded: record it again, in more runs (bootimg record --runs)\n");
    } else if median(&|sample| number(sample.fuse_reads)) > 0.0 {
        text.push_str(
            "the kernel dropped pages between the prewarm and the start: is memory short?\n",
        );
    }
    text.push_str(&format!("until {}; {}\n", report.until, report.caches));
    for warning in &report.warnings {
        text.push_str(&format!("{warning}\n"));
    }
    text
}

/// Returns a count as a number to take medians of.
#[expect(clippy::cast_precision_loss, reason = "for people")]
const fn number(count: u64) -> f64 {
    count as f64
}

fn row(report: &BenchReport, way: Way) -> Vec<String> {
    let ready = |sample: &Sample| sample.ready_ms;
    let fastest = report.of(way).map(ready).fold(f64::INFINITY, f64::min);
    let slowest = report.of(way).map(ready).fold(0.0, f64::max);
    let median = |of: &dyn Fn(&Sample) -> f64| report.median(way, of);
    let count = |count: Option<u64>| count.map_or(f64::NAN, number);
    let whole = |number: Option<f64>| match number {
        Some(number) if number.is_finite() => format!("{number:.0}"),
        _ => "-".to_owned(),
    };
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "bytes that were counted"
    )]
    let size = |bytes: Option<f64>| match bytes {
        Some(bytes) if bytes.is_finite() => Size(bytes as u64).to_string(),
        _ => "-".to_owned(),
    };
    vec![
        word(way).to_owned(),
        millis(median(&ready).unwrap_or_default()),
        format!("{} to {}", millis(fastest), millis(slowest)),
        whole(median(&|sample| count(sample.disk_reads))),
        size(median(&|sample| count(sample.disk_bytes))),
        whole(median(&|sample| number(sample.fuse_reads))),
        match way {
            Way::Prewarmed => millis(median(&|sample| sample.prepare_ms).unwrap_or_default()),
            _ => "-".to_owned(),
        },
    ]
}

fn millis(millis: f64) -> String {
    duration(Duration::from_secs_f64(millis.max(0.0) / 1e3))
}
