//! Harm to the source and to who serves it, at once.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use nix::errno::Errno;
use nix::fcntl::{PosixFadviseAdvice, posix_fadvise};

use crate::commands::{done, until};
use crate::names::IMAGE;
use crate::node::{Reads, Service, await_another, mount, one, send};
use crate::processes::Role;
use crate::tally::Outcome;
use crate::{Bench, Rng, Tally};

const FILES: usize = 32;
const PAGE: usize = 4096;
/// Pages of a file in its first version, and how many of them are in the boot image, with a gap in the
/// middle, so that one request needs the boot image and the source.
const PAGES: usize = 160;
const RECORDED: usize = 128;
const GAP: usize = RECORDED / 2;
/// How many read while harm is done.
const READERS: usize = 3;
/// The longest time between two harms.
const PAUSE: Duration = Duration::from_millis(60);

/// Files whose pages tell what they are: of which file and version, and which of its pages.
struct Files {
    source: PathBuf,
    mountpoint: PathBuf,
    /// The last version of each, which may not be there yet.
    versions: Vec<AtomicU64>,
}

fn page(file: usize, version: u64, number: usize) -> Vec<u8> {
    let seed = ((file as u64) << 48) | (version << 20) | number as u64;
    let mut page = version.to_le_bytes().to_vec();
    page.extend(Rng::new(seed).bytes(PAGE - page.len()));
    page
}

/// Versions differ in length, too.
fn content(file: usize, version: u64) -> Vec<u8> {
    let pages = PAGES + usize::try_from(version % 3).unwrap_or(0);
    (0..pages).flat_map(|at| page(file, version, at)).collect()
}

fn name(file: usize) -> String {
    format!("f{file:02}")
}

impl Files {
    fn in_source(&self, file: usize) -> PathBuf {
        self.source.join(name(file))
    }

    fn open(&self, file: usize) -> io::Result<File> {
        File::open(self.mountpoint.join(name(file)))
    }

    /// Puts the next version of a file in the place of the last one, whole.
    fn change(&self, file: usize) -> anyhow::Result<()> {
        let version = self.versions[file].fetch_add(1, SeqCst) + 1;
        let aside = self.source.join(".new");
        fs::write(&aside, content(file, version))?;
        fs::rename(&aside, self.in_source(file)).context("changing a file")
    }

    /// Has a change noticed by a read that only the source can answer, and looks whether all of the file
    /// is of its last version from then on, without the kernel being made to forget any of it from
    /// here: an old page that stays there is found.
    fn settle(&self, file: usize) -> anyhow::Result<()> {
        let version = self.versions[file].load(SeqCst);
        let (last, whole) = (page(file, version, PAGES - 1), content(file, version));
        let at = u64::try_from((PAGES - 1) * PAGE)?;
        until("a change to be noticed", || {
            let (open, mut read) = (self.open(file)?, vec![0; PAGE]);
            forget(&open, (RECORDED..PAGES).into())?;
            let read_it = open.read_exact_at(&mut read, at);
            Ok(read_it.is_ok() && read == last)
        })?;
        until("the old version to be gone", || {
            Ok(fs::read(self.mountpoint.join(name(file))).is_ok_and(|read| read == whole))
        })
        .with_context(|| format!("{} in version {version}", name(file)))
    }

    /// Reads some pages of a file, each of which must be whole, and of a version that it has had.
    fn read_one(&self, rng: &mut Rng) -> Outcome {
        let file = rng.index(FILES);
        let open = self.open(file)?;
        if rng.once_in(2) {
            forget(&open, (0..PAGES).into())?;
        }
        // Often where the boot image has a gap.
        let first = match rng.once_in(2) {
            true => GAP - rng.index(8),
            false => rng.index(PAGES),
        };
        let mut read = vec![0; PAGE * (1 + rng.index(16))];
        let len = open.read_at(&mut read, (first * PAGE) as u64)?;
        let last = self.versions[file].load(SeqCst);
        let pages = read[..len].chunks(PAGE).zip(first..);
        let wrong = pages.into_iter().find_map(|(read, number)| {
            let (version, _) = read.split_first_chunk()?;
            let version = u64::from_le_bytes(*version);
            let right = version <= last && page(file, version, number) == read;
            (!right).then(|| format!("{}: page {number} is of no version", name(file)))
        });
        Ok(wrong)
    }
}

/// Pages of a file.
struct Pages(std::ops::Range<usize>);

impl From<std::ops::Range<usize>> for Pages {
    fn from(pages: std::ops::Range<usize>) -> Self {
        Self(pages)
    }
}

/// Drops clean pages from the page cache.
fn forget(file: &File, Pages(pages): Pages) -> io::Result<()> {
    let bytes = |pages: usize| i64::try_from(pages * PAGE).map_err(io::Error::other);
    let (at, len) = (bytes(pages.start)?, bytes(pages.len())?);
    posix_fadvise(file, at, len, PosixFadviseAdvice::POSIX_FADV_DONTNEED)?;
    Ok(())
}

/// Those who read while harm is done.
struct Readers {
    over: Arc<AtomicBool>,
    threads: Vec<JoinHandle<Tally>>,
}

