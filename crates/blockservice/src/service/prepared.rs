//! What a START is answered with: packed indexes, and the plans of boots. Each is made once.

use std::path::PathBuf;
use std::sync::Arc;

use blocks::ContentId;
use bootimg::{Image, OpenError, decode_plan, encode_plan};
use chunks::index::{Index, pack};
use chunks::{Catalog, Codec};
use tokio::sync::Semaphore;

use super::recent::Recent;
use crate::plan_order::plan_order;

/// Bytes of packed indexes that are kept, and of plans.
const PACKED_BYTES: u64 = 48 << 20;
const PLAN_BYTES: u64 = 16 << 20;
/// How many are made at a time: it takes a core, and memory for a whole tree.
const MAKERS: usize = 2;
/// What a boot image may describe besides twice the length of its source's index: its tree is about
/// that of the index. A hostile one would have the service decode a GiB.
const DESCRIPTION_BYTES: u64 = 16 << 20;

/// The plan of a source's boots.
#[derive(Debug)]
pub(crate) struct Plan {
    /// The hash of its bytes.
    pub(crate) id: ContentId,
    /// As it is sent.
    pub(crate) bytes: Vec<u8>,
    /// The chunks that a stream brings, in order.
    pub(crate) order: Vec<u32>,
}

/// A packed index.
#[derive(Debug)]
pub(crate) struct Packed {
    pub(crate) codec: Codec,
    pub(crate) bytes: Vec<u8>,
}

/// Packed indexes by their id, and plans by the ids of index and boot image. `None` is a boot image
/// that cannot be used.
#[derive(Debug)]
pub(crate) struct Prepared {
    packed: Recent<ContentId, Packed>,
    plans: Recent<(ContentId, ContentId), Option<Arc<Plan>>>,
    makers: Semaphore,
}

/// It could not be made: the boot image was just removed, or the work was cancelled.
#[derive(Debug)]
pub(crate) struct NotMade;

impl Default for Prepared {
    fn default() -> Self {
        let plan_bytes = |plan: &Option<Arc<Plan>>| {
            let bytes = |plan: &Arc<Plan>| (plan.bytes.len() + 4 * plan.order.len()) as u64;
            plan.as_ref().map_or(0, bytes)
        };
        Self {
            packed: Recent::new(PACKED_BYTES, |packed| packed.bytes.len() as u64),
            plans: Recent::new(PLAN_BYTES, plan_bytes),
            makers: Semaphore::new(MAKERS),
        }
    }
}

impl Prepared {
    /// Returns how many bytes of memory it takes.
    pub(crate) fn bytes(&self) -> u64 {
        self.packed.bytes() + self.plans.bytes()
    }

    /// Returns an index as it is sent.
    ///
    /// # Errors
    /// If the work was not done.
    pub(crate) async fn packed(&self, index: &Arc<Index>) -> Result<Arc<Packed>, NotMade> {
        let of = Arc::clone(index);
        let pack = move || {
            let (codec, bytes) = pack(of.bytes());
            Ok(Packed { codec, bytes })
        };
        self.packed.get(index.id(), self.on_thread(pack)).await
    }

    /// Returns the plan of the newest boot image of an index that is of use, or the one with the id `wanted`.
    pub(crate) async fn plan(
        &self,
        catalog: &Catalog,
        index: &Arc<Index>,
        wanted: Option<ContentId>,
    ) -> Option<Arc<Plan>> {
        for boot in catalog.boots(&index.id()) {
            let Some(path) = catalog.boot_path(&index.id(), &boot.id) else {
                continue;
            };
            let of = Arc::clone(index);
            let make = self.on_thread(move || plan_of(path, &of));
            let plan = self.plans.get((index.id(), boot.id), make).await;
            if let Ok(Some(plan)) = plan.as_deref()
                && wanted.is_none_or(|id| plan.id == id)
            {
                return Some(Arc::clone(plan));
            }
        }
        None
    }

    /// Does work on a thread that may block, when it is its turn.
    async fn on_thread<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> Result<T, NotMade> + Send + 'static,
    ) -> Result<T, NotMade> {
        let _turn = self.makers.acquire().await.map_err(|_| NotMade)?;
        let done = tokio::task::spawn_blocking(work).await;
        done.map_err(|_| NotMade)?
    }
}

/// Makes the plan of a boot image, whose files are matched with those of the index by path and
/// version. A boot image that is damaged or names nothing of the index is no use.
fn plan_of(path: PathBuf, index: &Index) -> Result<Option<Arc<Plan>>, NotMade> {
    let most = 2 * index.bytes().len() as u64 + DESCRIPTION_BYTES;
    let image = match Image::open_within(path, most) {
        Ok(image) => image,
        Err(OpenError::Io { .. }) => return Err(NotMade),
        Err(error) => {
            log::info!("no plan of a boot image: {error}");
            return Ok(None);
        }
    };
    let attached = Arc::new(image).attach(index.tree());
    let bytes = encode_plan(&index.id(), attached.plan());
    // What a client makes of it: the end of a long one was cut.
    let plan = match decode_plan(&bytes, &index.id(), index.tree()) {
        Ok(plan) if !plan.extents.is_empty() => plan,
        _ => return Ok(None),
    };
    let order = plan_order(index, &plan);
    let id = ContentId::of(&bytes);
    Ok(Some(Arc::new(Plan { id, bytes, order })))
}
