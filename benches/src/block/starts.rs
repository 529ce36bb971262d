//! Starts of a container on a block image: far from its registry, and warm.

use std::fs;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use link_emulator::{Address, Link, Shape};

use super::served::MountedImage;
use super::subject::{BOOTED, Subject, TAG, lowers};
use super::trace::{Touched, touched};
use crate::aims::Aim;
use crate::boots::milliseconds;
use crate::interrupt;
use crate::micro::{Series, ratio};
use crate::process::run_ok;
use crate::programs::Programs;
use crate::report::count;
use crate::rounds::{Shuffle, median};

/// The line that the aims name: milliseconds to the registry and back, and millions of bits a second.
const RTT_MS: u64 = 20;
const MBIT: u64 = 25;
const DEADLINE: Duration = Duration::from_secs(120);

/// How an image is started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// With a boot image of the registry, and all the rest in the background.
    Booted,
    /// With nothing but what is read, and all the rest in the background.
    Unplanned,
    /// With a boot image, and nothing else that nobody reads.
    BootImageOnly,
    /// What is read, and nothing else.
    Lazy,
    /// With a plan alone, which is on the machine already, and all the rest in the background.
    Planned,
    /// With a plan alone, and nothing else that nobody reads.
    PlanOnly,
}

const WAYS: [Way; 6] = [
    Way::Booted,
    Way::Unplanned,
    Way::BootImageOnly,
    Way::Lazy,
    Way::Planned,
    Way::PlanOnly,
];

impl Way {
    const fn has_boot_image(self) -> bool {
        matches!(self, Self::Booted | Self::BootImageOnly)
    }
}

/// One start from far away.
struct Sample {
    all: Duration,
    bytes: u64,
}

struct Bench {
    subject: Subject,
    trace: PathBuf,
    machines: u32,
}

/// Records a start, and has all ways take their turns.
///
/// # Errors
/// If a program is missing or fails.
pub fn measure(subject: Subject, rounds: u32) -> anyhow::Result<(Vec<Series>, Vec<Aim>)> {
    let trace = subject.home.path().join("start.trace");
    let mut bench = Bench {
        subject,
        trace,
        machines: 0,
    };
    bench.record()?;
    bench.push_boot_image()?;
    let touched = touched(&bench.trace, &bench.subject.image)?;
    let Touched {
        blocks,
        bytes,
        ranges,
    } = touched;
    println!("  a start reads {blocks} blocks in {ranges} ranges, {bytes} compressed bytes");
    let transfer = Shape::new(Duration::from_millis(RTT_MS), MBIT).time_of(bytes)
        + Duration::from_millis(RTT_MS);
    let mut times = WAYS.map(|way| Series::new(format!("start over the line: {way:?}"), "ms"));
    let mut wires = WAYS.map(|way| Series::new(format!("bytes over the line: {way:?}"), "MB"));
    let mut shuffle = Shuffle::from_clock();
    let turns: Vec<_> = (0..WAYS.len()).collect();
    for _ in 0..rounds {
        for turn in shuffle.order(&turns) {
            let sample = bench.cold(WAYS[turn])?;
            times[turn].values.push(milliseconds(sample.all));
            wires[turn].values.push(count(sample.bytes) / 1e6);
        }
    }
    let (mut series, warm) = bench.warm(rounds)?;
    let over_transfer = times[0].median().map(|ms| ms / milliseconds(transfer));
    let wire = |at: usize| wires[at].median().map(|mb| mb * 1e6 / count(bytes));
    let mut aims = vec![
        Aim::at_most(
            1.15,
            "start with a boot image to the transfer of exactly what it reads",
            over_transfer,
        ),
        Aim::at_least(
            3.0,
            "start without a boot image to one with it",
            ratio(&times[1], &times[0]),
        ),
        Aim::at_most(
            1.10,
            "bytes over the line to what a start reads, with a boot image",
            wire(2),
        ),
        Aim::at_most(
            1.10,
            "bytes over the line to what a start reads, without",
            wire(3),
        ),
    ];
    aims.extend(warm);
    let mut exact = Series::new("transfer of exactly what a start reads", "ms");
    exact.values.push(milliseconds(transfer));
    series.push(exact);
    series.extend(times.into_iter().chain(wires));
    Ok((series, aims))
}

fn exported(programs: &Programs, image: &Path) -> Command {
    let mut export = programs.yolofs();
    export.args(["block", "export"]).arg(image);
    export
}

