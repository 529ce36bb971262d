//! File systems that images can have.

use blocks::{FileId, Tree};
use erofs::BLOCK_BYTES;
use lsmt::LayerBody;

use super::ConvertError;

/// The file system of a converted image.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum FileSystem {
    /// It can only be read, and Linux mounts it from a file without a loop device.
    #[default]
    Erofs,
    /// It can be written, too: that of overlaybd's own images.
    Ext4,
}

/// The metadata of a layer and of all below it.
pub(super) struct Metadata<'a> {
    pub(super) tree: &'a Tree,
    pub(super) uuid: [u8; 16],
    /// Bytes of the device.
    pub(super) device: u64,
    /// The first block behind all data.
    pub(super) start: u32,
    /// At least the number of files that the layers below have together.
    pub(super) files_below: u64,
    /// Returns the first block of a file with content.
    pub(super) place: &'a dyn Fn(FileId) -> u32,
}

impl FileSystem {
    /// Returns what Linux and overlaybd call it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Erofs => "erofs",
            Self::Ext4 => "ext4",
        }
    }

    /// Returns what the metadata of a turboOCI layer are called.
    pub(super) fn metadata_name(self) -> String {
        format!("{}.fs.meta", self.name())
    }

    /// Returns the first block of a device that data can have.
    pub(super) fn data_start(self, device: u64) -> Result<u32, ConvertError> {
        Ok(match self {
            // The first one is the superblock's.
            Self::Erofs => 1,
            Self::Ext4 => ext4::Geometry::new(device)?.data_start(),
        })
    }

    /// Appends metadata to a layer, and returns the first block behind them.
    pub(super) fn write(
        self,
        metadata: &Metadata<'_>,
        body: &mut LayerBody<'_>,
    ) -> Result<u32, ConvertError> {
        match self {
            Self::Erofs => metadata.write_erofs(body),
            Self::Ext4 => metadata.write_ext4(body),
        }
    }
}

impl Metadata<'_> {
    fn write_erofs(&self, body: &mut LayerBody<'_>) -> Result<u32, ConvertError> {
        let written = erofs::metadata(self.tree, self.uuid, self.start, self.place)?;
        let blocks = u32::try_from(written.metadata.len() / BLOCK_BYTES).ok();
        let end = blocks.and_then(|blocks| self.start.checked_add(blocks));
        let end = end.filter(|end| u64::from(*end) * BLOCK_BYTES as u64 <= self.device);
        let size = self.device;
        let end = end.ok_or(ConvertError::TooSmall { size })?;
        body.append(at(self.start), &written.metadata)?;
        body.append(0, &written.superblock)?;
        Ok(end)
    }

    fn write_ext4(&self, body: &mut LayerBody<'_>) -> Result<u32, ConvertError> {
        let volume = ext4::Volume {
            geometry: ext4::Geometry::new(self.device)?,
            uuid: self.uuid,
            tree: self.tree,
            place: self.place,
        };
        let written = ext4::metadata(&volume, self.start, self.files_below)?;
        for run in &written.runs {
            body.append(at(run.block), &run.bytes)?;
        }
        let zeros = written.zeros;
        body.zeros(at(zeros.start), at(zeros.end) - at(zeros.start))?;
        Ok(written.end)
    }
}

/// Returns the first byte of a block.
fn at(block: u32) -> u64 {
    u64::from(block) * BLOCK_BYTES as u64
}

const _: () = assert!(ext4::BLOCK_BYTES == BLOCK_BYTES);
