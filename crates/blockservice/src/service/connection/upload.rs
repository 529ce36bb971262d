//! PUT requests: a boot image that is uploaded in parts.

use std::future::pending;

use blocks::ContentId;
use tokio::time::sleep_until;

use super::super::Shared;
use super::super::uploads::Coming;
use super::{Connection, Refusal};
use crate::wire::ErrorCode;
use chunks::CatalogError;

/// A boot image that is on its way.
pub(super) struct Upload {
    index: ContentId,
    id: ContentId,
    total: u64,
    next: u64,
    coming: Coming,
}

/// Waits until a boot image on its way should have brought more than it did.
pub(super) async fn overdue(put: Option<&Upload>) {
    match put.and_then(|put| put.coming.due()) {
        Some(due) => sleep_until(due.into()).await,
        None => pending().await,
    }
}

impl Connection<'_> {
    /// Cancels the boot image that is being uploaded; its client gets an error for the next piece.
    pub(super) fn give_up_put(&mut self) {
        if let Some(put) = &mut self.put {
            log::info!(
                "{} uploads a boot image too slowly: {} of {} bytes",
                self.name.escape_ascii(),
                put.next,
                put.total
            );
            put.coming.was_slow();
        }
    }

    /// Receives a piece of a boot image; returns whether it was the last.
    pub(super) async fn put(
        &mut self,
        index: ContentId,
        id: ContentId,
        total: u64,
        offset: u64,
        piece: &[u8],
    ) -> Result<bool, Refusal> {
        let most = self.shared.catalog.boot_max();
        if total == 0 || total > most {
            return Err(CatalogError::BootLength { bytes: total, most }.into());
        }
        if offset == 0 {
            let shared = self.shared;
            let coming = shared
                .uploads
                .begin(&self.vm.identity, total, shared.put_step());
            // Grows with what comes, not with what was promised.
            self.put = Some(Upload {
                index,
                id,
                total,
                next: 0,
                coming,
            });
        }
        let end = offset.saturating_add(piece.len() as u64);
        let fits = |put: &&mut Upload| {
            (put.index, put.id, put.total, put.next) == (index, id, total, offset) && end <= total
        };
        let Some(put) = self.put.as_mut().filter(fits) else {
            return Err(Refusal::rule(
                "a part of a boot image does not follow the part before it",
            ));
        };
        match put.coming.add(piece) {
            Ok(true) => {}
            Ok(false) => {
                put.next = end;
                return Ok(false);
            }
            Err(why) => {
                self.put = None;
                return Err(Refusal(ErrorCode::Busy, why.to_string()));
            }
        }
        let Some(Upload { coming, .. }) = self.put.take() else {
            return Ok(false);
        };
        let (whole, giver) = (coming.whole(), self.vm.identity.tag());
        let keep = move |shared: &Shared| {
            let catalog = &shared.catalog;
            let kept = catalog.keep_boot(&index, &id, &whole.blocks, giver);
            drop(whole);
            kept
        };
        self.on_disk(keep).await?;
        Ok(true)
    }
}
