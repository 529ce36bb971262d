//! Mounts whose servers die, one after the other, and whose users only wait.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};

use blocks::testing::MemAttrs;
use blocks::{FileId, FileKey, Namespace, Timestamp, Tree, Version};
use nix::fcntl::{PosixFadviseAdvice, posix_fadvise};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socketpair};
use rawio::lock::LockedPages;
use rawio::passing;
use tempfile::TempDir;
use yolofs::{
    Busy, Config, Connection, Diverted, End, FileSystem, Hello, Ledger, Mode, MountTable,
    Predecessors, PrewarmOptions, ServeOptions, Serving, Visible, node_id,
};

use crate::handed::{HELD_FILE, LARGE_FILE, PART, fill, names};
use crate::lifecycle::{example, one_file, whole_file};
use crate::live::LiveNames;
use crate::rig::{ChangingSource, PATIENCE, eventually, memory_image, pattern};
use testkit::undisturbed::undisturbed;

/// How often the server is killed.
const KILLS: u64 = 10;

/// A mount without a server, and all that is needed to serve it.
pub(crate) struct Unserved {
    pub(crate) connection: Connection,
    pub(crate) visible: Visible,
    pub(crate) private: Option<OwnedFd>,
    _dir: TempDir,
}

impl Unserved {
    pub(crate) fn new() -> Self {
        let dir = TempDir::new().unwrap();
        let (connection, detached) = Connection::open("taken over").unwrap();
        let (visible, private) = Visible::attach(detached, dir.path()).unwrap();
        Self {
            connection,
            visible,
            private: Some(private),
            _dir: dir,
        }
    }

    pub(crate) fn serve(&mut self, fs: FileSystem, options: &ServeOptions) -> Serving {
        let private = self.private.as_ref().unwrap().try_clone().unwrap();
        let serving = Serving::start(Arc::new(fs), &self.connection, Some(private), options);
        let serving = serving.unwrap();
        self.connection.set_hello(serving.hello().clone());
        serving
    }

    pub(crate) fn path(&self, name: impl AsRef<Path>) -> PathBuf {
        self.visible.target().join(name)
    }

    fn is_listed(&self) -> bool {
        self.visible.is_listed(&MountTable::read().unwrap())
    }
}

impl Drop for Unserved {
    fn drop(&mut self) {
        // After a test that failed somebody may wait for an answer; after others all is over. Without the private root
        // the number of the connection may be another mount's by now.
        if std::thread::panicking() && self.private.is_some() {
            let _over = self.visible.abort();
        }
        let _gone = self.visible.unmount(Busy::Lazy, PATIENCE);
    }
}

/// A server in a process of its own, which can be killed.
struct Server {
    child: Child,
    socket: OwnedFd,
}

impl Server {
    /// Has a process serve a mount; reads of one part of the held file are never answered.
    fn start(mount: &mut Unserved, held: u64) -> Self {
        let server = Self::hand(mount, &[held]);
        let answer = server.hear();
        let hello = mount.connection.hello();
        let told = Hello::from_parts(hello.request().to_vec(), Some(answer)).unwrap();
        assert!(hello.answer().is_none() || *hello == told, "{told:?}");
        mount.connection.set_hello(told);
        server
    }

    /// Starts a process with these arguments, and hands it a mount.
    fn hand(mount: &Unserved, args: &[u64]) -> Self {
        let (socket, theirs) = socketpair(
            AddressFamily::Unix,
            SockType::SeqPacket,
            None,
            SockFlag::SOCK_CLOEXEC,
        )
        .unwrap();
        let child = Command::new(example("serve_handed"))
            .args(args.iter().map(u64::to_string))
            .stdin(Stdio::from(theirs))
            .spawn()
            .unwrap();
        let server = Self { child, socket };
        let hello = mount.connection.hello();
        let len = u32::try_from(hello.request().len()).unwrap();
        let mut message = len.to_le_bytes().to_vec();
        message.extend_from_slice(hello.request());
        message.extend_from_slice(hello.answer().unwrap_or_default());
        let private = mount.private.as_ref().unwrap();
        let descriptors = [mount.connection.device(), private.as_fd()];
        passing::send(server.socket.as_fd(), &message, &descriptors).unwrap();
        server
    }

