//! A worker, asked as the node asks it. Its mounts are real.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

use std::fs::{self, File};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};

use blocks::{BlockRange, Extent, ReplayPlan};
use bootimg::{SourceInfo, Store, StoreConfig, Variant, WriteRequest, write_image};
use localfs::SourceRoot;
use nix::fcntl::{PosixFadviseAdvice, posix_fadvise};
use tempfile::TempDir;
use yolofs::{Busy, Connection, MountTable, Visible};

use super::devices::ServedDevices;
use super::served_mounts::ServedMounts;
use super::service::{self, WorkerContext};
use crate::descriptors::MountDescriptors;
use crate::wire::{Adoption, Fault, WorkerRequest, WorkerResponse, WorkerStatus, ask};
use host::admission::Admission;
use mounting::source::Source;
use node_api::boot_choice::BootChoice;
use node_api::mount_state::{MountMode, MountState, PrewarmState};
use node_api::spec::MountSpec;
use node_api::status::MountStatus;
use node_records::hello::HelloBytes;

/// Longer than anything here takes, however busy the machine is.
const PATIENCE: Duration = Duration::from_secs(60);

/// Files of the source, and blocks in each.
const FILES: u8 = 8;
const BLOCKS: u64 = 64;

/// Bytes that tell file and block.
fn content(file: u8) -> Vec<u8> {
    let words = (0..BLOCKS * 512).map(|word| (word ^ (u64::from(file) << 56)).to_le_bytes());
    words.flatten().collect()
}

fn name(file: u8) -> String {
    format!("f{file}")
}

/// A source with a store, and a mount of it that is held as the node holds it.
struct Node {
    dir: TempDir,
    visible: Visible,
    connection: Connection,
    private: Option<OwnedFd>,
    source: OwnedFd,
    names: OwnedFd,
    spec: MountSpec,
}

