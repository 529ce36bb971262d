//! Requests that are answered at once, one after the other: all but READ.

use std::sync::Arc;

use blocks::ContentId;

use super::super::Shared;
use super::{ACCESS, Connection, Refusal};
use crate::wire::{DATA_MAX, ErrorCode, Frame, Message, What};
use chunks::CatalogError;
use chunks::index::Index;

/// The most sources that one connection may open: one for each layer of a node's images.
const SOURCES_MAX: usize = 1024;

impl Connection<'_> {
    /// Answers such a request.
    pub(super) async fn answer(
        &mut self,
        request: u64,
        message: Message,
        data: Vec<u8>,
    ) -> Result<(), Refusal> {
        match message {
            Message::Open { name } => {
                let (handle, index) = self.open(name).await?;
                let (id, len) = (index.id(), index.bytes().len() as u64);
                self.say(request, Message::Opened { handle, len, id });
            }
            Message::Get {
                handle,
                what,
                id,
                offset,
                len,
            } => {
                let index = self.source(handle)?;
                let piece = self.piece(index, what, id, offset, len).await?;
                let message = Message::Piece;
                let data = piece;
                self.to.send(
                    Frame {
                        request,
                        message,
                        data,
                    },
                    None,
                );
            }
            Message::Boots { handle } => {
                let index = self.source(handle)?.id();
                let boots = self.shared.catalog.boots(&index);
                self.say(request, Message::BootList { boots });
            }
            Message::Put {
                handle,
                id,
                total,
                offset,
            } => {
                let index = self.source(handle)?.id();
                let whole = self.put(index, id, total, offset, &data).await?;
                self.say(request, Message::PutDone { whole });
            }
            Message::Prefetch {
                handle,
                first,
                count,
            } => {
                let index = self.source(handle)?;
                let (present, absent) = self.shared.readers.look(&index, first, count);
                self.say(request, Message::Prefetched { present, absent });
            }
            Message::Stat => {
                let s = self.shared.stats();
                let numbers = [
                    s.chunks,
                    s.bytes,
                    s.absent,
                    s.refused,
                    s.waiting,
                    s.connections,
                    s.sources,
                ];
                self.say(request, Message::Stats { numbers });
            }
            _ => return Err(Refusal::rule("clients may not send this frame")),
        }
        Ok(())
    }

    /// Opens a source, and writes to the access log.
    pub(super) async fn open(&mut self, name: Vec<u8>) -> Result<(u32, Arc<Index>), Refusal> {
        let shown = name.escape_ascii().to_string();
        let opened = self.open_source(name).await;
        let came = match &opened {
            Ok(_) => "opened",
            Err(Refusal(_, why)) => why,
        };
        log::info!(target: ACCESS, "{} open {shown}: {came}", self.name.escape_ascii());
        opened
    }

    async fn open_source(&mut self, name: Vec<u8>) -> Result<(u32, Arc<Index>), Refusal> {
        // Absent and forbidden must look the same.
        let no_source = || Refusal(ErrorCode::NoSource, "there is no such source".to_owned());
        if !self.may_open.has(&name) {
            return Err(no_source());
        }
        if self.sources.len() >= SOURCES_MAX {
            let text = format!("a connection has at most {SOURCES_MAX} sources");
            return Err(Refusal(ErrorCode::Busy, text));
        }
        let index = self
            .on_disk(move |shared| shared.catalog.source(&name))
            .await?;
        let index = index.ok_or_else(no_source)?;
        let handle = self.next_handle;
        self.next_handle += 1;
        self.sources.insert(handle, Arc::clone(&index));
        Ok((handle, index))
    }

    async fn piece(
        &self,
        index: Arc<Index>,
        what: What,
        id: ContentId,
        offset: u64,
        len: u32,
    ) -> Result<Vec<u8>, Refusal> {
        let len = (len as usize).min(DATA_MAX);
        match what {
            What::Index => {
                let bytes = index.bytes();
                let from = usize::try_from(offset)
                    .unwrap_or(usize::MAX)
                    .min(bytes.len());
                let to = from.saturating_add(len).min(bytes.len());
                Ok(bytes[from..to].to_vec())
            }
            What::Boot => {
                let of = index.id();
                let read = move |shared: &Shared| shared.catalog.boot_piece(&of, &id, offset, len);
                let gone = || Refusal(ErrorCode::Failed, "there is no such boot image".to_owned());
                self.on_disk(read).await?.ok_or_else(gone)
            }
        }
    }

    /// Runs blocking I/O on a thread for it.
    pub(super) async fn on_disk<T: Send + 'static>(
        &self,
        ask: impl FnOnce(&Shared) -> Result<T, CatalogError> + Send + 'static,
    ) -> Result<T, Refusal> {
        let shared = Arc::clone(self.shared);
        let asked = tokio::task::spawn_blocking(move || ask(&shared)).await;
        let died = |_| Refusal(ErrorCode::Failed, "the catalog failed".to_owned());
        Ok(asked.map_err(died)??)
    }
}
