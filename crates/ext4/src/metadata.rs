//! All metadata of a tree.

use std::ops::Range;

use blocks::{Attr, FileId, Inode, NodeKind, Timestamp, Tree};

use crate::dirs::{self, Name};
use crate::error::{BLOCK_BYTES, Ext4Error};
use crate::extents::{Extents, ROOT_BYTES};
use crate::geometry::{BLOCK_INODES, GROUP_BLOCKS, GROUP_INODES, Geometry, INODE_BYTES};
use crate::groups::{Bits, Usage};
use crate::inodes::{ATTRIBUTES_ROOM, Content, LOST_AND_FOUND, Node, ROOT, number_of, numbers};
use crate::run::Run;
use crate::superblock::Superblock;
use crate::xattrs::Attributes;

const LOST_AND_FOUND_NAME: &[u8] = b"lost+found";
const EPOCH: Timestamp = Timestamp { secs: 0, nanos: 0 };
/// As `mke2fs` makes it, at the same time always.
const LOST_AND_FOUND_ATTR: Attr = Attr {
    kind: NodeKind::Dir,
    perm: 0o700,
    uid: 0,
    gid: 0,
    nlink: 2,
    rdev: 0,
    size: 0,
    blocks: 0,
    atime: EPOCH,
    mtime: EPOCH,
    ctime: EPOCH,
    source_inode: 0,
};
/// Inodes before the first one that files have, the root's included.
const RESERVED: Range<u32> = 0..10;

/// What a file system has.
#[derive(Clone, Copy)]
pub struct Volume<'a> {
    /// How its device is divided.
    pub geometry: Geometry,
    /// What it is called.
    pub uuid: [u8; 16],
    /// Its files.
    pub tree: &'a Tree,
    /// Returns the first block of a regular file, whose content is in consecutive blocks, the last one
    /// filled up with zeros. It is not called for files without content.
    pub place: &'a dyn Fn(FileId) -> u32,
}

impl std::fmt::Debug for Volume<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Volume")
            .field("geometry", &self.geometry)
            .field("files", &self.tree.len())
            .finish_non_exhaustive()
    }
}

/// Metadata of a file system. All blocks that are in no run, have no data and are below
/// [`Geometry::data_start`] must read as zeros.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Written {
    /// What is to be written. No two overlap.
    pub runs: Vec<Run>,
    /// What has to be zero in the place of what a layer below may have written.
    pub zeros: Range<u32>,
    /// The first block that nothing uses.
    pub end: u32,
}

/// Returns the metadata of a file system. What has no fixed place is written from the block `start` on, which
/// comes behind all data. On a device that had a file system before, `files_before` is at least the number
/// of its files; otherwise it is 0.
///
/// # Errors
/// If the tree exceeds a limit of the format, or of the device.
pub fn metadata(volume: &Volume<'_>, start: u32, files_before: u64) -> Result<Written, Ext4Error> {
    let geometry = volume.geometry;
    let files = volume.tree.len() as u64;
    let limit = geometry.inodes();
    let last_inode = match u32::try_from(numbers(files)) {
        Ok(last) if last <= limit => last,
        _ => {
            let limit = u64::from(limit) - numbers(0);
            return Err(Ext4Error::TooManyFiles { files, limit });
        }
    };
    let mut writer = Writer {
        volume,
        start,
        behind: Vec::new(),
        table: vec![0; last_inode as usize * INODE_BYTES],
        data: Vec::new(),
        dirs: Vec::new(),
    };
    writer.write()?;
    writer.finish(last_inode, files_before)
}

struct Writer<'a> {
    volume: &'a Volume<'a>,
    start: u32,
    /// What is written from `start` on.
    behind: Vec<u8>,
    /// All inodes.
    table: Vec<u8>,
    /// The blocks of files.
    data: Vec<Range<u32>>,
    /// The numbers of directories' inodes.
    dirs: Vec<u32>,
}