impl Node {
    fn new(boot: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().canonicalize().unwrap();
        for made in ["source", "store", "mnt"] {
            fs::create_dir(path.join(made)).unwrap();
        }
        for file in 0..FILES {
            fs::write(path.join("source").join(name(file)), content(file)).unwrap();
        }
        let spec = serde_json::json!({
            "source": path.join("source"),
            "mountpoint": path.join("mnt"),
            "store": path.join("store"),
            "boot": boot,
        });
        let source = SourceRoot::open(path.join("source")).unwrap();
        let (connection, detached) = Connection::open("worker test").unwrap();
        let (visible, private) = Visible::attach(detached, &path.join("mnt")).unwrap();
        Self {
            visible,
            connection,
            private: Some(private),
            source: source.as_fd().try_clone_to_owned().unwrap(),
            names: tempfile::tempfile().unwrap().into(),
            spec: serde_json::from_value(spec).unwrap(),
            dir,
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().canonicalize().unwrap().join(name)
    }

    /// Records a boot image with all of some files.
    fn record(&self, files: std::ops::Range<u8>, image: &Path) {
        let source = Source::open(&self.path("source")).unwrap();
        let extents = files.map(|file| Extent {
            file: source.tree.resolve(name(file).as_bytes()).unwrap(),
            range: BlockRange::covering(0, BLOCKS * 4096),
            bin: 0,
            seen: 1,
        });
        let plan = ReplayPlan {
            runs: 1,
            extents: extents.collect(),
            ..ReplayPlan::default()
        };
        let info = SourceInfo {
            id: source.root.id(),
            ..SourceInfo::default()
        };
        let request = WriteRequest {
            tree: &source.tree,
            info: &info,
            plan: &plan,
            blocks: &*source.reader(),
            variant: Variant::Mapped,
        };
        write_image(image, &request, &mut bootimg::unwatched).unwrap();
    }

    /// Has a worker serve the mount, or says why it does not.
    fn adopt(&mut self, worker: &Worker) -> Result<(), (Fault, String)> {
        let hello = self.connection.hello();
        let request = hello.request().to_vec();
        let adoption = Adoption {
            id: "m".to_owned(),
            spec: self.spec.clone(),
            hello: HelloBytes {
                request: request.clone(),
                answer: hello.answer().unwrap_or_default().to_vec(),
            },
        };
        let handed = MountDescriptors {
            device: self.connection.device().try_clone_to_owned().unwrap(),
            source: Some(self.source.try_clone().unwrap()),
            names: self.names.try_clone().unwrap(),
            private: self.private.as_ref().map(|fd| fd.try_clone().unwrap()),
        };
        let question = WorkerRequest::Adopt(Box::new(adoption));
        match ask(worker.address(), &question, &handed.in_order(), PATIENCE)
            .unwrap()
            .0
        {
            WorkerResponse::Adopted { hello } => {
                let hello = yolofs::Hello::from_parts(request, Some(hello)).unwrap();
                self.connection.set_hello(hello);
                Ok(())
            }
            WorkerResponse::Refused { fault, why } => Err((fault, why)),
            other => panic!("{other:?}"),
        }
    }

    /// Unmounts as the node does, and sees the session end.
    fn finish(mut self, workers: &[&Worker]) {
        self.visible.unmount(Busy::Wait, PATIENCE).unwrap();
        // Looked for while its numbers are its own: the next mount of anybody may get them.
        assert!(!self.visible.is_listed(&MountTable::read().unwrap()));
        self.private = None;
        for worker in workers {
            assert!(matches!(
                worker.ask(&let_go()),
                WorkerResponse::Done | WorkerResponse::Refused { .. }
            ));
        }
        for worker in workers {
            eventually("the session ends", || worker.status().mounts.is_empty());
        }
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        if std::thread::panicking() && self.private.is_some() {
            let _over = self.visible.abort();
        }
        let _gone = self.visible.unmount(Busy::Lazy, PATIENCE);
    }
}

fn let_go() -> WorkerRequest {
    WorkerRequest::LetGo { id: "m".to_owned() }
}

fn swap(boot: &str) -> WorkerRequest {
    WorkerRequest::Swap {
        id: "m".to_owned(),
        boot: boot.to_owned().into(),
    }
}

/// A worker in this process: what the program does but for its own process.
struct Worker {
    mounts: Arc<ServedMounts>,
    socket: PathBuf,
    _dir: TempDir,
}

impl Worker {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("workers/1.sock");
        let (over, ends) = std::sync::mpsc::channel();
        let mounts = Arc::new(ServedMounts::start(over, None, Arc::default()).unwrap());
        let context = Arc::new(WorkerContext::new(
            (
                Arc::clone(&mounts),
                Arc::new(ServedDevices::new(Arc::default())),
            ),
            Admission::own(),
            None,
        ));
        let listener = service::listen(&socket).unwrap();
        service::serve(listener, &context).unwrap();
        let forgetting = Arc::clone(&mounts);
        std::thread::spawn(move || {
            for (id, _) in ends {
                forgetting.forget(&id);
            }
        });
        Self {
            mounts,
            socket,
            _dir: dir,
        }
    }

    fn address(&self) -> (u32, &Path) {
        (std::process::id(), &self.socket)
    }

    fn ask(&self, question: &WorkerRequest) -> WorkerResponse {
        ask(self.address(), question, &[], PATIENCE).unwrap().0
    }

    fn status(&self) -> WorkerStatus {
        match self.ask(&WorkerRequest::Status { id: None }) {
            WorkerResponse::Status(status) => status,
            other => panic!("{other:?}"),
        }
    }

    fn mount(&self) -> MountStatus {
        self.status().mounts.remove(0)
    }

    fn hit_bytes(&self) -> u64 {
        self.mount().served.unwrap().hit_bytes
    }
}

#[track_caller]
fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < deadline, "never: {what}");
        std::thread::yield_now();
    }
}

/// Reads all of a file so that the worker is asked, and compares it.
fn read_anew(path: &Path, file: u8) {
    let open = File::open(path.join(name(file))).unwrap();
    posix_fadvise(&open, 0, 0, PosixFadviseAdvice::POSIX_FADV_DONTNEED).unwrap();
    let mut bytes = vec![0; content(file).len()];
    open.read_exact_at(&mut bytes, 0).unwrap();
    assert!(bytes == content(file), "file {file} is wrong");
}

