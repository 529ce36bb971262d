//! `yolofs learn`: makes a boot image of the requests of a mount that had to be read from its
//! source. The node starts it, with its inputs as open descriptors: the node itself reads no
//! boot image and no trace, and a failure of this process costs only the update.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt as _;
use std::sync::Arc;

use anyhow::{Context as _, bail, ensure};
use blocks::{BlockSource, CachedSource, ReplayPlan};
use bootimg::{ImageId, Store, Variant, WriteRequest, decode_names, unite};
use fdstore::{Inherited, Variables};
use localfs::{Patience, SourceRoot};
use serde::{Deserialize, Serialize};
use tracer::{MergeOptions, Trace};

use bootstore::store::{StoreSettings, add_written, watch};
use host::interrupt::Interrupt;
use host::progress;
use mounting::source::Source;
use node_api::boot_choice::BootChoice;

/// The descriptors it is started with, in this order.
pub const DESCRIPTORS: [&str; 4] = ["source", "names", "trace", "account"];

/// The longest trace or list of names that is read, in bytes.
const READ_MAX: u64 = 256 << 20;

/// A boot image larger than this share of its source, in per cent, is no boot's.
const SHARE_MAX: u64 = 50;
/// Unless it is smaller than this, in blocks of 4 KiB: 16 MiB.
const SMALL_BLOCKS: u64 = 4096;

/// The result, for the node.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Lesson {
    /// The new boot image, by its id; absent if there was nothing to learn.
    pub image: Option<String>,
    /// Blocks of 4 KiB in it.
    pub blocks: u64,
    /// Of these, blocks that the boot image before did not have.
    pub new_blocks: u64,
}

/// Makes the boot image from the descriptors that the node passed to this process, and reports to the node.
///
/// # Errors
/// If descriptors are missing, or nothing new was read.
pub fn run(boot: &BootChoice, store: &StoreSettings) -> anyhow::Result<()> {
    let variable = std::env::var_os;
    let variables = Variables {
        pid: variable("LISTEN_PID"),
        count: variable("LISTEN_FDS"),
        names: variable("LISTEN_FDNAMES"),
    };
    let mut handed = Inherited::take(&variables).context("receiving descriptors from the node")?;
    let mut take = |name: &str| -> anyhow::Result<OwnedFd> {
        let descriptor = handed.remove(name).pop();
        descriptor.with_context(|| format!("{name} is missing: only the node starts this command"))
    };
    let [dir, names, trace, account] = DESCRIPTORS.map(&mut take);
    let (tree, label) = decode_names(&read(names?)?).context("reading the names of the mount")?;
    let root = SourceRoot::resume_within(dir?, &label, Patience::default().deadline)
        .context("opening the source")?;
    let source = Source {
        root: Arc::new(root),
        tree: Arc::new(tree),
    };
    let trace = Trace::read(&read(trace?)?).context("reading the accesses of the mount")?;
    let lesson = learn(boot, &store.open()?, &source, &trace)?;
    let account = File::from(account?);
    serde_json::to_writer(account, &lesson).context("telling what was learned")?;
    Ok(())
}

/// Reads a file from its start, whatever its offset is: others share it.
fn read(descriptor: OwnedFd) -> anyhow::Result<Vec<u8>> {
    let file = File::from(descriptor);
    let doing = "reading what the node handed";
    let len = file.metadata().context(doing)?.len();
    ensure!(len <= READ_MAX, "it is longer than {READ_MAX} bytes");
    let mut bytes = vec![0; usize::try_from(len).context(doing)?];
    file.read_exact_at(&mut bytes, 0).context(doing)?;
    Ok(bytes)
}

/// Makes the boot image: what the one before held, and what was missing of it.
fn learn(
    boot: &BootChoice,
    store: &Store,
    source: &Source,
    trace: &Trace,
) -> anyhow::Result<Lesson> {
    let traces = std::slice::from_ref(trace);
    let heard = tracer::merge(traces, &source.tree, &MergeOptions::default())
        .context("translating the accesses of the mount")?
        .plan;
    let reader = source.reader();
    let before = before(boot, store, source)?;
    let Some((name, id)) = before else {
        return keep(store, None, source, &heard, &*reader, heard.block_count());
    };
    let image = store
        .open_image(&id)
        .with_context(|| format!("opening the boot image {}", id.short()))?;
    let attached = Arc::new(Arc::new(image).attach(&source.tree));
    let plan = unite([attached.plan(), &heard]);
    let new_blocks = plan.block_count() - attached.plan().block_count();
    // What is in the store need not come from a busy disk.
    let blocks = CachedSource::new(attached, reader);
    keep(store, name.as_deref(), source, &plan, &blocks, new_blocks)
}

