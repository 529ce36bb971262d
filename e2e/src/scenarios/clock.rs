//! Jumps of the clock, in a virtual machine: a clock is the whole machine's, and others use ours.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use nix::sys::time::TimeSpec;
use nix::time::{ClockId, clock_gettime, clock_settime};
use serde::{Deserialize, Serialize};

use super::Scenario;
use crate::commands::{done, soak};
use crate::machine::{self, Cache};
use crate::names::IMAGE;
use crate::node::{self, Reads, Service};
use crate::workload::Mix;
use crate::{Base, Bench, Scale, Tally};

/// The word on the kernel's command line without which no clock is touched.
const PERMISSION: &str = "yolofs-soak-may-move-the-clock";

/// Begins the line on the console that has the guest's report.
const REPORT: &str = "SOAK-REPORT ";

/// A machine under emulation is slow, and so is a busy one around it.
const PATIENCE: Duration = Duration::from_secs(600);

/// Memory of the machine, in MiB.
const MEMORY_MIB: u32 = 768;

/// Room on the disk for what is done there, in MiB.
const ROOM_MIB: u32 = 200;

/// Jumps, in seconds: an NTP step, a wrong hour, a clock without a battery, a far future.
const JUMPS: [i64; 10] = [
    -1,
    1,
    -3600,
    3600,
    -86_400,
    86_400,
    -31_536_000,
    31_536_000,
    -300_000_000,
    300_000_000,
];

/// How many times longer than before the first jump something may take after one.
const SLOWER: u32 = 10;

/// Clocks are kept between 2001 and 2096.
const CLOCKS: std::ops::Range<i64> = 1_000_000_000..4_000_000_000;

/// What the guest reports.
#[derive(Debug, Serialize, Deserialize)]
struct Report {
    tally: Tally,
    harms: u64,
    fault: Option<String>,
}

/// Boots a machine that runs [`jump_in_guest`].
pub(super) fn jumps(bench: &mut Bench<'_>) -> anyhow::Result<()> {
    let dir = bench.lab.make_dir("machine")?;
    machine::take_kernel(&dir)?;
    let root = bench.lab.make_dir("root")?;
    machine::furnish(&root, &[soak()?])?;
    machine::take_modules(&["fs/fuse/fuse"], &root)?;
    let seed = bench.rng.number();
    let init = init(seed, bench.length);
    machine::make_disk(&root, &init, ROOM_MIB, &dir.join(machine::DISK))?;
    let report = run(bench, &dir)?;
    bench.harmed(report.harms);
    bench.take(&report.tally, &[])?;
    match report.fault {
        Some(fault) => bail!("in the machine: {fault}"),
        None => Ok(()),
    }
}

fn init(seed: u64, length: Duration) -> String {
    let seconds = length.as_secs();
    format!(
        "#!/bin/busybox sh
exec </dev/ttyS0 >/dev/ttyS0 2>&1
/bin/busybox --install -s /bin
export PATH=/bin:/usr/bin
mount -t proc proc /proc
mount -t sysfs sysfs /sys
insmod /modules/fuse.ko
soak __jump {seed} {seconds}
poweroff -f
"
    )
}

/// Runs the machine until it powers itself off, and returns its report.
fn run(bench: &Bench<'_>, dir: &Path) -> anyhow::Result<Report> {
    let mut qemu = Command::new("timeout");
    // Its deadline: it is killed, and so its console ends.
    qemu.arg(PATIENCE.as_secs().to_string());
    let machine = machine::qemu(dir, Cache::Writeback, MEMORY_MIB, PERMISSION);
    qemu.arg(machine.get_program()).args(machine.get_args());
    let mut child = qemu
        .env("YOLOFS_RUN_DIR", bench.lab.run_dir())
        .env("TMPDIR", bench.lab.run_dir())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .process_group(0)
        .spawn()
        .context("starting QEMU (apt-get install qemu-system-x86)")?;
    let out = child.stdout.take().context("listening to a machine")?;
    let (mut said, mut report) = (Vec::new(), None);
    for line in BufReader::new(out).split(b'\n') {
        let line = String::from_utf8_lossy(&line?).trim().to_owned();
        match line.strip_prefix(REPORT) {
            Some(json) => report = Some(serde_json::from_str(json).context("reading the report")?),
            None => said.push(line),
        }
    }
    child.wait()?;
    report.with_context(|| format!("the machine reports nothing; it said: {}", said.join(" / ")))
}