#[test]
fn a_mount_is_adopted_handed_back_and_let_go() {
    let (worker, mut node) = (Worker::new(), Node::new("none"));
    assert!(matches!(
        worker.ask(&let_go()),
        WorkerResponse::Refused {
            fault: Fault::Unknown,
            ..
        }
    ));
    node.adopt(&worker).unwrap();
    node.adopt(&worker).unwrap(); // once more changes nothing
    let mnt = node.path("mnt");
    (0..FILES).for_each(|file| read_anew(&mnt, file));
    let status = worker.mount();
    assert_eq!(
        (status.state, status.mode),
        (MountState::Serving, MountMode::Lower)
    );
    assert!(status.boot.is_none());
    assert_eq!(
        status.served.unwrap().fallthrough_bytes,
        u64::from(FILES) * BLOCKS * 4096
    );
    let prewarm = WorkerRequest::Prewarm {
        id: "m".to_owned(),
        budget_bytes: None,
    };
    assert!(matches!(
        worker.ask(&prewarm),
        WorkerResponse::Refused {
            fault: Fault::Conflict,
            ..
        }
    ));
    // A node that lost its descriptors gets them back, and they are the same files.
    let hand = WorkerRequest::Hand { id: "m".to_owned() };
    let (answer, handed) = ask(worker.address(), &hand, &[], PATIENCE).unwrap();
    assert!(matches!(answer, WorkerResponse::Handed));
    let handed = MountDescriptors::received(&node.spec, handed).unwrap();
    let inode = |fd: &OwnedFd| {
        File::from(fd.try_clone().unwrap())
            .metadata()
            .unwrap()
            .ino()
    };
    let source = handed.source.as_ref().unwrap();
    assert_eq!(inode(source), inode(&node.source));
    assert_eq!(inode(&handed.names), inode(&node.names));
    assert!(handed.private.is_some());
    drop(handed);
    node.finish(&[&worker]);
    eventually("it is forgotten", || worker.mounts.is_empty());
}

#[test]
fn what_cannot_be_served_is_refused_and_leaves_the_place_free() {
    let (worker, mut node) = (Worker::new(), Node::new("/nowhere/image"));
    node.spec.source = node.path("store");
    let (fault, why) = node.adopt(&worker).unwrap_err();
    let told = fault == Fault::Invalid && why.contains("was opened at");
    assert!(told, "{why}");
    node.spec.source = node.path("source");
    let (fault, why) = node.adopt(&worker).unwrap_err();
    assert!(
        fault == Fault::Invalid && why.contains("No such file"),
        "{why}"
    );
    assert!(worker.mounts.is_empty());
    node.spec.boot = BootChoice::None;
    node.adopt(&worker).unwrap();
    read_anew(&node.path("mnt"), 1);
    node.finish(&[&worker]);
}

#[test]
fn the_next_worker_goes_by_the_same_names() {
    let mut node = Node::new("auto");
    let image = node.path("image");
    node.record(0..FILES, &image);
    node.spec.boot = BootChoice::File(image.clone());
    let first = Worker::new();
    node.adopt(&first).unwrap();
    let mnt = node.path("mnt");
    let before: Vec<u64> = (0..FILES)
        .map(|file| fs::metadata(mnt.join(name(file))).unwrap().ino())
        .collect();
    // Scanned again, this source would give every file another number.
    fs::write(node.path("source/a-new-one"), "new").unwrap();
    fs::remove_file(&image).unwrap();
    let next = Worker::new();
    node.adopt(&next).unwrap();
    for file in 0..FILES {
        read_anew(&mnt, file);
        let number = fs::metadata(mnt.join(name(file))).unwrap().ino();
        assert_eq!(number, before[usize::from(file)]);
    }
    // The image that it was to serve from is gone, which costs speed only.
    assert!(next.mount().boot.is_none());
    node.finish(&[&first, &next]);
}

