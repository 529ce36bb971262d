//! The budget of memory for large manifests, indexes and lists that an upstream registry sends.
//!
//! Most have some KiB. One of 4 MiB is allowed, and stays in memory until the slowest client has
//! received it. So all large ones together have a bound, and one beyond it is not served: its client
//! goes to the registry.

use std::sync::Arc;

use hyper::body::Bytes;
use reqwest::Response;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::document::MANIFEST_MAX;
use crate::upstream::{UpstreamError, body, chunk};

/// The size up to which a document needs no budget: as much as the buffers of a connection.
const SHORT_MAX: usize = 64 << 10;
/// KiB of all longer ones that are in memory at a time.
const LONG_KIB: usize = 64 << 10;

/// The budget of memory for large documents.
#[derive(Clone, Debug)]
pub(super) struct Documents(Arc<Semaphore>);

/// A large document, with its part of the budget.
struct Long {
    bytes: Vec<u8>,
    _room: OwnedSemaphorePermit,
}

impl AsRef<[u8]> for Long {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Default for Documents {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(LONG_KIB)))
    }
}

impl Documents {
    /// Reads the body of a response.
    pub(super) async fn body(&self, answer: Response) -> Result<Bytes, UpstreamError> {
        let Some(declared) = answer.content_length() else {
            return self.undeclared(answer).await;
        };
        let declared = usize::try_from(declared).unwrap_or(usize::MAX);
        let most = declared.min(MANIFEST_MAX);
        if most <= SHORT_MAX {
            return Ok(body(answer, most).await?.into());
        }
        let room = self.room(most).ok_or(UpstreamError::NoMemory)?;
        let bytes = body(answer, most).await?;
        Ok(bounded(bytes, room))
    }

    /// Reads a body of unknown length, and takes budget as bytes are received.
    async fn undeclared(&self, mut answer: Response) -> Result<Bytes, UpstreamError> {
        let mut bytes = Vec::new();
        let mut room: Option<OwnedSemaphorePermit> = None;
        while let Some(piece) = chunk(&mut answer).await? {
            let len = bytes.len() + piece.len();
            if len > MANIFEST_MAX {
                return Err(UpstreamError::Protocol("the response is too large"));
            }
            let had = room.as_ref().map_or(0, |room| room.num_permits() << 10);
            if len > had.max(SHORT_MAX) {
                let most = len.next_power_of_two().min(MANIFEST_MAX);
                let more = self.room(most - had).ok_or(UpstreamError::NoMemory)?;
                match &mut room {
                    Some(room) => room.merge(more),
                    None => room = Some(more),
                }
                bytes.reserve_exact(most - bytes.len());
            }
            bytes.extend_from_slice(&piece);
        }
        Ok(match room {
            Some(room) => bounded(bytes, room),
            None => bytes.into(),
        })
    }

    /// Copies a document; `None` if there is no memory for it now.
    pub(super) fn copy(&self, bytes: &[u8]) -> Option<Bytes> {
        if bytes.len() <= SHORT_MAX {
            return Some(Bytes::copy_from_slice(bytes));
        }
        let room = self.room(bytes.len())?;
        Some(bounded(bytes.to_vec(), room))
    }

    fn room(&self, bytes: usize) -> Option<OwnedSemaphorePermit> {
        let kib = u32::try_from(bytes.div_ceil(1 << 10)).ok()?;
        Arc::clone(&self.0).try_acquire_many_owned(kib).ok()
    }
}

/// Returns bytes that keep their room for as long as somebody has them, and no more than they need.
fn bounded(mut bytes: Vec<u8>, mut room: OwnedSemaphorePermit) -> Bytes {
    bytes.shrink_to_fit();
    let needed = bytes.len().div_ceil(1 << 10);
    drop(room.split(room.num_permits().saturating_sub(needed)));
    Bytes::from_owner(Long { bytes, _room: room })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_documents_have_their_room_until_the_last_copy_goes() {
        let documents = Documents::default();
        let long = vec![7; 4 << 20];
        let mut held: Vec<_> = (0..16)
            .map(|_| documents.copy(&long).expect("there is room"))
            .collect();
        assert_eq!(documents.copy(&long), None);
        assert!(documents.copy(&long[..SHORT_MAX]).is_some(), "it is short");
        let piece = held.pop().expect("it is held").slice(3..5);
        assert_eq!(documents.copy(&long), None, "{piece:?}");
        drop(piece);
        assert_eq!(documents.copy(&long).as_deref(), Some(&long[..]));
    }
}
