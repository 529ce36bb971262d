//! Whole copies on NVM that is mapped directly, in a virtual machine: a cut of the power, bytes
//! that the medium changes, a poisoned page, and an NVDIMM that is taken out.

mod guest;

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use serde_json::Value;
use sha2::{Digest as _, Sha256};

use crate::commands::soak;
use crate::looker::{SHOWN, shown};
use crate::machine::{self, Boot, Cache, Nvm, NvmKind};
use crate::{Bench, Tally};
use guest::{ask, ask_json, ask_line};

/// Memory of the machine, in MiB.
const MEMORY_MIB: u32 = 512;

/// Each of both memories, in MiB: a store, and twice each copy.
const NVM_MIB: u64 = 64;

/// Room on the disk, in MiB.
const ROOM_MIB: u32 = 16;

/// Bytes of each file: some huge pages, by which DAX maps.
const FILE: usize = 5 << 20;

const PAGE: usize = 4096;

/// Where the medium is changed, and what it has there then.
const CHANGED: usize = 3 * PAGE;
const OTHER: [u8; SHOWN] = *b"changed!";

/// What the kernel gives who reads a page that is lost.
const EIO: &str = "errno-5";

/// How a shell tells of a process that SIGBUS has ended.
const SIGBUS: &str = "135";

/// What each file is, and where its copy goes.
const PLACES: [(&str, &str); 2] = [("one", "nvm"), ("two", "pmem")];

/// Loses NVM under whole copies, and looks at what readers see.
pub(super) fn lost(bench: &mut Bench<'_>) -> anyhow::Result<()> {
    let machine = Machine::make(bench)?;
    machine.run(bench, Kernel::WithoutPassthrough, |machine, boot| {
        machine.bring(boot, FILE)?;
        machine.read_by_us(boot)
    })?;
    bench.harmed(1); // the power was cut
    machine.run(bench, Kernel::WithPassthrough, |machine, boot| {
        machine.bring(boot, 0)?;
        machine.reach_dax(boot)?;
        machine.poison(boot)?;
        machine.mend(boot)?;
        machine.take_out(boot)
    })?;
    bench.harmed(4);
    // All was compared where it was read.
    let mut tally = Tally::default();
    tally.note(Duration::ZERO, &Ok(None));
    bench.take(&tally, &[])
}

/// What the machine boots.
#[derive(Clone, Copy, Debug)]
enum Kernel {
    /// Linux 6.1: who reads is served by us, from the copy.
    WithoutPassthrough,
    /// Linux 6.12: the kernel reads the copy.
    WithPassthrough,
}

/// The machine, which is off.
struct Machine {
    dir: PathBuf,
    nvms: [Nvm; 2],
    files: [Vec<u8>; 2],
}

impl Machine {
    fn make(bench: &mut Bench<'_>) -> anyhow::Result<Self> {
        let dir = bench.lab.make_dir("machine")?;
        let root = bench.lab.make_dir("root")?;
        machine::furnish(&root, &[soak()?])?;
        machine::take_kernel(&dir)?;
        machine::take_modules(&machine::NVM_MODULES, &root)?;
        let passing = root.join("passing");
        machine::take_passing_kernel(&dir.join("passing"), &passing)?;
        fs::write(root.join("tiers.toml"), guest::TIERS).context("naming the tiers")?;
        let files = [bench.rng.bytes(FILE), bench.rng.bytes(FILE)];
        fs::create_dir_all(root.join("source"))?;
        for ((name, _), bytes) in PLACES.iter().zip(&files) {
            fs::write(root.join("source").join(name), bytes).context("making the source")?;
        }
        let disk = dir.join(machine::DISK);
        machine::make_disk(&root, guest::INIT, ROOM_MIB, &disk)?;
        // Nobody writes to it.
        fs::hard_link(&disk, dir.join("passing").join(machine::DISK))?;
        let nvms = [
            Nvm::make(&dir.join("nvdimm"), NvmKind::Nvdimm, NVM_MIB)?,
            Nvm::make(&dir.join("pmem"), NvmKind::VirtioPmem, NVM_MIB)?,
        ];
        Ok(Self { dir, nvms, files })
    }

