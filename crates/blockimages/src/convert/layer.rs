//! One layer: its files' data, the metadata of the whole tree, and the superblock.

use std::cell::RefCell;
use std::collections::HashMap;
use std::io::{self, Read};

use blocks::{Digest, FileId, NodeKind, Tree};
use erofs::BLOCK_BYTES;
use lsmt::{LayerBody, LayerInfo, SECTOR, Storage, Uuid, write_layer};
use oci::LayerBlob;
use oci::unpack::{LayerTree, Limits, UnpackError, read_layer_with_places, stack};

use super::filesystem::Metadata;
use super::layout::MadeLayer;
use super::{ConvertError, ConvertOptions, DataPlace};
use crate::turbo::MARKER;

/// Bytes of a file that are copied at once.
const COPY_BYTES: usize = 256 << 10;
/// The file in the tar of a blob.
const BLOB_NAME: &[u8] = b"overlaybd.commit";
/// Most files of the tar of a turboOCI layer: the root, the metadata, the marker, and the index.
const TURBO_FILES: usize = 4;
const BLOCK: u64 = BLOCK_BYTES as u64;

/// The layers below the next one.
#[derive(Debug, Default)]
pub(super) struct Below(Vec<Placed>);

#[derive(Debug)]
struct Placed {
    tree: Tree,
    places: HashMap<FileId, u32>,
    end_block: u32,
}

impl Below {
    pub(super) fn add(&mut self, layer: MadeLayer) {
        self.0.push(Placed::new(layer));
    }

    /// Returns the first block that no layer has.
    fn end_block(&self, options: &ConvertOptions) -> Result<u32, ConvertError> {
        match self.0.last() {
            Some(layer) => Ok(layer.end_block),
            None => options.file_system.data_start(options.virtual_size),
        }
    }
}

impl Placed {
    fn new(layer: MadeLayer) -> Self {
        let places = places_of(&layer.tree, &layer.places);
        Self {
            tree: layer.tree,
            places,
            end_block: layer.end_block,
        }
    }
}

fn places_of(tree: &Tree, places: &[u32]) -> HashMap<FileId, u32> {
    files_of(tree).zip(places.iter().copied()).collect()
}

fn files_of(tree: &Tree) -> impl Iterator<Item = FileId> {
    let files = tree.files();
    files.filter_map(|(file, inode)| (inode.attr.kind == NodeKind::File).then_some(file))
}

/// A layer that is to be converted.
#[derive(Debug)]
pub(super) struct LayerTask<'a> {
    pub(super) chain_id: Digest,
    pub(super) parent: Option<Digest>,
    pub(super) options: &'a ConvertOptions,
}

impl LayerTask<'_> {
    /// Writes the blob, and returns the data that the layers above need.
    pub(super) fn write(
        &self,
        layer: &LayerBlob,
        below: &Below,
        storage: &dyn Storage,
        watch: oci::Watch<'_>,
    ) -> Result<MadeLayer, ConvertError> {
        let uuid = |digest: Digest| Uuid::from_chain_id(&digest.0);
        let info = LayerInfo {
            uuid: uuid(self.chain_id),
            parent: self.parent.map_or(Uuid::NIL, uuid),
            virtual_size: self.options.virtual_size,
            message: Vec::new(),
        };
        let mut made = None;
        write_layer::<ConvertError>(storage, self.options.blob(), &info, |body| {
            made = Some(self.fill(body, layer, below, watch)?);
            Ok(())
        })?;
        made.ok_or(ConvertError::Rule {
            rule: "nothing was written",
        })
    }

    fn fill(
        &self,
        body: &mut LayerBody<'_>,
        layer: &LayerBlob,
        below: &Below,
        watch: oci::Watch<'_>,
    ) -> Result<MadeLayer, ConvertError> {
        let start = below.end_block(self.options)?;
        let device = RefCell::new(Device {
            body,
            next: u64::from(start) * BLOCK,
            size: self.options.virtual_size,
            buffer: vec![0; COPY_BYTES],
        });
        let LayerTree { tree, contents } = read_layer_with_places(
            layer,
            &Limits::default(),
            &mut |reader: &mut dyn Read, place| match self.options.data {
                DataPlace::Copied => device.borrow_mut().append_file(reader),
                DataPlace::Referred => device.borrow_mut().refer_to_file(reader, place),
            },
            watch,
        )
        .map_err(|error| self.explain(error, &device.borrow()))?;
        if let Some(rule) = converted_already(&tree) {
            return Err(ConvertError::Rule { rule });
        }
        let device = device.into_inner();
        let own = places_of(&tree, &contents);

        let mut trees: Vec<_> = below.0.iter().map(|layer| &layer.tree).collect();
        trees.push(&tree);
        let (all, origins) = stack(&trees)?;
        let mut places = HashMap::with_capacity(origins.len());
        for (file, origin) in files_of(&all).zip(origins) {
            let known = below
                .0
                .get(origin.layer)
                .map_or(&own, |layer| &layer.places);
            places.insert(file, known.get(&origin.file).copied().unwrap_or(0));
        }
        let metadata = Metadata {
            tree: &all,
            uuid: Uuid::from_chain_id(&self.chain_id.0).bytes(),
            device: self.options.virtual_size,
            start: device.block()?,
            files_below: below.0.iter().map(|layer| layer.tree.len() as u64).sum(),
            place: &|file| places.get(&file).copied().unwrap_or(0),
        };
        let end_block = self.options.file_system.write(&metadata, device.body)?;
        Ok(MadeLayer {
            tree,
            places: contents,
            end_block,
        })
    }

    /// Says what to do if the device was too small.
    fn explain(&self, error: UnpackError, device: &Device<'_, '_>) -> ConvertError {
        match device.next > self.options.virtual_size {
            true => device.too_small(),
            false => error.into(),
        }
    }
}

