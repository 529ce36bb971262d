//! The second start from a source of a block service, with the cache of the first one.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::collections::BTreeMap;
use std::io::{self, Read as _, Write as _};
use std::ops::ControlFlow;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::thread::spawn;
use std::time::Duration;

use blocks::testing::{MemSource, Node, tree};
use blocks::{
    BLOCK_SIZE, BlockIndex, BlockRange, BlockSource as _, Extent, FileId, Lookup, ReplayPlan,
    SourceId,
};
use blockservice::identity::Access;
use blockservice::service::{Limits, Service};
use blockservice::wire::{HEAD_BYTES, Head};
use bootimg::{SourceInfo, Variant, WriteRequest, unwatched, write_image};
use chunks::Catalog;
use chunks::index::{CHUNK_BYTES, Index, build};
use chunks::testing::MemStore;
use mounting::boot::Boot;
use mounting::nic::Nic;
use mounting::prewarming::{PrewarmRequest, Prewarming};
use node_api::boot_choice::BootChoice;
use node_api::mount_state::PrewarmState;
use node_api::nic::{NicName, NicSpec};
use serving::transport::{Address, Listener};
use tempfile::TempDir;
use tokio::runtime::Runtime;
use tokio::sync::watch;
use yolofs::PrewarmReport;

const CHUNKS: u64 = 20;
const CHUNK_BLOCKS: u64 = CHUNK_BYTES / BLOCK_SIZE as u64;
const LONG: Duration = Duration::from_secs(60);
/// Frames by which a client begins: PROOF, and OPEN of a known source, which nobody waits for.
const BEGIN: [u8; 2] = [3, 5];
const READ: u8 = 7;
const START: u8 = 23;

fn content(chunk: u64) -> Vec<u8> {
    let word = |n: u64| (chunk * 1_000_003 + n).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (0..CHUNK_BYTES / 8)
        .flat_map(|n| word(n).to_le_bytes())
        .collect()
}

/// A service of one source with a boot image.
struct Site {
    dir: TempDir,
    index: Index,
    /// How many frames of each kind came from clients.
    frames: Arc<Mutex<BTreeMap<u8, usize>>>,
    stop: watch::Sender<bool>,
    runtime: Option<Runtime>,
}

impl Site {
    /// Has a boot image that reads a block of each chunk.
    fn start() -> Self {
        Self::recorded(
            &(0..CHUNKS)
                .map(|chunk| CHUNK_BLOCKS * chunk)
                .collect::<Vec<_>>(),
        )
    }

    /// Has a boot image that reads these blocks.
    fn recorded(blocks: &[u64]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let nodes = [Node::dir(&[("file", 1)]), Node::file(CHUNKS * CHUNK_BYTES)];
        let tree = Arc::new(tree(&nodes).unwrap());
        let mut source = MemSource::default();
        let bytes = (0..CHUNKS).flat_map(content).collect();
        source.insert(tree.key(FileId(1)).unwrap(), bytes);
        let store = Arc::new(MemStore::default());
        let go_on = &mut |_| ControlFlow::Continue(());
        let index = build(b"one", &tree, &source, &*store, go_on).unwrap().index;
        let catalog = Arc::new(Catalog::open(&dir.path().join("catalog")).unwrap());
        catalog.add(b"one", &index).unwrap();
        let extent = |block: &u64| Extent {
            file: FileId(1),
            range: BlockRange::with_len(BlockIndex(*block), 1),
            bin: 0,
            seen: 1,
        };
        let plan = ReplayPlan {
            runs: 1,
            extents: blocks.iter().map(extent).collect(),
            ..ReplayPlan::default()
        };
        let info = SourceInfo {
            label: "one".to_owned(),
            id: SourceId::of_label(b"one"),
            recorded_at: 0,
            command: Vec::new(),
            tool: "test".to_owned(),
            ready_ms: Vec::new(),
            similarity_ppm: None,
            source_bytes: 1,
        };
        let request = WriteRequest {
            tree: &tree,
            info: &info,
            plan: &plan,
            blocks: &source,
            variant: Variant::Packed,
        };
        let path = dir.path().join("boot");
        write_image(&path, &request, &mut unwatched).unwrap();
        let bytes = std::fs::read(&path).unwrap();
        let id = blocks::ContentId::of(&bytes);
        catalog.keep_boot(&index.id(), &id, &[bytes], 1).unwrap();
        let service = Service::new(store, catalog, Access::open(), Limits::default()).unwrap();
        let runtime = Runtime::new().unwrap();
        let address = Address::Unix(dir.path().join("service"));
        let listener = runtime.block_on(Listener::bind(&address, None)).unwrap();
        let (stop, stopped) = watch::channel(false);
        runtime.spawn(async move { Arc::new(service).serve(listener, stopped).await });
        let site = Self {
            dir,
            index,
            frames: Arc::default(),
            stop,
            runtime: Some(runtime),
        };
        site.listen();
        site
    }