impl Writer<'_> {
    fn too_small(&self) -> Ext4Error {
        let bytes = self.volume.geometry.bytes();
        Ext4Error::TooSmall { bytes }
    }

    fn write(&mut self) -> Result<(), Ext4Error> {
        let tree = self.volume.tree;
        let mut above = vec![FileId::ROOT; tree.len()];
        for (dir, inode) in tree.files() {
            if inode.attr.kind == NodeKind::Dir {
                for (_, file) in tree.entries(dir) {
                    above[file.index()] = dir;
                }
            }
        }
        let add = tree.child(FileId::ROOT, LOST_AND_FOUND_NAME).is_none();
        for (file, inode) in tree.files() {
            let mut node = self.node(file, inode, above[file.index()], add)?;
            if file == FileId::ROOT && add {
                node.attr.nlink += 1;
            }
            self.put(number_of(file), &node)?;
        }
        if add {
            let block = self.append(dirs::encode_lost_and_found(LOST_AND_FOUND, ROOT))?;
            let node = Node {
                attr: LOST_AND_FOUND_ATTR,
                size: BLOCK_BYTES as u64,
                content: Content::Extents(Extents::encode(block, 1, 0)?.root),
                blocks: 1,
                attributes: Vec::new(),
                attribute_block: 0,
            };
            self.put(LOST_AND_FOUND, &node)?;
            self.dirs.push(LOST_AND_FOUND);
        }
        Ok(())
    }

    /// Returns a file's inode, and writes what it has in blocks.
    fn node(
        &mut self,
        file: FileId,
        inode: &Inode,
        above: FileId,
        add: bool,
    ) -> Result<Node, Ext4Error> {
        let tree = self.volume.tree;
        let attr = inode.attr;
        let attributes = Attributes::encode(tree.xattrs(file), ATTRIBUTES_ROOM)?;
        let attribute_block = match attributes.block.is_empty() {
            true => 0,
            false => self.append(attributes.block)?,
        };
        let mut node = Node {
            attr,
            size: 0,
            content: Content::Bytes(Vec::new()),
            blocks: u64::from(attribute_block > 0),
            attributes: attributes.inline,
            attribute_block,
        };
        match attr.kind {
            NodeKind::File => {
                node.size = attr.size;
                let blocks = attr.size.div_ceil(BLOCK_BYTES as u64);
                let blocks = u32::try_from(blocks).map_err(|_| self.too_small())?;
                let place = if blocks > 0 {
                    (self.volume.place)(file)
                } else {
                    0
                };
                let end = place.checked_add(blocks).ok_or_else(|| self.too_small())?;
                self.data.push(place..end);
                self.run(&mut node, place, blocks)?;
            }
            NodeKind::Dir => {
                self.dirs.push(number_of(file));
                let names = self.directory(file, above, add);
                self.inner(&mut node, names)?;
            }
            NodeKind::Symlink => {
                let target = tree.link_target(file).unwrap_or_default().to_vec();
                match target.len() < ROOT_BYTES {
                    true => {
                        node.size = target.len() as u64;
                        node.content = Content::Bytes(target);
                    }
                    false => self.inner(&mut node, target)?,
                }
            }
            NodeKind::CharDevice | NodeKind::BlockDevice => {
                node.content = Content::Device(attr.rdev);
            }
            NodeKind::Fifo | NodeKind::Socket => {}
        }
        Ok(node)
    }

    fn directory(&self, dir: FileId, above: FileId, add: bool) -> Vec<u8> {
        let tree = self.volume.tree;
        let kind_of = |file| {
            tree.inode(file)
                .map_or(NodeKind::File, |inode| inode.attr.kind)
        };
        let names = tree.entries(dir).map(|(name, file)| Name {
            name,
            inode: number_of(file),
            kind: kind_of(file),
        });
        let added = (dir == FileId::ROOT && add).then_some(Name {
            name: LOST_AND_FOUND_NAME,
            inode: LOST_AND_FOUND,
            kind: NodeKind::Dir,
        });
        let around = dirs::around(number_of(dir), number_of(above));
        dirs::encode(around.into_iter().chain(added).chain(names))
    }

    /// Writes content that is metadata.
    fn inner(&mut self, node: &mut Node, content: Vec<u8>) -> Result<(), Ext4Error> {
        node.size = content.len() as u64;
        // A directory or a target of fewer bytes than memory has blocks.
        let blocks = content.len().div_ceil(BLOCK_BYTES);
        let blocks = u32::try_from(blocks).map_err(|_| self.too_small())?;
        let place = self.append(content)?;
        self.run(node, place, blocks)
    }

    /// Gives an inode a run of blocks.
    fn run(&mut self, node: &mut Node, place: u32, blocks: u32) -> Result<(), Ext4Error> {
        let extents = Extents::encode(place, blocks, self.next()?)?;
        node.blocks += u64::from(blocks) + (extents.blocks.len() / BLOCK_BYTES) as u64;
        self.append(extents.blocks)?;
        node.content = Content::Extents(extents.root);
        Ok(())
    }

    fn next(&self) -> Result<u32, Ext4Error> {
        let blocks = u32::try_from(self.behind.len() / BLOCK_BYTES).ok();
        let next = blocks.and_then(|blocks| self.start.checked_add(blocks));
        let next = next.filter(|next| *next <= self.volume.geometry.blocks());
        next.ok_or_else(|| self.too_small())
    }

    /// Appends whole blocks, the last one filled up, and returns the first one.
    fn append(&mut self, bytes: Vec<u8>) -> Result<u32, Ext4Error> {
        let at = self.next()?;
        self.behind.extend(bytes);
        let whole = self.behind.len().next_multiple_of(BLOCK_BYTES);
        self.behind.resize(whole, 0);
        Ok(at)
    }

    fn put(&mut self, number: u32, node: &Node) -> Result<(), Ext4Error> {
        let at = (number as usize - 1) * INODE_BYTES;
        self.table[at..at + INODE_BYTES].copy_from_slice(&node.encode()?);
        Ok(())
    }

    fn finish(self, last_inode: u32, files_before: u64) -> Result<Written, Ext4Error> {
        let Volume { geometry, uuid, .. } = *self.volume;
        let end = self.next()?;
        let mut blocks = Bits::new(end.div_ceil(GROUP_BLOCKS), GROUP_BLOCKS);
        blocks.set(0..geometry.data_start());
        blocks.set(self.start..end);
        for range in self.data {
            match range.end <= end {
                true => blocks.set(range),
                false => {
                    return Err(Ext4Error::TooSmall {
                        bytes: geometry.bytes(),
                    });
                }
            }
        }
        let mut inodes = Bits::new(last_inode.div_ceil(GROUP_INODES), GROUP_INODES);
        inodes.set(RESERVED);
        // The one of the directory for lost files is free if the tree has such a directory.
        let added = self.dirs.last() == Some(&LOST_AND_FOUND);
        inodes.set(RESERVED.end + u32::from(!added)..last_inode);
        let usage = Usage {
            geometry,
            uuid,
            blocks,
            inodes,
            dirs: &self.dirs,
            last_inode,
        };
        let groups = usage.encode();
        let superblock = Superblock {
            geometry,
            uuid,
            free_blocks: groups.free_blocks,
            free_inodes: groups.free_inodes,
        };
        let mut runs = groups.runs;
        let mut put = |block, bytes| runs.push(Run { block, bytes });
        put(0, superblock.encode());
        let mut table = self.table;
        table.resize(table.len().next_multiple_of(BLOCK_BYTES), 0);
        put(geometry.table_start(), table);
        if !self.behind.is_empty() {
            put(self.start, self.behind);
        }
        let zeros = geometry.table_start() + last_inode.div_ceil(BLOCK_INODES);
        let before = numbers(files_before).min(geometry.inodes().into());
        let before = u32::try_from(before).unwrap_or(0).div_ceil(BLOCK_INODES);
        let zeros_end = geometry.table_start() + before;
        Ok(Written {
            runs,
            zeros: zeros..zeros_end.max(zeros),
            end,
        })
    }
}
