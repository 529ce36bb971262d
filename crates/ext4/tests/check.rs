//! File systems of many kinds of trees, as `e2fsck` and `debugfs` of e2fsprogs see them.

#![expect(clippy::unwrap_used, reason = "tests")]

use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::process::Command;

use blocks::{
    Attr, DirEntry, FileId, Inode, NodeData, NodeKind, Span, Timestamp, Tree, TreeParts, Xattr,
};
use ext4::{BLOCK_BYTES, Geometry, Volume, Written};

/// Builds a tree, a directory at a time.
#[derive(Default)]
struct Builder(TreeParts);

impl Builder {
    fn string(&mut self, bytes: &[u8]) -> Span {
        let start = u32::try_from(self.0.bytes.len()).unwrap();
        self.0.bytes.extend_from_slice(bytes);
        let len = u32::try_from(bytes.len()).unwrap();
        Span { start, len }
    }

    fn add(&mut self, kind: NodeKind, size: u64, xattrs: &[(&[u8], &[u8])]) -> FileId {
        let time = Timestamp {
            secs: 1_700_000_000,
            nanos: 5,
        };
        let start = u32::try_from(self.0.xattrs.len()).unwrap();
        for (name, value) in xattrs {
            let (name, value) = (self.string(name), self.string(value));
            self.0.xattrs.push(Xattr { name, value });
        }
        let len = u32::try_from(xattrs.len()).unwrap();
        let data = match kind {
            NodeKind::Dir => NodeData::Dir {
                entries: Span::default(),
            },
            NodeKind::Symlink => NodeData::Symlink {
                target: self.string(&vec![b'x'; usize::try_from(size).unwrap()]),
            },
            _ => NodeData::None,
        };
        self.0.inodes.push(Inode {
            attr: Attr {
                kind,
                perm: 0o755,
                uid: 70_000,
                gid: 80_000,
                nlink: if kind == NodeKind::Dir { 2 } else { 1 },
                rdev: 0,
                size,
                blocks: 0,
                atime: time,
                mtime: time,
                ctime: time,
                source_inode: 0,
            },
            data,
            xattrs: Span { start, len },
        });
        FileId(u32::try_from(self.0.inodes.len()).unwrap() - 1)
    }

    fn fill(&mut self, dir: FileId, files: &[(String, FileId)]) {
        let mut files = files.to_vec();
        files.sort();
        let start = u32::try_from(self.0.entries.len()).unwrap();
        for (name, file) in &files {
            let name = self.string(name.as_bytes());
            self.0.entries.push(DirEntry { name, file: *file });
            if self.0.inodes[file.index()].attr.kind == NodeKind::Dir {
                self.0.inodes[dir.index()].attr.nlink += 1;
            }
        }
        let len = u32::try_from(files.len()).unwrap();
        let entries = Span { start, len };
        self.0.inodes[dir.index()].data = NodeData::Dir { entries };
    }
}

/// A tree with a file of each kind, and `many` small ones.
fn tree(many: u32) -> Tree {
    let mut tree = Builder::default();
    let root = tree.add(NodeKind::Dir, 0, &[]);
    let mut top = Vec::new();
    for (name, kind, size) in [
        ("empty", NodeKind::File, 0),
        ("file", NodeKind::File, 5000),
        ("short", NodeKind::Symlink, 59),
        ("long", NodeKind::Symlink, 60),
        ("longest", NodeKind::Symlink, 4095),
        ("pipe", NodeKind::Fifo, 0),
        ("socket", NodeKind::Socket, 0),
        ("null", NodeKind::CharDevice, 0),
        ("disk", NodeKind::BlockDevice, 0),
    ] {
        top.push((name.to_owned(), tree.add(kind, size, &[])));
    }
    let xattrs: &[(&[u8], &[u8])] = &[(b"security.capability", &[3; 20]), (b"user.a", b"b")];
    top.push(("inline".to_owned(), tree.add(NodeKind::File, 1, xattrs)));
    let xattrs: &[(&[u8], &[u8])] = &[(b"user.a", &[9; 3000]), (b"user.bb", b"")];
    top.push(("block".to_owned(), tree.add(NodeKind::File, 1, xattrs)));
    let dir = tree.add(NodeKind::Dir, 0, &[]);
    top.push(("many".to_owned(), dir));
    let name = |at| format!("{at}-{}", "n".repeat(at as usize % 200));
    // Directories are in all groups of inodes, too.
    let kind_of = |at| match at % 100 {
        99 => NodeKind::Dir,
        _ => NodeKind::File,
    };
    let files: Vec<_> = (0..many)
        .map(|at| (name(at), tree.add(kind_of(at), 0, &[])))
        .collect();
    tree.fill(dir, &files);
    tree.fill(root, &top);
    Tree::new(tree.0).unwrap()
}

struct Device {
    file: tempfile::NamedTempFile,
    geometry: Geometry,
}