    fn socket(&self) -> PathBuf {
        self.dir.path().join("line")
    }

    /// Passes on and counts what clients send.
    fn listen(&self) {
        let listener = UnixListener::bind(self.socket()).unwrap();
        let (service, frames) = (self.dir.path().join("service"), Arc::clone(&self.frames));
        // It ends with the test.
        spawn(move || {
            for client in listener.incoming() {
                let _lost = client.and_then(|client| join(client, &service, &frames));
            }
        });
    }

    /// Ends the service.
    fn die(&mut self) {
        self.stop.send(true).unwrap();
        self.runtime.take().unwrap().shutdown_background();
        std::fs::remove_file(self.socket()).unwrap();
    }

    fn open(&self, name: &NicName) -> Nic {
        let cache = self.dir.path().join("cache");
        let spec = format!(
            r#"{{"address": "unix:{}", "cache": "{}", "cache_bytes": 268435456, "fill": false}}"#,
            self.socket().display(),
            cache.display()
        );
        let spec: NicSpec = serde_json::from_str(&spec).unwrap();
        Nic::alone((&spec).into(), name, None, &BootChoice::Auto, LONG).unwrap()
    }

    fn name(&self, is_fixed: bool) -> NicName {
        NicName {
            name: "one".to_owned(),
            id: is_fixed.then(|| self.index.id()),
        }
    }

    /// Starts: opens the source, goes through the plan, and reads all of the file.
    fn begin(&self, name: &NicName) -> Nic {
        let nic = self.open(name);
        let boot = nic.choose_boot(&BootChoice::Auto).unwrap().unwrap();
        assert_eq!(boot.recorded.plan().extents.len() as u64, CHUNKS);
        let source = nic.source().unwrap();
        let key = source.remote().index().tree().key(FileId(1)).unwrap();
        let mut out = vec![0; usize::try_from(CHUNK_BYTES).unwrap()];
        for chunk in 0..CHUNKS {
            source.read_at(&key, chunk * CHUNK_BYTES, &mut out).unwrap();
            assert!(out == content(chunk), "chunk {chunk}");
        }
        drop(boot);
        nic
    }

    /// Returns how many frames of some kinds came since the last call, and of all others.
    fn sent(&self) -> BTreeMap<u8, usize> {
        std::mem::take(&mut *self.frames.lock().unwrap())
    }
}

fn join(
    client: UnixStream,
    service: &PathBuf,
    frames: &Arc<Mutex<BTreeMap<u8, usize>>>,
) -> io::Result<()> {
    let service = UnixStream::connect(service)?;
    let (mut from, mut to) = (client.try_clone()?, service.try_clone()?);
    let frames = Arc::clone(frames);
    spawn(move || -> io::Result<()> {
        loop {
            let mut head = [0; HEAD_BYTES];
            from.read_exact(&mut head)?;
            let parsed = Head::parse(&head).map_err(io::Error::other)?;
            let mut rest = vec![0; parsed.body_len() + parsed.data_len()];
            from.read_exact(&mut rest)?;
            *frames.lock().unwrap().entry(head[5]).or_default() += 1;
            to.write_all(&[&head[..], &rest].concat())?;
        }
    });
    let (mut from, mut to) = (service, client);
    spawn(move || {
        let copied = io::copy(&mut from, &mut to);
        let _closed = to.shutdown(std::net::Shutdown::Both);
        copied
    });
    Ok(())
}

