//! Power cuts, in a virtual machine with memory that keeps its content: an NVDIMM, where `MAP_SYNC`
//! works, and virtio-pmem, where it is refused. Both carry ext4 with DAX, and a store; the first is a
//! tier of the second.

mod guest;

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use serde_json::Value;

use crate::commands::done;
use crate::machine::{self, Boot, Cache, Nvm, NvmKind};
use crate::{Bench, Tally};
use guest::{Kept, Said};

/// Memory of the machine, in MiB.
const MEMORY_MIB: u32 = 512;

/// Each of both memories, in MiB: some hundred boot images.
const NVM_MIB: u64 = 128;

/// Room on the disk, in MiB: what `bootimg record` takes for scratch.
const ROOM_MIB: u32 = 64;

/// How long after the machine began to write a boot image the power is cut, at most: as long as
/// that takes under emulation.
const CUT_WITHIN: Duration = Duration::from_millis(800);

/// How many boot images are begun before that, at least: so one is kept in each place. And how
/// many more at most.
const BEGUN: u64 = 3;
const MORE: u64 = 4;

/// Cuts the power while stores are written, and looks at what is there when it is back.
pub(super) fn cuts(bench: &mut Bench<'_>) -> anyhow::Result<()> {
    let machine = Machine::make(bench)?;
    let mut kept = Kept::default();
    let end = Instant::now() + bench.length;
    for number in 1.. {
        machine.run(bench, number, |boot, bench| {
            look(boot, bench, &mut kept)?;
            let begun = BEGUN + bench.rng.below(MORE);
            let micros = u64::try_from(CUT_WITHIN.as_micros())?;
            let then = Duration::from_micros(bench.rng.below(micros));
            write(boot, begun, then, &mut kept)
        })?;
        bench.harmed(1);
        if Instant::now() >= end {
            machine.run(bench, number + 1, |boot, bench| {
                look(boot, bench, &mut kept)
            })?;
            break;
        }
    }
    for place in guest::PLACES {
        let count = kept.count(place);
        ensure!(count > 0, "nothing was kept in {place}");
        bench.measured(format!("{count} boot images in {place}"));
    }
    Ok(())
}

/// The machine, which is off.
struct Machine {
    dir: PathBuf,
    nvms: [Nvm; 2],
}

impl Machine {
    /// Makes one with the programs, the source, and a disk image to make boot images of.
    fn make(bench: &mut Bench<'_>) -> anyhow::Result<Self> {
        let dir = bench.lab.make_dir("machine")?;
        machine::take_kernel(&dir)?;
        let root = bench.lab.make_dir("root")?;
        machine::furnish(&root, &[])?;
        machine::take_modules(&machine::NVM_MODULES, &root)?;
        let mut copy = Command::new("cp");
        done(
            copy.arg("-a")
                .arg(bench.lab.source())
                .arg(root.join("tree")),
        )?;
        fs::write(root.join("tiers.toml"), guest::TIERS).context("naming the tiers")?;
        let disk = bench.rng.bytes(guest::DISK_PIECES * guest::PIECE);
        fs::write(root.join("disk.raw"), disk).context("making a disk image")?;
        machine::make_disk(&root, guest::INIT, ROOM_MIB, &dir.join(machine::DISK))?;
        let nvms = [
            Nvm::make(&dir.join("nvdimm"), NvmKind::Nvdimm, NVM_MIB)?,
            Nvm::make(&dir.join("pmem"), NvmKind::VirtioPmem, NVM_MIB)?,
        ];
        Ok(Self { dir, nvms })
    }

    /// Turns it on, does something, and cuts its power. What it does to its disk is lost then, what
    /// it does to the memories that keep their content is not.
    fn run(
        &self,
        bench: &mut Bench<'_>,
        number: u32,
        work: impl FnOnce(&mut Boot, &mut Bench<'_>) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let word = format!("POWER_BOOT={number}");
        let mut qemu = machine::qemu(&self.dir, Cache::Writeback, MEMORY_MIB, &word);
        machine::with_slots(&mut qemu);
        for nvm in &self.nvms {
            nvm.plug_into(&mut qemu);
        }
        let mut boot = Boot::start(&mut qemu, &bench.lab.run_dir())?;
        let result = work(&mut boot, bench);
        boot.cut()?;
        let last = || boot.last_words();
        result.with_context(|| format!("boot {number} of the machine; it said: {}", last()))
    }
}

/// Has the machine look at what there is: it must have all that was kept, and serve what the
/// source has.
fn look(boot: &mut Boot, bench: &mut Bench<'_>, kept: &mut Kept) -> anyhow::Result<()> {
    let truth = bench.truth().digests();
    let (mut found, mut tally) = (Kept::default(), Tally::default());
    let mut sums = 0;
    let (mut probed, mut served) = (None, None);
    loop {
        match Said::of(&boot.must_say()?) {
            Said::Probe(json) => probed = Some(json),
            Said::Has(store, name) => found.add(store, name),
            Said::Kept(store, name) => {
                found.add(store.clone(), name.clone());
                kept.add(store, name);
            }
            Said::Sum(digest, path) => {
                let right = truth.get(&path) == Some(&digest);
                let wrong = (!right).then(|| format!("{path}: its checksum is {digest}"));
                tally.note(Duration::ZERO, &Ok(wrong));
                sums += 1;
            }
            Said::Status(json) => served = Some(json),
            Said::Looked => break,
            Said::Writes | Said::Other(_) => {}
        }
    }
    bench.take(&tally, &[])?;
    ensure!(
        sums == truth.len(),
        "{sums} of {} files were read",
        truth.len()
    );
    check_tiers(&probed.context("it was not probed")?)?;
    check_served(&served.context("nothing was mounted")?)?;
    if let Some((store, name)) = kept.missing_in(&found) {
        bail!("{name} was reported to be kept, and is not in {store}");
    }
    Ok(())
}

/// Has the machine write until so many boot images are begun, and then for a moment more.
fn write(boot: &mut Boot, begun: u64, then: Duration, kept: &mut Kept) -> anyhow::Result<()> {
    let mut left = begun;
    while left > 0 {
        match Said::of(&boot.must_say()?) {
            Said::Writes => left -= 1,
            Said::Kept(store, name) => kept.add(store, name),
            _ => {}
        }
    }
    let end = Instant::now() + then;
    loop {
        let wait = end.saturating_duration_since(Instant::now());
        match boot.next(wait)?.map(|line| Said::of(&line)) {
            Some(Said::Kept(store, name)) => kept.add(store, name),
            Some(_) => {}
            None => return Ok(()),
        }
    }
}

/// Checks that both memories are what they are: NVM that is mapped directly.
fn check_tiers(probed: &Value) -> anyhow::Result<()> {
    for (tier, sync) in [(&probed[0], "map-sync"), (&probed[1], "msync")] {
        let found = ["kind", "map", "sync"].map(|field| tier[field].as_str().unwrap_or_default());
        ensure!(
            found == ["nvm", "direct", sync],
            "it is no NVM with {sync}: {tier}"
        );
    }
    Ok(())
}

/// Checks that a mount served from the copy of its boot image, and found nothing wrong with it.
fn check_served(status: &Value) -> anyhow::Result<()> {
    let status = status.get(0).unwrap_or(status);
    let boot = |field: &str| status["boot"][field].as_u64();
    ensure!(
        boot("injected_pages") > Some(0)
            && (boot("damaged"), boot("stale_files")) == (Some(0), Some(0))
            && (boot("copy_failures"), &status["boot"]["tier"]) == (Some(0), &"nvm".into()),
        "the boot image is not as it was recorded: {status}"
    );
    Ok(())
}