    /// Turns it on, does something, and cuts its power.
    fn run(
        &self,
        bench: &Bench<'_>,
        kernel: Kernel,
        work: impl FnOnce(&Self, &mut Boot) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let (dir, modules) = match kernel {
            Kernel::WithoutPassthrough => (self.dir.clone(), "MODULES=/modules"),
            Kernel::WithPassthrough => (self.dir.join("passing"), "MODULES=/passing/modules"),
        };
        let mut qemu = machine::qemu(&dir, Cache::Writeback, MEMORY_MIB, modules);
        machine::with_slots(&mut qemu);
        for nvm in &self.nvms {
            nvm.plug_into(&mut qemu);
        }
        let mut boot = Boot::start(&mut qemu, &bench.lab.run_dir())?;
        let result = guest::ready(&mut boot).and_then(|()| work(self, &mut boot));
        boot.cut()?;
        result.with_context(|| {
            let last = boot.last_words();
            format!("the machine {kernel:?}; it said: {last}")
        })
    }

    /// Has each file copied to its tier, which has to write so much of it, and mounts them.
    fn bring(&self, boot: &mut Boot, written: usize) -> anyhow::Result<()> {
        for (name, tier) in PLACES {
            let done = ask_json(boot, &promote(name, tier))?;
            ensure!(
                done["written_bytes"] == written,
                "{written} bytes of a copy were missing, but: {done}"
            );
        }
        ask(
            boot,
            "yolofs mount --standalone --mode disk --boot none /source /mnt",
        )?;
        Ok(())
    }

    /// Reads through a kernel that does not pass files through: we do, from the copies, as what only
    /// the medium has tells.
    fn read_by_us(&self, boot: &mut Boot) -> anyhow::Result<()> {
        for (((name, _), bytes), nvm) in PLACES.iter().zip(&self.files).zip(&self.nvms) {
            let mut changed = bytes.clone();
            changed[CHANGED..CHANGED + SHOWN].copy_from_slice(&OTHER);
            let place = nvm.find(&bytes[CHANGED..CHANGED + PAGE])?;
            nvm.write(place, &OTHER)?;
            self.check_sum(boot, name, &changed)?;
            nvm.write(place, &bytes[CHANGED..CHANGED + SHOWN])?;
        }
        let served = served(boot)?;
        ensure!(
            served["requests"]["read"].as_u64() > Some(0) && served["copy_opens"] == 0,
            "the kernel has read the copies: {served}"
        );
        Ok(())
    }

    fn check_sum(&self, boot: &mut Boot, name: &str, bytes: &[u8]) -> anyhow::Result<()> {
        let said = ask_line(boot, &format!("sha256sum </mnt/{name}"))?;
        ensure!(
            said.starts_with(&sum(bytes)),
            "{name} is wrong: its checksum is {said}"
        );
        Ok(())
    }

    /// Has who looks read and map all of a file: both must be right, and leave nothing of it in the
    /// page cache.
    fn check_all(&self, boot: &mut Boot, looker: usize, file: usize) -> anyhow::Result<()> {
        let right = sum(&self.files[file - 1]);
        let seen = ask_line(boot, &format!("asked {looker} all"))?;
        ensure!(
            seen == format!("{right} {right} 0"),
            "file {file} is read, mapped, and in the page cache as: {seen}; right is {right}"
        );
        Ok(())
    }

    /// Reads and maps both files, on a kernel that passes them through: all is right, nobody of
    /// ours is asked, nothing of it is in the page cache, and what the medium has is what is seen.
    fn reach_dax(&self, boot: &mut Boot) -> anyhow::Result<()> {
        for (number, (name, tier)) in (1..).zip(PLACES) {
            ask(boot, &format!("look {number} /mnt/{name}"))?;
            self.check_all(boot, number, number)?;
            // And the copy itself, without us: that its pages are asked for kills no kernel.
            let copy = format!("$(find /{tier}/tier -type f -size +1000k)");
            ask(boot, &format!("look 3 {copy}"))?;
            self.check_all(boot, 3, number)?;
            ask(boot, "looked 3")?;
            self.change_medium(boot, number)?;
        }
        let served = served(boot)?;
        ensure!(
            served["requests"]["read"] == 0
                && (&served["copy_opens"], &served["copies_failed"]) == (&2.into(), &0.into()),
            "they were not passed through to their copies: {served}"
        );
        Ok(())
    }

    /// Changes bytes of a copy where QEMU keeps the memory, under an open file and its mapping:
    /// both see it at once, for there is nothing in between.
    fn change_medium(&self, boot: &mut Boot, number: usize) -> anyhow::Result<()> {
        let (nvm, bytes) = (&self.nvms[number - 1], &self.files[number - 1]);
        let place = nvm.find(&bytes[CHANGED..CHANGED + PAGE])?;
        for seen in [&OTHER[..], &bytes[CHANGED..CHANGED + SHOWN]] {
            nvm.write(place, seen)?;
            let said = ask_line(boot, &format!("asked {number} {CHANGED}"))?;
            let shown = shown(seen);
            ensure!(
                said == format!("{shown} {shown}"),
                "the medium has {shown}, but read and mapped is {said}"
            );
        }
        Ok(())
    }

