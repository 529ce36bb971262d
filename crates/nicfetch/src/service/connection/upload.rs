//! PUTs: a boot image that comes in pieces.

use blocks::ContentId;

use super::super::Shared;
use super::super::memory::Held;
use super::{Connection, Refusal};
use crate::wire::ErrorCode;
use crate::{BOOT_MAX, CatalogError};

/// A boot image that is on its way.
pub(super) struct Upload {
    index: ContentId,
    id: ContentId,
    total: u64,
    bytes: Vec<u8>,
    held: Held,
}

impl Connection<'_> {
    /// Takes a piece of a boot image; returns whether it was the last.
    pub(super) async fn put(
        &mut self,
        index: ContentId,
        id: ContentId,
        total: u64,
        offset: u64,
        piece: &[u8],
    ) -> Result<bool, Refusal> {
        if total == 0 || total > BOOT_MAX {
            return Err(CatalogError::BootLength { bytes: total }.into());
        }
        if offset == 0 {
            // Grows with what comes, not with what was promised.
            let bytes = Vec::new();
            self.put = Some(Upload {
                index,
                id,
                total,
                bytes,
                held: Held::none_of(&self.shared.memory),
            });
        }
        let fits = |put: &&mut Upload| {
            let end = offset.saturating_add(piece.len() as u64);
            (put.index, put.id, put.total) == (index, id, total)
                && put.bytes.len() as u64 == offset
                && end <= total
        };
        let Some(put) = self.put.as_mut().filter(fits) else {
            return Err(Refusal::rule(
                "a piece of a boot image does not follow the one before",
            ));
        };
        if !put.held.grow(piece.len() as u64) {
            self.put = None;
            let text = "there is no memory for a boot image now".to_owned();
            return Err(Refusal(ErrorCode::Busy, text));
        }
        put.bytes.extend_from_slice(piece);
        if (put.bytes.len() as u64) < total {
            return Ok(false);
        }
        let Some(Upload { bytes, held, .. }) = self.put.take() else {
            return Ok(false);
        };
        let keep = move |shared: &Shared| {
            let kept = shared.catalog.keep_boot(&index, &id, &bytes);
            drop((bytes, held));
            kept
        };
        self.on_disk(keep).await?;
        Ok(true)
    }
}