/// In the machine: lets the clock jump under a node for so long, and prints a report.
///
/// # Errors
/// If this is no machine of ours: its clock is not touched then.
pub fn jump_in_guest(seed: u64, length: Duration) -> anyhow::Result<()> {
    let line = fs::read_to_string("/proc/cmdline").context("reading the kernel's command line")?;
    ensure!(
        line.split_whitespace().any(|word| word == PERMISSION),
        "this moves the clock of the whole machine, and is only for those that soak has made"
    );
    let scenario = Scenario {
        name: "clock-jumps-here",
        what: "the clock of this machine jumps",
        asked: true,
        run: under_jumps,
    };
    let base = Base::new(&[])?;
    let scale = Scale {
        length,
        mounts: None,
    };
    let finding = Bench::run(&scenario, &base, seed, scale)?;
    let report = Report {
        tally: finding.tally,
        harms: finding.harms,
        fault: finding.fault.map(|fault| format!("{fault:#}")),
    };
    println!("{REPORT}{}", serde_json::to_string(&report)?);
    Ok(())
}

fn under_jumps(bench: &mut Bench<'_>) -> anyhow::Result<()> {
    let mut service = Service::start(&bench.lab)?;
    let mountpoint = node::mount(&bench.lab, "mnt", IMAGE, Reads::FromWorker)?;
    bench.truth().compare(&mountpoint)?;
    let readers = bench.read(&mountpoint, Mix::ALL)?;
    // How long it takes says how fast this machine is.
    let longest = SLOWER * use_it(bench)? + crate::commands::PATIENCE;
    bench.at_random(Duration::from_millis(500), |bench| {
        jump(JUMPS[bench.rng.index(JUMPS.len())])?;
        let took = use_it(bench)?;
        ensure!(took < longest, "after a jump it took {took:?}");
        Ok(())
    })?;
    let tally = readers.stop()?;
    bench.take(&tally, &[])?;
    bench.truth().compare(&mountpoint)?;
    bench.lab.umount(&mountpoint)?;
    service.stop(&bench.lab)
}

/// Moves the clock, unless it would leave the years in which clocks are.
fn jump(seconds: i64) -> anyhow::Result<()> {
    let clock = ClockId::CLOCK_REALTIME;
    let now = clock_gettime(clock)?.tv_sec();
    let there = now + seconds;
    let to = if CLOCKS.contains(&there) {
        there
    } else {
        now - seconds
    };
    clock_settime(clock, TimeSpec::new(to, 0)).context("setting the clock")
}

/// Does what looks at the clock: the node answers, a boot is recorded, mounted and read. Returns
/// how long it took.
fn use_it(bench: &mut Bench<'_>) -> anyhow::Result<Duration> {
    let started = Instant::now();
    done(&mut bench.lab.yolofs(&["node", "status"])?)?;
    let mut record = bench.lab.program("bootimg")?;
    record.args(["record", "--no-chroot", "--name", "jumped"]);
    record.arg(bench.lab.source());
    record.args(["--", "sh", "-c", "cat $YOLOFS_MNT/cold/d0/* >/dev/null"]);
    done(&mut record)?;
    let mountpoint = node::mount(&bench.lab, "jumped", "jumped", Reads::FromPageCache)?;
    bench.truth().compare(&mountpoint)?;
    bench.lab.umount(&mountpoint)?;
    done(bench.lab.program("bootimg")?.arg("gc"))?;
    Ok(started.elapsed())
}