#[test]
fn boot_images_are_swapped_under_readers() {
    let (worker, mut node) = (Worker::new(), Node::new("none"));
    node.spec.inject = false;
    let images = [node.path("some"), node.path("all")];
    node.record(0..FILES / 2, &images[0]);
    node.record(0..FILES, &images[1]);
    node.adopt(&worker).unwrap();
    let mnt = node.path("mnt");
    let (stop, rounds) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let reader = || {
            while !stop.load(SeqCst) {
                (0..FILES).for_each(|file| read_anew(&mnt, file));
                rounds.fetch_add(1, SeqCst);
            }
        };
        let readers = [scope.spawn(reader), scope.spawn(reader)];
        for turn in 0..6 {
            let image = &images[turn % 2];
            let (hits, before) = (worker.hit_bytes(), rounds.load(SeqCst));
            let done = worker.ask(&swap(image.to_str().unwrap()));
            assert!(matches!(done, WorkerResponse::Done), "{done:?}");
            assert_eq!(worker.mount().boot.unwrap().image, image.to_str().unwrap());
            eventually("readers read from the boot image", || {
                let gone = readers
                    .iter()
                    .any(std::thread::ScopedJoinHandle::is_finished);
                gone || (worker.hit_bytes() > hits && rounds.load(SeqCst) > before + 1)
            });
        }
        stop.store(true, SeqCst);
    });
    let done = worker.ask(&swap("none"));
    assert!(matches!(done, WorkerResponse::Done), "{done:?}");
    assert!(worker.mount().boot.is_none());
    read_anew(&mnt, 0);
    node.finish(&[&worker]);
}

#[test]
fn a_damaged_boot_image_is_not_swapped_in() {
    let (worker, mut node) = (Worker::new(), Node::new("none"));
    let (good, bad) = (node.path("good"), node.path("bad"));
    node.record(0..FILES, &good);
    node.record(0..FILES, &bad);
    // Somewhere in the blocks.
    let file = File::options().write(true).open(&bad).unwrap();
    let middle = file.metadata().unwrap().len() / 2;
    file.write_all_at(b"damage", middle).unwrap();
    drop(file);
    node.spec.boot = BootChoice::File(good.clone());
    node.adopt(&worker).unwrap();
    // It is prewarmed by itself.
    eventually("it is prewarmed", || {
        worker.mount().boot.unwrap().prewarm == PrewarmState::Done
    });
    assert_eq!(
        worker.mount().boot.unwrap().injected_pages,
        u64::from(FILES) * BLOCKS
    );
    Store::open(&node.spec.store, StoreConfig::default()).unwrap();
    for (boot, words) in [
        (bad.to_str().unwrap(), "damaged"),
        ("/nowhere/image", "No such file"),
        ("auto", "no boot image"),
        ("unheard-of", "unheard-of"),
    ] {
        let answer = worker.ask(&swap(boot));
        let WorkerResponse::Refused {
            fault: Fault::Invalid,
            why,
        } = answer
        else {
            panic!("{boot}: {answer:?}")
        };
        assert!(why.contains(words), "{why}");
        assert_eq!(worker.mount().boot.unwrap().image, good.to_str().unwrap());
    }
    (0..FILES).for_each(|file| read_anew(&node.path("mnt"), file));
    node.finish(&[&worker]);
}

#[test]
fn who_has_unmounted_is_told_of_what_is_still_open() {
    let (worker, mut node) = (Worker::new(), Node::new("none"));
    node.adopt(&worker).unwrap();
    let held = worker.mounts.get("m").unwrap();
    node.visible.unmount(Busy::Wait, PATIENCE).unwrap();
    node.private = None;
    assert!(matches!(worker.ask(&let_go()), WorkerResponse::Done));
    eventually("the session ends", || held.is_over());
    let close = WorkerRequest::Close { id: "m".to_owned() };
    // What somebody has in hand has the source open.
    let answer = worker.ask(&close);
    assert!(
        matches!(
            &answer,
            WorkerResponse::Refused {
                fault: Fault::Conflict,
                ..
            }
        ),
        "{answer:?}"
    );
    drop(held);
    assert!(matches!(worker.ask(&close), WorkerResponse::Done));
}