/// Returns the boot image in use, and its name if it has one.
fn before(
    boot: &BootChoice,
    store: &Store,
    source: &Source,
) -> anyhow::Result<Option<(Option<String>, ImageId)>> {
    let id = match boot {
        BootChoice::None => None,
        BootChoice::Auto => store.find_source(source.root.id())?,
        BootChoice::Image(wanted) => Some(store.resolve(wanted)?),
        BootChoice::File(path) => bail!(
            "{} is not in the store, so it cannot be changed: import it (bootimg import)",
            path.display()
        ),
    };
    let named = |id: ImageId| anyhow::Ok((store.names_of(&id)?.into_iter().next(), id));
    id.map(named).transpose()
}

fn keep(
    store: &Store,
    name: Option<&str>,
    source: &Source,
    plan: &ReplayPlan,
    blocks: &dyn BlockSource,
    new_blocks: u64,
) -> anyhow::Result<Lesson> {
    let count = plan.block_count();
    if new_blocks == 0 {
        return Ok(Lesson {
            image: None,
            blocks: count,
            new_blocks,
        });
    }
    let whole = source.bytes().div_ceil(4096);
    ensure!(
        count <= SMALL_BLOCKS.max(whole.saturating_mul(SHARE_MAX) / 100),
        "{count} of the source's {whole} blocks were read, too many for a boot"
    );
    let interrupt = Interrupt::install()?;
    let info = source.info();
    let request = WriteRequest {
        tree: &source.tree,
        info: &info,
        plan,
        blocks,
        variant: Variant::Mapped,
    };
    let bar = progress::bytes("writing the boot image", count.saturating_mul(4096));
    let added = add_written(store, name, &request, &mut watch(&bar, &interrupt));
    bar.finish_and_clear();
    let (added, report) = added.context("keeping the boot image")?;
    Ok(Lesson {
        image: Some(added.id.to_string()),
        blocks: report.blocks,
        new_blocks,
    })
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::*;
    use blocks::{Access, BlockIndex, BlockRange, Caller, Event, Observer as _, Warmth};
    use bootimg::StoreConfig;
    use mounting::source::trace_info;
    use std::time::Duration;
    use tracer::{Limits, Recorder};

    const BLOCKS: u64 = 6000;

    /// A source of one file, and a trace of reads of some of its blocks.
    fn heard(dir: &std::path::Path, ranges: &[(u64, u64)]) -> (Source, Trace) {
        let source = Source::open(dir).unwrap();
        let file = source.tree.resolve(b"file").unwrap();
        let recorder = Recorder::new(Limits::default());
        for (start, len) in ranges {
            let access = Access {
                file,
                offset: start * 4096,
                len: len * 4096,
                warmth: Warmth::Unknown,
            };
            recorder.note(Caller { pid: 1 }, Event::Read(access), Duration::ZERO);
        }
        let info = trace_info(&source.root, SystemTime::now());
        let trace = recorder.finish(info, &source.tree);
        (source, trace)
    }

    fn blocks_of(store: &Store, lesson: &Lesson, source: &Source) -> Vec<BlockRange> {
        let id = store.resolve(lesson.image.as_deref().unwrap()).unwrap();
        let image = Arc::new(store.open_image(&id).unwrap()).attach(&source.tree);
        let mut ranges: Vec<_> = image.plan().extents.iter().map(|e| e.range).collect();
        ranges.sort_unstable_by_key(|range| range.start());
        ranges
    }

    fn run(start: u64, len: u64) -> BlockRange {
        BlockRange::with_len(BlockIndex(start), len)
    }

    #[test]
    fn lessons_add_up_and_end() {
        let dir = tempfile::tempdir().unwrap();
        let content: Vec<u8> = (0..BLOCKS * 4096)
            .map(|at| u8::try_from(at / 4096 % 250 + 1).unwrap())
            .collect();
        std::fs::create_dir(dir.path().join("source")).unwrap();
        std::fs::write(dir.path().join("source/file"), content).unwrap();
        let store = Store::open(dir.path().join("store"), StoreConfig::default()).unwrap();
        let from = |ranges: &[(u64, u64)]| {
            let (source, trace) = heard(&dir.path().join("source"), ranges);
            learn(&BootChoice::Auto, &store, &source, &trace).map(|lesson| (source, lesson))
        };
        let (source, first) = from(&[(0, 10), (50, 5)]).unwrap();
        assert_eq!((first.blocks, first.new_blocks), (15, 15));
        assert_eq!(blocks_of(&store, &first, &source), [run(0, 10), run(50, 5)]);
        let (source, second) = from(&[(5, 10)]).unwrap();
        assert_eq!((second.blocks, second.new_blocks), (20, 5));
        let held: u64 = blocks_of(&store, &second, &source)
            .iter()
            .map(|range| range.len())
            .sum();
        assert_eq!(held, 20);
        let (_, third) = from(&[(0, 3)]).unwrap();
        assert_eq!(third.image, None, "nothing that it did not know");
        // Somebody reads it all: that is no boot.
        let error = from(&[(0, BLOCKS)]).unwrap_err();
        assert!(
            format!("{error:#}").contains("too many for a boot"),
            "{error:#}"
        );
        let kept = store.find_source(source.root.id()).unwrap().unwrap();
        assert_eq!(Some(kept.to_string()), second.image);
    }
}