impl Device {
    fn new(bytes: u64) -> Self {
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(bytes).unwrap();
        let geometry = Geometry::new(bytes).unwrap();
        Self { file, geometry }
    }

    /// Writes a file system, whose files are one behind the other from `at` on.
    fn write(&self, tree: &Tree, at: u32, files_before: u64) -> Written {
        let mut places = Vec::new();
        let mut next = at;
        for (_, inode) in tree.files() {
            places.push(next);
            if inode.attr.kind == NodeKind::File {
                let blocks = inode.attr.size.div_ceil(BLOCK_BYTES as u64);
                next += u32::try_from(blocks).unwrap();
            }
        }
        let volume = Volume {
            geometry: self.geometry,
            uuid: [7; 16],
            tree,
            place: &|file| places[file.index()],
        };
        let written = ext4::metadata(&volume, next, files_before).unwrap();
        assert_eq!(
            ext4::metadata(&volume, next, files_before).unwrap(),
            written
        );
        let put = |block: u32, bytes: &[u8]| {
            let at = u64::from(block) * BLOCK_BYTES as u64;
            self.file.as_file().write_all_at(bytes, at).unwrap();
        };
        for run in &written.runs {
            put(run.block, &run.bytes);
        }
        for block in written.zeros.clone() {
            put(block, &[0; BLOCK_BYTES]);
        }
        written
    }

    fn check(&self) {
        let checked = output("e2fsck", &["-fn"], self.file.path());
        let said = String::from_utf8_lossy(&checked.stdout);
        assert!(checked.status.success(), "{said}");
    }

    fn debugfs(&self, request: &str) -> String {
        let found = output("debugfs", &["-R", request], self.file.path());
        String::from_utf8(found.stdout).unwrap()
    }
}

fn output(program: &str, args: &[&str], last: &Path) -> std::process::Output {
    let mut command = Command::new(program);
    let path = format!("{}:/usr/sbin:/sbin", std::env::var("PATH").unwrap());
    command.args(args).arg(last).env("PATH", path);
    let output = command.output();
    output.unwrap_or_else(|error| panic!("{program} (of e2fsprogs) cannot be run: {error}"))
}

#[test]
fn programs_find_nothing_wrong() {
    for (bytes, many) in [
        (8 << 20, 10),
        (64 << 20, 900),
        // A last group that is short, and more inodes than one group has.
        ((256 << 20) + (1 << 20), 9000),
        // Not even a block of its last group.
        (64 << 30, 100),
    ] {
        let device = Device::new(bytes);
        device.write(&tree(many), device.geometry.data_start(), 0);
        device.check();
        let stat = device.debugfs("stat /file");
        for part in [
            "User: 70000",
            "Group: 80000",
            "Size: 5000",
            "mtime: 0x6553f100:00000014",
        ] {
            assert!(stat.contains(part), "{part} is not in {stat}");
        }
        assert!(
            device
                .debugfs("ea_list /inline")
                .contains("user.a (1) = \"b\"")
        );
        assert!(device.debugfs("ea_list /block").contains("user.a (3000)"));
        assert!(device.debugfs("ls -p /").contains("lost+found"));
    }
}

#[test]
fn fewer_files_replace_more() {
    let device = Device::new(256 << 20);
    let (before, after) = (tree(9000), tree(3));
    let written = device.write(&before, device.geometry.data_start(), 0);
    assert_eq!(written.zeros.len(), 0);
    device.check();
    let again = device.write(&after, written.end, before.len() as u64);
    assert!(again.zeros.len() > 500);
    device.check();
}

#[test]
fn long_files_have_blocks_of_extents() {
    let mut long = Builder::default();
    let root = long.add(NodeKind::Dir, 0, &[]);
    let file = long.add(NodeKind::File, (700 << 20) + 1, &[]);
    let own = long.add(NodeKind::Dir, 0, &[]);
    let files = [("long".to_owned(), file), ("lost+found".to_owned(), own)];
    long.fill(root, &files);
    let long = Tree::new(long.0).unwrap();
    let device = Device::new(1 << 30);
    device.write(&long, device.geometry.data_start(), 0);
    device.check();
    assert!(device.debugfs("dump_extents /long").contains("1/ 1"));
}

#[test]
fn what_does_not_fit_is_refused() {
    let device = Device::new(3 << 20);
    let volume = |tree, start| {
        let volume = Volume {
            geometry: device.geometry,
            uuid: [7; 16],
            tree,
            place: &|_| device.geometry.data_start(),
        };
        ext4::metadata(&volume, start, 0).map(drop)
    };
    let few = tree(10);
    volume(&few, device.geometry.data_start() + 2).unwrap();
    let small = ext4::Ext4Error::TooSmall { bytes: 3 << 20 };
    assert_eq!(volume(&few, 764), Err(small));
    let many = volume(&tree(8200), 700).unwrap_err();
    assert!(many.to_string().contains("room for 8182"), "{many}");
}