impl Bench {
    /// Records what a start reads, of the layers on this machine.
    fn record(&self) -> anyhow::Result<()> {
        let mut export = self.export(&self.subject.image);
        export.arg("--record-trace").arg(&self.trace);
        let mounted = MountedImage::new(export, &self.subject.home.path().join("record"))?;
        self.subject.start(mounted.path())?;
        mounted.end()
    }

    /// Pushes what was recorded to a repository of its own: machines without it find nothing there.
    fn push_boot_image(&self) -> anyhow::Result<()> {
        let Subject {
            programs,
            registry,
            image,
            ..
        } = &self.subject;
        let mut keep = programs.bootimg();
        keep.arg("from-trace").arg(image);
        keep.arg("--overlaybd").arg(&self.trace);
        run_ok(keep, DEADLINE)?;
        let to = format!("{}/{BOOTED}:block", registry.address());
        let mut push = programs.yolofs();
        push.args(["block", "plan", "push"]).arg(image).arg(&to);
        let pushed = run_ok(push, DEADLINE)?;
        eprintln!("{}", pushed.output.trim_end());
        Ok(())
    }

    fn export(&self, image: &Path) -> Command {
        exported(&self.subject.programs, image)
    }

    /// Starts the program on a machine that has nothing, from the name of the image to the program's end.
    fn cold(&mut self, way: Way) -> anyhow::Result<Sample> {
        interrupt::check()?;
        self.machines += 1;
        let home = self.subject.home.path();
        let home = home.join(format!("machine{}", self.machines));
        fs::create_dir(&home).context("making a directory")?;
        let mut link = Link::new(Shape::new(Duration::from_millis(RTT_MS), MBIT));
        let anywhere = Address::Tcp((Ipv4Addr::LOCALHOST, 0).into());
        let there = Address::Tcp(self.subject.registry.address());
        let here = link.carry(&anywhere, there)?;
        let image = home.join("image");
        let programs = self.subject.programs.with_store(&home.join("store"));
        let name = if way.has_boot_image() { BOOTED } else { TAG };
        let began = Instant::now();
        let mut create = programs.yolofs();
        create.args(["block", "create"]).arg(&image);
        create.args(["--kind", "sealed", "--lower"]);
        create.arg(format!("docker://{here}/{name}:block"));
        run_ok(create, DEADLINE)?;
        let mut export = exported(&programs, &image);
        export.arg("--cache").arg(home.join("cache"));
        if matches!(way, Way::Planned | Way::PlanOnly) {
            export.arg("--plan").arg(&self.trace);
        }
        if matches!(way, Way::BootImageOnly | Way::PlanOnly | Way::Lazy) {
            export.args(["--background", "plan"]);
        }
        let mounted = MountedImage::new(export, &home)?;
        let ready = began.elapsed();
        let own = self.subject.start(mounted.path())?;
        let all = began.elapsed();
        let bytes = link.counts().to_client;
        eprintln!(
            "{way:?}: {:.0} ms until it was mounted, {:.0} ms of the program, {:.0} ms in all; {bytes} B",
            milliseconds(ready),
            milliseconds(own),
            milliseconds(all)
        );
        mounted.end()?;
        fs::remove_dir_all(&home).context("removing what a machine had")?;
        Ok(Sample { all, bytes })
    }

    /// Starts it again and again where everything is in the page cache, beside overlayfs.
    fn warm(&self, rounds: u32) -> anyhow::Result<(Vec<Series>, Vec<Aim>)> {
        let export = self.export(&self.subject.image);
        let mounted = MountedImage::new(export, &self.subject.home.path().join("warm"))?;
        let unpacked = lowers(&self.subject.unpacked)?;
        let roots = [mounted.path(), &unpacked];
        let mut series = ["a block image", "overlayfs"]
            .map(|what| Series::new(format!("warm start from {what}"), "ms"));
        for root in roots {
            self.subject.start(root)?;
        }
        let mut shuffle = Shuffle::from_clock();
        let mut ratios = Vec::new();
        // A start takes a part of a second: more of them tell more.
        for _ in 0..4 * rounds {
            let mut took = [0.0; 2];
            for turn in shuffle.order(&[0, 1]) {
                took[turn] = milliseconds(self.subject.start(roots[turn])?);
                series[turn].values.push(took[turn]);
            }
            ratios.push(took[0] / took[1]);
        }
        mounted.end()?;
        let aim = Aim::at_most(1.0, "warm start to overlayfs", median(&ratios));
        Ok((series.into(), vec![aim]))
    }
}