    /// What the server says next; nothing if it has ended.
    fn hear(&self) -> Vec<u8> {
        let mut said = vec![0; 16 << 10];
        let (len, _) = passing::receive(self.socket.as_fd(), &mut said).unwrap();
        said.truncate(len);
        said
    }

    fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ended = self.child.kill().and_then(|()| self.child.wait());
    }
}

/// Stops the readers; after a failure also those who wait for an answer.
struct Stop<'a>(&'a AtomicBool, Visible);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, SeqCst);
        if std::thread::panicking() {
            let _over = self.1.abort();
        }
    }
}

/// Numbers that look random and are the same each time.
fn random(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

#[track_caller]
fn assert_content(file: FileId, offset: u64, bytes: &[u8]) {
    let mut expected = vec![0; bytes.len()];
    fill(file, offset, &mut expected);
    assert!(bytes == expected, "file {} is wrong at {offset}", file.0);
}

/// Reads pieces of the large file until told to stop, through `bring`, and has the kernel forget
/// them, so that the server is asked each time.
fn read_pieces(
    path: &Path,
    seed: u64,
    rounds: &AtomicU64,
    stop: &AtomicBool,
    bring: impl Fn(&File, u64, usize),
) {
    let file = File::open(path).unwrap();
    let size = file.metadata().unwrap().size();
    let mut state = seed;
    while !stop.load(SeqCst) {
        let len = 1 + random(&mut state) % 65_536;
        let offset = random(&mut state) % (size - len);
        let mut bytes = vec![0; usize::try_from(len).unwrap()];
        bring(&file, offset & !4095, bytes.len());
        file.read_exact_at(&mut bytes, offset).unwrap();
        assert_content(LARGE_FILE, offset, &bytes);
        posix_fadvise(&file, 0, 0, PosixFadviseAdvice::POSIX_FADV_DONTNEED).unwrap();
        rounds.fetch_add(1, SeqCst);
    }
}

/// Lists directories and asks for the attributes of all that is in them, and reads the files.
fn walk(root: &Path, dirs: impl Iterator<Item = FileId>) {
    let names = names().unwrap();
    for dir in dirs {
        let path = root.join(OsStr::from_bytes(&names.path(dir).unwrap()));
        let mut found: Vec<_> = fs::read_dir(&path)
            .unwrap()
            .map(|entry| entry.unwrap().file_name())
            .collect();
        found.sort();
        let expected: Vec<_> = names.entries(dir).collect();
        assert_eq!(found.len(), expected.len());
        for (name, (expected, file)) in found.iter().zip(expected) {
            assert_eq!(name.as_bytes(), expected);
            let status = fs::metadata(path.join(name)).unwrap();
            let size = names.inode(file).unwrap().attr.size;
            assert_eq!((status.ino(), status.size()), (node_id(file), size));
            assert_content(file, 0, &fs::read(path.join(name)).unwrap());
        }
    }
}

#[test]
fn servers_are_killed_and_nobody_notices() {
    let mut mount = Unserved::new();
    let (stop, rounds) = (AtomicBool::new(false), [const { AtomicU64::new(0) }; 2]);
    let dirs: Vec<FileId> = {
        let names = names().unwrap();
        let root = names.entries(FileId::ROOT).map(|(_, file)| file);
        root.filter(|file| names.entries(*file).len() > 0).collect()
    };
    let share = dirs.len() / usize::try_from(KILLS).unwrap();
    let mut server = Server::start(&mut mount, 0);
    let visible = mount.visible.clone();
    let target = visible.target().to_owned();
    // The kernel learns with the first file that is closed that closing takes no request. Without that the next
    // server never begins: its program is executed with copies of the readers' files, and closes them.
    drop(File::open(target.join("large")).unwrap());
    std::thread::scope(|scope| {
        let (target, stop, rounds) = (&target, &stop, &rounds);
        let _stopped = Stop(stop, visible.clone());
        scope.spawn(move || {
            read_pieces(&target.join("large"), 1, &rounds[0], stop, |_, _, _| ());
        });
        scope.spawn(move || {
            read_pieces(
                &target.join("large"),
                2,
                &rounds[1],
                stop,
                |file, at, len| {
                    drop(LockedPages::lock(file, at, len).unwrap());
                },
            );
        });
        for (kill, dirs) in (0..KILLS).zip(dirs.chunks(share)) {
            let walker = scope.spawn(move || walk(target, dirs.iter().copied()));
            let waiter = scope.spawn(move || {
                let held = File::open(target.join("held")).unwrap();
                let mut bytes = vec![0; 4096];
                let offset = kill * PART + PART / 2;
                held.read_exact_at(&mut bytes, offset).unwrap();
                assert_content(HELD_FILE, offset, &bytes);
            });
            // A request is in flight that this server will never answer, and others are.
            assert_eq!(server.hear(), b"held");
            let before = rounds.each_ref().map(|rounds| rounds.load(SeqCst));
            eventually("readers get on", || {
                let now = rounds.each_ref().map(|rounds| rounds.load(SeqCst));
                now[0] > before[0] + 5 && now[1] > before[1] + 5
            });
            server.kill();
            server = Server::start(&mut mount, kill + 1);
            waiter.join().unwrap();
            walker.join().unwrap();
        }
    });
    // The last server ends by itself with the last user.
    mount.visible.unmount(Busy::Wait, PATIENCE).unwrap();
    assert!(!mount.is_listed());
    mount.private = None;
    assert_eq!(server.hear(), b"");
    assert!(server.child.wait().unwrap().success());
}

#[test]
fn a_server_that_cannot_have_its_threads_ends() {
    let mut mount = Unserved::new();
    let mut first = Server::start(&mut mount, 0);
    assert!(fs::metadata(mount.path("large")).unwrap().is_file());
    first.kill();
    // Its own one, and the next; whatever is asked of the kernel by that one waits for a third.
    for threads in [1, 2] {
        let mut next = Server::hand(&mount, &[0, threads]);
        eventually("it ends", || next.child.try_wait().unwrap().is_some());
    }
    let mut last = Server::start(&mut mount, 0);
    let mut bytes = vec![0; 4096];
    let large = File::open(mount.path("large")).unwrap();
    large.read_exact_at(&mut bytes, 8192).unwrap();
    assert_content(LARGE_FILE, 8192, &bytes);
    drop(large);
    mount.visible.unmount(Busy::Wait, PATIENCE).unwrap();
    mount.private = None;
    assert_eq!(last.hear(), b"");
    assert!(last.child.wait().unwrap().success());
}

#[test]
fn a_mount_that_nobody_serves_can_be_found_and_unmounted() {
    let mount = Unserved::new();
    assert!(mount.is_listed() && mount.visible.is_on_top());
    assert_eq!(mount.connection.hello().answer(), None);
    let again = Visible::resume(mount.visible.target().to_owned(), mount.visible.ids());
    assert_eq!(again, mount.visible);
    again.unmount(Busy::Wait, PATIENCE).unwrap();
    assert!(!mount.is_listed() && !mount.visible.is_on_top());
    again.unmount(Busy::Wait, PATIENCE).unwrap(); // once more is no error
}

#[test]
fn a_mount_that_is_given_up_leaves_nobody_waiting() {
    let mount = Unserved::new();
    std::thread::scope(|scope| {
        let path = mount.path("file");
        let waiter = scope.spawn(move || fs::metadata(path).unwrap_err());
        eventually("somebody waits", || waits_for_fuse(&mount));
        mount.visible.abort().unwrap();
        let error = waiter.join().unwrap();
        let over = [nix::libc::ENOTCONN, nix::libc::ECONNABORTED];
        assert!(over.contains(&error.raw_os_error().unwrap()), "{error}");
    });
    mount.visible.abort().unwrap(); // once more is no error
    assert!(mount.is_listed());
}

/// Whether somebody waits for an answer, the kernel's own first request not counted.
fn waits_for_fuse(mount: &Unserved) -> bool {
    let control = rawio::mount::MountContext::open(c"fusectl").unwrap();
    let control = control.mount().unwrap();
    let name = format!("{}/waiting", mount.visible.ids().minor);
    let file = nix::fcntl::openat(
        &control,
        name.as_str(),
        nix::fcntl::OFlag::O_RDONLY,
        nix::sys::stat::Mode::empty(),
    );
    let waiting = io::read_to_string(File::from(file.unwrap())).unwrap();
    waiting.trim().parse::<u32>().unwrap() > 1
}

#[test]
fn a_server_that_wants_something_else_is_refused() {
    let mut mount = Unserved::new();
    let files = one_file();
    let options = ServeOptions::default();
    let serving = mount.serve(files.file_system(Mode::Lower), &options);
    let other = files.file_system(Mode::Disk);
    let refused = Serving::start(Arc::new(other), &mount.connection, None, &options).unwrap_err();
    let why = std::error::Error::source(&refused).unwrap().to_string();
    assert!(why.contains("was told abilities"), "{why}");
    // The one before it goes on.
    assert_eq!(fs::read(mount.path("file")).unwrap(), pattern(1, 100_000));
    mount.visible.unmount(Busy::Wait, PATIENCE).unwrap();
    mount.private = None;
    serving.let_go();
    assert!(serving.wait_for_users(PATIENCE));
    assert_eq!(serving.end(), Some(End::SessionOver));
}

#[test]
fn a_prewarm_by_the_next_server_leaves_alone_what_is_there() {
    undisturbed(|| {
        let mut mount = Unserved::new();
        let files = one_file();
        let options = ServeOptions::default();
        let first = mount.serve(files.file_system(Mode::Lower), &options);
        let image = memory_image(&files, &whole_file());
        let prewarm = |serving: &Serving| {
            let prewarm = PrewarmOptions::default();
            serving.prewarm(&whole_file(), &image, &prewarm).unwrap()
        };
        let report = prewarm(&first);
        assert_eq!((report.injected_bytes, report.present_bytes), (100_000, 0));
        let next = mount.serve(files.file_system(Mode::Lower), &options);
        let report = prewarm(&next);
        assert_eq!((report.injected_bytes, report.present_bytes), (0, 100_000));
        assert_eq!(first.hello(), next.hello());
        mount.visible.unmount(Busy::Wait, PATIENCE).unwrap();
        mount.private = None;
        first.let_go();
        next.let_go();
        assert!(first.wait_for_users(PATIENCE) && next.wait_for_users(PATIENCE));
    });
}

/// Stands for what is written down elsewhere.
struct Forgotten;

impl Ledger for Forgotten {
    fn note(&self, _: &Diverted) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn the_next_server_has_the_kernel_forget_what_the_dead_one_left_there() {
    let mut mount = Unserved::new();
    let files = one_file();
    let key = files.key(1);
    let source = Arc::new(ChangingSource::default());
    let put = |key: FileKey, content: Vec<u8>| source.0.write().unwrap().insert(key, content);
    put(key, pattern(1, 100_000));
    let attrs = Arc::new(MemAttrs::of(&files.tree));
    let fs = |names: Arc<dyn Namespace>| {
        let fs = FileSystem::new(names, source.clone(), Config::default());
        fs.with_attrs(Arc::clone(&attrs) as _)
    };
    let options = ServeOptions::default();
    // It is not really dead: what is asked later may come to it, and is answered as by the next.
    let dead = Arc::new(LiveNames::kept((*files.tree).clone()));
    let first = mount.serve(fs(Arc::clone(&dead) as _), &options);
    assert_eq!(fs::read(mount.path("file")).unwrap(), pattern(1, 100_000));
    // All of it is in the kernel, which asks nobody. The first one saw the change, and no more.
    let now = Version {
        size: 150_000,
        ctime: Timestamp { secs: 1, nanos: 1 },
        ..key.version
    };
    put(
        FileKey {
            version: now,
            ..key
        },
        pattern(2, 150_000),
    );
    attrs.set_version(key.file, now);
    let mut parts = files.tree.parts().clone();
    let changed = &mut parts.inodes[key.file.index()].attr;
    (changed.size, changed.ctime) = (now.size, now.ctime);
    *dead.0.write().unwrap() = Tree::new(parts).unwrap();
    let earlier = [Diverted {
        file: key.file,
        from: key.version,
        now,
        attr: None,
        believed: 150_000,
    }];
    let next = fs(files.tree.clone()).with_ledger(Arc::new(Forgotten), &earlier);
    let next = mount.serve(next, &options);
    eventually("the kernel forgets the old version", || {
        fs::read(mount.path("file")).unwrap() == pattern(2, 150_000)
    });
    mount.visible.unmount(Busy::Wait, PATIENCE).unwrap();
    mount.private = None;
    first.let_go();
    next.let_go();
    assert!(first.wait_for_users(PATIENCE) && next.wait_for_users(PATIENCE));
}

/// Pushes a page as a thread does that was killed over it.
#[expect(clippy::host_endian_bytes, reason = "the kernel reads native numbers")]
fn push_late(mount: &Unserved, file: FileId, page: &[u8]) {
    const STORE: i32 = 4;
    let len = u32::try_from(16 + 24 + page.len()).unwrap();
    let mut message = len.to_ne_bytes().to_vec();
    message.extend(STORE.to_ne_bytes());
    message.extend(0_u64.to_ne_bytes());
    message.extend(node_id(file).to_ne_bytes());
    message.extend(0_u64.to_ne_bytes());
    message.extend(u32::try_from(page.len()).unwrap().to_ne_bytes());
    message.extend(0_u32.to_ne_bytes());
    message.extend(page);
    let written = nix::unistd::write(mount.connection.device(), &message).unwrap();
    assert_eq!(written, message.len());
}

#[test]
fn what_a_dead_server_still_pushes_is_forgotten_when_it_is_gone() {
    let mut mount = Unserved::new();
    let files = one_file();
    let key = files.key(1);
    let (old, new) = (pattern(1, 100_000), pattern(2, 100_000));
    let source = Arc::new(ChangingSource::default());
    source.0.write().unwrap().insert(key, old.clone());
    let attrs = Arc::new(MemAttrs::of(&files.tree));
    let is_gone = Arc::new(AtomicBool::new(false));
    let told = Arc::clone(&is_gone);
    let options = ServeOptions {
        predecessors: Some(Predecessors::new(move || told.load(SeqCst))),
        ..ServeOptions::default()
    };
    let fs = FileSystem::new(files.tree.clone(), source.clone(), Config::default());
    let serving = mount.serve(fs.with_attrs(Arc::clone(&attrs) as _), &options);
    let version = Version {
        ctime: Timestamp { secs: 1, nanos: 1 },
        ..key.version
    };
    attrs.set_version(key.file, version);
    let changed = FileKey { version, ..key };
    source.0.write().unwrap().insert(changed, new.clone());
    let is = |content: &[u8]| fs::read(mount.path("file")).unwrap() == content;
    eventually("the new version is shown", || is(&new));
    eventually("the kernel was made to forget", || {
        serving.counters().diverted_files == 1 && !waits_for_fuse(&mount)
    });
    push_late(&mount, key.file, &old[..4096]);
    eventually("it stays", || is(&[&old[..4096], &new[4096..]].concat()));
    is_gone.store(true, SeqCst);
    eventually("the old version is gone", || is(&new));
    mount.visible.unmount(Busy::Wait, PATIENCE).unwrap();
    mount.private = None;
    serving.let_go();
    assert!(serving.wait_for_users(PATIENCE));
}

#[test]
fn the_end_of_a_session_is_told() {
    let mut mount = Unserved::new();
    let (told, end) = std::sync::mpsc::channel();
    let options = ServeOptions {
        ended: Some(yolofs::Ended::new(move |end| {
            told.send(end.clone()).unwrap();
        })),
        ..ServeOptions::default()
    };
    let fs = FileSystem::new(
        names().unwrap(),
        Arc::new(blocks::testing::MemSource::default()),
        Config::default(),
    );
    let serving = mount.serve(fs, &options);
    mount.visible.abort().unwrap();
    assert_eq!(end.recv_timeout(PATIENCE).unwrap(), End::SessionOver);
    assert_eq!(serving.end(), Some(End::SessionOver));
}