/// The device of a layer that is being written.
struct Device<'a, 'b> {
    body: &'a mut LayerBody<'b>,
    /// The next free byte: a block's first.
    next: u64,
    size: u64,
    buffer: Vec<u8>,
}

impl Device<'_, '_> {
    fn too_small(&self) -> ConvertError {
        ConvertError::TooSmall { size: self.size }
    }

    fn block(&self) -> Result<u32, ConvertError> {
        u32::try_from(self.next / BLOCK).map_err(|_| self.too_small())
    }

    /// Appends whole blocks.
    fn append(&mut self, bytes: &[u8]) -> Result<(), ConvertError> {
        let at = self.next;
        self.next += bytes.len() as u64;
        if self.next > self.size {
            return Err(self.too_small());
        }
        Ok(self.body.append(at, bytes)?)
    }

    /// Places a file whose content stays in the tar, and returns its first block; 0 for one that is empty.
    fn refer_to_file(&mut self, reader: &mut dyn Read, place: u64) -> io::Result<u32> {
        let len = io::copy(reader, &mut io::sink())?;
        if len == 0 {
            return Ok(0);
        }
        let mut refer = || {
            let (block, at) = (self.block()?, self.next);
            self.next += len.next_multiple_of(BLOCK);
            if self.next > self.size {
                return Err(self.too_small());
            }
            // A tar fills up the last sector; what is behind it reads as zeros, since no layer has it.
            self.body.refer(at, len.next_multiple_of(SECTOR), place)?;
            Ok(block)
        };
        refer().map_err(io::Error::other)
    }

    /// Appends a file, and returns its first block; 0 for one that is empty.
    fn append_file(&mut self, reader: &mut dyn Read) -> io::Result<u32> {
        let mut first = 0;
        let mut buffer = std::mem::take(&mut self.buffer);
        let copied = loop {
            match fill(reader, &mut buffer) {
                Err(error) => break Err(error),
                Ok(0) => break Ok(first),
                Ok(len) => {
                    let whole = len.next_multiple_of(BLOCK_BYTES);
                    buffer[len..whole].fill(0);
                    let block = self.block();
                    let appended = block.and_then(|block| {
                        self.append(&buffer[..whole])?;
                        Ok(block)
                    });
                    match appended {
                        Ok(block) if first == 0 => first = block,
                        Ok(_) => {}
                        Err(error) => break Err(io::Error::other(error)),
                    }
                }
            }
        };
        self.buffer = buffer;
        copied
    }
}

/// Returns what to do about a layer that was converted already: a tar with nothing but a blob, or with the metadata of a
/// turboOCI layer.
fn converted_already(tree: &Tree) -> Option<&'static str> {
    let has = |name: &[u8]| tree.resolve(name).is_some();
    if tree.len() == 2 && has(BLOB_NAME) {
        return Some(
            "a layer is that of a block image: convert it in the directory where that image was converted",
        );
    }
    let is_turbo = has(MARKER.as_bytes()) && tree.len() <= TURBO_FILES;
    is_turbo.then_some(
        "a layer has only metadata (turboOCI): convert the container image that it refers to",
    )
}

/// Reads until the buffer is full or nothing comes any more; returns how much there is.
fn fill(reader: &mut dyn Read, buffer: &mut [u8]) -> io::Result<usize> {
    let mut len = 0;
    while len < buffer.len() {
        match reader.read(&mut buffer[len..]) {
            Ok(0) => break,
            Ok(more) => len += more,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(len)
}