    /// Poisons a page of the first copy, as the kernel notes it: who reads it or maps it anew is told,
    /// who has mapped it sees what is there, and nobody else feels it.
    fn poison(&self, boot: &mut Boot) -> anyhow::Result<()> {
        let bytes = &self.files[0];
        let at = 700 * PAGE;
        let sector = self.nvms[0].find(&bytes[at..at + PAGE])? / 512;
        let list = "/sys/block/$nvdimm/badblocks";
        ask(boot, &format!("echo {sector} 8 >{list}"))?;
        let there = shown(&bytes[at..at + SHOWN]);
        let said = ask_line(boot, &format!("asked 1 {at}"))?;
        ensure!(said == format!("{EIO} {there}"), "who has it open: {said}");
        let beside = at + PAGE;
        let right = shown(&bytes[beside..beside + SHOWN]);
        ask(boot, "look 3 /mnt/one")?;
        let said = ask_line(boot, &format!("asked 3 {beside}"))?;
        ensure!(said == format!("{right} {right}"), "beside it: {said}");
        let said = ask_line(boot, &format!("asked 3 {at}"))?;
        ensure!(said.is_empty(), "a page that is lost was mapped: {said}");
        let code = ask_line(boot, "looked 3")?;
        ensure!(code == SIGBUS, "who maps it ended with {code}");
        Ok(())
    }

    /// Has the copy with the poisoned page made anew.
    fn mend(&self, boot: &mut Boot) -> anyhow::Result<()> {
        // Who has it open keeps the copy that is lost; the next one has the new one.
        let done = ask_json(boot, &promote("one", "nvm"))?;
        ensure!(
            done["written_bytes"] == FILE,
            "it was not made anew: {done}"
        );
        ask(boot, "looked 1")?;
        self.until_closed(boot)?;
        ask(boot, "look 1 /mnt/one")?;
        self.check_all(boot, 1, 1)
    }

    /// Takes the NVDIMM out, as far as the kernel can tell: who has its copy open gets errors, and
    /// the next one reads the source. The other memory goes on.
    fn take_out(&self, boot: &mut Boot) -> anyhow::Result<()> {
        ask(boot, "look 3 /mnt/one")?;
        let driver = "/sys/bus/nd/drivers/nd_pmem";
        let device = "$(basename $(readlink -f /sys/block/$nvdimm/device))";
        ask(boot, &format!("echo {device} >{driver}/unbind"))?;
        let said = ask_line(boot, "asked 1 'read 0'")?;
        ensure!(said == EIO, "of a memory that is gone was read: {said}");
        // The first has mapped all pages, and the kernel leaves it what is mapped; this one none.
        let said = ask_line(boot, "asked 3 0")?;
        ensure!(said.is_empty(), "a memory that is gone was mapped: {said}");
        let code = ask_line(boot, "looked 3")?;
        ensure!(code == SIGBUS, "who maps it ended with {code}");
        ask(boot, "looked 1")?;
        self.until_closed(boot)?;
        self.check_sum(boot, "one", &self.files[0])?;
        let served = served(boot)?;
        ensure!(
            served["copies_failed"].as_u64() > Some(0),
            "it was not the source that was read: {served}"
        );
        let status = ask(boot, "yolofs tier status --json")?.join("\n");
        let status: Value = serde_json::from_str(&status).context("reading the tiers")?;
        ensure!(
            !status["tiers"][0]["away"].is_null(),
            "the tier is still there: {status}"
        );
        self.check_all(boot, 2, 2)
    }

    /// Waits until the mount has heard that nobody but the second looker has a file open: the
    /// kernel tells it a moment after the last is gone.
    fn until_closed(&self, boot: &mut Boot) -> anyhow::Result<()> {
        crate::commands::until("the mount to hear that a file is closed", || {
            let requests = &served(boot)?["requests"];
            let of = |kind: &str| requests[kind].as_u64().unwrap_or_default();
            Ok(of("open") == of("release") + 1)
        })
    }
}

fn promote(name: &str, tier: &str) -> String {
    format!("yolofs tier promote --json --tier {tier} /source/{name}")
}

fn served(boot: &mut Boot) -> anyhow::Result<Value> {
    Ok(ask_json(boot, "yolofs status --json /mnt")?["served"].clone())
}

fn sum(bytes: &[u8]) -> String {
    format!("{:x}", Sha256::digest(bytes))
}
