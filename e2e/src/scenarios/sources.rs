//! Harm to the source.

use std::fs;
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use nix::errno::Errno;
use nix::fcntl::{PosixFadviseAdvice, posix_fadvise};

use crate::faulty::FaultySource;
use crate::workload::{Mix, Workload};
use crate::{Bench, Truth};

/// A mount over a faulty source.
struct Stack {
    source: FaultySource,
    below: PathBuf,
    mountpoint: PathBuf,
}

impl Stack {
    fn new(bench: &mut Bench<'_>) -> anyhow::Result<Self> {
        let below = bench.lab.make_dir("faulty")?;
        let source = FaultySource::mount(&bench.base().source(), &below)?;
        bench.lab.set_source(below.clone());
        let mountpoint = bench.lab.mount_from("mnt", "none", &[])?;
        Ok(Self {
            source,
            below,
            mountpoint,
        })
    }

    fn read(&self, bench: &mut Bench<'_>, mix: Mix) -> anyhow::Result<Workload> {
        let (truth, pristine) = (bench.truth(), bench.base().source());
        let below = Some(self.below.as_path());
        Workload::start_over(
            &self.mountpoint,
            below,
            &truth,
            &pristine,
            mix,
            &mut bench.rng,
        )
    }

    fn end(self, bench: &Bench<'_>) -> anyhow::Result<()> {
        bench.lab.umount(&self.mountpoint)?;
        self.source.unmount()
    }
}

/// Reads of the source fail now and then.
pub(super) fn fails(bench: &mut Bench<'_>) -> anyhow::Result<()> {
    let stack = Stack::new(bench)?;
    let faults = stack.source.faults();
    let readers = stack.read(bench, Mix::PLAIN)?;
    bench.at_random(Duration::from_millis(50), |bench| {
        faults.failing.store(1 + bench.rng.below(8), Relaxed);
        Ok(())
    })?;
    faults.failing.store(0, Relaxed);
    let tally = readers.stop()?;
    bench.take(&tally, &[Errno::EIO as i32])?;
    ensure!(
        faults.failed.load(Relaxed) > 0,
        "no read of the source failed"
    );
    // What failed is not remembered.
    bench
        .truth()
        .compare(&stack.mountpoint)
        .context("after the source has healed")?;
    stack.end(bench)
}

/// Reads of the source take long now and then.
pub(super) fn slow(bench: &mut Bench<'_>) -> anyhow::Result<()> {
    let stack = Stack::new(bench)?;
    let faults = stack.source.faults();
    faults.slow.store(20, Relaxed);
    let readers = stack.read(bench, Mix::ALL)?;
    std::thread::sleep(bench.length);
    let tally = readers.stop()?;
    bench.take(&tally, &[])?;
    bench.harmed(faults.delayed.swap(0, Relaxed));
    faults.slow.store(0, Relaxed);
    bench.truth().compare(&stack.mountpoint)?;
    stack.end(bench)
}

/// Files of the source change under the mount.
pub(super) fn changes(bench: &mut Bench<'_>) -> anyhow::Result<()> {
    let source = bench.lab.make_dir("changing")?;
    let mut old = Vec::new();
    for index in 0..24_u64 {
        let bytes = bench.rng.bytes(20_000 + usize::try_from(index * 9_000)?);
        fs::write(source.join(format!("f{index:02}")), &bytes)?;
        old.push(bytes);
    }
    bench.lab.set_source(source.clone());
    let mountpoint = bench.lab.mount_from("mnt", "none", &[])?;
    let mut untouched: Vec<usize> = (0..old.len()).collect();
    let changed = |bench: &mut Bench<'_>| {
        let Some(place) = untouched
            .len()
            .checked_sub(1)
            .map(|last| bench.rng.index(last + 1))
        else {
            return Ok(());
        };
        let index = untouched.swap_remove(place);
        let name = format!("f{index:02}");
        let path = source.join(&name);
        let new = match bench.rng.below(3) {
            // Replaced by another file of the same length, cut short, or longer.
            0 => bench.rng.bytes(old[index].len()),
            1 => old[index][..old[index].len() / 3].to_vec(),
            _ => bench.rng.bytes(old[index].len() + 5000),
        };
        let aside = source.join(".new");
        fs::write(&aside, &new)?;
        fs::rename(&aside, &path)?;
        // The kernel may have pages and a length from before: what must not be is a mixture.
        read_one_version(&mountpoint.join(&name), &old[index], &new)
    };
    bench.at_random(Duration::from_millis(20), changed)?;
    // The rest is as it was.
    let fresh = Truth::of(&source)?;
    let mut reads = crate::Tally::default();
    for index in untouched {
        let name = PathBuf::from(format!("f{index:02}"));
        let there = fs::read(mountpoint.join(&name))?;
        ensure!(there == old[index], "{} changed by itself", name.display());
        reads.note(Duration::ZERO, &Ok(None));
    }
    drop(Arc::new(fresh));
    reads.note(Duration::ZERO, &Ok(None));
    bench.take(&reads, &[])?;
    bench.lab.umount(&mountpoint)
}

/// Reads a file until it is all of one version. The version may change between two reads, and the
/// kernel says so (`ESTALE`) or shows another length; but each single read is of one of them.
fn read_one_version(path: &std::path::Path, old: &[u8], new: &[u8]) -> anyhow::Result<()> {
    let file = fs::File::open(path)?;
    posix_fadvise(&file, 0, 0, PosixFadviseAdvice::POSIX_FADV_DONTNEED)?;
    let step = 4096;
    for offset in (0..old.len().max(new.len())).step_by(step) {
        let mut page = vec![0; step];
        let read = match file.read_at(&mut page, offset as u64) {
            Ok(read) => read,
            Err(error) if error.raw_os_error() == Some(Errno::ESTALE as i32) => continue,
            Err(error) => return Err(error).context("reading a file that changed"),
        };
        let of = |version: &[u8]| {
            let from = offset.min(version.len());
            version[from..].starts_with(&page[..read])
        };
        let zeros = page[..read]
            .iter()
            .rev()
            .take_while(|byte| **byte == 0)
            .count();
        ensure!(
            of(old) || of(new),
            "{}: {read} bytes at {offset} are of no version, the last {zeros} are zeros \
             ({} bytes before, {} now)",
            path.display(),
            old.len(),
            new.len()
        );
    }
    Ok(())
}
