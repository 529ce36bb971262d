//! Handles of files: what they find, whoever serves, and what they never find.

#![expect(
    clippy::host_endian_bytes,
    reason = "the protocol speaks the byte order of the machine"
)]

use std::fs::{self, File};
use std::io::Read as _;
use std::os::fd::AsRawFd as _;

use blocks::testing::Node;
use rawio::handle::Handle;
use yolofs::{Busy, Hello, Mode, ServeOptions, Serving};

use crate::rig::{Files, PATIENCE, pattern};
use crate::takeover::Unserved;

/// Where the kernel's first request has its two words of abilities.
const ABILITIES: [usize; 2] = [52, 56];

/// The bits of the abilities by which a server says that handles are good, and that there are none.
const EXPORT: (usize, u32) = (0, 1 << 4);
const NO_EXPORT: (usize, u32) = (1, 1 << 6);

/// Three levels, the last files with two names; inodes begin at some number.
fn files(inodes: u64) -> Files {
    let mut nodes = vec![
        Node::dir(&[("dir", 1), ("name", 4)]),
        Node::dir(&[("deep", 2)]),
        Node::dir(&[("other name", 4), ("plain", 3)]),
        Node::file(0),
        Node::file(0),
    ];
    for (node, inode) in nodes.iter_mut().zip(inodes..) {
        node.attr.source_inode = inode;
    }
    nodes[4].attr.nlink = 2;
    Files::new(nodes, &[(3, pattern(3, 9_000)), (4, pattern(4, 5_000))])
}

const NAMES: [&str; 5] = ["", "dir", "dir/deep", "dir/deep/plain", "name"];

/// A mount of files, with the kernel's first request changed as if it were another kernel's.
struct Served {
    mount: Unserved,
    /// All that serve it: any of them may get a request.
    serving: Vec<Serving>,
}

impl Served {
    fn new(files: &Files, change: impl FnOnce(&mut [u8])) -> Self {
        let mut mount = Unserved::new();
        let mut request = mount.connection.hello().request().to_vec();
        change(&mut request);
        let hello = Hello::from_parts(request, None).unwrap();
        mount.connection.set_hello(hello);
        let mut served = Self {
            mount,
            serving: Vec::new(),
        };
        served.take_over(files);
        served
    }

    /// Has another server serve it.
    fn take_over(&mut self, files: &Files) {
        let fs = files.file_system(Mode::Lower);
        let next = self.mount.serve(fs, &ServeOptions::default());
        self.serving.push(next);
    }

    fn told(&self, (word, bit): (usize, u32)) -> bool {
        let hello = self.mount.connection.hello();
        // The answer has its words four bytes before the request's first, and four before the second.
        let at = [28, 48][word];
        let bytes = hello.answer().unwrap()[at..].first_chunk().unwrap();
        u32::from_ne_bytes(*bytes) & bit != 0
    }

    fn handles(&self) -> Vec<Handle> {
        let handle = |name: &&str| Handle::of(&self.mount.path(name)).unwrap();
        NAMES.iter().map(handle).collect()
    }

    /// What is behind a handle: content, or the path of a directory and the names in it.
    fn behind(&self, handle: &Handle) -> Result<Vec<u8>, i32> {
        let place = File::open(self.mount.path("")).unwrap();
        let mut file = match handle.open(&place) {
            Ok(fd) => File::from(fd),
            Err(error) => return Err(error.raw_os_error().unwrap()),
        };
        if file.metadata().unwrap().is_dir() {
            let link = format!("/proc/self/fd/{}", file.as_raw_fd());
            let path = fs::read_link(&link).unwrap();
            let path = path.strip_prefix(self.mount.path("")).unwrap();
            let entries = fs::read_dir(&link).unwrap();
            let names: Vec<_> = entries.map(|entry| entry.unwrap().file_name()).collect();
            return Ok(format!("{path:?} {names:?}").into_bytes());
        }
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes).unwrap();
        Ok(bytes)
    }

    fn end(mut self) {
        self.mount.visible.unmount(Busy::Wait, PATIENCE).unwrap();
        self.mount.private = None;
        for serving in &self.serving {
            serving.let_go();
        }
        for serving in &self.serving {
            assert!(serving.wait_for_users(PATIENCE));
        }
    }
}

fn set(request: &mut [u8], at: usize, word: u32) {
    request[at..at + 4].copy_from_slice(&word.to_ne_bytes());
}

/// Has the kernel forget the names and inodes that nobody uses.
fn forget() {
    fs::write("/proc/sys/vm/drop_caches", "2").unwrap();
}

#[test]
fn a_handle_finds_its_file_whoever_serves_it() {
    let mut served = Served::new(&files(100), |_| ());
    assert!(served.told(EXPORT) && !served.told(NO_EXPORT));
    let handles = served.handles();
    let found = [
        &b"\"\" [\"dir\", \"name\"]"[..],
        b"\"dir\" [\"deep\"]",
        b"\"dir/deep\" [\"other name\", \"plain\"]",
        &pattern(3, 9_000),
        &pattern(4, 5_000),
    ];
    let look = |served: &Served, when: &str| {
        for (handle, found) in handles.iter().zip(found) {
            assert_eq!(served.behind(handle).as_deref(), Ok(found), "{when}");
        }
    };
    look(&served, "at once");
    forget();
    look(&served, "forgotten");
    served.take_over(&files(100));
    look(&served, "by the next server");
    forget();
    look(&served, "by the next server, forgotten");
    assert_eq!(served.handles(), handles);
    served.end();
    let served = Served::new(&files(100), |_| ());
    look(&served, "in another mount");
    served.end();
}

#[test]
fn a_handle_never_finds_another_file() {
    let served = Served::new(&files(100), |_| ());
    let handles = served.handles();
    served.end();
    let served = Served::new(&files(200), |_| ());
    // All roots are one to FUSE.
    for handle in &handles[1..] {
        assert_eq!(served.behind(handle), Err(nix::libc::ESTALE));
        // Nor after the other file with the number is known.
        assert_eq!(
            fs::read(served.mount.path("name")).unwrap(),
            pattern(4, 5_000)
        );
    }
    served.end();
    // A number that no file has.
    let nodes = vec![Node::dir(&[])];
    let served = Served::new(&Files::new(nodes, &[]), |_| ());
    assert_eq!(served.behind(&handles[3]), Err(nix::libc::ESTALE));
    let counters = served.serving[0].counters();
    assert_eq!(counters.errors, 0, "nothing failed");
    served.end();
}

/// Servers before this one said nothing of handles, and gave all files one generation.
#[test]
fn a_mount_of_an_earlier_server_goes_on_as_it_was() {
    let mut served = Served::new(&files(100), |request| {
        for (word, bit) in [EXPORT, NO_EXPORT] {
            let at = ABILITIES[word];
            let had = u32::from_ne_bytes(*request[at..].first_chunk().unwrap());
            set(request, at, had & !bit);
        }
    });
    assert!(!served.told(EXPORT) && !served.told(NO_EXPORT));
    let mut held = File::open(served.mount.path("name")).unwrap();
    let handles = served.handles();
    served.take_over(&files(100));
    assert_eq!(served.handles(), handles);
    // Looked up again by its other name, it is still the file that is open.
    assert!(fs::metadata(served.mount.path("dir/deep/other name")).is_ok());
    let mut bytes = Vec::new();
    held.read_to_end(&mut bytes).unwrap();
    assert_eq!(bytes, pattern(4, 5_000));
    drop(held);
    served.end();
}
