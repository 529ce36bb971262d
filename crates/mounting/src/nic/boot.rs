//! Where the blocks of a mount's boot image come from.

use std::sync::Arc;

use blocks::{BlockCache, BlockRange, FileKey, Lookup};
use blockservice::client::Planned;
use bootimg::Attached;

/// The boot image of a source of the service.
#[derive(Debug)]
pub struct NicBoot {
    /// What it is called.
    pub name: String,
    /// The image, attached to the source's index.
    pub image: Arc<Attached>,
    /// Its blocks.
    pub blocks: BootBlocks,
}

/// The blocks of a boot image.
#[derive(Debug)]
pub enum BootBlocks {
    /// Those in it.
    Own(Arc<Attached>),
    /// Those of the source itself: another machine made the image.
    OfSource(Planned),
}

impl BootBlocks {
    /// Has something done that goes through all of them in the order of the plan.
    pub fn in_order<T>(&self, work: impl FnOnce(&dyn BlockCache) -> T) -> T {
        match self {
            Self::Own(image) => work(&image.passing()),
            Self::OfSource(planned) => work(&planned.in_order()),
        }
    }
}

impl BlockCache for BootBlocks {
    fn get(&self, file: &FileKey, range: BlockRange, out: &mut [u8]) -> Lookup {
        match self {
            Self::Own(image) => image.get(file, range, out),
            Self::OfSource(planned) => planned.get(file, range, out),
        }
    }

    fn get_once(&self, file: &FileKey, range: BlockRange, out: &mut [u8]) -> Lookup {
        match self {
            Self::Own(image) => image.get_once(file, range, out),
            Self::OfSource(planned) => planned.get_once(file, range, out),
        }
    }
}