impl Readers {
    fn start(files: &Arc<Files>, rng: &mut Rng) -> Self {
        let over = Arc::new(AtomicBool::new(false));
        let reader = |_| {
            let (files, over, mut rng) = (Arc::clone(files), Arc::clone(&over), rng.fork());
            std::thread::spawn(move || {
                let mut tally = Tally::default();
                while !over.load(SeqCst) {
                    let began = Instant::now();
                    let read = files.read_one(&mut rng);
                    tally.note(began.elapsed(), &read);
                }
                tally
            })
        };
        let threads = (0..READERS).map(reader).collect();
        Self { over, threads }
    }

    fn stop(self) -> anyhow::Result<Tally> {
        self.over.store(true, SeqCst);
        let mut tally = Tally::default();
        for thread in self.threads {
            let read = thread.join();
            tally.add(&read.map_err(|_| anyhow::anyhow!("a reader panicked"))?);
        }
        Ok(tally)
    }
}

/// Makes files, and records a boot that reads a part of each.
fn make(bench: &mut Bench<'_>) -> anyhow::Result<Files> {
    let (source, store) = (
        bench.lab.make_dir("changing")?,
        bench.lab.make_dir("store")?,
    );
    for file in 0..FILES {
        fs::write(source.join(name(file)), content(file, 0))?;
    }
    bench.lab.set_store(store);
    bench.lab.set_source(source.clone());
    let dd = "dd if=$f of=/dev/null bs=4096";
    let boot = format!(
        "for f in $YOLOFS_MNT/f*; do {dd} count={GAP}; {dd} skip={} count={}; done 2>&1",
        GAP + 2,
        RECORDED - GAP - 2
    );
    let mut record = bench.lab.program("bootimg")?;
    record.args(["record", "--no-chroot", "--name", IMAGE]);
    done(record.arg(&source).args(["--", "sh", "-c", &boot]))?;
    Ok(Files {
        source,
        mountpoint: bench.lab.path("mnt"),
        versions: (0..FILES).map(|_| AtomicU64::new(0)).collect(),
    })
}

/// Has all of the boot image brought into the page cache, as far as it is not there, in the background.
fn prewarm(bench: &Bench<'_>) -> anyhow::Result<Child> {
    let mut prewarm = bench.lab.program("bootimg")?;
    let prewarm = prewarm.args(["prewarm", "--all"]).stdout(Stdio::null());
    let prewarm = prewarm.stderr(Stdio::null()).spawn();
    prewarm.context("starting a prewarm")
}

/// One harm: a file changes, or the worker is killed, or both, in the middle of a prewarm.
fn harm(bench: &mut Bench<'_>, files: &Files) -> anyhow::Result<()> {
    let file = bench.rng.index(FILES);
    let (changes, killed, prewarmed) = match bench.rng.below(6) {
        0 | 1 => (true, false, false),
        2 => (false, true, false),
        3 => (true, true, false),
        _ => (true, true, true),
    };
    let mut warming = None;
    if prewarmed {
        for other in 0..FILES {
            forget(&files.open(other)?, (0..PAGES).into())?;
        }
        warming = Some(prewarm(bench)?);
        std::thread::sleep(Duration::from_micros(bench.rng.below(60_000)));
    }
    let dead = if killed {
        let worker = one(&bench.lab, Role::Worker)?;
        send(&worker, nix::sys::signal::Signal::SIGKILL)?;
        Some(worker)
    } else {
        None
    };
    if changes {
        files.change(file)?;
    }
    if let Some(dead) = dead {
        await_another(&bench.lab, &dead)?;
    }
    if let Some(mut warming) = warming {
        warming.wait()?;
    }
    // Else it changes once more before anybody has noticed, or is noticed by who reads it.
    if changes && bench.rng.once_in(2) {
        files.settle(file)?;
    }
    Ok(())
}

/// Files change while who serves them is killed over bringing their old versions into the page cache.
pub(super) fn under_killed_workers(bench: &mut Bench<'_>) -> anyhow::Result<()> {
    let files = Arc::new(make(bench)?);
    let mut service = Service::start(&bench.lab)?;
    mount(&bench.lab, "mnt", IMAGE, Reads::FromPageCache)?;
    let readers = Readers::start(&files, &mut bench.rng);
    bench.at_random(PAUSE, |bench| harm(bench, &files))?;
    for file in 0..FILES {
        files.settle(file)?;
    }
    let tally = readers.stop()?;
    // A file that was replaced by a shorter one is none, for a moment.
    bench.take(&tally, &[Errno::ESTALE as i32])?;
    ensure!(tally.right > 0, "nobody has read anything");
    bench.lab.umount(&files.mountpoint)?;
    service.stop(&bench.lab)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_tells_what_it_is() {
        let all = content(3, 7);
        assert_eq!(all.len(), (PAGES + 1) * PAGE);
        assert_eq!(all[5 * PAGE..6 * PAGE], page(3, 7, 5));
        assert_ne!(page(3, 7, 5), page(3, 8, 5));
        assert_ne!(page(3, 7, 5)[8..], page(4, 7, 5)[8..]);
    }
}