#[test]
fn the_second_start_of_a_named_index_asks_nobody() {
    let mut site = Site::start();
    let name = site.name(true);
    drop(site.begin(&name));
    assert_eq!(site.sent()[&START], 1);
    let second = site.begin(&name);
    let status = second.status();
    assert_eq!((status.requests, status.streams), (0, 0), "{status:?}");
    assert_eq!(status.local_chunks, CHUNKS, "{status:?}");
    drop(second);
    let mut sent = site.sent();
    sent.retain(|kind, _| *kind != 1 && !BEGIN.contains(kind));
    assert_eq!(sent, BTreeMap::new());
    // And when there is nobody.
    site.die();
    let third = site.begin(&name);
    assert_eq!(third.status().local_chunks, CHUNKS);
}

/// A name may mean another source by now: that is asked, and where nobody answers, it is what it was.
#[test]
fn the_second_start_of_a_name_asks_once_and_uses_what_was_kept_if_nobody_answers() {
    let mut site = Site::start();
    let name = site.name(false);
    drop(site.begin(&name));
    site.sent();
    drop(site.begin(&name));
    let mut sent = site.sent();
    sent.retain(|kind, _| *kind != 1 && !BEGIN.contains(kind));
    // CANCEL: it is told that no chunk is taken.
    sent.remove(&9);
    assert_eq!(sent, BTreeMap::from([(START, 1)]));
    site.die();
    let third = site.begin(&name);
    assert_eq!(third.status().local_chunks, CHUNKS);
}

#[test]
fn a_cache_that_lost_chunks_has_the_rest_of_the_plan_sent() {
    let site = Site::start();
    let name = site.name(true);
    drop(site.begin(&name));
    std::fs::remove_dir_all(site.dir.path().join("cache/chunks")).unwrap();
    site.sent();
    let second = site.begin(&name);
    let status = second.status();
    assert_eq!(status.streams, 1, "{status:?}");
    // What comes too late on a busy machine; one after the other would be twenty.
    assert!(site.sent().get(&READ).is_none_or(|reads| *reads <= 3));
}

/// A start comes back to most chunks. In the order of the recording each would be decompressed and verified as often as it
/// is out of memory by then.
#[test]
fn a_prewarm_opens_each_chunk_once_in_the_order_of_first_use() {
    let first_used: Vec<u64> = (0..CHUNKS).map(|n| n * 7 % CHUNKS).collect();
    // To one place of each, and then to another place of each.
    let places = [9, 3].into_iter();
    let recorded: Vec<u64> = places
        .flat_map(|place| {
            first_used
                .iter()
                .map(move |chunk| chunk * CHUNK_BLOCKS + place)
        })
        .collect();
    let site = Site::recorded(&recorded);
    let nic = site.open(&site.name(false));
    let boot = nic.choose_boot(&BootChoice::Auto).unwrap().unwrap();
    let boot = Boot::of_service(boot);
    let planned = boot.recorded.plan().extents.iter();
    let planned: Vec<_> = planned.map(|extent| extent.range.start().0).collect();
    assert_eq!(planned, recorded, "it came as it was recorded");
    let key = nic.index().tree().key(FileId(1)).unwrap();
    let mut opened = Vec::new();
    let mut read = Vec::new();
    let prewarming = Prewarming::new(PrewarmState::Waiting);
    let request = PrewarmRequest::default();
    let done = prewarming.prewarm(&boot, &request, |plan, blocks, _| {
        for Extent { range, .. } in &plan.extents {
            let mut out = [0; BLOCK_SIZE];
            let found = blocks.get_once(&key, *range, &mut out);
            assert_eq!(found, Lookup::Hit { blocks: 1 }, "{range:?}");
            let block = range.start().0;
            let chunk = content(block / CHUNK_BLOCKS);
            let begin = usize::try_from(block % CHUNK_BLOCKS).unwrap() * BLOCK_SIZE;
            assert!(out == chunk[begin..begin + BLOCK_SIZE], "{range:?}");
            opened.push(block / CHUNK_BLOCKS);
            read.push(block);
        }
        Ok(PrewarmReport::default())
    });
    done.unwrap();
    opened.dedup();
    assert_eq!(opened, first_used);
    read.sort_unstable();
    let mut recorded = recorded;
    recorded.sort_unstable();
    assert_eq!(read, recorded, "and all of it");
}
