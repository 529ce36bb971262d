//! Power cuts, in a virtual machine with memory that keeps its content: an NVDIMM, where `MAP_SYNC`
//! works, and virtio-pmem, where it is refused. Both carry ext4 with DAX, and a store; the first is a
//! tier of the second.

mod guest;

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use serde_json::Value;

use crate::lab::done;
use crate::machine::{self, Cache, Nvm, NvmKind};
use crate::{Bench, Tally};
use guest::{Kept, Said};

/// From one line of a machine to the next, where all else is busy too.
const PATIENCE: Duration = Duration::from_secs(300);

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

/// What is seldom more than this is told of a machine that fails.
const LAST_WORDS: usize = 12;

/// Cuts the power while stores are written, and looks at what is there when it is back.
pub(super) fn cuts(bench: &mut Bench<'_>) -> anyhow::Result<()> {
    let machine = Machine::make(bench)?;
    let mut kept = Kept::default();
    let end = Instant::now() + bench.length;
    for number in 1.. {
        machine.run(bench, number, |boot, bench| {
            boot.look(bench, &mut kept)?;
            let begun = BEGUN + bench.rng.below(MORE);
            let micros = u64::try_from(CUT_WITHIN.as_micros())?;
            let then = Duration::from_micros(bench.rng.below(micros));
            boot.write(begun, then, &mut kept)
        })?;
        bench.harmed(1);
        if Instant::now() >= end {
            machine.run(bench, number + 1, |boot, bench| boot.look(bench, &mut kept))?;
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
        machine::take_modules(&guest::MODULES, &root)?;
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
        let child = qemu
            .env("YOLOFS_RUN_DIR", bench.lab.run_dir())
            // What it writes to its disk goes there.
            .env("TMPDIR", bench.lab.run_dir())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .process_group(0)
            .spawn()
            .context("starting QEMU (apt-get install qemu-system-x86)")?;
        let mut boot = Boot::listen(child)?;
        let result = work(&mut boot, bench);
        boot.cut()?;
        let last = || boot.heard.join(" / ");
        result.with_context(|| format!("boot {number} of the machine; it said: {}", last()))
    }
}

/// The machine while it is on.
struct Boot {
    child: Child,
    lines: Receiver<String>,
    listener: Option<JoinHandle<()>>,
    /// What it said last.
    heard: Vec<String>,
}

impl Boot {
    fn listen(mut child: Child) -> anyhow::Result<Self> {
        let out = child.stdout.take().context("listening to a machine")?;
        let (say, lines) = channel();
        let listener = std::thread::spawn(move || tell_lines(out, |line| say.send(line).is_ok()));
        Ok(Self {
            child,
            lines,
            listener: Some(listener),
            heard: Vec::new(),
        })
    }

    /// Returns the next line, or `None` if there is none for so long.
    fn next(&mut self, patience: Duration) -> anyhow::Result<Option<Said>> {
        match self.lines.recv_timeout(patience) {
            Ok(line) => {
                let said = Said::of(&line);
                self.heard.push(line);
                if self.heard.len() > LAST_WORDS {
                    self.heard.remove(0);
                }
                Ok(Some(said))
            }
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => bail!("the machine went off by itself"),
        }
    }

    /// Returns the next line, which must come.
    fn must_say(&mut self) -> anyhow::Result<Said> {
        let said = self.next(PATIENCE)?;
        said.context("the machine says nothing more")
    }

    /// Has the machine look at what there is: it must have all that was kept, and serve what the
    /// source has.
    fn look(&mut self, bench: &mut Bench<'_>, kept: &mut Kept) -> anyhow::Result<()> {
        let truth = bench.truth().digests();
        let (mut found, mut tally) = (Kept::default(), Tally::default());
        let mut sums = 0;
        let (mut probed, mut served) = (None, None);
        loop {
            match self.must_say()? {
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
    fn write(&mut self, begun: u64, then: Duration, kept: &mut Kept) -> anyhow::Result<()> {
        let mut left = begun;
        while left > 0 {
            match self.must_say()? {
                Said::Writes => left -= 1,
                Said::Kept(store, name) => kept.add(store, name),
                _ => {}
            }
        }
        let end = Instant::now() + then;
        loop {
            let wait = end.saturating_duration_since(Instant::now());
            match self.next(wait)? {
                Some(Said::Kept(store, name)) => kept.add(store, name),
                Some(_) => {}
                None => return Ok(()),
            }
        }
    }

    /// Cuts its power.
    fn cut(&mut self) -> anyhow::Result<()> {
        self.child.kill().context("cutting the power")?;
        self.child.wait().context("waiting for a machine's end")?;
        match self.listener.take().map(JoinHandle::join) {
            Some(Err(_)) => bail!("who listens to a machine panicked"),
            _ => Ok(()),
        }
    }
}

impl Drop for Boot {
    fn drop(&mut self) {
        // Nothing is left to end after a cut.
        if self.listener.is_some()
            && let Err(error) = self.cut()
        {
            eprintln!("ending a machine: {error:#}");
        }
    }
}

/// Hands on what a machine says, line by line, until it falls silent or nobody listens. The last
/// line of one that was cut off is not whole, and is no line.
fn tell_lines(out: ChildStdout, mut tell: impl FnMut(String) -> bool) {
    let mut out = BufReader::new(out);
    let mut line = Vec::new();
    while out.read_until(b'\n', &mut line).is_ok() && line.ends_with(b"\n") {
        if !tell(String::from_utf8_lossy(&line).trim().to_owned()) {
            return;
        }
        line.clear();
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
