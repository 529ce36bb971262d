//! Where the blocks of a mount's boot image come from.

use std::sync::Arc;

use blocks::{BlockCache, BlockRange, FileKey, Lookup, ReplayPlan};
use blockservice::by_chunk;
use blockservice::client::{Planned, ServedPlan};
use bootimg::Attached;

/// The boot image of a source of the service.
#[derive(Debug)]
pub struct NicBoot {
    /// Its name.
    pub name: String,
    /// The blocks that boots read.
    pub recorded: Recorded,
    /// Its blocks.
    pub blocks: BootBlocks,
}

/// The recorded reads of boots of a source.
#[derive(Debug)]
pub enum Recorded {
    /// A boot image, attached to the tree that is served.
    Image(Arc<Attached>),
    /// A plan that the service made of a boot image.
    Plan(ServedPlan),
}

impl Recorded {
    /// Returns what to bring back, and in which order.
    #[must_use]
    pub fn plan(&self) -> &ReplayPlan {
        match self {
            Self::Image(image) => image.plan(),
            Self::Plan(served) => &served.plan,
        }
    }

    /// Returns the boot image, if it is here.
    #[must_use]
    pub const fn image(&self) -> Option<&Arc<Attached>> {
        match self {
            Self::Image(image) => Some(image),
            Self::Plan(_) => None,
        }
    }

    /// Returns whether only the plan is here, and the blocks come from the service.
    #[must_use]
    pub const fn is_plan(&self) -> bool {
        matches!(self, Self::Plan(_))
    }

    /// Returns the id of its content.
    #[must_use]
    pub fn id(&self) -> String {
        match self {
            Self::Image(image) => image.image().info().id.to_string(),
            Self::Plan(served) => served.id.to_string(),
        }
    }
}

/// The blocks of a boot image.
#[derive(Debug)]
pub enum BootBlocks {
    /// Those of the boot image.
    Own(Arc<Attached>),
    /// Those of the source itself: another machine made the image.
    OfSource(Planned),
}

impl BootBlocks {
    /// Has something done that goes through all of them in the order of `plan`, or in a similar one in which they
    /// are read faster.
    pub fn in_order<T>(
        &self,
        plan: &ReplayPlan,
        work: impl FnOnce(&ReplayPlan, &dyn BlockCache) -> T,
    ) -> T {
        match self {
            Self::Own(image) => work(plan, &image.passing()),
            Self::OfSource(planned) => work(&by_chunk(plan), &planned.in_order()),
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
